"""`call`: the one line of every operation; and `make_plan`, for many calls."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from cudnnlite.arguments import real_number
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.operation_graph import ALIGNMENT
from cudnnlite.operations.convolution.algorithms import (
    UNALIGNED,
    found,
    parse_algorithm,
    parse_interface,
)
from cudnnlite.operations.convolution.engines import is_aligned
from cudnnlite.plans.choosing import tuned_choice
from cudnnlite.plans.operands import check_writable, on_device, tensor_spec, usable_workspace, use
from cudnnlite.plans.operation_plan import OperationPlan, plan_class
from cudnnlite.problems.operation import Operation
from cudnnlite.problems.problem import Problem, make_problem, parse_option
from cudnnlite.problems.table import AlgorithmTable
from cudnnlite.specs import FilterSpec, TensorSpec
from cudnnlite.specs.filter import as_tensor


def specs_of(operation: Operation, operands: Sequence[Any], out: Any) -> dict[str, Any]:
    """Return the specs of operands, which may be specs themselves, by name; None for an output that is not given.

    Filters are read in the layout of the first tensor that is read where they fit both.
    """
    given = zip(
        (*operation.reads, *operation.writes), (*operands, *operation.all_written(out)), strict=True
    )
    specs: dict[str, Any] = {}
    for name, operand in given:
        is_filter = name in operation.filters and isinstance(operand, FilterSpec)
        open_ = operand is None and name in operation.writes
        specs[name] = (
            operand if is_filter or open_ else tensor_spec(operand, operation.argument(name))
        )
    for name in operation.filters:
        if isinstance(spec := specs[name], TensorSpec):
            last = next(
                specs[other] for other in operation.reads if other not in operation.filters
            ).is_channels_last
            specs[name] = FilterSpec.from_tensor(
                spec, channels_last=last, argument=operation.argument(name)
            )
    return specs


def make_plan(
    handle: Handle,
    operation: Operation,
    operands: Sequence[Any],
    options: Sequence[Any],
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    algorithm: Any = None,
    workspace_limit: int | str | None = None,
    interface: str | None = None,
    replay: bool = False,
) -> Any:
    """Return a plan for operands, arrays or specs, of an operation."""
    use(handle)
    interface = parse_interface(interface)
    limit = handle.workspace.limit_for(workspace_limit)
    problem = problem_of(operation, operands, options, out, alpha, beta)
    if operation.algorithms is not None:
        algorithm = parse_algorithm(operation, algorithm)
        given = dict(zip((*operation.reads, "out"), (*operands, out), strict=True))
        known = {
            name: array if isinstance(array, DeviceArray) else None for name, array in given.items()
        }
        if algorithm is None and interface is None:
            if handle.chooser is not None and all(spec.size for spec in problem.specs.values()):
                algorithm = tuned_choice(handle, problem, lambda: problem, limit, **known)
            if algorithm is None and not is_aligned(*known.values()):
                interface = UNALIGNED
    return plan_class(operation)(handle, problem, algorithm, limit, interface, replay)


def call(
    handle: Handle,
    operation: Operation,
    operands: Sequence[Any],
    options: Sequence[Any],
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    algorithm: Any = None,
    workspace_limit: int | str | None = None,
    workspace: Any = None,
    interface: str | None = None,
    wanted: Any = None,
    reserve: Any = None,
) -> DeviceArray:
    """Run an operation on arrays, by the plan that the handle keeps for calls of this kind.

    `out` is a tuple where more than one operand is written, in the order of `Operation.writes`; None for a new array, of which
    `wanted` is the spec where the operation does not say it.
    """
    quick: tuple[Any, ...] | None = None
    if (
        algorithm is workspace_limit is workspace is reserve is interface is None
        and type(handle) is Handle
        and handle.chooser is None
        and type(alpha) is type(beta) is float
    ):
        # by the hashes of the specs, which cost less than the specs: that these are its own the plan sees, and refuses others
        try:
            hashes = [array.spec._hash for array in operands]
            looks = wanted if out is None else out.spec
            quick = (
                operation,
                *hashes,
                None if looks is None else looks._hash,
                alpha,
                beta,
                handle.workspace._limit,
            )
        except AttributeError:  # another library's arrays, several results, what is no spec
            pass
        else:
            # options of other types might be equal, as True is to 1.0, or not even say whether they are, as an array
            if (*map(type, options),) == operation.option_types:
                known = handle.plans.find_quick(quick, options)
                if known is not None:
                    try:
                        return known._run(*operands, out)  # type: ignore[no-any-return]
                    except (
                        ArgumentError
                    ):  # it comes again, or another plan takes operands that are not aligned
                        pass
    use(handle)
    device, given, specs, addresses = handle.device, [], [], 0
    for array, name in zip(operands, operation.reads):  # noqa: B905  (an argument fewer costs less)
        if type(array) is not DeviceArray or array.device is not device:
            array = on_device(handle, array, name)  # noqa: PLW2901
        given.append(array)
        specs.append(array.spec)
        addresses |= array.ptr
    y: Any = None
    y_spec: Any = wanted
    if out is not None and len(operation.writes) == 1:
        y = out
        if type(y) is not DeviceArray or y.device is not device:
            y = on_device(handle, out, operation.argument(operation.writes[0]))
        y_spec = y.spec
    elif out is not None:
        named = zip(operation.writes, operation.all_written(out), strict=True)
        y = tuple(
            None if a is None else on_device(handle, a, operation.argument(name))
            for name, a in named
        )
        y_spec = tuple(None if array is None else array.spec for array in y)
    if workspace is not None:
        workspace = on_device(handle, workspace, "workspace")
        if workspace_limit is None:  # the buffer is all there is
            workspace_limit = usable_workspace(workspace)
    limit = handle.workspace.limit_for(workspace_limit)
    written = y if y is not None else None if wanted is None else as_tensor(wanted)
    # as plain values, so that what is equal finds the same plan
    for option, kind in zip(options, operation.options.values()):  # noqa: B905
        if type(option) is not kind:
            named = zip(options, operation.options.items(), strict=True)
            options = [parse_option(value, name, kind) for value, (name, kind) in named]
            break
    if type(alpha) is not float or type(beta) is not float:
        alpha, beta = real_number(alpha, "alpha"), real_number(beta, "beta")
    if algorithm is not None:
        algorithm = parse_algorithm(operation, algorithm)
    elif (
        interface is None
        and handle.chooser is not None
        and operation.algorithms is not None
        and given[0].spec.size
    ):
        posed = (operation, *specs, *options, y_spec, alpha, beta)
        arrays = dict(zip((*operation.reads, "out"), (*given, y), strict=True))
        problem = partial(problem_of, operation, given, options, written, alpha, beta)
        algorithm = tuned_choice(handle, posed, problem, limit, **arrays)
    if interface is not None:
        parse_interface(interface)
    elif operation.algorithms is not None and algorithm is None:  # noqa: SIM102  (one condition would be too long to read)
        if (addresses | (0 if y is None else y.ptr)) % ALIGNMENT:
            interface = UNALIGNED
    key = (
        operation,
        tuple(specs),
        tuple(options),
        y_spec,
        alpha,
        beta,
        algorithm,
        limit,
        interface,
    )
    # not by a closure: its cells would make each call slower
    plan = handle.plans.get(
        key,
        _make,
        handle,
        operation,
        given,
        options,
        written,
        alpha,
        beta,
        algorithm,
        limit,
        interface,
    )
    if quick is not None and interface is None:
        handle.plans.add_quick(quick, key, tuple(options))
    if operation.reserve:
        return plan(*given, out=y, workspace=workspace, reserve=reserve)  # type: ignore[no-any-return]
    return plan(*given, out=y, workspace=workspace)  # type: ignore[no-any-return]


def _make(
    handle: Handle,
    operation: Operation,
    operands: Sequence[Any],
    options: Sequence[Any],
    out: Any,
    alpha: float,
    beta: float,
    algorithm: Any,
    limit: int | None,
    interface: str | None,
    kind: type[OperationPlan] | None = None,
) -> Any:
    problem = problem_of(operation, operands, options, out, alpha, beta)
    plan_type = kind or plan_class(operation)
    return plan_type(handle, problem, algorithm, limit, interface)


def find(
    handle: Handle,
    operation: Operation,
    operands: Sequence[Any],
    options: Sequence[Any],
    beta: float,
    out: Any,
    workspace_limit: int | str | None,
    wanted: Any = None,
) -> AlgorithmTable:
    """Let cuDNN run and time every algorithm on arrays, into `out` unless beta * out is wanted, else into scratch memory.

    `wanted` is the spec of the result where there is no `out`.
    """
    use(handle)
    given = {
        name: on_device(handle, array, name)
        for name, array in zip(operation.reads, operands, strict=True)
    }
    y = None if out is None else on_device(handle, out, "out")
    problem = problem_of(operation, [*given.values()], options, wanted if y is None else y)
    if y is not None:
        check_writable(y, "out", frozenset(), **given)
    limit = handle.workspace.limit_for(workspace_limit)
    return found(handle, problem, given, None if real_number(beta, "beta") != 0 else y, limit)


def problem_of(
    operation: Operation,
    operands: Sequence[Any],
    options: Sequence[Any],
    out: Any,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> Problem:
    """Return the problem of operands, arrays or specs."""
    values = specs_of(operation, operands, out) | dict(zip(operation.options, options, strict=True))
    scalars = {"alpha": alpha, "beta": beta}
    return make_problem(operation, values | {name: scalars[name] for name in operation.scalars})
