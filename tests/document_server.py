"""The commands of the documents, at a small size, in copies of one process that has imported everything.

    python document_server.py SOCKET

A client (see `CLIENT`) lends its standard streams, folder, arguments and environment, and gets the status.
`python` runs the code that is its argument; `vaswani` runs a command, made small by the tables.
"""

import json
import os
import shutil
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from threading import Thread
from urllib.error import URLError
from urllib.request import urlopen

import yaml

from forking import import_everything
from tiny_runs import TINY_MODEL, in_file, leave_out_slow_parts
from vaswani.cli import main
from vaswani.files.named_configs import find_config
from vaswani.training.trainer.labels import TASKS

CLIENT = """#!{python} -SE
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
request = {{"name": os.path.basename(sys.argv[0]), "arguments": sys.argv[1:], "folder": os.getcwd()}}
socket.send_fds(server, [b" "], [0, 1, 2])
server.sendall(json.dumps({{**request, "environment": dict(os.environ)}}).encode())
server.shutdown(socket.SHUT_WR)
sys.exit(int(server.recv(8)))
"""
LONGEST = 120  # seconds

with socket.socket() as _probe:
    _probe.bind(("127.0.0.1", 0))
    DEMO_PORT = _probe.getsockname()[1]  # a free one

# What makes a command small: options that are set, whatever stands in the document.
TRAINING = {"max_steps": 2, "eval_steps": 2, "save_steps": 2, "logging_steps": 1, "max_tokens_per_batch": 600}
TRAINING |= {"use_cpu": True, "disable_tqdm": True}
SEARCH = {"num_beams": 1, "max_length": 8, "device": "cpu"}
GENERATION = {"generation_max_length": 8, "generation_num_beams": 1, "max_validation_rows": 4}
SMALL: dict[str, dict[str, object]] = {
    "train": {**TRAINING, **GENERATION},
    "distill": {**TRAINING, **GENERATION, "teacher_num_beams": 1, "encoder_layers": 1, "decoder_layers": 1},
    "pretrain": {**TRAINING, "max_validation_rows": 4, "max_tokens_per_batch": 4200},  # one of 4,096
    "finetune": TRAINING,
    "translate": {"max_length": 8, "device": "cpu"},
    "summarize": SEARCH,
    "evaluate": SEARCH,
    "compare": SEARCH,
    "student": {"encoder_layers": 1, "decoder_layers": 1},
    "prompt": {"device": "cpu"},
    "generate": {"device": "cpu", "max_new_tokens": 8},
    "predict": {"device": "cpu"},
    "score": {"device": "cpu"},
    "align": {"device": "cpu"},
    "attention": {"device": "cpu"},
    "embed": {"device": "cpu"},
    "demo": {"device": "cpu", "port": DEMO_PORT},
    "estimate": {"batch": 1},
    "average": {"last": 1},
    **{
        name: {}
        for name in (
            "card",
            "combine",
            "configs",
            "convert",
            "env",
            "export",
            "merge",
            "plot",
            "push",
            "report",
        )
    },
}
# Models that are evaluated without decoding.
WITHOUT_SEARCH = (
    "finetune_reviews",
    "reviews_lora",
    "reviews_onnx",
    "finetune_squad",
    "mlm",
    "causal_lm",
    "completion",
    "pretrain_summarization",
)
MODEL = {**TINY_MODEL, "vocab_size": 300}  # those of them that a configuration sets
PROCESSES = ("num_processes", "fsdp_size", "tensor_parallel_size")  # one, where a document has several
PARALLEL = "parallel"  # the folder of a corpus that has the columns of all


def small(arguments: list[str]) -> list[str]:
    """The arguments of a command, so that it takes a second.

    Raises:
        KeyError: no table says how the command is made small.
    """
    name, *given = arguments
    if name.startswith("--") or "--help" in given:
        return arguments
    options = dict(SMALL[name])
    if name == "evaluate" and given[given.index("--model") + 1].endswith(WITHOUT_SEARCH):
        options = {"device": "cpu"}
    if "--reverse_model" in given and "num_beams" in options:
        options["num_beams"] = 2  # there must be hypotheses to rank
    if name == "distill" and "--objective" in given:
        options = dict(TRAINING)
    if name == "plot" and given[0] == "attention":
        options = {"device": "cpu"}
    if name == "student":  # of the stacks that it has
        options = {option: value for option, value in options.items() if f"--{option}" in given}
    settings = {}
    if "--config" in given and name not in ("plot", "estimate"):  # which have no folder
        config = find_config(given[given.index("--config") + 1])
        settings = yaml.safe_load(config.read_text(encoding="utf-8"))
        options |= {field: value for field, value in MODEL.items() if field in settings}
        of_pairs = "objective" not in settings and settings.get("task") not in TASKS
        if name == "distill" and not of_pairs:
            options = dict(TRAINING)
        if name in ("train", "distill") and of_pairs and not {"--dataset", "--train_file"} & set(given):
            options["dataset"] = PARALLEL
            settings.pop("dataset_config", None)
        delete_earlier_output(given, settings["output_dir"])
    if "dates" in given and "--data" in given:
        options["data"] = f"{PARALLEL}/test.jsonl"
    processes = [f"--{option}=1" for option in PROCESSES if f"--{option}" in given]
    for option in (*options, *PROCESSES):
        leave_out(given, option)
    if name in ("train", "distill", "pretrain", "finetune"):
        leave_out(given, "config")
        # In a file, options may have no effect beside others.
        file = in_file({**settings, **options}, Path(f"options-{os.getpid()}"))
        return [name, *given, *processes, f"--config={file}"]
    return [name, *given, *processes, *(f"--{option}={value}" for option, value in options.items())]


def leave_out(given: list[str], option: str) -> None:
    """Remove a flag and its value."""
    if f"--{option}" in given:
        at = given.index(f"--{option}")
        del given[at : at + 2]


def delete_earlier_output(given: list[str], folder: str) -> None:
    """Delete what a command of another page has left where this one writes, unless it continues that run."""
    if "--output_dir" in given:
        folder = given[given.index("--output_dir") + 1]
    if "--resume_from_checkpoint" not in given:
        shutil.rmtree(folder, ignore_errors=True)


def serve(address: str) -> None:
    """Until this process is ended."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        import_everything()
        print("ready", flush=True)
        while True:
            client, _ = server.accept()
            with client:
                _, streams, _, _ = socket.recv_fds(client, 1, 3)
                request = json.loads(b"".join(iter(lambda: client.recv(65536), b"")))  # noqa: B023
                copy = os.fork()
                if not copy:
                    server.close()
                    run(streams, **request)
                for stream in streams:
                    os.close(stream)
                _, status = os.waitpid(copy, 0)
                client.sendall(str(os.waitstatus_to_exitcode(status) % 256).encode())


def run(
    streams: list[int], name: str, arguments: list[str], folder: str, environment: dict[str, str]
) -> None:
    """Run a command, or code, in this copy of the process, which ends with it."""
    status = 1
    try:
        signal.alarm(LONGEST)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in enumerate("rww"))
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        if name == "python":
            exec(compile(arguments[0], "document", "exec"), {"__name__": "__main__"})
        else:
            leave_out_slow_parts()
            sys.argv = ["vaswani", *small(arguments)]
            if arguments[0] == "demo":
                Thread(target=end_when_served, daemon=True).start()
            main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def end_when_served() -> None:
    """Open the page that this process serves, then end the process as a user does."""
    while True:
        try:
            with urlopen(f"http://127.0.0.1:{DEMO_PORT}/") as page:
                assert "gradio" in page.read().decode()
            break
        except URLError:
            time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    serve(Path(sys.argv[1]).as_posix())
