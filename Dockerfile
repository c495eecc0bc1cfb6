# The service as one process with its embedded default: SQLite and the store in one volume.
FROM python:3.11-slim
WORKDIR /opt/factorize
COPY requirements.lock pyproject.toml README.md LICENSE ./
RUN pip install --no-cache-dir --require-hashes -r requirements.lock
COPY factorize factorize
COPY solvers solvers
COPY api api
RUN pip install --no-cache-dir --no-deps --no-build-isolation . \
 && useradd --uid 10001 --create-home factorize \
 && install -d -o factorize -g factorize /data
USER 10001
ENV FACTORIZE_STORE=/data/store NUMBA_CACHE_DIR=/tmp/numba
VOLUME /data
EXPOSE 8000
ENTRYPOINT ["factorize"]
CMD ["serve"]
