# One static binary in an empty image: docker build --tag strait:dev .
#
# The gateway needs one capability, NET_ADMIN, to create its TUN device and to set routes, and the
# device node /dev/net/tun. See deploy/README.md.

FROM docker.io/library/rust:1.95-alpine AS build
RUN apk add --no-cache build-base
WORKDIR /src
COPY . .
RUN cargo build --release --locked --bin strait

FROM scratch
LABEL org.opencontainers.image.title="strait" \
      org.opencontainers.image.description="A userspace WireGuard gateway that joins Kubernetes clusters, also when their pod CIDRs overlap" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /src/target/release/strait /strait
USER 65532:65532
ENTRYPOINT ["/strait"]
CMD ["gateway", "--config", "/etc/strait/gateway.toml"]
