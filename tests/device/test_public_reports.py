"""Faults that NVIDIA's release notes, or users of other projects, report of cuDNN 9.18 to 9.23.

Each is asked of the device: right numbers, whatever the version, or a refusal.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from graph_oracles import attention, causal_mask
from oracles import onnx_convolution
from tolerances import assert_close

import cudnnlite as dnn
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.types import Engine
from cudnnlite.workbench.tuning.trial import Trial

from .problems import poisoned, upload

SIZES = ((1, 16, 16, 16), (2, 32, 9, 11), (4, 64, 7, 7), (1, 8, 33, 5), (2, 96, 12, 12))


def depthwise(handle: dnn.Handle, shape: tuple[int, ...], dtype: str, layout: str) -> None:
    """Make a depthwise convolution, and check it."""
    rng = np.random.default_rng(shape[1])
    x, w = rng.standard_normal(shape), rng.standard_normal((shape[1], 1, 3, 3))
    on_device = [handle.array(a.astype(np.float32), dtype=dtype, layout=layout) for a in (x, w)]
    x, w = (a.numpy().astype(np.float64) for a in on_device)
    conv = dnn.ConvolutionSpec(padding=1, groups=shape[1])
    out = poisoned(handle, dnn.TensorSpec(shape, dtype, layout))
    y = dnn.convolution_forward(handle, *on_device, conv, out=out)
    expected = onnx_convolution(x, w, ((1, 1), (1, 1)), (1, 1), (1, 1), shape[1], False)
    assert_close(y.numpy(), expected, 5e-3)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_depthwise_convolutions_of_different_sizes_in_turns(
    handle: dnn.Handle, dtype: str, layout: str
) -> None:
    """One after the other on one handle, each size behind each other (mended in 9.24)."""
    for pair in itertools.permutations(SIZES, 2):
        for shape in pair:
            depthwise(handle, shape, dtype, layout)


@pytest.mark.parametrize("gap", ["a", "b", "both"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_engine_11_of_products_with_gaps(handle: dnn.Handle, dtype: str, gap: str) -> None:
    """By name where the device has it for the product, and by the preferred engine."""
    rng = np.random.default_rng(11)
    shapes = {"a": (3, 24, 40), "b": (3, 40, 16)}
    graph, arrays, hosts = dnn.Graph(), {}, {}
    for name, shape in shapes.items():
        spec = dnn.TensorSpec(shape, dtype)
        if gap in (name, "both"):
            rows, columns = shape[-2:]
            spec = dnn.TensorSpec(shape, dtype, strides=(rows * (columns + 8), columns + 8, 1))
        arrays[name] = upload(
            handle, spec, rng.standard_normal(shape).astype(numpy_dtype(spec.dtype))
        )
        hosts[name] = arrays[name].numpy().astype(np.float64)
    tensors = [
        graph.input(name, array.shape, dtype, array.strides) for name, array in arrays.items()
    ]
    graph.output("y", graph.matmul(*tensors), dtype)
    expected = hosts["a"] @ hosts["b"]
    for options in ({}, {"engine": Engine(11)}):
        try:
            plan = graph.plan(handle, **options)
        except dnn.CudnnError:
            assert options  # the preferred engine is there
            continue
        with plan:
            out = poisoned(handle, dnn.TensorSpec(expected.shape, dtype))
            assert_close(plan(**arrays, out=out)["y"].numpy(), expected, 2e-2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("heads", "heads_of_k"), [(4, 1), (4, 2), (8, 2)])
def test_one_causal_query_with_heads_in_groups(
    handle: dnn.Handle, dtype: str, heads: int, heads_of_k: int
) -> None:
    """In a decoder's step (9.18.1); float32 is refused."""
    rng = np.random.default_rng(heads)
    shapes = ((2, heads, 1, 64), (2, heads_of_k, 17, 64), (2, heads_of_k, 17, 64))
    arrays = [handle.array(rng.standard_normal(s).astype(np.float32), dtype=dtype) for s in shapes]
    q, k, v = (array.numpy().astype(np.float64) for array in arrays)

    def call(**options: Any) -> Any:
        out = poisoned(handle, arrays[0].spec)
        return dnn.scaled_dot_product_attention_forward(handle, *arrays, out=out, **options)

    if dtype == "float32":
        with pytest.raises(dnn.ArgumentError, match="one query in float32"):
            call(causal=True)
        return
    expected = attention(q, k, v, 64**-0.5, causal_mask(1, 17))[0]
    assert_close(call(causal=True).numpy(), expected, 2e-2)


@pytest.mark.parametrize("return_stats", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_no_keys_at_all(handle: dnn.Handle, dtype: str, return_stats: bool) -> None:
    """A sequence of no steps gives zeros beside others (NaN in 9.22)."""
    rng = np.random.default_rng(4)
    shape = (3, 2, 16, 32)
    arrays = [
        handle.array(rng.standard_normal(shape).astype(np.float32), dtype=dtype) for _ in "qkv"
    ]
    q, k, v = (array.numpy().astype(np.float64) for array in arrays)
    of_rows, of_columns = np.array([16, 16, 9], np.int32), np.array([16, 0, 5], np.int32)
    lengths = [handle.array(n.reshape(3, 1, 1, 1)) for n in (of_rows, of_columns)]
    result = dnn.scaled_dot_product_attention_forward(
        handle, *arrays, q_lengths=lengths[0], kv_lengths=lengths[1], return_stats=return_stats
    )
    o = (result[0] if return_stats else result).numpy().astype(np.float64)
    for n in (0, 2):
        rows, columns = of_rows[n], of_columns[n]
        expected = attention(
            q[n : n + 1, :, :rows],
            k[n : n + 1, :, :columns],
            v[n : n + 1, :, :columns],
            32**-0.5,
            None,
        )[0]
        assert_close(o[n : n + 1, :, :rows], expected, 2e-2)
    np.testing.assert_array_equal(o[1], 0)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_what_is_deterministic_gives_the_same_bits(handle: dnn.Handle, dtype: str) -> None:
    """Every engine that says so, twenty times, beside other work (engine 5 of 9.23.1 did not)."""
    rng = np.random.default_rng(5)
    x = handle.array(
        rng.standard_normal((4, 32, 15, 14)).astype(np.float32), dtype=dtype, layout="NHWC"
    )
    w = handle.array(
        rng.standard_normal((32, 32, 3, 3)).astype(np.float32), dtype=dtype, layout="NHWC"
    )
    dy = handle.array(
        rng.standard_normal((4, 32, 15, 14)).astype(np.float32), dtype=dtype, layout="NHWC"
    )
    conv = dnn.ConvolutionSpec(padding=1)
    like = {"w": dnn.FilterSpec(w.shape, dtype, "NHWC")}
    operations: Any = (
        (dnn.convolution_forward, (x, w, conv), {}),
        (dnn.convolution_backward_data, (w, dy, conv), {"x": x.spec}),
        (dnn.convolution_backward_filter, (x, dy, conv), like),
    )
    asked = 0
    for operation, operands, options in operations:
        problem = operation.problem(*operands, **options)
        for row in dnn.Tuner(handle, ":memory:").tune(problem):
            if not row.ok or not row.deterministic:
                continue
            options["algorithm"] = row
            results = (operation(handle, *operands, **options) for _ in range(20))
            assert len({result.numpy().tobytes() for result in results}) == 1, row
            asked += 1
    assert asked > 3


@pytest.mark.parametrize("kind", ["convolution", "graph"])
def test_a_policy_believes_no_note(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Where runs give other bits, `deterministic=True` excludes what cuDNN calls deterministic."""
    spec, of_w, conv = (
        dnn.TensorSpec((2, 8, 9, 9)),
        dnn.FilterSpec((8, 8, 3, 3)),
        dnn.ConvolutionSpec(),
    )
    if kind == "convolution":
        problem: Any = dnn.convolution_forward.problem(spec, of_w, conv)
    else:
        graph = dnn.Graph()
        x, w = graph.input("x", spec.shape), graph.input("w", of_w.shape)
        graph.output("y", graph.convolution_forward(x, w, conv))
        problem = graph
    real, runs = Trial.run_over_poison, itertools.count()

    def run_with_other_bits(trial: Trial, call: Any) -> None:
        real(trial, call)
        array = trial.outputs()[0]
        byte = next(runs) % 256
        array.device.fill(array.ptr, 1, byte, array.stream)  # the last bits of one value

    policy = dnn.TuningPolicy(deterministic=True)
    table = dnn.Tuner(handle, ":memory:", policy).tune(problem)
    assert table[0].deterministic
    monkeypatch.setattr(Trial, "run_over_poison", run_with_other_bits)
    with pytest.raises(dnn.NoAlgorithmError, match="5 runs gave 5 different results"):
        dnn.Tuner(handle, ":memory:", policy).choose(problem)
    assert dnn.Tuner(handle, ":memory:").choose(problem)
