"""The bill of materials is complete."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import requires, version
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]


def needed(package: str, extras: tuple[str, ...] = ("",)) -> Iterator[str]:
    """Name every package that `package` needs here, directly or not."""
    for line in requires(package) or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
            yield canonicalize_name(requirement.name)
            yield from needed(requirement.name, tuple(requirement.extras) or ("",))


def test_every_dependency_is_listed_with_its_version(tmp_path: Path) -> None:
    """All that an installation of servicekit brings is in the bill, as it is installed here."""
    file = tmp_path / "sbom.json"
    subprocess.run(
        [sys.executable, ROOT / "tools/sbom.py", file],
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=100,
    )
    bill = json.loads(file.read_text(encoding="utf-8"))
    assert bill["bomFormat"] == "CycloneDX"
    listed = {canonicalize_name(each["name"]): each["version"] for each in bill["components"]}
    expected = {name: version(name) for name in needed("servicekit")}
    assert {"typer", "httpx", "structlog", "h11", "pydantic-core"} <= expected.keys()
    assert expected.items() <= listed.items()
