"""Tars of samples."""

from __future__ import annotations

import io
import os
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


SPARSE = {
    "gnu": ["--format=gnu"],
    "pax 0.0": ["--format=pax", "--sparse-version=0.0"],
    "pax 0.1": ["--format=pax", "--sparse-version=0.1"],
    "pax 1.0": ["--format=pax", "--sparse-version=1.0"],
}


@pytest.mark.parametrize("options", SPARSE.values(), ids=SPARSE)
def test_holes_of_sparse_members_are_zeros(tmp_path: Path, options: list[str]) -> None:
    holes = b"\0" * 100_000
    parts = b"".join(b"%04d" % n * 1024 + b"\0" * 8192 for n in range(40))  # many parts
    contents = {
        "1.bin": b"head" * 1000 + holes + b"middle" * 999 + holes,
        "1.txt": b"not sparse",
        "2.bin": holes + parts,
        "3.bin": holes,
    }
    for name, content in contents.items():
        with open(tmp_path / name, "wb") as file:
            for at in range(0, len(content), 4096):
                if any(part := content[at : at + 4096]):
                    file.seek(at)  # over holes of the disk: else tar takes the file for a full one
                    file.write(part)
            file.truncate(len(content))
    tar = ["tar", "-C", tmp_path, "--sparse", "--hole-detection=raw", *options]
    subprocess.run([*tar, "-cf", tmp_path / "a.tar", *contents], check=True)
    assert os.path.getsize(tmp_path / "a.tar") < len(parts) + len(holes)
    found = rows(open_source(str(tmp_path / "a.tar")))
    assert [row["__key__"] for row in found] == ["1", "2", "3"]
    assert all(row["bin"] == contents[f"{row['__key__']}.bin"] for row in found)
    assert [row["txt"] for row in found] == [b"not sparse", None, None]


def sparse(path: Path, size: int, parts: str, content: bytes = b"content") -> Path:
    """A sparse member of ``size`` bytes; ``parts`` as pax 0.1 writes them: offset, length, ..."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for key in "12":
            member = tarfile.TarInfo(f"{key}.bin")
            member.size = len(content)
            member.pax_headers = {"GNU.sparse.size": str(size), "GNU.sparse.map": parts}
            tar.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("parts", ["8,7,0,7", "0,7,6,7", "0,700", "6,7", "0,-7", "0,x", "-9,7"])
def test_a_wrong_map_of_a_sparse_member_is_damage(tmp_path: Path, parts: str) -> None:
    path = sparse(tmp_path / "a.tar", 12, parts)
    with pytest.raises(DataError, match="at byte 0: no whole tar"):
        open_source(str(path))


def test_sparse_members_are_read_one_by_one_where_they_are_large(tmp_path: Path) -> None:
    source = open_source(str(sparse(tmp_path / "a.tar", 4 << 20, "0,7")))
    assert [len(block) for block in (source.read(0, 1), source.read(1, 2))] == [1, 1]
    assert rows(source)[1]["bin"] == b"content" + bytes((4 << 20) - 7)
    assert len(source._blocks) == 2  # type: ignore[attr-defined]
    with pytest.raises(DataError, match=str(MAX_RECORD_BYTES + 1)):
        open_source(str(sparse(tmp_path / "b.tar", MAX_RECORD_BYTES + 1, "0,7")))


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
