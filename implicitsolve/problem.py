"""Problem: the functions that define a nonlinear system, or a batch of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np

from implicitsolve._arrays.host import to_host
from implicitsolve._arrays.namespace import is_array
from implicitsolve._parameters import bind_parameters
from implicitsolve._summary import Representation
from implicitsolve._typing import Array, CallersArray, Indices, ParameterCotangents, ParameterProduct, Product, Residual
from implicitsolve.errors import ChecksKeywords, require
from implicitsolve.operators import LinearOperator
from implicitsolve.stopping import check_choice, check_flag, check_limit
from implicitsolve.structure import BlockBanded, Grid, Halves, Sparse
from implicitsolve.structure._block_banded import coloring
from implicitsolve.structure._names import labels_of

FUNCTIONS = "jvp", "jvps", "vjp", "jac", "linearize", "blocks", "take", "initial_guess", "substitute"
OF_PARAMETERS = "parameter_jvp", "parameter_vjp"
LARGEST_BLOCK = 64  # unknowns of a block, and products of an assembly, for which direct solves are the first choice


@dataclass(frozen=True, repr=False, eq=False)
class Problem(ChecksKeywords, Representation):
    """A system F(x) = 0, or a batch of independent ones, by the functions that define it.

    Only `residual` is needed. Every other function saves work, or makes further results available.

    Parameters
    ----------
    residual : callable
        ``residual(x)`` returns F(x), an array of the shape of x.
    jvp : callable, optional
        ``jvp(x, v)`` returns J(x) v. Without it products are differences of the residual.
    jvps : callable, optional
        ``jvps(x, V)`` returns J(x) v for each v of V along its first axis, beside `jvp`: one call assembles a J.
    vjp : callable, optional
        ``vjp(x, w)`` returns J(x)^H w, which `pull_back` needs.
    jac : callable, optional
        ``jac(x)`` returns J(x): a `LinearOperator`, SciPy's, an array or a sparse matrix.
    linearize : callable, optional
        ``linearize(x)`` returns ``(F(x), J(x))`` with J as in `jac`: what all products at x share is computed once. It
        is preferred to `jac`, and that to `jvp` and `vjp`.
    jac_approx : matrix, operator, factors or callable, optional
        An approximation of J, for one system: an array, a sparse matrix, an operator with `matvec`, factors with
        `solve` (``splu(A)``, ``lu_factor(A)``), or a function of x that returns any of these. Its inverse corrects F,
        with what the steps teach of J (`Anderson`), then preconditions `NewtonKrylov`, and is dropped where it does not
        help. Suits an F that takes long: each step costs one residual.
    structure : BlockBanded, Sparse, Grid, "detect" or "none", optional
        Where J of one system has entries, in the order of a flattened state. `BlockBanded`: T blocks of k unknowns,
        each coupled to a few neighbors. `Sparse`: any pattern. `Grid`: a stencil on a grid. They give J by coloring, in
        a few products or residuals, and direct solves. "detect": the pattern is sought from the residual before
        anything else. Default None: nothing is known, and method "auto" may detect a pattern; "none" forbids that.
    blocks : callable, optional
        ``blocks(x)`` returns the blocks of J(x), shape ``batch_shape + (T, lower + upper + 1, k, k)``, as
        `BlockBandedMatrix` stores them; needs a `BlockBanded` as `structure`.
    blocks_cost : int, optional
        What a call of `blocks` costs, in products or residuals. Default 1.
    blocks_exact : bool, optional
        Whether `blocks` gives more than differences of the residual. Default True.
    batch_ndim : int, optional
        The first `batch_ndim` axes of x index independent systems. Default 0: one system.
    bounds : tuple of two array_like, or scipy.optimize.Bounds, optional
        ``(lower, upper)``: numbers or arrays that broadcast to x, so that each system of a batch may have its own;
        -inf and inf, or None, where there are none; rounded to the dtype of x0. x0 must lie within them, and no
        function of the problem is ever called outside (`keep_feasible` of SciPy's Bounds is always true). Default None.
        See the notes of `root`.
    x_scale : array_like, "auto" or "log", optional
        Sizes of the unknowns, positive numbers that broadcast to x, rounded to powers of two. The methods work on
        x / x_scale: lengths of differences and of steps, trust regions and Krylov vectors are measured in these units.
        "auto": from the rows and columns of J at x0, which is assembled for it. "log": the logarithms of positive
        unknowns are sought, with errors relative to each; `bounds` are (0, inf) by default. Default None: 1 for all.
    f_scale : array_like or "auto", optional
        Sizes of the equations, positive numbers that broadcast to F: the stopping rule, ||F|| in the line search and
        the linear systems use F / f_scale. "auto": the largest entry of each row of J(x0) diag(x_scale). Default None.
    parameters : mapping of str to Array, array or float, optional
        What the residual depends on in addition to x, by name. F is called as ``F(x, **parameters)`` where it has
        arguments of these names, or as ``F(x, parameters)`` where its second argument has no default; an array or a
        number is the second argument, and has its name. A function F(x) may read them from its scope.
    parameter_jvp : callable, optional
        ``parameter_jvp(x, tangents)`` returns (dF/dtheta) dtheta, shaped like x, for a mapping with some of the names.
    parameter_vjp : callable, optional
        ``parameter_vjp(x, w)`` returns (dF/dtheta)^H w for every parameter, as a dict. If it has an argument named
        `wrt`, it receives there the names of the requested ones, unless all are. Where F takes `parameters`, central
        differences replace these two: two residuals for each direction, or for each number in the parameters.
    derivatives : "trace", optional
        "trace": the products, and derivatives with respect to parameters, that are not given above come from the
        residual itself, a NumPy function that JAX differentiates (extra ``jax``). See `implicitsolve.trace`. One that
        cannot be traced is solved by differences, and the result says why. Default None: differences.
    take : callable, optional
        ``take(indices)`` returns the problem of those systems of the flattened batch (a NumPy array of integers), whose
        batch shape is ``(len(indices),)``. With it systems that have finished cost nothing once they are a quarter of
        those evaluated; without it the whole batch is evaluated to the end. One evaluation compares F of the first
        problem that a solve takes with that of the batch, or in a stream with that of the same systems in another
        order; where they differ, a ValueError is raised. A `pure` problem is not compared.
    initial_guess : callable, optional
        ``initial_guess(kind, rng)`` returns a start; `root` without x0 takes kind "default".
    fixed_point : bool, optional
        Whether the residual is x - G(x), so that G can be iterated. Default False.
    halves : Halves, optional
        The two halves of a system x = F(x) whose blocks couple to their nearest neighbours only: see `even_odd`.
    substitute : callable, optional
        ``substitute()`` returns the solution of a causal system, found block by block in one sweep.
    rejects : exception class or tuple of them, optional
        What `residual` or `linearize` raises outside of its domain, such as ValueError of a property package. A trial
        point at which it does is rejected like one where F is NaN, and the step shortened (all trial points of the
        call, in a batch); `Counts.rejected` counts them. At x0 the exception passes, as others do anywhere. Default:
        none.
    pure : bool, optional
        Whether the functions, and the operators that they return, change none of their arguments and return arrays that
        nothing else refers to. Then no defensive copies are made, and what `take` returns is trusted. Default False;
        the layers of `adapters` are pure.
    name : str, optional
        What traces call it.
    names, equations : sequence of str, or mapping, optional
        What messages, `explain` and `check_derivatives` call the unknowns and the equations of one system, in the order
        of the flattened state: ``["pressure at J-12", ...]``, or by parts ``{"pressure": ["J-1", "J-2"], "flow": 40}``,
        which gives "pressure[J-1]" and "flow[0]". Default: "x[317]", "F[317]".

    Raises
    ------
    TypeError
        If something that must be callable is not, or `structure` is not a structure.
    ValueError
        If `batch_ndim` is negative, `structure` is an unknown string, or `blocks` is given without a `BlockBanded`.

    Examples
    --------
    >>> squares = ims.Problem(lambda x: x**2 - 2, jvp=lambda x, v: 2 * x * v)
    >>> ims.root(squares, np.array([1.0, 3.0])).x
    array([1.41421356, 1.41421356])
    """

    residual: Residual
    jvp: Product | None = field(default=None, kw_only=True)
    jvps: Product | None = field(default=None, kw_only=True)
    vjp: Product | None = field(default=None, kw_only=True)
    jac: Callable[[CallersArray], Any] | None = field(default=None, kw_only=True)
    linearize: Callable[[CallersArray], tuple[CallersArray, LinearOperator]] | None = field(default=None, kw_only=True)
    jac_approx: Any = field(default=None, kw_only=True, repr=False)
    structure: BlockBanded | Sparse | Grid | Literal["detect", "none"] | None = field(default=None, kw_only=True)
    blocks: Residual | None = field(default=None, kw_only=True)
    blocks_cost: int = field(default=1, kw_only=True)
    blocks_exact: bool = field(default=True, kw_only=True)
    batch_ndim: int = field(default=0, kw_only=True)
    bounds: Any = field(default=None, kw_only=True)
    x_scale: Any = field(default=None, kw_only=True)
    f_scale: Any = field(default=None, kw_only=True)
    parameters: CallersArray = field(default=None, kw_only=True, repr=False)
    parameter_jvp: ParameterProduct | None = field(default=None, kw_only=True)
    parameter_vjp: ParameterCotangents | None = field(default=None, kw_only=True)
    derivatives: CallersArray = field(default=None, kw_only=True, repr=False)
    take: Callable[[Indices], Problem] | None = field(default=None, kw_only=True)
    initial_guess: Callable[[str, np.random.Generator | None], Array] | None = field(default=None, kw_only=True)
    fixed_point: bool = field(default=False, kw_only=True)
    halves: Halves | None = field(default=None, kw_only=True, repr=False)
    substitute: Callable[[], Array] | None = field(default=None, kw_only=True)
    rejects: tuple[type[Exception], ...] | type[Exception] = field(default=(), kw_only=True)
    pure: bool = field(default=False, kw_only=True)
    name: str = field(default="", kw_only=True)
    names: Any = field(default=None, kw_only=True, repr=False)
    equations: Any = field(default=None, kw_only=True, repr=False)

    reshapes: ClassVar[bool] = False  # whether F may have any shape with as many entries as x

    def __post_init__(self) -> None:
        """Check what is given, and bring it to one form."""
        if not callable(self.residual):
            raise TypeError(f"Problem: `residual` must be callable, got {type(self.residual).__name__}")
        for name in FUNCTIONS + OF_PARAMETERS:
            function = getattr(self, name)
            if function is not None and not callable(function):
                raise TypeError(f"Problem: `{name}` must be callable or None, got {type(function).__name__}")
        if self.parameters is not None:
            residual, parameters = bind_parameters(self.residual, self.parameters)
            object.__setattr__(self, "residual", residual)
            object.__setattr__(self, "parameters", parameters)
        if self.derivatives is not None and not callable(self.derivatives):
            check_choice("Problem", "derivatives", self.derivatives, ("trace", None))
        check_limit("Problem", "batch_ndim", self.batch_ndim)
        for name in ("blocks_exact", "fixed_point", "pure"):
            if (flag := getattr(self, name)) is not True and flag is not False:
                check_flag("Problem", name, flag)
        _check_jacobian(self)
        for name, check in CHECKS.items():
            if (value := getattr(self, name)) is not getattr(Problem, name):
                object.__setattr__(self, name, check(name, value))

    @property
    def block_structure(self) -> BlockBanded | None:
        """The declared structure, if it is block-banded."""
        return self.structure if isinstance(self.structure, BlockBanded) else None

    @property
    def sparse_structure(self) -> Sparse | Grid | None:
        """The declared structure, if it is a sparse pattern or a stencil."""
        return self.structure if isinstance(self.structure, Sparse | Grid) else None

    @property
    def has_exact_blocks(self) -> bool:
        """Whether `blocks` is there, and gives more than differences of the residual."""
        return self.blocks is not None and self.blocks_exact


def _check_exceptions(name: str, value: Any) -> tuple[type[Exception], ...]:
    found = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in found):
        raise TypeError(f"Problem: `{name}` must be a class of exceptions or a tuple of them, got {value!r}")
    return found


def with_derivatives(problem: Problem, x: Array) -> Problem:
    """The problem with the exact derivatives of its residual for states like x, if that is to be traced."""
    if not isinstance(problem.derivatives, str):
        return problem
    need = "derivatives=\"trace\" needs JAX, which is not installed: pip install 'implicitsolve[jax]'"
    return require("implicitsolve.tracing", need).add_derivatives(problem, x)


def favors_direct(problem: Problem, length: int) -> bool:
    """Whether assembling and factorizing J is the first choice: small blocks, few products."""
    structure: Any = problem.block_structure
    k = structure.block_size
    products = len(coloring(structure, length)) * k if problem.blocks is None else problem.blocks_cost
    return k <= LARGEST_BLOCK and products <= LARGEST_BLOCK


def own_start(caller: str, problem: Problem) -> Array:
    """The problem's own initial guess, where the caller gives no x0."""
    if problem.initial_guess is None:
        raise TypeError(f"{caller}: `x0` is needed, since the problem offers no initial guess")
    return problem.initial_guess("default", None)


def chosen(problem: Problem, indices: Indices, shape: tuple[int, ...]) -> Problem:
    """What the problem's `take` returns, with the bounds and scales of those systems of states of this shape."""
    part: Any = problem.take(indices)  # type: ignore[misc]
    if not isinstance(part, Problem):
        raise TypeError(f"`take` must return a Problem, got {type(part).__name__}")
    if part.batch_ndim != 1:
        raise ValueError(f"`take` must return a Problem with batch_ndim=1, got {part.batch_ndim}")
    names = [name for name in ("bounds", "x_scale", "f_scale") if getattr(problem, name) is not None]
    if not names:
        return part

    def rows(values: Any) -> Any:
        if isinstance(values, str):
            return values
        if isinstance(values, tuple):
            return tuple(rows(side) for side in values)
        return np.broadcast_to(host(values), shape).reshape((-1, *shape[problem.batch_ndim :]))[indices]

    return replace(part, **{name: rows(getattr(problem, name)) for name in names})


def host(values: Any) -> Any:
    """An array of numbers on the host."""
    return np.asarray(to_host(values) if is_array(values) else values)


def spread(name: str, values: Any, shape: tuple[int, ...]) -> Any:
    """Numbers that a problem declares, on the host, in the shape of x0."""
    numbers = host(values)
    try:  # SciPy's `Bounds` makes arrays of shape (1,) from numbers
        return np.broadcast_to(numbers.reshape(()) if numbers.size == 1 else numbers, shape).astype(float)
    except (TypeError, ValueError):
        got = values if numbers.dtype == object else numbers.shape
        raise ValueError(f"`{name}` must broadcast to the shape {shape} of x0, got {got}") from None


def _check_bounds(name: str, bounds: Any) -> tuple[Any, Any]:
    pair = (bounds.lb, bounds.ub) if hasattr(bounds, "lb") and hasattr(bounds, "ub") else bounds
    is_list = isinstance(pair, list | tuple | np.ndarray)
    are_pairs = is_list and all(np.ndim(side) == 1 and len(side) == 2 for side in pair)
    if are_pairs and (not isinstance(pair, tuple) or all(isinstance(side, tuple) for side in pair)):
        way = "tuple(map(list, zip(*bounds))) turns pairs (lower, upper) of each unknown into it"
        raise TypeError(f"Problem: `{name}` must be a tuple (lower, upper) of arrays, got {len(pair)} pairs: {way}")
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise TypeError(f"Problem: `{name}` must be (lower, upper), or a scipy.optimize.Bounds, got {bounds!r}")
    pair = _without_none(pair[0], -np.inf), _without_none(pair[1], np.inf)
    if not any(isinstance(side, Mapping) for side in pair):  # of parts, to be checked as a vector
        _check_order(*(host(side) for side in pair))
    return pair[0], pair[1]


def _check_order(lower: Any, upper: Any) -> None:
    if lower.dtype.kind not in "iuf" or upper.dtype.kind not in "iuf":
        raise TypeError(f"Problem: `bounds` must be real numbers, got {lower.dtype} and {upper.dtype}")
    try:
        is_less = lower < upper
    except ValueError:
        message = "Problem: the lower and the upper `bounds` must broadcast against each other"
        raise ValueError(f"{message}, got shapes {lower.shape} and {upper.shape}") from None
    if not is_less.all():
        first = np.flatnonzero(~is_less)[0]
        low, high = (np.broadcast_to(side, is_less.shape).reshape(-1)[first] for side in (lower, upper))
        raise ValueError(f"Problem: `bounds` must have lower < upper everywhere, got {low:g} and {high:g}")


def _without_none(side: Any, infinite: float) -> Any:
    """Bounds with an infinite one for each None."""
    if isinstance(side, list | tuple):
        return [_without_none(value, infinite) for value in side]
    return infinite if side is None else side


def _check_scale(name: str, scale: Any) -> Any:
    """What is "auto" or positive numbers, or for x "log"."""
    is_known = isinstance(scale, str) and scale in ("auto", *(["log"] if name == "x_scale" else []))
    if is_known or isinstance(scale, Mapping):
        return scale
    values = host(scale)
    if values.dtype.kind not in "iuf":
        raise TypeError(f'Problem: `{name}` must be positive numbers or "auto", got {scale!r}')
    if not (np.isfinite(values) & (values > 0)).all():
        raise ValueError(f"Problem: `{name}` must be positive and finite, got {scale!r}")
    return scale


CHECKS: dict[str, Callable[[str, Any], Any]] = {"bounds": _check_bounds, "rejects": _check_exceptions}
CHECKS |= {"names": labels_of, "equations": labels_of, "x_scale": _check_scale, "f_scale": _check_scale}


def _check_jacobian(problem: Problem) -> None:
    structure = problem.structure
    if isinstance(structure, str):
        if structure not in ("detect", "none"):
            raise ValueError(f'Problem: `structure` as a string must be "detect" or "none", got {structure!r}')
    elif not isinstance(structure, BlockBanded | Sparse | Grid | None):
        raise TypeError(
            'Problem: `structure` must be a BlockBanded, Sparse, Grid, "detect", "none" or None, '
            f"got {type(structure).__name__}{': Sparse(matrix)' * hasattr(structure, 'tocsr')}"
        )
    if not isinstance(problem.halves, Halves | None):
        raise TypeError(f"Problem: `halves` must be a Halves or None, got {type(problem.halves).__name__}")
    if problem.blocks is not None:
        check_limit("Problem", "blocks_cost", problem.blocks_cost)
        if problem.block_structure is None:
            raise ValueError("Problem: `blocks` needs `structure`, a BlockBanded with the positions of the blocks")
    if problem.jac_approx is not None and problem.batch_ndim:
        raise ValueError("Problem: `jac_approx` is for one system, not for a batch: leave out `batch_ndim`")
