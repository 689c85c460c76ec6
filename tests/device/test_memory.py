"""Memory and native objects: what a loop leaves behind is nothing."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite._raw.api import library_api
from cudnnlite.devices import plan_cache

from .problems import Problem

TINY = ((1, 1, 4, 4), (1, 1, 3, 3))
KINDS = ("Tensor", "Filter", "Convolution")


class Ledger:
    """Counts what the C library makes and destroys."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, handle_api: Any) -> None:
        self.creations = self.destructions = 0
        for api, names in (
            (library_api(), [f"cudnn{{}}{kind}Descriptor" for kind in KINDS]),
            (handle_api, ["cudnn{}"]),
        ):
            for name in names:
                self._watch(monkeypatch, api, name.format("Create"), "creations")
                self._watch(monkeypatch, api, name.format("Destroy"), "destructions")

    def _watch(self, monkeypatch: pytest.MonkeyPatch, api: Any, name: str, counter: str) -> None:
        function = getattr(api, name)

        def counting(*arguments: Any) -> Any:
            result = function(*arguments)
            setattr(self, counter, getattr(self, counter) + 1)
            return result

        monkeypatch.setattr(api, name, counting)

    @property
    def alive(self) -> int:
        return self.creations - self.destructions


@pytest.fixture
def ledger(device: Any, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """A ledger that is open before the handle is made."""
    return Ledger(monkeypatch, device.api)


def used(device: Any) -> int:
    gc.collect()
    device.synchronize()
    return device.memory_used()


def test_the_plans_that_a_handle_keeps_are_bounded(
    device: Any, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One-line calls with ever new shapes close the oldest plans.

    These are made again on demand.
    """
    most = 100
    monkeypatch.setattr(plan_cache, "MAX_CACHED", most)
    with dnn.Handle(device) as handle:
        w = handle.array(np.ones((1, 1, 1, 1), np.float32))
        for turn in range(2):
            for width in range(1, most + 20):
                x = handle.array(np.full((1, 1, 1, width), 1.5 + turn, np.float32))
                y = dnn.convolution_forward(handle, x, w, algorithm="IMPLICIT_GEMM")
                assert (y.numpy() == 1.5 + turn).all()
        assert ledger.alive <= 1 + 4 * most
    assert ledger.alive == 0


def test_handles_made_and_closed(device: Any, ledger: Ledger) -> None:
    before = used(device)
    for _ in range(10):
        with dnn.Handle(device) as handle:
            problem = Problem(handle, *TINY)
            problem.check()
    del problem
    assert ledger.creations > 10
    assert ledger.alive == 0
    assert used(device) == before


def test_the_workspace_is_kept(handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first call only the output is allocated, and nothing with `out`."""
    problem = Problem(handle, (2, 16, 12, 14), (24, 16, 3, 3), "float16", padding=1)
    rows = dnn.convolution_forward.heuristic(handle, problem.x, problem.w, problem.conv)
    algorithm = max((row for row in rows if row.ok), key=lambda row: row.workspace)
    assert algorithm.workspace > 0
    first = dnn.convolution_forward(handle, problem.x, problem.w, problem.conv, algorithm=algorithm)
    held = handle.workspace.size
    assert held > 0
    sizes: list[int] = []
    allocate = handle.device.allocate

    def watching(nbytes: int, stream: Any) -> Any:
        sizes.append(nbytes)
        return allocate(nbytes, stream)

    monkeypatch.setattr(handle.device, "allocate", watching)
    for _ in range(3):
        y = dnn.convolution_forward(handle, problem.x, problem.w, problem.conv, algorithm=algorithm)
    assert sizes == [first.nbytes] * 3
    sizes.clear()
    dnn.convolution_forward(
        handle, problem.x, problem.w, problem.conv, algorithm=algorithm, out=first
    )
    dnn.convolution_forward(
        handle, problem.x, problem.w, problem.conv, algorithm=algorithm, out=first
    )
    assert sizes == []
    assert handle.workspace.size == handle.workspace.peak == held
    problem.assert_right(y, algorithm.algorithm)
    problem.assert_right(first, algorithm.algorithm)


def test_the_workspace_grows_and_is_released(handle: dnn.Handle) -> None:
    before = used(handle.device)
    sizes = []
    for channels in (8, 16, 32):
        problem = Problem(handle, (2, channels, 20, 22), (24, channels, 5, 5), "float16", padding=2)
        rows = dnn.convolution_forward.heuristic(handle, problem.x, problem.w, problem.conv)
        algorithm = max((row for row in rows if row.ok), key=lambda row: row.workspace)
        problem.assert_right(problem.run(algorithm=algorithm), algorithm.algorithm)
        sizes.append(handle.workspace.size)
    assert sizes == sorted(sizes)
    assert sizes[0] > 0
    del problem
    handle.workspace.release()
    assert handle.workspace.size == 0
    assert used(handle.device) == before
