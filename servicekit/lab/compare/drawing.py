"""Draws charts with vl-convert, the renderer of Vega-Lite; the only module that imports it.

It needs no network, and returns SVG without scripts whose colours may be variables of the page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from servicekit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable


def check_drawing() -> None:
    """Raise `UserError` if charts cannot be drawn."""
    try:
        import vl_convert  # noqa: F401
    except ImportError:
        raise UserError(
            "cannot draw the report: vl-convert-python is not installed",
            hint="install it: `pip install 'servicekit[report]'`",
        ) from None


def drawn(specs: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    """Draw Vega-Lite charts, one `svg` element each."""
    check_drawing()
    from vl_convert import vegalite_to_svg

    return tuple(vegalite_to_svg(spec, allowed_base_urls=[]) for spec in specs)
