"""`ActivationSpec`: which function is applied to each value."""

from dataclasses import dataclass

from cudnnlite.arguments import real_number, shown
from cudnnlite.enums import ActivationMode, NanPropagation, parse_enum
from cudnnlite.errors import ArgumentError
from cudnnlite.specs.frozen import FrozenSpec


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ActivationSpec(FrozenSpec):
    """A function of each value by itself: a frozen value, equal and hashable by its fields.

    Parameters
    ----------
    mode : ActivationMode or str
        "sigmoid", "relu", "tanh", "clipped_relu", "elu", "swish" or "identity" (which cuDNN has in fused convolutions only).
    coef : float, optional
        The upper limit of "clipped_relu", the alpha of "elu", the beta of "swish"; 1 if not given.  The others have none.
    nan : NanPropagation or str
        Whether a relu of a NaN is that: "propagate" or "not_propagate".

    Notes
    -----
    C functions: `cudnnSetActivationDescriptor`, `cudnnSetActivationDescriptorSwishBeta`.

    Examples
    --------
    >>> dnn.ActivationSpec("clipped_relu", 6)
    ActivationSpec(mode='CLIPPED_RELU', coef=6.0)
    """

    mode: ActivationMode
    coef: float
    nan: NanPropagation
    named_by = ActivationMode

    def __init__(
        self, mode: ActivationMode | str, coef: float | None = None, *,
        nan: NanPropagation | str = NanPropagation.PROPAGATE,
    ) -> None:  # fmt: skip
        kind, propagation = parse_enum(ActivationMode, mode, "mode"), parse_enum(NanPropagation, nan, "nan")
        has_one = kind in (ActivationMode.CLIPPED_RELU, ActivationMode.ELU, ActivationMode.SWISH)
        value = float(has_one) if coef is None else real_number(coef, "coef")
        if not has_one and value:
            raise ArgumentError(f"coef={shown(coef)} with mode={kind.name}; allowed: 0, it has no coefficient")
        self._freeze(mode=kind, coef=value, nan=propagation)
