"""What the nodes of an ONNX model ask of cuDNN: a problem for each that cuDNN does as it stands, a reason for the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isinf

from cudnnlite.autotune.onnx.nodes import NoProblemError, OnnxNode, Reading
from cudnnlite.operations.convolution_backward_problem import ConvolutionBackwardDataProblem
from cudnnlite.operations.convolution_problem import ConvolutionForwardProblem
from cudnnlite.operations.problem import Problem
from cudnnlite.operations.rnn.forward_problem import RNNForwardProblem
from cudnnlite.specs import ConvolutionSpec, FilterSpec, RNNDataSpec, RNNSpec, TensorSpec

Steps = tuple[int, ...]


def convolution(node: OnnxNode, reading: Reading) -> Problem:
    """Return the problem of a Conv node."""
    x, w, taps, strides, dilations, groups = _operands(node, reading)
    pads = _padding(node, x.shape[2:], taps, strides, dilations)
    return ConvolutionForwardProblem(x, w, ConvolutionSpec(pads, strides, dilations, groups))


def transposed(node: OnnxNode, reading: Reading) -> Problem:
    """Return the problem of a ConvTranspose node: the gradient of a convolution's input, with the node's input as dy."""
    dy, w, taps, strides, dilations, groups = _operands(node, reading)
    rank, auto = len(taps), node.attribute("auto_pad", "NOTSET")
    extra = node.attribute("output_padding", ()) or (0,) * rank
    given, pads = node.attribute("output_shape", ()), node.attribute("pads", ()) or (0,) * (2 * rank)
    if {len(strides), len(dilations), len(extra), len(given or extra)} != {rank} or len(pads) != 2 * rank:
        raise NoProblemError(f"strides={strides}, dilations={dilations}, pads={pads} do not fit {rank} spatial axes")
    axes = zip(dy.shape[2:], taps, strides, dilations, extra, strict=True)
    whole = [(size - 1) * stride + far * (tap - 1) + 1 + more for size, tap, stride, far, more in axes]
    if auto in ("SAME_UPPER", "SAME_LOWER") and not given:
        given = tuple(size * stride for size, stride in zip(dy.shape[2:], strides, strict=True))
    if given:
        cut = [max(0, size - wanted) for size, wanted in zip(whole, given, strict=True)]
        # where the number is odd, SAME_UPPER alone cuts the further one off at the end
        before = [total // 2 if auto == "SAME_UPPER" else total - total // 2 for total in cut]
        image = tuple(given)
    elif auto in ("NOTSET", "VALID"):
        before = [0 if auto == "VALID" else pad for pad in pads[:rank]]
        after = [0 if auto == "VALID" else pad for pad in pads[rank:]]
        image = tuple(size - one - other for size, one, other in zip(whole, before, after, strict=True))
    else:
        raise NoProblemError(f"auto_pad={auto!r} is not one of NOTSET, SAME_UPPER, SAME_LOWER, VALID")
    conv = ConvolutionSpec(before, strides, dilations, groups)
    shape = (dy.shape[0], w.shape[1] * groups, *image)
    if min(shape) < 1 or conv.output_shape(shape, w.shape) != dy.shape:
        raise NoProblemError(
            f"its result is {image}, with {before} cut off in front; cuDNN cuts off both sides of an axis alike"
        )
    return ConvolutionBackwardDataProblem(w, dy, conv, dy.packed(shape))


def _operands(node: OnnxNode, reading: Reading) -> tuple[TensorSpec, FilterSpec, Steps, Steps, Steps, int]:
    """Return the specs of a node's first two inputs, taps, strides, dilations and groups."""
    x_shape, w_shape = node.shape(0), node.shape(1)
    dtype = reading.dtype or node.dtype(0)
    rank = len(x_shape)
    if rank not in reading.layouts or len(w_shape) != rank:
        raise NoProblemError(f"x {x_shape} and w {w_shape}: cuDNN convolves 1 to 3 spatial axes")
    taps = node.attribute("kernel_shape", w_shape[2:])
    if taps != w_shape[2:]:
        raise NoProblemError(f"kernel_shape={taps}, but its filter is {w_shape}")
    ones = (1,) * (rank - 2)
    strides, dilations = node.attribute("strides", ones) or ones, node.attribute("dilations", ones) or ones
    layout = reading.layouts[rank]
    x, w = TensorSpec(x_shape, dtype, layout), FilterSpec(w_shape, dtype, layout)
    return x, w, taps, strides, dilations, node.attribute("group", 1)


def _padding(
    node: OnnxNode, sizes: Sequence[int], taps: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Return the padding before and behind each axis; alike where that does the same, for all of cuDNN takes that."""
    rank = len(sizes)
    auto, pads = node.attribute("auto_pad", "NOTSET"), node.attribute("pads", ()) or (0,) * (2 * rank)
    if {len(strides), len(dilations)} != {rank} or len(pads) != 2 * rank or min((*strides, *dilations)) < 1:
        raise NoProblemError(f"strides={strides}, dilations={dilations}, pads={pads} do not fit {rank} spatial axes")
    reaches = [step * (tap - 1) + 1 for tap, step in zip(taps, dilations, strict=True)]
    if auto == "NOTSET":
        both = list(zip(pads[:rank], pads[rank:], strict=True))
    elif auto == "VALID":
        both = [(0, 0)] * rank
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        both = []
        for size, reach, stride in zip(sizes, reaches, strides, strict=True):
            missing = max(0, ((size - 1) // stride) * stride + reach - size)
            less, more = missing // 2, missing - missing // 2
            both.append((less, more) if auto == "SAME_UPPER" else (more, less))
    else:
        raise NoProblemError(f"auto_pad={auto!r} is not one of NOTSET, SAME_UPPER, SAME_LOWER, VALID")
    # the same padding on both sides is as good where the filter does not get to what differs behind
    alike = [
        (size + before + after - reach) // stride == (size + 2 * before - reach) // stride
        for (before, after), size, reach, stride in zip(both, sizes, reaches, strides, strict=True)
    ]
    return tuple((before, before) if all(alike) else (before, after) for before, after in both)


def recurrent(node: OnnxNode, reading: Reading) -> Problem:
    """Return the problem of an LSTM, GRU or RNN node: one layer."""
    direction = node.attribute("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        raise NoProblemError(f"direction={direction!r} is not one of forward, reverse, bidirectional")
    directions = 2 if direction == "bidirectional" else 1
    cell = _cell(node, directions)
    x_shape = node.shape(0)
    if len(x_shape) != 3:
        raise NoProblemError(f"its input has shape {x_shape}; allowed: three axes")
    hidden = node.attribute("hidden_size", 0) or node.shape(2)[-1]
    rows = {"lstm": 4, "gru": 3}.get(cell, 1) * hidden
    for name, position, columns in (("W", 1, x_shape[2]), ("R", 2, hidden)):
        found, wanted = node.shape_if_known(position), (directions, rows, columns)
        if found not in (None, wanted):
            raise NoProblemError(f"{name} has shape {found}; hidden_size={hidden} and its input ask for {wanted}")
    batch_major = node.attribute("layout", 0) == 1
    dtype = reading.dtype or node.dtype(0)
    lengths = node.constant(4) if node.has_input(4) else None
    spec = RNNSpec(cell, x_shape[2], hidden, bidirectional=directions == 2, bias=node.has_input(3), dtype=dtype)
    data = RNNDataSpec(x_shape, lengths, dtype, "batch_major" if batch_major else "sequence_major")
    problem = RNNForwardProblem(spec, data)
    if node.has_input(4) and lengths is None:
        assumed = f"the sequences' lengths are not in the model; all are taken to be {data.max_length}"
        reading.notes.append(f"{node.name}: {assumed}")
    if direction == "reverse":
        reading.notes.append(f"{node.name}: direction=reverse, which cuDNN does as forward on sequences turned round")
    return problem


def _cell(node: OnnxNode, directions: int) -> str:
    """Return cuDNN's name of the cell; NoProblemError where cuDNN's is another."""
    usual = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}[node.operation]
    given = node.attribute("activations", []) or usual * directions
    activations = [name.lower() for name in given]
    cell, only = node.operation.lower(), ", ".join(usual)
    if cell == "rnn":
        cell, only = "relu" if activations[0] == "relu" else "tanh", "tanh or relu"
        usual = [cell]
    if activations != usual * directions:
        raise NoProblemError(f"activations={', '.join(given)}; cuDNN has {only} only, in every direction")
    clip = node.attribute("clip", float("inf"))
    if not isinf(clip):
        raise NoProblemError(f"clip={clip:g} bounds what goes into the activations; cuDNN bounds the cell state only")
    if node.attribute("input_forget", 0):
        raise NoProblemError("input_forget=1 couples two gates, which cuDNN's LSTM keeps apart")
    if cell == "gru" and not node.attribute("linear_before_reset", 0):
        raise NoProblemError("linear_before_reset=0; cuDNN's GRU resets after the recurrent product")
    if cell == "lstm" and node.has_input(7):
        raise NoProblemError("it has peepholes (input P), which cuDNN's LSTM does not have")
    return cell


Reader = Callable[[OnnxNode, Reading], Problem]
READERS: dict[str, Reader] = {
    "Conv": convolution,
    "ConvTranspose": transposed,
    "LSTM": recurrent,
    "GRU": recurrent,
    "RNN": recurrent,
}
# What cuDNN, or cudnnlite, has no forward pass of.
_REASONS = {
    "ConvInteger": "a quantized convolution, for which there is no kind of problem yet",
    "QLinearConv": "a quantized convolution, for which there is no kind of problem yet",
    "DeformConv": "cuDNN has no deformable convolution",
}


def why_skipped(node: OnnxNode) -> str:
    """Return why no problem is made of an operation that looks as if there could be one; empty for all others."""
    if not node.domain:
        return _REASONS.get(node.operation, "")
    kind = node.operation.rpartition(".")[2].upper()
    is_like = any(word in kind for word in ("CONV", "LSTM", "GRU", "RNN"))
    return f"an operation of {node.domain}, which is not ONNX's own" if is_like else ""
