"""The legend's small picture of an arm: its marker over its hatch, as an SVG that needs no drawing library."""

from __future__ import annotations

import math

from harness.report.figures.style import LOOKS, Look

STAR = " ".join(
    f"{12 + r * math.sin(i * math.pi / 5):.1f},{8 - r * math.cos(i * math.pi / 5):.1f}"
    for i in range(10)
    for r in [6 if i % 2 == 0 else 2.6]
)
SHAPES = {
    "o": '<circle cx="12" cy="8" r="4.5"/>',
    "s": '<rect x="7.5" y="3.5" width="9" height="9"/>',
    "^": '<path d="M12 3 17 13H7z"/>',
    "v": '<path d="M12 13 17 3H7z"/>',
    "D": '<path d="M12 2.5 17.5 8 12 13.5 6.5 8z"/>',
    "P": '<path d="M10 2.5h4V6h3.5v4H14v3.5h-4V10H6.5V6H10z"/>',
    "X": '<path d="m8 2.5 4 3.5 4-3.5 2 2-3.5 3.5 3.5 3.5-2 2-4-3.5-4 3.5-2-2L9.5 8 6 4.5z"/>',
    "*": f'<polygon points="{STAR}"/>',
    "<": '<path d="M7 8 17 3v10z"/>',
    ">": '<path d="M17 8 7 13V3z"/>',
    "d": '<path d="M12 2 15.3 8 12 14 8.7 8z"/>',
    "1": '<path d="M12 8v5.5M12 8 7.2 5M12 8l4.8-3" stroke="currentColor" stroke-width="1.6"/>',
    "p": '<path d="M12 2.8 17 6.4 15.1 12.3H8.9L7 6.4z"/>',
}


def swatch(look: Look) -> str:
    """An svg element, 24 x 16, in the arm's colour variable."""
    name = next(name for name, known in LOOKS.items() if known == look)
    line = '<path d="M1 8h22" stroke="currentColor" stroke-width="1.6"/>'
    return (
        f'<svg viewBox="0 0 24 16" aria-hidden="true" style="color:var(--arm-{name});fill:currentColor">'
        f"{line}{SHAPES[look.marker]}</svg>"
    )
