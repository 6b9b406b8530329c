"""`servicekit doctor` where a real supervisord keeps the services."""

from __future__ import annotations

import importlib.metadata
import json
from typing import TYPE_CHECKING

import pytest
from unit.cli.cli_runs import servicekit

if TYPE_CHECKING:
    from machines.supervisor import Supervisor

pytestmark = pytest.mark.supervisord


def test_a_host_with_supervisord_is_understood(supervisord: Supervisor, free_port: int) -> None:
    """Its own version is told, and what only systemd has is skipped."""
    config = supervisord.home / "servicekit.toml"
    config.write_text(
        f'root = "{supervisord.home}"\nmanager = "supervisor"\n'
        f'supervisor_socket = "{supervisord.socket}"\nallow = ["here"]\n'
    )
    recipe = supervisord.home / "profiles.d/here.toml"
    recipe.parent.mkdir()
    recipe.write_text(f'extends = "demo"\nport = {free_port}\n')
    for file in (config, recipe):
        file.chmod(0o644)
    done = servicekit("--user", "--config", config, "doctor", "here", "--json")
    checks = {check["code"]: check for check in json.loads(done.out)["checks"]}
    version = importlib.metadata.version("supervisor")
    assert checks["manager"]["what"] == f"Supervisor {version} runs"
    for code in ("cgroups", "lingering", "journal", "journal-access", "gpu-containers"):
        assert checks[code]["verdict"] == "skip", checks[code]
    for code in ("manager", "kill-user-processes", "engine", "model", "port"):
        assert checks[code]["verdict"] == "ok", checks[code]
