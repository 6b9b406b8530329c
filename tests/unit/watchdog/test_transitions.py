"""docs/transitions.md shows what the watchdog's code does."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["transitions", "deadlines"])
def test_the_documented_tables_are_those_of_the_code(name: str) -> None:
    """The page shows what `step` does; `python tools/transitions.py --write` updates it."""
    tool = runpy.run_path(str(ROOT / "tools/transitions.py"))
    text = (ROOT / "docs/transitions.md").read_text(encoding="utf-8")
    assert tool["documented"](text, name) == tool["TABLES"][name]()
