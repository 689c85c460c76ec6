"""Streams of another library, and copies that are asynchronous because of pinned host memory."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from device.problems import Problem

import cudnnlite as dnn

from .libraries import cuda_only, library

X, W = (4, 16, 30, 34), (24, 16, 3, 3)
pytestmark = cuda_only


class OnlyAddress:
    """A stream object of an old library: only an address, and gone when nobody holds it."""

    def __init__(self, stream: Any) -> None:
        self.ptr = int(stream.handle)
        self.stream = stream


@pytest.mark.parametrize("how", ["address", "object", "torch"])
def test_a_foreign_stream_orders_calls(handle: dnn.Handle, how: str) -> None:
    if how == "torch":
        foreign = library("torch").cuda.Stream()
        handle.stream, address = foreign, foreign.cuda_stream
    else:
        stream = handle.device.create_stream()
        address = int(stream.handle)
        handle.stream = address if how == "address" else OnlyAddress(stream)
        if how == "object":
            del stream  # the handle's stream must hold it now
            gc.collect()
    assert int(handle.stream.handle) == address
    problem = Problem(handle, X, W, padding=1, math_type="fma")
    problem.assert_right(problem.run(), problem.choice())


def test_pinned_memory_may_be_changed_at_once(handle: dnn.Handle) -> None:
    torch = library("torch")
    pinned = torch.empty((64, 64, 56, 56), pin_memory=True)
    values = pinned.numpy()
    values[...] = np.random.default_rng(0).standard_normal(values.shape, dtype=np.float32)
    expected = values.copy()
    torch.cuda._sleep(50_000_000)  # the copy would wait behind this, on the same default stream
    array = handle.array(values)
    values[...] = np.nan
    assert np.array_equal(array.numpy(), expected)
