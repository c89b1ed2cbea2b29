"""A folder with one of everything, and changes of it."""

import os
from pathlib import Path


def fill(folder: Path) -> Path:
    """One of everything."""
    (folder / "deep/er").mkdir(parents=True)
    (folder / "hollow").mkdir()
    (folder / "deep/er/file").write_bytes(b"content")
    (folder / "void").touch()
    (folder / "tool").write_bytes(b"#!/bin/sh\n")
    (folder / "tool").chmod(0o755)
    (folder / "link").symlink_to("deep/er/file")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")
    (folder / os.fsdecode(b"not utf-8 \xff")).write_bytes(b"x")
    return folder


def relink(path: Path) -> None:
    path.unlink()
    path.symlink_to("elsewhere")


def replace(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


CHANGES = {
    "a byte of a file": lambda top: (top / "deep/er/file").write_bytes(b"contend"),
    "the length of a file": lambda top: (top / "void").write_bytes(b"\0"),
    "the name of a file": lambda top: (top / "void").rename(top / "avoid"),
    "the folder of a file": lambda top: (top / "void").rename(top / "deep/void"),
    "a mode": lambda top: (top / "tool").chmod(0o644),
    "the mode of a folder": lambda top: (top / "hollow").chmod(0o700),
    "its own mode": lambda top: top.chmod(0o711),
    "the target of a link": lambda top: relink(top / "link"),
    "a link for a file": lambda top: replace(top / "dangling", b"nowhere"),
    "a new empty folder": lambda top: (top / "deep/hollow").mkdir(),
    "a new empty file": lambda top: (top / "deep/void").touch(),
    "one empty folder less": lambda top: (top / "hollow").rmdir(),
    "one empty file less": lambda top: (top / "void").unlink(),
    "a file for a folder": lambda top: ((top / "hollow").rmdir(), (top / "hollow").touch()),
    "what a link leads to": lambda top: replace(top / "link", b"content"),
}
