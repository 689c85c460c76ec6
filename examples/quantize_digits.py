"""A trained network with layers in int8: calibrated, and its accuracy beside float32 and TF32.

    python quantize_digits.py              # trains in float32, then reads the held-out digits
    python quantize_digits.py --epochs 5

An int8 value stands for a float: value = scale * int8.  Calibration chooses the scales: of weights by
their largest value, of a layer's input by the largest value that some images bring there.  cuDNN
multiplies int8 by int8, sums in int32, and multiplies the sum by a float, alpha, here the product of
both scales; bias and relu follow in float32.  int8 wants channels last, in multiples of four: the
first layer (one channel) and the last one (ten) stay in float32.
"""

import argparse
import os

import numpy as np
from train_digits import CLASSES, POOL, Network, accuracy, load_digits, train

import cudnnlite as dnn

LARGEST = 127


def scale_of(values):
    """Return the scale with which the largest value becomes 127."""
    return float(np.abs(values).max()) / LARGEST or 1.0


def quantized(values, scale):
    """Return int8 for floats: the nearest, cut off at the largest."""
    return np.clip(np.rint(values / scale), -LARGEST, LARGEST).astype(np.int8)


class Int8Layer:
    """A convolution with bias and relu, whose products are of int8.

    `images` are inputs that calibrate it.
    """

    def __init__(self, handle, weights, bias, conv, images):
        self.handle, self.bias, self.conv = handle, handle.array(bias), conv
        self.input_scale, self.weight_scale = scale_of(images), scale_of(weights)
        self.w = handle.array(quantized(weights, self.weight_scale), layout="NHWC")

    def __call__(self, x):
        """Return relu(w * x + b) in float32; x is on the host, in float32."""
        x = self.handle.array(quantized(x, self.input_scale), layout="NHWC")
        shape = self.conv.output_shape(x.shape, self.w.shape)
        out = self.handle.empty(shape, "float32", "NHWC")
        return dnn.convolution_bias_activation_forward(
            self.handle,
            x,
            self.w,
            self.bias,
            self.conv,
            "relu",
            alpha=self.input_scale * self.weight_scale,
            out=out,
        )


class QuantizedNetwork:
    """A trained network whose second and third layer are in int8.

    `images` are what it is calibrated with.
    """

    def __init__(self, network, images):
        self.network = network
        state = network.forward(network.images(images))
        weights = {name: array.numpy() for name, array in network.weights.items()}
        self.second, self.third = (
            Int8Layer(network.handle, weights[w], weights[b], conv, before.numpy())
            for w, b, conv, before in (
                ("w2", "b2", dnn.ConvolutionSpec(padding=1), state.p1),
                ("w3", "b3", dnn.ConvolutionSpec(), state.p2),
            )
        )

    def forward(self, images):
        """Return the scores of the ten digits for images on the host: (N, 10)."""
        network, handle = self.network, self.network.handle
        p1 = network.forward(network.images(images)).p1.numpy()
        p2 = dnn.pooling_forward(handle, self.second(p1), POOL).numpy()
        h3 = handle.array(self.third(p2).numpy())
        w4, b4 = network.weights["w4"], network.weights["b4"]
        z = dnn.convolution_forward(handle, h3, w4, network.full, bias=b4)
        return z.numpy().reshape(-1, CLASSES)

    def accuracy(self, images, labels):
        """Return the part of the images that are recognised, from 0 to 1."""
        return float((self.forward(images).argmax(1) == labels).mean())


def with_arithmetic(network, arithmetic):
    """Return a network with the same weights in another arithmetic."""
    other = Network(network.handle, arithmetic)
    for name, array in network.weights.items():
        other.weights[name] = other.master_array(array.numpy())
    return other


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--images", type=int, default=256, help="how many calibrate")
    options = parser.parse_args()
    os.environ.setdefault("CUDNNLITE_DEVICE", "auto")
    images, labels, held_images, held_labels = load_digits()
    with dnn.Handle() as handle:
        handle.stream = handle.device.create_stream()
        print(f"device: {handle.device} {handle.device.name}")
        network = Network(handle, "float32")
        train([network], (images, labels, held_images, held_labels), epochs=options.epochs)
        int8 = QuantizedNetwork(network, images[: options.images])
        rows = {
            "true float32": accuracy(network, held_images, held_labels),
            "TF32": accuracy(with_arithmetic(network, "tf32"), held_images, held_labels),
            "int8 in two of four layers": int8.accuracy(held_images, held_labels),
        }
        for name, part in rows.items():
            print(f"{name:27} {part:.2%} of the held-out digits read rightly")


if __name__ == "__main__":
    main()
