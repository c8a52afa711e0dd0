"""``python -m implicitsolve``: it says what is installed, tries it, and survives what is broken."""

import json
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import implicitsolve
from implicitsolve import __main__ as command
from implicitsolve import _report
from implicitsolve._report import agree, try_part

SECTIONS = ["versions", "platform", "backends", "GPU", "threads"]


def python(*arguments: str, path: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the package, and with the modules in the folder `path`, if any, before all others."""
    folders = [str(path)] if path else []
    folders += [str(Path(implicitsolve.__file__).parent.parent)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders)} | variables
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False)


def test_the_command_reports_and_passes():
    ended = python("-m", "implicitsolve")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    head, _, block = ended.stdout.partition("```text\n")
    assert "paste" in head
    lines = block.splitlines()
    assert lines[-1] == "```"
    assert [line for line in lines[:-1] if not line.startswith(" ")] == [*SECTIONS, "self-test"]
    for text in (implicitsolve.__version__, np.__version__, "OMP_NUM_THREADS", "usable of"):
        assert text in block
    tests = lines[lines.index("self-test") + 1 : -1]
    assert len(tests) >= 6  # one more with JAX
    assert all(line.split()[0] == "ok" for line in tests)
    for private in (str(Path.home()), socket.gethostname()):
        assert f"{private}/" not in block
        assert f" {private} " not in block


def test_json_without_the_report_is_one_object():
    ended = python("-m", "implicitsolve", "--json", "--no-self-test")
    assert ended.returncode == 0
    report = json.loads(ended.stdout)
    assert list(report) == [*SECTIONS, "self-test"]
    assert report["self-test"] == []
    assert report["versions"]["implicitsolve"] == implicitsolve.__version__
    assert report["backends"]["reference"].endswith("kernels")


@pytest.mark.parametrize(("parts", "status"), [({"easy": int}, 0), ({"easy": int, "hard": lambda: int("x")}, 1)])
def test_compile_says_what_it_compiled(parts, status, monkeypatch, capsys):
    pytest.importorskip("numba")
    monkeypatch.setattr(_report, "list_compilations", lambda: parts)
    assert command.main(["compile"]) == status
    logging.getLogger("implicitsolve").disabled = False
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines][:1] == ["easy"]
    assert len(lines) == len(parts)


def test_compile_without_numba(monkeypatch, capsys):
    monkeypatch.setattr(_report, "is_installed", lambda name: False)
    assert command.main(["compile"]) == 0
    logging.getLogger("implicitsolve").disabled = False
    assert "implicitsolve[numba]" in capsys.readouterr().out


def test_a_package_that_cannot_be_imported_is_named_with_the_reason(tmp_path):
    (tmp_path / "matplotlib.py").write_text("raise RuntimeError('built for another\\nNumPy')")
    (tmp_path / "torch.py").write_text(f"raise OSError('no libfoo in {Path.home() / 'secret'}/lib')")
    (tmp_path / "jax.py").write_text("raise ImportError('no jaxlib')")
    ended = python("-m", "implicitsolve", "--json", path=tmp_path)
    report = json.loads(ended.stdout)
    assert report["versions"]["matplotlib"] == "RuntimeError: built for another"
    assert report["versions"]["torch"] == "OSError: no libfoo in .../lib"
    assert "secret" not in ended.stdout
    failed = {check["name"]: check["reason"] for check in report["self-test"] if not check["ok"]}
    assert list(failed) == ["gradients in torch", "gradients in JAX"]
    assert failed["gradients in JAX"] == report["versions"]["jax"] == "ImportError: no jaxlib"
    assert "OSError" in failed["gradients in torch"]
    assert ended.returncode == 1


def test_a_broken_backend_is_reported(tmp_path):
    (tmp_path / "numba.py").write_text("raise ImportError('Numba needs NumPy 1.0 or less')")
    ended = python("-m", "implicitsolve", "--json", "--no-self-test", path=tmp_path)
    report = json.loads(ended.stdout)
    expected = "ImportError: Numba needs NumPy 1.0 or less"
    assert (report["versions"]["numba"], report["backends"]["numba"]) == (expected, expected)
    assert int(report["backends"]["lapack"].split()[0]) >= 1


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of a shell")
@pytest.mark.parametrize("options", [[], pytest.param(["--json"], marks=pytest.mark.slow)])
def test_a_reader_that_has_gone_gets_no_traceback(options):
    command = [sys.executable, "-m", "implicitsolve", "--no-self-test", *options]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_what_is_not_installed_is_no_failure(monkeypatch):
    monkeypatch.setattr(_report, "OPTIONAL", ("a_package_that_nobody_has",))
    assert _report.versions()["a_package_that_nobody_has"] == "not installed"
    monkeypatch.setattr(_report, "is_installed", lambda name: False)
    monkeypatch.setattr(_report, "has_device", lambda: False)
    names = list(_report.list_parts())
    assert len(names) == 5
    assert not any(word in name for word in ("numba", "torch", "JAX", "cupy") for name in names)


def broken():
    raise ValueError("a wrong turn")


def test_one_failing_part_leaves_the_others_and_fails_the_command(monkeypatch, capsys):
    parts = {"first": broken, "second": lambda: agree("x", np.nan, 0.0, 1.0), "third": lambda: None}
    monkeypatch.setattr(_report, "list_parts", lambda: parts)
    monkeypatch.setattr(command, "environment", lambda: {"versions": {"implicitsolve": "0"}})
    assert command.main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-4].split()[0] == lines[-3].split()[0] == "FAILED"
    assert lines[-4].endswith("first: ValueError: a wrong turn")
    assert lines[-3].endswith("second: AssertionError: x differs by nan, at most 1e+00 was expected")
    assert lines[-2].split()[0] == "ok"
    assert command.main(["--json"]) == 1
    monkeypatch.setattr(_report, "list_parts", lambda: {"third": lambda: None})
    assert command.main([]) == 0


def test_newton_krylov_is_really_compared(monkeypatch):
    newton_krylov = implicitsolve.newton_krylov
    monkeypatch.setattr(implicitsolve, "newton_krylov", lambda F, x0, f_tol: newton_krylov(F, x0, f_tol=f_tol) + 1e-9)
    assert not try_part("", _report.check_newton_krylov).ok


def test_gradients_are_really_compared(monkeypatch):
    pull_back = implicitsolve.pull_back
    monkeypatch.setattr(implicitsolve, "pull_back", lambda p, r, c, **options: pull_back(p, r, 1.001 * c, **options))
    assert "the gradient differs" in try_part("", _report.check_layer_gradients).reason


def test_statuses_are_really_compared(monkeypatch):
    root, wrong = implicitsolve.root, implicitsolve.Problem(lambda x: x**2 - 4, batch_ndim=1)
    monkeypatch.setattr(implicitsolve, "root", lambda problem, x0: root(wrong, x0))
    assert "success is" in try_part("", _report.check_batch).reason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cannot open /opt/site packages/x.so", "cannot open .../site packages/x.so"),
        (r"DLL load failed: C:\Users\someone\lib\x.dll", r"DLL load failed: ...\x.dll"),
        ("\n\n  see https://numba.org/doc/a for 1/2\nmore", "see https://numba.org/doc/a for 1/2"),
        (f"{Path.home()}/x.so is not there", "~/x.so is not there"),
        (f"no room in {Path.home()}", "no room in ~"),
        (f"refused by {socket.gethostname()}", "refused by <host>"),
        ("x" * 300, "x" * 200),
    ],
)
def test_messages_are_one_line_without_private_names(text, expected):
    assert _report.anonymize(text) == expected
