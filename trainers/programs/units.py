"""Numbers for people: seconds, shares, counts and bytes in a few characters."""

import math

NBSP = "\N{NO-BREAK SPACE}"


def seconds(value: float | None, of: float | None = None) -> str:
    """17.5 s, 312 ms, 45 µs; with `of`, in the unit and decimals of that time, so that a column lines up."""
    if value is None:
        return "–"
    like = abs(value if of is None else of)
    unit, name = (1.0, "s") if like >= 1 or like == 0 else (1e-3, "ms") if like >= 1e-3 else (1e-6, "µs")
    digits = 0 if like >= 100 * unit else 1 if like >= 10 * unit else 2
    if of is not None:
        digits = min(digits + 1, 2)  # parts of it are smaller
    return f"{value / unit:,.{digits}f}{NBSP}{name}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def short(value: float | None) -> str:
    """1,234 as it is; 118,300 is 118.3 k, and so on to E."""
    if value is None:
        return "–"
    if abs(value) < 1e4:
        return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.2f}"
    power = min(int(math.log10(abs(value)) // 3), 6)
    return f"{value / 1000**power:.1f}{NBSP}{' kMGTPE'[power]}"


def size(n: float | None) -> str:
    """Bytes in binary units."""
    if n is None:
        return "–"
    power = min(int(math.log2(n) // 10), 5) if n >= 1 else 0
    scaled = n / 1024**power
    return (
        f"{scaled:.{0 if power == 0 or scaled >= 100 else 1}f}{NBSP}{('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB')[power]}"
    )
