"""Operations that are graphs, beside PyTorch's calls that do the same.

    python -m tools.benchmarks.graphs [--only WORD ...] [--markdown] [--json OUT.json]

Attention in both directions over `scaled_dot_product_attention`, of whose backends each row takes
the fastest; NVIDIA's own figures for attention on an H200; normalisations; products with bias and
GELU.  Device times are those of calls captured into a CUDA graph, which is replayed between two
events; wall times are those of eager calls, of which many are enqueued before anybody waits.
Medians of shuffled rounds.  Needs a GPU and PyTorch.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import cudnnlite as dnn

ROUNDS = 9
ENOUGH_US = 4000.0  # of device time in one captured graph
MOST_CALLS = 20
EAGER_CALLS = 200
Call = Callable[[], Any]
NVIDIA = Path(__file__).parent / "data" / "attention_h200.json"
BACKENDS = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
)


class Attention(NamedTuple):
    """The sizes of one attention, and what is masked."""

    batch: int
    heads: int
    groups: int
    rows: int
    columns: int
    size: int
    dtype: str = "float16"
    causal: bool = False
    has_lengths: bool = False
    window: int | None = None

    def __str__(self) -> str:
        heads = f"{self.heads}" if self.heads == self.groups else f"{self.heads}({self.groups})"
        steps = f"{self.rows}" if self.rows == self.columns else f"{self.rows}/{self.columns}"
        masks = [
            "causal" if self.causal else "",
            "lengths" if self.has_lengths else "",
            f"window {self.window}" if self.window else "",
        ]
        return " ".join(
            [f"{self.batch}x{heads}x{steps}x{self.size} {self.dtype}", *filter(None, masks)]
        )


ATTENTION = (
    Attention(64, 12, 12, 128, 128, 64),
    Attention(32, 16, 16, 128, 128, 64, "bfloat16", causal=True),
    Attention(16, 12, 12, 512, 512, 64),
    Attention(16, 12, 12, 512, 512, 64, causal=True),
    Attention(2, 4, 4, 256, 256, 64),
    Attention(1, 8, 8, 384, 384, 128, "bfloat16"),
    Attention(8, 12, 12, 1024, 1024, 64, causal=True),
    Attention(8, 12, 12, 1024, 1024, 64),
    Attention(4, 16, 16, 2048, 2048, 128, "bfloat16"),
    Attention(4, 16, 16, 2048, 2048, 128, "bfloat16", causal=True),
    Attention(4, 32, 8, 2048, 2048, 128, causal=True),
    Attention(2, 32, 8, 4096, 4096, 128, "bfloat16", causal=True),
    Attention(2, 16, 16, 4096, 4096, 64),
    Attention(1, 32, 8, 8192, 8192, 128, "bfloat16", causal=True),
    Attention(1, 16, 16, 8192, 8192, 64, causal=True),
    Attention(1, 16, 4, 16384, 16384, 128, "bfloat16", causal=True),
    Attention(1, 8, 8, 16384, 16384, 64),
    Attention(4, 16, 16, 1000, 1000, 64, causal=True),
    Attention(4, 16, 16, 200, 1500, 64),
    Attention(8, 8, 8, 77, 4096, 64),
    Attention(8, 16, 16, 512, 512, 64, has_lengths=True),
    Attention(4, 16, 16, 2048, 2048, 128, "bfloat16", has_lengths=True),
)
ROWS = ((4096, 1024), (16384, 4096), (2048, 768), (512, 768), (8192, 5120))
PRODUCTS = (
    (128, 4096, 1024),
    (4096, 4096, 4096),
    (8192, 3072, 768),
    (512, 3072, 768),
    (2048, 16384, 4096),
)


# ------------------------------------------------------------------------------- how it is measured


def captured(call: Call, stream: torch.cuda.Stream) -> tuple[torch.cuda.CUDAGraph, int]:
    """Return a CUDA graph of some calls, and how many."""
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
    estimate = max(begin.elapsed_time(end) * 1000, 1.0)
    calls = max(1, min(MOST_CALLS, round(ENOUGH_US / estimate)))
    graph = torch.cuda.CUDAGraph()
    gc.collect()
    gc.disable()  # what it frees would end the capture
    try:
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(calls):
                call()
    finally:
        gc.enable()
    return graph, calls


def device_us(calls: Mapping[str, Call], stream: torch.cuda.Stream) -> dict[str, float]:
    """Return the microseconds that the device takes for one call of each."""
    graphs = {name: captured(call, stream) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    with torch.cuda.stream(stream):
        for _ in range(ROUNDS):
            for name in random.sample(list(graphs), len(graphs)):
                graph, count = graphs[name]
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                graph.replay()
                end.record()
                end.synchronize()
                times[name].append(begin.elapsed_time(end) * 1000 / count)
    return {name: statistics.median(values) for name, values in times.items()}


def wall_us(calls: Mapping[str, Call], stream: torch.cuda.Stream) -> dict[str, float]:
    """Return the microseconds of one eager call of each."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    with torch.cuda.stream(stream):
        for _ in range(ROUNDS):
            for name in random.sample(list(calls), len(calls)):
                call = calls[name]
                stream.synchronize()
                start = time.perf_counter()
                for _ in range(EAGER_CALLS):
                    call()
                stream.synchronize()
                times[name].append((time.perf_counter() - start) * 1e6 / EAGER_CALLS)
    return {name: statistics.median(values) for name, values in times.items()}


def best_of(times: Mapping[str, float]) -> float:
    """Return the fastest of PyTorch's ways."""
    return min(value for name, value in times.items() if name != "ours")


# --------------------------------------------------------------------------------------- attention


class Operands:
    """The operands of an attention, as PyTorch's tensors and as our arrays of the same memory."""

    def __init__(self, handle: dnn.Handle, case: Attention) -> None:
        self.case = case
        dtype = getattr(torch, case.dtype)
        shapes = {
            "q": (case.batch, case.heads, case.rows, case.size),
            "k": (case.batch, case.groups, case.columns, case.size),
            "v": (case.batch, case.groups, case.columns, case.size),
            "do": (case.batch, case.heads, case.rows, case.size),
        }
        self.tensors = {
            name: torch.randn(shape, device="cuda", dtype=dtype) for name, shape in shapes.items()
        }
        self.arrays = {name: handle.view(tensor) for name, tensor in self.tensors.items()}
        self.options: dict[str, Any] = {"causal": case.causal, "window": case.window}
        self.mask: torch.Tensor | None = None
        if case.has_lengths:
            lengths = torch.randint(case.rows // 4, case.rows, (case.batch, 1, 1, 1), device="cuda")
            steps = torch.arange(case.columns, device="cuda")
            self.mask = (steps < lengths).expand(-1, 1, case.rows, -1)
            self.lengths = lengths.int()
            view = handle.view(self.lengths)
            self.options |= {"q_lengths": view, "kv_lengths": view}

    def torch_forward(self, leaves: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return PyTorch's result."""
        is_grouped = self.case.heads != self.case.groups
        return torch.nn.functional.scaled_dot_product_attention(
            *(leaves[name] for name in "qkv"),
            attn_mask=self.mask,
            is_causal=self.case.causal,
            **({"enable_gqa": True} if is_grouped else {}),
        )


def near(ours: dnn.DeviceArray, theirs: torch.Tensor, rows: torch.Tensor | None = None) -> None:
    """Compare results; within the lengths alone."""
    mine, other = torch.from_dlpack(ours).float(), theirs.float()
    if rows is not None:
        mine, other = mine * rows, other * rows
    error = (mine - other).norm() / other.norm()
    assert error < 0.02, f"the results differ by {error:.2e}"


def torch_calls(operands: Operands, backward: bool) -> Iterator[tuple[str, Call]]:
    """Yield PyTorch's backends that serve a case, each with its call."""
    for backend in BACKENDS:
        leaves = {
            name: tensor.detach().requires_grad_() for name, tensor in operands.tensors.items()
        }

        def forward(
            backend: SDPBackend = backend, leaves: Mapping[str, torch.Tensor] = leaves
        ) -> torch.Tensor:
            with sdpa_kernel(backend):
                return operands.torch_forward(leaves if backward else operands.tensors)

        try:
            o = forward()
        except RuntimeError:
            continue
        if not backward:
            yield backend.name, forward
            continue
        inputs = [leaves[name] for name in "qkv"]

        def gradients(o: torch.Tensor = o, inputs: Sequence[torch.Tensor] = inputs) -> Any:
            return torch.autograd.grad(o, inputs, operands.tensors["do"], retain_graph=True)

        yield backend.name, gradients


def attention_row(handle: dnn.Handle, stream: torch.cuda.Stream, case: Attention) -> list[float]:
    """Return device times of both directions, and wall times of a plan and one line, over PyTorch's."""
    operands = Operands(handle, case)
    q, k, v, do = (operands.arrays[name] for name in ("q", "k", "v", "do"))
    forward = dnn.scaled_dot_product_attention_forward
    backward = dnn.scaled_dot_product_attention_backward
    options = operands.options
    o, stats = forward(handle, q, k, v, return_stats=True, **options)
    lengths = [options[name] for name in ("q_lengths", "kv_lengths") if name in options]
    plan = forward.plan(handle, q, k, v, **options)
    rows = None
    if case.has_lengths:
        rows = torch.arange(case.rows, device="cuda")[:, None] < operands.lengths
    peers = dict(torch_calls(operands, backward=False))
    near(o, next(iter(peers.values()))(), rows)
    out = {"o": handle.empty(o.spec)}
    ours: Call = lambda: plan(q, k, v, *lengths, out=out)  # noqa: E731
    forward_times = device_us({"ours": ours, **peers}, stream)
    gradient_plan = backward.plan(handle, q, k, v, o, do, stats, **options)
    gradients = gradient_plan(q, k, v, o, do, stats, *lengths)
    gradient_peers = dict(torch_calls(operands, backward=True))
    ours_backward: Call = lambda: gradient_plan(  # noqa: E731
        q, k, v, o, do, stats, *lengths, out=gradients
    )
    backward_times = device_us({"ours": ours_backward, **gradient_peers}, stream)
    walls = [math.nan] * 3
    if case.rows <= 512:
        one_line: Call = lambda: forward(handle, q, k, v, **options)  # noqa: E731
        fastest = min(peers, key=lambda name: forward_times[name])
        times = wall_us({"plan": ours, "one line": one_line, "torch": peers[fastest]}, stream)
        walls = [times["plan"], times["one line"], times["torch"]]
    forward_us, backward_us = forward_times["ours"], backward_times["ours"]
    peer_us, peer_backward_us = best_of(forward_times), best_of(backward_times)
    return [forward_us, peer_us, backward_us, peer_backward_us, *walls]


def attention(handle: dnn.Handle, stream: torch.cuda.Stream) -> Iterator[list[Any]]:
    """Yield the rows of attention beside PyTorch's."""
    for case in ATTENTION:
        yield [str(case), *attention_row(handle, stream, case)]


def nvidia(handle: dnn.Handle, stream: torch.cuda.Stream) -> Iterator[list[Any]]:
    """Yield milliseconds of both directions beside those that NVIDIA measured on an H200."""
    for figures in json.loads(NVIDIA.read_text())["rows"]:
        case = Attention(
            figures["batch"],
            figures["q_heads"],
            figures["kv_heads"],
            figures["q_steps"],
            figures["kv_steps"],
            figures["size_qk"],
            "bfloat16",
            figures["mask"] == "causal",
            window=figures["window"],
        )
        operands = Operands(handle, case)
        q, k, v, do = (operands.arrays[name] for name in ("q", "k", "v", "do"))
        options = operands.options
        forward = dnn.scaled_dot_product_attention_forward
        o, stats = forward(handle, q, k, v, return_stats=True, **options)
        plan = forward.plan(handle, q, k, v, return_stats=True, **options)
        backward = dnn.scaled_dot_product_attention_backward
        gradient_plan = backward.plan(handle, q, k, v, o, do, stats, **options)
        gradients = gradient_plan(q, k, v, o, do, stats)
        out = {"o": o, "stats": stats}
        calls: dict[str, Call] = {
            "forward": lambda: plan(q, k, v, out=out),  # noqa: B023
            "backward": lambda: gradient_plan(q, k, v, o, do, stats, out=gradients),  # noqa: B023
        }
        times = device_us(calls, stream)
        yield [
            str(case),
            times["forward"] / 1000,
            figures["forward_ms"],
            times["backward"] / 1000,
            figures["backward_ms"],
        ]
        plan.close()
        gradient_plan.close()


# ------------------------------------------------------------------- normalisations and products


def normalizations(handle: dnn.Handle, stream: torch.cuda.Stream) -> Iterator[list[Any]]:
    """Yield device and wall times of both directions, ours and PyTorch's."""
    for kind in ("layer", "rms"):
        for rows, size in ROWS:
            yield [
                f"{kind} {rows}x{size} float16",
                *normalization_row(handle, stream, kind, rows, size),
            ]


def normalization_row(
    handle: dnn.Handle, stream: torch.cuda.Stream, kind: str, rows: int, size: int
) -> list[float]:
    """Return device times forward and backward, then wall times, ours before PyTorch's.

    The last is the wall time of a forward plan that replays its call.
    """
    x, dy = (torch.randn(rows, size, device="cuda", dtype=torch.float16) for _ in range(2))
    weights = [torch.randn(size, device="cuda", dtype=torch.float16)]
    if kind == "layer":
        weights.append(torch.randn(size, device="cuda", dtype=torch.float16))
    view, gradient = (handle.view(tensor.view(rows, size, 1, 1)) for tensor in (x, dy))
    parameters = [handle.view(tensor.view(1, size, 1, 1)) for tensor in weights]
    functional = torch.nn.functional
    peer = functional.layer_norm if kind == "layer" else functional.rms_norm
    forward = getattr(dnn, f"{kind}_normalization_forward")
    backward = getattr(dnn, f"{kind}_normalization_backward")
    results = forward(handle, view, *parameters, training=True)
    leaves = [tensor.detach().requires_grad_() for tensor in (x, *weights)]
    y = peer(leaves[0], (size,), *leaves[1:], eps=1e-5)
    near(results[0].reshape((rows, size)), y)
    plan = forward.plan(handle, view, *parameters, training=True)
    out = dict(zip(plan.problem.operation.writes, results, strict=True))
    operands = (gradient, view, parameters[0], *results[1:])
    gradient_plan = backward.plan(handle, *operands)
    gradients = gradient_plan(*operands)
    forwards: dict[str, Call] = {
        "ours": lambda: plan(view, *parameters, out=out),
        "torch": lambda: peer(x, (size,), *weights, eps=1e-5),
    }
    backwards: dict[str, Call] = {
        "ours": lambda: gradient_plan(*operands, out=gradients),
        "torch": lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True),
    }
    device = [device_us(calls, stream) for calls in (forwards, backwards)]
    wall = [wall_us(calls, stream) for calls in (forwards, backwards)]
    specs = [array.spec for array in (view, *parameters)]
    replaying = forward.graph(*specs, training=True).plan(handle, replay=True)
    replayed = wall_us(
        {"ours": lambda: replaying(view, *parameters, out=out), "torch": forwards["torch"]}, stream
    )
    times = (*device, *wall, replayed)
    return [value[name] for value in times for name in ("ours", "torch")]


def products(handle: dnn.Handle, stream: torch.cuda.Stream) -> Iterator[list[Any]]:
    """Yield device and wall times of matmul + bias + GELU, ours before PyTorch's."""
    for rows, columns, inner in PRODUCTS:
        for dtype in (torch.float16, torch.bfloat16):
            a = torch.randn(rows, inner, device="cuda", dtype=dtype)
            b = torch.randn(inner, columns, device="cuda", dtype=dtype)
            bias = torch.randn(columns, device="cuda", dtype=dtype)
            arrays = [handle.view(tensor[None]) for tensor in (a, b)]
            arrays.append(handle.view(bias[None, None]))
            plan = dnn.matmul.plan(handle, *arrays[:2], bias=arrays[2], activation="gelu")
            out = plan(*arrays)

            def theirs(
                a: torch.Tensor = a, b: torch.Tensor = b, bias: torch.Tensor = bias
            ) -> torch.Tensor:
                return torch.nn.functional.gelu(torch.addmm(bias, a, b))

            near(out["y"].reshape((rows, columns)), theirs())
            calls: dict[str, Call] = {
                "ours": lambda: plan(*arrays, out=out),  # noqa: B023
                "torch": theirs,
            }
            times = (device_us(calls, stream), wall_us(calls, stream))
            name = f"{rows}x{inner} by {inner}x{columns} {str(dtype).partition('.')[2]}"
            yield [name, *(value[side] for value in times for side in ("ours", "torch"))]


# ------------------------------------------------------------------------------ a Transformer block


class TorchBlock(torch.nn.Module):
    """A block of GPT-2: attention and a network of two layers, each behind a normalisation."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.normalize_1 = torch.nn.LayerNorm(size)
        self.normalize_2 = torch.nn.LayerNorm(size)
        self.qkv = torch.nn.Linear(size, 3 * size)
        self.project = torch.nn.Linear(size, size)
        self.widen = torch.nn.Linear(size, 4 * size)
        self.narrow = torch.nn.Linear(4 * size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, steps, size = x.shape
        qkv = self.qkv(self.normalize_1(x)).view(batch, steps, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(o.transpose(1, 2).reshape(batch, steps, size))
        wide = torch.nn.functional.gelu(self.widen(self.normalize_2(x)))
        return x + self.narrow(wide)


class Block:
    """The same block by our plans, over the module's weights."""

    def __init__(self, handle: dnn.Handle, module: TorchBlock, x: torch.Tensor) -> None:
        self.handle = handle
        batch, steps, size = x.shape
        rows, heads = batch * steps, module.heads
        self.calls: list[Call] = []
        self.x = handle.view(x.view(1, rows, size))
        normal = self.normalized(self.x, module.normalize_1)
        qkv = self.product(normal, module.qkv)
        width = 3 * size
        strides = (steps * width, size // heads, width, 1)
        shape = (batch, heads, steps, size // heads)
        spec = dnn.TensorSpec(shape, "float16", strides=strides)
        parts = torch.from_dlpack(qkv).view(batch, steps, 3, heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = (handle.view(part) for part in parts)
        assert q.spec == spec
        o_strides = (steps * size, size // heads, size, 1)
        o = handle.empty((1, rows, size), "float16")
        o_heads = handle.view(torch.from_dlpack(o).view(batch, steps, heads, -1).transpose(1, 2))
        attention = dnn.scaled_dot_product_attention_forward.plan(
            handle, q, k, v, causal=True, out=dnn.TensorSpec(shape, "float16", strides=o_strides)
        )
        self.calls.append(lambda: attention(q, k, v, out=o_heads))
        middle = self.product(o, module.project, residual=self.x)
        wide = self.product(self.normalized(middle, module.normalize_2), module.widen, gelu=True)
        self.y = self.product(wide, module.narrow, residual=middle)

    def __call__(self) -> None:
        for call in self.calls:
            call()

    def normalized(self, x: dnn.DeviceArray, module: torch.nn.LayerNorm) -> dnn.DeviceArray:
        """Plan a normalisation, and return its result."""
        _, rows, size = x.shape
        operands = [
            x.reshape((rows, size, 1, 1)),
            *(
                self.handle.view(part.detach().view(1, size, 1, 1))
                for part in (module.weight, module.bias)
            ),
        ]
        plan = dnn.layer_normalization_forward.plan(self.handle, *operands)
        result = self.handle.empty((rows, size, 1, 1), "float16")
        self.calls.append(lambda: plan(*operands, out=result))
        plan(*operands, out=result)
        return result.reshape((1, rows, size))

    def product(
        self,
        a: dnn.DeviceArray,
        module: torch.nn.Linear,
        *,
        gelu: bool = False,
        residual: dnn.DeviceArray | None = None,
    ) -> dnn.DeviceArray:
        """Plan a product with bias, and what follows it, and return its result."""
        w = self.handle.view(module.weight.detach().t()[None])
        bias = self.handle.view(module.bias.detach()[None, None])
        operands = {"a": a, "b": w, "bias": bias}
        if residual is not None:
            operands["residual"] = residual
        graph = dnn.Graph()
        tensors = {
            name: graph.input(name, array.shape, "float16", array.spec.strides)
            for name, array in operands.items()
        }
        y = tensors["a"] @ tensors["b"] + tensors["bias"]
        if gelu:
            y = graph.gelu(y)
        if residual is not None:
            y = y + tensors["residual"]
        graph.output("y", y, "float16")
        plan = graph.plan(self.handle)
        result = plan(*operands.values())["y"]
        self.calls.append(lambda: plan(*operands.values(), out=result))
        return result


def block(handle: dnn.Handle, stream: torch.cuda.Stream) -> Iterator[list[Any]]:
    """Yield a block of GPT-2 small as one CUDA graph, beside PyTorch eager and compiled."""
    x = torch.randn(8, 1024, 768, device="cuda", dtype=torch.float16)
    module = TorchBlock(768, 12).cuda().half().requires_grad_(False)
    with torch.inference_mode():
        expected = module(x)
        policy = dnn.TuningPolicy(objective="device")
        with dnn.autotuned(handle, cache=":memory:", policy=policy):
            tuned = Block(handle, module, x)
        untuned = Block(handle, module, x)
        compiled = torch.compile(module)
        compiled(x)
        for one in (tuned, untuned):
            one()
            near(one.y.reshape(x.shape), expected)
        device = device_us({"tuned": tuned, "ours": untuned, "torch": lambda: module(x)}, stream)
        graph, calls = captured(tuned, stream)
        wall = wall_us(
            {
                "graph": lambda: graph.replay(),
                "torch": lambda: module(x),
                "compiled": lambda: compiled(x),
            },
            stream,
        )
    yield [
        "GPT-2 small, 8x1024, float16",
        *(device[name] for name in ("tuned", "ours", "torch")),
        wall["graph"] / calls,
        wall["torch"],
        wall["compiled"],
    ]


# -------------------------------------------------------------------------------------- the tables

TABLES: dict[str, tuple[Callable[..., Iterator[list[Any]]], tuple[str, ...]]] = {
    "attention": (
        attention,
        (
            *("forward us", "torch", "backward us", "torch"),
            *("wall: plan", "one line", "torch"),
        ),
    ),
    "nvidia": (nvidia, ("forward ms", "NVIDIA's", "backward ms", "NVIDIA's")),
    "normalizations": (
        normalizations,
        (
            *("forward us", "torch", "backward us", "torch"),
            *("wall: forward", "torch", "backward", "torch", "forward replayed", "torch"),
        ),
    ),
    "products": (products, ("device us", "torch", "wall us", "torch")),
    "block": (
        block,
        (
            *("device us: tuned", "untuned", "torch"),
            *("wall us: one CUDA graph", "torch", "torch.compile"),
        ),
    ),
}


PEERS = ("torch", "NVIDIA's", "torch.compile")


def summary(rows: Sequence[Sequence[Any]], columns: Sequence[str]) -> Iterator[str]:
    """Yield geometric means and the worst row of each column over its peer's."""
    for place, name in enumerate(columns):
        is_peer = name in PEERS
        if is_peer:
            continue
        peer = next(other for other in range(place, len(columns)) if columns[other] in PEERS)
        ratios = [row[place + 1] / row[peer + 1] for row in rows if not math.isnan(row[place + 1])]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            yield (
                f"{name} over {columns[peer]}: geometric mean {mean:.3f}, worst {max(ratios):.3f}, "
                f"{len(ratios)} rows"
            )


def main(arguments: list[str]) -> int:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(TABLES), choices=TABLES)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    join = " | " if options.markdown else "  "
    written: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }
    stream = torch.cuda.Stream()
    for table in options.only:
        rows_of, columns = TABLES[table]
        print(join.join((table, *columns)), flush=True)
        rows: list[list[Any]] = []
        with dnn.Handle("cuda", stream=stream) as handle, torch.cuda.stream(stream):
            for row in rows_of(handle, stream):
                rows.append(row)
                values = ("" if math.isnan(value) else f"{value:.4g}" for value in row[1:])
                print(join.join((row[0], *values)), flush=True)
                torch.cuda.empty_cache()
        for line in summary(rows, columns):
            print(f"# {line}", flush=True)
        written[table] = rows
        if options.json:
            options.json.write_text(json.dumps(written, indent=1))
    return 0


if __name__ == "__main__":
    np.random.seed(0)
    torch.manual_seed(0)
    raise SystemExit(main(sys.argv[1:]))
