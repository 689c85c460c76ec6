"""Recurrent networks to test with: host arrays, their device arrays, and what has to come out."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from rnn_oracles import (
    HAS_TORCH,
    RNNGradients,
    RNNResult,
    onnx_directional_derivative,
    onnx_rnn,
    random_weights,
    torch_rnn,
    torch_rnn_gradients,
)
from tolerances import RNN_SUM, assert_close, rnn_bound

import cudnnlite as dnn
from cudnnlite.dtypes import numpy_dtype, parse_dtype
from cudnnlite.operations.rnn.choice import heuristic
from cudnnlite.specs.rnn_rules import why_not

from .problems import poisoned

Array = np.ndarray[Any, Any]
CELLS = {cell: (cell, None) for cell in ("relu", "tanh", "lstm", "gru")} | {
    "lstm_projection": ("lstm", 5)
}
BIASES = ("none", "single_input", "single_recurrent", "double")
LAYOUTS = ("sequence_major", "batch_major", "packed")
LENGTHS = {"full": None, "variable": (3, 5, 1)}
ALGORITHMS = ("STANDARD", "PERSIST_STATIC", "PERSIST_STATIC_SMALL_H", "PERSIST_DYNAMIC")

each_cell = pytest.mark.parametrize("cell", CELLS)
each_bias = pytest.mark.parametrize("bias", BIASES)
each_layout = pytest.mark.parametrize("layout", LAYOUTS)
each_length = pytest.mark.parametrize("lengths", LENGTHS)
each_direction = pytest.mark.parametrize("bidirectional", [False, True], ids=["uni", "bi"])


class Values(NamedTuple):
    """The arrays of a case, rounded to its dtype and widened to float64.

    Sequences are (T, N, vector).
    """

    weights: dict[str, Array]
    x: Array
    hx: Array | None
    cx: Array | None
    dy: Array
    dhy: Array | None
    dcy: Array | None


@dataclass(frozen=True)
class Case:
    """One network and its sequences, without a device.

    No two axes of the default sizes are alike, so that a swap shows.  `cell` may be
    "lstm_projection".  `states` tells whether hx, cx, dhy and dcy are given.
    """

    cell: str
    num_layers: int = 1
    bidirectional: bool = False
    bias: str = "double"
    lengths: tuple[int, ...] | None = None
    states: bool = True
    skip_input: bool = False
    clip: tuple[float, float] | None = None
    dtype: str = "float64"
    steps: int = 5
    batch: int = 3
    input_size: int = 4
    hidden_size: int = 6
    scale: float | None = None

    @property
    def kind(self) -> str:
        """The cell as the oracles call it."""
        return CELLS[self.cell][0]

    @property
    def projection_size(self) -> int | None:
        return CELLS[self.cell][1]

    @property
    def inputs(self) -> int:
        return self.hidden_size if self.skip_input else self.input_size

    def spec(self, **options: Any) -> dnn.RNNSpec:
        """Return the network."""
        return dnn.RNNSpec(
            self.kind,
            self.inputs,
            self.hidden_size,
            self.num_layers,
            self.bidirectional,
            projection_size=self.projection_size,
            bias=self.bias,
            input_mode="skip" if self.skip_input else "linear",
            clip=self.clip,
            dtype=self.dtype,
            **options,
        )

    @property
    def values(self) -> Values:
        return _values(self)

    @property
    def results(self) -> tuple[RNNResult, ...]:
        """What has to come out, from every oracle that is there."""
        return _results(self)


@lru_cache(maxsize=32)
def _values(case: Case) -> Values:
    # not of the lengths: what lies beyond them is then the only difference
    rng = np.random.default_rng(zlib.crc32(repr(replace(case, lengths=None)).encode()))
    dtype = numpy_dtype(parse_dtype(case.dtype))
    spec = case.spec()

    def rounded(values: Array) -> Array:
        return values.astype(dtype).astype(np.float64)

    def draw(*shape: int) -> Array:
        return rounded(rng.standard_normal(shape))

    weights = random_weights(
        rng,
        case.kind,
        case.inputs,
        case.hidden_size,
        case.num_layers,
        case.bidirectional,
        case.projection_size,
        case.bias,
        case.skip_input,
        case.scale,
    )
    hidden, cell = spec.hidden_shape(case.batch), spec.cell_shape(case.batch)
    lstm = case.kind == "lstm" and case.states
    return Values(
        {name: rounded(values) for name, values in weights.items()},
        draw(case.steps, case.batch, case.inputs),
        draw(*hidden) if case.states else None,
        draw(*cell) if lstm else None,
        draw(case.steps, case.batch, spec.output_size),
        draw(*hidden) if case.states else None,
        draw(*cell) if lstm else None,
    )


@lru_cache(maxsize=32)
def _results(case: Case) -> tuple[RNNResult, ...]:
    weights, x, hx, cx, *_ = case.values
    if case.clip is not None:
        return (clipped_lstm(case.clip, weights, x, hx, cx, case.lengths),)
    oracles = (onnx_rnn, torch_rnn) if HAS_TORCH else (onnx_rnn,)
    return tuple(oracle(case.kind, weights, x, hx, cx, case.lengths) for oracle in oracles)


@lru_cache(maxsize=32)
def _gradients(case: Case) -> RNNGradients:
    weights, x, hx, cx, dy, dhy, dcy = case.values
    return torch_rnn_gradients(case.kind, weights, x, dy, dhy, dcy, hx, cx, case.lengths)[1]


@lru_cache(maxsize=32)
def _derivatives(case: Case) -> dict[str, tuple[dict[str, Array], float]]:
    """Return, for data and for weights, a random direction, and the derivative along it by ONNX."""
    weights, x, hx, cx, dy, dhy, dcy = case.values
    spec, rng = case.spec(), np.random.default_rng(1)
    shapes = {"x": x.shape, "hx": spec.hidden_shape(case.batch)}
    if case.kind == "lstm":
        shapes["cx"] = spec.cell_shape(case.batch)
    derivatives = {}
    for kind, sizes in (
        ("data", shapes),
        ("weights", {name: w.shape for name, w in weights.items()}),
    ):
        direction = {name: rng.standard_normal(shape) for name, shape in sizes.items()}
        arguments = (case.kind, weights, x, hx, cx, case.lengths, dy, dhy, dcy)
        derivatives[kind] = direction, onnx_directional_derivative(*arguments, direction)
    return derivatives


def clipped_lstm(
    clip: tuple[float, float],
    weights: dict[str, Array],
    x: Array,
    hx: Array | None,
    cx: Array | None,
    lengths: Sequence[int] | None,
) -> RNNResult:
    """Run ONNX's LSTM in single steps, with the cell state clipped between them, where it is read.

    That is what an H200 does: c_t = f * clip(c_{t-1}) + i * g and h = o * tanh(clip(c_t)), with cx
    clipped too when it is read, and cy not clipped.  A projection is part of the recurrent matrices
    here, as in `onnx_rnn`.
    """
    gates = "ifgo"
    directions = ("forward", "backward")[: 1 + any(".backward." in name for name in weights)]
    num_layers = 1 + max(int(name.partition(".")[0].removeprefix("layer")) for name in weights)
    hidden_size = len(weights["layer0.forward.recurrent.i"])
    batch = x.shape[1]
    ends = np.full(batch, len(x)) if lengths is None else np.array(lengths)
    states = num_layers * len(directions)
    narrow = weights.get("layer0.forward.projection", np.eye(hidden_size)).shape[0]
    hy = np.zeros((states, batch, narrow)) if hx is None else hx.copy()
    cy = np.zeros((states, batch, hidden_size)) if cx is None else cx.copy()
    for layer, (d, direction) in product(range(num_layers), enumerate(directions)):
        prefix, state = f"layer{layer}.{direction}.", layer * len(directions) + d
        one_direction = {
            f"layer0.forward.{name.removeprefix(prefix)}": values
            for name, values in weights.items()
            if name.startswith(prefix)
        }
        project = one_direction.pop("layer0.forward.projection", np.eye(hidden_size))
        for gate in gates:
            one_direction[f"layer0.forward.recurrent.{gate}"] = (
                one_direction[f"layer0.forward.recurrent.{gate}"] @ project
            )
        if d == 0:
            y = np.zeros((*x.shape[:2], len(directions) * narrow))
        h, c = hy[state] @ np.linalg.pinv(project).T, cy[state]
        for t in range(len(x))[:: -1 if d else 1]:
            rows = np.flatnonzero(t < ends)
            if not rows.size:
                continue
            one = onnx_rnn(
                "lstm",
                one_direction,
                x[t : t + 1, rows],
                h[None, rows],
                np.clip(c[rows], *clip)[None],
            )
            c[rows] = one.cy[0]
            h[rows] = one.hy[0] / np.tanh(c[rows]) * np.tanh(np.clip(c[rows], *clip))
            y[t, rows, d * narrow : (d + 1) * narrow] = h[rows] @ project.T
        hy[state] = h @ project.T
        if d == len(directions) - 1:
            x = y
    return RNNResult(x, hy, cy)


def overwrite(array: dnn.DeviceArray, values: Any) -> None:
    """Replace what an array holds, where it lies."""
    values = np.ascontiguousarray(np.asarray(values).astype(array.dtype))
    assert values.shape == array.shape
    array.device.synchronize()
    array.device.copy_in(array.ptr, values, array.stream)


class Problem:
    """A case on a handle.

    Sequences lie in memory as `layout` says; beyond their ends is NaN.  Packed sequences are sorted
    by length, which the results undo.

    Parameters
    ----------
    handle : Handle
    case : Case
    layout : str
    options
        Of the RNNSpec; "math_type" is FMA if not given.
    """

    def __init__(
        self,
        handle: dnn.Handle,
        case: Case,
        layout: str = "sequence_major",
        *,
        math_type: str = "FMA",
        **options: Any,
    ) -> None:
        self.handle, self.case, self.layout = handle, case, layout
        self.spec = case.spec(math_type=math_type, **options)
        self.dtype = numpy_dtype(self.spec.dtype)
        lengths = np.array(case.lengths or (case.steps,) * case.batch)
        self.order = (
            np.argsort(-lengths, kind="stable") if layout == "packed" else np.arange(case.batch)
        )
        self.lengths = (
            tuple(lengths[self.order].tolist()) if case.lengths or layout == "packed" else None
        )
        self.active = np.arange(case.steps)[:, None] < lengths[self.order]
        values = case.values
        self.weights = dnn.RNNWeights.from_arrays(handle, self.spec, values.weights)
        self.x, self.dy = self.sequences(values.x), self.sequences(values.dy)
        self.hx, self.cx, self.dhy, self.dcy = (
            self.state(values.hx),
            self.state(values.cx),
            self.state(values.dhy),
            self.state(values.dcy),
        )

    def laid_out(self, values: Array) -> Array:
        """Bring (T, N, vector) to the layout."""
        values = values[:, self.order].astype(self.dtype)
        if self.layout == "packed":
            return values[self.active]
        values[~self.active] = np.nan
        return (
            np.ascontiguousarray(values.swapaxes(0, 1)) if self.layout == "batch_major" else values
        )

    def brought_back(self, values: Array, beyond: float = 0.0) -> Array:
        """Bring an array to (T, N, vector) in float64; check the padding, and replace it by 0."""
        wide = np.zeros((*self.active.shape, values.shape[-1]))
        if self.layout == "packed":
            wide[self.active] = values
        else:
            padded = values.swapaxes(0, 1) if self.layout == "batch_major" else values
            np.testing.assert_array_equal(padded[~self.active].astype(np.float64), beyond)
            wide[self.active] = padded[self.active]
        return self.unsorted(wide)

    def unsorted(self, values: Array) -> Array:
        """Undo what packing did to the order of the sequences."""
        wide = np.empty(values.shape)
        wide[:, self.order] = values
        return wide

    def sequences(self, values: Array) -> dnn.DeviceArray:
        return self.handle.array(self.laid_out(values))

    def state(self, values: Array | None) -> dnn.DeviceArray | None:
        return (
            None if values is None else self.handle.array(values[:, self.order].astype(self.dtype))
        )

    def poisoned(self, *vectors: int) -> tuple[dnn.DeviceArray, ...]:
        """Return arrays for `out`, all NaN: y, hy and, for an LSTM, cy."""
        shapes = [
            *((*self.x.shape[:-1], vector) for vector in vectors),
            self.spec.hidden_shape(self.case.batch),
            self.spec.cell_shape(self.case.batch),
        ][: None if self.case.kind == "lstm" else -1]
        return tuple(
            poisoned(self.handle, dnn.TensorSpec(shape, self.spec.dtype)) for shape in shapes
        )

    def forward(self, **options: Any) -> Any:
        """Call `rnn_forward`."""
        arguments = {"lengths": self.lengths, "layout": self.layout} | options
        return dnn.rnn_forward(
            self.handle, self.spec, self.weights, self.x, self.hx, self.cx, **arguments
        )

    def backward(
        self, reserve: dnn.types.RNNReserve, **options: Any
    ) -> tuple[dnn.types.RNNGradients, dnn.RNNWeights]:
        """Call `rnn_backward_data` and `rnn_backward_weights`."""
        data = dnn.rnn_backward_data(self.handle, reserve, self.dy, self.dhy, self.dcy)
        return data, dnn.rnn_backward_weights(self.handle, reserve, **options)

    def chosen(self, algorithm: Any) -> Any:
        """Return the algorithm that a call runs."""
        if algorithm is not None:
            return dnn.enums.RNNAlgo[algorithm]
        data = dnn.specs.RNNDataSpec(self.x.shape, self.lengths, self.spec.dtype, self.layout)
        return heuristic(self.spec, data).algorithm

    def bound(self, algorithm: Any, *, gradient: bool = False) -> float:
        """Return what the table allows."""
        chain = self.case.steps * self.case.num_layers
        name = self.chosen(algorithm).name
        return rnn_bound(
            self.case.dtype, self.spec.math_type, name, self.case.kind, chain, gradient=gradient
        )

    def on_host(self, result: Any, padding_fill: float = 0.0) -> RNNResult:
        """Return what a call computed as the oracles do."""
        cy = None if result.cy is None else self.unsorted(result.cy.numpy())
        return RNNResult(
            self.brought_back(result.y.numpy(), padding_fill), self.unsorted(result.hy.numpy()), cy
        )

    def assert_forward(
        self, result: Any, algorithm: Any = "STANDARD", padding_fill: float = 0.0
    ) -> None:
        """Compare y, hy and cy with every oracle."""
        host_result, bound = self.on_host(result, padding_fill), self.bound(algorithm)
        for expected in self.case.results:
            self.assert_same(host_result._asdict(), expected._asdict(), bound, algorithm)

    def assert_same(
        self, results: dict[str, Any], expected: dict[str, Any], bound: float, algorithm: Any
    ) -> None:
        """Compare arrays by name; an error tells which, and of what network."""
        for name, values in expected.items():
            assert (results[name] is None) == (values is None), name
            if values is not None:
                try:
                    assert_close(results[name], values, bound)
                except AssertionError as error:
                    raise AssertionError(f"{name}: {error}\n{self.told(algorithm)}") from None

    def told(self, algorithm: Any) -> str:
        """Say what this is: a test may try several of them."""
        states = "" if self.case.states else ", no states"
        return (
            f"{self.spec}, {self.layout}, lengths {self.case.lengths}{states}, "
            f"{self.spec.math_type.name}, {algorithm}"
        )

    def assert_backward(
        self,
        data: dnn.types.RNNGradients,
        weights: dnn.RNNWeights | dict[str, Array],
        algorithm: Any = "STANDARD",
    ) -> None:
        """Compare gradients with PyTorch's values and with ONNX's directional differences."""
        gradients = {"x": self.brought_back(data.dx.numpy()), "hx": self.unsorted(data.dhx.numpy())}
        assert (data.dcx is None) == (self.case.kind != "lstm")
        if data.dcx is not None:
            gradients["cx"] = self.unsorted(data.dcx.numpy())
        of_weights = weights.numpy() if isinstance(weights, dnn.RNNWeights) else weights
        parts = {
            "data": gradients,
            "weights": {name: values.astype(np.float64) for name, values in of_weights.items()},
        }
        bound = self.bound(algorithm, gradient=True)
        for kind, (direction, expected) in _derivatives(self.case).items():
            assert parts[kind].keys() == direction.keys()
            sums = sum(
                float((parts[kind][name] * values).sum()) for name, values in direction.items()
            )
            # The direction has length 1 per value, so the sum is about as large as the gradient's
            # norm.
            norm = np.sqrt(sum(float((values**2).sum()) for values in parts[kind].values()))
            allowed = max(RNN_SUM, 5 * bound) * norm
            assert abs(sums - expected) <= allowed, (
                f"{kind}: {sums} instead of {expected}\n{self.told(algorithm)}"
            )
        if HAS_TORCH:
            theirs = _gradients(self.case)
            expected = {"x": theirs.dx, "hx": theirs.dhx, "cx": theirs.dcx, **theirs.weights}
            self.assert_same(
                {"cx": None, **gradients, **parts["weights"]}, expected, bound, algorithm
            )

    def run_or_refused(self, call: Any, algorithm: str | None, *, backward: bool = False) -> Any:
        """Make the call; return None if it is refused as the rules recorded on an H200 predict."""
        try:
            return call()
        except dnn.NotSupportedError:
            assert algorithm not in (None, "STANDARD")
            full = self.lengths is None or min(self.lengths) == self.case.steps
            assert why_not(self.spec, dnn.enums.RNNAlgo[algorithm], full=full, backward=backward)
            return None


def sequences_of(case: Case, layouts: Sequence[str] = LAYOUTS) -> Iterator[tuple[Case, str]]:
    """Yield a case with every kind of lengths and in every layout."""
    for lengths, layout in product(LENGTHS.values(), layouts):
        yield replace(case, lengths=lengths), layout
