"""`tune_model`: every problem of a model tuned once, on as many GPUs as there are, into one cache."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from datetime import datetime, timezone
from typing import Any

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
    """Tune every distinct problem of a model: what is remembered is looked up, the rest is measured and remembered.

    Each result is in the cache as soon as it is there.  A run that is interrupted has lost nothing
    but what was being measured; the next one measures only what is missing.

    Parameters
    ----------
    problems : ProblemList, iterable of Problem, or path
        A list (of `problems_from_onnx` or `record_problems`), problems, of which equal ones are
        counted together, or the path of an ONNX file, or, ending in .json, of a list that was
        saved.
    device : str, int, device object or Handle, optional
        As in `Handle`.  "cuda", which is also what None means unless `CUDNNLITE_DEVICE` says
        otherwise, stands for every GPU like the first one; "cuda:1" for that one.  On a handle,
        which is not closed, the work is done in this process unless `workers` or `executor` is
        given.
    cache : TuningCache, str or Path, optional
        As in `Tuner`.  Of the emulated device nothing is written.
    policy : TuningPolicy, optional
        What is wanted: the least wall time of calls, if not given.
    executor : concurrent.futures.Executor, optional
        Who measures: anything with `submit` that returns futures.  Each worker (a process, or a
        thread) takes a GPU of its host that nobody measures on.  It is not shut down.
    workers : int, optional
        How many processes measure, this one included, where no executor is given.  One for each
        GPU, if not given.
    progress : True or callable, optional
        True: a bar on stderr.  A callable is called with (done, total, TunedProblem) for each
        problem.

    Returns
    -------
    ModelTuning
        With every problem.  One for which nothing was found, or whose worker died, has a `why_none`
        and stops no other.

    Raises
    ------
    ArgumentError
        An argument that is not allowed, an ONNX file that cannot be read, or a problem of a kind
        that cannot be tuned.
    NoDeviceError, LibraryError
        There is no device, or no libcudnn, here or at a worker.

    Warns
    -----
    TuningWarning
        There is no problem.  Or a worker's GPU is another one than is asked for: what it measured
        is remembered for that one. Or a process died, and its problem is tried once more.

    Notes
    -----
    Threads and processes of this machine write into the cache's folder themselves; from the workers
    of any other executor the entries come back and are put into it here, each as soon as it is
    there. On one GPU one worker at a time measures, whichever program it belongs to.  GPUs that
    differ should be tuned apart, into one cache.

    Examples
    --------
    In this process, or with a process more for each further GPU:

    >>> problem = dnn.convolution_forward.problem(dnn.TensorSpec((1, 8, 14, 14)), dnn.FilterSpec((8, 8, 3, 3)))
    >>> tuning = dnn.tune_model([problem, problem], cache=":memory:")  # or problems_from_onnx(...)
    >>> print(tuning.measured, tuning.tunings[0].count, tuning.tunings[0].chosen.ok)
    1 2 True

    In threads, each with a handle of its own; not for "latency", the default objective, for they take turns on the host:

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor(2) as executor:
    ...     tuning = dnn.tune_model([problem], cache=":memory:", policy=dnn.TuningPolicy("device"), executor=executor)

    In processes of one's own (CUDA does not survive a fork, so they are spawned); on a Dask cluster with a thread for each GPU;
    over MPI, in a program run by ``mpiexec -n 9 python -m mpi4py.futures program.py``::

        executor = ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn"))
        executor = dask.distributed.Client("scheduler:8786").get_executor()
        executor = mpi4py.futures.MPIPoolExecutor()
    """
    policy = _check(policy, executor, workers)
    named = (
        {"model": os.path.basename(problems)} if isinstance(problems, (str, os.PathLike)) else {}
    )
    listed, skipped, notes = _listed(problems)
    if not listed:
        warn_user(f"there is no problem to tune{_why_skipped(skipped)}", TuningWarning)
    with ExitStack() as stack:
        report = stack.enter_context(reporting(progress, len(listed)))
        if not isinstance(cache, TuningCache):
            cache = stack.enter_context(TuningCache(cache))
        limit, handle = None, device if isinstance(device, Handle) else None
        if handle is not None:
            handle.use()
            limit = handle.workspace.limit_for(None)
        where, identity, memory, gpus = _find_out(device, executor)
        run = TuningRun(listed, cache, policy.within(limit, memory), identity, report)
        missing = run.look_up(memory)
        more = min(workers or (gpus if handle is None else 1), len(missing)) - 1
        own = None
        if missing and executor is None:
            executor = (
                stack.enter_context(WorkerPool(more)) if more else None
            )  # first: it takes a second to start
            own = handle or stack.enter_context(Handle(device))
        run.spread(missing, executor, where, own)
    tunings = tuple(run.tuned[index] for index in range(len(listed)))
    return ModelTuning(tunings, named | _facts(run), skipped, notes, run.workers)


def _find_out(device: Any, executor: Executor | None) -> tuple[str, DeviceIdentity, int, int]:
    """Return what workers are told, what they have, the bytes of its memory, and how many of the kind are here.

    A worker is asked where the executor may reach other hosts.
    """
    if device is None or type(device) is int:
        device = default_device() if device is None else f"cuda:{integer(device, 'device', 0)}"
    if executor is not None and isinstance(device, str) and not isinstance(executor, HERE):
        return device, *hand_over(executor, identify, device).result(), 0
    any_gpu = isinstance(device, Handle) or (
        isinstance(device, str) and device.lower() in ("cuda", "auto")
    )
    local = device.device if isinstance(device, Handle) else get_device(device)
    identity, memory = identify(local)
    if local.kind != "cuda" or not any_gpu:
        return f"{local.kind}:{local.index}", identity, memory, 1
    return "cuda", identity, memory, sum(map(identity.is_like, visible_gpus()))


def _facts(run: TuningRun) -> dict[str, Any]:
    """Return what a report says of the run."""
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


def _listed(
    problems: Any,
) -> tuple[tuple[ListedProblem, ...], tuple[SkippedNode, ...], tuple[str, ...]]:
    """Return the distinct problems, what is skipped and what is noted; ArgumentError if they cannot be tuned."""
    if isinstance(problems, (str, os.PathLike)):
        problems = path_of(problems, "problems")
        saved = problems.suffix == ".json"
        problems = ProblemList.load(problems) if saved else problems_from_onnx(problems)
    skipped, notes = (tuple(getattr(problems, name, ())) for name in ("skipped", "notes"))
    if isinstance(
        problems, ProblemList
    ):  # a program poses others too; who names a problem by itself is told
        others = [one for one in problems if one.problem.operation not in SEARCHES]
        problems = [one for one in problems if one not in others]
        why = "cuDNN has no choice of algorithms for it"
        skipped += tuple(
            SkippedNode(", ".join(one.names) or one.problem.kind, one.problem.kind, why)
            for one in others
        )
    found = ProblemList()
    for item in sequence(problems, "problems", "a list of problems or the path of a model"):
        one = item if isinstance(item, ListedProblem) else ListedProblem(item, 1)
        search_of(one.problem)  # which refuses what cannot be tuned
        found.extend([one])
    return tuple(found), skipped, notes


def _why_skipped(skipped: Sequence[SkippedNode]) -> str:
    """Return what to say of nodes that are no problems, empty if there are none."""
    if not skipped:
        return ""
    why = f"; skipped: {skipped[0]}"
    if len(skipped) > 1:
        why += f" and {len(skipped) - 1} more"
    if skipped[0].open_axes:
        why += "; give a list, of problems_from_onnx with batch= or shapes="
    return why


def _check(
    policy: TuningPolicy | None, executor: Executor | None, workers: int | None
) -> TuningPolicy:
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
