"""Reports of runs, benches and checkpoints for people.

- ``live``: progress of a run on a terminal or in a log;
- ``record``: data of a run directory, for ``html``;
- ``html``: the page of a run, and the comparison of several;
- ``charts``: the charts of pages and benches;
- ``bench``: progress and results of a bench.

The modules beside these folders print everything else on a terminal, and have shared functions.
"""
