"""RNN weights of PyTorch, ONNX and Keras, converted to and from parts of `specs.rnn_weights`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from cudnnlite.arguments import instance_of, sequence
from cudnnlite.enums import RNNBiasMode, RNNInputMode, RNNMode
from cudnnlite.errors import ArgumentError
from cudnnlite.plans.host_arrays import (
    HasStateDict,
    check_names,
    host_array,
    host_array_of_shape,
    state_dict_of,
)
from cudnnlite.specs import RNNSpec
from cudnnlite.specs.rnn_weights import DIRECTIONS, WeightPart, weight_parts

Array = np.ndarray[Any, Any]

# PyTorch's tensors for one layer and direction, by `WeightPart.field`; each is a stack of gates.
_TORCH_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
# The name of such a tensor in a state_dict.
_TORCH_TENSOR = re.compile(
    rf"(?P<prefix>.*?)({'|'.join(_TORCH_NAMES)})_l(?P<layer>\d+)(?P<reverse>_reverse)?"
)
# The gates in the order in which ONNX and Keras stack them, by cuDNN's names.
_ONNX_GATES = {RNNMode.LSTM: "iofg", RNNMode.GRU: "zrn", RNNMode.RELU: "h", RNNMode.TANH: "h"}
_KERAS_GATES = {RNNMode.LSTM: "ifgo", RNNMode.GRU: "zrn", RNNMode.RELU: "h", RNNMode.TANH: "h"}


def torch_name(part: WeightPart) -> str:
    """Return the name of the tensor in PyTorch's state_dict that holds a part."""
    suffix = "_reverse" if part.direction else ""
    return f"{_TORCH_NAMES[part.field]}_l{part.layer}{suffix}"


def from_torch(
    spec: RNNSpec, state_dict: Mapping[str, Any] | HasStateDict, prefix: str = ""
) -> dict[str, Array]:
    """Split the tensors of a PyTorch module or state_dict, whose gates have cuDNN's order."""
    parts = _torch_parts(spec)
    state_dict = state_dict_of(state_dict)
    instance_of(prefix, str, "prefix")
    shapes: dict[str, tuple[int, ...]] = {}
    for part in parts:
        num_gates = 1  # The projection has no gates.
        if part.gate:
            num_gates = len(spec.gates)
        shapes[prefix + torch_name(part)] = (num_gates * part.shape[0], *part.shape[1:])
    tensors = {name: value for name, value in state_dict.items() if name.startswith(prefix)}
    check_names(
        "state_dict", tensors, shapes, hint=lambda: _hint_of_torch(spec, state_dict, prefix)
    )
    stacks = {
        name: host_array_of_shape(f"state_dict[{name!r}]", tensors[name], shape)
        for name, shape in shapes.items()
    }
    return _split(
        spec,
        parts,
        spec.gates,
        lambda part: stacks[prefix + torch_name(part)],
        matrices_argument="state_dict",
        biases_argument="state_dict",
    )


def _hint_of_torch(spec: RNNSpec, names: Iterable[str], prefix: str) -> str:
    """Return which prefix or spec the names of a state_dict need; empty if they tell nothing."""
    matches = [match for match in map(_TORCH_TENSOR.fullmatch, names) if match]
    prefixes = {match["prefix"] for match in matches}
    if prefixes and prefix not in prefixes:
        return f"; prefix={min(prefixes)!r} is one of them"
    own = [match for match in matches if match["prefix"] == prefix]
    num_layers = max((int(match["layer"]) + 1 for match in own), default=spec.num_layers)
    is_bidirectional = any(match["reverse"] for match in own)
    fields = []
    if num_layers != spec.num_layers:
        fields.append(f"num_layers={num_layers}")
    if is_bidirectional != spec.bidirectional:
        fields.append(f"bidirectional={is_bidirectional}")
    return f"; the tensors are of RNNSpec(..., {', '.join(fields)})" if fields else ""


def to_torch(spec: RNNSpec, values: Mapping[str, Array]) -> dict[str, Array]:
    """Stack the gates into the tensors of a PyTorch state_dict.

    A bias that the spec does not have becomes zeros.
    """
    stacks: dict[str, list[Array]] = {}
    dtype = next(iter(values.values())).dtype
    # The sort is stable: the gates of a stack keep cuDNN's order, which is PyTorch's.
    for part in sorted(_torch_parts(spec), key=lambda part: (part.pseudo_layer, part.field)):
        value = values.get(part.name, np.zeros(part.shape, dtype))
        stacks.setdefault(torch_name(part), []).append(value)
    return {name: np.concatenate(stack) for name, stack in stacks.items()}


def _torch_parts(spec: RNNSpec) -> list[WeightPart]:
    """Return the parts that PyTorch has: with both biases, or with none."""
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
    stack_of: Callable[[WeightPart], Array],
    *,
    matrices_argument: str,
    biases_argument: str,
) -> dict[str, Array]:
    """Cut parts out of their stacks, in which the gates have the order of `gates`.

    A part that the spec does not have is dropped; ArgumentError if it is not zero.
    `matrices_argument` and `biases_argument` are the names of the arguments in messages.
    """
    values = {}
    names = {part.name for part in weight_parts(spec)}
    for part in parts:
        value = stack_of(part)[part.rows(gates)]
        if part.name in names:
            values[part.name] = value
        elif np.any(value):
            argument, why = matrices_argument, "skips the input matrix"
            if part.bias:
                argument, why = biases_argument, "has no such bias"
            raise ArgumentError(f"{argument}: {part.name} is not zero, but {spec} {why}")
    return values


def from_onnx(spec: RNNSpec, W: Any, R: Any, B: Any = None) -> dict[str, Array]:
    """Split the inputs W, R and B of ONNX nodes LSTM, GRU or RNN.

    The inputs are arrays, or lists with one array for each layer.
    """
    instance_of(spec, RNNSpec, "spec")
    if spec.projects:
        raise ArgumentError(f"{spec} has a projection, which ONNX has no input for")
    layers = spec.num_layers
    inputs = {"W": _per_layer(W, "W", layers), "R": _per_layer(R, "R", layers)}
    has_bias = spec.bias != RNNBiasMode.NO
    if B is not None:
        inputs["B"] = _per_layer(B, "B", layers)
        if not has_bias and any(np.any(bias) for bias in inputs["B"]):
            raise ArgumentError(f"B is not zero, but {spec} has no bias")
    gates = _ONNX_GATES[spec.cell]
    stack_size = len(gates) * spec.hidden_size
    stacks: list[tuple[Array, ...]] = []  # by pseudo-layer, and then by `WeightPart.field`
    for layer in range(layers):
        shapes: dict[str, tuple[int, ...]] = {
            "W": (spec.directions, stack_size, spec.layer_input_size(layer)),
            "R": (spec.directions, stack_size, spec.hidden_size),
            "B": (spec.directions, 2 * stack_size),
        }
        tensors = {
            name: host_array_of_shape(f"{name} of layer {layer}", per_layer[layer], shapes[name])
            for name, per_layer in inputs.items()
        }
        biases = tensors.get("B", np.zeros(shapes["B"], tensors["W"].dtype))
        input_biases, recurrent_biases = np.split(biases, 2, axis=1)
        for direction in range(spec.directions):
            stacks.append(
                (
                    tensors["W"][direction],
                    tensors["R"][direction],
                    input_biases[direction],
                    recurrent_biases[direction],
                )
            )
    return _split(
        spec,
        _all_parts(spec),
        gates,
        lambda part: stacks[part.pseudo_layer][part.field],
        matrices_argument="W",
        biases_argument="B",
    )


def from_keras(spec: RNNSpec, weights: Iterable[Any]) -> dict[str, Array]:
    """Split the arrays that `get_weights()` of Keras layers returns.

    The arrays are kernel, recurrent kernel and bias.  Keras stores the kernels transposed.
    """
    instance_of(spec, RNNSpec, "spec")
    if spec.projects:
        raise ArgumentError(f"{spec} has a projection, which Keras's layers do not have")
    arrays = [
        host_array(value, f"weights[{index}]") for index, value in enumerate(_flatten(weights))
    ]
    has_bias = spec.bias != RNNBiasMode.NO
    names = ["kernel", "recurrent kernel"]
    if has_bias:
        names.append("bias")
    count = len(names)
    if len(arrays) != count * spec.num_layers * spec.directions:
        raise ArgumentError(
            f"weights has {len(arrays)} arrays; {spec} needs {count} ({', '.join(names)}) "
            f"for each of {spec.num_layers} layers and {spec.directions} directions"
        )
    gates, hidden = _KERAS_GATES[spec.cell], spec.hidden_size
    stack_size = len(gates) * hidden
    stacks: list[tuple[Array, ...]] = []  # by pseudo-layer, and then by `WeightPart.field`
    for pseudo_layer in range(spec.num_layers * spec.directions):
        layer, direction = divmod(pseudo_layer, spec.directions)
        where = f"layer{layer}.{DIRECTIONS[direction]}"
        start = pseudo_layer * count
        kernel, recurrent = arrays[start : start + 2]
        shape = (spec.layer_input_size(layer), stack_size)
        host_array_of_shape(f"kernel of {where}", kernel, shape)
        host_array_of_shape(f"recurrent kernel of {where}", recurrent, (hidden, stack_size))
        biases: tuple[Array, ...] = ()
        if has_bias:
            biases = _keras_biases(spec, arrays[start + 2], stack_size, where)
        stacks.append((kernel.T, recurrent.T, *biases))
    return _split(
        spec,
        _all_parts(spec),
        gates,
        lambda part: stacks[part.pseudo_layer][part.field],
        matrices_argument="weights",
        biases_argument="weights",
    )


def _keras_biases(spec: RNNSpec, bias: Array, stack_size: int, where: str) -> tuple[Array, Array]:
    """Return the input bias and the recurrent bias of one layer and direction of Keras."""
    if spec.cell == RNNMode.GRU:
        if bias.ndim == 1:
            raise ArgumentError(
                f"the bias of {where} is of a GRU with reset_after=False, which cuDNN does not have"
            )
        host_array_of_shape(f"bias of {where}", bias, (2, stack_size))
        return bias[0], bias[1]
    # The one bias of Keras may become either bias, because cuDNN adds the two.
    host_array_of_shape(f"bias of {where}", bias, (stack_size,))
    zeros = np.zeros_like(bias)
    if spec.bias == RNNBiasMode.SINGLE_REC:
        return zeros, bias
    return bias, zeros


def _per_layer(value: Any, argument: str, layers: int) -> list[Array]:
    """Return one array for each layer, from an array or a list."""
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
    """Yield all arrays in order.

    `weights` has arrays, or one list of arrays for each layer.
    """
    for item in sequence(weights, "weights", "what a Keras layer's get_weights() returns"):
        is_list_of_arrays = isinstance(item, Sequence) and item and hasattr(item[0], "shape")
        if is_list_of_arrays:
            yield from item
        else:
            yield item
