"""Activations of graphs by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cudnnlite.arguments import shown
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.tensor import GraphTensor
from cudnnlite.operations.graph.graph import Graph
from cudnnlite.other_libraries import SYNONYMS
from cudnnlite.unknown import meant

LEAKY_SLOPE = 0.01
ACTIVATIONS: Mapping[str, Callable[[Graph, GraphTensor], GraphTensor]] = {
    "relu": lambda graph, x: graph.relu(x),
    "leaky_relu": lambda graph, x: graph.relu(x, negative_slope=LEAKY_SLOPE),
    "gelu": lambda graph, x: graph.gelu(x),
    "gelu_tanh": lambda graph, x: graph.gelu(x, approximate=True),
    "swish": lambda graph, x: graph.swish(x),
    "softplus": lambda graph, x: graph.softplus(x),
    "sigmoid": lambda graph, x: graph.sigmoid(x),
    "tanh": lambda graph, x: graph.tanh(x),
    "elu": lambda graph, x: graph.elu(x),
    # cuDNN has no mode of it.
    "mish": lambda graph, x: x * graph.tanh(graph.softplus(x)),
}


def activation_key(text: str) -> str:
    """Return a name of an activation as the tables have it: "Leaky-ReLU" is "leaky_relu"."""
    return text.lower().replace("-", "_")


def parse_activation(value: object, argument: str, *others: str) -> str:
    """Return the name of an activation, which may be in any case.

    ArgumentError for anything else; its message has the names, what `others` say is allowed beside
    them, and a name that may be meant.
    """
    name = activation_key(value) if isinstance(value, str) else ""
    name = SYNONYMS["ActivationMode"].get(name, name)
    if name in ACTIVATIONS:
        return name
    allowed = ", ".join([*map(repr, ACTIVATIONS), *others])
    hint = meant(name, ACTIVATIONS)
    raise ArgumentError(f"{argument}={shown(value)}; allowed: {allowed}{hint}")
