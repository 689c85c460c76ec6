"""Specs: frozen values for descriptors, with shape inference and without native objects."""

from cudnnlite.specs.convolution import ConvolutionSpec
from cudnnlite.specs.filter import FilterSpec
from cudnnlite.specs.rnn import RNNSpec
from cudnnlite.specs.rnn_data import RNNDataSpec
from cudnnlite.specs.tensor import TensorSpec

__all__ = ["ConvolutionSpec", "FilterSpec", "RNNDataSpec", "RNNSpec", "TensorSpec"]
