"""What `check` reads on this host beside the command line: the window of the model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from memory_gguf import QWEN35, gguf

from servicekit.engines.options.parser import Level
from servicekit.profiles.parsing import parse
from servicekit.service.preflight import check_context

if TYPE_CHECKING:
    from pathlib import Path

    from servicekit.engines.options.parser import Remark

WINDOW = 32_768
CONFIG: dict[str, Any] = {"max_position_embeddings": WINDOW, "kv_lora_rank": 512}
"""Of a model whose memory cannot be planned: its window can be read all the same."""
ENGINES = ["sglang", "vllm", "llamacpp"]


def described(folder: Path, engine: str) -> Path:
    """Write what tells `engine` of a model of 32,768 tokens: a GGUF file, or a configuration."""
    if engine == "llamacpp":
        file = folder / "model.gguf"
        file.write_bytes(gguf({**QWEN35, "qwen35.context_length": WINDOW}))
        return file
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def remarks(folder: Path, engine: str, requested: int, **more: object) -> list[Remark]:
    """Check a profile of `engine` for `requested` tokens of such a model in `folder`."""
    model = described(folder, engine)
    profile = {
        "summary": "a model",
        "engine": engine,
        "model": str(model),
        "served_name": "a-model",
        "port": 18010,
        "context": {"requested": requested},
        **more,
    }
    return list(check_context(parse(profile, name="long", where="test"), model))


@pytest.mark.parametrize("engine", ENGINES)
def test_the_whole_window_may_be_requested(tmp_path: Path, engine: str) -> None:
    """A context of exactly the model's window is accepted."""
    assert remarks(tmp_path, engine, WINDOW) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_a_context_above_the_window_is_an_error(tmp_path: Path, engine: str) -> None:
    """The message gives the model's figure and three ways out."""
    (remark,) = remarks(
        tmp_path, engine, 100_000, context={"requested": 100_000, "minimum": WINDOW + 1}
    )
    assert (remark.level, remark.where) == (Level.ERROR, "context.requested")
    assert remark.message.startswith(
        "the model's own window is 32,768 tokens, not the 100,000 requested: lower "
        "context.requested to 32768 and context.minimum to no more than that, or extend the window "
        "by rope scaling: --"
    )
    assert remark.message.endswith(", or choose a checkpoint with a longer window")


@pytest.mark.parametrize(
    ("engine", "level"),
    [("sglang", Level.ERROR), ("vllm", Level.ERROR), ("llamacpp", Level.WARNING)],
)
def test_only_llamacpp_starts_with_less(tmp_path: Path, engine: str, level: Level) -> None:
    """It caps each slot at the window, which this profile's minimum allows; the others refuse."""
    (remark,) = remarks(tmp_path, engine, 2 * WINDOW)
    assert remark.level is level
    assert ": lower context.requested to 32768, or extend" in remark.message


@pytest.mark.parametrize(
    ("engine", "more"),
    [
        ("llamacpp", {"options": {"rope-scaling": "yarn", "rope-scale": 4}}),
        ("llamacpp", {"options": {"yarn-orig-ctx": WINDOW}}),
        ("llamacpp", {"arguments": ["--rope-scale", "4"]}),
        ("vllm", {"options": {"hf-overrides": {"rope_parameters": {"factor": 4.0}}}}),
        ("vllm", {"options": {"hf-overrides.max_position_embeddings": 262_144}}),
        ("vllm", {"environment": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}}),
        ("sglang", {"options": {"json-model-override-args": "{}"}}),
        ("sglang", {"environment": {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}}),
    ],
)
def test_an_extended_window_is_not_refused(
    tmp_path: Path, engine: str, more: dict[str, Any]
) -> None:
    """A profile that scales the model's positions knows its window better than the file does."""
    assert remarks(tmp_path, engine, 4 * WINDOW, **more) == []


def test_the_option_that_sets_the_context_is_named(tmp_path: Path) -> None:
    """SGLang may declare more than the profile requests: the remark is about that option."""
    (remark,) = remarks(tmp_path, "sglang", 8192, options={"context-length": 65_536})
    assert (remark.level, remark.where) == (Level.ERROR, "options.context-length")
    assert "lower --context-length to 32768, or" in remark.message


@pytest.mark.parametrize("config", ["", "[]", "{}", '{"text_config": 3}', '{"text_config": {}}'])
def test_an_unreadable_window_is_left_to_the_engine(tmp_path: Path, config: str) -> None:
    """A configuration without a length, or none at all, is no reason to refuse a start."""
    model = described(tmp_path, "vllm")
    (model / "config.json").write_text(config)
    profile = {
        "summary": "a model",
        "engine": "vllm",
        "model": str(model),
        "served_name": "a-model",
        "port": 18010,
        "context": {"requested": 1 << 20},
    }
    assert list(check_context(parse(profile, name="long", where="test"), model)) == []
