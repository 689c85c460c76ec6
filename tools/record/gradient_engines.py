"""Run every engine that cuDNN has for convolutions and their gradients, and print the wrong ones.

    python -m tools.record.gradient_engines [PART PARTS]

Outputs and scratch memory are filled before each run, so that an engine that reads what nothing
wrote is found.  A line is a group of cases: the graph, spatial axes, engine, whether padding is
even, type, layout, whether `faults.why_engine_is_wrong` knows the fault, how many of the cases
were right, how many were not, and three of those.  The last line counts the wrong cases of which
nothing is known: 0 where `faults` is complete.  Several parts may run
side by side.  The right results are PyTorch's.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import torch

import cudnnlite as dnn
from cudnnlite.errors import CudnnError
from cudnnlite.graph.convolution_formulas import convolution_data
from cudnnlite.graph.engines import HEURISTICS, Configuration, named_by
from cudnnlite.graph.execution_plan import ExecutionPlan
from cudnnlite.graph.faults import why_engine_is_wrong
from cudnnlite.graph.lowering import lower
from cudnnlite.graph.operation_graph import OperationGraph
from tools.record.layer_graphs import uploaded, values

KINDS = {
    "CONVOLUTION_FORWARD": ("x", "w", "y"),
    "CONVOLUTION_BACKWARD_DATA": ("w", "dy", "dx"),
    "CONVOLUTION_BACKWARD_FILTER": ("x", "dy", "dw"),
}
# By number of spatial axes: batch and pixels, and sizes of filters.
IMAGES: dict[int, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {
    1: [((2, 29), (4,)), ((3, 40), (3,))],
    2: [((2, 9, 11), (3, 2)), ((3, 16, 14), (3, 3))],
    3: [((2, 5, 7, 6), (3, 2, 2)), ((2, 9, 12, 13), (3, 3, 3))],
}
PADDINGS: dict[int, list[Any]] = {
    1: [((0, 2),), ((2, 1),), 1],
    2: [((0, 1), (2, 0)), ((1, 1), (0, 1)), ((1, 0), 0), 1, 0],
    3: [((0, 1), 1, (1, 0)), ((0, 1), 0, 0), (0, (1, 0), 0), ((1, 2), (2, 1), (1, 2)), 1, 0],
}
# Channels of x and of y, and groups.
CHANNELS = [(8, 8, 1), (3, 5, 1), (32, 16, 1), (16, 16, 4), (8, 8, 8)]
# Relative L2 errors above these are wrong numbers, whatever the engine's precision.
WRONG = {"float16": 0.02, "bfloat16": 0.05, "float32": 0.02}
# Of an engine's configurations, these many are tried for a problem.
MOST_CONFIGURATIONS = 3


class Case(NamedTuple):
    """A convolution, or a gradient of one."""

    kind: str
    x_shape: tuple[int, ...]
    w_shape: tuple[int, ...]
    conv: dnn.ConvolutionSpec
    dtype: str
    layout: str

    def group(self, engine: int, *, is_known: bool) -> tuple[str, ...]:
        """Return what a line of the table is about."""
        return (
            self.kind,
            f"{len(self.x_shape) - 2}-D",
            f"engine {engine}",
            "even" if self.conv.is_symmetric else "uneven",
            self.dtype,
            self.layout,
            "known" if is_known else "NOT KNOWN",
        )

    def __str__(self) -> str:
        return f"{self.x_shape} {self.w_shape} {self.conv!r}"


def cases() -> Iterator[Case]:
    """Yield every combination."""
    for axes, images in IMAGES.items():
        combinations = itertools.product(
            KINDS, images, CHANNELS, PADDINGS[axes], (1, 2), WRONG, ("first", "last")
        )
        for kind, (image, taps), channels, padding, stride, dtype, layout in combinations:
            batch, *pixels = image
            in_channels, out_channels, groups = channels
            yield Case(
                kind,
                (batch, in_channels, *pixels),
                (out_channels, in_channels // groups, *taps),
                dnn.ConvolutionSpec(padding, stride, groups=groups),
                dtype,
                layout,
            )


def host_operands(case: Case) -> dict[str, Any]:
    """Return the operands by name: two random ones, and the right result in float64."""
    x, w = values(case.x_shape, 0, case.dtype), values(case.w_shape, 1, case.dtype)
    dy = values(case.conv.output_shape(case.x_shape, case.w_shape), 2, case.dtype)
    image, filter_ = (torch.tensor(host, requires_grad=True) for host in (x, w))
    y = convolve(image, filter_, case.conv)
    if case.kind == "CONVOLUTION_FORWARD":
        return {"x": x, "w": w, "y": y.detach().numpy()}
    dx, dw = (grad.numpy() for grad in torch.autograd.grad(y, (image, filter_), torch.tensor(dy)))
    if case.kind == "CONVOLUTION_BACKWARD_DATA":
        return {"w": w, "dy": dy, "dx": dx}
    return {"x": x, "dy": dy, "dw": dw}


def convolve(x: Any, w: Any, conv: dnn.ConvolutionSpec) -> Any:
    """Return a convolution in PyTorch, which pads from the last axis to the first."""
    axes = x.ndim - 2
    functions = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}
    padding = [size for ends in reversed(conv.pads(axes)) for size in ends]
    padded = torch.nn.functional.pad(x, padding)
    _, stride, dilation = conv.steps(axes)
    return functions[axes](
        padded, w, stride=tuple(stride), dilation=tuple(dilation), groups=conv.groups
    )


def distinct_configurations(graph: OperationGraph, stack: ExitStack) -> Iterator[Configuration]:
    """Yield what cuDNN's heuristics name: each configuration once, a few of each engine."""
    tried: set[str] = set()
    counts: Counter[int] = Counter()
    for mode in HEURISTICS:
        for configuration in named_by(graph, mode, stack):
            index = configuration.engine.index
            if str(configuration.engine) in tried or counts[index] == MOST_CONFIGURATIONS:
                continue
            tried.add(str(configuration.engine))
            counts[index] += 1
            yield configuration


def errors_of(handle: dnn.Handle, case: Case) -> Iterator[tuple[int, bool, float]]:
    """Yield each engine with whether its fault is known, and the relative L2 error of its result."""
    hosts = host_operands(case)
    *_, written = KINDS[case.kind]
    expected = hosts[written]
    arrays = {name: uploaded(handle, host, case.dtype, case.layout) for name, host in hosts.items()}
    result = arrays[written]
    specs = {name: array.spec for name, array in arrays.items()}
    with ExitStack() as stack:
        data = convolution_data(case.kind, specs, case.conv, 1.0, 0.0)
        graph = lower(data, handle, stack)
        for configuration in distinct_configurations(graph, stack):
            try:
                plan = ExecutionPlan(graph, configuration, stack)
            except CudnnError:
                continue
            scratch = 0
            if plan.workspace:
                scratch = handle.workspace.reserve(plan.workspace, handle.stream)
                handle.device.fill(scratch, plan.workspace, 0x77, handle.stream)
            handle.device.fill(result.ptr, result.nbytes, 0x3C, handle.stream)
            plan.replace(scratch, **{name: array.ptr for name, array in arrays.items()})
            plan()
            error = np.linalg.norm(result.numpy().astype(np.float64) - expected)
            index = configuration.engine.index
            fault = why_engine_is_wrong(index, data, configuration.version)
            yield index, fault is not None, float(error / np.linalg.norm(expected))


def main(part: int = 0, parts: int = 1) -> None:
    """Run one part of the cases, and print what was wrong."""
    right: Counter[tuple[str, ...]] = Counter()
    wrong: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    with dnn.Handle() as handle:
        for case in itertools.islice(cases(), part, None, parts):
            for engine, is_known, error in errors_of(handle, case):
                group = case.group(engine, is_known=is_known)
                if error < WRONG[case.dtype]:
                    right[group] += 1
                else:
                    wrong[group].append(f"{case}: {error:.2g}")
    for group, examples in sorted(wrong.items()):
        print(*group, f"right {right[group]}, wrong {len(examples)}", *examples[:3], sep="; ")
    unknown = sum(len(examples) for group, examples in wrong.items() if "NOT KNOWN" in group)
    runs = right.total() + sum(map(len, wrong.values()))
    print(f"{runs} runs, {unknown} wrong of which nothing is known")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
