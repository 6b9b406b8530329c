"""Versions of an engine that lies somewhere, found without starting it."""

from __future__ import annotations

import subprocess
import sys
import time
import zipfile
from functools import partial
from pathlib import Path

import pytest
from machines.waiting import wait_until

from servicekit.engines.base import InstalledEngine, LegalValue
from servicekit.engines.versions import look
from servicekit.profiles.vocabulary import EngineName

SGLANG, VLLM, LLAMACPP = EngineName.SGLANG, EngineName.VLLM, EngineName.LLAMACPP


def environment(at: Path, *distributions: str, settings: str = "") -> Path:
    """Make a virtual environment as far as its files go; give its interpreter."""
    packages = at / "lib/python3.12/site-packages"
    packages.mkdir(parents=True)
    for distribution in distributions:
        (packages / f"{distribution}.dist-info").mkdir()
    (at / "pyvenv.cfg").write_text(settings, encoding="utf-8")
    (at / "bin").mkdir()
    python = at / "bin/python3.12"
    program(python, "")
    (at / "bin/python").symlink_to(python.name)
    return at / "bin/python"


def program(at: Path, text: str) -> str:
    """Write a program and give its path."""
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_text(text, encoding="utf-8")
    at.chmod(0o755)
    return str(at)


STUBS = {
    "first line": "#!{python}\n",
    "first line with an option": "#!{python} -I\n",
    "too long for a first line": "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n",
    "without quotes": "#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\n",
    "relocatable": (
        '#!/bin/sh\n\'\'\'exec\' "$(dirname -- "$(realpath -- "$0")")"/\'python\' "$0" "$@"\n'
        "' '''\n"
    ),
}


@pytest.mark.parametrize("stub", STUBS)
def test_packages_beside_the_programs_interpreter(stub: str, tmp_path: Path) -> None:
    """However an installer wrote the interpreter into the program, its packages are found."""
    python = environment(
        tmp_path / "env", "sglang-0.5.16", "flashinfer_python-0.6.14", "torch-2.11.0+cu130"
    )
    sglang = program(tmp_path / "env/bin/sglang", STUBS[stub].format(python=python))
    assert look(SGLANG, sglang) == InstalledEngine(
        executable=sglang,
        packages={"sglang": "0.5.16", "flashinfer-python": "0.6.14", "torch": "2.11.0+cu130"},
        cuda="13.0",
    )


def test_a_link_to_the_program(tmp_path: Path) -> None:
    """A relocatable program is found through the link that was put on the path."""
    environment(tmp_path / "env", "vllm-0.32.0")
    real = program(tmp_path / "env/bin/vllm", STUBS["relocatable"])
    link = tmp_path / "vllm"
    link.symlink_to(real)
    assert look(VLLM, str(link)).version(VLLM) == "0.32.0"


def test_the_interpreter_itself(tmp_path: Path) -> None:
    """A profile may start `python -m …`: then the interpreter is the program."""
    python = environment(tmp_path / "env", "vllm-0.32.0")
    assert look(VLLM, str(python)).version(VLLM) == "0.32.0"


def test_an_interpreter_from_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of `env` runs with the first Python of the path."""
    python = environment(tmp_path / "env", "vllm-0.32.0")
    monkeypatch.setenv("PATH", str(python.parent))
    vllm = program(tmp_path / "bin/vllm", "#!/usr/bin/env python\n")
    assert look(VLLM, vllm).version(VLLM) == "0.32.0"
    missing = program(tmp_path / "bin/other", "#!/usr/bin/env python3.99\n")
    assert look(VLLM, missing).packages == {}


@pytest.mark.parametrize("first", ["#!/usr/bin/env bash", "#!/bin/sh", "#!", "\x7fELF"])
def test_what_is_no_python_program_has_no_packages(first: str, tmp_path: Path) -> None:
    """A wrapper of somebody's own is not followed, and a binary has no packages beside it."""
    assert look(VLLM, program(tmp_path / "vllm", f"{first}\n")).packages == {}


def test_an_environment_that_sees_shared_packages(tmp_path: Path) -> None:
    """Its own packages come before those of the interpreter that it was made from."""
    shared = environment(tmp_path / "usr", "vllm-0.31.0", "torch-2.10.0")
    settings = f"home = {shared.parent}\ninclude-system-site-packages = true\nnonsense\n"
    python = environment(tmp_path / "env", "vllm-0.32.0", settings=settings)
    packages = look(VLLM, str(python)).packages
    assert packages == {"vllm": "0.32.0", "torch": "2.10.0"}


def test_packages_of_the_system_and_of_a_user(tmp_path: Path) -> None:
    """Debian's folders count, and those beside a program in a user's own prefix."""
    python = tmp_path / "usr/bin/python3.12"
    program(python, "")
    for folder, name in (
        ("usr/lib/python3/dist-packages", "numpy-2.0"),
        ("usr/local/lib/python3.12/dist-packages", "torch-2.11.0"),
        ("home/.local/lib/python3.12/site-packages", "vllm-0.32.0"),
        ("home/.local/lib/python3.9/site-packages", "vllm-0.1.0"),
    ):
        (tmp_path / folder / f"{name}.dist-info").mkdir(parents=True)
    vllm = program(tmp_path / "home/.local/bin/vllm", f"#!{python}\n")
    packages = look(VLLM, vllm).packages
    assert packages == {"numpy": "2.0", "torch": "2.11.0", "vllm": "0.32.0"}


def test_what_is_no_distribution_is_passed_over(tmp_path: Path) -> None:
    """A half-removed package or a version that is none does no harm."""
    python = environment(
        tmp_path / "env", "vllm-0.32.0", "~llm-0.31.0", "broken-one.two", "nothing"
    )
    assert look(VLLM, str(python)).version(VLLM) == "0.32.0"
    assert "broken" not in look(VLLM, str(python)).packages


@pytest.mark.parametrize(
    ("distribution", "cuda"),
    [
        ("nvidia_cuda_runtime_cu12-12.8.90", "12.8"),
        ("nvidia_cuda_runtime-13.0.48", "13.0"),
        ("torch-2.11.0+cu128", "12.8"),
        ("torch-2.11.0+cpu", None),
        ("torch-2.11.0", None),
    ],
)
def test_cuda(distribution: str, cuda: str | None, tmp_path: Path) -> None:
    """The runtime's own package tells its version, else what PyTorch was built for."""
    python = environment(tmp_path / "env", distribution)
    assert look(VLLM, str(python)).cuda == cuda


@pytest.mark.parametrize("where", ["nothing", "a folder", "relative"])
def test_where_there_is_no_program(where: str, tmp_path: Path) -> None:
    """What is not there is not installed; a name without a path was not found."""
    path = {"nothing": str(tmp_path / "x"), "a folder": str(tmp_path), "relative": "sglang"}[where]
    assert look(SGLANG, path) == InstalledEngine()


@pytest.mark.parametrize(
    ("prints", "build"),
    [
        ("version: 0.6.0-dev (build 11434, commit 0123abc)", "11434"),
        ("version: 4567 (0123abc)", "4567"),
        ("built with GNU 13", None),
    ],
)
def test_llamacpp_is_asked_for_its_build(prints: str, build: str | None, tmp_path: Path) -> None:
    """A program without packages tells its version itself, today's way or the former."""
    server = program(tmp_path / "llama-server", f"#!/bin/sh\necho '{prints}' >&2\n")
    assert look(LLAMACPP, server).version(LLAMACPP) == build


def test_llamacpp_in_a_wheel(tmp_path: Path) -> None:
    """The wheel's version ends in the number of llama.cpp's build."""
    python = environment(tmp_path / "env", "xllamacpp-2026.10.11549")
    assert look(LLAMACPP, str(python)).version(LLAMACPP) == "11549"
    other = environment(tmp_path / "other", "gguf-1.0")
    assert look(LLAMACPP, str(other)).version(LLAMACPP) is None


def test_the_engine_lists_its_options(tmp_path: Path) -> None:
    """Asked for them, the options are what its help says, in a language and width of our own."""
    server = program(
        tmp_path / "llama-server",
        "#!/bin/sh\n"
        'case "$*" in\n'
        "--version) echo 'version: 0.6.0-dev (build 11434, commit 0123abc)';;\n"
        "--help) echo '-c,    --ctx-size N    size'; echo \"--$HF_HUB_OFFLINE\";;\n"
        "esac\n",
    )
    listed = look(LLAMACPP, server, options=True).listed
    assert listed is not None
    assert listed.version == "11434"
    assert listed.options["--ctx-size"] == LegalValue("number")
    assert "--1" in listed.options


@pytest.mark.parametrize(
    ("engine", "arguments"), [(SGLANG, "serve --help"), (VLLM, "serve --help=all")]
)
def test_each_engine_is_asked_in_its_own_way(
    engine: EngineName, arguments: str, tmp_path: Path
) -> None:
    """vLLM lists everything only where it is asked for all."""
    text = f"#!/bin/sh\n[ \"$*\" = '{arguments}' ] && echo '  --flag  help'\n"
    listed = look(engine, program(tmp_path / "engine", text), options=True).listed
    assert listed is not None
    assert (listed.version, dict(listed.options)) == (
        "of unknown version",
        {"--flag": LegalValue("flag")},
    )


def test_an_engine_that_tells_nothing(tmp_path: Path) -> None:
    """A traceback, a program that cannot be run or one of another kind leave the list out."""
    failing = program(tmp_path / "failing", "#!/bin/sh\necho 'ImportError: no torch'; exit 1\n")
    assert look(SGLANG, failing, options=True).listed is None
    broken = program(tmp_path / "broken", "#!/no/such/interpreter\n")
    assert look(SGLANG, broken, options=True).listed is None
    other = program(tmp_path / "other", "#!/bin/sh\necho '  --flag  help'\n")
    assert look(EngineName.OPENAI, other, options=True).listed is None


def test_a_program_that_hangs_is_given_up_with_its_children(tmp_path: Path) -> None:
    """The deadline holds though a child keeps the output open, and nothing is left running."""
    pids = tmp_path / "pids"
    text = f"#!/bin/sh\nsleep 60 & echo $! $$ > {pids}\necho '  --flag  help'\nwait\n"
    begun = time.monotonic()
    listed = look(SGLANG, program(tmp_path / "sglang", text), options=True, deadline=0.5).listed
    assert listed is None
    assert time.monotonic() - begun < 20
    for pid in pids.read_text(encoding="utf-8").split():
        # The killed child is not ours to wait for: on a busy machine it dies a moment later.
        wait_until(partial(ended, pid), 10, f"the end of pid {pid}")


def ended(pid: str) -> bool:
    """Tell whether a process is gone, or only waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").split()[2] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wheel(at: Path, name: str, version: str) -> Path:
    """Make a wheel that installs a program and nothing else."""
    path = at / f"{name}-{version}-py3-none-any.whl"
    folder = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in (
            ("METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"),
            ("WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
            ("entry_points.txt", f"[console_scripts]\n{name} = {name}:main\n"),
            ("RECORD", ""),
        ):
            archive.writestr(f"{folder}/{file}", text)
    return path


def test_a_real_environment(tmp_path: Path) -> None:
    """What `venv` and `pip` really make is understood, with a path too long for a first line."""
    home = tmp_path / ("long" * 30) / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True, timeout=120)
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin/python"), "install"]
    options = ["--quiet", "--no-index", "--no-deps", str(wheel(tmp_path, "sglang", "9.8.7"))]
    subprocess.run([*pip, *options], check=True, timeout=120)
    sglang = home / "bin/sglang"
    assert sglang.read_text(encoding="utf-8").startswith("#!/bin/sh\n")
    assert look(SGLANG, str(sglang)).version(SGLANG) == "9.8.7"
