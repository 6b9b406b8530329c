"""A fresh Debian or Ubuntu, of the same release as this machine, as a new user's host would be.

It is made of packages from the mirror that apt uses here, and nothing of it was ever booted.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from machines.systemd import Machine, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES = ("systemd-sysv", "dbus", "python3", "libgomp1", "libstdc++6")
"""Beyond the essential ones: an init, what a login needs, Python, and what llama.cpp links to."""
LIMIT = 600.0
"""Seconds for fetching and unpacking them; half a minute is usual."""


def _release() -> str:
    return platform.freedesktop_os_release()["VERSION_CODENAME"]


def _sources() -> str:
    """Give apt's own sources of this release, in its one-line form."""
    said = subprocess.run(
        [
            *["apt-get", "indextargets", "Created-By: Packages", f"Release: {_release()}"],
            *["--format", "deb $(REPO_URI) $(RELEASE) $(COMPONENT)"],
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return "".join(sorted({f"{line}\n" for line in said.splitlines()}))


@pytest.fixture
def fresh_debian() -> Iterator[Machine]:
    """Give a machine that is switched off, one test's own, and a Debian without servicekit."""
    if reason := why_not():
        pytest.skip(reason)
    if shutil.which("mmdebstrap") is None:
        pytest.skip("making a fresh Debian needs mmdebstrap")
    home = Path(tempfile.mkdtemp(prefix="debian-"))
    image = home / "image"
    try:
        made = subprocess.run(
            [
                *["mmdebstrap", "--mode=root", "--variant=essential"],
                *[f"--include={','.join(PACKAGES)}", _release(), str(image), "-"],
            ],
            input=_sources(),
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
        assert made.returncode == 0, made.stderr
        machine = Machine(image)
        try:
            yield machine
        finally:
            machine.remove()
    finally:
        shutil.rmtree(home)
