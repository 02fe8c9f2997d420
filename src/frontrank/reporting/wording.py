"""Numbers as the pages of a report say them."""

import math

from frontrank.evaluation.fields import is_distance

_LEAST_P = 1 / 5000  # of 4,999 random sign patterns, and the one that was seen


def number(value: float) -> str:
    """A number of any size, short.

    >>> [number(v) for v in (1234567, 12.3456, 0.25, 0.0001, 0, float("nan"))]
    ['1,234,567', '12.3', '0.25', '1e-4', '0', '-']
    """
    if not math.isfinite(value):
        return "-"
    if abs(value) >= 100 or value == round(value):
        return f"{value:,.0f}"
    if abs(value) >= 1e-3:
        return f"{value:.3g}"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def fraction(value: float) -> str:
    """A fraction in percent.

    >>> fraction(0.6123), fraction(float("nan"))
    ('61.2\u202f%', '-')
    """
    return f"{percent(value)}\N{NARROW NO-BREAK SPACE}%" if math.isfinite(value) else "-"


def percent(value: float) -> str:
    """A fraction in percent, without the sign.

    >>> percent(0.6123)
    '61.2'
    """
    return f"{100 * value:.1f}" if math.isfinite(value) else "-"


def metric_text(metric: str, value: float) -> str:
    """A metric in percent without the sign, or as it is where it is a distance.

    >>> metric_text("mAP", 0.6123), metric_text("dists@intra", 0.6123), metric_text("dists@intra", float("nan"))
    ('61.2', '0.612', '-')
    """
    return f"{value:.3f}" if is_distance(metric) and math.isfinite(value) else percent(value)


def points(difference: float) -> str:
    """A difference of fractions in percentage points, with its sign unless it is printed as 0.

    >>> points(0.2171), points(-0.004), points(0.00001)
    ('+21.7', '−0.4', '0.0')
    """
    text = f"{100 * difference:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")


def cost_text(cost: float) -> str:
    """What a wrong image costs, in points of AP, with two digits.

    >>> cost_text(0.125), cost_text(0.0042), cost_text(0.0000123), cost_text(0.9999), cost_text(1e-9)
    ('12', '0.42', '0.0012', '100', '0.00000010')
    """
    rounded = float(f"{100 * cost:.1e}")
    decimals = max(0, 1 - math.floor(math.log10(rounded))) if rounded > 0 else 0
    return f"{rounded:.{decimals}f}"


def p_text(p_value: float) -> str:
    """A p-value with its sign of comparison; the smallest that the test can find is a bound.

    >>> p_text(0.0002), p_text(0.0312)
    ('p\xa0≤\xa00.0002', 'p\xa0=\xa00.031')
    """
    said = f"≤ {_LEAST_P:g}" if p_value <= _LEAST_P * (1 + 1e-9) else f"= {p_value:.2g}"
    return f"p {said}".replace(" ", "\N{NO-BREAK SPACE}")


def counted(count: int, what: str, several: str = "") -> str:
    """So many of a thing.

    >>> counted(1, "query", "queries"), counted(5770, "image")
    ('1 query', '5,770 images')
    """
    return f"{count:,} {what if count == 1 else several or what + 's'}"
