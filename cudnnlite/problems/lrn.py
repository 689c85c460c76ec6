"""Local response and divisive normalisation as declarations."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from cudnnlite._raw.enums import DivNormMode, LRNMode
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.operation import (
    SCALARS_OF_FIRST,
    Operation,
    check_alike,
    gradient_of,
)
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layers import LRNSpec

# The only mode that cuDNN has.
_MODE = {"lrnMode": LRNMode.CROSS_CHANNEL_DIM1}
# Operands of divisive normalisation -> the operand whose descriptor is theirs.
_LIKE = {"means": itemgetter("x"), "dy": itemgetter("x"), "dmeans": itemgetter("dx")}


FORWARD = Operation(
    "lrn_forward",
    "cudnnLRNCrossChannelForward",
    reads=("x",),
    writes=("y",),
    infer=lambda x, **_: x,
    options={"norm": LRNSpec},
    in_place=frozenset({"x"}),
    constants=_MODE,
)


BACKWARD = gradient_of(
    FORWARD,
    "cudnnLRNCrossChannelBackward",
    ("y", "dy", "x"),
    in_place=frozenset({"dy"}),
    constants=_MODE,
)


def _divisive(
    name: str,
    function: str,
    reads: tuple[str, ...],
    writes: tuple[str, ...],
    check: Any = check_alike,
) -> Operation:
    """Return one of the four operations of divisive normalisation.

    The header's temp and temp2 are the workspace.  Without means, `means` and `dMeans` are null.
    """

    def infer(x: TensorSpec, norm: LRNSpec, **operands: TensorSpec) -> Any:
        for operand, spec in operands.items():
            if spec.shape != x.shape:
                raise ArgumentError(
                    f"{operand} has shape {spec.shape}; needed: that of x, {x.shape}"
                )
        return (x,) * len(writes)

    constants: dict[str, Any] = {"mode": DivNormMode.PRECOMPUTED_MEANS}
    if "means" not in reads:
        constants |= {"means": None, "dmeans": None}
    return Operation(
        name,
        function,
        reads=reads,
        writes=writes,
        infer=infer,
        options={"norm": LRNSpec},
        names={
            "temp": "workSpace",
            "temp2": "workSpace",
            "dXdMeansDesc": "dxDesc",
            "dMeans": "dmeans",
        },
        without_descriptor={
            operand: _LIKE[operand] for operand in (*reads, *writes) if operand in _LIKE
        },
        also_blended=dict.fromkeys(writes[1:], SCALARS_OF_FIRST),
        constants=constants,
        check=check,
    )


def _check_beta(specs: Any, options: Any) -> None:
    """Raise ArgumentError for a negative beta, with which an H200 does not add the old values."""
    check_alike(specs)
    if options["beta"] < 0:
        raise ArgumentError(
            f"beta={options['beta']!r}; cuDNN ignores a negative one here: allowed from 0 on"
        )


def _check_window(specs: Any, options: Any) -> None:
    """Raise ArgumentError for an even n.

    An H200 sums over the window of the forward call.  With an even n the gradient has another
    window.
    """
    check_alike(specs)
    if options["norm"].n % 2 == 0:
        raise ArgumentError(
            f"norm={options['norm']}: cuDNN computes this gradient wrongly for an even n; "
            "allowed: odd n"
        )


DIVISIVE = _divisive(
    "divisive_normalization_forward",
    "cudnnDivisiveNormalizationForward",
    ("x",),
    ("y",),
    _check_beta,
)


DIVISIVE_AROUND = _divisive(
    "divisive_normalization_forward_around",
    "cudnnDivisiveNormalizationForward",
    ("x", "means"),
    ("y",),
    _check_beta,
)


DIVISIVE_BACKWARD = _divisive(
    "divisive_normalization_backward",
    "cudnnDivisiveNormalizationBackward",
    ("x", "dy"),
    ("dx",),
    _check_window,
)


DIVISIVE_AROUND_BACKWARD = _divisive(
    "divisive_normalization_backward_around",
    "cudnnDivisiveNormalizationBackward",
    ("x", "dy", "means"),
    ("dx", "dmeans"),
    _check_window,
)
