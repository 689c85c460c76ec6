"""Synthetic operands: a block of random values from the host, repeated on the device."""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import Any

import numpy as np
from numpy.random import default_rng  # Otherwise NumPy imports it at its first use.

from cudnnlite import DeviceArray, Handle, TensorSpec
from cudnnlite.devices import arrays
from cudnnlite.devices.storage import bytes_spec
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.sizes import ALLOCATION_ALIGNMENT

# A block of random values, which is repeated.  The number is odd, so that no axis of a tensor has
# the period of the block.  The time on a GPU depends a little on how many bits change, but not on a
# repetition after a million values.
NUM_VALUES = (1 << 20) + 7


def random_array(
    handle: Handle,
    spec: TensorSpec,
    seed: int,
    *,
    scale: float = 1.0,
    alignment: int = ALLOCATION_ALIGNMENT,
) -> DeviceArray:
    """Return an array of random values.

    Floating-point values are normal, with `scale` as the standard deviation.  Integers are -3 to 3,
    or 0 to 3 if unsigned.  The same seed gives the same values.  Gaps between rows are filled too.

    `alignment` is the largest power of two that divides the address, in bytes.  With 256 or more,
    the array has the allocator's alignment.
    """
    offset = 0
    if alignment < ALLOCATION_ALIGNMENT:
        # The allocator's address plus `alignment` is not a multiple of a larger power of two.
        offset = alignment
    memory = arrays.empty(handle.device, handle.stream, bytes_spec(spec.nbytes + offset))
    array = arrays.part_of(memory, spec, offset)
    fill_random(array, seed, scale=scale)
    return array


def fill_random(
    array: DeviceArray,
    seed: int,
    *,
    scale: float = 1.0,
    num_values: int = NUM_VALUES,
) -> None:
    """Overwrite an array, gaps included, with random values as in `random_array`.

    The host makes `num_values` random numbers, and the device repeats them.
    """
    device, stream, nbytes = array.device, array.stream, array.nbytes
    dtype = numpy_dtype(array.spec.dtype)
    # A small array, such as a filter, needs fewer than `num_values`.
    length = ceil(nbytes / dtype.itemsize)
    numbers = _numbers(seed, min(num_values, length), dtype)
    if scale != 1.0 and not _is_integer(dtype):
        numbers = (numbers * np.float32(scale)).astype(dtype)
    block = numbers.view(np.uint8)[:nbytes]
    if not nbytes:
        return
    device.copy_in(array.ptr, block, stream)
    end = block.size
    while end < nbytes:
        step = min(end, nbytes - end)
        device.copy_within(array.ptr + end, array.ptr, step, stream)
        end += step


def _is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in ("i", "u")


# A convolution has three operands. Without the cache their numbers took a third of the time of
# tuning 23 layers.
@lru_cache(maxsize=3)
def _numbers(seed: int, count: int, dtype: np.dtype[Any]) -> np.ndarray[tuple[int], np.dtype[Any]]:
    random = default_rng(seed)
    if _is_integer(dtype):
        least = 0 if dtype.kind == "u" else -3
        values = random.integers(least, 4, count).astype(dtype)
    else:
        values = random.standard_normal(count, dtype=np.float32).astype(dtype)
    values.flags.writeable = False
    return values
