"""Local response and divisive normalisation as declarations."""

from __future__ import annotations

from typing import Any

from cudnnlite._raw.enums import DivNormMode, LRNMode
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.operation import Operation, check_alike, gradient_of
from cudnnlite.sizes import ALLOCATION_ALIGNMENT
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layers import LRNSpec

_MODE = {"lrnMode": LRNMode.CROSS_CHANNEL_DIM1}  # the only one


FORWARD = Operation(
    "lrn_forward",
    "cudnnLRNCrossChannelForward",
    ("x",),
    ("y",),
    lambda x, **_: x,
    {"norm": LRNSpec},
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
    """Return one of the four operations.

    The header's temp and temp2 are its workspace; without means, `means` and `dMeans` are null.
    """

    def _like(x: TensorSpec, norm: LRNSpec, **others: TensorSpec) -> Any:
        for other, spec in others.items():
            if spec.shape != x.shape:
                raise ArgumentError(f"{other} has shape {spec.shape}; needed: that of x, {x.shape}")
        return (x,) * len(writes)

    constants: dict[str, Any] = {"mode": DivNormMode.PRECOMPUTED_MEANS}
    if "means" not in reads:
        constants |= {"means": None, "dmeans": None}
    return Operation(
        name,
        function,
        reads,
        writes,
        _like,
        {"norm": LRNSpec},
        {"temp": "workSpace", "temp2": "workSpace", "dXdMeansDesc": "dxDesc", "dMeans": "dmeans"},
        shared={"means": "x", "dy": "x", "dmeans": "dx"},
        blended_outputs=len(writes),
        scratch=lambda specs: (
            2 * -(-specs["x"].nbytes // ALLOCATION_ALIGNMENT) * ALLOCATION_ALIGNMENT
        ),
        constants=constants,
        check=check,
    )


def _added(specs: Any, options: Any) -> None:
    check_alike(specs)
    if options["beta"] < 0:  # seen on an H200: it leaves out what is there
        raise ArgumentError(
            f"beta={options['beta']!r}; cuDNN ignores a negative one here: allowed from 0 on"
        )


def _odd(specs: Any, options: Any) -> None:
    check_alike(specs)
    if (
        options["norm"].n % 2 == 0
    ):  # seen on an H200: it sums over the window of the forward call, which lies elsewhere
        raise ArgumentError(
            f"norm={options['norm']}: cuDNN computes this gradient wrongly where n is even; "
            "allowed: odd n"
        )


DIVISIVE = _divisive(
    "divisive_normalization_forward", "cudnnDivisiveNormalizationForward", ("x",), ("y",), _added
)


DIVISIVE_AROUND = _divisive(
    "divisive_normalization_forward_around",
    "cudnnDivisiveNormalizationForward",
    ("x", "means"),
    ("y",),
    _added,
)


DIVISIVE_BACKWARD = _divisive(
    "divisive_normalization_backward",
    "cudnnDivisiveNormalizationBackward",
    ("x", "dy"),
    ("dx",),
    _odd,
)


DIVISIVE_AROUND_BACKWARD = _divisive(
    "divisive_normalization_backward_around",
    "cudnnDivisiveNormalizationBackward",
    ("x", "dy", "means"),
    ("dx", "dmeans"),
    _odd,
)
