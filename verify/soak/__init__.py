"""Thousands of requests of every kind, a fifth of whom leave: every answer right, and nothing left behind."""
