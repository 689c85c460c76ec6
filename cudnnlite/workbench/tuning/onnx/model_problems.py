"""`problems_from_onnx`: list the problems of an ONNX model, without a GPU and without weights."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from cudnnlite.arguments import refused_as, shown
from cudnnlite.dtypes import AnyDtype, parse_dtype
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError, MissingPackageError
from cudnnlite.specs.layout import LAYOUTS, plain_layout
from cudnnlite.workbench.tuning.onnx.input_sizes import set_input_sizes
from cudnnlite.workbench.tuning.onnx.nodes import DTYPE_NAMES, DTYPES, OnnxNode, Values, problem_of
from cudnnlite.workbench.tuning.onnx.protobuf import require
from cudnnlite.workbench.tuning.onnx.reading import (
    check_model,
    drop_weights,
    infer_shapes,
    read_model,
)
from cudnnlite.workbench.tuning.problem_list import ProblemList, SkippedNode


class OnnxOptionError(ArgumentError):
    """`batch`, `shapes`, `dtype` or `layout` is not allowed, or does not fit the model."""


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
        The model.  Weights in files beside it need not be there: their shapes are enough.
    batch : int, optional
        The size of every symbolic axis of an input that has the name of a batch ("batch",
        "batch_size", "N", ...).  If there is none, it is the size of first axes that are symbolic.
    shapes : mapping of str to sequence of int, optional
        The shapes of inputs by name, such as ``{"input": (1, 3, 224, 224)}``.  An axis that has a
        name gets the same size wherever the model uses it.  Sizes that the model fixes cannot be
        changed.
    dtype : DataType or str, optional
        "float32", "float16", "bfloat16" or "float64", instead of the model's.
    layout : str, optional
        "NHWC": convolutions with channels last in memory.  The default is "NCHW": channels first,
        as in ONNX.

    Returns
    -------
    ProblemList
        Empty for a model without such nodes.  Its `skipped` has every convolution or recurrent
        layer without a problem, with the reason: cuDNN computes something else (for a GRU with
        linear_before_reset=0, an LSTM with peepholes, ...), or the shape is unknown.  Its `notes`
        are the assumptions.

    Raises
    ------
    ArgumentError
        The model cannot be read, is not a valid ONNX model, or does not fit an argument; the
        message names the file and the cause.  Also if the shape of a node is unknown, and may
        depend on external data that cannot be read.
    MissingPackageError
        The package onnx is not installed: it comes with ``cudnnlite[onnx]``.

    Notes
    -----
    Conv becomes a problem of `convolution_forward`, ConvTranspose one of
    `convolution_backward_data`, both without their bias.  LSTM, GRU and RNN become one of
    `rnn_forward`: a single layer, for inference.  Shapes come from ``onnx.shape_inference``.
    Functions of the model are inlined.  Nodes inside If, Loop and Scan are listed once.

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
    with _refused_options():
        dtype = _parse_dtype(dtype)
        layouts = _parse_layout(layout)
    onnx = _import_onnx()
    proto, label, folder = read_model(onnx, model)
    check_model(onnx, proto, label)
    unreadable = drop_weights(onnx, proto.graph, folder)
    proto, why_not_inlined = _inline_functions(onnx, proto)
    with _refused_options():
        set_input_sizes(onnx, proto.graph, label, batch, shapes)
    # onnx's own errors have no common base.
    with refused_as(ArgumentError, f"{label} is not a valid ONNX model", Exception):
        proto = infer_shapes(onnx, proto)
    collector = _ProblemCollector(onnx, proto, dtype, layouts, why_not_inlined)
    collector.add_graph(proto.graph, Values(), "")
    if collector.without_shape and unreadable:
        names = ", ".join(collector.without_shape)
        reasons = "; ".join(f"{name!r}: {why}" for name, why in sorted(unreadable.items()))
        cause = f"may depend on external data that cannot be read: {reasons}"
        raise ArgumentError(f"{label}: the shapes of {names} {cause}")
    return collector.problems


def _import_onnx() -> Any:
    """Return the package onnx; MissingPackageError if it is not installed."""
    try:
        with refused_as(ArgumentError, "model cannot be read"):
            import onnx.inliner
    except ImportError as error:
        raise MissingPackageError(
            f"reading an ONNX model needs the package onnx ({error}): pip install 'cudnnlite[onnx]'"
        ) from error
    return onnx


def _inline_functions(onnx: Any, proto: Any) -> tuple[Any, str]:
    """Return a model with its functions inlined, and why the remaining ones cannot be inlined."""
    why = "it uses other operator sets than the model"
    if not proto.functions:
        return proto, why
    try:
        return onnx.inliner.inline_local_functions(proto), why
    except Exception as error:  # onnx's own errors have no common base
        return proto, str(error)


class _ProblemCollector:
    """Collects the problems of a model's graphs.

    `without_shape` has the names of the nodes that are skipped because a shape is unknown.
    """

    def __init__(
        self,
        onnx: Any,
        proto: Any,
        dtype: DataType | None,
        layouts: dict[int, str],
        why_not_inlined: str,
    ) -> None:
        self.problems = ProblemList()
        self.without_shape: list[str] = []
        self._onnx = onnx
        self._dtype = dtype
        self._layouts = layouts
        self._functions = {(function.domain, function.name) for function in proto.functions}
        self._why_not_inlined = why_not_inlined

    def add_graph(self, graph: Any, outer_values: Values, prefix: str) -> int:
        """Add the problems of a graph and of the graphs in its nodes; return their number."""
        values = outer_values.new_child(_values_of(graph))
        count = 0
        for proto in graph.node:
            values.update(_constant_of(proto))
            name = prefix + _name_of(proto)
            node = OnnxNode(self._onnx, proto, values, self._dtype, self._layouts)
            count += self._add_node(node, proto, name)
            count += self._add_bodies(node, proto, name, values)
        return count

    def _add_node(self, node: OnnxNode, proto: Any, name: str) -> int:
        """Add the problem of a node, or the reason why it is skipped; return 1 for a problem."""
        problem = None
        try:
            if (proto.domain, proto.op_type) in self._functions:
                why = self._why_not_inlined
                raise ArgumentError(f"a function of the model that cannot be inlined: {why}")
            problem = problem_of(node)
            if problem is not None:
                self.problems.add(problem, name)
        except ArgumentError as error:
            problem = None
            skipped = SkippedNode(name, node.operation, str(error), node.open_axes)
            self.problems.skipped.append(skipped)
            if node.lacks_shape:
                self.without_shape.append(name)
        self.problems.notes.extend(f"{name}: {note}" for note in node.notes)
        return 0 if problem is None else 1

    def _add_bodies(self, node: OnnxNode, proto: Any, name: str, values: Values) -> int:
        """Add the problems of the graphs in If, Loop and Scan nodes; return their number."""
        count = 0
        for attribute in proto.attribute:
            graphs = list(attribute.graphs)
            if attribute.HasField("g"):
                graphs.insert(0, attribute.g)
            for graph in graphs:
                count += self.add_graph(graph, values, f"{name}/{attribute.name}/")
        if count:
            subject = "each problem of its body is"
            if proto.op_type == "If":
                subject = "the problems of both branches are"
            self.problems.notes.append(f"{name} ({node.operation}): {subject} counted once")
        return count


def _values_of(graph: Any) -> dict[str, Any]:
    """Return the typed values and the initializers of a graph by name."""
    infos = (*graph.input, *graph.value_info, *graph.output)
    values = [info for info in infos if info.HasField("type")]
    return {value.name: value for value in (*values, *graph.initializer)}


def _constant_of(proto: Any) -> dict[str, Any]:
    """Return the tensor of a Constant node by the name of its output; empty for other nodes."""
    if proto.op_type != "Constant":
        return {}
    tensors = [attribute.t for attribute in proto.attribute if attribute.name == "value"]
    return dict(zip(proto.output, tensors, strict=False))


def _name_of(proto: Any) -> str:
    """Return the name of a node, or else of its first output, or of its operator."""
    outputs = filter(None, proto.output)
    return str(proto.name or next(outputs, proto.op_type))


@contextmanager
def _refused_options() -> Iterator[None]:
    """Raise an `OnnxOptionError` instead of each ArgumentError of the block."""
    try:
        yield
    except ArgumentError as error:
        raise OnnxOptionError(str(error)) from error


def _parse_dtype(dtype: AnyDtype | None) -> DataType | None:
    if dtype is None:
        return None
    data_type = parse_dtype(dtype)
    require(data_type in DTYPES.values(), f"dtype={dtype!r}; allowed: {DTYPE_NAMES}")
    return data_type


def _parse_layout(layout: Any) -> dict[int, str]:
    """Return the name of a layout for each rank."""
    name = "NCHW" if layout is None else layout
    for names in LAYOUTS.values():
        if isinstance(name, str) and plain_layout(name).upper() in names.values():
            return names
    raise ArgumentError(f"layout={shown(layout)}; allowed: 'NCHW', 'NHWC'")
