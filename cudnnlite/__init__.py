"""cudnnlite: the thin, Pythonic way to call NVIDIA cuDNN.

>>> import cudnnlite as dnn
>>> with dnn.Handle(device="emulated") as handle:
...     x = handle.array([[[[1.0, 2.0], [3.0, 4.0]]]], dtype="float32")
...     w = handle.array([[[[1.0]]]], dtype="float32")
...     print(dnn.convolution_forward(handle, x, w).numpy().ravel())
[1. 2. 3. 4.]

At the top stand the names of every day:

- `Handle` and `DeviceArray`; specs of tensors, filters, convolutions and layers, `TensorSpec`, ...
- the operations, each a call with functions: `convolution_forward(...)`, `convolution_forward.plan`
- `Graph`: cuDNN's graph API as data; `capture`
- `Tuner`, `autotuned`, `tune_model`, `trace`, `candidates`: the workbench, imported at first use
- four descriptors, `MathType`, `DataType`, and the exceptions that programs catch

`descriptors`, `enums`, `errors`, `specs`, `types` and `workbench` have the rest, `raw` all of C.
Importing cudnnlite loads no library; making the first descriptor or handle does.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from cudnnlite import descriptors, enums, errors, raw, specs, types
from cudnnlite.arguments import refused_as as _refused_as
from cudnnlite.descriptors import (
    ConvolutionDescriptor,
    FilterDescriptor,
    RNNDescriptor,
    TensorDescriptor,
)
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import TF32, TRUE_FLOAT32, DataType, MathType
from cudnnlite.errors import (
    ArgumentError,
    ArrayTypeError,
    CudnnError,
    CudnnliteError,
    DeviceMemoryError,
    NoAlgorithmError,
    NoDeviceError,
    NotSupportedError,
    WorkspaceLimitError,
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
from cudnnlite.operations.layers.ctc import ctc_loss
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
from cudnnlite.operations.rnn.packing import pack_sequences
from cudnnlite.operations.rnn.passes import rnn_backward_data, rnn_backward_weights, rnn_forward
from cudnnlite.operations.rnn.rnn_plan import RNNPlan
from cudnnlite.operations.rnn.weights import RNNWeights
from cudnnlite.other_libraries import MODULE as _MODULE
from cudnnlite.plans.capture import capture
from cudnnlite.plans.operation_plan import OperationPlan
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.problems.table import AlgorithmTable
from cudnnlite.specs import ConvolutionSpec, FilterSpec, RNNSpec, TensorSpec
from cudnnlite.specs.attention import AttentionSpec
from cudnnlite.specs.layers import (
    ActivationSpec,
    CTCLossSpec,
    LRNSpec,
    PoolingSpec,
    SpatialTransformerSpec,
)
from cudnnlite.unknown import c_name_hint as _c_name_hint
from cudnnlite.unknown import meant as _meant
from cudnnlite.version import __version__ as __version__

if TYPE_CHECKING:
    from cudnnlite import workbench
    from cudnnlite.workbench.absent.asking import candidates
    from cudnnlite.workbench.tracing.trace import trace
    from cudnnlite.workbench.tuning.cache import TuningCache
    from cudnnlite.workbench.tuning.model import tune_model
    from cudnnlite.workbench.tuning.onnx.model_problems import problems_from_onnx
    from cudnnlite.workbench.tuning.policy import TuningPolicy
    from cudnnlite.workbench.tuning.problem_list import ProblemList
    from cudnnlite.workbench.tuning.recording import record_problems
    from cudnnlite.workbench.tuning.tune import tune
    from cudnnlite.workbench.tuning.tuner import Tuner, autotuned

__all__ = [
    "TF32",
    "TRUE_FLOAT32",
    "ActivationSpec",
    "AlgorithmResult",
    "AlgorithmTable",
    "ArgumentError",
    "ArrayTypeError",
    "AttentionSpec",
    "AttentionWeights",
    "CTCLossSpec",
    "ConvolutionDescriptor",
    "ConvolutionSpec",
    "CudnnError",
    "CudnnliteError",
    "DataType",
    "DeviceArray",
    "DeviceMemoryError",
    "DropoutState",
    "FilterDescriptor",
    "FilterSpec",
    "Graph",
    "Handle",
    "LRNSpec",
    "MathType",
    "NoAlgorithmError",
    "NoDeviceError",
    "NotSupportedError",
    "OperationPlan",
    "PoolingSpec",
    "ProblemList",
    "RNNDescriptor",
    "RNNPlan",
    "RNNSpec",
    "RNNWeights",
    "SpatialTransformerSpec",
    "TensorDescriptor",
    "TensorSpec",
    "Tuner",
    "TuningCache",
    "TuningPolicy",
    "WorkspaceLimitError",
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
    "descriptors",
    "divisive_normalization_backward",
    "divisive_normalization_forward",
    "dropout_backward",
    "dropout_forward",
    "enums",
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
    "specs",
    "trace",
    "transform_filter",
    "transform_tensor",
    "tune",
    "tune_model",
    "types",
    "workbench",
]

# The modules that have the other public names.
_OTHERS = ("descriptors", "enums", "errors", "specs", "types", "workbench")

# The function of an operation that a name with such a prefix may mean.
_PREFIXES = {
    "plan_": "plan",
    "find_": "find",
    "get_": "heuristic",
}


def _instead(name: str) -> str:
    """Return a hint at what to write instead of a name that there is not, or ''."""
    if name.startswith("_"):  # Tools ask each module for such names; nobody mistyped one.
        return ""
    for prefix, function_name in _PREFIXES.items():
        operation = name.removeprefix(prefix)
        if name.startswith(prefix) and hasattr(globals().get(operation), function_name):
            return f"; it is {operation}.{function_name}"
    for module in _OTHERS:
        if name in import_module(f"{__name__}.{module}").__all__:
            return f"; it is dnn.{module}.{name}"
    if name.endswith("Plan"):  # of an operation or a graph
        return "; it is OperationPlan"
    if name in _MODULE:
        return f"; {_MODULE[name]}"
    hint = _c_name_hint(name)
    return hint if "did you mean" in hint else hint + _meant(name, __all__)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import the workbench, and its names, when they are first used, and keep them."""
        if name not in __all__:  # All others are imported already.
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_instead(name)}")
        # There may be no file descriptor left for what has to be read.
        with _refused_as(CudnnliteError, f"{__name__}.{name} cannot be imported"):
            module = import_module(f"{__name__}.workbench")
        value = module if name == "workbench" else getattr(module, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
