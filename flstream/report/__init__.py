"""What runs, benches and checkpoints tell people.

- ``live``: a run while it goes on;
- ``record``: what a run directory tells of its run, for ``html``;
- ``html``: the pages of a run and of several;
- ``charts``: the drawings in them, and those of a bench;
- ``bench``: what a bench found.

The files beside them are the text on a terminal of everything else, and what all of it shares.
"""
