"""Activations of graphs by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cudnnlite.graph.tensor import GraphTensor
from cudnnlite.operations.graph.graph import Graph

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
}
