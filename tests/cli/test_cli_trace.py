"""`cudnnlite trace`: the trace is written however the script ends.

It is the trace of the process that began it.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HEAD = (
    "import os, sys, time, numpy as np, cudnnlite as dnn\nhandle = dnn.Handle()\n"
    "dnn.softmax_forward(handle, handle.array(np.ones((1, 4)))).numpy()\n"
)
ENDS = {
    "raise KeyboardInterrupt": (130, "KeyboardInterrupt\n"),
    "raise ValueError('why')": (1, "ValueError: why\n"),
    "raise GeneratorExit('why')": (1, "GeneratorExit: why\n"),
    "sys.exit('some text')": (1, "some text\n"),
    "sys.exit(('a', 1))": (1, "('a', 1)\n"),
    "sys.exit(7)": (7, ""),
    "sys.exit(0)": (0, ""),
    "sys.exit()": (0, ""),
    "pass": (0, ""),
}


@pytest.fixture
def script_to_trace(tmp_path, monkeypatch):
    """Return a function that writes a script with these last lines.

    It returns the command that traces it; the C program goes into "c".
    """
    monkeypatch.setenv("CUDNNLITE_DEVICE", "emulated")
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")

    def write(lines):
        script = tmp_path / "script.py"
        script.write_text(HEAD + lines)
        return "trace", script, "--c", tmp_path / "c"

    return write


def check_trace(process, tmp_path):
    """Check that the trace of a process that ended was printed once and written once."""
    assert process.stdout.count("cudnnSoftmaxForward(") == 1, process.stderr
    assert process.stderr.count("written to") == 1, process.stderr
    assert "cudnnSoftmaxForward" in (tmp_path / "c" / "program.c").read_text()


@pytest.mark.processes
@pytest.mark.parametrize("last", ENDS)
def test_however_a_script_ends_it_is_traced(script_to_trace, commands, tmp_path, last):
    code, message = ENDS[last]
    ended = commands.run(*script_to_trace(last))
    check_trace(ended, tmp_path)
    assert ended.returncode == code
    assert message in ended.stderr
    assert message or len(ended.stderr.splitlines()) == 1


@pytest.mark.processes
@pytest.mark.parametrize("waiting", ["time.sleep(10**6)", "while True: pass"])
def test_ctrl_c_ends_the_script_and_not_its_trace(script_to_trace, tmp_path, waiting):
    words = script_to_trace(f"print('ready')\n{waiting}\n")
    command = [sys.executable, "-m", "cudnnlite", *map(str, words)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate()
    finally:
        process.kill()
    ended = subprocess.CompletedProcess(command, process.returncode, stdout, stderr)
    check_trace(ended, tmp_path)
    assert ended.returncode == 130
    assert "\nKeyboardInterrupt\n" in ended.stderr  # of the line before, if it came at once


@pytest.mark.processes
@pytest.mark.parametrize(
    ("last", "code"),
    [("sys.exit(3)", 3), ("1 / 0", 1), ("raise KeyboardInterrupt", 130), ("pass", 0)],
)
def test_a_forked_child_ends_with_its_own_code_and_no_trace(
    script_to_trace, commands, tmp_path, last, code
):
    lines = (
        f"child = os.fork()\nif not child:\n    {last}\nelse:\n"
        "    print('child', os.waitpid(child, 0)[1] >> 8)\n"
    )
    ended = commands.run(*script_to_trace(lines))
    check_trace(ended, tmp_path)
    assert ended.returncode == 0
    assert f"child {code}\n" in ended.stdout


@pytest.mark.processes
def test_a_script_that_calls_nothing_is_told(commands, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print(1)")
    process = commands.run("trace", script, "--c", tmp_path / "c")
    assert (process.returncode, process.stderr.count("the script made no call of cuDNN")) == (
        0,
        1,
    ), process.stderr
    assert {path.name for path in (tmp_path / "c").iterdir()} == {"program.c", "Makefile"}


@pytest.mark.processes
def test_a_script_whose_name_is_no_utf8_is_traced(commands, tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    folder.mkdir()
    script = folder / os.fsdecode(b"\xfe.py")
    script.write_text(HEAD.replace("Handle()", "Handle('emulated')"))
    process = commands.run("trace", script, "--c", folder / "c")
    assert process.returncode == 0, process.stderr
    assert "c: the program and what it reads" in process.stderr
    assert "<U+DCFE>.py:" in (folder / "c" / "program.c").read_text()


def trace_into(commands, folder, *options):
    """Trace a script that leaves a file behind, into a folder beside it; return how that ended."""
    script = folder / "script.py"
    script.write_text(
        "import pathlib\npathlib.Path('ran').touch()\n"
        + HEAD.replace("Handle()", "Handle('emulated')")
    )
    return commands.run("trace", "script.py", *options, folder=folder)


@pytest.mark.processes
@pytest.mark.parametrize("name", ["Makefile", "program.c"])
def test_a_users_own_files_are_refused_before_the_script_runs(commands, tmp_path, name):
    (tmp_path / name).write_text("all: mine\n")
    process = trace_into(commands, tmp_path, "--c", ".")
    assert process.returncode == 2, process.stderr
    assert f"--c .: {name} was not written by cudnnlite and is not replaced" in process.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"script.py", name}
    assert (tmp_path / name).read_text() == "all: mine\n"


@pytest.mark.processes
def test_a_users_own_input_is_refused_and_the_next_trace_replaces_the_last(commands, tmp_path):
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "x.bin").write_bytes(b"mine")
    process = trace_into(commands, tmp_path, "--c", ".")
    assert process.returncode == 1, process.stderr
    assert "--c .: inputs/x.bin is there already" in process.stderr
    assert (tmp_path / "inputs" / "x.bin").read_bytes() == b"mine"
    assert not (tmp_path / "Makefile").exists()
    (tmp_path / "inputs" / "x.bin").unlink()
    for _ in range(2):
        assert trace_into(commands, tmp_path, "--c", ".").returncode == 0
    assert (tmp_path / "inputs" / "x.bin").stat().st_size == 32


def test_the_exit_codes_are_told():
    from typer.testing import CliRunner

    from cudnnlite.cli.app import app

    assert "130 after Ctrl-C" in " ".join(
        CliRunner().invoke(app, ["trace", "--help"]).stdout.split()
    )
