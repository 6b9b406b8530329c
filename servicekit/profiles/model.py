"""A profile: a named recipe for one engine, one model, one port. Frozen, and valid once it exists.

`vocabulary` checks single values, `rules` checks values against each other; `parse` reports the
findings of both together. Durations are in seconds, sizes in tokens or MiB, as each field says.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

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
    WithJsonSchema,
)

from servicekit.profiles import vocabulary
from servicekit.profiles.vocabulary import EngineName, Reason


def _word(
    pattern: str, wanted: str, *, secret: bool = False
) -> tuple[AfterValidator, AfterValidator, WithJsonSchema]:
    """Annotate a text that must match `pattern`, for the model and for its schema."""
    return (
        AfterValidator(vocabulary.line),
        AfterValidator(vocabulary.matching(pattern, wanted, secret=secret)),
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
    *_word(vocabulary.SERVED_NAME, 'a name without spaces, commas or a leading "-"'),
]
Revision = Annotated[StrictStr, *_word(vocabulary.REVISION, "a branch, tag or commit on the hub")]
Variable = Annotated[
    StrictStr,
    *_word(
        vocabulary.VARIABLE,
        'the name of a variable, of A-Z, 0-9 and "_"; `servicekit secret set` stores its value',
        secret=True,
    ),
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


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Context(_Section):
    """The context of one request."""

    requested: Tokens = Field(description="tokens of context for one request")
    minimum: Tokens | None = Field(
        default=None,
        description="smallest acceptable context in tokens, by default half of `requested`: "
        "with less a start fails, between the two the service is degraded",
    )
    parallel: Count = Field(default=1, description="requests served at once (llama.cpp: slots)")

    @property
    def floor(self) -> int:
        """Tokens of context with fewer of which a start fails."""
        return self.requested // 2 if self.minimum is None else self.minimum


class Probe(_Section):
    """The readiness probe: one completion within a deadline."""

    prompt: Line = Field(
        default="What is two plus two? Reply with one word.", description="prompt of the probe"
    )
    max_tokens: Annotated[StrictInt, Field(ge=1, le=256)] = Field(
        default=8, description="maximum tokens of the answer"
    )
    expect: Line | None = Field(
        default=None, description="regular expression that must match a part of the answer"
    )
    thinking: StrictBool = Field(
        default=False, description="leave the model's thinking on during the probe"
    )
    path: Annotated[Line, Field(pattern=r"^/[!-~]*$")] = Field(
        default="/v1/chat/completions", description="path that the completion is posted to"
    )
    token_limit: Literal["max_tokens", "max_completion_tokens"] = Field(
        default="max_tokens", description="name of the request's field with the maximum tokens"
    )
    omit: tuple[Line, ...] = Field(
        default=(), description="fields to leave out of the request, for a server that refuses them"
    )
    deadline: Seconds = Field(
        default=30.0, description="seconds for the whole probe, all its requests together"
    )


class Start(_Section):
    """Bounds on a start."""

    stall: Seconds = Field(
        default=600.0, description="seconds without progress after which the start is aborted"
    )
    limit: Seconds = Field(
        default=7200.0, description="seconds after which the start is aborted in any case"
    )
    gpu_wait: Seconds = Field(
        default=120.0, description="seconds to wait until the GPU is present and free"
    )


class Watch(_Section):
    """How a ready service is watched."""

    interval: Seconds = Field(default=30.0, description="seconds between probes while idle")
    stall: Seconds = Field(
        default=180.0,
        description="seconds that the engine's counters may stand still while a completion is "
        "unanswered; allow for the longest compilation of a first shape",
    )
    still: Seconds = Field(
        default=15.0,
        description="seconds that the engine's processes may do nothing at all (no CPU time, no "
        "I/O, no work on the GPU) under an unanswered completion",
    )
    failure_limit: Seconds = Field(
        default=60.0,
        description="seconds that a ready service may refuse connections or answer with errors, "
        "as another model or from a foreign process, before it is restarted",
    )
    unfinished: Seconds = Field(
        default=60.0,
        description="seconds after which the service is degraded if the counters move but no "
        "completion finishes",
    )
    survey: Seconds = Field(
        default=15.0, description="seconds between surveys of the processes on the GPU"
    )
    decode_floor: Annotated[StrictFloat, Field(ge=0, le=1e6, allow_inf_nan=False)] = Field(
        default=0.0,
        description="decode rate in tokens/s below which the service is degraded; 0 turns this off",
    )
    vram_minimum: Mebibytes = Field(
        default=256,
        description="MiB of VRAM that the engine must hold; less means that it runs on the CPU",
    )
    stranger_allowance: Mebibytes = Field(
        default=1024,
        description="MiB of VRAM that foreign processes, such as a desktop, may hold unreported",
    )
    heartbeat: Annotated[Line, Field(pattern=r"^https?://[!-~]+$")] | None = Field(
        default=None,
        description="URL that gets a GET while the service is ready, so that its receiver notices "
        "a host that died; everybody on this host can read it",
    )
    heartbeat_interval: Seconds = Field(
        default=60.0, description="seconds between two requests to `heartbeat`"
    )
    ail_limit: Seconds = Field(
        default=120.0,
        description="seconds that a condition named in `restart.on` may last before a restart",
    )


class Stop(_Section):
    """How the engine is stopped."""

    grace: Seconds = Field(
        default=30.0,
        description="seconds from SIGTERM to SIGKILL; a second SIGTERM follows half-way",
    )
    kill: Seconds = Field(
        default=15.0, description="seconds after SIGKILL before a process counts as unkillable"
    )
    settle: Seconds = Field(default=60.0, description="seconds until VRAM and port must be free")


class Restart(_Section):
    """When the engine is restarted after a fault."""

    budget: Count = Field(
        default=5, description="faults within `window` after which the service stays failed"
    )
    window: Seconds = Field(default=3600.0, description="seconds over which faults are counted")
    healthy: Seconds = Field(
        default=600.0, description="seconds of readiness after which the restart count is reset"
    )
    on: tuple[Reason, ...] = Field(
        default=(Reason.VRAM_ORPHAN, Reason.CPU_FALLBACK),
        description="conditions that cause a restart after `watch.ail_limit`",
    )


class Service(_Section):
    """How the service manager runs the engine."""

    user: Account | None = Field(
        default=None,
        description="account that runs the engine, by default `service_user` of the settings",
    )
    network: Literal["loopback", "internet"] = Field(
        default="loopback",
        description='"internet" lets the engine download; "loopback" blocks that and '
        "sets HF_HUB_OFFLINE=1",
    )
    home: Literal["hidden", "read-only"] = Field(
        default="hidden",
        description="whether the engine may read home directories, as one installed there must",
    )
    read_write: tuple[Directory, ...] = Field(
        default=(), description="absolute paths that the engine may write to"
    )
    without: tuple[Directive, ...] = Field(
        default=(), description="hardening directives to omit from the unit"
    )


class Profile(_Section):
    """A named recipe for one engine, one model, one port."""

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
    host: Loopback = Field(default="127.0.0.1", description="loopback address to listen on")
    port: Port = Field(description="TCP port, 1024 to 65535")
    gpus: tuple[Gpu, ...] = Field(
        default=("0",), description='GPUs by index or UUID, such as ["0"]; [] for a CPU profile'
    )
    arguments: tuple[Text, ...] = Field(
        default=(),
        description="arguments placed before the options, with the placeholders {port} {host} "
        "{model} {served_name} {cache} {state}",
    )
    options: dict[str, OptionValue] = Field(
        default_factory=dict,
        description="engine options by their exact long name without the leading dashes: true "
        "gives the bare option, false omits it, an array gives several values, a table JSON; "
        "text may contain the placeholders of `arguments`",
    )
    environment: dict[str, Text] = Field(
        default_factory=dict,
        description="variables of the engine; values may contain the same placeholders",
    )
    secrets: tuple[Variable, ...] = Field(
        default=(),
        description="variables whose values `servicekit secret set` stores, never this file",
    )
    api_key: Variable | None = Field(
        default=None,
        description="name of the secret that holds the server's API key, sent as a bearer token",
    )
    tunables: tuple[Line, ...] = Field(
        default=("port",),
        description='what the environment may override: "port", an option (as '
        "SERVICEKIT_<OPTION>) or a variable of `environment` (as itself)",
    )
    requires: dict[str, Versions] = Field(
        default_factory=dict,
        description='version ranges, such as {sglang = ">=0.5.16", flashinfer-python = ">0.6.15"}',
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
