"""Reports of runs, checkpoints and benches for people.

- ``table``: the one table model, and its plain, terminal and HTML renderers;
- ``run_record``: a run directory, read once;
- ``views``: tables of runs; ``run_charts`` and ``drawing``: their charts as SVG;
- ``page``: the page of a run or several, the index of runs, the result in a notebook;
- ``live``: progress of a run on a terminal or in a log;
- ``running`` and ``result``: a run while it goes on, and at its end.
"""
