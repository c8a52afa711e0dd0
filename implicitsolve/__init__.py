"""Newton–Krylov solvers for nonlinear systems, one or a batch."""
from implicitsolve.krylov import FGMRES, GMRES, LGMRES, BiCGSTAB, ScipyKrylov
from implicitsolve.newton import NewtonKrylov, EisenstatWalker
from implicitsolve.operators import LinearOperator, aslinearoperator
from implicitsolve.problem import Problem
from implicitsolve.status import Status
from implicitsolve.errors import NoConvergence
from implicitsolve.stopping import LinearStop, NonlinearStop

__version__ = "0.1.0"
