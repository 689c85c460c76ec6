"""`Draw`: what one random call is made of, and the comparison of what it wrote.

A call is drawn from its seed and index alone, so that it can be repeated.  Values are drawn apart from
all else, so that the same call can be made with others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from device.problems import LAST, steps_of

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


class Draw:
    """Draws a call.

    Attributes
    ----------
    handle : Handle
    operands : dict of str to Operand
        All that were drawn.
    wrong : str
        Which operand has a wrong data type, and which.
    shows : bool
        Whether the call is printed before it is made.

    Parameters
    ----------
    handle : Handle
    seed, index : int
        Of the call.
    turn : int
        Draws of one call that differ in their turn differ in values alone.
    """

    def __init__(self, handle: dnn.Handle, seed: int, index: int, turn: int = 0) -> None:
        self.rng = np.random.default_rng((seed, index))
        self._values = np.random.default_rng((seed, index, 2, turn))
        self._place = (seed, index)
        self.handle = handle
        self.operands: dict[str, Operand] = {}
        self.wrong = ""
        self._wrong_at = self.pick((0, 0, 0, 1, 1, 2)) if self.chance(0.14) else -1
        self.kind = VALUES[int(self._values.integers(len(VALUES)))]
        self.is_strided = self.chance(0.5)
        self.shows = False
        self.is_plain = False  # whether values are normal ones only

    def again(self, turn: int) -> Draw:
        """Return a draw of the same call with other values."""
        return Draw(self.handle, *self._place, turn)

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
        rng = self._values
        kind = "normal" if self.is_plain or rng.random() < 0.4 else self.kind
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
            host *= tiny_of(dtype) * rng.choice((1.0, 0.1, 30.0))
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
        """Return a spec of matrices: by rows or by columns, with gaps behind either, or in both."""
        rows, columns = shape[-2:]
        if self.is_strided and self.chance(0.05):
            strides = [*dnn.TensorSpec(shape).strides]
            return dnn.TensorSpec(shape, dtype, strides=tuple(2 * stride for stride in strides))
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

        Once in a while its data type is a wrong one, or one that should be `packed` is a view.
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
            is_packed = packed and not self.chance(0.15)
            spec = like or self.spec(shape, dtype, packed=is_packed)
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

    def tell(self, texts: Sequence[str]) -> None:
        """Print a call before it is made, if that is wanted: the process may die of it."""
        if self.shows:
            print(*texts, sep="\n", flush=True)

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
