"""Versions of transformers that the models do not fit are refused."""

import re
from pathlib import Path

import pytest
import transformers

from vaswani.model.compatibility import TOO_NEW, check_version


def test_the_installed_version_fits():
    check_version(transformers.__version__)


@pytest.mark.parametrize("version", ["5.24.0", "5.24.0.dev0", "5.30.1", "6.0.0"])
def test_newer_versions_are_refused_with_the_remedy(version):
    message = f"before 5.24, and {version} is installed; pip install 'transformers<5.24'"
    with pytest.raises(ImportError, match=re.escape(message)):
        check_version(version)


def test_the_package_asks_for_no_other():
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"transformers>=5.12,<{".".join(map(str, TOO_NEW))}"' in project
