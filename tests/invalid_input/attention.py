"""Invalid arguments of multi-head attention."""

from __future__ import annotations

from typing import Any

import cudnnlite as dnn

from . import case
from .case import NOT_SUPPORTED, Case

SIZES: dict[str, Any] = {
    "heads": 2,
    "q_size": 5,
    "k_size": 6,
    "v_size": 7,
    "q_proj_size": 4,
    "v_proj_size": 3,
    "o_proj_size": 9,
    "dtype": "float64",
    "math_type": "fma",
}
FORWARD = dnn.multi_head_attention_forward
BACKWARD = (dnn.multi_head_attention_backward_data, dnn.multi_head_attention_backward_weights)


def spec_of(**changes: Any) -> dnn.AttentionSpec:
    """Return a spec with some fields replaced."""
    return dnn.AttentionSpec(**SIZES | changes)


class Bench(case.Bench):
    """The operands of a call, a patterned output, and a reserve space before each backward pass."""

    def __init__(self, handle: dnn.Handle) -> None:
        super().__init__(handle)
        self.spec = spec_of()
        self.weights = dnn.AttentionWeights(handle, self.spec)
        shapes = ((3, 2, 4, 5), (3, 1, 6, 6), (3, 1, 6, 7))
        self.operands = dict(
            zip("qkv", (handle.full(shape, 0.5, "float64") for shape in shapes), strict=True)
        )
        self.out = handle.full((3, 2, 4, 9), 7.0, "float64")
        self.y, self.reserve = self.call(training=True, out=None)
        self.ready = self.call(training=True, out=None).reserve
        BACKWARD[0](handle, self.ready, self.y)
        self.watch(**self.operands, weights=self.weights.array, out=self.out, y=self.y)

    def call(self, **changes: Any) -> Any:
        """Call the operation with some arguments replaced."""
        arguments = {"spec": self.spec, "weights": self.weights, "out": self.out} | self.operands
        return FORWARD(self.handle, **arguments | changes)

    def plan(self, **changes: Any) -> Any:
        """Make a plan with some arguments replaced."""
        arguments = {"spec": self.spec, "weights": None} | self.operands
        return FORWARD.plan(self.handle, **arguments | changes)

    def empty64(self, *shape: int) -> dnn.DeviceArray:
        """Return a new array of float64."""
        return self.empty(*shape, dtype="float64")

    def back(self, reserve: Any, dy: Any = None) -> Any:
        """Call the backward pass over the data."""
        return BACKWARD[0](self.handle, reserve, self.y if dy is None else dy)

    def weigh(self, reserve: Any, **options: Any) -> Any:
        """Call the backward pass that makes gradients of the weights."""
        return BACKWARD[1](self.handle, reserve, **options)

    def back_by_another_plan(self) -> Any:
        """Call a backward pass of a plan with the reserve space of a call."""
        spec = spec_of(bias=True)
        with self.plan(spec=spec, training=True) as plan:
            return plan.backward_data(self.reserve, self.y)

    def call_a_plan(self, **changes: Any) -> Any:
        """Call a plan with some operands replaced."""
        with self.plan() as plan:
            return plan(self.weights, **self.operands | changes)

    def assert_works(self) -> None:
        self.back(self.reserve)
        self.weigh(self.reserve)
        self.call()


CALL_CASES: dict[str, Case] = {
    "q_lengths": Case(lambda b: b.call(q_lengths=[5] * 6), "q_lengths=.*; needed: 6 of at most 4"),
    "q_lengths_too_few": Case(
        lambda b: b.call(q_lengths=[4] * 3), "q_lengths=.*; needed: 6 of at most 4"
    ),
    "kv_lengths": Case(lambda b: b.call(kv_lengths=[6, 6, -1]), "kv_lengths=-1; allowed: 0"),
    "kv_lengths_number": Case(lambda b: b.call(kv_lengths=6), "kv_lengths=6 is not a sequence"),
    "window": Case(lambda b: b.call(window=([0], [1])), "window has 1 and 1 entries"),
    "window_numbers": Case(lambda b: b.call(window=[0, 1]), "window=.* is not a pair"),
    "step": Case(lambda b: b.call(step=4), "step=4; allowed: below 4"),
    "step_in_training": Case(
        lambda b: b.call(step=1, training=True), "step is given with training=True"
    ),
    "dropout_state": Case(
        lambda b: b.call(dropout_state=3), "dropout_state=3 is not a DropoutState"
    ),
    "no_dropout_state": Case(
        lambda b: b.call(spec=spec_of(dropout=0.5), training=True), "dropout_state is not given"
    ),
    "out": Case(lambda b: b.call(out=b.empty(3, 2, 4, 9)), "out is TensorSpec"),
    "residual": Case(lambda b: b.call(residual=b.empty64(3, 2, 4, 5)), "residual is TensorSpec"),
    "residual_beside_another_size": Case(
        lambda b: b.call(residual=b.empty64(3, 2, 4, 9)), "residual with outputs of 9"
    ),
    "k": Case(lambda b: b.call(k=b.empty64(3, 2, 6, 6)), r"k is .*; needed: .*\(3, 1, 6, 6\)"),
    "v": Case(lambda b: b.call(v=b.empty64(3, 1, 5, 7)), "v is .*; needed"),
    "type_of_q": Case(lambda b: b.call(q=b.empty(3, 2, 4, 5)), "q is .*; needed"),
    "rank_of_q": Case(
        lambda b: b.call(q=b.empty64(24, 5)), "q is .*; needed: .batch, beam, time, vector"
    ),
    "gaps_in_q": Case(
        lambda b: b.call(
            q=b.handle.empty(dnn.TensorSpec((3, 2, 4, 5), "float64", strides=(80, 40, 10, 2)))
        ),
        "packed in one order",
    ),
    "size_of_q_in_rank_3": Case(
        lambda b: FORWARD(b.handle, dnn.AttentionSpec(1, 2), None, *[b.empty(2, 3, 3)] * 3),
        r"q is TensorSpec\(\(2, 3, 3\), 'float32', 'NCW'\); needed: \(2, 3, 2\) in float32",
    ),
    "weights": Case(lambda b: b.call(weights=3), "weights of type int is no AttentionWeights"),
    "weights_of_another": Case(lambda b: b.call(spec=spec_of(bias=True)), "weights are for"),
    "spec": Case(lambda b: b.call(spec=3), "spec=3 is not an AttentionSpec"),
    "max_batch": Case(
        lambda b: b.call(spec=spec_of(max_batch=2)), "max_batch=2 of the spec; there are 3"
    ),
    "compute_type": Case(
        lambda b: b.call(spec=spec_of(compute_type="float32")),
        "spec = AttentionSpec",
        NOT_SUPPORTED,
    ),
}
BACKWARD_CASES: dict[str, Case] = {
    "weights_first": Case(lambda b: b.weigh(b.reserve), "reserve has no gradients yet"),
    "dy": Case(lambda b: b.back(b.reserve, b.operands["q"]), "dy is"),
    "twice": Case(lambda b: b.back(b.ready), "overwritten by a backward pass over the data"),
    "out": Case(
        lambda b: b.weigh(b.ready, out=dnn.AttentionWeights(b.handle, spec_of(bias=True))),
        "out are for",
    ),
    "accumulate": Case(lambda b: b.weigh(b.ready, accumulate=True), "accumulate=True needs out"),
    "closed": Case(lambda b: b.weigh(closed_reserve(b)), "closed", dnn.errors.ClosedError),
    "plan_of_another": Case(lambda b: b.back_by_another_plan(), "reserve is of"),
    "plan": Case(
        lambda b: BACKWARD[0].plan(b.handle, b.reserve, None), r"forward\.plan\(.*training=True"
    ),
    "plan_for_the_weights": Case(
        lambda b: BACKWARD[1].plan(b.handle, b.reserve), r"forward\.plan\(.*training=True"
    ),
}
PLAN_CASES: dict[str, Case] = {
    "out": Case(lambda b: b.plan(out=b.out), "out.*plan's calls"),
    "residual": Case(lambda b: b.plan(residual=b.out), "residual.*plan's calls"),
    "step": Case(lambda b: b.plan(step=0), "step.*plan's calls"),
    "training": Case(lambda b: b.plan(training=1), "training=1"),
    "weights": Case(
        lambda b: b.plan(weights=dnn.AttentionWeights(b.handle, spec_of(bias=True))),
        "weights are for",
    ),
    "other_q": Case(lambda b: b.call_a_plan(q=b.empty64(3, 2, 5, 5)), "q is"),
    "other_v": Case(lambda b: b.call_a_plan(v=b.empty64(3, 2, 6, 7)), "v is"),
    "no_q": Case(lambda b: b.call_a_plan(q=None), r"\bq\b", case.ARRAY),
    "problem": Case(
        lambda b: FORWARD.problem(b.spec, None, *b.operands.values()), "has no Problem"
    ),
}


def closed_reserve(bench: Bench) -> Any:
    reserve = bench.call(training=True, out=None).reserve
    reserve.close()
    return reserve


CASES = case.grouped(call=CALL_CASES, backward=BACKWARD_CASES, plan=PLAN_CASES)
