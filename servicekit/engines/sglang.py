"""SGLang: `sglang serve`. Facts are those of releases 0.5.16 and 0.5.23. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from typing_extensions import override

from servicekit.engines import prometheus, shapes
from servicekit.engines.base import Counters
from servicekit.engines.commandline import option, option_words, port
from servicekit.engines.compatible import Compatible
from servicekit.profile import EngineName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servicekit.profile import Profile
    from servicekit.quoting import Word

_PROMPT: Final = "sglang:prompt_tokens_total"
_GENERATED: Final = "sglang:generation_tokens_total"
_FINISHED: Final = "sglang:num_requests_total"
_RATE: Final = "sglang:gen_throughput"
_PROGRESS: Final = (
    _PROMPT,
    _GENERATED,
    "sglang:cached_tokens_total",
    "sglang:kv_used_tokens",
    "sglang:num_used_tokens",
    "sglang:token_usage",
)


class SgLang(Compatible):
    """SGLang's command line, endpoints and metrics."""

    name: ClassVar = EngineName.SGLANG
    default_executable: ClassVar = "sglang"
    pool_path: ClassVar = "/server_info"
    metrics_path: ClassVar = "/metrics"

    reserved_input: ClassVar = 6
    """Its `max_req_input_len`: one less than the context, and five less again (`tp_worker.py`)."""

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
        yield from option("enable-metrics")  # without it /metrics has none of its series
        if profile.drafter is not None:
            yield from option("speculative-draft-model-path", profile.drafter)
        yield from option_words(profile)

    @override
    def pool(self, body: str, profile: Profile) -> int | None:
        # The body holds every argument of the server, its API key too: nothing else is kept.
        return shapes.figure(shapes.parse_object(body).get("max_total_num_tokens"))

    @override
    def counters(self, body: str) -> Counters:
        sums = prometheus.totals(body, (*_PROGRESS, _FINISHED, _RATE), of="SGLang")
        return Counters(
            progress=tuple(sums.get(name, 0.0) for name in _PROGRESS),
            tokens=sums.get(_PROMPT, 0.0) + sums.get(_GENERATED, 0.0),
            generated=sums.get(_GENERATED, 0.0),
            finished=sums.get(_FINISHED),
            decode_rate=sums.get(_RATE),
        )
