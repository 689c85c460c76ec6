"""The lengths of sequences that attention takes: as users have them, and as cuDNN has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cudnnlite.arguments import integer
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import ArgumentError, CaptureError
from cudnnlite.plans.operands import on_device, use
from cudnnlite.specs import TensorSpec
from cudnnlite.texts import counted


def both_lengths(
    handle: Handle | None,
    q_lengths: Operand | Sequence[int] | None,
    kv_lengths: Operand | Sequence[int] | None,
    q: Any,
    k: Any,
) -> dict[str, Any]:
    """Return none or both of the lengths by name, as operands of shape (batch, 1, 1, 1).

    If one of them is missing, all steps of the other are valid.
    """
    given = {"q_lengths": (q_lengths, q), "kv_lengths": (kv_lengths, k)}
    if q_lengths is None and kv_lengths is None:
        return dict.fromkeys(given)
    if handle is not None:
        use(handle)
    return {
        name: _operand(handle, name, lengths, sequences)
        for name, (lengths, sequences) in given.items()
    }


def _operand(handle: Handle | None, name: str, lengths: Any, sequences: Any) -> Any:
    """Return lengths as an operand; what is none of them is returned, to be refused, as it is."""
    shape: Any = getattr(sequences, "shape", ())
    if len(shape) != 4:
        return lengths
    batch, _, steps, _ = shape
    if lengths is None:
        lengths = [steps] * batch
    if _are_on_host(lengths):
        counts = [integer(count, f"{name}[{n}]", 1, steps) for n, count in enumerate(lengths)]
        if len(counts) != batch:
            raise ArgumentError(
                f"{name} has {counted(len(counts), 'length')}; needed: {batch}, one for each "
                f"sequence of {shape} (batch, heads, steps, size)"
            )
        if handle is None or isinstance(sequences, TensorSpec):
            return TensorSpec((batch, 1, 1, 1), "int32")
        return _array(handle, name, counts)
    if len(getattr(lengths, "shape", ())) != 1:
        return lengths
    if handle is None:
        lengths = getattr(lengths, "spec", lengths)
    if isinstance(lengths, TensorSpec):
        strides = (*lengths.strides, 1, 1, 1)
        return TensorSpec((*lengths.shape, 1, 1, 1), lengths.dtype, strides=strides)
    return lengths if handle is None else on_device(handle, lengths, name).reshape(-1, 1, 1, 1)


def _are_on_host(lengths: Any) -> bool:
    """Return whether lengths are Python's, or an array of one axis of NumPy or of PyTorch's CPU."""
    if isinstance(lengths, (list, tuple, range)):
        return True
    if isinstance(lengths, (DeviceArray, TensorSpec)) or len(getattr(lengths, "shape", ())) != 1:
        return False
    return hasattr(lengths, "tolist") and not hasattr(lengths, "__cuda_array_interface__")


def _array(handle: Handle, name: str, counts: list[int]) -> DeviceArray:
    """Return a new array of lengths."""
    try:
        return handle.array(np.reshape(np.array(counts, np.int32), (-1, 1, 1, 1)))
    except CaptureError as error:
        raise CaptureError(
            f"{name} needs memory, which cannot be allocated while a CUDA graph is recorded: give "
            "q_lengths and kv_lengths as arrays"
        ) from error
