"""Host time of one asynchronous convolution call: ctypes, our plans, our one-line call, PyTorch.

    python tools/benchmarks/call_overhead.py [--markdown] [--check]

The problem is so small that the GPU always finishes before the host, except in launches of graphs.
So the time of a call is the host's. All contenders run in one process, in many rounds of shuffled
order, and the median counts. The benchmark needs a GPU and refuses the emulated device.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import itertools
import random
import statistics
import sys
import time

import numpy as np

import cudnnlite as dnn
from cudnnlite._raw.functions import FUNCTIONS

CALLS, ROUNDS = 200, 41
# The number of calls that take longer on the device than on the host. More of them would fill the
# device's queue, and the host would wait.
FEW_CALLS = 50
# Targets: microseconds more than bare ctypes, microseconds, and multiples of PyTorch's time.
OVER_BARE = {"descriptor plan(x, w, out=y)": 2.0}
TARGETS = {
    "plan(x, w, out=y)": 6.0,
    "plan, buffers never seen": 10.0,
    "graph.launch()": 4.0,
}
OVER_TORCH = {"plan(x, w, out=y)": 0.6, "convolution_forward": 1.0}
LAUNCHES = {"graph.launch()", "replaying plan(x, w, out=y)"}
PROBLEMS = {
    "float32, 1x8x8x8 by 8x8x3x3, NCHW": ((1, 8, 8, 8), (8, 8, 3, 3), "float32", "NCHW"),
    "float16, 1x32x8x8 by 32x32x3x3, NHWC": ((1, 32, 8, 8), (32, 32, 3, 3), "float16", "NHWC"),
}


def contenders(handle: dnn.Handle, x_shape, w_shape, dtype, layout):
    """Return functions without arguments that enqueue one call, by name."""
    rng = np.random.default_rng(0)
    x = handle.array(rng.standard_normal(x_shape), dtype=dtype, layout=layout)
    w = handle.array(rng.standard_normal(w_shape), dtype=dtype, layout=layout)
    conv = dnn.ConvolutionSpec(padding=1)
    engine = dnn.convolution_forward.plan(handle, x, w, conv)
    plan = dnn.convolution_forward.plan(handle, x, w, conv, interface="descriptor")
    kind = (
        plan.choice.algorithm
    )  # The bare call has it too, because cuDNN's host time depends on it.
    y = plan(x, w)
    replaying = dnn.convolution_forward.plan(handle, x, w, conv, replay=True)
    replaying(x, w, out=y)
    engine(x, w, out=y)
    with dnn.trace() as trace:
        engine(x, w, out=y)
    with dnn.capture(handle) as graph:
        engine(x, w, out=y)
    # These are more buffers than a plan remembers.
    fresh = itertools.cycle([handle.empty(y.spec) for _ in range(CALLS)])

    library = ctypes.CDLL(handle.api.library.path)  # Its function pointers have none of our checks.
    bare = library.cudnnConvolutionForward
    bare.restype = ctypes.c_int
    bare.argtypes = [  # as usual in ctypes: every descriptor is a c_void_p
        ctypes.c_void_p if issubclass(kind, ctypes.c_void_p) else kind
        for kind in FUNCTIONS["cudnnConvolutionForward"].argtypes
    ]
    execute = library.cudnnBackendExecute
    execute.restype, execute.argtypes = ctypes.c_int, [ctypes.c_void_p] * 3
    execute_arguments = tuple(trace.calls[-1].arguments.values())
    scratch = handle.device.allocate(max(plan.workspace, 1), handle.stream)
    descriptors = (
        dnn.TensorDescriptor(x.spec),
        dnn.FilterDescriptor(w_shape, dtype, layout),
        dnn.ConvolutionDescriptor(padding=1),
        dnn.TensorDescriptor(y.spec),
    )
    x_desc, w_desc, conv_desc, y_desc = (descriptor.ptr for descriptor in descriptors)
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    arguments = (
        handle.ptr,
        ctypes.addressof(one),
        x_desc,
        x.ptr,
        w_desc,
        w.ptr,
        conv_desc,
        int(kind),
        int(scratch.handle),
        plan.workspace,
        ctypes.addressof(zero),
        y_desc,
        y.ptr,
    )
    keep = (plan, engine, replaying, graph, y, scratch, one, zero, descriptors)

    functions = {
        "bare ctypes": lambda keep=keep: bare(*arguments),
        "bare cudnnBackendExecute": lambda: execute(*execute_arguments),
        "descriptor plan(x, w, out=y)": lambda: plan(x, w, out=y),
        "plan(x, w, out=y)": lambda: engine(x, w, out=y),
        "plan(x, w)": lambda: engine(x, w),
        "plan, buffers never seen": lambda: engine(x, w, out=next(fresh)),
        "graph.launch()": graph.launch,
        "replaying plan(x, w, out=y)": lambda: replaying(x, w, out=y),
        "replaying plan, new buffers": lambda: replaying(x, w, out=next(fresh)),
        "convolution_forward": lambda: dnn.convolution_forward(handle, x, w, conv),
    }
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed; its column is missing", file=sys.stderr)
    else:
        torch_x, torch_w = torch.from_dlpack(x), torch.from_dlpack(w)
        torch_y = torch.from_dlpack(y)
        one_line = dnn.convolution_forward
        functions["torch conv2d"] = lambda: torch.nn.functional.conv2d(torch_x, torch_w, padding=1)
        functions["plan of torch's tensors"] = lambda: engine(torch_x, torch_w, out=torch_y)
        functions["convolution_forward of them"] = lambda: one_line(handle, torch_x, torch_w, conv)
    return functions, descriptors, f"{kind}, {engine.choice.algorithm}"


def measure(handle: dnn.Handle, functions) -> dict[str, tuple[float, float, float]]:
    """Return the medians of three times, in microseconds a call, by name.

    They are the host's time, the host's time minus that of bare ctypes in the same round, and the
    time until the GPU has finished.
    """
    samples = {name: [] for name in functions}
    finished = {name: [] for name in functions}
    order = list(functions)
    for function in functions.values():
        for _ in range(CALLS):
            function()
    handle.device.synchronize()
    shuffle = random.Random(0).shuffle
    for _ in range(ROUNDS):
        shuffle(order)
        for name in order:
            function = functions[name]
            calls = FEW_CALLS if name in LAUNCHES else CALLS
            start = time.perf_counter()
            for _ in range(calls):
                function()
            samples[name].append((time.perf_counter() - start) / calls * 1e6)
            handle.device.synchronize()
            finished[name].append((time.perf_counter() - start) / calls * 1e6)
    bare = samples["bare ctypes"]
    return {
        name: (
            statistics.median(values),
            statistics.median(host - base for host, base in zip(values, bare, strict=True)),
            statistics.median(finished[name]),
        )
        for name, values in samples.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", action="store_true", help="print the table for the docs")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    options = parser.parse_args()
    with dnn.Handle() as handle:
        if handle.device.kind != "cuda":
            print(f"this benchmark needs a GPU; {handle.device} has none", file=sys.stderr)
            return 2
        results = {}
        for title, problem in PROBLEMS.items():
            functions, descriptors, algorithm = contenders(handle, *problem)
            results[f"{title}, {algorithm}"] = measure(handle, functions)
            for descriptor in descriptors:
                descriptor.close()
        now = datetime.datetime.now(datetime.timezone.utc)
        version = sys.version.split()[0]
        cudnn_version = handle.api.library.version_text
        print(f"{now:%Y-%m-%d}, {handle.device.name}, cuDNN {cudnn_version}, Python {version}")
    for title, rows in results.items():
        print(f"\n{title}\n")
        print_table(rows, markdown=options.markdown)
    misses = [f"{title}: {miss}" for title, rows in results.items() for miss in misses_of(rows)]
    for line in misses:
        print(line, file=sys.stderr)
    return 1 if options.check and misses else 0


def print_table(rows, *, markdown: bool) -> None:
    """Print the times of one problem, in microseconds."""
    edge = "|" if markdown else ""
    print(edge, f"{'call':28}", edge, f"{'host us':>8}", edge, f"{'- bare':>7}", end=" ")
    print(edge, f"{'GPU done us':>11}", edge)
    if markdown:
        print("| --- | ---: | ---: | ---: |")
    for name, (host, over_bare, finished) in rows.items():
        print(edge, f"{name:28}", edge, f"{host:8.2f}", edge, f"{over_bare:+7.2f}", end=" ")
        print(edge, f"{finished:11.2f}", edge)


def misses_of(rows) -> list[str]:
    """Return a line for each target that one problem misses."""
    torch_us = rows.get("torch conv2d", (float("inf"),))[0]
    figures = []
    for name, target in OVER_BARE.items():
        figures.append((name, rows[name][1], target, "us more than bare ctypes"))
    for name, target in TARGETS.items():
        figures.append((name, rows[name][0], target, "us"))
    for name, target in OVER_TORCH.items():
        figures.append((name, rows[name][0] / torch_us, target, "times PyTorch's time"))
    return [
        f"{name} takes {value:.2f} {unit}; the target is {target}"
        for name, value, target, unit in figures
        if value > target
    ]


if __name__ == "__main__":
    raise SystemExit(main())
