"""Both managers are given the same orders and answer in the same words."""

from __future__ import annotations

import base64
import os
import pwd
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from xmlrpc.client import Fault

import pytest
from unit.managers.fake_supervisord import FakeSupervisord

from servicekit.cli.install import warn_of_logouts
from servicekit.cli.session import Session
from servicekit.errors import UserError
from servicekit.host import procfs
from servicekit.managers import LogQuery, Seen, find_manager, supervisor_url
from servicekit.managers.accounts import exists, remove_made
from servicekit.managers.containers import gpu_containers
from servicekit.managers.supervisor import Supervisor
from servicekit.managers.systemd import Systemd
from servicekit.places import below, system_places
from servicekit.profiles.vocabulary import ManagerName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# ---- systemd


class FakeSystemctl:
    """A program that records how it was called, and answers as told."""

    def __init__(self, folder: Path) -> None:
        self.log, self.answer, self.complaint = folder / "log", folder / "out", folder / "err"
        self.code = folder / "code"
        self.says()
        program = folder / "systemctl"
        program.write_text(
            f'#!/bin/sh\necho "$*" >>"{self.log}"\ncat "{self.answer}"\n'
            f'cat "{self.complaint}" >&2\nexit "$(cat "{self.code}")"\n'
        )
        program.chmod(0o755)

    def says(self, answer: str = "", complaint: str = "", code: int = 0) -> None:
        """Choose what the next calls print and how they exit."""
        self.answer.write_text(answer)
        self.complaint.write_text(complaint)
        self.code.write_text(str(code))

    def calls(self) -> list[str]:
        """Arguments of the calls, without those that every call has."""
        lines = self.log.read_text().splitlines()
        return [line.replace("--no-ask-password --no-pager ", "") for line in lines]


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSystemctl:
    """A recording `systemctl`, first on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return FakeSystemctl(tmp_path)


def test_systemd_is_given_its_orders(systemctl: FakeSystemctl) -> None:
    """A start resets earlier failures and returns at once; a stop is waited for."""
    manager = Systemd(system_places())
    manager.reload()
    manager.start("servicekit-x")
    manager.stop("servicekit-x", limit=5)
    assert systemctl.calls() == [
        "daemon-reload",
        "reset-failed servicekit-x.service",
        "start --no-block servicekit-x.service",
        "stop servicekit-x.service",
    ]


def test_a_users_own_systemd_is_asked_for(systemctl: FakeSystemctl) -> None:
    """Places of a user mean that user's manager."""
    Systemd(below("/srv/x")).reload()
    assert systemctl.calls() == ["--user daemon-reload"]


START = '"systemctl start --no-block servicekit-x.service"'
AS_ROOT = "run as root, or with --user for your own services"
LOG_IN = "log in as that user (`machinectl shell USER@`), so that its user manager runs"

SHOWN = """\
Id=servicekit-x.service
LoadState=loaded
ActiveState=activating
Job=0
MainPID=42
StatusText=loading weights=3
NRestarts=2
InvocationID=abc
UnitFileState=enabled
ExecMainStatus=75

Id=servicekit-y.service
LoadState=not-found
ActiveState=inactive
Job=
MainPID=0
StatusText=
NRestarts=0
InvocationID=
UnitFileState=
ExecMainStatus=0
"""


def test_a_reload_makes_sure_that_systemd_finds_the_unit(systemctl: FakeSystemctl) -> None:
    """A unit in a place where systemd does not look is noticed when it is installed."""
    systemctl.says(SHOWN.split("\n\n", maxsplit=1)[0])
    Systemd(system_places()).reload("servicekit-x")
    systemctl.says(SHOWN.split("\n\n")[1])
    with pytest.raises(UserError, match=r'does not find "servicekit-y.service" in "/etc/systemd'):
        Systemd(system_places()).reload("servicekit-y")


def test_systemd_is_asked_about_all_units_at_once(systemctl: FakeSystemctl) -> None:
    """One call tells of every unit: what runs, what it says, how often it was restarted."""
    systemctl.says(SHOWN)
    assert Systemd(system_places()).look(["servicekit-x", "servicekit-y"]) == {
        "servicekit-x": Seen(
            active="activating",
            pid=42,
            text="loading weights=3",
            restarts=2,
            run="abc",
            enabled=True,
            exit_code=75,
        ),
        "servicekit-y": Seen(
            active="inactive", loaded=False, restarts=0, enabled=False, exit_code=0
        ),
    }
    assert len(systemctl.calls()) == 1


def test_a_start_that_waits_for_a_rivals_stop_is_under_way(systemctl: FakeSystemctl) -> None:
    """A unit with a job in the queue is not at rest, although it is still inactive."""
    systemctl.says(SHOWN.split("\n\n", maxsplit=1)[0].replace("activating", "failed"))
    assert Systemd(system_places()).look(["servicekit-x"])["servicekit-x"].active == "failed"
    waiting = "ActiveState=inactive\nJob=77\nLoadState=loaded\n"
    systemctl.says(waiting)
    assert Systemd(system_places()).look(["servicekit-x"])["servicekit-x"].active == "activating"


def test_systemd_is_not_asked_about_nothing(systemctl: FakeSystemctl) -> None:
    """`systemctl show` without a unit would tell of the manager itself."""
    assert Systemd(system_places()).look([]) == {}
    assert not systemctl.log.exists()


@pytest.mark.parametrize(
    ("words", "version"), [("systemd 255 (255.4-1)\n+PAM\n", 255), ("systemd v\n", 0), ("", 0)]
)
def test_systemd_tells_its_version(systemctl: FakeSystemctl, words: str, version: int) -> None:
    """The first number of `systemctl --version` counts."""
    systemctl.says(words)
    assert Systemd(system_places()).version() == version


@pytest.mark.parametrize(("scope", "warned"), [("--user", True), ("", False)])
def test_a_user_is_warned_of_the_systemd_that_forgets_lingering(
    systemctl: FakeSystemctl, capsys: pytest.CaptureFixture[str], scope: str, *, warned: bool
) -> None:
    """systemd 255 stops a user's services at the last logout; the system's are safe."""
    systemctl.says("systemd 255 (255.4-1ubuntu8)\n")
    warn_of_logouts(Session(None, user=bool(scope)), Systemd(system_places()))
    assert ("may stop your services at your last logout" in capsys.readouterr().err) == warned


@pytest.mark.parametrize(
    ("complaint", "line"),
    [
        (
            "Failed to start servicekit-x.service: Unit servicekit-x.service not found.\n",
            f"{START}: Failed to start servicekit-x.service: Unit servicekit-x.service not found",
        ),
        (
            "Failed to start it: Interactive authentication required.\nSee system logs.\n",
            f"{START}: Failed to start it: Interactive authentication required; {AS_ROOT}",
        ),
        (
            "Failed to connect to bus: No medium found\n",
            f"{START}: Failed to connect to bus: No medium found; {LOG_IN}",
        ),
    ],
)
def test_a_refusal_of_systemd_is_one_line(
    systemctl: FakeSystemctl, complaint: str, line: str
) -> None:
    """What systemctl complains of becomes one line that says what would do."""
    systemctl.says(complaint=complaint, code=1)
    with pytest.raises(UserError) as caught:
        Systemd(system_places()).start("servicekit-x")
    assert str(caught.value) == line


def test_a_systemctl_that_hangs_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop has a bound, and the message says what to look at."""
    program = tmp_path / "systemctl"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(UserError, match=r'"systemctl stop x\.service" did not finish within 0.2 s'):
        Systemd(system_places()).stop("x", limit=0.2)


def test_the_journal_is_asked_for_exactly_what_is_wanted() -> None:
    """Each wish becomes one option or one field of `journalctl`."""
    system, user = Systemd(system_places()), Systemd(below("/srv/x"))
    assert system.log_command("servicekit-x", LogQuery()) == (
        "journalctl",
        "--unit=servicekit-x.service",
        "--no-pager",
        "--lines=100",
    )
    query = LogQuery(follow=True, lines=None, since="-1h", priority="err", run="a-b", cause="hung")
    assert user.log_command("servicekit-x", query) == (
        "journalctl",
        "--user-unit=servicekit-x.service",
        "--follow",
        "--since=-1h",
        "--priority=err",
        "SERVICEKIT_CAUSE=hung",
        "_SYSTEMD_INVOCATION_ID=ab",
    )


# ---- Supervisor


@pytest.fixture
def supervisord(tmp_path: Path) -> Iterator[FakeSupervisord]:
    """A recording supervisord."""
    fake = FakeSupervisord(tmp_path / "supervisor.sock")
    try:
        yield fake
    finally:
        fake.close()


def connect(fake: FakeSupervisord, credentials: str = "") -> Supervisor:
    """The manager at that socket."""
    return Supervisor(below("/srv/x"), f"unix://{credentials}{fake.path}")


def test_a_new_program_is_added_before_it_is_started(supervisord: FakeSupervisord) -> None:
    """Supervisord knows a program of a new file only once it is told to add it."""
    supervisord.added = ["servicekit-x", "other"]
    connect(supervisord).start("servicekit-x")
    assert supervisord.calls == [
        "reloadConfig",
        "addProcessGroup servicekit-x",
        "startProcess servicekit-x False",
    ]


def test_a_changed_program_is_taken_out_and_added_anew(supervisord: FakeSupervisord) -> None:
    """A start uses the file as it is now: the old program is stopped and forgotten first."""
    supervisord.changed = ["servicekit-x"]
    supervisord.program("servicekit-x", "STOPPED")
    connect(supervisord).start("servicekit-x")
    assert supervisord.calls == [
        "reloadConfig",
        "removeProcessGroup servicekit-x",
        "addProcessGroup servicekit-x",
        "startProcess servicekit-x False",
    ]


def test_a_program_that_supervisord_does_not_read_is_explained(
    supervisord: FakeSupervisord,
) -> None:
    """A supervisord that includes other files gets a line to add to its configuration."""
    with pytest.raises(UserError) as caught:
        connect(supervisord).start("servicekit-x")
    assert str(caught.value) == (
        f'supervisord ({supervisord.path}) does not include "/srv/x/supervisor.d"; '
        "add [include] files = /srv/x/supervisor.d/*.conf to its configuration"
    )


def test_a_reload_forgets_only_our_own_removed_programs(supervisord: FakeSupervisord) -> None:
    """Programs of others are not touched, and a new one of ours is not started."""
    supervisord.added = ["servicekit-y"]
    supervisord.removed = ["servicekit-x", "other"]
    connect(supervisord).reload()
    assert supervisord.calls == ["reloadConfig", "removeProcessGroup servicekit-x"]


def test_a_reload_makes_sure_that_the_new_program_was_read(supervisord: FakeSupervisord) -> None:
    """A file that supervisord does not include is noticed when it is installed."""
    supervisord.added = ["servicekit-x"]
    connect(supervisord).reload("servicekit-x")
    with pytest.raises(UserError, match="does not include"):
        connect(supervisord).reload("servicekit-y")


def test_starting_what_runs_is_no_error(supervisord: FakeSupervisord) -> None:
    """A program that runs already is started."""
    supervisord.program("servicekit-x", "RUNNING")
    supervisord.refuses["startProcess"] = Fault(60, "ALREADY_STARTED")
    connect(supervisord).start("servicekit-x")


def test_a_stop_is_repeated_for_a_program_between_two_lives(supervisord: FakeSupervisord) -> None:
    """A program that has just asked to be restarted is stopped when it is back."""
    supervisord.program("servicekit-x", "EXITED", exitstatus=75)
    supervisord.while_stopping = ["EXITED", "RUNNING", "STOPPING", "STOPPED"]
    connect(supervisord).stop("servicekit-x", limit=10)
    assert supervisord.calls == ["stopProcess servicekit-x False"] * 3


def test_a_slow_stop_gets_its_sigterm_once_more(supervisord: FakeSupervisord) -> None:
    """The first SIGTERM may be lost, so a stop that takes long sends one more, and no third."""
    supervisord.program("servicekit-x", "RUNNING")
    supervisord.while_stopping = ["RUNNING", "STOPPING", "STOPPING", "STOPPED"]
    url = f"unix://{supervisord.path}"
    Supervisor(system_places(), url, term_again=0.0).stop("servicekit-x", limit=10)
    assert supervisord.calls == [
        "stopProcess servicekit-x False",
        "signalProcess servicekit-x TERM",
        *["stopProcess servicekit-x False"] * 2,
    ]


@pytest.mark.parametrize(
    ("state", "pid", "stops"),
    [("STOPPING", 0, True), ("RUNNING", 0, False), ("STOPPING", 1, False)],
)
def test_a_program_asks_whether_it_is_being_stopped(
    supervisord: FakeSupervisord, state: str, pid: int, *, stops: bool
) -> None:
    """A program is being stopped if supervisord names its own process with that state."""
    supervisord.program("servicekit-x", state)
    assert connect(supervisord).stops("servicekit-x", pid or supervisord.pid) is stops


def test_a_supervisord_that_ends_stops_all_its_programs(supervisord: FakeSupervisord) -> None:
    """While it shuts down, supervisord refuses every request and stops every program."""
    supervisord.refuses["getAllProcessInfo"] = Fault(6, "SHUTDOWN_STATE")
    assert connect(supervisord).stops("servicekit-x", supervisord.pid)


def test_a_stop_that_takes_too_long_is_an_error(supervisord: FakeSupervisord) -> None:
    """A stop has a bound."""
    supervisord.program("servicekit-x", "STOPPING")
    with pytest.raises(UserError, match=r'did not stop "servicekit-x" within 0.1 s'):
        connect(supervisord).stop("servicekit-x", limit=0.1)


def test_stopping_what_is_not_known_is_no_error(supervisord: FakeSupervisord) -> None:
    """A program that supervisord never heard of is down."""
    connect(supervisord).stop("servicekit-x", limit=1)
    assert supervisord.calls == []


@pytest.mark.parametrize(
    ("state", "code", "active"),
    [
        ("STOPPED", 0, "inactive"),
        ("STARTING", 0, "activating"),
        ("RUNNING", 0, "active"),
        ("BACKOFF", 0, "activating"),
        ("STOPPING", 0, "deactivating"),
        ("EXITED", 0, "inactive"),
        ("EXITED", 69, "failed"),
        ("EXITED", 75, "activating"),
        ("EXITED", 78, "failed"),
        ("EXITED", -1, "activating"),
        ("FATAL", 0, "failed"),
        ("UNKNOWN", 0, "failed"),
    ],
)
def test_supervisors_states_in_systemds_words(
    supervisord: FakeSupervisord, state: str, code: int, active: str
) -> None:
    """An exit that Supervisor follows with a restart is a start under way, not an end."""
    supervisord.program("servicekit-x", state, exitstatus=code, pid=7)
    seen = connect(supervisord).look(["servicekit-x", "servicekit-y"])
    assert (seen["servicekit-x"].active, seen["servicekit-x"].pid) == (active, 7)
    assert seen["servicekit-y"] == Seen("inactive", loaded=False)


def test_user_name_and_password_are_sent(supervisord: FakeSupervisord) -> None:
    """Credentials in the URL become the basic authorization that supervisord wants."""
    connect(supervisord, "me:se%40cret@").look(["x"])
    assert supervisord.authorization is not None
    scheme, _, encoded = supervisord.authorization.partition(" ")
    assert (scheme, base64.b64decode(encoded)) == ("Basic", b"me:se@cret")


def test_a_configuration_that_cannot_be_read_is_told(supervisord: FakeSupervisord) -> None:
    """What supervisord has against its configuration is passed on."""
    supervisord.refuses["reloadConfig"] = Fault(92, "CANT_REREAD: bad line 3")
    with pytest.raises(UserError, match="cannot read its configuration: CANT_REREAD: bad line 3"):
        connect(supervisord).reload()


def test_a_supervisord_that_is_not_there_is_told(tmp_path: Path) -> None:
    """A socket without a listener is a line, not a traceback."""
    manager = Supervisor(below("/srv/x"), f"unix://{tmp_path}/none.sock")
    with pytest.raises(UserError, match=r"none\.sock\) cannot be reached: no such file"):
        manager.reload()


NOBODY = 65534


@contextmanager
def as_somebody_else() -> Iterator[None]:
    """Let root be somebody whom permissions can keep out; others are that already."""
    was = os.geteuid(), os.getegid()
    try:
        if was[0] == 0:
            os.setegid(NOBODY)
            os.seteuid(NOBODY)
        yield
    finally:
        os.seteuid(was[0])
        os.setegid(was[1])


@pytest.mark.parametrize(
    ("mode", "hint"),
    [
        (0o700, 'only "{owner}" may use its socket: run as {him}, or set chmod=0770'),
        (0o070, 'its socket belongs to group "{group}": run as {him}, or add "{me}" to the group'),
    ],
)
def test_a_socket_of_somebody_else_says_whose_it_is(mode: int, hint: str) -> None:
    """Whoever may not use it is told who may, and how to be one of them."""
    if os.geteuid() != 0:
        mode &= 0o070  # an owner without any permission of its own is kept out, too
    with tempfile.TemporaryDirectory(prefix="supervisor-") as folder:
        path = Path(folder)
        path.chmod(0o755)
        fake = FakeSupervisord(path / "s.sock")
        try:
            fake.path.chmod(mode)
            with as_somebody_else(), pytest.raises(UserError) as caught:
                connect(fake).version()
            with as_somebody_else():
                me = procfs.account(os.geteuid())
            owner, group = fake.path.owner(), fake.path.group()
        finally:
            fake.close()
    him = "root" if owner == "root" else f'"{owner}"'
    assert caught.value.hint.startswith(hint.format(owner=owner, group=group, me=me, him=him))


@pytest.mark.parametrize("url", ["http://192.0.2.1:9001", "ftp://x", "unix://", "http://"])
def test_a_supervisord_elsewhere_is_refused(url: str) -> None:
    """Orders go to this machine's supervisord only."""
    with pytest.raises(UserError, match="SUPERVISOR_SERVER_URL must be"):
        Supervisor(below("/srv/x"), url)


def test_the_log_is_the_file_that_supervisor_writes() -> None:
    """Without a journal there is a file, of which the newest lines are shown, or those to come."""
    manager = Supervisor(below("/srv/x"), "unix:///run/s.sock")
    assert manager.log_command("servicekit-x", LogQuery(lines=5)) == (
        "tail",
        "--lines=5",
        "/srv/x/log/x.log",
    )
    assert manager.log_command("servicekit-x", LogQuery(lines=None, follow=True)) == (
        "tail",
        "--lines=+1",
        "--follow=name",
        "--retry",
        "/srv/x/log/x.log",
    )


# ---- which of them


def test_the_environment_names_a_supervisord() -> None:
    """The settings come first, then the environment; a bare path is a unix socket."""
    environment = {"SUPERVISOR_SERVER_URL": "unix:///env.sock"}
    assert supervisor_url(environment) == "unix:///env.sock"
    assert supervisor_url(environment, socket="/settings.sock") == "unix:///settings.sock"


@pytest.mark.parametrize("name", list(ManagerName))
def test_a_manager_can_be_named(name: ManagerName, is_booted: Callable[[], bool]) -> None:
    """Who names a manager gets it, or is told that it does not run."""
    environment = {"SUPERVISOR_SERVER_URL": "unix:///env.sock"}
    if name is ManagerName.SYSTEMD and not is_booted():
        with pytest.raises(UserError, match="systemd does not run here"):
            find_manager(below("/srv/x"), environment, name=name)
    else:
        assert find_manager(below("/srv/x"), environment, name=name).name is name


@pytest.fixture
def is_booted() -> Callable[[], bool]:
    """Whether systemd is this machine's manager."""
    return Path("/run/systemd/system").is_dir


# ---- accounts and containers


def test_accounts_are_looked_up() -> None:
    """Root exists everywhere, and a name that nobody has does not."""
    assert exists("root")
    assert not exists("no-such-account")


@pytest.mark.parametrize(
    ("text", "removed"),
    [
        ('# Ours.\nu {name} - "{comment}" {home} /bin/sh\n', True),
        ('u {name} - "Model servers of servicekit" {home} /bin/sh\n', False),
        ('u {name} - "{comment}" /elsewhere /bin/sh\n', False),
        ('u no-such-account - "{comment}" {home} /bin/sh\n', False),
        ("changed by 'somebody\n", False),
        ("", False),
    ],
)
def test_only_an_account_that_was_made_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, *, removed: bool
) -> None:
    """An account is ours as long as it is what our description says."""
    log, program = tmp_path / "log", tmp_path / "userdel"
    program.write_text(f'#!/bin/sh\necho "$*" >"{log}"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    me = pwd.getpwuid(os.getuid())
    remove_made(text.format(name=me.pw_name, comment=me.pw_gecos, home=me.pw_dir))
    assert log.exists() == removed
    assert not removed or log.read_text() == f"{me.pw_name}\n"


def lay_process(procfs: Path, pid: int, cgroup: str, *devices: str) -> None:
    """Make one process of a pretended /proc."""
    folder = procfs / str(pid)
    (folder / "root/dev").mkdir(parents=True)
    (folder / "cgroup").write_text(cgroup)
    for device in devices:
        (folder / "root/dev" / device).touch()


def test_only_containers_with_a_gpu_are_named(tmp_path: Path) -> None:
    """Containers are told by their cgroup, and those that see a GPU by their device files."""
    one, two, three = "1" * 64, "2" * 64, "3" * 64
    lay_process(tmp_path, 1, "0::/init.scope\n", "nvidiactl")
    lay_process(tmp_path, 10, f"0::/system.slice/docker-{one}.scope\n", "nvidiactl", "nvidia0")
    lay_process(tmp_path, 11, f"0::/system.slice/docker-{one}.scope\n", "nvidiactl")
    lay_process(tmp_path, 20, f"0::/machine.slice/libpod-{two}.scope\n")
    lay_process(tmp_path, 30, f"0::/kubepods/pod1/{three}\n", "nvidia0")
    (tmp_path / "self").symlink_to("1")
    (tmp_path / "uptime").touch()
    assert gpu_containers(tmp_path) == ("container 333333333333", "docker 111111111111")
