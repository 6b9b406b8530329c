"""From a valid profile and the host's answers to what wrapper, unit and watchdog have in common. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from servicekit.engines import engine
from servicekit.errors import ExitCode, ProfileError, UserError
from servicekit.profile import PLACEHOLDER, Profile, parse, variable_of
from servicekit.quoting import Reference, Word

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from servicekit.places import Places


class ManagerName(StrEnum):
    """Service managers that artifacts are made for."""

    SYSTEMD = "systemd"
    SUPERVISOR = "supervisor"


@dataclass(frozen=True, slots=True)
class Host:
    """What was found on the host and decided for this install."""

    places: Places
    servicekit: tuple[str, ...]
    """Absolute command that runs servicekit, with `--config …` where it is not the default."""
    executable: str
    """Absolute path of the engine's program (or what the profile says, where it was not found)."""
    model: str
    """What the engine is given as its model: an id, or an absolute path."""
    user: str | None
    """Account of a system service; `None` for user services and where Supervisor keeps its own."""
    rivals: tuple[str, ...] = ()
    """Installed profiles that share a GPU or the port with this one, by name."""


@dataclass(frozen=True, slots=True)
class Tunable:
    """A value of the recipe that the environment may override."""

    variable: str
    """Name in the environment."""
    key: str
    """`port`, an option's name or a variable's name."""
    default: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A profile made concrete for one host."""

    profile: Profile
    host: Host
    tunables: tuple[Tunable, ...]
    environment: tuple[tuple[str, Word], ...]
    """What the wrapper exports, in order."""
    scrub: tuple[str, ...]
    """Prefixes of inherited variables that the wrapper unsets."""
    words: tuple[Word, ...]
    """The engine's command line, program first, with references to tunables."""
    watchdog: tuple[str, ...]
    """What the manager runs."""

    def argv(self) -> tuple[str, ...]:
        """Return the engine's command line with every tunable at its default."""
        defaults = {tunable.variable: tunable.default for tunable in self.tunables}
        return tuple("".join(defaults[p.name] if isinstance(p, Reference) else p for p in word) for word in self.words)


def make_plan(profile: Profile, host: Host) -> Plan:
    """Plan `profile` for `host`."""
    adapter = engine(profile.engine)
    concrete = profile.model_copy(update={"model": host.model})
    environment: dict[str, Word] = {
        **{name: (value,) for name, value in _cache_environment(host.places).items()},
        **{name: (value,) for name, value in adapter.environment(profile)},
    }
    if profile.service.network == "loopback":
        environment["HF_HUB_OFFLINE"] = ("1",)
    environment["CUDA_VISIBLE_DEVICES"] = (",".join(profile.gpus),)
    for name, value in profile.environment.items():
        environment[name] = (
            (Reference(name),) if name in profile.tunables else tuple(_fill((value,), concrete, host.places))
        )
    return Plan(
        profile=profile,
        host=host,
        tunables=tuple(_tunables(profile, concrete, host.places)),
        environment=tuple(environment.items()),
        scrub=adapter.scrub,
        words=((host.executable,), *(tuple(_fill(word, concrete, host.places)) for word in adapter.words(concrete))),
        watchdog=(*host.servicekit, "watch", profile.name),
    )


def apply_tunables(profile: Profile, environment: Mapping[str, str]) -> Profile:
    """Return `profile` as the environment's tunables make it, or raise `UserError` naming the variable.

    The wrapper reads the same variables, so that watchdog and engine agree.
    """
    data = profile.model_dump(mode="json", exclude={"name"}, exclude_unset=True)
    for tunable in profile.tunables:
        variable = variable_of(tunable)
        text = environment.get(variable)
        if not text:  # the wrapper's ${NAME:=default} treats empty as unset, too
            continue
        if tunable == "port":
            data["port"] = _typed(text, 0, variable)
        elif tunable in profile.environment:
            data["environment"][tunable] = text
        else:
            data["options"][tunable] = _typed(text, profile.options[tunable], variable)
    try:
        return parse(data, name=profile.name, where=f'profile "{profile.name}" with the environment\'s tunables')
    except ProfileError as error:
        raise UserError(str(error), code=ExitCode.CONFIG) from None


def _typed(text: str, like: object, variable: str) -> object:
    kind = type(like)
    if kind not in {int, float}:
        return text
    try:
        return kind(text)
    except ValueError:
        message = f'environment: {variable} must be {"a whole number" if kind is int else "a number"}, not "{text}"'
        raise UserError(message, code=ExitCode.CONFIG) from None


def _cache_environment(places: Places) -> dict[str, str]:
    """Where engines and their compilers may keep what they compile, so that a restart finds it again."""
    cache = places.cache
    return {
        "XDG_CACHE_HOME": str(cache),
        "HF_HOME": str(cache / "huggingface"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "CUDA_CACHE_PATH": str(cache / "cuda"),
        "FLASHINFER_WORKSPACE_BASE": str(cache / "flashinfer"),
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
    }


def _tunables(profile: Profile, concrete: Profile, places: Places) -> Iterable[Tunable]:
    for key in profile.tunables:
        if key == "port":
            default = str(profile.port)
        elif key in profile.environment:
            default = "".join(str(piece) for piece in _fill((profile.environment[key],), concrete, places))
        else:
            default = str(profile.options[key])
        yield Tunable(variable_of(key), key, default)


def _fill(word: Word, profile: Profile, places: Places) -> Iterable[str | Reference]:
    """Replace placeholders in the literal pieces of `word`; a tunable port stays a reference."""
    values: dict[str, str | Reference] = {
        "port": Reference(variable_of("port")) if "port" in profile.tunables else str(profile.port),
        "host": profile.host,
        "model": profile.model,
        "served_name": profile.served_name,
        "cache": str(places.cache),
        "state": str(places.state),
    }
    for piece in word:
        if isinstance(piece, Reference):
            yield piece
            continue
        end = 0
        for match in PLACEHOLDER.finditer(piece):
            if match.start() > end:
                yield piece[end : match.start()]
            yield values[match[1]]
            end = match.end()
        if end < len(piece) or not piece:
            yield piece[end:]
