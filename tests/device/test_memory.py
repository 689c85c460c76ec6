"""Memory and native objects: what a loop leaves behind is nothing."""

from __future__ import annotations

import gc
import sys
import warnings
from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite._raw.api import library_api
from cudnnlite.devices.plan_cache import MAX_CACHED

from .problems import Problem

CALLS = 10_000
TINY = ((1, 1, 4, 4), (1, 1, 3, 3))
KINDS = ("Tensor", "Filter", "Convolution")


class Ledger:
    """Counts what the C library makes and destroys."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, handle_api: Any) -> None:
        self.made = self.destroyed = 0
        for api, names in (
            (library_api(), [f"cudnn{{}}{kind}Descriptor" for kind in KINDS]),
            (handle_api, ["cudnn{}"]),
        ):
            for name in names:
                self._watch(monkeypatch, api, name.format("Create"), "made")
                self._watch(monkeypatch, api, name.format("Destroy"), "destroyed")

    def _watch(self, monkeypatch: pytest.MonkeyPatch, api: Any, name: str, counter: str) -> None:
        function = getattr(api, name)

        def counting(*arguments: Any) -> Any:
            result = function(*arguments)
            setattr(self, counter, getattr(self, counter) + 1)
            return result

        monkeypatch.setattr(api, name, counting)

    @property
    def alive(self) -> int:
        return self.made - self.destroyed


@pytest.fixture
def ledger(device: Any, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """A ledger that is open before the handle is made."""
    return Ledger(monkeypatch, device.api)


def used(device: Any) -> int:
    gc.collect()
    device.synchronize()
    return device.memory_used()


def what_one_array_takes(handle: dnn.Handle, shape: tuple[int, ...]) -> int:
    """Return the bytes that an allocation counts for: a CUDA pool rounds."""
    before = used(handle.device)
    array = handle.empty(shape)
    taken = used(handle.device) - before
    assert taken >= array.nbytes
    assert taken == array.nbytes or handle.device.kind == "cuda"
    return taken


@pytest.mark.parametrize("way", ["convolution_forward", "plan", "plan_with_out"])
def test_ten_thousand_calls(device: Any, ledger: Ledger, way: str) -> None:
    before = used(device)
    with dnn.Handle(device) as handle:
        problem = Problem(handle, *TINY, math_type="fma")
        unit = what_one_array_takes(handle, problem.y_shape)
        if way == "convolution_forward":
            first = dnn.convolution_forward(handle, problem.x, problem.w, problem.conv)
            inside, objects = used(device), ledger.alive
            for _ in range(CALLS):
                y = dnn.convolution_forward(handle, problem.x, problem.w, problem.conv)
            algorithm = problem.choice()
        else:
            plan = dnn.plan_convolution_forward(handle, problem.x, problem.w, problem.conv)
            first = plan(problem.x, problem.w)
            inside, objects = used(device), ledger.alive
            for _ in range(CALLS):
                y = plan(problem.x, problem.w, out=first if way == "plan_with_out" else None)
            algorithm = plan.choice.algorithm
        problem.assert_right(y, algorithm)
        problem.assert_right(first, algorithm)
        assert ledger.alive == objects
        assert used(device) - inside == (unit if y is not first else 0)
    del problem, first, y
    assert ledger.alive == 0
    assert used(device) == before


def test_plans_made_and_closed(device: Any, ledger: Ledger) -> None:
    before = used(device)
    with dnn.Handle(device) as handle:
        problem = Problem(handle, *TINY, math_type="fma")
        for _ in range(200):
            with dnn.plan_convolution_forward(handle, problem.x, problem.w, problem.conv, algorithm=0) as plan:
                y = plan(problem.x, problem.w)
            assert ledger.alive == 1  # the handle
        problem.assert_right(y, 0)
        for _ in range(20):
            dnn.get_convolution_forward(handle, problem.x, problem.w, problem.conv)
        assert ledger.alive == 1
    del problem, y
    assert ledger.alive == 0
    assert used(device) == before


def test_the_plans_that_a_handle_keeps_are_bounded(device: Any, ledger: Ledger) -> None:
    """Ever new shapes in one-line calls: the oldest plans are closed, and made again when they are wanted again."""
    with dnn.Handle(device) as handle:
        w = handle.array(np.ones((1, 1, 1, 1), np.float32))
        for turn in range(2):
            for width in range(1, MAX_CACHED + 20):
                x = handle.array(np.full((1, 1, 1, width), 1.5 + turn, np.float32))
                y = dnn.convolution_forward(handle, x, w, algorithm="IMPLICIT_GEMM")
                assert (y.numpy() == 1.5 + turn).all()
        assert ledger.alive <= 1 + 4 * MAX_CACHED
    assert ledger.alive == 0


def test_handles_made_and_closed(device: Any, ledger: Ledger) -> None:
    before = used(device)
    for _ in range(10):
        with dnn.Handle(device) as handle:
            problem = Problem(handle, *TINY)
            problem.check()
    del problem
    assert ledger.made > 10
    assert ledger.alive == 0
    assert used(device) == before


@pytest.mark.parametrize("action", ["default", "error"])
def test_what_is_never_closed_is_destroyed_all_the_same(
    device: Any, ledger: Ledger, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a ResourceWarning; also where warnings are errors, which a finalizer cannot raise."""
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: told.append(args.exc_type))
    with dnn.Handle(device) as handle:
        problem = Problem(handle, *TINY)
        plan = dnn.plan_convolution_forward(handle, problem.x, problem.w, problem.conv)
        descriptor = dnn.TensorDescriptor((1, 2, 3, 4))
        assert ledger.alive > 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if action == "default" else "error", ResourceWarning)
            del plan, descriptor
            gc.collect()
        assert ledger.alive == 1
    assert told == ([] if action == "default" else [ResourceWarning] * 2)


def test_the_workspace_is_kept(handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first call nothing is allocated but the output, and not even that where there is an `out`."""
    problem = Problem(handle, (2, 16, 12, 14), (24, 16, 3, 3), "float16", padding=1)
    rows = dnn.get_convolution_forward(handle, problem.x, problem.w, problem.conv)
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
    dnn.convolution_forward(handle, problem.x, problem.w, problem.conv, algorithm=algorithm, out=first)
    dnn.convolution_forward(handle, problem.x, problem.w, problem.conv, algorithm=algorithm, out=first)
    assert sizes == []
    assert handle.workspace.size == handle.workspace.peak == held
    problem.assert_right(y, algorithm.algorithm)
    problem.assert_right(first, algorithm.algorithm)


def test_the_workspace_grows_and_is_released(handle: dnn.Handle) -> None:
    before = used(handle.device)
    sizes = []
    for channels in (8, 16, 32):
        problem = Problem(handle, (2, channels, 20, 22), (24, channels, 5, 5), "float16", padding=2)
        rows = dnn.get_convolution_forward(handle, problem.x, problem.w, problem.conv)
        algorithm = max((row for row in rows if row.ok), key=lambda row: row.workspace)
        problem.assert_right(problem.run(algorithm=algorithm), algorithm.algorithm)
        sizes.append(handle.workspace.size)
    assert sizes == sorted(sizes)
    assert sizes[0] > 0
    del problem
    handle.workspace.release()
    assert handle.workspace.size == 0
    assert used(handle.device) == before


def test_a_closed_array_gives_its_memory_back(handle: dnn.Handle) -> None:
    before = used(handle.device)
    array = handle.empty((64, 64, 8, 8))
    assert used(handle.device) - before >= array.nbytes
    array.close()
    assert used(handle.device) == before
