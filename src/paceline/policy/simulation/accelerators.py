"""Accelerators as their makers describe them, and one CPU as measured: the one table of such figures."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import ConfigError

BANDWIDTH_REACHED = 0.8
COMPUTE_REACHED = 0.6
"""Shares of a data sheet's figures that large models reach in practice; an assumption, stated with
results."""
LAUNCH_S = 1e-3
"""Of a step, for launching kernels and scheduling; an assumption."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """What memory and arithmetic there are."""

    name: str
    bandwidth_gb_s: float
    """Of its memory, 10^9 bytes per second."""
    tflops: float
    """Dense (no sparsity), 16-bit floating point on matrix units, sums in 32 bits; of the CPU, what its
    kernels reach."""
    memory_gb: float
    """10^9 bytes, as data sheets count."""
    source: str
    """Where the figures are from."""
    bandwidth_reached: float = BANDWIDTH_REACHED
    compute_reached: float = COMPUTE_REACHED
    launch_s: float = LAUNCH_S


_DATA_CENTER = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center"
_A100 = (
    f"NVIDIA A100 data sheet, SXM: {_DATA_CENTER}/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
)
_HALVED = "its 16-bit figure is with sparsity, half of it is dense"

ACCELERATORS = {
    one.name: one
    for one in (
        Accelerator("a100-40gb", 1555, 312, 40, _A100),
        Accelerator("a100-80gb", 2039, 312, 80, _A100),
        Accelerator(
            "h100", 3350, 989, 80,
            f"NVIDIA H100 data sheet, SXM: https://www.nvidia.com/en-us/data-center/h100/ ({_HALVED})",
        ),
        Accelerator(
            "h200", 4800, 989, 141,
            f"NVIDIA H200 data sheet, SXM: https://www.nvidia.com/en-us/data-center/h200/ ({_HALVED})",
        ),
        Accelerator(
            "l4", 300, 121, 24,
            f"NVIDIA L4 data sheet: https://www.nvidia.com/en-us/data-center/l4/ ({_HALVED})",
        ),
        Accelerator(
            "rtx-3090", 936, 71, 24,
            "NVIDIA Ampere GA102 architecture paper: "
            "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf",
        ),
        Accelerator(
            "rtx-4090", 1008, 165.2, 24,
            "NVIDIA Ada architecture paper, appendix A: "
            "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf",
        ),
        Accelerator(
            "cpu-zen3-2-cores", 18.3, 0.15, 24,
            "measured, two cores of an AMD EPYC of the Zen 3 generation (AVX2): benchmarks/README.md; memory "
            "as `paceline bench step-cost` read it, arithmetic from a 4-bit 1.5B model's 5 to 8 rows",
            bandwidth_reached=0.83, compute_reached=1.0, launch_s=0.0,
        ),
    )
}  # fmt: skip


def accelerator_of(name: str) -> Accelerator:
    """Return the accelerator of a name.

    Raises:
        ConfigError: there is none.
    """
    if name not in ACCELERATORS:
        raise ConfigError(
            given=f"accelerator {name!r}",
            expected="one of " + ", ".join(ACCELERATORS),
            remedy="Name one of them, or give a measured curve",
        )
    return ACCELERATORS[name]
