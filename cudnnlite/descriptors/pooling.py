"""`PoolingDescriptor`."""

from cudnnlite._raw.types import cudnnPoolingDescriptor_t
from cudnnlite.descriptors.declared import SpatialDeclaredDescriptor
from cudnnlite.specs.pooling import PoolingSpec


class PoolingDescriptor(SpatialDeclaredDescriptor[cudnnPoolingDescriptor_t], describes=PoolingSpec):
    """A `cudnnPoolingDescriptor_t`.

    Examples
    --------
    >>> with dnn.PoolingDescriptor(dnn.PoolingSpec((3, 2), stride=2)) as pooling_desc:
    ...     print(pooling_desc.read_back().window)
    (3, 2)
    """

    _type, _missing = cudnnPoolingDescriptor_t, (1, 0, 1)
    _create, _destroy = "cudnnCreatePoolingDescriptor", "cudnnDestroyPoolingDescriptor"
    _setter, _getter = "cudnnSetPoolingNdDescriptor", "cudnnGetPoolingNdDescriptor"
    _arguments = "mode", "maxpoolingNanOpt:nan", "windowDimA:window", "paddingA:padding", "strideA:stride"
