"""What all tests share: the two devices, checked handles, and rules for skips and processes.

A test that takes `device` or `handle` runs on the emulated device and on CUDA.  Where there is no
CUDA device the second run is deselected, and the summary says how many were, with the reason.
A test that is marked `exhaustive` is deselected likewise, unless `-m` names the marker.  Under
CUDNNLITE_REQUIRE_GPU=1 nothing is deselected, and a missing device and every skip are failures.
A test that starts a process and is not marked `processes` fails.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import inspect
import itertools
import logging
import os
import re
import signal
import sys
import warnings
from collections import Counter
from functools import lru_cache
from multiprocessing.process import BaseProcess
from typing import Any

# Each of two hundred processes would compile the package again, and each pytest process the tests.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# BLAS threads of NumPy spin while they wait. Those of several test processes made each other ten
# times as slow.
for _name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import pytest
from helpers.commands import Commands
from helpers.harness import World
from hypothesis import HealthCheck, settings

import cudnnlite as dnn
from cudnnlite.descriptors.native import NativeObject
from cudnnlite.devices import device_choice as choice
from cudnnlite.devices.device_choice import DEVICE_VARIABLE, get_device
from cudnnlite.emulated.device import EmulatedDevice
from cudnnlite.plans.plan import Plan
from cudnnlite.workbench.tuning.cache import CACHE_VARIABLE

# No test depends on how fast a machine is.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

DEVICES = (pytest.param("emulated"), pytest.param("cuda", marks=pytest.mark.gpu))
OPTIONAL_LIBRARIES = ("torch", "jax", "cupy", "numba.cuda")
REQUIRE_GPU = os.environ.get("CUDNNLITE_REQUIRE_GPU") == "1"
_FAILED = pytest.StashKey[bool]()
# How many tests were deselected, by their marker: `gpu` or `exhaustive`.
_DESELECTED = pytest.StashKey[Counter[str]]()
_DESELECTED_OUTPUT = "deselected"  # the same, from a worker of pytest-xdist
_started: list[str] = []  # processes, by the test that runs


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let tests/fuzz run for longer than in CI."""
    parser.addoption(
        "--fuzz",
        type=int,
        default=0,
        metavar="N",
        help="draw N examples in each test of tests/fuzz",
    )
    parser.addoption(
        "--fuzz-device",
        default="emulated",
        help="where tests/fuzz makes legal calls: emulated, cuda",
    )


@lru_cache(maxsize=1)
def why_no_cuda() -> str:
    """Return why there is no CUDA device; empty if there is one."""
    try:
        get_device("cuda")
    except dnn.NoDeviceError as error:
        return str(error).split(". To run on")[0]
    return ""


def pytest_sessionstart() -> None:
    """Refuse to start where a GPU is required and is not there.

    Modules that start a process on import are imported here, so that no test is blamed for it:
    cuda.pathfinder runs ldconfig.
    """
    # A shell's background job, as of `pytest &` in a script, ignores Ctrl+C. Tests that send it, to
    # this process or to one that inherits what it ignores, would wait for their timeout.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    importlib.import_module("cuda.pathfinder")
    if REQUIRE_GPU and why_no_cuda():
        raise pytest.UsageError(f"CUDNNLITE_REQUIRE_GPU=1, but there is {why_no_cuda()}")


def pytest_xdist_auto_num_workers() -> int | None:
    """Run the tests in one process if they need a GPU, whose memory and times they would share."""
    return 0 if REQUIRE_GPU else None


@pytest.hookimpl(trylast=True)  # after `-k` and `-m`, so that the summary counts what they leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the slow tests, and deselect GPU tests without a GPU, and exhaustive ones.

    The last worker then ends early.  A skip costs as much as a short test, and half of the tests
    need a GPU.
    """
    items.sort(
        key=lambda item: (
            item.get_closest_marker("processes") is None and "docs" not in item.path.parts
        )
    )
    config.stash[_DESELECTED] = Counter()
    if why_no_cuda():
        deselect("gpu", config, items)
    if not REQUIRE_GPU and "exhaustive" not in config.getoption("markexpr"):
        deselect("exhaustive", config, items)


def deselect(marker: str, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the tests with this marker out of `items`, and count them for the summary."""
    marked = [item for item in items if item.get_closest_marker(marker)]
    if marked:
        items[:] = [item for item in items if not item.get_closest_marker(marker)]
        config.hook.pytest_deselected(items=marked)
        config.stash[_DESELECTED][marker] = len(marked)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that prints the summary how many tests this worker deselected."""
    if hasattr(session.config, "workeroutput"):
        deselected = session.config.stash.get(_DESELECTED, Counter())
        session.config.workeroutput[_DESELECTED_OUTPUT] = dict(deselected)


def pytest_testnodedown(node: Any) -> None:
    """Note how many tests a worker deselected; all workers collect, and deselect, the same."""
    # a worker that crashed has no output
    deselected = getattr(node, "workeroutput", {}).get(_DESELECTED_OUTPUT, {})
    if deselected:
        node.config.stash[_DESELECTED] = Counter(deselected)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Take everything imported so far out of garbage collection, to keep collections cheap.

    The tests collect often.  Optional libraries are imported first: with PyTorch and JAX loaded
    later, the collections made the run on a GPU ten times as long.
    """
    if not session.items:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they warn of while they are imported is not ours
        for name in OPTIONAL_LIBRARIES:
            if importlib.util.find_spec(name.partition(".")[0]):
                importlib.import_module(name)
    for name, logger in logging.root.manager.loggerDict.items():
        # pytest attaches a handler to each logger that does not propagate, three times a test;
        # PyTorch has forty of them.
        if name.startswith("torch") and isinstance(logger, logging.Logger):
            logger.propagate = True
    gc.collect()
    gc.freeze()


_finished = itertools.count(1)


def pytest_runtest_logfinish() -> None:
    """Do the same with pytest's records of past tests.

    A collection is then ten times as fast.
    """
    if next(_finished) % 20 == 0:
        gc.collect()
        gc.freeze()


def _note_processes(event: str, arguments: tuple[Any, ...]) -> None:
    # `uname` is what Python's platform module asks, once a process; `fc-list`, matplotlib, once a
    # machine
    if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn") and arguments[
        :1
    ] not in (("uname",), ("fc-list",)):
        _started.append(f"{event} {arguments[:2]}")


sys.addaudithook(_note_processes)
_start = BaseProcess.start


def _noted_start(process: BaseProcess) -> None:  # of which no audit hook is told
    _started.append(str(process))
    _start(process)


BaseProcess.start = _noted_start  # type: ignore[method-assign]


def pytest_runtest_logstart() -> None:
    """Forget processes that the collection of this test started by its imports."""
    _started.clear()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    """Note a test's device and outcome; turn what must not be hidden into failures."""
    report = yield
    started = ", ".join(_started)
    _started.clear()
    # on a GPU other libraries start some
    if (
        started
        and report.passed
        and not REQUIRE_GPU
        and item.get_closest_marker("processes") is None
    ):
        report.outcome, report.longrepr = (
            "failed",
            f"not marked `processes`, but it starts {started}",
        )
    if report.failed and (why := needed_version(str(call.excinfo.value) if call.excinfo else "")):
        report.outcome, report.longrepr = "skipped", (str(item.path), 0, f"Skipped: {why}")
    case = getattr(item, "callspec", None)
    report.device = case.params.get("device", "") if case is not None else ""
    if REQUIRE_GPU and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped under CUDNNLITE_REQUIRE_GPU=1: {report.longrepr}"
    if report.failed:
        item.stash[_FAILED] = True
    return report


def needed_version(message: str) -> str:
    """Return pytest's message if a test failed because this libcudnn is too old, or ""."""
    match = re.search(
        r"^.* needs? cuDNN (\d+)\.(\d+) or newer; this is (\d+)\.(\d+).*$", message, re.MULTILINE
    )
    return (
        match[0]
        if match and tuple(map(int, match.groups()[2:])) < tuple(map(int, match.groups()[:2]))
        else ""
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Any:
    """Turn the skip of a whole module into a failure where nothing may be skipped."""
    report = yield
    if REQUIRE_GPU and report.outcome == "skipped":
        report.outcome = "failed"
        report.longrepr = f"skipped under CUDNNLITE_REQUIRE_GPU=1: {report.longrepr}"
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many tests ran on each device, and how many did not run for which reason."""
    skips = Counter(why_skipped(report) for report in terminalreporter.stats.get("skipped", ()))
    if skips:
        terminalreporter.section("skipped")
        for why, number in skips.most_common():
            terminalreporter.write_line(f"{number:6} {why}")
    counts: Counter[tuple[str, str]] = Counter()
    for outcome in ("passed", "failed", "error", "skipped", "xfailed", "xpassed"):
        for report in terminalreporter.stats.get(outcome, ()):
            if getattr(report, "device", "") and (report.when == "call" or outcome != "passed"):
                counts[report.device, outcome] += 1
    terminalreporter.section("tests by device")
    deselected = terminalreporter.config.stash.get(_DESELECTED, Counter())
    for device in ("emulated", "cuda"):
        texts = [
            f"{number} {outcome}" for (name, outcome), number in counts.items() if name == device
        ]
        if device == "cuda" and deselected["gpu"]:
            texts.append(f"{deselected['gpu']} not run: {why_no_cuda()}")
        terminalreporter.write_line(f"{device}: {', '.join(texts) or 'none'}")
    if number := deselected["exhaustive"]:
        terminalreporter.write_line(f"exhaustive: {number} not run: `-m exhaustive` runs them")


def why_skipped(report: Any) -> str:
    """Return a skipped test's reason."""
    why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return why.removeprefix("Skipped: ")


@pytest.fixture
def monkeypatch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Undo patches as pytest does, and delete the methods that this leaves on a device.

    pytest restores a patched method by setting it on the object itself.
    """
    yield monkeypatch
    monkeypatch.undo()
    for thing in [
        device_or_api
        for device in choice.devices._devices.values()
        for device_or_api in (device, vars(device).get("api"))
    ]:
        for name, value in [*vars(thing).items()] if thing is not None else []:
            if inspect.ismethod(value) and value.__self__ is thing and name in dir(type(thing)):
                delattr(thing, name)


@pytest.fixture(autouse=True)
def no_default_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the caller's CUDNNLITE_DEVICE out; a test that runs on each device has to name it."""
    monkeypatch.delenv(DEVICE_VARIABLE, raising=False)
    if "device" in request.fixturenames:
        monkeypatch.setenv(DEVICE_VARIABLE, "a test names its device")


@pytest.fixture(autouse=True)
def no_users_cache(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep the tests away from the user's tuning cache."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path_factory.getbasetemp() / "tuning"))


@pytest.fixture(params=DEVICES, scope="session")
def device(request: pytest.FixtureRequest) -> Any:
    """One of the two devices."""
    return get_device(request.param)


class Census:
    """What is alive, apart from what was alive when this object was made."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._natives = {id(thing) for thing in self._live()}
        self._memory = device.memory_used()

    def _live(self) -> list[Any]:
        gc.collect()
        self._device.synchronize()
        objects = gc.get_objects()
        kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, (NativeObject, Plan))}
        things = [thing for thing in objects if type(thing) in kinds]
        # one whose constructor refused its arguments has neither attribute
        return [
            t
            for t in things
            if getattr(t, "_native", None) is not None or getattr(t, "_closed", None) is False
        ]

    @property
    def natives(self) -> list[Any]:
        """Native objects and plans that were made since and are open."""
        return [thing for thing in self._live() if id(thing) not in self._natives]

    @property
    def memory(self) -> int:
        """Bytes of device memory that are in use now and were not then."""
        gc.collect()
        self._device.synchronize()
        return self._device.memory_used() - self._memory

    def check(self) -> None:
        """Fail if anything is left, for which one garbage collection is enough."""
        assert self.natives == []
        if self._device.kind == "emulated":  # on CUDA other libraries may use the same pool
            # less: what an earlier failure's traceback held is gone now
            assert self._device.memory_used() <= self._memory


def give_back_pool(device: Any) -> None:
    """Let the GPU's memory pool keep no free memory, because eight processes share one GPU."""
    if device.kind == "cuda":
        device.synchronize()
        result, pool = device._driver.cuDeviceGetDefaultMemPool(device.index)
        if not result:
            device._driver.cuMemPoolTrimTo(pool, 0)


@pytest.fixture
def handle(device: Any, request: pytest.FixtureRequest) -> Any:
    """A fresh handle; after the test nothing that was made with it may be left."""
    census = Census(device)
    with dnn.Handle(device) as handle:
        yield handle
    give_back_pool(device)
    if request.node.stash.get(_FAILED, False):
        return  # the traceback keeps the test's arrays alive; one failure is enough
    census.check()


@pytest.fixture(scope="session")
def commands() -> Any:
    """What runs commands in forks of one process."""
    commands = Commands()
    yield commands
    commands.close()


@pytest.fixture
def own_device() -> EmulatedDevice:
    """An emulated device that nobody else allocates on."""
    return EmulatedDevice(5, capacity="64 MiB")


@pytest.fixture
def own_handle(own_device: EmulatedDevice) -> Any:
    """A handle on that device."""
    with dnn.Handle(own_device) as handle:
        yield handle


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Counted native objects on an emulated device of their own."""
    return World(monkeypatch)
