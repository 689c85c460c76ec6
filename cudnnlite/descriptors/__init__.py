"""Descriptors: each owns one native object, is made from a spec, and reads itself back.

They need no device: they belong to the process-wide libcudnn and serve every handle.  (What is the exception says so.)
"""

from cudnnlite.descriptors.convolution import ConvolutionDescriptor, read_convolution_spec
from cudnnlite.descriptors.dropout import DropoutDescriptor
from cudnnlite.descriptors.filter import FilterDescriptor, read_filter_spec
from cudnnlite.descriptors.rnn import RNNDescriptor, read_rnn
from cudnnlite.descriptors.rnn_data import RNNDataDescriptor, read_rnn_data_spec
from cudnnlite.descriptors.tensor import TensorDescriptor, check_describable, read_tensor_spec

__all__ = [
    "ConvolutionDescriptor",
    "DropoutDescriptor",
    "FilterDescriptor",
    "RNNDataDescriptor",
    "RNNDescriptor",
    "TensorDescriptor",
    "check_describable",
    "read_convolution_spec",
    "read_filter_spec",
    "read_rnn",
    "read_rnn_data_spec",
    "read_tensor_spec",
]
