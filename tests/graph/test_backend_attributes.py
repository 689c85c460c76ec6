"""The generated table of backend attributes beside what libcudnn itself says, and values that are none."""

import ctypes
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

import cudnnlite as dnn
from cudnnlite._raw.api import CudnnApi, library_api
from cudnnlite._raw.attributes import ATTRIBUTES
from cudnnlite._raw.enums import BackendAttributeName, BackendAttributeType, BackendDescriptorType
from cudnnlite._raw.types import cudnnBackendDescriptor_t, cudnnHandle_t
from cudnnlite.emulated.api import EmulatedApi
from cudnnlite.graph.attributes import C_TYPES, ENUMS_OF_ATTRIBUTES, REQUIRED, encode

# libcudnn calls a graph of these "not supported" whatever is asked; the rest of the table does not depend on it
TWO_TYPES = {"OPERATION_CONTRACT_BAND_MATRIX"}


def said_by_cudnn(kind, number):
    """Return the types that libcudnn's refusal of a wrong type names; no value is looked at."""
    api, made = library_api(), cudnnBackendDescriptor_t()
    try:
        api.cudnnBackendCreateDescriptor(BackendDescriptorType[kind], ctypes.byref(made))
    except dnn.errors.AllocationError:  # how an older one says that it has no such kind
        assert api.cudnnGetVersion() < 92800, kind
        return set()
    values = (ctypes.c_int64 * 64)(*[1] * 64)
    try:
        api.cudnnBackendSetAttribute(made, number, BackendAttributeType.LAYOUT_TYPE, 1, values)
    except dnn.CudnnError as error:
        return set(re.findall(r"CUDNN_TYPE_(\w+)", error.detail))
    finally:
        api.cudnnBackendDestroyDescriptor(made)
    return set()


def test_libcudnn_agrees_with_the_types():
    asked, wrong = 0, []
    for kind, attributes in ATTRIBUTES.items():
        if kind in ("INTERMEDIATE_INFO", *TWO_TYPES):  # the first cannot be made
            continue
        for name, (number, type_name, _) in attributes.items():
            if said := said_by_cudnn(kind, number):
                asked += 1
                wrong += [(kind, name, type_name, said)] if type_name not in said else []
    assert wrong == []
    assert (
        asked > 150 or library_api().cudnnGetVersion() < 92800
    )  # 9.0 names the types in 97 refusals, 9.10 in none


# libcudnn refuses the types of these attributes without naming the one that it takes.
SILENT_REFUSALS = {
    ("OPERATION_BLOCK_SCALE_QUANTIZE", "block_size"),
    ("OPERATION_BLOCK_SCALE_DEQUANTIZE", "block_size"),
    ("OPERATION_MOE_GROUPED_MATMUL", "top_k"),
    ("VARIANT_PACK", "override_shapes"),
    ("VARIANT_PACK", "override_strides"),
}


@pytest.mark.parametrize(("kind", "name"), sorted(SILENT_REFUSALS))
def test_libcudnn_takes_numbers_of_the_table_s_type_alone(kind, name):
    api = library_api()
    if api.cudnnGetVersion() < 92800:
        pytest.xfail("older versions lack some of these attributes")
    number, type_name, has_several = ATTRIBUTES[kind][name]
    values = (ctypes.c_int64 * 2)(16, 16)
    taken = set()
    for candidate in ("INT32", "INT64", "VOID_PTR"):
        with dnn.types.BackendDescriptor(api, kind) as descriptor:
            try:
                api.cudnnBackendSetAttribute(
                    descriptor.ptr, number, BackendAttributeType[candidate], 1, values
                )
            except dnn.CudnnError:
                continue
            taken.add(candidate)
    assert taken == {type_name}
    assert not has_several


def test_a_text_is_passed_without_the_zero_that_ends_it_in_c():
    number, kind, characters = encode("DEVICEPROP", "json_representation", '{"a":1}')
    assert (number, kind) == (
        BackendAttributeName.DEVICEPROP_JSON_REPRESENTATION,
        BackendAttributeType.CHAR,
    )
    assert (len(characters), bytes(characters)) == (7, b'{"a":1}')


@pytest.mark.parametrize("value", ["", "a\0b", "gr\u00fc\u00dfe", b"{}", 3, None, ["a"]], ids=repr)
def test_what_is_no_text_is_refused(value):
    with pytest.raises(dnn.ArgumentError, match=r"DEVICEPROP.json_representation=.*needed: a text"):
        encode("DEVICEPROP", "json_representation", value)


def test_the_table_has_every_attribute_but_what_no_kind_begins():
    known = {number for attributes in ATTRIBUTES.values() for number, _, _ in attributes.values()}
    missing = {name.name for name in BackendAttributeName} - {
        BackendAttributeName(number).name for number in known
    }
    assert missing <= {"OPERATION_CONTRACT_BAND_MAX_TOKEN_VALUE"}
    for kind, names in REQUIRED.items():
        assert set(names) <= set(ATTRIBUTES[kind]), kind
    for attributes in ATTRIBUTES.values():
        for _, type_name, _ in attributes.values():
            assert type_name in BackendAttributeType.__members__


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("nope", 1, "TENSOR has no attribute 'nope'; allowed: byte_alignment"),
        ("dimensions", 3, "TENSOR.dimensions=3; needed: several values of INT64"),
        ("dimensions", (1, "x"), "TENSOR.dimensions=.*INT64"),
        ("unique_id", (1, 2), r"TENSOR.unique_id=\(1, 2\); needed: one INT64"),
        ("unique_id", "a", "TENSOR.unique_id='a'; needed: one INT64"),
        ("unique_id", True, "TENSOR.unique_id=True; needed: one INT64"),
        ("unique_id", 1 << 63, "TENSOR.unique_id=9223372036854775808; needed: one INT64"),
        ("is_virtual", 1, "TENSOR.is_virtual=1; needed: one BOOLEAN"),
        ("data_type", "float99", "TENSOR.data_type='float99'; needed: one DATA_TYPE .*allowed"),
        (
            "reordering_mode",
            "nope",
            "TENSOR.reordering_mode='nope'; needed: one TENSOR_REORDERING_MODE .*allowed",
        ),
    ],
)
def test_a_wrong_value_is_named_before_c_sees_it(name, value, said):
    with pytest.raises(dnn.ArgumentError, match=said):
        encode("TENSOR", name, value)


@pytest.mark.parametrize(
    ("kind", "name", "value", "number"),
    [
        ("TENSOR", "data_type", "boolean", dnn.DataType.BOOLEAN),
        ("TENSOR", "data_type", dnn.DataType.BOOLEAN, 11),
        ("TENSOR", "data_type", "int4", dnn.DataType.INT4),
        ("TENSOR", "data_type", "float32", dnn.DataType.FLOAT),
        ("TENSOR", "reordering_mode", "none", 0),
        ("OPERATION_MOE_GROUPED_MATMUL", "mode", "none", 0),
        ("EXECUTION_PLAN", "cuda_graph_retention", "none", 1),
        ("OPERATION_RESHAPE", "mode", "logical", 1),
        ("OPERATIONGRAPH", "mode", "auto", -1),
    ],
)
def test_members_are_taken_by_name(kind, name, value, number):
    assert list(encode(kind, name, value)[2]) == [number]


def test_every_type_of_an_attribute_is_known():
    types = {
        type_name for attributes in ATTRIBUTES.values() for _, type_name, _ in attributes.values()
    }
    assert types <= {*C_TYPES, *ENUMS_OF_ATTRIBUTES, "DATA_TYPE"}


NO_NATIVE_OBJECTS = [
    5,
    None,
    "a",
    ctypes.c_int(5),
    ctypes.c_void_p(5),
    SimpleNamespace(value=5),
    SimpleNamespace(ptr=5),
]


@pytest.mark.parametrize("value", NO_NATIVE_OBJECTS, ids=repr)
@pytest.mark.parametrize(
    ("kind", "name", "needed"),
    [
        ("EXECUTION_PLAN", "handle", "one HANDLE"),
        ("ENGINE", "operation_graph", "one BACKEND_DESCRIPTOR"),
    ],
)
def test_only_a_native_object_of_the_type_has_its_address_taken(
    own_handle, kind, name, needed, value
):
    with pytest.raises(dnn.ArgumentError, match=rf"^{kind}.{name}=.*; needed: {needed} \("):
        dnn.types.BackendDescriptor(own_handle, kind, **{name: value})


def test_a_descriptor_of_another_type_and_a_null_pointer_are_no_native_objects(own_handle):
    refused = pytest.raises(dnn.ArgumentError, match=r"EXECUTION_PLAN.handle=<TensorDescriptor")
    with dnn.TensorDescriptor((1, 2, 3, 4)) as tensor, refused:
        encode("EXECUTION_PLAN", "handle", tensor)
    with pytest.raises(dnn.ArgumentError, match=r"EXECUTION_PLAN.handle=.*null pointer"):
        encode("EXECUTION_PLAN", "handle", cudnnHandle_t())
    assert encode("EXECUTION_PLAN", "handle", own_handle)[2][0] == own_handle.ptr.value
    assert encode("EXECUTION_PLAN", "handle", own_handle.ptr)[2][0] == own_handle.ptr.value


@pytest.mark.parametrize("real", [True, False], ids=["libcudnn", "emulated"])
def test_a_kind_that_is_newer_than_the_library_says_since_when_it_exists(own_device, real):
    """No older libcudnn is here: this one answers to a number that it does not know as those do."""
    library = replace(own_device.api.library, version=91900)
    api = CudnnApi(library) if real else EmulatedApi(library, own_device.memory)
    message = (
        r"kind=OPERATION_SLICE was added in cuDNN 9.22.0; the loaded libcudnn is 9.19.0: .*libcudnn"
    )
    if real:
        create = api.cudnnBackendCreateDescriptor
        api.cudnnBackendCreateDescriptor = lambda kind, native: create(999, native)
    with pytest.raises(dnn.NotSupportedError, match=message) as caught:
        dnn.types.BackendDescriptor(api, "OPERATION_SLICE")
    assert caught.value.status == dnn.enums.Status.INTERNAL_ERROR_HOST_ALLOCATION_FAILED
    assert not isinstance(caught.value, MemoryError)


def test_where_memory_is_lacking_a_known_kind_is_not_called_new(world):
    world.ledger.fail_next(
        "cudnnBackendCreateDescriptor", dnn.enums.Status.INTERNAL_ERROR_HOST_ALLOCATION_FAILED
    )
    with pytest.raises(dnn.errors.AllocationError):
        dnn.types.BackendDescriptor(world.process_api, "OPERATION_SDPA_FWD")


def test_values_become_arrays_of_their_c_types():
    number, kind, values = encode("TENSOR", "dimensions", (2, 3))
    assert (number, kind, list(values)) == (
        BackendAttributeName.TENSOR_DIMENSIONS,
        BackendAttributeType.INT64,
        [2, 3],
    )
    number, kind, values = encode("OPERATION_CONVOLUTION_FORWARD", "alpha", 0.5, "DOUBLE")
    assert (kind, type(values[0]), values._type_) == (
        BackendAttributeType.DOUBLE,
        float,
        C_TYPES["DOUBLE"],
    )
