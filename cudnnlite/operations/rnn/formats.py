"""The RNN weights of PyTorch, ONNX and Keras: to and from the names of `specs.rnn_weights`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from cudnnlite.arguments import instance_of, sequence
from cudnnlite.enums import RNNBiasMode, RNNInputMode, RNNMode
from cudnnlite.errors import ArgumentError
from cudnnlite.plans.host_arrays import (
    check_mapping,
    check_names,
    host_array,
    host_array_of_shape,
)
from cudnnlite.specs import RNNSpec
from cudnnlite.specs.rnn_weights import DIRECTIONS, WeightPart, weight_parts

Array = np.ndarray[Any, Any]

# PyTorch's tensors for one layer and direction, in its order; each is a stack of gates.
_TORCH_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
# The gates in the order in which ONNX and Keras stack them, by cuDNN's names.
_ONNX_GATES = {RNNMode.LSTM: "iofg", RNNMode.GRU: "zrn", RNNMode.RELU: "h", RNNMode.TANH: "h"}
_KERAS_GATES = {RNNMode.LSTM: "ifgo", RNNMode.GRU: "zrn", RNNMode.RELU: "h", RNNMode.TANH: "h"}


def torch_name(part: WeightPart) -> str:
    """Return the name of the tensor in PyTorch's state_dict that holds a part."""
    suffix = "_reverse" if part.direction else ""
    return f"{_TORCH_NAMES[part.field]}_l{part.layer}{suffix}"


def from_torch(spec: RNNSpec, state_dict: Mapping[str, Any], prefix: str = "") -> dict[str, Array]:
    """Split the tensors of a PyTorch state_dict; PyTorch stacks the gates as cuDNN orders them."""
    parts = _torch_parts(spec)
    check_mapping(state_dict, "state_dict")
    instance_of(prefix, str, "prefix")
    rows: dict[str, tuple[int, ...]] = {}
    for part in parts:
        stacked = len(spec.gates) if part.gate else 1
        rows[prefix + torch_name(part)] = (stacked * part.shape[0], *part.shape[1:])
    stacks = {name: value for name, value in state_dict.items() if name.startswith(prefix)}
    check_names("state_dict", stacks, rows)
    tensors = {
        name: host_array_of_shape(f"state_dict[{name!r}]", stacks[name], shape)
        for name, shape in rows.items()
    }
    return _split(
        spec,
        parts,
        spec.gates,
        lambda part: tensors[prefix + torch_name(part)],
        "state_dict",
        "state_dict",
    )


def to_torch(spec: RNNSpec, values: Mapping[str, Array]) -> dict[str, Array]:
    """Stack the gates into the tensors of a PyTorch state_dict.

    A bias that the spec does not have becomes zeros.
    """
    stacks: dict[str, list[Array]] = {}
    dtype = next(iter(values.values())).dtype
    for part in sorted(_torch_parts(spec), key=lambda part: (part.pseudo_layer, part.field)):
        value = values.get(part.name, np.zeros(part.shape, dtype))
        stacks.setdefault(torch_name(part), []).append(value)
    return {name: np.concatenate(stack) for name, stack in stacks.items()}


def _torch_parts(spec: RNNSpec) -> list[WeightPart]:
    """Return the parts that PyTorch has: both biases, or none."""
    instance_of(spec, RNNSpec, "spec")
    if spec.bias != RNNBiasMode.NO:
        spec = spec.replace(bias=RNNBiasMode.DOUBLE)
    return list(weight_parts(spec))


def _all_parts(spec: RNNSpec) -> list[WeightPart]:
    """Return the parts that ONNX and Keras have: PyTorch's, and always an input matrix."""
    return _torch_parts(spec.replace(input_mode=RNNInputMode.LINEAR))


def _split(
    spec: RNNSpec,
    parts: Iterable[WeightPart],
    gates: Sequence[str],
    stack: Callable[[WeightPart], Array],
    matrices: str,
    biases: str,
) -> dict[str, Array]:
    """Cut parts out of their stacks, whose gates have the order of `gates`.

    A part that the spec does not have must be zero, and is dropped.  `matrices` and `biases` are
    the names of the arguments in messages.
    """
    values = {}
    names = {part.name for part in weight_parts(spec)}
    for part in parts:
        value = stack(part)[part.rows(gates)]
        if part.name in names:
            values[part.name] = value
        elif np.any(value):
            holder, reason = matrices, "input matrix (input_mode='skip')"
            if part.bias:
                holder, reason = biases, f"bias {spec.bias.name}"
            raise ArgumentError(
                f"{holder} has a {part.name} that is not zero; the spec says: {reason}"
            )
    return values


def from_onnx(spec: RNNSpec, W: Any, R: Any, B: Any = None) -> dict[str, Array]:
    """Split the inputs W, R and B of ONNX nodes LSTM, GRU or RNN.

    They are arrays, or lists with one for each layer.
    """
    if instance_of(spec, RNNSpec, "spec").projects:
        raise ArgumentError(f"{spec} has a projection, which ONNX has no input for")
    layers = spec.num_layers
    inputs = {"W": _per_layer(W, "W", layers), "R": _per_layer(R, "R", layers)}
    has_bias = spec.bias != RNNBiasMode.NO
    if B is not None:
        inputs["B"] = _per_layer(B, "B", layers)
        if not has_bias and any(np.any(bias) for bias in inputs["B"]):
            raise ArgumentError(f"B is given, and not zero; {spec} has no bias")
    gates, hidden = _ONNX_GATES[spec.cell], spec.hidden_size
    stacked = len(gates) * hidden
    stacks: list[tuple[Array, ...]] = []
    for layer in range(layers):
        shapes: dict[str, tuple[int, ...]] = {
            "W": (spec.directions, stacked, spec.layer_input_size(layer)),
            "R": (spec.directions, stacked, hidden),
            "B": (spec.directions, 2 * stacked),
        }
        tensors = {
            name: host_array_of_shape(f"{name} of layer {layer}", per_layer[layer], shapes[name])
            for name, per_layer in inputs.items()
        }
        bias = tensors.get("B", np.zeros(shapes["B"], tensors["W"].dtype))
        stacks += zip(tensors["W"], tensors["R"], *np.split(bias, 2, axis=1), strict=True)
    return _split(
        spec, _all_parts(spec), gates, lambda part: stacks[part.pseudo_layer][part.field], "W", "B"
    )


def from_keras(spec: RNNSpec, weights: Iterable[Any]) -> dict[str, Array]:
    """Split the arrays that `get_weights()` of Keras layers returns.

    They are kernel, recurrent kernel and bias.  Keras stores the kernels transposed.
    """
    if instance_of(spec, RNNSpec, "spec").projects:
        raise ArgumentError(f"{spec} has a projection, which Keras's layers do not have")
    flat = [
        host_array(value, f"weights[{number}]") for number, value in enumerate(_flatten(weights))
    ]
    has_bias = spec.bias != RNNBiasMode.NO
    parts = ["kernel", "recurrent kernel"]
    if has_bias:
        parts.append("bias")
    count = len(parts)
    if len(flat) != count * spec.num_layers * spec.directions:
        raise ArgumentError(
            f"weights has {len(flat)} arrays; {spec} needs {count} ({', '.join(parts)}) "
            f"for each of {spec.num_layers} layers and {spec.directions} directions"
        )
    gates, hidden = _KERAS_GATES[spec.cell], spec.hidden_size
    stacked = len(gates) * hidden
    gru = spec.cell == RNNMode.GRU
    stacks: list[tuple[Array, ...]] = []
    for pseudo_layer in range(spec.num_layers * spec.directions):
        layer, direction = divmod(pseudo_layer, spec.directions)
        where = f"layer{layer}.{DIRECTIONS[direction]}"
        kernel, recurrent, *bias = flat[pseudo_layer * count : (pseudo_layer + 1) * count]
        host_array_of_shape(f"kernel of {where}", kernel, (spec.layer_input_size(layer), stacked))
        host_array_of_shape(f"recurrent kernel of {where}", recurrent, (hidden, stacked))
        if bias and gru and bias[0].ndim == 1:
            raise ArgumentError(
                f"the bias of {where} is of a GRU with reset_after=False, which cuDNN does not have"
            )
        if bias:
            if gru:
                host_array_of_shape(f"bias of {where}", bias[0], (2, stacked))
                bias = [*bias[0]]
            else:
                host_array_of_shape(f"bias of {where}", bias[0], (stacked,))
                bias = [bias[0], np.zeros_like(bias[0])]
                if spec.bias == RNNBiasMode.SINGLE_REC:
                    # Keras has one bias here; in either place it gives the same sums.
                    bias.reverse()
        stacks.append((kernel.T, recurrent.T, *bias))
    return _split(
        spec,
        _all_parts(spec),
        gates,
        lambda part: stacks[part.pseudo_layer][part.field],
        "weights",
        "weights",
    )


def _per_layer(value: Any, argument: str, layers: int) -> list[Array]:
    items = [value]
    if isinstance(value, (list, tuple)):
        items = list(value)
    if len(items) != layers:
        raise ArgumentError(
            f"{argument} has {len(items)} arrays; "
            f"the spec has {layers} layers, one ONNX node for each"
        )
    return [host_array(item, f"{argument} of layer {layer}") for layer, item in enumerate(items)]


def _flatten(weights: Any) -> Iterable[Any]:
    for item in sequence(weights, "weights", "what a Keras layer's get_weights() returns"):
        if isinstance(item, Sequence) and len(item) and hasattr(item[0], "shape"):
            yield from item
        else:
            yield item
