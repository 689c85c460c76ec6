"""`problems_from_onnx`: what a model asks of cuDNN, read from its ONNX file; no GPU, no weights, nothing is run."""

from __future__ import annotations

import os
import re
from collections import ChainMap, Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from math import prod
from pathlib import Path
from typing import Any

from cudnnlite.arguments import integer, path_of, refused_as, sequence, shown
from cudnnlite.autotune.onnx.nodes import (
    FLOAT_NAMES,
    FLOATS,
    Known,
    OnnxNode,
    problem_of,
    require,
    shape_of,
    show,
)
from cudnnlite.dtypes import AnyDtype, parse_dtype
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError, MissingPackageError
from cudnnlite.problems.problem_list import ProblemList, SkippedNode
from cudnnlite.specs.layout import LAYOUTS

# Shape inference reads the values of shapes, axes and scales; of what is larger it needs no more
# than the shape.
_SMALL = 65536
# Functions that call others twice, and so on, double with each: 1.4 KB were 8 million nodes, and
# took 137 s.
_MOST_NODES = 1 << 16
_DEEPEST = 100  # of functions in each other; onnx refuses more, and what calls itself has no end
_BATCH = re.compile(r"batch|^(n|b|bs)$", re.IGNORECASE)


class OnnxOptionError(ArgumentError):
    """`batch`, `shapes`, `dtype` or `layout` is not allowed, or does not go with the model."""


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
        The model.  Of weights that lie in files beside it only the shapes are needed; these files
        may be absent.
    batch : int, optional
        The size of every symbolic axis of an input that is named like a batch ("batch",
        "batch_size", "N", ...), or else of its first axis, where that is symbolic.
    shapes : mapping of str to sequence of int, optional
        The shapes of inputs by name, such as ``{"input": (1, 3, 224, 224)}``.  An axis that has a
        name gets the same size wherever the model uses it.  Sizes that the model fixes cannot be
        changed.
    dtype : DataType or str, optional
        "float32", "float16", "bfloat16" or "float64", instead of the model's.
    layout : str, optional
        "NHWC": convolutions with channels last in memory; "NCHW", channels first as in ONNX, if not
        given.

    Returns
    -------
    ProblemList
        Empty for a model without such nodes.  Its `skipped` names every node that looks like one of
        them but is no problem, with the reason: cuDNN does it otherwise (a GRU with
        linear_before_reset=0, an LSTM with peepholes, ...), or its shape stays unknown.  Its
        `notes` say what was assumed.

    Raises
    ------
    ArgumentError
        The model cannot be read, is no ONNX model or not a valid one, or an argument does not go
        with it; the message names the file and the cause.  Also where a node's shape stays unknown
        and may depend on external data that cannot be read.
    MissingPackageError
        The package onnx is not installed: it comes with ``cudnnlite[onnx]``.

    Notes
    -----
    Conv makes a problem of `convolution_forward`, ConvTranspose one of `convolution_backward_data`,
    both without their bias; LSTM, GRU and RNN make one of `rnn_forward`, of one layer, for inference.
    Shapes come from ``onnx.shape_inference``.  Functions of the model are inlined.  Nodes inside
    If, Loop and Scan are listed too, once.

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
        kind = _parse_kind(dtype)
        layouts = _parse_layout(layout)
    try:
        with refused_as(ArgumentError, "model cannot be read"):
            import onnx.inliner
    except ImportError as error:
        why = (
            f"reading an ONNX model needs the package onnx ({error}): pip install 'cudnnlite[onnx]'"
        )
        raise MissingPackageError(why) from error
    where, folder, proto = _read(onnx, model)
    _check(onnx, proto, where)
    unread = _drop_weights(onnx, proto.graph, folder)
    why_not_inlined = "it uses other operator sets than the model"
    if proto.functions:
        try:
            proto = onnx.inliner.inline_local_functions(proto)
        except Exception as error:  # onnx's own kinds have no common base
            why_not_inlined = str(error)
    with _refused_options():
        _give_sizes(onnx, proto.graph, where, batch, shapes)
    with refused_as(ArgumentError, f"{where} is not a valid ONNX model", Exception):
        proto = _with_shapes(onnx, proto)  # onnx's own kinds have no common base
    functions = {(function.domain, function.name) for function in proto.functions}
    walk = _Walk(onnx, kind, layouts, functions, why_not_inlined)
    walk.add_graph(proto.graph, ChainMap(), "")
    reasons = "; ".join(f"{tensor!r}: {reason}" for tensor, reason in sorted(unread.items()))
    require(
        not (walk.nodes_without_shape and reasons),
        f"{where}: the shapes of {', '.join(walk.nodes_without_shape)} may depend on external "
        f"data that cannot be read: {reasons}",
    )
    return walk.problems


class _Walk:
    """A walk over a model's graph and those inside it, which lists what they ask for."""

    def __init__(
        self,
        onnx: Any,
        kind: DataType | None,
        layouts: Any,
        functions: set[tuple[str, str]],
        why_not_inlined: str,
    ) -> None:
        self._onnx = onnx
        self._kind = kind
        self._layouts = layouts
        self._functions = functions
        self._why_not_inlined = why_not_inlined
        self.problems = ProblemList()
        self.nodes_without_shape: list[str] = []  # which are skipped for that

    def add_graph(self, graph: Any, outer: Known, prefix: str) -> int:
        """Add what a graph and those in it ask for; return how many problems that are."""
        infos = [
            info
            for info in (*graph.input, *graph.value_info, *graph.output)
            if info.HasField("type")
        ]
        # Names of the graph itself hide those of the graph around it.
        tensors = outer.new_child({info.name: info for info in (*infos, *graph.initializer)})
        return sum(self._add_node(node, tensors, prefix) for node in graph.node)

    def _add_node(self, proto: Any, tensors: Known, prefix: str) -> int:
        """Add what a node and the graphs in it ask for; return how many problems that are."""
        if proto.op_type == "Constant":
            values = [attribute.t for attribute in proto.attribute if attribute.name == "value"]
            tensors.update(zip(proto.output, values, strict=False))
        name = prefix + (proto.name or next(filter(None, proto.output), proto.op_type))
        node = OnnxNode(self._onnx, proto, tensors, self._kind, self._layouts)
        count = self._add_problem(node, proto, name)
        self.problems.notes.extend(f"{name}: {note}" for note in node.notes)
        inner_count = 0
        for branch, body in _bodies(proto):
            inner_count += self.add_graph(body, tensors, f"{name}/{branch}/")
        if inner_count:
            counted = "each problem of its body is"
            if proto.op_type == "If":
                counted = "the problems of both branches are"
            self.problems.notes.append(f"{name} ({node.operation}): {counted} counted once")
        return count + inner_count

    def _add_problem(self, node: OnnxNode, proto: Any, name: str) -> int:
        """Add a node's problem, or note why there is none; return how many were added."""
        try:
            require(
                (proto.domain, proto.op_type) not in self._functions,
                f"a function of the model that cannot be inlined: {self._why_not_inlined}",
            )
            problem = problem_of(node)
        except ArgumentError as error:
            skipped = SkippedNode(name, node.operation, str(error), node.open_axes)
            self.problems.skipped.append(skipped)
            if node.lacks_shape:
                self.nodes_without_shape.append(name)
            return 0
        if problem is None:
            return 0
        self.problems.add(problem, name)
        return 1


def _bodies(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield the graphs inside a node, with the names of their attributes."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for body in attribute.graphs:
            yield attribute.name, body


@contextmanager
def _refused_options() -> Iterator[None]:
    """Let what is refused in the block be an `OnnxOptionError`."""
    try:
        yield
    except ArgumentError as error:
        raise OnnxOptionError(str(error)) from error


def _parse_kind(dtype: AnyDtype | None) -> DataType | None:
    if dtype is None:
        return None
    kind = parse_dtype(dtype)
    require(kind in FLOATS.values(), f"dtype={dtype!r}; allowed: {FLOAT_NAMES}")
    return kind


def _parse_layout(layout: Any) -> dict[int, str]:
    """Return the names of a layout by rank."""
    name = "NCHW" if layout is None else layout
    for names in LAYOUTS.values():
        if isinstance(name, str) and name.upper() in names.values():
            return names
    raise ArgumentError(f"layout={shown(layout)}; allowed: 'NCHW', 'NHWC'")


def _read(onnx: Any, model: Any) -> tuple[str, Path | None, Any]:
    """Return what messages call a model, its folder, and all of it, to be changed."""
    if isinstance(model, onnx.ModelProto):
        return f"model {model.graph.name!r}", None, deepcopy(model)
    is_data = isinstance(model, (bytes, bytearray, memoryview))
    is_known = is_data or isinstance(model, (str, os.PathLike))
    require(
        is_known,
        f"model of type {type(model).__name__}; allowed: a path, bytes, an onnx.ModelProto",
    )
    path = Path() if is_data else path_of(model, "model")
    where = f"model of {len(model)} bytes" if is_data else f"model={str(path)!r}"
    with refused_as(ArgumentError, f"{where} cannot be read"):
        data = bytes(model) if is_data else path.read_bytes()
    # what is raised is protobuf's, or that of the format that the file's ending names
    with refused_as(ArgumentError, f"{where} is not an ONNX model, or not all of one", Exception):
        ending = onnx.serialization.registry.get_format_from_file_extension(path.suffix)
        return where, None if is_data else path.parent, onnx.load_model_from_string(data, ending)


def _check(onnx: Any, model: Any, where: str) -> None:
    """Refuse what is no whole model, and what is too large with its functions inlined, before that is tried."""
    require(model.HasField("graph"), f"{where} is not an ONNX model: it has no graph")
    require(
        model.opset_import,
        f"{where} is not a whole ONNX model: it does not say which operator set it uses",
    )
    # protobuf gives texts that are not UTF-8 as bytes
    require(
        not _within(model, bytes), f"{where} is not a whole ONNX model: a name in it is not UTF-8"
    )
    functions: dict[Any, Any] = {(each.domain, each.name): each for each in model.functions} | {
        None: model.graph
    }
    for name, function in functions.items():
        functions[name] = Counter(
            (node.domain, node.op_type) for node in _within(function, onnx.NodeProto)
        )
    calls = Counter([None])
    for _ in range(_DEEPEST + 2):
        require(
            calls.total() <= _MOST_NODES,
            f"{where} has more than {_MOST_NODES} nodes, its functions inlined",
        )
        called = {operation: calls.pop(operation) for operation in functions.keys() & calls.keys()}
        if not called:
            return
        for operation, times in called.items():
            calls.update({inner: times * number for inner, number in functions[operation].items()})
    raise ArgumentError(f"{where} has functions in each other to a depth of more than {_DEEPEST}")


def _drop_weights(onnx: Any, graph: Any, folder: Path | None) -> dict[str, str]:
    """Drop the values of large initializers; read those in other files that shapes may need, or return why not, by name."""
    types, external, unread = onnx.TensorProto, onnx.external_data_helper, {}
    scales = {
        name for node in graph.node if node.op_type in ("Resize", "Upsample") for name in node.input
    }
    for tensor in graph.initializer:
        name, kind, dims, size = tensor.name, tensor.data_type, tensor.dims, prod(tensor.dims)
        if size > _SMALL:
            tensor.CopyFrom(
                types(name=name, data_type=kind, dims=dims, data_location=types.EXTERNAL)
            )
        elif (kind in (types.INT64, types.INT32) or name in scales) and external.uses_external_data(
            tensor
        ):
            try:
                require(folder, "only the path of a model says where its external data is")
                length = size * onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize
                # The last length counts: no more is read than the tensor holds, whatever the model
                # says.
                tensor.external_data.add(key="length", value=str(length))
                external.load_external_data_for_tensor(tensor, str(folder))
            except Exception as error:  # onnx's own kinds have no common base
                unread[name] = str(error)
    for sparse in graph.sparse_initializer:  # of what is made of these inference finds no shape
        dense = {
            "name": sparse.values.name,
            "data_type": sparse.values.data_type,
            "dims": sparse.dims,
        }
        graph.initializer.add(**dense, data_location=types.EXTERNAL)
    del graph.sparse_initializer[:]
    return unread


def _with_shapes(onnx: Any, model: Any) -> Any:
    """Return a model with the shapes of all values that onnx finds, or else with those that the model says."""
    declared = []
    for graph in _within(model.graph, onnx.GraphProto):
        # What a model says of values inside is often older than its inputs, and inference would
        # prefer it to what it finds.
        declared.append(list(graph.value_info))
        del graph.value_info[:]
        for info in graph.output:
            if info.type.HasField("tensor_type"):
                info.type.tensor_type.ClearField("shape")
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    # Of what inference knows nothing, the results of unknown operations for instance, the model is
    # believed.
    for graph, said in zip(_within(model.graph, onnx.GraphProto), declared, strict=True):
        known = {
            info.name for info in (*graph.value_info, *graph.output) if shape_of(info) is not None
        }
        graph.value_info.extend(info for info in said if info.name not in known)
    return onnx.shape_inference.infer_shapes(model, data_prop=True) if any(declared) else model


def _give_sizes(onnx: Any, graph: Any, where: str, batch: Any, shapes: Any) -> None:
    """Give symbolic axes the sizes that were asked for, wherever their names occur; axes of inputs that have none get names."""
    constants = {tensor.name for tensor in graph.initializer}
    inputs = {info.name: info for info in graph.input if info.name not in constants}
    declared = [shape for info in inputs.values() for shape in _within(info, onnx.TensorShapeProto)]
    axes = [axis for shape in declared for axis in enumerate(shape.dim)]
    for number, (_, dim) in enumerate(axes):
        if dim.dim_value <= 0:
            dim.dim_param = dim.dim_param or f"unk__{number}_of_inputs"
    known = ", ".join(f"{name} {show(shape_of(info))}" for name, info in inputs.items()) or "none"
    shapes = {} if shapes is None else shapes
    require(
        isinstance(shapes, Mapping),
        f"shapes={shown(shapes)} is not a mapping of input names to shapes",
    )
    wanted = []  # axes, the sizes that they shall have, and who says so
    for name, given in shapes.items():
        said = f"shapes[{shown(name)}]"
        shape = tuple(
            integer(size, said) for size in sequence(given, said, "a sequence of integers")
        )
        require(name in inputs, f"{said}: {where} has no such input; its inputs: {known}")
        said, kind, before = f"{said}={shape}", inputs[name].type, shape_of(inputs[name])
        require(kind.HasField("tensor_type"), f"{said}: that input is not a tensor")
        if before is None:
            kind.tensor_type.shape.dim.extend(
                onnx.TensorShapeProto.Dimension(dim_value=size) for size in shape
            )
        dims, is_like = kind.tensor_type.shape.dim, f"{said}: the model's input is {show(before)}"
        require(len(dims) == len(shape), is_like)
        for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
            require(
                dim.dim_param or dim.dim_value == size, f"{is_like}, of fixed size on axis {axis}"
            )
            wanted.append((dim, size, said))
    if batch is not None:
        size, said = integer(batch, "batch"), f"batch={batch}"
        # Named so, or else every first one that is symbolic; a model may also fix it.
        batches = [dim for _, dim in axes if _BATCH.search(dim.dim_param)]
        batches = batches or [
            dim for place, dim in axes if place == 0 and (dim.dim_param or dim.dim_value == size)
        ]
        require(batches, f"{said}: no input of {where} has a symbolic batch; its inputs: {known}")
        wanted += [(dim, size, said) for dim in batches]
    sizes: dict[str, int] = {}
    for dim, size, said in wanted:
        other = sizes.setdefault(dim.dim_param, size) if dim.dim_param else size
        require(other == size, f"{said}: the axis {dim.dim_param!r} would be of size {other} too")
    for dim in _within(graph, onnx.TensorShapeProto.Dimension):
        if dim.dim_param in sizes:
            dim.dim_value = sizes[dim.dim_param]


def _within(holder: Any, kind: type) -> list[Any]:
    """Return all messages of a kind in one of protobuf, at any depth; of texts, `str` are in UTF-8 and `bytes` are not."""
    found = [holder]
    for each in found:  # which grows meanwhile
        for field, value in () if isinstance(each, (str, bytes)) else each.ListFields():
            if field.type in (field.TYPE_MESSAGE, field.TYPE_STRING):
                found += value if hasattr(value, "append") else [value]
    return [each for each in found if isinstance(each, kind)]
