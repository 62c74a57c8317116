"""Names of this plugin."""

from __future__ import annotations

from rmqkit.protocol.signature import GRPC

#: The plugin, its table of settings and its service.
PLUGIN = "grpc"
#: The process role before a cluster.
PROXY = "proxy"
#: What `Caller.protocol` is for clients of gRPC.
PROTOCOL = GRPC
#: What every connection of HTTP/2 with prior knowledge begins with, and its name in TLS handshakes.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
ALPN = "h2"
