"""`cudnnlite doctor` as a whole.

The probe in its own process, the cache, two copies of libcudnn, output and exit codes.
"""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from helpers import tuning_files
from helpers.elf_files import write_copy
from helpers.harness import pretend_file
from helpers.tuning_entries import H200
from typer.testing import CliRunner

import cudnnlite as dnn
from cudnnlite._raw.library import load_library
from cudnnlite.cli.app import app
from cudnnlite.devices import cuda_facts
from cudnnlite.devices.device_choice import DEVICE_VARIABLE
from cudnnlite.workbench.doctor import (
    Verdict,
    cuda,
    libraries,
    library_checks,
    probe,
    tuning_cache,
)
from cudnnlite.workbench.doctor.probe import Probe, read_probe, run_probe
from cudnnlite.workbench.tuning.cache import CACHE_VARIABLE, TuningCache

HERE = Path(load_library().path).resolve()
PROBED = {
    "library": {
        "path": str(HERE),
        "how": "a test",
        "version": "9.28.0",
        "number": 92800,
        "cudart": 12090,
        "newest_gpu": 1210,
    },
    "cuda": {
        "bindings": "12.9.10",
        "supports": 0,
        "driver": "",
        "code": "",
        "error": "none",
        "devices": [],
    },
    "trial": {"device": "emulated:0", "right": True, "free": 1, "total": 1},
}


def probed(**steps):
    """A probe that was not made."""
    return Probe({name: {"mapped": [], **step} for name, step in {**PROBED, **steps}.items()})


def run(*arguments):
    return CliRunner().invoke(app, ["doctor", *arguments], prog_name="cudnnlite")


COMMAND = (
    "from cudnnlite.cli.app import app\n"
    "app(['doctor', *__import__('sys').argv[1:]], standalone_mode=False)"
)


def doctor_process(*arguments, code=None, **environment):
    """The command in a process of its own, on the emulated device unless told otherwise."""
    variables = {name: value for name, value in os.environ.items() if name not in places_named()}
    return subprocess.run(
        [
            sys.executable,
            *(("-m", "cudnnlite", "doctor") if code is None else ("-c", code)),
            *arguments,
        ],
        env={**variables, DEVICE_VARIABLE: "emulated", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def places_named():
    return {
        "LD_LIBRARY_PATH",
        "LD_PRELOAD",
        "CUDNN_PATH",
        "CUDNNLITE_LIBCUDNN",
        "CUDA_VISIBLE_DEVICES",
        "CONDA_PREFIX",
    }


def checks(plain):
    findings = {}
    for finding in plain["findings"]:
        findings.setdefault(finding["check"], []).append(finding)
    return findings


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """A doctor that starts no process and sees no other places than a folder of the test's."""

    def use(probe_result=None, **environment):
        for name in places_named():
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(
            probe, "run_probe", lambda *_, **__: probed() if probe_result is None else probe_result
        )
        monkeypatch.setattr(
            libraries, "all_places", lambda *_: [("LD_LIBRARY_PATH", str(tmp_path))]
        )

    use()
    return use


# ---------------------------------------------------------------- the probe


PACKAGES = {
    "crash": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
    "leave": "import sys\nsys.exit('gone')",
    "sleep": (
        "import pathlib, time\npathlib.Path(__file__).with_suffix('.begun').touch()\n"
        "time.sleep(1000)"
    ),
    "leftover": (
        "import pathlib, subprocess\nprocess = subprocess.Popen(['sleep', '1000'])\n"
        "pathlib.Path(__file__).with_suffix('.pid').write_text(str(process.pid))"
    ),
    "chatter": "import os\nos.write(1, b'{' * 100000)\nos.write(2, b'}' * 100000)",
}


@pytest.fixture
def packages(tmp_path, monkeypatch):
    for name, text in PACKAGES.items():
        (tmp_path / f"bad_{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for file in tmp_path.glob("*.pid"):
        os.kill(int(file.read_text()), signal.SIGKILL)


@pytest.fixture
def patient(tmp_path, monkeypatch):
    """The probe's time begins when `bad_sleep` sleeps, however long Python takes to start."""
    wait = subprocess.Popen.wait

    def wait_from_then_on(process, seconds=None):
        while process.poll() is None and not (tmp_path / "bad_sleep.begun").exists():
            time.sleep(0.01)
        return wait(process, seconds)

    monkeypatch.setattr(subprocess.Popen, "wait", wait_from_then_on)


@pytest.mark.processes
@pytest.mark.usefixtures("packages", "patient")
@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("crash", "was killed by SIGSEGV"),
        ("leave", "ended with 1 (gone)"),
        ("sleep", "had not ended after 3 s"),
    ],
)
def test_the_probe_may_end_as_it_likes(name, end):
    probe_result = run_probe("none", (f"bad_{name}",), seconds=3 if name == "sleep" else 180)
    assert (probe_result.end, probe_result.during) == (end, f"import bad_{name}")
    step, library = probe_result.step(f"import bad_{name}"), probe_result.step("library")
    assert (step["message"], step["crashed"]) == (f"the process that tried it {end}", True)
    assert not library["crashed"]
    assert library["error"] == "ProbeError"
    assert f"{end} before, during 'import bad_{name}'" in library["message"]


@pytest.mark.processes
def test_the_probe(packages, tmp_path, monkeypatch):
    """The probe imports first, and goes on after a failure.

    What packages print, leave running, or have in the current folder does not disturb it.
    """
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "numpy.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(folder)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "c"))
    names = ("json", "nonesuch.at_all", "bad_leftover", "bad_chatter")
    probe_result = run_probe("emulated", names)
    assert (probe_result.end, probe_result.during) == ("", "")
    assert list(probe_result.steps) == [
        *(f"import {name}" for name in names),
        "library",
        "cuda",
        "trial",
    ]
    failed = {name: probe_result.step(f"import {name}").get("error") for name in names}
    assert failed == dict.fromkeys(names) | {"nonesuch.at_all": "ModuleNotFoundError"}
    library, cuda, trial = (probe_result.step(name) for name in ("library", "cuda", "trial"))
    assert library["path"] == load_library().path
    assert (library["number"], library["cudart"]) == (
        load_library().version,
        load_library().cudart_version,
    )
    assert str(HERE) in map(os.path.realpath, library["mapped"])
    assert cuda["bindings"]
    assert (trial["device"], trial["right"]) == ("emulated:0", True)
    assert not (tmp_path / "c").exists()


def test_lines_that_are_cut_off_are_left_out():
    probe_result = read_probe(
        b'{"step": "library"}\n{"step": "library", "done": tr', "was killed by SIGKILL"
    )
    assert (probe_result.steps, probe_result.during) == ({}, "library")
    assert read_probe(b"", "was killed by SIGKILL").during == "start"


@pytest.mark.parametrize(
    ("device", "devices", "trial_device"),
    [
        ("auto", (), "emulated"),
        ("auto", ("gpu",), "cuda"),
        ("cuda:1", (), None),
        ("cuda:1", ("gpu",), "cuda:1"),
        ("emulated", ("gpu",), "emulated"),
        ("none", ("gpu",), None),
    ],
)
def test_where_the_trial_is(monkeypatch, tmp_path, device, devices, trial_device):
    devices_tried = []
    monkeypatch.setattr(probe, "cuda_state", lambda: cuda_facts.CudaState("", devices=devices))
    monkeypatch.setattr(probe, "convolve", lambda name: devices_tried.append(name) or {})
    with open(tmp_path / "out", "w") as out:
        probe.main(out.fileno(), device, [])
        assert devices_tried == ([] if trial_device is None else [trial_device])
        monkeypatch.setattr(probe, "load", lambda: dnn.DoesNotExist)
        probe.main(out.fileno(), device, [])
    assert len(devices_tried) == (trial_device is not None), "nothing is tried without a library"


@pytest.mark.parametrize(
    ("error", "right"), [(0, True), (3e-4, True), (1, False), (float("nan"), False)]
)
def test_what_the_trial_takes_for_right(monkeypatch, error, right):
    """Winograd's and FFT's sums of ones are not exact."""

    class Output:
        def numpy(self):
            return np.full((1, 3, 3, 3), 18 + error, np.float32)

    monkeypatch.setattr(dnn, "convolution_forward", lambda *_: Output())
    assert probe.convolve("emulated")["right"] is right


# ---------------------------------------------------------------- what CUDA says


class FakeDriver:
    def __init__(self, init=0, version=13000, name="CUDA_ERROR_NO_DEVICE"):
        self._init, self._version = init, version

        class Result(int):
            pass

        self._result = Result(init)
        self._result.name = name

    def cuDriverGetVersion(self):
        return 0, self._version

    def cuInit(self, flags):
        assert flags == 0
        return (self._result,)


def fake_cuda(monkeypatch, driver, devices=()):
    package, bindings = ModuleType("cuda"), ModuleType("cuda.bindings")
    bindings.__version__, bindings.driver = "13.0.1", driver
    core = SimpleNamespace(Device=SimpleNamespace(get_all_devices=lambda: devices))
    package.bindings, package.core = bindings, core
    for name, module in {
        "cuda": package,
        "cuda.bindings": bindings,
        "cuda.bindings.driver": driver,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    pretend_file(monkeypatch, "/sys/module/nvidia/version", "580.65.06\n")


def test_the_state_of_cuda(monkeypatch):
    device = SimpleNamespace(name="NVIDIA H200", compute_capability=(9, 0), uuid="GPU-1")
    fake_cuda(monkeypatch, FakeDriver(), [device])
    state = cuda_facts.cuda_state()
    assert (state.bindings, state.supports, state.driver, state.error) == (
        "13.0.1",
        13000,
        "580.65.06",
        "",
    )
    assert state.devices == (("NVIDIA H200", "9.0", "580.65.06", "GPU-1"),)


def test_cuda_that_does_not_start(monkeypatch):
    fake_cuda(monkeypatch, FakeDriver(init=100))
    state = cuda_facts.cuda_state()
    assert (state.code, state.devices) == ("CUDA_ERROR_NO_DEVICE", ())
    assert state.error == "cuInit returned CUDA_ERROR_NO_DEVICE (100)"


def test_a_driver_library_that_is_not_there(monkeypatch):
    fake_cuda(monkeypatch, object())
    state = cuda_facts.cuda_state()
    assert (state.supports, state.code) == (0, "")
    assert "cuDriverGetVersion" in state.error


def test_an_error_of_several_lines_is_told_in_one(monkeypatch):
    def fail():
        raise RuntimeError("no\nlibcuda.")

    driver = FakeDriver()
    driver.cuDriverGetVersion = fail
    fake_cuda(monkeypatch, driver)
    assert cuda_facts.cuda_state().error == "no libcuda"


def test_cuda_python_that_is_not_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    state = cuda_facts.cuda_state()
    assert state.bindings == ""
    assert state.error.startswith("cuda-python cannot be imported")


# ---------------------------------------------------------------- the tuning cache


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setenv(CACHE_VARIABLE, str(folder / "tuning"))
    return folder / "tuning"


def cache_findings(cudnn=92800, devices=()):
    probe_result = probed(library={"number": cudnn}, cuda={"devices": devices})
    return {finding.check: finding for finding in tuning_cache.judge_cache(probe_result)}


def test_a_cache_is_read_and_left_as_it_is(cache):
    tuning_files.fill(cache, 3)
    with tuning_files.nothing_written(cache):
        findings = cache_findings(devices=[[H200.gpu, "9.0", H200.driver, "GPU-1"]])
    assert list(findings) == ["cache.file"]
    assert (findings["cache.file"].verdict, findings["cache.file"].text) == (
        Verdict.OK,
        f"3 entries: {cache}",
    )


@pytest.mark.parametrize(
    ("entries", "devices", "cudnn", "text"),
    [
        (
            replace(H200, cudnn=90100),
            [],
            92800,
            "where cuDNN is 9.28.0: they are of NVIDIA H200 with driver 570.86.10",
        ),
        (
            H200,
            [["NVIDIA H200", "9.0", "580.1", ""]],
            92800,
            "they are of NVIDIA H200 with driver 570.86.10",
        ),
        (H200, [["NVIDIA H100", "9.0", "570.86.10", ""]], 92800, "they are of NVIDIA H200"),
        (H200, [], 92800, ""),
        (replace(H200, cudnn=90100), [], 0, ""),  # no libcudnn: nothing is known
    ],
)
def test_entries_of_something_else(cache, entries, devices, cudnn, text):
    tuning_files.fill(cache, 2, device=entries)
    findings = cache_findings(cudnn, devices)
    assert ("cache.use" in findings) == bool(text)
    if text:
        assert findings["cache.use"].verdict is Verdict.WARNING
        assert text in findings["cache.use"].text


def test_a_cache_that_is_not_there(cache, monkeypatch):
    for path in (cache, cache.parent / "new" / "deeper" / "tuning"):
        monkeypatch.setenv(CACHE_VARIABLE, str(path))
        ((check, finding),) = cache_findings().items()
        assert (check, finding.verdict, finding.text) == (
            "cache.file",
            Verdict.OK,
            f"nothing was tuned yet: {path}",
        )
    assert tuning_files.names(cache.parent) == []


def test_entries_that_cannot_be_read(cache):
    tuning_files.fill(cache, 2)
    tuning_files.file_of(cache).write_text("half")
    (cache / f"{'0' * 64}.json.1.damaged").write_text("")
    findings = cache_findings()
    finding = findings["cache.entries"]
    text = f"2 of the files in {cache} cannot be read: {tuning_files.file_of(cache).name}, ..."
    assert (finding.verdict, finding.text) == (Verdict.WARNING, text)
    assert (findings["cache.file"].text, findings["cache.file"].facts["entries"]) == (
        f"1 entry: {cache}",
        1,
    )
    for file in cache.glob("*.json"):
        file.write_text("half")
    assert cache_findings()["cache.file"].text == f"0 entries: {cache}"


def test_a_file_that_is_no_cache(cache):
    cache.write_text("x")
    with tuning_files.nothing_written(cache.parent):
        finding = cache_findings()["cache.file"]
    assert (finding.verdict, str(cache) in finding.text) == (Verdict.WARNING, True)


def test_other_settings_of_the_cache(cache, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, "x" * 300)
    assert cache_findings()["cache.file"].verdict is Verdict.BROKEN
    monkeypatch.setenv(CACHE_VARIABLE, os.devnull)
    assert cache_findings()["cache.file"].verdict is Verdict.WARNING
    monkeypatch.setenv(CACHE_VARIABLE, ":memory:")
    assert cache_findings()["cache.file"].verdict is Verdict.NOTE


def test_a_rehearsal_is_for_machines_without_a_gpu(cache):
    with TuningCache(cache, rehearsal=True):
        pass
    finding = cache_findings()["cache.rehearsal"]
    assert (finding.verdict, finding.fix) == (Verdict.NOTE, "")
    gpu = [H200.gpu, "9.0", H200.driver, "GPU-1"]
    finding = cache_findings(devices=[gpu])["cache.rehearsal"]
    assert finding.verdict is Verdict.BROKEN
    assert CACHE_VARIABLE in finding.fix


def test_a_cache_that_nobody_may_write(cache, monkeypatch):
    tuning_files.fill(cache, 1)
    real = os.access
    # by a stand-in, because the superuser may write everything
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.R_OK and real(path, mode))
    assert cache_findings()["cache.writable"].verdict is Verdict.WARNING


# ---------------------------------------------------------------- two copies


finds_the_library_itself = pytest.mark.skipif(
    "CUDNNLITE_LIBCUDNN" in os.environ,
    reason="the doctor is to find libcudnn itself, and CUDNNLITE_LIBCUDNN names another",
)


@finds_the_library_itself
@pytest.mark.processes
def test_two_copies_of_different_versions(tmp_path, monkeypatch):
    """A machine with two libcudnn: both are named, with their versions, and which one is in use."""
    path = write_copy(tmp_path / "second", (9, 1, 2))
    for name in places_named():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(path.parent))
    monkeypatch.setenv(DEVICE_VARIABLE, "emulated")
    result = run("--json")
    plain = json.loads(result.stdout)
    findings = checks(plain)
    (loaded,) = findings["library.loaded"]
    assert (os.path.realpath(loaded["facts"]["path"]), loaded["status"]) == (str(HERE), "ok")
    second = next(
        finding for finding in findings["library.copy"] if finding["facts"]["path"] == str(path)
    )
    assert (second["status"], second["facts"]["version"]) == ("warning", "9.1.2")
    assert f"in use is {load_library().version_text}, " in second["text"]
    assert second["fix"] == f"take {path.parent} out of LD_LIBRARY_PATH"
    assert (plain["status"], result.exit_code, result.stderr) == ("warning", 0, "")


@pytest.mark.processes
def test_a_mixture_that_is_preloaded(tmp_path):
    """Parts of another copy are in the process, under a second name of the same file.

    The loader keeps them apart by folder.
    """
    part = tmp_path / "libcudnn_graph.so.9"
    try:
        os.link(HERE.with_name(part.name), part)
    except OSError:  # another file system
        part.write_bytes(HERE.with_name(part.name).read_bytes())
    process = doctor_process("--json", LD_PRELOAD=str(part))
    findings = checks(json.loads(process.stdout))
    (mixed,) = findings["library.mixed"]
    assert mixed["status"] in ("warning", "broken")
    assert mixed["fix"] == "unset LD_PRELOAD, or take cuDNN's files out of it"
    assert any(line.startswith(f"{tmp_path} (") for line in mixed["lines"])
    assert process.returncode == (mixed["status"] == "broken")


def test_a_mixture_that_cudnn_refuses_is_broken(quick):
    """Exit code 1, with both folders, their versions and the fix."""
    error = {"error": "MixedLibrariesError", "message": "libcudnn 9.1.0 at /x: refused\n  /x\n  /y"}
    library = {**error, "mapped": [str(HERE), "/y/libcudnn_ops.so.9"]}
    quick(Probe({"library": library, "cuda": probed().steps["cuda"]}))
    result = run()
    assert result.exit_code == 1
    assert "  broken   no libcudnn can be used: libcudnn 9.1.0 at /x: refused" in result.stdout
    assert f"{HERE.parent} ({load_library().version_text}): {HERE.name}" in result.stdout
    assert "/y (of unknown version): libcudnn_ops.so.9" in result.stdout
    assert "fix: set CUDNNLITE_LIBCUDNN to the folder of one copy" in result.stdout


# ----------------------------------------------------------- what is gathered reaches who judges it

WITH_A_GPU = {
    "supports": 13000,
    "driver": "580.1",
    "error": "",
    "devices": [["NVIDIA H200", "9.0", "580.1", "GPU-1"]],
}


def test_a_cublas_that_is_missing_is_as_bad_as_the_device_that_is_asked_for(quick, tmp_path):
    probe_result = probed(
        cuda={**PROBED["cuda"], **WITH_A_GPU},
        library={**PROBED["library"], "path": str(write_copy(tmp_path)), "cudart": 99000},
    )
    for device, status in {"cuda": "broken", "emulated": "note"}.items():
        quick(probe_result, **{DEVICE_VARIABLE: device})
        (cublas,) = checks(json.loads(run("--json").stdout))["library.cublas"]
        assert (cublas["status"], cublas["facts"]["name"]) == (status, "libcublasLt.so.99")


def test_a_driver_that_crashes_is_broken(quick):
    quick(
        Probe({"library": probed().steps["library"]}, "was killed by SIGSEGV", "cuda"),
        **{DEVICE_VARIABLE: "cuda"},
    )
    result = run("--json")
    (driver,) = checks(json.loads(result.stdout))["cuda.driver"]
    assert (driver["status"], result.exit_code) == ("broken", 1)


# ---------------------------------------------------------------- nothing stops it


@pytest.mark.parametrize(
    "broken",
    [
        (probe, "run_probe"),
        (libraries, "all_places"),
        (library_checks, "judge"),
        (cuda, "judge_cuda"),
    ],
    ids=lambda pair: pair[1],
)
def test_a_check_that_fails_is_a_finding(quick, monkeypatch, broken):
    def fail(*_, **__):
        raise RuntimeError("a mistake")

    monkeypatch.setattr(*broken, fail)
    findings = checks(json.loads(run("--json").stdout))
    assert any("RuntimeError: a mistake" in finding["text"] for finding in findings["doctor.check"])
    assert "cache.file" in findings
    assert "environment.CUDNNLITE_TUNING_CACHE" in findings


# ---------------------------------------------------------------- packages that are missing

# The fork that runs it forgets what it has of the command line and of the missing packages.
WITHOUT = """
import sys
from importlib import metadata

missing = {missing!r}


class Without:
    def find_spec(self, name, path=None, target=None):
        if name in missing:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


def version(name, real=metadata.version):
    if name in missing and {uninstalled}:
        raise metadata.PackageNotFoundError(name)
    return real(name)


metadata.version = version
metadata.requires = lambda name: {requires!r}
sys.meta_path.insert(0, Without())
for name in [*sys.modules]:
    if name.startswith("cudnnlite.cli") or name.partition(".")[0] in missing:
        del sys.modules[name]
sys.argv = ["cudnnlite", "doctor"]
from cudnnlite.cli import main

main()
"""
REQUIRES = [
    "numpy>=1.26",
    'typer>=0.16; extra == "cli"',
    "platformdirs>=4",
    "torch>=2; extra == 'torch'",
]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("missing", "uninstalled", "fix"),
    [
        (["typer"], True, "typer: pip install 'typer>=0.16'"),
        (
            ["typer", "platformdirs"],
            True,
            "typer and platformdirs: pip install 'typer>=0.16' 'platformdirs>=4'",
        ),
        (["typer"], False, "typer: pip install --force-reinstall 'typer>=0.16'"),
    ],
)
def test_a_missing_package_is_named_where_no_command_starts(commands, missing, uninstalled, fix):
    code = WITHOUT.format(missing=missing, uninstalled=uninstalled, requires=REQUIRES)
    process = commands.run_code(code, check=False)
    assert process.returncode == 1
    assert process.stderr == f"cudnnlite: No module named '{missing[0]}'; cudnnlite needs {fix}\n"


@pytest.mark.processes
def test_a_missing_package_of_somebody_else_is_not_ours(commands):
    code = WITHOUT.format(missing=["runpy"], uninstalled=True, requires=REQUIRES)
    process = commands.run_code(code, check=False)
    assert "Traceback" in process.stderr
    assert "cudnnlite needs" not in process.stderr


def test_a_missing_package_is_a_finding(quick, monkeypatch):
    def version(name, real=metadata.version):
        if name == "platformdirs":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", lambda name: REQUIRES)
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    monkeypatch.delenv(CACHE_VARIABLE, raising=False)
    findings = checks(json.loads(run("--json").stdout))
    (finding,) = findings["packages.missing"]
    assert finding["status"] == "broken"
    assert finding["text"] == "platformdirs, which cudnnlite needs, is not installed"
    assert finding["fix"] == "pip install 'platformdirs>=4'"
    assert finding["facts"] == {"package": "platformdirs"}
    assert all(check_finding["fix"] == finding["fix"] for check_finding in findings["doctor.check"])


# ---------------------------------------------------------------- output and exit codes


@finds_the_library_itself
@pytest.mark.processes
def test_the_whole_command():
    """Which loads no libcudnn into its own process."""
    process = doctor_process(
        code=f"{COMMAND}\nassert 'libcudnn' not in open('/proc/self/maps').read()"
    )
    assert (process.returncode, process.stderr) == (0, "")
    lines = process.stdout.splitlines()
    assert lines[0].startswith(f"cudnnlite {dnn.__version__}, Python ")
    assert [line for line in lines if line and not line.startswith(" ")][1:-1] == [
        "libcudnn",
        "CUDA",
        "Environment",
        "Tuning cache",
    ]
    assert (
        f"  ok       cuDNN {load_library().version_text} is in use: {load_library().path}, "
        "found through"
    ) in process.stdout
    assert "a small convolution on emulated:0 is right" in process.stdout
    assert lines[-1].startswith("nothing broken, ")
    assert "\x1b" not in process.stdout


def test_json_is_stable(quick):
    quick(CUDA_LAUNCH_BLOCKING="1")
    result = run("--json")
    plain = json.loads(result.stdout)
    assert list(plain) == ["schema", "cudnnlite", "python", "status", "counts", "findings"]
    assert plain["schema"] == 1
    assert list(plain["counts"]) == ["ok", "note", "warning", "broken"]
    assert sum(plain["counts"].values()) == len(plain["findings"])
    for finding in plain["findings"]:
        assert list(finding) == ["check", "status", "text", "fix", "lines", "facts"]
        assert finding["status"] in plain["counts"]
        assert finding["fix"] or finding["status"] in ("ok", "note")
    (blocking,) = checks(plain)["environment.CUDA_LAUNCH_BLOCKING"]
    assert blocking["facts"] == {"name": "CUDA_LAUNCH_BLOCKING", "value": "1", "missing": []}


def test_without_a_gpu_nothing_is_broken_unless_one_is_asked_for(quick):
    for device, code in {"": 0, "auto": 0, "emulated": 0, "cuda": 1, "cuda:1": 1}.items():
        quick(**{DEVICE_VARIABLE: device})
        assert run().exit_code == code, device


@pytest.mark.parametrize("name", ["", "a b", "-x", "os;"])
def test_names_that_no_package_has(name):
    result = run("--import", name)
    assert result.exit_code == 2
    assert "the name of a package is needed" in result.stderr


def test_packages_to_import_first(quick, monkeypatch):
    requests = []
    monkeypatch.setattr(
        probe, "run_probe", lambda device, packages: requests.append(packages) or probed()
    )
    run("--import", "torch", "--import", "a.b")
    assert requests == [("torch", "a.b")]


@pytest.mark.processes
def test_colours_are_for_terminals(quick):
    assert "\x1b" not in run().stdout
    stand_in = (
        "from cudnnlite.workbench.doctor import probe\nprobe.run_probe = lambda *_: probe.Probe({})"
    )
    main, terminal = pty.openpty()
    variables = {
        name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")
    }
    process = subprocess.Popen(
        [sys.executable, "-c", f"{stand_in}\n{COMMAND}"],
        stdout=terminal,
        env={**variables, "TERM": "xterm", DEVICE_VARIABLE: "emulated"},
    )
    os.close(terminal)
    output = b""
    try:
        while piece := os.read(main, 65536):
            output += piece
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(main)
    process.wait()  # 1: nothing was tried
    assert b"\x1b[32mok" in output


@pytest.mark.processes
def test_a_reader_that_goes_away():
    command = f"{sys.executable} -m cudnnlite doctor | true; exit ${{PIPESTATUS[0]}}"
    environment = {**os.environ, DEVICE_VARIABLE: "emulated"}
    process = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, env=environment
    )
    assert (process.returncode, process.stderr) == (141, "")


@pytest.mark.processes
def test_the_command_line_is_quick_to_import():
    code = (
        "import sys, cudnnlite.cli.app\n"
        "assert not {'cudnnlite.workbench.doctor', 'rich.console'} & set(sys.modules) - set(before)"
    )
    subprocess.run(
        [sys.executable, "-c", f"import sys, typer\nbefore = list(sys.modules)\n{code}"], check=True
    )


@pytest.mark.gpu
@pytest.mark.processes
def test_on_a_gpu():
    process = doctor_process("--json", CUDNNLITE_DEVICE="cuda")
    findings = checks(json.loads(process.stdout))
    assert findings["cuda.driver"][0]["status"] == findings["cuda.trial"][0]["status"] == "ok"
    assert findings["cuda.trial"][0]["facts"]["device"] == "cuda:0"
    assert findings["library.cublas"][0]["status"] == "ok"
    names = [facts.name for facts in cuda_facts.all_facts()]
    assert (
        names == [finding["facts"]["name"] for finding in findings["cuda.device"]][: len(names)]
    )  # a mask is not the child's
    assert process.returncode == 0
    hidden = doctor_process("--json", CUDNNLITE_DEVICE="cuda", CUDA_VISIBLE_DEVICES="")
    (driver,) = checks(json.loads(hidden.stdout))["cuda.driver"]
    assert "CUDA_VISIBLE_DEVICES= leaves no GPU" in driver["text"]
    assert (driver["status"], hidden.returncode) == ("broken", 1)
