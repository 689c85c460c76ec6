"""`problems_from_onnx`: what a model asks of cuDNN, read from its ONNX file; no GPU, no weights, nothing is run."""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any

from cudnnlite.arguments import shown
from cudnnlite.autotune.onnx.file import OnnxFile, require, subgraphs
from cudnnlite.autotune.onnx.nodes import FLOAT_NAMES, FLOATS, Known, OnnxNode, UnknownShapeError, problem_of
from cudnnlite.dtypes import AnyDtype, parse_dtype
from cudnnlite.errors import ArgumentError
from cudnnlite.operations.problem_list import ProblemList, SkippedNode
from cudnnlite.specs.layout import LAYOUTS


def problems_from_onnx(
    model: str | os.PathLike[str] | bytes | Any,
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dtype: AnyDtype | None = None,
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
        the file and the cause.  Also where a node's shape stays unknown and may depend on external data that cannot be read.
    MissingPackageError
        The package onnx is not installed: it comes with ``cudnnlite[onnx]``.

    Notes
    -----
    Conv makes a `ConvolutionForwardProblem`, ConvTranspose a `ConvolutionBackwardDataProblem`, both without their bias; LSTM,
    GRU and RNN make an `RNNForwardProblem` of one layer for inference.  Shapes come from ``onnx.shape_inference``.  Functions
    of the model are inlined.  Nodes inside If, Loop and Scan are listed too, once.

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
    kind = None if dtype is None else parse_dtype(dtype)
    require(kind is None or kind in FLOATS.values(), f"dtype={dtype!r}; allowed: {FLOAT_NAMES}")
    wanted = "NCHW" if layout is None else layout.upper() if isinstance(layout, str) else ""
    layouts = next((names for names in LAYOUTS.values() if wanted in names.values()), {})
    require(layouts, f"layout={shown(layout)}; allowed: 'NCHW', 'NHWC'")
    found, file = ProblemList(), OnnxFile(model, batch, shapes)
    functions = {(function.domain, function.name) for function in file.proto.functions}
    unknown: list[str] = []  # what is skipped for want of a shape

    def walk(graph: Any, around: Known, prefix: str) -> None:
        known = around.new_child()  # of the graph itself, before what is around it
        infos = (*graph.input, *graph.value_info, *graph.output)
        known.update((info.name, info) for info in infos if info.HasField("type"))
        known.update((tensor.name, tensor) for tensor in graph.initializer)
        for raw in graph.node:
            values = [each.t for each in raw.attribute if raw.op_type == "Constant" and each.name == "value"]
            known.update(zip(raw.output, values, strict=False))
        for raw in graph.node:
            node = OnnxNode(raw, known, prefix, kind, layouts)
            try:
                require((raw.domain, raw.op_type) not in functions, file.why_left)
                if (problem := problem_of(node)) is not None:
                    found.add(problem, node.name)
            except ArgumentError as error:
                found.skipped.append(SkippedNode(node.name, node.operation, str(error)))
                unknown.extend([node.name] if isinstance(error, UnknownShapeError) else [])
            found.notes.extend(f"{node.name}: {note}" for note in node.notes)
            before = found.total
            for attribute, body in subgraphs(raw):
                walk(body, known, f"{node.name}/{attribute}/")
            if found.total > before:
                how = "the problems of both branches are" if raw.op_type == "If" else "each problem of its body is"
                found.notes.append(f"{node.name} ({node.operation}): {how} counted once")

    walk(file.proto.graph, ChainMap(), "")
    told = "; ".join(f"{tensor!r}: {why}" for tensor, why in sorted(file.unread.items()))
    may = f"may depend on external data that cannot be read: {told}"
    require(not (unknown and told), f"{file.where}: the shapes of {', '.join(unknown)} {may}")
    return found
