"""What is said of an option that its engine's parser would refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicekit.engines import engine
from servicekit.engines.base import FlagTable, LegalValue
from servicekit.engines.options.parser import Level, Remark, Use, check_flags, read_argv
from servicekit.engines.options.tables import table, tables
from servicekit.profiles.parsing import parse
from servicekit.profiles.vocabulary import EngineName

if TYPE_CHECKING:
    from servicekit.profiles.model import Profile

SGLANG_16 = table(EngineName.SGLANG, "0.5.16")
SGLANG_23 = table(EngineName.SGLANG, "0.5.23")
VLLM = table(EngineName.VLLM, "0.32.0")
LLAMACPP = table(EngineName.LLAMACPP, "11549")


def profile(name: str, **keys: Any) -> Profile:  # noqa: ANN401 - any key of a profile
    """Make a small profile of the engine `name`."""
    least = {
        "summary": "a test",
        "engine": name,
        "model": "owner/model",
        "served_name": "served",
        "port": 18000,
        "context": {"requested": 4096},
        "tunables": [],
    }
    return parse({**least, **keys}, name="small", where="test")


def argv(made: Profile) -> list[str]:
    """Give the whole command line of a profile without tunables."""
    return ["engine", *("".join(map(str, word)) for word in engine(made.engine).words(made))]


def said(of: FlagTable, *arguments: str, **options: Any) -> list[str]:  # noqa: ANN401 - any value
    """Give what is said of `options`, written with underscores, and of further `arguments`."""
    spelt = {name.replace("_", "-"): value for name, value in options.items()}
    made = profile(of.engine, options=spelt, arguments=arguments)
    remarks = check_flags(made, argv(made), of)
    return [f"{each.level}: {each.where}: {each.message}" for each in remarks]


@pytest.mark.parametrize("name", ["sglang", "vllm", "llamacpp"])
def test_what_servicekit_writes_itself_is_legal(name: str) -> None:
    """Every option that the adapters add exists in every version that is known."""
    for each in tables(EngineName(name)):
        made = profile(name, drafter="owner/draft", options={})
        assert check_flags(made, argv(made), each) == ()
    if name != "llamacpp":
        made = profile(name, revision="main")
        assert all(check_flags(made, argv(made), each) == () for each in tables(made.engine))


@pytest.mark.parametrize(
    ("of", "option", "message"),
    [
        (
            SGLANG_23,
            "cuda-graph-max-bs",
            (
                "--cuda-graph-max-bs is not an option of sglang 0.5.23: it is "
                "--cuda-graph-max-bs-decode there"
            ),
        ),
        (
            SGLANG_23,
            "enable-gdn-replayssm-spec",
            (
                "--enable-gdn-replayssm-spec is not an option of sglang 0.5.23: it is "
                "--enable-linear-replayssm-spec there"
            ),
        ),
        (
            SGLANG_16,
            "enable-linear-replayssm-spec",
            (
                "--enable-linear-replayssm-spec is not an option of sglang 0.5.16: it is "
                "--enable-gdn-replayssm-spec there"
            ),
        ),
        (
            SGLANG_23,
            "mamba-scheduler-strategy",
            (
                "--mamba-scheduler-strategy is not an option of sglang 0.5.23: it is "
                "--mamba-radix-cache-strategy there"
            ),
        ),
        (
            VLLM,
            "swap-space",
            (
                "--swap-space is not an option of vllm 0.32.0: it was removed (blocks are no "
                "longer swapped to host memory; kv-offloading-size is another thing)"
            ),
        ),
        (
            LLAMACPP,
            "draft-max",
            "--draft-max is not an option of llama.cpp b11549: it is --spec-draft-n-max there",
        ),
        (
            LLAMACPP,
            "no-mmap",
            (
                "--no-mmap is not an option of llama.cpp b11549: it is --load-mode there "
                '("mlock", "mmap", "none" and "dio")'
            ),
        ),
        (
            SGLANG_16,
            "mem-fraction-statik",
            (
                "--mem-fraction-statik is not an option of sglang 0.5.16; did you mean "
                '"mem-fraction-static"?'
            ),
        ),
        (
            LLAMACPP,
            "flash-atn",
            '--flash-atn is not an option of llama.cpp b11549; did you mean "flash-attn"?',
        ),
        (SGLANG_16, "zzz", "--zzz is not an option of sglang 0.5.16"),
        (
            LLAMACPP,
            "a-lias",
            '--a-lias is not an option of llama.cpp b11549; did you mean "alias"?',
        ),
        (
            SGLANG_23,
            "chunked-prefill",
            (
                "--chunked-prefill is not an option of sglang 0.5.23: its parser takes it "
                "for --chunked-prefill-size, other releases may not"
            ),
        ),
        (
            SGLANG_23,
            "mamba-s",
            (
                "--mamba-s is not an option of sglang 0.5.23: its parser takes it for "
                "--mamba-ssm-dtype, other releases may not"
            ),
        ),
        (
            SGLANG_23,
            "kv-",
            (
                "--kv- is not an option of sglang 0.5.23: it could stand for --kv-cache-dtype, "
                "--kv-canary, --kv-canary-real-data, --kv-canary-sweep-interval, --kv-events-config"
            ),
        ),
    ],
)
def test_an_option_that_does_not_exist(of: FlagTable, option: str, message: str) -> None:
    """It is named with what took its place, else with what it could stand for, else the nearest."""
    assert said(of, **{option: 1}) == [f"error: options.{option}: {message}"]


def test_a_successor_is_named_only_where_it_exists() -> None:
    """What took an option's place in one version may itself be gone in another."""
    bare = FlagTable(EngineName.SGLANG, "9.9", {"--model-path": LegalValue("text")})
    words = ["sglang", "--cuda-graph-max-bs", "8"]
    (remark,) = check_flags(profile("sglang"), words, bare)
    assert remark.message == "--cuda-graph-max-bs is not an option of sglang 9.9"


def test_many_candidates_are_not_all_listed() -> None:
    """A remark stays one line that can be read."""
    (remark,) = said(SGLANG_23, disable_=1)
    assert remark.count("--disable-") == 13
    assert remark.endswith(", …")


@pytest.mark.parametrize(
    ("of", "option", "value", "message"),
    [
        (SGLANG_16, "context-length", "32k", None),
        (SGLANG_16, "context-length", "32Ki", None),
        (SGLANG_16, "context-length", "1.5M", None),
        (
            SGLANG_16,
            "context-length",
            "32K",
            'must be a whole number, where 32k is 32,000 and 32Ki is 32,768, not "32K"',
        ),
        (
            SGLANG_16,
            "context-length",
            "1.5Ki",
            'must be a whole number, where 32k is 32,000 and 32Ki is 32,768, not "1.5Ki"',
        ),
        (VLLM, "max-num-batched-tokens", "8K", None),
        (VLLM, "max-num-batched-tokens", "1.5k", None),
        (
            VLLM,
            "max-num-batched-tokens",
            "1.5K",
            'must be a whole number, where 32k is 32,000 and 32K is 32,768, not "1.5K"',
        ),
        (SGLANG_16, "chunked-prefill-size", "2k", 'must be a whole number, not "2k"'),
        (SGLANG_16, "chunked-prefill-size", -1, None),
        (SGLANG_16, "mem-fraction-static", "most", 'must be a number, not "most"'),
        (SGLANG_16, "mem-fraction-static", 0.95, None),
        (SGLANG_16, "trust-remote-code", "yes", 'takes no value, but "yes" follows it'),
        (SGLANG_16, "mem-fraction-static", True, "needs a value"),
        (SGLANG_16, "dtype", ["half", "auto"], 'takes one value, but "auto" follows as well'),
        (
            SGLANG_16,
            "kv-cache-dtype",
            "fp8",
            (
                "must be one of auto, fp8_e5m2, fp8_e4m3, mxfp8, bf16, bfloat16, nvfp4, "
                'fp4_mx_block16, fp4_e2m1, not "fp8"'
            ),
        ),
        (SGLANG_16, "cuda-graph-bs-decode", [1, 2, 4], None),
        (SGLANG_16, "cuda-graph-bs-decode", [1, "two"], 'must be a whole number, not "two"'),
        (SGLANG_16, "model-checksum", True, None),
        (VLLM, "moe-backend", "flashinfer-cutlass", None),
        (VLLM, "speculative-config", {"method": "mtp"}, None),
        (VLLM, "speculative-config.method", "mtp", None),
        (
            VLLM,
            "speculative-config",
            "mtp",
            'must be JSON, which a table gives, not "mtp"',
        ),
        (LLAMACPP, "n-gpu-layers", "all", None),
        (LLAMACPP, "n-gpu-layers", 99, None),
        (LLAMACPP, "n-gpu-layers", "most", 'must be a number, not "most"'),
        (LLAMACPP, "spec-type", "draft-mtp,ngram-mod", None),
        (LLAMACPP, "control-vector-layer-range", [1, 2], None),
        (LLAMACPP, "reasoning-budget-message", "--enough", None),
        (LLAMACPP, "flash-attn", "yes", 'must be one of on, off, auto, not "yes"'),
    ],
)
def test_a_value(of: FlagTable, option: str, value: object, message: str | None) -> None:
    """A value is legal as the engine's own parser has it, or what would be legal is said."""
    expected = [] if message is None else [f"error: options.{option}: {message}"]
    assert said(of, **{option: value}) == expected


def test_vllm_may_fit_its_length_itself() -> None:
    """`auto` is a length to vLLM, and the only word that is."""
    one = FlagTable(EngineName.VLLM, "9", {"--l": LegalValue("count-or-auto")})
    made = profile("vllm")
    assert check_flags(made, ["vllm", "--l", "auto"], one) == ()
    (remark,) = check_flags(made, ["vllm", "--l", "o"], one)
    assert remark.message.startswith("must be a whole number")


def test_one_wrong_member_of_a_list_is_named() -> None:
    """llama.cpp's kinds of speculation are one word joined by commas."""
    (remark,) = said(LLAMACPP, spec_type="draft-mtp,ngram-modd")
    assert remark.endswith('ngram-cache, not "ngram-modd"; did you mean "ngram-mod"?')


def test_a_fixed_number_of_values() -> None:
    """Where llama.cpp takes two words, one is too few."""
    made = profile("llamacpp")
    words = ["llama-server", "--control-vector-layer-range", "1"]
    assert check_flags(made, words, LLAMACPP) == (
        Remark(Level.ERROR, "arguments", "takes 2 values, not 1"),
    )


def test_a_deprecated_option_is_a_warning() -> None:
    """It still works, and what to write now is said before it does not."""
    assert said(SGLANG_16, cuda_graph_max_bs=8) == [
        (
            "warning: options.cuda-graph-max-bs: is deprecated in sglang 0.5.16: it is "
            "--cuda-graph-max-bs-decode there"
        )
    ]


def test_false_does_not_turn_off() -> None:
    """Where the engine has a `--no-` form, leaving the option out is not the same."""
    assert said(VLLM, enable_prefix_caching=False) == [
        (
            "warning: options.enable-prefix-caching: false only leaves the option out; "
            "no-enable-prefix-caching = true turns it off"
        )
    ]
    assert said(SGLANG_16, mamba_full_memory_ratio=False) == []


def test_arguments_are_checked_as_well() -> None:
    """Words of the user's own are held against the table like options, also joined by `=`."""
    assert said(SGLANG_16, "--tp-siz=2", "--tp-size=two") == [
        (
            "error: arguments: --tp-siz is not an option of sglang 0.5.16: its parser takes "
            "it for --tp-size, other releases may not"
        ),
        'error: arguments: must be a whole number, not "two"',
    ]
    assert said(LLAMACPP, "--verbos", "3") == [
        'error: arguments: --verbos is not an option of llama.cpp b11549; did you mean "verbose"?'
    ]


def test_how_a_command_line_is_read() -> None:
    """Python's parsers take words up to the next option; llama.cpp takes a fixed number."""
    words = ["x", "serve", "model", "--a", "1", "-2", "--b=c", "-", "--d"]
    assert read_argv(words, SGLANG_16) == (
        Use("--a", ("1", "-2")),
        Use("--b", ("c", "-")),
        Use("--d", ()),
    )
    assert read_argv(["x", "serve"], SGLANG_16) == ()
    words = ["x", "--metrics", "stray", "--alias", "--port", "--port", "8080", "--nope", "--port"]
    assert read_argv(words, LLAMACPP) == (
        Use("--metrics", ()),
        Use("--alias", ("--port",)),
        Use("--port", ("8080",)),
        Use("--nope", ()),
        Use("--port", ()),
    )


@given(st.lists(st.text("-=a1. ", max_size=6), max_size=8), st.sampled_from([SGLANG_16, LLAMACPP]))
def test_any_words_can_be_checked(words: list[str], of: FlagTable) -> None:
    """No command line is too odd to be spoken about."""
    for remark in check_flags(profile(of.engine), ["engine", *words], of):
        assert "\n" not in remark.message
