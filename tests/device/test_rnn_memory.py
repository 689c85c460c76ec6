"""Memory and native objects of recurrent networks.

What each call allocates, and what a loop leaves behind.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite._raw.api import library_api
from cudnnlite.operations.rnn.choice import ALGORITHMS

from .problems import PATTERN, fill, memory_of
from .test_memory import used
from .test_rnn_plan import CELLS, LAYOUTS, LENGTHS, Network

CALLS = 100
KINDS = ("RNN", "RNNData", "Tensor", "Dropout")


class Ledger:
    """Counts what the C library makes and destroys, by kind, through every function table."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, device: Any) -> None:
        self.alive = dict.fromkeys((*KINDS, "Handle"), 0)
        for api in (library_api(), device.api):
            for kind in self.alive:
                suffix = "" if kind == "Handle" else f"{kind}Descriptor"
                self._watch(monkeypatch, api, f"cudnnCreate{suffix}", kind, 1)
                self._watch(monkeypatch, api, f"cudnnDestroy{suffix}", kind, -1)

    def _watch(
        self, monkeypatch: pytest.MonkeyPatch, api: Any, name: str, kind: str, change: int
    ) -> None:
        function = getattr(api, name)

        def counting(*arguments: Any) -> Any:
            result = function(*arguments)
            self.alive[kind] += change
            return result

        monkeypatch.setattr(api, name, counting)

    @property
    def counts(self) -> dict[str, int]:
        """What is alive, by kind; nothing is not listed."""
        return {kind: count for kind, count in self.alive.items() if count}


@pytest.fixture
def ledger(device: Any, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """A ledger that is open before the handle is made."""
    return Ledger(monkeypatch, device)


@pytest.fixture
def sizes(handle: dnn.Handle, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of every allocation on the handle's device."""
    allocation_sizes: list[int] = []
    allocate = handle.device.allocate

    def watching(nbytes: int, stream: Any) -> Any:
        allocation_sizes.append(nbytes)
        return allocate(nbytes, stream)

    monkeypatch.setattr(handle.device, "allocate", watching)
    return allocation_sizes


def differing(name: str) -> dict[str, Any]:
    """Return arguments of the networks below, by cell."""
    return {"num_layers": 2, "bidirectional": True, "lengths": LENGTHS} if name == "lstm" else {}


# ---------------------------------------------------------------- allocations


@pytest.mark.parametrize("algorithm", [None, "standard"], ids=["heuristic", "standard"])
@pytest.mark.parametrize("name", CELLS)
def test_with_out_nothing_is_allocated(
    handle: dnn.Handle, sizes: list[int], name: str, algorithm: Any
) -> None:
    network = Network(handle, name, **differing(name))
    out = network.outputs()
    with network.plan(algorithm=algorithm) as plan:
        for _ in range(2):
            network.run(out=out, algorithm=algorithm)
            network.call(plan, out=out)
        sizes.clear()
        for _ in range(3):
            network.run(out=out, algorithm=algorithm)
            network.call(plan, out=out)
        assert sizes == []
    network.assert_right(out)


@pytest.mark.parametrize("name", CELLS)
def test_without_out_the_outputs_are_allocated(
    handle: dnn.Handle, sizes: list[int], name: str
) -> None:
    network = Network(handle, name, **differing(name))
    for _ in range(2):
        network.run()
    output_sizes = [array.nbytes for array in network.outputs()]
    for _ in range(3):
        sizes.clear()
        out = network.run()
        assert sizes == output_sizes
    network.assert_right(out)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["lstm", "gru", "lstm_projection"])
def test_training_with_out_and_reserve_allocates_nothing(
    handle: dnn.Handle, sizes: list[int], name: str, layout: str
) -> None:
    network = Network(handle, name, num_layers=2, layout=layout, lengths=LENGTHS)
    first = network.run(training=True)
    out, reserve = first[:3], first.reserve
    gradients = dnn.rnn_backward_data(handle, reserve, first.y)
    weights = dnn.rnn_backward_weights(handle, reserve)
    for turn in range(4):
        if turn == 1:
            sizes.clear()
        again = network.run(training=True, out=out if turn % 2 else first, reserve=reserve)
        assert again.reserve is reserve
        results = dnn.rnn_backward_data(handle, reserve, first.y, out=gradients)
        assert dnn.rnn_backward_weights(handle, reserve, out=weights) is weights
        dnn.rnn_backward_weights(handle, reserve, out=weights, accumulate=True)
        assert all(one is other for one, other in zip(results, gradients, strict=True))
    assert sizes == []
    network.assert_right(out)


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_training_allocates_its_results(handle: dnn.Handle, sizes: list[int], name: str) -> None:
    network = Network(handle, name)
    outputs = [array.nbytes for array in network.outputs()]
    for turn in range(3):
        sizes.clear()
        out = network.run(training=True)
        if turn:
            assert sizes == [*outputs, out.reserve.nbytes]
        sizes.clear()
        gradients = dnn.rnn_backward_data(handle, out.reserve, out.y)
        if turn:
            assert sizes == [array.nbytes for array in gradients if array is not None]
        sizes.clear()
        weights = dnn.rnn_backward_weights(handle, out.reserve)
        if turn:
            assert sizes == [weights.array.nbytes]


def test_the_workspace_does_not_grow(handle: dnn.Handle, sizes: list[int]) -> None:
    """Smaller problems share the buffer of the largest one; nothing else is kept."""
    largest = Network(handle, num_layers=2, bidirectional=True, steps=20)
    smaller = [largest.with_sequences(None, steps) for steps in (1, 7, 20)]
    largest.run(algorithm="standard")
    held = handle.workspace.size
    for network in (largest, *smaller):
        network.run(algorithm="standard")  # each is known from here on
    nbytes = sum(array.nbytes for network in (largest, *smaller) for array in network.outputs())
    sizes.clear()
    for _ in range(3):
        for network in (largest, *smaller):
            out = network.run(algorithm="standard")
            network.assert_right(out)
    assert sum(sizes) == 3 * nbytes
    assert handle.workspace.size == handle.workspace.peak == held


def test_a_workspace_of_ones_own(handle: dnn.Handle) -> None:
    """The call stays inside it, and the handle allocates none."""
    for algorithm in ("standard", "persist_static", "persist_static_small_h"):
        network = Network(handle, num_layers=2)
        with network.plan(algorithm=algorithm) as plan:
            plan.describe(network.x.spec)
            workspace = handle.empty((plan.workspace + 512,), "uint8")
            fill(workspace, PATTERN)
            out = network.outputs()
            network.call(plan, out=out, workspace=workspace)
            assert (memory_of(workspace)[plan.workspace :] == PATTERN).all()
            network.assert_right(out)
            network.assert_right(network.run(algorithm=algorithm, workspace=workspace))
            exact = handle.empty((max(plan.workspace, 1),), "uint8")
            network.assert_right(network.call(plan, workspace=exact))
    assert handle.workspace.size == 0


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_a_call_stays_inside_its_operands(handle: dnn.Handle, name: str) -> None:
    """Outputs, gradients, reserve space and weight gradients each lie between two guards."""
    network = Network(handle, name, num_layers=2, bidirectional=True, lengths=LENGTHS)
    reserve = network.run(training=True).reserve
    guards: list[tuple[Any, int]] = []

    def guarded(spec: dnn.TensorSpec) -> dnn.DeviceArray:
        memory = handle.empty((spec.nbytes + 1024,), "uint8")
        fill(memory, PATTERN)
        guards.append((memory, spec.nbytes))
        return dnn.DeviceArray(spec, memory.device, memory.ptr + 512, memory, handle.stream)

    out = tuple(guarded(array.spec) for array in network.outputs())
    space = dnn.types.RNNReserve(guarded(reserve.array.spec))
    trained = network.run(training=True, out=out, reserve=space)
    network.assert_right(trained[:3])
    dx = guarded(network.x.spec)
    states = [guarded(array.spec) for array in (network.hx, network.cx) if array is not None]
    dnn.rnn_backward_data(handle, space, trained.y, out=(dx, *states))
    gradients = network.weights.view(handle)
    gradients.array = guarded(network.weights.array.spec)
    dnn.rnn_backward_weights(handle, space, out=gradients)
    handle.synchronize()
    for memory, nbytes in guards:
        content = memory_of(memory)
        assert (content[:512] == PATTERN).all()
        assert (content[512 + nbytes :] == PATTERN).all()
        assert (content[512 : 512 + nbytes] != PATTERN).any()


# ---------------------------------------------------------------- loops


@pytest.mark.parametrize("way", ["rnn_forward", "with_out", "plan"])
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_many_calls_leave_nothing(device: Any, ledger: Ledger, name: str, way: str) -> None:
    before = used(device)
    many_calls(device, ledger, name, way)
    assert ledger.counts == {}
    assert used(device) == before


def many_calls(device: Any, ledger: Ledger, name: str, way: str) -> None:
    with dnn.Handle(device) as handle:
        network = Network(handle, name, 2, 3, steps=3, batch=2)
        plan = network.plan() if way == "plan" else None
        options = {"out": network.outputs()} if way == "with_out" else {}

        def call() -> Any:
            return network.run(**options) if plan is None else network.call(plan, **options)

        call()
        out = call()
        inside, objects = used(device), ledger.counts
        for _ in range(CALLS):
            out = call()
        assert ledger.counts == objects
        assert used(device) == inside
        network.assert_right(out)


@pytest.mark.parametrize("again", [False, True], ids=["new_results", "same_results"])
def test_many_training_steps_leave_nothing(device: Any, ledger: Ledger, again: bool) -> None:
    before = used(device)
    many_training_steps(device, ledger, again)
    assert ledger.counts == {}
    assert used(device) == before


def many_training_steps(device: Any, ledger: Ledger, again: bool) -> None:
    with dnn.Handle(device) as handle:
        network = Network(handle, "tanh", 2, 3, 2, steps=3, batch=2, lengths=(3, 2), dropout=0.25)
        state = dnn.DropoutState(handle, 7)

        def step(
            out: Any = None, reserve: Any = None, data: Any = None, weights: Any = None
        ) -> tuple[Any, Any, Any, Any]:
            trained = network.run(training=True, dropout_state=state, out=out, reserve=reserve)
            data = dnn.rnn_backward_data(handle, trained.reserve, trained.y, out=data)
            weights = dnn.rnn_backward_weights(handle, trained.reserve, out=weights)
            return trained[:3], trained.reserve, data, weights

        results = step()
        results = step(*results if again else ())
        inside, objects = used(device), ledger.counts
        for _ in range(CALLS):
            results = step(*results if again else ())
        assert ledger.counts == objects
        assert used(device) == inside
        assert all(np.isfinite(value).all() for value in results[3].numpy().values())


def test_host_objects_do_not_pile_up(handle: dnn.Handle) -> None:
    """Neither in calls of one kind, nor in plans that were closed."""
    network = Network(handle, "tanh", 2, 3, steps=2, batch=1)

    def work() -> None:
        trained = network.run(training=True)
        dnn.rnn_backward_data(handle, trained.reserve, trained.y)
        dnn.rnn_backward_weights(handle, trained.reserve)
        with network.plan(algorithm="standard") as plan:
            network.call(plan)

    def count() -> int:
        gc.collect()
        return len(gc.get_objects())

    for _ in range(3):
        work()
    before = count()
    for _ in range(50):
        work()
    assert count() - before < 50


def test_lengths_that_change_make_no_plans(device: Any, ledger: Ledger) -> None:
    """What a data loader does: batches of ever other lengths and steps."""
    rng = np.random.default_rng(0)
    with dnn.Handle(device) as handle:
        network = Network(handle, "gru", 2, 3, steps=3, batch=3, lengths=(3, 2, 1))
        network.run(algorithm="standard")
        objects = ledger.counts
        for _ in range(200):
            steps = int(rng.integers(2, 12))
            lengths = (steps, *sorted(rng.integers(1, steps, 2).tolist()))
            other = network.with_sequences(lengths, steps)
            out = other.run(algorithm="standard")
        other.assert_right(out)
        assert ledger.counts == objects
        assert len(handle.plans) == 1
    assert ledger.counts == {}


def test_plans_made_and_closed(device: Any, ledger: Ledger) -> None:
    before = used(device)
    plans_made_and_closed(device, ledger)
    assert ledger.counts == {}
    assert used(device) == before


def plans_made_and_closed(device: Any, ledger: Ledger) -> None:
    with dnn.Handle(device) as handle:
        network = Network(handle, "lstm", 2, 3, steps=2, batch=1)
        for number in range(20):
            algorithm = ALGORITHMS[number % 2]
            with network.plan(algorithm=algorithm, training=number % 3 == 0) as plan:
                for _ in range(2):
                    assert ledger.counts == {"Handle": 1, "RNN": 1, "Tensor": 2, "RNNData": 2}
                    out = network.call(plan)
            assert ledger.counts == {"Handle": 1}
        network.assert_right(out[:3])
        for training in (False, True):
            network.find(training=training, algorithms=ALGORITHMS[:2])
            assert ledger.counts == {"Handle": 1}


def test_weights_and_states_made_and_dropped(device: Any, ledger: Ledger) -> None:
    """Neither holds a native object; their memory goes with them."""
    before = used(device)
    with dnn.Handle(device) as handle:
        inside = used(device)
        for _ in range(15):
            weights = dnn.RNNWeights(handle, dnn.RNNSpec("lstm", 8, 16, 2, True))
            state = dnn.DropoutState(handle, 3)
            part = weights["layer0.forward.input.i"]
            assert ledger.counts == {"Handle": 1}
        weights.close()
        weights.close()
        state.array.close()
        del part, weights
        assert used(device) == inside
    assert used(device) == before


def test_a_part_of_closed_weights_is_not_read(handle: dnn.Handle) -> None:
    """`close` frees the memory unless somebody else holds it, and a part taken before holds it."""
    network = Network(handle)
    name = "layer0.forward.input.i"
    part, expected = network.weights[name], network.values[name]
    network.weights.close()
    blockers = [handle.array(np.full(1000, np.nan, np.float32)) for _ in range(20)]
    np.testing.assert_array_equal(part.numpy(), expected)
    del blockers


def test_what_a_plan_was_called_with_is_not_kept(device: Any) -> None:
    """Operands and results go when the caller lets them go, though the plan stays."""
    with dnn.Handle(device) as handle:
        network = Network(handle, steps=200, batch=20, hidden_size=40)
        network.run()
        network.run(training=True)
        handle.workspace.release()
        gc.collect()
        del network
        base = used(device)
        network = Network(handle, steps=200, batch=20, hidden_size=40)
        out = network.run(training=True)
        dnn.rnn_backward_data(handle, out.reserve, out.y)
        assert used(device) > base
        del network, out
        handle.workspace.release()
        assert used(device) <= base


def test_a_reserve_that_is_dropped_or_closed(handle: dnn.Handle) -> None:
    """It holds the operands of its call; with it they go."""
    network = Network(handle)
    network.run(training=True)
    base = used(handle.device)
    for close in (False, True):
        out = network.run(training=True)
        reserve = out.reserve
        del out
        held = used(handle.device) - base
        assert held > reserve.nbytes  # y is needed for the backward passes
        if close:
            reserve.close()
        else:
            del reserve
        assert used(handle.device) == base
