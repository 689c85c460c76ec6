"""The layers of well-known networks; the database has choices for them."""

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
# Images with at most this many channels are the network's input, whose gradient nobody needs.
_MOST_INPUT_CHANNELS = 4


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


class _Convolution(NamedTuple):
    """The row of a convolution in the file, under its key "columns" too."""

    networks: list[str]
    batches: list[int]  # the batch of training, and perhaps a smaller one
    image_shape: list[int]
    filter_shape: list[int]
    padding: list[int]
    stride: list[int]
    dilation: list[int]
    groups: int


@lru_cache(maxsize=1)
def _rows() -> dict[str, Any]:
    rows: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return rows


def _convolution_rows() -> list[_Convolution]:
    return [_Convolution(*row) for row in _rows()["convolutions"]]


def network_names() -> tuple[str, ...]:
    """Return the names of the networks, in the order of the file."""
    names = [name for row in _convolution_rows() for name in row.networks]
    names += [name for name, *_ in _rows()["attention"]]
    return (*dict.fromkeys(names), _LSTM)


def network_problems(names: Collection[str] | None = None) -> Iterator[Problem]:
    """Yield the problems of networks, each once, the important ones first.

    Forward convolutions with the batch of training, in every arithmetic, come first.  Then come
    attention, LSTMs, the gradients of convolutions, and forward convolutions with smaller batches.
    The default is all networks.  ArgumentError for a name that is not in the file.
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
    rows = [row for row in _convolution_rows() if not set(row.networks).isdisjoint(names)]
    yield from _forward(rows, batch_index=0)
    yield from _attention(names)
    if _LSTM in names:
        yield from _lstms()
    for row in rows:
        for arithmetic in ARITHMETICS:
            training_batch = row.batches[0]
            yield _convolution("filter", row, training_batch, arithmetic)
            channels = row.image_shape[0]
            if channels > _MOST_INPUT_CHANNELS:
                yield _convolution("data", row, training_batch, arithmetic)
    yield from _forward(rows, batch_index=1)


def _forward(rows: list[_Convolution], batch_index: int) -> Iterator[Problem]:
    for row in rows:
        if batch_index < len(row.batches):
            for arithmetic in ARITHMETICS:
                yield _convolution("forward", row, row.batches[batch_index], arithmetic)


def _convolution(direction: str, row: _Convolution, batch: int, arithmetic: Arithmetic) -> Problem:
    dtype, layout_name, math_type = arithmetic
    layout = layout_of_rank(layout_name, len(row.filter_shape))
    x = TensorSpec((batch, *row.image_shape), dtype, layout)
    w = FilterSpec(row.filter_shape, dtype, layout)
    conv = ConvolutionSpec(
        padding=row.padding,
        stride=row.stride,
        dilation=row.dilation,
        groups=row.groups,
        math_type=math_type,
    )
    forward = convolution_forward.problem(x, w, conv)
    if direction == "filter":
        return convolution_backward_filter.problem(x, forward.y, conv, w=w)
    if direction == "data":
        return convolution_backward_data.problem(w, forward.y, conv, x=x)
    return forward


def _attention(names: Collection[str]) -> Iterator[Problem]:
    """Yield forward attention in inference; it is causal in language models."""
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
