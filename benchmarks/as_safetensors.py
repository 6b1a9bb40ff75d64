"""A preset's GGUF file as a folder that vLLM loads: dequantised, in bfloat16, with its tokenizer.

Made once, into the user's cache. Needs `transformers`, `gguf` and `accelerate`, which vLLM's environment has
(`make .venv-vllm/ready`):

    PYTHONPATH=src .venv-vllm/bin/python -m benchmarks.as_safetensors smollm2-135m-instruct
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from paceline.config.settings import load_settings


def folder_of(preset: str) -> Path:
    """Return where a preset's folder is, or would be."""
    return load_settings().cache / "vllm" / preset


def as_safetensors(preset: str) -> Path:
    """Return a preset's folder, made where it is not there yet.

    Raises:
        SystemExit: the preset's GGUF file is not in the cache.
    """
    folder = folder_of(preset)
    if (folder / "config.json").exists():
        return folder
    source = load_settings().cache / "models" / f"{preset}.gguf"
    if not source.exists():
        raise SystemExit(f"{source} is not there; run: paceline models pull {preset}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=preset + "."))
    try:
        _make(source, made)
        made.replace(folder)
    except OSError:
        if not (folder / "config.json").exists():  # nor has another process made it meanwhile
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _make(source: Path, folder: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    tensors = {
        name: tensor.to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name not in tied
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {key: value for key, value in model.config.to_dict().items() if key != "quantization_config"}
    config |= {"architectures": [type(model).__name__], "torch_dtype": "bfloat16", "dtype": "bfloat16"}
    AutoTokenizer.from_pretrained(**where).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config, indent=1, default=str), encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(as_safetensors(name))
