"""What `status` shows of the engine's own figures."""

from __future__ import annotations

import pytest

from servicekit.cli.status import measured


@pytest.mark.parametrize(
    ("figures", "text"),
    [
        ({}, ""),
        ({"kv_tokens": 38688.0}, ""),
        (
            {"weights_gib": 20.14, "kv_gib": 1.18, "graph_gib": 0.15, "free_gib": 1.34},
            "weights 20.14 GiB, KV cache 1.18 GiB, graphs 0.15 GiB, 1.34 GiB free",
        ),
    ],
)
def test_status_shows_what_the_engine_measured(figures: dict[str, float], text: str) -> None:
    """Weights, pools and what is left are in one line; without figures there is none."""
    assert measured(figures, {}) == text


def test_status_shows_the_plan_beside_what_the_engine_measured() -> None:
    """What the plan of the install said of a figure is behind it; what it did not say is not."""
    figures = {"weights_gib": 20.14, "kv_gib": 6.08, "free_gib": 1.34}
    assert measured(figures, {"kv_gib": 6.1, "state_gib": 1.5}) == (
        "weights 20.14 GiB, KV cache 6.08 GiB (planned 6.10), 1.34 GiB free"
    )
