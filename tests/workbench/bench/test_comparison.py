"""What two runs are said to differ in."""

import json
from dataclasses import replace

import pytest

from cudnnlite.errors import ArgumentError
from cudnnlite.workbench.bench.comparison import RunComparison, Thresholds
from cudnnlite.workbench.bench.comparison_texts import lines_of, markdown_of
from cudnnlite.workbench.bench.rows import BenchRow, BenchRun

FACTS = {"device": "a GPU", "cuDNN": "9.19.0", "has real timing": True}


def row(key="one", **fields):
    values = {
        "candidate": "GEMM (FMA)",
        "is_chosen": True,
        "device_us": 100.0,
        "device_spread_us": 1.0,
        "call_us": 120.0,
        "error": 1e-4,
        "line": f"cudnnlite bench --{key}",
        **fields,
    }
    return BenchRow(f"problem {key}", key=key, **values)


def compared(a, b, thresholds=None, **options):
    return RunComparison(
        BenchRun(tuple(a), FACTS), BenchRun(tuple(b), FACTS), thresholds, **options
    )


def verdicts(a, b, **options):
    (pair,) = compared([a], [b], **options).pairs
    return pair.verdicts


def test_equal_runs_do_not_differ():
    comparison = compared([row()], [row()])
    assert comparison.pairs[0].verdicts == ()
    assert comparison.counts() == {}
    assert not comparison.fails
    assert comparison.mean == comparison.pairs[0].ratio == 1
    assert comparison.totals == (100, 100)
    assert [*lines_of(comparison, "AB")][-1] == "no difference that counts in 1 problem"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"device_us": 103.5}, ("slower",)),
        ({"device_us": 102.5}, ()),
        ({"device_us": 103.5, "device_spread_us": 8.0}, ()),
        ({"device_us": 96.0}, ("faster",)),
        ({"device_us": None}, ()),
        ({"device_us": float("nan")}, ()),
        ({"status": "not served: x", "device_us": None}, ("no longer served",)),
        ({"findings": ("writes behind y",)}, ("wrong",)),
        ({"error": 3.9e-4}, ()),
        ({"error": 4.1e-4}, ("less exact",)),
        ({"error": float("inf")}, ("less exact",)),
        ({"error": float("nan")}, ("wrong",)),
        ({"error": None}, ()),
        ({"candidate": "FFT (FMA)"}, ("chosen otherwise",)),
        (
            {"candidate": "FFT (FMA)", "device_us": 200.0, "error": 1.0},
            ("slower", "less exact", "chosen otherwise"),
        ),
    ],
)
def test_what_is_different_has_a_name(fields, expected):
    assert verdicts(row(), row(**fields)) == expected
    is_worse = bool({"slower", "no longer served", "wrong", "less exact"} & set(expected))
    # The model's threshold is that of a problem here, without the allowance for noise.
    comparison = compared([row()], [row(**fields)], Thresholds(model_slower=9))
    assert comparison.fails == is_worse


def test_what_is_better_has_a_name_and_does_not_fail():
    assert verdicts(row(status="not served: x"), row()) == ("served now",)
    assert verdicts(row(findings=("x",)), row()) == ("right now",)
    assert not compared([row(status="not served: x")], [row()]).fails


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ({"findings": ("x",)}, {"findings": ("x", "y")}, ("wrong",)),
        ({"findings": ("x",)}, {"findings": ("x",), "error": float("nan")}, ("wrong",)),
        ({"findings": ("x", "y")}, {"findings": ("x",)}, ("wrong on both sides",)),
        ({"error": float("nan")}, {"error": float("nan")}, ("wrong on both sides",)),
        ({"error": float("nan")}, {}, ("right now",)),
    ],
)
def test_what_is_wrong_in_a_too_is_told(a, b, expected):
    comparison = compared([row(**a)], [row(**b)])
    (pair,) = comparison.pairs
    assert pair.verdicts == expected
    assert comparison.fails == (expected == ("wrong",))
    lines = [*lines_of(comparison, "AB")]
    for finding in row(**b).findings:
        assert f"problem one: {finding}" in lines


def test_times_that_only_one_side_has_are_told():
    a = [row(), row("two", count=3, device_us=50.0), row("four", device_us=7.0)]
    b = [row(), row("two", status="not served: x", device_us=None), row("three", device_us=9.0)]
    comparison = compared(a, b)
    assert comparison.totals == (100, 100)
    assert comparison.notes == (
        "not in the sums: 2 problems without a time in B, 0.1570 ms with A",
        "not in the sums: 1 problem without a time in A, 0.0090 ms with B",
    )
    assert set(comparison.notes) < set(lines_of(comparison, "AB"))
    assert comparison.to_plain("AB")["notes"] == list(comparison.notes)


def test_other_conditions_are_told():
    def run(device, *, flush_l2):
        return BenchRun((row(),), {**FACTS, "device": device, "policy": {"flush_l2": flush_l2}})

    comparison = RunComparison(run("one GPU", flush_l2=False), run("another", flush_l2=True))
    assert comparison.notes == (
        "A was timed on one GPU, B on another",
        "B was timed with operands outside of the L2 cache, A was not",
    )
    assert set(comparison.notes) < set(lines_of(comparison, "AB"))
    alike = RunComparison(run("one GPU", flush_l2=True), run("one GPU", flush_l2=True))
    assert alike.notes == ()


def test_tiny_errors_are_not_less_exact():
    assert verdicts(row(error=1e-12), row(error=1e-8)) == ()


def test_two_names_of_the_same_kernels_are_one_choice():
    a, b = row(kernels=("k",)), row(candidate="FFT (FMA)", kernels=("k",))
    assert verdicts(a, b) == ()
    assert verdicts(a, replace(b, kernels=("other",))) == ("chosen otherwise",)


def test_calls_are_compared_instead_of_the_device():
    assert verdicts(row(), row(call_us=140.0), time="call") == ("slower",)
    assert verdicts(row(), row(call_us=140.0), time="device") == ()


def test_thresholds_decide():
    slower = row(device_us=110.0)
    assert not compared([row()], [slower], Thresholds(slower=0.2, model_slower=0.2)).fails
    assert compared([row()], [slower], Thresholds(slower=0.2, model_slower=0.05)).model_is_slower
    assert compared([row()], [slower], Thresholds(slower=0.05, model_slower=0.2)).fails


def test_the_model_is_the_sum_by_counts():
    a = [row(count=3), row("two", device_us=50.0)]
    b = [row(count=3, device_us=80.0), row("two", device_us=90.0)]
    comparison = compared(a, b)
    assert comparison.totals == (350, 330)
    assert comparison.mean == pytest.approx((0.8 * 1.8) ** 0.5)


def test_problems_are_matched_by_what_they_are():
    comparison = compared([row(), row("two")], [row("three"), row("two")])
    assert [pair.verdicts for pair in comparison.pairs] == [("in A only",), (), ("in B only",)]
    with pytest.raises(ArgumentError, match="no problem is on both sides"):
        compared([row()], [row("two")])


def test_policies_are_compared_in_order():
    comparison = compared([row()], [row("two", device_us=50.0)], in_order=True)
    assert comparison.pairs[0].ratio == 0.5
    with pytest.raises(ArgumentError, match="A has 1 problems and B 2"):
        compared([row()], [row(), row("two")], in_order=True)


def test_times_of_the_emulated_device_are_not_compared():
    emulated = BenchRun((row(device_us=900.0),), {**FACTS, "has real timing": False})
    comparison = RunComparison(BenchRun((row(),), FACTS), emulated)
    assert comparison.pairs[0].verdicts == ()
    assert comparison.totals is comparison.mean is None
    assert any("the times are not compared" in line for line in lines_of(comparison, "AB"))


def test_all_forms_name_what_became_worse(tmp_path):
    a = [row(), row("two"), row("three")]
    b = [
        row(device_us=150.0, candidate="FFT (FMA)"),
        row("two", findings=("writes | behind y",)),
        row("three"),
    ]
    comparison = compared(a, b)
    names = ["old.json", "new.json"]
    text = "\n".join(lines_of(comparison, names))
    assert "1.5000" in text
    assert "problem one" in text
    assert "problem three" not in text
    assert "problem three" in "\n".join(lines_of(comparison, names, every=True))
    assert "problem two: writes | behind y" in text
    markdown = markdown_of(comparison, names)
    assert "| 100.00 | 150.00 | 1.5000 | GEMM (FMA) | FFT (FMA) | problem one |" in markdown
    assert "- writes \\| behind y" in markdown
    assert "$ cudnnlite bench --two" in markdown
    plain = json.loads(json.dumps(comparison.to_plain(names)))
    assert plain["fails"] is True
    assert plain["counts"] == {"wrong": 1, "slower": 1, "chosen otherwise": 1}
    assert plain["total_us"] == [300, 350]
