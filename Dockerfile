# One image for every Python service of the stack: master, worker, Flower and the Spark job. Java for Spark comes as a wheel.

FROM python:3.11-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /src
# The versions first, in a layer of their own: it is rebuilt when the lock changes, not when the code does.
COPY requirements-image.lock ./
RUN python -m pip install --require-hashes -r requirements-image.lock
COPY pyproject.toml ./
COPY routing ./routing
COPY bridge ./bridge
COPY spark ./spark
RUN python -m pip install --no-deps --no-build-isolation .

FROM python:3.11-slim
# A fixed number, so that volumes and network file systems can name the owner.
RUN useradd --uid 10001 --create-home bridge
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1
# The application around the installed packages: the part that a user makes his own.
WORKDIR /app
COPY celeryconfig.py ./
COPY tasks ./tasks
USER bridge
CMD ["bridge", "--help"]
