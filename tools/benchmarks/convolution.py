"""Convolutions and gradients on the device: the tuner, cudnnFind, the v7 heuristic and PyTorch.

    python tools/benchmarks/convolution.py [--markdown] [--json OUT.json] [--configs f32,tf32]
                                           [--suite networks] [--check]
    python tools/benchmarks/convolution.py --operation backward_data --suite deepbench \\
                                           --configs f32,tf32,f16-nhwc

The suite "deepbench" has DeepBench's 94 training convolutions.  "training" has these and the
distinct layers of ResNet-50 at batch 32.  "networks" has 30 convolutions of other networks, also
depthwise, grouped, dilated, 1-D and 3-D ones.

Calls are captured into CUDA graphs, which are replayed between two events.  All contenders are
timed in the same shuffled rounds, and the median counts.  PyTorch runs with
`cudnn.benchmark = True`.  'best' is the least time of the candidates that took at most twice the
choice's time when they were tuned; they are timed again here.  If the choice, the best and PyTorch
are within a few percent, they are timed in more rounds.  'default' is a call that names no
algorithm and was never tuned.

With `--eager` the tuner's objective is latency, and the times are wall times of eager calls.

With `--quick` only the choice, the default and PyTorch are timed.  `--shard 0/2 --json a.json`
takes every second row, and `--shard 1/2 --json b.json` the other rows: both may run at the same
time on two GPUs, by CUDA_VISIBLE_DEVICES.  `--merge a.json,b.json` judges them as one run.

The peer of a gradient is `torch.ops.aten.convolution_backward` with an `output_mask` for that
gradient alone.
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
from statistics import geometric_mean
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
# Targets of the ratio ours/PyTorch: the geometric mean, and the maximum of any row.
TARGETS = {"f32": 0.77, "tf32": 0.92, "tf32-nhwc": 0.92, "f16-nhwc": 0.90, "bf16-nhwc": 0.91}
WORST = 1.03
EAGER, EAGER_WORST = 0.95, 1.10
GRADIENT, GRADIENT_WORST = 0.95, 1.05
WITHIN = 1.03  # the maximum of ours over the best of all candidates, in every row
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
        for shape in training():
            if suite != "deepbench" or shape.name.startswith("deepbench"):
                yield shape
    if suite in (None, "networks"):
        table = json.loads((DATA / "network_convolutions.json").read_text())
        for name, x, w, *steps in table["rows"]:
            steps = [tuple(step) if isinstance(step, list) else step for step in steps]
            yield Shape(name, tuple(x), tuple(w), *steps)


def training():
    """Yield DeepBench's problems, and ResNet-50's."""
    deepbench = json.loads((DATA / "deepbench_convolutions.json").read_text())
    for number, row in enumerate(deepbench["convolution"]):
        n, c, h, w, k, r, s, pad_h, pad_w, stride_h, stride_w = row
        yield Shape(
            f"deepbench {number}", (n, c, h, w), (k, c, r, s), (pad_h, pad_w), (stride_h, stride_w)
        )
    resnet = json.loads((DATA / "resnet50_layers.json").read_text())
    for row in resnet["layers"]:
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
    x = dnn.TensorSpec((n, c, *image), dtype, layout)
    w = dnn.FilterSpec((k, depth, *taps), dtype, layout)
    forward = dnn.convolution_forward.problem(x, w, conv)
    if operation == "backward_data":
        return dnn.convolution_backward_data.problem(w, forward.y, conv, out=x)
    if operation == "backward_filter":
        return dnn.convolution_backward_filter.problem(x, forward.y, conv, out=w)
    return forward


class Peer:
    """PyTorch's convolution, or its gradient, on our stream.

    The operands are ours; `out` only shows the shape of the result.
    """

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
            mask = [self.written == "dx", self.written == "dw", False]
            zeros = [0] * self.rank
            gradients = self.torch.ops.aten.convolution_backward(
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
            return gradients[mask.index(True)]
        function = getattr(self.torch.nn.functional, f"conv{self.rank}d")
        steps = {"padding": conv.padding, "stride": conv.stride, "dilation": conv.dilation}
        return function(self.x, self.w, groups=conv.groups, **steps)

    def graph(self, repeats):
        """Return a function that replays a graph of `repeats` calls."""
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
        """Return the three longest kernels of a call: their names and microseconds."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            self()
            self.stream.synchronize()
        events = sorted(profiler.key_averages(), key=lambda event: -event.device_time_total)
        return [
            f"{event.key[:60]} {event.device_time_total:.1f}"
            for event in events
            if event.device_time_total
        ][:3]


def rounds_of(measure, names, close):
    """Return {name: median of measure(name)} over shuffled rounds.

    `close` returns from the medians the names to measure in more rounds.
    """
    generator = random.Random(0)
    samples = {name: [] for name in names}

    def take(order, rounds):
        for _ in range(rounds):
            generator.shuffle(order)
            for name in order:
                samples[name].append(measure(name))

    def medians():
        return {name: statistics.median(times) for name, times in samples.items()}

    take(list(names), ROUNDS)
    near = close(medians())
    if len(near) > 1:
        take(near, MORE_ROUNDS)
    return medians()


def near_each_other(medians):
    """Return the names that need further rounds: the choice, and times near the best of ours."""
    best = min(ms for name, ms in medians.items() if name != "torch")
    return [name for name, ms in medians.items() if name == "ours" or ms <= (1 + NEAR) * best]


class Laps:
    """The seconds of the parts of a row."""

    def __init__(self):
        self.seconds, self._begin = {}, time.perf_counter()

    def __call__(self, name):
        now = time.perf_counter()
        self.seconds[name] = round(now - self._begin, 3)
        self._begin = now


def run(handle, shape, config, eager, operation="forward", quick=False):
    """Measure one row."""
    problem, stream = problem_of(shape, config, operation), handle.stream
    lap = Laps()
    policy = dnn.TuningPolicy("latency" if eager else "device")
    table = dnn.Tuner(handle, ":memory:", policy).tune(problem)
    lap("tuning")
    from cudnnlite.workbench.tuning.convolution import operands_of

    operands = operands_of(handle, problem)
    inputs, y = [operands[name] for name in problem.operation.reads], operands["out"]
    operation = getattr(dnn, problem.kind)
    rankings = {}
    if not quick:
        rankings["find"] = operation.find(handle, *inputs, problem.conv, out=y)
        rankings["heuristic"] = operation.heuristic(handle, *inputs, problem.conv, out=y)
    lap("searches")
    peer = Peer(problem, operands, stream)
    peer()
    stream.sync()
    lap("PyTorch's own choice")
    works, plans, same = {"torch": peer}, {}, {}
    for name, row in contenders(table, rankings, eager, quick).items():
        same[name] = "default" if row is None else name_of(row)
        if same[name] not in plans:
            plans[same[name]] = operation.plan(handle, *inputs, problem.conv, out=y, algorithm=row)
        plan = plans[same[name]]
        plan(*inputs, out=y)  # The workspace grows before a graph is recorded.
        works[name] = lambda plan=plan: plan(*inputs, out=y)
    # A plan is measured once, so that two names of one plan do not differ by noise.
    first_names = {}
    alias = {name: first_names.setdefault(same.get(name, name), name) for name in works}
    names = list(dict.fromkeys(alias.values()))
    works["ours"]()
    result, expected = y.numpy().astype(np.float64), peer.y.double().cpu().numpy()
    error = float(np.linalg.norm(result - expected) / np.linalg.norm(expected))
    best_ms = table.best().time_ms
    if eager:
        measure = eager_measure(works, stream, best_ms)
    else:
        measure = graph_measure(works, names, handle, best_ms)
    lap("plans and graphs")
    us = rounds_of(measure, names, near_each_other)
    lap("timing")
    us = {"find": math.nan, "heuristic": math.nan} | {name: us[alias[name]] for name in works}
    our_best_us = min(value for name, value in us.items() if name != "torch")
    kernels = []
    if us["torch"] < 0.98 * our_best_us and not eager:
        kernels = peer.kernels()
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


def contenders(table, rankings, eager, quick):
    """Return the rows to time, by name; None is a call that names no algorithm."""
    rows = {"ours": table.best(), "default": None}
    for name, ranking in rankings.items():
        if any(row.ok for row in ranking):
            rows[name] = ranking.best()
    if eager:
        rows["device's"] = min((row for row in table if row.ok), key=lambda row: row.time_ms)
    if quick:
        return rows

    def cost(row):
        return row.call_us if eager else row.time_ms

    limit = 2.0 * cost(table[0])
    for row in table:
        is_timed = row.ok and cost(row) is not None
        if is_timed and row is not table[0] and cost(row) <= limit:
            rows[name_of(row)] = row
    return rows


def eager_measure(works, stream, best_ms):
    """Return a function that measures the wall time of a call, in microseconds."""
    calls = max(1, min(20, round(2 / best_ms)))

    def measure(name):
        stream.sync()
        begin = time.perf_counter()
        for _ in range(calls):
            works[name]()
        stream.sync()
        return (time.perf_counter() - begin) / calls * 1e6

    return measure


def graph_measure(works, names, handle, best_ms):
    """Return a function that measures a call in a CUDA graph on the device, in microseconds."""
    device, stream = handle.device, handle.stream
    repeats = max(1, min(32, round(0.5 / best_ms)))
    graphs = {"torch": works["torch"].graph(repeats)}
    for name in names:
        if name != "torch":
            graphs[name] = device.capture(
                lambda name=name: [works[name]() for _ in range(repeats)], stream
            )
    for replay in graphs.values():
        replay()

    def measure(name):
        return device.elapsed_ms(graphs[name], stream) / repeats * 1e3

    return measure


def name_of(row):
    """Return 'FFT/FMA'."""
    parts = [str(row.algorithm), str(row.math_type)]
    if row.layout:
        parts.append(row.layout)
    if row.replay:
        parts.append("replayed")
    return "/".join(parts)


def best_of(row):
    """Return the least time of all candidates."""
    return min(
        us
        for name, us in row["us"].items()
        if name not in ("torch", "default") and math.isfinite(us)
    )


def title(shape):
    """Return '32x64x56x56 * 64x3x3 pad 1 stride 1'."""
    x, w = ("x".join(map(str, sizes)) for sizes in (shape.x, shape.w))
    parts = [f"{x} by {w}"]
    for name, default in (("padding", 0), ("stride", 1), ("dilation", 1), ("groups", 1)):
        value = getattr(shape, name)
        if isinstance(value, tuple):
            value = value[0] if len(set(value)) == 1 else "x".join(map(str, value))
        if value != default:
            parts.append(f"{name} {value}")
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
    for config in dict.fromkeys(row["config"] for row in rows):
        config_rows = [row for row in rows if row["config"] == config]
        target, worst_target = targets_of(config, eager, operation)
        ratios = {
            name: [
                row["us"][name] / best_of(row)
                for row in config_rows
                if math.isfinite(row["us"][name])
            ]
            for name in ("ours", "default", "find", "heuristic", "torch")
        }
        over_torch = [row["us"]["ours"] / row["us"]["torch"] for row in config_rows]
        mean, worst = geometric_mean(over_torch), max(over_torch)
        untuned = [row["us"]["default"] / row["us"]["torch"] for row in config_rows]
        misses = sum(ratio > WITHIN for ratio in ratios["ours"])
        wins = sum(row["us"]["torch"] < row["us"]["ours"] for row in config_rows)
        over_best = ", ".join(
            f"{name} {geometric_mean(values):.3f} (worst {max(values):.2f})"
            for name, values in ratios.items()
            if values
        )
        print(
            f"{config}, {len(config_rows)} rows: ours/torch geometric mean {mean:.3f}",
            f"(target {target}), worst {worst:.3f} (target {worst_target});",
            "untuned",
            f"{geometric_mean(untuned):.3f}, worst {max(untuned):.3f}; torch wins {wins};",
            f"over the best candidate: {over_best}; ours beyond {WITHIN} in {misses}",
        )
        if eager:
            over_device = [row["us"]["ours"] / row["us"]["device's"] for row in config_rows]
            device_mean = geometric_mean(over_device)
            print(
                f"  latency's choice over device's: geometric mean {device_mean:.3f},",
                f"worst {max(over_device):.3f}",
            )
        good &= mean <= target and not misses and worst <= worst_target
    seconds = [row["seconds"]["tuning"] for row in rows]
    print(
        f"tuning: {sum(seconds):.1f} s in all, median {statistics.median(seconds):.2f} s,",
        f"the longest {max(seconds):.2f} s",
    )
    laps = {name: sum(row["seconds"][name] for row in rows) for name in rows[0]["seconds"]}
    print(
        f"{sum(laps.values()):.1f} s:",
        ", ".join(f"{name} {seconds:.1f} s" for name, seconds in laps.items()),
    )
    for row in rows:
        if row["kernels"]:
            problem = f"{row['config']} {title(row['shape'])}"
            times = f"{best_of(row):.1f} us against {row['us']['torch']:.1f}"
            print(f"torch wins: {problem}: {times} by", "; ".join(row["kernels"]))
    return good


def targets_of(config, eager, operation):
    """Return the targets of the ratio ours/PyTorch: the geometric mean, and the worst row."""
    if operation != "forward":
        return GRADIENT, GRADIENT_WORST
    if eager:
        return EAGER, EAGER_WORST
    return TARGETS[config], WORST


def selected_problems(arguments):
    """Return (shape, config) for the rows that the arguments select."""
    shard, shards = map(int, arguments.shard.split("/"))
    selection = list(enumerate(shapes(arguments.suite)))
    if arguments.rows is not None:
        numbers = arguments.rows.split(",")
        selection = [(number, shape) for number, shape in selection if str(number) in numbers]
    pairs = [
        (shape, config)
        for config in arguments.configs.split(",")
        for _, shape in selection[:: arguments.every]
    ]
    if arguments.seconds < math.inf:
        random.Random(0).shuffle(pairs)  # The rows that are left out are a random sample.
    return pairs[shard::shards]


def measured(arguments):
    """Measure the problems that the arguments select, and return the rows."""
    import torch

    rows, begin, left_out = [], time.perf_counter(), 0
    with dnn.Handle(
        "cuda", stream=dnn.devices.device_choice.get_device("cuda").create_stream()
    ) as handle:
        print(
            f"{handle.device.name}, cuDNN {handle.api.library.version_text},",
            f"Python {sys.version.split()[0]},",
            f"PyTorch {torch.__version__} with cuDNN {torch.backends.cudnn.version()}",
        )
        for shape, config in selected_problems(arguments):
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
                arguments.json.write_text(json.dumps(rows))  # A run may be interrupted.
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
        "--merge", help="measure nothing: judge the rows of these files, the JSON of shards"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument(
        "--seconds",
        type=float,
        default=math.inf,
        help="leave out the rows that would begin later, at random",
    )
    arguments = parser.parse_args()
    if arguments.merge:
        rows = []
        for path in arguments.merge.split(","):
            rows += json.loads(Path(path).read_text())
        rows = [row | {"shape": Shape(*row["shape"])} for row in rows]
    else:
        rows = measured(arguments)
    rows.sort(key=lambda row: list(CONFIGS).index(row["config"]))
    report(rows, arguments.markdown, arguments.eager)
    good = judge(rows, arguments.eager, arguments.operation)
    return 0 if good or not arguments.check else 1


if __name__ == "__main__":
    sys.exit(main())
