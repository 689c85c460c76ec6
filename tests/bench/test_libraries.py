"""What the files of two libraries differ in, and runs of what cuDNN answers without a GPU."""

import ctypes
import re
from pathlib import Path

import pytest

import cudnnlite as dnn
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite._raw.library import load_library
from cudnnlite.absent.answers import Answer, Candidate
from cudnnlite.absent.candidates import Candidates
from cudnnlite.bench.comparison import RunComparison
from cudnnlite.bench.comparison_texts import lines_of
from cudnnlite.bench.libraries import (
    LibraryFacts,
    libraries_to_plain,
    library_facts,
    library_lines,
    run_of_answers,
)
from cudnnlite.bench.lists import matmul_problem
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.engines import Engine
from cudnnlite.problems.problem_list import ListedProblem


def test_the_functions_are_those_that_the_loader_finds():
    path = load_library().path
    facts = library_facts(Path(path))
    library = ctypes.CDLL(path)
    found = {name for name in FUNCTIONS if hasattr(library, name)}
    assert found == facts.functions & set(FUNCTIONS)
    assert len(found) > 200
    assert not hasattr(library, "cudnnNoSuchFunction")
    assert "cudnnNoSuchFunction" not in facts.functions
    assert facts.parts
    assert all(name.startswith("libcudnn_") for name in facts.parts)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"text", None])
def test_a_file_that_is_no_library_is_refused(tmp_path, content):
    path = tmp_path / "libcudnn.so.9"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ArgumentError, match="is no libcudnn"):
        library_facts(path)


def test_what_one_library_has_alone_is_listed():
    both = {"cudnnCreate", "cudnnDestroy"}
    many = {f"cudnnNew{number:02}" for number in range(14)}
    a = LibraryFacts("a/libcudnn.so.9", frozenset(both | {"cudnnOld"}), frozenset({"x", "y"}))
    b = LibraryFacts("b/libcudnn.so.9", frozenset(both | many), frozenset({"x"}))
    assert [*library_lines(a, b)] == [
        "A exports 3 functions, and has 2 parts: a/libcudnn.so.9",
        "B exports 16 functions, and has 1 part: b/libcudnn.so.9",
        "functions of A alone: cudnnOld",
        f"functions of B alone: {', '.join(sorted(many)[:12])} and 2 more",
        "parts of A alone: y",
    ]
    plain = libraries_to_plain(a, b)
    assert plain["functions in B only"] == sorted(many)
    assert plain["parts in B only"] == []
    assert len([*library_lines(a, a)]) == 2


def answer(engine, cudnn, workspace=64):
    """Return what cuDNN would answer: an engine of that number, or that it has none for None."""
    found = Answer((), "no engine")
    if engine is not None:
        row = Candidate(Engine(engine), (), False, True, workspace=workspace, seconds=0.25)
        found = Answer((row,))
    return Candidates("", dnn.DeviceProperties.named("h200"), cudnn, found)


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
