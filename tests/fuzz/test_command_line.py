"""The command line ends without a traceback, whatever its arguments, files and streams are."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from cudnnlite.cli.app import app

CODES = {0, 1, 2, 3, 130, 141}
SECONDS = 1000
PATIENCE = 200  # seconds after which a command has to have said what it does
TEXTS = [
    "",
    " ",
    "x",
    "-1",
    "0",
    "1x1x1x1",
    "1x2x5x4",
    "2x2x3x3",
    "2147483647x1x1x1",
    "9" * 5000,
    "1e400",
    "nan",
    "64 MiB",
    "101%",
    "float16",
    "f4,,,",
    "NHWC",
    "emulated",
    "cuda:99",
    "emulated:" + "9" * 5000,
    "lstm:steps=1,batch=2147483647,input=1,hidden=1",
    "lstm:steps=2147483647,batch=1,input=1,hidden=1",
    "lstm:",
    "/dev/full",
    "/dev/null",
    "/",
    "~nouser/x",
    "x" * 5000,
    "\x1b[31m",
    "\udc80",
    "--help",
    "--json",
    "FILE",
    "FOLDER",
    "LOOP",
]


def leaf_commands(
    command: Any, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the words and the parser of each command that has none below it."""
    children = getattr(command, "commands", {})
    if not children:
        yield words, command
    for name, child in children.items():
        yield from leaf_commands(child, (*words, name))


def option_names(command: Any) -> list[str]:
    """Return the names of a command's options, the short ones as well."""
    return [
        name
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("-")
    ]


PARSER: Any = typer.main.get_command(app)
COMMANDS = dict(leaf_commands(PARSER))
OPTIONS = {words: option_names(command) for words, command in COMMANDS.items()}
ALL_OPTIONS = sorted(
    {*option_names(PARSER), *(name for names in OPTIONS.values() for name in names)}
)
# `autotune` has most of the options. Two lines name no command.
FIRST_WORDS = [*COMMANDS, *[("autotune",)] * 6, ("nothing",), ()]
SMALL = ["autotune", "--input", "1x2x5x4", "--filter", "2x2x3x3", "--device", "emulated"]
STREAMS = ["usual"] * 6 + [
    "out full",
    "err full",
    "out closed",
    "err closed",
    "both closed",
    "in closed",
]


def command_line(draw: random.Random, folder: Path) -> list[str]:
    """Draw a command line: most of its options are those of its command."""
    paths = {"FILE": folder / "file.onnx", "FOLDER": folder, "LOOP": folder / "loop"}
    first_words = draw.choice([*FIRST_WORDS, tuple(SMALL)])
    command = max((words for words in COMMANDS if words == first_words[: len(words)]), default=())
    line = list(first_words)
    for _ in range(draw.randint(0, 4)):
        options = ALL_OPTIONS if draw.random() < 0.2 else OPTIONS.get(command, ALL_OPTIONS)
        if draw.random() < 0.8:
            line.append(draw.choice(options))
        if draw.random() < 0.9:
            text = draw.choice(TEXTS)
            line.append(str(paths.get(text, text)))
    return line


def run(
    line: list[str], folder: Path, streams: str, seconds: float | None = None
) -> tuple[int, str, bool]:
    """Return the exit code, the output, and whether the process was silent for too long.

    With `seconds` the process is interrupted after that time.
    """
    shell = {
        "out full": ">/dev/full",
        "err full": "2>/dev/full",
        "out closed": ">&-",
        "err closed": "2>&-",
    }
    shell |= {"both closed": ">&- 2>&-", "in closed": "<&-"}
    environment = {
        **os.environ,
        "CUDNNLITE_TUNING_CACHE": str(folder / "cache"),
        "CUDNNLITE_DEVICE": "auto",
    }
    process = subprocess.Popen(
        [
            "sh",
            "-c",
            f'exec "$@" {shell.get(streams, "")}',
            "sh",
            sys.executable,
            "-m",
            "cudnnlite",
            *line,
        ],
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        if seconds is not None:
            time.sleep(seconds)
            process.send_signal(signal.SIGINT)
        silent = False
        try:
            out, err = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired as slow:
            silent = streams == "usual" and not (slow.output or slow.stderr)
            out, err = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return -1, f"no end after {SECONDS} s", True
    return process.returncode, (out + err).decode(errors="replace"), silent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files that are not what they should be."""
    (tmp_path / "file.onnx").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / f"{'1' * 64}.json").write_bytes(bytes(range(256)))
    return tmp_path


@pytest.mark.exhaustive
@pytest.mark.processes
@pytest.mark.timeout(7200, method="thread")
def test_no_call_has_a_traceback(folder: Path, request: pytest.FixtureRequest) -> None:
    number = request.config.getoption("--fuzz")
    draw = random.Random(0 if not number else time.time_ns())
    for _ in range(number or 4):
        line, streams = command_line(draw, folder), draw.choice(STREAMS)
        code, output, silent = run(line, folder, streams)
        assert not silent, (line, f"nothing said for {PATIENCE} s")
        assert "Traceback" not in output, (line, streams, output[-2000:])
        assert code in CODES, (line, streams, code, output[-500:])
        assert "\x1b[31m" not in output, (line, streams)


@pytest.mark.processes
@pytest.mark.timeout(7200, method="thread")
def test_ctrl_c_at_any_moment_ends_quietly(folder: Path, request: pytest.FixtureRequest) -> None:
    number = request.config.getoption("--fuzz") // 5
    draw = random.Random(1)
    for _ in range(number or 3):
        seconds = 0.1 + draw.random() * 0.7  # before, it is Python that starts, and not us
        code, output, _ = run(SMALL, folder, "usual", seconds)
        if "Traceback" in output:
            # Python started, or imported the library, before the command line began.
            assert ", in main" not in output, (seconds, output[-2000:])
        else:
            # The signal ends the process before Python handles it, and after Python has given it
            # back.
            assert code in (0, 130, -signal.SIGINT), (seconds, code, output)


@pytest.mark.exhaustive
@pytest.mark.processes
def test_what_a_full_disk_and_closed_streams_and_a_long_path_do(
    folder: Path, monkeypatch: Any
) -> None:
    expected: dict[tuple[str, ...], Any] = {
        ("out full", "info"): (1, "cannot be written"),
        ("out full", "--help"): (1, "cannot be written"),
        ("err closed", "info", "--json"): (0, "{"),
        ("err full", "--version"): (0, ""),
        ("out closed", "info"): (0, ""),
        ("err closed", *SMALL, "--rnn", "lstm:steps=2,batch=1,input=2,hidden=3", "--csv", "-"): (
            0,
            "STANDARD",
        ),
        ("in closed", "cache", "clear", "--cache", str(folder)): (2, "--yes"),
    }
    for (streams, *line), (code, text) in expected.items():
        exit_code, output, _ = run(line, folder, streams)
        assert (exit_code, text in output) == (code, True), (streams, line, output)
    monkeypatch.setenv("CUDNNLITE_LIBCUDNN", "x" * 5000)
    code, output, _ = run(["info"], folder, "usual")
    assert (code, "Traceback" in output, "cannot be loaded" in output or "no file" in output) == (
        1,
        False,
        True,
    ), output
    monkeypatch.delenv("CUDNNLITE_LIBCUDNN")
    _, output, _ = run(["doctor", "--json"], folder, "err closed")
    assert '"broken": 0' in output or "libcudnn" not in output.partition("broken")[2][:400]
