"""The gradients of a convolution as declarations."""

from __future__ import annotations

from cudnnlite._raw.types import (
    cudnnConvolutionBwdDataAlgoPerf_t,
    cudnnConvolutionBwdFilterAlgoPerf_t,
)
from cudnnlite.enums import ConvolutionBwdDataAlgo, ConvolutionBwdFilterAlgo
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.convolution import COMMON, flops, words
from cudnnlite.problems.operation import FLOATS, Algorithms, Operation
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec
from cudnnlite.specs.layout import CHANNELS_FIRST, CHANNELS_LAST

Steps = tuple[tuple[int, ...], ...]


def _image_spec(
    w: FilterSpec, dy: TensorSpec, conv: ConvolutionSpec, dx: TensorSpec | None
) -> TensorSpec:
    """Return the spec of dx: as it was given, or with stride 1 the only one that there is."""
    padding, _, dilation = _steps(conv, w, dy, "" if dx else "x")
    if dx is None:
        axes = zip(dy.shape[2:], w.shape[2:], padding, dilation, strict=True)
        image = [size + step * (taps - 1) - 2 * pad for size, taps, pad, step in axes]
        if min(image) < 1:
            raise ArgumentError(
                f"dy {dy.shape} is the result of no image, "
                f"with w {w.shape} and padding={conv.padding}"
            )
        return dy.packed((dy.shape[0], w.shape[1] * conv.groups, *image))
    _check_result(conv, dx.shape, w.shape, dy)
    return dx


def _filter_spec(
    x: TensorSpec, dy: TensorSpec, conv: ConvolutionSpec, dw: FilterSpec | None
) -> FilterSpec:
    """Return the spec of dw: as it was given, or with stride 1 the only one that there is."""
    padding, _, dilation = _steps(conv, x, dy, "" if dw else "w")
    if dw is None:
        axes = zip(x.shape[2:], dy.shape[2:], padding, dilation, strict=True)
        reach = [divmod(size + 2 * pad - out, step) for size, out, pad, step in axes]
        if (
            min(far for far, _ in reach) < 0
            or any(rest for _, rest in reach)
            or x.shape[1] % conv.groups
        ):
            raise ArgumentError(f"no filter brings x {x.shape} to dy {dy.shape}, with {conv}")
        layout = (CHANNELS_LAST if x.is_channels_last else CHANNELS_FIRST)[x.rank]
        dw = FilterSpec(
            (dy.shape[1], x.shape[1] // conv.groups, *(far + 1 for far, _ in reach)),
            x.dtype,
            layout,
        )
    _check_result(conv, x.shape, dw.shape, dy)
    return dw


def _steps(
    conv: ConvolutionSpec, first: TensorSpec | FilterSpec, dy: TensorSpec, missing: str
) -> Steps:
    """Return padding, stride and dilation of each axis.

    ArgumentError where they do not determine the shape of the operand `missing`.
    """
    if first.rank != dy.rank or dy.rank not in CHANNELS_FIRST:
        name = "w" if isinstance(first, FilterSpec) else "x"
        raise ArgumentError(
            f"{name} of rank {first.rank} and dy of rank {dy.rank}; "
            "both must be of the same rank 3, 4 or 5"
        )
    if not conv.is_symmetric:
        raise ArgumentError(
            f"padding={conv.padding}; allowed for gradients: the same at both ends of an axis"
        )
    steps = conv.steps(dy.rank - 2)
    if missing and max(steps[1]) > 1:
        raise ArgumentError(
            f"{missing}={missing}.spec, its shape, or out has to be given: "
            f"with stride={conv.stride} several sizes of "
            f"{missing} give results of one size"
        )
    return steps


def _check_result(
    conv: ConvolutionSpec, x: tuple[int, ...], w: tuple[int, ...], dy: TensorSpec
) -> None:
    """Raise ArgumentError unless dy has the shape of the convolution's result.

    One of x and w is the spec of `out`.
    """
    try:
        expected = conv.output_shape(x, w)
    except ArgumentError as error:
        raise ArgumentError(
            f"{error} (out is the gradient of one of them, and shaped as it)"
        ) from error
    if dy.shape != expected:
        raise ArgumentError(
            f"dy has shape {dy.shape}; x {x} and w {w}, one of which out is shaped as, "
            f"have a result of {expected}"
        )


DATA = Operation(
    "convolution_backward_data",
    "cudnnConvolutionBackwardData",
    ("w", "dy"),
    ("dx",),
    _image_spec,
    names={"filterDesc": "wDesc", "diffDesc": "dyDesc", "gradDesc": "dxDesc"},
    dtypes=FLOATS,
    filters=frozenset({"w"}),
    shape_from_out=True,
    algorithms=Algorithms(
        ConvolutionBwdDataAlgo,
        cudnnConvolutionBwdDataAlgoPerf_t,
        "cudnnGetConvolutionBackwardDataAlgorithmMaxCount",
        "cudnnGetConvolutionBackwardDataAlgorithm_v7",
        "cudnnFindConvolutionBackwardDataAlgorithmEx",
        "cudnnGetConvolutionBackwardDataWorkspaceSize",
        graph="OPERATION_CONVOLUTION_BACKWARD_DATA",
    ),
    flops=lambda problem: flops(problem.dy, problem.w),
    words=lambda problem: f"gradient of x: {words(problem)}",
    **COMMON,
)
FILTER = Operation(
    "convolution_backward_filter",
    "cudnnConvolutionBackwardFilter",
    ("x", "dy"),
    ("dw",),
    _filter_spec,
    names={
        "srcDesc": "xDesc",
        "diffDesc": "dyDesc",
        "gradDesc": "dwDesc",
        "y": "dy",
    },  # y in the search alone
    dtypes=FLOATS,
    filters=frozenset({"dw"}),
    shape_from_out=True,
    sums_images=True,
    algorithms=Algorithms(
        ConvolutionBwdFilterAlgo,
        cudnnConvolutionBwdFilterAlgoPerf_t,
        "cudnnGetConvolutionBackwardFilterAlgorithmMaxCount",
        "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
        "cudnnFindConvolutionBackwardFilterAlgorithmEx",
        "cudnnGetConvolutionBackwardFilterWorkspaceSize",
        graph="OPERATION_CONVOLUTION_BACKWARD_FILTER",
    ),
    flops=lambda problem: flops(problem.dy, problem.dw),
    words=lambda problem: f"gradient of w: {words(problem)}",
    **COMMON,
)
