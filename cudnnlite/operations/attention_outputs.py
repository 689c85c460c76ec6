"""What the calls of multi-head attention return: outputs, gradients, and the reserve space between the two."""

from __future__ import annotations

from typing import Any, NamedTuple

from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.operations.attention_weights import AttentionWeights
from cudnnlite.operations.reserve import TrainingReserve
from cudnnlite.specs import TensorSpec


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
    y: TensorSpec
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
