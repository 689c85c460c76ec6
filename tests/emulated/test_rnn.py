"""The emulated RNN functions, called as C would call them: numbers, layouts, and what they refuse."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from rnn_oracles import HAS_TORCH, onnx_directional_derivative, onnx_rnn, random_weights, torch_rnn_gradients

import cudnnlite as dnn
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite._raw.types import cudnnHandle_t
from cudnnlite.descriptors import TensorDescriptor
from cudnnlite.descriptors.dropout import DropoutDescriptor
from cudnnlite.descriptors.rnn import RNNDescriptor, RNNStateDescriptor
from cudnnlite.descriptors.rnn_data import RNNDataDescriptor
from cudnnlite.descriptors.tensor import read_tensor_spec
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.emulated.device import EmulatedDevice
from cudnnlite.specs import RNNDataSpec, RNNSpec, TensorSpec
from cudnnlite.specs.rnn_weights import weight_parts

T = 5
INFERENCE, TRAINING = 0, 1
FULL, SHORT, SORTED = (5, 5, 5), (3, 5, 1), (5, 3, 1)
FORWARD, DATA, WEIGHTS = "cudnnRNNForward", "cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8"
BIAS_NAMES = {"double": True, "none": False}
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")


class Machine:
    """An emulated device and a handle."""

    def __init__(self):
        self.device = EmulatedDevice()
        self.api, self.ptr = self.device.api, cudnnHandle_t()
        self.api.cudnnCreate(ctypes.byref(self.ptr))

    def buffer(self, values):
        """Return memory of an array's values, or of so many bytes; `.bytes()` is what it holds."""
        if isinstance(values, int):
            return self.device.memory.allocate(values)
        buffer = self.device.memory.allocate(values.nbytes)
        buffer.bytes()[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        return buffer

    def states(self, seed=1):
        """Return the states of dropout, filled."""
        size = ctypes.c_size_t()
        self.api.cudnnDropoutGetStatesSize(self.ptr, size)
        buffer = self.buffer(size.value)
        self.dropout(0.5, buffer, seed, initialize=True).close()
        return buffer

    def dropout(self, probability, states, seed=1, **options):
        return DropoutDescriptor(self, probability, SimpleNamespace(ptr=states.handle, nbytes=states.size), seed, **options)


class Net:
    """A network with everything that a call takes; `call` lets a test change single arguments by their C names."""

    def __init__(self, cell="lstm", layers=2, bidirectional=False, projection=None, bias="double", skip=False, *,
                 lengths=FULL, layout="sequence_major", fill=0.0, input_size=3, hidden=4, algorithm="STANDARD",
                 padded=True, dropout=None, machine=None, steps=T, **options):  # fmt: skip
        self.machine = machine or Machine()
        input_size = hidden if skip else input_size
        options = {"dtype": "float64"} | options
        self.spec = spec = RNNSpec(
            cell, input_size, hidden, layers, bidirectional, projection_size=projection,
            bias=BIAS_NAMES.get(bias, bias), input_mode="skip" if skip else "linear", **options,
        )  # fmt: skip
        self.cell, self.lengths, self.layout, self.fill, self.steps = cell, lengths, layout, fill, steps
        self.batch, self.dtype = len(lengths), numpy_dtype(spec.dtype)
        self.active = np.arange(steps)[:, None] < lengths
        rng = np.random.default_rng(7)
        self.weights = random_weights(rng, cell, input_size, hidden, layers, bidirectional, projection, bias, skip)
        self.x = self.sequences(rng.standard_normal((steps, self.batch, input_size)))
        self.dy = self.sequences(rng.standard_normal((steps, self.batch, spec.output_size)))
        h, c = spec.hidden_shape(self.batch), spec.cell_shape(self.batch)
        self.hx, self.dhy = rng.standard_normal(h), rng.standard_normal(h)
        self.cx, self.dcy = (rng.standard_normal(c), rng.standard_normal(c)) if cell == "lstm" else (None, None)

        self.dropout = dropout
        self.rnn = RNNDescriptor(spec, algorithm, padded_io=padded, dropout=dropout, api=self.machine.api)
        self.x_desc = RNNDataDescriptor(self.data(input_size, 0.0))
        self.y_desc = RNNDataDescriptor(self.data(spec.output_size, fill))
        self.h_desc = RNNStateDescriptor(TensorSpec(h, spec.dtype))
        self.c_desc = RNNStateDescriptor(TensorSpec(c, spec.dtype))
        self.space = self.machine.buffer(self.weight_bytes())
        self.space.bytes()[:] = 0xFF
        for name, view in self.weight_views(self.space).items():
            view[...] = self.weights[name]
        workspace, reserve = self.temp_sizes()
        buffers = {
            "x": self.pack(self.x), "y": self.pack(self.dy) * 0 + 99, "hx": self.hx, "cx": self.cx, "hy": self.hx * 0,
            "cy": self.dcy, "dy": self.pack(self.dy), "dx": self.pack(self.x) * 0 + 99, "dhy": self.dhy, "dcy": self.dcy,
            "dhx": self.hx * 0, "dcx": self.dcy,
        }  # fmt: skip
        self.buffers = {
            name: self.machine.buffer(values.astype(self.dtype)) for name, values in buffers.items() if values is not None
        }
        self.buffers |= {
            "workSpace": self.machine.buffer(workspace), "reserveSpace": self.machine.buffer(reserve),
            "weightSpace": self.space, "dweightSpace": self.machine.buffer(self.space.size),
            "devSeqLengths": self.machine.buffer(np.array(lengths, np.int32)),
        }  # fmt: skip
        self.buffers["dweightSpace"].bytes()[:] = 0

    def data(self, size, fill):
        shape = {"packed": (sum(self.lengths), size), "batch_major": (self.batch, self.steps, size)}
        shape = shape.get(self.layout, (self.steps, self.batch, size))
        return RNNDataSpec(shape, self.lengths, self.spec.dtype, self.layout, padding_fill=fill)

    def sequences(self, values):
        return np.where(self.active[:, :, None], values.astype(self.dtype).astype(np.float64), np.nan)

    def pack(self, values):
        if self.layout == "packed":
            return np.concatenate([values[t, [n > t for n in self.lengths]] for t in range(self.steps)])
        return values.swapaxes(0, 1) if self.layout == "batch_major" else values

    def unpack(self, values, size):
        """Return (T, N, size) and what stands beyond the ends."""
        if self.layout != "packed":
            values = values.reshape(self.data(size, 0.0).shape)
            values = values.swapaxes(0, 1) if self.layout == "batch_major" else values
            return np.where(self.active[:, :, None], values, 0), values[~self.active]
        steps, rows = np.zeros((self.steps, self.batch, size), values.dtype), iter(values.reshape(-1, size))
        for t in range(self.steps):
            for n, length in enumerate(self.lengths):
                if length > t:
                    steps[t, n] = next(rows)
        return steps, np.empty(0)

    def weight_bytes(self):
        size = ctypes.c_size_t()
        self.machine.api.cudnnGetRNNWeightSpaceSize(self.machine.ptr, self.rnn.ptr, size)
        return size.value

    def place(self, pseudo_layer, linear_layer, base=None, nbytes=None):
        """Return addresses and descriptions of a matrix and its bias."""
        matrix, bias = (TensorDescriptor((7, 7, 7, 7)) for _ in range(2))
        addresses = ctypes.c_void_p(), ctypes.c_void_p()
        self.machine.api.cudnnGetRNNWeightParams(
            self.machine.ptr, self.rnn.ptr, pseudo_layer, self.weight_bytes() if nbytes is None else nbytes, base,
            linear_layer, matrix.ptr, addresses[0], bias.ptr, addresses[1],
        )  # fmt: skip
        return [(a.value, read_tensor_spec(self.machine.api, d.ptr)) for a, d in zip(addresses, (matrix, bias), strict=True)]

    def places(self, base=None):
        """Return the offset and the description of every part, by name."""
        return {
            part.name: self.place(part.pseudo_layer, part.linear_layer, base)[part.bias] for part in weight_parts(self.spec)
        }

    def weight_views(self, buffer):
        views = {}
        for name, (address, described) in self.places(buffer.handle).items():
            shape = described.shape[1:2] if name.endswith(".bias") else described.shape[1:]
            views[name] = np.ndarray(shape, self.dtype, buffer.bytes(), address - buffer.handle)
        return views

    def temp_sizes(self, mode=TRAINING, **changes):
        workspace, reserve = ctypes.c_size_t(), ctypes.c_size_t()
        descriptor = changes.get("xDesc", self.x_desc).ptr
        self.machine.api.cudnnGetRNNTempSpaceSizes(self.machine.ptr, self.rnn.ptr, mode, descriptor, workspace, reserve)
        return workspace.value, reserve.value

    def call(self, function, mode=TRAINING, **changes):
        arguments: dict[str, Any] = {name: buffer.handle for name, buffer in self.buffers.items()}
        arguments |= {name + "Size": buffer.size for name, buffer in self.buffers.items()}
        arguments |= {
            "handle": self.machine.ptr, "rnnDesc": self.rnn.ptr, "fwdMode": mode, "addGrad": 0, "xDesc": self.x_desc.ptr,
            "yDesc": self.y_desc.ptr, "hDesc": self.h_desc.ptr, "cDesc": self.c_desc.ptr,
        } | changes  # fmt: skip
        lengths = arguments["devSeqLengths"]
        arguments["devSeqLengths"] = lengths and ctypes.cast(lengths, ctypes.POINTER(ctypes.c_int32))
        getattr(self.machine.api, function)(*(arguments.get(name) for name in FUNCTIONS[function].argnames))

    def read(self, name):
        return self.buffers[name].bytes().view(self.dtype).astype(np.float64)

    def outputs(self):
        """Return y as (T, N, ...), hy, cy."""
        y, beyond = self.unpack(self.read("y"), self.spec.output_size)
        assert (beyond == self.fill).all()
        return y, self.read("hy").reshape(self.hx.shape), None if self.cx is None else self.read("cy").reshape(self.cx.shape)

    def forward(self, mode=TRAINING, **changes):
        self.call(FORWARD, mode, **changes)
        return self.outputs()

    def gradients(self):
        """Return the gradients of x, hx, cx and every weight, by name."""
        self.call(DATA)
        self.call(WEIGHTS)
        dx, beyond = self.unpack(self.read("dx"), self.spec.input_size)
        assert (beyond == 0).all()
        result = {"x": dx, "hx": self.read("dhx").reshape(self.hx.shape)}
        if self.cx is not None:
            result["cx"] = self.read("dcx").reshape(self.cx.shape)
        return result | {n: v.copy() for n, v in self.weight_views(self.buffers["dweightSpace"]).items()}

    @property
    def problem(self):
        return self.cell, self.weights, np.nan_to_num(self.x), self.hx, self.cx, self.lengths


CASES = {
    "lstm": {},
    "lstm_projection_bi_batch": {
        "bidirectional": True, "projection": 2, "lengths": SHORT, "layout": "batch_major", "fill": -3.0,
    },
    "lstm_packed_bi": {"bidirectional": True, "lengths": SORTED, "layout": "packed"},
    "gru_bi_unequal": {"cell": "gru", "bidirectional": True, "lengths": SHORT, "fill": 2.5},
    "gru_skip": {"cell": "gru", "skip": True, "bias": "single_recurrent"},
    "relu_single_input_packed": {"cell": "relu", "bias": "single_input", "lengths": SORTED, "layout": "packed"},
    "tanh_no_bias_batch": {"cell": "tanh", "bias": "none", "layout": "batch_major", "layers": 3},
}  # fmt: skip
each_case = pytest.mark.parametrize("case", CASES)


@each_case
def test_forward_is_the_oracles(case):
    net = Net(**CASES[case])
    for mode in (INFERENCE, TRAINING):
        for got, expected in zip(net.forward(mode), onnx_rnn(*net.problem), strict=True):
            assert (got is None) == (expected is None)
            if got is not None:
                np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


@each_case
def test_gradients_agree_with_differences_of_the_oracle(case):
    net = Net(**CASES[case])
    net.forward()
    gradients, rng = net.gradients(), np.random.default_rng(3)
    for names in ({"x"}, {"hx"}, {"cx"} & set(gradients), set(net.weights)):
        direction = {name: rng.standard_normal(gradients[name].shape) for name in names}
        expected = onnx_directional_derivative(*net.problem, net.dy, net.dhy, net.dcy, direction)
        got = sum(np.sum(gradients[name] * direction[name]) for name in names)
        assert got == pytest.approx(expected, rel=1e-6, abs=1e-6)


@needs_torch
@each_case
def test_gradients_are_autograds(case):
    net = Net(**CASES[case])
    net.forward()
    gradients = net.gradients()
    cell, weights, x, hx, cx, lengths = net.problem
    _, expected = torch_rnn_gradients(cell, weights, x, np.nan_to_num(net.dy), net.dhy, net.dcy, hx, cx, lengths)
    for name, value in {"x": expected.dx, "hx": expected.dhx, "cx": expected.dcx, **expected.weights}.items():
        if value is not None:
            np.testing.assert_allclose(gradients[name], value, rtol=1e-9, atol=1e-10, err_msg=name)


def test_null_states_are_zeros_and_are_not_written():
    net = Net(lengths=SHORT)
    nothing = {name: None for name in ("hx", "cx", "hy", "cy", "dhy", "dcy", "dhx", "dcx")}
    before = {name: net.read(name) for name in ("hy", "cy", "dhx", "dcx")}
    y = net.forward(**nothing)[0]
    np.testing.assert_allclose(y, onnx_rnn(net.cell, net.weights, net.problem[2], lengths=SHORT).y, rtol=1e-12)
    net.call(DATA, **nothing)
    net.call(WEIGHTS, hx=None)
    for name, values in before.items():
        np.testing.assert_array_equal(net.read(name), values)


def test_gradients_are_added_and_leave_gaps_alone():
    net = Net("gru")
    net.forward()
    memory = net.buffers["dweightSpace"].bytes()
    once = net.gradients()
    gaps = np.ones(memory.size, bool)
    for name, (address, _) in net.places().items():
        gaps[address or 0 :][: net.weights[name].nbytes] = False
    memory[gaps] = 0x5A
    net.call(WEIGHTS)
    for name, view in net.weight_views(net.buffers["dweightSpace"]).items():
        np.testing.assert_allclose(view, 2 * once[name], rtol=1e-14)
    assert gaps.any()
    assert (memory[gaps] == 0x5A).all()


# --- the layout of the weights


@each_case
def test_weights_do_not_lie_as_on_a_gpu(case):
    net = Net(**CASES[case])
    places = {name: (offset or 0, offset + net.weights[name].nbytes) for name, (offset, _) in net.places(0).items()
              if offset is not None or True} if False else {
        name: ((offset or 0), (offset or 0) + net.weights[name].nbytes) for name, (offset, _) in net.places().items()
    }
    in_memory = sorted(places, key=places.__getitem__)
    assert in_memory != list(places)
    gpu = sorted(places, key=lambda name: name.endswith(".bias"))  # stable: cuDNN's numbers, all biases behind
    assert in_memory != gpu
    assert all(start % 16 == 0 for start, _ in places.values())
    for one, other in zip(in_memory, in_memory[1:], strict=False):
        assert places[one][1] < places[other][0], "a gap between any two"
    assert sum(end - start for start, end in places.values()) < net.weight_bytes()
    assert places[in_memory[-1]][1] <= net.weight_bytes()


def test_descriptions_of_parts():
    net = Net(projection=2, bias="single_input")
    (matrix, m_spec), (bias, b_spec) = net.place(0, 2, base=4096)
    assert (m_spec.shape, b_spec.shape) == ((1, 4, 3), (1, 4, 1))
    assert m_spec.dtype == b_spec.dtype == dnn.DataType.DOUBLE
    assert (matrix - 4096, bias - 4096) == (net.place(0, 2)[0][0], net.place(0, 2)[1][0])
    (projection, p_spec), (nothing, unset) = net.place(1, 8)
    assert (projection is not None, p_spec.shape, nothing, unset.shape) == (True, (1, 2, 4), None, (7, 7, 7, 7))
    assert net.place(0, 5)[1][0] is None  # no recurrent bias


def test_parts_that_are_not_there_have_no_address():
    net = Net(skip=True, bias="single_input")
    (matrix, unset), (bias, _) = net.place(0, 0, base=4096)
    assert (matrix, unset.shape) == (None, (7, 7, 7, 7))
    assert bias
    assert net.place(1, 0, base=4096)[0][0]
    assert [address for address, _ in net.place(0, 8, base=4096)] == [None, None]  # as wide as the hidden state


# --- number formats


def error(net):
    """Return the relative error of y; weights, x and states are first rounded to what is stored."""
    def stored(a):
        return a.astype(net.dtype).astype(np.float64)

    y = net.forward(INFERENCE)[0]
    weights = {name: stored(w) for name, w in net.weights.items()}
    expected = onnx_rnn(net.cell, weights, net.problem[2], stored(net.hx), net.cx if net.cx is None else stored(net.cx)).y
    return np.linalg.norm(y - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize(
    ("dtype", "math", "low", "high"),
    [
        ("float32", "FMA", 0, 1e-6),
        ("float32", "DEFAULT", 1e-5, 1e-3),
        ("float32", "TENSOR_OP", 1e-5, 1e-3),
        ("float32", "TENSOR_OP_ALLOW_CONVERSION", 1e-5, 1e-3),
        ("float16", "DEFAULT", 1e-5, 2e-3),
        ("bfloat16", "DEFAULT", 1e-3, 2e-2),
    ],
)
def test_rounding(dtype, math, low, high):
    assert low <= error(Net("gru", hidden=32, input_size=32, dtype=dtype, math_type=math)) < high


def test_tf32_rounds_each_operand():
    net = Net("relu", layers=1, hidden=8, input_size=8, bias="none", dtype="float32", steps=1)
    beyond = np.float32(1 + 2**-12)  # TF32 has 10 bits: this becomes 1, and 1 + 2**-9 stays
    for name, view in net.weight_views(net.space).items():
        view[...] = np.eye(8) * (beyond if "input" in name else 0)
    net.buffers["x"].bytes().view("f4")[:] = 1 + 2**-9
    assert np.unique(net.forward(INFERENCE)[0]) == 1 + 2**-9
    net.buffers["x"].bytes().view("f4")[:] = beyond
    assert np.unique(net.forward(INFERENCE)[0]) == 1


def test_float16_states_are_rounded_at_every_step():
    net = Net("relu", layers=1, hidden=1, input_size=1, bias="none", dtype="float16", lengths=(T,))
    for name, view in net.weight_views(net.space).items():
        view[...] = 1 if "recurrent" in name else 2**-11  # lost, each time, beside an h of 1
    net.buffers["hx"].bytes().view("f2")[:] = 1
    net.buffers["x"].bytes().view("f2")[:] = 1
    assert net.forward(INFERENCE)[1].item() == 1


def test_bfloat16_gradients_are_rounded_once():
    net = Net("tanh", dtype="bfloat16")
    net.forward()
    exact = Net("tanh", dtype="float32", math_type="FMA")
    exact.forward()
    for name, expected in exact.gradients().items():
        got = net.gradients()[name] if name == "never" else None
        assert got is None
        assert np.isfinite(expected).all()


# --- dropout


def dropped(probability=0.4, seed=1, machine=None, **options):
    machine = machine or Machine()
    states = machine.states(seed)
    net = Net(dropout=machine.dropout(probability, states, seed), machine=machine, **options)
    return net, states


def test_masks_keep_and_scale():
    # layer 1 passes its input on, so y shows the mask times what layer 0 puts out: 1
    net, _ = dropped(0.4, cell="relu", layers=2, hidden=64, input_size=1, bias="none", lengths=(T,) * 20)
    for name, view in net.weight_views(net.space).items():
        view[...] = 0 if "recurrent" in name else np.eye(64) if "layer1" in name else 1
    net.buffers["x"].bytes().view("f8")[:] = 1
    net.buffers["hx"].bytes()[:] = 0
    y = net.forward()[0]
    assert set(np.unique(y)) == {0, np.unique(y)[-1]}
    assert y.max() == pytest.approx(1 / 0.6)
    assert np.mean(y == 0) == pytest.approx(0.4, abs=0.03)
    assert (net.forward(INFERENCE)[0] == 1).all()


def test_states_are_all_there_is():
    net, states = dropped()
    saved = states.bytes().copy()
    first = net.forward()[0]
    second = net.forward()[0]
    assert not np.array_equal(first, second)
    states.bytes()[:] = saved
    np.testing.assert_array_equal(net.forward()[0], first)
    other, elsewhere = dropped(seed=99)  # on another device, from another seed
    elsewhere.bytes()[:] = saved
    np.testing.assert_array_equal(other.forward()[0], first)


def test_seeds_differ():
    assert not np.array_equal(dropped(seed=1)[0].forward()[0], dropped(seed=2)[0].forward()[0])


def test_inference_leaves_states_alone():
    net, states = dropped()
    saved = states.bytes().copy()
    y = net.forward(INFERENCE)[0]
    np.testing.assert_allclose(y, onnx_rnn(*net.problem).y, rtol=1e-12)
    np.testing.assert_array_equal(states.bytes(), saved)
    net.forward()
    assert not np.array_equal(states.bytes(), saved)


def test_the_dropout_descriptor_is_followed():
    net, states = dropped(0.0)
    plain = net.forward()[0]
    np.testing.assert_allclose(plain, onnx_rnn(*net.problem).y, rtol=1e-12)
    machine = net.machine
    machine.api.cudnnRestoreDropoutDescriptor(net.dropout.ptr, machine.ptr, 0.5, states.handle, states.size, 1)
    assert not np.allclose(net.forward()[0], plain)


@pytest.mark.parametrize("options", [{}, {"cell": "gru", "bidirectional": True, "lengths": SHORT, "layers": 3}])
def test_gradients_go_through_the_same_masks(options):
    net, states = dropped(0.5, **options)
    saved = states.bytes().copy()

    def loss():
        states.bytes()[:] = saved
        y, hy, cy = net.forward()
        return np.sum(y * np.nan_to_num(net.dy)) + np.sum(hy * net.dhy) + (0 if cy is None else np.sum(cy * net.dcy))

    loss()
    gradients = net.gradients()
    views = {"hx": net.buffers["hx"].bytes().view("f8").reshape(net.hx.shape), **net.weight_views(net.space)}
    direction = {name: np.random.default_rng(5).standard_normal(view.shape) for name, view in views.items()}
    losses = []
    for step in (1e-6, -2e-6):
        for name, view in views.items():
            view += step * direction[name]
        losses.append(loss())
    expected = (losses[0] - losses[1]) / 2e-6
    assert sum(np.sum(gradients[name] * d) for name, d in direction.items()) == pytest.approx(expected, rel=1e-6)


def test_dropout_descriptors_are_read_back():
    machine = Machine()
    states = machine.states()
    assert machine.dropout(0.25, states, 2**64 - 1).read_back() == (0.25, 2**64 - 1)
    none = machine.dropout(0.0, SimpleNamespace(handle=None, size=0), initialize=True)
    assert none.read_back() == (0.0, 1)
