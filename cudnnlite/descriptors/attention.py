"""`AttentionDescriptor` and `SeqDataDescriptor`."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from cudnnlite._raw.api import CudnnApi
from cudnnlite._raw.types import (
    CUDNN_ATTN_ENABLE_PROJ_BIASES,
    CUDNN_ATTN_QUERYMAP_ONE_TO_ONE,
    CUDNN_SEQDATA_DIM_COUNT,
    cudnnAttnDescriptor_t,
    cudnnSeqDataDescriptor_t,
)
from cudnnlite.arguments import instance_of
from cudnnlite.descriptors.declared import DeclaredDescriptor
from cudnnlite.descriptors.dropout import DropoutDescriptor
from cudnnlite.descriptors.native import NativeObject, c_ints
from cudnnlite.enums import DataType, SeqDataAxis
from cudnnlite.errors import ArgumentError, CudnnError
from cudnnlite.specs.attention import AXES, MAXIMA, AttentionSpec, SeqDataSpec


class AttentionDescriptor(DeclaredDescriptor[cudnnAttnDescriptor_t], describes=AttentionSpec):
    """A `cudnnAttnDescriptor_t`.

    Parameters
    ----------
    spec : AttentionSpec
        The spec, with every maximum given (`max_q_length` to `max_beam`).
    dropout, post_dropout : DropoutDescriptor, optional
        The dropout of the softmax and of the output.  The descriptor keeps both alive, because
        cuDNN stores pointers to them.
    api : CudnnApi, optional
        The function table of the handle that uses the descriptor; the process-wide table if not
        given.

    Raises
    ------
    ArgumentError
        A maximum is missing.
    CudnnError
        cuDNN refused the description.

    Examples
    --------
    >>> spec = dnn.AttentionSpec(2, 6, max_q_length=5, max_kv_length=5, max_batch=3, max_beam=1)
    >>> with dnn.descriptors.AttentionDescriptor(spec) as attention_desc:
    ...     print(attention_desc.read_back() == spec)
    True
    """

    # The argument in the header : the field of the spec.
    _arguments = (
        "nHeads:heads",
        "smScaler:scale",
        "dataType:dtype",
        "computePrec:compute_type",
        "mathType:math_type",
        "qSize:q_size",
        "kSize:k_size",
        "vSize:v_size",
        "qProjSize:q_proj_size",
        "kProjSize:k_proj_size",
        "vProjSize:v_proj_size",
        "oProjSize:o_proj_size",
        "qoMaxSeqLength:max_q_length",
        "kvMaxSeqLength:max_kv_length",
        "maxBatchSize:max_batch",
        "maxBeamSize:max_beam",
    )

    def __init__(
        self,
        spec: AttentionSpec,
        *,
        dropout: DropoutDescriptor | None = None,
        post_dropout: DropoutDescriptor | None = None,
        api: CudnnApi | None = None,
    ) -> None:
        instance_of(spec, AttentionSpec, "spec")
        if dropout is not None:
            instance_of(dropout, DropoutDescriptor, "dropout")
        if post_dropout is not None:
            instance_of(post_dropout, DropoutDescriptor, "post_dropout")
        for name in MAXIMA:
            if getattr(spec, name) is None:
                raise ArgumentError(
                    f"spec has no {name}, which a descriptor needs: spec.replace({name}=...)"
                )
        self._dropouts = dropout, post_dropout
        self._constants = {
            "attnMode": CUDNN_ATTN_ENABLE_PROJ_BIASES if spec.bias else 0,
            "attnDropoutDesc": None if dropout is None else dropout.ptr,
            "postDropoutDesc": None if post_dropout is None else post_dropout.ptr,
        }
        super().__init__(spec, api=api)

    def _set(self, spec: AttentionSpec) -> None:
        try:
            super()._set(spec)
        except CudnnError as error:
            # cuDNN has no message for this refusal, so the error names the spec.
            error.involving(spec=spec)
            raise

    @staticmethod
    def read(api: CudnnApi, native: Any) -> AttentionSpec:
        """Read a `cudnnAttnDescriptor_t` back (`cudnnGetAttnDescriptor`), without its dropout."""
        return read_attention(api, native).spec


class AttentionReading(NamedTuple):
    """The contents of a `cudnnAttnDescriptor_t`."""

    spec: AttentionSpec
    one_to_one: bool
    dropout: Any
    post_dropout: Any


def read_attention(api: CudnnApi, native: Any) -> AttentionReading:
    """Read a `cudnnAttnDescriptor_t` back (`cudnnGetAttnDescriptor`)."""
    fields, arguments = AttentionDescriptor._read_arguments(api, native)
    mode = arguments["attnMode"].value
    spec = AttentionSpec(**fields, bias=bool(mode & CUDNN_ATTN_ENABLE_PROJ_BIASES))
    one_to_one = bool(mode & CUDNN_ATTN_QUERYMAP_ONE_TO_ONE)
    return AttentionReading(
        spec, one_to_one, arguments["attnDropoutDesc"], arguments["postDropoutDesc"]
    )


class SeqDataDescriptor(NativeObject[cudnnSeqDataDescriptor_t], describes=SeqDataSpec):
    """A `cudnnSeqDataDescriptor_t`.

    Examples
    --------
    >>> q = dnn.specs.SeqDataSpec((2, 1, 5, 8), [5, 3])
    >>> with dnn.descriptors.SeqDataDescriptor(q) as q_desc:
    ...     print(q_desc.read_back().shape, q_desc.read_back().lengths)
    (2, 1, 5, 8) (5, 3)
    """

    def _set(self, spec: SeqDataSpec) -> None:
        sizes = dict(zip(AXES, spec.shape, strict=True))
        # cuDNN has the sizes in the order of the axes' numbers.
        dims = [sizes[axis] for axis in sorted(sizes)]
        self.api.cudnnSetSeqDataDescriptor(
            self.ptr,
            spec.dtype,
            len(dims),
            c_ints(dims),
            c_ints(spec.axes),
            len(spec.lengths),
            c_ints(spec.lengths),
            None,
        )

    @staticmethod
    def read(api: CudnnApi, native: Any) -> SeqDataSpec:
        """Read a `cudnnSeqDataDescriptor_t` back (`cudnnGetSeqDataDescriptor`)."""
        count = CUDNN_SEQDATA_DIM_COUNT
        dtype = ctypes.c_int()
        rank = ctypes.c_int()
        num_lengths = ctypes.c_size_t()
        dims = c_ints([0] * count)
        axes = c_ints([0] * count)
        # The padding fill is not read: cuDNN 9.28 has an internal error for that of bfloat16.
        api.cudnnGetSeqDataDescriptor(
            native, dtype, rank, count, dims, axes, num_lengths, 0, None, None
        )
        lengths = c_ints([0] * num_lengths.value)
        api.cudnnGetSeqDataDescriptor(
            native, dtype, rank, count, dims, axes, num_lengths, num_lengths.value, lengths, None
        )
        order = [SeqDataAxis(axis) for axis in axes]
        return SeqDataSpec([dims[axis] for axis in AXES], lengths, DataType(dtype.value), order)
