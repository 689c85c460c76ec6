"""`fold_batch_normalization`: a batch normalisation behind a convolution, folded into its filter and bias."""

from __future__ import annotations

from math import prod
from typing import Any

from cudnnlite.errors import ArgumentError


def fold_batch_normalization(
    w: Any, bias: Any, scale: Any, shift: Any, mean: Any, var: Any, epsilon: float = 1e-5
) -> tuple[Any, Any]:
    """Return the filter and the bias of a convolution that does what a normalisation behind it would, in inference.

    Nothing is called but the arrays' own operators; nothing is written.

    Parameters
    ----------
    w : array
        The filter, ``(K, C / groups, *taps)``, of NumPy, CuPy, PyTorch, or another library with such arrays.
    bias : array or None
        The convolution's own, of K values in any shape; None where it has none.
    scale, shift, mean, var : arrays
        Of the normalisation, K values each, of the same library: y = scale * (x - mean) / sqrt(var + epsilon) + shift.
    epsilon : float
        As the normalisation has it.

    Returns
    -------
    w, bias : arrays
        Of the same library; `w` in its own data type, `bias` in that of `w`, shaped ``(1, K, 1, ...)`` as
        `convolution_bias_activation_forward` takes it.

    Raises
    ------
    ArgumentError
        One of them has not K values, or no arithmetic.

    Examples
    --------
    >>> w, ones = np.full((2, 1, 1, 1), 3.0), np.ones(2)
    >>> w, bias = dnn.fold_batch_normalization(w, None, 2 * ones, ones, 5 * ones, 4 * ones, epsilon=0)
    >>> print(w.ravel(), bias.ravel(), bias.shape)
    [3. 3.] [-4. -4.] (1, 2, 1, 1)
    """
    if not hasattr(w, "__mul__") or not hasattr(w, "reshape"):
        raise ArgumentError(f"w of type {type(w).__name__} has no arithmetic; fold on the host, or in CuPy or PyTorch")
    filters = w.shape[0]
    given = {"bias": bias, "scale": scale, "shift": shift, "mean": mean, "var": var}
    for name, array in given.items():
        if array is None and name == "bias":
            continue
        if prod(getattr(array, "shape", ())) != filters or not hasattr(array, "reshape"):
            shape = tuple(getattr(array, "shape", ()))
            raise ArgumentError(f"{name} has shape {shape}; needed: {filters} values, one for each filter of w")
    scale, shift, mean, var = (array.reshape(-1) for array in (scale, shift, mean, var))
    factor = scale * (var + epsilon) ** -0.5
    moved = shift - mean * factor if bias is None else shift + (bias.reshape(-1) - mean) * factor
    ones = (1,) * (len(w.shape) - 2)
    return _like(w * factor.reshape((filters, 1, *ones)), w), _like(moved.reshape((1, filters, *ones)), w)


def _like(array: Any, other: Any) -> Any:
    """Return an array in the data type of another, by whichever name its library has for that."""
    return array.astype(other.dtype) if hasattr(array, "astype") else array.to(other.dtype)
