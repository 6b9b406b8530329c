"""Places: only names, for the machine, for a user, for a directory that is thrown away."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import PurePosixPath

import pytest

from servicekit.places import Places, Scope, below, spelt, system_places, user_places
from servicekit.profiles.vocabulary import NAME

ALL = [
    pytest.param(system_places(), id="system"),
    pytest.param(user_places("/home/u", 1000, {}), id="user"),
    pytest.param(below("/srv/llm"), id="below"),
]


def paths(places: Places) -> dict[str, PurePosixPath]:
    """Give every place there is, by name."""
    values = {field.name: getattr(places, field.name) for field in dataclasses.fields(places)}
    return {name: value for name, value in values.items() if isinstance(value, PurePosixPath)}


@pytest.mark.parametrize("places", ALL)
def test_every_place_is_absolute(places: Places) -> None:
    """Services start in directories of their own: a relative place would be elsewhere."""
    assert all(path.is_absolute() for path in paths(places).values())


@pytest.mark.parametrize("places", ALL)
def test_no_place_can_be_mistaken_for_a_profile(places: Places) -> None:
    """State and runtime hold one directory per profile, so nothing else may be named like one."""
    for name, path in paths(places).items():
        for directory in (places.state, places.runtime):
            clash = path.parent == directory and re.fullmatch(NAME, path.name)
            assert not clash, f"{name} is {path}, which a profile could be"


@pytest.mark.parametrize("places", ALL)
def test_no_two_places_are_one(places: Places) -> None:
    """Each place holds one kind of file."""
    for (one, here), (other, there) in itertools.combinations(paths(places).items(), 2):
        assert here != there, f"{one} and {other}"


@pytest.mark.parametrize("places", ALL)
def test_files_of_a_profile_are_below_their_places(places: Places) -> None:
    """The files of one profile are named after it and are nobody else's."""
    assert places.ledger("night") == places.state / "night/history.jsonl"
    assert places.state_file("night") == places.runtime / "night/state.json"
    assert places.log_file("night") == places.logs / "night.log"
    assert places.wrapper("night") == places.wrappers / "night"
    assert places.secret("night", "HF_TOKEN") == places.secrets / "night/HF_TOKEN"


def test_system_places_are_where_an_administrator_looks() -> None:
    """Configuration in /etc, what is kept in /var, what a boot forgets in /run."""
    places = system_places()
    assert places.scope is Scope.SYSTEM
    assert str(places.config) == "/etc/servicekit/servicekit.toml"
    assert str(places.profiles) == "/etc/servicekit/profiles.d"
    assert str(places.ledger("demo")) == "/var/lib/servicekit/demo/history.jsonl"
    assert str(places.state_file("demo")) == "/run/servicekit/demo/state.json"


def test_user_places_follow_xdg() -> None:
    """Absolute XDG variables count; relative ones are ignored, as the specification says."""
    environ = {
        "XDG_CONFIG_HOME": "/c",
        "XDG_STATE_HOME": "/s",
        "XDG_CACHE_HOME": "relative",
        "XDG_RUNTIME_DIR": "/r",
    }
    places = user_places("/home/u", 1000, environ)
    assert places.scope is Scope.USER
    assert str(places.config) == "/c/servicekit/servicekit.toml"
    assert str(places.units) == "/c/systemd/user"
    assert str(places.state) == "/s/servicekit"
    assert str(places.cache) == "/home/u/.cache/servicekit"
    assert str(places.runtime) == "/r/servicekit"
    assert str(user_places("/home/u", 1000, {}).runtime) == "/run/user/1000/servicekit"
    assert places.sysusers is None
    assert places.catalog is None


def test_commands_are_spelt_for_whose_services_are_meant() -> None:
    """In what is told to one user, our commands are about that user's services."""
    text = "`servicekit fetch x`, or `servicekit install x` as root; `systemctl start x`"
    assert spelt(text, Scope.SYSTEM) == text
    mine = "`servicekit --user fetch x`, or `servicekit install x` as root; `systemctl start x`"
    assert spelt(text, Scope.USER) == mine
    assert spelt(mine, Scope.USER) == mine


def test_below_is_below() -> None:
    """Removing the one directory removes everything."""
    for path in paths(below("/srv/llm")).values():
        assert path.is_relative_to("/srv/llm")
