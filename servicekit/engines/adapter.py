"""What servicekit needs from an engine: its command line, and how to read its answers. Pure.

Every engine here speaks OpenAI's API; this class is the part that follows from it. A new engine is
a subclass in a module of its own, listed in `servicekit.engines`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from servicekit.engines import shapes
from servicekit.engines.commandline import given

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from servicekit.engines.base import Completion, Counters
    from servicekit.profiles.model import Profile
    from servicekit.profiles.vocabulary import EngineName
    from servicekit.quoting import Word


class Engine(ABC):
    """One engine: how it is started and how it is probed."""

    name: ClassVar[EngineName]
    default_executable: ClassVar[str | None] = None  # program name if the profile gives none
    scrub: ClassVar[tuple[str, ...]] = ()
    """Prefixes of variables that must not be inherited, such as `LLAMA_ARG_`."""
    pool_path: ClassVar[str | None] = None  # endpoint that reports the physical pool
    identity_paths: ClassVar[tuple[str, ...]] = ()
    """Endpoints that may report the loaded model, in `model_path`; the first that exists counts."""
    metrics_path: ClassVar[str | None] = None
    """Endpoint with Prometheus metrics; `None` if progress cannot be read."""

    takes_template_arguments: ClassVar[bool] = True
    """Whether the API accepts `chat_template_kwargs`, which turn thinking off."""
    reserved_input: ClassVar[int] = 1
    """Tokens of the context that a prompt cannot have: at least the answer's first one."""
    tool_parser: ClassVar[str] = ""
    """Option without which tool calls stay in the text; empty if the engine parses them anyway."""

    @abstractmethod
    def command(self, profile: Profile) -> Iterator[Word]:
        """Yield the command-line words after the program; tunables are references."""

    @abstractmethod
    def counters(self, body: str) -> Counters:
        """Read the progress counters from the body of `metrics_path`.

        Raises `ShapeError` if the body has none of the engine's series: that is not the same as
        series that stand still.
        """

    @abstractmethod
    def pool(self, body: str, profile: Profile) -> int | None:
        """Read from the body of `pool_path` the tokens that one request can use of the pool.

        `None` if it is not reported; `ShapeError` for any other kind of body. Nothing else of the
        body is kept: SGLang's contains its API key.
        """

    def words(self, profile: Profile) -> tuple[Word, ...]:
        return tuple(self.command(profile))

    def environment(self, profile: Profile) -> tuple[tuple[str, str], ...]:
        """Return the variables that the engine, a Python program, needs to be supervised.

        Lines arrive when they are written, and a fatal signal prints the stacks. With a loopback
        network, processes must meet over loopback: NCCL and Gloo would use an address of the LAN,
        even with one GPU, and wait forever.
        """
        common = (("PYTHONUNBUFFERED", "1"), ("PYTHONFAULTHANDLER", "1"))
        if profile.service.network != "loopback":
            return common
        return (*common, ("NCCL_SOCKET_IFNAME", "lo"), ("GLOO_SOCKET_IFNAME", "lo"))

    def completion_request(self, profile: Profile) -> dict[str, Any]:
        """Return the JSON body of the bounded completion for `/v1/chat/completions`.

        It sets no `priority`: SGLang aborts such a request unless it was started with priorities.
        """
        probe = profile.probe
        request: dict[str, Any] = {
            "model": profile.served_name,
            "messages": [{"role": "user", "content": probe.prompt}],
            probe.token_limit: probe.max_tokens,
            "temperature": 0,
            "stream": False,
        }
        if self.takes_template_arguments and not probe.thinking:
            request["chat_template_kwargs"] = {"enable_thinking": False}
        return {name: value for name, value in request.items() if name not in probe.omit}

    def completion(self, body: Any) -> Completion:  # noqa: ANN401 - parsed JSON
        """Read the body of a chat completion, or raise `ShapeError`."""
        return shapes.read_completion(body)

    def served(self, models: Any, profile: Profile) -> bool:  # noqa: ANN401 - parsed JSON
        """Whether the body of `/v1/models` lists the profile's model; `ShapeError` if no list."""
        return self.entry(models, profile) is not None

    def loaded(self, body: str, profile: Profile) -> bool:
        """Whether the body of an identity path names the profile's model, or none at all."""
        path = shapes.parse_object(body).get("model_path")
        return not isinstance(path, str) or shapes.may_be_model(path, profile.model)

    def answers_as(self, reply_model: str | None, profile: Profile) -> bool:
        """Whether the `model` of a completion's body is the profile's."""
        return reply_model == profile.served_name

    def declared(self, models: Any, profile: Profile) -> int | None:  # noqa: ANN401 - parsed JSON
        """Return the declared model length in tokens from the body of `/v1/models`.

        SGLang and vLLM put `max_model_len` beside the id.
        """
        entry = self.entry(models, profile)
        return None if entry is None else shapes.figure(entry.get("max_model_len"))

    def usable_input(self, context: int) -> int:
        """Return the prompt tokens that one request may have of `context` effective tokens."""
        return max(0, context - self.reserved_input)

    def lacks_tool_parser(self, profile: Profile) -> str:
        """Name the option that `profile` needs for structured tool calls and does not give."""
        return "" if given(profile, self.tool_parser) is not None else self.tool_parser

    def entry(self, models: Any, profile: Profile) -> Mapping[str, Any] | None:  # noqa: ANN401 - parsed JSON
        """Return the profile's entry of a `/v1/models` body."""
        for entry in shapes.models_listed(models):
            if self.answers_as(entry["id"], profile):
                return entry
        return None
