"""Observers: who is told what of a device, and that nobody is told anything otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite.devices import observer

X = np.ones((1, 2, 3, 4), np.float32)


def notification(name: str) -> Any:
    def write_down(self: Diary, *_: object) -> None:
        self.pages.append(name)

    return write_down


def surrounding(name: str) -> Any:
    @contextmanager
    def write_down(self: Diary, *_: object, **__: object) -> Iterator[None]:
        self.pages.append(name)
        yield
        self.pages.append(f"{name}.")

    return write_down


class Diary(observer.Observer):
    """Writes down what it is told: a name where something begins, with a dot where it has ended."""

    memory_allocated = notification("memory_allocated")
    memory_adopted = notification("memory_adopted")
    memory_exported = notification("memory_exported")
    graph_captured = notification("graph_captured")
    copying_in = surrounding("copying_in")
    copying_rows = surrounding("copying_rows")
    copying_within = surrounding("copying_within")
    filling_rows = surrounding("filling_rows")
    capturing = surrounding("capturing")
    launching = surrounding("launching")

    def __init__(self) -> None:
        self.pages: list[str] = []

    def call(self, function: Any, record: Any, *arguments: Any) -> Any:
        self.pages.append(record.name)
        return function(*arguments)


@pytest.fixture
def handle() -> Any:
    with dnn.Handle("emulated") as handle:
        yield handle


@pytest.fixture
def pages() -> Iterator[list[str]]:
    diary = Diary()
    observer.attach(diary)
    yield diary.pages
    observer.detach()


def take(pages: list[str]) -> list[str]:
    """Return the noted functions and forget them.

    Queries are left out, because the emulated device makes them.
    """
    names = [name for name in pages if not name.startswith("cudnnGet")]
    pages.clear()
    return names


def test_nobody_observes_unless_attached(handle: dnn.Handle) -> None:
    assert type(observer.current) is observer.Observer
    observer.attach(diary := Diary())
    observer.detach()
    observer.detach()
    handle.array(X).numpy()
    assert type(observer.current) is observer.Observer
    assert diary.pages == []


def test_memory_and_copies_are_told_once_each(handle: dnn.Handle, pages: list[str]) -> None:
    x = handle.array(X)
    assert take(pages) == ["memory_allocated", "copying_in", "copying_in."]
    x.numpy()
    assert take(pages) == ["copying_rows", "copying_rows."]
    x[:, 1].copy_from(X[:, 1])
    assert take(pages) == ["copying_rows", "copying_rows."]
    x.fill(0)
    assert take(pages) == ["filling_rows", "filling_rows."]
    x.copy()
    assert take(pages) == ["memory_allocated", "copying_within", "copying_within."]
    np.from_dlpack(x)
    assert take(pages) == ["memory_exported"]


def test_what_fails_has_no_end(handle: dnn.Handle, pages: list[str]) -> None:
    with pytest.raises(Exception, match="do not lie inside one live allocation"):
        handle.device.copy_in(0x1000, X, handle.stream)
    assert take(pages) == ["copying_in"]


def test_calls_are_told_prepared_ones_too(handle: dnn.Handle, pages: list[str]) -> None:
    with dnn.TensorDescriptor((1, 2, 3, 4)):
        assert take(pages) == ["cudnnCreateTensorDescriptor", "cudnnSetTensorNdDescriptor"]
    x = handle.array(X)
    y = handle.empty(x.shape)
    dnn.activation_forward(handle, x, "relu", out=y)
    take(pages)
    dnn.activation_forward(handle, x, "relu", out=y)
    assert take(pages) == ["cudnnActivationForward"]


def test_captures_and_launches_are_told(handle: dnn.Handle, pages: list[str]) -> None:
    x = handle.array(X)
    y = handle.empty(x.shape)
    dnn.activation_forward(handle, x, "relu", out=y)
    take(pages)
    with dnn.capture(handle) as graph:
        dnn.activation_forward(handle, x, "relu", out=y)
    called = ["cudnnActivationForward"]
    assert take(pages) == [
        *("cudnnSetStream", "capturing", *called, "capturing.", "cudnnSetStream"),
        "graph_captured",
    ]
    with graph:
        graph.launch()
        assert take(pages) == ["launching", "launching."]


def test_a_replaying_plan_makes_each_call_for_who_needs_it(
    handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch, pages: list[str]
) -> None:
    x, w = handle.array(X), handle.array(X[:, :, :2, :2])
    with dnn.convolution_forward.plan(handle, x, w, replay=True) as plan:
        y = plan(x, w)
        plan(x, w, out=y)
        take(pages)
        plan(x, w, out=y)
        assert take(pages) == []  # a launch of the plan's own graph
        monkeypatch.setattr(Diary, "needs_each_call", True)
        plan(x, w, out=y)
        assert take(pages)[-1:] == ["cudnnBackendExecute"]
