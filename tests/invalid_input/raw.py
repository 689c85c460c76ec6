"""Invalid arguments of the C functions."""

from __future__ import annotations

import ctypes

import numpy as np

import cudnnlite as dnn

from .case import Case

EMULATED_CASES: dict[str, Case] = {
    "an array as an address": Case(
        lambda b: b.handle.api.cudnnSetTensor(
            b.handle, dnn.TensorDescriptor((2, 3)), b.handle.empty((2, 3)), None
        ),
        r"cudnnSetTensor, argument 3 \(y\): <DeviceArray .*> of type DeviceArray is no "
        r"address; pass .ptr of a device array",
    ),
    "a number as a host scalar": Case(
        lambda b: b.handle.api.cudnnSetTensor(b.handle, dnn.TensorDescriptor((2, 3)), 0, 1.0),
        r"argument 4 \(valuePtr\): 1.0 is no address; a host scalar goes by "
        r"ctypes.byref\(ctypes.c_float\(1.0\)\)",
    ),
    "enums in the order that filters have": Case(
        lambda b: b.handle.api.cudnnSetTensor4dDescriptor(
            dnn.TensorDescriptor((2, 3)),
            dnn.DataType.FLOAT,
            dnn.enums.TensorFormat.NHWC,
            2,
            3,
            4,
            5,
        ),
        r"argument 2 \(format\): DataType.FLOAT is no TensorFormat",
    ),
    "enums swapped": Case(
        lambda b: b.handle.api.cudnnSoftmaxForward(
            b.handle,
            dnn.enums.SoftmaxMode.INSTANCE,
            dnn.enums.SoftmaxAlgorithm.ACCURATE,
            None,
            None,
            0,
            None,
            None,
            0,
        ),
        r"argument 2 \(algo\): SoftmaxMode.INSTANCE is no SoftmaxAlgorithm",
    ),
    "an enum of another kind": Case(
        lambda b: b.handle.api.cudnnSetConvolutionMathType(
            dnn.ConvolutionDescriptor(), dnn.DataType.DOUBLE
        ),
        r"argument 2 \(mathType\): DataType.DOUBLE is no MathType",
    ),
    "an enum of another kind, in C a const": Case(
        lambda b: b.handle.api.cudnnSetPoolingNdDescriptor(
            dnn.descriptors.PoolingDescriptor(dnn.PoolingSpec(2)),
            dnn.enums.SoftmaxMode.CHANNEL,
            0,
            0,
            None,
            None,
            None,
        ),
        r"argument 2 \(mode\): SoftmaxMode.CHANNEL is no PoolingMode",
    ),
    "an enum of another kind in a prepared call": Case(
        lambda b: b.handle.api.prepare(
            "cudnnSetConvolutionMathType", dnn.ConvolutionDescriptor(), 0
        ).replace(mathType=dnn.DataType.DOUBLE),
        r"cudnnSetConvolutionMathType, argument 2 \(mathType\): DataType.DOUBLE is no MathType",
    ),
    "text in a prepared call": Case(
        lambda b: b.handle.api.prepare(
            "cudnnSetConvolutionMathType", dnn.ConvolutionDescriptor(), 0
        ).replace(mathType="fma"),
        r"argument 2 \(mathType\): 'fma' is not a MathType or an integer; pass one of "
        r"dnn.enums.MathType: DEFAULT, ",
    ),
    "a number as a scalar's address in a prepared call": Case(
        lambda b: b.handle.api.prepare(
            "cudnnScaleTensor",
            b.handle,
            dnn.TensorDescriptor((2, 3)),
            0,
            ctypes.byref(ctypes.c_float(1)),
        ).replace(alpha=1),
        r"argument 4 \(alpha\): 1 is no address; a host scalar goes by ctypes.byref",
    ),
    "no descriptor in a prepared call": Case(
        lambda b: b.handle.api.prepare(
            "cudnnGetTensorSizeInBytes", dnn.TensorDescriptor((2, 3)), ctypes.c_size_t()
        ).replace(tensorDesc=None),
        r"argument 1 \(tensorDesc\): a null pointer, which C would follow",
    ),
    "a wider number in a prepared call": Case(
        lambda b: b.handle.api.prepare(
            "cudnnSetConvolutionGroupCount", dnn.ConvolutionDescriptor(), 1
        ).replace(groupCount=ctypes.c_size_t(2**32 + 3)),
        r"argument 2 \(groupCount\)",
    ),
    "a wider number of NumPy's": Case(
        lambda b: b.handle.api.cudnnSetConvolutionGroupCount(
            dnn.ConvolutionDescriptor(), np.int64(2**32 + 3)
        ),
        r"argument 2 \(groupCount\): .*4294967299.* does not fit into a c_int",
    ),
    "a float as an enum": Case(
        lambda b: b.handle.api.cudnnSetActivationDescriptor(
            dnn.descriptors.ActivationDescriptor(dnn.ActivationSpec("relu")), 1.0, 0, 0
        ),
        r"argument 2 \(mode\): 1.0 is not an ActivationMode or an integer; pass one of "
        r"dnn.enums.ActivationMode: SIGMOID, RELU, ",
    ),
    "nothing as an enum that only the raw layer has": Case(
        lambda b: b.handle.api.cudnnBackendCreateDescriptor(None, None),
        r"None is not a BackendDescriptorType or an integer; pass one of "
        r"dnn.raw.enums.BackendDescriptorType: POINT.* \.\.\.$",
    ),
    "an enum's name in a raw call": Case(
        lambda b: b.handle.api.cudnnSetTensor4dDescriptor(
            dnn.TensorDescriptor((2, 3)), "NCHW", 0, 2, 3, 4, 5
        ),
        r"argument 2 \(format\): 'NCHW' is not a TensorFormat or an integer; pass one of "
        r"dnn.enums.TensorFormat: NCHW, NHWC, ",
    ),
    "a dtype's name in a raw call": Case(
        lambda b: b.handle.api.cudnnSetTensor4dDescriptor(
            dnn.TensorDescriptor((2, 3)), 0, "float32", 2, 3, 4, 5
        ),
        r"argument 3 \(dataType\): 'float32' is not a DataType or an integer; pass one of "
        r"dnn.enums.DataType: FLOAT, DOUBLE, ",
    ),
    "a float as an integer of C": Case(
        lambda b: b.handle.api.cudnnSetTensor4dDescriptor(
            dnn.TensorDescriptor((2, 3)), 0, 0, 2, 3, 4, 5.0
        ),
        r"argument 7 \(w\): 5.0 is not an integer",
    ),
    "a text as a number of C": Case(
        lambda b: b.handle.api.cudnnSetActivationDescriptor(
            dnn.descriptors.ActivationDescriptor(dnn.ActivationSpec("relu")), 0, 0, "1"
        ),
        r"argument 4 \(coef\): '1' is not a number",
    ),
    "an array as a descriptor": Case(
        lambda b: b.handle.api.cudnnSetTensor(b.handle, b.handle.empty((2, 3)), 0, None),
        r"argument 2 \(yDesc\): <DeviceArray .*> of type DeviceArray is no "
        r"cudnnTensorDescriptor_t; "
        r".* dnn.descriptors.TensorDescriptor\(x.spec\)",
    ),
    "an array as a result": Case(
        lambda b: b.handle.api.cudnnGetTensorSizeInBytes(
            dnn.TensorDescriptor((2, 3)), np.zeros(1, np.uint64)
        ),
        r"array\(\[0\].*\) of type ndarray is no pointer to a c_ulong; pass one of ctypes, by "
        r"ctypes.byref",
    ),
    "an array of several values as a result": Case(
        lambda b: b.handle.api.cudnnCreateTensorDescriptor(np.ones(3)),
        r"cudnnCreateTensorDescriptor, argument 1 \(tensorDesc\): array\(\[1., 1., 1.\]\) of "
        r"type ndarray "
        r"is no pointer to a cudnnTensorDescriptor_t; pass one of ctypes",
    ),
    "an array of several values as an address": Case(
        lambda b: b.handle.api.cudnnSetTensor(
            b.handle, dnn.TensorDescriptor((2, 3)), np.ones(3), None
        ),
        r"argument 3 \(y\): array\(\[1., 1., 1.\]\) of type ndarray is no address; pass .ptr "
        r"of a device array",
    ),
    "an array of several values as a scalar's address": Case(
        lambda b: b.handle.api.cudnnScaleTensor(
            b.handle, dnn.TensorDescriptor((2, 3)), b.handle.empty((2, 3)).ptr, np.ones(3)
        ),
        r"argument 4 \(alpha\): array\(\[1., 1., 1.\]\) of type ndarray is no address; .* by "
        r"ctypes.byref",
    ),
    "an array of several values as a descriptor": Case(
        lambda b: b.handle.api.cudnnSetTensor(b.handle, np.ones(3), 0, None),
        r"argument 2 \(yDesc\): a cudnnTensorDescriptor_t is needed, "
        r"not array\(\[1., 1., 1.\]\) of type ndarray;",
    ),
    "an array of several values as an integer": Case(
        lambda b: b.handle.api.cudnnSetConvolutionGroupCount(
            dnn.ConvolutionDescriptor(), np.ones(3, int)
        ),
        r"argument 2 \(groupCount\): array\(\[1, 1, 1\]\) is not an integer",
    ),
    "an array of several values as a size beside no pointer": Case(
        lambda b: b.handle.api.cudnnGetTensorNdDescriptor(
            dnn.TensorDescriptor((2, 3)), np.ones(3), 0, 0, None, None
        ),
        r"argument 2 \(nbDimsRequested\): array\(\[1., 1., 1.\]\) is not an integer",
    ),
}
