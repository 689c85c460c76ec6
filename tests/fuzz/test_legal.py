"""Random legal calls, sizes of 1 among them, agree with oracles that are not ours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device.operation_samples import SAMPLES, Case, drawn
from device.problems import FLOATS, UNSUPPORTED, Problem, moderate_values, poisoned
from device.test_property import problems
from hypothesis import given
from hypothesis import strategies as st
from rnn_oracles import BIASES, GATES, onnx_rnn, random_weights
from tolerances import assert_near

import cudnnlite as dnn

DTYPES = ("float32", "float64")
# an H200's fast tanh was off by 2.8e-5 behind two layers of three steps
RNN_BOUNDS = {
    "emulated": {"float64": 1e-11, "float32": 2e-5},
    "cuda": {"float64": 1e-11, "float32": 2e-4},
}
long = pytest.mark.timeout(7200, method="thread")


@long
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.usefixtures("shard")
def test_convolutions(dtype: str, fuzz_handle: Any, drawing: Any) -> None:
    @drawing(8, len(FLOATS))
    @given(problems(dtype))
    def check(arguments: dict[str, Any]) -> None:
        alpha, beta = arguments.pop("alpha"), arguments.pop("beta")
        problem = Problem(fuzz_handle, **arguments, values=moderate_values)
        spec = problem.output_spec
        out = (
            fuzz_handle.array(problem.old_host, layout=spec.layout)
            if beta
            else poisoned(fuzz_handle, spec)
        )
        try:
            with dnn.convolution_forward.plan(
                fuzz_handle, problem.x, problem.w, problem.conv, alpha=alpha, beta=beta, out=out
            ) as plan:
                y, algorithm = plan(problem.x, problem.w, out=out), plan.choice.algorithm
        except UNSUPPORTED:
            drawing.refused += 1
            return
        problem.assert_right(y, algorithm, alpha=alpha, beta=beta, cancelling=True)

    check()


@st.composite
def networks(draw: Any) -> dict[str, Any]:
    """Draw a network and its sequences."""
    sizes = {
        name: draw(st.integers(1, 4))
        for name in ("input_size", "hidden_size", "num_layers", "batch", "steps")
    }
    hidden = sizes["hidden_size"]
    cell = draw(st.sampled_from(list(GATES)))
    projects = cell == "lstm" and hidden > 1 and draw(st.booleans())
    return {
        **sizes,
        "cell": cell,
        "projection_size": draw(st.integers(1, hidden - 1)) if projects else None,
        "bidirectional": draw(st.booleans()),
        "bias": draw(st.sampled_from(list(BIASES))),
        "states": draw(st.booleans()),
        "lengths": draw(
            st.none()
            | st.lists(
                st.integers(1, sizes["steps"]), min_size=sizes["batch"], max_size=sizes["batch"]
            )
        ),
        "seed": draw(st.integers(0, 99)),
    }


@long
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("shard")
def test_networks(dtype: str, fuzz_handle: Any, drawing: Any) -> None:
    @drawing(15, len(DTYPES))
    @given(networks())
    def check(net: dict[str, Any]) -> None:
        rng, cell, hidden = np.random.default_rng(net["seed"]), net["cell"], net["hidden_size"]
        shape = {
            name: net[name]
            for name in (
                "input_size",
                "hidden_size",
                "num_layers",
                "bidirectional",
                "projection_size",
                "bias",
            )
        }

        def rounded(values: Any) -> Any:
            return values.astype(dtype).astype(np.float64)

        weights = {
            name: rounded(values) for name, values in random_weights(rng, cell, **shape).items()
        }
        rows, batch, steps = (
            net["num_layers"] * (1 + net["bidirectional"]),
            net["batch"],
            net["steps"],
        )
        x = rounded(rng.standard_normal((steps, batch, net["input_size"])))
        hx = (
            rounded(rng.standard_normal((rows, batch, net["projection_size"] or hidden)))
            if net["states"]
            else None
        )
        cx = (
            rounded(rng.standard_normal((rows, batch, hidden)))
            if net["states"] and cell == "lstm"
            else None
        )
        expected = onnx_rnn(cell, weights, x, hx, cx, net["lengths"])
        spec = dnn.RNNSpec(cell, dtype=dtype, math_type="fma", **shape)
        ours = dnn.RNNWeights.from_arrays(fuzz_handle, spec, weights)
        x, hx, cx = (
            None if state is None else fuzz_handle.array(state, dtype=dtype)
            for state in (x, hx, cx)
        )
        result = dnn.rnn_forward(fuzz_handle, spec, ours, x, hx, cx, lengths=net["lengths"])
        for mine, right in zip(result, expected, strict=True):
            assert (mine is None) == (right is None)
            if mine is not None:
                assert_near(mine.numpy(), right, RNN_BOUNDS[fuzz_handle.device.kind][dtype], 1.0)

    check()


@long
@pytest.mark.parametrize("name", SAMPLES)
def test_operations(name: str, fuzz_handle: Any, drawing: Any) -> None:
    @drawing(2, len(SAMPLES))
    @given(drawn(name))
    def check(arguments: dict[str, Any]) -> None:
        try:
            Case(fuzz_handle, name, **arguments).check()
        except UNSUPPORTED:
            drawing.refused += 1
        except (dnn.ArgumentError, dnn.errors.BadParamError) as error:
            assert SAMPLES[name].refused
            assert SAMPLES[name].refused in str(error)  # noqa: PT017

    check()
