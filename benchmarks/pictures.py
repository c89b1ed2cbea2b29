"""Make docs/pictures/resume.svg: a run that is killed, and the resume that ends as if it was not.

    python benchmarks/pictures.py

Every line of the picture was printed on a pseudo terminal by a real run of jobs/digits. The only
additions are the title, prompts, the shell's ``Killed``, the note at the kill, and ``...`` for
lines that the last frame has no room for.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import NamedTuple

from running import JOBS

PICTURE = JOBS.parent / "docs" / "pictures" / "resume.svg"
COLUMNS, LINES = 78, 24
# Frames of the rounds of each sitting, and how long each is shown, however long the run took.
FRAMES, FRAME_SECONDS = 16, 0.25
TYPED_SECONDS, KILLED_SECONDS, LAST_SECONDS = 1.2, 2.0, 8.0
KILL_IN_ROUND = 6
COMMAND = ["flstream", "simulate", "jobs/digits", "--run-dir", "runs/killed"]
COMPARE = "md5sum runs/killed/global.safetensors runs/whole/global.safetensors"

# Fonts of common systems, so that the picture needs none from the network.
FONTS = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
COLUMN, ROW, MARGIN, BAR = 8.4, 18, 14, 30
# Colours by the codes of a terminal; None is text without a colour. Light, then dark.
COLOURS = {
    None: ("#24292f", "#d5dae0"),
    30: ("#c3c9d0", "#444c56"),
    31: ("#b3261e", "#ff8078"),
    32: ("#1a7f37", "#5bd66f"),
    33: ("#8a5a00", "#e3b341"),
    34: ("#0a58ca", "#79b8ff"),
    35: ("#a3228e", "#f692ce"),
    36: ("#0b6e7d", "#56d4dd"),
    37: ("#24292f", "#d5dae0"),
    90: ("#c3c9d0", "#444c56"),
}
STYLE = """
.page{fill:#fbfcfd;stroke:#c3c9d0;rx:8px}.title{fill:#57606a}.dim{fill:#57606a}.b{font-weight:700}
.note{fill:#b3261e}.note+text{fill:#fff}
%(light)s
@media (prefers-color-scheme:dark){.page{fill:#161b22;stroke:#444c56}.title,.dim{fill:#9aa4ae}
%(dark)s}
text{font:14px %(fonts)s;white-space:pre}
.film{transform:translateY(%(last)dpx);animation:film %(seconds).2fs steps(1,end) infinite}
@keyframes film{%(keyframes)s}
@media (prefers-reduced-motion:reduce){.film{animation:none}}
"""

Style = tuple[int | None, bool, bool]
"""Colour, bold and dim."""


class Piece(NamedTuple):
    """Text of one style, from a column on."""

    column: int
    text: str
    style: Style


Line = tuple[Piece, ...]
Screen = tuple[float, list[Line]]
"""A time, and the lines that were on the screen then."""


class Frame(NamedTuple):
    """Lines of the terminal, how long they are shown, and a note across them."""

    lines: list[Line]
    seconds: float
    note: str = ""


def record(
    command: list[str], folder: Path, should_kill: Callable[[], bool]
) -> tuple[list[tuple[float, bytes]], int]:
    """Run a command on a pseudo terminal, and kill it with SIGKILL once it is time.

    Returns:
        The output with the time of each part, and the exit status.
    """
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    env = {**os.environ, "TERM": "xterm-16color"}
    for name in ("COLUMNS", "LINES", "COLORTERM", "NO_COLOR"):
        env.pop(name, None)
    with subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=env,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    ) as process:
        os.close(follower)
        parts = list[tuple[float, bytes]]()
        while True:
            if select.select([leader], [], [], 0.02)[0]:
                try:
                    part = os.read(leader, 1 << 16)
                except OSError:  # the last process has closed the terminal
                    break
                if not part:
                    break
                parts.append((time.monotonic(), part))
            if process.poll() is None and should_kill():
                process.send_signal(signal.SIGKILL)
    os.close(leader)
    return parts, process.returncode


def split(parts: list[tuple[float, bytes]]) -> tuple[list[Line], list[Screen]]:
    """Return the ordinary screen, and the screens of the live view with their times."""
    times, text = list[tuple[int, float]](), ""
    for moment, part in parts:
        times.append((len(text), moment))
        text += part.decode(errors="replace")
    plain, live = "", list[Screen]()
    place = 0
    for shown in re.finditer(r"\x1b\[\?1049h(.*?)(?:\x1b\[\?1049l|\Z)", text, re.DOTALL):
        plain += text[place : shown.start()]
        place = shown.end()
        offset = shown.start(1)
        for screen in re.split(r"(?=\x1b\[H)", shown[1]):
            lines = parse(screen)
            if any(lines):
                moment = [at for start, at in times if start <= offset + len(screen) - 1][-1]
                live.append((moment, lines))
            offset += len(screen)
    return parse(plain + text[place:]), live


def parse(text: str) -> list[Line]:
    """Return lines of text with their styles, without other controls and blank lines at the end."""
    lines = list[Line]()
    colour, bold, dim = None, False, False
    for row in re.sub(r"\x1b\[(?![0-9;]*m)[0-9;?]*[A-Za-z]", "", text).split("\n"):
        pieces, column = list[Piece](), 0
        for codes, run in re.findall(r"(?:\x1b\[([0-9;]*)m)|([^\x1b\r]+)", row):
            if run:
                # Words that are columns apart get a place of their own.
                for word in re.finditer(r"\S+(?: \S+)*", run):
                    at = column + word.start()
                    pieces.append(Piece(at, word[0], (colour, bold, dim)))
                column += len(run)
                continue
            for code in map(int, (codes or "0").split(";")):
                if code == 0:
                    colour, bold, dim = None, False, False
                elif code in (1, 2):
                    bold, dim = bold or code == 1, dim or code == 2
                elif 30 <= code <= 37 or 90 <= code <= 97:
                    colour = code if code in COLOURS else code - 60
                elif code == 39:
                    colour = None
        lines.append(tuple(pieces))
    while lines and not lines[-1]:
        lines.pop()
    return lines


def typed(command: str) -> Line:
    """Return the line of a command."""
    return (Piece(0, "$", (None, False, True)), Piece(2, command, (None, True, False)))


def said(text: str) -> Line:
    """Return a line of plain text."""
    return (Piece(0, text, (None, False, False)),) if text else ()


def film(before: list[Line], live: list[Screen]) -> list[Frame]:
    """Return the frames of a live view: what was on screen before, the start, and its rounds."""
    frames = [Frame(before, TYPED_SECONDS), Frame(live[0][1], 2 * FRAME_SECONDS)]
    begun = next(n for n, (_, lines) in enumerate(live) if "  round " in words(lines[0], "  "))
    due, end = live[begun][0], live[-1][0]
    step = (end - due) / FRAMES
    for moment, lines in live[begun:]:
        if moment >= due or moment == end:
            frames.append(Frame(lines, FRAME_SECONDS))
            due += step
    return frames


def words(line: Line, gap: str) -> str:
    """Return the text of a line, with a gap between its pieces."""
    return gap.join(piece.text for piece in line)


def make_film(folder: Path) -> list[Frame]:
    """Run the job whole, then kill it and resume it, and return the frames of the latter."""
    shutil.copytree(JOBS / "digits", folder / "jobs" / "digits")
    whole = [*COMMAND[:-1], "runs/whole", "--quiet"]
    subprocess.run([sys.executable, "-m", *whole], cwd=folder, check=True)
    journal = folder / "runs" / "killed" / "events.jsonl"

    def is_training() -> bool:
        """Whether sites are training in the round of the kill."""
        if not journal.exists():
            return False
        return journal.read_text().count(f'"site_state","round":{KILL_IN_ROUND},') >= 20

    killed, status = record(COMMAND, folder, is_training)
    if status != -signal.SIGKILL:
        raise SystemExit(f"there is no picture: the run ended with {status} before it was killed")
    resumed, status = record([*COMMAND, "--resume"], folder, lambda: False)
    compared = subprocess.run(
        COMPARE.split(), cwd=folder, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    if status or len({line.split()[0] for line in compared}) != 1:
        raise SystemExit(f"there is no picture: status {status}, {compared}")
    prompt = [typed(" ".join(COMMAND))]
    frames = film(prompt, split(killed)[1])
    frames[-1] = Frame(frames[-1].lines, KILLED_SECONDS, "kill -9, from another terminal")
    output, live = split(resumed)
    prompt = [*prompt, said("Killed"), typed(" ".join([*COMMAND, "--resume"]))]
    frames += film([*prompt, output[0]], live)
    texts = [words(line, " ") for line in output]
    table = texts.index("Rounds (in seconds)")
    end = texts.index("", table)
    [status_line] = [line for line, text in zip(output, texts, strict=True) if "status" in text]
    last = [*prompt, output[0], said(""), *output[table:end], said("..."), status_line]
    last += [said("# runs/whole: the same job, never killed"), typed(COMPARE), *map(said, compared)]
    return [*frames, Frame(last[-LINES:], LAST_SECONDS)]


def draw(frames: list[Frame]) -> str:
    """Return the picture of the frames, one below the other, of which it shows one at a time."""
    height = LINES * ROW
    stride = height + 2 * MARGIN
    width = round(COLUMNS * COLUMN) + 2 * MARGIN
    seconds = sum(frame.seconds for frame in frames)
    defined, film_strip, keyframes = dict[Line, str](), list[str](), list[str]()
    now = 0.0
    for number, frame in enumerate(frames):
        top = number * stride
        keyframes.append(f"{100 * now / seconds:.2f}%{{transform:translateY({-top}px)}}")
        now += frame.seconds
        for row, line in enumerate(frame.lines[-LINES:]):
            if line:
                name = defined.setdefault(line, f"l{len(defined)}")
                film_strip.append(f'<use href="#{name}" y="{top + row * ROW}"/>')
        if frame.note:
            film_strip.append(_note(frame.note, top + height, width))
    styles = {
        "light": _palette(0),
        "dark": _palette(1),
        "fonts": FONTS,
        "last": -(len(frames) - 1) * stride,
        "seconds": seconds,
        "keyframes": "".join(keyframes),
    }
    full = BAR + height + 2 * MARGIN
    lines = "".join(f'<g id="{name}">{_line(line)}</g>\n' for line, name in defined.items())
    dots = "".join(f'<circle cx="{18 + 16 * i}" cy="16" r="5"/>' for i in range(3))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {full}"'
        f' role="img" aria-label="A run is killed and resumed, and ends with the same model">\n'
        f"<style>{STYLE % styles}</style>\n<defs>\n{lines}"
        f'<clipPath id="screen"><rect width="{width}" height="{height + MARGIN}"/></clipPath>'
        f'</defs>\n<rect class="page" x=".5" y=".5" width="{width - 1}" height="{full - 1}"/>'
        f'\n<g class="c30">{dots}</g>\n<text class="title" x="{width / 2}" y="21" '
        f'text-anchor="middle">a run, kill -9, and its resume, in time lapse</text>\n'
        f'<g transform="translate(0 {BAR + MARGIN / 2})"><g clip-path="url(#screen)">'
        f'<g class="film">\n' + "\n".join(film_strip) + "\n</g></g></g></svg>\n"
    )


def _palette(scheme: int) -> str:
    rules = (
        f"{f'.c{code}' if code else 'text'}{{fill:{colours[scheme]}}}"
        for code, colours in COLOURS.items()
    )
    return "".join(rules)


def _line(line: Line) -> str:
    texts = []
    for column, text, (colour, bold, dim) in line:
        classes = [f"c{colour}"] * (colour is not None) + ["b"] * bold + ["dim"] * dim
        named = f' class="{" ".join(classes)}"' if classes else ""
        length = f' textLength="{len(text) * COLUMN:.1f}"'
        # Bars have no gaps, whatever the font.
        length += ' lengthAdjust="spacingAndGlyphs"' if "━" in text else ""
        x = MARGIN + column * COLUMN
        texts.append(f'<text x="{x:.1f}" y="{ROW - 4}"{named}{length}>{escape(text)}</text>')
    return "".join(texts)


def _note(text: str, bottom: int, width: int) -> str:
    top = bottom - 3 * ROW
    return (
        f'<rect class="note" y="{top}" width="{width}" height="{2 * ROW}"/>'
        f'<text class="b" x="{width / 2}" y="{top + ROW + 5}" text-anchor="middle">{text}</text>'
    )


def main() -> None:
    """Record the runs, and write the picture."""
    with tempfile.TemporaryDirectory() as folder:
        frames = make_film(Path(folder))
    PICTURE.write_text(draw(frames))
    print(f"{PICTURE}: {len(frames)} frames, {PICTURE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
