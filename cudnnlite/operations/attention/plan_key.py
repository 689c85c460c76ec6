"""`AttentionPlanKey`: the key of a plan of multi-head attention."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from typing import Any, NamedTuple, NoReturn

from cudnnlite.arguments import integer, sequence, shown
from cudnnlite.dtypes import dtype_name
from cudnnlite.errors import ArgumentError
from cudnnlite.operations.layers.dropout import DropoutState
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.attention import AXES, MAXIMA, AttentionSpec, SeqDataSpec, parse_seq_lengths
from cudnnlite.specs.layout import same_strides

Shape = tuple[int, int, int, int]
Window = tuple[tuple[int, ...], tuple[int, ...]]


class AttentionPlanKey(NamedTuple):
    """The key of a plan: plain values, so that equal keys find the same plan."""

    spec: AttentionSpec
    q: SeqDataSpec
    k: SeqDataSpec
    v: SeqDataSpec
    y: SeqDataSpec
    # The specs of the arrays q, k, v and y, which may lack the axis of one beam.
    arrays: tuple[TensorSpec, ...]
    q_lengths: tuple[int, ...]
    kv_lengths: tuple[int, ...]
    window: Window
    training: bool
    dropout_state: DropoutState | None


class _Sequences(NamedTuple):
    """The specs of queries, keys, values and output, with one order of axes in memory."""

    q: SeqDataSpec
    k: SeqDataSpec
    v: SeqDataSpec
    y: SeqDataSpec


def attention_plan_key(
    spec: AttentionSpec,
    specs: Mapping[str, TensorSpec],
    q_lengths: Any,
    kv_lengths: Any,
    window: Any,
    *,
    training: bool,
    dropout_state: DropoutState | None,
) -> AttentionPlanKey:
    """Return the key of a plan; ArgumentError if operands and spec do not fit together.

    `specs` are those of "q", "k" and "v".
    """
    with_beam = {name: _with_beam(array, name) for name, array in specs.items()}
    batch, beam, q_steps, _ = with_beam["q"].shape
    kv_steps = with_beam["k"].shape[2]
    shapes: dict[str, Shape] = {
        "q": (batch, beam, q_steps, spec.q_size),
        "k": (batch, 1, kv_steps, spec.k_size),
        "v": (batch, 1, kv_steps, spec.v_size),
        "y": (batch, beam, q_steps, spec.output_size),
    }
    for name, array in with_beam.items():
        if array.shape != shapes[name] or array.dtype != spec.dtype:
            _refuse_operand(name, specs[name], shapes[name], spec)
    lengths = (
        parse_seq_lengths(q_lengths, "q_lengths", batch * beam, q_steps, 0),
        parse_seq_lengths(kv_lengths, "kv_lengths", batch, kv_steps, 0),
    )
    spec = _with_exact_maxima(spec, (q_steps, kv_steps, batch, beam))
    sequences = _sequences(spec, with_beam, shapes, *lengths)
    if sequences is None:
        _refuse_order(specs)
    ranks = (specs["q"].rank, specs["k"].rank, specs["v"].rank, specs["q"].rank)
    arrays = tuple(
        _at_rank(data.tensor(), rank) for data, rank in zip(sequences, ranks, strict=True)
    )
    parsed_window = _parse_window(window, q_steps, kv_steps)
    return AttentionPlanKey(
        spec, *sequences, arrays, *lengths, parsed_window, training, dropout_state
    )


def _refuse_operand(name: str, array: TensorSpec, shape: Shape, spec: AttentionSpec) -> NoReturn:
    required_spec = _at_rank(TensorSpec(shape, spec.dtype), array.rank)
    raise ArgumentError(
        f"{name} is {array}; needed: {required_spec.shape} in {dtype_name(spec.dtype)}"
    )


def _refuse_order(specs: Mapping[str, TensorSpec]) -> NoReturn:
    operands = ", ".join(f"{name} is {array}" for name, array in specs.items())
    raise ArgumentError(
        f"{operands}; needed: all packed in one order of their axes, and the vectors last"
    )


def _with_exact_maxima(spec: AttentionSpec, sizes: tuple[int, int, int, int]) -> AttentionSpec:
    """Return a spec whose maxima are these sizes; ArgumentError if a size exceeds its maximum.

    With maxima larger than the sizes, cuDNN 9.19's gradients of queries and keys depended on the
    values that were in memory.
    """
    maxima = dict(zip(MAXIMA, sizes, strict=True))
    for name, size in maxima.items():
        maximum = getattr(spec, name)
        if maximum and size > maximum:
            raise ArgumentError(f"{name}={maximum} of the spec; there are {size}")
    return spec.replace(**maxima)


def _sequences(
    spec: AttentionSpec,
    arrays: Mapping[str, TensorSpec],
    shapes: Mapping[str, Shape],
    q_lengths: tuple[int, ...],
    kv_lengths: tuple[int, ...],
) -> _Sequences | None:
    """Return the specs with the order of axes that all arrays have in memory.

    None if the arrays have different orders.  The lengths in a descriptor must be 1 at least.
    cuDNN uses the lengths on the device, which may be 0.
    """
    described_q_lengths = [max(1, length) for length in q_lengths]
    described_kv_lengths = [max(1, length) for length in kv_lengths]
    for order in permutations(AXES[:3]):
        axes = (*order, AXES[3])
        sequences = _Sequences(
            SeqDataSpec(shapes["q"], described_q_lengths, spec.dtype, axes),
            SeqDataSpec(shapes["k"], described_kv_lengths, spec.dtype, axes),
            SeqDataSpec(shapes["v"], described_kv_lengths, spec.dtype, axes),
            SeqDataSpec(shapes["y"], described_q_lengths, spec.dtype, axes),
        )
        if all(_has_strides_of(array, getattr(sequences, name)) for name, array in arrays.items()):
            return sequences
    return None


def _has_strides_of(array: TensorSpec, data: SeqDataSpec) -> bool:
    return same_strides(data.shape, array.strides, data.tensor().strides)


def _with_beam(spec: TensorSpec, argument: str) -> TensorSpec:
    """Return the spec of (batch, beam, time, vector) for an operand that may lack a beam."""
    if spec.rank not in (3, 4):
        raise ArgumentError(
            f"{argument} is {spec}; needed: (batch, beam, time, vector), or (batch, time, vector)"
        )
    if spec.rank == 4:
        return spec
    (batch, *shape), (first, *strides) = spec.shape, spec.strides
    return TensorSpec((batch, 1, *shape), spec.dtype, strides=(first, 1, *strides))


def _at_rank(spec: TensorSpec, rank: int) -> TensorSpec:
    """Return a spec of (batch, beam, time, vector) without its beam if the rank is 3."""
    if rank == 4:
        return spec
    shape, strides = spec.shape, spec.strides
    return TensorSpec((shape[0], *shape[2:]), spec.dtype, strides=(strides[0], *strides[2:]))


def _parse_window(window: Any, q_steps: int, kv_steps: int) -> Window:
    """Return, for each step of the queries, the first key and the one after the last."""
    if window is None:
        return (0,) * q_steps, (kv_steps,) * q_steps
    requirement = "a pair of sequences of integers"
    pair = sequence(window, "window", requirement)
    if len(pair) != 2:
        raise ArgumentError(f"window={shown(window)} is not {requirement}")
    low, high = (_parse_steps(sequence(ends, "window", requirement)) for ends in pair)
    if len(low) != q_steps or len(high) != q_steps:
        raise ArgumentError(
            f"window has {len(low)} and {len(high)} entries; "
            f"needed: one for each of the {q_steps} steps"
        )
    return low, high


def _parse_steps(steps: Any) -> tuple[int, ...]:
    """Return numbers of steps, from 0 on."""
    if set(map(type, steps)) <= {int} and min(steps, default=0) >= 0:
        return tuple(steps)  # the usual case, in a tenth of the time
    return tuple(integer(step, "window", 0) for step in steps)
