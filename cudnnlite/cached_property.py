"""`cached_property`: a property that is computed once for an object, without a lock."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    cached_property = functools.cached_property
else:

    class cached_property(functools.cached_property):
        """`functools.cached_property` as it is since Python 3.12: before, it has a lock for all objects of a class.

        A process that is forked while another thread computes one inherits that lock, and waits for
        ever.
        """

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            """Compute it; the next look-up finds it without coming here.

            Of two threads that compute it at once both get what the first one computed.
            """
            if instance is None:
                return self
            return instance.__dict__.setdefault(self.func.__name__, self.func(instance))
