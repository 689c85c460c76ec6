"""Engines of cuDNN's backend: the default choice, its promises, and tuning over both interfaces."""

from __future__ import annotations

import gc
import itertools
import json
import warnings
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite import convolution_forward
from cudnnlite._raw.enums import BackendHeurMode, BackendKnobType, PointwiseMode
from cudnnlite._raw.leaks import release_leaks
from cudnnlite.graph import engines
from cudnnlite.graph.convolution_formulas import (
    add_convolution,
    add_input,
    add_output,
    add_pointwise,
)
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.engines import HEURISTICS, named_by
from cudnnlite.graph.execution_plan import MOST_PACKS, ExecutionPlan
from cudnnlite.graph.lowering import lower
from cudnnlite.graph.operation_graph import OperationGraph
from cudnnlite.operations.convolution import graphs
from cudnnlite.operations.convolution.engines import engine_rows
from cudnnlite.types import BackendDescriptor
from cudnnlite.types import Problem as Described
from cudnnlite.workbench.tuning.entries import row_from_plain, row_to_plain

from .problems import Problem, fill, memory_of, poisoned, upload, with_gaps
from .test_tuner import hurry

X, W = (2, 8, 9, 11), (6, 8, 3, 2)


def graph_of(handle: dnn.Handle, problem: Problem, stack: ExitStack) -> OperationGraph:
    return lower(graphs.data_of(problem_of(problem)), handle, stack)


def problem_of(problem: Problem) -> Described:
    w = dnn.FilterSpec(problem.w.shape, problem.w.spec.dtype, problem.w.layout)
    return convolution_forward.problem(problem.x.spec, w, problem.conv)


# ---------------------------------------------------------------- what runs


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("math_type", ["fma", "default"])
@pytest.mark.parametrize(
    ("dtype", "layout"),
    [
        ("float32", "NCHW"),
        ("float32", "NHWC"),
        ("float64", "NCHW"),
        ("float16", "NHWC"),
        ("bfloat16", "NHWC"),
    ],
)
def test_every_engine_that_is_named_is_right(
    handle: dnn.Handle, dtype: str, layout: str, math_type: str, beta: float
) -> None:
    """Every engine that the heuristics name and the promises allow is right, not only the first."""
    problem = Problem(handle, X, W, dtype, layout, padding=1, math_type=math_type)
    options = {"alpha": -1.5, "beta": beta}
    engine_count = 0
    with ExitStack() as stack:
        graph = graph_of(handle, problem, stack)
        named = {c.engine for mode in HEURISTICS for c in named_by(graph, mode, stack)}
    for engine in sorted(named, key=str)[:24]:
        out = handle.array(problem.old_host, dtype=dtype, layout=layout)
        try:
            plan = dnn.convolution_forward.plan(
                handle, problem.x, problem.w, problem.conv, out=out, algorithm=engine, **options
            )
        except (dnn.ArgumentError, dnn.CudnnError):  # a promise, or cuDNN after all
            continue
        with plan:
            problem.assert_right(
                plan(problem.x, problem.w, out=out),
                engine,
                math_type=dnn.MathType.DEFAULT,
                **options,
            )
        engine_count += 1
    assert engine_count


@pytest.mark.parametrize("factor", [2, 3, 8])
@pytest.mark.parametrize(("dtype", "layout"), [("float16", "NHWC"), ("float32", "NCHW")])
def test_a_list_that_is_asked_for_in_steps_is_complete(
    handle: dnn.Handle, dtype: str, layout: str, factor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the order, the knobs and the notes of the list that is asked for at once."""
    problem = Problem(handle, X, W, dtype, layout, padding=1)
    monkeypatch.setattr(engines, "MORE_RESULTS", factor)
    for mode in HEURISTICS:
        with ExitStack() as stack:
            graph = graph_of(handle, problem, stack)
            in_steps = list(named_by(graph, mode, stack))
            heuristic = BackendDescriptor(
                handle, "ENGINEHEUR", operation_graph=graph.descriptor, mode=mode
            )
            stack.enter_context(heuristic)
            try:
                at_once = heuristic.finalize().get_descriptors("results", stack)
            except dnn.CudnnError:
                assert in_steps == []
                continue
            all_knobs = [
                stack.enter_context(BackendDescriptor(handle, "KNOB_CHOICE"))
                for _ in range(BackendKnobType.COUNT)
            ]
            assert len(in_steps) == len(at_once)
            for configuration, descriptor in zip(in_steps, at_once, strict=True):
                (engine,) = descriptor.get_descriptors("engine", stack)
                assert configuration.engine.index == engine.get("global_index")
                assert configuration.numerical == set(engine.get("numerical_note"))
                assert configuration.behavior == set(engine.get("behavior_note"))
                choices = descriptor.fill("knob_choices", all_knobs)
                knobs = {choice.get("knob_type"): choice.get("knob_value") for choice in choices}
                assert knobs == dict(configuration.engine.choices)


@pytest.mark.parametrize("most", [0, -1, 1.5, "1", True])
def test_how_many_descriptors_are_read_at_most(handle: dnn.Handle, most: object) -> None:
    problem = Problem(handle, X, W, "float16", "NHWC", padding=1)
    with ExitStack() as stack:
        graph = graph_of(handle, problem, stack)
        heuristic = BackendDescriptor(
            handle, "ENGINEHEUR", operation_graph=graph.descriptor, mode=BackendHeurMode.A
        )
        stack.enter_context(heuristic).finalize()
        assert len(heuristic.get_descriptors("results", stack, most=1)) == 1
        with pytest.raises(dnn.ArgumentError, match="most="):
            heuristic.get_descriptors("results", stack, most=most)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 2, 8])
def test_all_knobs_of_a_configuration_are_read(
    handle: dnn.Handle, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there are fewer descriptors at first than it has knobs."""
    problem = Problem(handle, X, W, "float16", "NHWC", padding=1)
    with ExitStack() as stack:
        graph = graph_of(handle, problem, stack)
        monkeypatch.setattr(engines, "FEW_KNOBS", count)
        found = [c for mode in HEURISTICS for c in named_by(graph, mode, stack)]
        all_knobs = [
            stack.enter_context(BackendDescriptor(handle, "KNOB_CHOICE"))
            for _ in range(BackendKnobType.COUNT)
        ]
        for configuration in found:
            choices = configuration.descriptor.fill("knob_choices", all_knobs)
            knobs = {choice.get("knob_type"): choice.get("knob_value") for choice in choices}
            assert knobs == dict(configuration.engine.choices)
    assert max(len(configuration.engine.choices) for configuration in found) >= 2


def test_the_choice_says_what_and_why(handle: dnn.Handle) -> None:
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    with dnn.convolution_forward.plan(handle, problem.x, problem.w, problem.conv) as plan:
        assert isinstance(plan.choice.algorithm, dnn.types.Engine)
        assert plan.choice.math_type == dnn.MathType.FMA, "strict float32 is kept"
        for row, why in plan.choice.passed_over:
            assert isinstance(row.algorithm, dnn.types.Engine)
            assert why
        assert str(plan.choice).startswith(f"engine {plan.choice.algorithm.index}")
        assert plan.workspace == plan.choice.workspace
        problem.assert_right(plan(problem.x, problem.w), plan.choice.algorithm)


def test_integers_stay_with_the_descriptor_call_and_say_so(handle: dnn.Handle) -> None:
    x, w = (
        dnn.TensorSpec((1, 8, 9, 8), "int8", "NHWC"),
        dnn.FilterSpec((8, 8, 3, 3), "int8", "NHWC"),
    )
    with dnn.convolution_forward.plan(handle, x, w) as plan:
        assert isinstance(plan.choice.algorithm, dnn.enums.ConvolutionFwdAlgo)
        assert plan.choice.remark == "no engine serves: integers stay with the descriptor call"
        assert plan.choice.remark in str(plan.choice)
    with pytest.raises(dnn.NotSupportedError, match="integers stay"):
        dnn.convolution_forward.plan(handle, x, w, interface="graph")


def test_the_interface_narrows(handle: dnn.Handle) -> None:
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    kinds = {
        "descriptor": dnn.enums.ConvolutionFwdAlgo,
        "graph": dnn.types.Engine,
        None: dnn.types.Engine,
    }
    for interface, kind in kinds.items():
        with dnn.convolution_forward.plan(
            handle, problem.x, problem.w, problem.conv, interface=interface
        ) as plan:
            assert isinstance(plan.choice.algorithm, kind)
        problem.assert_right(problem.run(interface=interface), plan.choice.algorithm)


def test_a_named_engine_is_told_as_it_is(handle: dnn.Handle) -> None:
    """Its workspace, its notes and what it multiplies in, whatever was said of it."""
    problem = Problem(handle, (2, 16, 12, 14), (24, 16, 3, 3), padding=1)
    with dnn.convolution_forward.plan(
        handle, problem.x, problem.w, problem.conv, interface="graph"
    ) as plan:
        choice = plan.choice
    row = dnn.AlgorithmResult(
        choice.algorithm, dnn.MathType.FMA, workspace=7, deterministic=False, time_ms=1.5
    )
    for algorithm in (choice.algorithm, row):
        with dnn.convolution_forward.plan(
            handle, problem.x, problem.w, problem.conv, algorithm=algorithm
        ) as plan:
            named_choice = plan.choice
            assert (named_choice.workspace, named_choice.math_type) == (
                plan.workspace,
                choice.math_type,
            )
            assert named_choice.deterministic == choice.deterministic
    assert named_choice.time_ms == 1.5


def test_a_workspace_of_ones_own_with_a_limit(handle: dnn.Handle) -> None:
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    with pytest.raises(dnn.ArrayTypeError, match="workspace"):
        problem.run(workspace=np.zeros(1 << 16, np.uint8), workspace_limit="64 KiB")
    workspace = handle.empty((1 << 20,), "uint8")
    y = problem.run(workspace=workspace, workspace_limit="1 MiB")
    problem.assert_right(y, dnn.types.Engine(0))
    assert handle.workspace.size == 0


def test_where_no_engine_fits_the_limit(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told, and not taken for a refusal of cuDNN's."""
    problem = Problem(handle, (2, 16, 12, 14), (24, 16, 3, 3), padding=1, math_type="fma")
    real = ExecutionPlan.__init__

    def demanding(plan: ExecutionPlan, *arguments: Any) -> None:
        real(plan, *arguments)
        plan.workspace = max(plan.workspace, 1 << 30)

    monkeypatch.setattr(ExecutionPlan, "__init__", demanding)
    with pytest.raises(
        dnn.WorkspaceLimitError, match=r"no engine serves: .*needs 1 GiB, the limit is 64 MiB"
    ):
        problem.run(workspace_limit="64 MiB", interface="graph")
    with pytest.warns(dnn.errors.WorkspaceLimitWarning, match=r"excluded engine .*needs 1 GiB"):
        plan = dnn.convolution_forward.plan(
            handle, problem.x, problem.w, problem.conv, workspace_limit="64 MiB"
        )
    with plan:
        assert isinstance(plan.choice.algorithm, dnn.enums.ConvolutionFwdAlgo)
        assert "needs 1 GiB" in plan.choice.remark


def test_an_engine_that_fails_to_become_a_plan_is_told(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    real, refused = ExecutionPlan.__init__, []

    def refusing(plan: ExecutionPlan, graph: Any, configuration: Any, stack: Any) -> None:
        if not refused:
            refused.append(configuration.engine)
            raise dnn.NotSupportedError(
                "cudnnBackendFinalize", dnn.enums.Status.NOT_SUPPORTED, "no"
            )
        real(plan, graph, configuration, stack)

    monkeypatch.setattr(ExecutionPlan, "__init__", refusing)
    with dnn.convolution_forward.plan(handle, problem.x, problem.w, problem.conv) as plan:
        assert (refused[0], "it cannot do this after all (NOT_SUPPORTED)") in [
            (row.algorithm, why) for row, why in plan.choice.passed_over
        ]
        problem.assert_right(plan(problem.x, problem.w), plan.choice.algorithm)


def test_a_limit_that_excludes_the_preferred_warns(handle: dnn.Handle) -> None:
    problem = Problem(handle, (2, 16, 12, 14), (24, 16, 3, 3), padding=1, math_type="fma")
    with dnn.convolution_forward.plan(handle, problem.x, problem.w, problem.conv) as plan:
        needed = plan.workspace
    if not needed:
        return  # nothing to exclude: this device's preferred engine wants none
    with pytest.warns(dnn.errors.WorkspaceLimitWarning, match="excluded") as records:
        y = problem.run(workspace_limit=needed - 1)
    assert records[0].filename.endswith("problems.py"), "where the call stands"
    problem.assert_right(y, dnn.types.Engine(0))
    assert handle.workspace.peak < needed


# ---------------------------------------------------------------- what it was made for


@pytest.mark.parametrize("operand", ["x", "w", "out"])
def test_operands_that_are_not_aligned(handle: dnn.Handle, operand: str) -> None:
    """The descriptor call takes them, and so does a plan made for aligned operands.

    A plan of engines alone refuses them.
    """
    problem = Problem(handle, X, W, "float32", padding=1, math_type="fma")
    y = poisoned(handle, problem.output_spec)
    arrays = {"x": problem.x, "w": problem.w, "out": y}
    array = arrays[operand]
    memory = handle.empty((array.spec.nbytes + 64,), "uint8")
    moved = dnn.DeviceArray(array.spec, memory.device, memory.ptr + 4, memory, handle.stream)
    if operand != "out":
        handle.device.copy_within(moved.ptr, array.ptr, array.spec.nbytes, handle.stream)
    operands = {**arrays, operand: moved}
    fill(operands["out"], 0xFF)
    before = memory_of(operands["out"]).copy()
    with dnn.convolution_forward.plan(
        handle, problem.x, problem.w, problem.conv, interface="graph"
    ) as plan:
        plan(problem.x, problem.w, out=poisoned(handle, problem.output_spec))
        with pytest.raises(dnn.ArgumentError, match=f"^{operand} begins at .* aligned to 16 bytes"):
            plan(operands["x"], operands["w"], out=operands["out"])
        assert (memory_of(operands["out"]) == before).all()
        problem.assert_right(plan(problem.x, problem.w), plan.choice.algorithm)
    with dnn.convolution_forward.plan(handle, problem.x, problem.w, problem.conv) as plan:
        plan(problem.x, problem.w, out=poisoned(handle, problem.output_spec))
        out = plan(operands["x"], operands["w"], out=operands["out"])
        problem.assert_right(out, problem.choice())
        problem.assert_right(plan(problem.x, problem.w), plan.choice.algorithm)
    out = dnn.convolution_forward(
        handle, operands["x"], operands["w"], problem.conv, out=operands["out"]
    )
    problem.assert_right(out, problem.choice())
    with dnn.convolution_forward.plan(
        handle, operands["x"], operands["w"], problem.conv, out=operands["out"]
    ) as plan:
        assert isinstance(plan.choice.algorithm, dnn.enums.ConvolutionFwdAlgo)
        assert plan.choice.remark == "no engine serves: an operand is not aligned to 16 bytes"
        problem.assert_right(
            plan(operands["x"], operands["w"], out=operands["out"]), plan.choice.algorithm
        )


def test_addresses_come_and_go(handle: dnn.Handle) -> None:
    """A plan remembers some sets of addresses and replaces the oldest.

    Each output gets its values.
    """
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    with dnn.convolution_forward.plan(handle, problem.x, problem.w, problem.conv) as plan:
        outs = [poisoned(handle, plan.y) for _ in range(3 * MOST_PACKS)]
        for out in itertools.chain(outs, reversed(outs), outs[::5] * 2):
            fill(out, 0xFF)
            plan(problem.x, problem.w, out=out)
            problem.assert_right(out, plan.choice.algorithm)


def test_strided_operands_are_right(handle: dnn.Handle) -> None:
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    spec = with_gaps(problem.y_shape, "float32")
    out = upload(handle, spec, np.full(problem.y_shape, np.nan, np.float32))
    problem.assert_right(problem.run(out=out), dnn.types.Engine(0))


def test_a_closed_plan_leaves_no_plan_for_misaligned_operands_behind(handle: dnn.Handle) -> None:
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    memory = handle.empty((problem.x.nbytes + 64,), "uint8")
    moved = dnn.DeviceArray(problem.x.spec, memory.device, memory.ptr + 4, memory, handle.stream)
    with warnings.catch_warnings(record=True) as records:
        warnings.simplefilter("always")
        with dnn.convolution_forward.plan(handle, problem.x, problem.w, problem.conv) as plan:
            plan(moved, problem.w)
        del plan
        gc.collect()
        release_leaks()
    assert [str(warning.message) for warning in records] == []


# ---------------------------------------------------------------- engines as values


def test_an_engine_is_a_value(handle: dnn.Handle) -> None:
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    with dnn.convolution_forward.plan(handle, problem.x, problem.w, problem.conv) as plan:
        engine, row = plan.choice.algorithm, plan.choice
    again = dnn.types.Engine.from_plain(json.loads(json.dumps(engine.to_plain())))
    assert again == engine
    assert hash(again) == hash(engine)
    assert row_from_plain(json.loads(json.dumps(row_to_plain(row)))) == row
    for algorithm in (again, row):
        with dnn.convolution_forward.plan(
            handle, problem.x, problem.w, problem.conv, algorithm=algorithm
        ) as plan:
            assert plan.choice.algorithm == engine
            problem.assert_right(plan(problem.x, problem.w), engine)
        problem.assert_right(problem.run(algorithm=algorithm), engine)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (
            dnn.types.Engine(9999),
            "algorithm=engine 9999: there is no such engine; those .* from 0 to ",
        ),
        (dnn.types.Engine(-1), "algorithm=engine -1: there is no such engine; those .* from 0 to "),
        (
            dnn.types.Engine(0, {"TILE_SIZE": 9999}),
            (
                r"algorithm=engine 0 \(TILE_SIZE=9999\): for this problem there is no such engine, "
                r"or it"
            ),
        ),
    ],
    ids=str,
)
def test_an_engine_that_is_none_here(
    handle: dnn.Handle, engine: dnn.types.Engine, message: str
) -> None:
    problem = Problem(handle, X, W, padding=1)
    for call in (dnn.convolution_forward.plan, dnn.convolution_forward):
        with pytest.raises(dnn.CudnnError, match=message) as error:
            call(handle, problem.x, problem.w, problem.conv, algorithm=engine)
        assert "TensorSpec" in str(error.value), "the specs are told"


def test_an_engine_may_not_break_a_promise(handle: dnn.Handle) -> None:
    """What multiplies in fewer bits is refused by a problem in true float32."""
    relaxed = Problem(handle, X, W, padding=1)
    strict = Problem(handle, X, W, padding=1, math_type="fma")
    with ExitStack() as stack:
        graph = graph_of(handle, relaxed, stack)
        candidates = [c for mode in HEURISTICS for c in named_by(graph, mode, stack)]
        narrow = {
            c.engine
            for c in candidates
            if c.math_type(dnn.MathType.DEFAULT) == dnn.MathType.DEFAULT
        }
    assert narrow, "this device has no engine in TF32"
    refused = 0
    for engine in narrow:
        with pytest.raises((dnn.ArgumentError, dnn.CudnnError)) as error:
            dnn.convolution_forward.plan(handle, strict.x, strict.w, strict.conv, algorithm=engine)
        refused += "fewer bits" in str(error.value)
    assert refused


def test_what_cannot_be_captured_is_never_chosen(handle: dnn.Handle) -> None:
    problem = Problem(handle, X, W, padding=1)
    with ExitStack() as stack:
        graph = graph_of(handle, problem, stack)
        for configuration in named_by(graph, BackendHeurMode.A, stack):
            assert configuration.capturable == (configuration.engine.knobs.get("USE_TEX") != 1)
    plan = dnn.convolution_forward.plan(handle, problem.x, problem.w, problem.conv)
    assert dict(plan.choice.algorithm.choices).get(BackendKnobType.USE_TEX) != 1
    with plan:
        stream = handle.device.create_stream()
        handle.stream = stream
        x, w = handle.view(problem.x), handle.view(problem.w)
        out = plan(x, w)
        fill(out, 0xFF)
        replay = handle.device.capture(lambda: plan(x, w, out=out), stream)
        if replay is not None:
            fill(out, 0xFF)
            replay()
            problem.assert_right(out, plan.choice.algorithm)


# ---------------------------------------------------------------- the tuner


def test_the_tuner_ranks_both_interfaces(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    problem = Problem(handle, X, W, padding=1)
    convolution = problem_of(problem)
    kinds = {
        None: {"Engine", "ConvolutionFwdAlgo"},
        "graph": {"Engine"},
        "descriptor": {"ConvolutionFwdAlgo"},
    }
    for interface, expected in kinds.items():
        with dnn.Tuner(
            handle, ":memory:", dnn.TuningPolicy(interface=interface, layouts=())
        ) as tuner:
            table = tuner.tune(convolution)
            assert {type(row.algorithm).__name__ for row in table} == expected
            assert len({(row.algorithm, row.math_type, row.replay) for row in table}) == len(table)
            eager = {(row.algorithm, row.math_type) for row in table if not row.replay}
            assert {(row.algorithm, row.math_type) for row in table} == eager, (
                "what is replayed stands there as it is too"
            )
            best = tuner.choose(convolution)
        for row in table:
            if isinstance(row.algorithm, dnn.types.Engine) and row.ok:
                assert row.error is not None
                problem.assert_right(
                    problem.run(algorithm=row), row.algorithm, math_type=row.math_type
                )
        problem.assert_right(problem.run(algorithm=best), best.algorithm, math_type=best.math_type)


def test_engines_that_no_heuristic_names_are_ranked_too(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example Winograd's transforms in true float32.

    Engines that cuDNN compiles first are ranked where the policy asks for them.
    """
    hurry(monkeypatch)
    problem = Problem(handle, (2, 32, 14, 13), (32, 32, 3, 3), padding=1, math_type="fma")
    with ExitStack() as stack:
        graph, convolution = graph_of(handle, problem, stack), problem_of(problem)
        ready = {row.algorithm for row in engine_rows(graph, convolution) if row.heuristic is None}
        rows = engine_rows(graph, convolution, also_unnamed=True)
        indices = {row.algorithm.index for row in rows if row.heuristic is not None}
        unranked = {row.algorithm for row in rows if row.heuristic is None}
        assert [row.heuristic for row in rows if row.heuristic is not None] == [
            *range(len(rows) - len(unranked))
        ]
        assert ready
        assert ready < unranked
        assert not indices & {engine.index for engine in unranked}
    for search, expected in (("heuristics", ready), ("engines", unranked)):
        with dnn.Tuner(
            handle, ":memory:", dnn.TuningPolicy(interface="graph", search=search)
        ) as tuner:
            table = tuner.tune(convolution)
        assert unranked & {row.algorithm for row in table} == expected
    timed = [row for row in table if row.algorithm in unranked and row.ok and row.time_ms]
    assert timed
    for row in timed:
        problem.assert_right(problem.run(algorithm=row), row.algorithm, math_type=row.math_type)


def test_autotuned_calls_run_the_tuned_engine(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    problem = Problem(handle, X, W, padding=1)
    with dnn.autotuned(
        handle, cache=":memory:", policy=dnn.TuningPolicy(interface="graph")
    ) as tuner:
        for _ in range(2):
            y = problem.run()
        with dnn.convolution_forward.plan(handle, problem.x, problem.w, problem.conv) as plan:
            assert isinstance(plan.choice.algorithm, dnn.types.Engine)
            problem.assert_right(y, plan.choice.algorithm)
        assert tuner.measured == 1


# ---------------------------------------------------------------- by hand


def test_a_graph_by_hand(handle: dnn.Handle) -> None:
    """Convolution, bias and ReLU in one kernel, as the how-to has it, beside NumPy."""
    x_host = np.random.default_rng(1).standard_normal((2, 8, 9, 8)).astype(np.float16)
    w_host = np.random.default_rng(2).standard_normal((16, 8, 3, 3)).astype(np.float16) / 8
    b_host = np.random.default_rng(3).standard_normal((1, 16, 1, 1)).astype(np.float16)
    x, w, b = (handle.array(array, layout="NHWC") for array in (x_host, w_host, b_host))
    y = handle.empty((2, 16, 9, 8), "float16", "NHWC")
    fill(y, 0xFF)
    between = dnn.TensorSpec(y.shape, "float32", "NHWC")
    with ExitStack() as stack:
        data = GraphData()
        reads = {
            name: add_input(data, name, array.spec) for name, array in {"x": x, "w": w}.items()
        }
        conv = dnn.ConvolutionSpec(1)
        result = add_convolution(
            data, "CONVOLUTION_FORWARD", reads, between, conv, dnn.DataType.FLOAT
        )
        bias = add_input(data, "b", b.spec)
        result = add_pointwise(data, PointwiseMode.ADD, between, result, bias)
        result = add_pointwise(data, PointwiseMode.RELU_FWD, between, result)
        add_output(data, "y", result, y.spec)
        graph = lower(data, handle, stack)
        plan = None
        for mode in HEURISTICS:
            for configuration in named_by(graph, mode, stack):
                try:
                    plan = ExecutionPlan(graph, configuration, stack)
                except dnn.CudnnError:
                    continue
                break
            if plan is not None:
                break
        assert plan is not None
        scratch = handle.workspace.reserve(plan.workspace, handle.stream) if plan.workspace else 0
        plan.replace(workSpace=scratch, x=x.ptr, w=w.ptr, b=b.ptr, y=y.ptr)
        plan()
        result = y.numpy().astype(np.float64)
    expected = Problem(handle, (2, 8, 9, 8), (16, 8, 3, 3), "float16", "NHWC", padding=1)
    expected = dnn.convolution_forward(
        handle,
        handle.array(x_host.astype(np.float64)),
        handle.array(w_host.astype(np.float64)),
        expected.conv.replace(compute_type="float64"),
    ).numpy()
    np.testing.assert_allclose(
        result, np.maximum(expected + b_host.astype(np.float64), 0), rtol=2e-3, atol=2e-3
    )


@pytest.mark.parametrize(
    ("kind", "attributes", "message"),
    [
        (
            "TENSOR",
            {"unique_id": 1},
            "TENSOR cannot be finalised without data_type, dimensions, strides, byte_alignment",
        ),
        ("VARIANT_PACK", {}, "VARIANT_PACK cannot be finalised without unique_ids, data_pointers"),
        (
            "EXECUTION_PLAN",
            {},
            "EXECUTION_PLAN cannot be finalised without engine_config or json_representation",
        ),
        (
            "EXECUTION_PLAN",
            {"json_representation": "{}"},
            "EXECUTION_PLAN cannot be finalised without handle or deviceprop",
        ),
        ("OPERATIONGRAPH", {}, "OPERATIONGRAPH cannot be finalised without ops"),
    ],
)
def test_what_is_missing_is_named(
    handle: dnn.Handle, kind: str, attributes: dict[str, Any], message: str
) -> None:
    with dnn.types.BackendDescriptor(handle, kind, **attributes) as descriptor:
        with pytest.raises(dnn.ArgumentError, match=message):
            descriptor.finalize()
        assert f"<BackendDescriptor {kind}(" in repr(descriptor)
        assert repr(descriptor).endswith("not final>")


def test_a_descriptor_says_what_it_holds(handle: dnn.Handle) -> None:
    values = {
        "data_type": "float16",
        "dimensions": (1, 3, 8, 8),
        "strides": (192, 64, 8, 1),
        "unique_id": 7,
        "byte_alignment": 16,
    }
    with dnn.types.BackendDescriptor(handle, "TENSOR", **values) as descriptor:
        descriptor.finalize()
        assert descriptor.get("dimensions") == (1, 3, 8, 8)
        assert descriptor.get("data_type") is dnn.DataType.HALF
        assert descriptor.get("unique_id") == 7
        with pytest.raises(dnn.CudnnError):
            descriptor.set("unique_id", 8)
    with pytest.raises(dnn.errors.ClosedError):
        descriptor.get("unique_id")
    with pytest.raises(dnn.ArgumentError, match="kind='NOPE'"):
        dnn.types.BackendDescriptor(handle, "NOPE")
