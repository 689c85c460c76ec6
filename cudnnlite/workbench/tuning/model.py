"""`tune_model`: tunes every problem of a model once, on all GPUs, into one cache."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from cudnnlite import Handle
from cudnnlite._raw.library import format_version
from cudnnlite.arguments import instance_of, integer, path_of, sequence, shown
from cudnnlite.devices.device_choice import default_device, get_device, visible_gpus
from cudnnlite.errors import ArgumentError, TuningWarning
from cudnnlite.problems.roofline import Peaks
from cudnnlite.types import Problem
from cudnnlite.unknown import suggest_keywords
from cudnnlite.version import __version__
from cudnnlite.warn import warn_user
from cudnnlite.workbench.tuning.cache import IN_MEMORY, TuningCache, check_cache_kind
from cudnnlite.workbench.tuning.entries import DeviceIdentity
from cudnnlite.workbench.tuning.model_tuning import ModelTuning
from cudnnlite.workbench.tuning.onnx.model_problems import problems_from_onnx
from cudnnlite.workbench.tuning.policy import TuningPolicy
from cudnnlite.workbench.tuning.problem_list import ListedProblem, ProblemList, SkippedNode
from cudnnlite.workbench.tuning.progress import Report, reporting
from cudnnlite.workbench.tuning.tuner import find_search, search_of
from cudnnlite.workbench.tuning.tuning_run import TuningRun, hand_over, identify
from cudnnlite.workbench.tuning.worker_pool import WorkerPool

__all__ = ["ModelTuning", "tune_model"]

_NOT_SAVED = (
    "times of the emulated device are not saved, except in a rehearsal: "
    "TuningCache(path, rehearsal=True)"
)


@suggest_keywords
def tune_model(
    problems: ProblemList | Iterable[Problem | ListedProblem] | str | os.PathLike[str],
    *,
    batch: int | None = None,
    device: Any = None,
    cache: TuningCache | str | os.PathLike[str] | None = None,
    policy: TuningPolicy | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    progress: bool | Report | None = None,
) -> ModelTuning:
    """Tune every distinct problem of a model, unless its result is in the cache.

    Each result is put into the cache at once.  An interrupted run loses only the problems that it
    was measuring, and the next run measures only the problems that are missing.

    Parameters
    ----------
    problems : ProblemList, iterable of Problem, or path
        The ProblemList of `problems_from_onnx` or `record_problems`, the path of a saved one, which
        ends in .json, the path of an ONNX file, or any iterable of problems.  Equal problems are
        merged and counted.
    batch : int, optional
        The size of the batch that an ONNX file leaves open, as in `problems_from_onnx`.
    device : str, int, device object or Handle, optional
        As in `Handle`.  "cuda" means all GPUs of the same kind as GPU 0; "cuda:1" means GPU 1 only.
        None is "cuda" unless `CUDNNLITE_DEVICE` names another device.  With a handle this process
        measures on it; if `workers` is above 1 or there is an `executor`, the handle only sets the
        device and the workspace limit.  The handle stays open.
    cache : TuningCache, str or Path, optional
        As in `Tuner`.  Results of the emulated device are written to a rehearsal only.
    policy : TuningPolicy, optional
        The conditions for a choice, and how it is measured.  The default is the least wall time of
        calls.
    executor : concurrent.futures.Executor, optional
        The executor whose workers measure; any object whose `submit` returns futures is accepted.
        Each worker (a process or a thread) takes a GPU of its host that no other worker measures
        on.  The executor is not shut down.  The default is a pool of processes on this machine.
    workers : int, optional
        The number of processes of that pool.  The default is one for each GPU.  With 1 there is no
        pool: this process measures.
    progress : True or callable, optional
        True shows a bar on stderr.  A callable is called with (done, total, TunedProblem) for each
        problem.

    Returns
    -------
    ModelTuning
        Every problem with its result.  A problem without a result, such as one whose worker died,
        has a `why_none`; it does not stop the tuning of the others.

    Raises
    ------
    ArgumentError
        An argument that is not allowed, an ONNX file that cannot be read, or a problem of a kind
        that cannot be tuned.
    NoDeviceError, LibraryError
        There is no device, or no libcudnn, in this process or at a worker.

    Warns
    -----
    TuningWarning
        The list of problems is empty.  Or a worker's GPU is not of the requested kind: the results
        of that worker are saved for its own kind.

    Notes
    -----
    The workers of an executor return their results, and this process puts each one into the cache
    as it arrives.  On a GPU one worker measures at a time, whichever program it belongs to.  Tune
    GPUs of different kinds in separate runs, into one cache.

    Examples
    --------
    In this process, or in one process for each of several GPUs:

    >>> x, w = dnn.TensorSpec((1, 8, 14, 14)), dnn.FilterSpec((8, 8, 3, 3))
    >>> problem = dnn.convolution_forward.problem(x, w)
    >>> tuning = dnn.tune_model([problem, problem], cache=":memory:")  # or problems_from_onnx(...)
    >>> print(tuning.measured, tuning.tunings[0].count, tuning.tunings[0].chosen.ok)
    1 2 True

    In threads, each with a handle of its own.  Do not use them for "latency", the default
    objective: threads take turns on the host.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> policy = dnn.TuningPolicy("device")
    >>> with ThreadPoolExecutor(2) as executor:
    ...     tuning = dnn.tune_model(
    ...         [problem], cache=":memory:", policy=policy, executor=executor
    ...     )

    In your own processes (spawned, because CUDA does not survive a fork); on a Dask cluster with a
    thread for each GPU; over MPI, in a program that runs by
    ``mpiexec -n 9 python -m mpi4py.futures program.py``::

        executor = ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn"))
        executor = dask.distributed.Client("scheduler:8786")
        executor = mpi4py.futures.MPIPoolExecutor()
    """
    _check_options(policy, executor, workers)
    policy = policy or TuningPolicy()
    facts: dict[str, Any] = {}
    if isinstance(problems, (str, os.PathLike)):
        facts["model"] = os.path.basename(problems)
    items, skipped, notes = _list_problems(problems, batch)
    if not items:
        warn_user(f"there is no problem to tune{_why_skipped(skipped)}", TuningWarning)
    with ExitStack() as stack:
        report = stack.enter_context(reporting(progress, len(items)))
        if not isinstance(cache, TuningCache):
            cache = stack.enter_context(TuningCache(cache))
        handle = None
        handle_limit = None
        if isinstance(device, Handle):
            handle = device
            handle._use()  # Raises if the handle is closed or belongs to another thread.
            handle_limit = handle.workspace.limit_for(None)
        target = _find_target(device, executor)
        # The lower one of the two workspace limits, in bytes.
        policy = policy.within(handle_limit, target.memory)
        check_cache_kind(cache, is_gpu=not target.identity.is_emulated)
        if target.identity.is_emulated and not cache.rehearsal:
            notes += (_NOT_SAVED,)
        run = TuningRun(items, cache, policy, target.identity, report)
        missing = run.look_up(target.memory, target.peaks)
        default_workers = target.gpus if handle is None else 1
        num_processes = min(workers or default_workers, len(missing))
        if executor is not None:
            run.spread(missing, executor, target.device)
        elif num_processes > 1:
            pool = stack.enter_context(WorkerPool(num_processes))
            cache_path = IN_MEMORY if cache.read_only else str(cache.path)
            run.spread(missing, pool, target.device, cache_path)
        elif missing:
            run.tune_here(missing, handle or stack.enter_context(Handle(device)))
    tunings = tuple(run.tuned[index] for index in range(len(items)))
    return ModelTuning(tunings, facts | _facts_of(run, target.peaks), skipped, notes, run.workers)


class _Target(NamedTuple):
    """The device that a model is tuned for."""

    device: str  # for workers: "cuda" for any GPU of the kind, "cuda:1" for GPU 1 only
    identity: DeviceIdentity
    memory: int  # bytes
    peaks: Peaks | None  # None if they are not known
    gpus: int  # GPUs of the kind that this process sees; 0 with an executor


def _find_target(device: Any, executor: Executor | None) -> _Target:
    """Return the device of a tuning; a worker of an executor says what its device is."""
    if device is None:
        device = default_device()
    elif type(device) is int:
        device = f"cuda:{integer(device, 'device', smallest=0)}"
    if executor is not None and isinstance(device, str):
        # The workers may be on other hosts.
        identity, memory, peaks = hand_over(executor, identify, device).result()
        return _Target(device, identity, memory, peaks, gpus=0)
    is_any_gpu = isinstance(device, str) and device.lower() in ("cuda", "auto")
    if isinstance(device, Handle):
        is_any_gpu = True  # The workers may use any GPU like the handle's.
        device = device.device
    local_device = get_device(device)
    identity, memory, peaks = identify(local_device)
    if is_any_gpu and local_device.kind == "cuda":
        gpus = sum(map(identity.is_like, visible_gpus()))
        return _Target("cuda", identity, memory, peaks, gpus)
    name = f"{local_device.kind}:{local_device.index}"
    return _Target(name, identity, memory, peaks, gpus=1)


def _facts_of(run: TuningRun, peaks: Peaks | None) -> dict[str, Any]:
    """Return the facts about a run that its report shows."""
    device, workers = run.device, run.workers
    facts: dict[str, Any] = {
        "cudnnlite": __version__,
        "cuDNN": format_version(device.cudnn),
        "device": device.gpu,
        "compute capability": device.compute_capability,
        "driver": device.driver,
        "python": platform.python_version(),
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "policy": run.policy.to_plain(),
    }
    if peaks is not None:
        facts["peaks"] = str(peaks)
    if len(workers) > 1:
        facts["workers"] = [f"{worker} ({count} measured)" for worker, count in workers.items()]
    return facts


def _list_problems(
    problems: Any, batch: int | None
) -> tuple[tuple[ListedProblem, ...], tuple[SkippedNode, ...], tuple[str, ...]]:
    """Return the distinct problems, the skipped nodes, and the notes.

    ArgumentError if a problem cannot be tuned.
    """
    if isinstance(problems, (str, os.PathLike)):
        problems = _load_problems(path_of(problems, "problems"), batch)
    elif batch is not None:
        raise _batch_error(batch)
    skipped = tuple(getattr(problems, "skipped", ()))
    notes = tuple(getattr(problems, "notes", ()))
    # The ProblemList of a program may have problems for which cuDNN has no choice of algorithms:
    # they are added to `skipped`. In any other iterable such a problem is an ArgumentError.
    if isinstance(problems, ProblemList):
        skipped += tuple(_skip(item) for item in problems if not _is_tunable(item))
        problems = [item for item in problems if _is_tunable(item)]
    distinct = ProblemList()
    for item in sequence(problems, "problems", "a list of problems or the path of a model"):
        listed_problem = item
        if not isinstance(item, ListedProblem):
            listed_problem = ListedProblem(item, 1)
        search_of(listed_problem.problem)  # Raises ArgumentError if the problem cannot be tuned.
        distinct.extend([listed_problem])
    return tuple(distinct), skipped, notes


def _load_problems(path: Path, batch: int | None) -> ProblemList:
    """Load a saved list, or the problems of an ONNX file."""
    if path.suffix != ".json":
        return problems_from_onnx(path, batch=batch)
    if batch is not None:
        raise _batch_error(batch)
    return ProblemList.load(path)


def _is_tunable(item: ListedProblem) -> bool:
    return find_search(item.problem) is not None


def _skip(item: ListedProblem) -> SkippedNode:
    kind = item.problem.kind
    name = ", ".join(item.names) or kind
    return SkippedNode(name, kind, "cuDNN has no choice of algorithms for it")


def _why_skipped(skipped: Sequence[SkippedNode]) -> str:
    """Return the end of a message about skipped nodes; empty if there are none."""
    if not skipped:
        return ""
    why = f"; skipped: {skipped[0]}"
    if len(skipped) > 1:
        why += f" and {len(skipped) - 1} more"
    if skipped[0].open_axes:  # The model does not say the sizes of these axes.
        why += "; give the sizes: batch= for an open batch, or problems_from_onnx(..., shapes=)"
    return why


def _batch_error(batch: object) -> ArgumentError:
    return ArgumentError(
        f"batch={shown(batch)} with problems that have their sizes; "
        "allowed: with the path of an ONNX file"
    )


def _check_options(
    policy: TuningPolicy | None, executor: Executor | None, workers: int | None
) -> None:
    """Raise ArgumentError if an option is not allowed."""
    if policy is not None:
        instance_of(policy, TuningPolicy, "policy")
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise ArgumentError(
            f"executor={shown(executor)} is not a concurrent.futures.Executor: it has no submit"
        )
    if workers is not None:
        integer(workers, "workers")
        if executor is not None:
            raise ArgumentError(
                f"workers={workers}, but the executor has its own; allowed: one of the two"
            )
