"""`cudnnlite compare`: sides, files, and how it ends."""

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.tuning_entries import entry
from typer.testing import CliRunner

import cudnnlite as dnn
from cudnnlite._raw.api import library_api
from cudnnlite.cli import absent_libraries
from cudnnlite.cli import compare as cli_compare
from cudnnlite.cli.app import app
from cudnnlite.devices.device_choice import DEVICE_VARIABLE
from cudnnlite.errors import LibraryError
from cudnnlite.types import Engine
from cudnnlite.workbench.absent.answers import Answer, Candidate
from cudnnlite.workbench.absent.candidates import Candidates
from cudnnlite.workbench.bench.lists import attention_problem, matmul_problem
from cudnnlite.workbench.bench.rows import load_run
from cudnnlite.workbench.tuning.cache import CACHE_VARIABLE, TuningCache

CONVOLUTION = ["--input", "2x8x9x7", "--filter", "4x4x3x3", "--groups", "2", "--mode", "check"]


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    """Work in an empty folder, on the emulated device, with a cache that is not the user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(DEVICE_VARIABLE, "emulated")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "default"))


def run(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)], prog_name="cudnnlite")


def save(name, *arguments):
    result = run("bench", *CONVOLUTION, *arguments, "--save", name)
    assert result.exit_code == 0, result.stderr


def change(name, **fields):
    """Let the row of a saved run have other values, and its times be those of a GPU."""
    saved = load_run(Path(name))
    rows = tuple(replace(row, **fields) for row in saved.rows)
    changed = replace(saved, rows=rows, facts={**saved.facts, "has real timing": True})
    Path(name).write_text(json.dumps(changed.to_plain()), encoding="utf-8")


def test_two_saved_runs():
    save("a.json")
    save("b.json")
    result = run("compare", "a.json", "b.json")
    assert result.exit_code == 0, result.stderr
    assert "the times are not compared" in result.stdout
    assert "no difference that counts in 1 problem" in result.stdout
    change("a.json", device_us=10.0)
    change("b.json", device_us=20.0)
    result = run("compare", "a.json", "b.json", "--markdown", "issue.md")
    assert result.exit_code == 3
    assert "2.0000" in result.stdout
    assert "slower" in result.stdout
    assert "slower" in Path("issue.md").read_text(encoding="utf-8")
    assert run("compare", "b.json", "a.json").exit_code == 0
    flags = ("--slower", 150, "--model-slower", 150)
    assert run("compare", "a.json", "b.json", *flags).exit_code == 0


def test_what_is_no_longer_served_or_wrong_ends_with_3():
    for fields, expected in (
        ({"status": "not served: x"}, "no longer served"),
        ({"findings": ("zeros where the reference is not",)}, "wrong"),
    ):
        save("a.json")
        save("b.json")
        change("b.json", **fields)
        result = run("compare", "a.json", "b.json", "--json")
        assert result.exit_code == 3
        assert json.loads(result.stdout)["counts"] == {expected: 1}


def test_two_caches(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    for folder, factor in ((a, 1), (b, 3)):
        with TuningCache(folder) as cache:
            one = entry()
            rows = tuple(
                replace(row, time_ms=row.time_ms and factor * row.time_ms) for row in one.rows
            )
            cache.put(replace(one, rows=rows))
    result = run("compare", a, b, "--json")
    assert result.exit_code == 3, result.stderr
    plain = json.loads(result.stdout)
    assert plain["geometric_mean"] == pytest.approx(3)
    assert plain["counts"] == {"slower": 1}


def test_a_rehearsal_is_not_compared_with_a_cache_for_gpus(tmp_path):
    with dnn.TuningCache(tmp_path / "rehearsal", rehearsal=True):
        pass
    (tmp_path / "gpu").mkdir()
    for words in (("rehearsal", "gpu"), ("gpu", "rehearsal")):
        result = run("compare", *(tmp_path / word for word in words))
        assert result.exit_code == 1
        assert "is a rehearsal on the emulated device: no GPU is compared with it" in result.stderr


@pytest.mark.processes
def test_two_policies_are_two_processes():
    sides = ["--with", "--dtype float32 --no-tf32", "--with", "--dtype float16"]
    result = run("compare", *sides, "--every", "--json", "--", *CONVOLUTION)
    assert result.exit_code == 3, result.stderr
    plain = json.loads(result.stdout)
    (problem,) = plain["problems"]
    assert "less exact" in problem["verdicts"]
    assert problem["a"]["error"] < 1e-6 < problem["b"]["error"]
    assert plain["a"]["name"] == "--dtype float32 --no-tf32"


@pytest.mark.processes
def test_a_library_that_is_none_is_told(tmp_path):
    (tmp_path / "libcudnn.so.9").write_text("no library")
    result = run("compare", "--libcudnn", tmp_path, "--libcudnn", tmp_path, "--", *CONVOLUTION)
    assert result.exit_code == 1
    assert "`cudnnlite bench` ended with 1" in result.stderr


def test_a_folder_without_a_library_is_told(tmp_path):
    result = run("compare", "--libcudnn", tmp_path, "--libcudnn", tmp_path, "--", *CONVOLUTION)
    assert result.exit_code == 2
    assert f"--libcudnn {tmp_path}: there is no file {tmp_path}/libcudnn.so.9" in result.stderr


def test_a_library_is_found_in_the_folder_lib(monkeypatch, tmp_path):
    asked = []

    def candidates(problems, properties, *, cudnn):
        asked.append(cudnn)
        answers = (served(4, 100), served(5, 100))
        return [Candidates("", properties, "9.1.0", answer) for answer in answers]

    monkeypatch.setattr(absent_libraries, "candidates", candidates)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libcudnn.so.9").write_text("")
    sides = ["--libcudnn", tmp_path, "--libcudnn", tmp_path, "--gpu", "h200"]
    result = run("compare", *sides, "--", *SOME)
    assert result.exit_code == 0, result.stderr
    assert asked == [tmp_path / "lib" / "libcudnn.so.9"] * 2


def test_each_library_has_a_process(monkeypatch):
    processes = []

    def bench_run(words, library, name):
        processes.append((list(words), library, name))
        save(f"{library}.json")
        return load_run(Path(f"{library}.json"))

    monkeypatch.setattr(cli_compare, "bench_run", bench_run)
    for library in ("old", "new"):
        Path(library).write_text("", encoding="utf-8")
    result = run("compare", "--libcudnn", "old", "--libcudnn", "new", "--", *CONVOLUTION)
    assert result.exit_code == 0, result.stderr
    assert processes == [(CONVOLUTION, "old", "old"), (CONVOLUTION, "new", "new")]


def test_two_libraries_without_a_gpu(monkeypatch):
    """Plans are made, nothing runs, and it says what cannot be told."""
    processes = []

    def bench_run(words, library, name):
        processes.append(list(words))
        save(f"{library}.json")
        return load_run(Path(f"{library}.json"))

    monkeypatch.setattr(cli_compare, "bench_run", bench_run)
    words = CONVOLUTION[:-2]
    libraries = ["--libcudnn", "old", "--libcudnn", "new"]
    for library in ("old", "new"):
        Path(library).write_text("", encoding="utf-8")
    result = run("compare", *libraries, "--markdown", "a.md", "--", *words)
    assert result.exit_code == 0, result.stderr
    assert processes == [[*words, "--mode", "plan"]] * 2
    assert "no GPU: --mode plan" in result.stderr
    assert "no GPU: what is served and chosen is what was recorded" in result.stdout
    assert "no GPU: what is served and chosen" in Path("a.md").read_text(encoding="utf-8")
    monkeypatch.setenv(DEVICE_VARIABLE, "cuda")
    assert cli_compare._is_without_gpu([*words, "--device", "emulated"])
    assert not cli_compare._is_without_gpu(words)
    assert not cli_compare._is_without_gpu([*words, "--device=cuda:1"])


SOME = ["--matmul", "m=5,n=7,k=16", "--attention", "batch=1,heads=2,steps=64,size=64"]


@pytest.mark.processes
@pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler"
)
@pytest.mark.skipif(
    library_api().library.version < 90800, reason="cuDNN 9.8 added properties of devices"
)
@pytest.mark.exhaustive
def test_a_library_answers_as_itself_about_an_absent_gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    library = library_api().library.path
    sides = ["--libcudnn", library, "--libcudnn", Path(library).parent, "--gpu", "h200"]
    problems = [*SOME, "--rnn", "lstm:steps=2,batch=3,input=4,hidden=5", "--dtype", "float16"]
    result = run("compare", *sides, "--json", "--", *problems)
    assert result.exit_code == 0, result.stderr
    plain = json.loads(result.stdout)
    assert plain["counts"] == {}
    assert plain["a"]["facts"]["device"] == "NVIDIA H200, which is absent"
    fronts = {plain[side]["facts"]["libcudnn"] for side in ("a", "b")}
    assert fronts == {str(Path(library).resolve())}
    assert "skipped: LSTM 4 to 5" in result.stderr
    expected = dnn.candidates(
        [matmul_problem(1, 5, 7, 16, "float16"), attention_problem(1, 2, 64, 64, "float16")],
        "h200",
    )
    rows = [problem["b"] for problem in plain["problems"]]
    assert [(row["candidate"], row["workspace"]) for row in rows] == [
        (str(answer.choice.engine), answer.choice.workspace) for answer in expected
    ]
    _, command, *words = shlex.split(rows[0]["line"])
    again = run(command, "--every", *words)
    assert again.exit_code == 0, again.stderr
    assert "no difference that counts in 1 problem" in again.stdout
    assert "matmul m=5,n=7,k=16 float16" in again.stdout
    assert "which is absent: nothing ran" in again.stdout


def served(index, workspace, **knobs):
    """Return the answer that an engine is served."""
    return Answer((Candidate(Engine(index, knobs), (), False, True, workspace=workspace),))


def test_what_two_libraries_answer_otherwise_is_found(monkeypatch):
    """The answers are planted: B has other knobs, then no engine, then more workspace."""
    answers = {
        "9.1.0": (served(4, 100, KERNEL_CFG=3), served(5, 100), served(6, 100)),
        "9.2.0": (served(4, 100, KERNEL_CFG=4), Answer((), "no engine"), served(6, 101)),
    }
    versions = iter(answers)
    asked = []

    def candidates(problems, properties, *, cudnn):
        asked.append((list(problems), properties.name, cudnn))
        version = next(versions)
        return [Candidates("", properties, version, answer) for answer in answers[version]]

    monkeypatch.setattr(absent_libraries, "candidates", candidates)
    library = library_api().library.path
    Path("three.txt").write_text("\n".join(f"--matmul m={m},n=7,k=16" for m in (5, 6, 8)))
    sides = ["--libcudnn", library, "--libcudnn", library, "--gpu", "a100"]
    result = run("compare", *sides, "--json", "--", "--lines", "three.txt")
    assert result.exit_code == 3, result.stderr
    front = Path(library).resolve()
    assert [question[1:] for question in asked] == [("NVIDIA A100-SXM4-80GB", front)] * 2
    assert asked[0][0] == [matmul_problem(1, m, 7, 16, "float32") for m in (5, 6, 8)]
    plain = json.loads(result.stdout)
    assert [problem["verdicts"] for problem in plain["problems"]] == [
        ["chosen otherwise"],
        ["no longer served"],
        ["more workspace"],
    ]
    assert (plain["a"]["facts"]["cuDNN"], plain["b"]["facts"]["cuDNN"]) == ("9.1.0", "9.2.0")


def test_a_library_that_cannot_be_asked_is_named(monkeypatch):
    def candidates(problems, properties, *, cudnn):
        raise LibraryError("cuDNN knows no absent GPUs")

    monkeypatch.setattr(absent_libraries, "candidates", candidates)
    library = library_api().library.path
    result = run(
        *("compare", "--libcudnn", library, "--libcudnn", library, "--gpu", "h200", "--", *SOME)
    )
    assert result.exit_code == 1
    assert f"--libcudnn {library}: cuDNN knows no absent GPUs" in result.stderr


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--gpu", "h900", "--", *SOME], 2, "--gpu h900: name='h900' is no card of the table"),
        (["--gpu", "h200", "--", "--list", "alexnet"], 2, "--list alexnet; allowed: resnet50"),
        (["--gpu", "h200", "--", *SOME, "--mode", "run"], 2, "--mode does not say which problems"),
        (["--gpu", "h200", "--", *SOME, "--no-tf32"], 2, "--no-tf32 does not say which problems"),
        (["--gpu", "h200", "--", "--colour", "red"], 2, "behind --: No such option: --colour"),
        (["--gpu", "h200"], 2, "the options of `cudnnlite bench` are needed"),
        (
            ["--gpu", "h200", "--", "--rnn", "lstm:steps=2,batch=3,input=4,hidden=5"],
            1,
            "there is nothing to compare",
        ),
        (
            ["--gpu", "h200", *["--with", "x"] * 2, "--", *SOME],
            2,
            "--gpu goes with --libcudnn, and without --with",
        ),
    ],
)
def test_mistakes_about_an_absent_gpu_are_told_before_cudnn_is_asked(
    words, status, message, monkeypatch
):
    monkeypatch.setattr(absent_libraries, "candidates", None)
    library = library_api().library.path
    result = run("compare", "--libcudnn", library, "--libcudnn", library, *words)
    assert result.exit_code == status, result.output
    assert message in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "compare needs two files or caches"),
        (["a.json"], "compare needs two files or caches"),
        (["--libcudnn", "x"], "--libcudnn is needed twice"),
        (
            ["--libcudnn", "l", "--libcudnn", "m", *["--with", "x"] * 3, "--", "--list"],
            "--with is needed twice, for A and for B",
        ),
        (["--with", "x"], "--with is needed twice"),
        (["a", "b", "--gpu", "h200"], "--gpu goes with --libcudnn"),
        (["--with", "x", "--with", "y"], "the options of `cudnnlite bench` are needed"),
        (["--with", "'", "--with", "y", "--", "--list"], "--with ': No closing quotation"),
        (["a", "b", "--time", "host"], "--time host; allowed: device, call"),
        (["--onnx", "x", "--with", "x"], "options of `cudnnlite bench` go"),
        (["a", "b", "--json", "--markdown", "-"], "exclude each other"),
        (["a", "b", "--markdown", "x.txt"], "its name must end in .md"),
    ],
)
def test_mistakes_on_the_command_line(arguments, message):
    result = run("compare", *arguments)
    assert result.exit_code == 2, result.stderr
    assert message in result.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read"), ("{", "is not JSON"), ("[]", "is no saved run")],
)
def test_a_file_that_is_no_run(content, message):
    save("a.json")
    if content is not None:
        Path("b.json").write_text(content, encoding="utf-8")
    result = run("compare", "a.json", "b.json")
    assert result.exit_code == 1
    assert message in result.stderr
    assert "b.json" in result.stderr
