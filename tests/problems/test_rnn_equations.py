"""The equations of recurrent layers against ONNX's reference and PyTorch.

Gradients are compared with differences and with autograd.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from cudnnlite.enums import RNNMode
from cudnnlite.problems.rnn_equations import (
    CellWeights,
    Network,
    backward_data,
    backward_weights,
    forward,
    tape_shapes,
)
from cudnnlite.specs import RNNSpec

RELU, TANH, LSTM, GRU = RNNMode.RELU, RNNMode.TANH, RNNMode.LSTM, RNNMode.GRU
T, N, K, H, P = 5, 3, 4, 6, 3
LENGTHS = {"full": (5, 5, 5), "short": (3, 5, 1)}
ONNX_GATES = {
    RELU: (0,),
    TANH: (0,),
    LSTM: (0, 3, 1, 2),
    GRU: (1, 0, 2),
}  # ONNX's order: LSTM i, o, f, c; GRU z, r, h


class Case:
    """A network with random weights, its inputs, and the gradients of its outputs."""

    def __init__(
        self,
        cell,
        layers=1,
        directions=1,
        lengths=LENGTHS["full"],
        projected=False,
        skip=False,
        masked=False,
        *,
        sizes=(T, K, H, P),
        clip=None,
        biases=("input", "recurrent"),
    ):
        rng = np.random.default_rng([cell, layers, directions, *lengths, projected, skip, masked])
        steps, inputs, hidden, projection = sizes
        spec = RNNSpec(
            cell,
            hidden if skip else inputs,
            hidden,
            layers,
            directions == 2,
            clip=clip,
            dtype="float64",
            projection_size=projection if projected else None,
            input_mode="skip" if skip else "linear",
        )
        out, batch = spec.state_size, len(lengths)
        rows, states = len(spec.gates) * hidden, (layers * directions, batch)

        def draw(*size):
            return rng.normal(size=size)

        def weights(layer):
            return CellWeights(
                None if skip and layer == 0 else draw(rows, spec.layer_input_size(layer)) / 2,
                draw(rows, out) / 2,
                draw(rows) / 2 if "input" in biases else None,
                draw(rows) / 2 if "recurrent" in biases else None,
                draw(projection, hidden) / 2 if spec.projects else None,
            )

        self.network = Network(
            spec, [[weights(layer) for _ in range(directions)] for layer in range(layers)]
        )
        self.active = np.arange(steps)[:, None] < lengths
        self.x, self.dy = draw(steps, batch, spec.input_size), draw(steps, batch, directions * out)
        self.hx, self.dhy = draw(*states, out), draw(*states, out)
        self.cx, self.dcy = (
            (draw(*states, hidden), draw(*states, hidden)) if cell == LSTM else (None, None)
        )
        self.masks = None
        if masked:
            self.masks = [rng.integers(0, 2, self.dy.shape) * 1.25 for _ in range(layers - 1)]

    def inputs(self):
        """Everything that a gradient is taken of, by name."""
        parts = {"x": self.x, "hx": self.hx, "cx": self.cx}
        for i, layer in enumerate(self.network.weights):
            for j, cell in enumerate(layer):
                parts |= {(i, j, name): value for name, value in cell._asdict().items()}
        return {name: value for name, value in parts.items() if value is not None}

    def with_inputs(self, parts):
        case = object.__new__(Case)
        case.__dict__ = self.__dict__ | {
            name: parts[name] for name in ("x", "hx", "cx") if name in parts
        }
        weights = [
            [
                CellWeights(*(parts.get((i, j, name)) for name in CellWeights._fields))
                for j in range(len(layer))
            ]
            for i, layer in enumerate(self.network.weights)
        ]
        case.network = replace(self.network, weights=weights)
        return case

    def run(self, tape=None):
        return forward(
            self.network, self.x, self.active, self.hx, self.cx, masks=self.masks, tape=tape
        )

    def gradients(self):
        tape = {
            key: np.full(size, np.nan)
            for key, size in tape_shapes(self.network.spec, *self.active.shape).items()
        }
        self.run(tape)
        options = {"hx": self.hx, "cx": self.cx, "masks": self.masks, "tape": tape}
        dx, dhx, dcx = backward_data(
            self.network, self.active, self.dy, self.dhy, self.dcy, **options
        )
        parts = {"x": dx, "hx": dhx, "cx": dcx}
        dw = backward_weights(self.network, self.active, hx=self.hx, tape=tape)
        return self.with_inputs(
            parts
            | {
                (i, j, k): v
                for i, r in enumerate(dw)
                for j, c in enumerate(r)
                for k, v in c._asdict().items()
            }
        ).inputs()

    def loss(self, y, hy, cy):
        pairs = ((y, self.dy), (hy, self.dhy), (cy, self.dcy))
        return sum(float((a * b).sum()) for a, b in pairs if b is not None)


@cache
def onnx_node(cell, size):
    """Return a runner of one ONNX node.

    The reference has no ReLU in RNN, so the node runs with the identity instead.
    """
    attributes = {"hidden_size": size}
    if cell == GRU:
        attributes["linear_before_reset"] = 1
    if cell == RELU:
        attributes |= {
            "activations": ["Affine"],
            "activation_alpha": [1.0],
            "activation_beta": [0.0],
        }
    kind = cell.name if cell in (LSTM, GRU) else "RNN"
    inputs = ["x", "w", "r", "b", "", "h", "c"][: 7 if cell == LSTM else 6]
    outputs = ["y", "hy", "cy"][: 3 if cell == LSTM else 2]
    values = [
        [helper.make_tensor_value_info(name, TensorProto.DOUBLE, None) for name in names if name]
        for names in (inputs, outputs)
    ]
    graph = helper.make_graph(
        [helper.make_node(kind, inputs, outputs, **attributes)], kind, *values
    )
    evaluator = ReferenceEvaluator(helper.make_model(graph))
    return lambda **feeds: evaluator.run(None, feeds)


def onnx_sequence(cell, weights, clip, x, h, c):
    """One layer over one sequence, x (T, features), in its own order; returns y, h, c."""
    w, r, b_w, b_r, p = weights
    if p is not None:  # a plain LSTM whose unprojected state goes through R @ P
        r, h = r @ p, np.linalg.pinv(p) @ h
    w, r, b_w, b_r = (
        np.concatenate([np.split(a, len(ONNX_GATES[cell]))[gate] for gate in ONNX_GATES[cell]])
        for a in (w, r, b_w, b_r)
    )
    feeds = {"w": w[None], "r": r[None], "b": np.concatenate((b_w, b_r))[None]}
    if cell == LSTM:
        feeds["c"] = c[None, None]
    feeds["h"], ys = h[None, None], []
    step = 1 if cell == RELU or clip else len(x)  # what the node lacks is done between its steps
    for start in range(0, len(x), step):
        if clip:
            feeds["c"] = np.clip(feeds["c"], *clip)
        y, feeds["h"], *rest = onnx_node(cell, r.shape[1])(x=x[start : start + step, None], **feeds)
        if rest:
            (feeds["c"],) = rest
        if cell == RELU:
            y = feeds["h"] = np.maximum(feeds["h"], 0)
        if clip:
            o = feeds["h"] / np.tanh(feeds["c"])
            y = feeds["h"] = o * np.tanh(np.clip(feeds["c"], *clip))
        ys.append(y.reshape(-1, r.shape[1]))
    y, h = np.concatenate(ys), feeds["h"][0, 0]
    if p is not None:
        y, h = y @ p.T, p @ h
    return y, h, feeds["c"][0, 0] if cell == LSTM else None


def onnx_network(case):
    """Run all layers, sequence by sequence; a backward direction runs on flipped sequences."""
    spec = case.network.spec
    hy, cy = np.empty_like(case.hx), None if case.cx is None else np.empty_like(case.cx)
    values = case.x
    for layer, directions in enumerate(case.network.weights):
        if layer and case.masks:
            values = values * case.masks[layer - 1]
        y = np.zeros((*case.active.shape, spec.output_size))
        for d, weights in enumerate(directions):
            if weights.input is None:
                weights = weights._replace(input=np.tile(np.eye(H), (len(spec.gates), 1)))
            at, order = layer * spec.directions + d, slice(None, None, -1 if d else 1)
            for n, length in enumerate(case.active.sum(axis=0)):
                c = None if cy is None else case.cx[at, n]
                one, h, c = onnx_sequence(
                    spec.cell,
                    weights,
                    spec.clip_in_effect,
                    values[:length, n][order],
                    case.hx[at, n],
                    c,
                )
                y[:length, n, d * spec.state_size : (d + 1) * spec.state_size] = one[order]
                hy[at, n] = h
                if cy is not None:
                    cy[at, n] = c
        values = y
    return values, hy, cy


def check_against_onnx(case):
    for ours, theirs in zip(case.run(), onnx_network(case), strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-13)
    gradients, inputs, rng = case.gradients(), case.inputs(), np.random.default_rng(1)
    assert gradients.keys() == inputs.keys()
    for name, value in inputs.items():
        assert gradients[name].shape == value.shape
        direction = rng.normal(size=value.shape)
        ends = [
            case.with_inputs(inputs | {name: value + step * direction}) for step in (1e-5, -1e-5)
        ]
        above, below = (case.loss(*onnx_network(end)) for end in ends)
        assert (gradients[name] * direction).sum() == pytest.approx(
            (above - below) / 2e-5, rel=1e-6, abs=1e-8
        ), name


CASES = {
    "relu": (RELU, 1, 1, "full"),
    "tanh-2x2-short": (TANH, 2, 2, "short"),
    "relu-2x2-short": (RELU, 2, 2, "short"),
    "lstm": (LSTM, 1, 1, "full"),
    "lstm-2x2-short": (LSTM, 2, 2, "short"),
    "gru": (GRU, 1, 1, "full"),
    "gru-2x2-short": (GRU, 2, 2, "short"),
}


@pytest.mark.parametrize(("cell", "layers", "directions", "lengths"), CASES.values(), ids=CASES)
def test_layers_and_their_gradients_are_those_of_onnx(cell, layers, directions, lengths):
    check_against_onnx(Case(cell, layers, directions, LENGTHS[lengths]))


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_projection_is_a_plain_lstm_with_another_recurrence(lengths):
    check_against_onnx(Case(LSTM, 2, 2, lengths, projected=True))


def test_dropout_masks():
    check_against_onnx(Case(LSTM, 3, 2, LENGTHS["short"], masked=True))


@pytest.mark.parametrize("cell", [RELU, LSTM, GRU], ids=lambda cell: cell.name)
def test_skip_input_is_an_identity_for_every_gate(cell):
    check_against_onnx(Case(cell, 2, 2, LENGTHS["short"], skip=True))


def test_clip():
    case = Case(LSTM, 2, 1, LENGTHS["short"], clip=(-0.3, 0.5))
    cy = case.run()[2]
    assert (cy < -0.3).any()  # cy is not clipped, only what is read of it
    assert (cy > 0.5).any()
    assert (abs(cy) < 0.3).any()
    check_against_onnx(case)


@given(data=st.data())
def test_gradients_of_any_network_are_those_of_differences(data):
    """All options of a network together: clip, projection, biases, lengths, masks, sizes of 1."""
    cell = data.draw(st.sampled_from(list(RNNMode)), "cell")
    layers, directions = (
        data.draw(st.integers(1, 2), "layers"),
        data.draw(st.integers(1, 2), "directions"),
    )
    steps, inputs, hidden = (
        data.draw(st.integers(1, 4), name) for name in ("steps", "inputs", "hidden")
    )
    lengths = data.draw(st.lists(st.integers(1, steps), min_size=1, max_size=3), "lengths")
    projected = cell == LSTM and data.draw(st.booleans(), "projected")
    case = Case(
        cell,
        layers,
        directions,
        lengths,
        projected,
        data.draw(st.booleans(), "skip"),
        data.draw(st.booleans(), "masked"),
        sizes=(steps, inputs, hidden, data.draw(st.integers(1, hidden), "projection")),
        clip=data.draw(st.sampled_from([None, (-0.3, 0.5)]), "clip") if cell == LSTM else None,
        biases=data.draw(
            st.sampled_from([(), ("input",), ("recurrent",), ("input", "recurrent")]), "biases"
        ),
    )
    gradients, everything, rng = case.gradients(), case.inputs(), np.random.default_rng(1)
    for name, value in everything.items():
        direction = rng.normal(size=value.shape)
        ends = [
            case.with_inputs(everything | {name: value + step * direction})
            for step in (1e-6, -1e-6)
        ]
        above, below = (case.loss(*end.run()) for end in ends)
        assert (gradients[name] * direction).sum() == pytest.approx(
            (above - below) / 2e-6, rel=1e-5, abs=1e-7
        ), name


@pytest.mark.parametrize("hidden", [1, 2, 4, 16])
@pytest.mark.parametrize("cell", list(RNNMode), ids=lambda cell: cell.name)
def test_float32_of_any_hidden_size(cell, hidden):
    """Gates of strides that NumPy's in-place operations fail at: 16 bytes and, in float64, 64."""
    case = Case(cell, 1, 1, (3, 3, 3, 3, 3), sizes=(3, 2, hidden, 1))
    narrow = case.with_inputs(
        {name: value.astype(np.float32) for name, value in case.inputs().items()}
    )
    for ours, wide in zip(narrow.run(), onnx_network(case), strict=True):
        if ours is not None:
            np.testing.assert_allclose(ours, wide, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("cell", "bias"), [(LSTM, "input_bias"), (GRU, "recurrent_bias"), (TANH, None)]
)
def test_missing_biases_and_states_are_zeros(cell, bias):
    case = Case(cell, 2, 2)
    names = [n for n in ("input_bias", "recurrent_bias") if n != bias]
    zeroed = {
        n: 0 * v if n[-1] in names or n in ("hx", "cx") else v for n, v in case.inputs().items()
    }
    zeros, without = (
        case.with_inputs(zeroed),
        case.with_inputs({n: v for n, v in zeroed.items() if n[-1] not in names}),
    )
    without.hx = without.cx = None
    expected = zeros.gradients()
    for ours, theirs in zip(without.run(), zeros.run(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for name, value in without.gradients().items():
        np.testing.assert_array_equal(value, expected[name])


@pytest.mark.parametrize(
    ("cell", "projected"), [*((cell, False) for cell in RNNMode), (LSTM, True)]
)
def test_nothing_beyond_the_ends_matters(cell, projected):
    case = Case(cell, 2, 2, (0, 5, 2), projected, masked=True)
    expected, gradients = case.run(), case.gradients()
    dirty = case.with_inputs(
        case.inputs() | {"x": np.where(case.active[..., None], case.x, np.nan)}
    )
    dirty.dy = np.where(case.active[..., None], case.dy, np.inf)
    dirty.masks = [np.where(case.active[..., None], mask, np.nan) for mask in case.masks]
    for clean, other in zip(expected, dirty.run(), strict=True):
        np.testing.assert_array_equal(clean, other)
    for name, value in dirty.gradients().items():
        np.testing.assert_array_equal(gradients[name], value)
    y, hy, _ = expected
    assert not y[~case.active].any()
    assert not gradients["x"][~case.active].any()
    np.testing.assert_array_equal(
        hy[:, 0], case.hx[:, 0]
    )  # the empty sequence hands its states through
    np.testing.assert_array_equal(gradients["hx"][:, 0], case.dhy[:, 0])
    dirty.hx, dirty.dhy = case.hx.copy(), case.dhy.copy()
    dirty.hx[:, 0] = dirty.dhy[:, 0] = np.nan
    for name, value in dirty.gradients().items():
        other_rows = np.s_[:, 1:] if name == "hx" else ...
        np.testing.assert_array_equal(value[other_rows], gradients[name][other_rows])
    diverged = case.with_inputs(
        {name: value if name == "x" else value * np.inf for name, value in case.inputs().items()}
    )
    assert not diverged.run()[0][~case.active].any()
    assert not diverged.gradients()["x"][~case.active].any()


@pytest.mark.parametrize("cell", list(RNNMode), ids=lambda cell: cell.name)
def test_float32_stays_float32_and_does_not_overflow(cell):
    case = Case(cell, 2, 2, LENGTHS["short"])
    expected = case.run()
    case = case.with_inputs(
        {name: value.astype(np.float32) for name, value in case.inputs().items()}
    )
    for ours, wide in zip(case.run(), expected, strict=True):
        if ours is not None:
            assert ours.dtype == np.float32
            np.testing.assert_allclose(ours, wide, rtol=1e-4, atol=1e-5)
    case.dy, case.dhy = case.dy.astype(np.float32), case.dhy.astype(np.float32)
    case.dcy = None
    tape = {
        key: np.empty(size, np.float32)
        for key, size in tape_shapes(case.network.spec, T, N).items()
    }
    case.run(tape)
    dx, dhx, dcx = backward_data(
        case.network, case.active, case.dy, case.dhy, hx=case.hx, cx=case.cx, tape=tape
    )
    weights = backward_weights(case.network, case.active, hx=case.hx, tape=tape)
    parts = [dx, dhx, dcx, *(part for layer in weights for cell in layer for part in cell)]
    assert {part.dtype for part in parts if part is not None} == {np.dtype(np.float32)}
    if cell != RELU:
        case.x = case.x * np.float32(1e30)
        assert np.isfinite(case.run()[0]).all()


def test_products_and_stored_values_are_rounded_by_the_network():
    case = Case(LSTM, 2, 2, projected=True)
    sizes = []

    def product(a, b):
        sizes.append((a.ndim, b.ndim))
        return a @ b

    case.network = replace(
        case.network, product=product, store=lambda h: h.astype(np.float16).astype(h.dtype)
    )
    y, hy, cy = case.run()
    assert set(sizes) == {(2, 2)}
    assert len(sizes) == 2 * 2 * (1 + 2 * T)
    for stored in (y, hy):
        np.testing.assert_array_equal(stored, stored.astype(np.float16))
    assert (cy != cy.astype(np.float16)).any()
    sizes.clear()
    case.gradients()
    assert len(sizes) == 2 * 2 * ((1 + 2 * T) + (1 + 2 * T) + 3)
