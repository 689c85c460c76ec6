"""`tools/benchmarks/ring_all_reduce.py`: the ring sums, and sends what its model says."""

from __future__ import annotations

import numpy as np
import pytest

from tools.benchmarks.ring_all_reduce import bytes_sent, model_seconds, ring_sum


@pytest.mark.parametrize("gpus", [2, 3, 4, 8])
def test_a_ring_sums_and_sends_what_the_model_says(gpus: int) -> None:
    rng = np.random.default_rng(gpus)
    arrays = [rng.standard_normal((6, 4 * gpus)) for _ in range(gpus)]
    before = [array.copy() for array in arrays]
    results, sent = ring_sum(arrays)
    expected = np.sum(before, axis=0)
    for result in results:
        np.testing.assert_allclose(result, expected, rtol=1e-12)
    for array, copy in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, copy)
    assert sent == [bytes_sent(gpus, arrays[0].nbytes)] * gpus


def test_a_ring_of_sizes_that_cannot_be_divided_sums_too() -> None:
    arrays = [np.arange(7.0) * number for number in (1, 2, 3)]
    results, sent = ring_sum(arrays)
    for result in results:
        np.testing.assert_array_equal(result, 6 * np.arange(7.0))
    assert sum(sent) == 4 * arrays[0].nbytes  # 2 (k - 1) / k of each of three


def test_the_model_of_two_gpus_is_the_array_once() -> None:
    assert model_seconds(2, 1 << 30, 1 << 30) == 1
    assert model_seconds(8, 8 << 20, 1 << 20) == 14
