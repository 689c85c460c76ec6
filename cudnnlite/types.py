"""Types that are seldom written: of what functions return, for annotations; a few to be made.

- of recurrent networks: `RNNOutput`, `RNNTrainingOutput`, `RNNReserve`, `RNNGradients`,
  `PackedSequences`; of multi-head attention: `AttentionTrainingOutput`, `AttentionReserve`,
  `AttentionGradients`; of weights: `WeightLayout`, `WeightPlace`
- plans that keep state: `AttentionPlan`, `CTCLossPlan`; what a plan knows: `Problem`, `Engine`,
  `Replay`, `ReplayCosts`
- of graphs: `GraphTensor`, `CapturedGraph`, `DeviceProperties`, `BackendDescriptor`
- of a handle: `Workspace`
"""

from cudnnlite.devices.workspace import Workspace
from cudnnlite.graph.backend_descriptor import BackendDescriptor
from cudnnlite.graph.device_properties import DeviceProperties
from cudnnlite.graph.engines import Engine
from cudnnlite.graph.tensor import GraphTensor
from cudnnlite.operations.attention.attention_plan import AttentionPlan
from cudnnlite.operations.attention.pass_operands import (
    AttentionGradients,
    AttentionReserve,
    AttentionTrainingOutput,
)
from cudnnlite.operations.layers.ctc import CTCLossPlan
from cudnnlite.operations.rnn.outputs import RNNGradients, RNNOutput, RNNReserve, RNNTrainingOutput
from cudnnlite.operations.rnn.packing import PackedSequences
from cudnnlite.plans.capture import CapturedGraph
from cudnnlite.plans.named_weights import WeightLayout, WeightPlace
from cudnnlite.plans.replay import Replay, ReplayCosts
from cudnnlite.problems.problem import Problem

__all__ = [
    "AttentionGradients",
    "AttentionPlan",
    "AttentionReserve",
    "AttentionTrainingOutput",
    "BackendDescriptor",
    "CTCLossPlan",
    "CapturedGraph",
    "DeviceProperties",
    "Engine",
    "GraphTensor",
    "PackedSequences",
    "Problem",
    "RNNGradients",
    "RNNOutput",
    "RNNReserve",
    "RNNTrainingOutput",
    "Replay",
    "ReplayCosts",
    "WeightLayout",
    "WeightPlace",
    "Workspace",
]


def __dir__() -> list[str]:
    return sorted(__all__)
