"""The JSON of emulated execution plans: the descriptors that a plan was made from."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from cudnnlite.emulated.backend import READ_ONLY, BackendObject
from cudnnlite.emulated.registry import bad_parameter

_OF_THE_DEVICE = ("handle", "deviceprop", "kernel_cache")
_MISTAKES = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


def text_of(configuration: BackendObject) -> str:
    """Return the JSON of a plan for an engine's configuration."""
    objects: list[dict[str, Any]] = []
    numbers: dict[int, int] = {}

    def number_of(source: BackendObject) -> int:
        if source.address not in numbers:
            attributes = {
                name: [_plain(value) for value in values]
                for name, values in source.attributes.items()
                if name not in (*_OF_THE_DEVICE, *READ_ONLY.get(source.kind, ()))
            }
            numbers[source.address] = len(objects)
            objects.append({"kind": source.kind, "attributes": attributes})
        return numbers[source.address]

    def _plain(value: Any) -> Any:
        return {"object": number_of(value)} if isinstance(value, BackendObject) else value

    number_of(configuration)
    return json.dumps({"emulated": True, "objects": objects})


def configuration_from(text: str, finalize: Callable[[BackendObject], None]) -> BackendObject:
    """Return the configuration that `text_of` wrote, made of new final objects.

    RefusalError for other texts.
    """
    try:
        plain = json.loads(text)
        if plain["emulated"] is not True:
            raise ValueError("it is a GPU's")
        objects: list[BackendObject] = []
        # An object is written behind those that it refers to.
        for plain_object in plain["objects"]:
            target = _make_object(plain_object, objects)
            finalize(target)
            target.is_final = True
            objects.append(target)
        configuration = objects[-1]
    except _MISTAKES as error:
        raise bad_parameter(f"the JSON is not that of an emulated plan: {error}") from error
    if configuration.kind != "ENGINECFG":
        raise bad_parameter(f"the JSON is that of a {configuration.kind}")
    return configuration


def _make_object(plain: dict[str, Any], objects: list[BackendObject]) -> BackendObject:
    target = BackendObject(plain["kind"])
    for name, values in plain["attributes"].items():
        target.attributes[name] = [
            objects[value["object"]] if isinstance(value, dict) else value for value in values
        ]
    return target
