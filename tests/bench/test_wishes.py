"""What several wishes cost a model."""

import json
import re

from cudnnlite.bench.comparison import RunComparison
from cudnnlite.bench.rows import BenchRow, BenchRun
from cudnnlite.bench.wishes import cost_lines, cost_markdown, costs_to_plain, write_html

FACTS = {"device": "a GPU", "cuDNN": "9.19.0", "has real timing": True}
NAMES = ("without further options", "--deterministic", "--no-tf32")


def row(name, device_us, **fields):
    values = {"error": 1e-4, "workspace": 1 << 20, "is_chosen": True, **fields}
    return BenchRow(f"problem {name}", name, device_us=device_us, **values)


def run(*rows, **facts):
    return BenchRun(rows, {**FACTS, **facts})


WITHOUT = run(row("one", 100.0, count=3), row("two", 50.0))
DETERMINISTIC = run(
    row("one", 110.0, count=3, workspace=0), row("two", None, status="not served: no")
)
TRUE = run(row("one", 150.0, count=3, error=1e-7), row("two", 300.0, error=2e-7))


def comparisons():
    return [RunComparison(WITHOUT, other, in_order=True) for other in (DETERMINISTIC, TRUE)]


def test_each_wish_has_a_row_beside_the_run_without_it():
    side, heading, without, deterministic, true, note = cost_lines(comparisons(), NAMES)
    assert side == "A: without further options, a GPU, cuDNN 9.19.0, 2 problems"
    columns = ["ms", "of A's", "served", "error", "workspace", "costs most", "wish"]
    assert all(column in heading for column in columns)
    assert without.split() == [
        *("0.3500", "2", "of", "2", "1.0e-04", "1", "MiB"),
        *("without", "further", "options"),
    ]
    # 3 * 110 us of 3 * 100 us: "two" has no time on that side.
    assert deterministic.split() == [
        *("0.3300", "1.1000", "1", "of", "2", "1.0e-04", "0", "B"),
        *("one:", "+0.0300", "ms", "--deterministic"),
    ]
    assert true.split() == [
        *("0.7500", "2.1429", "2", "of", "2", "2.0e-07", "1", "MiB"),
        *("two:", "+0.2500", "ms", "--no-tf32"),
    ]
    assert (
        note
        == "B with --deterministic: not in the sums: 1 problem without a time in B, 0.0500 ms with A"
    )


def test_the_other_forms_have_the_same():
    markdown = cost_markdown(comparisons(), NAMES).splitlines()
    assert markdown[0] == "| ms | of A's | served | error | workspace | costs most | wish |"
    assert len(markdown) == 5
    assert "| 0.7500 | 2.1429 | 2 of 2 | 2.0e-07 | 1 MiB | two: +0.2500 ms |" in markdown[4]
    plain = json.loads(json.dumps(costs_to_plain(comparisons(), NAMES)))
    assert plain["fails"] is True
    assert [side["b"]["name"] for side in plain["comparisons"]] == [*NAMES[1:]]


def test_the_page_has_the_table_and_each_run_beside_the_first(tmp_path):
    path = tmp_path / "page.html"
    write_html(path, comparisons(), NAMES)
    texts = [
        cell.split("<br>")[0].strip()
        for cell in re.findall(r"<(?:h2|p|th|td)[^>]*>(.*?)</", path.read_text(), re.DOTALL)
    ]
    costs, first, second = (
        texts.index("costs most"),
        texts.index("B: --deterministic, a GPU, cuDNN 9.19.0, 2 problems"),
        texts.index("B: --no-tf32, a GPU, cuDNN 9.19.0, 2 problems"),
    )
    assert texts[0] == "A: without further options, a GPU, cuDNN 9.19.0, 2 problems"
    assert costs < texts.index("2.1429") < first < texts.index("1.1000", first) < second
    assert texts.index("no longer served", first) < second
    assert {"6.0000", "slower"} <= {*texts[second:]}


def test_times_of_the_emulated_device_are_left_out():
    emulated = run(row("one", 1.0), **{"has real timing": False})
    lines = [*cost_lines([RunComparison(emulated, emulated)] * 2, NAMES)]
    assert lines[1].split() == ["served", "error", "workspace", "wish"]
    assert lines[-1] == "the times are not compared: a side was not timed on a GPU"
