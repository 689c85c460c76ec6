"""The emulated RNN functions, called as C calls them: numbers, weights, dropout, and refusals."""

from __future__ import annotations

import ctypes
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rnn_oracles import onnx_rnn, random_weights

import cudnnlite as dnn
from cudnnlite._raw.calls import CallArgumentError
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite._raw.types import cudnnHandle_t, cudnnRNNDataDescriptor_t, cudnnTensorDescriptor_t
from cudnnlite.descriptors import TensorDescriptor
from cudnnlite.descriptors.dropout import DropoutDescriptor
from cudnnlite.descriptors.rnn import RNNDataDescriptor, RNNDescriptor, RNNStateDescriptor
from cudnnlite.dtypes import numpy_dtype
from cudnnlite.emulated.device import EmulatedDevice
from cudnnlite.specs import RNNDataSpec, RNNSpec, TensorSpec
from cudnnlite.specs.rnn_weights import weight_parts

T = 5
FULL, SHORT, SORTED = (5, 5, 5), (3, 5, 1), (5, 3, 1)
INFERENCE, TRAINING = 0, 1
FORWARD, DATA, WEIGHTS = "cudnnRNNForward", "cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8"
BAD, NO, FAILED = dnn.errors.BadParamError, dnn.NotSupportedError, dnn.errors.ExecutionError
_owned: list[Any] = []


@pytest.fixture(autouse=True)
def _close_all():
    yield
    while _owned:
        _owned.pop().close()


def own(native):
    """Have a native object closed after the test."""
    _owned.append(native)
    return native


def data_descriptor(shape, lengths=None, dtype="float64", layout="sequence_major", fill=0.0):
    return own(RNNDataDescriptor(RNNDataSpec(shape, lengths, dtype, layout, padding_fill=fill))).ptr


def state_descriptor(shape, dtype="float64", strides=None):
    return own(RNNStateDescriptor(TensorSpec(shape, dtype, strides=strides))).ptr


class Machine:
    """An emulated device and a handle."""

    def __init__(self):
        self.device = EmulatedDevice()
        self.api, self.ptr = self.device.api, cudnnHandle_t()
        self.api.cudnnCreate(ctypes.byref(self.ptr))

    def buffer(self, values):
        """Return device memory that holds an array; `.bytes()` shows what it holds later."""
        buffer = self.device.memory.allocate(values.nbytes)
        buffer.bytes()[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        return buffer

    def states(self, seed=1):
        size = ctypes.c_size_t()
        self.api.cudnnDropoutGetStatesSize(self.ptr, size)
        states = self.device.memory.allocate(size.value)
        self.dropout(0.5, states, seed, initialize=True)
        return states

    def dropout(self, probability, states, seed=1, **options):
        where = SimpleNamespace(ptr=states.handle, nbytes=states.size)
        return own(DropoutDescriptor(self, probability, where, seed, **options))


class Net:
    """A network and the arguments of its calls; `call` changes single ones by their C names."""

    def __init__(
        self,
        cell="lstm",
        layers=2,
        bidirectional=False,
        projection=None,
        bias="double",
        skip=False,
        *,
        hidden=4,
        input_size=3,
        lengths=FULL,
        layout="sequence_major",
        fill=0.0,
        dtype="float64",
        algorithm="STANDARD",
        padded=True,
        dropout=None,
        machine=None,
        **options,
    ):
        self.machine = machine or Machine()
        self.api, handle = self.machine.api, self.machine.ptr
        inputs = hidden if skip else input_size
        options |= {
            "projection_size": projection,
            "bias": bias,
            "input_mode": "skip" if skip else "linear",
            "dtype": dtype,
        }
        self.spec = spec = RNNSpec(cell, inputs, hidden, layers, bidirectional, **options)
        self.cell, self.lengths, self.layout, self.fill = cell, lengths, layout, fill
        self.steps, self.batch, self.dtype = max(lengths), len(lengths), numpy_dtype(spec.dtype)
        self.active = np.arange(self.steps)[:, None] < lengths

        rng = np.random.default_rng(7)
        self.weights = random_weights(
            rng, cell, inputs, hidden, layers, bidirectional, projection, bias, skip
        )
        x, dy = (
            rng.standard_normal((self.steps, self.batch, size))
            for size in (inputs, spec.output_size)
        )
        self.x, self.dy = (np.where(self.active[:, :, None], a, np.nan) for a in (x, dy))
        h, c = spec.hidden_shape(self.batch), spec.cell_shape(self.batch)
        self.hx, self.dhy, self.cx, self.dcy = (
            rng.standard_normal(shape) for shape in (h, h, c, c)
        )

        self.dropout = dropout
        self.rnn = own(
            RNNDescriptor(spec, algorithm, padded_io=padded, dropout=dropout, api=self.api)
        )
        x_desc, y_desc = (
            data_descriptor(self.shape(s), lengths, dtype, layout, fill)
            for s in (inputs, spec.output_size)
        )
        self.arguments = {
            "handle": handle,
            "rnnDesc": self.rnn.ptr,
            "addGrad": 0,
            "xDesc": x_desc,
            "yDesc": y_desc,
            "hDesc": state_descriptor(h, dtype),
            "cDesc": state_descriptor(c, dtype),
        }
        workspace, reserve = self.temp_sizes()
        values = {
            "x": self.pack(self.x),
            "y": self.pack(self.dy),
            "hx": self.hx,
            "hy": self.hx,
            "cx": self.cx,
            "cy": self.cx,
            "dx": self.pack(self.x),
            "dy": self.pack(self.dy),
            "dhx": self.hx,
            "dhy": self.dhy,
            "dcx": self.cx,
            "dcy": self.dcy,
        }
        values = {name: array.astype(self.dtype) for name, array in values.items()}
        values |= {
            "workSpace": np.zeros(workspace, np.uint8),
            "reserveSpace": np.zeros(reserve, np.uint8),
        }
        values |= {
            name: np.zeros(self.weight_bytes(), np.uint8)
            for name in ("weightSpace", "dweightSpace")
        }
        values["devSeqLengths"] = np.array(lengths, np.int32)
        self.buffers = {name: self.machine.buffer(array) for name, array in values.items()}
        self.buffers["weightSpace"].bytes()[:] = 0xFF  # NaN, but for what is written now
        for name, view in self.views("weightSpace").items():
            view[...] = self.weights[name]

    def shape(self, size):
        shapes = {
            "packed": (sum(self.lengths), size),
            "batch_major": (self.batch, self.steps, size),
        }
        return shapes.get(self.layout, (self.steps, self.batch, size))

    def pack(self, values):
        if self.layout == "packed":
            return np.concatenate(
                [values[t, [n > t for n in self.lengths]] for t in range(self.steps)]
            )
        return values.swapaxes(0, 1) if self.layout == "batch_major" else values

    def read(self, name, shape):
        return self.buffers[name].bytes().view(self.dtype).astype(np.float64).reshape(shape)

    def read_steps(self, name, size, fill):
        """Return (T, N, size), zeros beyond the ends, where `fill` must have been."""
        values = self.read(name, self.shape(size))
        if self.layout != "packed":
            values = values.swapaxes(0, 1) if self.layout == "batch_major" else values
            assert (values[~self.active] == fill).all()
            return np.where(self.active[:, :, None], values, 0)
        steps, rows = np.zeros((self.steps, self.batch, size)), iter(values)
        for t in range(self.steps):
            for n in range(self.batch):
                if self.lengths[n] > t:
                    steps[t, n] = next(rows)
        return steps

    def weight_bytes(self):
        size = ctypes.c_size_t()
        self.api.cudnnGetRNNWeightSpaceSize(self.machine.ptr, self.rnn.ptr, size)
        return size.value

    def place(self, pseudo_layer, linear_layer, base=None, nbytes=None):
        """Return (address, description) of a matrix and of its bias."""
        descriptors = [own(TensorDescriptor((7, 7, 7, 7))) for _ in range(2)]
        matrix, bias = ctypes.c_void_p(), ctypes.c_void_p()
        self.api.cudnnGetRNNWeightParams(
            self.machine.ptr,
            self.rnn.ptr,
            pseudo_layer,
            self.weight_bytes() if nbytes is None else nbytes,
            base,
            linear_layer,
            descriptors[0].ptr,
            matrix,
            descriptors[1].ptr,
            bias,
        )
        specs = [TensorDescriptor.read(self.api, descriptor.ptr) for descriptor in descriptors]
        return (matrix.value, specs[0]), (bias.value, specs[1])

    def offsets(self):
        parts = list(weight_parts(self.spec))
        return {
            part.name: self.place(part.pseudo_layer, part.linear_layer)[part.bias][0] or 0
            for part in parts
        }

    def views(self, name):
        """View every part in a weight space."""
        memory = self.buffers[name].bytes()
        return {
            n: np.ndarray(self.weights[n].shape, self.dtype, memory, at)
            for n, at in self.offsets().items()
        }

    def temp_sizes(self, mode=TRAINING, x_desc=None):
        workspace, reserve = ctypes.c_size_t(), ctypes.c_size_t()
        x_desc = x_desc or self.arguments["xDesc"]
        self.api.cudnnGetRNNTempSpaceSizes(
            self.machine.ptr, self.rnn.ptr, mode, x_desc, workspace, reserve
        )
        return workspace.value, reserve.value

    def call(self, function, mode=TRAINING, **changes):
        arguments = self.arguments | {"fwdMode": mode}
        for name, buffer in self.buffers.items():
            arguments |= {name: buffer.handle, f"{name}Size": buffer.size}
        arguments |= changes
        lengths = arguments["devSeqLengths"]
        arguments["devSeqLengths"] = lengths and ctypes.cast(
            lengths, ctypes.POINTER(ctypes.c_int32)
        )
        getattr(self.api, function)(*(arguments[name] for name in FUNCTIONS[function].argnames))

    def forward(self, mode=TRAINING, **changes):
        """Return y as (T, N, ...), hy and cy."""
        self.call(FORWARD, mode, **changes)
        y, hy = (
            self.read_steps("y", self.spec.output_size, self.fill),
            self.read("hy", self.hx.shape),
        )
        return y, hy, self.read("cy", self.cx.shape) if self.cell == "lstm" else None

    def gradients(self):
        """Return the gradients of x, hx, cx and every weight, by name."""
        self.call(DATA)
        self.call(WEIGHTS)
        result = {
            "x": self.read_steps("dx", self.spec.input_size, 0),
            "hx": self.read("dhx", self.hx.shape),
        }
        if self.cell == "lstm":
            result["cx"] = self.read("dcx", self.cx.shape)
        return result | {
            name: view.astype(np.float64) for name, view in self.views("dweightSpace").items()
        }

    @property
    def problem(self):
        """What the oracles take."""
        is_lstm = self.cell == "lstm"
        return (
            self.cell,
            self.weights,
            np.nan_to_num(self.x),
            self.hx,
            self.cx if is_lstm else None,
            self.lengths,
        )


CASES: dict[str, dict[str, Any]] = {
    "lstm": {},
    "lstm_projection": {
        "bidirectional": True,
        "projection": 2,
        "lengths": SHORT,
        "layout": "batch_major",
        "fill": -3.0,
    },
    "lstm_packed": {"bidirectional": True, "lengths": SORTED, "layout": "packed"},
    "gru_unequal": {"cell": "gru", "bidirectional": True, "lengths": SHORT, "fill": 2.5},
    "gru_skip": {"cell": "gru", "skip": True, "bias": "single_recurrent"},
    "relu_single_input_packed": {
        "cell": "relu",
        "bias": "single_input",
        "lengths": SORTED,
        "layout": "packed",
    },
    "tanh_no_bias": {"cell": "tanh", "bias": "none", "layout": "batch_major", "layers": 3},
}


def assert_same(results, expected):
    for one, other in zip(results, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_null_states_are_zeros_and_are_not_written():
    net = Net(lengths=SHORT)
    names = ("hy", "cy", "dhx", "dcx")
    nothing: dict[str, Any] = dict.fromkeys((*names, "hx", "cx", "dhy", "dcy"))
    before = {name: net.buffers[name].bytes().copy() for name in names}
    assert_same(
        net.forward(**nothing)[:1], onnx_rnn("lstm", net.weights, net.problem[2], lengths=SHORT)[:1]
    )
    net.call(DATA, **nothing)
    net.call(WEIGHTS, hx=None)
    assert all((net.buffers[name].bytes() == before[name]).all() for name in names)


def test_a_cell_without_c_ignores_its_arguments():
    net = Net("gru")
    nonsense = {"cDesc": None, "cx": 64, "cy": 64, "dcx": 64, "dcy": 64}
    assert_same(net.forward(**nonsense), onnx_rnn(*net.problem))
    net.call(DATA, **nonsense)


def test_lengths_may_be_null():
    net = Net(lengths=SHORT)
    assert_same(net.forward(devSeqLengths=None), onnx_rnn(*net.problem))


def test_gradients_are_added_and_gaps_stay():
    net = Net("gru")
    net.forward()
    once, memory = net.gradients(), net.buffers["dweightSpace"].bytes()
    gaps = np.ones(memory.size, bool)
    for name, offset in net.offsets().items():
        gaps[offset : offset + net.weights[name].nbytes] = False
    memory[gaps] = 0x5A
    net.call(WEIGHTS)
    for name, view in net.views("dweightSpace").items():
        np.testing.assert_allclose(view, 2 * once[name], rtol=1e-14)
    assert gaps.any()
    assert (memory[gaps] == 0x5A).all()


@pytest.mark.parametrize("case", CASES)
def test_weights_do_not_lie_as_on_a_gpu(case):
    net = Net(**CASES[case])
    starts = net.offsets()
    ends = {name: start + net.weights[name].nbytes for name, start in starts.items()}
    for kind in (True, False):  # biases, and matrices: each by cuDNN's numbers
        names = [name for name in starts if name.endswith(".bias") == kind]
        assert all(starts[one] > starts[other] for one, other in pairwise(names))
    in_memory = sorted(starts, key=lambda name: starts[name])
    assert in_memory[0].endswith(".bias") == (net.spec.bias != dnn.enums.RNNBiasMode.NO)
    assert all(ends[one] < starts[other] for one, other in pairwise(in_memory)), (
        "a gap between any two"
    )
    assert all(start % 16 == 0 for start in starts.values())
    assert (
        ends[in_memory[-1]]
        <= net.weight_bytes()
        < 2 * sum(w.nbytes for w in net.weights.values()) + 4096
    )


def test_parts_are_described():
    net = Net(projection=2, bias="single_input")
    (matrix, m_spec), (bias, b_spec) = net.place(0, 2, base=4096)
    assert (m_spec.shape, b_spec.shape, m_spec.dtype) == ((1, 4, 3), (1, 4, 1), dnn.DataType.DOUBLE)
    assert [matrix - 4096, bias - 4096] == [address for address, _ in net.place(0, 2)]
    (projection, p_spec), (nothing, untouched) = net.place(1, 8, base=4096)
    assert projection
    assert (p_spec.shape, nothing, untouched.shape) == ((1, 2, 4), None, (7, 7, 7, 7))
    assert net.place(0, 5, base=4096)[1][0] is None  # the recurrent bias


def test_parts_that_are_not_there_have_no_address():
    net = Net(skip=True, bias="single_input")
    (matrix, untouched), (bias, _) = net.place(0, 0, base=4096)
    assert (matrix, untouched.shape) == (None, (7, 7, 7, 7))
    assert bias
    assert net.place(1, 0, base=4096)[0][0]
    assert [address for address, _ in net.place(0, 8, base=4096)] == [None, None]  # no projection


@pytest.mark.parametrize(
    ("dtype", "math", "low", "high"),
    [
        ("float32", "FMA", 0, 1e-6),
        ("float32", "DEFAULT", 1e-5, 1e-3),
        ("float32", "TENSOR_OP", 1e-5, 1e-3),
        ("float32", "TENSOR_OP_ALLOW_CONVERSION", 1e-5, 1e-3),
        ("float16", "DEFAULT", 1e-5, 3e-3),
        ("bfloat16", "DEFAULT", 1e-4, 3e-2),
    ],
)
def test_rounding(dtype, math, low, high):
    net, exact = (
        Net("gru", hidden=32, dtype=d, lengths=SHORT, **o)
        for d, o in ((dtype, {"math_type": math}), ("float64", {}))
    )
    y, exact_y = net.forward()[0], exact.forward()[0]
    assert low <= np.linalg.norm(y - exact_y) < high * np.linalg.norm(exact_y)
    expected = exact.gradients()
    for name, gradient in net.gradients().items():
        assert (
            low
            <= np.linalg.norm(gradient - expected[name])
            < 2 * high * np.linalg.norm(expected[name])
        ), name


def test_tf32_rounds_both_operands():
    net = Net(
        "relu", layers=1, hidden=8, input_size=8, bias="none", dtype="float32", lengths=(1, 1)
    )
    # TF32 has 10 bits: it loses the first value's last one, and holds the second value.
    inexact, exact = np.float32(1 + 2**-12), np.float32(1 + 2**-9)
    x = net.buffers["x"].bytes().view("f4")
    for weight, value, result in (
        (inexact, exact, exact),
        (exact, inexact, exact),
        (inexact, inexact, 1),
    ):
        for name, view in net.views("weightSpace").items():
            view[...] = np.eye(8) * (weight if "input" in name else 0)
        x[:] = value
        assert np.unique(net.forward(INFERENCE)[0]) == result


def test_half_states_are_rounded_at_every_step():
    net = Net("relu", layers=1, hidden=1, input_size=1, bias="none", dtype="float16", lengths=(T,))
    for name, view in net.views("weightSpace").items():
        view[...] = 1 if "recurrent" in name else 2**-11  # lost each time beside an h of 1
    for name in ("hx", "x"):
        net.buffers[name].bytes().view("f2")[:] = 1
    assert net.forward(INFERENCE)[1].item() == 1


def dropped(probability=0.4, seed=1, **options):
    """Return a network with dropout, and its states."""
    machine = Machine()
    states = machine.states(seed)
    return Net(
        dropout=machine.dropout(probability, states, seed), machine=machine, **options
    ), states


def test_the_rnn_follows_its_dropout_descriptor():
    net, states = dropped(0.0)
    assert_same(net.forward(), onnx_rnn(*net.problem))
    net.api.cudnnRestoreDropoutDescriptor(
        net.dropout.ptr, net.machine.ptr, 0.5, states.handle, states.size, 1
    )
    assert not np.allclose(net.forward()[0], onnx_rnn(*net.problem).y)


def test_masks_follow_the_seed():
    # The nets keep the states, without which there are no masks.
    nets = [dropped(0.5, seed) for seed in (5, 5, 6)]
    first, again, other = (net.forward()[0] for net, _ in nets)
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)


def test_dropout_descriptors_are_read_back():
    machine = Machine()
    assert machine.dropout(0.25, machine.states(), 2**64 - 1).read_back() == (0.25, 2**64 - 1)
    assert machine.dropout(0.0, SimpleNamespace(handle=0, size=0), initialize=True).read_back() == (
        0.0,
        1,
    )


def test_sizes():
    net, machine = Net(), Machine()
    assert net.temp_sizes(INFERENCE)[1] == 0
    assert min(net.temp_sizes(INFERENCE)[0], *net.temp_sizes()) > 0
    assert net.temp_sizes(x_desc=data_descriptor((T + 1, 3, 3)))[1] > net.temp_sizes()[1]
    assert (
        Net(machine=machine, dropout=machine.dropout(0.0, machine.states())).temp_sizes()[1]
        > net.temp_sizes()[1]
    )


def test_spaces_are_used_to_their_ends_and_no_further():
    net, larger = Net("gru", lengths=SHORT), {}
    for name in ("workSpace", "reserveSpace"):
        size = net.buffers[name].size
        larger[name] = net.machine.buffer(np.full(size + 512, 0x77, np.uint8))
        net.buffers[name] = SimpleNamespace(handle=larger[name].handle + 256, size=size)
    net.forward()
    net.gradients()
    for buffer in larger.values():
        assert (buffer.bytes()[:256] == 0x77).all()
        assert (buffer.bytes()[-256:] == 0x77).all()
        assert (buffer.bytes()[-272:-256] != 0x77).any()


def test_a_reserve_space_may_be_moved_and_a_workspace_lost():
    net, other = Net(), Net()
    for one in (net, other):
        one.forward()
    net.buffers["workSpace"].bytes()[:] = 0
    net.buffers["reserveSpace"] = net.machine.buffer(net.buffers["reserveSpace"].bytes())
    expected = other.gradients()
    for name, gradient in net.gradients().items():
        np.testing.assert_array_equal(gradient, expected[name])


def unset(kind, create):
    """Return a descriptor that was created and no more."""
    native, api = kind(), EmulatedDevice().api
    getattr(api, create)(ctypes.byref(native))
    own(SimpleNamespace(close=lambda: getattr(api, create.replace("Create", "Destroy"))(native)))
    return native


SMALL_H = {"algorithm": "PERSIST_STATIC_SMALL_H", "dtype": "float32"}
# What is refused, by what is changed: the options of Net, the error, its message.
ROWS: dict[str, list[tuple[str, dict[str, Any], dict[str, Any], Any, str]]] = {
    FORWARD: [
        ("weights_too_small", {"weightSpaceSize": 16}, {}, BAD, "weightSpace of 16 bytes"),
        ("mode", {"fwdMode": 2}, {}, BAD, "fwdMode=2"),
        (
            "no_reserve",
            {"reserveSpace": None, "reserveSpaceSize": 0},
            {},
            BAD,
            "reserveSpace of 0 bytes",
        ),
        (
            "other_device_lengths",
            {"devSeqLengths": np.int32([5, 5, 4])},
            {},
            BAD,
            r"devSeqLengths holds \(5, 5, 4\)",
        ),
        ("host_lengths", {"devSeqLengths": np.int32(FULL).ctypes.data}, {}, FAILED, "allocation"),
        (
            "lengths_of_y",
            {"yDesc": lambda: data_descriptor((T, 3, 4), SHORT)},
            {},
            BAD,
            "lengths is",
        ),
        (
            "layout_of_y",
            {"yDesc": lambda: data_descriptor((3, T, 4), layout="batch_major")},
            {},
            BAD,
            "layout is",
        ),
        ("steps_of_y", {"yDesc": lambda: data_descriptor((T + 1, 3, 4))}, {}, BAD, "max_length is"),
        ("batch_of_y", {"yDesc": lambda: data_descriptor((T, 2, 4))}, {}, BAD, "batch is"),
        (
            "vectors_of_x",
            {"xDesc": lambda: data_descriptor((T, 3, 4))},
            {},
            BAD,
            "xDesc has vectors of 4",
        ),
        (
            "vectors_of_y",
            {"yDesc": lambda: data_descriptor((T, 3, 5))},
            {},
            BAD,
            "yDesc has vectors of 5",
        ),
        (
            "dtype_of_x",
            {"xDesc": lambda: data_descriptor((T, 3, 3), dtype="float32")},
            {},
            BAD,
            "xDesc is of float32",
        ),
        (
            "dtype_of_y",
            {"yDesc": lambda: data_descriptor((T, 3, 4), dtype="float32")},
            {},
            BAD,
            "yDesc is of float32",
        ),
        ("shape_of_h", {"hDesc": lambda: state_descriptor((2, 3, 5))}, {}, BAD, "hDesc has shape"),
        (
            "shape_of_c",
            {"cDesc": lambda: state_descriptor((2, 3, 2))},
            {"projection": 2},
            BAD,
            "cDesc has shape",
        ),
        (
            "dtype_of_h",
            {"hDesc": lambda: state_descriptor((2, 3, 4), "float32")},
            {},
            BAD,
            "hDesc is of float32",
        ),
        (
            "gaps_in_h",
            {"hDesc": lambda: state_descriptor((2, 3, 4), strides=(24, 8, 1))},
            {},
            BAD,
            "no gaps",
        ),
        ("null_h", {"hDesc": None}, {}, BAD, "tensorDesc"),
        ("null_c", {"cDesc": None}, {}, BAD, "tensorDesc"),
        (
            "unset_x",
            {"xDesc": lambda: unset(cudnnRNNDataDescriptor_t, "cudnnCreateRNNDataDescriptor")},
            {},
            BAD,
            "never set",
        ),
        (
            "unset_h",
            {"hDesc": lambda: unset(cudnnTensorDescriptor_t, "cudnnCreateTensorDescriptor")},
            {},
            BAD,
            "hDesc: ",
        ),
        (
            "no_padded_io",
            {},
            {"lengths": SHORT, "padded": False},
            BAD,
            r"\(1U << 0\) != rnnDesc->paddingMode\(\)",
        ),
        (
            "no_padded_io_batch_major",
            {},
            {"layout": "batch_major", "padded": False},
            BAD,
            "paddingMode",
        ),
        ("algorithm_lengths", {}, SMALL_H | {"lengths": SHORT}, NO, "full length"),
        (
            "not_built",
            {},
            {"algorithm": "PERSIST_DYNAMIC", "dtype": "float32"},
            BAD,
            "cudnnBuildRNNDynamic",
        ),
    ],
    DATA: [
        ("algorithm", {}, SMALL_H | {"hidden": 150}, NO, "hidden_size=128 backward"),
        ("weights_too_small", {"weightSpaceSize": 16}, {}, BAD, "weightSpace of 16 bytes"),
    ],
    WEIGHTS: [
        ("weights_too_small", {"weightSpaceSize": 16}, {}, BAD, "dweightSpace of 16 bytes"),
        ("set", {"addGrad": 1}, {}, NO, "addGrad=SET"),
        ("add_grad", {"addGrad": 2}, {}, BAD, "addGrad=2"),
    ],
}
NEEDED = {
    FORWARD: ["x", "y", "weightSpace"],
    DATA: ["y", "dy", "dx", "weightSpace"],
    WEIGHTS: ["x", "y", "dweightSpace"],
}
STATES = {
    FORWARD: ["hx", "hy", "cx", "cy"],
    DATA: ["hx", "cx", "dhx", "dhy", "dcx", "dcy"],
    WEIGHTS: ["hx"],
}
for _function, _rows in ROWS.items():
    for _name in ("workSpace", "reserveSpace"):
        _rows.append((f"{_name}_too_small", {f"{_name}Size": 16}, {}, BAD, f"{_name} of 16 bytes"))
        NEEDED[_function].append(_name)
    for name in NEEDED[
        _function
    ]:  # an H200's cuDNN crashes at a null dy, which is refused before any device is asked
        _early = (_function, name) == (DATA, "dy")
        _words = "dy.: a null pointer" if _early else f"{name} is a null pointer"
        _rows.append(
            (f"null_{name}", {name: None}, {}, CallArgumentError if _early else BAD, _words)
        )
    _names = NEEDED[_function] + STATES[_function]
    _rows += [
        (f"illegal_{name}", {name: 64}, {}, FAILED, "do not lie inside one live") for name in _names
    ]
REFUSALS = [
    pytest.param(function, *row[1:], id=f"{function[8:]}-{row[0]}")
    for function in ROWS
    for row in ROWS[function]
]


def assert_refused(net, function, kind, message, **changes):
    """Expect an error, and that no byte has changed."""
    before = {name: buffer.bytes().copy() for name, buffer in net.buffers.items()}
    with pytest.raises(kind, match=message):
        net.call(function, **changes)
    for name, held in before.items():
        assert (net.buffers[name].bytes() == held).all(), name


@pytest.mark.parametrize(("function", "changes", "options", "kind", "message"), REFUSALS)
def test_refusal(function, changes, options, kind, message):
    net = Net(**options)
    for earlier in [FORWARD, DATA, WEIGHTS][: [FORWARD, DATA, WEIGHTS].index(function)]:
        net.call(earlier)
    changes = {name: value() if callable(value) else value for name, value in changes.items()}
    buffers = [
        net.machine.buffer(value) for value in changes.values() if isinstance(value, np.ndarray)
    ]
    changes |= {
        name: buffers[0].handle for name, value in changes.items() if isinstance(value, np.ndarray)
    }
    assert_refused(net, function, kind, message, **changes)


def test_sizes_are_refused_where_the_algorithm_is():
    with pytest.raises(NO, match=r"cudnnGetRNNTempSpaceSizes.*hidden_size=192 forward"):
        Net(**SMALL_H, hidden=200).call(FORWARD)


def test_backward_wants_the_reserve_of_the_stage_before():
    net = Net()
    forward, data = (
        "as the forward call for training left it",
        "as the backward call over the data left it",
    )
    assert_refused(net, DATA, BAD, forward)
    net.call(FORWARD, INFERENCE)
    assert_refused(net, DATA, BAD, forward)
    net.call(FORWARD)
    assert_refused(net, WEIGHTS, BAD, data)
    net.call(DATA)
    assert_refused(net, DATA, BAD, forward)  # the gate gradients are in the gates' place now
    net.call(WEIGHTS)
    net.call(WEIGHTS)
    net.call(FORWARD)
    assert_refused(net, WEIGHTS, BAD, data)


@pytest.mark.parametrize("name", ["x", "y", "hx", "cx", "weightSpace"])
def test_backward_wants_the_operands_of_forward(name):
    net = Net()
    net.forward()
    value = (
        next(iter(net.views(name).values()))
        if name == "weightSpace"
        else net.buffers[name].bytes().view("f8")
    )
    old = value.flat[0]
    if name != "x":
        value.flat[0] += 1
        assert_refused(net, DATA, BAD, f"{name} is not what it was")
        value.flat[0] = old
    net.call(DATA)
    if name in ("x", "y", "hx"):
        value.flat[0] += 1
        assert_refused(net, WEIGHTS, BAD, f"{name} is not what it was")


def test_backward_wants_the_sequences_of_forward():
    net = Net()
    net.forward()
    descriptors = {
        "xDesc": data_descriptor((T, 3, 3), SHORT),
        "yDesc": data_descriptor((T, 3, 4), SHORT),
    }
    assert_refused(net, DATA, BAD, "other sequences", devSeqLengths=None, **descriptors)


def test_backward_wants_the_dropout_of_forward():
    net, states = dropped(0.5)
    net.forward()
    net.api.cudnnRestoreDropoutDescriptor(
        net.dropout.ptr, net.machine.ptr, 0.4, states.handle, states.size, 1
    )
    assert_refused(net, DATA, BAD, "another dropout probability")


def test_a_destroyed_dropout_descriptor_is_missed():
    net, _ = dropped()
    net.dropout.close()
    assert_refused(net, FORWARD, BAD, "was destroyed")


def test_dropout_states_must_have_been_filled():
    net, states = dropped()
    states.bytes()[:] = 0xFF
    assert_refused(net, FORWARD, FAILED, "not filled by cudnnSetDropoutDescriptor")
    net.forward(INFERENCE)


def test_a_build_is_for_one_batch_and_until_the_descriptor_is_set():
    net = Net("gru", algorithm="PERSIST_DYNAMIC")
    build = net.api.cudnnBuildRNNDynamic
    build(net.machine.ptr, net.rnn.ptr, 7)
    assert_refused(
        net, FORWARD, BAD, r"cudnnBuildRNNDynamic was given a batch of 7 .* this is a batch of 3"
    )
    build(net.machine.ptr, net.rnn.ptr, 3)
    net.forward()
    net.gradients()
    net.rnn._set(net.spec)
    for function in (FORWARD, DATA, WEIGHTS):
        assert_refused(net, function, BAD, "cudnnBuildRNNDynamic was not called")
    with pytest.raises(BAD, match="miniBatch=0"):
        build(net.machine.ptr, net.rnn.ptr, 0)


def test_only_persist_dynamic_is_built():
    net = Net()
    with pytest.raises(BAD, match="for PERSIST_DYNAMIC, not STANDARD"):
        net.api.cudnnBuildRNNDynamic(net.machine.ptr, net.rnn.ptr, 3)


@pytest.mark.parametrize(
    ("cell", "arguments", "message"),
    [
        pytest.param("lstm", (2, 0), "pseudoLayer=2", id="pseudo_layer"),
        pytest.param("lstm", (-1, 0), "pseudoLayer=-1", id="negative_pseudo_layer"),
        pytest.param("lstm", (0, 9), "linLayerID=9", id="linear_layer"),
        pytest.param("lstm", (0, -1), "linLayerID=-1", id="negative_linear_layer"),
        pytest.param("gru", (0, 8), "linLayerID=8", id="projection_of_gru"),
        pytest.param("lstm", (0, 0, None, 16), "weightSpace of 16 bytes", id="size"),
    ],
)
def test_weight_params_refusal(cell, arguments, message):
    with pytest.raises(BAD, match=message):
        Net(cell).place(*arguments)


@pytest.mark.parametrize(
    ("mode", "shape", "dtype", "message"),
    [
        pytest.param(2, (T, 3, 3), "float64", "fwdMode=2", id="mode"),
        pytest.param(TRAINING, (T, 3, 4), "float64", "xDesc has vectors of 4", id="vectors"),
        pytest.param(TRAINING, (T, 3, 3), "float32", "xDesc is of float32", id="dtype"),
    ],
)
def test_temp_space_sizes_refusal(mode, shape, dtype, message):
    with pytest.raises(BAD, match=message):
        Net().temp_sizes(mode, data_descriptor(shape, dtype=dtype))


@pytest.mark.parametrize("function", ["cudnnSetDropoutDescriptor", "cudnnRestoreDropoutDescriptor"])
@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        pytest.param({"dropout": 1.5}, BAD, "dropout=1.5", id="past_one"),
        pytest.param({"dropout": -0.5}, BAD, "dropout=-0.5", id="negative"),
        pytest.param({"stateSizeInBytes": 16}, BAD, "states of 16 bytes", id="size"),
        pytest.param({"states": None}, BAD, "states is a null pointer", id="null_states"),
        pytest.param(
            {"states": None, "dropout": 0.0},
            BAD,
            "states is a null pointer",
            id="null_states_of_a_size",
        ),
        pytest.param({"states": 64}, FAILED, "do not lie inside", id="illegal_states"),
        pytest.param(
            {"dropoutDesc": None}, BAD, "dropoutDesc is a null pointer", id="null_descriptor"
        ),
    ],
)
def test_dropout_refusal(function, changes, kind, message):
    machine = Machine()
    states = machine.states()
    arguments = {
        "dropoutDesc": machine.dropout(0.5, states).ptr,
        "handle": machine.ptr,
        "dropout": 0.5,
        "states": states.handle,
        "stateSizeInBytes": states.size,
        "seed": 1,
    } | changes
    with pytest.raises(kind, match=message):
        getattr(machine.api, function)(*(arguments[name] for name in FUNCTIONS[function].argnames))
