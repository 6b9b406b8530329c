"""ARCHITECTURE.md says of the code only what the code does."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import servicekit

ROOT = Path(__file__).parents[3]
PACKAGE = Path(servicekit.__file__).parent


def test_the_documented_transitions_are_those_of_the_code() -> None:
    """The matrix in ARCHITECTURE.md is what `step` does: `python tools/transitions.py --write`."""
    tool = runpy.run_path(str(ROOT / "tools/transitions.py"))
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert tool["documented"](text) == tool["table"]()


def test_every_module_is_in_the_table_and_nothing_else() -> None:
    """Whoever looks for a module finds it in ARCHITECTURE.md, and none that is not there."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition("## Modules")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?) \|", section, re.MULTILINE)
    documented = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    modules = {path.stem for path in PACKAGE.glob("[!_]*.py")}
    packages = {path.parent.name for path in PACKAGE.glob("[!_]*/__init__.py")}
    # `templates` and `units` are directories beside the package; installed, they are within it.
    assert sorted(documented) == sorted((modules | packages) - {"templates", "units"})
