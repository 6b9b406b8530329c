"""Checks over a whole profile: what must hold between its values. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import urlsplit

from servicekit.profiles.findings import Finding
from servicekit.profiles.vocabulary import (
    ANY_VARIABLE,
    HUB_FILE,
    HUB_ID,
    OPTION,
    PACKAGED,
    PLACEHOLDERS,
    EngineName,
    variable_of,
)
from servicekit.text import did_you_mean, shown

if TYPE_CHECKING:
    from servicekit.profiles.findings import Path
    from servicekit.profiles.model import Profile

# Variables by which a service manager and its service talk.
RESERVED_VARIABLES: Final = frozenset(
    {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "INVOCATION_ID", "CREDENTIALS_DIRECTORY"}
)

# Variables that decide which GPU an engine sees.
GPU_VARIABLES: Final = frozenset(
    {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}
)

# Names whose SERVICEKIT_ variable means something else: a setting, the settings file, or a mark
# of a run.
RESERVED_TUNABLES: Final = frozenset(
    {
        *("allow", "deny", "manager", "supervisor_socket", "service_user", "root", "places"),
        *("log_format", "alert_command", "alert_webhook", "config"),
        *("profile", "run", "state", "cause"),
    }
)


# Options that a profile sets by another key, per engine, and which key that is.
MANAGED: Final[Mapping[EngineName, Mapping[str, str]]] = {
    EngineName.SGLANG: {
        "host": "host",
        "port": "port",
        "served-model-name": "served_name",
        "model": "model",
        "model-path": "model",
        "revision": "revision",
        "speculative-draft-model": "drafter",
        "speculative-draft-model-path": "drafter",
        "enable-metrics": "servicekit, always",
        "api-key": "secrets and api_key",
        "admin-api-key": "secrets",
    },
    EngineName.VLLM: {
        "host": "host",
        "port": "port",
        "uds": "host and port",
        "served-model-name": "served_name",
        "model": "model",
        "revision": "revision",
        "max-model-len": "context.requested",
        "api-key": "secrets and api_key",
        "hf-token": "secrets",
    },
    EngineName.LLAMACPP: {
        "host": "host",
        "port": "port",
        "alias": "served_name",
        "model": "model",
        "model-url": "model",
        "hf-repo": "model",
        "hf-file": "model",
        "ctx-size": "context.requested",
        "parallel": "context.parallel",
        "spec-draft-model": "drafter",
        "metrics": "servicekit, always",
        "api-key": "secrets and api_key",
        "hf-token": "secrets",
    },
    EngineName.OPENAI: {},
}

_SECRET_NAME: Final = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|CREDENTIALS?)(?:_|$)"
)
_SECRET_OPTION: Final = re.compile(r"(?:^|-)(?:token|secret|password|api-?key)$")
_SECRET_VALUE: Final = re.compile(r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,})")

_Findings: TypeAlias = Iterator[Finding]


def _manager_of(option: str, engine: EngineName) -> str | None:
    """Return the key that sets `option` of `engine`, in any spelling that the engine accepts."""
    managed = MANAGED[engine]
    exact = option.replace("_", "-")
    if exact in managed:
        return managed[exact]
    if engine is EngineName.LLAMACPP:
        return None
    # Python's argparse takes any beginning of an option for it: --hos would be a second --host.
    return next((key for name, key in managed.items() if name.startswith(exact)), None)


def _check_executable(profile: Profile) -> _Findings:
    if profile.engine is EngineName.OPENAI and profile.executable is None:
        yield Finding(("executable",), 'is missing: engine "openai" has no default program')


def _check_models(profile: Profile) -> _Findings:
    if profile.engine is EngineName.OPENAI:
        return  # its own command line gives the model a meaning
    for key, model in (("model", profile.model), ("drafter", profile.drafter)):
        if model is None or model.startswith("/") or HUB_ID.match(model):
            continue
        if key == "model" and PACKAGED.match(model):
            continue
        if (key, profile.engine) == ("model", EngineName.LLAMACPP) and HUB_FILE.match(model):
            continue
        wanted = 'an absolute path, "package:file"' if key == "model" else "an absolute path"
        yield Finding(
            (key,), f'must be {wanted} or a hub id such as "owner/name", not "{shown(model)}"'
        )


def _check_options(profile: Profile) -> _Findings:
    for option, value in profile.options.items():
        path = ("options", option)
        if not OPTION.match(option):
            yield Finding(path, "is not an option: write its long name without the leading dashes")
            continue
        manager = _manager_of(option, profile.engine)
        if manager is not None:
            yield Finding(path, f"is set by {manager}; remove it here")
        elif _SECRET_OPTION.search(option.replace("_", "-")) and isinstance(value, str):
            yield Finding(
                path,
                "looks like a secret, and every user can read a command line: use secrets instead",
            )
        elif _SECRET_VALUE.search(str(value)):
            yield Finding(
                path,
                "contains what looks like a secret, which users could read: use secrets instead",
            )
        elif isinstance(value, str):
            yield from _misspelt_placeholders(path, value)


def _check_arguments(profile: Profile) -> _Findings:
    for index, argument in enumerate(profile.arguments):
        path = ("arguments", index)
        if argument.startswith("--"):
            option = argument[2:].partition("=")[0]
            manager = _manager_of(option, profile.engine) if option else None
            if manager is not None:
                yield Finding(path, f'"--{shown(option)}" is set by {manager}; remove it here')
        if _SECRET_VALUE.search(argument):
            yield Finding(
                path,
                "contains what looks like a secret, which users could read: use secrets instead",
            )
        yield from _misspelt_placeholders(path, argument)


def _check_environment(profile: Profile) -> _Findings:
    for name, value in profile.environment.items():
        path = ("environment", name)
        if not re.fullmatch(ANY_VARIABLE, name):
            yield Finding(path, 'is not a variable name: use letters, digits and "_"')
        elif name in RESERVED_VARIABLES or name.startswith("SERVICEKIT_"):
            yield Finding(path, "is reserved for servicekit and the service manager; remove it")
        elif name in GPU_VARIABLES:
            yield Finding(path, "is set by gpus; remove it here")
        elif name.startswith("LLAMA_ARG_"):
            yield Finding(path, "sets an option of llama.cpp; write it in options instead")
        elif (_SECRET_NAME.search(name) and value) or _SECRET_VALUE.search(value):
            yield Finding(
                path, "looks like a secret: name it in secrets and run `servicekit secret set`"
            )
        yield from _misspelt_placeholders(path, value)


def _misspelt_placeholders(path: Path, text: str) -> _Findings:
    """Find `{prot}`; a word in braces that resembles no placeholder is text of the user's own."""
    for word in re.findall(r"(?<!\{)\{([a-z_-]+)\}(?!\})", text):
        meant = did_you_mean(word, PLACEHOLDERS)
        if word not in PLACEHOLDERS and meant:
            yield Finding(path, f'"{{{word}}}" is not a placeholder{meant}')


def _check_secrets(profile: Profile) -> _Findings:
    for index, name in enumerate(profile.secrets):
        path = ("secrets", index)
        if name in profile.environment:
            yield Finding(path, f'"{name}" is also in environment; remove it from one of them')
        elif name in RESERVED_VARIABLES or name.startswith("SERVICEKIT_"):
            yield Finding(path, f'"{name}" is reserved for servicekit and the service manager')
    if profile.api_key is not None and profile.api_key not in profile.secrets:
        yield Finding(("api_key",), f'"{profile.api_key}" is not in secrets; add it there')


def _check_tunables(profile: Profile) -> _Findings:
    variables: set[str] = set()
    for index, tunable in enumerate(profile.tunables):
        path, variable = ("tunables", index), variable_of(tunable)
        if variable in variables:
            yield Finding(
                path, f'"{tunable}" shares the variable {variable} with another tunable; remove one'
            )
        variables.add(variable)
        if tunable in profile.environment:
            if variable != tunable:
                yield Finding(path, f'"{tunable}" must be in upper case to be tunable')
            if "port" in profile.tunables and "{port}" in profile.environment[tunable]:
                yield Finding(path, f'"{tunable}" contains {{port}}, which is tunable itself')
            continue
        if tunable == "port":
            continue
        value = profile.options.get(tunable)
        if value is None:
            known = ("port", *profile.options, *profile.environment)
            yield Finding(
                path,
                f'"{shown(tunable)}" is neither "port", an option nor a variable of this profile'
                f"{did_you_mean(tunable, known)}",
            )
        elif isinstance(value, bool | tuple | dict):
            yield Finding(path, f'"{tunable}" must be an option whose value is a number or text')
        elif isinstance(value, str) and value.startswith("-"):
            # Joined by "=" it is passed on well; a variable's value is a word of its own.
            yield Finding(path, f'"{tunable}" must not begin with "-" to be tunable')
        elif variable.removeprefix("SERVICEKIT_").lower() in RESERVED_TUNABLES:
            yield Finding(
                path, f'"{tunable}" would be set by {variable}, which has another meaning'
            )


def _check_context(profile: Profile) -> _Findings:
    context = profile.context
    if context.floor > context.requested:
        yield Finding(
            ("context", "minimum"),
            f"must not exceed requested ({context.requested} tokens), not {context.floor} tokens",
        )
    if profile.engine is EngineName.SGLANG:
        for option in ("context-length", "max-total-tokens"):
            value = profile.options.get(option)
            if type(value) is int and value < context.requested:
                yield Finding(
                    ("context", "requested"),
                    f"must not exceed options.{option} ({value} tokens), "
                    f"not {context.requested} tokens",
                )


def _check_times(profile: Profile) -> _Findings:
    probe, start, watch, restart = profile.probe, profile.start, profile.watch, profile.restart
    for path, seconds, bound, limit in (
        (("start", "stall"), start.stall, "start.limit", start.limit),
        (("probe", "deadline"), probe.deadline, "start.limit", start.limit),
        (("watch", "interval"), watch.interval, "restart.healthy", restart.healthy),
    ):
        if seconds > limit:
            yield Finding(path, f"must not exceed {bound} ({limit:g} s), not {seconds:g} s")


def _check_expect(profile: Profile) -> _Findings:
    if profile.probe.expect is not None:
        try:
            re.compile(profile.probe.expect)
        except re.error as error:
            yield Finding(("probe", "expect"), f"is not a regular expression: {error}")


def _check_heartbeat(profile: Profile) -> _Findings:
    url = profile.watch.heartbeat
    if url is None:
        return
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        yield Finding(("watch", "heartbeat"), "is not a URL")
        return
    if profile.service.network == "loopback" and not _is_loopback(host):
        says = f'must be on loopback, not at "{host}", unless service.network is "internet"'
        yield Finding(("watch", "heartbeat"), says)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _check_gpus(profile: Profile) -> _Findings:
    if len(set(profile.gpus)) != len(profile.gpus):
        yield Finding(("gpus",), "lists a GPU twice")


# In the engines' names for what is below FP8; `int8…` and `q8_0` are not.
_LOW_PRECISION: Final = re.compile(
    r"(?:fp|int)[2-6](?![0-9])|q[2-6]|[2-6]bit|(?:turbo|ultra)quant", re.IGNORECASE
)
_KV_OPTIONS: Final = frozenset({"kv-cache-dtype", "cache-type-k", "cache-type-v", "ctk", "ctv"})


def _stored_below_fp8(profile: Profile) -> Iterator[tuple[Path, str]]:
    """Find what puts the KV cache below FP8: the place, and the option with its value."""
    for option, value in profile.options.items():
        if option.replace("_", "-") in _KV_OPTIONS and _LOW_PRECISION.search(str(value)):
            yield ("options", option), f"{option} = {value}"
    for index, (word, following) in enumerate(pairwise((*profile.arguments, ""))):
        option, _, joined = word.lstrip("-").partition("=")
        value = joined or following
        if option.replace("_", "-") in _KV_OPTIONS and _LOW_PRECISION.search(value):
            yield ("arguments", index), f"{option} = {value}"


def kv_below_fp8(profile: Profile) -> str | None:
    """Return the option and value that puts the KV cache below FP8, as `kv-cache-dtype = nvfp4`."""
    return next((said for _, said in _stored_below_fp8(profile)), None)


def _check_kv_precision(profile: Profile) -> _Findings:
    if profile.kv_precision_accepted is None:
        for path, _ in _stored_below_fp8(profile):
            yield Finding(
                path,
                "stores the KV cache below FP8, which can make answers wrong; if you have measured "
                'and accept that, set kv_precision_accepted = "why"',
            )


# Checks over a whole profile, each with the keys it reads: where one of those is wrong already,
# nothing can be said, and the other checks still run.
CHECKS: Final[tuple[tuple[frozenset[str], Callable[[Profile], _Findings]], ...]] = (
    (frozenset({"engine", "executable"}), _check_executable),
    (frozenset({"engine", "model", "drafter"}), _check_models),
    (frozenset({"engine", "options"}), _check_options),
    (frozenset({"engine", "arguments"}), _check_arguments),
    (frozenset({"environment"}), _check_environment),
    (frozenset({"environment", "secrets", "api_key"}), _check_secrets),
    (frozenset({"environment", "options", "tunables"}), _check_tunables),
    (frozenset({"engine", "options", "context"}), _check_context),
    (frozenset({"probe", "start", "watch", "restart"}), _check_times),
    (frozenset({"probe"}), _check_expect),
    (frozenset({"watch", "service"}), _check_heartbeat),
    (frozenset({"gpus"}), _check_gpus),
    (frozenset({"options", "arguments", "kv_precision_accepted"}), _check_kv_precision),
)
