"""Invalid input and property tests of all operations, written once.

A new operation has them by its declaration and a sample.  Each refusal names the argument and
leaves `out` alone, whether the call is one line or a plan's; nothing leaks, and the call works
afterwards.
"""

from __future__ import annotations

import gc
import inspect
import json
import pickle
import re
import threading
import warnings
from collections import Counter
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from conftest import Census
from helpers.extents import ALL, SAMPLE, each_extent
from helpers.harness import World
from helpers.refusals import ARGUMENT, ARRAY, refuses
from hypothesis import given, settings
from tolerances import assert_near

import cudnnlite as dnn
from cudnnlite.devices.arrays import part_of
from cudnnlite.emulated.device import EmulatedDevice
from cudnnlite.problems.catalogue import OPERATIONS
from cudnnlite.problems.problem import problem_from_plain
from cudnnlite.specs.frozen import FrozenSpec
from cudnnlite.workbench.tuning.recording import record_problems

from .operation_samples import (
    GRADIENTS,
    LAYOUTS,
    SAMPLES,
    Case,
    drawn,
    forward_of,
    operands_of_one_layout,
    reference_of,
)
from .problems import PATTERN, UNSUPPORTED, fill, gap_mask, memory_of, upload
from .test_many_calls import calls_of
from .test_plan import count_calls

EXAMPLES = {SAMPLE: 8, ALL: 100}
HANDLES_OWN = {
    "cudnnCreate",
    "cudnnDestroy",
    "cudnnSetStream",
    "cudnnGetStream",
}  # which involve no specs
# Their results are zero for an empty batch.
SUMS_OVER_IMAGES = {"convolution_backward_filter", "convolution_backward_bias"}
every_operation = pytest.mark.parametrize("name", SAMPLES)


def test_every_operation_has_a_sample() -> None:
    public = {
        name: operation
        for name, operation in OPERATIONS.items()
        if operation.writes and hasattr(dnn, name)
    }
    missing = {name: operation for name, operation in public.items() if name not in SAMPLES}
    assert not missing, (
        "add to SAMPLES, in the module of tests/samples named as the declaration's:\n"
        + "\n".join(
            f'    "{name}": Sample({{values of {", ".join(operation.options)}}}, '
            f"at=lambda images, plain: {{shapes of {', '.join(operation.reads)}}}, drawn=...),"
            for name, operation in missing.items()
        )
    )
    assert public.keys() == SAMPLES.keys()


@every_operation
def test_the_options_can_be_drawn_and_the_function_is_as_declared(name: str) -> None:
    operation = OPERATIONS[name]
    for option, kind in operation.options.items():
        drawn = SAMPLES[name].drawn or hasattr(kind, "__members__") or kind is float
        assert drawn, f"`drawn` of the sample has to draw a {kind.__name__}, for {option}"
    parameters = inspect.signature(getattr(dnn, name)).parameters
    scalars = [name for name in operation.scalars if name not in operation.options]
    updated = (
        [] if operation.outputs else [n for n in operation.caller_provided.values() if n != "out"]
    )
    positional = ["handle", *operation.reads, *updated]
    positional += [name for name, kind in operation.options.items() if issubclass(kind, FrozenSpec)]
    assert [n for n, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD][
        : len(positional)
    ] == positional
    outputs = ["out"] if operation.outputs or "out" in operation.caller_provided.values() else []
    assert {*positional, *operation.options, *scalars, *outputs} <= parameters.keys()
    assert list(parameters).index("handle") == 0


# ---------------------------------------------------------------- what is refused


@pytest.fixture(params=SAMPLES)
def case(handle: dnn.Handle, request: pytest.FixtureRequest) -> Any:
    """A case whose output holds a pattern; looked at before and after the test."""
    case = Case(handle, request.param)
    case.check()
    for out in case.outs.values():
        fill(out, PATTERN)
    census = Census(handle.device)
    yield case
    try:
        assert all((memory_of(out) == PATTERN).all() for out in case.outs.values()), (
            "out was written"
        )
        assert census.memory <= 0
        case.check()
    finally:
        vars(case).clear()  # pytest keeps it for longer than the handle's fixture allows


def refused(case: Case, error: Any, match: str, plans: str = "", **changes: Any) -> None:
    """Check that the call is refused by one line and by a plan, whose message may be another."""
    refuses(error, match, lambda: case.call(**changes))
    refused_by_a_plan(case, error, plans or match, **changes)


def refused_by_a_plan(case: Case, error: Any, match: str, **changes: Any) -> None:
    with case.plan() as plan:
        refuses(error, match, lambda: plan(**case.given(**changes)))


def named(argument: str) -> str:
    """Return a pattern that finds an argument's name."""
    return rf"(?<!\w){re.escape(argument)}(?!\w)"


def test_host_arrays_and_no_arrays(case: Case) -> None:
    for argument in case.arguments:
        for wrong in (case.array(argument).numpy(), [1.0], 5, "x", case.array(argument).spec):
            refused(case, ARRAY, named(argument), **{argument: wrong})
    for operand in case.operation.reads:
        refused(case, ARRAY, named(operand), **{operand: None})
    for argument in {*case.operation.caller_provided.values()} - {"out"}:
        refused(case, ARGUMENT, rf"{named(argument)} has to be given", **{argument: None})


def test_arrays_of_another_device(case: Case) -> None:
    with dnn.Handle(EmulatedDevice(9, capacity="1 MiB")) as other_handle:
        for argument in case.arguments:
            array = other_handle.empty(case.array(argument).spec)
            refused(case, ARRAY, rf"{named(argument)}.*emulated:9", **{argument: array})


def test_operands_of_another_rank_shape_or_dtype(case: Case) -> None:
    """A one-line call may name the other argument of the misfit; a plan names this one."""
    anything = "|".join(map(named, (*case.arguments, *case.operation.writes, "the arrays")))
    for operand in case.operation.reads:
        shape = case.specs[operand].shape
        for wrong in (
            (*shape, 1),
            shape[:-1],
            shape[:2],
            (*shape[:-1], shape[-1] + 3),
            (shape[0], shape[1] + 1, *shape[2:]),
        ):
            if len(wrong) == len(shape) and case.sample.loose:
                refused_by_a_plan(
                    case, ARGUMENT, named(operand), **{operand: case.handle.empty(wrong)}
                )
                continue
            refused(case, ARGUMENT, anything, named(operand), **{operand: case.handle.empty(wrong)})
        for dtype in ("float64", "float16"):
            array = case.handle.empty(shape, dtype)
            # An H200 sums float16 into float32.
            is_served = case.sample.converts or (case.name, dtype) == ("reduce_tensor", "float16")
            if is_served:
                refused_by_a_plan(
                    case, ARGUMENT, rf"{named(operand)}.*made for", **{operand: array}
                )
                continue
            # of what may be converted cuDNN says which types
            error = dnn.CudnnliteError if case.operation.mixed else ARGUMENT
            refused(case, error, anything, rf"{named(operand)}.*made for", **{operand: array})
        if OPERATIONS[case.name].dtypes:
            refused(
                case,
                ARGUMENT,
                rf"{named(operand)} is int64; |; needed: int64",
                named(operand),
                **{operand: case.handle.empty(shape, "int64")},
            )


def test_out_of_another_rank_shape_or_dtype(case: Case) -> None:
    for argument in map(case.operation.argument, case.operation.writes):
        shape = case.array(argument).shape
        arguments = (
            "|".join(map(named, case.arguments))
            if case.operation.caller_provided
            else named(argument)
        )
        for wrong in (
            (*shape, 1),
            shape[:-1],
            (shape[0] + 1, *shape[1:]),
            (*shape[:-1], shape[-1] + 1),
        ):
            other = {argument: case.handle.empty(wrong)}
            if case.operation.reads and not (
                case.sample.loose and case.operation.caller_provided and len(wrong) == len(shape)
            ):
                refused(case, ARGUMENT, arguments, named(argument), **other)
            refused_by_a_plan(case, ARGUMENT, named(argument), **other)
        for dtype in ("float64", "float16"):
            out = case.handle.empty(shape, dtype)
            fill(out, PATTERN)
            # a convolution may be written in another type, and cuDNN says which
            error = dnn.CudnnliteError if case.operation.mixed else ARGUMENT
            told_of = "|".join((arguments, *map(named, case.operation.writes)))
            if case.operation.reads and not case.sample.converts:
                refused(case, error, told_of, rf"{named(argument)}.*made for", **{argument: out})
            refused_by_a_plan(case, ARGUMENT, rf"{named(argument)}.*made for", **{argument: out})
            assert (memory_of(out) == PATTERN).all()
            out.close()


def test_a_plan_takes_no_other_layout(case: Case) -> None:
    with case.plan() as plan:
        for layout in ("last", "strided"):
            other = Case(case.handle, case.name, layout=layout)
            for argument in case.arguments:
                if other.array(argument).spec != case.array(argument).spec:
                    operands = case.given(**{argument: other.array(argument)})
                    refuses(
                        ARGUMENT,
                        rf"{named(argument)}.*made for",
                        lambda operands=operands: plan(**operands),
                    )


def test_read_only_arrays(case: Case) -> None:
    def locked(array: dnn.DeviceArray) -> dnn.DeviceArray:
        return dnn.DeviceArray(
            array.spec, array.device, array.ptr, array, array.stream, readonly=True
        )

    for argument in map(case.operation.argument, case.operation.writes):
        refused(
            case,
            ARRAY,
            rf"{named(argument)}.*read-only",
            **{argument: locked(case.array(argument))},
        )
    fresh = {case.operation.argument(operand): case.fresh(operand) for operand in case.outs}
    case.assert_right(
        case.call(**fresh, **{name: locked(array) for name, array in case.arrays.items()})
    )


def test_overlaps(case: Case) -> None:
    memory, operation = case.handle.empty((1 << 14,)), case.operation
    for number, written in enumerate(operation.writes):
        out, argument = case.outs[written], operation.argument(written)
        occupants = case.arrays | {name: case.outs[name] for name in operation.writes[:number]}
        for operand, array in occupants.items():
            last, other = array.nbytes - array.dtype.itemsize, operation.argument(operand)
            for operand_offset, out_offset in (
                (0, 0),
                (0, last),
                (out.nbytes - array.dtype.itemsize, 0),
            ):
                if (
                    operand_offset == out_offset
                    and operand in operation.in_place
                    and array.spec == out.spec
                ):
                    continue
                moved, over = (
                    part_of(memory, array.spec, operand_offset),
                    part_of(memory, out.spec, out_offset),
                )
                message = rf"{named(argument)} overlaps {operand}\b"
                refused(case, ARGUMENT, message, **{other: moved, argument: over})
        spec = dnn.TensorSpec(out.shape, strides=[1] * out.spec.rank)
        if max(out.shape) < out.spec.size:
            refused(
                case, ARGUMENT, named(argument), **{argument: part_of(memory, spec)}
            )  # over itself


@every_operation
def test_overlaps_in_a_later_call_of_a_plan(handle: dnn.Handle, name: str) -> None:
    """A plan compares new addresses of what is given, also where other outputs are new."""
    case = Case(handle, name)
    memory, operation = handle.empty((1 << 14,)), case.operation
    for written, operand in product(operation.writes, operation.reads):
        array, out, argument = case.arrays[operand], case.outs[written], operation.argument(written)
        moved = part_of(memory, array.spec)
        over = part_of(memory, out.spec, array.nbytes - array.dtype.itemsize)
        arguments, overlapping = case.given(), case.given(**{operand: moved, argument: over})
        if written in operation.call_operands:
            arguments = {key: (case.arrays | case.outs)[key] for key in operation.call_operands}
            overlapping = arguments | {operand: moved, written: over}
        with case.plan() as plan:
            plan(**arguments)
            message = rf"{named(argument)} overlaps {operand}\b"
            refuses(ARGUMENT, message, partial(plan, **overlapping))


@every_operation
@pytest.mark.parametrize("layout", LAYOUTS)
def test_in_place(handle: dnn.Handle, name: str, layout: str) -> None:
    """In place, cuDNN gives the same numbers, in one line and by a plan.

    In-place calls that cuDNN does not support are refused.
    """
    for operand in OPERATIONS[name].in_place:
        case = Case(handle, name, layout=layout)
        with case.plan() as plan:
            for by_plan in (False, True):
                array = upload(handle, case.specs[operand], case.hosts[operand])
                changes = {operand: array, case.target: array}
                assert (plan(**case.given(**changes)) if by_plan else case.call(**changes)) is array
                case.assert_right(array)


def test_closed_arrays(case: Case) -> None:
    for argument in case.arguments:
        array = case.handle.empty(case.array(argument).spec)
        array.close()
        refused(case, dnn.errors.ClosedError, "DeviceArray was closed", **{argument: array})


def test_closed_handles_and_plans(case: Case) -> None:
    open_handle = case.handle
    with dnn.Handle(open_handle.device) as other:
        left = Case(other, case.name).plan()
    plan = case.plan()
    plan.close()
    plan.close()
    for closed, match in ((plan, "^plan of .* was closed$"), (left, "Handle was closed")):
        assert closed.closed
        assert repr(closed).startswith("<closed")
        refuses(dnn.errors.ClosedError, match, lambda closed=closed: closed(**case.given()))
    for handle, error in ((other, dnn.errors.ClosedError), ("handle", ARGUMENT), (None, ARGUMENT)):
        case.handle = handle
        refuses(error, "(?i)handle", case.call)
        refuses(error, "(?i)handle", case.plan)
    case.handle = open_handle


def test_another_thread(case: Case) -> None:
    caught: list[str] = []

    def run() -> None:
        for call in (case.call, case.plan, lambda: plan(**case.given())):
            try:
                call()
            except dnn.errors.ThreadError as error:
                caught.append(str(error))

    with case.plan() as plan:
        thread = threading.Thread(target=run, name="someone else")
        thread.start()
        thread.join()
    assert len(caught) == 3
    assert all("someone else" in message for message in caught)


def test_scalars_and_options_that_are_none(case: Case) -> None:
    if case.makes_new and "beta" in case.operation.scalars:
        refuses(ARGUMENT, r"\bbeta\b.*\bout\b", lambda: case.call(out=None, beta=1.0))
        with case.plan(beta=0.5) as plan:
            refuses(ARGUMENT, r"\bbeta\b.*\bout\b", lambda: plan(**case.arrays))
    for wrong in ("x", None, 1j, [1.0], np.zeros(2)):
        for scalar in case.operation.scalars:
            if wrong is None and scalar in case.operation.shared_scalars:
                continue  # the value of alpha or beta
            refuses(
                ARGUMENT,
                rf"\b{scalar}=",
                lambda scalar=scalar, wrong=wrong: case.call(**{scalar: wrong}),
            )
            refuses(
                ARGUMENT,
                rf"\b{scalar}=",
                lambda scalar=scalar, wrong=wrong: case.plan(**{scalar: wrong}),
            )
    for scalar in case.operation.scalars:  # C would be given an infinity
        if next(iter((*case.specs.values(), case.out.spec))).dtype != dnn.DataType.DOUBLE:
            refuses(
                ARGUMENT,
                rf"\b{scalar}=1e\+60; allowed",
                lambda scalar=scalar: case.plan(**{scalar: 1e60}),
            )
    good = case.options
    for option in good:
        numbers = (99, dnn.MathType.FMA) if case.operation.options[option] is not float else ()
        for wrong in ("nonsense", None, {"mode": 1}, *numbers, case.out.spec):
            case.options = good | {option: wrong}
            refuses(ARGUMENT, rf"\b{option}=", case.call)
            refuses(ARGUMENT, rf"\b{option}=", case.plan)
    case.options = good


def test_a_workspace_of_ones_own(case: Case) -> None:
    """A plan takes it whether it needs one or not, and lets it overlap nothing."""
    fresh = {case.operation.argument(operand): case.fresh(operand) for operand in case.outs}
    with case.plan() as plan:
        workspace = case.handle.empty((plan.workspace + 256,), "uint8")
        case.assert_right(plan(**case.given(**fresh), workspace=workspace))
        for argument in case.arguments:
            over = dnn.DeviceArray(
                workspace.spec,
                workspace.device,
                case.array(argument).ptr,
                workspace,
                workspace.stream,
            )
            refuses(
                ARGUMENT,
                r"workspace overlaps",
                lambda over=over: plan(**case.given(), workspace=over),
            )


# ---------------------------------------------------------------- what is right


@every_operation
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_scalars(handle: dnn.Handle, name: str, layout: str) -> None:
    """Into poisoned memory, or over what was there; the gaps keep what they held."""
    case = Case(handle, name, layout=layout)
    gaps = gap_mask(case.out_spec)
    packed = case.operation.filters | operands_of_one_layout(case.operation)
    assert gaps.any() == (layout == "strided" and case.first not in packed)
    old = -2.0 if case.sample.subtracts else 2.0
    pairs = ((1.0, 0.0), (-0.5, 0.0), (1.0, 1.0), (1.0, old), (0.25, old))
    has = case.operation.scalars
    for alpha, beta in {
        (a if "alpha" in has else 1.0, b if "beta" in has else 0.0) for a, b in pairs
    }:
        scalars = {name: value for name, value in (("alpha", alpha), ("beta", beta)) if name in has}
        with case.plan(alpha, beta) as plan:
            for call in (
                partial(case.call, **scalars),
                lambda **operands: plan(**case.given(**operands)),
            ):
                fresh = {
                    case.operation.argument(operand): case.fresh(operand, beta)
                    for operand in case.outs
                }
                if not (beta or case.first in case.operation.caller_provided):
                    fresh[case.target] = upload(
                        handle, case.out_spec, np.full_like(case.old, np.nan)
                    )
                elif case.first not in case.operation.caller_provided:
                    fresh[case.target] = upload(handle, case.out_spec, case.old)
                case.assert_right(call(**fresh), alpha, beta)
                out = fresh[case.target]
                case.assert_right(
                    (out, *[*fresh.values()][1 : len(case.operation.outputs)]), alpha, beta
                )
                assert (memory_of(out)[gaps] == PATTERN).all()
        if not beta and case.makes_new and case.operation.outputs == case.operation.writes:
            y = case.call(
                out=None, **{name: value for name, value in scalars.items() if name == "alpha"}
            )
            case.assert_right(y, alpha)
            assert (
                layout == "strided" or (y[0] if isinstance(y, tuple) else y).spec == case.out_spec
            )
    for operand, host in case.hosts.items():
        np.testing.assert_array_equal(case.arrays[operand].numpy(), host)  # which was only read


@every_operation
def test_an_empty_batch_calls_nothing(
    handle: dnn.Handle, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(handle, name)
    filters = case.operation.filters | case.sample.packed
    empty = {
        o: a if o in filters else handle.empty((0, *a.shape[1:])) for o, a in case.arrays.items()
    }
    out = handle.empty((0, *case.out.shape[1:]))
    if not case.operation.reads:
        calls = count_calls(monkeypatch, handle.api, case.operation.function)
        assert case.call(**{case.target: out}) is out
        assert calls == []
        return
    if name in SUMS_OVER_IMAGES:
        assert (case.call(**empty).numpy() == 0).all()
        return
    has_out_shape = case.operation.caller_provided or operands_of_one_layout(
        case.operation
    )  # what says the shape of the result
    if (
        has_out_shape
        or len(case.outs) > 1
        or case.out.shape[0] != next(iter(case.arrays.values())).shape[0]
    ):
        # what it writes would not be empty: a gradient of parameters, say
        refuses(ARGUMENT, "|".join(map(named, case.arguments)), lambda: case.call(**empty))
        return
    calls = count_calls(monkeypatch, handle.api, case.operation.function)
    with case.plan(operands=empty, out=None) as plan, record_problems() as problems:
        assert plan.choice is None
        assert plan.workspace == 0
        assert plan.descriptors == {}
        assert plan(**empty, out=out) is out
        for y in (plan(**empty), case.call(**empty, out=None), case.call(**empty, out=out)):
            assert y.spec == out.spec
            assert y.numpy().shape == out.shape
    assert calls == []
    assert len(problems) == 0
    refuses(ARGUMENT, r"\bout\b", lambda: case.call(**empty))


@every_operation
def test_arrays_of_another_stream(handle: dnn.Handle, name: str) -> None:
    with dnn.Handle(handle.device) as other:
        other.stream = handle.device.create_stream()
        case = Case(other, name)
        case.handle = handle
        case.check()


@every_operation
def test_many_calls_leave_nothing_behind(handle: dnn.Handle, name: str) -> None:
    """Make 10,000 calls, and make and close plans between them.

    On the emulated device, which is slow, fifty.
    """
    case = Case(handle, name)
    ways: tuple[Any, ...] = ({}, {"out": None}) if case.makes_new else ({},)
    plan, results = case.plan(), []
    for _ in range(20):  # the plans that the handle keeps, and more addresses than a plan remembers
        results += [case.call(**changes) for changes in ways]
        results += [plan(**(case.arrays if case.makes_new else case.given())) for _ in ways]
        case.check()
    del results
    handle.synchronize()
    census = Census(handle.device)
    for number in range(calls_of(handle) // 2):
        plan(**(case.arrays if case.makes_new and number % 2 else case.given()))
        case.call(**ways[number % len(ways)])
        if number % 100 == 0:
            case.plan().close()
    handle.synchronize()
    case.check()
    assert census.natives == []
    assert census.memory <= 0
    plan.close()


@every_operation
def test_calls_are_recorded_as_problems(handle: dnn.Handle, name: str) -> None:
    case = Case(handle, name)
    with case.plan() as plan, record_problems() as problems:
        case.call()
        plan(**case.given())
        scalars = case.scalars(2, 0.5)
        case.call(**scalars)
    other = {case.problem.replace(**scalars): 1} if scalars else {case.problem: 3}
    assert {entry.problem: entry.count for entry in problems} == {case.problem: 2} | other
    for problem in (case.problem, plan.problem, problems[-1].problem):
        plain = json.loads(json.dumps(problem.to_plain()))
        for again in (
            problem_from_plain(plain),
            pickle.loads(pickle.dumps(problem)),
            problem.replace(),
        ):
            assert again == problem
            assert hash(again) == hash(problem)
            assert type(again) is type(problem)
            assert again.operation is case.operation


@each_extent
@every_operation
def test_random_calls_agree(device: Any, name: str, extent: str) -> None:
    """One line, a plan, and a call into an output, with what NumPy or ONNX says in float64."""
    counts: Counter[str] = Counter()

    @settings(max_examples=EXAMPLES[extent], derandomize=True, database=None)
    @given(drawn(name))
    def check(arguments: dict[str, Any]) -> None:
        try:
            case = Case(handle, name, **arguments)
            case.check()
        except (*UNSUPPORTED, ARGUMENT, dnn.errors.BadParamError) as error:
            refusal = SAMPLES[name].refused
            if not isinstance(error, UNSUPPORTED) and not (refusal and refusal in str(error)):
                raise
            counts["refused"] += 1
            return
        with case.plan() as plan:
            fresh = {case.operation.argument(operand): case.fresh(operand) for operand in case.outs}
            case.assert_right(plan(**case.given(**fresh)))
        if case.makes_new:
            with case.plan(out=None) as plan:
                case.assert_right(plan(**case.arrays))
            case.assert_right(case.call(out=None))
        counts["right"] += 1

    with dnn.Handle(device) as handle:
        check()
    assert counts["right"] > counts["refused"]


@pytest.mark.parametrize(
    "name", [n for n in GRADIENTS if SAMPLES[forward_of(OPERATIONS[n]).name].reference]
)
def test_a_gradient_is_the_slope_of_the_forward_oracle(handle: dnn.Handle, name: str) -> None:
    """Compare with central differences in float64, one value after the other.

    Other gradients have tests of their own.
    """
    case, step = Case(handle, name, dtype="float64"), 1e-6
    forward = forward_of(case.operation)
    shapes = {
        operand: case.outs[f"d{operand}"].shape if f"d{operand}" in case.outs else 1
        for operand in forward.reads
    }
    hosts = {operand: case.hosts.get(operand, np.zeros(shape)) for operand, shape in shapes.items()}
    hosts |= {operand: np.zeros(1) for operand in forward.caller_provided}

    def loss() -> float:
        return float(
            (
                reference_of(forward.name)(*hosts.values(), **case.options)[0] * case.hosts["dy"]
            ).sum()
        )

    case.check()
    for written, out in case.outs.items():
        values = hosts[written.removeprefix("d")]
        slopes = np.zeros_like(values)
        for place in np.ndindex(*values.shape):
            middle, ends = values[place], []
            for sign in (1, -1):
                values[place] = middle + sign * step
                ends.append(loss())
            values[place], slopes[place] = middle, (ends[0] - ends[1]) / (2 * step)
        assert_near(out.numpy(), slopes, 1e-7, np.abs(case.hosts["dy"]).max())


# ---------------------------------------------------------------- where a C call fails


class CallThatFails:
    """A call of an operation, on a device of its own, one of whose C calls may be made to fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, planned: bool) -> None:
        self.world = World(monkeypatch)
        self.name, self.planned = name, planned
        # The C functions that write.
        self.runs = {OPERATIONS[name].function, "cudnnBackendExecute"}
        self.facts: dict[str, Any] = {}

    def run(self) -> dnn.CudnnError | None:
        """Make the call; return the error if it fails.

        Nothing may be written before a kernel has run.
        """
        error = None
        try:
            with dnn.Handle(self.world.device) as handle:
                case = Case(handle, self.name)
                self.facts = case.problem.specs | case.problem.options
                self._call(case)
        except dnn.CudnnError as caught:
            error = caught.with_traceback(None)
        self.world.ledger.disarm()
        return error

    def _call(self, case: Case) -> None:
        fill(case.out, PATTERN)
        memory = memory_of(case.out)
        try:
            if self.planned:
                with case.plan() as plan:
                    plan(**case.given())
            else:
                case.call()
        finally:
            if self.runs.isdisjoint(self.world.ledger.finished):
                np.testing.assert_array_equal(memory_of(case.out), memory)


def calls_to_fail(stacks: list[Any], extent: str) -> list[int]:
    """Return the numbers of C calls: of those that the same lines make, the first two and the last.

    A convolution makes 229 of them, most in loops over the engines that cuDNN names.  A sample has
    the last alone.
    """
    numbers_by_stack: dict[Any, list[int]] = {}
    for number, stack in enumerate(stacks, 1):
        numbers_by_stack.setdefault(stack, []).append(number)
    first = {SAMPLE: 0, ALL: 2}[extent]
    return sorted(
        {n for numbers in numbers_by_stack.values() for n in (*numbers[:first], numbers[-1])}
    )


# One test for both would keep a process busy for twice as long, at the end of a run.
@each_extent
@pytest.mark.parametrize("planned", [False, True], ids=["call", "plan"])
@every_operation
def test_each_c_call_fails_once(
    monkeypatch: pytest.MonkeyPatch, name: str, planned: bool, extent: str
) -> None:
    """The error names the function and has the specs; nothing is leaked, nor written too early."""
    good = CallThatFails(monkeypatch, name, planned)
    good.world.ledger.record_stacks()
    assert good.run() is None
    started = good.world.ledger.started
    assert sum(function in good.runs for function in started) == 1
    numbers = calls_to_fail(good.world.ledger.stacks, extent)
    assert len(numbers) > 4
    for number in numbers:
        assert_fails_cleanly(CallThatFails(monkeypatch, name, planned), number, started)


def assert_fails_cleanly(call: CallThatFails, number: int, started: list[str]) -> None:
    """Let one C call of a good call fail, by its number, and check the state after it."""
    function = started[number - 1]
    at = f"call {number}, {function}"
    ledger = call.world.ledger
    ledger.fail(number)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        error = call.run()
        gc.collect()
    assert ledger.failed == function, at
    assert error is not None, at
    assert error.function == function, at
    assert f"{function} returned INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED" in str(error), at
    short = function.removeprefix("cudnn").removeprefix("Backend")
    is_destroyer = short.startswith("Destroy")
    if function not in HANDLES_OWN and not is_destroyer:
        assert error.specs == call.facts, at
    leaked = {short.removeprefix("Destroy") or "Handle": 1} if is_destroyer else {}
    assert ledger.leaked() == leaked, at
    assert call.world.device.memory.used == 0, at
    assert caught == [], at
