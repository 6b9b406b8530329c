"""From a valid profile and the host's answers to what wrapper, unit and watchdog share. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from servicekit.engines import engine
from servicekit.models.hub_cache import cache_directory
from servicekit.places import Scope
from servicekit.profiles.vocabulary import PLACEHOLDER, EngineName, variable_of
from servicekit.quoting import Reference

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from servicekit.places import Places
    from servicekit.profiles.model import Profile
    from servicekit.quoting import Piece, Word

_MOST_BY_UUID: Final = {EngineName.VLLM: 0, EngineName.SGLANG: 1}
"""With how many GPUs an engine leaves `CUDA_VISIBLE_DEVICES` to CUDA alone. vLLM takes it for
numbers in many versions (vllm#20939), and SGLang where several GPUs reduce among themselves."""


@dataclass(frozen=True, slots=True)
class Host:
    """What was found on the host and decided for this install."""

    places: Places
    servicekit: tuple[str, ...]
    """Absolute command that runs servicekit, with `--config …` where it is not the default."""
    executable: str
    """Absolute path of the engine's program (or what the profile says, where it was not found)."""
    model: str  # what the engine is given as its model: an id, or an absolute path
    user: str | None
    """Account of a system service; `None` for user services, and where Supervisor keeps its own."""
    rivals: tuple[str, ...] = ()
    """Installed profiles that share a GPU or the port with this one, by name."""
    uuids: tuple[str, ...] = ()
    """The profile's GPUs in its order, if the driver listed all of their UUIDs."""
    kv_tokens: int | None = None
    """Tokens of the KV pool by the memory plan; `None` where the GPU could not be asked."""
    alert_command: tuple[str, ...] = ()  # what the settings run for a service that stays failed
    log_format: str = "auto"  # form of the watchdog's own log: `auto`, `console` or `json`
    sources: Mapping[str, str | None] = field(default_factory=dict)
    """Files that profile and settings were read from, with their hashes."""


@dataclass(frozen=True, slots=True)
class Tunable:
    """A value of the recipe that the environment may override."""

    variable: str  # name in the environment
    key: str  # `port`, an option's name or a variable's name
    default: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A profile made concrete for one host."""

    profile: Profile
    host: Host
    tunables: tuple[Tunable, ...]
    environment: tuple[tuple[str, Word], ...]  # what the wrapper exports, in order
    scrub: tuple[str, ...]  # prefixes of inherited variables that the wrapper unsets
    words: tuple[Word, ...]  # the engine's command line, program first, with references to tunables
    watchdog: tuple[str, ...]  # what the manager runs

    def argv(self) -> tuple[str, ...]:
        """Return the engine's command line with every tunable at its default."""
        defaults = {tunable.variable: tunable.default for tunable in self.tunables}
        return tuple(
            "".join(
                defaults[piece.name] if isinstance(piece, Reference) else piece for piece in word
            )
            for word in self.words
        )


def make_plan(profile: Profile, host: Host) -> Plan:
    """Plan `profile` for `host`."""
    adapter = engine(profile.engine)
    concrete = profile.model_copy(update={"model": host.model})
    values = _values(concrete, host.places)
    environment: dict[str, Word] = {
        **_surroundings(profile, host),
        **{n: (value,) for n, value in _cache_environment(profile, host.places).items()},
        **{name: (value,) for name, value in adapter.environment(profile)},
        # By default CUDA numbers the fastest GPU 0; this numbers them as the driver does.
        "CUDA_DEVICE_ORDER": ("PCI_BUS_ID",),
        "CUDA_VISIBLE_DEVICES": (",".join(_visible(profile, host)),),
    }
    if profile.service.network == "loopback":
        environment["HF_HUB_OFFLINE"] = ("1",)
    for name, value in profile.environment.items():
        tunable = name in profile.tunables
        environment[name] = (Reference(name),) if tunable else _filled((value,), values)
    return Plan(
        profile=profile,
        host=host,
        tunables=tuple(_tunables(profile, values)),
        environment=tuple(environment.items()),
        scrub=adapter.scrub,
        words=((host.executable,), *(_filled(word, values) for word in adapter.words(concrete))),
        watchdog=(
            *(*host.servicekit, "watch", profile.name),
            *("--plan", str(host.places.plan(profile.name))),
        ),
    )


def _visible(profile: Profile, host: Host) -> tuple[str, ...]:
    """Names of the GPUs that the engine sees; a UUID still means the same one in another slot."""
    by_uuid = len(host.uuids) <= _MOST_BY_UUID.get(profile.engine, len(host.uuids))
    return host.uuids if host.uuids and by_uuid else profile.gpus


def _surroundings(profile: Profile, host: Host) -> dict[str, Word]:
    """Home and search path of the engine, the same under every manager and by hand."""
    surroundings: dict[str, Word] = {}
    if host.places.scope is Scope.SYSTEM:
        # What the account's own home is, or whether it has one, must make no difference.
        surroundings["HOME"] = (str(host.places.state / profile.name),)
    if host.executable.startswith("/"):
        # Engines in a virtual environment run tools that are installed beside them, such as ninja.
        surroundings["PATH"] = (f"{PurePosixPath(host.executable).parent}:", Reference("PATH"))
    return surroundings


def _cache_environment(profile: Profile, places: Places) -> dict[str, str]:
    """Where the weights are, and where engines keep what they compile, for a restart to use it.

    System services share the weights, but not code: another engine could have changed it.
    """
    system = places.scope is Scope.SYSTEM
    cache = places.state / profile.name / ".cache" if system else places.cache
    return {
        "XDG_CACHE_HOME": str(cache),
        "HF_HOME": str(places.cache / "huggingface"),
        "HF_MODULES_CACHE": str(cache / "modules"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "CUDA_CACHE_PATH": str(cache / "cuda"),
        "FLASHINFER_WORKSPACE_BASE": str(cache / "flashinfer"),
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
    }


def hub_cache(profile: Profile, places: Places) -> PurePosixPath:
    """Where the engine looks for models of the hub, with every tunable at its default."""
    values = _values(profile, places)
    environment = {
        name: "".join(map(str, _filled((value,), values)))
        for name, value in {**_cache_environment(profile, places), **profile.environment}.items()
    }
    return cache_directory(environment)


def _tunables(profile: Profile, values: Mapping[str, Piece]) -> Iterator[Tunable]:
    for key in profile.tunables:
        if key in profile.environment:
            default = profile.environment[key]
        else:
            default = str(profile.port if key == "port" else profile.options[key])
        # No reference is left in it: a tunable that refers to a tunable port is no valid profile.
        yield Tunable(variable_of(key), key, "".join(map(str, _filled((default,), values))))


def _values(profile: Profile, places: Places) -> dict[str, Piece]:
    """What the placeholders stand for; a tunable port stays a reference."""
    tunable = "port" in profile.tunables
    return {
        "port": Reference(variable_of("port")) if tunable else str(profile.port),
        "host": profile.host,
        "model": profile.model,
        "served_name": profile.served_name,
        "cache": str(places.cache),
        "state": str(places.state),
    }


def _filled(word: Word, values: Mapping[str, Piece]) -> Word:
    """Replace placeholders in the literal pieces of `word`."""
    filled: list[Piece] = []
    for piece in word:
        if isinstance(piece, Reference):
            filled.append(piece)
            continue
        # A pattern with one group splits into text and the names of placeholders in turn.
        parts = PLACEHOLDER.split(piece)
        filled += [values[part] if index % 2 else part for index, part in enumerate(parts)]
    return tuple(piece for piece in filled if piece != "") or ("",)
