"""The newer layers against PyTorch in float64, and what is special to each.

Their other tests are in tests/device/test_operations.py.
"""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.refusals import refuses
from tolerances import OPERATION_BOUNDS, assert_near

import cudnnlite as dnn
from cudnnlite.dtypes import numpy_dtype

from .operation_samples import LAYOUTS, Case, spec_of
from .problems import FLOATS, poisoned, random_values, upload
from .test_pooling import onnx_run

DOCUMENTED = FLOATS[:3]  # of bfloat16 tools/record/operations.py asks a GPU
ACTIVATIONS = ("sigmoid", "relu", "tanh", "clipped_relu", "elu", "swish")


def torch_activation(torch: Any, x: Any, mode: str, coef: float) -> Any:
    functions = torch.nn.functional
    if mode == "swish":
        return x * torch.sigmoid(coef * x)
    if mode == "clipped_relu":
        return functions.hardtanh(x, 0.0, coef)
    return functions.elu(x, coef) if mode == "elu" else getattr(torch, mode)(x)


@pytest.mark.parametrize("mode", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DOCUMENTED)
def test_activations_are_what_pytorch_says(handle: dnn.Handle, mode: str, dtype: str) -> None:
    torch: Any = pytest.importorskip("torch")
    coef = 0.75 if mode in ("clipped_relu", "elu", "swish") else 0.0
    spec = dnn.ActivationSpec(mode, coef) if coef else mode
    rng = np.random.default_rng(0)
    host, dy = (random_values(rng, (2, 3, 5, 4), dtype) for _ in range(2))
    leaf = torch.tensor(host.astype(np.float64), requires_grad=True)
    expected = torch_activation(torch, leaf, mode, coef)
    expected.backward(torch.tensor(dy.astype(np.float64)))
    x, y = handle.array(host), handle.array(expected.detach().numpy().astype(host.dtype))
    assert_near(
        dnn.activation_forward(handle, x, spec).numpy(),
        expected.detach().numpy(),
        OPERATION_BOUNDS[dtype],
    )
    dx = dnn.activation_backward(handle, y, handle.array(dy), x, spec).numpy()
    assert_near(
        dx, leaf.grad.numpy(), 4 * OPERATION_BOUNDS[dtype], np.abs(dy.astype(np.float64)).max()
    )


@pytest.mark.parametrize(
    ("mode", "operator"),
    [("sigmoid", "Sigmoid"), ("relu", "Relu"), ("tanh", "Tanh"), ("elu", "Elu")],
)
def test_activations_are_what_onnx_says(handle: dnn.Handle, mode: str, operator: str) -> None:
    host = random_values(np.random.default_rng(1), (2, 3, 5, 4), "float64") * 5
    assert_near(
        dnn.activation_forward(handle, handle.array(host), mode).numpy(),
        onnx_run(operator, host),
        1e-13,
    )


def test_a_relu_may_drop_a_nan(handle: dnn.Handle) -> None:
    x = handle.array(np.array([[np.nan, -1, 2]], np.float32))
    assert np.isnan(dnn.activation_forward(handle, x, "relu").numpy()[0, 0])
    dropped = dnn.activation_forward(handle, x, dnn.ActivationSpec("relu", nan="not_propagate"))
    np.testing.assert_array_equal(dropped.numpy(), [[0, 0, 2]])


def test_a_normalisation_is_what_onnx_says(handle: dnn.Handle) -> None:
    # As many images as channels: ONNX's reference implementation loops over channels by the number
    # of images.
    host = random_values(np.random.default_rng(2), (9, 9, 3, 4), "float64")
    for n in (1, 3, 4, 5):
        expected = onnx_run("LRN", host, size=n, alpha=1.5, beta=0.75, bias=2.0)
        y = dnn.lrn_forward(handle, handle.array(host), dnn.LRNSpec(n, 1.5, 0.75, 2.0))
        assert_near(y.numpy(), expected, 1e-7)  # ONNX holds its attributes in float32


@pytest.mark.parametrize("axes", [None, 1, (0, 2, 3), -1, (0, -3), (1, 2), {0, 3}])
def test_axes_of_a_reduction(handle: dnn.Handle, axes: Any) -> None:
    host = np.arange(24, dtype=np.float32).reshape(2, 3, 1, 4)
    for layout in (None, "NHWC"):
        c = dnn.reduce_tensor(handle, handle.array(host, layout=layout), "add", axes=axes)
        np.testing.assert_array_equal(
            c.numpy(), host.sum(tuple(axes) if isinstance(axes, set) else axes, keepdims=True)
        )
    for wrong in (4, -5, "x", (0, 1.5)):
        refuses(
            dnn.ArgumentError,
            r"\baxes=",
            lambda wrong=wrong: dnn.reduce_tensor(handle, handle.array(host), "add", axes=wrong),
        )
    for none in ((), 2):  # cuDNN answers BAD_PARAM, and for most operations a copy would be wrong
        refuses(
            dnn.ArgumentError,
            "one of its axes at least",
            lambda none=none: dnn.reduce_tensor(handle, handle.array(host), "norm1", axes=none),
        )
    a, out = handle.array(host), handle.full((2, 1, 1, 4), np.nan)
    assert dnn.reduce_tensor(handle, a, "add", axes=1, out=out) is out
    np.testing.assert_array_equal(out.numpy(), host.sum(1, keepdims=True))
    refuses(
        dnn.ArgumentError,
        r"axes=2 beside out: they make a result of shape \(2, 3, 1, 4\), out has \(2, 1, 1, 4\)",
        lambda: dnn.reduce_tensor(handle, a, "add", axes=2, out=out),
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tensor_of_any_float_type_is_set(handle: dnn.Handle, layout: str) -> None:
    """cuDNN reads the value as it reads alpha: of float16 and bfloat16 tensors as float32."""
    for dtype in FLOATS:
        case = Case(handle, "set_tensor", dtype="float32", layout=layout)
        y = handle.empty(case.out_spec.replace(dtype=dtype))
        for value in (1.5, -0.25, 1e4):
            assert (dnn.set_tensor(handle, y, value).numpy() == y.numpy().dtype.type(value)).all()
    integers = handle.array(np.ones((1, 2), np.int8))
    refuses(
        dnn.ArgumentError,
        "y is int8; allowed: float32",
        lambda: dnn.set_tensor(handle, integers, 1),
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_transformation_converts(handle: dnn.Handle, dtype: str) -> None:
    host = np.arange(-60, 60).reshape(2, 3, 4, 5) / 4  # which every type holds
    x = handle.array(host.astype(np.float32), dtype=dtype)
    for other in FLOATS:
        out = handle.empty(host.shape, other)
        if {dtype, other} == {"float16", "bfloat16"}:
            refuses(
                dnn.NotSupportedError,
                "cudnnTransformTensor",
                lambda out=out: dnn.transform_tensor(handle, x, out=out),
            )
            continue
        y = dnn.transform_tensor(handle, x, alpha=0.5, out=out)
        np.testing.assert_array_equal(y.numpy().astype(np.float64), host / 2)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 3, 1, 1), (2, 1, 1, 5)])
def test_an_addition_of_other_layouts(
    handle: dnn.Handle, dtype: str, shape: tuple[int, ...]
) -> None:
    """Either operand may be packed, in any layout, or a view (432 of 432 on an H200)."""
    rng = np.random.default_rng(1)
    a, c = random_values(rng, shape, dtype), random_values(rng, (2, 3, 4, 5), dtype)
    expected = 0.5 * a.astype(np.float64) + 2.0 * c.astype(np.float64)
    for layout, other in itertools.product(LAYOUTS, LAYOUTS):
        x = upload(handle, spec_of(a.shape, dtype, layout), a)
        y = upload(handle, spec_of(c.shape, dtype, other), c)
        assert dnn.add_tensor(handle, x, y, alpha=0.5, beta=2.0) is y
        assert_near(y.numpy(), expected, OPERATION_BOUNDS[dtype])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_conversion_from_float64_to_another_layout_has_no_beta(
    handle: dnn.Handle, dtype: str
) -> None:
    """An H200 ignored beta in rank 5."""
    x = handle.array(np.ones((2, 3, 2, 3, 4)), layout="NDHWC")
    out = handle.zeros((2, 3, 2, 3, 4), dtype)
    refuses(
        dnn.ArgumentError,
        r"beta=0\.5 .* allowed there: 0",
        lambda: dnn.transform_tensor(handle, x, out=out, beta=0.5),
    )
    assert (dnn.transform_tensor(handle, x, out=out, alpha=2.0).numpy() == 2).all()
    packed = handle.array(np.ones((2, 3, 2, 3, 4)))
    y = dnn.transform_tensor(handle, packed, out=out, alpha=2.0, beta=0.5)
    assert (y.numpy() == 3).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layouts", [("last", "last"), ("first", "last"), ("strided", "first")])
def test_a_transformation_converts_views(
    handle: dnn.Handle, dtype: str, layouts: tuple[str, str]
) -> None:
    """To float64 cuDNN converts packed images of one layout alone; the others are refused."""
    host = np.arange(-60, 60).reshape(2, 3, 4, 5) / 4  # which every type holds
    spec = spec_of(host.shape, dtype, layouts[0])
    x = upload(handle, spec, host.astype(numpy_dtype(spec.dtype)))
    for other in FLOATS:
        if {dtype, other} == {"float16", "bfloat16"}:
            continue
        out = handle.empty(spec_of(host.shape, other, layouts[1]))
        if other == "float64" and dtype != other and layouts[0] != layouts[1]:
            refuses(
                dnn.ArgumentError,
                f"converts {dtype} to float64 wrongly where .* the layouts differ",
                lambda out=out: dnn.transform_tensor(handle, x, out=out),
            )
            continue
        y = dnn.transform_tensor(handle, x, out=out)
        np.testing.assert_array_equal(y.numpy().astype(np.float64), host)


@pytest.mark.parametrize("shape", [(1, 5, 1), (2, 3, 1, 1)])
def test_a_transformation_of_one_pixel_to_float64_is_refused(
    handle: dnn.Handle, shape: tuple[int, ...]
) -> None:
    host = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    x = handle.array(host)
    refuses(
        dnn.ArgumentError,
        "images have one pixel",
        lambda: dnn.transform_tensor(handle, x, dtype="float64"),
    )
    row = x.reshape(1, 1, 1, host.size)
    y = dnn.transform_tensor(handle, row, dtype="float64").reshape(shape)
    np.testing.assert_array_equal(y.numpy(), host)


@pytest.mark.parametrize("shape", [(2, 1, 3, 4), (2, 1, 5), (2, 1, 2, 3, 4)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_transformation_of_one_channel_that_comes_last_to_float64_is_refused(
    handle: dnn.Handle, dtype: str, shape: tuple[int, ...]
) -> None:
    """An H200 reads the scalars as double there, and as float where the channel comes first.

    In rank 5 it reads them as float.
    """
    host = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    x = handle.array(host, dtype=dtype, layout={3: "NWC", 4: "NHWC", 5: "NDHWC"}[len(shape)])
    if len(shape) == 5:
        y = dnn.transform_tensor(handle, x, dtype="float64")
        np.testing.assert_array_equal(y.numpy(), host)
        return
    refuses(
        dnn.ArgumentError,
        "a single channel comes last",
        lambda: dnn.transform_tensor(handle, x, dtype="float64"),
    )
    first = handle.array(host, dtype=dtype)
    y = dnn.transform_tensor(handle, first, dtype="float64")
    np.testing.assert_array_equal(y.numpy(), host)


def test_the_slope_at_a_kink(handle: dnn.Handle) -> None:
    """As an H200 has it."""
    x = handle.array(np.array([[-1, 0, 0.5, 2]], np.float32))
    dy = handle.array(np.full((1, 4), 3, np.float32))
    for mode, coef, expected in (
        ("relu", None, [0, 0, 3, 3]),
        ("clipped_relu", 0.5, [0, 0, 3, 0]),
        ("elu", 0.5, [1.5 / np.e, 3, 3, 3]),
    ):
        spec = dnn.ActivationSpec(mode, coef)
        y = dnn.activation_forward(handle, x, spec)
        dx = dnn.activation_backward(handle, y, dy, x, spec)
        np.testing.assert_allclose(dx.numpy(), [expected], rtol=1e-5)


def test_a_transformation_changes_the_layout(handle: dnn.Handle) -> None:
    host = random_values(np.random.default_rng(3), (2, 3, 4, 5), "float16")
    y = dnn.transform_tensor(handle, handle.array(host), layout="NHWC", alpha=2)
    assert y.spec == dnn.TensorSpec(host.shape, "float16", "NHWC")
    np.testing.assert_array_equal(y.numpy(), 2 * host)
    refuses(
        dnn.ArgumentError,
        "layout='NCHW' beside out",
        lambda: dnn.transform_tensor(handle, y, layout="NCHW", out=y),
    )
    refuses(
        dnn.ArgumentError,
        "dtype='float16' beside out, which is float32",
        lambda: dnn.transform_tensor(handle, y, dtype="float16", out=handle.empty(host.shape)),
    )
    out = handle.full(host.shape, np.nan, "float16")
    dnn.transform_tensor(handle, y, layout="NCHW", dtype="float16", out=out)
    np.testing.assert_array_equal(out.numpy(), 2 * host)


def test_batch_normalisation_of_an_empty_batch(handle: dnn.Handle) -> None:
    x = handle.empty((0, 3, 4, 5))
    scale, bias, mean, var = (handle.zeros((1, 3, 1, 1), "float32") for _ in range(4))
    assert dnn.batch_normalization_inference(handle, x, scale, bias, mean, var).shape == x.shape
    needs = r"x is TensorSpec\(\(0, 3, 4, 5\).*needs at least one image"
    with pytest.raises(dnn.ArgumentError, match=needs):
        dnn.batch_normalization_training(handle, x, scale, bias, running_mean=mean, running_var=var)
    with pytest.raises(dnn.ArgumentError, match=needs):
        dnn.batch_normalization_backward(handle, x, x, scale, mean, var)


ONE_VALUE = (  # the shape of x, and of the parameters
    ("spatial", (1, 8, 1, 1), (1, 8, 1, 1)),
    ("spatial", (1, 3, 1), (1, 3, 1)),
    ("spatial_persistent", (1, 4, 1, 1, 1), (1, 4, 1, 1, 1)),
    ("per_activation", (1, 3, 4, 5), (1, 3, 4, 5)),
)


@pytest.mark.parametrize(("mode", "shape", "parameters"), ONE_VALUE)
def test_batch_normalisation_is_not_trained_on_one_value(
    handle: dnn.Handle, mode: str, shape: tuple[int, ...], parameters: tuple[int, ...]
) -> None:
    """As PyTorch refuses it: on an H200 the running variance would be NaN from then on."""
    for dtype in DOCUMENTED:
        wide = "float64" if dtype == "float64" else "float32"
        x = handle.array(np.ones(shape), dtype=dtype)
        scale, bias, mean, var = (handle.full(parameters, 0.5, wide) for _ in range(4))
        running = {"running_mean": mean, "running_var": var}
        for statistics in ({}, running):
            with pytest.raises(dnn.ArgumentError, match=r"\bx is .*needs at least two values"):
                dnn.batch_normalization_training(handle, x, scale, bias, mode=mode, **statistics)
        assert (var.numpy() == 0.5).all()
        y = dnn.batch_normalization_inference(handle, x, scale, bias, mean, var, mode=mode)
        assert np.isfinite(y.numpy().astype(np.float64)).all()


@pytest.mark.parametrize("shape", [(5, 3, 2, 4), (5, 3)], ids=["images", "vectors"])
@pytest.mark.parametrize("mode", ["spatial", "per_activation"])
@pytest.mark.parametrize("dtype", DOCUMENTED)
def test_batch_normalisation_is_what_pytorch_says(
    handle: dnn.Handle, mode: str, dtype: str, shape: tuple[int, ...]
) -> None:
    """Per activation by folding the positions into the channels."""
    torch: Any = pytest.importorskip("torch")
    rng, wide = np.random.default_rng(4), "float64" if dtype == "float64" else "float32"
    channel_shape = (1, *shape[1:])
    if mode == "spatial":
        channel_shape = (1, 3, *[1] * (len(shape) - 2))
    host, dy = (random_values(rng, shape, dtype) for _ in range(2))
    scale, bias, mean, var = (random_values(rng, channel_shape, wide) for _ in range(4))
    var = abs(var) + np.float32(0.5)

    def folded(values: Any) -> Any:
        return values if mode == "spatial" else values.reshape(len(values), -1)

    leaves = [
        torch.tensor(folded(v.astype(np.float64)), requires_grad=True) for v in (host, scale, bias)
    ]
    running = [torch.tensor(v.astype(np.float64).ravel()) for v in (mean, var)]
    expected = torch.nn.functional.batch_norm(
        leaves[0],
        *running,
        leaves[1].ravel(),
        leaves[2].ravel(),
        training=True,
        momentum=0.3,
        eps=1e-3,
    )
    expected.backward(torch.tensor(folded(dy.astype(np.float64))))
    x, s, b, m, v = (handle.array(values) for values in (host, scale, bias, mean, var))
    how: Any = {"mode": mode, "epsilon": 1e-3}
    y, *saved = dnn.batch_normalization_training(
        handle, x, s, b, running_mean=m, running_var=v, momentum=0.3, **how
    )
    assert_near(y.numpy(), expected.detach().numpy().reshape(shape), OPERATION_BOUNDS[dtype])
    for array, values in ((m, running[0]), (v, running[1])):
        assert_near(array.numpy(), values.numpy().reshape(channel_shape), OPERATION_BOUNDS[wide])
    gradients = dnn.batch_normalization_backward(handle, x, handle.array(dy), s, *saved, **how)
    for array, leaf, like in zip(
        gradients, leaves, (shape, channel_shape, channel_shape), strict=True
    ):
        assert_near(
            array.numpy(), leaf.grad.numpy().reshape(like), 4 * OPERATION_BOUNDS[dtype], 10.0
        )
    again = dnn.batch_normalization_inference(handle, x, s, b, m, v, **how)
    inference = torch.nn.functional.batch_norm(
        leaves[0], *running, leaves[1].ravel(), leaves[2].ravel(), eps=1e-3
    )
    assert_near(again.numpy(), inference.detach().numpy().reshape(shape), OPERATION_BOUNDS[dtype])


@pytest.mark.parametrize("mode", ["spatial", "spatial_persistent", "per_activation"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_statistics_of_a_batch_need_no_running_ones(
    handle: dnn.Handle, dtype: str, mode: str
) -> None:
    """C receives null pointers for them; the other results are the same."""
    shape, rng = (4, 3, 5, 2), np.random.default_rng(6)
    host, wide = random_values(rng, shape, dtype), "float64" if dtype == "float64" else "float32"
    axes: Any = 0 if mode == "per_activation" else (0, 2, 3)
    channel_shape = (1, *shape[1:]) if mode == "per_activation" else (1, 3, 1, 1)
    scale, bias = (random_values(rng, channel_shape, wide) for _ in range(2))
    values = host.astype(np.float64)
    mean, var = (f(axis=axes, keepdims=True) for f in (values.mean, values.var))
    expected = scale * (values - mean) / np.sqrt(var + 1e-3) + bias
    x, s, b = (handle.array(array) for array in (host, scale, bias))
    how: Any = {"mode": mode, "epsilon": 1e-3}
    out = (
        poisoned(handle, x.spec),
        *(poisoned(handle, s.spec) for _ in range(2)),
    )
    results = dnn.batch_normalization_training(handle, x, s, b, **how, out=out)
    assert all(result is array for result, array in zip(results, out, strict=True))
    assert_near(results[0].numpy(), expected, OPERATION_BOUNDS[dtype])
    assert_near(results[1].numpy(), mean, OPERATION_BOUNDS[wide])
    assert_near(results[2].numpy(), 1 / np.sqrt(var + 1e-3), 4 * OPERATION_BOUNDS[wide])
    with dnn.batch_normalization_training.plan(handle, x, s, b, **how) as plan:
        for result, again in zip(results, plan(x, s, b), strict=True):
            np.testing.assert_array_equal(again.numpy(), result.numpy())
    for name, missing in (("running_mean", "running_var"), ("running_var", "running_mean")):
        refuses(
            dnn.ArgumentError,
            f"{missing} has to be given",
            lambda name=name: dnn.batch_normalization_training(handle, x, s, b, **{name: s}),
        )


@pytest.mark.parametrize("mode", ["spatial", "spatial_persistent", "per_activation"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_of_data_and_parameters_have_scalars_of_their_own(
    handle: dnn.Handle, dtype: str, mode: str
) -> None:
    """By one line and by a plan, over what the outputs held; in float64 from the definition."""
    shape, rng = (4, 3, 5, 2), np.random.default_rng(9)
    wide = "float64" if dtype == "float64" else "float32"
    axes: Any = 0 if mode == "per_activation" else (0, 2, 3)
    channel_shape = (1, *shape[1:]) if mode == "per_activation" else (1, 3, 1, 1)
    host, dy, old_dx = (random_values(rng, shape, dtype) for _ in range(3))
    scale, old_dscale, old_dbias = (random_values(rng, channel_shape, wide) for _ in range(3))
    x_values, dy_values = host.astype(np.float64), dy.astype(np.float64)
    mean = x_values.mean(axes, keepdims=True)
    inverse = 1 / np.sqrt(x_values.var(axes, keepdims=True) + 1e-3)
    normal = (x_values - mean) * inverse
    dbias = dy_values.sum(axes, keepdims=True)
    dscale = (dy_values * normal).sum(axes, keepdims=True)
    dx = scale * inverse * (dy_values - (dbias + normal * dscale) / (host.size // scale.size))
    operands = [
        *(handle.array(values) for values in (host, dy, scale)),
        *(handle.array(values.astype(wide)) for values in (mean, inverse)),
    ]
    olds = (old_dx, old_dscale, old_dbias)
    backward = dnn.batch_normalization_backward
    for alpha, beta, alpha_param, beta_param in ((0.5, -2.0, 3.0, 0.25), (0.5, 0.0, 3.0, 0.25)):
        how: Any = {
            "mode": mode,
            "epsilon": 1e-3,
            "alpha": alpha,
            "beta": beta,
            "alpha_param": alpha_param,
            "beta_param": beta_param,
        }
        expected = (
            alpha * dx + beta * old_dx.astype(np.float64),
            alpha_param * dscale + beta_param * old_dscale.astype(np.float64),
            alpha_param * dbias + beta_param * old_dbias.astype(np.float64),
        )
        with backward.plan(handle, *operands, **how) as plan:
            for call in (partial(backward, handle, **how), plan):
                out = [handle.array(values) for values in olds]
                if not beta:
                    out[0] = poisoned(handle, operands[0].spec)
                results = call(*operands, out=out)
                for result, values in zip(results, expected, strict=True):
                    assert_near(result.numpy(), values, 4 * OPERATION_BOUNDS[dtype], 10.0)


def test_scalars_of_parameters_are_those_of_data_if_they_are_not_given(handle: dnn.Handle) -> None:
    rng, backward = np.random.default_rng(10), dnn.batch_normalization_backward
    x, dy = (handle.array(random_values(rng, (4, 3, 5, 2), "float32")) for _ in range(2))
    scale, mean, inverse = (
        handle.array(random_values(rng, (1, 3, 1, 1), "float32")) for _ in range(3)
    )
    operands = (x, dy, scale, mean, inverse)
    shared = backward.problem(*(array.spec for array in operands), alpha=2.0, beta=0.5)
    assert shared.alpha_param == 2.0
    assert shared.beta_param == 0.5
    assert shared == backward.problem(
        *(array.spec for array in operands), alpha=2.0, beta=0.5, alpha_param=2, beta_param=0.5
    )
    doubled = backward(handle, *operands, alpha=2.0)
    for result, plain in zip(doubled, backward(handle, *operands), strict=True):
        assert_near(result.numpy(), 2 * plain.numpy().astype(np.float64), 1e-6)
    for wrong, match in (
        ({"beta_param": 1.0}, r"beta_param=1\.0 needs out\[1\], which it scales"),
        ({"alpha_param": "x"}, "alpha_param='x'"),
        ({"alpha_param": 1e60}, r"alpha_param=1e\+60; allowed"),
        ({"alpha_param": 2, "activation": "relu"}, "alpha_param=2 with an activation; allowed: 1"),
        ({"beta_param": 2, "activation": "relu"}, "beta_param=2 with an activation; allowed: 0"),
    ):
        refuses(dnn.ArgumentError, match, lambda wrong=wrong: backward(handle, *operands, **wrong))


def test_parameters_of_channels_may_be_vectors(handle: dnn.Handle) -> None:
    rng = np.random.default_rng(7)
    for shape in ((4, 3, 5, 2), (4, 3, 5), (2, 3, 2, 3, 2), (4, 3)):
        x = handle.array(random_values(rng, shape, "float32"))
        hosts = [random_values(rng, (3,), "float32") for _ in range(4)]
        hosts[3] = abs(hosts[3]) + 1
        vectors = [handle.array(host) for host in hosts]
        shaped = [handle.array(host.reshape(1, 3, *[1] * (len(shape) - 2))) for host in hosts]
        inference, training = dnn.batch_normalization_inference, dnn.batch_normalization_training
        y = inference(handle, x, *vectors)
        np.testing.assert_array_equal(y.numpy(), inference(handle, x, *shaped).numpy())
        with inference.plan(handle, x, *shaped) as plan:
            np.testing.assert_array_equal(plan(x, *vectors).numpy(), y.numpy())
        running = {"running_mean": vectors[2], "running_var": vectors[3]}
        results = training(handle, x, *vectors[:2], **running)
        expected = training(handle, x, *shaped[:2], running_mean=shaped[2], running_var=shaped[3])
        for result, other in zip(results, expected, strict=True):
            np.testing.assert_array_equal(result.numpy(), other.numpy())
        for vector, other in zip(vectors[2:], shaped[2:], strict=True):  # updated in place
            assert not np.array_equal(vector.numpy(), hosts[2])
            np.testing.assert_array_equal(vector.numpy(), other.numpy().ravel())
        saved = [array.reshape(3) for array in results[1:]]
        gradients = dnn.batch_normalization_backward(handle, x, x, vectors[0], *saved)
        others = dnn.batch_normalization_backward(handle, x, x, shaped[0], *results[1:])
        for gradient, other in zip(gradients, others, strict=True):
            np.testing.assert_array_equal(gradient.numpy(), other.numpy())


def test_scalars_are_float32_beside_all_but_float64(handle: dnn.Handle) -> None:
    """What would be infinite in C is refused; the type of what is read decides."""
    largest, beyond = 3.4028234663852886e38, 3.4028235677973366e38
    x, wide = handle.array(np.ones((1, 2, 3, 4), np.float32)), handle.array(np.ones((1, 2, 3, 4)))
    assert dnn.scale_tensor(handle, x.copy(), largest).numpy().max() == np.float32(largest)
    assert dnn.scale_tensor(handle, wide.copy(), beyond).numpy().max() == beyond
    assert np.isinf(dnn.set_tensor(handle, x.copy(), float("inf")).numpy()).all()
    for call in (
        lambda: dnn.scale_tensor(handle, x, beyond),
        lambda: dnn.scale_tensor(handle, x, -beyond),
        lambda: dnn.transform_tensor(handle, x, alpha=beyond, dtype="float64"),
    ):
        refuses(dnn.ArgumentError, r"alpha=-?3\.40282356779\d+e\+38; allowed: up to", call)
    refuses(dnn.ArgumentError, r"value=.*; allowed: up to", lambda: dnn.set_tensor(handle, x, 1e60))


@pytest.mark.parametrize("op", ["min", "max", "amax"])
@pytest.mark.parametrize("dtype", DOCUMENTED)
@pytest.mark.parametrize("axes", [(1,), (0, 2, 3), None, (1, 3), (3,)])
def test_indices_of_a_reduction(handle: dnn.Handle, op: str, dtype: str, axes: Any) -> None:
    shape = (3, 5, 4, 7)
    values = np.random.default_rng(3).permutation(420).reshape(shape).astype(np.float64) / 16 - 13
    values = values + (values >= 0) / 32  # no two of the same size
    host = values.astype(np.float32 if dtype == "float32" else dtype)
    reduced_axes = tuple(range(4)) if axes is None else axes
    for layout in LAYOUTS:
        a = upload(handle, spec_of(shape, dtype, layout), host)
        c, indices = dnn.reduce_tensor(handle, a, op, axes=axes, indices=True)
        other_axes = [axis for axis in range(4) if axis not in reduced_axes]
        rows = (
            host.astype(np.float64).transpose(*other_axes, *reduced_axes).reshape(c.spec.size, -1)
        )
        rows = {"min": -rows, "max": rows, "amax": abs(rows)}[op]
        np.testing.assert_array_equal(indices.numpy().ravel(), rows.argmax(1))
        assert indices.shape == c.shape
        extremes = rows.max(1).reshape(c.shape)
        np.testing.assert_array_equal(c.numpy(), -extremes if op == "min" else extremes)
        int_array = handle.empty(c.shape, "int32")
        assert dnn.reduce_tensor(handle, a, op, axes=axes, indices=int_array)[1] is int_array
        np.testing.assert_array_equal(int_array.numpy(), indices.numpy())


@pytest.mark.parametrize("dtype", DOCUMENTED)
@pytest.mark.parametrize("n", [1, 3, 4, 5])
def test_divisive_normalisation_around_means(handle: dnn.Handle, n: int, dtype: str) -> None:
    """By PyTorch's convolution with ones and its autograd, in float64."""
    torch: Any = pytest.importorskip("torch")
    rng, shape, norm = np.random.default_rng(4), (2, 3, 7, 8), dnn.LRNSpec(n, 1.5, 0.75, 1.25)
    hosts = [random_values(rng, shape, dtype) for _ in range(3)]
    x, means = (torch.tensor(host.astype(np.float64), requires_grad=True) for host in hosts[:2])
    before = (n - 1) // 2

    def box(values: Any) -> Any:
        padded = torch.nn.functional.pad(values.reshape(-1, 1, 7, 8), (before, n - 1 - before) * 2)
        return torch.nn.functional.conv2d(
            padded, torch.ones(1, 1, n, n, dtype=torch.float64)
        ).reshape(shape)

    spread = box(x * x) - 2 * means * box(x) + means * means * box(torch.ones_like(x))
    expected = x * (1.25 + 1.5 / n**2 * spread) ** -0.75
    expected.backward(torch.tensor(hosts[2].astype(np.float64)))
    arrays = [handle.array(host) for host in hosts]
    y = dnn.divisive_normalization_forward(handle, arrays[0], norm, means=arrays[1])
    assert_near(y.numpy(), expected.detach().numpy(), 2 * OPERATION_BOUNDS[dtype])
    if n == 4:
        refuses(
            dnn.ArgumentError,
            "an even n",
            lambda: dnn.divisive_normalization_backward(
                handle, arrays[0], arrays[2], norm, means=arrays[1]
            ),
        )
        return
    dx, dmeans = dnn.divisive_normalization_backward(
        handle, arrays[0], arrays[2], norm, means=arrays[1]
    )
    assert_near(dx.numpy(), x.grad.numpy(), 4 * OPERATION_BOUNDS[dtype])
    assert_near(
        dmeans.numpy(),
        means.grad.numpy(),
        4 * OPERATION_BOUNDS[dtype],
        np.abs(x.grad.numpy()).max(),
    )


def test_columns_make_a_convolution_a_product(handle: dnn.Handle) -> None:
    rng = np.random.default_rng(5)
    x, w = random_values(rng, (2, 4, 9, 7), "float64"), random_values(rng, (6, 4, 3, 2), "float64")
    for conv in (
        dnn.ConvolutionSpec((1, 2), (2, 1), math_type="fma"),
        dnn.ConvolutionSpec(1, mode="convolution"),
    ):
        columns = dnn.im2col(handle, handle.array(x), w.shape, conv).numpy()
        y = dnn.convolution_forward(handle, handle.array(x), handle.array(w), conv).numpy()
        product = (w.reshape(6, -1) @ columns).reshape(6, 2, *y.shape[2:]).swapaxes(0, 1)
        assert_near(product, y, 1e-12)
    for wrong, match in ((dnn.ConvolutionSpec(groups=2), "one group"), ("x", "conv=")):
        refuses(
            dnn.ArgumentError,
            match,
            lambda wrong=wrong: dnn.im2col(handle, handle.array(x), (6, 2, 3, 2), wrong),
        )
    refuses(dnn.ArgumentError, "w=", lambda: dnn.im2col(handle, handle.array(x), "x"))


def padded_and_folded(host: Any, padding: Any, fold: Any) -> Any:
    """Pad, and let PyTorch gather the blocks.

    Channels of pixel_unshuffle have the block index last; cuDNN's have it first.
    """
    torch: Any = pytest.importorskip("torch")
    padded = np.pad(host.astype(np.float64), padding)
    if fold is None:
        return padded
    n, c, *image = padded.shape
    columns = torch.nn.functional.unfold(torch.tensor(padded), fold, stride=fold).numpy()
    blocks = columns.reshape(n, c, fold[0] * fold[1], image[0] // fold[0], image[1] // fold[1])
    return blocks.swapaxes(1, 2).reshape(n, -1, *blocks.shape[3:])


@pytest.mark.parametrize("function", ["transform_tensor", "transform_filter"])
@pytest.mark.parametrize("layout", [None, "NHWC"])
@pytest.mark.parametrize("dtype", [*FLOATS, "int8"])
def test_padding_and_folding(handle: dnn.Handle, dtype: str, layout: Any, function: str) -> None:
    transform: Any = getattr(dnn, function)
    host = np.random.default_rng(6).integers(-8, 9, (2, 3, 4, 6)).astype(np.float64)
    for lies in (None, "NHWC"):
        x = handle.array(host, dtype=dtype, layout=lies)
        for padding, fold in (
            ((0, (0, 1), (1, 0), 2), None),
            ((0, 0, 0, 0), (2, 3)),
            (((1, 0), 0, 1, (0, 3)), (3, 3)),
        ):
            y = transform(handle, x, padding=padding, fold=fold, layout=layout or lies)
            pairs = [pad if isinstance(pad, tuple) else (pad, pad) for pad in padding]
            np.testing.assert_array_equal(
                y.numpy().astype(np.float64), padded_and_folded(host, pairs, fold)
            )
            assert y.layout == (layout or lies or "NCHW")
            if not any(map(max, pairs)):
                back = transform(handle, y, unfold=fold)
                np.testing.assert_array_equal(back.numpy().astype(np.float64), host)
            out = poisoned(handle, y.spec)
            assert transform(handle, x, padding=padding, fold=fold, out=out) is out
            np.testing.assert_array_equal(out.numpy(), y.numpy())
    volumes = np.random.default_rng(7).integers(-8, 9, (2, 3, 4, 2, 6)).astype(np.float64)
    y = transform(handle, handle.array(volumes, dtype=dtype), padding=(0, 0, 1, (0, 1), 0))
    np.testing.assert_array_equal(
        y.numpy().astype(np.float64), np.pad(volumes, ((0, 0), (0, 0), (1, 1), (0, 1), (0, 0)))
    )


@pytest.mark.parametrize("function", ["transform_tensor", "transform_filter"])
def test_padding_converts_and_scales(handle: dnn.Handle, function: str) -> None:
    transform, host = getattr(dnn, function), np.arange(-72, 72).reshape(2, 3, 4, 6) / 4
    expected = np.pad(host, ((0, 0), (0, 1), (0, 0), (2, 0)))
    for dtype in FLOATS:
        x = handle.array(host, dtype=dtype)
        for other in FLOATS[:1] + FLOATS[2:]:
            options = {"padding": (0, (0, 1), 0, (2, 0)), "dtype": other, "alpha": 0.5}
            if {dtype, other} == {"float16", "bfloat16"}:
                refuses(
                    dnn.ArgumentError,
                    "from ",
                    lambda x=x, options=options: transform(handle, x, **options),
                )
                continue
            y = transform(handle, x, **options)
            assert y.dtype == other
            np.testing.assert_array_equal(y.numpy().astype(np.float64), 0.5 * expected)
    x = handle.array(host.astype(np.float32))
    for options, match in (
        ({"dtype": "float64"}, "to float64"),
        ({"dtype": "int8"}, "to int8"),
        ({"beta": 1.0, "out": None}, "beta"),
        ({"fold": (3, 4)}, "does not divide"),
        ({"unfold": (2, 2)}, "does not divide|allowed: 0"),
        ({"fold": (2,)}, "fold="),
    ):
        refuses(
            dnn.ArgumentError,
            match,
            lambda options=options: transform(handle, x, **{"padding": (0, 0, 0, 0)} | options),
        )
    for padding in (5, (1, 1), (-1, 0, 0, 0), ((1, 2, 3), 0, 0, 0)):
        refuses(
            dnn.ArgumentError,
            "padding",
            lambda padding=padding: transform(handle, x, padding=padding),
        )


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("channels", [1, 3, 8, 10])
def test_the_channels_last_are_normalised_as_the_channels_first(
    handle: dnn.Handle, dtype: str, channels: int
) -> None:
    """By the mode that "auto" stands for, which is another."""
    rng, channel_shape = np.random.default_rng(3), (1, channels, 1, 1)
    host, dy = (random_values(rng, (3, channels, 6, 5), dtype) for _ in range(2))
    small = [random_values(rng, channel_shape, "float32") for _ in range(2)]
    results = []
    for layout in ("NCHW", "NHWC"):
        x, slopes = (handle.array(values, layout=layout) for values in (host, dy))
        scale, bias, mean, var = (
            handle.array(v)
            for v in (*small, np.zeros(channel_shape, "f4"), np.ones(channel_shape, "f4"))
        )
        y, *saved = dnn.batch_normalization_training(
            handle, x, scale, bias, running_mean=mean, running_var=var
        )
        gradients = dnn.batch_normalization_backward(handle, x, slopes, scale, *saved)
        results.append([array.numpy() for array in (y, *saved, mean, var, *gradients)])
    for one, other in zip(*results, strict=True):
        assert_near(one, other, 8 * OPERATION_BOUNDS[dtype], np.abs(other.astype(np.float64)).max())


def test_auto_is_a_mode_of_every_normalisation(handle: dnn.Handle) -> None:
    x = handle.array(np.random.default_rng(0).standard_normal((2, 3, 4, 5), np.float32))
    one, mean, variance = (
        handle.array(np.full((1, 3, 1, 1), value, np.float32)) for value in (1.5, 0.25, 2)
    )
    by_name, by_auto = (
        dnn.batch_normalization_inference(handle, x, one, one, mean, variance, mode=mode)
        for mode in ("spatial", "Auto")
    )
    np.testing.assert_array_equal(by_auto.numpy(), by_name.numpy())
    y, *saved = dnn.batch_normalization_training(
        handle, x, one, one, running_mean=mean, running_var=variance, mode="AUTO"
    )
    dnn.batch_normalization_backward(handle, x, y, one, *saved, mode="AUTO")


def test_statistics_lie_as_the_scale_does_whatever_the_layout_of_the_images(
    handle: dnn.Handle,
) -> None:
    """A scale made without a word about layouts fits images with the channels last too."""
    host = np.random.default_rng(0).standard_normal((2, 3, 4, 5), np.float32)
    scale, bias, mean, variance = (
        handle.array(np.full((1, 3, 1, 1), value, np.float32)) for value in (1.5, 0.2, 0, 1)
    )
    results = {}
    for layout in ("NCHW", "NHWC"):
        x = handle.array(host, layout=layout)
        y, saved, inverse = dnn.batch_normalization_training(
            handle, x, scale, bias, running_mean=mean, running_var=variance
        )
        dx, dscale, dbias = dnn.batch_normalization_backward(handle, x, y, scale, saved, inverse)
        assert {array.spec.layout for array in (saved, inverse, dscale, dbias)} == {"NCHW"}
        results[layout] = [array.numpy() for array in (y, saved, inverse, dx, dscale, dbias)]
    for one, other in zip(*results.values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
