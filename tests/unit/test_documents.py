"""The documents for contributors name only what exists."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

import servicekit

ROOT = Path(__file__).parents[2]
PACKAGE = Path(servicekit.__file__).parent


def prose(name: str) -> str:
    """Read a document without its fenced blocks."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def exists(path: str, siblings: set[Path]) -> bool:
    """Whether `path` is a file, a directory or a module; a bare file name may be a sibling's."""
    places = [ROOT / path, PACKAGE / path, PACKAGE / f"{path}.py"]
    places += [directory / path for directory in siblings]
    return any(place.exists() for place in places)


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "STYLE.md"])
def test_every_path_that_is_named_exists(name: str) -> None:
    """Each path, module and link in the document leads to a file or a directory."""
    text = prose(name)
    paths = re.findall(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:py|toml|md))`", text)
    links = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    siblings = {(ROOT / path).parent for path in paths if (ROOT / path).is_file()}
    assert len(paths) >= 5
    assert [path for path in (*paths, *links) if not exists(path, siblings)] == []


def test_every_module_in_the_table_exists() -> None:
    """A name in the row of a package is one of its modules or subpackages."""
    section = prose("ARCHITECTURE.md").partition("## Modules")[2]
    rows = re.findall(r"^\| (`.+?) \| (.+?) \|$", section, re.MULTILINE)
    assert len(rows) > 8
    missing = []
    for packages, contents in rows:
        names = re.findall(r"`(\w+)`", contents)
        directories = {PACKAGE / package for package in re.findall(r"`(\w+)`", packages)}
        missing += [name for name in names if not any(_holds(each, name) for each in directories)]
    assert missing == []


def _holds(directory: Path, name: str) -> bool:
    return (directory / f"{name}.py").is_file() or (directory / name / "__init__.py").is_file()


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


def test_the_table_names_every_package_and_nothing_else() -> None:
    """The first column of the table in ARCHITECTURE.md names all packages, and nothing else."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition("## Modules")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?) \|", section, re.MULTILINE)
    documented = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    modules = {path.stem for path in PACKAGE.glob("[!_]*.py")}
    packages = {path.parent.name for path in PACKAGE.glob("[!_]*/__init__.py")}
    # `templates` and `units` are directories beside the package; installed, they are within it.
    assert sorted(documented) == sorted((modules | packages) - {"templates", "units"})
