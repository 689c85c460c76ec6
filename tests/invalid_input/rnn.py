"""Invalid arguments of recurrent networks."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from device.problems import PATTERN, fill, with_gaps
from device.test_rnn_plan import FMA, LENGTHS, STANDARD, N, Network, T

import cudnnlite as dnn
from cudnnlite.devices.device_choice import get_device

from . import case
from .case import ARRAY, NOT_SUPPORTED, Case

I, H = 6, 8  # noqa: E741
LSTM = dnn.RNNSpec("lstm", 2, 3)
NO_EMPTY_BATCH = (
    r"none of them 0 \(rnn_forward alone takes N = 0, in inference, not packed; else leave the call "
    r"out\)$"
)
SCRATCH = 1 << 25  # more than any call here needs: a GPU wants 8 MiB for the smallest


class Bench(case.Bench):
    """A good call, patterned outputs, and training calls whose reserve spaces must not change."""

    def __init__(self, handle: dnn.Handle) -> None:
        super().__init__(handle)
        self.network = Network(handle)
        self.out = self.network.outputs()
        self.trained, self.ready = (
            self.network.run(training=True, algorithm="standard") for _ in range(2)
        )
        self.gradients = dnn.rnn_backward_data(handle, self.ready.reserve, self.ready.y)
        for array in (*self.out, *self.gradients):
            fill(array, PATTERN)
        self.watch(
            **dict(zip(("y", "hy", "cy"), self.out, strict=True)),
            **dict(zip(("dx", "dhx", "dcx"), self.gradients, strict=True)),
            reserve=self.trained.reserve.array,
            ready_reserve=self.ready.reserve.array,
        )

    def assert_works(self) -> None:
        self.call()
        self.network.assert_right(self.out)
        self.back(out=None)
        self.weigh()

    @property
    def spec(self) -> dnn.RNNSpec:
        return self.network.spec

    @property
    def weights(self) -> dnn.RNNWeights:
        """New weights."""
        return dnn.RNNWeights(self.handle, self.spec)

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


LENGTH_CASES: dict[str, Case] = {
    "increase_in_packed_data": Case(
        lambda b: b.packed([3, 4], 7), r"lengths=\(3, 4\).*increase.*position 1"
    ),
    "longer_than_the_data": Case(
        lambda b: b.call(lengths=[6, 5, 5, 5]), r"lengths=.*6 is longer.*5 steps"
    ),
    "zero": Case(lambda b: b.call(lengths=[5, 5, 0, 1]), r"lengths=.*0.*1 or more"),
    "too_few": Case(lambda b: b.call(lengths=[5, 5, 3]), r"lengths has 3 entries.*batch of 4"),
    "of_the_steps": Case(
        lambda b: b.call(lengths=[4] * T),
        "lengths has 5 entries for a batch of 4; layout='batch_major' has the batch before the steps",
    ),
    "of_another_order": Case(
        lambda b: dnn.rnn_forward(b.handle, b.network.x, b.spec, b.weights),
        "spec=.* is not an RNNSpec; the order of the operands is handle, spec, weights, x",
    ),
    "sum_below_the_rows": Case(lambda b: b.packed(LENGTHS, 15), r"lengths=.*add up to 14.*15 rows"),
    "missing_in_packed_data": Case(lambda b: b.packed(None), r"lengths"),
    "of_a_plan": Case(lambda b: b.plan(lengths=[5, 5]), r"lengths has 2 entries"),
}

X_CASES: dict[str, Case] = {
    "rank_2": Case(lambda b: b.call(x=b.empty(T, I)), r"\bx\b.*\(5, 6\).*\(T, N, 6\)"),
    "rank_2_batch_major": Case(
        lambda b: b.call(x=b.empty(T, I), layout="batch_major"), r"\bx\b.*\(N, T, 6\)"
    ),
    "rank_3_packed": Case(
        lambda b: b.call(layout="packed", lengths=LENGTHS), r"\bx\b.*\(sum of lengths, 6\)"
    ),
    "vector_size": Case(lambda b: b.call(x=b.empty(T, N, I + 1)), r"\bx\b.*vectors of 6"),
    "float64": Case(
        lambda b: b.call(x=b.empty(T, N, I, dtype="float64")), r"\bx\b.*float64.*float32"
    ),
    "transposed": Case(
        lambda b: b.call(x=b.handle.empty(dnn.TensorSpec((T, N, I), strides=(I, T * I, 1)))),
        r"\bx\b.*C order.*batch_major",
    ),
    "no_steps": Case(lambda b: b.call(x=b.empty(0, N, I)), r"\bx\b.*none of them 0"),
    "no_sequences": Case(
        lambda b: b.plan(x=b.empty(0, T, I), layout="batch_major"), r"\bx\b.*none of them 0"
    ),
    "numpy": Case(lambda b: b.call(x=b.network.x_host), r"\bx\b.*handle\.array", ARRAY),
    "spec": Case(lambda b: b.call(x=b.network.x.spec), r"\bx\b", ARRAY),
    "numpy_of_a_plan": Case(lambda b: b.plan(x=b.network.x_host), r"\bx\b.*handle\.array", ARRAY),
}

STATE_CASES: dict[str, Case] = {
    "hx_layers": Case(lambda b: b.call(hx=b.empty(2, N, H)), r"\bhx\b.*\(1, 4, 8\)"),
    "hx_dtype": Case(
        lambda b: b.call(hx=b.empty(1, N, H, dtype="float64")), r"\bhx\b.*float64.*float32"
    ),
    "hx_strides": Case(
        lambda b: b.call(hx=b.handle.empty(with_gaps((1, N, H), "float32"))), r"\bhx\b"
    ),
    "hx_numpy": Case(lambda b: b.call(hx=b.network.hx_host), r"\bhx\b.*handle\.array", ARRAY),
    "cx_size": Case(lambda b: b.call(cx=b.empty(1, N, H + 1)), r"\bcx\b"),
    "cx_numpy": Case(lambda b: b.call(cx=b.network.cx_host), r"\bcx\b.*handle\.array", ARRAY),
    "dhy_size": Case(lambda b: b.back(dhy=b.empty(1, N, H + 1)), r"\bdhy\b"),
    "dhy_numpy": Case(lambda b: b.back(dhy=b.network.hx_host), r"\bdhy\b", ARRAY),
    "dcy_dtype": Case(lambda b: b.back(dcy=b.empty(1, N, H, dtype="float64")), r"\bdcy\b"),
    "dy_steps": Case(lambda b: b.back(dy=b.empty(T + 1, N, H)), r"\bdy\b.*\(5, 4, 8\)"),
    "dy_dtype": Case(lambda b: b.back(dy=b.empty(T, N, H, dtype="float16")), r"\bdy\b"),
    "dy_numpy": Case(lambda b: b.back(dy=np.zeros((T, N, H), np.float32)), r"\bdy\b", ARRAY),
    "dy_nothing": Case(lambda b: b.back(dy=None), "none of dy, dhy and dcy is given"),
}

SPEC_CASES: dict[str, Case] = {
    "spec_none": Case(lambda b: b.call(spec=None), r"spec=None"),
    "spec_of_a_plan": Case(lambda b: b.plan(spec=None), r"spec=None"),
    "spec_of_weights": Case(lambda b: dnn.RNNWeights(b.handle, {"cell": "lstm"}), r"spec="),
    "no_handle": Case(
        lambda b: dnn.rnn_forward(b.spec, b.handle, b.network.weights, b.network.x),
        r"handle=.*comes first",
    ),
    "no_handle_of_weights": Case(
        lambda b: dnn.RNNWeights(b.spec, b.handle), r"handle=.*comes first"
    ),
    "no_handle_of_dropout": Case(lambda b: dnn.DropoutState(5), r"handle=5.*comes first"),
    "training_1": Case(lambda b: b.call(training=1), r"training=1; allowed: True, False"),
    "training_of_a_plan": Case(lambda b: b.plan(training=None), r"training=None"),
    "layout_unknown": Case(
        lambda b: b.call(layout="NTC"), r"layout='NTC'.*'sequence_major', 'batch_major', 'packed'"
    ),
    "padding_fill_text": Case(lambda b: b.call(padding_fill="x"), r"padding_fill='x'"),
}

WEIGHT_CASES: dict[str, Case] = {
    "hidden_size": Case(lambda b: b.other("lstm", I, 9), r"weights.*hidden_size=9.*hidden_size=8"),
    "cell": Case(lambda b: b.other("gru", I, H), r"weights.*gru.*lstm"),
    "dtype": Case(lambda b: b.other("lstm", I, H, dtype="float64"), r"weights.*float64"),
    "none": Case(lambda b: b.call(weights=None), r"weights.*NoneType"),
    "dict": Case(lambda b: b.call(weights=b.network.values), r"weights.*dict.*from_torch"),
    "gradients_of_others": Case(
        lambda b: b.weigh(out=dnn.RNNWeights(b.handle, dnn.RNNSpec("lstm", I, 9))),
        r"out.*hidden_size=9",
    ),
    "gradients_are_an_array": Case(
        lambda b: b.weigh(out=b.network.weights.array), r"out.*DeviceArray"
    ),
    "gradients_over_the_weights_added": Case(
        lambda b: b.weigh(out=b.network.weights.view(b.handle), accumulate=True), r"out.*weights"
    ),
    "accumulate_without_out": Case(lambda b: b.weigh(accumulate=True), r"accumulate=True.*out"),
}

ALGORITHM_CASES: dict[str, Case] = {
    "unknown": Case(lambda b: b.call(algorithm="NOPE"), r"algorithm='NOPE'.*PERSIST_STATIC"),
    "member_of_a_convolution": Case(
        lambda b: b.call(algorithm=dnn.enums.ConvolutionFwdAlgo.GEMM), r"algorithm"
    ),
    "result_of_a_convolution": Case(
        lambda b: b.call(algorithm=dnn.AlgorithmResult(dnn.enums.ConvolutionFwdAlgo.GEMM, FMA)),
        r"algorithm=GEMM.*STANDARD",
    ),
    "whole_table": Case(
        lambda b: b.call(
            algorithm=dnn.AlgorithmTable(
                [dnn.AlgorithmResult(STANDARD, FMA)], title="t", timing="t"
            )
        ),
        r"algorithm.*table.*best",
    ),
    "math_type_that_undoes_true_float32": Case(
        lambda b: b.call(algorithm=dnn.AlgorithmResult(STANDARD, dnn.MathType.DEFAULT)),
        r"algorithm.*DEFAULT.*undo.*FMA",
    ),
    "conversion_that_was_not_asked_for": Case(
        lambda b: b.call(
            spec=b.spec.replace(math_type="default"),
            algorithm=dnn.AlgorithmResult(STANDARD, dnn.MathType.TENSOR_OP_ALLOW_CONVERSION),
        ),
        r"algorithm.*TENSOR_OP_ALLOW_CONVERSION.*DEFAULT",
    ),
    "row_that_was_refused": Case(
        lambda b: b.call(
            algorithm=dnn.AlgorithmResult(
                dnn.enums.RNNAlgo.PERSIST_STATIC,
                FMA,
                status=dnn.enums.Status.NOT_SUPPORTED,
                why_not="",
            )
        ),
        r"algorithm=PERSIST_STATIC .*cannot be used: NOT_SUPPORTED",
    ),
    "of_a_plan": Case(lambda b: b.plan(algorithm="NOPE"), r"algorithm='NOPE'"),
}

FORBIDDEN: dict[str, Case] = {
    "projection": Case(
        lambda b: b.of_other("lstm", I, H, projection_size=4, algorithm="PERSIST_DYNAMIC"),
        r"PERSIST_DYNAMIC has no projection \(projection_size=4\)",
        NOT_SUPPORTED,
    ),
    "bias": Case(
        lambda b: b.of_other("lstm", I, H, bias="single_input", algorithm="PERSIST_STATIC"),
        r"PERSIST_STATIC wants bias='double'",
        NOT_SUPPORTED,
    ),
    "float64": Case(
        lambda b: b.of_other("tanh", I, H, dtype="float64", algorithm="PERSIST_STATIC_SMALL_H"),
        r"PERSIST_STATIC_SMALL_H does not do float64",
        NOT_SUPPORTED,
    ),
    "unequal_lengths": Case(
        lambda b: b.call(lengths=LENGTHS, algorithm="PERSIST_STATIC", out=None),
        r"PERSIST_STATIC wants sequences of equal, full length",
        NOT_SUPPORTED,
    ),
    "unequal_lengths_in_packed_data": Case(
        lambda b: b.packed(algorithm="PERSIST_STATIC"),
        r"PERSIST_STATIC wants sequences of equal, full length",
        NOT_SUPPORTED,
    ),
    **{
        f"{name}_{cell}_{size}": Case(
            lambda b, name=name, cell=cell, size=size: b.of_other(
                cell, 2, size, algorithm=name, steps=2, batch=2
            ),
            rf"{name} goes up to hidden_size={limit} forward for {cell.upper()}, not {size}",
            NOT_SUPPORTED,
        )
        for name, cell, size, limit in (
            ("PERSIST_STATIC_SMALL_H", "lstm", 200, 192),
            ("PERSIST_STATIC_SMALL_H", "relu", 400, 384),
            ("PERSIST_STATIC", "gru", 1792, 1536),
        )
    },
    "two_reasons": Case(
        lambda b: b.of_other(
            "lstm", I, H, projection_size=4, bias="none", algorithm="PERSIST_STATIC"
        ),
        r"PERSIST_STATIC .*wants bias='double', not NO, has no projection",
        NOT_SUPPORTED,
    ),
}

OUT_CASES: dict[str, Case] = {
    "one": Case(lambda b: b.call(out=b.out[:1]), r"out=.*y, hy, cy"),
    "one_is_none": Case(
        lambda b: b.call(out=(b.out[0], None, b.out[2])), r"out\['hy'\].*NoneType", ARRAY
    ),
    "an_array": Case(lambda b: b.call(out=b.out[0]), r"out=.*y, hy, cy"),
    "y_steps": Case(
        lambda b: b.call(out=b.outs(0, b.empty(T + 1, N, H))), r"out\['y'\].*\(5, 4, 8\)"
    ),
    "y_dtype": Case(
        lambda b: b.call(out=b.outs(0, b.empty(T, N, H, dtype="float16"))), r"out\['y'\].*float16"
    ),
    "y_gaps": Case(
        lambda b: b.call(out=b.outs(0, b.handle.empty(with_gaps((T, N, H), "float32")))),
        r"out\['y'\]",
    ),
    "y_numpy": Case(
        lambda b: b.call(out=b.outs(0, np.zeros((T, N, H), np.float32))), r"out\['y'\]", ARRAY
    ),
    "hy_size": Case(
        lambda b: b.call(out=b.outs(1, b.empty(1, N, H + 1))), r"out\['hy'\].*\(1, 4, 8\)"
    ),
    **{
        f"{name}_read_only": Case(
            lambda b, position=position: b.call(
                out=b.outs(position, b.over(b.out[position], readonly=True))
            ),
            rf"\b{name}\b.*read-only",
            ARRAY,
        )
        for position, name in enumerate(("y", "hy", "cy"))
    },
    "y_is_x": Case(lambda b: square(b, lambda x, y: y), r"\by overlaps x\b"),
    "y_begins_in_x": Case(
        lambda b: square(b, lambda x, y: b.over(y, y.shape, 64)), r"\by overlaps x\b"
    ),
    "hy_is_hx": Case(lambda b: b.call(out=b.outs(1, b.network.hx)), r"\bhy overlaps hx\b"),
    "hy_is_cx": Case(lambda b: b.call(out=b.outs(1, b.network.cx)), r"\bhy overlaps cx\b"),
    "cy_is_cx": Case(lambda b: b.call(out=b.outs(2, b.network.cx)), r"\bcy overlaps cx\b"),
    "cy_is_hy": Case(lambda b: b.call(out=b.outs(2, b.out[1])), r"\bcy overlaps hy\b"),
    "hy_in_y": Case(
        lambda b: b.call(out=b.outs(1, b.over(b.out[0], (1, N, H), 64))), r"\bhy overlaps y\b"
    ),
    "y_in_the_weights": Case(
        lambda b: b.call(out=b.outs(0, b.over(b.network.weights.array, (T, N, H), 16))),
        r"\by overlaps weights\b",
    ),
    "hy_in_the_reserve": Case(
        lambda b: b.train(out=b.outs(1, as_float(b, b.trained.reserve.array, (1, N, H)))),
        r"\bhy overlaps reserve\b",
    ),
    "dx_size": Case(lambda b: b.back(out=(b.empty(T, N, I + 1), *b.gradients[1:])), r"out\['dx'\]"),
    "dx_count": Case(lambda b: b.back(out=b.gradients[:2]), r"out=.*dx, dhx, dcx"),
    "dx_numpy": Case(
        lambda b: b.back(out=(np.zeros((T, N, I), np.float32), *b.gradients[1:])),
        r"out\['dx'\]",
        ARRAY,
    ),
    "dhx_is_hx": Case(
        lambda b: b.back(out=(b.gradients[0], b.network.hx, b.gradients[2])), r"\bdhx overlaps hx\b"
    ),
    "dcx_is_dhx": Case(
        lambda b: b.back(out=(*b.gradients[:2], b.gradients[1])), r"\bdcx overlaps dhx\b"
    ),
    "dhx_is_dhy": Case(lambda b: b.back(dhy=b.gradients[1]), r"\bdhx overlaps dhy\b"),
    "dx_read_only": Case(
        lambda b: b.back(out=(b.over(b.gradients[0], readonly=True), *b.gradients[1:])),
        r"\bdx\b.*read-only",
        ARRAY,
    ),
    "dx_over_y": Case(
        lambda b: b.back(out=(b.over(b.trained.y, (T, N, I)), *b.gradients[1:])),
        r"\bdx overlaps y\b",
    ),
}

SCRATCH_CASES: dict[str, Case] = {
    "limit_0": Case(
        lambda b: limited(b, 0),
        r"STANDARD needs a workspace of .*limit is 0 B",
        dnn.WorkspaceLimitError,
    ),
    "limit_of_a_plan": Case(
        lambda b: limited_plan(b, 0), r"STANDARD needs a workspace", dnn.WorkspaceLimitError
    ),
    "limit_text": Case(lambda b: b.call(workspace_limit="much"), r"workspace_limit='much'"),
    "limit_negative": Case(lambda b: b.call(workspace_limit=-1), r"workspace_limit=-1"),
    "own_too_small": Case(
        lambda b: b.call(algorithm="standard", workspace=b.empty(1, dtype="uint8")),
        r"workspace has 1 B.*needs \d+ bytes",
    ),
    "own_too_small_beside_a_limit": Case(
        lambda b: b.call(
            algorithm="standard", workspace=b.empty(1, dtype="uint8"), workspace_limit="1 GiB"
        ),
        r"workspace has 1 B.*needs \d+ bytes",
    ),
    "own_numpy": Case(lambda b: b.call(workspace=np.zeros(1 << 16, np.uint8)), r"workspace", ARRAY),
    "own_read_only": Case(
        lambda b: b.call(workspace=b.over(scratch(b), readonly=True), algorithm="standard"),
        r"workspace.*read-only",
        ARRAY,
    ),
    "own_gaps": Case(
        lambda b: b.call(
            workspace=b.handle.empty(dnn.TensorSpec((SCRATCH,), "uint8", strides=(2,))),
            algorithm="standard",
        ),
        r"workspace.*gaps",
    ),
    **{
        f"own_over_{name}": Case(
            lambda b, name=name: overlapping_scratch(b, name), rf"workspace overlaps {name}\b"
        )
        for name in ("x", "hx", "cx", "y", "hy", "cy", "weights", "reserve")
    },
}

RESERVE_CASES: dict[str, Case] = {
    "without_training": Case(
        lambda b: b.call(reserve=b.trained.reserve), r"reserve.*training=True"
    ),
    "an_array": Case(
        lambda b: b.train(reserve=b.trained.reserve.array), r"reserve=.*training=True"
    ),
    "too_small": Case(lambda b: longer(b), r"reserve has .*needs"),
    "backward_data_of_nothing": Case(lambda b: b.back(reserve=None), r"reserve=None"),
    "backward_data_twice": Case(
        lambda b: b.back(reserve=b.ready.reserve), r"reserve was overwritten by a backward pass"
    ),
    "backward_weights_of_nothing": Case(lambda b: b.weigh(reserve=None), r"reserve=None"),
    "weights_before_data": Case(lambda b: weights_first(b), r"rnn_backward_data comes before"),
    "weights_before_data_of_a_second_call": Case(
        lambda b: weights_first(b, again=True), r"rnn_backward_data comes before"
    ),
    "closed_forward": Case(
        lambda b: b.train(reserve=closed_reserve(b)), r"closed", dnn.errors.ClosedError
    ),
    "closed_backward_data": Case(
        lambda b: b.back(reserve=closed_reserve(b)), r"RNNReserve.*closed", dnn.errors.ClosedError
    ),
    "closed_backward_weights": Case(
        lambda b: b.weigh(reserve=closed_reserve(b)), r"RNNReserve.*closed", dnn.errors.ClosedError
    ),
}

DROPOUT_CASES: dict[str, Case] = {
    "without_a_state": Case(
        lambda b: b.of_other("lstm", I, H, 2, dropout=0.5, training=True),
        r"dropout_state=None.*0\.5.*DropoutState",
    ),
    "a_seed_for_a_state": Case(lambda b: dropped(b, dropout_state=5), r"dropout_state=5"),
    "a_text_for_a_state_without_dropout": Case(
        lambda b: b.plan(dropout_state="no"), r"dropout_state='no'"
    ),
    "of_a_plan": Case(
        lambda b: b.plan(spec=dnn.RNNSpec("lstm", I, H, 2, dropout=0.5), training=True),
        r"dropout_state=None",
    ),
    "seed_too_large": Case(
        lambda b: dnn.DropoutState(b.handle, 2**64), r"seed=18446744073709551616"
    ),
    "seed_fraction": Case(lambda b: dnn.DropoutState(b.handle, 1.5), r"seed=1\.5.*integer"),
    "restored_from_too_few_bytes": Case(
        lambda b: restored(b, np.zeros(3, np.uint8)), r"saved.*shape \(3,\)"
    ),
    "restored_from_other_types": Case(
        lambda b: restored(b, lambda saved: saved.astype(np.float32)), r"saved is float32"
    ),
    "restored_from_nothing": Case(lambda b: restored(b, None), r"saved"),
}


def called(name: str) -> str:
    """Return the pattern of an operand in a message."""
    return f"out\\['{name[4:]}'\\]" if name.startswith("out_") else name


OPERANDS = ("x", "hx", "cx", "weights", "workspace", "out_y", "out_hy", "out_cy")
LIFETIME_CASES: dict[str, Case] = {
    **{
        f"{name}_on_another_device": Case(
            lambda b, name=name: call_elsewhere(b, name),
            rf"{called(name)}.*emulated",
            ARRAY,
        )
        for name in OPERANDS
    },
    "weights_viewed_from_another_device": Case(
        lambda b: elsewhere(b, lambda other: b.network.weights.view(other)),
        r"weights is on",
        ARRAY,
    ),
    "dropout_state_on_another_device": Case(
        lambda b: elsewhere(b, lambda other: dropped(b, dropout_state=dnn.DropoutState(other))),
        r"dropout_state.*emulated",
    ),
    "reserve_of_another_device": Case(
        lambda b: elsewhere(b, lambda other: b.train(reserve=trained_reserve(other))),
        r"reserve.*emulated",
        ARRAY,
    ),
    "reserve_of_another_device_backward": Case(
        lambda b: elsewhere(b, lambda other: b.back(reserve=trained_reserve(other))),
        r"reserve.*emulated",
        ARRAY,
    ),
    "reserve_of_another_device_for_the_weights": Case(
        lambda b: elsewhere(b, lambda other: b.weigh(reserve=trained_reserve(other, True))),
        r"reserve.*emulated",
        ARRAY,
    ),
    **{
        f"{name}_closed": Case(
            lambda b, name=name: call_with(b, name, closed(operands(b.handle, b.network)[name])),
            "closed",
            dnn.errors.ClosedError,
        )
        for name in OPERANDS
    },
    **{
        f"{name}_closed_before_the_backward_passes": Case(
            lambda b, name=name: back_without(b, name), "closed", dnn.errors.ClosedError
        )
        for name in ("x", "hx", "cx", "weights", "y", "reserve")
    },
    "dropout_state_closed": Case(
        lambda b: dropped(b, dropout_state=closed(dnn.DropoutState(b.handle, 1))),
        "closed",
        dnn.errors.ClosedError,
    ),
    "dropout_state_closed_is_not_saved": Case(
        lambda b: closed(dnn.DropoutState(b.handle, 1)).save(), "closed", dnn.errors.ClosedError
    ),
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


NO_EMPTY_BATCH = (
    r"none of them 0 \(rnn_forward alone takes N = 0, in inference, not packed; else leave the call "
    r"out\)$"
)
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
        return bench.train(**options, reserve=dnn.types.RNNReserve(memory))
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
    return closed(reserve)


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


def closed(owner: Any) -> Any:
    """Close something, twice."""
    owner.close()
    owner.close()
    return owner


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


def call_with(bench: Bench, name: str, array: Any) -> Any:
    """Make the call with one operand replaced."""
    if name.startswith("out_"):
        return bench.call(out=bench.outs(("out_y", "out_hy", "out_cy").index(name), array))
    return bench.call(**{name: array, "algorithm": "standard"})


def elsewhere(bench: Bench, call: Callable[[dnn.Handle], Any]) -> Any:
    """Make a call with a handle on another device: of the same kind where there are two."""
    kind = "emulated:1" if bench.handle.device.kind == "emulated" else "emulated"
    with dnn.Handle(get_device(kind)) as other:
        return call(other)


def call_elsewhere(bench: Bench, name: str) -> Any:
    return elsewhere(
        bench, lambda other: call_with(bench, name, operands(other, bench.network)[name])
    )


def trained_reserve(handle: dnn.Handle, backward: bool = False) -> dnn.types.RNNReserve:
    """Return the reserve space of a training call, after the pass over the data if it is asked."""
    trained = Network(handle).run(training=True, algorithm="standard")
    if backward:
        dnn.rnn_backward_data(handle, trained.reserve, trained.y)
    return trained.reserve


def back_without(bench: Bench, name: str) -> Any:
    """Call a backward pass once something that belongs to the reserve space was closed."""
    network = Network(bench.handle)
    trained = network.run(training=True)
    dy = bench.handle.array(trained.y.numpy())
    owner = getattr(trained if name in ("y", "reserve") else network, name)
    if name == "x":  # only the gradients of the weights need it
        dnn.rnn_backward_data(bench.handle, trained.reserve, dy)
        owner.close()
        return dnn.rnn_backward_weights(bench.handle, trained.reserve)
    owner.close()
    return dnn.rnn_backward_data(bench.handle, trained.reserve, dy)


PLAN_CASES: dict[str, Case] = {
    "out": Case(lambda b: b.plan(out=b.out), r"\bout\b.*plan's calls"),
    "reserve": Case(lambda b: b.plan(reserve=b.trained.reserve), r"\breserve\b.*plan's calls"),
    "workspace": Case(
        lambda b: b.plan(workspace=b.empty(64, dtype="uint8")), r"\bworkspace\b.*plan's calls"
    ),
    "weights": Case(lambda b: b.plan(weights="random"), r"weights of type str"),
    "weights_of_another": Case(
        lambda b: b.plan(weights=dnn.RNNWeights(b.handle, dnn.RNNSpec("lstm", I, 9))),
        r"weights are for",
    ),
    "hx": Case(lambda b: b.plan(hx=dnn.TensorSpec((1, 1, 1))), r"\bhx\b.*needed"),
    "cx": Case(lambda b: b.plan(cx=dnn.TensorSpec((1, 1, 1))), r"\bcx\b.*needed"),
    "shape": Case(
        lambda b: b.plan(x=(5, 2, 3)),
        r"^x=.*neither a spec nor a device array: dnn\.TensorSpec\(shape, dtype\)",
    ),
}
# Making weights and sequences, and what a message suggests.
WAY_OUT_CASES: dict[str, Case] = {
    "zeros_like": Case(
        lambda b: dnn.RNNWeights.zeros_like(None, b.network.weights),
        r"^handle=None is not a Handle",
    ),
    "from_torch": Case(
        lambda b: dnn.RNNWeights.from_torch(b.handle, "lstm", {}), r"^spec='lstm' is not an RNNSpec"
    ),
    "from_torch_of_a_list": Case(
        lambda b: dnn.RNNWeights.from_torch(b.handle, LSTM, []),
        r"state_dict of type .* is no mapping",
    ),
    "from_torch_of_a_method_that_returns_a_list": Case(
        lambda b: dnn.RNNWeights.from_torch(b.handle, LSTM, SimpleNamespace(state_dict=list)),
        r"state_dict of type .* is no mapping",
    ),
    "from_onnx": Case(
        lambda b: dnn.RNNWeights.from_onnx(b.handle, LSTM, 3, 4), r"^W of layer 0 has shape \(\)"
    ),
    "from_keras": Case(
        lambda b: dnn.RNNWeights.from_keras(b.handle, None, []), r"^spec=None is not an RNNSpec"
    ),
    "a ragged list as a weight": Case(
        lambda b: b.weights.update({"layer0.forward.input.f": [[1, 2], [3]]}), r"values\['layer0"
    ),
    "a text as a weight": Case(
        lambda b: b.weights.update({"layer0.forward.input.f": "values"}), r"values\['layer0"
    ),
    "an array as a switch": Case(
        lambda _: dnn.RNNDescriptor(LSTM, padded_io=np.zeros(2)), r"^padded_io=array\("
    ),
    "no sequences": Case(lambda _: dnn.pack_sequences([]), "at least one"),
    "an empty sequence": Case(lambda _: dnn.pack_sequences([np.ones((0, 3))]), "each 1 or more"),
    "sequences of two vector sizes": Case(
        lambda _: dnn.pack_sequences([np.ones((2, 3)), np.ones((2, 4))]), "one vector size"
    ),
    "a vector as a sequence": Case(lambda _: dnn.pack_sequences([np.ones(3)]), "one vector size"),
    "a number as sequences": Case(lambda _: dnn.pack_sequences(7), "is not arrays"),
    "texts as a sequence": Case(lambda _: dnn.pack_sequences([["a"]]), "real numbers"),
    "other rows to unpack": Case(
        lambda _: dnn.pack_sequences([np.ones((3, 2))]).unpack(np.ones((4, 2))), "add up to 3"
    ),
    "no sequences in training": Case(
        lambda b: b.call(x=b.empty(T, 0, I), training=True, out=None), NO_EMPTY_BATCH
    ),
    "a batch first": Case(lambda b: b.call(layout="batch_first"), r"did you mean batch_major\?"),
    "float64": Case(
        lambda b: b.call(x=b.empty(T, N, I, dtype="float64")),
        r"vectors of 6, float32; handle\.array\(x, dtype='float32'\) converts$",
    ),
}

CASES = case.grouped(
    lengths=LENGTH_CASES,
    x=X_CASES,
    state=STATE_CASES,
    spec=SPEC_CASES,
    weights=WEIGHT_CASES,
    algorithm=ALGORITHM_CASES,
    forbidden=FORBIDDEN,
    out=OUT_CASES,
    workspace=SCRATCH_CASES,
    reserve=RESERVE_CASES,
    dropout=DROPOUT_CASES,
    lifetime=LIFETIME_CASES,
    plan=PLAN_CASES,
    ways_out=WAY_OUT_CASES,
)
