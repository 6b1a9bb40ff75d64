"""Step-cost curves to simulate with: measured ones, and rooflines of accelerators from their data sheets."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import ConfigError
from paceline.policy.costs import CostCurve
from paceline.policy.simulation.accelerators import accelerator_of

ROOFLINE_ROWS = (
    1,
    2,
    4,
    8,
    16,
    32,
    48,
    64,
    96,
    128,
    160,
    192,
    224,
    256,
    320,
    384,
    448,
    512,
    640,
    768,
    896,
    1024,
)


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """A curve with what it was measured on."""

    name: str
    machine: str
    curve: CostCurve
    """At a context of 512 tokens, which is in the numbers."""


MEASURED = {
    one.name: one
    for one in (
        MeasuredCurve(
            "qwen2.5-coder-1.5b-q4_k_m",
            "AMD EPYC of the Zen 3 generation, 2 cores of a virtual machine, AVX2; benchmarks/README.md",
            CostCurve.of(
                {1: 64.1e-3, 2: 60.3e-3, 3: 68.6e-3, 4: 74.7e-3, 5: 92.2e-3, 6: 120.7e-3, 8: 153.6e-3}
            ),
        ),
        MeasuredCurve(
            "qwen2.5-coder-0.5b-int4",
            "the same; one row measured, further rows in proportion to the 1.5B model's, an estimate",
            CostCurve.of(
                {1: 16.3e-3, 2: 16.3e-3, 3: 17.4e-3, 4: 19.0e-3, 5: 23.4e-3, 6: 30.7e-3, 8: 39.0e-3}
            ),
        ),
    )
}


def roofline(
    accelerator: str,
    params_b: float,
    *,
    bytes_per_param: float = 2.0,
    kv_bytes_per_token: float = 0.0,
    num_accelerators: int = 1,
    step_overhead_s: float | None = None,
) -> CostCurve:
    """Return T(rows) = max(weights / bandwidth, 2 params rows / compute) + overhead of a dense model.

    Williams, Waterman and Patterson, "Roofline" (2009). Attention reads each sequence's KV once a step.

    Args:
        accelerator: one of `accelerators.ACCELERATORS`.
        params_b: parameters in thousand millions, all of them read in each step.
        bytes_per_param: as they are stored.
        kv_bytes_per_token: of all layers.
        num_accelerators: that share the model; links cost nothing here, which flatters.
        step_overhead_s: of each forward pass; the accelerator's own unless given.

    Raises:
        ConfigError: there is no such accelerator, or a figure is not positive.
    """
    one = accelerator_of(accelerator)
    if not (params_b > 0 and bytes_per_param > 0 and num_accelerators > 0):
        raise ConfigError(
            given=f"{params_b} thousand million parameters of {bytes_per_param} bytes on {num_accelerators}",
            expected="positive figures",
            remedy="Correct them",
        )
    bandwidth = one.bandwidth_gb_s * 1e9 * one.bandwidth_reached * num_accelerators
    compute = one.tflops * 1e12 * one.compute_reached * num_accelerators
    read_s = params_b * 1e9 * bytes_per_param / bandwidth
    row_s = 2 * params_b * 1e9 / compute
    overhead_s = one.launch_s if step_overhead_s is None else step_overhead_s
    return CostCurve.of(
        {rows: max(read_s, rows * row_s) + overhead_s for rows in ROOFLINE_ROWS},
        per_context_s=kv_bytes_per_token / bandwidth,
    )
