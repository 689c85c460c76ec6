"""`finalized_plan`: an execution plan, restored from a store where the handle has one.

cuDNN compiles some engines when their plan is finalised, which takes up to a second.  The plan's
JSON has the compiled code: a plan that is restored from it is finalised in a millisecond.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

from cudnnlite._raw.noncopyable import NonCopyable
from cudnnlite.errors import CudnnError, NotSupportedError
from cudnnlite.graph.backend_descriptor import BackendDescriptor
from cudnnlite.graph.engines import Configuration
from cudnnlite.graph.operation_graph import Graph
from cudnnlite.warn import log


class PlanStore(Protocol):
    """Keeps the JSON of plans for one device and one version of cuDNN."""

    def find(self, subject: str) -> str | None:
        """Return the JSON of the plan for a subject, or None."""

    def keep(self, subject: str, text: str) -> None:
        """Keep the JSON of a plan."""

    def discard(self, subject: str, why: str) -> None:
        """Forget a plan that cuDNN refuses."""


def finalized_plan(graph: Graph, configuration: Configuration) -> BackendDescriptor:
    """Return the final plan of an engine for a graph, which the caller closes.

    Raises
    ------
    NotSupportedError
        The engine does not run this graph on this device.
    """
    store: PlanStore | None = getattr(graph.handle, "plan_store", None)
    kernel_caches: KernelCaches | None = getattr(graph.handle, "kernel_caches", None)
    if graph.data.dynamic_shapes and configuration.compiled and kernel_caches is not None:
        return kernel_caches.plan(graph, configuration, store)
    if store is None or not configuration.compiled:
        return graph.make_plan(configuration.descriptor)
    subject = _subject(graph, configuration)
    plan = _restored(graph.handle, "EXECUTION_PLAN", store, subject)
    if plan is None:
        plan = graph.make_plan(configuration.descriptor)
        _keep(store, subject, plan)
    return plan


class KernelCaches(NonCopyable):
    """cuDNN's kernel caches of a handle: one for graphs that differ in their sizes alone.

    What cuDNN compiles for the first of them serves all, so a plan for other sizes is finalised in
    a tenth of a millisecond.
    """

    def __init__(self) -> None:
        # The caches, and the JSON that a store has of each, by the digest of a graph without sizes.
        self._caches: dict[str, BackendDescriptor] = {}
        self._stored: dict[str, str] = {}

    def plan(
        self, graph: Graph, configuration: Configuration, store: PlanStore | None
    ) -> BackendDescriptor:
        """Return the final plan of an engine for a graph, which the caller closes."""
        subject = _subject_without_sizes(graph)
        cache = self._cache(graph, subject, store)
        plan = graph.make_plan(configuration.descriptor, kernel_cache=cache)
        if store is not None:
            text = cache.get("json_representation")
            if text != self._stored.get(subject):
                store.keep(subject, text)
                self._stored[subject] = text
        return plan

    def _cache(self, graph: Graph, subject: str, store: PlanStore | None) -> BackendDescriptor:
        """Return the cache for a graph: this handle's, that of a store, or a new one."""
        cache = self._caches.get(subject)
        if cache is None and store is not None:
            cache = _restored(graph.handle, "KERNEL_CACHE", store, subject)
            if cache is not None:
                self._stored[subject] = cache.get("json_representation")
        if cache is None:
            cache = BackendDescriptor(
                graph.handle, "KERNEL_CACHE", operation_graph=graph.descriptor
            )
            cache.finalize()
        self._caches[subject] = cache
        return cache

    def close(self) -> None:
        """Close all caches; a second call does nothing."""
        while self._caches:
            _, cache = self._caches.popitem()
            cache.close()


def _subject_without_sizes(graph: Graph) -> str:
    """Return a digest of what graphs have in common that one kernel cache is for.

    That is everything but the sizes: the order of the axes in memory and the axes of one element,
    along which operations repeat values, change the kernels.
    """
    plain = graph.data.to_plain()
    for tensor in plain["tensors"]:
        shape, strides = tensor.pop("shape"), tensor.pop("strides")
        tensor["single axes"] = [size == 1 for size in shape]
        tensor["axis order"] = sorted(range(len(strides)), key=strides.__getitem__)
        tensor.pop("array_axes", None)
    return _digest({"kernel cache": plain, "unique ids": graph.uids})


def _subject(graph: Graph, configuration: Configuration) -> str:
    """Return a digest of what a plan computes and how.

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
