"""Numbers of the pages, computed once more from the stored results by code that shares nothing with the templates.

Rows that were swapped, ratios the wrong way round, and other units give numbers that trace to results and are wrong.
Each audit gives a section of a page, a pattern of its text ("#" is a number), and what the numbers should be.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from statistics import mean, stdev
from typing import Any

__all__ = ["AUDITS", "differences"]

Expected = Iterator[tuple[str, str, list[float]]]
NUMBER = r"([+-]?[\d,]*\.?\d+)"


def differences(stored: dict[str, Any], name: str, page: str) -> list[str]:
    """What a page says otherwise than its results, and patterns that are not on it."""
    found = []
    for section, pattern, values in AUDITS[name](stored) if name in AUDITS else ():
        text = re.sub(r"\n(?!\|)", " ", page[page.index(f"\n## {section}\n") if section else 0 :])
        match = re.search(pattern.replace("#", NUMBER), text)
        if match is None:
            found.append(f"{name}.md: nothing like {pattern}")
        elif not all(_agree(printed, value) for printed, value in zip(match.groups(), values, strict=True)):
            found.append(
                f"{name}.md: {match[0].strip()}, but results give {', '.join(f'{value:.5g}' for value in values)}"
            )
    return found


def _agree(printed: str, value: float) -> bool:
    digits = len(printed.partition(".")[2])
    return math.isclose(float(printed.replace(",", "")), value, rel_tol=0.0, abs_tol=0.5001 * 10.0**-digits)


def _row(section: str, label: str, *cells: float | str | list[float]) -> tuple[str, str, list[float]]:
    """A row of a table: a list in it stands for the mean and standard deviation of samples."""
    patterns = [c if isinstance(c, str) else "# ± #" if isinstance(c, list) and len(c) > 1 else "#" for c in cells]
    numbers = [c if isinstance(c, list) else [c] for c in cells if not isinstance(c, str)]
    pairs = ((mean(c), *([stdev(c)] if len(c) > 1 else [])) for c in numbers)
    pattern = rf"\n\| {re.escape(label)} \| " + r"[^|]*\| ".join(patterns) + r"[^|]*\|"
    return section, pattern, [value for pair in pairs for value in pair]


def _of(rows: list[dict[str, Any]], **values: Any) -> list[dict[str, Any]]:
    return [row for row in rows if all(row[key] == value for key, value in values.items())]


def _above(value: float, reference: float) -> float:
    return 100.0 * (value - reference) / reference


def _slope(points: list[tuple[float, float]]) -> float:
    logs = [(math.log(a), math.log(b)) for a, b in points]
    x, y = (mean(column) for column in zip(*logs))
    return sum((a - x) * (b - y) for a, b in logs) / sum((a - x) ** 2 for a, _ in logs)


def _errors(rows: list[dict[str, Any]]) -> list[float]:
    return [row["test error"]["value"] for row in rows]


def _walks(stored: dict[str, Any]) -> Expected:
    work, paper = stored["walks_work"]["rows"], stored["published"]
    first, section = stored["walks_three"], "With the law that fits the published errors"
    for b in first["settings"]["bias"]:
        own = _of(first["runs"], model="inn:100", bias=b)
        inn, lstm = _errors(own), _errors(_of(first["runs"], model="blstm:78", bias=b))
        printed = next(row for row in paper["walks"] if row["bias"] == b)
        more = printed["inn"], printed["blstm"], mean(row["products per batch"] for row in own)
        floor = first["floors"][str(b)]["value"]
        yield _row(section, str(b), len(inn), floor, inn, lstm, _above(mean(inn), mean(lstm)), *more)
    seconds = [mean(r["epochs"][-1]["seconds"] for r in _of(first["runs"], model=m)) for m in ("inn:100", "blstm:78")]
    yield "", "training takes # times that of the LSTMs", [seconds[0] / seconds[1]]
    for data in (stored["walks"], stored["walks_quarter"]):
        (b,) = data["settings"]["bias"]
        own, others = _of(data["runs"], model="inn:100"), _of(data["runs"], model="blstm:78")
        inn, lstm = _errors(own), _errors(others)
        took = [mean(row["epochs"][-1]["seconds"] for row in rows) for rows in (own, others)]
        more = *took, mean(row["products per batch"] for row in own)
        yield _row(
            "Searched alike",
            str(b),
            3,
            data["floors"][str(b)]["value"],
            inn,
            lstm,
            _above(mean(inn), mean(lstm)),
            *more,
        )
    others = {(row["rate"], row["clip"], row["scale"]): row for row in stored["walks"]["searches"]["blstm"]["tried"]}
    for row in stored["walks"]["searches"]["inn"]["tried"]:
        names = row["rate"], row["clip"], row["scale"]
        cells = row["validation error"], row["products per batch"], others[names]["validation error"]
        yield _row("Searched alike", " | ".join(map(str, names)), *cells)
    for row in stored["walks_sizes"]["runs"]:
        cells = row["parameters"], row["test error"]["value"], row["epochs"][-1]["seconds"]
        yield _row("Searched alike", f"LSTM, 2 × {row['model'].partition(':')[2]}", *cells)
    trained = {s: _of(work, weights="trained", solver=s, against="n") for s in ("published", "default")}
    section = "Work against length and bias"
    for n in stored["walks_work"]["settings"]["lengths"]:
        a, b, c = (
            _of(rows, n=n) for rows in (*trained.values(), _of(work, weights="first", solver="published", against="n"))
        )
        keys = ("forward seconds", "most steps", "mean steps", "most inner iterations", "unsolved")
        ours = (mean(row[key] for row in b) for key in ("forward seconds", "unsolved"))
        cells = (
            (mean(row[key] for row in a) for key in keys),
            ours,
            (mean(r["products"] for r in rows) for rows in (a, b, c)),
        )
        yield _row(section, str(n), *(value for part in cells for value in part))
    for b in stored["walks_work"]["settings"]["bias"]:
        cells = (
            mean(r[key] for r in _of(work, weights="trained", solver=s, against="b", bias=b))
            for s in trained
            for key in ("forward seconds", "unsolved")
        )
        yield _row(section, str(b), *cells)
    yield "", r"lengths below \(n\^#;", [_slope([(r["n"], r["forward seconds"]) for r in trained["published"]])]
    yield "", r"positions, grow as n\^#\)", [_slope([(r["n"], r["products"]) for r in trained["published"]])]
    yield from _penalty(stored)
    yield from _asynchronous(stored)
    for row in stored["recorded_walks"]["rows"]:
        pairs = ((row[key], _above(row[key], row["bayes"])) for key in ("inn", "lstm", "large"))
        cells = [value for pair in pairs for value in pair]
        pattern = rf"\n\| {row['bias']:g} \| # \| #" + r" \| # \(# %\)" * 3
        yield "More walks, one seed", pattern, [row["floor"], row["bayes"], *cells]
    for row in paper["walks"]:
        floors = (r["floor"]["value"] for r in _of(stored["walks_floors"]["rows"], bias=row["bias"]))
        yield _row("Comparison with the paper", str(row["bias"]), row["inn"], row["blstm"], *floors)


def _penalty(stored: dict[str, Any]) -> Expected:
    runs, section = stored["walks_penalty"]["runs"], "A penalty on the Jacobian"
    for row in runs:
        error = row["test error"]
        cells = error["value"], error["standard_error"], row["products per batch"], row["epochs"][-1]["seconds"]
        yield _row(section, str(row["penalty"]), *cells)
    first, last = ([row[key] for key in ("products per batch", "test error")] for row in (runs[0], runs[-1]))
    error = _above(last[1]["value"], first[1]["value"])
    yield section, "products fall to # of those without, and the error grows by # %", [last[0] / first[0], error]


def _asynchronous(stored: dict[str, Any]) -> Expected:
    data, section = stored["asynchronous"], "A batch that stays full while weights change"
    names = {"separate": "batch by batch", "drained": "streams that end", "full": "streams that stay full"}
    batch, means = data["settings"]["batch"], {}
    for way, name in names.items():
        rows = _of(data["runs"], way=way)
        means[way] = {key: mean(row[key] for row in rows) for key in ("walks", "updates", "calls", "width", "seconds")}
        means[way]["work"] = mean(row["width"] * batch * row["calls"] / row["walks"] for row in rows)
        means[way]["error"] = mean(_errors(rows))
        of, stale = means[way], [row["staleness"] for row in rows]
        cells = of["walks"], [row["updates"] for row in rows], of["calls"], of["width"] * batch, of["work"]
        staleness = mean(one["mean"] for one in stale), max(one["most"] for one in stale)
        yield _row(section, name, _errors(rows), *cells, *staleness, of["seconds"])
    for way, name in names.items():
        rows = _of(stored["asynchronous_time"]["runs"], way=way)
        cells = ([row["updates"] for row in rows], *(mean(row[key] for row in rows) for key in ("calls", "width")))
        walks = mean(row["walks"] for row in rows)
        yield _row("The same at equal time", name, _errors(rows), walks, *cells[:-1], cells[-1] * batch)
    full, ended = means["full"], means["drained"]
    yield section, "takes # times the evaluations", [full["work"] / ended["work"]]
    pattern = "gives # times the updates of streams that end, and an error that is # % from theirs"
    yield section, pattern, [full["updates"] / ended["updates"], _above(full["error"], ended["error"])]


def _documents(stored: dict[str, Any]) -> Expected:
    data, section = stored["documents"], "Reviews or other documents"
    names = {
        "gru": "GRU | 45",
        "blstm": "LSTM, both directions | 2 × 23",
        "implicit-gru": "implicit GRU, solved | 32",
        "implicit-gru-p3": "implicit GRU, P_3 | 32",
    }
    accuracies = {}
    for layer, name in names.items():
        rows = _of(data["rows"], layer=layer)
        last = [row["epochs"][-1] for row in rows]
        accuracies[layer] = [row["accuracy"] for row in rows]
        work = (
            (mean(e["products"] for e in last) / last[0]["texts"], mean(e["unsolved"] for e in last))
            if "implicit" in layer
            else ()
        )
        yield _row(section, name, accuracies[layer], mean(e["seconds"] for e in last), *work)
    yield (
        section,
        "bidirectional LSTM is # above the implicit GRU",
        [mean(accuracies["blstm"]) - mean(accuracies["implicit-gru"])],
    )

    for row in stored["recorded_sentiment"]["rows"]:
        work = [] if row["products"] is None else [row["products"], row["unsolved"]]
        yield _row("Generated texts", f"{row['layer']} | {row['states']}", *row["accuracies"], row["seconds"], *work)


def _tagging(stored: dict[str, Any]) -> Expected:
    whole, small, large = stored["recorded_tagging"]["rows"], stored["tagging"], stored["tagging_448"]
    by = {row["layer"]: row for row in whole}
    implicit, lstm, gru = (by[name] for name in ("implicit GRU", "LSTM, both directions", "GRU, both directions"))
    took = {r["layer"]: sum(epoch["seconds"] for epoch in r["epochs"]) for r in large["rows"]}
    ratios = [implicit["seconds"] / gru["seconds"], implicit["seconds"] / by["GRU"]["seconds"]]
    yield "", "takes # to # times that of torch's layers, and # times", [*ratios, took["implicit-gru"] / took["blstm"]]
    features = ["word", "case", "affix", "symbols"]
    for n in range(1, 5):
        cells: list[Any] = []
        for layer, sides in (("implicit-gru", ""), ("blstm", "2 × ")):
            rows = _of(small["rows"], layer=layer, features=features[:n])
            cells += [[100.0 * row["accuracy"] for row in rows], f"{sides}{rows[0]['k']}, {rows[0]['parameters']:,}"]
        yield _row("Features, ensembles and equal time", ", ".join(features[:n]), *cells, len(rows))
    means = [
        mean(r["accuracy"] for r in _of(small["rows"], layer=m, features=features)) for m in ("implicit-gru", "blstm")
    ]
    yield "", "epochs the implicit GRU is # % above the LSTM", [100.0 * (means[0] - means[1])]
    for key, values in small["ensembles"]["implicit-gru"].items():
        label, other = f"ensemble of {key}", small["ensembles"]["blstm"][key]
        yield "", rf"\n\| {label} \| # \| \| # \|", [100.0 * values, 100.0 * other]
    implicit_runs, lstm_runs = (stored[f"tagging_long_{name}"]["rows"] for name in ("implicit", "blstm"))
    for n in (3, 6, 9, 12):
        seconds = mean(sum(epoch["seconds"] for epoch in row["epochs"][:n]) for row in implicit_runs)
        reached = []
        for row in lstm_runs:
            passed = [
                i for i in range(len(row["epochs"])) if sum(e["seconds"] for e in row["epochs"][: i + 1]) <= seconds
            ]
            reached.append(100.0 * row["epochs"][max(passed, default=0)]["accuracy"])
        own = [100.0 * row["epochs"][n - 1]["accuracy"] for row in implicit_runs]
        yield _row("Features, ensembles and equal time", str(n), seconds, own, reached)
    yield (
        "",
        r"has # % after # CPU seconds, the bidirectional LSTM \(# parameters\) # % after #\.",
        [
            100.0 * large["rows"][0]["accuracy"],
            took["implicit-gru"],
            large["rows"][1]["parameters"],
            100.0 * large["rows"][1]["accuracy"],
            took["blstm"],
        ],
    )
    implicit_runs, lstm_runs = ([row for row in rows if row["seed"] == 0] for rows in (implicit_runs, lstm_runs))
    for name, words, runs in (
        ("gradient descent", 320, stored["tagging_sgd"]["rows"]),
        ("Adam", 640, implicit_runs + lstm_runs),
    ):
        by_layer = {row["layer"]: row for row in runs}
        rows = [by_layer[layer] for layer in ("implicit-gru", "blstm")]
        cells = [(len(r["epochs"]), 100.0 * r["accuracy"], sum(e["seconds"] for e in r["epochs"])) for r in rows]
        yield _row("The paper's optimizer", name, words, *cells[0], *cells[1])
    for row in whole:
        pattern = rf"\n\| {row['layer']} \| {row['states']} \| # \| #[^|]*\| # \| # \|"
        yield "The whole treebank", pattern, [row["parameters"], row["best"], row["last"], row["seconds"]]
    yield (
        "",
        "on average # % against the bidirectional LSTM and # % against the bidirectional GRU",
        [
            implicit["best"] - lstm["best"],
            implicit["best"] - gru["best"],
        ],
    )
    yield "", "at least # % above those that use one", [lstm["best"] - by["GRU"]["best"]]


def _language(stored: dict[str, Any]) -> Expected:
    small, orders, large = stored["language"], stored["language_orders"], stored["recorded_language"]
    rho_is = "\N{GREEK SMALL LETTER RHO} = "
    names = {"full": f"full gradients, {rho_is}", "skipped": f"skipped gradients, {rho_is}"}
    names |= {"bptt": "Elman network, BPTT"}
    names |= {"tbptt": "Elman network, truncated BPTT", "lstm": "LSTM, BPTT"}
    rows = {(f, rho): _of(small["rows"], form=f, rho=rho) for f in names for rho in (0, 2, 5)}
    means = {key: mean(row["perplexity"] for row in own) for key, own in rows.items() if own}
    for form, rho in means:
        perplexities = [row["perplexity"] for row in rows[form, rho]]
        yield _row(
            "Chosen on one part, reported on another", f"{names[form]}{rho or ''}", perplexities, len(perplexities)
        )
    for n, perplexity in small["n-grams"].items():
        yield _row("", f"{n}-gram Kneser–Ney", perplexity)
    labels = {"full": "full gradients", "skipped": "skipped gradients", "bptt": "BPTT", "tbptt": "truncated BPTT"}
    for row in stored["language_time"]["rows"]:
        if label := labels.get(row["form"]):
            took = [1000.0 * row["seconds per word"], row["hours of training"]]
            yield "", rf"\n\| {label}[^|]*\| # \| # \|\n", took
    cases = (("full", 5), ("skipped", 5), ("tbptt", 0), ("lstm", 0))
    pattern = "full gradients is at # %, with skipped gradients at # %, truncated BPTT at # % and the LSTM at # %"
    yield "", pattern, [_above(means[case], means["bptt", 0]) for case in cases]
    names = {"full": "iterations", "doubled": "Newton steps", "accelerated": "accelerated", "scheduled": "scheduled"}
    of_bptt = {row["seed"]: row["perplexity"] for row in _of(orders["rows"], form="bptt")}
    for form, name in names.items():
        for rho in orders["settings"]["rho"]:
            own = _of(orders["rows"], form=form, rho=rho)
            above = mean(_above(row["perplexity"], of_bptt[row["seed"]]) for row in own)
            seconds = mean(epoch["seconds"] for row in own for epoch in row["curve"])
            cells = [row["perplexity"] for row in own], above, seconds, len(own)
            yield _row("Higher orders", f"{name} | {rho}", *cells)
    for row in large["rows"]:
        yield _row("A larger text, one seed", str(row["rho"]), row["full"], row["skipped"])
    rescored = [stored[f"lattice_{rho}"]["lattices"] for rho in (2, 5)]
    for label, key in (
        (r"arcs[^|]*", "expanded"),
        (r"seconds[^|]*", "seconds"),
        (r"words inserted[^|]*", "other words"),
    ):
        yield "Lattices", rf"\n\| {label}\| # \| # \|", [mean(row[key] for row in rows) for rows in rescored]
    last, bptt = large["rows"][-1], large["bptt"]["perplexity"]
    yield "", "the approximate fixed point is at # % of the network", [_above(last["full"], bptt)]
    yield "", "end # % above full ones", [_above(last["skipped"], last["full"])]
    for name, key in (("WikiText-2", "wikitext-2"), ("Penn Treebank", "ptb")):
        paper = stored["published"]["language"][key]
        values = [paper[k] for k in ("RNN BPTT", "full", "skipped")]
        pattern = rf"- Published, {name}[^:]*: RNN by BPTT #,[^(]* # \(# %\)[^(]* # \(# %\)"
        yield "", pattern, [values[0], values[1], _above(values[1], values[0]), values[2], _above(values[2], values[0])]


def _lengths(stored: dict[str, Any]) -> Expected:
    series, names = stored["lengths"]["series"], ("products", "adjoint products", "forward seconds", "gradient seconds")
    for n in series["trained"]:
        yield _row("", n, *(rows[n][name] for rows in series.values() for name in names))
    ratios = sorted(row["products"] / series["untrained"][n]["products"] for n, row in series["trained"].items())
    yield "", "it takes # to # times the products of an untrained one", [ratios[0], ratios[-1]]
    fitted = {weights: [(float(n), row) for n, row in rows.items() if int(n) >= 20] for weights, rows in series.items()}
    slopes = (_slope([(n, row[name]) for n, row in rows]) for rows in fitted.values() for name in names)
    yield _row("", "exponent", *slopes)


def _switch(stored: dict[str, Any]) -> Expected:
    for row in stored["switch"]["words"][:-1]:
        yield "", f'"{row["word"]}" has #', [row["mean of 1 - 2 s"]]


def _truncated(stored: dict[str, Any]) -> Expected:
    rows = {name: row["epochs"] for name, row in stored["truncated"]["rows"].items()}
    labels = {"chosen by root": "chosen by `root`", "Newton-Krylov": "Newton–Krylov, GMRES backward"}
    for name, epochs in rows.items():
        last, accuracies = epochs[-1], [100.0 * epoch["dev_accuracy"] for epoch in epochs]
        work = last["products_per_batch"], last["adjoint_products_per_batch"]
        unsolved = ", ".join(str(epoch["unsolved"]) for epoch in epochs)
        seconds = sum(epoch["cpu_seconds"] for epoch in epochs)
        yield _row("Measured", labels.get(name, name), *accuracies, seconds, *work, unsolved, last["unsolved_adjoint"])
    products = sorted(rows[f"P_{n}"][-1]["products_per_batch"] for n in (0, 1, 3))
    yield "", "P_n take # to #", [products[0], products[-1]]
    lost = rows["chosen by root"][-1]["dev_accuracy"] - rows["P_0"][-1]["dev_accuracy"]
    yield "", "is # % below the method that `root` chooses", [100.0 * lost]
    met = [rows[name][-1]["sentences"] - rows[name][-1]["unsolved_adjoint"] for name in ("P_3", "P_1")]
    yield "", "with P_3 # and with P_1 # of the sentences", met


AUDITS: dict[str, Callable[[dict[str, Any]], Expected]] = {
    "language": _language,
    "lengths": _lengths,
    "sentiment": _documents,
    "switch": _switch,
    "tagging": _tagging,
    "truncated": _truncated,
    "walks": _walks,
}
