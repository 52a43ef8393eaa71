# The service with its guest Python, Deno and Pyodide, run by a user without rights. docs/docker.md has the rest.
#
#   docker build -t interpreterd --build-arg INTERPRETERD_COMMIT="$(git rev-parse HEAD)" .
#
# A network whose certificates a private authority signs: `--secret id=ca_bundle,src=FILE` (PEM). It is read while
# the image is built and stands in no layer.
ARG RUST_IMAGE=rust:1.95-bookworm
ARG RUNTIME_IMAGE=debian:bookworm-slim

FROM ${RUST_IMAGE} AS build
WORKDIR /src
COPY . .
ARG INTERPRETERD_COMMIT=""
# The copy stands in the same step: what is in a cache mount is in no layer. The cache is shared by all checkouts, and
# cargo goes by times: these sources are newer than whatever was built there.
RUN --mount=type=secret,id=ca_bundle \
    --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,target=/src/target,sharing=locked \
    set -eu; \
    if [ -s /run/secrets/ca_bundle ]; then \
        export SSL_CERT_FILE=/run/secrets/ca_bundle CARGO_HTTP_CAINFO=/run/secrets/ca_bundle; \
    fi; \
    find build.rs src migrations guest -type f -exec touch {} +; \
    CARGO_PROFILE_RELEASE_STRIP=symbols cargo build --release --locked --bin interpreterd; \
    cp target/release/interpreterd /usr/local/bin/

# What runs and what the guest is built on: the same Python in both. procps (ps, free) is for shells in sessions,
# tini reaps what sessions leave. Nobody needs programs with their owner's rights.
FROM ${RUNTIME_IMAGE} AS base
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates procps python3 tini \
    && rm -rf /var/lib/apt/lists/* /var/cache/debconf/*-old /var/log/*.log /var/log/apt \
    && find / -xdev -type f -perm /6000 -exec chmod a-s {} +

FROM base AS guest
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /usr/local/bin/interpreterd /usr/local/bin/
ENV INTERPRETERD_GUEST_DIR=/var/lib/interpreterd/guest
# The packages' own tests go. Compiled Python is made anew so that it holds no times: nobody writes here later, so
# nothing has to be checked, and the same packages are the same bytes, which a builder's cache knows for the same layer.
RUN --mount=type=secret,id=ca_bundle \
    --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    set -eu; \
    if [ -s /run/secrets/ca_bundle ]; then \
        export SSL_CERT_FILE=/run/secrets/ca_bundle PIP_CERT=/run/secrets/ca_bundle; \
    fi; \
    interpreterd guest install; \
    site=$(echo "$INTERPRETERD_GUEST_DIR"/*/lib/python3*/site-packages); \
    for package in matplotlib mpl_toolkits numpy pandas scipy sklearn sympy; do \
        find "$site/$package" -type d -name tests -prune -exec rm -rf {} +; \
    done; \
    find "$INTERPRETERD_GUEST_DIR" -type d -name __pycache__ -prune -exec rm -rf {} +; \
    python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash "$site"; \
    rm -f "$INTERPRETERD_GUEST_DIR/install.lock"
RUN --mount=type=secret,id=ca_bundle \
    --mount=type=cache,target=/root/.cache/pip,sharing=locked \
    set -eu; \
    if [ -s /run/secrets/ca_bundle ]; then \
        export SSL_CERT_FILE=/run/secrets/ca_bundle PIP_CERT=/run/secrets/ca_bundle; \
    fi; \
    mkdir /wasm; \
    INTERPRETERD_GUEST_DIR=/wasm interpreterd guest install --provider pydantic; \
    rm -f /wasm/install.lock

FROM base
# no home but the data folder, no shell, no password
RUN groupadd --gid 10001 interpreterd \
    && useradd --uid 10001 --gid 10001 --home-dir /data --no-create-home --shell /usr/sbin/nologin interpreterd \
    && install -d -o 10001 -g 10001 -m 0700 /data
# root's, and nobody else may write: first what changes least
COPY --from=guest /var/lib/interpreterd/guest /var/lib/interpreterd/guest
COPY --from=guest /wasm /var/lib/interpreterd/guest
COPY LICENSE /usr/share/doc/interpreterd/LICENSE
COPY --from=build /usr/local/bin/interpreterd /usr/local/bin/
ENV INTERPRETERD_LISTEN=0.0.0.0:8080 \
    INTERPRETERD_DATA_DIR=/data \
    INTERPRETERD_GUEST_DIR=/var/lib/interpreterd/guest \
    INTERPRETERD_LOG_FORMAT=json \
    LANG=C.UTF-8
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s --retries=3 CMD ["interpreterd", "healthcheck"]
ENTRYPOINT ["tini", "--", "interpreterd"]
CMD ["serve"]
ARG INTERPRETERD_COMMIT=""
LABEL org.opencontainers.image.title="interpreterd" \
      org.opencontainers.image.description="A code interpreter for language models, as a service that anyone can run" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${INTERPRETERD_COMMIT}" \
      org.opencontainers.image.licenses="Apache-2.0"
