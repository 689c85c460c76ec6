"""RNNs in float64 by others: ONNX's reference implementation, and PyTorch if it is installed.

Weights come as a dict under cudnnlite's names, and everything else is read off it: a name that is
absent is not there.

========================================  ========================================================
"layer0.forward.input.i"                  (H, I), or (H, D * R) above layer 0; absent if skipped
"layer0.forward.recurrent.i"              (H, R), where R is P if there is a projection and H if not
"layer0.forward.input.i.bias"             (H,)
"layer0.forward.recurrent.i.bias"         (H,)
"layer0.forward.projection"               (P, H), of an LSTM
========================================  ========================================================

Directions are "forward" and "backward"; gates are i f g o (lstm), r z n (gru) and h (relu, tanh).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

Array = np.ndarray[Any, Any]
Weights = Mapping[str, Array]
Lengths = Sequence[int] | Array
HAS_TORCH = importlib.util.find_spec("torch") is not None
GATES = {
    "relu": "h",
    "tanh": "h",
    "lstm": "ifgo",
    "gru": "rzn",
}  # PyTorch stacks them in this order, too
ONNX_GATES = {"relu": "h", "tanh": "h", "lstm": "iofg", "gru": "zrn"}
DIRECTIONS = ("forward", "backward")
BIASES = {
    "none": (),
    "single_input": ("input",),
    "single_recurrent": ("recurrent",),
    "double": ("input", "recurrent"),
}


class RNNResult(NamedTuple):
    """What an RNN returns.

    Attributes
    ----------
    y : ndarray
        (T, N, D * R), zeros beyond each sequence's end.
    hy : ndarray
        (L * D, N, R), at layer * D + direction.  A sequence of no steps ends with the state it
        began with.
    cy : ndarray or None
        (L * D, N, H), of an LSTM.
    """

    y: Array
    hy: Array
    cy: Array | None


class RNNGradients(NamedTuple):
    """The derivatives of sum(y * dy) + sum(hy * dhy) + sum(cy * dcy), by name for the weights."""

    dx: Array
    dhx: Array
    dcx: Array | None
    weights: dict[str, Array]


class _Layout(NamedTuple):
    cell: str
    input_size: int
    hidden_size: int
    num_layers: int
    directions: tuple[str, ...]
    projection_size: int | None
    bias: str
    skip_input: bool

    @property
    def output_size(self) -> int:
        return self.projection_size or self.hidden_size

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all weights."""
        shapes: dict[str, tuple[int, ...]] = {}
        for layer in range(self.num_layers):
            columns = {
                "input": len(self.directions) * self.output_size if layer else self.input_size
            }
            columns["recurrent"] = self.output_size
            for direction in self.directions:
                prefix = f"layer{layer}.{direction}"
                for kind in ("input", "recurrent"):
                    for gate in GATES[self.cell]:
                        if layer or kind == "recurrent" or not self.skip_input:
                            shapes[f"{prefix}.{kind}.{gate}"] = (self.hidden_size, columns[kind])
                        if kind in BIASES[self.bias]:
                            shapes[f"{prefix}.{kind}.{gate}.bias"] = (self.hidden_size,)
                if self.projection_size:
                    shapes[f"{prefix}.projection"] = (self.projection_size, self.hidden_size)
        return shapes


def _layout(cell: str, weights: Weights) -> _Layout:
    first, gate = "layer0.forward", GATES[cell][0]
    hidden_size = weights[f"{first}.recurrent.{gate}"].shape[0]
    skip_input = f"{first}.input.{gate}" not in weights
    biases = tuple(
        kind for kind in ("input", "recurrent") if f"{first}.{kind}.{gate}.bias" in weights
    )
    layout = _Layout(
        cell,
        hidden_size if skip_input else weights[f"{first}.input.{gate}"].shape[1],
        hidden_size,
        1 + max(int(name.partition(".")[0].removeprefix("layer")) for name in weights),
        DIRECTIONS if f"layer0.backward.recurrent.{gate}" in weights else DIRECTIONS[:1],
        weights[f"{first}.projection"].shape[0] if f"{first}.projection" in weights else None,
        next(mode for mode, kinds in BIASES.items() if kinds == biases),
        skip_input,
    )
    # A misspelled name would otherwise count as an absent one, and the oracle would accept a
    # missing bias.
    shapes, expected = {name: np.shape(w) for name, w in weights.items()}, layout.shapes()
    assert shapes == expected, (
        f"weights do not fit together: {sorted(set(shapes.items()) ^ set(expected.items()))}"
    )
    return layout


def _stacked(
    layout: _Layout, weights: Weights, layer: int, direction: str, gates: str
) -> tuple[Array, ...]:
    """Return W, R, Wb and Rb with stacked gates.

    A skipped input has identities as W, and a missing bias is zeros.
    """

    def stack(kind: str, suffix: str, absent: Array) -> Array:
        names = (f"layer{layer}.{direction}.{kind}.{gate}{suffix}" for gate in gates)
        return np.concatenate([weights.get(name, absent) for name in names]).astype(np.float64)

    identity, zero = np.eye(layout.hidden_size), np.zeros(layout.hidden_size)
    return (
        stack("input", "", identity),
        stack("recurrent", "", identity),
        stack("input", ".bias", zero),
        stack("recurrent", ".bias", zero),
    )


def _wide(
    layout: _Layout, x: Array, hx: Array | None, cx: Array | None, lengths: Lengths | None
) -> tuple[Array, Array, Array, Array]:
    """Return x, hx, cx and lengths, with what is None filled in: states are 0, lengths T."""
    x = np.asarray(x, np.float64)
    assert x.shape[2] == layout.input_size
    assert cx is None or layout.cell == "lstm"
    states = len(layout.directions) * layout.num_layers
    h_shape, c_shape = (
        (states, x.shape[1], layout.output_size),
        (states, x.shape[1], layout.hidden_size),
    )
    hx = np.zeros(h_shape) if hx is None else np.asarray(hx, np.float64)
    cx = np.zeros(c_shape) if cx is None else np.asarray(cx, np.float64)
    assert (hx.shape, cx.shape) == (h_shape, c_shape)
    lengths = np.full(x.shape[1], len(x)) if lengths is None else np.asarray(lengths, np.int64)
    assert lengths.shape == x.shape[1:2]
    assert ((lengths >= 0) & (lengths <= len(x))).all()
    return x, hx, cx, lengths


def random_weights(
    rng: np.random.Generator,
    cell: str,
    input_size: int,
    hidden_size: int,
    num_layers: int = 1,
    bidirectional: bool = False,
    projection_size: int | None = None,
    bias: str = "double",
    skip_input: bool = False,
    scale: float | None = None,
) -> dict[str, Array]:
    """Return random weights, no two alike.

    Parameters
    ----------
    rng : Generator
    cell : {"relu", "tanh", "lstm", "gru"}
    input_size, hidden_size, num_layers : int
    bidirectional : bool
    projection_size : int, optional
        Of an LSTM.
    bias : {"none", "single_input", "single_recurrent", "double"}
    skip_input : bool
        Layer 0 has no input matrices.
    scale : float, optional
        The matrices' standard deviation, 1 / sqrt(hidden_size) by default: gates neither saturate
        nor stay at 1/2.
    """
    assert projection_size is None or (cell == "lstm" and projection_size <= hidden_size)
    assert not skip_input or input_size == hidden_size
    layout = _Layout(
        cell,
        input_size,
        hidden_size,
        num_layers,
        DIRECTIONS if bidirectional else DIRECTIONS[:1],
        projection_size,
        bias,
        skip_input,
    )
    deviation = hidden_size**-0.5 if scale is None else scale
    return {
        name: rng.standard_normal(shape) * (deviation if len(shape) == 2 else 0.3)
        for name, shape in layout.shapes().items()
    }


@lru_cache
def _evaluator(cell: str) -> ReferenceEvaluator:
    """Return a model of one layer in one direction, of any size."""
    inputs, outputs = ["x", "w", "r", "b", "", "hx"], ["y", "hy"]
    if cell == "lstm":
        inputs, outputs = [*inputs, "cx"], [*outputs, "cy"]
        nodes = [
            helper.make_node("LSTM", inputs, outputs)
        ]  # the reference returns cy since onnx 1.23
    elif cell == "gru":
        nodes = [
            helper.make_node("GRU", inputs, outputs, linear_before_reset=1)
        ]  # cuDNN's, and PyTorch's
    elif cell == "tanh":
        nodes = [helper.make_node("RNN", inputs, outputs, activations=["Tanh"])]
    else:
        # The reference knows RNN with Tanh and Affine, but not with Relu. So the node has the
        # identity, and ONNX's Relu comes behind it, which is right for a single step.
        identity = {"activations": ["Affine"], "activation_alpha": [1.0], "activation_beta": [0.0]}
        nodes = [helper.make_node("RNN", inputs, ["sums", "last"], **identity)]
        nodes += [
            helper.make_node("Relu", [sums], [name])
            for sums, name in (("sums", "y"), ("last", "hy"))
        ]
    infos = [
        [helper.make_tensor_value_info(n, TensorProto.DOUBLE, None) for n in names if n]
        for names in (inputs, outputs)
    ]
    return ReferenceEvaluator(helper.make_model(helper.make_graph(nodes, cell, *infos)))


def _onnx_layer(cell: str, feeds: dict[str, Array]) -> tuple[Array, Array, Array | None]:
    """Run one layer in one direction over sequences of one length."""
    if cell == "relu":  # one step at a time: see _evaluator
        ys = []
        for step in np.split(feeds["x"], len(feeds["x"])):
            y, hy = _evaluator(cell).run(None, feeds | {"x": step})
            feeds = feeds | {"hx": hy}
            ys.append(y)
        outputs = [np.concatenate(ys), hy]
    else:
        outputs = _evaluator(cell).run(None, feeds)
    assert all(a.dtype == np.float64 for a in outputs)
    y, hy, *cy = outputs
    return y[:, 0], hy[0], cy[0][0] if cy else None


def onnx_rnn(
    cell: str,
    weights: Weights,
    x: Array,
    hx: Array | None = None,
    cx: Array | None = None,
    lengths: Lengths | None = None,
) -> RNNResult:
    """Run ONNX's RNN, LSTM or GRU.

    Its reference implementation ignores the lengths of the sequences and, before onnx 1.23, the
    direction.  So each node is one layer in one direction over all sequences of one length, and
    what runs backward is flipped here.

    Parameters
    ----------
    cell : {"relu", "tanh", "lstm", "gru"}
    weights : mapping of str to ndarray
    x : ndarray
        (T, N, I); what is beyond a sequence's end is not looked at.
    hx, cx : ndarray, optional
        As `RNNResult`'s hy and cy; zeros by default.
    lengths : sequence of int, optional
        Of each sequence, in any order; T by default.

    Returns
    -------
    RNNResult
    """
    layout = _layout(cell, weights)
    x, hx, cx, lengths = _wide(layout, x, hx, cx, lengths)
    hy, cy = hx.copy(), cx.copy()
    for layer in range(layout.num_layers):
        y = np.zeros((*x.shape[:2], len(layout.directions), layout.output_size))
        for d, direction in enumerate(layout.directions):
            state = layer * len(layout.directions) + d
            w, r, wb, rb = _stacked(layout, weights, layer, direction, ONNX_GATES[cell])
            h, project = hx[state], np.eye(layout.hidden_size)
            if layout.projection_size:
                # ONNX has no projection. Its LSTM can carry on the unprojected output s, since R h
                # = (R P) s where h = P s. The first s is any that is projected to hx.
                project = np.asarray(weights[f"layer{layer}.{direction}.projection"], np.float64)
                h, r = h @ np.linalg.pinv(project).T, r @ project
            for length in np.unique(lengths[lengths > 0]):
                rows = np.flatnonzero(lengths == length)
                order = slice(None, None, -1 if direction == "backward" else 1)
                feeds = {
                    "x": x[:length, rows][order],
                    "w": w[None],
                    "r": r[None],
                    "b": np.concatenate([wb, rb])[None],
                }
                feeds["hx"] = h[None, rows]
                if cell == "lstm":
                    feeds["cx"] = cx[state][None, rows]
                outputs, last, last_c = _onnx_layer(cell, feeds)
                y[:length, rows, d], hy[state, rows] = (
                    (outputs @ project.T)[order],
                    last @ project.T,
                )
                if last_c is not None:
                    cy[state, rows] = last_c
        x = y.reshape(*x.shape[:2], -1)
    return RNNResult(x, hy, cy if cell == "lstm" else None)


def onnx_directional_derivative(
    cell: str,
    weights: Weights,
    x: Array,
    hx: Array | None,
    cx: Array | None,
    lengths: Lengths | None,
    dy: Array | None,
    dhy: Array | None,
    dcy: Array | None,
    direction: Mapping[str, Array],
) -> float:
    """Differentiate sum(y * dy) + sum(hy * dhy) + sum(cy * dcy) along a direction.

    The result is central differences of `onnx_rnn`.

    Parameters
    ----------
    cell, weights, x, hx, cx, lengths
        As for `onnx_rnn`.
    dy, dhy, dcy : ndarray or None
        As `RNNResult`'s arrays; None for zeros.  What dy has beyond a sequence's end does not
        count.
    direction : mapping of str to ndarray
        What each of "x", "hx", "cx" and the weights is moved by, for a step of 1; what is missing
        stays where it is.

    Returns
    -------
    float
        What the sum of gradient * direction should be.
    """
    assert set(direction) <= {"x", "hx", "cx", *weights}
    x, hx, wide_cx, lengths = _wide(_layout(cell, weights), x, hx, cx, lengths)
    assert cell == "lstm" or "cx" not in direction
    within_lengths = (np.arange(len(x))[:, None] < lengths)[:, :, None]

    def moved_sum(step: float) -> float:
        def move(name: str, value: Array) -> Array:
            return value + step * np.asarray(direction.get(name, 0.0), np.float64)

        result = onnx_rnn(
            cell,
            {name: move(name, w) for name, w in weights.items()},
            move("x", x),
            move("hx", hx),
            move("cx", wide_cx) if cell == "lstm" else None,
            lengths,
        )
        factors = (None if dy is None else np.where(within_lengths, dy, 0.0), dhy, dcy)
        return sum(
            float(np.sum(a * b)) for a, b in zip(result, factors, strict=True) if b is not None
        )

    # Cutting off the series costs about step**2, and rounding 1e-16 / step. The smaller the step,
    # the less likely a Relu changes sides.
    step = 1e-6
    return (moved_sum(step) - moved_sum(-step)) / (2 * step)


def _torch_run(
    cell: str,
    weights: Weights,
    x: Array,
    hx: Array | None,
    cx: Array | None,
    lengths: Lengths | None,
) -> tuple[Any, list[Any], list[Any]]:
    """Return PyTorch's module, its tensors x, hx and cx, and y, hy and cy.

    An LSTM alone has cx and cy.
    """
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    layout = _layout(cell, weights)
    x, hx, cx, known_lengths = _wide(layout, x, hx, cx, lengths)
    options: dict[str, Any] = {"nonlinearity": cell} if cell in ("relu", "tanh") else {}
    if layout.projection_size:
        options["proj_size"] = (
            layout.projection_size
        )  # PyTorch's has to be smaller than the hidden size
    module = getattr(torch.nn, "RNN" if options.get("nonlinearity") else cell.upper())(
        layout.input_size,
        layout.hidden_size,
        layout.num_layers,
        bias=layout.bias != "none",
        bidirectional=len(layout.directions) == 2,
        dtype=torch.float64,
        **options,
    )
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for layer in range(layout.num_layers):
            for direction, suffix in zip(layout.directions, ("", "_reverse"), strict=False):
                stacks = _stacked(layout, weights, layer, direction, GATES[cell])
                for name, stack in zip(
                    ("weight_ih", "weight_hh", "bias_ih", "bias_hh"), stacks, strict=True
                ):
                    if layout.bias != "none" or not name.startswith("bias"):
                        parameters.pop(f"{name}_l{layer}{suffix}").copy_(torch.from_numpy(stack))
                if layout.projection_size:
                    projection = np.asarray(
                        weights[f"layer{layer}.{direction}.projection"], np.float64
                    )
                    parameters.pop(f"weight_hr_l{layer}{suffix}").copy_(
                        torch.from_numpy(projection)
                    )
    assert not parameters, "some of PyTorch's parameters are still what they were initialized to"

    leaves = [
        torch.tensor(a, requires_grad=True) for a in ((x, hx, cx) if cell == "lstm" else (x, hx))
    ]
    if lengths is None:
        y, state = module(leaves[0], tuple(leaves[1:]) if cell == "lstm" else leaves[1])
        return module, leaves, [y, *(state if cell == "lstm" else [state])]
    # PyTorch packs no sequences of no steps. They are left out, and end with the state that they
    # began with.
    rows = torch.from_numpy(np.flatnonzero(known_lengths))
    packed = pack_padded_sequence(
        leaves[0][:, rows], torch.from_numpy(known_lengths)[rows], enforce_sorted=False
    )
    states = [a[:, rows] for a in leaves[1:]]
    output, state = module(packed, tuple(states) if cell == "lstm" else states[0])
    y, _ = pad_packed_sequence(output, total_length=len(x))
    before = [torch.zeros(*x.shape[:2], y.shape[2], dtype=torch.float64), *leaves[1:]]
    after = [y, *(state if cell == "lstm" else [state])]
    return module, leaves, [a.index_copy(1, rows, b) for a, b in zip(before, after, strict=True)]


def _torch_result(tensors: list[Any]) -> RNNResult:
    y, hy, *cy = (a.detach().numpy() for a in tensors)
    return RNNResult(y, hy, cy[0] if cy else None)


def torch_rnn(
    cell: str,
    weights: Weights,
    x: Array,
    hx: Array | None = None,
    cx: Array | None = None,
    lengths: Lengths | None = None,
) -> RNNResult:
    """Do the same with PyTorch on the CPU.

    A missing bias is 0, and a skipped input goes through identities.
    """
    return _torch_result(_torch_run(cell, weights, x, hx, cx, lengths)[2])


def torch_rnn_gradients(
    cell: str,
    weights: Weights,
    x: Array,
    dy: Array | None,
    dhy: Array | None,
    dcy: Array | None,
    hx: Array | None,
    cx: Array | None,
    lengths: Lengths | None = None,
) -> tuple[RNNResult, RNNGradients]:
    """Do the same, and differentiate sum(y * dy) + sum(hy * dhy) + sum(cy * dcy).

    None is for zeros.
    """
    import torch

    module, leaves, results = _torch_run(cell, weights, x, hx, cx, lengths)
    assert cell == "lstm" or dcy is None
    factors = [
        np.zeros(tuple(a.shape)) if b is None else np.asarray(b, np.float64)
        for a, b in zip(results, (dy, dhy, dcy), strict=False)
    ]
    torch.autograd.backward(results, [torch.from_numpy(a) for a in factors])
    dx, dhx, *dcx = (a.grad.numpy() for a in leaves)

    of_torch = {name: parameter.grad.numpy() for name, parameter in module.named_parameters()}
    gradients = {}
    for name in weights:
        layer, direction, kind, *rest = name.split(".")
        suffix = f"l{layer.removeprefix('layer')}{'_reverse' * (direction == 'backward')}"
        if kind == "projection":
            gradients[name] = of_torch[f"weight_hr_{suffix}"]
            continue
        stack = of_torch[
            f"{'bias' if rest[1:] else 'weight'}_{'ih' if kind == 'input' else 'hh'}_{suffix}"
        ]
        gates = GATES[cell]
        gradients[name] = np.split(stack, len(gates))[gates.index(rest[0])]
    return _torch_result(results), RNNGradients(dx, dhx, dcx[0] if dcx else None, gradients)
