"""What `servicekit check` finds out about a profile before anything is started. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from packaging.version import Version

from servicekit.engines import llama_server
from servicekit.engines.base import PACKAGE
from servicekit.engines.options import tables
from servicekit.engines.options.known_issues import check_known, in_range
from servicekit.engines.options.parser import Level, Remark, check_flags, read_argv, release
from servicekit.profiles.rules import kv_below_fp8
from servicekit.profiles.vocabulary import EngineName

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from servicekit.engines.base import FlagTable, InstalledEngine
    from servicekit.engines.options.parser import Use
    from servicekit.profiles.model import Profile
    from servicekit.service.plan import Plan

KEY_VARIABLES: Final = {
    EngineName.VLLM: "VLLM_API_KEY",
    EngineName.LLAMACPP: "LLAMA_API_KEY",
}
"""Variable from which an engine reads its API key."""

_ORDER: Final = tuple(Level)


@dataclass(frozen=True, slots=True)
class Report:
    """What was found out about a profile's command line."""

    profile: str
    engine: EngineName
    installed: InstalledEngine
    against: tuple[str, ...]
    """Releases whose parsers the options were held against; empty where none is known."""
    options: int  # options on the command line
    remarks: tuple[Remark, ...]  # gravest first

    @property
    def ok(self) -> bool:
        """Whether nothing stands against starting it."""
        return all(remark.level is not Level.ERROR for remark in self.remarks)

    @property
    def errors(self) -> tuple[str, ...]:
        """What stands against starting it, one sentence each."""
        return tuple(
            f"{each.where}: {each.message}" for each in self.remarks if each.level is Level.ERROR
        )

    def text(self) -> str:
        """Render for a person: one line a remark, then what was checked."""
        lines = [
            f"{each.level}: {each.where}: {each.message}"
            + (f" [{each.source}]" if each.source else "")
            for each in self.remarks
        ]
        return "\n".join([*lines, self._summary()])

    def _summary(self) -> str:
        here = self.installed.version(self.engine)
        found = f"{here} is installed" if here else "not installed here, or of unknown version"
        held = " and ".join(self.against) or "no option table"
        errors = sum(remark.level is Level.ERROR for remark in self.remarks)
        verdict = "ok" if self.ok else f"{errors} error{'s' * (errors > 1)}"
        return (
            f'profile "{self.profile}": {verdict}: {self.options} options checked against {held} '
            f"({self.engine}: {found})"
        )

    def json(self) -> dict[str, Any]:
        """Give the same as an object for `--json`."""
        return {
            "profile": self.profile,
            "engine": str(self.engine),
            "ok": self.ok,
            "executable": self.installed.executable or None,
            "version": self.installed.version(self.engine),
            "cuda": self.installed.cuda,
            "against": list(self.against),
            "options": self.options,
            "remarks": [
                {
                    "level": str(each.level),
                    "where": each.where,
                    "message": each.message,
                    "source": each.source or None,
                }
                for each in self.remarks
            ],
        }


def check(
    profile: Profile, plan: Plan, installed: InstalledEngine, *, host: Iterable[Remark] = ()
) -> Report:
    """Check the command line that `plan` would start, with every tunable at its default.

    `host` are remarks on what was found on this host; the report lists them with its own.
    """
    argv = plan.argv()
    own = Path(plan.host.executable).name == llama_server.PROGRAM
    tables = (llama_server.option_table(),) if own else tables_for(profile, installed)
    remarks: list[Remark] = []
    uses: tuple[Use, ...] = ()
    if tables:
        uses = read_argv(argv, tables[-1])
        remarks += _check_tables(profile, argv, tables)
        remarks += () if own else _check_listed(profile, argv, tables, installed)
    remarks += [
        *check_known(profile, uses, installed),
        *check_requires(profile, installed),
        *check_unheeded(profile),
        *check_precision(profile),
        *check_gpu_names(profile),
        *host,
    ]
    return Report(
        profile=profile.name,
        engine=profile.engine,
        installed=installed,
        against=tuple(release(table) for table in tables),
        options=len(uses),
        remarks=tuple(sorted(dict.fromkeys(remarks), key=lambda each: _ORDER.index(each.level))),
    )


def tables_for(profile: Profile, installed: InstalledEngine) -> tuple[FlagTable, ...]:
    """Choose the option tables to hold a profile against, oldest first.

    That of the installed version; where none is shipped for it, what the engine itself listed, else
    the nearest. Where it is not installed, those of every version that `requires` allows.
    """
    engine, known = profile.engine, tables.KNOWN[profile.engine]
    version = installed.version(engine)
    if version is None:
        spec = profile.requires.get(PACKAGE.get(engine, ""))
        allowed = [each for each in known if spec is None or in_range(spec, each, None)]
        return tuple(tables.table(engine, each) for each in allowed or known)
    public = Version(version).public
    if public in known:
        return (tables.table(engine, public),)
    nearest = installed.listed or tables.nearest(engine, public)
    return () if nearest is None else (nearest,)


def _check_tables(
    profile: Profile, argv: Sequence[str], tables: Sequence[FlagTable]
) -> Iterable[Remark]:
    """Hold the command line against each table; what only some of them refuse is less grave."""
    results = [check_flags(profile, argv, table) for table in tables]
    everywhere = set.intersection(*({each.where for each in remarks} for remarks in results))
    for remarks in results:
        for remark in remarks:
            if remark.where not in everywhere:
                message = f"{remark.message}; requires allows that version"
                yield replace(remark, level=Level.WARNING, message=message)
            elif remarks is results[-1]:
                yield remark


def _check_listed(
    profile: Profile, argv: Sequence[str], tables: Sequence[FlagTable], installed: InstalledEngine
) -> Iterable[Remark]:
    """Compare with what the engine itself lists, or say that its version is not known."""
    listed, version = installed.listed, installed.version(profile.engine)
    if listed is not None and listed not in tables:
        for remark in check_flags(profile, argv, listed):
            yield replace(remark, message=f"{remark.message} (according to its own --help)")
    elif listed is None and version is not None and tables[-1].version != Version(version).public:
        message = f"the options of the installed {version} are unknown; checked against "
        yield Remark(Level.NOTE, "engine", f"{message}{release(tables[-1])}")


def check_requires(profile: Profile, installed: InstalledEngine) -> Iterable[Remark]:
    """Hold what is installed against the profile's `requires`."""
    for name, spec in profile.requires.items():
        where, package = f"requires.{name}", name.lower().replace("_", "-")
        version = installed.packages.get(package)
        if not installed.packages:
            message = f"{spec} could not be checked: the engine is not installed here"
            yield Remark(Level.NOTE, where, message)
        elif version is None:
            message = f'{spec} is required, but "{package}" is not installed beside the engine'
            yield Remark(Level.ERROR, where, message)
        elif not in_range(spec, version, None):
            yield Remark(Level.ERROR, where, f"{spec} is required, but {version} is installed")


def check_unheeded(profile: Profile) -> Iterable[Remark]:
    """Find keys of the profile that its engine has no way to follow."""
    engine = profile.engine
    if profile.revision is not None and engine in {EngineName.LLAMACPP, EngineName.OPENAI}:
        message = "is not passed on: this engine has no option for it"
        yield Remark(Level.WARNING, "revision", message)
    if profile.drafter is not None and engine is EngineName.OPENAI:
        yield Remark(Level.WARNING, "drafter", "is not passed on: name it in arguments")
    config = profile.options.get("speculative-config", {})
    if profile.drafter is not None and engine is EngineName.VLLM and not isinstance(config, dict):
        message = "is not passed on: write options.speculative-config as a table"
        yield Remark(Level.ERROR, "drafter", message)
    if profile.api_key is None:
        return
    if engine is EngineName.SGLANG:
        message = (
            "SGLang reads its key from the command line only, which every user can see, so "
            "servicekit does not pass it and the server would be open: remove api_key"
        )
        yield Remark(Level.ERROR, "api_key", message)
    elif profile.api_key != KEY_VARIABLES.get(engine, profile.api_key):
        message = (
            f'{engine} reads its key from {KEY_VARIABLES[engine]}, not from "{profile.api_key}"'
        )
        yield Remark(Level.ERROR, "api_key", message)


def check_precision(profile: Profile) -> Iterable[Remark]:
    """Repeat that a KV cache below FP8 was accepted, and why: it is a decision of its own."""
    low = kv_below_fp8(profile)
    if low is not None:
        message = f'{low} is below FP8, accepted because "{profile.kv_precision_accepted}"'
        yield Remark(Level.WARNING, "kv_precision_accepted", message)


def check_gpu_names(profile: Profile) -> Iterable[Remark]:
    """Warn of a GPU's UUID where the engine reads its variable as numbers."""
    if profile.engine is EngineName.VLLM and not all(name.isdecimal() for name in profile.gpus):
        message = (
            "vLLM takes CUDA_VISIBLE_DEVICES for numbers in many versions, and ends with "
            '"invalid literal for int()": name the GPU by its index'
        )
        yield Remark(Level.WARNING, "gpus", message, "vllm#20939")
