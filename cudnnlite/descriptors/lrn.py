"""`LRNDescriptor`."""

from cudnnlite._raw.types import cudnnLRNDescriptor_t
from cudnnlite.descriptors.declared import DeclaredDescriptor
from cudnnlite.specs.lrn import LRNSpec


class LRNDescriptor(DeclaredDescriptor[cudnnLRNDescriptor_t], describes=LRNSpec):
    """A `cudnnLRNDescriptor_t`.

    Examples
    --------
    >>> with dnn.LRNDescriptor(dnn.LRNSpec(7)) as norm_desc:
    ...     print(norm_desc.read_back())
    LRNSpec(n=7)
    """

    _type = cudnnLRNDescriptor_t
    _create, _destroy = "cudnnCreateLRNDescriptor", "cudnnDestroyLRNDescriptor"
    _setter, _getter = "cudnnSetLRNDescriptor", "cudnnGetLRNDescriptor"
    _arguments = "lrnN:n", "lrnAlpha:alpha", "lrnBeta:beta", "lrnK:k"
