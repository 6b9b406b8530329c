"""What is measured: `python -m benchmarks` prints it as one table.

The real managers and the fake engine are those of the tests.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))
