"""Replicas of the server on Ray Serve: one address, one set of routes, several engines."""
