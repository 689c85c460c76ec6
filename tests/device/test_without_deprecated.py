"""Every operation with a libcudnn that lacks the functions which its headers mark as deprecated.

What runs then is what docs/explanation/deprecated.md says.
"""

from __future__ import annotations

import dataclasses
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite._raw.api import CudnnApi
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite._raw.library import load_library
from cudnnlite.descriptors import native
from cudnnlite.devices.arrays import part_of
from cudnnlite.emulated.api import EmulatedApi

from .calls import CALLS, Call, Made
from .problems import poisoned

DEPRECATED = frozenset(name for name, record in FUNCTIONS.items() if record.deprecated)
PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "deprecated.md"


def operations_of(row: str) -> list[str]:
    """Return the operations that a row of the page's table of operations lists."""
    match = re.search(rf"^\| {row}[^|]*\| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert match, row
    return re.findall(r"`(\w+)`", match[1])


RUN, RUN_GRAPHS, STOP = map(operations_of, ("run as", "run a graph", "stop"))


class LaterLibrary:
    """A ctypes.CDLL without the deprecated functions."""

    def __init__(self, cdll: Any) -> None:
        self._cdll = cdll

    def __getitem__(self, name: str) -> Any:
        if name in DEPRECATED:
            raise AttributeError(f"/lib/later.so: undefined symbol: {name}")
        return self._cdll[name]

    def __getattr__(self, name: str) -> Any:
        return self[name]


def hide_deprecated(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let handles of a device, and descriptors, have no deprecated function."""
    loaded = load_library()
    later = dataclasses.replace(loaded, cdll=LaterLibrary(loaded.cdll))
    monkeypatch.setattr(native, "library_api", partial(CudnnApi, later))
    if device.kind == "emulated":
        api: CudnnApi = EmulatedApi(later, device.memory)
    else:
        api = CudnnApi(later, memory=device.memory_info)
    monkeypatch.setitem(vars(device), "api", api)


@pytest.fixture
def later_handle(device: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A handle on a device whose libcudnn lacks the deprecated functions."""
    hide_deprecated(device, monkeypatch)
    with dnn.Handle(device) as handle:
        yield handle


def call_of(name: str) -> Call:
    """Return a call of an operation; a gradient reads the y of its x."""
    call = CALLS[name]
    if name not in ("activation_backward", "pooling_backward"):
        return call
    if name == "activation_backward":
        call = call.changed(activation=dnn.ActivationSpec("elu", 0.5))
    forward, x = name.replace("backward", "forward"), call.operands["x"]

    def make_y(handle: dnn.Handle, seed: int) -> Any:
        del seed
        return getattr(dnn, forward)(handle, x.place(handle), **call.options)

    return call.changed(y=Made(make_y))


def results(handle: dnn.Handle, call: Call) -> list[np.ndarray[Any, Any]]:
    """Return the results of a call, by three calls at other addresses."""
    kept = [call.run(handle, call.place(handle)) for _ in range(3)]
    # What a reserve space has in its bytes is cuDNN's affair.
    return [a.numpy().astype(np.float64) for a in kept[-1] if a.dtype != np.uint8]


@pytest.mark.parametrize("name", [*RUN, *RUN_GRAPHS])
def test_an_operation_goes_on(device: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The results are those of the library with all functions."""
    call = call_of(name)
    with dnn.Handle(device) as handle:
        expected = results(handle, call)
    hide_deprecated(device, monkeypatch)
    with dnn.Handle(device) as handle:
        for found, right in zip(results(handle, call), expected, strict=True):
            bound = 5e-3 * max(1.0, np.abs(right).max(initial=0.0))
            np.testing.assert_allclose(found, right, rtol=0, atol=bound)


@pytest.mark.parametrize("name", STOP)
def test_an_operation_that_stops_says_why(later_handle: dnn.Handle, name: str) -> None:
    """The message has the missing function, since when it is deprecated, and what to use."""
    call = CALLS[name]
    with pytest.raises(dnn.errors.SymbolNotFoundError) as caught:
        call.run(later_handle, call.place(later_handle))
    check_message(caught.value)


def check_message(error: Exception, function: str = r"cudnn\w+") -> None:
    assert re.match(
        rf"{function} \(added in 9\.0\.0\) is not in the loaded libcudnn: .*, version .*; "
        r"it is deprecated since cuDNN 9\.0\.0, use .*\bdnn\.",
        str(error),
    ), error


def test_the_page_has_each_operation_once() -> None:
    assert sorted([*RUN, *RUN_GRAPHS, *STOP]) == sorted(CALLS)


def test_all_deprecated_functions_are_hidden(later_handle: dnn.Handle) -> None:
    assert len(DEPRECATED) > 100
    assert not any(later_handle.api.has(name) for name in DEPRECATED)
    with pytest.raises(dnn.errors.SymbolNotFoundError, match=r"^cudnnCreateFilterDescriptor "):
        dnn.FilterDescriptor((1, 1, 1, 1))


def test_a_plan_says_that_it_runs_a_graph(later_handle: dnn.Handle) -> None:
    x = dnn.TensorSpec((2, 4, 6, 5))
    with dnn.activation_forward.plan(later_handle, x, "relu") as plan:
        assert isinstance(plan.choice.algorithm, dnn.types.Engine)
        assert plan.choice.remark.startswith("cudnnCreateActivationDescriptor (added in")
        assert plan.graph is not None


@pytest.mark.parametrize("activation", ["sigmoid", "relu", "tanh", "elu", "swish", "clipped_relu"])
def test_activations_of_graphs(later_handle: dnn.Handle, activation: str) -> None:
    spec = dnn.ActivationSpec(activation, 0.75) if activation == "clipped_relu" else activation
    host = np.linspace(-3, 3, 240, dtype=np.float32).reshape(2, 4, 6, 5)
    expected = {
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "relu": lambda x: np.maximum(x, 0),
        "tanh": np.tanh,
        "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
        "swish": lambda x: x / (1 + np.exp(-x)),
        "clipped_relu": lambda x: np.clip(x, 0, 0.75),
    }[activation](host)
    x = later_handle.array(host)
    y = dnn.activation_forward(later_handle, x, spec)
    np.testing.assert_allclose(y.numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("activation", ["sigmoid", "tanh"])
def test_gradients_that_are_computed_from_y_stop(later_handle: dnn.Handle, activation: str) -> None:
    """A graph computes them from x, which may have been overwritten by y."""
    x = later_handle.array(np.linspace(-3, 3, 240, dtype=np.float32).reshape(2, 4, 6, 5))
    with pytest.raises(dnn.errors.SymbolNotFoundError) as caught:
        dnn.activation_backward(later_handle, x, x, x, activation)
    check_message(caught.value)


def test_nan_goes_through_a_relu(later_handle: dnn.Handle) -> None:
    host = np.full((1, 2, 3, 4), np.nan, np.float32)
    assert np.isnan(
        dnn.activation_forward(later_handle, later_handle.array(host), "relu").numpy()
    ).all()


def test_a_graph_is_not_computed_in_place(later_handle: dnn.Handle) -> None:
    """But its plan has the problem of the call."""
    x = later_handle.array(np.ones((1, 2, 3, 4), np.float32))
    with pytest.raises(dnn.ArgumentError, match="overlaps x"):
        dnn.activation_forward(later_handle, x, "relu", out=x)
    with dnn.activation_forward.plan(later_handle, x.spec, "relu") as plan:
        assert plan.problem == dnn.activation_forward.problem(x.spec, "relu")


@pytest.mark.parametrize("op", ["add", "mul", "min", "max", "not", "sqrt"])
def test_operations_of_two_tensors(later_handle: dnn.Handle, op: str) -> None:
    rng = np.random.default_rng(0)
    a_host, b_host = (rng.random((2, 4, 6, 5), np.float32) for _ in range(2))
    a, b = later_handle.array(a_host, layout="NHWC"), later_handle.array(b_host, layout="NHWC")
    factor = 1.0 if op == "sqrt" else 0.5
    expected = {
        "add": 0.5 * a_host + 2 * b_host,
        "mul": a_host * b_host,
        "min": np.minimum(0.5 * a_host, 2 * b_host),
        "max": np.maximum(0.5 * a_host, 2 * b_host),
        "not": 1 - 0.5 * a_host,
        "sqrt": np.sqrt(a_host),
    }[op]
    out = poisoned(later_handle, a.spec)
    c = dnn.op_tensor(later_handle, a, b, op, alpha1=factor, alpha2=2.0, out=out)
    np.testing.assert_allclose(c.numpy(), expected, rtol=1e-5)


def test_a_copy_in_another_data_type(later_handle: dnn.Handle) -> None:
    host = np.arange(240, dtype=np.float16).reshape(2, 4, 6, 5)
    y = dnn.transform_tensor(later_handle, later_handle.array(host), dtype="float32")
    assert (y.numpy() == host.astype(np.float32)).all()


def graphless_calls(handle: dnn.Handle) -> dict[str, Any]:
    """Return calls that no graph serves."""
    wide = handle.array(np.ones((2, 4, 6, 5)), dtype="float64")
    x = handle.array(np.ones((2, 4, 6, 5), np.float32))
    w = handle.array(np.ones((4, 4, 3, 3), np.float32))
    channel = handle.array(np.ones((1, 4, 1, 1), np.float32))
    return {
        "cudnnCreateActivationDescriptor": lambda: dnn.activation_forward(handle, wide, "relu"),
        "cudnnCreatePoolingDescriptor": lambda: dnn.pooling_forward(
            handle, x, dnn.PoolingSpec(2), alpha=2.0
        ),
        "cudnnCreateOpTensorDescriptor": lambda: dnn.op_tensor(handle, x, channel, "add"),
        "cudnnTransformTensor": lambda: dnn.transform_tensor(handle, x, layout="NHWC"),
        "cudnnGetConvolutionForwardWorkspaceSize": lambda: dnn.convolution_forward.find(
            handle, x, w
        ),
        "cudnnGetConvolutionForwardAlgorithmMaxCount": lambda: dnn.convolution_forward(
            handle, x, w, interface="descriptor"
        ),
    }


def test_calls_that_no_graph_serves(later_handle: dnn.Handle) -> None:
    for function, call in graphless_calls(later_handle).items():
        with pytest.raises(dnn.errors.SymbolNotFoundError) as caught:
            call()
        check_message(caught.value, function)


def test_a_convolution_takes_an_engine(later_handle: dnn.Handle) -> None:
    """Also where a descriptor call, or a conversion to another layout, came first."""
    memory = later_handle.empty((4 * 240 + 64,), "uint8")
    x = part_of(memory, dnn.TensorSpec((2, 4, 6, 5)), 4)
    x.copy_from(np.ones(x.shape, np.float32))
    w = later_handle.array(np.ones((4, 4, 3, 3), np.float32))
    with pytest.warns(dnn.errors.AlignmentWarning):
        assert (dnn.convolution_forward(later_handle, x, w).numpy() == 36).all()
    images = later_handle.array(np.ones((4, 64, 64, 64), np.float32))
    depthwise = later_handle.array(np.ones((64, 1, 5, 5), np.float32))
    y = dnn.convolution_forward(
        later_handle, images, depthwise, dnn.ConvolutionSpec(groups=64, math_type="fma")
    )
    assert (y.numpy() == 25).all()


def test_a_tuner_chooses_an_engine(later_handle: dnn.Handle) -> None:
    """It says why it tried no descriptor call."""
    x, w = dnn.TensorSpec((2, 8, 9, 8)), dnn.FilterSpec((8, 8, 3, 3))
    with dnn.Tuner(later_handle, cache=":memory:") as tuner:
        table = tuner.tune(dnn.convolution_forward.problem(x, w))
    assert isinstance(table.best().algorithm, dnn.types.Engine)
    whys = [row.why_not for row in table if isinstance(row.algorithm, dnn.enums.ConvolutionFwdAlgo)]
    assert all("not in the loaded libcudnn" in why for why in whys)
