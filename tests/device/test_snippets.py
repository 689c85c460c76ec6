"""The convolution snippets of the design run as printed, on the device that CUDNNLITE_DEVICE names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from oracles import onnx_convolution
from tolerances import assert_close, bound

import cudnnlite as dnn
from cudnnlite.device import DEVICE_VARIABLE

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

    found = dnn.find_convolution_forward(handle, x, w, conv)    # cudnnFind...Ex
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


def run(text: str, device: Any, monkeypatch: pytest.MonkeyPatch, **names: Any) -> dict[str, Any]:
    monkeypatch.setenv(DEVICE_VARIABLE, device.kind)
    exec(compile(text, "DESIGN.md", "exec"), names)
    return names


def test_one_line(device: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    names = run(ONE_LINE, device, monkeypatch)
    printed = capsys.readouterr().out
    y, best = names["y"], names["best"]
    assert names["handle"].device is device
    assert printed.startswith("(1, 64, 112, 112) ")
    assert str(names["found"]) in printed
    assert best.deterministic
    assert best.workspace <= 64 << 20
    expected = onnx_convolution(names["image"], names["kernel"], (3, 3), (2, 2), (1, 1))
    assert_close(y.numpy(), expected, bound("float32", best.math_type, best.algorithm, (64, 3, 7, 7)))
    mean = float(printed.splitlines()[0].split()[-1])
    np.testing.assert_allclose(mean, expected.mean(), atol=1e-3)


def test_one_level_down(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run(ONE_LEVEL_DOWN, device, monkeypatch, dnn=dnn)
    assert names["y_shape"] == (1, 64, 112, 112)
    for name in ("handle", "x_desc", "w_desc", "conv_desc"):
        assert names[name].closed


def test_descriptors_are_not_swapped_unnoticed(handle: dnn.Handle) -> None:
    """What 'checked' means: ctypes refuses another kind of descriptor, and a status becomes an exception."""
    import ctypes

    with dnn.TensorDescriptor((1, 3, 8, 8)) as tensor, dnn.ConvolutionDescriptor() as conv:
        with pytest.raises(ctypes.ArgumentError):
            handle.api.cudnnSetConvolutionGroupCount(tensor.ptr, 1)
        with pytest.raises(dnn.BadParamError, match="cudnnSetConvolutionGroupCount"):
            handle.api.cudnnSetConvolutionGroupCount(conv.ptr, 0)
