"""Wrong options end a script with status 2 and are named; without matplotlib it draws no figure."""

import importlib
import inspect
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

WRONG = {
    "brusselator": ["--cells 3", "--B nan", "--figure no/such/x.png"],
    "business_cycle": ["--periods 3", "--shocks 0", "--figure no/such/x.png"],
    "trajectory_smoother": ["--steps 3", "--seed -1", "--figure no/such/x.png"],
    "two_point_bvp": ["--intervals 1", "--epsilon nan", "--figure no/such/x.png"],
    "biased_walk": [f"{option} -1" for option in ("--seconds", "--bias", "--norm", "--dimension", "--steps", "--rate")],
    "pos_tagging": ["--epochs 0", "--rate nan", "--dropout 1", "--state x", "--start no"],
}


@pytest.fixture
def script(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module(request.param)


@pytest.mark.parametrize(
    ("script", "arguments"), [(name, line) for name, lines in WRONG.items() for line in lines], indirect=["script"]
)
def test_wrong_options_end_with_status_2(script, arguments, capsys):
    with pytest.raises(SystemExit) as ending:
        script.main(arguments.split())
    assert ending.value.code == 2
    assert arguments.split()[0] in capsys.readouterr().err


@pytest.mark.parametrize("script", [name for name in WRONG if name != "pos_tagging"], indirect=True)
def test_without_matplotlib_the_figure_is_skipped(script, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    others = [None] * (len(inspect.signature(script.save_figure).parameters) - 1)
    assert script.save_figure(tmp_path / "x.png", *others) == "figure skipped: matplotlib is not installed"
    assert not list(tmp_path.iterdir())
