"""Import the fetched mixins: `ConfigTester`, `ModelTesterMixin`, `TrainingTesterMixin`.

The source distribution has only the modules directly under transformers' `tests/`. Those import names from
three modules below it, for which this file stands in.
"""

import os
import sys
from types import ModuleType

import pytest

from .fetch import PACKAGE, SOURCE
from .generation_checks import GenerationTesterMixin

if not SOURCE.exists():
    message = (
        f"the tests of transformers {SOURCE.name} are not in {SOURCE}; get them with "
        "`python tests/transformers_suite/fetch.py` (it asks pip's package index)"
    )
    if os.environ.get("CI"):
        pytest.fail(message, pytrace=False)
    pytest.skip(message, allow_module_level=True)


class ExportTesterMixin:
    """Empty: the checks of `torch.export`, ONNX and ExecuTorch are not in the distribution."""


# Every common config field with a value that is not its default: `ConfigTester` checks that they are kept.
# Written from the fields of `PreTrainedConfig`; `test_harness.py` notices when one is missing.
CONFIG_COMMON_KWARGS = {
    "architectures": ["SomeModel"],
    "chunk_size_feed_forward": 4,
    "dtype": "float16",
    "id2label": {0: "only"},
    "is_encoder_decoder": True,
    "label2id": {"only": 0},
    "name_or_path": "somewhere",
    "output_attentions": True,
    "output_hidden_states": True,
    "problem_type": "regression",
    "return_dict": False,
}


def _stand_in(name: str, **contents: object) -> None:
    """Let `from .name import ...` inside the fetched package find `contents`."""
    package = name.partition(".")[0]
    for path, names in ((package, {}), (name, contents)):
        module = sys.modules.setdefault(f"{PACKAGE}.{path}", ModuleType(f"{PACKAGE}.{path}"))
        vars(module).update(names)


_stand_in("exporters.test_export", ExportTesterMixin=ExportTesterMixin)
_stand_in("generation.test_utils", GenerationTesterMixin=GenerationTesterMixin)
_stand_in("utils.test_configuration_utils", config_common_kwargs=CONFIG_COMMON_KWARGS)

sys.path.insert(0, str(SOURCE))
from transformers_tests.test_configuration_common import ConfigTester  # noqa: E402
from transformers_tests.test_modeling_common import ModelTesterMixin  # noqa: E402
from transformers_tests.test_training_mixin import TrainingTesterMixin  # noqa: E402

__all__ = [
    "CONFIG_COMMON_KWARGS",
    "ConfigTester",
    "GenerationTesterMixin",
    "ModelTesterMixin",
    "TrainingTesterMixin",
]
