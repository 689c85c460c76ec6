"""How much memory the host has left for this process: its own, and that of the control groups (containers) around it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# of both versions of control groups: where they are, and the files with the limit, the use, and what of that is a mere cache
_GROUPS = {
    "": ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    "memory": ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
# not OSError: a signal handler's TimeoutError is one, and comes out
_NOT_THERE = (FileNotFoundError, NotADirectoryError, PermissionError)


def host_memory(root: Path = Path("/")) -> int:
    """Return the bytes that can still be had; a lot where the system does not say."""
    return max(0, min(_left(root), default=1 << 62))


def _left(root: Path) -> Iterator[int]:
    with suppress(*_NOT_THERE):
        yield _named(root / "proc/meminfo", "MemAvailable:") * 1024
    with suppress(*_NOT_THERE):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in _GROUPS:
                place, limit, use, cache = _GROUPS[controllers]
                group = Path(path.lstrip("/"))
                # each bounds those inside it; a container does not see all of them
                for where in (root / place / folder for folder in (group, *group.parents)):
                    with suppress(*_NOT_THERE):
                        most, used = ((where / name).read_text().strip() for name in (limit, use))
                        if most.isdigit():  # not "max"
                            yield int(most) - int(used) + _named(where / "memory.stat", cache)


def _named(file: Path, name: str) -> int:
    """Return the number behind a name in a file of names and numbers."""
    return next((int(words[1]) for line in file.read_text().splitlines() if (words := line.split())[0] == name), 0)
