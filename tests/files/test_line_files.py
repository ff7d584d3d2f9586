"""Lines are read in bounded memory, and output files are written completely or not at all."""

import bz2
import gzip
import io
import lzma
import os
import zipfile
from contextlib import suppress
from pathlib import Path

import pyarrow
import pytest

from vaswani.cli.splits import files_in, located
from vaswani.data.sources.reading import read_text_pair, text_lines
from vaswani.errors import RunError, UserError
from vaswani.files import line_files
from vaswani.files.line_files import LineWriter, check_not_input, count_lines, open_lines, read_lines
from vaswani.inference.inputs import LineReport, decoded


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path, partial = tmp_path / "out.txt", tmp_path / "out.txt.partial"
    path.write_text("earlier\n")
    with LineWriter(str(path)) as writer:
        writer.write("zwölf 🙂")
        assert partial.read_text() == "zwölf 🙂\n"  # passed on at once
        assert path.read_text() == "earlier\n"
    assert path.read_text() == "zwölf 🙂\n"
    assert not partial.exists()


def test_a_second_writer_of_a_file_raises_an_error(tmp_path: Path) -> None:
    path, partial = tmp_path / "out.txt", tmp_path / "out.txt.partial"
    partial.write_text("of a process that died\n")
    with LineWriter(str(path)) as writer:
        writer.write("one")
        with pytest.raises(UserError, match=r"another process writes .*out\.txt\.partial; wait for its end"):
            LineWriter(str(path))
        writer.write("two")
    assert path.read_text() == "one\ntwo\n"
    with LineWriter(str(path)) as writer:
        writer.write("three")
    assert path.read_text() == "three\n"


@pytest.mark.parametrize("name", ["out.csv", "out.TSV", "out.parquet", "out.jsonl.gz"])
def test_a_name_of_another_format_is_refused_before_any_work(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not what its name ends in; end it in \.txt or \.jsonl"):
        LineWriter(str(tmp_path / name))
    assert not list(tmp_path.iterdir())


def test_a_failure_keeps_the_earlier_and_the_partial_file(tmp_path: Path) -> None:
    path, partial = tmp_path / "out.txt", tmp_path / "out.txt.partial"
    path.write_text("earlier\n")
    writer = LineWriter(str(path))
    writer.write("1")
    writer.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert path.read_text() == "earlier\n"
    assert partial.read_text() == "1\n"


def test_the_lines_of_an_interrupted_run_are_kept_by_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, partial, old = (tmp_path / name for name in ("out.txt", "out.txt.partial", "out.txt.partial.old"))

    def write(lines: list[str], error: type[BaseException] | None) -> None:
        with suppress(KeyboardInterrupt), LineWriter(str(path)) as writer:
            for line in lines:
                writer.write(line)
            if error is not None:
                raise error

    write(["1", "2", "3"], KeyboardInterrupt)
    write([], KeyboardInterrupt)  # such as an option that is refused after the file is opened
    assert old.read_text() == "1\n2\n3\n"
    assert f"{partial} was not complete; its lines are in {old} now." in caplog.messages
    write(["1"], KeyboardInterrupt)
    write(["4", "5"], None)
    assert old.read_text() == "1\n2\n3\n"  # the longest stays
    assert path.read_text() == "4\n5\n"
    write(["1", "2", "3", "4"], KeyboardInterrupt)
    write(["6"], None)
    assert old.read_text() == "1\n2\n3\n4\n"
    assert path.read_text() == "6\n"


def test_a_run_that_wrote_no_lines_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError), LineWriter(str(tmp_path / "out.txt")):
        raise UserError("no model")
    assert list(tmp_path.iterdir()) == []


def test_a_symbolic_link_is_kept(tmp_path: Path) -> None:
    (tmp_path / "out.txt").symlink_to(tmp_path / "elsewhere.txt")
    with LineWriter(str(tmp_path / "out.txt")) as writer:
        writer.write("1")
    assert (tmp_path / "out.txt").is_symlink()
    assert (tmp_path / "elsewhere.txt").read_text() == "1\n"


def test_a_partial_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """Its name can be guessed: a link there may lead to a file of somebody else."""
    victim = tmp_path / "victim.txt"
    victim.write_text("kept")
    (tmp_path / "out.txt.partial").symlink_to(victim)
    with pytest.raises(UserError, match=r"cannot write .*out\.txt\.partial"):
        LineWriter(str(tmp_path / "out.txt"))
    assert victim.read_text() == "kept"


def test_devices_are_written_in_place() -> None:
    with LineWriter(os.devnull) as writer:
        writer.write("1")
    assert not Path(f"{os.devnull}.partial").exists()
    assert not Path(os.devnull).is_file()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, the disk that is always full")
def test_a_full_disk_raises_a_one_line_error() -> None:
    writer = LineWriter("/dev/full")
    with pytest.raises(RunError) as error:
        writer.write("1")
    assert str(error.value) == "cannot write /dev/full: No space left on device"


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    missing = str(tmp_path / "nowhere" / "file.txt")
    attempts = {
        f"cannot write {missing}: No such file or directory; create the folder "
        f"{Path(missing).parent} first": lambda: LineWriter(missing),
        f"cannot write {tmp_path}: Is a directory": lambda: LineWriter(str(tmp_path)),
        f"cannot read {missing}: No such file or directory": lambda: open_lines(missing).__enter__(),
        f"cannot read {tmp_path}: Is a directory": lambda: open_lines(str(tmp_path)).__enter__(),
    }
    for message, attempt in attempts.items():
        with pytest.raises(UserError) as error:
            attempt()
        assert str(error.value) == message


def test_impossible_file_names_raise_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("1")
    for name, reason in {
        str(tmp_path / ("x" * 300)): "File name too long",
        str(tmp_path / "file" / "x"): "Not a directory",
        "\0": "embedded null byte",
    }.items():
        check_not_input(name, tmp_path / "file")
        assert count_lines(name) is None
        with pytest.raises(UserError, match=f"cannot write .*: {reason}"):
            LineWriter(name)
        with pytest.raises(UserError, match=f"cannot read .*: {reason}"):
            open_lines(name).__enter__()


def test_lines_of_a_file_are_counted_and_those_of_a_pipe_are_not(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(b"one\ntwo\n" * 1000)
    assert count_lines(str(path)) == 2000
    path.write_bytes(b"one\ntwo\nthree")  # as `read_lines`, which yields the last line too
    assert count_lines(str(path)) == len(list(read_lines(io.BytesIO(path.read_bytes())))) == 3
    packed = tmp_path / "in.txt.GZ"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert count_lines(str(packed)) is None
    assert count_lines(str(packed), unpack=True) == 3
    assert count_lines("-") is None
    os.mkfifo(tmp_path / "pipe")
    assert count_lines(str(tmp_path / "pipe")) is None


def test_a_line_that_does_not_end_is_named_and_does_not_fill_the_memory(monkeypatch) -> None:
    monkeypatch.setattr(line_files, "LONGEST_LINE", 10)
    assert list(read_lines(io.BytesIO(b"123456789\n\n1234567890"))) == [b"123456789\n", b"\n", b"1234567890"]
    with open("/dev/zero", "rb") as endless, pytest.raises(UserError, match="line 1 of the input has more"):
        list(read_lines(endless))
    lines = read_lines(io.BytesIO(b"1\n2\n12345678901\n"))
    assert [next(lines), next(lines)] == [b"1\n", b"2\n"]
    with pytest.raises(UserError, match="line 3 of the input has more"):
        next(lines)


LINE_ENDS = {
    b"one\rtwo": ["one", "two"],
    b"one\rtwo\r": ["one", "two"],
    b"one\r\rtwo\r": ["one", "", "two"],
    b"one\r": ["one"],
    b"one\r\n": ["one"],
    b"one\rtwo\n": ["one\rtwo"],
    b"one\r\ntwo\r\n\r\nthree": ["one", "two", "", "three"],
    b"one\ntwo\rthree\n": ["one", "two\rthree"],
}


@pytest.mark.parametrize("text", LINE_ENDS)
def test_inputs_and_corpora_end_lines_alike(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(text)
    assert list(decoded(io.BytesIO(text), LineReport())) == LINE_ENDS[text]
    assert list(text_lines(path)) == LINE_ENDS[text]
    assert count_lines(str(path)) == len(LINE_ENDS[text])


def test_lines_that_end_with_carriage_returns_are_read_in_blocks(monkeypatch) -> None:
    monkeypatch.setattr(line_files, "LONGEST_LINE", 10)
    monkeypatch.setattr(line_files, "BEGINNING", 4)
    lines = [b"%d\r" % number for number in range(300)]
    assert list(read_lines(io.BytesIO(b"".join(lines)))) == lines
    with pytest.raises(UserError, match="line 3 of the input has more"):
        list(read_lines(io.BytesIO(b"1\r2\r" + b"3" * 99)))


def test_the_end_of_the_beginning_may_split_a_line_end() -> None:
    text = b"x" * (line_files.BEGINNING - 1) + b"\r\ntwo\r\n"
    assert len(list(read_lines(io.BytesIO(text)))) == 2


@pytest.mark.parametrize("packer", ["gzip", "bzip2", "xz", "zstd", "zip"])
def test_a_compressed_file_is_not_read_as_text(packer: str, tmp_path: Path) -> None:
    path, text = tmp_path / "text.en", b"one two three\n" * 3
    if packer == "zstd":
        with pyarrow.CompressedOutputStream(str(path), "zstd") as stream:
            stream.write(text)
    elif packer == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("text.en", text)
    else:
        path.write_bytes({"gzip": gzip, "bzip2": bz2, "xz": lzma}[packer].compress(text))
    with open_lines(str(path)) as lines, pytest.raises(UserError, match=f"is packed by {packer}; unpack it"):
        list(read_lines(lines))
    with pytest.raises(UserError, match=f"text.en is packed by {packer}; unpack it"):
        list(read_text_pair(path, path))


def test_utf16_is_not_taken_for_text() -> None:
    for encoding in ("utf-16-le", "utf-16-be"):  # without a mark
        with pytest.raises(UserError, match="the input is UTF-16, not UTF-8; convert it"):
            list(read_lines(io.BytesIO("one two three\n".encode(encoding))))
    for encoding in ("utf-16", "utf-16-be"):
        text = "\ufeffone\n".encode(encoding).removeprefix(b"\xff\xfe" if encoding == "utf-16" else b"")
        with pytest.raises(UserError, match="the input is UTF-16, not UTF-8; convert it"):
            list(read_lines(io.BytesIO(text)))


def test_an_output_does_not_replace_an_input(tmp_path: Path) -> None:
    path, link = tmp_path / "in.txt", tmp_path / "link.txt"
    path.write_text("1\n")
    link.symlink_to(path)
    check_not_input(str(tmp_path / "out.txt"), path, None, "-")
    check_not_input("-", path)
    check_not_input(os.devnull, os.devnull)
    for output in (path, link):
        with pytest.raises(UserError, match=f"--output {output} would replace the input {path}"):
            check_not_input(str(output), None, path)


def test_a_split_is_of_a_data_set_and_not_of_files(tmp_path: Path) -> None:
    assert located([str(tmp_path)], "train") == ("train", {"dataset": str(tmp_path)})
    assert located(["rows.jsonl"], "test") == ("test", {"test_file": ["rows.jsonl"]})
    with pytest.raises(UserError, match=r"split=train is for data sets, and rows.jsonl is given as files"):
        located(["rows.jsonl"], "train")


def test_the_splits_in_a_folder_are_inputs(tmp_path: Path) -> None:
    for name in ("test.jsonl", "train.jsonl.gz", "scores.jsonl"):
        (tmp_path / name).write_text("1\n")
    found = files_in(str(tmp_path))
    assert sorted(path.name for path in found) == ["test.jsonl", "train.jsonl.gz"]
    check_not_input(str(tmp_path / "scores.jsonl"), *found)
    with pytest.raises(UserError, match="would replace the input"):
        check_not_input(str(tmp_path / "test.jsonl"), *found)
    assert files_in("dates") == files_in(str(tmp_path / "test.jsonl")) == []
