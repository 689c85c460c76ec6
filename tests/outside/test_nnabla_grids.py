"""The grids of NNabla's tests: sizes and parameters that others found worth a test."""

from __future__ import annotations

import itertools
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn

from .moduleinfo import assert_same
from .opinfo import judge

torch: Any = pytest.importorskip("torch", reason="PyTorch judges; it is not installed")
BOTH = (False, True)
GRIDS = ("convolutions", "poolings", "normalizations", "products")


@pytest.mark.parametrize("grid", GRIDS)
def test_grids(handle: dnn.Handle, grid: str) -> None:
    from . import nnabla_grids

    torch.manual_seed(3)
    outcomes = []
    for each in getattr(nnabla_grids, grid)():
        operation = SimpleNamespace(name=each.name, op=each.op)
        outcomes.append((*judge(handle, operation, each.sample, is_last=each.is_last), each.name))
    assert [outcome for outcome in outcomes if outcome[0] == "wrong"] == []
    counts = Counter(outcome for outcome, *_ in outcomes)
    assert counts["right"] > 0.7 * len(outcomes), counts
    assert counts["refused by us"] <= 0.02 * len(outcomes), outcomes


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("transposed", list(itertools.product(BOTH, BOTH)))
def test_products_of_batches(handle: dnn.Handle, size: int, transposed: tuple[bool, bool]) -> None:
    """Of two batches, one of which may repeat; transposed views."""
    rng = np.random.default_rng(3)
    for rows, columns, batches in itertools.product(
        (1, 5),
        (1, 5),
        (((2, 3), (2, 3)), ((2, 3), (2, 1)), ((1, 3), (2, 3)), ((1, 3), (2, 1)), ((1, 1), (1, 1))),
    ):
        shapes = ((*batches[0], rows, size), (*batches[1], size, columns))
        hosts = [rng.standard_normal(shape, np.float32) for shape in shapes]
        if batches[0] != batches[1]:  # ours repeats no part of a batch
            whole = np.broadcast_shapes(*batches)
            hosts = [np.broadcast_to(host, (*whole, *host.shape[2:])) for host in hosts]
        arrays = []
        for host, is_transposed in zip(hosts, transposed, strict=True):
            if is_transposed:
                flipped = np.ascontiguousarray(host.swapaxes(-1, -2))
                arrays.append(handle.array(flipped).transpose(0, 1, 3, 2))
            else:
                arrays.append(handle.array(host))
        y = dnn.matmul(handle, *arrays).numpy()
        expected = hosts[0].astype(np.float64) @ hosts[1]
        np.testing.assert_allclose(y, expected, atol=3e-3 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["GRU", "LSTM", "RNN"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", BOTH)
@pytest.mark.parametrize("bias", BOTH)
def test_recurrent_networks(
    handle: dnn.Handle, name: str, layers: int, bidirectional: bool, bias: bool
) -> None:
    torch.manual_seed(3)
    module = getattr(torch.nn, name)(2, 3, layers, bias=bias, bidirectional=bidirectional)
    states = torch.randn(layers * (1 + bidirectional), 3, 3)
    operands = [torch.randn(2, 3, 2), states, *([states.neg()] if name == "LSTM" else [])]
    dy = torch.randn(2, 3, 3 * (1 + bidirectional))
    assert_same(handle, module, operands, dy)
