# One static binary in an empty image, for amd64 and arm64 from either, without emulation:
#
#   docker build --tag strait:dev .
#   docker buildx build --platform linux/amd64,linux/arm64 --tag REGISTRY/strait:TAG --push .
#
# Needs BuildKit, which is what `docker build` is since Docker 23. Without network: deploy/README.md,
# "The image".

ARG RUST_VERSION=1.95

# The compiler runs on the building machine, for either target. clang supports all targets; of musl only the
# headers are needed, because Rust includes the library and a linker for each.
FROM --platform=$BUILDPLATFORM docker.io/library/rust:${RUST_VERSION}-slim-bookworm AS toolchain
RUN apt-get update \
    && apt-get install --yes --no-install-recommends clang libcap2-bin llvm make musl-dev \
    && rm -rf /var/lib/apt/lists/* \
    && rustup target add aarch64-unknown-linux-musl x86_64-unknown-linux-musl

FROM toolchain AS build
ARG TARGETARCH
# "true": use no registry; all crates are in vendor/ or in the cache of an earlier build.
ARG CARGO_NET_OFFLINE=false
ENV CC_aarch64_unknown_linux_musl=clang CC_x86_64_unknown_linux_musl=clang \
    AR_aarch64_unknown_linux_musl=llvm-ar AR_x86_64_unknown_linux_musl=llvm-ar \
    STATIC_RUSTFLAGS="-C linker=rust-lld -C link-self-contained=yes"
WORKDIR /src
COPY . .
# The C code is that of ring, which needs only a few standard headers.
#
# /usr/local/bin/strait-gateway is the same program with a file capability: see the final stage.
RUN --mount=type=cache,id=strait-registry-${TARGETARCH},target=/usr/local/cargo/registry \
    --mount=type=cache,id=strait-target-${TARGETARCH},target=/src/target \
    set -eu; \
    case "${TARGETARCH}" in \
        amd64) target=x86_64-unknown-linux-musl ;; \
        arm64) target=aarch64-unknown-linux-musl ;; \
        *) echo "no image for '${TARGETARCH}': amd64 or arm64" >&2; exit 64 ;; \
    esac; \
    headers="-nostdlibinc -isystem /usr/include/$(uname -m)-linux-musl"; \
    export CFLAGS_aarch64_unknown_linux_musl="$headers" CFLAGS_x86_64_unknown_linux_musl="$headers"; \
    make static STATIC_TARGET="$target"; \
    install -D "target/$target/release/strait" /image/usr/local/bin/strait; \
    install "target/$target/release/strait" /image/usr/local/bin/strait-gateway; \
    setcap cap_net_admin+ep /image/usr/local/bin/strait-gateway

# `securityContext.capabilities.add` adds a capability to the bounding and the permitted set of a container's
# first process. If its user is not root, the execve of our program empties the permitted set, unless the file
# has the capability too. `allowPrivilegeEscalation: false` (no_new_privs) does not prevent that: the capability
# was permitted before, so none is gained. However, a file with an effective capability cannot be executed
# where the capability is outside the bounding set. Hence two files:
#
#   strait           needs no capability
#   strait-gateway   for gateways that are not root; does not start without NET_ADMIN
#
# Facts and sources: deploy/README.md, "Not root".
FROM scratch
ARG VERSION=dev
ARG REVISION=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="strait" \
      org.opencontainers.image.description="A userspace WireGuard gateway that joins Kubernetes clusters, also when their pod CIDRs overlap" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}"
COPY --from=build /image/ /
ENV PATH=/usr/local/bin
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/strait"]
CMD ["gateway", "--config", "/etc/strait/gateway.toml"]
