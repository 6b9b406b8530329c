"""Suites, runs and conditions in words, for the terminal and the report. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from servicekit.lab.bench.result import ContextFigures
    from servicekit.lab.bench.samples import Conditions, Suite
    from servicekit.lab.compare.comparison import ComparedRun

# What each figure is, by its name.
MEANINGS: Final[Mapping[str, str]] = {
    "ttft": "From sending the request to the first token, reasoning included.",
    "visible": "From sending the request to the first token of the answer itself.",
    "prefill": "Tokens of the prompt that were not cached, over the time to the first token.",
    "decode": "Tokens after the first, over the time after the first.",
    "done": "From sending the request to the end of the answer: what a person waits for.",
    "throughput": "Tokens of all answers together, over the time that all of them took.",
    "acceptance": "Part of the drafted tokens that the model accepted, as the engine counted.",
    "acceptance_length": "Tokens that one verification of a draft yields, as the engine counted.",
    "correctness": "Part of the questions with a known answer that were answered correctly.",
}


class RunDescription(NamedTuple):
    """A run in words."""

    letter: str
    name: str
    profile: str
    engine: str
    model: str
    host: str
    pool: str
    verified: str  # its verification status; empty if not verified, which `marks` then say
    marks: tuple[str, ...]


def suite_in_words(suite: Suite) -> str:
    return f"{suite.name} version {suite.version} ({suite.hash[:12]})"


def run_in_words(run: ComparedRun) -> RunDescription:
    result, bound = run.result, run.result.fingerprint
    drafter = f" with {result.drafter}" if result.drafter else ""
    driver = f", driver {bound.driver}" if bound.driver else ""
    return RunDescription(
        letter=run.letter,
        name=result.name,
        profile=result.profile,
        engine=run.engine,
        model=f"{result.model}{drafter}",
        host=f"{bound.gpu}{driver}" if bound.gpu else "no GPU",
        pool=pool_in_words(result.pools),
        verified=result.standing if result.verified else "",
        marks=run.marks,
    )


def pool_in_words(pools: ContextFigures) -> str:
    holds = "unknown" if pools.physical is None else f"{pools.physical:,} tokens"
    return holds if pools.requested is None else f"{holds}, {pools.requested:,} requested"


def conditions_in_words(conditions: Conditions) -> str:
    """Return what was equal for every run, the most important first."""
    thinking = {True: "thinking on", False: "thinking off", None: "thinking unknown"}
    sampling = conditions.sampling
    wanted = conditions.prompt_tokens
    prompt = f"{wanted:,} prompt tokens" if wanted else "a question alone"
    exactly = "exactly" if conditions.exact_output else "up to"
    return ", ".join([
        prompt,
        f"{exactly} {conditions.max_tokens:,} answer tokens",
        f"concurrency {conditions.concurrency:,}",
        f"context {conditions.context:,}",
        f"KV {conditions.kv_precision}",
        f"{conditions.prefix.value} prefix",
        thinking[conditions.thinking],
        f"temperature {sampling.temperature:g}, seed {sampling.seed}",
    ])  # fmt: skip
