"""A profile: a named recipe for one engine, one model, one port. Frozen, and valid once it exists.

Field checks are in the models; checks over the whole profile are the functions in `CHECKS`, whose findings
are reported together. All durations are in seconds, all sizes in tokens or MiB, as each field says.
"""

from __future__ import annotations

import ipaddress
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
)

from servicekit.errors import ProfileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,47}\Z")
"""Names of profiles: what a unit name, a Supervisor section and a path component can all hold."""

OPTION: Final = re.compile(r"[a-z0-9][a-z0-9_.-]*\Z")
VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]*\Z")
GPU: Final = re.compile(r"(?:[0-9]{1,2}|(?:GPU|MIG)-[0-9a-fA-F-]{6,})\Z")
SECRET: Final = re.compile(r"TOKEN|SECRET|PASSWORD|API_?KEY|CREDENTIAL")
PLACEHOLDER: Final = re.compile(r"\{(port|host|model|served_name|cache|state)\}")
"""Names that `arguments` and `environment` values may refer to, as `{port}`."""

RESERVED_VARIABLES: Final = frozenset(
    {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "INVOCATION_ID", "CREDENTIALS_DIRECTORY"}
)


class EngineName(StrEnum):
    """Engines that servicekit knows; `openai` is any OpenAI-compatible server, with nothing assumed."""

    SGLANG = "sglang"
    VLLM = "vllm"
    LLAMACPP = "llamacpp"
    OPENAI = "openai"


class Reason(StrEnum):
    """Why a service that answers is `degraded`. `restart.on` may name those that a restart should follow."""

    UNANSWERED = "unanswered"
    PROGRESS_WITHOUT_COMPLETION = "progress-without-completion"
    WRONG_ANSWER = "wrong-answer"
    REPEATED_ANSWER = "repeated-answer"
    CPU_FALLBACK = "cpu-fallback"
    DRAFT_GRAPH_DISABLED = "draft-graph-disabled"
    TOO_SLOW = "too-slow"
    ACCEPTANCE_ZERO = "acceptance-zero"
    CONTEXT_BELOW_REQUESTED = "context-below-requested"
    STRANGER_ON_GPU = "stranger-on-gpu"
    VRAM_ORPHAN = "vram-orphan"


def _no_nul(text: str) -> str:
    if "\0" in text:
        msg = "must not contain a NUL character"
        raise ValueError(msg)
    return text


def _loopback(host: str) -> str:
    try:
        if ipaddress.ip_address(host).is_loopback:
            return host
    except ValueError:
        pass
    msg = f'must be a loopback address such as "127.0.0.1", not "{host}": reach it through a tunnel instead'
    raise ValueError(msg)


def _name(name: str) -> str:
    if NAME.match(name):
        return name
    msg = f'must be 1 to 48 of a-z, 0-9 and "-", beginning with a letter or digit, not "{name}"'
    raise ValueError(msg)


Text = Annotated[StrictStr, AfterValidator(_no_nul)]
Line = Annotated[Text, Field(min_length=1, pattern=r"^[^\r\n]*$")]
Port = Annotated[StrictInt, Field(ge=1024, le=65535)]
Tokens = Annotated[StrictInt, Field(ge=1)]
Seconds = PositiveFloat
Scalar = StrictBool | StrictInt | StrictFloat | Text
OptionValue = Scalar | tuple[StrictInt | StrictFloat | Text, ...] | dict[str, Any]
"""`true` emits the bare option, `false` omits it, an array repeats values behind it, a table is written as JSON."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Context(_Section):
    """How many tokens of context the profile is for."""

    requested: Tokens = Field(description="tokens that one request is meant to be able to use")
    minimum: Tokens | None = Field(
        default=None,
        description="tokens below which the start is a fault; default half of `requested`. "
        "Between the two the service is degraded.",
    )
    parallel: PositiveInt = Field(default=1, description="requests served at once (llama.cpp: slots)")

    @property
    def floor(self) -> int:
        """Tokens below which the start is a fault."""
        return self.requested // 2 if self.minimum is None else self.minimum


class Probe(_Section):
    """The bounded completion that decides readiness."""

    prompt: Line = Field(default="What is two plus two? Reply with one word.", description="what is asked")
    max_tokens: Annotated[StrictInt, Field(ge=1, le=256)] = Field(default=8, description="tokens, at most")
    expect: Line | None = Field(default=None, description="regular expression that the answer must match")
    thinking: StrictBool = Field(default=False, description="leave the model's thinking on while probing")
    deadline: Seconds = Field(default=30.0, description="seconds for the whole gate, all requests together")


class Start(_Section):
    """Bounds on a start."""

    stall: Seconds = Field(default=600.0, description="seconds without any progress after which it is given up")
    limit: Seconds = Field(default=7200.0, description="seconds after which a start is given up in any case")
    gpu_wait: Seconds = Field(default=120.0, description="seconds to wait for the GPU to appear and be free")


class Watch(_Section):
    """How a ready service is watched."""

    interval: Seconds = Field(default=30.0, description="seconds between completions while idle")
    stall: Seconds = Field(
        default=180.0,
        description="seconds that progress counters may stand still under an unanswered completion: "
        "long enough for the longest first-shape compile",
    )
    unfinished: Seconds = Field(
        default=60.0, description="seconds of moving counters without any finished completion: degraded"
    )
    survey: Seconds = Field(default=15.0, description="seconds between looks at who holds the GPU")
    decode_floor: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="tokens/s of decoding below which the service is degraded; 0: not watched"
    )
    vram_minimum: Annotated[StrictInt, Field(ge=0)] = Field(
        default=256, description="MiB of VRAM that the engine must hold, else it fell back to the CPU"
    )
    ail_limit: Seconds = Field(
        default=120.0, description="seconds that a reason named in `restart.on` may last before a restart"
    )


class Stop(_Section):
    """How the engine is stopped; every bound is proven, not assumed."""

    grace: Seconds = Field(default=30.0, description="seconds from SIGTERM to SIGKILL; a second SIGTERM at half")
    kill: Seconds = Field(default=15.0, description="seconds after SIGKILL before a process is called unkillable")
    settle: Seconds = Field(default=60.0, description="seconds for VRAM and port to be free again")


class Restart(_Section):
    """When a fault is followed by a new run."""

    budget: PositiveInt = Field(default=5, description="faults within `window` after which it stays failed")
    window: Seconds = Field(default=3600.0, description="seconds over which faults are counted")
    healthy: Seconds = Field(default=600.0, description="seconds ready after which earlier faults are forgotten")
    on: tuple[Reason, ...] = Field(
        default=(Reason.VRAM_ORPHAN, Reason.CPU_FALLBACK),
        description="degraded reasons that are followed by a restart when they last",
    )


class Service(_Section):
    """What the service manager is told beyond the recipe."""

    user: Line | None = Field(default=None, description="account that runs the engine; default from the settings")
    network: Literal["loopback", "internet"] = Field(
        default="loopback",
        description='"internet" lets the engine download by itself; "loopback" cuts it off and sets HF_HUB_OFFLINE=1',
    )
    home: Literal["hidden", "read-only"] = Field(
        default="hidden", description="whether the engine may read home directories (an engine installed in one)"
    )
    read_write: tuple[Line, ...] = Field(default=(), description="absolute paths the engine may write to")
    without: tuple[Line, ...] = Field(default=(), description="hardening directives to leave out of the unit")


class Profile(_Section):
    """A named recipe. Whoever holds one need not check it again."""

    name: Annotated[StrictStr, AfterValidator(_name)] = Field(description="the file's name without .toml")
    summary: Line = Field(description="one line for `servicekit list`")
    engine: EngineName = Field(description="which engine serves the model")
    executable: Line | None = Field(default=None, description="the engine's program: a name on PATH or an absolute path")
    model: Line = Field(description="Hugging Face id, absolute path, or package:file inside a Python package")
    revision: Line | None = Field(default=None, description="revision of the model on the hub")
    drafter: Line | None = Field(default=None, description="Hugging Face id or absolute path of the draft model")
    served_name: Annotated[Line, Field(pattern=r"^\S+$")] = Field(description="model name that clients use")
    host: Annotated[StrictStr, AfterValidator(_loopback)] = Field(default="127.0.0.1", description="loopback only")
    port: Port = Field(description="TCP port, 1024 to 65535")
    gpus: tuple[Annotated[StrictStr, Field(pattern=GPU.pattern.replace(r"\Z", "$"))], ...] = Field(
        default=("0",), description='GPUs by index or UUID, such as ["0"]; [] for a CPU profile'
    )
    arguments: tuple[Text, ...] = Field(
        default=(), description="words placed before the options; may refer to {port} {host} {model} {served_name} {cache}"
    )
    options: dict[str, OptionValue] = Field(
        default_factory=dict, description="engine options by their exact long name without the leading dashes"
    )
    environment: dict[str, Text] = Field(default_factory=dict, description="variables exported for the engine")
    secrets: tuple[StrictStr, ...] = Field(
        default=(), description="variables whose values are kept by `servicekit secret set`, never in this file"
    )
    api_key: StrictStr | None = Field(
        default=None, description="which of `secrets` holds the server's API key, sent as a bearer token by probes"
    )
    tunables: tuple[StrictStr, ...] = Field(
        default=("port",),
        description='what the environment may override: "port", an option (SERVICEKIT_<OPTION>) or a variable above',
    )
    requires: dict[str, Line] = Field(
        default_factory=dict, description='versions needed, as {"sglang" = ">=0.5.16", "flashinfer-python" = ">0.6.15"}'
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


MANAGED: Final[Mapping[EngineName, Mapping[str, str]]] = {
    EngineName.SGLANG: {
        "host": "host",
        "port": "port",
        "served-model-name": "served_name",
        "model": "model",
        "model-path": "model",
        "revision": "revision",
        "speculative-draft-model-path": "drafter",
        "enable-metrics": "nothing: servicekit always sets it",
        "api-key": "secrets and api_key",
        "admin-api-key": "secrets",
    },
    EngineName.VLLM: {
        "host": "host",
        "port": "port",
        "served-model-name": "served_name",
        "model": "model",
        "revision": "revision",
        "max-model-len": "context.requested",
        "api-key": "secrets and api_key",
        "uds": "port",
    },
    EngineName.LLAMACPP: {
        "host": "host",
        "port": "port",
        "alias": "served_name",
        "model": "model",
        "ctx-size": "context.requested",
        "parallel": "context.parallel",
        "spec-draft-model": "drafter",
        "metrics": "nothing: servicekit always sets it",
        "api-key": "secrets and api_key",
    },
    EngineName.OPENAI: {},
}
"""Options that a profile sets by another key, per engine, and which key that is."""


def variable_of(tunable: str) -> str:
    """Name of the environment variable that overrides `tunable`: its own if it is one, else SERVICEKIT_…."""
    return tunable if VARIABLE.match(tunable) else "SERVICEKIT_" + re.sub(r"[.-]", "_", tunable).upper()


def _check_options(profile: Profile) -> Iterator[str]:
    managed = MANAGED[profile.engine]
    for option in profile.options:
        if not OPTION.match(option):
            yield f'options: "{option}" is not an option name: write it without the leading dashes, in full'
        elif option in managed:
            yield f'options: "{option}" is set by {managed[option]}; remove it here'


def _check_context(profile: Profile) -> Iterator[str]:
    context = profile.context
    if context.floor > context.requested:
        yield f"context: minimum ({context.floor} tokens) must not exceed requested ({context.requested} tokens)"
    for option in ("context-length", "max-total-tokens"):
        value = profile.options.get(option)
        if profile.engine is EngineName.SGLANG and type(value) is int and value < context.requested:
            yield f"context: requested ({context.requested} tokens) exceeds options.{option} ({value} tokens)"


def _check_times(profile: Profile) -> Iterator[str]:
    probe, start, watch, restart = profile.probe, profile.start, profile.watch, profile.restart
    if start.stall > start.limit:
        yield f"start: stall ({start.stall:g} s) must not exceed limit ({start.limit:g} s)"
    if watch.interval > restart.healthy:
        yield f"watch: interval ({watch.interval:g} s) must not exceed restart.healthy ({restart.healthy:g} s)"
    if probe.deadline > start.limit:
        yield f"probe: deadline ({probe.deadline:g} s) must not exceed start.limit ({start.limit:g} s)"


def _check_environment(profile: Profile) -> Iterator[str]:
    for name, value in profile.environment.items():
        if not VARIABLE.match(name):
            yield f'environment: "{name}" is not a variable name: use A-Z, 0-9 and "_"'
        elif name in RESERVED_VARIABLES or name.startswith("SERVICEKIT_"):
            yield f'environment: "{name}" belongs to servicekit and the service manager; remove it'
        elif SECRET.search(name) and value:
            yield f'environment: "{name}" looks like a secret; name it in secrets and run `servicekit secret set`'
        elif "CUDA_VISIBLE_DEVICES" in name:
            yield f'environment: "{name}" is set by gpus; remove it here'


def _check_secrets(profile: Profile) -> Iterator[str]:
    for name in profile.secrets:
        if not VARIABLE.match(name):
            yield f'secrets: "{name}" is not a variable name: use A-Z, 0-9 and "_"'
        elif name in profile.environment:
            yield f'secrets: "{name}" is also in environment; keep it in one place'
    if profile.api_key is not None and profile.api_key not in profile.secrets:
        yield f'api_key: "{profile.api_key}" is not named in secrets'


def _check_tunables(profile: Profile) -> Iterator[str]:
    seen: set[str] = set()
    for tunable in profile.tunables:
        if tunable in seen:
            yield f'tunables: "{tunable}" is named twice'
        seen.add(tunable)
        if tunable == "port" or tunable in profile.environment:
            continue
        value = profile.options.get(tunable)
        if value is None:
            yield f'tunables: "{tunable}" is neither "port", an option nor a variable of this profile'
        elif isinstance(value, bool | tuple | dict):
            yield f'tunables: "{tunable}" must be an option with a number or text as its value'


def _check_expect(profile: Profile) -> Iterator[str]:
    if profile.probe.expect is not None:
        try:
            re.compile(profile.probe.expect)
        except re.error as error:
            yield f"probe: expect is not a regular expression: {error}"


def _check_executable(profile: Profile) -> Iterator[str]:
    if profile.engine is EngineName.OPENAI and profile.executable is None:
        yield 'executable: engine "openai" has no default program; name one'
    if profile.executable is not None and "/" in profile.executable and not profile.executable.startswith("/"):
        yield f'executable: must be a name on PATH or an absolute path, not "{profile.executable}"'


def _check_service(profile: Profile) -> Iterator[str]:
    for path in profile.service.read_write:
        if not path.startswith("/"):
            yield f'service: read_write must name absolute paths, not "{path}"'
    if len(set(profile.gpus)) != len(profile.gpus):
        yield f"gpus: a GPU is named twice in {list(profile.gpus)}"


_LOW_PRECISION: Final = re.compile(r"(?:fp4|nvfp4|mx_?fp4|int4|q4|q5|iq4|turboquant)", re.IGNORECASE)
_KV_OPTIONS: Final = ("kv-cache-dtype", "cache-type-k", "cache-type-v")


def kv_below_fp8(profile: Profile) -> str | None:
    """Return the option and value that puts the KV cache below FP8, such as `kv-cache-dtype = nvfp4`."""
    for option in _KV_OPTIONS:
        value = profile.options.get(option)
        if isinstance(value, str) and _LOW_PRECISION.search(value):
            return f"{option} = {value}"
    return None


def _check_kv_precision(profile: Profile) -> Iterator[str]:
    low = kv_below_fp8(profile)
    if low is not None and profile.kv_precision_accepted is None:
        yield (
            f"options: {low} stores the KV cache below FP8, which can cost answers; "
            'if that was measured and accepted, say kv_precision_accepted = "why"'
        )


CHECKS: Final[tuple[Callable[[Profile], Iterator[str]], ...]] = (
    _check_executable,
    _check_options,
    _check_environment,
    _check_secrets,
    _check_tunables,
    _check_context,
    _check_times,
    _check_expect,
    _check_service,
    _check_kv_precision,
)
"""Checks over a whole profile, in the order in which their findings are reported."""


def _words(error: Mapping[str, Any]) -> str:
    """Say one of pydantic's findings in our words."""
    place = ".".join(str(part) for part in error["loc"] if not str(part).startswith(("function-", "tuple[", "constrained")))
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return f"{place}: unknown key; see `servicekit schema` for the keys there are"
    if kind == "missing":
        return f"{place}: is missing"
    if kind == "value_error":
        return f"{place}: {context['error']}"
    message = str(error["msg"])
    return f"{place}: {message[0].lower()}{message[1:]}"


def parse(data: Mapping[str, Any], *, name: str, where: str) -> Profile:
    """Make a profile of the parsed TOML `data` of the file `where`, or raise `ProfileError` with all findings."""
    try:
        profile = Profile.model_validate({**data, "name": name})
    except ValidationError as error:
        findings = dict.fromkeys(_words(dict(item)) for item in error.errors())
        raise ProfileError(where, tuple(findings)) from None
    findings_of_checks = [finding for check in CHECKS for finding in check(profile)]
    if findings_of_checks:
        raise ProfileError(where, findings_of_checks)
    return profile


def json_schema() -> dict[str, Any]:
    """JSON schema of a profile file, for editors; `name` comes from the file's name and `extends` is added."""
    schema = Profile.model_json_schema()
    schema["title"] = "servicekit profile"
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    del schema["properties"]["name"]
    schema["properties"]["extends"] = {"type": "string", "description": "profile whose keys this file changes"}
    required = [key for key in schema["required"] if key != "name"]
    del schema["required"]
    schema["anyOf"] = [{"required": ["extends"]}, {"required": required}]
    return schema
