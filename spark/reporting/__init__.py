"""The report job: figures computed from an archive, and how they are shown in a terminal and as a page.

These modules may import ``bridge.spark.archiving``, ``bridge.spark.job`` and the rooms below, but not
``bridge.spark.pushing``. The command's options are in ``bridge.spark.report``; the page's template, style and script
are in the folder ``look``.
"""
