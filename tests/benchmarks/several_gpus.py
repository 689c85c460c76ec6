"""Tune the 23 layers of ResNet-50 (batch 32) on one GPU and on all: how much faster, processes starting, and without that.

    python tests/benchmarks/several_gpus.py [--config float32|float16]... [--repeats 2]

Each figure comes from a fresh process with a fresh cache.  Target: all GPUs / one GPU <= 0.6 (two GPUs), start included.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

BEGIN = time.perf_counter()
LAYERS = Path(__file__).parents[1] / "data" / "resnet50_layers.json"
CASES = ("one", "one, a handle for each task", "all", "one, warm", "all, warm")


def problems(config):
    import cudnnlite as dnn
    from cudnnlite.problem_list import ProblemList
    from cudnnlite.problems import ConvolutionForwardProblem

    listed = ProblemList()
    dtype, layout, math = ("float32", "NCHW", "FMA") if config == "float32" else ("float16", "NHWC", "TENSOR_OP")
    for layer in json.loads(LAYERS.read_text())["layers"]:
        c = layer["c"] if config == "float32" else -(-layer["c"] // 8) * 8
        x = dnn.TensorSpec((32, c, layer["h"], layer["w"]), dtype, layout)
        w = dnn.FilterSpec((layer["k"], c, layer["r"], layer["s"]), dtype, layout)
        conv = dnn.ConvolutionSpec(padding=layer["pad"], stride=layer["stride"], math_type=math)
        listed.add(ConvolutionForwardProblem(x, w, conv), count=layer["count"])
    return listed


def small():
    import cudnnlite as dnn
    from cudnnlite.problems import ConvolutionForwardProblem

    return ConvolutionForwardProblem(dnn.TensorSpec((1, 8, 16, 16)), dnn.FilterSpec((8, 8, 3, 3)))


def warm_up(folder, count):
    """Make a worker ready, and wait until all are."""
    from cudnnlite.autotune.policy import TuningPolicy
    from cudnnlite.autotune.workers import Task, tune_task

    answer = tune_task(Task(small(), TuningPolicy(), "cuda"))
    Path(folder, f"ready-{os.getpid()}").touch()
    while len(list(Path(folder).glob("ready-*"))) < count:
        time.sleep(0.01)
    return answer.worker.uuid


def child(case, config):
    """Tune, and print what it took."""
    import cudnnlite as dnn
    from cudnnlite.autotune.cache import TuningCache
    from cudnnlite.autotune.model import tune_model
    from cudnnlite.device import visible_gpus

    imported, count = time.perf_counter() - BEGIN, len(visible_gpus())
    listed = problems(config)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cache.sqlite"
        options, executor = {"workers": 1} if case.startswith("one") else {}, None
        if case == "one, a handle for each task":
            options, executor = {}, ThreadPoolExecutor(1)
        elif case == "one, warm":
            tune_model([small()], cache=":memory:", workers=1)
        elif case == "all, warm":
            executor = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))
            futures = [executor.submit(warm_up, folder, count) for _ in range(count)]
            print("warm on", {future.result() for future in futures}, file=sys.stderr)
        begin = time.perf_counter()
        tuning = tune_model(listed, cache=path, executor=executor, **options)
        took = time.perf_counter() - begin
        if executor is not None:
            executor.shutdown()
        with TuningCache(path) as cache:
            searching = sum(entry.seconds for entry in cache.entries())
        begin = time.perf_counter()
        again = tune_model(listed, cache=path)
        remembered_ms = (time.perf_counter() - begin) * 1000
        with dnn.Handle() as handle:
            begin = time.perf_counter()
            once_more = tune_model(listed, cache=path, device=handle)
            handle_ms = (time.perf_counter() - begin) * 1000
            opened = []
            for _ in range(5):
                begin = time.perf_counter()
                dnn.Handle().close()
                opened.append((time.perf_counter() - begin) * 1000)
        assert (again.remembered, once_more.remembered) == (len(listed), len(listed)), (again, once_more)
        print(json.dumps({
            "imported": imported, "took": took, "searching": searching, "failed": [str(t.why_none) for t in tuning.failed],
            "total_ms": tuning.total_ms, "remembered_ms": remembered_ms, "with_handle_ms": handle_ms,
            "open_handle_ms": statistics.median(opened), "gpus": count,
            "workers": [f"{worker.process} {worker.uuid[:12]}: {number}" for worker, number in tuning.workers.items()],
        }))  # fmt: skip


def run(case, config):
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, "--child", case, "--config", config], stdout=subprocess.PIPE, text=True, check=True
    )
    whole = time.perf_counter() - begin
    return {**json.loads(done.stdout.splitlines()[-1]), "whole": whole}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", action="append", choices=("float32", "float16"))
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--child", choices=CASES)
    arguments = parser.parse_args()
    configs = arguments.config or ["float32", "float16"]
    if arguments.child:
        child(arguments.child, configs[0])
        return 0
    good = True
    for config in configs:
        took = {}
        for case in CASES:
            runs = [run(case, config) for _ in range(arguments.repeats)]
            best = min(runs, key=lambda each: each["took"])
            took[case] = best["took"]
            print(
                f"{config} {case:28s} tune_model {best['took']:6.2f} s (of {[round(r['took'], 2) for r in runs]}), of which "
                f"searching {best['searching']:6.2f} s over all workers; the whole program {best['whole']:6.2f} s (imports "
                f"{best['imported']:.2f}); again from the cache {best['remembered_ms']:.1f} ms, with a handle "
                f"{best['with_handle_ms']:.1f} ms; a handle opens and closes in {best['open_handle_ms']:.1f} ms; model "
                f"{best['total_ms']:.3f} ms; {best['workers']}; failed {best['failed']}",
                flush=True,
            )  # fmt: skip
        cold, warm = took["all"] / took["one"], took["all, warm"] / took["one, warm"]
        good &= cold <= 0.6
        print(
            f"{config}: {best['gpus']} GPUs / one: {cold:.3f} with the start of the processes (target 0.6), {warm:.3f} "
            "without it", flush=True,
        )  # fmt: skip
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
