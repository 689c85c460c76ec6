"""Layers on the device, beside PyTorch's call that does the same.

    python tools/benchmarks/layers.py [--only WORD ...] [--markdown] [--json OUT.json]

Each layer has typical shapes: images, and rows of classifiers, in float32 with the channels first
and in float16 with the channels last; numbers for dropout and sequences for attention, in float32
and float16; sequences for CTC in float32.

Each call is captured twenty times into a CUDA graph, ours and PyTorch's.  The graphs are replayed
between two events in shuffled rounds.  The time is the median, divided by twenty.  Both sides write
into existing memory, except for PyTorch's calls without an `out`, which take new outputs from its
pool.  CTC is called eagerly, because PyTorch copies lengths from the host.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import cudnnlite as dnn

CALLS, ROUNDS = 20, 15
Shape = tuple[int, ...]
IMAGES: tuple[Shape, ...] = (
    (32, 64, 112, 112),
    (32, 256, 56, 56),
    (32, 512, 28, 28),
    (32, 1024, 14, 14),
    (32, 2048, 7, 7),
    (8, 64, 224, 224),
    (16, 192, 56, 56),
    (64, 96, 27, 27),
    (1, 64, 112, 112),
    (128, 32, 32, 32),
)
ROWS: tuple[Shape, ...] = (
    (32, 1000, 1, 1),
    (256, 1000, 1, 1),
    (1024, 1000, 1, 1),
    (4096, 128, 1, 1),
    (512, 512, 1, 1),
    (64, 10, 1, 1),
    (2048, 2048, 1, 1),
    (128, 32000, 1, 1),
    (8, 21, 256, 256),
    (4, 19, 512, 512),
)
NUMBERS: tuple[Shape, ...] = (
    (64, 4096, 1, 1),
    (32, 512, 28, 28),
    (16, 512, 1, 1024),
    (128, 1000, 1, 1),
    (8, 64, 224, 224),
)
# batch, steps, vector, heads of 64 numbers
SEQUENCES: tuple[Shape, ...] = (
    (8, 128, 512, 8),
    (32, 128, 768, 12),
    (16, 512, 768, 12),
    (4, 1024, 1024, 16),
    (64, 64, 256, 4),
)
# steps, batch, alphabet; labels of a fourth of the steps
SPEECH: tuple[Shape, ...] = (
    (128, 16, 32),
    (200, 64, 29),
    (512, 32, 64),
    (100, 128, 1024),
    (800, 8, 5000),
)
IMAGE_TYPES = (("float32", "NCHW"), ("float16", "NHWC"))
PLAIN_TYPES = (("float32", ""), ("float16", ""))
Pair = tuple[Callable[[], Any], Callable[[], Any]]


def pooling(handle: dnn.Handle, x: Any, torch_x: Any) -> Pair:
    """Maxima of 3 by 3, stride 2."""
    plan = dnn.pooling_forward.plan(handle, x, dnn.PoolingSpec(3, padding=1, stride=2))
    y = plan(x)
    return (lambda: plan(x, out=y)), (lambda: torch.nn.functional.max_pool2d(torch_x, 3, 2, 1))


def activation(handle: dnn.Handle, x: Any, torch_x: Any) -> Pair:
    """A relu, into memory of its own."""
    plan = dnn.activation_forward.plan(handle, x, "relu")
    y, out = plan(x), torch.empty_like(torch_x)
    return (lambda: plan(x, out=y)), (lambda: torch.clamp_min(torch_x, 0, out=out))


def softmax(handle: dnn.Handle, x: Any, torch_x: Any) -> Pair:
    """Over the channels."""
    plan = dnn.softmax_forward.plan(handle, x)
    y, out = plan(x), torch.empty_like(torch_x)
    return (lambda: plan(x, out=y)), (lambda: torch.softmax(torch_x, 1, out=out))


def normalisation(handle: dnn.Handle, x: Any, torch_x: Any) -> Pair:
    """Training, by the statistics of the batch."""
    shape = (1, x.shape[1], 1, 1)
    fill = {"scale": 1, "bias": 0, "mean": 0, "variance": 1}
    ours = [
        handle.array(np.full(shape, value, np.float32), layout=x.layout) for value in fill.values()
    ]
    theirs = [torch.full((x.shape[1],), float(value), device="cuda") for value in fill.values()]
    running = dict(zip(("running_mean", "running_var"), ours[2:], strict=True))
    plan = dnn.batch_normalization_training.plan(handle, x, *ours[:2], **running)
    y = (*plan(x, *ours[:2], out=(None, None, None, *ours[2:])), *ours[2:])
    return (lambda: plan(x, *ours[:2], out=y)), (
        lambda: torch.native_batch_norm(torch_x, *theirs, True, 0.1, 1e-5)
    )


def normalisation_backward(handle: dnn.Handle, x: Any, torch_x: Any) -> Pair:
    """Its gradients."""
    shape, channels = (1, x.shape[1], 1, 1), x.shape[1]
    scale, mean, inverse = (
        handle.array(np.full(shape, value, np.float32), layout=x.layout) for value in (1, 0, 1)
    )
    dy = torch.randn_like(torch_x)
    theirs = [torch.full((channels,), float(value), device="cuda") for value in (1, 0, 1)]
    operands = (x, handle.view(dy), scale, mean, inverse)
    plan = dnn.batch_normalization_backward.plan(handle, *operands)
    out, backward = plan(*operands), torch.ops.aten.native_batch_norm_backward
    weights = (theirs[0], None, None, *theirs[1:])
    return (lambda: plan(*operands, out=out)), (
        lambda: backward(dy, torch_x, *weights, True, 1e-5, [True] * 3)
    )


def dropout(handle: dnn.Handle, x: Any, torch_x: Any) -> Pair:
    """Of half of the numbers, with what the backward call needs."""
    plan = dnn.dropout_forward.plan(handle, x, 0.5, dropout_state=dnn.DropoutState(handle))
    y, reserve = plan(x)
    return (lambda: plan(x, out=y, reserve=reserve)), (
        lambda: torch.native_dropout(torch_x, 0.5, True)
    )


def dropout_backward(handle: dnn.Handle, x: Any, torch_x: Any) -> Pair:
    """Its gradient."""
    state = dnn.DropoutState(handle)
    _, reserve = dnn.dropout_forward(handle, x, 0.5, dropout_state=state)
    plan = dnn.dropout_backward.plan(handle, x, 0.5, reserve, dropout_state=state)
    mask = torch.native_dropout(torch_x, 0.5, True)[1]
    dx = plan(x, reserve=reserve)
    return (lambda: plan(x, out=dx, reserve=reserve)), (
        lambda: torch.ops.aten.native_dropout_backward(torch_x, mask, 2.0)
    )


class _Attention:
    """Multi-head self-attention with its four projections, ours and PyTorch's.

    Both have the same weights.
    """

    def __init__(self, handle: dnn.Handle, shape: Shape, dtype: str) -> None:
        batch, steps, size, heads = shape
        kind = getattr(torch, dtype)
        self.handle = handle
        self.module = torch.nn.MultiheadAttention(
            size, heads, batch_first=True, device="cuda", dtype=kind
        )
        self.torch_x = torch.randn((batch, steps, size), device="cuda", dtype=kind)
        self.x, self.dy = handle.view(self.torch_x), torch.randn_like(self.torch_x)
        self.spec = dnn.AttentionSpec(
            heads,
            size,
            q_proj_size=size // heads,
            o_proj_size=size,
            bias=True,
            dtype=dtype,
            math_type="fma" if dtype == "float32" else "tensor_op",
        )
        state = {name: values.float().cpu() for name, values in self.module.state_dict().items()}
        self.weights = dnn.AttentionWeights.from_torch(handle, self.spec, state)

    def near(self, ours: Any, theirs: Any) -> None:
        """Raise unless both have computed the same."""
        torch.testing.assert_close(
            torch.from_dlpack(ours).float(), theirs.float(), rtol=0.02, atol=0.02
        )


def attention(handle: dnn.Handle, shape: Shape, dtype: str) -> Pair:
    """Inference; PyTorch's fused kernel for whole layers."""
    self = _Attention(handle, shape, dtype)
    x, torch_x, weights = self.x, self.torch_x, self.weights
    module = self.module.eval().requires_grad_(False)
    plan = dnn.multi_head_attention_forward.plan(handle, self.spec, weights, x, x, x)
    y = plan(weights, x, x, x)
    self.near(y, module(torch_x, torch_x, torch_x, need_weights=False)[0])
    return (lambda: plan(weights, x, x, x, out=y)), (
        lambda: module(torch_x, torch_x, torch_x, need_weights=False)
    )


def attention_training(handle: dnn.Handle, shape: Shape, dtype: str) -> Pair:
    """Forward and both backward passes; PyTorch's flash attention between products."""
    self = _Attention(handle, shape, dtype)
    x, weights, dy = self.x, self.weights, handle.view(self.dy)
    y, reserve = dnn.multi_head_attention_forward(
        handle, self.spec, weights, x, x, x, training=True
    )
    gradients = dnn.multi_head_attention_backward_data(handle, reserve, dy)
    dweights = dnn.multi_head_attention_backward_weights(handle, reserve)

    def ours() -> None:
        dnn.multi_head_attention_forward(
            handle, self.spec, weights, x, x, x, training=True, out=y, reserve=reserve
        )
        dnn.multi_head_attention_backward_data(handle, reserve, dy, out=gradients)
        dnn.multi_head_attention_backward_weights(handle, reserve, out=dweights)

    leaf, parameters = self.torch_x.requires_grad_(), list(self.module.parameters())

    def theirs() -> Any:
        result = self.module(leaf, leaf, leaf, need_weights=False)[0]
        return result, *torch.autograd.grad(result, [leaf, *parameters], self.dy)

    torch_y, dx, *_ = theirs()
    self.near(y, torch_y)
    sum_of_gradients = sum(torch.from_dlpack(gradient).float() for gradient in gradients)
    torch.testing.assert_close(sum_of_gradients, dx.float(), rtol=0.02, atol=0.05)
    return ours, theirs


def ctc(handle: dnn.Handle, shape: Shape, dtype: str) -> Pair:
    """The losses and their gradients by the logits.

    PyTorch runs its own kernels, after a softmax.
    """
    steps, batch, alphabet = shape
    longest = steps // 4
    logits = torch.randn(shape, device="cuda")
    labels = torch.randint(1, alphabet, (batch, longest), device="cuda", dtype=torch.int32)
    ends, lengths = (
        torch.full((batch,), n, device="cuda", dtype=torch.int32) for n in (steps, longest)
    )
    numbers = [handle.view(array) for array in (labels.reshape(-1), lengths, ends)]
    x, spec = handle.view(logits), dnn.CTCLossSpec(max_label_length=longest)
    plan = dnn.ctc_loss.plan(handle, x, *numbers, spec)
    out = plan(x, *numbers)
    loss, whole, ones = torch.ops.aten._ctc_loss, labels.long(), torch.ones(batch, device="cuda")
    counts = [n.tolist() for n in (ends, lengths)]

    def theirs() -> Any:
        probabilities = torch.log_softmax(logits, 2)
        costs, alphas = loss(probabilities, whole, *counts)
        slopes = torch.ops.aten._ctc_loss_backward(
            ones, probabilities, whole, *counts, costs, alphas, 0
        )
        return costs, torch.ops.aten._log_softmax_backward_data(
            slopes, probabilities, 2, logits.dtype
        )

    costs, slopes = theirs()
    torch.testing.assert_close(torch.from_dlpack(out[0]), costs, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(torch.from_dlpack(out[1]), slopes, rtol=1e-2, atol=1e-3)
    return (lambda: plan(x, *numbers, out=out)), theirs


LAYERS: dict[str, tuple[Callable[..., Pair], tuple[Shape, ...], tuple[tuple[str, str], ...]]] = {
    "max pooling": (pooling, IMAGES, IMAGE_TYPES),
    "relu": (activation, IMAGES, IMAGE_TYPES),
    "softmax": (softmax, ROWS, IMAGE_TYPES),
    "batch normalisation": (normalisation, IMAGES, IMAGE_TYPES),
    "batch normalisation, backward": (normalisation_backward, IMAGES, IMAGE_TYPES),
    "dropout": (dropout, NUMBERS, PLAIN_TYPES),
    "dropout, backward": (dropout_backward, NUMBERS, PLAIN_TYPES),
    "attention": (attention, SEQUENCES, PLAIN_TYPES),
    "attention, training": (attention_training, SEQUENCES, PLAIN_TYPES),
    "CTC loss and gradients": (ctc, SPEECH, PLAIN_TYPES[:1]),
}
OWN_OPERANDS = (attention, attention_training, ctc)  # These make their operands from a shape.


class Eager:
    """`CALLS` calls, one after the other."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call

    def replay(self) -> None:
        """Make the calls."""
        for _ in range(CALLS):
            self.call()


def captured(call: Callable[[], Any], stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """Return a graph of `CALLS` calls."""
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    gc.collect()
    gc.disable()  # Memory that it frees would end the capture.
    try:
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(CALLS):
                call()
    finally:
        gc.enable()
    return graph


def measured(
    graphs: Sequence[torch.cuda.CUDAGraph | Eager], stream: torch.cuda.Stream
) -> list[float]:
    """Return the microseconds of one call in each."""
    times: list[list[float]] = [[] for _ in graphs]
    with torch.cuda.stream(stream):
        for _ in range(ROUNDS):
            for number in random.sample(range(len(graphs)), len(graphs)):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                graphs[number].replay()
                end.record()
                end.synchronize()
                times[number].append(begin.elapsed_time(end) * 1000 / CALLS)
    return [statistics.median(samples) for samples in times]


def row(
    name: str, make: Callable[..., Pair], shape: tuple[int, ...], dtype: str, layout: str
) -> list[Any]:
    """Return a row of the table."""
    stream = torch.cuda.Stream()
    with dnn.Handle("cuda", stream=stream) as handle, torch.cuda.stream(stream):
        if make in OWN_OPERANDS:
            calls = make(handle, shape, dtype)
        else:
            format_ = torch.channels_last if layout == "NHWC" else torch.contiguous_format
            torch_x = torch.randn(shape, device="cuda").to(
                getattr(torch, dtype), memory_format=format_
            )
            calls = make(handle, handle.view(torch_x), torch_x)
        graphs = [Eager(call) if make is ctc else captured(call, stream) for call in calls]
        ours, theirs = measured(graphs, stream)
        del graphs
    return [
        name,
        "x".join(map(str, shape)),
        f"{dtype} {layout}".rstrip(),
        ours,
        theirs,
        ours / theirs,
    ]


def main(arguments: list[str]) -> int:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[""], help="words in the layers' names")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    rows, join = [], " | " if options.markdown else "  "
    print(join.join(("layer", "shape", "type", "ours us", "PyTorch us", "ratio")))
    for name, (make, shapes, types) in LAYERS.items():
        is_selected = any(word in name for word in options.only)
        for dtype, layout in types if is_selected else ():
            ratios: list[float] = []
            for shape in shapes:
                try:
                    rows.append(row(name, make, shape, dtype, layout))
                except Exception as error:  # The other layers are measured all the same.
                    print(f"# {name} {shape} {dtype}: {type(error).__name__}: {error}", flush=True)
                    continue
                ratios.append(rows[-1][-1])
                print(
                    join.join((*rows[-1][:3], *(f"{value:.2f}" for value in rows[-1][3:]))),
                    flush=True,
                )
            mean = worst = math.nan
            if ratios:
                mean, worst = statistics.geometric_mean(ratios), max(ratios)
            print(
                f"# {name}, {dtype} {layout}: geometric mean {mean:.3f}, worst {worst:.3f}",
                flush=True,
            )
    if options.json:
        head = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "calls": CALLS}
        options.json.write_text(json.dumps(head | {"rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
