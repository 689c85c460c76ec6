"""`problems_from_onnx`: what a model asks of cuDNN, read from its ONNX file; no GPU, no weights, nothing is run."""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any

from cudnnlite.autotune.onnx.file import OnnxFile, import_onnx, subgraphs
from cudnnlite.autotune.onnx.node import FLOATS, NoProblemError, OnnxNode
from cudnnlite.autotune.onnx.problems import READERS, Reading, why_skipped
from cudnnlite.autotune.onnx.shapes import Scope, ancestors, infer_shapes
from cudnnlite.dtypes import dtype_name, parse_dtype
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.operations.problem_list import ProblemList, SkippedNode
from cudnnlite.specs.layout import CHANNELS_FIRST, CHANNELS_LAST


def problems_from_onnx(
    model: str | os.PathLike[str] | bytes | Any,
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dtype: Any = None,
    layout: str | None = None,
) -> ProblemList:
    """List the convolutions and recurrent layers of an ONNX model, as problems to tune.

    Parameters
    ----------
    model : path, bytes or onnx.ModelProto
        The model.  Of weights that lie in files beside it only the shapes are needed; these files may be absent.
    batch : int, optional
        The size of every symbolic axis of an input that is named like a batch ("batch", "batch_size", "N", ...), or else of
        its first axis, where that is symbolic.
    shapes : mapping of str to sequence of int, optional
        The shapes of inputs by name, such as ``{"input": (1, 3, 224, 224)}``.  An axis that has a name gets the same size
        wherever the model uses it.  Sizes that the model fixes cannot be changed.
    dtype : DataType or str, optional
        "float32", "float16", "bfloat16" or "float64", instead of the model's.
    layout : str, optional
        "NHWC": convolutions with channels last in memory; "NCHW", channels first as in ONNX, if not given.

    Returns
    -------
    ProblemList
        Empty for a model without such nodes.  Its `skipped` names every node that looks like one of them but is no
        problem, with the reason: cuDNN does it otherwise (asymmetric padding that matters, a GRU with
        linear_before_reset=0, ...), or its shape stays unknown.  Its `notes` say what was assumed.

    Raises
    ------
    ArgumentError
        The model cannot be read, is no ONNX model or not a valid one, or an argument does not go with it; the message names
        the file and the cause.  Also where a node's shape depends on external data that cannot be read.
    MissingPackageError
        The package onnx is not installed: it comes with ``cudnnlite[onnx]``.

    Notes
    -----
    Conv makes a `ConvolutionForwardProblem`, without its bias; LSTM, GRU and RNN make an `RNNForwardProblem` of one layer
    for inference.  Shapes come from ``onnx.shape_inference``.  Functions of the model are inlined.  Nodes inside If, Loop
    and Scan are listed too, once.

    Examples
    --------
    >>> import onnx
    >>> model = onnx.parser.parse_model('''
    ... <ir_version: 10, opset_import: ["" : 21]>
    ... layer (float[N, 3, 32, 32] x, float[8, 3, 3, 3] w) => (float[N, 8, 32, 32] y) {
    ...     y = Conv <pads = [1, 1, 1, 1]> (x, w)
    ... }''')
    >>> problems = dnn.problems_from_onnx(model, batch=4)  # or the path of a file
    >>> problems[0].problem.x.shape, problems.skipped
    ((4, 3, 32, 32), [])
    """
    reading = Reading(_parse_float(dtype), _parse_channels_last(layout))
    file = OnnxFile(model)
    walk = _Walk(file, reading)
    inferred = infer_shapes(file, batch, shapes)
    walk.graph(inferred.graph, Scope(ChainMap(), ChainMap()))
    for name, value in walk.unknown.items() if file.unread else ():
        if missing := ancestors(inferred, value) & set(file.unread):
            told = "; ".join(f"{tensor!r}: {file.unread[tensor]}" for tensor in sorted(missing))
            raise ArgumentError(
                f"{file.where}: the shapes of {name} depend on external data that cannot be read: {told}"
            )
    return walk.found


class _Walk:
    """Goes through a model's graphs and collects.

    Attributes
    ----------
    found : ProblemList
        What the nodes ask.
    unknown : dict of str to str
        The names of those that were skipped because the shape of a value is missing, and that value's.
    """

    def __init__(self, file: OnnxFile, reading: Reading) -> None:
        self._onnx, self._file, self._reading = import_onnx(), file, reading
        self.found = ProblemList()
        self.found.notes = reading.notes
        self.unknown: dict[str, str] = {}

    def graph(self, graph: Any, around: Scope, prefix: str = "") -> None:
        """Go through a graph and those inside it."""
        scope = around.inside(graph)
        for raw in graph.node:
            node = OnnxNode(self._onnx, raw, scope, prefix)
            self._node(node)
            before = self.found.total
            for attribute, body in subgraphs(raw):
                self.graph(body, scope, f"{node.name}/{attribute}/")
            if self.found.total > before:
                how = "the problems of both branches are" if raw.op_type == "If" else "each problem of its body is"
                self.found.notes.append(f"{node.name} ({node.operation}): {how} counted once")

    def _node(self, node: OnnxNode) -> None:
        try:
            if why := self._why_skipped(node):
                raise NoProblemError(why)
            if _is_read(node):
                self.found.add(READERS[node.operation](node, self._reading), node.name)
        except (NoProblemError, ArgumentError) as error:
            self.found.skipped.append(SkippedNode(node.name, node.operation, str(error)))
            if isinstance(error, NoProblemError) and error.unknown:
                self.unknown[node.name] = error.unknown

    def _why_skipped(self, node: OnnxNode) -> str:
        if self._asks_cudnn(node.key, set()):
            return f"a function of the model that cannot be inlined: {self._file.why_not_inlined}"
        return "" if node.key in self._file.functions else why_skipped(node)

    def _asks_cudnn(self, key: tuple[str, str], seen: set[tuple[str, str]]) -> bool:
        """Tell whether a function, or one that it calls, holds what a problem could be made of."""
        if key not in self._file.functions or key in seen:
            return False
        seen.add(key)
        scope = Scope(ChainMap(), ChainMap())
        nodes = [OnnxNode(self._onnx, raw, scope) for raw in self._file.functions[key].node]
        return any(_is_read(node) or why_skipped(node) or self._asks_cudnn(node.key, seen) for node in nodes)


def _is_read(node: OnnxNode) -> bool:
    return not node.domain and node.operation in READERS


def _parse_float(dtype: Any) -> DataType | None:
    if dtype is None:
        return None
    kind = parse_dtype(dtype)
    if kind not in FLOATS.values():
        allowed = ", ".join(map(dtype_name, FLOATS.values()))
        raise ArgumentError(f"dtype={dtype_name(kind)!r}; allowed: {allowed}")
    return kind


def _parse_channels_last(layout: Any) -> bool:
    name = "NCHW" if layout is None else str(layout).upper()
    if name not in (*CHANNELS_FIRST.values(), *CHANNELS_LAST.values()):
        raise ArgumentError(f"layout={layout!r}; allowed: 'NCHW', 'NHWC'")
    return name in CHANNELS_LAST.values()
