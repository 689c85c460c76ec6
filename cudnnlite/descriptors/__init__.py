"""Descriptors: each owns one native object, is made from a spec, and reads itself back.

They need no device: they belong to the process-wide libcudnn and serve every handle.  (What is the
exception says so.)
"""

from cudnnlite.descriptors.convolution import ConvolutionDescriptor
from cudnnlite.descriptors.dropout import DropoutDescriptor
from cudnnlite.descriptors.native import DESCRIPTORS
from cudnnlite.descriptors.rnn import RNNDataDescriptor, RNNDescriptor, read_rnn
from cudnnlite.descriptors.tensor import FilterDescriptor, TensorDescriptor, check_describable

__all__ = [
    "DESCRIPTORS",
    "ConvolutionDescriptor",
    "DropoutDescriptor",
    "FilterDescriptor",
    "RNNDataDescriptor",
    "RNNDescriptor",
    "TensorDescriptor",
    "check_describable",
    "read_rnn",
]
