"""Softmax, forward and backward, as declarations."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from cudnnlite.enums import DataType, SoftmaxAlgorithm, SoftmaxMode
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.operation import Operation, check_alike, gradient_of
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layout import CHANNELS_FIRST

_FIRST = {2: "packed", **CHANNELS_FIRST}


def _is_one_row(spec: TensorSpec) -> bool:
    """Whether the pixels of an image, in their order, have one stride."""
    if spec.rank != 4 or spec.shape[2] == 1:
        return True
    strides = spec.canonical.strides
    return strides[2] == spec.shape[3] * strides[3]


def _is_known(x: TensorSpec, y: TensorSpec) -> bool:
    """Whether it is known from the strides which kernel cuDNN takes.

    Along axes of size 1, beside gaps, it is not.  Images of one row are passed to cuDNN as arrays
    of rank 3 are: none was wrong.
    """
    sizes = x.shape if x.rank != 4 else (*x.shape[:2], x.shape[3])
    return min(sizes) > 1 or "strided" not in (x.canonical.layout, y.canonical.layout)


def _is_wrong_by_channel(x: TensorSpec, y: TensorSpec, algorithm: SoftmaxAlgorithm) -> bool:
    """Whether cuDNN 9.19 on an H200 reads or writes the wrong pixels in mode CHANNEL.

    It takes the pixels of an image for one row where those of x are one.
    """
    if x.canonical.strides == y.canonical.strides:
        return x.dtype == DataType.DOUBLE and x.canonical.layout == "NDHWC"
    if x.rank > 4 or not _is_known(x, y) or (algorithm == SoftmaxAlgorithm.LOG and x.shape[0] == 1):
        return True
    return x.canonical.strides[-1] == 1 and _is_one_row(x) and not _is_one_row(y)


def _is_wrong_by_instance(x: TensorSpec, y: TensorSpec, algorithm: SoftmaxAlgorithm) -> bool:
    """Whether cuDNN 9.19 on an H200 computes wrongly in mode INSTANCE.

    It does with gaps between images that have none, and between most pairs of layouts.
    """
    first = _FIRST[x.rank]
    if x.canonical.strides == y.canonical.strides:
        image = TensorSpec((1, *x.shape[1:]), x.dtype, strides=x.strides)
        return x.shape[0] > 1 and image.fits(first) and not x.fits(first)
    return algorithm == SoftmaxAlgorithm.LOG or not _is_known(x, y) or not y.fits(first)


def _right_mode(specs: Mapping[str, TensorSpec], options: Mapping[str, Any]) -> SoftmaxMode | None:
    """Return the mode to run, the faster one if both are right; None where neither is."""
    first, *_, written = specs.values()
    mode = options["mode"]
    has_one_position = first.size == prod(first.shape[:2])
    if has_one_position or mode == SoftmaxMode.INSTANCE:
        if not _is_wrong_by_instance(first, written, options["algorithm"]):
            return SoftmaxMode.INSTANCE
        if not has_one_position:
            return None
    return (
        None if _is_wrong_by_channel(first, written, options["algorithm"]) else SoftmaxMode.CHANNEL
    )


def _check(specs: Mapping[str, TensorSpec], options: Mapping[str, Any]) -> None:
    """Refuse what cuDNN 9.19 computes wrongly on an H200, and calls a success."""
    name, first = next(iter(specs.items()))
    if first.rank < 2:
        raise ArgumentError(f"{name} is {first}; needed: (N, C, *spatial)")
    if _right_mode(specs, options) is not None:
        return
    *_, written = specs.values()
    if first.dtype == DataType.DOUBLE and first.layout == "NDHWC":
        raise ArgumentError(
            f"{name} is {first}: in float64 and five dimensions the channels must come first"
        )
    if first.strides == written.strides:
        hint = (
            "images with gaps between them are computed wrongly in mode INSTANCE; "
            ".copy() is without gaps"
        )
        raise ArgumentError(f"{name} is {first}: {hint}")
    hint = (
        f"cuDNN computes it wrongly with mode={options['mode'].name}, "
        f"algorithm={options['algorithm'].name}"
    )
    raise ArgumentError(f"out is {written}, {name} is {first}: {hint}; allowed: the same layout")


def _check_backward(specs: Mapping[str, TensorSpec], options: Mapping[str, Any]) -> None:
    check_alike(specs)
    _check(specs, options)


def _in_right_mode(
    specs: Mapping[str, TensorSpec], options: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the options with the mode that cuDNN computes rightly, the faster one of two."""
    return {**options, "mode": _right_mode(specs, options)}


_OPTIONS, _NAMES = {"algorithm": SoftmaxAlgorithm, "mode": SoftmaxMode}, {"algo": "algorithm"}


FORWARD = Operation(
    "softmax_forward",
    "cudnnSoftmaxForward",
    ("x",),
    ("y",),
    lambda x, **_: x,
    _OPTIONS,
    _NAMES,
    in_place=frozenset({"x"}),
    check=_check,
    complete=_in_right_mode,
)


BACKWARD = gradient_of(
    FORWARD,
    "cudnnSoftmaxBackward",
    ("y", "dy"),
    in_place=frozenset({"dy"}),
    complete=_in_right_mode,
    check=_check_backward,
)
