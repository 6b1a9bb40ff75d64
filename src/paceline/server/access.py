"""Callers, under the name by which calls know them."""

from paceline.administration.access import Caller

__all__ = ["Caller"]
