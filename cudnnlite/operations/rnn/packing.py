"""Conversion of sequences of different lengths to packed data and back, on the host."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from cudnnlite.arguments import sequence, shown
from cudnnlite.errors import ArgumentError
from cudnnlite.plans.host_arrays import host_array
from cudnnlite.specs.rnn_data import MAX_BATCH, check_packed, parse_lengths
from cudnnlite.unknown import suggest_keywords

Array = np.ndarray[Any, Any]


class PackedSequences(NamedTuple):
    """Sequences in the format of ``layout="packed"``.

    They are sorted, the longest first.  All first steps come before all second steps, and so on.

    Attributes
    ----------
    values : ndarray
        The input, (sum of lengths, vector), for `Handle.array`.
    lengths : tuple of int
        The lengths of the sorted sequences, for `rnn_forward`.
    order : tuple of int
        The original index of each sorted sequence.  ``hx[:, order]`` sorts first states for the
        call; hy and cy have the sorted order.
    """

    values: Array
    lengths: tuple[int, ...]
    order: tuple[int, ...]

    def unpack(self, values: ArrayLike) -> list[Array]:
        """Split packed values, such as ``y.numpy()``, into sequences in their original order.

        Packed values have the shape (sum of lengths, vector).
        """
        packed = host_array(values)
        if packed.ndim != 2:
            raise ArgumentError(
                f"values has shape {packed.shape}; needed: (sum of lengths, vector)"
            )
        check_packed(self.lengths, len(packed))
        places = _places(self.lengths)
        return [packed[places == self.order.index(number)] for number in range(len(self.order))]


@suggest_keywords
def pack_sequences(sequences: Iterable[ArrayLike]) -> PackedSequences:
    """Sort and interleave sequences of different lengths, for ``layout="packed"``.

    Parameters
    ----------
    sequences : sequence of array_like
        Arrays (length, vector) on the host, with one vector size, in any order.

    Returns
    -------
    PackedSequences

    Raises
    ------
    ArgumentError
        There is no sequence, a sequence is empty, or they are not matrices of one width.

    Examples
    --------
    >>> sequences = [np.full((2, 3), 1.0), np.full((4, 3), 2.0), np.full((3, 3), 3.0)]
    >>> packed = dnn.pack_sequences(sequences)
    >>> packed.lengths, packed.order, packed.values[:, 0].tolist()
    ((4, 3, 2), (1, 2, 0), [2.0, 3.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 2.0])
    >>> [sequence.shape for sequence in packed.unpack(packed.values)]
    [(2, 3), (4, 3), (3, 3)]
    """
    items = sequence(sequences, "sequences", "arrays (length, vector)", MAX_BATCH)
    hosts = [host_array(item, f"sequences[{number}]") for number, item in enumerate(items)]
    if any(host.ndim != 2 or host.shape[1] != hosts[0].shape[1] for host in hosts):
        shapes = shown([host.shape for host in hosts])
        raise ArgumentError(
            f"sequences have shapes {shapes}; needed: (length, vector), with one vector size"
        )
    order = tuple(sorted(range(len(hosts)), key=lambda number: -len(hosts[number])))
    lengths = parse_lengths([len(hosts[number]) for number in order])
    places = _places(lengths)
    values = np.empty((sum(lengths), hosts[0].shape[1]), np.result_type(*hosts))
    for place, number in enumerate(order):
        values[places == place] = hosts[number]
    return PackedSequences(values, lengths, order)


def _places(lengths: tuple[int, ...]) -> Array:
    """Return the place of the sequence of each packed row."""
    steps = np.arange(lengths[0])[:, None] < np.array(lengths)
    return np.nonzero(steps)[1]
