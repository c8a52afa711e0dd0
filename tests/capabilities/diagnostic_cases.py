"""A case for each function that diagnoses a problem or a result: its numbers for the chain."""

import implicitsolve as ims
from tests.capabilities.chain import Chain
from tests.capabilities.libraries import Library
from tests.capabilities.solver_cases import Case, Outcome


def check_derivatives(on: Library) -> Outcome:
    chain = Chain(on)
    yield ims.testing.check_derivatives(chain.problem("jvp", "vjp"), chain.x0 + 0.3).ok


def condition(on: Library) -> Outcome:
    chain = Chain(on)
    yield ims.diagnostics.condition(chain.problem("jvp", "vjp"), chain.x0 + 0.3, system=0).number


def contraction(on: Library) -> Outcome:
    chain = Chain(on)
    yield ims.diagnostics.contraction(chain.problem("jvp", "vjp"), chain.x0 + 0.3, system=0).radius


def spectrum(on: Library) -> Outcome:
    chain = Chain(on)
    yield ims.diagnostics.spectrum(chain.problem("jvp"), chain.x0 + 0.3, system=0).radius


def explain(on: Library) -> Outcome:
    chain = Chain(on)
    problem = chain.problem("jvp")
    result = ims.root(problem, chain.x0, method="newton-krylov", stop=ims.NonlinearStop(max_iterations=1, rtol=on.eps))
    yield len(ims.diagnostics.explain(result, problem).findings) > 0


CASES: dict[str, Case] = {
    "testing.check_derivatives": check_derivatives,
    "diagnostics.condition": condition,
    "diagnostics.contraction": contraction,
    "diagnostics.spectrum": spectrum,
    "diagnostics.explain": explain,
}
