"""A measured choice is asked again whether its engine is right."""

from __future__ import annotations

import pytest

import cudnnlite as dnn
from cudnnlite.enums import MathType
from cudnnlite.workbench.tuning.allowed_choice import is_passed_over

# Gradients of filters: engine 70 is wrong with channels first where an image takes 60 bytes,
# engine 4 with channels last where there are groups.
IMAGES = dnn.convolution_backward_filter.problem(
    dnn.TensorSpec((2, 8, 3, 5)),
    dnn.TensorSpec((2, 4, 3, 5)),
    dnn.ConvolutionSpec(padding=1),
    w=dnn.FilterSpec((4, 8, 3, 3)),
)
LINES = dnn.convolution_backward_filter.problem(
    dnn.TensorSpec((2, 8, 8)),
    dnn.TensorSpec((2, 2, 7)),
    dnn.ConvolutionSpec(padding=1, groups=2),
    w=dnn.FilterSpec((2, 4, 4)),
)


@pytest.mark.parametrize(
    ("problem", "engine", "layout", "is_wrong"),
    [(IMAGES, 70, "", True), (IMAGES, 70, "NHWC", False), (LINES, 4, "", False), (LINES, 4, "NWC", True)],
)  # fmt: skip
def test_an_engine_is_asked_in_the_layout_in_which_it_runs(
    problem: dnn.types.Problem, engine: int, layout: str, is_wrong: bool
) -> None:
    row = dnn.AlgorithmResult(dnn.types.Engine(engine), MathType.DEFAULT, layout=layout)
    assert is_passed_over(row, problem, 91900) == is_wrong


def test_an_algorithm_is_no_engine() -> None:
    row = dnn.AlgorithmResult(dnn.enums.ConvolutionBwdFilterAlgo.ALGO_0, MathType.DEFAULT)
    assert not is_passed_over(row, IMAGES, 91900)
