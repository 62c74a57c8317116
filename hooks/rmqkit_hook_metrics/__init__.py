"""Metrics for Prometheus, with the names and labels of RocketMQ 5 (Java: BrokerMetricsManager,
DefaultStoreMetricsManager).

Off unless the setting `hooks` names `metrics`, or `metricsExporterType` is PROM as in a Java broker.

settings   the table [plugins.metrics]
text       the text format, a line per sample
counting   counters and histograms
hooks      the hooks that count
lag        consumer lag, computed on request
gauges     other values computed on request
scrape     collects everything in steps, between which the broker can work
service    the port
"""
