"""Talking to the server: addresses and connections, RESP commands and replies, pages of entries, entry ids.

These modules may import ``routing`` and each other, and no other room of ``spark``. How an entry becomes a row is in
``bridge.spark.read``; how a row becomes an entry, and is written only once, is in ``bridge.spark.write``.
"""
