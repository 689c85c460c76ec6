"""`ConvolutionReference`: a sample of what a convolution or a gradient of it writes, in float64, to measure errors by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.enums import ActivationMode, ConvolutionMode, DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.problem import Problem
from cudnnlite.search.accuracy import Errors, relative_errors
from cudnnlite.specs import FilterSpec, TensorSpec

Array = np.ndarray[Any, Any]

_FLOATS = (DataType.FLOAT, DataType.DOUBLE, DataType.HALF, DataType.BFLOAT16)
_CHANNELS, _POSITIONS = 16, 512
# Of the gradient of a filter, whose values are sums over everything: channels at either end, and
# taps.
_PAIRS, _TAPS = 4, 32
_MOST_FACTORS = 1 << 22  # values gathered for one image and one group
_ENOUGH = 256  # sums with more bits than float32 has, for results to tell how they were summed
# of a value, and of the activation's coefficient
_FUNCTIONS: dict[ActivationMode, Callable[[Array, float], Array]] = {
    ActivationMode.IDENTITY: lambda v, c: v,
    ActivationMode.RELU: lambda v, c: np.maximum(v, 0),
    ActivationMode.CLIPPED_RELU: lambda v, c: np.clip(v, 0, c),
    ActivationMode.SIGMOID: lambda v, c: 1 / (1 + np.exp(-v)),
    ActivationMode.TANH: lambda v, c: np.tanh(v),
    ActivationMode.ELU: lambda v, c: np.where(v > 0, v, c * np.expm1(v)),
    ActivationMode.SWISH: lambda v, c: v / (1 + np.exp(-c * v)),
}


class ConvolutionReference:
    """Direct sums over the user's data at some places of the output: corners and random ones.

    Of images the first and the last are looked at, and copied to the host, of a filter's gradient a
    few output channels. `before` is what the output holds before, needed where beta is not 0.
    ArgumentError if the operands hold values that are not finite: nothing can be checked with them.
    `is_rounded`: many of the sums have more bits than float32; small integers have not.
    """

    def __init__(
        self,
        problem: Problem,
        operands: Mapping[str, DeviceArray],
        before: DeviceArray | None = None,
    ) -> None:
        (written,) = problem.operation.writes
        shape, random = problem.values[written].shape, np.random.default_rng(0)
        if written == "dw":
            self._parts, channels, most = _some(random, shape[0], _PAIRS), _PAIRS, _TAPS
        else:
            w, groups = problem.w.shape, problem.conv.groups
            terms = (w[1] if written == "y" else w[0] // groups) * prod(
                w[2:]
            )  # products that a value is the sum of
            self._parts, channels = sorted({0, shape[0] - 1}), _CHANNELS
            most = min(_POSITIONS, max(16, _MOST_FACTORS // terms))
        self._channels = _some(random, shape[1], channels)
        self._places = np.unravel_index(_some(random, prod(shape[2:]), most), shape[2:])
        sums = {"y": self._result, "dx": self._images, "dw": self._filter}[written](
            problem, operands
        )
        with np.errstate(over="ignore"):
            self.is_rounded = (
                sum(np.count_nonzero(values != values.astype(np.float32)) for values in sums)
                >= _ENOUGH
            )
        self._expected = [problem.alpha * values for values in sums]
        if "bias" in operands:
            bias = _part(operands["bias"], 0).reshape(-1, 1)[self._channels].astype(np.float64)
            self._expected = [values + bias for values in self._expected]
        for factor, added in (("beta", before), ("alpha2", operands.get("z"))):
            if scale := problem.values.get(factor):
                assert added is not None
                olds = [self._at(_part(added, part)) for part in self._parts]
                self._expected = [
                    values + scale * old for values, old in zip(self._expected, olds, strict=True)
                ]
        if activation := problem.values.get("activation"):
            function = _FUNCTIONS[activation.mode]
            self._expected = [function(values, activation.coef) for values in self._expected]
        if not all(np.isfinite(values).all() for values in self._expected):
            named = ", ".join(problem.operation.reads)
            raise ArgumentError(
                f"{named} or out hold values that are not finite; nothing can be checked with them"
            )

    @staticmethod
    def can_measure(problem: Problem) -> bool:
        """Tell whether errors mean something: not for integers, which are exact, or saturate."""
        return all(spec.dtype in _FLOATS and spec.size > 0 for spec in problem.specs.values())

    def errors_of(self, y: DeviceArray) -> Errors:
        """Return the errors of a result."""
        return relative_errors([self._at(_part(y, part)) for part in self._parts], self._expected)

    def _at(self, part: Array) -> Array:
        """Return the sample of one part of an output, (channels, places), in float64."""
        index = (np.array(self._channels)[:, None], *(axis[None] for axis in self._places))
        values: Array = part[index]
        return values.astype(np.float64)

    def _result(self, problem: Problem, operands: Mapping[str, DeviceArray]) -> list[Array]:
        """Return sums over channels and taps: where a place of y reads x."""
        reach = [
            place[:, None] * stride + np.arange(taps) * dilation - padding
            for place, (taps, padding, stride, dilation) in zip(
                self._places, _steps(problem, problem.w), strict=True
            )
        ]
        inside = [
            np.where(reads < size, reads, -1)
            for reads, size in zip(reach, problem.x.shape[2:], strict=True)
        ]
        filters = {k: _turned(problem, _part(operands["w"], k)).reshape(-1) for k in self._channels}
        in_group = problem.w.shape[0] // problem.conv.groups
        return [
            _sums(_part(operands["x"], n), inside, filters, in_group, problem.w.shape[1])
            for n in self._parts
        ]

    def _images(self, problem: Problem, operands: Mapping[str, DeviceArray]) -> list[Array]:
        """Return sums over output channels and taps: which places of y read a place of x."""
        inside = []
        for place, size, (taps, padding, stride, dilation) in zip(
            self._places, problem.dy.shape[2:], _steps(problem, problem.w), strict=True
        ):
            from_start = place[:, None] + padding - np.arange(taps) * dilation
            inside.append(
                np.where(
                    (from_start % stride == 0) & (from_start < size * stride),
                    from_start // stride,
                    -1,
                )
            )
        w = _turned(problem, operands["w"].numpy())
        in_group, outer = w.shape[1], w.shape[0] // problem.conv.groups
        filters = {
            c: w[c // in_group * outer :][:outer, c % in_group].reshape(-1) for c in self._channels
        }
        return [
            _sums(_part(operands["dy"], n), inside, filters, in_group, outer) for n in self._parts
        ]

    def _filter(self, problem: Problem, operands: Mapping[str, DeviceArray]) -> list[Array]:
        """Return sums over all images and places of y: the pixels that each of them reads by a tap."""
        steps, sizes = _steps(problem, problem.dw), problem.x.shape[2:]
        outer, in_group = problem.dw.shape[0] // problem.conv.groups, problem.dw.shape[1]
        sums = np.zeros((len(self._parts), len(self._channels), len(self._places[0])))
        for n in range(problem.x.shape[0]):
            x, dy = (_part(operands[name], n) for name in ("x", "dy"))
            for number, taps in enumerate(zip(*self._places, strict=True)):
                places, pixels = [], []
                for tap, size, out, (count, padding, stride, dilation) in zip(
                    taps, sizes, dy.shape[1:], steps, strict=True
                ):
                    at = (
                        count - 1 - tap if problem.conv.mode == ConvolutionMode.CONVOLUTION else tap
                    )
                    reads = np.arange(out) * stride + at * dilation - padding
                    places.append(np.flatnonzero((reads >= 0) & (reads < size)))
                    pixels.append(reads[places[-1]])
                for part, k in enumerate(self._parts):
                    outers = dy[k][np.ix_(*places)].astype(np.float64)
                    for channel, c in enumerate(self._channels):
                        inner = x[k // outer * in_group + c][np.ix_(*pixels)].astype(np.float64)
                        sums[part, channel, number] += np.einsum(
                            "i,i", outers.reshape(-1), inner.reshape(-1)
                        )
        return list(sums)


def _steps(problem: Problem, w: FilterSpec) -> list[tuple[int, int, int, int]]:
    """Return taps, padding, stride and dilation of each axis."""
    return list(zip(w.shape[2:], *problem.conv.steps(w.rank - 2), strict=True))


def _turned(problem: Problem, w: Array) -> Array:
    """Return filters in float64 as they meet the image, taps last."""
    rank = problem.values[problem.operation.reads[0]].rank - 2
    turned = problem.conv.mode == ConvolutionMode.CONVOLUTION
    values: Array = np.flip(w, tuple(range(-rank, 0))) if turned else w
    return values.astype(np.float64)


def _sums(
    image: Array, inside: list[Array], filters: Mapping[int, Array], in_group: int, channels: int
) -> Array:
    """Return, for each filter and place, the sum of products with what the place reads of an image.

    `inside` has what each place reads along an axis, (places, taps), negative where there is
    nothing; each `in_group` filters read `channels` channels of their own.
    """
    count, rank = len(inside[0]), len(inside)
    axes = [
        reads.reshape(count, *(-1 if other == axis else 1 for other in range(rank)))
        for axis, reads in enumerate(inside)
    ]
    there = np.logical_and.reduce(np.broadcast_arrays(*(reads >= 0 for reads in axes)))
    index: Any = (slice(None), *(np.maximum(reads, 0) for reads in axes))
    windows: dict[int, Array] = {}
    sums = []
    for number, values in filters.items():
        group = number // in_group
        if group not in windows:
            gathered = image[group * channels : (group + 1) * channels][index].astype(np.float64)
            gathered[:, ~there] = 0
            windows = {
                group: np.moveaxis(gathered, 1, 0).reshape(count, -1)
            }  # filters come group by group
        # a product for each place: of the whole matrix BLAS makes threads, which go on spinning
        # while calls are timed
        sums.append(np.matmul(windows[group][:, None, :], values.reshape(-1, 1))[:, 0, 0])
    return np.array(sums)


def _some(random: np.random.Generator, size: int, most: int) -> list[int]:
    """Return the first and the last index of an axis, and others at random, in order."""
    if size <= most:
        return list(range(size))
    return sorted({0, size - 1, *random.choice(size, most - 2, replace=False).tolist()})


def _part(array: DeviceArray, index: int) -> Array:
    """Copy one image, or one filter, to the host; without the first axis."""
    spec = array.spec
    if not spec.shape[0]:
        raise ArgumentError(f"{spec} is empty; there is nothing to sample")
    one = TensorSpec((1, *spec.shape[1:]), spec.dtype, strides=spec.strides)
    offset = index * spec.strides[0] * array.dtype.itemsize
    values: Array = arrays.part_of(array, one, offset).numpy()[0]
    return values
