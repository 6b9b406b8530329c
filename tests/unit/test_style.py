"""Rules of STYLE.md that no linter knows."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PATCHES = re.compile(r"monkeypatch\.(setattr|delattr)\(|mocker\.|mock\.patch\(")


def test_nothing_is_patched() -> None:
    """Tests pass small fakes and parameters; `monkeypatch` replaces no attribute."""
    patched = [
        f"{file.relative_to(TESTS)}:{number}"
        for file in sorted(TESTS.rglob("*.py"))
        if file != Path(__file__)
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if PATCHES.search(line)
    ]
    assert patched == []
