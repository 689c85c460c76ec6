"""`AttentionPlan`: multi-head attention over sequences of one kind.

It is no `OperationPlan`, because only cuDNN knows the layout of the weights, and because the passes
share a reserve space.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from cudnnlite._raw.enums import WgradMode
from cudnnlite.arguments import integer
from cudnnlite.descriptors import DropoutDescriptor
from cudnnlite.descriptors.attention import AttentionDescriptor, SeqDataDescriptor
from cudnnlite.descriptors.native import c_ints, device_ints
from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import ArgumentError, CudnnError
from cudnnlite.operations.attention.pass_operands import (
    AttentionCall,
    AttentionGradients,
    AttentionReserve,
    AttentionTrainingOutput,
)
from cudnnlite.operations.attention.plan_key import AttentionPlanKey
from cudnnlite.operations.attention.weights import AttentionWeights
from cudnnlite.plans.ranges import in_range
from cudnnlite.plans.stateful_plan import StatefulPlan, check_outputs
from cudnnlite.specs.attention import SeqDataSpec

# DeviceArray, or AttentionTrainingOutput.
OutputT = TypeVar("OutputT")


class AttentionPlan(StatefulPlan, Generic[OutputT]):
    """Attention over sequences of one kind, on one handle: `plan(weights, q, k, v)`.

    `multi_head_attention_forward.plan` makes it.

    Parameters
    ----------
    handle : Handle
        The plan belongs to it and is closed with it.
    key : AttentionPlanKey
        The spec of the attention and of its sequences.

    Attributes
    ----------
    spec : AttentionSpec
        The attention; its maxima are those of the sequences.
    workspace, reserve : int
        The bytes of scratch memory and of reserve space that a call needs.

    Notes
    -----
    C function of a call: `cudnnMultiHeadAttnForward`.
    """

    _weights_type, _reserve_type = AttentionWeights, AttentionReserve

    def __init__(self, handle: Handle, key: AttentionPlanKey) -> None:
        super().__init__(handle, f"AttentionPlan of {key.spec}")
        self.key = key
        self.spec = key.spec
        self._weights_kind = key.spec.weights_of()
        try:
            self._describe()
        except BaseException as error:
            if isinstance(error, CudnnError):
                self._explain(error)
            self.close()
            raise

    def _describe(self) -> None:
        """Make the descriptors, and get the sizes of the three spaces from cuDNN."""
        key = self.key
        self._attention = self._describe_attention()
        self._q = self._describe_sequences(key.q)
        self._k = self._describe_sequences(key.k)
        self._v = self._describe_sequences(key.v)
        self._y = self._describe_sequences(key.y)
        weights, workspace, reserve = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_size_t()
        self._handle.api.cudnnGetMultiHeadAttnBuffers(
            self._handle.ptr,
            self._attention.ptr,
            weights,
            workspace,
            reserve if key.training else None,
        )
        self._weight_bytes = weights.value
        self.workspace = workspace.value
        self.reserve = reserve.value
        self._lengths = (self._on_device(key.q_lengths), self._on_device(key.kv_lengths))
        low, high = key.window
        self._bounds = (
            c_ints(low),
            c_ints(high),
            *(device_ints(lengths.ptr) for lengths in self._lengths),
        )

    def _describe_attention(self) -> AttentionDescriptor:
        spec = self.spec
        return self._resources.enter_context(
            AttentionDescriptor(
                spec,
                dropout=self._describe_dropout(spec.dropout),
                post_dropout=self._describe_dropout(spec.post_dropout),
                api=self._handle.api,
            )
        )

    def _describe_dropout(self, probability: float) -> DropoutDescriptor | None:
        state = self.key.dropout_state
        if not probability or state is None:
            return None
        return self._resources.enter_context(
            DropoutDescriptor(self._handle, probability, state.array, state.seed)
        )

    def _describe_sequences(self, data: SeqDataSpec) -> Any:
        descriptor = SeqDataDescriptor(data, api=self._handle.api)
        return self._resources.enter_context(descriptor).ptr

    def _on_device(self, lengths: tuple[int, ...]) -> DeviceArray:
        return arrays.from_host(self._device, self._handle.stream, np.array(lengths, np.int32))

    @in_range
    def __call__(
        self,
        weights: AttentionWeights,
        q: AnyArray,
        k: AnyArray,
        v: AnyArray,
        *,
        residual: AnyArray | None = None,
        step: int | None = None,
        out: AnyArray | None = None,
        reserve: AttentionReserve | None = None,
    ) -> OutputT:
        """Enqueue the forward pass on the handle's stream.

        Parameters
        ----------
        weights, q, k, v, residual, step, out, reserve
            As in `multi_head_attention_forward`.

        Returns
        -------
        DeviceArray, or AttentionTrainingOutput in training

        Raises
        ------
        ArgumentError, ArrayTypeError, ClosedError, ThreadError
            Before anything is written.
        CudnnError
            The C function failed.
        """
        self._use()
        key = self.key
        self._check_weights(weights)
        q_spec, k_spec, v_spec, y_spec = key.arrays
        q = self._operand(q, "q", q_spec)
        k = self._operand(k, "k", k_spec)
        v = self._operand(v, "v", v_spec)
        inputs = {"weights": weights.array, "q": q, "k": k, "v": v}
        if residual is not None:
            residual = inputs["residual"] = self._residual(residual)
        step_index = self._step_index(step)
        outputs = None if out is None else (out,)
        (y,) = self._outputs(outputs, ("out",), (y_spec,))
        space = self._reserve_space(reserve, self.reserve, training=key.training)
        reserve_array = None if space is None else space.array
        check_outputs(inputs, {"out": y, "reserve": reserve_array})
        arguments = (
            self._attention.ptr,
            step_index,
            *self._bounds,
            self._q,
            q.ptr,
            0 if residual is None else residual.ptr,
            self._k,
            k.ptr,
            self._v,
            v.ptr,
            self._y,
            y.ptr,
            *self._weight_space(weights),
        )
        if space is not None:
            space.begin()
        function = self._handle.api.cudnnMultiHeadAttnForward
        self._run(function, arguments, [*inputs.values(), y], reserve_array)
        if space is None:
            return y  # type: ignore[return-value]
        space.finish(AttentionCall(key, weights, q, k, v))
        return AttentionTrainingOutput(y, space)  # type: ignore[return-value]

    def _residual(self, residual: AnyArray) -> DeviceArray:
        """Return the residual on the device; ArgumentError if it cannot be added to the output."""
        spec = self.spec
        array = self._operand(residual, "residual", self.key.arrays[3])
        if spec.output_size != spec.q_size:
            raise ArgumentError(
                f"residual with outputs of {spec.output_size}; "
                f"cuDNN adds one where they are as long as queries, {spec.q_size}"
            )
        return array

    def _step_index(self, step: int | None) -> int:
        """Return the index of the only step that is computed; -1 for all steps."""
        if step is None:
            return -1
        if self.key.training:
            raise ArgumentError("step is given with training=True, which computes all steps")
        index = integer(step, "step", 0)
        steps = self.key.q.shape[2]
        if index >= steps:
            raise ArgumentError(f"step={step}; allowed: below {steps}")
        return index

    def check_weights(self, weights: Any) -> None:
        """Raise ArgumentError unless the weights are for this attention."""
        self._check_weights(weights)

    @in_range
    def backward_data(
        self,
        reserve: AttentionReserve,
        dy: AnyArray,
        *,
        out: Sequence[AnyArray | None] | None = None,
    ) -> AttentionGradients:
        """Enqueue the backward pass over the data; see `multi_head_attention_backward_data`."""
        self._use()
        call = self._recall(reserve, has_gradients=False)
        spec = self.spec
        if spec.dropout or spec.post_dropout:
            raise ArgumentError(
                f"reserve is of {spec}: with dropout cuDNN 9.19 computes gradients "
                "that are not those of its output"
            )
        dy = self._operand(dy, "dy", self.key.arrays[3])
        inputs = _inputs(call, reserve, dy)
        specs = (call.q.spec, call.k.spec, call.v.spec)
        names = ("dq", "dk", "dv")
        gradients = AttentionGradients(*self._outputs(out, names, specs))
        check_outputs(inputs, gradients._asdict())
        dq, dk, dv = gradients
        arguments = (
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
        )
        steps = self.key.q.shape[2]
        clear = []
        if max(self.key.q_lengths, default=steps) < steps:
            # cuDNN 9.19 does not write dq beyond the longest query (seen on an H200).
            clear.append((dq.ptr, dq.nbytes))
        reserve.begin()
        function = self._handle.api.cudnnMultiHeadAttnBackwardData
        self._run(function, arguments, [*inputs.values(), *gradients], reserve.array, clear)
        reserve.finish(call._replace(dy=dy), has_gradients=True)
        return gradients

    @in_range
    def backward_weights(
        self,
        reserve: AttentionReserve,
        *,
        out: AttentionWeights | None = None,
        accumulate: bool = False,
    ) -> AttentionWeights:
        """Enqueue the backward pass over the weights.

        See `multi_head_attention_backward_weights`.
        """
        self._use()
        call = self._recall(reserve, has_gradients=True)
        dy = call.dy
        assert dy is not None
        inputs = _inputs(call, reserve, dy)
        out = self._gradients(call.weights, out, accumulate, inputs)
        weight_bytes, weights = self._weight_space(call.weights)
        arguments = (
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
            weight_bytes,
            weights,
            out.array.ptr if weight_bytes else 0,
        )
        function = self._handle.api.cudnnMultiHeadAttnBackwardWeights
        self._run(function, arguments, [*inputs.values(), out.array], reserve.array)
        return out

    def _recall(self, reserve: Any, *, has_gradients: bool) -> AttentionCall:
        """Return the forward call of a reserve space; ArgumentError if another plan made it."""
        reserve = AttentionReserve.checked(self._handle, reserve)
        call: AttentionCall = reserve.recall(has_gradients=has_gradients)
        if call.key != self.key:
            raise ArgumentError(f"reserve is of {call.key}; the plan is for {self.key}")
        return call

    def _run(
        self,
        function: Callable[..., None],
        arguments: tuple[Any, ...],
        operands: list[DeviceArray],
        reserve: DeviceArray | None,
        clear: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Make the C call of a pass, with workspace and reserve space."""
        random_states = self._random_states(self.key.dropout_state)
        scratch = self._handle.workspace.reserve(self.workspace, self._handle.stream)
        reserve_address = 0 if reserve is None else reserve.ptr
        spaces = (self.workspace, scratch, self.reserve, reserve_address)
        all_operands = [*operands, *self._lengths, reserve, random_states]
        self._call(function, (self._handle.ptr, *arguments, *spaces), all_operands, clear)

    def _weight_space(self, weights: AttentionWeights) -> tuple[int, int]:
        """Return the size of the weights in bytes, and their address; 0 if there are no weights."""
        address = weights.array.ptr if self._weight_bytes else 0
        return self._weight_bytes, address

    def _explain(self, error: CudnnError) -> None:
        error.involving(spec=self.spec, q=self.key.q, k=self.key.k, v=self.key.v)


def _inputs(
    call: AttentionCall, reserve: AttentionReserve, dy: DeviceArray
) -> dict[str, DeviceArray]:
    """Return the operands that a backward pass reads, by name."""
    return {
        "dy": dy,
        "q": call.q,
        "k": call.k,
        "v": call.v,
        "weights": call.weights.array,
        "reserve": reserve.array,
    }


def kept_plan(handle: Handle, key: AttentionPlanKey) -> AttentionPlan[Any]:
    """Return the plan that the handle keeps for a key."""
    plan: AttentionPlan[Any] = handle.plans.get(key, AttentionPlan, handle, key)
    return plan
