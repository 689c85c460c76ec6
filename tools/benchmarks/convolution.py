"""Convolutions and their gradients on the device: what the tuner chooses beside cudnnFind, cuDNN's v7 heuristic and PyTorch.

    python tools/benchmarks/convolution.py [--markdown] [--json OUT.json] [--configs f32,tf32] [--suite networks] [--check]
    python tools/benchmarks/convolution.py --operation backward_data --suite deepbench --configs f32,tf32,f16-nhwc

The problems are DeepBench's 94 training convolutions ("deepbench") and the distinct layers of ResNet-50 at batch 32
("training" is both), and 30 convolutions of other networks, depthwise, grouped, dilated, 1-D and 3-D ones among them
("networks"). Each is timed as CUDA graphs of calls, replayed, between two events, in shuffled rounds with all the peers among
them; medians. PyTorch runs with `cudnn.benchmark = True`. 'best' is the least of all candidates that took at most twice the
choice's time when they were tuned, timed again here. Where the choice, the best and PyTorch lie within a few percent, these
are taken in more rounds.

'default' is what a call runs that names no algorithm and was never tuned.

With `--eager` the tuner's objective is latency, and the times are wall times of eager calls.

With `--quick` cudnnFind, the v7 heuristic and the candidates near the choice are left out: the choice, what a call runs that
was never tuned, and PyTorch remain.  `--shard 0/2 --json a.json` takes every second row, `--shard 1/2 --json b.json` the others
(at the same time, on another GPU by CUDA_VISIBLE_DEVICES), and `--merge a.json,b.json` judges both as one run.

A gradient's peer is `torch.ops.aten.convolution_backward` with an `output_mask` for that gradient alone.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import cudnnlite as dnn
from cudnnlite.specs.layout import CHANNELS_FIRST, CHANNELS_LAST

DATA = Path(__file__).parents[2] / "tests" / "data"
# name: (dtype, layout, math type, channels in multiples of)
CONFIGS = {
    "f32": ("float32", "NCHW", "FMA", 1),
    "tf32": ("float32", "NCHW", "DEFAULT", 1),
    "tf32-nhwc": ("float32", "NHWC", "DEFAULT", 1),
    "f16-nhwc": ("float16", "NHWC", "TENSOR_OP", 8),
    "bf16-nhwc": ("bfloat16", "NHWC", "TENSOR_OP", 8),
}
OPERATIONS = ("forward", "backward_data", "backward_filter")
# geometric means of ours over PyTorch's, and what no row may be above: of the device, of eager calls, of gradients
TARGETS = {"f32": 0.77, "tf32": 0.92, "tf32-nhwc": 0.92, "f16-nhwc": 0.90, "bf16-nhwc": 0.91}
WORST, EAGER, EAGER_WORST, GRADIENT, GRADIENT_WORST = 1.03, 0.95, 1.10, 0.95, 1.05
WITHIN = 1.03  # ours over the best of all candidates, on every row
ROUNDS, MORE_ROUNDS, NEAR = 7, 14, 0.05
AGREE = {"f32": 1e-4, "tf32": 5e-3, "tf32-nhwc": 5e-3, "f16-nhwc": 5e-3, "bf16-nhwc": 3e-2}


class Shape(NamedTuple):
    """A convolution, but for its data type, layout and math type."""

    name: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    padding: Any
    stride: Any
    dilation: Any = 1
    groups: int = 1


def shapes(suite):
    """Yield the problems of a suite, or all."""
    if suite != "networks":
        yield from (
            shape
            for shape in training()
            if suite != "deepbench" or shape.name.startswith("deepbench")
        )
    if suite in (None, "networks"):
        for name, x, w, *steps in json.loads((DATA / "network_convolutions.json").read_text())[
            "rows"
        ]:
            yield Shape(
                name,
                tuple(x),
                tuple(w),
                *(tuple(step) if isinstance(step, list) else step for step in steps),
            )


def training():
    """Yield DeepBench's problems, and ResNet-50's."""
    for number, row in enumerate(
        json.loads((DATA / "deepbench_convolutions.json").read_text())["convolution"]
    ):
        n, c, h, w, k, r, s, pad_h, pad_w, stride_h, stride_w = row
        yield Shape(
            f"deepbench {number}", (n, c, h, w), (k, c, r, s), (pad_h, pad_w), (stride_h, stride_w)
        )
    for row in json.loads((DATA / "resnet50_layers.json").read_text())["layers"]:
        x, w = (32, row["c"], row["h"], row["w"]), (row["k"], row["c"], row["r"], row["s"])
        yield Shape(f"resnet50 x{row['count']}", x, w, row["pad"], row["stride"])


def problem_of(shape, config, operation="forward"):
    """Return the problem: a convolution, or a gradient of it."""
    dtype, layout, math_type, multiple = CONFIGS[config]
    layout = (CHANNELS_FIRST if layout == "NCHW" else CHANNELS_LAST)[len(shape.x)]
    (n, c, *image), (k, depth, *taps) = shape.x, shape.w
    if shape.groups == 1:
        c = depth = math.ceil(c / multiple) * multiple
        k = math.ceil(k / multiple) * multiple
    conv = dnn.ConvolutionSpec(
        shape.padding, shape.stride, shape.dilation, shape.groups, math_type=math_type
    )
    x, w = (
        dnn.TensorSpec((n, c, *image), dtype, layout),
        dnn.FilterSpec((k, depth, *taps), dtype, layout),
    )
    forward = dnn.convolution_forward.problem(x, w, conv)
    if operation == "backward_data":
        return dnn.convolution_backward_data.problem(w, forward.y, conv, out=x)
    return (
        dnn.convolution_backward_filter.problem(x, forward.y, conv, out=w)
        if operation == "backward_filter"
        else forward
    )


class Peer:
    """PyTorch's convolution, or its gradient, on our stream; the operands are ours, `out` for its shape alone."""

    def __init__(self, problem, operands, stream):
        import torch

        self.torch, self.problem = torch, problem
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = problem.math_type != dnn.MathType.FMA
        names = (*problem.operation.reads, problem.operation.writes[0])
        self.written = names[-1]
        arrays = (*(operands[name] for name in names[:-1]), operands["out"])
        tensors = {
            name.removeprefix("d"): torch.from_dlpack(array)
            for name, array in zip(names, arrays, strict=True)
        }
        self.x, self.w, self.dy = (tensors[name] for name in "xwy")
        self.rank = arrays[0].spec.rank - 2
        self.stream = torch.cuda.ExternalStream(int(stream.handle))
        torch.cuda.synchronize()

    def __call__(self):
        with self.torch.no_grad(), self.torch.cuda.stream(self.stream):
            self.y = self.call()

    def call(self):
        """Make the call on PyTorch's stream."""
        conv = self.problem.conv
        if self.written != "y":
            padding, stride, dilation = map(list, conv.steps(self.rank))
            mask, zeros = [self.written == "dx", self.written == "dw", False], [0] * self.rank
            found = self.torch.ops.aten.convolution_backward(
                self.dy,
                self.x,
                self.w,
                None,
                stride,
                padding,
                dilation,
                False,
                zeros,
                conv.groups,
                mask,
            )
            return found[mask.index(True)]
        function = getattr(self.torch.nn.functional, f"conv{self.rank}d")
        steps = {"padding": conv.padding, "stride": conv.stride, "dilation": conv.dilation}
        return function(self.x, self.w, groups=conv.groups, **steps)

    def graph(self, repeats):
        """Return what replays a graph of `repeats` calls."""
        torch = self.torch
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.graph(graph, stream=side):
            for _ in range(repeats):
                self.captured = self.call()
        torch.cuda.synchronize()

        def replay():
            with torch.cuda.stream(self.stream):
                graph.replay()

        return replay

    def kernels(self):
        """Return the names of the kernels that a call runs, the longest first, with their microseconds."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as taken:
            self()
            self.stream.synchronize()
        events = sorted(taken.key_averages(), key=lambda event: -event.device_time_total)
        return [
            f"{event.key[:60]} {event.device_time_total:.1f}"
            for event in events
            if event.device_time_total
        ][:3]


def rounds_of(measure, names, close):
    """Return {name: median of measure(name)} over shuffled rounds, more of them for those that `close` names."""
    shuffle, taken = random.Random(0), {name: [] for name in names}

    def take(order, rounds):
        for _ in range(rounds):
            shuffle.shuffle(order)
            for name in order:
                taken[name].append(measure(name))

    def medians():
        return {name: statistics.median(times) for name, times in taken.items()}

    take(list(names), ROUNDS)
    near = close(medians())
    if len(near) > 1:
        take(near, MORE_ROUNDS)
    return medians()


def near_each_other(medians):
    """Return those that further rounds have to tell apart: the choice, and what lies near the best of ours."""
    best = min(ms for name, ms in medians.items() if name != "torch")
    return [name for name, ms in medians.items() if name == "ours" or ms <= (1 + NEAR) * best]


class Laps:
    """Where the seconds of a row go."""

    def __init__(self):
        self.seconds, self._begin = {}, time.perf_counter()

    def __call__(self, name):
        now = time.perf_counter()
        self.seconds[name] = round(now - self._begin, 3)
        self._begin = now


def run(handle, shape, config, eager, operation="forward", quick=False):  # noqa: C901, PLR0915  (one row, a column after the other)
    """Measure one row."""
    problem, device, stream = problem_of(shape, config, operation), handle.device, handle.stream
    lap = Laps()
    table = dnn.Tuner(handle, ":memory:", dnn.TuningPolicy("latency" if eager else "device")).tune(
        problem
    )
    lap("tuning")
    from cudnnlite.autotune.convolution import operands_of

    operands = operands_of(handle, problem)
    read, y = [operands[name] for name in problem.operation.reads], operands["out"]
    operation = getattr(dnn, problem.kind)
    ranked = {}
    if not quick:
        ranked["find"] = operation.find(handle, *read, problem.conv, out=y)
        ranked["heuristic"] = operation.heuristic(handle, *read, problem.conv, out=y)
    lap("searches")
    ours, limit = table.best(), 2.0
    cost = (lambda row: row.call_us) if eager else (lambda row: row.time_ms)
    wanted = {"ours": ours, "default": None}
    wanted |= {name: rows.best() for name, rows in ranked.items() if any(row.ok for row in rows)}
    if eager:
        wanted["device's"] = min((row for row in table if row.ok), key=lambda row: row.time_ms)
    for row in () if quick else table:
        if (
            row.ok
            and row is not table[0]
            and cost(row) is not None
            and cost(row) <= limit * cost(table[0])
        ):
            wanted[name_of(row)] = row
    peer = Peer(problem, operands, stream)
    peer()
    stream.sync()
    lap("PyTorch's own choice")
    works, plans, same = {"torch": peer}, {}, {}
    for name, row in wanted.items():
        same[name] = "default" if row is None else name_of(row)
        if same[name] not in plans:
            plans[same[name]] = operation.plan(handle, *read, problem.conv, out=y, algorithm=row)
        plan = plans[same[name]]
        plan(*read, out=y)  # the workspace grows before anything is recorded
        works[name] = lambda plan=plan: plan(*read, out=y)
    # one plan, one measurement: two names of it must not differ by noise
    first = {}
    alias = {name: first.setdefault(same.get(name, name), name) for name in works}
    names = list(dict.fromkeys(alias.values()))
    works["ours"]()
    got, expected = y.numpy().astype(np.float64), peer.y.double().cpu().numpy()
    error = float(np.linalg.norm(got - expected) / np.linalg.norm(expected))
    best_ms = ours.time_ms
    if eager:
        calls = max(1, min(20, round(2 / best_ms)))

        def measure(name):
            stream.sync()
            begin = time.perf_counter()
            for _ in range(calls):
                works[name]()
            stream.sync()
            return (time.perf_counter() - begin) / calls * 1e6
    else:
        repeats = max(1, min(32, round(0.5 / best_ms)))
        graphs = {"torch": peer.graph(repeats)}
        for name in names:
            if name != "torch":
                graphs[name] = device.capture(
                    lambda name=name: [works[name]() for _ in range(repeats)], stream
                )
        for replay in graphs.values():
            replay()

        def measure(name):
            return device.elapsed_ms(graphs[name], stream) / repeats * 1e3

    lap("plans and graphs")
    us = rounds_of(measure, names, near_each_other)
    lap("timing")
    us = {"find": math.nan, "heuristic": math.nan} | {name: us[alias[name]] for name in works}
    kernels = (
        peer.kernels()
        if us["torch"] < 0.98 * min(v for n, v in us.items() if n != "torch") and not eager
        else []
    )
    for plan in plans.values():
        plan.close()
    handle.workspace.release()
    return {
        "shape": shape,
        "config": config,
        "error": error,
        "seconds": lap.seconds,
        "us": us,
        "same": same,
        "kernels": kernels,
        "flops": problem.flops,
        "table": [
            [
                name_of(row),
                row.time_ms,
                row.spread_ms,
                row.call_us,
                row.host_us,
                row.find_ms,
                row.workspace,
                row.error,
                str(row.status),
                row.why_not,
                row.remark,
            ]
            for row in table
        ],
    }


def name_of(row):
    """Return 'FFT/FMA'."""
    return f"{row.algorithm}/{row.math_type}{'/' + row.layout if row.layout else ''}{'/replayed' * row.replay}"


def best_of(row):
    """Return the least time of all candidates."""
    return min(
        us
        for name, us in row["us"].items()
        if name not in ("torch", "default") and math.isfinite(us)
    )


def geometric_mean(values):
    """Return the geometric mean."""
    return float(np.exp(np.mean(np.log(list(values))))) if values else float("nan")


def title(shape):
    """Return '32x64x56x56 * 64x3x3 pad 1 stride 1'."""
    x, w = ("x".join(map(str, sizes)) for sizes in (shape.x, shape.w))
    parts = [f"{x} by {w}"]
    for name, usual in (("padding", 0), ("stride", 1), ("dilation", 1), ("groups", 1)):
        value = getattr(shape, name)
        if isinstance(value, tuple):
            value = value[0] if len(set(value)) == 1 else "x".join(map(str, value))
        parts += [f"{name} {value}"] if value != usual else []
    return " ".join(parts)


def report(rows, markdown, eager):
    """Print a line for each row."""
    extra = ("device's",) if eager else ()
    heads = (
        "config",
        "problem",
        "choice",
        "ours us",
        *extra,
        "best",
        "default",
        "cudnnFind",
        "heuristic",
        "torch",
        "ours/torch",
        "default/torch",
    )
    lines = [heads]
    for row in rows:
        us = row["us"]
        figures = (
            us["ours"],
            *(us[name] for name in extra),
            best_of(row),
            us["default"],
            us["find"],
            us["heuristic"],
        )
        ratios = (f"{us[name] / us['torch']:.3f}" for name in ("ours", "default"))
        lines.append(
            (
                row["config"],
                title(row["shape"]),
                row["same"]["ours"],
                *(f"{value:.1f}" for value in (*figures, us["torch"])),
                *ratios,
            )
        )
    if markdown:
        lines.insert(1, ("---",) * len(heads))
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        print(f"| {' | '.join(cells)} |" if markdown else "  ".join(cells))


def judge(rows, eager, operation="forward"):
    """Print the means beside the targets; return whether all are met."""
    good = True
    most = GRADIENT_WORST if operation != "forward" else EAGER_WORST if eager else WORST
    for config in dict.fromkeys(row["config"] for row in rows):
        mine = [row for row in rows if row["config"] == config]
        ratios = {
            peer: [row["us"][peer] / best_of(row) for row in mine if math.isfinite(row["us"][peer])]
            for peer in ("ours", "default", "find", "heuristic", "torch")
        }
        torch = geometric_mean([row["us"]["ours"] / row["us"]["torch"] for row in mine])
        worst = max(row["us"]["ours"] / row["us"]["torch"] for row in mine)
        untuned = [row["us"]["default"] / row["us"]["torch"] for row in mine]
        target = GRADIENT if operation != "forward" else EAGER if eager else TARGETS[config]
        off = [row for row, ratio in zip(mine, ratios["ours"], strict=True) if ratio > WITHIN]
        wins = sum(row["us"]["torch"] < row["us"]["ours"] for row in mine)
        over = ", ".join(
            f"{peer} {geometric_mean(mean):.3f} (worst {max(mean):.2f})"
            for peer, mean in ratios.items()
            if mean
        )
        print(
            f"{config}, {len(mine)} rows: ours/torch geometric mean {torch:.3f} (target {target}),",
            f"worst {worst:.3f} (target {most});",
            "untuned",
            f"{geometric_mean(untuned):.3f}, worst {max(untuned):.3f}; torch wins {wins};",
            f"over the best candidate: {over}; ours beyond {WITHIN} in {len(off)}",
        )
        if eager:
            lost = [row["us"]["ours"] / row["us"]["device's"] for row in mine]
            print(
                f"  latency's choice over device's: geometric mean {geometric_mean(lost):.3f}, worst {max(lost):.3f}"
            )
        good &= torch <= target and not off and worst <= most
    seconds = [row["seconds"]["tuning"] for row in rows]
    print(
        f"tuning: {sum(seconds):.1f} s in all, median {statistics.median(seconds):.2f} s, the longest {max(seconds):.2f} s"
    )
    laps = {name: sum(row["seconds"][name] for row in rows) for name in rows[0]["seconds"]}
    print(
        f"{sum(laps.values()):.1f} s:",
        ", ".join(f"{name} {seconds:.1f} s" for name, seconds in laps.items()),
    )
    for row in rows:
        if row["kernels"]:
            ours, torch = best_of(row), row["us"]["torch"]
            print(
                f"torch wins: {row['config']} {title(row['shape'])}: {ours:.1f} us against {torch:.1f} by",
                "; ".join(row["kernels"]),
            )
    return good


def measured(arguments):
    """Measure what the arguments ask for, and return the rows."""
    import torch

    rows, begin, left_out = [], time.perf_counter(), 0
    shard, shards = map(int, arguments.shard.split("/"))
    numbers = None if arguments.rows is None else arguments.rows.split(",")
    chosen = [
        each
        for number, each in enumerate(shapes(arguments.suite))
        if numbers is None or str(number) in numbers
    ]
    todo = [
        (shape, config)
        for config in arguments.configs.split(",")
        for shape in chosen[:: arguments.every]
    ]
    if arguments.seconds < math.inf:
        random.Random(0).shuffle(todo)  # what is left out is then no group of its own
    with dnn.Handle("cuda", stream=dnn.devices.choice.get_device("cuda").create_stream()) as handle:
        print(
            f"{handle.device.name}, cuDNN {handle.api.library.version_text}, Python {sys.version.split()[0]},",
            f"PyTorch {torch.__version__} with cuDNN {torch.backends.cudnn.version()}",
        )
        for shape, config in todo[shard::shards]:
            if time.perf_counter() - begin > arguments.seconds:
                left_out += 1
                continue
            rows.append(
                run(handle, shape, config, arguments.eager, arguments.operation, arguments.quick)
            )
            if rows[-1]["error"] > AGREE[config]:
                print("DISAGREES with torch:", config, title(shape), f"{rows[-1]['error']:.1e}")
            torch.cuda.empty_cache()
            if arguments.json and len(rows) % 20 == 0:
                arguments.json.write_text(json.dumps(rows))  # a run may be cut short
        if arguments.json:
            arguments.json.write_text(json.dumps(rows))
    if left_out:
        print(f"left out for want of time: {left_out} rows")
    return rows


def main():
    """Run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--configs", default=",".join(CONFIGS))
    parser.add_argument(
        "--suite", choices=("deepbench", "training", "networks"), help="only these problems"
    )
    parser.add_argument("--operation", choices=OPERATIONS, default="forward")
    parser.add_argument("--rows", help="only the problems with these numbers, such as 43,49")
    parser.add_argument("--every", type=int, default=1, help="only each n-th problem")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument(
        "--quick", action="store_true", help="only the choice, the untuned call and PyTorch"
    )
    parser.add_argument("--shard", default="0/1", help="only every n-th row from the i-th on: i/n")
    parser.add_argument(
        "--merge", help="measure nothing: judge what these files hold, the JSON of shards"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 where a target is missed")
    parser.add_argument(
        "--seconds",
        type=float,
        default=math.inf,
        help="leave out what would begin later, at random",
    )
    arguments = parser.parse_args()
    if arguments.merge:
        rows = [
            row for path in arguments.merge.split(",") for row in json.loads(Path(path).read_text())
        ]
        rows = [row | {"shape": Shape(*row["shape"])} for row in rows]
    else:
        rows = measured(arguments)
    rows.sort(key=lambda row: list(CONFIGS).index(row["config"]))
    report(rows, arguments.markdown, arguments.eager)
    good = judge(rows, arguments.eager, arguments.operation)
    return 0 if good or not arguments.check else 1


if __name__ == "__main__":
    sys.exit(main())
