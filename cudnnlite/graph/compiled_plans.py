"""`finalized_plan`: an execution plan, restored from a store where the handle has one.

cuDNN compiles some engines when their plan is finalised, which takes up to a second.  The plan's
JSON has the compiled code: a plan that is restored from it is finalised in a millisecond.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Protocol

from cudnnlite._raw.enums import BackendHeurMode
from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite.errors import ArgumentError, CudnnError, NotSupportedError
from cudnnlite.graph.backend_descriptor import BackendDescriptor
from cudnnlite.graph.engines import (
    REFUSALS,
    Configuration,
    Engine,
    configurations,
    configure,
)
from cudnnlite.graph.operation_graph import OperationGraph
from cudnnlite.warn import log


class PlanStore(Protocol):
    """Keeps the JSON of plans for one device and one version of cuDNN."""

    def find(self, subject: str) -> str | None:
        """Return the JSON of the plan for a subject, or None."""

    def keep(self, subject: str, text: str) -> None:
        """Keep the JSON of a plan."""

    def discard(self, subject: str, why: str) -> None:
        """Forget a plan that cuDNN refuses."""


def finalized_plan(graph: OperationGraph, configuration: Configuration) -> BackendDescriptor:
    """Return the final plan of an engine for a graph, which the caller closes.

    Raises
    ------
    NotSupportedError
        The engine does not run this graph on this device.
    """
    store = _store_of(graph)
    kernel_caches = _kernel_caches_for(graph)
    if kernel_caches is not None and configuration.compiled:
        return kernel_caches.plan(graph, configuration, store)
    if store is None or not configuration.compiled:
        return graph.make_plan(configuration.descriptor)
    subject = _subject(graph, configuration)
    plan = _restored(graph.handle, "EXECUTION_PLAN", store, subject)
    if plan is None:
        plan = graph.make_plan(configuration.descriptor)
        _keep(store, subject, plan)
    return plan


def configurations_to_try(
    graph: OperationGraph, modes: Iterable[BackendHeurMode], stack: ExitStack
) -> Iterator[Configuration]:
    """Yield the configurations for a plan of a graph, the preferred one first.

    They are those that several heuristics name.  If the graph has dynamic shapes, the
    configurations that earlier plans of the handle compiled, for any sizes, come before.  The
    heuristics name other ones for other sizes, and compiling one takes a second.
    """
    compiled: set[Engine] = set()
    kernel_caches = _kernel_caches_for(graph)
    if kernel_caches is not None:
        for engine in kernel_caches.engines(graph, _store_of(graph)):
            try:
                configuration = configure(graph, engine, stack)
            except REFUSALS:  # it has no such engine for these sizes
                continue
            compiled.add(engine)
            yield configuration
    for configuration in configurations(graph, modes, stack):
        if configuration.engine not in compiled:
            yield configuration


def _store_of(graph: OperationGraph) -> PlanStore | None:
    """Return the store of a graph's handle, or None if it has none."""
    return getattr(graph.handle, "_plan_store", None)


def _kernel_caches_for(graph: OperationGraph) -> KernelCaches | None:
    """Return the kernel caches of a graph's handle, or None if the graph does not use any."""
    if not graph.data.dynamic_shapes:
        return None
    return getattr(graph.handle, "_kernel_caches", None)


class KernelCaches(NonCopyable):
    """cuDNN's kernel caches of a handle: one for graphs that differ in their sizes alone.

    Kernels that cuDNN compiles for the first of these graphs serve all of them, so that a plan for
    other sizes is finalised in a tenth of a millisecond.
    """

    def __init__(self) -> None:
        # By the digest of a graph without sizes: the caches, the engines that each has compiled, as
        # the keys of a mapping, which keep their order, and the JSON that a store has of each.
        self._caches: dict[str, BackendDescriptor] = {}
        self._engines: dict[str, dict[Engine, None]] = {}
        self._stored: dict[str, str] = {}

    def engines(self, graph: OperationGraph, store: PlanStore | None) -> tuple[Engine, ...]:
        """Return the engines that are compiled for graphs of other sizes, the first one first."""
        subject = _subject_without_sizes(graph)
        if subject not in self._caches:
            self._restore(graph, subject, store)
        return tuple(self._engines.get(subject, ()))

    def plan(
        self, graph: OperationGraph, configuration: Configuration, store: PlanStore | None
    ) -> BackendDescriptor:
        """Return the final plan of an engine for a graph, which the caller closes."""
        subject = _subject_without_sizes(graph)
        cache = self._cache(graph, subject, store)
        plan = graph.make_plan(configuration.descriptor, kernel_cache=cache)
        self._engines.setdefault(subject, {})[configuration.engine] = None
        if store is not None:
            text = cache.get("json_representation")
            if text != self._stored.get(subject):
                store.keep(subject, text)
                self._stored[subject] = text
        return plan

    def _cache(
        self, graph: OperationGraph, subject: str, store: PlanStore | None
    ) -> BackendDescriptor:
        """Return the cache for a graph: this handle's, that of a store, or a new one."""
        if subject not in self._caches:
            self._restore(graph, subject, store)
        cache = self._caches.get(subject)
        if cache is None:
            cache = BackendDescriptor(
                graph.handle, "KERNEL_CACHE", operation_graph=graph.descriptor
            )
            cache.finalize()
            self._caches[subject] = cache
        return cache

    def _restore(self, graph: OperationGraph, subject: str, store: PlanStore | None) -> None:
        """Take the cache for a graph from a store, if that has one."""
        if store is None:
            return
        cache = _restored(graph.handle, "KERNEL_CACHE", store, subject)
        if cache is not None:
            text = cache.get("json_representation")
            self._caches[subject] = cache
            self._engines[subject] = dict.fromkeys(_engines_in(text))
            self._stored[subject] = text

    def close(self) -> None:
        """Close all caches; a second call does nothing."""
        while self._caches:
            _, cache = self._caches.popitem()
            cache.close()
        self._engines.clear()


def _engines_in(text: str) -> Iterator[Engine]:
    """Yield the engines in the JSON of a kernel cache; none if it has another form than in 9.19."""
    try:
        keys = [entry["key"] for entry in json.loads(text)["kernel_cache"]]
    except (TypeError, LookupError):
        return
    for key in keys:
        try:
            knobs: Mapping[Any, int] = {**key["knobChoices"]}
            yield Engine(key["engineId"], knobs)
        except (TypeError, LookupError, ArgumentError):
            continue


def _subject_without_sizes(graph: OperationGraph) -> str:
    """Return a digest that is equal for graphs that share a kernel cache.

    Such graphs differ only in their sizes.  The order of the axes in memory, and the axes of one
    element, along which operations repeat values, change the kernels.
    """
    plain = graph.data.to_plain()
    for tensor in plain["tensors"]:
        shape, strides = tensor.pop("shape"), tensor.pop("strides")
        tensor["single axes"] = [size == 1 for size in shape]
        tensor["axis order"] = sorted(range(len(strides)), key=strides.__getitem__)
        tensor.pop("array_axes", None)
    return _digest({"kernel cache": plain, "unique ids": graph.uids})


def _subject(graph: OperationGraph, configuration: Configuration) -> str:
    """Return a digest of a plan's graph and configuration.

    The unique ids are part of it: a call passes addresses by them.
    """
    parts = {
        "graph": graph.data.to_plain(),
        "unique ids": graph.uids,
        "engine": configuration.engine.to_plain(),
    }
    return _digest(parts)


def _digest(parts: dict[str, Any]) -> str:
    import hashlib  # takes 3 ms

    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _restored(handle: Any, kind: str, store: PlanStore, subject: str) -> BackendDescriptor | None:
    """Return the plan, or the kernel cache, that a store has, or None."""
    text = store.find(subject)
    if text is None:
        return None
    descriptor = BackendDescriptor(handle, kind, json_representation=text)
    try:
        if kind == "EXECUTION_PLAN":
            descriptor.set("handle", handle)
        return descriptor.finalize()
    except CudnnError as error:
        descriptor.close()
        store.discard(subject, f"cuDNN does not restore it: {error}")
        return None
    except BaseException:
        descriptor.close()
        raise


def _keep(store: PlanStore, subject: str, plan: BackendDescriptor) -> None:
    try:
        text = plan.get("json_representation")
    except NotSupportedError as error:  # cuDNN has no JSON of some engines
        log.debug("a compiled plan cannot be kept: %s", error)
        return
    store.keep(subject, text)
