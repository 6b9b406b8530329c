"""Chosen faults under a real systemd, in units as they are installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from faults.rows import SYSTEMD
from faults.side_by_side import chosen, judge, played
from faults.table import ROWS
from machines.systemd import why_not

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Future

    from faults.rows import Outcome, Row

pytestmark = pytest.mark.systemd


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[Mapping[str, Future[Outcome]]]:
    """Play the rows of all tests of this module that were chosen, side by side."""
    if reason := why_not():
        pytest.skip(reason)
    with played(chosen(request), SYSTEMD) as outcomes:
        yield outcomes


@pytest.mark.timeout(400)
@pytest.mark.parametrize("row", [r for r in ROWS if SYSTEMD in r.quick], ids=lambda row: row.name)
def test_row(outcomes: Mapping[str, Future[Outcome]], row: Row) -> None:
    """What is injected is found, named and answered as the row says, and nothing is left."""
    judge(outcomes[row.name].result())
