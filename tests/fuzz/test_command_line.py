"""The command line with hostile arguments, files and streams: no traceback, a known exit code, an end, and no long silence."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

CODES = {0, 1, 2, 3, 130, 141}
SECONDS = 60
PATIENCE = 10  # seconds after which a command has to have said what it does
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
    "/dev/zero",
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
    "PIPE",
]
OPTIONS = [
    "--input",
    "--filter",
    "--padding",
    "--stride",
    "--groups",
    "--rnn",
    "--onnx",
    "--batch",
    "--shape",
    "--problems",
    "--dtype",
    "--layout",
    "--math-type",
    "--objective",
    "--workspace-limit",
    "--max-error",
    "--also-layout",
    "--interface",
    "--device",
    "--workers",
    "--cache",
    "--html",
    "--plot",
    "--save-problems",
    "--explain",
    "--no-cache",
    "--gpu",
    "--cudnn",
    "--kind",
    "--output",
    "--import",
    "--yes",
    "--version",
]
COMMANDS = (
    [["autotune"]] * 6
    + [["cache", each] for each in ("show", "compare", "path", "export", "merge", "clear")]
    + [["info"], ["demo"]]
)
COMMANDS += [["nothing"], []]
SMALL = ["autotune", "--input", "1x2x5x4", "--filter", "2x2x3x3", "--device", "emulated"]
STREAMS = ["usual"] * 6 + [
    "out full",
    "err full",
    "out closed",
    "err closed",
    "both closed",
    "in closed",
]


def command(draw: random.Random, folder: Path) -> list[str]:
    """Draw a command line."""
    names = {
        "FILE": folder / "file.onnx",
        "FOLDER": folder,
        "LOOP": folder / "loop",
        "PIPE": folder / "pipe",
    }
    line = list(draw.choice([*COMMANDS, SMALL]))
    for _ in range(draw.randint(0, 4)):
        line += [draw.choice(OPTIONS)] if draw.random() < 0.8 else []
        line += [draw.choice(TEXTS)] if draw.random() < 0.9 else []
    line = [str(names.get(each, each)) for each in line]
    return [each for each in line if "\0" not in each]


def run(
    line: list[str], folder: Path, streams: str, seconds: float | None = None
) -> tuple[int, str, bool]:
    """Return the exit code, what was said, and whether nothing was for long; interrupted after so many seconds, if told."""
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
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / f"{'1' * 64}.json").symlink_to("/dev/zero")
    return tmp_path


@pytest.mark.processes
@pytest.mark.timeout(7200, method="thread")
def test_no_call_has_a_traceback(folder: Path, request: pytest.FixtureRequest) -> None:
    number = request.config.getoption("--fuzz")
    draw = random.Random(0 if not number else time.time_ns())
    for _ in range(number or 4):
        line, streams = command(draw, folder), draw.choice(STREAMS)
        code, told, silent = run(line, folder, streams)
        assert not silent, (line, f"nothing said for {PATIENCE} s")
        assert "Traceback" not in told, (line, streams, told[-2000:])
        assert code in CODES, (line, streams, code, told[-500:])
        assert "\x1b[31m" not in told, (line, streams)


@pytest.mark.processes
@pytest.mark.timeout(7200, method="thread")
def test_ctrl_c_at_any_moment_ends_quietly(folder: Path, request: pytest.FixtureRequest) -> None:
    number = request.config.getoption("--fuzz") // 5
    draw = random.Random(1)
    for _ in range(number or 3):
        seconds = 0.1 + draw.random() * 0.7  # before, it is Python that starts, and not us
        code, told, _ = run(SMALL, folder, "usual", seconds)
        if "Traceback" in told:
            # Python started, or imported the library, before the command line began.
            assert ", in main" not in told, (seconds, told[-2000:])
        else:
            # killed by it: before Python takes the signal over, and after it let go of it at its end
            assert code in (0, 130, -signal.SIGINT), (seconds, code, told)


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
        got, told, _ = run(line, folder, streams)
        assert (got, text in told) == (code, True), (streams, line, told)
    monkeypatch.setenv("CUDNNLITE_LIBCUDNN", "x" * 5000)
    code, told, _ = run(["info"], folder, "usual")
    assert (code, "Traceback" in told, "cannot be loaded" in told or "no file" in told) == (
        1,
        False,
        True,
    ), told
    monkeypatch.delenv("CUDNNLITE_LIBCUDNN")
    _, told, _ = run(["doctor", "--json"], folder, "err closed")
    assert '"broken": 0' in told or "libcudnn" not in told.partition("broken")[2][:400]
