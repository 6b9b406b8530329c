"""Writes a software bill of materials of this environment: `python tools/sbom.py FILE`.

It is in CycloneDX's JSON format: servicekit with every package that it needs, directly or not.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).parents[1] / "pyproject.toml"


def write(file: Path) -> None:
    """Write the list of what is installed beside the running Python."""
    file.parent.mkdir(parents=True, exist_ok=True)
    program = Path(sys.executable).with_name("cyclonedx-py")
    options = ["--pyproject", str(PROJECT), "--output-reproducible", "--output-format", "JSON"]
    subprocess.run(
        [program, "environment", *options, "--output-file", file, sys.executable], check=True
    )


if __name__ == "__main__":
    write(Path(sys.argv[1]))
