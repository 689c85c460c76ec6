"""`growth`: how much longer a work takes if it has more to do, on machines of any speed."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any


def growth(work: Callable[[Any], Any], less: Any, more: Any) -> float:
    """Return how many times as long `work(more)` takes the processor as `work(less)` does.

    The shorter is run several times, since what else runs on the machine counts for more there.
    """
    return _seconds(work, more) / min(_seconds(work, less) for _ in range(3))


def _seconds(work: Callable[[Any], Any], argument: Any) -> float:
    gc.collect()
    start = time.process_time()
    work(argument)
    return time.process_time() - start
