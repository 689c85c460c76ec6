"""`AttentionSpec` and `SeqDataSpec`: multi-head attention, and its sequences."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cudnnlite.arguments import integer, one_of, real_number, sequence, shown
from cudnnlite.dtypes import AnyDtype, compute_type_for, parse_dtype
from cudnnlite.enums import DataType, MathType, SeqDataAxis, parse_enum, parse_math_type
from cudnnlite.errors import ArgumentError
from cudnnlite.specs.frozen import FrozenSpec
from cudnnlite.specs.layout import parse_shape
from cudnnlite.specs.names import MathTypeName
from cudnnlite.specs.tensor import TensorSpec

MAXIMA = ("max_q_length", "max_kv_length", "max_batch", "max_beam")
AXES = (SeqDataAxis.BATCH, SeqDataAxis.BEAM, SeqDataAxis.TIME, SeqDataAxis.VECT)  # of a shape


@dataclass(frozen=True, init=False, repr=False, eq=False)
class AttentionSpec(FrozenSpec):
    """Multi-head attention: a frozen value, compared and hashed by its fields.

    Each head projects queries, keys and values, weighs the values by ``softmax(scale * q @ k.T)``,
    and projects the sum.  The results of the heads are added; without an output projection they
    are concatenated.

    Parameters
    ----------
    heads : int
        The number of heads.
    q_size, k_size, v_size : int
        The lengths of the vectors of queries, keys and values.  If not given, keys are as long as
        queries, and values as keys.
    q_proj_size, k_proj_size, v_proj_size, o_proj_size : int
        The lengths after the projection, in each head; 0 for no projection.  If not given, keys and
        values have the length of queries.  Projected queries and keys must be equally long.
    scale : float, optional
        The factor of the products of queries and keys, at least 0.  If not given, one over the root
        of `head_size`.
    bias : bool
        Whether projections have biases.
    dropout, post_dropout : float
        The probabilities that training sets a weight of the softmax, and a value of the output, to
        zero.  With dropout there are no gradients.
    max_q_length, max_kv_length, max_batch, max_beam : int, optional
        The maxima of a call.  cuDNN receives the sizes of the call instead: with larger maxima, the
        gradients of queries and keys were wrong (cuDNN 9.19, an H200).
    dtype : DataType or str
        The data type of data and weights: "float32", "float64", "float16" or "bfloat16".
    compute_type : DataType or str, optional
        The type of the computation; if not given, float64 for float64 and float32 for the others.
        float16 may be computed in float16.
    math_type : MathType or str
        As in `RNNSpec`.

    Attributes
    ----------
    head_size, output_size : int
        The lengths of a projected query, and of an output vector.

    Notes
    -----
    C function: `cudnnSetAttnDescriptor`, with one beam of keys and values for all beams of queries
    (CUDNN_ATTN_QUERYMAP_ALL_TO_ONE): the other way cuDNN 9 has for a single beam only, where there
    is no difference.

    Examples
    --------
    >>> spec = dnn.AttentionSpec(8, 512, q_proj_size=64, o_proj_size=512, bias=True)  # as torch.nn.MultiheadAttention(512, 8)
    >>> spec.scale, spec.output_size, spec.weight_shapes()["wo"]
    (0.125, 512, (8, 512, 64))
    """

    heads: int
    q_size: int
    k_size: int
    v_size: int
    q_proj_size: int
    k_proj_size: int
    v_proj_size: int
    o_proj_size: int
    scale: float
    bias: bool
    dropout: float
    post_dropout: float
    max_q_length: int | None
    max_kv_length: int | None
    max_batch: int | None
    max_beam: int | None
    dtype: DataType
    compute_type: DataType
    math_type: MathType

    def __init__(
        self,
        heads: int,
        q_size: int,
        k_size: int | None = None,
        v_size: int | None = None,
        *,
        q_proj_size: int = 0,
        k_proj_size: int | None = None,
        v_proj_size: int | None = None,
        o_proj_size: int = 0,
        scale: float | None = None,
        bias: bool = False,
        dropout: float = 0.0,
        post_dropout: float = 0.0,
        max_q_length: int | None = None,
        max_kv_length: int | None = None,
        max_batch: int | None = None,
        max_beam: int | None = None,
        dtype: AnyDtype = "float32",
        compute_type: AnyDtype | None = None,
        math_type: MathType | MathTypeName = MathType.DEFAULT,
    ) -> None:
        if k_size is None:
            k_size = q_size
        if v_size is None:
            v_size = k_size
        if k_proj_size is None:
            k_proj_size = q_proj_size
        if v_proj_size is None:
            v_proj_size = q_proj_size
        sizes = {
            "heads": integer(heads, "heads", 1),
            "q_size": integer(q_size, "q_size", 1),
            "k_size": integer(k_size, "k_size", 1),
            "v_size": integer(v_size, "v_size", 1),
            "q_proj_size": integer(q_proj_size, "q_proj_size", 0),
            "k_proj_size": integer(k_proj_size, "k_proj_size", 0),
            "v_proj_size": integer(v_proj_size, "v_proj_size", 0),
            "o_proj_size": integer(o_proj_size, "o_proj_size", 0),
        }
        head_size = _parse_head_size(sizes)
        kind = parse_dtype(dtype)
        scale = _parse_scale(scale, head_size)
        one_of(bias, "bias", True, False)
        self._freeze(
            **sizes,
            scale=scale,
            bias=bias,
            dropout=_parse_dropout(dropout, "dropout"),
            post_dropout=_parse_dropout(post_dropout, "post_dropout"),
            max_q_length=_parse_maximum(max_q_length, "max_q_length"),
            max_kv_length=_parse_maximum(max_kv_length, "max_kv_length"),
            max_batch=_parse_maximum(max_batch, "max_batch"),
            max_beam=_parse_maximum(max_beam, "max_beam"),
            dtype=kind,
            compute_type=_parse_compute_type(compute_type, kind),
            math_type=parse_math_type(math_type),
        )

    @property
    def head_size(self) -> int:
        """The length of a projected query, and of a projected key."""
        return self.q_proj_size or self.q_size

    @property
    def output_size(self) -> int:
        """The length of an output vector."""
        return self.o_proj_size or self.heads * (self.v_proj_size or self.v_size)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the weights by name, in cuDNN's order.

        The names are wq, wk, wv, wo, bq, bk, bv, bo; weights that the spec does not have are left
        out.
        """
        rows = {
            "q": self.q_proj_size,
            "k": self.k_proj_size,
            "v": self.v_proj_size,
            "o": self.o_proj_size,
        }
        columns = {
            "q": self.q_size,
            "k": self.k_size,
            "v": self.v_size,
            "o": self.v_proj_size or self.v_size,
        }
        projections = [name for name, size in rows.items() if size]
        shapes: dict[str, tuple[int, ...]] = {
            f"w{name}": (self.heads, rows[name], columns[name]) for name in projections
        }
        if not self.bias:
            return shapes
        for name in projections:
            is_output = name == "o"
            shapes[f"b{name}"] = (rows[name],) if is_output else (self.heads, rows[name])
        return shapes

    def weights_of(self) -> AttentionSpec:
        """Return the spec without the fields that do not affect weights.

        These are scale, dropout, maxima, compute type and math type.
        """
        plain = {
            "scale": 1.0,
            "dropout": 0.0,
            "post_dropout": 0.0,
            "compute_type": None,
            "math_type": MathType.DEFAULT,
        }
        return self.replace(**plain, **dict.fromkeys(MAXIMA))


def _parse_head_size(sizes: dict[str, int]) -> int:
    """Return the length of projected queries and keys; ArgumentError if they differ."""
    queries = sizes["q_proj_size"] or sizes["q_size"]
    keys = sizes["k_proj_size"] or sizes["k_size"]
    if queries != keys:
        raise ArgumentError(
            f"queries of {queries} and keys of {keys} after the projections; "
            "they must be equally long"
        )
    return queries


def _parse_scale(scale: Any, head_size: int) -> float:
    if scale is None:
        return float(head_size**-0.5)
    number = real_number(scale, "scale")
    if not 0 <= number < math.inf:
        raise ArgumentError(f"scale={shown(scale)}; allowed: from 0 on")
    return number


def _parse_dropout(probability: Any, argument: str) -> float:
    number = real_number(probability, argument)
    if not 0 <= number < 1:
        raise ArgumentError(
            f"{argument}={shown(probability)}; allowed: a probability from 0 to below 1"
        )
    return number


def _parse_maximum(size: Any, argument: str) -> int | None:
    if size is None:
        return None
    return integer(size, argument, 1)


def _parse_compute_type(compute_type: Any, dtype: DataType) -> DataType:
    if compute_type is None:
        return compute_type_for(dtype)
    return parse_dtype(compute_type, "compute_type")


@dataclass(frozen=True, init=False, repr=False, eq=False)
class SeqDataSpec(FrozenSpec, c_functions="cudnnSetSeqDataDescriptor"):
    """Sequences of vectors for attention: a frozen value, compared and hashed by its fields.

    Parameters
    ----------
    shape : iterable of int
        ``(batch, beam, time, vector)``, in whatever order they lie in memory.
    lengths : iterable of int, optional
        The length of each beam of each entry of the batch, 1 to `time`; all are `time` if not
        given.
    dtype : DataType or str
        The data type of the values.
    axes : iterable of SeqDataAxis or str
        The order of the axes in memory, from the outermost; the vectors come last.

    Examples
    --------
    >>> dnn.specs.SeqDataSpec((2, 1, 5, 8), [5, 3]).lengths
    (5, 3)
    """

    shape: tuple[int, ...]
    lengths: tuple[int, ...]
    dtype: DataType
    axes: tuple[SeqDataAxis, ...]

    def __init__(
        self,
        shape: Iterable[int],
        lengths: Iterable[int] | None = None,
        dtype: AnyDtype = "float32",
        axes: Iterable[SeqDataAxis | str] = AXES,
    ) -> None:
        sizes = parse_shape(shape, batch_may_be_empty=False)
        order = tuple(
            parse_enum(SeqDataAxis, axis, "axes")
            for axis in sequence(axes, "axes", "an order of axes")
        )
        if len(sizes) != 4 or sorted(order) != sorted(AXES) or order[3] != SeqDataAxis.VECT:
            raise ArgumentError(
                f"shape={sizes}, axes={order}; needed: "
                "(batch, beam, time, vector), and the vectors last"
            )
        count = sizes[0] * sizes[1]
        self._freeze(
            shape=sizes,
            lengths=parse_seq_lengths(lengths, "lengths", count, sizes[2], 1),
            dtype=parse_dtype(dtype),
            axes=order,
        )

    def tensor(self) -> TensorSpec:
        """Return the spec of the array, packed in the order of `axes`."""
        sizes = dict(zip(AXES, self.shape, strict=True))
        strides = {}
        stride = 1
        for axis in reversed(self.axes):
            strides[axis] = stride
            stride *= sizes[axis]
        return TensorSpec(self.shape, self.dtype, strides=[strides[axis] for axis in AXES])


def parse_seq_lengths(
    lengths: Any, argument: str, count: int, steps: int, smallest: int
) -> tuple[int, ...]:
    """Return the lengths of `count` sequences; all have `steps` steps if no lengths are given."""
    if lengths is None:
        return (steps,) * count
    items = sequence(lengths, argument, "a sequence of integers")
    numbers = tuple(integer(length, argument, smallest) for length in items)
    if len(numbers) != count or max(numbers, default=0) > steps:
        raise ArgumentError(f"{argument}={shown(numbers)}; needed: {count} of at most {steps}")
    return numbers
