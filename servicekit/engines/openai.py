"""Any server with OpenAI's API, and nothing assumed beyond that: no counters, no pool. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from typing_extensions import override

from servicekit.engines import shapes
from servicekit.engines.base import Completion, ShapeError
from servicekit.engines.commandline import option_words
from servicekit.engines.compatible import Compatible
from servicekit.profiles.vocabulary import EngineName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servicekit.profiles.model import Profile
    from servicekit.quoting import Word


class OpenAi(Compatible):
    """A server that the profile's `arguments` start and that answers as OpenAI's would."""

    name: ClassVar = EngineName.OPENAI
    takes_template_arguments: ClassVar = False

    @override
    def command(self, profile: Profile) -> Iterator[Word]:
        yield from ((argument,) for argument in profile.arguments)
        yield from option_words(profile)

    @override
    def completion(self, body: Any) -> Completion:
        """See `Engine.completion`. Text from a server that does not count is at least one token."""
        read = super().completion(body)
        if read.text and body.get("usage") is None:
            return replace(read, completion_tokens=1)
        return read

    @override
    def answers_as(self, reply_model: str | None, profile: Profile) -> bool:
        """See `Engine.answers_as`. Transformers' server puts the revision behind it, as `@main`."""
        return reply_model is not None and (
            reply_model == profile.served_name or reply_model.startswith(f"{profile.served_name}@")
        )

    @override
    def pool(self, body: str, profile: Profile) -> None:
        """See `Engine.pool`: there is none."""

    @override
    def counters(self, body: str) -> NoReturn:
        """See `Engine.counters`: there are none."""
        raise ShapeError(f"OpenAI's API has no metrics: {shapes.quote(body)}")
