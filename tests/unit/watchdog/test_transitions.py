"""ARCHITECTURE.md says of the code only what the code does."""

from __future__ import annotations

import re
import runpy
from importlib import import_module
from pathlib import Path

import pytest

import servicekit

ROOT = Path(__file__).parents[3]
PACKAGE = Path(servicekit.__file__).parent


@pytest.mark.parametrize("name", ["transitions", "deadlines"])
def test_the_documented_tables_are_those_of_the_code(name: str) -> None:
    """What ARCHITECTURE.md says is what `step` does: `python tools/transitions.py --write`."""
    tool = runpy.run_path(str(ROOT / "tools/transitions.py"))
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert tool["documented"](text, name) == tool["TABLES"][name]()


def test_the_worked_example_names_real_code() -> None:
    """Every name of a function, type or constant in the example exists in the module it gives."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    example = text.partition("### How an engine hangs and is restarted")[2].partition("\n## ")[0]
    names = re.findall(r"`([a-z_]+)\.([A-Za-z_]+)((?:\.[a-z_]+)*)`", example)
    assert len(names) > 10
    for module, name, more in names:
        found = getattr(import_module(f"servicekit.watchdog.{module}"), name)
        for part in filter(None, more.split(".")):
            # A field of a dataclass with slots is a descriptor of the class, as a method is.
            found = getattr(found, part)
        assert found is not None


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
