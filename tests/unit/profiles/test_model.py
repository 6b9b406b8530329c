"""Profiles: a file per case, which says in its first line what to expect; built-in ones; merging.

A good file says `# gives {…}`: those values the profile has (below `!table`, keys it has not). A
bad one says `# refused by the schema: …` where an editor with our schema refuses it as well, `by
the checks` where only servicekit does, `by the file` where no parser gets that far; then every
finding.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicekit.engines import engine
from servicekit.engines.options.tables import tables
from servicekit.errors import ProfileError
from servicekit.places import below
from servicekit.profiles.catalog import Catalog
from servicekit.profiles.parsing import merge, parse
from servicekit.profiles.rules import MANAGED, kv_below_fp8
from servicekit.profiles.schema import json_schema
from servicekit.profiles.settings import Settings
from servicekit.profiles.vocabulary import LONGEST, EngineName, variable_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servicekit.profiles.model import Profile

FILES = Path(__file__).parents[2] / "profiles"
GOOD = sorted((FILES / "good").glob("*.toml"))
BAD = sorted((FILES / "bad").glob("*.toml"))
BUILT_IN = ("balanced", "demo", "dflash", "dspark", "long-context", "max-context", "mtp")

SCHEMA = jsonschema.Draft202012Validator(json_schema())


def name_of(file: Path) -> str:
    """Show a case by the file's name."""
    return file.stem


def expectation(file: Path) -> tuple[str, str]:
    """Split the first line of `file` into the verdict and what comes with it."""
    first = file.read_bytes().split(b"\n", 1)[0].decode("utf-8-sig").removeprefix("# ").rstrip()
    verdict, _, rest = first.partition(": " if first.startswith("refused") else " ")
    return verdict, rest


def data_of(file: Path) -> dict[str, Any]:
    """Parse `file` as an editor would."""
    return tomllib.loads(file.read_bytes().decode("utf-8-sig"))


def has(actual: object, expected: object) -> bool:
    """Whether `actual` has what `expected` says, table by table."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        return all(
            not set(value) & set(actual[key[1:]])
            if key.startswith("!")
            else key in actual and has(actual[key], value)
            for key, value in expected.items()
        )
    return actual == expected


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a directory with all case files as a site has them: believed, whatever the umask was."""
    root = tmp_path_factory.mktemp("site")
    (root / "profiles.d").mkdir()
    for file in (*GOOD, *BAD):
        copy = root / "profiles.d" / file.name
        copy.write_bytes(file.read_bytes())
        copy.chmod(0o644)
    return root


def load(site: Path, name: str) -> Profile:
    """Load one case as a profile that is allowed to run."""
    settings = Settings().model_copy(update={"allow": (name,)})
    return Catalog(settings, below(str(site))).get(name)


@pytest.mark.parametrize("file", GOOD, ids=name_of)
def test_a_good_file_gives_what_it_says(site: Path, file: Path) -> None:
    """Each good file becomes a profile with the values that its first line names."""
    verdict, rest = expectation(file)
    assert verdict == "gives"
    profile = load(site, file.stem)
    expected = json.loads(rest)
    assert profile.name == file.stem
    assert has(profile.model_dump(mode="json"), expected), profile.model_dump(mode="json")


@pytest.mark.parametrize("file", GOOD, ids=name_of)
def test_a_good_file_satisfies_the_schema(file: Path) -> None:
    """An editor with our schema has nothing to say about a good file."""
    SCHEMA.validate(data_of(file))


@pytest.mark.parametrize("file", BAD, ids=name_of)
def test_a_bad_file_is_refused_with_every_finding(site: Path, file: Path) -> None:
    """Each bad file is refused with exactly the findings of its first line."""
    _, rest = expectation(file)
    with pytest.raises(ProfileError) as refused:
        load(site, file.stem)
    assert " | ".join(refused.value.findings).replace(f"{site}/profiles.d", "…") == rest


@pytest.mark.parametrize(
    "file", [file for file in BAD if expectation(file)[0].endswith("schema")], ids=name_of
)
def test_the_schema_refuses_what_is_its_matter(file: Path) -> None:
    """What a schema can say is wrong, ours says: the editor shows it while the file is written."""
    assert not SCHEMA.is_valid(data_of(file))


def test_there_are_many_ways_to_be_wrong() -> None:
    """No case was lost: a glob that finds nothing would pass silently."""
    assert len(GOOD) >= 20
    assert len(BAD) >= 120


def test_the_schema_is_a_schema() -> None:
    """The schema itself is valid, describes every key, and knows `extends` instead of `name`."""
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert "name" not in schema["properties"]
    assert "null" not in json.dumps(schema)
    undescribed = [
        key
        for table in (schema, *schema["$defs"].values())
        for key, value in table.get("properties", {}).items()
        if "description" not in value and "$ref" not in value
    ]
    assert undescribed == []


# -- the built-in profiles ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def built_in(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Profile]:
    """Give the built-in profiles as they are after `extends`, by name."""
    catalog = Catalog(Settings(), below(str(tmp_path_factory.mktemp("none"))))
    return {name: catalog.get(name) for name in catalog.names()}


def test_the_built_in_profiles_are_those_promised(built_in: Mapping[str, Profile]) -> None:
    """Seven profiles; the Qwen ones share one URL, one model name, one checkpoint."""
    assert tuple(built_in) == BUILT_IN
    qwen = [profile for name, profile in built_in.items() if name != "demo"]
    assert {(p.host, p.port, p.served_name) for p in qwen} == {("127.0.0.1", 18000, "qwen3.8-27b")}
    assert {p.model for p in qwen} == {"RadixArk/Qwen3.8-27B-NVFP4"}
    for profile in qwen:
        assert profile.options["reasoning-parser"] == "qwen3"
        assert profile.options["tool-call-parser"] == "qwen3_coder"
        assert profile.environment == {
            "HF_HOME": "{cache}/huggingface",
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        }
        assert {"port", "HF_HOME"} <= set(profile.tunables)


@pytest.mark.parametrize(
    ("name", "requested", "options"),
    [
        (
            "balanced",
            32768,
            {
                "mem-fraction-static": 0.85,
                "attention-backend": "flashinfer",
                "chunked-prefill-size": 2048,
                "mamba-full-memory-ratio": 4.59,
            },
        ),
        (
            "long-context",
            200000,
            {
                "mem-fraction-static": 0.95,
                "chunked-prefill-size": 2048,
                "max-total-tokens": 200000,
                "max-mamba-cache-size": 20,
                "mamba-ssm-dtype": "bfloat16",
            },
        ),
        ("max-context", 262144, {"kv-cache-dtype": "fp8", "enable-auto-tool-choice": True}),
        (
            "mtp",
            32768,
            {
                "kv-cache-dtype": "fp8",
                "speculative-config": {"method": "mtp", "num_speculative_tokens": 4},
            },
        ),
        (
            "dflash",
            32768,
            {
                "kv-cache-dtype": "fp8_e4m3",
                "speculative-algorithm": "DFLASH",
                "speculative-num-draft-tokens": 8,
                "mem-fraction-static": 0.91,
                "chunked-prefill-size": 1024,
                "mamba-ssm-dtype": "bfloat16",
            },
        ),
        (
            "dspark",
            114688,
            {
                "speculative-algorithm": "DSPARK",
                "speculative-draft-attention-backend": "flashinfer",
                "chunked-prefill-size": 2048,
                "max-total-tokens": 114688,
            },
        ),
        ("demo", 2048, {}),
    ],
)
def test_a_built_in_profile_is_its_recipe(
    built_in: Mapping[str, Profile], name: str, requested: int, options: dict[str, Any]
) -> None:
    """The options that make a recipe are in it, with the context that it is for."""
    profile = built_in[name]
    assert profile.context.requested == requested
    assert {key: profile.options.get(key) for key in options} == options


def test_a_recipe_says_no_more_than_it_means(built_in: Mapping[str, Profile]) -> None:
    """What one recipe puts in the place of another's option does not stay beside it."""
    for name in ("long-context", "dflash", "dspark"):
        assert "mamba-full-memory-ratio" not in built_in[name].options
    assert "speculative-num-draft-tokens" not in built_in["dspark"].options
    assert built_in["max-context"].drafter is None
    assert built_in["dspark"].context.floor == 114688


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_profile_satisfies_the_schema(name: str) -> None:
    """The built-in files are examples, which an editor must not find fault with."""
    file = Path(__file__).parents[3] / "servicekit/data/profiles" / f"{name}.toml"
    SCHEMA.validate(data_of(file))


@pytest.mark.parametrize("name", BUILT_IN)
def test_real_parsers_know_every_option(built_in: Mapping[str, Profile], name: str) -> None:
    """Every option on the command line is an exact string of each known version's parser."""
    profile = built_in[name]
    words = ["".join(map(str, word)) for word in engine(profile.engine).words(profile)]
    emitted = {word for word in words if word.startswith("--")}
    for table in tables(profile.engine):
        assert emitted <= set(table.options), table.version
        for option, value in profile.options.items():
            choices = table.options[f"--{option}"].choices
            assert not choices or str(value) in choices, (table.version, option)


@pytest.mark.parametrize("name", EngineName)
def test_what_a_profile_manages_is_an_option(name: EngineName) -> None:
    """The options that other keys set exist in some known version, so none is a misspelling."""
    known = {option for table in tables(name) for option in table.options}
    assert {f"--{option}" for option in MANAGED[name]} <= known


@pytest.mark.parametrize("name", [EngineName.SGLANG, EngineName.VLLM])
def test_no_real_option_is_taken_for_an_abbreviation(name: EngineName) -> None:
    """Only the options of `MANAGED` themselves are refused for setting what another key sets."""
    managed = MANAGED[name]
    for table in tables(name):
        for option in table.options:
            spelt = option.removeprefix("--")
            taken = [m for m in managed if m.startswith(spelt) and m != spelt]
            assert not taken or spelt in managed or len(spelt) < 3, (option, taken)


# -- merging ------------------------------------------------------------------------------------

KEYS = st.sampled_from(["options", "environment", "context", "port", "a", "b"])
TABLES: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.dictionaries(KEYS, st.one_of(st.booleans(), st.integers(0, 3), st.lists(st.integers(0, 3)))),
    lambda inner: st.dictionaries(KEYS, st.one_of(st.booleans(), st.integers(0, 3), inner)),
    max_leaves=12,
)


def removable(path: tuple[str, ...]) -> bool:
    """Whether `false` at `path` takes the key away."""
    return len(path) == 2 and path[0] in {"options", "environment"}


def leaves(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Flatten `table`: each value that is no table, and each empty table, by its path."""
    found: dict[tuple[str, ...], Any] = {}
    for key, value in table.items():
        if isinstance(value, dict) and value:
            found |= leaves(value, (*path, key))
        else:
            found[(*path, key)] = value
    return found


@given(TABLES, TABLES)
def test_merging_keeps_or_replaces(base: dict[str, Any], change: dict[str, Any]) -> None:
    """Each value of the change is there; each value of the base that it does not touch still is."""
    before = json.dumps([base, change])
    merged = leaves(merge(base, change))
    changed = leaves(change)
    for path, value in changed.items():
        if removable(path) and value is False:
            assert path not in merged
        elif value != {}:
            assert merged[path] == value
    for path, value in leaves(base).items():
        touched = any(path[: len(p)] == p or p[: len(path)] == path for p in changed)
        if not touched and not (removable(path) and value is False) and value != {}:
            assert merged[path] == value
    assert json.dumps([base, change]) == before


@given(TABLES, TABLES)
def test_merging_twice_changes_nothing_more(base: dict[str, Any], change: dict[str, Any]) -> None:
    """A change that is already there is no change, and nothing laid over nothing is nothing."""
    once = merge(base, change)
    assert merge(once, change) == once
    assert merge(once, {}) == once


# -- details ------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {
    "summary": "a small one",
    "engine": "sglang",
    "model": "owner/name",
    "served_name": "small",
    "port": 18100,
    "context": {"requested": 4096},
}


def small(**changes: object) -> Profile:
    """Make a small profile with `changes`."""
    return parse({**SMALL, **changes}, name="small", where="test")


def test_a_profile_is_frozen() -> None:
    """Nobody can change a profile that was checked."""
    profile = small()
    with pytest.raises(ValueError, match="frozen"):
        profile.port = 1  # type: ignore[misc]


def test_a_refusal_names_the_file_on_every_line() -> None:
    """Each finding is a line of its own that begins with the file, as compilers do."""
    with pytest.raises(ProfileError) as refused:
        small(port=1, gpus=["x"])
    assert [line.partition(": ")[0] for line in str(refused.value).splitlines()] == ["test", "test"]
    assert refused.value.code == 78


def test_a_wrong_value_does_not_hide_other_faults() -> None:
    """Checks over the whole profile still run, but for those that read a wrong value."""
    with pytest.raises(ProfileError) as refused:
        small(
            port="x",
            options={"api-key": "y"},
            environment={"NOTIFY_SOCKET": "z"},
            context={"requested": 1, "minimum": 2, "wrong": 3},
        )
    places = [finding.partition(":")[0] for finding in refused.value.findings]
    assert places == ["port", "context.wrong", "options.api-key", "environment.NOTIFY_SOCKET"]


def test_a_wrong_name_is_a_finding_like_any() -> None:
    """The name comes from the file's name, and must do for a unit, a section and a path."""
    for name in ("", "-x", "X", "a b", "../x", "a" * 49, "ü", "a.b", "a\n"):
        with pytest.raises(ProfileError, match="name: must "):
            parse(SMALL, name=name, where="test")
    assert parse(SMALL, name="a" * 48, where="test").unit == f"servicekit-{'a' * 48}"


def test_text_that_no_file_can_hold_is_refused() -> None:
    """What an environment gives that is no UTF-8 is a finding, in options as in variables."""
    with pytest.raises(ProfileError) as refused:
        small(options={"log-file": "\udc80"}, environment={"X": "\udc80"})
    assert [finding.partition(": ")[2] for finding in refused.value.findings] == [
        "must be valid UTF-8",
        "must be valid UTF-8",
    ]


def test_the_floor_is_half_of_what_is_requested() -> None:
    """Without a minimum, a start with less than half of the context is a fault."""
    assert small(context={"requested": 101}).context.floor == 50
    assert small(context={"requested": 101, "minimum": 101}).context.floor == 101


def test_every_bound_can_be_said_to_a_service_manager() -> None:
    """A bound may last thirty days and no longer."""
    assert small(stop={"grace": LONGEST}).stop.grace == LONGEST
    with pytest.raises(ProfileError, match=r"stop\.grace: must be at most 2592000"):
        small(stop={"grace": LONGEST + 1})


@pytest.mark.parametrize(
    ("tunable", "variable"),
    [
        ("port", "SERVICEKIT_PORT"),
        ("max-total-tokens", "SERVICEKIT_MAX_TOTAL_TOKENS"),
        ("speculative-config.method", "SERVICEKIT_SPECULATIVE_CONFIG_METHOD"),
        ("HF_HOME", "HF_HOME"),
    ],
)
def test_a_tunable_has_one_variable(tunable: str, variable: str) -> None:
    """A variable keeps its own name; everything else is SERVICEKIT_ and its name."""
    assert variable_of(tunable) == variable


@pytest.mark.parametrize(
    ("options", "low"),
    [
        ({}, None),
        ({"kv-cache-dtype": "auto"}, None),
        ({"kv-cache-dtype": "fp8_e5m2"}, None),
        ({"kv-cache-dtype": "int8_per_token_head"}, None),
        ({"kv_cache_dtype": "nvfp4"}, "kv_cache_dtype = nvfp4"),
        ({"kv-cache-dtype": "mxfp8"}, None),
        ({"kv-cache-dtype": "turboquant_k4v4"}, "kv-cache-dtype = turboquant_k4v4"),
        ({"cache-type-k": "q8_0", "cache-type-v": "iq4_nl"}, "cache-type-v = iq4_nl"),
        ({"cache-type-k": "Q5_1"}, "cache-type-k = Q5_1"),
    ],
)
def test_a_kv_cache_below_fp8_is_seen(options: dict[str, str], low: str | None) -> None:
    """Four-bit and five-bit formats are below FP8, whatever the engine calls them."""
    profile = small(options=options, kv_precision_accepted="measured")
    assert kv_below_fp8(profile) == low
