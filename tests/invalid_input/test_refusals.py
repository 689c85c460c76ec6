"""A call with an invalid argument raises our exception, which names it, and writes nothing.

Each family of operations has one table.  Its `CASES` are tried on both devices.  `EMULATED_CASES`
are those of which cuDNN may know more than the emulated device, and those that concern no device.
"""

from __future__ import annotations

import gc
from types import ModuleType
from typing import Any

import pytest
from helpers.refusals import assert_refused, nothing_half_made

import cudnnlite as dnn

from . import arrays, attention, convolution, graphs, layers, raw, rnn, specs, tuner
from .case import Bench, Case

FAMILIES = {
    module.__name__.rpartition(".")[2]: module
    for module in (arrays, attention, convolution, graphs, layers, raw, rnn, specs, tuner)
}


def used_memory(handle: dnn.Handle) -> int:
    """Return the memory in use, without scratch memory that the handle may keep after a refusal."""
    handle.synchronize()
    handle.workspace.release()
    handle.synchronize()
    gc.collect()
    return handle.device.memory_used()


def check(family: ModuleType, handle: dnn.Handle, cases: dict[str, Case]) -> None:
    """Make all calls on one bench, twice: when they are repeated, plans of valid calls are kept."""
    bench: Bench = getattr(family, "Bench", Bench)(handle)
    used = []
    for _ in range(2):
        for name, (call, message, error) in cases.items():
            print(name)  # pytest shows it if the case fails
            assert_refused(error, message, lambda refused=call: refused(bench))
            bench.assert_untouched()
        used.append(used_memory(handle))
    assert used[1] <= used[0]  # less: an earlier failure's traceback is gone
    bench.assert_works()
    vars(bench).clear()  # pytest keeps the bench for longer than the handle's fixture allows


@pytest.mark.parametrize(
    "family", [name for name, module in FAMILIES.items() if hasattr(module, "CASES")]
)
def test_on_each_device(handle: dnn.Handle, family: str) -> None:
    with nothing_half_made():
        check(FAMILIES[family], handle, FAMILIES[family].CASES)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    "family", [name for name, module in FAMILIES.items() if hasattr(module, "EMULATED_CASES")]
)
def test_on_the_emulated_device(own_handle: dnn.Handle, family: Any) -> None:
    check(FAMILIES[family], own_handle, FAMILIES[family].EMULATED_CASES)
