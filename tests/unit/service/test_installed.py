"""The installed plan: what the watchdog reads instead of profile and settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from plans import BUILT_IN, plan, profile
from pydantic import BaseModel
from unit.service.test_plan import SMALL, small

from servicekit import __version__
from servicekit.errors import ExitCode, UserError
from servicekit.places import below, system_places, user_places
from servicekit.profiles.model import Profile
from servicekit.service.installed import (
    FORMAT,
    at,
    denied,
    of_profile,
    parse_plan,
    plan_text,
    pool_drift,
    read_plan,
    tuned,
)

if TYPE_CHECKING:
    from pathlib import Path

    from servicekit.places import Places
    from servicekit.service.installed import InstalledPlan

LOADED = """
import sys
from pathlib import Path
from servicekit.service.installed import read_plan
plan = read_plan(Path(sys.argv[1]), "demo")
heavy = {"pydantic", "jinja2", "tomllib", "typer", "asyncio"} & sys.modules.keys()
print(plan.profile.context.floor, plan.profile.unit, *heavy)
"""


def installed(of: Profile, places: Places | None = None) -> InstalledPlan:
    """The plan of a profile as its file says it."""
    return of_profile(of, places or below("/srv/llm"), ("/opt/servicekit",))


def apply(of: Profile, environment: dict[str, str]) -> Profile:
    """The profile as the watchdog sees it in an environment."""
    return tuned(installed(of), environment).profile


def compare(twin: Any, section: BaseModel) -> None:  # noqa: ANN401 - any section's twin
    """See that every attribute and property of a section is in its twin."""
    properties = [
        name
        for kind in type(section).mro()
        if kind is not BaseModel and issubclass(kind, BaseModel)
        for name, member in vars(kind).items()
        if isinstance(member, property)
    ]
    for name in (*type(section).model_fields, *properties):
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            compare(getattr(twin, name), value)
        else:
            assert getattr(twin, name) == value, name
            assert type(getattr(twin, name)) is type(value), name


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_file_says_all_that_the_profile_says(name: str) -> None:
    """Every value of every built-in profile is the same, and of the same type, once read back."""
    read = parse_plan(plan_text(plan(name)), where="test")
    compare(read.profile, profile(name))
    assert Profile.model_validate(read.data) == profile(name)
    assert (read.places, read.user) == (system_places(), "servicekit")
    assert read.servicekit == __version__


def test_a_users_places_are_read_back() -> None:
    """A place that a user's services lack stays without a path."""
    places = user_places("/home/ada", 1000, {})
    assert parse_plan(plan_text(plan("demo", places)), where="test").places == places


def test_the_file_is_read_without_any_library(tmp_path: Path) -> None:
    """The watchdog reads it at every start, so nothing that checks or renders is loaded."""
    file = tmp_path / "demo.plan.json"
    file.write_text(plan_text(plan("demo")), encoding="utf-8")
    command = [sys.executable, "-c", LOADED, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    demo = profile("demo")
    assert done.stdout.split() == [str(demo.context.floor), demo.unit]


def test_without_a_file_there_is_no_plan(tmp_path: Path) -> None:
    """What 0.1.0 installed has none, and is run by its profile."""
    assert read_plan(tmp_path / "demo.plan.json", "demo") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "JSONDecodeError"),
        ("[]", "TypeError"),
        ("{}", "KeyError: 'format'"),
        ('{"format": 1, "profile": {}}', "KeyError"),
        ('{"format": 2}', f"has format 2, and this servicekit reads {FORMAT}"),
        ("[" * 100_000, "RecursionError"),
        ("\udcff", "it is not UTF-8"),
    ],
)
def test_a_damaged_file_names_the_command_that_writes_it(
    tmp_path: Path, text: str, why: str
) -> None:
    """The exit code tells the manager that a restart does not help."""
    file = tmp_path / "demo.plan.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UserError) as refused:
        read_plan(file, "demo")
    assert why in str(refused.value)
    assert str(refused.value).endswith("; run `servicekit install demo --force`")
    assert refused.value.code is ExitCode.CONFIG


def test_the_plan_of_another_profile_is_refused(tmp_path: Path) -> None:
    """A file that was copied by hand does not start another engine."""
    file = tmp_path / "mtp.plan.json"
    file.write_text(plan_text(plan("demo")), encoding="utf-8")
    with pytest.raises(UserError, match='it is the plan of "demo"'):
        read_plan(file, "mtp")


def test_the_layout_is_as_released() -> None:
    """A key that is renamed or removed needs another format number."""
    assert sorted(json.loads(plan_text(plan("demo")))) == [
        *("alert_command", "command", "format", "kv_tokens", "log_format", "places", "profile"),
        *("servicekit", "sources", "user"),
    ]


def test_a_profile_can_be_asked_at_another_address() -> None:
    """Everything else stays as it was."""
    demo = installed(profile("demo")).profile
    moved = at(demo, "127.0.0.2", 18999)
    assert (moved.host, moved.port, moved.name) == ("127.0.0.2", 18999, demo.name)
    assert demo.port == profile("demo").port


@pytest.mark.parametrize(
    ("settings", "variable", "refused"),
    [
        (None, "", False),
        ('deny = ["demo"]', "", True),
        ('deny = ["other"]', "", False),
        ('allow = ["demo"]', "", False),
        ("deny = demo oops", "", False),
        ('deny = "demo"', "", False),
        ("deny = [1]\nroot = 7", "", False),
        (None, "demo", True),
        (None, "other, demo", True),
        (None, '["demo"]', True),
        (None, "demonstration", False),
    ],
)
def test_only_a_readable_deny_list_stops_a_service(
    tmp_path: Path, settings: str | None, variable: str, *, refused: bool
) -> None:
    """Settings that are broken or say something else do not."""
    if settings is not None:
        (tmp_path / "servicekit.toml").write_text(settings)
    demo = installed(profile("demo"), below(str(tmp_path)))
    assert denied(demo, {"SERVICEKIT_DENY": variable}) is refused


def test_a_deny_list_in_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """What cannot be read at once stops no service."""
    os.mkfifo(tmp_path / "servicekit.toml")
    assert not denied(installed(profile("demo"), below(str(tmp_path))), {})


@pytest.mark.parametrize(
    ("planned", "physical", "words"),
    [
        (None, 1000, ""),
        (0, 1000, ""),
        (1000, None, ""),
        (1000, 1050, ""),
        (1000, 1100, "the pool holds 1100 tokens, 10% more than the 1000 of the plan"),
        (1000, 800, "the pool holds 800 tokens, 20% fewer than the 1000 of the plan"),
    ],
)
def test_a_pool_is_compared_with_its_plan(
    planned: int | None, physical: int | None, words: str
) -> None:
    """A difference of more than 5 % is worth a word, and an unknown one is none."""
    assert pool_drift(planned, physical) == words


# -- tunables -----------------------------------------------------------------------------------


def test_tunables_change_what_the_watchdog_expects() -> None:
    """Numbers, text, variables and the port are as the environment says; the rest is untouched."""
    profile = small()
    changed = apply(
        profile,
        {
            "SERVICEKIT_PORT": "18200",
            "SERVICEKIT_MEM_FRACTION_STATIC": "0.75",
            "SERVICEKIT_LOG_LEVEL": "debug",
            "HF_HOME": "/big/hub",
            "SERVICEKIT_DOWNLOAD_DIR": "/not/tunable",
            "SERVICEKIT_MAX_TOTAL_TOKENS": "",
        },
    )
    assert changed.port == 18200
    assert changed.options == {
        **profile.options,
        "mem-fraction-static": 0.75,
        "log-level": "debug",
    }
    assert changed.environment == {**profile.environment, "HF_HOME": "/big/hub"}
    assert (changed.context.requested, changed.context.floor) == (4096, 3000)
    assert changed.name == "small"


def test_without_tunables_nothing_changes() -> None:
    """An environment that says nothing leaves the profile as it is."""
    plan = installed(small())
    assert tuned(plan, {"PATH": "/bin"}) is plan


@pytest.mark.parametrize(
    ("tokens", "requested", "minimum"),
    [("9000", 4096, 3000), ("3500", 3500, 3000), ("2000", 2000, 2000)],
)
def test_a_smaller_pool_asks_for_less_context(tokens: str, requested: int, minimum: int) -> None:
    """Who lowers the pool by hand wants a service with that much, not a fault."""
    context = apply(small(), {"SERVICEKIT_MAX_TOTAL_TOKENS": tokens}).context
    assert (context.requested, context.minimum) == (requested, minimum)


def test_a_default_minimum_follows_what_is_requested() -> None:
    """Half of a smaller context is a smaller half."""
    profile = small(context={"requested": 4096})
    assert apply(profile, {"SERVICEKIT_MAX_TOTAL_TOKENS": "1000"}).context.floor == 500


def test_a_pool_in_words_leaves_the_context_alone() -> None:
    """SGLang takes `200k` as well; what that is in tokens, its own log will tell."""
    options = {**SMALL["options"], "max-total-tokens": "8k"}
    changed = apply(small(options=options), {"SERVICEKIT_MAX_TOTAL_TOKENS": "2k"})
    assert changed.options["max-total-tokens"] == "2k"
    assert changed.context.requested == 4096


@pytest.mark.parametrize("text", ["18_200", " 18200", "018200", "0x10", "1e4", "٣", "", "12.0"])
def test_a_whole_number_is_written_as_every_parser_reads_it(text: str) -> None:
    """Python would take more than other parsers do, and the two must not disagree."""
    if not text:
        assert apply(small(), {"SERVICEKIT_PORT": text}).port == 18100
        return
    with pytest.raises(UserError) as refused:
        apply(small(), {"SERVICEKIT_PORT": text})
    assert refused.value.code is ExitCode.CONFIG
    expected = f'environment: SERVICEKIT_PORT must be a whole number, not "{text}"'
    assert str(refused.value) == expected


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("SERVICEKIT_MEM_FRACTION_STATIC", "nan", 'a decimal number, not "nan"'),
        ("SERVICEKIT_MEM_FRACTION_STATIC", "1_0.5", 'a decimal number, not "1_0.5"'),
        ("SERVICEKIT_LOG_LEVEL", "--help", 'text that begins without "-", not "--help"'),
    ],
)
def test_a_tunable_is_of_its_kind(variable: str, text: str, words: str) -> None:
    """The message names the variable, what it must be and what it is."""
    with pytest.raises(UserError) as refused:
        apply(small(), {variable: text})
    assert str(refused.value) == f"environment: {variable} must be {words}"


def test_a_tuned_profile_is_checked_like_any() -> None:
    """What a file must not say, the environment must not say either; no value is repeated."""
    with pytest.raises(UserError) as refused:
        apply(small(), {"SERVICEKIT_PORT": "80", "HF_HOME": "hf_abcdefghijklmnopqrstuvwxyz"})
    assert refused.value.code is ExitCode.CONFIG
    where = "environment (SERVICEKIT_PORT, HF_HOME)"
    port, secret = str(refused.value).splitlines()
    assert port == f"{where}: port: must be at least 1024, not 80"
    assert secret.startswith(f"{where}: environment.HF_HOME: looks like a secret")
    assert "abc" not in secret
