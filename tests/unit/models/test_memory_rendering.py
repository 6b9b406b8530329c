"""A budget is read at a glance, at any width, with and without colours."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from memory_cases import DSPARK, LONG, RTX_5090, plan_of

from servicekit.models.memory.outcome import Budget, Fit, PartName, PlanFinding, judged
from servicekit.models.memory.rendering import budget_json, render_budget
from servicekit.models.memory.units import GIB

ESCAPE = re.compile("\x1b\\[[0-9;]*m")
PLAN = plan_of(LONG, context_requested=200_000)
SHORT = plan_of(
    {"mem-fraction-static": 0.95, "speculative-algorithm": "DSPARK", "mamba-ssm-dtype": "bfloat16"},
    drafter=DSPARK,
)

PICTURE = """\
RadixArk/Qwen3.8-27B-NVFP4 on SGLang 0.5.16, 31.40 GiB

RRWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWSSSSKKKKKKKKKKKKKKKGTTT····

R runtime               ~0.69 GiB  CUDA context, engine start
W weights               20.14 GiB  RadixArk/Qwen3.8-27B-NVFP4
S state pool             1.53 GiB  21 slots * 74.8 MiB, bfloat16
K KV pool                6.10 GiB  200,000 tokens * 32.0 KiB, fp8_e4m3
G CUDA graphs           ~0.10 GiB  decode
T transients            ~1.29 GiB  a prefill of 2,048 tokens
· free                  ~1.55 GiB

pool 200,000 tokens · 20 slots · 4 at once · context 200,000 per request (input
199,994) · balanced ratio 2.34 at 5,120 tokens · 2.93 GiB left after the pools
fits: 200,000 tokens for 4 requests at once; 1.55 GiB stay free
~ estimated: measured elsewhere or guessed by the engine; see docs/memory.md
""".replace(" * ", " \N{MULTIPLICATION SIGN} ")


def test_a_plan_is_one_picture() -> None:
    """The whole of the published 200,000-token start, in eighty columns."""
    assert render_budget(PLAN, width=80) == PICTURE


def test_colours_change_nothing_but_the_colour() -> None:
    """Without its escapes the coloured text is the plain one."""
    for plan in (PLAN, SHORT):
        coloured = render_budget(plan, width=80, color=True)
        assert coloured != render_budget(plan, width=80)
        assert ESCAPE.sub("", coloured) == render_budget(plan, width=80)


def bar_of(budget: Budget, width: int) -> str:
    """Return the bar, which is the line below the title."""
    return render_budget(budget, width=width).splitlines()[2]


@pytest.mark.parametrize("width", [10, 40, 57, 80, 200])
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    """Lines are wrapped or cut, but never below forty columns."""
    for plan in (PLAN, SHORT):
        lines = render_budget(plan, width=width).splitlines()
        assert max(len(line) for line in lines) <= max(width, 40)


@pytest.mark.parametrize("width", [40, 80, 133])
def test_the_bar_is_in_proportion(width: int) -> None:
    """Every part has a cell, all of them the width, and none is off by more than two."""
    drawn = bar_of(PLAN, width)
    assert len(drawn) == width
    weights = PLAN.bytes_of(PartName.WEIGHTS) / PLAN.total * width
    assert drawn.count("W") == pytest.approx(weights, abs=2)
    assert set(drawn) == set("RWSKGT·")


def test_a_shortage_is_drawn_beyond_the_memory() -> None:
    """What does not fit is drawn as such, at the end of a bar that is as long as what is needed."""
    drawn = bar_of(SHORT, 80)
    assert len(drawn) == 80
    assert drawn.endswith("!")
    assert "·" not in drawn
    tiny = bar_of(plan_of({}, memory=GIB), 60)
    assert len(tiny) == 60
    assert tiny.count("!") > 50


def test_levers_are_numbered_and_the_shortage_is_said() -> None:
    """A person reads what is wrong, by how much, and what to do first."""
    text = render_budget(SHORT, width=80)
    assert "· free                 ~-0.59 GiB  0.59 GiB short" in text
    assert "does not fit: the pools leave 0.29 GiB beside the graphs" in text
    assert "\n1. lower --max-total-tokens (now 88960)\n2. shrink" in text
    assert "\nnote: 0.29 GiB are left after target capture" in text


def test_a_plan_without_estimates_has_no_footnote() -> None:
    """The footnote explains a mark that is there."""
    parts = tuple(replace(part, estimated=False) for part in PLAN.parts)
    assert "~" not in render_budget(replace(PLAN, parts=parts, slots=None), width=80)


def test_json_holds_every_figure() -> None:
    """The same plan for a program: sizes in bytes, and parts that add up."""
    data = json.loads(json.dumps(budget_json(PLAN)))
    assert data["total_bytes"] == RTX_5090 == sum(part["bytes"] for part in data["parts"])
    assert [part["name"] for part in data["parts"]] == [name.value for name in PartName]
    assert data["kv_tokens"] == data["effective_context"] == 200_000
    assert data["left_after_pools_bytes"] == PLAN.left_after_pools
    assert (data["verdict"], data["levers"], data["notes"]) == ("fits", [], [])
    assert budget_json(SHORT)["verdict"] == "does-not-fit"
    assert budget_json(SHORT)["parts"][-1]["bytes"] < 0


def test_the_worst_finding_speaks_and_the_others_are_notes() -> None:
    """Of equal findings the first speaks; levers are said once, its own first."""
    tight = PlanFinding(Fit.TIGHT, "a little", ("b", "a"))
    bad = PlanFinding(Fit.DOES_NOT_FIT, "too much", ("a",))
    plan = judged(PLAN, [tight, bad, tight], ["noted"])
    assert (plan.verdict, plan.reason) == (Fit.DOES_NOT_FIT, "too much")
    assert plan.levers == ("a", "b")
    assert plan.notes == ("a little", "a little", "noted")
    assert judged(PLAN, []) == PLAN
