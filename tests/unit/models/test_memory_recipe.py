"""Options are read the way the engines read them."""

from __future__ import annotations

from typing import Any

import pytest
from memory_cases import NVFP4, geometry_of, plan_of, recipe_of

from servicekit.errors import UserError
from servicekit.models.memory.outcome import Fit
from servicekit.models.memory.planning import budget, plan_memory
from servicekit.models.memory.recipe import Recipe
from servicekit.models.memory.units import GIB, counted, parse_size, short


def recipe(engine: str = "sglang", **options: Any) -> Recipe:  # noqa: ANN401 (an option's value)
    """Return a recipe with one option, `x`."""
    return Recipe(engine=engine, model="m", options=options)


@pytest.mark.parametrize(
    ("engine", "value", "number"),
    [
        ("sglang", 5, 5),
        ("sglang", "5", 5),
        ("sglang", "32k", 32_000),
        ("sglang", "32Ki", 32_768),
        ("sglang", "1M", 1_000_000),
        ("vllm", "32k", 32_000),
        ("vllm", "32K", 32_768),
        ("vllm", "25.6k", 25_600),
        ("vllm", "1M", 1 << 20),
        ("llamacpp", "7", 7),
        ("sglang", None, None),
        ("sglang", False, None),
    ],
)
def test_whole_numbers_have_each_engines_suffixes(
    engine: str, value: object, number: int | None
) -> None:
    """SGLang's M is a million, vLLM's is 2 to the 20th, and `false` means that nothing is given."""
    assert recipe(engine, x=value).integer("x") == number


@pytest.mark.parametrize(
    ("engine", "value"),
    [("sglang", "32K"), ("sglang", "many"), ("sglang", True), ("sglang", 1.5), ("llamacpp", "4k")],
)
def test_other_whole_numbers_are_refused(engine: str, value: object) -> None:
    """A suffix that the engine does not know, a truth, a fraction: each is named."""
    with pytest.raises(UserError, match=r'option "x" must be a whole number, not '):
        recipe(engine, x=value).integer("x")


def test_numbers_are_read_from_text_too() -> None:
    """A fraction may come as a number or as text, and nothing else."""
    assert recipe(x=0.5).number("x") == recipe(x="0.5").number("x") == 0.5
    assert recipe(x=1).number("x") == 1
    assert recipe(x=False).number("x") is None
    assert recipe().number("x") is None
    for value in (True, "half", [1]):
        with pytest.raises(UserError, match=r'option "x" must be a number, not '):
            recipe(x=value).number("x")


def test_texts_and_flags() -> None:
    """A bare flag is on; a text that means no is not."""
    assert recipe(x="a").text("x", "b") == "a"
    assert recipe(x=True).text("x", "b") == recipe().text("x", "b") == "b"
    assert [recipe(x=value).flag("x") for value in (True, "on", False, "off", "0")] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert not recipe().flag("x")


def test_tables_are_tables() -> None:
    """What is no table and no JSON of one is refused."""
    dotted = Recipe(engine="vllm", model="m", options={"x": {"a": 1}, "x.b": 2})
    assert dotted.table("x") == {"a": 1, "b": 2}
    assert recipe().table("x") == {}
    assert recipe(x=False).table("x") == {}
    with pytest.raises(UserError, match=r'option "x" must be JSON, not '):
        recipe(x="{").table("x")
    with pytest.raises(UserError, match=r'option "x" must be a table, not '):
        recipe(x="[1]").table("x")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("31.4GiB", round(31.4 * GIB)),
        ("24 GB", 24 * 10**9),
        ("512mib", 512 << 20),
        ("7 B", 7),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    """Units are binary, decimal, or bytes."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1GiB", "5 parsecs", "GiB"])
def test_other_sizes_are_refused(text: str) -> None:
    """What is no size is named, with an example of one."""
    with pytest.raises(UserError, match=r'a memory size must be like "31\.4GiB", not '):
        parse_size(text)


def test_a_size_without_a_unit_is_refused_with_the_likely_one() -> None:
    """31.4 bytes are nobody's GPU; the line says what was probably meant."""
    with pytest.raises(UserError, match=r'not "31\.4"; did you mean "31\.4GiB"\?'):
        parse_size("31.4")


def test_sizes_are_written_in_the_unit_that_fits() -> None:
    """Small sizes stay bytes, and plurals are right."""
    assert [short(size) for size in (999, 32_768, 78_446_592, 3 * GIB)] == [
        "999 B",
        "32.0 KiB",
        "74.8 MiB",
        "3.0 GiB",
    ]
    assert [counted(1, "slot"), counted(2000, "slot")] == ["1 slot", "2,000 slots"]


def test_engines_without_arithmetic_are_refused() -> None:
    """An engine that nothing is known of, and one without a GPU, are named."""
    with pytest.raises(
        UserError, match='memory of engine "openai" cannot be planned; supported engines are'
    ):
        plan_of({}, engine="openai")
    with pytest.raises(UserError, match='engine "vllm" without a GPU cannot be planned'):
        plan_of({}, engine="vllm", gpu=False)


@pytest.mark.parametrize(("memory", "length"), [(0, 5120), (GIB, 0)])
def test_nothing_is_planned_for_nothing(memory: int, length: int) -> None:
    """Memory and average length must be positive."""
    with pytest.raises(UserError, match="memory and average length must be positive"):
        budget(recipe_of({}), geometry_of(NVFP4), memory, average_length=length)


def test_one_call_finds_the_model_and_plans_it() -> None:
    """`plan_memory` is `budget` with the geometry found."""
    assert plan_memory(recipe_of({"mem-fraction-static": 0.9}), 32 * GIB, average_length=9000) == (
        plan_of({"mem-fraction-static": 0.9}, memory=32 * GIB, average_length=9000)
    )


def test_the_least_memory_is_planned_without_an_error() -> None:
    """A byte of memory is a plan that does not fit, whatever the engine."""
    for engine in ("sglang", "vllm", "llamacpp"):
        assert plan_of({}, engine=engine, memory=1).verdict is Fit.DOES_NOT_FIT
