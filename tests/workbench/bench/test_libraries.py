"""Runs of what cuDNN answers without a GPU."""

import re

import cudnnlite as dnn
from cudnnlite.types import Engine
from cudnnlite.workbench.absent.answers import Answer, Candidate
from cudnnlite.workbench.absent.candidates import Candidates
from cudnnlite.workbench.bench.comparison import RunComparison
from cudnnlite.workbench.bench.comparison_texts import lines_of
from cudnnlite.workbench.bench.libraries import run_of_answers
from cudnnlite.workbench.bench.lists import matmul_problem
from cudnnlite.workbench.tuning.problem_list import ListedProblem


def answer(engine, cudnn, workspace=64):
    """Return what cuDNN would answer: an engine of that number, or that it has none for None."""
    found = Answer((), "no engine")
    if engine is not None:
        row = Candidate(Engine(engine), (), False, True, workspace=workspace, seconds=0.25)
        found = Answer((row,))
    return Candidates("", dnn.types.DeviceProperties.named("h200"), cudnn, found)


def test_answers_about_an_absent_gpu_compare_as_runs_do():
    items = [
        ListedProblem(matmul_problem(1, 5, n, 3, "float16"), 2, (f"layer {n}",))
        for n in (7, 8, 9, 10, 11, 12)
    ]
    engines_of_a = (1, 2, 3, None, 6, 6)
    engines_of_b = (1, None, 4, 5, 6, 6)
    sizes_of_b = (64, 64, 64, 64, 65, 63)
    answers_of_a = [answer(name, "9.14.0") for name in engines_of_a]
    answers_of_b = [
        answer(name, "9.19.0", workspace=size)
        for name, size in zip(engines_of_b, sizes_of_b, strict=True)
    ]
    a = run_of_answers(items, answers_of_a, "H200", "old/libcudnn.so.9")
    b = run_of_answers(items, answers_of_b, "H200", "new/libcudnn.so.9")
    assert a.facts["device"] == "H200, which is absent"
    assert (a.facts["cuDNN"], b.facts["cuDNN"]) == ("9.14.0", "9.19.0")
    assert b.facts["libcudnn"] == "new/libcudnn.so.9"
    assert [row.workspace for row in b.rows] == [64, None, 64, 64, 65, 63]
    assert a.rows[0].flops == 2 * 5 * 7 * 3
    assert b.rows[1].status == "not served: no engine"
    comparison = RunComparison(a, b)
    assert [pair.verdicts for pair in comparison.pairs] == [
        (),
        ("no longer served",),
        ("chosen otherwise",),
        ("served now",),
        ("more workspace",),
        ("less workspace",),
    ]
    assert comparison.totals is None
    text = "\n".join(lines_of(comparison, ("old", "new")))
    assert "layer 8: not served: no engine" in text
    assert "layer 10: with A not served: no engine" in text
    assert re.search("engine 6, 64 B +engine 6, 65 B +layer 11 +more workspace", text)
