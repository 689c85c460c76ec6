"""cudnnlite: the thin, Pythonic way to call NVIDIA cuDNN.

>>> import cudnnlite as dnn
>>> with dnn.Handle(device="emulated") as handle:
...     x = handle.array([[[[1.0, 2.0], [3.0, 4.0]]]], dtype="float32")
...     w = handle.array([[[[1.0]]]], dtype="float32")
...     print(dnn.convolution_forward(handle, x, w).numpy().ravel())
[1. 2. 3. 4.]

Importing it loads no library; making the first descriptor or handle does.  Names of the workbench,
such as the tuner, are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from cudnnlite import errors, raw
from cudnnlite.arguments import refused_as as _refused_as
from cudnnlite.descriptors import (
    ConvolutionDescriptor,
    DropoutDescriptor,
    FilterDescriptor,
    RNNDataDescriptor,
    RNNDescriptor,
    TensorDescriptor,
)
from cudnnlite.descriptors.attention import AttentionDescriptor, SeqDataDescriptor
from cudnnlite.descriptors.layers import (
    ActivationDescriptor,
    CTCLossDescriptor,
    LRNDescriptor,
    OpTensorDescriptor,
    PoolingDescriptor,
    ReduceTensorDescriptor,
    SpatialTransformerDescriptor,
    TensorTransformDescriptor,
)
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.devices.workspace import Workspace
from cudnnlite.graph.backend_descriptor import BackendDescriptor
from cudnnlite.graph.device_properties import DeviceProperties
from cudnnlite.graph.engines import Engine

# isort: off
from cudnnlite.enums import (
    TF32,
    TRUE_FLOAT32,
    ActivationMode,
    BatchNormMode,
    ConvolutionBwdDataAlgo,
    ConvolutionBwdFilterAlgo,
    ConvolutionFwdAlgo,
    ConvolutionMode,
    CTCGradMode,
    CTCLossAlgo,
    DataType,
    Determinism,
    LossNormalizationMode,
    MathType,
    NanPropagation,
    OpTensorOp,
    PoolingMode,
    ReduceTensorOp,
    ReorderType,
    RNNAlgo,
    RNNBiasMode,
    RNNDataLayout,
    RNNInputMode,
    RNNMode,
    SeqDataAxis,
    SoftmaxAlgorithm,
    SoftmaxMode,
    Status,
    TensorFormat,
)
from cudnnlite.errors import (
    AlignmentWarning,
    AllocationError,
    ArgumentError,
    ArrayTypeError,
    BadParamError,
    CaptureError,
    ClosedError,
    CudnnError,
    CudnnliteError,
    DeviceLostError,
    DeviceMemoryError,
    ExecutionError,
    InternalError,
    LibraryError,
    LibraryNotFoundError,
    MissingPackageError,
    MixedLibrariesError,
    NoAlgorithmError,
    NoDeviceError,
    NotInitializedError,
    NotSupportedError,
    SymbolNotFoundError,
    ThreadError,
    TuningCacheError,
    TuningCacheWarning,
    TuningWarning,
    WorkspaceLimitError,
    WorkspaceLimitWarning,
)

# isort: on
from cudnnlite.graph.tensor import GraphTensor
from cudnnlite.operations.attention.attention_plan import AttentionPlan
from cudnnlite.operations.attention.pass_operands import (
    AttentionGradients,
    AttentionReserve,
    AttentionTrainingOutput,
)
from cudnnlite.operations.attention.passes import (
    multi_head_attention_backward_data,
    multi_head_attention_backward_weights,
    multi_head_attention_forward,
)
from cudnnlite.operations.attention.scaled_dot_product import (
    scaled_dot_product_attention_backward,
    scaled_dot_product_attention_forward,
)
from cudnnlite.operations.attention.weights import AttentionWeights
from cudnnlite.operations.convolution.backward import (
    convolution_backward_data,
    convolution_backward_filter,
    convolution_transpose,
)
from cudnnlite.operations.convolution.bias_gradient import convolution_backward_bias
from cudnnlite.operations.convolution.folding import fold_batch_normalization
from cudnnlite.operations.convolution.forward import convolution_forward
from cudnnlite.operations.convolution.fused import convolution_bias_activation_forward
from cudnnlite.operations.convolution.im2col import im2col
from cudnnlite.operations.graph.graph import Graph
from cudnnlite.operations.layers.activation import activation_backward, activation_forward
from cudnnlite.operations.layers.batch_normalization import (
    batch_normalization_backward,
    batch_normalization_inference,
    batch_normalization_training,
)
from cudnnlite.operations.layers.ctc import CTCLossPlan, ctc_loss
from cudnnlite.operations.layers.dropout import DropoutState, dropout_backward, dropout_forward
from cudnnlite.operations.layers.lrn import (
    divisive_normalization_backward,
    divisive_normalization_forward,
    lrn_backward,
    lrn_forward,
)
from cudnnlite.operations.layers.matmul import matmul
from cudnnlite.operations.layers.matmul_backward import matmul_backward_a, matmul_backward_b
from cudnnlite.operations.layers.normalization import (
    instance_normalization_backward,
    instance_normalization_forward,
    layer_normalization_backward,
    layer_normalization_forward,
    rms_normalization_backward,
    rms_normalization_forward,
)
from cudnnlite.operations.layers.pointwise import (
    add_tensor,
    op_tensor,
    reduce_tensor,
    scale_tensor,
    set_tensor,
)
from cudnnlite.operations.layers.pooling import (
    pooling_backward,
    pooling_forward,
    pooling_with_indices_forward,
)
from cudnnlite.operations.layers.softmax import softmax_backward, softmax_forward
from cudnnlite.operations.layers.spatial_transformer import (
    spatial_transformer_grid,
    spatial_transformer_grid_backward,
    spatial_transformer_sample,
    spatial_transformer_sample_backward,
)
from cudnnlite.operations.layers.transform import transform_filter, transform_tensor
from cudnnlite.operations.rnn.outputs import RNNGradients, RNNOutput, RNNReserve, RNNTrainingOutput
from cudnnlite.operations.rnn.packing import PackedSequences, pack_sequences
from cudnnlite.operations.rnn.passes import (
    rnn_backward_data,
    rnn_backward_weights,
    rnn_forward,
)
from cudnnlite.operations.rnn.rnn_plan import RNNPlan
from cudnnlite.operations.rnn.weights import RNNWeights
from cudnnlite.other_libraries import MODULE as _MODULE
from cudnnlite.plans.capture import CapturedGraph, capture
from cudnnlite.plans.named_weights import WeightLayout, WeightPlace
from cudnnlite.plans.operation_plan import OperationPlan
from cudnnlite.plans.replay import Replay, ReplayCosts
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.problems.table import AlgorithmTable
from cudnnlite.specs import ConvolutionSpec, FilterSpec, RNNDataSpec, RNNSpec, TensorSpec
from cudnnlite.specs.attention import AttentionSpec, SeqDataSpec
from cudnnlite.specs.layers import (
    ActivationSpec,
    CTCLossSpec,
    LRNSpec,
    OpTensorSpec,
    PoolingSpec,
    ReduceTensorSpec,
    SpatialTransformerSpec,
    TensorTransformSpec,
)
from cudnnlite.unknown import c_name_hint as _c_name_hint
from cudnnlite.unknown import meant as _meant
from cudnnlite.version import __version__ as __version__

if TYPE_CHECKING:
    from cudnnlite.workbench.absent.answers import Candidate
    from cudnnlite.workbench.absent.asking import candidates
    from cudnnlite.workbench.absent.candidates import Candidates
    from cudnnlite.workbench.tracing.recorder import TracedCall
    from cudnnlite.workbench.tracing.trace import Trace, trace
    from cudnnlite.workbench.tuning.cache import TuningCache
    from cudnnlite.workbench.tuning.model import tune_model
    from cudnnlite.workbench.tuning.model_tuning import ModelTuning
    from cudnnlite.workbench.tuning.onnx.model_problems import problems_from_onnx
    from cudnnlite.workbench.tuning.policy import TuningPolicy
    from cudnnlite.workbench.tuning.problem_list import ListedProblem, ProblemList, SkippedNode
    from cudnnlite.workbench.tuning.recording import record_problems
    from cudnnlite.workbench.tuning.tuned_problem import TunedProblem
    from cudnnlite.workbench.tuning.tuner import Tuner, autotuned

__all__ = [
    "TF32",
    "TRUE_FLOAT32",
    "ActivationDescriptor",
    "ActivationMode",
    "ActivationSpec",
    "AlgorithmResult",
    "AlgorithmTable",
    "AlignmentWarning",
    "AllocationError",
    "ArgumentError",
    "ArrayTypeError",
    "AttentionDescriptor",
    "AttentionGradients",
    "AttentionPlan",
    "AttentionReserve",
    "AttentionSpec",
    "AttentionTrainingOutput",
    "AttentionWeights",
    "BackendDescriptor",
    "BadParamError",
    "BatchNormMode",
    "CTCGradMode",
    "CTCLossAlgo",
    "CTCLossDescriptor",
    "CTCLossPlan",
    "CTCLossSpec",
    "Candidate",
    "Candidates",
    "CaptureError",
    "CapturedGraph",
    "ClosedError",
    "ConvolutionBwdDataAlgo",
    "ConvolutionBwdFilterAlgo",
    "ConvolutionDescriptor",
    "ConvolutionFwdAlgo",
    "ConvolutionMode",
    "ConvolutionSpec",
    "CudnnError",
    "CudnnliteError",
    "DataType",
    "Determinism",
    "DeviceArray",
    "DeviceLostError",
    "DeviceMemoryError",
    "DeviceProperties",
    "DropoutDescriptor",
    "DropoutState",
    "Engine",
    "ExecutionError",
    "FilterDescriptor",
    "FilterSpec",
    "Graph",
    "GraphTensor",
    "Handle",
    "InternalError",
    "LRNDescriptor",
    "LRNSpec",
    "LibraryError",
    "LibraryNotFoundError",
    "ListedProblem",
    "LossNormalizationMode",
    "MathType",
    "MissingPackageError",
    "MixedLibrariesError",
    "ModelTuning",
    "NanPropagation",
    "NoAlgorithmError",
    "NoDeviceError",
    "NotInitializedError",
    "NotSupportedError",
    "OpTensorDescriptor",
    "OpTensorOp",
    "OpTensorSpec",
    "OperationPlan",
    "PackedSequences",
    "PoolingDescriptor",
    "PoolingMode",
    "PoolingSpec",
    "Problem",
    "ProblemList",
    "RNNAlgo",
    "RNNBiasMode",
    "RNNDataDescriptor",
    "RNNDataLayout",
    "RNNDataSpec",
    "RNNDescriptor",
    "RNNGradients",
    "RNNInputMode",
    "RNNMode",
    "RNNOutput",
    "RNNPlan",
    "RNNReserve",
    "RNNSpec",
    "RNNTrainingOutput",
    "RNNWeights",
    "ReduceTensorDescriptor",
    "ReduceTensorOp",
    "ReduceTensorSpec",
    "ReorderType",
    "Replay",
    "ReplayCosts",
    "SeqDataAxis",
    "SeqDataDescriptor",
    "SeqDataSpec",
    "SkippedNode",
    "SoftmaxAlgorithm",
    "SoftmaxMode",
    "SpatialTransformerDescriptor",
    "SpatialTransformerSpec",
    "Status",
    "SymbolNotFoundError",
    "TensorDescriptor",
    "TensorFormat",
    "TensorSpec",
    "TensorTransformDescriptor",
    "TensorTransformSpec",
    "ThreadError",
    "Trace",
    "TracedCall",
    "TunedProblem",
    "Tuner",
    "TuningCache",
    "TuningCacheError",
    "TuningCacheWarning",
    "TuningPolicy",
    "TuningWarning",
    "WeightLayout",
    "WeightPlace",
    "Workspace",
    "WorkspaceLimitError",
    "WorkspaceLimitWarning",
    "activation_backward",
    "activation_forward",
    "add_tensor",
    "autotuned",
    "batch_normalization_backward",
    "batch_normalization_inference",
    "batch_normalization_training",
    "candidates",
    "capture",
    "convolution_backward_bias",
    "convolution_backward_data",
    "convolution_backward_filter",
    "convolution_bias_activation_forward",
    "convolution_forward",
    "convolution_transpose",
    "ctc_loss",
    "divisive_normalization_backward",
    "divisive_normalization_forward",
    "dropout_backward",
    "dropout_forward",
    "errors",
    "fold_batch_normalization",
    "im2col",
    "instance_normalization_backward",
    "instance_normalization_forward",
    "layer_normalization_backward",
    "layer_normalization_forward",
    "lrn_backward",
    "lrn_forward",
    "matmul",
    "matmul_backward_a",
    "matmul_backward_b",
    "multi_head_attention_backward_data",
    "multi_head_attention_backward_weights",
    "multi_head_attention_forward",
    "op_tensor",
    "pack_sequences",
    "pooling_backward",
    "pooling_forward",
    "pooling_with_indices_forward",
    "problems_from_onnx",
    "raw",
    "record_problems",
    "reduce_tensor",
    "rms_normalization_backward",
    "rms_normalization_forward",
    "rnn_backward_data",
    "rnn_backward_weights",
    "rnn_forward",
    "scale_tensor",
    "scaled_dot_product_attention_backward",
    "scaled_dot_product_attention_forward",
    "set_tensor",
    "softmax_backward",
    "softmax_forward",
    "spatial_transformer_grid",
    "spatial_transformer_grid_backward",
    "spatial_transformer_sample",
    "spatial_transformer_sample_backward",
    "trace",
    "transform_filter",
    "transform_tensor",
    "tune_model",
]

# The modules of the workbench's names.
_WORKBENCH = {
    "Candidate": "absent.answers",
    "Candidates": "absent.candidates",
    "ListedProblem": "tuning.problem_list",
    "ModelTuning": "tuning.model_tuning",
    "ProblemList": "tuning.problem_list",
    "SkippedNode": "tuning.problem_list",
    "Trace": "tracing.trace",
    "TracedCall": "tracing.recorder",
    "TunedProblem": "tuning.tuned_problem",
    "Tuner": "tuning.tuner",
    "TuningCache": "tuning.cache",
    "TuningPolicy": "tuning.policy",
    "autotuned": "tuning.tuner",
    "candidates": "absent.asking",
    "problems_from_onnx": "tuning.onnx.model_problems",
    "record_problems": "tuning.recording",
    "trace": "tracing.trace",
    "tune_model": "tuning.model",
}

# The function of an operation that replaced each prefix of an old name.
_OLD_PREFIXES = {
    "plan_": "plan",
    "find_": "find",
    "get_": "heuristic",
}


def _instead(name: str) -> str:
    """Return a hint at what to write instead of a name that there is not, or ''."""
    if name.startswith("_"):  # Tools ask each module for such names; nobody mistyped one.
        return ""
    for prefix, function_name in _OLD_PREFIXES.items():
        operation = name.removeprefix(prefix)
        if name.startswith(prefix) and hasattr(globals().get(operation), function_name):
            return f"; it is {operation}.{function_name} now"
    if name in _MODULE:
        return f"; {_MODULE[name]}"
    hint = _c_name_hint(name)
    return hint if "did you mean" in hint else hint + _meant(name, __all__)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import names of the workbench when they are first used, and keep them."""
        if name not in _WORKBENCH:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_instead(name)}")
        # There may be no file descriptor left for what has to be read.
        with _refused_as(CudnnliteError, f"{__name__}.{name} cannot be imported"):
            module = import_module(f"{__name__}.workbench.{_WORKBENCH[name]}")
        value = getattr(module, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
