"""Host time of one asynchronous convolution call: bare ctypes, our plan, our one-line call, PyTorch.

    python tests/benchmarks/call_overhead.py [--markdown]

The problem is so small that the GPU is always done first: what is timed is the host. All contenders run in one process, in
shuffled order, many rounds; medians. Needs a GPU and refuses the emulated device.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import random
import statistics
import sys
import time

import numpy as np

import cudnnlite as dnn
from cudnnlite._raw.functions import FUNCTIONS

CALLS, ROUNDS = 200, 41
SHAPES = {"float32 1x8x8x8 by 8x8x3x3": ((1, 8, 8, 8), (8, 8, 3, 3), "float32", "NCHW", "IMPLICIT_GEMM"),
          "float16 4x64x14x14 by 64x64x3x3 NHWC": ((4, 64, 14, 14), (64, 64, 3, 3), "float16", "NHWC",
                                                    "IMPLICIT_PRECOMP_GEMM")}  # fmt: skip


def contenders(handle: dnn.Handle, x_shape, w_shape, dtype, layout, algorithm):
    """Return name -> a function of no arguments that enqueues one call."""
    rng = np.random.default_rng(0)
    x = handle.array(rng.standard_normal(x_shape), dtype=dtype, layout=layout)
    w = handle.array(rng.standard_normal(w_shape), dtype=dtype, layout=layout)
    conv = dnn.ConvolutionSpec(padding=1)
    kind = dnn.ConvolutionFwdAlgo[algorithm]
    plan = dnn.plan_convolution_forward(handle, x, w, conv, algorithm=kind)
    y = plan(x, w)

    library = ctypes.CDLL(handle.api.library.path)  # a function pointer without our checks
    bare = library.cudnnConvolutionForward
    bare.argtypes, bare.restype = FUNCTIONS["cudnnConvolutionForward"].argtypes, ctypes.c_int
    scratch = handle.device.allocate(max(plan.workspace, 1), handle.stream)
    descriptors = (dnn.TensorDescriptor(x.spec), dnn.FilterDescriptor(w_shape, dtype, layout),
                   dnn.ConvolutionDescriptor(padding=1), dnn.TensorDescriptor(y.spec))  # fmt: skip
    x_desc, w_desc, conv_desc, y_desc = (descriptor.ptr for descriptor in descriptors)
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    arguments = (handle.ptr, ctypes.addressof(one), x_desc, x.ptr, w_desc, w.ptr, conv_desc, int(kind),
                 int(scratch.handle), plan.workspace, ctypes.addressof(zero), y_desc, y.ptr)  # fmt: skip
    keep = (plan, y, scratch, one, zero, descriptors)

    functions = {
        "bare ctypes": lambda keep=keep: bare(*arguments),
        "plan(x, w, out=y)": lambda: plan(x, w, out=y),
        "plan(x, w)": lambda: plan(x, w),
        "convolution_forward": lambda: dnn.convolution_forward(handle, x, w, conv),
        "convolution_forward, algorithm=": lambda: dnn.convolution_forward(handle, x, w, conv, algorithm=kind),
    }
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed; its column is missing", file=sys.stderr)
    else:
        torch_x, torch_w = torch.from_dlpack(x), torch.from_dlpack(w)
        functions["torch conv2d"] = lambda: torch.nn.functional.conv2d(torch_x, torch_w, padding=1)
    return functions, descriptors


def measure(handle: dnn.Handle, functions) -> dict[str, float]:
    """Return name -> median host microseconds per call."""
    samples = {name: [] for name in functions}
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
            start = time.perf_counter()
            for _ in range(CALLS):
                function()
            samples[name].append((time.perf_counter() - start) / CALLS * 1e6)
            handle.device.synchronize()
    return {name: statistics.median(values) for name, values in samples.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", action="store_true", help="print the table for the docs")
    options = parser.parse_args()
    with dnn.Handle() as handle:
        if handle.device.kind != "cuda":
            print(f"this benchmark needs a GPU; {handle.device} has none", file=sys.stderr)
            return 2
        results = {}
        for title, problem in SHAPES.items():
            functions, descriptors = contenders(handle, *problem)
            results[title] = measure(handle, functions)
            for descriptor in descriptors:
                descriptor.close()
        print(f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}, {handle.device.name}, cuDNN "
              f"{handle.api.library.version_text}, Python {sys.version.split()[0]}, cudnnlite {dnn.__version__}")  # fmt: skip
    bar = "|" if options.markdown else ""
    for title, times in results.items():
        base = times["bare ctypes"]
        print(f"\n{title}\n")
        print(f"{bar} {'call':32} {bar} {'us':>6} {bar} {'- bare':>7} {bar}")
        if options.markdown:
            print("| --- | ---: | ---: |")
        for name, value in times.items():
            print(f"{bar} {name:32} {bar} {value:6.2f} {bar} {value - base:+7.2f} {bar}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
