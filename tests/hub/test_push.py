"""Pushing with the real client to a Hub on loopback, and loading from it in other processes."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from loopback_hub import LoopbackHub, Run
from toy_translation import save_toy_checkpoint, toy_model, toy_sources
from vaswani import VaswaniConfig
from vaswani.hub.push import _stale, code_files

pytestmark = pytest.mark.slow  # each command is a process of its own

SOURCES = toy_sources(3, seed=5, longest=12)

LOAD = """
import importlib.util, json, sys
if {plugin}:
    import vaswani
import torch
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

def outputs(repo, options):
    tokenizer = AutoTokenizer.from_pretrained(repo, **options)
    model = AutoModelForSeq2SeqLM.from_pretrained(repo, **options).eval()
    base = AutoModel.from_pretrained(repo, **options).eval()
    inputs = tokenizer({sources}, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = base(**inputs, decoder_input_ids=inputs["input_ids"][:, :2]).last_hidden_state
    return {{
        "greedy": model.generate(**inputs, max_length=20).tolist(),
        "beam": model.generate(**inputs, max_length=20, num_beams=3).tolist(),
        "states": states.tolist(),
    }}

all_outputs = [outputs(repo, options) for repo, options in {models}]
has_plugin = importlib.util.find_spec("vaswani") is not None
ran_remote_code = any(name.startswith("transformers_modules.") for name in sys.modules)
print(json.dumps([all_outputs, has_plugin, ran_remote_code]))
"""
TRUSTED = {"trust_remote_code": True}


def load_code(models: Iterable[tuple[str, dict[str, Any]]], *, plugin: bool) -> str:
    return LOAD.format(plugin=plugin, models=list(models), sources=SOURCES)


def loaded(printed: str, *, plugin: bool) -> list[dict[str, Any]]:
    """What that code has made of the models; only without the plugin it runs their code."""
    outputs, has_plugin, ran_remote_code = json.loads(printed.splitlines()[-1])
    assert has_plugin == plugin
    assert ran_remote_code != plugin
    return outputs


def load(run: Run, *models: tuple[str, dict[str, Any]], plugin: bool) -> list[dict[str, Any]]:
    """What a copy of a process makes of models, each with its options."""
    return loaded(run(["-c", load_code(models, plugin=plugin)]).stdout, plugin=plugin)


def outputs_here(folder: Path) -> dict[str, Any]:
    """The same outputs, from the folder, in this process."""
    from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

    inputs = AutoTokenizer.from_pretrained(folder)(SOURCES, padding=True, return_tensors="pt")
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    with torch.no_grad():
        base = AutoModel.from_pretrained(folder).eval()
        states = base(**inputs, decoder_input_ids=inputs["input_ids"][:, :2]).last_hidden_state
    return {
        "greedy": model.generate(**inputs, max_length=20).tolist(),
        "beam": model.generate(**inputs, max_length=20, num_beams=3).tolist(),
        "states": states.tolist(),
    }


def assert_equal(actual: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """The same tokens, and states that differ by rounding: without the plugin, no kernel computes them."""
    assert len(actual) == len(expected)
    for mine, theirs in zip(actual, expected, strict=True):
        assert (mine["greedy"], mine["beam"]) == (theirs["greedy"], theirs["beam"])
        states = torch.tensor(mine["states"]), torch.tensor(theirs["states"])
        torch.testing.assert_close(*states, rtol=1e-5, atol=1e-5)


SPARSE = {"encoder_attention": "sparse", "sparse_block_size": 4, "sparse_random_blocks": 1}


def test_a_pushed_model_gives_the_same_outputs_with_and_without_the_plugin(
    hub: LoopbackHub, run_python: Run, run: Run, tmp_path: Path, python_without_plugin: Path
) -> None:
    """In processes that import everything themselves."""
    expected = []
    for name, fields in (("dense", {}), ("sparse", SPARSE)):
        folder = save_toy_checkpoint(tmp_path / name, **fields)
        assert "published" in run(["push", "--model", str(folder), "--repo", name]).stdout
        expected.append(outputs_here(folder))
    assert any(path.startswith("/objects/") for _, path in hub.requests)  # large files went their own way

    models = [("ada/dense", {}), ("ada/sparse", {})]
    trusting = [(name, TRUSTED) for name, _ in models]
    bare = {"python": python_without_plugin, "cache": "other"}

    def load_anew(*models: tuple[str, dict[str, Any]], plugin: bool, **environment: Any) -> Any:
        result = run_python("-c", load_code(models, plugin=plugin), **environment)
        return loaded(result.stdout, plugin=plugin)

    assert_equal(load_anew(*trusting, plugin=False, **bare), expected)
    # Local code wins, whatever is trusted.
    assert load_anew(*models, *trusting, plugin=True) == 2 * expected

    hub.cut = lambda method, path: True  # from here on there is no network
    assert_equal(load_anew(*trusting, plugin=False, **bare, HF_HUB_OFFLINE="1"), expected)
    assert load_anew(*models, plugin=True, HF_HUB_OFFLINE="1") == expected


def test_a_repository_holds_only_the_model_its_tokenizer_and_its_code(
    hub: LoopbackHub, run: Run, tmp_path: Path
) -> None:
    folder = save_toy_checkpoint(tmp_path / "toy", separate=True)
    for name in ("training_args.bin", "optimizer.pt", "notes.txt", "trainer_state.json"):
        (folder / name).write_bytes(b"mine")
    (folder / "checkpoint-5").mkdir()
    (folder / "checkpoint-5" / "model.safetensors").write_bytes(b"mine")
    run(["push", "--model", str(folder), "--repo", "ada/toy"])
    code = {path.name for path in code_files(VaswaniConfig())}
    tokenizer = {"tokenizer.json", "tokenizer_config.json"}
    assert set(hub.files("ada/toy")) == {
        *("README.md", "config.json", "generation_config.json", "model.safetensors"),
        *code,
        *tokenizer,
        *(f"target_tokenizer/{name}" for name in tokenizer),
    }
    assert {"modeling_vaswani.py", "configuration_vaswani.py", "sparse_attention.py"} <= code
    assert not any(str(tmp_path).encode() in content for content in hub.files("ada/toy").values())
    assert json.loads(hub.files("ada/toy")["config.json"])["auto_map"]["AutoModel"]


def test_the_chat_template_of_a_pushed_model_is_loaded(hub: LoopbackHub, run: Run, tmp_path: Path) -> None:
    folder = save_toy_checkpoint(tmp_path / "chatty")
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    run(["push", "--model", str(folder), "--repo", "chatty"])
    code = """
from vaswani.data.tokenization import load_tokenizers
from vaswani.hub.checkpoint import local_folder
print(load_tokenizers(local_folder("ada/chatty"))[0].chat_template)
"""
    assert run(["-c", code]).stdout.splitlines()[-1] == template


def test_pushing_to_a_branch_leaves_other_revisions_unchanged(
    hub: LoopbackHub, run: Run, tmp_path: Path
) -> None:
    folder = save_toy_checkpoint(tmp_path / "toy")
    before = outputs_here(folder)
    run(["push", "--model", str(folder), "--repo", "toy"])
    first = hub.repositories["ada/toy"].branches["main"][-1].sha
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name: -weight for name, weight in weights.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    after = outputs_here(folder)
    run(["push", "--model", str(folder), "--repo", "toy", "--revision", "negative"])
    revisions = ("main", "negative", first)
    assert load(run, *(("ada/toy", {"revision": name}) for name in revisions), plugin=True) == [
        *(before, after, before)
    ]
    assert before["states"] != after["states"]

    (tmp_path / "in.txt").write_text("one two\n")
    translate = ["translate", "--model", "ada/toy", "--input", "in.txt", "--revision"]
    texts = [run([*translate, name]).stdout for name in revisions]
    assert texts[0] == texts[2] != texts[1]
    failed = run([*translate, "nowhere"], expected=2).stderr
    assert "ada/toy has no revision 'nowhere'" in failed
    assert failed.count("\n") == 1
    assert "leave it out" in run(["translate", "--model", "toy", "--revision", "main"], expected=2).stderr


def test_weights_of_an_earlier_push_are_deleted(hub: LoopbackHub, run: Run, tmp_path: Path) -> None:
    folder = save_toy_checkpoint(tmp_path / "toy")
    toy_model().save_pretrained(folder, max_shard_size="60KB")
    (folder / "model.safetensors").unlink()
    run(["push", "--model", str(folder), "--repo", "toy"])
    shards = {name for name in hub.files("ada/toy") if name.startswith("model-0")}
    assert len(shards) > 1
    assert load(run, ("ada/toy", {}), plugin=True) == [outputs_here(folder)]
    save_toy_checkpoint(folder)
    (folder / "model.safetensors.index.json").unlink()
    run(["push", "--model", str(folder), "--repo", "toy"])
    left = {name for name in hub.files("ada/toy") if name.startswith("model.") or name in shards}
    assert left == {"model.safetensors"}


@pytest.mark.parametrize(
    ("files", "stale"),
    [
        (
            {"model.safetensors", "tokenizer.json"},
            {
                *("adapter_config.json", "adapter_model.safetensors", "adapted_sample.json", "vocab.json"),
                *("target_tokenizer/tokenizer.json", "model-00001-of-00002.safetensors"),
            },
        ),
        (
            {"adapter_config.json", "adapter_model.safetensors", "adapted_sample.json"},
            {"model.safetensors", "model-00001-of-00002.safetensors"},
        ),
    ],
    ids=["a model with one tokenizer", "an adapter without tokenizers"],
)
def test_stale_files_that_would_override_the_pushed_ones_are_deleted(
    files: set[str], stale: set[str]
) -> None:
    there = {
        *("README.md", "notes.txt", "tokenizer.json", "vocab.json", "target_tokenizer/tokenizer.json"),
        *("model.safetensors", "model-00001-of-00002.safetensors"),
        *("adapter_config.json", "adapter_model.safetensors", "adapted_sample.json"),
    }
    api: Any = SimpleNamespace(list_repo_files=lambda *_, **__: sorted(there))
    assert set(_stale(api, "ada/toy", None, dict.fromkeys(files))) == stale


def test_push_to_hub_of_transformers_uploads_code_and_a_card(
    hub: LoopbackHub, run: Run, run_without_plugin: Run, tmp_path: Path
) -> None:
    folder = save_toy_checkpoint(tmp_path / "toy")
    code = f"""
import vaswani
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained({str(folder)!r})
model.push_to_hub("toy")
AutoTokenizer.from_pretrained({str(folder)!r}).push_to_hub("toy")
AutoModel.from_pretrained({str(folder)!r}).save_pretrained("base", push_to_hub=True, repo_id="ada/base")
"""
    run(["-c", code])
    assert_equal(load(run_without_plugin, ("ada/toy", TRUSTED), plugin=False), [outputs_here(folder)])
    for name, line in (
        ("toy", "AutoModelForSeq2SeqLM.from_pretrained("),
        ("base", "AutoModel.from_pretrained("),
    ):
        card = hub.card(f"ada/{name}")
        assert f'{line}"ada/{name}", trust_remote_code=True)' in card
        assert "| Width (d_model) | 32 |" in card
        assert "automatically generated" not in card
    assert "model.encoder(**inputs)" in hub.card("ada/base")


def snippets(card: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)


@pytest.mark.parametrize("separate", [False, True], ids=["one vocabulary", "two"])
def test_the_snippets_of_a_card_run(
    hub: LoopbackHub, run: Run, run_without_plugin: Run, tmp_path: Path, separate: bool
) -> None:
    run(["push", "--model", str(save_toy_checkpoint(tmp_path / "toy", separate)), "--repo", "toy"])
    with_plugin, without = snippets(hub.card("ada/toy"))
    assert "import vaswani" in with_plugin
    assert "import vaswani" not in without
    texts = run(["-c", with_plugin]).stdout
    assert re.fullmatch(r"\['.*'\]\n", texts)
    assert run_without_plugin(["-c", without]).stdout == texts


def test_a_card_written_by_hand_is_kept(hub: LoopbackHub, run: Run, tmp_path: Path) -> None:
    folder = save_toy_checkpoint(tmp_path / "toy")
    push = ["push", "--model", str(folder), "--repo", "toy"]
    run([*push, "--license", "mit"])
    assert "license: mit" in hub.card("ada/toy")
    run([*push, "--license", "apache-2.0"])
    assert "license: apache-2.0" in hub.card("ada/toy")  # ours is renewed
    hub.files("ada/toy")["README.md"] = b"---\nlicense: mit\n---\nwritten on the Hub\n"
    assert "was edited and is kept" in run([*push, "--license", "apache-2.0"]).stderr
    assert "written on the Hub" in hub.card("ada/toy")
    (folder / "README.md").write_text("---\nlicense: mit\n---\nwritten here\n")
    run(push)
    assert "written here" in hub.card("ada/toy")


def test_metadata_that_the_hub_refuses_is_an_error_before_anything_is_pushed(
    hub: LoopbackHub, run: Run, tmp_path: Path
) -> None:
    folder = save_toy_checkpoint(tmp_path / "toy")
    failed = run(["push", "--model", str(folder), "--repo", "toy", "--license", "mine"], expected=2)
    assert "license" in failed.stderr
    assert failed.stderr.count("\n") == 1
    assert hub.files("ada/toy") == {}


# What goes wrong.


@pytest.mark.parametrize(
    ("options", "token", "words"),
    [
        (["--repo", "toy"], None, ["needs a token", "hf auth login", "HF_TOKEN"]),
        (["--repo", "toy"], "hf_wrong", ["does not accept the token (401)", "make a new one"]),
        (["--repo", "eve/toy"], "hf_ada", ["cannot write to eve/toy (403)", "a name of your own"]),
        (["--repo", "a/b/c"], "hf_ada", ["'a/b/c' is not a repository name", "owner/name"]),
    ],
    ids=["no token", "wrong token", "of another", "no name"],
)
def test_a_refused_push_gives_a_one_line_error(
    hub: LoopbackHub, run: Run, tmp_path: Path, options: list[str], token: str | None, words: list[str]
) -> None:
    folder = save_toy_checkpoint(tmp_path / "toy")
    failed = run(["push", "--model", str(folder), *options], token=token, expected=2)
    assert failed.stderr.startswith(f"vaswani: {folder} was not published: ")
    assert failed.stderr.count("\n") == 1
    assert all(word in failed.stderr for word in words), failed.stderr
    assert failed.stdout == ""
    assert hub.repositories == {}


@pytest.mark.parametrize("place", ["/objects/", "/api/models/ada/toy/commit/"])
def test_a_connection_cut_in_the_middle_publishes_nothing_and_a_second_push_completes(
    hub: LoopbackHub, run: Run, tmp_path: Path, place: str
) -> None:
    folder = save_toy_checkpoint(tmp_path / "toy")
    push = ["push", "--model", str(folder), "--repo", "toy"]
    hub.cut = lambda method, path: path.startswith(place)
    failed = run(push, expected=1)
    message = failed.stderr.splitlines()[-1]  # the lines before it are the client's, which tries a few times
    assert message.startswith(f"vaswani: {folder} was not published: the connection to {hub.url} failed")
    assert message.endswith("run the same command again")
    assert "Traceback" not in failed.stderr
    assert failed.stdout == ""
    assert hub.files("ada/toy") == {}
    hub.cut = lambda method, path: False
    run(push)
    assert "model.safetensors" in hub.files("ada/toy")


def test_a_private_model_needs_a_token_with_access(hub: LoopbackHub, run: Run, tmp_path: Path) -> None:
    run(["push", "--model", str(save_toy_checkpoint(tmp_path / "toy")), "--repo", "secret", "--private"])
    assert hub.repositories["ada/secret"].private
    (tmp_path / "in.txt").write_text("one two\n")
    translate = ["translate", "--model", "ada/secret", "--input", "in.txt"]
    for token, words in ((None, "needs a token"), ("hf_wrong", "(401)"), ("hf_eve", "cannot read it (404)")):
        failed = run(translate, token=token, expected=2)
        assert words in failed.stderr
        assert failed.stderr.count("\n") == 1
    assert run(translate).stdout == run(["translate", "--model", "toy", "--input", "in.txt"]).stdout != ""


def test_a_full_disk_while_downloading_is_one_clear_line(
    hub: LoopbackHub, run: Run, tmp_path: Path, hub_cache: Path
) -> None:
    name = "never_fetched"  # before: the cache is that of other tests too
    run(["push", "--model", str(save_toy_checkpoint(tmp_path / "toy")), "--repo", name])
    code = f"""
import errno, sys
import huggingface_hub.file_download as download

def http_get(url, temp_file, **options):
    temp_file.write(b"some")
    raise OSError(errno.ENOSPC, "No space left on device")

download.http_get = http_get
from vaswani.cli import run
sys.exit(run(["translate", "--model", "ada/{name}"]))
"""
    failed = run(["-c", code], expected=2)
    assert f"no space left on the disk of the cache {hub_cache / 'hub'}: free some" in failed.stderr
    assert "set HF_HOME to a folder on another disk" in failed.stderr
    assert failed.stderr.count("\n") == 1
    run(["translate", "--model", f"ada/{name}", "--input", "/dev/null"])


def test_a_folder_with_damaged_weights_is_not_pushed(hub: LoopbackHub, run: Run, tmp_path: Path) -> None:
    folder = save_toy_checkpoint(tmp_path / "toy")
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-1000])
    failed = run(["push", "--model", str(folder), "--repo", "toy"], expected=2)
    assert "damaged or half-written" in failed.stderr
    assert hub.requests == []


def test_auto_map_names_only_published_code_files() -> None:
    names = {path.stem for path in code_files(VaswaniConfig())}
    assert all(reference.partition(".")[0] in names for reference in VaswaniConfig().auto_map.values())
