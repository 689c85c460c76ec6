"""Gradients of convolutions and the transposed convolution.

Every way to call them is compared with ONNX's Conv and PyTorch.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from helpers.extents import each_pair
from helpers.faults import why_engine_is_wrong
from helpers.refusals import ARGUMENT, refuses
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import HAS_TORCH, onnx_convolution, onnx_gradient_of_w, onnx_gradient_of_x
from tolerances import assert_close

import cudnnlite as dnn
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.graph.convolution_formulas import add_input, add_output
from cudnnlite.operations.convolution.graphs import data_of
from cudnnlite.problems.catalogue import OPERATIONS
from cudnnlite.types import Problem
from cudnnlite.workbench.tuning.accuracy import why_wrong
from cudnnlite.workbench.tuning.convolution_reference import ConvolutionReference

from .problems import (
    FLOATS,
    LAST,
    UNSUPPORTED,
    errors_of,
    poisoned,
    random_values,
    upload,
    with_gaps,
)

KINDS = ("data", "filter")
every_kind = pytest.mark.parametrize("kind", KINDS)
# Relative L2 errors. [an H200's worst: 1e-14, 5.3e-7 and 7.8e-4 in TF32, 5e-3 by Winograd and
# ALGO_0, 3.2e-2 by ALGO_0]
BOUNDS = {"float64": 1e-13, "float32": 2e-6, "float16": 1e-2, "bfloat16": 5e-2}
TF32_BOUND, WINOGRAD_BOUND = 1.2e-3, 3e-3
# name: (x shape, w shape, ConvolutionSpec options)
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "3x2": ((2, 5, 9, 7), (6, 5, 3, 2), {}),
    "padded": ((3, 4, 8, 9), (6, 4, 3, 3), {"padding": 1}),
    "strided": ((2, 4, 11, 9), (6, 4, 3, 2), {"padding": (2, 1), "stride": (2, 3)}),
    "dilated_groups": (
        (2, 4, 9, 8),
        (6, 2, 3, 2),
        {"padding": (1, 2), "dilation": (2, 3), "groups": 2},
    ),
    "depthwise": ((2, 6, 7, 9), (12, 1, 3, 3), {"padding": 1, "groups": 6, "stride": 2}),
    "rotated": (
        (1, 4, 7, 6),
        (5, 4, 3, 2),
        {"padding": (0, 1), "mode": "convolution", "stride": (1, 2)},
    ),
    "1x1": ((2, 8, 5, 7), (4, 8, 1, 1), {"stride": 2}),
    "1d": ((2, 4, 17), (6, 2, 5), {"padding": 3, "stride": 2, "dilation": 2, "groups": 2}),
    "3d": (
        (2, 4, 5, 7, 6),
        (6, 2, 3, 2, 1),
        {"padding": (1, 0, 1), "stride": (1, 2, 1), "groups": 2, "dilation": (2, 1, 1)},
    ),
    "one_position": ((3, 4, 5, 6), (7, 4, 5, 6), {}),
}


class Case:
    """A gradient's operands on a device, and what has to come out of it."""

    def __init__(
        self,
        handle: dnn.Handle,
        kind: str,
        shapes: Any,
        dtype: str = "float32",
        layout: str = "first",
        seed: int = 0,
    ) -> None:
        x_shape, w_shape, options = shapes
        rng = np.random.default_rng(seed)
        self.handle, self.kind, self.dtype = handle, kind, dtype
        self.conv = dnn.ConvolutionSpec(**{"math_type": "fma", **options})
        name = LAST[len(x_shape)] if layout == "last" else None
        y_shape = self.conv.output_shape(x_shape, w_shape)

        def spec_of(shape: tuple[int, ...], *, filter_: bool = False) -> dnn.TensorSpec:
            return (
                with_gaps(shape, dtype)
                if layout == "strided" and not filter_
                else dnn.TensorSpec(shape, dtype, name)
            )

        specs = {"x": spec_of(x_shape), "w": spec_of(w_shape, filter_=True), "dy": spec_of(y_shape)}
        hosts = {role: random_values(rng, spec.shape, dtype) for role, spec in specs.items()}
        spatial = len(x_shape) - 2
        steps = (
            self.conv.pads(spatial),
            *self.conv.steps(spatial)[1:],
            self.conv.groups,
            self.conv.mode == dnn.enums.ConvolutionMode.CONVOLUTION,
        )
        if kind == "data":
            self.read, self.like = ("w", "dy"), "x"
            self.sums = onnx_gradient_of_x(
                x_shape, hosts["w"].astype(np.float64), hosts["dy"], *steps
            )
        else:
            self.read, self.like = ("x", "dy"), "w"
            self.sums = onnx_gradient_of_w(
                hosts["x"].astype(np.float64), w_shape, hosts["dy"], *steps
            )
        self.arrays = [upload(handle, specs[role], hosts[role]) for role in self.read]
        self.spec, self.old = specs[self.like], hosts[self.like]
        self.operation = OPERATIONS[f"convolution_backward_{kind}"]

    @property
    def function(self) -> Any:
        return getattr(dnn, f"convolution_backward_{self.kind}")

    def problem(self, out: Any = None, **scalars: float) -> Problem:
        """Return the call's problem.

        `out` is a spec or an array, with the case's strides by default.
        """
        problem: Problem = self.function.problem(
            *self.arrays, self.conv, out=self.spec if out is None else out, **scalars
        )
        return problem

    def fresh(self, beta: float = 0.0) -> dnn.DeviceArray:
        return (
            upload(self.handle, self.spec, self.old) if beta else poisoned(self.handle, self.spec)
        )

    def call(self, **options: Any) -> dnn.DeviceArray:
        result: dnn.DeviceArray = self.function(self.handle, *self.arrays, self.conv, **options)
        return result

    def check(
        self,
        result: dnn.DeviceArray,
        alpha: float = 1.0,
        beta: float = 0.0,
        bound: float | None = None,
    ) -> None:
        expected = alpha * self.sums + beta * self.old.astype(np.float64)
        assert_close(
            result.numpy(),
            expected,
            BOUNDS[self.dtype] if bound is None else bound,
            alpha * self.sums,
        )


@each_pair(name=CASES, dtype=FLOATS, layout=["first", "last", "strided"], kind=KINDS)
def test_numbers(handle: dnn.Handle, kind: str, name: str, dtype: str, layout: str) -> None:
    """Call through engines, and through the descriptor call where it has such a form.

    With scalars, the result is added to the old output.
    """
    case = Case(handle, kind, CASES[name], dtype, layout)
    case.check(case.call(out=case.fresh()))
    case.check(case.call(**{case.like: case.spec}))
    case.check(case.call(out=case.fresh(1), alpha=-0.5, beta=2.0), -0.5, 2.0)
    try:
        result = case.call(out=case.fresh(1), alpha=0.5, beta=-1.0, interface="descriptor")
    except UNSUPPORTED:
        assert layout != "first"
    else:
        case.check(result, 0.5, -1.0)


@each_pair(math_type=["fma", "default"], dtype=FLOATS, kind=KINDS)
def test_every_algorithm(handle: dnn.Handle, kind: str, dtype: str, math_type: str) -> None:
    """Apply each row of cuDNN's ranking and of its search.

    The test does not pass by skipping all of them.
    """
    counts: Counter[str] = Counter()
    for name in ("padded", "strided", "1d", "one_position", "3d"):
        x_shape, w_shape, options = CASES[name]
        case = Case(handle, kind, (x_shape, w_shape, options | {"math_type": math_type}), dtype)
        like = {case.like: case.spec}
        ranked = case.function.heuristic(handle, *case.arrays, case.conv, **like)
        table = case.function.find(handle, *case.arrays, case.conv, **like)
        assert {row.algorithm for row in ranked} == {row.algorithm for row in table}
        assert {row.algorithm for row in ranked if row.ok} == {
            row.algorithm for row in table if row.ok
        }
        for row in (*ranked, *table):
            if not row.ok:
                with pytest.raises(dnn.NotSupportedError):
                    case.call(**like, algorithm=row.algorithm)
                continue
            counts[row.algorithm.name] += 1
            winograd = "WINOGRAD" in row.algorithm.name
            tf32 = dtype == "float32" and math_type == "default"
            bound = (
                max(TF32_BOUND * tf32, WINOGRAD_BOUND * (winograd and dtype == "float32")) or None
            )
            for algorithm in (row, row.algorithm, row.algorithm.name):
                case.check(case.call(out=case.fresh(), algorithm=algorithm), bound=bound)
            assert row.deterministic == (row.algorithm.name not in ("ALGO_0", "ALGO_3"))
    assert counts["ALGO_0"] == counts["ALGO_1"] == 10
    assert counts["WINOGRAD"] == 0


@every_kind
def test_a_search_overwrites_out_unless_beta_is_wanted(handle: dnn.Handle, kind: str) -> None:
    case = Case(handle, kind, CASES["padded"])
    out = case.fresh(1)
    table = case.function.find(handle, *case.arrays, case.conv, out=out, beta=1.0)
    np.testing.assert_array_equal(out.numpy(), case.old)
    case.function.find(handle, *case.arrays, case.conv, out=out)
    case.check(out, bound=WINOGRAD_BOUND)
    best = (
        table.best(workspace_limit=0, deterministic=True)
        if any(row.ok and row.deterministic and not row.workspace for row in table)
        else table.best(deterministic=True)
    )
    case.check(case.call(out=case.fresh(), algorithm=best), bound=WINOGRAD_BOUND)


@every_kind
@pytest.mark.parametrize("name", CASES)
def test_plans_say_what_they_chose(handle: dnn.Handle, kind: str, name: str) -> None:
    case = Case(handle, kind, CASES[name])
    like = {case.like: case.spec}
    plans = {}
    for interface in (None, "graph", "descriptor"):
        with case.function.plan(
            handle, *case.arrays, case.conv, **like, interface=interface
        ) as plan:
            case.check(plan(*case.arrays))
            case.check(plan(*case.arrays, out=case.fresh()))
            plans[interface] = plan.choice
    assert isinstance(plans[None].algorithm, dnn.types.Engine)
    assert plans[None].algorithm == plans["graph"].algorithm
    assert isinstance(plans["descriptor"].algorithm, case.operation.algorithms.kind)
    assert plans[None].math_type == dnn.MathType.FMA
    case.check(case.call(out=case.fresh(), algorithm=plans[None]))
    case.check(case.call(out=case.fresh(), algorithm=plans[None].algorithm))


@every_kind
def test_plans_replay_themselves(handle: dnn.Handle, kind: str) -> None:
    """For the addresses that they were first called with, and for others."""
    case = Case(handle, kind, CASES["strided"])
    with case.function.plan(
        handle, *case.arrays, case.conv, **{case.like: case.spec}, replay=True
    ) as plan:
        outs = [case.fresh() for _ in range(3)]
        for out in (*outs, *outs):
            case.check(plan(*case.arrays, out=out))
        moved = [upload(handle, array.spec, array.numpy()) for array in case.arrays]
        case.check(plan(*moved, out=outs[0]))
        assert plan.replay is not None


@every_kind
def test_unaligned_operands_take_the_descriptor_call(handle: dnn.Handle, kind: str) -> None:
    case = Case(handle, kind, CASES["padded"])
    memory = handle.empty((case.spec.size + 1,))
    out = dnn.DeviceArray(case.spec, handle.device, memory.ptr + 4, memory, handle.stream)
    case.check(case.call(out=out))
    with case.function.plan(handle, *case.arrays, case.conv, out=out) as plan:
        assert "not aligned" in plan.choice.remark
        case.check(plan(*case.arrays, out=out))


@every_kind
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_operands_are_converted_to_another_layout(
    handle: dnn.Handle, kind: str, layout: str
) -> None:
    case = Case(handle, kind, CASES["strided"], layout="first" if layout == "NHWC" else "last")
    row = case.function.heuristic(handle, *case.arrays, case.conv, **{case.like: case.spec}).best()
    other = dnn.AlgorithmResult(row.algorithm, row.math_type, layout=layout)
    for alpha, beta in ((1.0, 0.0), (0.5, -2.0)):
        case.check(
            case.call(out=case.fresh(beta), alpha=alpha, beta=beta, algorithm=other), alpha, beta
        )
    with case.function.plan(
        handle, *case.arrays, case.conv, out=case.spec, algorithm=other
    ) as plan:
        assert plan.workspace >= sum(array.nbytes for array in case.arrays)


# ------------------------------------------------------------ shapes that are told, and that follow


@every_kind
def test_the_result_may_be_told_in_every_way(handle: dnn.Handle, kind: str) -> None:
    case = Case(handle, kind, CASES["strided"])
    ways = (case.spec.shape, [*case.spec.shape], case.spec, case.fresh())
    filters = (dnn.FilterSpec(case.spec.shape),) if kind == "filter" else ()
    for way in (*ways, *filters):
        case.check(case.call(**{case.like: way}))
        case.check(case.call(**{case.like: way}, out=case.fresh()))
        with case.function.plan(handle, *case.arrays, case.conv, **{case.like: way}) as plan:
            case.check(plan(*case.arrays))
        assert len(case.function.heuristic(handle, *case.arrays, case.conv, **{case.like: way})) > 3
    last = dnn.TensorSpec(case.spec.shape, layout="NHWC")
    assert case.call(**{case.like: last}, interface="graph").layout == "NHWC"
    follows = Case(handle, kind, CASES["dilated_groups"])
    follows.check(follows.call())
    assert follows.call().shape == follows.spec.shape
    for layout in ("first", "last"):
        other = Case(handle, kind, CASES["padded"], layout=layout)
        assert other.call().layout == {"first": "NCHW", "last": "NHWC"}[layout]


def test_an_empty_batch(handle: dnn.Handle) -> None:
    w, none = handle.array(np.ones((4, 3, 3, 3), np.float32)), handle.empty((0, 4, 6, 6))
    assert dnn.convolution_backward_data(handle, w, none).shape == (0, 3, 8, 8)
    assert dnn.convolution_backward_data(handle, w, none, x=(0, 3, 8, 8)).shape == (0, 3, 8, 8)


# ---------------------------------------------------------------- transposed


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_gradients_of_parameters_of_an_empty_batch_are_zero(
    handle: dnn.Handle, layout: str, dtype: str, beta: float
) -> None:
    x, dy = handle.empty((0, 3, 8, 8), dtype, layout), handle.empty((0, 4, 6, 6), dtype, layout)
    before = (
        np.random.default_rng(0).integers(-8, 9, (4, 3, 3, 3))
        if beta
        else np.full((4, 3, 3, 3), np.nan)
    )
    stored = before.astype(np.float32)
    dw = handle.array(stored, dtype=dtype, layout=layout)
    db = handle.array(stored[:1, :1].repeat(4, 1)[..., :1, :1], dtype=dtype, layout=layout)
    db_before = db.numpy().astype(np.float64)
    for out, held, call in (
        (dw, stored, lambda: dnn.convolution_backward_filter(handle, x, dy, beta=beta, out=dw)),
        (db, db_before, lambda: dnn.convolution_backward_bias(handle, dy, beta=beta, out=db)),
    ):
        assert call() is out
        expected = beta * held if beta else np.zeros_like(held)
        np.testing.assert_array_equal(out.numpy().astype(np.float64), expected)


def test_a_plan_and_a_graph_of_an_empty_batch(handle: dnn.Handle) -> None:
    x, dy = handle.empty((0, 3, 8, 8)), handle.empty((0, 4, 6, 6))
    dw = handle.full((4, 3, 3, 3), np.nan, "float32")
    with dnn.convolution_backward_filter.plan(handle, x, dy, w=dw.spec) as plan:
        assert (plan.choice, plan.workspace) == (None, 0)
        with dnn.capture(handle) as graph:
            plan(x, dy, out=dw)
        with graph:
            graph.launch()
        assert (dw.numpy() == 0).all()
        assert (plan(x, dy).numpy() == 0).all()


def test_a_tuned_handle_measures_no_empty_batch(handle: dnn.Handle) -> None:
    with dnn.autotuned(handle, cache=":memory:"):
        x, dy = handle.empty((0, 3, 8, 8)), handle.empty((0, 4, 6, 6))
        assert (dnn.convolution_backward_filter(handle, x, dy).numpy() == 0).all()
        with dnn.convolution_backward_filter.plan(handle, x, dy) as plan:
            assert (plan(x, dy).numpy() == 0).all()


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(
    ("shape", "filters", "options", "extra"),
    [
        ((2, 4, 5, 6), (4, 3, 3, 3), {"stride": 2, "padding": 1}, 1),
        (
            (2, 4, 5, 6),
            (4, 3, 3, 2),
            {"stride": (3, 2), "padding": (0, 1), "dilation": (1, 2)},
            (2, 0),
        ),
        ((1, 6, 7, 4), (6, 2, 4, 4), {"stride": 2, "padding": 1, "groups": 3}, 0),
        ((2, 4, 9), (4, 3, 5), {"stride": 4, "padding": 2, "dilation": 2}, 3),
        ((2, 4, 3, 4, 5), (4, 1, 3, 2, 3), {"stride": (1, 2, 2), "groups": 2}, (0, 1, 1)),
        # From the stride on, up to the dilation: only graphs have the padding.
        ((2, 4, 5, 6), (4, 3, 3, 3), {"padding": 2, "dilation": 2}, 1),
        (
            (2, 4, 5, 6),
            (4, 3, 3, 2),
            {"stride": 2, "padding": (3, 1), "dilation": (4, 1)},
            (3, 1),
        ),
    ],
)
def test_transposed_as_pytorch(
    handle: dnn.Handle, shape: Any, filters: Any, options: Any, extra: Any, dtype: str
) -> None:
    import torch

    rng = np.random.default_rng(0)
    x, w = random_values(rng, shape, dtype), random_values(rng, filters, dtype)
    conv = dnn.ConvolutionSpec(**options, math_type="fma")
    rank = len(shape) - 2
    padding, stride, dilation = conv.steps(rank)
    tensors = (torch.from_numpy(array.astype(np.float64)) for array in (x, w))
    function = getattr(torch.nn.functional, f"conv_transpose{rank}d")
    expected = function(*tensors, None, stride, padding, extra, conv.groups, dilation).numpy()
    assert conv.transposed_output_shape(shape, filters, extra) == expected.shape
    operands = handle.array(x), handle.array(w)
    y = dnn.convolution_transpose(handle, *operands, conv, output_padding=extra)
    assert_close(y.numpy(), expected, BOUNDS[dtype])
    out = handle.array(y.numpy())
    again = dnn.convolution_transpose(
        handle, *operands, conv, output_padding=extra, alpha=2.0, beta=-1.0, out=out
    )
    assert again is out
    assert_close(out.numpy(), expected, 4 * BOUNDS[dtype])
    interfaces = ["graph"]
    if conv.with_output_padding(extra, rank) == conv:
        interfaces.append("descriptor")
    for interface in interfaces:
        other = dnn.convolution_transpose(
            handle, *operands, conv, output_padding=extra, interface=interface
        )
        assert_close(other.numpy(), expected, BOUNDS[dtype])


# ---------------------------------------------------------------- random ones


@st.composite
def shapes_drawn(draw: Any) -> Any:
    rank = draw(st.integers(1, 3))
    groups, taps = draw(st.integers(1, 3)), [draw(st.integers(1, 3)) for _ in range(rank)]
    steps = {
        name: [draw(st.integers(*ends)) for _ in taps]
        for name, ends in {"padding": (0, 2), "stride": (1, 3), "dilation": (1, 2)}.items()
    }
    image = []
    for number, tap in enumerate(taps):
        least = max(1, steps["dilation"][number] * (tap - 1) + 1 - 2 * steps["padding"][number])
        image.append(draw(st.integers(least, least + 5)))
    x = (draw(st.integers(1, 3)), groups * draw(st.integers(1, 3)), *image)
    w = (groups * draw(st.integers(1, 3)), x[1] // groups, *taps)
    return (
        x,
        w,
        steps
        | {"groups": groups, "mode": draw(st.sampled_from(("cross_correlation", "convolution")))},
    )


@every_kind
def test_random_gradients_agree_with_onnx_and_are_adjoint(device: Any, kind: str) -> None:
    @settings(max_examples=40, derandomize=True, database=None)
    @given(
        shapes_drawn(),
        st.sampled_from(("float32", "float64")),
        st.sampled_from(("first", "last", "strided")),
    )
    def check(shapes: Any, dtype: str, layout: str) -> None:
        case = Case(handle, kind, shapes, dtype, layout)
        result = case.call(out=case.fresh())
        case.check(result)
        other, dy = (array.numpy().astype(np.float64) for array in case.arrays)
        steps = (
            *case.conv.steps(dy.ndim - 2),
            case.conv.groups,
            case.conv.mode == dnn.enums.ConvolutionMode.CONVOLUTION,
        )
        old = case.old.astype(np.float64)
        y = onnx_convolution(*((old, other) if kind == "data" else (other, old)), *steps)
        size = np.linalg.norm(y) * np.linalg.norm(dy)
        assert np.vdot(result.numpy().astype(np.float64), old) == pytest.approx(
            np.vdot(y, dy), abs=10 * BOUNDS[dtype] * size
        )
        sample = ConvolutionReference(
            case.problem(result),
            dict(zip(case.read, case.arrays, strict=True)),
        )
        assert errors_of(sample, result).l2 < BOUNDS[dtype]

    with dnn.Handle(device) as handle:
        check()


# ---------------------------------------------------------------- the tuner


@every_kind
@pytest.mark.parametrize("name", ["strided", "dilated_groups", "3d"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_the_reference_sees_what_is_wrong(
    handle: dnn.Handle, kind: str, name: str, dtype: str
) -> None:
    case = Case(handle, kind, CASES[name], dtype)
    for alpha, beta in ((1.0, 0.0), (0.5, -2.0)):
        problem = case.problem(alpha=alpha, beta=beta)
        operands = dict(zip(case.read, case.arrays, strict=True))
        reference = ConvolutionReference(problem, operands, case.fresh(1) if beta else None)
        right = alpha * case.sums + beta * case.old.astype(np.float64)
        kind_of = numpy_dtype(case.spec.dtype)
        errors = errors_of(reference, upload(handle, case.spec, right.astype(kind_of)))
        assert errors.l2 <= {"float64": 1e-15, "float32": 1e-7, "bfloat16": 5e-3}[dtype]
        for spoil in (0.5 * right, right[:, ::-1], np.flip(right, 2), 0 * right):
            spoiled_errors = errors_of(
                reference, upload(handle, case.spec, np.ascontiguousarray(spoil).astype(kind_of))
            )
            assert why_wrong(spoiled_errors.l2, case.spec.dtype, dnn.MathType.FMA)
    bad = case.arrays[0].numpy().copy()
    bad[0, 0] = np.nan
    problem = case.problem()
    operands[case.read[0]] = upload(handle, case.arrays[0].spec, bad)
    with pytest.raises(
        dnn.ArgumentError, match=f"{case.read[0]}, dy or out hold values that are not finite"
    ):
        ConvolutionReference(problem, operands)


@every_kind
@pytest.mark.parametrize("interface", [None, "descriptor", "graph"])
def test_gradients_are_tuned(handle: dnn.Handle, kind: str, interface: str | None) -> None:
    case = Case(handle, kind, CASES["strided"])
    policy = dnn.TuningPolicy(interface=interface, layouts=("NHWC",))
    with dnn.Tuner(handle, ":memory:", policy) as tuner:
        problem = case.problem()
        table = tuner.tune(problem)
        right = [row for row in table if row.ok]
        assert len(right) >= 2
        assert all(row.error is not None and row.error < WINOGRAD_BOUND for row in right)
        kinds = {type(row.algorithm) for row in table}
        expected_kinds = {
            None: {dnn.types.Engine, case.operation.algorithms.kind},
            "graph": {dnn.types.Engine},
            "descriptor": {case.operation.algorithms.kind},
        }
        assert kinds == expected_kinds[interface]
        for row in right:
            case.check(case.call(out=case.fresh(), algorithm=row), bound=WINOGRAD_BOUND)
        with_data = tuner.tune(problem, dict(zip(case.read, case.arrays, strict=True)))
        assert {row.algorithm for row in with_data} == {row.algorithm for row in table}
        refuses(ARGUMENT, "needed", lambda: tuner.tune(problem, {case.read[0]: case.arrays[0]}))


@every_kind
def test_autotuned_calls_measure_once(handle: dnn.Handle, kind: str) -> None:
    case = Case(handle, kind, CASES["strided"])
    with dnn.autotuned(handle, cache=":memory:") as tuner, dnn.record_problems() as problems:
        for _ in range(3):
            case.check(case.call(out=case.fresh()), bound=WINOGRAD_BOUND)
            case.check(case.call(**{case.like: case.spec}), bound=WINOGRAD_BOUND)
        assert tuner.measured == 1
    assert [(entry.problem.kind, entry.count) for entry in problems] == [
        (f"convolution_backward_{kind}", 6)
    ]
    tuned = dnn.tune_model(problems, device=handle.device, cache=":memory:")
    assert [one.problem for one in tuned.tunings] == [problems[0].problem]


@every_kind
def test_a_problem_is_saved_and_loaded(handle: dnn.Handle, kind: str, tmp_path: Any) -> None:
    case = Case(handle, kind, CASES["rotated"], "float16", "last")
    problem = case.problem(alpha=0.5, beta=2.0)
    dnn.ProblemList([problem]).save(tmp_path / "problems.json")
    (entry,) = dnn.ProblemList.load(tmp_path / "problems.json")
    assert entry.problem == problem
    assert entry.problem.operation is case.operation
    assert f"gradient of {case.like}: " in str(dnn.ProblemList([problem]))


# ------------------------------------------------------------------ padding that differs at the ends

# The support that was recorded on an H100 is that of the first of them, in both layouts.
UNEVEN: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 16, 8, 9), (24, 16, 3, 3), {"padding": ((1, 0), (0, 1))}),
    "strided": ((2, 8, 11, 9), (8, 8, 3, 2), {"padding": ((0, 1), (2, 0)), "stride": (2, 3)}),
    "dilated groups": (
        (2, 8, 9, 8),
        (8, 4, 3, 2),
        {"padding": ((2, 1), (0, 3)), "dilation": (2, 3), "groups": 2},
    ),
    "rotated": ((1, 8, 7, 6), (8, 8, 3, 2), {"padding": ((0, 2), 1), "mode": "convolution"}),
    "1-D": ((2, 8, 17), (8, 8, 4), {"padding": ((1, 2),), "stride": 2}),
    "3-D": ((2, 8, 5, 7, 6), (16, 8, 3, 2, 2), {"padding": ((0, 1), 1, (1, 0))}),
}


@each_pair(
    name=UNEVEN,
    dtype=["float32", "float64", "float16", "bfloat16"],
    layout=["first", "last"],
    kind=KINDS,
)
def test_uneven_padding(handle: dnn.Handle, kind: str, name: str, dtype: str, layout: str) -> None:
    """As an engine, with scalars, from operands without alignment too; the call has no such form."""
    case = Case(handle, kind, UNEVEN[name], dtype, layout)
    like = {case.like: case.spec}
    case.check(case.call(**like))
    case.check(case.call(out=case.fresh(1), alpha=-0.5, beta=2.0), -0.5, 2.0)
    with case.function.plan(handle, *case.arrays, case.conv, **like) as plan:
        assert isinstance(plan.choice.algorithm, dnn.types.Engine)
        case.check(plan(*case.arrays, out=case.fresh()))
    for option in ({"interface": "descriptor"}, {"algorithm": "ALGO_1"}):
        refuses(ARGUMENT, "only graphs pad", lambda o=option: case.call(**like, **o))


def test_engines_that_ignore_uneven_padding(handle: dnn.Handle) -> None:
    """Such an engine is neither chosen nor taken by name, nor by a graph's plan."""
    case = Case(handle, "filter", UNEVEN["3-D"], "float16")
    reason = "it computes wrong numbers where padding differs at the two ends of an axis"
    engine = dnn.types.Engine(1)
    refuses(ARGUMENT, reason, lambda: case.call(w=case.spec, algorithm=engine))
    graph = dnn.Graph()
    x, dy = (
        add_input(graph, name, array.spec)
        for name, array in zip(("x", "dy"), case.arrays, strict=True)
    )
    dw = graph.convolution_backward_filter(x, dy, case.spec.shape, case.conv)
    add_output(graph, "dw", dw, case.spec)
    refuses(ARGUMENT, reason, lambda: graph.plan(handle, engine=engine))


# By gradient: engines of cuDNN 9.19 whose results are wrong where padding differs.
WRONG_WITH_UNEVEN_PADDING = {"filter": (1, 4, 16, 18, 20), "data": (6, 50)}


@every_kind
@pytest.mark.parametrize("engine", [0, 1, 4, 6, 16, 18, 20, 50])
def test_engines_known_to_ignore_uneven_padding(handle: dnn.Handle, kind: str, engine: int) -> None:
    """An engine is excluded for one gradient alone, and for no other padding."""
    uneven, even = (
        Case(handle, kind, ((2, 8, 8, 9), (8, 8, 3, 3), {"padding": padding}), "float16", "last")
        for padding in (((1, 0), (0, 1)), (1, 0))
    )
    is_wrong = why_engine_is_wrong(engine, data_of(uneven.problem()), 91900) is not None
    assert is_wrong == (engine in WRONG_WITH_UNEVEN_PADDING[kind])
    assert why_engine_is_wrong(engine, data_of(even.problem()), 91900) is None


@every_kind
def test_engines_that_read_unwritten_memory(handle: dnn.Handle, kind: str) -> None:
    """Where dy has channels first and images of 60 bytes; not of 64, or with channels last."""
    engine = {"filter": 70, "data": 78}[kind]

    def reason(pixels: tuple[int, int], layout: str) -> str | None:
        case = Case(handle, kind, ((2, 8, *pixels), (4, 8, 3, 3), {"padding": 1}), layout=layout)
        return why_engine_is_wrong(engine, data_of(case.problem()), 91900)

    assert reason((3, 5), "first") == (
        "it computes wrong numbers with channels first where an image of dy takes 60 bytes, "
        "no multiple of 16"
    )
    assert reason((4, 4), "first") is None
    assert reason((3, 5), "last") is None


@every_kind
def test_uneven_padding_says_the_shape_of_a_result(handle: dnn.Handle, kind: str) -> None:
    """Which has one size only where the stride is 1."""
    case = Case(handle, kind, UNEVEN["plain"])
    result = case.call()
    assert result.shape == case.spec.shape
    case.check(result)
    assert case.function.problem(*case.arrays, case.conv) == case.problem()


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
def test_transposed_convolution_cuts_off_uneven_padding(handle: dnn.Handle) -> None:
    """What PyTorch computes without padding, less so many pixels at each end."""
    import torch

    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 4, 5, 6)), rng.standard_normal((4, 3, 3, 4))
    whole = torch.nn.functional.conv_transpose2d(torch.tensor(x), torch.tensor(w), stride=2)
    expected = whole.numpy()[:, :, 1:, 2:-1]
    conv = dnn.ConvolutionSpec(((1, 0), (2, 1)), stride=2, math_type="fma")
    arrays = [handle.array(array.astype(np.float32)) for array in (x, w)]
    y = dnn.convolution_transpose(handle, *arrays, conv)
    assert_close(y.numpy(), expected, BOUNDS["float32"])
