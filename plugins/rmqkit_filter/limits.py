"""Limits of the filters, each with its reason."""

from __future__ import annotations

#: SQL92: operands evaluated, and records filtered, between two looks at the time. An expression with more
#: operands than the last number reads the properties of a record into a table, others search them in the
#: record's bytes.
MAX_EVALUATED_OPERANDS = 256
MAX_RECORDS_PER_CALL = 64
MAX_SEARCHED_OPERANDS = 8
#: Filters in Python: parameters of an expression.
MAX_FILTER_PARAMETERS = 32
#: SQL92: length of an expression in characters, number of its operands, nesting of its operations. A property
#: whose text is longer than the last one is not a number.
MAX_FILTER_EXPRESSION_LENGTH = 16_384
MAX_FILTER_OPERANDS = 1_000
MAX_FILTER_DEPTH = 100
MAX_FILTER_NUMBER_LENGTH = 256
#: Filters of groups that are kept, of which those of groups that are offline go first.
MAX_FILTER_DATA = 10_000
#: Filters of a topic that are evaluated for the bit map of a message; the bits of the others are set.
MAX_BIT_MAP_FILTERS = 64
