"""What users of recurrent networks stumbled over.

Names of layouts, gradients of states alone, packing, and specs for other libraries' networks.
"""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from tolerances import assert_close

import cudnnlite as dnn
from cudnnlite import ArgumentError, RNNSpec

LSTM = RNNSpec("lstm", 3, 4)


def random(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def weights_of(handle, spec):
    weights = dnn.RNNWeights(handle, spec)
    weights.update(
        {name: random(number, *weights[name].shape) for number, name in enumerate(weights)}
    )
    return weights


def test_layouts_have_the_names_of_recurrent_networks(handle):
    weights = weights_of(handle, LSTM)
    for layout, shape, lengths in (
        ("sequence_major", (5, 2, 3), None),
        ("batch_major", (2, 5, 3), [5, 2]),
        ("packed", (7, 3), [5, 2]),
    ):
        x = handle.array(random(0, *shape), layout=layout)
        out = dnn.rnn_forward(handle, LSTM, weights, x, lengths=lengths, layout=layout)
        assert (x.layout, out.y.layout, out.hy.layout, out.cy.layout) == (
            layout,
            layout,
            "states",
            "states",
        )
        assert f"float32 {layout} on" in repr(x)
        assert x.spec == dnn.TensorSpec(shape)
        assert x.spec.fits(layout)
    assert eval(repr(out.hy.spec), {"TensorSpec": dnn.TensorSpec}) == out.hy.spec
    for refused in ({"shape": (2, 3, 4, 5)}, {"shape": (8, 4, 2, 2), "dtype": "int8x4"}):
        with pytest.raises(ArgumentError, match="layout='states'"):
            dnn.TensorSpec(layout="states", **refused)


def test_what_does_not_fit_is_told_in_the_words_of_sequences(handle):
    weights, zeros = weights_of(handle, LSTM), handle.zeros
    reserve = dnn.rnn_forward(handle, LSTM, weights, zeros((5, 2, 3)), training=True).reserve
    for name, call in {
        "'sequence_major'.*vectors of 3": lambda: dnn.rnn_forward(
            handle, LSTM, weights, zeros((5, 2, 4))
        ),
        "'batch_major'.*vectors of 3": lambda: dnn.rnn_forward(
            handle, LSTM, weights, zeros((2, 5, 4)), layout="batch_major"
        ),
        "hx is .*'states'.*'states'": lambda: dnn.rnn_forward(
            handle, LSTM, weights, zeros((5, 2, 3)), hx=zeros((1, 2, 5))
        ),
        "dy is .*'sequence_major'.*'sequence_major'": lambda: dnn.rnn_backward_data(
            handle, reserve, zeros((5, 2, 5))
        ),
    }.items():
        with pytest.raises(ArgumentError, match=name) as refused:
            call()
        assert "NCW" not in str(refused.value)


def test_a_deep_network_asks_once_for_a_matrix_and_its_bias(handle):
    with dnn.trace() as trace:
        weights = dnn.RNNWeights(handle, RNNSpec("gru", 3, 4, num_layers=50))
    queries = sum(call.function == "cudnnGetRNNWeightParams" for call in trace.calls)
    assert (len(weights), queries) == (600, 300)


def test_a_loss_on_the_last_state_alone(handle):
    weights, x = weights_of(handle, LSTM), handle.array(random(1, 5, 2, 3))
    dhy, zeros = handle.array(random(2, 1, 2, 4)), handle.zeros((5, 2, 4))
    results = []
    for dy in (None, zeros):
        out = dnn.rnn_forward(handle, LSTM, weights, x, training=True)
        gradients = dnn.rnn_backward_data(handle, out.reserve, dy, dhy)
        results.append(
            [
                *(gradient.numpy() for gradient in gradients),
                dnn.rnn_backward_weights(handle, out.reserve).array.numpy(),
            ]
        )
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.abs(results[0][0]).max() > 0
    with pytest.raises(ArgumentError, match="none of dy, dhy and dcy"):
        dnn.rnn_backward_data(
            handle, dnn.rnn_forward(handle, LSTM, weights, x, training=True).reserve
        )


def test_packed_sequences_are_those_alone(handle):
    weights = weights_of(handle, LSTM)
    sequences = [random(number, length, 3) for number, length in enumerate((2, 5, 1, 5))]
    packed = dnn.pack_sequences(sequences)
    assert (packed.lengths, packed.order) == ((5, 5, 2, 1), (1, 3, 0, 2))
    for unpacked, sequence in zip(packed.unpack(packed.values), sequences, strict=True):
        np.testing.assert_array_equal(unpacked, sequence)
    out = dnn.rnn_forward(
        handle,
        LSTM,
        weights,
        handle.array(packed.values),
        lengths=packed.lengths,
        layout="packed",
        algorithm="standard",
    )
    for number, (y, sequence) in enumerate(
        zip(packed.unpack(out.y.numpy()), sequences, strict=True)
    ):
        alone = dnn.rnn_forward(
            handle, LSTM, weights, handle.array(sequence[:, None]), algorithm="standard"
        )
        np.testing.assert_allclose(
            y, alone.y.numpy()[:, 0], rtol=2e-3, atol=2e-3
        )  # TF32, in another order
        place = packed.order.index(number)
        np.testing.assert_allclose(
            out.hy.numpy()[:, place], alone.hy.numpy()[:, 0], rtol=2e-3, atol=2e-3
        )


def test_a_plan_takes_a_spec_of_the_sequences(handle):
    weights = weights_of(handle, LSTM)
    data = dnn.specs.RNNDataSpec((2, 5, 3), [5, 3], layout="batch_major")
    x = handle.array(random(3, 2, 5, 3))
    expected = dnn.rnn_forward(
        handle, LSTM, weights, x, lengths=[5, 3], layout="batch_major"
    ).y.numpy()
    with dnn.rnn_forward.plan(handle, LSTM, None, data) as plan:
        np.testing.assert_array_equal(plan(weights, x, lengths=[5, 3]).y.numpy(), expected)
    for beside in ({"lengths": [5, 3]}, {"layout": "packed"}):
        with pytest.raises(ArgumentError, match="beside a whole spec"):
            dnn.rnn_forward.plan(handle, LSTM, None, data, **beside)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_another_dtype_computes_in_its_own(handle, dtype):
    spec = LSTM.replace(dtype=dtype)
    assert spec == RNNSpec("lstm", 3, 4, dtype=dtype)
    y = dnn.rnn_forward(
        handle, spec, dnn.RNNWeights(handle, spec), handle.zeros((2, 1, 3), dtype)
    ).y
    assert not y.numpy().any()
    half_compute = RNNSpec("lstm", 3, 4, dtype="float16", compute_type="float16").replace(
        dtype="float32", math_type="fma"
    )
    assert half_compute.compute_type == dnn.DataType.HALF
    with pytest.raises(dnn.NotSupportedError, match=r"rnn = RNNSpec\('lstm'.*\n.*compute_type"):
        dnn.RNNWeights(handle, RNNSpec("lstm", 3, 4, compute_type="float64"))


def test_specs_of_pytorch():
    torch = pytest.importorskip("torch")
    lstm = torch.nn.LSTM(
        3,
        4,
        2,
        bidirectional=True,
        proj_size=2,
        dropout=0.25,
        dtype=torch.float64,
    )
    expected = RNNSpec(
        "lstm", 3, 4, 2, True, projection_size=2, dropout=0.25, dtype="float64", math_type="fma"
    )
    assert RNNSpec.from_torch(lstm, math_type="fma") == expected
    assert RNNSpec.from_torch(torch.nn.GRU(3, 4, bias=False)) == RNNSpec("gru", 3, 4, bias=False)
    assert (
        RNNSpec.from_torch(torch.nn.RNN(3, 4, nonlinearity="relu")).cell == dnn.enums.RNNMode.RELU
    )
    for module, options in (
        (torch.nn.Linear(3, 4), {}),
        (SimpleNamespace(mode="LSTM"), {}),
        (lstm, {"depth": 3}),
    ):
        with pytest.raises(ArgumentError):
            RNNSpec.from_torch(module, **options)


@pytest.mark.parametrize("batch_first", [False, True])
def test_a_module_that_has_the_batch_first_is_warned_about(batch_first):
    module = SimpleNamespace(
        mode="GRU",
        input_size=3,
        hidden_size=4,
        num_layers=1,
        bidirectional=False,
        bias=True,
        proj_size=0,
        dropout=0.0,
        weight_ih_l0=np.zeros((12, 3), np.float32),
        batch_first=batch_first,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert RNNSpec.from_torch(module) == RNNSpec("gru", 3, 4)
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == batch_first
    assert all("batch_first=True" in text and "layout='batch_major'" in text for text in texts)
    assert all(warning.filename == __file__ for warning in caught)


def test_a_module_with_the_batch_first_computes_the_same(handle):
    torch = pytest.importorskip("torch")
    module = torch.nn.LSTM(3, 4, 2, batch_first=True, dtype=torch.float64)
    with pytest.warns(UserWarning, match="batch_major"):
        spec = RNNSpec.from_torch(module)
    weights = dnn.RNNWeights.from_torch(handle, spec, module)
    x = np.random.default_rng(0).standard_normal((2, 5, 3))
    y, hy, cy = dnn.rnn_forward(handle, spec, weights, handle.array(x), layout="batch_major")
    with torch.no_grad():
        expected, (h, c) = module(torch.from_numpy(x))
    for array, reference in ((y, expected), (hy, h), (cy, c)):
        assert_close(array.numpy(), reference.numpy(), 1e-12)


def test_a_module_stands_for_its_state_dict(handle):
    weights = weights_of(handle, LSTM)
    module = SimpleNamespace(state_dict=weights.to_torch)
    again = dnn.RNNWeights.from_torch(handle, LSTM, module)
    for name, array in weights.items():
        np.testing.assert_array_equal(again[name].numpy(), array.numpy())
    model = {f"encoder.{name}": array for name, array in weights.to_torch().items()}
    again = dnn.RNNWeights.from_torch(
        handle, LSTM, SimpleNamespace(state_dict=lambda: model), prefix="encoder."
    )
    assert again["layer0.forward.input.g"].numpy().any()
    spec = dnn.AttentionSpec(
        2, 6, q_proj_size=3, k_proj_size=3, v_proj_size=3, o_proj_size=6, bias=True
    )
    attention = dnn.AttentionWeights(handle, spec)
    attention["bo"] = random(0, 6)
    module = SimpleNamespace(state_dict=attention.to_torch)
    again = dnn.AttentionWeights.from_torch(handle, spec, module)
    np.testing.assert_array_equal(again["bo"].numpy(), random(0, 6))


def test_a_dtype_of_out_that_does_not_fit_is_named(handle):
    x, w = handle.zeros((2, 3, 5, 5)), handle.zeros((4, 3, 3, 3))
    out = handle.zeros((2, 4, 3, 3), "float16")
    message = ""
    try:  # an H200 has engines that convert
        dnn.convolution_forward(handle, x, w, out=out)
    except dnn.NotSupportedError as error:
        message = str(error)
    assert "out is float16, x is float32" in message or handle.device.kind == "cuda"
    outs = handle.zeros((5, 2, 4)), handle.zeros((1, 2, 4), "float16"), handle.zeros((1, 2, 4))
    with pytest.raises(ArgumentError, match=r"out\['hy'\] is .*float16.*needed: .*float32"):
        dnn.rnn_forward(handle, LSTM, weights_of(handle, LSTM), handle.zeros((5, 2, 3)), out=outs)


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_channels_given_last_are_offered_the_transpose(handle, rank):
    image, layout = (6, 7, 8)[: rank - 2], {3: "NWC", 4: "NHWC", 5: "NDHWC"}[rank]
    values, w = random(5, 2, *image, 3), handle.zeros((4, 3, *(2,) * (rank - 2)), layout=layout)
    with pytest.raises(ArgumentError, match=r"if x was given as \(N, \*spatial, C\)") as caught:
        dnn.convolution_forward(handle, handle.array(values, layout=layout), w)
    offered = eval(str(caught.value).split("handle.array(")[1].split(", layout")[0], {"x": values})
    assert dnn.convolution_forward(handle, handle.array(offered, layout=layout), w).shape[1] == 4
    statistic, x, right = (
        handle.zeros((1, 3, *[1] * len(image))),
        handle.array(values),
        handle.array(offered, layout=layout),
    )
    for function, *arguments in (
        (dnn.pooling_forward, dnn.PoolingSpec(4)),
        (dnn.batch_normalization_inference, *[statistic] * 4),
    ):
        with pytest.raises(ArgumentError) as refused:
            function(handle, x, *arguments)
        assert f". {str(caught.value).partition('. ')[2].partition('; otherwise')[0]}" in str(
            refused.value
        )
        function(handle, right, *arguments)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("layout", ["sequence_major", "batch_major"])
def test_an_empty_batch(handle: dnn.Handle, layout: str, cell: str) -> None:
    """Nothing is called, and the results are empty.

    In training the call is refused, because the gradients of the weights are not empty.
    """
    spec = dnn.RNNSpec(cell, 3, 4, 2, True)
    weights = dnn.RNNWeights(handle, spec)
    shape = (5, 0, 3) if layout == "sequence_major" else (0, 5, 3)
    x, hx, cx = handle.empty(shape), handle.empty((4, 0, 4)), handle.empty((4, 0, 4))
    states = (hx, cx) if cell == "lstm" else (hx,)
    out = tuple(
        handle.empty(size) for size in ((*shape[:2], 8), (4, 0, 4), (4, 0, 4))[: len(states) + 1]
    )
    with dnn.record_problems() as problems:
        for result in (
            dnn.rnn_forward(handle, spec, weights, x, layout=layout),
            dnn.rnn_forward(handle, spec, weights, x, *states, layout=layout, lengths=[], out=out),
        ):
            assert [array.shape for array in result if array is not None] == [
                array.shape for array in out
            ]
            assert result.y.numpy().size == 0
            assert (result.cy is None) == (cell == "gru")
    default_result = dnn.rnn_forward(handle, spec, weights, x, layout=layout)
    assert [array.layout for array in default_result if array is not None] == [
        layout,
        "states",
        "states",
    ][: len(out)]
    assert result.y is out[0]
    assert dnn.rnn_forward(handle, spec, weights, x, layout=layout, out=result).y is result.y
    assert len(problems) == 0
    for options, message in (
        ({"training": True}, "leave the call out"),
        ({"lengths": [5]}, "entries for a batch of 0"),
        ({"hx": handle.empty((4, 1, 4))}, "hx is .*needed"),
        ({"out": out[:1]}, "needed: a tuple of y, hy"),
        ({"out": (out[0], out[0], *out[2:])}, r"out\['hy'\] is"),
        ({"cx": handle.empty((4, 2, 4))}, "cx is .*needed"),
    ):
        with pytest.raises(dnn.ArgumentError, match=message):
            dnn.rnn_forward(handle, spec, weights, x, **{"layout": layout, **options})


def test_a_plan_says_what_workspace_it_has(handle, caplog):
    with (
        caplog.at_level("DEBUG", "cudnnlite"),
        dnn.rnn_forward.plan(handle, LSTM, None, handle.zeros((5, 2, 3))) as plan,
    ):
        assert plan.choice.workspace == plan.workspace
        assert plan.workspace > 0 or handle.device.kind != "emulated"
        assert str(plan.choice.algorithm) in caplog.text
        assert "workspace" not in caplog.text  # which the sequences decide
