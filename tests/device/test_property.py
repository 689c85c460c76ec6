"""Random convolutions: shapes, geometry, padding, layouts, types, scalars, arithmetic."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cudnnlite as dnn

from .problems import FIRST, FLOATS, LAST, UNSUPPORTED, Problem, moderate_values, poisoned

EXAMPLES = 60


@st.composite
def problems(draw: Any, dtype: str) -> dict[str, Any]:
    """Draw the arguments of a `Problem`, and alpha and beta."""
    rank = draw(st.integers(1, 3))

    def steps(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank)))

    groups = draw(st.sampled_from((1, 1, 2, 3)))
    channels, filters = draw(st.integers(1, 5)), groups * draw(st.integers(1, 5))
    taps, stride, dilation, padding = steps(1, 4), steps(1, 3), steps(1, 3), steps(0, 3)
    reach = tuple(d * (t - 1) + 1 for d, t in zip(dilation, taps, strict=True))
    image = tuple(
        max(1, r - 2 * p) + extra
        for r, p, extra in zip(reach, padding, steps(0, 12 // rank), strict=True)
    )  # as small as the filter allows, or a little more
    last = draw(st.booleans())
    return {
        "x_shape": (draw(st.integers(1, 4)), channels * groups, *image),
        "w_shape": (filters, channels, *taps),
        "dtype": dtype,
        "layout": (LAST if last else FIRST)[rank + 2],
        "seed": draw(st.integers(0, 99)),
        "padding": padding,
        "stride": stride,
        "dilation": dilation,
        "groups": groups,
        "mode": draw(st.sampled_from(("cross_correlation", "convolution"))),
        "math_type": draw(
            st.sampled_from(("DEFAULT", "FMA", "FMA", "TENSOR_OP", "TENSOR_OP_ALLOW_CONVERSION"))
        ),
        "alpha": draw(st.sampled_from((1.0, 1.0, -0.5, 1 / 3, 2.25))),
        "beta": draw(st.sampled_from((0.0, 0.0, 1.0, -0.7))),
    }


@pytest.mark.parametrize("dtype", FLOATS)
def test_convolution_forward_is_what_onnx_says(device: Any, dtype: str) -> None:
    counts: Counter[str] = Counter()

    @settings(max_examples=EXAMPLES // len(FLOATS) + 5, derandomize=True, database=None)
    @given(problems(dtype))
    def check(arguments: dict[str, Any]) -> None:
        alpha, beta = arguments.pop("alpha"), arguments.pop("beta")
        counts["examples"] += 1
        problem = Problem(handle, **arguments, values=moderate_values)
        spec = problem.output_spec
        out = handle.array(problem.old_host, layout=spec.layout) if beta else poisoned(handle, spec)
        try:
            with dnn.convolution_forward.plan(
                handle, problem.x, problem.w, problem.conv, alpha=alpha, beta=beta, out=out
            ) as plan:
                y = plan(problem.x, problem.w, out=out)
                assert plan.choice is not None
        except UNSUPPORTED:
            counts["refused"] += 1
            return
        problem.assert_right(y, plan.choice.algorithm, alpha=alpha, beta=beta, cancelling=True)

    with dnn.Handle(device) as handle:
        check()
    print(f"{device}: {counts['examples']} examples of {dtype}, {counts['refused']} refused")
    assert counts["refused"] < 0.2 * counts["examples"]
