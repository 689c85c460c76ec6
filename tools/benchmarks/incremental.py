"""Tuning in real calls and the database, beside the tuner, the untuned call and PyTorch.

    python tools/benchmarks/incremental.py [--seconds 200] [--calls 12] [--json OUT.json]
    python tools/benchmarks/incremental.py --part database [--seconds 200]
    python tools/benchmarks/incremental.py --part resnet50 --who ours [--database]
    python tools/benchmarks/incremental.py --part resnet50 --rounds 4
    python tools/benchmarks/incremental.py --join PART1.json PART2.json

"calls", the default part, has convolutions of networks that are neither in the database nor in the
list that it was made of, forward and both gradients, in five arithmetics.  For each one, a new plan
makes its first calls untuned, and another one while real calls are tuned; then the wall time of a
call of both, and of the tuner's choice, are measured in shuffled rounds.  "first" is the wall time
of the first calls together, over that of the untuned ones; the plans are made before.  "making" is
the same with the making of the plans.  "database" measures the first call's choice for problems
that are in the database.

"resnet50" is the wall time of the first 50 steps over ResNet-50's convolutions in sequence, forward
and backward, in a new process without any cache: `--who` is "ours" (tuning in real calls),
"untuned", "torch" or "torch-benchmark".  The first two use no database unless `--database` is
given; the other parts use that of `CUDNNLITE_DATABASE`.  `--losers` and `--share` are fields of
`Handle.timing`.  With `--rounds` the contenders, which `CONTENDERS` lists with their options, run so
often in turn, and the medians are printed; cudnn.benchmark, which takes ten seconds, is left out.

A run that ends early has measured a sample: the problems are mixed, and those of "calls" have each
convolution once before any has a second arithmetic or operation.  `--part-of 2 --which 1` measures
every other problem, for two GPUs.  Without a GPU the numbers mean nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import operator
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

CONFIGS = {
    "f32": ("float32", "NCHW", "FMA"),
    "tf32": ("float32", "NCHW", "DEFAULT"),
    "tf32-nhwc": ("float32", "NHWC", "DEFAULT"),
    "f16-nhwc": ("float16", "NHWC", "TENSOR_OP"),
    "bf16-nhwc": ("bfloat16", "NHWC", "TENSOR_OP"),
}
OPERATIONS = ("forward", "data", "filter")
# Targets: geometric mean and worst of incremental over tuned, first calls over untuned ones.
TARGETS = {"calls": (1.02, 1.08, 1.5), "database": (1.03, 1.10)}
ROUNDS = 9
SAMPLE_MS = 2.0
STEPS = 50
# Calls in which a plan takes over the winner of its trials, if it has not done so before.
SETTLING_CALLS = 2
# The contenders of `--rounds`, with their options.
CONTENDERS = {
    "with the database": ("--who", "ours", "--database"),
    "tuning in real calls": ("--who", "ours"),
    "the same, a third of the time": ("--who", "ours", "--share", "0.3333"),
    "untuned": ("--who", "untuned"),
    "PyTorch": ("--who", "torch"),
}


class Shape(NamedTuple):
    """A convolution of a network: images or signals, filter, and options."""

    name: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    padding: Any = 0
    stride: Any = 1
    dilation: Any = 1
    groups: int = 1


SHAPES = (
    Shape("vgg16 1.1", (16, 3, 224, 224), (64, 3, 3, 3), 1),
    Shape("vgg16 1.2", (16, 64, 224, 224), (64, 64, 3, 3), 1),
    Shape("vgg16 2.2", (16, 128, 112, 112), (128, 128, 3, 3), 1),
    Shape("vgg16 3.2", (16, 256, 56, 56), (256, 256, 3, 3), 1),
    Shape("vgg16 4.2", (16, 512, 28, 28), (512, 512, 3, 3), 1),
    Shape("vgg16 5.1", (16, 512, 14, 14), (512, 512, 3, 3), 1),
    Shape("alexnet 1", (64, 3, 224, 224), (64, 3, 11, 11), 2, 4),
    Shape("alexnet 2", (64, 64, 27, 27), (192, 64, 5, 5), 2),
    Shape("alexnet 3", (64, 192, 13, 13), (384, 192, 3, 3), 1),
    Shape("densenet121 1.1", (16, 64, 56, 56), (128, 64, 1, 1)),
    Shape("densenet121 1.2", (16, 128, 56, 56), (32, 128, 3, 3), 1),
    Shape("densenet121 2.6", (16, 288, 28, 28), (128, 288, 1, 1)),
    Shape("densenet121 3.9", (16, 128, 14, 14), (32, 128, 3, 3), 1),
    Shape("densenet121 transition", (16, 512, 28, 28), (256, 512, 1, 1)),
    Shape("inception 2a", (16, 32, 149, 149), (32, 32, 3, 3)),
    Shape("inception 2b", (16, 32, 147, 147), (64, 32, 3, 3), 1),
    Shape("inception 4a", (16, 80, 73, 73), (192, 80, 3, 3)),
    Shape("inception 5b 5x5", (16, 48, 35, 35), (64, 48, 5, 5), 2),
    Shape("inception 6b 1x7", (16, 128, 17, 17), (128, 128, 1, 7), (0, 3)),
    Shape("inception 6b 7x1", (16, 128, 17, 17), (192, 128, 7, 1), (3, 0)),
    Shape("inception 7b 1x3", (16, 384, 8, 8), (384, 384, 1, 3), (0, 1)),
    Shape("squeezenet 1", (32, 3, 224, 224), (64, 3, 3, 3), 0, 2),
    Shape("squeezenet fire 3x3", (32, 16, 54, 54), (64, 16, 3, 3), 1),
    Shape("squeezenet fire 1x1", (32, 64, 13, 13), (256, 64, 1, 1)),
    Shape("shufflenet v2 1", (32, 3, 224, 224), (24, 3, 3, 3), 1, 2),
    Shape("shufflenet v2 depthwise", (32, 116, 28, 28), (116, 1, 3, 3), 1, 1, 1, 116),
    Shape("shufflenet v2 point", (32, 232, 14, 14), (232, 232, 1, 1)),
    Shape("resnext50 grouped 56", (32, 128, 56, 56), (128, 4, 3, 3), 1, 1, 1, 32),
    Shape("resnext50 grouped 14", (32, 512, 14, 14), (512, 16, 3, 3), 1, 1, 1, 32),
    Shape("regnet-y grouped", (32, 224, 28, 28), (224, 56, 3, 3), 1, 1, 1, 4),
    Shape("darknet53 1", (8, 3, 416, 416), (32, 3, 3, 3), 1),
    Shape("darknet53 2", (8, 32, 416, 416), (64, 32, 3, 3), 1, 2),
    Shape("darknet53 26x26", (8, 256, 26, 26), (512, 256, 3, 3), 1),
    Shape("darknet53 13x13", (8, 1024, 13, 13), (512, 1024, 1, 1)),
    Shape("yolo head", (8, 1024, 13, 13), (255, 1024, 1, 1)),
    Shape("yolov5 focus", (8, 3, 640, 640), (48, 3, 6, 6), 2, 2),
    Shape("yolov5 c3", (8, 96, 80, 80), (96, 96, 3, 3), 1),
    Shape("hrnet 48", (8, 48, 64, 48), (48, 48, 3, 3), 1),
    Shape("hrnet 384", (8, 384, 8, 6), (384, 384, 3, 3), 1),
    Shape("segformer patch", (8, 3, 512, 512), (64, 3, 7, 7), 3, 4),
    Shape("segformer patch 2", (8, 64, 128, 128), (128, 64, 3, 3), 1, 2),
    Shape("mae patch", (32, 3, 224, 224), (1152, 3, 16, 16), 0, 16),
    Shape("dino v2 patch", (16, 3, 518, 518), (1536, 3, 14, 14), 0, 14),
    Shape("mixer patch", (64, 3, 224, 224), (512, 3, 32, 32), 0, 32),
    Shape("convmixer depthwise", (16, 768, 32, 32), (768, 1, 9, 9), 4, 1, 1, 768),
    Shape("esrgan rrdb 1", (4, 64, 96, 96), (32, 64, 3, 3), 1),
    Shape("esrgan rrdb 5", (4, 192, 96, 96), (64, 192, 3, 3), 1),
    Shape("esrgan up", (4, 64, 384, 384), (64, 64, 3, 3), 1),
    Shape("srcnn 1", (8, 1, 256, 256), (64, 1, 9, 9), 4),
    Shape("dcgan 3", (64, 128, 16, 16), (256, 128, 4, 4), 1, 2),
    Shape("pix2pix 2", (4, 64, 128, 128), (128, 64, 4, 4), 1, 2),
    Shape("cyclegan 1", (2, 3, 262, 262), (64, 3, 7, 7)),
    Shape("stylegan2 64", (8, 512, 64, 64), (512, 512, 3, 3), 1),
    Shape("raft encoder", (4, 3, 368, 496), (64, 3, 7, 7), 3, 2),
    Shape("raft motion", (4, 256, 46, 62), (192, 256, 3, 3), 1),
    Shape("pspnet dilated", (4, 512, 60, 60), (512, 512, 3, 3), 4, 1, 4),
    Shape("erfnet 1-D pair", (8, 128, 64, 128), (128, 128, 3, 1), (2, 0), 1, (2, 1)),
    Shape("crnn 1", (32, 1, 32, 128), (64, 1, 3, 3), 1),
    Shape("crnn 7", (32, 512, 2, 33), (512, 512, 2, 2)),
    Shape("jasper 1", (8, 64, 1600), (256, 64, 11), 5, 2),
    Shape("jasper block 3", (8, 512, 800), (512, 512, 17), 8),
    Shape("quartznet depthwise", (8, 256, 800), (256, 1, 33), 16, 1, 1, 256),
    Shape("conformer depthwise", (16, 512, 400), (512, 1, 31), 15, 1, 1, 512),
    Shape("wavenet dilated", (8, 64, 8000), (128, 64, 2), 0, 1, 64),
    Shape("slowfast slow 1", (4, 3, 8, 224, 224), (64, 3, 1, 7, 7), (0, 3, 3), (1, 2, 2)),
    Shape("i3d mixed", (4, 192, 16, 28, 28), (208, 192, 3, 3, 3), 1),
    Shape("vnet", (1, 32, 64, 64, 64), (32, 32, 5, 5, 5), 2),
)


def problem_of(shape, config, operation):
    """Return the problem of a shape in an arithmetic."""
    import cudnnlite as dnn
    from cudnnlite.specs.layout import layout_of_rank

    dtype, layout_name, math_type = CONFIGS[config]
    layout = layout_of_rank(layout_name, len(shape.x))
    x, w = dnn.TensorSpec(shape.x, dtype, layout), dnn.FilterSpec(shape.w, dtype, layout)
    options = {name: getattr(shape, name) for name in ("padding", "stride", "dilation", "groups")}
    conv = dnn.ConvolutionSpec(**options, math_type=math_type)
    forward = dnn.convolution_forward.problem(x, w, conv)
    if operation == "data":
        return dnn.convolution_backward_data.problem(w, forward.y, conv, x=x)
    if operation == "filter":
        return dnn.convolution_backward_filter.problem(x, forward.y, conv, w=w)
    return forward


def new_problems():
    """Yield (name, configuration, operation, problem): each shape once, then once more, and so on.

    Arithmetics and operations are in a random order.
    """
    from cudnnlite.bench.networks import network_problems
    from cudnnlite.search.database import digest_of

    listed = {digest_of(problem) for problem in network_problems()}
    rng = random.Random(0)
    rows_of_shapes = []
    for shape in SHAPES:
        # Nobody needs the gradient of a network's input.
        operations = [name for name in OPERATIONS if name != "data" or shape.x[1] > 4]
        rows = list(itertools.product((shape,), CONFIGS, operations))
        rows_of_shapes.append(rng.sample(rows, len(rows)))
    rng.shuffle(rows_of_shapes)
    rounds = itertools.zip_longest(*rows_of_shapes)
    for shape, config, operation in filter(None, itertools.chain.from_iterable(rounds)):
        problem = problem_of(shape, config, operation)
        if digest_of(problem) not in listed:
            yield shape.name, config, operation, problem


def database_problems():
    """Yield the problems of the list that the database was made of, in a mixed order."""
    from cudnnlite.bench.networks import network_problems

    problems = [problem for problem in network_problems() if hasattr(problem, "conv")]
    random.Random(1).shuffle(problems)
    for problem in problems:
        first = problem.values[problem.operation.reads[0]]
        y = problem.specs["y"] if "y" in problem.specs else problem.specs["dy"]
        layout = "last" if y.is_channels_last else "first"
        config = f"{first.dtype} {problem.math_type} channels {layout}"
        yield str(problem), config, problem.kind.removeprefix("convolution_"), problem


def plan_of(handle, problem, algorithm=None):
    """Return a plan for a problem."""
    import cudnnlite as dnn

    specs = [problem.values[name] for name in problem.operation.reads]
    conv = problem.conv
    if problem.kind == "convolution_backward_data":
        function, like = dnn.convolution_backward_data, {"x": problem.values["dx"]}
    elif problem.kind == "convolution_backward_filter":
        function, like = dnn.convolution_backward_filter, {"w": problem.values["dw"]}
    else:
        function, like = dnn.convolution_forward, {}
    return function.plan(handle, *specs, conv, algorithm=algorithm, **like)


def first_calls(handle, make, operands, out, count):
    """Return a plan, the ms of making it, and the ms of its first calls."""
    handle.synchronize()
    begin = time.perf_counter()
    plan = make()
    made = time.perf_counter()
    for _ in range(count):
        plan(*operands, out=out)
        handle.synchronize()  # as in a program that does other work in between
    end = time.perf_counter()
    return plan, (made - begin) * 1000, (end - made) * 1000


def call_times(handle, plans, operands, out):
    """Return the median microseconds of wall time of a call of each plan, in shuffled rounds."""
    samples = {name: [] for name in plans}
    counts = {}
    for name, plan in plans.items():
        for _ in range(2):
            plan(*operands, out=out)
        handle.synchronize()
        begin = time.perf_counter()
        plan(*operands, out=out)
        handle.synchronize()
        ms = (time.perf_counter() - begin) * 1000
        counts[name] = max(1, min(50, round(SAMPLE_MS / max(ms, 1e-3))))
    for _ in range(ROUNDS):
        names = list(plans)
        random.shuffle(names)
        for name in names:
            plan, count = plans[name], counts[name]
            handle.synchronize()
            begin = time.perf_counter()
            for _ in range(count):
                plan(*operands, out=out)
            handle.synchronize()
            samples[name].append((time.perf_counter() - begin) / count * 1e6)
    return {name: statistics.median(values) for name, values in samples.items()}


def measure(handle, problem, calls, folder):
    """Return the row of a problem: times of first calls, and of a call of each contender.

    The databases in the folder, which have no choice for it, decide on the order of candidates.
    """
    import cudnnlite as dnn
    from cudnnlite.autotune import convolution

    operands_by_name = convolution.operands_of(handle, problem)
    operands = [operands_by_name[name] for name in problem.operation.reads]
    out = operands_by_name["out"]
    handle.chooser = None
    os.environ["CUDNNLITE_DATABASE"] = "off"
    # Once before: what is loaded at the first use of a kernel is the same for both.
    with plan_of(handle, problem) as plan:
        plan(*operands, out=out)
    untuned, untuned_making, untuned_first = first_calls(
        handle, lambda: plan_of(handle, problem), operands, out, calls
    )
    os.environ["CUDNNLITE_DATABASE"] = folder
    with dnn.autotuned(handle, cache=":memory:", incremental=True) as real_tuner:
        incremental, making, first = first_calls(
            handle, lambda: plan_of(handle, problem), operands, out, calls
        )
        for _ in range(SETTLING_CALLS):
            incremental(*operands, out=out)
            handle.synchronize()
        tried = [row for entry in real_tuner.cache.entries() for row in entry.rows]
    start = time.perf_counter()
    tuner = dnn.Tuner(handle, ":memory:")
    table = tuner.tune(problem)
    choice = table.best()
    tuning_ms = (time.perf_counter() - start) * 1000
    tuned = plan_of(handle, problem, choice)
    plans = {"untuned": untuned, "incremental": incremental, "tuned": tuned}
    times = call_times(handle, plans, operands, out)
    row = {
        **{f"{name}_us": us for name, us in times.items()},
        "untuned_making_ms": untuned_making,
        "making_ms": making,
        "untuned_first_ms": untuned_first,
        "first_ms": first,
        "tuning_ms": tuning_ms,
        **{f"{name}_choice": first_line(plan.choice) for name, plan in plans.items()},
        "source": incremental.choice.source,
        "real_times": [times_of(row) for row in tried],
        "search_times": [times_of(row) for row in table],
    }
    for plan in plans.values():
        plan.close()
    return row


def first_line(row):
    """Return the first line of a candidate's text, which names it."""
    return str(row).splitlines()[0]


def times_of(row):
    """Return what was measured of a candidate, for a look at a wrong choice."""
    return [first_line(row), row.time_ms, row.spread_ms, row.call_us, row.host_us]


def measure_database(handle, problem, folder):
    """Return the row of a problem whose first call uses the database; None if it is not in it."""
    import cudnnlite as dnn
    from cudnnlite.autotune import convolution
    from cudnnlite.search.database import find_choice

    os.environ["CUDNNLITE_DATABASE"] = folder
    if find_choice(handle.device, problem) is None:
        return None
    operands_by_name = convolution.operands_of(handle, problem)
    operands = [operands_by_name[name] for name in problem.operation.reads]
    out = operands_by_name["out"]
    first = plan_of(handle, problem)
    os.environ["CUDNNLITE_DATABASE"] = "off"
    untuned = plan_of(handle, problem)
    tuned = plan_of(handle, problem, dnn.Tuner(handle, ":memory:").tune(problem).best())
    plans = {"untuned": untuned, "incremental": first, "tuned": tuned}
    times = call_times(handle, plans, operands, out)
    row = {f"{name}_us": us for name, us in times.items()}
    row |= {f"{name}_choice": first_line(plan.choice) for name, plan in plans.items()}
    row["source"] = first.choice.source
    for plan in plans.values():
        plan.close()
    return row


def report(rows, part):
    """Print the table, and return whether all targets are met."""
    has_first = part == "calls"
    print(f"\n{'':24}{'':5}  untuned/tuned  {'ours/tuned':>13}", end="")
    print("  first  making" if has_first else "")
    groups = [(config, operation) for config in sorted({row["config"] for row in rows})
              for operation in sorted({row["operation"] for row in rows})]  # fmt: skip
    for group in [*groups, None]:
        chosen = [row for row in rows if group in (None, (row["config"], row["operation"]))]
        if not chosen:
            continue
        untuned = [row["untuned_us"] / row["tuned_us"] for row in chosen]
        ours = [row["incremental_us"] / row["tuned_us"] for row in chosen]
        title = "all" if group is None else " ".join(group)
        line = f"{title:24}{len(chosen):5}  {geometric_mean(untuned):6.3f} {max(untuned):6.3f}"
        line += f"  {geometric_mean(ours):6.3f} {max(ours):6.3f}"
        if has_first:
            first = sum(row["first_ms"] for row in chosen)
            untuned_first = sum(row["untuned_first_ms"] for row in chosen)
            whole = first + sum(row["making_ms"] for row in chosen)
            untuned_whole = untuned_first + sum(row["untuned_making_ms"] for row in chosen)
            line += f"  {first / untuned_first:5.2f}  {whole / untuned_whole:6.2f}"
        print(line)
    slowest = sorted(rows, key=lambda row: row["tuned_us"] / row["incremental_us"])[:8]
    print("the slowest beside the tuner's choice:")
    for row in slowest:
        ratio = row["incremental_us"] / row["tuned_us"]
        print(f"  {ratio:6.3f} {row['config']} {row['operation']} {row['name'][:60]}")
        print(f"         {row['incremental_choice']} for {row['tuned_choice']}")
    ours = [row["incremental_us"] / row["tuned_us"] for row in rows]
    mean_target, worst_target, *first_target = TARGETS[part]
    is_good = geometric_mean(ours) <= mean_target and max(ours) <= worst_target
    verdict = f"targets: ours/tuned {mean_target}, worst {worst_target}"
    if first_target:
        first = sum(row["first_ms"] for row in rows) / sum(row["untuned_first_ms"] for row in rows)
        is_good = is_good and first <= first_target[0]
        verdict += f", first calls {first_target[0]}"
    print(f"{verdict}: {'met' if is_good else 'missed'}")
    return is_good


def limits_of(arguments):
    """Return the fields of `Handle.timing` that the options set."""
    limits = {"real_losers": arguments.losers, "real_share": arguments.share}
    return {name: value for name, value in limits.items() if value is not None}


def run_calls(arguments):
    """Measure the problems of a part until the time is up."""
    import cudnnlite as dnn
    from cudnnlite.devices.choice import get_device

    begin = time.perf_counter()
    device = get_device(arguments.device)
    rows, skipped, left = [], 0, 0
    folder = os.environ.get("CUDNNLITE_DATABASE", "off")
    with dnn.Handle(device, stream=device.create_stream()) as handle:
        handle.timing = handle.timing._replace(real_calls=arguments.calls, **limits_of(arguments))
        problems = new_problems() if arguments.part == "calls" else database_problems()
        problems = itertools.islice(problems, arguments.which, None, arguments.part_of)
        for name, config, operation, problem in problems:
            if time.perf_counter() - begin > arguments.seconds:
                left += 1
                continue
            try:
                if arguments.part == "calls":
                    row = measure(handle, problem, arguments.calls, folder)
                else:
                    row = measure_database(handle, problem, folder)
            except (dnn.CudnnError, dnn.NoAlgorithmError, dnn.DeviceMemoryError) as error:
                print(f"skipped: {config} {operation} {name}: {error}")
                skipped += 1
                continue
            if row is not None:
                rows.append({"name": name, "config": config, "operation": operation, **row})
        print(f"{device}, cuDNN {handle.version}")
    names = {row["name"] for row in rows}
    print(
        f"{len(rows)} problems of {len(names)} convolutions in "
        f"{time.perf_counter() - begin:.0f} s, {skipped} skipped, {left} left"
    )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return report(rows, arguments.part) if rows else False


def resnet50_layers(batch):
    """Return (x shape, w shape, padding, stride, count) of ResNet-50's convolutions in order."""
    path = Path(__file__).parents[2] / "cudnnlite" / "bench" / "lists" / "resnet50.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return [
        ((batch, c, h, w), (k, c, r, s), padding, stride, count)
        for c, h, w, k, r, s, padding, stride, count in rows
    ]


def steps_ours(config, batch, *, tuned, device_name, limits):
    """Return the seconds of each step with cudnnlite."""
    import cudnnlite as dnn
    from cudnnlite.devices.choice import get_device

    device = get_device(device_name)
    with (
        tempfile.TemporaryDirectory() as folder,
        dnn.Handle(device, stream=device.create_stream()) as handle,
    ):
        handle.timing = handle.timing._replace(**limits)
        layers = []
        for x_shape, w_shape, padding, stride, count in resnet50_layers(batch):
            shape = Shape("", x_shape, w_shape, padding, stride)
            forward = problem_of(shape, config, "forward")
            specs = (forward.x, forward.w, forward.y)
            arrays = [random_array(handle, spec) for spec in (*specs, specs[0], specs[1])]
            layers.append((arrays, forward.conv, count))

        def step():
            for (x, w, y, _, _), conv, count in layers:
                for _ in range(count):
                    dnn.convolution_forward(handle, x, w, conv, out=y)
            for (x, w, y, dx, dw), conv, count in reversed(layers):
                for _ in range(count):
                    dnn.convolution_backward_filter(handle, x, y, conv, out=dw)
                    if x.shape[1] > 4:
                        dnn.convolution_backward_data(handle, w, y, conv, out=dx)

        if not tuned:
            return timed_steps(step, handle.synchronize)
        with dnn.autotuned(handle, cache=Path(folder) / "cache", incremental=True):
            return timed_steps(step, handle.synchronize)


def random_array(handle, spec):
    """Return an array of normal values, scaled so that gradients stay finite."""
    from cudnnlite.autotune.synthetic_operands import random_array as random_operand
    from cudnnlite.specs.filter import as_tensor

    return random_operand(handle, as_tensor(spec), 1, scale=0.05)


def steps_torch(config, batch, *, benchmark):
    """Return the seconds of each step with PyTorch."""
    import torch

    dtype_name, layout_name, math_type = CONFIGS[config]
    dtype = getattr(torch, dtype_name)
    torch.backends.cudnn.benchmark = benchmark
    torch.backends.cudnn.allow_tf32 = math_type != "FMA"
    layout = torch.channels_last if layout_name == "NHWC" else torch.contiguous_format
    layers = []
    for x_shape, w_shape, padding, stride, count in resnet50_layers(batch):
        x = torch.randn(x_shape, device="cuda").mul_(0.05).to(dtype).to(memory_format=layout)
        w = torch.randn(w_shape, device="cuda").mul_(0.05).to(dtype).to(memory_format=layout)
        size = [(extent + 2 * padding - w_shape[2]) // stride + 1 for extent in x_shape[2:]]
        y = torch.zeros((batch, w_shape[0], *size), device="cuda", dtype=dtype)
        layers.append((x, w, y.to(memory_format=layout), padding, stride, count))

    def step():
        with torch.no_grad():
            for x, w, _, padding, stride, count in layers:
                for _ in range(count):
                    torch.nn.functional.conv2d(x, w, None, stride, padding)
            for x, w, y, padding, stride, count in reversed(layers):
                for _ in range(count):
                    torch.ops.aten.convolution_backward(
                        y, x, w, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1,
                        [x.shape[1] > 4, True, False],
                    )  # fmt: skip

    return timed_steps(step, torch.cuda.synchronize)


def timed_steps(step, synchronize):
    """Return the seconds of each step, and wait for the device behind each."""
    synchronize()
    seconds = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        step()
        synchronize()
        seconds.append(time.perf_counter() - begin)
    return seconds


def compare_resnet50(arguments):
    """Run each contender in new processes, in turn with the others, and print the medians."""
    program = [sys.executable, __file__, "--part", "resnet50", "--device", arguments.device]
    program += ["--config", arguments.config, "--batch", str(arguments.batch)]
    results = {name: [] for name in CONTENDERS}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "seconds.json"
        for _ in range(arguments.rounds):
            for name, options in CONTENDERS.items():
                subprocess.run(
                    [*program, *options, "--json", str(file)], stdout=subprocess.PIPE, check=True
                )
                results[name].append(json.loads(file.read_text(encoding="utf-8")))
    untuned = [sum(seconds) for seconds in results["untuned"]]
    title = f"medians of {arguments.rounds}"
    print(f"{title:30} {STEPS} steps, s  over untuned  first, ms  later, ms")
    for name, runs in results.items():
        totals = [sum(seconds) for seconds in runs]
        ratio = statistics.median(map(operator.truediv, totals, untuned))
        first = statistics.median(seconds[0] for seconds in runs) * 1000
        later = statistics.median(later_seconds(seconds) for seconds in runs) * 1000
        total = statistics.median(totals)
        print(f"{name:30} {total:11.3f}  {ratio:12.2f}  {first:9.0f}  {later:9.2f}")
    return True


def later_seconds(seconds):
    """Return the median of the last ten steps."""
    return statistics.median(seconds[-10:])


def run_resnet50(arguments):
    """Print the seconds of the first steps of one contender, in this new process."""
    # The kernels of neither library are loaded, nor is any choice kept.
    if not arguments.database:
        os.environ["CUDNNLITE_DATABASE"] = "off"
    who, config = arguments.who, arguments.config
    if who in ("ours", "untuned"):
        seconds = steps_ours(
            config,
            arguments.batch,
            tuned=who == "ours",
            device_name=arguments.device,
            limits=limits_of(arguments),
        )
    else:
        seconds = steps_torch(config, arguments.batch, benchmark=who == "torch-benchmark")
    print(
        f"resnet50 {config} batch {arguments.batch} {who:16} {STEPS} steps {sum(seconds):.3f} s, "
        f"first {seconds[0] * 1000:.0f} ms, last {later_seconds(seconds) * 1000:.2f} ms"
    )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(seconds), encoding="utf-8")
    return True


def main():
    """Run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", choices=("calls", "database", "resnet50"), default="calls")
    parser.add_argument("--seconds", type=float, default=200.0, help="begin nothing after so long")
    parser.add_argument("--calls", type=int, default=12, help="calls that try candidates")
    parser.add_argument("--losers", type=int, help="slow ones in a row end the trials")
    parser.add_argument("--share", type=float, help="of the time, for trials")
    parser.add_argument("--part-of", type=int, default=1, help="how many runs share the problems")
    parser.add_argument("--which", type=int, default=0, help="of them, from 0")
    parser.add_argument("--database", action="store_true", help="resnet50: with the database")
    parser.add_argument("--join", nargs="+", help="print the table of such files, measure nothing")
    parser.add_argument("--rounds", type=int, default=0, help="resnet50: all, so many times")
    parser.add_argument("--json", help="a file for all rows, or for the seconds of the steps")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--who", choices=("ours", "untuned", "torch", "torch-benchmark"), default="ours"
    )
    parser.add_argument("--config", choices=tuple(CONFIGS), default="f16-nhwc")
    parser.add_argument("--batch", type=int, default=32)
    arguments = parser.parse_args()
    if not 0 <= arguments.which < arguments.part_of:
        parser.error("--which is from 0 to --part-of less 1")
    if arguments.rounds and arguments.part != "resnet50":
        parser.error("--rounds is for --part resnet50")
    if arguments.join and arguments.part == "resnet50":
        parser.error("--join is for the other parts")
    if arguments.join:
        rows = [row for name in arguments.join for row in json.loads(Path(name).read_text())]
        names = {row["name"] for row in rows}
        print(f"{len(rows)} problems of {len(names)} convolutions")
        return 0 if report(rows, arguments.part) or not arguments.check else 1
    run = run_resnet50 if arguments.part == "resnet50" else run_calls
    if arguments.rounds:
        run = compare_resnet50
    return 0 if run(arguments) or not arguments.check else 1


if __name__ == "__main__":
    sys.exit(main())
