"""The biased random walk: its generator, the Bayes posterior, and the example's command line."""

import importlib
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

SMALL = ["--test-walks", "40", "--floor-walks", "50", "--batch", "8", "--state", "6"]


@pytest.fixture(scope="module")
def walks(main: ModuleType) -> ModuleType:
    """The generator."""
    return importlib.import_module("_walks")


LAWS = ("common", "sphere", "normal", "uniform")


def test_walks_are_padded_and_labelled_from_the_change_on(walks: ModuleType, rng: np.random.Generator) -> None:
    drawn = walks.draw(walks.Law(), 200, rng)
    i = np.arange(1, drawn.labels.shape[1] + 1)
    assert set(drawn.lengths.tolist()) <= set(range(1, 41))
    assert ((drawn.changes >= 0) & (drawn.changes < drawn.lengths)).all()
    assert not drawn.positions[~drawn.is_step].any()
    assert not drawn.labels[~drawn.is_step].any()
    expected = (i > drawn.changes[:, None]) & drawn.is_step
    np.testing.assert_array_equal(drawn.labels, expected)


def test_the_first_step_after_the_change_drifts_by_a_fraction(walks: ModuleType, rng: np.random.Generator) -> None:
    law = walks.Law(bias=1e6, law="common", dimension=3, norm=2.0)
    drawn = walks.draw(law, 100, rng)
    steps = np.diff(drawn.positions, axis=1, prepend=0.0) @ law.common / law.norm**2 / law.bias
    share = np.clip(np.arange(1, 41) - drawn.changes[:, None], 0.0, 1.0)[:, : steps.shape[1]]
    np.testing.assert_allclose(steps[drawn.is_step], share[drawn.is_step], atol=1e-5)


@pytest.mark.parametrize("dimension", [1, 3])
@pytest.mark.parametrize("law", LAWS)
def test_posterior_is_that_of_brute_force(
    walks: ModuleType, rng: np.random.Generator, law: str, dimension: int
) -> None:
    """Average the likelihood over draws of t' and v, for walks of three steps."""
    N, draws = 3, 200_000
    chosen = walks.Law(bias=0.8, law=law, dimension=dimension, norm=1.3)
    steps = rng.standard_normal((N, dimension)) + 0.5
    walk = walks.Walks(np.cumsum(steps, axis=0)[None], np.array([N]), np.zeros(1), np.zeros((1, N), dtype=bool))
    t = rng.uniform(0, N, draws)
    drift = np.clip(np.arange(1, N + 1) - t[:, None], 0, 1)[:, :, None] * chosen.directions(draws, rng)[:, None, :]
    weight = np.exp(-0.5 * np.sum((steps - chosen.bias * drift) ** 2, axis=(1, 2)))
    expected = [np.average(t < i, weights=weight) for i in range(1, N + 1)]
    np.testing.assert_allclose(walks.posterior(chosen, walk)[0], expected, atol=6e-3)


@pytest.mark.parametrize(
    ("law", "dimension", "norm", "bias", "floor"),
    [
        ("common", 2, 1.0, 1.0, 0.084),
        ("common", 2, 2**0.5, 1.0, 0.052),
        ("common", 2, 2**0.5, 0.25, 0.197),
        ("sphere", 1, 1.0, 2.0, 0.030),
        ("sphere", 10, 1.0, 1.0, 0.129),
        ("normal", 5, 1.0, 0.5, 0.126),
        ("uniform", 10, 1.0, 0.75, 0.071),
    ],
)
def test_floor_is_the_known_one(
    walks: ModuleType, rng: np.random.Generator, law: str, dimension: int, norm: float, bias: float, floor: float
) -> None:
    measured = walks.bayes_floor(walks.Law(bias, law, dimension, norm), 2500, rng)
    assert abs(measured.value - floor) < 0.002 + 4 * measured.standard_error


def test_training_learns_more_than_the_position(main: ModuleType, walks: ModuleType) -> None:
    options = main.parse(["--steps", "50", "--state", "16", "--bias", "2"])
    law = walks.Law(bias=2.0)
    model, work = main.train(law, options, np.random.default_rng(0))
    assert (work.batches, work.walks, work.unsolved) == (50, 1600, 0)
    test = walks.draw(law, 200, np.random.default_rng(1))
    P, unsolved = model.predict(test)
    error = walks.Rate.of((((P > 0.5) != test.labels) & test.is_step).sum(axis=1), test.lengths)
    assert unsolved == 0
    assert error.value < 0.2  # 0.25 without looking at the walk


def test_command_line_repeats_itself(main: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    results, figure = tmp_path / "walk.json", tmp_path / "walk.png"
    printed, reports = [], []
    for _ in range(2):
        assert main.main(["--steps", "3", *SMALL, "--json", str(results), "--figure", str(figure)]) == 0
        printed.append(capsys.readouterr().out)
        reports.append(json.loads(results.read_text(encoding="utf-8")))
    assert printed[0] == printed[1]
    assert reports[0] == reports[1]
    assert "Bayes floor" in printed[0]
    assert reports[0]["bayes_floor"]["value"] > 0.02
    assert reports[0]["bayes_error_same_walks"]["standard_error"] > 0
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["walk.json", "walk.png"]


def test_unsolved_walks_are_reported(
    main: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, nothing = main.ims.root, main.ims.NonlinearStop(atol=0.0, rtol=0.0, max_iterations=0)
    monkeypatch.setattr(main.ims, "root", lambda problem, stop: root(problem, stop=nothing))
    assert main.main(["--steps", "1", *SMALL]) == 0
    out = capsys.readouterr().out
    assert "NOT CONVERGED: 8 walks (left out)" in out
    assert "NOT CONVERGED: 3" in out  # of 40 test walks: a start may be the solution where a walk has one step


def test_a_folder_that_is_missing_is_noticed_before_training(
    main: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main.main(["--figure", str(tmp_path / "no" / "walk.png")]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("biased_walk: error: ")
    assert captured.err.count("\n") == 1
