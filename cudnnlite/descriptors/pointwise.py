"""`OpTensorDescriptor` and `ReduceTensorDescriptor`."""

from cudnnlite._raw.enums import IndicesType
from cudnnlite._raw.types import cudnnOpTensorDescriptor_t, cudnnReduceTensorDescriptor_t
from cudnnlite.descriptors.declared import DeclaredDescriptor
from cudnnlite.specs.pointwise import OpTensorSpec, ReduceTensorSpec


class OpTensorDescriptor(DeclaredDescriptor[cudnnOpTensorDescriptor_t], describes=OpTensorSpec):
    """A `cudnnOpTensorDescriptor_t`.

    Examples
    --------
    >>> with dnn.OpTensorDescriptor(dnn.OpTensorSpec("mul")) as op_desc:
    ...     print(op_desc.read_back())
    OpTensorSpec(op='MUL')
    """

    _type = cudnnOpTensorDescriptor_t
    _create, _destroy = "cudnnCreateOpTensorDescriptor", "cudnnDestroyOpTensorDescriptor"
    _setter, _getter = "cudnnSetOpTensorDescriptor", "cudnnGetOpTensorDescriptor"
    _arguments = "opTensorOp:op", "opTensorNanOpt:nan", "opTensorCompType:compute_type"


class ReduceTensorDescriptor(DeclaredDescriptor[cudnnReduceTensorDescriptor_t], describes=ReduceTensorSpec):
    """A `cudnnReduceTensorDescriptor_t`; indices are of 32 bits, the only ones that cuDNN has.

    Examples
    --------
    >>> with dnn.ReduceTensorDescriptor(dnn.ReduceTensorSpec("avg")) as op_desc:
    ...     print(op_desc.read_back())
    ReduceTensorSpec(op='AVG')
    """

    _type = cudnnReduceTensorDescriptor_t
    _create, _destroy = "cudnnCreateReduceTensorDescriptor", "cudnnDestroyReduceTensorDescriptor"
    _setter, _getter = "cudnnSetReduceTensorDescriptor", "cudnnGetReduceTensorDescriptor"
    _arguments = "reduceTensorOp:op", "reduceTensorNanOpt:nan", "reduceTensorCompType:compute_type", \
        "reduceTensorIndices:indices"  # fmt: skip
    _constants = (("reduceTensorIndicesType", IndicesType.INDICES_32BIT),)
