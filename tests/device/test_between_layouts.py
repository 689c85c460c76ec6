"""Operations between operands of different strides, in place, and on int8.

An H200 computes them correctly, or they are refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tolerances import OPERATION_BOUNDS, assert_near

import cudnnlite as dnn
from cudnnlite.problems.catalogue import OPERATIONS

from .operation_samples import LAYOUTS, reference_of, request, spec_of
from .problems import gap_mask, memory_of, poisoned, random_values, upload

DRAWS = 60
REFUSED = (dnn.ArgumentError, dnn.NotSupportedError, dnn.errors.BadParamError)
# operation -> options, of those that have more than one way to go
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "activation_forward": [{"activation": dnn.ActivationSpec("relu")}],
    "softmax_forward": [
        {"algorithm": a, "mode": m}
        for a in dnn.enums.SoftmaxAlgorithm
        for m in dnn.enums.SoftmaxMode
    ],
    "softmax_backward": [
        {"algorithm": a, "mode": m}
        for a in dnn.enums.SoftmaxAlgorithm
        for m in dnn.enums.SoftmaxMode
    ],
    "lrn_forward": [{"norm": dnn.LRNSpec(3, 0.5, 0.75, 1.0)}],
    "lrn_backward": [{"norm": dnn.LRNSpec(3, 0.5, 0.75, 1.0)}],
    "pooling_forward": [{"pooling": dnn.PoolingSpec(1)}],
    "op_tensor": [{"op": dnn.specs.OpTensorSpec("add"), "alpha1": 1.0, "alpha2": 0.5}],
}


def drawn_spec(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> dnn.TensorSpec:
    """Return packed strides, or some with the axes in any order, and gaps behind some of them."""
    order = list(range(len(shape)))
    kind = rng.choice(["first", "last", "any order", "gaps"])
    if kind == "last":
        order = [0, *range(2, len(shape)), 1]
    elif kind == "any order" or (kind == "gaps" and rng.integers(2)):
        rng.shuffle(order)
    strides, step = [0] * len(shape), 1
    if kind == "gaps" and rng.integers(3) == 0:
        step = 2
    for axis in reversed(order):
        strides[axis] = step
        gap = int(rng.integers(2)) if kind == "gaps" else 0
        step *= shape[axis] + gap
    return dnn.TensorSpec(shape, dtype, strides=strides)


def drawn_hosts(
    rng: np.random.Generator, name: str, shape: tuple[int, ...], dtype: str, options: Any
) -> dict[str, Any]:
    """Return values of the operands; a result that is read again is the forward call's."""
    operation = OPERATIONS[name]
    hosts = {operand: random_values(rng, shape, dtype) for operand in operation.reads}
    if "y" in hosts:
        (y,) = reference_of(name.replace("backward", "forward"))(
            hosts.get("x", hosts["y"]).astype(np.float64), **options
        )
        hosts["y"] = y.astype(hosts["y"].dtype)
    return hosts


@pytest.mark.parametrize("name", OPTIONS)
def test_strides_of_any_kind_are_computed_rightly_or_refused(handle: dnn.Handle, name: str) -> None:
    operation, rng = OPERATIONS[name], np.random.default_rng(7)
    computed = 0
    for number in range(DRAWS):
        options = OPTIONS[name][number % len(OPTIONS[name])]
        shape = tuple(int(size) for size in rng.integers(1, 7, rng.choice([3, 4, 4, 5])))
        dtype = str(rng.choice(["float32", "float64"]))
        hosts = drawn_hosts(rng, name, shape, dtype, options)
        operands = [upload(handle, drawn_spec(rng, shape, dtype), host) for host in hosts.values()]
        if name == "softmax_backward" or rng.integers(2):
            operands = [upload(handle, operands[0].spec, host) for host in hosts.values()]
        same_out = rng.integers(2)
        out = poisoned(handle, operands[0].spec if same_out else drawn_spec(rng, shape, dtype))
        before = memory_of(out)
        try:
            request(handle, operation, operands, list(options.values()), out=out).run()
        except REFUSED:
            np.testing.assert_array_equal(memory_of(out), before)
            continue
        computed += 1
        (expected,) = reference_of(name)(
            *(host.astype(np.float64) for host in hosts.values()), **options
        )
        assert_near(
            out.numpy(), expected, OPERATION_BOUNDS[dtype], max(1.0, np.abs(expected).max())
        )
        gaps = gap_mask(out.spec)
        np.testing.assert_array_equal(memory_of(out)[gaps], before[gaps])
    assert computed >= DRAWS // 4


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", ["add", "mul", "min", "max", "sqrt", "not"])
def test_the_result_of_op_tensor_may_take_the_place_of_a(
    handle: dnn.Handle, op: str, layout: str
) -> None:
    host = np.random.default_rng(0).uniform(0.5, 2, (2, 4, 3, 5)).astype(np.float32)
    a, b = (upload(handle, spec_of(host.shape, "float32", layout), host) for _ in range(2))
    expected = dnn.op_tensor(handle, a, b, op).numpy()
    assert dnn.op_tensor(handle, a, b, op, out=a) is a
    np.testing.assert_array_equal(a.numpy(), expected)
    # of a alone: given twice, it may be written all the same
    assert dnn.op_tensor(handle, b, b, op, out=b) is b
    np.testing.assert_array_equal(b.numpy(), expected)


FIRST, SECOND = (slice(None), slice(8)), (slice(None), slice(8, 16))
FILTER = np.random.default_rng(1).standard_normal((8, 8, 1, 1)).astype(np.float32)
# name: (call of (handle, part that is read, part that is written), NumPy's formula)
BETWEEN_SLICES: dict[str, tuple[Any, Any]] = {
    "op_tensor": (
        lambda handle, x, out: dnn.op_tensor(handle, x, x, "mul", out=out),
        lambda x: x * x,
    ),
    "activation": (
        lambda handle, x, out: dnn.activation_forward(handle, x, "relu", out=out),
        lambda x: np.maximum(x, 0),
    ),
    "pooling": (
        lambda handle, x, out: dnn.pooling_forward(handle, x, dnn.PoolingSpec(1), out=out),
        lambda x: x,
    ),
    "softmax": (
        lambda handle, x, out: dnn.softmax_forward(handle, x, out=out),
        lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True),
    ),
    "transform": (
        lambda handle, x, out: dnn.transform_tensor(handle, x, out=out, alpha=2),
        lambda x: 2 * x,
    ),
    "convolution": (
        lambda handle, x, out: dnn.convolution_forward(
            handle, x, handle.array(FILTER), dnn.ConvolutionSpec(math_type="fma"), out=out
        ),
        lambda x: np.einsum("nchw,kc->nkhw", x, FILTER[..., 0, 0]),
    ),
}


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", BETWEEN_SLICES)
def test_slices_of_one_buffer_do_not_overlap(handle: dnn.Handle, name: str, layout: str) -> None:
    """Their memory lies in one range of addresses, and no value is shared: a concatenation."""
    call, formula = BETWEEN_SLICES[name]
    values = np.random.default_rng(0).standard_normal((3, 20, 6, 4)).astype(np.float32)
    buffer = upload(handle, dnn.TensorSpec(values.shape, layout=layout), values)
    expected = values.copy()
    expected[SECOND] = formula(values[FIRST])
    for _ in range(2):  # the second call is that of a kept plan
        call(handle, buffer[FIRST], buffer[SECOND])
        assert_near(buffer.numpy(), expected, OPERATION_BOUNDS["float32"])
    with pytest.raises(dnn.ArgumentError, match=r"^out overlaps (x|a)\b"):
        call(handle, buffer[FIRST], buffer[:, 7:15])
    assert_near(buffer.numpy(), expected, OPERATION_BOUNDS["float32"])


def test_even_and_odd_elements_do_not_overlap(handle: dnn.Handle) -> None:
    values = np.random.default_rng(0).standard_normal((2, 3, 5, 8)).astype(np.float32)
    array = handle.array(values)
    even, odd = array[..., ::2], array[..., 1::2]
    with dnn.op_tensor.plan(handle, even, odd, "add", out=odd.spec) as plan:
        with pytest.raises(dnn.ArgumentError, match=r"^out overlaps b\b"):
            plan(even, odd, out=odd)
        plan(even, even, out=odd)
        values[..., 1::2] = 2 * values[..., ::2]
        np.testing.assert_array_equal(array.numpy(), values)
        plan(odd, odd, out=even)
        values[..., ::2] = 2 * values[..., 1::2]
        np.testing.assert_array_equal(array.numpy(), values)


def test_lrn_in_place(handle: dnn.Handle) -> None:
    x = handle.array(random_values(np.random.default_rng(0), (2, 6, 3, 4), "float32"))
    expected = dnn.lrn_forward(handle, x, dnn.LRNSpec()).numpy()
    np.testing.assert_array_equal(
        dnn.lrn_forward(handle, x, dnn.LRNSpec(), out=x).numpy(), expected
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("out_dtype", ["int8", "float32"])
@pytest.mark.parametrize("op", ["add", "mul", "min", "max", "sqrt", "not"])
def test_op_tensor_on_int8(handle: dnn.Handle, op: str, out_dtype: str, layout: str) -> None:
    """Computed in float32, and rounded and saturated last."""
    rng = np.random.default_rng(0)
    a_host, b_host, old = (
        rng.integers(-120, 121, shape) for shape in ((2, 4, 6, 8), (1, 4, 1, 1), (2, 4, 6, 8))
    )
    a_host = np.abs(a_host) if op == "sqrt" else a_host
    a, b = (
        upload(handle, spec_of(h.shape, "int8", layout), h.astype(np.int8))
        for h in (a_host, b_host)
    )
    out = upload(handle, spec_of(old.shape, out_dtype, layout), old.astype(out_dtype))
    scaled = 0.5 * a_host
    results = {
        "add": scaled + b_host,
        "mul": scaled * b_host,
        "min": np.minimum(scaled, b_host),
        "max": np.maximum(scaled, b_host),
        "sqrt": np.sqrt(np.abs(scaled)),
        "not": 1 - scaled,
    }
    expected = results[op] + 0.5 * old
    if out_dtype == "int8":
        expected = np.clip(np.rint(expected), -128, 127)
    dnn.op_tensor(handle, a, b, op, alpha1=0.5, beta=0.5, out=out)
    np.testing.assert_allclose(out.numpy().astype(np.float64), expected, rtol=1e-5)


@pytest.mark.parametrize("out_dtype", ["int8", "float32"])
@pytest.mark.parametrize(
    "op", [op for op in dnn.enums.ReduceTensorOp.__members__ if not op.startswith("MUL")]
)
def test_reduce_tensor_on_int8(handle: dnn.Handle, op: str, out_dtype: str) -> None:
    host = np.random.default_rng(0).integers(-20, 21, (2, 4, 3, 3))
    spec = dnn.specs.ReduceTensorSpec(op)
    out = poisoned(handle, dnn.TensorSpec((2, 4, 1, 1), out_dtype))
    dnn.reduce_tensor(handle, handle.array(host, dtype="int8"), spec, out=out)
    (expected,) = reference_of("reduce_tensor")(
        host.astype(np.float64), np.zeros((2, 4, 1, 1)), op=spec
    )
    if out_dtype == "int8":
        expected = np.clip(np.rint(expected), -128, 127)
    np.testing.assert_allclose(out.numpy().astype(np.float64), expected, rtol=1e-5)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("op", ["add", "avg", "max", "mul", "norm2"])
def test_float16_is_reduced_into_float32(handle: dnn.Handle, op: str, layout: str) -> None:
    host = np.random.default_rng(0).uniform(0.5, 1.5, (3, 8, 5, 7)).astype(np.float16)
    a = handle.array(host, layout=layout)
    out = handle.full((3, 8, 1, 1), np.nan, "float32")
    with dnn.reduce_tensor.plan(handle, a, op, out=out) as plan:
        assert plan(a, out=out) is out
    (expected,) = reference_of("reduce_tensor")(
        host.astype(np.float64), np.zeros((3, 8, 1, 1)), op=dnn.specs.ReduceTensorSpec(op)
    )
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5)
    assert dnn.reduce_tensor(handle, a, op, out=out) is out
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5)
