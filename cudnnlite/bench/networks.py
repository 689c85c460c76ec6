"""The layers of well-known networks for which the database has choices."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from cudnnlite.bench.lists import attention_problem
from cudnnlite.errors import ArgumentError
from cudnnlite.operations.convolution.backward import (
    convolution_backward_data,
    convolution_backward_filter,
)
from cudnnlite.operations.convolution.forward import convolution_forward
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.rnn import forward_problem
from cudnnlite.specs import ConvolutionSpec, FilterSpec, RNNDataSpec, RNNSpec, TensorSpec
from cudnnlite.specs.layout import layout_of_rank

_FILE = Path(__file__).parent / "lists" / "networks.json"
_LSTM = "lstm"
# Images with so few channels are the network's input, whose gradient nobody needs.
_FEW_CHANNELS = 4


class Arithmetic(NamedTuple):
    """A data type with the layout of images and the math type."""

    dtype: str
    layout: str
    math_type: str


# The important ones first.
ARITHMETICS = (
    Arithmetic("float32", "NCHW", "DEFAULT"),
    Arithmetic("float16", "NHWC", "TENSOR_OP"),
    Arithmetic("bfloat16", "NHWC", "TENSOR_OP"),
    Arithmetic("float32", "NHWC", "DEFAULT"),
    Arithmetic("float32", "NCHW", "FMA"),
)
_HALVES = ("bfloat16", "float16")


@lru_cache(maxsize=1)
def _rows() -> dict[str, Any]:
    rows: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return rows


def network_names() -> tuple[str, ...]:
    """Return the names of the networks, in the order of the file."""
    rows = _rows()
    names: dict[str, None] = {}
    for row in rows["convolutions"]:
        names.update(dict.fromkeys(row[0]))
    names.update(dict.fromkeys(row[0] for row in rows["attention"]))
    return (*names, _LSTM)


def network_problems(names: Collection[str] | None = None) -> Iterator[Problem]:
    """Yield the problems of networks, each once, the important ones first.

    First come forward convolutions at the batch of training in every arithmetic, attention and
    LSTMs, then gradients, and then smaller batches.  The default is all networks.  ArgumentError
    for a name that is not in the file.
    """
    requested = set(network_names() if names is None else names)
    unknown = requested.difference(network_names())
    if unknown:
        raise ArgumentError(
            f"list={', '.join(sorted(unknown))}; allowed: {', '.join(network_names())}"
        )
    earlier_problems: set[Problem] = set()
    for problem in _all_problems(requested):
        if problem not in earlier_problems:
            earlier_problems.add(problem)
            yield problem


def _all_problems(names: Collection[str]) -> Iterator[Problem]:
    rows = [row for row in _rows()["convolutions"] if not set(row[0]).isdisjoint(names)]
    yield from _forward(rows, batch_index=0)
    yield from _attention(names)
    if _LSTM in names:
        yield from _lstms()
    for row in rows:
        for arithmetic in ARITHMETICS:
            yield _convolution("filter", row, row[1][0], arithmetic)
            if row[2][0] > _FEW_CHANNELS:
                yield _convolution("data", row, row[1][0], arithmetic)
    yield from _forward(rows, batch_index=1)


def _forward(rows: list[Any], batch_index: int) -> Iterator[Problem]:
    for row in rows:
        batches = row[1]
        if batch_index < len(batches):
            for arithmetic in ARITHMETICS:
                yield _convolution("forward", row, batches[batch_index], arithmetic)


def _convolution(direction: str, row: list[Any], batch: int, arithmetic: Arithmetic) -> Problem:
    _, _, shape, weights, padding, stride, dilation, groups = row
    dtype, layout_name, math_type = arithmetic
    layout = layout_of_rank(layout_name, len(weights))
    x = TensorSpec((batch, *shape), dtype, layout)
    w = FilterSpec(weights, dtype, layout)
    conv = ConvolutionSpec(
        padding=padding, stride=stride, dilation=dilation, groups=groups, math_type=math_type
    )
    forward = convolution_forward.problem(x, w, conv)
    if direction == "filter":
        return convolution_backward_filter.problem(x, forward.y, conv, w=w)
    if direction == "data":
        return convolution_backward_data.problem(w, forward.y, conv, x=x)
    return forward


def _attention(names: Collection[str]) -> Iterator[Problem]:
    """Yield attention without its stats, causal in language models."""
    for name, batch, heads, kv_heads, size, steps in _rows()["attention"]:
        if name in names:
            for dtype in _HALVES:
                is_causal = name not in ("vit", "whisper")
                yield attention_problem(
                    batch, heads, steps, size, dtype, kv_heads=kv_heads, causal=is_causal
                )


def _lstms() -> Iterator[Problem]:
    for input_size, hidden, layers, is_bidirectional, steps, batch in _rows()["lstms"]:
        for dtype in ("float32", "float16"):
            spec = RNNSpec(
                "lstm",
                input_size,
                hidden,
                num_layers=layers,
                bidirectional=is_bidirectional,
                dtype=dtype,
            )
            data = RNNDataSpec((steps, batch, input_size), dtype=dtype)
            for training in (True, False):
                yield forward_problem(spec, data, training)
