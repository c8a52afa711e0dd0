"""Runs mutants, each in a fork of its own, until a test fails."""

from __future__ import annotations

import ast
import gc
import os
import select
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.machinery import SourceFileLoader
from itertools import islice
from types import CodeType, FunctionType

import pytest

from .changes import changes
from .mapping import OPTIONS, ROOT

LIMIT = 300.0  # seconds for one mutant
LOADED_BEFORE = (
    "numpy",
    "scipy.sparse.linalg",
    "scipy.optimize",
    "array_api_strict",
    "hypothesis.extra.numpy",
    "numba",
)


@dataclass
class Mutant:
    """One change of one file, and what became of it."""

    file: str
    index: int  # among all changes of the file
    line: int
    kind: str
    change: str
    in_function: bool
    tests: list[str]
    outcome: str = ""
    killer: str = ""

    def code(self) -> CodeType:
        """The file's code with the change in it."""
        tree = ast.parse((ROOT / self.file).read_text())
        next(islice(changes(tree), self.index, None)).apply()
        return compile(ast.fix_missing_locations(tree), ROOT / self.file, "exec")


def run(mutants: Sequence[Mutant]) -> None:
    """Find out which of them are killed."""
    for module in LOADED_BEFORE:
        import_module(module)
    for mutant in mutants:
        if not mutant.in_function:
            _judge(
                mutant,
                lambda pipe, tests, changed, mutant=mutant: _Loading(pipe, tests).run(mutant if changed else None),
            )
    rest = [mutant for mutant in mutants if mutant.in_function]
    if rest:
        pytest.main([*OPTIONS, *_files(test for mutant in rest for test in mutant.tests)], plugins=[_Exchanging(rest)])


class _Plugin:
    """A pytest plug-in that runs tests in a given order; the first one that fails ends the process."""

    def __init__(self, pipe: int = -1) -> None:
        self.pipe = pipe

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os.write(self.pipe, report.nodeid.encode())
            os._exit(1)

    def run_tests(self, session: pytest.Session, tests: Sequence[str]) -> None:
        items = {item.nodeid: item for item in session.items}
        chosen = [items[test] for test in tests if test in items]
        for item, following in zip(chosen, [*chosen[1:], None]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


class _Exchanging(_Plugin):
    """The package is loaded and the tests are collected once; then living functions get the code of a changed file."""

    def __init__(self, mutants: Sequence[Mutant]) -> None:
        super().__init__()
        self.mutants = mutants

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        functions: dict[str, list[FunctionType]] = defaultdict(list)
        for function in gc.get_objects():
            if isinstance(function, FunctionType):
                functions[function.__code__.co_filename].append(function)
        gc.freeze()  # forks share what is not written to

        def body(pipe: int, tests: Sequence[str], changed: bool, mutant: Mutant) -> None:
            self.pipe = pipe
            codes = dict(_nested(mutant.code())) if changed else {}
            for function in functions[str(ROOT / mutant.file)] if changed else []:
                function.__code__ = codes[function.__code__.co_qualname, function.__code__.co_firstlineno]
            self.run_tests(session, tests)

        for mutant in self.mutants:
            _judge(mutant, partial(body, mutant=mutant))
        return True


class _Loading(_Plugin):
    """The package is not loaded yet: it is imported with the change in it."""

    def __init__(self, pipe: int, tests: Sequence[str]) -> None:
        super().__init__(pipe)
        self.tests = tests

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.run_tests(session, self.tests)
        return True

    def run(self, mutant: Mutant | None) -> None:
        if mutant is not None:
            original, path, changed = SourceFileLoader.get_code, str(ROOT / mutant.file), mutant.code()
            SourceFileLoader.get_code = lambda loader, name: changed if loader.path == path else original(loader, name)
        if pytest.main([*OPTIONS, *_files(self.tests)], plugins=[self]) != pytest.ExitCode.OK:
            os.write(self.pipe, b"collection")


def _files(tests: Iterable[str]) -> list[str]:
    """The files of tests; the package's own last: pytest would load them twice, were they its first to load."""
    return sorted({test.partition("::")[0] for test in tests}, reverse=True)


def _nested(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield (constant.co_qualname, constant.co_firstlineno), constant
            yield from _nested(constant)


def _judge(mutant: Mutant, body: Callable[[int, Sequence[str], bool], None]) -> None:
    """Run the tests with the change; the one that kills it once more without."""
    mutant.killer = _in_fork(lambda pipe: body(pipe, mutant.tests, True)) if mutant.tests else ""
    mutant.outcome = "killed" if mutant.killer else "survived" if mutant.tests else "no test"
    if mutant.killer in mutant.tests and _in_fork(lambda pipe: body(pipe, [mutant.killer], False)):
        mutant.outcome = "doubtful"
    print(f"{mutant.outcome:8} {mutant.file}:{mutant.line}  {mutant.change[:150]}  [{mutant.killer[-80:]}]", flush=True)


def _in_fork(body: Callable[[int], None]) -> str:
    """What `body`, run in a fork, writes into a pipe."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        try:
            body(into)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the fork ends here
            os.write(into, repr(error).encode())
        os._exit(0)
    os.close(into)
    ready, _, _ = select.select([out], [], [], LIMIT)
    written = os.read(out, 10_000).decode() if ready else "no end"
    os.close(out)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    is_crash = os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL
    return "crash" if is_crash and not written else written
