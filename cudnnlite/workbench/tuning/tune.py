"""`tune`: measure the candidates of one call now."""

from __future__ import annotations

from typing import Any

from cudnnlite import AlgorithmTable, Handle
from cudnnlite.arguments import shown
from cudnnlite.errors import ArgumentError
from cudnnlite.plans.function import OperationFunction, PublicFunction
from cudnnlite.workbench.tuning.policy import TuningPolicy
from cudnnlite.workbench.tuning.tuner import Tuner


def tune(
    handle: Handle,
    operation: PublicFunction,
    /,
    *arguments: Any,
    policy: TuningPolicy | None = None,
    **options: Any,
) -> AlgorithmTable:
    """Measure every engine and algorithm of a call on a handle's device, and return the table.

    Nothing is looked up or saved, and the operands are synthetic: no array is read or written.
    `autotuned` uses such a choice in later calls.  `find` of an operation is cuDNN's own search,
    and `candidates` names the engines without running them.

    Parameters
    ----------
    handle : Handle
        The handle to measure on; by position, as the operation is.  A measurement waits for all other work on its device.
    operation : operation
        A convolution, one of its gradients, `rnn_forward`, or an operation that is a graph, such as
        `matmul`.
    arguments, options
        The arguments of the call after the handle, as in ``operation.problem``.  A spec may be
        given instead of each array.
    policy : TuningPolicy, optional
        The conditions for the choice.  The default is the least wall time of a call.

    Returns
    -------
    AlgorithmTable
        The best candidate first.  ``table.best()`` is for the ``algorithm=`` of operations that
        have it, and ``table.explain()`` says why each other was not chosen.

    Raises
    ------
    ArgumentError
        Not an operation, or an operation that has no candidates.
    CudnnError, DeviceMemoryError
        The device failed.

    Notes
    -----
    No one C function is behind it: each candidate is planned and run as its operation does.

    Examples
    --------
    >>> x, w = dnn.TensorSpec((1, 8, 14, 14)), dnn.FilterSpec((8, 8, 3, 3))
    >>> with dnn.Handle() as handle:
    ...     table = dnn.tune(handle, dnn.convolution_forward, x, w)
    ...     print(table[0].ok)
    True
    """
    if not isinstance(operation, OperationFunction):
        raise ArgumentError(
            f"operation={shown(operation)}; needed: an operation, such as dnn.convolution_forward"
        )
    for name in ("interface", "math_type", "workspace_limit"):
        if options.get(name) is not None:
            raise ArgumentError(
                f"{name} is an argument of a call; dnn.tune has it in the policy: "
                f"policy=dnn.TuningPolicy({name}={shown(options[name])})"
            )
    describe = getattr(operation, "graph", operation.problem)
    with Tuner(handle, ":memory:", policy) as tuner:
        return tuner.tune(describe(*arguments, **options))
