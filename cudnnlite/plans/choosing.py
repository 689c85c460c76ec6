"""Asking the handle's chooser, where there is one, for the algorithm of a call that names none."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.devices.storage import ALLOCATION_ALIGNMENT
from cudnnlite.problems.problem import Problem


def tuned_choice(
    handle: Handle,
    key: Hashable,
    problem: Callable[[], Problem],
    limit: int | None,
    **operands: DeviceArray | None,
) -> Any:
    """Return what the handle's chooser says; None without one, or where it leaves the choice to the heuristic.

    `key` stands for the problem, so that `problem` need not make it for each call.  `operands` are the arrays of the call;
    of one that does not exist yet nothing is known but that it is aligned.
    """
    chooser = handle.chooser
    if chooser is None:
        return None
    # the last byte of an address says what it is aligned to, and costs less
    full = (
        key,
        *[
            None if array is None else array.ptr % ALLOCATION_ALIGNMENT
            for array in operands.values()
        ],
        limit,
    )
    try:
        found = chooser.recall(full)
    except TypeError:  # unhashable: an argument of a wrong type, which making the problem names
        problem()
        raise
    if found is not None:
        return found
    aligned = {name: alignment_of(array) for name, array in operands.items() if array is not None}
    return chooser.choose(problem(), aligned, limit, full)


def alignment_of(array: DeviceArray) -> int:
    """Return the largest power of two that divides an array's address, 256 at most."""
    return min(array.ptr & -array.ptr, ALLOCATION_ALIGNMENT) or ALLOCATION_ALIGNMENT
