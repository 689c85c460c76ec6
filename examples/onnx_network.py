"""An ONNX model run through cudnnlite: `Network(handle, "model.onnx", batch=8)(image=images)`, NumPy in and NumPy out.

Normalisations are folded, convolutions fused, memory is used again.  The table at the end says what runs which operation.
"""

from contextlib import ExitStack
from functools import partial
from math import prod
from types import SimpleNamespace

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

import cudnnlite as dnn


class UnsupportedNodeError(NotImplementedError):
    """A node that this program, or cuDNN, has not; raised before anything runs."""


def require(node, condition, why):
    if not condition:
        raise UnsupportedNodeError(f"{node.op_type} {node.name!r}: {why}")


class Network(ExitStack):
    """A model (a path, a ModelProto) on a handle, for one shape of its inputs; `run()` enqueues it all, and can be captured.

    `batch` is what sizes are that it leaves open.  Images of fewer than `channels` are filled up with zeros: 3 to 4 pays.
    """

    def __init__(self, handle, model, *, batch=1, dtype="float32", layout="NCHW", math_type="default", channels=1):
        super().__init__()
        self.handle, self.dtype, self.math_type, self.channels = handle, np.dtype(dtype), math_type, channels
        self.layouts = {4: "NHWC", 5: "NDHWC"} if layout == "NHWC" else {}  # by the number of axes, if not C order
        self.steps, self.places, self.wholes, self.how, self.now = [], [], {}, {}, 0
        proto = onnx.shape_inference.infer_shapes(model) if isinstance(model, onnx.ModelProto) else onnx.load(model)
        for size in (size for info in proto.graph.input for size in info.type.tensor_type.shape.dim):
            size.dim_value = size.dim_value or batch
        proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
        graph, (self.opset,) = proto.graph, (one.version for one in proto.opset_import if one.domain in ("", "ai.onnx"))
        typed = [(info.name, info.type.tensor_type) for info in (*graph.input, *graph.value_info, *graph.output)]
        self.shapes = {name: tuple(size.dim_value for size in kind.shape.dim) for name, kind in typed}
        self.values, nodes = {"": None} | {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}, []
        for node in graph.node:
            node.name = next(filter(None, node.output))  # names may be absent, or those of others
            self.how[node.name] = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
            if node.op_type == "Shape" or self.values.keys() >= {*node.input}:  # computed here, of whatever kind
                zeros = {it: np.broadcast_to(0, self.shapes.get(it, ())) for it in node.input if it not in self.values}
                found = ReferenceEvaluator(node).run(None, self.values | zeros)
                self.values.update(zip(node.output, found, strict=True))
            else:
                nodes.append(node)
        problems = dnn.problems_from_onnx(proto, dtype=self.dtype.name)  # of convolutions and recurrent layers
        self.problems = {name: listed.problem for listed in problems for name in listed.names}
        missing = [f"{node.op_type} {node.name!r}" for node in nodes if node.op_type not in OPERATIONS]
        if missing := missing or [*map(str, problems.skipped)]:
            raise UnsupportedNodeError(f"this program has not: {', '.join(missing)}")
        results = [info.name for info in graph.output]
        readers = {name: [one for one in nodes for it in one.input if it == name] for name in self.shapes}
        self.follower = {name: one[0] for name, one in readers.items() if len(one) == 1 and name not in results}
        self.last = {it: at for at, node in enumerate(nodes) for it in node.input} | dict.fromkeys(results, len(nodes))
        self.inputs = {it.name: self.empty(self.shapes[it.name]) for it in graph.input if it.name not in self.values}
        constants, self.values = {*self.values}, self.values | self.inputs
        for self.now, node in enumerate(nodes):
            shapes = [self.shapes.get(name, ()) for name in (*node.input, *node.output) if name not in constants]
            require(node, all(len(one) > 1 and all(one) for one in shapes), f"shapes {shapes}: unknown, or of one axis")
            for name in node.input[1 : COMPUTED.get(OPERATIONS[node.op_type])]:
                require(node, name in constants, f"its input {name!r} is not constant")
            made = OPERATIONS[node.op_type](self, node, *map(self.values.get, node.input), **self.how[node.name])
            for name, array in zip(node.output, made if isinstance(made, tuple) else [made], strict=False):
                if name:
                    self.values[name] = self.shaped(array, self.shapes[name])
                    self.keep(self.values[name], name)
        self.outputs = {name: self.shaped(self.values[name], self.shapes[name]) for name in results}

    def run(self):
        for step in self.steps:
            step.run()

    def __call__(self, **arrays):
        for name, array in arrays.items():
            self.inputs[name].copy_from(np.asarray(array, self.dtype))
        self.run()
        return {name: array.numpy() for name, array in self.outputs.items()}

    def view(self, array, spec):
        return dnn.DeviceArray(spec, array.device, array.ptr, array, array.stream)

    def empty(self, shape):
        return self.enter_context(self.handle.empty(shape, self.dtype.name, self.layouts.get(len(shape))))

    def new(self, shape, layouts=None, name=None):
        """Return an array for a result, in the smallest memory that is large enough and needed no more, or in fresh memory."""
        size, taken = prod(shape), {place.memory.ptr for place in self.places if place.until >= self.now}
        free = [one.memory for one in self.places if one.memory.ptr not in taken and one.memory.size >= size]
        memory = min(free, key=lambda one: one.size) if free else self.empty((1, size))
        until = self.last.get(name, self.now)
        self.places.append(SimpleNamespace(memory=memory, size=size, begin=self.now, until=until))
        return self.view(memory, dnn.TensorSpec(shape, self.dtype.name, (layouts or self.layouts).get(len(shape))))

    def keep(self, array, name):
        """Keep the place of an array as long as a name is read."""
        for place in self.places:
            if place.until >= self.now and 0 <= array.ptr - place.memory.ptr < place.memory.nbytes:
                place.until = max(place.until, self.last.get(name, 0))

    def room(self, name):
        """Return an array for a result of that name: its part of the Concat that alone reads it, with gaps, or a new one."""
        after = self.follower.get(name)
        is_part = after is not None and after.op_type == "Concat"
        return self.part(after, [*after.input].index(name)) if is_part else self.new(self.shapes[name], name=name)

    def part(self, concat, index):
        """Return the part of a Concat's result that one of its inputs makes."""
        if concat.name not in self.wholes:
            self.wholes[concat.name] = self.room(concat.name)
        axis = self.how[concat.name]["axis"] % len(self.shapes[concat.name])
        ends = np.cumsum([0, *(self.shapes[one][axis] for one in concat.input)]).tolist()
        return self.wholes[concat.name][(*[slice(None)] * axis, slice(ends[index], ends[index + 1]))]

    def constant(self, array, dtype=None):
        return self.handle.array(np.array(array, dtype or self.dtype, ndmin=2), layout=self.layouts.get(array.ndim))

    def ordered(self, array, layouts=None):
        """Return an array without gaps, in the network's layout, or in another; a copy if it lies in another way."""
        spec = dnn.TensorSpec(array.shape, array.spec.dtype, (layouts or self.layouts).get(array.ndim))
        if all(a == b for size, a, b in zip(array.shape, array.strides, spec.strides, strict=True) if size > 1):
            return self.view(array, spec)
        return self.copied(array, self.new(array.shape, layouts))

    def shaped(self, array, shape):
        """Return an array, or a constant, under a shape: for another than its own it has to lie in C order."""
        if isinstance(array, np.ndarray):
            return self.constant(array.reshape(shape))
        return array if array.shape == (*shape,) else self.ordered(array, {4: "NCHW", 5: "NCDHW"}).reshape(shape)

    def copied(self, array, new):
        run = partial(dnn.transform_tensor, self.handle, array, out=new)
        return self.step(SimpleNamespace(name="copy", op_type="Copy"), run, [array], [new])

    def step(self, node, run, reads, writes, flops=0):
        about = {"name": node.name, "kind": node.op_type, "elements": sum(one.size for one in (*reads, *writes))}
        self.steps.append(SimpleNamespace(run=run, reads=reads, writes=writes, flops=flops, **about))
        return writes[0]

    def call(self, node, function, reads, *options, y=None, **named):
        """Plan a call of a function of cudnnlite, and return its result: like the first array, if none is given."""
        reads = [self.ordered(one) for one in reads]
        y = self.new(reads[0].shape) if y is None else y
        make = partial(function.plan, self.handle, *reads, *options, **named)
        try:
            plan = make(out=y)
        except dnn.NotSupportedError:  # cuDNN does not write every array that has gaps
            plan = make(out=(y := self.new(y.shape)))
        reads += [one for one in named.values() if isinstance(one, dnn.DeviceArray)]
        return self.step(node, partial(self.enter_context(plan), *reads, out=y), reads, [y], plan.problem.flops)

    def convolve(self, node, x, w, bias, conv):
        """Add a convolution, and what follows if it fits into it: normalisation, bias, addition of another array, relu."""
        name, shape, result, how = node.name, conv.output_shape(x.shape, w.shape), self.shapes[node.name], {}
        bias, channels = np.zeros(len(w)) if bias is None else bias, [1] * len(result)
        channels[1 if result == shape else -1] = len(w)  # a product of matrices has them last
        while how.get("activation") != "relu" and (after := self.follower.get(name)):
            kind, z = after.op_type, next((self.values.get(one) for one in after.input if one != name), None)
            if kind == "BatchNormalization" and not how and channels[1] == len(w):
                moments, epsilon = map(self.values.get, after.input[1:]), self.how[after.name].get("epsilon", 1e-5)
                w, bias = dnn.fold_batch_normalization(w, bias, *moments, epsilon)
            elif kind == "Add" and isinstance(z, np.ndarray) and (*channels,) == np.broadcast_shapes(z.shape, channels):
                bias = bias.ravel() + z.ravel()
            elif kind == "Add" and isinstance(z, dnn.DeviceArray) and not how and z.shape == result:
                how = {"activation": "identity", "z": self.ordered(self.shaped(z, shape))}
            elif kind != "Relu":
                break
            how |= {"activation": "relu"} if kind == "Relu" else {}
            after.op_type, after.input[:] = "Identity", [name]  # is done
            name = after.output[0]
        bias = self.constant(bias.reshape(1, -1, *[1] * (w.ndim - 2)))
        y = self.new(shape) if "z" in how or result != shape else self.room(name)
        if y.ptr % 16:  # a part of a Concat; engines write aligned memory alone
            y = self.new(shape)
        function = dnn.convolution_bias_activation_forward if how else dnn.convolution_forward
        return self.call(node, function, [x, self.constant(w)], y=y, bias=bias, conv=conv, **how)

    def convolution(self, node, x, w, bias=None, **_):
        conv, lacking = self.problems[node.name].conv.replace(math_type=self.math_type), self.channels - x.shape[1]
        if x.ndim in self.layouts and conv.groups == 1 and lacking > 0:
            wide = self.empty((x.shape[0], self.channels, *x.shape[2:]))
            wide.fill(0)
            self.copied(x, wide[:, : x.shape[1]])
            x, w = wide, np.pad(w, [(0, lacking if axis == 1 else 0) for axis in range(w.ndim)])
        return self.convolve(node, x, w, bias, conv)

    def transposed(self, node, x, w, bias=None, **_):
        conv, y = self.problems[node.name].conv.replace(math_type=self.math_type), self.new(self.shapes[node.name])
        y = self.call(node, dnn.convolution_backward_data, [self.constant(w), x], conv, x=y.spec, y=y)
        bias = None if bias is None else self.shaped(bias, (1, -1, *[1] * (x.ndim - 2)))
        return y if bias is None else self.call(node, dnn.op_tensor, [y, bias], "add")

    def product(self, node, x, matrix, bias=None, *, alpha=1.0, beta=1.0, transA=0, transB=0):
        require(node, matrix.ndim == 2 and not transA, "transA, or a second factor that is no matrix")
        require(node, bias is None or bias.size in (1, *bias.shape[-1:]), "its C is not one row")
        w = (matrix if transB else matrix.T)[:, :, None, None] * alpha
        bias = np.broadcast_to(0 if bias is None else bias.ravel() * beta, len(w))
        x, conv = self.shaped(x, (-1, *w.shape[1:])), dnn.ConvolutionSpec(math_type=self.math_type)
        return self.convolve(node, x, w, bias, conv)

    def activation(self, node, x, low=None, high=None, *, alpha=None, **given):
        mode, low, high = node.op_type.lower(), given.get("min", low), given.get("max", high)
        if mode == "clip":
            require(node, low == 0 and high is not None, f"limits {low} and {high}; cuDNN has 0 and a number")
            mode, alpha = "clipped_relu", float(high)
        return self.call(node, dnn.activation_forward, [x], dnn.ActivationSpec(mode, alpha))

    def lrn(self, node, x, *, size, alpha=1e-4, beta=0.75, bias=1.0):
        return self.call(node, dnn.lrn_forward, [x], dnn.LRNSpec(size, alpha=alpha, beta=beta, k=bias))

    def softmax(self, node, x, *, axis=None):
        axis = ((-1 if self.opset >= 13 else 1) if axis is None else axis) % x.ndim
        end, how = axis + 1 if self.opset >= 13 else x.ndim, "log" if node.op_type == "LogSoftmax" else "accurate"
        x = self.shaped(x, [prod(x.shape[part]) for part in (slice(axis), slice(axis, end), slice(end, None))])
        return self.call(node, dnn.softmax_forward, [x], algorithm=how)

    def batch_normalization(self, node, x, *moments, epsilon=1e-5, **_):
        x, dtype = self.shaped(x, (*x.shape, 1, 1)[: max(4, x.ndim)]), max(self.dtype, np.dtype(np.float32))
        moments = [self.constant(one.reshape(1, -1, *[1] * (x.ndim - 2)), dtype) for one in moments]
        return self.call(node, dnn.batch_normalization_inference, [x, *moments], epsilon=epsilon)

    def pool(self, node, x, *, kernel_shape=None, strides=None, pads=None, auto_pad=b"", count_include_pad=0, **others):
        taps = kernel_shape or x.shape[2:]
        axes = zip(x.shape[2:], self.shapes[node.name][2:], taps, strides or [1] * len(taps), strict=True)
        lacking = [(auto_pad[:4] == b"SAME") * max(0, (out - 1) * step + tap - size) for size, out, tap, step in axes]
        pads = pads[: len(taps)] if pads else [(one + auto_pad.endswith(b"LOWER")) // 2 for one in lacking]
        mode = "max" if "Max" in node.op_type else f"average_count_{'in' if count_include_pad else 'ex'}clude_padding"
        pooling = dnn.PoolingSpec(taps, pads, strides or 1, mode=mode)
        require(node, pooling.output_spec(x.spec).shape == self.shapes[node.name], "unequal padding, or ceil_mode")
        require(node, {*others.get("dilations", [1]), len(node.output)} == {1}, "dilations, or indices")
        return self.call(node, dnn.pooling_forward, [x], pooling, y=self.room(node.name))

    def reduce(self, node, x, given=None, *, axes=None, **_):
        axes = next((one for one in (axes, given) if one is not None), range(x.ndim))
        shape = [1 if axis in axes or axis - x.ndim in axes else size for axis, size in enumerate(x.shape)]
        require(node, (*shape,) != x.shape, "there is nothing to reduce")
        op = {"ReduceMean": "avg", "ReduceSum": "add", "ReduceMax": "max", "ReduceMin": "min"}[node.op_type]
        return self.call(node, dnn.reduce_tensor, [x], op, y=self.new(shape))

    def binary(self, node, *operands):
        require(node, len(operands) == 2, f"it has {len(operands)} inputs")
        op, second = ("add", -1.0) if node.op_type == "Sub" else (node.op_type.lower(), 1.0)
        shape, scaled = self.shapes[node.name], zip(operands, (1.0, second), strict=True)
        (large, scale), (small, other) = sorted(scaled, key=lambda one: one[0].shape != shape)
        thin = (1,) * (len(shape) - small.ndim) + small.shape
        require(node, large.shape == shape and len(shape) <= 5, f"operands of shapes {large.shape} and {thin}")
        rows = next((axis for axis in range(len(shape), 0, -1) if thin[axis - 1] != 1), 0)
        if 1 < rows < len(shape) and thin[:rows] == shape[:rows]:
            shape, thin = (1, prod(shape[:rows]), prod(shape[rows:])), (1, prod(shape[:rows]), 1)
        both = [self.shaped(large, shape), self.shaped(small, thin)]
        return self.call(node, dnn.op_tensor, both, op, alpha1=scale, alpha2=other)

    def moved(self, node, x, *_, perm=None, **__):
        if node.op_type != "Transpose":
            return x
        require(node, x.ndim <= 5, "more than five axes")
        shape, strides = ([sizes[axis] for axis in perm or range(x.ndim)[::-1]] for sizes in (x.shape, x.strides))
        return self.ordered(self.view(x, dnn.TensorSpec(shape, x.spec.dtype, strides=strides)))

    def concat(self, node, *arrays, axis):
        for index, array in enumerate(arrays):
            part = self.part(node, index)
            if getattr(array, "ptr", None) != part.ptr:
                self.copied(self.shaped(array, part.shape), part)
        return self.wholes[node.name]

    def recurrent(self, node, x, w, r, bias=None, lengths=None, *states, direction=b"forward", layout=0, **_):
        require(node, direction != b"reverse" and not layout, "direction=reverse or layout=1")
        problem, (steps, batch, _) = self.problems[node.name], x.shape  # it has the lengths
        spec = problem.spec.replace(math_type=self.math_type)
        weights = dnn.RNNWeights.from_onnx(self.handle, spec, w, r, bias)
        directions, _, hidden = shape = spec.hidden_shape(batch)
        reads = [one if one is None else self.ordered(self.shaped(one, one.shape)) for one in (x, *states)]
        y, *last = map(self.new, [(steps, batch, directions * hidden), *[shape] * (2 if node.op_type == "LSTM" else 1)])
        run = partial(dnn.rnn_forward, self.handle, spec, weights, *reads, lengths=problem.data.lengths, out=(y, *last))
        self.step(node, run, [one for one in reads if one is not None], [y, *last], problem.flops)
        apart = batch * directions * hidden, hidden, directions * hidden, 1  # ONNX has the directions before the batch
        return self.view(y, dnn.TensorSpec((steps, directions, batch, hidden), y.spec.dtype, strides=apart)), *last


COMPUTED = {Network.binary: 1, Network.concat: 1, Network.recurrent: 5}  # inputs from there on need not be constant
OPERATIONS = {kind: function for function, kinds in {  # of inputs on the device, or NumPy's if they are constant
    Network.convolution: "Conv",  # channels of zeros are added where there are few: four halves load faster than three
    Network.transposed: "ConvTranspose",  # the gradient of a convolution with respect to its input
    Network.product: "Gemm MatMul",  # a convolution of images of one pixel
    Network.activation: "Relu Sigmoid Tanh Elu Clip", Network.lrn: "LRN", Network.recurrent: "LSTM GRU RNN",
    Network.softmax: "Softmax LogSoftmax",  # over the channels of an array that is folded to that end
    Network.batch_normalization: "BatchNormalization",  # what no convolution took in; a matrix is images of a pixel
    Network.pool: "MaxPool AveragePool GlobalMaxPool GlobalAveragePool",  # padded alike on both sides, if no window is won so
    Network.reduce: "ReduceMean ReduceSum ReduceMax ReduceMin",
    Network.binary: "Add Sub Mul Min Max",  # cuDNN repeats an array along all axes but one: several first ones are folded
    Network.moved: "Reshape Flatten Squeeze Unsqueeze Identity Dropout Transpose",  # the same memory, if that goes
    Network.concat: "Concat",  # what was not written into its part is copied there
}.items() for kind in kinds.split()}  # fmt: skip
