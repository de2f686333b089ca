# syntax=docker/dockerfile:1
# fencegate and the shared libraries that it needs, in an image without anything else: no shell, no package manager.
#
#   docker build --build-arg REVISION=$(git rev-parse HEAD) -t fencegate:0.1.0 .
#
# `make image` makes the same from a program that is built already, without a daemon: the last stage below is what both
# have in common, and scripts/image lays out what is in it.
#
# The base is named by its tag. To have the very same bytes next year, give it with a digest:
#   --build-arg RUST_IMAGE=rust:1.95.0-bookworm@sha256:...
ARG RUST_IMAGE=rust:1.95.0-bookworm

FROM ${RUST_IMAGE} AS build
# For RocksDB's bindings. Its version goes with the base image's Debian.
# hadolint ignore=DL3008
RUN apt-get update && \
    apt-get install --yes --no-install-recommends libclang-dev && \
    rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# RocksDB takes ten minutes to compile; with the caches, once.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --locked --release --bin fencegate && \
    scripts/image root target/release/fencegate /image

FROM scratch
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="fencegate" \
      org.opencontainers.image.description="A storage-side write gate: checks every write's fence token before the store sees it" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /image /
# By number, so that Kubernetes can see that it is not root.
USER 65532:65532
# The gate's port and its ops port; an agent's port and its status port. The lease api is for loopback.
EXPOSE 8080 9464 8082 9465
ENTRYPOINT ["/fencegate"]
CMD ["serve", "--config", "/etc/fencegate/fencegate.toml"]
