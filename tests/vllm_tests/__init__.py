"""Tests of `paceline.vllm`. Not called `vllm`: tests/ is on the path, and `import vllm` is to find vLLM."""
