"""The report: page and JSON have every figure, and the page needs no other file.

Names do no harm.
"""

import json
import math
import os
import pickle
import random
import re
import subprocess
import sys
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from helpers.tunings import (
    CLOSE,
    DYNAMIC,
    FACTS,
    FFT,
    GEMM,
    KIB,
    MIB,
    NOTHING,
    PRECOMP,
    STANDARD,
    STATIC,
    TIMING,
    WINOGRAD,
    WRONG,
    A,
    M,
    Row,
    failed,
    lstm,
    model,
    tuned,
)

import cudnnlite as dnn
from cudnnlite.devices.peaks import CARDS
from cudnnlite.errors import MissingPackageError
from cudnnlite.problems.problem import problem_from_plain
from cudnnlite.problems.results import named
from cudnnlite.problems.work import work_of
from cudnnlite.workbench.report.page import SCHEMA, to_plain, write_html
from cudnnlite.workbench.tuning.entries import row_from_plain, row_to_plain
from cudnnlite.workbench.tuning.model_tuning import ModelTuning
from cudnnlite.workbench.tuning.problem_list import SkippedNode

EVIL = """"'><script>alert(1)</script><img src=x onerror=y> & {{ 7*7 }} $x$ \x00\ud800</svg>"""
VOID = {"meta", "br", "img", "link", "input", "hr"}
ALL = [
    tuned(count=3, names=("conv1", "conv2")),
    tuned((STATIC, STANDARD, DYNAMIC), lstm(), from_cache=True),
    failed(names=("bad",)),
]


def tuning(tunings, facts=FACTS, skipped=()):
    return ModelTuning(tuple(tunings), facts, skipped)


class Page(HTMLParser):
    """A page as its parts: text by element, tables as lists of rows, attributes, open elements."""

    def __init__(self, text):
        super().__init__()
        self.source, self.open, self.tables, self.attributes, self.texts, self.ids = (
            text,
            [],
            [],
            [],
            {},
            [],
        )
        self.marked, self.scopes = [], []
        self.feed(text)
        self.close()
        assert self.open == [], "not closed"

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        assert len(values) == len(attrs), f"<{tag}> has an attribute twice"
        self.attributes += [(tag, name, value) for name, value in attrs]
        if "id" in values:
            self.ids.append(values["id"])
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
            self.marked.append(
                (len(self.tables) - 1, len(self.tables[-1]) - 1, values.get("class"))
            )
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self.scopes.append((tag, values.get("scope")))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_data(self, data):
        if not self.open:
            assert not data.strip()
            return
        self.texts.setdefault(self.open[-1], []).append(data)
        if {"td", "th"} & set(self.open):
            cell = self.tables[-1][-1]
            cell[-1] = f"{cell[-1]} {data}".strip()

    def of(self, tag):
        return [text.strip() for text in self.texts.get(tag, []) if text.strip()]

    @property
    def all_text(self):
        return "\n".join(
            text for tag, texts in self.texts.items() if tag != "style" for text in texts
        )


@pytest.fixture(scope="module")
def page_of(tmp_path_factory):
    """Write and read a page; the one that most tests look at once."""
    path, whole = tmp_path_factory.mktemp("pages") / "report.html", []

    def write(tunings, facts=FACTS):
        if tunings is ALL and facts is FACTS and whole:
            return whole[0]
        write_html(path, tuning(tunings, facts))
        page = Page(path.read_bytes().decode("utf-8"))
        whole.extend([page] if tunings is ALL and facts is FACTS else [])
        return page

    return write


# ---------------------------------------------------------------- the page


def test_the_summary(page_of):
    page = page_of(ALL)
    heading, *rows = page.tables[0]
    assert heading == [
        "problem",
        "count",
        "algorithm",
        "math type",
        "layout",
        "device ms",
        "workspace",
        "error",
        "runner-up",
        "total device ms",
    ]
    small = "32x64x56x56 by 64x64x3x3 to 32x64x56x56, float16 NHWC, padding=1"
    lstm_title = "bidirectional LSTM 256 to 128 x 2, T=100 N=64, float32, training, math_type='FMA'"
    assert rows == [
        [
            f"conv1 and 1 more {small}",
            "3",
            "IMPLICIT_PRECOMP_GEMM",
            "TENSOR_OP",
            "as given",
            "0.0333",
            "96 KiB",
            "7.7e-04",
            "IMPLICIT_PRECOMP_GEMM DEFAULT, +1.8 %, within the noise",
            "0.0999",
        ],
        [
            lstm_title,
            "1",
            "PERSIST_STATIC",
            "TENSOR_OP",
            "as given",
            "1.067",
            "3 MiB",
            "2.3e-04",
            "STANDARD FMA, +471.7 %",
            "1.067",
        ],
        [f"bad {small}", "1", "none", *["-"] * 7],
        ["all 1 of them without a time", "5", *[""] * 7, "1.167"],
    ]


def test_the_candidates_of_a_problem(page_of):
    page = page_of(ALL)
    assert len(page.tables) == 5
    heading, *rows = page.tables[1]
    assert heading == [
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
        "chosen, or why not",
    ]
    assert rows == [
        [
            "IMPLICIT_PRECOMP_GEMM",
            "TENSOR_OP",
            "-",
            "0.0333",
            "0.0016",
            "35.5",
            "24.4",
            "0.1848",
            "96 KiB",
            "7.7e-04",
            "3.3e-03",
            "yes",
            "chosen; on the front",
        ],
        [
            "IMPLICIT_PRECOMP_GEMM",
            "DEFAULT",
            "-",
            "0.0339",
            "0.0013",
            "34.7",
            "17.0",
            "0.0345",
            "172 KiB",
            "1.1e-03",
            "2.2e-03",
            "yes",
            "1.8 % slower",
        ],
        [
            "WINOGRAD",
            "DEFAULT",
            "NCHW",
            "0.0607",
            "0.0009",
            "60.8",
            "19.5",
            "-",
            "8 B",
            "9.8e-04",
            "1.8e-03",
            "yes",
            "82.3 % slower; on the front",
        ],
        [
            "IMPLICIT_GEMM",
            "FMA",
            "-",
            "0.1518",
            "0.0055",
            "-",
            "-",
            "-",
            "0 B",
            "1.4e-07",
            "2.0e-07",
            "yes",
            "4.56 times the time; on the front",
        ],
        [
            "GEMM",
            "FMA",
            "-",
            "0.9123",
            "-",
            "-",
            "-",
            "0.9876",
            "81 MiB",
            "1.1e-07",
            "4.1e-07",
            "no",
            "27.4 times the time; not repeated: more than 3 times the best",
        ],
        [
            "FFT",
            "DEFAULT",
            *["-"] * 6,
            "300 MiB",
            "-",
            "-",
            "yes",
            "needs 300 MiB, the limit is 64 MiB",
        ],
        [
            "FFT_TILING",
            "TENSOR_OP",
            *["-"] * 6,
            "1 MiB",
            "inf",
            "-",
            "yes",
            "wrong: relative error inf",
        ],
        ["DIRECT", "DEFAULT", *["-"] * 9, "yes", "NOT_SUPPORTED"],
    ]
    assert [(table, row) for table, row, kind in page.marked if kind == "chosen"] == [
        (1, 1),
        (2, 1),
    ]


def test_columns_without_a_figure_are_left_out(page_of):
    heading, *rows = page_of(ALL).tables[2]
    assert heading == [
        "algorithm",
        "math",
        "device ms",
        "workspace",
        "reserve",
        "error",
        "chosen, or why not",
    ]
    assert rows == [
        [
            "PERSIST_STATIC",
            "TENSOR_OP",
            "1.0670",
            "3 MiB",
            "41 MiB",
            "2.3e-04",
            "chosen; on the front",
        ],
        [
            "STANDARD",
            "FMA",
            "6.1000",
            "1 MiB",
            "40 MiB",
            "1.0e-07",
            "5.72 times the time; on the front",
        ],
        ["PERSIST_DYNAMIC", "DEFAULT", "-", "-", "-", "-", "NOT_SUPPORTED: a < b & c"],
    ]


def test_what_was_skipped_is_told(tmp_path):
    path = tmp_path / "page.html"
    write_html(
        path, tuning(ALL, skipped=(SkippedNode("up<b>", "ConvTranspose", "no such problem"),))
    )
    text = path.read_text()
    assert '<li><b>1</b><span><a href="#skipped">skipped, not tuned</a></span></li>' in text
    assert '<h2 id="skipped">Not tuned</h2>' in text
    assert "<li>up&lt;b&gt; (ConvTranspose): no such problem</li>" in text
    assert "1 more, which is no problem" in text
    write_html(path, tuning(ALL))
    assert "Not tuned" not in path.read_text()


def test_what_tuning_gained_comes_first_with_the_model(page_of):
    """The gain over what the heuristic and cudnnFind rank first within the limits.

    It is the same if all problems were remembered.
    """
    before = (
        replace(WINOGRAD, heuristic=3),
        replace(GEMM, heuristic=2),
        replace(FFT, heuristic=0),
    )  # FFT is excluded
    rows = [
        row_from_plain(row_to_plain(row)) for row in (replace(PRECOMP, heuristic=None), *before)
    ]
    problems = [
        tuned(rows, count=3, from_cache=True),
        tuned((STATIC,), lstm(), from_cache=True),
        failed(),
    ]
    facts = {**FACTS, "model": ["a.onnx", "b.onnx"]}
    plain = to_plain(tuning(problems, facts))["model"]["gains"]
    assert plain["heuristic"] == {
        "ratio": pytest.approx(0.9123 / 0.0333),
        "problems": 1,
        "math_types": ["FMA"],
    }
    assert plain["cudnnFind"] == {"ratio": 1, "problems": 1, "math_types": ["TENSOR_OP"]}
    page = page_of(problems, facts)
    assert page.of("h1") == ["a.onnx, b.onnx: 3 problems on NVIDIA H200"]
    assert list(zip(page.of("b"), page.of("span"), strict=True))[:2] == [
        (
            "1.00 times as fast",
            "as what cudnnFind ranks first (math TENSOR_OP), in 1 of 3 problems",
        ),
        ("27.40 times as fast", "as what cuDNN's heuristic prefers (math FMA), in 1 of 3 problems"),
    ]
    only = [tuned((CLOSE, replace(GEMM, heuristic=0)))]
    latency = to_plain(tuning(only, {"policy": {"objective": "latency"}}))["model"]
    assert latency["gains"]["heuristic"]["ratio"] == pytest.approx(
        0.9123 / 0.0347
    )  # no call of it was timed


def test_every_problem_has_a_section_and_every_link_a_target(page_of):
    page = page_of(ALL)
    assert page.of("title") == ["cudnnlite autotune: 3 problems on NVIDIA H200"]
    assert page.of("h1") == ["3 problems on NVIDIA H200"]
    lstm_title = "bidirectional LSTM 256 to 128 x 2, T=100 N=64, float32, training, math_type='FMA'"
    assert page.of("h2") == [
        "Summary",
        "conv1 and 1 more",
        lstm_title,
        "bad",
        "One workspace for all",
        "How to read this",
    ]
    assert len(page.ids) == len(set(page.ids))
    targets = {value[1:] for _, name, value in page.attributes if name == "href"}
    labels = {value for _, name, value in page.attributes if name == "aria-labelledby"}
    assert {"p1", "p2", "p3"} <= targets | labels <= set(page.ids)
    assert "3 calls in the model; measured now" in page.of("p")
    assert "remembered, not measured now" in page.of("p")
    assert "Layers: conv1, conv2" in page.of("p")
    assert str(ALL[1].problem) in page.of("code")


def test_versions_and_policy(page_of):
    page = page_of(ALL)
    facts = dict(zip(page.of("dt"), page.of("dd"), strict=True))
    assert {name: facts[name] for name in FACTS if name != "policy"} == {
        name: text for name, text in FACTS.items() if name != "policy"
    }
    assert {
        name: facts[name]
        for name in ("objective", "workspace limit", "deterministic", "max error", "layouts")
    } == {
        "objective": "device",
        "workspace limit": "64 MiB",
        "deterministic": "no",
        "max error": "-",
        "layouts": "NCHW",
    }
    assert dict(zip(page.of("b"), page.of("span"), strict=True)) == {
        "1.167 device ms": "total of 4 calls",
        "3 MiB": "workspace",
        "3": "problems, 1 from the cache",
        "1": "without an algorithm",
        "1.02 times as fast": "as what cudnnFind ranks first (math DEFAULT), in 1 of 3 problems",
    }


def test_facts_may_be_nested_or_missing(page_of):
    page = page_of(
        [], {"device": None, "packages": {"numpy": "2.0", "onnx": None}, "ports": [1, 2], "": ""}
    )
    assert list(zip(page.of("dt"), page.of("dd"), strict=False))[:4] == [
        ("device", "-"),
        ("packages: numpy", "2.0"),
        ("packages: onnx", "-"),
        ("ports", "1, 2"),
    ]
    assert page.of("h1") == ["0 problems"]


def test_one_problem(page_of):
    page = page_of([tuned(names=("conv1",))])
    assert page.of("h1") == ["conv1 on NVIDIA H200"]
    assert len(page.tables) == 2
    assert dict(zip(page.of("b"), page.of("span"), strict=True)) == {
        "IMPLICIT_PRECOMP_GEMM": "chosen, math TENSOR_OP",
        "0.0333 device ms": "a call",
        "96 KiB": "workspace",
        "1.02 times as fast": "as what cudnnFind ranks first (math DEFAULT)",
    }
    assert len(page.tables[0]) == 2  # no total of one


def test_nothing(page_of):
    page = page_of([])
    assert page.tables == []
    assert "Nothing was tuned." in page.of("p")
    assert page.of("h1") == ["0 problems on NVIDIA H200"]


def test_a_problem_without_a_choice(page_of):
    problem = failed()
    page = page_of([problem])
    assert page.of("strong") == ["Nothing was chosen."]
    assert "\n".join(page.of("pre")) == problem.why_none
    assert page.tables[0][1][2:] == ["none", *["-"] * 7]
    assert page.tables[1][1] == ["DIRECT", "DEFAULT", "-", "-", "-", "yes", "NOT_SUPPORTED"]
    assert bars(page) == []


def test_rows_without_times(page_of):
    problem = tuned((Row(A.GEMM, M.FMA, workspace=MIB), Row(A.FFT, M.FMA)))
    page = page_of([problem])
    assert page.tables[0][1][2:] == ["GEMM", "FMA", "as given", "-", "1 MiB", "-", "-", "-"]
    assert [row[-1] for row in page.tables[1][1:]] == ["chosen", "not timed"]
    assert bars(page) == []


def test_one_kernel_is_one_row_and_the_runner_up_another(page_of):
    same = replace(CLOSE, algorithm=A.GEMM, workspace=0, same_kernel=named(CLOSE))
    replayed = replace(CLOSE, replay=True, call_us=20.0)
    page = page_of([tuned((CLOSE, same, replayed, WINOGRAD))])
    heading, row, *_ = page.tables[0]
    assert row[heading.index("runner-up")] == "WINOGRAD DEFAULT, NCHW, +79.1 %"
    algorithms = [row[0] for row in page.tables[1][1:]]
    assert algorithms == [
        "IMPLICIT_PRECOMP_GEMM also GEMM (DEFAULT)",
        "IMPLICIT_PRECOMP_GEMM",
        "WINOGRAD",
    ]
    assert "4 candidates in 3 kernels, times" in page.all_text


def test_rates_beside_the_peaks(page_of):
    one = tuned((CLOSE, WINOGRAD, WRONG))
    table = dnn.AlgorithmTable(
        one.table, title="t", timing=TIMING, work=work_of(one.problem), peaks=CARDS["H200"]
    )
    page = page_of([one._replace(table=table), failed()])
    heading, row, without, _ = page.tables[0]
    # The least time is that of 7.4 GFLOP, 7.5 us: 26 MB take 5.4 us.
    tflops = one.problem.flops / 33.9e-6 / 1e12
    least_us = max(one.problem.flops / 989.5e12, work_of(one.problem).nbytes / 4.8e12) * 1e6
    places = [heading.index(name) for name in ("TFLOP/s", "roofline")]
    assert [row[place] for place in places] == [
        f"{tflops:.4g}",
        f"{least_us / 33.9:.0%} arithmetic",
    ]
    assert [without[place] for place in places] == ["-", "-"]
    heading, *rows = page.tables[1]
    assert rows[0][heading.index("TFLOP/s")] == f"{tflops:.4g}"
    assert rows[2][heading.index("TFLOP/s")] == "-"
    plain = to_plain(tuning([one._replace(table=table)]))["problems"][0]["rows"][0]
    assert plain["tflops"] == pytest.approx(tflops)
    assert (plain["roofline"], plain["bound"]) == (pytest.approx(least_us / 33.9), "arithmetic")


def test_an_empty_table(page_of):
    page = page_of([tuned(()), tuned()])
    assert page.tables[1] == [["algorithm", "math", "device ms", "workspace", "chosen, or why not"]]


def test_the_emulated_device_is_named(page_of):
    note = "The device is emulated: the times are NumPy's on this processor, not those of a GPU."
    assert note not in page_of(ALL).all_text
    page = page_of(
        ALL,
        {
            **FACTS,
            "device": "emulated:0",
            "batches": {"8": {"ms a sample": 1 / 3, "workspace": KIB}},
        },
    )
    assert note in page.of("strong")
    assert "times as fast" not in page.all_text  # that would be said of NumPy's noise
    assert [
        page.of("dd")[page.of("dt").index(f"batches: 8: {name}")]
        for name in ("ms a sample", "workspace")
    ] == [
        "0.3333",
        "1 KiB",
    ]
    assert note in page_of([tuned(timing="median of calls on <emulated:0>")]).of("strong")


def test_latency_compares_calls(page_of):
    facts = {**FACTS, "policy": {"objective": "latency"}}
    page = page_of([tuned((CLOSE, PRECOMP, NOTHING), count=2), failed()], facts)
    heading, row, *_ = page.tables[0]
    assert heading[5:7] == ["device ms", "call ms"]
    assert row[5:] == [
        "0.0339",
        "0.0347",
        "172 KiB",
        "1.1e-03",
        "IMPLICIT_PRECOMP_GEMM TENSOR_OP, +2.3 %",
        "0.0694",
    ]
    assert page.tables[1][2][-1] == "2.3 % slower; on the front"


# ---------------------------------------------------------------- it needs nothing else


def test_the_page_refers_to_nothing_outside(page_of):
    page = page_of([*ALL, *model(3)])
    assert not re.findall(r"(?:https?:)?//[a-z]", page.source)
    assert "@import" not in page.source
    assert "url(" not in page.source
    outside = {"src", "srcset", "action", "data", "poster", "xlink:href", "background"}
    assert [attribute for attribute in page.attributes if attribute[1] in outside] == []
    assert {value[0] for _, name, value in page.attributes if name == "href"} == {"#"}
    assert {tag for tag, _, _ in page.attributes} & {
        "script",
        "link",
        "iframe",
        "object",
        "embed",
        "base",
    } == set()
    assert "script" not in page.texts


def bars(page):
    """Return the lengths of the bars, in percent."""
    return [
        float(width) for width in re.findall(r'class="bar" style="width: ([^%]*)%"', page.source)
    ]


def test_bars_are_as_long_as_the_times(page_of):
    totals = [3 * 0.0333, 1.067]
    expected = [100 * total / 1.067 for total in totals]
    for times in ([0.0333, 0.0339, 0.0607, 0.1518, 0.9123], [1.067, 6.1]):
        longest = min(times[-1], 12 * times[0])  # long bars are cut, so that short ones compare
        expected += [100 * min(ms / longest, 1) for ms in times]
    page = page_of(ALL)
    assert bars(page) == pytest.approx(expected, abs=0.05)
    used, defined = (set(re.findall(form, page.source)) for form in (r"var\((--\w+)", r"(--\w+):"))
    assert used <= defined


def test_tables_can_be_read_aloud(page_of):
    page = page_of(ALL)
    assert {scope for tag, scope in page.scopes if tag == "th"} == {"col", "row"}
    assert {scope for tag, scope in page.scopes if tag == "td"} == {None}
    assert page.source.count("<caption>") == len(page.of("div")) == 5
    assert ("html", "lang", "en") in page.attributes
    boxes = [value for tag, name, value in page.attributes if tag == "div" and name == "tabindex"]
    assert boxes == ["0"] * 5  # what scrolls can be scrolled by the keyboard


def test_names_are_text(page_of):
    problems = [
        tuned((PRECOMP, replace(DYNAMIC, why_not=EVIL)), names=(EVIL, EVIL), timing=EVIL),
        failed(names=(EVIL,)),
        *ALL,
    ]
    problems[1] = problems[1]._replace(why_none=f"{EVIL}\nand more")
    page = page_of(problems, {**FACTS, "device": EVIL.replace("\x00", ""), EVIL: EVIL})
    assert "<script" not in page.source
    assert "<img" not in page.source
    assert "&lt;script&gt;alert(1)" in page.source
    assert "49" not in page.of("h2")[1]
    assert "{{ 7*7 }}" in page.of("h2")[1]
    assert "onerror" not in {name for _, name, _ in page.attributes}
    assert "and more" in page.of("pre")[0]


# ---------------------------------------------------------------- size and sameness


def test_the_same_input_gives_the_same_bytes(tmp_path):
    write_html(tmp_path / "a.html", tuning(ALL))
    write_html(tmp_path / "b.html", tuning(ALL, dict(FACTS)))
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


@pytest.mark.processes
def test_another_process_gives_the_same_bytes(tmp_path):
    """Where strings have other hashes, sets have another order."""
    problems = ALL[1:]
    (tmp_path / "given").write_bytes(pickle.dumps(tuning(problems)))
    code = "import pickle, sys; from cudnnlite.workbench.report.page import write_html; "
    code += "from pathlib import Path; "
    code += "write_html(Path(sys.argv[2]), pickle.loads(Path(sys.argv[1]).read_bytes()))"
    arguments = [sys.executable, "-c", code, tmp_path / "given", tmp_path / "there.html"]
    subprocess.run(arguments, check=True, env={**os.environ, "PYTHONHASHSEED": "1"})
    write_html(tmp_path / "here.html", tuning(problems))
    assert (tmp_path / "there.html").read_bytes() == (tmp_path / "here.html").read_bytes()


def test_of_many_problems_each_has_a_table(page_of):
    page = page_of(model(60))
    assert len(page.tables) == 62
    assert len(page.tables[0]) == 62
    assert len(page.source) < 500_000


# ---------------------------------------------------------------- JSON


def test_json_holds_every_figure():
    facts = {
        **FACTS,
        "policy": {**FACTS["policy"], "max_error": float("nan")},
        "odd": {1: (float("inf"), M.FMA)},
    }
    plain = to_plain(tuning(ALL, facts))
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert list(plain) == ["schema", "facts", "problems", "model", "skipped", "notes"]
    assert plain["schema"] == SCHEMA == 1
    assert plain["facts"]["device"] == "NVIDIA H200"
    assert plain["facts"]["policy"]["max_error"] is None
    assert plain["facts"]["odd"] == {"1": [None, "FMA"]}
    for problem, original_problem in zip(plain["problems"], ALL, strict=True):
        assert problem_from_plain(problem["problem"]) == original_problem.problem
        assert (problem["count"], tuple(problem["names"]), problem["from_cache"]) == (
            original_problem.count,
            original_problem.names,
            original_problem.from_cache,
        )
        assert (problem["title"], problem["timing"], problem["flops"]) == (
            original_problem.title,
            TIMING,
            original_problem.problem.flops,
        )
        assert len(problem["rows"]) == len(original_problem.table)
        for row, original in zip(problem["rows"], original_problem.table, strict=True):
            assert row["ok"] is original.ok
            beside = ("ok", "why_not_chosen", "tflops", "roofline", "bound")
            read = row_from_plain(
                {name: value for name, value in row.items() if name not in beside}
            )
            finite_rows = [
                replace(one, error=None) if one.error and math.isinf(one.error) else one
                for one in (read, original)
            ]
            assert finite_rows[0] == finite_rows[1]
            of_candidates = {item.name for item in fields(dnn.AlgorithmResult)}
            assert of_candidates - {"passed_over", "source", "conversions"} <= row.keys()


def test_json_tells_the_choice():
    first, second, third = to_plain(tuning(ALL))["problems"]
    assert (first["chosen"], first["total_ms"], first["pareto"]) == (0, 3 * 0.0333, [3, 2, 0])
    assert first["runner_up"] == {
        "row": 1,
        "slower_ms": pytest.approx(0.0006),
        "ratio": pytest.approx(0.0339 / 0.0333),
        "within_noise": True,
    }
    assert [row["why_not_chosen"] for row in first["rows"][:2]] == ["", "1.8 % slower"]
    assert (second["chosen"], second["runner_up"]["row"], second["runner_up"]["within_noise"]) == (
        0,
        1,
        False,
    )
    assert (third["chosen"], third["runner_up"], third["total_ms"], third["pareto"]) == (
        None,
        None,
        None,
        [],
    )
    assert third["why_none"] == ALL[2].why_none != ""
    assert third["rows"][1]["error"] is None  # it is infinite


@pytest.mark.parametrize("seed", range(20))
def test_the_front_by_its_definition(seed):
    numbers = random.Random(seed)
    rows = [
        Row(
            A.GEMM,
            M.FMA,
            time_ms=numbers.choice((None, 0.1, 0.2, 0.3, 0.4)),
            workspace=numbers.randrange(5),
            why_not="no" * (numbers.random() < 0.2),
        )
        for _ in range(12)
    ]
    points_of_rows = {
        (row.workspace, row.time_ms) for row in rows if row.ok and row.time_ms is not None
    }
    expected_front = {
        (size, ms)
        for size, ms in points_of_rows
        if not any(s <= size and t <= ms and (s, t) != (size, ms) for s, t in points_of_rows)
    }
    front = to_plain(tuning([tuned(rows)]))["problems"][0]["pareto"]
    assert [(rows[index].workspace, rows[index].time_ms) for index in front] == sorted(
        expected_front
    )
    assert all(rows[index].ok for index in front)


def test_json_of_a_model():
    plain = to_plain(tuning(ALL))["model"]
    curve = plain.pop("shared_workspace")
    assert plain.pop("gains") == {
        "cudnnFind": {
            "ratio": pytest.approx(0.0339 / 0.0333),
            "problems": 1,
            "math_types": ["DEFAULT"],
        },
        "heuristic": None,
    }
    assert plain == {
        "calls": 5,
        "chosen": 2,
        "from_cache": 1,
        "total_ms": pytest.approx(3 * 0.0333 + 1.067),
        "workspace": 3 * MIB,
    }
    assert curve[0] == {"workspace": MIB, "total_ms": pytest.approx(3 * 0.0333 + 6.1)}
    assert curve[-1] == {"workspace": 3 * MIB, "total_ms": pytest.approx(3 * 0.0333 + 1.067)}
    assert len(curve) == 2


def test_json_under_a_limit():
    problem = tuned()
    problem = problem._replace(chosen=problem.table.best(workspace_limit=KIB))
    (plain,) = to_plain(tuning([problem]))["problems"]
    assert plain["chosen"] == 2
    assert (
        plain["rows"][0]["why_not_chosen"] == "needs 96 KiB, the limit is 1 KiB (0.0274 ms faster)"
    )
    assert plain["runner_up"]["row"] == 3


def test_under_latency_nothing_is_said_of_noise():
    facts = {"policy": {"objective": "latency"}}
    (plain,) = to_plain(tuning([tuned((CLOSE, PRECOMP), count=2)], facts))["problems"]
    assert plain["runner_up"]["within_noise"] is False
    assert plain["runner_up"]["slower_ms"] == pytest.approx(0.0008)
    assert plain["total_ms"] == pytest.approx(2 * 0.0347)


# ---------------------------------------------------------------- what cannot be


def test_what_the_system_refuses_to_write():
    with pytest.raises(
        dnn.ArgumentError, match="path='/dev/full' cannot be written: No space left on device"
    ):
        write_html(Path("/dev/full"), tuning([tuned()]))


def test_a_chosen_row_of_another_table_is_refused():
    with pytest.raises(
        dnn.ArgumentError,
        match=r"chosen=PERSIST_STATIC \(TENSOR_OP\) is no row of <AlgorithmTable of 8",
    ):
        to_plain(tuning([tuned()._replace(chosen=STATIC)]))


def test_without_jinja_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'cudnnlite\[report\]'"):
        write_html(tmp_path / "report.html", tuning(ALL))
    assert list(tmp_path.iterdir()) == []
    assert to_plain(tuning(ALL))["problems"]
