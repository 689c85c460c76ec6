"""`AttentionPlan`: the descriptors of multi-head attention over sequences of one kind.

It is no `OperationPlan`, because only cuDNN knows the layout of the weights, and because the passes
share a reserve space.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

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
from cudnnlite.operations.attention.plan_key import AttentionPlanKey
from cudnnlite.operations.attention.weights import AttentionWeights
from cudnnlite.plans.stateful_plan import StatefulPlan, TrainingReserve, check_outputs
from cudnnlite.specs.attention import SeqDataSpec

# DeviceArray, or AttentionTrainingOutput.
OutputT = TypeVar("OutputT")


class AttentionTrainingOutput(NamedTuple):
    """The results of a forward call in training.

    Attributes
    ----------
    y : DeviceArray
        The output.
    reserve : AttentionReserve
        The reserve space, for the backward passes.
    """

    y: DeviceArray
    reserve: AttentionReserve


class AttentionGradients(NamedTuple):
    """The results of the backward pass over the data.

    Attributes
    ----------
    dq, dk, dv : DeviceArray
        The gradients of q, k and v, with their layouts; 0 beyond a sequence's end.
    """

    dq: DeviceArray
    dk: DeviceArray
    dv: DeviceArray


class AttentionCall(NamedTuple):
    """The operands of a training call, which the backward passes need again."""

    key: AttentionPlanKey
    weights: AttentionWeights
    q: DeviceArray
    k: DeviceArray
    v: DeviceArray
    # The gradient of y, after the backward pass over the data.
    dy: DeviceArray | None = None


class AttentionReserve(TrainingReserve[AttentionCall]):
    """The reserve space of one training call, with the operands that the backward passes need.

    It keeps the operands of the forward call alive.  They must not be overwritten before the
    backward passes are done.

    Attributes
    ----------
    array : DeviceArray
        The bytes of the reserve space, in a format of cuDNN's own.
    nbytes : int
        Its size.
    """

    _passes = (
        "multi_head_attention_forward",
        "multi_head_attention_backward_data",
        "multi_head_attention_backward_weights",
    )


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
    """

    _weights_type, _reserve_type = AttentionWeights, AttentionReserve

    def __init__(self, handle: Handle, key: AttentionPlanKey) -> None:
        super().__init__(handle, f"AttentionPlan of {key.spec}")
        self.key = key
        self.spec = key.spec
        self._weights_kind = key.spec.weights_of()
        try:
            self._attention = self._describe_attention()
            self._q = self._describe_sequences(key.q)
            self._k = self._describe_sequences(key.k)
            self._v = self._describe_sequences(key.v)
            self._y = self._describe_sequences(key.y)
            self._query_sizes()
            self._q_lengths = self._on_device(key.q_lengths)
            self._kv_lengths = self._on_device(key.kv_lengths)
            low, high = key.window
            self._bounds = (
                c_ints(low),
                c_ints(high),
                device_ints(self._q_lengths.ptr),
                device_ints(self._kv_lengths.ptr),
            )
        except BaseException:
            self.close()
            raise

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

    def _query_sizes(self) -> None:
        """Get the sizes of weights, workspace and reserve space from cuDNN."""
        weights, workspace, reserve = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_size_t()
        reserve_size = reserve if self.key.training else None
        self._handle.api.cudnnGetMultiHeadAttnBuffers(
            self._handle.ptr, self._attention.ptr, weights, workspace, reserve_size
        )
        self._weight_bytes = weights.value
        self.workspace = workspace.value
        self.reserve = reserve.value

    def _on_device(self, lengths: tuple[int, ...]) -> DeviceArray:
        return arrays.from_host(self._device, self._handle.stream, np.array(lengths, np.int32))

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
        self.use()
        key, handle = self.key, self._handle
        self._check_weights(weights)
        q_spec, k_spec, v_spec, y_spec = key.arrays
        q = self._operand(q, "q", q_spec)
        k = self._operand(k, "k", k_spec)
        v = self._operand(v, "v", v_spec)
        inputs = {"weights": weights.array, "q": q, "k": k, "v": v}
        residual_address = 0
        if residual is not None:
            inputs["residual"] = self._residual(residual)
            residual_address = inputs["residual"].ptr
        step_index = self._step_index(step)
        outputs = None if out is None else (out,)
        (y,) = self._outputs(outputs, ("out",), (y_spec,))
        space = self._reserve_space(reserve, self.reserve, training=key.training)
        reserve_array = None if space is None else space.array
        check_outputs(inputs, {"out": y, "reserve": reserve_array})
        if space is not None:
            space.begin()
        self._run(
            handle.api.cudnnMultiHeadAttnForward,
            [*inputs.values(), y],
            (
                handle.ptr,
                self._attention.ptr,
                step_index,
                *self._bounds,
                self._q,
                q.ptr,
                residual_address,
                self._k,
                k.ptr,
                self._v,
                v.ptr,
                self._y,
                y.ptr,
                *self._weight_space(weights),
            ),
            reserve_array,
        )
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

    def backward_data(
        self,
        reserve: AttentionReserve,
        dy: AnyArray,
        *,
        out: Sequence[AnyArray | None] | None = None,
    ) -> AttentionGradients:
        """Enqueue the backward pass over the data; see `multi_head_attention_backward_data`."""
        self.use()
        call = self._recall(reserve, has_gradients=False)
        handle, spec = self._handle, self.spec
        if spec.dropout or spec.post_dropout:
            raise ArgumentError(
                f"reserve is of {spec}: with dropout cuDNN 9.19 computes gradients "
                "that are not those of its output"
            )
        dy = self._operand(dy, "dy", self.key.arrays[3])
        inputs = _inputs(call, reserve, dy)
        specs = (call.q.spec, call.k.spec, call.v.spec)
        dq, dk, dv = self._outputs(out, ("dq", "dk", "dv"), specs)
        check_outputs(inputs, {"dq": dq, "dk": dk, "dv": dv})
        reserve.begin()
        self._run(
            handle.api.cudnnMultiHeadAttnBackwardData,
            [*inputs.values(), dq, dk, dv],
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
        self,
        reserve: AttentionReserve,
        *,
        out: AttentionWeights | None = None,
        accumulate: bool = False,
    ) -> AttentionWeights:
        """Enqueue the backward pass over the weights.

        See `multi_head_attention_backward_weights`.
        """
        self.use()
        call = self._recall(reserve, has_gradients=True)
        handle, dy = self._handle, call.dy
        assert dy is not None
        inputs = _inputs(call, reserve, dy)
        out = self._gradients(call.weights, out, accumulate, inputs)
        size, weights = self._weight_space(call.weights)
        gradients = out.array.ptr if size else 0
        mode = WgradMode.ADD if accumulate else WgradMode.SET
        self._run(
            handle.api.cudnnMultiHeadAttnBackwardWeights,
            [*inputs.values(), out.array],
            (
                handle.ptr,
                self._attention.ptr,
                mode,
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
                gradients,
            ),
            reserve.array,
        )
        return out

    def _recall(self, reserve: Any, *, has_gradients: bool) -> AttentionCall:
        """Return the forward call of a reserve space; ArgumentError if another plan made it."""
        reserve = AttentionReserve.checked(self._handle, reserve)
        call: AttentionCall = reserve.recall(has_gradients=has_gradients)
        if call.key != self.key:
            raise ArgumentError(f"reserve is of {call.key}; the plan is for {self.key}")
        return call

    def _unwritten_by_cudnn(self, dq: DeviceArray) -> list[tuple[int, int]]:
        """Return the memory to clear before the backward pass over the data: address and bytes.

        cuDNN 9.19 does not write dq beyond the longest query (seen on an H200).
        """
        steps = self.key.q.shape[2]
        if max(self.key.q_lengths, default=steps) < steps:
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
        """Make a C call; workspace and reserve space are its last arguments."""
        random_states = self._random_states(self.key.dropout_state)
        all_operands = [*operands, self._q_lengths, self._kv_lengths, reserve, random_states]
        scratch = self._handle.workspace.reserve(self.workspace, self._handle.stream)
        reserve_address = 0 if reserve is None else reserve.ptr
        self._call(
            function,
            (*arguments, self.workspace, scratch, self.reserve, reserve_address),
            all_operands,
            clear,
        )

    def _explain(self, error: CudnnError) -> None:
        error.involving(spec=self.spec, q=self.key.q, k=self.key.k, v=self.key.v)

    def _weight_space(self, weights: AttentionWeights) -> tuple[int, int]:
        """Return the size of the weights in bytes, and their address; 0 if there are no weights."""
        address = weights.array.ptr if self._weight_bytes else 0
        return self._weight_bytes, address


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
