"""`fold_batch_normalization`: a batch normalisation behind a convolution, folded into its filter and bias."""

from __future__ import annotations

from math import prod
from typing import Any

from cudnnlite.arguments import real_number, refused_as
from cudnnlite.errors import ArgumentError
from cudnnlite.unknown import suggest_keywords


@suggest_keywords
def fold_batch_normalization(
    w: Any, bias: Any, scale: Any, shift: Any, mean: Any, var: Any, epsilon: float = 1e-5
) -> tuple[Any, Any]:
    """Return the filter and the bias of a convolution that does what a normalisation behind it would, in inference.

    Nothing is called but the arrays' own operators, in float32 at least; nothing is written.

    Parameters
    ----------
    w : array
        The filter, ``(K, C / groups, *taps)``, of NumPy, CuPy, PyTorch, or another library with
        such arrays.
    bias : array or None
        The convolution's own, of K values in any shape; None where it has none.
    scale, shift, mean, var : arrays
        Of the normalisation, K values each, of the same library: y = scale * (x - mean) / sqrt(var
        + epsilon) + shift.
    epsilon : float
        As the normalisation has it.

    Returns
    -------
    w, bias : arrays
        Of the same library; `w` in its own data type, `bias` in that of `w`, shaped ``(1, K, 1,
        ...)`` as `convolution_bias_activation_forward` takes it.

    Raises
    ------
    ArgumentError
        One of them has not K values, or no arithmetic; or they have none in common.

    Examples
    --------
    >>> w, ones = np.full((2, 1, 1, 1), 3.0), np.ones(2)
    >>> w, bias = dnn.fold_batch_normalization(w, None, 2 * ones, ones, 5 * ones, 4 * ones, epsilon=0)
    >>> print(w.ravel(), bias.ravel(), bias.shape)
    [3. 3.] [-4. -4.] (1, 2, 1, 1)
    """
    epsilon = real_number(epsilon, "epsilon")
    rank, filters = len(_shape(w)), _shape(w)[:1]
    if rank < 2 or not hasattr(w, "__mul__"):
        what = "has no arithmetic, or no shape (K, C / groups, *taps); fold on the host, or in CuPy or PyTorch"
        raise ArgumentError(f"w of type {type(w).__name__} {what}")
    given = {"bias": bias, "scale": scale, "shift": shift, "mean": mean, "var": var}
    for name, array in given.items():
        if (array is not None or name != "bias") and prod(_shape(array) or (0,)) != filters[0]:
            needed = f"{filters[0]} values, one for each filter of w"
            raise ArgumentError(f"{name} has shape {_shape(array)}; needed: {needed}")
    with refused_as(
        ArgumentError, "w and the others cannot be folded", Exception
    ):  # each library has its own
        bias, scale, shift, mean, var = (
            a if a is None else _wide(a.reshape(-1)) for a in given.values()
        )
        factor = scale * (var + epsilon) ** -0.5
        moved = shift - mean * factor if bias is None else shift + (bias - mean) * factor
        ones = (1,) * (rank - 2)
        folded = (
            _wide(w) * factor.reshape((*filters, 1, *ones)),
            moved.reshape((1, *filters, *ones)),
        )
        return tuple(a.astype(w.dtype) if hasattr(a, "astype") else a.to(w.dtype) for a in folded)


def _shape(array: object) -> tuple[int, ...]:
    """Return the shape of an array; that of anything else is empty."""
    shape = getattr(array, "shape", ())
    return tuple(shape) if isinstance(shape, tuple) and hasattr(array, "reshape") else ()


def _wide(array: Any) -> Any:
    """Return an array in float32, or float64 where that is its type."""
    is_double = array.dtype.itemsize == 8
    if hasattr(array, "astype"):
        return array.astype("float64" if is_double else "float32")
    return array.double() if is_double else array.float()
