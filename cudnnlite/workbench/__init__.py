"""What one does around the core: tune, measure, report, trace, plan for absent GPUs, diagnose.

Its names are imported when they are first used.  Those of every day stand at the top, too.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudnnlite.workbench.absent.answers import Candidate
    from cudnnlite.workbench.absent.asking import candidates
    from cudnnlite.workbench.absent.candidates import Candidates
    from cudnnlite.workbench.tracing.recorder import TracedCall
    from cudnnlite.workbench.tracing.trace import Trace, trace
    from cudnnlite.workbench.tuning.cache import TuningCache
    from cudnnlite.workbench.tuning.model import tune_model
    from cudnnlite.workbench.tuning.model_tuning import ModelTuning
    from cudnnlite.workbench.tuning.onnx.model_problems import problems_from_onnx
    from cudnnlite.workbench.tuning.policy import TuningPolicy
    from cudnnlite.workbench.tuning.problem_list import ListedProblem, ProblemList, SkippedNode
    from cudnnlite.workbench.tuning.recording import record_problems
    from cudnnlite.workbench.tuning.tune import tune
    from cudnnlite.workbench.tuning.tuned_problem import TunedProblem
    from cudnnlite.workbench.tuning.tuner import Tuner, autotuned

__all__ = [
    "Candidate",
    "Candidates",
    "ListedProblem",
    "ModelTuning",
    "ProblemList",
    "SkippedNode",
    "Trace",
    "TracedCall",
    "TunedProblem",
    "Tuner",
    "TuningCache",
    "TuningPolicy",
    "autotuned",
    "candidates",
    "problems_from_onnx",
    "record_problems",
    "trace",
    "tune",
    "tune_model",
]

# The module of each name.
_MODULES = {
    "Candidate": "absent.answers",
    "Candidates": "absent.candidates",
    "ListedProblem": "tuning.problem_list",
    "ModelTuning": "tuning.model_tuning",
    "ProblemList": "tuning.problem_list",
    "SkippedNode": "tuning.problem_list",
    "Trace": "tracing.trace",
    "TracedCall": "tracing.recorder",
    "TunedProblem": "tuning.tuned_problem",
    "Tuner": "tuning.tuner",
    "TuningCache": "tuning.cache",
    "TuningPolicy": "tuning.policy",
    "autotuned": "tuning.tuner",
    "candidates": "absent.asking",
    "problems_from_onnx": "tuning.onnx.model_problems",
    "record_problems": "tuning.recording",
    "trace": "tracing.trace",
    "tune": "tuning.tune",
    "tune_model": "tuning.model",
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a name when it is first used, and keep it."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
