"""`tune_model` over MPI: a coordinator and two workers, each a process that mpiexec starts."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.pretend import Pretence

from cudnnlite.autotune.cache import TuningCache

MPIEXEC = shutil.which(
    "mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
)
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not importlib.util.find_spec("mpi4py"), reason="mpi4py is not installed"),
    pytest.mark.skipif(not MPIEXEC, reason="there is no mpiexec: no MPI is installed"),
]

PROGRAM = """
import json, os, sys
from mpi4py.futures import MPIPoolExecutor
from cudnnlite.autotune.model import tune_model
from helpers.pretend import problem

if __name__ == "__main__":
    problems = [problem(k) for k in (4, 5, 6, 7, 8, 9, 4)]
    told = []
    for device, cache in (("cuda", sys.argv[1]), ("cuda", sys.argv[1]), ("emulated", sys.argv[1])):
        with MPIPoolExecutor() as executor:
            tuning = tune_model(problems, device=device, cache=cache, executor=executor)
        told.append({
            "counts": [tuned.count for tuned in tuning.tunings],
            "measured": tuning.measured,
            "remembered": tuning.remembered,
            "failed": [tuned.why_none for tuned in tuning.failed],
            "processes": sorted({worker.process for worker in tuning.workers}),
            "gpus": sorted({worker.uuid for worker in tuning.workers}),
        })
    print(json.dumps([os.getpid(), told]))
"""


def test_two_workers_share_the_problems(tmp_path, monkeypatch):
    pretend = Pretence(monkeypatch, tmp_path, "AA")
    pretend.ask("fail-7", text="DeviceMemoryError full")
    program, path = tmp_path / "program.py", tmp_path / "cache"
    program.write_text(PROGRAM)
    # Open MPI refuses to run as root, and more processes than cores, unless it is told
    allowed = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }
    with pretend.held(4, 5):
        process = subprocess.run(
            [MPIEXEC, "-n", "3", sys.executable, "-m", "mpi4py.futures", program, path],
            env={**os.environ, **allowed},
            capture_output=True,
            text=True,
            check=False,
        )
    assert process.returncode == 0, process.stderr
    coordinator, (first, second, emulated) = json.loads(process.stdout)
    assert first["counts"] == [2, 1, 1, 1, 1, 1]
    assert (first["measured"], first["failed"]) == (5, ["full"])
    assert len(first["processes"]) == 2
    assert coordinator not in first["processes"]
    assert first["gpus"] == ["GPU-0", "GPU-1"]
    assert (second["measured"], second["remembered"], second["failed"]) == (0, 5, ["full"])
    assert (emulated["measured"], emulated["remembered"], emulated["gpus"]) == (
        5,
        0,
        ["emulated:0"],
    )
    with TuningCache(path) as cache:
        assert len(cache) == 5
