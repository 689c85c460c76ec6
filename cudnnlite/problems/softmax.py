"""Softmax, forward and backward, as declarations."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from cudnnlite.enums import DataType, SoftmaxAlgorithm, SoftmaxMode
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.operation import Operation, check_alike, gradient_of
from cudnnlite.specs import TensorSpec
from cudnnlite.specs.layout import CHANNELS_FIRST, same_strides, span

# The layouts with the channels first, by rank.
_FIRST = {2: "packed", **CHANNELS_FIRST}


def _is_one_row(spec: TensorSpec) -> bool:
    """Return whether all pixels of an image, in their order, have one stride."""
    if spec.rank != 4 or spec.shape[2] == 1:
        return True
    strides = spec.canonical.strides
    return strides[2] == spec.shape[3] * strides[3]


def _is_kernel_known(x: TensorSpec, y: TensorSpec) -> bool:
    """Return whether the strides determine which kernel cuDNN chooses.

    With gaps and an axis of size 1 its choice was not understood: a gradient of (1, 5, 7, 1) with
    strides (7, 63, 1, 7) was NaN.  Images may have one row: cuDNN receives tensors of rank 3 as such
    images, and none of their results was wrong.
    """
    has_gaps = "strided" in (x.canonical.layout, y.canonical.layout)
    sizes = x.shape if x.rank != 4 else (*x.shape[:2], x.shape[3])
    return min(sizes) > 1 or not has_gaps


def _is_wrong_by_channel(x: TensorSpec, y: TensorSpec, algorithm: SoftmaxAlgorithm) -> bool:
    """Return whether cuDNN 9.19 on an H200 reads or writes the wrong pixels in mode CHANNEL.

    If the pixels of x have one stride, it assumes the same of those of y.  In rank 5 with the
    channels innermost it reads gaps, or other orders of the axes, as if there were none.
    """
    if x.canonical.strides == y.canonical.strides:
        if x.canonical.layout == "NDHWC":
            return x.dtype == DataType.DOUBLE
        return x.rank == 5 and x.canonical.strides[1] == 1
    if x.rank > 4 or not _is_kernel_known(x, y):
        return True
    if algorithm == SoftmaxAlgorithm.LOG and x.shape[0] == 1:
        return True
    return x.canonical.strides[-1] == 1 and _is_one_row(x) and not _is_one_row(y)


def _is_wrong_by_instance(x: TensorSpec, y: TensorSpec, algorithm: SoftmaxAlgorithm) -> bool:
    """Return whether cuDNN 9.19 on an H200 reads or writes the wrong pixels in mode INSTANCE.

    Gaps between the images cause this if there are none inside; so do most pairs of layouts.
    """
    first = _FIRST[x.rank]
    if x.canonical.strides == y.canonical.strides:
        has_dense_images = span(x.shape[1:], x.strides[1:]) == prod(x.shape[1:])
        return x.shape[0] > 1 and has_dense_images and span(x.shape, x.strides) != x.size
    is_log = algorithm == SoftmaxAlgorithm.LOG
    return is_log or not _is_kernel_known(x, y) or not y.fits(first)


def _right_mode(specs: Mapping[str, TensorSpec], options: Mapping[str, Any]) -> SoftmaxMode | None:
    """Return the mode that computes the right result; None if no mode does.

    If both modes do, it is the faster one.
    """
    x, *_, y = specs.values()
    mode, algorithm = options["mode"], options["algorithm"]
    # With one pixel an image, both modes are the same.
    has_one_position = x.size == prod(x.shape[:2])
    if not (has_one_position or _is_kernel_known(x, y)):
        return None
    if has_one_position or mode == SoftmaxMode.INSTANCE:
        if not _is_wrong_by_instance(x, y, algorithm):
            return SoftmaxMode.INSTANCE
        if not has_one_position:
            return None
    return None if _is_wrong_by_channel(x, y, algorithm) else SoftmaxMode.CHANNEL


def _check(specs: Mapping[str, TensorSpec], options: Mapping[str, Any]) -> None:
    name, first = next(iter(specs.items()))
    if first.rank < 2:
        raise ArgumentError(f"{name} is {first}; needed: (N, C, *spatial)")


def _check_backward(specs: Mapping[str, TensorSpec], options: Mapping[str, Any]) -> None:
    check_alike(specs)
    _check(specs, options)


def _in_right_mode(
    specs: Mapping[str, TensorSpec], options: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the options with the mode that computes the right result, if there is one."""
    mode = _right_mode(specs, options)
    return options if mode is None else {**options, "mode": mode}


def _packed(problem: Any) -> Any:
    """Return the problem of packed operands if no mode is right with the strides of these."""
    if _right_mode(problem.specs, problem.options) is not None:
        return None
    changes: dict[str, Any] = {
        name: TensorSpec(spec.shape, spec.dtype) for name, spec in problem.specs.items()
    }
    (written,) = problem.operation.writes
    y = problem.specs[written]
    if not same_strides(y.shape, y.strides, changes[written].strides):
        changes["beta"] = 0.0  # the copy back adds the old values
    return problem.replace(**changes)


_OPTIONS = {"algorithm": SoftmaxAlgorithm, "mode": SoftmaxMode}
_NAMES = {"algo": "algorithm"}

FORWARD = Operation(
    "softmax_forward",
    "cudnnSoftmaxForward",
    reads=("x",),
    writes=("y",),
    infer=lambda x, **_: x,
    options=_OPTIONS,
    names=_NAMES,
    in_place=frozenset({"x"}),
    check=_check,
    complete=_in_right_mode,
    packed=_packed,
)


BACKWARD = gradient_of(
    FORWARD,
    "cudnnSoftmaxBackward",
    ("y", "dy"),
    in_place=frozenset({"dy"}),
    complete=_in_right_mode,
    check=_check_backward,
    packed=_packed,
)
