"""Descriptors: each owns one native object, is made from a spec, and reads itself back.

They need no device: they belong to the process-wide libcudnn and serve every handle.  (What is the
exception says so.)
"""

from cudnnlite.descriptors.attention import AttentionDescriptor, SeqDataDescriptor
from cudnnlite.descriptors.convolution import ConvolutionDescriptor
from cudnnlite.descriptors.dropout import DropoutDescriptor
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
from cudnnlite.descriptors.rnn import RNNDataDescriptor, RNNDescriptor
from cudnnlite.descriptors.tensor import FilterDescriptor, TensorDescriptor

__all__ = [
    "ActivationDescriptor",
    "AttentionDescriptor",
    "CTCLossDescriptor",
    "ConvolutionDescriptor",
    "DropoutDescriptor",
    "FilterDescriptor",
    "LRNDescriptor",
    "OpTensorDescriptor",
    "PoolingDescriptor",
    "RNNDataDescriptor",
    "RNNDescriptor",
    "ReduceTensorDescriptor",
    "SeqDataDescriptor",
    "SpatialTransformerDescriptor",
    "TensorDescriptor",
    "TensorTransformDescriptor",
]


def __dir__() -> list[str]:
    return sorted(__all__)
