"""An ONNX model run through cudnnlite: normalisations folded, convolutions fused, memory planned, one workspace.

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
from memory_plan import Arena, Value, packed
from onnx import helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator
from onnx_operations import OPERATIONS

import cudnnlite as dnn


class UnsupportedNodeError(NotImplementedError):
    """A node that this program, or cuDNN, has not."""


class Node:
    """A node of a model, with its attributes as its own; None if not given."""

    def __init__(self, proto):
        self.proto, self.kind, self.inputs, self.outputs = proto, proto.op_type, [*proto.input], [*proto.output]
        self.label = proto.name or self.outputs[0]
        self.attributes = {one.name: helper.get_attribute_value(one) for one in proto.attribute}

    def __getattr__(self, name):
        return self.attributes.get(name)

    def require(self, condition, why):
        """Refuse the node unless a condition holds."""
        if not condition:
            raise UnsupportedNodeError(f"{self.kind} {self.label!r}: {why}")

    def windows(self, image, taps):
        """Return padding (of each axis a number, or a pair where its sides differ), strides and dilations."""
        rank, auto = len(image), (self.auto_pad or b"NOTSET").decode()
        strides, dilations, pads = self.strides or [1] * rank, self.dilations or [1] * rank, self.pads or [0] * 2 * rank
        if auto.startswith("SAME"):
            axes = zip(image, taps, strides, dilations, strict=True)
            total = [
                max((-(-size // step) - 1) * step + far * (tap - 1) + 1 - size, 0) for size, tap, step, far in axes
            ]
            less, more = [one // 2 for one in total], [one - one // 2 for one in total]
            pads = more + less if auto == "SAME_LOWER" else less + more
        sides = zip(pads[:rank], pads[rank:], strict=True)
        return tuple(a if a == b else (a, b) for a, b in sides), tuple(strides), tuple(dilations)


class Network:
    """A model on a handle, for one shape of its inputs.

    `run()` enqueues all of it, and can be captured into a CUDA graph.  `inputs` and `outputs` are its device arrays,
    `steps` its calls, each with what it has to compute and to move.

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
        With channels last, images of fewer are filled up with zeros to so many in front of a convolution.
    choose : function, optional
        ``choose(make, arrays, out)`` returns the plan of a convolution: what ``make(algorithm=...)`` returns for one.
    """

    def __init__(
        self, handle, model, *, batch=1, dtype="float32", layout="NCHW", math_type=dnn.MathType.DEFAULT, channels=1,
        choose=None,
    ):  # fmt: skip
        self.handle, self.dtype, self.last = handle, np.dtype(dtype), layout == "NHWC"
        self.math_type, self.channels, self.choose = math_type, channels, choose
        graph = self._read(model, batch)
        nodes = [Node(proto) for proto in graph.node]
        self.results = [info.name for info in graph.output]
        self.readers = {name: [one for one in nodes if name in one.inputs] for node in nodes for name in node.outputs}
        self.constants = {"": None} | {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        self._name_missing(nodes)
        self.resources = ExitStack()
        self.steps, self.values, self.joined, self.parts, self.fused = [], {}, {}, {}, set()
        inputs = [info.name for info in graph.input if info.name not in self.constants]
        for name in inputs:
            value = self.values[name] = self.new(self.shapes[name])
            value.storage.own = self.owned(handle.empty((1, value.storage.size), self.dtype.name))
        for node in reversed(nodes):
            if node.kind == "Concat":
                self._join(node)
        for node in nodes:
            if node not in self.fused:
                self._add(node)
        for name in self.results:
            self.values[name] = self.ordered(self.values[name])
            self.values[name].storage.steps.append(10**9)  # they are needed when everything is done
        self._make(inputs)

    def close(self):
        """Close its plans and give its memory back; closing the handle does that too."""
        self.resources.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def run(self):
        """Enqueue every call."""
        for step in self.steps:
            step.run()

    def packed(self, name, array):
        """Return an input's values, in the order and data type of its memory."""
        host, value = np.asarray(array, self.dtype), self.values[name]
        if host.shape != value.shape:
            raise ValueError(f"{name} has shape {host.shape}; needed: {value.shape}")
        return np.ascontiguousarray(host.transpose(sorted(range(host.ndim), key=lambda axis: -value.strides[axis])))

    def __call__(self, **arrays):
        """Copy the inputs to the device, run, and return the outputs by name."""
        for name, array in arrays.items():
            self.handle.device.copy_in(self.inputs[name].ptr, self.packed(name, array), self.handle.stream)
        self.run()
        return {name: array.numpy().reshape(self.values[name].shape) for name, array in self.outputs.items()}

    def _read(self, model, batch):
        """Return the graph of a model, its symbolic sizes replaced."""
        model = model if isinstance(model, onnx.ModelProto) else onnx.load(model)
        (self.opset,) = (one.version for one in model.opset_import if one.domain in ("", "ai.onnx"))
        proto = onnx.ModelProto()
        proto.CopyFrom(model)
        for info in proto.graph.input:
            for size in info.type.tensor_type.shape.dim:
                size.dim_value = size.dim_value or batch
        graph = shape_inference.infer_shapes(proto, data_prop=True).graph
        typed = [(info.name, info.type.tensor_type) for info in (*graph.input, *graph.value_info, *graph.output)]
        self.shapes = {name: tuple(size.dim_value for size in kind.shape.dim) for name, kind in typed}
        self.shapes |= {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        return graph

    def _name_missing(self, nodes):
        constant, missing = {*self.constants}, []
        for node in nodes:
            if node.kind == "Shape" or constant.issuperset(node.inputs):
                constant.update(node.outputs)  # computed beforehand, of whatever kind
            elif node.kind not in OPERATIONS:
                missing.append(f"{node.kind} {node.label!r}")
        if missing:
            raise UnsupportedNodeError(f"this program has not: {', '.join(missing)}")

    def _join(self, node):
        """Make the output of a Concat; let what only that reads be written there, in parts with gaps between their rows."""
        name = node.outputs[0]
        if self.constants.keys() >= {*node.inputs}:
            return
        node.require(
            all(one in self.shapes and 0 not in self.shapes[one] for one in (name, *node.inputs)), "unknown shapes"
        )
        whole = self.joined[name] = self.joined.get(name) or self.new(self.shapes[name])
        start, axis, self.parts[name] = 0, node.axis % len(whole.shape), []
        for one in node.inputs:
            part = whole.view(self.shapes[one], whole.strides)
            part.offset += start * whole.strides[axis]
            start += self.shapes[one][axis]
            self.parts[name].append(part)
            if one in self.readers and self.follower(one) is node and node.inputs.count(one) == 1:
                self.joined[one] = part

    def _add(self, node):
        """Compute a node of constants at once; turn any other one into steps."""
        if node.kind == "Shape":
            self.constants[node.outputs[0]] = np.array(self.values[node.inputs[0]].shape[node.start or 0 : node.end])
        elif self.constants.keys() >= {*node.inputs}:
            given = {name: self.constants[name] for name in node.inputs if name}
            self.constants.update(zip(node.outputs, ReferenceEvaluator(node.proto).run(None, given), strict=True))
        else:
            OPERATIONS[node.kind](self, node)

    def _make(self, inputs):
        """Plan the memory, and make the calls: their plans are chosen here."""
        values = [one for step in self.steps for one in step.arrays if isinstance(one, Value)]
        self.arena = Arena(self.handle, values, self.dtype)
        self.owned(self.arena.memory)
        for step in self.steps:
            arrays = [self.arena.array(one) if isinstance(one, Value) else one for one in step.arrays]
            step.run = step.build(*arrays)
        self.inputs = {name: self.arena.array(self.values[name]) for name in inputs}
        self.outputs = {name: self.arena.array(self.values[name]) for name in self.results}

    # What operations are made of: values that are read and written, and the steps that do it.

    def owned(self, thing):
        """Return a plan or an array, which is closed with the network."""
        self.resources.callback(thing.close)
        return thing

    def step(self, node, build, reads, writes, flops=0):
        """Add a call: what ``build(*arrays)``, of the arrays that are read and those that are written, returns."""
        arrays = (*reads, *writes)
        for value in arrays:
            if isinstance(value, Value):
                value.storage.steps.append(len(self.steps))
        facts = {"name": node.label, "kind": node.kind, "flops": flops, "elements": sum(prod(a.shape) for a in arrays)}
        self.steps.append(SimpleNamespace(build=build, arrays=arrays, run=None, **facts))

    def new(self, shape, last=None):
        """Return a value: an image, of four axes or more, in the network's layout unless told otherwise."""
        return Value(shape, packed(shape, self.last and len(shape) > 3 if last is None else last))

    def get(self, node, index=0):
        """Return an input, a value or a constant on the device; None if it is not given."""
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
        return self.handle.array(array, layout={4: "NHWC", 5: "NDHWC"}[array.ndim] if last else None)

    def ordered(self, value, last=False):
        """Return a value in C order, or with its channels last; a copy if it lies in another way."""
        strides = packed(value.shape, last)
        return (
            value.view(value.shape, strides) if value.lies(strides) else self.copied(value, self.new(value.shape, last))
        )

    def laid(self, value):
        """Return a value in the network's layout."""
        return self.ordered(value, self.last and len(value.shape) > 3)

    def image(self, node):
        """Return the first input in the network's layout, a matrix as images of a pixel, and whether its channels are last."""
        x = self.get(node)
        x = self.ordered(x).view((*x.shape, 1, 1)) if len(x.shape) == 2 else x
        return self.laid(x), self.last and len(x.shape) > 3

    def copied(self, value, new):
        """Add a copy, from any strides to any strides."""
        node = Node(helper.make_node("Copy", [], ["copy"]))
        self.step(node, lambda x, y: partial(dnn.transform_tensor, self.handle, x, out=y), [value], [new])
        return new

    def follower(self, name):
        """Return the node that reads a name, if it is the only one."""
        readers = self.readers[name]
        return readers[0] if len(readers) == 1 and name not in self.results else None
