"""Charts become pictures. The only door to vl-convert, Vega-Lite's own renderer.

It comes with everything that it needs and reads nothing from a network. What it gives is SVG
without scripts, whose colours may be variables of the page that it is put into.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from servicekit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable


def check_drawing() -> None:
    """Raise `UserError` where charts cannot be drawn."""
    try:
        import vl_convert  # noqa: F401
    except ImportError:
        raise UserError(
            "a report needs vl-convert-python beside servicekit, which draws its charts",
            hint="`pip install 'servicekit[report]'` adds it",
        ) from None


def drawn(specs: Iterable[dict[str, Any]]) -> tuple[str, ...]:
    """Draw charts of Vega-Lite: an `svg` element for each."""
    check_drawing()
    from vl_convert import vegalite_to_svg

    return tuple(vegalite_to_svg(spec, allowed_base_urls=[]) for spec in specs)
