"""`data_spec`: the sequences of an input, from its spec and their lengths."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from cudnnlite.arguments import instance_of
from cudnnlite.dtypes import dtype_name
from cudnnlite.enums import RNNDataLayout
from cudnnlite.errors import ArgumentError
from cudnnlite.specs import RNNDataSpec, RNNSpec, TensorSpec
from cudnnlite.specs.rnn_data import AXES
from cudnnlite.specs.tensor import called


def data_spec(spec: RNNSpec, x: TensorSpec, lengths: Any, layout: RNNDataLayout) -> RNNDataSpec:
    """Return the sequences that an input's spec and lengths describe.

    ArgumentError if `x` is not an input of the network, or has gaps in memory.
    """
    instance_of(x, TensorSpec, "x")
    if lengths is None:
        return _full_data(spec, x, layout)
    return _data(spec, x, lengths, layout)


# Cached because each call needs it, and making it takes 20 us of the host's time.
@lru_cache(maxsize=64)
def _full_data(spec: RNNSpec, x: TensorSpec, layout: RNNDataLayout) -> RNNDataSpec:
    return _data(spec, x, None, layout)


def _data(spec: RNNSpec, x: TensorSpec, lengths: Any, layout: RNNDataLayout) -> RNNDataSpec:
    rank = 2 if layout == RNNDataLayout.SEQ_MAJOR_PACKED else 3
    if x.rank != rank or x.size == 0:
        hint = ""
        if x.rank == rank:
            hint = (
                ", none of them 0 (rnn_forward alone takes N = 0, in inference, not packed; "
                "else leave the call out)"
            )
        axes = AXES[layout].format(spec.input_size)
        raise ArgumentError(f"x has shape {x.shape}; allowed in this layout: {axes}{hint}")
    if x.dtype != spec.dtype or x.shape[-1] != spec.input_size:
        _refuse_vectors(spec, x, layout)
    packed_layout = "NCW" if rank == 3 else "packed"
    if not x.fits(packed_layout):
        raise ArgumentError(
            f"x is {x}: it must be packed in C order "
            "(for (N, T, vector) there is layout='batch_major')"
        )
    return RNNDataSpec(x.shape, lengths, x.dtype, layout)


def _refuse_vectors(spec: RNNSpec, x: TensorSpec, layout: RNNDataLayout) -> None:
    """Raise ArgumentError for vectors of a wrong size or data type."""
    layout_name = "sequence_major"
    if layout == RNNDataLayout.BATCH_MAJOR_UNPACKED:
        layout_name = "batch_major"
    dtype = dtype_name(spec.dtype)
    hint = ""
    if x.dtype != spec.dtype:
        hint = f"; handle.array(x, dtype={dtype!r}) converts"
    raise ArgumentError(
        f"x is {called(x, layout_name)}; {spec} wants vectors of {spec.input_size}, {dtype}{hint}"
    )
