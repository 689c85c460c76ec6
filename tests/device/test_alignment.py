"""Operands at addresses that kernels cannot load from.

They are copied with a warning, or refused; none ends a CUDA context.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from tolerances import assert_near

import cudnnlite as dnn
from cudnnlite.devices.arrays import part_of
from cudnnlite.problems.catalogue import OPERATIONS
from cudnnlite.problems.operation import natural_alignments

from .alignment_sweep import Placer, results_of, trials, verdict
from .problems import gap_mask, memory_of, random_values, upload, with_gaps

FIRST_TRIALS = {f"{trial.name.split()[0]}-{trial.dtype}": trial for trial in reversed(trials())}

SEQUENCES = ("rnn", "multi_head_attention", "ctc_loss")
WITHOUT_GAPS = FIRST_TRIALS | {
    f"{trial.name}-{trial.dtype}": trial
    for trial in trials()
    if trial.name.startswith(SEQUENCES) and trial.dtype == "float32"
}


def place(
    handle: dnn.Handle, values: Any, offset: int, spec: dnn.TensorSpec | None = None
) -> dnn.DeviceArray:
    """Return an array with those values that begins `offset` bytes behind an aligned address."""
    source = handle.array(values) if spec is None else upload(handle, spec, values)
    buffer = handle.empty((source.nbytes + 256,), "uint8")
    array = part_of(buffer, source.spec, offset)
    array.device.copy_within(array.ptr, source.ptr, source.nbytes, handle.stream)
    return array


@pytest.fixture
def dy_host() -> Any:
    return random_values(np.random.default_rng(0), (4, 16, 8, 8), "float32")


@pytest.mark.parametrize("name", FIRST_TRIALS)
@pytest.mark.filterwarnings("ignore::cudnnlite.errors.AlignmentWarning")
def test_a_slice_is_computed_rightly_or_refused(handle: dnn.Handle, name: str) -> None:
    trial = FIRST_TRIALS[name]
    try:
        expected, _ = results_of(trial, aligned := Placer(handle))
    except (dnn.CudnnError, dnn.ArgumentError):
        return  # of this data type there is no such operation
    for operand in dict.fromkeys(aligned.names):
        try:
            results, copied = results_of(trial, Placer(handle, operand, 1))
        except dnn.ArgumentError as error:
            refusal = str(error)
        else:
            refusal = ""
            assert verdict(trial, expected, results, copied)[0] != "wrong", operand
        assert not refusal or "aligned" in refusal


@pytest.mark.parametrize("name", WITHOUT_GAPS)
def test_every_value_of_a_result_is_written(handle: dnn.Handle, name: str) -> None:
    """Results are NaN, or -1, before; sequences of several lengths among them."""
    try:
        results, _ = results_of(WITHOUT_GAPS[name], Placer(handle))
    except (dnn.CudnnError, dnn.ArgumentError):
        return  # of this data type, or by this algorithm, there is no such operation
    assert not [operand for operand, values in results.items() if np.isnan(values).any()]


def test_a_copy_is_told_once_for_each_operand(handle: dnn.Handle, dy_host: Any) -> None:
    dy = place(handle, dy_host, 4)
    with pytest.warns(
        dnn.errors.AlignmentWarning, match=r"dy begins at 0x\w+, which is not aligned to 16 bytes"
    ) as records:
        db = dnn.convolution_backward_bias(handle, dy)
    assert len(records) == 1
    np.testing.assert_allclose(
        db.numpy().ravel(), dy_host.astype(np.float64).sum((0, 2, 3)), rtol=1e-4, atol=1e-4
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dnn.convolution_backward_bias(handle, dy)


def test_aligned_operands_are_not_copied(handle: dnn.Handle, dy_host: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dnn.convolution_backward_bias(handle, place(handle, dy_host, 16))


def test_a_result_with_old_values_is_brought_back(handle: dnn.Handle, dy_host: Any) -> None:
    old = np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1)
    out = place(handle, old, 8)
    with pytest.warns(dnn.errors.AlignmentWarning, match="out begins at"):
        returned = dnn.convolution_backward_bias(
            handle, handle.array(dy_host), alpha=0.5, beta=2.0, out=out
        )
    assert returned is out
    expected = 0.5 * dy_host.astype(np.float64).sum((0, 2, 3)) + 2 * old.ravel()
    np.testing.assert_allclose(out.numpy().ravel(), expected, rtol=1e-4, atol=1e-4)


def normalize(
    handle: dnn.Handle, x: dnn.DeviceArray, y: dnn.DeviceArray, *, layout: str | None = None
) -> Any:
    channel_values = np.ones((1, x.shape[1], 1, 1), np.float32)
    scale, bias, running_mean, running_var = (
        handle.array(channel_values, layout=layout) for _ in range(4)
    )
    return dnn.batch_normalization_training(
        handle,
        x,
        scale,
        bias,
        running_mean=running_mean,
        running_var=running_var,
        out=(y, None, None),
    )


def test_gaps_of_a_result_stay_as_they_are(handle: dnn.Handle) -> None:
    values = random_values(np.random.default_rng(0), (3, 4, 5, 6), "float16")
    spec = with_gaps(values.shape, "float16")
    expected = normalize(
        handle, upload(handle, spec, values), upload(handle, spec, np.zeros_like(values))
    )[0].numpy()
    y = place(handle, np.full_like(values, np.nan), 2, spec)
    before = memory_of(y)
    with pytest.warns(dnn.errors.AlignmentWarning, match="not aligned to 4 bytes"):
        normalize(handle, upload(handle, spec, values), y)
    np.testing.assert_array_equal(y.numpy(), expected)
    gaps = gap_mask(spec)
    np.testing.assert_array_equal(memory_of(y)[gaps], before[gaps])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_images_of_one_pixel_need_the_alignment_of_channels_last(
    handle: dnn.Handle, dtype: str
) -> None:
    """A variance 4 bytes behind an aligned address ended the context of an H200."""
    rng = np.random.default_rng(0)
    x = handle.array(random_values(rng, (3, 16, 1, 1), dtype))
    scale, bias = (handle.array(random_values(rng, (1, 16, 1, 1), "float32")) for _ in range(2))
    start = np.ones((1, 16, 1, 1), np.float32)
    variances = [handle.array(start), place(handle, start, 4)]
    for variance in variances:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            dnn.batch_normalization_training(
                handle,
                x,
                scale,
                bias,
                running_mean=handle.array(start),
                running_var=variance,
                mode="spatial_persistent",
            )
    assert [str(warning.message).split(" ", 1)[0] for warning in caught] == ["running_var"]
    np.testing.assert_array_equal(variances[1].numpy(), variances[0].numpy())


@pytest.mark.parametrize("operand", ["bias", "z"])
def test_addends_of_float32_behind_a_convolution_with_channels_last_are_copied(
    handle: dnn.Handle, operand: str
) -> None:
    """On an H200 a misaligned z was read wrongly, and a bias ended the context of 9.28."""
    rng = np.random.default_rng(0)
    x, w, z = (
        handle.array(random_values(rng, shape, "float32"), layout="NHWC")
        for shape in ((3, 4, 5, 6), (8, 4, 3, 3), (3, 8, 5, 6))
    )
    operands = {"bias": handle.array(random_values(rng, (1, 8, 1, 1), "float32")), "z": z}
    conv = dnn.ConvolutionSpec(1, math_type="fma")
    options: dict[str, Any] = {"algorithm": "implicit_precomp_gemm", "activation": "relu"}
    call = dnn.convolution_bias_activation_forward
    expected = call(handle, x, w, **operands, conv=conv, **options).numpy()
    aligned = operands[operand]
    operands[operand] = place(handle, aligned.numpy(), 4, aligned.spec)
    with pytest.warns(
        dnn.errors.AlignmentWarning, match=f"^{operand} begins at .* not aligned to 16"
    ):
        y = call(handle, x, w, **operands, conv=conv, **options)
    np.testing.assert_array_equal(y.numpy(), expected)


def test_a_bias_of_float32_with_channels_first_is_copied(handle: dnn.Handle) -> None:
    """On an H200 a misaligned one ended the context behind dilated and 3-D convolutions.

    It did so in 15 of 15 kinds of them that the heuristic or implicit_precomp_gemm computes.
    """
    rng = np.random.default_rng(0)
    x, w = (
        handle.array(random_values(rng, shape, "float32"))
        for shape in ((1, 4, 11, 4, 10), (4, 4, 3, 2, 3))
    )
    bias = handle.array(random_values(rng, (1, 4, 1, 1, 1), "float32"))
    conv = dnn.ConvolutionSpec((2, 1, 1), (3, 2, 1), (2, 1, 2))
    call = dnn.convolution_bias_activation_forward
    expected = call(handle, x, w, bias, conv, "relu", interface="descriptor").numpy()
    misaligned = place(handle, bias.numpy(), 4, bias.spec)
    with pytest.warns(dnn.errors.AlignmentWarning, match="^bias begins at .* not aligned to 16"):
        y = call(handle, x, w, misaligned, conv, "relu", interface="descriptor")
    np.testing.assert_array_equal(y.numpy(), expected)


def test_a_bias_beside_images_that_are_converted_is_copied(handle: dnn.Handle) -> None:
    """An H200 with cuDNN 9.28 lost the context: the converted images have channels last."""
    rng = np.random.default_rng(0)
    x = handle.array(random_values(rng, (3, 5, 4, 3, 5), "float32"))
    w = handle.array(random_values(rng, (4, 5, 2, 2, 3), "float32"), layout="NDHWC")
    bias = handle.array(random_values(rng, (1, 4, 1, 1, 1), "float32"))
    conv = dnn.ConvolutionSpec((1, 0, 0))  # of another algorithm's choice, TF32 would show
    row = dnn.AlgorithmResult(
        dnn.enums.ConvolutionFwdAlgo.IMPLICIT_PRECOMP_GEMM, dnn.MathType.FMA, layout="NDHWC"
    )
    misaligned = place(handle, bias.numpy(), 8, bias.spec)
    with dnn.convolution_bias_activation_forward.plan(
        handle, x, w, bias, conv, "relu", algorithm=row
    ) as plan:
        expected = plan(x, w, bias).numpy()
        with pytest.warns(
            dnn.errors.AlignmentWarning, match="^bias begins at .* not aligned to 16"
        ):
            y = plan(x, w, misaligned)
        np.testing.assert_array_equal(y.numpy(), expected)


def test_memory_that_two_operands_share_is_copied_once(handle: dnn.Handle) -> None:
    values = np.abs(random_values(np.random.default_rng(0), (4, 16, 8, 8), "float16"))
    x, w = (
        handle.array(random_values(np.random.default_rng(1), shape, "float16"))
        for shape in (values.shape, (16, 16, 1, 1))
    )
    bias = handle.array(np.zeros((1, 16, 1, 1), np.float16))
    options: dict[str, Any] = {"alpha2": 0.5, "algorithm": "implicit_precomp_gemm"}
    z = handle.array(values)
    expected = dnn.convolution_bias_activation_forward(handle, x, w, bias, z=z, **options).numpy()
    out = place(handle, values, 2)
    with pytest.warns(dnn.errors.AlignmentWarning, match="z begins at"):
        returned = dnn.convolution_bias_activation_forward(
            handle, x, w, bias, z=out, out=out, **options
        )
    assert returned is out
    np.testing.assert_array_equal(out.numpy(), expected)


def test_where_no_descriptor_call_serves_an_engine_has_copies(handle: dnn.Handle) -> None:
    """Padding that differs at the two ends of an axis is served by engines alone.

    These need aligned operands.
    """
    rng = np.random.default_rng(0)
    x_host, w_host = (
        random_values(rng, (2, 4, 7, 6), "float32"),
        random_values(rng, (4, 4, 3, 3), "float32"),
    )
    conv = dnn.ConvolutionSpec(padding=((0, 1), (1, 0)), math_type="fma")
    expected = dnn.convolution_forward(
        handle, handle.array(x_host), handle.array(w_host), conv
    ).numpy()
    x, out = place(handle, x_host, 4), place(handle, np.full_like(expected, np.nan), 8)
    with pytest.warns(dnn.errors.AlignmentWarning) as records:
        assert dnn.convolution_forward(handle, x, handle.array(w_host), conv, out=out) is out
    assert [str(record.message).split()[0] for record in records] == ["x", "out"]
    np.testing.assert_array_equal(out.numpy(), expected)


@pytest.mark.parametrize("offset", [1, 8, 16])
def test_of_a_workspace_the_aligned_part_is_used(
    handle: dnn.Handle, dy_host: Any, offset: int
) -> None:
    """An H200's FFT and reduction kernels need a workspace that is aligned to 8 bytes.

    Otherwise they end the CUDA context.
    """
    a, c = handle.array(dy_host), handle.empty((1, 16, 1, 1))
    buffer = handle.empty((1 << 20,), "uint8")
    with dnn.reduce_tensor.plan(handle, a, "add", out=c) as plan:
        plan(
            a, out=c, workspace=part_of(buffer, dnn.TensorSpec(((1 << 20) - 64,), "uint8"), offset)
        )
        expected = dy_host.astype(np.float64).sum((0, 2, 3))
        np.testing.assert_allclose(c.numpy().ravel(), expected, rtol=1e-4, atol=1e-4)
        if plan.workspace and offset % 16:
            small = part_of(buffer, dnn.TensorSpec((plan.workspace,), "uint8"), offset)
            with pytest.raises(dnn.ArgumentError, match="before the first address that is aligned"):
                plan(a, out=c, workspace=small)


def test_a_recorded_graph_has_no_copies(handle: dnn.Handle, dy_host: Any) -> None:
    dy, out = place(handle, dy_host, 4), handle.empty((1, 16, 1, 1))
    dnn.convolution_backward_bias(handle, handle.array(dy_host), out=out)
    with (
        pytest.raises(dnn.errors.CaptureError, match=r"dy begins at .*pass aligned memory"),
        dnn.capture(handle),
    ):
        dnn.convolution_backward_bias(handle, dy, out=out)
    dnn.convolution_backward_bias(handle, handle.array(dy_host), out=out)


def test_a_reserve_space_is_not_copied(handle: dnn.Handle) -> None:
    x, state = handle.array(np.ones((2, 4, 8, 8), np.float32)), dnn.DropoutState(handle, 7)
    _, reserve = dnn.dropout_forward(handle, x, 0.5, dropout_state=state)
    slanted = part_of(handle.empty((reserve.nbytes + 256,), "uint8"), reserve.spec, 1)
    with pytest.raises(dnn.ArgumentError, match=r"reserve begins at .*aligned to 16 bytes"):
        dnn.dropout_forward(handle, x, 0.5, dropout_state=state, reserve=slanted)


def test_the_emulated_device_refuses_what_ends_a_gpus_context() -> None:
    with dnn.Handle("emulated") as handle:
        dy, db = handle.array(np.ones((2, 4, 3, 3), np.float32)), handle.empty((1, 4, 1, 1))
        one, zero = np.ones((), np.float32), np.zeros((), np.float32)
        with (
            dnn.TensorDescriptor(dy.spec) as dy_desc,
            dnn.TensorDescriptor(db.spec) as db_desc,
            pytest.raises(dnn.errors.BadParamError, match=r"dy at .* is not aligned to 16 bytes"),
        ):
            handle.api.cudnnConvolutionBackwardBias(
                handle.ptr,
                one.ctypes.data,
                dy_desc.ptr,
                dy.ptr + 4,
                zero.ctypes.data,
                db_desc.ptr,
                db.ptr,
            )


@pytest.mark.parametrize(
    "name", [name for name, o in OPERATIONS.items() if o.alignments is not natural_alignments]
)
def test_no_operation_needs_more_than_the_calls_look_for(name: str) -> None:
    """A plan's call checks whether any address is no multiple of 16.

    Only then does it look for the operand.
    """
    x = dnn.TensorSpec((2, 8, 4, 4), "float16", "NHWC")
    operation = OPERATIONS[name]
    specs = dict.fromkeys((*operation.reads, *operation.writes), x)
    options = {"mode": dnn.enums.BatchNormMode.SPATIAL_PERSISTENT, "beta": 0.5}
    alignments = operation.alignments(specs, options)
    assert alignments
    assert set(alignments) <= set(specs)
    assert all(16 % alignment == 0 for alignment in alignments.values())


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((2, 1, 4, 6), (90, 30, 6, 1)),
        ((3, 1, 4, 1), (6, 6, 1, 1)),
        ((2, 3, 2, 4), (42, 13, 4, 1)),
        ((2, 3, 2, 4), (48, 16, 4, 1)),
    ],
)
def test_a_bias_gradient_of_images_that_begin_anywhere(
    handle: dnn.Handle, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    """Loads of four values follow the strides, and ended an H200's CUDA context."""
    values = random_values(np.random.default_rng(0), shape, dtype)
    dy = upload(handle, dnn.TensorSpec(shape, dtype, strides=strides), values)
    db = dnn.convolution_backward_bias(handle, dy).numpy()
    expected = values.astype(np.float64).sum((0, 2, 3), keepdims=True)
    assert_near(db, expected, 1e-3 if dtype == "float16" else 1e-6, 1.0)
