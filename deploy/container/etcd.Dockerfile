# etcd for compose.yaml, as Debian has it.
FROM debian:bookworm-slim
RUN apt-get update && apt-get install --yes --no-install-recommends etcd-server etcd-client \
    && rm -rf /var/lib/apt/lists/* && install --directory --owner 10002 --group 10002 --mode 0700 /var/lib/etcd
USER 10002:10002
VOLUME ["/var/lib/etcd"]
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=4s CMD ["etcdctl", "endpoint", "health"]
ENV ETCDCTL_API=3
ENTRYPOINT ["etcd", "--data-dir", "/var/lib/etcd"]
