"""What a tuning found, for programs: plain values, as JSON can hold them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cudnnlite._raw.cenum import CEnum
from cudnnlite.autotune.entries import row_to_plain
from cudnnlite.autotune.tuned import Policy, TunedProblem, cost, shared_workspace
from cudnnlite.errors import ArgumentError
from cudnnlite.operations.problem_list import summary
from cudnnlite.report.plots import front_of
from cudnnlite.search.results import within_noise

SCHEMA = 1  # of `to_json`: a higher one where a key changes its meaning or goes


def to_json(tunings: Sequence[TunedProblem], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that the report shows, as values that JSON can hold.

    Parameters
    ----------
    tunings : sequence of TunedProblem
        What was tuned.
    facts : mapping
        Versions, device, time; under 'policy' what `TuningPolicy.to_plain` returns.

    Returns
    -------
    dict
        'schema' (the number of this layout), 'facts', 'problems' and 'model'.  A problem has all its candidates under 'rows',
        each as `cudnnlite.autotune.entries.row_to_plain` writes it; 'chosen', 'runner_up' and 'pareto' are indices of these.
        A figure that is missing, or that is no finite number, is None.

    Raises
    ------
    ArgumentError
        `tunings` or `facts` is something else, or a chosen row is not in its table.
    """
    policy = _policy(tunings, facts)
    totals = [total for tuned in tunings if (total := tuned.total_ms(policy)) is not None]
    model = {
        "calls": sum(tuned.count for tuned in tunings),
        "chosen": sum(tuned.chosen is not None for tuned in tunings),
        "from_cache": sum(tuned.from_cache for tuned in tunings),
        "total_ms": sum(totals) if totals else None,
        "workspace": max((tuned.chosen.workspace for tuned in tunings if tuned.chosen), default=None),
        "shared_workspace": [{"workspace": size, "total_ms": ms} for size, ms in shared_workspace(tunings, policy)],
    }
    problems = [_problem(tuned, policy) for tuned in tunings]
    plain: dict[str, Any] = _plain({"schema": SCHEMA, "facts": facts, "problems": problems, "model": model})
    return plain


def _policy(tunings: Any, facts: Any) -> Policy:
    """Check what the report is made of, and return the policy."""
    if isinstance(tunings, (str, bytes)) or not isinstance(tunings, Sequence):
        raise ArgumentError(f"tunings={tunings!r} is not a sequence of TunedProblem")
    for index, tuned in enumerate(tunings):
        if not isinstance(tuned, TunedProblem):
            raise ArgumentError(f"tunings[{index}]={tuned!r} is not a TunedProblem")
    if not isinstance(facts, Mapping):
        raise ArgumentError(f"facts={facts!r} is not a mapping of names to what they are")
    policy = facts.get("policy") or {}
    if not isinstance(policy, Mapping):
        raise ArgumentError(f"facts['policy']={policy!r} is not a mapping; allowed: what TuningPolicy.to_plain returns")
    return policy


def _problem(tuned: TunedProblem, policy: Policy) -> dict[str, Any]:
    rows = []
    for index, (row, why) in enumerate(zip(tuned.table, tuned.reasons(policy), strict=True)):
        plain = {name: None if value in ("nan", "inf", "-inf") else value for name, value in row_to_plain(row).items()}
        rows.append({**plain, "ok": row.ok, "why_not_chosen": "" if index == tuned.place else why})
    return {
        "title": tuned.title,
        "description": summary(tuned.problem),
        "problem": tuned.problem.to_plain(),
        "flops": tuned.problem.flops,
        "names": tuned.names,
        "count": tuned.count,
        "from_cache": tuned.from_cache,
        "timing": tuned.table.timing,
        "searched_with": tuned.table.searched_with,
        "chosen": tuned.place,
        "why_none": tuned.why_none,
        "total_ms": tuned.total_ms(policy),
        "runner_up": _runner_up(tuned, policy),
        "pareto": front_of(tuned.table),
        "rows": rows,
    }


def _runner_up(tuned: TunedProblem, policy: Policy) -> dict[str, Any] | None:
    index = tuned.runner_up(policy)
    if tuned.chosen is None or index is None:
        return None
    least, each = cost(tuned.chosen, policy), cost(tuned.table[index], policy)
    latency = policy.get("objective") == "latency"
    return {
        "row": index,
        "slower_ms": None if least is None or each is None else each - least,
        "ratio": each / least if least and each is not None else None,
        "within_noise": within_noise(tuned.table[index], tuned.chosen, latency=latency),
    }


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it: enums by name, no NaN and no infinity."""
    if isinstance(value, CEnum):
        return value.name
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
