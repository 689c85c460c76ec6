"""Convolutions in NCHW whose layout is part of the choice, beside PyTorch and XLA.

    python tools/benchmarks/layouts.py [--math fma,default] [--operations forward,backward_data]
                                       [--rows TEXT] [--seconds 200] [--markdown]

Each row is one convolution of a network in NCHW and float32.  All times are wall times of eager
calls in microseconds, the median of shuffled rounds:

- `untuned`: a call that names no algorithm;
- `own`: the tuner's choice in the operands' layout;
- `tuned`: the tuner's choice among all layouts, the conversions counted;
- `once`: the same with a filter that `convert_filter` converted before the calls;
- `PyTorch` with `cudnn.benchmark = True`;
- `XLA`: `jax.lax.conv_general_dilated`, compiled, if JAX is installed.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from typing import Any, NamedTuple

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import numpy as np

import cudnnlite as dnn

ROUNDS = 7
SAMPLE_US = 4000.0


class Row(NamedTuple):
    """A convolution of a network."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    padding: int
    stride: int = 1
    groups: int = 1


ROWS = {
    # Depthwise.
    "EfficientNet 5x5": Row((32, 240, 28, 28), (240, 1, 5, 5), 2, 1, 240),
    "EfficientNet 5x5, stride 2": Row((32, 144, 56, 56), (144, 1, 5, 5), 2, 2, 144),
    "EfficientNet 5x5, late": Row((32, 672, 14, 14), (672, 1, 5, 5), 2, 1, 672),
    "ConvNeXt 7x7, stage 1": Row((16, 96, 56, 56), (96, 1, 7, 7), 3, 1, 96),
    "ConvNeXt 7x7, stage 2": Row((16, 192, 28, 28), (192, 1, 7, 7), 3, 1, 192),
    "ConvNeXt 7x7, stage 3": Row((16, 384, 14, 14), (384, 1, 7, 7), 3, 1, 384),
    "ConvNeXt 7x7, stage 4": Row((16, 768, 7, 7), (768, 1, 7, 7), 3, 1, 768),
    "MobileNet 3x3": Row((32, 512, 14, 14), (512, 1, 3, 3), 1, 1, 512),
    "MobileNet 3x3, early": Row((32, 32, 112, 112), (32, 1, 3, 3), 1, 1, 32),
    "MobileNet 3x3, stride 2": Row((32, 128, 56, 56), (128, 1, 3, 3), 1, 2, 128),
    "MobileNet 3x3, one image": Row((1, 96, 14, 14), (96, 1, 3, 3), 1, 1, 96),
    # First layers.
    "ResNet 7x7, first": Row((32, 3, 224, 224), (64, 3, 7, 7), 3, 2),
    "MobileNet 3x3, first": Row((32, 3, 224, 224), (32, 3, 3, 3), 1, 2),
    "VGG 3x3, first": Row((16, 3, 224, 224), (64, 3, 3, 3), 1),
    "ConvNeXt 4x4, first": Row((16, 3, 224, 224), (96, 3, 4, 4), 0, 4),
    "ViT 16x16 patches": Row((32, 3, 224, 224), (768, 3, 16, 16), 0, 16),
    # Late layers.
    "Stable Diffusion 3x3": Row((2, 1280, 8, 8), (1280, 1280, 3, 3), 1),
    "Stable Diffusion 3x3, 640": Row((2, 640, 32, 32), (640, 640, 3, 3), 1),
    "Stable Diffusion 1x1": Row((2, 1280, 16, 16), (1280, 1280, 1, 1), 0),
    "VAE 3x3": Row((1, 512, 128, 128), (512, 512, 3, 3), 1),
    "ResNet 3x3, late": Row((32, 512, 7, 7), (512, 512, 3, 3), 1),
    "ResNet 3x3, one image": Row((1, 512, 7, 7), (512, 512, 3, 3), 1),
    "ResNet 1x1, late": Row((32, 512, 7, 7), (2048, 512, 1, 1), 0),
    "ResNet 1x1, stride 2": Row((32, 1024, 14, 14), (2048, 1024, 1, 1), 0, 2),
    "U-Net 3x3": Row((2, 1024, 32, 32), (512, 1024, 3, 3), 1),
    "DeepLab 3x3": Row((4, 2048, 33, 33), (256, 2048, 3, 3), 1),
    "Inception 3x3": Row((16, 448, 8, 8), (384, 448, 3, 3), 1),
}


class Case:
    """A row's arrays, and its calls by the names of the contenders."""

    def __init__(self, handle: dnn.Handle, row: Row, operation: str, math: str) -> None:
        self.handle, self.row, self.operation, self.math = handle, row, operation, math
        self.conv = dnn.ConvolutionSpec(
            padding=row.padding, stride=row.stride, groups=row.groups, math_type=math
        )
        self.y_shape = self.conv.output_shape(row.x, row.w)
        rng = np.random.default_rng(0)
        scale = float(np.prod(row.w[1:])) ** -0.5
        self.x = rng.standard_normal(row.x, np.float32)
        self.w = scale * rng.standard_normal(row.w, np.float32)
        self.dy = rng.standard_normal(self.y_shape, np.float32)
        self.function = getattr(dnn, f"convolution_{operation}")
        hosts = {"forward": (self.x, self.w), "backward_data": (self.w, self.dy)}
        hosts["backward_filter"] = (self.x, self.dy)
        self.operands = [handle.array(host) for host in hosts[operation]]
        shapes = {"forward": self.y_shape, "backward_data": row.x, "backward_filter": row.w}
        self.out = handle.empty(shapes[operation])
        # The filter's place among the operands.
        self.filter_index = {"forward": 1, "backward_data": 0}.get(operation)

    def calls(self) -> tuple[dict[str, Any], str]:
        """Return the contenders' calls, and the choice among all layouts."""
        handle, operands, out = self.handle, self.operands, self.out
        cache = dnn.TuningCache(":memory:")
        plans = {"untuned": self._plan(operands)}
        for name, layouts in (("own", ()), ("tuned", None)):
            policy = dnn.TuningPolicy(layouts=layouts)
            with dnn.autotuned(handle, cache=cache, policy=policy):
                plans[name] = self._plan(operands)
        calls = {name: _call_of(plan, operands, out) for name, plan in plans.items()}
        if self.filter_index is not None:
            with dnn.autotuned(handle, cache=cache):
                converted = list(operands)
                converted[self.filter_index] = self.function.convert_filter(
                    handle, *operands, self.conv, **self._like()
                )
                plans["once"] = self._plan(converted)
                calls["once"] = _call_of(plans["once"], converted, out)
        choice = plans["tuned"].choice
        calls["PyTorch"] = self._torch_call()
        xla_call = self._xla_call()
        if xla_call is not None:
            calls["XLA"] = xla_call
        text = f"{choice.algorithm}".partition(" (")[0]
        return calls, f"{text} in {choice.layout}" if choice.layout else text

    def _like(self) -> dict[str, Any]:
        if self.operation == "backward_data":
            return {"x": self.row.x}
        return {}

    def _plan(self, operands: list[Any]) -> Any:
        return self.function.plan(self.handle, *operands, self.conv, out=self.out)

    def _torch_call(self) -> Any:
        import torch

        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = self.math != "fma"
        x, w, dy = (torch.from_numpy(host).cuda() for host in (self.x, self.w, self.dy))
        row = self.row
        steps = [row.stride] * 2, [row.padding] * 2, [1, 1]
        if self.operation == "forward":
            return lambda: torch.nn.functional.conv2d(x, w, None, *steps, row.groups)
        mask = [self.operation == "backward_data", self.operation == "backward_filter", False]
        gradient = torch.ops.aten.convolution_backward
        return lambda: gradient(dy, x, w, None, *steps, False, [0, 0], row.groups, mask)

    def _xla_call(self) -> Any:
        try:
            import jax
        except ImportError:
            return None
        if self.operation != "forward":
            return None
        row = self.row
        precision = "highest" if self.math == "fma" else "default"

        @jax.jit
        def convolve(x: Any, w: Any) -> Any:
            return jax.lax.conv_general_dilated(
                x,
                w,
                (row.stride,) * 2,
                [(row.padding,) * 2] * 2,
                feature_group_count=row.groups,
                precision=precision,
            )

        x, w = jax.device_put(self.x), jax.device_put(self.w)
        convolve(x, w).block_until_ready()
        return lambda: convolve(x, w)


def _call_of(plan: Any, operands: list[Any], out: Any) -> Any:
    return lambda: plan(*operands, out=out)


def wait(handle: dnn.Handle, result: Any) -> None:
    """Wait for the device, whoever enqueued the work."""
    if hasattr(result, "block_until_ready"):
        result.block_until_ready()
    handle.device.synchronize()


def sample_us(handle: dnn.Handle, call: Any, count: int) -> float:
    """Return the microseconds of one of `count` calls in a row."""
    wait(handle, None)
    start = time.perf_counter()
    for _ in range(count):
        result = call()
    wait(handle, result)
    return (time.perf_counter() - start) / count * 1e6


def measure(handle: dnn.Handle, calls: dict[str, Any]) -> dict[str, float]:
    """Return the medians of all calls."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    counts = {}
    for name, call in calls.items():
        sample_us(handle, call, 3)
        counts[name] = max(5, min(60, int(SAMPLE_US / sample_us(handle, call, 3))))
    for _ in range(ROUNDS):
        names = list(calls)
        random.shuffle(names)
        for name in names:
            samples[name].append(sample_us(handle, calls[name], counts[name]))
    return {name: statistics.median(values) for name, values in samples.items()}


def main() -> None:
    """Measure rows until the time is up, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--math", default="fma,default")
    parser.add_argument("--operations", default="forward,backward_data,backward_filter")
    parser.add_argument("--rows", default="", help="only rows whose name contains this text")
    parser.add_argument("--seconds", type=float, default=200.0)
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    columns = ("untuned", "own", "tuned", "once", "PyTorch", "XLA")
    print("| operation | math | row |", " | ".join(columns), "| tuned / PyTorch | / XLA | choice |")
    print("| --- | --- | --- |", " | ".join(["---:"] * len(columns)), "| ---: | ---: | --- |")
    with dnn.Handle() as handle:
        for operation in options.operations.split(","):
            for math in options.math.split(","):
                for name, row in ROWS.items():
                    if options.rows not in name:
                        continue
                    if time.monotonic() > deadline:
                        print("time is up")
                        return
                    calls, choice = Case(handle, row, operation, math).calls()
                    times = measure(handle, calls)
                    cells = [f"{times[c]:.1f}" if c in times else "-" for c in columns]
                    ratios = [
                        f"{times['tuned'] / times[peer]:.2f}" if peer in times else "-"
                        for peer in ("PyTorch", "XLA")
                    ]
                    cells = [operation, math, name, *cells, *ratios, choice]
                    print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
