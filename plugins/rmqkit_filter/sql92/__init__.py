"""SQL92 expressions over the properties of messages (behaviour sheet, E; Java: rocketmq-filter).

    tokens        the lexer
    parser        the Pratt parser
    expressions   nodes: static checks, and their functions over the properties of a record
    numbers       texts as numbers, by Java's rules
    server        the filter server for the expression type SQL92

An expression becomes a tree of closures; no text of a client is evaluated as Python.
"""
