"""Whatever a file says, it becomes a profile or findings; and schema and model agree."""

from __future__ import annotations

import datetime as dt
from typing import Any

import jsonschema
from hypothesis import event, given
from hypothesis import strategies as st

from servicekit.places import system_places
from servicekit.profiles.model import Profile
from servicekit.profiles.parsing import examine
from servicekit.profiles.schema import json_schema
from servicekit.profiles.vocabulary import ManagerName, Reason
from servicekit.service.plan import Host, make_plan
from servicekit.service.render import artifacts

SCHEMA = jsonschema.Draft202012Validator(json_schema())

SMALL: dict[str, Any] = {
    "summary": "a small one",
    "engine": "llamacpp",
    "model": "/models/small.gguf",
    "served_name": "small",
    "port": 18100,
    "context": {"requested": 4096},
}

HOST = Host(
    places=system_places(),
    servicekit=("/opt/servicekit/bin/servicekit",),
    executable="/opt/engine/bin/serve",
    model="/models/small.gguf",
    user="servicekit",
)

# Letters enough; drawing from all of Unicode would first take seconds to build its tables.
ODD = "aZ0-_./=:, \"'\\%$;#`&|<>()[]\t\n\r\x1b\x7f\xa0ü\u2028\ufffe\U0001f600"
ANY = ODD + "\0{}\ud800"

WORDS = st.sampled_from(
    [
        *("", "0", "port", "sglang", "openai", "127.0.0.1", "::1", "owner/name", "/x", "{prot}"),
        *("HF_HOME", "HF_TOKEN", "LLAMA_ARG_HOST", "--host", "threads", "kv-cache-dtype", "q4_0"),
        *("a\0b", "a\nb", " ", "\u2028", "\ufffe", "ü", ">=1,<2", "too-slow", "loopback", "("),
        "hf_abcdefghijklmnopqrstuvwxyz",
    ]
)
SCALARS = st.one_of(
    WORDS,
    st.text(ANY, max_size=8),
    st.booleans(),
    st.integers(),
    st.integers(0, 70000),
    st.floats(),
    st.just(dt.datetime(2026, 11, 30, tzinfo=dt.UTC)),
)
TABLE_KEYS = st.one_of(WORDS, st.text(ANY, max_size=4))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(TABLE_KEYS, inner, max_size=3)
    ),
    max_leaves=6,
)
SECTIONS = {
    name: list(json_schema()["$defs"][name.capitalize()]["properties"])
    for name in ("context", "probe", "start", "watch", "stop", "restart", "service")
}


FINITE = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.text(ODD, max_size=8)
OPTION_VALUES = st.one_of(
    PLAIN,
    st.booleans(),
    st.integers(),
    FINITE,
    st.lists(st.one_of(PLAIN, st.integers(), FINITE), min_size=1, max_size=3),
    st.dictionaries(PLAIN, st.lists(st.one_of(PLAIN, FINITE), max_size=2), max_size=2),
)
SECONDS = st.one_of(st.integers(1, 30), st.floats(1, 30))
SOUND: dict[str, st.SearchStrategy[Any]] = {
    "port": st.integers(1024, 65535),
    "host": st.sampled_from(["127.0.0.1", "127.1.2.3", "::1", "0:0:0:0:0:0:0:1"]),
    "gpus": st.lists(st.integers(0, 99), unique=True, max_size=3),
    "arguments": st.lists(PLAIN, max_size=3),
    "options": st.dictionaries(st.sampled_from(["threads", "x.y", "a_b"]), OPTION_VALUES),
    "environment": st.dictionaries(st.sampled_from(["HF_HOME", "no_proxy"]), PLAIN),
    "tunables": st.just(["port"]),
    "requires": st.dictionaries(PLAIN, st.just(">=1, <2")),
    "context": st.fixed_dictionaries({"requested": st.integers(1, 2**31)}),
    "probe": st.fixed_dictionaries({}, optional={"deadline": SECONDS, "thinking": st.booleans()}),
    "watch": st.fixed_dictionaries({}, optional={"stall": SECONDS, "interval": SECONDS}),
    "restart": st.fixed_dictionaries({"on": st.lists(st.sampled_from(Reason).map(str))}),
    "service": st.builds(
        lambda tail: {"user": "llm", "read_write": [f"/srv/x{tail}x"], "without": ["PrivateTmp"]},
        PLAIN.filter(lambda text: text.isprintable()),
    ),
    "summary": PLAIN,
    "served_name": PLAIN,
}


@st.composite
def files(draw: st.DrawFn) -> dict[str, Any]:
    """Draw what a file might say: a sound profile with changes, some of them wrong."""
    data: dict[str, Any] = {**SMALL, "context": dict(SMALL["context"])}
    for key in draw(st.lists(st.sampled_from(list(SOUND)), unique=True, max_size=5)):
        data[key] = draw(SOUND[key])
    for _ in range(draw(st.sampled_from([0, 0, 1, 3]))):
        key = draw(st.sampled_from([*Profile.model_fields, "sumary", "extends"]))
        if key in SECTIONS and draw(st.booleans()):
            inner = draw(st.sampled_from([*SECTIONS[key], "wrong"]))
            table = data.setdefault(key, {})
            if isinstance(table, dict):
                table[inner] = draw(VALUES)
        elif key in {"options", "environment", "requires"}:
            data[key] = draw(st.dictionaries(TABLE_KEYS, VALUES, max_size=3))
        elif key in {"gpus", "arguments", "secrets", "tunables"}:
            data[key] = draw(st.lists(SCALARS, max_size=3))
        else:
            data[key] = draw(VALUES)
    return data


@given(files())
def test_data_is_a_profile_or_findings(data: dict[str, Any]) -> None:
    """There is no third outcome, and each finding is one printable line."""
    profile, findings = examine(data, name="small")
    event("sound" if profile else "refused")
    assert (profile is None) == bool(findings)
    for finding in findings:
        said = finding.text({})
        assert said.isprintable(), said
        assert len(said) < 600


@given(files())
def test_the_schema_is_no_stricter_than_the_model(data: dict[str, Any]) -> None:
    """An editor with our schema finds no fault with a file that servicekit takes."""
    profile, _ = examine(data, name="small")
    if profile is not None:
        SCHEMA.validate(data)


@given(files())
def test_what_is_a_profile_can_be_written_down(data: dict[str, Any]) -> None:
    """Wrapper, unit and Supervisor program can hold whatever a valid profile says."""
    profile, _ = examine(data, name="small")
    if profile is not None:
        for manager in ManagerName:
            assert artifacts(make_plan(profile, HOST), manager)


@given(files())
def test_a_profile_survives_being_written_and_read(data: dict[str, Any]) -> None:
    """As JSON it is a profile again, and the same one."""
    profile, _ = examine(data, name="small")
    if profile is not None:
        for unset in (True, False):
            dumped = profile.model_dump(mode="json", exclude={"name"}, exclude_unset=unset)
            again, findings = examine(dumped, name="small")
            assert findings == ()
            assert again == profile
