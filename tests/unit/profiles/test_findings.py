"""Findings: where they are, in which line, and in which words."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicekit.profiles.findings import Finding, lines_of, place, syntax, texts, wording
from servicekit.text import did_you_mean, printable, shown

if TYPE_CHECKING:
    from servicekit.profiles.findings import Path

FILE = '''\
# a comment
summary = "one"

port = 1
list = [
    1, # with a comment

    2,
]
text = """
[no.table]
port = 2
"""
[context] # a table
requested = 5
probe.deadline = 3
inline = { a = 1, b = { c = 2 } }

  [deep."er table".still]
  x = 1
[[many]]
y = 2
[[many]]
y = 3
'''


def test_each_key_has_the_line_on_which_it_begins() -> None:
    """Values of many lines count from their first, and text that looks like TOML is text."""
    assert lines_of(FILE) == {
        ("summary",): 2,
        ("port",): 4,
        ("list",): 5,
        ("text",): 10,
        ("context",): 14,
        ("context", "requested"): 15,
        ("context", "probe"): 16,
        ("context", "probe", "deadline"): 16,
        ("context", "inline"): 17,
        ("context", "inline", "a"): 17,
        ("context", "inline", "b"): 17,
        ("context", "inline", "b", "c"): 17,
        ("deep", "er table", "still"): 19,
        ("deep", "er table", "still", "x"): 20,
        ("many",): 21,
        ("many", "y"): 22,
    }


KEYS = st.sampled_from(["a", "b", "c", "d e", "f"])
SCALARS = st.one_of(st.integers(), st.booleans(), st.text("ab[]=\"'\n# ", max_size=6))


def written(value: object) -> str:
    """Write a scalar as TOML, over several lines where that is possible."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"""\n{escaped}"""' if "\n" in escaped else f'"{escaped}"'


@given(
    st.dictionaries(KEYS, SCALARS, max_size=4),
    st.dictionaries(KEYS, st.dictionaries(KEYS, SCALARS, max_size=4), max_size=4),
)
def test_lines_agree_with_the_parser(top: dict[str, Any], tables: dict[str, Any]) -> None:
    """Every key that tomllib finds has a line, and that line is where we wrote it."""
    text, expected = "", {}
    for table, values in [("", top), *((f"t {name}", value) for name, value in tables.items())]:
        path: tuple[str, ...] = ()
        if table:
            path = (table,)
            expected[path] = text.count("\n") + 1
            text += f'["{table}"]\n'
        for key, value in values.items():
            expected[(*path, key)] = text.count("\n") + 1
            text += f'"{key}" = {written(value)}\n'
    tomllib.loads(text)
    assert lines_of(text) == expected


def test_a_finding_is_one_line_with_its_place() -> None:
    """The innermost table that the file has gives the line; without one there is none."""
    lines: dict[Path, int] = {("context",): 7, ("context", "minimum"): 9}
    finding = Finding(("context", "minimum"), "is wrong")
    assert finding.text(lines) == "line 9: context.minimum: is wrong"
    assert Finding(("context", "other"), "is wrong").line(lines) == 7
    assert Finding(("port",), "is missing").text(lines) == "port: is missing"
    assert Finding((), "is a directory").text(lines) == "is a directory"


def test_findings_come_in_the_order_of_the_file_and_once() -> None:
    """First what concerns the whole file, then line by line, then what has no line."""
    lines: dict[Path, int] = {("b",): 2, ("a",): 5}
    findings = [
        Finding(("missing",), "is missing"),
        Finding(("a",), "is wrong"),
        Finding(("b",), "is wrong"),
        Finding(("b",), "is wrong"),
        Finding((), "is not yours"),
    ]
    assert texts(findings, lines) == (
        "is not yours",
        "line 2: b: is wrong",
        "line 5: a: is wrong",
        "missing: is missing",
    )


@pytest.mark.parametrize(
    ("path", "spelt"),
    [
        ((), ""),
        (("port",), "port"),
        (("probe", "deadline"), "probe.deadline"),
        (("gpus", 0), "gpus[0]"),
        (("a b", "c"), '"a b".c'),
        (("a", "b\nc"), 'a."b\\nc"'),
    ],
)
def test_a_place_is_spelt_as_in_the_file(path: tuple[str | int, ...], spelt: str) -> None:
    """Keys are joined by dots, quoted where TOML wants it, and indexes are in brackets."""
    assert place(path) == spelt


def test_what_a_user_wrote_cannot_break_the_line() -> None:
    """Control characters are spelt out; a value is cut where it is long, a path never."""
    assert printable("a\x1b[31m\u202e") == "a\\x1b[31m\\u202e"
    assert printable("ü" * 100) == "ü" * 100
    assert shown("x" * 60) == "x" * 60
    assert shown("x" * 61) == "x" * 60 + "…"


def test_a_near_miss_is_guessed() -> None:
    """The closest known name is offered, and none where nothing is close."""
    assert did_you_mean("prot", ["host", "port"]) == '; did you mean "port"?'
    assert did_you_mean("zzz", ["host", "port"]) == ""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ({"type": "missing"}, "is missing"),
        ({"type": "string_type", "input": 1.5}, "must be text in quotes, not 1.5"),
        ({"type": "int_type", "input": [1]}, "must be a whole number, not an array"),
        ({"type": "float_type", "input": {}}, "must be a number, not a table"),
        ({"type": "bool_type", "input": "yes"}, "must be true or false, not text"),
        ({"type": "tuple_type", "input": False}, "must be an array, not false"),
        ({"type": "dict_type", "input": None}, "must be a table, not a date or time"),
        (
            {"type": "less_than_equal", "input": 10**12, "ctx": {"le": 5}},
            "must be at most 5, not a number that large",
        ),
        (
            {"type": "literal_error", "input": "c", "ctx": {"expected": "'ab' or 'd'"}},
            'must be one of "ab", "d", not "c"',
        ),
        (
            {"type": "literal_error", "input": 7, "ctx": {"expected": "'ab' or 'd'"}},
            'must be one of "ab", "d", not 7',
        ),
        ({"type": "other", "msg": "Input should be odd", "input": 1}, "must be odd"),
    ],
)
def test_every_kind_of_error_has_words(error: dict[str, Any], words: str) -> None:
    """What pydantic calls by a code is said in a sentence that reads behind the place."""
    assert wording({"input": None, **error}) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = [", "end of document: is not TOML: invalid value"),
        ("x =\n= 1", "line 1, column 4: is not TOML: invalid value"),
        ("x = " + "1" * 5000, "contains a number with too many digits"),
    ],
)
def test_a_syntax_error_says_where(text: str, words: str) -> None:
    """The parser's position comes first, as with every other finding."""
    with pytest.raises(ValueError) as error:  # noqa: PT011 - its text is what is tested
        tomllib.loads(text)
    assert syntax(error.value) == words
