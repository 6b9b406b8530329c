"""`list`, `show`, `render` and `schema` tell people and programs the same."""

from __future__ import annotations

import json
import stat
import tomllib
from pathlib import Path

import jsonschema
import pytest
from unit.cli.cli_runs import invoke, refused, said

BUILT_IN = {"balanced", "demo", "dflash", "dspark", "long-context", "max-context", "mtp"}


@pytest.fixture
def site(tmp_path: Path) -> dict[str, str]:
    """An environment whose servicekit is below a directory of the test."""
    (tmp_path / "profiles.d").mkdir()
    return {"SERVICEKIT_ROOT": str(tmp_path)}


def write_profile(site: dict[str, str], name: str, text: str) -> Path:
    """Write a profile of the site."""
    file = Path(site["SERVICEKIT_ROOT"]) / f"profiles.d/{name}.toml"
    file.write_text(text)
    file.chmod(0o644)
    return file


def test_every_built_in_profile_is_listed(site: dict[str, str]) -> None:
    """The list has a line for each, and as JSON an object for each."""
    lines = said("--user", "list", env=site).splitlines()
    assert lines[0].split() == ["PROFILE", "ENGINE", "PORT", "SUMMARY"]
    assert {line.split()[0] for line in lines[1:]} == BUILT_IN
    objects = json.loads(said("--user", "list", "--json", env=site))
    assert {each["name"] for each in objects} == BUILT_IN
    assert all(each["allowed"] and not each["installed"] for each in objects)


def test_a_refused_and_a_forbidden_profile_are_listed_as_such(site: dict[str, str]) -> None:
    """The list is also where a site finds its mistakes."""
    write_profile(site, "good", 'extends = "demo"\n')
    write_profile(site, "bad", 'extends = "demo"\nprot = 1\n')
    text = said("--user", "list", env=site | {"SERVICEKIT_ALLOW": "bad"})
    lines = {line.split()[0]: line for line in text.splitlines()}
    assert "not allowed" in lines["good"]
    assert "refused: " in lines["bad"]
    assert "prot" in lines["bad"]


def test_show_is_toml_that_says_everything(site: dict[str, str]) -> None:
    """What is shown is a complete profile, equal to its JSON, which says how it stands as well."""
    write_profile(site, "here", 'extends = "demo"\nport = 18999\n')
    env = site | {"SERVICEKIT_ALLOW": "here"}
    shown = tomllib.loads(said("--user", "show", "here", env=env))
    told = json.loads(said("--user", "show", "here", "--json", env=env))
    assert told == shown | {"verified": "not verified"}
    assert (shown["port"], shown["probe"]["max_tokens"]) == (18999, 8)


def test_show_names_what_a_profile_opts_out_of(site: dict[str, str]) -> None:
    """A directive that is left out of the unit is told, beside the profile."""
    write_profile(site, "here", 'extends = "demo"\n[service]\nwithout = ["ProtectHome"]\n')
    done = invoke("--user", "show", "here", env=site | {"SERVICEKIT_ALLOW": "here"})
    assert '"ProtectHome"' in done.err


@pytest.mark.parametrize("manager", ["systemd", "supervisor"])
@pytest.mark.parametrize("profile", sorted(BUILT_IN))
def test_every_profile_renders_for_every_manager(
    profile: str, manager: str, site: dict[str, str], tmp_path: Path
) -> None:
    """Rendering needs neither engine nor model nor manager; it warns of what is not here."""
    out = tmp_path / "out"
    words = ["--user", "render", profile, "--manager", manager, "--out", str(out)]
    written = said(*words, env=site).splitlines()
    assert written == said(*words, env=site).splitlines()
    wrapper = out / str(tmp_path).lstrip("/") / "wrappers" / profile
    assert str(wrapper) in written
    assert stat.S_IMODE(wrapper.stat().st_mode) == 0o755
    printed = said("--user", "render", profile, "--manager", manager, env=site)
    assert wrapper.read_text() in printed


def test_rendering_to_a_place_that_cannot_be_written_is_one_line(
    site: dict[str, str], tmp_path: Path
) -> None:
    """A file in the way of --out is named."""
    (tmp_path / "out").write_text("")
    text = refused("--user", "render", "demo", "--out", tmp_path / "out", env=site)
    assert text.splitlines()[-1].startswith(f'servicekit: cannot write "{tmp_path}/out"')


def test_the_schema_accepts_what_servicekit_accepts() -> None:
    """The schema is one, and a small profile satisfies it, a misspelt one does not."""
    schema = json.loads(said("schema"))
    validator = jsonschema.validators.validator_for(schema)
    validator.check_schema(schema)
    assert validator(schema).is_valid({"extends": "demo", "port": 18002})
    assert not validator(schema).is_valid({"extends": "demo", "prot": 18002})
