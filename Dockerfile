# The service as one process with its embedded default: SQLite and the store in one volume. Two stages: what installs is left behind.
# Pin the base by digest where you build for others: --build-arg BASE=python:3.11-slim@sha256:...
# Kernels are compiled for one kind of processor, generic by default; --build-arg CPU=x86-64-v3 makes them for those with AVX2.
ARG BASE=python:3.11-slim
ARG CPU=generic
FROM ${BASE} AS build
WORKDIR /opt/source
RUN python -m venv /opt/factorize
COPY requirements.lock ./
RUN /opt/factorize/bin/pip install --no-cache-dir --require-hashes -r requirements.lock
COPY pyproject.toml setup.py README.md LICENSE ./
COPY factorize factorize
COPY solvers solvers
COPY api api
RUN /opt/factorize/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
 && /opt/factorize/bin/pip uninstall --yes pip \
 && install -d -o 10001 -g 10001 /data
ARG CPU
RUN NUMBA_CACHE_DIR=/opt/factorize/kernels NUMBA_CPU_NAME=${CPU} NUMBA_CPU_FEATURES= PYTHONDONTWRITEBYTECODE=1 \
    /opt/factorize/bin/python -P -m factorize.api.warm

FROM ${BASE}
# The interpreter's own pip goes too: nothing in the image installs anything.
RUN python -m pip uninstall --yes --quiet pip setuptools wheel 2>/dev/null || true
COPY --from=build /opt/factorize /opt/factorize
COPY --from=build --chown=10001:10001 /data /data
USER 10001:10001
ARG CPU
ENV PATH=/opt/factorize/bin:$PATH FACTORIZE_STORE=/data/store NUMBA_CACHE_DIR=/tmp/kernels NUMBA_CPU_NAME=${CPU} \
    NUMBA_CPU_FEATURES= HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/healthz', timeout=3)"]
# numba refuses a cache that it cannot write, and the root of a container is read-only: it starts from a copy of the image's.
ENTRYPOINT ["/bin/sh", "-c", "cp -rn /opt/factorize/kernels /tmp/; exec factorize \"$@\"", "factorize"]
CMD ["serve"]
