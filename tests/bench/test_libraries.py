"""What the files of two libraries differ in, and runs of what cuDNN answers without a GPU."""

import ctypes
from pathlib import Path
from types import SimpleNamespace

import pytest

from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite._raw.library import load_library
from cudnnlite.bench.comparison import RunComparison
from cudnnlite.bench.libraries import (
    LibraryFacts,
    libraries_to_plain,
    library_facts,
    library_lines,
    run_of_answers,
)
from cudnnlite.bench.lists import matmul_problem
from cudnnlite.errors import ArgumentError
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


def answer(engine, cudnn, **fields):
    choice = None
    if engine:
        choice = SimpleNamespace(
            **{
                "engine": engine,
                "deterministic": True,
                "workspace": 64,
                "seconds": 0.25,
                "kernels": (f"kernel of {engine}",),
                **fields,
            }
        )
    why_not = "" if engine else "no engine"
    return SimpleNamespace(choice=choice, why_not=why_not, cudnn=cudnn)


def test_answers_about_an_absent_gpu_compare_as_runs_do():
    items = [
        ListedProblem(matmul_problem(1, 5, n, 3, "float16"), 2, (f"layer {n}",)) for n in (7, 8, 9)
    ]
    engines_of_a, engines_of_b = ("one", "two", "three"), ("one", None, "four")
    a = run_of_answers(items, [answer(name, "9.14.0") for name in engines_of_a], "H200")
    b = run_of_answers(items, [answer(name, "9.19.0") for name in engines_of_b], "H200")
    assert a.facts["device"] == "H200, which is absent"
    assert (a.facts["cuDNN"], b.facts["cuDNN"]) == ("9.14.0", "9.19.0")
    assert [row.workspace for row in b.rows] == [64, None, 64]
    assert a.rows[0].flops == 2 * 5 * 7 * 3
    assert b.rows[1].status == "not served: no engine"
    comparison = RunComparison(a, b)
    assert [pair.verdicts for pair in comparison.pairs] == [
        (),
        ("no longer served",),
        ("chosen otherwise",),
    ]
    assert comparison.totals is None
