"""The service `apache.rocketmq.v2.Admin`: administration over gRPC (gRPC sheet, section 11)."""
