"""cudnn-frontend's Python beside ours: its first plan and our tuned one, device time, eager calls, host time.

    python tools/benchmarks/frontend.py [--configs tf32,f16-nhwc] [--suite networks] [--every N] [--seconds S] [--check]

The problems are the 2-D ones of `convolution.py`; the frontend (`pip install nvidia-cudnn-frontend`) runs the first plan of
heuristic A, as its samples do.  All are measured in shuffled rounds; medians.  With `--sequence`: the 53 convolutions of
ResNet-50, batch 1, called one after the other, beside PyTorch's too.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import numpy as np
from convolution import DATA, Peer, Shape, geometric_mean, problem_of, rounds_of, shapes

import cudnnlite as dnn
from cudnnlite.autotune.convolution import operands_of

TARGETS = {
    "device": 0.95,
    "eager": 0.95,
    "host": 1.0,
}  # geometric means of ours over the frontend's
SEQUENCE = 0.8  # ours over PyTorch's, the whole sequence
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
        conv = problem.conv
        steps = [list(each) for each in conv.steps(2)]
        result = graph.conv_fprop(
            image=image, weight=weight, padding=steps[0], stride=steps[1], dilation=steps[2]
        )
        result.set_output(True).set_dim(list(arrays[2].shape)).set_stride(
            list(arrays[2].stride())
        ).set_data_type(kind)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.check_support()
        graph.build_plans()
        self.graph, self.pack = graph, dict(zip((image, weight, result), arrays, strict=True))
        self.workspace = torch.empty(
            max(graph.get_workspace_size(), 1), device="cuda", dtype=torch.uint8
        )

    def __call__(self):
        self.graph.execute(self.pack, self.workspace, handle=Frontend.handle)


def wall(work, stream, calls):
    """Return the microseconds of a call among many, with the device's work done and until it returns."""
    stream.sync()
    begin = time.perf_counter()
    for _ in range(calls):
        work()
    returned = time.perf_counter()
    stream.sync()
    return (time.perf_counter() - begin) / calls * 1e6, (returned - begin) / calls * 1e6


def run(handle, problem):
    """Return {"device": ours over the frontend's, ...} of one problem, and what is printed of it."""
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
    ms = tables["device"].best().time_ms
    repeats, calls = (max(1, min(most, round(of / ms))) for most, of in ((32, 0.5), (20, CALLS_MS)))
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
        took, host = wall(works["eager"] if name == "ours" else theirs, stream, calls)
        hosts[name].append(host)
        return took

    eager = rounds_of(call, ["ours", "theirs"], lambda _: ["ours", "theirs"])
    host = {name: float(np.median(times)) for name, times in hosts.items()}
    for plan in plans.values():
        plan.close()
    handle.workspace.release()
    measured = {"device": us, "eager": eager, "host": host}
    return {kind: times["ours"] / times["theirs"] for kind, times in measured.items()}, measured


def sequence(handle, config="f16-nhwc"):
    """Return the microseconds of all of ResNet-50's convolutions in a row, by whom."""
    layers = [
        Shape(
            "",
            (BATCH, row["c"], row["h"], row["w"]),
            (row["k"], row["c"], row["r"], row["s"]),
            row["pad"],
            row["stride"],
        )
        for row in json.loads((DATA / "resnet50_layers.json").read_text())["layers"]
        for _ in range(row["count"])
    ]
    stream, works = (
        handle.stream,
        {"torch": [], "frontend": [], "ours, tuned": [], "ours, untuned": []},
    )
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

    def torch_all():  # the stream is set once, as a program would
        import torch

        with torch.no_grad(), torch.cuda.stream(works["torch"][0].stream):
            for work in works["torch"]:
                work.y = work.call()

    calls = {
        name: (torch_all if name == "torch" else lambda name=name: all_of(name)) for name in works
    }
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
    parser.add_argument("--check", action="store_true", help="exit 1 where a target is missed")
    chosen = parser.parse_args()
    failed, start = False, time.perf_counter()
    with dnn.Handle() as handle:
        handle.stream = handle.device.create_stream()
        if chosen.sequence:
            us = sequence(handle)
            for name, took in us.items():
                print(
                    f"ResNet-50's 53 convolutions, batch {BATCH}, float16 NHWC, eager: {name:14} {took:8.1f} us "
                    f"{took / us['torch']:.3f}"
                )
            failed |= us["ours, tuned"] > SEQUENCE * us["torch"]
        for config in chosen.configs.split(",") if not chosen.sequence else ():
            ratios = {kind: [] for kind in TARGETS}
            for shape in [each for each in shapes(chosen.suite) if len(each.x) == 4][
                :: chosen.every
            ]:
                if time.perf_counter() - start > chosen.seconds:
                    print(f"{config}: stopped for want of time before {shape.name}")
                    break
                try:
                    row, measured = run(handle, problem_of(shape, config))
                except RuntimeError as error:  # the frontend's: it has no plan
                    print(f"{config:10} {shape.name:32} {str(error)[:90]}")
                    continue
                shown = "  ".join(
                    f"{kind} {times['ours']:8.1f} {times['theirs']:8.1f} {row[kind]:.3f}"
                    for kind, times in measured.items()
                )
                print(f"{config:10} {shape.name:32} {shown}", flush=True)
                for kind, ratio in row.items():
                    ratios[kind].append(ratio)
            for kind, each in ratios.items():
                if each:
                    print(
                        f"{config}, {len(each)} problems, {kind}: ours/frontend geometric mean {geometric_mean(each):.3f} "
                        f"(target {TARGETS[kind]}), worst {max(each):.3f}"
                    )
                    failed |= geometric_mean(each) > TARGETS[kind]
    return int(failed and chosen.check)


if __name__ == "__main__":
    sys.exit(main())
