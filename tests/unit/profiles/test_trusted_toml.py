"""Files that decide what runs are believed only where nobody else can have written them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from servicekit.places import Scope
from servicekit.profiles import trusted_toml

if TYPE_CHECKING:
    from pathlib import Path

ME = frozenset({os.geteuid()})
NOT_ME = frozenset({54321})
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Give a small file in a directory of its own, both believed."""
    directory = tmp_path / "d"
    directory.mkdir(mode=0o755)
    written = directory / "x.toml"
    written.write_text('a = 1\n[b]\nc = "d"\n')
    written.chmod(0o644)
    return written


def findings(path: Path, believed: frozenset[int] = ME) -> list[str]:
    """Say what is wrong with `path`."""
    return [finding.text({}) for finding in trusted_toml.read(path, believed).findings]


def test_a_believed_file_is_data_with_lines(file: Path) -> None:
    """A file of ours that only we may write is what it says."""
    said = trusted_toml.read(file, ME)
    assert said.data == {"a": 1, "b": {"c": "d"}}
    assert said.lines[("b", "c")] == 3
    assert said.findings == ()


@pytest.mark.parametrize(
    ("mode", "who"),
    [(0o664, "its group"), (0o646, "everyone"), (0o666, "its group and everyone")],
)
def test_a_file_that_others_may_write_is_not_believed(file: Path, mode: int, who: str) -> None:
    """The finding says who else may write, and the command that mends it."""
    file.chmod(mode)
    assert findings(file) == [f"is writable by {who}; run `chmod go-w {file}`"]


def test_a_directory_that_others_may_write_is_not_believed(file: Path) -> None:
    """Whoever may write to a directory may put another file in the place of ours."""
    file.parent.chmod(0o775)
    where = f'is in "{file.parent}", which is writable by its group'
    assert findings(file) == [f"{where}; run `chmod go-w {file.parent}`"]


@needs_root
def test_a_file_of_somebody_else_is_not_believed(file: Path) -> None:
    """It does not matter what the other user may write now: they may change the mode, too."""
    os.chown(file, 65534, -1)
    assert findings(file) == ['is owned by "nobody", not by "root"']
    os.chown(file, 54321, -1)
    assert findings(file, frozenset({0, 65534})) == [
        'is owned by user id 54321, not by "root" or "nobody"'
    ]


def test_faults_of_trust_and_of_content_are_told_together(file: Path) -> None:
    """One look at the findings is enough to mend the file."""
    file.write_text("a = \n")
    file.chmod(0o666)
    found = findings(file, NOT_ME)
    assert len(found) == 4
    assert [f'"{file.parent}"' in line for line in found] == [True, False, False, False]
    assert found[-1] == "line 1, column 5: is not TOML: invalid value"


def test_a_link_is_as_good_as_every_directory_on_its_way(file: Path, tmp_path: Path) -> None:
    """Three directories can decide what a chain of two links leads to."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "first").mkdir()
    (tmp_path / "open" / "second.toml").symlink_to("../d/x.toml")
    link = tmp_path / "first" / "x.toml"
    link.symlink_to(tmp_path / "open" / "second.toml")
    said = trusted_toml.read(link, ME)
    assert said.data["a"] == 1
    where = [finding.message.partition(",")[0] for finding in said.findings]
    assert where == [f'is in "{tmp_path}/open"']
    file.chmod(0o666)
    assert f"is writable by its group and everyone; run `chmod go-w {link}`" in findings(link)


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    """A directory, a loop of links and a pipe are findings and keep nobody waiting."""
    directory, loop, pipe = tmp_path / "a.toml", tmp_path / "b.toml", tmp_path / "c.toml"
    directory.mkdir()
    loop.symlink_to(loop)
    os.mkfifo(pipe)
    assert findings(directory) == ["cannot be read: is a directory"]
    assert findings(loop) == ["cannot be read: too many levels of symbolic links"]
    assert findings(pipe) == ["is not a regular file"]


def test_a_missing_file_is_for_the_caller(tmp_path: Path) -> None:
    """Only the caller knows whether a file that is not there is a fault."""
    for missing in (tmp_path / "none.toml", tmp_path / "none" / "x.toml"):
        with pytest.raises(FileNotFoundError):
            trusted_toml.read(missing, ME)


def test_a_file_beyond_reason_is_not_parsed(file: Path) -> None:
    """Sixty-four KiB is more than a person writes, and one byte more is refused."""
    file.write_bytes(b"#" * trusted_toml.LARGEST)
    assert findings(file) == []
    file.write_bytes(b"#" * (trusted_toml.LARGEST + 1))
    assert findings(file) == ["is larger than 64 KiB"]


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (b"\xef\xbb\xbfa = 1\r\n", []),
        (b"a = 1\n# \xfc\n", ["line 2: is not UTF-8"]),
        (b"a = " + b"[" * 5000, ["is nested too deeply"]),
        (b".".join([b"a"] * 5000) + b" = 1", ["is nested too deeply"]),
        (b"a = 1\na = 2\n", ["line 2, column 6: is not TOML: cannot overwrite a value"]),
    ],
)
def test_bytes_are_toml_or_a_finding(raw: bytes, found: list[str]) -> None:
    """No bytes whatever lead to a traceback."""
    assert [finding.text({}) for finding in trusted_toml.parse(raw).findings] == found


def test_who_is_believed() -> None:
    """For the machine's services root alone, for a user's own the user as well."""
    assert trusted_toml.owners(Scope.SYSTEM) == {0}
    assert trusted_toml.owners(Scope.USER) == {0, os.geteuid()}
