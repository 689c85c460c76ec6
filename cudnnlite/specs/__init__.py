"""Specs: frozen values for descriptors, with shape inference and without native objects."""

from cudnnlite.specs.attention import AttentionSpec, SeqDataSpec
from cudnnlite.specs.convolution import ConvolutionSpec
from cudnnlite.specs.filter import FilterSpec
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
from cudnnlite.specs.rnn import RNNSpec
from cudnnlite.specs.rnn_data import RNNDataSpec
from cudnnlite.specs.tensor import TensorSpec

__all__ = [
    "ActivationSpec",
    "AttentionSpec",
    "CTCLossSpec",
    "ConvolutionSpec",
    "FilterSpec",
    "LRNSpec",
    "OpTensorSpec",
    "PoolingSpec",
    "RNNDataSpec",
    "RNNSpec",
    "ReduceTensorSpec",
    "SeqDataSpec",
    "SpatialTransformerSpec",
    "TensorSpec",
    "TensorTransformSpec",
]


def __dir__() -> list[str]:
    return sorted(__all__)
