"""Products of matrices and their gradients on a device, against NumPy in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tolerances import GRAPH_BOUNDS, assert_close

import cudnnlite as dnn
from cudnnlite.dtypes import dtype_name, numpy_dtype, parse_dtype
from cudnnlite.graph.problem import GraphProblem

from .problems import Array, poisoned, random_values, upload

HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
# Batches of a and of b, as NumPy broadcasts them.
BATCHES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "matrices": ((), ()),
    "a matrix beside a batch": ((), (3,)),
    "a batch beside a matrix": ((3,), ()),
    "two axes": ((2, 3), (2, 3)),
    "two axes beside a matrix": ((2, 3), ()),
    "two axes beside ones": ((2, 3), (1, 1)),
    "one of two axes": ((1, 3), (3,)),
}
ROWS, INNER, COLUMNS = 24, 40, 56
BIASES = {
    "of columns": (COLUMNS,),
    "of one row": (1, COLUMNS),
    "of rows": (ROWS, 1),
    "of a batch of one": (1, 1, COLUMNS),
}


class Operands:
    """Makes random operands: on the device, and on the host in float64 as they were rounded."""

    def __init__(self, handle: dnn.Handle) -> None:
        self._handle = handle
        self._rng = np.random.default_rng(0)

    def make(
        self,
        shape: tuple[int, ...],
        dtype: str,
        strides: tuple[int, ...] | None = None,
        scale: float = 1.0,
    ) -> tuple[dnn.DeviceArray, Array]:
        spec = dnn.TensorSpec(shape, dtype, strides=strides)
        values = scale * random_values(self._rng, shape, "float32")
        stored = values.astype(numpy_dtype(spec.dtype))
        return upload(self._handle, spec, stored), stored.astype(np.float64)

    def columns(
        self, shape: tuple[int, ...], dtype: str, scale: float = 1.0
    ) -> tuple[dnn.DeviceArray, Array]:
        """Make a matrix whose columns are packed."""
        return self.make(shape, dtype, (1, shape[0]), scale)

    def out(self, shape: tuple[int, ...], dtype: str) -> dnn.DeviceArray:
        return poisoned(self._handle, dnn.TensorSpec(shape, dtype))


@pytest.fixture
def operands(handle: dnn.Handle) -> Operands:
    return Operands(handle)


def near(result: dnn.DeviceArray, expected: Array, dtype: str = "") -> None:
    """Compare a result, by the bound of a data type: its own, unless another one is rougher."""
    assert result.shape == expected.shape
    values = result.numpy().astype(np.float64)
    assert np.isfinite(values).all()
    assert_close(values, expected, GRAPH_BOUNDS["product"][dtype or dtype_name(result.dtype)])


def swapped(matrices: Array) -> Array:
    return matrices.swapaxes(-1, -2)


# ---------------------------------------------------------------- batches


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", BATCHES)
def test_batches(handle: dnn.Handle, operands: Operands, case: str, dtype: str) -> None:
    a_batch, b_batch = BATCHES[case]
    a, a_host = operands.make((*a_batch, ROWS, INNER), dtype)
    b, b_host = operands.make((*b_batch, INNER, COLUMNS), dtype)
    expected = a_host @ b_host
    out = operands.out(expected.shape, dtype)
    assert dnn.matmul(handle, a, b, out=out) is out
    near(out, expected)
    near(dnn.matmul(handle, a, b), expected)
    with dnn.matmul.plan(handle, a.spec, b.spec) as plan:
        near(plan(a, b)["y"], expected)
        near(plan(a, b, out=out)["y"], expected)


@pytest.mark.parametrize("case", BIASES)
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
def test_a_bias_is_broadcast(
    handle: dnn.Handle, operands: Operands, batch: tuple[int, ...], case: str
) -> None:
    a, a_host = operands.make((*batch, ROWS, INNER), "float16")
    b, b_host = operands.make((INNER, COLUMNS), "float16")
    shape = BIASES[case] if len(BIASES[case]) <= len(batch) + 2 else BIASES["of columns"]
    bias, bias_host = operands.make(shape, "float16")
    expected = np.maximum(a_host @ b_host + bias_host, 0)
    near(dnn.matmul(handle, a, b, bias=bias, activation="relu"), expected)


def test_matrices_with_gaps_and_transposed_ones(handle: dnn.Handle, operands: Operands) -> None:
    a, a_host = operands.make((ROWS, INNER), "float16", (INNER + 8, 1))
    b, b_host = operands.columns((INNER, COLUMNS), "float16")
    gaps = dnn.TensorSpec((ROWS, COLUMNS), "float16", strides=(COLUMNS + 16, 1))
    out = poisoned(handle, gaps)
    dnn.matmul(handle, a, b, out=out)
    near(out, a_host @ b_host)
    near(dnn.matmul(handle, b.transpose(1, 0), a.transpose(1, 0)), swapped(a_host @ b_host))


def test_results_of_several_batch_axes_may_lie_apart(
    handle: dnn.Handle, operands: Operands
) -> None:
    """Where the axes lie in memory as one; others have no view that cuDNN could write."""
    a, a_host = operands.make((2, 3, ROWS, INNER), "float16")
    b, b_host = operands.make((INNER, COLUMNS), "float16")
    step = ROWS * COLUMNS + 8
    strides = (3 * step, step, COLUMNS, 1)
    spec = dnn.TensorSpec((2, 3, ROWS, COLUMNS), "float16", strides=strides)
    out = poisoned(handle, spec)
    dnn.matmul(handle, a, b, out=out)
    near(out, a_host @ b_host)
    strides = (4 * step, step, COLUMNS, 1)
    apart = poisoned(handle, dnn.TensorSpec(spec.shape, "float16", strides=strides))
    with pytest.raises(dnn.ArgumentError, match="needed: an array with a view"):
        dnn.matmul(handle, a, b, out=apart)


# ---------------------------------------------------------------- factors, types, precision


@pytest.mark.parametrize("dtype", FLOATS)
def test_alpha_is_a_number_of_each_call(handle: dnn.Handle, operands: Operands, dtype: str) -> None:
    a, a_host = operands.make((ROWS, INNER), dtype)
    b, b_host = operands.make((INNER, COLUMNS), dtype)
    bias, bias_host = operands.make((COLUMNS,), dtype)
    for alpha in (0.5, -3.0, 1.0, 0.0):
        expected = alpha * (a_host @ b_host) + bias_host
        out = operands.out(expected.shape, dtype)
        dnn.matmul(handle, a, b, bias=bias, alpha=alpha, out=out)
        near(out, expected)
    with dnn.matmul.plan(handle, a, b, alpha=2.0) as plan:
        near(plan(a, b)["y"], 2.0 * (a_host @ b_host))
        near(plan(a, b, alpha=4.0)["y"], 4.0 * (a_host @ b_host))


@pytest.mark.parametrize("dtype", HALVES)
def test_results_in_another_type(handle: dnn.Handle, operands: Operands, dtype: str) -> None:
    """float32 keeps what was summed: the error is that of float32 sums, not of the operands."""
    a, a_host = operands.make((ROWS, INNER), dtype)
    b, b_host = operands.make((INNER, COLUMNS), dtype)
    y = dnn.matmul(handle, a, b, dtype="float32")
    assert_close(y.numpy(), a_host @ b_host, GRAPH_BOUNDS["normalisation"]["float32"])


def test_float32_is_never_multiplied_in_full_precision(
    handle: dnn.Handle, operands: Operands
) -> None:
    """No engine keeps that promise, so that asking for it is refused."""
    a, _ = operands.make((ROWS, INNER), "float32")
    b, _ = operands.make((INNER, COLUMNS), "float32")
    for math_type in ("fma", "true_float32", dnn.TRUE_FLOAT32):
        with pytest.raises(dnn.NotSupportedError, match="multiplies in fewer bits"):
            dnn.matmul(handle, a, b, math_type=math_type)
    with dnn.matmul.plan(handle, a, b, math_type="tensor_op") as plan:
        assert plan.choice.math_type != dnn.MathType.FMA


# ---------------------------------------------------------------- float8


@pytest.mark.parametrize("b_type", FLOAT8)
@pytest.mark.parametrize("a_type", FLOAT8)
def test_products_of_float8(
    handle: dnn.Handle, operands: Operands, a_type: str, b_type: str
) -> None:
    """Each operand was divided by a factor before it was rounded."""
    a, a_host = operands.make((32, 64), a_type, scale=4.0)
    b, b_host = operands.columns((64, 48), b_type, scale=16.0)
    factors = [handle.array(np.full(1, value, np.float32)) for value in (0.25, 0.0625)]
    bias, bias_host = operands.make((48,), "float32")
    expected = a_host @ b_host / 64 + bias_host
    a_factor, b_factor = factors
    y = dnn.matmul(handle, a, b, bias=bias, a_descale=a_factor, b_descale=b_factor)
    assert dtype_name(y.dtype) == "float32"
    near(y, expected)
    near(dnn.matmul(handle, a, b, bias=bias, alpha=1 / 64, dtype="bfloat16"), expected)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_results_in_float8(handle: dnn.Handle, operands: Operands, dtype: str) -> None:
    """What float8 has no room for becomes its largest value; all else is the nearest one."""
    a, a_host = operands.make((32, 64), "float8_e4m3fn")
    b, b_host = operands.columns((64, 48), "float8_e4m3fn")
    everything = np.arange(256, dtype=np.uint8).view(numpy_dtype(parse_dtype(dtype)))
    every_number = everything.astype(np.float64)
    numbers = np.unique(every_number[np.isfinite(every_number)])
    for alpha in (1.0, 1e3, 1e6):
        expected = alpha * (a_host @ b_host)
        y = dnn.matmul(handle, a, b, alpha=alpha, dtype=dtype).numpy().astype(np.float64)
        wanted = np.clip(expected, numbers[0], numbers[-1])
        nearest = np.abs(wanted[..., None] - numbers).min(-1)
        # The sum itself was rounded to float32.
        assert (np.abs(y - wanted) <= nearest + 1e-5 * np.abs(wanted) + 1e-5 * alpha).all()


@pytest.mark.parametrize("b_layout", ["rows", "columns"])
@pytest.mark.parametrize("a_layout", ["rows", "columns"])
def test_products_of_float8_in_any_layout(
    handle: dnn.Handle, operands: Operands, a_layout: str, b_layout: str
) -> None:
    makers = {"rows": operands.make, "columns": operands.columns}
    a, a_host = makers[a_layout]((32, 64), "float8_e4m3fn")
    b, b_host = makers[b_layout]((64, 48), "float8_e5m2")
    near(dnn.matmul(handle, a, b), a_host @ b_host)


def test_a_bias_of_float8(handle: dnn.Handle, operands: Operands) -> None:
    a, a_host = operands.make((32, 64), "float8_e4m3fn")
    b, b_host = operands.columns((64, 48), "float8_e4m3fn")
    bias, bias_host = operands.make((48,), "float8_e4m3fn")
    near(dnn.matmul(handle, a, b, bias=bias), a_host @ b_host + bias_host)


# ---------------------------------------------------------------- results of another type


@pytest.mark.parametrize(
    ("dtype", "result"),
    [
        ("float16", "bfloat16"),
        ("bfloat16", "float16"),
        ("float32", "float16"),  # one engine of cuDNN 9.19 writes no numbers
        ("float32", "bfloat16"),
    ],
)
def test_results_of_a_narrow_type(
    handle: dnn.Handle, operands: Operands, dtype: str, result: str
) -> None:
    a, a_host = operands.make((32, 64), dtype)
    b, b_host = operands.make((64, 48), dtype)
    y = operands.out((32, 48), result)
    dnn.matmul(handle, a, b, dtype=result, out=y)
    near(y, a_host @ b_host, result)


def test_a_narrow_result_behind_a_bias(handle: dnn.Handle, operands: Operands) -> None:
    a, a_host = operands.make((32, 64), "float32")
    b, b_host = operands.make((64, 48), "float32")
    bias, bias_host = operands.make((48,), "float32")
    y = dnn.matmul(handle, a, b, bias=bias, alpha=0.5, activation="gelu", dtype="float16")
    product = 0.5 * a_host @ b_host + bias_host
    near(y, product * (1 + np.vectorize(math.erf)(product / math.sqrt(2))) / 2, "float16")


# ---------------------------------------------------------------- gradients


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "case", ["matrices", "a batch beside a matrix", "a matrix beside a batch", "two axes"]
)
def test_gradients(handle: dnn.Handle, operands: Operands, case: str, dtype: str) -> None:
    """Of each matrix of the batch, beside one matrix for all or a batch of them."""
    a_batch, b_batch = BATCHES[case]
    batch = np.broadcast_shapes(a_batch, b_batch)
    a, a_host = operands.make((*a_batch, ROWS, INNER), dtype)
    b, b_host = operands.make((*b_batch, INNER, COLUMNS), dtype)
    dy, dy_host = operands.make((*batch, ROWS, COLUMNS), dtype)
    da, db = dy_host @ swapped(b_host), swapped(a_host) @ dy_host
    out = operands.out(da.shape, dtype)
    assert dnn.matmul_backward_a(handle, dy, b, out=out) is out
    near(out, da)
    near(dnn.matmul_backward_b(handle, dy, a, alpha=0.5, dtype="float32"), db / 2, dtype)
    with dnn.matmul_backward_b.plan(handle, dy, a) as plan:
        near(plan(dy, a)["db"], db)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("batch", [(3,), (2, 3)], ids=str)
def test_gradients_that_are_summed_over_the_batch(
    handle: dnn.Handle, operands: Operands, batch: tuple[int, ...], dtype: str
) -> None:
    """Of the one matrix of a batch: packed rows of a and dy lie one behind the other."""
    a, a_host = operands.make((*batch, ROWS, INNER), dtype)
    dy, dy_host = operands.make((*batch, ROWS, COLUMNS), dtype)
    axes = tuple(range(len(batch)))
    expected = (swapped(a_host) @ dy_host).sum(axes)
    for shape in ((INNER, COLUMNS), (*(1 for _ in batch), INNER, COLUMNS)):
        out = operands.out(shape, dtype)
        dnn.matmul_backward_b(handle, dy, a, b=shape, out=out)
        near(out, expected.reshape(shape))


def test_a_sum_over_the_batch_of_what_lies_in_columns(
    handle: dnn.Handle, operands: Operands
) -> None:
    """The columns of dy, and of b, go on from one matrix to the next."""
    count = 3
    dy_strides = (COLUMNS * ROWS, 1, ROWS)
    dy, dy_host = operands.make((count, ROWS, COLUMNS), "float16", dy_strides)
    b, b_host = operands.make((count, INNER, COLUMNS), "float16", (COLUMNS * INNER, 1, INNER))
    expected = (dy_host @ swapped(b_host)).sum(0)
    near(dnn.matmul_backward_a(handle, dy, b, a=(ROWS, INNER)), expected)
    packed, _ = operands.make((count, ROWS, COLUMNS), "float16")
    with pytest.raises(dnn.ArgumentError, match=r"dy is .* summed over the batch"):
        dnn.matmul_backward_a(handle, packed, b, a=(ROWS, INNER))


def test_gradients_by_finite_differences(own_handle: dnn.Handle) -> None:
    """Of sum(dy * matmul(a, b)), in float16 operands whose sums are float32."""
    operands = Operands(own_handle)
    _, a_host = operands.make((8, 16), "float16")
    b, b_host = operands.make((16, 8), "float16")
    dy, dy_host = operands.make((8, 8), "float16")
    da = dnn.matmul_backward_a(own_handle, dy, b, dtype="float32").numpy()

    def loss(values: Array) -> float:
        return float((dy_host * (values @ b_host)).sum())

    for place in np.ndindex(8, 16):
        step = np.zeros_like(a_host)
        step[place] = 1e-3
        slope = (loss(a_host + step) - loss(a_host - step)) / 2e-3
        assert abs(slope - da[place]) < 1e-4


# ---------------------------------------------------------------- refusals


def spec(*shape: int, dtype: str = "float16") -> dnn.TensorSpec:
    return dnn.TensorSpec(shape, dtype)


def test_the_needed_type_of_out_is_named(handle: dnn.Handle, operands: Operands) -> None:
    a, _ = operands.make((ROWS, INNER), "float32")
    b, _ = operands.make((INNER, COLUMNS), "float32")
    half = handle.full((ROWS, COLUMNS), 7.0, "float16")
    for _ in range(2):  # no plan is kept for the call that was refused
        with pytest.raises(
            dnn.ArgumentError,
            match=r"^out is float16; needed: float32; dtype='float16' asks for it$",
        ):
            dnn.matmul(handle, a, b, out=half)
    assert (half.numpy() == 7).all()
    half_heads = handle.empty((1, 2, 64, 32), "float16")
    out = handle.full((1, 2, 64, 32), 7.0, "float32")
    with pytest.raises(dnn.ArgumentError, match=r"^out is float32; needed: float16$"):
        dnn.scaled_dot_product_attention_forward(
            handle, half_heads, half_heads, half_heads, out=out
        )
    assert (out.numpy() == 7).all()


def test_graphs_of_matrices_are_saved_and_compared() -> None:
    graph = dnn.matmul.graph(spec(4, 8), spec(8, 16), bias=spec(16))
    assert graph.outputs["y"].spec == spec(4, 16)
    assert dnn.Graph.from_json(graph.to_json()) == graph
    assert dnn.matmul.graph(spec(1, 4, 8), spec(8, 16), bias=spec(16)) != graph
    assert "y 4x16 float16 as 1x4x16" in str(graph)


# ---------------------------------------------------------------------------- residuals in place


def residual(a: dnn.TensorSpec, b: dnn.TensorSpec, z: dnn.TensorSpec, kind: str = "") -> dnn.Graph:
    """Return a graph of relu(a @ b + z), or of what is close to it."""
    graph = dnn.Graph()
    x, w, added = (
        graph.input(name, spec.shape, spec.dtype, spec.strides)
        for name, spec in (("a", a), ("b", b), ("z", z))
    )
    if kind == "before the product":
        x = graph.pointwise("ADD", x, added, dtype=a.dtype)
    elif kind == "transposed":
        batch, rows, columns = z.shape
        added = graph.view(added, (batch, columns, rows), (rows * columns, 1, columns))
    y = graph.matmul(x, w)
    if kind == "two outputs":
        graph.output("y0", y, z.dtype)
    elif kind == "a sum":
        graph.output("y", graph.reduce("ADD", y + added, (-1,)))
        return graph
    graph.output("y", graph.relu(y if kind == "before the product" else y + added), z.dtype)
    return graph


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("rows", "inner", "columns"), [(24, 40, 56), (16, 48, 48)])
def test_a_residual_in_place(
    handle: dnn.Handle, operands: Operands, dtype: str, rows: int, inner: int, columns: int
) -> None:
    """The result may have the memory of what is added to it, even if x has the same shape."""
    a, host_a = operands.make((2, rows, inner), dtype)
    b, host_b = operands.make((2, inner, columns), dtype)
    z, host_z = operands.make((2, rows, columns), dtype)
    with residual(a.spec, b.spec, z.spec).plan(handle) as plan:
        apart = plan(a, b, z)["y"].numpy()
        assert plan(a, b, z, out=z)["y"] is z
        np.testing.assert_array_equal(z.numpy(), apart)
        if a.spec == z.spec:
            for x in (a, z):
                with pytest.raises(dnn.ArgumentError, match=r"out overlaps a\b"):
                    plan(x, b, z, out=x)
    expected = np.maximum(host_a @ host_b + host_z, 0)
    assert_close(apart, expected, GRAPH_BOUNDS["product"][dtype])


@pytest.mark.parametrize("kind", ["before the product", "transposed", "two outputs", "a sum"])
def test_other_graphs_are_not_in_place(kind: str) -> None:
    square = spec(2, 16, 16)
    problem = GraphProblem(residual(square, square, square, kind))
    assert not problem.operation.in_place
    assert GraphProblem(residual(square, square, square)).operation.in_place == {"z"}
    assert not GraphProblem(residual(square, square, spec(1, 1, 16))).operation.in_place
