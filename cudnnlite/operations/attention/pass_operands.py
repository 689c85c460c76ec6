"""The operands and results of multi-head attention's passes, and the reserve space between them."""

from __future__ import annotations

from typing import NamedTuple

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
