"""An ONNX model run through cudnnlite: normalisations folded, convolutions fused, memory used again.

    with dnn.Handle() as handle:
        network = Network(handle, "model.onnx", batch=8, dtype="float16", layout="NHWC")  # closed with the handle
        results = network(image=images)  # NumPy in, NumPy out, by the model's own names

To be imported, as `serve_resnet50.py` does.  The table at the end says which call each ONNX operation is; a node of another
kind is named before anything runs.  What convolutions and recurrent layers ask of cuDNN, `dnn.problems_from_onnx` reads.
"""

from contextlib import ExitStack
from functools import partial
from math import prod
from types import SimpleNamespace

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

import cudnnlite as dnn

CHANNELS_LAST = {4: "NHWC", 5: "NDHWC"}  # by the number of axes


class UnsupportedNodeError(NotImplementedError):
    """A node that this program, or cuDNN, has not."""


class Node:
    """A node of a model, with its attributes as its own: as given, else as ONNX says, else None."""

    def __init__(self, proto, opset):
        usual = defs.get_schema(proto.op_type, opset).attributes.values() if defs.has(proto.op_type, opset) else []
        given = [*(one.default_value for one in usual if one.default_value.name), *proto.attribute]
        vars(self).update((one.name, helper.get_attribute_value(one)) for one in given)
        self.proto, self.kind, self.inputs, self.outputs = proto, proto.op_type, [*proto.input], [*proto.output]
        self.label = proto.name

    def __getattr__(self, name):
        return None

    def require(self, condition, why):
        """Refuse the node unless a condition holds."""
        if not condition:
            raise UnsupportedNodeError(f"{self.kind} {self.label!r}: {why}")


class Network(ExitStack):
    """A model on a handle, for one shape of its inputs.

    `run()` enqueues all of it, and can be captured into a CUDA graph.  `inputs` and `outputs` are its device arrays, `steps`
    its calls, each with what it has to compute and to move, `places` the memory of its results: from which node to which.
    `close()`, or that of the handle, gives its plans and its memory back.

    Parameters
    ----------
    handle : Handle
    model : path or onnx.ModelProto
        Of one data type.
    batch : int
        What symbolic sizes of its inputs are.
    dtype, layout, math_type
        Of all arrays, of images, of all products.
    channels : int
        With channels last, images of fewer are filled up with zeros to so many in front of a convolution: 3 to 4 pays.
    """

    def __init__(
        self, handle, model, *, batch=1, dtype="float32", layout="NCHW", math_type=dnn.MathType.DEFAULT, channels=1
    ):  # fmt: skip
        super().__init__()
        self.handle, self.dtype, self.channels_last = handle, np.dtype(dtype), layout == "NHWC"
        self.math_type, self.channels = math_type, channels
        self.steps, self.places, self.values, self.wholes, self.fused, self.now = [], [], {}, {}, set(), 0
        nodes, given, results = self._read(model, batch)
        readers = {name: [one for one in nodes if name in one.inputs] for node in nodes for name in node.outputs}
        self.follower = {name: one[0] for name, one in readers.items() if len(one) == 1 and name not in results}
        self.needed = {name: index for index, node in enumerate(nodes) for name in node.inputs}  # until which node
        self.needed |= {name: len(nodes) for name in results}
        self.inputs = {name: self.fresh(self.shapes[name]) for name in given}
        self.values |= self.inputs
        for self.now, node in enumerate(nodes):
            if node.kind == "Shape":
                self.constants[node.outputs[0]] = np.array(self.shapes[node.inputs[0]][node.start : node.end])
            elif self.constants.keys() >= {*node.inputs}:  # computed here and now, of whatever kind
                known = {name: self.constants[name] for name in node.inputs if name}
                self.constants.update(zip(node.outputs, ReferenceEvaluator(node.proto).run(None, known), strict=True))
            elif node not in self.fused:
                OPERATIONS[node.kind](self, node)
        self.now = len(nodes)
        self.outputs = {name: self.ordered(self.values[name], False) for name in results}

    @property
    def share(self):
        """The memory that results take, of what a place of its own for each would."""
        memories = {place.memory.ptr: place.memory.size for place in self.places}.values()
        return sum(memories) / sum(place.size for place in self.places)

    def run(self):
        """Enqueue every call."""
        for step in self.steps:
            step.run()

    def __call__(self, **arrays):
        """Copy the inputs to the device, run, and return the outputs by name."""
        for name, array in arrays.items():
            self.inputs[name].copy_from(np.asarray(array, self.dtype))
        self.run()
        return {name: array.numpy() for name, array in self.outputs.items()}

    def _read(self, model, batch):
        """Return a model's nodes and the names of its inputs and outputs; name what is missing here."""
        proto = onnx.ModelProto()
        proto.CopyFrom(model if isinstance(model, onnx.ModelProto) else onnx.load(model))
        (self.opset,) = (one.version for one in proto.opset_import if one.domain in ("", "ai.onnx"))
        for info in proto.graph.input:
            for size in info.type.tensor_type.shape.dim:
                size.dim_value = size.dim_value or batch
        taken = {""}
        for one in proto.graph.node:  # ONNX lets names be absent, or alike; problems are found by them
            output = next(filter(None, one.output), "")
            one.name = one.name or output
            while one.name in taken:
                one.name += f" ({output})"
            taken.add(one.name)
        graph = shape_inference.infer_shapes(proto, data_prop=True).graph
        typed = [(info.name, info.type.tensor_type) for info in (*graph.input, *graph.value_info, *graph.output)]
        self.shapes = {name: tuple(size.dim_value for size in kind.shape.dim) for name, kind in typed}
        self.constants = {"": None} | {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        self.shapes |= {name: array.shape for name, array in self.constants.items() if name}
        nodes, constant = [Node(one, self.opset) for one in graph.node], {*self.constants}
        for node in nodes:
            is_constant = node.kind == "Shape" or constant.issuperset(node.inputs)
            constant.update(node.outputs if is_constant else ())
        left = [node for node in nodes if not constant.issuperset(node.outputs)]
        found = dnn.problems_from_onnx(proto, dtype=self.dtype.name)
        self.problems = {name: listed.problem for listed in found for name in listed.names}
        missing = [f"{node.kind} {node.label!r}" for node in left if node.kind not in OPERATIONS]
        if missing := missing or [*map(str, found.skipped)]:
            raise UnsupportedNodeError(f"this program has not: {', '.join(missing)}")
        for node in left:
            shapes = [self.shapes.get(name, ()) for name in (*node.inputs, *node.outputs) if name not in constant]
            node.require(all(len(one) > 1 and all(one) for one in shapes), f"shapes {shapes}: unknown, or of one axis")
        given = [info.name for info in graph.input if info.name not in self.constants]
        return nodes, given, [info.name for info in graph.output]

    # What operations are made of: the arrays that they read and write, and the calls that do it.

    def step(self, node, run, reads, writes, flops=0):
        """Add a call that reads some arrays and writes others."""
        elements = sum(one.size for one in (*reads, *writes))
        about = {"name": node.label, "kind": node.kind, "flops": flops, "elements": elements}
        self.steps.append(SimpleNamespace(run=run, reads=reads, writes=writes, **about))

    def call(self, node, function, reads, *options, y=None, **named):
        """Add a call of a function of cudnnlite, whose result, like the first array if none is given, is the node's."""
        y = self.new(reads[0].shape) if y is None else y
        self.step(node, partial(function, self.handle, *reads, *options, out=y, **named), reads, [y])
        self.define(node.outputs[0], y)

    def get(self, node, index=0):
        """Return an input, a result or a constant on the device; None if it is not given."""
        name = node.inputs[index] if index < len(node.inputs) else ""
        return self.values[name] if name in self.values else None if not name else self.constant(self.constants[name])

    def known(self, node, index, default=None):
        """Return an input that has to be constant."""
        name = node.inputs[index] if index < len(node.inputs) else ""
        node.require(name in self.constants, f"its input {name!r} is not constant")
        return default if self.constants[name] is None else self.constants[name]

    def constant(self, array, last=False, dtype=None):
        """Return a copy on the device."""
        array = np.array(array, dtype or self.dtype, ndmin=2)
        return self.handle.array(array, layout=self.layout(array.shape, last))

    def define(self, name, array):
        """Give an array its name in the model, under its shape there; its memory is kept as long as that is read."""
        shape = self.shapes[name]
        self.values[name] = array if array.shape == shape else self.view(self.ordered(array, False), shape, False)
        self.keep(self.values[name], name)

    # Memory: each result has a place, and takes one that nothing needs any more.

    def fresh(self, shape):
        """Return an array in memory of its own, in the network's layout."""
        return self.enter_context(self.handle.empty(shape, self.dtype.name, self.layout(shape)))

    def new(self, shape, last=None):
        """Return an array for a result, in the smallest memory that is large enough and free, or in fresh memory."""
        size, taken = prod(shape), {place.memory.ptr for place in self.places if place.until >= self.now}
        free = [one.memory for one in self.places if one.memory.ptr not in taken and one.memory.size >= size]
        memory = min(free, key=lambda one: one.size) if free else self.fresh((1, size))
        self.places.append(SimpleNamespace(memory=memory, size=size, begin=self.now, until=self.now))
        return self.view(memory, shape, last)

    def keep(self, array, name):
        """Keep the place of an array as long as a name is read."""
        for place in self.places:
            if place.until >= self.now and 0 <= array.ptr - place.memory.ptr < place.memory.nbytes:
                place.until = max(place.until, self.needed.get(name, 0))

    def room(self, name):
        """Return an array for a result of that name: its part of the Concat that alone reads it, with gaps, or a new one."""
        after = self.follower.get(name)
        if after is None or after.kind != "Concat" or after.inputs.count(name) > 1:
            return self.new(self.shapes[name])
        return self.part(after, after.inputs.index(name))

    def part(self, concat, index):
        """Return the part of a Concat's result that one of its inputs makes."""
        (whole,), axis = concat.outputs, concat.axis % len(self.shapes[concat.inputs[index]])
        if whole not in self.wholes:
            self.wholes[whole] = self.room(whole)
            self.keep(self.wholes[whole], whole)
        ends = np.cumsum([0, *(self.shapes[name][axis] for name in concat.inputs)])
        return self.wholes[whole][(*[slice(None)] * axis, slice(int(ends[index]), int(ends[index + 1])))]

    def layout(self, shape, last=None):
        """Return the layout of an array without gaps: with channels last, or not, or for images as the network has it."""
        last = self.channels_last and len(shape) > 3 if last is None else last
        return CHANNELS_LAST[len(shape)] if last else None

    def view(self, array, shape, last=None, strides=None):
        """Return an array's memory under another shape: by strides, or without gaps, in C order or with channels last."""
        layout = None if strides else self.layout(shape, last)
        spec = dnn.TensorSpec(shape, self.dtype.name, layout, strides=strides)
        return dnn.DeviceArray(spec, array.device, array.ptr, array, array.stream)

    def ordered(self, array, last=None):
        """Return an array in the network's layout, in C order, or with channels last; a copy if it lies in another way."""
        wanted = self.view(array, array.shape, last)
        if all(a == b for size, a, b in zip(array.shape, array.strides, wanted.strides, strict=True) if size > 1):
            return wanted
        return self.copied(array, self.new(array.shape, last))

    def first(self, node):
        """Return the first input in the network's layout."""
        return self.ordered(self.get(node))

    def copied(self, array, new):
        """Add a copy, from any strides to any strides."""
        call = partial(dnn.transform_tensor, self.handle, array, out=new)
        self.step(SimpleNamespace(label="copy", kind="Copy"), call, [array], [new])
        return new


def convolve(net, node, x, w, bias, conv):
    """Add a convolution, and what follows if it fits into it: normalisation, bias, addition of another array, relu."""
    name, z, relu, shape = node.outputs[0], None, False, conv.output_shape(x.shape, w.shape)
    result = net.shapes[name]
    axis = 1 if result == shape else len(result) - 1  # of the channels; a product of matrices has them last
    per_channel = tuple(size if index == axis else 1 for index, size in enumerate(result))
    while not relu and (after := net.follower.get(name)):
        other = next((one for one in after.inputs if one != name), None)
        added = net.constants.get(other)
        spread = None if added is None else (1,) * (len(result) - added.ndim) + added.shape
        if after.kind == "BatchNormalization" and z is None and axis == 1:
            moments = [net.known(after, index).astype(np.float64) for index in range(1, 5)]
            w, bias = dnn.fold_batch_normalization(w.astype(np.float64), bias, *moments, after.epsilon)
        elif after.kind == "Add" and spread == per_channel:
            bias = added.ravel() + (0 if bias is None else bias.ravel())
        elif after.kind == "Add" and z is None and other in net.values and net.shapes[other] == result:
            z = net.values[other]
            z = net.ordered(z) if result == shape else net.view(net.ordered(z, False), shape)
        elif after.kind == "Relu":
            relu = True
        else:
            break
        net.fused.add(after)
        name = after.outputs[0]
    fused = relu or z is not None
    bias = np.zeros(len(w)) if bias is None and fused else bias
    biases = [] if bias is None else [net.constant(bias.reshape(1, -1, *[1] * (w.ndim - 2)))]
    arrays = [x, net.constant(w, None), *biases, *([] if z is None else [z])]
    if fused:
        make, added = dnn.plan_convolution_bias_activation_forward, {} if z is None else {"z": z, "alpha2": 1.0}
        make = partial(make, net.handle, *arrays[:3], conv, "relu" if relu else "identity", **added)
    else:
        make = partial(dnn.plan_convolution_forward, net.handle, *arrays[:2], conv, bias=(*biases, None)[0])
    y = net.room(name) if result == shape and z is None else net.new(shape)
    try:
        plan = make(out=y)
    except dnn.NotSupportedError:  # cuDNN does not write every array that has gaps
        y = net.new(shape)
        plan = make(out=y)
    call = partial(net.enter_context(plan), *arrays, out=y)
    net.step(node, call, arrays, [y], 2 * prod(shape) * prod(w.shape[1:]))
    net.define(name, y)


def convolution(net, node):
    """Conv; with few channels, zeros are added: loads of four halves are faster than of three."""
    x, w, conv = net.first(node), net.known(node, 1), net.problems[node.label].conv.replace(math_type=net.math_type)
    if net.layout(x.shape) and conv.groups == 1 and x.shape[1] < net.channels:
        wide = net.fresh((x.shape[0], net.channels, *x.shape[2:]))
        wide.fill(0)
        net.copied(x, wide[:, : x.shape[1]])
        x, w = wide, np.pad(w, [(0, net.channels - x.shape[1] if axis == 1 else 0) for axis in range(w.ndim)])
    convolve(net, node, x, w, net.known(node, 2), conv)


def transposed(net, node):
    """ConvTranspose: the gradient of a convolution with respect to its input."""
    x, w, bias = net.first(node), net.constant(net.known(node, 1), None), net.known(node, 2)
    conv, y = net.problems[node.label].conv.replace(math_type=net.math_type), net.new(net.shapes[node.outputs[0]])
    call = partial(dnn.convolution_backward_data, net.handle, w, x, conv, x=y.spec, out=y)
    net.step(node, call, [x, w], [y], 2 * x.size * prod(w.shape[1:]))
    if bias is not None:
        bias = net.constant(bias.reshape(1, -1, *[1] * (x.ndim - 2)))
        net.step(node, partial(dnn.add_tensor, net.handle, bias, y), [bias, y], [y])
    net.define(node.outputs[0], y)


def product(net, node):
    """Gemm, MatMul, by a matrix that is constant: a convolution of images of one pixel."""
    x, matrix, bias = net.get(node), net.known(node, 1), net.known(node, 2)
    node.require(matrix.ndim == 2 and not node.transA, "transA, or a second factor that is no matrix")
    matrix = (matrix.T if node.transB else matrix) * (node.alpha or 1.0)
    if bias is not None:
        node.require(bias.size in (1, matrix.shape[1]), f"its C has shape {bias.shape}")
        bias = np.broadcast_to(bias.ravel(), matrix.shape[1]) * node.beta
    pixels = net.view(net.ordered(x, False), (x.size // len(matrix), len(matrix), 1, 1))
    convolve(net, node, pixels, matrix.T[:, :, None, None], bias, dnn.ConvolutionSpec(math_type=net.math_type))


def activation(net, node, mode):
    """Relu, Sigmoid, Tanh, Elu."""
    net.call(node, dnn.activation_forward, [net.first(node)], dnn.ActivationSpec(mode, node.alpha))


def clip(net, node):
    """Clip, from 0."""
    low, high = net.known(node, 1, node.min), net.known(node, 2, node.max)
    node.require(low == 0 and high is not None, f"limits {low} and {high}; cuDNN has 0 and a number")
    spec = dnn.ActivationSpec("clipped_relu", float(high))
    net.call(node, dnn.activation_forward, [net.first(node)], spec)


def softmax(net, node, algorithm):
    """Softmax, LogSoftmax: over the channels of an array that is folded to that end."""
    x = net.ordered(net.get(node), False)
    axis = node.axis % x.ndim
    node.require(net.opset >= 13 or axis == x.ndim - 1, f"axis {axis} in operator set {net.opset}")
    folded = prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :]), 1
    y = net.new(folded, last=False)
    net.call(node, dnn.softmax_forward, [net.view(x, folded, False)], y=y, algorithm=algorithm)


def batch_normalization(net, node):
    """BatchNormalization that no convolution took in."""
    x, dtype = net.first(node), "float64" if net.dtype == np.float64 else "float32"
    x = net.view(x, (*x.shape, 1, 1)) if x.ndim == 2 else x  # a matrix is images of a pixel
    shape = (1, -1, *[1] * (x.ndim - 2))
    moments = [net.constant(net.known(node, index).reshape(shape), dtype=dtype) for index in range(1, 5)]
    net.call(node, dnn.batch_normalization_inference, [x, *moments], epsilon=node.epsilon)


def pool(net, node, mode):
    """MaxPool, AveragePool, GlobalMaxPool, GlobalAveragePool."""
    x, taps = net.first(node), node.kernel_shape
    if taps is None:
        pooling = dnn.PoolingSpec.whole(x.spec, mode=mode)
    else:
        pads, steps, rank = node.pads or [0] * 2 * len(taps), node.strides or [1] * len(taps), len(taps)
        alike = pads[:rank] == pads[rank:]
        if node.auto_pad.startswith(b"SAME"):  # what lacks is shared between both sides; LOWER has the odd one in front
            axes = [*zip(x.shape[2:], net.shapes[node.outputs[0]][2:], taps, steps, strict=True)]
            total = [max(0, (out - 1) * step + tap - size) for size, out, tap, step in axes]
            pads = [(one + (node.auto_pad == b"SAME_LOWER")) // 2 for one in total]
            # the same behind does no harm if no further window fits
            alike = all((a + 2 * p - t) // s + 1 == b for p, (a, b, t, s) in zip(pads, axes, strict=True))
        plain = {*(node.dilations or [1])} == {1} and not node.ceil_mode and len(node.outputs) == 1
        node.require(alike and plain, "unequal padding, dilations, ceil_mode or indices")
        counts = "average_count_include_padding" if node.count_include_pad else mode
        pooling = dnn.PoolingSpec(taps, pads[:rank], steps, mode=counts)
    net.call(node, dnn.pooling_forward, [x], pooling, y=net.room(node.outputs[0]))


def reduce(net, node, op):
    """ReduceMean, ReduceSum, ReduceMax, ReduceMin."""
    x, given = net.first(node), net.known(node, 1, node.axes)
    axes = {int(axis) % x.ndim for axis in (range(x.ndim) if given is None else given)}
    node.require(any(x.shape[axis] > 1 for axis in axes), "there is nothing to reduce")
    y = net.new([1 if axis in axes else size for axis, size in enumerate(x.shape)])
    net.call(node, dnn.reduce_tensor, [x], op, y=y)


def binary(net, node, op, second=1.0):
    """Add, Sub, Mul, Min, Max: of two arrays, the smaller of which is repeated."""
    node.require(len(node.inputs) == 2, f"it has {len(node.inputs)} inputs")
    shape, operands = net.shapes[node.outputs[0]], zip(node.inputs, (1.0, second), strict=True)
    (large, scale), (small, other) = sorted(operands, key=lambda one: net.shapes[one[0]] != shape)
    spread = (1,) * (len(shape) - len(net.shapes[small])) + net.shapes[small]
    node.require(net.shapes[large] == shape and len(shape) <= 5, f"operands of shapes {net.shapes[large]} and {spread}")
    # cuDNN repeats along all other axes than one; where small has the first ones, they are folded into one
    rows = next((axis for axis in range(len(shape), 0, -1) if spread[axis - 1] != 1), 0)
    folded = 1 < rows < len(shape) and spread[:rows] == shape[:rows]
    last = bool(net.layout(shape)) and not folded

    def operand(name, full):
        full = (1, prod(full[:rows]), prod(full[rows:]), 1) if folded else full
        if name in net.constants:
            return net.constant(net.constants[name].reshape(full), last)
        array = net.values[name]
        return net.ordered(array if array.shape == full else net.view(net.ordered(array, False), full, False), last)

    a, b = operand(large, shape), operand(small, spread)
    net.call(node, dnn.op_tensor, [a, b], op, y=net.new(a.shape, last), alpha1=scale, alpha2=other)


def same(net, node):
    """Reshape, Flatten, Squeeze, Unsqueeze, Identity, Dropout: the same memory, in C order where its shape is another."""
    net.define(node.outputs[0], net.get(node))


def transpose(net, node):
    """Transpose: a copy from a view with its axes in another order."""
    x = net.get(node)
    order = node.perm or [*reversed(range(x.ndim))]
    node.require(len(order) <= 5, "more than five axes")
    moved = net.view(x, [x.shape[axis] for axis in order], strides=[x.strides[axis] for axis in order])
    net.define(node.outputs[0], net.ordered(moved, False))


def concat(net, node):
    """Concat: what was not written into its part is copied there."""
    for index, name in enumerate(node.inputs):
        part = net.part(node, index)
        if name not in net.values or net.values[name].ptr != part.ptr:
            net.copied(net.get(node, index), part)
    net.define(node.outputs[0], net.wholes[node.outputs[0]])


def recurrent(net, node):
    """LSTM, GRU, RNN."""
    node.require(node.direction != b"reverse" and not node.layout, "direction=reverse or layout=1")
    net.known(node, 4)  # the lengths, which are in the problem
    problem, given = net.problems[node.label], [net.known(node, index) for index in (1, 2, 3)]
    spec, lengths = problem.spec.replace(math_type=net.math_type), problem.data.lengths
    weights = dnn.RNNWeights.from_onnx(net.handle, spec, *given)
    reads = [None if one is None else net.ordered(one, False) for one in (net.get(node, at) for at in (0, 5, 6))]
    steps, batch, _ = reads[0].shape
    directions, _, hidden = spec.hidden_shape(batch)
    y = net.new((steps, batch, directions * hidden))
    written = [y, *(net.new((directions, batch, hidden)) for _ in range(2 if node.kind == "LSTM" else 1))]
    call = partial(dnn.rnn_forward, net.handle, spec, weights, *reads, lengths=lengths, out=tuple(written))
    flops = 2 * steps * batch * (given[0].size + given[1].size)
    net.step(node, call, [one for one in reads if one is not None], written, flops)
    apart = batch * directions * hidden, hidden, directions * hidden, 1  # ONNX has the directions before the batch
    written[0] = net.view(y, (steps, directions, batch, hidden), strides=apart)
    for name, array in zip(node.outputs, written, strict=False):
        if name:
            net.define(name, array)


OPERATIONS = {
    "Conv": convolution, "ConvTranspose": transposed, "Gemm": product, "MatMul": product,
    "Relu": partial(activation, mode="relu"), "Sigmoid": partial(activation, mode="sigmoid"), "Clip": clip,
    "Tanh": partial(activation, mode="tanh"), "Elu": partial(activation, mode="elu"),
    "BatchNormalization": batch_normalization,
    "LRN": lambda net, node: net.call(
        node, dnn.lrn_forward, [net.first(node)], dnn.LRNSpec(node.size, alpha=node.alpha, beta=node.beta, k=node.bias)
    ),
    "Softmax": partial(softmax, algorithm="accurate"), "LogSoftmax": partial(softmax, algorithm="log"),
    "MaxPool": partial(pool, mode="max"), "AveragePool": partial(pool, mode="average_count_exclude_padding"),
    "GlobalMaxPool": partial(pool, mode="max"), "GlobalAveragePool": partial(pool, mode="average_count_include_padding"),
    "ReduceMean": partial(reduce, op="avg"), "ReduceSum": partial(reduce, op="add"),
    "ReduceMax": partial(reduce, op="max"), "ReduceMin": partial(reduce, op="min"),
    "Add": partial(binary, op="add"), "Sub": partial(binary, op="add", second=-1.0), "Mul": partial(binary, op="mul"),
    "Min": partial(binary, op="min"), "Max": partial(binary, op="max"),
    "Reshape": same, "Flatten": same, "Squeeze": same, "Unsqueeze": same, "Identity": same, "Dropout": same,
    "Transpose": transpose, "Concat": concat, "LSTM": recurrent, "GRU": recurrent, "RNN": recurrent,
}  # fmt: skip
