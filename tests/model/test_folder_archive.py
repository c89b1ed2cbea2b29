"""A folder that travels as an archive: the copy has its digest, and nothing leaves the copy."""

import io
import os
import struct

import pytest
from folders import fill

from flstream.errors import ProtocolError
from flstream.model.folder_archive import pack_folder, unpack_folder
from flstream.model.folder_content import folder_digest


def record(name, kind, content=b""):
    """A record as :func:`pack_folder` writes it, of anything."""
    path = os.fsencode(name)
    return struct.pack("<cHqIQ", kind, 0o755, 0, len(path), len(content)) + path + content


def test_the_copy_has_the_digest_and_an_archive_cut_short_has_not(tmp_path):
    folder, file = fill(tmp_path / "folder"), io.BytesIO()
    pack_folder(str(folder), file)
    unpack_folder(io.BytesIO(file.getvalue()), str(tmp_path / "copy"))
    assert folder_digest(str(tmp_path / "copy")) == folder_digest(str(folder))
    with pytest.raises(ProtocolError, match="archive of a folder"):
        unpack_folder(io.BytesIO(file.getvalue()[:-1]), str(tmp_path / "short"))


@pytest.mark.parametrize(
    "records",
    [
        [record("../out", b"f", b"x")],
        [record("link", b"l", b".."), record("link/out", b"f", b"x")],
    ],
)
def test_nothing_is_written_outside_of_the_copy(tmp_path, records):
    with pytest.raises(ProtocolError, match="archive of a folder"):
        unpack_folder(io.BytesIO(b"".join([record("", b"d"), *records])), str(tmp_path / "copy"))
    assert not (tmp_path / "out").exists()
