"""Sound records of a profile `x`, from which hostile ones are made."""

from __future__ import annotations

from datetime import UTC, datetime

NOW = datetime(2026, 11, 30, tzinfo=UTC)
LINE = {"at": "2026-11-30T10:00:00+00:00", "boot_id": "b", "run": "r", "kind": "fault"}
STATE = {
    "profile": "x",
    "state": "ready",
    "phase": "serving",
    "since": "2026-11-30T10:00:00+00:00",
    "updated": "2026-11-30T10:00:00+00:00",
    "run": "r",
    "pid": 1,
    "pid_started": 1,
}
