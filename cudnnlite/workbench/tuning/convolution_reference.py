"""`ConvolutionReference`: a sample of the output of a convolution or gradient, in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from cudnnlite import DeviceArray, FilterSpec, TensorSpec
from cudnnlite.devices import arrays
from cudnnlite.enums import ActivationMode, ConvolutionMode, DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.types import Problem

Array = np.ndarray[Any, Any]

_FLOATS = (DataType.FLOAT, DataType.DOUBLE, DataType.HALF, DataType.BFLOAT16)
# The size of the sample of an image: channels, and positions in each of them.
_CHANNELS, _POSITIONS = 16, 512
# The size of the sample of a filter's gradient, whose values are sums over all images: channels on
# each side, and taps.
_PAIRS, _TAPS = 4, 32
_MAX_FACTORS = 1 << 22  # values that are gathered for one image and one group
# This many sums must have more bits than float32, so that results show the order of summation.
_MIN_ROUNDED = 256
# Functions of the values and of the activation's coefficient.
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
    """Direct sums over the user's data for some places of the output: corners and random ones.

    The sample is from the first and the last image, which are copied to the host, or from a few
    output channels of a filter's gradient.  `before` is the output before the call, which is needed
    if beta is not 0.  ArgumentError if an operand holds a value that is not finite, because then no
    error can be measured.  `is_rounded` says whether many sums have more bits than float32.  The
    sums of small integers do not.
    """

    def __init__(
        self,
        problem: Problem,
        operands: Mapping[str, DeviceArray],
        before: DeviceArray | None = None,
    ) -> None:
        (output,) = problem.operation.writes
        self._choose_sample(problem, output)
        if output == "y":
            sums = self._output_sums(problem, operands)
        elif output == "dx":
            sums = self._image_gradient_sums(problem, operands)
        else:
            sums = self._filter_gradient_sums(problem, operands)
        self.is_rounded = _count_rounded(sums) >= _MIN_ROUNDED
        self._expected = self._finish(problem, operands, before, sums)
        if not all(np.isfinite(values).all() for values in self._expected):
            names = ", ".join(problem.operation.reads)
            raise ArgumentError(
                f"{names} or out hold values that are not finite; nothing can be checked with them"
            )

    def _choose_sample(self, problem: Problem, output: str) -> None:
        """Choose the indices of the sample: on the first axis, the channels and the places."""
        shape = problem.values[output].shape
        random = np.random.default_rng(0)
        if output == "dw":
            max_channels, max_places = _PAIRS, _TAPS
            self._parts = _sample_indices(random, shape[0], _PAIRS)
        else:
            max_channels = _CHANNELS
            max_places = min(_POSITIONS, max(16, _MAX_FACTORS // _count_products(problem, output)))
            self._parts = sorted({0, shape[0] - 1})
        self._channels = _sample_indices(random, shape[1], max_channels)
        places = _sample_indices(random, prod(shape[2:]), max_places)
        self._places = np.unravel_index(places, shape[2:])

    def _finish(
        self,
        problem: Problem,
        operands: Mapping[str, DeviceArray],
        before: DeviceArray | None,
        sums: list[Array],
    ) -> list[Array]:
        """Return the expected values: the sums after scaling, bias, blending and activation."""
        expected = [problem.alpha * values for values in sums]
        if "bias" in operands:
            biases = copy_part(operands["bias"], 0).reshape(-1, 1)
            bias = biases[self._channels].astype(np.float64)
            expected = [values + bias for values in expected]
        for factor, addend in (("beta", before), ("alpha2", operands.get("z"))):
            scale = problem.values.get(factor)
            if scale:
                assert addend is not None
                expected = [
                    values + scale * self._sample(copy_part(addend, part))
                    for values, part in zip(expected, self._parts, strict=True)
                ]
        activation = problem.values.get("activation")
        if activation:
            function = _FUNCTIONS[activation.mode]
            expected = [function(values, activation.coef) for values in expected]
        return expected

    @staticmethod
    def can_measure(problem: Problem) -> bool:
        """Return whether errors can be measured.

        Integers are exact or saturate, so they have no error to measure.
        """
        return all(spec.dtype in _FLOATS and spec.size > 0 for spec in problem.specs.values())

    @property
    def expected(self) -> list[Array]:
        """The values of the sample in float64, (channels, places) of each part."""
        return self._expected

    def sample_of(self, out: DeviceArray) -> list[Array]:
        """Return the values of a result at the places of `expected`."""
        return [self._sample(copy_part(out, part)) for part in self._parts]

    def _sample(self, part: Array) -> Array:
        """Return the sample of one part of an output, (channels, places), in float64."""
        index = (np.array(self._channels)[:, None], *(axis[None] for axis in self._places))
        values: Array = part[index]
        return values.astype(np.float64)

    def _output_sums(self, problem: Problem, operands: Mapping[str, DeviceArray]) -> list[Array]:
        """Return sums over channels and taps: a place of y reads pixels of x."""
        pixels = []
        for place, size, (taps, padding, stride, dilation) in zip(
            self._places, problem.x.shape[2:], _steps(problem, problem.w), strict=True
        ):
            reads = place[:, None] * stride + np.arange(taps) * dilation - padding
            pixels.append(np.where(reads < size, reads, -1))
        filters = {
            k: _as_correlation(problem, copy_part(operands["w"], k)).reshape(-1)
            for k in self._channels
        }
        filters_in_group = problem.w.shape[0] // problem.conv.groups
        channels_in_group = problem.w.shape[1]
        return [
            _sum_products(
                copy_part(operands["x"], n), pixels, filters, filters_in_group, channels_in_group
            )
            for n in self._parts
        ]

    def _image_gradient_sums(
        self, problem: Problem, operands: Mapping[str, DeviceArray]
    ) -> list[Array]:
        """Return sums over output channels and taps: a place of dx was read by places of y."""
        readers = []
        for place, size, (taps, padding, stride, dilation) in zip(
            self._places, problem.dy.shape[2:], _steps(problem, problem.w), strict=True
        ):
            from_start = place[:, None] + padding - np.arange(taps) * dilation
            is_read = (from_start % stride == 0) & (from_start < size * stride)
            readers.append(np.where(is_read, from_start // stride, -1))
        w = _as_correlation(problem, operands["w"].numpy())
        channels_in_group = w.shape[1]
        filters_in_group = w.shape[0] // problem.conv.groups
        filters = {}
        for c in self._channels:
            group, channel = divmod(c, channels_in_group)
            filters_of_group = w[group * filters_in_group :][:filters_in_group]
            filters[c] = filters_of_group[:, channel].reshape(-1)
        return [
            _sum_products(
                copy_part(operands["dy"], n), readers, filters, channels_in_group, filters_in_group
            )
            for n in self._parts
        ]

    def _filter_gradient_sums(
        self, problem: Problem, operands: Mapping[str, DeviceArray]
    ) -> list[Array]:
        """Return sums over all images and all places of y: each place reads one pixel by a tap."""
        filters_in_group = problem.dw.shape[0] // problem.conv.groups
        channels_in_group = problem.dw.shape[1]
        readings = [_reading_of_tap(problem, taps) for taps in zip(*self._places, strict=True)]
        sums = np.zeros((len(self._parts), len(self._channels), len(readings)))
        for n in range(problem.x.shape[0]):
            x, dy = copy_part(operands["x"], n), copy_part(operands["dy"], n)
            for tap, (places, pixels) in enumerate(readings):
                for part, k in enumerate(self._parts):
                    gradient = dy[k][places].astype(np.float64).reshape(-1)
                    first_channel = k // filters_in_group * channels_in_group
                    for channel, c in enumerate(self._channels):
                        image = x[first_channel + c][pixels].astype(np.float64).reshape(-1)
                        sums[part, channel, tap] += np.einsum("i,i", gradient, image)
        return list(sums)


def _count_products(problem: Problem, output: str) -> int:
    """Return the number of products in a sum of y or dx."""
    w = problem.w.shape
    channels = w[1] if output == "y" else w[0] // problem.conv.groups
    return int(channels * prod(w[2:]))


def _count_rounded(sums: list[Array]) -> int:
    """Return the number of sums that have more bits than float32."""
    with np.errstate(over="ignore"):
        return sum(int(np.sum(values != values.astype(np.float32))) for values in sums)


def _reading_of_tap(problem: Problem, tap: tuple[int, ...]) -> tuple[Any, Any]:
    """Return the indices of the places of y and of the pixels of x that a tap connects.

    Places whose pixel would be in the padding are left out.
    """
    places, pixels = [], []
    for tap_index, size, out_size, (taps, padding, stride, dilation) in zip(
        tap,
        problem.x.shape[2:],
        problem.dy.shape[2:],
        _steps(problem, problem.dw),
        strict=True,
    ):
        offset = tap_index
        if problem.conv.mode == ConvolutionMode.CONVOLUTION:
            offset = taps - 1 - tap_index
        reads = np.arange(out_size) * stride + offset * dilation - padding
        inside = np.flatnonzero((reads >= 0) & (reads < size))
        places.append(inside)
        pixels.append(reads[inside])
    return np.ix_(*places), np.ix_(*pixels)


def _steps(problem: Problem, w: FilterSpec) -> list[tuple[int, int, int, int]]:
    """Return taps, padding, stride and dilation of each axis."""
    return list(zip(w.shape[2:], *problem.conv.steps(w.rank - 2), strict=True))


def _as_correlation(problem: Problem, w: Array) -> Array:
    """Return filters in float64 in the order of a cross-correlation.

    The spatial axes are the last ones.
    """
    rank = problem.values[problem.operation.reads[0]].rank - 2
    if problem.conv.mode == ConvolutionMode.CONVOLUTION:
        w = np.flip(w, tuple(range(-rank, 0)))
    return w.astype(np.float64)


def _sum_products(
    image: Array,
    pixels: list[Array],
    filters: Mapping[int, Array],
    filters_in_group: int,
    channels_in_group: int,
) -> Array:
    """Return the sum of products for each filter and place.

    `pixels` has, for each axis, the indices that a place reads: (places, taps).  A negative index
    reads nothing.  `filters` maps numbers to flat filters.  The filters of a group read the
    channels of that group.
    """
    count, rank = len(pixels[0]), len(pixels)
    axes = []
    for axis, indices in enumerate(pixels):
        sizes = [1] * rank
        sizes[axis] = -1
        axes.append(indices.reshape(count, *sizes))
    is_inside = reduce(np.logical_and, [indices >= 0 for indices in axes])
    index: Any = (slice(None), *(np.maximum(indices, 0) for indices in axes))
    last_group = -1
    windows: Array = np.empty(0)
    sums = []
    for number, values in filters.items():
        group = number // filters_in_group
        if group != last_group:  # filters are in the order of their groups
            last_group = group
            channels = slice(group * channels_in_group, (group + 1) * channels_in_group)
            gathered = image[channels][index].astype(np.float64)
            gathered[:, ~is_inside] = 0
            windows = np.moveaxis(gathered, 1, 0).reshape(count, -1)
        # There is one product for each place. For a product of whole matrices BLAS would start
        # threads, which go on spinning while calls are timed.
        sums.append(np.matmul(windows[:, None, :], values.reshape(-1, 1))[:, 0, 0])
    return np.array(sums)


def _sample_indices(random: np.random.Generator, size: int, count: int) -> list[int]:
    """Return the first and the last index of an axis, and random ones between, in order."""
    if size <= count:
        return list(range(size))
    return sorted({0, size - 1, *random.choice(size, count - 2, replace=False).tolist()})


def copy_part(array: DeviceArray, index: int) -> Array:
    """Copy one image, or one filter, to the host; without the first axis."""
    spec = array.spec
    if not spec.shape[0]:
        raise ArgumentError(f"{spec} is empty; there is nothing to sample")
    part = TensorSpec((1, *spec.shape[1:]), spec.dtype, strides=spec.strides)
    offset = index * spec.strides[0] * array.dtype.itemsize
    values: Array = arrays.part_of(array, part, offset).numpy()[0]
    return values
