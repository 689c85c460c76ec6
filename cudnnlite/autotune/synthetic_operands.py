"""Synthetic operands: random values on the device, repeated from fewer ones on the host."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.random import default_rng  # Otherwise NumPy imports it at its first use.

from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.devices.storage import bytes_spec
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.search.timing_policy import DEFAULT_TIMING
from cudnnlite.sizes import ALLOCATION_ALIGNMENT
from cudnnlite.specs import TensorSpec


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
    offset = alignment if alignment < ALLOCATION_ALIGNMENT else 0
    memory = arrays.empty(handle.device, handle.stream, bytes_spec(spec.nbytes + offset))
    array = arrays.part_of(memory, spec, offset)
    fill_random(array, seed, scale=scale, values=handle.timing.random_values)
    return array


def fill_random(
    array: DeviceArray, seed: int, *, scale: float = 1.0, values: int = DEFAULT_TIMING.random_values
) -> None:
    """Overwrite an array, gaps included, with random values as in `random_array`.

    `values` random numbers are made on the host, and repeated on the device.
    """
    device, stream, nbytes = array.device, array.stream, array.nbytes
    kind = numpy_dtype(array.spec.dtype)
    count = -(-nbytes // kind.itemsize)  # Rounded up. A filter has fewer than `values`.
    numbers = _numbers(seed, values, kind)[:count]
    if scale != 1.0 and kind.kind not in "iu":
        numbers = (numbers * np.float32(scale)).astype(kind)
    block = numbers.view(np.uint8)[:nbytes]
    if not nbytes:
        return
    device.copy_in(array.ptr, block, stream)
    filled = block.size
    while filled < nbytes:
        step = min(filled, nbytes - filled)
        device.copy_within(array.ptr + filled, array.ptr, step, stream)
        filled += step


# A convolution has three operands. Without the cache their numbers took a third of the time of
# tuning 23 layers.
@lru_cache(maxsize=3)
def _numbers(seed: int, count: int, kind: np.dtype[Any]) -> np.ndarray[tuple[int], np.dtype[Any]]:
    random = default_rng(seed)
    if kind.kind in "iu":
        least = -3 if kind.kind == "i" else 0
        values = random.integers(least, 4, count).astype(kind)
    else:
        values = random.standard_normal(count, dtype=np.float32).astype(kind)
    values.flags.writeable = False
    return values
