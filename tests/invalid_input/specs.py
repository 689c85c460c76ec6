"""Invalid arguments of specs."""

from __future__ import annotations

import itertools

import numpy as np

import cudnnlite as dnn

from .case import Case

LSTM = dnn.RNNSpec("lstm", 2, 3)

CASES: dict[str, Case] = {
    "dtype of commas": (
        lambda h: dnn.TensorSpec((1,), "f4,,,"),
        r"^dtype='f4,,,' is not a data type",
    ),
    "dtype of half a character": (
        lambda h: dnn.TensorSpec((1,), "\ud800"),
        r"^dtype=.* is not a data type",
    ),
    "a spec as a dtype": (
        lambda h: dnn.TensorSpec((1,), LSTM),
        r"^dtype=RNNSpec\(.* is not a data type",
    ),
    "an array as a layout": (
        lambda h: dnn.TensorSpec((1, 2, 3), layout=np.array([True, True])),
        r"^layout=array\(.* is not a layout of rank 3",
    ),
    "a set as a shape": (lambda h: dnn.TensorSpec({3}), r"^shape=\{3\} is a set"),
    "clip": (lambda h: dnn.RNNSpec("lstm", 2, 3, clip=(0, 10**400)), r"^clip="),
    "padding_fill": (lambda h: dnn.RNNDataSpec((2, 3, 4), padding_fill=10**400), r"^padding_fill="),
    "cell": (lambda h: dnn.RNNSpec(dnn.RNNMode(9), 2, 3), r"^cell=RNNMode\.UNKNOWN_9"),
    "from_tensor": (
        lambda h: dnn.FilterSpec.from_tensor((3, 2, 3, 3)),
        r"^w=\(3, 2, 3, 3\) is not a TensorSpec",
    ),
    "a bool as a step": (
        lambda h: dnn.ConvolutionSpec(padding=True),
        r"^padding=True is not an integer",
    ),
    "a bool among strides": (
        lambda h: dnn.TensorSpec((2, 3), strides=(3, True)),
        r"^strides=\(3, True\)",
    ),
    "endless sizes": (lambda h: dnn.TensorSpec(itertools.count(1)), r"^shape="),
    "endless padding": (lambda h: dnn.ConvolutionSpec(itertools.count(1)), r"^padding="),
    "endless clip": (lambda h: dnn.RNNSpec("lstm", 2, 3, clip=itertools.count(1)), r"^clip="),
    "endless strides": (lambda h: dnn.TensorSpec((1, 2), strides=range(2**62)), r"^strides="),
    "2**31 - 1 lengths": (lambda h: dnn.RNNDataSpec((1, 2**31 - 1, 1)), r"2147483647 sequences"),
    "endless lengths": (
        lambda h: dnn.RNNDataSpec((4, 2), itertools.repeat(1), layout="packed"),
        r"too many",
    ),
}
