"""What a person is told of a result, and of what must be known to read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from bench_results import case, conditions, result, sample, side

from servicekit.lab.bench.report import HEADS, remarks, rows
from servicekit.lab.bench.samples import Prefix

if TYPE_CHECKING:
    from servicekit.lab.bench.result import Case


def test_each_figure_stands_beside_the_engines_own() -> None:
    """Median, p99, least, most and deviation of the client's, then what the engine counted."""
    samples = [sample(ttft=each, asked=3 * each) for each in (0.5, 0.6, 0.7)]
    found = rows(result(cases=(case(samples=samples), case("next"))))
    assert {len(row) for row in found} == {len(HEADS)}
    assert [row[:2] for row in found[:7]] == [
        ("chat", "first token"),
        ("", "first visible"),
        ("", "prefill"),
        ("", "decode"),
        ("", "answer finished"),
        ("", "accepted"),
        ("", "correct"),
    ]
    assert found[0][2:] == ("0.600 s", "0.700", "0.500", "0.700", "0.100", "0.590 s")
    assert found[3][2:5] == ("100 tokens/s", "", "100")
    assert found[5][-1] == "4.00 tokens per verification, 75 % of drafted tokens"
    assert found[6][2] == "3 of 3"
    assert found[7][0] == "next"


def test_what_is_not_there_is_no_figure() -> None:
    """A warm prefill that only the engine can tell, no counters, many at once, nothing known."""
    warm = conditions(prefix=Prefix.WARM)
    blind = case(samples=[sample(cached_tokens=None)], conditions=warm)
    labels = {row[1]: row for row in rows(result(cases=(blind,)))}
    assert labels["prefill"][2] == "-"
    assert labels["prefill"][-1] != ""
    many = case(samples=[sample(correct=None)], conditions=conditions(concurrency=4), engine=None)
    labels = {row[1]: row for row in rows(result(cases=(many,)))}
    assert labels["all together"][2].endswith(" tokens/s")
    assert "accepted" not in labels
    assert "correct" not in labels
    assert {row[-1] for row in labels.values()} == {""}


def test_a_sound_result_needs_no_word() -> None:
    """Nothing is said where nothing must be known."""
    assert remarks(result()) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"complete": False}, "interrupted: the figures are of what was measured until then"),
        (
            {"verified": False, "standing": "changed since: gpu (a → b)"},
            "unverified: changed since: gpu (a → b)",
        ),
        ({"unmatched": ("context 1 instead of 2",)}, "suite conditions not met: context 1"),
        ({"degraded": ("draft-graph-disabled",)}, "measured while degraded: draft-graph-disabled"),
        ({"skipped": ("prompt-64k: too long",)}, "skipped: prompt-64k: too long"),
        (
            {"cases": (case(samples=[sample(), sample(fault="HTTP 500: no", correct=False)]),)},
            "chat: 1 of 2 requests failed: HTTP 500: no",
        ),
        (
            {"cases": (case(samples=[sample(finish_reason="length")]),)},
            "chat: 1 of 1 answers were cut off before they were finished",
        ),
        (
            {"cases": (case(samples=[sample(prompt_tokens=9000)]),)},
            "chat: prompts have up to 9000 tokens, not 8192",
        ),
        (
            {"cases": (case(samples=[sample(), sample(prompt_tokens=4000)]),)},
            "chat: prompts have down to 4000 tokens, not 8192",
        ),
        (
            {"cases": (case(samples=[sample(), sample(prompt_tokens=None)]),)},
            "chat: the engine did not count 1 of 2 prompts",
        ),
        (
            {"cases": (case(conditions=conditions(exact_output=True, max_tokens=256)),)},
            "chat: 3 of 3 answers ended before the 256 tokens of the suite",
        ),
        (
            {"cases": (case(samples=[sample(), sample(decode=1e6)]),)},
            "chat: 1 of 2 answers came in one piece: no token times",
        ),
        (
            {"cases": (case(samples=[sample(cached_tokens=4096)]),)},
            "chat: 4096 tokens of supposedly new prompts came from the prefix cache",
        ),
        (
            {"cases": (case(engine=side(prompt_tokens=90000.0)),)},
            "chat: another client sent 65424 prompt tokens meanwhile",
        ),
        (
            {
                "cases": (
                    case(
                        samples=[sample(prompt_tokens=60)],
                        engine=side(prompt_tokens=102.0),
                        conditions=conditions(prompt_tokens=0),
                    ),
                )
            },
            "chat: the watchdog or another client sent 42 prompt tokens meanwhile",
        ),
    ],
)
def test_what_must_be_known_is_said(changes: dict[str, Any], said: str) -> None:
    """One sentence for each."""
    found = remarks(result(**changes))
    assert len(found) == 1
    assert found[0].startswith(said)


def prefixes(cold: float, warm: float, stamped: float | None) -> list[str]:
    """Give what is said of the prefix cache with these times to the first token."""
    cases: list[Case] = []
    for prefix, ttft in ((Prefix.COLD, cold), (Prefix.WARM, warm), (Prefix.STAMPED, stamped)):
        if ttft is not None:
            cases.append(
                case(
                    prefix.value,
                    [sample(ttft=ttft)],
                    conditions=conditions(prefix=prefix),
                    engine=None,
                )
            )
    return remarks(result(cases=tuple(cases)))


def test_a_timestamp_in_a_prefix_shows_its_loss() -> None:
    """The article's figures, and what its timestamp would have cost."""
    assert prefixes(2.891, 0.283, 2.9) == [
        "a cached prefix cuts the first token from 2.89 to 0.283 s: 90.2% less",
        (
            "a timestamp at its beginning loses 100% of that: 2.90 s to the first token; put "
            "variable text after the stable text"
        ),
    ]
    assert prefixes(2.891, 0.283, 0.3)[1] == (
        "a timestamp at its beginning costs nothing: 0.300 s to the first token"
    )
    assert len(prefixes(2.891, 0.283, None)) == 1
    assert prefixes(1.0, 0.95, 1.0) == [
        "a cached prefix saves nothing: check that the engine's prefix cache is on"
    ]
