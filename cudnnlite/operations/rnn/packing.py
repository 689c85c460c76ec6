"""Sequences of different lengths to packed data and back, on the host."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from cudnnlite.arguments import sequence, shown
from cudnnlite.errors import ArgumentError
from cudnnlite.plans.host_arrays import host_array
from cudnnlite.specs.rnn_data import MAX_BATCH, check_packed, parse_lengths
from cudnnlite.unknown import tells_unknown

Array = np.ndarray[Any, Any]


class PackedSequences(NamedTuple):
    """Sequences as ``layout="packed"`` wants them: sorted, the longest first, and all first steps before all second steps.

    Attributes
    ----------
    values : ndarray
        (sum of lengths, vector): the input, for `Handle.array`.
    lengths : tuple of int
        As they are sorted, for `rnn_forward`.
    order : tuple of int
        Which of the sequences given stands at each place: ``hx[:, order]`` belongs to them, and hy and cy are sorted so.
    """

    values: Array
    lengths: tuple[int, ...]
    order: tuple[int, ...]

    def unpack(self, values: ArrayLike) -> list[Array]:
        """Split packed values (sum of lengths, vector), such as ``y.numpy()``, into sequences, as they were given."""
        packed = host_array(values)
        if packed.ndim != 2:
            raise ArgumentError(
                f"values has shape {packed.shape}; needed: (sum of lengths, vector)"
            )
        check_packed(self.lengths, len(packed))
        places = _places(self.lengths)
        return [packed[places == self.order.index(number)] for number in range(len(self.order))]


@tells_unknown
def pack_sequences(sequences: Iterable[ArrayLike]) -> PackedSequences:
    """Sort and interleave sequences of different lengths, as ``layout="packed"`` wants them.

    Parameters
    ----------
    sequences : sequence of array_like
        Each (its length, vector), on the host; all of one vector size, in any order.

    Returns
    -------
    PackedSequences

    Raises
    ------
    ArgumentError
        There is none, one is empty, or they are no matrices of one width.

    Examples
    --------
    >>> packed = dnn.pack_sequences([np.full((2, 3), 1.0), np.full((4, 3), 2.0), np.full((3, 3), 3.0)])
    >>> packed.lengths, packed.order, packed.values[:, 0].tolist()
    ((4, 3, 2), (1, 2, 0), [2.0, 3.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 2.0])
    >>> [each.shape for each in packed.unpack(packed.values)]
    [(2, 3), (4, 3), (3, 3)]
    """
    given = sequence(sequences, "sequences", "arrays (length, vector)", MAX_BATCH)
    found = [host_array(each, f"sequences[{number}]") for number, each in enumerate(given)]
    if any(each.ndim != 2 or each.shape[1] != found[0].shape[1] for each in found):
        shapes = shown([each.shape for each in found])
        raise ArgumentError(
            f"sequences have shapes {shapes}; needed: (length, vector), with one vector size"
        )
    order = tuple(sorted(range(len(found)), key=lambda number: -len(found[number])))
    lengths = parse_lengths([len(found[number]) for number in order])
    places = _places(lengths)
    values = np.empty((sum(lengths), found[0].shape[1]), np.result_type(*found))
    for place, number in enumerate(order):
        values[places == place] = found[number]
    return PackedSequences(values, lengths, order)


def _places(lengths: tuple[int, ...]) -> Array:
    """Return of each packed row the place of its sequence."""
    steps = np.arange(lengths[0])[:, None] < np.array(lengths)
    return np.nonzero(steps)[1]
