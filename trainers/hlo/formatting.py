"""Formatting of seconds, shares, counts and bytes in a few characters."""

import math

NBSP = "\N{NO-BREAK SPACE}"


def seconds(value: float | None, total: float | None = None) -> str:
    """Formats a time: 17.5 s, 312 ms, 45 µs; with `total`, in the unit and decimals of that time, so that a column lines up."""
    if value is None:
        return "–"
    scale = abs(value if total is None else total)
    unit, name = (1.0, "s") if scale >= 1 or scale == 0 else (1e-3, "ms") if scale >= 1e-3 else (1e-6, "µs")
    digits = 0 if scale >= 100 * unit else 1 if scale >= 10 * unit else 2
    if total is not None:
        digits = min(digits + 1, 2)  # parts of a total are smaller
    return f"{value / unit:,.{digits}f}{NBSP}{name}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def short(value: float | None) -> str:
    """Formats a count: 1,234 as it is; 118,300 is 118.3 k, and so on to E."""
    if value is None:
        return "–"
    if abs(value) < 1e4:
        return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.2f}"
    power = min(int(math.log10(abs(value)) // 3), 6)
    return f"{value / 1000**power:.1f}{NBSP}{' kMGTPE'[power]}"


def size(n: float | None) -> str:
    """Formats bytes in binary units."""
    if n is None:
        return "–"
    power = min(int(math.log2(n) // 10), 5) if n >= 1 else 0
    scaled = n / 1024**power
    return f"{scaled:.{0 if power == 0 or scaled >= 100 else 1}f}{NBSP}{('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB')[power]}"
