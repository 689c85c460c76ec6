"""The process that plans for GPUs that are absent.

It loads the stand-in for the driver's library before cuDNN looks for the driver, so nothing here
may load the real one.  cuDNN may end this process at any time.

C functions: those of a `BackendDescriptor`.
"""

from __future__ import annotations

import re
import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

from cudnnlite._raw.api import CudnnApi
from cudnnlite._raw.library import load_library_without_driver
from cudnnlite.errors import CudnnliteError, NotSupportedError
from cudnnlite.graph.engines import REFUSALS, Configuration, configurations, configure
from cudnnlite.graph.lowering import lower
from cudnnlite.graph.operation_graph import OperationGraph
from cudnnlite.graph.selection import HEURISTICS_OF_PLANS, Requirements, why_excluded
from cudnnlite.types import BackendDescriptor
from cudnnlite.workbench.absent.answers import Answer, Candidate, Question

_KERNEL_NAME = re.compile(r'"kernelName":"([^"]+)"')


def serve(descriptor: int, driver: str) -> None:
    """Answer questions until the pipe is closed: the main function of the process.

    The first message says which cuDNN answers, or why none does.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is an answer, not a file
    with Connection(descriptor) as pipe, suppress(EOFError, OSError):
        try:
            planner = _EngineFinder(CudnnApi(load_library_without_driver(driver)))
        except CudnnliteError as error:
            pipe.send((False, str(error)))
            return
        pipe.send((True, planner.api.library.version_text))
        while True:
            question = pipe.recv()
            try:
                answer: tuple[bool, object] = True, planner.answer(question)
            except CudnnliteError as error:
                answer = False, str(error)
            pipe.send(answer)


@dataclass
class _EngineFinder:
    """Asks cuDNN for the engines of graphs."""

    api: CudnnApi

    def answer(self, question: Question) -> Answer:
        """Return the engines for a graph; CudnnliteError if cuDNN knows no absent GPUs."""
        with ExitStack() as stack:
            properties = BackendDescriptor(
                self.api, "DEVICEPROP", json_representation=question.properties
            )
            stack.enter_context(properties).finalize()
            try:
                graph = lower(question.graph, self.api, stack, properties)
            except REFUSALS as error:
                return Answer((), f"cuDNN makes no graph of it: {error}")
            rows = tuple(self._rows(graph, question, stack))
        if not rows:
            return Answer((), "cuDNN's heuristics name no engine")
        return Answer(rows)

    def _rows(
        self, graph: OperationGraph, question: Question, stack: ExitStack
    ) -> Iterator[Candidate]:
        """Yield the engines that the heuristics name; plans are finalised as is asked."""
        requirements = Requirements(question.math_type)
        is_served = False
        for configuration in configurations(graph, HEURISTICS_OF_PLANS, stack):
            row = _row(configuration)
            reason = why_excluded(configuration, question.graph, requirements)
            if reason is not None:
                yield row._replace(why_not=reason)
            elif is_served and not question.every:
                yield row
            else:
                row = _finalized(graph, configuration, row)
                is_served = is_served or row.served
                yield row


def _row(configuration: Configuration) -> Candidate:
    """Return an engine of which no plan is finalised."""
    notes = sorted(note.name for note in (*configuration.numerical, *configuration.behavior))
    return Candidate(
        configuration.engine, tuple(notes), configuration.compiled, configuration.deterministic
    )


def _finalized(graph: OperationGraph, configuration: Configuration, row: Candidate) -> Candidate:
    """Return an engine with the facts of its plan, or with the reason why cuDNN refuses it."""
    with ExitStack() as stack:
        try:
            start = time.perf_counter()
            configured = configure(graph, configuration.engine, stack)
            plan = stack.enter_context(graph.make_plan(configured.descriptor))
            seconds = time.perf_counter() - start
        except REFUSALS as error:
            return row._replace(why_not=f"cuDNN refuses it: {error}")
        return row._replace(
            workspace=plan.get("workspace_size"), seconds=seconds, kernels=_kernels(plan)
        )


def _kernels(plan: BackendDescriptor) -> tuple[str, ...]:
    """Return the names of the kernels that a plan was compiled to."""
    try:
        text = plan.get("json_representation")
    except NotSupportedError:  # some engines cannot be saved
        return ()
    return tuple(dict.fromkeys(_KERNEL_NAME.findall(text)))
