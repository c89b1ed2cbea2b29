"""Text that Python carries: the docstrings of its standard library, by module."""

import re
import sys
import sysconfig
from pathlib import Path

import torch
from torch import Tensor

_DOCSTRING = re.compile(r'"""(.+?)"""', re.DOTALL)
_LEFT_OUT = {"idlelib", "lib2to3", "test", "tests"}


def docstrings() -> dict[str, list[str]]:
    """The docstrings of each module, none of them twice; the same for the same Python."""
    library, seen, texts = Path(sysconfig.get_path("stdlib")), set(), {}
    for module in sorted(sys.stdlib_module_names - _LEFT_OUT):
        for path in (library / f"{module}.py", *sorted((library / module).rglob("*.py"))):
            if not path.is_file() or not _LEFT_OUT.isdisjoint(path.relative_to(library).parts):
                continue
            for text in _DOCSTRING.findall(path.read_text(encoding="utf-8", errors="replace")):
                if len(text) > 40 and text not in seen:
                    seen.add(text)
                    texts.setdefault(module, []).append(re.sub(r"\n +", "\n", text.strip()))
    return texts


def corpus(sites: int) -> tuple[list[Tensor], Tensor]:
    """The bytes of each site, which has modules of its own, and those that none of them trains on.

    A tenth of each module's docstrings is held out. The largest modules are dealt first, each to
    the site with the fewest bytes.
    """
    held_out, shares, sizes = [], [[] for _ in range(sites)], [0] * sites
    for _, texts in sorted(docstrings().items(), key=lambda item: -sum(map(len, item[1]))):
        site = sizes.index(min(sizes))
        held_out += texts[9::10]
        shares[site] += [text for place, text in enumerate(texts) if place % 10 != 9]
        sizes[site] += sum(map(len, texts))
    return [as_bytes(share) for share in shares], as_bytes(held_out)


def as_bytes(texts: list[str]) -> Tensor:
    """The bytes of texts, one after another, as uint8 (bytes,)."""
    return torch.frombuffer(bytearray("\n\n".join(texts).encode()), dtype=torch.uint8)


def in_rows(text: Tensor, length: int) -> Tensor:
    """A text as int64 rows (n, length + 1), each of which begins with the last byte before it."""
    return text.unfold(0, length + 1, length).long()


class Batches:
    """Rows of a text in random order, epoch after epoch; its place is all of its state."""

    def __init__(self, text: Tensor, rows: int, length: int, seed: int) -> None:
        self.text, self.rows, self.seed, self.place = in_rows(text, length), rows, seed, 0

    def __next__(self) -> Tensor:
        """The next rows, int64 (rows, length + 1)."""
        epoch, place = divmod(self.place, len(self.text) // self.rows)
        generator = torch.Generator().manual_seed(1000 * self.seed + epoch)
        order = torch.randperm(len(self.text), generator=generator)
        self.place += 1
        return self.text[order[place * self.rows : (place + 1) * self.rows]]

    def state_dict(self) -> dict[str, int]:
        """The place in the data."""
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from a place."""
        self.place = state["place"]
