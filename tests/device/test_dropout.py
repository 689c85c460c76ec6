"""Dropout as a layer: what it drops, how it scales the rest, and its gradient."""

from __future__ import annotations

import numpy as np
import pytest
from tolerances import OPERATION_BOUNDS, assert_near

import cudnnlite as dnn

from .operation_samples import LAYOUTS, spec_of
from .problems import PATTERN, fill, gap_mask, memory_of, poisoned, random_values, upload

DTYPES = ("float32", "float64", "float16")
SHAPE = (3, 5, 7, 4)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_kept_is_scaled_and_the_gradient_too(
    handle: dnn.Handle, dtype: str, layout: str
) -> None:
    rng, spec, state = (
        np.random.default_rng(0),
        spec_of(SHAPE, dtype, layout),
        dnn.DropoutState(handle, 7),
    )
    x, dy = (np.abs(random_values(rng, SHAPE, dtype)) + 1 for _ in range(2))
    y, dx = poisoned(handle, spec), poisoned(handle, spec)
    fill(y, PATTERN)
    result, reserve = dnn.dropout_forward(
        handle, upload(handle, spec, x), 0.25, dropout_state=state, out=y
    )
    assert result is y
    assert (memory_of(y)[gap_mask(spec)] == PATTERN).all()
    survivors = y.numpy() != 0
    assert 0.6 < survivors.mean() < 0.9
    assert_near(
        y.numpy(), np.where(survivors, x.astype(np.float64) / 0.75, 0), OPERATION_BOUNDS[dtype]
    )
    states = state.save()
    assert (
        dnn.dropout_backward(
            handle, upload(handle, spec, dy), 0.25, reserve, dropout_state=state, out=dx
        )
        is dx
    )
    assert_near(
        dx.numpy(), np.where(survivors, dy.astype(np.float64) / 0.75, 0), OPERATION_BOUNDS[dtype]
    )
    np.testing.assert_array_equal(state.save(), states)


@pytest.mark.parametrize("shape", [(3,), (2, 7), (2, 3, 5), (2, 3, 4, 5), (2, 3, 4, 5, 6)])
def test_ranks_in_place_and_no_dropout(handle: dnn.Handle, shape: tuple[int, ...]) -> None:
    state, host = dnn.DropoutState(handle), np.full(shape, 3, np.float32)
    x = handle.array(host)
    y, reserve = dnn.dropout_forward(handle, x, 0, dropout_state=state)
    np.testing.assert_array_equal(y.numpy(), host)
    np.testing.assert_array_equal(
        dnn.dropout_backward(handle, x, 0, reserve, dropout_state=state).numpy(), host
    )
    same, reserve = dnn.dropout_forward(handle, x, 0.5, dropout_state=state, out=x, reserve=reserve)
    assert same is x
    assert set(np.unique(x.numpy())) <= {0, 6}
    dy = handle.array(host)
    assert dnn.dropout_backward(handle, dy, 0.5, reserve, dropout_state=state, out=dy) is dy
    np.testing.assert_array_equal(dy.numpy(), x.numpy())


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_may_be_dropped(handle: dnn.Handle, dtype: str) -> None:
    state, x = dnn.DropoutState(handle), handle.array(np.full(SHAPE, 3, dtype))
    y, reserve = dnn.dropout_forward(
        handle, x, 1, dropout_state=state, out=poisoned(handle, x.spec)
    )
    dx = dnn.dropout_backward(
        handle, x, 1, reserve, dropout_state=state, out=poisoned(handle, x.spec)
    )
    for array in (y, dx):
        np.testing.assert_array_equal(array.numpy(), np.zeros(SHAPE, dtype))


def test_the_state_is_advanced_and_can_be_restored(handle: dnn.Handle) -> None:
    state, x = dnn.DropoutState(handle, 3), handle.array(np.ones((1, 1, 40, 50), np.float32))
    saved = state.save()
    first, second = (
        dnn.dropout_forward(handle, x, 0.5, dropout_state=state)[0].numpy() for _ in range(2)
    )
    assert (first != second).any()
    state.restore(saved)
    np.testing.assert_array_equal(
        dnn.dropout_forward(handle, x, 0.5, dropout_state=state)[0].numpy(), first
    )
    again = dnn.DropoutState(handle, 3)
    np.testing.assert_array_equal(
        dnn.dropout_forward(handle, x, 0.5, dropout_state=again)[0].numpy(), first
    )


def test_states_and_arrays_of_another_stream(handle: dnn.Handle) -> None:
    with dnn.Handle(handle.device) as other:
        other.stream = handle.device.create_stream()
        state, x = dnn.DropoutState(other, 3), other.array(np.ones((1, 1, 40, 50), np.float32))
        y, reserve = dnn.dropout_forward(handle, x, 0.5, dropout_state=state)
        dx = dnn.dropout_backward(other, x, 0.5, reserve, dropout_state=state)
        np.testing.assert_array_equal(dx.numpy(), y.numpy())
