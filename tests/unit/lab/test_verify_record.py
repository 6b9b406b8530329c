"""Verifications on disk, and what they say of a profile later."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import plans
import pytest

from servicekit.host import run_files
from servicekit.lab.verify.binding import fingerprint, vram
from servicekit.lab.verify.gate import GateOutcome, GateResult, Twin
from servicekit.lab.verify.record import (
    Fingerprint,
    Verification,
    last_of,
    prepare,
    read,
    twin_of,
    verification_status,
    write,
)
from servicekit.models.hub_cache import Repository
from servicekit.models.weights import needs

if TYPE_CHECKING:
    from pathlib import Path

BOUND = Fingerprint("a1", "0.1", "0.5.16", "c0ffee", "580.1", "RTX 5090")
FOUND = GateResult("recall", GateOutcome.PASS, "all", {"longest_measured": 1987}, 1.5)
KEPT = Verification(
    "demo", "2026-01-31T12:00:00.000+00:00", BOUND, "a/b", None, ("recall",), (FOUND,)
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Every field comes back, the oldest run first, and damaged files are passed over."""
    later = replace(KEPT, at="2026-02-01T12:00:00.000+00:00", findings=())
    assert read(tmp_path) == ()
    state = tmp_path / "demo"
    name = write(state, KEPT)
    write(state, later)
    folder = state / "verifications"
    (folder / "x.json").write_text("{")
    (folder / "y.json").write_text('{"format": 99}')
    (folder / "note.txt").write_text("mine")
    os.mkfifo(folder / "pipe.json")
    (folder / "huge.json").touch()
    os.truncate(folder / "huge.json", run_files.LARGEST + 1)
    assert read(state) == (KEPT, later)
    assert json.loads((folder / name).read_text())["longest_measured"] == 1987
    assert last_of(read(state), ("recall",)) == KEPT
    assert last_of(read(state), ("recall", "text")) is None


def test_the_last_run_is_the_last_whatever_the_clock(tmp_path: Path) -> None:
    """Where it was set back, a run that failed is not outlived by an older one that passed."""
    lost = replace(KEPT, findings=(replace(FOUND, outcome=GateOutcome.FAIL),))
    earlier = replace(lost, at="1970-01-01T00:00:07.000+00:00")
    write(tmp_path, KEPT)
    assert write(tmp_path, earlier) == "2026-01-31T120000.000Z_000001.json"
    assert write(tmp_path, KEPT) == "2026-01-31T120000.000Z_000002.json"
    assert read(tmp_path) == (KEPT, earlier, KEPT)
    later = replace(lost, at="2026-02-01T12:00:00.000+00:00")
    assert write(tmp_path, later) == "2026-02-01T120000.000Z.json"
    assert last_of(read(tmp_path), ("recall",)) == later


def test_a_link_leads_nobody_astray(tmp_path: Path) -> None:
    """Where the folder is a link, nothing is written behind it."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo/verifications").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="verifications"):
        write(tmp_path / "demo", KEPT)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_place_is_prepared_where_there_is_one(tmp_path: Path) -> None:
    """The folder is made below a directory that is there, and that directory never is."""
    prepare(tmp_path / "demo")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "demo").mkdir()
    prepare(tmp_path / "demo")
    prepare(tmp_path / "demo")
    assert (tmp_path / "demo/verifications").is_dir()
    (tmp_path / "other").write_text("")
    with pytest.raises(OSError, match="other"):
        prepare(tmp_path / "other")


def test_what_status_says() -> None:
    """Verified, changed since with what changed, or not verified with what failed."""
    gates = ("recall",)
    assert verification_status(None, None, gates).text == "not verified"
    assert verification_status(KEPT, BOUND, ("recall", "text")).text == "not verified"
    assert verification_status(replace(KEPT, findings=()), BOUND, gates).text == "not verified"
    assert verification_status(KEPT, BOUND, gates).text == "verified, prompts up to 1987 tokens"
    other = replace(BOUND, profile="b2", engine="0.5.23", model="c0ffee00beef d00d", gpu="")
    said = "changed since: profile, engine (0.5.16 → 0.5.23), model (c0ffee → c0ffee00 d00d), "
    said += "gpu (RTX 5090 → ?)"
    assert verification_status(KEPT, other, gates).text == said
    failed = replace(KEPT, findings=(replace(FOUND, outcome=GateOutcome.FAIL),))
    assert verification_status(failed, BOUND, gates).text == "not verified: recall failed"
    short = replace(KEPT, gates=("text",), findings=(replace(FOUND, gate="text"),))
    assert verification_status(short, BOUND, ("text",)).text == "verified"


def test_a_twin_is_the_newest_with_the_same_model_at_fp8() -> None:
    """Neither another model's nor a cache below FP8 is a twin."""

    def answering(text: str, **changes: object) -> Verification:
        run_files = {"answers": {"q": text}, "sentences": 40}
        found = GateResult("kv-precision", GateOutcome.SKIP, "", run_files, 1.0)
        return replace(KEPT, findings=(FOUND, found), **changes)  # type: ignore[arg-type]

    stored = {
        "old": (answering("old"),),
        "new": (answering("new", at="2026-03-01"), KEPT),
        "other": (answering("other", about="c/d", at="2026-04-01"),),
        "below": (answering("below", below_fp8="kv-cache-dtype = nvfp4", at="2026-04-01"),),
    }
    twin = twin_of(stored, "a/b")
    assert twin == Twin("demo", "2026-03-01", {"q": "new"}, 40)
    assert twin_of(stored, "x/y") is None
    odds: tuple[dict[str, Any], ...] = (
        {},
        {"answers": {"q": 1}, "sentences": 4},
        {"answers": [], "sentences": 4},
        {"answers": {"q": "new"}, "sentences": 0},
        {"answers": {"q": "new"}, "sentences": 10**9},
    )
    for odd in odds:
        found = GateResult("kv-precision", GateOutcome.SKIP, "", odd, 1.0)
        assert twin_of({"odd": (replace(KEPT, findings=(found,)),)}, "a/b") is None


def test_a_file_is_checked_and_not_believed() -> None:
    """The service may write where its verifications lie: an odd one is passed over, not tripped."""
    whole = KEPT.as_json()
    assert Verification.parse(json.dumps(whole)) == KEPT
    finding = whole["findings"][0]
    odds: tuple[dict[str, Any], ...] = (
        {"profile": 1},
        {"at": None},
        {"gates": [[]]},
        {"gates": 1},
        {"fingerprint": {**whole["fingerprint"], "gpu": 1}},
        {"fingerprint": {}},
        {"findings": [{**finding, "evidence": []}]},
        {"findings": [{**finding, "seconds": "1"}]},
        {"findings": [{**finding, "seconds": float("nan")}]},
        {"findings": [{**finding, "seconds": float("inf")}]},
        {"findings": [{**finding, "seconds": -1.0}]},
        {"findings": [{**finding, "outcome": "maybe"}]},
        {"findings": [{**finding, "reason": {}}]},
        {"findings": [finding["gate"]]},
    )
    for odd in odds:
        assert Verification.parse(json.dumps(whole | odd)) is None
    claimed: object
    for claimed in ("many", -1, True, {}):
        evidence = {**finding, "evidence": {"longest_measured": claimed}}
        parsed = Verification.parse(json.dumps(whole | {"findings": [evidence]}))
        assert parsed is not None
        assert parsed.longest is None


def test_a_fingerprint_changes_with_profile_and_weights(tmp_path: Path) -> None:
    """Another option, and other weights, are another fingerprint; the same are the same."""
    model = tmp_path / "model.gguf"
    model.write_bytes(b"weights")
    plan = plans.plan("demo")

    def of(port: int) -> Fingerprint:
        profile = plan.profile.model_copy(update={"port": port})
        host = replace(plan.host, model=str(model))
        return asyncio.run(fingerprint(replace(plan, profile=profile, host=host)))

    first = of(18001)
    assert first == of(18001)
    assert first.changed(of(18002)) == ("profile",)
    os.utime(model, (1, 1))
    (changed,) = first.changed(of(18001))
    assert changed == f"model ({first.model[:8]} → {of(18001).model[:8]})"
    assert (first.driver, first.gpu) == ("", "")
    assert asyncio.run(vram(())) is None
    folder = tmp_path / "many"
    folder.mkdir()
    (folder / "one").write_text("1")
    whole = replace(plan, host=replace(plan.host, model=str(folder)))
    before = asyncio.run(fingerprint(whole)).model
    (folder / "two").write_text("2")
    assert asyncio.run(fingerprint(whole)).model != before
    model.unlink()
    assert of(18001).model == ""


def test_a_model_of_the_hub_is_known_by_its_commit(tmp_path: Path) -> None:
    """What was fetched is bound to its commit; what was not is unknown."""
    profile = plans.profile("long-context", gpus=[], environment={"HF_HOME": str(tmp_path)})
    plan = plans.plan(profile)
    assert "?" in asyncio.run(fingerprint(plan)).model
    for need in needs(profile):
        repository = Repository(tmp_path / "hub", need.repo)
        repository.ref(need.revision).parent.mkdir(parents=True)
        repository.ref(need.revision).write_text("c0ffee00" * 5)
    assert "?" not in asyncio.run(fingerprint(plan)).model
