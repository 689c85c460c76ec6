"""What a tuner remembers: found wherever it is valid, and only there; several tuners at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.refusals import refuses

import cudnnlite as dnn
from cudnnlite.devices.device import DeviceFacts
from cudnnlite.emulated.device import EmulatedDevice
from cudnnlite.types import Problem
from cudnnlite.workbench.tuning.cache import TuningCache

from .problems import Problem as Case
from .test_memory import used
from .test_plan import count_calls
from .test_tuner import HEURISTIC, LSTM, PROBLEMS, RUNNING, SMALL, WORKSPACE, W, X, hurry, tuner_of


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


def test_times_of_the_emulated_device_are_never_written(handle: dnn.Handle, tmp_path: Path) -> None:
    """And times of a GPU are.  The tuner itself remembers both."""
    path = tmp_path / "tuning"
    on_gpu = handle.device.kind == "cuda"
    with TuningCache(path) as cache:
        tuner = tuner_of(handle, cache)
        for problem in PROBLEMS.values():
            table = tuner.tune(problem)
            assert tuner.is_remembered(problem)
            assert list(tuner.tune(problem)) == list(table)
        assert tuner.measured == 2
        assert len(cache) == len(cache.entries()) == 2 * on_gpu
        again = tuner_of(handle, cache)
        again.tune(SMALL)
        assert again.measured == (not on_gpu)
    assert path.exists() == on_gpu


def test_a_rehearsal_is_for_the_emulated_device(handle: dnn.Handle, tmp_path: Path) -> None:
    """It remembers what was measured there; a GPU's times are refused before anything is tuned."""
    with TuningCache(tmp_path / "rehearsed", rehearsal=True) as cache:
        if handle.device.kind == "cuda":
            for refused in (
                lambda: tuner_of(handle, cache),
                lambda: dnn.tune_model([SMALL], device=handle, cache=cache),
            ):
                refuses(dnn.ArgumentError, "is a rehearsal on the emulated device", refused)
            return
        tuner_of(handle, cache).tune(SMALL)
        again = tuner_of(handle, cache)
        assert again.is_remembered(SMALL)
        assert list(again.tune(SMALL)) == list(cache.entries()[0].rows)
        assert again.measured == 0
        for measured in (1, 0):  # under a policy of its own
            tuning = dnn.tune_model([SMALL], device=handle, cache=cache)
            assert (tuning.measured, tuning.remembered) == (measured, 1 - measured)


class Pretender(EmulatedDevice):
    """An emulated device that passes for a GPU, so that what it measures is remembered."""

    kind = "cuda"

    def facts(self) -> DeviceFacts:
        return DeviceFacts("NVIDIA Pretender", "9.0", "570.86.10", "GPU-0")


@pytest.fixture
def remembering(device: Any) -> Iterator[dnn.Handle]:
    """A handle whose times are worth remembering: a GPU's, or a pretender's."""
    timed_device = device if device.kind == "cuda" else Pretender(41, capacity="256 MiB")
    with dnn.Handle(timed_device) as handle:
        yield handle
    assert device.kind == "cuda" or used(timed_device) == 0


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[TuningCache]:
    with TuningCache(tmp_path / "tuning") as cache:
        yield cache


@pytest.mark.parametrize("kind", PROBLEMS)
def test_what_was_measured_once_is_found(
    remembering: dnn.Handle, cache: TuningCache, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    problem = PROBLEMS[kind]
    first = tuner_of(remembering, cache)
    table = first.tune(problem)
    (entry,) = cache.entries()
    assert entry.rows == tuple(table)
    assert entry.chosen == 0
    assert entry.title == table.title
    assert entry.timing == table.timing
    assert entry.seconds > 0
    assert entry.key.problem == problem
    assert entry.key.device.kind == "cuda"
    calls = count_calls(
        monkeypatch,
        remembering.api,
        *RUNNING,
        HEURISTIC,
        WORKSPACE,
        "cudnnSetStream",
        "cudnnBuildRNNDynamic",
    )
    with TuningCache(cache.path) as opened:
        second = tuner_of(remembering, opened)
        assert second.is_remembered(problem)
        second_table = second.tune(problem)
        assert second.choose(problem) == table.best()
    assert calls == [], "nothing is launched, and nothing asked"
    assert second.measured == 0
    assert list(second_table) == list(table)
    assert second_table.title == table.title
    assert second_table.timing.startswith(f"{table.timing}, remembered from 20")
    assert second_table.explain() == table.explain()
    assert second_table.pareto() == table.pareto()


def test_a_remembered_choice_is_right(remembering: dnn.Handle, cache: TuningCache) -> None:
    case = Case(remembering, X, W, padding=1, math_type="fma")
    tuner_of(remembering, cache).tune(SMALL)
    with TuningCache(cache.path) as opened:
        choice = tuner_of(remembering, opened).choose(SMALL)
    case.assert_right(case.run(algorithm=choice), choice.algorithm)


CHANGED_FACTS = {"name": "NVIDIA H300", "compute_capability": "10.0", "driver": "999.1"}


@pytest.mark.parametrize("changed", [*CHANGED_FACTS, "cudnn", "kind"])
def test_on_anything_else_it_is_measured_again(
    remembering: dnn.Handle, cache: TuningCache, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    tuner_of(remembering, cache).tune(SMALL)
    facts, version = remembering.device.facts(), remembering.version
    with monkeypatch.context() as patch:
        if changed in CHANGED_FACTS:
            other = facts._replace(**{changed: CHANGED_FACTS[changed]})
            patch.setattr(remembering.device, "facts", lambda: other)
        elif changed == "cudnn":
            patch.setattr(remembering.device.api, "cudnnGetVersion", lambda: version + 1)
        else:
            patch.setattr(type(remembering.device), "kind", "emulated")
            patch.setattr(type(remembering.device), "has_real_timing", False)
        tuner = tuner_of(remembering, cache)
        assert not tuner.is_remembered(SMALL)
        tuner.tune(SMALL)
        assert tuner.measured == 1
        assert len(cache) == (1 if changed == "kind" else 2), "the other entry is kept"
    assert tuner_of(remembering, cache).is_remembered(SMALL)


def test_another_gpu_of_the_same_kind_finds_it(
    remembering: dnn.Handle, cache: TuningCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner_of(remembering, cache).tune(SMALL)
    other = remembering.device.facts()._replace(uuid="GPU-1")
    monkeypatch.setattr(remembering.device, "facts", lambda: other)
    assert tuner_of(remembering, cache).is_remembered(SMALL)


def test_under_another_policy_it_is_measured_again(
    remembering: dnn.Handle, cache: TuningCache
) -> None:
    """test_tuning_keys checks that a key has every field of a policy and of a problem."""
    tuner_of(remembering, cache).tune(SMALL)
    other = tuner_of(remembering, cache, max_error=1e-3)
    assert not other.is_remembered(SMALL)
    other.tune(SMALL)
    assert other.measured == 1
    assert len(cache) == 2
    assert tuner_of(remembering, cache, max_error=1e-3).is_remembered(SMALL)
    assert tuner_of(remembering, cache).is_remembered(SMALL)


@pytest.mark.parametrize(
    ("alignments", "limit", "again"),
    [
        ({}, None, False),
        ({"x": 256, "w": 4096, "out": 256}, None, False),
        ({"x": 4}, None, True),
        ({"out": 128}, None, True),
        ({}, 1 << 30, True),
        ({}, 0, True),
    ],
    ids=str,
)
def test_alignment_and_limit_are_part_of_what_is_remembered(
    remembering: dnn.Handle,
    cache: TuningCache,
    alignments: dict[str, int],
    limit: int | None,
    again: bool,
) -> None:
    tuner_of(remembering, cache).tune(SMALL)
    for _ in range(2):
        tuner = tuner_of(remembering, cache)
        tuner.choose(SMALL, alignments, limit)
        assert tuner.measured == again
        again = False


def test_what_cannot_be_used_is_not_remembered(remembering: dnn.Handle, cache: TuningCache) -> None:
    tuner = tuner_of(remembering, cache, max_error=0)
    assert not any(row.ok for row in tuner.tune(SMALL))
    assert len(cache) == 0
    tuner.tune(SMALL)
    assert tuner.measured == 2


def test_what_failed_for_a_passing_reason_is_not_remembered(
    remembering: dnn.Handle, cache: TuningCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that others held: the next tuner tries again, this one goes on with what it has."""
    allocate, most = remembering.device.allocate, [0]

    def little(nbytes: int, stream: Any) -> Any:
        if most[0] and nbytes >= most[0]:
            raise dnn.DeviceMemoryError("others have it")
        return allocate(nbytes, stream)

    monkeypatch.setattr(remembering.device, "allocate", little)
    most[0] = max(row.workspace for row in tuner_of(remembering, ":memory:").tune(SMALL) if row.ok)
    assert most[0] > 0
    tuner = tuner_of(remembering, cache)
    with pytest.warns(dnn.errors.TuningWarning, match="others have it"):
        table = tuner.tune(SMALL)
    assert any(row.transient for row in table)
    assert list(tuner.tune(SMALL)) == list(table)
    assert (tuner.measured, len(cache)) == (1, 0)
    most[0] = 0
    again = tuner_of(remembering, cache)
    assert not any(row.transient for row in again.tune(SMALL))
    assert (again.measured, len(cache)) == (1, 1)


def test_a_read_only_cache_is_used_and_not_written(
    remembering: dnn.Handle, cache: TuningCache, tmp_path: Path
) -> None:
    tuner_of(remembering, cache).tune(SMALL)
    shipped = tmp_path / "shipped"
    assert cache.export(shipped) == 1
    before = {file.name: file.read_bytes() for file in shipped.iterdir()}
    with TuningCache(shipped, read_only=True) as opened:
        tuner = tuner_of(remembering, opened)
        tuner.tune(SMALL)
        assert tuner.measured == 0
        tuner.tune(LSTM)
        tuner.tune(LSTM)
        assert tuner.measured == 1, "it is kept in memory"
    assert {file.name: file.read_bytes() for file in shipped.iterdir()} == before


def test_a_path_makes_a_cache_of_ones_own(remembering: dnn.Handle, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "own"
    tuner = dnn.Tuner(remembering, path)
    assert tuner.owns_cache
    assert tuner.cache.path == path
    tuner.tune(SMALL)
    tuner.cache.close()
    again = dnn.Tuner(remembering, str(path))
    assert again.is_remembered(SMALL)
    again.cache.close()
    with TuningCache(path) as opened:
        assert not dnn.Tuner(remembering, opened).owns_cache
        assert dnn.Tuner(remembering, opened).is_remembered(SMALL)


# ---------------------------------------------------------------- several at once


@pytest.mark.parametrize("shared", [True, False], ids=["one_cache", "one_folder"])
@pytest.mark.parametrize("kind", PROBLEMS)
def test_two_that_ask_at_once_measure_once(
    remembering: dnn.Handle, tmp_path: Path, kind: str, shared: bool
) -> None:
    """Threads ask at once, each with its own handle.

    One of them measures; the others wait, and find its result.
    """
    path, problem = tmp_path / "tuning", PROBLEMS[kind]
    barrier, outcomes = threading.Barrier(3), []
    common = TuningCache(path)

    def work() -> None:
        with dnn.Handle(remembering.device) as handle:
            thread_cache = common if shared else TuningCache(path)
            tuner = tuner_of(handle, thread_cache)
            barrier.wait()
            try:
                table = tuner.tune(problem)
                outcomes.append((tuner.measured, tuple(table), handle._chooser))
            finally:
                if not shared:
                    thread_cache.close()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(measured for measured, *_ in outcomes) == [0, 0, 1]
    assert len({rows for _, rows, _ in outcomes}) == 1
    assert [chooser for *_, chooser in outcomes] == [None] * 3
    assert len(common) == 1
    common.close()


def test_one_that_measures_keeps_the_device_to_itself(
    remembering: dnn.Handle, cache: TuningCache
) -> None:
    """Two different problems at once would disturb each other's times."""
    inside, most, lock = [], [], threading.Lock()
    real = remembering.device.elapsed_ms

    def elapsed(work: Any, stream: Any) -> float:
        with lock:
            inside.append(threading.get_ident())
            most.append(len(set(inside)))
        try:
            return real(work, stream)
        finally:
            with lock:
                inside.remove(threading.get_ident())

    def tune(problem: Problem) -> None:
        with dnn.Handle(remembering.device) as handle:
            tuner_of(handle, cache).tune(problem)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remembering.device, "elapsed_ms", elapsed)
        threads = [
            threading.Thread(target=tune, args=(problem,))
            for problem in (SMALL, LSTM, SMALL.replace(alpha=2.0))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(cache) == 3
    assert max(most) == 1
