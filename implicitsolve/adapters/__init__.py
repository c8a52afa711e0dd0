"""Layers as problems: functions that build a `Problem` from parameters and inputs, with hand-written products."""

from __future__ import annotations

from implicitsolve.adapters._common import initial_guess
from implicitsolve.adapters._gru import gru_parameters, gru_switch, implicit_gru

__all__ = ["gru_parameters", "gru_switch", "implicit_gru", "initial_guess"]
