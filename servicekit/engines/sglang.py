"""SGLang: `sglang serve`. Facts are those of releases 0.5.16 and 0.5.23. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Final

from typing_extensions import override

from servicekit.engines import prometheus, shapes
from servicekit.engines.adapter import Engine
from servicekit.engines.base import Counters
from servicekit.engines.commandline import given, option, option_words, port
from servicekit.profiles.vocabulary import EngineName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servicekit.profiles.model import Profile
    from servicekit.quoting import Word

_POOL: Final = "sglang:max_total_num_tokens"
# Counted by the scheduler after every prefill chunk and decode step. Its gauges do not show
# progress: they are renewed at every 40th decode step, and again while it is idle.
_REALTIME: Final = "sglang:realtime_tokens_total"
# These two and the requests are counted only when a request finishes.
_PROMPT: Final = "sglang:prompt_tokens_total"
_GENERATED: Final = "sglang:generation_tokens_total"
_FINISHED: Final = "sglang:num_requests_total"
_ABORTED: Final = "sglang:num_aborted_requests_total"
_VERIFIED: Final = "sglang:spec_verify_calls_total"
# Tokens and seconds after a request's first token. `sglang:gen_throughput` is not used: it divides
# by the time since the last report, idle time included, so a fast idle server looks slow.
_INTERVALS: Final = "sglang:inter_token_latency_seconds_count"
_DECODE: Final = "sglang:inter_token_latency_seconds_sum"
_RUNNING: Final = "sglang:num_running_reqs"
_PROGRESS: Final = (_REALTIME, _PROMPT, _GENERATED)
_SERIES: Final = (*_PROGRESS, _POOL, _FINISHED, _ABORTED, _VERIFIED, _INTERVALS, _DECODE, _RUNNING)


class SgLang(Engine):
    """SGLang's command line, endpoints and metrics."""

    name: ClassVar = EngineName.SGLANG
    default_executable: ClassVar = "sglang"
    identity_paths: ClassVar = ("/model_info", "/get_model_info")
    pool_path: ClassVar = "/metrics"
    # `/server_info` reports it as well, beside the API key.
    metrics_path: ClassVar = "/metrics"
    tool_parser: ClassVar = "tool-call-parser"
    # `max_req_input_len` is one less than the context, and five less again (`tp_worker.py`).
    reserved_input: ClassVar = 6

    @override
    def command(self, profile: Profile) -> Iterator[Word]:
        yield ("serve",)
        yield from ((argument,) for argument in profile.arguments)
        yield from option("model-path", profile.model)
        if profile.revision is not None:
            yield from option("revision", profile.revision)
        yield from option("served-model-name", profile.served_name)
        yield from option("host", profile.host)
        yield from option("port", port(profile))
        yield from option("enable-metrics")  # without it /metrics is empty
        # Without it SGLang declares the model's own window, and a plan for less would not hold.
        if given(profile, "context-length") is None:
            yield from option("context-length", str(profile.context.requested))
        if profile.drafter is not None:
            yield from option("speculative-draft-model-path", profile.drafter)
        yield from option_words(profile)

    @override
    def pool(self, body: str, profile: Profile) -> int | None:
        """Read the gauge, which is set once the pool exists: that of the smallest rank."""
        values = (sample.value for sample in prometheus.read_samples(body, (_POOL,)))
        pools = [int(value) for value in values if math.isfinite(value)]
        return shapes.figure(min(pools)) if pools else None

    @override
    def counters(self, body: str) -> Counters:
        """Derive accepted tokens: those beyond a request's first and one per verification."""
        sums = prometheus.totals(prometheus.read_samples(body, _SERIES), of="SGLang")
        prompt, generated = sums.get(_PROMPT, 0.0), sums.get(_GENERATED, 0.0)
        finished, verified = sums.get(_FINISHED), sums.get(_VERIFIED)
        return Counters(
            progress=tuple(sums.get(name, 0.0) for name in _PROGRESS),
            tokens=sums.get(_REALTIME, prompt + generated),
            generated=sums.get(_INTERVALS),
            finished=None if finished is None else finished - sums.get(_ABORTED, 0.0),
            drafted=verified,
            accepted=None
            if verified is None
            else max(0.0, generated - (finished or 0.0) - verified),
            decode_seconds=sums.get(_DECODE),
            running=sums.get(_RUNNING),
        )
