"""Every notebook of examples/.

It is as short as promised, runs on both devices, and is stored with a GPU's output.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from helpers.extensions import load
from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import run_sync

import cudnnlite as dnn
from cudnnlite.devices.device_choice import DEVICE_VARIABLE

EXAMPLES = Path(__file__).parents[2] / "examples"
TUTORIALS = load("tutorials")
NAMES = (
    "01_first_convolution",
    "02_choosing_an_algorithm",
    "03_precision",
    "04_layouts_and_strides",
    "05_an_lstm_by_hand",
    "06_rnns_in_practice",
    "07_any_c_function",
    "08_a_graph_by_hand",
    "09_training_a_network",
    "10_serving_a_network",
    "11_the_matrix_product_laboratory",
    "12_the_program_in_c",
    "13_a_transformer_block",
    "14_a_network_by_figures",
)
PROGRAMS = {
    "onnx_network.py",
    "quantize_digits.py",
    "serve_resnet50.py",
    "train_digits.py",
    "train_transformer.py",
}
MOST_LINES = 110  # a notebook has fewer lines of code than that
DEVICES = ("emulated", pytest.param("cuda", marks=pytest.mark.gpu))
CLAIM = re.compile(r"^(?:\d+\.|[-*]) ", re.MULTILINE)
ASSERTION = re.compile(r"^\s*(?:assert\b|(?:np\.testing\.)?assert_\w+\()", re.MULTILINE)


def path_of(name: str) -> Path:
    return EXAMPLES / f"{name}.ipynb"


def read(name: str) -> Any:
    return nbformat.read(path_of(name), as_version=nbformat.NO_CONVERT)


def code_of(notebook: Any) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def text_of(output: Any) -> str:
    """What an output says, without what is told where a device or the machine was busy."""
    text = re.sub(r"measuring .* took .*call tune_model before.*\n", "", output.get("text", ""))
    return "".join([text, *output.get("data", {}).get("text/html", "")])


def gist(cell: Any) -> tuple[str, int]:
    """Return a cell's output without device and decimal figures, and the number of its pictures.

    Both are left out where they vary.
    """
    if "varies" in cell.metadata.get("tags", ()):
        return "", 0
    words = " ".join(map(text_of, cell.outputs))
    words = re.sub(
        r"<(cuda|emulated):0[^>]*>|emulated \(NumPy\)|NVIDIA H(?:100 80GB HBM3|200)|\b(cuda|emulated)\b",
        "DEVICE",
        words,
    )
    drawn = [
        kind
        for output in cell.outputs
        for kind in output.get("data", {})
        if kind.startswith("image/")
    ]
    return " ".join(re.sub(r"0x[0-9a-f.]+|-?\d+\.\d*(e[-+]?\d+)?", " ", words).split()), len(drawn)


each_notebook = pytest.mark.parametrize("name", NAMES)
# These take longest, and what they call is in the notebooks before them or in tests of examples.
SLOW = (
    "02_choosing_an_algorithm",
    "03_precision",
    "06_rnns_in_practice",
    "09_training_a_network",
    "13_a_transformer_block",
)


def test_they_are_all_there_numbered_without_gaps() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.ipynb")) == list(NAMES)
    assert [int(name[:2]) for name in NAMES] == list(range(1, len(NAMES) + 1))


@each_notebook
def test_is_a_valid_notebook_of_format_4_5(name: str) -> None:
    notebook = read(name)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == "python3"


@each_notebook
def test_stores_what_a_gpu_printed_and_drew(name: str) -> None:
    """The stored outputs are those of docs/record_notebooks.py.

    They come from one run from top to bottom, with small pictures and nothing about the machine.
    """
    notebook = read(name)
    assert any(card in notebook.metadata.recorded.device for card in ("H100", "H200"))
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    assert not any("execution" in cell.metadata for cell in cells)
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {
        "stream",
        "display_data",
        "execute_result",
    }
    assert not re.search(
        r"0x[0-9a-f]{6}|/tmp/|/home/|/work/|/root/", "".join(map(text_of, outputs))
    )
    assert (
        max(
            (len(data) for output in outputs for kind, data in output.get("data", {}).items()),
            default=0,
        )
        < 130_000
    )
    assert "widgets" not in notebook.metadata
    assert path_of(name).read_text().endswith("}\n")


@each_notebook
def test_cells_have_names(name: str) -> None:
    names = [cell.id for cell in read(name).cells]
    assert len(set(names)) == len(names)
    # words, not the eight hexadecimal digits that an editor makes up
    assert [
        name
        for name in names
        if not re.fullmatch(r"[a-z][a-z0-9-]*", name) or re.fullmatch(r"[0-9a-f]{8}", name)
    ] == []


@each_notebook
def test_has_fewer_lines_of_code_than_promised(name: str) -> None:
    lines = [line.strip() for source in code_of(read(name)) for line in source.splitlines()]
    assert 20 < sum(bool(line) and not line.startswith("#") for line in lines) < MOST_LINES


@each_notebook
def test_begins_with_a_title_and_what_it_shows(name: str) -> None:
    first = read(name).cells[0]
    assert first.cell_type == "markdown"
    assert re.match(rf"# {name[:2]}\b", first.source)
    assert len(CLAIM.findall(first.source)) >= 3
    assert "without one" in first.source or "without a GPU" in first.source


@each_notebook
def test_its_formulas_are_what_docutils_reads(name: str) -> None:
    """Of `frac12` it makes a fraction of 12 and what follows."""
    prose = " ".join(cell.source for cell in read(name).cells if cell.cell_type == "markdown")
    assert not re.search(r"\\t?frac(?!\{)", prose)


@each_notebook
def test_its_links_lead_somewhere_here_and_in_the_built_documentation(name: str) -> None:
    """There the notebooks lie in docs/tutorials: docs/conf.py writes the links so."""
    prose = "\n".join(cell.source for cell in read(name).cells if cell.cell_type == "markdown")
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", prose) if "://" not in link]
    assert [link for link in links if not (EXAMPLES / link).exists()] == []
    assert [link for link in links if "/" in link and not link.startswith("../docs/")] == []


@each_notebook
def test_asserts_what_it_shows(name: str) -> None:
    notebook = read(name)
    claims = len(CLAIM.findall(notebook.cells[0].source))
    assert len(ASSERTION.findall("\n".join(code_of(notebook)))) >= claims


@each_notebook
def test_begins_by_choosing_and_printing_the_device(name: str) -> None:
    first = code_of(read(name))[0]
    assert re.match(
        r'import os(\n+|; )os\.environ\.setdefault\("CUDNNLITE_DEVICE", "auto"\)', first
    )
    assert re.search(r"print\(.*device", first)


@each_notebook
def test_shows_its_pictures(name: str) -> None:
    for source in code_of(read(name)):
        if "plt.subplots" in source or "plt.figure" in source:
            assert "plt.show()" in source


Kernels = Callable[[str], tuple[AsyncKernelManager, AsyncKernelClient]]
# Before each notebook: no name is left of another one, no program beside it, no chart and no setting
# of charts.
FORGET = """
%reset -f
import os, sys
import matplotlib.pyplot
matplotlib.pyplot.close("all")
matplotlib.rcdefaults()
for name in PROGRAMS:
    sys.modules.pop(name, None)
os.chdir(FOLDER)
del matplotlib, os, sys, name
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernels]:
    """A function that returns the kernel on a device, which takes longer than most notebooks."""
    started: dict[str, tuple[AsyncKernelManager, AsyncKernelClient]] = {}

    def kernel(kind: str) -> tuple[AsyncKernelManager, AsyncKernelClient]:
        if kind not in started:
            # A user's own start-up files are not ours.
            environment = {
                **{name: value for name, value in os.environ.items() if name != "MPLBACKEND"},
                DEVICE_VARIABLE: kind,
                "IPYTHONDIR": str(tmp_path_factory.mktemp("ipython")),
                "PYTHONDONTWRITEBYTECODE": "1",
            }
            manager = AsyncKernelManager(kernel_name="python3")
            # Some notebooks import the programs beside them, so `sys.path` begins with "".
            run_sync(manager.start_kernel)(env=environment)
            client = manager.client()
            started[kind] = manager, client
            client.start_channels()
            run_sync(client.wait_for_ready)(timeout=None)
            client.allow_stdin = False
        return started[kind]

    yield kernel
    for manager, client in started.values():
        client.stop_channels()
        run_sync(manager.shutdown_kernel)(now=True)


@pytest.mark.processes
@pytest.mark.parametrize("kind", DEVICES)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.exhaustive) if name in SLOW else name for name in NAMES],
)
def test_executes_where_its_archive_is_unpacked(
    name: str, kind: str, kernels: Kernels, tmp_path: Path
) -> None:
    """The archive is what the documentation offers for download."""
    TUTORIALS.write_archive(name, tmp_path / "notebook.zip")
    with zipfile.ZipFile(tmp_path / "notebook.zip") as archive:
        archive.extractall(tmp_path)
    folder = tmp_path / f"cudnnlite_{name}" / "examples"
    before = {path.name for path in folder.iterdir()}
    notebook = nbformat.read(folder / f"{name}.ipynb", as_version=nbformat.NO_CONVERT)
    stored = [(cell.id, gist(cell)) for cell in notebook.cells if cell.cell_type == "code"]
    manager, client = kernels(kind)
    programs = [program.removesuffix(".py") for program in PROGRAMS]
    forget = FORGET.replace("PROGRAMS", repr(programs)).replace("FOLDER", repr(str(folder)))
    notebook.cells.insert(0, nbformat.v4.new_code_cell(forget))
    execution = nbclient.NotebookClient(notebook, km=manager, timeout=None)
    execution.kc = client
    execution.execute()
    del notebook.cells[0]
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    executed = [(cell.id, gist(cell)) for cell in notebook.cells if cell.cell_type == "code"]
    assert executed == stored
    assert "".join(text_of(output) for output in outputs if output.get("name") == "stderr") == ""
    assert kind in "".join(output.text for output in outputs if output.get("name") == "stdout")
    pictures = sum("image/png" in output.get("data", {}) for output in outputs)
    assert pictures == "\n".join(code_of(notebook)).count("plt.show()")
    assert {path.name for path in folder.iterdir()} == before, "it left files behind"


def test_the_figures_of_the_network_are_the_worked_examples() -> None:
    """They are typed into the notebook, which runs alone when it is downloaded."""
    data = Path(__file__).parents[1] / "data" / "worked_examples.json"
    examples = json.loads(data.read_text())
    code = re.sub(r"\s+", "", "".join(code_of(read("14_a_network_by_figures"))))
    single, stage = examples["convolution_single_value"], examples["cnn_stage"]
    for figures in (single["patch"], single["kernel"], stage["flat"], stage["softmax"]):
        assert json.dumps(figures).replace(" ", "") in code
    assert json.dumps(stage["conv_nhwc"][0]).replace(" ", "") in code
    for case in examples["output_size"]["cases"]:
        numbers = ("H", "R", "pad", "stride", "out")
        assert f"({','.join(str(case[number]) for number in numbers)})" in code
    assert f"y.numpy().item(),{single['result']}," in code
    textbook = {case["name"]: case for case in examples["convolution_textbook"]["cases"]}
    for name in ("corr2d", "multi_in", "multi_in_out"):
        assert json.dumps(textbook[name]["published"]).replace(" ", "") in code


def test_the_measured_tables_are_of_an_h200_and_complete() -> None:
    measured = json.loads((EXAMPLES / "h200.json").read_text())
    assert "H200" in measured["device"]
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", measured["date"])
    assert measured["cudnn"].startswith("9.")
    assert measured["torch"]
    assert {
        "choosing",
        "torch_benchmark",
        "filter_sizes",
        "precision",
        "layouts",
        "views",
        "lstm",
    } == set(measured["tables"])
    for table in measured["tables"].values():
        assert table["title"]
        assert table["rows"]
        assert {len(row) for row in table["rows"]} == {len(table["columns"])}


def test_notebooks_that_show_times_name_the_device_and_the_date_of_the_table() -> None:
    show_times = []
    for name in NAMES:
        code = "\n".join(code_of(read(name)))
        if "h200.json" in code:
            show_times.append(name[:2])
            assert "['date']" in code or '["date"]' in code
            assert "['device']" in code or '["device"]' in code
    assert show_times == ["02", "03", "04", "06"]


def test_examples_hold_nothing_else() -> None:
    left = {path.name for path in EXAMPLES.iterdir() if not path.name.startswith((".", "__"))}
    assert left == {*(f"{name}.ipynb" for name in NAMES), *PROGRAMS, "h200.json", "c"}


def test_the_notebooks_use_public_names_only() -> None:
    for name in NAMES:
        code = "\n".join(code_of(read(name)))
        assert not re.search(r"cudnnlite\._|dnn\._", code)
        assert set(re.findall(r"\bdnn\.(\w+)", code)) <= {*dnn.__all__}
