"""`cudnnlite bench`: what the flags mean, what is printed and written, and how it ends."""

import csv
import io
import json
import os
import shlex
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import cudnnlite as dnn
from cudnnlite import OperationPlan
from cudnnlite.cli import bench as cli_bench
from cudnnlite.cli import common as cli_common
from cudnnlite.cli import options as cli_options
from cudnnlite.cli.app import app
from cudnnlite.cli.bench_lines import model_lines
from cudnnlite.cli.bench_problems import PROBLEM_OPTIONS, line_of
from cudnnlite.devices.device_choice import DEVICE_VARIABLE
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.rnn import FORWARD as RNN_FORWARD
from cudnnlite.types import Problem
from cudnnlite.workbench.bench.lists import (
    LISTS,
    attention_problem,
    matmul_problem,
    problems_of_list,
)
from cudnnlite.workbench.bench.rows import BenchRow, BenchRun, load_run, run_from_plain
from cudnnlite.workbench.tuning.cache import CACHE_VARIABLE
from cudnnlite.workbench.tuning.timing_policy import TimingPolicy

CONVOLUTION = ["--input", "2x8x9x7", "--filter", "4x4x3x3", "--groups", "2"]


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    """Work in an empty folder, on the emulated device, with a cache that is not the user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(DEVICE_VARIABLE, "emulated")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "default"))


def bench(*arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)], prog_name="cudnnlite")


def rows_of(*arguments):
    result = bench(*arguments, "--json")
    assert result.exit_code in (0, 3), result.stderr
    return run_from_plain(json.loads(result.stdout), "stdout").rows


def test_one_problem_is_a_row_with_the_line_that_repeats_it():
    result = bench(*CONVOLUTION, "--mode", "check")
    assert result.exit_code == 0, result.stderr
    head, heading, row, repeat, line = result.stdout.splitlines()
    assert "emulated" in head
    assert heading.split()[:2] == ["GFLOP", "MB"]
    assert "2x8x9x7 by 4x4x3x3 to 2x4x7x5, float32 NCHW, groups=2" in row
    assert row.endswith("chosen")
    assert repeat == "to repeat a row:"
    words = shlex.split(line)
    assert words[:2] == ["cudnnlite", "bench"]
    again = rows_of(*words[2:])
    assert [(row.problem, row.status) for row in again] == [
        ("2x8x9x7 by 4x4x3x3 to 2x4x7x5, float32 NCHW, groups=2", "ok")
    ]
    assert again[0].line == line.strip()


def test_the_emulated_device_says_that_its_times_mean_nothing(tmp_path):
    result = bench(*CONVOLUTION)
    assert result.exit_code == 0, result.stderr
    assert "the times are NumPy's, not a GPU's" in result.stderr
    assert list(tmp_path.iterdir()) == []
    (row,) = rows_of(*CONVOLUTION, "--card", "H200")
    assert row.device_us > 0
    assert row.tflops is row.gbps is row.roofline is None  # rates would be read as a GPU's


def test_list_needs_no_device(monkeypatch):
    monkeypatch.setattr(cli_bench, "Handle", None)
    (row,) = rows_of(*CONVOLUTION, "--dtype", "float16", "--mode", "list", "--card", "h200")
    products, nbytes = 2 * 4 * 7 * 5 * 4 * 9, 2 * (2 * 8 * 9 * 7 + 4 * 4 * 9 + 2 * 4 * 7 * 5)
    assert (row.flops, row.nbytes) == (2 * products, nbytes)
    assert row.bound == "memory"
    assert row.least_us == pytest.approx(nbytes / 4.8e12 * 1e6)
    assert row.candidate == ""


def test_every_candidate_has_a_row_and_the_refused_ones_a_reason():
    rows = rows_of(*CONVOLUTION, "--mode", "plan", "--every")
    assert len({row.candidate for row in rows}) == len(rows) > 10
    assert [row.is_chosen for row in rows] == [True] + [False] * (len(rows) - 1)
    refused = [row for row in rows if row.status != "ok"]
    assert refused
    assert all("NOT_SUPPORTED" in row.status or row.status for row in refused)


@pytest.mark.parametrize("name", LISTS)
def test_each_list_is_listed(name):
    rows = rows_of("--list", name, "--mode", "list", "--dtype", "float16")
    expected = problems_of_list(name, dtype="float16")
    assert len(rows) == len(expected)
    assert sum(row.count for row in rows) == expected.total
    assert all(row.name for row in rows)


def test_a_list_takes_batches_and_a_layout():
    rows = rows_of("--list", "resnet50", "--mode", "list", "--batch", "1,4", "--layout", "nhwc")
    assert len(rows) == 46
    assert {row.problem.partition("x")[0] for row in rows} == {"1", "4"}
    assert all("NHWC" in row.problem for row in rows)


# ---------------------------------------------------------------- the line that repeats a row


def several_problems():
    x = dnn.TensorSpec((2, 6, 9, 7), "float16", "NHWC")
    w = dnn.FilterSpec((8, 3, 3, 2), "float16", "NHWC")
    conv = dnn.ConvolutionSpec(padding=(1, 0), stride=(2, 3), groups=2, math_type="TENSOR_OP")
    forward = dnn.convolution_forward.problem(x, w, conv)
    yield forward
    yield dnn.convolution_backward_data.problem(w, forward.y, conv, x=x)
    yield dnn.convolution_backward_filter.problem(x, forward.y, conv, w=w)
    yield dnn.convolution_forward.problem(
        dnn.TensorSpec((1, 2, 9, 7, 5)), dnn.FilterSpec((3, 2, 2, 2, 2)), dnn.ConvolutionSpec()
    )
    # These need --problem: options have no words for them.
    yield forward.replace(beta=0.25)
    yield dnn.convolution_forward.problem(x.replace(strides=(2000, 1, 200, 10)), w, conv)
    for options in ({}, {"bidirectional": True, "num_layers": 2}, {"bias": "none"}):
        spec = dnn.RNNSpec("gru", 5, 7, dtype="float16", **options)
        data = dnn.specs.RNNDataSpec((4, 3, 5), dtype="float16")
        yield Problem(RNN_FORWARD, spec=spec, data=data, training=False)
        yield Problem(RNN_FORWARD, spec=spec, data=data, training=True)
    spec = dnn.RNNSpec("lstm", 5, 8, projection_size=4, dropout=0.25, num_layers=2)
    for data in (
        dnn.specs.RNNDataSpec((4, 3, 5), dtype="float32", layout="batch_major"),
        dnn.specs.RNNDataSpec((4, 3, 5), (4, 2, 1), dtype="float32"),
    ):
        yield Problem(RNN_FORWARD, spec=spec, data=data, training=False)
    yield matmul_problem(1, 5, 7, 3, "float16")
    for activation in ("relu", "leaky_relu", "gelu", "gelu_tanh", "swish", "tanh", "elu", "mish"):
        yield matmul_problem(2, 5, 7, 3, "bfloat16", bias=True, activation=activation)
    yield attention_problem(2, 4, 8, 16, "float16")
    yield attention_problem(2, 4, 8, 16, "bfloat16", kv_heads=2, kv_steps=24, causal=True)


@pytest.mark.parametrize("problem", [*several_problems()], ids=str)
def test_the_line_asks_for_the_same_problem(problem):
    line = line_of(problem, cli_bench._items_of_words)
    (item,) = cli_bench._items_of_words(shlex.split(line))
    assert item.listed.problem == problem


def test_options_have_words_for_the_usual_problems():
    by_json = [
        problem
        for problem in several_problems()
        if line_of(problem, cli_bench._items_of_words).startswith("--problem")
    ]
    assert len(by_json) == 3


def test_the_line_of_a_row_has_the_policy():
    flags = ["--mode", "plan", "--flush-l2", "--deterministic", "--workspace-limit", "1MiB"]
    flags += ["--objective", "device", "--max-error", "0.01", "--no-tf32", "--engines"]
    flags += ["--also-layout", "NHWC", "--interface", "descriptor", "--runs", "3"]
    (row,) = rows_of(*CONVOLUTION, *flags)
    assert row.candidate
    words = shlex.split(row.line)[2:]
    again, asked = (cli_bench._parse_line(line) for line in (words, [*CONVOLUTION, *flags]))
    assert cli_options.policy_of(again) == cli_options.policy_of(asked)
    assert (again.choice, again.runs, again.mode) == (row.candidate, 3, "plan")


def test_the_line_of_what_is_not_served_has_the_policy():
    flags = ["--attention", "batch=1,heads=2,steps=8,size=8", "--dtype", "float16"]
    (row,) = rows_of(*flags, "--mode", "plan", "--interface", "descriptor")
    assert not row.candidate
    assert row.line.endswith("--mode plan --interface descriptor --device emulated")


def options_in(words, without):
    """Return the options that words of a command line set, by name, with their values."""
    params = cli_bench._context_of(words).params
    return {name: value for name, value in params.items() if value and name not in without}


# One value of each option that changes what a row has; the others name problems or files, and
# --every and --choice say which candidates.
CHANGING = [
    *("--mode", "time", "--runs", "3", "--card", "NVIDIA A100-SXM4-80GB"),
    *("--objective", "device", "--workspace-limit", "64 MiB", "--deterministic"),
    *("--max-error", "0.01", "--no-tf32", "--also-layout", "NHWC", "--also-layout", "NCHW"),
    *("--interface", "descriptor", "--flush-l2", "--engines", "--device", "emulated:1"),
]
NO_ROW = {"every", "choice", "json_", "csv", "save", "c"}


def test_the_line_of_a_row_has_every_option_that_changes_a_row(monkeypatch):
    monkeypatch.setattr(dnn.Tuner, "timing", TimingPolicy(l2_bytes=1 << 20))  # --flush-l2 fills it
    asked = [*CONVOLUTION, "--dtype", "float32", *CHANGING]
    (row,) = rows_of(*asked)
    words = shlex.split(row.line)[2:]
    assert words[-2:] == ["--choice", row.candidate]
    expected, again = options_in(asked, NO_ROW), options_in(words, NO_ROW)
    assert again.pop("workspace_limit") == str(64 << 20)
    assert expected.pop("workspace_limit") == "64 MiB"
    assert again == expected
    named = {name.rstrip("_") for name in expected} | {"workspace_limit"}
    every = {parameter.name.rstrip("_") for parameter in cli_bench._parser().params}
    assert every - named - {*PROBLEM_OPTIONS} == {name.rstrip("_") for name in NO_ROW}
    (repeated,) = rows_of(*words)
    assert (repeated.line, repeated.candidate) == (row.line, row.candidate)


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ((), "emulated"),
        (("--device", "auto"), "emulated"),
        (("--device", "EMULATED:2"), "emulated:2"),
    ],
)
def test_the_line_of_a_row_names_the_device_that_was_used(asked, named, monkeypatch):
    if asked:
        monkeypatch.delenv(DEVICE_VARIABLE)
        monkeypatch.setattr(cli_common, "visible_gpus", tuple)
    (row,) = rows_of(*CONVOLUTION, "--mode", "plan", *asked)
    words = shlex.split(row.line)
    assert words[words.index("--device") + 1] == named


def test_a_file_of_lines_has_what_rows_print():
    problems = [matmul_problem(1, 5, 7, 3, "float16"), attention_problem(2, 4, 8, 16, "float16")]
    lines = [line_of(problem, cli_bench._items_of_words) for problem in problems]
    with open("problems.txt", "w", encoding="utf-8") as file:
        file.write(f"# two problems\n{lines[0]}\n\ncudnnlite bench {lines[1]}  # another\n")
    rows = rows_of("--lines", "problems.txt", "--mode", "list")
    assert [row.key for row in rows] == lines
    assert [row.line for row in rows] == [f"cudnnlite bench {line} --mode list" for line in lines]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--input 1x2x3x3", "--input and --filter are needed together"),
        ("--lines problems.txt", "a file of lines names no other"),
        ("--matmul 'm=1", "line 1"),
        ("# none\n--colour red", "--lines problems.txt, line 2: No such option: --colour"),
        ("--help", "line 1: No such option: --help"),
    ],
)
def test_a_mistake_in_a_file_of_lines_is_told(line, message):
    with open("problems.txt", "w", encoding="utf-8") as file:
        file.write(line)
    result = bench("--lines", "problems.txt", "--mode", "list")
    assert result.exit_code in (1, 2)
    assert message in result.stderr


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to bench: give --input"),
        (["--mode", "fast", *CONVOLUTION], "--mode fast; allowed: list, plan, run, check, time"),
        (["--list", "alexnet"], "--list alexnet; allowed: resnet50"),
        (["--list", "lstm", "--batch", "0"], "1 is the least"),
        (["--list", "deepbench-rnn", "--batch", "2"], "have batches of their own"),
        (["--matmul", "m=1,n=2"], "k missing; the form is m=M"),
        (["--matmul", "m=1,n=2,k=3,k=3"], "k is given twice"),
        (["--matmul", "m=1,n=2,k=3,activation=none"], "activation"),
        (["--attention", "batch=1,heads=2"], "steps, size missing"),
        (["--attention", "batch=1,heads=3,steps=4,size=8,kv_heads=2"], "--attention"),
        (["--problem", "{"], "--problem: it is not JSON"),
        (["--problem", "[]"], "--problem: "),
        (["--problem", '{"kind":"graph"}'], "--problem: "),
        ([*CONVOLUTION, "--card", "H3000"], "--card='H3000'; allowed: V100"),
        ([*CONVOLUTION, "--choice", "x", "--every"], "--choice and --every exclude each other"),
        ([*CONVOLUTION, "--csv", "-", "--json"], "--csv - and --json exclude each other"),
        ([*CONVOLUTION, "--save", "run.txt"], "its name must end in .json"),
        ([*CONVOLUTION, "--c", "folder", "--mode", "list"], "--c goes with another --mode"),
        (["--batch", "2", *CONVOLUTION], "--batch goes with --onnx or --list"),
    ],
)
def test_mistakes_are_told_before_anything_is_done(arguments, message, monkeypatch):
    monkeypatch.setattr(cli_bench, "Handle", None)
    result = bench(*arguments)
    assert result.exit_code == 2, result.stderr
    assert message in result.stderr


def test_a_candidate_that_is_not_there_is_told():
    (row,) = rows_of(*CONVOLUTION, "--mode", "plan", "--choice", "FAST")
    assert row.status.startswith("not benched: choice='FAST' is no candidate; there are ")
    result = bench(*CONVOLUTION, "--mode", "plan", "--choice", "FAST")
    assert result.exit_code == 3
    assert "not served: 1 problem" in result.stderr


# ---------------------------------------------------------------- what is wrong, and files


def test_a_planted_fault_is_found_and_decides_the_exit_code(monkeypatch):
    call = OperationPlan.__call__

    def faulty(plan, *operands, out, **options):
        result = call(plan, *operands, out=out, **options)
        out.device.fill(out.ptr + out.nbytes, out.dtype.itemsize, 0, out.stream)
        return result

    monkeypatch.setattr(OperationPlan, "__call__", faulty)
    result = bench(*CONVOLUTION, "--mode", "check")
    assert result.exit_code == 3
    assert "writes behind y: 4 bytes, the first 0 behind its end" in result.stdout
    assert "cudnnlite: wrong: " in result.stderr


def test_csv_and_json_have_every_row():
    flags = ["--csv", "a.csv", "--save", "a.json", "--card", "A100"]
    result = bench(*CONVOLUTION, "--matmul", "m=4,n=5,k=6", "--mode", "check", *flags)
    assert result.exit_code == 0, result.stderr
    run = load_run(Path("a.json"))
    assert [row.status for row in run.rows] == ["ok", "ok"]
    with open("a.csv", newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert [line["problem"] for line in table] == [row.problem for row in run.rows]
    assert [float(line["error"]) for line in table] == [row.error for row in run.rows]
    assert [line["line"] for line in table] == [row.line for row in run.rows]
    assert "NVIDIA A100" in run.facts["peaks"]
    printed = bench(*CONVOLUTION, "--matmul", "m=4,n=5,k=6", "--mode", "check", "--csv", "-")
    heading = next(csv.reader(io.StringIO(printed.stdout)))
    assert heading == list(table[0])


def test_c_programs_are_written_of_each_row():
    result = bench(*CONVOLUTION, "--mode", "run", "--c", "programs")
    assert result.exit_code == 0, result.stderr
    with open("programs/1/program.c", encoding="utf-8") as file:
        program = file.read()
    assert "cudnnBackendExecute" in program or "cudnnConvolutionForward" in program


def test_problems_of_a_program_are_benched():
    with dnn.Handle(device="emulated") as handle, dnn.record_problems() as problems:
        x = handle.array(np.ones((1, 3, 8, 8), np.float32))
        w = handle.array(np.ones((4, 3, 3, 3), np.float32))
        dnn.convolution_forward(handle, x, w)
        dnn.activation_forward(handle, x, "RELU")
    problems.save("recorded.json")
    convolution, activation = rows_of("--problems", "recorded.json", "--mode", "plan")
    assert convolution.status == "ok"
    assert activation.status.startswith("not benched: ")


def test_the_row_that_wastes_the_most_time_is_named():
    def row(name, count, device_us, least_us):
        return BenchRow(
            "a problem",
            name,
            count,
            name,
            is_chosen=True,
            device_us=device_us,
            least_us=least_us,
            roofline=least_us / device_us,
        )

    # "often" wastes 4 times 15 us, "long" 50 us.
    rows = (row("long", 1, 250.0, 200.0), row("often", 4, 25.0, 10.0), BenchRow("not timed"))
    assert [*model_lines(BenchRun(rows))] == [
        "2 problems: 0.35 ms on the device, the least time is 0.24 ms (69%)",
        "furthest above its least time: often, by 0.06 ms in 4 calls",
    ]
    assert [*model_lines(BenchRun(rows[:1]))] == []


# ---------------------------------------------------------------- rows as values


def test_a_run_survives_json():
    row = BenchRow(
        "a problem", "a name", 3, error=float("inf"), ulp=1.5, findings=("x",), kernels=("k", "l")
    )
    run = BenchRun((row,), {"device": "a GPU"})
    assert run_from_plain(json.loads(json.dumps(run.to_plain())), "here") == run


@pytest.mark.parametrize(
    "change",
    [
        {"format": "another"},
        {"version": 99},
        {"rows": 3},
        {"rows": [{"problem": "x", "unknown": 1}]},
        {"rows": [{}]},
        {"rows": [{"problem": "x", "error": "large"}]},
        {"facts": 5},
    ],
)
def test_what_is_no_run_is_refused(change):
    plain = BenchRun((BenchRow("a problem"),), {}).to_plain() | change
    with pytest.raises(ArgumentError, match="here"):
        run_from_plain(plain, "here")


def test_the_chosen_row_stands_for_its_problem():
    rows = (
        BenchRow("a", candidate="1", status="no"),
        BenchRow("a", candidate="2", is_chosen=True),
        BenchRow("b", status="not served: x"),
    )
    run = BenchRun(rows)
    assert [row.candidate for row in run.chosen] == ["2", ""]
    assert run.unserved == (rows[2],)


def test_links_are_replaced_and_not_followed(tmp_path):
    target = tmp_path / "target"
    target.write_text("mine")
    names = ("run.csv", "run.json")
    for name in names:
        (tmp_path / name).symlink_to(target)
    arguments = ["--mode", "list", *CONVOLUTION, "--csv", names[0], "--save", names[1]]
    ended = CliRunner().invoke(app, ["bench", *arguments])
    assert ended.exit_code == 0, ended.output
    assert target.read_text() == "mine"
    for name in names:
        assert not (tmp_path / name).is_symlink()
        assert "2x8x9x7" in (tmp_path / name).read_text()


def test_a_file_that_is_too_large_is_told(tmp_path):
    huge = tmp_path / "huge"
    huge.touch()
    os.truncate(huge, 1 << 40)
    for option in ("--lines", "--problems"):
        ended = CliRunner().invoke(app, ["bench", "--mode", "list", option, str(huge)])
        assert ended.exit_code == 1, ended.output
        assert "is larger than 2 GiB" in ended.output


def test_what_has_no_room_in_memory_is_told(tmp_path, monkeypatch):
    def fail(*_):
        raise MemoryError

    lines = tmp_path / "lines"
    lines.touch()
    monkeypatch.setattr("cudnnlite.cli.bench_problems.read_named_file", fail)
    ended = CliRunner().invoke(app, ["bench", "--mode", "list", "--lines", str(lines)])
    assert (ended.exit_code, "Traceback" in ended.output) == (1, False)
    assert "there is not enough memory for this" in ended.output
