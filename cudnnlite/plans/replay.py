"""`ReplayedCall`: a prepared call that is recorded as a CUDA graph, and launched from then on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite.arguments import one_of
from cudnnlite.devices import observer
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import CaptureError, CudnnError, DeviceMemoryError
from cudnnlite.plans.capture import recorded, refuse_launch
from cudnnlite.search.timing import Stopwatch

MOST_GRAPHS = 8  # by addresses; the oldest is closed where there are more
_MOST_SEEN = 64  # sets of addresses of which it is known how often they came
_STAGING = 2  # graphs over the plan's own buffers, one for each weights


class Operand(NamedTuple):
    """Of an operand that can be staged: how large it is, and which way it is copied."""

    nbytes: int
    read: bool
    written: bool


class ReplayCosts(NamedTuple):
    """What the ways to make a call cost, in microseconds of wall time.

    Attributes
    ----------
    eager_us : float
        The C function itself.
    staged_us : float
        Operands copied to the plan's buffers, the graph over these launched, results copied back.
    launched_us : float
        A graph over the operands' own addresses launched.
    recorded_us : float
        To record such a graph, once.
    """

    eager_us: float
    staged_us: float
    launched_us: float
    recorded_us: float


# where times mean nothing: staged at first, recorded when the same addresses come for the second
# time
_NOT_MEASURED = ReplayCosts(3.0, 2.0, 1.0, 2.0)


class Replay(NamedTuple):
    """What a plan with ``replay=True`` did so far: `plan.replay`.

    Attributes
    ----------
    launched, staged, eager : int
        How many calls were made each way: a graph over the operands themselves; one over the plan's
        buffers, with copies; the C function.
    graphs : int
        How many graphs are kept.
    costs : ReplayCosts or None
        What was measured when other addresses than the first came; None before, and on the emulated
        device.
    why_not : str
        Why nothing is recorded; empty if it is.
    """

    launched: int = 0
    staged: int = 0
    eager: int = 0
    graphs: int = 0
    costs: ReplayCosts | None = None
    why_not: str = ""


class ReplayedCall(NonCopyable):
    """A call that is launched as a graph; a plan makes it as it makes a `PreparedCall`.

    The first call is made as it is, and then recorded for its addresses.  With other addresses it
    is made in the way that is cheapest for addresses that never come again (measured once, on
    buffers of its own: as it is, or staged), until what that cost more than a launch would have
    paid for recording them too.

    `operands` is what can be staged, by the header's names, if anything; other addresses belong to
    what seldom changes. `waits`: already the first addresses have to come twice before they are
    recorded.
    """

    _instead_of_copy = "it belongs to a plan"
    check = None  # what is called does that
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
        # By addresses: which part of the cost of a recording calls with them have lost so far.
        self._worth: dict[tuple[int, ...], float] = {}
        self._waits = waits
        self._recorded_us = 0.0
        self._costs = _NOT_MEASURED
        self._measured: ReplayCosts | None = None
        self._stages = True  # whether that was found to be cheaper
        self._why_not = ""
        self._launched = self._staged = self._eager = 0

    @property
    def state(self) -> Replay:
        """What was done so far."""
        graphs = len(self._graphs) + len(self._over_buffers)
        return Replay(
            self._launched, self._staged, self._eager, graphs, self._measured, self._why_not
        )

    def replace(self, **addresses: int) -> None:
        """Change the addresses."""
        self._addresses, self._key = addresses, tuple(addresses.values())
        self._graph = self._graphs.get(self._key)
        if self._graph is None:
            self._set_addresses(addresses)  # An address that is not aligned is refused here.

    def function(self) -> None:
        """Make the call on the handle's stream, in one way or another."""
        if observer.current.needs_each_call:
            self._call_as_it_is(self._addresses)
            return
        stream, device = self._handle.stream, self._device
        # Asking CUDA takes as long as the launch.
        may_be_captured = stream is not device.unrecordable or device.stand_ins
        if may_be_captured and device.is_capturing(stream):
            # No graph can be launched into another.
            self._call_as_it_is(self._addresses)
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

    def _call_as_it_is(self, addresses: Mapping[str, int]) -> None:
        if addresses is not self._prepared_addresses:
            self._set_addresses(addresses)
        prepared = self._prepared
        if status := prepared.function(*prepared.arguments):
            prepared.check(status)

    def _set_addresses(self, addresses: Mapping[str, int]) -> None:
        # An interrupt in `replace` must not leave addresses that nobody knows of.
        self._prepared_addresses = None
        self._prepared.replace(**addresses)
        self._prepared_addresses = addresses

    def _call_with_new_addresses(self, stream: object) -> None:
        if not self._graphs or self._why_not:
            self._call_as_it_is(self._addresses)
            self._eager += 1
            if not (self._waits or self._why_not):
                self._graph = self._record_graph(
                    self._graphs, self._key, self._addresses, MOST_GRAPHS
                )
            self._waits = False
            return
        graph = self._graph_over_buffers(stream)
        costs, lost = self._costs, 0.5  # without a measurement, what comes twice is recorded
        if graph is not None:
            self._call_staged(stream, graph, self._addresses)
            self._staged += 1
            lost = (costs.staged_us - costs.launched_us) / costs.recorded_us
        else:
            self._call_as_it_is(self._addresses)
            self._eager += 1
            if self._measured is not None:
                lost = (costs.eager_us - costs.launched_us) / costs.recorded_us
        if self._is_worth(self._key, lost):
            self._graph = self._record_graph(self._graphs, self._key, self._addresses, MOST_GRAPHS)

    def _is_worth(self, key: tuple[int, ...], lost: float) -> bool:
        """Add the part of a recording's cost that a call lost; tell whether all is lost now."""
        lost += self._worth.pop(key, 0.0)
        if lost < 1:
            self._worth[key] = lost
            if len(self._worth) > _MOST_SEEN:
                del self._worth[next(iter(self._worth))]
        return lost >= 1

    def _record_graph(
        self,
        graphs: dict[tuple[int, ...], Any],
        key: tuple[int, ...],
        addresses: Mapping[str, int],
        most: int,
    ) -> Any:
        """Record the call with these addresses and keep the graph; None where that is refused."""
        start = time.perf_counter()
        try:
            with recorded(self._handle) as recorder:
                self._call_as_it_is(addresses)
        except (CudnnError, CaptureError) as error:
            self._why_not = str(error)
            return None
        if len(graphs) >= most:
            graphs.pop(next(iter(graphs))).close()
        graphs[key] = recorder.graph
        self._recorded_us = self._recorded_us or (time.perf_counter() - start) * 1e6
        return recorder.graph

    def _graph_over_buffers(self, stream: object) -> Any:
        """Return the graph over the plan's buffers and what is not staged; None if none is."""
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
        elif not self._is_worth(key, (costs.eager_us - costs.staged_us) / costs.recorded_us):
            return None
        on_buffers = self._addresses | {
            name: self._buffers[name] for name in self._operands if self._addresses[name]
        }
        graph = self._record_graph(self._over_buffers, key, on_buffers, _STAGING)
        if graph is not None and self._measured is None and self._device.has_real_timing:
            self._measure(stream, graph, on_buffers)
        if self._stages:
            return graph
        self._give_buffers_back()
        self._operands = {}
        return None

    def _allocate(self, nbytes: int, stream: object, stack: ExitStack) -> int:
        buffer = self._device.allocate(nbytes, stream)
        stack.callback(lambda: buffer.close(self._last_stream))  # behind the call that used it last
        return int(buffer.handle)

    def _call_staged(self, stream: Any, graph: Any, addresses: Mapping[str, int]) -> None:
        if self._last_stream is not None and self._last_stream is not stream:
            stream.wait(self._last_stream)  # It may still be at work on the buffers.
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
        """Measure the ways to make a call, on buffers of the plan; waits for the stream."""
        with ExitStack() as stack:
            try:
                elsewhere = self._allocate(
                    max(operand.nbytes for operand in self._operands.values()), stream, stack
                )
            except DeviceMemoryError:  # another time
                return
            others = {name: elsewhere for name in self._operands if over_buffers[name]}
            ways: list[Callable[[], object]] = [
                lambda: self._call_as_it_is(over_buffers),
                lambda: self._call_staged(stream, graph, over_buffers | others),
                lambda: graph.launch(stream),
            ]
            stopwatch = Stopwatch(self._device, stream, self._handle.timing)
            calls = stopwatch.calls(ways, [stopwatch.first(way) for way in ways])
        eager, staged, launched = calls
        # what lies close together is decided by the host's time, to which the plan's own checks are
        # added
        near = self._handle.timing.close
        if near * staged.call_us >= eager.call_us:
            self._stages = staged.call_us < near * eager.call_us and staged.host_us < eager.host_us
        us = (eager.call_us, staged.call_us, launched.call_us, self._recorded_us)
        self._costs = self._measured = ReplayCosts(*us)


def parse_replay(replay: object) -> bool:
    """Return whether a plan should replay; ArgumentError if that is not what is said."""
    chosen: bool = one_of(replay, "replay", True, False)
    return chosen
