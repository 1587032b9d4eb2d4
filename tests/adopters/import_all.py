"""Imports every module of the package, prints how many, and fails if one cannot be imported. Runs in an environment
without Spark, pytest and the extras http and sql: only modules for these may fail, and only because of them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pkgutil import walk_packages

#: Beginning of module names -> the packages that these modules may lack.
OPTIONAL = {
    "bridge.http": {"fastapi", "h11", "starlette", "uvicorn"},
    "bridge.spark": {"pyspark", "pyarrow", "jinja2"},
    "bridge.sql": {"sqlalchemy"},
    "bridge.testing": {"pytest", "pytest_celery", "psutil"},
}
#: Programs, which run when they are imported.
PROGRAMS = ("bridge.__main__",)


def main() -> None:
    """Imports all modules."""
    count = 0
    root = import_module("bridge")
    assert "site-packages" in str(root.__file__), root.__file__
    for name in ("bridge", *(found.name for found in walk_packages(root.__path__, "bridge."))):
        if name in PROGRAMS:
            continue
        try:
            import_module(name)
        except ModuleNotFoundError as exc:
            if not any(name.startswith(start) and exc.name in missing for start, missing in OPTIONAL.items()):
                sys.exit(f"{name}: {exc}")
        count += 1
    print(count)


if __name__ == "__main__":
    main()
