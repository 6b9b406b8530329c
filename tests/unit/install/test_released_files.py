"""Files that version 0.1.0 left on a host, as `tests/golden/0.1.0` keeps them, read by this one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path, PurePosixPath

import pytest

from servicekit.errors import ExitCode
from servicekit.lab.bench.result import BenchResult
from servicekit.lab.verify.record import Verification
from servicekit.places import Scope
from servicekit.profiles.catalog import Catalog
from servicekit.profiles.settings import load_settings, places_of
from servicekit.service.manifest import from_json, sha256
from servicekit.watchdog import history, ledger
from servicekit.watchdog.adopted import AdoptedProcesses
from servicekit.watchdog.ledger import Kind
from servicekit.watchdog.publish import read_state

RELEASED = Path(__file__).parents[2] / "golden/0.1.0"


def text(name: str) -> str:
    """The text of a file of the release."""
    return (RELEASED / name).read_text(encoding="utf-8")


def test_a_manifest_knows_its_files() -> None:
    """What was written is told from what was changed by hand, and an uninstall finds all of it."""
    manifest = from_json(text("manifest.json"), where="test")
    assert (manifest.profile, manifest.servicekit, manifest.port) == ("night", "0.1.0", 18990)
    assert {str(file.path): file.sha256 for file in manifest.files} == {
        "/srv/llm/wrappers/night": sha256(text("wrapper").encode()),
        "/srv/llm/supervisor.d/servicekit-night.conf": sha256(text("supervisor.conf").encode()),
    }
    assert PurePosixPath("/srv/llm/wrappers") in manifest.directories


def test_a_state_is_read() -> None:
    """The last state of a watchdog of that version, which does not name its version."""
    state = read_state(RELEASED / "state.json")
    assert state is not None
    assert (state.profile, state.state, state.code) == ("night", "failed", 75)
    assert (state.cause, state.port, state.servicekit) == ("outside-kill", 18990, "0.1.0")


def test_a_history_is_read() -> None:
    """Its runs, and with them the hold-off and the expected time of a start."""
    records = ledger.read(RELEASED / "history.jsonl")
    assert [record.kind for record in records] == [
        *(Kind.STARTED, Kind.LAUNCHED, Kind.READY),
        *(Kind.SIGNAL, Kind.FAULT, Kind.GONE),
    ]
    (run,) = history.runs(records)
    assert run.code == ExitCode.TEMPFAIL
    assert history.eta(records) == pytest.approx(0.553, abs=0.001)


def test_adopted_processes_are_found_under_their_old_name(tmp_path: Path) -> None:
    """A process that a killed watchdog of that version had written down is still ended."""
    shutil.copy(RELEASED / "kin.json", tmp_path)
    noted = json.loads(text("kin.json"))
    found = AdoptedProcesses(
        tmp_path / "adopted.json",
        boot_id=noted["boot_id"],
        pid1_started=noted["pid1_started"],
    )
    assert found.known == {(4711, 386222)}


def test_a_verification_and_a_benchmark_are_read() -> None:
    """What was measured stays comparable."""
    verification = Verification.parse(text("verification.json"))
    assert verification is not None
    assert verification.fingerprint.servicekit == "0.1.0"
    result = BenchResult.parse(text("bench.json"), where="test")
    assert result.engine == "sglang"


def test_a_profile_is_read(tmp_path: Path) -> None:
    """A profile that version accepted is accepted."""
    (tmp_path / "profiles.d").mkdir()
    shutil.copy(RELEASED / "night.toml", tmp_path / "profiles.d")
    config = tmp_path / "servicekit.toml"
    config.write_text(f'root = "{tmp_path}"\nallow = ["night"]\n')
    for file in (config, tmp_path / "profiles.d/night.toml"):
        file.chmod(0o644)
    settings = load_settings(config, {}, scope=Scope.USER)
    catalog = Catalog(settings, places_of(settings, {}, scope=Scope.USER))
    assert catalog.get("night").port == 18990
