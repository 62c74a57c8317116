"""The gRPC door of a broker: RocketMQ's 5.x clients over HTTP/2."""
