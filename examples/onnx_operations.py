"""What `onnx_network` knows of each ONNX operation: a function of the network and the node, which adds steps to it."""

from functools import partial
from math import prod

import numpy as np
from memory_plan import Value, packed

import cudnnlite as dnn


def _bias(net, bias, rank):
    """Return a bias on the device, in a list; none if there is none."""
    return [] if bias is None else [net.constant(bias.reshape(1, -1, *[1] * (rank - 2)))]


def convolve(net, node, x, w, bias, conv, last, shape=None):
    """Add a convolution, and what follows if it fits into it: normalisation, bias, addition of another array, relu."""
    images = conv.output_shape(x.shape, w.shape)
    name, z, relu, shape = node.outputs[0], None, False, shape or images
    channels = 1 if shape == images else len(shape) - 1  # their axis
    while not relu and (after := net.follower(name)):
        other = next((one for one in after.inputs if one != name), None)
        if after.kind == "BatchNormalization" and z is None and channels == 1:
            moments = [net.known(after, index).astype(np.float64) for index in range(1, 5)]
            epsilon = 1e-5 if after.epsilon is None else after.epsilon
            w, bias = dnn.fold_batch_normalization(w.astype(np.float64), bias, *moments, epsilon)
        elif after.kind == "Add" and other in net.constants and _is_bias(net.constants[other], shape, channels):
            bias = net.constants[other].ravel() + (0 if bias is None else bias.ravel())
        elif after.kind == "Add" and z is None and other in net.values and net.values[other].shape == shape:
            z = net.ordered(net.values[other], last and shape == images).view(images, packed(images, last))
        elif after.kind == "Relu":
            relu = True
        else:
            break
        net.fused.add(after)
        name = after.outputs[0]
    fused = relu or z is not None
    bias = np.zeros(w.shape[0]) if bias is None and fused else bias
    joined = shape == images and z is None and name in net.joined
    y = net.joined[name] if joined else net.new(images, last)

    def planned(x, w, *rest, out, **how):
        if not fused:
            bias = rest[0] if rest else None
            return dnn.plan_convolution_forward(net.handle, x, w, conv, bias=bias, out=out, **how)
        added = {} if z is None else {"z": rest[1], "alpha2": 1.0}
        plan = dnn.plan_convolution_bias_activation_forward
        return plan(net.handle, x, w, rest[0], conv, "relu" if relu else "identity", out=out, **added, **how)

    def bound(*arrays, out):
        make = partial(planned, *arrays, out=out)
        plan = net.owned(make() if net.choose is None else net.choose(make, arrays, out))
        return partial(plan, *arrays, out=out)

    def build(*arrays):
        *arrays, y = arrays
        try:
            return bound(*arrays, out=y)
        except dnn.NotSupportedError:  # cuDNN does not write every array that has gaps
            if not joined:
                raise
        dense = net.handle.empty(images, net.dtype.name, {4: "NHWC", 5: "NDHWC"}[len(images)] if last else None)
        calls = bound(*arrays, out=dense), partial(dnn.transform_tensor, net.handle, dense, out=y)
        return lambda: [call() for call in calls]

    reads = [x, net.constant(w, last), *_bias(net, bias, w.ndim), *([] if z is None else [z])]
    net.step(node, build, reads, [y], 2 * prod(images) * prod(w.shape[1:]))
    net.values[name] = y if shape == images else y.view(shape)


def _is_bias(array, shape, channels):
    aligned = (1,) * (len(shape) - array.ndim) + array.shape
    return aligned == tuple(size if axis == channels else 1 for axis, size in enumerate(shape))


def convolution(net, node):
    """Conv."""
    (x, last), w = net.image(node), net.known(node, 1)
    windows = node.windows(x.shape[2:], w.shape[2:])
    conv = dnn.ConvolutionSpec(*windows, node.group or 1, math_type=net.math_type)
    if last and conv.groups == 1 and x.shape[1] < net.channels:
        x, w = widened(net, x, w)
    convolve(net, node, x, w, net.known(node, 2), conv, last)


def widened(net, x, w):
    """Return images and a filter with channels of zeros added: tensor cores take eight halves at a time."""
    count, channels, *image = x.shape
    wide = net.new((count, net.channels, *image), last=True)
    wide.storage.own = net.owned(net.handle.empty((1, wide.storage.size), net.dtype.name))
    dnn.set_tensor(net.handle, wide.storage.own, 0.0)
    net.copied(x, wide.view(x.shape, wide.strides))
    more = [(0, net.channels - channels if axis == 1 else 0) for axis in range(w.ndim)]
    return wide, np.pad(w, more)


def transposed(net, node):
    """ConvTranspose."""
    (x, last), w, bias = net.image(node), net.known(node, 1), net.known(node, 2)
    node.require(not node.output_shape and node.auto_pad in (None, b"NOTSET"), "output_shape, auto_pad")
    padding, strides, dilations = node.windows(x.shape[2:], w.shape[2:])
    node.require(all(isinstance(one, int) for one in padding), "padding that differs at the two sides")
    conv = dnn.ConvolutionSpec(padding, strides, dilations, node.group or 1, math_type=net.math_type)
    more = tuple(node.output_padding or [0] * len(strides))
    axes = zip(x.shape[2:], strides, padding, dilations, w.shape[2:], more, strict=True)
    image = [(size - 1) * step - 2 * pad + far * (taps - 1) + 1 + extra for size, step, pad, far, taps, extra in axes]
    y = net.values[node.outputs[0]] = net.new((x.shape[0], w.shape[1] * conv.groups, *image), last)

    def build(x, w, *arrays):
        *biases, y = arrays
        calls = [partial(dnn.convolution_transpose, net.handle, x, w, conv, output_padding=more, out=y)]
        calls += [partial(dnn.add_tensor, net.handle, one, y) for one in biases]
        return lambda: [call() for call in calls]

    net.step(
        node, build, [x, net.constant(w, last), *_bias(net, bias, w.ndim)], [y], 2 * prod(x.shape) * prod(w.shape[1:])
    )


def product(net, node, matrix, bias=None):
    """Add a product with a matrix: a convolution of images of one pixel."""
    x, (columns, rows) = net.get(node), matrix.shape
    node.require(isinstance(x, Value), "its first factor is constant")
    x = net.ordered(x)
    images = (prod(x.shape[:-1]), columns, 1, 1)
    conv = dnn.ConvolutionSpec(math_type=net.math_type)
    pixels = x.view(images, packed(images, net.last))
    convolve(net, node, pixels, matrix.T[:, :, None, None], bias, conv, net.last, (*x.shape[:-1], rows))


def gemm(net, node):
    """Gemm, of a matrix that is constant."""
    matrix, bias = net.known(node, 1), net.known(node, 2)
    node.require(not node.transA, "transA")
    matrix = (matrix.T if node.transB else matrix) * (1.0 if node.alpha is None else node.alpha)
    if bias is not None:
        node.require(bias.size in (1, matrix.shape[1]), f"its C has shape {bias.shape}")
        bias = np.broadcast_to(bias.ravel(), matrix.shape[1]) * (1.0 if node.beta is None else node.beta)
    product(net, node, matrix, bias)


def matmul(net, node):
    """MatMul, by a matrix that is constant."""
    node.require(net.known(node, 1).ndim == 2, "its second factor is no matrix")
    product(net, node, net.known(node, 1))


def unary(net, node, function, *options, x=None, y=None, **others):
    """Add a call that reads one array, in the layout of images where it may be one."""
    x = net.laid(net.get(node)) if x is None else x
    y = Value(x.shape, x.strides) if y is None else y
    net.step(node, lambda x, y: partial(function, net.handle, x, *options, out=y, **others), [x], [y])
    net.values[node.outputs[0]] = y


def activation(net, node, mode):
    """Relu, Sigmoid, Tanh, Elu."""
    unary(net, node, dnn.activation_forward, dnn.ActivationSpec(mode, node.alpha))


def clip(net, node):
    """Clip, from 0."""
    low, high = net.known(node, 1, node.min), net.known(node, 2, node.max)
    node.require(low == 0 and high is not None, f"limits {low} and {high}; cuDNN has 0 and a number")
    unary(net, node, dnn.activation_forward, dnn.ActivationSpec("clipped_relu", float(high)))


def lrn(net, node):
    """LRN."""
    given = {"alpha": (node.alpha, 1e-4), "beta": (node.beta, 0.75), "k": (node.bias, 1.0)}
    numbers = {name: default if number is None else number for name, (number, default) in given.items()}
    unary(net, node, dnn.lrn_forward, dnn.LRNSpec(node.size, **numbers))


def softmax(net, node, algorithm):
    """Softmax, LogSoftmax: over the channels of an array that is folded to that end."""
    x = net.ordered(net.get(node))
    axis = (-1 if node.axis is None else node.axis) % len(x.shape)
    node.require(net.opset >= 13 or axis == len(x.shape) - 1, f"axis {axis} in operator set {net.opset}")
    folded = x.view((prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :]), 1))
    unary(net, node, dnn.softmax_forward, x=folded, algorithm=algorithm)
    net.values[node.outputs[0]] = net.values[node.outputs[0]].view(x.shape)


def batch_normalization(net, node):
    """BatchNormalization that no convolution took in."""
    x = net.laid(net.get(node))
    images = x if len(x.shape) > 2 else x.view((*x.shape, 1, 1))
    shape = (1, -1, *[1] * (len(images.shape) - 2))
    dtype = "float64" if net.dtype == np.float64 else "float32"
    moments = [net.constant(net.known(node, index).reshape(shape), dtype=dtype) for index in range(1, 5)]
    epsilon = 1e-5 if node.epsilon is None else node.epsilon
    function = dnn.batch_normalization_inference
    unary(net, node, function, *moments, x=images, epsilon=epsilon)
    net.values[node.outputs[0]] = net.values[node.outputs[0]].view(x.shape, x.strides)


def pool(net, node, mode, whole=False):
    """MaxPool, AveragePool, GlobalMaxPool, GlobalAveragePool."""
    x, last = net.image(node)
    spec = dnn.TensorSpec(x.shape)
    if whole:
        pooling = dnn.PoolingSpec.whole(spec, mode=mode)
    else:
        padding, strides, dilations = node.windows(x.shape[2:], node.kernel_shape)
        plain = all(isinstance(one, int) for one in padding) and {*dilations} == {1} and not node.ceil_mode
        node.require(plain and len(node.outputs) == 1, "unequal padding, dilations, ceil_mode or indices")
        counts = "average_count_include_padding" if node.count_include_pad else mode
        pooling = dnn.PoolingSpec(node.kernel_shape, padding, strides, mode=counts)
    y = net.joined.get(node.outputs[0]) or net.new(pooling.output_spec(spec).shape, last)
    unary(net, node, dnn.pooling_forward, pooling, x=x, y=y)


def reduce(net, node, op):
    """ReduceMean, ReduceSum, ReduceMax, ReduceMin."""
    x = net.laid(net.get(node))
    given = net.known(node, 1, node.axes)
    axes = {int(axis) % len(x.shape) for axis in (range(len(x.shape)) if given is None else given)}
    node.require(any(x.shape[axis] > 1 for axis in axes), "there is nothing to reduce")
    y = net.laid(net.new([1 if axis in axes else size for axis, size in enumerate(x.shape)]))
    unary(net, node, dnn.reduce_tensor, op, x=x, y=y)
    if node.keepdims == 0:
        left = [size for axis, size in enumerate(x.shape) if axis not in axes]
        net.values[node.outputs[0]] = net.ordered(y).view(left)


def binary(net, node, op, second=1.0):
    """Add, Sub, Mul, Min, Max: of two arrays, the smaller of which is repeated."""
    node.require(len(node.inputs) == 2, f"it has {len(node.inputs)} inputs")
    both = [net.values.get(name, net.constants.get(name)) for name in node.inputs]
    shape = np.broadcast_shapes(*(one.shape for one in both))
    (large, scale), (small, other) = sorted(
        zip(both, (1.0, second), strict=True), key=lambda pair: pair[0].shape != shape
    )
    node.require(large.shape == shape and len(shape) <= 5, f"operands of shapes {large.shape} and {small.shape}")
    spread = (1,) * (len(shape) - len(small.shape)) + small.shape
    rows = next((axis for axis in range(len(shape), 0, -1) if spread[axis - 1] != 1), 0)  # the axes that small has
    folded = (
        rows > 1 and spread[:rows] == shape[:rows] and rows < len(shape)
    )  # cuDNN repeats along all other axes than one
    last = net.last and len(shape) > 3 and not folded

    def operand(one, full):
        full = (prod(full[:rows]), prod(full[rows:])) if folded else full
        full = (1, *full, 1) if folded else full
        if isinstance(one, np.ndarray):
            return net.constant(one.reshape(full), last)
        return net.ordered(one, last) if full == one.shape else net.ordered(net.ordered(one).view(full), last)

    arrays = [operand(large, shape), operand(small, spread)]
    y = net.new(arrays[0].shape, last)
    scales = {"alpha1": scale, "alpha2": other}
    net.step(node, lambda a, b, y: partial(dnn.op_tensor, net.handle, a, b, op, out=y, **scales), arrays, [y])
    net.values[node.outputs[0]] = y.view(shape) if folded else y


def identity(net, node):
    """Identity, and Dropout, which in inference is that."""
    net.values[node.outputs[0]] = net.get(node)


def reshape(net, node):
    """Reshape, Flatten, Squeeze, Unsqueeze: another name for the same memory where it is in C order, else for a copy."""
    x = net.get(node)
    blank = np.broadcast_to(np.int8(0), x.shape)  # NumPy knows the rules
    if node.kind == "Flatten":
        axis = 1 if node.axis is None else node.axis
        shape = prod(x.shape[:axis]), prod(x.shape[axis:])
    elif node.kind == "Reshape":
        sizes = enumerate(net.known(node, 1).tolist())
        shape = blank.reshape([size or (0 if node.allowzero else x.shape[axis]) for axis, size in sizes]).shape
    else:
        axes = net.known(node, 1, node.axes)
        axes = None if axes is None else tuple(int(axis) for axis in axes)
        shape = (np.squeeze(blank, axes) if node.kind == "Squeeze" else np.expand_dims(blank, axes)).shape
    net.values[node.outputs[0]] = net.ordered(x).view(shape)


def transpose(net, node):
    """Transpose: a copy from a view with its axes in another order."""
    x = net.get(node)
    order = node.perm or [*reversed(range(len(x.shape)))]
    node.require(len(order) <= 5, "more than five axes")
    moved = x.view([x.shape[axis] for axis in order], [x.strides[axis] for axis in order])
    net.values[node.outputs[0]] = net.ordered(moved)


def concat(net, node):
    """Concat: what was not written into its place is copied there."""
    name = node.outputs[0]
    for index, part in enumerate(net.parts[name]):
        if net.values.get(node.inputs[index]) is not part:
            net.copied(net.get(node, index), part)
    net.values[name] = net.joined[name]


def recurrent(net, node, cell):
    """LSTM, GRU, RNN."""
    x, (w, r, b) = net.ordered(net.get(node)), (net.known(node, index) for index in (1, 2, 3))
    (steps, batch, size), (directions, _, hidden) = x.shape, r.shape
    functions = [name.decode().lower() for name in node.activations or []]
    if cell == "rnn":
        cell = functions[0] if functions else "tanh"
        usual = [cell] if cell in ("tanh", "relu") else []
    else:
        usual = {"lstm": ["sigmoid", "tanh", "tanh"], "gru": ["sigmoid", "tanh"]}[cell]
    node.require(usual and functions in ([], usual * directions), f"activations {functions}")
    node.require(node.direction in (None, b"forward", b"bidirectional"), f"direction {node.direction}")
    node.require(not (node.layout or node.clip or node.input_forget), "layout, clip or input_forget")
    node.require(cell != "gru" or node.linear_before_reset, "linear_before_reset=0; cuDNN has 1")
    node.require(net.known(node, 7) is None, "peepholes")
    lengths, states = net.known(node, 4), [net.get(node, index) for index in (5, 6)]
    lengths = None if lengths is None else lengths.tolist()
    given = [net.ordered(one) if isinstance(one, Value) else one for one in states if one is not None]
    both = {"bidirectional": directions == 2, "dtype": net.dtype.name, "math_type": net.math_type}
    spec = dnn.RNNSpec(cell, size, hidden, **both)
    weights = dnn.RNNWeights.from_onnx(net.handle, spec, w, r, b)
    y, state = Value((steps, batch, directions * hidden)), (directions, batch, hidden)
    written = [y, Value(state), Value(state)][: 3 if cell == "lstm" else 2]

    def build(x, *arrays):
        found = iter(arrays)
        hx, cx = (None if one is None else next(found) for one in states)
        return partial(dnn.rnn_forward, net.handle, spec, weights, x, hx, cx, lengths=lengths, out=tuple(found))

    net.step(node, build, [x, *given], written, 2 * steps * batch * (w.size + r.size))
    apart = (batch * directions * hidden, hidden, directions * hidden, 1)  # ONNX has the directions before the batch
    written[0] = y.view((steps, directions, batch, hidden), apart)
    net.values.update((name, value) for name, value in zip(node.outputs, written, strict=False) if name)


OPERATIONS = {
    "Conv": convolution, "ConvTranspose": transposed, "Gemm": gemm, "MatMul": matmul,
    "Relu": partial(activation, mode="relu"), "Sigmoid": partial(activation, mode="sigmoid"),
    "Tanh": partial(activation, mode="tanh"), "Elu": partial(activation, mode="elu"), "Clip": clip,
    "BatchNormalization": batch_normalization, "LRN": lrn,
    "Softmax": partial(softmax, algorithm="accurate"), "LogSoftmax": partial(softmax, algorithm="log"),
    "MaxPool": partial(pool, mode="max"), "AveragePool": partial(pool, mode="average_count_exclude_padding"),
    "GlobalMaxPool": partial(pool, mode="max", whole=True),
    "GlobalAveragePool": partial(pool, mode="average_count_include_padding", whole=True),
    "ReduceMean": partial(reduce, op="avg"), "ReduceSum": partial(reduce, op="add"),
    "ReduceMax": partial(reduce, op="max"), "ReduceMin": partial(reduce, op="min"),
    "Add": partial(binary, op="add"), "Sub": partial(binary, op="add", second=-1.0), "Mul": partial(binary, op="mul"),
    "Min": partial(binary, op="min"), "Max": partial(binary, op="max"),
    "Identity": identity, "Dropout": identity, "Reshape": reshape, "Flatten": reshape, "Squeeze": reshape,
    "Unsqueeze": reshape, "Transpose": transpose, "Concat": concat,
    "LSTM": partial(recurrent, cell="lstm"), "GRU": partial(recurrent, cell="gru"), "RNN": partial(recurrent, cell="rnn"),
}  # fmt: skip
