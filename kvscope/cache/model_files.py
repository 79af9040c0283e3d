"""Finds a model's ``config.json``: a file, a Hugging Face folder, or one of the presets that come along."""

import importlib.resources
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvscope.errors import UsageError


def load_config(name: str) -> tuple[str, Mapping[str, Any]]:
    """Return what to call the model in messages, and its keys.

    ``name`` is a path, or a preset's name or repository (`llama-3-70b`, `meta-llama/Meta-Llama-3-70B`).
    Raises ``UsageError`` naming what was looked for.
    """
    path = Path(name)
    try:
        if path.is_dir():
            path /= "config.json"
        text = path.read_text(encoding="utf-8") if path.exists() else None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as text: {error}") from error
    if text is not None:
        return path.name if path.name != "config.json" else str(path), _object(text, path)
    found = _preset(name)
    if found is None:
        known = ", ".join(sorted(presets()))
        raise UsageError(f"{name} is neither a config.json, nor a folder with one, nor a preset: {known}")
    return found


def presets() -> dict[str, dict[str, Any]]:
    """Return the presets by name: the needed keys of published files, and whose they are."""
    file = importlib.resources.files("kvscope.cache") / "presets.json"
    loaded: dict[str, dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    return loaded


def _preset(name: str) -> tuple[str, Mapping[str, Any]] | None:
    wanted = name.lower()
    for preset, entry in presets().items():
        source = str(entry["source"]).lower()
        if wanted in {preset, source, source.rpartition("/")[2]}:
            return preset, entry["config"]
    return None


def _object(text: str, path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"{path} must hold a JSON object, not a {type(value).__name__}")
    return value
