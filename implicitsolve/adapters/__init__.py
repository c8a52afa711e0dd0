"""Layers as problems: functions that build a `Problem` from parameters and inputs, with hand-written products."""

from __future__ import annotations

from collections.abc import Callable

from implicitsolve.adapters._approximate import (
    ApproximateFixedPoint,
    ApproximateGradients,
    approximate_fixed_point,
    initial_guess,
)
from implicitsolve.adapters._diagonal import (
    diagonal_gru,
    diagonal_gru_parameters,
    diagonal_lstm,
    diagonal_lstm_parameters,
)
from implicitsolve.adapters._gru import gru_parameters, gru_switch, implicit_gru, stencil_gru, stencil_gru_parameters
from implicitsolve.adapters._lifted import lifted_net
from implicitsolve.adapters._lifted_builders import lifted_birnn, lifted_feedforward, lifted_rnn
from implicitsolve.adapters._lifted_matrices import LiftedMatrices
from implicitsolve.adapters._lifted_sequences import lifted_inputs, lifted_outputs
from implicitsolve.adapters._lstm import implicit_lstm, lstm_parameters
from implicitsolve.adapters._rnn import elman, elman_parameters, implicit_rnn, rnn_parameters
from implicitsolve.adapters._well_posed import WellPosedness, project_well_posed, well_posedness

__all__ = [
    "ApproximateFixedPoint",
    "ApproximateGradients",
    "LiftedMatrices",
    "WellPosedness",
    "approximate_fixed_point",
    "diagonal_gru",
    "diagonal_gru_parameters",
    "diagonal_lstm",
    "diagonal_lstm_parameters",
    "elman",
    "elman_parameters",
    "gru_parameters",
    "gru_switch",
    "implicit_gru",
    "implicit_lstm",
    "implicit_rnn",
    "initial_guess",
    "lifted_birnn",
    "lifted_feedforward",
    "lifted_inputs",
    "lifted_net",
    "lifted_outputs",
    "lifted_rnn",
    "lstm_parameters",
    "project_well_posed",
    "rnn_parameters",
    "stencil_gru",
    "stencil_gru_parameters",
    "well_posedness",
]
__dir__: Callable[[], list[str]] = __all__.copy
