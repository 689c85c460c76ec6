"""Replay with new addresses at each call: copies, other recordings, and cuDNN's update of graphs.

    python -m tools.benchmarks.cuda_graph_update [--rows 20] [--seconds 55] [--json OUT.json]

For convolutions of ResNet-50 (float16, NHWC, batch 8), each by the engine that heuristics prefer
among those with cuDNN's note SUPPORTS_CUDA_GRAPH_NATIVE_API, and for the eight recurrent networks of
`tools.benchmarks.rnn` in float16.  The ways, in microseconds of wall time a call, with operands
whose addresses do not come again:

- eager: the C function;
- copies: operands copied to fixed buffers, a graph over these launched, results copied back;
- record: the call recorded as a graph, which is launched and freed;
- update: `cudnnBackendUpdateCudaGraph`, `cuGraphExecUpdate`, `cuGraphLaunch`.  Recurrent networks
  are no graphs of cuDNN's backend, so there is none of them;
- replay: a plan with ``replay=True``, which takes the cheapest of the first three;
- launch: `cuGraphLaunch` alone, with the same addresses: what no way can be faster than;
- first: a plan with the engine that heuristics prefer among all, which has no such note: what an
  engine with the note competes with.

Medians of shuffled rounds.  Needs a GPU for the update.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import cudnnlite as dnn
from cudnnlite._raw.enums import BackendBehaviorNote
from cudnnlite._raw.types import cudaGraph_t
from cudnnlite.graph.engines import Engine, configurations, configure
from cudnnlite.graph.execution_plan import ExecutionPlan
from cudnnlite.graph.lowering import lower
from cudnnlite.graph.selection import HEURISTICS_OF_PLANS
from cudnnlite.operations.convolution.graphs import data_of
from cudnnlite.plans.capture import recorded
from cudnnlite.workbench.bench.lists import problems_of_list
from tools.benchmarks.rnn import NETWORKS

SETS = 64  # of operands: more than any plan keeps graphs or variant packs for
ROUNDS = 7
ROUND_US = 60_000  # of calls one way, at most: a network may take milliseconds
WAYS = ("eager", "copies", "record", "update", "replay", "launch", "first")
# "launch" writes to other addresses, "first" may round otherwise.
_COMPUTES_SOMETHING_ELSE = ("launch", "first")


def checked(result: tuple[Any, ...]) -> Any:
    """Return what a function of the driver returns; RuntimeError if it failed."""
    status, *values = result
    if int(status) != 0:
        raise RuntimeError(str(status))
    return values[0] if len(values) == 1 else values


class UpdatedGraph:
    """A CUDA graph that cuDNN writes, and into which it writes other addresses."""

    def __init__(self, handle: dnn.Handle, call: ExecutionPlan, addresses: dict[str, int]) -> None:
        from cuda.bindings import driver

        self._driver = driver
        self._api = handle.api
        self._call = call
        self._stream = int(handle.stream.handle)
        self._graph = checked(driver.cuGraphCreate(0))
        self._pointer = cudaGraph_t(int(self._graph))
        call.replace(**addresses)
        self._write("cudnnBackendPopulateCudaGraph")
        self._executable = checked(driver.cuGraphInstantiate(self._graph, 0))

    def _write(self, name: str) -> None:
        """Let cuDNN write the graph of its plan with the addresses of the last variant pack."""
        function = self._api.bound(name)
        # These arguments are marshalled already: `function(...)` would check them again.
        if status := function.call(*self._call.arguments, self._pointer):
            assert function.check is not None
            function.check(status)

    def launch(self) -> None:
        """Enqueue the graph."""
        checked(self._driver.cuGraphLaunch(self._executable, self._stream))

    def launch_with(self, addresses: dict[str, int]) -> None:
        """Enqueue the graph with other addresses."""
        self._call.replace(**addresses)
        self._write("cudnnBackendUpdateCudaGraph")
        checked(self._driver.cuGraphExecUpdate(self._executable, self._graph))
        self.launch()

    def close(self) -> None:
        """Destroy both graphs."""
        checked(self._driver.cuGraphExecDestroy(self._executable))
        checked(self._driver.cuGraphDestroy(self._graph))


@dataclass
class Subject:
    """What is computed, with operands at many addresses.

    Attributes
    ----------
    name, engine : str
        The row, and what computes it.
    inputs, outputs : list
        For each set of operands, the arrays that a call reads and writes.  The last set stays where
        it is: graphs over fixed buffers use it.
    call, replayed : callables
        (number of the set) -> None: the C function, and a plan that replays.
    updated, first : callable or None
        (number of the set) -> None: the graph, updated by cuDNN; a plan with the preferred engine.
    """

    name: str
    engine: str
    inputs: list[list[dnn.DeviceArray]]
    outputs: list[list[dnn.DeviceArray]]
    call: Callable[[int], None]
    replayed: Callable[[int], None]
    updated: Callable[[int], None] | None = None
    first: Callable[[int], None] | None = None


class Row:
    """The ways to run a subject."""

    def __init__(self, handle: dnn.Handle, subject: Subject, stack: ExitStack) -> None:
        self._handle, self._subject = handle, subject
        subject.call(SETS)  # plans and workspace are made before a graph is recorded
        self._graph = self._recorded(SETS)
        stack.callback(self._graph.close)
        self.ways: dict[str, Callable[[int], None]] = {
            "eager": subject.call,
            "copies": self._copy_and_launch,
            "record": self._record_and_launch,
            "replay": subject.replayed,
            "launch": lambda _: self._graph.launch(handle.stream),
        }
        if subject.updated is not None:
            self.ways["update"] = subject.updated
        if subject.first is not None:
            self.ways["first"] = subject.first

    def _recorded(self, number: int) -> Any:
        """Return the call with a set of operands as a graph."""
        with recorded(self._handle) as recorder:
            self._subject.call(number)
        return recorder.graph

    def _copy_and_launch(self, number: int) -> None:
        self._copy(self._subject.inputs[number], self._subject.inputs[SETS])
        self._graph.launch(self._handle.stream)
        self._copy(self._subject.outputs[SETS], self._subject.outputs[number])

    def _copy(self, sources: list[dnn.DeviceArray], targets: list[dnn.DeviceArray]) -> None:
        for source, target in zip(sources, targets, strict=True):
            nbytes = source.spec.nbytes
            self._handle.device.copy_within(target.ptr, source.ptr, nbytes, self._handle.stream)

    def _record_and_launch(self, number: int) -> None:
        graph = self._recorded(number)
        graph.launch(self._handle.stream)
        graph.close()

    def other_bits(self) -> list[str]:
        """Return the ways that compute other results than the C function."""
        results = self._subject.outputs[1]
        self.ways["eager"](1)
        expected = [result.numpy().tobytes() for result in results]
        others = []
        for way, call in self.ways.items():
            if way in _COMPUTES_SOMETHING_ELSE:
                continue
            for result in results:
                result.copy_from(np.zeros(result.shape, result.dtype))
            call(1)
            if [result.numpy().tobytes() for result in results] != expected:
                others.append(way)
        return others

    def times(self) -> dict[str, float]:
        """Return the microseconds of a call, each way: medians of shuffled rounds."""
        samples: dict[str, list[float]] = {way: [] for way in self.ways}
        first_us = self._round("eager", SETS // 4)
        calls = max(4, min(SETS, round(ROUND_US / first_us)))
        for _ in range(ROUNDS):
            for way in random.sample([*self.ways], len(self.ways)):
                samples[way].append(self._round(way, calls))
        return {way: statistics.median(values) for way, values in samples.items()}

    def _round(self, way: str, calls: int) -> float:
        """Return the microseconds of a call, each with a set of its own."""
        call = self.ways[way]
        self._handle.synchronize()
        start = time.perf_counter()
        for number in random.sample(range(SETS), calls):
            call(number)
        self._handle.synchronize()
        return (time.perf_counter() - start) / calls * 1e6


def copies(array: dnn.DeviceArray) -> list[dnn.DeviceArray]:
    """Return an array for each set, and one for the fixed buffers."""
    return [array, *(array.copy() for _ in range(SETS))]


def updatable_engine(handle: dnn.Handle, problem: Any) -> Engine | None:
    """Return the first engine whose CUDA graphs cuDNN updates; None if there is none."""
    native = BackendBehaviorNote.SUPPORTS_CUDA_GRAPH_NATIVE_API
    with ExitStack() as stack:
        graph = lower(data_of(problem), handle, stack)
        for found in configurations(graph, HEURISTICS_OF_PLANS, stack):
            if found.capturable and native in found.behavior:
                return found.engine
    return None


def convolution(
    name: str, problem: Any, engine: Engine, handle: dnn.Handle, stack: ExitStack
) -> Subject:
    """Return a convolution by an engine."""
    graph = lower(data_of(problem), handle, stack)
    call = ExecutionPlan(graph, configure(graph, engine, stack), stack)
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(problem.w.shape).astype(np.float16)
    w = handle.array(weights, layout="NHWC")
    images = rng.standard_normal(problem.x.shape).astype(np.float16)
    x = copies(handle.array(images, layout="NHWC"))
    y = [handle.empty(problem.y) for _ in range(SETS + 1)]
    workspace = handle.zeros((max(call.workspace, 1),), "uint8")
    replaying = stack.enter_context(
        dnn.convolution_forward.plan(handle, x[0], w, problem.conv, algorithm=engine, replay=True)
    )

    preferred = stack.enter_context(dnn.convolution_forward.plan(handle, x[0], w, problem.conv))

    def addresses(number: int) -> dict[str, int]:
        return {
            "workSpace": workspace.ptr if call.workspace else 0,
            "x": x[number].ptr,
            "w": w.ptr,
            "y": y[number].ptr,
        }

    def run(number: int) -> None:
        call.replace(**addresses(number))
        call()

    def replay(number: int) -> None:
        replaying(x[number], w, out=y[number])

    def call_preferred(number: int) -> None:
        preferred(x[number], w, out=y[number])

    updated = UpdatedGraph(handle, call, addresses(0))
    stack.callback(updated.close)

    def update(number: int) -> None:
        updated.launch_with(addresses(number))

    inputs, outputs = [[array] for array in x], [[array] for array in y]
    return Subject(
        name, str(engine), inputs, outputs, run, replay, updated=update, first=call_preferred
    )


def network(problem: Any, handle: dnn.Handle, stack: ExitStack) -> Subject:
    """Return a recurrent network by the algorithm that a call has without a measurement."""
    cell, steps, batch, input_size, hidden_size, layers, directions = problem
    spec = dnn.RNNSpec(cell, input_size, hidden_size, layers, directions == 2, dtype="float16")
    rng = np.random.default_rng(0)
    weights = dnn.RNNWeights(handle, spec)
    for values in weights.values():
        values.copy_from((rng.standard_normal(values.shape) / 16).astype(np.float16))
    sequences = rng.standard_normal((steps, batch, input_size)).astype(np.float16)
    x = copies(handle.array(sequences))
    plan = stack.enter_context(dnn.rnn_forward.plan(handle, spec, None, x[0]))
    choice = plan.choice
    replaying = stack.enter_context(
        dnn.rnn_forward.plan(handle, spec, None, x[0], algorithm=choice, replay=True)
    )
    outputs = [[result for result in plan(weights, array) if result is not None] for array in x]

    def run(number: int) -> None:
        plan(weights, x[number], out=outputs[number])

    def replay(number: int) -> None:
        replaying(weights, x[number], out=outputs[number])

    name = f"{cell} T{steps} N{batch} I{input_size} H{hidden_size} L{layers}"
    name += " bi" if directions == 2 else ""
    return Subject(name, str(choice.algorithm), [[array] for array in x], outputs, run, replay)


def makers(rows: int) -> Iterator[Callable[[dnn.Handle, ExitStack], Subject]]:
    """Yield functions that make the subjects: the networks, then so many convolutions."""
    for problem in NETWORKS:
        yield partial(network, problem)
    with dnn.Handle() as handle:
        found = []
        for item in problems_of_list("resnet50", 8, "float16", "NHWC"):
            engine = updatable_engine(handle, item.problem)
            if engine is None:
                print(f"{item.names[0]}: no engine has the note")
            else:
                found.append((item.names[0], item.problem, engine))
    for entry in found[:rows]:
        yield partial(convolution, *entry)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20, help="how many convolutions")
    parser.add_argument("--seconds", type=float, default=55.0, help="no row begins after those")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    start = time.perf_counter()
    rows: list[dict[str, Any]] = []
    print(f"{'':32}{''.join(f'{way:>9}' for way in WAYS)}  engine, other bits")
    for make in makers(arguments.rows):
        if time.perf_counter() - start > arguments.seconds:
            print("further rows are left out for want of time")
            break
        with dnn.Handle() as handle, ExitStack() as stack:
            try:
                subject = make(handle, stack)
                row = Row(handle, subject, stack)
                others = row.other_bits()
                times = row.times()
            except (dnn.CudnnliteError, RuntimeError) as error:
                print(str(error).splitlines()[0][:140])
                continue
        entry = {"row": subject.name, "engine": subject.engine, "other bits": others, "us": times}
        rows.append(entry)
        cells = "".join(f"{times[way]:9.1f}" if way in times else f"{'':9}" for way in WAYS)
        print(f"{subject.name:32}{cells}  {subject.engine} {' '.join(others)}", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    report(rows)


def report(rows: list[dict[str, Any]]) -> None:
    """Print the geometric means of the ways over each other."""
    for kind, has_update in (("convolutions", True), ("networks", False)):
        group = [row["us"] for row in rows if ("update" in row["us"]) == has_update]
        for way in ("update", "replay") if group else ():
            for other in ("eager", "copies", "record", "replay", "launch", "first"):
                if other == way or not {way, other} <= group[0].keys():
                    continue
                mean = statistics.geometric_mean([times[way] / times[other] for times in group])
                print(f"{len(group)} {kind}, {way} over {other}: geometric mean {mean:.3f}")


if __name__ == "__main__":
    main()
