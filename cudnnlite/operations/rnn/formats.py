"""How PyTorch, ONNX and Keras write an RNN's weights: to and from the names of `specs.rnn_weights`, in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from cudnnlite.arguments import instance_of, sequence
from cudnnlite.dtypes import readable
from cudnnlite.enums import RNNBiasMode, RNNInputMode, RNNMode
from cudnnlite.errors import ArgumentError, CudnnliteError
from cudnnlite.specs import RNNSpec
from cudnnlite.specs.rnn_weights import DIRECTIONS, WeightPart, weight_parts

Array = np.ndarray[Any, Any]

_TORCH_NAMES = (
    "weight_ih",
    "weight_hh",
    "bias_ih",
    "bias_hh",
    "weight_hr",
)  # of the stacks, in PyTorch's order
# The gates as others stack them, by cuDNN's names.
_ONNX_GATES = {RNNMode.LSTM: "iofg", RNNMode.GRU: "zrn", RNNMode.RELU: "h", RNNMode.TANH: "h"}
_KERAS_GATES = {RNNMode.LSTM: "ifgo", RNNMode.GRU: "zrn", RNNMode.RELU: "h", RNNMode.TANH: "h"}


def host_array(value: Any, what: str = "values") -> Array:
    """Return a NumPy array of real numbers, also of a PyTorch tensor, wherever that is; `what` names it in an error."""
    if hasattr(value, "detach"):
        value = readable(value.detach().cpu())
    try:
        array = np.asarray(value)
    except CudnnliteError:  # an array on the device says so itself
        raise
    except (
        TypeError,
        ValueError,
        MemoryError,
        OverflowError,
    ) as error:  # a ragged list, too long a range
        raise ArgumentError(f"{what} cannot be turned into an array: {error}") from error
    if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
        raise ArgumentError(f"{what} is of {array.dtype}; allowed: real numbers")
    return array


def torch_name(part: WeightPart) -> str:
    """Return the name that PyTorch's state_dict has for the tensor which holds this part."""
    return f"{_TORCH_NAMES[part.field]}_l{part.layer}{'_reverse' if part.direction else ''}"


def from_torch(spec: RNNSpec, state_dict: Mapping[str, Any], prefix: str = "") -> dict[str, Array]:
    """Split the tensors of a PyTorch state_dict; PyTorch stacks the gates as cuDNN orders them."""
    parts = _torch_parts(spec)
    check_mapping(state_dict, "state_dict")
    instance_of(prefix, str, "prefix")
    rows: dict[str, tuple[int, ...]] = {}
    for part in parts:
        stacked = len(spec.gates) if part.gate else 1
        rows[prefix + torch_name(part)] = (stacked * part.shape[0], *part.shape[1:])
    given = {name: value for name, value in state_dict.items() if name.startswith(prefix)}
    check_names("state_dict", given, rows)
    tensors = {
        name: checked(f"state_dict[{name!r}]", given[name], shape) for name, shape in rows.items()
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
    """Stack the gates into the tensors of a PyTorch state_dict; a bias that the spec has not got becomes zeros."""
    stacks: dict[str, list[Array]] = {}
    dtype = next(iter(values.values())).dtype
    for part in sorted(_torch_parts(spec), key=lambda part: (part.pseudo_layer, part.field)):
        value = values.get(part.name, np.zeros(part.shape, dtype))
        stacks.setdefault(torch_name(part), []).append(value)
    return {name: np.concatenate(stack) for name, stack in stacks.items()}


def _torch_parts(spec: RNNSpec, **changes: Any) -> list[WeightPart]:
    """Return the parts that PyTorch has: both biases, or none; `changes` are what else others have otherwise."""
    instance_of(spec, RNNSpec, "spec")
    both = {} if spec.bias == RNNBiasMode.NO else {"bias": RNNBiasMode.DOUBLE}
    return list(weight_parts(spec.replace(**both, **changes)))


def _all_parts(spec: RNNSpec) -> list[WeightPart]:
    """Return the parts that ONNX and Keras have: PyTorch's, and an input matrix also where the spec has none."""
    return _torch_parts(spec, input_mode=RNNInputMode.LINEAR)


def _split(
    spec: RNNSpec,
    parts: Iterable[WeightPart],
    gates: Sequence[str],
    stack: Callable[[WeightPart], Array],
    matrices: str,
    biases: str,
) -> dict[str, Array]:
    """Cut parts out of what holds them, gates in that order; what the spec has not got is dropped, and must be zero.

    `matrices` and `biases` are the arguments that messages name.
    """
    values, wanted = {}, {part.name for part in weight_parts(spec)}
    for part in parts:
        value = stack(part)[part.rows(gates)]
        if part.name in wanted:
            values[part.name] = value
        elif np.any(value):
            what = f"bias {spec.bias.name}" if part.bias else "input matrix (input_mode='skip')"
            holder = biases if part.bias else matrices
            raise ArgumentError(
                f"{holder} has a {part.name} that is not zero; the spec says: {what}"
            )
    return values


def from_onnx(spec: RNNSpec, W: Any, R: Any, B: Any = None) -> dict[str, Array]:
    """Split the inputs W, R and B of ONNX nodes LSTM, GRU or RNN: arrays, or a list with one for each layer."""
    if instance_of(spec, RNNSpec, "spec").projects:
        raise ArgumentError(f"{spec} has a projection, which ONNX has no input for")
    layers = spec.num_layers
    given = {"W": _per_layer(W, "W", layers), "R": _per_layer(R, "R", layers)}
    has_bias = spec.bias != RNNBiasMode.NO
    if B is not None:
        given["B"] = _per_layer(B, "B", layers)
        if not has_bias and any(np.any(bias) for bias in given["B"]):
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
            name: checked(f"{name} of layer {layer}", of[layer], shapes[name])
            for name, of in given.items()
        }
        bias = tensors.get("B", np.zeros(shapes["B"], tensors["W"].dtype))
        stacks += zip(tensors["W"], tensors["R"], *np.split(bias, 2, axis=1), strict=True)
    return _split(
        spec, _all_parts(spec), gates, lambda part: stacks[part.pseudo_layer][part.field], "W", "B"
    )


def from_keras(spec: RNNSpec, weights: Iterable[Any]) -> dict[str, Array]:
    """Split what `get_weights()` of Keras layers returns: kernel, recurrent kernel and bias, which Keras stores transposed."""
    if instance_of(spec, RNNSpec, "spec").projects:
        raise ArgumentError(f"{spec} has a projection, which Keras's layers have not")
    flat = [
        host_array(value, f"weights[{number}]") for number, value in enumerate(_flatten(weights))
    ]
    has_bias = spec.bias != RNNBiasMode.NO
    each = 3 if has_bias else 2
    if len(flat) != each * spec.num_layers * spec.directions:
        raise ArgumentError(
            f"weights has {len(flat)} arrays; {spec} needs {each} (kernel, recurrent kernel{', bias' * has_bias}) for each of "
            f"{spec.num_layers} layers and {spec.directions} directions"
        )
    gates, hidden = _KERAS_GATES[spec.cell], spec.hidden_size
    stacked = len(gates) * hidden
    gru = spec.cell == RNNMode.GRU
    stacks: list[tuple[Array, ...]] = []
    for pseudo_layer in range(spec.num_layers * spec.directions):
        layer, direction = divmod(pseudo_layer, spec.directions)
        where = f"layer{layer}.{DIRECTIONS[direction]}"
        kernel, recurrent, *bias = flat[pseudo_layer * each : (pseudo_layer + 1) * each]
        checked(f"kernel of {where}", kernel, (spec.layer_input_size(layer), stacked))
        checked(f"recurrent kernel of {where}", recurrent, (hidden, stacked))
        if bias and gru and bias[0].ndim == 1:
            raise ArgumentError(
                f"the bias of {where} is of a GRU with reset_after=False, which cuDNN has not"
            )
        if bias:
            checked(f"bias of {where}", bias[0], (2, stacked) if gru else (stacked,))
            bias = [*bias[0]] if gru else [bias[0], np.zeros_like(bias[0])]
            if spec.bias == RNNBiasMode.SINGLE_REC and not gru:
                bias.reverse()  # Keras has one bias here; either place gives the same sums
        stacks.append((kernel.T, recurrent.T, *bias))
    return _split(
        spec,
        _all_parts(spec),
        gates,
        lambda part: stacks[part.pseudo_layer][part.field],
        "weights",
        "weights",
    )


def check_names(
    argument: str, given: Mapping[str, Any], wanted: Mapping[str, Any], *, all_of_them: bool = True
) -> None:
    """Raise ArgumentError unless all names that are wanted are given, and no others."""
    check_mapping(given, argument)
    missing = sorted(set(wanted) - set(given)) if all_of_them else []
    extra = sorted(set(given) - set(wanted))
    told = [
        f"{kind} {', '.join(names)}"
        for kind, names in (("missing", missing), ("not known", extra))
        if names
    ]
    if told:
        raise ArgumentError(f"{argument}: {'; '.join(told)}")


def check_mapping(given: Any, argument: str) -> None:
    """Raise ArgumentError unless it is a mapping of names to something."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ArgumentError(
            f"{argument} of type {type(given).__name__} is no mapping of names to arrays"
        )


def checked(what: str, value: Any, shape: tuple[int, ...]) -> Array:
    """Return it as `host_array` does; ArgumentError if it has another shape."""
    array = host_array(value, what)
    if array.shape != shape:
        raise ArgumentError(f"{what} has shape {array.shape}; needed: {shape}")
    return array


def _per_layer(value: Any, argument: str, layers: int) -> list[Array]:
    given = list(value) if isinstance(value, (list, tuple)) else [value]
    if len(given) != layers:
        raise ArgumentError(
            f"{argument} has {len(given)} arrays; the spec has {layers} layers, one ONNX node for each"
        )
    return [host_array(item, f"{argument} of layer {layer}") for layer, item in enumerate(given)]


def _flatten(weights: Any) -> Iterable[Any]:
    for item in sequence(weights, "weights", "what a Keras layer's get_weights() returns"):
        if isinstance(item, Sequence) and len(item) and hasattr(item[0], "shape"):
            yield from item
        else:
            yield item
