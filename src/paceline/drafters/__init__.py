"""Whatever proposes tokens: a draft model, a lookup in the sequence itself, a script for tests."""
