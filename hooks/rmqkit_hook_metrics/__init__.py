"""Metrics for Prometheus, under the names and labels of RocketMQ 5 (Java: BrokerMetricsManager, DefaultStoreMetricsManager).

Off unless the setting `hooks` names `metrics`, or `metricsExporterType` is PROM as in a Java broker.

settings   the table [plugins.metrics]
text       the text format, a line for each sample
counting   what is counted as it happens
watching   the hooks that count
lag        how far groups are behind, computed when somebody asks
gauges     the rest that is computed when somebody asks
scrape     all of it, giving way to the broker's work as it goes
http       a small responder
service    the port
"""
