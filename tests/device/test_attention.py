"""Multi-head attention, forward and backward, against PyTorch in float64.

Dropout is checked by the share of zeros; invalid input is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tolerances import ATTENTION_BOUNDS, assert_close

import cudnnlite as dnn
from cudnnlite.specs.tensor import TensorSpec

torch: Any = pytest.importorskip("torch")
Array = np.ndarray[Any, Any]
BATCH, BEAM, STEPS, REACH = 3, 2, 4, 6
Q_LENGTHS, KV_LENGTHS = [4, 2, 0, 1, 3, 4], [6, 3, 0]
CAUSAL = ([0, 0, 1, 2], [1, 3, 4, 6])
WHOLE = {"q_proj_size": 4, "v_proj_size": 3, "o_proj_size": 9}
PROJECTIONS = {
    "all": WHOLE,
    "none": {"k_size": 5},
    "no output": WHOLE | {"o_proj_size": 0},
    "output": {"k_size": 5, "o_proj_size": 9},
    "no values": WHOLE | {"v_proj_size": 0},
    "keys": {"k_proj_size": 5, "v_proj_size": 2},
    "queries": {"q_proj_size": 6, "k_proj_size": 0, "v_proj_size": 0, "o_proj_size": 4},
}


def spec_of(
    projections: str = "all", dtype: str = "float64", math: str = "fma", **options: Any
) -> dnn.AttentionSpec:
    sizes = {"k_size": 6} | PROJECTIONS[projections] | options
    return dnn.AttentionSpec(2, 5, v_size=7, dtype=dtype, math_type=math, **sizes)


class Case:
    """Operands of a call, and what PyTorch computes of them in float64."""

    def __init__(
        self, handle: dnn.Handle, spec: dnn.AttentionSpec, beam: int = BEAM, seed: int = 0
    ) -> None:
        self.handle, self.spec, self.rng = handle, spec, np.random.default_rng(seed)
        weights = {name: self.values(shape) / 2 for name, shape in spec.weight_shapes().items()}
        self.weights = dnn.AttentionWeights.from_arrays(handle, spec, weights)
        shapes = (
            (BATCH, beam, STEPS, spec.q_size),
            (BATCH, 1, REACH, spec.k_size),
            (BATCH, 1, REACH, spec.v_size),
        )
        self.hosts = {name: self.values(shape) for name, shape in zip("qkv", shapes, strict=True)}
        self.leaves = {
            name: torch.tensor(a, requires_grad=True) for name, a in (self.hosts | weights).items()
        }
        self.operands = [handle.array(a, dtype=self.dtype) for a in self.hosts.values()]
        self.beam = beam

    @property
    def dtype(self) -> str:
        return {"FLOAT": "float32", "DOUBLE": "float64", "HALF": "float16", "BFLOAT16": "bfloat16"}[
            self.spec.dtype.name
        ]

    def values(self, shape: tuple[int, ...]) -> Array:
        """Return values that the data type holds exactly."""
        rounded = self.handle.array(self.rng.standard_normal(shape), dtype=self.dtype).numpy()
        return np.asarray(rounded.astype(np.float64))

    def live(self, q_lengths: Any) -> Any:
        return torch.tensor(
            np.arange(STEPS)
            < np.reshape(q_lengths or [STEPS] * BATCH * self.beam, (BATCH, self.beam, 1))
        )

    def expected(self, q_lengths: Any = None, kv_lengths: Any = None, window: Any = None) -> Any:
        spec, leaves = self.spec, self.leaves
        low, high = window or ([0] * STEPS, [REACH] * STEPS)
        keys = np.arange(REACH)
        visible = (keys >= np.reshape(low, (-1, 1))) & (keys < np.reshape(high, (-1, 1)))
        visible = visible & (keys < np.reshape(kv_lengths or [REACH] * BATCH, (-1, 1, 1, 1)))
        live = self.live(q_lengths)[..., None]
        outs = []
        for head in range(spec.heads):
            projections = []
            for name in "qkv":
                x = leaves[name]
                x = x @ leaves[f"w{name}"][head].T if f"w{name}" in leaves else x
                projections.append(x + leaves[f"b{name}"][head] if f"b{name}" in leaves else x)
            q, k, v = projections
            scores = (q @ k.transpose(-1, -2) * spec.scale).masked_fill(
                ~torch.tensor(visible), -1e300
            )
            outs.append(torch.softmax(scores, -1) * torch.tensor(visible) * live @ v)
        if "wo" not in leaves:
            return torch.cat(outs, -1)
        y = sum(out @ leaves["wo"][head].T for head, out in enumerate(outs))
        return y + leaves["bo"] if "bo" in leaves else y

    def forward(self, **options: Any) -> Any:
        return dnn.multi_head_attention_forward(
            self.handle, self.spec, self.weights, *self.operands, **options
        )

    def check(self, bound: tuple[float, float], **limits: Any) -> None:
        """Compare output and all gradients; outputs are poisoned before."""
        expected = self.expected(**limits)
        live = self.live(limits.get("q_lengths"))[..., None]
        dy = self.values(tuple(expected.shape)) * live.numpy()
        out = self.handle.array(np.full(expected.shape, np.nan), dtype=self.dtype)
        y, reserve = self.forward(training=True, out=out, **limits)
        assert y is out
        assert_close(y.numpy(), expected.detach().numpy(), bound[0])
        assert_close(self.forward(**limits).numpy(), expected.detach().numpy(), bound[0])
        (expected * torch.tensor(dy)).sum().backward()
        dy_array = self.handle.array(dy, dtype=self.dtype)
        poisoned = [
            self.handle.array(np.full(a.shape, np.nan), dtype=self.dtype) for a in self.operands
        ]
        gradients = dnn.multi_head_attention_backward_data(
            self.handle, reserve, dy_array, out=poisoned
        )
        for name, gradient in zip("qkv", gradients, strict=True):
            self.compare(gradient.numpy(), name, bound[1])
        dweights = dnn.multi_head_attention_backward_weights(self.handle, reserve)
        for name in self.weights:
            self.compare(dweights[name].numpy(), name, bound[1])
        again = dnn.multi_head_attention_backward_weights(
            self.handle, reserve, out=dweights, accumulate=True
        )
        assert again is dweights
        for name in self.weights:
            self.compare(again[name].numpy() / 2, name, 2 * bound[1])

    def compare(self, result: Array, name: str, bound: float) -> None:
        gradient = self.leaves[name].grad.numpy()
        # A bias of keys changes no softmax, and other slopes may cancel: an error is relative to
        # the size of the operands, and in 16 bits to that of the terms.
        size = 1.0
        if name == "bk" and self.dtype in ("float16", "bfloat16"):
            terms = self.leaves["bq" if "bq" in self.leaves else "wk"]
            size = float(terms.grad.abs().max())
        assert_close(result, gradient, bound, magnitude=np.full(gradient.shape, size))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("projections", PROJECTIONS)
def test_output_and_gradients_are_pytorchs(handle, projections, bias):
    case = Case(handle, spec_of(projections, bias=bias))
    case.check(
        ATTENTION_BOUNDS["float64"], q_lengths=Q_LENGTHS, kv_lengths=KV_LENGTHS, window=CAUSAL
    )


@pytest.mark.parametrize("math", ["fma", "default", "tensor_op", "tensor_op_allow_conversion"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_data_types(handle, dtype, math):
    bound = "tf32" if (dtype, math == "fma") == ("float32", False) else dtype
    Case(handle, spec_of("all", dtype, math, bias=True)).check(
        ATTENTION_BOUNDS[bound], kv_lengths=KV_LENGTHS
    )


LIMITS: dict[str, dict[str, Any]] = {
    "whole": {},
    "causal": {"window": ([0] * STEPS, range(1, STEPS + 1))},
    "three steps": {"window": ([0, 0, 0, 1], range(1, STEPS + 1))},
    "two steps, and those behind": {"window": ([0, 0, 1, 2], [REACH] * STEPS)},
    "lengths": {"q_lengths": [4, 2, 1], "kv_lengths": [3, 6, 1]},
    "lengths of keys, causal": {
        "kv_lengths": [3, 6, 1],
        "window": ([0] * STEPS, range(1, STEPS + 1)),
    },
    "lengths, three steps": {
        "q_lengths": [3, 4, 1],
        "kv_lengths": [2, 6, 5],
        "window": ([0, 0, 0, 1], range(1, STEPS + 1)),
    },
}


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("output", [0, 24])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_limits_in_16_bits(handle, dtype, output, limits):
    sizes = {"q_proj_size": 8, "v_proj_size": 16, "o_proj_size": output}
    spec = dnn.AttentionSpec(2, 16, 24, 32, **sizes, bias=True, dtype=dtype)
    case = Case(handle, spec, beam=1)
    case.check(ATTENTION_BOUNDS[dtype], **LIMITS[limits])


def test_float16_throughout(handle):
    Case(handle, spec_of("all", "float16", compute_type="float16")).check((1e-2, 5e-2))


@pytest.mark.parametrize(
    "limits", [{}, {"q_lengths": Q_LENGTHS}, {"kv_lengths": [0, 6, 2]}, {"window": CAUSAL}]
)
@pytest.mark.parametrize("beam", [1, 2])
def test_lengths_and_windows(handle, beam, limits):
    limits = {
        name: value[: BATCH * beam] if name == "q_lengths" else value
        for name, value in limits.items()
    }
    Case(handle, spec_of(bias=True), beam).check(ATTENTION_BOUNDS["float64"], **limits)


@pytest.mark.parametrize("kv_lengths", [None, [0, 2, 3]])
@pytest.mark.parametrize("q_lengths", [[0, 2, 1, 0, 1, 2], [3, 0, 1, 2, 3, 0], [0] * 6])
def test_no_query_reaches_the_last_step(handle, q_lengths, kv_lengths):
    """cuDNN 9.19 leaves dq beyond the longest query as it was, where queries are not projected."""
    Case(handle, spec_of("none")).check(
        ATTENTION_BOUNDS["float64"], q_lengths=q_lengths, kv_lengths=kv_lengths
    )


def test_the_emulated_device_leaves_what_an_h200_leaves_unwritten(monkeypatch):
    with dnn.Handle("emulated") as handle:
        # without the zeros that are written before the call
        monkeypatch.setattr(handle.device, "fill", lambda ptr, nbytes, byte, stream: None)
        case = Case(handle, spec_of("none"))
        y, reserve = case.forward(training=True, q_lengths=[0, 2, 1, 0, 1, 2])
        dq, dk, dv = (
            handle.array(np.full(array.shape, np.nan), dtype="float64") for array in case.operands
        )
        dnn.multi_head_attention_backward_data(handle, reserve, y, out=(dq, dk, dv))
        unwritten = np.isnan(dq.numpy()).all((0, 1, 3))
        np.testing.assert_array_equal(unwritten, np.arange(STEPS) >= 2)


def test_a_window_may_be_empty_or_reach_too_far(handle):
    Case(handle, spec_of(bias=True)).check(
        ATTENTION_BOUNDS["float64"], window=([0, 3, 2, 0], [2, 3, 1, 99])
    )


def test_queries_of_no_steps(handle):
    case = Case(handle, spec_of(bias=True))
    lengths = [4, 0, 1, 0, 3, 4]
    y = case.forward(q_lengths=lengths).numpy()
    assert_close(y, case.expected(lengths).detach().numpy(), ATTENTION_BOUNDS["float64"][0])
    np.testing.assert_array_equal(
        y[0, 1], np.broadcast_to(case.weights["bo"].numpy(), y[0, 1].shape)
    )


@pytest.mark.parametrize("seed", range(5))
def test_more_room_than_is_used(handle, seed):
    """cuDNN is not told of the room.

    With it, an H200's gradients of some queries and keys were wrong.
    """
    spec = spec_of(max_q_length=9, max_kv_length=8, max_batch=5, max_beam=4)
    case = Case(handle, spec, seed=seed)
    case.check(ATTENTION_BOUNDS["float64"], q_lengths=Q_LENGTHS, kv_lengths=KV_LENGTHS)
    nbytes = case.forward(training=True).reserve.array.nbytes
    assert nbytes == Case(handle, spec_of()).forward(training=True).reserve.array.nbytes


@pytest.mark.parametrize(
    "order", [(0, 1, 2), (0, 2, 1), (2, 0, 1), (2, 1, 0), (1, 0, 2), (1, 2, 0)]
)
def test_any_order_of_axes(handle, order):
    case = Case(handle, spec_of())
    expected, back = case.expected(), tuple(np.argsort((*order, 3)))
    for number, host in enumerate(case.hosts.values()):
        lying = handle.array(np.ascontiguousarray(host.transpose((*order, 3))))
        spec = TensorSpec(host.shape, "float64", strides=[lying.strides[axis] for axis in back])
        case.operands[number] = dnn.DeviceArray(spec, lying.device, lying.ptr, lying, lying.stream)
    y = case.forward()
    assert_close(y.numpy(), expected.detach().numpy(), ATTENTION_BOUNDS["float64"][0])
    assert y.strides == tuple(
        np.array(handle.empty([y.shape[axis] for axis in (*order, 3)]).strides)[list(back)]
    )


def test_three_axes_are_one_beam(handle):
    case = Case(handle, spec_of(), beam=1)
    expected = case.expected().detach().numpy()
    case.operands = [handle.array(host[:, 0]) for host in case.hosts.values()]
    y, reserve = case.forward(training=True)
    assert_close(y.numpy(), expected[:, 0], ATTENTION_BOUNDS["float64"][0])
    gradients = dnn.multi_head_attention_backward_data(handle, reserve, y)
    assert [g.shape for g in gradients] == [a.shape for a in case.operands]


@pytest.mark.parametrize("ranks", ["344", "433"])
def test_only_some_operands_may_have_three_axes(handle, ranks):
    case = Case(handle, spec_of(), beam=1)
    expected = case.expected().detach().numpy()
    hosts = zip(case.hosts.values(), ranks, strict=True)
    case.operands = [handle.array(host[:, 0] if rank == "3" else host) for host, rank in hosts]
    y, reserve = case.forward(training=True)
    assert_close(y.numpy(), expected.reshape(y.shape), ATTENTION_BOUNDS["float64"][0])
    gradients = dnn.multi_head_attention_backward_data(handle, reserve, y)
    assert [g.shape for g in gradients] == [a.shape for a in case.operands]


@pytest.mark.parametrize("training", [False, True])
def test_a_residual_is_added(handle, training):
    case = Case(
        handle,
        dnn.AttentionSpec(2, 5, 6, 7, **WHOLE | {"o_proj_size": 5}, bias=True, dtype="float64"),
    )
    residual = case.values((BATCH, BEAM, STEPS, 5))
    result = case.forward(training=training, residual=handle.array(residual))
    y = result.y if training else result
    assert_close(
        y.numpy(), case.expected().detach().numpy() + residual, ATTENTION_BOUNDS["float64"][0]
    )
    other = Case(handle, spec_of())
    with pytest.raises(dnn.ArgumentError, match="residual with outputs of 9"):
        other.forward(residual=handle.empty((BATCH, BEAM, STEPS, 9), "float64"))


def test_one_step_leaves_the_others(handle):
    case = Case(handle, spec_of())
    expected = case.expected(kv_lengths=KV_LENGTHS).detach().numpy()
    for step in range(STEPS):
        out = handle.array(np.full(expected.shape, 77.0))
        case.forward(kv_lengths=KV_LENGTHS, step=step, out=out)
        result = out.numpy()
        assert_close(result[:, :, step], expected[:, :, step], ATTENTION_BOUNDS["float64"][0])
        assert (np.delete(result, step, 2) == 77).all()


@pytest.mark.parametrize(
    "chances", [{"dropout": 0.4}, {"post_dropout": 0.3}, {"dropout": 0.4, "post_dropout": 0.3}]
)
def test_dropout(handle, chances):
    # Without projections, and with unit vectors as values, the output shows each softmax weight.
    spec = dnn.AttentionSpec(2, REACH, dtype="float64", math_type="fma", **chances)
    case = Case(handle, spec)
    case.operands[2] = handle.array(np.broadcast_to(np.eye(REACH), (BATCH, 1, REACH, REACH)))
    state = dnn.DropoutState(handle, seed=3)
    saved = state.save()
    y, reserve = case.forward(training=True, dropout_state=state)
    other = case.forward(training=True, dropout_state=state).y.numpy()
    state.restore(saved)
    np.testing.assert_array_equal(
        case.forward(training=True, dropout_state=state).y.numpy(), y.numpy()
    )
    plain, y_host = case.forward().numpy(), y.numpy()
    survivors = y_host != 0
    share = np.prod([1 - chance for chance in chances.values()])
    assert abs(survivors.mean() - share) < 0.15
    assert ((other != 0) != survivors).any()
    # cuDNN keeps a probability in single precision
    np.testing.assert_allclose(y_host[survivors], plain[survivors] / share, rtol=1e-6)
    state.close()
    with pytest.raises(dnn.errors.ClosedError):
        case.forward(training=True, dropout_state=state)
    with pytest.raises(
        dnn.ArgumentError, match=r"with dropout cuDNN 9\.19 computes gradients that are not"
    ):
        dnn.multi_head_attention_backward_data(handle, reserve, y)


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_weights_from_and_to_pytorch(handle, bias, same):
    module = torch.nn.MultiheadAttention(
        12,
        3,
        bias=bias,
        batch_first=True,
        kdim=None if same else 5,
        vdim=None if same else 7,
        dtype=torch.float64,
    )
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    spec = dnn.AttentionSpec(
        3,
        12,
        None if same else 5,
        None if same else 7,
        q_proj_size=4,
        o_proj_size=12,
        bias=bias,
        dtype="float64",
    )
    module_state = {f"layer.{name}": value for name, value in module.state_dict().items()} | {
        "other": torch.zeros(1)
    }
    weights = dnn.AttentionWeights.from_torch(handle, spec, module_state, prefix="layer.")
    rng = np.random.default_rng(0)
    q, k, v = (
        rng.standard_normal((2, steps, size))
        for steps, size in zip((4, 6, 6), (12, spec.k_size, spec.v_size), strict=True)
    )
    y = dnn.multi_head_attention_forward(
        handle, spec, weights, *map(handle.array, (q, k, v)), kv_lengths=[6, 3]
    )
    ignored = torch.tensor(np.arange(6) >= np.array([[6], [3]]))
    expected, _ = module(*map(torch.tensor, (q, k, v)), key_padding_mask=ignored)
    assert_close(y.numpy(), expected.detach().numpy(), ATTENTION_BOUNDS["float64"][0])
    back = weights.to_torch()
    assert list(back) == [name for name in module.state_dict() if name in back]
    assert len(back) == len(module.state_dict())
    for name, tensor in module.state_dict().items():
        np.testing.assert_array_equal(back[name], tensor.numpy())


def test_a_module_of_pytorch_in_float16(handle):
    module = torch.nn.MultiheadAttention(32, 4, batch_first=True, dtype=torch.float64)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
        parameter.data = parameter.data.half().double()
    spec = dnn.AttentionSpec(4, 32, q_proj_size=8, o_proj_size=32, bias=True, dtype="float16")
    weights = dnn.AttentionWeights.from_torch(handle, spec, module.state_dict())
    host = np.random.default_rng(0).standard_normal((2, 9, 32)).astype(np.float16)
    x = handle.array(host)
    y = dnn.multi_head_attention_forward(handle, spec, weights, x, x, x)
    tensor = torch.tensor(host.astype(np.float64))
    expected, _ = module(tensor, tensor, tensor)
    assert_close(y.numpy(), expected.detach().numpy(), ATTENTION_BOUNDS["float16"][0])


def test_weights_by_name(handle):
    spec = spec_of(bias=True, dtype="float32")
    weights = dnn.AttentionWeights(handle, spec)
    assert {name: array.shape for name, array in weights.items()} == spec.weight_shapes()
    assert not any(array.numpy().any() for array in weights.values())
    values = {
        name: np.random.default_rng(1).standard_normal(s).astype(np.float32)
        for name, s in spec.weight_shapes().items()
    }
    for name, value in values.items():
        weights[name] = value
    for name, value in weights.numpy().items():
        np.testing.assert_array_equal(value, values[name])
        np.testing.assert_array_equal(weights[name].numpy(), values[name])
    assert [(p.name, p.shape) for p in weights.layout()] == list(spec.weight_shapes().items())
    with pytest.raises(KeyError, match="'wx' is no weight"):
        weights["wx"]
    with pytest.raises(dnn.ArgumentError, match=r"weights\['wq'\] has shape \(2, 4, 5\)"):
        weights["wq"] = np.zeros((2, 5, 4))
    with pytest.raises(dnn.ArgumentError, match="missing bo"):
        dnn.AttentionWeights.from_arrays(
            handle, spec, {name: value for name, value in values.items() if name != "bo"}
        )
    with pytest.raises(dnn.ArgumentError, match="is not one that PyTorch has"):
        dnn.AttentionWeights.from_torch(handle, spec_of("none"), {})
    for bad, message in (
        ((3, {}), "spec=3 is not"),
        ((spec_of(v_proj_size=4), 3), "state_dict of type int"),
    ):
        with pytest.raises(dnn.ArgumentError, match=message):
            dnn.AttentionWeights.from_torch(handle, *bad)


def test_a_training_step_is_captured(handle):
    case = Case(handle, spec_of(bias=True))
    y, reserve = case.forward(training=True, window=CAUSAL)
    expected = y.numpy()
    gradients = dnn.multi_head_attention_backward_data(handle, reserve, y)
    dweights = dnn.multi_head_attention_backward_weights(handle, reserve)
    expected_gradients = [array.numpy() for array in gradients], dweights.numpy()
    with dnn.capture(handle) as graph:
        case.forward(training=True, window=CAUSAL, out=y, reserve=reserve)
        dnn.multi_head_attention_backward_data(handle, reserve, y, out=gradients)
        dnn.multi_head_attention_backward_weights(handle, reserve, out=dweights)
    for array in (y, *gradients, dweights.array):
        handle.device.fill(array.ptr, array.nbytes, 0xFF, handle.stream)
    graph.launch()
    np.testing.assert_array_equal(y.numpy(), expected)
    for array, values in zip(gradients, expected_gradients[0], strict=True):
        np.testing.assert_allclose(array.numpy(), values, rtol=0, atol=1e-12)
    for name, values in dweights.numpy().items():
        np.testing.assert_allclose(values, expected_gradients[1][name], rtol=0, atol=1e-12)
    graph.close()


def test_a_reserve_is_used_again(handle):
    case = Case(handle, spec_of())
    y, reserve = case.forward(training=True)
    small = Case(handle, dnn.AttentionSpec(1, 5, dtype="float64"), beam=1)
    small.operands = [handle.array(small.values((1, 1, 1, 5))) for _ in "qkv"]
    _, little = small.forward(training=True)
    again = case.forward(training=True, reserve=reserve)
    assert again.reserve is reserve
    np.testing.assert_array_equal(again.y.numpy(), y.numpy())
    with pytest.raises(dnn.ArgumentError, match=r"reserve has .*; this call needs"):
        case.forward(training=True, reserve=little)
    with pytest.raises(dnn.ArgumentError, match="reserve is given without training=True"):
        case.forward(reserve=reserve)


def test_plans_go_with_the_handle(handle):
    case = Case(handle, spec_of())
    before = len(handle.plans)
    case.forward(kv_lengths=KV_LENGTHS)
    assert len(handle.plans) == before + 1
    for _ in range(3):
        case.forward(kv_lengths=KV_LENGTHS)
    assert len(handle.plans) == before + 1
    for _ in range(3):  # a call without lengths has a second key, which costs less to make
        case.forward()
    assert len(handle.plans) == before + 3


def test_a_plan_forward_and_backward(handle):
    case = Case(handle, spec_of(bias=True))
    expected = case.forward(training=True)
    specs = [operand.spec for operand in case.operands]
    make_plan = dnn.multi_head_attention_forward.plan
    with make_plan(handle, case.spec, None, *specs, training=True) as plan:
        y, reserve = plan(case.weights, *case.operands)
        assert reserve.nbytes == max(plan.reserve, reserve.nbytes)
        np.testing.assert_array_equal(y.numpy(), expected.y.numpy())
        gradients = plan.backward_data(reserve, y)
        dweights = plan.backward_weights(reserve)
        with pytest.raises(dnn.ArgumentError, match="no gradients yet"):
            plan.backward_weights(expected.reserve)
    reference = dnn.multi_head_attention_backward_data(handle, expected.reserve, expected.y)
    for gradient, other in zip(gradients, reference, strict=True):
        np.testing.assert_array_equal(gradient.numpy(), other.numpy())
    other = dnn.multi_head_attention_backward_weights(handle, expected.reserve)
    np.testing.assert_array_equal(dweights["wq"].numpy(), other["wq"].numpy())
