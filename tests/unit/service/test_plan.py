"""Plans: what wrapper, unit and watchdog agree on."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest

from servicekit.places import below, system_places
from servicekit.profiles.parsing import parse
from servicekit.quoting import Reference
from servicekit.service.plan import Host, Plan, Tunable, make_plan

if TYPE_CHECKING:
    from servicekit.profiles.model import Profile

SMALL: dict[str, Any] = {
    "summary": "a small one",
    "engine": "sglang",
    "model": "owner/name",
    "served_name": "small",
    "port": 18100,
    "tunables": ["port", "max-total-tokens", "mem-fraction-static", "log-level", "HF_HOME"],
    "options": {
        "max-total-tokens": 8192,
        "mem-fraction-static": 0.5,
        "log-level": "info",
        "download-dir": "{cache}/weights",
        "allowed": ["a", "b"],
    },
    "environment": {
        "HF_HOME": "{cache}/hub",
        "URL": "http://{host}:{port}/{served_name}",
        "NOTE": "{state} of {model}, {unknown thing}",
        "EMPTY": "",
    },
    "context": {"requested": 4096, "minimum": 3000},
}


def small(**changes: object) -> Profile:
    """Make a small profile with `changes`."""
    return parse({**SMALL, **changes}, name="small", where="test")


HOST = Host(
    places=below("/srv/llm"),
    servicekit=("/opt/servicekit/bin/servicekit", "--config", "/srv/llm/servicekit.toml"),
    executable="/opt/sglang/bin/sglang",
    model="owner/name",
    user=None,
)


def plan(profile: Profile | None = None, host: Host = HOST) -> Plan:
    """Plan a profile, by default the small one for a host with one throw-away directory."""
    return make_plan(profile or small(), host)


def test_words_refer_to_tunables_and_argv_has_their_defaults() -> None:
    """The wrapper keeps a reference for each tunable; the plain argv has its default."""
    planned = plan()
    words = {word[0]: following for word, following in pairwise(planned.words)}
    assert planned.words[0] == ("/opt/sglang/bin/sglang",)
    assert words["--port"] == (Reference("SERVICEKIT_PORT"),)
    assert words["--max-total-tokens"] == (Reference("SERVICEKIT_MAX_TOTAL_TOKENS"),)
    assert words["--log-level"] == (Reference("SERVICEKIT_LOG_LEVEL"),)
    argv = planned.argv()
    assert len(argv) == len(planned.words)
    plain = dict(pairwise(argv))
    assert plain["--port"] == "18100"
    assert plain["--max-total-tokens"] == "8192"
    assert plain["--mem-fraction-static"] == "0.5"
    assert plain["--download-dir"] == "/srv/llm/cache/weights"
    assert argv[argv.index("--allowed") :][:3] == ("--allowed", "a", "b")


def test_tunables_are_named_with_their_defaults() -> None:
    """Each tunable has its variable, its key and its default, in the profile's order."""
    assert plan().tunables == (
        Tunable("SERVICEKIT_PORT", "port", "18100"),
        Tunable("SERVICEKIT_MAX_TOTAL_TOKENS", "max-total-tokens", "8192"),
        Tunable("SERVICEKIT_MEM_FRACTION_STATIC", "mem-fraction-static", "0.5"),
        Tunable("SERVICEKIT_LOG_LEVEL", "log-level", "info"),
        Tunable("HF_HOME", "HF_HOME", "/srv/llm/cache/hub"),
    )


def test_placeholders_are_filled_once() -> None:
    """A placeholder becomes its value, a tunable port a reference; other braces stay."""
    environment = dict(plan(host=replace(HOST, model="/m/{host}")).environment)
    assert environment["HF_HOME"] == (Reference("HF_HOME"),)
    assert environment["URL"] == (
        "http://",
        "127.0.0.1",
        ":",
        Reference("SERVICEKIT_PORT"),
        "/",
        "small",
    )
    assert environment["NOTE"] == (*("/srv/llm/state", " of ", "/m/{host}", ", {unknown thing}"),)
    assert environment["EMPTY"] == ("",)


def test_a_port_that_is_not_tunable_is_a_literal() -> None:
    """Without the tunable, nothing in the environment can move the engine to another port."""
    profile = small(tunables=[])
    planned = plan(profile)
    assert not any(isinstance(piece, Reference) for word in planned.words for piece in word)
    assert "".join(map(str, dict(planned.environment)["URL"])) == "http://127.0.0.1:18100/small"


def test_the_model_is_what_the_host_decided() -> None:
    """Where the model lies on the host takes the place of how the profile names it."""
    argv = plan(host=replace(HOST, model="/srv/models/name")).argv()
    assert argv[argv.index("--model-path") + 1] == "/srv/models/name"


def test_gpus_are_numbered_as_the_driver_numbers_them() -> None:
    """CUDA sees exactly the profile's GPUs, in the order that nvidia-smi shows; or none at all."""
    several = dict(plan(small(gpus=["1", "GPU-8a1bc2d3"])).environment)
    assert several["CUDA_VISIBLE_DEVICES"] == ("1,GPU-8a1bc2d3",)
    assert several["CUDA_DEVICE_ORDER"] == ("PCI_BUS_ID",)
    assert dict(plan(small(gpus=[])).environment)["CUDA_VISIBLE_DEVICES"] == ("",)


@pytest.mark.parametrize(
    ("engine", "gpus", "seen"),
    [
        ("sglang", ["0"], "GPU-a"),
        ("sglang", ["0", "1"], "0,1"),
        ("vllm", ["0"], "0"),
        ("llamacpp", ["0", "1"], "GPU-a,GPU-b"),
    ],
)
def test_a_gpu_is_called_by_its_uuid_where_the_engine_leaves_that_to_cuda(
    engine: str, gpus: list[str], seen: str
) -> None:
    """A UUID means the same GPU in another slot; some engines take the variable for numbers."""
    host = replace(HOST, uuids=("GPU-a", "GPU-b")[: len(gpus)])
    profile = small(engine=engine, gpus=gpus, options={}, tunables=[])
    assert dict(plan(profile, host).environment)["CUDA_VISIBLE_DEVICES"] == (seen,)


def test_the_hub_is_off_where_the_network_is() -> None:
    """Without a network, looking for the hub would only be waiting."""
    assert dict(plan().environment)["HF_HUB_OFFLINE"] == ("1",)
    online = plan(small(service={"network": "internet"}))
    assert "HF_HUB_OFFLINE" not in dict(online.environment)


def test_the_profile_has_the_last_word_on_variables() -> None:
    """What a profile exports replaces what servicekit would."""
    profile = small(tunables=[], environment={"TRITON_CACHE_DIR": "/x", "HF_HUB_OFFLINE": "0"})
    environment = dict(plan(profile).environment)
    assert environment["TRITON_CACHE_DIR"] == ("/x",)
    assert environment["HF_HUB_OFFLINE"] == ("0",)
    assert environment["HF_HOME"] == ("/srv/llm/cache/huggingface",)


def test_an_engine_finds_its_home_and_its_tools() -> None:
    """Programs beside the engine's are found first; a system service has a home of its own."""
    mine = dict(plan().environment)
    assert mine["PATH"] == ("/opt/sglang/bin:", Reference("PATH"))
    assert "HOME" not in mine
    host = replace(HOST, places=system_places(), executable="sglang")
    system = dict(plan(host=host).environment)
    assert system["HOME"] == ("/var/lib/servicekit/small",)
    assert "PATH" not in system


def test_caches_are_kept_together() -> None:
    """Whatever engines compile is below one directory, where the next start finds it."""
    planned = plan(small(tunables=[], environment={}))
    for name, word in planned.environment:
        if name.endswith(("_HOME", "_DIR", "_PATH", "_BASE", "_ROOT")):
            assert PurePosixPath(str(word[0])).is_relative_to("/srv/llm/cache"), name


def test_the_manager_runs_the_watchdog() -> None:
    """The command is servicekit as it was found, with its settings, and the profile's name."""
    assert plan().watchdog == (
        *("/opt/servicekit/bin/servicekit", "--config", "/srv/llm/servicekit.toml"),
        *("watch", "small", "--plan", "/srv/llm/wrappers/small.plan.json"),
    )


def test_what_an_engine_reads_from_outside_is_scrubbed() -> None:
    """llama.cpp takes every option from a variable, too: those of the caller must not count."""
    llama = small(engine="llamacpp", model="/m.gguf", options={}, tunables=[])
    assert plan(llama).scrub == ("LLAMA_ARG_",)
