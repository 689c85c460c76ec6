"""From a status to an exception: class, message, and when the last-error string is read."""

import ctypes
import pickle
import threading

import pytest

import cudnnlite as dnn
from cudnnlite import errors
from cudnnlite._raw.api import CudnnApi
from cudnnlite._raw.calls import CFunction
from cudnnlite._raw.check import make_check, read_last_error, status_error
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite._raw.library import load_library
from cudnnlite.enums import Status

MIB = 1 << 20
PLENTY = (100 * 1024 * MIB, 140 * 1024 * MIB)

# one status of each category, and what a caller who does not know cudnnlite would catch
CATEGORIES = [
    (Status.NOT_INITIALIZED, errors.NotInitializedError, RuntimeError),
    (Status.SUBLIBRARY_VERSION_MISMATCH, errors.NotInitializedError, RuntimeError),
    (Status.SUBLIBRARY_LOADING_FAILED, errors.NotInitializedError, RuntimeError),
    (Status.BAD_PARAM, errors.BadParamError, ValueError),
    (Status.BAD_PARAM_SHAPE_MISMATCH, errors.BadParamError, ValueError),
    (Status.INVALID_VALUE, errors.BadParamError, ValueError),
    (Status.NOT_SUPPORTED, errors.NotSupportedError, NotImplementedError),
    (Status.NOT_SUPPORTED_ARCH_MISMATCH, errors.NotSupportedError, NotImplementedError),
    (Status.INTERNAL_ERROR, errors.InternalError, RuntimeError),
    (Status.INTERNAL_ERROR_COMPILATION_FAILED, errors.InternalError, RuntimeError),
    (Status.INTERNAL_ERROR_HOST_ALLOCATION_FAILED, errors.AllocationError, MemoryError),
    (Status.INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, errors.AllocationError, MemoryError),
    (Status.EXECUTION_FAILED, errors.ExecutionError, RuntimeError),
    (Status.EXECUTION_FAILED_CUDA_DRIVER, errors.ExecutionError, RuntimeError),
]


@pytest.mark.parametrize(
    ("status", "kind", "builtin"), CATEGORIES, ids=[str(row[0]) for row in CATEGORIES]
)
def test_class_of_a_status(status, kind, builtin):
    error = status_error("cudnnSomething", int(status), "", None)
    assert type(error) is kind
    assert isinstance(error, builtin)
    assert isinstance(error, (errors.CudnnError, RuntimeError))
    assert error.status is status
    assert error.function == "cudnnSomething"


def test_every_status_but_success_has_a_class_by_its_thousands():
    kinds = {
        1: "NotInitializedError",
        2: "BadParamError",
        3: "NotSupportedError",
        4: "InternalError",
        5: "ExecutionError",
    }
    for status in Status:
        if status == Status.SUCCESS or "ALLOCATION" in status.name:
            continue
        assert type(status_error("f", status, "", None)).__name__ == kinds[status // 1000], status


@pytest.mark.parametrize(
    ("status", "kind"), [(2999, errors.BadParamError), (3777, errors.NotSupportedError)]
)
def test_a_status_from_a_newer_cudnn_keeps_its_category(status, kind):
    error = status_error("f", status, "", None)
    assert type(error) is kind
    assert str(error) == f"f returned UNKNOWN_{status} ({status})"


def test_a_status_of_an_unknown_category():
    error = status_error("f", 9001, "what", None)
    assert type(error) is errors.CudnnError
    assert str(error) == "f returned UNKNOWN_9001 (9001): what"


def test_the_message_has_function_status_number_and_detail():
    error = status_error("cudnnAddTensor", 2000, "dimA is bad", None)
    assert str(error) == "cudnnAddTensor returned BAD_PARAM (2000): dimA is bad"
    assert error.detail == "dimA is bad"


def test_the_message_has_the_specs():
    x = dnn.TensorSpec((1, 2, 3, 4))
    error = status_error("f", 2000, "", None)
    assert error.involving(x=x, w="a filter") is error
    assert str(error).splitlines()[1:] == [
        "  x = TensorSpec((1, 2, 3, 4), 'float32', 'NCHW')",
        "  w = a filter",
    ]
    assert error.specs == {"x": x, "w": "a filter"}


def test_errors_survive_a_pickle():
    """As they must, to come back from another process."""
    error = status_error("f", 4004, "detail", lambda: PLENTY).involving(x=dnn.TensorSpec((1,)))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.status is error.status


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize(
    "status",
    [Status.INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, Status.INTERNAL_ERROR_HOST_ALLOCATION_FAILED],
)
def test_a_failed_allocation_says_what_was_free(status):
    error = status_error("f", status, "", lambda: (3 * MIB // 2, 2048 * MIB))
    assert isinstance(error, errors.AllocationError)
    assert isinstance(error, errors.DeviceMemoryError)
    assert "device memory free: 1.5 MiB of 2,048.0 MiB" in str(error)


@pytest.mark.parametrize(
    "status",
    [
        Status.NOT_INITIALIZED,
        Status.EXECUTION_FAILED,
        Status.INTERNAL_ERROR,
        Status.EXECUTION_FAILED_CUDART,
    ],
)
def test_a_disguised_allocation_failure_is_recognised_by_how_little_is_free(status):
    little = status_error("cudnnCreate", status, "", lambda: (26 * MIB, 1000 * MIB))
    assert type(little) is errors.AllocationError
    assert little.status is status  # what cuDNN said is still there
    assert "device memory free: 26.0 MiB of 1,000.0 MiB" in str(little)
    much = status_error("cudnnCreate", status, "", lambda: PLENTY)
    assert not isinstance(much, MemoryError)
    assert "device memory free: 102,400.0 MiB" in str(much)


@pytest.mark.parametrize(
    "status", [Status.SUBLIBRARY_VERSION_MISMATCH, Status.SUBLIBRARY_LOADING_FAILED]
)
def test_a_library_that_cannot_be_opened_is_no_want_of_memory(status):
    error = status_error("cudnnBackendFinalize", status, "", lambda: (26 * MIB, 1000 * MIB))
    assert isinstance(error, errors.NotInitializedError)
    assert not isinstance(error, MemoryError)
    assert "memory" not in str(error)


def test_a_small_device_that_is_all_free_has_not_run_out_of_memory():
    """How little is left depends on how much there is: emulated devices are made with a few MiB."""
    error = status_error("f", Status.INTERNAL_ERROR, "", lambda: (32 * MIB, 32 * MIB))
    assert type(error) is errors.InternalError


@pytest.mark.parametrize("status", [Status.BAD_PARAM, Status.NOT_SUPPORTED])
def test_memory_is_not_asked_where_it_cannot_be_the_reason(status):
    queries = []
    status_error("f", status, "", lambda: queries.append(1) or (0, 0))
    assert queries == []


def test_memory_that_cannot_be_asked_is_said_so():
    def memory():
        raise OSError("the device is lost")

    error = status_error("f", Status.EXECUTION_FAILED, "why", memory)
    assert type(error) is errors.ExecutionError
    assert str(error).splitlines() == [
        "f returned EXECUTION_FAILED (5000): why",
        "the free device memory could not be read: the device is lost",
    ]


# ---------------------------------------------------------------- the last-error string


def test_the_last_error_is_read_once_and_only_after_a_failure():
    reads = []
    check = make_check("cudnnSetStream", lambda: reads.append(1) or "text", None)
    statuses = [0, 2000]
    function = CFunction(lambda *_: statuses.pop(0), FUNCTIONS["cudnnSetStream"], check)
    assert function(None, None) is None
    assert reads == []
    with pytest.raises(errors.BadParamError, match="text"):
        function(None, None)
    assert reads == [1]


def test_the_last_error_is_decoded_whatever_it_holds():
    def pointer(buffer, size):
        ctypes.memmove(buffer, b" caf\xc3\xa9 \xff \0", 9)

    assert read_last_error(pointer) == "caf\u00e9 \ufffd"


@pytest.fixture
def api():
    return CudnnApi(load_library())


@pytest.fixture
def misfits():
    """Descriptors for which cuDNN's refusal comes with words of its own."""
    with (
        dnn.TensorDescriptor((1, 4, 5, 5)) as x,
        dnn.FilterDescriptor((4, 3, 3, 3)) as w,
        dnn.ConvolutionDescriptor() as conv,
    ):
        yield conv.ptr, x.ptr, w.ptr, 4, (ctypes.c_int * 4)()


def test_cudnns_own_words_are_in_the_message_and_then_gone(api, misfits):
    with pytest.raises(errors.BadParamError) as caught:
        api.cudnnGetConvolutionNdForwardOutputDim(*misfits)
    assert "dimA[1]" in caught.value.detail
    assert caught.value.detail in str(caught.value)
    assert api.last_error() == ""  # it was read with the exception


def test_a_failure_without_words_does_not_show_those_of_an_earlier_one(api, misfits):
    """Reading clears the string, so each exception has its own words or none."""
    with pytest.raises(errors.BadParamError):
        api.cudnnGetConvolutionNdForwardOutputDim(*misfits)
    with pytest.raises(errors.BadParamError) as caught:
        api.cudnnSetTensorNdDescriptor(
            misfits[1], 99, 4, (ctypes.c_int * 4)(), (ctypes.c_int * 4)()
        )
    assert "dimA[1] != convDesc" not in str(caught.value)


def test_the_last_error_is_per_thread(api, misfits):
    unchecked = api._pointer(api._record("cudnnGetConvolutionNdForwardOutputDim"))
    assert unchecked(*misfits) != 0  # the string is now set on this thread, and was not read
    errors = []
    thread = threading.Thread(target=lambda: errors.append(api.last_error()))
    thread.start()
    thread.join()
    assert errors == [""]
    assert "dimA[1]" in api.last_error()
    assert api.last_error() == ""


def test_a_success_does_not_clear_the_last_error_so_it_is_read_only_after_a_failure(api, misfits):
    """The rule of cuDNN's that the design cites; if this fails, cuDNN has changed."""
    unchecked = api._pointer(api._record("cudnnGetConvolutionNdForwardOutputDim"))
    unchecked(*misfits)
    with dnn.TensorDescriptor((1, 2, 3, 4)) as d:
        d.read_back()
    assert "dimA[1]" in api.last_error()


# ---------------------------------------------------------------- the tree


def test_every_exception_is_a_cudnnlite_error():
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ]
    assert len(kinds) > 15
    assert all(
        issubclass(kind, errors.CudnnliteError) for kind in kinds if not issubclass(kind, Warning)
    )


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.ArgumentError, ValueError),
        (errors.ArrayTypeError, TypeError),
        (errors.ClosedError, ValueError),
        (errors.ThreadError, RuntimeError),
        (errors.NoDeviceError, RuntimeError),
        (errors.NoAlgorithmError, LookupError),
        (errors.DeviceMemoryError, MemoryError),
        (errors.WorkspaceLimitError, MemoryError),
        (errors.LibraryNotFoundError, ImportError),
        (errors.SymbolNotFoundError, AttributeError),
        (errors.MixedLibrariesError, errors.LibraryError),
        (errors.WorkspaceLimitWarning, UserWarning),
        (errors.AllocationError, errors.DeviceMemoryError),
        (errors.CudnnError, RuntimeError),
    ],
)
def test_exceptions_fit_built_in_ones(kind, builtin):
    assert issubclass(kind, builtin)


@pytest.mark.parametrize("size", [0, 1])
def test_errors_of_the_emulated_device_have_words_too(own_handle, size):
    with pytest.raises(errors.BadParamError, match="is not a live handle of the emulated device"):
        own_handle.api.cudnnSetStream(type(own_handle.ptr)(size), None)
    assert own_handle.api.last_error() == ""
