"""Tars of samples."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from torch_edl.data.sources import Source, open_source
from torch_edl.errors import DataError
from torch_edl.plugins.formats.webdataset import MAX_RECORD_BYTES


def write(path: Path, members: list[tuple[str, bytes]], format: int = tarfile.PAX_FORMAT) -> Source:
    with tarfile.open(path, "w", format=format) as tar:
        folder = tarfile.TarInfo("train")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return open_source(str(path))


def rows(source: Source) -> list[dict[str, object]]:
    found: list[dict[str, object]] = source.read(0, source.count).to_pylist()  # type: ignore[union-attr]
    return found


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_members_of_one_key_are_a_sample(tmp_path: Path, format: int) -> None:
    deep = "/".join(["deep" * 20] * 2)
    source = write(
        tmp_path / "a.tar",
        [
            ("train/1.JPG", b"one"),
            ("train/1.seg.png", b""),
            ("README", b"no extension"),
            ("__meta__.json", b"{}"),
            (f"{deep}/1.jpg", b"two"),
            (f"{deep}/2.jpg", b"three"),
        ],
        format,
    )
    assert rows(source) == [
        {"__key__": "train/1", "jpg": b"one", "seg.png": b""},
        {"__key__": f"{deep}/1", "jpg": b"two", "seg.png": None},
        {"__key__": f"{deep}/2", "jpg": b"three", "seg.png": None},
    ]


def test_two_members_of_one_extension_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a.tar: record 1 \(2\): two members 'txt'"):
        write(tmp_path / "a.tar", [("1.txt", b""), ("2.txt", b""), ("2.txt", b"")])


def test_a_damaged_header_is_not_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    write(path, [(f"{n}.txt", b"x" * 600) for n in range(5)])
    raw = bytearray(path.read_bytes())
    at = raw.index(b"3.txt")
    raw[at] = ord("9")  # which the checksum of the header does not expect
    path.write_bytes(raw)
    with pytest.raises(DataError, match=f"at byte {at}: the header of a member is damaged"):
        open_source(str(path))
    source = open_source(str(path), skip_damaged=True)
    assert [row["__key__"] for row in rows(source)] == ["0", "1", "2"]
    assert source.damaged == 1


def test_a_tar_that_is_cut_off_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    write(path, [(f"{n}.txt", b"x" * 600) for n in range(5)])
    raw = path.read_bytes()
    path.write_bytes(raw[: raw.index(b"4.txt") + 700])
    with pytest.raises(DataError, match="no whole tar"):
        open_source(str(path))


@pytest.mark.parametrize(
    "options",
    [["--format=gnu"], *(["--format=pax", f"--sparse-version={n}"] for n in ("0.0", "0.1", "1.0"))],
)
def test_sparse_members_are_refused(tmp_path: Path, options: list[str]) -> None:
    with open(tmp_path / "1.bin", "wb") as file:
        file.write(b"head" * 1000)
        file.truncate(100_000)
    tar = ["tar", "-C", tmp_path, "--sparse", "--hole-detection=raw", *options]
    subprocess.run([*tar, "-cf", tmp_path / "a.tar", "1.bin"], check=True)
    with pytest.raises(DataError, match=r"1.bin: a sparse member; write the tar without --sparse"):
        open_source(str(tmp_path / "a.tar"))


@pytest.mark.parametrize("parts", ["8,7,0,7", "0,700", "0,-7", "0,x", "-9,7"])
def test_a_wrong_map_of_a_sparse_member_is_damage(tmp_path: Path, parts: str) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("1.bin")
        member.size = 7
        member.pax_headers = {"GNU.sparse.size": "12", "GNU.sparse.map": parts}
        tar.addfile(member, io.BytesIO(b"content"))
    with pytest.raises(DataError, match="at byte 0"):
        open_source(str(tmp_path / "a.tar"))


def test_a_member_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    member = tarfile.TarInfo("1.bin")
    member.size = MAX_RECORD_BYTES + 1
    (tmp_path / "a.tar").write_bytes(member.tobuf())
    with pytest.raises(DataError, match=str(MAX_RECORD_BYTES + 1)):
        open_source(str(tmp_path / "a.tar"))


def test_a_sparse_header_that_is_cut_off_is_an_error(tmp_path: Path) -> None:
    """tarfile raises IndexError where the extension of a sparse map is missing."""
    header = bytearray(tarfile.TarInfo("1.bin").tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[482] = 1  # an extension follows
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    (tmp_path / "a.tar").write_bytes(header[:512])
    with pytest.raises(DataError, match="no whole tar"):
        open_source(str(tmp_path / "a.tar"))
