"""Conversion of NVFlare's job folders into jobs; nothing of a folder is imported or run."""

from flstream.recipe.nvflare.convert import convert
from flstream.recipe.nvflare.draft import Conversion
from flstream.recipe.nvflare.notes import Note, by_file
from flstream.recipe.nvflare.writing import check_free, open_problems, write_job

__all__ = [
    "Conversion",
    "Note",
    "by_file",
    "check_free",
    "convert",
    "open_problems",
    "write_job",
]
