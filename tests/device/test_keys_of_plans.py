"""Calls that differ in one property: which find a plan, and that each has its own numbers.

A handle makes a call, one that differs in one property, and the first again, each into poisoned
memory.  The results are those of a new handle, bit for bit.  `HITS` says which changes find the
plan of before; all others make another plan, once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from tolerances import assert_close

import cudnnlite as dnn
from cudnnlite.plans.plan import Plan

from .calls import CALLS, RAGGED, Call, Operand, rnn_weights, written
from .problems import poisoned, with_gaps
from .test_tuner import hurry

quiet = pytest.mark.filterwarnings(  # of what is refused, copied or excluded on purpose
    "ignore::cudnnlite.errors.AlignmentWarning", "ignore::cudnnlite.errors.WorkspaceLimitWarning"
)
CONV = dnn.ConvolutionSpec(1, math_type="fma")
LSTM = dnn.RNNSpec("lstm", 4, 8)
ONE_BIAS = LSTM.replace(bias="single_input")
BIAS = Operand((1, 3, 1, 1), seed=7)
NORM = dnn.LRNSpec(3)
DIVISIVE = dnn.LRNSpec(3, alpha=0.5, beta=0.75, k=2.0)
TRANSFORMER = dnn.SpatialTransformerSpec((2, 4, 3, 4))
PROJECTIONS = dnn.AttentionSpec(2, 8, q_proj_size=4, k_proj_size=4, v_proj_size=4, o_proj_size=8)

CONVOLUTIONS = {
    "stride": {"conv": CONV.replace(padding=2, dilation=2)},
    "mode": {"conv": CONV.replace(mode="convolution")},
    "math type": {"conv": CONV.replace(math_type="default")},
    "descriptor call": {"interface": "descriptor"},
    "graph": {"interface": "graph"},
    "algorithm": {"algorithm": 0},
    "other algorithm": {"algorithm": 1},
    "replay": {"replay": True},
}
ACTIVATIONS = {
    "mode": {"activation": dnn.ActivationSpec("relu")},
    "coefficient": {"activation": dnn.ActivationSpec("elu", 0.5)},
    "other coefficient": {"activation": dnn.ActivationSpec("elu", 0.25)},
    "graph": {"activation": "gelu"},
}
POOLINGS = {
    "mode": {"pooling": dnn.PoolingSpec(2, mode="average_count_include_padding")},
    "other mode": {"pooling": dnn.PoolingSpec(2, mode="max_deterministic")},
}
SOFTMAX = {"mode": {"mode": "instance"}, "algorithm": {"algorithm": "log"}}
BATCH_NORM = {"epsilon": {"epsilon": 0.5}, "mode": {"mode": "per_activation"}}
DROPOUT = {"probability": {"dropout": 0.25}}
HEADS = {
    "causal": {"causal": True},
    "causal from the end": {"causal": "bottom_right"},
    "scale": {"scale": 0.5},
    "window": {"causal": True, "window": 4},
    "bias": {"bias": Operand((2, 2, 16, 16), "float16", seed=6)},
    "broadcast bias": {"bias": Operand((1, 2, 16, 16), "float16", seed=6)},
    "dropout": {"dropout": 0.5},
    "lengths": {
        "q_lengths": Operand((2,), "int32", kind="given", values=(16, 9)),
        "kv_lengths": Operand((2,), "int32", kind="given", values=(7, 16)),
    },
}
# By operation and name of the change: the arguments that another call has.  `_usual_changes` adds
# those that all operations have.
CHANGES: dict[str, dict[str, dict[str, Any]]] = {
    "convolution_forward": {
        **CONVOLUTIONS,
        "bias": {"bias": BIAS},
        "epilogue": {"activation": "relu"},
        "other epilogue": {"activation": "gelu"},
    },
    "convolution_bias_activation_forward": {
        **CONVOLUTIONS,
        "activation": {"activation": dnn.ActivationSpec("identity")},
        "addend": {"z": Operand((2, 3, 6, 5), seed=8)},
        "scaled addend": {"z": Operand((2, 3, 6, 5), seed=8), "alpha2": 0.5},
    },
    "convolution_backward_data": CONVOLUTIONS,
    "convolution_backward_filter": CONVOLUTIONS,
    "convolution_transpose": CONVOLUTIONS,
    "im2col": {"dilation": {"conv": dnn.ConvolutionSpec(2, dilation=2)}},
    "activation_forward": ACTIVATIONS,
    "activation_backward": ACTIVATIONS,
    "pooling_forward": {
        **POOLINGS,
        "window": {"pooling": dnn.PoolingSpec(3)},
        "stride": {"pooling": dnn.PoolingSpec(2, stride=1)},
        "one-sided padding": {"pooling": dnn.PoolingSpec(2, padding=((1, 0), (0, 1)))},
    },
    "pooling_backward": POOLINGS,
    "pooling_with_indices_forward": {"stride": {"pooling": dnn.PoolingSpec(2, stride=1)}},
    "softmax_forward": SOFTMAX,
    "softmax_backward": SOFTMAX,
    "lrn_forward": {"k": {"norm": NORM.replace(k=3.0)}, "n": {"norm": NORM.replace(n=5)}},
    "lrn_backward": {"k": {"norm": NORM.replace(k=3.0)}, "n": {"norm": NORM.replace(n=5)}},
    "divisive_normalization_forward": {
        "k": {"norm": DIVISIVE.replace(k=3.0)},
        "means": {"means": Operand((2, 4, 6, 5), seed=9)},
    },
    "divisive_normalization_backward": {
        "k": {"norm": DIVISIVE.replace(k=3.0)},
        "means": {"means": Operand((2, 4, 6, 5), seed=9)},
    },
    "batch_normalization_inference": {"epsilon": {"epsilon": 0.5}},
    "batch_normalization_training": {
        "epsilon": {"epsilon": 0.5},
        "running": {"running_mean": Operand((1, 4, 1, 1)), "running_var": Operand((1, 4, 1, 1))},
    },
    "batch_normalization_backward": {
        "epsilon": {"epsilon": 0.5},
        "alpha_param": {"alpha_param": 0.5},
    },
    "op_tensor": {
        "op": {"op": "add"},
        "alpha1": {"alpha1": 0.5},
        "alpha2": {"alpha2": 0.5},
        "broadcast": {"b": Operand((1, 4, 1, 1), seed=1)},
    },
    "reduce_tensor": {"op": {"op": "max"}, "axes": {"axes": (0, 3)}, "other axes": {"axes": (1,)}},
    "add_tensor": {"broadcast": {"a": Operand((1, 4, 6, 5))}},
    "scale_tensor": {"factor": {"alpha": 0.5}},
    "set_tensor": {"number": {"value": 0.5}},
    "transform_tensor": {"to layout": {"layout": None}, "padding": {"padding": 1}},
    "transform_filter": {"fold": {"layout": None, "fold": (1, 1)}},
    "dropout_forward": DROPOUT,
    "dropout_backward": DROPOUT,
    "ctc_loss": {
        "labels": {"labels": (3, 2, 1)},
        "label lengths": {"label_lengths": (1, 2)},
        "input lengths": {"input_lengths": (5, 3)},
        "normalisation": {"ctc": dnn.CTCLossSpec(normalization="none")},
        "no gradients": {"gradients": False},
    },
    "matmul": {
        "bias": {"bias": Operand((1, 1, 24), "float16", seed=7)},
        "float32 bias": {"bias": Operand((1, 1, 24), seed=7)},
        "activation": {"activation": "relu"},
        "broadcast": {"b": Operand((1, 16, 24), "float16", seed=1)},
        "result": {"dtype": "float32"},
        "math type": {"math_type": "tensor_op_allow_conversion"},
    },
    "matmul_backward_a": {"result": {"dtype": "float32"}},
    "matmul_backward_b": {"result": {"dtype": "float32"}},
    "layer_normalization_forward": {"epsilon": {"epsilon": 0.5}, "training": {"training": True}},
    "rms_normalization_forward": {
        "epsilon": {"epsilon": 0.5},
        "training": {"training": True},
        "bias": {"bias": Operand((1, 16, 1, 1), seed=2)},
    },
    "instance_normalization_forward": {"epsilon": {"epsilon": 0.5}, "training": {"training": True}},
    "scaled_dot_product_attention_forward": {**HEADS, "stats": {"return_stats": True}},
    "scaled_dot_product_attention_backward": {
        name: HEADS[name] for name in ("causal", "scale", "broadcast bias")
    },
    "rnn_forward": {
        "bias": {"spec": ONE_BIAS, "weights": rnn_weights(ONE_BIAS)},
        "math type": {"spec": LSTM.replace(math_type="fma")},
        "algorithm": {"algorithm": "persist_static"},
        "lengths": {"lengths": RAGGED},
        "other lengths": {"lengths": RAGGED[::-1]},
        "filled padding": {"lengths": RAGGED, "padding_fill": 2.0},
        "training": {"training": True},
        "initial state": {"hx": Operand((1, 3, 8), seed=5), "cx": Operand((1, 3, 8), seed=6)},
        "replay": {"replay": True},
    },
    "multi_head_attention_forward": {
        "scale": {"spec": PROJECTIONS.replace(scale=0.25)},
        "lengths": {"q_lengths": (5, 3), "kv_lengths": (2, 5)},
        "other lengths": {"q_lengths": (3, 5), "kv_lengths": (2, 5)},
        "window": {"window": ((0, 0, 1, 2, 3), (1, 2, 3, 4, 5))},
        "residual": {"residual": Operand((2, 5, 8), seed=5)},
        "training": {"training": True},
    },
}

# The changes that find the plan of before.
HITS = {"values", "stream", "again"}
# Those of some operations: results that are part of the problem, operands that are copied or that
# only the call knows.
MORE_HITS = {
    "reduce_tensor": {"no out"},
    "transform_tensor": {"no out"},
    "convolution_backward_data": {"no out"},
    "convolution_backward_filter": {"no out"},
    "convolution_transpose": {"no out"},
    "im2col": {"gaps in w"},
    "ctc_loss": {"no out", "labels", "label lengths", "input lengths"},
    "layer_normalization_forward": {"gaps in bias"},
    "instance_normalization_forward": {"gaps in bias"},
    "layer_normalization_backward": {"gaps in x", "gaps in inv_variance"},
    "rms_normalization_backward": {"gaps in x"},
    "instance_normalization_backward": {"gaps in inv_variance"},
    "rnn_forward": {"no out", "other lengths", "initial state", "workspace", "first axis of x"},
    "rnn_backward_data": {"no out"},
    "multi_head_attention_forward": {"no out", "residual"},
    "multi_head_attention_backward_data": {"no out"},
}
# Kernels on a GPU may add in another order each time.
SUMS_IN_ANY_ORDER = {
    "convolution_backward_data",
    "convolution_backward_filter",
    "convolution_transpose",
    "scaled_dot_product_attention_backward",
    "spatial_transformer_grid_backward",
    "spatial_transformer_sample_backward",
    "rnn_backward_weights",
}
LIKE_BASE = {"stream", "again"}  # with the same results
OFF = "{}, one element off"
# The changes that every test makes; all others are exhaustive.
FEW = {"values", "alpha", "beta", "no out", "stream", "float16"}


@dataclass(frozen=True)
class Variant:
    """A call, and the circumstances that are no arguments of a problem.

    Attributes
    ----------
    out : str
        "given", "new" or "gaps".
    own_stream : bool
        Whether the handle is on another stream.
    workspace : int
        Bytes of a workspace of the caller's own; 0 for none.
    """

    call: Call
    out: str = "given"
    own_stream: bool = False
    workspace: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether a call without `out` writes the same numbers."""
        return self.out != "gaps" and not self.call.options.get("beta")

    def is_like(self, other: Variant) -> bool:
        """Whether the numbers are those of another one, whose place and stream alone differ."""
        return self.call is other.call and self.out != "gaps" and not self.workspace


def variants(call: Call, *, every: bool) -> Iterator[tuple[str, Variant]]:
    """Yield calls that differ from one in one property, by the name of this property."""
    for name, changes in CHANGES.get(call.operation, {}).items():
        yield name, Variant(call.changed(**changes))
    gaps = {f"gaps in {name}" for name in [*call.arrays][:1]}
    for name, variant in _usual_variants(call):
        if every or name in FEW | gaps:
            yield name, variant


def _usual_variants(call: Call) -> Iterator[tuple[str, Variant]]:
    """Yield the variants that most operations have."""
    for name, changed in _usual_changes(call):
        yield name, Variant(changed)
    if "out" in call.parameters and call.outs != 0:
        yield "no out", Variant(call, out="new")
        yield "gaps in out", Variant(call, out="gaps")
    if "workspace" in call.parameters:
        yield "workspace", Variant(call, workspace=1 << 24)
    yield "stream", Variant(call, own_stream=True)
    yield "again", Variant(call)


def _usual_changes(call: Call) -> Iterator[tuple[str, Call]]:
    """Yield calls that differ in what most operations have."""
    arrays = {n: operand for n, operand in call.arrays.items() if operand.kind != "given"}
    moved = {
        name: replace(operand, seed=operand.seed + 50)
        for name, operand in call.operands.items()
        if name != "dropout_state"
    }
    yield "values", call.changed(**moved)
    if arrays:
        first = next(iter(arrays.values()))
        narrow = "float32" if first.dtype == "float16" else "float16"
        for dtype in (narrow, "float64"):
            yield dtype, call.with_each_array(dtype=dtype)
        yield "layout", call.with_each_array(layout="first" if first.layout == "last" else "last")
    for name, operand in arrays.items():
        yield f"gaps in {name}", call.changed(**{name: replace(operand, layout="gaps")})
        yield OFF.format(name), call.changed(**{name: replace(operand, offset=1)})
        longer = (operand.shape[0] + 1, *operand.shape[1:])
        yield f"first axis of {name}", call.changed(**{name: replace(operand, shape=longer)})
    for name in ("alpha", "beta"):
        if name in call.parameters and name not in call.options:
            yield name, call.changed(**{name: 0.5})
    if "workspace_limit" in call.parameters:
        yield "no workspace", call.changed(workspace_limit=0)
        yield "workspace limit", call.changed(workspace_limit="1 GiB")


class Runner:
    """Makes variants of a call on a handle, and counts the plans that are made for them.

    Parameters
    ----------
    handle : Handle
    monkeypatch : MonkeyPatch
    options : mapping, optional
        Further arguments of the calls on this handle, which change no numbers.
    times : int
        How often each call is made with the same arrays; the last one counts.
    """

    def __init__(
        self,
        handle: dnn.Handle,
        monkeypatch: pytest.MonkeyPatch,
        options: Mapping[str, Any] | None = None,
        times: int = 1,
    ) -> None:
        self.handle, self._options, self._times = handle, options or {}, times
        self._stream, self._other_stream = handle.stream, handle.device.create_stream()
        self._state: Any = None
        self._specs: dict[str, Sequence[dnn.TensorSpec]] = {}
        # The patch, which lives longer than this object, keeps the counter alone.
        self._made = made = Counter[str]()
        real = Plan.__init__

        def counted(plan: Plan, *arguments: Any) -> None:
            made["plans"] += 1
            real(plan, *arguments)

        monkeypatch.setattr(Plan, "__init__", counted)

    def expected(self, name: str, variant: Variant) -> Any:
        """Return what a new handle writes, or the error that it raises."""
        call = variant.call
        with dnn.Handle(self.handle.device) as fresh:
            plain = call if variant.is_plain or not call.blends else call.changed(beta=0.0)
            try:
                results = plain.run(fresh, plain.place(fresh))
            except dnn.CudnnliteError as error:
                return type(error)
            self._specs[name] = [result.spec for result in results]
            if variant.is_plain:
                return [result.numpy() for result in results]
        with dnn.Handle(self.handle.device) as fresh:
            return self._written(fresh, name, variant, call.place(fresh))

    def run(self, name: str, variant: Variant) -> tuple[Any, int]:
        """Return what this handle writes, or its error, and how many plans it made."""
        handle, call = self.handle, variant.call
        operands = call.place(handle) | self._options
        if variant.workspace:
            operands["workspace"] = handle.empty((variant.workspace,), "uint8")
        if "dropout_state" in operands:  # each handle has one, which each call advances
            self._state = self._state or operands["dropout_state"]
            self._state.restore(operands["dropout_state"].save())
            operands["dropout_state"] = self._state
        handle.stream = self._other_stream if variant.own_stream else self._stream
        before = self._made["plans"]
        try:
            for _ in range(self._times):
                result = self._written(handle, name, variant, operands)
            return result, self._made["plans"] - before
        finally:
            handle.stream = self._stream

    def _written(
        self, handle: dnn.Handle, name: str, variant: Variant, operands: Mapping[str, Any]
    ) -> Any:
        call, out = variant.call, None
        specs = self._specs.get(name, self._specs.get("base") if name in LIKE_BASE else None)
        if specs is not None and variant.out != "new":
            out = call.outputs(handle, specs)
        if variant.out == "gaps":
            out = _with_gaps(handle, out)
        try:
            results = call.run(handle, operands, out)
        except dnn.CudnnliteError as error:
            return type(error)
        return [result.numpy() for result in results]


def _with_gaps(handle: dnn.Handle, out: Any) -> Any:
    """Return outputs, the first of them with gaps."""
    first, *others = out if isinstance(out, tuple) else (out,)
    gappy = poisoned(handle, with_gaps(first.shape, first.spec.dtype))
    return (gappy, *others) if others else gappy


def assert_same_bits(result: Any, expected: Any, name: str) -> None:
    """Check that two calls wrote the same bits, or raised the same error."""
    if isinstance(result, type) or isinstance(expected, type):
        assert result == expected, name
        return
    for array, own in zip(result, expected, strict=True):
        assert array.tobytes() == own.tobytes(), name


def assert_near(result: Any, expected: Any, name: str) -> None:
    """Check that two calls wrote nearly the same numbers, or raised the same error."""
    if isinstance(result, type) or isinstance(expected, type):
        assert result == expected, name
        return
    for array, own in zip(result, expected, strict=True):
        # Infinite numbers times 0 are NaN in both.
        is_number = np.isfinite(own)
        np.testing.assert_array_equal(np.isfinite(array), is_number, name)
        if is_number.any():
            assert_close(array[is_number], own[is_number].astype(np.float64), 5e-3)


def check_changes(
    runner: Runner,
    call: Call,
    changes: Iterable[tuple[str, Variant]],
    compare: Callable[[Any, Any, str], None] = assert_same_bits,
) -> set[str]:
    """Check the numbers of all variants; return the names of those that made no plan."""
    base = Variant(call)
    expected = runner.expected("base", base)
    compare(runner.run("base", base)[0], expected, "base")
    hits = set()
    for name, variant in changes:
        own = expected if variant.is_like(base) else runner.expected(name, variant)
        result, made = runner.run(name, variant)
        compare(result, own, name)
        if not isinstance(result, type):
            hits |= set() if made else {name}
            again, made = runner.run(name, variant)
            compare(again, own, name)
            assert not made, f"{name}: the second call made a plan"
        again, made = runner.run("base", base)
        compare(again, expected, f"before and after {name}")
        assert not made, f"{name}: the call before it has no plan any more"
    return hits


def check_hits(name: str, changes: Mapping[str, Variant], hits: set[str]) -> None:
    """Check which changes found the plan of before."""
    expected = HITS | MORE_HITS.get(name, set())
    expected |= {OFF.format(operand) for operand in CALLS[name].operands}
    # An engine that needs aligned operands may have a second plan for others.
    either = {change for change in changes if name.startswith("conv") and change.endswith(" off")}
    assert hits - either == expected & changes.keys() - either


def check_operation(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, name: str, *, every: bool
) -> None:
    """Check the numbers and the plans of variants of an operation's call."""
    compare = assert_same_bits
    if handle.device.kind == "cuda" and name in SUMS_IN_ANY_ORDER:
        compare = assert_near
    changes = dict(variants(CALLS[name], every=every))
    runner = Runner(handle, monkeypatch)
    hits = check_changes(runner, CALLS[name], changes.items(), compare)
    check_hits(name, changes, hits)


@quiet
@pytest.mark.parametrize("name", CALLS)
def test_one_property_changes(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    check_operation(handle, monkeypatch, name, every=False)


@quiet
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CALLS)
def test_each_property_changes(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    check_operation(handle, monkeypatch, name, every=True)


# ---------------------------------------------------------------- replay, tuners, plans


def moved_or_changed(call: Call, names: Iterable[str] = ()) -> dict[str, Variant]:
    """Return the variants of an operation's own arguments, and some of the usual ones.

    Those of other ways to compute are left out: an algorithm, an interface, replay.
    """
    ways = {"algorithm", "other algorithm", "descriptor call", "graph", "replay"}
    own = CHANGES[call.operation].keys() - ways
    return {
        name: variant
        for name, variant in variants(call, every=True)
        if name in own or name in {"alpha", "beta", "stream", "values", *names}
    }


REPLAYED = ("convolution_forward", "convolution_backward_data", "rnn_forward")


@quiet
@pytest.mark.parametrize("name", REPLAYED)
def test_one_property_of_a_replayed_call_changes(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Each call is made three times, so that the last one launches a graph."""
    call, runner = CALLS[name], Runner(handle, monkeypatch, {"replay": True}, times=3)
    compare = assert_near if name in SUMS_IN_ANY_ORDER else assert_same_bits
    changes = moved_or_changed(call, ["gaps in x", OFF.format("x")])
    check_changes(runner, call, changes.items(), compare)


TUNED = {
    "convolution_forward": {"stride", "alpha", "values", OFF.format("x"), "layout"},
    "matmul": {"bias", "activation", "values"},
    "layer_normalization_forward": {"epsilon", "values"},
    "rnn_forward": {"bias", "lengths", "values"},
}


def check_tuned(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, name: str, changes: dict[str, Variant]
) -> None:
    """Check calls whose algorithms a tuner chooses."""
    hurry(monkeypatch)
    policy = dnn.TuningPolicy(layouts=())
    with dnn.autotuned(handle, cache=":memory:", policy=policy):
        runner = Runner(handle, monkeypatch)
        hits = check_changes(runner, CALLS[name], changes.items(), assert_near)
    assert hits == {"values"}


@quiet
@pytest.mark.parametrize("name", TUNED)
def test_one_property_of_a_tuned_call_changes(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    usual = variants(CALLS[name], every=True)
    check_tuned(handle, monkeypatch, name, {n: v for n, v in usual if n in TUNED[name]})


# What has state is planned with weights or lengths, which `test_rnn_plan.py` changes.  A
# plan of `im2col` reads no filter.
PLANNED = [
    name
    for name in CALLS
    if not name.startswith(("rnn_", "multi_head_", "ctc_", "dropout_", "im2col"))
]
FEW_PLANNED = (
    "convolution_forward",
    "pooling_forward",
    "batch_normalization_backward",
    "reduce_tensor",
    "add_tensor",
    "layer_normalization_forward",
    "matmul",
)


@quiet
@pytest.mark.parametrize("name", FEW_PLANNED)
def test_a_plan_is_called_with_other_arrays(handle: dnn.Handle, name: str) -> None:
    check_plan(handle, CALLS[name])


@quiet
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PLANNED)
def test_each_plan_is_called_with_other_arrays(handle: dnn.Handle, name: str) -> None:
    check_plan(handle, CALLS[name])


def check_plan(handle: dnn.Handle, call: Call) -> None:
    """Call a plan with arrays that differ in one property, and each time with its own again.

    They are refused, or the results are right.
    """
    changes = {n: changed for n, changed in _usual_changes(call) if changed.options == call.options}
    with dnn.Handle(handle.device) as fresh:
        own = call.run(fresh, call.place(fresh))
        specs, expected = [result.spec for result in own], [result.numpy() for result in own]
    operands = call.place(handle)
    out = call.outputs(handle, specs)
    described = {} if out is None else {"out": spec_of(out)}
    with call.function.plan(handle, **operands, **call.options, **described) as plan:
        assert_same_bits(run_plan(plan, call, operands, out), expected, "base")
        for change, changed in changes.items():
            out = call.outputs(handle, specs)
            result = run_plan(plan, call, changed.place(handle), out)
            if not isinstance(result, type):
                with dnn.Handle(handle.device) as fresh:
                    alone = [r.numpy() for r in changed.run(fresh, changed.place(fresh))]
                assert_same_bits(result, alone, change)
            out = call.outputs(handle, specs)
            assert_same_bits(run_plan(plan, call, call.place(handle), out), expected, change)


def spec_of(out: Any) -> Any:
    """Return the specs of outputs, as `plan` takes them."""
    return tuple(array.spec for array in out) if isinstance(out, tuple) else out.spec


def run_plan(plan: Any, call: Call, operands: Mapping[str, Any], out: Any) -> Any:
    """Return what a plan writes, or its error."""
    ordered = [operands[name] for name in call.parameters if name in operands]
    try:
        if isinstance(plan, dnn.OperationPlan) and plan.problem.kind == "graph":
            outs = out if isinstance(out, tuple) else (out,)
            by_name = plan(*ordered, out=dict(zip(call.results, outs, strict=True)))
            return [by_name[name].numpy() for name in call.results]
        returned = plan(*ordered) if out is None else plan(*ordered, out=out)
        return [array.numpy() for array in written(returned)]
    except dnn.CudnnliteError as error:
        return type(error)
