"""Helpers for trainers of models with an adapter (see `hub/adapters.py`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def base_model(model: Any) -> Any:
    """The model without the wrapper of its adapter, whose layers remain adapted; other models as they are."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def describe_adapted(model: Any, folder: Path) -> None:
    """Write the configurations and a sample of an adapted model to its folder; nothing for other models."""
    whole = base_model(model)
    if whole is not model:
        from vaswani.hub.adapters import write_sample  # lazy: most models have no adapter

        write_sample(model, folder)
        whole.config.save_pretrained(folder)
        if whole.can_generate():
            whole.generation_config.save_pretrained(folder)
