"""Pooling against ONNX's reference implementation, PyTorch and finite differences."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers.extents import each_pair
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from oracles import HAS_TORCH
from tolerances import OPERATION_BOUNDS, assert_near

import cudnnlite as dnn
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.specs.frozen import from_plain, to_plain

from .operation_samples import LAYOUTS, spec_of
from .problems import FLOATS, Array, memory_of, moderate_values, poisoned, upload

MAXIMA = ("max", "max_deterministic")
MODES = (*MAXIMA, "average_count_include_padding", "average_count_exclude_padding")
SHAPES = {3: (2, 3, 17), 4: (2, 3, 12, 9), 5: (2, 3, 7, 6, 9)}
SLOPE = 1e-8  # of central differences over 1e-3: pooling is linear between ties


def window(rank: int, mode: str, placement: str = "overlapping") -> dnn.PoolingSpec:
    """Return a pooling whose steps differ from axis to axis."""
    taps, padding, stride = {
        "overlapping": ((3, 2, 4), (1, 1, 2), (2, 1, 3)),
        "apart": ((2, 3, 1), (0, 1, 0), (3, 4, 2)),
        "everything": (SHAPES[rank][2:], (0,) * 3, (1,) * 3),
    }[placement]
    return dnn.PoolingSpec(
        taps[: rank - 2], padding=padding[: rank - 2], stride=stride[: rank - 2], mode=mode
    )


def pooling_of(
    window: Any, padding: Any = 0, stride: Any = None, **options: Any
) -> dnn.PoolingSpec:
    """Return the pooling of a row of a table."""
    return dnn.PoolingSpec(window, padding=padding, stride=stride, **options)


def onnx_pooling(x: Array, pooling: dnn.PoolingSpec) -> Array:
    """Run ONNX's MaxPool or AveragePool in float64."""
    taps, padding, stride = pooling.steps(x.ndim - 2)
    how: dict[str, Any] = {
        "kernel_shape": list(taps),
        "pads": [*padding, *padding],
        "strides": list(stride),
    }
    if pooling.mode.name.startswith("MAX"):
        return onnx_run("MaxPool", x, **how)
    return onnx_run("AveragePool", x, count_include_pad=int("INCLUDE" in pooling.mode.name), **how)


def onnx_run(operator: str, x: Array, **attributes: Any) -> Array:
    """Run one operator of ONNX in float64."""
    value = {name: helper.make_tensor_value_info(name, TensorProto.DOUBLE, None) for name in "xy"}
    node = helper.make_node(operator, ["x"], ["y"], **attributes)
    model = helper.make_model(helper.make_graph([node], operator, [value["x"]], [value["y"]]))
    (result,) = ReferenceEvaluator(model).run(None, {"x": np.asarray(x).astype(np.float64)})
    assert result.dtype == np.float64
    return result


def torch_pooling(
    x: Array, dy: Array | None, pooling: dnn.PoolingSpec
) -> tuple[Array, Array | None]:
    """Return PyTorch's (y, dx) in float64.

    PyTorch pads by less than cuDNN, so the padding is made here.
    """
    torch: Any = pytest.importorskip("torch")
    functions, axes = torch.nn.functional, x.ndim - 2
    taps, padding, stride = pooling.steps(axes)
    margins = [margin for margin in reversed(padding) for _ in range(2)]
    leaf = torch.tensor(x.astype(np.float64), requires_grad=True)
    if pooling.mode.name.startswith("MAX"):
        padded = functions.pad(leaf, margins, value=-float("inf"))
        y = getattr(functions, f"max_pool{axes}d")(padded, taps, stride)
    else:
        average = getattr(functions, f"avg_pool{axes}d")
        y = average(functions.pad(leaf, margins), taps, stride)
        if "EXCLUDE" in pooling.mode.name:
            y = y / average(functions.pad(torch.ones_like(leaf), margins), taps, stride)
    if dy is None:
        return y.detach().numpy(), None
    y.backward(torch.tensor(dy.astype(np.float64)))
    return y.detach().numpy(), leaf.grad.numpy()


def images(rank: int, dtype: str) -> Array:
    """Return random values that differ before they are rounded."""
    shape = SHAPES[rank]
    values = np.random.default_rng(rank).permutation(int(np.prod(shape))).reshape(shape) / 64 - 9
    return values.astype(moderate_values(np.random.default_rng(0), (1,), dtype).dtype)


@each_pair(layout=LAYOUTS, rank=SHAPES, mode=MODES)
def test_forward_is_what_onnx_says(handle: dnn.Handle, mode: str, rank: int, layout: str) -> None:
    for placement in ("overlapping", "apart", "everything"):
        pooling = window(rank, mode, placement)
        for dtype in FLOATS:
            host = images(rank, dtype)
            expected = onnx_pooling(host, pooling)
            x = upload(handle, spec_of(host.shape, dtype, layout), host)
            y = dnn.pooling_forward(
                handle, x, pooling, out=poisoned(handle, spec_of(expected.shape, dtype, layout))
            )
            assert_near(y.numpy(), expected, 0 if mode in MAXIMA else OPERATION_BOUNDS[dtype])
    if mode not in MAXIMA:  # ONNX's GlobalMaxPool returns another shape where the rank is not 4
        assert_near(y.numpy(), onnx_run("GlobalAveragePool", host), OPERATION_BOUNDS[dtype])


@pytest.mark.parametrize("rank", SHAPES)
def test_the_whole_image(handle: dnn.Handle, rank: int) -> None:
    host = images(rank, "float32")
    x = handle.array(host)
    average, largest = dnn.PoolingSpec.whole(x), dnn.PoolingSpec.whole(x.spec, mode="max")
    assert average == dnn.PoolingSpec(host.shape[2:], mode="average_count_include_padding")
    y = dnn.pooling_forward(handle, x, average)
    assert y.shape == (*host.shape[:2], *[1] * (rank - 2))
    assert_near(y.numpy(), onnx_run("GlobalAveragePool", host), OPERATION_BOUNDS["float32"])
    assert_near(
        dnn.pooling_forward(handle, x, largest).numpy(),
        host.max(tuple(range(2, rank)), keepdims=True),
        0,
    )
    for wrong in (dnn.TensorSpec((2, 3)), (2, 3, 4, 5), None):
        with pytest.raises(dnn.ArgumentError, match=r"\bx="):
            dnn.PoolingSpec.whole(wrong)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rank", SHAPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_ways_are_what_pytorch_says(
    handle: dnn.Handle, mode: str, rank: int, layout: str
) -> None:
    pooling = window(rank, mode)
    for dtype in FLOATS:
        host = images(rank, dtype)
        dy_host = moderate_values(
            np.random.default_rng(1), pooling.output_spec(dnn.TensorSpec(host.shape)).shape, dtype
        )
        expected, gradient = torch_pooling(host, dy_host, pooling)
        x = upload(handle, spec_of(host.shape, dtype, layout), host)
        dy = upload(handle, spec_of(dy_host.shape, dtype, layout), dy_host)
        y = dnn.pooling_forward(handle, x, pooling, out=poisoned(handle, dy.spec))
        dx = dnn.pooling_backward(handle, y, dy, x, pooling, out=poisoned(handle, x.spec))
        assert_near(y.numpy(), expected, OPERATION_BOUNDS[dtype])
        assert_near(
            dx.numpy(), gradient, OPERATION_BOUNDS[dtype], np.abs(dy_host.astype(np.float64)).max()
        )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("image", [(7,), (5, 4), (3, 4, 3)])
def test_backward_is_the_slope_of_forward(
    handle: dnn.Handle, mode: str, image: tuple[int, ...]
) -> None:
    """Each value of one image is moved up and down, in a batch of as many images."""
    rng, step = np.random.default_rng(2), 1e-3
    pooling = window(len(image) + 2, mode)
    x = rng.permutation(2 * int(np.prod(image))).reshape(1, 2, *image) / 8.0
    moves = step * np.eye(x.size).reshape(x.size, *x.shape[1:])
    up, down = (
        dnn.pooling_forward(handle, handle.array(x + sign * moves), pooling).numpy()
        for sign in (1, -1)
    )
    y = dnn.pooling_forward(handle, handle.array(x), pooling)
    dy = rng.standard_normal(y.shape)
    dx = dnn.pooling_backward(handle, y, handle.array(dy), handle.array(x), pooling)
    slope = ((up - down) * dy).reshape(x.size, -1).sum(1) / (2 * step)
    assert_near(dx.numpy(), slope.reshape(x.shape), SLOPE, np.abs(dy).max())


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", MAXIMA)
def test_an_infinite_gradient_is_that_of_its_maximum_alone(
    handle: dnn.Handle, mode: str, layout: str, dtype: str
) -> None:
    pooling = pooling_of((2, 3), stride=(2, 3), mode=mode)
    spec = spec_of((2, 3, 4, 6), dtype, layout)
    host = np.random.default_rng(0).permutation(spec.size).reshape(spec.shape) - 70.0
    blocks = host.reshape(2, 3, 2, 2, 2, 3)
    y_host = blocks.max((3, 5))
    dy_host = np.arange(1.0, y_host.size + 1).reshape(y_host.shape)
    dy_host[0, 1, 1, 0], dy_host[1, 2, 0, 1] = np.inf, -np.inf
    is_chosen = blocks == y_host[:, :, :, None, :, None]
    expected = np.where(is_chosen, dy_host[:, :, :, None, :, None], 0).reshape(host.shape)
    y, dy, x = (
        upload(handle, spec_of(a.shape, dtype, layout), a.astype(numpy_dtype(spec.dtype)))
        for a in (y_host, dy_host, host)
    )
    dx = dnn.pooling_backward(handle, y, dy, x, pooling, out=poisoned(handle, spec))
    np.testing.assert_array_equal(dx.numpy().astype(np.float64), expected)


@pytest.mark.parametrize("mode", MAXIMA)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("value", [0.0, -2.0, float(np.finfo(np.float32).min)])
def test_of_equal_maxima_the_first_has_the_gradient(
    handle: dnn.Handle, mode: str, layout: str, value: float
) -> None:
    """In the order of rows; padding is never a maximum; where windows overlap, gradients add up."""
    if layout == "last" and value < -2:
        value = float(
            np.nextafter(np.float32(value), np.float32(0))
        )  # cuDNN 9.19 pads with the lowest number there
    cases = {  # for each axis, where the first value of each window lies
        ((2, 3), 0, (2, 3)): ([0, 2], [0, 3]),
        (2, 1, 2): ([0, 1, 3], [0, 1, 3, 5]),
        (3, 1, 2): ([0, 1], [0, 1, 3]),
        ((4, 2), (0, 1), (1, 2)): ([0], [0, 1, 3, 5]),
        (3, 2, 1): ([0, 0, 0, 1, 2, 3], [0, 0, 0, 1, 2, 3, 4, 5]),
    }
    for steps, (rows, columns) in cases.items():
        host, pooling = np.full((2, 3, 4, 6), value, np.float32), pooling_of(*steps, mode=mode)
        y_host = np.full((2, 3, len(rows), len(columns)), value, np.float32)
        dy_host = np.arange(1, y_host.size + 1, dtype=np.float32).reshape(y_host.shape)
        expected = np.zeros(host.shape)
        np.add.at(expected, (slice(None), slice(None), *np.ix_(rows, columns)), dy_host)
        y, dy, x = (
            upload(handle, spec_of(values.shape, "float32", layout), values)
            for values in (y_host, dy_host, host)
        )
        dx = dnn.pooling_backward(handle, y, dy, x, pooling, out=poisoned(handle, x.spec))
        np.testing.assert_array_equal(dx.numpy(), expected, err_msg=str(pooling))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_channel_pooled_to_one_pixel(handle: dnn.Handle, mode: str, layout: str) -> None:
    """One pixel of one channel has every layout, so its gradient is refused in none."""
    host = np.array([[[[1.0], [3.0]]]], np.float32)
    x, pooling = (
        upload(handle, spec_of(host.shape, "float32", layout), host),
        dnn.PoolingSpec((2, 1), mode=mode),
    )
    y = dnn.pooling_forward(
        handle, x, pooling, out=poisoned(handle, spec_of((1, 1, 1, 1), "float32", layout))
    )
    dx = dnn.pooling_backward(handle, y, y, x, pooling).numpy().ravel()
    np.testing.assert_array_equal(dx, [0, 3] if mode in MAXIMA else [1, 1])


@pytest.mark.parametrize("mode", MAXIMA)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_a_nan_is_propagated_or_not(handle: dnn.Handle, mode: str, layout: str, dtype: str) -> None:
    """At each place of a window; never in all of one."""
    host = images(4, dtype)[..., :8]
    windows = host.reshape(2, 3, 6, 2, 4, 2)
    for number in range(4):
        windows[:, :, number, number // 2, :, number % 2] = np.nan
    x = upload(handle, spec_of(host.shape, dtype, layout), host)
    for nan, maximum in (("propagate", np.maximum), ("not_propagate", np.fmax)):
        y = (
            dnn.pooling_forward(handle, x, dnn.PoolingSpec(2, mode=mode, nan=nan))
            .numpy()
            .astype(np.float64)
        )
        np.testing.assert_array_equal(
            y, maximum.reduce(maximum.reduce(windows.astype(np.float64), axis=5), axis=3)
        )
        assert np.isnan(y).sum() == (2 * 3 * 4 * 4 if nan == "propagate" else 0)


def test_modes_by_name() -> None:
    assert dnn.PoolingSpec(2).mode is dnn.enums.PoolingMode.MAX
    assert dnn.PoolingSpec(2).nan is dnn.enums.NanPropagation.PROPAGATE
    for mode in MODES:
        for name in (mode, mode.upper(), mode.title(), mode.replace("_", "-")):
            assert dnn.PoolingSpec(2, mode=name).mode is dnn.enums.PoolingMode[mode.upper()]
    for option, allowed in (("mode", MODES), ("nan", ("propagate", "not_propagate"))):
        for wrong in ("mean", 17, None, True, dnn.MathType.FMA):
            with pytest.raises(dnn.ArgumentError, match=rf"\b{option}=") as refusal:
                dnn.PoolingSpec(2, **{option: wrong})
            assert all(name.upper() in str(refusal.value) for name in allowed)


def test_a_pooling_spec_is_a_value() -> None:
    full = dnn.PoolingSpec(
        (3, 2), padding=(1, 0), stride=2, mode="average_count_exclude_padding", nan="not_propagate"
    )
    specs = [
        dnn.PoolingSpec(2),
        dnn.PoolingSpec(2, stride=1),
        dnn.PoolingSpec(2, padding=1),
        dnn.PoolingSpec((2, 2)),
        full,
    ]
    specs += [full.replace(mode="max"), full.replace(nan="propagate"), full.replace(stride=(2, 2))]
    assert len({*specs}) == len(specs)
    for spec in specs:
        for again in (
            pickle.loads(pickle.dumps(spec)),
            from_plain(json.loads(json.dumps(to_plain(spec)))),
            spec.replace(),
            eval(repr(spec), {"PoolingSpec": dnn.PoolingSpec}),
        ):
            assert again == spec
            assert hash(again) == hash(spec)
        with pytest.raises(AttributeError):
            spec.window = 3
    assert (
        repr(dnn.PoolingSpec(3, padding=1, stride=2))
        == "PoolingSpec(window=3, padding=1, stride=2)"
    )
    assert dnn.PoolingSpec(3) == dnn.PoolingSpec(3, padding=0, stride=3)
    assert dnn.PoolingSpec(3).replace(window=4).stride == 3
    assert dnn.PoolingSpec(3) != 3
    assert dnn.PoolingSpec(np.int64(3), stride=np.array([2, 1])).stride == (2, 1)
    with pytest.raises(dnn.ArgumentError, match="padding"):
        full.replace(padding=3)


# ------------------------------------------------------------------ padding that differs at the ends

UNEVEN = {  # window, padding, stride
    "less behind": ((3, 2), ((1, 0), (1, 0)), (2, 1)),
    "more behind": ((3, 2), ((0, 1), (0, 1)), (2, 1)),
    "each": ((4, 3), ((2, 0), (1, 2)), (3, 1)),
    "same": ((2, 3), "same", (1, 2)),
    "same, even": (4, "same", 3),
}
CEILED = {
    "no padding": (2, 0, 2),
    "wide": ((3, 4), 0, (5, 3)),
    "padded": ((3, 2), 1, (2, 2)),
    "no window begins in padding": ((2, 3), (1, 1), (3, 4)),
    "uneven": ((3, 3), ((0, 1), (1, 0)), (2, 3)),
}


def clipped_windows(
    shape: tuple[int, ...], pooling: dnn.PoolingSpec
) -> Iterator[tuple[tuple[int, ...], tuple[slice, slice], int]]:
    """Yield the place of each value, what its window has of the image, and how much it counts.

    There are as many windows as PyTorch has.
    """
    windows, pads = pooling._per_axis("window", 2), pooling.pads(2)
    strides = pooling._per_axis("stride", 2)
    starts = []
    for size, taps, (before, behind), stride in zip(shape[2:], windows, pads, strides, strict=True):
        count = -(-(size + before + behind - taps) // stride) + 1
        if not pooling.ceil_mode:
            count = (size + before + behind - taps) // stride + 1
        starts.append([n * stride - before for n in range(count) if n * stride < size + before])
    for place in np.ndindex(*map(len, starts)):
        parts, counted = [], 1
        for axis, number in enumerate(place):
            start = starts[axis][number]
            end, size = start + windows[axis], shape[2 + axis]
            parts.append(slice(max(start, 0), min(end, size)))
            counted *= min(end, size + pads[axis][1]) - start
        yield place, (parts[0], parts[1]), counted


def clipped_pooling(x: Array, pooling: dnn.PoolingSpec) -> Array:
    """Pool what each window has of the image, in float64."""
    results = {}
    for place, (rows, columns), counted in clipped_windows(x.shape, pooling):
        values = x[:, :, rows, columns].astype(np.float64)
        if pooling.mode.name in map(str.upper, MAXIMA):
            results[place] = values.max((2, 3))
        elif "INCLUDE" in pooling.mode.name:
            results[place] = values.sum((2, 3)) / counted
        else:
            results[place] = values.mean((2, 3))
    height, width = (last + 1 for last in max(results))
    return np.stack([*results.values()], 2).reshape(*x.shape[:2], height, width)


def clipped_gradient(x: Array, dy: Array, pooling: dnn.PoolingSpec) -> Array:
    """Give the gradient of each window to its first maximum, or to all its values, in float64."""
    dx = np.zeros(x.shape)
    for place, (rows, columns), counted in clipped_windows(x.shape, pooling):
        values, share = x[:, :, rows, columns], dy[(slice(None), slice(None), *place)]
        share = share.astype(np.float64)[..., None, None]
        if pooling.mode.name in map(str.upper, MAXIMA):
            flat = values.reshape(*values.shape[:2], -1)
            is_first = np.arange(flat.shape[2]) == flat.argmax(2)[..., None]
            weights = is_first.reshape(values.shape)
        else:
            count = counted if "INCLUDE" in pooling.mode.name else values[0, 0].size
            weights = np.full(values.shape, 1 / count)
        dx[:, :, rows, columns] += share * weights
    return dx


def is_served(x: dnn.TensorSpec, pooling: dnn.PoolingSpec) -> bool:
    """Whether an H100 pools right with padding that differs at the two ends."""
    numbers = pooling.for_shapes(x.shape)
    if numbers.is_symmetric:
        return True
    if x.is_channels_last:
        return x.dtype in (dnn.DataType.FLOAT, dnn.DataType.HALF)
    has_more_behind = any(behind > before for before, behind in numbers.pads(2))
    return not (has_more_behind and "INCLUDE" in numbers.mode.name)


@each_pair(case=UNEVEN, layout=["first", "last"], mode=MODES)
def test_uneven_padding_is_onnx_s(handle: dnn.Handle, case: str, layout: str, mode: str) -> None:
    """As pads or as SAME_UPPER, and through a plan."""
    pooling = pooling_of(*UNEVEN[case], mode=mode)
    how: dict[str, Any] = {"auto_pad": "SAME_UPPER"}
    if pooling.padding != "same":
        before, behind = zip(*pooling.pads(2), strict=True)
        how = {"pads": [*before, *behind]}
    how["strides"] = pooling._per_axis("stride", 2)
    how["kernel_shape"] = pooling._per_axis("window", 2)
    operator = "MaxPool" if mode in MAXIMA else "AveragePool"
    if operator == "AveragePool":
        how["count_include_pad"] = int("include" in mode)
    for dtype in FLOATS:
        host = images(4, dtype)
        x = upload(handle, spec_of(host.shape, dtype, layout), host)
        if not is_served(x.spec, pooling):
            with pytest.raises((dnn.ArgumentError, dnn.NotSupportedError)):
                dnn.pooling_forward(handle, x, pooling)
            continue
        expected = onnx_run(operator, host, **how)
        bound = 0 if mode in MAXIMA else OPERATION_BOUNDS[dtype]
        out = poisoned(handle, spec_of(expected.shape, dtype, layout))
        assert_near(dnn.pooling_forward(handle, x, pooling, out=out).numpy(), expected, bound)
        with dnn.pooling_forward.plan(handle, x, pooling) as plan:
            assert_near(plan(x).numpy(), expected, bound)
            assert (plan.choice is None) == plan.pooling.is_symmetric


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("mode", MODES)
def test_uneven_padding_of_one_channel(handle: dnn.Handle, mode: str, layout: str) -> None:
    """The memory of both layouts is the same; in one of them cuDNN pools most cases rightly."""
    for dtype in FLOATS:
        host = images(4, dtype)[:, :1]
        x = upload(handle, dnn.TensorSpec(host.shape, dtype, layout), host)
        for padding in (((0, 1), (0, 1)), ((1, 0), (0, 1))):
            pooling = dnn.PoolingSpec(2, padding=padding, stride=2, mode=mode)
            is_included = "include" in mode and dtype in ("float64", "bfloat16")
            if is_included:
                with pytest.raises(dnn.ArgumentError, match="give float"):
                    dnn.pooling_forward(handle, x, pooling)
                continue
            y = dnn.pooling_forward(handle, x, pooling)
            bound = 0 if mode in MAXIMA else OPERATION_BOUNDS[dtype]
            assert_near(y.numpy(), clipped_pooling(host, pooling), bound)


def test_uneven_padding_of_images_that_are_not_aligned(handle: dnn.Handle) -> None:
    host, pooling = images(4, "float32"), dnn.PoolingSpec(2, padding="same", stride=1)
    x = handle.array(host)
    memory = handle.empty((x.nbytes + 8,), "uint8")
    moved = dnn.DeviceArray(x.spec, memory.device, memory.ptr + 8, memory, handle.stream)
    handle.device.copy_within(moved.ptr, x.ptr, x.nbytes, handle.stream)
    with pytest.warns(dnn.errors.AlignmentWarning, match="cudnnBackendExecute"):
        y = dnn.pooling_forward(handle, moved, pooling)
    assert_near(y.numpy(), dnn.pooling_forward(handle, x, pooling).numpy(), 0)


@each_pair(case=CEILED, layout=["first", "last"], mode=MODES)
def test_a_last_window_that_reaches_beyond_the_end(
    handle: dnn.Handle, case: str, layout: str, mode: str
) -> None:
    pooling = pooling_of(*CEILED[case], mode=mode, ceil_mode=True)
    for dtype in FLOATS:
        host = images(4, dtype)
        x = upload(handle, spec_of(host.shape, dtype, layout), host)
        counts = "include" in mode and case in ("padded", "uneven")
        if counts or not is_served(x.spec, pooling):
            with pytest.raises((dnn.ArgumentError, dnn.NotSupportedError)):
                dnn.pooling_forward(handle, x, pooling)
            continue
        expected = clipped_pooling(host, pooling)
        out = poisoned(handle, spec_of(expected.shape, dtype, layout))
        y = dnn.pooling_forward(handle, x, pooling, out=out)
        assert_near(y.numpy(), expected, 0 if mode in MAXIMA else OPERATION_BOUNDS[dtype])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", [*UNEVEN, *CEILED])
def test_gradients_with_uneven_padding(handle: dnn.Handle, case: str, mode: str) -> None:
    is_ceiled = case in CEILED
    steps = CEILED[case] if is_ceiled else UNEVEN[case]
    pooling = pooling_of(*steps, mode=mode, ceil_mode=is_ceiled)
    for dtype in FLOATS:
        host = images(4, dtype)
        x = upload(handle, spec_of(host.shape, dtype, "first"), host)
        if is_ceiled and "include" in mode and case in ("padded", "uneven"):
            with pytest.raises(dnn.ArgumentError, match="which cuDNN would count"):
                dnn.pooling_backward(handle, x, x, x, pooling)
            continue
        numbers = pooling.for_shapes(host.shape)
        y_spec = numbers.output_spec(x.spec)
        if not is_served(x.spec, pooling):
            with pytest.raises(dnn.ArgumentError, match="averages over padding wrongly"):
                dnn.pooling_backward.plan(handle, y_spec, y_spec, x.spec, pooling)
            continue
        numbers = numbers.replace(padding=numbers.pads(2))  # of a "same" too
        y_host = clipped_pooling(host, numbers).astype(host.dtype)
        dy_host = moderate_values(np.random.default_rng(1), y_host.shape, dtype)
        y, dy = (upload(handle, y_spec, values) for values in (y_host, dy_host))
        expected = clipped_gradient(host, dy_host, numbers)
        dx = dnn.pooling_backward(handle, y, dy, x, pooling, out=poisoned(handle, x.spec))
        assert_near(dx.numpy(), expected, OPERATION_BOUNDS[dtype])
        with dnn.pooling_backward.plan(handle, y_spec, y_spec, x.spec, pooling) as plan:
            assert_near(plan(y, dy, x).numpy(), expected, OPERATION_BOUNDS[dtype])
            assert (plan.choice is None) == plan.pooling.is_symmetric


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", [*UNEVEN, *CEILED])
def test_gradients_with_channels_last(handle: dnn.Handle, case: str, mode: str) -> None:
    """Averages are computed; maxima need their indices, which the call has no argument for."""
    is_ceiled = case in CEILED
    steps = CEILED[case] if is_ceiled else UNEVEN[case]
    pooling = pooling_of(*steps, mode=mode, ceil_mode=is_ceiled)
    if is_ceiled and "include" in mode and case in ("padded", "uneven"):
        with pytest.raises(dnn.ArgumentError):  # whatever the layout is
            pooling.for_shapes(images(4, "float32").shape)
        return
    for dtype in ("float32", "float16", "bfloat16"):
        host = images(4, dtype)
        x = upload(handle, spec_of(host.shape, dtype, "last"), host)
        numbers = pooling.for_shapes(host.shape)
        numbers = numbers.replace(padding=numbers.pads(2))
        y_host = clipped_pooling(host, numbers).astype(host.dtype)
        dy_host = moderate_values(np.random.default_rng(1), y_host.shape, dtype)
        y_spec = numbers.output_spec(x.spec)
        y, dy = (upload(handle, y_spec, values) for values in (y_host, dy_host))
        if mode in MAXIMA and not numbers.is_symmetric:
            with pytest.raises(dnn.ArgumentError, match="ends the process when it is asked"):
                dnn.pooling_backward(handle, y, dy, x, pooling)
            continue
        dx = dnn.pooling_backward(handle, y, dy, x, pooling, out=poisoned(handle, x.spec))
        assert_near(dx.numpy(), clipped_gradient(host, dy_host, numbers), OPERATION_BOUNDS[dtype])


VOLUMES = {  # window, padding, stride
    "uneven": ((3, 2, 2), ((1, 0), (0, 1), 0), (2, 1, 2), False),
    "last windows": ((2, 3, 2), 0, (2, 2, 3), True),
}


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
@each_pair(case=VOLUMES, mode=MODES, layout=["first", "last"], dtype=FLOATS)
def test_volumes_as_pytorch(
    handle: dnn.Handle, case: str, mode: str, layout: str, dtype: str
) -> None:
    """Three spatial axes; PyTorch pads by itself, and pools without padding."""
    import torch

    window, padding, stride, ceil_mode = VOLUMES[case]
    pooling = pooling_of(window, padding, stride, mode=mode, ceil_mode=ceil_mode)
    host = moderate_values(np.random.default_rng(0), (2, 4, 7, 6, 8), dtype)
    x = upload(handle, spec_of(host.shape, dtype, layout), host)
    numbers = pooling.for_shapes(host.shape)
    is_last = layout == "last"
    counts_behind = "include" in mode and not is_last and case == "uneven"
    if counts_behind or (is_last and dtype in ("float64", "bfloat16")):
        with pytest.raises((dnn.ArgumentError, dnn.NotSupportedError)):
            dnn.pooling_forward(handle, x, pooling)
        return
    tensor = torch.from_numpy(host.astype(np.float64)).requires_grad_()
    is_maximum = mode in MAXIMA
    pads = [end for pair in reversed(numbers.pads(3)) for end in pair]
    fill = -np.inf if is_maximum else 0.0
    padded = torch.nn.functional.pad(tensor, pads, value=fill)
    if is_maximum:
        pooled = torch.nn.functional.max_pool3d(padded, window, stride)
    else:
        pooled = torch.nn.functional.avg_pool3d(padded, window, stride)
        if "EXCLUDE" in numbers.mode.name:
            ones = torch.nn.functional.pad(torch.ones_like(tensor), pads)
            pooled = pooled / torch.nn.functional.avg_pool3d(ones, window, stride)
    expected = pooled.detach().numpy()
    y = dnn.pooling_forward(handle, x, pooling)
    assert_near(y.numpy(), expected, 0 if is_maximum else OPERATION_BOUNDS[dtype])
    dy_host = moderate_values(np.random.default_rng(1), expected.shape, dtype)
    dy = upload(handle, y.spec, dy_host)
    if is_maximum and is_last:
        with pytest.raises(dnn.ArgumentError, match="ends the process when it is asked"):
            dnn.pooling_backward(handle, y, dy, x, pooling)
        return
    pooled.backward(torch.from_numpy(dy_host.astype(np.float64)))
    dx = dnn.pooling_backward(handle, y, dy, x, pooling)
    assert tensor.grad is not None
    assert_near(dx.numpy(), tensor.grad.numpy(), OPERATION_BOUNDS[dtype])


@pytest.mark.parametrize("mode", MAXIMA)
def test_gradients_of_maxima_in_other_strides_than_x_are_refused(
    handle: dnn.Handle, mode: str
) -> None:
    """An H200 wrote them in the strides of x, into gaps of out."""
    pooling = pooling_of((2, 1, 2), ((0, 1), 0, (0, 1)), (1, 2, 2), mode=mode)
    x = handle.array(images(5, "float32"))
    y = handle.full(pooling.output_spec(x.spec).shape, 1.0)
    out = poisoned(handle, spec_of(x.shape, "float32", "strided"))
    before = memory_of(out).copy()
    with pytest.raises(dnn.ArgumentError, match="as if their strides were those of x"):
        dnn.pooling_backward(handle, y, y, x, pooling, out=out)
    np.testing.assert_array_equal(memory_of(out), before)


ONE_PIXEL = {  # window, padding
    "before": ((13, 11), ((1, 0), (2, 0))),
    "behind": ((13, 11), ((0, 1), (0, 2))),
    "both": ((14, 9), ((1, 1), 0)),
    "mixed": ((13, 11), ((1, 0), (0, 2))),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("case", ONE_PIXEL)
def test_gradients_of_poolings_to_one_pixel(
    handle: dnn.Handle, case: str, layout: str, mode: str
) -> None:
    """Both layouts are the same in dy, so that x tells which one is asked for."""
    host, pooling = images(4, "float32"), pooling_of(*ONE_PIXEL[case], 1, mode=mode)
    x = upload(handle, spec_of(host.shape, "float32", layout), host)
    y_host = clipped_pooling(host, pooling).astype(np.float32)
    assert y_host.shape[2:] == (1, 1)
    dy_host = moderate_values(np.random.default_rng(1), y_host.shape, "float32")
    y, dy = (handle.array(values) for values in (y_host, dy_host))
    is_graph = not pooling.is_symmetric
    if is_graph and layout == "last" and mode in MAXIMA:
        with pytest.raises(dnn.ArgumentError, match="ends the process when it is asked"):
            dnn.pooling_backward(handle, y, dy, x, pooling)
        return
    if not is_served(x.spec, pooling):
        with pytest.raises(dnn.ArgumentError, match="averages over padding wrongly"):
            dnn.pooling_backward(handle, y, dy, x, pooling)
        return
    dx = dnn.pooling_backward(handle, y, dy, x, pooling, out=poisoned(handle, x.spec))
    assert_near(dx.numpy(), clipped_gradient(host, dy_host, pooling), OPERATION_BOUNDS["float32"])


def test_gradients_of_rows_with_uneven_padding(handle: dnn.Handle) -> None:
    host, pooling = images(3, "float32"), dnn.PoolingSpec(3, padding=((0, 2),), stride=2)
    x = handle.array(host)
    y = dnn.pooling_forward(handle, x, pooling)
    dy_host = moderate_values(np.random.default_rng(1), y.shape, "float32")
    dx = dnn.pooling_backward(handle, y, handle.array(dy_host), x, pooling)
    expected = clipped_gradient(
        host[:, :, None],
        dy_host[:, :, None],
        dnn.PoolingSpec((1, 3), padding=(0, (0, 2)), stride=(1, 2)),
    )
    assert_near(dx.numpy(), expected[:, :, 0], OPERATION_BOUNDS["float32"])


def test_of_equal_maxima_in_a_graph_the_first_has_the_gradient(handle: dnn.Handle) -> None:
    host, pooling = (
        np.full((1, 2, 4, 5), 3, np.float32),
        dnn.PoolingSpec(2, padding=((1, 0), 0), stride=(1, 2)),
    )
    x = handle.array(host)
    y = dnn.pooling_forward(handle, x, pooling)
    dy = handle.array(np.ones(y.shape, np.float32))
    dx = dnn.pooling_backward(handle, y, dy, x, pooling)
    assert_near(dx.numpy(), clipped_gradient(host, dy.numpy(), pooling), 0)


# ------------------------------------------------------------------------- maxima with their places

INDEXED = {  # window, padding, stride
    "apart": ((2, 3), 0, None),
    "overlapping": ((3, 2), 1, (2, 1)),
    "uneven": ((4, 3), ((2, 0), (1, 2)), (3, 1)),
    "whole": ((12, 9), 0, 1),
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("case", INDEXED)
def test_maxima_with_indices(handle: dnn.Handle, case: str, dtype: str) -> None:
    """Each is the place in the window; those in the image are ONNX's, as PyTorch has them."""
    host, pooling = images(4, dtype), pooling_of(*INDEXED[case])
    before, behind = zip(*pooling.pads(2), strict=True)
    how = {
        "kernel_shape": pooling._per_axis("window", 2),
        "strides": pooling._per_axis("stride", 2),
        "pads": [*before, *behind],
    }
    expected = onnx_run("MaxPool", host, **how)
    x = upload(handle, spec_of(host.shape, dtype, "last"), host)
    out = [poisoned(handle, spec_of(expected.shape, kind, "last")) for kind in (dtype, "int32")]
    for results in (out, None):
        y, indices = dnn.pooling_with_indices_forward(handle, x, pooling, out=results)
        assert_near(y.numpy(), expected, 0)
        assert indices.spec == out[1].spec
        places = pooling.flat_indices(indices, x.shape)
        flat = host.reshape(*host.shape[:2], -1)
        taken = np.take_along_axis(flat, places.reshape(*host.shape[:2], -1), 2)
        np.testing.assert_array_equal(taken.reshape(y.shape), y.numpy())
        for place, (rows, columns), _ in clipped_windows(host.shape, pooling):
            values = host[:, :, rows, columns]
            row, column = np.unravel_index(
                values.reshape(*values.shape[:2], -1).argmax(2), values.shape[2:]
            )
            first = (row + rows.start) * host.shape[3] + column + columns.start
            np.testing.assert_array_equal(places[(slice(None), slice(None), *place)], first)


@pytest.mark.parametrize("case", ["apart", "overlapping", "whole"])
def test_indices_are_pytorch_s(handle: dnn.Handle, case: str) -> None:
    """In the cases that PyTorch has: it pads both ends alike."""
    torch: Any = pytest.importorskip("torch")
    host, pooling = images(4, "float32"), pooling_of(*INDEXED[case])
    taps, padding, stride = pooling.steps(2)
    y, places = torch.nn.functional.max_pool2d(
        torch.tensor(host), taps, stride, padding, return_indices=True
    )
    x = handle.array(host, layout="NHWC")
    result, indices = dnn.pooling_with_indices_forward(handle, x, pooling)
    np.testing.assert_array_equal(result.numpy(), y.numpy())
    np.testing.assert_array_equal(pooling.flat_indices(indices.numpy(), x.shape), places.numpy())


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_indices_of_a_graph(handle: dnn.Handle, dtype: str) -> None:
    host, graph = images(4, "float16"), dnn.Graph()
    x_spec = spec_of(host.shape, "float16", "last")
    y, indices = graph.resample_forward_with_indices(
        graph.input("x", x_spec.shape, x_spec.dtype, x_spec.strides),
        (2, 3),
        stride=(2, 3),
        padding=((0, 0), (0, 0)),
    )
    spec = spec_of(y.shape, dtype, "last")
    graph.output("y", y, strides=spec.strides)
    graph.output("indices", indices, dtype, spec.strides)
    windows = host.reshape(2, 3, 6, 2, 3, 3).transpose(0, 1, 2, 4, 3, 5).reshape(2, 3, 6, 3, 6)
    with graph.plan(handle) as plan:
        result = plan(upload(handle, x_spec, host), out={"indices": poisoned(handle, spec)})
    np.testing.assert_array_equal(result["indices"].numpy(), windows.argmax(-1))
    np.testing.assert_array_equal(result["y"].numpy(), windows.max(-1))


@pytest.mark.parametrize("index_dtype", ["int8", "int32"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("case", INDEXED)
def test_gradients_of_maxima_by_indices(
    handle: dnn.Handle, case: str, dtype: str, index_dtype: str
) -> None:
    """With channels last; neither x nor y is read."""
    host, pooling = images(4, dtype), pooling_of(*INDEXED[case])
    y_host = clipped_pooling(host, pooling)
    dy_host = moderate_values(np.random.default_rng(1), y_host.shape, dtype)
    steps: dict[str, Any] = {
        "window": pooling._per_axis("window", 2),
        "stride": pooling._per_axis("stride", 2),
        "padding": pooling.pads(2),
    }
    x_spec = spec_of(host.shape, dtype, "last")
    forward, graph = dnn.Graph(), dnn.Graph()
    y, places = forward.resample_forward_with_indices(
        forward.input("x", x_spec.shape, x_spec.dtype, x_spec.strides), **steps
    )
    specs = {name: spec_of(y.shape, name, "last") for name in (dtype, index_dtype)}
    forward.output("y", y, strides=specs[dtype].strides)
    forward.output("indices", places, index_dtype, specs[index_dtype].strides)
    dy = graph.input("dy", y.shape, dtype, specs[dtype].strides)
    indices = graph.input("indices", y.shape, index_dtype, specs[index_dtype].strides)
    dx = graph.resample_backward("MAXPOOL", dy, host.shape, indices=indices, **steps)
    graph.output("dx", dx, dtype, x_spec.strides)
    with forward.plan(handle) as plan:
        found = plan(upload(handle, x_spec, host))["indices"]
    with graph.plan(handle) as plan:
        result = plan(
            dy=upload(handle, specs[dtype], dy_host),
            indices=found,
            out={"dx": poisoned(handle, x_spec)},
        )["dx"]
    expected = clipped_gradient(host, dy_host, pooling)
    assert_near(result.numpy(), expected, OPERATION_BOUNDS[dtype])


def test_of_equal_maxima_the_first_is_named(handle: dnn.Handle) -> None:
    host, pooling = (
        np.full((1, 8, 4, 6), 2, np.float32),
        dnn.PoolingSpec((2, 3), padding=(1, 0), stride=(1, 3)),
    )
    _, indices = dnn.pooling_with_indices_forward(
        handle, handle.array(host, layout="NHWC"), pooling
    )
    expected = np.zeros((5, 2))
    expected[0] = 3  # the first row of the first windows is padding
    np.testing.assert_array_equal(indices.numpy()[0, 0], expected)


def test_a_captured_call_writes_indices(handle: dnn.Handle) -> None:
    host, pooling = images(4, "float32"), dnn.PoolingSpec(2)
    x = handle.array(host, layout="NHWC")
    y, indices = dnn.pooling_with_indices_forward(handle, x, pooling)
    expected = indices.numpy()
    out = poisoned(handle, y.spec), poisoned(handle, indices.spec)
    with dnn.capture(handle) as graph:
        dnn.pooling_with_indices_forward(handle, x, pooling, out=out)
    with graph:
        graph.launch()
        np.testing.assert_array_equal(out[1].numpy(), expected)


def test_flat_indices_of_what_does_not_fit() -> None:
    pooling, places = dnn.PoolingSpec(2), np.zeros((1, 3, 2, 4), np.int32)
    for wrong, match in {
        "shape": (places[:, :2], "of shape"),
        "type": (places.astype(np.float32), "needed: integers"),
        "large": (places + 4, "allowed: 0 to 3"),
        "negative": (places - 1, "values from -1 to -1"),
    }.values():
        with pytest.raises(dnn.ArgumentError, match=match):
            pooling.flat_indices(wrong, (1, 3, 4, 8))
    assert pooling.flat_indices(places[:0], (0, 3, 4, 8)).shape == (0, 3, 2, 4)
    three = dnn.PoolingSpec((1, 2, 2)).flat_indices(np.full((1, 1, 2, 1, 2), 3), (1, 1, 2, 2, 4))
    np.testing.assert_array_equal(three[0, 0], [[[5, 7]], [[13, 15]]])


def test_uneven_padding_of_rows(handle: dnn.Handle) -> None:
    host = images(3, "float32")
    y = dnn.pooling_forward(
        handle, handle.array(host), dnn.PoolingSpec(3, padding=((0, 2),), stride=2)
    )
    expected = onnx_run("MaxPool", host, kernel_shape=[3], pads=[0, 2], strides=[2])
    assert_near(y.numpy(), expected, 0)


def test_what_uneven_padding_cannot_do(handle: dnn.Handle) -> None:
    x = handle.array(images(4, "float32"))
    ceiled = dnn.PoolingSpec(2, ceil_mode=True)
    assert ceiled.for_shapes((1, 1, 4, 6)) == dnn.PoolingSpec(2, padding=(0, 0))
    same = dnn.PoolingSpec(3, padding="same", stride=1)
    assert same.for_shapes(x.shape) == dnn.PoolingSpec(3, padding=(1, 1), stride=1)
    y = dnn.pooling_forward(handle, x, same)
    dx = dnn.pooling_backward(handle, y, y, x, same)
    assert dx.shape == x.shape
    uneven = dnn.PoolingSpec(2, padding="same", stride=1)
    refusals = {
        "alpha=2.0": lambda: dnn.pooling_forward(handle, x, uneven, alpha=2),
        "beta=1.0": lambda: dnn.pooling_forward(handle, x, uneven, beta=1, out=x),
        "alpha=3.0": lambda: dnn.pooling_backward(handle, x, x, x, uneven, alpha=3),
        "no ceil_mode": lambda: dnn.descriptors.PoolingDescriptor(ceiled),
        "for_shapes": lambda: same.steps(2),
        r"padding=\(\(0, 2\), 1\) must be smaller": lambda: dnn.PoolingSpec(2, padding=((0, 2), 1)),
        "ceil_mode=1": lambda: dnn.PoolingSpec(2, ceil_mode=1),
        "which cuDNN would count": lambda: dnn.pooling_forward(
            handle, x, dnn.PoolingSpec(3, padding=1, stride=2, mode=MODES[2], ceil_mode=True)
        ),
    }
    for match, call in refusals.items():
        with pytest.raises(dnn.ArgumentError, match=match):
            call()


def test_uneven_specs_are_values() -> None:
    for spec in (
        dnn.PoolingSpec(2, padding="same"),
        dnn.PoolingSpec(2, padding=((0, 1), 1), ceil_mode=True),
    ):
        for again in (
            pickle.loads(pickle.dumps(spec)),
            from_plain(json.loads(json.dumps(to_plain(spec)))),
            eval(repr(spec), {"PoolingSpec": dnn.PoolingSpec}),
        ):
            assert again == spec


def test_steps_of_a_pooling_spec_are_named() -> None:
    """Other libraries have the stride second, cuDNN the padding."""
    with pytest.raises(TypeError, match="positional argument"):
        dnn.PoolingSpec(3, 2)  # type: ignore[misc]
