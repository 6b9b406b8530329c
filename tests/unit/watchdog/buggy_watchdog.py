"""A watchdog with a bug in one part of its reporting: `buggy_watchdog.py PLAN PART METHOD`."""

from __future__ import annotations

import asyncio
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

from typing_extensions import override

from servicekit.service.installed import read_plan
from servicekit.watchdog.daemon import Watchdog
from servicekit.watchdog.reporter import Reporter


def bug(*_: object, **__: object) -> None:
    """Fail as no caller expects."""
    raise ZeroDivisionError("division by zero")


class Buggy:
    """A part that is as it should be but for one method."""

    def __init__(self, part: Any, method: str) -> None:  # noqa: ANN401 - any part
        self._part, self._method = part, method

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as above
        return bug if name == self._method else getattr(self._part, name)


def watchdog(plan_file: Path, part: str, method: str) -> Watchdog:
    """Make the watchdog."""
    plan = read_plan(plan_file, plan_file.name.partition(".")[0])
    assert plan is not None
    if part == "monitor":

        class WithMonitor(Watchdog):
            @override
            @cached_property
            def _monitor(self) -> Any:
                return Buggy(Watchdog._monitor.func(self), method)  # type: ignore[attr-defined]

        return WithMonitor(plan, {})
    if part == "reporter":
        return Watchdog(plan, {}, reporter=type("WithBug", (Reporter,), {method: bug}))

    def reporter(*arguments: Any, **parts: Any) -> Reporter:  # noqa: ANN401 - passed on
        if part == "write":
            return Reporter(*arguments, **parts, write=bug)
        return Reporter(*arguments, **{**parts, part: Buggy(parts[part], method)})

    return Watchdog(plan, {}, reporter=reporter)


if __name__ == "__main__":
    sys.exit(asyncio.run(watchdog(Path(sys.argv[1]), *sys.argv[2:]).run()))
