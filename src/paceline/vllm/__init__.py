"""Routes and their policy inside vLLM: a scheduler for its engine core, a bridge to the process that serves.

`paceline.vllm.RouteScheduler` is what `--scheduler-cls` takes. Nothing here imports vLLM before it is asked
for that class, so that the bridge can be used, and tested, without it.
"""
