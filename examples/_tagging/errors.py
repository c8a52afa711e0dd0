"""The one exception that the command line turns into a one-line message."""

from __future__ import annotations

__all__ = ["UserError"]


class UserError(Exception):
    """Something that the user can put right: a bad file, a missing package, a wrong option."""
