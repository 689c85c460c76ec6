"""`ValueCount`: the `size` of an array, which refuses to be called as PyTorch's `x.size()` is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from cudnnlite.errors import ArrayTypeError


class ValueCount(int):
    """The number of values of an array."""

    if not TYPE_CHECKING:  # a type checker finds that a number is called

        def __call__(self, *_axis: object, **_options: object) -> NoReturn:
            """Raise ArrayTypeError: the caller expects PyTorch's method."""
            raise ArrayTypeError(
                f"x.size is a number, {int(self)}, and not PyTorch's method; x.shape has the sizes "
                "of the axes"
            )
