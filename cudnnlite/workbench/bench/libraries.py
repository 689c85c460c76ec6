"""The answers of one cuDNN about an absent GPU, as a run that compares as others do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cudnnlite.problems.work import work_of
from cudnnlite.workbench.absent.candidates import Candidates
from cudnnlite.workbench.bench.rows import BenchRow, BenchRun
from cudnnlite.workbench.tuning.problem_list import ListedProblem, summary


def run_of_answers(
    items: Sequence[ListedProblem], answers: Sequence[Candidates], gpu: str, libcudnn: str
) -> BenchRun:
    """Return the answers of one library about problems as a run without times.

    The rows have no kernels: cuDNN numbers those that it compiles in the order of its work.

    Parameters
    ----------
    items : sequence of ListedProblem
        The problems that cuDNN was asked about.
    answers : sequence of Candidates
        The answer for each problem.
    gpu : str
        The name of the GPU that cuDNN was asked about.
    libcudnn : str
        The path of the library.
    """
    rows = [_row_of(item, answer) for item, answer in zip(items, answers, strict=True)]
    facts = {
        "mode": "plan",
        "device": f"{gpu}, which is absent",
        "cuDNN": ", ".join(sorted({answer.cudnn for answer in answers})),
        "libcudnn": libcudnn,
        "has real timing": False,
    }
    return BenchRun(tuple(rows), facts)


def _row_of(item: ListedProblem, answer: Candidates) -> BenchRow:
    work = work_of(item.problem)
    row = BenchRow(
        summary(item.problem),
        "; ".join(item.names),
        item.count,
        key=str(item.problem.to_plain()),
        flops=work.flops,
        nbytes=work.nbytes,
    )
    choice = answer.choice
    if choice is None:
        return replace(row, status=f"not served: {answer.why_not}")
    return replace(
        row,
        candidate=str(choice.engine),
        is_chosen=True,
        deterministic=choice.deterministic,
        workspace=choice.workspace,
        plan_seconds=choice.seconds,
    )
