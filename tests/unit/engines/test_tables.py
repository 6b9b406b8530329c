"""The option tables: what they hold, and that built-in profiles say nothing else."""

from __future__ import annotations

import argparse
import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import plans
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicekit import data
from servicekit.engines.base import InstalledEngine, LegalValue
from servicekit.engines.helptext import read_help
from servicekit.engines.options.parser import check_flags, read_argv
from servicekit.engines.options.tables import KNOWN, nearest, shipped, table, tables
from servicekit.profiles.rules import _LOW_PRECISION
from servicekit.profiles.vocabulary import EngineName
from servicekit.service.check import tables_for

TOOL = Path(__file__).parents[3] / "tools" / "make_flag_tables.py"
SGLANG, VLLM, LLAMACPP = EngineName.SGLANG, EngineName.VLLM, EngineName.LLAMACPP


@pytest.mark.parametrize("name", plans.BUILT_IN)
def test_built_in_profiles_say_what_every_allowed_version_takes(name: str) -> None:
    """Each option of a built-in profile is in the tables of all versions that it requires."""
    plan = plans.plan(name)
    chosen = tables_for(plan.profile, InstalledEngine())
    assert chosen
    for each in chosen:
        assert check_flags(plan.profile, plan.argv(), each) == ()


@pytest.mark.parametrize("name", plans.BUILT_IN)
def test_built_in_profiles_spell_options_out(name: str) -> None:
    """No abbreviation and no short name: both have changed their meaning between releases."""
    plan = plans.plan(name)
    for each in tables(plan.profile.engine):
        assert all(use.name.startswith("--") for use in read_argv(plan.argv(), each))


@pytest.mark.parametrize(
    ("engine", "version", "option", "legal"),
    [
        (SGLANG, "0.5.16", "--context-length", LegalValue("count")),
        (SGLANG, "0.5.16", "--mem-fraction-static", LegalValue("float")),
        (SGLANG, "0.5.16", "--trust-remote-code", LegalValue("flag")),
        (SGLANG, "0.5.16", "--chunked-prefill-size", LegalValue("int")),
        (SGLANG, "0.5.16", "--cuda-graph-max-bs", LegalValue("int", deprecated=True)),
        (SGLANG, "0.5.16", "--cuda-graph-bs-decode", LegalValue("int", many="+")),
        (SGLANG, "0.5.16", "--default-chat-template-kwargs", LegalValue("json")),
        (SGLANG, "0.5.23", "--enable-linear-replayssm-spec", LegalValue("flag")),
        (SGLANG, "0.5.23", "--model-type", LegalValue("text")),
        (VLLM, "0.32.0", "--max-model-len", LegalValue("count-or-auto")),
        (VLLM, "0.32.0", "--speculative-config", LegalValue("json")),
        (VLLM, "0.32.0", "--served-model-name", LegalValue("text", many="+")),
        (LLAMACPP, "11549", "--ctx-size", LegalValue("number")),
        (LLAMACPP, "11549", "--n-gpu-layers", LegalValue("number", ("auto", "all"))),
        (LLAMACPP, "11549", "--flash-attn", LegalValue("text", ("on", "off", "auto"))),
        (LLAMACPP, "11549", "--draft-max", LegalValue("removed")),
        (LLAMACPP, "11549", "--metrics", LegalValue("flag")),
    ],
)
def test_what_the_tables_hold(
    engine: EngineName, version: str, option: str, legal: LegalValue
) -> None:
    """Samples of each kind, as the parsers have them."""
    assert table(engine, version).options[option] == legal


def test_what_the_tables_do_not_hold() -> None:
    """Options that one release has and another has not are told apart."""
    assert "--enable-linear-replayssm-spec" not in table(SGLANG, "0.5.16").options
    assert "--enable-gdn-replayssm-spec" not in table(SGLANG, "0.5.23").options
    assert "--cuda-graph-max-bs" not in table(SGLANG, "0.5.23").options
    assert "--swap-space" not in table(VLLM, "0.32.0").options


def test_the_nearest_table() -> None:
    """The newest release that is not newer is the best guess; for an older one, the oldest."""
    found = [nearest(SGLANG, version) for version in ("0.5.1", "0.5.20", "0.5.23", "0.6.0.dev1")]
    assert [each.version for each in found if each] == ["0.5.16", "0.5.16", "0.5.23", "0.5.23"]
    assert nearest(EngineName.OPENAI, "1.0") is None


def test_tables_are_small() -> None:
    """They are read whenever a profile is checked, and ship with every install."""
    names = [name for name in data.names("options") if "_" in name]
    sizes = {name: len(data.read("options", name).encode()) for name in names}
    assert len(sizes) == sum(map(len, KNOWN.values()))
    assert max(sizes.values()) < 30_000


def test_every_rename_leads_to_an_option_that_exists() -> None:
    """Advice that is wrong itself would be worse than none."""
    for entry in shipped("renames")["rename"]:
        known = tables(EngineName(entry["engine"]))
        for new in entry.get("to", ()):
            assert any(f"--{new}" in each.options for each in known), new
        for old in entry["from"]:
            legal = [each.options.get(f"--{old}") for each in known]
            gone = [each is None or each.takes == "removed" for each in legal]
            late = [each is not None and each.deprecated for each in legal]
            assert any(gone) or all(late), f"{old} is nowhere gone"


def test_the_gate_of_kv_precision_knows_every_choice() -> None:
    """Each type that an engine can store its KV cache in is below FP8 or is not."""
    choices = {
        choice
        for engine in (SGLANG, VLLM, LLAMACPP)
        for each in tables(engine)
        for option in ("--kv-cache-dtype", "--cache-type-k", "--cache-type-v")
        for choice in each.options.get(option, LegalValue("text")).choices
    }
    above = {choice for choice in choices if not _LOW_PRECISION.search(choice)}
    assert above == {
        *("auto", "bf16", "bfloat16", "f16", "f32", "float16", "fp8", "fp8_ds_mla", "fp8_e4m3"),
        *("fp8_e5m2", "fp8_inc", "fp8_per_token_head", "int8_per_token_head", "mxfp8", "q8_0"),
    }
    assert {"nvfp4", "ultraquant_4bit", "turboquant_k8v4", "iq4_nl", "q5_1"} <= choices - above


LLAMA_HELP = """\
----- common params -----

-h,    --help, --usage                  print usage and exit
-c,    --ctx-size N                     size of the prompt context (default: 0)
                                        (env: LLAMA_ARG_CTX_SIZE)
-fa,   --flash-attn [on|off|auto]       set Flash Attention use ('on', 'off', or 'auto')
--poll-batch <0|1>                      use polling to wait for work
--rope-scaling {none,linear,yarn}       RoPE frequency scaling method
-ctk,  --cache-type-k TYPE              KV cache data type for K
                                        allowed values: f32, f16, q8_0
                                        (default: f16)
--numa TYPE                             attempt optimizations
                                        - distribute: spread execution evenly
                                        - isolate: only spawn threads on one node
-ngl,  --gpu-layers, --n-gpu-layers N   either an exact number, 'auto', or 'all' (default: auto)
--spec-type none,draft-simple,ngram-mod
                                        comma-separated list of types (default:
                                        none)
--reasoning-format FORMAT               one of:
                                        - none: leaves thoughts unparsed
                                        - deepseek: puts thoughts aside
                                        (default: auto)


----- example-specific params -----

--draft, --draft-max N                  the argument has been removed. use --spec-draft-n-max
--control-vector-layer-range START END
                                        layer range to apply the control vector(s) to
--override-tensor <name pattern>=<buffer type>,...
                                        override tensor buffer type
"""


def test_the_help_of_llamacpp() -> None:
    """Its columns, choices in four forms, several names and what it refuses are understood."""
    kv = LegalValue("text", ("f32", "f16", "q8_0"))
    layers = LegalValue("number", ("auto", "all"))
    assert read_help(LLAMA_HELP) == {
        **dict.fromkeys(("-h", "--help", "--usage"), LegalValue("flag")),
        **dict.fromkeys(("-c", "--ctx-size"), LegalValue("number")),
        **dict.fromkeys(("-fa", "--flash-attn"), LegalValue("text", ("on", "off", "auto"))),
        "--poll-batch": LegalValue("text", ("0", "1")),
        "--rope-scaling": LegalValue("text", ("none", "linear", "yarn")),
        **dict.fromkeys(("-ctk", "--cache-type-k"), kv),
        "--numa": LegalValue("text", ("distribute", "isolate")),
        **dict.fromkeys(("-ngl", "--gpu-layers", "--n-gpu-layers"), layers),
        "--spec-type": LegalValue("text", ("none", "draft-simple", "ngram-mod"), ","),
        "--reasoning-format": LegalValue("text", ("none", "deepseek", "auto")),
        **dict.fromkeys(("--draft", "--draft-max"), LegalValue("removed")),
        "--control-vector-layer-range": LegalValue("text", (), "2"),
        "--override-tensor": LegalValue("text"),
    }


ACTIONS: dict[str, tuple[dict[str, Any], LegalValue]] = {
    "flag": ({"action": "store_true"}, LegalValue("flag")),
    "text": ({}, LegalValue("text")),
    "choice": ({"choices": ["a", "b-c"]}, LegalValue("text", ("a", "b-c"))),
    "choices": ({"choices": ["a", "b"], "nargs": "+"}, LegalValue("text", ("a", "b"), "+")),
    "some": ({"nargs": "+"}, LegalValue("text", (), "+")),
    "any": ({"nargs": "*"}, LegalValue("text", (), "*")),
    "maybe": ({"nargs": "?"}, LegalValue("text", (), "?")),
}


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z0-9-]{2,30}[a-z]", fullmatch=True),
        st.sampled_from(sorted(ACTIONS)),
        max_size=5,
    ),
    st.integers(60, 200),
    st.text("ab -,{}[]", max_size=60),
)
def test_the_help_of_argparse(named: dict[str, str], width: int, help_: str) -> None:
    """Whatever argparse prints of an option, at any width, its names and choices come back."""
    named.pop("help", None)
    parser = argparse.ArgumentParser(
        prog="engine",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, width=width),
    )
    for name, kind in named.items():
        parser.add_argument(f"--{name}", help=help_, **ACTIONS[kind][0])
    read = read_help(parser.format_help())
    expected = {f"--{name}": ACTIONS[kind][1] for name, kind in named.items()}
    assert read == {"-h": LegalValue("flag"), "--help": LegalValue("flag"), **expected}


def test_no_option_is_read_from_what_is_no_help() -> None:
    """A traceback or an empty answer tells nothing."""
    assert read_help("") == {}
    assert read_help("Traceback (most recent call last):\n  File x\nImportError: no torch\n") == {}


def test_the_tool_makes_a_table_from_each_kind_of_dump(tmp_path: Path) -> None:
    """What it writes is what the loader reads: types, choices, numbers of values, deprecation."""
    actions: dict[str, dict[str, Any]] = {
        "--flag": {"nargs": 0, "type": "None", "choices": None, "cls": "_StoreTrueAction"},
        "--old": {"nargs": 0, "type": "None", "choices": None, "cls": "DeprecatedAction"},
        "--many": {"nargs": "+", "type": "int", "choices": None},
        "--one": {"nargs": None, "type": "str", "choices": ["a", "b"]},
        "--size": {"nargs": None, "type": "human_readable_int", "choices": None},
        **{f"--wide-{n}": {"nargs": 0, "type": "None", "choices": None} for n in range(20)},
    }
    dump = tmp_path / "sglang_9.9_flags.json"
    dump.write_text(json.dumps(actions), encoding="utf-8")
    text = tmp_path / "llamacpp_9_help.txt"
    text.write_text(LLAMA_HELP, encoding="utf-8")
    subprocess.run([sys.executable, TOOL, tmp_path, dump, text], check=True, timeout=60)
    tool = runpy.run_path(str(TOOL))
    for made, source in (("sglang_9.9", dump), ("llamacpp_9", text)):
        assert (tmp_path / f"{made}.toml").read_text(encoding="utf-8") == tool["render"](
            tool["read_dump"](source), source.name
        )
    assert (
        (tmp_path / "sglang_9.9.toml")
        .read_text(encoding="utf-8")
        .startswith(
            "# Made by tools/make_flag_tables.py from sglang_9.9_flags.json. Do not edit.\n"
            'deprecated = """--old"""\n'
        )
    )
