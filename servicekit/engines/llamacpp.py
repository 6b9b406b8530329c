"""llama.cpp: `llama-server`. Facts are those of build b11434. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from typing_extensions import override

from servicekit.engines import prometheus, shapes
from servicekit.engines.adapter import Engine
from servicekit.engines.base import Counters
from servicekit.engines.commandline import option, option_words, port
from servicekit.profiles.vocabulary import HUB_FILE, HUB_ID, EngineName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servicekit.profiles.model import Profile
    from servicekit.quoting import Word

# Counted when a request ends.
_PROMPT: Final = "llamacpp:prompt_tokens_total"
_GENERATED: Final = "llamacpp:tokens_predicted_total"
_DECODE: Final = "llamacpp:tokens_predicted_seconds_total"
_DRAFTED: Final = "llamacpp:spec_decode_num_draft_tokens_total"
_ACCEPTED: Final = "llamacpp:spec_decode_num_accepted_tokens_total"
_RUNNING: Final = "llamacpp:requests_processing"
_PROGRESS: Final = (
    _PROMPT,
    _GENERATED,
    # The only one that moves during a request: for each batch of a prompt (--batch-size tokens,
    # a minute on a slow CPU) and for each decode step, speculative or not.
    "llamacpp:n_decode_total",
)
_SERIES: Final = (*_PROGRESS, _DECODE, _DRAFTED, _ACCEPTED, _RUNNING)


class LlamaCpp(Engine):
    """llama-server's command line, endpoints and metrics."""

    name: ClassVar = EngineName.LLAMACPP
    default_executable: ClassVar = "llama-server"
    # Every option has such a variable, and an inherited one would change the recipe.
    scrub: ClassVar = ("LLAMA_ARG_",)
    identity_paths: ClassVar = ("/props",)
    pool_path: ClassVar = "/props"
    metrics_path: ClassVar = "/metrics"

    @override
    def command(self, profile: Profile) -> Iterator[Word]:
        context = profile.context
        yield from ((argument,) for argument in profile.arguments)
        on_hub = HUB_ID.match(profile.model) is not None
        if named := HUB_FILE.match(profile.model):
            yield from option("hf-repo", named["repo"])
            yield from option("hf-file", named["file"])
        else:
            yield from option("hf-repo" if on_hub else "model", profile.model)
        yield from option("alias", profile.served_name)
        yield from option("host", profile.host)
        yield from option("port", port(profile))
        # --ctx-size is for all slots together.
        yield from option("ctx-size", str(context.requested * context.parallel))
        yield from option("parallel", str(context.parallel))
        yield from option("metrics")
        if (on_hub or named) and profile.service.network == "loopback":
            # It ignores HF_HUB_OFFLINE and would wait for the network at every start.
            yield from option("offline")
        if profile.drafter is not None:
            is_file = HUB_ID.match(profile.drafter) is None
            yield from option("spec-draft-model" if is_file else "spec-draft-hf", profile.drafter)
        yield from option_words(profile, argparse=False)

    @override
    def environment(self, profile: Profile) -> tuple[tuple[str, str], ...]:
        return ()

    @override
    def declared(self, models: Any, profile: Profile) -> int | None:
        """Return the model's training context, which caps every slot."""
        entry = self.entry(models, profile)
        meta = None if entry is None else entry.get("meta")
        return shapes.figure(meta.get("n_ctx_train")) if isinstance(meta, dict) else None

    @override
    def pool(self, body: str, profile: Profile) -> int | None:
        """Return the context of one slot."""
        settings = shapes.parse_object(body).get("default_generation_settings")
        return shapes.figure(settings.get("n_ctx")) if isinstance(settings, dict) else None

    @override
    def counters(self, body: str) -> Counters:
        sums = prometheus.totals(prometheus.read_samples(body, _SERIES), of="llama.cpp")
        return Counters(
            progress=tuple(sums.get(name, 0.0) for name in _PROGRESS),
            tokens=sums.get(_PROMPT, 0.0) + sums.get(_GENERATED, 0.0),
            generated=sums.get(_GENERATED, 0.0),
            finished=sums.get(_GENERATED, 0.0),
            drafted=sums.get(_DRAFTED),
            accepted=sums.get(_ACCEPTED, 0.0 if _DRAFTED in sums else None),
            decode_seconds=sums.get(_DECODE),
            running=sums.get(_RUNNING),
        )
