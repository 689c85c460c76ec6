"""cudnnlite: the thin, Pythonic way to call NVIDIA cuDNN's descriptor API.

>>> import cudnnlite as dnn
>>> with dnn.Handle(device="emulated") as handle:
...     x = handle.array([[[[1.0, 2.0], [3.0, 4.0]]]], dtype="float32")
...     w = handle.array([[[[1.0]]]], dtype="float32")
...     print(dnn.convolution_forward(handle, x, w).numpy().ravel())
[1. 2. 3. 4.]

Importing it loads no library, and next to nothing of its own: a module is imported when a name of it is first asked for.
Making the first descriptor or handle loads libcudnn.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from cudnnlite.version import __version__ as __version__

if TYPE_CHECKING:  # the same names as in the table, for those who read without running
    from cudnnlite import errors as errors, raw as raw
    from cudnnlite.autotune.cache import TuningCache as TuningCache
    from cudnnlite.autotune.model import tune_model as tune_model
    from cudnnlite.autotune.model_tuning import ModelTuning as ModelTuning
    from cudnnlite.autotune.onnx.model import problems_from_onnx as problems_from_onnx
    from cudnnlite.autotune.policy import TuningPolicy as TuningPolicy
    from cudnnlite.autotune.tuned import TunedProblem as TunedProblem
    from cudnnlite.autotune.tuner import Tuner as Tuner, autotuned as autotuned
    from cudnnlite.descriptors import (
        ConvolutionDescriptor as ConvolutionDescriptor,
        DropoutDescriptor as DropoutDescriptor,
        FilterDescriptor as FilterDescriptor,
        RNNDataDescriptor as RNNDataDescriptor,
        RNNDescriptor as RNNDescriptor,
        TensorDescriptor as TensorDescriptor,
    )
    from cudnnlite.descriptors.pooling import PoolingDescriptor as PoolingDescriptor
    from cudnnlite.devices.arrays import DeviceArray as DeviceArray
    from cudnnlite.devices.handle import Handle as Handle
    from cudnnlite.devices.workspace import Workspace as Workspace
    from cudnnlite.enums import (
        TF32 as TF32,
        TRUE_FLOAT32 as TRUE_FLOAT32,
        ConvolutionFwdAlgo as ConvolutionFwdAlgo,
        ConvolutionMode as ConvolutionMode,
        DataType as DataType,
        Determinism as Determinism,
        MathType as MathType,
        NanPropagation as NanPropagation,
        PoolingMode as PoolingMode,
        ReorderType as ReorderType,
        RNNAlgo as RNNAlgo,
        RNNBiasMode as RNNBiasMode,
        RNNDataLayout as RNNDataLayout,
        RNNInputMode as RNNInputMode,
        RNNMode as RNNMode,
        SoftmaxAlgorithm as SoftmaxAlgorithm,
        SoftmaxMode as SoftmaxMode,
        Status as Status,
        TensorFormat as TensorFormat,
    )
    from cudnnlite.errors import (
        AllocationError as AllocationError,
        ArgumentError as ArgumentError,
        ArrayTypeError as ArrayTypeError,
        BadParamError as BadParamError,
        ClosedError as ClosedError,
        CudnnError as CudnnError,
        CudnnliteError as CudnnliteError,
        DeviceMemoryError as DeviceMemoryError,
        ExecutionError as ExecutionError,
        InternalError as InternalError,
        LibraryError as LibraryError,
        LibraryNotFoundError as LibraryNotFoundError,
        MissingPackageError as MissingPackageError,
        MixedLibrariesError as MixedLibrariesError,
        NoAlgorithmError as NoAlgorithmError,
        NoDeviceError as NoDeviceError,
        NotInitializedError as NotInitializedError,
        NotSupportedError as NotSupportedError,
        SymbolNotFoundError as SymbolNotFoundError,
        ThreadError as ThreadError,
        TuningCacheError as TuningCacheError,
        TuningCacheWarning as TuningCacheWarning,
        TuningWarning as TuningWarning,
        WorkspaceLimitError as WorkspaceLimitError,
        WorkspaceLimitWarning as WorkspaceLimitWarning,
    )
    from cudnnlite.operations.convolution import (
        ConvolutionForwardPlan as ConvolutionForwardPlan,
        convolution_forward as convolution_forward,
        find_convolution_forward as find_convolution_forward,
        get_convolution_forward as get_convolution_forward,
        plan_convolution_forward as plan_convolution_forward,
    )
    from cudnnlite.operations.convolution_problem import ConvolutionForwardProblem as ConvolutionForwardProblem
    from cudnnlite.operations.dropout import DropoutState as DropoutState
    from cudnnlite.operations.pooling import pooling_backward as pooling_backward, pooling_forward as pooling_forward
    from cudnnlite.operations.problem_list import (
        ListedProblem as ListedProblem,
        ProblemList as ProblemList,
        SkippedNode as SkippedNode,
    )
    from cudnnlite.operations.recording import record_problems as record_problems
    from cudnnlite.operations.rnn.forward_problem import RNNForwardProblem as RNNForwardProblem
    from cudnnlite.operations.rnn.functions import (
        plan_rnn as plan_rnn,
        rnn_backward_data as rnn_backward_data,
        rnn_backward_weights as rnn_backward_weights,
        rnn_forward as rnn_forward,
    )
    from cudnnlite.operations.rnn.outputs import (
        RNNGradients as RNNGradients,
        RNNOutput as RNNOutput,
        RNNReserve as RNNReserve,
        RNNTrainingOutput as RNNTrainingOutput,
    )
    from cudnnlite.operations.rnn.plan import RNNPlan as RNNPlan
    from cudnnlite.operations.rnn.search import find_rnn_forward as find_rnn_forward
    from cudnnlite.operations.rnn.weights import (
        RNNWeights as RNNWeights,
        WeightLayout as WeightLayout,
        WeightPlace as WeightPlace,
    )
    from cudnnlite.operations.softmax import softmax_backward as softmax_backward, softmax_forward as softmax_forward
    from cudnnlite.search.results import AlgorithmResult as AlgorithmResult, AlgorithmTable as AlgorithmTable
    from cudnnlite.specs import (
        ConvolutionSpec as ConvolutionSpec,
        FilterSpec as FilterSpec,
        RNNDataSpec as RNNDataSpec,
        RNNSpec as RNNSpec,
        TensorSpec as TensorSpec,
    )
    from cudnnlite.specs.pooling import PoolingSpec as PoolingSpec

# What is public, by the module that it is in.
_PUBLIC = {
    "autotune.cache": "TuningCache",
    "autotune.model": "tune_model",
    "autotune.model_tuning": "ModelTuning",
    "autotune.onnx.model": "problems_from_onnx",
    "autotune.policy": "TuningPolicy",
    "autotune.tuned": "TunedProblem",
    "autotune.tuner": "Tuner autotuned",
    "descriptors": (
        "ConvolutionDescriptor DropoutDescriptor FilterDescriptor RNNDataDescriptor RNNDescriptor TensorDescriptor"
    ),
    "descriptors.pooling": "PoolingDescriptor",
    "devices.arrays": "DeviceArray",
    "devices.handle": "Handle",
    "devices.workspace": "Workspace",
    "enums": (
        "TF32 TRUE_FLOAT32 ConvolutionFwdAlgo ConvolutionMode DataType Determinism MathType NanPropagation "
        "PoolingMode ReorderType RNNAlgo RNNBiasMode RNNDataLayout RNNInputMode RNNMode SoftmaxAlgorithm "
        "SoftmaxMode Status TensorFormat"
    ),
    "errors": (
        "AllocationError ArgumentError ArrayTypeError BadParamError ClosedError CudnnError CudnnliteError "
        "DeviceMemoryError ExecutionError InternalError LibraryError LibraryNotFoundError MissingPackageError "
        "MixedLibrariesError NoAlgorithmError NoDeviceError NotInitializedError NotSupportedError "
        "SymbolNotFoundError ThreadError TuningCacheError TuningCacheWarning TuningWarning WorkspaceLimitError "
        "WorkspaceLimitWarning"
    ),
    "operations.convolution": (
        "ConvolutionForwardPlan convolution_forward find_convolution_forward get_convolution_forward "
        "plan_convolution_forward"
    ),
    "operations.convolution_problem": "ConvolutionForwardProblem",
    "operations.dropout": "DropoutState",
    "operations.pooling": "pooling_backward pooling_forward",
    "operations.problem_list": "ListedProblem ProblemList SkippedNode",
    "operations.recording": "record_problems",
    "operations.rnn.forward_problem": "RNNForwardProblem",
    "operations.rnn.functions": "plan_rnn rnn_backward_data rnn_backward_weights rnn_forward",
    "operations.rnn.outputs": "RNNGradients RNNOutput RNNReserve RNNTrainingOutput",
    "operations.rnn.plan": "RNNPlan",
    "operations.rnn.search": "find_rnn_forward",
    "operations.rnn.weights": "RNNWeights WeightLayout WeightPlace",
    "operations.softmax": "softmax_backward softmax_forward",
    "search.results": "AlgorithmResult AlgorithmTable",
    "specs": "ConvolutionSpec FilterSpec RNNDataSpec RNNSpec TensorSpec",
    "specs.pooling": "PoolingSpec",
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _PUBLIC.items() for name in names.split()}

__all__ = ["errors", "raw", *_MODULES]  # noqa: PLE0604
__all__.sort(key=lambda name: (not name.isupper(), not name[0].isupper(), name))

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import what is asked for, and keep it."""
        if name in ("errors", "raw"):
            return import_module(f"{__name__}.{name}")
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
