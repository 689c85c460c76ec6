"""The gradients of a convolution as declarations."""

from __future__ import annotations

from contextlib import suppress

from cudnnlite._raw.types import (
    cudnnConvolutionBwdDataAlgoPerf_t,
    cudnnConvolutionBwdFilterAlgoPerf_t,
)
from cudnnlite.enums import ConvolutionBwdDataAlgo, ConvolutionBwdFilterAlgo
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.convolution import COMMON, flops, words
from cudnnlite.problems.operation import FLOATS, Algorithms, Description, Operation
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec
from cudnnlite.specs.layout import CHANNELS_FIRST, CHANNELS_LAST
from cudnnlite.specs.steps import SAME


def _image_spec(
    w: FilterSpec, dy: TensorSpec, conv: ConvolutionSpec, dx: TensorSpec | None
) -> TensorSpec:
    """Return the spec of dx: the one that was passed, or the only possible one with stride 1."""
    _check_ranks(w, dy)
    if dx is not None:
        _check_result(conv, dx.shape, w.shape, dy)
        return dx
    spatial = dy.rank - 2
    # An image with "same" padding has the size of dy.
    conv = conv.for_shapes(dy.shape, w.shape)
    _, stride, dilation = conv.steps(spatial)
    _check_stride("x", conv, stride)
    axes = zip(dy.shape[2:], w.shape[2:], conv.pads(spatial), dilation, strict=True)
    image = [size + step * (taps - 1) - sum(pad) for size, taps, pad, step in axes]
    if min(image) < 1:
        raise ArgumentError(
            f"dy {dy.shape} is the result of no image, with w {w.shape} and padding={conv.padding}"
        )
    return dy.packed((dy.shape[0], w.shape[1] * conv.groups, *image))


def _filter_spec(
    x: TensorSpec, dy: TensorSpec, conv: ConvolutionSpec, dw: FilterSpec | None
) -> FilterSpec:
    """Return the spec of dw: the one that was passed, or the only possible one with stride 1."""
    _check_ranks(x, dy)
    try:
        w = _only_filter_spec(x, dy, conv) if dw is None else dw
        _check_result(conv, x.shape, w.shape, dy)
    except ArgumentError as error:
        if _is_result(conv, dy, dw, x):
            raise ArgumentError(f"{error}; x and dy are probably swapped: x comes first") from error
        raise
    return w


def _is_result(conv: ConvolutionSpec, x: TensorSpec, dw: FilterSpec | None, dy: TensorSpec) -> bool:
    """Return whether dy can be a result of x, with the shape of dw if that was passed."""
    with suppress(ArgumentError):
        w = _only_filter_spec(x, dy, conv) if dw is None else dw
        return conv.output_shape(x.shape, w.shape) == dy.shape
    return False


def _only_filter_spec(x: TensorSpec, dy: TensorSpec, conv: ConvolutionSpec) -> FilterSpec:
    """Return the spec of the only filter that leads from x to dy with stride 1."""
    if conv.padding == SAME:
        raise ArgumentError(
            f"w=w.spec, its shape, or out has to be given: with padding={SAME!r} filters of all "
            "sizes give results of one size"
        )
    spatial = dy.rank - 2
    _, stride, dilation = conv.steps(spatial)
    _check_stride("w", conv, stride)
    axes = zip(x.shape[2:], dy.shape[2:], conv.pads(spatial), dilation, strict=True)
    # The distance from the first to the last tap in steps of the dilation, and the remainder.
    distances = [divmod(size + sum(pad) - out, step) for size, out, pad, step in axes]
    is_possible = all(taps >= 0 and rest == 0 for taps, rest in distances)
    if not is_possible or x.shape[1] % conv.groups:
        raise ArgumentError(f"no filter brings x {x.shape} to dy {dy.shape}, with {conv}")
    sizes = [taps + 1 for taps, _ in distances]
    layout = (CHANNELS_LAST if x.is_channels_last else CHANNELS_FIRST)[x.rank]
    return FilterSpec((dy.shape[1], x.shape[1] // conv.groups, *sizes), x.dtype, layout)


def _check_ranks(first: TensorSpec | FilterSpec, dy: TensorSpec) -> None:
    """Raise ArgumentError unless the operands have one rank, from 3 to 5."""
    if first.rank != dy.rank or dy.rank not in CHANNELS_FIRST:
        name = "w" if isinstance(first, FilterSpec) else "x"
        raise ArgumentError(
            f"{name} of rank {first.rank} and dy of rank {dy.rank}; "
            "both must be of the same rank 3, 4 or 5"
        )


def _check_stride(name: str, conv: ConvolutionSpec, stride: tuple[int, ...]) -> None:
    """Raise ArgumentError if several sizes of the operand of that name are possible."""
    if max(stride) > 1:
        raise ArgumentError(
            f"{name}={name}.spec, its shape, or out has to be given: "
            f"with stride={conv.stride} several sizes of {name} give results of one size"
        )


def _check_result(
    conv: ConvolutionSpec, x: tuple[int, ...], w: tuple[int, ...], dy: TensorSpec
) -> None:
    """Raise ArgumentError unless dy has the shape of the convolution's result.

    One of the shapes of x and w is that of `out`.
    """
    try:
        expected = conv.output_shape(x, w)
    except ArgumentError as error:
        raise ArgumentError(
            f"{error} (out is the gradient of one of them, and has its shape)"
        ) from error
    if dy.shape != expected:
        raise ArgumentError(
            f"dy has shape {dy.shape}; the result of x {x} and w {w} has {expected} "
            "(out is the gradient of one of them, and has its shape)"
        )


DATA = Operation(
    "convolution_backward_data",
    "cudnnConvolutionBackwardData",
    reads=("w", "dy"),
    writes=("dx",),
    infer=_image_spec,
    names={"filterDesc": "wDesc", "diffDesc": "dyDesc", "gradDesc": "dxDesc"},
    dtypes=FLOATS,
    shape_from_out=True,
    algorithms=Algorithms(
        ConvolutionBwdDataAlgo,
        cudnnConvolutionBwdDataAlgoPerf_t,
        "cudnnGetConvolutionBackwardDataAlgorithmMaxCount",
        "cudnnGetConvolutionBackwardDataAlgorithm_v7",
        "cudnnFindConvolutionBackwardDataAlgorithmEx",
        "cudnnGetConvolutionBackwardDataWorkspaceSize",
        graph="OPERATION_CONVOLUTION_BACKWARD_DATA",
        filters=frozenset({"w"}),
    ),
    description=Description(
        flops=lambda problem: flops(problem.dy, problem.w),
        words=lambda problem: f"gradient of x: {words(problem)}",
    ),
    **COMMON,
)
FILTER = Operation(
    "convolution_backward_filter",
    "cudnnConvolutionBackwardFilter",
    reads=("x", "dy"),
    writes=("dw",),
    infer=_filter_spec,
    # The search has y in place of dy.
    names={"srcDesc": "xDesc", "diffDesc": "dyDesc", "gradDesc": "dwDesc", "y": "dy"},
    dtypes=FLOATS,
    shape_from_out=True,
    algorithms=Algorithms(
        ConvolutionBwdFilterAlgo,
        cudnnConvolutionBwdFilterAlgoPerf_t,
        "cudnnGetConvolutionBackwardFilterAlgorithmMaxCount",
        "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
        "cudnnFindConvolutionBackwardFilterAlgorithmEx",
        "cudnnGetConvolutionBackwardFilterWorkspaceSize",
        graph="OPERATION_CONVOLUTION_BACKWARD_FILTER",
        filters=frozenset({"dw"}),
    ),
    description=Description(
        flops=lambda problem: flops(problem.dy, problem.dw),
        words=lambda problem: f"gradient of w: {words(problem)}",
    ),
    **COMMON,
)
