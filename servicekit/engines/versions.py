"""Which engine is installed where a profile's program lies, found out without starting it.

An engine in an environment of its own is the normal case. Its packages' versions stand in the names
of directories beside its interpreter: nothing is imported, no GPU touched and no program run.
Only llama.cpp, a program without packages, is asked for its version, and an engine is asked for its
options where the caller wants that: both within a deadline.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from servicekit.engines.base import FlagTable, InstalledEngine
from servicekit.engines.helptext import read_help
from servicekit.host import untrusted
from servicekit.host.unprivileged import output
from servicekit.profiles.vocabulary import EngineName

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VERSION_DEADLINE: Final = 10.0  # seconds that a program may take to print its version

# Arguments that make an engine list its options without loading a model.
HELP: Final[Mapping[EngineName, tuple[str, ...]]] = {
    EngineName.SGLANG: ("serve", "--help"),
    EngineName.VLLM: ("serve", "--help=all"),
    EngineName.LLAMACPP: ("--help",),
}

_LONGEST_VERSION: Final = 1 << 14  # characters of a program's version text
_SCRIPT: Final = 4096  # bytes of a program that are searched for its interpreter

# What installers write where the interpreter's path is too long for a first line.
_SHELL_STUB: Final = re.compile(rb"""^'''exec' (?:"([^"]+)"|(\S+)) "\$0" "\$@"$""", re.MULTILINE)
# What uv writes into environments that may be moved: the interpreter beside the program.
_BESIDE: Final = re.compile(
    rb"""^'''exec' "\$\(dirname .*\)"/'?([\w.-]+)'? "\$0" "\$@"$""", re.MULTILINE
)
_DIST: Final = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)\.dist-info")
# In what `llama-server --version` prints, today's and the former way.
_BUILD: Final = re.compile(r"version: .*?\bbuild (\d+)|version: (\d+) \(")
_CUDA_LIBRARY: Final = re.compile(r"nvidia-cuda-runtime(?:-cu\d+)?")


def look(
    engine: EngineName,
    executable: str,
    *,
    account: str | None = None,
    options: bool = False,
    deadline: float = 120.0,
) -> InstalledEngine:
    """Find out what is installed at the absolute path `executable`.

    With `options` the engine is asked for its options, too, which imports it: SGLang and vLLM take
    up to a minute, and `deadline` seconds bound it. Root asks as the service's `account`. What is
    unknown is left empty.
    """
    program = Path(executable)
    if not program.is_absolute() or not os.access(program, os.R_OK) or not program.is_file():
        return InstalledEngine()
    packages = _packages(program)
    if engine is EngineName.LLAMACPP and (build := _build(program, packages, account)):
        packages["llama.cpp"] = build
    installed = InstalledEngine(executable, packages, _cuda(packages))
    if not options or engine not in HELP:
        return installed
    flags = read_help(
        output(
            [executable, *HELP[engine]], account=account, deadline=deadline, environment=_asking()
        )
    )
    listed = FlagTable(engine, installed.version(engine) or "of unknown version", flags)
    return replace(installed, listed=listed) if flags else installed


def _packages(program: Path) -> dict[str, str]:
    """Versions of the Python packages that the program would import, by canonical name."""
    packages: dict[str, str] = {}
    for folder in _site_folders(program):
        for entry in sorted(folder.glob("*.dist-info")):
            match = _DIST.fullmatch(entry.name)
            if match is not None and _is_version(match["version"]):
                packages.setdefault(canonicalize_name(match["name"]), match["version"])
    return packages


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def _site_folders(program: Path) -> Iterator[Path]:
    """Yield the folders of packages of the interpreter that runs `program`, first the nearest."""
    interpreter = _interpreter(program)
    if interpreter is None:
        return
    # An environment's interpreter is a link: its packages are beside the link, not its target.
    release = re.search(r"python(3\.\d+)", Path(os.path.realpath(interpreter)).name)
    python = f"python{release[1]}" if release else "python3*"
    prefixes = [interpreter.parent.parent]
    settings = prefixes[0] / "pyvenv.cfg"
    if not settings.is_file():
        prefixes.append(program.parent.parent)  # a user's own packages, say
    elif home := _shared_home(settings):
        prefixes.append(home.parent)
    for prefix in dict.fromkeys(prefixes):
        for pattern in (
            f"lib*/{python}/*-packages",
            f"local/lib/{python}/*-packages",
            "lib/python3/dist-packages",
        ):
            yield from sorted(prefix.glob(pattern))


def _shared_home(settings: Path) -> Path | None:
    """Return the directory of the interpreter whose packages an environment shares, if any."""
    lines = _beginning(settings).decode(errors="replace").splitlines()
    values = {
        key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)
    }
    shares = values.get("include-system-site-packages", "").lower() == "true"
    return Path(values["home"]) if shares and "home" in values else None


def _interpreter(program: Path) -> Path | None:
    """Return the Python that runs `program`: from its first lines, or itself. `None` for others."""
    if re.fullmatch(r"python[\d.]*", program.name):
        return program
    beginning = _beginning(program)
    if not beginning.startswith(b"#!"):
        return None
    words = beginning[2:].partition(b"\n")[0].split()
    if stub := _SHELL_STUB.search(beginning):
        return Path(os.fsdecode(stub[1] or stub[2]))
    if beside := _BESIDE.search(beginning):
        return Path(os.path.realpath(program)).parent / os.fsdecode(beside[1])
    if not words:
        return None
    if words[0].endswith(b"/env"):
        name = os.fsdecode(words[-1])
        path = shutil.which(name) if name.startswith("python") else None
        return Path(path) if path else None
    interpreter = Path(os.fsdecode(words[0]))
    return interpreter if interpreter.name.startswith("python") else None


def _beginning(path: Path) -> bytes:
    """Read the first bytes of a file that another account may have put there; empty for others."""
    try:
        with os.fdopen(untrusted.open_linked(path), "rb") as file:
            return file.read(_SCRIPT)
    except OSError:
        return b""


def _cuda(packages: Mapping[str, str]) -> str | None:
    """Version of the CUDA runtime, from its own package or from what PyTorch was built for."""
    for name, version in packages.items():
        if _CUDA_LIBRARY.fullmatch(name):
            return ".".join(version.split(".")[:2])
    local = re.search(r"\+cu(\d+)(\d)$", packages.get("torch", ""))
    return f"{local[1]}.{local[2]}" if local else None


def _build(program: Path, packages: Mapping[str, str], account: str | None) -> str | None:
    """Number of llama.cpp's build: as the program prints it, or as the wheel's version ends."""
    if not packages:
        text = output(
            [str(program), "--version"],
            account=account,
            deadline=VERSION_DEADLINE,
            environment=_asking(),
        )
        build = _BUILD.search(text[:_LONGEST_VERSION])
        return (build[1] or build[2]) if build else None
    return packages.get("xllamacpp", "").rpartition(".")[2] or None


def _asking() -> dict[str, str]:
    """Return what a program that is only asked finds in its environment."""
    libraries = os.environ.get("LD_LIBRARY_PATH")
    return {
        "HF_HUB_OFFLINE": "1",
        "COLUMNS": "200",
        "NO_COLOR": "1",
        **({"LD_LIBRARY_PATH": libraries} if libraries else {}),
    }
