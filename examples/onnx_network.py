"""Run an ONNX model with cudnnlite, from NumPy arrays to NumPy arrays.

    network = Network(handle, "model.onnx", batch=8)
    results = network(image=images)
    print(network)  # a line for each call: layer, operation, what was chosen

On the command line, `python onnx_network.py model.onnx --batch 8` runs it on random numbers.

Normalisations are folded into convolutions, convolutions are fused, and memory is reused.  The
table at the end names the method for each operation.
"""

import argparse
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import prod
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

import cudnnlite as dnn

C_ORDER = {4: "NCHW", 5: "NCDHW"}
CHANNELS_LAST = {4: "NHWC", 5: "NDHWC"}
# Nodes whose results differ from run to run, whatever their inputs.
RANDOM = ("Bernoulli", "Multinomial", "Random")
# Of operations such as Softmax and Resize, onnx.reference has only what they are since this operator
# set. So constants of an older model are converted to it.
REFERENCE_OPSET = 13


class UnsupportedNodeError(NotImplementedError):
    """A node that this program, or cuDNN, does not have; raised before anything runs."""


def require(node, condition, why):
    if not condition:
        raise UnsupportedNodeError(f"{node.op_type} {node.name!r}: {why}")


@dataclass
class Step:
    """A call of a network."""

    name: str  # that of the node's first output
    kind: str  # the node's operation
    run: Any
    reads: list
    writes: list
    problem: Any = None  # what cuDNN is asked; None of copies
    choice: Any = None  # the engine or algorithm; None if cuDNN has one way, or the call chooses

    @property
    def flops(self):
        return self.problem.flops if self.problem else 0

    @property
    def cells(self):
        """The line of a table."""
        choice = str(self.choice or "-").splitlines()[0]
        return self.name, self.kind, f"{self.flops / 1e9:.3g}", choice

    @property
    def elements(self):
        """The number of values that the call reads and writes."""
        return sum(array.size for array in (*self.reads, *self.writes))


@dataclass
class Place:
    """The memory of a result, from the node that writes it to the last one that reads it."""

    memory: Any
    size: int
    begin: int
    until: int


def infer_model(model, batch, shapes):
    """Return a copy of a model (or of the one at a path) with sizes for all axes and shapes."""
    if isinstance(model, onnx.ModelProto):
        proto = onnx.shape_inference.infer_shapes(model)
    else:
        proto = onnx.load(model)
    for info in proto.graph.input:
        set_sizes(info, batch, shapes.get(info.name))
    return onnx.shape_inference.infer_shapes(proto, data_prop=True)


def set_sizes(info, batch, shape):
    """Set the sizes of an input's open axes: those of a shape, or the batch of a single one."""
    if not info.type.HasField("tensor_type"):
        raise ValueError(f"the input {info.name!r} is no tensor")
    dims = info.type.tensor_type.shape.dim
    sizes = [max(dim.dim_value, 0) for dim in dims]  # Some exporters write -1 for an open axis.
    text = ", ".join(
        str(size or dim.dim_param or "?") for size, dim in zip(sizes, dims, strict=True)
    )
    if shape is None and sizes.count(0) > 1:
        raise ValueError(f"the input {info.name!r} ({text}) has several open axes; give its shape")
    shape = shape or [size or batch for size in sizes]
    if len(shape) != len(sizes) or any(map(lambda size, new: size not in (0, new), sizes, shape)):
        raise ValueError(f"the input {info.name!r} ({text}) cannot have the shape {tuple(shape)}")
    for dim, size in zip(dims, shape, strict=True):
        dim.dim_value = size


def shapes_of(graph):
    """Return the shapes of a graph's values by name."""
    shapes = {}
    for info in (*graph.input, *graph.value_info, *graph.output):
        if info.type.tensor_type.HasField("shape"):
            dims = info.type.tensor_type.shape.dim
            shapes[info.name] = tuple(size.dim_value for size in dims)
    return shapes


def operation_of(node):
    """Return the name of a node's operation, after its domain if that is not ONNX's own."""
    return f"{node.domain}.{node.op_type}".removeprefix("ai.onnx.").removeprefix(".")


def names_read(node):
    """Return the names of the values that a node, or a graph in its attributes, reads."""
    names = set(node.input)
    for attribute in node.attribute:
        graphs = [*attribute.graphs, attribute.g]
        for graph in graphs:
            inner = {info.name for info in (*graph.input, *graph.initializer)}
            for inner_node in graph.node:
                names |= names_read(inner_node) - inner
                inner |= set(inner_node.output)
    return names


def evaluate(nodes, values, opset):
    """Return the results of nodes by name, computed from values by name."""
    names = set().union(*map(names_read, nodes)) & set(values)
    inputs = []
    for name in names:
        array = values[name]
        element_type = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        inputs.append(onnx.helper.make_tensor_value_info(name, element_type, array.shape))
    results = [name for node in nodes for name in node.output if name]
    outputs = [onnx.ValueInfoProto(name=name) for name in results]
    graph = onnx.helper.make_graph(nodes, "constants", inputs, outputs)
    opsets = [onnx.helper.make_opsetid("", opset)]
    proto = onnx.helper.make_model(graph, opset_imports=opsets)
    try:
        if opset < REFERENCE_OPSET:
            proto = onnx.version_converter.convert_version(proto, REFERENCE_OPSET)
        arrays = ReferenceEvaluator(proto).run(None, {name: values[name] for name in names})
    except Exception as error:  # onnx's own errors have no common base.
        raise UnsupportedNodeError(f"the constants cannot be computed: {error}") from error
    return dict(zip(results, arrays, strict=True))


def counted(operations):
    """Return a text with each operation once, and the number of its nodes."""
    return ", ".join(
        f"{operation} ({count} node{'s' if count > 1 else ''})"
        for operation, count in Counter(operations).items()
    )


class Network(ExitStack):
    """A model (a path or a ModelProto) on a handle, for one shape of its inputs.

    `run()` enqueues all calls, and can be captured.  `batch` is the size of an axis that the model
    leaves open; an input with several open axes needs its shape, `shapes[name]`.  Images with fewer
    than `channels` channels get channels of zeros: four channels are faster than three.
    """

    def __init__(
        self,
        handle,
        model,
        *,
        batch=1,
        shapes=MappingProxyType({}),
        dtype="float32",
        layout="NCHW",
        math_type="default",
        channels=1,
    ):
        super().__init__()
        self.handle, self.dtype = handle, np.dtype(dtype)
        self.math_type, self.channels = math_type, channels
        # By the number of axes. Other arrays are in C order.
        self.layouts = CHANNELS_LAST if layout == "NHWC" else {}
        self.steps, self.places = [], []
        self.wholes = {}  # the results of Concat nodes, by the name of the node
        self.now = 0  # the index of the node that is being added
        proto = infer_model(model, batch, shapes)
        graph = proto.graph
        domains = ("", "ai.onnx")
        (self.opset,) = (item.version for item in proto.opset_import if item.domain in domains)
        self.values = {
            tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer
        }
        while results := self._compute_constants(graph):
            # The shapes of further values may depend on them.
            tensors = {name: np.asarray(value) for name, value in results.items()}
            graph.initializer.extend(map(onnx.numpy_helper.from_array, tensors.values(), tensors))
            self.values |= tensors
            proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
            graph = proto.graph
        nodes = graph.node
        self.attributes = {}  # by the name of the node
        for node in nodes:
            # Names of nodes may be missing, or occur twice. Those of outputs may not.
            node.name = next(filter(None, node.output))
            self.attributes[node.name] = {
                attribute.name: onnx.helper.get_attribute_value(attribute)
                for attribute in node.attribute
            }
        constant_shapes = {name: value.shape for name, value in self.values.items()}
        self.shapes = shapes_of(graph) | constant_shapes
        self.values[""] = None  # an input that is left out
        self._read_problems(proto, nodes)
        results = [info.name for info in graph.output]
        self._find_readers(nodes, results)
        constants = set(self.values)
        self.inputs = {
            info.name: self.empty(self.shapes[info.name])
            for info in graph.input
            if info.name not in constants
        }
        self.values |= self.inputs
        for node in nodes:
            self._check(node, constants)
        with ExitStack() as made_before_a_refusal:
            made_before_a_refusal.callback(self.close)
            for self.now, node in enumerate(nodes):
                self._add(node)
            made_before_a_refusal.pop_all()
        self.outputs = {name: self.shaped(self.values[name], self.shapes[name]) for name in results}

    def _compute_constants(self, graph):
        """Remove the nodes whose inputs are constant from a graph, and return their results."""
        constant_nodes, nodes = [], []
        known = {"", *self.values}
        shapes = shapes_of(graph)
        images = {}
        for node in graph.node:
            operation = operation_of(node)
            unknown = names_read(node) - known
            if operation == "Shape" and all(shapes.get(node.input[0], [0])):
                # It needs only the shape of its input.
                images |= {name: np.broadcast_to(np.float32(0), shapes[name]) for name in unknown}
            elif unknown or "." in operation or operation.startswith(RANDOM):
                nodes.append(node)
                continue
            node.domain = ""
            constant_nodes.append(node)
            known.update(node.output)
        results = evaluate(constant_nodes, self.values | images, self.opset)
        del graph.node[:]
        graph.node.extend(nodes)
        return results

    def _read_problems(self, proto, nodes):
        """Read the convolutions and recurrent layers; refuse nodes that this program lacks."""
        problems = dnn.problems_from_onnx(proto, dtype=self.dtype.name)
        self.problems = {}
        for item in problems:
            self.problems |= dict.fromkeys(item.names, item.problem)
        operations = map(operation_of, nodes)
        missing = counted(operation for operation in operations if operation not in OPERATIONS)
        missing = missing or ", ".join(map(str, problems.skipped))
        if missing:
            raise UnsupportedNodeError(f"this program has not: {missing}")

    def _find_readers(self, nodes, results):
        """Find the only reader of each value, and the index of its last reader."""
        readers = defaultdict(list)
        self.last = {}
        for index, node in enumerate(nodes):
            for name in node.input:
                readers[name].append(node)
                self.last[name] = index
        self.last |= dict.fromkeys(results, len(nodes))
        self.only_reader = {
            name: readers[name][0]
            for name in self.shapes
            if len(readers[name]) == 1 and name not in results
        }

    def _check(self, node, constants):
        """Refuse a node with an unknown shape, or with an input that must be constant."""
        names = [name for name in (*node.input, *node.output) if name not in constants]
        shapes = [self.shapes.get(name, ()) for name in names]
        is_known = all(shape and all(shape) for shape in shapes)
        require(node, is_known, f"shapes {shapes}: unknown, or empty")
        computed = COMPUTED_INPUTS.get(OPERATIONS[node.op_type])
        for name in node.input[1:computed]:
            require(node, name in constants, f"its input {name!r} is not constant")

    def _add(self, node):
        """Add the calls of a node."""
        inputs = [self.values.get(name) for name in node.input]
        operation = OPERATIONS[node.op_type]
        try:
            outputs = operation(self, node, *inputs, **self.attributes[node.name])
        except (dnn.ArgumentError, dnn.NotSupportedError) as error:
            raise UnsupportedNodeError(f"{node.op_type} {node.name!r}: {error}") from error
        if not isinstance(outputs, tuple):
            outputs = (outputs,)
        for name in node.output[len(outputs) :]:
            require(node, not name, f"it has no output {name!r}")
        for name, array in zip(node.output, outputs, strict=False):
            if name:
                self.values[name] = self.shaped(array, self.shapes[name])
                self.extend_place(self.values[name], name)

    def run(self):
        for step in self.steps:
            step.run()

    def __str__(self):
        rows = [("layer", "operation", "GFLOP", "chosen"), *(step.cells for step in self.steps)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for layer, kind, gflop, choice in rows:
            lines.append(f"{layer:{widths[0]}}  {kind:{widths[1]}}  {gflop:>{widths[2]}}  {choice}")
        return "\n".join(lines)

    def problem_list(self):
        """Return what the network asks cuDNN, with the layers' names: what the tuner takes."""
        problems = dnn.ProblemList()
        for step in self.steps:
            if step.problem is not None:
                problems.add(step.problem, step.name)
        return problems

    def __call__(self, **arrays):
        for name, array in arrays.items():
            self.inputs[name].copy_from(np.asarray(array, self.dtype))
        self.run()
        return {name: array.numpy() for name, array in self.outputs.items()}

    # ---------------------------------------------------------------- memory

    def view(self, array, spec):
        return dnn.DeviceArray(spec, array.device, array.ptr, array, array.stream)

    def empty(self, shape):
        layout = self.layouts.get(len(shape))
        return self.enter_context(self.handle.empty(shape, self.dtype.name, layout))

    def new(self, shape, layouts=None, name=None):
        """Return an array for a result: in the smallest free memory that fits, or in new memory."""
        size = prod(shape)
        in_use = {place.memory.ptr for place in self.places if place.until >= self.now}
        free = [
            place.memory
            for place in self.places
            if place.memory.ptr not in in_use and place.memory.size >= size
        ]
        if free:
            memory = min(free, key=lambda array: array.size)
        else:
            memory = self.empty((1, size))
        self.places.append(Place(memory, size, self.now, self.last.get(name, self.now)))
        layout = (layouts or self.layouts).get(len(shape))
        return self.view(memory, dnn.TensorSpec(shape, self.dtype.name, layout))

    def extend_place(self, array, name):
        """Reserve the place of an array until the last node that reads a name."""
        for place in self.places:
            is_inside = 0 <= array.ptr - place.memory.ptr < place.memory.nbytes
            if is_inside and place.until >= self.now:
                place.until = max(place.until, self.last.get(name, 0))

    def room(self, name):
        """Return an array for the result with a name.

        If only a Concat reads it, it is the part of the Concat's result, which may have gaps.
        """
        reader = self.only_reader.get(name)
        if reader is not None and reader.op_type == "Concat":
            return self.part(reader, list(reader.input).index(name))
        return self.new(self.shapes[name], name=name)

    def part(self, concat, index):
        """Return the part of a Concat's result that comes from one of its inputs."""
        if concat.name not in self.wholes:
            self.wholes[concat.name] = self.room(concat.name)
        axis = self.attributes[concat.name]["axis"] % len(self.shapes[concat.name])
        sizes = [self.shapes[name][axis] for name in concat.input]
        begin = sum(sizes[:index])
        slices = [slice(None)] * axis
        slices.append(slice(begin, begin + sizes[index]))
        return self.wholes[concat.name][tuple(slices)]

    def constant(self, array, dtype=None):
        values = np.array(array, dtype or self.dtype, ndmin=2)
        return self.handle.array(values, layout=self.layouts.get(array.ndim))

    def ordered(self, array, layouts=None):
        """Return an array in the network's layouts, or in others, without gaps.

        It is a copy if the array is in another order.
        """
        layout = (layouts or self.layouts).get(array.ndim)
        spec = dnn.TensorSpec(array.shape, array.spec.dtype, layout)
        axes = zip(array.shape, array.strides, spec.strides, strict=True)
        # The stride of an axis of one element has no effect.
        if all(size == 1 or stride == new_stride for size, stride, new_stride in axes):
            return self.view(array, spec)
        return self.copied(array, self.new(array.shape, layouts))

    def shaped(self, array, shape):
        """Return an array or a constant with a shape.  A new shape needs an array in C order."""
        if isinstance(array, np.ndarray):
            return self.constant(array.reshape(shape))
        if array.shape == tuple(shape):
            return array
        return self.ordered(array, C_ORDER).reshape(shape)

    def copied(self, array, new):
        run = partial(dnn.transform_tensor, self.handle, array, out=new)
        return self.step(SimpleNamespace(name="copy", op_type="Copy"), run, [array], [new])

    # ---------------------------------------------------------------- calls

    def step(self, node, run, reads, writes, problem=None, choice=None):
        self.steps.append(Step(node.name, node.op_type, run, reads, writes, problem, choice))
        return writes[0]

    def call(self, node, function, reads, *options, y=None, **keywords):
        """Plan a call of a function of cudnnlite, and return its result.

        The default of `y` is a new array with the shape of the first one.
        """
        reads = [self.ordered(array) for array in reads]
        if y is None:
            y = self.new(reads[0].shape)
        make_plan = partial(function.plan, self.handle, *reads, *options, **keywords)
        try:
            plan = make_plan(out=y)
        except dnn.NotSupportedError:  # cuDNN does not write every array with gaps.
            y = self.new(y.shape)
            plan = make_plan(out=y)
        # A call of the plan has the arrays among the keywords too.
        reads += [array for array in keywords.values() if isinstance(array, dnn.DeviceArray)]
        run = partial(self.enter_context(plan), *reads, out=y)
        return self.step(node, run, reads, [y], plan.problem, plan.choice)

    def convolve(self, node, x, w, bias, conv):
        """Add a convolution, fused with the nodes after it that its kernel can do.

        These are a normalisation, a bias, the addition of another array, and a relu.
        """
        name = node.name
        shape, result_shape = conv.output_shape(x.shape, w.shape), self.shapes[name]
        bias_shape = [1] * len(result_shape)
        channel_axis = 1 if result_shape == shape else -1  # A matrix product has them last.
        bias_shape[channel_axis] = len(w)
        if bias is None:
            bias = np.zeros(len(w))
        fusion = {}
        while fusion.get("activation") != "relu":
            reader = self.only_reader.get(name)
            if reader is None:
                break
            kind = reader.op_type
            z = next((self.values.get(other) for other in reader.input if other != name), None)
            if kind == "BatchNormalization" and not fusion and bias_shape[1] == len(w):
                w, bias = self.folded(reader, w, bias)
            elif kind == "Add" and is_bias(z, bias_shape):
                bias = bias.ravel() + z.ravel()
            elif kind == "Add" and not fusion and is_array(z, result_shape):
                fusion = {"activation": "identity", "z": self.ordered(self.shaped(z, shape))}
            elif kind == "Relu":
                fusion["activation"] = "relu"
            else:
                break
            # The reader has nothing left to do.
            reader.op_type, reader.input[:] = "Identity", [name]
            name = reader.output[0]
        bias = self.constant(bias.reshape(1, -1, *[1] * (w.ndim - 2)))
        has_room = "z" not in fusion and result_shape == shape
        y = self.room(name) if has_room else self.new(shape)
        if y.ptr % 16:  # Engines write only aligned memory, which a part of a Concat may not be.
            y = self.new(shape)
        function = dnn.convolution_forward
        if fusion:
            function = dnn.convolution_bias_activation_forward
        reads = [x, self.constant(w)]
        return self.call(node, function, reads, y=y, bias=bias, conv=conv, **fusion)

    def folded(self, node, w, bias):
        """Return a convolution's filters and bias with a normalisation folded into them."""
        moments = [self.values.get(name) for name in node.input[1:]]
        epsilon = self.attributes[node.name].get("epsilon", 1e-5)
        return dnn.fold_batch_normalization(w, bias, *moments, epsilon)

    # ---------------------------------------------------------------- operations

    def convolution(self, node, x, w, bias=None, **_):
        conv = self.problems[node.name].conv.replace(math_type=self.math_type)
        lacking = self.channels - x.shape[1]
        if x.ndim in self.layouts and conv.groups == 1 and lacking > 0:
            wide = self.empty((x.shape[0], self.channels, *x.shape[2:]))
            wide.fill(0)
            self.copied(x, wide[:, : x.shape[1]])
            x = wide
            padding = [(0, 0)] * w.ndim
            padding[1] = (0, lacking)
            w = np.pad(w, padding)
        return self.convolve(node, x, w, bias, conv)

    def transposed(self, node, x, w, bias=None, **_):
        conv = self.problems[node.name].conv.replace(math_type=self.math_type)
        y = self.new(self.shapes[node.name])
        reads = [self.constant(w), x]
        y = self.call(node, dnn.convolution_backward_data, reads, conv, x=y.spec, y=y)
        if bias is None:
            return y
        bias = self.shaped(bias, (1, -1, *[1] * (x.ndim - 2)))
        return self.call(node, dnn.op_tensor, [y, bias], "add")

    def product(self, node, x, matrix, bias=None, *, alpha=1.0, beta=1.0, transA=0, transB=0):
        is_matrix = matrix.ndim == 2 and not transA
        require(node, is_matrix, "transA, or a second factor that is no matrix")
        is_row = bias is None or bias.size in (1, *bias.shape[-1:])
        require(node, is_row, "its C is not one row")
        filters = matrix if transB else matrix.T
        w = filters[:, :, None, None] * alpha
        row = 0 if bias is None else bias.ravel() * beta
        x = self.shaped(x, (-1, *w.shape[1:]))
        conv = dnn.ConvolutionSpec(math_type=self.math_type)
        return self.convolve(node, x, w, np.broadcast_to(row, len(w)), conv)

    def activation(self, node, x, low=None, high=None, *, alpha=None, **limits):
        mode = node.op_type.lower()
        if mode == "clip":
            # Before operator set 11 the limits were attributes.
            low, high = limits.get("min", low), limits.get("max", high)
            has_limits = low == 0 and high is not None
            require(node, has_limits, f"limits {low} and {high}; cuDNN has 0 and a number")
            mode, alpha = "clipped_relu", float(high)
        return self.call(node, dnn.activation_forward, [x], dnn.ActivationSpec(mode, alpha))

    def lrn(self, node, x, *, size, alpha=1e-4, beta=0.75, bias=1.0):
        return self.call(
            node, dnn.lrn_forward, [x], dnn.LRNSpec(size, alpha=alpha, beta=beta, k=bias)
        )

    def softmax(self, node, x, *, axis=None):
        # Before operator set 13 the operation was over all axes from `axis` on.
        is_over_one_axis = self.opset >= 13
        if axis is None:
            axis = -1 if is_over_one_axis else 1
        axis %= x.ndim
        end = axis + 1 if is_over_one_axis else x.ndim
        sizes = x.shape
        x = self.shaped(x, [prod(sizes[:axis]), prod(sizes[axis:end]), prod(sizes[end:])])
        algorithm = "log" if node.op_type == "LogSoftmax" else "accurate"
        return self.call(node, dnn.softmax_forward, [x], algorithm=algorithm)

    def batch_normalization(self, node, x, *moments, epsilon=1e-5, **_):
        x = self.shaped(x, (*x.shape, 1, 1)[: max(4, x.ndim)])
        dtype = max(self.dtype, np.dtype(np.float32))
        shape = (1, -1, *[1] * (x.ndim - 2))
        arrays = [self.constant(moment.reshape(shape), dtype) for moment in moments]
        return self.call(node, dnn.batch_normalization_inference, [x, *arrays], epsilon=epsilon)

    def pool(
        self,
        node,
        x,
        *,
        kernel_shape=None,
        strides=None,
        pads=None,
        auto_pad=b"",
        count_include_pad=0,
        dilations=(1,),
        ceil_mode=0,
        **_,
    ):
        taps = kernel_shape or x.shape[2:]
        rank = len(taps)
        padding = list(zip(pads[:rank], pads[rank:], strict=True)) if pads else 0
        if auto_pad == b"SAME_UPPER":
            padding = "same"
        elif auto_pad == b"SAME_LOWER":
            upper = dnn.PoolingSpec(taps, padding="same", stride=strides or 1).for_shapes(x.shape)
            padding = [ends[::-1] for ends in upper.pads(rank)]
        mode = "average_count_exclude_padding"
        if "Max" in node.op_type:
            mode = "max"
        elif count_include_pad:
            mode = "average_count_include_padding"
        pooling = dnn.PoolingSpec(
            taps, padding=padding, stride=strides or 1, mode=mode, ceil_mode=bool(ceil_mode)
        )
        has_shape = pooling.output_spec(x.spec).shape == self.shapes[node.name]
        require(node, has_shape, f"its shape {self.shapes[node.name]} is not that of {pooling}")
        is_plain = set(dilations) == {1} and len(node.output) == 1
        require(node, is_plain, "dilations, or indices")
        return self.call(node, dnn.pooling_forward, [x], pooling, y=self.room(node.name))

    def reduce(self, node, x, axes_input=None, *, axes=None, **_):
        # From operator set 13 or 18 on the axes are an input.
        if axes is None:
            axes = axes_input
        if axes is None:
            axes = range(x.ndim)
        reduced = {axis % x.ndim for axis in axes}
        shape = tuple(1 if axis in reduced else size for axis, size in enumerate(x.shape))
        require(node, shape != x.shape, "there is nothing to reduce")
        names = {"ReduceMean": "avg", "ReduceSum": "add", "ReduceMax": "max", "ReduceMin": "min"}
        op = names[node.op_type]
        return self.call(node, dnn.reduce_tensor, [x], op, y=self.new(shape))

    def binary(self, node, *operands):
        require(node, len(operands) == 2, f"it has {len(operands)} inputs")
        op, scales = node.op_type.lower(), (1.0, 1.0)
        if op == "sub":
            op, scales = "add", (1.0, -1.0)
        shape = self.shapes[node.name]
        if len(shape) == 1:
            shape = (1, *shape)  # as constants are
            operands = [self.shaped(array, (1, *array.shape)[-2:]) for array in operands]
        pairs = zip(operands, scales, strict=True)
        # cuDNN repeats the second array.
        (large, scale), (small, small_scale) = sorted(
            pairs, key=lambda pair: pair[0].shape != shape
        )
        small_shape = (1,) * (len(shape) - small.ndim) + small.shape
        is_possible = large.shape == shape and len(shape) <= 5
        require(node, is_possible, f"operands of shapes {large.shape} and {small_shape}")
        # cuDNN repeats an array along all axes but one, so that equal first axes become one.
        equal_axes = len(shape)
        while equal_axes and small_shape[equal_axes - 1] == 1:
            equal_axes -= 1
        is_prefix = small_shape[:equal_axes] == shape[:equal_axes]
        if 1 < equal_axes < len(shape) and is_prefix:
            rows = prod(shape[:equal_axes])
            shape, small_shape = (1, rows, prod(shape[equal_axes:])), (1, rows, 1)
        arrays = [self.shaped(large, shape), self.shaped(small, small_shape)]
        return self.call(node, dnn.op_tensor, arrays, op, alpha1=scale, alpha2=small_scale)

    def reshaped(self, node, x, *constants, perm=None, **_):
        is_training = node.op_type == "Dropout" and any(constants[1:2])
        require(node, not is_training, "it drops values")
        if node.op_type != "Transpose":
            return x  # `_add` gives it the new shape.
        require(node, x.ndim <= 5, "more than five axes")
        order = perm or range(x.ndim)[::-1]
        shape = [x.shape[axis] for axis in order]
        strides = [x.strides[axis] for axis in order]
        return self.ordered(self.view(x, dnn.TensorSpec(shape, x.spec.dtype, strides=strides)))

    def concat(self, node, *arrays, axis):
        for index, array in enumerate(arrays):
            part = self.part(node, index)
            is_written = getattr(array, "ptr", None) == part.ptr
            if not is_written:
                self.copied(self.shaped(array, part.shape), part)
        return self.wholes[node.name]

    def recurrent(
        self,
        node,
        x,
        w,
        r,
        bias=None,
        lengths=None,
        *states,
        direction=b"forward",
        layout=0,
        **_,
    ):
        is_supported = direction != b"reverse" and not layout
        require(node, is_supported, "direction=reverse or layout=1")
        problem = self.problems[node.name]  # It has the lengths.
        steps, batch, _inputs = x.shape
        spec = problem.spec.replace(math_type=self.math_type)
        weights = dnn.RNNWeights.from_onnx(self.handle, spec, w, r, bias)
        state_shape = spec.hidden_shape(batch)
        directions, _batch, hidden = state_shape
        reads = [x, *states]
        for index, array in enumerate(reads):
            if array is not None:
                reads[index] = self.ordered(self.shaped(array, array.shape))
        y = self.new((steps, batch, directions * hidden))
        state_count = 2 if node.op_type == "LSTM" else 1
        last_states = [self.new(state_shape) for _ in range(state_count)]
        writes = [y, *last_states]
        lengths = problem.data.lengths
        run = partial(
            dnn.rnn_forward,
            self.handle,
            spec,
            weights,
            *reads,
            lengths=lengths,
            out=tuple(writes),
        )
        arrays = [array for array in reads if array is not None]
        problem = dnn.rnn_forward.problem(spec, weights, *reads, lengths=lengths)
        self.step(node, run, arrays, writes, problem)
        # ONNX has the directions before the batch.
        shape = (steps, directions, batch, hidden)
        strides = (batch * directions * hidden, hidden, directions * hidden, 1)
        view = self.view(y, dnn.TensorSpec(shape, y.spec.dtype, strides=strides))
        return view, *last_states


def is_bias(value, bias_shape):
    """Return whether a value is a constant with one number for each channel, or one for all."""
    if not isinstance(value, np.ndarray):
        return False
    return np.broadcast_shapes(value.shape, bias_shape) == tuple(bias_shape)


def is_array(value, shape):
    """Return whether a value is an array on the device with that shape."""
    return isinstance(value, dnn.DeviceArray) and value.shape == shape


# The number of inputs that need not be constant, if it is not all of them but the first.
COMPUTED_INPUTS = {Network.binary: 1, Network.concat: 1, Network.recurrent: 5}
# A method gets the inputs on the device, or as NumPy arrays if they are constant.
METHODS = {
    # Channels of zeros are added to a few: four float16 values load faster than three.
    Network.convolution: "Conv",
    # This is the gradient of a convolution with respect to its input.
    Network.transposed: "ConvTranspose",
    # A matrix product is a convolution of images of one pixel.
    Network.product: "Gemm MatMul",
    Network.activation: "Relu Sigmoid Tanh Elu Clip",
    Network.lrn: "LRN",
    Network.recurrent: "LSTM GRU RNN",
    # The axes before and after those of the softmax are folded.
    Network.softmax: "Softmax LogSoftmax",
    # These are the normalisations that are not folded. A matrix has images of one pixel.
    Network.batch_normalization: "BatchNormalization",
    # A graph computes those with padding that is not the same on both sides of an axis.
    Network.pool: "MaxPool AveragePool GlobalMaxPool GlobalAveragePool",
    Network.reduce: "ReduceMean ReduceSum ReduceMax ReduceMin",
    Network.binary: "Add Sub Mul Min Max",
    # The result is in the same memory if possible.
    Network.reshaped: "Reshape Flatten Squeeze Unsqueeze Identity Dropout Transpose",
    # The inputs that are not written in their part are copied there.
    Network.concat: "Concat",
}
OPERATIONS = {kind: method for method, kinds in METHODS.items() for kind in kinds.split()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="an ONNX file")
    parser.add_argument("--batch", type=int, default=1, help="the size of an axis left open")
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=1x3x224x224",
        help="the shape of an input with several axes left open; once for each",
    )
    parser.add_argument("--dtype", default="float32", choices=("float32", "float16", "float64"))
    parser.add_argument("--layout", default="NCHW", choices=("NCHW", "NHWC"))
    parser.add_argument(
        "--problems", metavar="FILE", help="save what cudnnlite autotune --problems FILE tunes"
    )
    options = parser.parse_args()
    shapes = {}
    for text in options.shape:
        name, _, sizes = text.rpartition("=")
        shapes[name] = tuple(map(int, sizes.split("x")))
    with (
        dnn.Handle() as handle,
        Network(
            handle,
            options.model,
            batch=options.batch,
            shapes=shapes,
            dtype=options.dtype,
            layout=options.layout,
        ) as network,
    ):
        print(network)
        rng = np.random.default_rng(0)
        inputs = {name: rng.standard_normal(x.shape) for name, x in network.inputs.items()}
        for name, values in network(**inputs).items():
            print(f"{name}: {values.shape}, mean {values.mean():.6g}")
        if options.problems:
            network.problem_list().save(options.problems)


if __name__ == "__main__":
    main()
