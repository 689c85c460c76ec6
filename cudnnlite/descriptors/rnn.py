"""`RNNDescriptor`, and the descriptor of an RNN's states."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from cudnnlite._raw.api import CudnnApi
from cudnnlite._raw.enums import DirectionMode, NanPropagation, RNNClipMode
from cudnnlite._raw.types import (
    CUDNN_RNN_PADDED_IO_ENABLED,
    cudnnDropoutDescriptor_t,
    cudnnRNNDescriptor_t,
)
from cudnnlite.arguments import instance_of, one_of
from cudnnlite.descriptors.c_ints import c_ints
from cudnnlite.descriptors.dropout import DropoutDescriptor
from cudnnlite.descriptors.native import NativeObject
from cudnnlite.descriptors.rnn_data import name_needed_version
from cudnnlite.descriptors.tensor import TensorDescriptor
from cudnnlite.dtypes import dtype_name
from cudnnlite.enums import DataType, MathType, RNNAlgo, RNNBiasMode, RNNInputMode, RNNMode, parse_enum
from cudnnlite.errors import CudnnError, NotSupportedError
from cudnnlite.specs import RNNSpec, TensorSpec


class RNNDescriptor(NativeObject[cudnnRNNDescriptor_t]):
    """A `cudnnRNNDescriptor_t`.

    Parameters
    ----------
    spec : RNNSpec
        The network.
    algorithm : RNNAlgo or str
        The algorithm.  cuDNN takes any here, and refuses later; PERSIST_DYNAMIC also needs `cudnnBuildRNNDynamic` with a
        handle, without which it computes garbage: `rnn_forward` sees to that.
    padded_io : bool
        Whether unpacked data may hold sequences of different lengths.
    dropout : DropoutDescriptor, optional
        Kept alive here: cuDNN keeps a pointer to it.
    api : CudnnApi, optional
        The function table of a handle that it is used with; the process-wide one if not given.

    Raises
    ------
    CudnnError
        cuDNN refused the description: NOT_SUPPORTED for what an algorithm does not do.

    Notes
    -----
    C functions: `cudnnCreateRNNDescriptor`, `cudnnSetRNNDescriptor_v8`, `cudnnRNNSetClip_v9` where the spec clips,
    `cudnnGetRNNDescriptor_v8`, `cudnnRNNGetClip_v9`, `cudnnDestroyRNNDescriptor`; `cudnnRNNSetClip_v8` and
    `cudnnRNNGetClip_v8` where the library has no `_v9`.

    Examples
    --------
    >>> with dnn.RNNDescriptor(dnn.RNNSpec("lstm", 64, 128, clip=(-5.0, 5.0))) as rnn_desc:
    ...     print(rnn_desc.read_back())
    RNNSpec('lstm', input_size=64, hidden_size=128, clip=(-5.0, 5.0))
    """

    _type = cudnnRNNDescriptor_t
    _create = "cudnnCreateRNNDescriptor"
    _destroy = "cudnnDestroyRNNDescriptor"

    def __init__(
        self,
        spec: RNNSpec,
        algorithm: RNNAlgo | str = RNNAlgo.STANDARD,
        *,
        padded_io: bool = False,
        dropout: DropoutDescriptor | None = None,
        api: CudnnApi | None = None,
    ) -> None:
        instance_of(spec, RNNSpec, "spec")
        self.algorithm = parse_enum(RNNAlgo, algorithm, "algorithm")
        self.padded_io: bool = one_of(padded_io, "padded_io", True, False)
        self._dropout = None if dropout is None else instance_of(dropout, DropoutDescriptor, "dropout")
        super().__init__(spec, api=api)

    def _set(self, spec: RNNSpec) -> None:
        dropout = None if self._dropout is None else self._dropout.ptr
        direction = DirectionMode.BIDIRECTIONAL if spec.bidirectional else DirectionMode.UNIDIRECTIONAL
        try:
            self.api.cudnnSetRNNDescriptor_v8(
                self.ptr, self.algorithm, spec.cell, spec.bias, direction, spec.input_mode, spec.dtype, spec.compute_type,
                spec.math_type, spec.input_size, spec.hidden_size, spec.state_size, spec.num_layers, dropout,
                CUDNN_RNN_PADDED_IO_ENABLED if self.padded_io else 0,
            )  # fmt: skip
        except CudnnError as error:
            if isinstance(error, NotSupportedError):
                name_needed_version(error, spec.dtype, self.api)
            raise error.involving(rnn=spec, compute_type=dtype_name(spec.compute_type)) from None
        if spec.clip is not None:
            if self.api.has("cudnnRNNSetClip_v9"):
                self.api.cudnnRNNSetClip_v9(self.ptr, RNNClipMode.MINMAX, *spec.clip)
            else:
                self.api.cudnnRNNSetClip_v8(self.ptr, RNNClipMode.MINMAX, NanPropagation.PROPAGATE, *spec.clip)

    def read_back(self) -> RNNSpec:
        """Return what cuDNN holds (`cudnnGetRNNDescriptor_v8`), but for dropout, which it keeps a pointer to."""
        return read_rnn(self.api, self.ptr).spec


class RNNReading(NamedTuple):
    """What a `cudnnRNNDescriptor_t` holds."""

    spec: RNNSpec
    algorithm: RNNAlgo
    padded_io: bool
    dropout: Any


def read_rnn(api: CudnnApi, native: Any) -> RNNReading:
    """Read a `cudnnRNNDescriptor_t` back (`cudnnGetRNNDescriptor_v8`, `cudnnRNNGetClip_v9` or `_v8`)."""
    algorithm, cell, bias, direction, mode, dtype, compute, math = (ctypes.c_int() for _ in range(8))
    inputs, hidden, projection, layers = (ctypes.c_int32() for _ in range(4))
    dropout, flags = cudnnDropoutDescriptor_t(), ctypes.c_uint32()
    api.cudnnGetRNNDescriptor_v8(
        native, algorithm, cell, bias, direction, mode, dtype, compute, math, inputs, hidden, projection, layers,
        ctypes.byref(dropout), flags,
    )  # fmt: skip
    clipped, low, high = ctypes.c_int(), ctypes.c_double(), ctypes.c_double()
    if api.has("cudnnRNNGetClip_v9"):
        api.cudnnRNNGetClip_v9(native, clipped, low, high)
    else:
        api.cudnnRNNGetClip_v8(native, clipped, ctypes.c_int(), low, high)
    spec = RNNSpec(
        RNNMode(cell.value),
        inputs.value,
        hidden.value,
        layers.value,
        direction.value == DirectionMode.BIDIRECTIONAL,
        projection_size=None if projection.value == hidden.value else projection.value,
        bias=RNNBiasMode(bias.value),
        input_mode=RNNInputMode(mode.value),
        clip=(low.value, high.value) if clipped.value == RNNClipMode.MINMAX else None,
        dtype=DataType(dtype.value),
        compute_type=DataType(compute.value),
        math_type=MathType(math.value),
    )
    return RNNReading(spec, RNNAlgo(algorithm.value), bool(flags.value & CUDNN_RNN_PADDED_IO_ENABLED), dropout)


class RNNStateDescriptor(TensorDescriptor):
    """A `cudnnTensorDescriptor_t` of an RNN's states: of rank 3, where other tensors are brought to rank 4."""

    def _set(self, spec: TensorSpec) -> None:
        self.api.cudnnSetTensorNdDescriptor(self.ptr, spec.dtype, spec.rank, c_ints(spec.shape), c_ints(spec.strides))
