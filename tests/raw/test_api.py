"""The function table: binding, suggestions, missing symbols and plain values.

The emulated table refuses what it does not implement.
"""

import ctypes
import inspect
import pydoc
import re
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite._raw.api import CudnnApi, library_api
from cudnnlite._raw.calls import CallArgumentError, CFunction
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite._raw.library import Library, load_library
from cudnnlite._raw.replacements import replacement
from cudnnlite._raw.types import cudaStream_t, cudnnHandle_t
from cudnnlite.emulated.api import EmulatedApi, RefusalError
from cudnnlite.emulated.device import EmulatedDevice
from cudnnlite.emulated.functions import IMPLEMENTATIONS
from cudnnlite.emulated.memory import EmulatedMemory, IllegalAddressError
from cudnnlite.errors import NotSupportedError, SymbolNotFoundError
from cudnnlite.problems.catalogue import OPERATIONS

# Each operation's C function, and the functions that ask for its workspace, its reserve space and
# its algorithms; and those without an operation.
OF_OPERATIONS = {
    name
    for operation in OPERATIONS.values()
    if operation.writes
    for choice in (operation.algorithms,)
    for name in (
        operation.function,
        operation.workspace,
        operation.reserve,
        *((choice.count, choice.heuristic, choice.find, choice.workspace) if choice else ()),
    )
    if name and FUNCTIONS[name].needs_device
}
# what libcudnn would make, but could not use without a device
OF_DESCRIPTORS = {
    "cudnnSetSpatialTransformerNdDescriptor",
    "cudnnDestroySpatialTransformerDescriptor",
    "cudnnSetTensorTransformDescriptor",
    "cudnnGetTensorTransformDescriptor",
    "cudnnDestroyTensorTransformDescriptor",
}
EMULATED = (
    OF_OPERATIONS
    | OF_DESCRIPTORS
    | {
        "cudnnCreate",
        "cudnnDestroy",
        "cudnnSetStream",
        "cudnnGetStream",
        "cudnnCTCLoss",
        "cudnnCTCLoss_v8",
        "cudnnGetCTCLossWorkspaceSize",
        "cudnnGetCTCLossWorkspaceSize_v8",
        "cudnnGetMultiHeadAttnBuffers",
        "cudnnGetMultiHeadAttnWeights",
        "cudnnMultiHeadAttnForward",
        "cudnnMultiHeadAttnBackwardData",
        "cudnnMultiHeadAttnBackwardWeights",
        "cudnnDropoutGetStatesSize",
        "cudnnSetDropoutDescriptor",
        "cudnnRestoreDropoutDescriptor",
        "cudnnGetDropoutDescriptor",
        "cudnnDestroyDropoutDescriptor",
        "cudnnSetRNNDescriptor_v8",
        "cudnnDestroyRNNDescriptor",
        "cudnnBuildRNNDynamic",
        "cudnnGetRNNWeightSpaceSize",
        "cudnnGetRNNWeightParams",
        "cudnnGetRNNTempSpaceSizes",
        "cudnnRNNForward",
        "cudnnRNNBackwardData_v8",
        "cudnnRNNBackwardWeights_v8",
        "cudnnBackendCreateDescriptor",
        "cudnnBackendDestroyDescriptor",
        "cudnnBackendInitialize",
        "cudnnBackendSetAttribute",
        "cudnnBackendGetAttribute",
        "cudnnBackendFinalize",
        "cudnnBackendExecute",
    }
)
# Libcudnn's own, but for what the emulated device must forget when they are called.
WITHOUT_HANDLE = {
    name for name in EMULATED if name.startswith("cudnnBackend") and name != "cudnnBackendExecute"
} | {
    "cudnnDestroyDropoutDescriptor",
    "cudnnSetRNNDescriptor_v8",
    "cudnnDestroyRNNDescriptor",
    *OF_DESCRIPTORS,
}


@pytest.fixture
def api():
    return CudnnApi(load_library())


@pytest.fixture
def emulated():
    return EmulatedApi(load_library(), EmulatedMemory(1 << 30))


def nothing(record):
    """Null pointers and zeros for every parameter."""
    return [
        0 if issubclass(kind, ctypes._SimpleCData) and kind._type_ != "P" else None
        for kind in record.argtypes
    ]


# ---------------------------------------------------------------- binding


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("cudnnCreateTensorDescripter", "did you mean cudnnCreateTensorDescriptor"),
        ("cudnnconvolutionforward", "did you mean cudnnConvolutionForward"),
        ("cudnnSetRNNDescriptor_v6", r"did you mean cudnnSetRNNDescriptor_v8\?$"),
        ("cudnnSetRNNDescriptor", r"did you mean cudnnSetRNNDescriptor_v8\?$"),
        ("cudnnGetConvolutionForwardAlgorithm", r"did you mean .*ForwardAlgorithm_v7\?$"),
        ("cudnnCTCLoss_v9", r"did you mean cudnnCTCLoss_v8, cudnnCTCLoss\?$"),
        ("cudnnRNNForwardInferenceEx", "did you mean cudnnRNNForward"),
    ],
)
def test_an_unknown_function_is_answered_with_suggestions(api, name, suggestion):
    with pytest.raises(AttributeError, match=f"cuDNN has no function {name}; {suggestion}"):
        getattr(api, name)


def test_a_name_that_resembles_nothing(api):
    with pytest.raises(AttributeError, match=r"^cuDNN has no function zzz$"):
        api.zzz
    assert not hasattr(api, "zzz")


def test_private_names_are_not_looked_up(api):
    with pytest.raises(AttributeError, match=r"^_ipython_display_$"):
        api._ipython_display_


def test_dir_lists_every_function(api):
    assert set(FUNCTIONS) <= set(dir(api))
    assert {"has", "last_error", "library"} <= set(dir(api))


def test_every_function_of_the_headers_is_in_the_loaded_library_of_the_same_version(api):
    assert api.has("cudnnCreate")
    assert not api.has("cudnnCreateNothing")
    assert not api.has("malloc")  # a symbol, but none of cuDNN's


def test_a_binding_is_made_once(api):
    assert api.cudnnCreateTensorDescriptor is api.cudnnCreateTensorDescriptor
    assert "cudnnCreateTensorDescriptor" in vars(api)


def test_tables_do_not_share_bindings():
    one, other = CudnnApi(load_library()), CudnnApi(load_library())
    assert one.cudnnSetStream is not other.cudnnSetStream


def test_bound_functions_know_their_record_and_check_their_status(api):
    for name, record in FUNCTIONS.items():
        if not api.has(name):
            continue
        function = getattr(api, name)
        assert function.record is record
        pointer = (
            function.call.args[0] if isinstance(function.call, partial) else function.call
        )  # until its first call
        assert pointer.restype is record.restype, name
        assert (function.check is not None) == record.returns_status, name
        assert repr(function) == f"<{name}({', '.join(record.argnames)})>"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "cudnnSetTensorNdDescriptor",
            """\
<cudnnSetTensorNdDescriptor(tensorDesc, dataType, nbDims, dimA, strideA)>
    cudnnStatus_t cudnnSetTensorNdDescriptor(
        cudnnTensorDescriptor_t tensorDesc,
        cudnnDataType_t dataType,
        int nbDims,
        const int dimA[],
        const int strideA[]
    )

    cudnn_ops.h; since 9.0.0.
    Another status than success raises a `CudnnError`.
""",
        ),
        ("cudnnSetPooling2dDescriptor", "cudnn_ops.h; since 9.0.0; deprecated since 9.0.0."),
        (
            "cudnnSetTensor",
            (
                "    cudnnHandle_t handle,\n        const cudnnTensorDescriptor_t yDesc,\n"
                "        void *y,\n"
            ),
        ),
        ("cudnnGetErrorString", "const char *cudnnGetErrorString(\n        cudnnStatus_t status\n"),
        ("cudnnGetVersion", "size_t cudnnGetVersion(\n        void\n"),
    ],
)
def test_help_shows_the_prototype_of_c(api, name, words):
    text = pydoc.render_doc(getattr(api, name), renderer=pydoc.plaintext)
    assert words in re.sub(r" +$", "", text, flags=re.M)


def test_every_function_has_a_prototype_to_be_shown_and_the_class_its_docstring(api):
    for name, record in FUNCTIONS.items():
        first, *arguments = CFunction(print, record).__doc__.partition("\n)")[0].split("\n")
        assert first.endswith(f"{name}(")
        assert [re.sub(r".*?(\w+)(\[\])?,?$", r"\1", argument) for argument in arguments] == [
            *(record.argnames or ["void"])
        ]
    assert CFunction.__doc__.startswith("A function of a table: ")
    assert "A function of a table: " in pydoc.render_doc(CFunction)


def test_a_swapped_descriptor_never_reaches_cudnn(api):
    with (
        dnn.FilterDescriptor((1, 1, 1, 1)) as w,
        pytest.raises(
            ctypes.ArgumentError, match=r"^cudnnGetTensorSizeInBytes, argument 1 \(tensorDesc\)"
        ),
    ):
        api.cudnnGetTensorSizeInBytes(w.ptr, ctypes.c_size_t())


@pytest.mark.parametrize("arguments", [(), (None,), (None, None, None)])
def test_the_number_of_arguments_is_checked(api, arguments):
    with pytest.raises(
        TypeError, match=rf"takes 2 arguments \(tensorDesc, size\); {len(arguments)} were given"
    ):
        api.cudnnGetTensorSizeInBytes(*arguments)


def test_arguments_go_by_position(api):
    with pytest.raises(
        TypeError, match=r"^cudnnGetTensorSizeInBytes takes its .* by position: tensorDesc, size$"
    ):
        api.cudnnGetTensorSizeInBytes(tensorDesc=None, size=None)


def test_success_returns_none(api):
    native = dnn._raw.types.cudnnTensorDescriptor_t()
    assert api.cudnnCreateTensorDescriptor(ctypes.byref(native)) is None
    assert api.cudnnDestroyTensorDescriptor(native) is None


def test_plain_values_are_returned(api):
    assert api.cudnnGetVersion() == load_library().version
    assert api.cudnnGetVersion() // 10000 == 9
    assert api.cudnnGetErrorString(0) == b"CUDNN_STATUS_SUCCESS"
    assert api.cudnnGetErrorString(dnn.enums.Status.BAD_PARAM) == b"CUDNN_STATUS_BAD_PARAM"


def test_the_process_has_one_table():
    assert library_api() is library_api()


def test_repr_says_which_library(api):
    assert repr(api) == f"<CudnnApi cuDNN {api.library.version_text} at {api.library.path}>"


# ---------------------------------------------------------------- a library that lacks something


class OlderLibrary:
    """A ctypes.CDLL without one function."""

    def __init__(self, lacks):
        self._real, self._lacks = load_library().cdll, lacks

    def __getitem__(self, name):
        if name == self._lacks:
            raise AttributeError(f"/lib/old.so: undefined symbol: {name}")
        return self._real[name]

    def __getattr__(self, name):
        return self[name]


@pytest.fixture(params=[CudnnApi, EmulatedApi])
def older(request):
    def make(lacks):
        library = Library("/lib/old.so", "a test", 90102, OlderLibrary(lacks))
        return (
            CudnnApi(library)
            if request.param is CudnnApi
            else EmulatedApi(library, EmulatedMemory(1 << 30))
        )

    return make


@pytest.mark.parametrize(
    "name", ["cudnnGetTensorSizeInBytes", "cudnnConvolutionForward", "cudnnCausalConv1dForward"]
)
def test_a_missing_symbol_names_function_path_and_version(older, name):
    api = older(name)
    since = FUNCTIONS[name].since
    assert since
    with pytest.raises(SymbolNotFoundError) as caught:
        getattr(api, name)
    message = f"{name} (added in {since}) is not in the loaded libcudnn: /lib/old.so, version 9.1.2"
    if name == "cudnnConvolutionForward":
        message += (
            "; it is deprecated since cuDNN 9.0.0, use dnn.convolution_forward, or a gradient, "
            "with interface='graph'; dnn.Tuner for find"
        )
    assert str(caught.value) == message
    assert not api.has(name)
    assert not hasattr(api, name)
    assert api.has("cudnnCreate")


def test_each_deprecated_function_has_a_replacement():
    for name, record in FUNCTIONS.items():
        if record.deprecated:
            assert replacement(name)
            assert record.deprecation.startswith("deprecated")
        else:
            assert record.deprecation == ""


# ---------------------------------------------------------------- the emulated table

UNIMPLEMENTED = sorted(
    name for name, record in FUNCTIONS.items() if record.needs_device and name not in EMULATED
)


def test_what_is_emulated_is_what_this_test_believes():
    assert set(IMPLEMENTATIONS) == EMULATED
    assert {"cudnnReorderFilterAndBias", "cudnnFusedOpsExecute"} <= {*UNIMPLEMENTED}


@pytest.mark.parametrize("name", UNIMPLEMENTED)
def test_device_functions_without_emulation_are_refused(emulated, name):
    if not emulated.has(name):
        with pytest.raises(SymbolNotFoundError, match=name):
            getattr(emulated, name)
        return
    with pytest.raises((NotSupportedError, CallArgumentError)) as caught:
        getattr(emulated, name)(*nothing(FUNCTIONS[name]))
    if isinstance(caught.value, CallArgumentError):  # before any device is asked
        assert "a null pointer, which C would follow" in str(caught.value)
        return
    assert caught.value.function == name
    assert caught.value.detail == f"the emulated device does not implement {name}"
    assert emulated.last_error() == ""


@pytest.mark.parametrize("name", sorted(EMULATED - WITHOUT_HANDLE - {"cudnnCreate"}))
def test_emulated_functions_refuse_null_handles(emulated, name):
    refused = (
        r"0x0 is not a live handle of the emulated device|a null pointer, which C would follow"
    )
    with pytest.raises((dnn.errors.BadParamError, CallArgumentError), match=refused):
        getattr(emulated, name)(*nothing(FUNCTIONS[name]))


def test_emulated_functions_refuse_null_results(emulated, own_handle):
    """As cuDNN does: where to put the result is an argument like any other."""
    with pytest.raises(dnn.errors.BadParamError, match="cudnnCreate returned BAD_PARAM"):
        emulated.cudnnCreate(None)
    with pytest.raises(
        CallArgumentError, match=r"cudnnGetStream, argument 2 .streamId.: a null pointer"
    ):
        own_handle.api.cudnnGetStream(own_handle.ptr, None)
    with pytest.raises(CallArgumentError, match=r"MaxCount, argument 2 .count.: a null pointer"):
        own_handle.api.cudnnGetConvolutionForwardAlgorithmMaxCount(own_handle.ptr, None)


class Tripwire:
    """In place of a device function of the real library: it may be looked at, but never called."""

    def __init__(self, name):
        self.name = name

    def __call__(self, *arguments):
        raise AssertionError(f"the real {self.name} was called from the emulated device")


class TrippedLibrary:
    def __init__(self):
        self._real = load_library().cdll

    def __getitem__(self, name):
        return Tripwire(name) if FUNCTIONS[name].needs_device else self._real[name]

    def __getattr__(self, name):
        return self[name]


def test_no_emulated_handle_ever_reaches_the_real_library():
    real = load_library()
    device = EmulatedDevice(9, capacity="64 MiB")
    device.api = EmulatedApi(
        Library(real.path, "a test", real.version, TrippedLibrary()), device.memory
    )
    with dnn.Handle(device) as handle:
        handle.stream = device.create_stream()
        x = handle.array(np.ones((1, 2, 5, 5), np.float32))
        w = handle.array(np.ones((2, 2, 3, 3), np.float32))
        assert (dnn.convolution_forward(handle, x, w).numpy() == 18).all()
        assert dnn.convolution_forward.find(handle, x, w)[0].ok
        assert dnn.convolution_forward.heuristic(handle, x, w)[0].ok
        for name in UNIMPLEMENTED:
            if device.api.has(name):
                with pytest.raises(
                    (NotSupportedError, CallArgumentError),
                    match=r"does not implement|a null pointer",
                ):
                    getattr(device.api, name)(*nothing(FUNCTIONS[name]))


def test_descriptor_functions_of_the_emulated_table_are_the_real_ones(emulated):
    native = dnn._raw.types.cudnnTensorDescriptor_t()
    emulated.cudnnCreateTensorDescriptor(ctypes.byref(native))
    emulated.cudnnSetTensor4dDescriptor(
        native, dnn.enums.TensorFormat.NCHW, dnn.DataType.FLOAT, 1, 2, 3, 4
    )
    size = ctypes.c_size_t()
    library_api().cudnnGetTensorSizeInBytes(native, size)
    assert size.value == 96
    emulated.cudnnDestroyTensorDescriptor(native)


def test_emulated_handles_and_streams(emulated):
    handle, stream = cudnnHandle_t(), cudaStream_t()
    emulated.cudnnCreate(ctypes.byref(handle))
    assert handle.value in emulated.handles
    emulated.cudnnGetStream(handle, ctypes.byref(stream))
    assert not stream.value
    emulated.cudnnSetStream(handle, cudaStream_t(0x1234))
    emulated.cudnnGetStream(handle, ctypes.byref(stream))
    assert stream.value == 0x1234
    emulated.cudnnDestroy(handle)
    assert emulated.handles == {}
    with pytest.raises(dnn.errors.BadParamError, match="is not a live handle"):
        emulated.cudnnDestroy(handle)


def test_a_handle_of_another_emulated_device_is_refused(emulated):
    other = EmulatedApi(load_library(), EmulatedMemory(1 << 30))
    handle = cudnnHandle_t()
    other.cudnnCreate(ctypes.byref(handle))
    with pytest.raises(dnn.errors.BadParamError, match="is not a live handle"):
        emulated.cudnnSetStream(handle, None)
    other.cudnnDestroy(handle)


@pytest.mark.parametrize(
    ("raised", "kind", "words"),
    [
        (MemoryError("ouch"), "INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "ouch"),
        (IllegalAddressError("ouch"), "EXECUTION_FAILED", "ouch"),
        (RefusalError(dnn.enums.Status.NOT_SUPPORTED_SHAPE, "ouch"), "NOT_SUPPORTED_SHAPE", "ouch"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_a_gpu_would_tell_by_a_status_becomes_one(monkeypatch, raised, kind, words):
    with (
        broken_stream_getter(monkeypatch, raised) as handle,
        pytest.raises(dnn.CudnnError) as caught,
    ):
        handle.api.cudnnGetStream(handle.ptr, cudaStream_t())
    assert caught.value.status.name == kind
    assert caught.value.detail == words


@pytest.mark.parametrize(
    "raised",
    [ZeroDivisionError("ouch"), KeyboardInterrupt(), SystemExit(3), TimeoutError("late")],
    ids=repr,
)
def test_anything_else_comes_out_as_itself(monkeypatch, raised):
    with broken_stream_getter(monkeypatch, raised) as handle, pytest.raises(type(raised)) as caught:
        handle.api.cudnnGetStream(handle.ptr, cudaStream_t())
    assert caught.value is raised


@contextmanager
def broken_stream_getter(monkeypatch, raised):

    def broken(c_call):
        raise raised

    monkeypatch.setitem(IMPLEMENTATIONS, "cudnnGetStream", broken)
    with dnn.Handle(EmulatedDevice(4)) as handle:
        yield handle


def test_emulations_know_their_arguments_by_the_names_of_the_header():
    read = {}
    for name, function in IMPLEMENTATIONS.items():
        inspect.signature(function).bind("the call")
        source = inspect.getsource(getattr(function, "func", function))
        read[name] = {*re.findall(r"\bc_call\.(\w+)\b(?! = )", source)} - {"api", "arguments"}
        assert read[name] <= {*FUNCTIONS[name].argnames}, name
    assert sum(map(len, read.values())) > 60
