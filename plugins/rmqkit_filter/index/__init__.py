"""The filters of groups that select by expressions, and the bit maps of the messages that they match.

filters   what the broker uses of it: `rmqkit.plugin.filter.FilterIndex`
table     the filters by topic and group, and `config/consumerFilter.json`
bit_maps  which filters match a message, computed when it is stored
bloom     the bits of a group in a bit map
"""
