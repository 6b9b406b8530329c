"""`diagnose PROFILE`: the run that failed, what followed, and how the service is now."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from unit.cli.cli_runs import invoke, refused, said
from unit.managers.fake_supervisord import FakeSupervisord

from servicekit.watchdog.ledger import Kind, Ledger

if TYPE_CHECKING:
    from pathlib import Path

SITE = 'extends = "demo"\nexecutable = "/bin/true"\n'
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total"


def _home(folder: Path) -> Path:
    """Install a profile for a pretended supervisord, and give the settings."""
    config = folder / "servicekit.toml"
    profile = folder / "profiles.d/mine.toml"
    profile.parent.mkdir()
    profile.write_text(SITE)
    config.write_text(
        f'root = "{folder}"\nmanager = "supervisor"\nsupervisor_socket = "{folder}/s.sock"\n'
        'allow = ["mine"]\n'
    )
    for file in (config, profile):
        file.chmod(0o644)
    return config


def _runs(folder: Path) -> None:
    """Write two runs: one that hung, and one that is ready since."""
    file = folder / "state/mine/history.jsonl"
    first = Ledger(file, boot_id="b", run="aaaa1111")
    first.write(Kind.STARTED)
    first.write(Kind.LAUNCHED)
    first.write(Kind.READY)
    first.write(Kind.FAULT, cause="hung", sentence="no answer within 10 s")
    first.write(Kind.GONE, code=75, cause="hung")
    first.close()
    second = Ledger(file, boot_id="b", run="bbbb2222")
    second.write(Kind.STARTED)
    second.write(Kind.LAUNCHED)
    second.write(Kind.READY)
    second.close()


def test_the_story_of_the_last_failure_comes_first(tmp_path: Path) -> None:
    """The newest run is ready; the one before it hung, which the log alone does not show."""
    supervisord = FakeSupervisord(tmp_path / "s.sock")
    try:
        words = ("--user", "--config", _home(tmp_path))
        supervisord.added.append("servicekit-mine")
        assert invoke(*words, "install", "mine", "--anyway").code == 0
        _runs(tmp_path)
        log = tmp_path / "log/mine.log"
        log.write_text('time=2026-12-01T00:00:00Z level=info event="launched" run=aaaa1111\n')
        text = said(*words, "diagnose", "mine")
        first, then, now, _, cause, *rest = text.splitlines()
        assert first.startswith("run aaaa1111 of ")
        assert first.endswith(" by hung: no answer within 10 s")
        assert then.startswith("then: 1 further run, the one of ")
        assert now.startswith("now: ")
        assert cause == "cause: hung"
        assert "source: the service's history" in rest
        story = json.loads(said(*words, "diagnose", "mine", "--json"))["story"]
        assert (story["run"], story["later_runs"], story["cause"]) == ("aaaa1111", 1, "hung")
        log.write_text(
            f'time=2026-12-01T00:00:00Z level=info event="launched" run=bbbb2222\n{OOM}\n'
        )
        assert "out of memory" in said(*words, "diagnose", "mine", "--run", "bbbb")
        assert 'has no run "cccc"' in refused(*words, "diagnose", "mine", "--run", "cccc")
    finally:
        supervisord.close()
