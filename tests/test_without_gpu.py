"""What a run without a GPU says of the tests that it leaves out: `tests/conftest.py`."""

import os
import re
import subprocess
import sys

import conftest
import pytest

SOFTMAX = "tests/device/test_softmax.py"
COMMAND = [sys.executable, "-m", "pytest", "-q", "-n", "1", "-m", "gpu", SOFTMAX]


@pytest.mark.processes
def test_the_summary_counts_tests_that_need_a_gpu():
    """A worker of pytest-xdist counts them; the process that started it prints the number."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    environment.pop("CUDNNLITE_REQUIRE_GPU", None)
    run = subprocess.run(COMMAND, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, run.stdout + run.stderr
    counted = re.search(r"^cuda: (\d+) not run: no CUDA device 0", run.stdout, re.MULTILINE)
    assert counted, run.stdout
    assert int(counted[1]) > 50


def test_a_missing_gpu_is_refused_where_one_is_required(monkeypatch):
    monkeypatch.setattr(conftest, "REQUIRE_GPU", True)
    monkeypatch.setattr(conftest, "why_no_cuda", lambda: "no CUDA device 0")
    with pytest.raises(pytest.UsageError, match=r"^CUDNNLITE_REQUIRE_GPU=1, but there is no CUDA"):
        conftest.pytest_sessionstart()
