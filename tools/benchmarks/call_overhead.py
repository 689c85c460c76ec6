"""Host time of one asynchronous convolution call: bare ctypes, our plans of both interfaces, our one-line call, PyTorch.

    python tools/benchmarks/call_overhead.py [--markdown] [--check]

The problem is so small that the GPU is always done first, but for launches of graphs: what is timed is the host. All
contenders run in one process, in shuffled order, many rounds; medians. Needs a GPU and refuses the emulated device.
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
FEW_CALLS = 50  # of what the device takes longer for than the host: more of them would fill its queue, and wait there
OVER_BARE = {"descriptor plan(x, w, out=y)": 2.0}  # microseconds over bare ctypes
TARGETS = {
    "plan(x, w, out=y)": 6.0,
    "plan, buffers never seen": 10.0,
    "graph.launch()": 4.0,
}  # microseconds
LAUNCHES = {"graph.launch()", "replaying plan(x, w, out=y)"}
OVER_TORCH = {"plan(x, w, out=y)": 0.6, "convolution_forward": 1.0}  # times PyTorch's
PROBLEMS = {
    "float32, 1x8x8x8 by 8x8x3x3, NCHW": ((1, 8, 8, 8), (8, 8, 3, 3), "float32", "NCHW"),
    "float16, 1x32x8x8 by 32x32x3x3, NHWC": ((1, 32, 8, 8), (32, 32, 3, 3), "float16", "NHWC"),
}


def contenders(handle: dnn.Handle, x_shape, w_shape, dtype, layout):
    """Return name -> a function of no arguments that enqueues one call."""
    rng = np.random.default_rng(0)
    x = handle.array(rng.standard_normal(x_shape), dtype=dtype, layout=layout)
    w = handle.array(rng.standard_normal(w_shape), dtype=dtype, layout=layout)
    conv = dnn.ConvolutionSpec(padding=1)
    engine = dnn.convolution_forward.plan(handle, x, w, conv)
    plan = dnn.convolution_forward.plan(handle, x, w, conv, interface="descriptor")
    kind = plan.choice.algorithm  # for the bare call too: what cuDNN itself costs depends on it
    y = plan(x, w)
    replaying = dnn.convolution_forward.plan(handle, x, w, conv, replay=True)
    replaying(x, w, out=y)
    engine(x, w, out=y)
    with dnn.trace() as trace:
        engine(x, w, out=y)
    with dnn.capture(handle) as graph:
        engine(x, w, out=y)
    fresh = itertools.cycle(
        [handle.empty(y.spec) for _ in range(CALLS)]
    )  # more than a plan remembers

    library = ctypes.CDLL(handle.api.library.path)  # a function pointer without our checks
    bare = library.cudnnConvolutionForward
    bare.restype = ctypes.c_int
    bare.argtypes = [  # as people write it: every descriptor a c_void_p
        ctypes.c_void_p if issubclass(kind, ctypes.c_void_p) else kind
        for kind in FUNCTIONS["cudnnConvolutionForward"].argtypes
    ]
    execute = library.cudnnBackendExecute
    execute.restype, execute.argtypes = ctypes.c_int, [ctypes.c_void_p] * 3
    known = tuple(trace.calls[-1].arguments.values())
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
        "bare cudnnBackendExecute": lambda: execute(*known),
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
        functions["torch conv2d"] = lambda: torch.nn.functional.conv2d(torch_x, torch_w, padding=1)
    return functions, descriptors, f"{kind}, {engine.choice.algorithm}"


def measure(handle: dnn.Handle, functions) -> dict[str, tuple[float, float, float]]:
    """Return name -> medians of: host microseconds a call, the same minus bare ctypes in that round, until the GPU is done."""
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
            statistics.median(mine - base for mine, base in zip(values, bare, strict=True)),
            statistics.median(finished[name]),
        )
        for name, values in samples.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", action="store_true", help="print the table for the docs")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a target is missed")
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
        print(
            f"{now:%Y-%m-%d}, {handle.device.name}, cuDNN {handle.api.library.version_text}, Python {version}"
        )
    edge = "|" if options.markdown else ""
    for title, rows in results.items():
        print(f"\n{title}\n")
        print(
            f"{edge} {'call':28} {edge} {'host us':>8} {edge} {'- bare':>7} {edge} {'GPU done us':>11} {edge}"
        )
        if options.markdown:
            print("| --- | ---: | ---: | ---: |")
        for name, (host, more, done) in rows.items():
            print(
                f"{edge} {name:28} {edge} {host:8.2f} {edge} {more:+7.2f} {edge} {done:11.2f} {edge}"
            )
    missed = []
    for title, rows in results.items():
        torch = rows.get("torch conv2d", (float("inf"),))[0]
        told = [
            (name, rows[name][1], target, "us more than bare ctypes")
            for name, target in OVER_BARE.items()
        ]
        told += [(name, rows[name][0], target, "us") for name, target in TARGETS.items()]
        told += [
            (name, rows[name][0] / torch, target, "times PyTorch's time")
            for name, target in OVER_TORCH.items()
        ]
        missed += [
            f"{title}: {name} takes {v:.2f} {unit}; the target is {most}"
            for name, v, most, unit in told
            if v > most
        ]
    for line in missed:
        print(line, file=sys.stderr)
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
