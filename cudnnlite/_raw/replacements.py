"""What to use instead of the C functions that cuDNN's headers mark as deprecated."""

from __future__ import annotations

# By a part of a C function's name; the first that the name contains counts.
_REPLACEMENTS = {
    "BackendInitialize": "cudnnBackendDestroyDescriptor, then cudnnBackendCreateDescriptor",
    "QueryRuntimeError": "cudnnGetLastErrorString",
    "CTCLossDescriptor": "cudnnSetCTCLossDescriptor_v9 or cudnnGetCTCLossDescriptor_v9",
    "Clip_v8": "cudnnRNNSetClip_v9 or cudnnRNNGetClip_v9",
    "AttnBackward": "dnn.scaled_dot_product_attention_backward, and dnn.matmul_backward_a and _b",
    "Attn": "dnn.scaled_dot_product_attention_forward, with dnn.matmul for the projections",
    "SeqData": "dnn.scaled_dot_product_attention_forward, which takes arrays",
    "Norm": "pointwise operations of a dnn.Graph for inference, or a layer or instance normalization",
    "DeriveBN": "a dnn.Graph, which needs no derived descriptor",
    "Pooling": "resample_forward or resample_backward of a dnn.Graph",
    "ConvolutionBackwardBias": "dnn.convolution_backward_filter of images of ones, a 1x1 filter",
    "Im2Col": "dnn.convolution_forward, which needs no matrix of patches",
    "Algorithm": "dnn.convolution_forward, or a gradient, without an algorithm: an engine is chosen",
    "Convolution": (
        "dnn.convolution_forward, or a gradient, with interface='graph'; dnn.Tuner for find"
    ),
    "FoldedConv": "dnn.convolution_backward_data with interface='graph'",
    "FusedOps": "convolution_forward of a dnn.Graph, with other operations behind it",
    "Reduc": "reduce of a dnn.Graph, behind another operation",
    "Transform": "identity of a dnn.Graph for another data type, or an array made in the layout",
    "Reorder": "a dnn.Graph, whose filters need no other order",
    "Filter": "a call without algorithm= or find, or a dnn.Graph: engines need no filter descriptor",
    "Activation": "pointwise of a dnn.Graph",
    "OpTensor": "pointwise of a dnn.Graph",
    "AddTensor": "pointwise of a dnn.Graph",
    "ScaleTensor": "pointwise of a dnn.Graph",
}


def replacement(function: str) -> str:
    """Return what to use instead of a deprecated C function."""
    return next(text for part, text in _REPLACEMENTS.items() if part in function)
