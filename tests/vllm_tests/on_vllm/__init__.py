"""Tests on the real vLLM, its CPU build, with small models."""
