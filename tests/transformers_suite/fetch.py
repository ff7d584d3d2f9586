"""Fetch the tests in the source distribution of transformers: `python tests/transformers_suite/fetch.py`.

pip downloads the distribution of exactly the installed version, from whatever index pip is set up with. Only
`tests/*.py` is kept, as the package `transformers_tests` in `.source/<version>/`. What is there stays.
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

SOURCE = Path(__file__).parent / ".source" / version("transformers")
PACKAGE = "transformers_tests"


def download(requirement: str, destination: Path) -> Path:
    """Return the path of the source distribution of `requirement`, downloaded by pip into `destination`."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "transformers"]
    subprocess.run([*command, "--dest", str(destination), requirement], check=True)
    (archive,) = destination.glob("*.tar.gz")
    return archive


def unpack_tests(archive: Path, package: Path) -> int:
    """Write the modules directly under `tests/` of `archive` into `package`; return their number."""
    count = 0
    with tarfile.open(archive) as tar:
        for member in tar:
            path = Path(member.name)
            if member.isfile() and path.parts[1:-1] == ("tests",) and path.suffix == ".py":
                (package / path.name).write_bytes(tar.extractfile(member).read())
                count += 1
    return count


def main() -> int:
    requirement = f"transformers=={SOURCE.name}"
    if SOURCE.exists():
        print(f"The tests of {requirement} are in {SOURCE}.")
        return 0
    print(f"Fetching the tests of {requirement} with pip ...", flush=True)
    SOURCE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=SOURCE.parent) as folder:
        package = Path(folder) / SOURCE.name / PACKAGE
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        try:
            count = unpack_tests(download(requirement, Path(folder)), package)
        except subprocess.CalledProcessError:
            print(f"pip could not download the source distribution of {requirement}.", file=sys.stderr)
            return 1
        shutil.move(package.parent, SOURCE)  # last, so that an interrupted fetch leaves nothing half done
    print(f"Kept {count} test modules in {SOURCE}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
