"""Lists of problems: what is equal is counted together, and a file holds all of it."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from helpers.growth import growth
from hypothesis import given, settings
from hypothesis import strategies as st

import cudnnlite as dnn
from cudnnlite import convolution_forward, rnn_forward
from cudnnlite.problems.transform import TRANSFORM
from cudnnlite.types import Problem
from cudnnlite.workbench.tuning.problem_list import (
    FORMAT,
    VERSION,
    ListedProblem,
    ProblemList,
    SkippedNode,
)


def convolution(channels: int = 3, **options: Any) -> Problem:
    return convolution_forward.problem(
        dnn.TensorSpec((32, channels, 224, 224)),
        dnn.FilterSpec((64, channels, 7, 7)),
        dnn.ConvolutionSpec(padding=3, stride=2),
        **options,
    )


def recurrent(lengths: tuple[int, ...] | None = None, **options: Any) -> Problem:
    spec = dnn.RNNSpec("lstm", 8, 16, 2, True, clip=(-1.0, float("inf")), dtype="float16")
    return rnn_forward.problem(
        spec, None, dnn.specs.RNNDataSpec((5, 3, 8), lengths, "float16"), **options
    )


STRIDED = convolution_forward.problem(
    dnn.TensorSpec((2, 3, 4, 5), "bfloat16", strides=(100, 30, 6, 1)),
    dnn.FilterSpec((6, 1, 3, 3), "bfloat16", "NHWC"),
    dnn.ConvolutionSpec((1, 0), 1, 1, 3, math_type="FMA"),
    out=dnn.TensorSpec((2, 6, 4, 3), "float32", "NHWC"),
    alpha=0.1,
    beta=-2.5,
)
KINDS = (convolution(), STRIDED, recurrent(), recurrent((5, 2, 1), training=True))


def full_list() -> ProblemList:
    problems = ProblemList(KINDS)
    problems.add(KINDS[0], "conv1")
    problems.add(KINDS[0], "stage1/conv2 – ü")
    problems.add(KINDS[2], "lstm", count=40)
    problems.skipped.append(SkippedNode("up", "ConvTranspose", "for a reason", ("N",)))
    problems.notes.append("lstm: all are taken to be 5")
    return problems


# ---------------------------------------------------------------- counting


def test_many_names_of_a_problem_take_time_in_proportion():
    problem = convolution()

    def named(number):
        problems, names = ProblemList(), tuple(f"layer{count}" for count in range(number))
        for name in names:
            problems.add(problem, name)
        return problems, names

    problems, names = named(20_000)
    assert list(problems) == [ListedProblem(problem, len(names), names)]
    assert growth(named, 2_500, 20_000) < 20  # 8 in proportion, 64 in the square


def test_equal_problems_are_counted_together_in_the_order_of_the_first():
    problems = ProblemList()
    problems.add(convolution(3), "a")
    problems.add(recurrent())
    # equal, but another object, and written in another way
    problems.add(convolution(3, out=dnn.TensorSpec((32, 64, 112, 112)), alpha=1), "b")
    problems.add(convolution(4), "c", count=5)
    problems.add(convolution(3), "a")
    problems.add(convolution(3))
    assert list(problems) == [
        ListedProblem(convolution(3), 4, ("a", "b")),
        ListedProblem(recurrent(), 1, ()),
        ListedProblem(convolution(4), 5, ("c",)),
    ]
    assert len(problems) == 3
    assert problems.total == 10
    assert problems[-1].problem == convolution(4)
    assert [entry.count for entry in problems[:2]] == [4, 1]
    with pytest.raises(IndexError):
        problems[3]


@pytest.mark.parametrize(
    "other",
    [
        convolution(4),
        convolution(alpha=2.0),
        convolution(beta=1.0),
        recurrent(),
        recurrent((5, 5, 4)),
    ],
    ids=repr,
)
def test_what_differs_is_listed_apart(other):
    problems = ProblemList([convolution(), recurrent(training=True), other])
    assert len(problems) == problems.total == 3


def test_an_empty_list():
    problems = ProblemList()
    assert (len(problems), list(problems), problems.total, problems.skipped, problems.notes) == (
        0,
        [],
        0,
        [],
        [],
    )
    assert not problems
    assert str(problems) == "0 problems, 0 in all"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("conv",), "problem='conv'"),
        ((dnn.TensorSpec((1, 2)),), "problem="),
        ((Problem,), "problem="),
        ((convolution(), 7), "name=7"),
        ((convolution(), None), "name=None"),
        ((convolution(), "", 0), "count=0"),
        ((convolution(), "", -1), "count=-1"),
        ((convolution(), "", 1.0), "count=1.0"),
        ((convolution(), "", True), "count=True"),
    ],
    ids=repr,
)
def test_add_refuses(arguments, message):
    problems = ProblemList()
    with pytest.raises(dnn.ArgumentError) as caught:
        problems.add(*arguments)
    assert message in str(caught.value)
    assert len(problems) == 0


def test_it_may_grow_while_it_is_read():
    problems = ProblemList([convolution(3)])
    for entry in problems:
        problems.add(convolution(4))
        assert entry.problem == convolution(3)
    assert len(problems) == 2


# ---------------------------------------------------------------- files


def test_a_file_holds_all_of_it(tmp_path):
    before, path = full_list(), tmp_path / "problems.json"
    before.save(path)
    after = ProblemList.load(str(path))
    assert list(after) == list(before)
    assert (after.skipped, after.notes) == (before.skipped, before.notes)
    assert [type(entry.problem.math_type) for entry in after] == [dnn.MathType] * 4
    after.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_a_file_can_be_read_by_people_and_by_other_programs(tmp_path):
    full_list().save(tmp_path / "problems.json")
    text = (tmp_path / "problems.json").read_text(encoding="utf-8")
    plain = json.loads(text)
    assert list(plain) == ["format", "version", "problems", "skipped", "notes"]
    assert (plain["format"], plain["version"]) == (FORMAT, VERSION)
    assert [entry["problem"] for entry in plain["problems"]] == [
        problem.to_plain() for problem in KINDS
    ]
    assert [entry["count"] for entry in plain["problems"]] == [3, 1, 41, 1]
    assert plain["problems"][0]["names"] == ["conv1", "stage1/conv2 – ü"]
    assert plain["skipped"] == [{"name": "up", "what": "ConvTranspose", "why": "for a reason"}]
    assert "stage1/conv2 – ü" in text
    assert (
        len(text.splitlines()) == 2 + (1 + 4 + 1) + (1 + 1 + 1) + (1 + 1 + 1) + 1
    )  # a line for each entry


def test_an_empty_list_is_a_file_too(tmp_path):
    ProblemList().save(tmp_path / "none.json")
    assert list(ProblemList.load(tmp_path / "none.json")) == []


def graph_problem() -> Problem:
    """Return a convolution with GELU behind it, which is a graph."""
    x, w = (
        dnn.TensorSpec((2, 8, 9, 7), "float16", "NHWC"),
        dnn.FilterSpec((16, 8, 3, 3), "float16", "NHWC"),
    )
    return convolution_forward.problem(x, w, activation="gelu")


def test_graphs_come_back_from_a_file(tmp_path):
    file = tmp_path / "problems.json"
    problems = ProblemList([graph_problem(), KINDS[0], graph_problem()])
    problems.save(file)
    loaded = ProblemList.load(file)
    assert [(item.problem, item.count) for item in loaded] == [(graph_problem(), 2), (KINDS[0], 1)]
    assert str(loaded) == str(problems)
    graph = loaded[0].problem.graph
    assert isinstance(graph, dnn.Graph)
    with dnn.Handle(device="emulated") as handle, graph.plan(handle) as plan:
        assert plan.problem == graph_problem()


@pytest.mark.parametrize(
    "graph", [None, 3, {}, {"tensors": []}, {"tensors": [], "nodes": []}], ids=repr
)
def test_a_graph_that_is_none_is_refused(tmp_path, graph):
    file = tmp_path / "problems.json"
    ProblemList([graph_problem()]).save(file)
    plain = json.loads(file.read_text())
    plain["problems"][0]["problem"]["graph"] = graph
    file.write_text(json.dumps(plain))
    with pytest.raises(dnn.ArgumentError, match=r"problems\[0\]"):
        ProblemList.load(file)


def test_entries_that_are_equal_are_counted_together_when_loaded(tmp_path):
    path = tmp_path / "problems.json"
    entry = {"count": 2, "names": ["a"], "problem": convolution().to_plain()}
    plain = {
        "format": FORMAT,
        "version": VERSION,
        "problems": [entry, entry | {"names": ["b"]}],
        "skipped": [],
    }
    path.write_text(json.dumps(plain | {"notes": []}))
    assert list(ProblemList.load(path)) == [ListedProblem(convolution(), 4, ("a", "b"))]


@pytest.mark.parametrize("path", [None, 7, ["problems.json"]], ids=repr)
def test_what_is_no_path_is_refused(path):
    for call in (ProblemList().save, ProblemList.load):
        with pytest.raises(dnn.ArgumentError, match="is not a path"):
            call(path)


def test_files_that_cannot_be_opened_are_named(tmp_path):
    for path in (tmp_path, tmp_path / "no" / "folder.json"):
        with pytest.raises(dnn.ArgumentError) as caught:
            full_list().save(path)
        assert f"path={str(path)!r} cannot be written: " in str(caught.value)
        with pytest.raises(dnn.ArgumentError) as caught:
            ProblemList.load(path)
        assert f"path={str(path)!r} cannot be read: " in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe\x00", b"[" * 100_000, b"nothing"], ids=lambda c: repr(c[:8])
)
def test_what_is_not_json_is_named(tmp_path, content):
    path = tmp_path / "problems.json"
    path.write_bytes(content)
    with pytest.raises(dnn.ArgumentError) as caught:
        ProblemList.load(path)
    assert f"path={str(path)!r} is not JSON: " in str(caught.value)


def changed(change: Any) -> dict[str, Any]:
    """Return a good file's contents after a change."""
    plain = {
        "format": FORMAT,
        "version": VERSION,
        "problems": [
            {"count": 1, "names": [], "problem": recurrent().to_plain()},
            {"count": 2, "names": ["a"], "problem": convolution().to_plain()},
        ],
        "skipped": [{"name": "a", "what": "b", "why": "c"}],
        "notes": ["n"],
    }
    change(plain)
    return plain


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.pop("format"), '"format": "cudnnlite problems"'),
        (lambda p: p.update(format="other"), '"format": "cudnnlite problems"'),
        (lambda p: p.update(version=2), "has version 2; this cudnnlite reads 1"),
        (lambda p: p.pop("version"), "has version None"),
        (lambda p: p.pop("problems"), "'problems' is not a list"),
        (lambda p: p.update(problems={}), "'problems' is not a list"),
        (lambda p: p.update(skipped=None), "'skipped' is not a list"),
        (lambda p: p.update(notes="n"), "'notes' is not a list"),
        (lambda p: p["problems"].append(None), "problems[2]: None is not an object"),
        (lambda p: p["problems"].append([]), "problems[2]: [] is not an object"),
        (lambda p: p["problems"][1].pop("count"), "problems[1]: "),
        (lambda p: p["problems"][1].update(cuont=1), "problems[1]: "),
        (lambda p: p["problems"][1].update(count=0), "problems[1]: count=0"),
        (lambda p: p["problems"][1].update(count="2"), "problems[1]: count='2'"),
        (lambda p: p["problems"][1].update(names="a"), "problems[1]: names='a'"),
        (lambda p: p["problems"][1].update(names=[1]), "problems[1]: names=[1]"),
        (lambda p: p["problems"][1].update(names=[""]), "problems[1]: names=['']"),
        (lambda p: p["problems"][1].update(problem=None), "problems[1]: None is not a problem"),
        (lambda p: p["problems"][1]["problem"].update(kind="pooling"), "problems[1]: "),
        (lambda p: p["problems"][1]["problem"].update(kind=[]), "problems[1]: "),
        (lambda p: p["problems"][1]["problem"].pop("w"), "problems[1]: "),
        (lambda p: p["problems"][1]["problem"].update(z=1), "problems[1]: "),
        (lambda p: p["problems"][1]["problem"].update(w=3), "problems[1]: w=3"),
        (lambda p: p["problems"][1]["problem"]["x"].update(shape=[1, 2]), "problems[1]: "),
        (
            lambda p: p["problems"][1]["problem"]["x"].update(dtype="float"),
            "problems[1]: dtype='float'",
        ),
        (lambda p: p["problems"][1]["problem"]["conv"].update(groups=2), "problems[1]: groups=2"),
        (lambda p: p["problems"][0]["problem"]["data"].update(lengths=[5]), "problems[0]: "),
        (lambda p: p["skipped"].append("a"), "skipped[1]: 'a' is not"),
        (lambda p: p["skipped"][0].update(why=None), "skipped[0]: "),
        (lambda p: p["skipped"][0].pop("why"), "skipped[0]: "),
        (lambda p: p["notes"].append(1), "notes[1]: 1 is not a string"),
    ],
)
def test_a_bad_entry_is_named(tmp_path, change, message):
    path = tmp_path / "problems.json"
    path.write_text(json.dumps(changed(lambda plain: None)))
    assert ProblemList.load(path).total == 3  # the file that is changed is good
    path.write_text(json.dumps(changed(change)))
    with pytest.raises(dnn.ArgumentError) as caught:
        ProblemList.load(path)
    assert f"path={str(path)!r}" in str(caught.value)
    assert message in str(caught.value)


def places(plain: Any) -> list[tuple[Any, Any]]:
    """Return every (container, key) in nested lists and dicts."""
    keys = (
        plain if isinstance(plain, dict) else range(len(plain)) if isinstance(plain, list) else ()
    )
    return [place for key in keys for place in ((plain, key), *places(plain[key]))]


JUNK = (
    None,
    True,
    -1,
    0,
    2**70,
    1.5,
    "",
    "float32",
    [],
    [[]],
    {},
    {"spec": []},
    {"kind": "rnn_forward"},
)


@settings(max_examples=300, derandomize=True, database=None)
@given(st.integers(0, 10_000), st.sampled_from(JUNK))
def test_whatever_is_wrong_in_a_file_is_refused_by_name(tmp_path_factory, position, junk):
    plain = changed(lambda plain: None)
    slots = places(plain)
    container, key = slots[position % len(slots)]
    container[key] = copy.deepcopy(junk)
    path = tmp_path_factory.getbasetemp() / "junk.json"
    path.write_text(json.dumps(plain))
    message = f"path={str(path)!r}"
    try:
        loaded = ProblemList.load(path)
    except dnn.ArgumentError as error:
        message = str(error)
    else:  # some fields may hold other values
        assert all(isinstance(entry.problem, Problem) for entry in loaded)
    assert f"path={str(path)!r}" in message


# ---------------------------------------------------------------- printing


def test_it_prints_as_a_table():
    problems = full_list()
    problems.add(KINDS[0], "conv3")
    lines = str(problems).splitlines()
    assert lines[0] == "4 problems, 47 in all"
    assert lines[1].split() == ["count", "GFLOP", "problem", "where"]
    # 2 * 32 * 64 * 112**2 * 3 * 7**2 = 7.55e9
    assert lines[2].split(maxsplit=2)[:2] == ["4", "7.55"]
    assert (
        "32x3x224x224 by 64x3x7x7 to 32x64x112x112, float32 NCHW, padding=3, stride=2 " in lines[2]
    )
    assert lines[2].endswith("  conv1, stage1/conv2 – ü and 1 more")
    assert "bfloat16 strided" in lines[3]
    assert "groups=3" in lines[3]
    assert "bidirectional LSTM 8 to 16 x 2, T=5 N=3, float16" in lines[4]
    assert lines[4].endswith("  lstm")
    assert lines[5].endswith(
        "bidirectional LSTM 8 to 16 x 2, T=5 N=3, 8 steps in all, float16, training"
    )
    assert lines[6:] == [
        "skipped: up (ConvTranspose): for a reason",
        "note: lstm: all are taken to be 5",
    ]
    more = [SkippedNode(f"up{i}", "ConvTranspose", "for a reason") for i in range(2, 29)]
    problems.skipped += [*more, SkippedNode("down", "ConvTranspose", "for another")]
    assert str(problems).splitlines()[6:8] == [
        "skipped: up, up2 and 26 more (ConvTranspose): for a reason",
        "skipped: down (ConvTranspose): for another",
    ]
    del problems.skipped[1:]
    assert str(ProblemList([convolution()])).startswith("1 problem, 1 in all\n")
    assert repr(problems) == "<ProblemList of 4 problems, 47 in all, 1 skipped>"


def test_a_kind_that_the_table_does_not_know_prints_by_itself():
    class Other(Problem):
        def __str__(self) -> str:
            return "something else"

    assert "something else" in str(ProblemList([Other(TRANSFORM, x=dnn.TensorSpec((1, 2, 3, 4)))]))
