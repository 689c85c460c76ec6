"""The programs of examples/c: run the Python ones, and compare what two of them print."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cudnnlite._raw.library import load_library

FOLDER = Path(__file__).parents[1] / "examples" / "c"
NAMES = ("convolution_with_search", "lstm_forward", "small_network")
DIFFERING = ("cuDNN ", "algorithm ")  # how lines begin that tell of the machine
# These are sums of thousands of values. Each value is right to single precision, except that
# Winograd's transforms lose some 1e-5.
# An error in the program changes the sums by whole numbers, and of single values that is far less
# than the tolerance.
CHECKSUM_TOLERANCE = 0.02
VALUE_TOLERANCE = 1e-4


def run_python(name: str, device: str) -> str:
    """Run a Python program with the libcudnn of this process, and return its output."""
    environment = os.environ | {
        "CUDNNLITE_DEVICE": device,
        "CUDNNLITE_LIBCUDNN": load_library().path,
        "PYTHONWARNINGS": "error",
    }
    command = [sys.executable, str(FOLDER / f"{name}.py")]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    return process.stdout


def results(printed: str) -> list[str]:
    """Return the lines that tell of numbers."""
    return [line for line in printed.splitlines() if not line.startswith(DIFFERING)]


def assert_same_results(printed: str, expected: str) -> None:
    """Fail unless two programs printed the same, but for rounding."""
    lines, expected_lines = results(printed), results(expected)
    assert len(lines) == len(expected_lines) > 0, f"{printed}\nexpected:\n{expected}"
    for line, expected_line in zip(lines, expected_lines, strict=True):
        label, tolerance = "", VALUE_TOLERANCE
        words, expected_words = line.split(), expected_line.split()
        assert len(words) == len(expected_words), f"{line!r}, expected: {expected_line!r}"
        for word, expected_word in zip(words, expected_words, strict=True):
            if expected_word.isalpha():
                assert word == expected_word, f"{line!r}, expected: {expected_line!r}"
                label = word
                tolerance = CHECKSUM_TOLERANCE if label == "checksum" else VALUE_TOLERANCE
                continue
            # not ">": a NaN has to fail
            assert abs(float(word) - float(expected_word)) <= tolerance, (
                f"{label}: {line!r}, expected: {expected_line!r}"
            )
