"""Calls of every operation as data: `CALLS` has one of each, `Call.run` makes it on a handle.

Operands say where and how they lie in memory, so that a call that differs in one property is the
same call with one operand or option replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import cudnnlite as dnn
from cudnnlite.devices.arrays import part_of
from cudnnlite.dtypes import itemsize, numpy_dtype

from .problems import LAST, PATTERN, poisoned, upload, with_gaps

Shape = tuple[int, ...]
RAGGED = (3, 5, 2)  # lengths of three sequences


@dataclass(frozen=True)
class Operand:
    """An array of a call, by its values and its place.

    Attributes
    ----------
    layout : str
        "first", "last" (channels) or "gaps" (behind each axis).
    offset : int
        Elements between an aligned address and the first value.
    kind : str
        "normal" values, "positive" ones, or those that are "given" in `values`.
    """

    shape: Shape
    dtype: str = "float32"
    layout: str = "first"
    offset: int = 0
    kind: str = "normal"
    values: tuple[int, ...] = ()
    seed: int = 0

    @property
    def spec(self) -> dnn.TensorSpec:
        """The spec of the array."""
        if self.layout == "gaps":
            return with_gaps(self.shape, self.dtype)
        name = LAST.get(len(self.shape)) if self.layout == "last" else None
        return dnn.TensorSpec(self.shape, self.dtype, name)

    def host(self) -> np.ndarray[Any, Any]:
        """Return the values, which depend on the shape and the seed alone."""
        dtype = numpy_dtype(self.spec.dtype)
        if self.kind == "given":
            return np.array(self.values, dtype).reshape(self.shape)
        rng = np.random.default_rng((self.seed, len(self.shape), sum(self.shape)))
        values = rng.standard_normal(self.shape)
        if self.kind == "positive":
            values = np.abs(values) + 0.5
        return values.astype(dtype)

    def place(self, handle: dnn.Handle) -> dnn.DeviceArray:
        """Return the array on a handle's device."""
        spec, host = self.spec, self.host()
        if not self.offset:
            return upload(handle, spec, host)
        shift = self.offset * itemsize(spec.dtype)
        array = part_of(handle.empty((spec.nbytes + shift,), "uint8"), spec, shift)
        array.copy_from(host)
        return array


@dataclass(frozen=True)
class Made:
    """An argument that is no array: weights, states, or the reserve space of a forward call."""

    make: Callable[[dnn.Handle, int], Any]
    seed: int = 0

    def place(self, handle: dnn.Handle) -> Any:
        """Return the argument."""
        return self.make(handle, self.seed)


@dataclass(frozen=True)
class Call:
    """A call of a public operation.

    Attributes
    ----------
    operands : mapping of str to Operand or Made
        Arguments that are made on a device.
    options : mapping of str
        All other arguments.
    results : tuple of str
        The names of the results, in their order.
    in_place : str
        The operand that is the output, for an operation without `out`.
    outs : int or None
        How many of the results `out` takes; all if None.
    """

    operation: str
    operands: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    results: tuple[str, ...] = ("y",)
    in_place: str = ""
    outs: int | None = None

    @property
    def function(self) -> Any:
        """The public operation."""
        return getattr(dnn, self.operation)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the operation's arguments."""
        return tuple(self.function.__signature__.parameters)

    @property
    def blends(self) -> bool:
        """Whether the call may read the old values of its output."""
        return "beta" in self.parameters

    @property
    def arrays(self) -> dict[str, Operand]:
        """The operands that are arrays, by name."""
        return {n: operand for n, operand in self.operands.items() if isinstance(operand, Operand)}

    def changed(self, **changes: Any) -> Call:
        """Return the call with some arguments replaced or added."""
        operands = {n: v for n, v in changes.items() if isinstance(v, (Operand, Made))}
        options = {n: v for n, v in changes.items() if n not in operands}
        return replace(
            self, operands={**self.operands, **operands}, options={**self.options, **options}
        )

    def with_each_array(self, **changes: Any) -> Call:
        """Return the call with a property of all floating-point operands replaced."""
        arrays = {
            name: replace(operand, **changes)
            for name, operand in self.arrays.items()
            if operand.kind != "given"
        }
        return replace(self, operands={**self.operands, **arrays})

    def place(self, handle: dnn.Handle) -> dict[str, Any]:
        """Return the operands on a handle."""
        return {name: operand.place(handle) for name, operand in self.operands.items()}

    def run(self, handle: dnn.Handle, operands: Mapping[str, Any], out: Any = None) -> list[Any]:
        """Make the call; return all arrays that it wrote."""
        given = {} if out is None else {"out": out}
        return written(self.function(handle, **operands, **self.options, **given))

    def outputs(self, handle: dnn.Handle, specs: Sequence[dnn.TensorSpec]) -> Any:
        """Return new arrays for results of these specs, as `out` takes them, poisoned.

        If the call has a `beta`, the first has old values instead.  None for an operation that has
        no such argument.
        """
        if "out" not in self.parameters or self.outs == 0:
            return None
        outs: list[Any] = [poisoned(handle, spec) for spec in specs[: self.outs]]
        if self.options.get("beta"):
            old = np.random.default_rng(9).standard_normal(specs[0].shape)
            outs[0].copy_from(old.astype(outs[0].dtype))
        outs += [None] * (len(self.results[: self.outs]) - len(outs))
        return outs[0] if len(outs) == 1 else tuple(outs)


def written(returned: Any) -> list[Any]:
    """Return the arrays of what a call returns; bytes of weights too."""
    if isinstance(returned, dict):
        returned = tuple(returned.values())
    parts = returned if isinstance(returned, tuple) else (returned,)
    arrays = []
    for part in parts:
        if isinstance(part, (dnn.RNNWeights, dnn.AttentionWeights)):
            arrays.append(part.array)
        elif isinstance(part, dnn.DeviceArray):
            arrays.append(part)
    return arrays


# ---------------------------------------------------------------- what is no array


def rnn_weights(spec: dnn.RNNSpec) -> Made:
    """Return the weights of a network."""

    def make(handle: dnn.Handle, seed: int) -> dnn.RNNWeights:
        weights = dnn.RNNWeights(handle, spec)
        values = np.random.default_rng(seed).standard_normal(weights.array.shape) / 4
        weights.array.copy_from(values.astype(weights.array.dtype))
        return weights

    return Made(make)


def attention_weights(spec: dnn.AttentionSpec) -> Made:
    """Return the weights of multi-head attention."""

    def make(handle: dnn.Handle, seed: int) -> dnn.AttentionWeights:
        weights = dnn.AttentionWeights(handle, spec)
        values = np.random.default_rng(seed).standard_normal(weights.array.shape) / 4
        weights.array.copy_from(values.astype(weights.array.dtype))
        return weights

    return Made(make)


def dropout_state() -> Made:
    """Return random states of a seed."""
    return Made(dnn.DropoutState)


def reserve_of(call: Call) -> Made:
    """Return the reserve space that a forward call in training writes."""

    def make(handle: dnn.Handle, seed: int) -> Any:
        del seed
        returned = call.function(handle, **call.place(handle), **call.options)
        return getattr(returned, "reserve", returned[-1])

    return Made(make)


# ---------------------------------------------------------------- one call of each operation

IMAGES = (2, 4, 6, 5)
VECTOR = (1, 4, 1, 1)
ROWS = (6, 16, 1, 1)  # that are normalised
HALF_IMAGES = Operand((2, 8, 6, 5), "float16", "last")
MATRICES = {"a": Operand((2, 8, 16), "float16"), "b": Operand((2, 16, 24), "float16")}
HEADS = {name: Operand((2, 2, 16, 32), "float16", seed=seed) for seed, name in enumerate("qkv")}
LSTM = dnn.RNNSpec("lstm", 4, 8)
PROJECTIONS = dnn.AttentionSpec(2, 8, q_proj_size=4, k_proj_size=4, v_proj_size=4, o_proj_size=8)


def images(seed: int = 0, shape: Shape = IMAGES) -> Operand:
    """Return images."""
    return Operand(shape, seed=seed)


def vector(seed: int = 0, kind: str = "normal", shape: Shape = VECTOR) -> Operand:
    """Return one value for each channel."""
    return Operand(shape, kind=kind, seed=seed)


def rows(seed: int = 0) -> Operand:
    """Return rows that are normalised."""
    return Operand(ROWS, "float16", seed=seed)


def row(seed: int = 0, dtype: str = "float32") -> Operand:
    """Return a scale or a bias of rows."""
    return Operand((1, *ROWS[1:]), dtype, seed=seed)


def statistics(seed: int, kind: str = "normal") -> Operand:
    """Return what a normalisation saves of each row."""
    return Operand((ROWS[0], 1, 1, 1), kind=kind, seed=seed)


CONV = {"conv": dnn.ConvolutionSpec(1, math_type="fma")}
FILTER = Operand((3, 4, 3, 3), seed=1)
RNN_FORWARD = Call(
    "rnn_forward",
    {"weights": rnn_weights(LSTM), "x": Operand((5, 3, 4))},
    {"spec": LSTM},
    ("y", "hy", "cy"),
)
TOKENS = Operand((2, 5, 8))
MULTI_HEAD = Call(
    "multi_head_attention_forward",
    {
        "weights": attention_weights(PROJECTIONS),
        "q": TOKENS,
        "k": replace(TOKENS, seed=1),
        "v": replace(TOKENS, seed=2),
    },
    {"spec": PROJECTIONS},
)
DROPOUT = Call(
    "dropout_forward",
    {"x": images(), "dropout_state": dropout_state()},
    {"dropout": 0.5},
    ("y", "reserve"),
    outs=1,
)
ATTENTION = Call("scaled_dot_product_attention_forward", HEADS, {}, ("o",))
BATCH_NORM_TRAINING = Call(
    "batch_normalization_training",
    {"x": images(), "scale": vector(1), "bias": vector(2)},
    {},
    ("y", "saved_mean", "saved_inv_variance"),
)
LRN = {"norm": dnn.LRNSpec(3)}
DIVISIVE = {"norm": dnn.LRNSpec(3, alpha=0.5, beta=0.75, k=2.0)}
GRID = {"transformer": dnn.SpatialTransformerSpec((2, 4, 3, 4))}


def _calls() -> list[Call]:
    activation = {"activation": dnn.ActivationSpec("tanh")}
    pooling = {"pooling": dnn.PoolingSpec(2)}
    return [
        Call("convolution_forward", {"x": images(), "w": FILTER}, CONV),
        Call(
            "convolution_bias_activation_forward",
            {"x": images(), "w": FILTER, "bias": vector(2, shape=(1, 3, 1, 1))},
            CONV,
        ),
        Call(
            "convolution_backward_data",
            {"w": FILTER, "dy": images(1, (2, 3, 6, 5))},
            {**CONV, "x": IMAGES},
            ("dx",),
        ),
        Call(
            "convolution_backward_filter",
            {"x": images(), "dy": images(1, (2, 3, 6, 5))},
            {**CONV, "w": (3, 4, 3, 3)},
            ("dw",),
        ),
        Call("convolution_backward_bias", {"dy": images()}, {}, ("db",)),
        Call("convolution_transpose", {"x": images(), "w": Operand((4, 3, 3, 3))}, CONV),
        Call("im2col", {"x": images(), "w": FILTER}, {"conv": dnn.ConvolutionSpec(1)}),
        Call("activation_forward", {"x": images()}, activation),
        Call(
            "activation_backward",
            {"y": images(), "dy": images(1), "x": images(2)},
            activation,
            ("dx",),
        ),
        Call("pooling_forward", {"x": images()}, pooling),
        Call(
            "pooling_backward",
            {"y": images(0, (2, 4, 3, 2)), "dy": images(1, (2, 4, 3, 2)), "x": images(2)},
            pooling,
            ("dx",),
        ),
        Call(
            "pooling_with_indices_forward",
            {"x": HALF_IMAGES},
            {"pooling": dnn.PoolingSpec(2)},
            ("y", "indices"),
        ),
        Call("softmax_forward", {"x": images()}),
        Call("softmax_backward", {"y": images(), "dy": images(1)}, {}, ("dx",)),
        Call("lrn_forward", {"x": images()}, LRN),
        Call("lrn_backward", {"y": images(), "dy": images(1), "x": images(2)}, LRN, ("dx",)),
        Call("divisive_normalization_forward", {"x": images()}, DIVISIVE),
        Call("divisive_normalization_backward", {"x": images(), "dy": images(1)}, DIVISIVE),
        Call(
            "batch_normalization_inference",
            {
                "x": images(),
                "scale": vector(1),
                "bias": vector(2),
                "mean": vector(3),
                "variance": vector(4, "positive"),
            },
        ),
        BATCH_NORM_TRAINING,
        Call(
            "batch_normalization_backward",
            {
                "x": images(),
                "dy": images(1),
                "scale": vector(1),
                "saved_mean": vector(2),
                "saved_inv_variance": vector(3, "positive"),
            },
            {},
            ("dx", "dscale", "dbias"),
        ),
        Call("op_tensor", {"a": images(), "b": images(1)}, {"op": "mul"}),
        Call("reduce_tensor", {"a": images()}, {"op": "add", "axes": (0, 2)}),
        Call("add_tensor", {"a": vector(), "c": images(1)}, in_place="c"),
        Call("scale_tensor", {"y": images()}, {"alpha": 2.0}, in_place="y"),
        Call("set_tensor", {"y": images()}, {"value": 3.0}, in_place="y"),
        Call("transform_tensor", {"x": images()}, {"layout": "NHWC"}),
        Call("transform_filter", {"w": FILTER}, {"layout": "NHWC"}),
        Call("spatial_transformer_grid", {"theta": Operand((2, 2, 3))}, GRID),
        Call("spatial_transformer_grid_backward", {"dgrid": Operand((2, 3, 4, 2))}, GRID),
        Call("spatial_transformer_sample", {"x": images(), "grid": Operand((2, 3, 4, 2))}),
        Call(
            "spatial_transformer_sample_backward",
            {
                "x": images(),
                "grid": Operand((2, 3, 4, 2), seed=1),
                "dy": images(2, (2, 4, 3, 4)),
            },
            {},
            ("dx", "dgrid"),
        ),
        DROPOUT,
        Call(
            "dropout_backward",
            {"dy": images(1), "dropout_state": dropout_state(), "reserve": reserve_of(DROPOUT)},
            {"dropout": 0.5},
            ("dx",),
        ),
        Call(
            "ctc_loss",
            {"x": Operand((5, 2, 4))},
            {"labels": (1, 2, 3), "label_lengths": (2, 1), "input_lengths": (5, 4)},
            ("costs", "gradients"),
        ),
        Call("matmul", MATRICES),
        Call(
            "matmul_backward_a",
            {"dy": Operand((2, 8, 24), "float16", seed=2), "b": MATRICES["b"]},
            {},
            ("da",),
        ),
        Call(
            "matmul_backward_b",
            {"dy": Operand((2, 8, 24), "float16", seed=2), "a": MATRICES["a"]},
            {},
            ("db",),
        ),
        *_normalizations(),
        ATTENTION,
        Call(
            "scaled_dot_product_attention_backward",
            {
                **HEADS,
                "o": replace(HEADS["q"], seed=4),
                "do": replace(HEADS["q"], seed=5),
                "stats": Operand((2, 2, 16, 1), kind="positive"),
            },
            {},
            ("dq", "dk", "dv"),
        ),
        RNN_FORWARD,
        Call(
            "rnn_backward_data",
            {
                "reserve": reserve_of(RNN_FORWARD.changed(training=True)),
                "dy": Operand((5, 3, 8), seed=3),
            },
            {},
            ("dx", "dhx", "dcx"),
        ),
        Call(
            "rnn_backward_weights",
            {"reserve": _after_backward(RNN_FORWARD, Operand((5, 3, 8), seed=3))},
            outs=0,
        ),
        MULTI_HEAD,
        Call(
            "multi_head_attention_backward_data",
            {
                "reserve": reserve_of(MULTI_HEAD.changed(training=True)),
                "dy": replace(TOKENS, seed=3),
            },
            {},
            ("dq", "dk", "dv"),
        ),
        Call(
            "multi_head_attention_backward_weights",
            {"reserve": _after_backward(MULTI_HEAD, replace(TOKENS, seed=3))},
            outs=0,
        ),
    ]


def _normalizations() -> list[Call]:
    image_scale, image_statistics = vector(1, shape=(1, 8, 1, 1)), Operand((2, 8, 1, 1))
    dy = replace(HALF_IMAGES, seed=1)
    return [
        Call("layer_normalization_forward", {"x": rows(), "scale": row(1), "bias": row(2)}),
        Call("rms_normalization_forward", {"x": rows(), "scale": row(1)}),
        Call(
            "instance_normalization_forward",
            {"x": HALF_IMAGES, "scale": image_scale, "bias": replace(image_scale, seed=2)},
        ),
        Call(
            "layer_normalization_backward",
            {
                "dy": rows(1),
                "x": rows(),
                "scale": row(1),
                "mean": statistics(2),
                "inv_variance": statistics(3, "positive"),
            },
            {},
            ("dx", "dscale", "dbias"),
        ),
        Call(
            "rms_normalization_backward",
            {
                "dy": rows(1),
                "x": rows(),
                "scale": row(1),
                "inv_variance": statistics(3, "positive"),
            },
            {},
            ("dx", "dscale"),
        ),
        Call(
            "instance_normalization_backward",
            {
                "dy": dy,
                "x": HALF_IMAGES,
                "scale": image_scale,
                "mean": image_statistics,
                "inv_variance": replace(image_statistics, kind="positive"),
            },
            {},
            ("dx", "dscale", "dbias"),
        ),
    ]


def _after_backward(forward: Call, dy: Operand) -> Made:
    """Return a reserve space over which the backward pass of the data ran."""
    backward = getattr(dnn, forward.operation.replace("forward", "backward_data"))

    def make(handle: dnn.Handle, seed: int) -> Any:
        reserve = reserve_of(forward.changed(training=True)).place(handle)
        backward(handle, reserve, replace(dy, seed=seed + 3).place(handle))
        return reserve

    return Made(make)


CALLS = {call.operation: call for call in _calls()}

__all__ = ["CALLS", "PATTERN", "RAGGED", "Call", "Made", "Operand", "written"]
