"""What every public function does with the arrays of each library: the tests enforce it, and the docs show it."""

from dataclasses import dataclass, replace
from typing import TypeAlias

from implicitsolve.errors import BackendUnavailable


@dataclass(frozen=True)
class Refuses:
    """The function raises at once."""

    error: type[Exception]
    words: str  # in its message
    instead: str  # what to take


KERNELS, YES, NONE = "kernels", "yes", "–"
Cell: TypeAlias = "str | Refuses"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One function: a cell for each library, and for complex numbers on NumPy arrays."""

    numpy: Cell = YES
    numba: Cell = YES
    cupy: Cell = KERNELS
    torch: Cell = YES
    bridge: str = NONE  # what of implicitsolve.torch does the same with gradients
    complex: Cell = YES


REAL = Refuses(TypeError, "float32 or float64", "layers are real: use float32 or float64")
HOST = Refuses(TypeError, "NumPy arrays", "SciPy works on NumPy arrays: use `GMRES`, `LGMRES` or `BiCGSTAB`")
LOOP = Refuses(TypeError, "`root` takes", "a compiled loop on the CPU: use `root`")
NUMBA = Refuses(BackendUnavailable, "implicitsolve[numba]", "install Numba: `pip install 'implicitsolve[numba]'`")
ON_HOST = Refuses(TypeError, "on NumPy arrays", "steps and factors are made on the host: pass real NumPy arrays")

TRACED = Refuses(TypeError, "a NumPy array", "functions of NumPy are traced: pass NumPy arrays")

PLAIN = Row(cupy=YES)
LAYER = Row(numba=KERNELS, complex=REAL)
LIFTED = Row(cupy=YES, complex=REAL)
DRAWN = Row(cupy=YES, complex=REAL)
METHOD, ADJOINT = "`solve(method=...)`", "`solve(adjoint_method=...)`"

TABLE: dict[str, dict[str, Row]] = {
    "Solving and differentiating": {
        "root": Row(numba=KERNELS, bridge="`solve`"),
        "plan": Row(cupy=YES),
        "newton_krylov": Row(bridge="`solve`"),
        "linear_solve": Row(numba=KERNELS),
        "pull_back": Row(numba=KERNELS, bridge="`backward`"),
        "push_forward": Row(numba=KERNELS, bridge="forward mode"),
        "jacobian": Row(cupy=YES),
        "detect_structure": Row(cupy=YES),
        "trace": Row(cupy=TRACED, torch=TRACED),
        "derivatives.jacobian_penalty": Row(bridge="`jacobian_penalty`"),
        "continuation": Row(cupy=ON_HOST, torch=ON_HOST, complex=ON_HOST),
        "branches.further_solutions": Row(cupy=ON_HOST, torch=ON_HOST, complex=ON_HOST),
        "elimination.even_odd": Row(numba=KERNELS, complex=REAL),
        "elimination.expand": Row(numba=KERNELS, complex=REAL),
        "drivers.Nested": Row(cupy=ON_HOST, torch=ON_HOST),
        "drivers.race": Row(numba=KERNELS),
        "drivers.solve_stream": Row(numba=KERNELS),
        "drivers.stream_gradients": Row(numba=KERNELS),
        "drivers.solve_sequences": Row(complex=REAL),
        "drivers.solve_batch": Row(numba=KERNELS),
        "drivers.checkpointed": Row(numba=KERNELS),
        "newton_batch": Row(numpy=NUMBA, numba=KERNELS, cupy=LOOP, torch=LOOP),
    },
    "Nonlinear methods and their parts": {
        "NewtonKrylov": Row(bridge=METHOD),
        "BlockNewton": Row(numba=KERNELS, bridge=METHOD),
        "SparseNewton": Row(bridge=METHOD),
        "Anderson": Row(bridge=METHOD),
        "Picard": Row(bridge=METHOD),
        "Broyden": Row(bridge=METHOD),
        "Homotopy": Row(bridge=METHOD),
        "Preconditioned": Row(bridge=METHOD),
        "PseudoTransient": Row(numba=KERNELS, bridge=METHOD),
        "CausalNewton": Row(numba=KERNELS, complex=REAL, bridge="`DiagonalGRU`"),
        "Substitution": Row(numba=KERNELS, complex=REAL, bridge="`Elman`"),
        "Backtracking": Row(bridge=METHOD),
        "Dogleg": Row(bridge=METHOD),
        "FullStep": Row(bridge=METHOD),
        "Wolfe": Row(bridge=METHOD),
        "EisenstatWalker": Row(bridge=METHOD),
        "ConstantForcing": Row(bridge=METHOD),
        "Lagged": Row(numba=KERNELS, bridge=METHOD),
        "TruncatedInverse": Row(bridge=METHOD),
    },
    "Linear methods, operators and preconditioners": {
        "GMRES": Row(bridge=ADJOINT),
        "LGMRES": Row(bridge=ADJOINT),
        "BiCGSTAB": Row(bridge=ADJOINT),
        "ScipyKrylov": Row(cupy=HOST, torch=HOST, bridge=ADJOINT),
        "BlockLU": Row(numba=KERNELS, bridge=ADJOINT),
        "CyclicReduction": Row(bridge=ADJOINT),
        "SparseLU": Row(bridge=METHOD),
        "LinearOperator": Row(cupy=YES),
        "BlockBandedMatrix": Row(cupy=YES),
        "aslinearoperator": PLAIN,
        "precondition.BlockJacobi": Row(bridge=METHOD),
        "precondition.Neumann": Row(bridge=METHOD),
        "precondition.BlockGaussSeidel": Row(bridge=METHOD),
        "precondition.BlockILU": Row(numba=KERNELS, bridge=METHOD),
        "precondition.ILU": Row(bridge=METHOD),
        "precondition.AMG": Row(bridge=METHOD),
    },
    "Diagnostics": {
        "testing.check_derivatives": Row(),
        "diagnostics.condition": Row(),
        "diagnostics.contraction": Row(cupy=YES),
        "diagnostics.spectrum": Row(cupy=YES),
        "diagnostics.explain": Row(),
    },
    "Layers": {
        "adapters.implicit_gru": replace(LAYER, bridge="`ImplicitGRU`"),
        "adapters.stencil_gru": replace(LAYER, bridge="`StencilGRU`"),
        "adapters.implicit_rnn": replace(LAYER, bridge="`ImplicitRNN`"),
        "adapters.implicit_lstm": replace(LAYER, bridge="`ImplicitLSTM`"),
        "adapters.elman": replace(LAYER, bridge="`Elman`"),
        "adapters.diagonal_gru": replace(LAYER, numba=YES, bridge="`DiagonalGRU`"),
        "adapters.diagonal_lstm": replace(LAYER, numba=YES, bridge="`DiagonalLSTM`"),
        "adapters.lifted_net": Row(complex=REAL, bridge="`LiftedNet`"),
        "adapters.initial_guess": LAYER,
        "adapters.gru_switch": LAYER,
        "adapters.approximate_fixed_point": replace(LAYER, bridge="`Elman(rho=...)`"),
        "adapters.lifted_feedforward": LIFTED,
        "adapters.lifted_rnn": LIFTED,
        "adapters.lifted_birnn": LIFTED,
        "adapters.lifted_inputs": PLAIN,
        "adapters.lifted_outputs": PLAIN,
        "adapters.well_posedness": LIFTED,
        "adapters.project_well_posed": replace(LIFTED, bridge="`LiftedNet.project`"),
        **{
            f"adapters.{name}_parameters": DRAWN
            for name in ("gru", "stencil_gru", "rnn", "lstm", "elman", "diagonal_gru", "diagonal_lstm")
        },
    },
    "Checks": {
        "testing.dense": PLAIN,
        "testing.dot_test": Row(cupy=YES),
        "testing.taylor_test": Row(),
        "testing.structure_test": Row(),
    },
}
ROWS = {name: row for rows in TABLE.values() for name, row in rows.items()}

# Public names without a row: settings, results and exceptions, which hold whatever arrays they are given, and what
# makes or moves arrays.
DATA = {
    "AccuracyWarning",
    "AdjointResult",
    "drivers.BatchResult",
    "BlockBanded",
    "Branch",
    "branches.SpecialPoint",
    "diagnostics.Condition",
    "diagnostics.Contraction",
    "Counts",
    "Detection",
    "elimination.Coupling",
    "diagnostics.Explanation",
    "direct.DirectMethod",
    "direct.Factored",
    "direct.Factorization",
    "direct.solve_factored",  # for authors of a method: what the rows of the factorizations run
    "diagnostics.Finding",
    "Grid",
    "elimination.Half",
    "elimination.Halves",
    "derivatives.JacobianPenalty",
    "LinearResult",
    "LinearStop",
    "load",  # a file
    "drivers.LostChunk",
    "NewtonStep",
    "NoConvergence",
    "NonlinearResult",
    "NonlinearStop",
    "Problem",
    "drivers.RaceResult",
    "drivers.Solved",
    "drivers.StreamGradients",
    "diagnostics.Spectrum",
    "diagnostics.plot_convergence",
    "diagnostics.plot_jacobian",
    "diagnostics.plot_spectrum",
    "diagnostics.plot_structure",
    "diagnostics.report",
    "Sparse",
    "Status",
    "TangentResult",
    "adapters.ApproximateFixedPoint",
    "adapters.ApproximateGradients",
    "adapters.LiftedMatrices",
    "adapters.WellPosedness",
    "testing.Check",
    "testing.DerivativeReport",
}
