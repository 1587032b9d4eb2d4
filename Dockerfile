# Two images: `bridge` (the default) for masters, workers and Flower, and `spark` for the Spark jobs, with Spark and a Java.

FROM python:3.11-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /src
# The versions first, in a layer of their own: it is rebuilt when the lock changes, not when the code does.
COPY requirements-image.lock ./
RUN python -m pip install --require-hashes -r requirements-image.lock

FROM build AS build-bridge
COPY pyproject.toml ./
COPY routing ./routing
COPY bridge ./bridge
COPY spark ./spark
RUN python -m pip install --no-deps --no-build-isolation .

FROM build AS build-spark
COPY requirements-image-spark.lock ./
RUN python -m pip install --require-hashes -r requirements-image-spark.lock
COPY pyproject.toml ./
COPY routing ./routing
COPY bridge ./bridge
COPY spark ./spark
RUN python -m pip install --no-deps --no-build-isolation .

FROM python:3.11-slim AS app
# A fixed number, so that volumes and network file systems can name the owner.
RUN useradd --uid 10001 --create-home bridge
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1
# The application around the installed packages: the part that a user makes his own.
WORKDIR /app
COPY celeryconfig.py ./
COPY tasks ./tasks

FROM app AS spark
COPY --from=build-spark /opt/venv /opt/venv
USER bridge
# What the compose file pushes unless it is told another log.
RUN python -m bridge.spark.generate /home/bridge/events.csv
CMD ["python", "-m", "bridge.spark.push", "--help"]

FROM app AS bridge
COPY --from=build-bridge /opt/venv /opt/venv
USER bridge
CMD ["bridge", "--help"]
