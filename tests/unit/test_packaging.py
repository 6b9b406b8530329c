"""What is in the tree is in the distribution."""

from __future__ import annotations

import tomllib
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAPPED = {"servicekit.templates": "templates", "servicekit.units": "units"}


def test_every_package_is_listed() -> None:
    """Each folder of modules is listed, since setuptools looks for none beside a mapped one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = {
        ".".join(folder.parent.relative_to(ROOT).parts)
        for folder in (ROOT / "servicekit").rglob("__init__.py")
    }
    assert set(project["tool"]["setuptools"]["packages"]) == found | MAPPED.keys()


@pytest.mark.parametrize(
    ("package", "folder"),
    [("servicekit", "servicekit"), *MAPPED.items()],
)
def test_every_data_file_is_shipped(package: str, folder: str) -> None:
    """Each file of the tree that is not a module is found as a resource of its package."""
    installed = files(package)
    for file in (ROOT / folder).rglob("*"):
        if file.is_file() and file.suffix not in {".py", ".pyc"}:
            resource = installed.joinpath(*file.relative_to(ROOT / folder).parts)
            assert resource.is_file(), f"{package} lacks {file.relative_to(ROOT)}"


def test_console_scripts() -> None:
    """The two programs are installed by name."""
    scripts = {entry.name for entry in distribution("servicekit").entry_points}
    assert scripts == {"servicekit", "servicekit-llama-server"}


def test_pins_name_no_registry() -> None:
    """The pins are names and versions alone, so that they hold wherever packages come from."""
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        assert "==" in line.partition(";")[0]
        assert "/" not in line
