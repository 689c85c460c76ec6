"""An ONNX model run through cudnnlite: normalisations folded, convolutions fused, memory used again.

    with dnn.Handle() as handle:
        network = Network(handle, "model.onnx", batch=8, dtype="float16", layout="NHWC")  # closed with the handle
        results = network(image=images)  # NumPy in, NumPy out, by the model's own names

To be imported, as `serve_resnet50.py` does.  The table at the end says which call each ONNX operation is; a node of another
kind is named before anything runs.  What convolutions and recurrent layers ask of cuDNN, `dnn.problems_from_onnx` reads.
"""

from contextlib import ExitStack
from copy import deepcopy
from functools import partial
from math import prod
from types import SimpleNamespace

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

import cudnnlite as dnn


class UnsupportedNodeError(NotImplementedError):
    """A node that this program, or cuDNN, has not."""


class Node:
    """A node of a model, with its attributes as its own: as given, else as ONNX says, else None."""

    def __init__(self, proto, opset):
        usual = onnx.defs.get_schema(proto.op_type, opset).attributes if onnx.defs.has(proto.op_type, opset) else {}
        given = [*(one.default_value for one in usual.values() if one.default_value.name), *proto.attribute]
        vars(self).update((one.name, onnx.helper.get_attribute_value(one)) for one in given)
        self.kind, self.inputs, self.outputs = proto.op_type, [*proto.input], [*proto.output]
        self.label = proto.name or next(filter(None, proto.output))

    def __getattr__(self, name):
        return None

    def require(self, condition, why):
        if not condition:
            raise UnsupportedNodeError(f"{self.kind} {self.label!r}: {why}")


class Network(ExitStack):
    """A model on a handle, for one shape of its inputs; `close()`, or that of the handle, gives its plans and memory back.

    `run()` enqueues all of it, and can be captured into a CUDA graph.  `inputs` and `outputs` are its device arrays, `steps`
    its calls, each with what it has to compute and to move, `places` the memory of its results: from which node to which.
    `model`, a path or a ModelProto, is of one data type; `batch` is what symbolic sizes of its inputs are.  `dtype`, `layout`
    and `math_type` are those of all arrays, of images, of all products.  With channels last, images of fewer than `channels`
    are filled up with zeros in front of a convolution: 3 to 4 pays.
    """

    def __init__(
        self, handle, model, *, batch=1, dtype="float32", layout="NCHW", math_type=dnn.MathType.DEFAULT, channels=1
    ):  # fmt: skip
        super().__init__()
        self.handle, self.dtype, self.math_type, self.channels = handle, np.dtype(dtype), math_type, channels
        self.layouts = {4: "NHWC", 5: "NDHWC"} if layout == "NHWC" else {}  # by the number of axes, if not C order
        self.steps, self.places, self.wholes, self.fused, self.now = [], [], {}, set(), 0
        nodes, given, results = self._read(model, batch)
        readers = {name: [one for one in nodes for it in one.inputs if it == name] for name in self.shapes}
        self.follower = {name: one[0] for name, one in readers.items() if len(one) == 1 and name not in results}
        self.needed = {name: index for index, node in enumerate(nodes) for name in node.inputs}  # until which node
        self.needed |= {name: len(nodes) for name in results}
        self.inputs = {name: self.empty(self.shapes[name]) for name in given}
        self.values = self.constants | self.inputs
        for self.now, node in enumerate(nodes):
            if node not in self.fused:
                made = OPERATIONS[node.kind](self, node, *(self.values[name] for name in node.inputs))
                for name, array in zip(node.outputs, made if isinstance(made, tuple) else [made], strict=False):
                    if name:
                        self.values[name] = self.shaped(array, self.shapes[name])
                        self.keep(self.values[name], name)
        self.outputs = {name: self.shaped(self.values[name], self.shapes[name]) for name in results}

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
        """Return a model's nodes that are not constant, the names of its inputs and outputs; name what is missing here."""
        proto = deepcopy(model) if isinstance(model, onnx.ModelProto) else onnx.load(model)
        for size in (size for info in proto.graph.input for size in info.type.tensor_type.shape.dim):
            size.dim_value = size.dim_value or batch
        proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
        graph, (self.opset,) = proto.graph, (one.version for one in proto.opset_import if one.domain in ("", "ai.onnx"))
        self.constants = {"": None} | {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
        typed = [(info.name, info.type.tensor_type) for info in (*graph.input, *graph.value_info, *graph.output)]
        self.shapes = {name: tuple(size.dim_value for size in kind.shape.dim) for name, kind in typed}
        nodes = []
        for one in graph.node:
            known = {name: self.constants[name] for name in one.input if name in self.constants}
            if one.op_type == "Shape":
                known = {name: np.broadcast_to(np.float32(), self.shapes[name]) for name in one.input}
            if known.keys() < {*one.input}:
                nodes.append(Node(one, self.opset))
            else:  # computed here and now, of whatever kind
                found = ReferenceEvaluator(one).run(None, {name: known[name] for name in known if name})
                self.constants.update(zip(one.output, found, strict=True))
            one.ClearField("name")  # which may be absent, or that of others: problems are found by their results
        problems = dnn.problems_from_onnx(proto, dtype=self.dtype.name)
        self.problems = {name: listed.problem for listed in problems for name in listed.names}
        missing = [f"{node.kind} {node.label!r}" for node in nodes if node.kind not in OPERATIONS]
        if missing := missing or [*map(str, problems.skipped)]:
            raise UnsupportedNodeError(f"this program has not: {', '.join(missing)}")
        for node in nodes:
            computed = [name for name in (*node.inputs, *node.outputs) if name not in self.constants]
            shapes = [self.shapes.get(name, ()) for name in computed]
            node.require(all(len(one) > 1 and all(one) for one in shapes), f"shapes {shapes}: unknown, or of one axis")
            for name in {*node.inputs[1:]} & {*computed} if node.kind not in OF_SEVERAL else ():
                node.require(False, f"its input {name!r} is not constant")
        given = [info.name for info in graph.input if info.name not in self.constants]
        return nodes, given, [info.name for info in graph.output]

    # Calls: they read some arrays and write others.

    def step(self, node, run, reads, writes, flops=0):
        """Add a call."""
        about = {"name": node.label, "kind": node.kind, "elements": sum(one.size for one in (*reads, *writes))}
        self.steps.append(SimpleNamespace(run=run, reads=reads, writes=writes, flops=flops, **about))

    def call(self, node, function, reads, *options, y=None, flops=0, **named):
        """Add a call of a function of cudnnlite, planned, and return its result: like the first array, if none is given."""
        reads = [self.ordered(one) for one in reads]
        y = self.new(reads[0].shape) if y is None else y
        try:
            plan = dnn.plan_operation(self.handle, function, *reads, *options, out=y, **named)
        except dnn.NotSupportedError:  # cuDNN does not write every array that has gaps
            y = self.new(y.shape)
            plan = dnn.plan_operation(self.handle, function, *reads, *options, out=y, **named)
        reads += [one for one in named.values() if isinstance(one, dnn.DeviceArray)]
        self.step(node, partial(self.enter_context(plan), *reads, out=y), reads, [y], flops)
        return y

    def copied(self, array, new):
        """Add a copy, from any strides to any strides."""
        call = partial(dnn.transform_tensor, self.handle, array, out=new)
        self.step(SimpleNamespace(label="copy", kind="Copy"), call, [array], [new])
        return new

    # Memory: each result has a place, and takes one that nothing needs any more.

    def empty(self, shape):
        """Return an array in memory of its own."""
        return self.enter_context(self.handle.empty(shape, self.dtype.name, self.layouts.get(len(shape))))

    def new(self, shape, layout=None):
        """Return an array for a result, in the smallest memory that is large enough and free, or in fresh memory."""
        size, taken = prod(shape), {place.memory.ptr for place in self.places if place.until >= self.now}
        free = [one.memory for one in self.places if one.memory.ptr not in taken and one.memory.size >= size]
        memory = min(free, key=lambda one: one.size) if free else self.empty((1, size))
        self.places.append(SimpleNamespace(memory=memory, size=size, begin=self.now, until=self.now))
        return view(memory, dnn.TensorSpec(shape, self.dtype.name, layout or self.layouts.get(len(shape))))

    def keep(self, array, name):
        """Keep the place of an array as long as a name is read."""
        for place in self.places:
            if place.until >= self.now and 0 <= array.ptr - place.memory.ptr < place.memory.nbytes:
                place.until = max(place.until, self.needed.get(name, 0))

    def room(self, name):
        """Return an array for a result of that name: its part of the Concat that alone reads it, with gaps, or a new one."""
        after = self.follower.get(name)
        is_part = after is not None and after.kind == "Concat"
        return self.part(after, after.inputs.index(name)) if is_part else self.new(self.shapes[name])

    def part(self, concat, index):
        """Return the part of a Concat's result that one of its inputs makes."""
        (name,) = concat.outputs
        if name not in self.wholes:
            self.wholes[name] = self.room(name)
            self.keep(self.wholes[name], name)
        axis = concat.axis % self.wholes[name].ndim
        ends = np.cumsum([0, *(self.shapes[one][axis] for one in concat.inputs)])
        return self.wholes[name][(*[slice(None)] * axis, slice(int(ends[index]), int(ends[index + 1])))]

    # Arrays in another way.

    def constant(self, array, dtype=None):
        """Return a copy on the device."""
        array = np.array(array, dtype or self.dtype, ndmin=2)
        return self.handle.array(array, layout=self.layouts.get(array.ndim))

    def shaped(self, array, shape):
        """Return an array, or a constant, under a shape: in the same memory, or if that cannot be a copy in C order."""
        if isinstance(array, np.ndarray):
            return self.constant(array.reshape(shape))
        try:
            return array if array.shape == (*shape,) else array.reshape(shape)
        except dnn.ArgumentError:
            return self.copied(array, self.new(array.shape, {4: "NCHW", 5: "NCDHW"}.get(array.ndim))).reshape(shape)

    def ordered(self, array):
        """Return an array without gaps, in the network's layout; a copy if it lies in another way."""
        spec = dnn.TensorSpec(array.shape, array.spec.dtype, self.layouts.get(array.ndim))
        if all(a == b for size, a, b in zip(array.shape, array.strides, spec.strides, strict=True) if size > 1):
            return view(array, spec)
        return self.copied(array, self.new(array.shape))


def view(array, spec):
    """Return an array's memory as a spec describes it."""
    return dnn.DeviceArray(spec, array.device, array.ptr, array, array.stream)


def spread(array, shape):
    """Return the shape of an array with ones in front, to as many axes as another has."""
    return (1,) * (len(shape) - array.ndim) + array.shape


def convolve(net, node, x, w, bias, conv):
    """Add a convolution, and what follows if it fits into it: normalisation, bias, addition of another array, relu."""
    x, shape, result, how = net.ordered(x), conv.output_shape(x.shape, w.shape), net.shapes[node.outputs[0]], {}
    axis = 1 if result == shape else len(result) - 1  # of the channels; a product of matrices has them last
    per_channel = tuple(size if index == axis else 1 for index, size in enumerate(result))
    bias, function, activation = np.zeros(len(w)) if bias is None else bias, dnn.convolution_forward, "identity"
    while activation == "identity" and (after := net.follower.get(node.outputs[0])):
        other = next((net.values.get(one) for one in after.inputs if one not in node.outputs), None)
        if after.kind == "BatchNormalization" and not how and axis == 1:
            moments = [net.constants[one].astype(np.float64) for one in after.inputs[1:]]
            w, bias = dnn.fold_batch_normalization(w.astype(np.float64), bias, *moments, after.epsilon)
        elif after.kind == "Add" and isinstance(other, np.ndarray) and spread(other, result) == per_channel:
            bias = bias + other.ravel()
        elif after.kind == "Add" and isinstance(other, dnn.DeviceArray) and not how and other.shape == result:
            how = {"z": net.ordered(net.shaped(other, shape))}
        elif after.kind == "Relu":
            activation = "relu"
        else:
            break
        net.fused.add(after)
        node.outputs = after.outputs
    reads, bias = [x, net.constant(w)], net.constant(bias.reshape(1, -1, *[1] * (w.ndim - 2)))
    y = net.new(shape) if how or result != shape else net.room(node.outputs[0])
    flops = 2 * prod(shape) * prod(w.shape[1:])
    if how or activation == "relu":
        function = dnn.convolution_bias_activation_forward
        return net.call(node, function, [*reads, bias], conv, activation, y=y, flops=flops, **how)
    return net.call(node, dnn.convolution_forward, reads, conv, y=y, flops=flops, bias=bias)


def convolution(net, node, x, w, bias=None):
    """Conv; with few channels, zeros are added: loads of four halves are faster than of three."""
    conv, lacking = net.problems[node.outputs[0]].conv.replace(math_type=net.math_type), net.channels - x.shape[1]
    if x.ndim in net.layouts and conv.groups == 1 and lacking > 0:
        wide = net.empty((x.shape[0], net.channels, *x.shape[2:]))
        wide.fill(0)
        net.copied(x, wide[:, : x.shape[1]])
        x, w = wide, np.pad(w, [(0, lacking if axis == 1 else 0) for axis in range(w.ndim)])
    return convolve(net, node, x, w, bias, conv)


def transposed(net, node, x, w, bias=None):
    """ConvTranspose: the gradient of a convolution with respect to its input."""
    conv, y = net.problems[node.outputs[0]].conv.replace(math_type=net.math_type), net.new(net.shapes[node.outputs[0]])
    how = {"x": y.spec, "y": y, "flops": 2 * x.size * prod(w.shape[1:])}
    y = net.call(node, dnn.convolution_backward_data, [net.constant(w), x], conv, **how)
    if bias is None:
        return y
    return net.call(node, dnn.op_tensor, [y, net.constant(bias.reshape(1, -1, *[1] * (x.ndim - 2)))], "add")


def product(net, node, x, matrix, bias=None):
    """Gemm, MatMul, by a matrix that is constant: a convolution of images of one pixel."""
    node.require(matrix.ndim == 2 and not node.transA, "transA, or a second factor that is no matrix")
    matrix = (matrix.T if node.transB else matrix) * (1.0 if node.alpha is None else node.alpha)
    if bias is not None:
        node.require(bias.size in (1, *bias.shape[-1:]), f"its C has shape {bias.shape}")
        bias = np.broadcast_to(bias.ravel(), matrix.shape[1]) * node.beta
    x = net.shaped(x, (x.size // len(matrix), len(matrix), 1, 1))
    return convolve(net, node, x, matrix.T[:, :, None, None], bias, dnn.ConvolutionSpec(math_type=net.math_type))


def activation(net, node, x, low=None, high=None):
    """Relu, Sigmoid, Tanh, Elu, and Clip from 0."""
    low, high = (given if one is None else one for one, given in ((low, node.min), (high, node.max)))
    spec = (
        dnn.ActivationSpec("clipped_relu", float(high or 0))
        if node.kind == "Clip"
        else dnn.ActivationSpec(node.kind.lower(), node.alpha)
    )
    node.require(
        node.kind != "Clip" or (low == 0 and high is not None), f"limits {low} and {high}; cuDNN has 0 and a number"
    )
    return net.call(node, dnn.activation_forward, [x], spec)


def lrn(net, node, x):
    """LRN."""
    spec = dnn.LRNSpec(node.size, alpha=node.alpha, beta=node.beta, k=node.bias)
    return net.call(node, dnn.lrn_forward, [x], spec)


def softmax(net, node, x):
    """Softmax, LogSoftmax: over the channels of an array that is folded to that end."""
    axis = node.axis % x.ndim
    node.require(net.opset >= 13 or axis == x.ndim - 1, f"axis {axis} in operator set {net.opset}")
    x = net.shaped(x, (prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :])))
    return net.call(node, dnn.softmax_forward, [x], algorithm="log" if node.kind == "LogSoftmax" else "accurate")


def batch_normalization(net, node, x, *moments):
    """BatchNormalization that no convolution took in."""
    x = net.shaped(x, (*x.shape, 1, 1)) if x.ndim == 2 else x  # a matrix is images of a pixel
    shape, dtype = (1, -1, *[1] * (x.ndim - 2)), np.float64 if net.dtype == np.float64 else np.float32
    moments = [net.constant(one.reshape(shape), dtype) for one in moments]
    return net.call(node, dnn.batch_normalization_inference, [x, *moments], epsilon=node.epsilon)


def pool(net, node, x):
    """MaxPool, AveragePool, GlobalMaxPool, GlobalAveragePool."""
    taps = node.kernel_shape or x.shape[2:]
    steps, pads = node.strides or [1] * len(taps), (node.pads or [0] * len(taps))[: len(taps)]
    axes = [*zip(x.shape[2:], net.shapes[node.outputs[0]][2:], taps, steps, strict=True)]
    if node.auto_pad in (b"SAME_UPPER", b"SAME_LOWER"):  # shared between both sides; LOWER has the odd one in front
        total = [max(0, (out - 1) * step + tap - size) for size, out, tap, step in axes]
        pads = [(one + (node.auto_pad == b"SAME_LOWER")) // 2 for one in total]
    # padding behind as in front does no harm if no further window fits
    alike = all((a + 2 * p - t) // s + 1 == b for p, (a, b, t, s) in zip(pads, axes, strict=True))
    plain = {*(node.dilations or [1])} == {1} and not node.ceil_mode and len(node.outputs) == 1
    node.require(alike and plain, "unequal padding, dilations, ceil_mode or indices")
    average = f"average_count_{'include' if node.count_include_pad else 'exclude'}_padding"
    pooling = dnn.PoolingSpec(taps, pads, steps, mode="max" if "Max" in node.kind else average)
    return net.call(node, dnn.pooling_forward, [x], pooling, y=net.room(node.outputs[0]))


def reduce(net, node, x, axes=None):
    """ReduceMean, ReduceSum, ReduceMax, ReduceMin."""
    given = node.axes if axes is None else axes
    axes = {int(axis) % x.ndim for axis in (range(x.ndim) if given is None else given)}
    node.require(any(x.shape[axis] > 1 for axis in axes), "there is nothing to reduce")
    y = net.new([1 if axis in axes else size for axis, size in enumerate(x.shape)])
    op = {"ReduceMean": "avg", "ReduceSum": "add", "ReduceMax": "max", "ReduceMin": "min"}[node.kind]
    return net.call(node, dnn.reduce_tensor, [x], op, y=y)


def binary(net, node, *operands):
    """Add, Sub, Mul, Min, Max: of two arrays, the smaller of which is repeated."""
    node.require(len(operands) == 2, f"it has {len(operands)} inputs")
    op, second = ("add", -1.0) if node.kind == "Sub" else (node.kind.lower(), 1.0)
    shape, scaled = net.shapes[node.outputs[0]], zip(operands, (1.0, second), strict=True)
    (large, scale), (small, other) = sorted(scaled, key=lambda one: one[0].shape != shape)
    thin = spread(small, shape)
    node.require(large.shape == shape and len(shape) <= 5, f"operands of shapes {large.shape} and {thin}")
    # cuDNN repeats along all other axes than one; where small has the first ones, they are folded into one
    rows = next((axis for axis in range(len(shape), 0, -1) if thin[axis - 1] != 1), 0)
    if 1 < rows < len(shape) and thin[:rows] == shape[:rows]:
        shape, thin = (1, prod(shape[:rows]), prod(shape[rows:])), (1, prod(shape[:rows]), 1)
    both = [net.shaped(large, shape), net.shaped(small, thin)]
    return net.call(node, dnn.op_tensor, both, op, alpha1=scale, alpha2=other)


def same(net, node, x, *_):
    """Reshape, Flatten, Squeeze, Unsqueeze, Identity, Dropout: the same memory, in C order where its shape is another."""
    return x


def transpose(net, node, x):
    """Transpose: a copy from a view with its axes in another order."""
    order = node.perm or [*reversed(range(x.ndim))]
    node.require(len(order) <= 5, "more than five axes")
    shape, strides = ([sizes[axis] for axis in order] for sizes in (x.shape, x.strides))
    return net.ordered(view(x, dnn.TensorSpec(shape, x.spec.dtype, strides=strides)))


def concat(net, node, *arrays):
    """Concat: what was not written into its part is copied there."""
    for index, array in enumerate(arrays):
        part = net.part(node, index)
        if getattr(array, "ptr", None) != part.ptr:
            net.copied(net.shaped(array, part.shape), part)
    return net.wholes[node.outputs[0]]


def recurrent(net, node, x, w, r, bias=None, lengths=None, *states):
    """LSTM, GRU, RNN; the lengths are in the problem."""
    node.require(node.direction != b"reverse" and not node.layout, "direction=reverse or layout=1")
    fixed = not any(isinstance(one, dnn.DeviceArray) for one in (w, r, bias, lengths))
    node.require(fixed, "its weights, or its lengths, are not constant")
    problem, (steps, batch, _) = net.problems[next(filter(None, node.outputs))], x.shape
    spec = problem.spec.replace(math_type=net.math_type)
    weights = dnn.RNNWeights.from_onnx(net.handle, spec, w, r, bias)
    directions, _, hidden = shape = spec.hidden_shape(batch)
    reads = [one if one is None else net.ordered(net.shaped(one, one.shape)) for one in (x, *states[:2])]
    y, *last = map(net.new, [(steps, batch, directions * hidden), *[shape] * (2 if node.kind == "LSTM" else 1)])
    run = partial(dnn.rnn_forward, net.handle, spec, weights, *reads, lengths=problem.data.lengths, out=(y, *last))
    flops = 2 * steps * batch * (w.size + r.size)
    net.step(node, run, [one for one in reads if one is not None], [y, *last], flops)
    apart = batch * directions * hidden, hidden, directions * hidden, 1  # ONNX has the directions before the batch
    return view(y, dnn.TensorSpec((steps, directions, batch, hidden), y.spec.dtype, strides=apart)), *last


OF_SEVERAL = {  # whose further inputs may be computed too
    **dict.fromkeys(("Add", "Sub", "Mul", "Min", "Max"), binary),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), recurrent),
    "Concat": concat,
}
OPERATIONS = OF_SEVERAL | {
    "Conv": convolution, "ConvTranspose": transposed, "Gemm": product, "MatMul": product,
    "BatchNormalization": batch_normalization, "LRN": lrn, "Softmax": softmax, "LogSoftmax": softmax,
    **dict.fromkeys(("Relu", "Sigmoid", "Tanh", "Elu", "Clip"), activation),
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"), pool),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"), reduce),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"), same), "Transpose": transpose,
}  # fmt: skip
