"""What a run says of the tests that it leaves out: `tests/conftest.py`."""

import os
import re
import subprocess
import sys

import conftest
import pytest

FILES = ["tests/device/test_softmax.py", "tests/interop/test_peer_grids.py"]
SELECTION = "peer_grids and float64 and convolution"  # all need a GPU or are exhaustive
COMMAND = [sys.executable, "-m", "pytest", "-q", "-n", "1", "-k", SELECTION, *FILES]


@pytest.mark.processes
def test_the_summary_counts_tests_that_are_left_out():
    """A worker of pytest-xdist counts them; the process that started it prints the number.

    What `-k` takes out is not counted.
    """
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    environment.pop("CUDNNLITE_REQUIRE_GPU", None)
    run = subprocess.run(COMMAND, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, run.stdout + run.stderr
    counted = re.search(r"^cuda: (\d+) not run: no CUDA device 0", run.stdout, re.MULTILINE)
    assert counted, run.stdout
    assert int(counted[1]) == 6
    assert re.search(r"^exhaustive: 6 not run: `-m exhaustive`", run.stdout, re.MULTILINE)


def test_a_missing_gpu_is_refused_where_one_is_required(monkeypatch):
    monkeypatch.setattr(conftest, "REQUIRE_GPU", True)
    monkeypatch.setattr(conftest, "why_no_cuda", lambda: "no CUDA device 0")
    with pytest.raises(pytest.UsageError, match=r"^CUDNNLITE_REQUIRE_GPU=1, but there is no CUDA"):
        conftest.pytest_sessionstart()
