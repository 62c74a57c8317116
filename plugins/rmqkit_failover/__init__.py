"""Failover: the members of a replica group elect their master by means of a coordinator such as etcd."""
