"""Which null pointers C follows, so that they end the process: they are refused before the call."""

from __future__ import annotations

from operator import index
from typing import Any

from cudnnlite._raw.opaque import Opaque
from cudnnlite._raw.record import Function

# By function, the arguments at which C crashes if they are null; an empty set stands for all of
# the function's descriptors and typed pointers.  C answers the other arguments with BAD_PARAM, or
# leaves out a result.  Tried with cuDNN 9.28 and 9.0; where a function needs a GPU, with 9.19 on
# an H200.
_CRASHING_ARGUMENTS: dict[str, frozenset[str]] = {
    f"cudnn{name}": frozenset()
    for name in (
        "BackendCreateDescriptor",
        "CreateLRNDescriptor",
        "DeriveBNTensorDescriptor",
        "DeriveNormTensorDescriptor",
        "DropoutGetReserveSpaceSize",
        "GetActivationDescriptor",
        "GetConvolution2dDescriptor",
        "GetConvolution2dForwardOutputDim",
        "GetConvolutionGroupCount",
        "GetConvolutionMathType",
        "GetConvolutionNdDescriptor",
        "GetFilter4dDescriptor",
        "GetFilterNdDescriptor",
        "GetFilterSizeInBytes",
        "GetOpTensorDescriptor",
        "GetPooling2dDescriptor",
        "GetPooling2dForwardOutputDim",
        "GetPoolingNdDescriptor",
        "GetReduceTensorDescriptor",
        "GetTensorNdDescriptor",
        "GetTensorSizeInBytes",
        "SetConvolutionNdDescriptor",
        "SetFilterNdDescriptor",
        "SetLRNDescriptor",
        "SetPoolingNdDescriptor",
        "SetSeqDataDescriptor",
        "SetTensorNdDescriptor",
        "SetTensorNdDescriptorEx",
    )
} | {
    f"cudnn{name}": frozenset(arguments.split())
    for name, arguments in (
        ("BatchNormalizationBackward", "dBnScaleBiasDesc dxDesc dyDesc xDesc"),
        ("BatchNormalizationBackwardEx", "dBnScaleBiasDesc dxDesc dyDesc handle xDesc"),
        ("BatchNormalizationForwardInference", "bnScaleBiasMeanVarDesc handle xDesc yDesc"),
        (
            "CTCLoss",
            (
                "costs ctcLossDesc gradientsDesc handle hostInputLengths hostLabelLengths probs "
                "probsDesc"
            ),
        ),
        ("CTCLoss_v8", "ctcLossDesc probsDesc"),
        ("DivisiveNormalizationBackward", "dXdMeansDesc handle normDesc xDesc"),
        ("DivisiveNormalizationForward", "handle normDesc xDesc yDesc"),
        ("DropoutBackward", "dxdesc dydesc"),
        ("DropoutForward", "xdesc ydesc"),
        ("DropoutGetStatesSize", "sizeInBytes"),
        ("FusedOpsExecute", "handle plan varPack"),
        (
            "GetCTCLossWorkspaceSize",
            "ctcLossDesc handle inputLengths labelLengths probsDesc sizeInBytes",
        ),
        ("GetCTCLossWorkspaceSize_v8", "ctcLossDesc probsDesc"),
        ("GetConvolutionBackwardDataAlgorithmMaxCount", "count"),
        ("GetConvolutionBackwardFilterAlgorithmMaxCount", "count"),
        ("GetConvolutionForwardAlgorithmMaxCount", "count"),
        ("GetConvolutionForwardAlgorithm_v7", "handle perfResults"),
        ("GetLRNDescriptor", "normDesc"),
        ("GetPoolingNdForwardOutputDim", "inputTensorDesc"),
        ("GetRNNWeightParams", "bAddr mAddr"),
        ("GetReductionIndicesSize", "reduceTensorDesc sizeInBytes"),
        ("GetReductionWorkspaceSize", "aDesc cDesc reduceTensorDesc sizeInBytes"),
        ("GetSeqDataDescriptor", "axes dataType dimA nbDims seqLengthArray seqLengthArraySize"),
        ("GetStream", "streamId"),
        ("Im2Col", "convDesc handle wDesc xDesc"),
        ("InitTransformDest", "srcDesc"),
        ("LRNCrossChannelBackward", "alpha beta dxDesc dyDesc handle normDesc xDesc"),
        ("LRNCrossChannelForward", "alpha beta handle normDesc xDesc yDesc"),
        ("NormalizationBackward", "dNormScaleBiasDesc dxDesc dyDesc normMeanVarDesc xDesc"),
        ("OpTensor", "opTensorDesc"),
        ("RNNBackwardData_v8", "dy"),
        ("ReduceTensor", "reduceTensorDesc workspace"),
        ("SetRNNDataDescriptor", "seqLengthArray"),
        ("SpatialTfGridGeneratorBackward", "stDesc"),
        ("SpatialTfGridGeneratorForward", "stDesc"),
        ("SpatialTfSamplerBackward", "dxDesc dyDesc stDesc xDesc"),
        ("SpatialTfSamplerForward", "alpha beta stDesc xDesc yDesc"),
        ("TransformFilter", "destDesc srcDesc"),
    )
}

# By function and argument, the argument that says how much C reads or writes there.  If that is 0,
# the pointer may be null.
_SIZE_OF = {
    ("cudnnCTCLoss", "gradientsDesc"): "gradients",
    ("cudnnGetSeqDataDescriptor", "seqLengthArray"): "seqLengthSizeRequested",
    ("cudnnGetTensorNdDescriptor", "dimA"): "nbDimsRequested",
    ("cudnnGetTensorNdDescriptor", "strideA"): "nbDimsRequested",
    ("cudnnReduceTensor", "workspace"): "workspaceSizeInBytes",
}


def may_crash(record: Function) -> bool:
    """Tell whether a function has an argument that must not be null."""
    return record.name in _CRASHING_ARGUMENTS


def check_null(record: Function, position: int, arguments: tuple[Any, ...]) -> None:
    """Raise TypeError for a null argument that C would follow."""
    if record.name not in _CRASHING_ARGUMENTS or not _is_followed(record, position):
        return
    size_name = _SIZE_OF.get((record.name, record.argnames[position]))
    if size_name is not None and _is_zero(arguments[record.argnames.index(size_name)]):
        return
    raise TypeError("a null pointer, which C would follow")


def _is_followed(record: Function, position: int) -> bool:
    crashing_arguments = _CRASHING_ARGUMENTS[record.name]
    if crashing_arguments:
        return record.argnames[position] in crashing_arguments
    kind = record.argtypes[position]
    return issubclass(kind, Opaque) or hasattr(kind, "contents")


def _is_zero(size: Any) -> bool:
    """Tell whether a size is 0 or None; it may be anything, as it is checked later."""
    if size is None:
        return True
    try:
        return index(size) == 0
    except TypeError:
        return False
