"""An install makes the directories that no service manager makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

from plans import SYSTEM, USER

from servicekit.install.installation import directories
from servicekit.install.transaction import Directory
from servicekit.profiles.vocabulary import ManagerName

CACHE = PurePosixPath("/srv/weights")


def test_systemd_makes_the_usual_directories_itself() -> None:
    """Neither the system's nor a user's services need any of an install."""
    assert list(directories(SYSTEM, "demo", ManagerName.SYSTEMD, "servicekit")) == []
    assert list(directories(USER, "demo", ManagerName.SYSTEMD, None)) == []


def test_a_directory_that_the_settings_moved_is_made() -> None:
    """systemd would make it in its usual place only; the service owns it there, too."""
    moved = replace(SYSTEM, cache=CACHE)
    made = list(directories(moved, "demo", ManagerName.SYSTEMD, "servicekit"))
    assert made == [Directory(CACHE, 0o755, "servicekit")]


def test_under_supervisor_every_directory_is_made() -> None:
    """The log's belongs to Supervisor, which opens it; the others to the service."""
    made = directories(SYSTEM, "demo", ManagerName.SUPERVISOR, "servicekit")
    owners = {str(directory.path): directory.owner for directory in made}
    assert owners == {
        "/var/log/servicekit": None,
        "/var/lib/servicekit/demo": "servicekit",
        "/run/servicekit/demo": "servicekit",
        "/var/cache/servicekit": "servicekit",
    }
