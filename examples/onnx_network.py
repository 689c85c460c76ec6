"""An ONNX model run through cudnnlite: normalisations folded, convolutions fused, memory used again.

    with dnn.Handle() as handle:
        network = Network(handle, "model.onnx", batch=8, dtype="float16", layout="NHWC")  # closed with the handle
        results = network(image=images)  # NumPy in, NumPy out, by the model's own names

To be imported, as `serve_resnet50.py` does.  What it knows of each operation is in `onnx_operations`; a node of another kind is
named before anything runs.
"""

from contextlib import ExitStack
from functools import partial
from math import prod
from types import SimpleNamespace

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator
from onnx_operations import OPERATIONS

import cudnnlite as dnn

CHANNELS_LAST = {4: "NHWC", 5: "NDHWC"}  # by the number of axes


class UnsupportedNodeError(NotImplementedError):
    """A node that this program, or cuDNN, has not."""


class Node:
    """A node of a model, with its attributes as its own: as given, else as ONNX says, else None."""

    def __init__(self, proto, opset):
        self.proto, self.kind, self.inputs, self.outputs = proto, proto.op_type, [*proto.input], [*proto.output]
        self.label = proto.name or self.outputs[0]
        usual = [one.default_value for one in defs.get_schema(self.kind, opset).attributes.values()]
        given = [*(one for one in usual if one.name), *proto.attribute]
        self.attributes = {one.name: helper.get_attribute_value(one) for one in given}

    def __getattr__(self, name):
        return self.attributes.get(name)

    def require(self, condition, why):
        """Refuse the node unless a condition holds."""
        if not condition:
            raise UnsupportedNodeError(f"{self.kind} {self.label!r}: {why}")


class Network(ExitStack):
    """A model on a handle, for one shape of its inputs.

    `run()` enqueues all of it, and can be captured into a CUDA graph.  `inputs` and `outputs` are its device arrays, `steps`
    its calls, each with what it has to compute and to move, `places` the memory of its results: from which node to which.
    `close()`, or that of the handle, gives its plans and its memory back.

    Parameters
    ----------
    handle : Handle
    model : path or onnx.ModelProto
        Of one data type.
    batch : int
        What symbolic sizes of its inputs are.
    dtype, layout, math_type
        Of all arrays, of images, of all products.
    channels : int
        With channels last, images of fewer are filled up with zeros to so many in front of a convolution: 3 to 4 pays.
    choose : function, optional
        ``choose(make, arrays, out)`` returns the plan of a convolution: what ``make(algorithm=...)`` returns for one.
    """

    def __init__(
        self, handle, model, *, batch=1, dtype="float32", layout="NCHW", math_type=dnn.MathType.DEFAULT, channels=1,
        choose=None,
    ):  # fmt: skip
        super().__init__()
        self.handle, self.dtype, self.last = handle, np.dtype(dtype), layout == "NHWC"
        self.math_type, self.channels, self.choose = math_type, channels, choose
        self.steps, self.places, self.values, self.wholes, self.fused, self.now = [], [], {}, {}, set(), 0
        graph = self._read(model, batch)
        nodes = [Node(proto, self.opset) for proto in graph.node]
        results = [info.name for info in graph.output]
        self.readers = {name: [one for one in nodes if name in one.inputs] for node in nodes for name in node.outputs}
        self.readers |= {name: [] for name in results}
        self.needed = {name: index for index, node in enumerate(nodes) for name in node.inputs}  # until which node
        self.needed |= {name: len(nodes) for name in results}
        self.joined = {
            name: node
            for node in nodes if node.kind == "Concat" and self.shapes.keys() >= {*node.inputs, *node.outputs}
            for name in node.inputs if self.follower(name) is node and node.inputs.count(name) == 1
        }  # fmt: skip
        names = [info.name for info in graph.input if info.name not in self.constants]
        self.inputs = {name: self.fresh(self.shapes[name]) for name in names}
        self.values |= self.inputs
        for self.now, node in enumerate(nodes):
            if node not in self.fused:
                self._add(node)
        self.now = len(nodes)
        self.outputs = {name: self.ordered(self.values[name]) for name in results}

    @property
    def share(self):
        """The memory that results take, of what a place of its own for each would."""
        memories = {place.memory.ptr: place.memory for place in self.places}.values()
        return sum(prod(one.shape) for one in memories) / sum(place.size for place in self.places)

    def run(self):
        """Enqueue every call."""
        for step in self.steps:
            step.run()

    def packed(self, name, array):
        """Return an input's values, in the order and data type of its memory."""
        host, strides = np.asarray(array, self.dtype), self.inputs[name].strides
        if host.shape != self.shapes[name]:
            raise ValueError(f"{name} has shape {host.shape}; needed: {self.shapes[name]}")
        return np.ascontiguousarray(host.transpose(sorted(range(host.ndim), key=lambda axis: -strides[axis])))

    def __call__(self, **arrays):
        """Copy the inputs to the device, run, and return the outputs by name."""
        for name, array in arrays.items():
            self.handle.device.copy_in(self.inputs[name].ptr, self.packed(name, array), self.handle.stream)
        self.run()
        return {name: array.numpy() for name, array in self.outputs.items()}

    def _read(self, model, batch):
        """Return the graph of a model, its symbolic sizes replaced; name what is missing here."""
        proto = onnx.ModelProto()
        proto.CopyFrom(model if isinstance(model, onnx.ModelProto) else onnx.load(model))
        (self.opset,) = (one.version for one in proto.opset_import if one.domain in ("", "ai.onnx"))
        for info in proto.graph.input:
            for size in info.type.tensor_type.shape.dim:
                size.dim_value = size.dim_value or batch
        graph = shape_inference.infer_shapes(proto, data_prop=True).graph
        typed = [(info.name, info.type.tensor_type) for info in (*graph.input, *graph.value_info, *graph.output)]
        self.shapes = {name: tuple(size.dim_value for size in kind.shape.dim) for name, kind in typed}
        self.constants = {"": None} | {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        self.shapes |= {name: array.shape for name, array in self.constants.items() if name}
        constant, missing = {*self.constants}, []
        for node in graph.node:
            if node.op_type == "Shape" or constant.issuperset(node.input):
                constant.update(node.output)  # computed beforehand, of whatever kind
            elif node.op_type not in OPERATIONS:
                missing.append(f"{node.op_type} {node.name or node.output[0]!r}")
        if missing:
            raise UnsupportedNodeError(f"this program has not: {', '.join(missing)}")
        return graph

    def _add(self, node):
        """Compute a node of constants at once; turn any other one into steps."""
        if node.kind == "Shape":
            self.constants[node.outputs[0]] = np.array(self.shapes[node.inputs[0]][node.start : node.end])
        elif self.constants.keys() >= {*node.inputs}:
            given = {name: self.constants[name] for name in node.inputs if name}
            self.constants.update(zip(node.outputs, ReferenceEvaluator(node.proto).run(None, given), strict=True))
        else:
            shapes = [self.shapes.get(name, ()) for name in (*node.inputs, *node.outputs) if name not in self.constants]
            node.require(all(len(one) > 1 and all(one) for one in shapes), f"shapes {shapes}: unknown, or of one axis")
            OPERATIONS[node.kind](self, node)

    # What operations are made of: the arrays that they read and write, and the calls that do it.

    def owned(self, thing):
        """Return a plan or an array, which is closed with the network."""
        self.callback(thing.close)
        return thing

    def step(self, node, run, reads, writes, flops=0):
        """Add a call that reads some arrays and writes others."""
        elements = sum(prod(one.shape) for one in (*reads, *writes))
        facts = {"name": node.label, "kind": node.kind, "flops": flops, "elements": elements}
        self.steps.append(SimpleNamespace(run=run, reads=reads, writes=writes, **facts))

    def get(self, node, index=0):
        """Return an input, a result or a constant on the device; None if it is not given."""
        name = node.inputs[index] if index < len(node.inputs) else ""
        return self.values[name] if name in self.values else None if not name else self.constant(self.constants[name])

    def known(self, node, index, default=None):
        """Return an input that has to be constant."""
        name = node.inputs[index] if index < len(node.inputs) else ""
        node.require(name in self.constants, f"its input {name!r} is not constant")
        return default if self.constants[name] is None else self.constants[name]

    def constant(self, array, last=False, dtype=None):
        """Return a copy on the device."""
        array = np.array(array, dtype or self.dtype, ndmin=2)
        return self.handle.array(array, layout=CHANNELS_LAST[array.ndim] if last else None)

    def define(self, name, array):
        """Give an array its name in the model, under its shape there; its memory is kept as long as that is read."""
        shape = self.shapes[name]
        self.values[name] = array if array.shape == shape else self.view(self.ordered(array), shape)
        self._keep(self.values[name], name)

    def follower(self, name):
        """Return the node that reads a result, if it is the only one."""
        readers = self.readers.get(name, ())
        return readers[0] if len(readers) == 1 else None

    # Memory: each result has a place, and takes one that nothing needs any more.

    def fresh(self, shape, last=None):
        """Return an array in memory of its own, in the network's layout unless told otherwise."""
        memory = self.owned(self.handle.empty((1, prod(shape)), self.dtype.name))
        return self.view(memory, shape, self.lays_last(shape) if last is None else last)

    def new(self, shape, last=None):
        """Return an array for a result, in the smallest memory that is large enough and free, or in fresh memory."""
        size, taken = prod(shape), {place.memory.ptr for place in self.places if place.until >= self.now}
        free = [
            place.memory for place in self.places if place.memory.ptr not in taken and prod(place.memory.shape) >= size
        ]
        memory = min(free, key=lambda one: one.nbytes) if free else self.fresh((1, size))
        self.places.append(SimpleNamespace(memory=memory, size=size, begin=self.now, until=self.now))
        return self.view(memory, shape, self.lays_last(shape) if last is None else last)

    def room(self, name):
        """Return an array for a result of that name: its part of the Concat that alone reads it, with gaps, or a new one."""
        if name not in self.joined:
            return self.new(self.shapes[name])
        return self.part(self.joined[name], self.joined[name].inputs.index(name))

    def part(self, concat, index):
        """Return the part of a Concat's result that one of its inputs makes."""
        (whole,), (*before, name) = concat.outputs, concat.inputs[: index + 1]
        if whole not in self.wholes:
            self.wholes[whole] = self.room(whole)
            self._keep(self.wholes[whole], whole)
        array, axis = self.wholes[whole], concat.axis % len(self.shapes[name])
        start = sum(self.shapes[one][axis] for one in before) * array.strides[axis]
        return self.strided(array, self.shapes[name], array.strides, start)

    def _keep(self, array, name):
        for place in self.places:
            if place.until >= self.now and place.memory.ptr <= array.ptr < place.memory.ptr + place.memory.nbytes:
                place.until = max(place.until, self.needed.get(name, 0))

    def lays_last(self, shape):
        """Tell whether an array of that shape, an image, has its channels last."""
        return self.last and len(shape) > 3

    def packed_strides(self, shape, last):
        """Return the strides of an array without gaps, in C order or with channels last."""
        return dnn.TensorSpec(shape, layout=CHANNELS_LAST[len(shape)] if last else None).strides

    def view(self, array, shape, last=False):
        """Return the memory of an array without gaps under another shape, in C order or with channels last."""
        return self.strided(array, shape, self.packed_strides(shape, last))

    def strided(self, whole, shape, strides, offset=0):
        """Return a view of an array's memory under another shape; strides and offset are in elements."""
        spec, ptr = dnn.TensorSpec(shape, whole.dtype.name, strides=strides), whole.ptr + offset * whole.dtype.itemsize
        return dnn.DeviceArray(spec, whole.device, ptr, whole, whole.stream)

    def ordered(self, array, last=False):
        """Return an array in C order, or with its channels last; a copy if it lies in another way."""
        wanted = self.packed_strides(array.shape, last)
        if all(a == b for size, a, b in zip(array.shape, array.strides, wanted, strict=True) if size > 1):
            return self.view(array, array.shape, last)
        return self.copied(array, self.new(array.shape, last))

    def laid(self, array):
        """Return an array in the network's layout."""
        return self.ordered(array, self.lays_last(array.shape))

    def image(self, node):
        """Return the first input in the network's layout, a matrix as images of a pixel."""
        x = self.get(node)
        return self.laid(self.view(self.ordered(x), (*x.shape, 1, 1)) if len(x.shape) == 2 else x)

    def copied(self, array, new):
        """Add a copy, from any strides to any strides."""
        call = partial(dnn.transform_tensor, self.handle, array, out=new)
        self.step(SimpleNamespace(label="copy", kind="Copy"), call, [array], [new])
        return new
