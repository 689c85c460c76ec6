"""tools/record/candidates.py and tools/benchmarks/candidate_order.py: files, choices and orders."""

from __future__ import annotations

import argparse
import json

import pytest

import cudnnlite as dnn
from cudnnlite.autotune.database import write_database
from cudnnlite.bench.networks import network_problems
from cudnnlite.search.database import (
    Database,
    digest_of,
    family_of,
    read_database,
    row_to_plain,
)
from cudnnlite.search.timing_policy import TimingPolicy
from tools.benchmarks.candidate_order import by_rank, orders, run_race, with_winners
from tools.record.candidates import (
    FIELDS,
    Measured,
    line_of,
    measure,
    origin_of,
    policy_for,
    problems_to_measure,
    put_choices,
    read,
    shipped_database,
)

FMA = dnn.MathType.FMA
PROBLEM = dnn.convolution_forward.problem(
    dnn.TensorSpec((1, 4, 6, 5)), dnn.FilterSpec((3, 4, 3, 3))
)


def row(engine, time_ms, rank=None, host_us=None):
    return dnn.AlgorithmResult(
        dnn.Engine(engine), FMA, time_ms=time_ms, spread_ms=0.0, heuristic=rank, host_us=host_us
    )


def test_a_line_has_what_was_measured(tmp_path):
    with dnn.Handle("emulated") as handle:
        table = dnn.Tuner(handle, ":memory:", policy_for(PROBLEM)).tune(PROBLEM)
    file = tmp_path / "times.jsonl"
    file.write_text("{}\n" + 2 * (line_of(PROBLEM, table) + "\n"))
    (measured,) = read([file])
    assert (measured.digest, measured.family) == (digest_of(PROBLEM), family_of(PROBLEM))
    expected = [entry for entry in table if entry.ok and entry.time_ms is not None]
    assert expected
    for ours, other in zip(measured.rows, expected, strict=True):
        assert ours.algorithm == other.algorithm
        for name in FIELDS:
            assert getattr(ours, name) == getattr(other, name)
    assert all(isinstance(entry.algorithm, dnn.Engine) for entry in measured.rows)


def test_choices_are_those_of_a_recording(tmp_path):
    """Only problems of networks have one."""
    rows = [row(0, 0.010, 0, 8.0), row(1, 0.008, 1, 8.0), row(2, 0.007, 2, 90.0)]
    plain = [[row_to_plain(each), *(getattr(each, name) for name in FIELDS)] for each in rows]
    file = tmp_path / "times.jsonl"
    database = Database("a", "9.0", "9.19")
    listed, other = list(network_problems(["mamba"]))[:2]
    lines = [json.dumps(origin_of(database))]
    for problem in (listed, PROBLEM):
        lines.append(json.dumps([digest_of(problem), family_of(problem), plain]))
    file.write_text("\n".join(lines) + "\n")
    target = tmp_path / "database.json"
    earlier = row_to_plain(rows[0])
    database.families = {"a": {digest_of(other): earlier}, "b": {digest_of(PROBLEM): earlier}}
    write_database(database, target)
    put_choices([file], target)
    written = read_database(target)
    assert written.find(listed).algorithm == dnn.Engine(1)
    digests = {digest for rows in written.families.values() for digest in rows}
    assert digests == {digest_of(listed), digest_of(other)}
    write_database(Database("a", "9.0", "9.20"), target)
    with pytest.raises(SystemExit, match=r"needed: .*9\.20"):
        put_choices([file], target)
    assert len(read_database(target)) == 0
    file.write_text("{}\n" + json.dumps(["0", "", [plain[0][:-1]]]) + "\n")
    with pytest.raises(SystemExit, match="other fields than heuristic"):
        list(read([file]))


def test_the_emulated_devices_times_are_not_recorded(tmp_path):
    arguments = argparse.Namespace(device="emulated", seconds=1.0, which=0, part_of=1)
    with pytest.raises(dnn.ArgumentError, match="say nothing about a GPU"):
        measure(tmp_path / "times.jsonl", arguments)


@pytest.mark.parametrize(
    ("layout", "channels", "groups", "interface", "layouts"),
    [
        ("NHWC", 3, 1, None, None),
        ("NHWC", 16, 1, "graph", ()),
        ("NHWC", 16, 16, "graph", None),
        ("NCHW", 3, 1, "graph", None),
    ],
)
def test_candidates_that_never_won_are_left_out(layout, channels, groups, interface, layouts):
    x = dnn.TensorSpec((2, channels, 9, 8), "float16", layout)
    w = dnn.FilterSpec((16, channels // groups, 3, 3), "float16", layout)
    conv = dnn.ConvolutionSpec(groups=groups)
    forward = dnn.convolution_forward.problem(x, w, conv)
    backward = dnn.convolution_backward_data.problem(w, forward.y, conv, x=x)
    for problem in (forward, backward):
        policy = policy_for(problem)
        assert (policy.interface, policy.layouts) == (interface, layouts)


def test_a_part_of_the_problems_stays_the_same():
    first, second = (
        [digest_of(p) for p in problems_to_measure((), which, 2)] for which in range(2)
    )
    assert first
    assert not set(first) & set(second)
    known = set(first[:31] + second[:50])
    assert [digest_of(p) for p in problems_to_measure(known, 0, 2)] == first[31:]
    assert [digest_of(p) for p in problems_to_measure(known, 1, 2)] == second[50:]


def test_the_problems_of_some_networks_and_families_again():
    some = {"names": ["mamba", "resnext101"], "family": "channels last depthwise"}
    again = problems_to_measure((), 0, 1, **some, again=True)
    # Five widths, three arithmetics with the channels last, forward and two gradients.
    assert len(again) == 45
    assert {problem.values["w"].shape[1:] for problem in again if "w" in problem.values} == {(1, 4)}
    shipped = shipped_database()
    known = {problem for problem in again if shipped.find(problem)}
    assert known
    assert set(problems_to_measure((), 0, 1, **some)) == set(again) - known


def test_winners_take_turns_with_the_heuristics_order():
    rows = [row(5, 1.0), *(row(engine, 1.0, rank) for rank, engine in enumerate((9, 8, 7, 6)))]
    winners = [row(5, 0.1), row(4, 0.1), row(6, 0.1), row(7, 0.1)]
    engines = [entry.algorithm.index for entry in with_winners(rows, winners)]
    assert engines == [9, 5, 6, 8, 7]
    assert [entry.algorithm.index for entry in by_rank(rows)] == [9, 8, 7, 6]


def test_each_half_has_the_winners_of_the_other():
    slow_first = [row(0, 1.0, 0), row(1, 0.9, 1), row(2, 0.8, 2), row(3, 0.5, 3)]
    problems = [Measured(str(number), "family", tuple(slow_first)) for number in range(4)]
    for ranked, ordered, least_ms in orders(problems):
        assert least_ms == 0.5
        assert ranked[1].algorithm.index == 1
        assert ordered[1].algorithm.index == 3


@pytest.mark.parametrize(("losers", "winner_ms"), [(2, 1.0), (3, 0.5)])
def test_a_race_over_recorded_times(losers, winner_ms):
    rows = [row(0, 1.0), row(1, 2.0), row(2, 2.0), row(3, 0.5)]
    timing = TimingPolicy(real_losers=losers, real_sample_ms=0.0)
    ms, count, spent_ms = run_race(rows, timing)
    assert (ms, count) == (winner_ms, 1 + losers)
    assert spent_ms >= 2 * (1.0 + 2.0 * 2)
