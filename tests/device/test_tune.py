"""`dnn.tune`: the candidates of one call, measured now; nothing is remembered or written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.refusals import refuses

import cudnnlite as dnn

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


def images(handle: dnn.Handle) -> Call:
    x, w = handle.full((2, 8, 7, 6), 1.0), handle.full((4, 8, 3, 3), 1.0)
    return dnn.convolution_forward, (x, w, dnn.ConvolutionSpec(1)), {}


def images_activated(_: dnn.Handle) -> Call:
    x = dnn.TensorSpec((2, 8, 7, 6), "float16", "NHWC")
    w = dnn.FilterSpec((8, 8, 3, 3), "float16", "NHWC")
    return dnn.convolution_forward, (x, w), {"activation": "gelu"}


def gradient(handle: dnn.Handle) -> Call:
    w, dy = handle.full((4, 8, 3, 3), 1.0), handle.full((2, 4, 5, 4), 1.0)
    return dnn.convolution_backward_data, (w, dy), {}


def product(handle: dnn.Handle) -> Call:
    a, b = handle.full((2, 16, 32), 1.0, "float16"), handle.full((2, 32, 8), 1.0, "float16")
    return dnn.matmul, (a, b), {}


def recurrent(handle: dnn.Handle) -> Call:
    spec = dnn.RNNSpec("lstm", 6, 8)
    return dnn.rnn_forward, (spec, dnn.RNNWeights(handle, spec), handle.full((5, 4, 6), 1.0)), {}


@pytest.mark.parametrize("make", [images, images_activated, gradient, product, recurrent])
def test_the_best_candidate_is_first_and_computes(
    handle: dnn.Handle, make: Callable[[dnn.Handle], Call]
) -> None:
    operation, arguments, options = make(handle)
    table = dnn.tune(handle, operation, *arguments, **options)
    assert table[0].ok
    assert table[0].time_ms is not None
    assert table[0].time_ms > 0
    assert table.best().algorithm == table[0].algorithm
    if operation is dnn.convolution_forward and not options:
        y = operation(handle, *arguments, algorithm=table.best(), **options)
        np.testing.assert_array_equal(y.numpy()[:, :, 1:-1, 1:-1], 72.0)


def test_nothing_is_remembered(handle: dnn.Handle, tmp_path: Path, monkeypatch: Any) -> None:
    """Neither in the user's cache, a rehearsal here, nor in a tuner that is at work."""
    operation, arguments, _ = images(handle)
    rehearsal = None if handle.device.has_real_timing else True
    with dnn.TuningCache(tmp_path / "tuning", rehearsal=rehearsal) as cache:
        monkeypatch.setenv("CUDNNLITE_TUNING_CACHE", str(tmp_path / "tuning"))
        with dnn.autotuned(handle, cache=cache) as tuner:
            dnn.tune(handle, operation, *arguments)
            assert tuner.measured == len(cache) == 0
            operation(handle, *arguments)
            assert tuner.measured == len(cache) == 1


def test_the_policy_excludes(handle: dnn.Handle) -> None:
    operation, arguments, _ = images(handle)
    policy = dnn.TuningPolicy("device", math_type="fma")
    table = dnn.tune(handle, operation, *arguments, policy=policy)
    assert {row.math_type for row in table if row.ok} == {dnn.MathType.FMA}


def test_what_cannot_be_tuned(handle: dnn.Handle) -> None:
    x = handle.zeros((1, 2, 4, 4))
    refuses(dnn.ArgumentError, "operation='conv'; needed", lambda: dnn.tune(handle, "conv", x))  # type: ignore[arg-type]
    refuses(
        dnn.ArgumentError,
        "cannot be tuned; allowed: convolution_forward",
        lambda: dnn.tune(handle, dnn.pooling_forward, x, dnn.PoolingSpec(2)),
    )
    for name, value in {"workspace_limit": "1 MiB", "interface": "graph"}.items():
        refuses(
            dnn.ArgumentError,
            rf"policy=dnn\.TuningPolicy\({name}={value!r}\)",
            lambda name=name, value=value: dnn.tune(
                handle, dnn.softmax_forward, x, **{name: value}
            ),
        )
    with pytest.raises(
        AttributeError, match=r"matmul has no find: .* dnn\.tune\(handle, dnn\.matmul"
    ):
        _ = dnn.matmul.find
    with pytest.raises(TypeError, match="missing a required argument: 'w'"):
        dnn.tune(handle, dnn.convolution_forward, x)
    with pytest.raises(TypeError, match="argument 'epilogue'; it is activation="):
        dnn.tune(handle, dnn.convolution_forward, x, x, epilogue="relu")
