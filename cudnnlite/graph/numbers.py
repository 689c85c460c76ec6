"""`NumbersInMemory`: the numbers that a graph passes by value, where C reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from cudnnlite.dtypes import numpy_dtype
from cudnnlite.graph.node_attributes import parse_number
from cudnnlite.graph.records import TensorRecord

_NUMBER_BYTES = 16  # of memory for each number


class NumbersInMemory:
    """Host memory with the numbers that a graph passes by value; C reads it at each call."""

    def __init__(self, scalars: Mapping[str, TensorRecord]) -> None:
        self.names = frozenset(scalars)
        self._dtypes = {name: record.dtype for name, record in scalars.items()}
        self._values = {name: record.value for name, record in scalars.items()}
        memory = np.zeros((len(scalars) + 1) * _NUMBER_BYTES, np.uint8)
        start = -memory.ctypes.data % _NUMBER_BYTES
        self._places = {}
        for place, (name, record) in enumerate(scalars.items()):
            offset = start + place * _NUMBER_BYTES
            dtype = numpy_dtype(record.dtype)
            self._places[name] = memory[offset : offset + dtype.itemsize].view(dtype)
        self.addresses = {name: place.ctypes.data for name, place in self._places.items()}
        self._write(self._values)

    @contextmanager
    def changed(self, numbers: Mapping[str, object]) -> Iterator[None]:
        """Change the values of numbers for one call."""
        values = {
            name: parse_number(value, self._dtypes[name], name) for name, value in numbers.items()
        }
        try:
            self._write(values)
            yield
        finally:
            self._write(self._values)

    def _write(self, values: Mapping[str, float | None]) -> None:
        for name, value in values.items():
            self._places[name][0] = value
