"""Invalid arguments of devices, handles, workspaces and arrays."""

from __future__ import annotations

import itertools
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np

import cudnnlite as dnn
from cudnnlite.emulated.device import EmulatedDevice

from . import case
from .case import ARRAY, Case

SHAPE = (3, 4, 5, 6)
X, W = dnn.TensorSpec((1, 3, 8, 8)), dnn.FilterSpec((4, 3, 3, 3))


class BadDLPack:
    def __dlpack_device__(self) -> Any:
        return "x"

    def __dlpack__(self, **options: Any) -> Any:
        return object()


class Bench(case.Bench):
    """An array, its values on the host, and a read-only copy of them."""

    def __init__(self, handle: dnn.Handle) -> None:
        super().__init__(handle)
        self.values = np.arange(360, dtype=np.float32).reshape(SHAPE)
        self.array = handle.array(self.values)
        self.frozen = self.values.copy()
        self.frozen.flags.writeable = False
        self.watch(array=self.array)

    def make(self, values: Any, **options: Any) -> Any:
        """Make an array."""
        return self.handle.array(values, **options)

    def from_elsewhere(self) -> dnn.DeviceArray:
        """Return an array of another device."""
        with dnn.Handle(EmulatedDevice(6, capacity="1 MiB")) as other:
            return other.empty((1, 2, 3, 4))

    def convolve(self, x: Any, w: Any = None, **options: Any) -> Any:
        """Call `convolution_forward`."""
        w = self.empty(2, 2, 3, 3) if w is None else w
        return dnn.convolution_forward(self.handle, x, w, **options)

    def plan(self, x: Any, w: Any) -> Any:
        """Make a plan of a convolution."""
        return dnn.convolution_forward.plan(self.handle, x, w)


IS_HOST = r"^array is a host array .*handle\.array\(array\)"
NO_ARRAY = r"^array of type .* is no array; allowed: a DeviceArray, or an object with"
OBJECTS = "objects cannot be copied to a device"
NO_DTYPE = r"dtype=.*allowed: float32"
NO_DEVICE = r"device=.* is not a device; allowed: 'cuda', 'cuda:1', 1, 'emulated', 'auto'"
DEVICE_CASES: dict[str, Case] = {
    "digits as a limit": Case(
        lambda b: dnn.Handle(b.handle.device, workspace_limit="9" * 5000), r"^workspace_limit="
    ),
    "array as a limit": Case(
        lambda b: dnn.Handle(b.handle.device, workspace_limit=np.zeros((2, 2))),
        r"^workspace_limit=array",
    ),
    "digits as a device": Case(
        lambda _: dnn.Handle("emulated:" + "9" * 5000), r"^device='emulated:9"
    ),
    "half a device": Case(
        lambda _: dnn.Handle(SimpleNamespace(copy_in=3)),
        r"^device=namespace\(copy_in=3\) is not a device",
    ),
    "no device of a workspace": Case(
        lambda _: dnn.types.Workspace(itertools.count(), "10%"),
        r"^device=count\(0\) is not a device",
    ),
    **{
        repr(device): Case(lambda _, device=device: dnn.Handle(device), NO_DEVICE)
        for device in ("", "gpu", "cuda:x", "cuda:-1", "emulated:1.5", -1, True, 1.5, b"cuda")
    },
}
MAKING_CASES: dict[str, Case] = {
    "numbers of Python's that are no number of NumPy's": Case(
        lambda b: b.make([Decimal(1)]), "array of Decimal objects", ARRAY
    ),
    "an array through a DLPack that lies": Case(lambda b: b.make(BadDLPack()), r"BadDLPack", ARRAY),
    "ellipsis": Case(lambda b: b.make([Ellipsis]), OBJECTS, ARRAY),
    "none among numbers": Case(lambda b: b.make([[1, 2], [3, None]]), OBJECTS, ARRAY),
    "text": Case(lambda b: b.make(["text"]), NO_DTYPE),
    "complex numbers": Case(lambda b: b.make([1j]), NO_DTYPE),
    "bools": Case(lambda b: b.make([True]), NO_DTYPE),
    "a vector type with channels last": Case(
        lambda b: b.make(np.zeros((1, 4, 2, 2)), layout="NHWC", dtype="int8x4"), "layout="
    ),
    "channels of a vector type": Case(
        lambda b: b.make(np.zeros((1, 4, 2, 2)), dtype="int8x32"), "multiples of 32"
    ),
    "a layout of another rank": Case(
        lambda b: b.make(np.zeros((1, 4, 2, 2)), layout="NWC"), "layout='NWC'"
    ),
    "an array of another device": Case(
        lambda b: b.make(b.from_elsewhere()), "is on <emulated:6>, the handle on", ARRAY
    ),
    "full of what is too large": Case(lambda b: b.handle.full((2,), 300, "int8"), "would lose"),
}
VIEWING_CASES: dict[str, Case] = {
    "a view through a DLPack that lies": Case(
        lambda b: b.handle.view(BadDLPack()), r"BadDLPack", ARRAY
    ),
    "ndarray": Case(lambda b: b.handle.view(b.values), IS_HOST, ARRAY),
    "list": Case(lambda b: b.handle.view([[1.0]]), IS_HOST, ARRAY),
    "number": Case(lambda b: b.handle.view(1), IS_HOST, ARRAY),
    "masked array": Case(lambda b: b.handle.view(np.ma.masked_array([1.0])), IS_HOST, ARRAY),
    "none": Case(lambda b: b.handle.view(None), NO_ARRAY, ARRAY),
    "text": Case(lambda b: b.handle.view("array"), NO_ARRAY, ARRAY),
    "spec": Case(lambda b: b.handle.view(X), NO_ARRAY, ARRAY),
    "an array of another device": Case(
        lambda b: b.handle.view(b.from_elsewhere()), "is on <emulated:6>, the handle on", ARRAY
    ),
    "operand": Case(
        lambda b: b.convolve(b.values), r"^x is a host array .*handle\.array\(x\)", ARRAY
    ),
    "filter of another device": Case(
        lambda b: b.convolve(b.empty(1, 2, 5, 5), b.from_elsewhere()),
        r"^w is on <emulated:6>, the handle on",
        ARRAY,
    ),
    "output": Case(
        lambda b: b.convolve(b.empty(1, 2, 5, 5), out=b.values), r"^out is a host array", ARRAY
    ),
    "tuple of a plan": Case(
        lambda b: b.plan((1, 3), W),
        r"^x is a host array \(tuple\); a device array or a TensorSpec is needed: ",
        ARRAY,
    ),
    "filter as an image of a plan": Case(
        lambda b: b.plan(W, W),
        r"^x of type FilterSpec is no array; allowed: a TensorSpec, a DeviceArray, or an ",
        ARRAY,
    ),
    "tuple as a filter of a plan": Case(
        lambda b: b.plan(X, (4, 3)),
        r"^w is .*; a device array or a TensorSpec or a FilterSpec is needed: ",
        ARRAY,
    ),
    "pooling as a filter of a plan": Case(
        lambda b: b.plan(X, dnn.PoolingSpec(2)),
        r"^w of .*; allowed: a TensorSpec, a FilterSpec, a DeviceArray, ",
        ARRAY,
    ),
    "tuple of a problem": Case(
        lambda _: dnn.convolution_forward.problem((1, 3), W), r" is neither a TensorSpec nor a"
    ),
}
PART_CASES: dict[str, Case] = {
    "backwards": Case(lambda b: b.array[::-1], "steps of 1 or more"),
    "too many": Case(lambda b: b.array[(0,) * 5], "too many entries"),
    "two ellipses": Case(lambda b: b.array[..., ...], "too many entries"),
    "list": Case(lambda b: b.array[[0, 1]], "is not an integer; allowed: integers, slices"),
    "none": Case(lambda b: b.array[None], "not an integer; allowed"),
    "bool": Case(lambda b: b.array[True], "is not an integer; allowed: .*Ellipsis"),
    "empty": Case(lambda b: b.array[:, 2:2], "size 0 on axis 1"),
    "text": Case(lambda b: b.array[slice("a")], "on axis 0"),
    "axes too few": Case(lambda b: b.array.transpose(0, 1, 2), "needed: each axis of"),
    "axis twice": Case(lambda b: b.array.transpose(0, 1, 2, 2), "needed: each axis of"),
    "no axis": Case(lambda b: b.array.transpose(0, 1, 2, -5), "needed: each axis of"),
    "transposed vectors": Case(
        lambda b: b.empty(1, 4, 2, 2, dtype="int8x4").transpose(0, 2, 3, 1), "lie 4 together"
    ),
    "part of a filter": Case(
        lambda b: b.convolve(b.empty(1, 4, 5, 5), b.empty(4, 4, 3, 3)[:, :, :2, :2]),
        "filters are packed",
    ),
}
COPY_CASES: dict[str, Case] = {
    "shape of the source": Case(lambda b: b.array.copy_from(b.values[1:]), "source has shape"),
    "shape of an array": Case(lambda b: b.array.copy_from(b.array[1:]), "transform_tensor"),
    "dtype of an array": Case(
        lambda b: b.array.copy_from(b.empty(*SHAPE, dtype="float16")), "transform_tensor"
    ),
    "layout of an array": Case(
        lambda b: b.array.copy_from(b.empty(*SHAPE, layout="NHWC")), "transform_tensor"
    ),
    "overlap": Case(lambda b: b.array[1:].copy_from(b.array[:2]), "overlaps"),
    "values that are lost": Case(
        lambda b: b.handle.zeros((2,), "int8").copy_from([1.5, 2]), "would lose values"
    ),
    "texts": Case(lambda b: b.array.copy_from(np.full(SHAPE, "a")), "no numbers", ARRAY),
    "dtype of the target": Case(
        lambda b: b.array.copy_to(b.values.astype(np.float64)),
        r"needed: an ndarray, float32 \(3, 4, 5, 6\)",
    ),
    "read-only target": Case(lambda b: b.array.copy_to(b.frozen), "target is read-only"),
    "two numbers": Case(lambda b: b.array.fill([1, 2]), "not one number"),
    "strides that overlap": Case(
        lambda b: b.handle.empty(dnn.TensorSpec((2, 3), strides=(1, 1))).fill(0),
        "overlaps itself",
    ),
}
CASES = case.grouped(
    device=DEVICE_CASES,
    making=MAKING_CASES,
    viewing=VIEWING_CASES,
    parts=PART_CASES,
    copies=COPY_CASES,
)
