"""`examples/train_digits.py`: its gradients against slopes, and a training that learns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from helpers.examples import example_module

import cudnnlite as dnn
from cudnnlite.devices.device_choice import visible_gpus

from .libraries import library


@pytest.fixture(scope="module")
def digits() -> Iterator[Any]:
    with example_module("train_digits") as module:
        yield module


def loss_of(network: Any, x: Any, target: Any) -> float:
    dnn.set_tensor(network.handle, network.loss_sum, 0.0)
    network.add_loss(network.forward(x), target)
    return float(network.loss_sum.numpy().item())


@pytest.mark.exhaustive
def test_gradients_of_the_whole_network_are_the_slopes_of_its_loss(
    handle: dnn.Handle, digits: Any
) -> None:
    rng = np.random.default_rng(3)
    network = digits.Network(handle, "float64", widths=(3, 4, 5), seed=2)
    x = network.images(rng.standard_normal((6, 1, 8, 8)))
    target = network.master_array(digits.one_hot(rng.integers(0, 10, 6)))
    for name in ("b1", "b2", "b3", "b4"):  # no relu lies at its kink
        network.weights[name] = network.master_array(
            0.3 * rng.standard_normal(network.weights[name].shape)
        )
    state = network.forward(x)
    network.backward(state, target)
    gradients = {name: array.numpy() for name, array in network.gradients.items()}
    for name, gradient in gradients.items():
        check_slopes(network, name, gradient, x, target)


def check_slopes(network: Any, name: str, gradient: Any, x: Any, target: Any) -> None:
    """Compare the six steepest values of a gradient and six others with slopes of the loss."""
    rng, step = np.random.default_rng(5), 1e-5
    array = network.weights[name]
    values = array.numpy()
    steepest = np.argsort(np.abs(gradient), axis=None)[-6:]
    others = rng.choice(values.size, min(6, values.size), replace=False)
    slopes, expected = [], []
    for place in (*steepest, *others):
        losses = []
        for sign in (1, -1):
            moved = values.copy()
            moved.flat[place] += sign * step
            network.weights[name] = network.master_array(moved)
            losses.append(loss_of(network, x, target))
        slopes.append((losses[0] - losses[1]) / (2 * step))
        expected.append(gradient.flat[place])
    network.weights[name] = array
    assert np.abs(slopes).max() > 1e-3, name  # there is something to compare
    np.testing.assert_allclose(expected, slopes, atol=1e-7, err_msg=name)


@pytest.mark.exhaustive
def test_gradients_of_the_classical_network_are_the_slopes_of_its_loss(
    handle: dnn.Handle, digits: Any
) -> None:
    rng = np.random.default_rng(4)
    network = digits.ClassicalNetwork(handle, "float64", widths=(2, 3, 2, 4), seed=2)
    x = network.images(rng.standard_normal((3, 1, 28, 28)))
    target = network.master_array(digits.one_hot(rng.integers(0, 10, 3)))
    for number in range(1, 6):  # no relu lies at its kink
        bias = network.weights[f"b{number}"]
        network.weights[f"b{number}"] = network.master_array(0.3 * rng.standard_normal(bias.shape))
    network.backward(network.forward(x), target)
    gradients = {name: array.numpy() for name, array in network.gradients.items()}
    for name, gradient in gradients.items():
        check_slopes(network, name, gradient, x, target)


def test_the_classical_network_has_the_sizes_of_the_textbook(
    handle: dnn.Handle, digits: Any
) -> None:
    images, labels, _, _ = digits.load_digits(size=28)
    assert images.shape == (len(labels), 1, 28, 28)
    network = digits.ClassicalNetwork(handle)
    state = network.forward(network.images(images[:2]))
    shapes = [layer.shape[1:] for layer in state.h]
    assert shapes == [(1, 28, 28), (12, 28, 28), (24, 14, 14), (32, 7, 7), (200, 1, 1)]
    assert state.softmax.shape == (2, 10, 1, 1)
    assert {name: array.shape for name, array in network.weights.items() if name[0] == "w"} == {
        "w1": (12, 1, 3, 3),
        "w2": (24, 12, 6, 6),
        "w3": (32, 24, 6, 6),
        "w4": (200, 32, 7, 7),
        "w5": (10, 200, 1, 1),
    }


def test_enlarged_images_keep_their_corners_and_their_range(digits: Any) -> None:
    images = np.random.default_rng(0).random((3, 1, 8, 8))
    large = digits.enlarged(images, 28)
    assert large.shape == (3, 1, 28, 28)
    np.testing.assert_allclose(
        large[..., [0, 0, -1, -1], [0, -1, 0, -1]], images[..., [0, 0, -1, -1], [0, -1, 0, -1]]
    )
    interpolate = pytest.importorskip("scipy.ndimage").zoom
    expected = interpolate(images, (1, 1, 3.5, 3.5), order=1)
    np.testing.assert_allclose(large, expected, atol=1e-12)
    np.testing.assert_array_equal(digits.enlarged(images, 8), images)


@pytest.mark.exhaustive
def test_the_classical_network_learns(handle: dnn.Handle, digits: Any) -> None:
    handle.stream = handle.device.create_stream()
    images, labels, held_images, held_labels = digits.load_digits(size=28)
    data = images[:512], labels[:512], held_images[:128], held_labels[:128]
    network = digits.ClassicalNetwork(handle)
    history = digits.train([network], data, epochs=4, rate=0.02)
    assert history["held_out"][-1] > 0.8
    assert history["loss"][-1] < history["loss"][0] / 2


def test_the_loss_is_the_cross_entropy(handle: dnn.Handle, digits: Any) -> None:
    special = pytest.importorskip("scipy.special")
    images, labels, _, _ = digits.load_digits()
    network = digits.Network(handle, widths=(4, 5, 6))
    x, target = network.images(images[:32]), network.master_array(digits.one_hot(labels[:32]))
    loss, z = (
        loss_of(network, x, target),
        network.forward(x).z.numpy().reshape(32, 10).astype(np.float64),
    )
    expected = -special.log_softmax(z, axis=1)[np.arange(32), labels[:32]].mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


@pytest.mark.parametrize("arithmetic", ["float32", "tf32", "mixed"])
def test_mixed_precision_and_tf32_have_the_same_gradients_to_rounding(
    arithmetic: str, handle: dnn.Handle, digits: Any
) -> None:
    images, labels, _, _ = digits.load_digits()
    gradients = []
    for one in ("float64", arithmetic):
        network = digits.Network(handle, one, seed=1)
        state = network.forward(network.images(images[:64]))
        network.backward(state, network.master_array(digits.one_hot(labels[:64])))
        gradients.append(
            {name: array.numpy() / network.loss_scale for name, array in network.gradients.items()}
        )
    bound = {"float32": 1e-4, "tf32": 4e-2, "mixed": 6e-2}[arithmetic]
    for name, exact in gradients[0].items():
        assert np.linalg.norm(gradients[1][name] - exact) < bound * np.linalg.norm(exact), name


def test_one_step_is_what_the_rule_says(handle: dnn.Handle, digits: Any) -> None:
    images, labels, _, _ = digits.load_digits()
    network = digits.Network(handle, "mixed", widths=(4, 5, 6))
    before = {name: array.numpy() for name, array in network.weights.items()}
    velocity = {name: np.zeros_like(array) for name, array in before.items()}
    x, target = network.images(images[:16]), network.master_array(digits.one_hot(labels[:16]))
    for _ in range(3):
        network.backward(network.forward(x), target)
        network.update(0.1, 0.9)
        for name, gradient in network.gradients.items():
            velocity[name] = 0.9 * velocity[name] + gradient.numpy() / network.loss_scale
            before[name] = before[name] - 0.1 * velocity[name]
    for name, array in network.weights.items():
        np.testing.assert_allclose(array.numpy(), before[name], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    "arithmetic", ["float32", pytest.param("mixed", marks=pytest.mark.exhaustive)]
)
def test_a_short_training_learns(arithmetic: str, handle: dnn.Handle, digits: Any) -> None:
    handle.stream = handle.device.create_stream()
    network = digits.Network(handle, arithmetic)
    history = digits.train([network], digits.load_digits(), epochs=6)
    assert history["held_out"][-1] > 0.95
    assert history["loss"][-1] < history["loss"][0] / 5


def test_the_captured_step_trains_as_the_calls_do(handle: dnn.Handle, digits: Any) -> None:
    handle.stream = handle.device.create_stream()
    images, labels, held_images, held_labels = digits.load_digits()
    data = images[:192], labels[:192], held_images, held_labels
    losses = []
    for graph in (True, False):
        network = digits.Network(handle, widths=(4, 6, 8))
        losses.append(digits.train([network], data, epochs=4, graph=graph)["loss"])
    np.testing.assert_allclose(
        losses[0], losses[1], rtol=1e-3
    )  # some of cuDNN's gradients add in any order
    assert len({*losses[0]}) == 4


SECOND = (
    "cuda:1" if len(visible_gpus()) > 1 else "cuda:0"
)  # NCCL adds for two GPUs, NumPy for two handles on one


@pytest.mark.parametrize(
    ("first", "second"),
    [("emulated:0", "emulated:1"), pytest.param("cuda:0", SECOND, marks=pytest.mark.gpu)],
)
def test_two_devices_train_as_one(first: str, second: str, digits: Any) -> None:
    if second == "cuda:1":
        library("cupy")
    images, labels, held_images, held_labels = digits.load_digits()
    data, losses = (images[:192], labels[:192], held_images, held_labels), []
    for names in ([first], [first, second]):
        with ExitStack() as stack:
            handles = [stack.enter_context(dnn.Handle(name)) for name in names]
            for handle in handles:
                handle.stream = handle.device.create_stream()
            networks = [
                digits.Network(handle, "float64", (4, 6, 8), copies=len(names))
                for handle in handles
            ]
            add = stack.enter_context(digits.adder(handles))
            losses.append(digits.train(networks, data, epochs=5, add=add)["loss"])
            for name, array in networks[0].weights.items():
                np.testing.assert_array_equal(
                    array.numpy(), networks[-1].weights[name].numpy(), err_msg=name
                )
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-9)
    assert len({*losses[0]}) == 5
