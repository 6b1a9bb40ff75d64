"""The policy on paper: the same code that serves, over step-cost curves, acceptance processes and
arrivals."""
