"""Measurements: of models, of traffic, and what follows from them."""
