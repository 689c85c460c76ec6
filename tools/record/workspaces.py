"""Record, on a GPU, which convolutions and gradients run without workspace, and which algorithms.

    python -m tools.record.workspaces OUT.json [DEVICE]

For each combination below: the algorithms that cuDNN's heuristic ranks and supports, with their
math type and bytes of workspace, and the outcome of a call with `workspace_limit=0` for each
interface.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections import Counter

import numpy as np

import cudnnlite as dnn
from tools.record.support import FIRST, FLOATS, LAST, write

LAYOUTS = {"first": FIRST, "last": LAST}
INTERFACES = (None, "descriptor", "graph")
COLUMNS = [
    "operation",
    "rank",
    "dtype",
    "layout",
    "groups",
    "dilation",
    "stride",
    "math type",
    "supported algorithms as [algorithm, math type, bytes], in the heuristic's order",
    "outcomes without workspace, by interface: any, descriptor, graph",
]
RUN = {
    "forward": dnn.convolution_forward,
    "backward_data": dnn.convolution_backward_data,
    "backward_filter": dnn.convolution_backward_filter,
}
RANKED = {
    "forward": dnn.convolution_forward.heuristic,
    "backward_data": dnn.convolution_backward_data.heuristic,
    "backward_filter": dnn.convolution_backward_filter.heuristic,
}


def combinations():
    """Yield (operation, rank, dtype, layout, groups, dilation, stride, math type)."""
    ones_and_twos = itertools.product((1, 2), repeat=3)
    for operation, rank, dtype, layout, steps in itertools.product(
        RUN, (3, 4, 5), FLOATS, LAYOUTS, tuple(ones_and_twos)
    ):
        for math in ("default", "tensor_op", *(("fma",) if dtype == "float32" else ())):
            yield operation, rank, dtype, layout, *steps, math


def operands_of(handle, combination):
    """Return the operands of a call, and its keywords."""
    operation, rank, dtype, layout, groups, dilation, stride, math = combination
    spatial = rank - 2
    shapes = {"x": (2, 8, *(7, 9, 8)[:spatial]), "w": (8, 8 // groups, *(3, 3, 3)[:spatial])}
    conv = dnn.ConvolutionSpec(
        padding=1,
        stride=stride,
        dilation=dilation,
        groups=groups,
        math_type=math,
    )
    shapes["dy"] = conv.output_shape(shapes["x"], shapes["w"])
    rng = np.random.default_rng(0)
    layout_name = LAYOUTS[layout][rank]
    arrays = {
        name: handle.array(rng.standard_normal(shape) / 4, dtype=dtype, layout=layout_name)
        for name, shape in shapes.items()
    }
    if operation == "forward":
        return (arrays["x"], arrays["w"], conv), {}
    if operation == "backward_data":
        return (arrays["w"], arrays["dy"], conv), {"x": arrays["x"].spec}
    return (arrays["x"], arrays["dy"], conv), {"w": arrays["w"].spec}


def table_of(handle, operation, operands, keywords):
    """Return algorithm, math type and bytes of workspace of each supported algorithm."""
    return [
        [row.algorithm.name, row.math_type.name, row.workspace]
        for row in RANKED[operation](handle, *operands, **keywords)
        if row.ok
    ]


def outcomes_of(handle, operation, operands, keywords):
    """Return "ok" or an error's name for each interface, with no workspace allowed."""
    call, outcomes = RUN[operation], []
    for interface in INTERFACES:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", dnn.errors.WorkspaceLimitWarning)
                call(handle, *operands, **keywords, workspace_limit=0, interface=interface)
            outcomes.append("ok")
        except (dnn.NoAlgorithmError, dnn.NotSupportedError, dnn.WorkspaceLimitError) as error:
            outcomes.append(type(error).__name__)
    return outcomes


def record(handle, combination):
    """Return the table of supported algorithms, and the outcomes by interface."""
    operands, keywords = operands_of(handle, combination)
    table = table_of(handle, combination[0], operands, keywords)
    return table, outcomes_of(handle, combination[0], operands, keywords)


def main(path, device="cuda"):
    with dnn.Handle(device) as handle:
        rows = [[*combination, *record(handle, combination)] for combination in combinations()]
        about = {
            "what": "which convolutions, and gradients of them, run with workspace_limit=0",
            "columns": COLUMNS,
            "device": handle.device.name,
            "cudnn": handle.version,
        }
    write(path, rows, about=about)
    counts = Counter((row[0], *row[-1]) for row in rows)
    for (operation, *outcomes), count in sorted(counts.items()):
        print(f"{count:6} {operation} {outcomes}")


if __name__ == "__main__":
    main(*sys.argv[1:])
