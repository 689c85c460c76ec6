"""`finalized_plan`: an execution plan, restored from a store where the handle has one.

cuDNN compiles some engines when their plan is finalised, which takes up to a second.  The plan's
JSON has the compiled code: a plan that is restored from it is finalised in a millisecond.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Protocol

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
    if store is None or not configuration.compiled:
        return graph.make_plan(configuration.descriptor)
    subject = _subject(graph, configuration)
    plan = _restored(graph.handle, store, subject)
    if plan is None:
        plan = graph.make_plan(configuration.descriptor)
        _keep(store, subject, plan)
    return plan


def _subject(graph: Graph, configuration: Configuration) -> str:
    """Return a digest of what a plan computes and how.

    The unique ids are part of it: a call passes addresses by them.
    """
    parts = {
        "graph": graph.data.to_plain(),
        "unique ids": graph.uids,
        "engine": configuration.engine.to_plain(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _restored(handle: Any, store: PlanStore, subject: str) -> BackendDescriptor | None:
    """Return the plan that a store has, or None."""
    text = store.find(subject)
    if text is None:
        return None
    plan = BackendDescriptor(handle, "EXECUTION_PLAN", handle=handle, json_representation=text)
    try:
        return plan.finalize()
    except CudnnError as error:
        plan.close()
        store.discard(subject, f"cuDNN does not restore it: {error}")
        return None
    except BaseException:
        plan.close()
        raise


def _keep(store: PlanStore, subject: str, plan: BackendDescriptor) -> None:
    try:
        text = plan.get("json_representation")
    except NotSupportedError as error:  # cuDNN has no JSON of some engines
        log.debug("a compiled plan cannot be kept: %s", error)
        return
    store.keep(subject, text)
