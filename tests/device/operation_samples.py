"""What the tests of all operations cannot derive: a sample of each, and how its options are drawn at random.

`Case` makes the rest from the table of operations: operands, specs, layouts, what has to come out, the call and the plan.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from oracles import onnx_convolution
from tolerances import CONVOLUTION_BOUNDS, OPERATION_BOUNDS, assert_near

import cudnnlite as dnn
from cudnnlite.operations.call import make_plan, problem_of
from cudnnlite.operations.operation import OPERATIONS
from cudnnlite.operations.problem import Problem

from .problems import LAST, Array, poisoned, random_values, upload, with_gaps

LAYOUTS = ("first", "last", "strided")
NEW: Any = object()  # as `out`: a poisoned array


def emulated(name: str) -> Callable[..., Array]:
    """Return the NumPy function behind the emulation of an operation."""
    family, _, direction = name.rpartition("_")
    function: Callable[..., Array] = getattr(importlib.import_module(f"cudnnlite.emulated.{family}"), direction)
    return function


def _convolution(x: Array, w: Array, conv: dnn.ConvolutionSpec) -> Array:
    return onnx_convolution(x, w, *conv.steps(x.ndim - 2), conv.groups, conv.mode == dnn.ConvolutionMode.CONVOLUTION)


class Sample(NamedTuple):
    """A call of an operation, as far as it cannot be derived.

    Attributes
    ----------
    shapes : mapping
        Of the operands; what has the shape of the forward operation's result (y, dy) is left out where that can be inferred.
    options : mapping
    reference : callable, optional
        (operands in float64, options by name) -> the result; `emulated` if not given.
    bounds : mapping
        By dtype, relative to the largest value.
    """

    shapes: Mapping[str, tuple[int, ...]]
    options: Mapping[str, Any]
    reference: Callable[..., Array] | None = None
    bounds: Mapping[str, float] = OPERATION_BOUNDS


IMAGES, POOLING = {"x": (2, 3, 9, 7)}, {"pooling": dnn.PoolingSpec((3, 2), 1, 2)}
SOFTMAX = {"algorithm": dnn.SoftmaxAlgorithm.ACCURATE, "mode": dnn.SoftmaxMode.CHANNEL}
SAMPLES = {
    "convolution_forward": Sample(
        {"x": (2, 4, 9, 7), "w": (6, 4, 3, 2)},
        {"conv": dnn.ConvolutionSpec(padding=1, math_type="fma")},
        _convolution,
        CONVOLUTION_BOUNDS,
    ),
    "pooling_forward": Sample(IMAGES, POOLING),
    "pooling_backward": Sample(IMAGES, POOLING),
    "softmax_forward": Sample({"x": (2, 5, 4, 3)}, SOFTMAX),
    "softmax_backward": Sample({"y": (2, 5, 4, 3)}, SOFTMAX),
}


def spec_of(shape: tuple[int, ...], dtype: Any, layout: str) -> dnn.TensorSpec:
    """Return a spec with channels first, last, or with gaps on every axis."""
    if layout == "strided":
        return with_gaps(shape, dtype)
    return dnn.TensorSpec(shape, dtype, LAST.get(len(shape)) if layout == "last" else None)


class Case:
    """A call of an operation on one handle: operands, `out` in poisoned memory, and what has to come out.

    Parameters
    ----------
    handle : Handle
    name : str
        The operation's.
    shapes, options : mapping, optional
        The sample's if not given.
    dtype : str
    layout : str
        "first", "last" or "strided", of everything but filters, which are packed.
    """

    def __init__(
        self, handle: dnn.Handle, name: str, shapes: Any = None, options: Any = None, *, dtype: str = "float32",
        layout: str = "first",
    ) -> None:  # fmt: skip
        self.handle, self.name, self.dtype, self.layout = handle, name, dtype, layout
        self.operation, self.sample, rng = OPERATIONS[name], SAMPLES[name], np.random.default_rng(0)
        shapes, self.options = shapes or self.sample.shapes, dict(options or self.sample.options)
        hosts = {operand: random_values(rng, shape, dtype) for operand, shape in shapes.items()}
        forward = OPERATIONS[name.replace("_backward", "_forward")]
        if "y" not in hosts and forward is not self.operation:
            wide = [hosts[operand].astype(np.float64) for operand in forward.reads]
            hosts["y"] = self._reference(forward.name)(*wide, **self.options).astype(hosts[forward.reads[0]].dtype)
        for operand in self.operation.reads:
            if operand not in hosts:
                hosts[operand] = random_values(rng, hosts["y"].shape, dtype)
        self.hosts = {operand: hosts[operand] for operand in self.operation.reads}
        self.specs = {operand: self._spec(operand) for operand in self.hosts}
        self.arrays = {operand: upload(handle, spec, self.hosts[operand]) for operand, spec in self.specs.items()}
        self.result = self._reference(name)(*(h.astype(np.float64) for h in self.hosts.values()), **self.options)
        self.out_spec = spec_of(self.result.shape, dtype, layout)
        self.old = random_values(rng, self.result.shape, dtype)
        self.out = poisoned(handle, self.out_spec)

    def _reference(self, name: str) -> Callable[..., Array]:
        return self.sample.reference or emulated(name)

    def _spec(self, operand: str) -> dnn.TensorSpec:
        packed = operand in self.operation.filters and self.layout == "strided"
        return spec_of(self.hosts[operand].shape, self.dtype, "first" if packed else self.layout)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the arrays in the Python function."""
        return (*self.operation.reads, "out")

    @property
    def ordered(self) -> list[Any]:
        """The options in their order."""
        return [self.options[option] for option in self.operation.options]

    @property
    def problem(self) -> Problem:
        """What the call asks for."""
        return problem_of(self.operation, [*self.arrays.values()], self.ordered, self.out)

    def array(self, argument: str) -> dnn.DeviceArray:
        """Return the operand, or `out`."""
        return self.out if argument == "out" else self.arrays[argument]

    def given(self, **changes: Any) -> dict[str, Any]:
        """Return the arrays by name, some of them replaced."""
        return {**self.arrays, "out": self.out} | changes

    def call(self, **changes: Any) -> dnn.DeviceArray:
        """Call the function of one line, some arguments replaced."""
        result: dnn.DeviceArray = getattr(dnn, self.name)(self.handle, **self.options | self.given(**changes))
        return result

    def plan(self, alpha: float = 1.0, beta: float = 0.0, *, operands: Any = None, out: Any = NEW) -> Any:
        """Return a plan for these operands."""
        operands = [*(self.arrays if operands is None else operands).values()]
        out = self.out if out is NEW else out
        return make_plan(self.handle, self.operation, operands, self.ordered, alpha=alpha, beta=beta, out=out)

    def assert_right(self, y: dnn.DeviceArray, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compare every value."""
        largest = max(np.abs(host.astype(np.float64)).max() for host in (*self.hosts.values(), self.old))
        expected = alpha * self.result + (beta * self.old.astype(np.float64) if beta else 0)
        assert_near(y.numpy(), expected, self.sample.bounds[self.dtype], largest)

    def check(self) -> None:
        """Call it into `out` by one line and compare."""
        assert self.call() is self.out
        self.assert_right(self.out)


def _steps(draw: Any, bounds: Any) -> tuple[int, ...]:
    return tuple(draw(st.integers(low, high)) for low, high in bounds)


def _draw_pooling(draw: Any, image: tuple[int, ...]) -> dnn.PoolingSpec:
    window = _steps(draw, ((1, min(4, size)) for size in image))
    padding, stride = _steps(draw, ((0, taps - 1) for taps in window)), _steps(draw, ((1, 3) for _ in image))
    return dnn.PoolingSpec(window, padding, stride, mode=draw(st.sampled_from(list(dnn.PoolingMode))))


def _draw_convolution(draw: Any, image: tuple[int, ...]) -> dnn.ConvolutionSpec:
    padding, stride = _steps(draw, ((0, 2) for _ in image)), _steps(draw, ((1, 3) for _ in image))
    return dnn.ConvolutionSpec(padding, stride, math_type="fma")


DRAWN = {dnn.PoolingSpec: _draw_pooling, dnn.ConvolutionSpec: _draw_convolution}  # enums are drawn by themselves


@st.composite
def drawn(draw: Any, name: str) -> dict[str, Any]:
    """Draw the arguments of a `Case`."""
    operation = OPERATIONS[name]
    image = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    images = (draw(st.integers(1, 3)), draw(st.integers(1, 5)), *image)
    taps = _steps(draw, ((1, min(3, size)) for size in image)) if operation.filters else ()
    filters = (draw(st.integers(1, 4)), images[1], *taps)
    shapes = {operand: filters if operand in operation.filters else images for operand in SAMPLES[name].shapes}
    options = {
        option: DRAWN[kind](draw, image) if kind in DRAWN else draw(st.sampled_from(list(kind)))
        for option, kind in operation.options.items()
    }
    dtype, layout = draw(st.sampled_from(("float32", "float64"))), draw(st.sampled_from(LAYOUTS))
    return {"shapes": shapes, "options": options, "dtype": dtype, "layout": layout}
