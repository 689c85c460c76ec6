"""Invalid arguments of layers: activations, normalisations, pooling, softmax, CTC and the like."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from device.problems import PATTERN, fill

import cudnnlite as dnn

from . import case
from .case import ARRAY, NOT_SUPPORTED, Case

LABELS = [1, 2, 3, 4, 2, 2, 5, 1, 5, 5]
BACKWARD = dnn.batch_normalization_backward
INFERENCE = dnn.batch_normalization_inference
POOLING = dnn.PoolingSpec(2)


class Bench(case.Bench):
    """Images in both layouts, statistics of their channels, and outputs of all kinds."""

    def __init__(self, handle: dnn.Handle) -> None:
        super().__init__(handle)
        host = np.random.default_rng(0).standard_normal((2, 8, 4, 6), np.float32)
        self.x, self.last = handle.array(host), handle.array(host, layout="NHWC")
        self.one, self.mean = handle.full((1, 8, 1, 1), 1), handle.zeros((1, 8, 1, 1))
        self.variance = handle.full((1, 8, 1, 1), 1)
        self.out = handle.empty((2, 8, 4, 6))
        fill(self.out, PATTERN)
        self.logits = handle.array(host[0, :, :, :].reshape(8, 4, 6))
        self.state = dnn.DropoutState(handle)
        self.reserve = dnn.dropout_forward(handle, self.x, 0.5, dropout_state=self.state)[1]
        self.watch(
            x=self.x,
            last=self.last,
            one=self.one,
            mean=self.mean,
            variance=self.variance,
            out=self.out,
            logits=self.logits,
            states=self.state.array,
            reserve=self.reserve,
        )

    def activate(self, activation: Any, x: Any = None, **options: Any) -> Any:
        """Call `activation_forward`."""
        return dnn.activation_forward(
            self.handle, self.x if x is None else x, activation, **options
        )

    def train(self, **changes: Any) -> Any:
        """Call `batch_normalization_training` with some arguments replaced."""
        arguments = {"x": self.x, "scale": self.one, "bias": self.one}
        running = {"running_mean": self.mean, "running_var": self.variance}
        return dnn.batch_normalization_training(self.handle, **arguments | running | changes)

    def fuse(self, **changes: Any) -> Any:
        """Train with a sum and an activation, which images with channels last have."""
        half = {name: self.empty(2, 8, 4, 6, layout="NHWC", dtype="float16") for name in "xz"}
        return self.train(**half | {"activation": "relu"} | changes)

    def back(self, **changes: Any) -> Any:
        """Call `batch_normalization_backward` with some arguments replaced."""
        arguments = {"x": self.last, "dy": self.last, "scale": self.one}
        saved = {"saved_mean": self.mean, "saved_inv_variance": self.one}
        return BACKWARD(self.handle, **arguments | saved | changes)

    def infer(self, **changes: Any) -> Any:
        """Call `batch_normalization_inference` with some arguments replaced."""
        statistics = {"scale": self.one, "bias": self.one, "mean": self.mean, "variance": self.one}
        return INFERENCE(self.handle, **{"x": self.x} | statistics | changes)

    def drop(self, dropout: Any = 0.5, **changes: Any) -> Any:
        """Call `dropout_forward` with some arguments replaced."""
        arguments = {"x": self.x, "dropout_state": self.state, "out": self.out}
        return dnn.dropout_forward(self.handle, dropout=dropout, **arguments | changes)

    def undrop(self, dropout: Any = 0.5, **changes: Any) -> Any:
        """Call `dropout_backward` with some arguments replaced."""
        arguments = {"reserve": self.reserve, "dropout_state": self.state, "out": self.out}
        return dnn.dropout_backward(self.handle, self.x, dropout, **arguments | changes)

    def drop_by_plan(self, **changes: Any) -> Any:
        """Call a plan of `dropout_forward` with some arguments replaced."""
        arguments = {"out": self.out, "reserve": self.reserve}
        with dnn.dropout_forward.plan(self.handle, self.x, 0.5, dropout_state=self.state) as plan:
            return plan(self.x, **arguments | changes)

    def lose(self, **changes: Any) -> Any:
        """Call `ctc_loss` with some arguments replaced."""
        arguments = {
            "x": self.logits,
            "labels": LABELS,
            "label_lengths": [3, 1, 2, 4],
            "input_lengths": [8, 7, 8, 6],
        }
        return dnn.ctc_loss(self.handle, **arguments | changes)

    def integers(self, *values: int, dtype: str = "int32") -> dnn.DeviceArray:
        """Return integers on the device."""
        return self.handle.array(np.array(values, dtype))

    def lose_on_the_device(self, ctc: dnn.CTCLossSpec, dtype: str = "int32") -> Any:
        """Call `ctc_loss` with labels and lengths on the device."""
        return self.lose(
            labels=self.integers(*LABELS, dtype=dtype),
            label_lengths=self.integers(3, 1, 2, 4),
            input_lengths=self.integers(8, 7, 8, 6),
            ctc=ctc,
        )

    def reduce(self, op: str, **options: Any) -> Any:
        """Call `reduce_tensor`."""
        return dnn.reduce_tensor(self.handle, self.x, op, **options)

    def pool(self, pooling: Any, x: Any = None, **options: Any) -> Any:
        """Call `pooling_forward`."""
        return dnn.pooling_forward(self.handle, self.x if x is None else x, pooling, **options)

    def index(self, x: Any, **options: Any) -> Any:
        """Call `pooling_with_indices_forward`."""
        return dnn.pooling_with_indices_forward(self.handle, x, dnn.PoolingSpec(2, **options))

    def transform(self, dtype: str, x: Any = None, **options: Any) -> Any:
        """Call `transform_tensor`."""
        x = self.x if x is None else x
        return dnn.transform_tensor(self.handle, x, dtype=dtype, **options)

    def read_transformer(self) -> Any:
        """Read a descriptor back that cuDNN has no function for."""
        spec = dnn.SpatialTransformerSpec((2, 3, 4, 6))
        with dnn.descriptors.SpatialTransformerDescriptor(spec, api=self.handle.api) as descriptor:
            return descriptor.read_back()

    def call_twice(self) -> Any:
        """The second call of a kind finds its plan by what it is given."""
        x = self.empty(2, 3)
        dnn.set_tensor(self.handle, x, 1.0)
        return dnn.set_tensor(self.handle, x, np.ones(3))

    def assert_works(self) -> None:
        self.drop()
        self.lose()
        self.train()


ACTIVATION_CASES: dict[str, Case] = {
    "alpha": Case(lambda b: b.activate("gelu", alpha=2), "^alpha=2; allowed"),
    "beta": Case(lambda b: b.activate("gelu", beta=1, out=b.last), "^beta=1; allowed"),
    "layout of out": Case(
        lambda b: b.activate("gelu", out=b.last), "^out is .*needed: the layout of x"
    ),
    "gaps": Case(lambda b: b.activate("gelu", b.x[:, ::2]), "^x is .*without gaps"),
    "in place": Case(lambda b: b.activate("gelu", out=b.x), "out overlaps"),
    "shape of dy": Case(
        lambda b: dnn.activation_backward(b.handle, b.x, b.x[:1].copy(), b.x, "gelu"),
        "^dy has shape",
    ),
    "layout of dy": Case(
        lambda b: dnn.activation_backward(b.handle, b.x, b.last, b.x, "gelu"),
        "^dy is .*needed: the layout of y",
    ),
    "float64": Case(lambda b: b.activate("gelu", b.empty(2, 8, dtype="float64")), "float64"),
    "mish": Case(
        lambda b: b.activate("mish"),
        r"activation='mish'.*; it is an activation of graphs: activation='mish' of dnn\.matmul",
    ),
    "identity": Case(lambda b: b.activate("identity"), "activation=IDENTITY"),
    "NumPy's default data type as an output": Case(
        lambda b: b.activate("relu", out=b.empty(2, 8, 4, 6, dtype="float64")),
        r"^out is float64; needed: float32",
    ),
    "softmax of one axis": Case(
        lambda b: dnn.softmax_forward(b.handle, b.empty(3)), r"^x is TensorSpec"
    ),
    "softmax of a number": Case(
        lambda b: dnn.softmax_backward(
            b.handle, b.handle.array(1.0), b.handle.array(1.0), mode="instance"
        ),
        r"^y is TensorSpec",
    ),
}
NORMALIZATION_CASES: dict[str, Case] = {
    "an array as a mode": Case(
        lambda b: BACKWARD(b.handle, *[None] * 5, mode=np.zeros(2)),
        r"^mode=array\(.* is not a BatchNormMode",
    ),
    "another mode": Case(
        lambda b: b.train(mode="foo"),
        "mode='foo' is not a BatchNormMode; allowed: auto, PER_ACT",
    ),
    "rank 1": Case(lambda b: INFERENCE(b.handle, *[b.empty(6)] * 5), r"^x=TensorSpec.*rank 2 to 5"),
    "momentum": Case(
        lambda b: b.train(momentum=-20), "momentum=-20.0; needed: a number from 0 to 1"
    ),
    "momentum of nothing": Case(lambda b: b.train(momentum=math.nan), "momentum=nan; needed"),
    "epsilon": Case(lambda b: b.infer(epsilon=-1.0), "epsilon=-1.0"),
    "epsilon of nothing": Case(lambda b: b.train(epsilon=math.nan), "epsilon=nan"),
    "infinite epsilon": Case(lambda b: b.train(epsilon=math.inf), "epsilon=inf"),
    **{
        f"{name} of another shape": Case(
            lambda b, name=name: b.infer(**{name: b.empty(1, 4, 1, 1)}),
            rf"^{name} is .*needed: \(1, 8, 1, 1\) in float32",
        )
        for name in ("scale", "bias", "mean", "variance")
    },
    "a statistic of float16": Case(
        lambda b: b.infer(mean=b.empty(1, 8, 1, 1, dtype="float16")),
        r"^mean is .*needed: \(1, 8, 1, 1\) in float32",
    ),
    "a scale for each value": Case(
        lambda b: b.train(scale=b.empty(4)), r"^scale is .*needed: \(1, 8, 1, 1\) in float32"
    ),
    "channels last in place of channels first": Case(
        lambda b: b.infer(x=b.empty(2, 4, 5, 6)), r"for mode=SPATIAL$"
    ),
    "one array as three": Case(lambda b: b.back(out=b.last), "out=.*a tuple of dx, dscale, dbias"),
    "activation": Case(lambda b: b.fuse(activation="tanh"), "activation=TANH"),
    "swish": Case(lambda b: b.fuse(activation="swish"), "activation=SWISH"),
    "mode with an activation": Case(
        lambda b: b.fuse(mode="spatial"), "mode=SPATIAL with an activation"
    ),
    "z alone": Case(lambda b: b.fuse(activation=None), "z is given without"),
    "layout of z": Case(
        lambda b: b.fuse(z=b.empty(2, 8, 4, 6, dtype="float16")), "z is .*channels must be last"
    ),
    "float64 with an activation": Case(
        lambda b: b.fuse(
            x=b.empty(2, 8, 4, 6, layout="NHWC", dtype="float64"),
            z=None,
            **{
                name: b.empty(1, 8, 1, 1, dtype="float64")
                for name in ("scale", "bias", "running_mean", "running_var")
            },
        ),
        "x is float64",
    ),
    "channels with an activation": Case(
        lambda b: b.fuse(
            **{name: b.empty(2, 6, 4, 4, layout="NHWC", dtype="float16") for name in "xz"},
            **{
                name: b.empty(1, 6, 1, 1)
                for name in ("scale", "bias", "running_mean", "running_var")
            },
        ),
        "6 channels",
    ),
    "one value per channel": Case(
        lambda b: b.train(x=b.empty(1, 8, 1, 1, layout="NHWC"), activation="relu"),
        r"\bx is .*one value per channel",
    ),
    "added alone": Case(lambda b: b.back(added=True), "added is given without"),
    **{
        f"{name} alone": Case(
            lambda b, name=name: b.back(**{name: b.last}),
            f"{name} is given without the activation",
        )
        for name in ("y", "bias", "reserve")
    },
    "no reserve": Case(
        lambda b: b.back(activation="relu", y=b.last, bias=b.one), "reserve has to be given"
    ),
    "no y": Case(
        lambda b: b.back(activation="relu", bias=b.one, reserve=b.reserve), "y has to be given"
    ),
    "a bias of one axis to add": Case(
        lambda b: dnn.add_tensor(b.handle, b.empty(3), b.empty(2, 3, 4, 5)),
        r"^a has shape \(3,\); .*; a\.reshape\(1, -1, 1, 1\) has a value for each channel$",
    ),
    "a bias of one axis for volumes": Case(
        lambda b: dnn.op_tensor(b.handle, b.empty(2, 3, 4, 5, 6), b.empty(3), "add"),
        r"^b has shape \(3,\); .*; b\.reshape\(1, -1, 1, 1, 1\) has a value for each channel$",
    ),
    "an array of one axis that is no bias": Case(
        lambda b: dnn.add_tensor(b.handle, b.empty(5), b.empty(2, 3, 4, 5)),
        r"^a has shape \(5,\); .*, \(2, 3, 4, 5\)$",
    ),
    "NumPy's default data type to add": Case(
        lambda b: dnn.add_tensor(b.handle, b.handle.array(np.ones((1, 3))), b.empty(2, 3)),
        r"^a is float64; needed: float32; handle\.array\(values, dtype='float32'\)",
    ),
    "NumPy's default data type as the first of two": Case(
        lambda b: dnn.op_tensor(
            b.handle, b.handle.array(np.ones((1, 3))), b.empty(1, 3, dtype="float16"), "mul"
        ),
        r"^a is float64; needed: float16; handle\.array\(values, dtype='float16'\)",
    ),
    "the result over the second of two": Case(
        lambda b: dnn.op_tensor(b.handle, b.out, b.x, "add", out=b.x), "out overlaps b in memory"
    ),
    "float16 of integers": Case(
        lambda b: dnn.op_tensor(
            b.handle,
            b.empty(2, 3, dtype="int8"),
            b.empty(2, 3, dtype="int8"),
            "add",
            out=b.empty(2, 3, dtype="float16"),
        ),
        "out is float16; needed: int8, float32",
    ),
}
POOLING_CASES: dict[str, Case] = {
    "fewer axes": Case(
        lambda b: b.pool(dnn.PoolingSpec((3, 2)), b.empty(2, 3, 9)),
        "has 2 spatial axes, the arrays have 1",
    ),
    "more axes": Case(
        lambda b: b.pool(dnn.PoolingSpec((3, 2)), b.empty(2, 3, 9, 9, 9)),
        "2 spatial axes.*have 3",
    ),
    "no axes": Case(lambda b: b.pool(POOLING, b.empty(2, 3)), r"\bx\b"),
    "a window beyond the images": Case(
        lambda b: b.pool(dnn.PoolingSpec((2, 12), padding=(1, 1)), b.empty(2, 3, 9, 9)),
        "axis 3: the window reaches over 12.*x, padded, has only 11",
    ),
    "a window that fits no way round": Case(
        lambda b: b.pool(dnn.PoolingSpec(7), b.empty(2, 3, 5, 6)),
        r"the window reaches over .* of \(\d, \d\)$",
    ),
    "indices with channels first": Case(
        lambda b: b.index(b.x), "writes no indices of maxima with channels first"
    ),
    "indices of averages": Case(
        lambda b: b.index(b.last, mode="average_count_exclude_padding"), "needed: the mode max"
    ),
    "indices of float64": Case(
        lambda b: b.index(b.empty(2, 8, 4, 6, layout="NHWC", dtype="float64")),
        "allowed: float32, float16",
    ),
    "indices in rank 3": Case(lambda b: b.index(b.empty(2, 8, 4)), r"needed: \(N, C, H, W\)"),
    "a number as a pooling": Case(
        lambda b: dnn.pooling_with_indices_forward(b.handle, b.last, 2), "pooling="
    ),
    "no array of a plan": Case(
        lambda b: dnn.pooling_forward.plan(b.handle, [1.0], POOLING), r"\bx\b", ARRAY
    ),
    "a number as a pooling of a plan": Case(
        lambda b: dnn.pooling_forward.plan(b.handle, b.x, 2), "pooling="
    ),
    "no handle of a plan": Case(lambda b: dnn.pooling_forward.plan(b.x, b.x, POOLING), "handle="),
}
DROPOUT_CASES: dict[str, Case] = {
    "negative": Case(lambda b: b.drop(-0.1), "dropout="),
    "above": Case(lambda b: b.undrop(1.0001), "dropout="),
    "text": Case(lambda b: b.drop("x"), "dropout="),
    "nan": Case(lambda b: b.undrop(math.nan), "dropout="),
    "state": Case(lambda b: b.drop(dropout_state=7), "dropout_state"),
    "no state": Case(lambda b: b.drop(dropout_state=None), "dropout_state"),
    "no array": Case(lambda b: b.drop(x=[1.0]), r"\bx\b", ARRAY),
    "bfloat16": Case(
        lambda b: b.drop(x=b.empty(2, 8, dtype="bfloat16"), out=None),
        "bfloat16; allowed: float32, float64, float16",
    ),
    "out": Case(lambda b: b.drop(out=b.empty(2, 9)), r"\bout\b"),
    "no reserve": Case(lambda b: b.undrop(reserve=None), "reserve has to be given"),
    "size of the reserve": Case(
        lambda b: b.drop(reserve=b.empty(b.reserve.nbytes + 1, dtype="uint8")), "reserve is"
    ),
    "no bytes as a reserve": Case(lambda b: b.undrop(reserve=b.x), "reserve is"),
    "reserve over y": Case(
        lambda b: b.drop(reserve=b.over(b.out, b.reserve.spec)), "reserve overlaps y"
    ),
    "out over the reserve": Case(
        lambda b: b.undrop(reserve=b.over(b.out, b.reserve.spec)), "out overlaps reserve"
    ),
    "out over the states": Case(
        lambda b: b.drop(out=b.over(b.state.array, b.out.spec)), "out overlaps dropout_state"
    ),
    "gradient over the states": Case(
        lambda b: b.undrop(out=b.over(b.state.array, b.out.spec)), "out overlaps dropout_state"
    ),
    "reserve over the states": Case(
        lambda b: b.drop(reserve=b.over(b.state.array, b.reserve.spec)),
        "reserve overlaps dropout_state",
    ),
    "out of a plan over the states": Case(
        lambda b: b.drop_by_plan(out=b.over(b.state.array, b.out.spec)), "overlaps dropout_state"
    ),
    "workspace over the reserve": Case(
        lambda b: b.drop_by_plan(workspace=b.reserve), "workspace overlaps reserve"
    ),
    "workspace over the states": Case(
        lambda b: b.drop_by_plan(workspace=b.state.array), "workspace overlaps dropout_state"
    ),
}
CTC_CASES: dict[str, Case] = {
    "a blank": Case(lambda b: b.lose(labels=[0, *LABELS[1:]]), "labels has a 0; allowed: 1 to 5"),
    "beyond the alphabet": Case(
        lambda b: b.lose(labels=[6, *LABELS[1:]]), "labels has a 6; allowed: 1 to 5"
    ),
    "a label too few": Case(
        lambda b: b.lose(labels=LABELS[1:]), "label_lengths add up to 10; labels has 9"
    ),
    "two axes": Case(lambda b: b.lose(labels=[LABELS]), "labels is int64 of shape"),
    "fractions": Case(lambda b: b.lose(labels=[1.5] * 10), "labels is float64"),
    "no label": Case(
        lambda b: b.lose(label_lengths=[3, 0, 3, 4]), "label_lengths has a 0; allowed: 1 to 10"
    ),
    "a length too few": Case(
        lambda b: b.lose(label_lengths=[3, 1, 6]), "label_lengths has 3 entries for a batch of 4"
    ),
    "maximum": Case(
        lambda b: b.lose(ctc=dnn.CTCLossSpec(max_label_length=3)),
        "label_lengths has a 4; allowed: 1 to 3",
    ),
    "steps": Case(
        lambda b: b.lose(input_lengths=[8, 7, 8, 10]), "input_lengths has a 10; allowed: 1 to 8"
    ),
    "algorithm": Case(
        lambda b: b.lose(algorithm="fastest"), "algorithm='fastest' is not a CTCLossAlgo"
    ),
    "spec": Case(lambda b: b.lose(ctc="none"), "ctc='none' is not a CTCLossSpec"),
    "rank": Case(lambda b: b.lose(x=b.empty(4, 6)), r"x=TensorSpec\(\(4, 6\)"),
    "gaps": Case(
        lambda b: b.lose(x=b.handle.empty(dnn.TensorSpec((8, 4, 6), strides=(96, 24, 2)))),
        "packed as",
    ),
    "labels on the device alone": Case(
        lambda b: b.lose(labels=b.integers(*LABELS)),
        "label_lengths of type list is on the host, labels on the device",
    ),
    "no maximum on the device": Case(
        lambda b: b.lose_on_the_device(dnn.CTCLossSpec()),
        "max_label_length=0 with labels on the device",
    ),
    "int64 on the device": Case(
        lambda b: b.lose_on_the_device(dnn.CTCLossSpec(max_label_length=4), "int64"),
        "labels is TensorSpec",
    ),
    "shape of the gradients": Case(
        lambda b: b.lose(out=(b.empty(4), b.empty(4, 8, 6))), r"out\[1\] is"
    ),
    "one output": Case(lambda b: b.lose(out=b.empty(4)), "needed: a tuple of costs and gradients"),
    "gradients that are not wanted": Case(
        lambda b: b.lose(out=(None, b.empty(8, 4, 6)), gradients=False),
        r"out\[1\] is given with gradients=False",
    ),
    "gradients over the input": Case(
        lambda b: b.lose(out=(None, b.logits)), r"out\[1\] overlaps x"
    ),
    "out of a plan": Case(
        lambda b: dnn.ctc_loss.plan(b.handle, b.logits, LABELS, [3, 1, 2, 4], [8] * 4, out=b.out),
        "out.*plan's calls",
    ),
    "gradients of a plan": Case(
        lambda b: dnn.ctc_loss.plan(b.handle, b.logits, LABELS, [3, 1, 2, 4], [8] * 4, gradients=1),
        "gradients=1",
    ),
    "problem": Case(
        lambda b: dnn.ctc_loss.problem(b.logits, LABELS, [3, 1, 2, 4], [8] * 4),
        "ctc_loss has no Problem",
    ),
}
OTHER_CASES: dict[str, Case] = {
    "an array as a number, later": Case(
        lambda b: b.call_twice(), r"value=array\(.*\) must be a real number"
    ),
    "endless axes": Case(lambda b: b.reduce("add", axes=itertools.repeat(1)), r"^axes=repeat\(1\)"),
    "indices of a sum": Case(lambda b: b.reduce("add", indices=True), "indices with op="),
    "type of indices": Case(
        lambda b: b.reduce("max", axes=None, indices=b.empty(1, 1, 1, 1)), "indices"
    ),
    "shape of indices": Case(
        lambda b: b.reduce("max", axes=None, indices=b.empty(1, 1, 1, 2, dtype="int32")),
        "indices",
    ),
    "a sum of another type": Case(
        lambda b: b.reduce("add", out=b.empty(1, 8, 1, 1, dtype="float64")),
        "out is float64; needed: float32",
    ),
    "a sum of integers of float16": Case(
        lambda b: dnn.reduce_tensor(
            b.handle, b.empty(1, 2, 3, dtype="int8"), "add", out=b.empty(1, 2, 1, dtype="float16")
        ),
        "out is float16; needed: int8, float32",
    ),
    "float8 as the result of a conversion": Case(
        lambda b: b.transform("float8_e4m3fn"),
        r"^dtype='float8_e4m3fn'; allowed: float32, float64, float16, bfloat16, int8, ",
    ),
    "integers as the result of a conversion with padding": Case(
        lambda b: b.transform("int64", padding=(0, 0, 1, 1)),
        r"^dtype='int64'; allowed: float32, float64, float16, bfloat16, int8$",
    ),
    "float8 that is converted": Case(
        lambda b: b.transform("float32", b.empty(1, 2, 3, 4, dtype="float8_e4m3fn")),
        r"^x is float8_e4m3fn; allowed: float32, ",
    ),
    "rank of a grid": Case(
        lambda b: dnn.spatial_transformer_grid(b.handle, b.empty(2, 2, 3), (2, 3, 4)), "rank 3"
    ),
    "a grid of volumes": Case(
        lambda b: dnn.spatial_transformer_grid(b.handle, b.empty(2, 2, 3), (2, 3, 4, 5, 6)),
        "2-D images only",
    ),
    "theta": Case(
        lambda b: dnn.spatial_transformer_grid(b.handle, b.empty(2, 2, 3), (3, 3, 4, 6)),
        "theta is",
    ),
    "transformer": Case(
        lambda b: dnn.spatial_transformer_grid(b.handle, b.empty(2, 2, 3), None), "transformer="
    ),
    "a transformer read back": Case(lambda b: b.read_transformer(), "no function"),
    "points of a grid": Case(
        lambda b: dnn.spatial_transformer_sample(b.handle, b.x, b.empty(2, 4, 6, 3)), "grid is"
    ),
    "batch of a grid": Case(
        lambda b: dnn.spatial_transformer_sample(b.handle, b.x, b.empty(3, 4, 6, 2)), "grid is"
    ),
}
CASES = case.grouped(
    activation=ACTIVATION_CASES,
    normalization=NORMALIZATION_CASES,
    pooling=POOLING_CASES,
    dropout=DROPOUT_CASES,
    ctc=CTC_CASES,
    other=OTHER_CASES,
)
EMULATED_CASES: dict[str, Case] = {
    "CTC of half": Case(
        lambda b: dnn.ctc_loss(b.handle, b.empty(4, 2, 3, dtype="float16"), [1, 1], [1, 1], [4, 3]),
        r"(?s)NOT_SUPPORTED.*x = TensorSpec\(\(4, 2, 3\), 'float16'.*ctc = CTCLossSpec",
        NOT_SUPPORTED,
    ),
}
