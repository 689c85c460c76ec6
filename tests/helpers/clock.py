"""`Clock`: the time by which trials in real calls have their share."""

from __future__ import annotations

from typing import Any

import pytest

from cudnnlite.search import trial_budget


class Clock:
    """The seconds that `perf_counter` returns to a `TrialBudget`; they pass only if a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(trial_budget, "perf_counter", lambda: self.seconds)

    def slow_down(self, owner: Any, name: str, seconds: float) -> None:
        """Let each call of a function take that long."""
        run = getattr(owner, name)

        def slowly(*arguments: Any, **options: Any) -> Any:
            self.seconds += seconds
            return run(*arguments, **options)

        self._monkeypatch.setattr(owner, name, slowly)
