"""Where machine code is kept: by the content of its sources."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numba
import numba.core.config

from implicitsolve.backends.numba import _elimination, _jit

FOLDER = "implicitsolve/backends/numba"


def write(root: Path, changed: str = "") -> Path:
    texts = {
        "_a.py": "from implicitsolve.backends.numba._b import g\n",
        "_b.py": "from implicitsolve.status import Status\n",
        "_c.py": "",
        "../../status.py": "from implicitsolve.errors import Error\n",
        "../../errors.py": "",
    }
    folder = root / FOLDER
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / name).resolve().write_text(text + (f"# {root}" if name == changed else ""))
    return folder / "_a.py"


def digest(root: Path, changed: str = "") -> str:
    return _jit.digest(write(root, changed), root)


def test_content_decides_and_neither_place_nor_time(tmp_path):
    first = digest(tmp_path / "first")
    copy = write(tmp_path / "second")
    os.utime(copy, (0, 0))
    assert _jit.digest(copy, tmp_path / "second") == first


def test_what_is_compiled_in_counts_and_nothing_else(tmp_path):
    first = digest(tmp_path / "first")
    for changed in ("_a.py", "_b.py", "../../status.py"):
        assert digest(tmp_path / Path(changed).stem, changed) != first
    for changed in ("_c.py", "../../errors.py"):
        assert digest(tmp_path / Path(changed).stem, changed) == first


def test_kernels_are_kept_by_content():
    folder = Path(_elimination.factor.stats.cache_path)
    assert folder.name == f"_elimination-{_jit.digest(Path(_elimination.__file__))}"


def test_old_versions_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))
    for age in range(_jit.KEPT):
        old = tmp_path / "implicitsolve" / f"_elimination-{age}"
        old.mkdir(parents=True)
        os.utime(old, (age, age))
    _jit.compiled(_elimination.factor.py_func)
    assert len(list((tmp_path / "implicitsolve").iterdir())) == _jit.KEPT
    assert not (tmp_path / "implicitsolve" / "_elimination-0").exists()


def test_no_folder_to_write_in(tmp_path, monkeypatch):
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(_jit.InUsersFolder, "from_function", classmethod(lambda cls, *args: None))
    (tmp_path / "file").write_text("")
    assert _jit.compiled(lambda x: x + 1)(1) == 2


def test_long_compilation_is_logged_once(caplog):
    compilation = _jit.Compilation()
    with caplog.at_level(logging.WARNING, "implicitsolve"):
        for _ in range(4):
            compilation.add(0.4 * _jit.NOTABLE)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "python -m implicitsolve compile" in caplog.text
    assert compilation.kernels == 4


def test_only_new_compilations_are_counted(monkeypatch, tmp_path):
    monkeypatch.setattr(numba.core.config, "CACHE_DIR", str(tmp_path))  # else an earlier run has left it on disk
    monkeypatch.setattr(_jit, "compilation", counted := _jit.Compilation())
    double = _jit.compiled(lambda x: 2 * x)
    assert [double(1), double(2), double(1.5)] == [2, 4, 3.0]
    assert counted.kernels == 2
    assert counted.seconds > 0


def test_functions_of_kernels_remain_callable_from_elsewhere(monkeypatch, tmp_path):
    monkeypatch.setattr(numba.core.config, "CACHE_DIR", str(tmp_path))

    @_jit.inner
    def largest(x, y):
        return max(x, abs(y))

    kernels = [_jit.compiled(lambda x, y: largest(x, y)), numba.njit(lambda x, y: largest(x, y))]
    assert [kernel(1.0, -2.0) for kernel in kernels] == [2.0, 2.0]
    assert numba.njit(lambda x: abs(x))(-3.0) == 3.0
