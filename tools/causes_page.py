"""Write `docs/causes.md` from the causes and signatures: `python tools/causes_page.py`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from servicekit.diagnosis.causes import Cause, Group, Retry
from servicekit.diagnosis.signatures import Role, knowledge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servicekit.diagnosis.signatures import Remedy, Signature

PAGE: Final = Path(__file__).parents[1] / "docs/causes.md"
_RETRY: Final = {
    Retry.ALWAYS: "yes",
    Retry.ONCE: "once; the same cause again means stop (exit 69)",
    Retry.NEVER_CONFIG: "no (exit 78): the configuration must change first",
    Retry.NEVER_HOST: "no (exit 69): the host or an operator must act first",
}
_ROLE: Final = {
    Role.CAUSE: "",
    Role.SYMPTOM: ", only if the log shows no cause",
    Role.NOTICE: ", does not end the run",
    Role.ECHO: "",
}
_ORIGIN: Final = {
    "sglang": "SGLang",
    "vllm": "vLLM",
    "llamacpp": "llama.cpp",
    "any": "any engine",
    "kinds": "any engine",
    "host": "kernel or systemd",
}


def page() -> str:
    """Return the page's text: every cause with its sentence, remedies and log lines."""
    return "\n".join([*_introduction(), *_echoes(), *_causes()]).rstrip() + "\n"


def _introduction() -> Iterator[str]:
    yield "<!-- Written by `python tools/causes_page.py`; change the signatures instead. -->"
    yield ""
    yield "# Causes"
    yield ""
    yield (
        "Why a run ended, or why a running service is degraded. `servicekit diagnose` and the "
        "watchdog choose from this list. The remedies that they print belong to the line that "
        "matched, contain the log's numbers and fit the profile's options."
    )
    yield ""


def _echoes() -> Iterator[str]:
    yield "These lines only report another failure and are never a cause:"
    yield ""
    for signature in knowledge("any").signatures:
        if signature.role is Role.ECHO:
            yield f"- {_ORIGIN[signature.file]}: {_texts(signature)}"
    yield ""


def _causes() -> Iterator[str]:
    for group in Group:
        yield f"## {group}"
        yield ""
        for cause in Cause:
            if cause.group is group:
                yield from _cause(cause)


def _cause(cause: Cause) -> Iterator[str]:
    yield f"### `{cause}`"
    yield ""
    yield f"{cause.title[0].upper()}{cause.title[1:]}."
    yield ""
    for text in cause.remedies:
        yield f"1. {text.replace('{profile}', 'PROFILE')}"
    yield ""
    yield f"{_restart(cause)} Journal: `MESSAGE_ID={cause.message_id}`."
    yield ""
    shown = [one for one in knowledge("any").signatures if one.cause is cause]
    if shown:
        yield "Shown by:"
        yield ""
        for signature in shown:
            yield from _shown(signature)
        yield ""


def _restart(cause: Cause) -> str:
    """Return one sentence: whether the watchdog restarts after it."""
    if cause in {Cause.STOP_REQUESTED, Cause.HOST_SHUTDOWN}:
        return "Not a fault: no restart."
    if cause.group is Group.DEGRADED:
        return "The service stays `degraded`, unless the profile's `restart.on` names the cause."
    return f"Restart: {_RETRY[cause.retry]}."


def _shown(signature: Signature) -> Iterator[str]:
    when = f", while {' or '.join(sorted(signature.phases))}" if signature.phases else ""
    origin = f"{_ORIGIN[signature.file]}{when}{_ROLE[signature.role]}"
    yield f"- {_texts(signature)} ({origin}). Source: {signature.source}."
    for remedy in signature.remedies:
        yield f"    1. {_unfilled(remedy)}"


def _texts(signature: Signature) -> str:
    return ", ".join(f"`{literal.strip()}`" for literal in signature.literals)


def _unfilled(remedy: Remedy) -> str:
    """Return a remedy with names in place of numbers, and its conditions."""
    text = remedy.text.replace("{profile}", "PROFILE")
    text = re.sub(r"\{opt\[([^]]*)\]\}|\{(\w+)\}", lambda name: f"*{name[1] or name[2]}*", text)
    conditions = [
        *([_ORIGIN[remedy.engine]] if remedy.engine else []),
        *(_condition(name, wanted, "where") for name, wanted in remedy.when.items()),
        *(_condition(name, wanted, "unless") for name, wanted in remedy.unless.items()),
    ]
    return f"{text} [{'; '.join(conditions)}]" if conditions else text


def _condition(name: str, wanted: object, word: str) -> str:
    match wanted:
        case True:
            return f"{word} `--{name}` is set"
        case False:
            return f"{word} `--{name}` is not set"
        case list():
            return f"{word} `--{name}` is {' or '.join(map(str, wanted))}"
        case _:
            return f"{word} `--{name}` is {wanted}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
