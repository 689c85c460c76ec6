"""The worked examples of layers; those of convolutions and recurrent networks are beside these."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import cudnnlite as dnn

EXAMPLES = json.loads((Path(__file__).parents[1] / "data" / "worked_examples.json").read_text())


def test_example_of_max_pooling(handle: dnn.Handle) -> None:
    example = EXAMPLES["max_pool"]
    x = handle.array(np.array([[example["x"]]], np.float32))
    y = dnn.pooling_forward(
        handle, x, dnn.PoolingSpec(example["window"], padding=0, stride=example["stride"])
    )
    np.testing.assert_array_equal(y.numpy(), [[example["y"]]])


def test_example_of_a_stage_of_a_network(handle: dnn.Handle) -> None:
    """A relu in place, maxima, and a softmax over all values, channel by channel."""
    example = EXAMPLES["cnn_stage"]
    host = np.moveaxis(np.array(example["conv_nhwc"], np.float32), -1, 1)
    for layout in ("NCHW", "NHWC"):
        x = handle.array(host, layout=layout)
        pooled = dnn.pooling_forward(
            handle,
            dnn.activation_forward(handle, x, "relu", out=x),
            dnn.PoolingSpec(2, padding=0, stride=1),
        )
        np.testing.assert_array_equal(np.moveaxis(pooled.numpy(), 1, -1), example["pooled_nhwc"])
        flat = pooled.numpy().ravel()
        np.testing.assert_array_equal(flat, example["flat"])
        odds = dnn.softmax_forward(handle, handle.array(flat[None]), mode="instance")
        np.testing.assert_allclose(odds.numpy()[0], example["softmax"], rtol=1e-6)


def test_example_of_folding_a_batch_normalisation(handle: dnn.Handle) -> None:
    """The formula of the example, and our own two layers after each other."""
    rng, epsilon = np.random.default_rng(0), 1e-3
    x, w = rng.standard_normal((2, 3, 6, 5)), rng.standard_normal((4, 3, 3, 3))
    b, gamma, beta, m = (rng.standard_normal((1, 4, 1, 1)) for _ in range(4))
    v = rng.uniform(0.5, 2, (1, 4, 1, 1))
    conv = dnn.ConvolutionSpec(1)
    y = dnn.convolution_forward(handle, handle.array(x), handle.array(w), conv)
    dnn.add_tensor(handle, handle.array(b), y)
    expected = dnn.batch_normalization_inference(
        handle, y, *map(handle.array, (gamma, beta, m, v)), epsilon=epsilon
    )
    scale = gamma / np.sqrt(v + epsilon)
    folded = dnn.convolution_forward(
        handle, handle.array(x), handle.array(w * scale.reshape(4, 1, 1, 1)), conv
    )
    dnn.add_tensor(handle, handle.array(gamma * (b - m) / np.sqrt(v + epsilon) + beta), folded)
    np.testing.assert_allclose(folded.numpy(), expected.numpy(), atol=1e-12)
