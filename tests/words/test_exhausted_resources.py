"""Where a file, memory or a limit of the process is exhausted, one of our exceptions says so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from helpers.harness import run_python
from typer.testing import CliRunner

import cudnnlite as dnn
from cudnnlite._raw.library import load_library
from cudnnlite.cli.app import app
from cudnnlite.emulated.device import EmulatedDevice
from cudnnlite.emulated.memory import host_memory


def link_libcudnn(folder_of_links):
    """Make links to the files of this libcudnn in a folder; the parts can be replaced."""
    folder_of_links.mkdir()
    folder = Path(load_library().path).resolve().parent
    for file in folder.glob("libcudnn*.so.9"):
        (folder_of_links / file.name).symlink_to(file)
    front = folder_of_links / "libcudnn.so.9"
    front.unlink()
    shutil.copy(folder / front.name, front)  # a link would lead back to the whole ones


# Loads the libcudnn of each folder in a process of its own, which has no other one.
LOAD_EACH = """
import os, sys
import cudnnlite as dnn

for folder in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        os.environ["CUDNNLITE_LIBCUDNN"] = folder
        try:
            with dnn.TensorDescriptor((1, 2, 3, 4)) as descriptor:
                for kind in ("Convolution", "RNN"):
                    getattr(descriptor.api, f"cudnnCreate{kind}Descriptor")
            print(folder, "was loaded")
        except dnn.errors.LibraryError as error:
            print(folder, " ".join(str(error).split()))
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, folder
"""


@pytest.mark.processes
def test_a_part_that_is_missing_or_cut_off_is_told(commands, tmp_path):
    damaged = {}  # the names of damaged files by their folders
    for part in ("graph", "ops", "cnn", "adv"):
        for length in (None, 0, 100, 1_000_000):
            folder = tmp_path / f"{part}_{length}"
            link_libcudnn(folder)
            file = folder / f"libcudnn_{part}.so.9"
            with file.open("rb") as whole:
                content = whole.read(length or 0)
            file.unlink()
            if length is not None:
                file.write_bytes(content)
            damaged[str(folder)] = file.name
    lines = commands.run_code(LOAD_EACH, *damaged).stdout.splitlines()
    assert len(lines) == len(damaged) == 16
    for line, (folder, name) in zip(lines, damaged.items(), strict=True):
        assert line.startswith(f"{folder} ")
        assert name in line.removeprefix(folder)


def test_the_emulated_device_has_no_more_memory_than_the_host():
    device = EmulatedDevice(6, capacity="1 TiB")
    free, total = device.memory_info()
    assert total == 1 << 40
    assert free == host_memory()
    with pytest.raises(dnn.DeviceMemoryError, match="the host has left"):
        device.allocate(free * 2, None)
    assert device.memory_used() == 0


@pytest.fixture
def removed_folder(tmp_path, monkeypatch):
    """Make a folder that does not exist any more the current one."""
    folder = tmp_path / "removed"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()


@pytest.mark.usefixtures("removed_folder")
def test_a_removed_current_folder_is_named(monkeypatch):
    removed = "'x' is relative to the current folder, which was removed"
    with pytest.raises(dnn.ArgumentError, match=f"^path={removed}"):
        dnn.TuningCache("x")
    monkeypatch.setenv("CUDNNLITE_TUNING_CACHE", "x")
    with pytest.raises(dnn.ArgumentError, match=f"^CUDNNLITE_TUNING_CACHE={removed}"):
        dnn.TuningCache()


@pytest.mark.usefixtures("removed_folder")
@pytest.mark.parametrize("command", ["demo --output x.png", "autotune --problems x --html x.html"])
def test_commands_name_a_removed_current_folder(command):
    ended = CliRunner().invoke(app, command.split())
    assert ended.exit_code == 2
    assert "is relative to the current folder, which was removed" in ended.output


# Runs each case in a fork of a process that has imported the package and nothing more.
NO_DESCRIPTORS_LEFT = """
import json
import os
import resource
import sys
from pathlib import Path

import numpy as np

import cudnnlite as dnn


def run(before, work):
    exec(before, globals())
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (50, most))
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    result = None
    try:
        result = eval(work)
    except dnn.CudnnliteError as error:
        result = error
    finally:  # Python's traceback needs one
        for descriptor in taken:
            os.close(descriptor)
    Path(case).write_text(f"{type(result).__name__} {result}")


for case, (before, work) in json.loads(sys.argv[1]).items():
    if os.fork() == 0:
        run(before, work)
        sys.exit()
    assert os.wait()[1] == 0, case
"""


HANDLE = "handle = dnn.Handle('emulated'); x = handle.array(np.ones((1, 2, 3, 4), np.float32))"


PROBLEM = (
    "dnn.convolution_forward.problem(dnn.TensorSpec((1, 2, 5, 5)), dnn.FilterSpec((3, 2, 3, 3)))"
)


WITHOUT_DESCRIPTORS = {
    "handle": ("", "dnn.Handle('emulated')", "NoDeviceError emulated:0 cannot be used"),
    "descriptor": ("", "dnn.TensorDescriptor((1, 2))", "LibraryError libcudnn cannot be loaded"),
    "tuner": ("", "dnn.Tuner", "CudnnliteError cudnnlite.Tuner cannot be imported"),
    "trace": (
        "dnn.trace",
        "type(dnn.trace().__enter__())",
        "type <class 'cudnnlite.workbench.tracing",
    ),
    "cache": ("dnn.TuningCache", "dnn.TuningCache()", "TuningCacheError the user's cache folder"),
    "onnx": ("dnn.problems_from_onnx", "dnn.problems_from_onnx('x')", "ArgumentError model cannot"),
    "call": (HANDLE, "dnn.activation_forward(handle, x, 'relu').shape", "tuple (1, 2, 3, 4)"),
    "dropout": (
        f"{HANDLE}; state = dnn.DropoutState(handle)",
        "dnn.dropout_forward(handle, x, 0.5, dropout_state=state)[0].shape",
        "tuple (1, 2, 3, 4)",
    ),
    "tuning": (
        f"{HANDLE}; tuner = dnn.Tuner(handle, cache=':memory:')",
        f"type(tuner.tune({PROBLEM}))",
        "ABCMeta <class 'cudnnlite.problems.table.AlgorithmTable'",
    ),
    "traced": (
        f"{HANDLE}\nwith dnn.trace() as trace:\n    dnn.scale_tensor(handle, x, 2)",
        "trace.save('x')",
        "CudnnliteError cudnnlite/workbench/tracing/prelude.c cannot be read",
    ),
}


@pytest.mark.processes
def test_where_no_file_descriptor_is_left(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scripts = {case: script for case, (*script, _) in WITHOUT_DESCRIPTORS.items()}
    run_python(
        NO_DESCRIPTORS_LEFT,
        json.dumps(scripts),
        CUDNNLITE_TUNING_CACHE=None,
        PYTHONWARNINGS="ignore",
    )
    for case, (*_, expected) in WITHOUT_DESCRIPTORS.items():
        result = Path(case).read_text()
        assert result.startswith(expected), case
        assert "Error" not in expected or result.endswith(": Too many open files"), case


@pytest.mark.processes
def test_a_limit_of_the_process_is_an_error_of_ours(commands):
    process = commands.run_code("""
        import resource
        from cudnnlite.emulated.memory import EmulatedMemory
        import cudnnlite as dnn
        memory = EmulatedMemory(1 << 40)
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
        try:
            memory.allocate(3 << 30)
        except dnn.DeviceMemoryError as error:
            print(error, memory.used)
        with dnn.Handle("emulated") as handle:
            print(handle.device.memory_info()[0] == 2 << 30)
    """)
    message, limited = process.stdout.splitlines()
    assert message == (
        "3 GiB of emulated device memory are not there: the host gives this process no more 0"
    )
    assert limited == "True"
