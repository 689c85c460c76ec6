"""cudnn-frontend's Python beside ours: device time, eager calls and host time of convolutions.

    python tools/benchmarks/frontend.py [--configs tf32,f16-nhwc] [--suite networks] [--every N]
                                        [--seconds S] [--check]
    python tools/benchmarks/frontend.py --sequence

The problems are the 2-D ones of `convolution.py`.  The frontend (`pip install
nvidia-cudnn-frontend`) runs the first plan of heuristic A, as its samples do.  Ours is the tuned
plan.  The rounds are shuffled, and the median counts.  `--sequence` calls the 53 convolutions of
ResNet-50 at batch 1 one after the other, beside PyTorch's too.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from statistics import geometric_mean

import numpy as np
from convolution import DATA, Peer, Shape, problem_of, rounds_of, shapes

import cudnnlite as dnn
from cudnnlite.workbench.tuning.convolution import operands_of

# Targets: the geometric means of our time over the frontend's.
TARGETS = {"device": 0.95, "eager": 0.95, "host": 1.0}
SEQUENCE = 0.8  # the target of the sequence: our time over PyTorch's
BATCH, CALLS_MS = 1, 2.0


class Frontend:
    """A convolution by cudnn-frontend on our stream."""

    handle = None

    def __init__(self, problem, x, w, y, stream):
        import cudnn
        import torch

        if Frontend.handle is None:
            Frontend.handle = cudnn.create_handle()
        cudnn.set_stream(handle=Frontend.handle, stream=int(stream.handle))
        kind = getattr(cudnn.data_type, problem.x.dtype.name)
        graph = cudnn.pygraph(
            io_data_type=kind,
            intermediate_data_type=cudnn.data_type.FLOAT,
            compute_data_type=cudnn.data_type.FLOAT,
            handle=Frontend.handle,
        )
        arrays = [torch.from_dlpack(array) for array in (x, w, y)]
        image, weight = (graph.tensor_like(array) for array in arrays[:2])
        padding, stride, dilation = (list(steps) for steps in problem.conv.steps(2))
        result = graph.conv_fprop(
            image=image, weight=weight, padding=padding, stride=stride, dilation=dilation
        )
        result.set_output(True).set_data_type(kind)
        result.set_dim(list(arrays[2].shape)).set_stride(list(arrays[2].stride()))
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.check_support()
        graph.build_plans()
        self.graph = graph
        self.pack = dict(zip((image, weight, result), arrays, strict=True))
        workspace_size = max(graph.get_workspace_size(), 1)
        self.workspace = torch.empty(workspace_size, device="cuda", dtype=torch.uint8)

    def __call__(self):
        self.graph.execute(self.pack, self.workspace, handle=Frontend.handle)


def wall(work, stream, calls):
    """Return the microseconds of a call among many: with the device's work, and on the host."""
    stream.sync()
    begin = time.perf_counter()
    for _ in range(calls):
        work()
    returned = time.perf_counter()
    stream.sync()
    return (time.perf_counter() - begin) / calls * 1e6, (returned - begin) / calls * 1e6


def run(handle, problem):
    """Return our times over the frontend's for one problem, by kind of time, and the times."""
    stream, device = handle.stream, handle.device
    operands = operands_of(handle, problem)
    x, w, y = (operands[name] for name in ("x", "w", "out"))
    theirs = Frontend(problem, x, w, y, stream)
    tables = {
        "device": dnn.Tuner(handle, ":memory:", dnn.TuningPolicy("device")).tune(problem),
        "eager": dnn.Tuner(handle, ":memory:").tune(problem),
    }
    plans = {
        name: dnn.convolution_forward.plan(
            handle, x, w, problem.conv, out=y, algorithm=table.best()
        )
        for name, table in tables.items()
    }
    best_ms = tables["device"].best().time_ms
    repeats = max(1, min(32, round(0.5 / best_ms)))
    calls = max(1, min(20, round(CALLS_MS / best_ms)))
    theirs()
    expected = y.numpy().astype(np.float64)
    works = {
        "device": lambda: plans["device"](x, w, out=y),
        "eager": lambda: plans["eager"](x, w, out=y),
    }
    for work in works.values():
        work()
        assert np.linalg.norm(y.numpy() - expected) <= 5e-3 * np.linalg.norm(expected)
    graphs = {
        name: device.capture(lambda work=work: [work() for _ in range(repeats)], stream)
        for name, work in (("ours", works["device"]), ("theirs", theirs))
    }
    for replay in graphs.values():
        replay()
    us = rounds_of(
        lambda name: device.elapsed_ms(graphs[name], stream) / repeats * 1e3,
        list(graphs),
        lambda _: [*graphs],
    )
    hosts = {"ours": [], "theirs": []}

    def call(name):
        work = works["eager"] if name == "ours" else theirs
        call_us, host_us = wall(work, stream, calls)
        hosts[name].append(host_us)
        return call_us

    eager = rounds_of(call, ["ours", "theirs"], lambda _: ["ours", "theirs"])
    host = {name: float(np.median(times)) for name, times in hosts.items()}
    for plan in plans.values():
        plan.close()
    handle.workspace.release()
    measured = {"device": us, "eager": eager, "host": host}
    return {kind: times["ours"] / times["theirs"] for kind, times in measured.items()}, measured


def sequence(handle, config="f16-nhwc"):
    """Return the microseconds of all of ResNet-50's convolutions in a row, by contender."""
    layers = []
    for row in json.loads((DATA / "resnet50_layers.json").read_text())["layers"]:
        x = (BATCH, row["c"], row["h"], row["w"])
        w = (row["k"], row["c"], row["r"], row["s"])
        layers += [Shape("", x, w, row["pad"], row["stride"])] * row["count"]
    stream = handle.stream
    works = {"torch": [], "frontend": [], "ours, tuned": [], "ours, untuned": []}
    with dnn.Tuner(handle, ":memory:") as tuner:
        for layer in layers:
            problem = problem_of(layer, config)
            operands = operands_of(handle, problem)
            x, w, y = (operands[name] for name in ("x", "w", "out"))
            works["torch"].append(Peer(problem, operands, stream))
            works["frontend"].append(Frontend(problem, x, w, y, stream))
            for name, choice in (("ours, tuned", tuner.choose(problem)), ("ours, untuned", None)):
                plan = dnn.convolution_forward.plan(
                    handle, x, w, problem.conv, out=y, algorithm=choice
                )
                works[name].append(lambda plan=plan, x=x, w=w, y=y: plan(x, w, out=y))

    def all_of(name):
        for work in works[name]:
            work()

    def torch_all():  # It sets the stream once, as a program does.
        import torch

        with torch.no_grad(), torch.cuda.stream(works["torch"][0].stream):
            for work in works["torch"]:
                work.y = work.call()

    calls = {name: lambda name=name: all_of(name) for name in works}
    calls["torch"] = torch_all
    for call in calls.values():
        call()
    return rounds_of(
        lambda name: wall(calls[name], stream, 10)[0], list(works), lambda _: list(works)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configs", default="tf32,f16-nhwc")
    parser.add_argument("--suite", choices=("training", "networks"))
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no problem after that")
    parser.add_argument("--sequence", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    options = parser.parse_args()
    failed, start = False, time.perf_counter()
    with dnn.Handle() as handle:
        handle.stream = handle.device.create_stream()
        configs = options.configs.split(",")
        if options.sequence:
            configs = []
            us = sequence(handle)
            for name, call_us in us.items():
                print(
                    f"ResNet-50's 53 convolutions, batch {BATCH}, float16 NHWC, eager: "
                    f"{name:14} {call_us:8.1f} us {call_us / us['torch']:.3f}"
                )
            failed |= us["ours, tuned"] > SEQUENCE * us["torch"]
        flat_shapes = [shape for shape in shapes(options.suite) if len(shape.x) == 4]
        for config in configs:
            ratios = {kind: [] for kind in TARGETS}
            for shape in flat_shapes[:: options.every]:
                if time.perf_counter() - start > options.seconds:
                    print(f"{config}: stopped for want of time before {shape.name}")
                    break
                try:
                    row, measured = run(handle, problem_of(shape, config))
                except RuntimeError as error:  # The frontend has no plan.
                    print(f"{config:10} {shape.name:32} {str(error)[:90]}")
                    continue
                figures = "  ".join(
                    f"{kind} {times['ours']:8.1f} {times['theirs']:8.1f} {row[kind]:.3f}"
                    for kind, times in measured.items()
                )
                print(f"{config:10} {shape.name:32} {figures}", flush=True)
                for kind, ratio in row.items():
                    ratios[kind].append(ratio)
            for kind, values in ratios.items():
                if values:
                    mean = geometric_mean(values)
                    print(
                        f"{config}, {len(values)} problems, {kind}: ours/frontend geometric mean "
                        f"{mean:.3f} (target {TARGETS[kind]}), worst {max(values):.3f}"
                    )
                    failed |= mean > TARGETS[kind]
    return int(failed and options.check)


if __name__ == "__main__":
    sys.exit(main())
