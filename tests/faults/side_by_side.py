"""Plays many rows at a time under one manager: they mostly wait."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

import pytest
from faults.bare import Bare
from faults.inside import Inside, prepare
from faults.play import play
from faults.rows import BARE, SUPERVISORD, SYSTEMD, Row
from faults.supervised import Supervised
from machines.supervisor import Supervisor
from machines.systemd import Machine

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from faults.rows import Outcome
    from faults.stage import Stage

AT_ONCE: Final = {BARE: 6, SUPERVISORD: 6, SYSTEMD: 6}
"""Rows at a time on two cores: more would be late for their own short times."""


@contextmanager
def played(rows: Sequence[Row], manager: str) -> Iterator[Mapping[str, Future[Outcome]]]:
    """Give the outcomes to come of `rows` under `manager`, by name."""
    with (
        ExitStack() as machines,
        # What concerns the whole host, or takes all of it, comes last, by itself.
        ThreadPoolExecutor(1) as by_itself,
        ThreadPoolExecutor(AT_ONCE[manager]) as pool,
    ):
        stages = _stages(rows, manager, machines)
        crowd = [row for row in rows if not _is_hermit(row, manager)]
        coming = {row.name: pool.submit(play, row, stages[row.name]) for row in crowd}
        by_itself.submit(wait, [*coming.values()])
        hermits = [row for row in rows if row.name not in coming]
        yield coming | {row.name: by_itself.submit(play, row, stages[row.name]) for row in hermits}


def _is_hermit(row: Row, manager: str) -> bool:
    # A real engine needs all of a small machine to answer in time.
    return row.real or (bool(row.alone) and manager == BARE)


def chosen(request: pytest.FixtureRequest) -> list[Row]:
    """Give the rows of the tests that are run in the module of `request`."""
    tests = [item for item in request.session.items if item.path == request.path]
    rows = (test.callspec.params["row"] for test in tests if isinstance(test, pytest.Function))
    return [row for row in rows if isinstance(row, Row)]


def report(outcome: Outcome) -> str:
    """Say all that is not as expected; "" when nothing is."""
    left = [] if outcome.left == "nothing" else [f"left behind: {outcome.left}"]
    return "\n".join([*outcome.wrong, *left])


def judge(outcome: Outcome) -> None:
    """Fail where anything is not as expected, with all that is known of it."""
    if said := report(outcome):
        pytest.fail(said, pytrace=False)


def _stages(rows: Sequence[Row], manager: str, machines: ExitStack) -> dict[str, Stage]:
    if manager == BARE:
        return {row.name: Bare(row) for row in rows}
    if manager == SUPERVISORD:
        shared = _supervisord(machines)
        return {
            row.name: Supervised(row, _supervisord(machines) if row.alone else shared)
            for row in rows
        }
    crowd = [row for row in rows if not row.alone]
    machine = _machine(crowd, "", machines) if crowd else None
    return {
        row.name: Inside(row, machine if machine and not row.alone else _own(row, machines), number)
        for number, row in enumerate(rows)
    }


def _supervisord(machines: ExitStack) -> Supervisor:
    supervisord = Supervisor()
    machines.callback(supervisord.remove)
    supervisord.start()
    return supervisord


def _own(row: Row, machines: ExitStack) -> Machine:
    return _machine([row], row.alone, machines)


def _machine(rows: Sequence[Row], container: str, machines: ExitStack) -> Machine:
    machine = Machine()
    machines.callback(machine.remove)
    machine.boot(container=container or "test-machine")
    prepare(machine, rows)
    return machine
