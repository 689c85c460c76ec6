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
        (dnn.convolution_forward.plan, "algoritm"): r"'algoritm'; did you mean algorithm\?",
        (
            dnn.pooling_forward.plan,
            "poling",
        ): r"^pooling_forward\(\) got an unexpected keyword argument 'poling'; did you mean pooling\?",
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
    """They have the signature of the call, of which some arguments choose what they are asked for."""
    x, w = own_handle.empty((1, 3, 8, 8)), own_handle.empty((4, 3, 3, 3))
    scratch = own_handle.empty((1024,), "uint8")
    for verb in ("find", "heuristic"):
        ask = getattr(dnn.convolution_forward, verb)
        chosen = {"algorithm": "GEMM", "interface": "graph", "workspace": scratch}
        for name, value in chosen.items():
            with pytest.raises(dnn.ArgumentError, match=f"^{name} is given to {verb}, which ranks"):
                ask(own_handle, x, w, **{name: value})
        with pytest.raises(dnn.ArgumentError, match=f"^replay is given to {verb}, which makes no"):
            ask(own_handle, x, w, replay=True)
    bias = own_handle.empty((1, 4, 1, 1))
    with pytest.raises(dnn.ArgumentError, match="cuDNN has no search for cudnnConvolutionBias"):
        dnn.convolution_forward.find(own_handle, x, w, bias=bias)
    assert len(dnn.convolution_forward.heuristic(own_handle, x, w, bias=bias)) > 1
    with pytest.raises(dnn.ArgumentError, match=r"^workspace is given for a plan"):
        dnn.convolution_forward.plan(own_handle, x, w, workspace=scratch)
