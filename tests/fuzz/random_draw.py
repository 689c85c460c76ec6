"""`Draw`: what one random call is made of, and the comparison of what it wrote.

A call is drawn from its seed and index alone, so that it can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
from device.problems import LAST, gap_mask, memory_of, steps_of
from tolerances import ELEMENT_BOUNDS

import cudnnlite as dnn
from cudnnlite.devices.arrays import part_of
from cudnnlite.dtypes import numpy_dtype, parse_dtype

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
FLOATS = ("float32", "float16", "bfloat16", "float64")
NARROW = FLOATS[:3]
WRONG_DTYPES = (
    *FLOATS,
    "uint8",
    "int8",
    "int32",
    "int64",
    "bool",
    "float8_e4m3fn",
    "float8_e5m2",
)
MISALIGNED = (1, 2, 4, 8)  # in elements
ROOM = 256  # bytes

VALUES = (
    *("normal",) * 3,
    *("large", "very large", "largest", "tiny", "infinite", "nan", "zero"),
    *("rows", "offset"),
)


def dtype_of(name: str) -> np.dtype[Any]:
    """Return NumPy's dtype of a name."""
    return np.dtype(bool) if name == "bool" else numpy_dtype(parse_dtype(name))


def largest_of(dtype: np.dtype[Any]) -> float:
    """Return the largest finite value of a data type."""
    if dtype.kind == "b":
        return 1.0
    info = np.iinfo(dtype) if dtype.kind in "iu" else ml_dtypes.finfo(dtype)
    return float(info.max)


def tiny_of(dtype: np.dtype[Any]) -> float:
    """Return the smallest normal value of a data type; kernels may make zeros of smaller ones."""
    return 0.0 if dtype.kind in "iub" else float(ml_dtypes.finfo(dtype).tiny)


def wide(host: Array) -> Array:
    """Return values in float64."""
    return host.astype(np.float64)


@dataclass
class Operand:
    """An array of a call: its values, as they are stored, and where it lies."""

    name: str
    host: Array
    spec: dnn.TensorSpec | None  # None: a data type that no spec has
    offset: int = 0  # bytes behind an aligned address

    @property
    def values(self) -> Array:
        """The values in float64."""
        return wide(self.host)


@dataclass
class Expected:
    """One result of a call.

    Attributes
    ----------
    values : ndarray of float64
    magnitude : ndarray of float64
        The sum of the absolute values of what each value is the sum of, at least.
    dtype : str
        Of the result, if the caller makes it.
    kind : str
        Which bounds count, of `tolerances.ELEMENT_BOUNDS`.
    spreads : bool
        Kernels may multiply every value of a tile by every other, so that beside an infinity all
        values are open.
    open : ndarray of bool, or bool
        Where nothing is said about the values.
    layout : TensorSpec, optional
        If the result can only lie so.
    """

    values: Array
    magnitude: Array | None = None
    dtype: str = "float32"
    kind: str = "layer"
    spreads: bool = False
    open: Array | bool = False
    spec: dnn.TensorSpec | None = None
    name: str = "y"
    factor: float = 1.0
    floor: Array | float = 0.0


class WrongError(AssertionError):
    """A result that is not right."""


def compare(result: Array, expected: Expected, hosts: Sequence[Array]) -> None:
    """Raise `WrongError` if a result is not what is expected.

    Parameters
    ----------
    result : ndarray
    expected : Expected
    hosts : sequence of ndarray
        The operands: the least precise data type decides the bound.
    """
    name, values = expected.name, expected.values
    if result.shape != values.shape:
        raise WrongError(f"{name}: shape {result.shape} instead of {values.shape}")
    got, dtype = wide(result), result.dtype
    magnitude = np.abs(values) if expected.magnitude is None else expected.magnitude
    is_nan = np.isnan(magnitude) & (expected.magnitude is not None) & (expected.kind == "product")
    if magnitude.size and expected.spreads:
        finite = magnitude[np.isfinite(magnitude)]
        magnitude = np.where(np.isfinite(magnitude), finite.max(initial=0.0), magnitude)
    dtypes = {dtype.name, *(host.dtype.name for host in hosts)}
    bounds = ELEMENT_BOUNDS[expected.kind]
    relative = max(bounds.get(each, 0.0) for each in dtypes) * expected.factor
    relative = relative or bounds["float32"]
    output_bound = {"float64": 1e-15, "float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}.get(
        dtype.name, 0.13 if "float8" in dtype.name else 0.0
    )
    is_narrow = dtypes - {"float64", "bool"}  # something may be computed in float32
    limit, computed_limit = largest_of(dtype), 3.4e38 if is_narrow else 1.7e308
    tiny = max(tiny_of(dtype), 1.2e-38 if is_narrow else 0.0)
    with np.errstate(all="ignore"):
        sizes = np.where(np.isfinite(values), np.abs(values), 0.0)
        terms = np.where(np.isfinite(values), magnitude, 0.0)
        allowed = relative * terms + output_bound * sizes + tiny + expected.floor
        allowed = allowed + (1.001 if dtype.kind in "iub" else 0.0)
        open_places = np.broadcast_to(expected.open, values.shape) | is_nan
        open_places = open_places | (np.isfinite(values) & (magnitude > computed_limit / 16))
        are_finite = all(np.isfinite(wide(host)).all() for host in hosts)
        if are_finite and "float64" in dtypes:  # the oracle itself overflows
            open_places = open_places | ~np.isfinite(values)
        if expected.spreads and not are_finite:
            open_places = open_places | np.isfinite(values)
        beyond = np.abs(values) + allowed >= limit * (1 - output_bound)
        clipped = np.clip(values, -limit if dtype.kind != "u" else 0, limit)
        right = np.abs(got - values) <= allowed
        # What is too large becomes infinite, or the largest value, or, of FP8 without infinities,
        # NaN.
        same_sign = np.signbit(got) == np.signbit(values)
        saturated = same_sign & (np.isinf(got) | (np.abs(got - clipped) <= allowed))
        right |= np.isfinite(values) & beyond & (saturated | (np.isnan(got) & (limit < 500)))
        if dtype.kind in "iub":
            right |= beyond | ~np.isfinite(values)
        elif expected.spreads:
            right |= ~np.isfinite(values) & ~np.isfinite(got)
        else:
            right |= np.isnan(values) & np.isnan(got)
            right |= np.isinf(values) & (saturated | (np.isnan(got) & (limit < 500)))
    bad = ~(right | open_places)
    if not bad.any():
        return
    error = np.where(bad, np.nan_to_num(np.abs(got - values) / allowed, nan=np.inf), -1.0)
    worst = tuple(int(place) for place in np.unravel_index(error.argmax(), error.shape))
    kind = "NaN" if np.isnan(got[worst]) else "inf" if np.isinf(got[worst]) else "number"
    needed = values[worst]
    instead = "NaN" if np.isnan(needed) else "inf" if np.isinf(needed) else "number"
    raise WrongError(
        f"{name}: {kind} instead of {instead}: {int(bad.sum())} of {bad.size} values, at {worst} "
        f"{got[worst]:.6g} instead of {needed:.6g}, allowed {allowed[worst]:.2g}"
    )


class Draw:
    """Draws a call.

    Attributes
    ----------
    handle : Handle
    operands : dict of str to Operand
        All that were drawn.
    wrong : str
        Which operand has a wrong data type, and which.
    notes : list of str
        What else is said of the call when it is printed.
    """

    def __init__(self, handle: dnn.Handle, seed: int, index: int) -> None:
        self.rng = np.random.default_rng((seed, index))
        self.handle = handle
        self.operands: dict[str, Operand] = {}
        self.wrong = ""
        self._wrong_at = self.pick((0, 0, 0, 1, 1, 2)) if self.chance(0.14) else -1
        self.kind = self.pick(VALUES)
        self.is_strided = self.chance(0.5)
        self.notes: list[str] = []
        self.is_plain = False  # whether values are normal ones only

    # ------------------------------------------------ choices

    def chance(self, probability: float) -> bool:
        """Return True so often."""
        return bool(self.rng.random() < probability)

    def integer(self, low: int, high: int) -> int:
        """Return an integer; the limits are among them."""
        return int(self.rng.integers(low, high + 1))

    def pick(self, choices: Any) -> Any:
        """Return one of a sequence."""
        return choices[int(self.rng.integers(len(choices)))]

    def size(self, most: int) -> int:
        """Return a size; 1 is frequent."""
        return 1 if self.chance(0.15) else self.integer(1, most)

    def images(self, *, least_rank: int = 3, most_rank: int = 5, most: int = 9) -> Shape:
        """Return a shape of images."""
        rank = self.pick((4, 4, 4, 3, 5)) if most_rank > 4 else 4
        rank = min(max(rank, least_rank), most_rank)
        longest = {3: 2 * most, 4: most, 5: 5}[rank]
        channels = self.pick((1, 2, 3, 4, 5, 8, 16))
        return (self.size(3), channels, *(self.size(longest) for _ in range(rank - 2)))

    def dtype(self, choices: Sequence[str] = FLOATS) -> str:
        """Return a data type; float32 is frequent."""
        return "float32" if "float32" in choices and self.chance(0.2) else self.pick(choices)

    # ------------------------------------------------ values

    def values(self, shape: Shape, dtype: np.dtype[Any], *, positive: bool = False) -> Array:
        """Return values of some size, in their storage type."""
        rng = self.rng
        kind = "normal" if self.is_plain or self.chance(0.4) else self.kind
        if dtype.kind == "b":
            return rng.integers(0, 2, shape).astype(dtype)
        if dtype.kind in "iu":
            low, high = (0 if dtype.kind == "u" else -4), 5
            if kind in ("largest", "very large") and dtype.itemsize == 1:
                low, high = np.iinfo(dtype).min, np.iinfo(dtype).max + 1
            return rng.integers(max(low, 0 if positive else low), high, shape).astype(dtype)
        host = rng.standard_normal(shape)
        largest = largest_of(dtype)
        if kind == "large":
            host *= 100
        elif kind == "very large":
            host *= 1e4
        elif kind == "largest":
            host = np.where(rng.random(shape) < 0.3, rng.choice((-1, 1), shape) * largest, host)
        elif kind == "tiny":
            host *= tiny_of(dtype) * self.pick((1.0, 0.1, 30.0))
        elif kind in ("infinite", "nan"):
            places = rng.random(shape) < 0.1
            host[places] = rng.choice((-np.inf, np.inf), shape)[places]
            if kind == "nan":
                host[places] = np.nan
        elif kind == "zero":
            host = np.where(rng.random(shape) < 0.5, rng.choice((0.0, -0.0), shape), host)
        elif kind == "rows" and len(shape) > 1:
            host = np.broadcast_to(host[..., :1], shape).copy()
        elif kind == "offset":
            host = 100 + 0.01 * host
        if positive:
            host = np.abs(host) + (0 if kind == "tiny" else 0.5)
        with np.errstate(all="ignore"):
            return host.clip(-np.inf, np.inf).astype(dtype)

    def strides(self, shape: Shape, *, permuted: bool = True) -> Shape | None:
        """Return the strides of a view with gaps in some layout; None for one without."""
        if not self.is_strided or self.chance(0.3):
            return None
        rank = len(shape)
        order = [*reversed(range(rank))]
        if rank in LAST and self.chance(0.4):
            order = [1, *reversed(range(2, rank)), 0]
        elif permuted and self.chance(0.3):
            order = [int(axis) for axis in self.rng.permutation(rank)]
        strides, step = [0] * rank, self.pick((1, 1, 2, 3))
        for axis in order:
            strides[axis] = step
            step *= shape[axis]
            if self.chance(0.4):
                step += self.pick((1, 2, 8)) * (step // shape[axis] or 1)
        return tuple(strides)

    def spec(self, shape: Shape, dtype: str, *, packed: bool = False) -> dnn.TensorSpec:
        """Return a spec: packed with channels first or last, or a view with gaps in any order."""
        strides = None if packed else self.strides(shape)
        if strides is not None:
            return dnn.TensorSpec(shape, dtype, strides=strides)
        is_last = not packed and len(shape) in LAST and self.chance(0.35)
        return dnn.TensorSpec(shape, dtype, LAST[len(shape)] if is_last else None)

    def matrices(self, shape: Shape, dtype: str) -> dnn.TensorSpec:
        """Return a spec of matrices: by rows or by columns, with gaps behind either."""
        rows, columns = shape[-2:]
        gap = self.pick((0, 8, 3)) if self.is_strided else 0
        if self.chance(0.3):
            strides, step = [1, rows + gap], columns * (rows + gap)
        else:
            strides, step = [columns + gap, 1], rows * (columns + gap)
        for size in reversed(shape[:-2]):
            strides.insert(0, step)
            step *= size
        return dnn.TensorSpec(shape, dtype, strides=tuple(strides))

    def filters(self, shape: Shape, dtype: str, images: str) -> dnn.TensorSpec:
        """Return a spec of filters, mostly in the layout of the images."""
        spec = self.operands[images].spec
        is_last = spec is not None and len(shape) in LAST and spec.strides[1] == 1
        if self.chance(0.1):
            is_last = not is_last
        return dnn.TensorSpec(shape, dtype, LAST[len(shape)] if is_last else None)

    def like(self, name: str, dtype: str, often: float = 0.85) -> dnn.TensorSpec | None:
        """Return the spec of an operand in another data type, mostly."""
        spec = self.operands[name].spec
        if spec is None or not self.chance(often):
            return None
        return dnn.TensorSpec(spec.shape, dtype, strides=spec.strides)

    # ------------------------------------------------ operands

    def operand(
        self,
        name: str,
        shape: Shape,
        dtype: str,
        *,
        packed: bool = False,
        positive: bool = False,
        host: Array | None = None,
        like: dnn.TensorSpec | None = None,
    ) -> Array:
        """Draw an operand and return its values in float64.

        Once in a while its data type is a wrong one.
        """
        if len(self.operands) == self._wrong_at:
            dtype = self.pick([other for other in WRONG_DTYPES if other != dtype])
            self.wrong, like = f"{name} {dtype}", None
        plain = dtype_of(dtype)
        if host is None:
            stored = self.values(shape, plain, positive=positive)
        else:
            with np.errstate(all="ignore"):
                stored = host.astype(plain)
        offset = 0
        if dtype == "bool":
            spec = None
        else:
            spec = like or self.spec(shape, dtype, packed=packed)
            if spec.dtype != parse_dtype(dtype):  # that of an operand of a wrong data type
                spec = dnn.TensorSpec(shape, dtype, strides=spec.strides)
            offset = self.pick(MISALIGNED) * plain.itemsize if self.chance(0.02) else 0
        self.operands[name] = Operand(name, stored, spec, offset)
        return wide(stored)

    def mistaken(self, name: str, dtype: str) -> str:
        """Return a data type, or once in a while another one, for an operand that is not drawn."""
        if self.wrong or not self.chance(0.04):
            return dtype
        dtype = self.pick([other for other in WRONG_DTYPES if other not in (dtype, "bool")])
        self.wrong = f"{name} {dtype}"
        return dtype

    def place(self, operand: Operand) -> Any:
        """Return an operand in device memory."""
        if operand.spec is None:  # cuDNN has no arrays of it: whatever we say of one of NumPy's
            return operand.host
        array = self._memory(operand.spec, operand.offset)
        memory = np.full(operand.spec.nbytes, 0x5A, np.uint8)
        if operand.host.size:
            np.ndarray(
                operand.spec.shape, operand.host.dtype, memory, strides=steps_of(operand.spec)
            )[...] = operand.host
        self._copy_in(array, memory)
        return array

    def poisoned(self, spec: dnn.TensorSpec) -> Any:
        """Return an array of NaN, or of 127."""
        array = self._memory(spec, 0)
        plain = numpy_dtype(spec.dtype)
        byte = 0x7F if plain.kind in "iu" else 0xFF
        self._copy_in(array, np.full(spec.nbytes, byte, np.uint8))
        return array

    def _memory(self, spec: dnn.TensorSpec, offset: int) -> Any:
        if not offset:
            return self.handle.empty(spec)
        return part_of(self.handle.empty((spec.nbytes + ROOM,), "uint8"), spec, offset)

    def _copy_in(self, array: Any, memory: Array) -> None:
        if memory.size:
            self.handle.device.copy_in(array.ptr, memory, self.handle.stream)
            self.handle.synchronize()

    @property
    def hosts(self) -> list[Array]:
        """The values of all operands, as they are stored."""
        return [operand.host for operand in self.operands.values()]


@dataclass
class Call:
    """A call of an operation that takes arrays and options and returns arrays.

    Attributes
    ----------
    draw : Draw
        With the operands.
    results : list of Expected
        In the order in which they are returned.
    options : mapping
        By name.
    blends : bool
        Whether alpha and beta may be given.
    ways : tuple of str
        Methods that are called before, now and then.
    out : bool
        Whether there is an argument `out`.
    """

    draw: Draw
    name: str
    results: list[Expected]
    options: Mapping[str, Any] = field(default_factory=dict)
    blends: bool = False
    ways: tuple[str, ...] = ()
    out: bool = True
    in_place: frozenset[str] = frozenset()
    verbs: tuple[str, ...] = ()
    verb: str = "call"
    texts: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Make the call, by one of its verbs, and compare all that it wrote."""
        draw, function = self.draw, getattr(dnn, self.name)
        is_graph = "graph" in vars(function)
        verbs = self.verbs or ("call", "call", "call", "plan", *(("graph",) if is_graph else ()))
        self.verb = draw.pick(verbs)
        options, results = dict(self.options), self.results
        outs = self._outs(is_graph)
        olds = [None] * len(results)
        if self.blends and draw.chance(0.25):
            options["alpha"] = draw.pick((2.0, 0.5, -1.0, 1.0))
            if outs is not None and draw.chance(0.7):
                options["beta"] = draw.pick((1.0, 0.5, -2.0))
                old = draw.rng.standard_normal(results[0].values.shape)
                old = old.astype(numpy_dtype(outs[0].spec.dtype))
                spec = outs[0].spec
                outs = [draw.place(Operand("old", old, spec))]
                olds = [wide(old)]
            results = [blended(results[0], options["alpha"], options.get("beta", 0.0), olds[0])]
        operands = {name: draw.place(operand) for name, operand in draw.operands.items()}
        self.texts = self._described(options, outs)
        arrays = self._arrays(function, operands, options, outs, is_graph)
        draw.handle.synchronize()
        if len(arrays) < len(results):
            raise WrongError(f"{len(arrays)} results instead of {len(results)}")
        for array, expected in zip(arrays, results, strict=False):
            compare(array.numpy(), expected, draw.hosts)
        self._check_gaps(outs or [])
        self._check_operands(operands)

    def _outs(self, is_graph: bool) -> Any:
        draw = self.draw
        if not self.out or draw.chance(0.5):
            return None
        outs = []
        for expected in self.results:
            spec = expected.spec
            for operand in draw.operands.values():
                if operand.host.shape == expected.values.shape and spec is None:
                    spec = draw.like(operand.name, expected.dtype, 0.7)
            if spec is None:
                spec = draw.spec(expected.values.shape, expected.dtype)
            outs.append(draw.poisoned(spec))
        return outs

    def _arrays(
        self, function: Any, operands: Any, options: Any, outs: Any, is_graph: bool
    ) -> Sequence[Any]:
        handle, given = self.draw.handle, {}
        if self.verb == "call":
            if outs is not None:
                given["out"] = outs[0] if len(outs) == 1 else tuple(outs)
            for way in self.ways:
                if self.draw.chance(0.01):
                    asked = {n: v for n, v in options.items() if n not in ("alpha", "beta")}
                    getattr(function, way)(handle, **operands, **asked)
            returned = function(handle, **operands, **options, **given)
            return returned if isinstance(returned, tuple) else (returned,)
        if outs is not None:
            specs = tuple(out.spec for out in outs)
            given["out"] = specs[0] if len(specs) == 1 else specs
        names = [expected.name for expected in self.results]
        if is_graph:
            if self.verb == "plan":
                plan = function.plan(handle, **operands, **options, **given)
            else:
                of_engines = ("workspace_limit", "math_type")
                asked = {n: value for n, value in options.items() if n not in of_engines}
                plan = function.graph(**_specs(operands), **asked, **given).plan(handle)
            out = None if outs is None else dict(zip(names, outs, strict=True))
            with plan:
                for _ in range(self._times(options)):
                    by_name = plan(**operands, out=out)
            return [by_name[name] for name in names]
        with function.plan(handle, **operands, **options, **given) as plan:
            ordered = [
                operands[name] for name in function.__signature__.parameters if name in operands
            ]
            out = None if outs is None else (outs[0] if len(outs) == 1 else tuple(outs))
            for _ in range(self._times(options)):
                returned = plan(*ordered, **({"out": out} if self.out and out is not None else {}))
        return returned if isinstance(returned, tuple) else (returned,)

    def _times(self, options: Mapping[str, Any]) -> int:
        """Return how often a plan is called, if each call does the same."""
        is_repeatable = not self.in_place and "beta" not in options
        return 2 if is_repeatable and self.draw.chance(0.3) else 1

    def _check_gaps(self, outs: Sequence[Any]) -> None:
        """Look for writes outside of an output's elements."""
        for out in outs:
            if out.spec.size * out.spec.nbytes and self.draw.chance(0.5):
                gaps = gap_mask(out.spec)
                if not gaps.any():
                    continue
                memory = memory_of(out)[gaps]
                if not np.isin(memory, (0xFF, 0x7F, 0x5A)).all():
                    raise WrongError("a gap of an output was written")

    def _check_operands(self, operands: Mapping[str, Any]) -> None:
        """Look for writes to what is only read."""
        if not self.draw.chance(0.25):
            return
        for name, array in operands.items():
            if name in self.in_place or isinstance(array, np.ndarray):
                continue
            now, before = array.numpy(), self.draw.operands[name].host
            if now.tobytes() != np.ascontiguousarray(before).tobytes():
                raise WrongError(f"the operand {name} was written")

    def _described(self, options: Any, outs: Any) -> list[str]:
        lines = [f"{self.name}, verb {self.verb}, values {self.draw.kind}, {self.draw.wrong}"]
        for name, operand in self.draw.operands.items():
            where = f", {operand.offset} bytes off" if operand.offset else ""
            lines.append(f"  {name}: {operand.spec or operand.host.dtype}{where}")
        lines += [f"  {name}={value!r}" for name, value in options.items()]
        lines += [f"  out: {out.spec}" for out in outs or []]
        return lines


def blended(expected: Expected, alpha: float, beta: float, old: Array | None) -> Expected:
    """Return alpha times a result, and beta times what was there."""
    magnitude = np.abs(expected.values) if expected.magnitude is None else expected.magnitude
    values, magnitude = alpha * expected.values, abs(alpha) * magnitude
    floor = abs(alpha) * expected.floor
    if old is not None and beta:
        values, magnitude = values + beta * old, magnitude + abs(beta * old)
    return replace(expected, values=values, magnitude=magnitude, floor=floor)


def _specs(operands: Mapping[str, Any]) -> dict[str, Any]:
    return {name: getattr(array, "spec", array) for name, array in operands.items()}


Generator = Callable[[Draw], Any]
