"""Reports of runs, checkpoints and benches for people.

- ``table``: the one table model, and its plain, terminal and HTML renderers;
- ``run_record``, ``memory_curves`` and ``site_errors``: a run directory, read once;
- ``views``: tables of runs; ``run_groups``, ``run_charts``, ``timeline`` and ``drawing``: their
  charts as SVG;
- ``page`` and its templates: the page of a run or several, the notebook's cell;
- ``live``: progress of a run on a terminal or in a log;
- ``running``: a run under way, and at its end;
- ``checkpoint``, ``forecast``, ``bench_table``: results of other commands.
"""
