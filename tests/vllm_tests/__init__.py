"""Tests of `paceline.vllm`; not called `vllm`, since `import vllm` is to find vLLM with tests/ on the path."""
