"""The command in adverse conditions: a hostile or deleted folder, interrupted, without a reader."""

import os
import signal
import subprocess
import sys
import time
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import torch

import vaswani
from rank_processes import CONTEXT, log_of
from tiny_runs import as_flags, datasets_cache, dates, tiny_run
from vaswani.cli import startup
from vaswani.files import named_configs

pytestmark = pytest.mark.process

__all__ = ["datasets_cache", "dates", "tiny_run"]

MODULES = {*sys.stdlib_module_names, *packages_distributions(), "vaswani"}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The command as pip installs it."""
    path = tmp_path / "bin" / "vaswani"
    path.parent.mkdir()
    path.write_text(f"#!{sys.executable}\nimport sys\nfrom vaswani.cli import main\nsys.exit(main())\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with a file named like each module; `ran` lists those that were imported."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in filter(str.isidentifier, MODULES):
        path = folder / f"{name}.py"
        path.write_text(
            f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')\nraise SystemExit('hostile')\n"
        )
    return folder


def environment(**variables: object) -> dict[str, str]:
    source = str(Path(vaswani.__file__).parents[1])
    here = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return {**here, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", **{k: str(v) for k, v in variables.items()}}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["script", "module", "torchrun", "accelerate"])
def test_nothing_is_imported_from_the_current_folder(hostile, script, way):
    beside = Path(sys.executable).parent
    command = {
        "script": [script],
        "module": [sys.executable, "-m", "vaswani"],
        "torchrun": [beside / "torchrun", "--nproc_per_node", "1", "--no-python", script],
        "accelerate": [
            *(
                beside / "accelerate",
                "launch",
                "--config_file",
                named_configs.FOLDER / "accelerate" / "ddp.yaml",
            ),
            *("--num_processes", "1", "--cpu", "--no_python", script),
        ],
    }[way]
    if way == "module":  # nobody can help what Python imports on its way to us
        on_the_way = [sys.executable, "-c", "import runpy, sys; print(*sys.modules, 'vaswani')"]
        for name in subprocess.run(on_the_way, capture_output=True, text=True, check=True).stdout.split():
            (hostile / f"{name}.py").unlink(missing_ok=True)
    process = subprocess.run(
        [*command, "plot", "--help"],
        cwd=hostile,
        env=environment(HOME="/proc/nowhere"),  # and none of the libraries needs a home
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    ran = hostile.with_name("ran")
    assert not ran.exists(), ran.read_text()
    assert process.returncode == 0, process.stderr
    assert "sparse-pattern" in process.stdout


@pytest.mark.slow
def test_training_processes_ignore_the_current_folder_and_end_with_their_reader(
    hostile, script, tiny_run, datasets_cache
):
    options = tiny_run | {"max_steps": 100_000, "save_steps": 10, "dataloader_num_workers": 1}
    command = [script, "train", *as_flags(options), "--num_processes", "2"]
    process = subprocess.Popen(
        command,
        cwd=hostile,
        env=environment(HF_DATASETS_CACHE=datasets_cache, PYTHONUNBUFFERED=1),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in process.stdout:
        if "'grad_norm'" in line and Path(tiny_run["output_dir"], "checkpoint-10").exists():
            break
    process.stdout.close()  # as after `| head`
    errors = process.stderr.read()
    assert process.wait() == 128 + signal.SIGPIPE, errors
    ran = hostile.with_name("ran")
    assert not ran.exists(), ran.read_text()
    assert "Traceback" not in errors
    told = [line for line in errors.splitlines() if line.startswith("vaswani: ")]
    assert len(told) == 1, errors
    assert told[0].startswith(
        "vaswani: nobody reads standard output any more; the last complete checkpoint is "
    )


def train(options: dict, stdout: str, stderr: str) -> None:
    """`vaswani train`, started with these descriptors."""
    from vaswani.cli import main

    os.dup2(_opened(stderr), 2)
    os.dup2(_opened(stdout), 1)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    torch.set_num_threads(1)
    sys.argv = ["vaswani", "train", *as_flags(options)]
    main()


def _opened(kind: str) -> int:
    if kind != "pipe":
        return os.open(kind, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.exhaustive(after=2)
@pytest.mark.parametrize(
    ("stdout", "stderr", "status", "message"),
    [
        ("pipe", None, 141, "nobody reads standard output any more; "),
        ("/dev/full", None, 1, "cannot write standard output: No space left on device; "),
        ("/dev/null", "pipe", 0, None),
        ("/dev/null", "/dev/full", 0, None),
        ("pipe", "pipe", 141, None),
    ],
)
def test_a_training_with_failing_output_streams_has_the_right_exit_status(
    tiny_run, stdout, stderr, status, message
):
    log = log_of(tiny_run["output_dir"], 0)
    process = CONTEXT.Process(target=train, args=(tiny_run, stdout, stderr or str(log)))
    process.start()
    process.join(60)
    assert process.exitcode == status
    if message:
        assert "Traceback" not in log.read_text()
        assert log.read_text().strip().splitlines()[-1].startswith(f"vaswani: {message}no checkpoint ")


def test_closed_standard_streams_are_reopened_before_other_files(tmp_path, script):
    record = tmp_path / "record"
    script.write_text(
        f"import sys\nfrom vaswani.cli.startup import prepare_process\nprepare_process()\n"
        f"opened = open({str(record)!r}, 'w')\n"
        "opened.write(str(opened.fileno()))\n"
        "print('lost')\nprint('lost', file=sys.stderr)\nsys.stdout.flush()\n"
    )
    shell = f'"{sys.executable}" "{script}" <&- >&- 2>&-'
    assert subprocess.run(["sh", "-c", shell], env=environment(), check=False, timeout=60).returncode == 0
    assert int(record.read_text()) > 2


def test_a_deleted_current_folder_gives_an_error(tmp_path, script):
    gone = tmp_path / "gone"
    gone.mkdir()
    shell = f'cd "{gone}" && rmdir "{gone}" && exec "{sys.executable}" "{script}" --help'
    process = subprocess.run(
        ["sh", "-c", shell], env=environment(), capture_output=True, text=True, check=False, timeout=60
    )
    assert process.returncode == 2
    assert process.stderr == ("vaswani: the current folder was deleted; change into another one (cd)\n")


def test_ctrl_c_at_any_moment_of_the_imports_ends_with_one_line(script):
    for imported in ("_multiarray_umath", "libc10", "libtorch_python"):  # what is mapped into memory by then
        process = subprocess.Popen(
            [sys.executable, script, "translate", "--model", "no/such"],
            env=environment(HF_HUB_OFFLINE=1),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        maps = Path(f"/proc/{process.pid}/maps")
        while imported not in maps.read_text():
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        assert (process.returncode, output, errors) == (1, "", "vaswani: interrupted\n"), imported


def test_a_program_that_imports_the_package_keeps_its_signals_and_streams():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert not isinstance(sys.__stdout__, startup._Output)


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_process_that_ignores_sigterm_is_killed_after_its_launcher_ends(monkeypatch):
    monkeypatch.setattr(startup, "SECONDS_WITHOUT_LAUNCHER", 0.3)
    reader, writer = os.pipe()
    launcher = os.fork()
    if not launcher:
        child = os.fork()
        if not child:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.write(writer, f"{os.getpid()}\n".encode())
            startup._end_with(os.getppid())
            os._exit(0)
        time.sleep(60)
        os._exit(0)
    child = int(os.read(reader, 100))
    assert not has_ended(child)
    os.kill(launcher, signal.SIGKILL)
    os.waitpid(launcher, 0)
    deadline = time.monotonic() + 30
    while not has_ended(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)
