"""Emulated `cudnnBackendFinalize`: the checks of each kind of backend descriptor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace

from cudnnlite.emulated import (
    engines,
    execution,
    fusion,
    graph_engines,
    operation_graph,
    plan_text,
)
from cudnnlite.emulated.backend import BackendObject, backend_object
from cudnnlite.emulated.device_properties import finalize_device_properties
from cudnnlite.emulated.registry import bad_parameter, emulates, unsupported
from cudnnlite.graph.attributes import missing_attributes

_KERNEL_CACHE = b'{"emulated": true, "kernels": []}'


def _finalize_graph(graph: BackendObject) -> None:
    operation_graph.finalize_graph(graph, len(engines.ENGINES))


def _accept(configuration: BackendObject) -> None:
    """Accept a descriptor without a check: the operation that it configures checks it."""


def _finalize_part(part: BackendObject) -> None:
    """Make a descriptor of a plan's JSON final."""
    FINALIZERS[part.kind](part)


def _finalize_plan(plan: BackendObject) -> None:
    """Work out a plan's engine and its JSON; or restore the engine from the JSON."""
    if "engine_config" in plan.attributes:
        text = plan_text.text_of(plan.value("engine_config"))
        plan.attributes["json_representation"] = [bytes([byte]) for byte in text.encode()]
    else:
        text = b"".join(plan.attributes["json_representation"]).decode("ascii")
        plan.attributes["engine_config"] = [plan_text.configuration_from(text, _finalize_part)]
    engines.finalize_plan(plan)


def _finalize_kernel_cache(cache: BackendObject) -> None:
    """Write the JSON of an empty cache, or check the JSON that the descriptor has."""
    if "json_representation" not in cache.attributes:
        cache.attributes["json_representation"] = [bytes([byte]) for byte in _KERNEL_CACHE]
    if b"".join(cache.attributes["json_representation"]) != _KERNEL_CACHE:
        raise bad_parameter("the JSON is not that of an emulated kernel cache")


# The functions that check a descriptor and compute its other attributes, by its kind.
FINALIZERS: Mapping[str, Callable[[BackendObject], None]] = {
    "TENSOR": operation_graph.check_tensor,
    "CONVOLUTION": operation_graph.check_convolution,
    **dict.fromkeys(graph_engines.CONFIGURATIONS, _accept),
    **dict.fromkeys(graph_engines.OPERATIONS, graph_engines.check_operation),
    "POINTWISE": fusion.check_mode,
    **dict.fromkeys(operation_graph.CONVOLUTIONS, operation_graph.finalize_convolution),
    "OPERATION_POINTWISE": fusion.check_operation,
    "OPERATIONGRAPH": _finalize_graph,
    "ENGINE": engines.finalize_engine,
    "KNOB_CHOICE": engines.check_knob_choice,
    "ENGINECFG": engines.finalize_configuration,
    "ENGINEHEUR": engines.finalize_heuristic,
    "EXECUTION_PLAN": _finalize_plan,
    "KERNEL_CACHE": _finalize_kernel_cache,
    "DEVICEPROP": finalize_device_properties,
    "VARIANT_PACK": execution.check_variant_pack,
}


@emulates("cudnnBackendFinalize")
def finalize(c_call: SimpleNamespace) -> None:
    """`cudnnBackendFinalize`: check a descriptor, and make it final."""
    target = backend_object(c_call.api, c_call.descriptor)
    if target.is_final:
        raise bad_parameter(f"{target.kind} is final")
    missing = missing_attributes(target.kind, target.attributes)
    if missing:
        raise bad_parameter(f"{target.kind} lacks {', '.join(missing)}")
    if target.kind not in FINALIZERS:
        raise unsupported(f"the emulated device has no graphs with {target.kind}")
    FINALIZERS[target.kind](target)
    target.is_final = True
