"""Replay with new addresses at each call: what `replay=True` does, and cuDNN's update of CUDA graphs.

    python -m tools.benchmarks.cuda_graph_update [--rows 20] [--json OUT.json]

For convolutions of ResNet-50 (float16, NHWC, batch 8), each by the engine that heuristics prefer
among those with cuDNN's note SUPPORTS_CUDA_GRAPH_NATIVE_API.  The ways, in microseconds of wall time
a call, with operands whose addresses do not come again:

- eager: `cudnnBackendExecute`;
- replay: a plan with ``replay=True``, as it is today (copies, or another capture);
- update: `cudnnBackendUpdateCudaGraph`, `cuGraphExecUpdate`, `cuGraphLaunch`;
- launch: `cuGraphLaunch` alone, with the same addresses: what no way can be faster than.

Medians of shuffled rounds.  Needs a GPU.  Recurrent networks are not graphs of cuDNN's: these
functions do not take them.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import cudnnlite as dnn
from cudnnlite._raw.enums import BackendBehaviorNote
from cudnnlite._raw.types import cudaGraph_t
from cudnnlite.bench.lists import problems_of_list
from cudnnlite.graph.engines import configurations, configure
from cudnnlite.graph.execution_plan import ExecutionPlan
from cudnnlite.graph.lowering import lower
from cudnnlite.operations.convolution.graphs import data_of
from cudnnlite.plans.graph_plan import HEURISTICS_OF_GRAPHS

SETS = 64  # of operands: more than any plan keeps graphs or variant packs for
ROUNDS = 7


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


class Row:
    """A convolution with operands at many addresses, and the ways to run it."""

    def __init__(self, handle: dnn.Handle, problem: Any, stack: ExitStack) -> None:
        self._handle = handle
        graph = lower(data_of(problem), handle, stack)
        named = configurations(graph, HEURISTICS_OF_GRAPHS, stack)
        native = BackendBehaviorNote.SUPPORTS_CUDA_GRAPH_NATIVE_API
        self.engine = next(
            (found.engine for found in named if found.capturable and native in found.behavior),
            None,
        )
        if self.engine is None:
            return
        self._call = ExecutionPlan(graph, configure(graph, self.engine, stack), stack)
        rng = np.random.default_rng(0)
        w = rng.standard_normal(problem.w.shape).astype(np.float16)
        self._w = handle.array(w, layout="NHWC")
        images = rng.standard_normal(problem.x.shape).astype(np.float16)
        self._x = [handle.array(images, layout="NHWC") for _ in range(SETS)]
        self._y = [handle.empty(problem.y) for _ in range(SETS)]
        self._workspace = handle.zeros((max(self._call.workspace, 1),), "uint8")
        self._plan = stack.enter_context(
            dnn.convolution_forward.plan(
                handle, self._x[0], self._w, problem.conv, algorithm=self.engine, replay=True
            )
        )
        self._updated = UpdatedGraph(handle, self._call, self._addresses(0))
        stack.callback(self._updated.close)

    def _addresses(self, number: int) -> dict[str, int]:
        return {
            "workSpace": self._workspace.ptr if self._call.workspace else 0,
            "x": self._x[number].ptr,
            "w": self._w.ptr,
            "y": self._y[number].ptr,
        }

    def eager(self, number: int) -> None:
        """Call cuDNN."""
        self._call.replace(**self._addresses(number))
        self._call()

    def replay(self, number: int) -> None:
        """Call a plan that replays."""
        self._plan(self._x[number], self._w, out=self._y[number])

    def update(self, number: int) -> None:
        """Update the graph and launch it."""
        self._updated.launch_with(self._addresses(number))

    def launch(self, number: int) -> None:
        """Launch the graph as it is."""
        self._updated.launch()

    def same_bits(self) -> bool:
        """Return whether an updated graph computes what the call does."""
        self.eager(1)
        expected = self._y[1].numpy().tobytes()
        self._y[1].copy_from(np.zeros(self._y[1].shape, np.float16))
        self.update(1)
        return self._y[1].numpy().tobytes() == expected


WAYS = ("eager", "replay", "update", "launch")


def times_of(row: Row, handle: dnn.Handle) -> dict[str, float]:
    """Return the microseconds of a call, each way: medians of shuffled rounds."""
    samples: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way in random.sample(WAYS, len(WAYS)):
            call = getattr(row, way)
            handle.synchronize()
            start = time.perf_counter()
            for number in range(SETS):
                call(number)
            handle.synchronize()
            samples[way].append((time.perf_counter() - start) / SETS * 1e6)
    return {way: statistics.median(values) for way, values in samples.items()}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    listed = list(problems_of_list("resnet50", 8, "float16", "NHWC"))[: arguments.rows]
    print(f"{'':14}{'eager':>9}{'replay':>9}{'update':>9}{'launch':>9}  engine")
    for item in listed:
        with dnn.Handle() as handle, ExitStack() as stack:
            row = Row(handle, item.problem, stack)
            if row.engine is None:
                print(f"{item.names[0]:14} no engine has the note")
                continue
            try:
                same = row.same_bits()
                times = times_of(row, handle)
            except (dnn.CudnnError, RuntimeError) as error:
                print(f"{item.names[0]:14} {str(error).splitlines()[0][:90]}")
                continue
            rows.append({"row": item.names[0], "engine": str(row.engine), "same": same, **times})
            columns = "".join(f"{times[way]:9.1f}" for way in WAYS)
            print(f"{item.names[0]:14}{columns}  {row.engine}{'' if same else '  OTHER BITS'}")
    if rows:
        for other in ("eager", "replay"):
            ratios = [row["update"] / row[other] for row in rows]
            print(f"update over {other}: geometric mean {statistics.geometric_mean(ratios):.3f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
