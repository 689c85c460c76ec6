"""The snippets of the design run as printed, on the device that CUDNNLITE_DEVICE names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from oracles import onnx_convolution
from rnn_oracles import HAS_TORCH, onnx_rnn
from tolerances import assert_close, bound

import cudnnlite as dnn
from cudnnlite.devices.device_choice import DEVICE_VARIABLE

ONE_LINE = """
import numpy as np
import cudnnlite as dnn

image = np.random.default_rng(0).standard_normal((1, 3, 224, 224), dtype=np.float32)
kernel = np.random.default_rng(1).standard_normal((64, 3, 7, 7), dtype=np.float32)

with dnn.Handle() as handle:
    x, w = handle.array(image), handle.array(kernel)
    conv = dnn.ConvolutionSpec(padding=3, stride=2)
    y = dnn.convolution_forward(handle, x, w, conv)             # picks an algorithm, leases workspace
    print(y.shape, y.numpy().mean())

    found = dnn.convolution_forward.find(handle, x, w, conv)    # cudnnFind...Ex
    print(found)                                                # a table: algorithm, ms, workspace, deterministic, math, status
    best = found.best(workspace_limit="64 MiB", deterministic=True)
    y = dnn.convolution_forward(handle, x, w, conv, algorithm=best)
"""

ONE_LEVEL_DOWN = """
with (dnn.Handle() as handle,                                   # the same, one level down
      dnn.TensorDescriptor((1, 3, 224, 224), "float32", "NCHW") as x_desc,
      dnn.FilterDescriptor((64, 3, 7, 7), "float32", "NCHW") as w_desc,
      dnn.ConvolutionDescriptor(padding=3, stride=2, math_type=dnn.MathType.FMA) as conv_desc):
    y_shape = conv_desc.output_shape(x_desc, w_desc)
    handle.api.cudnnSetConvolutionGroupCount(conv_desc.ptr, 1)   # any of the C functions, checked
"""

RECURRENT = """
lstm = dnn.RNNSpec("lstm", input_size=64, hidden_size=128, num_layers=2, bidirectional=True)
with dnn.Handle() as handle:
    weights = dnn.RNNWeights.from_torch(handle, lstm, torch_lstm.state_dict())
    y, hy, cy = dnn.rnn_forward(handle, lstm, weights, handle.array(sequence), lengths=[20, 17, 9])
"""
TF32_RNN = 5e-3  # the snippet multiplies in TF32


def run(text: str, device: Any, monkeypatch: pytest.MonkeyPatch, **names: Any) -> dict[str, Any]:
    monkeypatch.setenv(DEVICE_VARIABLE, device.kind)
    exec(compile(text, "DESIGN.md", "exec"), names)
    return names


def test_one_line(
    device: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = run(ONE_LINE, device, monkeypatch)
    printed = capsys.readouterr().out
    y, best = names["y"], names["best"]
    assert names["handle"].device is device
    assert printed.startswith("(1, 64, 112, 112) ")
    assert str(names["found"]) in printed
    assert best.deterministic
    assert best.workspace <= 64 << 20
    expected = onnx_convolution(names["image"], names["kernel"], (3, 3), (2, 2), (1, 1))
    assert_close(
        y.numpy(), expected, bound("float32", best.math_type, best.algorithm, (64, 3, 7, 7))
    )
    mean = float(printed.splitlines()[0].split()[-1])
    np.testing.assert_allclose(mean, expected.mean(), atol=1e-3)


def test_one_level_down(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run(ONE_LEVEL_DOWN, device, monkeypatch, dnn=dnn)
    assert names["y_shape"] == (1, 64, 112, 112)
    for name in ("handle", "x_desc", "w_desc", "conv_desc"):
        assert names[name].closed


def torch_lstm() -> Any:
    """Return torch.nn.LSTM(64, 128, 2, bidirectional=True), or what has a state_dict() like it."""
    if HAS_TORCH:
        import torch

        torch.manual_seed(0)
        return torch.nn.LSTM(64, 128, 2, bidirectional=True)
    rng, state = np.random.default_rng(0), {}
    for layer, columns in enumerate((64, 256)):
        for suffix in ("", "_reverse"):
            for name, shape in (
                ("weight_ih", (512, columns)),
                ("weight_hh", (512, 128)),
                ("bias_ih", (512,)),
                ("bias_hh", (512,)),
            ):
                bound = 128**-0.5  # what PyTorch initializes to
                state[f"{name}_l{layer}{suffix}"] = rng.uniform(-bound, bound, shape).astype(
                    np.float32
                )
    return SimpleNamespace(state_dict=lambda: state)


def test_recurrent(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = torch_lstm()
    sequence = np.random.default_rng(1).standard_normal((20, 3, 64), dtype=np.float32)
    names = run(RECURRENT, device, monkeypatch, dnn=dnn, torch_lstm=module, sequence=sequence)
    assert names["handle"].closed
    assert names["handle"].device is device
    values = {}
    for name, tensor in module.state_dict().items():
        kind, side, place, *reverse = name.split("_")
        where = f"layer{place.removeprefix('l')}.{'backward' if reverse else 'forward'}"
        part = f"{where}.{'input' if side == 'ih' else 'recurrent'}"
        for gate, rows in zip("ifgo", np.split(np.asarray(tensor), 4), strict=True):
            values[f"{part}.{gate}{'.bias' * (kind == 'bias')}"] = rows
    expected = onnx_rnn("lstm", values, sequence, lengths=[20, 17, 9])
    y, hy, cy = names["y"], names["hy"], names["cy"]
    assert (y.shape, hy.shape, cy.shape) == ((20, 3, 256), (4, 3, 128), (4, 3, 128))
    for array, reference in zip((y, hy, cy), expected, strict=True):
        assert_close(array.numpy(), reference, TF32_RNN)
    assert (y.numpy()[17:, 1] == 0).all()
    assert (y.numpy()[9:, 2] == 0).all()


def test_descriptors_are_not_swapped_unnoticed(handle: dnn.Handle) -> None:
    """'Checked' means: ctypes refuses another kind of descriptor, and a status is an exception."""
    import ctypes

    with dnn.TensorDescriptor((1, 3, 8, 8)) as tensor, dnn.ConvolutionDescriptor() as conv:
        with pytest.raises(ctypes.ArgumentError):
            handle.api.cudnnSetConvolutionGroupCount(tensor.ptr, 1)
        with pytest.raises(dnn.errors.BadParamError, match="cudnnSetConvolutionGroupCount"):
            handle.api.cudnnSetConvolutionGroupCount(conv.ptr, 0)
