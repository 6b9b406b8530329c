"""WSL's two files: read as WSL reads them, changed where wanted and nowhere else."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from servicekit.doctor.wsl.conf import WslKey, decode, encode, merge, read
from servicekit.doctor.wsl.wanted import ALL, WSL_CONF, WSLCONFIG, merged

MEMORY = WslKey("wsl2", "memory")
IDLE = WslKey("general", "instanceIdleTimeout")
MODE = WslKey("wsl2", "networkingMode")
OLD_MODE = WslKey("experimental", "networkingMode")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[wsl2]\nmemory=24GB", "24GB"),
        ("[WSL2]\n  MEMORY = 24GB  \n", "24GB"),
        ("[wsl2] # mine\r\nmemory=24GB # all\r\n", "24GB"),
        ("[wsl2]\n[general]\na=1\n[wsl2]\nmemory=24GB", "24GB"),
        ("[wsl2]\nmemory=24GB\nmemory=8GB", "24GB"),
        ("[wsl2]\nmemory=C:\\kernel\nmemory=24GB", "24GB"),
        ('[wsl2]\nmemory="no end\nmemory=24GB', "24GB"),
        ("[wsl2]\n; memory=8GB\nwhat is this\nmemory=24GB", "24GB"),
        ('[wsl2]\nmemory=" 24 # GB "', " 24 # GB "),
        ("[wsl2]\nmemory=C:\\\\vm\\tx", "C:\\vm\tx"),
        ("[wsl2]\nmemory=24\\\nGB", "24GB"),
        ("[wsl2]\nmemory=", ""),
        ("memory=24GB", None),
        ("#[wsl2]\nmemory=24GB", None),
        ("[wsl2]\n#memory=24GB", None),
        ("[general]\nmemory=24GB", None),
        ("[wsl2]\nmemory", None),
        ("[wsl2]\nmemory.size=24GB", None),
        ("[wsl 2]\nmemory=24GB", None),
        ("", None),
    ],
)
def test_a_file_says_what_wsl_takes_from_it(text: str, value: str | None) -> None:
    """Names are compared without case, the first line for a key counts, bad lines do not."""
    assert read(text).get(MEMORY.folded) == value


@pytest.mark.parametrize(
    ("before", "key", "value", "after"),
    [
        ("", MEMORY, "1", "[wsl2]\nmemory=1\n"),
        ("[wsl2]\nmemory=2 # two\n", MEMORY, "1", "[wsl2]\nmemory=1 # two\n"),
        ("[wsl2]\n\tMemory =\t2\t\r\n", MEMORY, "1", "[wsl2]\n\tMemory =\t1\t\r\n"),
        ("[wsl2]\nmemory=2\nmemory=3\n", MEMORY, "1", "[wsl2]\nmemory=1\nmemory=3\n"),
        ("[wsl2]\nmemory=\n", MEMORY, "1", "[wsl2]\nmemory=1\n"),
        ("[wsl2]\nswap=0\n\n# x\n[x]\n", MEMORY, "1", "[wsl2]\nswap=0\nmemory=1\n\n# x\n[x]\n"),
        ("[wsl2]\r\nswap=0\r\n\r\n[x]", MEMORY, "1", "[wsl2]\r\nswap=0\r\nmemory=1\r\n\r\n[x]"),
        ("[wsl2] # mine", MEMORY, "1", "[wsl2] # mine\nmemory=1"),
        ("# nothing", MEMORY, "1", "# nothing\n\n[wsl2]\nmemory=1\n"),
        ("[x]\ny=1\n", MEMORY, "1", "[x]\ny=1\n\n[wsl2]\nmemory=1\n"),
        ("[a]\n[wsl2]\ns=1\n[b]\n[wsl2]\nt=2\n", MEMORY, "1",
         "[a]\n[wsl2]\ns=1\n[b]\n[wsl2]\nt=2\nmemory=1\n"),
        ("[wsl2]\nmemory=2\\\n3\nx=1\n", MEMORY, "1", "[wsl2]\nmemory=1\nx=1\n"),
    ],
)  # fmt: skip
def test_a_setting_is_changed_where_it_is_or_added_where_its_section_ends(
    before: str, key: WslKey, value: str, after: str
) -> None:
    """Its line keeps its indentation and its comment, the file its kind of line breaks."""
    assert merge(before, key, value) == after


def test_a_setting_is_changed_where_it_counts_under_another_name() -> None:
    """WSL takes the networking mode from two places, whichever comes first."""
    text = "[experimental]\nnetworkingMode=mirrored\n[wsl2]\nnetworkingMode=nat\n"
    after = merge(text, MODE, "nat", aliases=(OLD_MODE,))
    assert after == "[experimental]\nnetworkingMode=nat\n[wsl2]\nnetworkingMode=nat\n"


PIECES = st.sampled_from(
    [
        *("[wsl2]", "[General]", "[boot]", "[experimental]", "[x]", "[bad", "]"),
        *("memory", "vmIdleTimeout", "systemd", "=", " = ", "-1", "0", "true", "mirrored"),
        *("\n", "\n", "\n", "\r\n", "# note", "; note", " ", "\t", '"', "\\", "\\\n", "ä"),
    ]
)
FILES = st.lists(PIECES, max_size=30).map("".join)
KEYS = st.sampled_from([MEMORY, IDLE, MODE, WslKey("boot", "systemd")])
VALUES = st.sampled_from(["-1", "true", "nat", "disabled", "24GB"])


@given(FILES, KEYS, VALUES)
@example("[wsl2]\nmemory=1\\", MEMORY, "2")
@example("[boot]\\\n", WslKey("boot", "systemd"), "true")
@example("[wsl2]\nmemory=1\\", IDLE, "-1")
def test_whatever_is_there_the_setting_is_read_back(text: str, key: WslKey, value: str) -> None:
    """After a merge WSL takes the new value, and takes of every other key what it took before."""
    before, after = read(text), read(merge(text, key, value))
    assert after.get(key.folded) == value
    assert {k: v for k, v in after.items() if k != key.folded} == {
        k: v for k, v in before.items() if k != key.folded
    }


@given(FILES, KEYS, VALUES)
def test_nothing_but_one_value_or_one_line_is_touched(text: str, key: WslKey, value: str) -> None:
    """What is cut out of the old file and put into the new one is one value, or one new line."""
    new = merge(text, key, value)
    begin = next((i for i, (a, b) in enumerate(zip(text, new, strict=False)) if a != b), len(text))
    rest = 0
    while rest < min(len(text), len(new)) - begin and text[-1 - rest] == new[-1 - rest]:
        rest += 1
    removed = text[begin : len(text) - rest]
    if key.folded in read(text):
        assert "\n" not in removed.replace("\\\n", "")
    else:
        assert removed == ""


@given(FILES, KEYS, VALUES)
def test_a_second_merge_changes_nothing(text: str, key: WslKey, value: str) -> None:
    """Rendering what was rendered gives the same file."""
    once = merge(text, key, value)
    assert merge(once, key, value) == once


@given(FILES, st.sampled_from([WSLCONFIG, WSL_CONF]))
def test_a_rendered_file_holds_all_that_is_wanted_and_stays_as_it_is(text: str, name: str) -> None:
    """Everything that a service needs of a file is in it, and it is not changed again."""
    made = merged(name, text)
    assert all(wanted.holds(read(made.text)) for wanted in ALL if wanted.file == name)
    assert merged(name, made.text).changed == ()
    assert merged(name, made.text).text == made.text


def test_what_does_already_is_left_alone() -> None:
    """Any negative time is for ever, any spelling of true is true; neither line is rewritten."""
    conf = "[boot]\nsystemd=TRUE\n"
    config = (
        "[general]\ninstanceIdleTimeout=-5\n[wsl2]\nvmIdleTimeout=-0x1\n"
        "[experimental]\nautoMemoryReclaim=Disabled\n"
    )
    assert merged(WSL_CONF, conf).text == conf
    assert merged(WSLCONFIG, config).text == config


def test_a_networking_mode_is_changed_only_where_it_is_mirrored() -> None:
    """The default is not written down, `none` is somebody's decision, mirrored breaks loopback."""
    assert "networkingMode" not in merged(WSLCONFIG, "").text
    assert "networkingMode=none" in merged(WSLCONFIG, "[wsl2]\nnetworkingMode=none\n").text
    text = "[experimental]\nnetworkingMode=Mirrored\n"
    assert merged(WSLCONFIG, text).text.startswith("[experimental]\nnetworkingMode=nat\n")
    kept = merged(WSLCONFIG, text, keep={"networkingmode"}).text
    assert kept.startswith(text)


@pytest.mark.parametrize("value", ["soon", "", "60000", "0", "-"])
def test_a_time_that_comes_is_replaced(value: str) -> None:
    """What is no negative number lets WSL stop the distribution."""
    made = merged(WSLCONFIG, f"[general]\ninstanceIdleTimeout={value}\n")
    assert read(made.text)[IDLE.folded] == "-1"
    assert made.changed[0][1] == value


@given(st.text())
def test_a_file_is_written_in_the_encoding_that_it_was_read_in(text: str) -> None:
    """Windows' editors leave three encodings; none is changed, and no byte is lost."""
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        data = text.encode(encoding, errors="surrogatepass") if text.isascii() else b"[wsl2]\n"
        assert encode(*decode(data)) == data


@given(st.binary())
def test_bytes_that_are_no_text_survive(data: bytes) -> None:
    """A file in some old code page keeps its comments."""
    if not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        assert encode(*decode(data)) == data
