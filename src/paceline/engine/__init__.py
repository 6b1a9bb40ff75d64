"""The step: plan, draft, verify, commit, emit."""
