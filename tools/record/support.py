"""Record, on a GPU, what cuDNN supports of convolutions and their gradients.

    python -m tools.record.support OUT.json [OPERATION]

The emulated device's refusals are tested against these tables.  OPERATION is convolution_forward,
convolution_backward_data or convolution_backward_filter.

For every combination below and every algorithm: the status of the workspace query and of the call,
and the relative L2 error against float64 sums (by PyTorch, which this script alone needs).  Of a
gradient, last, those of the engine that a plan runs without an algorithm.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import numpy as np

import cudnnlite as dnn
from cudnnlite.dtypes import numpy_dtype, parse_dtype
from cudnnlite.errors import CudnnError
from cudnnlite.operations.convolution.request import ConvolutionRequest
from cudnnlite.problems.catalogue import OPERATIONS

# name: (x shape, w shape, ConvolutionSpec options)
CASES = {
    "3x3": ((2, 8, 12, 14), (8, 8, 3, 3), {"padding": 1}),
    "3x3_nopad": ((2, 8, 12, 14), (8, 8, 3, 3), {}),
    "3x3_odd_channels": ((2, 3, 12, 14), (5, 3, 3, 3), {"padding": 1}),
    "3x3_wide_channels": ((2, 64, 12, 14), (64, 64, 3, 3), {"padding": 1}),
    "3x3_padding2": ((2, 8, 12, 14), (8, 8, 3, 3), {"padding": 2}),
    "3x3_padding4": ((2, 8, 12, 14), (8, 8, 3, 3), {"padding": 4}),
    "3x3_stride2": ((2, 8, 12, 14), (8, 8, 3, 3), {"padding": 1, "stride": 2}),
    "3x3_dilation2": ((2, 8, 12, 14), (8, 8, 3, 3), {"padding": 2, "dilation": 2}),
    "3x3_groups2": ((2, 8, 12, 14), (8, 4, 3, 3), {"padding": 1, "groups": 2}),
    "3x3_depthwise": ((2, 8, 12, 14), (8, 1, 3, 3), {"padding": 1, "groups": 8}),
    "3x3_convolution": ((2, 8, 12, 14), (8, 8, 3, 3), {"padding": 1, "mode": "convolution"}),
    "1x1": ((2, 8, 12, 14), (8, 8, 1, 1), {}),
    "1x1_stride2": ((2, 8, 12, 14), (8, 8, 1, 1), {"stride": 2}),
    "1x3": ((2, 8, 12, 14), (8, 8, 1, 3), {"padding": (0, 1)}),
    "3x1_groups2": ((2, 8, 12, 14), (8, 4, 3, 1), {"padding": (1, 0), "groups": 2}),
    "2x2": ((2, 8, 12, 14), (8, 8, 2, 2), {}),
    "5x5": ((2, 8, 12, 14), (8, 8, 5, 5), {"padding": 2}),
    "5x5_wide_channels": ((2, 64, 12, 14), (64, 64, 5, 5), {"padding": 2}),
    "7x7_stride2": ((2, 3, 32, 36), (8, 3, 7, 7), {"padding": 3, "stride": 2}),
    "9x9": ((2, 8, 20, 22), (8, 8, 9, 9), {"padding": 4}),
    "stride3x2": ((2, 8, 12, 14), (8, 8, 3, 3), {"stride": (3, 2), "padding": (2, 1)}),
    "33x33": ((1, 2, 40, 42), (3, 2, 33, 33), {"padding": 16}),
    "large_image": ((1, 2, 300, 310), (3, 2, 3, 3), {"padding": 1}),
    "filter_as_large_as_input": ((2, 8, 5, 6), (8, 8, 5, 6), {}),
    "1d": ((2, 8, 33), (8, 8, 3), {"padding": 1}),
    "1d_stride2_groups2": ((2, 8, 33), (8, 4, 5), {"stride": 2, "groups": 2}),
    "3d": ((2, 8, 6, 7, 9), (8, 8, 3, 3, 3), {"padding": 1}),
    "3d_stride2": ((2, 8, 6, 7, 9), (8, 8, 3, 3, 3), {"padding": 1, "stride": 2}),
    "3d_dilation2": ((2, 8, 6, 7, 9), (8, 8, 3, 3, 3), {"padding": 2, "dilation": 2}),
    "3d_groups2": ((2, 8, 6, 7, 9), (8, 4, 3, 3, 3), {"padding": 1, "groups": 2}),
    "3d_1x1x1": ((2, 8, 6, 7, 9), (8, 8, 1, 1, 1), {}),
}
LAST = {3: "NWC", 4: "NHWC", 5: "NDHWC"}
FIRST = {3: "NCW", 4: "NCHW", 5: "NCDHW"}
FLOATS = ("float32", "float64", "float16", "bfloat16")


def combinations():  # noqa: C901, PLR0912  (one table: a block of loops for each question)
    """Yield (case, dtype, x layout, w layout, y dtype, y layout, math type, beta, compute type)."""
    for case, dtype, last in itertools.product(CASES, FLOATS, (False, True)):
        rank = len(CASES[case][0])
        layout = (LAST if last else FIRST)[rank]
        maths = ("DEFAULT", "FMA") if dtype == "float32" else ("DEFAULT",)
        for math in maths:
            yield case, dtype, layout, layout, dtype, layout, math, 0.0, None
    for case, dtype in itertools.product(
        ("3x3", "3x3_wide_channels", "1x1", "5x5_wide_channels"), FLOATS
    ):
        for math in ("DEFAULT", "TENSOR_OP", "TENSOR_OP_ALLOW_CONVERSION", "FMA"):
            for layout in ("NCHW", "NHWC"):
                yield case, dtype, layout, layout, dtype, layout, math, 0.0, None
        for x_layout, w_layout, y_layout in itertools.product(("NCHW", "NHWC"), repeat=3):
            if not x_layout == w_layout == y_layout:
                yield case, dtype, x_layout, w_layout, dtype, y_layout, "DEFAULT", 0.0, None
        for layout in ("NCHW", "NHWC"):
            yield case, dtype, layout, layout, dtype, layout, "DEFAULT", 0.5, None
        yield case, dtype, "strided", "NCHW", dtype, "NCHW", "DEFAULT", 0.0, None
        yield case, dtype, "NCHW", "NCHW", dtype, "strided", "DEFAULT", 0.0, None
    for dtype, y_dtype in itertools.product(FLOATS, repeat=2):
        if dtype != y_dtype:
            yield "3x3", dtype, "NCHW", "NCHW", y_dtype, "NCHW", "DEFAULT", 0.0, None
    for dtype, compute in (
        ("float16", "float16"),
        ("bfloat16", "bfloat16"),
        ("float32", "float64"),
        ("float64", "float32"),
    ):
        for layout in ("NCHW", "NHWC"):
            yield "3x3", dtype, layout, layout, dtype, layout, "DEFAULT", 0.0, compute
    for case in (
        "3x3",
        "3x3_wide_channels",
        "3x3_odd_channels",
        "1x1",
        "3x3_stride2",
        "3x3_dilation2",
        "3x3_groups2",
        "3x3_convolution",
        "3d",
        "1d",
    ):
        rank = len(CASES[case][0])
        for dtype, layout, y_dtype in itertools.product(
            ("int8", "uint8"), (FIRST[rank], LAST[rank]), ("int8", "float32")
        ):
            yield case, dtype, layout, layout, y_dtype, layout, "DEFAULT", 0.0, None
        if rank == 4:
            for dtype, y_dtype in itertools.product(("int8x4", "int8x32"), ("same", "float32")):
                y_dtype = dtype if y_dtype == "same" else y_dtype
                y_layout = "NCHW" if y_dtype == "float32" else "NCHW_VECT_C"
                yield (
                    case,
                    dtype,
                    "NCHW_VECT_C",
                    "NCHW_VECT_C",
                    y_dtype,
                    y_layout,
                    "DEFAULT",
                    0.0,
                    None,
                )
    for beta in (0.5,):
        yield "3x3_wide_channels", "int8", "NHWC", "NHWC", "int8", "NHWC", "DEFAULT", beta, None
        yield "3x3_wide_channels", "int8", "NHWC", "NHWC", "float32", "NHWC", "DEFAULT", beta, None


def further():
    """Yield more combinations, of the gradients alone: operands in three layouts each."""
    for case, dtype in itertools.product(("3x3", "3x3_stride2", "1d", "3d"), FLOATS):
        rank = len(CASES[case][0])
        first, last = FIRST[rank], LAST[rank]
        for x, w, y in itertools.product(
            (first, last, "strided"), (first, last), (first, last, "strided")
        ):
            yield case, dtype, x, w, dtype, y, "DEFAULT", 0.0, None


def spec_of(shape, dtype, layout):
    """Return a TensorSpec; 'strided' has gaps on every axis."""
    if layout != "strided":
        return dnn.TensorSpec(shape, dtype, layout)
    strides, step = [], 2
    for size in reversed(shape):
        strides.append(step)
        step *= size + 1
    return dnn.TensorSpec(shape, dtype, strides=reversed(strides))


def values_for(rng, shape, dtype):
    """Return random values of the plain dtype in logical shape."""
    plain = numpy_dtype(parse_dtype(dtype))
    if plain.kind in "iu":
        low = -3 if plain.kind == "i" else 0
        return rng.integers(low, 4, shape).astype(plain)
    return rng.standard_normal(shape).astype(plain)


def upload(handle, spec, values):
    """Return a device array of any spec that holds the values."""
    if spec.layout != "strided":
        return handle.array(values, dtype=spec.dtype, layout=spec.layout)
    array = handle.empty(spec)
    memory = np.zeros(spec.nbytes, np.uint8)
    steps = tuple(step * values.itemsize for step in spec.strides)
    np.lib.stride_tricks.as_strided(memory.view(values.dtype), spec.shape, steps)[...] = values
    handle.device.copy_in(array.ptr, memory, handle.stream)
    return array


def reference(values, written, options):
    """Return, in float64, y, or the gradient dx or dw, from the values of the other two by name."""
    import torch

    spec = dnn.ConvolutionSpec(**options)
    wide = {name: torch.from_numpy(value.astype(np.float64)) for name, value in values.items()}
    axes = tuple(range(2, wide["x"].ndim))
    if spec.mode == dnn.enums.ConvolutionMode.CONVOLUTION:
        wide["w"] = wide["w"].flip(axes)
    x, w = (wide[name].requires_grad_(f"d{name}" == written) for name in "xw")
    function = getattr(torch.nn.functional, f"conv{len(axes)}d")
    padding, stride, dilation = spec.steps(len(axes))
    y = function(x, w, None, stride, padding, dilation, spec.groups)
    if written == "y":
        return y.numpy()
    y.backward(wide["y"])
    gradient = (x if written == "dx" else w).grad
    is_rotated = written == "dw" and spec.mode == dnn.enums.ConvolutionMode.CONVOLUTION
    return (gradient.flip(axes) if is_rotated else gradient).numpy()


def specs_of(combination):
    """Return the specs of x, w and y, or of their gradients, by name, and the convolution's.

    ArgumentError if there are none.
    """
    case, dtype, x_layout, w_layout, y_dtype, y_layout, math, _, compute = combination
    x_shape, w_shape, options = CASES[case]
    conv = dnn.ConvolutionSpec(**options, math_type=math, compute_type=compute)
    specs = {"x": spec_of(x_shape, dtype, x_layout), "w": dnn.FilterSpec(w_shape, dtype, w_layout)}
    return specs | {"y": spec_of(conv.output_shape(x_shape, w_shape), y_dtype, y_layout)}, conv


def expected_values(values, written, combination, dtype):
    """Return what has to be written, in float64."""
    beta = combination[7]
    options = CASES[combination[0]][2]
    old_values = values[written.removeprefix("d")].astype(np.float64)
    expected = reference(values, written, options) + beta * old_values
    plain = numpy_dtype(dtype)
    if plain.kind in "iu":
        limits = np.iinfo(plain)
        return np.clip(np.rint(expected), limits.min, limits.max)
    return expected


def record(handle, operation, combination, rng):
    """Return the outcome of each algorithm, and of a gradient that of the engine of a plan."""
    specs, conv = specs_of(combination)
    written = operation.writes[0]
    target = written.removeprefix("d")
    values = {name: values_for(rng, spec.shape, spec.dtype) for name, spec in specs.items()}
    expected = expected_values(values, written, combination, specs[target].dtype)
    tensors = {
        name: spec.tensor if isinstance(spec, dnn.FilterSpec) else spec
        for name, spec in specs.items()
    }
    names = [name.removeprefix("d") for name in operation.reads]
    operands = [upload(handle, tensors[name], values[name]) for name in names]
    choices = [
        {"algorithm": algorithm}
        for algorithm in operation.algorithms.kind
        if algorithm.name != "COUNT"
    ]
    if written != "y":
        choices.append({"interface": "graph"})
    results = []
    for choice in choices:
        request = ConvolutionRequest(
            handle,
            operation,
            [specs[name] for name in names],
            [conv],
            beta=combination[7],
            result=specs[target],
            **choice,
        )
        out = upload(handle, tensors[target], values[target])
        results.append(outcome_of(request, operands, out, expected))
    return results


def outcome_of(request, operands, out, expected):
    """Return status, error and workspace of a call; where an engine runs, which one."""
    try:
        with request.plan() as plan:
            plan(*operands, out=out)
            result = out.numpy().astype(np.float64)
    except CudnnError as error:
        return [error.status.name, error.function, error.detail[:120]]
    error = float(np.linalg.norm(result - expected) / np.linalg.norm(expected))
    outcome = ["SUCCESS", float(f"{error:.1e}"), plan.workspace]
    if request.interface == "graph":
        outcome += [str(plan.choice.algorithm), plan.choice.math_type.name]
    return outcome


def write(path, rows, **header):
    """Write a table, a line for each row."""
    lines = ",\n".join(json.dumps(row) for row in rows)
    Path(path).write_text(f'{json.dumps(header)[:-1]}, "rows": [\n{lines}\n]}}\n')


def main(path, name="convolution_forward", device="cuda") -> None:
    rng, rows, operation = np.random.default_rng(0), [], OPERATIONS[name]
    (written,) = operation.writes
    with dnn.Handle(device) as handle:
        for combination in dict.fromkeys([*combinations(), *(further() if written != "y" else ())]):
            try:
                rows.append([list(combination), record(handle, operation, combination, rng)])
            except dnn.ArgumentError:
                # Channels do not divide into vectors; or a gradient has integers, or operands of
                # several types.
                continue
        about = {
            "what": "statuses (and relative L2 errors against float64) of "
            f"{operation.function}, by algorithm",
            "columns": "case, dtype, x layout, w layout, y dtype, y layout, math type, beta, "
            "compute type",
            "device": handle.device.name,
            "cudnn": handle.version,
        }
    write(path, rows, about=about)
    print(len(rows), "rows")


if __name__ == "__main__":
    main(*sys.argv[1:])
