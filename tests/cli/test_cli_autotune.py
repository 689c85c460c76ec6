"""`cudnnlite autotune`: what the flags mean, what goes to stdout and to stderr, and how it ends."""

import csv
import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.pretend import Pretence
from helpers.tuning_entries import convolution, rows
from typer.testing import CliRunner

import cudnnlite as dnn
from cudnnlite import AlgorithmTable, convolution_forward, rnn_forward
from cudnnlite.cli import autotune as cli_autotune
from cudnnlite.cli import common as cli_common
from cudnnlite.cli import problems as cli_problems
from cudnnlite.cli.app import app
from cudnnlite.cli.tunings import csv_text, lines_of
from cudnnlite.devices.device_choice import DEVICE_VARIABLE
from cudnnlite.errors import NoDeviceError
from cudnnlite.specs.layout import CHANNELS_FIRST, CHANNELS_LAST
from cudnnlite.workbench.report import page
from cudnnlite.workbench.tuning import model
from cudnnlite.workbench.tuning.cache import CACHE_VARIABLE, REHEARSAL, TuningCache
from cudnnlite.workbench.tuning.model_tuning import ModelTuning
from cudnnlite.workbench.tuning.policy import TuningPolicy
from cudnnlite.workbench.tuning.problem_list import summary
from cudnnlite.workbench.tuning.tuned_problem import TunedProblem

CONVOLUTION = ["--input", "2x2x4x4", "--filter", "2x2x1x1"]
RNN = ["--rnn", "gru:steps=2,batch=2,input=3,hidden=4"]
PROBLEM = convolution_forward.problem(dnn.TensorSpec((2, 2, 4, 4)), dnn.FilterSpec((2, 2, 1, 1)))


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    """Work in an empty folder, on the emulated device, with a cache that is not the user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(DEVICE_VARIABLE, "emulated")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "default"))


def autotune(*arguments):
    return CliRunner().invoke(app, ["autotune", *map(str, arguments)], prog_name="cudnnlite")


def in_a_shell(words, rest):
    """Run `autotune` with words of its own, and what a shell does with its streams."""
    command = f"{sys.executable} -m cudnnlite autotune {shlex.join(words)} {rest}"
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)


class Tuner:
    """Stands for `tune_model`: remembers what it was asked, and does what it is told."""

    def __init__(self, monkeypatch):
        self.problem_list, self.options, self.then = None, {}, lambda: None
        monkeypatch.setattr(model, "tune_model", self)

    def __call__(self, problem_list, **options):
        self.problem_list, self.options = problem_list, options
        for count, entry in enumerate(problem_list, start=1):
            table = AlgorithmTable(rows(entry.problem), title="a title", timing="made up")
            options["progress"](
                count, len(problem_list), TunedProblem(entry.problem, table, table.best())
            )
        self.then()
        raise NoDeviceError("the end of the test")

    @property
    def problems(self):
        return [entry.problem for entry in self.problem_list]


@pytest.fixture
def tuner(monkeypatch):
    return Tuner(monkeypatch)


# ---------------------------------------------------------------- what is printed


def test_one_problem_is_shown_with_every_candidate_and_the_reason():
    shapes = ("--input", "2x3x8x8", "--filter", "4x3x3x3")
    result = autotune(*shapes, "--workspace-limit", 300, "--interface", "descriptor")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert "emulated" in lines[0]
    assert "2x3x8x8 by 4x3x3x3 to 2x4x6x6, float32 NCHW" in lines
    table = [line for line in lines if re.match(r"IMPLICIT_GEMM ", line)]
    assert len(table) == 1  # the one algorithm that fits, with three math types
    assert table[0].endswith("chosen")
    assert (
        "here the same kernel as IMPLICIT_GEMM (DEFAULT): IMPLICIT_GEMM (FMA, TENSOR_OP)" in lines
    )
    (fft,) = [line for line in lines if line.startswith("not FFT (")]
    assert fft == "not FFT (DEFAULT, FMA, TENSOR_OP): needs 7.594 KiB, the limit is 300 B"
    assert lines[-1].startswith("chosen: ")
    assert not any(line.startswith("cudnnlite:") for line in lines)


def test_the_emulated_device_says_so_and_saves_nothing(tmp_path):
    result = autotune(*CONVOLUTION)
    assert "NumPy's, not a GPU's, and not saved" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_rehearsal_is_kept_and_found_again(tmp_path):
    first = autotune(*CONVOLUTION, "--rehearse", "--cache", "rehearsed")
    assert "NumPy's, not a GPU's, and kept as a rehearsal" in first.stderr
    assert "\nsaved in " in first.stdout
    assert (tmp_path / "rehearsed" / REHEARSAL).exists()
    again = autotune(*CONVOLUTION, "--cache", "rehearsed")  # the folder is marked
    assert "kept as a rehearsal" in again.stderr
    assert "remembered from" in again.stdout
    for wrong in (
        ["--rehearse"],
        ["--rehearse", "--no-cache"],
        ["--rehearse", "--cache", "rehearsed", "--read-only-cache"],
        ["--rehearse", "--cache", "rehearsed", "--device", "cuda"],
    ):
        result = autotune(*CONVOLUTION, *wrong)
        assert result.exit_code == 2, result.stderr
        assert "--rehearse" in result.stderr


def test_several_problems_are_summed_up_and_written_to_files(tmp_path):
    outputs = {"--html": "a.html", "--save-problems": "a.json"}
    flags = [part for pair in outputs.items() for part in pair]
    result = autotune(*CONVOLUTION, *RNN, "--workspace-limit", "1MiB", *flags)
    assert result.exit_code == 0, result.stderr
    total, heading, one, other = result.stdout.splitlines()[2:6]
    assert total.startswith("2 problems, 2 in all: 2 measured, 0 remembered; ")
    assert heading.split()[:2] == ["count", "problem"]
    saved = dnn.ProblemList.load("a.json")
    assert [line.strip().split("  ")[1] for line in (one, other)] == [
        summary(entry.problem) for entry in saved
    ]
    assert "one workspace for all, used in turn: " in result.stdout
    assert "not DIRECT" not in result.stdout
    assert "<html" in (tmp_path / "a.html").read_text()
    assert re.findall(r"^cudnnlite: (\d of 2): ", result.stderr, re.MULTILINE) == [
        "1 of 2",
        "2 of 2",
    ]

    again = autotune("--problems", "a.json", "--explain", "--save-problems", "b.json")
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text()
    assert again.stdout.count("chosen: ") == 2
    assert "not DIRECT" in again.stdout
    assert "one workspace" not in again.stdout
    assert "call ms" in again.stdout
    by_device = autotune("--problems", "a.json", "--objective", "device").stdout
    assert "device ms in all" in by_device
    assert "call ms" not in by_device


@pytest.mark.processes
def test_json_is_all_that_stdout_has(commands):
    process = commands.run("autotune", *CONVOLUTION, "--json")
    assert process.returncode == 0
    plain = json.loads(process.stdout)
    assert plain["schema"] == page.SCHEMA
    (problem,) = plain["problems"]
    assert problem["problem"] == PROBLEM.to_plain()
    assert problem["rows"][problem["chosen"]]["ok"]
    assert plain["skipped"] == []
    assert [note.partition(",")[0] for note in plain["notes"]] == [
        "times of the emulated device are not saved"
    ]
    assert re.fullmatch("cudnnlite: the emulated device: .*\n", process.stderr)


def test_what_has_no_algorithm_is_named_on_stderr():
    result = autotune(*CONVOLUTION, *RNN, "--deterministic")
    assert result.exit_code == cli_common.SOME_FAILED
    assert "2 measured, 0 remembered, 1 failed; " in result.stdout
    assert "failed: GRU 3 to 4, T=2 N=2, float32: no algorithm for " in result.stdout
    message = result.stderr.splitlines()[-1]
    assert message == (
        "cudnnlite: no algorithm for GRU 3 to 4, T=2 N=2, float32: cuDNN does not say if it is "
        "deterministic"
    )


def test_of_a_problem_without_an_algorithm_the_few_candidates_that_matter_are_shown():
    failing = ["--input", "1x3x8x8", "--filter", "4x3x3x3", "--max-error", "1e-30"]
    result, explained = autotune(*failing), autotune(*failing, "--explain")
    assert (result.exit_code, explained.exit_code) == (cli_common.SOME_FAILED,) * 2
    few, lines = (
        [line for line in command.stdout.splitlines() if line.startswith("not ")]
        for command in (result, explained)
    )
    assert few == [line for line in lines if "the bound is 1.0e-30" in line][:3]
    assert (
        f"\nnor {len(lines) - 3} others, which --explain lists\nnone can be chosen: "
        in result.stdout
    )
    assert "--explain" not in explained.stdout
    # which stdout told
    assert [command.stderr.splitlines()[-1] for command in (result, explained)] == [
        "cudnnlite: no algorithm for 1x3x8x8 by 4x3x3x3 to 1x4x6x6, float32 NCHW"
    ] * 2
    for alone in (["--json"], ["--csv", "-"]):
        assert "float32 NCHW: its error is" in autotune(*failing, *alone).stderr.splitlines()[-1]


def test_progress_says_whose_time_it_tells():
    lines = autotune(*CONVOLUTION, *RNN).stderr.splitlines()
    assert [bool(re.search(r"of 2: .* ms on the device$", line)) for line in lines[-2:]] == [
        True,
        True,
    ]


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_info_says_that_the_variable_names_no_device(monkeypatch, as_json):
    monkeypatch.setenv(DEVICE_VARIABLE, "emulatd")
    result = CliRunner().invoke(app, ["info", *as_json])
    assert (result.exit_code, "emulatd" in result.stdout) == (1, True)
    assert result.stderr.startswith(
        f"cudnnlite: {DEVICE_VARIABLE}='emulatd' is not a device; allowed: 'cuda'"
    )


@pytest.mark.processes
def test_a_reader_that_leaves_early_is_no_error(tmp_path):
    process = in_a_shell([*CONVOLUTION, "--html", "a.html"], "| true; exit ${PIPESTATUS[0]}")
    assert process.returncode == cli_common.CLOSED_PIPE
    assert [line.partition(" ")[0] for line in process.stderr.splitlines()] == ["cudnnlite:"] * 2
    assert (tmp_path / "a.html").exists()


@pytest.mark.processes
def test_messages_that_cannot_be_written_and_names_that_cannot_be_shown_cost_no_result(monkeypatch):
    problem_list = dnn.ProblemList([PROBLEM])
    problem_list.add(PROBLEM, "première\n\x1b[2J")
    problem_list.save("a.json")
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    process = in_a_shell(["--problems", "a.json"], "2> /dev/full")
    assert process.returncode == 0
    assert f"premi\\xe8re\\ufffd\\ufffd[2J: {summary(PROBLEM)}" in process.stdout


def test_how_a_program_finds_what_was_saved(tmp_path):
    policy = TuningPolicy(workspace_limit="64 MiB", deterministic=True, layouts=("NHWC",))
    problem = convolution()
    table = AlgorithmTable(rows(problem), title="a title", timing="made up")
    facts = {"device": "a GPU", "cuDNN": "9.28.0", "cudnnlite": "0.1.0"}
    tuning = ModelTuning((TunedProblem(problem, table, table.best()),), facts)
    advice = list(lines_of(tuning, policy, tmp_path / "mine", explain=False))[-1]
    match = re.fullmatch(r"to use it: with dnn\.autotuned\(handle, (.*)\): \.\.\.", advice)
    options = eval(f"dict({match[1].replace('dnn.', '')})", {"TuningPolicy": TuningPolicy})
    assert options == {"cache": str(tmp_path / "mine"), "policy": policy}
    usual = list(lines_of(tuning, TuningPolicy(), tmp_path / "default", explain=False))[-1]
    assert usual == "to use it: with dnn.autotuned(handle): ..."


# ---------------------------------------------------------------- what the flags mean


@pytest.mark.parametrize("spatial", [1, 2, 3])
@pytest.mark.parametrize("layout", ["NCHW", "nhwc"])
def test_a_convolution_of_each_rank(tuner, spatial, layout):
    names = {"NCHW": CHANNELS_FIRST, "NHWC": CHANNELS_LAST}[layout.upper()]
    image, taps = (9, 8, 7)[:spatial], (3, 2, 1)[:spatial]
    padding, stride = (1, 0, 2)[:spatial], (2, 1, 1)[:spatial]
    shapes = {
        "--input": (2, 6, *image),
        "--filter": (4, 3, *taps),
        "--padding": padding,
        "--stride": stride,
    }
    flags = [part for name, sizes in shapes.items() for part in (name, "x".join(map(str, sizes)))]
    autotune(
        *flags,
        "--groups",
        2,
        "--dilation",
        1,
        "--dtype",
        "float16",
        "--layout",
        layout,
        "--math-type",
        "fma",
    )
    name = names[spatial + 2]
    x, w = (
        dnn.TensorSpec((2, 6, *image), "float16", name),
        dnn.FilterSpec((4, 3, *taps), "float16", name),
    )
    conv = dnn.ConvolutionSpec(padding, stride, groups=2, math_type="fma")
    assert tuner.problems == [convolution_forward.problem(x, w, conv)]


@pytest.mark.parametrize("operation", ["forward", "backward_data", "backward_filter"])
def test_a_gradient_of_a_convolution(tuner, operation):
    autotune("--input", "2x6x9x8", "--filter", "4x6x3x2", "--stride", 2, "--operation", operation)
    x, w, conv = (
        dnn.TensorSpec((2, 6, 9, 8)),
        dnn.FilterSpec((4, 6, 3, 2)),
        dnn.ConvolutionSpec(stride=2),
    )
    forward = convolution_forward.problem(x, w, conv)
    gradients = {
        "backward_data": dnn.convolution_backward_data.problem(w, forward.y, conv, out=x),
        "backward_filter": dnn.convolution_backward_filter.problem(x, forward.y, conv, out=w),
    }
    assert tuner.problems == [gradients.get(operation, forward)]
    wrong = CliRunner().invoke(
        app, ["autotune", "--input", "2x6x9x8", "--filter", "4x6x3x2", "--operation", "backward"]
    )
    assert wrong.exit_code == 2
    assert "allowed: forward, backward_data, backward_filter" in " ".join(
        wrong.output.replace("│", " ").split()
    )


def test_recurrent_networks(tuner):
    form = (
        "lstm:steps=7, batch=3,input=4,hidden=6,layers=2,projection=5,"
        "bias=none,dropout=0.5,bidirectional,training"
    )
    autotune(
        "--rnn",
        form,
        "--rnn",
        "tanh:steps=7,batch=3,input=4,hidden=6,batch_major",
        "--math-type",
        "fma",
    )
    spec = dnn.RNNSpec(
        "lstm", 4, 6, 2, True, projection_size=5, bias="none", dropout=0.5, math_type="fma"
    )
    other = dnn.RNNSpec("tanh", 4, 6, math_type="fma")
    assert tuner.problems == [
        rnn_forward.problem(spec, None, dnn.specs.RNNDataSpec((7, 3, 4)), training=True),
        rnn_forward.problem(other, None, dnn.specs.RNNDataSpec((3, 7, 4), layout="batch_major")),
    ]


def test_the_help_has_every_word_that_rnn_takes():
    help_text = CliRunner().invoke(app, ["autotune", "--help"], env={"COLUMNS": "100"}).stdout
    for word, kind in cli_problems.RNN_WORDS.items():
        assert (word if kind is bool else f"{word}=") in help_text


@pytest.fixture
def save_model(monkeypatch):
    """Write model.onnx: a convolution with two open sizes, and a node that is no problem."""
    onnx = pytest.importorskip("onnx")
    monkeypatch.syspath_prepend(str(__file__).rpartition("/unit/")[0])
    import onnx_models

    def save(height):
        nodes = [
            onnx_models.conv(name="stem"),
            onnx_models.conv("y", "w2", "z", name="crooked", auto_pad="ODD"),
        ]
        weights = [onnx_models.absent("w", (4, 6, 3, 3)), onnx_models.absent("w2", (4, 4, 3, 3))]
        onnx.save(onnx_models.model(nodes, {"x": ("batch", 6, height, 9)}, weights), "model.onnx")

    return save


def test_a_model_and_a_list_together(tuner, save_model):
    save_model("height")
    dnn.ProblemList([PROBLEM, PROBLEM]).save("list.json")
    shapes = ["--shape", "x=5x6x12x9"]
    more = ["--dtype", "bfloat16", "--layout", "NHWC", "--math-type", "tensor_op"]
    result = autotune("--onnx", "model.onnx", "--problems", "list.json", *shapes, *more)
    stem = convolution_forward.problem(
        dnn.TensorSpec((5, 6, 12, 9), "bfloat16", "NHWC"),
        dnn.FilterSpec((4, 6, 3, 3), "bfloat16", "NHWC"),
        dnn.ConvolutionSpec(math_type="tensor_op"),
    )
    assert [(entry.problem, entry.count, entry.names) for entry in tuner.problem_list] == [
        (stem, 1, ("stem",)),
        (PROBLEM, 2, ()),
    ]
    assert "cudnnlite: skipped: crooked (Conv): " in result.stderr
    without = autotune("--onnx", "model.onnx")
    assert without.exit_code == 2
    assert "the size of batch, height is open; --batch tells" in " ".join(without.stderr.split())
    save_model(None)
    without = autotune("--onnx", "model.onnx")
    assert "the size of ?, batch is open; --batch tells" in " ".join(without.stderr.split())
    for wrong, why in (
        ("y=1x2", "has no such input; its inputs: x "),
        ("x=5x7x12x9", "of fixed size on axis 1"),
    ):
        result = autotune("--onnx", "model.onnx", "--shape", wrong)
        assert (result.exit_code, why in result.stderr) == (cli_common.USAGE, True), result.stderr


def test_several_batch_sizes_are_compared(save_model, tmp_path):
    save_model(12)
    dnn.ProblemList([PROBLEM, PROBLEM]).save("list.json")
    files = ["--csv", "a.csv", "--html", "a.html", "--save-problems", "all.json"]
    result = autotune(
        "--onnx", "model.onnx", "--problems", "list.json", "--batch", "1, 5", *files, "--json"
    )
    assert result.exit_code == 0, result.stderr
    assert result.stderr.count("skipped: crooked (Conv): ") == 1
    saved = list(dnn.ProblemList.load("all.json"))
    assert [(one.names, one.count) for one in saved] == [
        (("batch 1: stem",), 1),
        ((), 4),
        (("batch 5: stem",), 1),
    ]
    plain = json.loads(result.stdout)
    times = {tuple(one["names"]): one["total_ms"] / one["count"] for one in plain["problems"]}
    batch_ms = {str(n): times[f"batch {n}: stem",] + 2 * times[()] for n in (1, 5)}
    batches = plain["facts"]["batches"]
    assert {n: figures["ms in all"] for n, figures in batches.items()} == pytest.approx(batch_ms)
    assert batches["5"]["ms a sample"] == pytest.approx(batch_ms["5"] / 5)
    assert plain["facts"]["model"] == ["model.onnx", "list.json"]
    page = (tmp_path / "a.html").read_text()
    assert "<h1>model.onnx, list.json: 3 problems on " in page
    assert "<dt>batches: 5: ms a sample</dt>" in page
    assert '<b>1</b><span><a href="#skipped">skipped, not tuned' in page
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert [
        (row["batch"], row["names"], row["count"]) for row in rows if row["chosen"] == "True"
    ] == [
        ("1", "stem", "1"),
        ("1", "", "2"),
        ("5", "stem", "1"),
        ("5", "", "2"),
    ]
    assert len(rows) == sum(len(one["rows"]) for one in plain["problems"]) + len(
        plain["problems"][1]["rows"]
    )


def test_several_batch_sizes_are_a_table_each_and_one_of_all(save_model):
    save_model(12)
    output = autotune("--onnx", "model.onnx", "--batch", "1,5", "--workspace-limit", "1 MiB").stdout
    assert re.findall(r"^batch (\d)\n1 problem, 1 in all: ", output, re.MULTILINE) == ["1", "5"]
    assert "1x6x12x9 by " in output.partition("batch 5")[0]
    heading, *rows = output.rstrip().splitlines()[-3:]
    assert heading.split("  ")[0] == "batch"
    for size, row in zip((1, 5), rows, strict=True):
        # The total has four decimals, the time of a sample four digits, the last none.
        batch, total, sample_ms, second = map(float, row.split()[:4])
        assert (batch, sample_ms, second) == (
            size,
            pytest.approx(total / size, rel=1e-3, abs=1e-4),
            pytest.approx(1000 / sample_ms, rel=2e-3, abs=1),
        )


def test_csv_alone_is_all_that_stdout_has():
    result = autotune(*CONVOLUTION, "--csv", "-")
    assert result.exit_code == 0
    rows = list(csv.DictReader(result.stdout.splitlines()))
    assert "batch" not in rows[0]
    assert {row["problem"] for row in rows} == {summary(PROBLEM)}
    (choice,) = [row for row in rows if row["chosen"] == "True"]
    assert float(choice["time_ms"]) > 0
    assert {"GEMM", "FFT"} <= {row["algorithm"] for row in rows}
    assert (
        min(int(row["heuristic"]) for row in rows if row["heuristic"]) == 0
    )  # what an untuned call runs is known


@pytest.mark.parametrize(
    "start", ["=", "+", "-", "@", "\t=", "\r=", "\n=", "\uff1d", "\uff0b", "\uff0d", "\uff20"]
)
def test_a_spreadsheet_reads_no_formula_from_csv(start):
    formula, cells = (
        f"{start}HYPERLINK(1)",
        [-1, -0.5, float("-inf"), "-", "", None, "a=b", "'=", "a\r=b", "conv-1"],
    )
    heading, row = csv.reader(
        io.StringIO(csv_text([["names", formula], [formula, *cells]]), newline="")
    )
    assert heading == ["names", f"'{formula}"]
    assert row == [f"'{formula}", "-1", "-0.5", "-inf", "-", "", "", "a=b", "'=", "a\r=b", "conv-1"]


def test_names_of_layers_are_no_formulas_in_csv():
    problem_list = dnn.ProblemList()
    problem_list.add(PROBLEM, name="=cmd|'/C calc'!A0")
    problem_list.save("list.json")
    result = autotune("--problems", "list.json", "--csv", "a.csv")
    assert result.exit_code == 0, result.stderr
    rows = list(csv.DictReader(Path("a.csv").read_text().splitlines()))
    assert {row["names"] for row in rows} == {"'=cmd|'/C calc'!A0"}


def test_the_flags_of_the_policy(tuner):
    result = autotune(
        *CONVOLUTION,
        "--objective",
        "device",
        "--workspace-limit",
        "10%",
        "--deterministic",
        "--max-error",
        "1e-3",
        "--no-tf32",
        "--also-layout",
        "NHWC",
        "--also-layout",
        "NCHW",
        "--interface",
        "graph",
        "--flush-l2",
        "--engines",
        "--exclude",
        "engine 7",
    )
    assert result.exit_code == 1
    policy = tuner.options["policy"]
    assert policy == TuningPolicy(
        objective="device",
        workspace_limit="10%",
        deterministic=True,
        max_error=1e-3,
        allow_tf32=False,
        layouts=("NHWC", "NCHW"),
        interface="graph",
        flush_l2=True,
        search="engines",
        exclude=("engine 7",),
    )
    usual = TuningPolicy().to_plain()
    unchanged = {name for name, value in policy.to_plain().items() if value == usual[name]}
    without_flag = unchanged - {"math_type"}  # the problem's own flag
    assert not without_flag, f"no flag sets {', '.join(without_flag)}"


def test_a_file_may_begin_like_somebodys_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert autotune(*CONVOLUTION, "--csv", "~nobody.csv").exit_code == 0
    assert (tmp_path / "~nobody.csv").is_file()


@pytest.mark.parametrize(("flags", "search"), [((), "heuristics"), (("--engines",), "engines")])
def test_how_far_is_searched(tuner, flags, search):
    autotune(*CONVOLUTION, *flags)
    assert tuner.options["policy"] == TuningPolicy(search=search)


def test_where(tuner, tmp_path, monkeypatch):
    autotune(*CONVOLUTION, "--workers", 3, "--cache", "mine", "--device", "emulated:1")
    assert tuner.options["cache"].path == tmp_path / "mine"
    assert (tuner.options["workers"], tuner.options["device"]) == (3, "emulated:1")
    autotune(*CONVOLUTION)
    assert tuner.options["cache"].path == tmp_path / "default"
    assert (tuner.options["workers"], tuner.options["device"]) == (None, "emulated")
    autotune(*CONVOLUTION, "--no-cache")
    assert tuner.options["cache"].path == ":memory:"
    autotune(*CONVOLUTION, "--read-only-cache")
    assert tuner.options["cache"].read_only
    monkeypatch.delenv(DEVICE_VARIABLE)
    autotune(*CONVOLUTION)
    assert tuner.options["device"] == "auto"


# ---------------------------------------------------------------- how it ends

MISUSE = {
    "nothing to tune": [],
    "--input and --filter are needed together": ["--input", "1x2x4x4"],
    "--input is given twice": [*CONVOLUTION, *CONVOLUTION],
    "same rank": ["--input", "1x2x4", "--filter", "2x2x1x1"],
    "'1_0' is not an integer": ["--input", "1x2x1_0x4", "--filter", "2x2x1x1"],
    "--input 1,3,8,8: '1,3,8,8' is not an integer; the form is NxCxHxW": [
        "--input",
        "1,3,8,8",
        "--filter",
        "2x2x1x1",
    ],
    "'valid' is 0": [*CONVOLUTION, "--padding", "valid"],
    "'1,2' is not an integer; the form is one number, or one for each axis as in 1x2": [
        *CONVOLUTION,
        "--stride",
        "1,2",
    ],
    "No such option: --report (Possible options: --html)": [*CONVOLUTION, "--report", "x.html"],
    "'' is not an integer": ["--input", "1x2x4x", "--filter", "2x2x1x1"],
    "has 3 spatial axes": [*CONVOLUTION, "--padding", "1x2x3"],
    "--padding goes with --input": [*RNN, "--padding", "1"],
    "--layout goes with --input or --onnx": [*RNN, "--layout", "NHWC"],
    "--math-type goes with --input or --rnn or --onnx": [
        "--problems",
        "a.json",
        "--math-type",
        "fma",
    ],
    "--batch goes with --onnx": [*RNN, "--batch", "1"],
    "--batch 1,x: 'x' is not an integer": ["--onnx", "a.onnx", "--batch", "1,x"],
    "--batch 8,0: 1 is the least": ["--onnx", "a.onnx", "--batch", "8,0"],
    "--csv - and --json exclude each other": [*CONVOLUTION, "--csv", "-", "--json"],
    "must end in .csv": [*CONVOLUTION, "--csv", "a.txt"],
    "--dtype='float': NumPy's float is float64": [*CONVOLUTION, "--dtype", "float"],
    "--math-type='fast' ": [*CONVOLUTION, "--math-type", "fast"],
    "the form is NAME=1x3x224x224": ["--onnx", "a.onnx", "--shape", "1x3x224x224"],
    "names an input twice": ["--onnx", "a.onnx", "--shape", "x=1", "--shape", "x=2"],
    "hidden missing; the form is CELL:steps=T": ["--rnn", "lstm:steps=1,batch=1,input=1"],
    "'T=1' is not understood": ["--rnn", "lstm:T=1"],
    "'training=1' is not understood": ["--rnn", "lstm:steps=1,training=1"],
    "steps is given twice": ["--rnn", "lstm:steps=1,steps=1"],
    "'1.5' is not an integer": ["--rnn", "lstm:steps=1.5"],
    "cell='lstn' ": ["--rnn", "lstn:steps=1,batch=1,input=1,hidden=1"],
    "--workspace-limit='much' is not a size": [*CONVOLUTION, "--workspace-limit", "much"],
    "--objective='speed'; allowed: 'latency', 'device'": [*CONVOLUTION, "--objective", "speed"],
    "--onnx a.onnx: dtype='int8'; allowed: ": ["--onnx", "a.onnx", "--dtype", "int8"],
    "--onnx a.onnx: layout='N'; allowed: ": ["--onnx", "a.onnx", "--layout", "N"],
    "Invalid value for '--html'": [*CONVOLUTION, "--html", "x" * 300 + ".html"],
    "--device='gpu' is not a device; allowed: 'cuda'": [*CONVOLUTION, "--device", "gpu"],
    "--max-error=nan; allowed: a number": [*CONVOLUTION, "--max-error", "nan"],
    "--also-layout=('NHCW',); allowed": [*CONVOLUTION, "--also-layout", "NHCW"],
    "'--cache': '' is not a path": [*CONVOLUTION, "--cache", ""],
    "--no-cache and --cache exclude each other": [*CONVOLUTION, "--no-cache", "--cache", "a"],
    "--no-cache and --read-only-cache exclude": [*CONVOLUTION, "--no-cache", "--read-only-cache"],
    "must end in .html or .htm": [*CONVOLUTION, "--html", "report"],
    "must end in .json": [*CONVOLUTION, "--save-problems", "a.txt"],
    "--workers": [*CONVOLUTION, "--workers", "0"],
}


@pytest.mark.parametrize("message", MISUSE)
def test_a_command_line_that_is_wrong(tuner, message):
    result = autotune(*MISUSE[message])
    assert (result.exit_code, result.stdout) == (cli_common.USAGE, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert tuner.problem_list is None


ERRORS = {
    "there is no folder": [*CONVOLUTION, "--html", "absent/a.html"],
    "cannot be written: it is a folder": [*CONVOLUTION, "--html", "folder.html"],
    "absent.onnx": ["--onnx", "absent.onnx"],
    "absent.json": ["--problems", "absent.json"],
    "is not JSON": ["--problems", "text.json"],
    "no tuning cache": [*CONVOLUTION, "--cache", "text.json"],
    "--cache absent does not exist": [*CONVOLUTION, "--cache", "absent", "--read-only-cache"],
    "there is nothing to tune": ["--problems", "empty.json"],
}


@pytest.mark.parametrize("message", ERRORS)
def test_what_does_not_go_is_told_before_anything_is_tuned(tmp_path, monkeypatch, message):
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "text.json").write_text("not what you think")
    dnn.ProblemList().save("empty.json")
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(dnn.Tuner, "tune", lambda *_: pytest.fail("something is tuned"))
    result = autotune(*ERRORS[message])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1].startswith("cudnnlite: ")
    assert message in result.stderr.splitlines()[-1]
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "text.json").read_text() == "not what you think"


def test_a_package_that_is_missing_is_told_before_anything_is_tuned(tuner, monkeypatch):
    monkeypatch.setattr(cli_common, "find_spec", lambda _: None)
    result = autotune(*CONVOLUTION, "--html", "a.html")
    assert result.exit_code == 1
    assert "pip install 'cudnnlite[report]'" in result.stderr
    assert tuner.problem_list is None


def test_a_cache_that_cannot_be_written_is_told_before_anything_is_tuned(tuner, monkeypatch):
    monkeypatch.setattr(cli_autotune.os, "access", lambda *_: False)  # which root always may
    result = autotune(*CONVOLUTION, "--device", "cuda")
    assert result.exit_code == 1
    assert (
        "default cannot be written: give another --cache, --read-only-cache or --no-cache"
        in result.stderr
    )
    assert tuner.problem_list is None
    autotune(*CONVOLUTION, "--device", "cuda", "--no-cache")
    assert tuner.problem_list is not None


def test_a_file_that_cannot_be_written_in_the_end_costs_only_itself(tmp_path, monkeypatch):
    def write_html(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(page, "write_html", write_html)
    result = autotune(*CONVOLUTION, "--html", "a.html", "--csv", "a.csv")
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr
    assert (tmp_path / "a.csv").exists()
    assert "chosen: " in result.stdout


def test_a_default_cache_that_is_no_folder_is_told_in_a_line(tmp_path):
    (tmp_path / "default").write_bytes(b"rubbish" * 1000)
    result = autotune(*CONVOLUTION)
    assert result.exit_code == 0
    warning = r"^cudnnlite: warning: .*default is a file, .* until then memory has to do$"
    assert re.search(warning, result.stderr, re.MULTILINE)


@pytest.mark.parametrize("saves", [True, False])
def test_after_an_interrupt(tuner, tmp_path, saves):
    def interrupt():
        raise KeyboardInterrupt

    tuner.then = interrupt
    result = autotune(*CONVOLUTION, *RNN, "--device", "cuda" if saves else "emulated")
    assert (result.exit_code, result.stdout) == (cli_common.INTERRUPTED, "")
    where = f"2 of 2 problems are saved in {tmp_path / 'default'}; the same command goes on there"
    assert (
        result.stderr.splitlines()[-1]
        == f"cudnnlite: interrupted: {where if saves else 'nothing is saved'}"
    )


def test_no_gpu():
    result = autotune(*CONVOLUTION, "--device", "cuda:99")
    assert result.exit_code == 1
    assert result.stderr.startswith("cudnnlite: no CUDA device 99")
    assert result.stderr.endswith(", or use --device emulated\n")


@pytest.mark.parametrize("command", [[], ["autotune"], ["cache"], ["cache", "clear"], ["info"]])
def test_the_help_shows_no_value_of_what_takes_none(command):
    result = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"})
    assert "<bool>" not in result.stdout
    assert re.search(r"--help +-h +Show this message", result.stdout)
    assert command != ["autotune"] or re.search(r"--deterministic +Only what gives", result.stdout)


def test_a_layout_that_is_converted_is_named():
    result = autotune(*CONVOLUTION, "--also-layout", "NHWC")
    assert result.exit_code == 0
    heading = next(line for line in result.stdout.splitlines() if line.startswith("algorithm "))
    assert heading.split()[:3] == ["algorithm", "math", "in"]
    assert "not FFT (DEFAULT, FMA, TENSOR_OP, in NHWC): " in result.stdout


def test_what_could_not_be_saved_is_not_called_saved(monkeypatch, tmp_path):
    """A full disk: the figures are printed, and the exit code says that something is missing."""
    monkeypatch.setattr(TuningCache, "unsaved", 1)
    Pretence(monkeypatch, tmp_path, "A")
    result = autotune(*CONVOLUTION, "--device", "cuda", "--cache", str(tmp_path / "full"))
    assert result.exit_code == 1
    assert f"1 problem could not be saved in {tmp_path / 'full'}" in result.stderr
    assert "chosen" in result.stdout
    assert "saved in" not in result.stdout
