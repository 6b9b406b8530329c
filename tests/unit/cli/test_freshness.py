"""What the verbs say of a profile or settings that changed since the install."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from unit.cli.cli_runs import Ran, invoke
from unit.managers.fake_supervisord import FakeSupervisord

from servicekit import __version__
from servicekit.host import procfs
from servicekit.watchdog.publish import State, write_state

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHANGED = "profile changed since it was installed"
RUNS = "the service runs as installed"


class Host:
    """Settings below one directory, with a site's profile `here` that is installed."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.supervisord = FakeSupervisord(home / "s.sock")
        self.supervisord.added = ["servicekit-here"]
        self.config = home / "servicekit.toml"
        self.file = home / "profiles.d/here.toml"
        self.file.parent.mkdir()
        self.settings()
        self.profile()
        self.supervisord.program("servicekit-here", "STOPPED")
        assert self.run("install", "here").code == 0

    def settings(self, more: str = "") -> None:
        """Write the settings."""
        self.config.write_text(
            f'root = "{self.home}"\nmanager = "supervisor"\nallow = ["here", "other"]\n'
            f'supervisor_socket = "{self.home}/s.sock"\n{more}\n'
        )
        self.config.chmod(0o644)

    def profile(self, more: str = "") -> None:
        """Write the profile."""
        self.file.write_text(f'extends = "demo"\n{more}\n')
        self.file.chmod(0o644)

    def run(self, *words: str) -> Ran:
        """Run a command line."""
        return invoke("--user", "--config", self.config, *words)

    @property
    def outdated(self) -> str:
        """What `status --json` says of it."""
        words: str = json.loads(self.run("status", "here", "--json").out)["outdated"]
        return words


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """Give a host with one installed profile."""
    host = Host(tmp_path)
    try:
        yield host
    finally:
        host.supervisord.close()


def test_an_installed_profile_is_current(host: Host) -> None:
    """Nothing is said of what has not changed, or only in a comment."""
    assert host.outdated == ""
    host.profile("# a remark")
    host.settings("# another")
    assert host.outdated == ""
    assert "changed" not in host.run("list").err


@pytest.mark.parametrize("more", ["port = 18077", 'served_name = "x"', "options.threads = 3"])
def test_a_changed_profile_is_reported_by_the_verbs(host: Host, more: str) -> None:
    """Each verb names the two commands that show and take the change."""
    host.profile(more)
    commands = "`servicekit diff here`, `servicekit install here`"
    assert host.outdated == f"{CHANGED}: {commands}"
    shown = commands.replace("servicekit ", "servicekit --user ")
    assert f"outdated:   {CHANGED}: {shown}" in host.run("status", "here").out
    assert f"({CHANGED})" in host.run("status").out
    for words in (("list",), ("start", "here", "--no-wait"), ("restart", "here", "--no-wait")):
        assert f'"here": {CHANGED}: {shown}' in host.run(*words).err, words
    assert host.run("install", "here").code == 0
    assert host.outdated == ""


@pytest.mark.parametrize(
    "spoil",
    [
        lambda host: host.profile("port = oops"),
        lambda host: host.profile("potr = 1"),
        lambda host: host.file.unlink(),
        lambda host: host.settings("alow = []"),
    ],
    ids=["not-toml", "typo", "deleted", "settings"],
)
def test_a_refused_profile_leaves_its_service_alone(host: Host, spoil: object) -> None:
    """The verbs say what is wrong, and start, stop and restart go on."""
    assert callable(spoil)
    spoil(host)
    assert RUNS in host.outdated
    for words in (("start", "here", "--no-wait"), ("restart", "here", "--no-wait")):
        done = host.run(*words)
        assert done.code == 0, done.err
        assert RUNS in done.err
        assert host.supervisord.calls[-1] == "startProcess servicekit-here False"
    assert host.run("stop", "here").code == 0


def test_a_denied_profile_is_not_called_running(host: Host) -> None:
    """The deny list is the one setting that a start obeys at once."""
    host.settings('deny = ["here"]')
    assert host.outdated == f"a start is refused: {host.config} names it in deny"


def test_another_profile_that_is_broken_is_no_matter(host: Host) -> None:
    """A typo in one file is about that file only."""
    other = host.file.with_name("other.toml")
    other.write_text("oops")
    assert host.outdated == ""
    assert host.run("start", "here", "--no-wait").err == ""


def test_changed_settings_are_reported(host: Host) -> None:
    """What an install takes from the settings counts, and nothing else."""
    host.settings('alert_webhook = "http://127.0.0.1:1/"')
    assert host.outdated == ""
    host.settings('log_format = "json"')
    assert host.outdated.startswith("settings changed since it was installed: ")
    host.settings('alert_command = ["/bin/true"]')
    assert host.outdated.startswith("settings changed since it was installed: ")


def test_a_restart_can_install_first(host: Host) -> None:
    """With --install the profile as it is now is installed, then started."""
    host.profile("port = 18077")
    done = host.run("restart", "here", "--install", "--no-wait")
    assert done.code == 0, done.err
    assert host.outdated == ""
    plan = json.loads((host.home / "wrappers/here.plan.json").read_text())
    assert plan["profile"]["port"] == 18077
    assert host.supervisord.calls[-1] == "startProcess servicekit-here False"
    assert "applies the new ones" not in done.err


def test_a_restart_that_cannot_install_stops_nothing(host: Host) -> None:
    """A profile that is refused is refused before its service is touched."""
    host.profile("potr = 1")
    before = list(host.supervisord.calls)
    assert host.run("restart", "here", "--install").code == 78
    assert host.supervisord.calls == before


def test_an_install_of_the_first_version_is_reported(host: Host) -> None:
    """Without a plan the profile decides as before, and an install writes one."""
    (host.home / "wrappers/here.plan.json").unlink()
    assert host.outdated.startswith("installed by servicekit 0.1.0")
    assert host.outdated.endswith("`servicekit install here`")
    assert host.run("start", "here", "--no-wait").code == 0


def test_a_watchdog_of_another_version_is_reported(host: Host) -> None:
    """What runs is shown beside what is installed, with the command that ends the difference."""
    stat = procfs.stat(os.getpid())
    assert stat is not None
    host.supervisord.program("servicekit-here", "RUNNING", pid=os.getpid())
    at = "2026-01-31T12:00:00+00:00"
    fields = {"profile": "here", "state": "ready", "phase": "serving", "since": at, "updated": at}
    fields |= {"run": "r1", "pid": os.getpid(), "pid_started": stat.started}  # type: ignore[dict-item]
    for version, shown in (("0.1.0", True), (__version__, False)):
        state = State.parse(json.dumps(fields | {"servicekit": version}))
        assert state is not None
        write_state(host.home / "run/here/state.json", state)
        line = f"runs {version}, installed is {__version__}: `servicekit --user restart here`"
        assert (line in host.run("status", "here").out) is shown
