"""One test for many values, where pytest's work for each would take longer than the check."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def in_one_test(values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Return a decorator that makes one test of a check of each value.

    Tuples are several arguments.  The test names all values that fail.
    """
    cases = list(values)
    assert cases

    def decorate(check: Callable[..., None]) -> Callable[[], None]:
        def test() -> None:
            wrong: dict[str, Exception] = {}
            for value in cases:
                try:
                    check(*(value if isinstance(value, tuple) else (value,)))
                except Exception as error:
                    wrong[repr(value)] = error
            if wrong:
                raise AssertionError(f"{len(wrong)} of {len(cases)}: {', '.join(wrong)}") from next(
                    iter(wrong.values())
                )

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return decorate
