"""What the explanation and contributing pages say of the code is what the code says."""

from __future__ import annotations

import builtins
import json
import re
import statistics
from collections import Counter
from pathlib import Path

import pytest
from helpers.extensions import load

import cudnnlite as dnn
from cudnnlite._raw import library
from cudnnlite._raw.functions import FUNCTIONS
from cudnnlite._raw.types import HEADER_VERSION
from cudnnlite.devices import plan_cache
from cudnnlite.emulated.functions import IMPLEMENTATIONS
from cudnnlite.workbench.tuning.timing_policy import TimingPolicy

ROOT = Path(__file__).parents[2]
EXPLANATION, CONTRIBUTING = ROOT / "docs" / "explanation", ROOT / "docs" / "contributing"
GUIDE, HOWTO = ROOT / "docs" / "guide", ROOT / "docs" / "howto"
RECORDED = {"convolution": 676, "rnn": 932}


def page(name, folder=EXPLANATION):
    """A page's text, each run of blanks as one."""
    return " ".join((folder / name).read_text(encoding="utf-8").split())


def section(name, title):
    """The text under a heading of the second level."""
    match = re.search(
        rf"^## {title}\n(.*?)(?=^## |\Z)",
        (EXPLANATION / name).read_text(encoding="utf-8"),
        re.S | re.M,
    )
    assert match, title
    return match[1]


def rows(text):
    """The cells of the tables in a text, without headings."""
    lines = [
        line for line in text.splitlines() if line.startswith("|") and not line.startswith("| ---")
    ]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def listed(text):
    """The C functions that the lists of a text name."""
    return set(re.findall(r"`(cudnn\w+)`", " ".join(re.findall(r"^(?:- |  ).*$", text, re.M))))


# ---------------------------------------------------------------- the emulated device


def test_the_emulated_functions_are_those_of_the_registry():
    """What a public docstring names as its own, and what the page lists."""
    registered = set(IMPLEMENTATIONS)
    with_device = {name for name in registered if FUNCTIONS[name].needs_device}
    wrapped = {name for name in load("coverage_table").documented() if FUNCTIONS[name].needs_device}
    text = section("emulated_device.md", "Its functions")
    assert listed(text) | wrapped == with_device
    assert {"cudnnConvolutionForward", "cudnnSoftmaxForward", "cudnnRNNForward"} <= wrapped
    assert (
        set(re.findall(r"`(cudnn\w+)`", text.partition("Of the functions that need none")[2]))
        == registered - with_device
    )
    for name in registered - with_device:
        assert f"`{name}`" in page("descriptors_and_the_function_table.md")


@pytest.mark.parametrize("name", RECORDED)
def test_as_many_combinations_were_recorded(name):
    data = json.loads((ROOT / "tests" / "emulated" / "data" / f"{name}_support.json").read_text())
    assert len(data["rows"]) == RECORDED[name]
    assert f"{RECORDED[name]} " in page("emulated_device.md")
    assert f"{RECORDED[name]} " in page("test_without_a_gpu.md", HOWTO)
    assert f"| {RECORDED[name]} |" in (CONTRIBUTING / "gpu_tests.md").read_text()


def test_the_page_of_the_recorders_counts_the_rows_of_the_operations():
    data = json.loads(
        (ROOT / "tests" / "emulated" / "data" / "operations_support.json").read_text()
    )
    assert f"| {len(data['rows'])} |" in (CONTRIBUTING / "gpu_tests.md").read_text()
    assert len(data["rows"]) > 2000


# ---------------------------------------------------------------- libraries


def test_versions_and_parts():
    text = page("which_libcudnn.md")
    newest = f"9.{HEADER_VERSION // 100 % 100}"
    assert f"from 9.0 to {newest} will do" in text
    assert f"generated from the headers of {newest}" in text
    assert "nvidia-cudnn-cu12>=9.0,<10" in (ROOT / "pyproject.toml").read_text()
    assert ", ".join(f"libcudnn_{part}" for part in library._PARTS) in text
    assert library.LIBRARY_VARIABLE in text


# ---------------------------------------------------------------- deprecated functions


def test_the_numbers_of_deprecated_functions():
    marked = [record for record in FUNCTIONS.values() if record.deprecated]
    since_9_0 = [record for record in marked if record.deprecated == "9.0.0"]
    sentence = (
        f"declare {len(FUNCTIONS)} functions; {len(marked)} of them carry the mark, "
        f"{len(since_9_0)} since 9.0."
    )
    assert sentence in page("deprecated.md")
    all_of, marked_of = (
        Counter(record.header for record in records) for records in (FUNCTIONS.values(), marked)
    )
    expected = [
        [f"`cudnn_{name}.h`", str(count), str(marked_of[name])] for name, count in all_of.items()
    ]
    cells = [row[:3] for row in rows(section("deprecated.md", "Which functions"))[1:]]
    assert sorted(cells) == sorted(expected)
    assert "cudnnRNNForward" not in {record.name for record in marked}


def test_the_deprecated_functions_that_we_call_are_listed():
    """On the page, or by a docstring which says that they are."""
    called = set(load("coverage_table").called())
    assert {"cudnnConvolutionForward", "cudnnRNNForward", "cudnnCreate"} <= called
    marked = {name for name in called if FUNCTIONS[name].deprecated}
    docs = [
        doc
        for _, doc, _ in load("coverage_table").public_docstrings()
        if "deprecated since cuDNN" in doc
    ]
    mentions = {
        name for doc in docs for name in re.findall(r"`(cudnn\w+)`", doc.partition("Notes\n")[2])
    }
    assert {"cudnnPoolingForward", "cudnnSetPoolingNdDescriptor"} <= mentions & marked
    assert marked - mentions <= listed(section("deprecated.md", "What we do about it")) <= marked


# ---------------------------------------------------------------- timing


def test_the_numbers_of_the_method():
    text, timing = page("timing.md"), TimingPolicy()
    for phrase in (
        f"more than {timing.give_up:g} times the best",
        f"less than {timing.always_ms:g} ms",
        f"({timing.most_repeats} at most)",
        f"within {timing.close - 1:.0%} of the best",
        f"{timing.further_rounds} more, up to four times",
        f"overwrites {timing.l2_bytes >> 20} MiB",
        "about half a millisecond",
        "nine rounds",
    ):
        assert phrase in text, phrase
    assert (timing.rounds, timing.most_further, timing.sample_ms) == (9, 4, 0.5)


CHOICES = load("run_tables").read_run("choices")


def choice_of(arithmetic, contender):
    """The geometric mean and the worst row of a contender's choices, as the benchmarks have them."""
    row = CHOICES.column("arithmetic, layout").index(arithmetic)
    return [str(figure) for figure in CHOICES.column(contender)[row]]


def test_the_figures_of_cudnnfind_are_those_of_the_benchmarks():
    """A page that quotes another run than the one that it links to is stale."""
    figures = rows(section("timing.md", "Why cudnnFind's figures mislead"))[1:]
    assert len(figures) == 5
    for name, *cells in figures:
        assert cells == choice_of(name, "cudnnFind")


def test_the_ways_to_choose_are_as_good_as_the_benchmarks_say():
    arithmetics = CHOICES.column("arithmetic, layout")
    figures = [
        row
        for row in rows((HOWTO / "choose_and_pin.md").read_text(encoding="utf-8"))
        if row[0] in arithmetics
    ]
    assert len(figures) == 2
    for name, *means in figures:
        assert means == [
            choice_of(name, contender)[0] for contender in ("tuner", "heuristic", "cudnnFind")
        ]


def measured(name):
    """The rows of a table that the notebooks show, by the names of its columns."""
    table = json.loads((ROOT / "examples" / "h200.json").read_text(encoding="utf-8"))["tables"][
        name
    ]
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def test_the_host_overhead_in_cudnnfind_is_that_of_the_table():
    over = [
        row["find_us"] - row["time_us"]
        for row in measured("choosing")
        if row["find_us"] and row["time_us"]
    ]
    sentence = (
        f"{min(over):.0f} to {max(over):.0f} us, the median {statistics.median(over):.0f} (H200"
    )
    assert sentence in page("timing.md")


def test_what_the_choice_for_an_lstm_costs_is_that_of_the_table():
    of_it = ("25 steps, batch 16, 1 x 1024", "float16")
    times = [
        row["time_us"]
        for row in measured("lstm")
        if (row["network"], row["dtype"]) == of_it
        and row["algorithm"] != "PyTorch"
        and row["time_us"]
    ]
    sentence = (
        f"(25 steps, batch 16, hidden size 1024) took {min(times):.0f} us and {max(times):.0f} us "
        "on an H200"
    )
    assert sentence in page("rnn.md", GUIDE)


def test_the_errors_of_true_float32_are_those_of_the_tables():
    text_of_page = page("true_float32.md", HOWTO)
    exact = [
        row
        for name in ("filter_sizes", "precision", "choosing")
        for row in measured(name)
        if row["math_type"] == "FMA"
        and row.get("dtype", row.get("arithmetic", "float32")).startswith("float32")
    ]
    five = [
        row["error"] for row in exact if row.get("taps") == 5 and "WINOGRAD" in row["algorithm"]
    ]
    other_errors = [row["error"] for row in exact if row["error"] and row["error"] not in five]
    assert five
    assert len(other_errors) > 50
    assert "between 1e-7 and 3e-6" in text_of_page
    assert 0.9e-7 < min(other_errors) < max(other_errors) < 3e-6
    assert "was 7e-4 to 2e-3" in text_of_page
    assert 6.5e-4 < min(five) <= max(five) < 2e-3
    lstm = [row for row in measured("lstm") if row["dtype"] == "float32" and row["error"]]
    standard, persistent, rounded = (
        [row["error"] for row in lstm if fits(row)]
        for fits in (
            lambda row: row["math_type"] == "FMA" and row["algorithm"] == "STANDARD",
            lambda row: row["math_type"] == "FMA" and row["algorithm"] != "STANDARD",
            lambda row: row["math_type"] != "FMA",
        )
    )
    for text in (text_of_page, page("rnn.md", GUIDE)):
        assert "3e-4 to 4e-4" in text
        assert "1e-7 to 5e-7 with STANDARD" in text
        assert "up to 5e-6 with the PERSIST" in text
    assert 3e-4 < min(rounded) < max(rounded) < 4e-4
    assert 1e-7 < min(standard) < max(standard) < 5.5e-7
    assert max(persistent) < 5.5e-6


def test_the_gain_by_tf32_is_that_of_the_table():
    kinds = {"true float32": "FMA", "TF32": "DEFAULT"}
    figures = rows(section("tf32.md", "What it gains"))[1:]
    assert len(figures) == 4
    for name, *cells in figures:
        kind, layout = name.split(", ")
        (best,) = (
            row
            for row in measured("precision")
            if (row["dtype"], row["layout"], row["math_type"]) == ("float32", layout, kinds[kind])
            and row["chosen"]
        )
        assert cells == [f"{best['time_us']:.1f}", best["algorithm"], f"{best['error']:.1e}"], name


# ---------------------------------------------------------------- errors, lifetimes


def test_every_public_exception_and_warning_is_told():
    kinds = [
        kind
        for kind in vars(dnn.errors).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ]
    assert len(kinds) > 20
    text = page("errors.md")
    assert [kind.__name__ for kind in kinds if f"`{kind.__name__}`" not in text] == []


def test_the_built_in_exceptions_that_are_told_are_the_right_ones():
    text = (EXPLANATION / "errors.md").read_text(encoding="utf-8")
    pairs = re.findall(r"\| `(\w+Error)` \| `(\w+Error)` \|", text) + re.findall(
        r"`(\w+Error)` \(an? `(\w+Error)`\)", page("errors.md")
    )
    assert len(pairs) >= 12
    for ours, built_in in pairs:
        assert issubclass(getattr(dnn.errors, ours), getattr(builtins, built_in)), (ours, built_in)


def test_the_number_of_plans_that_are_kept():
    assert f"the {plan_cache.MAX_CACHED} that were used last are kept" in page(
        "streams_and_lifetimes.md"
    )


# ---------------------------------------------------------------- contributing


def test_the_house_has_all_rooms():
    """Every module and folder of the package is in the table, and nothing else."""
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## The house")[2]
    rooms = set(re.findall(r"`([\w/]+(?:\.py)?)`", " ".join(row[0] for row in rows(table)[1:])))
    folder = ROOT / "cudnnlite"
    modules = {path.name for path in folder.glob("*.py")} | {
        f"{path.name}/" for path in folder.iterdir() if any(path.glob("*.py"))
    }
    workbench = {
        f"workbench/{path.parent.name}/" for path in folder.glob("workbench/*/__init__.py")
    }
    assert rooms == modules - {"workbench/"} | workbench


ROOMS = [
    path.relative_to(ROOT).as_posix()
    for pattern in ("*", "workbench/*")
    for path in (ROOT / "cudnnlite").glob(pattern)
    if path.is_dir()
]
HOMES = ("tests/device", "tests/emulated", "cudnnlite", *ROOMS, "")  # of a name alone
PATHS = re.compile(
    r"`((?:cudnnlite|tests|docs|examples|_raw|specs|descriptors|devices|operations|problems|"
    r"plans|graph|tools|emulated|workbench|\.ci)/[\w./-]*|\w+\.(?:py|md|toml))`"
)


@pytest.mark.parametrize(
    "path",
    [ROOT / "CONTRIBUTING.md", *sorted(CONTRIBUTING.glob("*.md"))],
    ids=lambda path: path.name,
)
def test_the_files_that_are_named_are_there(path):
    text = path.read_text(encoding="utf-8")
    for name in PATHS.findall(text):
        if name.startswith("X"):  # a family's name to fill in
            continue
        assert any((ROOT / home / name).exists() for home in HOMES), name
    if path.name == "adding_an_operation.md":
        assert len(PATHS.findall(text)) > 12
        assert len(text.splitlines()) <= 200
        excerpts = re.findall(r"^```text\n# as in (\S+)\n(.*?)^```$", text, re.M | re.S)
        assert len(excerpts) == 5
        for name, lines in excerpts:  # which can be read unbuilt, and are what the file says
            source = (ROOT / "cudnnlite" / name).read_text(encoding="utf-8").splitlines()
            assert [line for line in lines.splitlines() if line not in source] == [], name
