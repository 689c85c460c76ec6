"""Operations that are graphs, beside ONNX's reference evaluator: an oracle that others wrote."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tolerances import GRAPH_BOUNDS, assert_close

import cudnnlite as dnn

from .problems import Array, poisoned

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnx.reference")
OPSET = 23
BATCH, HEADS, STEPS, REACH, SIZE, VALUE_SIZE = 2, 4, 40, 72, 32, 64


def evaluated(kind: str, operands: dict[str, Array], outputs: int = 1, **attributes: Any) -> Any:
    """Return what ONNX says that an operator computes of float32 operands."""
    helper, types = onnx.helper, onnx.TensorProto
    results = [f"result_{number}" for number in range(outputs)]
    node = helper.make_node(kind, [*operands], results, **attributes)
    described = [
        [helper.make_tensor_value_info(name, types.FLOAT, None) for name in names]
        for names in (operands, results)
    ]
    graph = helper.make_graph([node], kind, *described)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    evaluator = onnx.reference.ReferenceEvaluator(model)
    return evaluator.run(None, {name: value for name, value in operands.items() if name})


class Operands:
    """Random float16 operands on the device, and as ONNX's evaluator takes them."""

    def __init__(self, handle: dnn.Handle) -> None:
        self.handle = handle
        self._rng = np.random.default_rng(0)

    def new(self, *shape: int) -> tuple[dnn.DeviceArray, Array]:
        values = self._rng.standard_normal(shape).astype(np.float16)
        return self.handle.array(values), values.astype(np.float32)

    def out(self, *shape: int) -> dnn.DeviceArray:
        return poisoned(self.handle, dnn.TensorSpec(shape, "float16"))


@pytest.fixture
def operands(handle: dnn.Handle) -> Operands:
    return Operands(handle)


@pytest.mark.parametrize("groups", [HEADS, 2, 1])
@pytest.mark.parametrize("case", ["plain", "scale", "causal", "mask"])
def test_attention(handle: dnn.Handle, operands: Operands, case: str, groups: int) -> None:
    reach = STEPS if case == "causal" else REACH
    q, q_host = operands.new(BATCH, HEADS, STEPS, SIZE)
    k, k_host = operands.new(BATCH, groups, reach, SIZE)
    v, v_host = operands.new(BATCH, groups, reach, VALUE_SIZE)
    hosts = {"Q": q_host, "K": k_host, "V": v_host}
    options: dict[str, Any] = {}
    attributes: dict[str, Any] = {}
    if case == "scale":
        options["scale"] = attributes["scale"] = 0.25
    elif case == "causal":
        options["causal"], attributes["is_causal"] = True, 1
    elif case == "mask":
        options["bias"], hosts["attn_mask"] = operands.new(BATCH, HEADS, STEPS, reach)
    (expected,) = evaluated("Attention", hosts, **attributes)
    out = operands.out(BATCH, HEADS, STEPS, VALUE_SIZE)
    dnn.scaled_dot_product_attention_forward(handle, q, k, v, **options, out=out)
    assert_close(out.numpy(), expected, GRAPH_BOUNDS["attention"]["float16"])


def test_layer_normalization(handle: dnn.Handle, operands: Operands) -> None:
    x, x_host = operands.new(6, 40, 1, 1)
    scale, scale_host = operands.new(1, 40, 1, 1)
    bias, bias_host = operands.new(1, 40, 1, 1)
    hosts = {"X": x_host[..., 0, 0], "Scale": scale_host.ravel(), "B": bias_host.ravel()}
    y, mean, inverse = evaluated("LayerNormalization", hosts, 3, axis=-1, epsilon=1e-3)
    results = dnn.layer_normalization_forward(handle, x, scale, bias, epsilon=1e-3, training=True)
    bound = GRAPH_BOUNDS["normalisation"]["float16"]
    for result, expected in zip(results, (y, mean, inverse), strict=True):
        assert_close(result.numpy()[..., 0, 0], expected, bound)


def test_rms_normalization(handle: dnn.Handle, operands: Operands) -> None:
    x, x_host = operands.new(6, 40, 1, 1)
    scale, scale_host = operands.new(1, 40, 1, 1)
    hosts = {"X": x_host[..., 0, 0], "scale": scale_host.ravel()}
    (expected,) = evaluated("RMSNormalization", hosts, axis=-1, epsilon=1e-3)
    out = operands.out(6, 40, 1, 1)
    dnn.rms_normalization_forward(handle, x, scale, epsilon=1e-3, out=out)
    assert_close(out.numpy()[..., 0, 0], expected, GRAPH_BOUNDS["normalisation"]["float16"])


def test_instance_normalization(handle: dnn.Handle, operands: Operands) -> None:
    x, x_host = operands.new(3, 8, 5, 4)
    scale_host, bias_host = (operands.new(1, 8, 1, 1)[1] for _ in range(2))
    hosts = {"input": x_host, "scale": scale_host.ravel(), "B": bias_host.ravel()}
    (expected,) = evaluated("InstanceNormalization", hosts, epsilon=1e-3)
    scales = [handle.array(values.reshape(1, 8, 1, 1)) for values in (hosts["scale"], hosts["B"])]
    out = operands.out(3, 8, 5, 4)
    dnn.instance_normalization_forward(handle, x, *scales, epsilon=1e-3, out=out)
    assert_close(out.numpy(), expected, GRAPH_BOUNDS["normalisation"]["float16"])


@pytest.mark.parametrize("alpha", [1.0, 0.25])
@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
def test_gemm(handle: dnn.Handle, operands: Operands, transposed: str, alpha: float) -> None:
    """A transposed operand is a view: its columns are packed."""
    hosts, arrays = {}, []
    for name, (rows, columns) in {"A": (64, 32), "B": (32, 48)}.items():
        is_transposed = name.lower() in transposed
        array, hosts[name] = operands.new(*((columns, rows) if is_transposed else (rows, columns)))
        arrays.append(array.transpose(1, 0) if is_transposed else array)
    bias, hosts["C"] = operands.new(48)
    flags = {"transA": int("a" in transposed), "transB": int("b" in transposed)}
    (expected,) = evaluated("Gemm", hosts, **flags, alpha=alpha)
    out = operands.out(64, 48)
    dnn.matmul(handle, *arrays, bias=bias, alpha=alpha, out=out)
    assert_close(out.numpy(), expected, GRAPH_BOUNDS["product"]["float16"])


@pytest.mark.parametrize(
    ("a_batch", "b_batch"), [((), ()), ((3,), ()), ((), (3,)), ((2, 3), (2, 3)), ((2, 3), (1, 1))]
)
def test_matmul(
    handle: dnn.Handle, operands: Operands, a_batch: tuple[int, ...], b_batch: tuple[int, ...]
) -> None:
    a, a_host = operands.new(*a_batch, 40, 24)
    b, b_host = operands.new(*b_batch, 24, 56)
    (expected,) = evaluated("MatMul", {"A": a_host, "B": b_host})
    out = operands.out(*expected.shape)
    dnn.matmul(handle, a, b, out=out)
    assert_close(out.numpy(), expected, GRAPH_BOUNDS["product"]["float16"])


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_behind_a_product(handle: dnn.Handle, operands: Operands, approximate: str) -> None:
    a, a_host = operands.new(2, 64, 32)
    b, b_host = operands.new(2, 32, 48)
    (expected,) = evaluated("Gelu", {"X": a_host @ b_host}, approximate=approximate)
    out = operands.out(2, 64, 48)
    activation = "gelu" if approximate == "none" else "gelu_tanh"
    dnn.matmul(handle, a, b, activation=activation, out=out)
    assert_close(out.numpy(), expected, GRAPH_BOUNDS["product"]["float16"])
