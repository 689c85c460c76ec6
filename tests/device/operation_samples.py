"""`Case`: a sample of an operation on one handle.

It has operands, specs, layouts, expected results, the call and the plan.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st
from samples import (
    LAYOUTS,
    SAMPLES,
    forward_of,
    hosts_of,
    operands_of_one_layout,
    reference_of,
    shapes_of,
)
from tolerances import OPERATION_BOUNDS, assert_near

import cudnnlite as dnn
from cudnnlite.operations.convolution.request import ConvolutionRequest
from cudnnlite.plans.request import Request
from cudnnlite.problems.catalogue import OPERATIONS
from cudnnlite.problems.operation import Operation
from cudnnlite.problems.problem import SCALARS
from cudnnlite.types import Problem

from .problems import LAST, poisoned, random_values, upload, with_gaps

NEW: Any = object()  # as `out`: a poisoned array


def spec_of(shape: tuple[int, ...], dtype: Any, layout: str) -> dnn.TensorSpec:
    """Return a spec with channels first, last, or with gaps on every axis."""
    if layout == "strided":
        return with_gaps(shape, dtype)
    return dnn.TensorSpec(shape, dtype, LAST.get(len(shape)) if layout == "last" else None)


def request(handle: dnn.Handle, operation: Operation, *arguments: Any, **options: Any) -> Any:
    """Return the request for a bare declaration, which no public function has bound."""
    if operation.algorithms is not None:
        return ConvolutionRequest(handle, operation, *arguments, **options)
    return Request(handle, operation, *arguments, **options)


def compute(name: str, dtype: str, shapes: Any, options: Any) -> tuple[dict[str, Any], ...]:
    """Return the values of operands, what has to come out, and what was there before."""
    operation, sample, rng = OPERATIONS[name], SAMPLES[name], np.random.default_rng(0)
    shapes = shapes or shapes_of(name, sample.images)
    hosts = hosts_of(name, shapes, options, lambda shape: random_values(rng, shape, dtype))
    results = reference_of(name)(*(host.astype(np.float64) for host in hosts.values()), **options)
    outputs = dict(zip(operation.writes, results, strict=True))
    for operand in operation.caller_provided:
        outputs[operand] = np.broadcast_to(outputs[operand], hosts[operand].shape)
    olds = {
        n: hosts.get(n, random_values(rng, result.shape, dtype)) for n, result in outputs.items()
    }
    return {operand: hosts[operand] for operand in operation.reads}, outputs, olds


@cache  # hundreds of tests ask for the same, and an oracle takes longer than the call
def computed(name: str, dtype: str) -> tuple[dict[str, Any], ...]:
    """Return the values of the sample itself."""
    return compute(name, dtype, None, SAMPLES[name].options)


class Case:
    """A call of an operation on one handle: operands, poisoned outputs and expected results.

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

    Attributes
    ----------
    target : str
        How the Python function calls what is written first; `out`, `out_spec`, `old` and `result`
        are of that.
    """

    def __init__(
        self,
        handle: dnn.Handle,
        name: str,
        shapes: Any = None,
        options: Any = None,
        *,
        dtype: str = "float32",
        layout: str = "first",
    ) -> None:
        self.handle, self.name, self.dtype, self.layout = handle, name, dtype, layout
        self.operation, self.sample = OPERATIONS[name], SAMPLES[name]
        operation = self.operation
        self.options = dict(options or self.sample.options)
        groups = (
            computed(name, dtype)
            if not (shapes or options)
            else compute(name, dtype, shapes, self.options)
        )
        self.hosts, self.results, self.olds = (
            {n: values.copy() for n, values in group.items()} for group in groups
        )
        self.specs = {operand: self._spec(operand) for operand in self.hosts}
        self.arrays = {
            operand: upload(handle, spec, self.hosts[operand])
            for operand, spec in self.specs.items()
        }
        self.out_specs = {
            n: spec_of(r.shape, dtype, self._layout(n)) for n, r in self.results.items()
        }
        self.first = operation.writes[0]
        self.target, self.result, self.old = (
            operation.argument(self.first),
            self.results[self.first],
            self.olds[self.first],
        )
        self.out_spec = self.out_specs[self.first]
        self.outs = {operand: self.fresh(operand) for operand in operation.writes}

    def fresh(self, operand: str | None = None, beta: float = 0.0) -> dnn.DeviceArray:
        """Return an output: with old values if the call reads them, otherwise poisoned."""
        operand = operand or self.first
        if beta or operand in self.operation.caller_provided:
            return upload(self.handle, self.out_specs[operand], self.olds[operand])
        return poisoned(self.handle, self.out_specs[operand])

    def _spec(self, operand: str) -> dnn.TensorSpec:
        return spec_of(self.hosts[operand].shape, self.dtype, self._layout(operand))

    def _layout(self, operand: str) -> str:
        packed = self.operation.filters | self.sample.packed
        return (
            "first"
            if operand in operands_of_one_layout(self.operation)
            or (operand in packed and self.layout == "strided")
            else self.layout
        )

    @property
    def out(self) -> dnn.DeviceArray:
        """What is written first."""
        return self.outs[self.first]

    @property
    def arguments(self) -> tuple[str, ...]:
        """What stands for the arrays in the Python function."""
        return (*self.operation.reads, *map(self.operation.argument, self.operation.writes))

    @property
    def makes_new(self) -> bool:
        """Whether a call needs no output."""
        return not self.operation.caller_provided

    @property
    def ordered(self) -> list[Any]:
        """The options in their order."""
        return [self.options[option] for option in self.operation.options]

    @property
    def problem(self) -> Problem:
        """What the call asks for."""
        return self._request(self.arrays, self._all(self.outs)).problem()

    def _request(self, operands: dict[str, Any], out: Any, **scalars: float) -> Any:
        ordered = [operands[name] for name in self.operation.reads]
        if self.operation.shared_scalars:
            alpha, beta = scalars.pop("alpha", 1.0), scalars.pop("beta", 0.0)
            own: dict[str, Any] = {**dict.fromkeys(self.operation.shared_scalars), **scalars}
            arguments = (self.handle, self.operation, ordered, self.ordered, alpha, beta, out)
            return Request(*arguments, own_scalars=own)
        return request(self.handle, self.operation, ordered, self.ordered, out=out, **scalars)

    def scalars(self, alpha: float, beta: float) -> dict[str, float]:
        """Return these numbers by the names of all scalars that the operation has."""
        values = {"alpha": alpha, "beta": beta}
        shared = self.operation.shared_scalars
        return {name: values[shared.get(name, name)] for name in self.operation.scalars}

    def _all(self, outs: dict[str, Any]) -> Any:
        return next(iter(outs.values())) if len(outs) == 1 else tuple(outs.values())

    def array(self, argument: str) -> dnn.DeviceArray:
        """Return an operand, or what is written, by its argument."""
        written = {self.operation.argument(operand): array for operand, array in self.outs.items()}
        return (self.arrays | written)[argument]

    def _given(self, changes: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        names = {self.operation.argument(operand): operand for operand in self.operation.writes}
        if "out" in changes and "out" not in names:  # all outputs at once
            changes |= {
                argument: changes["out"] for argument in names if argument.startswith("out[")
            }
        outs = self.outs | {
            operand: changes[argument] for argument, operand in names.items() if argument in changes
        }
        return self.arrays | {
            n: array for n, array in changes.items() if n in self.operation.reads
        }, outs

    def given(self, **changes: Any) -> dict[str, Any]:
        """Return the arguments of a plan's call, some of them replaced."""
        arrays, outs = self._given(changes)
        return {**arrays, "out": self._all(outs)}

    def keywords(self, **changes: Any) -> dict[str, Any]:
        """Return the arguments of the public function by name, some of them replaced."""
        arrays, outs = self._given(changes)
        keywords = {name: SCALARS[name] for name in self.operation.scalars if name in SCALARS}
        keywords |= {
            n: value
            for n, value in changes.items()
            if n in ("alpha", "beta", *self.operation.shared_scalars, *self.operation.options)
        }
        outputs = {operand: outs[operand] for operand in self.operation.outputs}
        arrays |= {
            argument: outs[operand] for operand, argument in self.operation.caller_provided.items()
        }
        if outputs:
            arrays["out"] = (
                None if not any(a is not None for a in outputs.values()) else self._all(outputs)
            )
        return self.options | arrays | keywords

    def call(self, **changes: Any) -> Any:
        """Call the function of one line, some arguments replaced."""
        return getattr(dnn, self.name)(self.handle, **self.keywords(**changes))

    def plan(
        self,
        alpha: float = 1.0,
        beta: float = 0.0,
        *,
        operands: Any = None,
        out: Any = NEW,
        **own_scalars: Any,
    ) -> Any:
        """Return a plan for these operands."""
        operands = self.arrays if operands is None else operands
        out = self._all(self.outs) if out is NEW else out
        return self._request(operands, out, alpha=alpha, beta=beta, **own_scalars).plan()

    def assert_right(self, returned: Any, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Compare every value of everything that was returned."""
        arrays = returned if isinstance(returned, tuple) else (returned,)
        largest = max(
            np.abs(h.astype(np.float64)).max() for h in (*self.hosts.values(), *self.olds.values())
        )
        names = self.operation.outputs or self.operation.writes
        for name, array in zip(names, arrays, strict=True):
            scaled = self.operation.scalars_of(name) is not None
            expected = alpha * self.results[name] if scaled else self.results[name]
            if self.sample.blended:
                wide = {operand: host.astype(np.float64) for operand, host in self.hosts.items()}
                expected = self.sample.blended(alpha, **wide, **self.options)
            expected = expected + (
                beta * self.olds[name].astype(np.float64) if scaled and beta else 0
            )
            assert_near(
                array.numpy(),
                expected,
                (self.sample.bounds or OPERATION_BOUNDS)[self.dtype],
                largest,
            )

    def check(self) -> None:
        """Call it into fresh outputs by one line and compare."""
        self.outs = {operand: self.fresh(operand) for operand in self.outs}
        returned = self.call()
        assert (returned[0] if isinstance(returned, tuple) else returned) is self.out
        self.assert_right(returned)


@st.composite
def drawn(draw: Any, name: str) -> dict[str, Any]:
    """Draw the arguments of a `Case`."""
    operation, sample = OPERATIONS[name], SAMPLES[name]
    image = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    images = (draw(st.integers(1, 3)), draw(st.integers(1, 5)), *image)
    sample_arguments = sample.drawn(draw, images) if sample.drawn else {}
    shapes, options = (
        sample_arguments
        if isinstance(sample_arguments, tuple)
        else (shapes_of(name, images), sample_arguments)
    )
    for option, kind in operation.options.items():
        if option not in options:
            how = (
                st.sampled_from(list(kind))
                if hasattr(kind, "__members__")
                else st.sampled_from((0.25, 0.5, 1.0, 2.0))
            )
            options = {**options, option: draw(how)}
    dtype, layout = draw(st.sampled_from(("float32", "float64"))), draw(st.sampled_from(LAYOUTS))
    return {"shapes": shapes, "options": options, "dtype": dtype, "layout": layout}


GRADIENTS = [name for name in SAMPLES if forward_of(OPERATIONS[name]) is not OPERATIONS[name]]
__all__ = [
    "GRADIENTS",
    "LAYOUTS",
    "SAMPLES",
    "Case",
    "drawn",
    "forward_of",
    "hosts_of",
    "reference_of",
    "request",
    "spec_of",
]
