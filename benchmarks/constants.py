"""What each stage and each numeric constant of the methods is worth: solves with one switched off, halved and doubled.

Every number at the top of a module of `krylov`, `globalize`, `linearize`, `nonlinear`, `precondition`, `problem` and
`stopping` is halved and doubled alone, in its module, in classes of it, and wherever it is imported. Those solves of
`sets` are repeated in which a function runs that reads it; counted are solved systems and evaluations.

A stage of a plan is switched off for each system; counted are solved systems and evaluations, set by set.

Usage::

    python -m benchmarks.constants --stages         # minutes: what each stage earns
    python -m benchmarks.constants                  # half an hour: what each constant is worth
    python -m benchmarks.constants --only krylov    # of these alone; the others keep their counts
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import io
import itertools
import json
import pkgutil
import sys
import tokenize
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
from scipy.special import ndtr

import implicitsolve as ims
from benchmarks.benchmarks.problems.scalable import scalable_cases
from benchmarks.robustness import sets as robustness_sets
from benchmarks.rootless_systems import Case, hopeless_cases, layer_cases, solvable_cases
from benchmarks.sparse_problems.coupled import coupled_problems
from benchmarks.structure import is_number
from implicitsolve.adapters import gru_parameters, implicit_gru
from implicitsolve.nonlinear import _plan
from tests.helpers.equilibria import equilibria
from tests.helpers.kinked import kinked_systems
from tests.helpers.physical import RATES, collocation, paths, stirred_reactors
from tests.helpers.units import flow_with_concentration

FOLDERS = ("globalize", "krylov", "linearize", "nonlinear", "precondition", "problem", "stopping")
FACTORS = (0.5, 2.0)
LARGEST = 400  # unknowns of systems without roots
MOST = 3000  # evaluations of one solve


@dataclass
class Constant:
    """A number at the top of a module, or one of several that are assigned together."""

    module: str
    name: str
    value: float
    meaning: str
    solves: int = 0  # that read it
    found: dict[str, tuple[int, int]] = field(default_factory=dict)  # by factor: more evaluations, and systems solved

    @contextmanager
    def times(self, factor: float) -> Iterator[None]:
        """Vary it, in its module and in those that import it."""
        value = self.value * factor
        changed = max(1, round(value)) if isinstance(self.value, int) else value
        users = self.users
        for user in users:
            setattr(user, self.name, changed)
        try:
            yield
        finally:
            for user in users:
                setattr(user, self.name, self.value)

    @property
    def users(self) -> list[Any]:
        """The modules, and classes in them, that have it."""
        modules = [sys.modules[name] for name in [self.module, *_importers(self.module, self.name)]]
        classes = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
        return [*modules, *(kind for kind in classes if vars(kind).get(self.name) is self.value)]

    def is_read_by(self, codes: set[CodeType]) -> bool:
        """Whether one of these functions reads it."""
        files = {
            sys.modules[user.__module__ if isinstance(user, type) else user.__name__].__file__ for user in self.users
        }
        has_class = any(isinstance(user, type) for user in self.users)
        return any(self.name in code.co_names and (has_class or code.co_filename in files) for code in codes)


def _modules() -> list[str]:
    return [info.name for info in pkgutil.walk_packages(ims.__path__, "implicitsolve.") if info.name in sys.modules]


def _source(module: str) -> str:
    path = sys.modules[module].__file__
    return Path(str(path)).read_text(encoding="utf-8")


@cache
def _imports() -> list[tuple[str, ast.ImportFrom]]:
    """Each statement that imports names, with the module that it is in."""
    return [
        (module, node)
        for module in _modules()
        for node in ast.walk(ast.parse(_source(module)))
        if isinstance(node, ast.ImportFrom)
    ]


def _importers(module: str, name: str) -> list[str]:
    """The modules that import a constant by its name."""
    return [
        other for other, node in _imports() if node.module == module and name in [alias.name for alias in node.names]
    ]


def constants(only: str | None = None) -> list[Constant]:
    """The constants of the methods, with the comments beside them."""
    found: list[Constant] = []
    for folder in FOLDERS:
        for module in (m for m in _modules() if m.split(".")[1] == folder):
            text = _source(module)
            comments = {
                token.start[0]: token.string.lstrip("# ")
                for token in tokenize.generate_tokens(io.StringIO(text).readline)
                if token.type == tokenize.COMMENT
            }
            for node in ast.parse(text).body:
                if isinstance(node, ast.Assign) and is_number(node.value):
                    targets = [n for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)]
                    for target in targets:
                        value = getattr(importlib.import_module(module), target.id)
                        is_sought = only is None or only in f"{module}.{target.id}"
                        if is_sought and isinstance(value, int | float):
                            found.append(Constant(module, target.id, value, comments.get(node.lineno, "")))
    return found


def layers() -> Iterator[Callable[[], Any]]:
    """Implicit GRUs with recurrent weights of several sizes, by "auto"."""
    rng = np.random.default_rng(0)
    for size in (4, 24):
        params, inputs = gru_parameters(size, size, rng=rng), rng.standard_normal((3, 20, size))
        for weight in (1, 2, 4):
            scaled = {name: weight * value if name[0] == "U" else value for name, value in params.items()}
            yield partial(ims.root, implicit_gru(scaled, inputs), stop=ims.NonlinearStop(atol=1e-8))


def counted(cases: list[Callable[[], Any]]) -> tuple[int, int]:
    """Evaluations in all, and systems solved."""
    results = []
    for case in cases:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results.append(case())
    counts = [result.counts for result in results]
    return sum(c.residuals + c.jvps + c.vjps for c in counts), sum(int(np.sum(r.success)) for r in results)


def functions_of(case: Callable[[], Any]) -> set[CodeType]:
    """The functions of the package that run in a solve."""
    codes = set[CodeType]()
    sys.setprofile(lambda frame, event, _: codes.add(frame.f_code) if event == "call" else None)
    try:
        counted([case])
    finally:
        sys.setprofile(None)
    return {code for code in codes if "implicitsolve" in code.co_filename}


def vary(only: str | None) -> list[dict[str, Any]]:
    """Halve and double each constant, or those whose modules and names contain `only`."""
    cases = [case for name, part in sets().items() if name in VARIED for case in part]
    plain, codes, found = [counted([case]) for case in cases], [functions_of(case) for case in cases], constants(only)
    for constant in found:
        places = [k for k, code in enumerate(codes) if constant.is_read_by(code)]
        constant.solves, before = len(places), np.sum([plain[k] for k in places] or [(0, 0)], axis=0)
        for factor in FACTORS:
            with constant.times(factor), suppress(ValueError, IndexError, TypeError, ZeroDivisionError):
                after = counted([cases[k] for k in places])
                constant.found[f"{factor:g}"] = int(after[0] - before[0]), int(after[1] - before[1])
        print(constant.module, constant.name, len(places), constant.found, flush=True)
    whole = {"solves": len(cases), "evaluations": sum(a for a, _ in plain), "solved": sum(b for _, b in plain)}
    return [whole, *map(dataclasses.asdict, found)]


def table(whole: dict[str, int], found: list[dict[str, Any]]) -> str:
    """Markdown: of each constant the solves that read it, evaluations in percent of theirs, and systems solved."""
    lines = ["| constant | value | what it is | solves | halved | doubled |", "| --- | --- | --- | --- | --- | --- |"]
    for constant in found:
        cells = [_cell(constant["found"].get(f"{factor:g}"), whole["evaluations"]) for factor in FACTORS]
        module = constant["module"].removeprefix("implicitsolve.").replace(".", "/")
        meaning, solves = constant["meaning"].replace("|", "\\|"), constant["solves"]
        cells = cells if solves else ["", ""]
        name = f"`{module}.{constant['name']}`"
        lines.append(f"| {name} | {constant['value']:g} | {meaning} | {solves or ''} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def _cell(change: tuple[int, int] | None, evaluations: int) -> str:
    if change is None:
        return "impossible"
    more = f"{100 * change[0] / evaluations:+.2f} %" if change[0] else "none"
    return more + (f", {change[1]:+d} solved" if change[1] else "")


def separate_equations() -> Iterator[tuple[Callable[[Any], Any], Any]]:
    """Equations of one unknown each in one vector: Kepler's, diodes, friction in pipes, implied volatilities."""
    rng = np.random.default_rng(0)
    for n in (60, 1000):
        a, b, c, d = rng.uniform(size=(4, n))
        yield lambda E, a=a, b=b: E - a * np.sin(E) - 6 * b, 6 * b
        yield lambda v, n=n: 1e-9 * np.expm1(v / 0.0257) + v / 50 - np.linspace(0, 8, n), np.full(n, 0.3)
        roughness, drag = 10 ** (5 * a - 6.5), 10 ** (1 - 4 * b)
        yield (
            lambda f, r=roughness, e=drag: 1 / np.sqrt(abs(f)) + 2 * np.log10(r + e / np.sqrt(abs(f))),
            np.full(n, 0.02),
        )
        price = partial(option_price, 0.5 + 1.5 * b, 0.1 + 2.9 * c)
        paid = price(0.1 + 0.7 * d)
        yield lambda v, price=price, paid=paid: price(v) - paid, np.full(n, 0.3)


def different_units() -> Iterator[tuple[Callable[[Any], Any], Any]]:
    """Pressures and concentrations in networks, from zero and from half their sizes."""
    for seed, unit in itertools.product(range(2), (1e6, 1e8, 1e-6)):
        F, sizes = flow_with_concentration(400, unit, seed)
        yield F, np.zeros(sizes.size)
        yield F, 0.5 * sizes


def option_price(strike: Any, time: Any, volatility: Any) -> Any:
    """Black's formula for a forward price of 1."""
    first = (volatility**2 * time / 2 - np.log(strike)) / (volatility * np.sqrt(time))
    return ndtr(first) - strike * ndtr(first - volatility * np.sqrt(time))


Solves = dict[str, list[Callable[[], Any]]]
NEVER = _plan.Condition("never", lambda context, solution: np.zeros(solution.status.size, dtype=bool))
STORED = Path(__file__).with_name("ablation.json")
CONSTANTS = Path(__file__).with_name("constants.json")
VARIED = ("robustness", "hard", "sparse", "kinks", "equations apart", "fast reactions")  # sets of little time


def sets() -> Solves:
    """All solves of the ablation, by set."""

    def of(case: Case) -> Callable[[], Any]:
        return partial(ims.root, case.problem, case.x0, stop=ims.NonlinearStop(atol=case.atol))

    def plain(p: Any, x0: Any) -> Callable[[], Any]:
        return partial(ims.root, p.residual, x0, stop=ims.NonlinearStop(atol=p.tolerance(), rtol=0.0))

    cubics = np.random.default_rng(5).standard_normal((200, 4))
    positive = [partial(ims.root, *case, bounds=(0, np.inf)) for case in equilibria().values()]
    reactors = [stirred_reactors(n, residence) for n in (1, 2, 4, 8) for residence in (1e2, 1e4)]
    published = robustness_sets()
    sparse = published.pop("sparse gallery, quick")
    return {
        "robustness": [plain(*case) for cases in published.values() for case in cases],
        "hard": [of(case) for case in solvable_cases() if not case.name.startswith("mgh")],
        "sparse": [plain(*case) for case in sparse],
        "coupled": [plain(p, p.x0) for p in coupled_problems()],
        "layers": [*layers(), *map(of, layer_cases())],
        "cubics": [partial(ims.root, partial(np.polyval, c), np.array([3.0])) for c in cubics],
        "positive unknowns": positive,
        "equations apart": [partial(ims.root, *case) for case in separate_equations()],
        "fast reactions": [partial(ims.root, *case, bounds=(0, 1)) for case in reactors],
        "paths": [partial(ims.root, paths(n, np.random.default_rng(n)), np.zeros(120 * n)) for n in (1, 2, 3, 4)],
        "units": [partial(ims.root, *case) for case in different_units()],
        "collocation": [partial(ims.root, *collocation(n, rate)) for n in (110, 250, 400, 700) for rate in RATES],
        "scalable": [partial(ims.root, *case) for n in (36, 144) for case in scalable_cases(n)],
        "kinks": [partial(ims.root, F, x0) for _, F, x0 in kinked_systems()],
        "rootless": [of(case) for case in hopeless_cases() if np.size(case.start) <= LARGEST],
    }


def in_words(stage: Any) -> str:
    """A stage as the plan prints it, without its share."""
    words = str(stage.method) if stage.is_search else stage.name
    return words + (f", where {stage.when.words}" if stage.when.words else "")


@contextmanager
def without(stage: str) -> Iterator[set[str]]:
    """Switch a stage off; yield the set of stages that have applied."""
    run, applied = _plan.run, set[str]()

    def observed(part: Any) -> Any:
        def holds(context: Any, solution: Any) -> Any:
            found = part.when.holds(context, solution)
            if found.any():
                applied.add(in_words(part))
            return found

        words = part.when.words
        return dataclasses.replace(part, when=NEVER if in_words(part) == stage else _plan.Condition(words, holds))

    def changed(stages: Any, *rest: Any) -> Any:
        return run([observed(part) for part in stages], *rest)

    users = [
        module
        for name, module in sys.modules.items()
        if name.startswith("implicitsolve") and vars(module).get("run") is run
    ]
    for user in users:
        vars(user)["run"] = changed
    try:
        yield applied
    finally:
        for user in users:
            vars(user)["run"] = run


def ablation(only: str | None = None) -> dict[str, dict[str, tuple[int, int, int]]]:
    """Evaluations, systems solved and solves concerned, by stage and set; "" is the whole plan.

    A stage is switched off in the solves in which it has applied; where it was the last, nothing is left to solve with.
    Sets without `only` in their names have the stored counts.
    """
    chosen = {name: cases for name, cases in sets().items() if only is None or only in name}
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    kept = {stage: {name: sums[name] for name in sums if name not in chosen} for stage, sums in stored.items()}
    found = {"": {}} | {stage: sums for stage, sums in kept.items() if sums}
    for name, cases in chosen.items():
        plain, users = [], dict[str, list[int]]()
        for place, case in enumerate(cases):
            with without("") as applied:
                plain.append(counted([case]))
            for stage in applied:
                users.setdefault(stage, []).append(place)
        found[""][name] = (*map(sum, zip(*plain)), len(cases))  # type: ignore[assignment]
        for stage, places in sorted(users.items()):
            with without(stage):
                changed = [counted([cases[place]]) for place in places]
            less = [(a - c, b - d) for (a, b), (c, d) in zip(changed, (plain[place] for place in places))]
            evaluations, solved = map(sum, zip(*less))
            found.setdefault(stage, {})[name] = evaluations, solved, len(places)
            print(name, stage, found[stage][name], sep=" | ", flush=True)
    return found


def ablation_table(found: dict[str, dict[str, Any]]) -> str:
    """Markdown: by stage and set, solves concerned, systems solved more or fewer, and evaluations in percent."""
    names = list(found[""])
    return "\n\n".join(_part_of_table(found, names[first : first + 6]) for first in range(0, len(names), 6))


def _part_of_table(found: dict[str, dict[str, Any]], names: list[str]) -> str:
    """The columns of some sets, and the rows of the stages that apply there."""
    plain = {name: found[""][name] for name in names}
    lines = ["| stage switched off | " + " | ".join(plain) + " |", "| --- |" + " --- |" * len(plain)]
    whole = [
        f"{solved} systems solved in {cases} solves, {evaluations:,} evaluations"
        for evaluations, solved, cases in plain.values()
    ]
    lines.append("| none | " + " | ".join(whole) + " |")
    for stage, counts in list(found.items())[1:]:
        cells = []
        for name, (total, _, _) in plain.items():
            evaluations, solved, cases = counts.get(name, (0, 0, 0))
            cells.append(f"{solved:+d} solved, {100 * evaluations / total:+.1f} %, of {cases}" if cases else "")
        if any(cells):
            lines.append(f"| {stage} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


ABLATION = """# What the stages earn

Each stage of the plans of "auto" was switched off, for every system alone, and the solves in which it had applied were
repeated: the change of the number of systems solved, that of evaluations in percent of the set's, and in how many
solves it had applied. Fewer evaluations on systems without roots are no gain where systems that have roots are lost.
Written by `python -m benchmarks.constants --stages`, which stores the counts in `benchmarks/ablation.json`; stages
newer than these counts have no row.

{table}
"""

PAGE = """# What the constants are worth

Each number that the methods decide by was halved and doubled, alone. Of {solves} solves of the [ablation of the
stages](ablation.md) ({sets})
those were repeated that run a function which reads it: how many these are, the change of evaluations in percent of the
{evaluations:,} of all, and that of the {solved:,} solved.
A constant without an effect here bounds memory or time, guards against what these problems do not have, is read when
a module is imported, or serves batches, devices or large systems. Sources of published ones stand beside them in the
code. Written by `python -m benchmarks.constants`, which stores the counts in `benchmarks/constants.json`.

{table}
"""


def main(arguments: list[str] | None = None) -> None:
    """Vary the constants, or switch the stages off; store the counts, and write the page."""
    parser = argparse.ArgumentParser(description="Evaluations with each constant halved and doubled.")
    parser.add_argument("--only", help="constants, after their modules, or sets whose names contain this")
    parser.add_argument("--stages", action="store_true", help="switch the stages off instead")
    options = parser.parse_args(arguments)
    if options.stages:
        counts = ablation(options.only)
        STORED.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")
        Path("docs/performance/ablation.md").write_text(ABLATION.format(table=ablation_table(counts)), encoding="utf-8")
        return
    whole, *found = vary(options.only)
    if options.only:
        _, *stored = json.loads(CONSTANTS.read_text(encoding="utf-8"))
        known = {(constant["module"], constant["name"]): constant for constant in (*stored, *found)}
        now = {(constant.module, constant.name): constant.meaning for constant in constants()}
        found = [known[key] | {"meaning": meaning} for key, meaning in now.items() if key in known]
    CONSTANTS.write_text(json.dumps([whole, *found], indent=1) + "\n", encoding="utf-8")
    page = PAGE.format(**whole, sets=", ".join(VARIED), table=table(whole, found))
    Path("docs/performance/constants.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
