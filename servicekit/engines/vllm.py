"""vLLM: `vllm serve`. Facts are those of release 0.32.0. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from typing_extensions import override

from servicekit.engines import prometheus, shapes
from servicekit.engines.adapter import Engine
from servicekit.engines.base import Counters
from servicekit.engines.commandline import option, option_words, port
from servicekit.profiles.vocabulary import EngineName

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from servicekit.profiles.model import Profile
    from servicekit.quoting import Word

SPECULATION: Final = "speculative-config"

_POOL: Final = "vllm:cache_config_info"
_PROMPT: Final = "vllm:prompt_tokens_total"
_GENERATED: Final = "vllm:generation_tokens_total"
_FINISHED: Final = "vllm:request_success_total"
_DRAFTED: Final = "vllm:spec_decode_num_draft_tokens_total"
_ACCEPTED: Final = "vllm:spec_decode_num_accepted_tokens_total"
_FIRST: Final = "vllm:time_to_first_token_seconds_count"
_DECODE: Final = "vllm:inter_token_latency_seconds_sum"
_RUNNING: Final = "vllm:num_requests_running"
_PROGRESS: Final = (
    _PROMPT,
    _GENERATED,
    # A prompt is counted when it is complete. Until then only its KV blocks show progress; they are
    # reported after every step, and never while the engine hangs or is idle.
    "vllm:kv_cache_usage_perc",
)
_SERIES: Final = (*_PROGRESS, _FINISHED, _DRAFTED, _ACCEPTED, _FIRST, _DECODE, _RUNNING)
# Values of `finished_reason` without an answer; a probe that times out causes an abort.
_BROKEN_OFF: Final = frozenset({"abort", "error"})


class Vllm(Engine):
    """vLLM's command line, endpoints and metrics."""

    name: ClassVar = EngineName.VLLM
    default_executable: ClassVar = "vllm"
    pool_path: ClassVar = "/metrics"
    metrics_path: ClassVar = "/metrics"
    tool_parser: ClassVar = "tool-call-parser"

    @override
    def command(self, profile: Profile) -> Iterator[Word]:
        yield ("serve",)
        yield (profile.model,)
        yield from ((argument,) for argument in profile.arguments)
        if profile.revision is not None:
            yield from option("revision", profile.revision)
        yield from option("served-model-name", profile.served_name)
        yield from option("host", profile.host)  # else it listens on every interface
        yield from option("port", port(profile))
        yield from option("max-model-len", str(profile.context.requested))
        yield from option_words(_with_drafter(profile))

    @override
    def environment(self, profile: Profile) -> tuple[tuple[str, str], ...]:
        common = super().environment(profile)
        if profile.service.network != "loopback":
            return common
        # Its processes meet at this address, and a usage report would wait and fail.
        return (*common, ("VLLM_HOST_IP", "127.0.0.1"), ("VLLM_NO_USAGE_STATS", "1"))

    @override
    def served(self, models: Any, profile: Profile) -> bool:
        """Compare `root`, too: the model as the command line names it."""
        entry = self.entry(models, profile)
        return entry is not None and entry.get("root") in (None, profile.model)

    @override
    def pool(self, body: str, profile: Profile) -> int | None:
        """Read the smallest pool.

        For a hybrid model it is the concurrency times `max_model_len`, and so depends on that.
        """
        samples = prometheus.read_samples(body, (_POOL,))
        pools = (_pool(sample.labels) for sample in samples)
        return min((pool for pool in pools if pool is not None), default=None)

    @override
    def counters(self, body: str) -> Counters:
        samples = prometheus.read_samples(body, _SERIES)
        sums = prometheus.totals(
            (each for each in samples if each.labels.get("finished_reason") not in _BROKEN_OFF),
            of="vLLM",
        )
        prompt, generated = sums.get(_PROMPT, 0.0), sums.get(_GENERATED, 0.0)
        return Counters(
            progress=tuple(sums.get(name, 0.0) for name in _PROGRESS),
            tokens=prompt + generated,
            generated=generated - sums.get(_FIRST, 0.0),
            finished=sums.get(_FINISHED),
            drafted=sums.get(_DRAFTED),
            accepted=sums.get(_ACCEPTED, 0.0 if _DRAFTED in sums else None),
            decode_seconds=sums.get(_DECODE),
            running=sums.get(_RUNNING),
        )


def _with_drafter(profile: Profile) -> Profile:
    """Put the drafter into the table of `--speculative-config`, where vLLM expects it."""
    config = profile.options.get(SPECULATION, {})
    if profile.drafter is None or not isinstance(config, dict):
        return profile
    options = {**profile.options, SPECULATION: {**config, "model": profile.drafter}}
    return profile.model_copy(update={"options": options})


def _pool(labels: Mapping[str, str]) -> int | None:
    tokens = shapes.whole(labels.get("kv_cache_size_tokens"))
    if tokens is None:  # releases that have no such label
        blocks, size = map(shapes.whole, (labels.get("num_gpu_blocks"), labels.get("block_size")))
        tokens = (blocks or 0) * (size or 0)
    return shapes.figure(tokens)
