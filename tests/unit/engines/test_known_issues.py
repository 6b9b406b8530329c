"""What is known against combinations that a parser lets pass."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import plans
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicekit.engines import engine
from servicekit.engines.base import InstalledEngine
from servicekit.engines.options.known_issues import check_known, emitted, in_range
from servicekit.engines.options.parser import Level, Remark, Use, read_argv
from servicekit.engines.options.tables import shipped, tables
from servicekit.profiles.parsing import parse
from servicekit.profiles.vocabulary import EngineName

if TYPE_CHECKING:
    from servicekit.profiles.model import Profile

NVFP4 = "RadixArk/Qwen3.8-27B-NVFP4"
BF16_HEAD = "RadixArk/Qwen3.8-27B-NVFP4-BF16-LMHead"
RTX_5090 = "12.0"
B200 = "10.0"


def installed(
    capability: str | None = RTX_5090, cuda: str | None = "13.0", **v: str
) -> InstalledEngine:
    """Give an installed engine by its packages, written with underscores."""
    packages = {name.replace("_", "-"): version for name, version in v.items()}
    return InstalledEngine("/opt/engine", packages, cuda, capability)


def profile(name: str, **keys: Any) -> Profile:  # noqa: ANN401 - any key of a profile
    """Make a small profile of the engine `name`."""
    least = {
        "summary": "a test",
        "engine": name,
        "executable": "/opt/engine",
        "model": "owner/model",
        "served_name": "served",
        "port": 18000,
        "context": {"requested": 4096},
        "tunables": [],
    }
    return parse({**least, **keys}, name="small", where="test")


def known(made: Profile, here: InstalledEngine = InstalledEngine()) -> tuple[Remark, ...]:  # noqa: B008
    """Give what is known against a profile."""
    words = ["engine", *("".join(map(str, word)) for word in engine(made.engine).words(made))]
    of = tables(made.engine)
    return check_known(made, read_argv(words, of[-1]) if of else (), here)


def against(
    name: str,
    here: InstalledEngine = InstalledEngine(),  # noqa: B008 - frozen
    *,
    model: str = "owner/model",
    **options: Any,  # noqa: ANN401 - any value
) -> list[str]:
    """Give level and place of what is known against options, written with underscores."""
    spelt = {option.replace("_", "-"): value for option, value in options.items()}
    made = profile(name, model=model, options=spelt)
    return [f"{remark.level} {remark.where}" for remark in known(made, here)]


DSPARK: dict[str, Any] = {"speculative_algorithm": "DSPARK", "max_running_requests": 1}
LAZY: dict[str, Any] = {"mamba_radix_cache_strategy": "extra_buffer_lazy"}
MTP: dict[str, Any] = {"speculative_algorithm": "EAGLE", "max_running_requests": 1}
ALGORITHM = "options.speculative-algorithm"


@pytest.mark.parametrize(
    ("version", "model", "expected"),
    [
        ("0.5.16", NVFP4, [f"error {ALGORITHM}"]),
        ("0.5.17.post1", NVFP4, [f"error {ALGORITHM}"]),
        ("0.5.18", NVFP4, []),
        ("0.5.23", NVFP4, []),
        ("0.5.16", BF16_HEAD, []),
        ("0.5.16", "owner/other", []),
    ],
)
def test_dspark_and_the_packed_head(version: str, model: str, expected: list[str]) -> None:
    """The version, the algorithm and the checkpoint's head decide together."""
    here = installed(sglang=version, flashinfer_python="0.7.2")
    assert against("sglang", here, model=model, **DSPARK) == expected


def test_what_cannot_be_told_here_is_a_note() -> None:
    """Without the engine at hand the condition itself is said."""
    made = profile("sglang", model=NVFP4, options={"speculative-algorithm": "DSPARK"})
    first = known(made)[0]
    assert first.level is Level.NOTE
    assert first.message.startswith("with sglang <0.5.18: DSpark multiplies states of 5,120")
    assert first.source.startswith("sgl-project/sglang#35354")


def test_what_the_profile_requires_rules_out() -> None:
    """A version that `requires` forbids needs no note."""
    here = {"sglang": ">=0.5.18", "flashinfer-python": ">0.6.15.post1"}
    options = {"speculative-algorithm": "DSPARK", "max-running-requests": 1}
    assert known(profile("sglang", model=NVFP4, options=options, requires=here)) == ()


@pytest.mark.parametrize(
    ("version", "speculation", "expected"),
    [
        ("0.5.16", MTP, ["error options.mamba-radix-cache-strategy"]),
        ("0.5.22", MTP, ["error options.mamba-radix-cache-strategy"]),
        ("0.5.23", MTP, []),
        ("0.5.16", {}, []),
    ],
)
def test_lazy_buffers_and_speculation(
    version: str, speculation: dict[str, Any], expected: list[str]
) -> None:
    """SGLang 0.5.23 lifted the assertion."""
    here = installed(sglang=version, flashinfer_python="0.7.2")
    assert against("sglang", here, **LAZY, **speculation) == expected


@pytest.mark.parametrize(
    ("flashinfer", "backend", "expected"),
    [
        ("0.6.14", "flashinfer", [f"error {ALGORITHM}"]),
        ("0.6.15.post1", "flashinfer", [f"error {ALGORITHM}"]),
        ("0.6.16", "flashinfer", []),
        ("0.7.2", "flashinfer", []),
        ("0.6.14", "triton", []),
    ],
)
def test_flashinfer_and_drafts(flashinfer: str, backend: str, expected: list[str]) -> None:
    """Up to 0.6.15.post1 it cannot verify drafts; Triton can."""
    here = installed(sglang="0.5.23", flashinfer_python=flashinfer)
    assert against("sglang", here, **MTP, attention_backend=backend) == expected


@pytest.mark.parametrize(
    ("version", "capability", "expected"),
    [
        ("0.5.16", RTX_5090, ["error options.attention-backend"]),
        ("0.5.16", B200, []),
        ("0.5.23", RTX_5090, ["error options.attention-backend"]),
        ("0.5.23", B200, []),
        ("0.5.23", "9.0", []),
        ("0.5.16", None, ["note options.attention-backend"]),
    ],
)
def test_trtllm_mha(version: str, capability: str | None, expected: list[str]) -> None:
    """It is for SM100; later releases take SM120, but not with an FP8 cache."""
    here = installed(capability, sglang=version)
    assert against("sglang", here, attention_backend="trtllm_mha") == expected


@pytest.mark.parametrize(
    ("capability", "cuda", "expected"),
    [
        (RTX_5090, "12.6", ["error engine"]),
        (RTX_5090, "12.8", []),
        (RTX_5090, None, []),
        (B200, "12.6", []),
    ],
)
def test_consumer_blackwell_needs_a_recent_cuda(
    capability: str, cuda: str | None, expected: list[str]
) -> None:
    """What is about no option is said where it is certain, and else not at all."""
    assert against("vllm", installed(capability, cuda, vllm="0.32.0")) == expected


def test_a_profile_without_a_gpu_has_no_trouble_with_one() -> None:
    """A card that a CPU profile does not use cannot be the wrong one."""
    here = installed(RTX_5090, "12.6", vllm="0.32.0")
    assert known(profile("vllm", gpus=[]), here) == ()


@pytest.mark.parametrize(
    ("tokens", "block", "said"),
    [
        (8, 7, None),
        (4, 7, "error: must be speculative-dspark-block-size + 1 (8), not 4"),
        (4, None, "warning: must be the checkpoint's gamma + 1 with DSpark; it is derived"),
        (None, 7, None),
        (None, None, None),
    ],
)
def test_gamma_plus_one(tokens: int | None, block: int | None, said: str | None) -> None:
    """DSpark drafts as many tokens as its block has, and verifies one more."""
    options = {
        "speculative-algorithm": "DSPARK",
        "max-running-requests": 1,
        "speculative-num-draft-tokens": tokens or False,
        "speculative-dspark-block-size": block or False,
    }
    here = installed(sglang="0.5.23", flashinfer_python="0.7.2")
    remarks = known(profile("sglang", drafter="owner/draft", options=options), here)
    spoken = [f"{each.level}: {each.message}" for each in remarks]
    assert (spoken == []) if said is None else spoken[0].startswith(said)


def test_draft_tokens_of_other_algorithms_are_free() -> None:
    """EAGLE's number of draft tokens is a choice."""
    here = installed(sglang="0.5.23", flashinfer_python="0.7.2")
    assert against("sglang", here, **MTP, speculative_num_draft_tokens=4) == []


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("sglang", {"speculative_algorithm": "DFLASH", "max_running_requests": 1}, "error"),
        ("sglang", {"speculative_algorithm": "NGRAM"}, "warning"),
        ("sglang", {"mamba_radix_cache_strategy": "no_buffer"}, "error"),
        ("sglang", {"ssl_certfile": "/x"}, "error"),
        ("sglang", {"smg_grpc_mode": True}, "error"),
        ("sglang", {"is_embedding": True}, "error"),
        ("sglang", {"config": "/x.yaml"}, "note"),
        ("vllm", {"enable_auto_tool_choice": True}, "error"),
        ("vllm", {"tool_call_parser": "hermes"}, "warning"),
        ("vllm", {"speculative_config": {"method": "mtp"}}, "error"),
        ("vllm", {"disable_log_stats": True}, "error"),
        ("vllm", {"headless": True}, "error"),
        ("vllm", {"grpc": True}, "error"),
        ("vllm", {"ssl_certfile": "/x"}, "error"),
        ("llamacpp", {"ssl_cert_file": "/x"}, "error"),
        ("llamacpp", {"embedding": True}, "error"),
        ("llamacpp", {"api_prefix": "/x"}, "error"),
        ("llamacpp", {"sleep_idle_seconds": 60}, "warning"),
        ("llamacpp", {"reuse_port": True}, "error"),
        ("llamacpp", {"log_disable": True}, "warning"),
        ("llamacpp", {"agent": True}, "warning"),
        ("llamacpp", {"tools": "all"}, "warning"),
    ],
)
def test_what_each_engine_lets_pass(name: str, options: dict[str, Any], expected: str) -> None:
    """A server that could not be watched, reached or trusted is named before it is started."""
    first = next(iter(options)).replace("_", "-")
    assert against(name, **options)[0].startswith(f"{expected} options.{first}")


def test_what_each_engine_needs_beside_it() -> None:
    """The missing half silences what was said of the first."""
    tools: dict[str, Any] = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    assert against("vllm", **tools) == []
    config = {"method": "mtp", "num_speculative_tokens": 4}
    here = installed(vllm="0.32.0")
    assert against("vllm", here, speculative_config=config) == []
    overlap: dict[str, Any] = {
        "mamba_radix_cache_strategy": "no_buffer",
        "disable_overlap_schedule": True,
    }
    assert against("sglang", **overlap) == []


def test_a_drafter_of_vllm_needs_its_number_of_tokens() -> None:
    """The adapter names the model; how many tokens it drafts only the profile can say."""
    remarks = known(profile("vllm", drafter="owner/draft"))
    assert [each.where for each in remarks] == ["arguments"]
    assert "needs num_speculative_tokens" in remarks[0].message


def test_mtp_with_full_graphs_in_one_release() -> None:
    """A release that answers garbage with status 200 is named, unless the graphs are changed."""
    config = {"method": "mtp", "num_speculative_tokens": 4}
    here = installed(vllm="0.27.1")
    place = "error options.speculative-config.method"
    assert against("vllm", here, speculative_config=config) == [place]
    piecewise = {"cudagraph_mode": "PIECEWISE"}
    assert against("vllm", here, speculative_config=config, compilation_config=piecewise) == []


def test_the_engine_listens_on_loopback_alone() -> None:
    """VLLM without a host listens everywhere, and no host but loopback passes for any engine."""
    made = profile("vllm")
    (remark,) = check_known(made, (Use("--port", ("1",)),), InstalledEngine())
    assert (remark.level, remark.where) == (Level.ERROR, "host")
    assert "every interface" in remark.message
    for host, count in (("127.0.0.1", 0), ("::1", 0), ("localhost", 0), ("0.0.0.0", 1), ("a", 1)):
        assert len(check_known(made, (Use("--host", (host,)),), InstalledEngine())) == count


def test_a_json_value_is_looked_into() -> None:
    """Conditions may name a key of a JSON value behind its option."""
    uses = (Use("--a", ('{"b": 1, "c": {"d": 2}}',)), Use("--e", ("{x",)), Use("-f", ("1", "2")))
    assert emitted(uses) == {
        "a": '{"b": 1, "c": {"d": 2}}',
        "a.b": "1",
        "a.c": "{'d': 2}",
        "e": "{x",
        "f": "1 2",
    }


@pytest.mark.parametrize(
    ("spec", "version", "required", "answer"),
    [
        ("<0.5.18", "0.5.16", None, True),
        ("<0.5.18", "0.5.18", None, False),
        ("<0.5.18", "0.5.18.dev1+cu130", None, False),
        ("<0.5.18", None, None, None),
        ("<0.5.18", None, ">=0.5.16", None),
        ("<0.5.18", None, ">=0.5.18", False),
        ("<0.5.18", None, ">0.5.17", None),
        ("<=0.6.15.post1", None, ">0.6.15.post1", False),
        ("==0.27.1", None, "~=0.32", False),
        ("==0.27.1", None, "==0.27.*", None),
        (">=b11434", "11549", None, True),
        (">=b11434,<b11500", "11549", None, False),
    ],
)
def test_ranges_of_versions(
    spec: str, version: str | None, required: str | None, *, answer: bool | None
) -> None:
    """An unknown version is ruled out only where no version could satisfy both ranges."""
    assert in_range(spec, version, required) is answer


@given(
    st.sampled_from(["<", "<=", ">", ">=", "=="]),
    st.integers(0, 5),
    st.sampled_from(["<", "<=", ">", ">=", "=="]),
    st.integers(0, 5),
)
def test_a_version_that_exists_is_never_ruled_out(
    first: str, one: int, second: str, other: int
) -> None:
    """Where some release satisfies both ranges, the answer is not a no."""
    spec, required = f"{first}0.1.{one}", f"{second}0.1.{other}"
    releases = [f"0.1.{number}" for number in range(8)]
    if any(in_range(spec, each, None) and in_range(required, each, None) for each in releases):
        assert in_range(spec, None, required) is None


def test_every_entry_can_be_read_and_has_its_source() -> None:
    """The list is data; what is wrong in it would be found only when it is needed."""
    entries = shipped("incompatibilities")["known"]
    names = [entry["name"] for entry in entries]
    assert len(set(names)) == len(names)
    for entry in entries:
        assert Level(entry["level"])
        assert entry["source"]
        assert entry["says"].isprintable()
        re.compile(entry.get("model", ""))
        for spec in (*entry.get("packages", {}).values(), entry.get("versions", ">0")):
            assert in_range(spec, "1.0", None) in {True, False}
        engines = [EngineName(entry["engine"])] if "engine" in entry else list(EngineName)
        for option in (*entry.get("options", ()), *entry.get("without", ())):
            name = f"--{option.partition('.')[0]}"
            assert any(name in each.options for of in engines for each in tables(of)), option
        assert "versions" not in entry or "engine" in entry


@pytest.mark.parametrize("name", plans.BUILT_IN)
def test_nothing_is_known_against_built_in_profiles(name: str) -> None:
    """On the card they are for, with a recent engine, they have nothing against them but notes."""
    plan = plans.plan(name)
    here = installed(sglang="0.5.23", vllm="0.32.0", flashinfer_python="0.7.2")
    uses = read_argv(plan.argv(), tables(plan.profile.engine)[-1])
    assert check_known(plan.profile, uses, here) == ()
