"""`representative_problem`: few problems stand for many that the same algorithms can do."""

import itertools

import numpy as np
import pytest

from cudnnlite import (
    FilterSpec,
    RNNSpec,
    TensorSpec,
    convolution_forward,
    rnn_forward,
    scaled_dot_product_attention_forward,
)
from cudnnlite.enums import RNNAlgo
from cudnnlite.graph.problem import GraphProblem
from cudnnlite.specs import RNNDataSpec
from cudnnlite.specs.rnn_rules import why_not
from cudnnlite.workbench.tuning.representative_problem import representative_problem, rounded

LSTM = RNNSpec("lstm", 6, 8)
LAYOUTS = ("sequence_major", "batch_major", "packed")


def posed(lengths, steps=None, layout="sequence_major", **options):
    steps = max(lengths) if steps is None else steps
    shape = {
        "packed": (sum(lengths), 6),
        "batch_major": (len(lengths), steps, 6),
        "sequence_major": (steps, len(lengths), 6),
    }[layout]
    return rnn_forward.problem(
        LSTM, None, RNNDataSpec(shape, lengths, layout=layout, **options), training=True
    )


def test_a_convolution_stands_for_itself():
    problem = convolution_forward.problem(TensorSpec((2, 4, 7, 6)), FilterSpec((3, 4, 3, 3)))
    assert representative_problem(problem) is problem


def test_graphs_with_other_seeds_of_dropout_are_one():
    q = TensorSpec((1, 2, 8, 16), "float16")

    def attention(**options):
        graph = scaled_dot_product_attention_forward.graph(q, q, q, **options)
        return GraphProblem(graph)

    first, second = (representative_problem(attention(dropout=0.25, seed=seed)) for seed in (1, 2))
    assert first == second == attention(dropout=0.25, seed=0)
    assert representative_problem(first) is first
    assert first != representative_problem(attention(dropout=0.5, seed=1))
    plain = attention()
    assert representative_problem(plain) is plain


def test_numbers_are_rounded_to_the_nearest_of_few():
    steps = sorted({*(2**n for n in range(20)), *(3 * 2**n for n in range(20))})
    for number in [*range(1, 2000), 10**5 + 1]:
        near = rounded(number)
        assert near in steps
        assert abs(near - number) == min(abs(step - number) for step in steps)
    assert [rounded(step) for step in steps] == steps
    assert [rounded(n) for n in range(1, 17)] == [
        1,
        2,
        3,
        4,
        4,
        6,
        6,
        8,
        8,
        8,
        12,
        12,
        12,
        12,
        16,
        16,
    ]


@pytest.mark.parametrize("layout", LAYOUTS[:2])
def test_full_sequences_stay_full(layout):
    representative = representative_problem(posed((5, 5, 5), layout=layout))
    assert representative == posed((4, 4, 4), layout=layout)
    assert representative.data.is_full


def all_lengths(most, batch):
    return itertools.product(range(1, most + 1), repeat=batch)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_what_the_algorithms_ask_for_is_kept(layout, batch):
    """The representative problem has full sequences exactly where the problem has them.

    An algorithm that needs full sequences then does both problems, or none.  The rest of the
    problem is unchanged.
    """
    for lengths in all_lengths(6, batch):
        if layout == "packed":
            lengths = tuple(sorted(lengths, reverse=True))
        for room in (0,) if layout == "packed" else (0, 1, 2):
            problem = posed(lengths, max(lengths) + room, layout, padding_fill=-1.0)
            representative = representative_problem(problem)
            assert representative.data.is_full == problem.data.is_full, problem
            for algorithm in (RNNAlgo.STANDARD, RNNAlgo.PERSIST_STATIC):
                before, after = (
                    why_not(LSTM, algorithm, full=p.data.is_full) for p in (problem, representative)
                )
                assert before == after
            assert (representative.data.batch, representative.data.layout) == (
                problem.data.batch,
                problem.data.layout,
            )
            assert representative.data.padding_fill == -1.0
            assert representative.replace(data=problem.data) == problem


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "lengths", [(5, 2, 1), (7, 7, 7, 1), (1000, 3), (17,) * 40 + (16,), (3, 2)], ids=len
)
def test_lengths_that_differ_are_spread_evenly(layout, lengths):
    data = representative_problem(posed(lengths, layout=layout)).data
    steps = rounded(max(lengths))
    assert data.max_length == data.lengths[0] == steps
    assert list(data.lengths) == sorted(data.lengths, reverse=True)
    falls = -np.diff((*data.lengths, 0))
    assert falls.min() >= 0
    assert falls.max() - falls.min() <= 1


@pytest.mark.parametrize("steps", [2, 3, 5, 9])
def test_one_sequence_that_ends_early(steps):
    """Padding is all that tells it from a full one."""
    data = representative_problem(posed((1,), steps)).data
    assert data.max_length == rounded(steps)
    assert 1 <= data.lengths[0] < data.max_length


def test_it_stands_for_itself():
    for lengths in all_lengths(7, 3):
        for room in range(3):
            once = representative_problem(posed(lengths, max(lengths) + room))
            assert representative_problem(once) == once


def test_few_stand_for_all():
    problems = {
        representative_problem(posed(lengths, 40))
        for lengths in itertools.product((1, 7, 20, 40), repeat=3)
    }
    assert len(problems) == 2
    many = {representative_problem(posed((steps, 1 + steps // 2))) for steps in range(1, 1001)}
    assert len(many) <= 2 * 20
