"""Results of benchmarks for tests: whole and valid, with what a test is about changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from servicekit.lab.bench.result import FORMAT, BenchResult, Case, ContextFigures
from servicekit.lab.bench.samples import Conditions, EngineSide, Prefix, Sample, Sampling, Suite
from servicekit.lab.verify.record import Fingerprint

if TYPE_CHECKING:
    from collections.abc import Sequence

SUITE = Suite(name="matched-32k", version=1, hash="0123456789abcdef")
BOUND = Fingerprint("a1", "0.1", "0.5.23", "c0ffee", "580.1", "RTX 5090")


def conditions(**changes: Any) -> Conditions:  # noqa: ANN401
    """The article's conditions: 32,768, concurrency one, FP8."""
    told: dict[str, Any] = {
        "context": 32768,
        "concurrency": 1,
        "kv_precision": "fp8",
        "prefix": Prefix.COLD,
        "thinking": False,
        "sampling": Sampling(temperature=0.0, seed=0),
        "prompt_tokens": 8192,
        "max_tokens": 256,
        "exact_output": False,
    }
    return Conditions(**(told | changes))


def sample(
    *, ttft: float = 0.6, decode: float = 100.0, tokens: int = 201, visible: float | None = None,
    **changes: Any,  # noqa: ANN401
) -> Sample:  # fmt: skip
    """One request that decodes `tokens` at so many tokens/s after its first; all else by `changes`.

    `visible` is the time of the first visible token, by default that of the first.
    """
    last = ttft + (tokens - 1) / decode
    told: dict[str, Any] = {
        "asked": 0.0,
        "first": ttft,
        "visible": ttft if visible is None else visible,
        "last": last,
        "done": last + 0.001,
        "prompt_tokens": 8192,
        "cached_tokens": 0,
        "completion_tokens": tokens,
        "finish_reason": "stop",
        "correct": True,
        "answer": "47",
        "fault": "",
    }
    return Sample(**(told | changes))


def side(**changes: float | None) -> EngineSide:
    """Counters of an engine with a drafter that is mostly right."""
    told: dict[str, float | None] = {
        "prompt_tokens": 8192.0,
        "cached_tokens": 0.0,
        "generated_tokens": 201.0,
        "prefill_seconds": 0.55,
        "first_count": 1.0,
        "first_seconds": 0.59,
        "decoded_tokens": 200.0,
        "decode_seconds": 2.0,
        "drafts": 50.0,
        "drafted_tokens": 200.0,
        "accepted_tokens": 150.0,
    }
    return EngineSide(**(told | changes))


def case(
    name: str = "chat", samples: Sequence[Sample] | None = None, **changes: Any  # noqa: ANN401
) -> Case:  # fmt: skip
    """One case; without `samples`, three equal ones one after the other."""
    if samples is None:
        samples = [sample(asked=3.0 * turn) for turn in range(3)]
    told: dict[str, Any] = {
        "name": name,
        "conditions": conditions(),
        "planned": len(samples),
        "samples": tuple(samples),
        "engine": side(),
    }
    return Case(**(told | changes))


def result(profile: str = "dspark", **changes: Any) -> BenchResult:  # noqa: ANN401
    """One complete, verified run with one case."""
    told: dict[str, Any] = {
        "format": FORMAT,
        "suite": SUITE,
        "profile": profile,
        "engine": "sglang",
        "model": "RadixArk/Qwen3.8-27B-NVFP4",
        "drafter": "RadixArk/Qwen3.8-27B-DSpark",
        "fingerprint": BOUND,
        "verified": True,
        "standing": "verified, prompts up to 32014 tokens",
        "unmatched": (),
        "skipped": (),
        "started": "2026-01-31T12:00:00.000+00:00",
        "ended": "2026-01-31T12:03:00.000+00:00",
        "complete": True,
        "degraded": (),
        "pools": ContextFigures(requested=32768, declared=32768, physical=40000, effective=32768),
        "cases": (case(),),
    }
    return BenchResult(**(told | changes))
