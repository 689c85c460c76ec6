"""Real numbers as users give them."""

from typing import Any

from cudnnlite.errors import ArgumentError


def real_number(value: Any, argument: str) -> float:
    """Return a host scalar as a float; ArgumentError if it is none."""
    try:
        if not isinstance(value, str):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ArgumentError(f"{argument}={value!r} must be a real number")
