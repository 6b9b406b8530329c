"""Any server with OpenAI's API: no counters and no pool are assumed. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from typing_extensions import override

from servicekit.engines import shapes
from servicekit.engines.adapter import Engine
from servicekit.engines.base import Completion, ShapeError
from servicekit.engines.commandline import option_words
from servicekit.profiles.vocabulary import EngineName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servicekit.profiles.model import Profile
    from servicekit.quoting import Word


class OpenAi(Engine):
    """A server started by the profile's `arguments`."""

    name: ClassVar = EngineName.OPENAI
    takes_template_arguments: ClassVar = False

    @override
    def command(self, profile: Profile) -> Iterator[Word]:
        yield from ((argument,) for argument in profile.arguments)
        yield from option_words(profile)

    @override
    def completion(self, body: Any) -> Completion:
        """Count text from a server that reports no usage as one token."""
        completion = super().completion(body)
        if completion.text and body.get("usage") is None:
            return replace(completion, completion_tokens=1)
        return completion

    @override
    def answers_as(self, reply_model: str | None, profile: Profile) -> bool:
        """Accept the revision that Transformers' server appends, as `@main`."""
        return reply_model is not None and (
            reply_model == profile.served_name or reply_model.startswith(f"{profile.served_name}@")
        )

    @override
    def pool(self, body: str, profile: Profile) -> None:
        """Return nothing: the pool is unknown."""

    @override
    def counters(self, body: str) -> NoReturn:
        raise ShapeError(f"OpenAI's API has no metrics: {shapes.quote(body)}")
