"""Formats of other libraries' weights, without a device.

Every element of the stacked arrays comes back, and nothing else.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudnnlite import ArgumentError, RNNSpec
from cudnnlite.operations.rnn.formats import from_keras, from_onnx, from_torch, to_torch
from cudnnlite.plans.host_arrays import host_array
from cudnnlite.specs.rnn_weights import weight_parts

SETTINGS = settings(max_examples=80)
GATES = {"lstm": "ifgo", "gru": "rzn", "relu": "h", "tanh": "h"}
ONNX = {"lstm": "iofg", "gru": "zrn", "relu": "h", "tanh": "h"}
KERAS = {"lstm": "ifgo", "gru": "zrn", "relu": "h", "tanh": "h"}  # i f c o; z r h


@st.composite
def specs(draw, *, projections=True, biases=("none", "single_input", "single_recurrent", "double")):
    cell = draw(st.sampled_from(list(GATES)))
    hidden = draw(st.integers(1, 4))
    projection = (
        draw(st.none() | st.integers(1, hidden)) if projections and cell == "lstm" else None
    )
    return RNNSpec(
        cell,
        draw(st.integers(1, 4)),
        hidden,
        draw(st.integers(1, 3)),
        draw(st.booleans()),
        projection_size=projection,
        bias=draw(st.sampled_from(biases)),
    )


def numbered(spec):
    """Return weights under cudnnlite's names in which no two numbers are alike."""
    values, start = {}, 1
    for part in weight_parts(spec):
        size = int(np.prod(part.shape))
        values[part.name] = np.arange(start, start + size, dtype=np.float64).reshape(part.shape)
        start += size
    return values


def assert_same(arrays, expected):
    assert arrays.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(arrays[name], values, err_msg=name)


def stacked(values, where, kind, gates):
    return np.concatenate([values[f"{where}.{kind}.{gate}"] for gate in gates])


def biases_of(values, where, kind, gates, hidden):
    """Stack biases; zeros for those that are not there."""
    return np.concatenate(
        [values.get(f"{where}.{kind}.{gate}.bias", np.zeros(hidden)) for gate in gates]
    )


def places(spec):
    for layer in range(spec.num_layers):
        for number, direction in enumerate(("forward", "backward")[: spec.directions]):
            yield layer, number, f"layer{layer}.{direction}"


@SETTINGS
@given(specs())
def test_pytorch(spec):
    """Names are weight_ih_l0_reverse and so on, and gates are stacked from top to bottom.

    If the spec has one bias, PyTorch's other one is zeros; if it has none, PyTorch has none.
    """
    values, state = numbered(spec), {}
    gates = GATES[spec.cell.name.lower()]
    for layer, number, where in places(spec):
        end = f"l{layer}{'_reverse' * number}"
        state[f"weight_ih_{end}"] = stacked(values, where, "input", gates)
        state[f"weight_hh_{end}"] = stacked(values, where, "recurrent", gates)
        if spec.bias.name != "NO":
            state[f"bias_ih_{end}"] = biases_of(values, where, "input", gates, spec.hidden_size)
            state[f"bias_hh_{end}"] = biases_of(values, where, "recurrent", gates, spec.hidden_size)
        if spec.projects:
            state[f"weight_hr_{end}"] = values[f"{where}.projection"]
    assert_same(from_torch(spec, state), values)
    assert_same(to_torch(spec, values), state)
    model = {f"model.{name}": array for name, array in state.items()} | {
        "other.weight": np.zeros(1)
    }
    assert_same(from_torch(spec, model, "model."), values)


@SETTINGS
@given(specs(projections=False))
def test_onnx(spec):
    values = numbered(spec)
    gates, hidden = ONNX[spec.cell.name.lower()], spec.hidden_size
    w, r, b = ([[] for _ in range(spec.num_layers)] for _ in range(3))
    for layer, _, where in places(spec):
        w[layer].append(stacked(values, where, "input", gates))
        r[layer].append(stacked(values, where, "recurrent", gates))
        biases = [biases_of(values, where, kind, gates, hidden) for kind in ("input", "recurrent")]
        b[layer].append(np.concatenate(biases))
    tensors = [[np.stack(layer) for layer in tensor] for tensor in (w, r, b)]
    assert_same(from_onnx(spec, *tensors), values)
    assert_same(from_onnx(spec, *map(tuple, tensors)), values)
    if spec.num_layers == 1:
        assert_same(from_onnx(spec, *(tensor[0] for tensor in tensors)), values)
    if spec.bias.name == "NO":
        assert_same(from_onnx(spec, *tensors[:2]), values)


@SETTINGS
@given(specs(projections=False))
def test_keras(spec):
    """Kernels are transposed, gates side by side; only a GRU has two biases."""
    cell = spec.cell.name.lower()
    values, gates, hidden = numbered(spec), KERAS[cell], spec.hidden_size
    if spec.bias.name == "DOUBLE" and cell != "gru":  # Keras has one bias, and it is the input's
        for name, array in values.items():
            if ".recurrent." in name and name.endswith(".bias"):
                array[:] = 0
    nested = []
    for _, _, where in places(spec):
        arrays = [stacked(values, where, kind, gates).T for kind in ("input", "recurrent")]
        biases = [biases_of(values, where, kind, gates, hidden) for kind in ("input", "recurrent")]
        if spec.bias.name != "NO":
            arrays.append(np.stack(biases) if cell == "gru" else biases[0] + biases[1])
        nested.append(arrays)
    flat = [array for arrays in nested for array in arrays]
    for source in (nested, flat, map(tuple, nested)):
        assert_same(from_keras(spec, source), values)


def test_skipped_inputs():
    """PyTorch has a matrix that the spec lacks.

    It has to be zeros, and comes back as zeros.
    """
    spec = RNNSpec("tanh", 3, 3, 2, input_mode="skip")
    values = numbered(spec)
    state = to_torch(spec, values)
    assert set(state) == {
        f"{kind}_{side}_l{layer}"
        for kind in ("weight", "bias")
        for side in ("ih", "hh")
        for layer in (0, 1)
    } - {"weight_ih_l0"}
    assert_same(from_torch(spec, state), values)
    with pytest.raises(ArgumentError, match="state_dict: not known weight_ih_l0"):
        from_torch(spec, state | {"weight_ih_l0": np.ones((3, 3))})


def test_skipped_inputs_of_onnx_and_keras():
    """Their W and kernel are always there; anything but zeros would be lost."""
    spec = RNNSpec("tanh", 3, 3, input_mode="skip")
    values = numbered(spec)
    recurrent, biases = (
        values["layer0.forward.recurrent.h"],
        [values[f"layer0.forward.{k}.h.bias"] for k in ("input", "recurrent")],
    )
    b = np.concatenate(biases)[None]
    assert_same(from_onnx(spec, np.zeros((1, 3, 3)), recurrent[None], b), values)
    with pytest.raises(ArgumentError, match=r"^W: layer0\.forward\.input\.h is not zero.*skip"):
        from_onnx(spec, np.ones((1, 3, 3)), recurrent[None], b)
    with pytest.raises(ArgumentError, match=r"layer0\.forward\.input\.h is not zero.*skip"):
        from_keras(spec, [np.ones((3, 3)), recurrent.T, biases[0]])


def test_the_results_are_of_the_givens_type():
    spec = RNNSpec("gru", 2, 3)
    for dtype in (np.float16, np.float32, np.float64):
        values = {name: array.astype(dtype) for name, array in numbered(spec).items()}
        state = to_torch(spec, values)
        assert {array.dtype for array in state.values()} == {np.dtype(dtype)}
        assert {array.dtype for array in from_torch(spec, state).values()} == {np.dtype(dtype)}


def test_the_givens_are_not_changed():
    spec = RNNSpec("lstm", 2, 3, 2, True, bias="single_input")
    state = to_torch(spec, numbered(spec))
    before = {name: array.copy() for name, array in state.items()}
    from_torch(spec, state)
    assert_same(state, before)


@pytest.mark.parametrize("name", ["NumPy", "list", "scalar", "tensor"])
def test_host_arrays(name):
    class Tensor:
        """What a PyTorch tensor does that matters here."""

        dtype = "torch.float32"

        def detach(self):
            return self

        def cpu(self):
            return np.ones((2, 3), np.float32)

    source = {
        "NumPy": np.ones((2, 3)),
        "list": [[1, 1, 1], [1, 1, 1]],
        "scalar": 1.0,
        "tensor": Tensor(),
    }[name]
    expected = np.ones(()) if name == "scalar" else np.ones((2, 3))
    np.testing.assert_array_equal(host_array(source), expected)


def test_a_bfloat16_tensor_widens():
    """NumPy has no bfloat16 that PyTorch knows; float32 holds each of its values."""

    class Tensor:
        dtype = "torch.bfloat16"

        def detach(self):
            return self

        def cpu(self):
            return self

        def float(self):
            return np.array([1.5, -2.0], np.float32)

    assert host_array(Tensor()).dtype == np.float32
    np.testing.assert_array_equal(host_array(Tensor()), [1.5, -2.0])
