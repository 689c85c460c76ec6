"""Legal calls of everything public, some of whose arguments the fuzzing replaces.

Operations come from their table and from tests/samples.  `LEGAL` has the rest; a test tells what is
missing there.  An operation is a subject by its name, and by that of each of its functions:
"pooling_forward", "pooling_forward.plan", ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from device.operation_samples import SAMPLES, Case
from helpers.extensions import load

import cudnnlite as dnn
from cudnnlite.emulated.device import EmulatedDevice
from cudnnlite.plans.function import OperationFunction
from cudnnlite.problems import convolution
from cudnnlite.specs.frozen import FrozenSpec
from cudnnlite.workbench.tuning.timing_policy import TimingPolicy

PUBLIC = load("public_names").things()
QUICK = TimingPolicy(
    rounds=1, least_rounds=1, further_rounds=0, most_further=0, sample_ms=0.01, calls_ms=0.01
)
MODEL = """<ir_version: 10, opset_import: ["" : 21]>
layer (float[N, 2, 5, 4] x, float[3, 2, 3, 3] w) => (float[N, 3, 5, 4] y) { y = Conv <pads = [1, 1, 1, 1]> (x, w) }"""
NO_CALLABLES = {"TF32", "TRUE_FLOAT32", "errors", "raw"}
# values that operations return: their constructors only hold what they are given
RESULTS = {
    "AttentionPlan",
    "CTCLossPlan",
    "AttentionGradients",
    "AttentionReserve",
    "AttentionTrainingOutput",
    "Replay",
    "ReplayCosts",
    "AlgorithmResult",
    "AlgorithmTable",
    "Candidate",
    "Candidates",
    "DeviceArray",
    "GraphTensor",
    "ListedProblem",
    "ModelTuning",
    "OperationPlan",
    "PackedSequences",
    "RNNGradients",
    "RNNOutput",
    "RNNPlan",
    "RNNReserve",
    "RNNTrainingOutput",
    "SkippedNode",
    "Trace",
    "TracedCall",
    "TunedProblem",
    "WeightLayout",
    "WeightPlace",
}


class Things:
    """What calls are made of, on an emulated device of its own unless another is given."""

    def __init__(self, folder: Path, device: Any = None) -> None:
        self.folder = folder
        self.device = device or EmulatedDevice(3, capacity="64 MiB")
        self.elsewhere = EmulatedDevice(4, capacity="1 MiB")
        self.handle, self.other = dnn.Handle(self.device), dnn.Handle(self.elsewhere)
        self.closed = dnn.Handle(self.device)
        self.closed.close()
        rng = np.random.default_rng(0)
        self.x = self.handle.array(rng.standard_normal((2, 2, 5, 4), np.float32))
        self.w = self.handle.array(rng.standard_normal((3, 2, 3, 3), np.float32))
        self.y = self.handle.array(rng.standard_normal((2, 3, 5, 4), np.float32))
        self.conv = dnn.ConvolutionSpec(1)
        self.lstm = dnn.RNNSpec("lstm", 2, 3)
        self.weights = dnn.RNNWeights(self.handle, self.lstm)
        self.sequence = self.handle.array(rng.standard_normal((4, 2, 2), np.float32))
        out = dnn.rnn_forward(self.handle, self.lstm, self.weights, self.sequence, training=True)
        self.reserve, self.sequences = out.reserve, out.y
        self.reserve_with_gradients = dnn.rnn_forward(
            self.handle, self.lstm, self.weights, self.sequence, training=True
        ).reserve
        dnn.rnn_backward_data(self.handle, self.reserve_with_gradients, self.sequences)
        self.problem = dnn.convolution_forward.problem(
            self.x.spec, dnn.FilterSpec(self.w.shape), self.conv
        )
        self.table = dnn.convolution_forward.find(self.handle, self.x, self.w, self.conv)
        self.dropout = dnn.DropoutState(self.handle)
        with dnn.trace() as self.trace:
            dnn.pooling_forward(self.handle, self.x, dnn.PoolingSpec(2)).numpy()
        self.model = onnx.parser.parse_model(MODEL)
        self.tuner = dnn.Tuner(self.handle, cache=None)
        self.plan = dnn.convolution_forward.plan(self.handle, self.x, self.w, self.conv)
        self.layer_plan = dnn.pooling_forward.plan(self.handle, self.x, dnn.PoolingSpec(2))
        self.rnn_plan = dnn.rnn_forward.plan(self.handle, self.lstm, None, self.sequence)
        self.rnn_out = out
        self.attention = dnn.AttentionSpec(1, 2, q_proj_size=2, o_proj_size=2, bias=True)
        self.projections = dnn.AttentionWeights(self.handle, self.attention)
        self.queries = self.handle.array(rng.standard_normal((2, 3, 2), np.float32))
        self.attention_plan = dnn.multi_head_attention_forward.plan(
            self.handle, self.attention, self.projections, *[self.queries] * 3
        )
        self.ctc_plan = dnn.ctc_loss.plan(self.handle, self.sequence, [1, 1], [1, 1], [4, 3])
        self.reserves = (
            self.attend(None),
            self.attend(None),
        )  # before and after the backward pass over the data
        dnn.multi_head_attention_backward_data(self.handle, self.reserves[1], self.queries)
        self.dropout_reserve = dnn.dropout_forward(
            self.handle, self.x, 0.5, dropout_state=self.dropout
        )[1]

        self._graph = dnn.Graph()
        self.product_plan = self.product().plan(self.handle)
        # The inputs of a graph are rows and columns: queries, keys and values are one array, and so
        # are input and gradient.
        self.rows = self.handle.array(rng.standard_normal((1, 2, 8, 8)), dtype="float16")
        self.row_sums = self.handle.array(np.zeros((1, 2, 8, 1), np.float32))
        self.matrix = self.handle.array(rng.standard_normal((1, 8, 8)), dtype="float16")
        self.images_of_channels = self.handle.array(
            rng.standard_normal((2, 2, 5, 4), np.float32), layout="NHWC"
        )
        self.per_channel = self.handle.array(np.ones((1, 2, 1, 1), np.float32))
        self.per_image = self.handle.array(np.ones((2, 1, 1, 1), np.float32))
        self.per_plane = self.handle.array(np.ones((2, 2, 1, 1), np.float32))
        self.per_value = self.handle.array(np.ones((1, 2, 5, 4), np.float32))

    @property
    def graph(self) -> dnn.Graph:
        """A graph with inputs, to which operations may be added.

        It is replaced once it was planned, was hashed, or has grown.
        """
        if not self._graph.tensors or self._graph._is_frozen or len(self._graph.tensors) > 500:
            self._graph = dnn.Graph()
            self._graph.input("images", (2, 2, 5, 4))
            self._graph.input("filters", (3, 2, 3, 3))
            self._graph.input("scale", (1, 2, 1, 1))
            self._graph.input("statistics", (2, 2, 1, 1))
            self._graph.input("slopes", (2, 3, 5, 4))
            self._graph.input("square", (2, 2, 5, 5))
            self._graph.input("lengths", (2, 1, 1, 1), "int32")
            self._graph.input("random", (1, 1, 1, 1), "int64")
        return self._graph

    def product(self) -> dnn.Graph:
        """Return the graph of a product with a bias."""
        graph = dnn.Graph()
        a, b = graph.input("a", (1, 8, 8)), graph.input("b", (1, 8, 8))
        graph.output("y", graph.relu(a @ b + graph.input("bias", (1, 1, 8))))
        return graph

    def attend(self, reserve: dnn.types.AttentionReserve | None) -> dnn.types.AttentionReserve:
        """Return a reserve space of which no backward pass was made yet."""
        operands = (self.handle, self.attention, self.projections, *[self.queries] * 3)
        new_reserve: dnn.types.AttentionReserve = dnn.multi_head_attention_forward(
            *operands, training=True, reserve=reserve
        ).reserve
        return new_reserve

    def close(self) -> None:
        """Give everything back."""
        for thing in (
            self.plan,
            self.layer_plan,
            self.rnn_plan,
            self.attention_plan,
            self.ctc_plan,
            self.product_plan,
            self.tuner,
            self.handle,
            self.other,
        ):
            thing.close()

    @property
    def misplaced_values(self) -> tuple[Any, ...]:
        """Valid values that fit other arguments."""
        return (
            self.handle,
            self.other,
            self.closed,
            self.device,
            self.x,
            self.w,
            self.other.empty((2, 2, 5, 4)),
            self.conv,
            self.lstm,
            self.weights,
            self.reserve,
            self.problem,
            self.table,
            self.table[0],
            self.dropout,
            self.attention,
            self.projections,
            *self.reserves,
            self.dropout_reserve,
            dnn.CTCLossSpec(),
            dnn.specs.SeqDataSpec((2, 1, 3, 2)),
            dnn.SpatialTransformerSpec((2, 2, 5, 4)),
            dnn.specs.TensorTransformSpec((0, 0, 1, 0)),
            self.model,
            self.tuner,
            self.plan,
            self.layer_plan,
            self.rnn_plan,
            self.product_plan,
            self.graph,
            self.graph.tensor("images"),
            self.product(),
            self.product().tensor("a"),
            self.rows,
            self.handle.stream,
            self.other.stream,
            self.weights.array,
            dnn.TuningPolicy(),
            dnn.types.Engine(1),
            dnn.ProblemList([self.problem]),
            ThreadPoolExecutor,
        )


def _convolving(things: Things, **more: Any) -> dict[str, Any]:
    return {"handle": things.handle, "x": things.x, "w": things.w, "conv": things.conv, **more}


def _recurrent(things: Things, **more: Any) -> dict[str, Any]:
    return {
        "handle": things.handle,
        "spec": things.lstm,
        "x": things.sequence,
        "lengths": [4, 3],
        "training": False,
        "layout": "sequence_major",
        "workspace_limit": None,
        **more,
    }


def _normalizing(things: Things, scale: Any) -> dict[str, Any]:
    return {
        "handle": things.handle,
        "x": things.x,
        "scale": scale,
        "bias": scale,
        "epsilon": 1e-3,
        "training": True,
        "out": None,
        "workspace_limit": "1 MiB",
    }


def _normalizing_backward(things: Things, scale: Any, statistics: Any) -> dict[str, Any]:
    return {
        "handle": things.handle,
        "dy": things.x,
        "x": things.x,
        "scale": scale,
        "mean": statistics,
        "inv_variance": statistics,
        "out": None,
        "workspace_limit": "1 MiB",
    }


def _product_gradient(things: Things, operand: str, result: str) -> dict[str, Any]:
    return {
        "handle": things.handle,
        "dy": things.matrix,
        operand: things.matrix,
        result: (8, 8),
        "alpha": 0.5,
        "dtype": "float32",
        "math_type": "tensor_op",
        "out": None,
        "workspace_limit": "1 MiB",
    }


_CONV = {"padding": 1, "stride": 2, "dilation": 1, "groups": 1}
_FIND = {"beta": 0.0, "out": None, "workspace_limit": "1 MiB"}
_PLAN = {
    "alpha": 1.0,
    "beta": 0.0,
    "out": None,
    "algorithm": None,
    "workspace_limit": "1 MiB",
    "interface": None,
}
LEGAL: dict[str, Callable[[Things], dict[str, Any]]] = {
    "ActivationDescriptor": lambda t: {"spec": dnn.ActivationSpec("relu")},
    "ActivationSpec": lambda t: {"mode": "clipped_relu", "coef": 1.0, "nan": "propagate"},
    "AttentionDescriptor": lambda t: {
        "spec": t.attention.replace(max_q_length=3, max_kv_length=3, max_batch=2, max_beam=1),
        "dropout": None,
        "post_dropout": None,
    },
    "AttentionSpec": lambda t: {
        "heads": 2,
        "q_size": 6,
        "k_size": 5,
        "v_size": 4,
        "q_proj_size": 3,
        "k_proj_size": 3,
        "v_proj_size": 2,
        "o_proj_size": 6,
        "scale": 0.5,
        "bias": True,
        "dropout": 0.5,
        "post_dropout": 0.25,
        "max_q_length": 3,
        "max_kv_length": 4,
        "max_batch": 2,
        "max_beam": 1,
        "dtype": "float16",
        "compute_type": "float32",
        "math_type": "fma",
    },
    "AttentionWeights": lambda t: {"handle": t.handle, "spec": t.attention},
    "BackendDescriptor": lambda t: {
        "kind": "tensor",
        "unique_id": 3,
        "dimensions": (1, 2),
        "data_type": "float",
    },
    "ConvolutionDescriptor": lambda t: {**_CONV, "spatial_rank": 2, "math_type": "fma"},
    "ConvolutionSpec": lambda t: {
        **_CONV,
        "mode": "convolution",
        "compute_type": "float32",
        "math_type": "fma",
        "reorder_type": "no",
    },
    "CTCLossDescriptor": lambda t: {"spec": dnn.CTCLossSpec("none", max_label_length=20)},
    "CTCLossSpec": lambda t: {
        "normalization": "none",
        "grad_mode": "skip_oob",
        "max_label_length": 20,
        "compute_type": "float32",
    },
    "DropoutDescriptor": lambda t: {
        "handle": t.handle,
        "probability": 0.5,
        "states": t.dropout.array,
        "seed": 3,
    },
    "DeviceProperties": lambda t: {"values": dnn.types.DeviceProperties.named("t4").values},
    "DropoutState": lambda t: {"handle": t.handle, "seed": 3},
    "Engine": lambda t: {"index": 1, "knobs": {"tile_size": 1}},
    "FilterDescriptor": lambda t: {"shape": (3, 2, 3, 3), "dtype": "float32", "layout": "NCHW"},
    "FilterSpec": lambda t: {"shape": (3, 2, 3, 3), "dtype": "float32", "layout": "NCHW"},
    "Graph": lambda t: {"compute_type": "float32", "dynamic_shapes": False},
    "Handle": lambda t: {
        "device": t.device,
        "stream": None,
        "workspace_limit": "1 MiB",
        "check_same_thread": True,
    },
    "LRNDescriptor": lambda t: {"spec": dnn.LRNSpec()},
    "LRNSpec": lambda t: {"n": 5, "alpha": 1e-4, "beta": 0.75, "k": 2.0},
    "OpTensorDescriptor": lambda t: {"spec": dnn.specs.OpTensorSpec("add")},
    "OpTensorSpec": lambda t: {"op": "add", "nan": "propagate", "compute_type": "float32"},
    "PoolingDescriptor": lambda t: {"spec": dnn.PoolingSpec(2), "spatial_rank": 2},
    "PoolingSpec": lambda t: {
        "window": 2,
        "padding": 1,
        "stride": 1,
        "mode": "max",
        "nan": "propagate",
        "ceil_mode": False,
    },
    "Problem": lambda t: {
        "operation": convolution.FORWARD,
        "x": t.x.spec,
        "w": dnn.FilterSpec(t.w.shape),
        "conv": t.conv,
        "alpha": 1.0,
        "y": None,
    },
    "ProblemList": lambda t: {"problems": [t.problem]},
    "RNNDataDescriptor": lambda t: {
        "shape": (4, 2, 3),
        "lengths": (4, 3),
        "dtype": "float32",
        "padding_fill": 0.0,
    },
    "RNNDataSpec": lambda t: {
        "shape": (4, 2, 3),
        "lengths": (4, 3),
        "dtype": "float32",
        "layout": "sequence_major",
        "padding_fill": 0.0,
    },
    "RNNDescriptor": lambda t: {
        "spec": t.lstm,
        "algorithm": "standard",
        "padded_io": True,
        "dropout": None,
    },
    "RNNSpec": lambda t: {
        "cell": "lstm",
        "input_size": 2,
        "hidden_size": 3,
        "num_layers": 2,
        "bidirectional": True,
        "projection_size": 2,
        "bias": "double",
        "input_mode": "linear",
        "dropout": 0.5,
        "clip": (-1, 1),
        "dtype": "float16",
        "compute_type": "float32",
        "math_type": "fma",
    },
    "RNNWeights": lambda t: {"handle": t.handle, "spec": t.lstm},
    "ReduceTensorDescriptor": lambda t: {"spec": dnn.specs.ReduceTensorSpec("add")},
    "ReduceTensorSpec": lambda t: {"op": "add", "nan": "propagate", "compute_type": "float32"},
    "SeqDataDescriptor": lambda t: {"spec": dnn.specs.SeqDataSpec((2, 1, 5, 8), [5, 3])},
    "SeqDataSpec": lambda t: {
        "shape": (2, 1, 5, 8),
        "lengths": [5, 3],
        "dtype": "float16",
        "axes": ("time", "batch", "beam", "vect"),
    },
    "SpatialTransformerDescriptor": lambda t: {
        "spec": dnn.SpatialTransformerSpec((2, 3, 8, 8)),
        "api": t.handle.api,
    },
    "SpatialTransformerSpec": lambda t: {"shape": (2, 3, 8, 8), "dtype": "float16"},
    "TensorDescriptor": lambda t: {
        "shape": (2, 3, 4, 5),
        "dtype": "float32",
        "layout": "NHWC",
        "strides": None,
    },
    "TensorSpec": lambda t: {
        "shape": (2, 3, 4, 5),
        "dtype": "float32",
        "layout": "NHWC",
        "strides": None,
    },
    "TensorTransformDescriptor": lambda t: {
        "spec": dnn.specs.TensorTransformSpec((0, 0, (1, 2), 0), fold=(2, 3)),
        "api": t.handle.api,
    },
    "TensorTransformSpec": lambda t: {
        "padding": (0, 0, (1, 2), 0),
        "fold": (2, 3),
        "direction": "fold",
        "layout": "NHWC",
    },
    "Tuner": lambda t: {
        "handle": t.handle,
        "cache": None,
        "policy": None,
        "measure": True,
    },
    "TuningCache": lambda t: {"path": t.folder / "cache", "read_only": True},
    "TuningPolicy": lambda t: {
        "objective": "device",
        "workspace_limit": "1 MiB",
        "deterministic": True,
        "max_error": 0.1,
        "math_type": "fma",
        "allow_tf32": False,
        "layouts": ("NHWC",),
        "interface": None,
        "flush_l2": False,
        "search": "engines",
    },
    "Workspace": lambda t: {"device": t.device, "workspace_limit": "1 MiB"},
    "CapturedGraph": lambda t: {"handle": t.handle},
    # A problem would start a process.
    "candidates": lambda t: {
        "problems": [],
        "properties": "t4",
        "every": False,
        "cudnn": None,
        "timeout": 5.0,
    },
    "capture": lambda t: {"handle": t.handle},
    "convolution_transpose": lambda t: _convolving(
        t, x=t.y, **_PLAN, output_padding=0, workspace=None
    ),
    "ctc_loss": lambda t: {
        "handle": t.handle,
        "x": t.sequence,
        "labels": [1, 1],
        "label_lengths": [1, 1],
        "input_lengths": [4, 3],
        "ctc": dnn.CTCLossSpec(),
        "algorithm": "deterministic",
        "gradients": True,
        "out": None,
    },
    "dropout_backward": lambda t: {
        "handle": t.handle,
        "dy": t.x,
        "dropout": 0.5,
        "reserve": t.dropout_reserve,
        "dropout_state": t.dropout,
        "out": None,
    },
    "dropout_forward": lambda t: {
        "handle": t.handle,
        "x": t.x,
        "dropout": 0.5,
        "dropout_state": t.dropout,
        "out": None,
        "reserve": None,
    },
    "multi_head_attention_backward_data": lambda t: {
        "handle": t.handle,
        "reserve": t.attend(t.reserves[0]),
        "dy": t.queries,
        "out": None,
    },
    "multi_head_attention_backward_weights": lambda t: {
        "handle": t.handle,
        "reserve": t.reserves[1],
        "out": None,
        "accumulate": False,
    },
    "multi_head_attention_forward.plan": lambda t: {
        "handle": t.handle,
        "spec": t.attention,
        "weights": t.projections,
        "q": t.queries,
        "k": t.queries,
        "v": t.queries,
        "training": True,
    },
    "multi_head_attention_forward": lambda t: {
        "handle": t.handle,
        "spec": t.attention,
        "weights": t.projections,
        "q": t.queries,
        "k": t.queries,
        "v": t.queries,
        "q_lengths": [3, 2],
        "kv_lengths": [2, 3],
        "window": ([0, 0, 0], [1, 2, 3]),
        "residual": t.queries,
        "step": None,
        "training": False,
        "dropout_state": t.dropout,
        "out": None,
        "reserve": None,
    },
    "instance_normalization_backward": lambda t: _normalizing_backward(
        t, t.per_channel, t.per_plane
    ),
    "instance_normalization_forward": lambda t: _normalizing(t, t.per_channel),
    "layer_normalization_backward": lambda t: _normalizing_backward(t, t.per_value, t.per_image),
    "layer_normalization_forward": lambda t: _normalizing(t, t.per_value),
    "matmul": lambda t: {
        "handle": t.handle,
        "a": t.matrix,
        "b": t.matrix,
        "bias": t.matrix,
        "activation": "gelu",
        "alpha": 0.5,
        "a_descale": None,
        "b_descale": None,
        "dtype": "float32",
        "math_type": "tensor_op",
        "out": None,
        "workspace_limit": "1 MiB",
    },
    "pooling_with_indices_forward": lambda t: {
        "handle": t.handle,
        "x": t.images_of_channels,
        "pooling": dnn.PoolingSpec(2),
        "out": None,
        "workspace_limit": "1 MiB",
    },
    "matmul_backward_a": lambda t: _product_gradient(t, "b", "a"),
    "matmul_backward_b": lambda t: _product_gradient(t, "a", "b"),
    "rms_normalization_backward": lambda t: {
        name: value
        for name, value in _normalizing_backward(t, t.per_value, t.per_image).items()
        if name != "mean"
    },
    "rms_normalization_forward": lambda t: _normalizing(t, t.per_value),
    "scaled_dot_product_attention_backward": lambda t: {
        "handle": t.handle,
        **dict.fromkeys(("q", "k", "v", "o", "do"), t.rows),
        "stats": t.row_sums,
        "scale": 0.5,
        "causal": True,
        "bias": t.rows,
        "return_dbias": True,
        "out": None,
        "workspace_limit": "1 MiB",
    },
    "scaled_dot_product_attention_forward": lambda t: {
        "handle": t.handle,
        **dict.fromkeys("qkv", t.rows),
        "scale": 0.5,
        "causal": True,
        "bias": t.rows,
        "return_stats": True,
        "out": None,
        "workspace_limit": "1 MiB",
    },
    "scale_tensor": lambda t: {
        "handle": t.handle,
        "y": t.handle.zeros((2, 3, 5, 4)),  # what comes out is closed
        "alpha": 2.0,
    },
    "transform_filter": lambda t: {
        "handle": t.handle,
        "w": t.w,
        "layout": "NHWC",
        "dtype": "float16",
        "padding": (0, 0, 0, (0, 1)),
        "fold": None,
        "unfold": None,
        "alpha": 1.0,
        "beta": 0.0,
        "out": None,
    },
    "autotuned": lambda t: {
        "handle": t.handle,
        "cache": None,
        "policy": None,
        "measure": True,
    },
    "pack_sequences": lambda t: {"sequences": [np.ones((2, 3)), np.ones((4, 3))]},
    "fold_batch_normalization": lambda t: {
        "w": np.ones((3, 2, 3, 3), np.float16),
        "bias": np.ones(3),
        **{name: np.ones((1, 3, 1, 1), np.float32) for name in ("scale", "shift", "mean", "var")},
        "epsilon": 1e-5,
    },
    "convolution_forward": lambda t: _convolving(t, **_PLAN, bias=None, workspace=None),
    "problems_from_onnx": lambda t: {
        "model": t.model,
        "batch": 2,
        "shapes": {},
        "dtype": "float16",
        "layout": "NHWC",
    },
    "record_problems": lambda t: {},
    "trace": lambda t: {},
    "rnn_backward_data": lambda t: {
        "handle": t.handle,
        "reserve": t.reserve,
        "dy": t.sequences,
        "dhy": None,
        "dcy": None,
        "out": None,
    },
    "rnn_backward_weights": lambda t: {
        "handle": t.handle,
        "reserve": t.reserve_with_gradients,
        "out": None,
        "accumulate": False,
    },
    "rnn_forward": lambda t: _recurrent(
        t,
        weights=t.weights,
        hx=None,
        cx=None,
        algorithm="standard",
        padding_fill=0.0,
        dropout_state=None,
        out=None,
        reserve=None,
        workspace=None,
    ),
    "tune": lambda t: {
        "handle": t.handle,
        "operation": dnn.matmul,
        "a": dnn.TensorSpec((2, 4), "float16"),
        "b": dnn.TensorSpec((4, 2), "float16"),
        "policy": None,
    },
    "tune_model": lambda t: {
        "problems": dnn.ProblemList(),
        "device": t.device,
        "cache": None,
        "policy": None,
        "executor": None,
        "workers": 1,
        "progress": None,
    },
}

# what has methods: its class -> one
INSTANCES: dict[type, Callable[[Things], Any]] = {
    dnn.AlgorithmTable: lambda t: t.table,
    dnn.AttentionSpec: lambda t: t.attention,
    dnn.AttentionWeights: lambda t: t.projections,
    dnn.types.AttentionPlan: lambda t: t.attention_plan,
    dnn.types.CTCLossPlan: lambda t: t.ctc_plan,
    dnn.types.BackendDescriptor: lambda t: dnn.types.BackendDescriptor(
        t.handle, "tensor", unique_id=3
    ),
    dnn.ConvolutionDescriptor: lambda t: dnn.ConvolutionDescriptor(1),
    dnn.ConvolutionSpec: lambda t: t.conv,
    dnn.CTCLossSpec: lambda t: dnn.CTCLossSpec(),
    dnn.DeviceArray: lambda t: t.x,
    dnn.types.DeviceProperties: lambda t: dnn.types.DeviceProperties.named("t4"),
    dnn.DropoutState: lambda t: t.dropout,
    dnn.types.Engine: lambda t: dnn.types.Engine(1, {"tile_size": 1}),
    dnn.FilterSpec: lambda t: dnn.FilterSpec((3, 2, 3, 3)),
    dnn.Graph: lambda t: t.graph,
    dnn.types.GraphTensor: lambda t: t.graph.tensor("images"),
    dnn.Handle: lambda t: t.handle,
    dnn.workbench.ModelTuning: lambda t: dnn.workbench.ModelTuning(()),
    dnn.OperationPlan: lambda t: t.layer_plan,
    dnn.types.PackedSequences: lambda t: dnn.pack_sequences([np.ones((2, 3)), np.ones((4, 3))]),
    dnn.PoolingSpec: lambda t: dnn.PoolingSpec(2),
    dnn.types.Problem: lambda t: t.problem,
    dnn.ProblemList: lambda t: dnn.ProblemList([t.problem]),
    dnn.specs.RNNDataSpec: lambda t: dnn.specs.RNNDataSpec((4, 2, 3)),
    dnn.RNNPlan: lambda t: t.rnn_plan,
    dnn.RNNSpec: lambda t: t.lstm,
    dnn.RNNWeights: lambda t: t.weights,
    dnn.specs.SeqDataSpec: lambda t: dnn.specs.SeqDataSpec((2, 1, 5, 8), [5, 3]),
    dnn.SpatialTransformerSpec: lambda t: dnn.SpatialTransformerSpec((2, 3, 8, 8)),
    dnn.TensorSpec: lambda t: t.x.spec,
    dnn.specs.TensorTransformSpec: lambda t: dnn.specs.TensorTransformSpec(
        (0, 0, (1, 2), 0), fold=(2, 3)
    ),
    dnn.workbench.Trace: lambda t: t.trace,
    dnn.Tuner: lambda t: t.tuner,
    dnn.TuningCache: lambda t: dnn.TuningCache(":memory:"),
    dnn.TuningPolicy: lambda t: dnn.TuningPolicy(),
    dnn.types.Workspace: lambda t: t.handle.workspace,
}
# Methods that need another object than the others of the class.
INSTANCES_OF_METHODS: dict[str, Callable[[Things], Any]] = {"Graph.plan": lambda t: t.product()}
# what a call takes by place, in any number
OPERANDS: dict[str, Callable[[Things], tuple[Any, ...]]] = {
    "OperationPlan.__call__": lambda t: (t.x,),
}
_IMAGES = {"x": "images"}
# What methods of a graph take by name: a text is the name of a tensor where a tensor is taken.
_GRAPH_ARGUMENTS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        (
            *("abs", "elu", "erf", "exp", "gelu", "gen_stats", "identity", "log", "reciprocal"),
            *("relu", "rsqrt", "sigmoid", "softmax", "softmax_with_stats", "softplus", "sqrt"),
            *("swish", "tanh", "transposed"),
        ),
        _IMAGES,
    ),
    "as_tensor": {"value": 2.5},
    "bernoulli": {
        "shape": (2, 2, 5, 5),
        "probability": 0.5,
        "seed": "random",
        "offset": "random",
    },
    "causal": {"scores": "square"},
    "convolution_backward_data": {"w": "filters", "dy": "slopes", "shape": (2, 2, 7, 6)},
    "convolution_backward_filter": {"x": "images", "dy": "slopes", "shape": (3, 2, 1, 1)},
    "convolution_forward": {"x": "images", "w": "filters"},
    "div": {"x": "images", "b": 3.0},
    "from_json": {"text": dnn.Graph().to_json()},
    "from_plain": {"plain": dnn.Graph().to_plain()},
    "index": {"x": "images", "axis": -1},
    "matmul": {"a": "square", "b": "images"},
    "normalization_backward": {
        "mode": "INSTANCE",
        "dy": "images",
        "x": "images",
        "scale": "scale",
        "mean": "statistics",
        "inv_variance": "statistics",
    },
    "normalization_forward": {"mode": "INSTANCE", "x": "images", "scale": "scale", "bias": "scale"},
    "pointwise": {"mode": "ADD", "x": "images", "b": "scale"},
    "reduce": {"operator": "ADD", "x": "images", "axes": (2, -1)},
    "resample_backward": {
        "mode": "MAXPOOL",
        "dy": "images",
        "shape": (2, 2, 5, 4),
        "window": (1, 1),
        "stride": (1, 1),
        "padding": ((0, 0), (0, 0)),
        "x": "images",
        "y": "images",
    },
    "resample_forward": {
        "mode": "MAXPOOL",
        "x": "images",
        "window": (2, 2),
        "stride": (1, 2),
        "padding": ((0, 1), (1, 0)),
    },
    "resample_forward_with_indices": {
        "x": "images",
        "window": (2, 2),
        "stride": (1, 2),
        "padding": ((0, 1), (1, 0)),
    },
    "reshape": {"x": "images", "shape": (4, 20)},
    "tensor": {"name": 0},
    "window": {"scores": "square", "size": 2},
    "within_lengths": {
        "scores": "square",
        "row_lengths": "lengths",
        "column_lengths": "lengths",
    },
    "view": {"tensor": "images", "shape": (2, 2, 4, 5), "strides": (40, 20, 1, 4)},
    "virtual": {"shape": (2, 3)},
}
_TAKE_TENSORS = {
    "a",
    "b",
    "bias",
    "column_lengths",
    "dy",
    "inv_variance",
    "mean",
    "offset",
    "row_lengths",
    "scale",
    "scores",
    "seed",
    "tensor",
    "w",
    "x",
    "y",
}


def _graph_arguments(things: Things, name: str) -> dict[str, Any]:
    """Return the arguments of a method of a graph, which may be called again and again."""
    graph = things.graph
    if name == "plan":
        return {"handle": things.handle}
    if name in ("input", "scalar"):
        more = {"shape": (2, 3)} if name == "input" else {"value": 1.5}
        return {"name": f"new_{len(graph.tensors)}", **more}
    if name == "output":
        tensor = graph.exp(graph.tensor("images"))
        shape = (1, *tensor.shape)
        return {"name": f"new_{len(graph.tensors)}", "tensor": tensor, "shape": shape}
    if name == "where":
        images = graph.tensor("images")
        return {"mask": images >= 0, "x": images, "other": -1.0}
    if name == "node":
        return {
            "kind": "RESHAPE",
            "attributes": {},
            "reads": {"xdesc": graph.tensor("images")},
            "writes": {"ydesc": graph.virtual((4, 20))},
        }
    return {
        argument: graph.tensor(value)
        if argument in _TAKE_TENSORS and isinstance(value, str)
        else value
        for argument, value in _GRAPH_ARGUMENTS[name].items()
    }


GRAPH_METHODS = (*_GRAPH_ARGUMENTS, "input", "node", "output", "plan", "scalar", "where")
# what a call takes by name
NAMED_OPERANDS: dict[str, Callable[[Things], dict[str, Any]]] = {
    "AttentionPlan.__call__": lambda t: {
        "weights": t.projections,
        **dict.fromkeys("qkv", t.queries),
    },
    "CTCLossPlan.__call__": lambda t: {
        "x": t.sequence,
        "labels": [1, 1],
        "label_lengths": [1, 1],
        "input_lengths": [4, 3],
    },
    **{f"Graph.{name}": partial(_graph_arguments, name=name) for name in GRAPH_METHODS},
}
CALLED = {"__call__", "__setitem__"}
KEYED = {
    f"{kind}Weights.{method}"
    for kind in ("Attention", "RNN")
    for method in ("__setitem__", "update")
}
# mappings, which have KeyError what ends things that others need; what the layers above call on the
# way of every call, with streams, keys and addresses
NO_METHODS = {
    "close",
    "read",
    "read_back",
    "keep",
    "set",
    "fill_zero",
    "reserve",
    "lease",
    "begin",
    "finish",
    "named_by",
    "candidates",
    "recall",
    "choose",
    "prepare",
    "run",
}


class Subject(NamedTuple):
    """Something to be called: how, with what by name, and with what by place."""

    call: Callable[..., Any]
    legal: dict[str, Any]
    by_place: tuple[Any, ...] = ()


FUNCTION_NAMES = ("plan", "graph", "problem", "find", "heuristic")


def public_names() -> Iterator[str]:
    """Yield every public callable except errors and enums, and the functions of operations."""
    for name, thing in PUBLIC.items():
        is_other = isinstance(thing, type) and (
            issubclass(thing, (Exception,)) or hasattr(thing, "__members__")
        )
        if name not in NO_CALLABLES | RESULTS and not is_other:
            yield name
        if isinstance(thing, OperationFunction):
            yield from (
                f"{name}.{function_name}"
                for function_name in FUNCTION_NAMES
                if hasattr(thing, function_name)
            )


def function_of(name: str) -> Callable[..., Any]:
    """Return what is public under a name, such as "matmul" or "matmul.plan"."""
    operation, _, function_name = name.partition(".")
    function: Callable[..., Any] = PUBLIC[operation]
    if function_name:
        function = getattr(function, function_name)
    return function


def public_methods() -> Iterator[tuple[type, str]]:
    """Yield the methods of `INSTANCES` that are ours and take arguments."""
    for kind in INSTANCES:
        for name, method in inspect.getmembers(
            kind, lambda member: inspect.isfunction(member) or inspect.ismethod(member)
        ):
            is_ours = (getattr(method, "__module__", "") or "").startswith("cudnnlite")
            called = CALLED | ({"__getitem__"} if kind is dnn.DeviceArray else set())
            if not is_ours or name in NO_METHODS or (name.startswith("_") and name not in called):
                continue
            if len(inspect.signature(method).parameters) > (0 if inspect.ismethod(method) else 1):
                yield kind, name


METHODS = {f"{kind.__name__}.{name}": (kind, name) for kind, name in public_methods()}


def operation_of(name: str) -> str:
    """Return the operation that a public name belongs to; empty if none."""
    function = name.partition(".")[0]
    return function if function in SAMPLES else ""


def is_known(name: str) -> bool:
    """Whether a legal call of a public name is known: its own, its operation's, or its sample's."""
    return name in LEGAL or name.partition(".")[0] in LEGAL or bool(operation_of(name))


SUBJECTS = [*(name for name in public_names() if is_known(name)), *METHODS]


def subject(things: Things, name: str) -> Subject:
    """Return a legal call of a public name, of a function of an operation, or of a method."""
    if name in METHODS:
        return _method(things, name)
    call = function_of(name)
    if name in LEGAL:
        return Subject(call, LEGAL[name](things))
    function = name.partition(".")[0]
    legal = LEGAL[function](things) if function in LEGAL else _sample(things, function)
    # `plan` and the others have fewer arguments than their operation.
    parameters = inspect.signature(call).parameters
    return Subject(call, {n: value for n, value in legal.items() if n in parameters})


def _method(things: Things, name: str) -> Subject:
    kind, method = METHODS[name]
    bound = getattr(INSTANCES_OF_METHODS.get(name, INSTANCES[kind])(things), method)
    parameters = {*inspect.signature(bound).parameters}
    if name in OPERANDS:
        return Subject(bound, {}, OPERANDS[name](things))
    if name in NAMED_OPERANDS:
        return Subject(bound, NAMED_OPERANDS[name](things))
    usual = {"handle": things.handle, "spec": things.lstm}
    legal = {n: value for n, value in usual.items() if n in parameters}
    if method == "replace":
        # It takes fields, which may be others than the constructor's arguments.
        fields: Any = {*things.problem.values}
        if issubclass(kind, FrozenSpec):
            fields = kind.__dataclass_fields__
        made_of = LEGAL[kind.__name__](things)
        legal |= {n: value for n, value in made_of.items() if n in fields}
    return Subject(bound, legal)


def _sample(things: Things, name: str) -> dict[str, Any]:
    """Return the arguments of an operation's sample."""
    case = Case(things.handle, operation_of(name))
    parameters = inspect.signature(function_of(name)).parameters
    options = {n: p.default for n, p in parameters.items() if p.default is not p.empty}
    caller_arrays = {
        case.operation.argument(operand): array
        for operand, array in case.outs.items()
        if operand in case.operation.caller_provided
    }
    return {"handle": things.handle, **options, **case.options, **case.arrays, **caller_arrays}


@contextmanager
def used(result: Any) -> Iterator[None]:
    """Use what was returned, and give it back: a context manager is entered, a table shown."""
    if hasattr(result, "__enter__"):
        with result:
            yield
        return
    repr(result)
    yield
    if hasattr(result, "close"):
        result.close()
