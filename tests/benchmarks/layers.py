"""Pooling, activation, softmax and batch normalisation on the device, beside PyTorch's call that does the same.

    python tests/benchmarks/layers.py [--markdown] [--json OUT.json]

Ten typical shapes each, of image networks and of classifiers; float32 with the channels first, float16 with the channels last.
Each call is captured twenty times into a CUDA graph, ours and PyTorch's; the graphs are replayed between two events in shuffled
rounds; medians, divided by twenty.  Both write into memory that is there, but for batch normalisation, whose outputs PyTorch
makes anew from its pool.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import cudnnlite as dnn
from cudnnlite.operations.activation import FORWARD as ACTIVATION
from cudnnlite.operations.batch_normalization import BACKWARD, TRAINING
from cudnnlite.operations.call import make_plan
from cudnnlite.operations.pooling import FORWARD as POOLING
from cudnnlite.operations.softmax import FORWARD as SOFTMAX

CALLS, ROUNDS = 20, 15
IMAGES = (
    (32, 64, 112, 112), (32, 256, 56, 56), (32, 512, 28, 28), (32, 1024, 14, 14), (32, 2048, 7, 7),
    (8, 64, 224, 224), (16, 192, 56, 56), (64, 96, 27, 27), (1, 64, 112, 112), (128, 32, 32, 32),
)  # fmt: skip
ROWS = (
    (32, 1000, 1, 1), (256, 1000, 1, 1), (1024, 1000, 1, 1), (4096, 128, 1, 1), (512, 512, 1, 1), (64, 10, 1, 1),
    (2048, 2048, 1, 1), (128, 32000, 1, 1), (8, 21, 256, 256), (4, 19, 512, 512),
)  # fmt: skip
CONFIGS = (("float32", "NCHW"), ("float16", "NHWC"))
Pair = tuple[Callable[[], Any], Callable[[], Any]]


def pooling(handle: dnn.Handle, x: Any, there: Any) -> Pair:
    """Maxima of 3 by 3, stride 2."""
    plan = make_plan(handle, POOLING, (x,), (dnn.PoolingSpec(3, 1, 2),))
    y = plan(x)
    return (lambda: plan(x, out=y)), (lambda: torch.nn.functional.max_pool2d(there, 3, 2, 1))


def activation(handle: dnn.Handle, x: Any, there: Any) -> Pair:
    """A relu, into memory of its own."""
    plan, out = make_plan(handle, ACTIVATION, (x,), (dnn.ActivationSpec("relu"),)), torch.empty_like(there)
    y = plan(x)
    return (lambda: plan(x, out=y)), (lambda: torch.clamp_min(there, 0, out=out))


def softmax(handle: dnn.Handle, x: Any, there: Any) -> Pair:
    """Over the channels."""
    plan = make_plan(handle, SOFTMAX, (x,), ("accurate", "channel"))
    y, out = plan(x), torch.empty_like(there)
    return (lambda: plan(x, out=y)), (lambda: torch.softmax(there, 1, out=out))


def normalisation(handle: dnn.Handle, x: Any, there: Any) -> Pair:
    """Training, by the statistics of the batch."""
    each = (1, x.shape[1], 1, 1)
    fill = {"scale": 1, "bias": 0, "mean": 0, "variance": 1}
    ours = [handle.array(np.full(each, value, np.float32), layout=x.layout) for value in fill.values()]
    theirs = [torch.full((x.shape[1],), float(value), device="cuda") for value in fill.values()]
    mode = "spatial_persistent" if x.layout == "NHWC" else "spatial"
    out = (None, None, None, *ours[2:])
    plan = make_plan(handle, TRAINING, (x, *ours[:2]), (mode, 0.1, 1e-5), out=out)
    y = (*plan(x, *ours[:2], out=out), *ours[2:])
    return (lambda: plan(x, *ours[:2], out=y)), (lambda: torch.native_batch_norm(there, *theirs, True, 0.1, 1e-5))


def normalisation_backward(handle: dnn.Handle, x: Any, there: Any) -> Pair:
    """Its gradients."""
    each, channels = (1, x.shape[1], 1, 1), x.shape[1]
    scale, mean, inverse = (handle.array(np.full(each, value, np.float32), layout=x.layout) for value in (1, 0, 1))
    dy, theirs = torch.randn_like(there), [torch.full((channels,), float(value), device="cuda") for value in (1, 0, 1)]
    mode = "spatial_persistent" if x.layout == "NHWC" else "spatial"
    given = (x, handle.view(dy), scale, mean, inverse)
    plan = make_plan(handle, BACKWARD, given, (mode, 1e-5))
    out, backward = plan(*given), torch.ops.aten.native_batch_norm_backward
    weights = (theirs[0], None, None, *theirs[1:])
    return (lambda: plan(*given, out=out)), (lambda: backward(dy, there, *weights, True, 1e-5, [True] * 3))


LAYERS: dict[str, tuple[Callable[..., Pair], tuple[tuple[int, ...], ...]]] = {
    "max pooling": (pooling, IMAGES), "relu": (activation, IMAGES), "softmax": (softmax, ROWS),
    "batch normalisation": (normalisation, IMAGES), "batch normalisation, backward": (normalisation_backward, IMAGES),
}  # fmt: skip


def captured(call: Callable[[], Any], stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """Return a graph of so many calls."""
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for _ in range(CALLS):
            call()
    return graph


def measured(graphs: list[torch.cuda.CUDAGraph], stream: torch.cuda.Stream) -> list[float]:
    """Return the microseconds of one call in each."""
    times: list[list[float]] = [[] for _ in graphs]
    with torch.cuda.stream(stream):
        for _ in range(ROUNDS):
            for number in random.sample(range(len(graphs)), len(graphs)):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                graphs[number].replay()
                end.record()
                end.synchronize()
                times[number].append(begin.elapsed_time(end) * 1000 / CALLS)
    return [statistics.median(each) for each in times]


def row(name: str, make: Callable[..., Pair], shape: tuple[int, ...], dtype: str, layout: str) -> list[Any]:
    """Return a row of the table."""
    stream = torch.cuda.Stream()
    with dnn.Handle("cuda", stream=stream) as handle, torch.cuda.stream(stream):
        format_ = torch.channels_last if layout == "NHWC" else torch.contiguous_format
        there = torch.randn(shape, device="cuda").to(getattr(torch, dtype), memory_format=format_)
        x = handle.view(there)
        graphs = [captured(call, stream) for call in make(handle, x, there)]
        ours, theirs = measured(graphs, stream)
        del graphs
    return [name, "x".join(map(str, shape)), f"{dtype} {layout}", ours, theirs, ours / theirs]


def main(arguments: list[str]) -> int:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    rows, join = [], " | " if options.markdown else "  "
    print(join.join(("layer", "shape", "type", "ours us", "PyTorch us", "ratio")))
    for name, (make, shapes) in LAYERS.items():
        for dtype, layout in CONFIGS:
            ratios = []
            for shape in shapes:
                rows.append(row(name, make, shape, dtype, layout))
                ratios.append(rows[-1][-1])
                print(join.join((*rows[-1][:3], *(f"{value:.2f}" for value in rows[-1][3:]))), flush=True)
            mean = math.exp(statistics.mean(map(math.log, ratios)))
            print(f"# {name}, {dtype} {layout}: geometric mean {mean:.3f}, worst {max(ratios):.3f}", flush=True)
    if options.json:
        head = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "calls": CALLS}
        options.json.write_text(json.dumps(head | {"rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
