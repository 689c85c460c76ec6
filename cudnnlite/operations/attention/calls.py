"""The operands and results of multi-head attention's passes, and the reserve space between them."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.operations.attention.plan_key import AttentionPlanKey
from cudnnlite.operations.attention.weights import AttentionWeights
from cudnnlite.plans.stateful_plan import TrainingReserve


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
    # "graph" or "descriptor": they have reserve spaces of their own.
    interface: str
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
        The bytes of the reserve space, in a format of its own.
    nbytes : int
        Its size.
    """

    _passes = (
        "multi_head_attention_forward",
        "multi_head_attention_backward_data",
        "multi_head_attention_backward_weights",
    )


class ForwardOperands(NamedTuple):
    """The operands of a forward call, checked; `step` is -1 for all steps."""

    weights: AttentionWeights
    q: DeviceArray
    k: DeviceArray
    v: DeviceArray
    y: DeviceArray
    residual: DeviceArray | None
    step: int


class Spaces(NamedTuple):
    """The addresses of the workspace and of the reserve space of a call; 0 for none."""

    workspace: int
    reserve: int


class AttentionInterface(Protocol):
    """One of cuDNN's interfaces, with all that is decided once for calls of one kind.

    Attributes
    ----------
    workspace, reserve : int
        The bytes that a call needs.
    alignment : int
        Of the operands, in bytes; 1 for any.
    engines : dict of str to AlgorithmResult
        What runs each step; empty for the descriptor call.
    """

    workspace: int
    reserve: int
    alignment: int
    engines: dict[str, Any]

    @property
    def constants(self) -> tuple[DeviceArray, ...]:
        """The plan's own memory on the device, which calls read."""

    def plan_residual(self) -> None:
        """Plan what a forward pass with a residual needs, which may be more workspace."""

    def plan_self_attention(self) -> None:
        """Plan what a forward pass of queries that are the keys and values may do at once."""

    def forward(self, operands: ForwardOperands, spaces: Spaces) -> None:
        """Enqueue the forward pass."""

    def backward_data(
        self, call: AttentionCall, dy: DeviceArray, gradients: AttentionGradients, spaces: Spaces
    ) -> None:
        """Enqueue the backward pass over the data."""

    def backward_weights(
        self, call: AttentionCall, out: AttentionWeights, spaces: Spaces, *, accumulate: bool
    ) -> None:
        """Enqueue the backward pass over the weights."""

    def memory_to_clear(self, dq: DeviceArray) -> list[tuple[int, int]]:
        """Return the memory that the data's backward pass does not write: addresses and bytes."""
