"""`TensorSpec`: shape, data type and strides of a tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from numbers import Integral
from typing import Any

from cudnnlite.arguments import MAX_INT, integers, shown
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
    SEQUENCES,
    VECT_C,
    as_four,
    packed_strides,
    parse_layout,
    parse_shape,
    same_strides,
    span,
)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class TensorSpec(FrozenSpec, c_functions="cudnnSetTensorNdDescriptor cudnnSetTensorNdDescriptorEx"):
    """What a tensor looks like: a frozen value, equal and hashable by its fields.

    Parameters
    ----------
    shape : iterable of int
        ``(N, C, *spatial)``, whatever the layout; rank 1 to 8.  N may be 0: an empty batch.
    dtype : DataType or str or numpy dtype
        Such as "float32", "float16", "bfloat16", "int8", "int8x32".
    layout : str, optional
        "NCHW" or "NHWC" ("NCW", "NWC", "NCDHW", "NDHWC" for other ranks), or "NCHW_VECT_C" with a
        vector dtype. "sequence_major", "batch_major" and "states" are what recurrent networks call
        NCW.  Channels first if not given.
    strides : iterable of int, optional
        In elements, instead of a layout; they may leave gaps.

    Attributes
    ----------
    strides : tuple of int
        In elements.  Under NCHW_VECT_C an element is a vector of 4 or 32 channels, as in cuDNN.

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
        own = (
            layout
            if isinstance(layout, str)
            and layout in SEQUENCES
            and len(sizes) == 3
            and vector == 1
            and strides is None
            else ""
        )
        if own:
            steps = packed_strides(sizes, own)
        elif strides is None:
            name = parse_layout(layout if layout is not None or vector == 1 else VECT_C, len(sizes))
            steps = packed_strides(_in_vectors(sizes, kind, vector, name), name)
        elif layout is not None:
            raise ArgumentError(
                f"layout={shown(layout)} and strides={shown(strides)} are both given; allowed: one of them"
            )
        elif vector > 1:
            raise ArgumentError(
                f"strides are given for dtype={dtype_name(kind)}; allowed: only the layout {VECT_C}"
            )
        else:
            steps = _parse_strides(strides, sizes)
        self._freeze(shape=sizes, dtype=kind, strides=steps, vector=vector)
        if own:  # a name and no more: specs of one memory are equal
            self.__dict__["layout"] = own

    def __repr__(self) -> str:
        layout = self.layout
        how = f"strides={self.strides}" if layout == "strided" else repr(layout)
        return f"TensorSpec({self.shape}, {dtype_name(self.dtype)!r}, {how})"

    @classmethod
    def _from(cls, values: Mapping[str, Any]) -> TensorSpec:
        return cls(
            values["shape"],
            values["dtype"],
            strides=values["strides"] if values["vector"] == 1 else None,
        )

    def replace(self, **changes: Any) -> TensorSpec:
        """Return a copy with some fields changed; another shape, given without strides, lies packed in this one's layout."""
        if "shape" in changes and "strides" not in changes and self.layout != "strided":
            shape = parse_shape(changes["shape"])
            names = CHANNELS_LAST if self.layout in CHANNELS_LAST.values() else CHANNELS_FIRST
            layout = self.layout if len(shape) == self.rank else names.get(len(shape), PACKED)
            changes["strides"] = TensorSpec(shape, self.dtype, layout).strides
        return super().replace(**changes)

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
        """The same memory as cuDNN is told of it: packed values have the strides of their layout along axes of size 1 too.

        cuDNN looks at those strides where it chooses a kernel; `softmax_forward` was wrong on an
        H200 where they were odd.
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
        """Whether the memory is channels last; where both layouts fit (one channel), whether it is written so."""
        first, last = CHANNELS_FIRST.get(self.rank, ""), CHANNELS_LAST.get(self.rank, "")
        return self.fits(last) and (self.layout == last or not self.fits(first))

    def fits(self, layout: Any) -> bool:
        """Tell whether the memory lies as in `layout` without gaps; the strides of axes of size 1 do not matter."""
        if not isinstance(layout, str):
            return False
        if self.vector > 1 or layout == VECT_C:
            return self.vector > 1 and layout == VECT_C
        names = (
            CHANNELS_FIRST.get(self.rank, "packed"),
            CHANNELS_LAST.get(self.rank),
            *SEQUENCES * (self.rank == 3),
        )
        if layout not in names:
            return False
        return same_strides(self.shape, self.strides, packed_strides(self.shape, layout))

    @cached_property
    def size(self) -> int:
        """The number of values."""
        return prod(self.shape)

    @cached_property
    def nbytes(self) -> int:
        """The bytes from the first value to the last, gaps included: what a buffer must hold."""
        return span(_in_vectors(self.shape, self.dtype, self.vector), self.strides) * itemsize(
            self.dtype
        )

    @cached_property
    def overlaps_itself(self) -> bool:
        """Whether two values may share memory (a stride smaller than what lies inside it): not allowed in an output."""
        reach = 1
        axes = zip(_in_vectors(self.shape, self.dtype, self.vector), self.strides, strict=True)
        for size, stride in sorted(
            (axis for axis in axes if axis[0] > 1), key=lambda axis: axis[1]
        ):
            if stride < reach:
                return True
            reach = stride * (size - 1) + reach
        return False

    def packed(self, shape: tuple[int, ...], dtype: DataType | None = None) -> TensorSpec:
        """Return the spec of other images, ``(N, C, *spatial)``, in this one's layout, packed; in its dtype if none is given.

        Raises
        ------
        ArgumentError
            These are no images: the rank is not 3 to 5.
        """
        if self.rank not in CHANNELS_FIRST:
            raise ArgumentError(f"x={self}: it must be (N, C, *spatial), of rank 3, 4 or 5")
        layout = (
            VECT_C
            if self.vector > 1
            else (CHANNELS_LAST if self.is_channels_last else CHANNELS_FIRST)[self.rank]
        )
        return TensorSpec(shape, self.dtype if dtype is None else dtype, layout)

    def native(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return (dims, strides) as cuDNN is told them: of rank 4 at least, a 1-D image being one pixel high."""
        dims = as_four(self.shape, missing=1)
        # the stride of an axis of size 1 is free; one that keeps the tensor packed keeps every
        # kernel eligible
        height = self.strides[2] * self.shape[2] if self.rank == 3 else 1
        return dims, as_four(self.strides, missing=min(height, MAX_INT))


def called(spec: TensorSpec, layout: str) -> TensorSpec:
    """Return a spec under another name of its layout, as a message about sequences shows it: 'states' for 'NCW'."""
    return (
        TensorSpec(spec.shape, spec.dtype, layout)
        if layout in SEQUENCES and spec.layout == "NCW"
        else spec
    )


def tensor_spec_of(
    shape: Any, dtype: Any = None, layout: str | None = None, strides: Any = None
) -> TensorSpec:
    """Return the spec that is given instead of a shape, or make one; ArgumentError also for what is beside a whole one."""
    shape = (shape,) if isinstance(shape, Integral) else shape  # of one axis, as in NumPy
    return whole_or_made(TensorSpec, shape, dtype=dtype, layout=layout, strides=strides)


def _in_vectors(
    shape: tuple[int, ...], dtype: DataType, vector: int, layout: str | None = None
) -> tuple[int, ...]:
    """Return the shape counted in elements: with a vector type an element holds `vector` channels."""
    if vector == 1:
        if layout == VECT_C:
            raise ArgumentError(
                f"layout={VECT_C!r} with dtype={dtype_name(dtype)}; allowed: int8x4, uint8x4, int8x32"
            )
        return shape
    if layout not in (None, VECT_C):
        raise ArgumentError(
            f"layout={shown(layout)} with dtype={dtype_name(dtype)}; allowed: {VECT_C}"
        )
    if len(shape) != 4 or shape[1] % vector:
        raise ArgumentError(
            f"shape={shape} with dtype={dtype_name(dtype)}: rank 4 and channels in multiples of {vector}"
        )
    return (shape[0], shape[1] // vector, *shape[2:])


def _parse_strides(strides: Iterable[Any], shape: tuple[int, ...]) -> tuple[int, ...]:
    steps = integers(strides, "strides", MAX_RANK)
    if len(steps) != len(shape):
        raise ArgumentError(f"strides={shown(strides)} has {len(steps)} entries for shape={shape}")
    for axis, (size, step) in enumerate(zip(shape, steps, strict=True)):
        # cuDNN takes a negative stride without complaint and then reads in front of the buffer
        smallest = 0 if size <= 1 else 1
        if not smallest <= step <= MAX_INT:
            raise ArgumentError(
                f"strides={shown(steps)}: {shown(step)} on axis {axis}; allowed: {smallest} to {MAX_INT}"
            )
    return steps
