"""Invalid arguments of specs."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

import cudnnlite as dnn

from .case import Case

LSTM = dnn.RNNSpec("lstm", 2, 3)
TOO_LARGE = 2**31
Refusals = dict[str, tuple[dict[str, Any], str]]

TENSORS: Refusals = {
    "rank 0": ({"shape": ()}, "shape=.*rank 0.*1 to 8"),
    "not iterable": ({"shape": 5}, "shape=5 is not a sequence of integers"),
    "text": ({"shape": "abcd"}, "shape='abcd' is not a sequence of integers"),
    "float size": ({"shape": (1, 2.0, 3, 4)}, "shape=.*2.0.* is not a sequence of integers"),
    "negative size": ({"shape": (1, 2, -3, 4)}, r"shape=.*size -3 on axis 2; allowed: 1 to"),
    "negative batch": ({"shape": (-1, 2, 3, 4)}, r"shape=.*size -1 on axis 0; allowed: 0 to"),
    "no channels": ({"shape": (1, 0, 3, 4)}, "shape=.*size 0 on axis 1"),
    "batch of 2^31": ({"shape": (TOO_LARGE, 1)}, "shape=.*2147483648 on axis 0.*2147483647"),
    "unknown layout": (
        {"shape": (1, 2, 3, 4), "layout": "CHWN"},
        "layout='CHWN'.*allowed: NCHW, NHWC, NCHW_VECT_C",
    ),
    "layout is a number": ({"shape": (1, 2, 3, 4), "layout": 4}, "layout=4"),
    "layout of another rank": (
        {"shape": (1, 2, 3), "layout": "NCDHW"},
        "layout='NCDHW'.*rank 3; allowed: NCW, NWC",
    ),
    "layout of a nameless rank": ({"shape": (1, 2), "layout": "NCHW"}, "layout='NCHW'.*rank 2"),
    "both": (
        {"shape": (1, 2, 3, 4), "layout": "NCHW", "strides": (24, 12, 4, 1)},
        "layout='NCHW' and strides=.*one of them",
    ),
    "strides too short": (
        {"shape": (1, 2, 3, 4), "strides": (12, 4, 1)},
        "strides=.*3 entries.*shape=",
    ),
    "a set has no order": (
        {"shape": {8, 3, 5}},
        r"^shape=\{8, 3, 5\} is a set, which has no order; give a tuple$",
    ),
    "strides in a dict": (
        {"shape": (1, 2), "strides": {2: 0, 1: 0}},
        "^strides=.* is a dict, which has no order",
    ),
    "negative stride": (
        {"shape": (1, 2, 3, 4), "strides": (24, 12, -4, 1)},
        "strides=.*-4 on axis 2; allowed: 1 to",
    ),
    "negative stride, size 1": (
        {"shape": (1, 2), "strides": (-2, 1)},
        "strides=.*-2 on axis 0; allowed: 0 to",
    ),
    "zero stride": (
        {"shape": (1, 2, 3, 4), "strides": (24, 0, 4, 1)},
        "strides=.*0 on axis 1; allowed: 1 to",
    ),
    "stride of 2^63": (
        {"shape": (1, 2), "strides": (1, 2**63)},
        "strides=.*9223372036854775808 on axis 1.*9223372036854775807",
    ),
    "float strides": (
        {"shape": (1, 2), "strides": (2.0, 1.0)},
        "strides=.*is not a sequence of integers",
    ),
    "strides not iterable": ({"shape": (1, 2), "strides": 1}, "strides=1 is not a sequence"),
    "unknown dtype": (
        {"shape": (1,), "dtype": "complex64"},
        "dtype='complex64'.*allowed: float32, float64",
    ),
    "dtype is an object": ({"shape": (1,), "dtype": object()}, "dtype=.*allowed: float32"),
    "dtype without arrays": (
        {"shape": (1,), "dtype": dnn.DataType.INT4},
        "dtype=INT4.*allowed: float32",
    ),
    "vector type, plain layout": (
        {"shape": (1, 4, 2, 2), "dtype": "int8x4", "layout": "NCHW"},
        "layout='NCHW'.*NCHW_VECT_C",
    ),
    "vector type, wrong rank": ({"shape": (1, 4, 2), "dtype": "int8x4"}, "int8x4|NCHW_VECT_C"),
    "vector type, channels": (
        {"shape": (1, 6, 2, 2), "dtype": "int8x4"},
        "shape=.*int8x4.*multiples of 4",
    ),
    "vector type, strides": (
        {"shape": (1, 4, 2, 2), "dtype": "int8x4", "strides": (4, 4, 2, 1)},
        "strides.*int8x4",
    ),
    "vector layout, plain type": (
        {"shape": (1, 4, 2, 2), "dtype": "int8", "layout": "NCHW_VECT_C"},
        "layout='NCHW_VECT_C'.*int8.*allowed: int8x4, uint8x4, int8x32",
    ),
}

FILTERS: Refusals = {
    "rank 2": ({"shape": (4, 3)}, "shape=.*rank 2.*3 to 8"),
    "no outputs": ({"shape": (0, 3, 3, 3)}, "shape=.*size 0 on axis 0; allowed: 1 to"),
    "size of 2^31": ({"shape": (TOO_LARGE, 1, 1)}, "shape=.*2147483648"),
    "float": ({"shape": (4, 3.5, 3)}, "shape=.*is not a sequence of integers"),
    "unknown layout": (
        {"shape": (4, 3, 3, 3), "layout": "KCRS"},
        "layout='KCRS'.*allowed: NCHW, NHWC",
    ),
    "vector type, channels": ({"shape": (4, 3, 3, 3), "dtype": "int8x4"}, "shape=.*multiples of 4"),
    "vector type, plain layout": (
        {"shape": (4, 4, 3, 3), "dtype": "int8x4", "layout": "NHWC"},
        "layout='NHWC'.*NCHW_VECT_C",
    ),
}

CONVOLUTIONS: Refusals = {
    "negative padding": ({"padding": -1}, "padding=-1; allowed: 0 to 2147483647"),
    "zero stride": ({"stride": 0}, "stride=0; allowed: 1 to"),
    "zero dilation": ({"dilation": 0}, "dilation=0; allowed: 1 to"),
    "zero groups": ({"groups": 0}, "groups=0; allowed: 1 to"),
    "groups for each axis": ({"groups": (1, 2)}, r"groups=\(1, 2\) is not an integer"),
    "float padding": ({"padding": 1.0}, "padding=1.0"),
    "float inside": (
        {"stride": (1, 2.5)},
        r"stride=\(1, 2.5\); allowed: an integer, or one for each spatial axis$",
    ),
    "text": (
        {"padding": "full"},
        r"padding='full'; allowed: .* as in \(\(0, 1\), \(0, 1\)\), or 'same'$",
    ),
    "text for none": ({"padding": "valid"}, r"padding='valid'; allowed: .* 'valid' is 0$"),
    "None": ({"dilation": None}, "dilation=None"),
    "no axes": ({"padding": ()}, r"padding=\(\).*0 entries; allowed: 1 to 6"),
    "axes disagree": ({"padding": (1, 1), "stride": (1, 1, 1)}, "'padding': 2, 'stride': 3"),
    "unknown mode": (
        {"mode": "correlation"},
        "mode='correlation'.*allowed: CONVOLUTION, CROSS_CORRELATION",
    ),
    "unknown math type": ({"math_type": "fast"}, "math_type='fast'.*allowed: tf32, true_float32"),
    "unknown reorder type": ({"reorder_type": "yes"}, "reorder_type='yes'.*allowed: DEFAULT, NO"),
    "unknown compute type": (
        {"compute_type": "float128"},
        "compute_type='float128'.*allowed: float32",
    ),
    "mode of another enum": (
        {"mode": dnn.MathType.DEFAULT},
        "mode=.*allowed: CONVOLUTION, CROSS_CORRELATION",
    ),
    "mode is a bool": ({"mode": True}, "mode=True"),
}

NETWORKS: Refusals = {
    "cell_unknown": ({"cell": "lstn"}, r"cell='lstn'.*LSTM"),
    "cell_of_another_enum": ({"cell": dnn.MathType.FMA}, r"cell="),
    "cell_list": ({"cell": ["lstm"]}, r"cell="),
    "cell_of_a_newer_cudnn": ({"cell": dnn.enums.RNNMode(9)}, r"^cell=RNNMode\.UNKNOWN_9"),
    "input_size_text": ({"input_size": "8"}, r"input_size='8' is not an integer"),
    "hidden_size_list": ({"hidden_size": [3]}, r"hidden_size=\[3\] is not an integer"),
    "no_layers": ({"num_layers": 0}, r"num_layers=0; allowed: 1"),
    "no_projection": ({"projection_size": 0}, r"projection_size=0; allowed: 1"),
    "no_size": ({"hidden_size": 0}, r"hidden_size=0; allowed: 1"),
    "too_large": ({"input_size": 2**31}, r"input_size=2147483648; allowed: 1"),
    "bool": ({"num_layers": True}, r"num_layers=True is not an integer"),
    "fraction": ({"projection_size": 4.0}, r"projection_size=4.0 is not an integer"),
    "bidirectional_1": ({"bidirectional": 1}, r"bidirectional=1; allowed: True, False"),
    "projection_larger_than_hidden": (
        {"projection_size": 9},
        r"projection_size=9; allowed: 1 to hidden_size=8",
    ),
    "projection_of_a_gru": (
        {"cell": "gru", "projection_size": 4},
        r"projection_size=4 with cell=GRU.*LSTM",
    ),
    "bias_unknown": ({"bias": "both"}, r"bias='both'"),
    "bias_of_a_newer_cudnn": (
        {"bias": dnn.enums.RNNBiasMode(8)},
        r"bias=RNNBiasMode.UNKNOWN_8 cannot be passed to cuDNN; allowed: none",
    ),
    "input_mode_unknown": ({"input_mode": "jump"}, r"input_mode='jump'"),
    "skip_of_other_sizes": (
        {"input_mode": "skip"},
        r"input_size=6 with input_mode='skip'; allowed: hidden_size=8",
    ),
    "dropout_above": ({"dropout": 1.01}, r"dropout="),
    "dropout_nan": ({"dropout": math.nan}, r"dropout="),
    "dropout_none": ({"dropout": None}, r"dropout=None"),
    "dropout_text": ({"dropout": "0.5"}, r"dropout="),
    "dropout_bool": ({"dropout": True}, r"dropout="),
    "clip_one": ({"clip": (1,)}, r"clip="),
    "clip_three": ({"clip": (1, 2, 3)}, r"clip="),
    "clip_number": ({"clip": 1.0}, r"clip="),
    "clip_text": ({"clip": "ab"}, r"clip="),
    "clip_reversed": ({"clip": (1, -1)}, r"clip="),
    "clip_nan": ({"clip": (math.nan, 1)}, r"clip="),
    "clip_nan_second": ({"clip": (0, math.nan)}, r"clip="),
    "clip_too_large": ({"clip": (0, 10**400)}, r"^clip="),
    "clip_endless": ({"clip": itertools.count(1)}, r"^clip="),
    "clip_of_a_gru": ({"cell": "gru", "clip": (-1, 1)}, r"clip=.*cell=GRU.*LSTM"),
    "dtype_int8": (
        {"dtype": "int8"},
        r"dtype='int8'; allowed: float32, float64, float16, bfloat16",
    ),
    "dtype_unknown": ({"dtype": "float33"}, r"dtype='float33'"),
    "dtype_ambiguous": ({"dtype": "float"}, r"dtype='float'"),
    "compute_type_unknown": ({"compute_type": "float33"}, r"compute_type='float33'"),
    "math_type_unknown": ({"math_type": "fast"}, r"math_type='fast'"),
}

PAIRS: dict[str, tuple[dnn.ConvolutionSpec, Any, Any, str]] = {
    "groups do not divide x": (
        dnn.ConvolutionSpec(groups=2),
        (1, 3, 8, 8),
        (4, 1, 3, 3),
        r"groups=2.*\(3\)",
    ),
    "groups do not divide w": (
        dnn.ConvolutionSpec(groups=2),
        (1, 4, 8, 8),
        (3, 2, 3, 3),
        r"groups=2.*\(3, axis 0\)",
    ),
    "wrong channels": (dnn.ConvolutionSpec(), (1, 3, 8, 8), (4, 2, 3, 3), "w's axis 1 must be 3"),
    "channels not divided by groups": (
        dnn.ConvolutionSpec(groups=2),
        (1, 4, 8, 8),
        (4, 4, 3, 3),
        "w's axis 1 must be 2",
    ),
    "ranks differ": (dnn.ConvolutionSpec(), (1, 3, 8, 8), (4, 3, 3), "rank 4.*rank 3"),
    "rank 2": (dnn.ConvolutionSpec(), (1, 3), (4, 3), "rank 2"),
    "rank 6": (
        dnn.ConvolutionSpec(),
        (1, 3, 4, 4, 4, 4),
        (4, 3, 1, 1, 1, 1),
        "rank 6.*rank 3, 4 or 5",
    ),
    "filter too high": (
        dnn.ConvolutionSpec(),
        (1, 3, 4, 8),
        (4, 3, 5, 3),
        "axis 2.*over 5.*only 4",
    ),
    "filter too wide": (
        dnn.ConvolutionSpec(1),
        (1, 3, 8, 2),
        (4, 3, 3, 5),
        "axis 3.*over 5.*only 4",
    ),
    "dilated too wide": (
        dnn.ConvolutionSpec(dilation=(1, 4)),
        (1, 3, 8, 8),
        (4, 3, 3, 3),
        "axis 3.*over 9.*only 8",
    ),
    "a photograph, its channels last": (
        dnn.ConvolutionSpec(1),
        (1, 8, 9, 3),
        (4, 3, 3, 3),
        r"has 8\. Shapes.*\(x\.transpose\(0, 3, 1, 2\), layout='NHWC'\); otherwise w's",
    ),
    "both channels last": (
        dnn.ConvolutionSpec(1),
        (1, 8, 9, 6),
        (4, 5, 5, 6),
        r"transpose\(0, 3, 1, 2\).*, and w likewise; otherwise w's axis 1 must be 8$",
    ),
    "a signal, its groups last": (
        dnn.ConvolutionSpec(groups=4),
        (2, 9, 4),
        (4, 1, 3),
        r"\(9\).*\(0, 2, 1\), layout='NWC'\)$",
    ),
    "channels that fit nowhere": (
        dnn.ConvolutionSpec(),
        (1, 8, 9, 5),
        (4, 3, 3, 3),
        r"has 8; w's axis 1 must be 8$",
    ),
    "another number of axes": (
        dnn.ConvolutionSpec((1, 1, 1)),
        (1, 3, 8, 8),
        (4, 3, 3, 3),
        "3 spatial axes.*have 2",
    ),
}

SEQUENCES = {
    "rank_2": Case(
        lambda _: dnn.specs.RNNDataSpec((5, 4)),
        r"shape=\(5, 4\).*'sequence_major'.*\(T, N, vector\)",
    ),
    "unknown_layout": Case(
        lambda _: dnn.specs.RNNDataSpec((5, 4, 6), layout=dnn.enums.RNNDataLayout(9)),
        r"layout=<RNNDataLayout.UNKNOWN_9: 9>; allowed: ",
    ),
    "rank_2_batch_major": Case(
        lambda _: dnn.specs.RNNDataSpec((5, 4), layout="batch_major"),
        r"'batch_major'.*\(N, T, vector\)",
    ),
    "rank_3_packed": Case(
        lambda _: dnn.specs.RNNDataSpec((5, 4, 6), (5,), layout="packed"),
        r"'packed'.*\(sum of lengths, vector\)",
    ),
    "no_steps": Case(lambda _: dnn.specs.RNNDataSpec((0, 4, 6)), r"shape"),
    "negative": Case(lambda _: dnn.specs.RNNDataSpec((5, -4, 6)), r"shape"),
    "text": Case(lambda _: dnn.specs.RNNDataSpec("abc"), r"shape"),
    "too_large": Case(lambda _: dnn.specs.RNNDataSpec((2**31, 1, 1)), r"shape"),
    "lengths_longer": Case(
        lambda _: dnn.specs.RNNDataSpec((5, 2, 6), (5, 6)),
        r"lengths=\(5, 6\): 6 is longer.*5 steps",
    ),
    "lengths_zero": Case(
        lambda _: dnn.specs.RNNDataSpec((5, 2, 6), (5, 0)), r"lengths=\(5, 0\).*1 or more"
    ),
    "lengths_too_few": Case(
        lambda _: dnn.specs.RNNDataSpec((5, 2, 6), (5,)), r"lengths has 1 entries for a batch of 2"
    ),
    "lengths_empty": Case(lambda _: dnn.specs.RNNDataSpec((5, 2, 6), ()), r"lengths=\(\)"),
    "lengths_fractions": Case(
        lambda _: dnn.specs.RNNDataSpec((5, 2, 6), (5.0, 4.0)), r"lengths=.*integers"
    ),
    "lengths_nested": Case(
        lambda _: dnn.specs.RNNDataSpec((5, 2, 6), [[5, 4]]), r"lengths=.*integers"
    ),
    "packed_without_lengths": Case(
        lambda _: dnn.specs.RNNDataSpec((5, 6), layout="packed"), r"lengths are not given"
    ),
    "packed_increasing": Case(
        lambda _: dnn.specs.RNNDataSpec((5, 6), (2, 3), layout="packed"),
        r"lengths=\(2, 3\) increase at position 1",
    ),
    "packed_sum": Case(
        lambda _: dnn.specs.RNNDataSpec((5, 6), (3, 1), layout="packed"),
        r"add up to 4; the packed data has 5 rows",
    ),
    "layout_unknown": Case(
        lambda _: dnn.specs.RNNDataSpec((5, 2, 6), layout="NTC"),
        r"layout='NTC'; allowed: 'sequence_major', ",
    ),
    "dtype_unknown": Case(
        lambda _: dnn.specs.RNNDataSpec((5, 2, 6), dtype="float33"), r"dtype='float33'"
    ),
    "padding_fill_text": Case(
        lambda _: dnn.specs.RNNDataSpec((5, 2, 6), padding_fill="x"), r"padding_fill='x'"
    ),
    "padding_fill_complex": Case(
        lambda _: dnn.specs.RNNDataSpec((5, 2, 6), padding_fill=1j), r"padding_fill=1j"
    ),
}


TRANSPOSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "channels": (
        ((1, 6, 7, 5), (4, 6, 3, 3)),
        r"x_shape=\(1, 6, 7, 5\), w_shape=\(4, 6, 3, 3\); needed",
    ),
    "ranks that differ": (((1, 6, 7), (6, 4, 3, 3)), "of the same rank 3, 4 or 5"),
    "rank 2": (((1, 6), (6, 4)), "of the same rank 3, 4 or 5"),
    "an output padding beyond the stride": (
        ((1, 6, 7, 5), (6, 4, 3, 3), 2),
        r"output_padding=2; allowed with stride=2, dilation=1 and padding=1: 0 to \(1, 1\)",
    ),
    "an output padding of three axes": (((1, 6, 7, 5), (6, 4, 3, 3), (1, 1, 1)), "output_padding="),
    "nothing left": (((1, 6, 1, 1), (6, 4, 1, 1)), "padding=1 cuts off all of the result"),
}
ATTENTION: Refusals = {
    "no heads": ({"heads": 0}, "heads=0"),
    "fraction": ({"q_size": 2.5}, "q_size=2.5"),
    "negative": ({"q_proj_size": -1}, "q_proj_size=-1"),
    "sizes": ({"k_size": 6}, "queries of 5 and keys of 6"),
    "scale": ({"scale": -1.0}, "scale=-1.0"),
    "scale of nothing": ({"scale": math.nan}, "scale=nan"),
    "bias": ({"bias": 1}, "bias=1"),
    "dropout": ({"dropout": 1.0}, "dropout=1.0"),
    "post_dropout": ({"post_dropout": -0.1}, "post_dropout=-0.1"),
    "max_batch": ({"max_batch": 0}, "max_batch=0"),
    "dtype": ({"dtype": "float"}, "dtype='float'"),
}
POOLING: Refusals = {
    "padding of one axis": ({"window": (3, 2), "padding": 2}, r"padding=2.*window=\(3, 2\)"),
    "padding of a pixel": ({"window": 1, "padding": (0, 1)}, "padding"),
    "axes": ({"window": (3, 2), "padding": (1, 1, 1)}, "different numbers of spatial axes"),
    "axes of the stride": ({"window": (3, 2), "stride": (1, 1, 1)}, "different numbers"),
    "no window": ({"window": 0}, "window"),
    "negative padding": ({"window": 2, "padding": -1}, "padding"),
    "no stride": ({"window": 2, "stride": (1, 0)}, "stride"),
    "fraction": ({"window": 2.5}, "window"),
    "seven axes": ({"window": (1,) * 7}, "window"),
    "padding in a list": ({"window": 2, "padding": [[1]]}, "padding"),
    "gelu": ({"window": 2, "mode": "gelu"}, "mode='gelu'"),
}
OTHERS: dict[str, Case] = {
    "dtype of commas": Case(
        lambda _: dnn.TensorSpec((1,), "f4,,,"), r"^dtype='f4,,,' is not a data type"
    ),
    "dtype of half a character": Case(
        lambda _: dnn.TensorSpec((1,), "\ud800"), r"^dtype=.* is not a data type"
    ),
    "a spec as a dtype": Case(
        lambda _: dnn.TensorSpec((1,), LSTM), r"^dtype=RNNSpec\(.* is not a data type"
    ),
    "an array as a layout": Case(
        lambda _: dnn.TensorSpec((1, 2, 3), layout=np.array([True, True])),
        r"^layout=array\(.* is not a layout of rank 3",
    ),
    "a bool among strides": Case(
        lambda _: dnn.TensorSpec((2, 3), strides=(3, True)), r"^strides=\(3, True\)"
    ),
    "endless sizes": Case(lambda _: dnn.TensorSpec(itertools.count(1)), r"^shape="),
    "endless strides": Case(lambda _: dnn.TensorSpec((1, 2), strides=range(2**62)), r"^strides="),
    "padding_fill": Case(
        lambda _: dnn.specs.RNNDataSpec((2, 3, 4), padding_fill=10**400), r"^padding_fill="
    ),
    "2**31 - 1 lengths": Case(
        lambda _: dnn.specs.RNNDataSpec((1, 2**31 - 1, 1)), r"2147483647 sequences"
    ),
    "endless lengths": Case(
        lambda _: dnn.specs.RNNDataSpec((4, 2), itertools.repeat(1), layout="packed"), r"too many"
    ),
    "lengths on the device": Case(
        lambda b: dnn.specs.RNNDataSpec((5, 2, 6), b.handle.array(np.array([5, 4], np.int32))),
        r"lengths are on the device; cuDNN needs them on the host",
    ),
    "no tensor to take a filter from": Case(
        lambda _: dnn.FilterSpec.from_tensor((3, 2, 3, 3)),
        r"^w=\(3, 2, 3, 3\) is not a TensorSpec",
    ),
    "a filter with gaps": Case(
        lambda _: dnn.FilterSpec.from_tensor(
            dnn.TensorSpec((4, 3, 3, 3), strides=(100, 9, 3, 1)), argument="weights"
        ),
        r"weights=TensorSpec.*packed \(layouts \w+, \w+, NCHW_VECT_C\).*handle\.array",
    ),
    "a filter whose axes are in another order": Case(
        lambda _: dnn.FilterSpec.from_tensor(dnn.TensorSpec((4, 3, 3, 2), strides=(1, 4, 12, 36))),
        r"w=TensorSpec.*packed",
    ),
    "a filter of rank 2": Case(
        lambda _: dnn.FilterSpec.from_tensor(dnn.TensorSpec((2, 2)), argument="weights"),
        r"^weights has rank 2; needed: 3 to 5, \(K, C / groups, \*taps\)$",
    ),
    "a bool as padding": Case(
        lambda _: dnn.ConvolutionSpec(padding=True), r"^padding=True is not an integer"
    ),
    "endless padding": Case(lambda _: dnn.ConvolutionSpec(itertools.count(1)), r"^padding="),
    "three ends of an axis": Case(
        lambda _: dnn.ConvolutionSpec(((1, 2, 3), 1)),
        "padding=.*an integer, or two, before and behind",
    ),
    "negative padding of an end": Case(
        lambda _: dnn.ConvolutionSpec(((0, -1), 1)), "padding=-1; allowed: 0 to"
    ),
    "a fraction as padding of an end": Case(
        lambda _: dnn.ConvolutionSpec(((0, 1.5), 1)), "padding=1.5 is not an integer"
    ),
    "padding of nine axes": Case(
        lambda _: dnn.ConvolutionSpec(((0, 1),) * 9), "has 9 entries; allowed: 1 to"
    ),
    "a pair as an end": Case(
        lambda _: dnn.ConvolutionSpec((((0, 1), 1), 1)), r"padding=\(0, 1\) is not an integer"
    ),
    "integers that no convolution has": Case(
        lambda _: convolve(dnn.TensorSpec((1, 3, 8, 8), "int64"), "int64"),
        (
            r"^x is int64, w is int64; allowed: float32, float64, float16, bfloat16, int8, uint8, "
            r"int8x4, uint8x4, int8x32; handle\.array\(x, dtype='float32'\)"
        ),
    ),
    "images of another data type": Case(
        lambda _: convolve(dnn.TensorSpec((1, 3, 8, 8), "uint8"), "float16"),
        (
            r"^x is uint8, w is float16; they must have the same dtype; handle\.array\(x, "
            r"dtype='float16'\) converts$"
        ),
    ),
    "a filter of NumPy's float64": Case(
        lambda _: convolve(dnn.TensorSpec((1, 3, 8, 8), "float32"), "float64"),
        r"^x is float32, w is float64; .* handle\.array\(w, dtype='float32'\) converts$",
    ),
    "images of NumPy's float64": Case(
        lambda _: convolve(dnn.TensorSpec((1, 3, 8, 8), "float64"), "float32"),
        r"^x is float64, w is float32; .* handle\.array\(x, dtype='float32'\) converts$",
    ),
    "a filter of integers that no convolution has": Case(
        lambda _: convolve(dnn.TensorSpec((1, 3, 8, 8), "float16"), "int64"),
        r"^x is float16, w is int64; allowed: .* handle\.array\(w, dtype='float16'\) converts$",
    ),
    "an output padding of zeros": Case(
        lambda _: dnn.ConvolutionSpec(1, 1, 4).transposed_output_shape(
            (1, 6, 7, 5), (6, 4, 3, 3), 2
        ),
        r"output_padding=2.*padding=1: 0 to \(1, 1\)",
    ),
    "sequences of attention without a step": Case(
        lambda _: dnn.specs.SeqDataSpec((2, 1, 5, 8), [5, 0]), "lengths=0; allowed: 1"
    ),
    "axes of attention": Case(
        lambda _: dnn.specs.SeqDataSpec((2, 1, 5, 8), axes=("vect", "batch", "beam", "time")),
        "the vectors last",
    ),
    "attention without a maximum": Case(
        lambda _: dnn.descriptors.AttentionDescriptor(dnn.AttentionSpec(2, 5)),
        "spec has no max_q_length",
    ),
    "an activation of graphs": Case(
        lambda _: dnn.ActivationSpec("gelu"), "mode='gelu'.*, dnn.activation_forward"
    ),
    "a coefficient of none": Case(
        lambda _: dnn.ActivationSpec("relu", 1.0), "coef=1.0 with mode=RELU"
    ),
    "a text as a coefficient": Case(lambda _: dnn.ActivationSpec("elu", "x"), "coef="),
    "an index of no engine": Case(lambda _: dnn.types.Engine(1.5), "index=1.5"),
    "a bool as an engine": Case(lambda _: dnn.types.Engine(True), "index=True"),
    "a knob that is none": Case(lambda _: dnn.types.Engine(1, {"NOPE": 1}), "'NOPE'"),
    "a text as a knob": Case(lambda _: dnn.types.Engine(1, {"STAGES": "2"}), "STAGES='2'"),
    "bfloat16 of a spatial transformer": Case(
        lambda _: dnn.SpatialTransformerSpec((1, 1, 2, 2), "bfloat16"), "bfloat16; allowed"
    ),
}


def convolve(x: dnn.TensorSpec, w_dtype: str) -> dnn.TensorSpec:
    """Return what comes out of a convolution with a filter of some data type."""
    return dnn.ConvolutionSpec().output_spec(x, dnn.FilterSpec((4, 3, 3, 3), w_dtype))


def made(kind: Any, refusals: Refusals, **valid: Any) -> dict[str, Case]:
    """Return cases that make a spec with some arguments replaced."""
    return {
        f"{kind.__name__}, {name}": Case(
            lambda _, arguments=valid | arguments: kind(**arguments), message
        )
        for name, (arguments, message) in refusals.items()
    }


EMULATED_CASES = {
    **made(dnn.TensorSpec, TENSORS),
    **made(dnn.FilterSpec, FILTERS),
    **made(dnn.ConvolutionSpec, CONVOLUTIONS),
    **made(dnn.RNNSpec, NETWORKS, cell="lstm", input_size=6, hidden_size=8),
    **made(dnn.AttentionSpec, ATTENTION, heads=2, q_size=5),
    **made(dnn.PoolingSpec, POOLING),
    **SEQUENCES,
    **OTHERS,
    **{
        f"output, {name}": Case(
            lambda _, conv=conv, shapes=(x, w): conv.output_shape(*shapes), message
        )
        for name, (conv, x, w, message) in PAIRS.items()
    },
    **{
        f"transposed, {name}": Case(
            lambda _, shapes=shapes: dnn.ConvolutionSpec(
                padding=1, stride=2
            ).transposed_output_shape(*shapes),
            message,
        )
        for name, (shapes, message) in TRANSPOSED.items()
    },
}
