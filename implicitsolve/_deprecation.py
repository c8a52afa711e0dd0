"""The one way to take something back: it goes on working until `remove_in`, and warns whoever uses it.

Every use states three facts as plain strings: `since`, the version that began to warn; `remove_in`, the version without
it; `instead`, what to use. ``tests/test_deprecation.py`` reads them from the sources, and fails once the package's
version has reached `remove_in`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def deprecated_function(*, since: str, remove_in: str, instead: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function that will go.

    Examples
    --------
    >>> import warnings
    >>> from implicitsolve._deprecation import deprecated_function
    >>> @deprecated_function(since="0.1", remove_in="0.3", instead="`twice`")
    ... def double(x):
    ...     return 2 * x
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     double(4)
    8
    >>> print(caught[0].message)
    `double` is deprecated since 0.1 and will be removed in 0.3: use `twice`
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def warned(*args: P.args, **kwargs: P.kwargs) -> R:
            _warn(function.__name__, since, remove_in, instead)
            return function(*args, **kwargs)

        return warned

    return decorate


def deprecated_argument(
    name: str, *, since: str, remove_in: str, instead: str
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function, one of whose keyword arguments will go; its own code still knows what that means."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def warned(*args: P.args, **kwargs: P.kwargs) -> R:
            if name in kwargs:
                _warn(f"{function.__name__}({name}=...)", since, remove_in, instead)
            return function(*args, **kwargs)

        return warned

    return decorate


def deprecated_name(name: str, value: Any, *, since: str, remove_in: str, instead: str) -> Any:
    """Return `value` for the old name of something; called by a module's ``__getattr__``."""
    _warn(name, since, remove_in, instead, frames=4)  # past `__getattr__`
    return value


def _warn(what: str, since: str, remove_in: str, instead: str, frames: int = 3) -> None:
    """Warn in the name of the user's line, so many frames up."""
    text = f"`{what}` is deprecated since {since} and will be removed in {remove_in}: use {instead}"
    warnings.warn(text, DeprecationWarning, stacklevel=frames)
