"""`ConvolutionReference`: its sums are ONNX's, and it sees what an algorithm computes wrongly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from oracles import HAS_TORCH, onnx_convolution, scipy_convolution, torch_convolution

import cudnnlite as dnn
from cudnnlite import convolution_forward
from cudnnlite.dtypes import numpy_dtype, parse_dtype
from cudnnlite.workbench.tuning.accuracy import Errors, why_wrong
from cudnnlite.workbench.tuning.convolution_reference import ConvolutionReference

from .problems import (
    FLOATS,
    Array,
    errors_of,
    moderate_values,
    poisoned,
    random_values,
    upload,
    with_gaps,
)

ROUNDED = {
    "float64": 1e-15,
    "float32": 1e-7,
    "float16": 1e-3,
    "bfloat16": 5e-3,
}  # by rounding the output once


class Case:
    """A convolution with operands on the device, and what ONNX says of it.

    Parameters
    ----------
    handle : Handle
    x_shape, w_shape : tuple of int
    dtype : str
    x_spec, y_spec : TensorSpec, optional
        Where they lie otherwise than in `layout`.
    layout : str, optional
    alpha, beta : float
    options
        Of the ConvolutionSpec.
    """

    def __init__(
        self,
        handle: dnn.Handle,
        x_shape: tuple[int, ...] = (2, 4, 7, 6),
        w_shape: tuple[int, ...] = (5, 4, 3, 2),
        dtype: str = "float64",
        *,
        x_spec: dnn.TensorSpec | None = None,
        y_spec: dnn.TensorSpec | None = None,
        layout: str | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        values: Any = random_values,
        **options: Any,
    ) -> None:
        rng = np.random.default_rng(0)
        self.handle, self.dtype = handle, numpy_dtype(parse_dtype(dtype))
        self.x_host, self.w_host = values(rng, x_shape, dtype), values(rng, w_shape, dtype)
        conv = dnn.ConvolutionSpec(**options)
        x_spec = x_spec or dnn.TensorSpec(x_shape, dtype, layout)
        self.x = upload(handle, x_spec, self.x_host)
        self.w = handle.array(self.w_host, layout=layout)
        w_spec = dnn.FilterSpec(w_shape, dtype, layout)
        self.problem = convolution_forward.problem(
            x_spec, w_spec, conv, out=y_spec, alpha=alpha, beta=beta
        )
        self.old = random_values(rng, self.problem.y.shape, dtype)
        self.before = upload(handle, self.problem.y, self.old)
        flip = conv.mode == dnn.enums.ConvolutionMode.CONVOLUTION
        self.oracle_arguments = (
            self.x_host,
            self.w_host,
            *conv.steps(len(x_shape) - 2),
            conv.groups,
            flip,
        )
        self.expected = alpha * onnx_convolution(*self.oracle_arguments) + beta * self.old.astype(
            np.float64
        )

    def reference(self) -> ConvolutionReference:
        return ConvolutionReference(
            self.problem, {"x": self.x, "w": self.w}, self.before if self.problem.beta else None
        )

    def output(self, values: Array | None = None) -> dnn.DeviceArray:
        """Return a result with these values: what is expected, if not given."""
        result = self.expected if values is None else values
        return upload(self.handle, self.problem.y, result.astype(self.dtype), gaps=0xFF)

    def errors(self, values: Array | None = None) -> Errors:
        return errors_of(self.reference(), self.output(values))

    def assert_right(self) -> None:
        """Expected values that are rounded once have exactly the error of that rounding."""
        rounded = self.expected.astype(self.dtype).astype(np.float64)
        bound = ROUNDED[self.dtype.name]
        errors = self.errors()
        assert errors.l2 <= bound
        norm = np.linalg.norm(self.expected)
        by_rounding = np.linalg.norm(rounded - self.expected) / norm
        assert errors.l2 == pytest.approx(by_rounding, rel=0.5, abs=1e-14)


PROBLEMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "padding": {"padding": (2, 1)},
    "stride": {"stride": (2, 3), "padding": 1},
    "dilation": {"dilation": (2, 3), "padding": (2, 3)},
    "all_steps": {"padding": (3, 1), "stride": (1, 2), "dilation": (3, 2)},
    "groups": {"w_shape": (6, 2, 3, 2), "groups": 2},
    "depthwise": {"w_shape": (8, 1, 3, 3), "groups": 4, "padding": 1},
    "rotated": {"mode": "convolution", "padding": 1},
    "rotated_groups": {"mode": "convolution", "w_shape": (6, 2, 3, 2), "groups": 2, "stride": 2},
    "nhwc": {"layout": "NHWC", "padding": 1},
    "nhwc_groups": {"layout": "NHWC", "w_shape": (6, 2, 3, 2), "groups": 2},
    "1d": {"x_shape": (2, 3, 11), "w_shape": (4, 3, 4), "padding": 2, "stride": 2},
    "1d_last": {"x_shape": (2, 3, 11), "w_shape": (4, 3, 4), "layout": "NWC", "dilation": 2},
    "3d": {
        "x_shape": (2, 3, 4, 5, 3),
        "w_shape": (4, 3, 2, 1, 3),
        "padding": (1, 0, 2),
        "stride": (1, 2, 1),
    },
    "3d_last": {
        "x_shape": (1, 2, 4, 5, 3),
        "w_shape": (3, 2, 2, 1, 3),
        "layout": "NDHWC",
        "mode": "convolution",
    },
    "one_tap": {"w_shape": (3, 4, 1, 1)},
    "one_value": {"x_shape": (1, 1, 1, 1), "w_shape": (1, 1, 1, 1)},
    "strided_x": {"x_spec": with_gaps((2, 4, 7, 6), "float64"), "padding": 1},
    "strided_x_last": {"x_spec": with_gaps((2, 4, 7, 6), "float64", last=True)},
    "strided_y": {"y_spec": with_gaps((2, 5, 5, 5), "float64")},
    "other_layout_of_y": {"y_spec": dnn.TensorSpec((2, 5, 5, 5), "float64", "NHWC")},
    "alpha": {"alpha": -0.75},
    "beta": {"beta": 2.0},
    "alpha_beta_strided": {
        "alpha": 0.25,
        "beta": -1.5,
        "y_spec": with_gaps((2, 5, 5, 5), "float64", last=True),
    },
    "no_alpha": {"alpha": 0.0, "beta": 0.5},
    "many_filters": {"w_shape": (40, 2, 3, 2), "groups": 2},
    "many_images": {"x_shape": (5, 4, 7, 6)},
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_onnx_expects_is_right(handle: dnn.Handle, name: str) -> None:
    Case(handle, **PROBLEMS[name]).assert_right()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("beta", [0.0, -0.5])
def test_every_dtype(handle: dnn.Handle, dtype: str, layout: str, beta: float) -> None:
    Case(
        handle, (2, 4, 6, 7), (6, 2, 3, 3), dtype, layout=layout, groups=2, padding=1, beta=beta
    ).assert_right()


@pytest.mark.parametrize("name", ["all_steps", "rotated", "1d", "3d"])
def test_the_oracles_agree(handle: dnn.Handle, name: str) -> None:
    case = Case(handle, **PROBLEMS[name])
    *arguments, groups, flip = case.oracle_arguments
    assert groups == 1
    assert case.errors(scipy_convolution(*arguments, flip)).l2 < 1e-14
    if HAS_TORCH:
        assert case.errors(torch_convolution(*arguments, groups, flip)).l2 < 1e-14


def test_the_half_types_are_read_as_they_are(handle: dnn.Handle) -> None:
    """The reference starts from the rounded operands, which are what cuDNN reads."""
    case = Case(handle, dtype="bfloat16", values=moderate_values)
    exact = case.expected
    errors = errors_of(
        case.reference(), upload(handle, dnn.TensorSpec(exact.shape, "float64"), exact)
    )
    assert errors.l2 < 1e-14


# ---------------------------------------------------------------- what is wrong is seen


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_wrong_value_anywhere_is_seen(handle: dnn.Handle, dtype: str) -> None:
    """In a small output every value of the first and of the last image is in the sample."""
    case = Case(handle, (2, 3, 4, 4), (2, 3, 3, 2), dtype, padding=(1, 0))
    reference = case.reference()
    right = errors_of(reference, case.output())
    scale = np.abs(case.expected).max()
    for place in np.ndindex(case.expected.shape):
        values = case.expected.copy()
        values[place] += scale
        errors = errors_of(reference, case.output(values))
        assert errors.largest == pytest.approx(1.0, rel=0.02), place
        assert errors.l2 > max(0.1, 3 * right.l2), place
        assert why_wrong(errors.l2, case.problem.y.dtype, dnn.MathType.DEFAULT).startswith(
            "wrong: "
        ), place


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_value_that_is_not_finite(handle: dnn.Handle, value: float) -> None:
    case = Case(handle, dtype="float32")
    for place in ((0, 0, 0, 0), (1, 4, 4, 4), (0, 2, 3, 1)):
        values = case.expected.copy()
        values[place] = value
        assert case.errors(values) == Errors(np.inf, np.inf)


@pytest.mark.parametrize("dtype", FLOATS)
def test_poison_that_was_never_overwritten(handle: dnn.Handle, dtype: str) -> None:
    case = Case(handle, dtype=dtype)
    assert errors_of(case.reference(), poisoned(handle, case.problem.y)) == Errors(np.inf, np.inf)


WRONG: dict[str, Any] = {
    "zeros": lambda right: np.zeros_like(right),
    "half": lambda right: right / 2,
    "negated": lambda right: -right,
    "other_numbers": lambda right: np.random.default_rng(9).standard_normal(right.shape),
    "channels_swapped": lambda right: right[:, ::-1],
    "two_channels_swapped": lambda right: right[:, [1, 0, *range(2, right.shape[1])]],
    "images_swapped": lambda right: right[::-1],
    "axes_swapped": lambda right: right.swapaxes(2, 3),
    "shifted": lambda right: np.roll(right, 1, axis=3),
    "last_row": lambda right: np.concatenate([right[:, :, :-1], right[:, :, :1]], axis=2),
    "last_column": lambda right: np.concatenate([right[..., :-1], right[..., :1]], axis=3),
    "last_filter": lambda right: np.concatenate([right[:, :-1], right[:, :1]], axis=1),
    "last_image": lambda right: np.concatenate([right[:-1], right[:1]]),
    "first_value": lambda right: np.where(
        np.arange(right.size).reshape(right.shape) == 0, 99, right
    ),
    "last_value": lambda right: np.where(
        np.arange(right.size).reshape(right.shape) == right.size - 1, 99, right
    ),
}


@pytest.mark.parametrize("damage", WRONG)
@pytest.mark.parametrize(
    "shapes",
    [((2, 4, 7, 7), (5, 4, 3, 3)), ((3, 2, 33, 33), (40, 2, 3, 3))],
    ids=["all_of_it", "a_sample"],
)
def test_what_an_algorithm_may_get_wrong(handle: dnn.Handle, shapes: Any, damage: str) -> None:
    """Wrong corners are seen even if only some places are checked.

    There are 40 filters, 961 places and 3 images; the corners are always checked.
    """
    case = Case(handle, *shapes, "float32")
    assert case.errors().l2 < 1e-6
    errors = case.errors(WRONG[damage](case.expected))
    assert errors.l2 > 0.02, damage
    assert why_wrong(errors.l2, case.problem.y.dtype, dnn.MathType.FMA).startswith("wrong: "), (
        damage
    )


def test_a_convolution_that_is_not_rotated(handle: dnn.Handle) -> None:
    rotated = Case(handle, mode="convolution", padding=1)
    assert rotated.errors(Case(handle, padding=1).expected).l2 > 0.5


def test_beta_that_was_forgotten(handle: dnn.Handle) -> None:
    case = Case(handle, beta=0.5)
    assert case.errors(case.expected - 0.5 * case.old).l2 > 0.1
    assert case.errors(case.expected + 0.5 * case.old).l2 > 0.1


def test_gaps_are_nobodys(handle: dnn.Handle) -> None:
    """NaN between the values of a strided output is not the algorithm's."""
    case = Case(handle, y_spec=with_gaps((2, 5, 5, 5), "float64"))
    assert case.errors().l2 < 1e-14  # the gaps of `output` are NaN


def test_errors_are_those_of_the_sample_alone(handle: dnn.Handle) -> None:
    """Of three images the second is never read; neither it nor x's is copied."""
    case = Case(handle, (3, 2, 5, 5), (3, 2, 3, 3))
    values = case.expected.copy()
    values[1] = np.nan
    assert case.errors(values).l2 < 1e-14


def test_a_reference_serves_many_results(handle: dnn.Handle) -> None:
    case = Case(handle)
    reference = case.reference()
    right, wrong = case.output(), case.output(case.expected + 1)
    assert errors_of(reference, right) == errors_of(reference, right)
    assert errors_of(reference, wrong).l2 > 0.1
    assert errors_of(reference, right).l2 < 1e-14


def test_what_is_expected_may_be_zero(handle: dnn.Handle) -> None:
    """There is nothing to be relative to: the error is the plain one."""
    case = Case(handle, alpha=0.0)
    assert not case.expected.any()
    assert case.errors() == Errors(0.0, 0.0)
    assert case.errors(np.full(case.expected.shape, 1e-3)).largest == pytest.approx(1e-3)


# ---------------------------------------------------------------- what cannot be measured


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("operand", ["x", "w", "out"])
def test_operands_that_are_not_finite(handle: dnn.Handle, operand: str, value: float) -> None:
    case = Case(handle, dtype="float32", beta=1.0)
    values = {"x": case.x_host, "w": case.w_host, "out": case.old}[operand].copy()
    values[-1, -1, -1, -1] = value
    if operand == "out":
        case.before = upload(handle, case.problem.y, values)
    else:
        setattr(case, operand, handle.array(values))
    with (
        np.errstate(invalid="ignore"),
        pytest.raises(dnn.ArgumentError, match="values that are not finite"),
    ):
        case.reference()


@pytest.mark.parametrize(
    ("x", "y", "can"),
    [
        ("float32", None, True),
        ("float64", None, True),
        ("float16", "float32", True),
        ("bfloat16", None, True),
        ("int8", None, False),
        ("int8", "float32", False),
        ("int8x4", None, False),
    ],
)
def test_what_can_be_measured(x: str, y: str | None, can: bool) -> None:
    layout = "NHWC" if x == "int8" else None
    output = None if y is None else dnn.TensorSpec((2, 4, 5, 5), y, layout)
    problem = convolution_forward.problem(
        dnn.TensorSpec((2, 4, 5, 5), x, layout),
        dnn.FilterSpec((4, 4, 3, 3), x, layout),
        dnn.ConvolutionSpec(1),
        out=output,
    )
    assert ConvolutionReference.can_measure(problem) == can


def test_an_empty_batch_cannot_be_measured() -> None:
    problem = convolution_forward.problem(
        dnn.TensorSpec((0, 4, 5, 5)), dnn.FilterSpec((4, 4, 3, 3))
    )
    assert not ConvolutionReference.can_measure(problem)
