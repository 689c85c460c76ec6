"""What a case of a table of invalid input is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

# The call with an invalid argument, which gets a handle; and what the message has to match.
Case: TypeAlias = tuple[Callable[[Any], Any], str]
