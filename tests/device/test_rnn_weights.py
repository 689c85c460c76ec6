"""RNNWeights on a device.

Names and places, reading and writing, and the formats of PyTorch, ONNX and Keras.
"""

from __future__ import annotations

import copy
import importlib.util
import pickle
import re
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from helpers.refusals import refuses
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from rnn_oracles import onnx_rnn, random_weights
from tolerances import assert_close

import cudnnlite as dnn
from cudnnlite.emulated.device import EmulatedDevice

from .problems import PATTERN, fill, memory_of
from .test_memory import used
from .test_rnn_plan import Network

Array = np.ndarray[Any, Any]
HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
ARGUMENT, ARRAY = dnn.ArgumentError, dnn.ArrayTypeError
T, N, I, H = 5, 3, 4, 6  # noqa: E741
EXACT = 1e-12
GATES = {"lstm": "ifgo", "gru": "rzn", "relu": "h", "tanh": "h"}
BIASES = ("none", "single_input", "single_recurrent", "double")
NETWORKS = {
    f"{cell}{'_projected' if projection else ''}_{layers}{'_bi' if bi else ''}": (
        cell,
        layers,
        bi,
        projection,
    )
    for (cell, projection), layers, bi in product(
        (("lstm", None), ("lstm", 2), ("gru", None), ("relu", None), ("tanh", None)),
        (1, 3),
        (False, True),
    )
}
networks = pytest.mark.parametrize("network", NETWORKS)
TORCH_KINDS = {"lstm": "LSTM", "gru": "GRU", "relu": "RNN", "tanh": "RNN"}


def spec_of(network: str, **options: Any) -> dnn.RNNSpec:
    cell, layers, bi, projection = NETWORKS[network]
    return dnn.RNNSpec(
        cell, I, H, layers, bi, **{"projection_size": projection, "dtype": "float64"} | options
    )


def values_of(spec: dnn.RNNSpec, seed: int = 0) -> dict[str, Array]:
    """Return random weights under cudnnlite's names, which the oracle knows by itself."""
    bias = dict(
        zip(
            dnn.enums.RNNBiasMode,
            ("none", "single_input", "double", "single_recurrent"),
            strict=False,
        )
    )
    return random_weights(
        np.random.default_rng(seed),
        spec.cell.name.lower(),
        spec.input_size,
        spec.hidden_size,
        spec.num_layers,
        spec.bidirectional,
        spec.projection_size,
        bias[spec.bias],
        spec.input_mode == dnn.enums.RNNInputMode.SKIP,
    )


def run(handle: dnn.Handle, spec: dnn.RNNSpec, weights: dnn.RNNWeights, x: Array) -> list[Array]:
    """Return y, hy and, of an LSTM, cy."""
    out = dnn.rnn_forward(handle, spec, weights, handle.array(x), algorithm="standard")
    return [array.numpy() for array in out if array is not None]


def inputs(spec: dnn.RNNSpec, seed: int = 5) -> Array:
    return np.random.default_rng(seed).standard_normal((T, N, spec.input_size))


def assert_all_close(arrays: list[Array], expected: Any, bound: float = EXACT) -> None:
    references = [np.asarray(values, np.float64) for values in expected if values is not None]
    for one, other in zip(arrays, references, strict=True):
        assert_close(one, other, bound)


# ---------------------------------------------------------------- names and places


@pytest.mark.parametrize("bias", BIASES)
@networks
def test_names_and_shapes(handle: dnn.Handle, network: str, bias: str) -> None:
    spec = spec_of(network, bias=bias)
    expected = {name: values.shape for name, values in values_of(spec).items()}
    weights = dnn.RNNWeights(handle, spec)
    assert {name: weights[name].shape for name in weights} == expected
    assert len(weights) == len(expected)
    assert set(weights) == weights.keys() == expected.keys()
    assert [place.name for place in weights.layout()] == list(weights)
    assert {place.name: place.shape for place in weights.layout()} == expected
    assert {name: values.shape for name, values in weights.numpy().items()} == expected


def test_names_come_layer_by_layer(handle: dnn.Handle) -> None:
    weights = dnn.RNNWeights(handle, dnn.RNNSpec("lstm", I, H, 2, True, projection_size=2))
    names = list(weights)
    assert names[:4] == [
        "layer0.forward.input.i",
        "layer0.forward.input.i.bias",
        "layer0.forward.input.f",
        "layer0.forward.input.f.bias",
    ]
    assert names[16] == "layer0.forward.projection"
    assert names[17] == "layer0.backward.input.i"
    assert names[34] == "layer1.forward.input.i"
    assert names[-1] == "layer1.backward.projection"
    assert weights["layer0.forward.input.i"].shape == (H, I)
    assert weights["layer1.forward.input.i"].shape == (H, 4)
    assert weights["layer1.backward.recurrent.o"].shape == (H, 2)


def test_a_skipped_input_has_no_matrices(handle: dnn.Handle) -> None:
    spec = dnn.RNNSpec("gru", H, H, 2, True, input_mode="skip")
    weights = dnn.RNNWeights(handle, spec)
    assert set(weights) == set(values_of(spec))
    assert "layer0.forward.input.r" not in weights
    assert "layer0.forward.input.r.bias" in weights
    assert "layer1.forward.input.r" in weights


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@networks
def test_places_do_not_overlap(handle: dnn.Handle, network: str, dtype: str) -> None:
    spec = spec_of(network, dtype=dtype)
    weights = dnn.RNNWeights(handle, spec)
    layout = weights.layout()
    size = weights.array.dtype.itemsize
    ends = sorted(
        (place.offset, place.offset + int(np.prod(place.shape)) * size) for place in layout
    )
    assert ends[0][0] >= 0
    assert all(end <= begin for (_, end), (begin, _) in pairwise(ends))
    assert ends[-1][1] <= layout.nbytes == weights.nbytes <= weights.array.nbytes
    assert all(place.offset % size == 0 for place in layout)
    assert all(weights[place.name].ptr == weights.array.ptr + place.offset for place in layout)


def test_the_layout_prints_as_a_table(handle: dnn.Handle) -> None:
    weights = dnn.RNNWeights(handle, dnn.RNNSpec("gru", I, H))
    layout = weights.layout()
    heading, *lines, last = str(layout).splitlines()
    assert heading.split() == ["name", "offset", "shape"]
    assert last == f"{weights.nbytes} bytes"
    assert [line.split(maxsplit=2) for line in lines] == [
        [p.name, str(p.offset), str(p.shape)] for p in layout
    ]
    assert layout[0] == dnn.types.WeightPlace("layer0.forward.input.r", layout[0].offset, (H, I))
    assert len(layout[2:5]) == 3
    assert isinstance(layout, dnn.types.WeightLayout)


def test_zero_at_first(handle: dnn.Handle) -> None:
    held = [handle.array(np.full(5000, np.nan, np.float32)) for _ in range(5)]
    del held  # what is allocated next may lie there
    weights = dnn.RNNWeights(handle, dnn.RNNSpec("lstm", I, H, 2, True))
    assert (memory_of(weights.array) == 0).all()
    assert all((values == 0).all() for values in weights.numpy().values())
    gradients = dnn.RNNWeights.zeros_like(handle, weights)
    assert (memory_of(gradients.array) == 0).all()
    assert gradients.layout()[:] == weights.layout()[:]
    assert gradients.array.ptr != weights.array.ptr


def test_fill_zero(handle: dnn.Handle) -> None:
    network = Network(handle)
    network.weights.fill_zero(handle.stream)
    assert (memory_of(network.weights.array) == 0).all()


def test_repr_and_identity(handle: dnn.Handle) -> None:
    one, other = (dnn.RNNWeights(handle, dnn.RNNSpec("gru", I, H)) for _ in range(2))
    assert repr(one) == f"<RNNWeights of {one.spec} on {handle.device}>"
    assert one == one  # noqa: PLR0124
    assert one != other
    assert len({one, other, one}) == 2


# ---------------------------------------------------------------- one by one


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_set_and_get(handle: dnn.Handle, dtype: str) -> None:
    """Each name by itself, and nothing beside it changes."""
    spec = dnn.RNNSpec("lstm", I, H, 2, True, projection_size=2, dtype=dtype)
    weights = dnn.RNNWeights(handle, spec)
    expected = {name: np.zeros(weights[name].shape, weights.array.dtype) for name in weights}
    rng = np.random.default_rng(0)
    for name in weights:
        values = rng.standard_normal(weights[name].shape)
        weights[name] = values
        expected[name] = values.astype(weights.array.dtype)
        np.testing.assert_array_equal(weights[name].numpy(), expected[name])
    for name, values in weights.numpy().items():
        assert values.dtype == weights.array.dtype
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


def test_what_may_be_assigned(handle: dnn.Handle) -> None:
    weights = dnn.RNNWeights(handle, dnn.RNNSpec("gru", 2, 3))
    name, bias = "layer0.forward.input.z", "layer0.forward.recurrent.n.bias"
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    givens: list[Any] = [
        values,
        values.tolist(),
        values.astype(np.float64),
        values.astype(np.int8),
        np.asfortranarray(values),
        np.repeat(values, 2, axis=1)[:, ::2],
        handle.array(values),
        weights[name],
    ]
    weights[name] = values
    for source in givens:
        weights[name] = source
        np.testing.assert_array_equal(weights[name].numpy(), values)
        weights[name] = np.zeros((3, 2))
        if source is not givens[-1]:
            weights[name] = source
    weights[bias] = (1, 2, 3)
    np.testing.assert_array_equal(weights[bias].numpy(), [1, 2, 3])


def test_a_part_shares_the_memory(handle: dnn.Handle) -> None:
    weights = dnn.RNNWeights(handle, dnn.RNNSpec("gru", 2, 3))
    name = "layer0.forward.recurrent.r"
    part = weights[name]
    weights[name] = np.eye(3)
    np.testing.assert_array_equal(part.numpy(), np.eye(3))
    handle.device.copy_in(part.ptr, np.full((3, 3), 7, np.float32), handle.stream)
    np.testing.assert_array_equal(weights.numpy()[name], np.full((3, 3), 7))
    assert not part.readonly
    assert part.stream is weights.array.stream


@pytest.mark.parametrize(
    "name",
    [
        "layer0.forward.input.x",
        "layer1.forward.input.i",
        "layer0.backward.input.i",
        "layer0.forward.projection",
        "layer0.forward.input.i.biases",
        "weight_ih_l0",
        "",
        "Layer0.forward.input.i",
        None,
        5,
        ("a",),
        ["a"],
    ],
    ids=repr,
)
def test_a_name_that_is_not_there(handle: dnn.Handle, name: Any) -> None:
    weights = dnn.RNNWeights(handle, dnn.RNNSpec("lstm", I, H))
    message = rf"{re.escape(repr(name))}.*is no weight of RNNSpec.*layer0\.forward\.input\.i"
    with pytest.raises(KeyError, match=message.replace("'", "['\"]")):
        weights[name]
    with pytest.raises(KeyError):
        weights[name] = np.zeros((H, I))
    if not isinstance(name, list):
        assert name not in weights
        assert weights.get(name) is None
    assert (memory_of(weights.array) == 0).all()


@pytest.mark.parametrize(
    "values",
    [
        np.zeros((I, H)),
        np.zeros((H, I + 1)),
        np.zeros(H * I),
        np.zeros((1, H, I)),
        0.0,
        np.zeros((H, 1)),
        [],
        [[1.0]],
    ],
    ids=lambda values: str(np.shape(values)),
)
def test_a_shape_that_does_not_fit(handle: dnn.Handle, values: Any) -> None:
    """Nothing is broadcast, transposed or flattened."""
    weights = dnn.RNNWeights(handle, dnn.RNNSpec("lstm", I, H))
    name = "layer0.forward.input.f"

    def assign() -> None:
        weights[name] = values

    refuses(
        ARGUMENT,
        rf"weights\['{name}'\] has shape \(6, 4\); given: {re.escape(str(np.shape(values)))}",
        assign,
    )
    assert (memory_of(weights.array) == 0).all()


@pytest.mark.parametrize("value", ["values", None, 1 + 2j], ids=["text", "none", "complex"])
def test_what_is_no_number(handle: dnn.Handle, value: Any) -> None:
    """The right shape, of something else: nothing is written, and the argument is named."""
    weights = dnn.RNNWeights(handle, dnn.RNNSpec("lstm", 1, 1))
    values = dict.fromkeys(weights, np.zeros((1, 1))) | {
        name: np.zeros(1) for name in weights if "bias" in name
    }
    values["layer0.forward.input.f"] = np.array([[value]])

    def assign() -> None:
        weights["layer0.forward.input.f"] = values["layer0.forward.input.f"]

    refuses(dnn.CudnnliteError, r"layer0\.forward\.input\.f", assign)
    refuses(dnn.CudnnliteError, r"layer0\.forward\.input\.f", lambda: weights.update(values))
    assert (memory_of(weights.array) == 0).all()


def test_closed(handle: dnn.Handle) -> None:
    before = used(handle.device)
    weights = dnn.RNNWeights(handle, dnn.RNNSpec("lstm", I, H))
    name = next(iter(weights))
    weights.close()
    weights.close()
    assert used(handle.device) == before
    calls: list[Any] = [
        lambda: weights[name],
        weights.numpy,
        weights.to_torch,
        lambda: weights.update({key: np.zeros(shape) for key, _, shape in weights.layout()}),
        lambda: weights.fill_zero(handle.stream),
        lambda: weights.view(handle).numpy(),
        lambda: dnn.rnn_forward(handle, weights.spec, weights, handle.empty((T, N, I))),
    ]
    for call in calls:
        refuses(dnn.errors.ClosedError, "closed", call)


# ---------------------------------------------------------------- all at once


@networks
def test_update(handle: dnn.Handle, network: str) -> None:
    spec = spec_of(network)
    first, second = values_of(spec), values_of(spec, 1)
    weights = dnn.RNNWeights.from_arrays(handle, spec, first)
    for values in (first, second):
        weights.update(values)
        for name, array in weights.numpy().items():
            np.testing.assert_array_equal(array, values[name])
        cell = spec.cell.name.lower()
        assert_all_close(
            run(handle, spec, weights, inputs(spec)), onnx_rnn(cell, values, inputs(spec))
        )


def test_an_update_of_a_part(handle: dnn.Handle) -> None:
    spec = dnn.RNNSpec("gru", I, H, dtype="float64")
    first, second = values_of(spec), values_of(spec, 1)
    weights = dnn.RNNWeights.from_arrays(handle, spec, first)
    updates = {name: second[name] for name in list(second)[1::3]}
    weights.update(updates)
    for name, array in weights.numpy().items():
        np.testing.assert_array_equal(array, (first | updates)[name])


REFUSED: dict[str, tuple[str, Any]] = {
    "missing": (
        r"values: missing layer0\.forward\.input\.i$",
        lambda v: v.pop("layer0.forward.input.i"),
    ),
    "two_missing": (
        r"missing layer0\.forward\.input\.f\.bias, layer0\.forward\.input\.i",
        lambda v: (v.pop("layer0.forward.input.i"), v.pop("layer0.forward.input.f.bias")),
    ),
    "extra": (
        r"values: not known layer0\.forward\.input\.x$",
        lambda v: v.update({"layer0.forward.input.x": 1}),
    ),
    "misspelled": (
        r"missing layer0\.forward\.input\.i; not known layer0\.forward\.inputs\.i",
        lambda v: v.update({"layer0.forward.inputs.i": v.pop("layer0.forward.input.i")}),
    ),
    "misshapen": (
        r"values\['layer0\.forward\.recurrent\.o'\] has shape \(4, 6\); needed: \(6, 6\)",
        lambda v: v.update({"layer0.forward.recurrent.o": np.zeros((4, 6))}),
    ),
    "misshapen_last": (
        r"values\['layer0\.forward\.recurrent\.o\.bias'\] has shape \(6, 1\); needed: \(6,\)",
        lambda v: v.update({"layer0.forward.recurrent.o.bias": np.zeros((6, 1))}),
    ),
    "scalar": (
        r"values\['layer0\.forward\.input\.g'\] has shape \(\)",
        lambda v: v.update({"layer0.forward.input.g": 1.0}),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_update_is_all_or_nothing(handle: dnn.Handle, case: str) -> None:
    match, change = REFUSED[case]
    spec = dnn.RNNSpec("lstm", I, H)
    weights = dnn.RNNWeights.from_arrays(handle, spec, values_of(spec))
    before, held = memory_of(weights.array), used(handle.device)
    values = values_of(spec, 1)
    change(values)
    if "not known" in match or "missing" not in match:  # a part will do
        refuses(ARGUMENT, match.split("; ")[-1], lambda: weights.update(values))
    np.testing.assert_array_equal(memory_of(weights.array), before)
    refuses(ARGUMENT, match, lambda: dnn.RNNWeights.from_arrays(handle, spec, values))
    assert used(handle.device) == held


def test_an_update_keeps_to_its_places(handle: dnn.Handle) -> None:
    """What is written begins and ends with the buffer."""
    network = Network(handle)
    memory = handle.empty((network.weights.array.nbytes + 1024,), "uint8")
    fill(memory, PATTERN)
    inside = network.weights.view(handle)
    inside.array = dnn.DeviceArray(
        network.weights.array.spec, handle.device, memory.ptr + 512, memory, handle.stream
    )
    inside.update(network.values)
    for name in inside:
        inside[name] = network.values[name]
    inside.fill_zero(handle.stream)
    content = memory_of(memory)
    assert (content[:512] == PATTERN).all()
    assert (content[-512:] == PATTERN).all()


def test_arrays_on_the_device(handle: dnn.Handle) -> None:
    """`update` takes what an assignment takes: one device array, or other weights."""
    spec, name = dnn.RNNSpec("gru", I, H), "layer0.forward.input.r"
    weights = dnn.RNNWeights.from_arrays(handle, spec, values_of(spec))
    for values in ({name: weights[name]}, weights):
        other = dnn.RNNWeights(handle, spec)
        other.update(values)
        np.testing.assert_array_equal(other[name].numpy(), weights[name].numpy())
    np.testing.assert_array_equal(memory_of(other.array), memory_of(weights.array))
    refuses(
        ARGUMENT,
        rf"values\['{name}'\] has shape \(6,\)",
        lambda: weights.update({name: weights[f"{name}.bias"]}),
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["rnn", "attention"])
def test_values_that_are_too_large(handle: dnn.Handle, kind: str) -> None:
    """As of arrays: refused, and nothing is written, in a part or in all."""
    spec = (
        dnn.RNNSpec("gru", I, H)
        if kind == "rnn"
        else dnn.AttentionSpec(2, 4, q_proj_size=2, k_proj_size=2, o_proj_size=4, bias=True)
    )
    make: Any = dnn.RNNWeights if kind == "rnn" else dnn.AttentionWeights
    weights = make(handle, spec)
    first, *_, name = weights
    values = {key: np.ones(weights[key].shape) for key in weights} | {
        name: np.full(weights[name].shape, 1e300)
    }
    message = "of float64 as float32 would lose values that are too large"

    def assign() -> None:
        weights[name] = values[name]

    refuses(ARGUMENT, rf"weights\['{name}'\] {message}", assign)
    for updates in (values, {key: values[key] for key in (first, name)}):
        refuses(
            ARGUMENT,
            rf"values\['{name}'\] {message}",
            lambda updates=updates: weights.update(updates),
        )
    refuses(ARGUMENT, message, lambda: make.from_arrays(handle, spec, values))
    assert (memory_of(weights.array) == 0).all()
    weights.update(dict.fromkeys([name], np.full(weights[name].shape, np.inf)))


def test_a_name_that_is_nearly_there(handle: dnn.Handle) -> None:
    weights = dnn.RNNWeights(handle, dnn.RNNSpec("lstm", I, H))
    with pytest.raises(KeyError, match=r"did you mean layer0\.forward\.recurrent\.o\?"):
        weights["layer0.forward.recurent.o"]
    with pytest.raises(KeyError, match=r", \.\.\.\"$"):
        weights["typo"]
    wrong: Any = {"layer0": 3}
    with pytest.raises(TypeError, match=r"^weights\.update\(\) got .*'layer0'"):
        weights.update(**wrong)


# ---------------------------------------------------------------- PyTorch


def torch_module(spec: dnn.RNNSpec, dtype: str = "float64") -> Any:
    import torch

    cell = spec.cell.name.lower()
    options: dict[str, Any] = {"nonlinearity": cell} if TORCH_KINDS[cell] == "RNN" else {}
    if spec.projection_size:
        options["proj_size"] = spec.projection_size
    torch.manual_seed(0)
    return getattr(torch.nn, TORCH_KINDS[cell])(
        spec.input_size,
        spec.hidden_size,
        spec.num_layers,
        bias=spec.bias != dnn.enums.RNNBiasMode.NO,
        bidirectional=spec.bidirectional,
        dtype=getattr(torch, dtype),
        **options,
    )


def torch_state(spec: dnn.RNNSpec, seed: int = 0) -> dict[str, Array]:
    """Return a state_dict with the names and shapes of PyTorch's documentation."""
    rng = np.random.default_rng(seed)
    gates = len(GATES[spec.cell.name.lower()])
    state: dict[str, Array] = {}
    for layer, suffix in product(range(spec.num_layers), ("", "_reverse")[: spec.directions]):
        outputs = spec.projection_size or spec.hidden_size
        columns = spec.input_size if layer == 0 else spec.directions * outputs
        rows = gates * spec.hidden_size
        where = f"l{layer}{suffix}"
        state[f"weight_ih_{where}"] = rng.standard_normal((rows, columns))
        state[f"weight_hh_{where}"] = rng.standard_normal((rows, outputs))
        if spec.bias != dnn.enums.RNNBiasMode.NO:
            state[f"bias_ih_{where}"] = rng.standard_normal(rows)
            state[f"bias_hh_{where}"] = rng.standard_normal(rows)
        if spec.projection_size:
            state[f"weight_hr_{where}"] = rng.standard_normal((outputs, spec.hidden_size))
    return state


@needs_torch
@pytest.mark.parametrize("bias", [False, True], ids=["no_bias", "bias"])
@networks
def test_a_torch_module_computes_the_same(handle: dnn.Handle, network: str, bias: bool) -> None:
    import torch

    spec = spec_of(network, bias=bias)
    module = torch_module(spec)
    weights = dnn.RNNWeights.from_torch(handle, spec, module.state_dict())
    x = inputs(spec)
    with torch.no_grad():
        y, state = module(torch.from_numpy(x))
    states = list(state) if isinstance(state, tuple) else [state]
    assert_all_close(run(handle, spec, weights, x), [values.numpy() for values in [y, *states]])


@needs_torch
@pytest.mark.parametrize("bias", [False, True], ids=["no_bias", "bias"])
@networks
def test_torch_and_back(handle: dnn.Handle, network: str, bias: bool) -> None:
    """Every bit, both ways; and PyTorch takes what comes back."""
    import torch

    spec = spec_of(network, bias=bias)
    module, other = torch_module(spec), torch_module(spec)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    weights = dnn.RNNWeights.from_torch(handle, spec, module.state_dict())
    back = weights.to_torch()
    other.load_state_dict({name: torch.from_numpy(values) for name, values in back.items()})
    for name, values in module.state_dict().items():
        assert torch.equal(values, other.state_dict()[name]), name
    again = dnn.RNNWeights.from_torch(handle, spec, back)
    np.testing.assert_array_equal(memory_of(again.array), memory_of(weights.array))


@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_torch_and_back_in_other_types(handle: dnn.Handle, dtype: str) -> None:
    import torch

    spec = spec_of("lstm_3_bi", dtype=dtype)
    module = torch_module(spec, dtype)
    weights = dnn.RNNWeights.from_torch(handle, spec, module.state_dict())
    for name, values in weights.to_torch().items():
        expected = module.state_dict()[name].float().numpy()
        assert values.dtype == weights.array.dtype
        np.testing.assert_array_equal(values.astype(np.float32), expected, err_msg=name)
    wider = dnn.RNNWeights.from_torch(
        handle, spec.replace(dtype="float64", compute_type=None), module.state_dict()
    )
    for name, values in wider.to_torch().items():
        np.testing.assert_array_equal(
            values, module.state_dict()[name].double().numpy(), err_msg=name
        )
    assert torch.is_grad_enabled()  # left as it was


@needs_torch
def test_torch_parameters_that_require_a_gradient(handle: dnn.Handle) -> None:
    spec = spec_of("gru_1")
    module = torch_module(spec)
    weights = dnn.RNNWeights.from_torch(handle, spec, dict(module.named_parameters()))
    name = "layer0.forward.input.r"
    weights[name] = module.weight_ih_l0[:H]
    np.testing.assert_array_equal(weights[name].numpy(), module.weight_ih_l0[:H].detach().numpy())


@pytest.mark.parametrize("bias", [False, True], ids=["no_bias", "bias"])
@networks
def test_a_torch_state_dict_and_back(handle: dnn.Handle, network: str, bias: bool) -> None:
    """The same without PyTorch: gates are stacked i f g o, r z n."""
    spec = spec_of(network, bias=bias)
    state = torch_state(spec)
    weights = dnn.RNNWeights.from_torch(handle, spec, state)
    back = weights.to_torch()
    assert back.keys() == state.keys()
    for name, values in state.items():
        np.testing.assert_array_equal(back[name], values, err_msg=name)
    gates = GATES[spec.cell.name.lower()]
    for number, gate in enumerate(gates):
        rows = slice(number * H, (number + 1) * H)
        np.testing.assert_array_equal(
            weights[f"layer0.forward.recurrent.{gate}"].numpy(), state["weight_hh_l0"][rows]
        )
        if bias:
            part = weights[f"layer{spec.num_layers - 1}.forward.input.{gate}.bias"].numpy()
            np.testing.assert_array_equal(part, state[f"bias_ih_l{spec.num_layers - 1}"][rows])
        if spec.bidirectional:
            part = weights[f"layer0.backward.input.{gate}"].numpy()
            np.testing.assert_array_equal(part, state["weight_ih_l0_reverse"][rows])


@pytest.mark.parametrize("side", ["ih", "hh"])
@pytest.mark.parametrize("network", ["lstm_3_bi", "gru_1", "tanh_1"])
def test_a_single_bias_of_torch(handle: dnn.Handle, network: str, side: str) -> None:
    """The other one has to be zero, and is zero on the way back."""
    lost = "hh" if side == "ih" else "ih"
    spec = spec_of(network, bias={"ih": "single_input", "hh": "single_recurrent"}[side])
    state = torch_state(spec.replace(bias="double"))
    refuses(
        ARGUMENT,
        (
            rf"state_dict: layer\d\.\w+\.{'recurrent' if side == 'ih' else 'input'}\.\w\.bias "
            r"is not zero"
        ),
        lambda: dnn.RNNWeights.from_torch(handle, spec, state),
    )
    for name in state:
        if name.startswith(f"bias_{lost}"):
            state[name] = np.zeros_like(state[name])
    weights = dnn.RNNWeights.from_torch(handle, spec, state)
    back = weights.to_torch()
    assert back.keys() == state.keys()
    for name, values in state.items():
        np.testing.assert_array_equal(back[name], values, err_msg=name)
    double = dnn.RNNWeights.from_torch(handle, spec.replace(bias="double"), state)
    result, expected = (
        run(handle, one, w, inputs(one))
        for one, w in ((spec, weights), (spec.replace(bias="double"), double))
    )
    assert_all_close(result, expected)


def test_a_prefix(handle: dnn.Handle) -> None:
    spec = spec_of("lstm_3_bi")
    state = torch_state(spec)
    model = {f"encoder.lstm.{name}": values for name, values in state.items()}
    model |= {
        "encoder.embedding.weight": np.zeros((3, 3)),
        "decoder.lstm.weight_ih_l0": np.zeros((1, 1)),
        "step": 5,
    }
    weights = dnn.RNNWeights.from_torch(handle, spec, model, prefix="encoder.lstm.")
    assert all((values == state[name]).all() for name, values in weights.to_torch().items())
    refuses(
        ARGUMENT,
        r"state_dict.*missing bias_hh_l0.*not known decoder\.lstm.*; prefix='decoder\.lstm\.' is one",
        lambda: dnn.RNNWeights.from_torch(handle, spec, model),
    )
    refuses(
        ARGUMENT,
        r"state_dict.*missing decoder\.lstm\.bias_hh_l0, ",
        lambda: dnn.RNNWeights.from_torch(handle, spec, model, prefix="decoder.lstm."),
    )
    model["encoder.lstm.weight_ih_l7"] = np.zeros((1, 1))
    refuses(
        ARGUMENT,
        r"state_dict.*not known encoder\.lstm\.weight_ih_l7",
        lambda: dnn.RNNWeights.from_torch(handle, spec, model, prefix="encoder.lstm."),
    )


TORCH_REFUSED: dict[str, tuple[str, Any]] = {
    "missing": (r"state_dict: missing weight_hh_l0$", lambda s: s.pop("weight_hh_l0")),
    "missing_bias": (
        r"state_dict: missing bias_hh_l0, bias_ih_l0$",
        lambda s: (s.pop("bias_ih_l0"), s.pop("bias_hh_l0")),
    ),
    "extra_layer": (
        r"state_dict: not known weight_ih_l1; .* RNNSpec\(\.\.\., num_layers=2\)$",
        lambda s: s.update(weight_ih_l1=np.zeros((24, 6))),
    ),
    "extra_direction": (
        r"not known weight_ih_l0_reverse; .* RNNSpec\(\.\.\., bidirectional=True\)$",
        lambda s: s.update(weight_ih_l0_reverse=np.zeros((24, 4))),
    ),
    "extra_projection": (
        r"state_dict: not known weight_hr_l0$",
        lambda s: s.update(weight_hr_l0=np.zeros((2, 6))),
    ),
    "misshapen": (
        r"state_dict\['weight_ih_l0'\] has shape \(24, 5\); needed: \(24, 4\)",
        lambda s: s.update(weight_ih_l0=np.zeros((24, 5))),
    ),
    "transposed": (
        r"state_dict\['weight_ih_l0'\] has shape \(4, 24\)",
        lambda s: s.update(weight_ih_l0=np.zeros((4, 24))),
    ),
    "gates_of_a_gru": (
        r"state_dict\['weight_hh_l0'\] has shape \(18, 6\)",
        lambda s: s.update(weight_hh_l0=np.zeros((18, 6))),
    ),
    "misshapen_bias": (
        r"state_dict\['bias_hh_l0'\] has shape \(24, 1\); needed: \(24,\)",
        lambda s: s.update(bias_hh_l0=np.zeros((24, 1))),
    ),
}


@pytest.mark.parametrize("case", TORCH_REFUSED)
def test_a_torch_state_dict_that_does_not_fit(handle: dnn.Handle, case: str) -> None:
    match, change = TORCH_REFUSED[case]
    spec = spec_of("lstm_1")
    state = torch_state(spec)
    change(state)
    before = used(handle.device)
    refuses(ARGUMENT, match, lambda: dnn.RNNWeights.from_torch(handle, spec, state))
    assert used(handle.device) == before


def test_a_bias_that_the_spec_has_not(handle: dnn.Handle) -> None:
    state = torch_state(spec_of("lstm_1"))
    refuses(
        ARGUMENT,
        "state_dict: not known bias_hh_l0, bias_ih_l0",
        lambda: dnn.RNNWeights.from_torch(handle, spec_of("lstm_1", bias="none"), state),
    )


# ---------------------------------------------------------------- ONNX


def onnx_tensors(
    spec: dnn.RNNSpec, values: dict[str, Array]
) -> tuple[list[Array], list[Array], list[Array]]:
    """Return W, R and B of each layer, by ONNX's documentation.

    The gates are i o f c (LSTM) and z r h (GRU), and Wb comes before Rb.
    """
    order = {"lstm": "iofg", "gru": "zrn"}.get(spec.cell.name.lower(), "h")
    tensors: tuple[list[Array], list[Array], list[Array]] = ([], [], [])
    for layer in range(spec.num_layers):
        rows: list[list[Array]] = [[], [], []]
        for direction in ("forward", "backward")[: spec.directions]:
            where = f"layer{layer}.{direction}"

            def stack(kind: str, suffix: str = "", where: str = where) -> Array:
                zero = np.zeros(spec.hidden_size)
                return np.concatenate(
                    [values.get(f"{where}.{kind}.{gate}{suffix}", zero) for gate in order]
                )

            rows[0].append(stack("input"))
            rows[1].append(stack("recurrent"))
            rows[2].append(np.concatenate([stack("input", ".bias"), stack("recurrent", ".bias")]))
        for tensor, row in zip(tensors, rows, strict=True):
            tensor.append(np.stack(row))
    return tensors


def onnx_node(cell: str, x: Array, W: Array, R: Array, B: Array) -> list[Array]:
    """Run a forward ONNX node; return Y (T, N, H) and the last states (N, H)."""
    kind, options = {
        "lstm": ("LSTM", {}),
        "gru": ("GRU", {"linear_before_reset": 1}),
        "tanh": ("RNN", {"activations": ["Tanh"]}),
    }[cell]
    outputs = ["y", "hy", "cy"] if cell == "lstm" else ["y", "hy"]
    node = helper.make_node(kind, ["x", "w", "r", "b"], outputs, hidden_size=R.shape[2], **options)
    infos = [
        [helper.make_tensor_value_info(name, TensorProto.DOUBLE, None) for name in names]
        for names in (["x", "w", "r", "b"], outputs)
    ]
    evaluator = ReferenceEvaluator(helper.make_model(helper.make_graph([node], "one", *infos)))
    y, *states = evaluator.run(None, {"x": x, "w": W, "r": R, "b": B})
    return [y[:, 0], *(state[0] for state in states)]


@pytest.mark.parametrize("bias", [False, True], ids=["no_bias", "bias"])
@pytest.mark.parametrize("cell", ["lstm", "gru", "tanh"])
def test_an_onnx_node_computes_the_same(handle: dnn.Handle, cell: str, bias: bool) -> None:
    """Its own inputs, given to both: nothing but ONNX says what they mean."""
    spec = dnn.RNNSpec(cell, I, H, bias=bias, dtype="float64")
    rng = np.random.default_rng(0)
    rows = len(GATES[cell]) * H
    W, R = rng.standard_normal((1, rows, I)), rng.standard_normal((1, rows, H))
    B = rng.standard_normal((1, 2 * rows)) if bias else np.zeros((1, 2 * rows))
    x = inputs(spec)
    expected = onnx_node(cell, x, W, R, B)
    for tensors in ((W, R, B), ([W], [R], (B,))) if bias else ((W, R, None), (W, R, B)):
        weights = dnn.RNNWeights.from_onnx(handle, spec, *tensors)
        result = run(handle, spec, weights, x)
        assert_all_close([result[0], *(state[0] for state in result[1:])], expected)


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("network", [name for name in NETWORKS if "projected" not in name])
def test_from_onnx(handle: dnn.Handle, network: str, bias: str) -> None:
    """Several layers, both directions, every kind of bias: from the oracle's weights."""
    spec = spec_of(network, bias=bias)
    values = values_of(spec)
    W, R, B = onnx_tensors(spec, values)
    weights = dnn.RNNWeights.from_onnx(handle, spec, W, R, B)
    for name, array in weights.numpy().items():
        np.testing.assert_array_equal(array, values[name], err_msg=name)
    assert len(weights) == len(values)


def test_onnx_without_b_has_zero_biases(handle: dnn.Handle) -> None:
    spec = spec_of("gru_3_bi")
    W, R, _ = onnx_tensors(spec, values_of(spec))
    weights = dnn.RNNWeights.from_onnx(handle, spec, W, R)
    assert all(
        (values == 0).all() for name, values in weights.numpy().items() if name.endswith(".bias")
    )
    assert all(
        (values != 0).any()
        for name, values in weights.numpy().items()
        if not name.endswith(".bias")
    )


def one(values: list[Array]) -> Array:
    return values[0]


ONNX_REFUSED: dict[str, tuple[str, str, Any]] = {
    "too_few_layers": (
        "lstm_3",
        r"W has 2 arrays; the spec has 3 layers",
        lambda W, R, B: (W[:2], R, B),
    ),
    "too_few_R": ("lstm_3", r"R has 2 arrays", lambda W, R, B: (W, R[:2], B)),
    "too_few_B": ("lstm_3", r"B has 2 arrays", lambda W, R, B: (W, R, B[:2])),
    "too_many_layers": (
        "gru_1",
        r"W has 2 arrays; the spec has 1 layers",
        lambda W, R, B: (W * 2, R, B),
    ),
    "one_array_for_three_layers": (
        "lstm_3",
        r"W has 1 arrays",
        lambda W, R, B: (one(W), one(R), one(B)),
    ),
    "one_direction": (
        "gru_1_bi",
        r"W of layer 0 has shape \(1, 18, 4\)",
        lambda W, R, B: ([W[0][:1]], R, B),
    ),
    "two_directions": (
        "gru_1",
        r"W of layer 0 has shape \(2, 18, 4\)",
        lambda W, R, B: ([W[0].repeat(2, 0)], R, B),
    ),
    "no_direction_axis": (
        "gru_1",
        r"W of layer 0 has shape \(18, 4\)",
        lambda W, R, B: ([W[0][0]], R, B),
    ),
    "R_of_another_size": (
        "gru_1",
        r"R of layer 0 has shape \(1, 18, 5\); needed: \(1, 18, 6\)",
        lambda W, R, B: (W, [R[0][:, :, :5]], B),
    ),
    "half_of_B": (
        "gru_1",
        r"B of layer 0 has shape \(1, 18\); needed: \(1, 36\)",
        lambda W, R, B: (W, R, [B[0][:, :18]]),
    ),
    "second_layer": (
        "lstm_3",
        r"W of layer 1 has shape \(1, 24, 4\); needed: \(1, 24, 6\)",
        lambda W, R, B: ([W[0], W[0], W[2]], R, B),
    ),
    "a_projection": ("lstm_projected_1", r"projection", lambda W, R, B: (W, R, B)),
    "nothing": ("gru_1", r"\bW\b", lambda W, R, B: (None, R, B)),
    "no_arrays": ("gru_1", r"\bR\b", lambda W, R, B: (W, "R", B)),
}


@pytest.mark.parametrize("case", ONNX_REFUSED)
def test_onnx_inputs_that_do_not_fit(handle: dnn.Handle, case: str) -> None:
    network, match, change = ONNX_REFUSED[case]
    spec = spec_of(network)
    plain = spec.replace(projection_size=None)
    tensors = change(*onnx_tensors(plain, values_of(plain)))
    before = used(handle.device)
    refuses(ARGUMENT, match, lambda: dnn.RNNWeights.from_onnx(handle, spec, *tensors))
    assert used(handle.device) == before


@pytest.mark.parametrize(
    ("bias", "match"),
    [("none", "B is not zero, but"), ("single_input", "B: .*recurrent.* is not zero, but")],
)
def test_onnx_biases_that_the_spec_has_not(handle: dnn.Handle, bias: str, match: str) -> None:
    double, spec = spec_of("lstm_1"), spec_of("lstm_1", bias=bias)
    W, R, B = onnx_tensors(double, values_of(double))
    refuses(ARGUMENT, match, lambda: dnn.RNNWeights.from_onnx(handle, spec, W, R, B))
    dnn.RNNWeights.from_onnx(handle, spec, W, R, np.zeros_like(B[0]))  # zeros are no bias


# ---------------------------------------------------------------- Keras


def sigmoid(values: Array) -> Array:
    return 1 / (1 + np.exp(-values))


def keras_layer(
    cell: str, x: Array, kernel: Array, recurrent: Array, bias: Array | None
) -> list[Array]:
    """Return y and the last states of a Keras layer, as its `call` computes them.

    It is x @ kernel, with the gates side by side.  keras.layers.LSTMCell: i, f, c, o; GRUCell with
    reset_after: z, r, h, with two biases; SimpleRNNCell: one.
    """
    units = len(recurrent)
    h = c = np.zeros((x.shape[1], units))
    ys = []
    for step in x:
        if cell == "lstm":
            z = step @ kernel + h @ recurrent + (0 if bias is None else bias)
            i, f, candidate, o = (z[:, n * units : (n + 1) * units] for n in range(4))
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(candidate)
            h = sigmoid(o) * np.tanh(c)
        elif cell == "gru":
            matrix_x = step @ kernel + (0 if bias is None else bias[0])
            matrix_inner = h @ recurrent + (0 if bias is None else bias[1])
            x_z, x_r, x_h = np.split(matrix_x, 3, axis=-1)
            recurrent_z, recurrent_r, recurrent_h = np.split(matrix_inner, 3, axis=-1)
            z, r = sigmoid(x_z + recurrent_z), sigmoid(x_r + recurrent_r)
            h = z * h + (1 - z) * np.tanh(x_h + r * recurrent_h)
        else:
            total = step @ kernel + h @ recurrent + (0 if bias is None else bias)
            h = np.tanh(total) if cell == "tanh" else np.maximum(total, 0)
        ys.append(h)
    return [np.stack(ys), h, c] if cell == "lstm" else [np.stack(ys), h]


def keras_weights(spec: dnn.RNNSpec, seed: int = 0) -> list[list[Array]]:
    """Return random `get_weights()` for each layer and direction, in Keras's shapes."""
    rng, cell = np.random.default_rng(seed), spec.cell.name.lower()
    wide = len(GATES[cell]) * H
    weights = []
    for layer in range(spec.num_layers):
        columns = spec.input_size if layer == 0 else spec.directions * H
        for _ in range(spec.directions):
            arrays = [
                rng.standard_normal((columns, wide)) * 0.5,
                rng.standard_normal((H, wide)) * 0.5,
            ]
            if spec.bias != dnn.enums.RNNBiasMode.NO:
                arrays.append(rng.standard_normal((2, wide) if cell == "gru" else wide))
            weights.append(arrays)
    return weights


def keras_network(spec: dnn.RNNSpec, weights: list[list[Array]], x: Array) -> list[Array]:
    """Return y and the last states of stacked (bidirectional) layers."""
    cell, states = spec.cell.name.lower(), []
    for layer in range(spec.num_layers):
        ys = []
        for direction in range(spec.directions):
            kernel, recurrent, *bias = weights[layer * spec.directions + direction]
            order = slice(None, None, -1 if direction else 1)
            y, *last = keras_layer(cell, x[order], kernel, recurrent, bias[0] if bias else None)
            ys.append(y[order])
            states.append(last)
        x = np.concatenate(ys, axis=-1)
    return [x, *(np.stack(kind) for kind in zip(*states, strict=True))]


@pytest.mark.parametrize("bias", [False, True], ids=["no_bias", "bias"])
@pytest.mark.parametrize("network", [name for name in NETWORKS if "projected" not in name])
def test_from_keras(handle: dnn.Handle, network: str, bias: bool) -> None:
    spec = spec_of(network, bias=bias)
    weights, x = keras_weights(spec), inputs(spec)
    expected = keras_network(spec, weights, x)
    flat = [array for arrays in weights for array in arrays]
    for source in (weights, flat, tuple(map(tuple, weights)), iter(flat)):
        keras_copy = dnn.RNNWeights.from_keras(handle, spec, source)
        assert_all_close(run(handle, spec, keras_copy, x), expected)


def test_from_keras_with_one_bidirectional_layers_weights_together(handle: dnn.Handle) -> None:
    """`Bidirectional.get_weights()` returns the arrays of both layers, forward first."""
    spec = spec_of("lstm_3_bi")
    weights, x = keras_weights(spec), inputs(spec)
    together = [[*weights[2 * layer], *weights[2 * layer + 1]] for layer in range(3)]
    keras_copy = dnn.RNNWeights.from_keras(handle, spec, together)
    assert_all_close(run(handle, spec, keras_copy, x), keras_network(spec, weights, x))


@pytest.mark.parametrize("bias", ["single_input", "single_recurrent"])
@pytest.mark.parametrize("network", ["lstm_3_bi", "tanh_1"])
def test_keras_with_a_single_bias(handle: dnn.Handle, network: str, bias: str) -> None:
    """Keras has one bias here; cuDNN may keep it in either place."""
    spec = spec_of(network, bias=bias)
    weights, x = keras_weights(spec), inputs(spec)
    keras_copy = dnn.RNNWeights.from_keras(handle, spec, weights)
    assert_all_close(run(handle, spec, keras_copy, x), keras_network(spec, weights, x))


def test_a_keras_gru_with_a_single_bias(handle: dnn.Handle) -> None:
    """It has two, of which one has to be zero then."""
    spec = spec_of("gru_1", bias="single_input")
    weights = keras_weights(spec_of("gru_1"))
    refuses(
        ARGUMENT,
        r"recurrent\.\w\.bias is not zero",
        lambda: dnn.RNNWeights.from_keras(handle, spec, weights),
    )
    weights[0][2][1] = 0
    x = inputs(spec)
    keras_copy = dnn.RNNWeights.from_keras(handle, spec, weights)
    assert_all_close(run(handle, spec, keras_copy, x), keras_network(spec, weights, x))


KERAS_REFUSED: dict[str, tuple[str, str, Any]] = {
    "reset_after_false": (
        "gru_1",
        r"bias of layer0\.forward is of a GRU with reset_after=False",
        lambda w: [[*w[0][:2], w[0][2][0]]],
    ),
    "reset_after_false_in_the_second_direction": (
        "gru_1_bi",
        r"layer0\.backward.*reset_after=False",
        lambda w: [w[0], [*w[1][:2], w[1][2][0]]],
    ),
    "no_bias": (
        "lstm_1",
        r"weights has 2 arrays.*needs 3 \(kernel, recurrent kernel, bias\)",
        lambda w: w[0][:2],
    ),
    "too_few_layers": (
        "lstm_3",
        r"weights has 6 arrays.*3 layers and 1 directions",
        lambda w: w[:2],
    ),
    "too_many": ("lstm_1", r"weights has 6 arrays", lambda w: w * 2),
    "one_direction": ("lstm_1_bi", r"weights has 3 arrays.*2 directions", lambda w: w[:1]),
    "kernel_not_transposed": (
        "lstm_1",
        r"kernel of layer0\.forward has shape \(24, 4\); needed: \(4, 24\)",
        lambda w: [w[0][0].T, *w[0][1:]],
    ),
    "recurrent_kernel": (
        "lstm_1",
        r"recurrent kernel of layer0\.forward has shape \(4, 24\); needed: \(6, 24\)",
        lambda w: [w[0][0], w[0][0], w[0][2]],
    ),
    "bias": (
        "lstm_1",
        r"bias of layer0\.forward has shape \(2, 24\); needed: \(24,\)",
        lambda w: [*w[0][:2], np.zeros((2, 24))],
    ),
    "second_layer": (
        "tanh_3",
        r"kernel of layer1\.forward has shape \(4, 6\); needed: \(6, 6\)",
        lambda w: [w[0], w[0], w[2]],
    ),
    "a_projection": ("lstm_projected_1", r"projection", lambda w: w),
    "nothing": ("lstm_1", r"weights", lambda w: None),
    "a_number": ("lstm_1", r"weights", lambda w: 5),
    "empty": ("lstm_1", r"weights has 0 arrays", lambda w: []),
}


@pytest.mark.parametrize("case", KERAS_REFUSED)
def test_keras_weights_that_do_not_fit(handle: dnn.Handle, case: str) -> None:
    network, match, change = KERAS_REFUSED[case]
    spec = spec_of(network)
    keras_arrays = change(keras_weights(spec))
    before = used(handle.device)
    refuses(ARGUMENT, match, lambda: dnn.RNNWeights.from_keras(handle, spec, keras_arrays))
    assert used(handle.device) == before


def test_weights_are_not_pickled_and_say_what_is(handle: dnn.Handle) -> None:
    spec = dnn.RNNSpec("gru", I, H)
    weights = dnn.RNNWeights.from_arrays(handle, spec, values_of(spec))
    for duplicate in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(
            TypeError, match=r"RNNWeights cannot be copied or pickled; pickle its numpy\(\)"
        ):
            duplicate(weights)
    again = dnn.RNNWeights.from_arrays(handle, *pickle.loads(pickle.dumps((spec, weights.numpy()))))
    assert {name: array.tobytes() for name, array in again.numpy().items()} == {
        name: array.tobytes() for name, array in weights.numpy().items()
    }


# ---------------------------------------------------------------- the network's other settings


def test_weights_do_not_depend_on_how_it_is_computed(handle: dnn.Handle) -> None:
    """The weights' spec may differ in math type, compute type, clipping and dropout."""
    spec = dnn.RNNSpec("lstm", I, H, 2, math_type="fma")
    values = values_of(spec)
    weights = dnn.RNNWeights.from_arrays(
        handle, spec.replace(clip=(-1, 1), dropout=0.5, math_type="default"), values
    )
    x = inputs(spec).astype(np.float32)
    result = run(handle, spec, weights, x)
    stored = {name: value.astype(np.float32) for name, value in values.items()}
    assert_all_close(result, onnx_rnn("lstm", stored, x), 1e-5)
    other = run(handle, spec.replace(clip=(-50, 50), dropout=0.25), weights, x)
    assert_all_close(other, result, 1e-5)


def test_gradients_like_weights_of_another_device_are_on_the_handles(
    own_handle: dnn.Handle,
) -> None:
    with dnn.Handle(EmulatedDevice(8, capacity="1 MiB")) as other_handle:
        zeros = dnn.RNNWeights.zeros_like(
            own_handle, dnn.RNNWeights(other_handle, dnn.RNNSpec("lstm", 2, 3))
        )
        assert zeros.device is own_handle.device
        assert zeros.array.device is own_handle.device
        assert not zeros.array.numpy().any()
