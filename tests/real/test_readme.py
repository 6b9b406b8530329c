"""Every command of README.md is run, where the block that it stands in says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from readme import README, ROOT, blocks, not_shown

if TYPE_CHECKING:
    from machines.supervisor import Supervisor
    from machines.systemd import Machine
    from readme import Command

LIMIT = 200.0
"""Seconds for one command; a start is the longest."""
PLACES = {
    "checkout": "only planned: they would run these very tests, and test_demo.py runs the demo",
    "network": "fetches packages, into directories that only the test sees",
    "machine": "a fresh machine with systemd, as root, one block after the other",
    "gpu": "the same machine, with --dry-run: there is no GPU for it",
    "container": "a private supervisord, as root",
    "user": "a fresh machine with systemd; `$` is a user without privileges",
}
COVER = """\
set -eu
cover() {
    mkdir -p "$KEPT$1"
    mount --rbind "$1" "$KEPT$1"
    mount -t tmpfs tmpfs "$1"
    for each in "$KEPT$1"/*; do
        name=${each##*/}
        case $name in servicekit*|'*') continue ;; esac
        if [ -L "$each" ]; then cp -P "$each" "$1/"
        elif [ -d "$each" ]; then mkdir "$1/$name"; mount --rbind "$each" "$1/$name"
        else : > "$1/$name"; mount --bind "$each" "$1/$name"
        fi
    done
}"""
# Replaces a directory by an empty one in which everything but servicekit is where it was: this
# checkout or its Python may well be below it.


def run(command: Command, argv: list[str], **options: object) -> None:
    """Run a command to its end; it succeeds, and shows what README.md shows of it."""
    done = subprocess.run(  # type: ignore[call-overload]
        argv, capture_output=True, text=True, timeout=LIMIT, check=False, **options
    )
    said = f"{done.stdout}{done.stderr}"
    assert done.returncode == 0, f"`{command.line}` exited {done.returncode}:\n{said}"
    missing = not_shown(list(command.shows), said)
    assert missing == [], f"`{command.line}` does not show {missing}:\n{said}"


def test_every_block_of_commands_is_run_somewhere() -> None:
    """A block says where its commands are run, and no command is outside of such a block."""
    assert {block.where for block in blocks("console")} == set(PLACES)
    fences = re.findall(r"^```(.*)$", README.read_text(encoding="utf-8"), re.MULTILINE)
    opening = fences[::2]
    assert {info.partition(" ")[0] for info in opening} <= {"console", "toml", "ini", "text"}
    assert [info for info in opening if info.startswith("text")] == ["text demo"]


def test_what_is_named_in_the_text_exists() -> None:
    """Verbs and options in the prose are those of the command line, and links lead somewhere."""
    text = README.read_text(encoding="utf-8")
    servicekit = Path(sys.executable).with_name("servicekit")
    for line in sorted(set(re.findall(r"`servicekit ([a-z][^`]*)`", text))):
        verbs = [word for word in line.split() if re.fullmatch(r"[a-z]+", word)]
        nested = verbs[:2] if verbs[0] in {"secret", "tunnel", "wsl"} else verbs[:1]
        said = subprocess.run(
            [servicekit, *nested, "--help"], capture_output=True, text=True, check=False
        )
        assert said.returncode == 0, f"there is no `servicekit {' '.join(nested)}`"
        for option in re.findall(r"--[a-z-]+", line):
            assert option in said.stdout, f"`servicekit {' '.join(nested)}` has no {option}"
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / target).is_file(), f"README.md links to {target}, which is not there"


def test_make_knows_both_commands() -> None:
    """The two commands that a newcomer types exist, and run what they say."""
    planned = [
        subprocess.run(
            ["sh", "-c", f"{command.line} --dry-run"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for block in blocks("console", where="checkout")
        for command in block.commands()
    ]
    assert ["bin/python demo" in plan for plan in planned] == [True, False]
    assert ["bin/pytest" in plan for plan in planned] == [False, True]


@pytest.mark.network
@pytest.mark.timeout(900)
def test_an_installation_from_a_checkout(tmp_path: Path) -> None:
    """The commands of an installation work in a copy of this checkout, with a home of its own."""
    if os.geteuid() != 0:
        pytest.skip("installing for everybody needs root")
    checkout = tmp_path / "checkout"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, checkout / name)
    commands = [
        command for block in blocks("console", where="network") for command in block.commands()
    ]
    # Directories of the system are replaced for these commands alone.
    script = [COVER, "cover /opt", "cover /usr/local/bin"]
    script += [command.line for command in commands]
    script += ["/usr/local/bin/servicekit --version", "ls /opt/servicekit/bin"]
    # Nothing is fetched twice, and the versions are those that everything else is tested with.
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pip"
    pip = {"PIP_CACHE_DIR": str(cache), "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(script)],
        cwd=checkout,
        env={**os.environ, **pip, "HOME": str(tmp_path), "KEPT": str(tmp_path / "kept")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert "long-context" in done.stdout
    assert "servicekit-llama-server" in done.stdout


@pytest.mark.systemd
@pytest.mark.llama
@pytest.mark.timeout(600)
def test_a_machine_with_systemd(fresh_machine: Machine) -> None:
    """From install to uninstall, every command works on one machine, in the order of the page."""
    machine = fresh_machine
    machine.boot()
    for block in blocks("console", "toml", "ini"):
        if block.kind != "console":
            write = f"mkdir -p {Path(block.where).parent} && umask 022 && cat >{block.where}"
            machine.run("sh", "-c", write, text_in=block.text)
        elif block.where in {"machine", "gpu"}:
            for command in block.commands():
                assert command.as_root
                line = command.line + (" --dry-run" if block.where == "gpu" else "")
                run(command, machine.argv("sh", "-c", line))


@pytest.mark.systemd
@pytest.mark.llama
@pytest.mark.timeout(600)
def test_a_user_of_that_machine(fresh_machine: Machine) -> None:
    """A user without privileges has a service of their own."""
    machine = fresh_machine
    machine.boot()
    env = machine.add_user("ada")
    for block in blocks("console", where="user"):
        for command in block.commands():
            user = "" if command.as_root else "ada"
            run(command, machine.argv("sh", "-c", command.line, user=user, env=env))


@pytest.mark.supervisord
@pytest.mark.llama
@pytest.mark.timeout(600)
def test_a_container_with_supervisor(supervisord: Supervisor, free_port: int) -> None:
    """The same verbs work where only Supervisor runs, told by its socket."""
    if os.geteuid() != 0:
        pytest.skip("services of the system need root")
    home = supervisord.home
    settings = home / "servicekit.toml"
    settings.write_text(
        f'root = "{home}"\nmanager = "supervisor"\nsupervisor_socket = "{supervisord.socket}"\n'
        f'[places]\nsupervisor = "{supervisord.include}"\n'
    )
    settings.chmod(0o644)
    # This host's own services may have the usual port.
    port = {"SERVICEKIT_PORT": str(free_port)}
    supervisord.stop()
    supervisord.start(port)
    env = {**os.environ, **port, "SERVICEKIT_CONFIG": str(settings)}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    for block in blocks("console", where="container"):
        for command in block.commands():
            assert command.as_root
            run(command, ["sh", "-c", command.line], cwd=home, env=env)
