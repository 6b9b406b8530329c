"""A profile: a named recipe for one engine, one model, one port. Frozen, and valid once it exists.

What a single value may be stands in `vocabulary`, what must hold between values in `rules`;
`parse` reports the findings of both together. All durations are in seconds, all sizes in tokens or
MiB, as each field says.
"""

from __future__ import annotations

from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    WithJsonSchema,
)
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import override

from servicekit.errors import ProfileError
from servicekit.profiles import vocabulary
from servicekit.profiles.findings import Finding, Lines, did_you_mean, texts, wording
from servicekit.profiles.rules import CHECKS
from servicekit.profiles.vocabulary import EngineName, Reason, variable_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core.core_schema import NullableSchema, WithDefaultSchema

__all__ = [
    "EngineName",
    "OptionValue",
    "Profile",
    "Reason",
    "examine",
    "json_schema",
    "merge",
    "parse",
    "plain",
    "variable_of",
]


def _word(pattern: str, wanted: str) -> tuple[AfterValidator, AfterValidator, WithJsonSchema]:
    """Annotate a text that must match `pattern`, for the model and for its schema."""
    return (
        AfterValidator(vocabulary.line),
        AfterValidator(vocabulary.matching(pattern, wanted)),
        WithJsonSchema({"type": "string", "pattern": f"^(?:{pattern})$"}),
    )


_TEXT: Final = {"type": "string", "pattern": r"^[^\u0000]*$"}
_LINE: Final = {"type": "string", "pattern": r"^\S([^\u0000-\u001f\u007f-\u009f]*\S)?$"}
_SCALARS: Final = [_TEXT, {"type": "number"}]

Text = Annotated[StrictStr, AfterValidator(vocabulary.text), WithJsonSchema(_TEXT)]
Line = Annotated[StrictStr, AfterValidator(vocabulary.line), WithJsonSchema(_LINE)]
Loopback = Annotated[
    StrictStr,
    AfterValidator(vocabulary.loopback),
    WithJsonSchema({"type": "string", "pattern": r"^(127(\.[0-9]{1,3}){3}|[0:]*:0*1)$"}),
]
Gpu = Annotated[
    StrictStr,
    BeforeValidator(vocabulary.gpu),
    AfterValidator(
        vocabulary.matching(vocabulary.GPU, 'an index such as "0" or a UUID such as "GPU-8a1b…"')
    ),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": f"^(?:{vocabulary.GPU})$"},
                {"type": "integer", "minimum": 0, "maximum": 99},
            ]
        }
    ),
]
Name = Annotated[
    StrictStr,
    *_word(vocabulary.NAME, '1 to 48 of a-z, 0-9 and "-", beginning with a letter or digit'),
]
Executable = Annotated[
    StrictStr, *_word(vocabulary.EXECUTABLE, "a program on PATH or an absolute path")
]
ServedName = Annotated[
    StrictStr,
    *_word(vocabulary.SERVED_NAME, 'a name without spaces and commas that begins without "-"'),
]
Revision = Annotated[StrictStr, *_word(vocabulary.REVISION, "a branch, tag or commit on the hub")]
Variable = Annotated[
    StrictStr, *_word(vocabulary.VARIABLE, 'the name of a variable: A-Z, 0-9 and "_"')
]
Account = Annotated[
    StrictStr, *_word(vocabulary.ACCOUNT, 'the name of an account, such as "servicekit"')
]
Directory = Annotated[StrictStr, *_word(r"/[^/].*", 'an absolute path below "/"')]
Directive = Annotated[
    StrictStr, *_word(vocabulary.DIRECTIVE, "a directive of systemd, such as ProtectHome")
]
Versions = Annotated[
    StrictStr, *_word(vocabulary.VERSIONS, 'a range of versions such as ">=0.5.16,<0.6"')
]
Port = Annotated[StrictInt, Field(ge=1024, le=65535)]
Tokens = Annotated[StrictInt, Field(ge=1, le=2**31)]
Count = Annotated[StrictInt, Field(ge=1, le=4096)]
Mebibytes = Annotated[StrictInt, Field(ge=0, le=2**24)]
Seconds = Annotated[StrictFloat, Field(gt=0, le=vocabulary.LONGEST, allow_inf_nan=False)]
OptionValue: TypeAlias = Annotated[
    bool | int | float | str | tuple[int | float | str, ...] | dict[str, Any],
    PlainValidator(vocabulary.option_value),
    # Left to itself, pydantic expects each kind of the union in turn, and warns.
    PlainSerializer(lambda value: value, return_type=Any),
    WithJsonSchema(
        {
            "anyOf": [
                *_SCALARS,
                {"type": "boolean"},
                {"type": "array", "minItems": 1, "items": {"anyOf": _SCALARS}},
                {"type": "object"},
            ]
        }
    ),
]
"""`true` emits the bare option, `false` none, an array gives it several values, a table is JSON."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Context(_Section):
    """How many tokens of context the profile is for."""

    requested: Tokens = Field(description="tokens that one request is meant to be able to use")
    minimum: Tokens | None = Field(
        default=None,
        description="tokens below which the start is a fault, by default half of `requested`; "
        "between the two the service is degraded",
    )
    parallel: Count = Field(default=1, description="requests served at once (llama.cpp: slots)")

    @property
    def floor(self) -> int:
        """Tokens below which the start is a fault."""
        return self.requested // 2 if self.minimum is None else self.minimum


class Probe(_Section):
    """The bounded completion that decides readiness."""

    prompt: Line = Field(
        default="What is two plus two? Reply with one word.", description="what is asked"
    )
    max_tokens: Annotated[StrictInt, Field(ge=1, le=256)] = Field(
        default=8, description="tokens of the answer, at most"
    )
    expect: Line | None = Field(
        default=None, description="regular expression that must be found in the answer"
    )
    thinking: StrictBool = Field(
        default=False, description="leave the model's thinking on while probing"
    )
    deadline: Seconds = Field(
        default=30.0, description="seconds for the whole gate, all its requests together"
    )


class Start(_Section):
    """Bounds on a start."""

    stall: Seconds = Field(
        default=600.0, description="seconds without any progress after which it is given up"
    )
    limit: Seconds = Field(
        default=7200.0, description="seconds after which a start is given up in any case"
    )
    gpu_wait: Seconds = Field(
        default=120.0, description="seconds to wait for the GPU to appear and to be free"
    )


class Watch(_Section):
    """How a ready service is watched."""

    interval: Seconds = Field(default=30.0, description="seconds between completions while idle")
    stall: Seconds = Field(
        default=180.0,
        description="seconds that progress counters may stand still under an unanswered "
        "completion: long enough for the longest compile of a first shape",
    )
    unfinished: Seconds = Field(
        default=60.0,
        description="seconds of moving counters without any finished completion after which the "
        "service is degraded",
    )
    survey: Seconds = Field(default=15.0, description="seconds between looks at who holds the GPU")
    decode_floor: Annotated[StrictFloat, Field(ge=0, le=1e6, allow_inf_nan=False)] = Field(
        default=0.0,
        description="tokens/s of decoding below which the service is degraded; 0: not watched",
    )
    vram_minimum: Mebibytes = Field(
        default=256, description="MiB of VRAM the engine must hold, else it fell back to the CPU"
    )
    stranger_allowance: Mebibytes = Field(
        default=1024,
        description="MiB of VRAM that processes not ours, such as a desktop, may hold unreported",
    )
    ail_limit: Seconds = Field(
        default=120.0,
        description="seconds that a reason named in `restart.on` may last before a restart",
    )


class Stop(_Section):
    """How the engine is stopped; every bound is proven, not assumed."""

    grace: Seconds = Field(
        default=30.0, description="seconds from SIGTERM to SIGKILL; a second SIGTERM at half"
    )
    kill: Seconds = Field(
        default=15.0, description="seconds after SIGKILL before a process is called unkillable"
    )
    settle: Seconds = Field(default=60.0, description="seconds for VRAM and port to be free again")


class Restart(_Section):
    """When a fault is followed by a new run."""

    budget: Count = Field(
        default=5, description="faults within `window` after which it stays failed"
    )
    window: Seconds = Field(default=3600.0, description="seconds over which faults are counted")
    healthy: Seconds = Field(
        default=600.0, description="seconds ready after which earlier faults are forgotten"
    )
    on: tuple[Reason, ...] = Field(
        default=(Reason.VRAM_ORPHAN, Reason.CPU_FALLBACK),
        description="degraded reasons that are followed by a restart when they last",
    )


class Service(_Section):
    """What the service manager is told beyond the recipe."""

    user: Account | None = Field(
        default=None, description="account that runs the engine, by default the settings' one"
    )
    network: Literal["loopback", "internet"] = Field(
        default="loopback",
        description='"internet" lets the engine download by itself; "loopback" cuts it off and '
        "sets HF_HUB_OFFLINE=1",
    )
    home: Literal["hidden", "read-only"] = Field(
        default="hidden",
        description="whether the engine may read home directories (an engine installed in one)",
    )
    read_write: tuple[Directory, ...] = Field(
        default=(), description="absolute paths the engine may write to"
    )
    without: tuple[Directive, ...] = Field(
        default=(), description="hardening directives to leave out of the unit"
    )


class Profile(_Section):
    """A named recipe. Whoever holds one need not check it again."""

    name: Name = Field(description="the file's name without .toml")
    summary: Annotated[
        Line,
        AfterValidator(vocabulary.matching(r".*[^\\]", "text that does not end in a backslash")),
    ] = Field(description="one line for `servicekit list` and the service manager")
    engine: EngineName = Field(description="which engine serves the model")
    executable: Executable | None = Field(
        default=None, description="the engine's program: a name on PATH or an absolute path"
    )
    model: Line = Field(
        description="hub id, absolute path, or package:file inside an installed Python package"
    )
    revision: Revision | None = Field(default=None, description="revision of the model on the hub")
    drafter: Line | None = Field(
        default=None, description="hub id or absolute path of the draft model"
    )
    served_name: ServedName = Field(description="model name that clients use")
    host: Loopback = Field(default="127.0.0.1", description="a loopback address, always")
    port: Port = Field(description="TCP port, 1024 to 65535")
    gpus: tuple[Gpu, ...] = Field(
        default=("0",), description='GPUs by index or UUID, such as ["0"]; [] for a CPU profile'
    )
    arguments: tuple[Text, ...] = Field(
        default=(),
        description="words placed before the options; may refer to {port} {host} {model} "
        "{served_name} {cache} {state}",
    )
    options: dict[str, OptionValue] = Field(
        default_factory=dict,
        description="engine options by their exact long name without the leading dashes; true is "
        "the bare option, false none, an array several values, a table JSON; text may refer to "
        "what arguments may",
    )
    environment: dict[str, Text] = Field(
        default_factory=dict,
        description="variables exported for the engine; values may refer to what arguments may",
    )
    secrets: tuple[Variable, ...] = Field(
        default=(),
        description="variables whose values `servicekit secret set` keeps, never this file",
    )
    api_key: Variable | None = Field(
        default=None,
        description="which of `secrets` holds the server's API key, sent as a bearer token",
    )
    tunables: tuple[Line, ...] = Field(
        default=("port",),
        description='what the environment may override: "port", an option (as '
        "SERVICEKIT_<OPTION>) or a variable of `environment` (as itself)",
    )
    requires: dict[str, Versions] = Field(
        default_factory=dict,
        description='versions needed, such as {sglang = ">=0.5.16", flashinfer-python = ">0.6.15"}',
    )
    kv_precision_accepted: Line | None = Field(
        default=None, description="why a KV cache below FP8 is acceptable for this profile"
    )
    context: Context
    probe: Probe = Probe()
    start: Start = Start()
    watch: Watch = Watch()
    stop: Stop = Stop()
    restart: Restart = Restart()
    service: Service = Service()

    @property
    def unit(self) -> str:
        """Name of the systemd unit, without its suffix; also the Supervisor program."""
        return f"servicekit-{self.name}"


def plain(profile: Profile) -> Profile:
    """Return a twin of `profile` that can be sent to, and read by, a process without pydantic.

    It answers by the same attributes and properties, and to nothing else.
    """
    return cast("Profile", _plain(profile))


def _plain(section: BaseModel) -> SimpleNamespace:
    kind = type(section)
    properties = (name for name, member in vars(kind).items() if isinstance(member, property))
    vocabulary = {name: getattr(section, name) for name in (*kind.model_fields, *properties)}
    return SimpleNamespace(
        **{
            name: _plain(value) if isinstance(value, BaseModel) else value
            for name, value in vocabulary.items()
        }
    )


def _sections() -> Mapping[str, type[BaseModel]]:
    """Tables of a profile whose keys are fixed, by name."""
    return {
        key: field.annotation
        for key, field in Profile.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }


_STAND_IN: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "name": "stand-in",
        "summary": "stands in",
        "engine": EngineName.SGLANG,
        "model": "stand/in",
        "served_name": "stand-in",
        "port": 1024,
        "context": {"requested": 1},
    }
)
"""Values in place of wrong ones, so that the checks which do not read them can run."""


def merge(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `change` laid over it: tables key by key at any depth, all else replaced.

    `false` in `options` and `environment` takes the key away. Neither argument is changed.
    """
    merged = _laid_over(base, change)
    for table in ("options", "environment"):
        if isinstance(merged.get(table), dict):
            merged[table] = {
                key: value for key, value in merged[table].items() if value is not False
            }
    return merged


def _laid_over(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in change.items():
        under = merged.get(key)
        both = isinstance(value, dict) and isinstance(under, dict)
        merged[key] = _laid_over(under, value) if both else value  # type: ignore[arg-type]
    return merged


def parse(
    data: Mapping[str, Any], *, name: str, where: str, lines: Lines = MappingProxyType({})
) -> Profile:
    """Make a profile of `data`, the parsed TOML of the file `where`.

    Raises `ProfileError` with all findings together; `lines` tells on which line a key is.
    """
    profile, findings = examine(data, name=name)
    if profile is None:
        raise ProfileError(where, texts(findings, lines))
    return profile


def examine(data: Mapping[str, Any], *, name: str) -> tuple[Profile | None, tuple[Finding, ...]]:
    """Make a profile of `data`, or give everything that is wrong with it."""
    findings = []
    broken: set[str] = set()
    if "name" in data:
        findings.append(Finding(("name",), "is the file's name without .toml; remove it here"))
    given = {**data, "name": name}
    try:
        profile = Profile.model_validate(given)
    except ValidationError as error:
        items = error.errors(include_url=False)
        findings.extend(Finding(item["loc"], _finding(dict(item))) for item in items)
        broken = {str(item["loc"][0]) for item in items}
        sound = {key: value for key, value in given.items() if key not in broken}
        profile = Profile.model_validate({**_STAND_IN, **sound})
    for reads, check in CHECKS:
        if not reads & broken:
            findings.extend(check(profile))
    return (None, tuple(findings)) if findings else (profile, ())


def _finding(error: Mapping[str, Any]) -> str:
    """Say what is wrong; for a key that does not exist, also where it might belong."""
    if error["type"] != "extra_forbidden":
        return wording(error)
    *table, key = (str(part) for part in error["loc"])
    sections = _sections()
    if table and key in Profile.model_fields:
        return "unknown key in this table; write it above the first [table] of the file"
    homes = [name for name, model in sections.items() if key in model.model_fields]
    if not table and homes:
        return f"unknown key; it belongs below [{homes[0]}]"
    known = sections[table[0]].model_fields if table else Profile.model_fields
    return f"unknown key{did_you_mean(key, known) or '; see `servicekit schema`'}"


class _TomlSchema(GenerateJsonSchema):
    """JSON schema of what a TOML file can say: no null, and no default but of a single key."""

    @override
    def nullable_schema(self, schema: NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    @override
    def default_schema(self, schema: WithDefaultSchema) -> JsonSchemaValue:
        if isinstance(schema.get("default"), BaseModel | None):
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)

    @override
    def field_title_should_be_set(self, schema: object) -> bool:
        return False


def json_schema() -> dict[str, Any]:
    """JSON schema of a profile file, for editors: with `extends`, and without `name`."""
    schema = Profile.model_json_schema(schema_generator=_TomlSchema)
    properties, sections = schema["properties"], schema["$defs"]
    del properties["name"]
    properties["extends"] = {
        "type": "string",
        "pattern": f"^(?:{vocabulary.NAME})$",
        "description": "profile whose keys this file changes: tables are merged key by key, and "
        "false takes an option or a variable away",
    }
    text = properties["environment"]["additionalProperties"]
    properties["environment"]["additionalProperties"] = {"anyOf": [text, {"const": False}]}
    required = [key for key in schema.pop("required") if key != "name"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "servicekit profile",
        # What a profile by itself must say, one that extends another need not repeat.
        "if": {"required": ["extends"]},
        "else": {
            "required": required,
            "properties": {
                "context": {"required": sections["Context"].pop("required")},
                "environment": {"additionalProperties": text},
            },
        },
    }
