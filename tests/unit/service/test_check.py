"""The report of `servicekit check`: which versions are looked at, and what is said of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import plans
import pytest

from servicekit.engines.base import FlagTable, InstalledEngine, LegalValue
from servicekit.engines.options.parser import Level
from servicekit.engines.options.tables import table
from servicekit.profiles.vocabulary import EngineName
from servicekit.service.check import Report, check, tables_for

SGLANG_23 = InstalledEngine(
    "/opt/sglang/bin/sglang",
    {"sglang": "0.5.23", "flashinfer-python": "0.7.2"},
    cuda="13.0",
    capability="12.0",
)
UUID = "GPU-8a1b2c3d-0000-1111-2222-333344445555"
OPENAI = {
    "summary": "any server",
    "engine": "openai",
    "executable": "/opt/server",
    "model": "x",
    "served_name": "x",
    "arguments": ["--port", "{port}"],
}


def report(name: str, installed: InstalledEngine = InstalledEngine(), **changes: Any) -> Report:  # noqa: ANN401, B008 - keys of a profile; frozen
    """Check a built-in profile with changes."""
    recipe = plans.profile(name, **changes)
    llama = recipe.engine is EngineName.LLAMACPP
    plan = plans.plan(recipe, executable="/opt/llama.cpp/bin/llama-server" if llama else None)
    return check(plan.profile, plan, installed)


def said(of: Report) -> list[str]:
    """Give level and place of each remark."""
    return [f"{remark.level} {remark.where}" for remark in of.remarks]


@pytest.mark.parametrize("name", plans.BUILT_IN)
def test_built_in_profiles_pass(name: str) -> None:
    """Nothing stands against any of them, whether or not the engine is installed."""
    assert report(name).ok
    assert {remark.level for remark in report(name).remarks} <= {Level.NOTE}


def test_a_profile_that_is_fine_here() -> None:
    """With the right engine on the right card there is nothing to remark."""
    found = report("dspark", SGLANG_23)
    assert found.remarks == ()
    assert found.text() == (
        'profile "dspark": ok: 21 options checked against sglang 0.5.23 '
        "(sglang: 0.5.23 is installed)"
    )


def test_a_profile_that_is_not() -> None:
    """Errors come first, each with its place and its source, and are counted at the end."""
    old = replace(SGLANG_23, packages={"sglang": "0.5.16", "flashinfer-python": "0.6.14"})
    found = report("dspark", old, options={"context-lenght": 5})
    assert not found.ok
    assert said(found) == [
        "error options.context-lenght",
        "error options.speculative-algorithm",
        "error options.speculative-algorithm",
        "error requires.sglang",
        "error requires.flashinfer-python",
    ]
    lines = found.text().splitlines()
    assert lines[0] == (
        "error: options.context-lenght: --context-lenght is not an option of sglang 0.5.16; did "
        'you mean "context-length"?'
    )
    assert lines[1].endswith(
        "[sgl-project/sglang#35354; seen with 0.5.16; 0.5.23 projects through the quantised head]"
    )
    assert lines[3] == "error: requires.sglang: >=0.5.18 is required, but 0.5.16 is installed"
    assert lines[-1].startswith(
        'profile "dspark": 5 errors: 22 options checked against sglang 0.5.16'
    )


def test_one_error_is_one() -> None:
    """The closing line is a sentence."""
    assert 'profile "mtp": 1 error: ' in report("mtp", options={"zzz": 1}).text()


def test_json() -> None:
    """Scripts get the same, with nulls for what is not known."""
    found = report("dspark", options={"zzz": True})
    listed = json.loads(json.dumps(found.json()))
    remarks = listed.pop("remarks")
    assert listed == {
        "profile": "dspark",
        "engine": "sglang",
        "ok": False,
        "executable": None,
        "version": None,
        "cuda": None,
        "against": ["sglang 0.5.23"],
        "options": 22,
    }
    assert remarks[0] == {
        "level": "error",
        "where": "options.zzz",
        "message": "--zzz is not an option of sglang 0.5.23",
        "source": None,
    }
    assert remarks[1]["level"] == "note"
    here = report("dspark", SGLANG_23).json()
    assert (here["executable"], here["version"]) == ("/opt/sglang/bin/sglang", "0.5.23")
    assert (here["cuda"], here["remarks"]) == ("13.0", [])


def versions(name: str, installed: InstalledEngine, **changes: Any) -> list[str]:  # noqa: ANN401 - keys
    """Give the versions whose tables are chosen."""
    made = plans.profile(name, **changes)
    return [each.version for each in tables_for(made, installed)]


def test_which_tables_are_chosen() -> None:
    """The installed version's, else the nearest; not installed, all that `requires` allows."""
    assert versions("balanced", InstalledEngine()) == ["0.5.16", "0.5.23"]
    assert versions("dspark", InstalledEngine()) == ["0.5.23"]
    assert versions("balanced", InstalledEngine(), requires={"sglang": "<0.4"}) == [
        "0.5.16",
        "0.5.23",
    ]
    for version, nearest in (("0.5.23+cu130", "0.5.23"), ("0.5.20", "0.5.16"), ("9", "0.5.23")):
        here = InstalledEngine("/x", {"sglang": version})
        assert versions("balanced", here) == [nearest]
    listed = FlagTable(EngineName.SGLANG, "0.5.20", {"--x": LegalValue("flag")})
    here = InstalledEngine("/x", {"sglang": "0.5.20"}, listed=listed)
    assert tables_for(plans.profile("balanced"), here) == (listed,)


def test_an_unknown_version_is_said_to_be_unknown() -> None:
    """What is held against the nearest table is only probably right."""
    here = InstalledEngine(
        "/x", {"sglang": "0.5.20", "flashinfer-python": "0.7.2"}, capability="12.0"
    )
    (remark,) = report("balanced", here).remarks
    assert remark.message == (
        "the options of the installed 0.5.20 are unknown; checked against sglang 0.5.16"
    )


def test_what_only_some_allowed_versions_refuse_is_a_warning() -> None:
    """A profile that allows a version in which it cannot start should require more."""
    found = report("balanced", options={"enable-linear-replayssm-spec": True})
    assert found.ok
    (first, *_) = found.remarks
    assert (first.level, first.where) == (Level.WARNING, "options.enable-linear-replayssm-spec")
    assert first.message.endswith("--enable-gdn-replayssm-spec there; requires allows that version")
    newer = report(
        "balanced", options={"enable-linear-replayssm-spec": True}, requires={"sglang": ">=0.5.23"}
    )
    assert not [each for each in newer.remarks if each.level is not Level.NOTE]


def test_what_every_allowed_version_refuses_is_said_once() -> None:
    """The newest version's words are enough."""
    found = [r for r in report("balanced", options={"zzz": 1}).remarks if r.level is Level.ERROR]
    assert [remark.message for remark in found] == ["--zzz is not an option of sglang 0.5.23"]


def test_the_engines_own_list_counts_beside_the_table() -> None:
    """A build without an option is found out even where its version should have it."""
    options = dict(table(EngineName.LLAMACPP, "11549").options)
    del options["--metrics"]
    listed = FlagTable(EngineName.LLAMACPP, "11549", options)
    here = InstalledEngine("/x", {"llama.cpp": "11549"}, listed=listed)
    (remark,) = report("demo", here).remarks
    assert remark.where == "servicekit"
    assert remark.message.startswith("--metrics is not an option of llama.cpp b11549")
    assert remark.message.endswith(" (according to its own --help)")


def test_a_server_without_a_table() -> None:
    """Nothing is known of other servers' options, and that is what is said."""
    plan = plans.plan(plans.profile("demo", **OPENAI))
    found = check(plan.profile, plan, InstalledEngine("/opt/server", {"openai": "1"}))
    assert (found.ok, found.against, found.options) == (True, (), 0)
    assert "checked against no option table" in found.text()


@pytest.mark.parametrize(
    ("packages", "expected"),
    [
        ({}, ["note requires.sglang", "note requires.Flash_Infer"]),
        ({"sglang": "0.5.23", "flash-infer": "1.0"}, []),
        ({"sglang": "0.5.23"}, ["error requires.Flash_Infer"]),
        ({"sglang": "0.5.16", "flash-infer": "1.0"}, ["error requires.sglang"]),
    ],
)
def test_requires(packages: dict[str, str], expected: list[str]) -> None:
    """What is needed is held against what is installed; package names are compared as pip does."""
    needs = {"sglang": ">=0.5.20", "Flash_Infer": ">=1"}
    here = InstalledEngine("/x" if packages else "", packages)
    assert said(report("balanced", here, requires=needs)) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"engine": "llamacpp", "revision": "main"}, "warning revision"),
        ({**OPENAI, "revision": "main"}, "warning revision"),
        ({**OPENAI, "drafter": "owner/draft"}, "warning drafter"),
        (
            {
                "engine": "vllm",
                "model": "owner/model",
                "drafter": "owner/draft",
                "options": {"speculative-config": '{"method": "mtp", "num_speculative_tokens": 1}'},
            },
            "error drafter",
        ),
        ({"secrets": ["KEY"], "api_key": "KEY"}, "error api_key"),
        ({"secrets": ["LLAMA_API_KEY"], "api_key": "LLAMA_API_KEY"}, None),
        ({**OPENAI, "secrets": ["KEY"], "api_key": "KEY"}, None),
        (
            {"engine": "sglang", "model": "a/b", "secrets": ["KEY"], "api_key": "KEY"},
            "error api_key",
        ),
    ],
)
def test_keys_that_the_engine_cannot_follow(changes: dict[str, Any], expected: str | None) -> None:
    """A key that looks as if it did something, and does not, is named."""
    remarks = [each for each in said(report("demo", **changes)) if not each.startswith("note")]
    assert remarks == ([] if expected is None else [expected])


def test_a_kv_cache_below_fp8_is_repeated_with_its_reason() -> None:
    """The decision stays in sight after it was made."""
    why = "measured on our own questions"
    options = {"cache-type-k": "q4_0"}
    (remark,) = report("demo", options=options, kv_precision_accepted=why).remarks
    assert (remark.level, remark.where) == (Level.WARNING, "kv_precision_accepted")
    assert remark.message == f'cache-type-k = q4_0 is below FP8, accepted because "{why}"'


@pytest.mark.parametrize(
    ("engine", "gpu", "warned"),
    [("vllm", UUID, True), ("vllm", "1", False), ("llamacpp", UUID, False)],
)
def test_a_uuid_that_the_engine_takes_for_a_number_is_warned_of(
    engine: str, gpu: str, *, warned: bool
) -> None:
    """A GPU may be named by its UUID; vLLM cannot read that in many versions."""
    found = said(report("demo", engine=engine, model="owner/model", options={}, gpus=[gpu]))
    assert ("warning gpus" in found) == warned


def test_our_own_server_is_held_against_its_own_parser() -> None:
    """It has a part of llama.cpp's options, and refuses all others when it starts."""
    plan = plans.plan(plans.profile("demo", options={"cache-type-k": "q8_0"}))
    (remark,) = [
        each
        for each in check(plan.profile, plan, InstalledEngine()).remarks
        if each.level is Level.ERROR
    ]
    assert remark.where == "options.cache-type-k"
    assert remark.message == "--cache-type-k is not an option of servicekit-llama-server"
    assert report("demo", options={"cache-type-k": "q8_0"}).ok
    fine = plans.plan("demo")
    text = check(fine.profile, fine, InstalledEngine()).text()
    assert "options checked against servicekit-llama-server" in text
