"""Which test executes which line, and how long it takes."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import coverage
import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "mutants"
SECONDS = FOLDER / "seconds.json"
CORE_FOLDERS = ("nonlinear", "krylov", "operators", "linearize", "globalize", "direct", "precondition")
TESTS = [*(f"tests/{name}" for name in CORE_FOLDERS), "tests/test_*.py", "implicitsolve"]
NOT_TESTS = [
    "tests/test_layers.py",
    "tests/test_import.py",
    "tests/compat/test_scipy_suite.py",
]  # they run other processes
NOT_TESTS += [f"implicitsolve/{name}" for name in ("torch", "backends", "adapters", "testing")]
OPTIONS = ["-q", "-s", "--tb=no", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:cov", "-o", "timeout=20"]
# Tests of what is declared: they execute few lines of what they test, or those of many files.
DECLARED = ("tests/test_settings.py", "tests/test_documented_numbers.py", "tests/test_methods.py")
CLOSEST = 4  # test files for a change of what runs at import
SLOW = 3.0  # seconds of CPU time; a slower test is not run


class _Mapper:
    """A pytest plug-in that tells coverage which test begins, and notes the CPU time that it takes."""

    def __init__(self, measure: coverage.Coverage) -> None:
        self.measure = measure
        self.seconds = json.loads(SECONDS.read_text()) if SECONDS.exists() else {}
        self.began = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.measure.switch_context(item.nodeid)
        self.began = time.process_time()
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.seconds[report.nodeid] = time.process_time() - self.began


def map_tests(paths: Sequence[str]) -> int:
    """Run tests, all of the core's without `paths`, and keep what they execute; what is known of others stays."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    data = FOLDER / "coverage"
    measure = coverage.Coverage(data_file=data, source_pkgs=["implicitsolve"], config_file=False)
    if data.exists():
        measure.load()
    if not paths:
        paths = [str(path.relative_to(ROOT)) for pattern in TESTS for path in sorted(ROOT.glob(pattern))]
        paths += [f"--ignore={path}" for path in NOT_TESTS]
    mapper = _Mapper(measure)
    measure.start()
    status = pytest.main([*OPTIONS, *paths], plugins=[mapper])
    measure.stop()
    measure.save()
    SECONDS.write_text(json.dumps(mapper.seconds))
    return status


class Tests:
    """The tests that execute given lines of a file, in the order to run them."""

    def __init__(self, budget: float) -> None:
        self.data = coverage.CoverageData(basename=str(FOLDER / "coverage"))
        self.data.read()
        self.seconds = {test: seconds for test, seconds in json.loads(SECONDS.read_text()).items() if seconds < SLOW}
        self.budget = budget
        self.by_file: dict[str, Mapping[int, Sequence[str]]] = {}

    def runs_at_import(self, file: str, lines: tuple[int, int]) -> bool:
        """Whether lines of a function run while the package is loaded, and never again."""
        return {test for line in range(lines[0], lines[1] + 1) for test in self._by_line(file).get(line, ())} == {""}

    def of(self, file: str, lines: tuple[int, int], at_import: bool) -> list[str]:
        """Those of the mirror first, then the quickest; for what runs `at_import`, the file's."""
        by_line = self._by_line(file)
        among = by_line if at_import else range(lines[0], lines[1] + 1)
        tests = {test for line in among for test in by_line.get(line, ())} & self.seconds.keys()
        module = Path(file).relative_to("implicitsolve")
        mirror = (str("tests" / module.with_name(f"test_{module.name.lstrip('_')}")), file)
        if at_import:  # each such mutant loads its tests anew
            count = Counter(test.partition("::")[0] for test in tests)
            mirror += DECLARED
            closest = (*mirror, *(name for name, _ in count.most_common(CLOSEST)))
            tests = {test for test in self.seconds if test.startswith(closest)}
        chosen, left = [], self.budget
        for test in sorted(tests, key=lambda test: (not test.startswith(mirror), self.seconds[test], test)):
            left -= self.seconds[test]
            if left > 0:
                chosen.append(test)
        return chosen

    def _by_line(self, file: str) -> Mapping[int, Sequence[str]]:
        if file not in self.by_file:
            self.by_file[file] = self.data.contexts_by_lineno(str(ROOT / file))
        return self.by_file[file]
