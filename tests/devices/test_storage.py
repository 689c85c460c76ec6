"""Memory as values: whether two tensors share some, by enumeration."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cudnnlite import TensorSpec
from cudnnlite.devices.storage import share_values
from cudnnlite.dtypes import dtype_name

ITEMSIZES = {"float32": 4, "float16": 2}


@st.composite
def tensors(draw: st.DrawFn) -> tuple[TensorSpec, int]:
    """Any strides, which may overlap each other, at any address."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    strides = draw(st.lists(st.integers(1, 40), min_size=len(shape), max_size=len(shape)))
    spec = TensorSpec(shape, draw(st.sampled_from([*ITEMSIZES])), strides=strides)
    return spec, 4096 + 2 * draw(st.integers(0, 60))


def bytes_of(spec: TensorSpec, address: int) -> set[int]:
    itemsize = ITEMSIZES[dtype_name(spec.dtype)]
    return {
        address + itemsize * int(np.dot(index, spec.strides)) + byte
        for index in itertools.product(*map(range, spec.shape))
        for byte in range(itemsize)
    }


@settings(deadline=None, max_examples=200)
@given(tensors(), tensors())
def test_two_tensors_share_the_bytes_that_both_have(
    first: tuple[TensorSpec, int], second: tuple[TensorSpec, int]
) -> None:
    expected = bool(bytes_of(*first) & bytes_of(*second))
    assert share_values(*first, *second) == share_values(*second, *first) == expected


def test_slices_of_a_large_buffer() -> None:
    """2^31 bytes: nothing is read, and nothing is counted."""
    half = TensorSpec((64, 128, 128, 256), "float32", strides=(1 << 23, 1 << 15, 256, 1))
    behind = half.strides[0] // 2 * 4
    assert not share_values(half, 1 << 40, half, (1 << 40) + behind)
    assert share_values(half, 1 << 40, half, (1 << 40) + behind - 4)


def test_channels_of_vectors() -> None:
    """An int8x4 has four channels in one place."""
    spec = TensorSpec((2, 8, 3, 5), "int8x4")
    assert not share_values(spec, 4096, spec, 4096 + spec.nbytes)
    assert share_values(spec, 4096, spec, 4095 + spec.nbytes)


def test_an_empty_tensor_shares_nothing() -> None:
    empty, full = TensorSpec((0, 3)), TensorSpec((2, 3))
    assert not share_values(empty, 4104, full, 4096)
