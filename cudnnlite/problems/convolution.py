"""Forward convolution as a declaration."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from cudnnlite._raw.types import cudnnConvolutionFwdAlgoPerf_t
from cudnnlite.dtypes import dtype_name
from cudnnlite.enums import ConvolutionFwdAlgo, DataType, TensorFormat
from cudnnlite.problems.operation import Algorithms, Operation
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec

DEFAULT_CONV = ConvolutionSpec()


def complete(specs: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options with the compute type that was left open, and steps written in one way."""
    conv = options["conv"]
    steps = {name: _one_number(getattr(conv, name)) for name in ("padding", "stride", "dilation")}
    return {
        "conv": conv.replace(
            compute_type=conv.compute_type_for(next(iter(specs.values()))), **steps
        )
    }


def _one_number(steps: Any) -> Any:
    """Return the number that stands for every axis, where it does."""
    return (
        steps[0]
        if isinstance(steps, tuple) and len(set(steps)) == 1 and isinstance(steps[0], int)
        else steps
    )


def flops(y: TensorSpec, w: FilterSpec) -> int:
    """Return the multiplications and additions of the direct sum: 2 N K P Q C/groups R S.

    The gradients take as many.
    """
    return 2 * y.size * prod(w.shape[1:])


def _hint(problem: Any) -> str:
    last = problem.x.is_channels_last
    both = last and problem.w.format == TensorFormat.NHWC
    if problem.x.dtype == DataType.INT8 and not (
        both and problem.x.shape[1] % 4 == problem.w.shape[0] % 4 == 0
    ):
        return (
            "int8 runs with the channels last (layout='NHWC') in x and w, and in multiples of four"
        )
    if problem.w.format == TensorFormat.NHWC and not last and problem.x.layout != "strided":
        return (
            "a filter whose channels come last needs an input of that layout; "
            "give both in one layout"
        )
    if problem.y.dtype != problem.x.dtype:
        return (
            f"out is {dtype_name(problem.y.dtype)}, x is {dtype_name(problem.x.dtype)}; "
            "give out the dtype of x"
        )
    return ""


def words(problem: Any) -> str:
    """Return a problem's shapes, type, layout and options."""
    operation, specs = problem.operation, problem.specs
    first, second, *_, written = ("x".join(map(str, spec.shape)) for spec in specs.values())
    images = next(spec for name, spec in specs.items() if name not in operation.filters)
    options = (
        str(problem.conv.replace(compute_type=None))
        .removeprefix("ConvolutionSpec(")
        .removesuffix(")")
    )
    told = f"{first} by {second} to {written}, {dtype_name(images.dtype)} {images.layout}"
    return told + (f", {options}" if options else "")


ALGORITHMS = Algorithms(
    ConvolutionFwdAlgo,
    cudnnConvolutionFwdAlgoPerf_t,
    "cudnnGetConvolutionForwardAlgorithmMaxCount",
    "cudnnGetConvolutionForwardAlgorithm_v7",
    "cudnnFindConvolutionForwardAlgorithmEx",
    "cudnnGetConvolutionForwardWorkspaceSize",
    graph="OPERATION_CONVOLUTION_FORWARD",
)
# what the gradients have too
COMMON: dict[str, Any] = {
    "options": {"conv": ConvolutionSpec},
    "complete": complete,
    "math_type": lambda problem: problem.conv.math_type,
}
FORWARD = Operation(
    "convolution_forward",
    "cudnnConvolutionForward",
    ("x", "w"),
    ("y",),
    lambda x, w, conv: conv.output_spec(x, w),
    names={"srcDesc": "xDesc", "filterDesc": "wDesc", "destDesc": "yDesc"},
    dtypes=(),
    mixed=True,
    filters=frozenset({"w"}),
    algorithms=ALGORITHMS,
    flops=lambda problem: flops(problem.y, problem.w),
    hint=_hint,
    words=words,
    **COMMON,
)
