"""Lifted nets as a module: matrices that are dense, or have entries in some places, several with one parameter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np
import scipy.sparse
import torch
from torch import Tensor
from torch.nn.functional import linear

import implicitsolve as ims
from implicitsolve import Problem
from implicitsolve.stopping import check_flag, check_limit
from implicitsolve.torch._layer import EQUATIONS, ImplicitLayer, LayerOptions
from implicitsolve.torch._options import Start
from implicitsolve.torch._share import on_device, to_array, to_tensor, widen

WELL_POSED = 0.95  # infinity norm of A that no initial A exceeds


class LiftedNet(ImplicitLayer):
    """The lifted net x = phi(A x + B u + b) of `implicitsolve.adapters.lifted_net` as a module.

    Parameters
    ----------
    n, p : int
        Numbers in the state x and in the input u.
    activation : {"tanh", "logistic", "relu", "identity"}, optional
        phi. Default "tanh".
    bias : bool, optional
        Whether there is a parameter b. Default False.
    pattern : pair of matrices, optional
        Where A (n, n) and B (n, p) have entries: SciPy's sparse matrices, or arrays by what is not zero. Entries with
        the same number, in A or B, are one parameter; of boolean matrices each entry is one. The parameters are then
        one vector, `weights`, in the order of the numbers, or of the entries row by row, A's first. Default: A and B
        are dense and parameters themselves.
    **options
        solve_options, scale, generator, device and dtype of `ImplicitGRU`. Rows of the initial A are scaled down so
        that ||A||_inf <= 0.95, with which there is exactly one solution for any B and u.

    Raises
    ------
    ValueError
        If a matrix of `pattern` has another shape.

    Notes
    -----
    ``net(u, *, x0=None, return_result=False)`` returns x, of shape (batch, n) for inputs (batch, p), or (n,) for (p,).
    An optimizer may leave the set of well-posed A; `project` brings it back. With a pattern, products cost two
    operations per entry, and acyclic nets are solved by one sweep; tensors must be on the CPU.

    Examples
    --------
    Three steps of a recurrent network, whose weights are the same in every step:

    >>> import torch
    >>> from implicitsolve.adapters import lifted_rnn
    >>> from implicitsolve.torch import LiftedNet
    >>> W_H, W_I = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[5.0], [6.0]])
    >>> A, B, _ = lifted_rnn(W_H, W_I, np.ones((1, 2)), 3)
    >>> net = LiftedNet(8, 3, pattern=(A, B))
    >>> net(torch.ones(5, 3)).shape, net.weights.shape
    (torch.Size([5, 8]), torch.Size([6]))
    """

    adapter = "lifted_net"
    event_ndim = 1
    A: Tensor
    weights: Tensor

    def __init__(
        self,
        n: int,
        p: int,
        *,
        activation: str = "tanh",
        bias: bool = False,
        pattern: Any = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        check_limit("LiftedNet", "n", n, least=1)
        check_limit("LiftedNet", "p", p, least=1)
        check_flag("LiftedNet", "bias", bias)
        self._places: dict[str, Any] | None = None  # of the entries, in CSR form; their data are indices of parameters
        shapes: dict[str, tuple[int, ...]] = {"A": (n, n), "B": (n, p)}
        if pattern is not None:
            self._places, count = read_pattern(pattern, shapes, bias)
            shapes = {"weights": (count,)}
        shapes |= {"b": (n,)} if bias else {}
        super().__init__(shapes, {"activation": activation}, p, n, **options)

    def reset_parameters(self, scale: float | None = None, generator: torch.Generator | None = None) -> None:
        super().reset_parameters(scale, generator)
        if self._places is not None:
            self.project(WELL_POSED)
            return
        with torch.no_grad():
            self.A /= (self.A.abs().sum(dim=1, keepdim=True) / WELL_POSED).clamp(min=1.0)

    def forward(self, inputs: Tensor, *, x0: Tensor | Start | None = None, return_result: bool = False) -> Any:
        """Return the states (batch, n) or (n,), with ``return_result=True`` also the `NonlinearResult`."""
        return self.solve(inputs, {}, x0, return_result)

    def arguments(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        u, b = tensors["inputs"], tensors.get("b")
        if b is not None:
            u = torch.cat([u, torch.ones_like(u[..., :1])], dim=-1)
        if self._places is None:
            A, B = tensors["A"], tensors["B"]
            return {"A": A, "B": B if b is None else torch.cat([B, b.unsqueeze(-1)], dim=-1), "inputs": u}
        weights = tensors["weights"] if b is None else torch.cat([tensors["weights"], b])
        A, B = (weights[torch.from_numpy(self._places[name].data)] for name in "AB")
        return {"A": A, "B": B, "inputs": u}

    def wrap(self, name: str, array: Any) -> Any:
        if self._places is None or name not in self._places:
            return array
        if not isinstance(array, np.ndarray):
            raise TypeError("LiftedNet: with `pattern` tensors must be on the CPU")
        places = self._places[name]
        return scipy.sparse.csr_array((array, places.indices, places.indptr), shape=places.shape)

    def product(self, name: str, matrix: Tensor, x: Tensor) -> Tensor:
        """A x or B x, where `matrix` holds the entries of A or B."""
        if self._places is None:
            return linear(x, matrix)
        rows, columns = (torch.from_numpy(index).long() for index in self._places[name].tocoo().coords)
        found = torch.zeros_like(x[..., :1]).expand(*x.shape[:-1], self.state_size)
        return found.index_add(-1, rows, x[..., columns] * matrix)

    def equations(self, states: Tensor, tensors: Mapping[str, Tensor], **others: Any) -> Tensor:
        total = self.product("A", tensors["A"], states) + self.product("B", tensors["B"], tensors["inputs"])
        return states - EQUATIONS.activate(self.activation, total)

    def build(self, arrays: Mapping[str, Any], settings: Mapping[str, Any]) -> Problem:
        return ims.adapters.lifted_net(**arrays, **settings)

    @torch.no_grad()
    def project(self, kappa: float = 0.95) -> None:
        """Replace A by the nearest matrix with ||A||_inf <= kappa: see `implicitsolve.adapters.project_well_posed`.

        With a pattern each parameter is scaled down as its rows require: the result is well posed, but not the nearest.
        """
        if self._places is None:
            with on_device(self.A):
                self.A.copy_(to_tensor(ims.adapters.project_well_posed(to_array(widen(self.A)), kappa)))
            return
        places = self._places["A"]
        sums = self.wrap("A", np.abs(to_array(widen(self.weights)))[places.data]).sum(axis=1)
        needed = kappa / np.maximum(sums, kappa)
        factors = np.ones(len(self.weights))
        np.minimum.at(factors, places.data, needed[places.tocoo().coords[0]])
        self.weights.mul_(torch.from_numpy(factors).to(self.weights))


def read_pattern(pattern: Any, shapes: Mapping[str, tuple[int, ...]], bias: bool) -> tuple[dict[str, Any], int]:
    """The places of A's and B's entries, whose data are indices of parameters, and their number without b."""
    found: dict[str, Any] = {}
    if not isinstance(pattern, tuple | list) or len(pattern) != len(shapes):
        raise TypeError(f"LiftedNet: `pattern` must be two matrices, of A and B, got {type(pattern).__name__}")
    for (name, shape), given in zip(shapes.items(), pattern, strict=True):
        if np.ndim(given) != 2 and not scipy.sparse.issparse(given):
            raise TypeError(f"LiftedNet: `pattern` must have a matrix {name}, got {type(given).__name__}")
        matrix = scipy.sparse.csr_array(given, copy=True)
        if matrix.shape != shape:
            raise ValueError(f"LiftedNet: `pattern` must have a matrix {name} of shape {shape}, got {matrix.shape}")
        matrix.sum_duplicates()
        found[name] = matrix
    numbers = np.concatenate([matrix.data for matrix in found.values()])
    if numbers.dtype == bool:
        numbers = np.arange(len(numbers))
    labels, index = np.unique(numbers, return_inverse=True)
    for matrix, own in zip(found.values(), np.split(index, [found["A"].nnz]), strict=True):
        matrix.data = own
    if bias:
        column = scipy.sparse.csr_array((len(labels) + np.arange(shapes["A"][0]))[:, None])
        found["B"] = scipy.sparse.csr_array(scipy.sparse.hstack([found["B"], column]))
    return found, len(labels)
