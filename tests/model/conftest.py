"""What tests of the model share."""

import pytest

from vaswani.model import onednn


@pytest.fixture(params=["Intel", "another"])
def maker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of the processor: on others than Intel's, more products go to oneDNN."""
    monkeypatch.setattr(onednn, "IS_INTEL_CPU", request.param == "Intel")
    return request.param
