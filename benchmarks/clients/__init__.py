"""Nonlinear solves of other people's programs, with their own models and data."""
