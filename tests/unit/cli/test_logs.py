"""`logs`: what keeps a person from reading a journal is said instead of nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from servicekit.cli.logs import refuse_hidden
from servicekit.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_journal_in_memory_that_only_root_reads_is_refused(tmp_path: Path) -> None:
    """The remedy is a journal on disk, which has a file for each user."""
    system = tmp_path / "machine/system.journal"
    system.parent.mkdir()
    refuse_hidden(1000, [tmp_path])
    system.symlink_to(tmp_path / "nowhere")  # what access(2) refuses to everybody, root included
    with pytest.raises(UserError, match="cannot be read: it is kept in memory") as refusal:
        refuse_hidden(1000, [tmp_path])
    assert "mkdir /var/log/journal" in refusal.value.hint
    (system.parent / "user-1000.journal").touch()
    refuse_hidden(1000, [tmp_path])
    (system.parent / "user-1000.journal").unlink()
    system.unlink()
    system.touch()
    refuse_hidden(1000, [tmp_path])
