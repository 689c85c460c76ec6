"""`ConvolutionReference`: a sample of a convolution's output, in float64, to measure an algorithm's error by."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.enums import ConvolutionMode, DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.operations.convolution_problem import ConvolutionForwardProblem
from cudnnlite.search.accuracy import Errors, relative_errors
from cudnnlite.specs import TensorSpec

Array = np.ndarray[Any, Any]

_FLOATS = (DataType.FLOAT, DataType.DOUBLE, DataType.HALF, DataType.BFLOAT16)
_IMAGES, _CHANNELS, _POSITIONS = 2, 16, 512
_MOST_FACTORS = 1 << 22  # values gathered for one image and one group


class ConvolutionReference:
    """Direct sums over the user's data at some places of the output: corners and random ones, of the first and last image.

    Parameters
    ----------
    problem : ConvolutionForwardProblem
        What is computed.
    x, w : DeviceArray
        The operands; only the images and filters that the sample needs are copied to the host.
    y : DeviceArray, optional
        What the output holds before; needed where beta is not 0.

    Raises
    ------
    ArgumentError
        The operands hold values that are not finite: nothing can be checked with them.
    """

    def __init__(
        self, problem: ConvolutionForwardProblem, x: DeviceArray, w: DeviceArray, y: DeviceArray | None = None
    ) -> None:
        random = np.random.default_rng(0)
        self._images = sorted({0, problem.x.shape[0] - 1})[:_IMAGES]
        self._channels = _some(random, problem.y.shape[1], _CHANNELS)
        taps = problem.w.shape[2:]
        most = min(_POSITIONS, max(16, _MOST_FACTORS // prod(problem.w.shape[1:])))
        places = _some(random, prod(problem.y.shape[2:]), most)
        self._places = np.unravel_index(places, problem.y.shape[2:])
        rotated = problem.conv.mode == ConvolutionMode.CONVOLUTION
        filters = {k: _part(w, k).astype(np.float64) for k in self._channels}
        if rotated:
            filters = {k: np.flip(values, tuple(range(1, 1 + len(taps)))) for k, values in filters.items()}
        self._expected = [self._sums(problem, _part(x, n), filters) for n in self._images]
        if problem.beta:
            assert y is not None
            before = [self._at(_part(y, n)) for n in self._images]
            self._expected = [e + problem.beta * b for e, b in zip(self._expected, before, strict=True)]
        if not all(np.isfinite(values).all() for values in self._expected):
            raise ArgumentError("x, w or out hold values that are not finite; nothing can be checked with them")

    @staticmethod
    def can_measure(problem: ConvolutionForwardProblem) -> bool:
        """Tell whether errors mean something: not for integers, which are exact, or saturate."""
        return problem.x.dtype in _FLOATS and problem.y.dtype in _FLOATS and problem.y.size > 0

    def errors_of(self, y: DeviceArray) -> Errors:
        """Return the errors of a result."""
        return relative_errors([self._at(_part(y, n)) for n in self._images], self._expected)

    def _at(self, image: Array) -> Array:
        """Return the sample of one image of an output, (channels, places), in float64."""
        index = (np.array(self._channels)[:, None], *(axis[None] for axis in self._places))
        values: Array = image[index]
        return values.astype(np.float64)

    def _sums(self, problem: ConvolutionForwardProblem, image: Array, filters: dict[int, Array]) -> Array:
        _, stride, dilation = problem.conv.steps(image.ndim - 1)
        padded = np.pad(image.astype(np.float64), [(0, 0), *problem.conv.pads(image.ndim - 1)])
        count, rank, taps = len(self._places[0]), image.ndim - 1, problem.w.shape[2:]
        index: list[Any] = [slice(None)]
        for axis in range(rank):
            reached = self._places[axis][:, None] * stride[axis] + np.arange(taps[axis]) * dilation[axis]
            index.append(reached.reshape(count, *(taps[axis] if other == axis else 1 for other in range(rank))))
        c_group, k_group = problem.w.shape[1], problem.w.shape[0] // problem.conv.groups
        windows: dict[int, Array] = {}
        sums = []
        for k, values in filters.items():
            group = k // k_group
            if group not in windows:
                channels = padded[group * c_group : (group + 1) * c_group]
                gathered = channels[tuple(index)]  # (C / groups, places, *taps)
                windows = {group: np.moveaxis(gathered, 1, 0).reshape(count, -1)}  # channels come group by group
            # a product for each place: of the whole matrix BLAS makes threads, which go on spinning while calls are timed
            sums.append(np.matmul(windows[group][:, None, :], values.reshape(-1, 1))[:, 0, 0])
        return np.asarray(problem.alpha * np.array(sums))


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
