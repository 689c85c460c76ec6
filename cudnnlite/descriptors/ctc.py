"""`CTCLossDescriptor`."""

from cudnnlite._raw.types import cudnnCTCLossDescriptor_t
from cudnnlite.descriptors.declared import DeclaredDescriptor
from cudnnlite.specs.ctc import CTCLossSpec


class CTCLossDescriptor(DeclaredDescriptor, describes=CTCLossSpec):
    """A `cudnnCTCLossDescriptor_t`.

    Examples
    --------
    >>> with dnn.CTCLossDescriptor(dnn.CTCLossSpec("none", max_label_length=20)) as ctc_desc:
    ...     print(ctc_desc.read_back())
    CTCLossSpec(normalization='NONE', max_label_length=20)
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
