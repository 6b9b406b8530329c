"""The half of an adapter that follows from OpenAI's API, which every engine here speaks. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from servicekit.engines import shapes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from servicekit.engines.base import Completion, Counters
    from servicekit.profiles.model import Profile
    from servicekit.profiles.vocabulary import EngineName
    from servicekit.quoting import Word


class Compatible(ABC):
    """An `Engine`, where each member is documented, but for its command line and its metrics."""

    name: ClassVar[EngineName]
    default_executable: ClassVar[str | None] = None
    scrub: ClassVar[tuple[str, ...]] = ()
    pool_path: ClassVar[str | None] = None
    metrics_path: ClassVar[str | None] = None

    takes_template_arguments: ClassVar[bool] = True
    """Whether the API knows `chat_template_kwargs`, by which thinking is turned off."""
    reserved_input: ClassVar[int] = 1
    """Tokens of the context that a prompt cannot have: at least the first one of the answer."""

    @abstractmethod
    def command(self, profile: Profile) -> Iterator[Word]:
        """Give the words of the command line one after the other."""

    @abstractmethod
    def counters(self, body: str) -> Counters:
        """See `Engine.counters`."""

    @abstractmethod
    def pool(self, body: str, profile: Profile) -> int | None:
        """See `Engine.pool`."""

    def words(self, profile: Profile) -> tuple[Word, ...]:
        """See `Engine.words`."""
        return tuple(self.command(profile))

    def environment(self, profile: Profile) -> tuple[tuple[str, str], ...]:
        """See `Engine.environment`. For a Python program.

        Lines arrive when they are written, and a fatal signal leaves the stacks that it met. Where
        the service is cut off from the network, processes must meet over loopback: NCCL and Gloo
        would talk to themselves by an address of the LAN, even with one GPU, and wait for ever.
        """
        told = (("PYTHONUNBUFFERED", "1"), ("PYTHONFAULTHANDLER", "1"))
        if profile.service.network != "loopback":
            return told
        return (*told, ("NCCL_SOCKET_IFNAME", "lo"), ("GLOO_SOCKET_IFNAME", "lo"))

    def completion_request(self, profile: Profile) -> dict[str, Any]:
        """See `Engine.completion_request`.

        There is no `priority` in it: SGLang aborts such a request unless it was started for them.
        """
        probe = profile.probe
        request: dict[str, Any] = {
            "model": profile.served_name,
            "messages": [{"role": "user", "content": probe.prompt}],
            "max_tokens": probe.max_tokens,
            "temperature": 0,
            "stream": False,
        }
        if self.takes_template_arguments and not probe.thinking:
            request["chat_template_kwargs"] = {"enable_thinking": False}
        return request

    def completion(self, body: Any) -> Completion:  # noqa: ANN401 - parsed JSON
        """See `Engine.completion`."""
        return shapes.read_completion(body)

    def served(self, models: Any, profile: Profile) -> bool:  # noqa: ANN401 - parsed JSON
        """See `Engine.served`."""
        return self.entry(models, profile) is not None

    def answers_as(self, reply_model: str | None, profile: Profile) -> bool:
        """See `Engine.answers_as`."""
        return reply_model == profile.served_name

    def declared(self, models: Any, profile: Profile) -> int | None:  # noqa: ANN401 - parsed JSON
        """See `Engine.declared`. SGLang and vLLM put `max_model_len` beside the id."""
        entry = self.entry(models, profile)
        return None if entry is None else shapes.figure(entry.get("max_model_len"))

    def usable_input(self, context: int) -> int:
        """See `Engine.usable_input`."""
        return max(0, context - self.reserved_input)

    def entry(self, models: Any, profile: Profile) -> Mapping[str, Any] | None:  # noqa: ANN401 - parsed JSON
        """Give the entry of a `/v1/models` body that is the profile's, or `None`."""
        for entry in shapes.models_listed(models):
            if self.answers_as(entry["id"], profile):
                return entry
        return None
