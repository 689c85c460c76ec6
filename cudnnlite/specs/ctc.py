"""`CTCLossSpec`: how a CTC loss is normalised, and what its gradients hold."""

from dataclasses import dataclass
from typing import Any

from cudnnlite.arguments import integer
from cudnnlite.dtypes import parse_dtype
from cudnnlite.enums import CTCGradMode, DataType, LossNormalizationMode, parse_enum
from cudnnlite.specs.frozen import FrozenSpec


@dataclass(frozen=True, init=False, repr=False, eq=False)
class CTCLossSpec(FrozenSpec):
    """How a CTC loss is computed: a frozen value, equal and hashable by its fields.

    Parameters
    ----------
    normalization : LossNormalizationMode or str
        "softmax": what is given are logits, which cuDNN normalises; "none": they are probabilities already.
    grad_mode : CTCGradMode or str
        What becomes of the gradients beyond the end of an input: "zero_oob" writes zeros, "skip_oob" leaves them as they are.
    max_label_length : int
        The longest label that a call may have; 0 for the longest that it has, which only labels on the host tell.
    compute_type : DataType or str, optional
        What is computed in, and the type of the costs; that of the logits if not given, and cuDNN 9.19 takes no other.

    Raises
    ------
    ArgumentError
        A value that is not allowed.

    Notes
    -----
    C function: `cudnnSetCTCLossDescriptor_v9`.

    Examples
    --------
    >>> dnn.CTCLossSpec(normalization="none")
    CTCLossSpec(normalization='NONE')
    """

    normalization: LossNormalizationMode
    grad_mode: CTCGradMode
    max_label_length: int
    compute_type: DataType | None

    def __init__(
        self, normalization: LossNormalizationMode | str = LossNormalizationMode.SOFTMAX,
        grad_mode: CTCGradMode | str = CTCGradMode.ZERO_OOB, max_label_length: int = 0,
        compute_type: Any = None,
    ) -> None:  # fmt: skip
        self._freeze(
            normalization=parse_enum(LossNormalizationMode, normalization, "normalization"),
            grad_mode=parse_enum(CTCGradMode, grad_mode, "grad_mode"),
            max_label_length=integer(max_label_length, "max_label_length", 0),
            compute_type=None if compute_type is None else parse_dtype(compute_type, "compute_type"),
        )
