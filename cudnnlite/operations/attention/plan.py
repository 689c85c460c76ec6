"""`AttentionPlan`: the descriptors of multi-head attention over sequences of one kind, and what its calls return.

By hand, as recurrent networks are: weights whose layout cuDNN alone knows, and a reserve space between the passes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np

from cudnnlite._raw.enums import WgradMode
from cudnnlite.arguments import integer, sequence, shown
from cudnnlite.descriptors import DropoutDescriptor
from cudnnlite.descriptors.attention import AttentionDescriptor, SeqDataDescriptor
from cudnnlite.descriptors.native import c_ints, device_ints
from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.dtypes import dtype_name
from cudnnlite.errors import ArgumentError, CudnnError
from cudnnlite.operations.attention.weights import AttentionWeights
from cudnnlite.operations.layers.dropout import DropoutState
from cudnnlite.plans.stateful_plan import PlanByHand, TrainingReserve, check_outputs
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.attention import AXES, MAXIMA, AttentionSpec, SeqDataSpec, parse_seq_lengths
from cudnnlite.specs.layout import same_strides

Window = tuple[tuple[int, ...], tuple[int, ...]]


class AttentionRequest(NamedTuple):
    """What a plan is made for: plain values, so that equal requests find the same plan."""

    spec: AttentionSpec
    q: SeqDataSpec
    k: SeqDataSpec
    v: SeqDataSpec
    y: SeqDataSpec
    arrays: tuple[
        TensorSpec, ...
    ]  # the four as they are given, which may lack the axis of one beam
    q_lengths: tuple[int, ...]
    kv_lengths: tuple[int, ...]
    window: Window
    training: bool
    dropout_state: DropoutState | None


class AttentionTrainingOutput(NamedTuple):
    """What a forward call in training returns.

    Attributes
    ----------
    y : DeviceArray
        The output.
    reserve : AttentionReserve
        What the backward passes need.
    """

    y: DeviceArray
    reserve: AttentionReserve


class AttentionGradients(NamedTuple):
    """What the backward pass over the data returns.

    Attributes
    ----------
    dq, dk, dv : DeviceArray
        Laid out as q, k and v; 0 beyond a sequence's end.
    """

    dq: DeviceArray
    dk: DeviceArray
    dv: DeviceArray


class AttentionCall(NamedTuple):
    """What a training call was given: the backward passes need it again."""

    request: Any
    weights: AttentionWeights
    q: DeviceArray
    k: DeviceArray
    v: DeviceArray
    dy: DeviceArray | None = None  # of the backward pass over the data, once that was here


class AttentionReserve(TrainingReserve[AttentionCall]):
    """The reserve space of one training call, and all that the backward passes must be given again.

    It keeps the operands of the forward call alive; none of them may be overwritten before the backward passes are done.

    Attributes
    ----------
    array : DeviceArray
        The reserve space: bytes, opaque.
    nbytes : int
        Its size.
    """

    _passes = (
        "multi_head_attention_forward",
        "multi_head_attention_backward_data",
        "multi_head_attention_backward_weights",
    )


class AttentionPlan(PlanByHand):
    """The descriptors of attention over sequences of one kind, and the sizes that cuDNN wants."""

    _weights_type, _reserve_type = AttentionWeights, AttentionReserve

    def __init__(self, handle: Handle, request: AttentionRequest) -> None:
        super().__init__(handle, f"AttentionPlan of {request.spec}")
        self.request, self.spec, self._weights_kind = (
            request,
            request.spec,
            request.spec.weights_of(),
        )
        own, api, spec, state = (
            self._resources.enter_context,
            handle.api,
            request.spec,
            request.dropout_state,
        )
        try:
            dropout, post_dropout = (
                own(DropoutDescriptor(handle, chance, state.array, state.seed))
                if chance and state is not None
                else None
                for chance in (spec.dropout, spec.post_dropout)
            )
            self._attention = own(
                AttentionDescriptor(spec, dropout=dropout, post_dropout=post_dropout, api=api)
            )
            self._q, self._k, self._v, self._y = (
                own(SeqDataDescriptor(data, api=api)).ptr
                for data in (request.q, request.k, request.v, request.y)
            )
            sizes = [ctypes.c_size_t() for _ in range(3)]
            reserve = sizes[2] if request.training else None
            api.cudnnGetMultiHeadAttnBuffers(
                handle.ptr, self._attention.ptr, sizes[0], sizes[1], reserve
            )
            self._weight_bytes, self._workspace, self._reserve = (size.value for size in sizes)
            self._lengths = [
                arrays.from_host(self._device, handle.stream, np.array(lengths, np.int32))
                for lengths in (request.q_lengths, request.kv_lengths)
            ]
            self._bounds = (
                *map(c_ints, request.window),
                *(device_ints(array.ptr) for array in self._lengths),
            )
        except BaseException:
            self.close()
            raise

    def __call__(
        self,
        weights: AttentionWeights,
        q: DeviceArray,
        k: DeviceArray,
        v: DeviceArray,
        *,
        residual: Any = None,
        step: int | None = None,
        out: Any = None,
        reserve: AttentionReserve | None = None,
    ) -> DeviceArray | AttentionTrainingOutput:
        """Enqueue the forward pass on the handle's stream."""
        self.use()
        request, handle = self.request, self._handle
        self._check_weights(weights)
        *wanted, y_spec = request.arrays
        q, k, v = map(self._operand, (q, k, v), "qkv", wanted)
        added = None if residual is None else self._operand(residual, "residual", y_spec)
        if added is not None and request.spec.output_size != request.spec.q_size:
            raise ArgumentError(
                f"residual with outputs of {request.spec.output_size}; cuDNN adds one where they are as long as queries, "
                f"{request.spec.q_size}"
            )
        if step is not None and request.training:
            raise ArgumentError("step is given with training=True, which computes all steps")
        at = -1 if step is None else integer(step, "step", 0)
        if at >= request.q.shape[2]:
            raise ArgumentError(f"step={step}; allowed: below {request.q.shape[2]}")
        (y,) = self._outputs(None if out is None else (out,), ("out",), (y_spec,))
        inputs = {"weights": weights.array, "q": q, "k": k, "v": v} | (
            {} if added is None else {"residual": added}
        )
        space = self._reserve_space(reserve, self._reserve, training=request.training)
        check_outputs(inputs, {"out": y, "reserve": None if space is None else space.array})
        if space is not None:
            space.begin()
        self._run(
            handle.api.cudnnMultiHeadAttnForward,
            [*inputs.values(), y],
            (
                handle.ptr,
                self._attention.ptr,
                at,
                *self._bounds,
                self._q,
                q.ptr,
                0 if added is None else added.ptr,
                self._k,
                k.ptr,
                self._v,
                v.ptr,
                self._y,
                y.ptr,
                *self._weight_space(weights),
            ),
            None if space is None else space.array,
        )
        if space is None:
            return y
        space.finish(AttentionCall(request, weights, q, k, v))
        return AttentionTrainingOutput(y, space)

    def backward_data(self, reserve: AttentionReserve, dy: Any, *, out: Any) -> AttentionGradients:
        """Enqueue the backward pass over the data; see `multi_head_attention_backward_data`."""
        self.use()
        call, handle, spec = reserve.recall(has_gradients=False), self._handle, self.request.spec
        if spec.dropout or spec.post_dropout:
            raise ArgumentError(
                f"reserve is of {spec}: with dropout cuDNN 9.19 computes gradients that are not those of its output"
            )
        dy = self._operand(dy, "dy", call.request.arrays[3])
        names, inputs = ("dq", "dk", "dv"), _inputs(call, reserve, dy)
        gradients = self._outputs(
            out, names, tuple(array.spec for array in (call.q, call.k, call.v))
        )
        check_outputs(inputs, dict(zip(names, gradients, strict=True)))
        dq, dk, dv = gradients
        reserve.begin()
        self._run(
            handle.api.cudnnMultiHeadAttnBackwardData,
            [*inputs.values(), *gradients],
            (
                handle.ptr,
                self._attention.ptr,
                *self._bounds,
                self._y,
                dy.ptr,
                self._q,
                dq.ptr,
                call.q.ptr,
                self._k,
                dk.ptr,
                call.k.ptr,
                self._v,
                dv.ptr,
                call.v.ptr,
                *self._weight_space(call.weights),
            ),
            reserve.array,
            clear=self._unwritten_by_cudnn(dq),
        )
        reserve.finish(call._replace(dy=dy), has_gradients=True)
        return AttentionGradients(dq, dk, dv)

    def backward_weights(
        self, reserve: AttentionReserve, *, out: AttentionWeights | None, accumulate: bool
    ) -> AttentionWeights:
        """Enqueue the backward pass over the weights; see `multi_head_attention_backward_weights`."""
        self.use()
        call, handle = reserve.recall(has_gradients=True), self._handle
        dy = call.dy
        assert dy is not None
        inputs = _inputs(call, reserve, dy)
        out = self._gradients(call.weights, out, accumulate, inputs)
        size, weights = self._weight_space(call.weights)
        self._run(
            handle.api.cudnnMultiHeadAttnBackwardWeights,
            [*inputs.values(), out.array],
            (
                handle.ptr,
                self._attention.ptr,
                WgradMode.ADD if accumulate else WgradMode.SET,
                self._q,
                call.q.ptr,
                self._k,
                call.k.ptr,
                self._v,
                call.v.ptr,
                self._y,
                dy.ptr,
                size,
                weights,
                out.array.ptr if size else 0,
            ),
            reserve.array,
        )
        return out

    def _unwritten_by_cudnn(self, dq: DeviceArray) -> list[tuple[int, int]]:
        """Return the memory that must be zero before the backward pass over the data.

        cuDNN 9.19 does not write dq beyond the longest query (seen on an H200).
        """
        steps = self.request.q.shape[2]
        if max(self.request.q_lengths, default=steps) < steps:
            return [(dq.ptr, dq.nbytes)]
        return []

    def _run(
        self,
        function: Any,
        operands: list[DeviceArray],
        arguments: Any,
        reserve: DeviceArray | None,
        clear: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Make the C call, which ends with workspace and reserve space."""
        there = [*operands, *self._lengths, reserve, self._states(self.request.dropout_state)]
        scratch = self._handle.workspace.reserve(self._workspace, self._handle.stream)
        kept = 0 if reserve is None else reserve.ptr
        self._call(
            function, (*arguments, self._workspace, scratch, self._reserve, kept), there, clear
        )

    def _explain(self, error: CudnnError) -> None:
        error.involving(spec=self.spec, q=self.request.q, k=self.request.k, v=self.request.v)

    def _weight_space(self, weights: AttentionWeights) -> tuple[int, int]:
        return self._weight_bytes, weights.array.ptr if self._weight_bytes else 0


def _inputs(
    call: AttentionCall, reserve: AttentionReserve, dy: DeviceArray
) -> dict[str, DeviceArray]:
    """Return what a backward pass reads, by name."""
    weights = call.weights.array
    return {
        "dy": dy,
        "q": call.q,
        "k": call.k,
        "v": call.v,
        "weights": weights,
        "reserve": reserve.array,
    }


def make_request(
    spec: AttentionSpec,
    given: dict[str, DeviceArray],
    q_lengths: Any,
    kv_lengths: Any,
    window: Any,
    dropout_state: DropoutState | None,
    *,
    training: bool,
) -> AttentionRequest:
    """Return what a plan is made for; ArgumentError where operands and spec do not fit together."""
    whole = {name: _with_beam(array.spec, name) for name, array in given.items()}
    (batch, beam, steps, _), (_, _, reach, _) = whole["q"].shape, whole["k"].shape
    shapes = {
        "q": (batch, beam, steps, spec.q_size),
        "k": (batch, 1, reach, spec.k_size),
        "v": (batch, 1, reach, spec.v_size),
    }
    for name, found in whole.items():
        if found.shape != shapes[name] or found.dtype != spec.dtype:
            own, wanted = (
                given[name].spec,
                _at_rank(TensorSpec(shapes[name], spec.dtype), given[name].spec.rank),
            )
            raise ArgumentError(
                f"{name} is {own}; needed: {wanted.shape} in {dtype_name(spec.dtype)}"
            )
    lengths = (
        parse_seq_lengths(q_lengths, "q_lengths", batch * beam, steps, 0),
        parse_seq_lengths(kv_lengths, "kv_lengths", batch, reach, 0),
    )
    for name, there in zip(MAXIMA, (steps, reach, batch, beam), strict=True):
        if there > (getattr(spec, name) or there):
            raise ArgumentError(f"{name}={getattr(spec, name)} of the spec; there are {there}")
    # no room to spare: where there was, cuDNN 9.19's gradients of queries and keys were wrong, by what memory held
    spec = spec.replace(**dict(zip(MAXIMA, (steps, reach, batch, beam), strict=True)))
    # a descriptor's lengths begin with 1; those that count are on the device, and may be 0
    told = [[max(1, length) for length in of] for of in lengths]
    for order in permutations(AXES[:3]):
        axes = (*order, AXES[3])
        data = [
            SeqDataSpec(shapes[name], of, spec.dtype, axes)
            for name, of in zip("qkv", (told[0], *told[1:] * 2), strict=True)
        ]
        pairs = zip(data, whole.values(), strict=True)
        if all(same_strides(x.shape, found.strides, x.tensor().strides) for x, found in pairs):
            (q, k, v), y = (
                data,
                SeqDataSpec((batch, beam, steps, spec.output_size), told[0], spec.dtype, axes),
            )
            ranks = [given[name].spec.rank for name in "qkvq"]
            alike = tuple(
                _at_rank(x.tensor(), rank) for x, rank in zip((q, k, v, y), ranks, strict=True)
            )
            ends = _parse_window(window, steps, reach)
            return AttentionRequest(
                spec, q, k, v, y, alike, *lengths, ends, training, dropout_state
            )
    listed = ", ".join(f"{name} is {array.spec}" for name, array in given.items())
    raise ArgumentError(
        f"{listed}; needed: all packed in one order of their axes, and the vectors last"
    )


def _with_beam(spec: TensorSpec, argument: str) -> TensorSpec:
    """Return the spec of (batch, beam, time, vector) for what may lack a beam."""
    if spec.rank not in (3, 4):
        raise ArgumentError(
            f"{argument} is {spec}; needed: (batch, beam, time, vector), or (batch, time, vector)"
        )
    if spec.rank == 4:
        return spec
    (batch, *shape), (first, *strides) = spec.shape, spec.strides
    return TensorSpec((batch, 1, *shape), spec.dtype, strides=(first, 1, *strides))


def _at_rank(spec: TensorSpec, rank: int) -> TensorSpec:
    """Return the spec of (batch, time, vector) where that is what was given."""
    if rank == 4:
        return spec
    shape, strides = spec.shape, spec.strides
    return TensorSpec((shape[0], *shape[2:]), spec.dtype, strides=(strides[0], *strides[2:]))


def _parse_window(window: Any, steps: int, reach: int) -> Window:
    """Return first and end for each step."""
    if window is None:
        return (0,) * steps, (reach,) * steps
    what = "a pair of sequences of integers"
    pair = sequence(window, "window", what)
    if len(pair) != 2:
        raise ArgumentError(f"window={shown(window)} is not {what}")
    low, high = (
        tuple(integer(end, "window", 0) for end in sequence(ends, "window", what)) for ends in pair
    )
    if len(low) != steps or len(high) != steps:
        raise ArgumentError(
            f"window has {len(low)} and {len(high)} entries; needed: one for each of the {steps} steps"
        )
    return low, high
