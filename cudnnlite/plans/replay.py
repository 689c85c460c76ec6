"""`ReplayedCall`: a prepared call that is recorded as a CUDA graph, and launched from then on."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite.arguments import one_of
from cudnnlite.devices import observer
from cudnnlite.devices.device import Device
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import CaptureError, CudnnError, DeviceMemoryError
from cudnnlite.plans.capture import recorded, refuse_launch

# The most graphs of a plan over operands' own addresses.  The oldest is closed first.
MOST_GRAPHS = 8
# The most graphs of a plan over its own buffers: one for each address of the weights.
_MOST_STAGED_GRAPHS = 2
# The most sets of addresses whose losses are remembered.
_MOST_LOSSES = 64
# Times within this ratio of each other are taken as equal.
_TIE_RATIO = 1.05
_ROUNDS = 3
# A sample makes about as many calls as this time takes, and far fewer than the launch queue holds:
# if that is full, a call waits for the device.
_SAMPLE_MS = 4.0
_MOST_CALLS = 20


class Operand(NamedTuple):
    """An operand that can be staged: its size, and whether a call reads it and writes it."""

    nbytes: int
    read: bool
    written: bool


class ReplayCosts(NamedTuple):
    """The costs of the ways to make a call, in microseconds of wall time.

    Attributes
    ----------
    eager_us : float
        A call of the C function itself.
    staged_us : float
        A staged call: copies of the operands to the plan's buffers, the launch of a graph over
        these, and copies of the results back.
    launched_us : float
        The launch of a graph over the operands' own addresses.
    recorded_us : float
        The recording of such a graph, once.
    """

    eager_us: float
    staged_us: float
    launched_us: float
    recorded_us: float


# The costs where times mean nothing: a call with new addresses is staged, and recorded when they
# come for the second time.
_NOT_MEASURED = ReplayCosts(3.0, 2.0, 1.0, 2.0)


class Replay(NamedTuple):
    """The calls of a plan with ``replay=True`` so far: `plan.replay`.

    Attributes
    ----------
    launched, staged, eager : int
        How many calls launched a graph over the operands themselves, launched one over the plan's
        buffers with copies, and called the C function.
    graphs : int
        How many graphs the plan has.
    costs : ReplayCosts or None
        The costs, measured when other addresses than the first came; None before, and on the
        emulated device.
    why_not : str
        Why no call is recorded; empty if calls are recorded.
    """

    launched: int = 0
    staged: int = 0
    eager: int = 0
    graphs: int = 0
    costs: ReplayCosts | None = None
    why_not: str = ""


class ReplayedCall(NonCopyable):
    """A call that is launched as a graph; a plan calls it like a `PreparedCall`.

    The first call is eager: it calls the C function.  Then it is recorded for its addresses.  Calls
    with other addresses are eager or staged: whichever is cheaper, measured once on buffers of this
    object.  Each of them loses time against a launch.  When the calls with the same addresses have
    lost the time of a recording, these addresses are recorded too.

    Parameters
    ----------
    handle : Handle
        The handle of the calls.
    prepared : PreparedCall
        The call.
    operands : mapping of str to Operand
        The operands that can be staged, by the header's names; empty if none can.  The other
        addresses seldom change.
    waits : bool
        Whether the first addresses too must come twice before they are recorded.
    """

    _instead_of_copy = "it belongs to a plan"
    check = None  # `function` raises errors itself
    arguments: tuple[()] = ()

    def __init__(
        self, handle: Handle, prepared: Any, operands: Mapping[str, Operand], *, waits: bool = False
    ) -> None:
        self._handle, self._device = handle, handle.device
        self._prepared, self._operands = prepared, operands
        self._resources = ExitStack()
        self._addresses: dict[str, int] = {}
        self._key: tuple[int, ...] = ()
        self._prepared_addresses: Mapping[str, int] | None = None
        self._graph: Any = None
        self._graphs: dict[tuple[int, ...], Any] = {}
        self._over_buffers: dict[tuple[int, ...], Any] = {}
        self._buffers: dict[str, int] = {}
        self._last_stream: Any = None
        # The part of the cost of a recording that calls have lost so far, by their addresses.
        self._losses: dict[tuple[int, ...], float] = {}
        self._waits = waits
        self._recorded_us = 0.0
        self._costs = _NOT_MEASURED
        self._measured: ReplayCosts | None = None
        self._staging_pays = True  # whether staged calls are cheaper than eager ones
        self._why_not = ""
        self._launched = self._staged = self._eager = 0

    @property
    def state(self) -> Replay:
        """The calls and graphs so far."""
        graphs = len(self._graphs) + len(self._over_buffers)
        return Replay(
            self._launched, self._staged, self._eager, graphs, self._measured, self._why_not
        )

    def replace(self, **addresses: int) -> None:
        """Change the addresses."""
        self._addresses, self._key = addresses, tuple(addresses.values())
        self._graph = self._graphs.get(self._key)
        if self._graph is None:
            self._set_addresses(addresses)  # It refuses an address that is not aligned.

    def function(self) -> None:
        """Make the call on the handle's stream: launch a graph, or call with new addresses."""
        if observer.current.needs_each_call:
            self._call_eagerly(self._addresses)
            return
        stream, device = self._handle.stream, self._device
        # Asking CUDA takes as long as the launch.
        may_be_captured = stream is not device.unrecordable or device.stand_ins
        if may_be_captured and device.is_capturing(stream):
            # A graph cannot be launched into another one.
            self._call_eagerly(self._addresses)
        elif self._graph is not None:
            try:
                self._graph.launch(stream)
            except Exception:
                # Another library records a stream that this one would wait for.
                refuse_launch(device, stream)
                raise
            self._launched += 1
        else:
            self._call_with_new_addresses(stream)

    __call__ = function

    def close(self) -> None:
        """Give back graphs and buffers; harmless when called again."""
        for graph in self._graphs.values():
            graph.close()
        self._graphs.clear()
        self._graph = None
        self._give_buffers_back()

    def _give_buffers_back(self) -> None:
        for graph in self._over_buffers.values():
            graph.close()
        self._over_buffers.clear()
        self._resources.close()

    def _call_eagerly(self, addresses: Mapping[str, int]) -> None:
        if addresses is not self._prepared_addresses:
            self._set_addresses(addresses)
        prepared = self._prepared
        if status := prepared.function(*prepared.arguments):
            prepared.check(status)

    def _set_addresses(self, addresses: Mapping[str, int]) -> None:
        # After an interrupt in `replace`, the addresses are unknown.
        self._prepared_addresses = None
        self._prepared.replace(**addresses)
        self._prepared_addresses = addresses

    def _call_with_new_addresses(self, stream: object) -> None:
        if not self._graphs or self._why_not:
            self._call_eagerly(self._addresses)
            self._eager += 1
            if not (self._waits or self._why_not):
                self._graph = self._record_graph(
                    self._graphs, self._key, self._addresses, MOST_GRAPHS
                )
            self._waits = False
            return
        graph = self._graph_over_buffers(stream)
        costs = self._costs
        loss = 0.5  # without a measurement, addresses that come twice are recorded
        if graph is not None:
            self._call_staged(stream, graph, self._addresses)
            self._staged += 1
            loss = (costs.staged_us - costs.launched_us) / costs.recorded_us
        else:
            self._call_eagerly(self._addresses)
            self._eager += 1
            if self._measured is not None:
                loss = (costs.eager_us - costs.launched_us) / costs.recorded_us
        if self._pays_to_record(self._key, loss):
            self._graph = self._record_graph(self._graphs, self._key, self._addresses, MOST_GRAPHS)

    def _pays_to_record(self, key: tuple[int, ...], loss: float) -> bool:
        """Add a call's loss to those before; return whether they reach the cost of a recording.

        `loss` is a fraction of that cost.
        """
        total_loss = self._losses.pop(key, 0.0) + loss
        if total_loss >= 1:
            return True
        self._losses[key] = total_loss
        if len(self._losses) > _MOST_LOSSES:
            del self._losses[next(iter(self._losses))]
        return False

    def _record_graph(
        self,
        graphs: dict[tuple[int, ...], Any],
        key: tuple[int, ...],
        addresses: Mapping[str, int],
        most_graphs: int,
    ) -> Any:
        """Record the call with these addresses in `graphs`; return the graph, None if refused."""
        start = time.perf_counter()
        try:
            with recorded(self._handle) as recorder:
                self._call_eagerly(addresses)
        except (CudnnError, CaptureError) as error:
            self._why_not = str(error)
            return None
        if len(graphs) >= most_graphs:
            graphs.pop(next(iter(graphs))).close()
        graphs[key] = recorder.graph
        self._recorded_us = self._recorded_us or (time.perf_counter() - start) * 1e6
        return recorder.graph

    def _graph_over_buffers(self, stream: object) -> Any:
        """Return the graph over the plan's buffers and the other addresses; None if not staged."""
        costs = self._costs
        key = tuple(
            bool(value) if name in self._operands else value
            for name, value in self._addresses.items()
        )
        if key in self._over_buffers or not self._operands:
            return self._over_buffers.get(key)
        if not self._buffers:
            try:
                for name, operand in self._operands.items():
                    self._buffers[name] = self._allocate(operand.nbytes, stream, self._resources)
            except DeviceMemoryError:
                self._give_buffers_back()
                self._operands = {}
                return None
        elif not self._pays_to_record(key, (costs.eager_us - costs.staged_us) / costs.recorded_us):
            return None
        on_buffers = self._addresses | {
            name: self._buffers[name] for name in self._operands if self._addresses[name]
        }
        graph = self._record_graph(self._over_buffers, key, on_buffers, _MOST_STAGED_GRAPHS)
        if graph is not None and self._measured is None and self._device.has_real_timing:
            self._measure(stream, graph, on_buffers)
        if self._staging_pays:
            return graph
        self._give_buffers_back()
        self._operands = {}
        return None

    def _allocate(self, nbytes: int, stream: object, stack: ExitStack) -> int:
        buffer = self._device.allocate(nbytes, stream)
        stack.callback(lambda: buffer.close(self._last_stream))  # after its last call
        return int(buffer.handle)

    def _call_staged(self, stream: Any, graph: Any, addresses: Mapping[str, int]) -> None:
        if self._last_stream is not None and self._last_stream is not stream:
            stream.wait(self._last_stream)  # The last stream may still use the buffers.
        self._last_stream = stream
        copies = [
            (operand, addresses[name], self._buffers[name])
            for name, operand in self._operands.items()
            if addresses[name]
        ]
        for operand, address, buffer in copies:
            if operand.read:
                self._device.copy_within(buffer, address, operand.nbytes, stream)
        graph.launch(stream)
        for operand, address, buffer in copies:
            if operand.written:
                self._device.copy_within(address, buffer, operand.nbytes, stream)

    def _measure(self, stream: Any, graph: Any, over_buffers: dict[str, int]) -> None:
        """Measure the ways to make a call, on buffers of the plan, and wait for the stream."""
        with ExitStack() as stack:
            try:
                other_buffer = self._allocate(
                    max(operand.nbytes for operand in self._operands.values()), stream, stack
                )
            except DeviceMemoryError:  # a later call measures them
                return
            other_addresses = {name: other_buffer for name in self._operands if over_buffers[name]}
            ways: list[Callable[[], object]] = [
                lambda: self._call_eagerly(over_buffers),
                lambda: self._call_staged(stream, graph, over_buffers | other_addresses),
                lambda: graph.launch(stream),
            ]
            eager, staged, launched = _times_of_calls(self._device, stream, ways)
        # If both take nearly the same time, the host's time decides: the plan's checks add to it.
        if _TIE_RATIO * staged.call_us >= eager.call_us:
            is_tied = staged.call_us < _TIE_RATIO * eager.call_us
            self._staging_pays = is_tied and staged.host_us < eager.host_us
        self._costs = self._measured = ReplayCosts(
            eager.call_us, staged.call_us, launched.call_us, self._recorded_us
        )


class _CallTime(NamedTuple):
    """The wall time of a call in microseconds.

    `call_us` is the time from one call to the next, until the device's work is done; `host_us` is
    the time until a call returns.
    """

    call_us: float
    host_us: float


def _times_of_calls(
    device: Device, stream: Any, ways: Sequence[Callable[[], object]]
) -> list[_CallTime]:
    """Return the median times of ways to make a call, taken in shuffled rounds."""
    counts = []
    for way in ways:
        first_ms = max(device.elapsed_ms(way, stream), _SAMPLE_MS / _MOST_CALLS)
        counts.append(max(1, round(_SAMPLE_MS / first_ms)))
    samples: list[list[_CallTime]] = [[] for _ in ways]
    order, generator = list(range(len(ways))), random.Random(0)
    for _ in range(_ROUNDS):
        generator.shuffle(order)
        for index in order:
            samples[index].append(_sample(device, stream, ways[index], counts[index]))
    return [_CallTime(*map(statistics.median, zip(*times, strict=True))) for times in samples]


def _sample(device: Device, stream: Any, way: Callable[[], object], count: int) -> _CallTime:
    """Return the mean time of calls in a row."""
    device.wait(stream)
    start = time.perf_counter()
    for _ in range(count):
        way()
    returned = time.perf_counter()
    device.wait(stream)
    end = time.perf_counter()
    return _CallTime((end - start) / count * 1e6, (returned - start) / count * 1e6)


def parse_replay(replay: object) -> bool:
    """Return whether a plan should replay; ArgumentError unless that is True or False."""
    chosen: bool = one_of(replay, "replay", True, False)
    return chosen
