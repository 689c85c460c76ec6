"""`cudnnlite plan`: tables, JSON and exit status for GPUs that are not here."""

import json
import shutil

import pytest
from typer.testing import CliRunner

import cudnnlite as dnn
from cudnnlite._raw.api import library_api
from cudnnlite.cli.app import app

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler"
    ),
    pytest.mark.skipif(
        library_api().library.version < 90800, reason="cuDNN 9.8 added properties of devices"
    ),
]
CONVOLUTION = ("--input", "4x32x14x12", "--filter", "64x32x3x3", "--dtype", "float16")


@pytest.fixture(scope="module", autouse=True)
def cache_folder(tmp_path_factory):
    """Keep the compiled stand-in for the driver, which is the same for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def h200_file(tmp_path):
    path = tmp_path / "mine"
    dnn.types.DeviceProperties.named("h200").save(path)
    return path


@pytest.fixture
def attention_file(tmp_path):
    q = dnn.TensorSpec((2, 4, 128, 64), "float16")
    graph = dnn.scaled_dot_product_attention_forward.graph(q, q, q)
    path = tmp_path / "attention.json"
    path.write_text(graph.to_json())
    return path


def run(*words):
    return CliRunner().invoke(app, ["plan", *map(str, words)])


def test_a_table_a_gpu(h200_file):
    result = run(*CONVOLUTION, "--gpu", "a100,h200", "--gpu", h200_file)
    assert result.exit_code == 0, result.output
    titles = [line for line in result.stdout.splitlines() if "compute capability" in line]
    assert [title.split(",")[0] for title in titles] == [
        "NVIDIA A100-SXM4-80GB",
        "NVIDIA H200",
    ]
    assert result.stdout.count("4x32x14x12") == 3
    assert "3 of 3 are served" in result.stderr
    assert "cuDNN knows the architecture, not the card" in result.stderr


def test_what_is_not_served_ends_with_1(attention_file):
    result = run("--graph", attention_file, *CONVOLUTION, "--gpu", "v100,a100", "--json")
    assert result.exit_code == 1
    rows = json.loads(result.stdout)
    served = {(row["compute_capability"], row["problem"][:9]): row["served"] for row in rows}
    assert served == {
        ("7.0", "attention"): False,
        ("7.0", "4x32x14x1"): True,
        ("8.0", "attention"): True,
        ("8.0", "4x32x14x1"): True,
    }
    (row,) = [row for row in rows if not row["served"]]
    assert row["why_not"] == "cuDNN's heuristics name no engine"


def test_properties_of_a_file_are_those_of_the_card(h200_file):
    result = run(*CONVOLUTION, "--gpu", h200_file, "--gpu", "h200", "--json")
    answers = json.loads(result.stdout)
    for answer in answers:
        for row in answer["candidates"]:
            del row["seconds"]
    assert answers[0] == answers[1]


def test_every_engine_is_listed_on_request(attention_file):
    result = run("--graph", attention_file, "--gpu", "h200", "--every")
    assert result.exit_code == 0
    assert "not tried" not in result.stdout
    assert "sm90" in result.stdout


def test_a_process_that_hangs_ends_with_1():
    result = run(*CONVOLUTION, "--gpu", "h200", "--timeout", "0.001")
    assert result.exit_code == 1
    assert "cuDNN had no answer after 0.001 s" in result.stdout


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ((), 2, "--gpu"),
        (("--gpu", "a100"), 2, "nothing to plan"),
        ((*CONVOLUTION, "--gpu", ","), 2, "--gpu names no GPU"),
        ((*CONVOLUTION, "--gpu", "h900"), 2, "--gpu h900: name='h900' is no card of the table"),
        (("--list", "nope", "--gpu", "a100"), 2, "--list nope; allowed: "),
        (("--graph", "nothing.json", "--gpu", "a100"), 1, "--graph nothing.json: No such file"),
        ((*CONVOLUTION, "--gpu", "a100", "--cudnn", "/nowhere"), 1, "there is no file /nowhere"),
    ],
)
def test_a_wrong_command_line_is_told(words, status, message):
    result = run(*words)
    assert result.exit_code == status, result.output
    assert message in result.output
