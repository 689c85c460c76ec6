"""`NonCopyable`: the base class of owners of native objects or device memory."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from cudnnlite.arguments import with_article


class NonCopyable:
    """A class that `copy.copy`, `copy.deepcopy` and `pickle` refuse.

    A copy would use an object that the original has freed, or free it again.  Subclasses say in
    `_instead_of_copy` what a user does instead.
    """

    __slots__ = ()
    _instead_of_copy: ClassVar[str] = "it owns memory or native objects"

    # `copy` calls it as `pickle` does, whichever protocol is asked for.
    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        raise TypeError(
            f"{with_article(type(self))} cannot be copied or pickled; {self._instead_of_copy}"
        )
