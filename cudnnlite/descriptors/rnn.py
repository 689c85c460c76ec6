"""`RNNDescriptor` and `RNNDataDescriptor`, and the descriptor of an RNN's states."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from cudnnlite._raw.api import CudnnApi
from cudnnlite._raw.enums import NanPropagation, RNNClipMode
from cudnnlite._raw.library import format_version
from cudnnlite._raw.types import (
    CUDNN_RNN_PADDED_IO_ENABLED,
    cudnnRNNDataDescriptor_t,
    cudnnRNNDescriptor_t,
)
from cudnnlite.arguments import instance_of, one_of
from cudnnlite.descriptors.declared import DeclaredDescriptor
from cudnnlite.descriptors.dropout import DropoutDescriptor
from cudnnlite.descriptors.native import NativeObject, c_ints
from cudnnlite.descriptors.tensor import TensorDescriptor
from cudnnlite.dtypes import dtype_name, numpy_dtype
from cudnnlite.enums import DataType, RNNAlgo, RNNDataLayout, parse_enum
from cudnnlite.errors import CudnnError, NotSupportedError
from cudnnlite.specs import RNNDataSpec, RNNSpec, TensorSpec
from cudnnlite.specs.frozen import whole_or_made


class RNNDescriptor(DeclaredDescriptor[cudnnRNNDescriptor_t], describes=RNNSpec):
    """A `cudnnRNNDescriptor_t`.

    Where the spec clips, that is set by `cudnnRNNSetClip_v9`; by the `_v8` functions where the
    library has no `_v9`.

    Parameters
    ----------
    spec : RNNSpec
        The network.
    algorithm : RNNAlgo or str
        The algorithm.  cuDNN accepts any here, and refuses later.  PERSIST_DYNAMIC also needs
        `cudnnBuildRNNDynamic` with a handle, and computes garbage without it; `rnn_forward` calls
        it.
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

    Examples
    --------
    >>> with dnn.RNNDescriptor(dnn.RNNSpec("lstm", 64, 128, clip=(-5.0, 5.0))) as rnn_desc:
    ...     print(rnn_desc.read_back())
    RNNSpec('lstm', input_size=64, hidden_size=128, clip=(-5.0, 5.0))
    """

    _setter, _getter = "cudnnSetRNNDescriptor_v8", "cudnnGetRNNDescriptor_v8"
    _arguments = (
        "cellMode:cell",
        "biasMode:bias",
        "dirMode:bidirectional",
        "inputMode:input_mode",
        "dataType:dtype",
        "mathPrec:compute_type",
        "mathType:math_type",
        "inputSize:input_size",
        "hiddenSize:hidden_size",
        "projSize:projection_size",
        "numLayers:num_layers",
    )
    _other_functions = tuple(
        f"cudnnRNN{verb}Clip_{version}" for version in ("v9", "v8") for verb in ("Set", "Get")
    )

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
        if dropout is not None:
            instance_of(dropout, DropoutDescriptor, "dropout")
        self._dropout = dropout
        self._constants = {
            "algo": self.algorithm,
            "dropoutDesc": None if dropout is None else dropout.ptr,
            "auxFlags": CUDNN_RNN_PADDED_IO_ENABLED if padded_io else 0,
        }
        super().__init__(spec, api=api)

    def _value(self, field: str) -> Any:
        if field == "projection_size":
            return self.spec.state_size
        return super()._value(field)

    def _set(self, spec: RNNSpec) -> None:
        try:
            super()._set(spec)
        except CudnnError as error:
            if isinstance(error, NotSupportedError):
                name_needed_version(error, spec.dtype, self.api)
            raise error.involving(rnn=spec, compute_type=dtype_name(spec.compute_type)) from None
        if spec.clip is None:
            return
        if self.api.has("cudnnRNNSetClip_v9"):
            self.api.cudnnRNNSetClip_v9(self.ptr, RNNClipMode.MINMAX, *spec.clip)
        else:
            self.api.cudnnRNNSetClip_v8(
                self.ptr, RNNClipMode.MINMAX, NanPropagation.PROPAGATE, *spec.clip
            )

    @staticmethod
    def read(api: CudnnApi, native: Any) -> RNNSpec:
        """Read a `cudnnRNNDescriptor_t` back (`cudnnGetRNNDescriptor_v8`), without its dropout."""
        return read_rnn(api, native).spec


class RNNReading(NamedTuple):
    """The contents of a `cudnnRNNDescriptor_t`."""

    spec: RNNSpec
    algorithm: RNNAlgo
    padded_io: bool
    dropout: Any


# Each weight of a deep network is found by reading the same descriptor.
_cached_spec = lru_cache(maxsize=64)(RNNSpec)


def read_rnn(api: CudnnApi, native: Any) -> RNNReading:
    """Read a `cudnnRNNDescriptor_t` back.

    C functions: `cudnnGetRNNDescriptor_v8`, `cudnnRNNGetClip_v9` or `_v8`.
    """
    fields, arguments = RNNDescriptor._read_arguments(api, native)
    fields["bidirectional"] = bool(fields["bidirectional"])
    clip = _read_clip(api, native)
    spec = _cached_spec(**fields)
    if clip is not None:  # beside the cache, whose keys have no sign of zero
        spec = spec.replace(clip=clip)
    algorithm = RNNAlgo(arguments["algo"].value)
    padded_io = bool(arguments["auxFlags"].value & CUDNN_RNN_PADDED_IO_ENABLED)
    return RNNReading(spec, algorithm, padded_io, arguments["dropoutDesc"])


def _read_clip(api: CudnnApi, native: Any) -> tuple[float, float] | None:
    mode = ctypes.c_int()
    low = ctypes.c_double()
    high = ctypes.c_double()
    if api.has("cudnnRNNGetClip_v9"):
        api.cudnnRNNGetClip_v9(native, mode, low, high)
    else:
        api.cudnnRNNGetClip_v8(native, mode, ctypes.c_int(), low, high)
    if mode.value != RNNClipMode.MINMAX:
        return None
    return low.value, high.value


class RNNStateDescriptor(TensorDescriptor):
    """A `cudnnTensorDescriptor_t` of an RNN's states, of rank 3; others have rank 4 or more."""

    def _set(self, spec: TensorSpec) -> None:
        self.api.cudnnSetTensorNdDescriptor(
            self.ptr, spec.dtype, spec.rank, c_ints(spec.shape), c_ints(spec.strides)
        )


class RNNDataDescriptor(NativeObject[cudnnRNNDataDescriptor_t], describes=RNNDataSpec):
    """A `cudnnRNNDataDescriptor_t`: sequences, their lengths, and the padding fill of an output.

    Parameters
    ----------
    shape : iterable of int or RNNDataSpec
        The array's shape; or a whole spec.
    lengths, dtype, layout, padding_fill
        As in `RNNDataSpec`.

    Examples
    --------
    >>> lengths = [5, 2, 4]
    >>> with dnn.descriptors.RNNDataDescriptor((5, 3, 64), lengths, padding_fill=-1.0) as x_desc:
    ...     print(x_desc.read_back())
    RNNDataSpec((5, 3, 64), lengths=(5, 2, 4), dtype='float32', layout='sequence_major', padding_fill=-1.0)
    """

    def __init__(self, shape: Any, lengths: Any = None, **options: Any) -> None:
        super().__init__(whole_or_made(RNNDataSpec, shape, options, lengths=lengths))

    def _set(self, spec: RNNDataSpec) -> None:
        fill = np.array([spec.padding_fill]).astype(numpy_dtype(spec.dtype))  # cuDNN copies it
        try:
            self.api.cudnnSetRNNDataDescriptor(
                self.ptr,
                spec.dtype,
                spec.layout,
                spec.max_length,
                spec.batch,
                spec.vector_size,
                c_ints(spec.lengths),
                fill.ctypes.data,
            )
        except NotSupportedError as error:
            name_needed_version(error, spec.dtype, self.api)
            raise

    def set(self, spec: RNNDataSpec) -> None:
        """Describe other sequences with the same native object (`cudnnSetRNNDataDescriptor`)."""
        self._set(spec)
        self._spec = spec

    @staticmethod
    def read(api: CudnnApi, native: Any) -> RNNDataSpec:
        """Read a `cudnnRNNDataDescriptor_t` back (`cudnnGetRNNDataDescriptor`)."""
        dtype, layout, steps, batch, size = (ctypes.c_int() for _ in range(5))
        fill = np.zeros(1, np.float64)  # room for any type
        numbers = (dtype, layout, steps, batch, size)
        api.cudnnGetRNNDataDescriptor(native, *numbers, 0, c_ints([0]), fill.ctypes.data)
        lengths = c_ints([0] * batch.value)
        api.cudnnGetRNNDataDescriptor(native, *numbers, batch.value, lengths, fill.ctypes.data)
        kind = DataType(dtype.value)
        spec: RNNDataSpec = RNNDataSpec.__new__(RNNDataSpec)
        # The constructor is not used: a packed descriptor's maximum may be longer than its longest
        # sequence.
        spec._freeze(
            max_length=steps.value,
            batch=batch.value,
            vector_size=size.value,
            lengths=tuple(lengths),
            dtype=kind,
            layout=RNNDataLayout(layout.value),
            padding_fill=float(fill.view(numpy_dtype(kind))[0]),
        )
        return spec


def name_needed_version(error: NotSupportedError, dtype: DataType, api: CudnnApi) -> None:
    """Add the cuDNN version that is needed to an error: 9.12 and before refuse bfloat16."""
    if dtype != DataType.BFLOAT16:
        return
    version = api.cudnnGetVersion()
    if version < 91300:
        note = "recurrent networks in bfloat16 need cuDNN 9.13 or newer"
        error.notes += (f"{note}; this is {format_version(version)}",)
