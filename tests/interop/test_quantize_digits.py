"""`examples/quantize_digits.py`: int8 layers against sums of integers, and the network's accuracy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers.examples import example_module
from oracles import onnx_convolution

import cudnnlite as dnn


@pytest.fixture(scope="module")
def quantize() -> Iterator[Any]:
    with example_module("quantize_digits") as module:
        yield module


def test_quantizing_is_exact_to_half_a_step(quantize: Any) -> None:
    values = np.random.default_rng(0).standard_normal((3, 4, 5, 6))
    scale = quantize.scale_of(values)
    numbers = quantize.quantized(values, scale)
    assert numbers.dtype == np.int8
    assert np.abs(numbers.astype(int)).max() == 127
    assert np.abs(scale * numbers - values).max() <= scale / 2 * (1 + 1e-12)
    assert quantize.scale_of(np.zeros(3)) == 1.0
    np.testing.assert_array_equal(quantize.quantized(np.array([-1e9, 1e9]), 1.0), [-127, 127])


@pytest.mark.parametrize(("padding", "taps"), [(1, 3), (0, 2)])
def test_a_layer_is_the_sum_of_products_of_integers(
    handle: dnn.Handle, quantize: Any, padding: int, taps: int
) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((3, 8, 6, 5)).astype(np.float32)
    w = rng.standard_normal((12, 8, taps, taps)).astype(np.float32)
    bias = rng.standard_normal((1, 12, 1, 1)).astype(np.float32)
    layer = quantize.Int8Layer(handle, w, bias, dnn.ConvolutionSpec(padding=padding), x)
    numbers = [
        quantize.quantized(values, scale).astype(np.float64)
        for values, scale in ((x, layer.input_scale), (w, layer.weight_scale))
    ]
    sums = onnx_convolution(*numbers, (padding, padding), (1, 1), (1, 1))
    expected = np.maximum(layer.input_scale * layer.weight_scale * sums + bias, 0)
    np.testing.assert_allclose(layer(x).numpy(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.exhaustive
def test_the_quantized_network_reads_digits(handle: dnn.Handle, quantize: Any) -> None:
    handle.stream = handle.device.create_stream()
    images, _labels, held_images, held_labels = data = quantize.load_digits()
    network = quantize.Network(handle, "float32")
    history = quantize.train([network], data, epochs=6)
    int8 = quantize.QuantizedNetwork(network, images[:256])
    assert int8.accuracy(held_images, held_labels) > history["held_out"][-1] - 0.02
    scores = network.forward(network.images(held_images)).z.numpy().reshape(-1, 10)
    error = np.abs(int8.forward(held_images) - scores).max()
    assert 0 < error < 0.1 * np.abs(scores).max()
    tf32 = quantize.with_arithmetic(network, "tf32")
    assert quantize.accuracy(tf32, held_images, held_labels) > history["held_out"][-1] - 0.02
