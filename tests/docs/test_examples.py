"""Every example runs as a user would run it, on the emulated device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(path, tmp_path):
    environment = os.environ | {"CUDNNLITE_DEVICE": "emulated", "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, path], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "emulated" in done.stdout


def test_there_are_examples():
    assert EXAMPLES
