"""What tests of the kernels share."""

import pytest

from vaswani.kernels import onednn
from vaswani.kernels.registry import hook_in_kernels

hook_in_kernels()


@pytest.fixture(params=["Intel", "another"])
def maker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The processor's maker: on others than Intel's, more products go to oneDNN."""
    monkeypatch.setattr(onednn, "IS_INTEL_CPU", request.param == "Intel")
    return request.param
