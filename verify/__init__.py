"""Long proofs, run by hand: `make verify`."""
