"""The cards of the tutorials, and the archives that they offer."""

from __future__ import annotations

import json
import re

import pytest
from helpers.extensions import load
from markdown_pages import ROOT

TUTORIALS = load("tutorials")
EXAMPLES = ROOT / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.ipynb"))
PAGE = (ROOT / "docs" / "tutorials" / "index.md").read_text(encoding="utf-8")


def test_every_notebook_has_a_card():
    cards = re.findall(
        r"^:::\{tutorial\} (\w+)\n:seconds: \d+\n\n\*\*\[.+\]\(\.\./\.\./examples/(\w+)\.ipynb\)",
        PAGE,
        re.M,
    )
    assert [name for name, _ in cards] == NAMES
    assert all(name == link for name, link in cards)
    listed = re.search(r"```\{toctree\}\n:hidden:\n\n(.*?)```", PAGE, re.DOTALL)
    assert listed[1].split() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_archive_has_what_the_notebook_names(name):
    files = {str(file.relative_to(ROOT)) for file in TUTORIALS.files_of(name)}
    assert f"examples/{name}.ipynb" in files
    cells = json.loads((EXAMPLES / f"{name}.ipynb").read_text())["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells)
    expected = {"examples/h200.json"} if "h200.json" in text else set()
    for program in EXAMPLES.glob("*.py"):
        if re.search(rf"^(from|import) {program.stem}\b", text, re.MULTILINE):
            expected.add(f"examples/{program.name}")
    for picture in re.findall(r"docs/images/\w+\.\w+", text):
        expected.add(picture)
    assert expected <= files


def test_programs_bring_the_programs_that_they_import():
    files = {file.name for file in TUTORIALS.files_of("10_serving_a_network")}
    assert {"serve_resnet50.py", "onnx_network.py"} <= files
    assert "LICENSE" in {file.name for file in TUTORIALS.files_of("13_a_transformer_block")}


def test_the_page_names_the_devices_of_the_stored_outputs():
    devices = set()
    for name in NAMES:
        notebook = (EXAMPLES / f"{name}.ipynb").read_text()
        (device,) = re.findall(r'"(?:running on|device:) <(\w+:\d+ NVIDIA \w+|emulated)', notebook)
        devices.add(device.rpartition(" ")[2])
    sentence = re.search(r"outputs below the code are of an NVIDIA (.*?);", PAGE)[1]
    assert set(sentence.split(" or ")) == devices


def test_most_notebooks_have_a_picture():
    pictures = {name: TUTORIALS.picture_of(name) for name in NAMES}
    kinds = {kind for picture in pictures.values() if picture for kind in picture[:1]}
    assert kinds <= {"png", "jpeg"}
    assert sum(picture is not None for picture in pictures.values()) >= 10
