"""Write `docs/doctor.md` from the doctor's checks: `python tools/doctor_page.py`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from servicekit.doctor import graphics, machine, recipe, services, windows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servicekit.doctor.answer import Checks

PAGE: Final = Path(__file__).parents[1] / "docs/doctor.md"
INTRODUCTION: Final = """\
<!-- Written by `python tools/doctor_page.py`; change the checks instead. -->

# What `servicekit doctor` checks

Each check prints one line: what was found and, if needed, a remedy. Its result is

- **ok**,
- **warn**: services run, but something will probably cost time or a request,
- **fail**: a service cannot start, or will not survive what is normal on this host, or
- **skip**: the check does not apply or cannot be made; the line says why.

Nothing is changed, no engine is started, and no check needs root. The command takes ten seconds at
most; what does not reply by then is skipped.

`servicekit doctor` checks the host and all installed profiles, `servicekit doctor PROFILE` the host
and that profile, installed or not. The exit code is 1 if any check fails, else 0.
`--json` prints the same for programs, by the codes below."""
TABLES: Final[Mapping[str, Checks[Any]]] = {
    "The host: services": services.CHECKS,
    "The host: GPU": graphics.CHECKS,
    "The host: machine": machine.CHECKS,
    "Under WSL": windows.CHECKS,
    "Each profile": recipe.CHECKS,
}


def page() -> str:
    """Give the page's text; a check is described by the docstring of its function."""
    lines = [INTRODUCTION]
    for title, checks in TABLES.items():
        lines += ["", f"## {title}", "", "| code | what is checked |", "| --- | --- |"]
        for check in checks:
            about = " ".join((check.ask.__doc__ or "").split())
            lines.append(f"| `{check.code}` | {about} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
