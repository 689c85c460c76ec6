"""Who writes PyTorch's, CuPy's or NumPy's name of something is told ours."""

from __future__ import annotations

import copy
import inspect
import pickle
import re

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite.enums import parse_enum
from cudnnlite.operations.graph.activations import parse_activation
from cudnnlite.other_libraries import (
    ARRAY,
    CHOICES,
    GRAPH,
    GRAPH_TENSOR,
    HANDLE,
    KEYWORDS,
    MODULE,
    OPERATORS,
    PLAN,
)

LSTM = dnn.RNNSpec("lstm", 4, 5, num_layers=2, bidirectional=True)


@pytest.fixture(scope="module")
def handle():
    with dnn.Handle(device="emulated") as handle:
        yield handle


@pytest.fixture(scope="module")
def x(handle):
    return handle.array(np.arange(48, dtype=np.float32).reshape(2, 3, 4, 2))


# ---------------------------------------------------------------- the tables


def assert_names_exist(text: str) -> None:
    """Check the names of ours in a hint."""
    for name in re.findall(r"\bdnn\.(\w+)", text):
        assert name in dnn.__all__, text
    for name in re.findall(r"\bx\.(\w+)", text):
        assert hasattr(dnn.DeviceArray, name) or name in dnn.DeviceArray.__slots__, text
    for name in re.findall(r"\bhandle\.(\w+)", text):
        assert hasattr(dnn.Handle, name), text


@pytest.mark.parametrize("name", ARRAY)
def test_an_array_names_what_is_ours(x, name):
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'; ") as caught:
        getattr(x, name)
    assert str(caught.value).endswith(ARRAY[name])
    assert_names_exist(ARRAY[name])
    assert not hasattr(x, name)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind, names in (("tensor", GRAPH_TENSOR), ("graph", GRAPH), ("plan", PLAN))
        for name in names
    ],
)
def test_graphs_and_plans_name_what_is_ours(handle, kind, name):
    graph = dnn.Graph()
    tensor = graph.input("a", (1, 2, 2))
    graph.output("y", graph.matmul(tensor, tensor))
    with graph.plan(handle) as plan:
        things = {"tensor": tensor, "graph": graph, "plan": plan}
        hint = {"tensor": GRAPH_TENSOR, "graph": GRAPH, "plan": PLAN}[kind][name]
        with pytest.raises(AttributeError, match=rf"no attribute '{name}'; ") as caught:
            getattr(things[kind], name)
        assert str(caught.value).endswith(hint)
        assert_names_exist(hint)
        for owner, own_name in re.findall(r"\b(tensor|graph|plan)\.(\w+)", hint):
            assert hasattr(things[owner], own_name), hint


def test_a_misspelt_name_of_a_graph_or_a_plan_is_hinted_at(handle, x):
    graph = dnn.Graph()
    tensor = graph.input("a", (1, 2, 2))
    with dnn.softmax_forward.plan(handle, x) as plan:
        for thing, name, meant in (
            (graph, "matmull", "matmul"),
            (tensor, "shap", "shape"),
            (plan, "workspce", "workspace"),
        ):
            with pytest.raises(AttributeError, match=rf"'{name}'; did you mean {meant}\?$"):
                getattr(thing, name)
    with (
        dnn.convolution_forward.plan(handle, x, handle.zeros((3, 3, 2, 2))) as plan,
        pytest.raises(AttributeError, match=r"'choise'; did you mean choice\?$"),
    ):
        _ = plan.choise


def test_graphs_and_their_tensors_are_copied_and_pickled():
    graph = dnn.Graph()
    graph.output("y", graph.relu(graph.input("x", (1, 2, 2))))
    for other in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert other == graph
    tensor = graph.input("z", (1, 2, 2))
    assert copy.copy(tensor).name == "z"
    assert pickle.loads(pickle.dumps(tensor)).shape == (1, 2, 2)


def test_the_methods_of_a_graph_are_called_by_its_name():
    graph = dnn.Graph()
    tensor = graph.input("x", (1, 2, 2))
    with pytest.raises(TypeError, match=r"^Graph\.relu\(\) got .* 'slope'"):
        graph.relu(tensor, slope=0.1)
    with pytest.raises(TypeError, match=r"^Graph\.causal\(\) missing"):
        graph.causal()
    with pytest.raises(TypeError, match=r"^Graph\.input\(\) missing"):
        graph.input("y")


@pytest.mark.parametrize("name", HANDLE)
def test_a_handle_names_what_is_ours(handle, name):
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'; ") as caught:
        getattr(handle, name)
    assert str(caught.value).endswith(HANDLE[name])
    assert_names_exist(HANDLE[name])


@pytest.mark.parametrize("name", MODULE)
def test_the_module_names_what_is_ours(name):
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'; ") as caught:
        getattr(dnn, name)
    assert str(caught.value).endswith(MODULE[name])
    assert_names_exist(MODULE[name])


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_name_what_is_ours(operator):
    assert_names_exist(OPERATORS[operator])


@pytest.mark.parametrize(
    ("kind", "choice"), [(kind, choice) for kind in CHOICES for choice in CHOICES[kind]]
)
def test_a_member_of_another_library_is_answered(kind, choice):
    hint = CHOICES[kind][choice]
    (name, *_others) = re.findall(r"'(\w+)'", hint)
    if hint.startswith("an activation of graphs"):
        assert parse_activation(name, "activation") == choice
    else:
        assert parse_enum(getattr(dnn.enums, kind), name, "op").name == name.upper()
    for text in (choice, choice.upper()):
        with pytest.raises(dnn.ArgumentError) as caught:
            parse_enum(getattr(dnn.enums, kind), text, "op")
        assert str(caught.value).endswith(f"; it is {hint}")
    assert_names_exist(hint)


def functions_with(beginning: str) -> list:
    things = [getattr(dnn, name) for name in dnn.__all__ if name.startswith(beginning)]
    return [thing for thing in things if callable(thing) and not isinstance(thing, int)]


@pytest.mark.parametrize(
    ("beginning", "keyword"),
    [
        (beginning, keyword)
        for beginning in KEYWORDS
        if beginning
        for keyword in KEYWORDS[beginning]
    ],
)
def test_a_keyword_of_another_library_is_answered(handle, beginning, keyword):
    hint = KEYWORDS[beginning][keyword]
    assert_names_exist(hint)
    functions = functions_with(beginning)
    assert functions
    answers = 0
    for function in functions:
        parameters = inspect.signature(function).parameters
        if keyword in parameters:
            continue
        operands = [handle] if "handle" in parameters else []
        with pytest.raises(TypeError, match=rf"keyword argument '{keyword}'") as caught:
            function(*operands, **{keyword: 1})
        answers += hint in str(caught.value)
    assert answers


def test_arguments_that_hints_name_exist():
    """A hint `it is name=` names an argument of one of the functions."""
    for beginning, keywords in KEYWORDS.items():
        functions = functions_with(beginning or "batch_normalization_")
        for hint in keywords.values():
            for name in re.findall(r"it is (\w+)=", hint):
                assert any(name in inspect.signature(each).parameters for each in functions), hint


@pytest.mark.parametrize(
    ("name", "mode"), re.findall(r"'(\w+)': .*?x, '(\w+)'\)", str(dict(MODULE)))
)
def test_modes_that_hints_name_exist(handle, x, name, mode):
    coef = 6.0 if mode == "clipped_relu" else None
    activation = dnn.ActivationSpec(mode, coef) if coef else mode
    assert dnn.activation_forward(handle, x, activation).shape == x.shape


def test_reductions_that_hints_name_exist(handle, x):
    operators = {name: re.findall(r"x, '(\w+)', axes", hint) for name, hint in ARRAY.items()}
    values = x.numpy()
    expected = {name: getattr(values, name) for name in ("sum", "mean", "max", "min")}
    for name, function in expected.items():
        (operator,) = operators[name]
        result = dnn.reduce_tensor(handle, x, operator, axes=(2, 3)).numpy()
        np.testing.assert_allclose(result, function((2, 3), keepdims=True), rtol=1e-6)


def test_a_name_that_nobody_has(x, handle):
    for thing in (x, handle):
        with pytest.raises(AttributeError, match=r"has no attribute 'zzzz'$"):
            _ = thing.zzzz
        with pytest.raises(AttributeError, match=r"has no attribute '_private'$"):
            _ = thing._private
    with pytest.raises(AttributeError, match=r"has no attribute '__wrapped_handle__'$"):
        _ = dnn.__wrapped_handle__
    with pytest.raises(AttributeError, match=r"'reshpe'; did you mean reshape\?$"):
        _ = x.reshpe


def test_a_reduction_and_a_difference_by_the_hints_are_those_of_numpy(handle, x):
    values = x.numpy()
    difference = dnn.op_tensor(handle, x, x[:1, :1, :1], "add", alpha2=-1).numpy()
    np.testing.assert_allclose(difference, values - values[:1, :1, :1], rtol=1e-6)
    largest, places = dnn.reduce_tensor(handle, x, "max", axes=1, indices=True)
    np.testing.assert_array_equal(places.numpy(), values.argmax(1, keepdims=True))
    assert largest.shape == (2, 1, 4, 2)


def test_a_call_without_a_handle_is_told_that_it_comes_first(x):
    message = r"^handle=<DeviceArray .* is not a Handle; it comes first$"
    for call in (
        lambda: dnn.matmul(x, x),
        lambda: dnn.convolution_forward(x, x),
        lambda: dnn.matmul.plan(x, x),
        lambda: dnn.pooling_forward.plan(x),
    ):
        with pytest.raises(dnn.ArgumentError, match=message):
            call()


def test_a_missing_operand_is_told_by_its_name(handle, x):
    with pytest.raises(TypeError, match=r"^matmul\(\) missing .* 'b'$"):
        dnn.matmul(handle, x)


def test_a_missing_argument_is_told_with_those_before_it():
    with pytest.raises(
        TypeError,
        match=r"argument: 'hidden_size'; needed in this order: cell, input_size, hidden_size$",
    ):
        dnn.RNNSpec(5, 7, num_layers=2)
    with pytest.raises(TypeError, match=r"takes .* positional"):
        dnn.ActivationSpec(1, 2, 3, 4, 5)


# ---------------------------------------------------------------- weights


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("weight_ih_l0", [f"layer0.forward.input.{gate}" for gate in "ifgo"]),
        ("weight_hh_l1", [f"layer1.forward.recurrent.{gate}" for gate in "ifgo"]),
        ("bias_ih_l1_reverse", [f"layer1.backward.input.{gate}.bias" for gate in "ifgo"]),
    ],
)
def test_weights_answer_with_the_rows_of_pytorchs(handle, name, places):
    weights = dnn.RNNWeights(handle, LSTM)
    assert set(places) <= set(weights)
    with pytest.raises(KeyError, match=re.escape(", ".join(places))):
        _ = weights[name]


def test_a_layer_that_is_not_there_has_no_rows(handle):
    with pytest.raises(KeyError) as caught:
        _ = dnn.RNNWeights(handle, LSTM)["weight_ih_l2"]
    assert "PyTorch" not in str(caught.value)


# ---------------------------------------------------------------- the thing itself


def test_permute_is_a_view(x):
    view = x.permute(0, 2, 3, 1)
    assert view.ptr == x.ptr
    np.testing.assert_array_equal(view.numpy(), x.numpy().transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(x.permute((3, -2, 1, 0)).numpy(), x.numpy().T)


def test_two_axes_to_swap_are_written_out(x):
    with pytest.raises(dnn.ArgumentError, match=r"once; \(0, 2, 1, 3\) swaps the two") as caught:
        x.transpose(1, 2)
    assert x.transpose(0, 2, 1, 3).shape == (2, 4, 3, 2), caught.value
    with pytest.raises(dnn.ArgumentError, match=r"once$"):
        x.transpose(1, 7)


@pytest.mark.parametrize(
    ("descriptor", "name", "field"),
    [
        (dnn.descriptors.ActivationDescriptor, "tanh", "mode"),
        (dnn.descriptors.OpTensorDescriptor, "mul", "op"),
        (dnn.descriptors.ReduceTensorDescriptor, "max", "op"),
    ],
)
def test_a_mode_stands_for_its_spec(descriptor, name, field):
    with descriptor(name) as made:
        assert getattr(made.spec, field).name == name.upper()
        assert getattr(made.read_back(), field) == getattr(made.spec, field)
    with pytest.raises(dnn.ArgumentError, match=r"'nonsense' is not an? "):
        descriptor("nonsense")


def test_other_descriptors_take_specs_alone():
    for descriptor in (dnn.descriptors.PoolingDescriptor, dnn.descriptors.LRNDescriptor):
        with pytest.raises(dnn.ArgumentError, match=r"is not an? "):
            descriptor("max")


@pytest.mark.parametrize(
    ("layout", "rank", "ours"),
    [("channels_last", 4, "NHWC"), ("channels_last", 3, "NWC"), ("HWC", 5, "NDHWC"), ("channels_first", 4, "NCHW")],
)  # fmt: skip
def test_a_layout_of_another_library_names_ours(layout, rank, ours):
    with pytest.raises(dnn.ArgumentError, match=f"; it is '{ours}'$"):
        dnn.TensorSpec((2,) * rank, layout=layout)


def test_silu_is_swish(handle, x):
    silu, swish = (dnn.activation_forward(handle, x, name).numpy() for name in ("silu", "SWISH"))
    np.testing.assert_array_equal(silu, swish)
    assert dnn.ActivationSpec("SiLU") == dnn.ActivationSpec("swish")
    assert parse_activation("silu", "activation") == "swish"
