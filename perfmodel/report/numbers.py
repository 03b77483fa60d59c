"""Numbers as every report writes them: in the terminal, in plots, on the page."""

from __future__ import annotations


def number(value: float) -> str:
    """Three significant digits, thousands separated."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 or value == 0 else f"{value:.1g}"


def percent(share: float) -> str:
    """A share in percent, about two significant digits."""
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.1f} %" if share >= 0.01 else f"{100 * share:.2f} %"
