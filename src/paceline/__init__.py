"""Paceline: speculative decoding as a per-route, measured, reversible decision."""

from __future__ import annotations

__version__ = "0.1.0"
