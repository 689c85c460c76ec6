"""`TensorSpec`: shape, data type and strides of a tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from numbers import Integral
from typing import Any

from cudnnlite.arguments import MAX_INT, MAX_INT64, integers, shown
from cudnnlite.cached_property import cached_property
from cudnnlite.dtypes import AnyDtype, dtype_name, itemsize, parse_dtype, vector_length
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.specs.frozen import FrozenSpec, whole_or_made
from cudnnlite.specs.layout import (
    CHANNELS_FIRST,
    CHANNELS_LAST,
    MAX_RANK,
    PACKED,
    RNN_LAYOUTS,
    VECT_C,
    layout_of_rank,
    packed_strides,
    pad_to_rank_4,
    parse_layout,
    parse_shape,
    same_strides,
    span,
)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class TensorSpec(FrozenSpec, c_functions="cudnnSetTensorNdDescriptor cudnnSetTensorNdDescriptorEx"):
    """The shape, data type and layout of a tensor: a frozen value, hashable by its fields.

    Parameters
    ----------
    shape : iterable of int
        ``(N, C, *spatial)``, whatever the layout; rank 1 to 8.  N may be 0: an empty batch.
    dtype : DataType or str or numpy dtype
        The data type, such as "float32", "float16", "bfloat16", "int8", "int8x32".
    layout : str, optional
        "NCHW" or "NHWC", at other ranks too ("NCW", "NWC", "NCDHW", "NDHWC"), or "NCHW_VECT_C" with
        a vector dtype. "sequence_major", "batch_major" and "states" are what recurrent networks call
        NCW.  Channels first if not given.
    strides : iterable of int, optional
        The strides in elements, instead of a layout; they may leave gaps.

    Attributes
    ----------
    strides : tuple of int
        The strides in elements.  Under NCHW_VECT_C an element is a vector of 4 or 32 channels, as
        in cuDNN.

    Examples
    --------
    >>> spec = dnn.TensorSpec((2, 3, 4, 5), "float16", "NHWC")
    >>> spec.strides, spec.nbytes
    ((60, 1, 15, 3), 240)
    >>> dnn.TensorSpec((2, 3, 4, 5), strides=(120, 40, 10, 2)).layout  # every second column of a wider image
    'strided'
    """

    shape: tuple[int, ...]
    dtype: DataType
    strides: tuple[int, ...]
    vector: int

    def __init__(
        self,
        shape: Iterable[int],
        dtype: AnyDtype = "float32",
        layout: str | None = None,
        *,
        strides: Iterable[int] | None = None,
    ) -> None:
        sizes = parse_shape(shape)
        kind = parse_dtype(dtype)
        vector = vector_length(kind)
        sequence_layout = None
        if strides is not None:
            steps = _parse_strides(strides, layout, sizes, kind)
        elif vector == 1 and _is_of_sequences(layout, len(sizes)):
            sequence_layout = layout
            steps = packed_strides(sizes, str(layout))
        else:
            if layout is None and vector > 1:
                layout = VECT_C
            name = parse_layout(layout, len(sizes))
            steps = packed_strides(_in_vectors(sizes, kind, vector, name), name)
        self._freeze(shape=sizes, dtype=kind, strides=steps, vector=vector)
        if sequence_layout is not None:
            # It is only another name: specs of the same memory are equal.
            self.__dict__["layout"] = sequence_layout

    def __repr__(self) -> str:
        layout = self.layout
        how = f"strides={self.strides}" if layout == "strided" else repr(layout)
        return f"TensorSpec({self.shape}, {dtype_name(self.dtype)!r}, {how})"

    @classmethod
    def _from(cls, values: Mapping[str, Any]) -> TensorSpec:
        if values["vector"] == 1:
            return cls(values["shape"], values["dtype"], strides=values["strides"])
        return cls(values["shape"], values["dtype"])

    def replace(self, **changes: Any) -> TensorSpec:
        """Return a copy with some fields changed.

        Another shape without strides is packed in this spec's layout.
        """
        has_new_strides = "strides" in changes or self.layout == "strided"
        if "shape" in changes and not has_new_strides:
            shape = parse_shape(changes["shape"])
            layout = self._layout_at(len(shape))
            changes["strides"] = TensorSpec(shape, self.dtype, layout).strides
        return super().replace(**changes)

    def _layout_at(self, rank: int) -> str:
        """Return the name of the layout at another rank."""
        if rank == self.rank:
            return self.layout
        if self.layout in CHANNELS_LAST.values():
            return CHANNELS_LAST.get(rank, PACKED)
        return CHANNELS_FIRST.get(rank, PACKED)

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @cached_property
    def layout(self) -> str:
        """'NCHW', 'NHWC', ...; 'packed' in C order at other ranks; 'strided' for anything else."""
        if self.vector > 1:
            return VECT_C
        for names in (CHANNELS_FIRST, CHANNELS_LAST):
            name = names.get(self.rank, "packed")
            if self.strides == packed_strides(self.shape, name):
                return name
        return "strided"

    @cached_property
    def canonical(self) -> TensorSpec:
        """The spec that is passed to cuDNN: along axes of size 1 too, it has its layout's strides.

        cuDNN uses those strides to choose a kernel.  On an H200 `softmax_forward` was wrong where
        they were odd.
        """
        if self.layout != "strided":
            return self
        for names in (CHANNELS_FIRST, CHANNELS_LAST):
            name = names.get(self.rank, PACKED)
            if self.fits(name):
                return TensorSpec(self.shape, self.dtype, name)
        return self

    @cached_property
    def is_channels_last(self) -> bool:
        """Whether the memory is channels last.

        If it has one channel, both layouts fit, and the spec's own layout decides.
        """
        channels_first = CHANNELS_FIRST.get(self.rank, "")
        channels_last = CHANNELS_LAST.get(self.rank, "")
        if not self.fits(channels_last):
            return False
        return self.layout == channels_last or not self.fits(channels_first)

    def fits(self, layout: Any) -> bool:
        """Tell whether the memory is that of `layout`, without gaps.

        The strides of axes of size 1 do not matter.
        """
        if not isinstance(layout, str):
            return False
        if self.vector > 1 or layout == VECT_C:
            return self.vector > 1 and layout == VECT_C
        layout = layout_of_rank(layout, self.rank) or layout
        is_name_of_images = layout in (
            CHANNELS_FIRST.get(self.rank, PACKED),
            CHANNELS_LAST.get(self.rank),
        )
        if not is_name_of_images and not _is_of_sequences(layout, self.rank):
            return False
        return same_strides(self.shape, self.strides, packed_strides(self.shape, layout))

    @cached_property
    def size(self) -> int:
        """The number of values."""
        return prod(self.shape)

    @cached_property
    def nbytes(self) -> int:
        """The bytes from the first value to the last, gaps included: what a buffer must hold."""
        elements = span(_in_vectors(self.shape, self.dtype, self.vector), self.strides)
        return elements * itemsize(self.dtype)

    @cached_property
    def overlaps_itself(self) -> bool:
        """Whether two values may share memory, which is not allowed in an output.

        Values overlap if a stride is smaller than the memory of the axes inside it.
        """
        sizes = _in_vectors(self.shape, self.dtype, self.vector)
        axes = [
            (stride, size) for size, stride in zip(sizes, self.strides, strict=True) if size > 1
        ]
        inner_elements = 1
        for stride, size in sorted(axes):
            if stride < inner_elements:
                return True
            inner_elements += stride * (size - 1)
        return False

    def packed(self, shape: tuple[int, ...], dtype: DataType | None = None) -> TensorSpec:
        """Return the spec of other images, ``(N, C, *spatial)``, packed in this spec's layout.

        Their dtype is this spec's if none is given.

        Raises
        ------
        ArgumentError
            These are no images: the rank is not 3 to 5.
        """
        if self.rank not in CHANNELS_FIRST:
            raise ArgumentError(f"x={self}: it must be (N, C, *spatial), of rank 3, 4 or 5")
        if self.vector > 1:
            layout = VECT_C
        elif self.is_channels_last:
            layout = CHANNELS_LAST[self.rank]
        else:
            layout = CHANNELS_FIRST[self.rank]
        return TensorSpec(shape, self.dtype if dtype is None else dtype, layout)

    def native(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return (dims, strides) as they are passed to cuDNN.

        They have rank 4 at least; a 1-D image is one pixel high.
        """
        dims = pad_to_rank_4(self.shape, filler=1)
        # The stride of an axis of size 1 is free.  With one that keeps the tensor packed, every
        # kernel stays eligible.
        height_stride = 1
        if self.rank == 3:
            height_stride = min(self.strides[2] * self.shape[2], MAX_INT)
        return dims, pad_to_rank_4(self.strides, filler=height_stride)


def called(spec: TensorSpec, layout: str) -> TensorSpec:
    """Return a spec under another name of its layout, for messages about sequences.

    For instance, 'NCW' is called 'states'.
    """
    if layout in RNN_LAYOUTS and spec.layout == "NCW":
        return TensorSpec(spec.shape, spec.dtype, layout)
    return spec


def tensor_spec_of(
    shape: Any, dtype: Any = None, layout: str | None = None, strides: Any = None
) -> TensorSpec:
    """Return the spec that is given instead of a shape, or make one.

    ArgumentError if there are other arguments beside a spec.
    """
    if isinstance(shape, TensorSpec) and dtype is None and layout is None and strides is None:
        return shape
    if type(shape) is tuple and strides is None:
        try:
            return _spec_of_shape(shape, tuple(map(type, shape)), dtype, layout)
        except TypeError:  # something that cannot be hashed, which is refused by name below
            pass
    if isinstance(shape, Integral):
        shape = (shape,)  # of one axis, as in NumPy
    return whole_or_made(TensorSpec, shape, dtype=dtype, layout=layout, strides=strides)


@lru_cache(maxsize=1024, typed=True)
def _spec_of_shape(
    shape: tuple[Any, ...], kinds: tuple[type, ...], dtype: Any, layout: str | None
) -> TensorSpec:
    """Return the spec of a shape; `kinds` are the types of the sizes, because True equals 1."""
    return whole_or_made(TensorSpec, shape, dtype=dtype, layout=layout, strides=None)


def _in_vectors(
    shape: tuple[int, ...], dtype: DataType, vector: int, layout: str | None = None
) -> tuple[int, ...]:
    """Return the shape in elements; an element of a vector type has `vector` channels."""
    if vector == 1:
        if layout == VECT_C:
            raise ArgumentError(
                f"layout={VECT_C!r} with dtype={dtype_name(dtype)}; allowed: "
                "int8x4, uint8x4, int8x32"
            )
        return shape
    if layout not in (None, VECT_C):
        raise ArgumentError(
            f"layout={shown(layout)} with dtype={dtype_name(dtype)}; allowed: {VECT_C}"
        )
    if len(shape) != 4 or shape[1] % vector:
        raise ArgumentError(
            f"shape={shape} with dtype={dtype_name(dtype)}: "
            f"rank 4 and channels in multiples of {vector}"
        )
    return (shape[0], shape[1] // vector, *shape[2:])


def _is_of_sequences(layout: str | None, rank: int) -> bool:
    """Tell whether a layout is one that recurrent networks have their own names for."""
    return rank == 3 and isinstance(layout, str) and layout in RNN_LAYOUTS


def _parse_strides(
    strides: Iterable[Any],
    layout: object,
    shape: tuple[int, ...],
    dtype: DataType,
) -> tuple[int, ...]:
    """Return strides within the limits of graphs; there must be no layout, and no vector type.

    `check_describable` has the limit of descriptors.
    """
    if layout is not None:
        raise ArgumentError(
            f"layout={shown(layout)} and strides={shown(strides)} are both given; "
            "allowed: one of them"
        )
    if vector_length(dtype) > 1:
        raise ArgumentError(
            f"strides are given for dtype={dtype_name(dtype)}; allowed: only the layout {VECT_C}"
        )
    steps = integers(strides, "strides", MAX_RANK)
    if len(steps) != len(shape):
        raise ArgumentError(f"strides={shown(strides)} has {len(steps)} entries for shape={shape}")
    for axis, (size, step) in enumerate(zip(shape, steps, strict=True)):
        # cuDNN accepts a negative stride, and reads in front of the buffer.
        smallest = 0 if size <= 1 else 1
        if not smallest <= step <= MAX_INT64:
            raise ArgumentError(
                f"strides={shown(steps)}: {shown(step)} on axis {axis}; allowed: "
                f"{smallest} to {MAX_INT64}"
            )
    return steps
