"""Memory and streams are given back."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from helpers.harness import run_python

import cudnnlite as dnn
from cudnnlite._raw import leaks
from cudnnlite.emulated.device import EmulatedDevice

MIB = 1 << 20


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_many_small_arrays_take_no_memory():
    number = int(os.environ.get("CUDNNLITE_SMALL_ARRAYS", "100000"))
    memory = EmulatedDevice(6).memory
    for _ in range(1000):
        memory.allocate(4).close()
    before = resident()
    for _ in range(number):
        memory.allocate(4).close()
    assert resident() - before < 32 * MIB


def test_a_search_leaves_no_stream(own_handle):
    x, w = (
        own_handle.array(np.ones((1, 2, 5, 4), np.float32)),
        own_handle.array(np.ones((2, 2, 3, 3), np.float32)),
    )
    lstm = dnn.RNNSpec("lstm", 4, 3)
    weights, sequence = (
        dnn.RNNWeights(own_handle, lstm),
        own_handle.array(np.ones((2, 1, 4), np.float32)),
    )
    stream = own_handle.device.create_stream()
    address = stream.handle
    assert own_handle.device.stream(address) is stream
    del stream
    before = len(own_handle.device._streams)
    for _ in range(2):
        dnn.convolution_forward.find(own_handle, x, w)
        dnn.Tuner(own_handle, cache=":memory:").tune(
            dnn.rnn_forward.problem(lstm, weights, sequence)
        )
        dnn.Tuner(own_handle, cache=None).tune(
            dnn.convolution_forward.problem(x.spec, dnn.FilterSpec(w.shape))
        )
    assert len(own_handle.device._streams) == before
    with pytest.raises(dnn.ArgumentError, match="is not a stream"):
        own_handle.device.stream(address)


def test_closed_owners_ask_for_no_pending_call(monkeypatch):
    """The interpreter may make it when it ends, after the modules were cleared."""
    calls = []
    monkeypatch.setattr(leaks, "ask_for_pending_call", calls.append)
    descriptor = dnn.TensorDescriptor((1, 2))
    descriptor.close()
    del descriptor
    assert calls == []


def test_nothing_asks_for_a_pending_call_when_the_interpreter_ends(monkeypatch):
    calls = []
    monkeypatch.setattr(leaks, "ask_for_pending_call", calls.append)
    monkeypatch.setattr(leaks, "watched", {})
    descriptor = dnn.TensorDescriptor((1, 2))
    leaks._ask_for_no_more_calls()
    del descriptor
    assert calls == []


@pytest.mark.processes
def test_a_call_in_a_finalizer_while_the_interpreter_ends():
    process = run_python("""
        import numpy as np
        import cudnnlite as dnn

        class Late:
            def __init__(self, handle, x):
                self.handle, self.x = handle, x

            def __del__(self, call=dnn.softmax_forward, refusal=dnn.errors.ClosedError):
                try:
                    call(self.handle, self.x)
                except refusal as error:
                    print(error)

        handle = dnn.Handle("emulated")
        late = Late(handle, handle.array(np.ones((1, 2, 3), np.float32)))
    """)
    assert process.stdout == "the interpreter is ending: this Handle makes no plan any more\n"
    assert "Traceback" not in process.stderr
