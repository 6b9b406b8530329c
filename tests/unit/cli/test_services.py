"""The verbs about an installed service, with a supervisord and a watchdog that say what is told."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any
from xmlrpc.client import Fault

import pytest
from typing_extensions import override
from unit.cli.cli_runs import Ran, invoke, servicekit
from unit.managers.fake_supervisord import FakeSupervisord

from servicekit.cli.probe import account_listens
from servicekit.host import procfs
from servicekit.managers import supervisor_url
from servicekit.watchdog.publish import State, write_state

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UNIT = "servicekit-demo"


class Host:
    """Settings below one directory, for a pretended supervisord."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.supervisord = FakeSupervisord(home / "s.sock")
        self.supervisord.added = [UNIT]
        self.config = home / "servicekit.toml"
        self.config.write_text(
            f'root = "{home}"\nmanager = "supervisor"\nsupervisor_socket = "{home}/s.sock"\n'
        )
        self.config.chmod(0o644)

    def run(self, *words: str) -> Ran:
        """Run a command line."""
        return invoke("--user", "--config", self.config, *words)

    def said(self, *words: str, code: int = 0) -> str:
        """Give all that a command line prints that exits with `code`."""
        done = self.run(*words)
        assert done.code == code, done
        return done.out + done.err

    def runs(self, state: str = "RUNNING") -> None:
        """Let supervisord know the program, in this state."""
        self.supervisord.added = []
        self.supervisord.program(UNIT, state)

    def publish(self, **more: Any) -> None:  # noqa: ANN401 - any field of a state
        """Publish as a watchdog that is this very process."""
        stat = procfs.stat(os.getpid())
        assert stat is not None
        fields = {
            "profile": "demo",
            "state": "ready",
            "phase": "serving",
            "since": "2026-01-31T12:00:00+00:00",
            "updated": "2026-01-31T12:00:00+00:00",
            "run": "r1",
            "pid": os.getpid(),
            "pid_started": stat.started,
            "engine_pid": 7,
            "why": "answering",
            "context": {"effective": 2048},
            "served_name": "smollm2-135m",
            "host": "127.0.0.1",
            "port": 18001,
            **more,
        }
        state = State.parse(json.dumps(fields))
        assert state is not None
        write_state(self.home / "run/demo/state.json", state)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """Give a host without any service."""
    host = Host(tmp_path)
    try:
        yield host
    finally:
        host.supervisord.close()


def test_nothing_is_installed(host: Host) -> None:
    """Without a service the status says what to do, and as JSON is an empty list."""
    assert "`servicekit --user list` shows the available profiles" in host.said("status")
    assert json.loads(host.run("status", "--json").out) == []
    assert "`servicekit --user install demo`" in host.said("status", "demo", code=1)


def test_an_installed_service_is_configured_until_it_is_started(host: Host) -> None:
    """Installing tells supervisord, and starts nothing."""
    host.said("install", "demo")
    assert host.supervisord.calls == ["reloadConfig"]
    assert json.loads(host.run("status", "demo", "--json").out)["state"] == "configured"
    assert host.said("install", "demo") == "nothing to do\n"


def test_a_manager_that_refuses_leaves_nothing(host: Host) -> None:
    """When supervisord cannot read its configuration, the install never happened."""
    before = sorted(host.home.rglob("*"))
    host.supervisord.refuses["reloadConfig"] = Fault(92, "CANT_REREAD: no")
    assert "cannot read its configuration" in host.said("install", "demo", code=1)
    assert sorted(host.home.rglob("*")) == before


def test_a_ready_service_is_told_in_full(host: Host) -> None:
    """Status, table and JSON say what the living watchdog published."""
    host.said("install", "demo")
    host.runs()
    host.publish()
    text = host.said("status", "demo")
    assert text.startswith("demo: ready for ")
    assert "smollm2-135m at http://127.0.0.1:18001/v1" in text
    assert "effective 2048 tokens" in text
    head, row = host.said("status").splitlines()
    assert head.split() == ["PROFILE", "STATE", "SINCE", "BOOT", "WHY"]
    assert row.split()[:2] == ["demo", "ready"]
    assert [each["state"] for each in json.loads(host.run("status", "--json").out)] == ["ready"]


def test_starting_what_is_ready_says_so(host: Host) -> None:
    """A start of a service that runs is no second start."""
    host.said("install", "demo")
    host.runs()
    host.publish()
    text = host.said("start", "demo")
    assert '"demo" is already running' in text
    assert "demo: ready after" in text
    assert not any(call.startswith("startProcess") for call in host.supervisord.calls)


def test_a_start_that_fails_says_why(host: Host) -> None:
    """A start that ends without ready exits with 1, with reason, remedy and where to read on."""
    host.said("install", "demo")
    host.runs("EXITED")
    host.supervisord.programs[UNIT]["exitstatus"] = 69
    host.publish(
        state="failed", phase="gone", code=69, pid_started=1, why="no GPU", remedy="buy one"
    )
    text = host.said("start", "demo", code=1)
    assert "demo: failed after" in text
    assert "no GPU" in text
    assert "remedy: buy one" in text
    assert "servicekit --user logs demo" in text


def test_an_order_that_is_not_waited_for_returns_at_once(host: Host) -> None:
    """--no-wait gives the order and shows nothing."""
    host.said("install", "demo")
    assert host.said("start", "demo", "--no-wait") == ""
    assert host.supervisord.calls[-1] == f"startProcess {UNIT} False"


def test_a_start_names_whom_it_waits_for(host: Host) -> None:
    """Supervisor stops no other service: the line says which verb does, before the wait."""
    with host.config.open("a") as settings:
        settings.write('allow = ["other"]\n')
    (host.home / "profiles.d").mkdir(0o755)
    profile = host.home / "profiles.d/other.toml"
    profile.write_text('extends = "demo"\n')
    profile.chmod(0o644)
    host.said("install", "demo")
    host.supervisord.added = ["servicekit-other"]
    host.said("install", "other")
    host.runs()
    host.supervisord.program("servicekit-other", "STOPPED")
    assert host.said("start", "other", "--no-wait") == (
        'servicekit: "other" waits for "demo", which uses the same GPU or port; '
        "`servicekit --user switch other` replaces it\n"
    )
    host.runs("STOPPED")
    assert host.said("start", "other", "--no-wait") == ""


def test_a_stopped_service_says_so(host: Host) -> None:
    """A stop is waited for, and ends with the last word of the watchdog."""
    host.said("install", "demo")
    host.runs("STOPPED")
    host.publish(state="stopped", phase="gone", code=0, pid_started=1, why="asked")
    assert host.said("stop", "demo").startswith("demo: stopped: asked\n")


def test_stopping_what_does_not_run_is_no_failure(host: Host) -> None:
    """It failed long ago, which the line still says; the stop itself had nothing to do."""
    host.said("install", "demo")
    host.runs("EXITED")
    host.publish(state="failed", phase="gone", code=69, pid_started=1, why="no GPU")
    done = host.run("stop", "demo")
    said = 'servicekit: "demo" was not running\n'
    assert done == (0, "demo: failed: no GPU\n", said)


def test_a_manager_that_is_mute_does_not_hide_the_state(host: Host) -> None:
    """What the watchdog says is shown although supervisord does not answer."""
    host.said("install", "demo")
    host.publish()
    host.supervisord.close()
    text = host.said("status", "demo")
    assert "demo: ready" in text
    assert "cannot query the manager" in text


@pytest.mark.parametrize(
    ("state", "phase", "code", "word"),
    [
        ("ready", "serving", 0, "healthy"),
        ("degraded", "degraded", 0, "healthy"),
        ("degraded", "stopping", 1, "not healthy"),
        ("starting", "loading", 1, "not healthy"),
        ("failed", "gone", 1, "not healthy"),
    ],
)
def test_a_probe_believes_a_living_watchdog(
    host: Host, state: str, phase: str, code: int, word: str
) -> None:
    """The default probe is one line and an exit code, from what the watchdog published."""
    host.publish(state=state, phase=phase)
    assert host.said("probe", "demo", code=code) == f"{word}: {state}: answering\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_state_leads_a_probe_only_to_a_socket_of_its_own_account() -> None:
    """The account writes the port of the state, and a key is sent there."""
    with socket.create_server(("127.0.0.1", 0)) as ours:
        assert account_listens(os.getpid(), "127.0.0.1", ours.getsockname()[1])
        assert not account_listens(os.getpid(), "127.0.0.1", 1)
        serve = "import socket; s = socket.create_server(('127.0.0.1', 0)); "
        serve += "print(s.getsockname()[1], flush=True); input()"
        with subprocess.Popen(
            [sys.executable, "-c", serve],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            user=65534,
        ) as other:
            assert other.stdout is not None
            port = int(other.stdout.readline())
            assert not account_listens(os.getpid(), "127.0.0.1", port)
            assert account_listens(other.pid, "127.0.0.1", port)
            other.communicate("\n", timeout=20)


def test_a_probe_of_nothing_is_unhealthy_and_of_a_wrong_name_cannot_tell(host: Host) -> None:
    """A port that nobody listens on is not healthy; a profile that is none cannot be asked."""
    file = host.home / "profiles.d/here.toml"
    file.parent.mkdir()
    file.write_text('extends = "demo"\nport = 1024\n')
    file.chmod(0o644)
    host.config.write_text(f'{host.config.read_text()}allow = ["here"]\n')
    for how in ("--live", "--ready", "--deep"):
        assert host.said("probe", "here", how, code=1).startswith("not healthy: ")
    assert host.said("probe", "nope", code=2).startswith("cannot tell: there is no profile")
    assert "exclude each other" in host.said("probe", "here", "--live", "--deep", code=2)


def test_drift_is_told_by_status_and_diff(host: Host) -> None:
    """A file that was changed by hand is named, and shown as a difference."""
    host.said("install", "demo")
    assert host.said("diff", "demo") == ""
    wrapper = host.home / "wrappers/demo"
    wrapper.write_text("#!/bin/sh\nexec mine\n")
    assert f"{wrapper} was changed" in host.said("status", "demo")
    text = host.said("diff", "demo", code=1)
    assert f"drifted  {wrapper}: was changed by hand" in text
    assert "-exec mine" in text


def test_history_and_logs_of_a_service_that_never_ran(host: Host) -> None:
    """There is nothing to tell, which is no error for a profile and one for a wrong name."""
    assert '"demo" has not run yet' in host.said("history", "demo")
    assert json.loads(host.run("history", "demo", "--json").out) == []
    assert "no profile" in host.said("history", "nope", code=78)
    host.said("install", "demo")
    assert '"sometime" is not a valid time' in host.said(
        "logs", "demo", "--since", "sometime", code=1
    )
    assert '"loud" is not a valid level; use emerg, ' in host.said(
        "logs", "demo", "-p", "loud", code=1
    )
    wrong = host.said("logs", "demo", "--cause", "hunk", code=1)
    assert wrong == 'servicekit: there is no cause "hunk"; did you mean "hung"?\n'


def test_the_log_file_is_searched_for_a_run_and_for_a_cause(host: Host) -> None:
    """Where there is no journal, the watchdog's own lines in the file tell where a run is."""
    host.said("install", "demo")
    ours = "time=2026-01-31T12:00:00 level=info event={} profile=demo run={}\n"
    hung = ours.format("dead cause=hung", "r1")
    first = ours.format("starting", "r1") + "loading, run=7\n" + hung + "a last word\n"
    second = ours.format("starting", "r2") + "loading again\n"
    (host.home / "log/demo.log").write_text(first + second)
    assert host.said("logs", "demo", "--run", "r1") == first
    assert host.said("logs", "demo", "--run", "r2") == second
    assert host.said("logs", "demo", "--run", "r2", "-n", "1") == "loading again\n"
    assert host.said("logs", "demo", "--cause", "hung") == hung
    none = "servicekit: no matching log lines\n"
    assert host.said("logs", "demo", "--cause", "hung", "--run", "r2") == none
    assert "--follow cannot be combined" in host.said("logs", "demo", "--run", "r1", "-f", code=1)
    assert host.said("logs", "demo", "--since", "2026-02-01") == "loading again\n"
    assert host.said("logs", "demo", "--run", "r1", "-p", "err") == none


def test_an_uninstall_stops_and_removes(host: Host) -> None:
    """After an uninstall there is nothing of it, and its own history stays unless purged."""
    before = sorted(host.home.rglob("*"))
    host.said("install", "demo")
    host.runs("STOPPED")
    host.publish(state="stopped", phase="gone", pid_started=1)
    (host.home / "state/demo/history.jsonl").write_text("")
    dry = host.said("uninstall", "demo", "--dry-run").splitlines()
    wet = host.said("uninstall", "demo").splitlines()
    assert [line.split()[0] for line in wet] == ["remove", "remove", "remove"]
    assert set(wet) <= set(dry)
    assert (host.home / "state/demo/history.jsonl").exists()
    host.supervisord.added = [UNIT]
    host.said("install", "demo")
    host.said("uninstall", "demo", "--purge")
    assert sorted(host.home.rglob("*")) == before


def test_a_purge_may_come_after_the_uninstall(host: Host) -> None:
    """Who forgot --purge need not install anew for it; of what is not there nothing is removed."""
    before = sorted(host.home.rglob("*"))
    for name in ("state/demo/history.jsonl", "log/demo.log", "log/demo.log.1", "log/demo-2.log"):
        (host.home / name).parent.mkdir(parents=True, exist_ok=True)
        (host.home / name).touch()
    host.supervisord.added = [UNIT]
    host.said("install", "demo")
    host.said("uninstall", "demo")
    assert "are removed" in host.said("uninstall", "demo", "--purge")
    assert sorted({*host.home.rglob("*")} - {*before}) == [
        host.home / "log",
        host.home / "log/demo-2.log",
    ]
    for name in ("demo", "..", "demo-2"):
        assert "is not installed" in host.said("uninstall", name, "--purge", code=1)


class Webhook:
    """A server that keeps what is posted to it."""

    def __init__(self, answer: int) -> None:
        self.posted: list[dict[str, Any]] = []
        keep = self.posted.append

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                keep(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(answer)
                self.end_headers()

            @override
            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/secret"
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def test_an_uninstall_without_its_manager_needs_force(host: Host) -> None:
    """When supervisord is gone for good, its files can still be removed."""
    host.said("install", "demo")
    config = host.config.read_text().splitlines()
    host.config.write_text("\n".join(line for line in config if "socket" not in line))
    if supervisor_url({}) is not None:
        pytest.skip("a supervisord runs here")
    assert "--force removes the files" in host.said("uninstall", "demo", code=1)
    assert "the service is not stopped" in host.said("uninstall", "demo", "--force")
    assert not (host.home / "wrappers/demo").exists()


@pytest.mark.parametrize(("answer", "complaint"), [(204, ""), (500, "reach the webhook: 500")])
def test_an_alert_reaches_webhook_and_command(host: Host, answer: int, complaint: str) -> None:
    """Both are told state, cause and remedy; a webhook that fails does not stop the command."""
    webhook = Webhook(answer)
    told = host.home / "told"
    script = f'cat >"{told}"; echo "$SERVICEKIT_PROFILE $SERVICEKIT_CAUSE" >>"{told}"; exit 3'
    host.said("install", "demo")
    host.runs("EXITED")
    failed = {"state": "failed", "phase": "gone", "code": 69, "pid_started": 1}
    host.publish(**failed, why="no GPU", remedy="buy one", cause="gpu-lost")
    host.config.write_text(
        f'{host.config.read_text()}alert_webhook = "{webhook.url}"\n'
        f"alert_command = {json.dumps(['/bin/sh', '-c', script])}\n"
    )
    try:
        done = servicekit("--user", "--config", host.config, "alert", f"{UNIT}.service")
    finally:
        webhook.close()
    assert done.code == 3
    assert complaint in done.err
    assert "/secret" not in done.err
    fields, line = told.read_text().split("}")
    assert json.loads(fields + "}")["remedy"] == "buy one"
    assert line == "demo gpu-lost\n"
    (posted,) = webhook.posted
    assert posted["text"] == "servicekit demo: failed: no GPU; buy one"
    assert posted["cause"] == "gpu-lost"


def test_an_alert_that_nobody_wants_does_nothing(host: Host) -> None:
    """Without a command or a webhook in the settings nothing happens, whatever it is about."""
    assert host.said("alert", "nope") == ""
