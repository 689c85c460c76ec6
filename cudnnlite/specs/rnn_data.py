"""`RNNDataSpec`: sequences in memory: their layout, their lengths, and the padding fill."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from operator import index
from typing import Any

from cudnnlite.arguments import integer, integers, real_number, shown
from cudnnlite.dtypes import AnyDtype, dtype_name, parse_dtype, refuse_overflow
from cudnnlite.enums import DataType, RNNDataLayout, parse_enum
from cudnnlite.errors import ArgumentError
from cudnnlite.specs.frozen import FrozenSpec
from cudnnlite.specs.layout import parse_shape
from cudnnlite.specs.tensor import TensorSpec
from cudnnlite.unknown import meant

_LAYOUT_NAMES = {
    "sequence_major": RNNDataLayout.SEQ_MAJOR_UNPACKED,
    "batch_major": RNNDataLayout.BATCH_MAJOR_UNPACKED,
    "packed": RNNDataLayout.SEQ_MAJOR_PACKED,
}
AXES = {  # of an array in each layout
    RNNDataLayout.SEQ_MAJOR_UNPACKED: "(T, N, {})",
    RNNDataLayout.BATCH_MAJOR_UNPACKED: "(N, T, {})",
    RNNDataLayout.SEQ_MAJOR_PACKED: "(sum of lengths, {})",
}
MAX_BATCH = 1 << 20  # each sequence has a length, on the host, which every call reads
_FRIENDLY = {layout: name for name, layout in _LAYOUT_NAMES.items()}


@dataclass(frozen=True, init=False, repr=False, eq=False)
class RNNDataSpec(FrozenSpec, c_functions="cudnnSetRNNDataDescriptor"):
    """A batch of sequences of vectors: a frozen value, compared and hashed by its fields.

    Parameters
    ----------
    shape : iterable of int
        "sequence_major": (T, N, vector); "batch_major": (N, T, vector), where T is the longest
        sequence there is room for; "packed": (sum of lengths, vector), all first steps, then all
        second steps of the sequences that have one, ...
    lengths : iterable of int, optional
        The length of each sequence, 1 to T; all are T if not given.  Packed data need lengths that
        do not increase, and T is the first of them.
    dtype : DataType or str
        The data type of the values.
    layout : RNNDataLayout or str
        "sequence_major", "batch_major" or "packed", or cuDNN's own names.
    padding_fill : float
        The value of an output beyond a sequence's end.

    Attributes
    ----------
    max_length, batch, vector_size : int
        T, N, and the length of a vector.

    Examples
    --------
    >>> data = dnn.specs.RNNDataSpec((8, 64), lengths=[4, 3, 1], layout="packed")
    >>> data.batch, data.max_length, data.vector_size
    (3, 4, 64)
    >>> data.with_vectors(128)  # an output for this input
    RNNDataSpec((8, 128), lengths=(4, 3, 1), dtype='float32', layout='packed')
    """

    max_length: int
    batch: int
    vector_size: int
    lengths: tuple[int, ...]
    dtype: DataType
    layout: RNNDataLayout
    padding_fill: float

    def __init__(
        self,
        shape: Iterable[int],
        lengths: Iterable[int] | None = None,
        dtype: AnyDtype = "float32",
        layout: RNNDataLayout | str = RNNDataLayout.SEQ_MAJOR_UNPACKED,
        *,
        padding_fill: float = 0.0,
    ) -> None:
        order, kind = parse_data_layout(layout), parse_dtype(dtype)
        sizes = parse_shape(shape, batch_may_be_empty=False)
        packed = order == RNNDataLayout.SEQ_MAJOR_PACKED
        if len(sizes) != (2 if packed else 3):
            raise ArgumentError(
                f"shape={sizes} in layout {_FRIENDLY[order]!r}; allowed: "
                f"{AXES[order].format('vector')}"
            )
        if packed:
            numbers = parse_lengths(lengths)
            check_packed(numbers, sizes[0])
            steps, batch = numbers[0], len(numbers)
        else:
            steps, batch = sizes[:2]
            if order == RNNDataLayout.BATCH_MAJOR_UNPACKED:
                batch, steps = sizes[:2]
            if batch > MAX_BATCH:
                raise ArgumentError(f"shape={sizes} has {batch} sequences; allowed: {MAX_BATCH}")
            numbers = _parse_unpacked_lengths(lengths, steps, batch)
        self._freeze(
            max_length=steps,
            batch=batch,
            vector_size=sizes[-1],
            lengths=numbers,
            dtype=kind,
            layout=order,
            padding_fill=parse_fill(padding_fill, kind),
        )

    @classmethod
    def _from(cls, values: Mapping[str, Any]) -> RNNDataSpec:
        layout, lengths = parse_data_layout(values["layout"]), parse_lengths(values["lengths"])
        sizes = (index(values[name]) for name in ("max_length", "batch", "vector_size"))
        return cls(
            _shape(layout, lengths, *sizes),
            lengths,
            values["dtype"],
            layout,
            padding_fill=values["padding_fill"],
        )

    def __repr__(self) -> str:
        parts = [str(self.shape)]
        if self.is_packed or not self.is_full:
            parts.append(f"lengths={self.lengths}")
        parts += [f"dtype={dtype_name(self.dtype)!r}", f"layout={_FRIENDLY[self.layout]!r}"]
        if repr(self.padding_fill) != "0.0":  # -0.0 is another fill
            parts.append(f"padding_fill={self.padding_fill!r}")
        return f"RNNDataSpec({', '.join(parts)})"

    @property
    def is_packed(self) -> bool:
        """Whether the sequences lie without padding."""
        return self.layout == RNNDataLayout.SEQ_MAJOR_PACKED

    @property
    def is_full(self) -> bool:
        """Whether every sequence is as long as there is room for."""
        return min(self.lengths) == self.max_length

    @property
    def needs_padded_io(self) -> bool:
        """Whether cuDNN needs its padded mode: sequences end early, or the data is batch-major."""
        if self.is_packed:
            return False
        return not self.is_full or self.layout == RNNDataLayout.BATCH_MAJOR_UNPACKED

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        return _shape(self.layout, self.lengths, self.max_length, self.batch, self.vector_size)

    def tensor(self) -> TensorSpec:
        """Return the spec of the array."""
        return TensorSpec(self.shape, self.dtype, _FRIENDLY[self.layout])

    def with_vectors(self, size: int, padding_fill: float = 0.0) -> RNNDataSpec:
        """Return the same sequences of vectors of another length: an output for an input."""
        fill = parse_fill(padding_fill, self.dtype)
        values = self.values() | {"vector_size": integer(size, "size"), "padding_fill": fill}
        other: RNNDataSpec = RNNDataSpec.__new__(RNNDataSpec)
        other._freeze(**values)
        return other


def _shape(
    layout: RNNDataLayout, lengths: tuple[int, ...], steps: int, batch: int, size: int
) -> tuple[int, ...]:
    if layout == RNNDataLayout.SEQ_MAJOR_PACKED:
        return sum(lengths), size
    if layout == RNNDataLayout.BATCH_MAJOR_UNPACKED:
        return batch, steps, size
    return steps, batch, size


def parse_data_layout(layout: object) -> RNNDataLayout:
    """Return the layout named "sequence_major", "batch_major", "packed", or by cuDNN's name."""
    if isinstance(layout, str) and layout.lower() in _LAYOUT_NAMES:
        return _LAYOUT_NAMES[layout.lower()]
    try:
        return parse_enum(RNNDataLayout, layout, "layout")
    except ArgumentError:
        near = meant(layout, _LAYOUT_NAMES) if isinstance(layout, str) else ""
        raise ArgumentError(
            f"layout={shown(layout)}; allowed: {', '.join(map(repr, _LAYOUT_NAMES))}{near}"
        ) from None


def parse_fill(value: Any, dtype: DataType) -> float:
    """Return a padding fill as a float.

    cuDNN takes it as a value of the data type, in which it must not become infinite.
    """
    fill = real_number(value, "padding_fill")
    refuse_overflow(fill, dtype, "padding_fill")
    return fill


def parse_lengths(lengths: Any) -> tuple[int, ...]:
    """Check lengths by themselves: host integers, at least one of them, none below 1."""
    if lengths is None:
        raise ArgumentError("lengths are not given; packed data cannot be read without them")
    if hasattr(lengths, "spec") or hasattr(lengths, "__cuda_array_interface__"):
        raise ArgumentError(
            "lengths are on the device; cuDNN needs them on the host, before the call"
        )
    numbers = integers(lengths, "lengths", MAX_BATCH)
    if len(numbers) > MAX_BATCH:
        raise ArgumentError(f"lengths={shown(lengths)} has too many entries; allowed: {MAX_BATCH}")
    if not numbers or min(numbers) < 1:
        raise ArgumentError(
            f"lengths={shown(numbers)}; "
            "allowed: at least one, each 1 or more (leave empty sequences out)"
        )
    return numbers


def _parse_unpacked_lengths(lengths: Any, steps: int, batch: int) -> tuple[int, ...]:
    """Return the lengths of a batch of sequences with room for `steps` steps each."""
    if lengths is None:
        return (steps,) * batch
    numbers = parse_lengths(lengths)
    if len(numbers) != batch:
        hint = (
            "; layout='batch_major' has the batch before the steps" if len(numbers) == steps else ""
        )
        raise ArgumentError(f"lengths has {len(numbers)} entries for a batch of {batch}{hint}")
    longest = max(numbers)
    if longest > steps:
        raise ArgumentError(
            f"lengths={shown(numbers)}: {shown(longest)} is longer than the data of {steps} steps"
        )
    return numbers


def check_packed(lengths: tuple[int, ...], rows: int) -> None:
    """Raise ArgumentError unless packed data with `rows` rows can have these lengths."""
    for position, (before, after) in enumerate(pairwise(lengths)):
        if after > before:
            raise ArgumentError(
                f"lengths={shown(lengths)} increase at position {position + 1}; "
                "packed sequences are sorted, the longest first"
            )
    if sum(lengths) != rows:
        raise ArgumentError(
            f"lengths={shown(lengths)} add up to {shown(sum(lengths))}; "
            f"the packed data has {rows} rows"
        )
