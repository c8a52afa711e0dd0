"""Settings of a differentiable solve: methods, what happens when it fails, and starts of samples visited before."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from implicitsolve._linear_solve import check_linear
from implicitsolve._root import check_settings
from implicitsolve.stopping import LinearStop, NonlinearStop, check_choice

ON_FAILURE = ("warn", "raise", "ignore")


class ConvergenceWarning(UserWarning):
    """A forward or an adjoint solve ended without meeting its stopping rule: the states or gradients are inexact."""


@dataclass(frozen=True, kw_only=True)
class SolveOptions:
    """How a layer is solved, forwards and backwards.

    Parameters
    ----------
    method : solver or str, optional
        That of `implicitsolve.root`. Default "auto".
    stop : NonlinearStop, optional
        When the forward solve has converged. The default None is max|F(x)| <= max(1e-8, sqrt(eps) max|F(x0)|), with
        1e-5 in float32: the states of a layer are of size 1. `solve` has the rule of `root`.
    adjoint_method : Krylov or direct method, optional
        That of `implicitsolve.pull_back`. Default: its own choice.
    adjoint_stop : LinearStop, optional
        When the adjoint solve has converged. Default: that of `pull_back`, 1e-6 relative (1.2e-5 in float32).
    initial_guess : str, optional
        Where a forward solve starts that is given no `x0`: "one-step", "zeros", or "default", the layer's own choice.
    on_failure : {"warn", "raise", "ignore"}, optional
        What follows when a solve ends without meeting its rule. "warn" (default) is a `ConvergenceWarning`, "raise" an
        `implicitsolve.NoConvergence`.

    Raises
    ------
    TypeError, ValueError
        If a setting is not usable.

    Examples
    --------
    >>> from implicitsolve.torch import SolveOptions
    >>> SolveOptions(stop=ims.NonlinearStop(atol=1e-3), on_failure="raise").on_failure
    'raise'
    """

    method: Any = "auto"
    stop: NonlinearStop | None = None
    adjoint_method: Any = None
    adjoint_stop: LinearStop | None = None
    initial_guess: str = "default"
    on_failure: str = "warn"

    def __post_init__(self) -> None:
        check_settings("SolveOptions", self.method, self.stop, None)
        check_linear("SolveOptions", self.adjoint_method, self.adjoint_stop, prefix="adjoint_")
        check_choice("SolveOptions", "initial_guess", self.initial_guess, ("default", "one-step", "zeros"))
        check_choice("SolveOptions", "on_failure", self.on_failure, ON_FAILURE)

    def report(self, caller: str, what: str, result: Any) -> None:
        """Warn or raise, as `on_failure` requires, where some system of a result did not converge."""
        if self.on_failure == "ignore" or np.all(result.success):
            return
        if self.on_failure == "raise":
            result.raise_for_status()
        warnings.warn(f"{caller}: {what}: {result.message}", ConvergenceWarning, stacklevel=2)


class WarmStarts:
    """States and adjoints of a layer's last solves, sample by sample.

    ``layer(inputs, x0=starts[keys])`` begins where the last solve of the same samples ended, and its ``backward()``
    where their last adjoint solve did; both then keep what they found. Samples that are new begin as without `x0`.
    Useful as long as the parameters change little from one visit to the next.

    Notes
    -----
    Every sample has one state and one adjoint, of the size of its output: copies, on its device. Only converged
    results are stored. The padding of the batch may change, since sequences start at the first position. A wrong key,
    or another layer, gives a bad start and never a less accurate solution.

    Examples
    --------
    >>> import torch
    >>> from implicitsolve.torch import ImplicitGRU, WarmStarts
    >>> layer, inputs, starts = ImplicitGRU(2, 4), torch.ones(3, 5, 2), WarmStarts()
    >>> for epoch in range(2):
    ...     states, result = layer(inputs, x0=starts[[0, 1, 2]], return_result=True)
    >>> len(starts), int(result.iterations.max())
    (3, 0)
    """

    def __init__(self) -> None:
        self.states: dict[Hashable, Tensor] = {}
        self.adjoints: dict[Hashable, Tensor] = {}

    def __getitem__(self, keys: Any) -> Start:
        """Starts of a batch, for keys in a list, a tuple, an array or a tensor; of one sample for its key alone."""
        if isinstance(keys, Tensor | np.ndarray | np.generic):
            keys = keys.tolist()
        if isinstance(keys, list | tuple | range):
            return Start(self, list(keys), is_batch=True)
        return Start(self, [keys], is_batch=False)

    def __len__(self) -> int:
        return len(self.states)

    def clear(self) -> None:
        """Forget all samples."""
        self.states.clear()
        self.adjoints.clear()


class Start:
    """The part of some samples, in the order of a batch: what `WarmStarts` returns for their keys."""

    def __init__(self, owner: WarmStarts, keys: list[Hashable], *, is_batch: bool) -> None:
        self.owner: WarmStarts = owner
        self.keys: list[Hashable] = keys
        self.is_batch: bool = is_batch

    def check(self, caller: str, inputs: Tensor, event_ndim: int) -> None:
        """Raise unless there is a key for each sample of the inputs; one sample has `event_ndim` axes."""
        is_batch = inputs.ndim > event_ndim
        expected = f"{inputs.shape[0]} keys" if is_batch else "one key, not a list,"
        if self.is_batch != is_batch or (is_batch and len(self.keys) != inputs.shape[0]):
            got = f"{len(self.keys)} in a list" if self.is_batch else "one"
            shape = tuple(inputs.shape)
            raise ValueError(f"{caller}: `x0` must have {expected} for inputs of shape {shape}, got {got}")

    def recall(
        self, store: dict[Hashable, Tensor], shape: tuple[int, ...], blank: Callable[[], Tensor]
    ) -> Tensor | None:
        """The last states or adjoints, with those of `blank()` for new samples; None if all of them are new."""
        length, others = shape[self.is_batch], shape[self.is_batch + 1 :]
        known = [store.get(key) for key in self.keys]
        known = [None if value is None or value.shape[1:] != others else value[:length] for value in known]
        complete = [value for value in known if value is not None and len(value) == length]
        if len(complete) == len(known):
            return torch.stack(complete) if self.is_batch else complete[0].clone()
        if all(value is None for value in known):
            return None
        whole = blank()
        for row, value in zip(self._rows(whole), known, strict=True):
            if value is not None:
                row[: len(value)] = value
        return whole

    def keep(self, store: dict[Hashable, Tensor], x: Tensor, is_good: Iterable[bool]) -> None:
        for key, row, good in zip(self.keys, self._rows(x.detach()), is_good, strict=True):
            if good:
                store[key] = row.clone()

    def _rows(self, x: Tensor) -> Iterable[Tensor]:
        return x.unbind() if self.is_batch else [x]
