"""Chosen faults under a real supervisord."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from faults.rows import SUPERVISORD
from faults.side_by_side import chosen, judge, played
from faults.table import ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Future

    from faults.rows import Outcome, Row

pytestmark = pytest.mark.supervisord


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[Mapping[str, Future[Outcome]]]:
    """Play the rows of all tests of this module that were chosen, side by side."""
    with played(chosen(request), SUPERVISORD) as outcomes:
        yield outcomes


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "row", [r for r in ROWS if SUPERVISORD in r.quick], ids=lambda row: row.name
)
def test_row(outcomes: Mapping[str, Future[Outcome]], row: Row) -> None:
    """What is injected is found, named and answered as the row says, and nothing is left."""
    judge(outcomes[row.name].result())
