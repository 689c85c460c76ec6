"""A C function is not called with an argument that would end the process."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite._raw.api import library_api
from cudnnlite.devices.cuda import stream_address


@pytest.mark.parametrize(
    "kind",
    [dnn.enums.ConvolutionFwdAlgo, dnn.MathType, dnn.enums.ConvolutionMode, dnn.enums.RNNMode],
)
@pytest.mark.parametrize("value", [2**32, 2**32 + 1, 2**31, -(2**31) - 1])
def test_enums_hold_what_a_c_int_does(kind, value):
    with pytest.raises(dnn.ArgumentError, match=f"is not a {kind.__name__}"):
        kind(value)
    assert kind(2**31 - 1).name == "UNKNOWN_2147483647"


def test_a_heuristic_is_not_asked_for_fewer_than_no_algorithms(own_handle):
    x, conv = dnn.TensorSpec((1, 2, 5, 4)), dnn.ConvolutionSpec()
    results, count = (dnn.raw.types.cudnnConvolutionFwdAlgoPerf_t * 4)(), ctypes.c_int(77)
    ctypes.memset(results, 0x55, ctypes.sizeof(results))
    with (
        dnn.TensorDescriptor(x) as x_desc,
        dnn.FilterDescriptor((2, 2, 1, 1)) as w_desc,
        dnn.ConvolutionDescriptor(conv) as conv_desc,
        dnn.TensorDescriptor((1, 2, 5, 4)) as y_desc,
    ):
        for requested in (-5, 0):
            with pytest.raises((dnn.errors.BadParamError, dnn.ArgumentError)):
                own_handle.api.cudnnGetConvolutionForwardAlgorithm_v7(
                    own_handle.ptr,
                    x_desc.ptr,
                    w_desc.ptr,
                    conv_desc.ptr,
                    y_desc.ptr,
                    requested,
                    count,
                    results,
                )
    assert bytes(results) == b"\x55" * ctypes.sizeof(results)


@pytest.mark.parametrize("address", [3, 4095, -1, 2**64, True, 1.5])
def test_what_is_no_address_is_no_stream_of_a_gpu(address):
    with pytest.raises(dnn.ArgumentError, match=f"stream={address} is not a CUDA stream"):
        stream_address(address)


def refused(name, *arguments):
    with pytest.raises(ctypes.ArgumentError, match=f"{name}, argument") as caught:
        getattr(library_api(), name)(*arguments)
    assert isinstance(caught.value, dnn.ArgumentError)


def test_what_crashes_and_is_known_is_refused_before_the_call():
    with (
        dnn.TensorDescriptor((1, 2, 3, 4)) as tensor,
        dnn.ConvolutionDescriptor() as conv,
        dnn.descriptors.RNNDataDescriptor((2, 1, 3)) as data,
    ):
        one = ctypes.c_int()
        refused("cudnnGetTensorSizeInBytes", tensor.ptr, None)
        refused("cudnnGetConvolutionGroupCount", conv.ptr, None)
        refused("cudnnDeriveBNTensorDescriptor", tensor.ptr, None, 1)
        refused("cudnnSetLRNDescriptor", None, 5, 1e-4, 0.75, 2.0)
        refused("cudnnSetTensorNdDescriptor", tensor.ptr, 0, 4, None, None)
        refused(
            "cudnnSetTensorNdDescriptorEx", tensor.ptr, 0, 0, 100, (ctypes.c_int * 4)(1, 2, 3, 4)
        )
        refused("cudnnGetLastErrorString", 5, 100)
        refused("cudnnGetLastErrorString", ctypes.create_string_buffer(8), -1)
        refused("cudnnSetConvolutionGroupCount", conv.ptr, 2**32 + 1)
        refused("cudnnSetConvolutionMathType", conv.ptr, 2**32)
        refused("cudnnSetRNNDataDescriptor", data.ptr, 0, 0, 2, 1, 3, (ctypes.c_int * 1)(2), 1)
        library_api().cudnnGetConvolutionGroupCount(conv.ptr, one)
        assert one.value == 1


def test_a_small_integer_is_no_address_of_a_scalar(own_handle):
    with dnn.TensorDescriptor((1, 2, 3, 4)) as tensor:
        x = own_handle.array(np.ones((1, 2, 3, 4), np.float32))
        with pytest.raises(dnn.ArgumentError, match=r"alpha.*is no address"):
            own_handle.api.cudnnAddTensor(
                own_handle.ptr, 1, tensor.ptr, x.ptr, 1, tensor.ptr, x.ptr
            )
