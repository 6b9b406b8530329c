"""Work done apart, and the profile that comes back from it."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from servicekit.errors import ExitCode, ProfileError, UserError
from servicekit.host.apart import Apart
from servicekit.places import system_places
from servicekit.profiles.catalog import Catalog
from servicekit.profiles.model import plain
from servicekit.profiles.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from servicekit.profiles.model import Profile

CATALOG = Catalog(Settings(), system_places())
LOAD = """
import pickle, sys
profile = pickle.load(sys.stdin.buffer)
print(profile.context.floor, profile.unit, "pydantic" in sys.modules)
"""


def test_what_work_loads_is_gone_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result arrives, and the module that made it is not here."""
    (tmp_path / "loaded_by_work.py").write_text("ANSWER = 42\n")
    monkeypatch.syspath_prepend(tmp_path)

    def work() -> int:
        return int(importlib.import_module("loaded_by_work").ANSWER)

    assert Apart(work).result() == 42
    assert "loaded_by_work" not in sys.modules


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (UserError("cannot", hint="do", code=ExitCode.UNAVAILABLE), ExitCode.UNAVAILABLE),
        (ProfileError("here", ["this", "that"]), ExitCode.CONFIG),
    ],
)
def test_a_refusal_is_raised_where_the_result_is_wanted(raised: UserError, code: ExitCode) -> None:
    """A user's mistake keeps its words and its exit code."""

    def work() -> None:
        raise raised

    with pytest.raises(UserError) as caught:
        Apart(work).result()
    assert (str(caught.value), caught.value.code) == (str(raised), code)


def test_a_bug_is_told_by_the_child_and_missed_by_the_parent(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A traceback of the work itself is printed, and there is no result."""

    def work() -> None:
        raise LookupError("a bug")

    with pytest.raises(RuntimeError, match="has failed"):
        Apart(work).result()
    assert "LookupError: a bug" in capfd.readouterr().err


def compare(twin: Any, section: BaseModel) -> None:  # noqa: ANN401 - any section's twin
    """See that every attribute and property of a section is in its twin."""
    properties = [
        name
        for kind in type(section).mro()
        if kind is not BaseModel and issubclass(kind, BaseModel)
        for name, member in vars(kind).items()
        if isinstance(member, property)
    ]
    for name in (*type(section).model_fields, *properties):
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            compare(getattr(twin, name), value)
        else:
            assert getattr(twin, name) == value, name


@pytest.mark.parametrize("name", CATALOG.names())
def test_a_twin_says_all_that_its_profile_says(name: str) -> None:
    """Every value of every built-in profile is the same in its twin."""
    compare(plain(CATALOG.get(name)), CATALOG.get(name))


def test_a_twin_is_read_without_pydantic() -> None:
    """A process that never loads pydantic can take the twin and read it."""
    profile: Profile = CATALOG.get("demo")
    said = subprocess.run(
        [sys.executable, "-c", LOAD],
        input=pickle.dumps(plain(profile)),
        stdout=subprocess.PIPE,
        check=True,
    ).stdout.decode()
    assert said.split() == [str(profile.context.floor), "servicekit-demo", "False"]
