"""Administration of topics, groups and brokers.

    admin              topics, brokers and stored messages: requests and their answers
    group_admin        consumer groups
    broker_views       brokers as values, with the progress of their dispatchers
    dead_letter_views  dead letters of groups
    diagnosis          findings, from observations
    examination        observes a cluster, for findings
    group_views        groups as values, and what changes of them did
    message_views      a message, its consumers and its trace
    side_by_side       several requests at the same time
    topic_views        what changes of topics did

The views print nothing: commands, pages and gauges render them.
"""
