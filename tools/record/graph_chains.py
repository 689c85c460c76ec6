"""Record, on a GPU, which engines compute chains of pointwise operations rightly.

    python -m tools.record.graph_chains OUT.json [DEVICE]

The chains are alone, behind a convolution or behind a product, with operands of several shapes, with
every attribute of ReLU, and with further outputs in their middle; attention has outputs in its
middle, too.  For each graph every engine that the heuristics name runs once over poisoned outputs:
"right" or "wrong" against formulas in float64, "refused", or "lost" if the device or the process
ended.  The refusals of `faults` are left out.  OUT.json may have the rows of another version
of cuDNN, which are kept.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

import cudnnlite as dnn
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.errors import CudnnError, DeviceLostError
from cudnnlite.graph import faults
from cudnnlite.graph.engines import Engine, configurations
from cudnnlite.graph.lowering import lower
from cudnnlite.graph.selection import HEURISTICS_OF_PLANS
from cudnnlite.graph.tensor import GraphTensor
from cudnnlite.specs.layout import CHANNELS_LAST
from tools.record.support import upload

Array = np.ndarray[Any, Any]
TABLE = Path(__file__).parents[2] / "tests/emulated/data/graph_chains.json"
FLOATS = ("float16", "bfloat16", "float32")
_LARGEST_ERROR = 0.02  # of what counts as right, relative to the value, or to 1 if that is more
_POISON = 12288.0
# Values from 44 on are large for tanh, and from 89 on for exp in float32.
_LARGE = (0.01, 0.5, 1, 5, 20, 44, 60, 80, 88, 89, 100, 200, 1e4, 3e4)
_SHAPES = {
    "NHWC": (2, 16, 5, 7),
    "NCHW": (2, 16, 5, 7),
    "NDHWC": (2, 16, 3, 5, 7),
    "NCDHW": (2, 16, 3, 5, 7),
    "rows": (3, 24, 40),
    "matrix": (24, 40),
    "batch of one": (1, 24, 40),
    "one channel": (2, 1, 5, 7),
}
# The attributes of ReLU, by the name of its link.
RELUS: dict[str, dict[str, float]] = {
    "relu": {},
    "relu slope": {"relu_lower_clip_slope": 0.25},
    "relu slope 1": {"relu_lower_clip_slope": 1.0},
    "relu slope 4": {"relu_lower_clip_slope": 4.0},
    "relu slope -0.25": {"relu_lower_clip_slope": -0.25},
    "relu upper": {"relu_upper_clip": 2.0},
    "relu lower": {"relu_lower_clip": 0.5},
    "relu lower -1": {"relu_lower_clip": -1.0},
    "relu slope upper": {"relu_lower_clip_slope": 0.25, "relu_upper_clip": 2.0},
    "relu slope lower": {"relu_lower_clip_slope": 0.25, "relu_lower_clip": 0.5},
    "relu lower upper": {"relu_lower_clip": -1.0, "relu_upper_clip": 2.0},
}
# What is added or multiplied, by the axes that it keeps: the channels, all others, or all.
OPERANDS = {
    "bias": ("ADD", "channels"),
    "scale": ("MUL", "channels"),
    "mask": ("MUL", "pixels"),
    "image": ("ADD", "all"),
    "gate": ("MUL", "all"),
}


class Key(NamedTuple):
    """What a graph computes.

    Attributes
    ----------
    base : str
        "alone", "convolution", "product" or "attention".
    layout : str
        A name of `_SHAPES`; "causal" or "whole" for attention.
    dtype, result : str
        The data types of what is read, and of the last result.
    chain : str
        The links behind the base, with commas between: names of `OPERANDS`, `RELUS` and `FUNCTIONS`,
        or "add" and "mul" with the axes that the operand keeps, as "add 0111".
    outputs : str
        The places of further outputs, counted from the base's result, or attention's tensor.
    values : str
        "random" or "large".
    """

    base: str
    layout: str
    dtype: str
    result: str
    chain: str
    outputs: str = ""
    values: str = "random"


def _sigmoid(x: Array) -> Array:
    return np.exp(-np.logaddexp(0, -x))


def _relu(x: Array, attributes: dict[str, float]) -> Array:
    lower = attributes.get("relu_lower_clip", 0.0)
    below = lower + attributes.get("relu_lower_clip_slope", 0.0) * (x - lower)
    return np.minimum(np.where(x > lower, x, below), attributes.get("relu_upper_clip", np.inf))


FUNCTIONS: dict[
    str, tuple[Callable[[dnn.Graph, GraphTensor], GraphTensor], Callable[..., Array]]
] = {
    "tanh": (lambda g, x: g.tanh(x), np.tanh),
    "sigmoid": (lambda g, x: g.sigmoid(x), _sigmoid),
    "swish": (lambda g, x: g.swish(x), lambda x: x * _sigmoid(x)),
    "softplus": (lambda g, x: g.softplus(x), lambda x: np.logaddexp(0, x)),
    "elu": (
        lambda g, x: g.elu(x),
        lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    ),
    "mish": (
        lambda g, x: x * g.tanh(g.softplus(x)),
        lambda x: x * np.tanh(np.logaddexp(0, x)),
    ),
    "exp": (lambda g, x: g.exp(x), np.exp),
    "half": (lambda g, x: x * 0.5, lambda x: x * 0.5),
    "maximum": (lambda g, x: g.pointwise("MAX", x, -1.0), lambda x: np.maximum(x, -1)),
    "minimum": (lambda g, x: g.pointwise("MIN", x, 1.0), lambda x: np.minimum(x, 1)),
    "select": (
        lambda g, x: g.where(x > 0.0, x, x * 0.25),
        lambda x: np.where(x > 0, x, x * 0.25),
    ),
    "leaky clip": (
        lambda g, x: g.relu(x, negative_slope=0.25, upper=2.0),
        lambda x: np.minimum(np.where(x > 0, x, 0.25 * x), 2),
    ),
    "steep": (
        lambda g, x: g.relu(x, negative_slope=4.0),
        lambda x: np.where(x > 0, x, 4.0 * x),
    ),
}


def behind_convolutions() -> Iterator[Key]:
    """Yield the keys of chains behind a convolution."""
    chains = (
        *("mask", "gate", "image,relu", "scale,bias,relu", "mask,bias,relu", "bias,relu,mask"),
        *("bias,mish", "bias,mish,mask", "bias,gate", "bias,relu,gate"),
    )
    for chain, dtype in product(chains, FLOATS):
        yield Key("convolution", "NHWC", dtype, dtype, chain)
    for chain in chains:
        yield Key("convolution", "NCHW", "float16", "float16", chain)
    for axes in ("0000", "0010", "0011", "0101", "0111", "1000", "1001", "1100", "1101", "1110"):
        yield Key("convolution", "NHWC", "float16", "float16", f"add {axes}")
    for axes in ("01000", "10111", "11111", "11000", "00111"):
        yield Key("convolution", "NDHWC", "float16", "float16", f"add {axes},relu")
    for first, layout, dtype in product(("", "bias,", "image,bias,"), ("NHWC", "NCHW"), FLOATS):
        yield Key("convolution", layout, dtype, dtype, f"{first}tanh", values="large")
    activations = ("sigmoid", "swish", "softplus", "elu", "mish", "exp")
    for function, dtype in product(activations, FLOATS):
        yield Key("convolution", "NHWC", dtype, dtype, f"bias,{function}", values="large")
    for relu, layout in product(RELUS, ("NHWC", "NCHW")):
        yield Key("convolution", layout, "float16", "float16", f"bias,{relu}")
    for function in ("leaky clip", "steep"):
        yield Key("convolution", "NHWC", "float16", "float16", f"bias,{function}")
    for outputs, dtype in product(("0", "1", "0 1", "0 1 2", "2"), FLOATS):
        yield Key("convolution", "NHWC", dtype, dtype, "bias,swish,half", outputs)


def behind_products() -> Iterator[Key]:
    """Yield the keys of chains behind a product."""
    types = [("float16", "float32"), *zip(FLOATS, FLOATS, strict=True)]
    for relu, (dtype, result) in product(RELUS, types):
        yield Key("product", "rows", dtype, result, relu)
    for relu in ("relu slope", "relu upper"):
        yield Key("product", "rows", "float16", "float16", f"add 001,{relu}")
    for function in ("leaky clip", "steep", "maximum", "minimum", "select"):
        yield Key("product", "rows", "float16", "float16", function)
    for function, dtype in product(("tanh", "sigmoid", "swish", "softplus", "elu", "exp"), FLOATS):
        yield Key("product", "rows", dtype, dtype, function, values="large")
    for outputs, dtype in product(("0", "1", "0 1", "0 1 2", "2"), FLOATS):
        yield Key("product", "rows", dtype, dtype, "add 001,swish,half", outputs)


def alone() -> Iterator[Key]:
    """Yield the keys of chains of pointwise operations alone."""
    chains = ("scale,bias,relu", "mask", "image,relu", "relu,tanh", "scale,bias,mish", "gate")
    more = ("scale,bias,relu,mask", "swish,gate", "maximum,minimum", "select", "bias")
    layouts = ("NHWC", "NDHWC", "NCHW", "NCDHW")
    for chain, layout, dtype in product((*chains, *more), layouts, ("float16", "float32")):
        yield Key("alone", layout, dtype, dtype, chain)
    for axes in product("01", repeat=4):
        yield Key("alone", "NHWC", "float16", "float16", f"add {''.join(axes)}")
    for axes, layout in product(product("01", repeat=3), ("rows", "batch of one")):
        yield Key("alone", layout, "float16", "float16", f"add {''.join(axes)}")
    for chain in ("relu", "add 11,relu"):
        yield Key("alone", "matrix", "float16", "float16", chain)
    for chain in ("relu", "add 1111,relu"):
        yield Key("alone", "one channel", "float16", "float16", chain)
    for relu, dtype in product(RELUS, FLOATS):
        yield Key("alone", "NHWC", dtype, dtype, relu, values="large")
    for function in ("leaky clip", "steep"):
        yield Key("alone", "NHWC", "float16", "float16", function, values="large")
    for outputs, dtype in product(("1", "2", "1 2", "3"), FLOATS):
        yield Key("alone", "NHWC", dtype, dtype, "half,bias,swish,half", outputs)


def attentions() -> Iterator[Key]:
    """Yield the keys of attention with a further output."""
    for output in ("products", "scaled", "largest", "powers", "probabilities", "stats"):
        for mask in ("whole", "causal"):
            yield Key("attention", mask, "float16", "float16", "", output)
    yield Key("attention", "causal", "float16", "float16", "", "masked")


def combinations() -> Iterator[Key]:
    """Yield all keys, each once."""
    families = (behind_convolutions, behind_products, alone, attentions)
    yield from dict.fromkeys(key for family in families for key in family())


class Case:
    """The graph of a key, with the values of its inputs and of its outputs.

    Attributes
    ----------
    graph : Graph
        The graph.
    hosts, expected : dict of str to ndarray
        The inputs, and the outputs in float64, by name.
    """

    def __init__(self, key: Key) -> None:
        self.key = key
        self.graph = dnn.Graph()
        self.hosts: dict[str, Array] = {}
        self.expected: dict[str, Array] = {}
        self._rng = np.random.default_rng(7)
        with np.errstate(all="ignore"):
            if key.base == "attention":
                self._add_attention()
            else:
                self._add_chain()

    def input(self, name: str, shape: tuple[int, ...], values: Array | None = None) -> Any:
        """Return an input and its values."""
        if values is None:
            values = self._rng.standard_normal(shape)
        spec = self._spec(shape, self.key.dtype)
        self.hosts[name] = values.astype(np.float16).astype(numpy_dtype(spec.dtype))
        tensor = self.graph.input(name, shape, spec.dtype, spec.strides)
        return tensor, self.hosts[name].astype(np.float64)

    def _spec(self, shape: tuple[int, ...], dtype: str) -> dnn.TensorSpec:
        is_last = self.key.layout in (*CHANNELS_LAST.values(), "one channel")
        return dnn.TensorSpec(shape, dtype, CHANNELS_LAST[len(shape)] if is_last else None)

    def output(self, name: str, tensor: GraphTensor, values: Array, dtype: str) -> None:
        """Let a tensor be written."""
        self.graph.output(name, tensor, dtype, self._spec(tensor.shape, dtype).strides)
        self.expected[name] = values

    def _add_chain(self) -> None:
        tensors = [getattr(self, f"_{self.key.base}")()]
        for place, link in enumerate(self.key.chain.split(",")):
            tensors.append(self._linked(link, f"b{place}", *tensors[-1]))
        for place in map(int, self.key.outputs.split()):
            self.output(f"y{place}", *tensors[place], self.key.dtype)
        self.output("y", *tensors[-1], self.key.result)

    def _alone(self) -> Any:
        shape = _SHAPES[self.key.layout]
        return self.input("x", shape, self._large(shape))

    def _convolution(self) -> Any:
        shape = _SHAPES[self.key.layout]
        spatial = len(shape) - 2
        x, images = self.input("x", shape, self._large(shape))
        if self.key.values == "large":
            taps = 1
            w, weights = self.input("w", (16, 16, 1, 1), np.eye(16).reshape(16, 16, 1, 1))
        else:
            taps = 3
            w_shape = (24, 16, *(taps,) * spatial)
            w, weights = self.input("w", w_shape, self._rng.standard_normal(w_shape) / 4)
        pads = [(0, 0), (0, 0), *[(taps // 2, taps // 2)] * spatial]
        pixels = tuple(range(2, len(shape)))
        windows = sliding_window_view(np.pad(images, pads), (taps,) * spatial, pixels)
        sums = np.tensordot(windows, weights, ((1, *range(-spatial, 0)), (1, *pixels)))
        conv = dnn.ConvolutionSpec(padding=taps // 2)
        return self.graph.convolution_forward(x, w, conv), np.moveaxis(sums, -1, 1)

    def _product(self) -> Any:
        is_large = self.key.values == "large"
        shape = (2, 40, 16) if is_large else (2, 24, 40)
        a, rows = self.input("a", shape, self._large(shape))
        square = np.broadcast_to(np.eye(16), (2, 16, 16)) if is_large else None
        b, columns = self.input("b", (2, 16, 16) if is_large else (2, 40, 56), square)
        return self.graph.matmul(a, b), rows @ columns

    def _large(self, shape: tuple[int, ...]) -> Array | None:
        """Return values of every size, of both signs; None for random ones."""
        if self.key.values == "random":
            return None
        return np.resize(np.array([*_LARGE, *(-value for value in _LARGE)]), shape)

    def _linked(self, link: str, name: str, x: GraphTensor, values: Array) -> Any:
        """Return the result of a link behind x, and its values."""
        if link in FUNCTIONS:
            function, formula = FUNCTIONS[link]
            return function(self.graph, x), formula(values)
        if link in RELUS:
            attributes = RELUS[link]
            return self.graph.pointwise("RELU_FWD", x, **attributes), _relu(values, attributes)
        if link in OPERANDS:
            mode, kept = OPERANDS[link]
            axes = {"channels": (1,), "pixels": (0, *range(2, x.rank)), "all": range(x.rank)}[kept]
        else:
            mode, _, digits = link.partition(" ")
            axes = [axis for axis, digit in enumerate(digits) if digit == "1"]
        shape = tuple(size if axis in axes else 1 for axis, size in enumerate(x.shape))
        b, others = self.input(name, shape)
        result = self.graph.pointwise(mode.upper(), x, b)
        return result, values + others if mode.upper() == "ADD" else values * others

    def _add_attention(self) -> None:
        graph = self.graph
        shapes = {"q": (2, 2, 16, 64), "k": (2, 2, 64, 64), "v": (2, 2, 64, 64)}
        (q, queries), (k, keys), (v, values) = (self.input(*item) for item in shapes.items())
        products = graph.matmul(q, k.transposed())
        scaled = products * 0.125
        masked = graph.causal(scaled) if self.key.layout == "causal" else scaled
        largest = graph.reduce("MAX", masked)
        powers = graph.exp(masked - largest)
        total = graph.reduce("ADD", powers)
        stats = largest + graph.log(total)
        probabilities = graph.div(powers, total, dtype=self.key.dtype)
        scores = queries @ keys.swapaxes(-1, -2)
        scores_masked = scores * 0.125
        if masked is not scaled:
            scores_masked = np.where(np.tri(16, 64, dtype=bool), scores_masked, -np.inf)
        maxima = scores_masked.max(-1, keepdims=True)
        exponentials = np.exp(scores_masked - maxima)
        sums = exponentials.sum(-1, keepdims=True)
        tensors = {
            "products": (products, scores),
            "scaled": (scaled, scores * 0.125),
            "masked": (masked, scores_masked),
            "largest": (largest, maxima),
            "powers": (powers, exponentials),
            "probabilities": (probabilities, exponentials / sums),
            "stats": (stats, maxima + np.log(sums)),
        }
        dtype = "float32" if self.key.outputs in ("largest", "stats") else "float16"
        self.output(self.key.outputs, *tensors[self.key.outputs], dtype)
        self.output("o", graph.matmul(probabilities, v), exponentials / sums @ values, "float16")


def is_right(results: dict[str, Array], expected: dict[str, Array], graph: dnn.Graph) -> bool:
    """Whether results have the expected values, as far as these are finite in their type."""
    for name, values in expected.items():
        with np.errstate(all="ignore"):
            rounded = values.astype(numpy_dtype(graph.outputs[name].dtype)).astype(np.float64)
        finite = np.isfinite(rounded)
        error = np.abs(results[name].astype(np.float64)[finite] - rounded[finite])
        bound = _LARGEST_ERROR * np.maximum(1, np.abs(rounded[finite]))
        if not (error <= bound).all():  # a NaN is not
            return False
    return True


def engines_of(handle: dnn.Handle, graph: dnn.Graph) -> list[Engine]:
    """Return the engines that the heuristics name, each number with its first knobs."""
    engines: dict[int, Engine] = {}
    with ExitStack() as stack:
        try:
            native = lower(graph, handle, stack)
        except CudnnError:
            return []
        for configuration in configurations(native, HEURISTICS_OF_PLANS, stack):
            engines.setdefault(configuration.engine.index, configuration.engine)
    return [*engines.values()]


def run(handle: dnn.Handle, case: Case, engine: Engine) -> str:
    """Run a graph by an engine over poisoned outputs, and judge the results."""
    try:
        plan = case.graph.plan(handle, engine=engine)
    except (CudnnError, dnn.ArgumentError):
        return "refused"
    with plan:
        inputs = {
            name: upload(handle, record.spec, case.hosts[name])
            for name, record in case.graph.inputs.items()
        }
        outputs = {
            name: upload(handle, record.spec, np.full(record.spec.shape, _POISON, np.float32))
            for name, record in case.graph.outputs.items()
        }
        results = {name: array.numpy() for name, array in plan(**inputs, out=outputs).items()}
    return "right" if is_right(results, case.expected, case.graph) else "wrong"


def _open(device: str) -> None:
    """Open the handle of a process, in which known faults are not refused."""
    global _handle
    faults.FAULTS = ()
    _handle = dnn.Handle(device)


def _names_and_version(key: Key) -> tuple[list[Engine], str, int]:
    return engines_of(_handle, Case(key).graph), _handle.device.name, _handle.version


def _verdict(key: Key, engine: Engine) -> str:
    try:
        return run(_handle, Case(key), engine)
    except DeviceLostError:
        return "lost"


class _Worker:
    """A process that may die, with a handle."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._start()

    def _start(self) -> None:
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), _open, (self._device,))

    def ask(self, function: Callable[..., Any], *arguments: object) -> Any:
        """Return what a function returns in the process; "lost" if that or its device ended."""
        try:
            answer = self._pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            answer = "lost"
        if answer == "lost":
            self._pool.shutdown(cancel_futures=True)
            self._start()
        return answer


def main(path: str, device: str = "cuda") -> None:
    """Record all keys, beside the rows of other versions that the file has."""
    target = Path(path)
    table = json.loads(target.read_text()) if target.exists() else {"devices": {}, "rows": []}
    rows = {Key(*key): outcomes for key, outcomes in table["rows"]}
    worker = _Worker(device)
    for key in combinations():
        engines, name, version = worker.ask(_names_and_version, key)
        table["devices"][str(version)] = name
        verdicts = {str(engine.index): worker.ask(_verdict, key, engine) for engine in engines}
        rows.setdefault(key, {})[str(version)] = verdicts
    write(target, table["devices"], [(key, rows[key]) for key in combinations()])


def write(path: Path, devices: dict[str, str], rows: Sequence[tuple[Key, Any]]) -> None:
    """Write a table with one row a line."""
    lines = ",\n".join(json.dumps(row) for row in rows)
    path.write_text(f'{{"devices": {json.dumps(devices)}, "rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main(*sys.argv[1:])
