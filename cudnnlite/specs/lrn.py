"""`LRNSpec`: local response normalisation across channels."""

from dataclasses import dataclass

from cudnnlite.arguments import integer, real_number, shown
from cudnnlite.errors import ArgumentError
from cudnnlite.specs.frozen import FrozenSpec

_MAX_N, _MIN_K, _MIN_BETA = 16, 1e-5, 0.01  # CUDNN_LRN_MAX_N, ...


@dataclass(frozen=True, init=False, repr=False, eq=False)
class LRNSpec(FrozenSpec):
    """How a value is divided by those of the channels around it: a frozen value, equal and hashable by its fields.

    ``y = x / (k + alpha / n * sum(x ** 2)) ** beta``, the sum over `n` channels.

    Parameters
    ----------
    n : int
        How many channels, 1 to 16: ``(n - 1) // 2`` before, the others behind.
    alpha, beta, k : float
        As above; cuDNN wants `beta` from 0.01 and `k` from 1e-5 on.

    Notes
    -----
    C function: `cudnnSetLRNDescriptor`.

    Examples
    --------
    >>> dnn.LRNSpec(3, k=1)
    LRNSpec(n=3, k=1.0)
    """

    n: int
    alpha: float
    beta: float
    k: float

    def __init__(self, n: int = 5, alpha: float = 1e-4, beta: float = 0.75, k: float = 2.0) -> None:
        channels, given = integer(n, "n", 1, _MAX_N), {"alpha": alpha, "beta": beta, "k": k}
        numbers = {name: real_number(value, name) for name, value in given.items()}
        for name, smallest in (("beta", _MIN_BETA), ("k", _MIN_K)):
            if not numbers[name] >= smallest:
                raise ArgumentError(f"{name}={shown(given[name])}; allowed: from {smallest} on")
        self._freeze(n=channels, **numbers)
