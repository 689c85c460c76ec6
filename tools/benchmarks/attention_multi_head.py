"""Multi-head attention by graphs and by the descriptor call, beside torch.nn.MultiheadAttention.

    python tools/benchmarks/attention_multi_head.py [--dtype float16] [--steps] [--json OUT.json]

Self-attention with four projections and biases, in inference, and in training with both backward passes.  "device" is the time
of a call in a CUDA graph of twenty, "wall" that of an eager call among twenty with the wait at their end; medians of shuffled
rounds, in microseconds.  With --steps, the graphs of each attention one by one, with their engines.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from layers import CALLS, ROUNDS, Shape, _Attention, captured, measured

import cudnnlite as dnn

# batch, steps, vector, heads
SHAPES: tuple[Shape, ...] = (
    (16, 512, 768, 12),
    (4, 2048, 1024, 16),
    (8, 128, 512, 8),
    (32, 128, 768, 12),
    (64, 64, 256, 4),
)
INTERFACES = ("tuned", "graph", "descriptor")  # "tuned" are graphs whose engines are tuned
Calls = dict[str, Callable[[], Any]]


def planned(pair: _Attention, interface: str, *, training: bool) -> Any:
    """Return a plan of one interface."""
    x, function = pair.x, dnn.multi_head_attention_forward
    operands = (pair.handle, pair.spec, pair.weights, x, x, x)
    if interface != "tuned":
        return function.plan(*operands, training=training, interface=interface)
    policy = dnn.TuningPolicy(objective="device")
    with dnn.autotuned(pair.handle, cache=":memory:", policy=policy):
        return function.plan(*operands, training=training, interface="graph")


def inference(pair: _Attention) -> Calls:
    """Return the forward pass by each interface, and PyTorch's fused one."""
    x, weights, torch_x = pair.x, pair.weights, pair.torch_x
    module = pair.module.eval().requires_grad_(False)
    expected = module(torch_x, torch_x, torch_x, need_weights=False)[0]
    calls: Calls = {}
    for interface in INTERFACES:
        plan = planned(pair, interface, training=False)
        y = plan(weights, x, x, x)
        pair.near(y, expected)
        calls[interface] = lambda plan=plan, y=y: plan(weights, x, x, x, out=y)
    calls["torch"] = lambda: module(torch_x, torch_x, torch_x, need_weights=False)
    return calls


def training(pair: _Attention) -> Calls:
    """Return the forward pass with both backward passes by each interface, and PyTorch's."""
    x, weights, dy = pair.x, pair.weights, pair.handle.view(pair.dy)
    leaf, parameters = pair.torch_x.requires_grad_(), list(pair.module.parameters())

    def theirs() -> Any:
        y = pair.module(leaf, leaf, leaf, need_weights=False)[0]
        return y, *torch.autograd.grad(y, [leaf, *parameters], pair.dy)

    expected, dx, *_ = theirs()
    calls: Calls = {}
    for interface in INTERFACES:
        plan = planned(pair, interface, training=True)
        y, reserve = plan(weights, x, x, x)
        gradients = plan.backward_data(reserve, dy)
        dweights = plan.backward_weights(reserve)
        pair.near(y, expected)
        total = sum(torch.from_dlpack(gradient).float() for gradient in gradients)
        torch.testing.assert_close(total, dx.float(), rtol=0.02, atol=0.05)

        def ours(
            plan: Any = plan,
            y: Any = y,
            reserve: Any = reserve,
            gradients: Any = gradients,
            dweights: Any = dweights,
        ) -> None:
            plan(weights, x, x, x, out=y, reserve=reserve)
            plan.backward_data(reserve, dy, out=gradients)
            plan.backward_weights(reserve, out=dweights)

        calls[interface] = ours
    calls["torch"] = theirs
    return calls


def wall(calls: Calls, stream: torch.cuda.Stream) -> dict[str, float]:
    """Return the microseconds of an eager call among many, with the device's work done."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    with torch.cuda.stream(stream):
        for _ in range(ROUNDS):
            for name in random.sample(list(calls), len(calls)):
                stream.synchronize()
                begin = time.perf_counter()
                for _ in range(CALLS):
                    calls[name]()
                stream.synchronize()
                times[name].append((time.perf_counter() - begin) / CALLS * 1e6)
    return {name: statistics.median(values) for name, values in times.items()}


def device(calls: Calls, stream: torch.cuda.Stream) -> dict[str, float]:
    """Return the microseconds of a call on the device."""
    graphs = [captured(call, stream) for call in calls.values()]
    return dict(zip(calls, measured(graphs, stream), strict=True))


def steps_of(pair: _Attention, stream: torch.cuda.Stream) -> dict[str, tuple[float, str]]:
    """Return the time on the device, and the engine, of each graph of a training step."""
    x, weights = pair.x, pair.weights
    plan = dnn.multi_head_attention_forward.plan(
        pair.handle, pair.spec, weights, x, x, x, training=True, interface="graph"
    )
    # Each step's plan is a public GraphPlan; that there are steps is known to the interface alone.
    interface = plan._interface
    steps = [
        *interface._forward_steps,
        *interface._backward_data_steps,
        *interface._backward_weights_steps,
    ]
    calls: Calls = {}
    for step in steps:
        specs = step.plan.problem.specs
        arrays = {name: pair.handle.zeros(spec) for name, spec in specs.items()}
        names = step.plan.problem.operation.writes
        out = {name: arrays.pop(name) for name in names}
        calls[step.label] = lambda step=step, arrays=arrays, out=out: step.plan(**arrays, out=out)
    engines = plan.choice.engines
    return {
        label: (us, str(engines[label].algorithm)) for label, us in device(calls, stream).items()
    }


def row(
    name: str, make: Callable[[_Attention], Calls], shape: Shape, dtype: str
) -> Mapping[str, Any]:
    """Return the times of one shape."""
    stream = torch.cuda.Stream()
    with dnn.Handle("cuda", stream=stream) as handle, torch.cuda.stream(stream):
        calls = make(_Attention(handle, shape, dtype))
        eager = wall(calls, stream)
        return {"pass": name, "shape": shape, "device": device(calls, stream), "wall": eager}


def print_row(row: Mapping[str, Any]) -> None:
    """Print the times of one shape, and the ratios to PyTorch's."""
    cells = [f"{row['pass']:10}", f"{'x'.join(map(str, row['shape'])):16}"]
    for kind in ("device", "wall"):
        times = row[kind]
        cells += [f"{times[name]:9.1f}" for name in (*INTERFACES, "torch")]
        cells.append(f"{times['tuned'] / times['torch']:6.2f}")
    print(" ".join(cells), flush=True)


def main(arguments: list[str]) -> int:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float16", choices=("float16", "bfloat16"))
    parser.add_argument("--steps", action="store_true", help="each graph of a training step")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    print(f"# {torch.cuda.get_device_name()}, PyTorch {torch.__version__}, {options.dtype}")
    columns = " ".join(f"{name:>9}" for name in (*INTERFACES, "torch"))
    print(f"{'':10} {'batch x steps':16} {columns}  ratio {columns}  ratio")
    rows = []
    for name, make in {"inference": inference, "training": training}.items():
        for shape in SHAPES:
            try:
                rows.append(row(name, make, shape, options.dtype))
            except Exception as error:  # the others are measured all the same
                print(f"# {name} {shape}: {type(error).__name__}: {error}", flush=True)
                continue
            print_row(rows[-1])
    if options.steps:
        for shape in SHAPES:
            stream = torch.cuda.Stream()
            with dnn.Handle("cuda", stream=stream) as handle, torch.cuda.stream(stream):
                steps = steps_of(_Attention(handle, shape, options.dtype), stream)
            print("x".join(map(str, shape)))
            for label, (us, engine) in steps.items():
                print(f"    {us:8.1f} {label:24} {engine}", flush=True)
    if options.json:
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
        options.json.write_text(json.dumps(about | {"rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
