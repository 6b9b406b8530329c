"""Checks of single values of profiles and settings. Pure.

A check returns the value to keep, or raises `ValueError` with the text of a finding, which follows
the value's place: `port: must be …`.
"""

from __future__ import annotations

import ipaddress
import math
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from servicekit.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable

# Names of profiles: what a unit name, a Supervisor section and a path component can all hold.
SHARED_ACCOUNT: Final = "servicekit"
"""Account of system services where neither profile nor settings name one."""
NAME: Final = r"[a-z0-9][a-z0-9-]{0,47}"

VARIABLE: Final = r"[A-Z_][A-Z0-9_]*"  # names of variables that mean something to servicekit

# Names of variables that an engine may want, such as `no_proxy`.
ANY_VARIABLE: Final = r"[A-Za-z_][A-Za-z0-9_]*"

SERVED_NAME: Final = r"[^\s,-][^\s,]*"
REVISION: Final = r"[A-Za-z0-9][A-Za-z0-9._/-]*"
ACCOUNT: Final = r"[a-z_][a-z0-9_-]{0,30}\$?"
DIRECTIVE: Final = r"[A-Z][A-Za-z]+"
EXECUTABLE: Final = r"/.+|[^/-][^/]*"
GPU: Final = r"[0-9]{1,2}|(?:GPU|MIG)-[0-9a-fA-F-]{6,}"

_VERSION: Final = r"(?:==|!=|<=|>=|~=|<|>)\s*b?[0-9][0-9A-Za-z.*+!-]*"
# As Python's packages have them; llama.cpp's builds are `b11434`.
VERSIONS: Final = rf"{_VERSION}(?:\s*,\s*{_VERSION})*"

OPTION: Final = re.compile(r"[a-z0-9][a-z0-9_.-]*\Z")
# Longest hold-off in seconds.
LONGEST_HOLD_OFF: Final = 300.0
PLACEHOLDERS: Final = ("port", "host", "model", "served_name", "cache", "state")
# What `arguments` and values of `environment` may refer to, as `{port}`.
PLACEHOLDER: Final = re.compile(r"\{(" + "|".join(PLACEHOLDERS) + r")\}")

# A model on the hub as `owner/name`, behind which llama.cpp takes a `:quantization`.
HUB_ID: Final = re.compile(
    r"(?!.*\.(?:gguf|safetensors)\Z)"  # a relative path, which means something else everywhere
    r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*(?::[A-Za-z0-9_.-]+)?\Z"
)

# One GGUF file of a model on the hub, as `owner/name:file.gguf`.
HUB_FILE: Final = re.compile(
    r"(?P<repo>[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*)"
    r":(?P<file>(?:[A-Za-z0-9_][A-Za-z0-9_.+-]*/)*[A-Za-z0-9_][A-Za-z0-9_.+-]*\.gguf)\Z"
)

# A model file that is part of an installed Python package.
PACKAGED: Final = re.compile(r"(?P<package>[A-Za-z_][A-Za-z0-9_.]*):(?P<file>[^/\\:]+)\Z")

# Seconds that any bound of a profile may last: every service manager can still express it.
LONGEST: Final = 30 * 86400.0

# Levels of a table that is passed as JSON; parsers of it have bounds of their own.
DEEPEST: Final = 32

# How Python holds bytes of the environment that are no UTF-8.
_NOT_UTF8: Final = re.compile("[\ud800-\udfff]")
_BREAKS_A_LINE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufdd0-\ufdef\ufffe\uffff]")


class EngineName(StrEnum):
    """Supported engines; `openai` is any OpenAI-compatible server."""

    SGLANG = "sglang"
    VLLM = "vllm"
    LLAMACPP = "llamacpp"
    OPENAI = "openai"


class ManagerName(StrEnum):
    """Supported service managers."""

    SYSTEMD = "systemd"
    SUPERVISOR = "supervisor"


class Reason(StrEnum):
    """Conditions that make a service `degraded`; `restart.on` names those that restart it."""

    UNANSWERED = "unanswered"
    UNAUTHORIZED = "unauthorized"
    WRONG_MODEL = "wrong-model"
    NOT_OUR_SOCKET = "not-our-socket"
    PROGRESS_WITHOUT_COMPLETION = "progress-without-completion"
    WRONG_ANSWER = "wrong-answer"
    REPEATED_ANSWER = "repeated-answer"
    CPU_FALLBACK = "cpu-fallback"
    WORKER_DIED = "worker-died"
    DRAFT_GRAPH_DISABLED = "draft-graph-disabled"
    TOO_SLOW = "too-slow"
    ACCEPTANCE_ZERO = "acceptance-zero"
    CONTEXT_BELOW_REQUESTED = "context-below-requested"
    STRANGER_ON_GPU = "stranger-on-gpu"
    VRAM_ORPHAN = "vram-orphan"
    GPU_SLOWED_DOWN = "gpu-slowed-down"


def variable_of(tunable: str) -> str:
    """Name the environment variable that overrides `tunable`: its own, else SERVICEKIT_…."""
    if re.fullmatch(VARIABLE, tunable):
        return tunable
    return "SERVICEKIT_" + re.sub(r"[.-]", "_", tunable).upper()


def matching(pattern: str, wanted: str, *, secret: bool = False) -> Callable[[str], str]:
    """Return a check that a whole text matches `pattern`; `wanted` describes it in the message.

    The message shows the text, unless it may be a `secret` in the wrong place.
    """
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if compiled.fullmatch(text):
            return text
        raise ValueError(f"must be {wanted}" + ("" if secret else f', not "{shown(text)}"'))

    return check


def text(value: str) -> str:
    if "\0" in value:
        raise ValueError("must not contain a NUL character")
    if _NOT_UTF8.search(value):
        raise ValueError("must be valid UTF-8")
    return value


def line(value: str) -> str:
    """Check a text for one line of any file that we write."""
    text(value)
    if not value:
        raise ValueError("must not be empty")
    if _BREAKS_A_LINE.search(value):
        raise ValueError("must be one line without control characters")
    if value != value.strip():
        raise ValueError("must not begin or end with white space")
    return value


def loopback(host: str) -> str:
    """Check an address that only this machine can reach. A name might resolve to anything."""
    try:
        reachable = not ipaddress.ip_address(host).is_loopback
    except ValueError:
        reachable = True
    if reachable:
        raise ValueError(
            f'must be a loopback address such as "127.0.0.1", not "{shown(host)}": '
            "reach it from elsewhere through a tunnel"
        )
    return host


def gpu(value: object) -> object:
    """Accept the index of a GPU as a number."""
    return str(value) if type(value) is int else value


def option_value(value: object) -> object:
    """Check the value of an option: a scalar, an array of scalars, or a table for JSON."""
    if isinstance(value, list | tuple):
        if not value:
            raise ValueError("must not be an empty array; write true for an option without a value")
        return tuple(_option_item(item) for item in value)
    if isinstance(value, dict):
        _check_json(value, DEEPEST)
        return value
    return value if isinstance(value, bool) else _option_item(value)


def _option_item(value: object) -> object:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be a finite number")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise ValueError("must be text, a number, true, false, an array of texts or numbers or a table")


def _check_json(value: object, levels: int) -> None:
    """Refuse what JSON cannot express, and what is nested deeper than `levels`."""
    if isinstance(value, dict | list):
        if not levels:
            raise ValueError(f"must not be nested deeper than {DEEPEST} levels")
        for item in value.values() if isinstance(value, dict) else value:
            _check_json(item, levels - 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must contain only finite numbers: the table is passed as JSON")
    elif not isinstance(value, str | int | float):
        raise ValueError("must not contain a date or time: the table is passed as JSON")
