"""A keyword that a function does not have, or cannot use, is named with what to do instead."""

from __future__ import annotations

import pytest

import cudnnlite as dnn


def test_a_field_of_a_spec_as_an_argument_is_told_where_it_belongs(own_handle):
    x = own_handle.empty((1, 3, 8, 8))
    for function in (
        dnn.convolution_forward,
        dnn.convolution_transpose,
        dnn.convolution_backward_filter,
    ):
        with pytest.raises(
            TypeError,
            match=r"'padding'; it is a field of conv: conv=dnn.ConvolutionSpec\(padding=1\)",
        ):
            function(own_handle, x, x, padding=1)
        with pytest.raises(
            TypeError, match=rf"^{function.__name__}\(\) got an unexpected keyword argument 'pad'$"
        ):
            function(own_handle, x, x, pad=1)
    hints = {
        (
            dnn.pooling_forward,
            "stride",
        ): r"'stride'; it is a field of pooling: pooling=dnn.PoolingSpec\(stride=1\)",
        (dnn.activation_backward, "alhpa"): r"'alhpa'; did you mean alpha\?",
        (dnn.convolution_transpose, "algoritm"): r"'algoritm'; did you mean algorithm\?",
        (dnn.rnn_forward, "lenghts"): r"'lenghts'; did you mean lengths\?",
        (dnn.rnn_forward.plan, "batch_first"): r"'batch_first'; layout='batch_major' says that$",
        (dnn.convolution_forward.plan, "algoritm"): r"'algoritm'; did you mean algorithm\?",
        (
            dnn.pooling_forward.plan,
            "poling",
        ): (
            r"^pooling_forward\.plan\(\) got an unexpected keyword argument 'poling'; did you mean "
            r"pooling\?"
        ),
        (dnn.convolution_forward.find, "betta"): r"'betta'; did you mean beta\?",
        (
            dnn.convolution_forward.heuristic,
            "padding",
        ): r"'padding'; it is a field of conv: conv=dnn.ConvolutionSpec\(padding=1\)",
        (
            dnn.multi_head_attention_forward,
            "heads",
        ): r"field of spec: spec=dnn.AttentionSpec\(heads=1\)",
    }
    for (function, name), words in hints.items():
        with pytest.raises(TypeError, match=words):
            function(own_handle, x, x, **{name: 1})
    with pytest.raises(TypeError, match=r"'poling'; did you mean pooling\?"):
        dnn.pooling_forward.problem(x.spec, poling=1)
    for function in (dnn.pooling_forward, dnn.pooling_forward.plan):
        with pytest.raises(TypeError, match="missing"):
            function(own_handle)
    with pytest.raises(TypeError, match="missing"):
        dnn.pooling_forward.problem()


def test_what_a_ranking_or_a_search_cannot_take_is_named(own_handle):
    """Arguments that choose an algorithm, or belong to the calls of a plan."""
    x, w = own_handle.empty((1, 3, 8, 8)), own_handle.empty((4, 3, 3, 3))
    scratch = own_handle.empty((1024,), "uint8")
    for function_name in ("find", "heuristic"):
        ask = getattr(dnn.convolution_forward, function_name)
        options = {"algorithm": "GEMM", "interface": "graph", "workspace": scratch}
        for name, value in options.items():
            with pytest.raises(
                dnn.ArgumentError, match=f"^{name} is given to {function_name}, which ranks"
            ):
                ask(own_handle, x, w, **{name: value})
        with pytest.raises(
            dnn.ArgumentError, match=f"^replay is given to {function_name}, which ranks"
        ):
            ask(own_handle, x, w, replay=True)
    bias = own_handle.empty((1, 4, 1, 1))
    with pytest.raises(dnn.ArgumentError, match="cuDNN has no search for cudnnConvolutionBias"):
        dnn.convolution_forward.find(own_handle, x, w, bias=bias)
    assert len(dnn.convolution_forward.heuristic(own_handle, x, w, bias=bias)) > 1
    with pytest.raises(dnn.ArgumentError, match=r"^workspace is given to a plan; give it to"):
        dnn.convolution_forward.plan(own_handle, x, w, workspace=scratch)


def test_a_problem_takes_no_arguments_that_say_how_it_is_computed():
    x, w = dnn.TensorSpec((1, 3, 8, 8)), dnn.FilterSpec((4, 3, 3, 3))
    choices = {
        "algorithm": "nonsense",
        "interface": "graph",
        "replay": True,
        "workspace": w,
        "workspace_limit": 0,
    }
    for name, value in choices.items():
        with pytest.raises(dnn.ArgumentError, match=rf"^{name} is given to problem, which"):
            dnn.convolution_forward.problem(x, w, **{name: value})
    with pytest.raises(dnn.ArgumentError, match=r"^replay='no'; allowed: True, False"):
        dnn.convolution_forward.problem(x, w, replay="no")
    lstm, sequences = dnn.RNNSpec("lstm", 3, 4), dnn.specs.RNNDataSpec((5, 2, 3))
    for name, value in {"algorithm": "STANDARD", "workspace": x, "reserve": x}.items():
        with pytest.raises(dnn.ArgumentError, match=rf"^{name} is given to problem, which"):
            dnn.rnn_forward.problem(lstm, None, sequences, **{name: value})


def test_reserve_space_belongs_to_the_calls_of_a_plan(own_handle):
    x, state = own_handle.empty((2, 3)), dnn.DropoutState(own_handle)
    with pytest.raises(dnn.ArgumentError, match=r"^reserve is given to a plan; give it to"):
        dnn.dropout_forward.plan(own_handle, x, 0.5, reserve=x, dropout_state=state)
    with dnn.dropout_backward.plan(own_handle, x, 0.5, None, dropout_state=state) as plan:
        with pytest.raises(dnn.ArgumentError, match=r"^reserve has to be given"):
            plan(x)
        with pytest.raises(TypeError, match="takes dy, reserve; 3 arrays were given"):
            plan(x, x, x)
        reserve = own_handle.zeros((plan.reserve,), "uint8")
        with pytest.raises(TypeError, match="multiple values for argument 'reserve'"):
            plan(x, reserve, reserve=reserve)


def test_a_function_of_an_operation_says_what_does_not_fit_its_own_signature():
    x = dnn.TensorSpec((1, 3, 8, 8))
    for arguments, why in (
        ((), r"missing a required argument: 'x'"),
        ((x,), r"missing a required argument: 'w'"),
        ((x,) * 4, r"too many positional arguments"),
    ):
        with pytest.raises(TypeError, match=rf"^convolution_forward\.problem\(\) {why}$"):
            dnn.convolution_forward.problem(*arguments)


def test_a_function_of_other_operations_is_refused_with_a_reason():
    for function_name in ("find", "heuristic"):
        with pytest.raises(
            AttributeError, match=f"pooling_forward has no {function_name}: there are no"
        ):
            getattr(dnn.pooling_forward, function_name)
    with pytest.raises(AttributeError, match="pooling_forward has no attribute 'plans'"):
        _ = dnn.pooling_forward.plans


def test_members_of_enums_are_shown_as_a_spec_takes_them(own_handle):
    x = own_handle.zeros((1, 1, 4, 4))
    with pytest.raises(TypeError, match=r"conv=dnn\.ConvolutionSpec\(math_type='fma'\)"):
        dnn.convolution_forward(own_handle, x, x, math_type=dnn.MathType.FMA)
    with pytest.raises(TypeError, match=r"spec=dnn\.RNNSpec\(dtype='float16'\)"):
        dnn.rnn_forward(own_handle, dnn.RNNSpec("lstm", 1, 1), None, x, dtype=dnn.DataType.HALF)


def test_the_search_for_a_network_is_the_tuners():
    with pytest.raises(
        AttributeError, match=r"rnn_forward has no find: .*dnn\.tune\(handle, dnn\.rnn_forward"
    ):
        _ = dnn.rnn_forward.find


def test_a_name_that_was_guessed_says_what_it_may_mean():
    for name, hint in (
        ("plan_convolution_forward", "it is convolution_forward.plan"),
        ("find_convolution_forward", "it is convolution_forward.find"),
        ("get_convolution_backward_data", "it is convolution_backward_data.heuristic"),
        ("GraphPlan", "it is OperationPlan"),
        ("pooling_foward", r"did you mean pooling_forward\?"),
    ):
        with pytest.raises(AttributeError, match=f"has no attribute {name!r}; {hint}$"):
            getattr(dnn, name)
