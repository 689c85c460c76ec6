"""Tune many convolutions on one GPU and on all: the speed-up, with and without process starts.

    python tools/benchmarks/several_gpus.py [--set resnet50|all] [--config f32|f16-nhwc]...
                                            [--repeats 2]

The set "resnet50" has its 23 layers at batch 32, and "all" has these and DeepBench's 94.  Each
figure comes from a new process with a new cache.  The target for two GPUs is a time of at most 0.6
of that of one, with the start.
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


def problems(config, set_name):
    import convolution

    from cudnnlite.workbench.tuning.problem_list import ProblemList

    problem_list = ProblemList()
    for shape in convolution.shapes("training"):
        if set_name == "all" or shape.name.startswith(set_name):
            problem_list.add(convolution.problem_of(shape, config))
    return problem_list


def small():
    import cudnnlite as dnn

    return dnn.convolution_forward.problem(
        dnn.TensorSpec((1, 8, 16, 16)), dnn.FilterSpec((8, 8, 3, 3))
    )


def warm_up(folder, count):
    """Tune a small problem in a worker, and wait until all workers have done so."""
    from cudnnlite.workbench.tuning.policy import TuningPolicy
    from cudnnlite.workbench.tuning.tuning_run import tune_task

    answer = tune_task(small(), TuningPolicy(), "cuda")
    Path(folder, f"ready-{os.getpid()}").touch()
    while len(list(Path(folder).glob("ready-*"))) < count:
        time.sleep(0.01)
    return answer.worker.uuid


def child(case, config, set_name):
    """Tune, and print the times."""
    import cudnnlite as dnn
    from cudnnlite.devices.device_choice import visible_gpus
    from cudnnlite.workbench.tuning.cache import TuningCache
    from cudnnlite.workbench.tuning.model import tune_model

    import_s, count = time.perf_counter() - BEGIN, len(visible_gpus())
    problem_list = problems(config, set_name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cache"
        options = {"workers": 1} if case.startswith("one") else {}
        executor = None
        if case == "one, a handle for each task":
            options, executor = {}, ThreadPoolExecutor(1)
        elif case == "one, warm":
            tune_model([small()], cache=":memory:", workers=1)
        elif case == "all, warm":
            executor = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))
            futures = [executor.submit(warm_up, folder, count) for _ in range(count)]
            print("warm on", {future.result() for future in futures}, file=sys.stderr)
        begin = time.perf_counter()
        tuning = tune_model(problem_list, cache=path, executor=executor, **options)
        tuning_s = time.perf_counter() - begin
        if executor is not None:
            executor.shutdown()
        with TuningCache(path) as cache:
            searching = sum(entry.seconds for entry in cache.entries())
        begin = time.perf_counter()
        again = tune_model(problem_list, cache=path)
        remembered_ms = (time.perf_counter() - begin) * 1000
        with dnn.Handle() as handle:
            begin = time.perf_counter()
            once_more = tune_model(problem_list, cache=path, device=handle)
            handle_ms = (time.perf_counter() - begin) * 1000
            opened = []
            for _ in range(5):
                begin = time.perf_counter()
                dnn.Handle().close()
                opened.append((time.perf_counter() - begin) * 1000)
        assert again.remembered == len(problem_list), again
        assert once_more.remembered == len(problem_list), once_more
        print(
            json.dumps(
                {
                    "imported": import_s,
                    "took": tuning_s,
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


def run(case, config, set_name):
    """Return the figures of a new process."""
    begin = time.perf_counter()
    process = subprocess.run(
        [sys.executable, __file__, "--child", case, "--config", config, "--set", set_name],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    whole = time.perf_counter() - begin
    return {**json.loads(process.stdout.splitlines()[-1]), "whole": whole}


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
        seconds = {}
        for case in CASES:
            runs = [run(case, config, arguments.set) for _ in range(arguments.repeats)]
            times = [round(figures["took"], 2) for figures in runs]
            best = min(runs, key=lambda figures: figures["took"])
            seconds[case] = best["took"]
            print(
                f"{config} {case:28s} tune_model {best['took']:6.2f} s (of {times}), of which "
                f"searching {best['searching']:6.2f} s over all workers; "
                f"the whole program {best['whole']:6.2f} s (imports {best['imported']:.2f}); "
                f"again from the cache {best['remembered_ms']:.1f} ms, "
                f"with a handle {best['with_handle_ms']:.1f} ms; "
                f"a handle opens and closes in {best['open_handle_ms']:.1f} ms; "
                f"model {best['total_ms']:.3f} ms; {best['workers']}; failed {best['failed']}",
                flush=True,
            )
        cold = seconds["all"] / seconds["one"]
        warm = seconds["all, warm"] / seconds["one, warm"]
        good &= cold <= 0.6
        print(
            f"{config}, {arguments.set}: {best['gpus']} GPUs / one: {cold:.3f} with the start of "
            f"the processes (target 0.6), {warm:.3f} without it",
            flush=True,
        )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
