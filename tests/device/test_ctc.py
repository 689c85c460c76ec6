"""CTC losses against PyTorch in float64 and against a sum over all paths; and what is refused."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np
import pytest
from tolerances import CTC_BOUND, OPERATION_BOUNDS, assert_near

import cudnnlite as dnn
from cudnnlite.descriptors.rnn import RNNStateDescriptor

Array = np.ndarray[Any, Any]
LABELS = ([1, 2, 3], [4], [2, 2], [5, 1, 5, 5])
INPUTS = [9, 7, 8, 6]
STEPS, ALPHABET = 9, 6
ALGORITHMS, NORMALIZATIONS = ("deterministic", "non_deterministic"), ("softmax", "none")


def logits(shape: tuple[int, ...] = (STEPS, len(LABELS), ALPHABET), seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def flat(labels: Any) -> list[int]:
    return [number for label in labels for number in label]


def torch_loss(x: Array, labels: Any, inputs: Any, normalization: str) -> tuple[Array, Array]:
    """Return PyTorch's costs and gradients in float64."""
    torch: Any = pytest.importorskip("torch")
    leaf = torch.tensor(x.astype(np.float64), requires_grad=True)
    log_probs = leaf.log_softmax(-1) if normalization == "softmax" else leaf.log()
    lengths = [torch.tensor(n) for n in (flat(labels), inputs, [len(label) for label in labels])]
    costs = torch.nn.functional.ctc_loss(log_probs, *lengths, reduction="none")
    costs.sum().backward()
    return costs.detach().numpy(), leaf.grad.numpy()


def arguments(handle: dnn.Handle, labels: Any, inputs: Any, where: str) -> list[Any]:
    numbers = [flat(labels), [len(label) for label in labels], list(inputs)]
    return [handle.array(np.array(n, np.int32)) for n in numbers] if where == "device" else numbers


def uploaded(handle: dnn.Handle, x: Array, layout: str) -> Any:
    """Return a device array of (T, N, A), as it is or as a view of (N, T, A)."""
    if layout == "by step":
        return handle.array(x)
    lying = handle.array(np.ascontiguousarray(x.swapaxes(0, 1)))
    steps, _, alphabet = x.shape
    spec = dnn.TensorSpec(x.shape, lying.spec.dtype, strides=(alphabet, steps * alphabet, 1))
    return dnn.DeviceArray(spec, lying.device, lying.ptr, lying, lying.stream)


@pytest.mark.parametrize("layout", ["by step", "by sequence"])
@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_losses_and_gradients_are_pytorchs(handle, normalization, algorithm, where, layout):
    x = logits() if normalization == "softmax" else softmax(logits())
    expected, slopes = torch_loss(x, LABELS, INPUTS, normalization)
    inside = (np.arange(STEPS)[:, None] < INPUTS)[..., None]
    if normalization == "none":
        slopes = slopes - 1  # PyTorch's are larger by 1, which makes no difference behind a softmax
        slopes = np.where(slopes < -1e-9, slopes, x)  # cuDNN leaves x where no path passes
    x_array = uploaded(handle, x, layout)
    out = [
        handle.array(np.full(len(LABELS), np.nan, np.float32)),
        uploaded(handle, np.full_like(x, np.nan), layout),
    ]
    spec = dnn.CTCLossSpec(normalization, max_label_length=4)
    results = dnn.ctc_loss(
        handle,
        x_array,
        *arguments(handle, LABELS, INPUTS, where),
        spec,
        algorithm=algorithm,
        out=out,
    )
    assert results[0] is out[0]
    assert results[1] is out[1]
    assert_near(results[0].numpy(), expected, CTC_BOUND)
    assert_near(results[1].numpy(), np.where(inside, slopes, 0), CTC_BOUND)
    alone, none = dnn.ctc_loss(
        handle,
        x_array,
        *arguments(handle, LABELS, INPUTS, where),
        spec,
        algorithm=algorithm,
        gradients=False,
    )
    assert none is None
    np.testing.assert_array_equal(alone.numpy(), results[0].numpy())


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize(
    ("steps", "n", "alphabet", "longest"),
    [(1, 1, 2, 1), (400, 2, 11, 150), (40, 70, 30, 8), (12, 3, 2000, 5)],
)
def test_other_sizes(handle, where, steps, n, alphabet, longest):
    rng = np.random.default_rng(1)
    labels = [rng.integers(1, alphabet, rng.integers(1, longest + 1)).tolist() for _ in range(n)]
    inputs = [max(steps - int(rng.integers(0, 3)), min(steps, 2 * len(label))) for label in labels]
    x = logits((steps, n, alphabet), 2)
    expected, slopes = torch_loss(x, labels, inputs, "softmax")
    spec = dnn.CTCLossSpec(max_label_length=longest)
    costs, gradients = dnn.ctc_loss(
        handle, handle.array(x), *arguments(handle, labels, inputs, where), spec
    )
    assert_near(costs.numpy(), expected, CTC_BOUND)
    # each is the exponential of a difference of logarithms that are as large as the cost
    assert_near(gradients.numpy(), slopes, CTC_BOUND, largest=expected.max())


@pytest.mark.parametrize(("label", "steps"), [((1,), 3), ((1, 1), 4), ((2, 1), 4), ((1, 2, 1), 5)])
def test_a_sum_over_all_paths(handle, label, steps):
    x = logits((steps, 1, 3), 3)
    probs = softmax(x.astype(np.float64))[:, 0]
    total = 0.0
    for path in itertools.product(range(3), repeat=steps):
        if tuple(number for number, _ in itertools.groupby(path) if number) == label:
            total += np.prod(probs[np.arange(steps), path])
    costs, _ = dnn.ctc_loss(handle, handle.array(x), label, [len(label)], [steps])
    assert_near(costs.numpy(), -np.log([total]), CTC_BOUND)


@pytest.mark.parametrize("where", ["host", "device"])
def test_an_input_that_is_too_short_costs_nothing(handle, where):
    labels, inputs = ([1, 2], [2, 2, 2], [3]), [9, 4, 9]  # 2 2 2 needs five steps
    x = logits((STEPS, 3, ALPHABET))
    expected, slopes = torch_loss(x[:, [0, 2]], [labels[0], labels[2]], [9, 9], "softmax")
    spec = dnn.CTCLossSpec(max_label_length=3)
    costs, gradients = dnn.ctc_loss(
        handle, handle.array(x), *arguments(handle, labels, inputs, where), spec
    )
    assert_near(costs.numpy(), np.array([expected[0], 0, expected[1]]), CTC_BOUND)
    assert_near(
        gradients.numpy(), np.stack([slopes[:, 0], 0 * slopes[:, 0], slopes[:, 1]], 1), CTC_BOUND
    )


def test_a_probability_below_float32_is_none(handle):
    x = logits((4, 1, 3)) * 300
    x[:, 0, 1] = -1000
    costs, _ = dnn.ctc_loss(handle, handle.array(x), [1], [1], [4])
    assert costs.numpy()[0] == np.inf  # PyTorch's is about 1000


def call(handle, **changes):
    operands = {
        "x": handle.array(logits()),
        "labels": flat(LABELS),
        "label_lengths": [3, 1, 2, 4],
        "input_lengths": INPUTS,
    }
    options = {
        "ctc": dnn.CTCLossSpec(),
        "algorithm": "deterministic",
        "gradients": True,
        "out": None,
    }
    everything = operands | options | changes
    return dnn.ctc_loss(
        handle, *(everything.pop(name) for name in operands), everything.pop("ctc"), **everything
    )


def integers(handle, values, dtype=np.int32):
    return handle.array(np.array(values, dtype))


def test_the_emulated_device_refuses_what_ends_a_gpus_context():
    with dnn.Handle(device="emulated") as handle:
        operands = arguments(handle, LABELS, INPUTS, "device")
        with pytest.raises(dnn.errors.ExecutionError, match="illegal memory access"):
            dnn.ctc_loss(
                handle, handle.array(logits()), *operands, dnn.CTCLossSpec(max_label_length=3)
            )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_other_types_are_refused(handle, dtype):
    with pytest.raises((dnn.NotSupportedError, dnn.errors.BadParamError)):
        call(handle, x=handle.array(logits(), dtype=dtype))


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_float64(handle, algorithm, where):
    x = np.random.default_rng(0).standard_normal((STEPS, len(LABELS), ALPHABET))
    expected, slopes = torch_loss(x, LABELS, INPUTS, "softmax")
    spec = dnn.CTCLossSpec(max_label_length=4)
    operands = arguments(handle, LABELS, INPUTS, where)
    costs, gradients = dnn.ctc_loss(handle, handle.array(x), *operands, spec, algorithm=algorithm)
    assert_near(costs.numpy(), expected, OPERATION_BOUNDS["float64"])
    assert_near(gradients.numpy(), slopes, OPERATION_BOUNDS["float64"])
    with pytest.raises(dnn.NotSupportedError):
        dnn.ctc_loss(handle, handle.array(x), *operands, spec.replace(compute_type="float32"))


@pytest.mark.parametrize("where", ["host", "device"])
def test_long_labels(handle, where):
    labels, inputs = ([1, 2] * 128, [3]), [300, 280]
    x = logits((300, 2, 5))
    expected, _ = torch_loss(x, labels, inputs, "softmax")
    operands, spec = arguments(handle, labels, inputs, where), dnn.CTCLossSpec(max_label_length=256)
    specs = [spec, dnn.CTCLossSpec()] if where == "host" else [spec]
    for each in specs:
        with pytest.raises(dnn.NotSupportedError, match=r'for 256 labels .*="non_deterministic"'):
            dnn.ctc_loss(handle, handle.array(x), *operands, each)
    costs, _ = dnn.ctc_loss(handle, handle.array(x), *operands, spec, algorithm="non_deterministic")
    assert_near(costs.numpy(), expected, CTC_BOUND)


def test_a_loss_is_captured(handle):
    x, spec = handle.array(logits()), dnn.CTCLossSpec(max_label_length=4)
    operands = arguments(handle, LABELS, INPUTS, "device")
    out = dnn.ctc_loss(handle, x, *operands, spec)
    expected = [array.numpy() for array in out]
    with dnn.capture(handle) as graph:
        with pytest.raises(dnn.errors.CaptureError, match="have labels and lengths on the device"):
            dnn.ctc_loss(handle, x, *arguments(handle, LABELS, INPUTS, "host"), spec, out=out)
        dnn.ctc_loss(handle, x, *operands, spec, out=out)
    for array in out:
        handle.device.fill(array.ptr, array.nbytes, 0xFF, handle.stream)
    graph.launch()
    for array, values in zip(out, expected, strict=True):
        np.testing.assert_array_equal(array.numpy(), values)
    graph.close()


def test_the_emulated_loss_wants_its_workspace_whole():
    """Its size is another for each problem, as cuDNN's is, and a byte less is refused."""
    with (
        dnn.Handle("emulated") as handle,
        dnn.descriptors.CTCLossDescriptor(dnn.CTCLossSpec(max_label_length=4)) as ctc,
    ):
        sizes = []
        for shape, longest in (((5, 2, 6), 2), ((6, 2, 6), 2), ((5, 3, 6), 2), ((5, 2, 6), 3)):
            x, size = handle.array(logits(shape)), ctypes.c_size_t()
            costs, n = handle.empty((shape[1],)), shape[1]
            numbers = [
                (ctypes.c_int * len(v))(*v) for v in ([1] * (n * longest), [longest] * n, [5] * n)
            ]
            with RNNStateDescriptor(x.spec) as desc:  # of rank 3
                ask = handle.ptr, desc.ptr, desc.ptr, *numbers, 0, ctc.ptr, size
                handle.api.cudnnGetCTCLossWorkspaceSize(*ask)
                sizes.append(size.value)
                scratch = handle.empty((size.value,), "uint8")
                call = (
                    handle.ptr,
                    desc.ptr,
                    x.ptr,
                    *numbers,
                    costs.ptr,
                    desc.ptr,
                    None,
                    0,
                    ctc.ptr,
                    scratch.ptr,
                )
                handle.api.cudnnCTCLoss(*call, size.value)
                with pytest.raises(dnn.errors.BadParamError, match=f"{size.value} are needed"):
                    handle.api.cudnnCTCLoss(*call, size.value - 1)
        assert len({*sizes}) == 4
        assert min(sizes) == sizes[0] > 0


def test_plans_go_with_the_handle(handle):
    before = len(handle.plans)
    for _ in range(3):
        call(handle)
    assert len(handle.plans) == before + 1


def test_a_plan_for_many_labels(handle):
    x = handle.array(logits())
    host = arguments(handle, LABELS, INPUTS, "host")
    expected, slopes = dnn.ctc_loss(handle, x, *host)
    with dnn.ctc_loss.plan(handle, x.spec, None, None, None) as plan:
        costs, gradients = plan(x, *host)
        np.testing.assert_array_equal(costs.numpy(), expected.numpy())
        np.testing.assert_array_equal(gradients.numpy(), slopes.numpy())
        with pytest.raises(dnn.ArgumentError, match="label_lengths"):
            plan(x, [1], [2], [1])
    with dnn.ctc_loss.plan(handle, x, *host, gradients=False) as plan:
        costs, gradients = plan(x, *host)
        assert gradients is None
        np.testing.assert_array_equal(costs.numpy(), expected.numpy())
        with pytest.raises(dnn.ArgumentError, match="gradients=False"):
            plan(x, *host, out=(costs, slopes))
