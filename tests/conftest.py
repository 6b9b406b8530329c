"""What every test may use: the machines, and the rule that nothing real is skipped in CI."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

import servicekit

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

pytest_plugins = [
    "machines.driver",
    "machines.dstate",
    "machines.fake",
    "machines.hub",
    "machines.sshd",
    "machines.supervisor",
    "machines.systemd",
    "machines.debian",  # made of the one above
]

REAL = ("llama", "sshd", "supervisord", "systemd")
"""Markers of tests that prove the product with real parts."""


def pytest_report_header() -> str:
    """Tell which servicekit is tested."""
    return f"servicekit {servicekit.__version__}: {Path(servicekit.__file__).parent}"


def pytest_configure() -> None:
    """Begin as a terminal of a user does; refuse to test the tree for what was installed.

    A job in the background is started with its interrupt ignored, and so is all that it starts. Of
    Python, users have no settings: unbuffered output hides what is lost when it cannot be written.
    """
    for setting in ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"):
        os.environ.pop(setting, None)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # How long an example takes says more of the machine than of the product.
    settings.register_profile("patient", deadline=None)
    settings.load_profile("patient")
    installed = Path(servicekit.__file__).is_relative_to(sys.prefix)
    if os.environ.get("SERVICEKIT_TEST_INSTALLED") and not installed:
        message = f"{servicekit.__file__} is not the installed package"
        raise pytest.UsageError(message)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where there is none."""
    if item.get_closest_marker("gpu") and not Path("/dev/nvidiactl").exists():
        pytest.skip("needs an NVIDIA GPU")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip of a real test into a failure in CI: a proof that was skipped proves nothing."""
    report = yield
    proves = [marker for marker in REAL if item.get_closest_marker(marker)]
    if report.skipped and proves and os.environ.get("CI") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where {', '.join(proves)} must run: {report.longrepr}"
    return report


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    """Give an XDG_RUNTIME_DIR for a user's systemd: a socket below it has 107 characters in all."""
    with tempfile.TemporaryDirectory(prefix="servicekit-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def free_port() -> int:
    """Give a TCP port of loopback that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port
