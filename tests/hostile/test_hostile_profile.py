"""A hostile profile is shown for what it is."""

from __future__ import annotations

from plans import SYSTEM, plan, profile

from servicekit.engines.base import InstalledEngine
from servicekit.profiles.vocabulary import ManagerName
from servicekit.service.check import check
from servicekit.service.host import survey

WEAKER = {
    "service": {"user": "root", "read_write": ["/etc"], "without": ["NoNewPrivileges"]},
    "environment": {"LD_PRELOAD": "/opt/evil.so"},
}


def test_each_weakening_is_listed_with_its_consequence() -> None:
    """`check` warns of an engine that runs as root, writes to /etc, or loads other code."""
    weak = profile("demo", **WEAKER)
    remarks = {
        each.message.partition(";")[0]
        for each in check(weak, plan(weak), InstalledEngine()).remarks
        if each.level == "warning"
    }
    assert remarks >= {
        "the engine and the model's code run as root",
        'the engine can write below "/etc"',
        "the unit leaves out NoNewPrivileges=",
        "LD_PRELOAD makes the engine load code from elsewhere: /opt/evil.so",
    }


def test_an_install_warns_of_each_weakening() -> None:
    """What an install finds on the host includes what the profile takes from its protection."""
    found = survey(
        profile("demo", **WEAKER),
        SYSTEM,
        command=("/usr/bin/servicekit",),
        manager=ManagerName.SYSTEMD,
        user="root",
        excluded=(),
        path="/usr/bin",
    )
    assert sum(each.startswith(("service.", "environment: ")) for each in found.warnings) == 4
