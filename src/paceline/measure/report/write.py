"""Writes a report's files: `report.json`, `report.html` and `paceline.yaml`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError
from paceline.measure.report.configuration import configuration
from paceline.measure.report.page import page

JSON_FILE, HTML_FILE, CONFIG_FILE = "report.json", "report.html", "paceline.yaml"


def write(report: Mapping[str, Any], folder: Path) -> None:
    """Write all files of a report into a folder that is there.

    Raises:
        ConfigError: a file cannot be written.
    """
    config = configuration(report)
    files = {
        JSON_FILE: json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
        HTML_FILE: page(report, config),
        CONFIG_FILE: config,
    }
    for name, text in files.items():
        try:
            (folder / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                given=f"{folder / name} ({error.strerror})",
                expected="a file that can be written",
                remedy="Give another --output",
            ) from None
