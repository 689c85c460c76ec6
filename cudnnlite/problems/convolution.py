"""Forward convolution as a declaration."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from cudnnlite._raw.types import cudnnConvolutionFwdAlgoPerf_t
from cudnnlite.dtypes import dtype_name
from cudnnlite.enums import ConvolutionFwdAlgo, DataType, TensorFormat
from cudnnlite.problems.operation import Algorithms, Description, Operation
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec

DEFAULT_CONV = ConvolutionSpec()


def complete(specs: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options with a compute type, and with steps as numbers in their shortest form.

    The shortest form is one number if it stands for every axis: equal problems are equal.
    """
    values = {**specs, **options}
    shapes = {name: value.shape for name, value in values.items() if hasattr(value, "shape")}
    conv = options["conv"].for_shapes(
        shapes["x"] if "x" in shapes else shapes["dx"],
        shapes["w"] if "w" in shapes else shapes["dw"],
    )
    steps = {name: _one_number(getattr(conv, name)) for name in ("padding", "stride", "dilation")}
    return {
        "conv": conv.replace(
            compute_type=conv.compute_type_for(next(iter(specs.values()))), **steps
        )
    }


def _one_number(steps: Any) -> Any:
    """Return one number if it stands for every axis; the steps unchanged otherwise."""
    if isinstance(steps, tuple) and len(set(steps)) == 1 and isinstance(steps[0], int):
        return steps[0]
    return steps


def flops(y: TensorSpec, w: FilterSpec) -> int:
    """Return the multiplications and additions of the direct sum: 2 N K P Q C/groups R S.

    The gradients need as many.
    """
    return 2 * y.size * prod(w.shape[1:])


def _hint(problem: Any) -> str:
    """Return a known reason why cuDNN refuses a problem; empty if there is none."""
    x, w, y = problem.x, problem.w, problem.y
    is_w_channels_last = w.format == TensorFormat.NHWC
    if x.dtype == DataType.INT8:
        is_channels_last = x.is_channels_last and is_w_channels_last
        has_groups_of_four = x.shape[1] % 4 == 0 and w.shape[0] % 4 == 0
        if not (is_channels_last and has_groups_of_four):
            return (
                "int8 runs with the channels last (layout='NHWC') in x and w, "
                "and in multiples of four"
            )
    if is_w_channels_last and not x.is_channels_last and x.layout != "strided":
        return (
            "a filter whose channels come last needs an input of that layout; "
            "give both in one layout"
        )
    if y.dtype != x.dtype:
        return f"out is {dtype_name(y.dtype)}, x is {dtype_name(x.dtype)}; give out the dtype of x"
    return ""


def words(problem: Any) -> str:
    """Return a problem's shapes, type, layout and options."""
    operation, specs = problem.operation, problem.specs
    first, second, *_, result = ("x".join(map(str, spec.shape)) for spec in specs.values())
    images = next(spec for name, spec in specs.items() if name not in operation.filters)
    options = (
        str(problem.conv.replace(compute_type=None))
        .removeprefix("ConvolutionSpec(")
        .removesuffix(")")
    )
    text = f"{first} by {second} to {result}, {dtype_name(images.dtype)} {images.layout}"
    return f"{text}, {options}" if options else text


ALGORITHMS = Algorithms(
    ConvolutionFwdAlgo,
    cudnnConvolutionFwdAlgoPerf_t,
    "cudnnGetConvolutionForwardAlgorithmMaxCount",
    "cudnnGetConvolutionForwardAlgorithm_v7",
    "cudnnFindConvolutionForwardAlgorithmEx",
    "cudnnGetConvolutionForwardWorkspaceSize",
    graph="OPERATION_CONVOLUTION_FORWARD",
    filters=frozenset({"w"}),
)
# The fields that the gradients have, too.
COMMON: dict[str, Any] = {
    "options": {"conv": ConvolutionSpec},
    "complete": complete,
}
FORWARD = Operation(
    "convolution_forward",
    "cudnnConvolutionForward",
    reads=("x", "w"),
    writes=("y",),
    infer=lambda x, w, conv: conv.output_spec(x, w),
    names={"srcDesc": "xDesc", "filterDesc": "wDesc", "destDesc": "yDesc"},
    dtypes=(),
    mixed=True,
    algorithms=ALGORITHMS,
    description=Description(
        flops=lambda problem: flops(problem.y, problem.w), hint=_hint, words=words
    ),
    **COMMON,
)
