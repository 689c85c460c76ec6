"""An invalid argument of a recurrent network is refused by name, before anything is written."""

from __future__ import annotations

import gc
import importlib.util
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.refusals import ARGUMENT, ARRAY, refuses

import cudnnlite as dnn
from cudnnlite.devices.device_choice import get_device

from .problems import PATTERN, fill, memory_of, with_gaps
from .test_rnn_plan import FMA, LAYOUTS, LENGTHS, STANDARD, N, Network, T

NO = dnn.NotSupportedError
HAS_TORCH = importlib.util.find_spec("torch") is not None
I, H = 6, 8  # noqa: E741
Case = tuple[Any, str, Callable[["Bench"], Any]]


class Bench:
    """A good call, patterned outputs, and a training call whose reserve space must not change."""

    def __init__(self, handle: dnn.Handle) -> None:
        self.handle = handle
        self.network = Network(handle)
        self.out = self.network.outputs()
        self.pattern()
        self.trained, self.ready = (
            self.network.run(training=True, algorithm="standard") for _ in range(2)
        )
        self.gradients = dnn.rnn_backward_data(handle, self.ready.reserve, self.ready.y)
        for array in self.gradients:
            fill(array, PATTERN)
        self.reserve_bytes = [
            memory_of(trained.reserve.array) for trained in (self.trained, self.ready)
        ]

    def pattern(self) -> None:
        for array in self.out:
            fill(array, PATTERN)

    @property
    def spec(self) -> dnn.RNNSpec:
        return self.network.spec

    def call(self, **options: Any) -> Any:
        """Call `rnn_forward` with some arguments replaced."""
        return self.network.run(**{"out": self.out} | options)

    def train(self, **options: Any) -> Any:
        """Call it in training, into the reserve space that is there."""
        arguments = {
            "out": self.out,
            "training": True,
            "algorithm": "standard",
            "reserve": self.trained.reserve,
        }
        return self.network.run(**arguments | options)

    def find(self, **options: Any) -> Any:
        return self.network.find(**options)

    def plan(self, **options: Any) -> Any:
        return self.network.plan(**options)

    def back(self, **options: Any) -> Any:
        """Call `rnn_backward_data` with some arguments replaced."""
        arguments = {
            "reserve": self.trained.reserve,
            "dy": self.trained.y,
            "out": tuple(self.gradients),
        }
        return dnn.rnn_backward_data(self.handle, **arguments | options)

    def weigh(self, **options: Any) -> Any:
        """Call `rnn_backward_weights`, after the pass over the data."""
        return dnn.rnn_backward_weights(self.handle, **{"reserve": self.ready.reserve} | options)

    def packed(self, lengths: Any = LENGTHS, rows: int = sum(LENGTHS), **options: Any) -> Any:
        """Call it with packed data of so many rows."""
        x = self.handle.empty((rows, I))
        return self.call(x=x, lengths=lengths, layout="packed", out=None, **options)

    def empty(self, *shape: int, dtype: str = "float32") -> dnn.DeviceArray:
        return self.handle.empty(shape, dtype)

    def over(
        self, array: dnn.DeviceArray, shape: Any = None, offset: int = 0, **options: Any
    ) -> dnn.DeviceArray:
        """Return an array over another one's memory."""
        spec = array.spec if shape is None else dnn.TensorSpec(shape, array.spec.dtype)
        return dnn.DeviceArray(
            spec, array.device, array.ptr + offset, array, self.handle.stream, **options
        )

    def outs(self, position: int, array: Any) -> tuple[Any, ...]:
        """Return `out` with one array replaced."""
        return tuple(array if number == position else item for number, item in enumerate(self.out))

    def other(self, *arguments: Any, **options: Any) -> Any:
        """Call it with the weights of another network."""
        spec = dnn.RNNSpec(*arguments, **{"math_type": "fma"} | options)
        return self.call(weights=dnn.RNNWeights(self.handle, spec))

    def of_other(self, *arguments: Any, steps: int = T, batch: int = N, **options: Any) -> Any:
        """Call another network, with zero weights, by a given algorithm."""
        call = {
            key: options.pop(key) for key in ("algorithm", "lengths", "training") if key in options
        }
        spec = dnn.RNNSpec(*arguments, **{"math_type": "fma"} | options)
        x = self.handle.array(
            np.zeros((steps, batch, spec.input_size), np.float32), dtype=spec.dtype
        )
        return dnn.rnn_forward(self.handle, spec, dnn.RNNWeights(self.handle, spec), x, **call)


def assert_untouched(bench: Bench) -> None:
    bench.handle.synchronize()
    for name, array in zip(("y", "hy", "cy"), bench.out, strict=True):
        assert (memory_of(array) == PATTERN).all(), f"{name} was written"
    for name, array in zip(("dx", "dhx", "dcx"), bench.gradients, strict=True):
        assert (memory_of(array) == PATTERN).all(), f"{name} was written"
    for trained, reserve_bytes in zip(
        (bench.trained, bench.ready), bench.reserve_bytes, strict=True
    ):
        assert (memory_of(trained.reserve.array) == reserve_bytes).all(), (
            "the reserve space was written"
        )


def used_without_workspace(handle: dnn.Handle) -> int:
    """Return the memory in use, without scratch memory that the handle may keep after a refusal."""
    handle.synchronize()
    handle.workspace.release()
    handle.synchronize()
    return handle.device.memory_used()


@pytest.fixture
def bench(handle: dnn.Handle) -> Any:
    """A bench that is compared before and after the test."""
    bench = Bench(handle)
    bench.call()
    bench.network.assert_right(bench.out)
    bench.pattern()
    before = used_without_workspace(handle)
    yield bench
    try:
        assert_untouched(bench)
        if used_without_workspace(handle) > before:
            gc.collect()
        assert (
            used_without_workspace(handle) <= before
        )  # less: an earlier failure's traceback is gone
        bench.call()
        bench.network.assert_right(bench.out)
        bench.back(out=None)
        bench.weigh()
    finally:
        vars(bench).clear()  # pytest keeps the bench for longer than the handle's fixture allows


LENGTH_CASES: dict[str, Case] = {
    "increase_in_packed_data": (
        ARGUMENT,
        r"lengths=\(3, 4\).*increase.*position 1",
        lambda b: b.packed([3, 4], 7),
    ),
    "increase_at_the_end": (
        ARGUMENT,
        r"lengths=.*increase.*position 3",
        lambda b: b.packed([5, 4, 1, 2], 12),
    ),
    "longer_than_the_data": (
        ARGUMENT,
        r"lengths=.*6 is longer.*5 steps",
        lambda b: b.call(lengths=[6, 5, 5, 5]),
    ),
    "zero": (ARGUMENT, r"lengths=.*0.*1 or more", lambda b: b.call(lengths=[5, 5, 0, 1])),
    "zero_in_packed_data": (ARGUMENT, r"lengths=.*1 or more", lambda b: b.packed([5, 5, 0], 10)),
    "negative": (ARGUMENT, r"lengths=.*-1", lambda b: b.call(lengths=[5, 5, 3, -1])),
    "too_few": (
        ARGUMENT,
        r"lengths has 3 entries.*batch of 4",
        lambda b: b.call(lengths=[5, 5, 3]),
    ),
    "too_many": (
        ARGUMENT,
        r"lengths has 5 entries.*batch of 4",
        lambda b: b.call(lengths=[5, 5, 3, 1, 1]),
    ),
    "none_at_all": (ARGUMENT, r"lengths=\(\)", lambda b: b.call(lengths=[])),
    "on_the_device": (
        ARGUMENT,
        r"lengths.*on the device.*host",
        lambda b: b.call(lengths=b.handle.array(np.array(LENGTHS, np.int32))),
    ),
    "fractions": (ARGUMENT, r"lengths=.*integers", lambda b: b.call(lengths=[5.0, 5.0, 3.0, 1.0])),
    "float_array": (
        ARGUMENT,
        r"lengths=.*integers",
        lambda b: b.call(lengths=np.array(LENGTHS, float)),
    ),
    "two_axes": (ARGUMENT, r"lengths=.*integers", lambda b: b.call(lengths=[[5, 5], [3, 1]])),
    "text": (ARGUMENT, r"lengths='5531'.*integers", lambda b: b.call(lengths="5531")),
    "a_number": (ARGUMENT, r"lengths=5 ", lambda b: b.call(lengths=5)),
    "none_among_them": (ARGUMENT, r"lengths=.*integers", lambda b: b.call(lengths=[5, None, 3, 1])),
    "too_large_for_c": (ARGUMENT, r"lengths=", lambda b: b.call(lengths=[2**31 + 5, 5, 5, 5])),
    "sum_below_the_rows": (
        ARGUMENT,
        r"lengths=.*add up to 14.*15 rows",
        lambda b: b.packed(LENGTHS, 15),
    ),
    "sum_above_the_rows": (
        ARGUMENT,
        r"lengths=.*add up to 14.*13 rows",
        lambda b: b.packed(LENGTHS, 13),
    ),
    "missing_in_packed_data": (ARGUMENT, r"lengths", lambda b: b.packed(None)),
    "of_a_plan": (ARGUMENT, r"lengths has 2 entries", lambda b: b.plan(lengths=[5, 5])),
    "of_a_search": (ARGUMENT, r"lengths has 2 entries", lambda b: b.find(lengths=[5, 5])),
    "of_a_search_missing": (
        ARGUMENT,
        r"lengths",
        lambda b: b.find(x=b.empty(14, I), lengths=None, layout="packed"),
    ),
}

X_CASES: dict[str, Case] = {
    "rank_2": (ARGUMENT, r"\bx\b.*\(5, 6\).*\(T, N, 6\)", lambda b: b.call(x=b.empty(T, I))),
    "rank_4": (ARGUMENT, r"\bx\b.*\(T, N, 6\)", lambda b: b.call(x=b.empty(T, N, I, 1))),
    "rank_2_batch_major": (
        ARGUMENT,
        r"\bx\b.*\(N, T, 6\)",
        lambda b: b.call(x=b.empty(T, I), layout="batch_major"),
    ),
    "rank_3_packed": (
        ARGUMENT,
        r"\bx\b.*\(sum of lengths, 6\)",
        lambda b: b.call(layout="packed", lengths=LENGTHS),
    ),
    "vector_size": (ARGUMENT, r"\bx\b.*vectors of 6", lambda b: b.call(x=b.empty(T, N, I + 1))),
    "float16": (
        ARGUMENT,
        r"\bx\b.*float16.*float32",
        lambda b: b.call(x=b.empty(T, N, I, dtype="float16")),
    ),
    "float64": (
        ARGUMENT,
        r"\bx\b.*float64.*float32",
        lambda b: b.call(x=b.empty(T, N, I, dtype="float64")),
    ),
    "int32": (
        ARGUMENT,
        r"\bx\b.*int32.*float32",
        lambda b: b.call(x=b.empty(T, N, I, dtype="int32")),
    ),
    "gaps": (
        ARGUMENT,
        r"\bx\b.*packed in C order",
        lambda b: b.call(x=b.handle.empty(with_gaps((T, N, I), "float32"))),
    ),
    "transposed": (
        ARGUMENT,
        r"\bx\b.*C order.*batch_major",
        lambda b: b.call(x=b.handle.empty(dnn.TensorSpec((T, N, I), strides=(I, T * I, 1)))),
    ),
    "other_batch_than_hx": (
        ARGUMENT,
        r"\bhx\b.*\(1, 3, 8\)",
        lambda b: b.call(x=b.empty(T, N - 1, I), out=None),
    ),
    "no_steps": (ARGUMENT, r"\bx\b.*none of them 0", lambda b: b.call(x=b.empty(0, N, I))),
    "no_sequences": (
        ARGUMENT,
        r"\bx\b.*none of them 0",
        lambda b: b.plan(x=b.empty(0, T, I), layout="batch_major"),
    ),
    "nothing_packed": (ARGUMENT, r"\bx\b|lengths", lambda b: b.packed([], 0)),
    "no_steps_of_a_plan": (
        ARGUMENT,
        r"\bx\b.*none of them 0",
        lambda b: b.plan(x=b.empty(0, N, I)),
    ),
    "no_steps_of_a_search": (
        ARGUMENT,
        r"\bx\b.*none of them 0",
        lambda b: b.find(x=b.empty(0, N, I)),
    ),
    "numpy": (ARRAY, r"\bx\b.*handle\.array", lambda b: b.call(x=b.network.x_host)),
    "list": (ARRAY, r"\bx\b", lambda b: b.call(x=b.network.x_host.tolist())),
    "nothing": (ARRAY, r"\bx\b", lambda b: b.call(x=None)),
    "spec": (ARRAY, r"\bx\b", lambda b: b.call(x=b.network.x.spec)),
    "numpy_of_a_plan": (ARRAY, r"\bx\b.*handle\.array", lambda b: b.plan(x=b.network.x_host)),
    "numpy_of_a_search": (ARRAY, r"\bx\b", lambda b: b.find(x=b.network.x_host)),
}

STATE_CASES: dict[str, Case] = {
    "hx_layers": (ARGUMENT, r"\bhx\b.*\(1, 4, 8\)", lambda b: b.call(hx=b.empty(2, N, H))),
    "hx_batch": (ARGUMENT, r"\bhx\b", lambda b: b.call(hx=b.empty(1, N + 1, H))),
    "hx_size": (ARGUMENT, r"\bhx\b", lambda b: b.call(hx=b.empty(1, N, H - 1))),
    "hx_rank": (ARGUMENT, r"\bhx\b", lambda b: b.call(hx=b.empty(N, H))),
    "hx_dtype": (
        ARGUMENT,
        r"\bhx\b.*float64.*float32",
        lambda b: b.call(hx=b.empty(1, N, H, dtype="float64")),
    ),
    "hx_strides": (
        ARGUMENT,
        r"\bhx\b",
        lambda b: b.call(hx=b.handle.empty(with_gaps((1, N, H), "float32"))),
    ),
    "hx_numpy": (ARRAY, r"\bhx\b.*handle\.array", lambda b: b.call(hx=b.network.hx_host)),
    "cx_layers": (ARGUMENT, r"\bcx\b", lambda b: b.call(cx=b.empty(2, N, H))),
    "cx_size": (ARGUMENT, r"\bcx\b", lambda b: b.call(cx=b.empty(1, N, H + 1))),
    "cx_dtype": (
        ARGUMENT,
        r"\bcx\b.*float16.*float32",
        lambda b: b.call(cx=b.empty(1, N, H, dtype="float16")),
    ),
    "cx_numpy": (ARRAY, r"\bcx\b.*handle\.array", lambda b: b.call(cx=b.network.cx_host)),
    "find_hx": (ARGUMENT, r"\bhx\b", lambda b: b.find(hx=b.empty(2, N, H))),
    "find_cx": (ARRAY, r"\bcx\b", lambda b: b.find(cx=b.network.cx_host)),
    "dhy_size": (ARGUMENT, r"\bdhy\b", lambda b: b.back(dhy=b.empty(1, N, H + 1))),
    "dhy_numpy": (ARRAY, r"\bdhy\b", lambda b: b.back(dhy=b.network.hx_host)),
    "dcy_dtype": (ARGUMENT, r"\bdcy\b", lambda b: b.back(dcy=b.empty(1, N, H, dtype="float64"))),
    "dy_steps": (ARGUMENT, r"\bdy\b.*\(5, 4, 8\)", lambda b: b.back(dy=b.empty(T + 1, N, H))),
    "dy_dtype": (ARGUMENT, r"\bdy\b", lambda b: b.back(dy=b.empty(T, N, H, dtype="float16"))),
    "dy_numpy": (ARRAY, r"\bdy\b", lambda b: b.back(dy=np.zeros((T, N, H), np.float32))),
    "dy_nothing": (ARGUMENT, "none of dy, dhy and dcy is given", lambda b: b.back(dy=None)),
}

SPEC_CASES: dict[str, Case] = {
    "projection_larger_than_hidden": (
        ARGUMENT,
        r"projection_size=9.*hidden_size=8",
        lambda b: dnn.RNNSpec("lstm", I, H, projection_size=9),
    ),
    "projection_of_a_gru": (
        ARGUMENT,
        r"projection_size=4.*LSTM",
        lambda b: dnn.RNNSpec("gru", I, H, projection_size=4),
    ),
    "projection_of_a_relu": (
        ARGUMENT,
        r"projection_size=4.*LSTM",
        lambda b: dnn.RNNSpec("relu", I, H, projection_size=4),
    ),
    "clip_of_a_gru": (
        ARGUMENT,
        r"clip=.*GRU.*LSTM",
        lambda b: dnn.RNNSpec("gru", I, H, clip=(-1, 1)),
    ),
    "skip_of_other_sizes": (
        ARGUMENT,
        r"input_size=6.*skip.*hidden_size=8",
        lambda b: dnn.RNNSpec("lstm", I, H, input_mode="skip"),
    ),
    "spec_none": (ARGUMENT, r"spec=None", lambda b: b.call(spec=None)),
    "spec_text": (ARGUMENT, r"spec='lstm'", lambda b: b.call(spec="lstm")),
    "spec_of_a_convolution": (
        ARGUMENT,
        r"spec=ConvolutionSpec",
        lambda b: b.call(spec=dnn.ConvolutionSpec()),
    ),
    "spec_of_a_plan": (ARGUMENT, r"spec=None", lambda b: b.plan(spec=None)),
    "spec_of_a_search": (ARGUMENT, r"spec=5", lambda b: b.find(spec=5)),
    "spec_of_weights": (ARGUMENT, r"spec=", lambda b: dnn.RNNWeights(b.handle, {"cell": "lstm"})),
    "no_handle": (
        ARGUMENT,
        r"handle=.*comes first",
        lambda b: dnn.rnn_forward(b.spec, b.handle, b.network.weights, b.network.x),
    ),
    "no_handle_of_a_search": (
        ARGUMENT,
        r"handle=.*comes first",
        lambda b: dnn.rnn_forward.find(None, b.spec, b.network.weights, b.network.x),
    ),
    "no_handle_of_weights": (
        ARGUMENT,
        r"handle=.*comes first",
        lambda b: dnn.RNNWeights(b.spec, b.handle),
    ),
    "no_handle_of_dropout": (ARGUMENT, r"handle=5.*comes first", lambda b: dnn.DropoutState(5)),
    "training_1": (ARGUMENT, r"training=1; allowed: True, False", lambda b: b.call(training=1)),
    "training_text": (ARGUMENT, r"training='yes'", lambda b: b.call(training="yes")),
    "training_of_a_plan": (ARGUMENT, r"training=None", lambda b: b.plan(training=None)),
    "training_of_a_search": (ARGUMENT, r"training=0", lambda b: b.find(training=0)),
    "layout_unknown": (
        ARGUMENT,
        r"layout='NTC'.*'sequence_major', 'batch_major', 'packed'",
        lambda b: b.call(layout="NTC"),
    ),
    "layout_number": (ARGUMENT, r"layout=7", lambda b: b.call(layout=7)),
    "layout_none": (ARGUMENT, r"layout=None", lambda b: b.call(layout=None)),
    "layout_list": (ARGUMENT, r"layout=\[", lambda b: b.call(layout=["packed"])),
    "layout_of_a_search": (ARGUMENT, r"layout='NTC'", lambda b: b.find(layout="NTC")),
    "padding_fill_text": (ARGUMENT, r"padding_fill='x'", lambda b: b.call(padding_fill="x")),
    "padding_fill_none": (ARGUMENT, r"padding_fill=None", lambda b: b.call(padding_fill=None)),
    "padding_fill_pair": (ARGUMENT, r"padding_fill=\(0", lambda b: b.call(padding_fill=(0, 0))),
}

WEIGHT_CASES: dict[str, Case] = {
    "hidden_size": (
        ARGUMENT,
        r"weights.*hidden_size=9.*hidden_size=8",
        lambda b: b.other("lstm", I, 9),
    ),
    "input_size": (
        ARGUMENT,
        r"weights.*input_size=7.*input_size=6",
        lambda b: b.other("lstm", 7, H),
    ),
    "cell": (ARGUMENT, r"weights.*gru.*lstm", lambda b: b.other("gru", I, H)),
    "num_layers": (ARGUMENT, r"weights.*num_layers=2", lambda b: b.other("lstm", I, H, 2)),
    "bidirectional": (
        ARGUMENT,
        r"weights.*bidirectional=True",
        lambda b: b.other("lstm", I, H, 1, True),
    ),
    "bias": (ARGUMENT, r"weights.*none", lambda b: b.other("lstm", I, H, bias="none")),
    "single_bias": (
        ARGUMENT,
        r"weights.*single_input",
        lambda b: b.other("lstm", I, H, bias="single_input"),
    ),
    "projection": (
        ARGUMENT,
        r"weights.*projection_size=4",
        lambda b: b.other("lstm", I, H, projection_size=4),
    ),
    "skip": (ARGUMENT, r"weights.*SKIP", lambda b: b.other("lstm", H, H, input_mode="skip")),
    "dtype": (ARGUMENT, r"weights.*float64", lambda b: b.other("lstm", I, H, dtype="float64")),
    "none": (ARGUMENT, r"weights.*NoneType", lambda b: b.call(weights=None)),
    "dict": (ARGUMENT, r"weights.*dict.*from_torch", lambda b: b.call(weights=b.network.values)),
    "device_array": (
        ARGUMENT,
        r"weights.*DeviceArray",
        lambda b: b.call(weights=b.network.weights.array),
    ),
    "of_a_search": (ARGUMENT, r"weights.*NoneType", lambda b: b.find(weights=None)),
    "of_a_search_for_others": (
        ARGUMENT,
        r"weights.*hidden_size=9",
        lambda b: b.find(weights=dnn.RNNWeights(b.handle, dnn.RNNSpec("lstm", I, 9))),
    ),
    "gradients_of_others": (
        ARGUMENT,
        r"out.*hidden_size=9",
        lambda b: b.weigh(out=dnn.RNNWeights(b.handle, dnn.RNNSpec("lstm", I, 9))),
    ),
    "gradients_are_an_array": (
        ARGUMENT,
        r"out.*DeviceArray",
        lambda b: b.weigh(out=b.network.weights.array),
    ),
    "gradients_over_the_weights": (
        ARGUMENT,
        r"out.*weights",
        lambda b: b.weigh(out=b.network.weights),
    ),
    "gradients_over_the_weights_added": (
        ARGUMENT,
        r"out.*weights",
        lambda b: b.weigh(out=b.network.weights.view(b.handle), accumulate=True),
    ),
    "accumulate_without_out": (
        ARGUMENT,
        r"accumulate=True.*out",
        lambda b: b.weigh(accumulate=True),
    ),
}

ALGORITHM_CASES: dict[str, Case] = {
    "unknown": (ARGUMENT, r"algorithm='NOPE'.*PERSIST_STATIC", lambda b: b.call(algorithm="NOPE")),
    "number": (ARGUMENT, r"algorithm=99", lambda b: b.call(algorithm=99)),
    "list": (ARGUMENT, r"algorithm=\[", lambda b: b.call(algorithm=["STANDARD"])),
    "of_another_enum": (ARGUMENT, r"algorithm", lambda b: b.call(algorithm=FMA)),
    "name_of_a_convolution": (
        ARGUMENT,
        r"algorithm='IMPLICIT_GEMM'",
        lambda b: b.call(algorithm="IMPLICIT_GEMM"),
    ),
    "member_of_a_convolution": (
        ARGUMENT,
        r"algorithm",
        lambda b: b.call(algorithm=dnn.ConvolutionFwdAlgo.GEMM),
    ),
    "result_of_a_convolution": (
        ARGUMENT,
        r"algorithm=GEMM.*STANDARD",
        lambda b: b.call(algorithm=dnn.AlgorithmResult(dnn.ConvolutionFwdAlgo.GEMM, FMA)),
    ),
    "whole_table": (
        ARGUMENT,
        r"algorithm.*table.*best",
        lambda b: b.call(
            algorithm=dnn.AlgorithmTable(
                [dnn.AlgorithmResult(STANDARD, FMA)], title="t", timing="t"
            )
        ),
    ),
    **{
        f"{math.name}_undoes_true_float32": (
            ARGUMENT,
            rf"algorithm.*{math.name}.*undo.*FMA",
            lambda b, math=math: b.call(algorithm=dnn.AlgorithmResult(STANDARD, math)),
        )
        for math in dnn.MathType
        if math != FMA
    },
    "conversion_that_was_not_asked_for": (
        ARGUMENT,
        r"algorithm.*TENSOR_OP_ALLOW_CONVERSION.*DEFAULT",
        lambda b: b.call(
            spec=b.spec.replace(math_type="default"),
            algorithm=dnn.AlgorithmResult(STANDARD, dnn.MathType.TENSOR_OP_ALLOW_CONVERSION),
        ),
    ),
    "row_that_was_refused": (
        ARGUMENT,
        r"algorithm=PERSIST_STATIC .*cannot be used: NOT_SUPPORTED",
        lambda b: b.call(
            algorithm=dnn.AlgorithmResult(
                dnn.RNNAlgo.PERSIST_STATIC, FMA, dnn.Status.NOT_SUPPORTED, why_not=""
            )
        ),
    ),
    "row_that_computes_garbage": (
        ARGUMENT,
        r"algorithm=PERSIST_STATIC .*cannot be used: wrong: relative error 1",
        lambda b: b.call(
            algorithm=dnn.AlgorithmResult(
                dnn.RNNAlgo.PERSIST_STATIC, FMA, error=1.0, why_not="wrong: relative error 1"
            )
        ),
    ),
    "of_a_plan": (ARGUMENT, r"algorithm='NOPE'", lambda b: b.plan(algorithm="NOPE")),
    "of_a_search": (ARGUMENT, r"algorithms='NOPE'", lambda b: b.find(algorithms=["NOPE"])),
    "of_a_search_one_name": (ARGUMENT, r"algorithms=", lambda b: b.find(algorithms="STANDARD")),
    "of_a_search_a_number": (ARGUMENT, r"algorithms=5", lambda b: b.find(algorithms=5)),
    "of_a_search_none": (ARGUMENT, r"algorithms", lambda b: b.find(algorithms=[])),
}

# What an algorithm does not do, with the reason: (pattern of the message, network, call).
PERSIST = ("PERSIST_STATIC", "PERSIST_DYNAMIC", "PERSIST_STATIC_SMALL_H")
FORBIDDEN: dict[str, Case] = {
    **{
        f"{name}_projection": (
            NO,
            rf"{name} has no projection \(projection_size=4\)",
            lambda b, name=name: b.of_other("lstm", I, H, projection_size=4, algorithm=name),
        )
        for name in PERSIST
    },
    **{
        f"{name}_bias_{bias}": (
            NO,
            rf"{name} wants bias='double'",
            lambda b, name=name, bias=bias: b.of_other("lstm", I, H, bias=bias, algorithm=name),
        )
        for name in PERSIST
        for bias in ("none", "single_input", "single_recurrent")
    },
    **{
        f"{name}_float64": (
            NO,
            rf"{name} does not do float64",
            lambda b, name=name: b.of_other("tanh", I, H, dtype="float64", algorithm=name),
        )
        for name in PERSIST
        if name != "PERSIST_DYNAMIC"
    },
    **{
        f"{name}_unequal_lengths": (
            NO,
            rf"{name} wants sequences of equal, full length",
            lambda b, name=name: b.call(lengths=LENGTHS, algorithm=name, out=None),
        )
        for name in PERSIST
    },
    **{
        f"{name}_{cell}_{size}": (
            NO,
            rf"{name} goes up to hidden_size={limit} forward for {cell.upper()}, not {size}",
            lambda b, name=name, cell=cell, size=size: b.of_other(
                cell, 2, size, algorithm=name, steps=2, batch=2
            ),
        )
        for name, cell, size, limit in (
            ("PERSIST_STATIC_SMALL_H", "lstm", 200, 192),
            ("PERSIST_STATIC_SMALL_H", "relu", 400, 384),
            ("PERSIST_STATIC", "gru", 1792, 1536),
        )
    },
    "two_reasons": (
        NO,
        r"PERSIST_STATIC .*wants bias='double', not NO, has no projection",
        lambda b: b.of_other(
            "lstm", I, H, projection_size=4, bias="none", algorithm="PERSIST_STATIC"
        ),
    ),
}

OUT_CASES: dict[str, Case] = {
    "one": (ARGUMENT, r"out=.*y, hy, cy", lambda b: b.call(out=b.out[:1])),
    "two": (ARGUMENT, r"out=.*y, hy, cy", lambda b: b.call(out=b.out[:2])),
    "four": (ARGUMENT, r"out=.*y, hy, cy", lambda b: b.call(out=(*b.out, b.empty(1)))),
    "one_is_none": (
        ARRAY,
        r"out\['hy'\].*NoneType",
        lambda b: b.call(out=(b.out[0], None, b.out[2])),
    ),
    "an_array": (ARGUMENT, r"out=.*y, hy, cy", lambda b: b.call(out=b.out[0])),
    "a_number": (ARGUMENT, r"out=5", lambda b: b.call(out=5)),
    "y_steps": (
        ARGUMENT,
        r"out\['y'\].*\(5, 4, 8\)",
        lambda b: b.call(out=b.outs(0, b.empty(T + 1, N, H))),
    ),
    "y_size": (ARGUMENT, r"out\['y'\]", lambda b: b.call(out=b.outs(0, b.empty(T, N, 2 * H)))),
    "y_dtype": (
        ARGUMENT,
        r"out\['y'\].*float16",
        lambda b: b.call(out=b.outs(0, b.empty(T, N, H, dtype="float16"))),
    ),
    "y_gaps": (
        ARGUMENT,
        r"out\['y'\]",
        lambda b: b.call(out=b.outs(0, b.handle.empty(with_gaps((T, N, H), "float32")))),
    ),
    "y_numpy": (
        ARRAY,
        r"out\['y'\]",
        lambda b: b.call(out=b.outs(0, np.zeros((T, N, H), np.float32))),
    ),
    "hy_size": (
        ARGUMENT,
        r"out\['hy'\].*\(1, 4, 8\)",
        lambda b: b.call(out=b.outs(1, b.empty(1, N, H + 1))),
    ),
    "cy_size": (ARGUMENT, r"out\['cy'\]", lambda b: b.call(out=b.outs(2, b.empty(1, N, H + 1)))),
    "swapped": (ARGUMENT, r"out\['y'\]", lambda b: b.call(out=(b.out[1], b.out[0], b.out[2]))),
    **{
        f"{name}_read_only": (
            ARRAY,
            rf"\b{name}\b.*read-only",
            lambda b, position=position: b.call(
                out=b.outs(position, b.over(b.out[position], readonly=True))
            ),
        )
        for position, name in enumerate(("y", "hy", "cy"))
    },
    "y_is_x": (ARGUMENT, r"\by overlaps x\b", lambda b: square(b, lambda x, y: y)),
    "y_begins_in_x": (
        ARGUMENT,
        r"\by overlaps x\b",
        lambda b: square(b, lambda x, y: b.over(y, y.shape, 64)),
    ),
    "hy_is_hx": (ARGUMENT, r"\bhy overlaps hx\b", lambda b: b.call(out=b.outs(1, b.network.hx))),
    "hy_is_cx": (ARGUMENT, r"\bhy overlaps cx\b", lambda b: b.call(out=b.outs(1, b.network.cx))),
    "cy_is_cx": (ARGUMENT, r"\bcy overlaps cx\b", lambda b: b.call(out=b.outs(2, b.network.cx))),
    "cy_is_hy": (ARGUMENT, r"\bcy overlaps hy\b", lambda b: b.call(out=b.outs(2, b.out[1]))),
    "hy_in_y": (
        ARGUMENT,
        r"\bhy overlaps y\b",
        lambda b: b.call(out=b.outs(1, b.over(b.out[0], (1, N, H), 64))),
    ),
    "y_in_the_weights": (
        ARGUMENT,
        r"\by overlaps weights\b",
        lambda b: b.call(out=b.outs(0, b.over(b.network.weights.array, (T, N, H), 16))),
    ),
    "hy_in_the_reserve": (
        ARGUMENT,
        r"\bhy overlaps reserve\b",
        lambda b: b.train(out=b.outs(1, as_float(b, b.trained.reserve.array, (1, N, H)))),
    ),
    "dx_size": (
        ARGUMENT,
        r"out\['dx'\]",
        lambda b: b.back(out=(b.empty(T, N, I + 1), *b.gradients[1:])),
    ),
    "dx_count": (ARGUMENT, r"out=.*dx, dhx, dcx", lambda b: b.back(out=b.gradients[:2])),
    "dx_numpy": (
        ARRAY,
        r"out\['dx'\]",
        lambda b: b.back(out=(np.zeros((T, N, I), np.float32), *b.gradients[1:])),
    ),
    "dhx_is_hx": (
        ARGUMENT,
        r"\bdhx overlaps hx\b",
        lambda b: b.back(out=(b.gradients[0], b.network.hx, b.gradients[2])),
    ),
    "dcx_is_dhx": (
        ARGUMENT,
        r"\bdcx overlaps dhx\b",
        lambda b: b.back(out=(*b.gradients[:2], b.gradients[1])),
    ),
    "dhx_is_dhy": (
        ARGUMENT,
        r"\bdhx overlaps dhy\b",
        lambda b: b.back(dhy=b.gradients[1]),
    ),
    "dx_read_only": (
        ARRAY,
        r"\bdx\b.*read-only",
        lambda b: b.back(out=(b.over(b.gradients[0], readonly=True), *b.gradients[1:])),
    ),
    "dx_over_y": (
        ARGUMENT,
        r"\bdx overlaps y\b",
        lambda b: b.back(out=(b.over(b.trained.y, (T, N, I)), *b.gradients[1:])),
    ),
}

SCRATCH_CASES: dict[str, Case] = {
    "limit_0": (
        dnn.WorkspaceLimitError,
        r"STANDARD needs a workspace of .*limit is 0 B",
        lambda b: limited(b, 0),
    ),
    "limit_1": (
        dnn.WorkspaceLimitError,
        r"STANDARD needs a workspace of .*limit is 1 B",
        lambda b: limited(b, "1 B"),
    ),
    "limit_of_a_plan": (
        dnn.WorkspaceLimitError,
        r"STANDARD needs a workspace",
        lambda b: limited_plan(b, 0),
    ),
    "limit_text": (ARGUMENT, r"workspace_limit='much'", lambda b: b.call(workspace_limit="much")),
    "limit_negative": (ARGUMENT, r"workspace_limit=-1", lambda b: b.call(workspace_limit=-1)),
    "limit_of_a_search": (
        ARGUMENT,
        r"workspace_limit='much'",
        lambda b: b.find(workspace_limit="much"),
    ),
    "own_too_small": (
        ARGUMENT,
        r"workspace has 1 B.*needs \d+ bytes",
        lambda b: b.call(algorithm="standard", workspace=b.empty(1, dtype="uint8")),
    ),
    "own_too_small_beside_a_limit": (
        ARGUMENT,
        r"workspace has 1 B.*needs \d+ bytes",
        lambda b: b.call(
            algorithm="standard", workspace=b.empty(1, dtype="uint8"), workspace_limit="1 GiB"
        ),
    ),
    "own_numpy": (ARRAY, r"workspace", lambda b: b.call(workspace=np.zeros(1 << 16, np.uint8))),
    "own_number": (ARRAY, r"workspace", lambda b: b.call(workspace=1 << 20)),
    "own_read_only": (
        ARRAY,
        r"workspace.*read-only",
        lambda b: b.call(workspace=b.over(scratch(b), readonly=True), algorithm="standard"),
    ),
    "own_gaps": (
        ARGUMENT,
        r"workspace.*gaps",
        lambda b: b.call(
            workspace=b.handle.empty(dnn.TensorSpec((SCRATCH,), "uint8", strides=(2,))),
            algorithm="standard",
        ),
    ),
    **{
        f"own_over_{name}": (
            ARGUMENT,
            rf"workspace overlaps {name}\b",
            lambda b, name=name: overlapping_scratch(b, name),
        )
        for name in ("x", "hx", "cx", "y", "hy", "cy", "weights", "reserve")
    },
}

RESERVE_CASES: dict[str, Case] = {
    "without_training": (
        ARGUMENT,
        r"reserve.*training=True",
        lambda b: b.call(reserve=b.trained.reserve),
    ),
    "an_array": (
        ARGUMENT,
        r"reserve=.*training=True",
        lambda b: b.train(reserve=b.trained.reserve.array),
    ),
    "a_number": (ARGUMENT, r"reserve=5", lambda b: b.train(reserve=5)),
    "whole_output": (ARGUMENT, r"reserve=", lambda b: b.train(reserve=b.trained)),
    "too_small": (ARGUMENT, r"reserve has .*needs", lambda b: longer(b)),
    "backward_data_of_nothing": (ARGUMENT, r"reserve=None", lambda b: b.back(reserve=None)),
    "backward_data_of_an_array": (
        ARGUMENT,
        r"reserve=",
        lambda b: b.back(reserve=b.trained.reserve.array),
    ),
    "backward_data_of_the_output": (ARGUMENT, r"reserve=", lambda b: b.back(reserve=b.trained)),
    "backward_data_twice": (
        ARGUMENT,
        r"reserve was overwritten by a backward pass",
        lambda b: b.back(reserve=b.ready.reserve),
    ),
    "backward_weights_of_nothing": (ARGUMENT, r"reserve=None", lambda b: b.weigh(reserve=None)),
    "weights_before_data": (
        ARGUMENT,
        r"rnn_backward_data comes before",
        lambda b: weights_first(b),
    ),
    "weights_before_data_of_a_second_call": (
        ARGUMENT,
        r"rnn_backward_data comes before",
        lambda b: weights_first(b, again=True),
    ),
    "closed_forward": (dnn.ClosedError, r"closed", lambda b: b.train(reserve=closed_reserve(b))),
    "closed_backward_data": (
        dnn.ClosedError,
        r"RNNReserve.*closed",
        lambda b: b.back(reserve=closed_reserve(b)),
    ),
    "closed_backward_weights": (
        dnn.ClosedError,
        r"RNNReserve.*closed",
        lambda b: b.weigh(reserve=closed_reserve(b)),
    ),
}

DROPOUT_CASES: dict[str, Case] = {
    "without_a_state": (
        ARGUMENT,
        r"dropout_state=None.*0\.5.*DropoutState",
        lambda b: b.of_other("lstm", I, H, 2, dropout=0.5, training=True),
    ),
    "a_seed_for_a_state": (ARGUMENT, r"dropout_state=5", lambda b: dropped(b, dropout_state=5)),
    "a_text_for_a_state_without_dropout": (
        ARGUMENT,
        r"dropout_state='no'",
        lambda b: b.plan(dropout_state="no"),
    ),
    "an_array_for_a_state": (
        ARGUMENT,
        r"dropout_state=",
        lambda b: dropped(b, dropout_state=b.network.x),
    ),
    "of_a_plan": (
        ARGUMENT,
        r"dropout_state=None",
        lambda b: b.plan(spec=dnn.RNNSpec("lstm", I, H, 2, dropout=0.5), training=True),
    ),
    "seed_negative": (ARGUMENT, r"seed=-1", lambda b: dnn.DropoutState(b.handle, -1)),
    "seed_too_large": (
        ARGUMENT,
        r"seed=18446744073709551616",
        lambda b: dnn.DropoutState(b.handle, 2**64),
    ),
    "seed_fraction": (ARGUMENT, r"seed=1\.5.*integer", lambda b: dnn.DropoutState(b.handle, 1.5)),
    "seed_text": (ARGUMENT, r"seed='1'.*integer", lambda b: dnn.DropoutState(b.handle, "1")),
    "seed_none": (ARGUMENT, r"seed=None.*integer", lambda b: dnn.DropoutState(b.handle, None)),
    "restored_from_too_few_bytes": (
        ARGUMENT,
        r"saved.*shape \(3,\)",
        lambda b: restored(b, np.zeros(3, np.uint8)),
    ),
    "restored_from_other_types": (
        ARGUMENT,
        r"saved is float32",
        lambda b: restored(b, lambda saved: saved.astype(np.float32)),
    ),
    "restored_from_two_axes": (
        ARGUMENT,
        r"saved.*shape",
        lambda b: restored(b, lambda saved: saved[None]),
    ),
    "restored_from_nothing": (ARGUMENT, r"saved", lambda b: restored(b, None)),
    "restored_from_text": (ARGUMENT, r"saved", lambda b: restored(b, "states")),
}


def square(
    bench: Bench, place: Callable[[dnn.DeviceArray, dnn.DeviceArray], dnn.DeviceArray]
) -> Any:
    """Call a network whose output is as large as its input, with y somewhere in x."""
    spec = dnn.RNNSpec("gru", H, H, math_type="fma")
    memory = bench.handle.empty((T + 1, N, H))
    x = bench.over(memory, (T, N, H))
    out = (place(x, bench.over(memory, (T, N, H))), bench.out[1])
    return bench.call(
        spec=spec, weights=dnn.RNNWeights(bench.handle, spec), x=x, hx=None, cx=None, out=out
    )


def as_float(bench: Bench, array: dnn.DeviceArray, shape: tuple[int, ...]) -> dnn.DeviceArray:
    return dnn.DeviceArray(
        dnn.TensorSpec(shape), array.device, array.ptr, array, bench.handle.stream
    )


def limited(bench: Bench, limit: Any) -> Any:
    return bench.call(algorithm="standard", workspace_limit=limit)


def limited_plan(bench: Bench, limit: Any) -> Any:
    with bench.plan(algorithm="standard", workspace_limit=limit) as plan:
        return bench.network.call(plan, out=bench.out)


SCRATCH = 1 << 25  # more than any call here needs: a GPU wants 8 MiB for the smallest


def scratch(bench: Bench) -> dnn.DeviceArray:
    """Return more workspace than any call here needs."""
    with bench.plan(algorithm="standard", training=True) as plan:
        return bench.handle.empty((plan.workspace + (1 << 16),), "uint8")


def overlapping_scratch(bench: Bench, name: str) -> Any:
    """Give a workspace that ends in an operand (or begins in it)."""
    large = scratch(bench)
    arrays = {
        "x": bench.network.x,
        "hx": bench.network.hx,
        "cx": bench.network.cx,
        "weights": bench.network.weights.array,
        "y": bench.out[0],
        "hy": bench.out[1],
        "cy": bench.out[2],
        "reserve": bench.trained.reserve.array,
    }
    # the workspace is large; the operand that it must not overlap lies inside
    memory = dnn.DeviceArray(
        arrays[name].spec, large.device, large.ptr + 4096, large, bench.handle.stream
    )
    options: dict[str, Any] = {"algorithm": "standard", "workspace": large}
    if name in ("x", "hx", "cx"):
        return bench.call(**options, **{name: memory})
    if name == "weights":
        weights = bench.network.weights.view(bench.handle)
        weights.array = memory
        return bench.call(**options, weights=weights)
    if name == "reserve":
        return bench.train(**options, reserve=dnn.RNNReserve(memory))
    return bench.call(**options, out=bench.outs(("y", "hy", "cy").index(name), memory))


def longer(bench: Bench) -> Any:
    """Train on more steps than the reserve space has room for."""
    longer = bench.network.with_sequences(None, 10 * T)
    return longer.run(training=True, algorithm="standard", reserve=bench.trained.reserve)


def weights_first(bench: Bench, again: bool = False) -> Any:
    trained = bench.network.run(training=True)
    if again:
        dnn.rnn_backward_data(bench.handle, trained.reserve, trained.y)
        dnn.rnn_backward_weights(bench.handle, trained.reserve)
        trained = bench.network.run(training=True, reserve=trained.reserve)
    return dnn.rnn_backward_weights(bench.handle, trained.reserve)


def closed_reserve(bench: Bench) -> Any:
    reserve = bench.network.run(training=True).reserve
    reserve.close()
    reserve.close()
    return reserve


def dropped(bench: Bench, **options: Any) -> Any:
    spec = dnn.RNNSpec("lstm", I, H, 2, dropout=0.5)
    return dnn.rnn_forward(
        bench.handle,
        spec,
        dnn.RNNWeights(bench.handle, spec),
        bench.network.x,
        training=True,
        **options,
    )


def restored(bench: Bench, saved: Any) -> Any:
    """Restore dropout states from something that `save` did not return; they do not change."""
    state = dnn.DropoutState(bench.handle, 1)
    before = state.save()
    try:
        return state.restore(saved(before) if callable(saved) else saved)
    finally:
        np.testing.assert_array_equal(state.save(), before)


GROUPS = {
    "lengths": LENGTH_CASES,
    "x": X_CASES,
    "state": STATE_CASES,
    "spec": SPEC_CASES,
    "weights": WEIGHT_CASES,
    "algorithm": ALGORITHM_CASES,
    "forbidden": FORBIDDEN,
    "out": OUT_CASES,
    "workspace": SCRATCH_CASES,
    "reserve": RESERVE_CASES,
    "dropout": DROPOUT_CASES,
}


@pytest.mark.parametrize("group", GROUPS)
def test_is_refused(bench: Bench, group: str) -> None:
    """Nothing is written by any case; after all of them the network computes as before."""
    for name, (error, match, call) in GROUPS[group].items():
        print(name)  # pytest shows it if the case fails
        refuses(error, match, lambda refused=call: refused(bench))
        assert_untouched(bench)


# ---------------------------------------------------------------- cells without a cell state


@pytest.mark.parametrize("name", ["gru", "relu", "tanh"])
def test_only_an_lstm_has_a_cell_state(handle: dnn.Handle, name: str) -> None:
    network = Network(handle, name)
    cx = handle.empty((1, N, H))
    with network.plan() as plan:
        for call in (
            lambda: network.run(cx=cx),
            lambda: network.call(plan, cx=cx),
            lambda: network.find(cx=cx),
        ):
            refuses(ARGUMENT, rf"cx is given to a {name.upper()}; only an LSTM", call)
    out = network.run(training=True)
    assert out.cy is None
    dcy = handle.empty((1, N, H))
    refuses(
        ARGUMENT,
        rf"dcy is given to a {name.upper()}",
        lambda: dnn.rnn_backward_data(handle, out.reserve, out.y, None, dcy),
    )
    assert dnn.rnn_backward_data(handle, out.reserve, out.y).dcx is None
    outs = network.outputs()
    refuses(ARGUMENT, r"out=.*y, hy$", lambda: network.run(out=(*outs, handle.empty((1, N, H)))))
    network.assert_right(network.run(out=(*outs, None)))  # what an earlier call returned, as it is


@pytest.mark.parametrize(("name", "hidden"), [("PERSIST_STATIC_SMALL_H", 160)], ids=["small_h"])
def test_an_algorithm_that_cannot_go_back(handle: dnn.Handle, name: str, hidden: int) -> None:
    """Forward in training works, the backward passes are refused: the message says so."""
    network = Network(handle, hidden_size=hidden)
    out = network.run(training=True, algorithm=name)
    network.assert_right(out[:3])
    refuses(
        NO,
        (
            rf"cudnnRNNBackwardData_v8(?s:.)*{name} goes up to hidden_size=128 backward for LSTM, "
            rf"not {hidden}"
        ),
        lambda: dnn.rnn_backward_data(handle, out.reserve, out.y),
    )
    refuses(
        ARGUMENT,
        "rnn_backward_data comes before",
        lambda: dnn.rnn_backward_weights(handle, out.reserve),
    )
    out = network.run(training=True)
    dnn.rnn_backward_data(handle, out.reserve, out.y)


def test_unequal_lengths_are_told_in_every_layout(handle: dnn.Handle) -> None:
    for layout in LAYOUTS:
        network = Network(handle, layout=layout, lengths=LENGTHS)
        refuses(
            NO,
            "PERSIST_STATIC wants sequences of equal",
            lambda n=network: n.run(algorithm="persist_static"),
        )
        network.assert_right(network.run())


# ---------------------------------------------------------- other devices, threads, what was closed


def operands(handle: dnn.Handle, network: Network) -> dict[str, Any]:
    """Return a call's operands on a handle's device, by name; outputs as out_y, ..."""
    y, hy, cy = (dnn.TensorSpec(array.shape) for array in network.outputs())
    return {
        "x": handle.empty((T, N, I)),
        "hx": handle.empty(hy),
        "cx": handle.empty(cy),
        "weights": dnn.RNNWeights(handle, network.spec),
        "workspace": handle.empty((SCRATCH,), "uint8"),
        "out_y": handle.empty(y),
        "out_hy": handle.empty(hy),
        "out_cy": handle.empty(cy),
    }


NAMES = ("x", "hx", "cx", "weights", "workspace", "out_y", "out_hy", "out_cy")


def call_with(bench: Bench, name: str, array: Any) -> Any:
    if name.startswith("out_"):
        position = ("out_y", "out_hy", "out_cy").index(name)
        return bench.call(out=bench.outs(position, array))
    return bench.call(**{name: array, "algorithm": "standard"})


def elsewhere(bench: Bench) -> Any:
    """Return another device: of the same kind where there are two."""
    return get_device("emulated:1" if bench.handle.device.kind == "emulated" else "emulated")


@pytest.mark.parametrize("name", NAMES)
def test_operands_on_another_device(bench: Bench, name: str) -> None:
    other = elsewhere(bench)
    with dnn.Handle(other) as other_handle:
        array = operands(other_handle, bench.network)[name]
        pattern = f"out\\['{name[4:]}'\\]" if name.startswith("out_") else name
        refuses(ARRAY, rf"{pattern}.*{other}", lambda: call_with(bench, name, array))


def test_weights_are_not_viewed_from_another_device(bench: Bench) -> None:
    other = elsewhere(bench)
    with dnn.Handle(other) as other_handle:
        refuses(
            ARRAY,
            rf"weights.*{bench.handle.device}",
            lambda: bench.network.weights.view(other_handle),
        )


def test_a_dropout_state_on_another_device(bench: Bench) -> None:
    other = elsewhere(bench)
    with dnn.Handle(other) as other_handle:
        state = dnn.DropoutState(other_handle, 1)
        refuses(ARGUMENT, rf"dropout_state.*{other}", lambda: dropped(bench, dropout_state=state))


@pytest.mark.parametrize("way", ["forward", "backward_data", "backward_weights"])
def test_a_reserve_of_another_device(bench: Bench, way: str) -> None:
    other = elsewhere(bench)
    with dnn.Handle(other) as other_handle:
        network = Network(other_handle)
        trained = network.run(training=True, algorithm="standard")
        if way == "backward_weights":
            dnn.rnn_backward_data(other_handle, trained.reserve, trained.y)
        dy = bench.handle.array(trained.y.numpy())
        calls: dict[str, Any] = {
            "forward": lambda: bench.train(reserve=trained.reserve),
            "backward_data": lambda: bench.back(reserve=trained.reserve, dy=dy),
            "backward_weights": lambda: bench.weigh(reserve=trained.reserve),
        }
        refuses(ARRAY, rf"reserve.*{other}", calls[way])


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
@pytest.mark.parametrize("name", ["x", "hx", "cx", "out_y"])
def test_torch_tensors_on_the_host(bench: Bench, name: str) -> None:
    import torch

    shape = {"x": (T, N, I), "out_y": (T, N, H)}.get(name, (1, N, H))
    pattern = "out\\['y'\\]" if name == "out_y" else name
    refuses(ARRAY, rf"{pattern}.*host array", lambda: call_with(bench, name, torch.zeros(shape)))


@pytest.mark.parametrize("name", NAMES)
def test_closed_operands(bench: Bench, name: str) -> None:
    array = operands(bench.handle, bench.network)[name]
    array.close()
    array.close()
    refuses(dnn.ClosedError, "closed", lambda: call_with(bench, name, array))


@pytest.mark.parametrize("name", ["x", "hx", "cx", "weights", "y", "reserve"])
def test_operands_closed_before_the_backward_passes(bench: Bench, name: str) -> None:
    """They belong to the reserve space; what was closed is not read."""
    network = Network(bench.handle)
    trained = network.run(training=True)
    dy = bench.handle.array(trained.y.numpy())
    owner = getattr(trained if name in ("y", "reserve") else network, name)
    if name == "x":  # only the gradients of the weights need it
        dnn.rnn_backward_data(bench.handle, trained.reserve, dy)
        owner.close()
        refuses(
            dnn.ClosedError,
            "closed",
            lambda: dnn.rnn_backward_weights(bench.handle, trained.reserve),
        )
        return
    owner.close()
    refuses(
        dnn.ClosedError, "closed", lambda: dnn.rnn_backward_data(bench.handle, trained.reserve, dy)
    )


def test_operands_closed_after_a_good_call(bench: Bench) -> None:
    """The plan knows them already; that does not help."""
    network = Network(bench.handle)
    with network.plan() as plan:
        for name in ("x", "hx", "cx", "weights"):
            network.call(plan)
            getattr(network, name).close()
            refuses(dnn.ClosedError, "closed", lambda: network.call(plan))
            refuses(dnn.ClosedError, "closed", network.run)
            fresh = Network(bench.handle)
            setattr(network, name, getattr(fresh, name))


def test_dropout_states_closed_after_a_good_call(bench: Bench) -> None:
    spec = dnn.RNNSpec("lstm", I, H, 2, dropout=0.5, math_type="fma")
    state = dnn.DropoutState(bench.handle, 1)
    weights = dnn.RNNWeights(bench.handle, spec)
    options: dict[str, Any] = {"training": True, "dropout_state": state}
    dnn.rnn_forward(bench.handle, spec, weights, bench.network.x, **options)
    state.close()
    state.close()
    refuses(
        dnn.ClosedError,
        "closed",
        lambda: dnn.rnn_forward(bench.handle, spec, weights, bench.network.x, **options),
    )
    refuses(dnn.ClosedError, "closed", state.save)


def test_closed_handle(bench: Bench, device: Any) -> None:
    other = dnn.Handle(device)
    network = Network(other)
    trained = network.run(training=True)
    out = network.run()
    other.close()
    other.close()
    calls: list[Callable[[], Any]] = [
        network.run,
        network.find,
        network.plan,
        lambda: dnn.rnn_backward_data(other, trained.reserve, trained.y),
        lambda: dnn.rnn_backward_weights(other, trained.reserve),
        lambda: dnn.RNNWeights(other, network.spec),
        lambda: dnn.DropoutState(other, 1),
        lambda: network.weights.view(other),
    ]
    for call in calls:
        refuses(dnn.ClosedError, "Handle was closed", call)
    network.assert_right(out)  # arrays outlive the handle that made them


def test_another_thread(bench: Bench) -> None:
    network = bench.network
    plan = network.plan()
    calls: list[Callable[[], Any]] = [
        bench.call,
        bench.train,
        bench.find,
        bench.back,
        bench.weigh,
        bench.plan,
        lambda: network.call(plan, out=bench.out),
        lambda: dnn.RNNWeights(bench.handle, bench.spec),
        lambda: dnn.DropoutState(bench.handle, 1),
        lambda: network.weights.view(bench.handle),
    ]
    caught: list[BaseException] = []

    def run() -> None:
        for call in calls:
            try:
                call()
            except BaseException as error:
                caught.append(error.with_traceback(None))

    with plan:
        thread = threading.Thread(target=run, name="someone else")
        thread.start()
        thread.join()
    assert [type(error) for error in caught] == [dnn.ThreadError] * len(calls)
    assert all("someone else" in str(error) for error in caught)


# ---------------------------------------------------------------- a refusal costs nothing


def test_a_refused_call_leaves_the_earlier_ones_reserve(bench: Bench) -> None:
    """Nothing was written, so the backward passes of the call before are still possible."""
    network = bench.network
    fresh = network.run(training=True, algorithm="standard")
    refusals: list[tuple[Any, str, dict[str, Any]]] = [
        (ARGUMENT, "hy overlaps hx", {"out": bench.outs(1, network.hx)}),
        (ARGUMENT, r"out\['y'\]", {"out": bench.outs(0, bench.empty(1, 1, 1))}),
        (ARGUMENT, "lengths", {"lengths": [1]}),
        (ARRAY, r"\bx\b", {"x": network.x_host}),
        (
            ARGUMENT,
            "workspace",
            {"workspace": bench.empty(1, dtype="uint8"), "workspace_limit": "1 GiB"},
        ),
        (dnn.WorkspaceLimitError, "limit", {"workspace_limit": 0}),
    ]
    for error, match, options in refusals:
        refuses(error, match, lambda options=options: bench.train(reserve=fresh.reserve, **options))
        assert fresh.reserve.call.y is fresh.y, match
    dnn.rnn_backward_data(bench.handle, fresh.reserve, fresh.y)
    dnn.rnn_backward_weights(bench.handle, fresh.reserve)


def test_a_failed_call_takes_the_reserve(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reserve space that a failed call may have written serves no backward pass.

    It can serve another call.
    """
    from .test_rnn_plan import refuse

    with dnn.Handle(bench.handle.device) as other:
        network = Network(other)
        trained = network.run(training=True, algorithm="standard")
        with monkeypatch.context() as patch:
            refuse(patch, other, "cudnnRNNForward", dnn.Status.EXECUTION_FAILED, STANDARD)
            refuses(
                dnn.ExecutionError,
                "cudnnRNNForward",
                lambda: network.run(
                    training=True, algorithm="standard", padding_fill=1, reserve=trained.reserve
                ),
            )
        for call in (
            lambda: dnn.rnn_backward_data(other, trained.reserve, trained.y),
            lambda: dnn.rnn_backward_weights(other, trained.reserve),
        ):
            refuses(dnn.ClosedError, "RNNReserve holds no forward call: that failed", call)
        again = network.run(training=True, algorithm="standard", reserve=trained.reserve)
        assert again.reserve is trained.reserve
        dnn.rnn_backward_data(other, again.reserve, again.y)
