# The service as one process with its embedded default: SQLite and the store in one volume. Two stages: what installs is left behind.
# Pin the base by digest where you build for others: --build-arg BASE=python:3.11-slim@sha256:...
ARG BASE=python:3.11-slim
FROM ${BASE} AS build
WORKDIR /opt/source
RUN python -m venv /opt/factorize
COPY requirements.lock ./
RUN /opt/factorize/bin/pip install --no-cache-dir --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY factorize factorize
COPY solvers solvers
COPY api api
RUN /opt/factorize/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
 && /opt/factorize/bin/pip uninstall --yes pip \
 && install -d -o 10001 -g 10001 /data

FROM ${BASE}
# The interpreter's own pip goes too: nothing in the image installs anything.
RUN python -m pip uninstall --yes --quiet pip setuptools wheel 2>/dev/null || true
COPY --from=build /opt/factorize /opt/factorize
COPY --from=build --chown=10001:10001 /data /data
USER 10001:10001
ENV PATH=/opt/factorize/bin:$PATH FACTORIZE_STORE=/data/store NUMBA_CACHE_DIR=/tmp/numba HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/healthz', timeout=3)"]
ENTRYPOINT ["factorize"]
CMD ["serve"]
