"""The engine's own counters: which series make up a figure, and how far it moved. Pure.

Names are those of SGLang 0.5.23, vLLM 0.32.0 and llama.cpp b11434. A missing series is a figure
that is not reported. Histograms are read by their sum and count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from servicekit.engines.prometheus import read_samples, totals
from servicekit.lab.bench.samples import MOST, EngineSide
from servicekit.profiles.vocabulary import EngineName

if TYPE_CHECKING:
    from collections.abc import Mapping

# Which series make up a figure of `EngineSide`; their values are added up.
SERIES: Final[Mapping[EngineName, Mapping[str, tuple[str, ...]]]] = {
    EngineName.SGLANG: {
        "prompt_tokens": ("sglang:prompt_tokens_total",),
        "cached_tokens": ("sglang:cached_tokens_total",),
        "generated_tokens": ("sglang:generation_tokens_total",),
        "first_count": ("sglang:time_to_first_token_seconds_count",),
        "first_seconds": ("sglang:time_to_first_token_seconds_sum",),
        "decoded_tokens": ("sglang:inter_token_latency_seconds_count",),
        "decode_seconds": ("sglang:inter_token_latency_seconds_sum",),
        "drafts": ("sglang:spec_verify_calls_total",),
    },
    EngineName.VLLM: {
        "prompt_tokens": ("vllm:prompt_tokens_total",),
        "cached_tokens": ("vllm:prompt_tokens_cached_total",),
        "generated_tokens": ("vllm:generation_tokens_total",),
        "prefill_seconds": ("vllm:request_prefill_time_seconds_sum",),
        "first_count": ("vllm:time_to_first_token_seconds_count",),
        "first_seconds": ("vllm:time_to_first_token_seconds_sum",),
        "decode_seconds": ("vllm:inter_token_latency_seconds_sum",),
        "drafts": ("vllm:spec_decode_num_drafts_total",),
        "drafted_tokens": ("vllm:spec_decode_num_draft_tokens_total",),
        "accepted_tokens": ("vllm:spec_decode_num_accepted_tokens_total",),
    },
    EngineName.LLAMACPP: {
        # It counts the tokens that it read apart from those that it had cached.
        "prompt_tokens": ("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"),
        "cached_tokens": ("llamacpp:prompt_tokens_cached_total",),
        "generated_tokens": ("llamacpp:tokens_predicted_total",),
        "prefill_seconds": ("llamacpp:prompt_seconds_total",),
        "decoded_tokens": ("llamacpp:tokens_predicted_total",),
        "decode_seconds": ("llamacpp:tokens_predicted_seconds_total",),
        "drafts": ("llamacpp:spec_decode_num_drafts_total",),
        "drafted_tokens": ("llamacpp:spec_decode_num_draft_tokens_total",),
        "accepted_tokens": ("llamacpp:spec_decode_num_accepted_tokens_total",),
    },
    EngineName.OPENAI: {},
}


def read(engine: EngineName, page: str) -> Mapping[str, float]:
    """Read the figures of `engine` from its metrics; raise `ShapeError` if there are none."""
    series = SERIES[engine]
    wanted = {name for names in series.values() for name in names}
    sums = totals(read_samples(page, wanted), of=engine.value)
    return {
        figure: sum(sums[name] for name in names)
        for figure, names in series.items()
        if all(name in sums for name in names)
    }


def moved(
    engine: EngineName, before: Mapping[str, float], after: Mapping[str, float]
) -> EngineSide:
    """Return how far the figures moved.

    A counter may appear with its first count: before, it was 0. One that went back belongs to
    another run of the engine, and is left out.
    """
    grown: dict[str, float | None] = {
        figure: after[figure] - before.get(figure, 0.0)
        for figure in after
        if after[figure] >= before.get(figure, 0.0)
    }
    generated, first = grown.get("generated_tokens"), grown.get("first_count")
    drafts = grown.get("drafts")
    if engine is EngineName.VLLM and generated is not None and first is not None:
        grown["decoded_tokens"] = max(0.0, generated - first)
    if engine is EngineName.SGLANG and None not in (generated, first, drafts):
        # Tokens beyond a request's first and one per verification were accepted drafts.
        grown["accepted_tokens"] = max(0.0, (generated or 0) - (first or 0) - (drafts or 0))
    # The page comes from the engine: absurd numbers are left out.
    sane = {name: value for name, value in grown.items() if value is not None and value <= MOST}
    return EngineSide(**{name: sane.get(name) for name in EngineSide.model_fields})
