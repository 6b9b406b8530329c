"""Plays a row under a manager, and compares what becomes of it with what was expected."""

from __future__ import annotations

import re
import traceback
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import pytest
from faults.rows import Degraded, Failed, Outcome, Ready, Stopped
from faults.stage import OWN_LIMIT, READY_LIMIT

from servicekit.errors import ExitCode
from servicekit.watchdog.ledger import Kind
from servicekit.watchdog.publish import ascii_line

if TYPE_CHECKING:
    from datetime import datetime

    from faults.rows import Row
    from faults.stage import Stage

    from servicekit.watchdog.ledger import Record

SLACK: Final = 5.0
"""Seconds that a busy machine may add to any bound."""
BROKEN: Final = (Exception, pytest.fail.Exception)
"""A row that breaks has failed, and must still be ended."""
CLOCK: Final = timedelta(milliseconds=20)
"""By how much a record may seem older than what it follows: it is cut to milliseconds."""


def play(row: Row, stage: Stage) -> Outcome:
    """Play `row` on `stage`, from its installation to the last process of it."""
    outcome = Outcome(row, stage.manager)
    with stage.after:
        try:
            stage.play(**row.script)
            stage.drive()
            stage.install()
            if row.before is not None:
                row.before(stage)
            stage.start()
            _inject(row, stage)
            match row.expect:
                case Ready():
                    _is_ready(row.expect, stage, outcome)
                case Degraded():
                    _is_degraded(row.expect, stage, outcome)
                case Failed():
                    _fails(row.expect, stage, outcome)
                case Stopped():
                    _stops(row.expect, stage, outcome)
            if row.check is not None and (complaint := row.check(stage)):
                outcome.wrong.append(complaint)
        except BROKEN:
            outcome.wrong.append(traceback.format_exc())
        finally:
            _end(stage, outcome)
        if outcome.wrong:
            outcome.wrong.append(stage.story())
    return outcome


def _inject(row: Row, stage: Stage) -> None:
    if row.act is None:
        stage.wait(
            lambda: (
                stage.records(Kind.LAUNCHED, Kind.FAULT)
                or (stage.records(Kind.STARTED) and stage.is_over())
            ),
            READY_LIMIT,
            "an engine was launched",
        )
        # On a busy machine the next run may have begun before this is read.
        begun = stage.records(Kind.LAUNCHED) or stage.records(Kind.STARTED)
        stage.injected_at = begun[0].at if begun else None
        if row.loading is not None:
            stage.now()
            row.loading(stage)
        return
    stage.wait_ready()
    stage.now()
    row.act(stage)


def _since(stage: Stage) -> datetime:
    assert stage.injected_at is not None, f"nothing was ever launched\n{stage.story()}"
    return stage.injected_at


def _passed(stage: Stage, record: Record) -> float:
    return max(0.0, (record.at - _since(stage)).total_seconds())


def _new(stage: Stage, *kinds: Kind) -> list[Record]:
    return stage.records(*kinds, since=_since(stage) - CLOCK)


def _is_ready(expect: Ready, stage: Stage, outcome: Outcome) -> None:
    if stage.row.act is None:
        stage.wait_ready()
        outcome.detected = _passed(stage, stage.last(Kind.READY))
    if stage.happens(lambda: _new(stage, Kind.FAULT, Kind.DEGRADED), expect.hold):
        outcome.wrong.append("it was expected to be ready, and to stay so")
    _look(stage, outcome, "^ready")
    outcome.restarted = "no"


def _is_degraded(expect: Degraded, stage: Stage, outcome: Outcome) -> None:
    def seen() -> Record | None:
        found = _new(stage, Kind.DEGRADED)
        return next((one for one in found if expect.reason in one.fields["reasons"]), None)

    stage.wait(
        lambda: seen() or _new(stage, Kind.FAULT),
        expect.within + OWN_LIMIT,
        f"it is degraded: {expect.reason}",
    )
    record = seen()
    if record is None:
        outcome.wrong.append(f"it ended instead of being degraded: {expect.reason}")
        return
    outcome.detected = _passed(stage, record)
    _compare(outcome, expect.within, expect.says, record.sentence)
    _look(stage, outcome, "" if expect.recovers else rf"^degraded: .*{expect.reason}")
    if expect.recovers:
        stage.wait(lambda: _new(stage, Kind.RECOVERED), READY_LIMIT, "it is ready again")
        outcome.shown = f"degraded: {expect.reason}, then ready"
    if stage.happens(lambda: _new(stage, Kind.FAULT), expect.hold):
        outcome.wrong.append("it was killed")
    outcome.restarted = "no"


def _fails(expect: Failed, stage: Stage, outcome: Outcome) -> None:
    stage.wait(
        lambda: _new(stage, Kind.FAULT),
        expect.within + OWN_LIMIT,
        f"it fails: {expect.cause}",
    )
    fault = _new(stage, Kind.FAULT)[0]
    outcome.detected = _passed(stage, fault)
    outcome.shown = f"failed: {fault.cause}"
    if fault.cause != expect.cause:
        outcome.wrong.append(f"the cause is {fault.cause}, not {expect.cause}")
    _compare(outcome, expect.within, expect.says, fault.sentence)
    if not expect.again:
        stage.play()  # what was wrong is mended for the next run
        stage.drive()
    stage.wait(
        lambda: _ending(stage, fault.run) or stage.records(Kind.STARTED, since=fault.at),
        OWN_LIMIT,
        "the run is over",
    )
    gone = _ending(stage, fault.run)
    code = gone.fields["code"] if gone else None
    if gone and gone.fields.get("cause") != expect.cause:
        outcome.shown += f", then {gone.fields.get('cause')}"
    if code != expect.code:
        outcome.wrong.append(f"it exits {code}, not {expect.code}")
    said = f"failed: .*{re.escape(ascii_line(fault.sentence)[:40])}"
    if gone is not None and not stage.happens(lambda: re.search(said, stage.told()), SLACK):
        outcome.wrong.append("the manager was not told that it failed")
    if code == ExitCode.TEMPFAIL or gone is None:
        _starts_again(expect, stage, fault, outcome)
    else:
        _stays_down(stage, outcome)


def _ending(stage: Stage, run: str) -> Record | None:
    return next((one for one in stage.records(Kind.GONE) if one.run == run), None)


def _starts_again(expect: Failed, stage: Stage, fault: Record, outcome: Outcome) -> None:
    def launched() -> list[Record]:
        return [one for one in stage.records(Kind.LAUNCHED, since=fault.at) if one.run != fault.run]

    def gone() -> list[Record]:
        return [one for one in stage.records(Kind.GONE, since=fault.at) if one.run != fault.run]

    stage.wait(lambda: launched() or gone(), READY_LIMIT, "a new engine was launched")
    if not launched():
        _is_not_launched(expect, stage, gone()[0], outcome)
        return
    again = launched()[0]
    outcome.restarted = "yes"
    # Of a run that could not end itself the fault is noted only by the next one.
    since = fault.at if _ending(stage, fault.run) else _since(stage)
    outcome.renewed = (again.at - since).total_seconds()
    if not expect.again:
        stage.wait(
            lambda: [one for one in stage.records(Kind.READY) if one.run == again.run],
            READY_LIMIT,
            "the new engine is ready",
        )
        outcome.view = stage.view()
        return
    stage.wait(lambda: _ending(stage, again.run), READY_LIMIT, "the next run is over, too")
    second = _ending(stage, again.run)
    assert second is not None
    outcome.shown += f"; then {second.fields.get('cause')}"
    if second.fields.get("cause") != expect.again:
        outcome.wrong.append(f"the next run ends by {second.fields.get('cause')}")
    if second.fields["code"] == ExitCode.TEMPFAIL:
        outcome.wrong.append("the next run asks for a third one")
    _stays_down(stage, outcome)
    outcome.restarted = "once"


def _is_not_launched(expect: Failed, stage: Stage, gone: Record, outcome: Outcome) -> None:
    """See that the run after a fault ends at once, as it must where that was the last straw."""
    outcome.shown += f"; then {gone.fields.get('cause')}"
    if gone.fields.get("cause") != expect.again:
        outcome.wrong.append(f"nothing is launched, by {gone.fields.get('cause')}")
    if gone.fields["code"] == ExitCode.TEMPFAIL:
        outcome.wrong.append("it asks for one more run")
    _stays_down(stage, outcome)


def _stays_down(stage: Stage, outcome: Outcome) -> None:
    stage.wait(stage.is_over, OWN_LIMIT, "the manager leaves it alone")
    outcome.restarted = "no"
    outcome.view = stage.view()
    state = stage.state()
    if state is None or state.state != "failed" or not state.remedy:
        outcome.wrong.append(f"state.json says {state}")


def _stops(expect: Stopped, stage: Stage, outcome: Outcome) -> None:
    stage.wait(lambda: _new(stage, Kind.GONE), expect.within + OWN_LIMIT, "it is gone")
    gone = _new(stage, Kind.GONE)[0]
    outcome.detected = _passed(stage, gone)
    stopping = _new(stage, Kind.STOPPING)[0]
    _compare(outcome, expect.within, expect.says, stopping.sentence)
    if stopping.cause != expect.cause:
        outcome.wrong.append(f"the cause is {stopping.cause}, not {expect.cause}")
    if gone.fields["code"] != ExitCode.OK:
        outcome.wrong.append(f"it exits {gone.fields['code']}")
    stage.wait(stage.is_over, OWN_LIMIT, "the manager leaves it alone")
    outcome.shown, outcome.view = f"stopped: {stopping.cause}", stage.view()
    outcome.restarted = "no"
    state = stage.state()
    if state is not None and state.state != "stopped":
        outcome.wrong.append(f"state.json says {state.state}")


def _shown(stage: Stage) -> str:
    state = stage.state()
    if state is None:
        return ""
    why = ", ".join(state.reasons) or state.cause or ""
    return f"{state.state}: {why}" if why else state.state


def _look(stage: Stage, outcome: Outcome, wanted: str) -> None:
    """See what is published; the ledger, which is waited for, is written just before."""
    stage.happens(lambda: re.search(wanted, _shown(stage)), SLACK)
    outcome.shown, outcome.view = _shown(stage), stage.view()
    if not re.search(wanted, outcome.shown):
        outcome.wrong.append(f"it shows {outcome.shown}")


def _compare(outcome: Outcome, within: float, says: str, said: str) -> None:
    if outcome.detected is not None and outcome.detected > within + SLACK:
        outcome.wrong.append(f"it took {outcome.detected:.1f} s, not {within:g} s")
    if says and not re.search(says, said):
        outcome.wrong.append(f'it says "{said}"')


def _end(stage: Stage, outcome: Outcome) -> None:
    """Have the service stopped, and see that nothing of it is left."""
    try:
        stage.stop()
        stage.dismiss()
        stage.wait(lambda: not _left(stage), OWN_LIMIT, "nothing is left")
    except BROKEN:
        outcome.wrong.append(traceback.format_exc())
    outcome.left = _left(stage) or "nothing"


def _left(stage: Stage) -> str:
    left = [f"pid {pid} ({command[-60:]})" for pid, command in stage.alive().items()]
    left += ["the port"] if stage.listening() else []
    left += [f"{name} in shared memory" for name in stage.shared_memory()]
    return ", ".join(left)
