"""C's names of enum members, wherever a name is taken."""

from __future__ import annotations

import json
import operator

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite._raw.enums import C_MEMBERS
from cudnnlite.enums import is_choice, parse_enum

MEMBERS = [
    (kind, member, c_name)
    for kind, c_names in C_MEMBERS.items()
    for member, c_name in zip(kind.__members__.values(), c_names, strict=True)
]


def test_every_member_is_known_by_its_name_in_c():
    assert len(MEMBERS) > 700
    for kind, member, c_name in MEMBERS:
        if is_choice(member):
            assert parse_enum(kind, c_name, "option") is member
            assert parse_enum(kind, c_name.lower(), "option") is member
        else:
            with pytest.raises(dnn.ArgumentError, match="option="):
                parse_enum(kind, c_name, "option")


def test_a_name_in_c_of_another_enum_is_refused():
    with pytest.raises(dnn.ArgumentError, match="math_type='CUDNN_DATA_HALF' is not a MathType"):
        dnn.ConvolutionSpec(math_type="CUDNN_DATA_HALF")


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (dnn.ConvolutionSpec(math_type="CUDNN_TENSOR_OP_MATH").math_type, "TENSOR_OP"),
        (dnn.ConvolutionSpec(mode="CUDNN_CONVOLUTION").mode, "CONVOLUTION"),
        (dnn.ConvolutionSpec(compute_type="CUDNN_DATA_FLOAT").compute_type, "FLOAT"),
        (dnn.ActivationSpec("CUDNN_ACTIVATION_TANH").mode, "TANH"),
        (dnn.PoolingSpec(2, mode="CUDNN_POOLING_MAX_DETERMINISTIC").mode, "MAX_DETERMINISTIC"),
        (dnn.PoolingSpec(2, nan="CUDNN_NOT_PROPAGATE_NAN").nan, "NOT_PROPAGATE"),
        (dnn.specs.OpTensorSpec("CUDNN_OP_TENSOR_MAX").op, "MAX"),
        (dnn.specs.ReduceTensorSpec("CUDNN_REDUCE_TENSOR_NORM2").op, "NORM2"),
        (dnn.RNNSpec("CUDNN_GRU", 3, 4).cell, "GRU"),
        (dnn.RNNSpec("lstm", 3, 4, bias="CUDNN_RNN_SINGLE_INP_BIAS").bias, "SINGLE_INP"),
        (dnn.RNNSpec("lstm", 4, 4, input_mode="CUDNN_SKIP_INPUT").input_mode, "SKIP"),
        (
            dnn.specs.RNNDataSpec(
                (4, 2, 3), layout="CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED"
            ).layout,
            "BATCH_MAJOR_UNPACKED",
        ),
        (dnn.CTCLossSpec("CUDNN_LOSS_NORMALIZATION_NONE").normalization, "NONE"),
        (dnn.TensorSpec((1, 4, 2, 2), "CUDNN_DATA_HALF").dtype, "HALF"),
    ],
)
def test_specs_take_names_in_c(made, expected):
    assert made.name == expected


@pytest.mark.parametrize(
    ("c_name", "layouts"),
    [
        ("CUDNN_TENSOR_NCHW", {3: "NCW", 4: "NCHW", 5: "NCDHW"}),
        ("cudnn_tensor_nhwc", {3: "NWC", 4: "NHWC", 5: "NDHWC"}),
    ],
)
def test_a_layout_in_c_goes_with_every_rank(c_name, layouts):
    shape = (2, 3, 4, 5, 6)
    for rank, layout in layouts.items():
        assert dnn.TensorSpec(shape[:rank], layout=c_name).layout == layout
    assert dnn.TuningPolicy(layouts=c_name).layouts == (layouts[4],)


def test_a_layout_in_c_that_a_rank_lacks_is_refused():
    with pytest.raises(dnn.ArgumentError, match="layout='CUDNN_TENSOR_NCHW_VECT_C' is not a"):
        dnn.TensorSpec((1, 4, 2), layout="CUDNN_TENSOR_NCHW_VECT_C")


def test_an_engine_is_a_value_of_pythons_own_numbers():
    engine = dnn.types.Engine(np.int64(3), {"STAGES": np.int64(2)})
    assert (
        json.loads(json.dumps(engine.to_plain())) == dnn.types.Engine(3, {"STAGES": 2}).to_plain()
    )


def test_an_engine_takes_knobs_by_their_names_in_c():
    assert dnn.types.Engine(2, {"CUDNN_KNOB_TYPE_TILE_SIZE": 1}) == dnn.types.Engine(
        2, {"TILE_SIZE": 1}
    )


def test_operations_take_names_in_c():
    rng = np.random.default_rng(0)
    with dnn.Handle(device="emulated") as handle:
        x = handle.array(rng.standard_normal((2, 3, 5, 4), dtype=np.float32))
        w = handle.array(rng.standard_normal((4, 3, 3, 3), dtype=np.float32))
        pairs = [
            (
                dnn.convolution_forward(handle, x, w, algorithm=algorithm)
                for algorithm in ("CUDNN_CONVOLUTION_FWD_ALGO_GEMM", "GEMM")
            ),
            (
                dnn.softmax_forward(handle, x, mode=mode)
                for mode in ("CUDNN_SOFTMAX_MODE_INSTANCE", "INSTANCE")
            ),
            (
                dnn.activation_forward(handle, x, mode)
                for mode in ("CUDNN_ACTIVATION_SIGMOID", "SIGMOID")
            ),
            (
                dnn.reduce_tensor(handle, x, operator, axes=(2, 3))
                for operator in ("CUDNN_REDUCE_TENSOR_AVG", "AVG")
            ),
        ]
        for by_c_name, by_name in pairs:
            np.testing.assert_array_equal(by_c_name.numpy(), by_name.numpy())


def test_module_points_at_the_function_table():
    with pytest.raises(AttributeError, match=r"handle\.api\.cudnnConvolutionForward; did you mean"):
        _ = dnn.cudnnConvolutionForward
    with dnn.Handle(device="emulated") as handle:
        with pytest.raises(AttributeError, match=r"handle\.api\.cudnnCreate$"):
            _ = handle.cudnnCreate
        with pytest.raises(AttributeError, match=r"did you mean cudnnSetRNNDescriptor_v8\?"):
            _ = handle.cudnnSetRNNDescriptor_v6


def test_an_enum_takes_names_in_c():
    for kind, member, c_name in MEMBERS:
        assert kind(c_name) is member
        assert kind(c_name.lower()) is member
    for text in ("CUDNN_BATCHNORM_SPATIAL", "FMA", ""):
        with pytest.raises(ValueError, match="is not a valid MathType"):
            dnn.MathType(text)


def test_module_points_at_the_member_that_is_a_constant_in_c():
    for kind, member, c_name in MEMBERS:
        with pytest.raises(AttributeError, match=f"'{c_name}'; it is ") as caught:
            getattr(dnn, c_name)
        path = str(caught.value).partition("; it is dnn.")[2]
        assert operator.attrgetter(path)(dnn) is member
        assert path.startswith("raw.enums.") != hasattr(dnn.enums, kind.__name__)


@pytest.mark.parametrize("module", [dnn.enums, dnn.raw.enums], ids=["enums", "raw"])
def test_modules_of_enums_point_at_the_member_that_is_a_constant_in_c(module):
    for _, member, c_name in MEMBERS:
        with pytest.raises(AttributeError, match=f"'{c_name}'; it is ") as caught:
            getattr(module, c_name)
        path = str(caught.value).partition("; it is ")[2]
        place = dnn if path.startswith("dnn.") else module
        assert operator.attrgetter(path.removeprefix("dnn."))(place) is member
    with pytest.raises(AttributeError, match=r"has no attribute 'CUDNN_FMA_MAT'$"):
        _ = module.CUDNN_FMA_MAT


def test_the_raw_module_points_at_names_in_c():
    with pytest.raises(AttributeError, match=r"; it is dnn\.enums\.TensorFormat\.NCHW$"):
        _ = dnn.raw.CUDNN_TENSOR_NCHW
    with pytest.raises(AttributeError, match=r": handle\.api\.cudnnSoftmaxForward$"):
        _ = dnn.raw.cudnnSoftmaxForward


def test_module_points_at_other_constants_of_the_headers():
    with pytest.raises(
        AttributeError, match=r"it is dnn\.raw\.types\.CUDNN_RNN_PADDED_IO_ENABLED$"
    ):
        _ = dnn.CUDNN_RNN_PADDED_IO_ENABLED
    assert dnn.raw.types.CUDNN_RNN_PADDED_IO_ENABLED
    with pytest.raises(AttributeError, match=r"; did you mean CUDNN_FMA_MATH\?"):
        _ = dnn.CUDNN_FMA_MAT
