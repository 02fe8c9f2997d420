"""What every function here does with a user's arguments."""

from frontrank.errors import InputError, InputTypeError
from frontrank.ranking.vectors import Vectors, same_dimensions


def require_count(name: str, value: object, at_least: int = 1) -> None:
    """Refuse a setting that is not a whole number, or too small."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputTypeError(f"{name} must be a whole number, got {value!r}")
    if value < at_least:
        raise InputError(f"{name} must be at least {at_least}, got {value}")


def read_sides(queries: object, gallery: object) -> tuple[Vectors, Vectors]:
    """Queries and gallery, on the device of the queries; the same object twice where there is no gallery."""
    rows = Vectors("queries", queries)
    if gallery is None:
        return rows, rows
    items = Vectors("gallery", gallery, device=rows.device)
    same_dimensions(rows, items)
    return rows, items
