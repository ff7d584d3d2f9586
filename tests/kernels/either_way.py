"""Test code that C++ computes if there is a compiler, and PyTorch otherwise, in both ways."""

from types import ModuleType
from typing import Any

import pytest


def either_way(module: ModuleType) -> Any:
    """A fixture: who computes, with the library of a module and without it."""

    @pytest.fixture(params=["C++", "operators"])
    def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
        if request.param == "operators":
            monkeypatch.setattr(module, "library", lambda: None)
        elif module.library() is None:
            pytest.skip("NO C++ KERNEL: there is no compiler, or the processor is none of ours")
        return request.param

    return by
