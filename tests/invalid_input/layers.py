"""Invalid arguments of layers."""

from __future__ import annotations

import itertools

import numpy as np

import cudnnlite as dnn

from .case import Case


def call_twice(h, operation, *operands):
    """The second call of a kind finds its plan by what it is given."""
    operation(h, *operands[:-1], 1.0)
    operation(h, *operands)


def normalize(h, **options):
    x, one, mean, variance = h.zeros((2, 3, 4, 4)), *(h.full((1, 3, 1, 1), 1) for _ in range(3))
    return dnn.batch_normalization_training(
        h, x, one, one, running_mean=mean, running_var=variance, **options
    )


CASES: dict[str, Case] = {
    "an array as a number, later": (
        lambda h: call_twice(h, dnn.set_tensor, h.empty((2, 3)), np.ones(3)),
        r"value=array\(.*\) must be a real number",
    ),
    "an array as a mode": (
        lambda h: dnn.batch_normalization_backward(h, *[None] * 5, mode=np.zeros(2)),
        r"^mode=array\(.* is not a BatchNormMode",
    ),
    "an endless sequence as axes": (
        lambda h: dnn.reduce_tensor(h, h.empty((2, 3)), "add", axes=itertools.repeat(1)),
        r"^axes=repeat\(1\)",
    ),
    "a bare list as x of a normalisation": (
        lambda h: dnn.batch_normalization_inference(h, *[h.empty((6,))] * 5),
        r"^x=TensorSpec.*rank 2 to 5",
    ),
    "a bias of one axis to add": (
        lambda h: dnn.add_tensor(h, h.empty((3,)), h.empty((2, 3, 4, 5))),
        r"^a has shape \(3,\); .*; a\.reshape\(1, -1, 1, 1\) has a value for each channel$",
    ),
    "a bias of one axis for volumes": (
        lambda h: dnn.op_tensor(h, h.empty((2, 3, 4, 5, 6)), h.empty((3,)), "add"),
        r"^b has shape \(3,\); .*; b\.reshape\(1, -1, 1, 1, 1\) has a value for each channel$",
    ),
    "an array of one axis that is no bias": (
        lambda h: dnn.add_tensor(h, h.empty((5,)), h.empty((2, 3, 4, 5))),
        r"^a has shape \(5,\); .*, \(2, 3, 4, 5\)$",
    ),
    "NumPy's default data type to add": (
        lambda h: dnn.add_tensor(h, h.array(np.ones((1, 3))), h.empty((2, 3))),
        r"^a is float64; needed: float32; handle\.array\(values, dtype='float32'\)",
    ),
    "NumPy's default data type as the first of two": (
        lambda h: dnn.op_tensor(h, h.array(np.ones((1, 3))), h.empty((1, 3), "float16"), "mul"),
        r"^a is float64; needed: float16; handle\.array\(values, dtype='float16'\)",
    ),
    "NumPy's default data type as an output": (
        lambda h: dnn.activation_forward(
            h, h.zeros((2, 3)), "relu", out=h.empty((2, 3), "float64")
        ),
        r"^out is float64; needed: float32",
    ),
    "float8 as the result of a conversion": (
        lambda h: dnn.transform_tensor(h, h.zeros((1, 2, 3, 4)), dtype="float8_e4m3fn"),
        r"^dtype='float8_e4m3fn'; allowed: float32, float64, float16, bfloat16, int8, ",
    ),
    "integers as the result of a conversion with padding": (
        lambda h: dnn.transform_tensor(
            h, h.zeros((1, 2, 3, 4)), dtype="int64", padding=(0, 0, 1, 1)
        ),
        r"^dtype='int64'; allowed: float32, float64, float16, bfloat16, int8$",
    ),
    "float8 that is converted": (
        lambda h: dnn.transform_tensor(h, h.zeros((1, 2, 3, 4), "float8_e4m3fn"), dtype="float32"),
        r"^x is float8_e4m3fn; allowed: float32, ",
    ),
    "softmax of one axis": (lambda h: dnn.softmax_forward(h, h.empty((3,))), r"^x is TensorSpec"),
    "softmax of a number": (
        lambda h: dnn.softmax_backward(h, h.array(1.0), h.array(1.0), mode="instance"),
        r"^y is TensorSpec",
    ),
    "CTC of half": (
        lambda h: dnn.ctc_loss(h, h.empty((4, 2, 3), "float16"), [1, 1], [1, 1], [4, 3]),
        r"(?s)NOT_SUPPORTED.*x = TensorSpec\(\(4, 2, 3\), 'float16'.*ctc = CTCLossSpec",
    ),
    "a momentum that destroys": (
        lambda h: normalize(h, momentum=-20),
        "momentum=-20.0; needed: a number from 0 to 1",
    ),
    "a momentum of nothing": (
        lambda h: normalize(h, momentum=float("nan")),
        "momentum=nan; needed",
    ),
    "another mode": (
        lambda h: normalize(h, mode="foo"),
        "mode='foo' is not a BatchNormMode; allowed: auto, PER_ACT",
    ),
}
