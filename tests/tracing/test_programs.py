"""Random programs in NumPy: views, aliases, updates in place, masks, reductions. None has a wrong trace."""

import os
import random
import warnings
from importlib import import_module

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy
from hypothesis import HealthCheck, given, settings

jax = pytest.importorskip("jax")
traced = import_module("implicitsolve.tracing._program")
double_precision = import_module("implicitsolve.tracing._flat").double_precision

N = 6
SPACE = {"np": np, "scipy": scipy, "S": scipy.sparse.eye_array(N, k=1, format="csr"), "__name__": "programs"}
KEYS = "1:4 ::2 ::-1 -1 [0,2] [1,1,0] 0 ... None :,1 1,: ...,0 1::-1 [True,False]*3"
UNARY = "np.sin({a}) np.tanh({a}) -{a} {a}**2 np.abs({a}) {a}.copy() np.cumsum({a}) {a}-{a}.mean() np.sort({a})"
OTHER = """np.pad({a},1) np.pad({a},1,'edge') np.roll({a},1) np.diff({a}) np.clip({a},-0.3,0.4) np.minimum({a},0.2)
np.einsum('i,i->i',{a},{a}) np.interp({a},[-1,0,1],[0.5,-0.2,0.3]) np.convolve({a},[1,2,-1],'same')
np.fft.rfft({a}).imag np.bincount([0,1,1,2,0,1],{a}) np.linalg.solve(np.eye(6)+S.toarray(),{a}) scipy.special.erf({a})
scipy.special.expit({a}) S@{a} {a}@S ({a}*(1+2j)).imag np.abs({a}+0.3j) np.float32(0.5)*{a} np.arange(6)*{a}
{a}.astype(complex).real {a}.max() {a}.prod() np.min({a},axis=0) np.add.reduce({a},axis=-1) np.gradient({a})
np.add.reduceat({a},[0,2]) np.cross({a}[:3],{a}[3:])"""
BINARY = "{a}+{b} {a}*{b} {a}-np.cos({b}) np.where({a}>{b},{a},-{b}) np.maximum({a},{b}) np.hypot({a},1+{b}*{b})"
VIEWS = """{a}.reshape(2,3) {a}.reshape(3,2) {a}.T {a}.ravel() {a}[{k}] {a}.reshape(-1) {a} np.flip({a}) {a}.squeeze()
{a}[{k}][{j}]"""
MADE = """np.zeros(6) np.ones((2,3)) np.zeros_like({a}) np.full(6,0.5) np.array([{a}.sum(),0.5]) np.outer({a},{b})
np.arange(6)"""
UPDATES = """{a} += {b}; {a} *= 0.5; {a}[{k}] = {b}; {a}[{k}] += np.sin({b}); {a}[{k}] = 0.25; {a}[{k}][{j}] -= {b};
{a}[{a} > 0.1] *= -0.5; {a}[{b} > {a}] = 0.3; np.add.at({a}, [0, 1, 1], 0.1); np.multiply({a}, {b}, out={a});
np.copyto({a}, {b}); {a}.fill(0.2); {a}.flat[::2] = 0.1; {a}.T[{k}] += 0.5"""
RETURN = ["out = np.zeros(6)", "for v in ({names}): out[:min(v.size, 6)] += np.ravel(v)[:6]", "return np.tanh(out) + x"]


def program(choose: random.Random) -> str:
    """The source of F: statements that NumPy does at a sample point."""
    lines: list[str] = []
    space = SPACE | {"x": np.linspace(-0.9, 0.8, N)}
    arrays = ["x"]
    for i in range(choose.randint(2, 9)):
        kind = choose.choice([UNARY, OTHER, BINARY, VIEWS, VIEWS, MADE, None, None, None])
        keys = {"k": choose.choice(KEYS.split()), "j": choose.choice(KEYS.split())}
        line = choose.choice(kind.split() if kind else UPDATES.split(";")).strip()
        line = line.format(a=choose.choice(arrays), b=choose.choice(arrays), **keys)
        line = f"v{i} = {line}" if kind else line
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                exec(line, space)
        except (ValueError, IndexError, TypeError, AttributeError, RuntimeError):
            continue
        lines.append(line)
        if kind and isinstance(space[f"v{i}"], np.ndarray):
            arrays.append(f"v{i}")
    lines += [line.format(names=", ".join([*arrays, "x"])) for line in RETURN]
    return "def F(x):\n" + "".join(f"    {line}\n" for line in lines)


def by_jax(program, x, v):
    """F and J v without NumPy's evaluation of the program."""
    with double_precision():
        return tuple(map(np.asarray, jax.jvp(lambda x: program.function(x, {}), (x,), (v,))))


SEEN = {"traced": 0, "refused": 0, "untraceable": 0}


@settings(deadline=None, max_examples=int(os.environ.get("PROGRAMS", "25")), suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_no_program_has_a_wrong_trace(choose):
    source = program(choose)
    exec(source, space := dict(SPACE))
    F = space["F"]
    x0 = np.linspace(-0.9, 0.8, N)
    try:
        made = traced.Program(F, x0, {})
        comparison = traced.Comparison(F, lambda x, v: made.jvp(x, v, {}), None)
        is_right = comparison.holds_anew(x0, comparison.value(x0))
    except traced.UntraceableError:
        SEEN["untraceable"] += 1
        return
    SEEN["traced" if is_right else "refused"] += 1
    if os.environ.get("PROGRAMS"):
        print(SEEN, "" if is_right else source)
    random_points = np.random.default_rng(len(source)).uniform(-2, 2, (3, N))
    for x in random_points if is_right else ():
        value, product = made.jvp(x, x[::-1], {})
        assert np.allclose(F(x.copy()), value, rtol=1e-11, atol=1e-11), source
        assert np.allclose(product, by_jax(made, x, x[::-1])[1], rtol=1e-9, atol=1e-11), source
