"""Random graphs: a convolution, a product, a normalisation, a reduction or nothing, and a chain.

Each tensor is interpreted beside the graph, in float64, with how far it may be off.  A value may be
off by what its operands are off by: an operation is evaluated where these are and at the ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
from helpers.faults import why_wrong
from scipy.special import erf, ndtr
from tolerances import ELEMENT_BOUNDS

import cudnnlite as dnn
from cudnnlite.graph.lowering import lower
from cudnnlite.graph.selection import NO_REQUIREMENTS, candidates
from fuzz.random_comparison import Expected, compare
from fuzz.random_convolutions import convolved, forward, lost_denormals, out_shape, sigmoid
from fuzz.random_draw import NARROW, Array, Draw, Shape


class Tracked(NamedTuple):
    """A tensor of the graph, its values, and how far each may be off; infinite if it is open."""

    tensor: Any
    values: Array
    error: Array


def _relu(x: Array, lower: float = 0.0, upper: float = np.inf, slope: float = 0.0) -> Array:
    below = np.where(np.isinf(x) & (slope == 0), lower, lower + slope * (x - lower))
    return np.where(x > lower, np.minimum(x, upper), below)


def _gelu_slope(x: Array) -> Array:
    return ndtr(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


UNARY: dict[str, Callable[..., Array]] = {
    "RELU_FWD": _relu,
    "TANH_FWD": np.tanh,
    "SIGMOID_FWD": sigmoid,
    "ELU_FWD": lambda x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(x)),
    "GELU_FWD": lambda x: x * ndtr(x),
    "GELU_APPROX_TANH_FWD": lambda x: (
        x / 2 * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))
    ),
    "SOFTPLUS_FWD": lambda x, beta=1.0: np.logaddexp(0, beta * x) / beta,
    "SWISH_FWD": lambda x, beta=1.0: x * sigmoid(beta * x),
    "EXP": np.exp,
    "LOG": np.log,
    "SQRT": np.sqrt,
    "RSQRT": lambda x: 1 / np.sqrt(x),
    "NEG": np.negative,
    "ABS": np.abs,
    "CEIL": np.ceil,
    "FLOOR": np.floor,
    "SIN": np.sin,
    "COS": np.cos,
    "TAN": np.tan,
    "ERF": erf,
    "RECIPROCAL": lambda x: 1 / x,
    "IDENTITY": lambda x: x,
}
BINARY: dict[str, Callable[..., Array]] = {
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
    "DIV": np.divide,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "ADD_SQUARE": lambda a, b: a + b * b,
    "MOD": np.fmod,
    "POW": np.power,
    # In a backward mode the first operand is that of the forward operation.
    "RELU_BWD": lambda x, dy, lower=0.0, upper=np.inf, slope=0.0: np.where(
        x > lower, np.where(x < upper, dy, 0.0), slope * dy
    ),
    "TANH_BWD": lambda x, dy: dy * (1 - np.tanh(x) ** 2),
    "SIGMOID_BWD": lambda x, dy: dy * sigmoid(x) * sigmoid(-x),
    "ELU_BWD": lambda x, dy, alpha=1.0: np.where(x > 0, dy, dy * alpha * np.exp(np.minimum(x, 0))),
    "SOFTPLUS_BWD": lambda x, dy, beta=1.0: dy * sigmoid(beta * x),
    "SWISH_BWD": lambda x, dy, beta=1.0: (
        dy * (sigmoid(beta * x) + beta * x * sigmoid(beta * x) * sigmoid(-beta * x))
    ),
    "GELU_BWD": lambda x, dy: dy * _gelu_slope(x),
}
COMPARED: dict[str, Callable[[Array, Array], Array]] = {
    "CMP_GT": np.greater,
    "CMP_GE": np.greater_equal,
    "CMP_LT": np.less,
    "CMP_LE": np.less_equal,
    "CMP_EQ": np.equal,
    "CMP_NEQ": np.not_equal,
}
USUAL = (
    "ADD", "MUL", "SUB", "RELU_FWD", "RELU_FWD", "TANH_FWD", "SIGMOID_FWD", "GELU_FWD", "SWISH_FWD",
    "ELU_FWD", "SOFTPLUS_FWD", "GELU_APPROX_TANH_FWD",
)  # fmt: skip
TURNS = 4  # sets of values for a plan
ATTRIBUTES: dict[str, tuple[tuple[str, str, tuple[float, ...]], ...]] = {
    "RELU": (
        ("relu_lower_clip", "lower", (0.5, -1.0)),
        ("relu_upper_clip", "upper", (2.0, 6.0)),
        ("relu_lower_clip_slope", "slope", (0.25, 0.01)),
    ),
    "ELU": (("elu_alpha", "alpha", (0.5, 2.0)),),
    "SWISH": (("swish_beta", "beta", (0.5, 2.0)),),
    "SOFTPLUS": (("softplus_beta", "beta", (0.5, 2.0)),),
}


def applied(
    function: Callable[..., Array], operands: list[Tracked], precision: float
) -> tuple[Array, Array]:
    """Return the values of an operation, and how far they may be off."""
    values = np.asarray(function(*(operand.values for operand in operands)), np.float64)
    spread = np.zeros(values.shape)
    unclear = np.zeros(values.shape, bool)
    for signs in itertools.product((-1, 0, 1), repeat=len(operands)):
        at = [
            operand.values + sign * np.where(np.isfinite(operand.error), operand.error, 0)
            for sign, operand in zip(signs, operands, strict=True)
        ]
        corner = np.asarray(function(*at), np.float64)
        difference = np.abs(corner - values)
        same = (corner == values) | (np.isnan(corner) & np.isnan(values))
        unclear |= ~same & ~np.isfinite(difference)
        spread = np.maximum(spread, np.where(np.isfinite(difference), difference, 0))
    for operand in operands:
        unclear |= np.broadcast_to(~np.isfinite(operand.error), values.shape)
        # Kernels differ in what a maximum, a comparison, or x * sigmoid(x) makes of NaN, and of
        # an infinity whose product with zero is NaN.
        unclear |= np.broadcast_to(np.isnan(operand.values), values.shape)
    unclear |= np.isnan(values) | ((np.abs(values) > 1e37) & np.isfinite(values))
    error = spread + precision * np.abs(values) + 6e-38
    return values, np.where(unclear, np.inf, error)


def unclear_places(
    mode: str, dtype: str, operands: list[Tracked], behind_product: bool
) -> Array | bool:
    """Return where a function is open beyond what its error says (H200, cuDNN 9.19)."""
    x = operands[0]
    if mode in ("DIV", "RECIPROCAL"):
        # There is a pole within the error.  Kernels multiply by the reciprocal, which is infinite
        # for a denormal number.
        divisor = operands[-1]
        return np.abs(divisor.values) <= np.maximum(divisor.error, 1.2e-38)
    if mode == "MOD":
        # There is a multiple of the divisor within the error, or the divisor is taken for 0.
        divisor = np.abs(operands[1].values)
        distance = x.error + 1e-5 * np.abs(x.values) + 1e-30
        with np.errstate(all="ignore"):
            ends = [np.trunc((x.values + sign * distance) / divisor) for sign in (-1, 1)]
        return (ends[0] != ends[1]) | (divisor < 1.2e-38) | (operands[1].error > 0)
    if mode == "POW":
        # Kernels compute exp(y * log(x)): NaN of negative numbers, of 0 and infinity to the power of
        # 0, and of 1 to an infinite power.
        return (x.values - x.error <= 0) | np.isinf(x.values) | np.isinf(operands[1].values)
    if mode.startswith("SWISH"):
        # beta * x may be infinite: its product with 0 is NaN.
        return np.isfinite(x.values) & (np.abs(x.values) > 1e38)
    if mode == "TAN":
        # There is a pole within the error.
        ends = [np.floor((x.values + sign * x.error) / np.pi + 0.5) for sign in (-1, 1)]
        return ends[0] != ends[1]
    if mode == "RELU_BWD":
        # Kernels take denormal numbers for 0.
        return (x.values != 0) & (np.abs(x.values) < 1.2e-38)
    if mode == "GELU_FWD" and dtype == "float16" and behind_product:
        # An engine rounds the product to float16 before: -inf, of which GELU is NaN.
        return x.values - x.error < -65504
    return False


def _stored(x: Tracked) -> Tracked:
    """Return a tensor that is an output, too: what reads it may read what was rounded."""
    large = np.abs(x.values) > 3e4
    return x._replace(error=np.where(large, np.inf, x.error + 0.01 * np.abs(x.values) + 1e-4))


class RandomGraph:
    """A graph that is planned and called.

    Attributes
    ----------
    also : list of str
        What was right beside the call itself, for the counts: further calls of the plan, with other
        values, and graphs of several outputs.
    """

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.also: list[str] = []
        self.graph = dnn.Graph()
        self.verb = "graph"
        self.texts: list[str] = []
        self.dtype = draw.pick(NARROW)
        # Whether it is of the kinds that have engines: the others are mostly refused.
        self.is_usual = draw.chance(0.75)
        self.head = ""
        self._names = itertools.count()

    # ------------------------------------------------ heads

    def _input(self, name: str, shape: Shape, dtype: str, **more: Any) -> Tracked:
        values = self.draw.operand(name, shape, dtype, **more)
        operand = self.draw.operands[name]
        if operand.spec is None:
            raise dnn.ArgumentError("bool is no data type of an input")
        spec = operand.spec
        tensor = self.graph.input(name, spec.shape, spec.dtype, strides=spec.strides)
        # Kernels may take denormal numbers for 0.
        size = np.abs(values)
        return Tracked(tensor, values, np.where(size < 1.2e-38, size, 0))

    def _product_of(
        self, tensor: Any, values: Array, magnitude: Array, *operands: Tracked
    ) -> Tracked:
        bounds = ELEMENT_BOUNDS["product"]
        bound = max(
            bounds.get(self.draw.operands[operand.tensor.name].host.dtype.name, 1e-3)
            for operand in operands
        )
        finite = np.where(np.isfinite(magnitude), magnitude, 0)
        error = np.full(values.shape, bound * finite.max(initial=0.0))
        error += lost_denormals(tuple(operand.values for operand in operands))
        # The largest float32 is infinite in TF32, and its product with padding is NaN.
        largest = max(np.abs(operand.values).max(initial=0.0) for operand in operands)
        if not np.isfinite(magnitude).all() or finite.max(initial=0.0) > 1e37 or largest > 3.4e38:
            error[...] = np.inf
        return Tracked(tensor, values, error)

    def _convolution(self) -> Tracked:
        d = self.draw
        images, filters, conv = convolved(d, even=True, groups=d.chance(0.2))
        conv = conv.replace(math_type="default")
        if self.is_usual:
            while len(images) != 4:
                images, filters, conv = convolved(d, even=True, groups=False)
            conv = conv.replace(mode="cross_correlation", math_type="default")
        if self.is_usual or d.chance(0.5):
            images = (images[0], 8, *images[2:])
            filters = (d.pick((8, 16)), 8, *filters[2:])
            conv = conv.replace(groups=1)
        like = dnn.TensorSpec(images, self.dtype, {3: "NWC", 4: "NHWC", 5: "NDHWC"}[len(images)])
        of_w = dnn.TensorSpec(filters, self.dtype, like.layout)
        is_last = self.is_usual or d.chance(0.6)
        x = self._input("x", images, self.dtype, like=like if is_last else None)
        w = self._input("w", filters, self.dtype, like=of_w if is_last else None, packed=True)
        out = out_shape(images, filters, conv)
        tensor = self.graph.convolution_forward(x.tensor, w.tensor, conv)
        values = forward(x.values, w.values, conv, out)
        magnitude = forward(np.abs(x.values), np.abs(w.values), conv, out)
        self.texts.append(f"  convolution {conv}")
        return self._product_of(tensor, values, magnitude, x, w)

    def _matmul(self) -> Tracked:
        d = self.draw
        batch = (d.pick((1, 1, 2, 3)),)
        m, k, n = (d.pick((1, 3, 8, 8, 16, 16, 17, 32)) for _ in range(3))
        if self.is_usual:
            k, n = (-(-size // 8) * 8 for size in (k, n))
        a, b = (
            self._input(name, shape, self.dtype, like=d.matrices(shape, self.dtype))
            for name, shape in (("a", (*batch, m, k)), ("b", (*batch, k, n)))
        )
        tensor = self.graph.matmul(a.tensor, b.tensor)
        values, magnitude = a.values @ b.values, np.abs(a.values) @ np.abs(b.values)
        return self._product_of(tensor, values, magnitude, a, b)

    def _nothing(self) -> Tracked:
        images, like = self.draw.images(least_rank=4, most_rank=4), None
        if self.is_usual:
            like = dnn.TensorSpec(images, self.dtype, "NHWC")
        return self._input("x", images, self.dtype, like=like)

    def _normalization(self) -> Tracked:
        d = self.draw
        d.is_plain = True
        kind = d.pick(("LAYER", "RMS"))
        images = (d.size(4), d.pick((8, 16, 32, 24)), 1, 1)
        x = self._input("x", images, self.dtype, packed=True)
        scale = self._input("scale", (1, *images[1:]), "float32", packed=True)
        bias = self._input("bias", (1, *images[1:]), "float32", packed=True)
        result = self.graph.normalization_forward(
            kind, x.tensor, scale.tensor, bias.tensor if kind == "LAYER" else None
        )
        mean = x.values.mean(1, keepdims=True) if kind == "LAYER" else 0.0
        inverse = 1 / np.sqrt(np.square(x.values - mean).mean(1, keepdims=True) + 1e-5)
        values = scale.values * (x.values - mean) * inverse
        if kind == "LAYER":
            values = values + bias.values
        bound = {"float32": 1e-4, "float16": 3e-3, "bfloat16": 2e-2}[self.dtype]
        largest = np.abs(x.values).max(1, keepdims=True) * inverse
        error = bound * np.abs(values) + 1e-5 * (1 + largest) + bound
        error = error * (np.inf if d.wrong else 1.0)
        self.texts.append(f"  {kind}")
        return Tracked(result.y, values, error)

    def _reduced(self, x: Tracked, *, last: bool) -> Tracked:
        d = self.draw
        op = d.pick(("ADD", "MAX", "MIN", "AVG", "AMAX", "NORM1", "NORM2"))
        axes = (-1,) if last else d.pick(((1,), (2, 3), (0, 2, 3), (-1,)))
        axes = tuple(axis for axis in axes if axis < x.values.ndim)
        tensor = self.graph.reduce(op, x.tensor, axes)
        functions: dict[str, Callable[[Array], Array]] = {
            "ADD": lambda v: v.sum(axes, keepdims=True),
            "AVG": lambda v: v.mean(axes, keepdims=True),
            "MAX": lambda v: v.max(axes, keepdims=True),
            "MIN": lambda v: v.min(axes, keepdims=True),
            "AMAX": lambda v: np.abs(v).max(axes, keepdims=True),
            "NORM1": lambda v: np.abs(v).sum(axes, keepdims=True),
            "NORM2": lambda v: np.sqrt((v * v).sum(axes, keepdims=True)),
        }
        values = functions[op](x.values)
        error = x.error.sum(axes, keepdims=True)
        error = error + 1e-5 * np.abs(x.values).sum(axes, keepdims=True) + 1e-18
        large = np.abs(x.values).max(axes, keepdims=True) > 1e17
        open_places = ~np.isfinite(error) | ~np.isfinite(values) | large
        self.texts.append(f"  {op} {axes}")
        return Tracked(tensor, values, np.where(open_places, np.inf, error))

    # ------------------------------------------------ the chain

    def _operand_beside(self, x: Tracked, *, whole: bool = False) -> Tracked:
        d, shape = self.draw, x.values.shape
        if whole:
            like = dnn.TensorSpec(shape, self.dtype, "NHWC") if len(shape) == 4 else None
            return self._input(
                f"operand{next(self._names)}", shape, self.dtype, packed=True, like=like
            )
        if d.chance(0.25):
            value = d.pick((0.5, 2.0, -1.0, 0.0))
            self.texts.append(f"  number {value}")
            return Tracked(value, np.array(value), np.zeros(()))
        if d.chance(0.7):
            kept = 1 if len(shape) > 3 else len(shape) - 1
            shape = tuple(size if axis == kept else 1 for axis, size in enumerate(shape))
        elif d.chance(0.3):
            shape = tuple(1 if d.chance(0.5) else size for size in shape)
        name = f"operand{next(self._names)}"
        dtype = self.dtype if self.is_usual or d.chance(0.5) else "float32"
        like = None
        if len(shape) == 4 and (self.is_usual or d.chance(0.7)):
            like = dnn.TensorSpec(shape, dtype, "NHWC")
        return self._input(name, shape, dtype, packed=d.chance(0.7), like=like)

    def _step(self, x: Tracked) -> Tracked:
        d = self.draw
        if not self.is_usual and d.chance(0.15):
            mode = d.pick((*COMPARED,))
            beside = self._operand_beside(x)
            mask = self.graph.pointwise(mode, x.tensor, beside.tensor)
            other = d.pick((0.0, -1.0))
            tensor = self.graph.where(mask, x.tensor, other)
            self.texts.append(f"  {mode} and select, else {other}")
            compared = COMPARED[mode]
            values, error = applied(
                lambda a, b: np.where(compared(a, b), a, other), [x, beside], 1e-6
            )
            return Tracked(tensor, values, error)
        is_usual = self.is_usual or d.chance(0.4)
        mode = d.pick(USUAL if is_usual else (*UNARY, *BINARY))
        attributes: dict[str, float] = {}
        arguments: dict[str, float] = {}
        for name, argument, choices in ATTRIBUTES.get(mode.partition("_")[0], ()):
            if d.chance(0.5):
                attributes[name] = arguments[argument] = d.pick(choices)
        self.texts.append(f"  {mode} {attributes}")
        operands = [x]
        if mode in BINARY:
            operands.append(self._operand_beside(x, whole=mode.endswith("BWD")))
            function = BINARY[mode]
            if not self.is_usual and d.chance(0.2) and not isinstance(operands[1].tensor, float):
                operands.reverse()
        else:
            function = UNARY[mode]
        tensor = self.graph.pointwise(mode, *(each.tensor for each in operands), **attributes)
        values, error = applied(lambda *a: function(*a, **arguments), operands, 2e-5)
        # Approximations of these functions are relative to 1, or to their operand.
        if mode.endswith(("FWD", "BWD")) and not mode.startswith("RELU"):
            sizes = [np.abs(each.values) for each in operands]
            error = error + 1e-4 * np.minimum(np.broadcast_arrays(*sizes, values)[0], 10) + 1e-5
            if mode.endswith("BWD"):
                error = error + 1e-4 * np.abs(operands[1].values)
        elif mode == "RELU_FWD":
            # lower + slope * (x - lower) cancels.
            error = error + 1e-6 * abs(arguments.get("lower", 0.0))
        elif mode in ("SIN", "COS", "TAN", "ERF", "LOG", "EXP", "POW", "MOD"):
            large = np.abs(operands[0].values) > (30 if mode != "LOG" else np.inf)
            error = np.where(large, np.inf, error + 1e-5)
            if mode in ("SIN", "COS"):  # They may turn within the error.
                error = error + np.minimum(operands[0].error, 2)
        unclear = unclear_places(mode, self.dtype, operands, self.head == "product")
        error = np.where(unclear, np.inf, error)
        return Tracked(tensor, values, error)

    # ------------------------------------------------ the call

    def make(self) -> list[Expected]:
        """Make the graph, and return its outputs by their names."""
        d, graph = self.draw, self.graph
        heads = {
            "convolution": self._convolution,
            "product": self._matmul,
            "nothing": self._nothing,
            "normalization": self._normalization,
        }
        head = d.pick(
            ("convolution", "convolution", "product", "product", "nothing", "nothing",
             "reduction", "normalization")
        )  # fmt: skip
        self.head = head
        self.texts = [f"graph: {head}, values {d.kind}, {d.wrong}"]
        outputs: list[Tracked] = []
        if head == "reduction":
            x = self._nothing() if d.chance(0.6) else self._matmul()
            x = self._reduced(x, last=x.values.ndim < 4)
        else:
            x = heads[head]()
        steps = d.pick((0, 1, 1, 1, 1, 2, 2, 2, 3, 4))
        if head == "nothing":
            steps = 1 if self.is_usual else max(steps, 1)
        if head in ("normalization", "reduction") and self.is_usual:
            steps = 0
        often = 0.25 if self.is_usual else 0.35
        second = d.integer(0, steps - 1) if steps and d.chance(often) else -1
        for step in range(steps):
            if step == second and (step or head != "nothing"):
                outputs.append(x)
                x = _stored(x)
            x = self._step(x)
        outputs.append(x)
        results = []
        for number, each in enumerate(outputs):
            name = f"out{number}"
            shape = each.values.shape
            dtype = self.dtype if self.is_usual or d.chance(0.6) else d.pick(NARROW)
            strides = None
            if len(shape) == 4 and (self.is_usual or d.chance(0.7)):
                strides = dnn.TensorSpec(shape, dtype, "NHWC").strides
            elif len(shape) == 3 and head == "product" and d.chance(0.4):
                strides = d.matrices(shape, dtype).strides
            graph.output(name, each.tensor, dtype, strides)
            open_places = ~np.isfinite(each.error) | ~np.isfinite(each.values)
            if head == "convolution" and dtype == "float16":
                # Engine 47 writes 0 instead of -inf; no float16 is right there.
                open_places |= each.values - each.error < -65504
            floor = np.where(open_places, 0, each.error)
            results.append(
                Expected(
                    each.values,
                    np.abs(each.values),
                    dtype,
                    name=name,
                    floor=floor,
                    open=open_places,
                )
            )
            self.texts.append(f"  {name} {dtype} {strides}")
        self.texts += [f"  {n}: {operand.spec}" for n, operand in d.operands.items()]
        return results

    def run(self) -> None:
        """Make the graph, plan it, call it with several sets of values, and compare its outputs.

        A plan takes some 0.3 s on a GPU, where cuDNN compiles it, and a further call a few
        milliseconds.
        """
        results = self.make()
        self.draw.tell(self.texts)
        with self._plan() as plan:
            self.draw.tell([f"  {plan.choice}"])
            self._call(plan, results)
            if len(results) > 1:
                self.also.append("graph of several outputs")
            for turn in range(1, TURNS):
                other = RandomGraph(self.draw.again(turn))
                results = other.make()
                self.draw.tell([f"  again, values {other.draw.kind}"])
                other._call(plan, results)
                self.also.append("graph with other values")

    def _plan(self) -> Any:
        """Return a plan by the preferred engine, or by any that serves: a tuner may take it."""
        handle = self.draw.handle
        # cuDNN is not asked about a graph that is refused: it might end the process.
        if self.draw.chance(0.5) or why_wrong(self.graph) is not None:
            return self.graph.plan(handle)
        with ExitStack() as stack:
            rows = candidates(lower(self.graph, handle, stack), NO_REQUIREMENTS)
            engines = [row.algorithm for row in rows if not row.why_not]
        if not engines:
            return self.graph.plan(handle)  # It says why none is left.
        engine = engines[int(self.draw.rng.integers(len(engines)))]
        self.draw.tell([f"  by {engine}"])
        return self.graph.plan(handle, engine=engine)

    def _call(self, plan: Any, results: list[Expected]) -> None:
        d = self.draw
        operands = {name: d.place(operand) for name, operand in d.operands.items()}
        given = None
        if d.chance(0.5):
            specs = {name: record.spec for name, record in self.graph.outputs.items()}
            given = {name: d.poisoned(spec) for name, spec in specs.items()}
        written = plan(**operands, out=given)
        for expected in results:
            compare(written[expected.name].numpy(), expected, [])


GRAPHS: dict[str, Callable[[Draw], Any]] = {"graph": RandomGraph}
