"""The report job: figures computed from an archive, and how they are shown in a terminal and as a page.

These modules may import ``spark.archiving``, ``spark.job`` and the rooms below, but not ``spark.pushing``. The
command's options are in ``spark.report``; the page's template, style and script are in the folder ``look``.
"""
