"""How long commands and imports take to start, beside an import of transformers.

Every measurement is a process of its own; all are interleaved, and the median of the rounds counts.

    python benchmarks/startup.py [--rounds 5] [--quick] [--json]
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys

import typer

from vaswani.cli.commands import app

LIBRARY = "from transformers import AutoModelForSeq2SeqLM"
IMPORTS = (LIBRARY, "import vaswani", f"import vaswani; {LIBRARY}", "from vaswani import Translator")
CODE = """
import json, sys
sys.argv = ["vaswani", *json.loads(sys.argv[1])]
from vaswani.cli import main
main()
"""
# Each process reports its time and modules at its end, on a separate descriptor.
REPORT = """
import atexit, json, os, sys
def report():
    record = {"modules": len(sys.modules), "torch": "torch" in sys.modules}
    os.write(int(os.environ["REPORT_TO"]), json.dumps(record).encode())
atexit.register(report)
"""


def commands() -> list[str]:
    """Every command, by the words that call it."""
    found = []
    for name, command in typer.main.get_command(app).commands.items():
        found.append(name)
        found += [f"{name} {inner}" for inner in getattr(command, "commands", ())]
    return found


def measure(code: str, *arguments: str) -> dict[str, float]:
    """The CPU-seconds of a new process that runs the code, its modules, and whether torch is one of them."""
    reads, writes = os.pipe()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", REPORT + code, *arguments],
        env={**os.environ, "REPORT_TO": str(writes), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        pass_fds=[writes],
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    os.close(writes)
    with os.fdopen(reads) as report:
        record = json.loads(report.read())
    return record | {"cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def measure_all(rounds: int, names: list[str]) -> dict[str, dict[str, float]]:
    """The median of the rounds, for each import and each command's help."""
    cases = {statement: (statement,) for statement in IMPORTS}
    for name in names:
        words = [*name.split(), "--help"]
        cases[" ".join(["vaswani", *words])] = (CODE, json.dumps(words))
    records: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, arguments in cases.items():
            records[name].append(measure(*arguments))
    return {
        name: records[name][0] | {"cpu": statistics.median(record["cpu"] for record in records[name])}
        for name in cases
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="processes for each line; the median counts")
    parser.add_argument("--quick", action="store_true", help="show that it runs, with few commands")
    parser.add_argument("--json", action="store_true", help="end with a JSON object on the last line")
    args = parser.parse_args()
    records = measure_all(1, ["", "train"]) if args.quick else measure_all(args.rounds, ["", *commands()])
    print("| process | CPU-seconds | modules | torch |\n|---|---|---|---|")
    for name, record in records.items():
        torch = "yes" if record["torch"] else "no"
        print(f"| `{name}` | {record['cpu']:.2f} | {record['modules']:,} | {torch} |")
    if args.json:
        print(json.dumps({"cpu_seconds": {name: record["cpu"] for name, record in records.items()}}))


if __name__ == "__main__":
    main()
