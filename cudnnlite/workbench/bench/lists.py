"""Lists of problems that come along: networks and benchmarks that people know."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cudnnlite import ConvolutionSpec, FilterSpec, RNNSpec, TensorSpec, convolution_forward
from cudnnlite.dtypes import AnyDtype
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.problem import GraphProblem
from cudnnlite.operations.attention.attention_graphs import forward_graph
from cudnnlite.operations.graph.activations import parse_activation
from cudnnlite.operations.layers.matmul import product_graph
from cudnnlite.problems.rnn import FORWARD as RNN_FORWARD
from cudnnlite.specs import RNNDataSpec
from cudnnlite.types import Problem
from cudnnlite.workbench.tuning.problem_list import ProblemList

_FOLDER = Path(__file__).parent / "lists"
_DEEPBENCH_CELLS: dict[str, Any] = {"vanilla": "relu", "lstm": "lstm", "gru": "gru"}
# A block as those of GPT-2 medium and BERT-large: the width, the heads and the steps.
_WIDTH, _HEADS, _STEPS = 1024, 16, 512
# Attention as in the benchmark of FlashAttention: the positions of all sequences, and the width of
# all heads; then the steps of a sequence, and the sizes of a head.
_ATTENTION_POSITIONS, _ATTENTION_WIDTH = 16384, 2048
_ATTENTION_STEPS, _ATTENTION_SIZES = (512, 2048, 8192), (64, 128)
# Steps and hidden sizes of LSTMs of language and speech models.
_LSTM_STEPS, _LSTM_SIZES = 100, (256, 512, 1024, 2048)


def _rows(name: str) -> list[list[Any]]:
    plain = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    rows: list[list[Any]] = plain["rows"]
    return rows


def _convolution(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    conv: ConvolutionSpec,
    dtype: AnyDtype,
    layout: str | None,
) -> Problem:
    x = TensorSpec(x_shape, dtype, layout)
    w = FilterSpec(w_shape, dtype, layout)
    return convolution_forward.problem(x, w, conv)


def _resnet50(batch: int | None, dtype: AnyDtype, layout: str | None) -> ProblemList:
    problems = ProblemList()
    for number, row in enumerate(_rows("resnet50"), start=1):
        c, h, w, k, r, s, padding, stride, count = row
        conv = ConvolutionSpec(padding=padding, stride=stride)
        problem = _convolution((batch or 32, c, h, w), (k, c, r, s), conv, dtype, layout)
        problems.add(problem, f"resnet50 {number}", count)
    return problems


def _deepbench_convolutions(batch: int | None, dtype: AnyDtype, layout: str | None) -> ProblemList:
    problems = ProblemList()
    for number, row in enumerate(_rows("deepbench_convolutions"), start=1):
        n, c, h, w, k, r, s, pad_h, pad_w, stride_h, stride_w = row
        conv = ConvolutionSpec(padding=(pad_h, pad_w), stride=(stride_h, stride_w))
        problem = _convolution((n, c, h, w), (k, c, r, s), conv, dtype, layout)
        problems.add(problem, f"deepbench convolution {number}")
    return problems


def _deepbench_rnn(batch: int | None, dtype: AnyDtype, layout: str | None) -> ProblemList:
    problems = ProblemList()
    for number, (cell, steps, size, hidden) in enumerate(_rows("deepbench_rnn"), start=1):
        spec = RNNSpec(_DEEPBENCH_CELLS[cell], hidden, hidden, dtype=dtype)
        data = RNNDataSpec((steps, size, hidden), dtype=dtype)
        problems.add(
            Problem(RNN_FORWARD, spec=spec, data=data, training=False), f"deepbench rnn {number}"
        )
    return problems


def _lstm(batch: int | None, dtype: AnyDtype, layout: str | None) -> ProblemList:
    problems = ProblemList()
    for hidden in _LSTM_SIZES:
        for layers in (1, 2):
            spec = RNNSpec("lstm", hidden, hidden, num_layers=layers, dtype=dtype)
            data = RNNDataSpec((_LSTM_STEPS, batch or 64, hidden), dtype=dtype)
            problems.add(
                Problem(RNN_FORWARD, spec=spec, data=data, training=False),
                f"lstm {hidden} x {layers}",
            )
    return problems


def _transformer(batch: int | None, dtype: AnyDtype, layout: str | None) -> ProblemList:
    count = batch or 8
    rows = count * _STEPS
    problems = ProblemList()
    products = (
        ("queries, keys and values", 3 * _WIDTH, _WIDTH, None),
        ("output", _WIDTH, _WIDTH, None),
        ("up", 4 * _WIDTH, _WIDTH, "gelu"),
        ("down", _WIDTH, 4 * _WIDTH, None),
    )
    for name, n, k, activation in products:
        problem = matmul_problem(1, rows, n, k, dtype, bias=True, activation=activation)
        problems.add(problem, f"transformer: {name}")
    size = _WIDTH // _HEADS
    for causal in (False, True):
        problem = attention_problem(count, _HEADS, _STEPS, size, dtype, causal=causal)
        kind = "causal attention" if causal else "attention"
        problems.add(problem, f"transformer: {kind}")
    return problems


def _attention(batch: int | None, dtype: AnyDtype, layout: str | None) -> ProblemList:
    problems = ProblemList()
    for causal in (False, True):
        kind = "causal attention" if causal else "attention"
        for size in _ATTENTION_SIZES:
            for steps in _ATTENTION_STEPS:
                count, heads = _ATTENTION_POSITIONS // steps, _ATTENTION_WIDTH // size
                problem = attention_problem(count, heads, steps, size, dtype, causal=causal)
                problems.add(problem, f"{kind} {steps}x{size}")
    return problems


def matmul_problem(
    batch: int,
    m: int,
    n: int,
    k: int,
    dtype: AnyDtype,
    *,
    bias: bool = False,
    activation: str | None = None,
) -> GraphProblem:
    """Return the problem of (batch, m, k) by (batch, k, n), as `dnn.matmul` computes it.

    ArgumentError for sizes or an activation that are not allowed.
    """
    if activation is not None:
        activation = parse_activation(activation, "activation", "None")
    specs = {"a": TensorSpec((batch, m, k), dtype), "b": TensorSpec((batch, k, n), dtype)}
    if bias:
        specs["bias"] = TensorSpec((1, 1, n), dtype)
    return GraphProblem(product_graph(specs, activation, None, has_alpha=False))


def attention_problem(
    batch: int,
    heads: int,
    steps: int,
    size: int,
    dtype: AnyDtype,
    *,
    kv_heads: int | None = None,
    kv_steps: int | None = None,
    causal: bool = False,
) -> GraphProblem:
    """Return the problem of `dnn.scaled_dot_product_attention_forward`, without its stats."""
    keys = TensorSpec((batch, kv_heads or heads, kv_steps or steps, size), dtype)
    specs = {"q": TensorSpec((batch, heads, steps, size), dtype), "k": keys, "v": keys}
    return GraphProblem(forward_graph(specs, None, causal, None, 0.0, False))


_LISTS: Mapping[str, Callable[[int | None, AnyDtype, str | None], ProblemList]] = MappingProxyType(
    {
        "resnet50": _resnet50,
        "transformer": _transformer,
        "attention": _attention,
        "lstm": _lstm,
        "deepbench-convolutions": _deepbench_convolutions,
        "deepbench-rnn": _deepbench_rnn,
    }
)
LISTS = tuple(_LISTS)
WITH_A_BATCH = ("resnet50", "transformer", "lstm")


def problems_of_list(
    name: str, batch: int | None = None, dtype: AnyDtype = "float32", layout: str | None = None
) -> ProblemList:
    """Return the problems of a list.

    Parameters
    ----------
    name : str
        One of `LISTS`.
    batch : int, optional
        The number of images or sequences; if not given, 32 for ResNet-50, 8 for the Transformer
        block and 64 for the LSTMs.  The rows of other lists have their own.
    dtype : dtype
        The data type of all data.
    layout : str, optional
        "NCHW" or "NHWC", for images.

    Raises
    ------
    ArgumentError
        No such list, or a batch for one that has its own.
    """
    if name not in _LISTS:
        raise ArgumentError(f"list={name!r}; allowed: {', '.join(LISTS)}")
    if batch is not None and name not in WITH_A_BATCH:
        raise ArgumentError(f"batch={batch}: the rows of {name} have batches of their own")
    return _LISTS[name](batch, dtype, layout)
