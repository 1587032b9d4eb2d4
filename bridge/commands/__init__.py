"""The commands of ``bridge``, one file for each group of them. Loaded only when they are called."""
