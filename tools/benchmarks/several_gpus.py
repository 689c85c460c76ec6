"""Tune many convolutions on one GPU and on all: how much faster, processes starting, and without that.

    python tools/benchmarks/several_gpus.py [--set resnet50|all] [--config f32|f16-nhwc]... [--repeats 2]

"resnet50" are its 23 layers at batch 32, "all" these and DeepBench's 94.  Each figure comes from a fresh process with a fresh
cache.  Target: all GPUs / one GPU <= 0.6 (two GPUs), start included.
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
CASES = ("one", "one, a handle for each task", "all", "one, warm", "all, warm")


def problems(config, which):
    import convolution

    from cudnnlite.problems.problem_list import ProblemList

    listed = ProblemList()
    for shape in convolution.shapes("training"):
        if which == "all" or shape.name.startswith(which):
            listed.add(convolution.problem_of(shape, config))
    return listed


def small():
    import cudnnlite as dnn

    return dnn.convolution_forward.problem(
        dnn.TensorSpec((1, 8, 16, 16)), dnn.FilterSpec((8, 8, 3, 3))
    )


def warm_up(folder, count):
    """Make a worker ready, and wait until all are."""
    from cudnnlite.autotune.policy import TuningPolicy
    from cudnnlite.autotune.tuning_run import tune_task

    answer = tune_task(small(), TuningPolicy(), "cuda")
    Path(folder, f"ready-{os.getpid()}").touch()
    while len(list(Path(folder).glob("ready-*"))) < count:
        time.sleep(0.01)
    return answer.worker.uuid


def child(case, config, which):
    """Tune, and print what it took."""
    import cudnnlite as dnn
    from cudnnlite.autotune.cache import TuningCache
    from cudnnlite.autotune.model import tune_model
    from cudnnlite.devices.choice import visible_gpus

    imported, count = time.perf_counter() - BEGIN, len(visible_gpus())
    listed = problems(config, which)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cache"
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
        assert (again.remembered, once_more.remembered) == (len(listed), len(listed)), (
            again,
            once_more,
        )
        print(
            json.dumps(
                {
                    "imported": imported,
                    "took": took,
                    "searching": searching,
                    "failed": [str(t.why_none) for t in tuning.failed],
                    "total_ms": tuning.total_ms,
                    "remembered_ms": remembered_ms,
                    "with_handle_ms": handle_ms,
                    "open_handle_ms": statistics.median(opened),
                    "gpus": count,
                    "workers": [
                        f"{worker.process} {worker.uuid[:12]}: {number}"
                        for worker, number in tuning.workers.items()
                    ],
                }
            )
        )


def run(case, config, which):
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, "--child", case, "--config", config, "--set", which],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    whole = time.perf_counter() - begin
    return {**json.loads(done.stdout.splitlines()[-1]), "whole": whole}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", action="append", choices=("f32", "f16-nhwc"))
    parser.add_argument("--set", default="resnet50", choices=("resnet50", "all"))
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--child", choices=CASES)
    arguments = parser.parse_args()
    configs = arguments.config or ["f32", "f16-nhwc"]
    if arguments.child:
        child(arguments.child, configs[0], arguments.set)
        return 0
    good = True
    for config in configs:
        took = {}
        for case in CASES:
            runs = [run(case, config, arguments.set) for _ in range(arguments.repeats)]
            best = min(runs, key=lambda each: each["took"])
            took[case] = best["took"]
            print(
                f"{config} {case:28s} tune_model {best['took']:6.2f} s (of {[round(r['took'], 2) for r in runs]}), of which "
                f"searching {best['searching']:6.2f} s over all workers; the whole program {best['whole']:6.2f} s (imports "
                f"{best['imported']:.2f}); again from the cache {best['remembered_ms']:.1f} ms, with a handle "
                f"{best['with_handle_ms']:.1f} ms; a handle opens and closes in {best['open_handle_ms']:.1f} ms; model "
                f"{best['total_ms']:.3f} ms; {best['workers']}; failed {best['failed']}",
                flush=True,
            )
        cold, warm = took["all"] / took["one"], took["all, warm"] / took["one, warm"]
        good &= cold <= 0.6
        print(
            f"{config}, {arguments.set}: {best['gpus']} GPUs / one: {cold:.3f} with the start of the processes (target 0.6), "
            f"{warm:.3f} without it",
            flush=True,
        )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
