"""The command line of each engine: what it says, in whose words, and what it never says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicekit.engines import ENGINES, engine
from servicekit.engines.commandline import option_words
from servicekit.profiles.parsing import parse
from servicekit.profiles.vocabulary import EngineName
from servicekit.quoting import Reference

if TYPE_CHECKING:
    from servicekit.profiles.model import Profile

PORT = Reference("SERVICEKIT_PORT")


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


def flat(name: str, **keys: Any) -> list[str | Reference]:  # noqa: ANN401 - as above
    """Give the words of a profile's command line, each of which is one piece here."""
    made = profile(name, **keys)
    words = engine(made.engine).words(made)
    assert all(len(word) == 1 for word in words)
    return [piece for word in words for piece in word]


def test_there_is_an_adapter_for_every_engine() -> None:
    """Each adapter is found by its own name."""
    assert {name: adapter.name for name, adapter in ENGINES.items()} == {n: n for n in EngineName}


def test_sglang() -> None:
    """SGLang gets its metrics, its model by option and a drafter where there is one."""
    assert flat("sglang", revision="main", drafter="owner/draft", arguments=["--x"]) == [
        *("serve", "--x", "--model-path", "owner/model", "--revision", "main"),
        *("--served-model-name", "served", "--host", "127.0.0.1", "--port", PORT),
        *("--enable-metrics", "--context-length", "4096"),
        *("--speculative-draft-model-path", "owner/draft"),
    ]
    assert "--revision" not in flat("sglang")


@pytest.mark.parametrize(
    "changes", [{"options": {"context-length": 8192}}, {"arguments": ["--context-length=8192"]}]
)
def test_sglang_keeps_a_context_length_of_the_profile(changes: dict[str, Any]) -> None:
    """A profile that sets the declared length itself does not get it twice."""
    words = flat("sglang", **changes)
    assert sum(str(word).startswith("--context-length") for word in words) == 1


def test_a_missing_tool_parser_is_named() -> None:
    """SGLang and vLLM need an option for structured tool calls; llama.cpp parses them anyway."""
    for name, lacking in (
        ("sglang", "tool-call-parser"),
        ("vllm", "tool-call-parser"),
        ("llamacpp", ""),
        ("openai", ""),
    ):
        assert engine(EngineName(name)).lacks_tool_parser(profile(name)) == lacking
    named = profile("sglang", options={"tool-call-parser": "qwen3_coder"})
    assert not engine(EngineName.SGLANG).lacks_tool_parser(named)


def test_vllm() -> None:
    """VLLM gets a host, without which it listens everywhere, and the context as its length."""
    assert flat("vllm", revision="main", arguments=["--x"]) == [
        *("serve", "owner/model", "--x", "--revision", "main", "--served-model-name", "served"),
        *("--host", "127.0.0.1", "--port", PORT, "--max-model-len", "4096"),
    ]
    assert "--revision" not in flat("vllm")


def test_vllm_takes_its_drafter_inside_a_table() -> None:
    """The drafter joins what the profile says of speculation; text of the user's own stays."""
    table = {"speculative-config": {"method": "dflash", "num_speculative_tokens": 8}}
    assert flat("vllm", drafter="owner/draft", options=table)[-1] == (
        '{"method":"dflash","num_speculative_tokens":8,"model":"owner/draft"}'
    )
    assert flat("vllm", drafter="owner/draft")[-1] == '{"model":"owner/draft"}'
    text = {"speculative-config": '{"method": "mtp"}'}
    assert flat("vllm", drafter="owner/draft", options=text)[-1] == '{"method": "mtp"}'


def test_llamacpp() -> None:
    """llama.cpp gets the context of all slots together, and long names alone."""
    words = flat(
        "llamacpp",
        model="/models/m.gguf",
        drafter="/models/d.gguf",
        context={"requested": 4096, "parallel": 3},
        arguments=["--x"],
    )
    assert words == [
        *("--x", "--model", "/models/m.gguf", "--alias", "served", "--host", "127.0.0.1"),
        *("--port", PORT, "--ctx-size", "12288", "--parallel", "3", "--metrics"),
        *("--spec-draft-model", "/models/d.gguf"),
    ]


@pytest.mark.parametrize(
    ("model", "option"),
    [
        ("owner/name", "--hf-repo"),
        ("owner/name-GGUF:Q4_K_M", "--hf-repo"),
        ("/models/owner/name.gguf", "--model"),
        ("package.models:name.gguf", "--model"),
    ],
)
def test_llamacpp_tells_the_hub_from_a_file(model: str, option: str) -> None:
    """A model on the hub is downloaded by llama.cpp; everything else is a file."""
    assert flat("llamacpp", model=model)[:2] == [option, model]


def test_llamacpp_takes_one_file_of_the_hub() -> None:
    """`owner/name:file.gguf` is a repository and a file in it, which are two options."""
    words = flat("llamacpp", model="owner/name-GGUF:q4/name.gguf")
    assert words[:4] == ["--hf-repo", "owner/name-GGUF", "--hf-file", "q4/name.gguf"]


@pytest.mark.parametrize(
    ("model", "network", "offline"),
    [
        ("owner/name", "loopback", True),
        ("owner/name:name.gguf", "loopback", True),
        ("owner/name", "internet", False),
        ("/models/name.gguf", "loopback", False),
    ],
)
def test_llamacpp_is_told_that_there_is_no_network(
    model: str, network: str, *, offline: bool
) -> None:
    """HF_HUB_OFFLINE means nothing to it, so a model of the hub comes with an option."""
    words = flat("llamacpp", model=model, service={"network": network})
    assert ("--offline" in words) is offline


@pytest.mark.parametrize(
    ("drafter", "option"),
    [
        ("owner/draft", "--spec-draft-hf"),
        ("owner/draft:Q8_0", "--spec-draft-hf"),
        ("/models/draft.gguf", "--spec-draft-model"),
    ],
)
def test_llamacpp_takes_a_drafter_of_the_hub(drafter: str, option: str) -> None:
    """A drafter is told from a file as the model is."""
    words = flat("llamacpp", drafter=drafter)
    assert words[words.index(option) + 1] == drafter


def test_any_other_server() -> None:
    """An OpenAI-compatible server is started by the profile's own words and nothing else."""
    words = flat("openai", arguments=["serve", "{model}"], options={"listen": "{port}"})
    assert words == ["serve", "{model}", "--listen", "{port}"]


@pytest.mark.parametrize("name", ["sglang", "vllm", "llamacpp"])
def test_a_port_that_is_not_tunable_is_a_number(name: str) -> None:
    """Without the tunable the port is written as it is."""
    words = flat(name, tunables=[])
    assert words[words.index("--port") + 1] == "18000"


def test_options() -> None:
    """Each kind of value has its own form, and a tunable is a reference."""
    options = {
        "bare": True,
        "absent": False,
        "whole": 8192,
        "fraction": 0.95,
        "text": "two words",
        "empty": "",
        "list": [1, 2.5, "three"],
        "table": {"a": [1, {"b": "ä"}], "c": None} | {"c": True},
        "negative": -1,
        "dash": "-x",
        "tuned": 200000,
    }
    made = profile("sglang", options=options, tunables=["tuned"])
    assert [*option_words(made)] == [
        *(("--bare",), ("--whole",), ("8192",), ("--fraction",), ("0.95",)),
        *(("--text",), ("two words",), ("--empty",), ("",)),
        *(("--list",), ("1",), ("2.5",), ("three",)),
        *(("--table",), ('{"a":[1,{"b":"ä"}],"c":true}',)),
        *(("--negative",), ("-1",), ("--dash=-x",)),
        *(("--tuned",), (Reference("SERVICEKIT_TUNED"),)),
    ]


def test_llamacpp_takes_text_that_begins_with_a_dash_as_it_is() -> None:
    """Its parser knows no `=`, and takes the word behind an option whatever it looks like."""
    assert flat("llamacpp", options={"reasoning-budget-message": "-- enough"})[-2:] == [
        "--reasoning-budget-message",
        "-- enough",
    ]


@given(
    st.dictionaries(
        st.text("abc-", min_size=1).filter(str.isalpha), st.booleans() | st.integers(), max_size=4
    )
)
def test_an_option_is_on_the_command_line_unless_it_is_false(
    options: dict[str, bool | int],
) -> None:
    """Whatever the other options are, `false` is the one way to leave an option out."""
    made = profile("openai", options=options)
    words = [word for (word,) in option_words(made)]
    assert [word for word in words if str(word).startswith("--")] == [
        f"--{name}" for name, value in options.items() if value is not False
    ]


PYTHON = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
LOOPBACK = {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
VLLM = {"VLLM_HOST_IP": "127.0.0.1", "VLLM_NO_USAGE_STATS": "1"}


@pytest.mark.parametrize(
    ("name", "always", "cut_off"),
    [
        ("sglang", PYTHON, LOOPBACK),
        ("vllm", PYTHON, LOOPBACK | VLLM),
        ("llamacpp", {}, {}),
        ("openai", PYTHON, LOOPBACK),
    ],
)
def test_environment(name: str, always: dict[str, str], cut_off: dict[str, str]) -> None:
    """A Python engine's lines arrive at once; cut off, its processes meet over loopback."""
    inside = profile(name)
    outside = profile(name, service={"network": "internet"})
    assert dict(engine(inside.engine).environment(inside)) == always | cut_off
    assert dict(engine(outside.engine).environment(outside)) == always


def test_variables_of_llamacpp_do_not_leak_in() -> None:
    """Each of llama.cpp's options has a variable, which would change the recipe unseen."""
    assert engine(EngineName.LLAMACPP).scrub == ("LLAMA_ARG_",)
    assert engine(EngineName.SGLANG).scrub == engine(EngineName.VLLM).scrub == ()
