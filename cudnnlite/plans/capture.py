"""`capture`: operations recorded once as a CUDA graph, and launched many times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from cudnnlite._raw.types import cudaStream_t
from cudnnlite.devices import arrays, observer
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.device import Device, StreamRecorder, refuse_in_capture
from cudnnlite.devices.handle import Handle
from cudnnlite.plans.operands import use
from cudnnlite.plans.plan import Plan
from cudnnlite.problems import call_watch
from cudnnlite.texts import counted


class CapturedGraph(Plan):
    """The calls that `capture` recorded; `launch()` enqueues all of them on the recorded addresses.

    Until it is closed, by itself or with its handle, it keeps the memory of the operands, the plans
    and the workspace, even if their owners close them.

    Attributes
    ----------
    calls : int
        How many calls were recorded.
    """

    _instead_of_copy = "it belongs to a handle: capture the calls again"

    def __init__(self, handle: Handle) -> None:
        use(handle)
        super().__init__(handle, f"CapturedGraph on {handle.device}")
        self._stream = handle.stream
        self._graph: Any = None
        self._memory: list[Any] = [handle.workspace.keep(self._stream)]
        self._plans: set[Plan] = set()
        self._resources.callback(self._memory.clear)
        self.calls = 0

    def keep(self, plan: Plan, operands: Iterable[Any]) -> None:
        """Keep a plan, and the memory of its operands, until this graph is closed."""
        self.keep_memory(operands)
        if plan not in self._plans:
            self._plans.add(plan)
            plan._hold()
            self._resources.callback(plan._release)
        self.calls += 1

    def keep_memory(self, operands: Iterable[Any]) -> None:
        """Keep the memory of arrays until this graph is closed."""
        for operand in operands:
            if isinstance(operand, DeviceArray):
                # Another array in the same memory: the owner of this one may close it.
                self._memory.append(arrays.part_of(operand, operand.spec))
            else:
                self._memory.append(operand)

    def take_over(self, graph: Any) -> None:
        """Take the graph that a device recorded."""
        if self._closed:  # by the user, in the block
            graph.close()
        else:
            self._resources.callback(graph.close)
            self._graph = graph

    def launch(self) -> None:
        """Enqueue all recorded calls, on the stream that they were recorded on, asynchronously.

        It reads and writes the memory of the recorded calls: copy new inputs there.

        Raises
        ------
        ClosedError, ThreadError
            It or its handle was closed; the thread is not the handle's.
        CaptureError
            Inside a capture.
        """
        if self._closed or get_ident() != self._thread:
            self._use()
        if self._graph is None or call_watch.active:
            refuse_launch(self._device, self._stream)
        try:
            if observer.current is observer.NOBODY:  # saves 0.4 of 3.2 us
                self._graph.launch(self._stream)
                return
            with observer.current.launching(self._device, self._graph, self._stream):
                self._graph.launch(self._stream)
        except Exception:
            refuse_launch(self._device, self._stream)  # another library's capture
            raise

    def __repr__(self) -> str:
        state = ""
        if self._closed:
            state = "closed "
        elif self._graph is None:
            state = "recording "
        return f"<{state}{self._description}: {counted(self.calls, 'call')}>"


def refuse_launch(device: Device, stream: object) -> None:
    """Raise CaptureError if a graph is being recorded on `stream`."""
    refuse_in_capture(device, stream, "no graph can be launched", "launch it after the capture")


def refuse_search(handle: Handle) -> None:
    """Raise CaptureError if a graph is being recorded on the handle's stream."""
    refuse_in_capture(
        handle.device,
        handle.stream,
        "a search waits, and cannot be made",
        "search before the capture",
    )


@contextmanager
def capture(handle: Handle) -> Iterator[CapturedGraph]:
    """Record the operations on a handle as a CUDA graph in the block, instead of running them.

    The graph then does with one launch what the calls did one by one, in the same memory.  Nothing
    is computed in the block.

    A call that would search, allocate or wait in the block is refused.  Make each call once before,
    so that its plan and its workspace exist, and give it `out`, and `reserve` if the call returns
    one (in the training of an RNN, in dropout).

    Parameters
    ----------
    handle : Handle
        The handle whose calls are recorded, whichever stream it is on.  Work of other libraries on
        that stream runs at once.  In the block, do not use another handle on that stream on this
        thread, nor this handle on another thread, and do not close it.

    Yields
    ------
    CapturedGraph
        The graph.  Launch it after the block, any number of times, and close it; closing the handle
        closes it too.

    Raises
    ------
    CaptureError
        The stream is being recorded already.  Inside the block: a call cannot be recorded.  At its
        end: CUDA gave the recording up, because another library waited for the whole device.
    ClosedError, ThreadError
        As every operation.

    Notes
    -----
    C function: `cudnnSetStream`, which puts the handle on a stream that is recorded, and back.

    An exception in the block ends the recording; the graph is closed then, and handle and stream
    are as they were.

    A plan with ``replay=True`` records its calls here as any other does.  Under `torch.cuda.graph`,
    with the handle on PyTorch's stream, operations are recorded as PyTorch's are, and refused
    likewise; there PyTorch owns the graph, and the program has to keep operands, plans and the
    handle's workspace.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.ones((1, 3, 8, 8), np.float32))
    ...     w = handle.array(np.ones((4, 3, 3, 3), np.float32))
    ...     y = dnn.convolution_forward(handle, x, w)  # makes plan and workspace
    ...     with dnn.capture(handle) as graph:
    ...         y = dnn.convolution_forward(handle, x, w, out=y)
    ...         y = dnn.activation_forward(handle, y, "relu", out=y)
    ...     for _ in range(3):
    ...         graph.launch()
    ...     print(graph.calls, y.numpy().max())
    2 27.0
    """
    use(handle)
    graph = CapturedGraph(handle)
    try:
        # Calls have to report themselves, so that `_keep_for_graph` runs.
        with recorded(handle) as recorder, call_watch.watching(lambda problem: None):
            handle._graph = graph
            try:
                yield graph
            finally:
                handle._graph = None
    except BaseException:
        graph.close()
        raise
    graph.take_over(recorder.graph)


@contextmanager
def recorded(handle: Handle) -> Iterator[StreamRecorder]:
    """Record what is enqueued on a handle's stream in the block; then the recorder has the graph.

    Raises
    ------
    CaptureError
        The stream is being recorded already.  At the end: CUDA gave the recording up.
    """
    stream, thread = handle.stream, get_ident()
    refuse_in_capture(handle.device, stream, "no other can be", "end that capture first")
    recorder = handle.device.recorder()
    stand_ins, key = handle.device.stand_ins, (thread, int(stream.handle))
    try:
        _set_stream(handle, recorder.stream)
        with recorder:
            stand_ins[key], handle._recorded_by = recorder.stream, thread
            try:
                with observer.current.capturing(handle.device, recorder):
                    yield recorder
            finally:
                del stand_ins[key]
                handle._recorded_by = 0
    finally:
        try:
            _set_stream(handle, stream)
        except BaseException:
            # An exception of a signal handler.  The handle must not stay on the recorder's stream,
            # which is closed.
            _set_stream(handle, stream)
            raise
    observer.current.graph_captured(handle.device, recorder)


def _set_stream(handle: Handle, stream: Any) -> None:
    handle.api.cudnnSetStream(handle.ptr, cudaStream_t(int(stream.handle)))
