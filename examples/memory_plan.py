"""Arrays of a program that is known beforehand, laid into one stretch of device memory: an arena.

What is not needed at the same time lies in the same place.  The arrays of the arena, views and strided parts of them, are
told to cudnnlite as those of any other library are: by DLPack or the CUDA array interface.
"""

from math import prod
from types import SimpleNamespace

import numpy as np

ALIGNMENT = 256  # bytes: arrays begin at multiples of that


class Value:
    """An array to be: shape, strides and offset, in elements, of a storage that it may share with others.

    A storage has a size, the numbers of the steps that need it, and later its place in the arena, or an array of its own.
    """

    def __init__(self, shape, strides=None, storage=None, offset=0):
        self.shape, self.strides = tuple(shape), packed(shape) if strides is None else tuple(strides)
        self.storage = SimpleNamespace(size=prod(shape), steps=[], offset=0, own=None) if storage is None else storage
        self.offset = offset

    def view(self, shape, strides=None):
        """Return the same memory under another shape."""
        return Value(shape, strides, self.storage, self.offset)

    def lies(self, strides):
        """Tell whether the strides are these, where they matter."""
        return all(a == b for size, a, b in zip(self.shape, self.strides, strides, strict=True) if size > 1)


def packed(shape, last=False):
    """Return the strides of an array without gaps, in C order or with its channels last."""
    order = [0, *range(2, len(shape)), 1] if last and len(shape) > 2 else [*range(len(shape))]
    return tuple(prod(shape[other] for other in order[order.index(axis) + 1 :]) for axis in range(len(shape)))


class Arena:
    """Memory for values, planned by the steps that need each of them.

    `elements` is what it takes; `unplanned` what it would take if each value had a place of its own.
    """

    def __init__(self, handle, values, dtype):
        self.handle, self.itemsize = handle, np.dtype(dtype).itemsize
        storages = {id(value.storage): value.storage for value in values if value.storage.own is None}
        unit, placed = ALIGNMENT // self.itemsize, []
        for one in sorted(storages.values(), key=lambda storage: -storage.size):  # the large ones first
            begin, end = min(one.steps), max(one.steps)
            near = [other for other in placed if min(other.steps) <= end and begin <= max(other.steps)]
            after = [-(-(other.offset + other.size) // unit) * unit for other in near]
            one.offset = min(
                start
                for start in (0, *after)
                if all(start + one.size <= other.offset or other.offset + other.size <= start for other in near)
            )
            placed.append(one)
        self.elements = max([1, *(one.offset + one.size for one in placed)])
        self.unplanned = sum(one.size for one in placed)
        self.memory = handle.empty((1, self.elements), np.dtype(dtype).name)

    def array(self, value):
        """Return the device array of a value."""
        storage = value.storage
        whole, start = (self.memory, storage.offset) if storage.own is None else (storage.own, 0)
        return part_of(self.handle, whole, value.shape, value.strides, start + value.offset)


def part_of(handle, whole, shape, strides, offset=0):
    """Return a part of a device array, which it keeps alive; offset and strides are in elements."""
    missing, itemsize = (1,) * (2 - len(shape)), whole.dtype.itemsize  # cuDNN's arrays have two axes at least
    shape, strides = (*missing, *shape), tuple(step * itemsize for step in (*missing, *strides))
    facts = getattr(whole, "__cuda_array_interface__", None)
    if facts is None:  # the emulated device's memory is the host's
        part = np.lib.stride_tricks.as_strided(np.from_dlpack(whole).reshape(-1)[offset:], shape, strides)
        return handle.view(SimpleNamespace(__dlpack__=part.__dlpack__, __dlpack_device__=part.__dlpack_device__))
    facts |= {"shape": shape, "strides": strides, "data": (facts["data"][0] + offset * itemsize, False)}
    return handle.view(SimpleNamespace(__cuda_array_interface__=facts, whole=whole))
