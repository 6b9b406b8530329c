"""Many profiles at once, and what is refused before it is tried."""

from __future__ import annotations

import json
import os
import socket
from importlib import resources
from typing import TYPE_CHECKING

import pytest
from machines.driver import CARD
from unit.cli.cli_runs import Ran, invoke, refused, said
from unit.managers.fake_supervisord import FakeSupervisord

from servicekit.host import procfs
from servicekit.watchdog.publish import State, write_state

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from machines.driver import Driver

SGLANG = ("balanced", "dflash", "dspark", "long-context")
"""The built-in profiles of the engine that is here."""
SMALL = {**CARD, "total": 16384}
"""A GPU that the 27B checkpoint does not fit."""


class Host:
    """Settings below one directory for a pretended supervisord, and an engine that is a stub."""

    def __init__(self, home: Path, driver: Driver) -> None:
        self.home, self.driver = home, driver
        self.supervisord = FakeSupervisord(home / "s.sock")
        self.config = home / "servicekit.toml"
        self.config.write_text(
            f'root = "{home}"\nmanager = "supervisor"\nsupervisor_socket = "{home}/s.sock"\n'
            'deny = ["demo"]\n'
        )
        self.config.chmod(0o644)
        engine = home / "bin/sglang"
        engine.parent.mkdir()
        engine.write_text("#!/bin/sh\n")
        engine.chmod(0o755)
        path = os.environ.get("PATH", os.defpath)
        self.env = {**driver.variables, "PATH": f"{engine.parent}:{path}"}

    def run(self, *words: str) -> Ran:
        """Run a command line."""
        return invoke("--user", "--config", self.config, *words, env=self.env)

    def added(self, name: str) -> None:
        """Let supervisord see a program in its configuration."""
        self.supervisord.added.append(f"servicekit-{name}")

    @property
    def installed(self) -> list[str]:
        """The profiles that are installed."""
        return sorted(path.stem for path in (self.home / "installed").glob("*.json"))


def publish(home: Path, profile: str, **more: object) -> None:
    """Publish as a watchdog of `profile` that is this very process, and ready."""
    stat = procfs.stat(os.getpid())
    assert stat is not None
    at = "2026-01-31T12:00:00+00:00"
    said = {"profile": profile, "state": "ready", "phase": "serving", "since": at, "updated": at}
    ours = {"run": "r1", "pid": os.getpid(), "pid_started": stat.started, "why": "answering"}
    state = State.parse(json.dumps({**said, **ours, **more}))
    assert state is not None
    write_state(home / f"run/{profile}/state.json", state)


@pytest.fixture
def host(tmp_path: Path, driver: Driver) -> Iterator[Host]:
    """Give a host without any service."""
    host = Host(tmp_path, driver)
    try:
        yield host
    finally:
        host.supervisord.close()


def test_what_does_not_fit_is_refused_with_the_first_lever(host: Host) -> None:
    """One line says what is short and what to pull; nothing was written."""
    host.driver.does(gpus=[SMALL])
    host.added("balanced")
    before = sorted(host.home.rglob("*"))
    done = host.run("install", "balanced")
    assert (done.code, done.out) == (1, "")
    (line,) = done.err.splitlines()
    assert line.startswith('servicekit: profile "balanced" does not fit its GPU: ')
    assert line.endswith("; --anyway overrules this")
    assert sorted(host.home.rglob("*")) == before


def test_a_check_names_a_program_that_the_kernel_cannot_start(host: Host) -> None:
    """A script with Windows' line ends, and one whose interpreter is missing."""
    engine = host.home / "bin/sglang"
    for first, says in (
        ("#!/bin/sh\r\n", "ends with CR LF"),
        ("#!/no/python\n", 'names the interpreter "/no/python", which does not exist'),
    ):
        engine.write_bytes(first.encode())
        done = host.run("check", "balanced")
        assert done.code == 1
        assert f'error: executable: the first line of the engine "{engine}"' in done.out or (
            f'error: executable: the engine "{engine}"' in done.out
        )
        assert says in " ".join(done.out.split())


def test_a_check_knows_the_gpu_that_is_there(host: Host) -> None:
    """What is wrong on some generations of GPUs is not said where the driver names another."""
    profile = host.home / "profiles.d/mine.toml"
    profile.parent.mkdir()
    profile.write_text(
        'extends = "balanced"\n[options]\nattention-backend = "trtllm_mha"\n', encoding="utf-8"
    )
    profile.chmod(0o644)
    with host.config.open("a", encoding="utf-8") as settings:
        settings.write('allow = ["mine"]\n')
    host.driver.does(gpus=[{**CARD, "capability": [12, 0]}])
    assert "trtllm_mha" in host.run("check", "mine").out
    host.driver.does(gpus=[{**CARD, "capability": [10, 0]}])
    assert "trtllm_mha" not in host.run("check", "mine").out


def test_what_does_not_fit_can_be_tried_anyway(host: Host) -> None:
    """--anyway turns the refusal of install and start into a warning."""
    host.driver.does(gpus=[SMALL])
    host.added("balanced")
    done = host.run("install", "balanced", "--anyway")
    assert done.code == 0
    assert 'warning: profile "balanced" does not fit its GPU' in done.err
    assert "does not fit" in host.run("start", "balanced").err
    assert not any(call.startswith("startProcess") for call in host.supervisord.calls)
    assert host.run("start", "balanced", "--anyway", "--no-wait").code == 0
    assert host.supervisord.calls[-1] == "startProcess servicekit-balanced False"
    assert "does not fit" in host.run("restart", "balanced").err


def site(host: Host, name: str, text: str) -> Path:
    """Write a profile of the site, and allow it."""
    file = host.home / f"profiles.d/{name}.toml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    file.chmod(0o644)
    host.config.write_text(f'{host.config.read_text()}allow = ["{name}"]\n')
    host.added(name)
    return file


MISSPELT = 'extends = "balanced"\n[options]\nmem-fraction-statik = 0.8\n'


def test_an_option_that_the_engine_does_not_have_is_not_installed(host: Host) -> None:
    """Install refuses what check calls an error, and writes nothing."""
    site(host, "typo", MISSPELT)
    done = host.run("install", "typo")
    assert done.code == 1
    assert 'profile "typo": options.mem-fraction-statik: ' in done.err
    assert done.err.endswith("; --anyway overrules this\n")
    assert host.installed == []


def test_an_api_key_that_is_not_enforced_is_not_installed(host: Host) -> None:
    """A key that the engine would not ask for means an open server."""
    text = 'extends = "balanced"\nsecrets = ["KEY"]\napi_key = "KEY"\n'
    site(host, "open", text)
    said = host.run("install", "open").err
    assert 'profile "open": api_key: SGLang reads its key from the command line only' in said
    assert (
        'profile "open": secrets.KEY: is not stored: run `servicekit --user secret set open KEY`'
        in said
    )
    assert host.installed == []


@pytest.mark.parametrize("verb", ["start", "restart", "switch"])
def test_nothing_is_stopped_for_what_the_check_refuses(host: Host, verb: str) -> None:
    """What was installed with --anyway needs it again to stop what runs."""
    site(host, "typo", MISSPELT)
    assert host.run("install", "typo", "--anyway").code == 0
    host.added("balanced")
    assert host.run("install", "balanced").code == 0
    runs = "balanced" if verb == "switch" else "typo"
    if verb != "start":
        host.supervisord.program(f"servicekit-{runs}", "RUNNING")
    done = host.run(verb, "typo")
    assert done.code == 1
    assert "options.mem-fraction-statik" in done.err
    assert not [c for c in host.supervisord.calls if c.startswith(("stop", "startProcess"))]


def test_nothing_is_stopped_while_a_foreign_process_holds_the_port(
    host: Host, free_port: int
) -> None:
    """Who holds it is named before the healthy rival is stopped for a start that cannot succeed."""
    site(host, "taken", f'extends = "balanced"\nport = {free_port}\n')
    assert host.run("install", "taken").code == 0
    with socket.create_server(("127.0.0.1", free_port)):
        for verb in ("start", "restart", "switch"):
            done = host.run(verb, "taken")
            assert done.code == 1
            assert f"port {free_port} is held by pid {os.getpid()} (" in done.err
    assert not [c for c in host.supervisord.calls if c.startswith(("stop", "startProcess"))]


@pytest.mark.parametrize("words", [("verify",), ("bench", "--anyway")])
def test_nothing_is_stopped_for_a_measurement(host: Host, words: tuple[str, ...]) -> None:
    """A profile that is stopped is not measured while another one runs on its GPU."""
    for name in ("balanced", "long-context"):
        host.added(name)
        assert host.run("install", name).code == 0
    host.supervisord.program("servicekit-long-context", "RUNNING")
    done = host.run(words[0], "balanced", *words[1:])
    assert done.code == 1
    assert '"long-context" runs, and uses the same GPU or port' in done.err
    assert "`servicekit --user switch balanced` first" in done.err
    assert not [c for c in host.supervisord.calls if c.startswith(("stop", "startProcess"))]


VERBS = (("start",), ("restart",), ("switch",), ("verify",), ("bench", "--anyway"))


@pytest.mark.parametrize("words", VERBS)
def test_no_verb_starts_more_context_than_the_model_has(host: Host, words: tuple[str, ...]) -> None:
    """The model's own length is in the refusal, and nothing was stopped or started."""
    demo = (resources.files("servicekit.data.profiles") / "demo.toml").read_text(encoding="utf-8")
    text = demo.replace("requested = 2048", "requested = 1000000")
    site(host, "long", text.replace('executable = "servicekit-llama-server"', ""))
    assert host.run("install", "long", "--anyway").code == 0
    manifest = host.home / "installed/long.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"overruled": []}))
    if words[0] == "restart":
        host.supervisord.program("servicekit-long", "RUNNING")
    done = host.run(words[0], "long", *words[1:])
    assert done.code == 1
    assert "the model's own window is 8,192 tokens, not the 1,000,000 requested" in done.err
    assert not [c for c in host.supervisord.calls if c.startswith(("stop", "startProcess"))]


@pytest.mark.parametrize("words", VERBS)
def test_no_verb_starts_on_a_gpu_that_a_foreign_process_holds(
    host: Host, words: tuple[str, ...]
) -> None:
    """Root can name a process that the service's account could not see."""
    host.added("balanced")
    assert host.run("install", "balanced").code == 0
    host.driver.does(gpus=[{**CARD, "compute": {str(os.getppid()): 9000}}])
    done = host.run(words[0], "balanced", *words[1:])
    assert done.code == 1
    assert f"is held by pid {os.getppid()} (" in done.err
    assert "9000 MiB" in done.err
    assert not [c for c in host.supervisord.calls if c.startswith(("stop", "startProcess"))]


def test_status_names_what_anyway_overruled(host: Host) -> None:
    """The errors stay in sight until an install finds none."""
    file = site(host, "typo", MISSPELT)
    done = host.run("install", "typo", "--anyway")
    assert done.code == 0
    assert "warning: " in done.err
    assert "anyway:     profile" in host.run("status", "typo").out
    (sentence,) = json.loads(host.run("status", "typo", "--json").out)["overruled"]
    assert "mem-fraction-statik" in sentence
    file.write_text('extends = "balanced"\n')
    assert host.run("install", "typo").code == 0
    assert json.loads(host.run("status", "typo", "--json").out)["overruled"] == []


def test_a_context_that_the_model_does_not_have_is_refused(host: Host) -> None:
    """More tokens than the model declares can never be served."""
    site(host, "long", 'extends = "balanced"\n[context]\nrequested = 1000000\nminimum = 500000\n')
    said = host.run("install", "long", "--anyway").err
    assert "the model's own window is 262,144 tokens, not the 1,000,000 requested: lower" in said


@pytest.mark.parametrize("driver_says", [{"gpus": [CARD]}, {"error": "DriverNotLoaded"}])
def test_what_fits_or_cannot_be_known_is_not_refused(
    host: Host, driver_says: dict[str, object]
) -> None:
    """A GPU that is large enough, and a host where no driver answers."""
    host.driver.does(**driver_says)
    host.added("balanced")
    assert host.run("install", "balanced").code == 0


def test_the_plan_is_held_against_what_the_engine_has(host: Host) -> None:
    """What install predicted of the pool is compared with the pool of the engine that is ready."""
    host.added("balanced")
    assert host.run("install", "balanced").code == 0
    (manifest,) = _manifests(host)
    planned = manifest["kv_tokens"]
    assert isinstance(planned, int)
    host.supervisord.program("servicekit-balanced", "RUNNING")
    for physical, told in ((planned, ""), (planned * 3 // 4, "25% fewer"), (planned * 2, "100% m")):
        publish(host.home, "balanced", context={"physical": physical})
        text = host.run("status", "balanced").out
        if told:
            line = f"the pool holds {physical} tokens, {told}"
            assert line in text
            assert line in json.loads(host.run("status", "balanced", "--json").out)["pool_drift"]
        else:
            assert "the pool holds" not in text


def test_a_precision_that_was_accepted_is_shown(host: Host) -> None:
    """A KV cache below FP8 is a decision that status never lets be forgotten."""
    site = host.home / "profiles.d/low.toml"
    site.parent.mkdir()
    site.write_text(
        'extends = "balanced"\nkv_precision_accepted = "measured on our own questions"\n'
        '[options]\nkv-cache-dtype = "fp4_e2m1"\n'
    )
    site.chmod(0o644)
    host.config.write_text(f'{host.config.read_text()}allow = ["low"]\n')
    host.added("low")
    done = host.run("install", "low", "--anyway")
    assert done.code == 0, done.err
    text = host.run("status", "low").out
    assert 'KV cache:   below FP8, accepted because "measured on our own questions"' in text


def test_a_switch_stops_nothing_for_what_cannot_start(host: Host) -> None:
    """The new profile is planned while the old one serves."""
    host.driver.does(gpus=[SMALL])
    for name in ("balanced", "long-context"):
        host.added(name)
        assert host.run("install", name, "--anyway").code == 0
        host.supervisord.program(f"servicekit-{name}", "RUNNING")
    done = host.run("switch", "long-context")
    assert done.code == 1
    assert "does not fit its GPU" in done.err
    assert not any(call.startswith("stopProcess") for call in host.supervisord.calls)


def test_all_that_can_run_here_is_installed_and_removed(host: Host) -> None:
    """--all leaves out what lacks its engine, and says so."""
    for name in SGLANG:
        host.added(name)
    done = host.run("install", "--all")
    assert done.code == 0, done.err
    assert host.installed == list(SGLANG)
    assert 'left out: profile "mtp": the engine\'s program "vllm" was not found' in done.err
    assert "demo" not in done.out + done.err
    enabled = [one for one in _manifests(host) if one["enabled"]]
    assert [one["profile"] for one in enabled] == ["balanced"]
    assert 'does not start at boot, since "balanced" does and excludes it' in done.err
    again = host.run("install", "--all")
    assert [line for line in again.out.splitlines() if not line.endswith(":")] == [
        "nothing to do"
    ] * 4
    assert host.run("uninstall", "--all").code == 0
    assert host.installed == []
    assert "nothing is installed" in host.run("uninstall", "--all").err


def _manifests(host: Host) -> list[dict[str, object]]:
    return [
        json.loads(path.read_text()) for path in sorted((host.home / "installed").glob("*.json"))
    ]


def test_one_that_fails_keeps_no_other_from_being_installed(host: Host) -> None:
    """What is wrong with one profile is said, and the others are installed."""
    host.driver.does(gpus=[{**CARD, "total": 24576}])
    for name in SGLANG:
        host.added(name)
    (host.home / "profiles.d").mkdir()
    site = host.home / "profiles.d/site.toml"
    site.write_text('extends = "balanced"\nport = "no"\n')
    site.chmod(0o644)
    host.config.write_text(f'{host.config.read_text()}allow = ["site"]\n')
    done = host.run("install", "--all", "--anyway")
    assert done.code == 1
    assert "port" in done.err
    assert host.installed == list(SGLANG)


def test_a_name_and_all_exclude_each_other(tmp_path: Path) -> None:
    """One or the other says what is meant."""
    for words in (["install"], ["install", "demo", "--all"], ["uninstall"]):
        assert "give either a profile or --all" in refused(*words, "--root", tmp_path, code=2)
    assert "profiles exclude each other" in refused("install", "--all", "--now")


def test_an_image_gets_all_that_it_has_engines_for(tmp_path: Path) -> None:
    """In an image, what its own tree holds decides."""
    engine = tmp_path / "usr/bin/vllm"
    engine.parent.mkdir(parents=True)
    engine.write_text("#!/bin/sh\n")
    engine.chmod(0o755)
    words = ["--all", "--root", str(tmp_path)]
    env = {"PATH": "/usr/bin:/bin"}
    text = said("install", "--manager", "systemd", *words, env=env)
    assert "create   /etc/systemd/system/servicekit-mtp.service" in text
    manifests = (tmp_path / "etc/servicekit/installed").glob("*.json")
    assert {path.stem for path in manifests} == {"max-context", "mtp"}
