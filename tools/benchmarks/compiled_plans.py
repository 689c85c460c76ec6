"""What a process pays for compilation until its first result, with an empty cache and with a warm one.

    python -m tools.benchmarks.compiled_plans [--only WORD ...] [--runs 3] [--small] [--json OUT.json]

ResNet-50 as `examples/serve_resnet50.py` serves it, a block of a transformer, attention forward and
backward.  Each run is a process of its own, in `autotuned(measure=False)`: with a cache that is
empty, and with what the first run left there.  Times are from the start of the process; "finalised"
is the time within `cudnnBackendFinalize` of plans and kernel caches.  Then 100 sizes of one product
with bias and GELU, with dynamic shapes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import cudnnlite as dnn
from cudnnlite.graph.backend_descriptor import BackendDescriptor

ROOT = Path(__file__).parents[2]
STARTED = "CUDNNLITE_BENCHMARK_STARTED"
SIZES = 100
_COMPILED_MS = 50.0  # a plan that takes longer was compiled


class Finalized:
    """The times of the plans and kernel caches that were finalised in this process, in ms."""

    def __init__(self) -> None:
        self.times_ms: list[float] = []
        real_finalize = BackendDescriptor.finalize

        def timed_finalize(descriptor: BackendDescriptor) -> BackendDescriptor:
            start = time.perf_counter()
            try:
                return real_finalize(descriptor)
            finally:
                if descriptor.kind.name in ("EXECUTION_PLAN", "KERNEL_CACHE"):
                    self.times_ms.append((time.perf_counter() - start) * 1e3)

        BackendDescriptor.finalize = timed_finalize  # type: ignore[method-assign]


def attention(handle: dnn.Handle, small: bool) -> list[Any]:
    """Return the results of attention forward and backward."""
    shape = (1, 2, 64, 32) if small else (4, 16, 2048, 128)
    rng = np.random.default_rng(1)
    q, k, v, do = (handle.array(rng.standard_normal(shape).astype(np.float16)) for _ in range(4))
    o, stats = dnn.scaled_dot_product_attention_forward(
        handle, q, k, v, causal=True, return_stats=True
    )
    gradients = dnn.scaled_dot_product_attention_backward(
        handle, q, k, v, o, do, stats, causal=True
    )
    return [o, *gradients[1:]]  # dq is summed in no fixed order


def block(handle: dnn.Handle, small: bool) -> list[Any]:
    """Return the result of a transformer's block, forward."""
    rows, width, heads = (64, 64, 2) if small else (4 * 512, 1024, 16)
    rng = np.random.default_rng(2)

    def random(*shape: int) -> Any:
        return handle.array((0.02 * rng.standard_normal(shape)).astype(np.float16))

    def normalized(x: Any) -> Any:
        ones = handle.array(np.ones((1, width, 1, 1), np.float32))
        zeros = handle.zeros((1, width, 1, 1))
        y = dnn.layer_normalization_forward(handle, x.reshape(rows, width, 1, 1), ones, zeros)
        return y.reshape(rows, width)

    x = random(rows, width)
    h = normalized(x)
    size = width // heads
    q, k, v = (
        dnn.matmul(handle, h, random(width, width))
        .reshape(rows // 64, 64, heads, size)
        .transpose(0, 2, 1, 3)
        for _ in range(3)
    )
    a = handle.zeros((rows // 64, 64, heads, size), "float16")
    dnn.scaled_dot_product_attention_forward(handle, q, k, v, out=a.transpose(0, 2, 1, 3))
    a = a.reshape(rows, width)
    h = normalized(dnn.matmul(handle, a, random(width, width)))
    h = dnn.matmul(handle, h, random(width, 4 * width), bias=random(4 * width), activation="gelu")
    return [dnn.matmul(handle, h, random(4 * width, width))]


def resnet(handle: dnn.Handle, small: bool) -> list[Any]:
    """Return the logits of ResNet-50 for a batch of one."""
    sys.path.insert(0, str(ROOT / "examples"))
    import serve_resnet50

    model = serve_resnet50.resnet((1, 1, 1, 1), 8, 32, 10) if small else serve_resnet50.resnet()
    server = serve_resnet50.Server(handle, model, 1)
    image = np.random.default_rng(3).standard_normal(server.input.shape)
    server.fill(image)
    server.start()
    logits = server.finish().copy()
    server.close()
    return [logits]


SUBJECTS: dict[str, Callable[[dnn.Handle, bool], list[Any]]] = {
    "resnet50": resnet,
    "transformer block": block,
    "attention": attention,
}


def measure(name: str, cache: str, small: bool) -> dict[str, Any]:
    """Return the figures of this process, which has just started."""
    warnings.simplefilter("ignore", UserWarning)  # nothing is tuned, the heuristics choose
    finalized = Finalized()
    with dnn.Handle() as handle, dnn.autotuned(handle, cache=cache, measure=False):
        results = SUBJECTS[name](handle, small)
        arrays = [array if isinstance(array, np.ndarray) else array.numpy() for array in results]
    total_ms = (time.time() - float(os.environ[STARTED])) * 1e3
    digest = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
    return {
        "total_ms": total_ms,
        "plans": len(finalized.times_ms),
        "finalized_ms": sum(finalized.times_ms),
        "bits": digest[:12],
    }


def start(name: str, cache: Path, small: bool) -> dict[str, Any]:
    """Run `measure` in a new process."""
    command = [sys.executable, "-m", __spec__.name, "--measure", name, "--cache", str(cache)]
    if small:
        command.append("--small")
    process = subprocess.run(
        command,
        env=os.environ | {STARTED: repr(time.time())},
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        raise SystemExit(f"{name}: {process.stderr}")
    figures: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return figures


def compare(name: str, runs: int, small: bool) -> dict[str, Any]:
    """Return the medians of runs with an empty cache and with a warm one."""
    cold, warm = [], []
    with tempfile.TemporaryDirectory() as folder:
        start(
            name, Path(folder, "first"), small
        )  # the system's file cache has libcudnn from now on
        for run in range(runs):
            cold.append(start(name, Path(folder, str(run)), small))
            warm.append(start(name, Path(folder, str(run)), small))
        size = sum(path.stat().st_size for path in Path(folder, "0").rglob("*.plan"))
    row: dict[str, Any] = {"subject": name, "kilobytes": size / 1e3, "plans": warm[0]["plans"]}
    for side, figures in (("cold", cold), ("warm", warm)):
        for field in ("total_ms", "finalized_ms"):
            row[f"{side}_{field}"] = statistics.median(entry[field] for entry in figures)
    row["same_bits"] = len({entry["bits"] for entry in (*cold, *warm)}) == 1
    return row


def open_shapes(small: bool) -> dict[str, Any]:
    """Return what plans of one product cost whose sizes are new each time."""
    finalized = Finalized()
    rng = np.random.default_rng(4)
    largest = 16 if small else 256
    with dnn.Handle() as handle:
        start_time = time.perf_counter()
        for _ in range(SIZES):
            m, k, n = (8 * int(size) for size in rng.integers(2, largest, 3))
            graph = dnn.Graph(dynamic_shapes=True)
            a = graph.input("a", (1, m, k), "float16")
            b = graph.input("b", (1, k, n), "float16")
            bias = graph.input("bias", (1, 1, n), "float16")
            graph.output("y", graph.gelu(graph.matmul(a, b) + bias), "float16")
            with graph.plan(handle) as plan:
                arrays = {
                    name: handle.array(rng.standard_normal(record.spec.shape).astype(np.float16))
                    for name, record in graph.inputs.items()
                }
                plan(**arrays)["y"].numpy()
        seconds = time.perf_counter() - start_time
    compiled = [ms for ms in finalized.times_ms if ms > _COMPILED_MS]
    quick = [ms for ms in finalized.times_ms if ms <= _COMPILED_MS]
    return {
        "sizes": SIZES,
        "compiled": len(compiled),
        "compiled_ms": sum(compiled),
        "median_ms": statistics.median(quick) if quick else 0.0,
        "seconds": seconds,
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", help="subjects whose names have one of these words")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="small sizes, as without a GPU")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, arguments.cache, arguments.small)))
        return
    rows = []
    print(
        "| | plans | kB | finalised cold, ms | warm, ms | first result cold, ms | warm, ms | bits |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for name in SUBJECTS:
        if arguments.only and not any(word in name for word in arguments.only):
            continue
        row = compare(name, arguments.runs, arguments.small)
        rows.append(row)
        bits = "same" if row["same_bits"] else "DIFFERENT"
        print(
            f"| {name} | {row['plans']} | {row['kilobytes']:.0f} | {row['cold_finalized_ms']:.0f} "
            f"| {row['warm_finalized_ms']:.1f} | {row['cold_total_ms']:.0f} "
            f"| {row['warm_total_ms']:.0f} | {bits} |",
            flush=True,
        )
    if not arguments.only or "shapes" in arguments.only:
        shapes = open_shapes(arguments.small)
        rows.append(shapes)
        print(
            f"{shapes['sizes']} sizes of a product: {shapes['compiled']} compiled in "
            f"{shapes['compiled_ms']:.0f} ms, the others {shapes['median_ms']:.2f} ms (median)"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
