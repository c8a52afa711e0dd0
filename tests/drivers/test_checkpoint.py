"""`checkpointed`: a run that goes on from its file ends where an uninterrupted one ends, bit by bit."""

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import implicitsolve as ims
from implicitsolve import Status

FIELDS = "x", "fun", "status", "residual_norm", "initial_norm", "iterations", "krylov_iterations"
TIGHT = ims.NonlinearStop(rtol=1e-12)


class Died(Exception):  # noqa: N818
    """The end of a process, in a test."""


def dies_at(step):
    """A monitor that ends the solve at a step."""

    def monitor(seen, x, F):
        if seen.iteration == step:
            raise Died

    return monitor


def bratu(size=30):
    def residual(u):
        p = np.pad(u, 1)
        return p[2:] - 2 * u + p[:-2] + 3 * np.exp(u) / (size + 1) ** 2

    return ims.Problem(residual, structure="none")  # legs detect no sparsity


def cubes(c, *, take=True):
    return ims.Problem(
        lambda x: x**3 - c,
        jvp=lambda x, v: 3 * x**2 * v,
        batch_ndim=1,
        take=(lambda rows: cubes(c[rows])) if take else None,
    )


def agree(first, second):
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)
    assert type(first.x) is type(second.x)


def layer(kind, rng):
    adapters, inputs = ims.adapters, rng.standard_normal((3, 5, 2))
    if kind == "gru":
        return adapters.implicit_gru(adapters.gru_parameters(2, 4, scale=1.0, rng=rng), inputs, lengths=[5, 1, 3])
    if kind == "lstm":
        return adapters.implicit_lstm(adapters.lstm_parameters(2, 4, scale=1.0, rng=rng), inputs)
    return adapters.implicit_rnn(adapters.rnn_parameters(2, 4, scale=0.3, rng=rng), inputs)


@given(every=st.integers(1, 4), step=st.integers(1, 12), dtype=st.sampled_from(["float32", "float64", "complex128"]))
def test_properties_a_run_that_died_ends_where_another_ends(tmp_path_factory, every, step, dtype):
    folder = tmp_path_factory.mktemp("legs")
    c = np.asarray([[2.0, 3.0], [1e6, -4.0], [1e-3, 0.5]], dtype=dtype)
    x0 = np.full((3, 2), 20.0, dtype=dtype)
    stop = ims.NonlinearStop(rtol=1e-5)
    whole = ims.drivers.checkpointed(cubes(c), x0, folder / "whole", every=every, stop=stop)
    try:
        ims.drivers.checkpointed(cubes(c), x0, folder / "died", every=every, stop=stop, monitor=dies_at(step))
    except Died:
        assert (folder / "died").exists() == (step > every)
    agree(ims.drivers.checkpointed(cubes(c), x0, folder / "died", every=every, stop=stop), whole)


@pytest.mark.parametrize("method", ["auto", "newton-krylov", "block-newton", "anderson"])
@pytest.mark.parametrize("kind", ["gru", "lstm", "rnn"])
def test_layers_go_on_bitwise(tmp_path, rng, kind, method):
    problem = layer(kind, rng)
    options = {"every": 2, "method": method, "stop": TIGHT}
    whole = ims.drivers.checkpointed(problem, None, tmp_path / "whole", **options)
    with pytest.raises(Died):
        ims.drivers.checkpointed(problem, None, tmp_path / "died", **options, monitor=dies_at(3))
    fresh = pickle.loads(pickle.dumps(problem))  # as another process would have it
    agree(ims.drivers.checkpointed(fresh, None, tmp_path / "died", **options), whole)
    assert whole.success.all()


def test_a_killed_process_is_gone_on_from(tmp_path):
    script = tmp_path / "solve.py"
    script.write_text(
        "import os, sys, numpy as np, implicitsolve as ims\n"
        "from tests.drivers.worker_problems import die\n"
        "def monitor(step, x, F):\n"
        "    if step.iteration == 3 and sys.argv[1] == 'die':\n"
        "        die()\n"
        "def residual(x):\n"
        "    return x**3 - np.arange(1.0, 5.0)\n"
        "file = os.path.join(os.path.dirname(__file__), 'file')\n"
        "result = ims.drivers.checkpointed(residual, np.full(4, 50.0), file, every=2, monitor=monitor)\n"
        "print(result.x.tobytes().hex(), result.steps[0].iteration)\n"
    )

    def run(*arguments):
        return subprocess.run(
            [sys.executable, str(script), *arguments],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    assert run("die").returncode
    on = run("live").stdout.split()
    (tmp_path / "file").unlink()
    assert on[1] == "2"
    assert on[0] == run("live").stdout.split()[0]


def test_one_long_leg_is_root(tmp_path):
    whole = ims.root(bratu(), np.zeros(30), stop=TIGHT)
    result = ims.drivers.checkpointed(bratu(), np.zeros(30), tmp_path / "file", every=100, stop=TIGHT)
    assert result.status == whole.status
    np.testing.assert_allclose(result.x, whole.x, rtol=1e-10)  # norms of a leg are summed in another order
    assert result.counts == whole.counts
    assert len(result.steps) == len(whole.steps)


def test_the_tolerance_refers_to_the_first_start(tmp_path):
    stop = ims.NonlinearStop(rtol=1e-8)
    result = ims.drivers.checkpointed(lambda x: x**3 - 8, np.full(1, 1e6), tmp_path / "file", every=3, stop=stop)
    assert result.success
    assert result.initial_norm == 1e18 - 8
    assert 1e-8 < result.residual_norm <= 1e10  # far from what 1e-8 of a later leg's norm would be


def test_a_solve_that_has_ended_is_not_repeated(tmp_path):
    calls = []

    def residual(x):
        calls.append(1)
        return x**3 - 8

    first = ims.drivers.checkpointed(residual, np.full(2, 3.0), tmp_path / "file")
    before = len(calls)
    second = ims.drivers.checkpointed(residual, np.full(2, 3.0), tmp_path / "file")
    agree(first, second)
    assert len(calls) - before == 2
    assert second.counts.residuals == first.counts.residuals + 2
    assert second.steps == ()


def test_a_higher_limit_goes_on(tmp_path):
    def solve(limit):
        stop = ims.NonlinearStop(rtol=1e-12, max_iterations=limit)
        return ims.drivers.checkpointed(lambda x: x**3 - 8, np.full(1, 1e3), tmp_path / "file", every=4, stop=stop)

    assert solve(6).status is Status.ITERATION_LIMIT
    assert solve(6).iterations == 6
    last = solve(50)
    assert last.status is Status.CONVERGED
    assert 6 < last.iterations <= 50


@pytest.mark.parametrize("take", [True, False])
def test_systems_that_have_ended_stay_as_they_are(tmp_path, take):
    c = np.asarray([[8.0], [1e9], [27.0]])
    x0 = np.asarray([[2.0], [1.0], [1e4]])  # solved at the start; many steps; some
    seen = []

    def monitor(step, x, F):
        seen.append((step.iteration, step.systems.tolist(), x.copy()))

    result = ims.drivers.checkpointed(cubes(c, take=take), x0, tmp_path / "file", every=2, stop=TIGHT, monitor=monitor)
    assert result.success.all()
    assert result.iterations[0] == 0
    iterations = [iteration for iteration, _, _ in seen]
    assert iterations == sorted(set(iterations))
    assert iterations[0] == 0
    for _, systems, x in seen[1:]:
        assert x.shape == (3, 1)
        assert 0 not in systems
        assert x[0, 0] == 2.0
    assert [step.iteration for step in result.steps] == iterations


def test_systems_that_fail_keep_their_status(tmp_path):
    def squares(c):
        return ims.Problem(lambda x: x**2 - c, batch_ndim=1, take=lambda rows: squares(c[rows]))

    c = np.asarray([[4.0], [np.nan], [1e8]])
    result = ims.drivers.checkpointed(squares(c), np.ones((3, 1)), tmp_path / "file", every=2)
    np.testing.assert_array_equal(result.status, [Status.CONVERGED, Status.NONFINITE, Status.CONVERGED])
    agree(ims.drivers.checkpointed(squares(c), np.ones((3, 1)), tmp_path / "file", every=2), result)


def test_libraries_and_dtypes_come_back(tmp_path, xp, dtype):
    x0 = xp.full((2, 2), 30.0, dtype=dtype)
    stop = ims.NonlinearStop(rtol=1e-6)
    problem = ims.Problem(lambda x: x**3 - 8)
    with pytest.raises(Died):
        ims.drivers.checkpointed(problem, x0, tmp_path / "file", every=1, stop=stop, monitor=dies_at(3))
    result = ims.drivers.checkpointed(problem, x0, tmp_path / "file", every=1, stop=stop)
    assert type(result.x) is type(x0)
    assert result.x.dtype == dtype
    assert result.success


def test_a_write_that_fails_leaves_the_last_file(tmp_path, monkeypatch):
    def solve(**options):
        return ims.drivers.checkpointed(lambda x: x**3 - 8, np.full(1, 1e3), tmp_path / "file", every=2, **options)

    with pytest.raises(Died):
        solve(monitor=dies_at(5))
    before, write = (tmp_path / "file").read_bytes(), np.savez

    def full(file, **arrays):
        file.write(b"begun")
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="no space"):
        solve()
    assert (tmp_path / "file").read_bytes() == before
    monkeypatch.setattr(np, "savez", write)
    assert solve().success


CHANGES = {
    "every": ({"every": 3}, "`every` was 2 and is 3"),
    "method": ({"method": ims.NewtonKrylov(max_krylov=7)}, "`method` was .*max_krylov=None.* and is .*max_krylov=7"),
    "stop": ({"stop": ims.NonlinearStop(atol=1.0)}, "`stop` was .*atol=0.0.* and is .*atol=1.0"),
    "shape": ({"x0": np.full(3, 1e3)}, r"`shape` was \(2,\) and is \(3,\)"),
    "dtype": ({"x0": np.full(2, 1e3, dtype=np.float32)}, "`dtype` was float64 and is float32"),
    "start": ({"x0": np.full(2, 1e4)}, "`x0` was float64"),
    "batch": ({"batch_ndim": 1}, "`batch_ndim` was 0 and is 1"),
    "parameters": ({"parameters": {"c": np.asarray(9.0)}}, "`parameters` was .* and is"),
    "scale of F": ({"f_scale": 1e9}, "`f_scale` was None and is 1000000000.0"),
    "bounds": ({"bounds": (3.0, 2e3)}, r"`bounds` was None and is \[3.0, 2000.0\]"),
    "norm": ({"stop": ims.NonlinearStop(norm=lambda F: 1e-9 * np.abs(F).max())}, r"`stop` was .*'max'.* and is"),
    "jvp": ({"jvp": lambda x, v: 3 * x**2 * v}, "`jvp` was None and is .*<lambda>"),
    "residual": ({"residual": lambda x: x**3 - 9}, r"is from a different problem: max\|F\(x\)\| was .* and is"),
}


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
def test_a_file_of_another_solve_says_what_differs(tmp_path, change, message):
    problem = ims.Problem(lambda x: x**3 - 8, parameters={"c": np.asarray(8.0)})
    arguments = {"x0": np.full(2, 1e3), "every": 2, "method": ims.NewtonKrylov(), "stop": ims.NonlinearStop()}
    x0 = arguments.pop("x0")
    ims.drivers.checkpointed(problem, x0, tmp_path / "file", **arguments)
    parts = {name: change[name] for name in change if hasattr(problem, name)}
    options = arguments | {name: change[name] for name in arguments if name in change}
    with pytest.raises(ValueError, match=message):
        ims.drivers.checkpointed(replace(problem, **parts), change.get("x0", x0), tmp_path / "file", **options)


@given(seed=st.integers(0, 10**6))
def test_properties_a_damaged_file_is_refused_and_left_alone(tmp_path_factory, seed):
    rng, path = np.random.default_rng(seed), tmp_path_factory.mktemp("damaged") / "file"
    whole = ims.drivers.checkpointed(lambda x: x**3 - 8, np.ones(2), path)
    good = path.read_bytes()
    content = bytearray(good)
    for place in rng.integers(len(content), size=rng.integers(4)):
        content[place] = rng.integers(256)
    content = bytes(content[: rng.integers(len(content)) if rng.random() < 0.5 else None])
    path.write_bytes(content)
    message = ""
    try:
        agree(ims.drivers.checkpointed(lambda x: x**3 - 8, np.ones(2), path), whole)
    except ValueError as error:
        message = str(error)
    assert not message or "is not a checkpoint" in message or "is from a different solve" in message
    assert path.read_bytes() == content


def test_the_norm_was_compared_by_its_name(tmp_path):
    """What a function measures shows in what it makes of F, not in its name or its code."""
    weight = [1e-9]

    def solve(factor):
        weight[0] = factor
        stop = ims.NonlinearStop(atol=1e-3, norm=lambda F: float(weight[0] * np.abs(F).max()))
        return ims.drivers.checkpointed(lambda x: x**3 - 8, np.full(2, 100.0), tmp_path / "file", stop=stop)

    assert solve(1e-9).success
    with pytest.raises(ValueError, match="another `norm`"):
        solve(1.0)


def test_two_solves_at_one_path_have_their_own_unfinished_files(tmp_path, monkeypatch):
    seen = []
    replaced = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, other: (seen.append(self), replaced(self, other))[1])
    for start in (2.0, 3.0):
        (tmp_path / "file").unlink(missing_ok=True)
        ims.drivers.checkpointed(lambda x: x**3 - 8, np.full(2, start), tmp_path / "file")
    assert len(set(seen)) == len(seen) >= 2
    assert [part.name for part in tmp_path.iterdir()] == ["file"]


BAD = {
    "every": ({"every": 0}, ValueError, "`every` must be at least 1, got 0"),
    "path": ({"path": 3}, TypeError, "`path` must be the name of a file, got 3"),
    "no-path": ({"path": ""}, TypeError, "`path` must be the name of a file, got ''"),
    "folder": ({"path": "/no/such/folder/file"}, ValueError, "in a folder that exists"),
    "homotopy": ({"method": "homotopy"}, ValueError, "a Homotopy follows one path"),
    "method": ({"method": "best"}, ValueError, "checkpointed: `method`"),
    "start": ({"x0": None}, TypeError, "`x0` is needed"),
}


@pytest.mark.parametrize(("change", "error", "message"), BAD.values(), ids=BAD)
def test_bad_arguments_are_named(tmp_path, change, error, message):
    arguments = {"x0": np.ones(2), "path": tmp_path / "file", **change}
    with pytest.raises(error, match=message):
        ims.drivers.checkpointed(np.cos, arguments.pop("x0"), arguments.pop("path"), **arguments)
