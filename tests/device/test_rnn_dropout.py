"""Dropout between layers: which values it drops, how it scales the rest, and its random states.

In the transparent network the output shows the mask: layer 0 returns ones, and layer 1 returns its
input plus one.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from rnn_oracles import GATES
from tolerances import RNN_SUM

import cudnnlite as dnn

from .rnn_problems import Case, Problem, each_direction, overwrite

Array = np.ndarray[Any, Any]
T, N, H = 6, 32, 64
# What is kept is multiplied by 2, 4 / 3 and 4.
RATES = (0.5, 0.25, 0.75)
# (algorithm, dtype)
WAYS = {
    "STANDARD-float32": ("STANDARD", "float32"),
    "STANDARD-float64": ("STANDARD", "float64"),
    "STANDARD-float16": ("STANDARD", "float16"),
    "PERSIST_STATIC-float32": ("PERSIST_STATIC", "float32"),
    "PERSIST_STATIC_SMALL_H-float32": ("PERSIST_STATIC_SMALL_H", "float32"),
}
each_way = pytest.mark.parametrize(("algorithm", "dtype"), WAYS.values(), ids=WAYS)


class Transparent:
    """Two layers of relu: y is 1 + the input of layer 1, so y - 1 is the mask on layer 0's ones."""

    def __init__(
        self,
        handle: dnn.Handle,
        rate: float,
        dtype: str = "float32",
        bidirectional: bool = False,
        layers: int = 2,
    ) -> None:
        self.handle = handle
        self.spec = dnn.RNNSpec(
            "relu",
            8,
            H,
            layers,
            bidirectional,
            dropout=rate,
            dtype=dtype,
            math_type="FMA",
            bias="double",
        )
        self.weights = dnn.RNNWeights(handle, self.spec)
        for layer, d in product(range(layers), range(self.spec.directions)):
            prefix = f"layer{layer}.{('forward', 'backward')[d]}.input.h"
            if layer:
                # the forward half of layer 1 passes on the forward half of layer 0, and so on
                self.weights[prefix] = np.eye(H, H * self.spec.directions, d * H)
            if layer in (0, layers - 1):
                self.weights[f"{prefix}.bias"] = np.ones(H)
        self.x = handle.array(np.ones((T, N, 8), self.weights.array.dtype))

    def run(
        self, state: dnn.DropoutState | None, algorithm: str = "STANDARD", **options: Any
    ) -> Any:
        arguments = {"training": True, "dropout_state": state, "algorithm": algorithm} | options
        return dnn.rnn_forward(self.handle, self.spec, self.weights, self.x, **arguments)

    def mask(
        self, state: dnn.DropoutState | None, algorithm: str = "STANDARD", **options: Any
    ) -> Array:
        """Run it, and return the mask in float64."""
        result = self.run(state, algorithm, **options)
        hidden = result.hy.numpy().astype(np.float64)
        np.testing.assert_array_equal(
            hidden[: self.spec.directions], 1
        )  # a last state is not dropped
        return result.y.numpy().astype(np.float64) - 1


# What a mask is.


@each_direction
@pytest.mark.parametrize("rate", RATES)
@each_way
def test_masks_are_zeros_and_the_scale(
    handle: dnn.Handle, algorithm: str, dtype: str, rate: float, bidirectional: bool
) -> None:
    net, state = Transparent(handle, rate, dtype, bidirectional), dnn.DropoutState(handle, 7)
    for _ in range(3):
        mask = net.mask(state, algorithm)
        survivors = mask > 0.5
        assert mask.shape == (T, N, H * net.spec.directions)
        np.testing.assert_array_equal(mask[~survivors], 0)
        # float16 has 11 bits for 1 + 4 / 3
        np.testing.assert_allclose(
            mask[survivors], 1 / (1 - rate), rtol=2e-3 if dtype == "float16" else 1e-6
        )
        # 12288 draws: six standard deviations are 0.027 at most
        assert abs(survivors.mean() - (1 - rate)) < 6 * np.sqrt(rate * (1 - rate) / mask.size)
        # Each value, step and sequence has its own draw: the means are not all 0 or 1, nor all
        # equal.
        for axes in ((0, 1), (0, 2), (1, 2)):
            means = survivors.mean(axis=axes)
            assert 0 < means.min() < means.max() < 1


def test_every_layer_but_the_last_is_dropped(handle: dnn.Handle) -> None:
    """Dropout acts behind two of three layers: the square of the share passes, scaled twice."""
    net, state = Transparent(handle, 0.5, layers=3), dnn.DropoutState(handle, 7)
    mask = net.mask(state)
    assert set(np.unique(mask)) == {0, 4}
    assert abs((mask > 0).mean() - 0.25) < 6 * np.sqrt(0.25 * 0.75 / mask.size)


@pytest.mark.parametrize("layout", ["sequence_major", "batch_major", "packed"])
def test_masks_of_sequences_of_any_length(handle: dnn.Handle, layout: str) -> None:
    net, state = Transparent(handle, 0.5), dnn.DropoutState(handle, 7)
    lengths = tuple(sorted((1 + n % T for n in range(N)), reverse=True))
    active = np.arange(T)[:, None] < np.array(lengths)
    x = np.where(active[..., None], np.float32(1), np.float32(np.nan)) * np.ones(8, np.float32)
    shaped = {"batch_major": x.swapaxes(0, 1), "packed": x[active]}.get(layout, x)
    net.x = handle.array(np.ascontiguousarray(shaped))
    mask = net.mask(state, lengths=lengths, layout=layout)
    if layout != "packed":
        mask = mask.swapaxes(0, 1) if layout == "batch_major" else mask
        np.testing.assert_array_equal(mask[~active], -1)  # padding
        mask = mask[active]
    assert set(np.unique(mask)) == {0, 2}
    assert abs((mask > 0).mean() - 0.5) < 6 * 0.5 / np.sqrt(mask.size)


# Random numbers.


@each_way
def test_a_seed_gives_its_masks_again(handle: dnn.Handle, algorithm: str, dtype: str) -> None:
    net = Transparent(handle, 0.5, dtype)
    runs = [
        [net.mask(state, algorithm) for _ in range(3)]
        for state in (dnn.DropoutState(handle, 7) for _ in range(2))
    ]
    for one, other in zip(*runs, strict=True):
        np.testing.assert_array_equal(one, other)
    first, second, third = runs[0]
    other = net.mask(dnn.DropoutState(handle, 8), algorithm)
    for one, two in ((first, second), (second, third), (first, third), (first, other)):
        assert (
            0.4 < (one != two).mean() < 0.6
        )  # the state moved on; masks of 1/2 differ in half of the places


def test_seeds(handle: dnn.Handle) -> None:
    net = Transparent(handle, 0.5)
    masks = [net.mask(dnn.DropoutState(handle, seed)) for seed in (0, 1, 2**32, 2**64 - 1)]
    for i, one in enumerate(masks):
        assert all((one != other).any() for other in masks[:i])
    np.testing.assert_array_equal(masks[0], net.mask(dnn.DropoutState(handle)))


@each_way
def test_a_saved_state_gives_its_masks_again(
    handle: dnn.Handle, algorithm: str, dtype: str
) -> None:
    net, state = Transparent(handle, 0.5, dtype), dnn.DropoutState(handle, 7)
    net.mask(state, algorithm)
    saved = state.save()
    expected = [net.mask(state, algorithm) for _ in range(2)]
    assert (state.save() != saved).any()
    state.restore(saved)
    np.testing.assert_array_equal(state.save(), saved)
    other = dnn.DropoutState(handle, 7)
    other.restore(saved)
    for one in (state, other):  # another one of the same seed too
        for mask in expected:
            np.testing.assert_array_equal(net.mask(one, algorithm), mask)


def test_a_saved_state_is_a_copy(handle: dnn.Handle) -> None:
    net, state = Transparent(handle, 0.5), dnn.DropoutState(handle, 7)
    saved = state.save()
    before = saved.copy()
    net.mask(state)
    np.testing.assert_array_equal(saved, before)


def test_two_states_do_not_touch_each_other(handle: dnn.Handle) -> None:
    net = Transparent(handle, 0.5)
    alone = dnn.DropoutState(handle, 1)
    expected = [net.mask(alone) for _ in range(3)]
    one, other = dnn.DropoutState(handle, 1), dnn.DropoutState(handle, 2)
    for mask in expected:
        np.testing.assert_array_equal(net.mask(one), mask)
        net.mask(other)


def test_networks_may_share_a_state(handle: dnn.Handle) -> None:
    """With other rates: each draws on from where the last one stopped."""
    state, nets = dnn.DropoutState(handle, 7), [Transparent(handle, rate) for rate in RATES]
    saved = state.save()
    masks = [net.mask(state) for net in nets]
    for net, mask in zip(nets, masks, strict=True):
        assert abs((mask > 0).mean() - (1 - net.spec.dropout)) < 0.03
    state.restore(saved)
    for net, mask in zip(nets, masks, strict=True):
        np.testing.assert_array_equal(net.mask(state), mask)


# Where nothing is dropped.


@pytest.mark.parametrize("has_state", [False, True], ids=["without_state", "with_state"])
@pytest.mark.parametrize("algorithm", ["STANDARD", "PERSIST_STATIC"])
def test_inference_drops_nothing(handle: dnn.Handle, algorithm: str, has_state: bool) -> None:
    state = dnn.DropoutState(handle, 7) if has_state else None
    case = Case("lstm", 3, dtype="float32", batch=8, input_size=16, hidden_size=64)
    problem = Problem(handle, case, dropout=0.5)
    saved = state.save() if state else None
    for _ in range(2):
        problem.assert_forward(problem.forward(dropout_state=state, algorithm=algorithm), algorithm)
    if state:
        np.testing.assert_array_equal(state.save(), saved)


def test_a_single_layer_drops_nothing(handle: dnn.Handle) -> None:
    state = dnn.DropoutState(handle, 7)
    saved = state.save()
    for state_or_none in (None, state):
        problem = Problem(handle, Case("lstm", 1, True), dropout=0.5)
        result = problem.forward(training=True, dropout_state=state_or_none)
        problem.assert_forward(result)
        problem.assert_backward(*problem.backward(result.reserve))
    np.testing.assert_array_equal(state.save(), saved)


def test_a_rate_of_zero_drops_nothing(handle: dnn.Handle) -> None:
    state = dnn.DropoutState(handle, 7)
    saved = state.save()
    for state_or_none in (None, state):
        problem = Problem(handle, Case("gru", 3, True), dropout=0.0)
        result = problem.forward(training=True, dropout_state=state_or_none)
        problem.assert_forward(result)
        problem.assert_backward(*problem.backward(result.reserve))
    np.testing.assert_array_equal(state.save(), saved)


def test_a_rate_of_one_drops_everything(handle: dnn.Handle) -> None:
    """What comes after the first layer sees nothing of it, forward and backward."""
    net, state = Transparent(handle, 1.0), dnn.DropoutState(handle, 7)
    np.testing.assert_array_equal(net.mask(state), 0)


def test_training_needs_a_state(handle: dnn.Handle) -> None:
    net = Transparent(handle, 0.5)
    for wrong in (None, 7, np.zeros(4096, np.uint8)):
        with pytest.raises(dnn.ArgumentError, match="DropoutState"):
            net.run(wrong)
    assert set(np.unique(net.mask(dnn.DropoutState(handle, 7)))) == {0, 2}


# Gradients.


@each_direction
@each_way
def test_backward_has_the_mask_of_forward(
    handle: dnn.Handle, algorithm: str, dtype: str, bidirectional: bool
) -> None:
    """The output shows the mask, and from it follow all gradients: sums of mask * dy."""
    net, state = Transparent(handle, 0.5, dtype, bidirectional), dnn.DropoutState(handle, 7)
    rng = np.random.default_rng(0)
    dy = rng.integers(-2, 3, (T, N, H * net.spec.directions)).astype(np.float64)
    for _ in range(2):  # the second mask is another
        result = net.run(state, algorithm)
        mask = result.y.numpy().astype(np.float64) - 1
        dnn.rnn_backward_data(
            handle, result.reserve, handle.array(dy.astype(net.weights.array.dtype))
        )
        dweights = dnn.rnn_backward_weights(handle, result.reserve).numpy()
        for d, direction in enumerate(("forward", "backward")[: net.spec.directions]):
            half = slice(d * H, (d + 1) * H)
            close = {"rtol": 2e-3 if dtype == "float16" else 1e-6, "atol": 0}
            # Sums of small integers: exact, but for float16, which holds 11 bits of them.  Only the
            # direction's own half of its input shows in y, and an H200 has a mask for each
            # direction, so nothing is known of the other half.
            into_layer_1 = np.einsum("tnh,tnk->hk", dy[..., half], mask[..., half])
            input_gradient = dweights[f"layer1.{direction}.input.h"][:, half].astype(float)
            np.testing.assert_allclose(input_gradient, into_layer_1, **close)
            into_layer_0 = (dy * mask)[..., half].sum(axis=(0, 1))
            np.testing.assert_allclose(
                dweights[f"layer0.{direction}.input.h.bias"].astype(float), into_layer_0, **close
            )


@pytest.mark.parametrize("lengths", [None, (3, 5, 1)], ids=["full", "variable"])
@pytest.mark.parametrize("cell", [*GATES, "lstm_projection"])
def test_gradients_are_those_of_our_own_forward_pass(
    handle: dnn.Handle, cell: str, lengths: Any
) -> None:
    """Central differences in float64, with the same mask each time."""
    problem = Problem(handle, Case(cell, 3, True, lengths=lengths), dropout=0.3)
    values, rng, state = problem.case.values, np.random.default_rng(3), dnn.DropoutState(handle, 7)
    saved = state.save()
    result = problem.forward(training=True, dropout_state=state)
    data, weights = problem.backward(result.reserve)
    with_mask = problem.on_host(result)
    assert abs(with_mask.y - problem.case.results[0].y).max() > 1e-3  # something was dropped

    start = {"x": values.x, "hx": values.hx} | values.weights
    gradients = {
        "x": problem.brought_back(data.dx.numpy()),
        "hx": data.dhx.numpy(),
    } | weights.numpy()
    if values.cx is not None:
        start["cx"], gradients["cx"] = values.cx, data.dcx.numpy()
    directions = {name: rng.standard_normal(array.shape) for name, array in start.items()}

    def loss(moved: set[str], step: float) -> float:
        at = {
            name: array + step * directions[name] * (name in moved) for name, array in start.items()
        }
        problem.weights.update({name: at[name] for name in values.weights})
        for array, name in ((problem.hx, "hx"), (problem.cx, "cx")):
            if array is not None:
                overwrite(array, at[name])
        overwrite(problem.x, problem.laid_out(at["x"]))
        state.restore(saved)
        result = problem.on_host(problem.forward(training=True, dropout_state=state))
        pairs = (
            (result.y, values.dy * problem.active[..., None]),
            (result.hy, values.dhy),
            (result.cy, values.dcy),
        )
        return sum(float((one * other).sum()) for one, other in pairs if other is not None)

    for moved in ({"x"}, {"hx", "cx"} & start.keys(), set(values.weights)):
        expected = (loss(moved, 1e-6) - loss(moved, -1e-6)) / 2e-6
        slope = sum(float((gradients[name] * directions[name]).sum()) for name in moved)
        norm = np.sqrt(sum(float((gradients[name] ** 2).sum()) for name in moved))
        assert abs(slope - expected) <= RNN_SUM * norm, (
            f"{sorted(moved)[0]}: {slope}, by differences {expected}"
        )
