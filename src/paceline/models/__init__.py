"""Models: their files, tokenizers and chat templates, and the one decoder that computes them all."""
