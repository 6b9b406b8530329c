"""An NVIDIA driver in a file: `tests/drivers/pynvml.py` does in the driver child what it says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

import pytest

from servicekit.host.gpu import Gpus

DRIVERS = Path(__file__).parents[1] / "drivers"
LIMIT = 10.0
"""Seconds for an answer, on a busy machine."""
CARD: Final = {
    "uuid": "GPU-11111111",
    "pci": "00000000:03:00.0",
    "used": 20000,
    "total": 32607,
    "compute": {"812": 18000, "813": 500},
    "graphics": {"812": 100, "900": 200},
}


class Driver:
    """A driver that does what its file says, for servicekit's own driver child."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "driver.json"
        self.variables = {"PYTHONPATH": str(DRIVERS), "FAKE_NVML": str(self._file)}
        self.environment = {**os.environ, **self.variables}
        self.does(gpus=[CARD])

    def does(self, **what: Any) -> None:  # noqa: ANN401 - JSON
        """Do from now on what `tests/drivers/pynvml.py` says of such words."""
        beside = self._file.with_suffix(".new")
        beside.write_text(json.dumps(what), encoding="utf-8")
        beside.replace(self._file)

    def gpus(self, *names: str, limit: float = LIMIT) -> Gpus:
        """Ask this driver about GPUs, by default about its first."""
        return Gpus(names or ("0",), environment=self.environment, limit=limit)


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    """Put a driver in the place of NVIDIA's."""
    return Driver(tmp_path)
