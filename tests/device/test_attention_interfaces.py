"""Multi-head attention by graphs and by the descriptor call.

Both give the same numbers; the tests say which spec goes by which interface.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graph_oracles import attention, attention_gradients, causal_mask
from helpers.extents import each_pair
from tolerances import ATTENTION_BOUNDS, assert_close

import cudnnlite as dnn
from cudnnlite.dtypes import itemsize
from cudnnlite.emulated import attention as emulated_attention
from cudnnlite.operations.attention.projections import WeightMatrix, weight_matrix
from cudnnlite.search.timing_policy import TimingPolicy

Array = np.ndarray[Any, Any]
BATCH, STEPS, REACH = 3, 20, 28
CAUSAL = ([0] * STEPS, range(1, STEPS + 1))
# Six steps of keys, up to the query's own: the last query sees 14 to 19.
SLIDING = ([max(0, step - 5) for step in range(STEPS)], range(1, STEPS + 1))
INTERFACES = ("graph", "descriptor")


def spec_of(dtype: str = "float16", **options: Any) -> dnn.AttentionSpec:
    sizes = {"q_proj_size": 8, "v_proj_size": 16, "o_proj_size": 24, "bias": True} | options
    heads = sizes.pop("heads", 2)
    return dnn.AttentionSpec(heads, 24, 40, 32, dtype=dtype, **sizes)


class Case:
    """Operands of a call, and what comes out, in float64."""

    def __init__(
        self,
        handle: dnn.Handle,
        spec: dnn.AttentionSpec,
        *,
        causal: bool = False,
        by_time: bool = False,
    ) -> None:
        self.handle, self.spec, self.causal, self.by_time = handle, spec, causal, by_time
        self._rng = np.random.default_rng(0)
        self.host: dict[str, Array] = {}
        for name, shape in spec.weight_shapes().items():
            size = shape[-1] if name.startswith("w") else 1
            self.host[name] = self.values(shape, size**-0.5)
        self.weights = dnn.AttentionWeights.from_arrays(handle, spec, self.host)
        for name, steps in (("q", STEPS), ("k", REACH), ("v", REACH)):
            self.host[name] = self.values((BATCH, steps, getattr(spec, f"{name}_size")))
        self.host["dy"] = self.values((BATCH, STEPS, spec.output_size))
        self.q, self.k, self.v, self.dy = (
            self.on_device(self.host[x]) for x in ("q", "k", "v", "dy")
        )
        self.window = CAUSAL if causal else None
        self.expected = self._expected()

    def values(self, shape: tuple[int, ...], size: float = 1.0) -> Array:
        """Return values that the data type holds exactly."""
        rounded = self.handle.array(self._rng.standard_normal(shape) * size, dtype=self.dtype)
        return rounded.numpy().astype(np.float64)

    @property
    def dtype(self) -> str:
        return {"FLOAT": "float32", "HALF": "float16", "BFLOAT16": "bfloat16"}[self.spec.dtype.name]

    def on_device(self, values: Array) -> dnn.DeviceArray:
        """Return (batch, time, vector), or a view of (time, batch, vector)."""
        if not self.by_time:
            return self.handle.array(values, dtype=self.dtype)
        packed = self.handle.array(values.swapaxes(0, 1), dtype=self.dtype)
        strides = (packed.strides[1], packed.strides[0], 1)
        spec = dnn.TensorSpec(values.shape, self.dtype, strides=strides)
        return dnn.DeviceArray(spec, packed.device, packed.ptr, packed, packed.stream)

    def poisoned(self, values: Array) -> dnn.DeviceArray:
        return self.on_device(np.full(values.shape, np.nan))

    def _expected(self) -> dict[str, Array]:
        """Return y, and the gradients of everything."""
        host, spec = self.host, self.spec
        rows, columns = np.arange(STEPS), np.arange(REACH)
        mask = causal_mask(len(rows), len(columns)) if self.causal else None
        heads = {}
        for name in "qkv":
            heads[name] = np.einsum("bti,hpi->bhtp", host[name], host[f"w{name}"])
            if spec.bias:
                heads[name] += host[f"b{name}"][:, None]
        o, _, _ = attention(heads["q"], heads["k"], heads["v"], spec.scale, mask)
        results = {}
        dy = host["dy"]
        if spec.o_proj_size:
            results["y"] = np.einsum("bhtv,hov->bto", o, host["wo"])
            if spec.bias:
                results["y"] += host["bo"]
                results["dbo"] = dy.sum((0, 1))
            do = np.einsum("bto,hov->bhtv", dy, host["wo"])
            results["dwo"] = np.einsum("bto,bhtv->hov", dy, o)
        else:
            results["y"] = o.swapaxes(1, 2).reshape(BATCH, STEPS, -1)
            do = dy.reshape(BATCH, STEPS, spec.heads, -1).swapaxes(1, 2)
        slopes = attention_gradients(heads["q"], heads["k"], heads["v"], do, spec.scale, mask)
        for name, slope in zip("qkv", slopes, strict=True):
            results[f"d{name}"] = np.einsum("bhtp,hpi->bti", slope, host[f"w{name}"])
            results[f"dw{name}"] = np.einsum("bhtp,bti->hpi", slope, host[name])
            if spec.bias:
                results[f"db{name}"] = slope.sum((0, 2))
        return results

    def forward(self, **options: Any) -> Any:
        return dnn.multi_head_attention_forward(
            self.handle,
            self.spec,
            self.weights,
            self.q,
            self.k,
            self.v,
            **{"window": self.window} | options,
        )

    def plan(self, **options: Any) -> Any:
        return dnn.multi_head_attention_forward.plan(
            self.handle,
            self.spec,
            None,
            self.q,
            self.k,
            self.v,
            **{"window": self.window} | options,
        )

    def check(self, result: Any, name: str, bound: float | None = None) -> None:
        """Compare a result with the oracle; of gradients that nearly cancel, with what they sum."""
        expected = self.expected[name]
        magnitude = None
        if name != "y":
            magnitude = np.full(expected.shape, 1.0)
        if bound is None:
            bound = ATTENTION_BOUNDS[self.dtype][name != "y"]
        assert_close(result.numpy(), expected, bound, magnitude)

    def check_all(self, **options: Any) -> None:
        """Compare both passes; outputs are poisoned before."""
        out = self.poisoned(self.host["dy"])
        y, reserve = self.forward(training=True, out=out, **options)
        assert y is out
        self.check(y, "y")
        out = tuple(self.poisoned(self.host[name]) for name in "qkv")
        gradients = dnn.multi_head_attention_backward_data(self.handle, reserve, self.dy, out=out)
        assert gradients == out
        for name, gradient in zip("qkv", gradients, strict=True):
            self.check(gradient, f"d{name}")
        dweights = dnn.multi_head_attention_backward_weights(self.handle, reserve)
        for name, gradient in dweights.items():
            self.check(gradient, f"d{name}")
        before = dweights.numpy()
        dnn.multi_head_attention_backward_weights(
            self.handle, reserve, out=dweights, accumulate=True
        )
        for name, gradient in dweights.items():
            bound = ATTENTION_BOUNDS[self.dtype][0]
            magnitude = np.full(gradient.shape, 1.0)
            assert_close(gradient.numpy(), 2 * before[name].astype(np.float64), bound, magnitude)


@each_pair(
    options=[{}, {"o_proj_size": 0}, {"bias": False}],
    causal=[False, True],
    by_time=[False, True],
    interface=INTERFACES,
)
def test_output_and_gradients_are_the_formulas(handle, options, causal, by_time, interface):
    case = Case(handle, spec_of(**options), causal=causal, by_time=by_time)
    case.check_all(interface=interface)
    out = case.poisoned(case.host["dy"])
    case.check(case.forward(interface=interface, out=out), "y")


@pytest.mark.parametrize("interface", INTERFACES)
def test_bfloat16(handle, interface):
    Case(handle, spec_of("bfloat16"), causal=True).check_all(interface=interface)


@pytest.mark.parametrize("interface", INTERFACES)
def test_float32_in_inference(handle, interface):
    case = Case(handle, spec_of("float32"))
    case.check(case.forward(interface=interface), "y", ATTENTION_BOUNDS["tf32"][0])


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("options", [{}, {"heads": 3, "o_proj_size": 0, "v_proj_size": 8}])
def test_a_residual_is_added(handle, options, training, interface):
    case = Case(handle, spec_of(**options))
    residual = case.values(case.host["q"].shape)
    case.expected["y"] = case.expected["y"] + residual
    result = case.forward(interface=interface, training=training, residual=case.on_device(residual))
    case.check(result.y if training else result, "y")


@pytest.mark.parametrize(
    ("changes", "options", "interface", "remark"),
    [
        ({}, {}, "graph", ""),
        ({}, {"training": True}, "graph", ""),
        ({"dtype": "bfloat16"}, {"training": True}, "graph", ""),
        ({"o_proj_size": 0}, {}, "graph", ""),
        ({"dropout": 0.5}, {}, "graph", ""),
        ({}, {"window": CAUSAL}, "graph", ""),
        ({}, {"window": ([0] * STEPS, [99] * STEPS)}, "graph", ""),
        ({}, {"kv_lengths": [REACH] * BATCH}, "graph", ""),
        ({"dtype": "float32"}, {}, "graph", ""),
        ({}, {"interface": "descriptor"}, "descriptor", ""),
        ({"dtype": "float32"}, {"training": True}, "descriptor", "gradients of attention: "),
        ({"dtype": "float32", "math_type": "fma"}, {}, "descriptor", "fewer bits"),
        ({"dtype": "float64"}, {}, "descriptor", "dtype is DOUBLE"),
        ({"compute_type": "float16"}, {}, "descriptor", "compute_type is HALF"),
        ({"v_proj_size": 0}, {}, "descriptor", "there is no projection of v"),
        ({}, {"kv_lengths": [REACH, 2, 1]}, "graph", ""),
        ({}, {"q_lengths": [STEPS, 2, 1]}, "graph", ""),
        ({}, {"window": SLIDING}, "graph", ""),
        (
            {"dtype": "float32"},
            {"q_lengths": [9] * BATCH},
            "descriptor",
            "differ in length, in FLOAT",
        ),
        ({}, {"kv_lengths": [REACH, 2, 0]}, "descriptor", "a sequence has no steps"),
        ({}, {"q_lengths": [STEPS, 2, 0]}, "descriptor", "a sequence has no steps"),
        ({}, {"window": SLIDING, "kv_lengths": [REACH, 14, 15]}, "descriptor", "attends to no key"),
        ({}, {"window": ([0] * STEPS, [1] * STEPS)}, "descriptor", "neither whole nor causal"),
        ({}, {"window": ([1] * STEPS, [REACH] * STEPS)}, "descriptor", "neither whole nor causal"),
    ],
)
def test_which_spec_goes_by_which_interface(handle, changes, options, interface, remark):
    spec = spec_of(**changes)
    operands = [
        dnn.TensorSpec((BATCH, steps, size), spec.dtype)
        for steps, size in ((STEPS, spec.q_size), (REACH, spec.k_size), (REACH, spec.v_size))
    ]
    make_plan = dnn.multi_head_attention_forward.plan
    with make_plan(handle, spec, None, *operands, **options) as plan:
        assert plan.choice.interface == interface
        assert remark in plan.choice.remark
        assert bool(remark) == bool(plan.choice.remark)
        assert bool(plan.choice.engines) == (interface == "graph")
        assert str(plan.choice).startswith(interface)
    if remark:
        with pytest.raises(dnn.NotSupportedError, match=remark):
            make_plan(handle, spec, None, *operands, **options | {"interface": "graph"})


def test_beams_go_by_the_descriptor_call(handle):
    spec = spec_of()
    operands = [
        dnn.TensorSpec((BATCH, beam, steps, size), "float16")
        for beam, steps, size in ((2, STEPS, 24), (1, REACH, 40), (1, REACH, 32))
    ]
    with dnn.multi_head_attention_forward.plan(handle, spec, None, *operands) as plan:
        assert plan.choice.remark == "no graphs: there are 2 beams; graphs have one"


def test_dropout_in_training_goes_by_the_descriptor_call(handle):
    case = Case(handle, spec_of(dropout=0.5))
    state = dnn.DropoutState(handle)
    with case.plan(training=True, dropout_state=state) as plan:
        assert plan.choice.remark == "no graphs: dropout in training"
    state.close()


def test_a_limit_of_workspace_leaves_the_descriptor_call():
    with dnn.Handle("emulated", workspace_limit=4096) as handle:
        case = Case(handle, spec_of())
        with case.plan(training=True) as plan:
            assert plan.choice.remark.endswith("the limit is 4 KiB")
    with dnn.Handle("emulated") as handle, dnn.Handle("emulated", workspace_limit=4096) as small:
        case = Case(handle, spec_of())
        y, reserve = case.forward(training=True)
        with pytest.raises(dnn.WorkspaceLimitError):
            dnn.multi_head_attention_backward_data(small, reserve, y)


class NotedLimits:
    """A tuner that chooses nothing, and notes which limit of workspace an engine has."""

    revision = 0

    def __init__(self) -> None:
        self.limits: dict[frozenset[str], int] = {}

    def choose(self, problem: Any, operands: Any, workspace_limit: int, **_: Any) -> None:
        self.limits[frozenset(problem.graph.outputs)] = workspace_limit


def test_scratch_outputs_take_their_part_of_the_tuner_s_limit():
    """In a function of its own and in multi-head attention: an engine has what they leave."""
    limit = 1 << 20
    with dnn.Handle("emulated", workspace_limit=limit) as handle:
        case = Case(handle, spec_of())
        handle.chooser = noted = NotedLimits()
        with case.plan(training=True) as plan:
            assert plan.choice.engines["gradients of attention"] is not None
        (with_sums,) = (names for names in noted.limits if "row_sums" in names)
        assert noted.limits.pop(with_sums) < limit
        assert {*noted.limits.values()} == {limit}
        heads = [dnn.TensorSpec((1, 2, 64, 64), "float16")] * 5
        stats = dnn.TensorSpec((1, 2, 64, 1))
        with dnn.scaled_dot_product_attention_backward.plan(handle, *heads, stats) as plan:
            noted_limit = noted.limits[frozenset(plan.graph.outputs)]
            assert limit - noted_limit >= plan.workspace - plan.choice.workspace > 0


def test_one_step_goes_by_the_descriptor_call(handle):
    case = Case(handle, spec_of())
    out = case.on_device(np.full(case.host["dy"].shape, 7.0))
    result = case.forward(step=2, out=out).numpy()
    bound = ATTENTION_BOUNDS["float16"][0]
    assert_close(result[:, 2], case.expected["y"][:, 2], bound)
    assert (np.delete(result, 2, 1) == 7).all()
    with pytest.raises(dnn.ArgumentError, match="step=2 is given with interface='graph'"):
        case.forward(step=2, interface="graph")
    with pytest.raises(dnn.ArgumentError, match=f"step={STEPS}; allowed: below"):
        case.forward(step=STEPS)


@pytest.mark.filterwarnings("ignore::cudnnlite.AlignmentWarning")
def test_operands_that_are_not_aligned_are_copied(handle):
    case = Case(handle, spec_of())

    def shifted(values: Array) -> dnn.DeviceArray:
        flat = handle.array(np.append(np.zeros(1), values.reshape(-1)), dtype="float16")
        spec = dnn.TensorSpec(values.shape, "float16")
        return dnn.DeviceArray(spec, flat.device, flat.ptr + 2, flat, flat.stream)

    case.q, case.k, case.v, dy = (shifted(case.host[name]) for name in ("q", "k", "v", "dy"))
    with pytest.warns(dnn.AlignmentWarning, match="q begins at"):
        y, reserve = case.forward(training=True, out=shifted(case.host["dy"]))
    case.check(y, "y")
    out = tuple(shifted(case.host[name]) for name in "qkv")
    gradients = dnn.multi_head_attention_backward_data(handle, reserve, dy, out=out)
    for name, gradient in zip("qkv", gradients, strict=True):
        case.check(gradient, f"d{name}")
    for name, gradient in dnn.multi_head_attention_backward_weights(handle, reserve).items():
        case.check(gradient, f"d{name}")


def test_a_reserve_is_for_one_interface(handle):
    case = Case(handle, spec_of())
    y, reserve = case.forward(training=True)
    plan = case.plan(training=True, interface="descriptor")
    with plan, pytest.raises(dnn.ArgumentError, match="reserve is of interface='graph'"):
        plan.backward_data(reserve, y)


def test_a_training_step_is_captured(handle):
    case = Case(handle, spec_of(), causal=True)
    y, reserve = case.forward(training=True)
    gradients = dnn.multi_head_attention_backward_data(handle, reserve, case.dy)
    dweights = dnn.multi_head_attention_backward_weights(handle, reserve)
    with dnn.capture(handle) as graph:
        case.forward(training=True, out=y, reserve=reserve)
        dnn.multi_head_attention_backward_data(handle, reserve, case.dy, out=gradients)
        dnn.multi_head_attention_backward_weights(handle, reserve, out=dweights)
    for array in (y, *gradients, dweights.array):
        handle.device.fill(array.ptr, array.nbytes, 0xFF, handle.stream)
    graph.launch()
    case.check(y, "y")
    for name, gradient in zip("qkv", gradients, strict=True):
        case.check(gradient, f"d{name}")
    for name, gradient in dweights.items():
        case.check(gradient, f"d{name}")
    graph.close()


def test_an_interface_is_named(handle):
    with pytest.raises(dnn.ArgumentError, match="interface='legacy'"):
        Case(handle, spec_of()).forward(interface="legacy")


@pytest.mark.parametrize(
    ("name", "shape", "strides", "matrix"),
    [
        # cuDNN 9.28's own orders
        ("wq", (2, 8, 16), (8, 1, 16), WeightMatrix(16, 16, 1, 16)),
        ("wv", (2, 24, 16), (24, 1, 48), WeightMatrix(48, 16, 1, 48)),
        ("wo", (2, 40, 24), (960, 1, 40), WeightMatrix(40, 48, 1, 40)),
        # others
        ("wq", (2, 8, 16), (128, 16, 1), WeightMatrix(16, 16, 16, 1)),
        ("wo", (2, 40, 24), (24, 48, 1), WeightMatrix(40, 48, 48, 1)),
        ("wo", (2, 40, 24), (960, 24, 1), None),
        ("wk", (2, 8, 16), (128, 1, 8), None),
        ("wk", (1, 8, 16), (128, 1, 8), WeightMatrix(8, 16, 1, 8)),
    ],
)
def test_weights_of_all_heads_are_one_matrix(name, shape, strides, matrix):
    assert weight_matrix(name, dnn.TensorSpec(shape, "float16", strides=strides)) == matrix


def test_its_graphs_are_tuned(handle: dnn.Handle) -> None:
    """Each once; the second call and the gradients of the first find the plans."""
    handle.timing = TimingPolicy(rounds=3, further_rounds=0, sample_ms=0.1)
    case = Case(handle, spec_of())
    expected = case.forward().numpy()
    with dnn.autotuned(handle, cache=":memory:") as tuner:
        first = case.forward().numpy()
        count = tuner.measured
        assert count >= 3
        assert (case.forward().numpy() == first).all()
        assert tuner.measured == count
    assert_close(first.astype(np.float64), expected.astype(np.float64), 2e-3)


# ---------------------------------------------------------------- projections at once

JOINT = "projection of q, k, v"


def give_layout_of_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the emulated device have weights where cuDNN 9.19 has them, one behind the other."""

    def offsets(spec: dnn.AttentionSpec) -> emulated_attention.WeightOffsets:
        places, offset = {}, 0
        for name, shape in spec.weight_shapes().items():
            places[name] = offset
            offset += int(np.prod(shape)) * itemsize(spec.dtype)
        return emulated_attention.WeightOffsets(places, offset)

    orders = {"wq": (2, 0, 1), "wk": (2, 0, 1), "wv": (2, 0, 1), "wo": (0, 2, 1)}
    monkeypatch.setattr(emulated_attention, "weight_offsets", offsets)
    monkeypatch.setattr(emulated_attention, "MEMORY_ORDERS", orders)


class SelfCase(Case):
    """Attention of one array with itself."""

    def __init__(self, handle: dnn.Handle, dtype: str, *, bias: bool) -> None:
        spec = dnn.AttentionSpec(
            2, 24, q_proj_size=16, v_proj_size=16, o_proj_size=24, bias=bias, dtype=dtype
        )
        super().__init__(handle, spec)
        self.k = self.v = self.q
        self.host["k"] = self.host["v"] = self.host["q"]
        self.expected = self._expected()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_self_attention_projects_at_once(handle, dtype, bias, monkeypatch):
    give_layout_of_cudnn(monkeypatch)
    case = SelfCase(handle, dtype, bias=bias)
    bound = ATTENTION_BOUNDS["tf32" if dtype == "float32" else dtype][0]
    with case.plan(interface="graph") as plan:
        assert JOINT not in plan.choice.engines
        workspace = plan.workspace
        copy = case.q.copy()
        case.check(plan(case.weights, case.q, copy, case.q), "y", bound)
        assert JOINT not in plan.choice.engines, "three arrays, as far as the plan knows"
        out = case.poisoned(case.host["dy"])
        case.check(plan(case.weights, case.q, case.q, case.q, out=out), "y", bound)
        assert JOINT in plan.choice.engines
        assert plan.workspace == workspace
        case.check(plan(case.weights, case.q, copy, case.q), "y", bound)
    residual = case.values(case.host["q"].shape)
    case.expected["y"] = case.expected["y"] + residual
    result = case.forward(interface="graph", residual=case.on_device(residual))
    case.check(result, "y", bound)


def test_self_attention_with_weights_that_lie_otherwise(own_handle):
    """The emulated device has them in the opposite order, with gaps: three projections."""
    case = SelfCase(own_handle, "float16", bias=True)
    with case.plan(interface="graph") as plan:
        case.check(plan(case.weights, case.q, case.q, case.q), "y")
        assert JOINT not in plan.choice.engines


def test_training_projects_apart(handle, monkeypatch):
    """The gradients read what the projections kept."""
    give_layout_of_cudnn(monkeypatch)
    case = SelfCase(handle, "float16", bias=True)
    case.check_all(interface="graph")
