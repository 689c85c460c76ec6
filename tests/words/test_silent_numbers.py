"""Numbers and enum members that would silently mean something else are refused by name."""

import ctypes
import inspect

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite import enums
from cudnnlite._raw.attributes import ATTRIBUTES
from cudnnlite._raw.enums import BackendAttributeType
from cudnnlite._raw.types import cudnnActivationDescriptor_t, cudnnDropoutDescriptor_t
from cudnnlite.enums import is_choice, parse_enum
from cudnnlite.graph.attributes import ENUMS_OF_ATTRIBUTES, encode
from cudnnlite.specs.frozen import SPECS

# ---------------------------------------------------------------- scalars

NO_REAL_NUMBERS = {
    "complex scalar": np.complex64(2 + 5j),
    "complex array": np.array(2 + 5j),
    "complex": 2 + 5j,
    "time": np.timedelta64(3, "s"),
    "text of NumPy": np.str_("3"),
    "masked": np.ma.masked,
    "masked array": np.ma.array(3.0, mask=True),
    "element of a masked array": np.ma.array([3.0, 1.0], mask=[True, False])[0],
}
SCALARS = {
    "alpha": lambda handle, x, value: dnn.scale_tensor(handle, x, value),
    "beta": lambda handle, x, value: dnn.softmax_forward(handle, x, beta=value, out=x),
    "coef": lambda handle, x, value: dnn.ActivationSpec("elu", value),
    "dropout": lambda handle, x, value: dnn.RNNSpec("lstm", 2, 3, dropout=value),
    "k": lambda handle, x, value: dnn.LRNSpec(k=value),
    "clip": lambda handle, x, value: dnn.RNNSpec("lstm", 2, 3, clip=(value, 9)),
    "padding_fill": lambda handle, x, value: dnn.specs.RNNDataSpec((2, 3, 4), padding_fill=value),
    "OPERATION_CONVOLUTION_FORWARD.alpha": lambda handle, x, value: dnn.types.BackendDescriptor(
        handle, "OPERATION_CONVOLUTION_FORWARD", alpha=value
    ),
    "POINTWISE.elu_alpha": lambda handle, x, value: dnn.types.BackendDescriptor(
        handle, "POINTWISE", elu_alpha=value
    ),
    r"cudnnSetActivationDescriptor, argument 4 \(coef\)": lambda handle, x, value: (
        handle.api.cudnnSetActivationDescriptor(cudnnActivationDescriptor_t(8), 1, 1, value)
    ),
}


@pytest.fixture
def x(own_handle):
    return own_handle.array(np.ones((1, 2, 3, 4), np.float32))


@pytest.mark.parametrize("argument", SCALARS)
@pytest.mark.parametrize("value", NO_REAL_NUMBERS.values(), ids=NO_REAL_NUMBERS)
@pytest.mark.filterwarnings("ignore:Warning. converting a masked element:UserWarning")
def test_what_is_no_real_number_is_refused_by_name(own_handle, x, argument, value):
    needed = "(real number|masked|not a number|pair of numbers|probability)"
    with pytest.raises(dnn.ArgumentError, match=f"^{argument}.*{needed}"):
        SCALARS[argument](own_handle, x, value)
    assert (x.numpy() == 1).all()


MASKED_INTEGERS = {
    "input_size": lambda value: dnn.RNNSpec("lstm", value, 3),
    "shape": lambda value: dnn.TensorSpec((2, value)),
    "stride": lambda value: dnn.ConvolutionSpec(stride=value),
    "TENSOR.unique_id": lambda value: encode("TENSOR", "unique_id", value),
}


@pytest.mark.parametrize("argument", MASKED_INTEGERS)
def test_a_masked_integer_is_refused_by_name(argument):
    with pytest.raises(dnn.ArgumentError, match=f"^{argument}=.*(masked|integer)"):
        MASKED_INTEGERS[argument](np.ma.array(3, mask=True))


def test_a_masked_integer_is_refused_before_c_sees_it(own_handle):
    with pytest.raises(dnn.ArgumentError, match=r"argument 2 \(mode\)"):
        own_handle.api.cudnnSetActivationDescriptor(
            cudnnActivationDescriptor_t(8), np.ma.array(1, mask=True), 1, 0.0
        )


def test_the_real_scalars_of_numpy_stay(own_handle, x):
    dnn.scale_tensor(own_handle, x, np.ma.array(2.0, mask=False))
    dnn.scale_tensor(own_handle, x, np.float16(2))
    dnn.scale_tensor(own_handle, x, np.array(2))
    assert (x.numpy() == 8).all()


# ---------------------------------------------------------------- numbers that become infinite


@pytest.mark.parametrize(
    ("dtype", "finite", "infinite"),
    [
        ("float32", 3.4028235e38, 1e300),
        ("float32", -3.4028235e38, -3.4028236e38),
        ("bfloat16", 3.38e38, 3.4e38),
        ("float16", 65519.0, 65520.0),
        ("float64", 1e300, None),
    ],
)
def test_a_padding_that_its_data_type_does_not_hold_is_refused(dtype, finite, infinite):
    spec = dnn.specs.RNNDataSpec((2, 3, 4), dtype=dtype, padding_fill=finite)
    assert dnn.specs.RNNDataSpec((2, 3, 4), dtype=dtype, padding_fill=np.inf).padding_fill == np.inf
    if infinite is not None:
        for make in (
            lambda: dnn.specs.RNNDataSpec((2, 3, 4), dtype=dtype, padding_fill=infinite),
            lambda: spec.with_vectors(5, infinite),
        ):
            with pytest.raises(
                dnn.ArgumentError, match=rf"^padding_fill=.*; allowed: up to .*, a {dtype}$"
            ):
                make()


def test_a_call_refuses_such_a_padding_too(own_handle):
    lstm = dnn.RNNSpec("lstm", input_size=2, hidden_size=3)
    x = own_handle.array(np.ones((4, 2, 2), np.float32))
    weights = dnn.RNNWeights(own_handle, lstm)
    with pytest.raises(dnn.ArgumentError, match=r"^padding_fill=.*a float32$"):
        dnn.rnn_forward(own_handle, lstm, weights, x, lengths=[4, 1], padding_fill=1e300)


def test_an_attribute_and_a_c_float_refuse_it_too(own_handle):
    with pytest.raises(
        dnn.ArgumentError, match=r"^OPERATION_CONVOLUTION_FORWARD.alpha=1e\+300; needed: one FLOAT"
    ):
        encode("OPERATION_CONVOLUTION_FORWARD", "alpha", 1e300)
    assert encode("OPERATION_CONVOLUTION_FORWARD", "alpha", 1e300, "DOUBLE")[2][0] == 1e300
    with pytest.raises(
        dnn.ArgumentError, match=r"argument 3 \(dropout\): 1e\+300 does not fit into a c_float"
    ):
        own_handle.api.cudnnSetDropoutDescriptor(
            cudnnDropoutDescriptor_t(8), own_handle.ptr, 1e300, None, 0, 0
        )


# ---------------------------------------------------------------- enum members that nobody knows

PUBLIC_ENUMS = [
    getattr(enums, name) for name in enums.__all__ if inspect.isclass(getattr(enums, name))
]
ENUM_FIELDS = [
    (spec, name, kind)
    for spec in SPECS.values()
    for name, annotation in inspect.get_annotations(spec).items()
    for kind in PUBLIC_ENUMS
    if str(annotation).partition(" ")[0] == kind.__name__
    and name in inspect.signature(spec).parameters
]
# what the constructors need besides
ARGUMENTS = {
    "TensorSpec": {"shape": (1, 2, 3, 4)},
    "FilterSpec": {"shape": (1, 2, 3, 4)},
    "PoolingSpec": {"window": 2},
    "ActivationSpec": {"mode": "relu"},
    "OpTensorSpec": {"op": "add"},
    "ReduceTensorSpec": {"op": "add"},
    "RNNSpec": {"cell": "lstm", "input_size": 2, "hidden_size": 3},
    "RNNDataSpec": {"shape": (2, 3, 4)},
    "SpatialTransformerSpec": {"shape": (2, 3, 8, 8)},
    "TensorTransformSpec": {"padding": (0, 0, 1, 0)},
    "AttentionSpec": {"heads": 2, "q_size": 4},
    "SeqDataSpec": {"shape": (1, 2, 3, 4)},
}


@pytest.mark.parametrize("kind", PUBLIC_ENUMS)
def test_an_unknown_member_and_the_end_of_an_enumeration_are_printed_but_refused(kind):
    unknown = kind(77)
    assert str(unknown) == "UNKNOWN_77"
    for member in (
        unknown,
        *(member for name, member in kind.__members__.items() if name == "COUNT"),
    ):
        with pytest.raises(
            dnn.ArgumentError,
            match=f"^option={kind.__name__}.{member} cannot be passed to cuDNN; all",
        ):
            parse_enum(kind, member, "option")
    for member in kind:
        assert not is_choice(member) or parse_enum(kind, member, "option") is member


@pytest.mark.parametrize(("spec", "name", "kind"), ENUM_FIELDS)
def test_specs_refuse_unknown_members(spec, name, kind):
    arguments = ARGUMENTS.get(spec.__name__, {}) | {name: kind(77)}
    with pytest.raises(dnn.ArgumentError, match=f"^{name}="):
        spec(**arguments)


def test_operations_refuse_unknown_members(own_handle, x):
    with pytest.raises(dnn.ArgumentError, match=r"^mode=SoftmaxMode.UNKNOWN_77"):
        dnn.softmax_forward(own_handle, x, mode=dnn.enums.SoftmaxMode(77))
    with pytest.raises(dnn.ArgumentError, match=r"^activation=ActivationMode.UNKNOWN_77"):
        dnn.activation_forward(own_handle, x, dnn.enums.ActivationMode(77))


@pytest.mark.parametrize(
    "algorithm", [dnn.enums.ConvolutionFwdAlgo.GEMM, dnn.types.Engine(0)], ids=str
)
def test_a_result_with_an_unknown_math_type_is_not_applied(own_handle, x, algorithm):
    w = own_handle.array(np.ones((3, 2, 1, 1), np.float32))
    result = dnn.AlgorithmResult(algorithm, dnn.MathType(77))
    with pytest.raises(dnn.ArgumentError, match=r"^algorithm.math_type=MathType.UNKNOWN_77"):
        dnn.convolution_forward(own_handle, x, w, algorithm=result)


ATTRIBUTES_OF_ENUMS = [
    (kind, name, type_name)
    for kind, attributes in ATTRIBUTES.items()
    for name, (_, type_name, many) in attributes.items()
    if (type_name in ENUMS_OF_ATTRIBUTES or type_name == "DATA_TYPE")
    and type_name != "KNOB_TYPE"
    and not many
]


@pytest.mark.parametrize(("kind", "name", "type_name"), ATTRIBUTES_OF_ENUMS)
def test_attributes_refuse_unknown_members(kind, name, type_name):
    enum = ENUMS_OF_ATTRIBUTES.get(type_name, dnn.DataType)
    with pytest.raises(
        dnn.ArgumentError, match=rf"^{kind}.{name}=.*UNKNOWN_777 cannot be passed to cuDNN"
    ):
        encode(kind, name, enum(777))


def test_the_emulated_backend_refuses_such_numbers_of_c(own_handle):
    number, type_name, _ = ATTRIBUTES["CONVOLUTION"]["conv_mode"]
    values = (ctypes.c_int * 1)(77)
    refused = pytest.raises(
        dnn.errors.BadParamError, match=r"CONVOLUTION.conv_mode=\[77\] is not of ConvolutionMode"
    )
    with dnn.types.BackendDescriptor(own_handle, "CONVOLUTION") as descriptor, refused:
        own_handle.api.cudnnBackendSetAttribute(
            descriptor.ptr, number, BackendAttributeType[type_name], 1, values
        )
