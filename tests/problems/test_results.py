"""AlgorithmTable: the choice within limits, its reasons, and how it is shown."""

import dataclasses
import html.parser
import json
import pickle
import sys
from types import SimpleNamespace

import pytest

import cudnnlite as dnn
from cudnnlite import AlgorithmResult, AlgorithmTable, ArgumentError, MathType, NoAlgorithmError
from cudnnlite.enums import ConvolutionFwdAlgo, RNNAlgo, Status
from cudnnlite.problems.results import MAKES_A_TEXTURE, kernel_of, named
from cudnnlite.problems.roofline import FLOAT32, TF32, Peaks
from cudnnlite.problems.work import Work
from cudnnlite.types import Engine

MIB = 1 << 20
A = ConvolutionFwdAlgo
FFT = AlgorithmResult(
    A.FFT,
    MathType.DEFAULT,
    status=Status.SUCCESS,
    time_ms=0.25,
    workspace=200 * MIB,
    deterministic=True,
)
PRECOMP = AlgorithmResult(
    A.IMPLICIT_PRECOMP_GEMM,
    MathType.TENSOR_OP,
    status=Status.SUCCESS,
    time_ms=0.5,
    workspace=10 * MIB,
    deterministic=False,
)
GEMM = AlgorithmResult(
    A.GEMM, MathType.FMA, status=Status.SUCCESS, time_ms=1.0, workspace=20 * MIB, deterministic=True
)
IMPLICIT = AlgorithmResult(
    A.IMPLICIT_GEMM,
    MathType.FMA,
    status=Status.SUCCESS,
    time_ms=2.0,
    workspace=0,
    deterministic=True,
)
DIRECT = AlgorithmResult(
    A.DIRECT,
    MathType.DEFAULT,
    status=Status.NOT_SUPPORTED,
    time_ms=None,
    workspace=0,
    deterministic=True,
)
ROWS = (FFT, PRECOMP, GEMM, IMPLICIT, DIRECT)


@pytest.fixture
def table():
    return AlgorithmTable(
        ROWS, title="a <convolution> & more", timing="cudnnFind", device_memory=1000 * MIB
    )


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, FFT),
        ({"workspace_limit": 200 * MIB}, FFT),
        ({"workspace_limit": 200 * MIB - 1}, PRECOMP),
        ({"workspace_limit": "64 MiB"}, PRECOMP),
        ({"workspace_limit": "10%"}, PRECOMP),
        ({"workspace_limit": "20%"}, FFT),
        ({"workspace_limit": 0}, IMPLICIT),
        ({"workspace_limit": "5 MiB"}, IMPLICIT),
        ({"deterministic": True}, FFT),
        ({"deterministic": True, "workspace_limit": "64 MiB"}, GEMM),
        ({"deterministic": False, "workspace_limit": "64 MiB"}, PRECOMP),
        ({"math_type": "true_float32"}, GEMM),
        ({"math_type": MathType.TENSOR_OP}, PRECOMP),
        ({"math_type": "fma", "workspace_limit": 0}, IMPLICIT),
    ],
    ids=str,
)
def test_best(table, limits, expected):
    best = table.best(**limits)
    assert best == expected
    assert [row for row, _ in best.passed_over] == list(ROWS[: ROWS.index(expected)])


def test_the_first_is_taken_in_the_tables_own_order():
    assert AlgorithmTable((GEMM, FFT), title="t", timing="t").best() == GEMM


def test_failed_candidates_are_never_taken():
    assert AlgorithmTable((DIRECT, GEMM), title="t", timing="t").best() == GEMM


def test_reasons_and_the_time_lost(table):
    best = table.best("15 MiB", deterministic=True, math_type="fma")
    assert best == IMPLICIT
    assert {row.algorithm: why for row, why in best.passed_over} == {
        A.FFT: "needs 200 MiB, the limit is 15 MiB; math type DEFAULT, wanted FMA (1.75 ms faster)",
        A.IMPLICIT_PRECOMP_GEMM: (
            "not deterministic; math type TENSOR_OP, wanted FMA (1.5 ms faster)"
        ),
        A.GEMM: "needs 20 MiB, the limit is 15 MiB (1 ms faster)",
    }
    assert str(best).splitlines() == [
        "IMPLICIT_GEMM (FMA, 2 ms, workspace 0 B)",
        (
            "  not FFT (DEFAULT): needs 200 MiB, the limit is 15 MiB; math type DEFAULT, wanted "
            "FMA (1.75 ms faster)"
        ),
        (
            "  not IMPLICIT_PRECOMP_GEMM (TENSOR_OP): not deterministic; math type TENSOR_OP, "
            "wanted FMA (1.5 ms faster)"
        ),
        "  not GEMM (FMA): needs 20 MiB, the limit is 15 MiB (1 ms faster)",
    ]


def test_a_choice_says_that_it_may_multiply_in_tf32():
    assert (
        str(FFT).splitlines()[0].startswith("FFT (DEFAULT: TF32 for float32, 0.25 ms, workspace ")
    )
    assert "TF32" not in str(GEMM)


def test_a_failed_candidate_lost_no_time():
    best = AlgorithmTable((DIRECT, GEMM), title="t", timing="t").best()
    assert best.passed_over == ((DIRECT, "NOT_SUPPORTED"),)


def test_candidates_that_were_not_run_lost_no_time():
    rows = [
        AlgorithmResult(A.FFT, MathType.DEFAULT, workspace=MIB),
        AlgorithmResult(A.GEMM, MathType.DEFAULT),
    ]
    best = AlgorithmTable(rows, title="t", timing="t").best(0)
    assert best.passed_over == ((rows[0], "needs 1 MiB, the limit is 0 B"),)


def test_equal_rows_are_told_apart_by_place():
    """Two equal failed rows before the chosen one: both are passed over."""
    best = AlgorithmTable((DIRECT, DIRECT, GEMM), title="t", timing="t").best()
    assert len(best.passed_over) == 2


def test_no_algorithm_lists_every_reason(table):
    with pytest.raises(NoAlgorithmError) as caught:
        table.best(workspace_limit=0, deterministic=True, math_type="tensor_op")
    assert str(caught.value).splitlines() == [
        "no algorithm for a <convolution> & more satisfies the limits:",
        "  FFT (DEFAULT): needs 200 MiB, the limit is 0 B; math type DEFAULT, wanted TENSOR_OP",
        "  IMPLICIT_PRECOMP_GEMM (TENSOR_OP): needs 10 MiB, the limit is 0 B; not deterministic",
        "  GEMM (FMA): needs 20 MiB, the limit is 0 B; math type FMA, wanted TENSOR_OP",
        "  IMPLICIT_GEMM (FMA): math type FMA, wanted TENSOR_OP",
        "  DIRECT (DEFAULT): NOT_SUPPORTED",
    ]
    assert isinstance(caught.value, LookupError)


def test_an_empty_table_says_so():
    table = AlgorithmTable((), title="nothing", timing="t")
    assert len(table) == 0
    with pytest.raises(NoAlgorithmError, match="cuDNN has no algorithm for nothing"):
        table.best()


@pytest.mark.parametrize(
    "bad", [{"workspace_limit": "much"}, {"workspace_limit": -1}, {"math_type": "fast"}], ids=str
)
def test_bad_limits(table, bad):
    with pytest.raises(ArgumentError, match=next(iter(bad))):
        table.best(**bad)


def test_a_percentage_without_a_device_is_refused():
    with pytest.raises(ArgumentError, match="workspace_limit='10%'"):
        AlgorithmTable(ROWS, title="t", timing="t").best("10%")


def test_sequence(table):
    assert len(table) == 5
    assert list(table) == list(ROWS)
    assert table[0] is FFT
    assert table[-1] is DIRECT
    assert table[1:3] == (PRECOMP, GEMM)
    assert GEMM in table
    assert table.index(GEMM) == 2
    assert next(reversed(table)) is DIRECT
    with pytest.raises(IndexError):
        table[5]


PEAKS = Peaks("a card", "made up", {FLOAT32: 10e12, TF32: 40e12}, 1e12)
WORK = Work(2_000_000_000, 100_000_000, dnn.DataType.FLOAT)


def test_rates_beside_the_peaks_of_the_device():
    true = AlgorithmResult(A.GEMM, MathType.FMA, time_ms=0.5)
    fast = AlgorithmResult(A.FFT, MathType.DEFAULT, time_ms=0.25)
    table = AlgorithmTable([fast, true, DIRECT], title="t", timing="t", work=WORK, peaks=PEAKS)
    # 2 GFLOP take 0.2 ms at 10 T a second and 0.05 ms at 40 T; 100 MB take 0.1 ms.
    assert table.tflops_of(true) == pytest.approx(4)
    assert table.roofline_of(true) == (pytest.approx(2e-4), "arithmetic", FLOAT32)
    assert table.roofline_of(fast) == (pytest.approx(1e-4), "memory", TF32)
    heading, *rows = table.cells()
    places = [heading.index(name) for name in ("TFLOP/s", "roofline")]
    assert [[row[place] for place in places] for row in rows] == [
        ["8", "40% (memory)"],
        ["4", "40% (arithmetic)"],
        ["-", "-"],
    ]
    without = AlgorithmTable([fast, true], title="t", timing="t", work=WORK)
    assert "TFLOP/s" not in str(without)
    assert without.tflops_of(true) is without.roofline_of(true) is None


def test_one_kernel_is_one_row_of_a_page():
    first = AlgorithmResult(A.GEMM, MathType.FMA, time_ms=0.5, call_us=9.0)
    rows = [
        first,
        dataclasses.replace(first, algorithm=A.FFT, same_kernel="GEMM (FMA)"),
        dataclasses.replace(first, replay=True, call_us=8.0),
        AlgorithmResult(A.DIRECT, MathType.FMA, time_ms=0.5),
    ]
    table = AlgorithmTable(rows, title="t", timing="t")
    assert table.kernels() == [(0, 1), (2,), (3,)]
    assert [kernel_of(row) for row in rows] == [*["GEMM (FMA)"] * 3, "DIRECT (FMA)"]
    assert str(table).splitlines()[2:] == [
        "GEMM       FMA   -            0.5000        9.0        0 B  yes            ok",
        "GEMM       FMA   yes          0.5000        8.0        0 B  yes            ok",
        "DIRECT     FMA   -            0.5000          -        0 B  yes            ok",
        "here the same kernel as GEMM (FMA): FFT (FMA)",
    ]
    page = table._repr_html_()
    assert page.count("<tr>") == 1 + 3
    assert "<td>GEMM<br><small>also FFT (FMA)</small></td>" in page
    failed = [
        dataclasses.replace(rows[1], why_not="too large"),
        dataclasses.replace(rows[1], algorithm=A.DIRECT, why_not="too slow"),
    ]
    with_failures = AlgorithmTable([*rows, *failed], title="t", timing="t")
    assert with_failures.kernels() == [(0, 1), (2,), (3,), (4,), (5,)]
    assert str(with_failures).splitlines()[6:] == [
        "cannot be used: FFT (FMA): too large",
        "cannot be used: DIRECT (FMA): too slow",
    ]
    assert table.status_of(rows[1]) == "ok; here the same kernel as GEMM (FMA)"


def test_candidates_that_cannot_be_used_are_folded_by_their_reason():
    row = AlgorithmResult(A.GEMM, MathType.FMA, why_not="fewer bits")
    few = AlgorithmTable([row] * 2, title="t", timing="t")
    six, many = (AlgorithmTable([row] * count, title="t", timing="t") for count in (6, 7))
    assert six.unusable_lines() == [f"cannot be used: GEMM ({', '.join(['FMA'] * 6)}): fewer bits"]
    assert few.unusable_lines() == ["cannot be used: GEMM (FMA, FMA): fewer bits"]
    assert many.unusable_lines() == ["cannot be used: 7 candidates: fewer bits"]
    assert many.explain().count("not chosen: fewer bits") == 7
    assert str(many).splitlines() == ["t; times: t", "cannot be used: 7 candidates: fewer bits"]


def test_a_result_prints_the_arguments_that_are_set():
    row = AlgorithmResult(A.GEMM, MathType.FMA, time_ms=0.5, deterministic=None)
    assert repr(row) == (
        "AlgorithmResult(algorithm=<ConvolutionFwdAlgo.GEMM: 2>, math_type=<MathType.FMA: 3>, "
        "time_ms=0.5, deterministic=None)"
    )


def test_a_table_is_a_value_of_its_own():
    rows = [FFT, GEMM]
    table = AlgorithmTable(rows, title="t", timing="t")
    rows.clear()
    assert len(table) == 2


def test_printing(table):
    assert str(table).splitlines() == [
        "a <convolution> & more; times: cudnnFind",
        "algorithm              math       device ms  workspace  deterministic  status",
        "FFT                    DEFAULT       0.2500    200 MiB  yes            ok",
        "IMPLICIT_PRECOMP_GEMM  TENSOR_OP     0.5000     10 MiB  no             ok",
        "GEMM                   FMA           1.0000     20 MiB  yes            ok",
        "IMPLICIT_GEMM          FMA           2.0000        0 B  yes            ok",
        "cannot be used: DIRECT (DEFAULT): NOT_SUPPORTED",
    ]
    assert repr(table) == "<AlgorithmTable of 5: a <convolution> & more>"


class Cells(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.cells, self.rows = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_data(self, data):
        if self.tags[-1] in ("td", "th"):
            self.rows[-1].append(data)
        else:
            self.cells.append(data)


def test_html_has_the_same_cells_and_escapes_them(table):
    markup = table._repr_html_()
    assert "a &lt;convolution&gt; &amp; more" in markup
    parser = Cells()
    parser.feed(markup)
    assert set(parser.tags) == {
        "div",
        "table",
        "caption",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "br",
        "small",
    }  # nothing from the title
    assert [tuple(row) for row in parser.rows] == table.cells()[:-1]
    assert parser.cells == [
        "a <convolution> & more; times: cudnnFind",
        "cannot be used: DIRECT (DEFAULT): NOT_SUPPORTED",
    ]


def test_a_result_is_a_value():
    assert pickle.loads(pickle.dumps(GEMM)) == GEMM
    assert len({GEMM, pickle.loads(pickle.dumps(GEMM)), FFT}) == 2
    assert GEMM.ok
    assert not DIRECT.ok


def test_what_was_passed_over_does_not_decide_equality(table):
    """A choice is a key of the plan cache, so where it was chosen from must not matter."""
    assert table.best("15 MiB") == IMPLICIT or table.best("15 MiB") == PRECOMP
    assert hash(table.best(0)) == hash(IMPLICIT)
    assert table.best(0).passed_over
    assert table.best(0) == IMPLICIT


# ---------------------------------------------------------------- what only some searches know

R = RNNAlgo
STATIC = AlgorithmResult(
    R.PERSIST_STATIC,
    MathType.TENSOR_OP,
    status=Status.SUCCESS,
    time_ms=0.125,
    workspace=3 * MIB,
    deterministic=None,
    reserve=7 * MIB,
    error=2.5e-4,
)
PLAIN = AlgorithmResult(
    R.STANDARD,
    MathType.FMA,
    status=Status.SUCCESS,
    time_ms=2.0,
    workspace=0,
    deterministic=None,
    reserve=5 * MIB,
    error=1e-7,
    remark="run once: more than 3 times the best",
)
WRONG = AlgorithmResult(
    R.PERSIST_DYNAMIC,
    MathType.DEFAULT,
    status=Status.SUCCESS,
    time_ms=None,
    workspace=MIB,
    deterministic=None,
    reserve=MIB,
    error=float("inf"),
    why_not="wrong: relative error inf over the first 4 steps",
)
REFUSED = AlgorithmResult(
    R.PERSIST_STATIC_SMALL_H,
    MathType.DEFAULT,
    status=Status.NOT_SUPPORTED,
    time_ms=None,
    workspace=0,
    deterministic=None,
    why_not="PERSIST_STATIC_SMALL_H wants sequences of equal, full length",
)
RNN_ROWS = (STATIC, PLAIN, WRONG, REFUSED)


@pytest.fixture
def rnn_table():
    return AlgorithmTable(RNN_ROWS, title="an RNN", timing="graphs", device_memory=1000 * MIB)


def test_a_reason_makes_a_row_useless():
    """Also where the status says SUCCESS; a remark does not."""
    assert [row.ok for row in RNN_ROWS] == [True, True, False, False]


def test_columns_of_an_rnn(rnn_table):
    assert str(rnn_table).splitlines() == [
        "an RNN; times: graphs",
        "algorithm       math       device ms  workspace  reserve    error  status",
        "PERSIST_STATIC  TENSOR_OP     0.1250      3 MiB    7 MiB  2.5e-04  ok",
        (
            "STANDARD        FMA           2.0000        0 B    5 MiB  1.0e-07  ok; run once: "
            "more than 3 times the best"
        ),
        f"cannot be used: PERSIST_DYNAMIC (DEFAULT): {WRONG.why_not}",
        f"cannot be used: PERSIST_STATIC_SMALL_H (DEFAULT): NOT_SUPPORTED: {REFUSED.why_not}",
    ]


def test_best_of_an_rnn(rnn_table):
    assert rnn_table.best() == STATIC
    best = rnn_table.best(math_type="fma")
    assert best == PLAIN
    assert best.passed_over == ((STATIC, "math type TENSOR_OP, wanted FMA (1.875 ms faster)"),)
    assert rnn_table.best("1 MiB").passed_over[0][1].startswith("needs 3 MiB, the limit is 1 MiB")


def test_what_computes_garbage_is_passed_over_with_its_reason():
    best = AlgorithmTable((WRONG, REFUSED, PLAIN), title="t", timing="t").best()
    assert best == PLAIN
    assert [why for _, why in best.passed_over] == [
        WRONG.why_not,
        f"NOT_SUPPORTED: {REFUSED.why_not}",
    ]


def test_whether_it_is_deterministic_may_be_unknown(rnn_table):
    with pytest.raises(NoAlgorithmError) as caught:
        rnn_table.best(deterministic=True)
    assert "PERSIST_STATIC (TENSOR_OP): cuDNN does not say if it is deterministic" in str(
        caught.value
    )
    assert "PERSIST_DYNAMIC (DEFAULT): wrong: relative error inf" in str(caught.value)
    assert rnn_table.best(deterministic=False) == STATIC


@pytest.mark.parametrize(
    "rows",
    [(WRONG,), (WRONG, REFUSED), (REFUSED, WRONG)],
    ids=["wrong", "wrong_first", "wrong_last"],
)
def test_when_none_is_left_each_reason_is_listed(rows):
    """cuDNN refused only one of them, so the message may not blame the combination."""
    with pytest.raises(NoAlgorithmError) as caught:
        AlgorithmTable(rows, title="an RNN", timing="t").best()
    message = str(caught.value)
    for row in rows:
        assert f"{row.algorithm} ({row.math_type}): " in message
        assert row.why_not in message
    assert "it refuses this combination" not in message


def test_a_reason_is_escaped():
    row = dataclasses.replace(WRONG, why_not="a < b & c", remark="<i>")
    markup = AlgorithmTable([row], title="t", timing="t")._repr_html_()
    assert "a &lt; b &amp; c; &lt;i&gt;" in markup


# ---------------------------------------------------------------- what a tuner knows


TUNED = tuple(
    AlgorithmResult(
        algorithm,
        math_type,
        time_ms=ms,
        spread_ms=0.25,
        workspace=size,
        error=error,
        max_error=2 * error,
        call_us=1e3 * ms + 20,
        host_us=15.0,
        find_ms=find_ms,
        layout=layout,
    )
    for algorithm, math_type, ms, size, error, find_ms, layout in (
        (A.IMPLICIT_PRECOMP_GEMM, MathType.DEFAULT, 1.0, 8 * MIB, 3e-4, 1.5, ""),
        (A.WINOGRAD, MathType.FMA, 1.25, 2 * MIB, 8e-4, None, "NHWC"),
        (A.IMPLICIT_PRECOMP_GEMM, MathType.FMA, 1.5, 8 * MIB, 1e-7, None, ""),
        (A.GEMM, MathType.FMA, 2.0, 2 * MIB, 1e-7, None, ""),
        (A.IMPLICIT_GEMM, MathType.FMA, 4.0, 0, 1e-7, None, ""),
    )
)
UNMEASURED = AlgorithmResult(A.FFT, MathType.DEFAULT, time_ms=0.5, workspace=MIB)
TOO_LARGE = AlgorithmResult(
    A.FFT_TILING, MathType.FMA, workspace=99 * MIB, why_not="needs 99 MiB, the limit is 64 MiB"
)


@pytest.fixture
def tuned():
    return AlgorithmTable(
        (*TUNED, TOO_LARGE, DIRECT), title="a layer", timing="graphs", device_memory=1000 * MIB
    )


@pytest.mark.parametrize(
    ("limits", "place"),
    [
        ({"max_error": 1}, 0),
        ({"max_error": 3e-4}, 0),
        ({"max_error": 2.9e-4}, 2),
        ({"max_error": 1e-7}, 2),
        ({"max_error": 1e-3, "math_type": "fma"}, 1),
        ({"max_error": 1e-5, "workspace_limit": "2 MiB"}, 3),
        ({"max_error": 1e-5, "workspace_limit": "1 MiB"}, 4),
        ({"max_error": float("inf")}, 0),
    ],
    ids=str,
)
def test_best_within_an_error(tuned, limits, place):
    assert tuned.best(**limits) == TUNED[place]


def test_an_error_that_is_too_large_is_told(tuned):
    best = tuned.best(max_error=1e-5)
    assert [why for _, why in best.passed_over] == [
        "its error is 3.0e-04, the bound is 1.0e-05 (0.5 ms faster)",
        "its error is 8.0e-04, the bound is 1.0e-05 (0.25 ms faster)",
    ]
    with pytest.raises(NoAlgorithmError) as caught:
        tuned.best(max_error=0)
    assert str(caught.value).count("the bound is 0.0e+00") == len(TUNED)
    assert "FFT_TILING (FMA): needs 99 MiB, the limit is 64 MiB" in str(caught.value)
    assert "WINOGRAD (FMA, in NHWC): its error is 8.0e-04" in str(caught.value)


def test_an_error_that_nobody_measured_satisfies_no_bound():
    table = AlgorithmTable((UNMEASURED, *TUNED), title="t", timing="t")
    assert table.best() == UNMEASURED
    best = table.best(max_error=1)
    assert best == TUNED[0]
    assert (
        best.passed_over[0][1] == "its error was not measured, the bound is 1.0e+00 (0.5 ms faster)"
    )


@pytest.mark.parametrize("value", [-1, float("nan"), "1e-3", True, [], 1j], ids=repr)
@pytest.mark.parametrize("method", ["best", "explain"])
def test_bounds_that_are_none(tuned, method, value):
    with pytest.raises(ArgumentError, match=r"max_error=.*; allowed: a number, 0 or more"):
        getattr(tuned, method)(max_error=value)


@pytest.mark.parametrize("method", ["best", "explain"])
@pytest.mark.parametrize("value", [1, "yes", 0])
def test_deterministic_is_true_or_false(tuned, method, value):
    with pytest.raises(ArgumentError, match=r"deterministic=.*; allowed: True, False, None"):
        getattr(tuned, method)(deterministic=value)


def test_explain_gives_each_candidate_its_reason(tuned):
    assert tuned.explain().splitlines() == [
        "a layer",
        "  IMPLICIT_PRECOMP_GEMM (DEFAULT): chosen: 1 ms",
        "  WINOGRAD (FMA, in NHWC): not chosen: 1.25 ms, 1.25 times the chosen",
        "  IMPLICIT_PRECOMP_GEMM (FMA): not chosen: 1.5 ms, 1.50 times the chosen",
        "  GEMM (FMA): not chosen: 2 ms, 2.00 times the chosen",
        "  IMPLICIT_GEMM (FMA): not chosen: 4 ms, 4.00 times the chosen",
        "  FFT_TILING (FMA): not chosen: needs 99 MiB, the limit is 64 MiB",
        "  DIRECT (DEFAULT): not chosen: NOT_SUPPORTED",
    ]


def test_explain_within_limits(tuned):
    reasons = (
        "needs 8 MiB, the limit is 5 MiB; its error is 3.0e-04, the bound is 1.0e-05 (1 ms faster)"
    )
    assert tuned.explain("5 MiB", max_error=1e-5).splitlines()[1:] == [
        f"  IMPLICIT_PRECOMP_GEMM (DEFAULT): not chosen: {reasons}",
        (
            "  WINOGRAD (FMA, in NHWC): not chosen: its error is 8.0e-04, the bound is 1.0e-05 "
            "(0.75 ms faster)"
        ),
        (
            "  IMPLICIT_PRECOMP_GEMM (FMA): not chosen: needs 8 MiB, the limit is 5 MiB (0.5 ms "
            "faster)"
        ),
        "  GEMM (FMA): chosen: 2 ms",
        "  IMPLICIT_GEMM (FMA): not chosen: 4 ms, 2.00 times the chosen",
        "  FFT_TILING (FMA): not chosen: needs 99 MiB, the limit is 64 MiB",
        "  DIRECT (DEFAULT): not chosen: NOT_SUPPORTED",
    ]


def test_explain_agrees_with_best(tuned):
    for limits in (
        {},
        {"workspace_limit": 0},
        {"max_error": 1e-5},
        {"math_type": "fma"},
        {"workspace_limit": "3 MiB"},
    ):
        (line_of_choice,) = (
            line for line in tuned.explain(**limits).splitlines() if ": chosen" in line
        )
        assert line_of_choice.startswith(f"  {named(tuned.best(**limits))}: chosen")


def test_explain_where_nothing_can_be_chosen(tuned):
    lines = tuned.explain(max_error=0).splitlines()
    assert len(lines) == 1 + len(tuned) + 1
    assert not any(": chosen" in line for line in lines)
    assert lines[1].endswith("not chosen: its error is 3.0e-04, the bound is 0.0e+00")
    assert lines[-1] == "  none can be chosen"
    assert AlgorithmTable((), title="t", timing="t").explain().splitlines() == [
        "t",
        "  none can be chosen",
    ]


def test_explain_tells_remarks_and_what_was_only_ranked():
    rows = (
        GEMM,
        dataclasses.replace(IMPLICIT, time_ms=None),
        dataclasses.replace(FFT, time_ms=1.0, remark="odd"),
    )
    assert AlgorithmTable(rows, title="t", timing="t").explain().splitlines()[1:] == [
        "  GEMM (FMA): chosen: 1 ms",
        "  IMPLICIT_GEMM (FMA): not chosen: ranked behind",
        "  FFT (DEFAULT): not chosen: 1 ms, 1.00 times the chosen (odd)",
    ]
    unranked = [dataclasses.replace(row, time_ms=None) for row in (GEMM, FFT)]
    assert AlgorithmTable(unranked, title="t", timing="t").explain().splitlines()[1:] == [
        "  GEMM (FMA): chosen: the first in the ranking",
        "  FFT (DEFAULT): not chosen: ranked behind",
    ]


def test_explain_where_calls_decide():
    """What is faster on the device, and was passed over for the time of its calls, says so."""
    called = [
        AlgorithmResult(A.GEMM, MathType.FMA, time_ms=0.5, call_us=20.0, host_us=19.0),
        AlgorithmResult(
            A.IMPLICIT_PRECOMP_GEMM, MathType.FMA, time_ms=0.25, call_us=35.5, host_us=35.0
        ),
        AlgorithmResult(A.FFT, MathType.FMA, time_ms=1.0, call_us=1020.0, host_us=35.0),
    ]
    assert AlgorithmTable(called, title="t", timing="t").explain().splitlines()[1:] == [
        "  GEMM (FMA): chosen: 0.5 ms",
        (
            "  IMPLICIT_PRECOMP_GEMM (FMA): not chosen: 0.25 ms, 0.50 times the chosen, but 35.5 "
            "us a call, not 20.0 us"
        ),
        "  FFT (FMA): not chosen: 1 ms, 2.00 times the chosen",
    ]


def test_the_front_of_time_and_workspace(tuned):
    """Each is the fastest of those that need no more than it does."""
    front = tuned.pareto()
    assert front == (TUNED[0], TUNED[1], TUNED[4])
    for row in tuned:
        if row.ok and row.time_ms is not None and row not in front:
            assert any(
                other.time_ms <= row.time_ms and other.workspace <= row.workspace for other in front
            )
    for limit in (0, MIB, 2 * MIB, 7 * MIB, 8 * MIB, 99 * MIB):
        assert tuned.best(limit) == next(row for row in front if row.workspace <= limit)


@pytest.mark.parametrize(
    ("rows", "front"),
    [
        ((), ()),
        ((DIRECT, TOO_LARGE), ()),
        ((dataclasses.replace(FFT, time_ms=None), GEMM), (GEMM,)),
        ((GEMM, FFT), (FFT, GEMM)),
        (
            (GEMM, dataclasses.replace(IMPLICIT, time_ms=1.0)),
            (dataclasses.replace(IMPLICIT, time_ms=1.0),),
        ),
        ((GEMM, GEMM), (GEMM,)),
        ((dataclasses.replace(GEMM, why_not="wrong"), IMPLICIT), (IMPLICIT,)),
    ],
    ids=["nothing", "failed", "not_timed", "sorted", "same_time", "same_row", "useless"],
)
def test_fronts(rows, front):
    assert AlgorithmTable(rows, title="t", timing="t").pareto("device") == front


def test_columns_of_a_tuning(tuned):
    lines = str(tuned).splitlines()
    assert lines[1].split("  ")[0] == "algorithm"
    assert tuned.cells()[0] == (
        "algorithm",
        "math",
        "in",
        "device ms",
        "+-",
        "us a call",
        "host us",
        "cudnnFind's ms",
        "workspace",
        "error",
        "max error",
        "deterministic",
        "status",
    )
    assert tuned.cells()[1] == (
        "IMPLICIT_PRECOMP_GEMM",
        "DEFAULT",
        "-",
        "1.0000",
        "0.2500",
        "1020.0",
        "15.0",
        "1.5000",
        "8 MiB",
        "3.0e-04",
        "6.0e-04",
        "yes",
        "ok",
    )
    assert tuned.cells()[2][2] == "NHWC"
    assert tuned.cells()[-1][:8] == ("DIRECT", "DEFAULT", *"-" * 6)
    heading = lines[1]
    served = [cells for cells, row in zip(tuned.cells()[1:], tuned, strict=True) if row.ok]
    for cell, line in zip([row[3] for row in served], lines[2:], strict=False):
        assert line[: heading.index(" ms ") + 3].endswith(cell), "numbers are aligned to the right"


@pytest.mark.parametrize(
    ("name", "value", "column", "cell"),
    [
        ("spread_ms", 0.0, "+-", "0.0000"),
        ("call_us", 12.34, "us a call", "12.3"),
        ("host_us", 0.0, "host us", "0.0"),
        ("find_ms", 0.5, "cudnnFind's ms", "0.5000"),
        ("max_error", 1e-7, "max error", "1.0e-07"),
        ("layout", "NHWC", "in", "NHWC"),
        ("error", 0.0, "error", "0.0e+00"),
    ],
)
def test_each_new_column_is_shown_where_there_is_something_in_it(name, value, column, cell):
    plain = AlgorithmResult(A.GEMM, MathType.FMA)
    table = AlgorithmTable(
        [dataclasses.replace(plain, **{name: value}), plain], title="t", timing="t"
    )
    without = AlgorithmTable([plain], title="t", timing="t")
    assert column not in without.cells()[0]
    place = table.cells()[0].index(column)
    assert [row[place] for row in table.cells()[1:]] == [cell, "-"]
    assert set(table.cells()[0]) - {column} == set(without.cells()[0])


def test_a_choice_tells_its_layout(tuned):
    assert str(tuned[1]) == "WINOGRAD (FMA, in NHWC, 1.25 ms, workspace 2 MiB)"
    assert str(tuned[2]) == "IMPLICIT_PRECOMP_GEMM (FMA, 1.5 ms, workspace 8 MiB)"


@pytest.mark.parametrize(
    "name", [item.name for item in dataclasses.fields(AlgorithmResult) if item.compare]
)
def test_every_field_tells_rows_apart(name):
    """A choice is a key of the plan cache: two that differ in anything are two."""
    changes = {
        "algorithm": A.FFT,
        "math_type": MathType.DEFAULT,
        "status": Status.NOT_SUPPORTED,
        "deterministic": None,
        "why_not": "x",
        "remark": "x",
        "layout": "NHWC",
    }
    other = dataclasses.replace(TUNED[3], **{name: changes.get(name, 77)})
    assert other != TUNED[3]
    assert len({other, TUNED[3], pickle.loads(pickle.dumps(other))}) == 2


def test_the_front_of_each_objective():
    rows = [
        AlgorithmResult(A.FFT, MathType.FMA, time_ms=1.0, call_us=1005.0, workspace=9),
        AlgorithmResult(A.GEMM, MathType.FMA, time_ms=1.1, call_us=1102.0, workspace=5),
        AlgorithmResult(A.IMPLICIT_GEMM, MathType.FMA, time_ms=1.2, call_us=1001.0, workspace=7),
        AlgorithmResult(A.DIRECT, MathType.FMA, time_ms=1.3),  # its calls were not timed
    ]
    table = AlgorithmTable(rows, title="t", timing="t")
    assert table.pareto("device") == (rows[0], rows[1], rows[3])
    assert table.pareto("latency") == (rows[2], rows[1], rows[3])
    with pytest.raises(ArgumentError, match="objective='host'; allowed: 'device', 'latency'"):
        table.pareto("host")


def test_columns_as_plain_values(monkeypatch, own_handle):
    table = dnn.convolution_forward.find(
        own_handle, own_handle.zeros((1, 3, 6, 6)), own_handle.zeros((2, 3, 3, 3))
    )
    columns = table.to_dict()
    assert columns["algorithm"] == [str(row.algorithm) for row in table]
    assert columns["workspace"] == [row.workspace for row in table]
    assert json.loads(json.dumps(columns)) == columns
    monkeypatch.setitem(
        sys.modules, "pandas", SimpleNamespace(DataFrame=lambda values: ("frame", values))
    )
    assert table.to_pandas() == ("frame", columns)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(dnn.errors.MissingPackageError, match="to_pandas needs pandas"):
        table.to_pandas()


def test_the_text_of_a_choice_counts_what_only_a_recording_would_refuse():
    """`passed_over` names it; other reasons are in the text."""
    chosen = AlgorithmResult(Engine(2), MathType.FMA)
    with_texture = AlgorithmResult(Engine(4, {"USE_TEX": 1}), MathType.FMA)
    narrow = AlgorithmResult(Engine(7), MathType.FMA)
    choice = dataclasses.replace(
        chosen,
        passed_over=((with_texture, MAKES_A_TEXTURE), (narrow, "it multiplies in fewer bits")),
    )
    assert str(choice).splitlines()[1:] == [
        "  not engine 7 (FMA): it multiplies in fewer bits",
        "  1 more was passed over; the attribute passed_over says why",
    ]
    assert next(why for _, why in choice.passed_over) == MAKES_A_TEXTURE
    assert "passed over" not in str(dataclasses.replace(choice, passed_over=choice.passed_over[1:]))
