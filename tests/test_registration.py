"""The Auto classes know the models from `import vaswani` on, which imports neither torch nor transformers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import transformers
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import vaswani
from vaswani import VaswaniDecoderConfig, VaswaniForCausalLM, VaswaniModel, registration
from vaswani.auto_classes import MAPPINGS, models_of
from vaswani.interop.sparsify import sparse_config_class
from vaswani.registration import CONFIGURATIONS, ClassStandIn

SOURCE = str(Path(vaswani.__file__).parents[1])
TINY = (
    "d_model=8, encoder_layers=1, decoder_layers=1, encoder_attention_heads=1, decoder_attention_heads=1, "
    "encoder_ffn_dim=8, decoder_ffn_dim=8, vocab_size=9"
)
MAKE_ONE = f"""
from transformers import AutoConfig, AutoModelForSeq2SeqLM
config = AutoConfig.for_model("vaswani", {TINY})
assert AutoModelForSeq2SeqLM._model_mapping[type(config)].__name__ == "VaswaniForConditionalGeneration"
model = AutoModelForSeq2SeqLM.from_config(config)
assert isinstance(model, vaswani.VaswaniForConditionalGeneration), type(model)
"""
BEGINNINGS = (  # of programs, in each of which transformers imports its modules in another order
    "import vaswani",
    "import vaswani; from transformers.modeling_utils import PreTrainedModel",
    "import vaswani; from transformers import Trainer, pipeline",
    "from transformers import AutoModel; import vaswani",
    "import vaswani.interop.sparsify",
)


def run_python(code: str) -> str:
    variables = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False, timeout=300
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_the_import_loads_no_large_library():
    code = "import sys, vaswani; print(sorted({'torch', 'transformers', 'numpy', 'yaml'} & set(sys.modules)))"
    assert run_python(code) == "[]\n"


@pytest.mark.slow
def test_models_are_registered_for_any_import_order():
    # Each beginning runs in a copy of one process, which has imported neither transformers nor vaswani.
    code = "import os, sys, torch\n" + "".join(
        f"child = os.fork()\n"
        f"if not child:\n"
        f"    exec({beginning + MAKE_ONE!r})\n"
        f"    os._exit(0)\n"
        f"if os.waitpid(child, 0)[1]: sys.exit({beginning!r})\n"
        for beginning in BEGINNINGS
    )
    run_python(code)


@pytest.mark.parametrize("model_type", CONFIGURATIONS)
def test_every_configuration_is_registered(model_type):
    config_class = CONFIG_MAPPING[model_type]
    assert config_class.model_type == model_type
    assert config_class.__name__ == CONFIGURATIONS[model_type][1]


@pytest.mark.parametrize("model_type", ["bert", "gpt2", "marian", "xlm-roberta", "qwen3_moe"])
def test_every_library_model_type_has_a_sparse_one(model_type):
    sparse = CONFIG_MAPPING[f"vaswani_sparse_{model_type}"]
    assert sparse.model_type == f"vaswani_sparse_{model_type}"
    assert sparse.dense_class is CONFIG_MAPPING[model_type]
    assert sparse_config_class(CONFIG_MAPPING[model_type])().model_type == sparse.model_type


@pytest.mark.parametrize("name", ["VaswaniConfig", "VaswaniEncoderConfig", "VaswaniDecoderConfig"])
def test_every_auto_class_maps_to_the_class_itself(name):
    config_class = getattr(vaswani, name)
    for auto_class, place in config_class.auto_classes.items():
        if auto_class != "AutoConfig":
            expected = getattr(vaswani, place.rpartition(".")[2])
            assert getattr(transformers, auto_class)._model_mapping[config_class] is expected


@pytest.mark.parametrize("name", ["VaswaniConfig", "VaswaniEncoderConfig", "VaswaniDecoderConfig"])
def test_every_model_is_known_to_the_auto_class_for_pretraining(name):
    """As BART, BERT and GPT-2 are."""
    assert getattr(vaswani, name) in transformers.AutoModelForPreTraining._model_mapping


@pytest.mark.parametrize("name", MAPPINGS)
def test_models_of_returns_the_mapping_of_the_auto_class(name):
    auto_class = getattr(transformers, name)
    assert models_of(auto_class) is auto_class._model_mapping


def test_public_names_can_be_imported_from_the_package():
    for name in vaswani.__all__:
        assert getattr(vaswani, name).__name__ == name
        assert name in dir(vaswani)
    with pytest.raises(AttributeError, match="no attribute 'Vaswani'"):
        _ = vaswani.Vaswani


def test_a_stand_in_behaves_as_the_class():
    stand_in = ClassStandIn("vaswani.model.modeling_vaswani_decoder", "VaswaniForCausalLM", {})
    config = VaswaniDecoderConfig(
        vocab_size=9, d_model=8, decoder_layers=1, decoder_attention_heads=1, decoder_ffn_dim=8
    )
    model = stand_in(config)
    assert type(model) is VaswaniForCausalLM
    assert isinstance(model, stand_in)
    assert issubclass(VaswaniForCausalLM, stand_in)
    assert not issubclass(VaswaniModel, stand_in)
    assert stand_in.__name__ == "VaswaniForCausalLM"
    assert stand_in.__module__ == VaswaniForCausalLM.__module__
    assert stand_in.config_class is VaswaniDecoderConfig
    assert repr(stand_in) == repr(VaswaniForCausalLM)


def test_a_class_registered_by_the_user_is_kept():
    class Mine(VaswaniForCausalLM):
        pass

    AutoModelForCausalLM.register(VaswaniDecoderConfig, Mine, exist_ok=True)
    try:
        registration.register_auto_classes()
        assert AutoModelForCausalLM._model_mapping[VaswaniDecoderConfig] is Mine
    finally:
        AutoModelForCausalLM.register(VaswaniDecoderConfig, VaswaniForCausalLM, exist_ok=True)


def test_an_unknown_model_type_raises_the_usual_error():
    with pytest.raises(ValueError, match="Unrecognized model identifier"):
        AutoConfig.for_model("vaswani_other")
    assert vaswani.VaswaniConfig in AutoModel._model_mapping
