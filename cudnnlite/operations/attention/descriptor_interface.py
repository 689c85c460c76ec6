"""`DescriptorAttention`: multi-head attention by cuDNN's descriptor calls."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from typing import Any

import numpy as np

from cudnnlite._raw.enums import WgradMode
from cudnnlite.descriptors import DropoutDescriptor
from cudnnlite.descriptors.attention import AttentionDescriptor, SeqDataDescriptor
from cudnnlite.descriptors.native import c_ints, device_ints
from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.operations.attention.calls import (
    AttentionCall,
    AttentionGradients,
    ForwardOperands,
    Spaces,
)
from cudnnlite.operations.attention.plan_key import AttentionPlanKey
from cudnnlite.operations.attention.weights import AttentionWeights
from cudnnlite.specs.attention import SeqDataSpec


class DescriptorAttention:
    """Multi-head attention by `cudnnMultiHeadAttnForward` and the calls for its gradients.

    Parameters
    ----------
    handle : Handle
        The handle of the calls.
    key : AttentionPlanKey
        The spec of the attention and of its sequences.
    stack : ExitStack
        Owns the descriptors.
    """

    def __init__(self, handle: Handle, key: AttentionPlanKey, stack: ExitStack) -> None:
        self._handle = handle
        self._key = key
        self._stack = stack
        self.alignment = 1
        self.engines: dict[str, Any] = {}
        self._attention = self._describe_attention()
        self._q = self._describe_sequences(key.q)
        self._k = self._describe_sequences(key.k)
        self._v = self._describe_sequences(key.v)
        self._y = self._describe_sequences(key.y)
        self._query_sizes()
        q_lengths = self._on_device(key.q_lengths)
        kv_lengths = self._on_device(key.kv_lengths)
        self.constants: tuple[DeviceArray, ...] = (q_lengths, kv_lengths)
        low, high = key.window
        self._bounds = (
            c_ints(low),
            c_ints(high),
            device_ints(q_lengths.ptr),
            device_ints(kv_lengths.ptr),
        )

    def _describe_attention(self) -> AttentionDescriptor:
        spec = self._key.spec
        return self._stack.enter_context(
            AttentionDescriptor(
                spec,
                dropout=self._describe_dropout(spec.dropout),
                post_dropout=self._describe_dropout(spec.post_dropout),
                api=self._handle.api,
            )
        )

    def _describe_dropout(self, probability: float) -> DropoutDescriptor | None:
        state = self._key.dropout_state
        if not probability or state is None:
            return None
        return self._stack.enter_context(
            DropoutDescriptor(self._handle, probability, state.array, state.seed)
        )

    def _describe_sequences(self, data: SeqDataSpec) -> Any:
        descriptor = SeqDataDescriptor(data, api=self._handle.api)
        return self._stack.enter_context(descriptor).ptr

    def _query_sizes(self) -> None:
        """Get the sizes of weights, workspace and reserve space from cuDNN."""
        weights, workspace, reserve = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_size_t()
        reserve_size = reserve if self._key.training else None
        self._handle.api.cudnnGetMultiHeadAttnBuffers(
            self._handle.ptr, self._attention.ptr, weights, workspace, reserve_size
        )
        self._weight_bytes = weights.value
        self.workspace = workspace.value
        self.reserve = reserve.value

    def _on_device(self, lengths: tuple[int, ...]) -> DeviceArray:
        handle = self._handle
        return arrays.from_host(handle.device, handle.stream, np.array(lengths, np.int32))

    def plan_self_attention(self) -> None:
        """Do nothing: the C function takes each operand's own address."""

    def plan_residual(self) -> None:
        """Do nothing: the call takes a residual."""

    def forward(self, operands: ForwardOperands, spaces: Spaces) -> None:
        """Enqueue the forward pass."""
        residual = operands.residual
        self._handle.api.cudnnMultiHeadAttnForward(
            self._handle.ptr,
            self._attention.ptr,
            operands.step,
            *self._bounds,
            self._q,
            operands.q.ptr,
            0 if residual is None else residual.ptr,
            self._k,
            operands.k.ptr,
            self._v,
            operands.v.ptr,
            self._y,
            operands.y.ptr,
            *self._weight_space(operands.weights),
            *self._sized(spaces),
        )

    def backward_data(
        self, call: AttentionCall, dy: DeviceArray, gradients: AttentionGradients, spaces: Spaces
    ) -> None:
        """Enqueue the backward pass over the data."""
        dq, dk, dv = gradients
        self._handle.api.cudnnMultiHeadAttnBackwardData(
            self._handle.ptr,
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
            *self._sized(spaces),
        )

    def backward_weights(
        self, call: AttentionCall, out: AttentionWeights, spaces: Spaces, *, accumulate: bool
    ) -> None:
        """Enqueue the backward pass over the weights."""
        assert call.dy is not None
        size, weights = self._weight_space(call.weights)
        gradients = out.array.ptr if size else 0
        mode = WgradMode.ADD if accumulate else WgradMode.SET
        self._handle.api.cudnnMultiHeadAttnBackwardWeights(
            self._handle.ptr,
            self._attention.ptr,
            mode,
            self._q,
            call.q.ptr,
            self._k,
            call.k.ptr,
            self._v,
            call.v.ptr,
            self._y,
            call.dy.ptr,
            size,
            weights,
            gradients,
            *self._sized(spaces),
        )

    def memory_to_clear(self, dq: DeviceArray) -> list[tuple[int, int]]:
        """Return the memory that the backward pass over the data does not write: address and bytes.

        cuDNN 9.19 does not write dq beyond the longest query (seen on an H200).
        """
        steps = self._key.q.shape[2]
        if max(self._key.q_lengths, default=steps) < steps:
            return [(dq.ptr, dq.nbytes)]
        return []

    def _sized(self, spaces: Spaces) -> tuple[int, int, int, int]:
        """Return workspace and reserve space as the last arguments of a call."""
        return self.workspace, spaces.workspace, self.reserve, spaces.reserve

    def _weight_space(self, weights: AttentionWeights) -> tuple[int, int]:
        """Return the size of the weights in bytes, and their address; 0 if there are no weights."""
        address = weights.array.ptr if self._weight_bytes else 0
        return self._weight_bytes, address
