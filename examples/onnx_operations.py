"""What `onnx_network` knows of each ONNX operation: a function of the network and the node, which adds steps to it."""

from functools import partial
from math import prod

import numpy as np

import cudnnlite as dnn


def windows(node, image, taps):
    """Return padding (of each axis a number, or a pair where its sides differ), strides and dilations."""
    rank, auto = len(image), node.auto_pad.decode()
    strides, dilations, pads = node.strides or [1] * rank, node.dilations or [1] * rank, node.pads or [0] * 2 * rank
    if auto.startswith("SAME"):
        axes = zip(image, taps, strides, dilations, strict=True)
        total = [max((-(-size // step) - 1) * step + far * (tap - 1) + 1 - size, 0) for size, tap, step, far in axes]
        less, more = [one // 2 for one in total], [one - one // 2 for one in total]
        pads = more + less if auto == "SAME_LOWER" else less + more
    sides = zip(pads[:rank], pads[rank:], strict=True)
    return tuple(a if a == b else (a, b) for a, b in sides), tuple(strides), tuple(dilations)


def convolve(net, node, x, w, bias, conv):
    """Add a convolution, and what follows if it fits into it: normalisation, bias, addition of another array, relu."""
    name, z, relu, shape = node.outputs[0], None, False, conv.output_shape(x.shape, w.shape)
    result = net.shapes[name]
    axis = 1 if result == shape else len(result) - 1  # of the channels; a product of matrices has them last
    last = net.lays_last(shape)
    while not relu and (after := net.follower(name)):
        other = next((one for one in after.inputs if one != name), None)
        if after.kind == "BatchNormalization" and z is None and axis == 1:
            moments = [net.known(after, index).astype(np.float64) for index in range(1, 5)]
            w, bias = dnn.fold_batch_normalization(w.astype(np.float64), bias, *moments, after.epsilon)
        elif after.kind == "Add" and other in net.constants and is_bias(net.constants[other], result, axis):
            bias = net.constants[other].ravel() + (0 if bias is None else bias.ravel())
        elif after.kind == "Add" and z is None and other in net.values and net.shapes[other] == result:
            z = net.values[other]
            z = net.laid(z) if result == shape else net.view(net.ordered(z), shape)
        elif after.kind == "Relu":
            relu = True
        else:
            break
        net.fused.add(after)
        name = after.outputs[0]
    fused = relu or z is not None
    bias = np.zeros(len(w)) if bias is None and fused else bias
    arrays = [x, net.constant(w, last), *biases(net, bias, w.ndim), *([] if z is None else [z])]

    def plan(x, w, *others, out, **how):
        if not fused:
            return dnn.plan_convolution_forward(net.handle, x, w, conv, bias=(*others, None)[0], out=out, **how)
        added = {} if z is None else {"z": others[1], "alpha2": 1.0}
        kind, make = "relu" if relu else "identity", dnn.plan_convolution_bias_activation_forward
        return make(net.handle, x, w, others[0], conv, kind, out=out, **added, **how)

    def add(out):
        make = partial(plan, *arrays, out=out)
        call = partial(net.owned(net.choose(make, arrays, out) if net.choose else make()), *arrays, out=out)
        net.step(node, call, arrays, [out], 2 * prod(shape) * prod(w.shape[1:]))

    y = net.room(name) if result == shape and z is None else net.new(shape)
    try:
        add(y)
    except dnn.NotSupportedError:  # cuDNN does not write every array that has gaps
        if name not in net.joined:
            raise
        y = net.new(shape)
        add(y)
    net.define(name, y)


def biases(net, bias, rank):
    """Return a bias on the device, in a list; none if there is none."""
    return [] if bias is None else [net.constant(bias.reshape(1, -1, *[1] * (rank - 2)))]


def is_bias(array, shape, axis):
    """Tell whether an array has a value for each channel."""
    aligned = (1,) * (len(shape) - array.ndim) + array.shape
    return aligned == tuple(size if index == axis else 1 for index, size in enumerate(shape))


def convolution(net, node):
    """Conv."""
    x, w = net.image(node), net.known(node, 1)
    conv = dnn.ConvolutionSpec(*windows(node, x.shape[2:], w.shape[2:]), node.group, math_type=net.math_type)
    if net.lays_last(x.shape) and conv.groups == 1 and x.shape[1] < net.channels:
        x, w = widened(net, x, w)
    convolve(net, node, x, w, net.known(node, 2), conv)


def widened(net, x, w):
    """Return images and a filter with channels of zeros added: loads of four halves are faster than of three."""
    wide = net.fresh((x.shape[0], net.channels, *x.shape[2:]))
    dnn.set_tensor(net.handle, wide, 0.0)
    net.copied(x, net.strided(wide, x.shape, wide.strides))
    return wide, np.pad(w, [(0, net.channels - x.shape[1] if axis == 1 else 0) for axis in range(w.ndim)])


def transposed(net, node):
    """ConvTranspose."""
    x, w, bias = net.image(node), net.known(node, 1), net.known(node, 2)
    padding, strides, dilations = windows(node, x.shape[2:], w.shape[2:])
    plain = not node.output_shape and node.auto_pad == b"NOTSET" and all(isinstance(one, int) for one in padding)
    node.require(plain, "output_shape, auto_pad, or padding that differs at the two sides")
    conv = dnn.ConvolutionSpec(padding, strides, dilations, node.group, math_type=net.math_type)
    more = tuple(node.output_padding or [0] * len(strides))
    y, filters = net.new(net.shapes[node.outputs[0]]), net.constant(w, net.lays_last(x.shape))
    call = partial(dnn.convolution_transpose, net.handle, x, filters, conv, output_padding=more, out=y)
    net.step(node, call, [x, filters], [y], 2 * prod(x.shape) * prod(w.shape[1:]))
    for one in biases(net, bias, w.ndim):
        net.step(node, partial(dnn.add_tensor, net.handle, one, y), [one, y], [y])
    net.define(node.outputs[0], y)


def product(net, node):
    """Gemm, MatMul, by a matrix that is constant: a convolution of images of one pixel."""
    x, matrix, bias = net.get(node), net.known(node, 1), net.known(node, 2)
    node.require(matrix.ndim == 2 and not node.transA, "transA, or a second factor that is no matrix")
    matrix = (matrix.T if node.transB else matrix) * (node.alpha or 1.0)
    if bias is not None:
        node.require(bias.size in (1, matrix.shape[1]), f"its C has shape {bias.shape}")
        bias = np.broadcast_to(bias.ravel(), matrix.shape[1]) * node.beta
    pixels = net.view(net.ordered(x), (prod(x.shape[:-1]), len(matrix), 1, 1))
    convolve(net, node, pixels, matrix.T[:, :, None, None], bias, dnn.ConvolutionSpec(math_type=net.math_type))


def unary(net, node, x, function, *options, y=None, **others):
    """Add a call that reads one array, and writes one in the same layout."""
    y = net.new(x.shape) if y is None else y
    net.step(node, partial(function, net.handle, x, *options, out=y, **others), [x], [y])
    net.define(node.outputs[0], y)


def activation(net, node, mode):
    """Relu, Sigmoid, Tanh, Elu."""
    unary(net, node, net.laid(net.get(node)), dnn.activation_forward, dnn.ActivationSpec(mode, node.alpha))


def clip(net, node):
    """Clip, from 0."""
    low, high = net.known(node, 1, node.min), net.known(node, 2, node.max)
    node.require(low == 0 and high is not None, f"limits {low} and {high}; cuDNN has 0 and a number")
    unary(net, node, net.laid(net.get(node)), dnn.activation_forward, dnn.ActivationSpec("clipped_relu", float(high)))


def lrn(net, node):
    """LRN."""
    spec = dnn.LRNSpec(node.size, alpha=node.alpha, beta=node.beta, k=node.bias)
    unary(net, node, net.laid(net.get(node)), dnn.lrn_forward, spec)


def softmax(net, node, algorithm):
    """Softmax, LogSoftmax: over the channels of an array that is folded to that end."""
    x = net.ordered(net.get(node))
    axis = node.axis % len(x.shape)
    node.require(net.opset >= 13 or axis == len(x.shape) - 1, f"axis {axis} in operator set {net.opset}")
    folded = prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :]), 1
    x, y = net.view(x, folded), net.new(folded, last=False)
    unary(net, node, x, dnn.softmax_forward, y=y, algorithm=algorithm)


def batch_normalization(net, node):
    """BatchNormalization that no convolution took in."""
    x, dtype = net.image(node), "float64" if net.dtype == np.float64 else "float32"
    shape = (1, -1, *[1] * (len(x.shape) - 2))
    moments = [net.constant(net.known(node, index).reshape(shape), dtype=dtype) for index in range(1, 5)]
    unary(net, node, x, dnn.batch_normalization_inference, *moments, epsilon=node.epsilon)


def pool(net, node, mode, whole=False):
    """MaxPool, AveragePool, GlobalMaxPool, GlobalAveragePool."""
    x = net.image(node)
    if whole:
        pooling = dnn.PoolingSpec.whole(dnn.TensorSpec(x.shape), mode=mode)
    else:
        padding, strides, dilations = windows(node, x.shape[2:], node.kernel_shape)
        plain = all(isinstance(one, int) for one in padding) and {*dilations} == {1} and not node.ceil_mode
        node.require(plain and len(node.outputs) == 1, "unequal padding, dilations, ceil_mode or indices")
        counts = "average_count_include_padding" if node.count_include_pad else mode
        pooling = dnn.PoolingSpec(node.kernel_shape, padding, strides, mode=counts)
    unary(net, node, x, dnn.pooling_forward, pooling, y=net.room(node.outputs[0]))


def reduce(net, node, op):
    """ReduceMean, ReduceSum, ReduceMax, ReduceMin."""
    x, given = net.laid(net.get(node)), net.known(node, 1, node.axes)
    axes = {int(axis) % len(x.shape) for axis in (range(len(x.shape)) if given is None else given)}
    node.require(any(x.shape[axis] > 1 for axis in axes), "there is nothing to reduce")
    y = net.new([1 if axis in axes else size for axis, size in enumerate(x.shape)])
    unary(net, node, x, dnn.reduce_tensor, op, y=y)


def binary(net, node, op, second=1.0):
    """Add, Sub, Mul, Min, Max: of two arrays, the smaller of which is repeated."""
    node.require(len(node.inputs) == 2, f"it has {len(node.inputs)} inputs")
    (name,), shape = node.outputs, net.shapes[node.outputs[0]]
    (large, scale), (small, other) = zip(node.inputs, (1.0, second), strict=True)
    if net.shapes[large] != shape:
        (large, scale), (small, other) = (small, other), (large, scale)
    spread = (1,) * (len(shape) - len(net.shapes[small])) + net.shapes[small]
    node.require(net.shapes[large] == shape and len(shape) <= 5, f"operands of shapes {net.shapes[large]} and {spread}")
    # cuDNN repeats along all other axes than one; where small has the first ones, they are folded into one
    rows = next((axis for axis in range(len(shape), 0, -1) if spread[axis - 1] != 1), 0)
    folded = 1 < rows < len(shape) and spread[:rows] == shape[:rows]
    last = net.lays_last(shape) and not folded

    def operand(name, full):
        full = (1, prod(full[:rows]), prod(full[rows:]), 1) if folded else full
        if name in net.constants:
            return net.constant(net.constants[name].reshape(full), last)
        array = net.values[name]
        return net.ordered(array if array.shape == full else net.view(net.ordered(array), full), last)

    a, b = operand(large, shape), operand(small, spread)
    y = net.new(a.shape, last)
    net.step(node, partial(dnn.op_tensor, net.handle, a, b, op, out=y, alpha1=scale, alpha2=other), [a, b], [y])
    net.define(name, y)


def same(net, node):
    """Reshape, Flatten, Squeeze, Unsqueeze, Identity, Dropout: the same memory, in C order where its shape is another."""
    net.define(node.outputs[0], net.get(node))


def transpose(net, node):
    """Transpose: a copy from a view with its axes in another order."""
    x = net.get(node)
    order = node.perm or [*reversed(range(len(x.shape)))]
    node.require(len(order) <= 5, "more than five axes")
    moved = net.strided(x, [x.shape[axis] for axis in order], [x.strides[axis] for axis in order])
    net.define(node.outputs[0], net.ordered(moved))


def concat(net, node):
    """Concat: what was not written into its part is copied there."""
    for index, name in enumerate(node.inputs):
        part = net.part(node, index)
        if name not in net.values or net.values[name].ptr != part.ptr:
            net.copied(net.get(node, index), part)
    net.define(node.outputs[0], net.wholes[node.outputs[0]])


USUAL = {
    "lstm": ["sigmoid", "tanh", "tanh"],
    "gru": ["sigmoid", "tanh"],
    "tanh": ["tanh"],
    "relu": ["relu"],
}  # activations


def recurrent(net, node, cell):
    """LSTM, GRU, RNN."""
    x, (w, r, b) = net.ordered(net.get(node)), (net.known(node, index) for index in (1, 2, 3))
    (steps, batch, size), (directions, _, hidden) = x.shape, r.shape
    functions = [name.decode().lower() for name in node.activations or []]
    if cell == "rnn":
        cell = functions[0] if functions else "tanh"
    usual = directions * USUAL.get(cell, ["of cuDNN's"])
    node.require(functions[: len(usual)] in ([], usual), f"activations {functions}")
    node.require(node.direction in (b"forward", b"bidirectional"), f"direction {node.direction}")
    node.require(not (node.layout or node.clip or node.input_forget), "layout, clip or input_forget")
    node.require(cell != "gru" or node.linear_before_reset, "linear_before_reset=0; cuDNN has 1")
    node.require(net.known(node, 7) is None, "peepholes")
    lengths = net.known(node, 4)
    lengths = None if lengths is None else lengths.tolist()
    hx, cx = (None if one is None else net.ordered(one) for one in (net.get(node, 5), net.get(node, 6)))
    both = {"bidirectional": directions == 2, "dtype": net.dtype.name, "math_type": net.math_type}
    spec = dnn.RNNSpec(cell, size, hidden, **both)
    weights = dnn.RNNWeights.from_onnx(net.handle, spec, w, r, b)
    y, state = net.new((steps, batch, directions * hidden)), (directions, batch, hidden)
    written = [y, *(net.new(state) for _ in range(2 if cell == "lstm" else 1))]
    call = partial(dnn.rnn_forward, net.handle, spec, weights, x, hx, cx, lengths=lengths, out=tuple(written))
    reads = [x, *(one for one in (hx, cx) if one is not None)]
    net.step(node, call, reads, written, 2 * steps * batch * (w.size + r.size))
    apart = batch * directions * hidden, hidden, directions * hidden, 1  # ONNX has the directions before the batch
    written[0] = net.strided(y, (steps, directions, batch, hidden), apart)
    for name, array in zip(node.outputs, written, strict=False):
        if name:
            net.define(name, array)


OPERATIONS = {
    "Conv": convolution, "ConvTranspose": transposed, "Gemm": product, "MatMul": product,
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
    "Reshape": same, "Flatten": same, "Squeeze": same, "Unsqueeze": same, "Identity": same, "Dropout": same,
    "Transpose": transpose, "Concat": concat,
    "LSTM": partial(recurrent, cell="lstm"), "GRU": partial(recurrent, cell="gru"), "RNN": partial(recurrent, cell="rnn"),
}  # fmt: skip
