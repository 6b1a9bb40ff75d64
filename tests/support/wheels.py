"""Tiny wheels that carry parts of a file, as the packages of the presets do."""

from __future__ import annotations

import zipfile
from pathlib import Path


def write_wheel(folder: Path, name: str, version: str, payload_name: str, payload: bytes) -> Path:
    """Write `NAME-VERSION-py3-none-any.whl` with one payload, and return its path."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{module}/__init__.py", "")
        wheel.writestr(f"{module}/{payload_name}", payload)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def write_parts(folder: Path, stem: str, version: str, content: bytes, count: int) -> None:
    """Cut `content` into `count` parts of nearly one size, a wheel for each."""
    folder.mkdir(parents=True, exist_ok=True)
    size = -(-len(content) // count)
    for number in range(1, count + 1):
        part = content[(number - 1) * size : number * size]
        write_wheel(folder, f"{stem}{number}", version, f"data/part{number:02d}.bin", part)
