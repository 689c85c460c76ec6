"""`cached_property`: a property that is computed once for each object, without a lock."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    cached_property = functools.cached_property
else:

    class cached_property(functools.cached_property):
        """`functools.cached_property` without the lock that it has before Python 3.12.

        All objects of a class share that lock.  A process that is forked while another thread holds
        it would wait for ever.
        """

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            """Compute the value and store it in the object; the next look-up finds it there.

            If two threads compute the value at once, both get the one that was stored first.
            """
            if instance is None:
                return self
            return instance.__dict__.setdefault(self.func.__name__, self.func(instance))
