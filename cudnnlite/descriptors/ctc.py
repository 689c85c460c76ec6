"""`CTCLossDescriptor`."""

from typing import Any

from cudnnlite._raw.types import cudnnCTCLossDescriptor_t
from cudnnlite.descriptors.declared import DeclaredDescriptor
from cudnnlite.enums import DataType
from cudnnlite.specs.ctc import CTCLossSpec


class CTCLossDescriptor(DeclaredDescriptor[cudnnCTCLossDescriptor_t], describes=CTCLossSpec):
    """A `cudnnCTCLossDescriptor_t`; of float32 where the spec has no compute type.

    Examples
    --------
    >>> with dnn.CTCLossDescriptor(dnn.CTCLossSpec("none", max_label_length=20)) as ctc_desc:
    ...     print(ctc_desc.read_back())
    CTCLossSpec(normalization='NONE', max_label_length=20, compute_type='float32')
    """

    _type = cudnnCTCLossDescriptor_t
    _create, _destroy = "cudnnCreateCTCLossDescriptor", "cudnnDestroyCTCLossDescriptor"
    _setter, _getter = "cudnnSetCTCLossDescriptor_v9", "cudnnGetCTCLossDescriptor_v9"
    _arguments = (
        "compType:compute_type",
        "normMode:normalization",
        "ctcGradMode:grad_mode",
        "maxLabelLength:max_label_length",
    )

    def _value(self, field: str) -> Any:
        value = super()._value(field)
        return DataType.FLOAT if value is None else value
