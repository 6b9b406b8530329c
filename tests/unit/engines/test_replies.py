"""What each engine's replies mean: who answers, what it said, how much context there is."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicekit.engines import ENGINES, engine
from servicekit.engines.base import Completion, Contexts, ShapeError
from servicekit.engines.shapes import names_listed, quote
from servicekit.profiles.parsing import parse
from servicekit.profiles.vocabulary import EngineName

if TYPE_CHECKING:
    from servicekit.profiles.model import Profile

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
"""Any value that JSON can hold."""

COUNTED = [EngineName.SGLANG, EngineName.VLLM, EngineName.LLAMACPP]
"""Engines with a pool and counters of their own."""


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
    }
    return parse({**least, **keys}, name="small", where="test")


def models(**entry: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Give the body of `/v1/models` with one entry."""
    return {"object": "list", "data": [{"id": "served", "object": "model"} | entry]}


def reply(message: dict[str, Any], **keys: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Give the body of a chat completion with one choice."""
    choice = {"index": 0, "message": {"role": "assistant"} | message, "finish_reason": "length"}
    return {"model": "served", "choices": [choice], "usage": {"completion_tokens": 8}} | keys


@pytest.mark.parametrize("name", EngineName)
def test_the_bounded_completion(name: EngineName) -> None:
    """It is short, repeatable, of the served model, and has no priority, which SGLang aborts."""
    probe = {"prompt": "Say four.", "max_tokens": 3}
    request = engine(name).completion_request(profile(name, probe=probe))
    thinking = request.pop("chat_template_kwargs", None)
    assert thinking == (None if name is EngineName.OPENAI else {"enable_thinking": False})
    assert request == {
        "model": "served",
        "messages": [{"role": "user", "content": "Say four."}],
        "max_tokens": 3,
        "temperature": 0,
        "stream": False,
    }


@pytest.mark.parametrize("name", COUNTED)
def test_a_profile_may_let_the_model_think(name: EngineName) -> None:
    """With `probe.thinking` the template is left as it is."""
    request = engine(name).completion_request(profile(name, probe={"thinking": True}))
    assert "chat_template_kwargs" not in request


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": "Four."}, "Four."),
        ({"content": None, "reasoning_content": "Two and"}, "Two and"),
        ({"content": None, "reasoning": "Two and"}, "Two and"),
        ({"content": "Four.", "reasoning_content": "2 + 2"}, "2 + 2\nFour."),
        ({"content": None, "reasoning": None}, ""),
        ({"content": ""}, ""),
        ({}, ""),
        ({"content": [{"type": "text", "text": "Four."}]}, ""),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", COUNTED)
def test_text_is_found_where_the_engine_put_it(
    name: EngineName, message: dict[str, Any], text: str
) -> None:
    """Reasoning has two names; a healthy reply may have no text at all, and still has tokens."""
    assert engine(name).completion(reply(message)) == Completion("served", 8, "length", text)


def test_what_a_reply_leaves_out_is_not_made_up() -> None:
    """Without a model, a reason or a count there is none, and the gate will say so."""
    body = {"choices": [{"message": {"content": "Four."}}]}
    assert engine(EngineName.VLLM).completion(body) == Completion(None, 0, None, "Four.")
    odd = reply({"content": "x"}, usage={"completion_tokens": True}, model=7)
    assert engine(EngineName.VLLM).completion(odd) == Completion(None, 0, "length", "x")


@pytest.mark.parametrize(
    ("usage", "message", "tokens"),
    [
        (None, {"content": "Four."}, 1),
        (None, {"content": ""}, 0),
        ({"completion_tokens": 5}, {"content": "Four."}, 5),
        ({"completion_tokens": 0}, {"content": "Four."}, 0),
    ],
)
def test_a_server_that_does_not_count_made_a_token_if_there_is_text(
    usage: object, message: dict[str, Any], tokens: int
) -> None:
    """OpenAI's API lets a server leave out `usage`; where it counts, it is taken at its word."""
    read = engine(EngineName.OPENAI).completion(reply(message, usage=usage))
    assert read.completion_tokens == tokens


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        "<html>",
        {},
        {"choices": []},
        {"choices": [None]},
        {"choices": [{"message": None}]},
        {"choices": [{"delta": {}}]},
        {"error": {"message": "Loading model", "code": 503}},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", EngineName)
def test_a_body_that_is_no_completion_is_quoted(name: EngineName, body: object) -> None:
    """The error shows how the body begins, for that may say what is wrong."""
    with pytest.raises(ShapeError, match="not a chat completion: ") as refused:
        engine(name).completion(body)
    assert quote(body) in str(refused.value)


@given(body=JSON)
def test_no_body_is_too_odd(body: object) -> None:
    """Whatever JSON a server answers with, it is read or refused, and nothing else happens."""
    for adapter in ENGINES.values():
        made = profile(adapter.name)
        for read in (
            lambda: adapter.completion(body),  # noqa: B023 - called at once
            lambda: adapter.served(body, made),  # noqa: B023 - as above
            lambda: adapter.declared(body, made),  # noqa: B023 - as above
            lambda: adapter.pool(json.dumps(body), made),  # noqa: B023 - as above
        ):
            with contextlib.suppress(ShapeError):
                read()


def test_a_long_body_is_quoted_in_short_and_on_one_line() -> None:
    """An error fits into a journal line, whatever the server sent."""
    assert quote("a\n  b") == "a b"
    assert quote("x" * 1000) == "x" * 200 + "…"
    assert quote("\x1b[2J\x9b1m\ud800\0") == "\\x1b[2J\\x9b1m\\ud800\\x00"
    assert quote({"a": object}) == '{"a": "<class \'object\'>"}'


@pytest.mark.parametrize("name", EngineName)
def test_the_served_name_must_be_listed(name: EngineName) -> None:
    """SGLang and llama-server answer to any name, so that the list decides."""
    adapter, made = engine(name), profile(name)
    assert adapter.served(models(), made)
    assert adapter.served({"data": [{"id": "other"}, {"id": "served"}]}, made)
    assert not adapter.served(models(id="other"), made)
    assert not adapter.served({"data": []}, made)
    assert not adapter.served({"data": [{"id": 7}, None]}, made)
    with pytest.raises(ShapeError, match=r'not a list of models: \{"detail": "Not Found"\}'):
        adapter.served({"detail": "Not Found"}, made)
    with pytest.raises(ShapeError, match="not a list of models"):
        adapter.served([], made)


def test_vllm_tells_which_model_has_the_name() -> None:
    """`root` is the model at vLLM and the name once more at SGLang."""
    vllm, sglang = engine(EngineName.VLLM), engine(EngineName.SGLANG)
    assert vllm.served(models(root="owner/model"), profile("vllm"))
    assert not vllm.served(models(root="owner/other"), profile("vllm"))
    assert sglang.served(models(root="served"), profile("sglang"))


CACHE = "/cache/hub/models--owner--model/snapshots/cafe"


@pytest.mark.parametrize(
    ("path", "model", "same"),
    [
        ("owner/model", "owner/model", True),
        ("owner/other", "owner/model", False),
        (CACHE, "owner/model", True),
        (CACHE, "owner/other", False),
        (f"{CACHE}/model.Q4.gguf", "owner/model:Q4", True),
        (f"{CACHE}/model.Q4.gguf", "owner/other:Q4", False),
        (f"{CACHE}/model.Q4.gguf", "owner/model:model.Q4.gguf", True),
        (f"{CACHE}/model.Q4.gguf", "owner/model:model.Q8.gguf", False),
        ("/elsewhere/owner_model.gguf", "owner/model:Q4", True),
        ("/models/a", "/models/a/", True),
        ("/mnt/models/a", "/models/a", True),
        ("/models/b", "/models/a", False),
        ("/env/lib/package/small.gguf", "package:small.gguf", True),
        ("/env/lib/package/large.gguf", "package:small.gguf", False),
        ("relative/small.gguf", "/models/small.gguf", True),
        ("/var/object-store/8f3a", "owner/model", True),
        ("", "/models/a", True),
    ],
)
@pytest.mark.parametrize("name", ["sglang", "llamacpp"])
def test_the_loaded_model_is_compared_as_far_as_it_can_be(
    name: str, path: str, model: str, *, same: bool
) -> None:
    """Another name, file or cached repository is another model; a path of its own may be any."""
    profile_of_model = profile(name).model_copy(update={"model": model})
    assert engine(EngineName(name)).loaded(f'{{"model_path": "{path}"}}', profile_of_model) is same


@pytest.mark.parametrize("body", ["{}", '{"model_path": null}', '{"model_path": 7}'])
def test_an_engine_that_reports_no_model_is_not_refused(body: str) -> None:
    """Releases without the field, and routers without a model, say nothing about it."""
    assert engine(EngineName.LLAMACPP).loaded(body, profile("llamacpp"))


@pytest.mark.parametrize("name", EngineName)
def test_the_reply_must_be_the_served_models(name: EngineName) -> None:
    """A reply by another name, or by none, is another model's."""
    adapter, made = engine(name), profile(name)
    assert adapter.answers_as("served", made)
    assert not adapter.answers_as("other", made)
    assert not adapter.answers_as(None, made)
    assert adapter.answers_as("served@main", made) is (name is EngineName.OPENAI)


def test_a_revision_behind_the_name_is_no_other_model() -> None:
    """Transformers' server lists and answers as `/models/tiny@main`."""
    adapter = engine(EngineName.OPENAI)
    made = profile("openai", served_name="/models/tiny")
    assert adapter.served(models(id="/models/tiny@main"), made)
    assert adapter.declared(models(id="/models/tiny@main", max_model_len=512), made) == 512
    assert not adapter.served(models(id="/models/tiny2"), made)


def test_what_is_listed_can_be_said() -> None:
    """A refusal names what the server has in place of what was wanted."""
    assert names_listed({"data": [{"id": "a"}, {"id": "b"}, {}]}) == ("a", "b")


def test_declared_context() -> None:
    """SGLang and vLLM declare a length; llama.cpp tells what the model was trained for."""
    for name in (EngineName.SGLANG, EngineName.VLLM, EngineName.OPENAI):
        adapter, made = engine(name), profile(name)
        assert adapter.declared(models(max_model_len=262144), made) == 262144
        assert adapter.declared(models(), made) is None
        assert adapter.declared(models(max_model_len="many"), made) is None
        assert adapter.declared(models(id="other", max_model_len=9), made) is None
    llama, made = engine(EngineName.LLAMACPP), profile("llamacpp")
    assert llama.declared(models(meta={"n_ctx": 512, "n_ctx_train": 8192}), made) == 8192
    assert llama.declared(models(meta={"n_ctx_train": 0}), made) is None
    assert llama.declared(models(meta=None), made) is None
    assert llama.declared({"data": []}, made) is None


def test_physical_pool_of_sglang() -> None:
    """The smallest rank's decides; the endpoint that also holds the API key is never asked."""
    adapter, made = engine(EngineName.SGLANG), profile("sglang")
    ranks = 'sglang:max_total_num_tokens{{tp_rank="{}"}} {}\n'
    body = ranks.format(0, "38688.0") + ranks.format(1, "38600.0")
    assert adapter.pool_path == "/metrics"
    assert adapter.pool(body, made) == 38600
    assert adapter.pool(ranks.format(0, "NaN"), made) is None
    assert adapter.pool("", made) is None


def test_physical_pool_of_vllm() -> None:
    """It stands in a label; releases without that label tell blocks and their size."""
    adapter, made = engine(EngineName.VLLM), profile("vllm")
    info = "vllm:cache_config_info{{{}}} 1.0\n"
    tokens = info.format('block_size="128",cache_dtype="auto",kv_cache_size_tokens="91022"')
    blocks = info.format('block_size="16",num_gpu_blocks="2048"')
    assert adapter.pool(tokens, made) == 91022
    assert adapter.pool(blocks, made) == 32768
    assert adapter.pool(tokens + blocks, made) == 32768
    assert adapter.pool(info.format('block_size="16",num_gpu_blocks="None"'), made) is None
    assert adapter.pool("", made) is None


def test_physical_pool_of_llamacpp() -> None:
    """One slot's share is what one request can use."""
    adapter, made = engine(EngineName.LLAMACPP), profile("llamacpp")
    assert adapter.pool('{"default_generation_settings": {"n_ctx": 512}}', made) == 512
    assert adapter.pool('{"default_generation_settings": null}', made) is None
    with pytest.raises(ShapeError, match="not a JSON object: <html> <p>busy"):
        adapter.pool("<html>\n<p>busy", made)


def test_any_other_server_has_no_pool() -> None:
    """Nothing is assumed of a server that only promises OpenAI's API."""
    adapter = engine(EngineName.OPENAI)
    assert (adapter.pool_path, adapter.metrics_path) == (None, None)
    assert adapter.pool("", profile("openai")) is None
    with pytest.raises(ShapeError, match="has no metrics"):
        adapter.counters("")


def test_usable_input() -> None:
    """SGLang keeps six tokens back (38,688 leave 38,682); elsewhere the answer's first is one."""
    assert engine(EngineName.SGLANG).usable_input(38688) == 38682
    assert engine(EngineName.VLLM).usable_input(32768) == 32767
    assert engine(EngineName.LLAMACPP).usable_input(512) == 511
    assert engine(EngineName.SGLANG).usable_input(3) == 0


def test_the_effective_context_is_the_smaller_figure() -> None:
    """An endpoint may declare more than its pool holds, and a pool hold more than is declared."""
    assert Contexts(200000, 262144, 38688).effective == 38688
    assert Contexts(200000, 131072, 567978).effective == 131072
    assert Contexts(200000, None, 38688).effective == 38688
    assert Contexts(200000).effective is None
