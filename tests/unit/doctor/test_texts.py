"""What files and programs of a host say, as their own readers take it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicekit.doctor.look_profile import mounts
from servicekit.doctor.texts import (
    Mount,
    in_order,
    is_yes,
    leading_number,
    libraries,
    moment,
    mount_of,
    program_version,
    properties,
    seconds,
    settings,
    size,
    version_behind,
)


def test_properties_are_read_as_systemctl_prints_them() -> None:
    """A value may hold an equals sign; what is no property is passed over."""
    assert properties("Version=252.39-1\n\nFeatures=+PAM default-hierarchy=unified\nnone\n") == {
        "Version": "252.39-1",
        "Features": "+PAM default-hierarchy=unified",
    }


@pytest.mark.parametrize(("text", "number"), [("252.39-1~deb12u1", 252), ("v1", 0), ("", 0)])
def test_a_version_begins_with_its_number(text: str, number: int) -> None:
    """Distributions hang much behind it."""
    assert leading_number(text) == number


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("systemd 252 (252.38-1~deb12u1)\n+PAM", "252.38-1~deb12u1"),
        ("systemd 237\n+PAM", "237"),
        ("", "of unknown version"),
    ],
)
def test_the_version_of_a_program_is_its_whole_one(text: str, version: str) -> None:
    """Old ones tell the number alone."""
    assert program_version(text) == version


def test_a_moment_is_read_in_utc() -> None:
    """Only the form that was asked for is understood: no other time zone is guessed."""
    at = datetime(2026, 11, 30, 11, 0, 1, tzinfo=UTC)
    assert moment("Mon 2026-11-30 11:00:01 UTC") == at
    assert moment("Mon 2026-11-30 11:00:01 CET") is None
    assert moment("n/a") is None


def test_of_several_settings_the_last_one_counts() -> None:
    """Comments and other sections are passed over, and a line may go on."""
    main = "[Journal]\n#Storage=none\nStorage=auto\n[Other]\nStorage=none\n"
    drop_in = "; mine\n[Journal]\nStorage = volatile\nExclude=a \\\n b\nnonsense\n"
    assert settings((main, drop_in), "Journal") == {"Storage": "volatile", "Exclude": "a   b"}
    assert settings((), "Journal") == {}


def test_drop_ins_are_read_by_name_and_hide_their_namesakes() -> None:
    """One in /etc replaces that of the same name in /usr, at the place of its name."""
    files = [PurePosixPath(p) for p in ("/etc/x/50-b", "/run/x/10-a", "/usr/x/50-b", "/usr/x/9-z")]
    assert [str(file) for file in in_order(files)] == ["/run/x/10-a", "/etc/x/50-b", "/usr/x/9-z"]


@pytest.mark.parametrize(
    ("text", "span"),
    [("30s", 30), ("1min 30s", 90), ("0", 0), ("500ms", 0.5), ("2h", 7200), ("5 min", 300),
     ("soon", None), ("3 fortnights", None), ("", None), ("1.2.3s", None)],
)  # fmt: skip
def test_a_time_span_is_read(text: str, span: float | None) -> None:
    """As systemd writes them; what is none is no number."""
    assert seconds(text) == span


@pytest.mark.parametrize(
    ("text", "amount"),
    [("500M", 500 << 20), ("4G", 4 << 30), ("1024", 1024), ("", None), ("5%", None), ("M", None)],
)
def test_a_size_is_read(text: str, amount: int | None) -> None:
    """A share of the disk is no number of bytes."""
    assert size(text) == amount


def test_yes_has_many_words() -> None:
    """All of systemd's, in any case; nothing else is a yes."""
    assert all(map(is_yes, ("yes", "True", "on", "y", "t", "1")))
    assert not any(map(is_yes, ("no", "", "2", "yes!")))


MOUNTS = tuple(
    Mount(PurePosixPath(at), kind)
    for at, kind in (("/", "ext4"), ("/var/cache", "tmpfs"), ("/mnt", "ext4"), ("/mnt", "nfs4"))
)


def test_a_path_is_on_the_deepest_mount_and_of_those_on_the_last() -> None:
    """A mount over a mount hides it; a directory of a similar name is on another one."""
    for path, kind in (
        ("/home/ada", "ext4"),
        ("/var/cache/huggingface", "tmpfs"),
        ("/var/caches", "ext4"),
        ("/mnt/models", "nfs4"),
    ):
        found = mount_of(PurePosixPath(path), MOUNTS)
        assert found is not None
        assert found.kind == kind
    assert mount_of(PurePosixPath("/x"), [Mount(PurePosixPath("/y"), "ext4")]) is None


def test_this_machine_has_a_root() -> None:
    """The kernel's own table is understood."""
    found = mount_of(PurePosixPath("/"), mounts())
    assert found is not None
    assert found.at == PurePosixPath("/")


def test_the_loader_takes_the_first_library_of_64_bits() -> None:
    """`ldconfig -p` lists them in the order in which the loader looks."""
    listed = (
        "2 libs found in cache `/etc/ld.so.cache'\n"
        "\tlibcuda.so.1 (libc6) => /usr/lib32/libcuda.so.1\n"
        "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/wsl/lib/libcuda.so.1\n"
        "\tlibcuda.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libcuda.so.1\n"
        "\tlibc.so.6 (libc6,AArch64, OS ABI: Linux 3.7.0) => /lib/libc.so.6\n"
    )
    assert libraries(listed) == {
        "libcuda.so.1": "/usr/lib/wsl/lib/libcuda.so.1",
        "libc.so.6": "/lib/libc.so.6",
    }


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("/usr/lib/libnvidia-ml.so.580.95.05", "580.95.05"),
        ("libcuda.so.535.54", "535.54"),
        ("libnvidia-ml.so.1", None),
        ("", None),
    ],
)
def test_a_library_of_the_driver_carries_its_version(name: str, version: str | None) -> None:
    """The number of its interface is no version."""
    assert version_behind(name) == version


@given(st.text())
def test_whatever_a_program_prints_is_read(text: str) -> None:
    """No output makes a reader fail."""
    properties(text)
    settings((text,), "Journal")
    libraries(text)
    seconds(text)
    size(text)
    moment(text)
