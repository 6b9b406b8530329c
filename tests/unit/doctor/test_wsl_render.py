"""`servicekit wsl render`: what it prints, what it writes, and how it finds Windows."""

from __future__ import annotations

import asyncio
import os
import xml.etree.ElementTree as ET
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest
from unit.cli.cli_runs import invoke, refused, said

from servicekit.doctor.wsl.conf import WslKey
from servicekit.doctor.wsl.task import FILE
from servicekit.doctor.wsl.windows import Windows, distribution, windows, windows_path
from servicekit.host.bounded import NoReplyError

if TYPE_CHECKING:
    from collections.abc import Coroutine

GOLDEN = Path(__file__).parents[2] / "golden/wsl"
NAMED = ("--distribution", "Ubuntu-24.04", "--account", r"PC\ada")
GIVEN = (
    *("--wslconfig", GOLDEN / "before.wslconfig", "--wsl-conf", GOLDEN / "before.wsl.conf"),
    *NAMED,
)


def answer(question: Coroutine[None, None, str | None]) -> str | None:
    """Ask Windows something."""
    return asyncio.run(question)


class Pc:
    """A Windows drive below a directory, with programs that are shell scripts."""

    def __init__(self, root: Path) -> None:
        self.windows = Windows(root)
        self.windows.programs.mkdir(parents=True)
        self.users = self.windows.drive / "Users"
        for name in ("Public", "Default", "ada"):
            (self.users / name).mkdir(parents=True)
        (self.users / "desktop.ini").touch()

    def program(self, path: str, script: str) -> None:
        """Put a program below drive C."""
        file = self.windows.drive / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        file.chmod(0o755)


@pytest.fixture
def pc(tmp_path: Path) -> Pc:
    """Give a PC whose one account is `ada`."""
    return Pc(tmp_path / "mnt")


# The files.


def test_the_files_are_as_agreed_upon(tmp_path: Path) -> None:
    """Golden files: comments, foreign keys and indentation stay; `WRITE_GOLDEN=1` writes anew."""
    said("wsl", "render", *GIVEN, "--out", tmp_path / "out")
    for name, golden in ((".wslconfig", "wslconfig"), ("wsl.conf", "wsl.conf"), (FILE, "task.xml")):
        data = (tmp_path / "out" / name).read_bytes()
        text = data.decode("utf-16" if name == FILE else "utf-8")
        text = text.replace("\r\n", "\n")
        if os.environ.get("WRITE_GOLDEN"):
            (GOLDEN / golden).write_text(text, encoding="utf-8")
        assert text == (GOLDEN / golden).read_text(encoding="utf-8")


def test_the_task_is_in_the_encoding_that_windows_tools_want(tmp_path: Path) -> None:
    """UTF-16 with the mark of its byte order, and with line breaks of Windows."""
    said("wsl", "render", *GIVEN, "--out", tmp_path)
    data = (tmp_path / FILE).read_bytes()
    assert data.startswith((b"\xff\xfe", b"\xfe\xff"))
    assert data.decode("utf-16").startswith('<?xml version="1.0" encoding="UTF-16"?>\r\n<Task ')
    assert ET.fromstring(data).tag.endswith("Task")  # noqa: S314 - our own


def test_rendering_what_was_rendered_changes_nothing(tmp_path: Path) -> None:
    """Once the files are in place nothing is reported, and nothing written anew."""
    said("wsl", "render", *GIVEN, "--out", tmp_path)
    again = ("--wslconfig", tmp_path / ".wslconfig", "--wsl-conf", tmp_path / "wsl.conf", *NAMED)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    done = invoke("wsl", "render", *again, "--out", tmp_path)
    assert (done.code, done.err) == (0, "")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_every_change_is_told_with_its_reason() -> None:
    """What was set and why stands on stderr, beside the files on stdout."""
    done = invoke("wsl", "render", *GIVEN)
    assert "# ==> .wslconfig\n" in done.out
    assert "# ==> wsl.conf\n" in done.out
    assert f"# ==> {FILE}\n" in done.out
    changes = [line for line in done.err.splitlines() if line.startswith("servicekit: ")]
    assert [line.split(": ")[1:3] for line in changes] == [
        [".wslconfig", "[general] instanceIdleTimeout=-1, default 15000"],
        [".wslconfig", "[wsl2] vmIdleTimeout=-1, default 60000"],
        [".wslconfig", "[experimental] autoMemoryReclaim=disabled, default dropCache"],
        [".wslconfig", "[wsl2] networkingMode=nat, was mirrored"],
        ["wsl.conf", "[boot] systemd=true, default false"],
    ]


def test_a_key_can_be_left_as_it_is(tmp_path: Path) -> None:
    """Who needs mirrored networking keeps it; a key that would not be changed is a mistake."""
    said("wsl", "render", *GIVEN, "--keep", "networkingmode", "--out", tmp_path)
    assert "  networkingMode = mirrored\n" in (tmp_path / ".wslconfig").read_text()
    error = refused("wsl", "render", *GIVEN, "--keep", "networkMode")
    assert 'no key "networkMode" would be changed; did you mean "networkingMode"?' in error


def test_a_file_that_is_new_has_line_breaks_of_windows(tmp_path: Path) -> None:
    """A new .wslconfig can be opened with any editor of Windows; wsl.conf is Linux'."""
    empty = ("--wslconfig", "/dev/null", "--wsl-conf", "/dev/null", *NAMED)
    said("wsl", "render", *empty, "--out", tmp_path)
    config = (tmp_path / ".wslconfig").read_bytes()
    assert config.count(b"\r\n") == config.count(b"\n") > 0
    assert (tmp_path / "wsl.conf").read_bytes() == b"[boot]\nsystemd=true\n"


def test_a_file_keeps_its_encoding(tmp_path: Path) -> None:
    """What PowerShell wrote in UTF-16 is written back so."""
    (tmp_path / "config").write_text("[wsl2]\r\nmemory=8GB\r\n", encoding="utf-16", newline="")
    given = ("--wslconfig", tmp_path / "config", "--wsl-conf", "/dev/null", *NAMED)
    said("wsl", "render", *given, "--out", tmp_path / "out")
    text = (tmp_path / "out/.wslconfig").read_bytes().decode("utf-16")
    assert text.startswith("[wsl2]\r\nmemory=8GB\r\nvmIdleTimeout=-1\r\n")


def test_nothing_is_replaced_unasked(tmp_path: Path) -> None:
    """A file in the way, such as the one that was read, stops all of it unless --force."""
    config = tmp_path / ".wslconfig"
    config.write_text("[wsl2]\n", encoding="utf-8")
    given = ("--wslconfig", config, "--wsl-conf", "/dev/null", *NAMED, "--out", tmp_path)
    error = refused("wsl", "render", *given)
    assert f'"{config}" would be replaced; choose another DIR, or use --force' in error
    assert [file.name for file in tmp_path.iterdir()] == [".wslconfig"]
    assert config.read_text(encoding="utf-8") == "[wsl2]\n"
    said("wsl", "render", *given, "--force")
    assert "vmIdleTimeout=-1" in config.read_text(encoding="utf-8")


def test_the_steps_name_the_files_as_windows_and_linux_do(tmp_path: Path) -> None:
    """What puts the files in place can be pasted, also where a directory has a space."""
    out = tmp_path / "my files"
    text = said("wsl", "render", *GIVEN, "--out", out)
    share = rf"\\wsl.localhost\Ubuntu-24.04{str(out).replace('/', chr(92))}"
    assert f"Copy-Item -LiteralPath '{share}\\.wslconfig' -Destination $env:USERPROFILE" in text
    assert f"-Xml (Get-Content -Raw -LiteralPath '{share}\\{FILE}')" in text
    assert f"  cp '{out}/wsl.conf' /etc/wsl.conf\n" in text
    assert "Start-ScheduledTask -TaskName 'servicekit keeps Ubuntu-24.04 running'" in text


@pytest.mark.parametrize("option", ["--wslconfig", "--wsl-conf"])
def test_a_file_that_was_named_must_be_there(option: str, tmp_path: Path) -> None:
    """A mistyped path does not become an empty file."""
    error = refused("wsl", "render", *GIVEN, option, tmp_path / "not-there")
    assert f'"{tmp_path / "not-there"}" cannot be read: no such file or directory' in error


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """The reason is the system's, the name is the file's."""
    (tmp_path / "file").touch()
    error = refused("wsl", "render", *GIVEN, "--out", tmp_path / "file/out")
    assert 'cannot write "' in error


def test_outside_of_wsl_everything_must_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no Windows, each thing that is not found is said with its option."""
    monkeypatch.delenv("WSL_DISTRO_NAME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    own = tmp_path / "wsl.conf"
    own.write_text(f"[automount]\nroot={tmp_path}\n", encoding="utf-8")
    render = ("wsl", "render", "--wsl-conf", own)
    error = refused(*render)
    assert "give its path with --wslconfig FILE" in error
    error = refused(*render, "--wslconfig", "/dev/null")
    assert '"wslpath" is not installed; give it with --distribution NAME' in error
    error = refused(*render, "--wslconfig", "/dev/null", "--distribution", "Ubuntu")
    assert '"whoami.exe" is not installed; give it with --account NAME' in error


def test_inside_wsl_everything_is_found(
    pc: Pc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The account's own .wslconfig, its name, the distribution, and the client without a window."""
    (pc.users / "ada/.wslconfig").write_text("[wsl2]\r\nmemory=8GB\r\n", newline="")
    pc.program("Windows/System32/whoami.exe", r"printf 'pc\\ada\r\n'")
    pc.program("Program Files/WSL/wslg.exe", "")
    monkeypatch.setenv("WSL_DISTRO_NAME", "Debian")
    own = tmp_path / "wsl.conf"
    own.write_text(f"[automount]\nroot = {pc.windows.root}\n")
    out = pc.users / "ada/servicekit"
    text = said("wsl", "render", "--wsl-conf", own, "--out", out)
    assert (out / ".wslconfig").read_bytes().startswith(b"[wsl2]\r\nmemory=8GB\r\nvmIdle")
    assert (out / "wsl.conf").read_text().startswith(f"[automount]\nroot = {pc.windows.root}\n")
    task = (out / FILE).read_bytes().decode("utf-16")
    assert r"<UserId>pc\ada</UserId>" in task
    assert r"%ProgramFiles%\WSL\wslg.exe" in task
    assert rf"-LiteralPath 'C:\Users\ada\servicekit\{FILE}'" in text


def test_an_older_wsl_gets_the_client_that_it_has(pc: Pc, tmp_path: Path) -> None:
    """Without wslg.exe the task runs wsl.exe, and it is said that it shows a window."""
    conf = tmp_path / "wsl.conf"
    conf.write_text(f"[automount]\nroot={pc.windows.root}\n")
    done = invoke("wsl", "render", "--wsl-conf", conf, "--wslconfig", "/dev/null", *NAMED)
    assert "the task will show a console window" in done.err
    assert r"%SystemRoot%\System32\wsl.exe" in done.out


# Windows, as a distribution sees it.


def test_the_home_is_the_one_that_may_be_written(pc: Pc) -> None:
    """Folders that are nobody's are passed over; of several homes none is guessed."""
    assert pc.windows.home() == pc.users / "ada"
    (pc.users / "bob").mkdir()
    with pytest.raises(NoReplyError, match=r'"ada", "bob" can be written'):
        pc.windows.home()
    for name in ("ada", "bob"):
        (pc.users / name).rmdir()
    with pytest.raises(NoReplyError, match="none can be written"):
        pc.windows.home()


def test_windows_drives_are_where_wsl_conf_mounts_them() -> None:
    """`[automount] root` moves them; an empty one moves nothing."""
    assert windows({}).drive == Path("/mnt/c")
    assert windows({WslKey("automount", "root"): ""}).drive == Path("/mnt/c")
    assert windows({WslKey("automount", "root"): "/windows/"}).drive == Path("/windows/c")


def test_a_program_of_windows_that_is_mute_is_no_answer(pc: Pc) -> None:
    """An account has a backslash in it; anything else is not taken for one."""
    pc.program("Windows/System32/whoami.exe", "echo what")
    with pytest.raises(NoReplyError, match="does not print an account"):
        answer(pc.windows.account())


def test_a_task_is_asked_for_by_its_name(pc: Pc) -> None:
    """Windows prints a task as XML, and nothing on stdout where available: none."""
    pc.program("Windows/System32/schtasks.exe", '[ "$4" = "our task" ] && echo "<Task $*/>"')
    assert answer(pc.windows.task("our task")) == "<Task /Query /XML /TN our task/>"
    assert answer(pc.windows.task("another")) is None


@pytest.mark.parametrize(
    "path", ["\\\\wsl.localhost\\Debian\\", "//wsl$/Debian/", "\\\\wsl$\\Debian\r"]
)
def test_the_distribution_is_known_without_its_variable(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable says it; under sudo the name of `/` in Windows does."""
    assert answer(distribution({"WSL_DISTRO_NAME": "Ubuntu"})) == "Ubuntu"
    tool = tmp_path / "wslpath"
    tool.write_text(f"#!/bin/sh\nprintf '%s\\n' '{path}'\n", encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert answer(distribution({})) == "Debian"


def test_a_distribution_without_a_name_is_not_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence of WSL's tool is no name."""
    tool = tmp_path / "wslpath"
    tool.write_text("#!/bin/sh\n", encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(NoReplyError, match="does not print the name"):
        answer(distribution({}))


@pytest.mark.parametrize(
    ("path", "spelt"),
    [
        ("/mnt/c/Users/ada/x", r"C:\Users\ada\x"),
        ("/mnt/d", "D:\\"),
        ("/mnt", r"\\wsl.localhost\Debian\mnt"),
        ("/mnt/wsl/x", r"\\wsl.localhost\Debian\mnt\wsl\x"),
        ("/home/ada/x y", r"\\wsl.localhost\Debian\home\ada\x y"),
    ],
)
def test_a_path_has_a_name_in_windows(path: str, spelt: str) -> None:
    """What is on a drive of Windows is named by its letter, all else through WSL's share."""
    assert windows_path(PurePosixPath(path), PurePosixPath("/mnt"), "Debian") == spelt
