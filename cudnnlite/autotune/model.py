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

from cudnnlite._raw.library import format_version
from cudnnlite.arguments import instance_of, integer, path_of, sequence, shown
from cudnnlite.autotune.cache import TuningCache
from cudnnlite.autotune.entries import DeviceIdentity
from cudnnlite.autotune.model_tuning import ModelTuning
from cudnnlite.autotune.onnx.model import problems_from_onnx
from cudnnlite.autotune.policy import TuningPolicy
from cudnnlite.autotune.progress import Report, reporting
from cudnnlite.autotune.tuner import SEARCHES, search_of
from cudnnlite.autotune.tuning_run import HERE, TuningRun, hand_over, identify
from cudnnlite.autotune.worker_pool import WorkerPool
from cudnnlite.devices.choice import default_device, get_device, visible_gpus
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import ArgumentError, TuningWarning
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.problem_list import ListedProblem, ProblemList, SkippedNode
from cudnnlite.version import __version__
from cudnnlite.warn import warn_user

__all__ = ["ModelTuning", "tune_model"]


def tune_model(
    problems: ProblemList | Iterable[Problem | ListedProblem] | str | os.PathLike[str],
    *,
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
        A list of `problems_from_onnx` or `record_problems`; problems, where equal ones are counted
        together; the path of an ONNX file; or the path of a saved list, which ends in .json.
    device : str, int, device object or Handle, optional
        As in `Handle`.  "cuda" stands for every GPU like the first one, "cuda:1" for that one.
        None is "cuda" unless `CUDNNLITE_DEVICE` names another device.  A handle is used in this
        process, and not closed, unless `workers` or `executor` is given.
    cache : TuningCache, str or Path, optional
        As in `Tuner`.  Results of the emulated device are not written.
    policy : TuningPolicy, optional
        What a choice must satisfy, and how it is measured.  The default is the least wall time of
        calls.
    executor : concurrent.futures.Executor, optional
        Measures with its workers: anything with `submit` that returns futures.  Each worker (a
        process, or a thread) takes a GPU of its host that no other worker measures on.  The
        executor is not shut down.
    workers : int, optional
        How many processes measure without an executor, this one included.  The default is one for
        each GPU.
    progress : True or callable, optional
        True: a bar on stderr.  A callable is called with (done, total, TunedProblem) for each
        problem.

    Returns
    -------
    ModelTuning
        With every problem.  A problem without a result, or whose worker died, has a `why_none`; the
        others are tuned all the same.

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
        There is no problem.  Or a worker's GPU is of another kind than the requested one: its
        results are saved for that kind.  Or a process died, and its problem is tried once more.

    Notes
    -----
    Threads and processes of this machine write into the cache's folder themselves.  The entries of
    other workers come back, and this process puts each into the cache at once.  On a GPU one worker
    measures at a time, whichever program it belongs to.  Tune GPUs of different kinds in separate
    runs, into one cache.

    Examples
    --------
    In this process, and one more process for each further GPU:

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
        executor = dask.distributed.Client("scheduler:8786").get_executor()
        executor = mpi4py.futures.MPIPoolExecutor()
    """
    policy = _check_options(policy, executor, workers)
    facts: dict[str, Any] = {}
    if isinstance(problems, (str, os.PathLike)):
        facts["model"] = os.path.basename(problems)
    items, skipped, notes = _list_problems(problems)
    if not items:
        warn_user(f"there is no problem to tune{_why_skipped(skipped)}", TuningWarning)
    with ExitStack() as stack:
        report = stack.enter_context(reporting(progress, len(items)))
        if not isinstance(cache, TuningCache):
            cache = stack.enter_context(TuningCache(cache))
        limit = None
        handle = device if isinstance(device, Handle) else None
        if handle is not None:
            handle.use()
            limit = handle.workspace.limit_for(None)
        target = _find_target(device, executor)
        policy = policy.within(limit, target.memory)
        run = TuningRun(items, cache, policy, target.identity, report)
        missing = run.look_up(target.memory)
        if missing and executor is None:
            default_workers = target.gpus if handle is None else 1
            processes = min(workers or default_workers, len(missing)) - 1
            if processes:  # They take a second to start, and so begin before the handle does.
                executor = stack.enter_context(WorkerPool(processes))
            handle = handle or stack.enter_context(Handle(device))
        else:
            handle = None
        run.spread(missing, executor, target.device, handle)
    tunings = tuple(run.tuned[index] for index in range(len(items)))
    return ModelTuning(tunings, facts | _facts_of(run), skipped, notes, run.workers)


class _Target(NamedTuple):
    """The device that a model is tuned for."""

    device: str  # for workers, as in `locked_device`
    identity: DeviceIdentity
    memory: int  # bytes
    gpus: int  # of this kind in this process; unknown, and 0, if workers are on other hosts


def _find_target(device: Any, executor: Executor | None) -> _Target:
    """Return the device of a tuning; a worker reports it if the executor may reach other hosts."""
    if device is None:
        device = default_device()
    elif type(device) is int:
        device = f"cuda:{integer(device, 'device', 0)}"
    if executor is not None and isinstance(device, str) and not isinstance(executor, HERE):
        identity, memory = hand_over(executor, identify, device).result()
        return _Target(device, identity, memory, gpus=0)
    is_any_gpu = isinstance(device, str) and device.lower() in ("cuda", "auto")
    if isinstance(device, Handle):
        is_any_gpu = True
        device = device.device
    local_device = get_device(device)
    identity, memory = identify(local_device)
    if local_device.kind != "cuda" or not is_any_gpu:
        name = f"{local_device.kind}:{local_device.index}"
        return _Target(name, identity, memory, gpus=1)
    gpus = sum(map(identity.is_like, visible_gpus()))
    return _Target("cuda", identity, memory, gpus)


def _facts_of(run: TuningRun) -> dict[str, Any]:
    """Return the facts about the run that a report has."""
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
    if len(workers) > 1:
        facts["workers"] = [f"{worker} ({count} measured)" for worker, count in workers.items()]
    return facts


def _list_problems(
    problems: Any,
) -> tuple[tuple[ListedProblem, ...], tuple[SkippedNode, ...], tuple[str, ...]]:
    """Return the distinct problems, the skipped nodes, and the notes.

    ArgumentError if a problem cannot be tuned.
    """
    if isinstance(problems, (str, os.PathLike)):
        problems = _load_problems(path_of(problems, "problems"))
    skipped = tuple(getattr(problems, "skipped", ()))
    notes = tuple(getattr(problems, "notes", ()))
    # A recorded program also has problems without a choice: they are skipped. If the caller passes
    # such a problem, it is refused.
    if isinstance(problems, ProblemList):
        skipped += tuple(_skip(item) for item in problems if not _is_tunable(item))
        problems = [item for item in problems if _is_tunable(item)]
    distinct = ProblemList()
    for item in sequence(problems, "problems", "a list of problems or the path of a model"):
        listed_problem = item if isinstance(item, ListedProblem) else ListedProblem(item, 1)
        search_of(listed_problem.problem)  # refuses a problem that cannot be tuned
        distinct.extend([listed_problem])
    return tuple(distinct), skipped, notes


def _load_problems(path: Path) -> ProblemList:
    """Load a saved list, or the problems of an ONNX file."""
    if path.suffix == ".json":
        return ProblemList.load(path)
    return problems_from_onnx(path)


def _is_tunable(item: ListedProblem) -> bool:
    return item.problem.operation in SEARCHES


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
    if skipped[0].open_axes:
        why += "; give a list, of problems_from_onnx with batch= or shapes="
    return why


def _check_options(
    policy: TuningPolicy | None, executor: Executor | None, workers: int | None
) -> TuningPolicy:
    """Return the policy, or the default one; ArgumentError if an option is not allowed."""
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
    return policy or TuningPolicy()
