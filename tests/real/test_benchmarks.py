"""The benchmarks' own machinery: that it sees what it measures, however long that takes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from machines.waiting import wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `benchmarks` be imported, which is part of no package."""
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.mark.supervisord
def test_a_crash_and_what_it_leaves_are_seen() -> None:
    """A killed engine, the one after it, the child left behind and the manager's cost are found."""
    from benchmarks import seen
    from benchmarks.beside import CRASH, LEFT, Trials
    from benchmarks.keepers import LISTENED, Httpok
    from benchmarks.machinery import Machinery

    with Machinery() as machinery:
        keeper = machinery.keep(Httpok(machinery.processes, LISTENED, {"orphan": True}))
        keeper.start()
        keeper.wait_listening()
        wait_until(lambda: keeper.orphans(seen.boot_time()), 20, "the engine has its child")
        first = keeper.engine
        crash, left = Trials().crash(keeper)
        assert (crash.what, left.what) == (CRASH, LEFT)
        assert crash.value is not None
        assert left.value == 1
        assert keeper.engine.started > first.started
        assert seen.memory(keeper.residents())[0] > 0
        orphans = keeper.orphans(seen.boot_time())
        keeper.close()
        assert orphans
        assert not keeper.engines


def test_what_a_benchmark_measures_is_set_beside_what_was_sent() -> None:
    """First token, decode and end of the answer each have a ratio to the server's own times."""
    from benchmarks import measuring

    known = asyncio.run(measuring._measured(1000, 1))
    assert [each.figure.name for each in known] == ["ttft", "decode", "done"]
    rows = [measuring._row(each, "here") for each in known]
    assert all(row.value is not None and row.aim == measuring.WITHIN for row in rows)
    assert all(" times, medians of 12" in row.how for row in rows)


def test_a_row_says_whether_its_aim_is_met() -> None:
    """A figure is set beside its aim, whichever way is better, or beside ours."""
    from benchmarks.table import Row, as_json, render

    rows = [
        Row("delay", "ours", 0.2, "s", aim=0.4),
        Row("delay", "theirs", 0.6, "s", times=3.0),
        Row("speed", "ours", 90.0, "MB/s", aim=100.0, more_is_better=True),
        Row("hang", "theirs", None, "s", said="never (within 230 s)"),
    ]
    assert [row.met for row in rows] == [True, None, False, None]
    table = render(rows).splitlines()
    assert "0.2 s" in table[2]
    assert "0.5 of aim" in table[2]
    assert "3 x ours" in table[3]
    assert "NO" in table[4]
    assert "never (within 230 s)" in table[5]
    assert len({len(line) for line in table}) == 1
    assert '"met": false' in as_json(rows)


def test_only_what_there_is_can_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that is none is refused with those that are."""
    from benchmarks.__main__ import main

    with pytest.raises(SystemExit):
        main(["--only", "nonsense"])
    assert "beside" in capsys.readouterr().err
