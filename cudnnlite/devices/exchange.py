"""`exchanged`: a PyTorch tensor as a DeviceArray, by one C call instead of a capsule.

A view by `__dlpack__` takes 8 us, one by the C exchange API about 1.5.  The view belongs to the
stream that the library works on: a call on another stream waits for that one, and it for the call.
So memory that the library frees, or writes again, is not touched too early.
"""

from __future__ import annotations

from typing import Any

from cudnnlite._raw.dlpack_exchange import ArrayFacts, ExchangeApi, exchange_api_of
from cudnnlite.devices import observer
from cudnnlite.devices.arrays import DeviceArray, view
from cudnnlite.devices.device import Device
from cudnnlite.errors import ArgumentError, ArrayTypeError
from cudnnlite.specs import TensorSpec

# The C call tells nothing of arrays that may not be written: JAX's would be.
_LIBRARIES = frozenset({"torch"})
_MOST_SPECS = 1024

_apis: dict[type, ExchangeApi | None] = {}
_specs: dict[tuple[bytes, bytes, int], TensorSpec] = {}


def exchanged(device: Device, stream: Any, array: Any) -> DeviceArray | None:
    """Return an array of a library that offers its arrays by a C call; None for any other.

    None too for an array that a view by `__dlpack__` refuses with a reason: one on another device,
    one that requires gradients, and one without values.
    """
    kind = type(array)
    try:
        api = _apis[kind]
    except KeyError:
        api = _apis[kind] = _api_of(kind)
    if api is None or array.requires_grad or observer.current is not observer.NOBODY:
        return None
    facts = api.facts_of(array)
    if facts is None:
        return None
    spec = _specs.get(facts.description) or _described(device, stream, array, facts)
    if spec is None or not device.holds(*facts.device, facts.ptr, spec.nbytes):
        return None
    own_stream = device.stream_at(api.stream_on(facts.device), stream)
    return DeviceArray(spec, device, facts.ptr, array, own_stream)


def _api_of(kind: type) -> ExchangeApi | None:
    """Return what a type offers, if its library may be read by a C call."""
    packages = {base.__module__.partition(".")[0] for base in kind.__mro__}
    return exchange_api_of(kind) if packages & _LIBRARIES else None


def _described(device: Device, stream: Any, array: Any, facts: ArrayFacts) -> TensorSpec | None:
    """Return the spec of an array, which the other way describes; None where that refuses it."""
    try:
        spec = view(device, stream, array, "array").spec
    except (ArgumentError, ArrayTypeError):
        return None
    if len(_specs) >= _MOST_SPECS:
        _specs.clear()
    _specs[facts.description] = spec
    return spec
