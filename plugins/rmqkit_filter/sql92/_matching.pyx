"""SQL92 conditions over the properties of records, in place.

The twin is `Node.evaluate` of `rmqkit_filter.sql92.expressions`. Here are the common conditions over common
values: ASCII texts, integers of up to 18 digits, decimal fractions that a double holds exactly. For any other
value or record the twin gives the verdict.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.string cimport memchr, memcmp

from rmqkit.speedups._bytes cimport Span, is_ascii, no_span

cdef extern from "record.h" nogil:
    ctypedef struct rmq_record:
        int32_t properties_at, properties_bytes
    int RMQ_RECORD_SOUND
    int rmq_record_head(const uint8_t* p, size_t available, rmq_record* record)
    int rmq_record_parts(const uint8_t* p, rmq_record* record)

cdef enum:
    MAX_NODES = 128
    MAX_NAMES = 8
    MAX_INTEGER_CHARACTERS = 18
    #: Digits of a number, and of its fraction, of which a double holds both parts exactly.
    MAX_EXACT_DIGITS = 15

#: What a condition gives. REFUSED: Java raises, no match. UNSURE: the twin decides.
cdef enum Verdict:
    FALSE
    TRUE
    NULL_VALUE
    REFUSED
    UNSURE

cdef enum Operation:
    ALL_OF
    ANY_OF
    NOT
    CONSTANT
    ORDERED
    SAME
    IS_NULL
    IN
    SEARCH

cdef enum Operand:
    INTEGER
    DOUBLE
    TEXT
    BOOLEAN

cdef struct Node:
    Operation operation
    #: Children of a node: the first, and for each the next; -1 is none.
    int first, following
    #: Position among the names.
    int name
    Operand kind
    #: ORDERED: which signs are true. SAME: whether the property is the left side. IN and SEARCH: not inverted.
    bint below, level, above, flag
    char how
    Verdict constant
    int64_t integer, lowest, highest
    double number
    #: SAME and SEARCH: the text. IN: the first of `count` texts of the condition.
    Span text
    int first_text, count

cdef double[16] POWERS_OF_TEN
POWERS_OF_TEN[:] = [1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15]


cdef Verdict read_integer(Span text, int64_t* value) noexcept:
    """TRUE with the value of a text, REFUSED for an ASCII text that is not an integer, else UNSURE."""
    cdef Py_ssize_t at = 0
    cdef bint negative
    if not is_ascii(text.at, text.size) or text.size > MAX_INTEGER_CHARACTERS:
        return UNSURE
    negative = text.at[0] == c"-"
    if negative or text.at[0] == c"+":
        at = 1
    if at == text.size:
        return REFUSED
    value[0] = 0
    while at < text.size:
        if not c"0" <= text.at[at] <= c"9":
            return REFUSED
        value[0] = value[0] * 10 + (text.at[at] - c"0")
        at += 1
    if negative:
        value[0] = -value[0]
    return TRUE


cdef Verdict read_double(Span text, double* value) noexcept:
    """TRUE with the value of a short decimal text, else UNSURE."""
    cdef Py_ssize_t at = 0
    cdef int64_t digits = 0
    cdef int count = 0, fraction = -1
    cdef bint negative = text.at[0] == c"-"
    if negative or text.at[0] == c"+":
        at = 1
    while at < text.size:
        if text.at[at] == c"." and fraction < 0 and count:
            fraction = 0
        elif c"0" <= text.at[at] <= c"9" and count < MAX_EXACT_DIGITS:
            digits = digits * 10 + (text.at[at] - c"0")
            count += 1
            if fraction >= 0:
                fraction += 1
        else:
            return UNSURE
        at += 1
    if not count or not digits:
        return UNSURE
    value[0] = digits / POWERS_OF_TEN[fraction] if fraction > 0 else <double>digits
    if negative:
        value[0] = -value[0]
    return TRUE


cdef bint is_within(Span text, Span search) noexcept:
    cdef const char* at = text.at
    cdef const char* last = text.at + text.size - search.size
    while at <= last:
        at = <const char*>memchr(at, search.at[0], last - at + 1)
        if at == NULL:
            return False
        if memcmp(at, search.at, search.size) == 0:
            return True
        at += 1
    return False


cdef bint is_true(Span text) noexcept:
    if text.size != 4 or text.at[0] | 32 != c"t" or text.at[1] | 32 != c"r":
        return False
    return text.at[2] | 32 == c"u" and text.at[3] | 32 == c"e"


cdef class Matching:
    """A condition, given by its form (`expressions.Form`). `otherwise` is the twin: record -> whether it
    matches. Raises ValueError for a form that is too large for this module."""

    cdef Node[MAX_NODES] nodes
    cdef int node_count
    cdef list texts
    cdef Span[MAX_NAMES] names
    cdef int name_count
    cdef object otherwise

    def __init__(self, tuple form, object otherwise):
        self.node_count = self.name_count = 0
        self.texts = []
        self.otherwise = otherwise
        self.add(form)

    cdef int add(self, tuple form) except -1:
        cdef int at = self.node_count
        cdef int child, last = -1
        cdef Node* node = &self.nodes[at]
        if at == MAX_NODES:
            raise ValueError("the condition has too many parts")
        self.node_count += 1
        node.first = node.following = node.name = -1
        kind = form[0]
        if kind in ("and", "or", "not"):
            node.operation = ALL_OF if kind == "and" else ANY_OF if kind == "or" else NOT
            for part in form[1:]:
                child = self.add(part)
                if last < 0:
                    node.first = child
                else:
                    self.nodes[last].following = child
                last = child
            if last < 0:
                raise ValueError("an operation without operands")
        elif kind == "constant":
            node.operation = CONSTANT
            node.constant = NULL_VALUE if form[1] is None else TRUE if form[1] else FALSE
        else:
            node.name = self.name_of(form[1])
            self.add_test(node, kind, form[2:])
        return at

    cdef int add_test(self, Node* node, str kind, tuple rest) except -1:
        if kind == "null":
            node.operation = IS_NULL
        elif kind == "ordered":
            node.operation = ORDERED
            sign, number_kind, value = rest
            node.below, node.level, node.above = "<" in sign, "=" in sign, ">" in sign
            self.set_value(node, number_kind, value)
        elif kind == "same":
            node.operation = SAME
            number_kind, value, node.flag = rest
            self.set_value(node, number_kind, value)
        elif kind == "in":
            node.operation = IN
            texts, node.flag = rest
            node.first_text, node.count = len(self.texts), len(texts)
            self.texts += [text.encode("utf-8", "surrogatepass") for text in texts]
        elif kind == "search":
            node.operation = SEARCH
            how, text, node.flag = rest
            node.how = ord(how[0])
            self.set_value(node, "TEXT", text)
            if not node.text.size:
                raise ValueError("there is nothing to search")
        else:
            raise ValueError(kind)
        return 0

    cdef int name_of(self, str name) except -1:
        cdef bytes text = name.encode()
        cdef int at
        for at in range(self.name_count):
            if <bytes>self.names[at].at[:self.names[at].size] == text:
                return at
        if self.name_count == MAX_NAMES:
            raise ValueError("the condition has too many names")
        self.names[self.name_count] = self.kept(text)
        self.name_count += 1
        return self.name_count - 1

    cdef Span kept(self, bytes text):
        cdef Span span
        self.texts.append(text)
        span.at, span.size = PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)
        return span

    cdef int set_value(self, Node* node, str kind, object value) except -1:
        if kind == "INT" or kind == "LONG":
            node.kind = INTEGER
            node.integer = value
            node.lowest = INT32_MIN if kind == "INT" else INT64_MIN
            node.highest = INT32_MAX if kind == "INT" else INT64_MAX
        elif kind == "DOUBLE":
            node.kind, node.number = DOUBLE, value
        elif kind == "BOOLEAN":
            node.kind, node.integer = BOOLEAN, value
        else:
            node.kind, node.text = TEXT, self.kept(value.encode("utf-8", "surrogatepass"))
        return 0

    def verdicts(self, records):
        """Whether each record matches."""
        cdef Py_buffer view
        cdef Verdict verdict
        cdef list found = []
        for record in records:
            PyObject_GetBuffer(record, &view, PyBUF_SIMPLE)
            verdict = self.of_record(<const uint8_t*>view.buf, view.len)
            PyBuffer_Release(&view)
            found.append(self.otherwise(record) if verdict == UNSURE else verdict == TRUE)
        return found

    cdef Verdict of_record(self, const uint8_t* at, Py_ssize_t size) noexcept:
        cdef rmq_record record
        cdef Span[MAX_NAMES] values
        if rmq_record_head(at, size, &record) != RMQ_RECORD_SOUND:
            return UNSURE
        if rmq_record_parts(at, &record) != RMQ_RECORD_SOUND:
            return UNSURE
        self.look_up(<const char*>at + record.properties_at, record.properties_bytes, values)
        return self.of_node(0, values)

    cdef void look_up(self, const char* at, Py_ssize_t size, Span* values) noexcept:
        """The last value of each name; without one, its place is NULL."""
        cdef const char* end = at + size
        cdef const char* stop
        cdef Span name
        cdef int each
        for each in range(self.name_count):
            values[each] = no_span()
        while at < end:
            stop = <const char*>memchr(at, 2, end - at)
            if stop == NULL:
                stop = end
            for each in range(self.name_count):
                name = self.names[each]
                if stop - at > name.size and at[name.size] == 1 and memcmp(at, name.at, name.size) == 0:
                    values[each].at = at + name.size + 1
                    values[each].size = stop - values[each].at
            at = stop + 1

    cdef Verdict of_node(self, int at, Span* values) noexcept:
        cdef Node* node = &self.nodes[at]
        cdef Verdict result, verdict
        cdef Verdict decides
        if node.operation == CONSTANT:
            return node.constant
        if node.operation == NOT:
            verdict = self.of_node(node.first, values)
            return FALSE if verdict == TRUE else TRUE if verdict == FALSE else verdict
        if node.operation == ALL_OF or node.operation == ANY_OF:
            decides = FALSE if node.operation == ALL_OF else TRUE
            result = TRUE if node.operation == ALL_OF else FALSE
            at = node.first
            while at >= 0:
                verdict = self.of_node(at, values)
                if verdict == decides or verdict == REFUSED or verdict == UNSURE:
                    return verdict
                if verdict == NULL_VALUE:
                    result = NULL_VALUE
                at = self.nodes[at].following
            return result
        return self.of_test(node, values[node.name])

    cdef Verdict of_test(self, Node* node, Span value) noexcept:
        if value.at == NULL:
            if node.operation == IS_NULL:
                return TRUE
            if node.operation == SEARCH or (node.operation == SAME and not node.flag):
                return FALSE
            return NULL_VALUE
        if not value.size:
            return UNSURE
        if node.operation == IS_NULL:
            return FALSE
        if node.operation == ORDERED or (node.operation == SAME and node.kind in (INTEGER, DOUBLE)):
            return self.of_number(node, value)
        if not is_ascii(value.at, value.size):
            return UNSURE
        if node.operation == SAME:
            if node.kind == BOOLEAN:
                return TRUE if is_true(value) == (node.integer != 0) else FALSE
            return TRUE if same(value, node.text) else FALSE
        if node.operation == SEARCH:
            return TRUE if self.is_found(node, value) == node.flag else FALSE
        return TRUE if self.is_among(node, value) == node.flag else FALSE

    cdef Verdict of_number(self, Node* node, Span value) noexcept:
        cdef int64_t integer
        cdef double number
        cdef Verdict verdict
        cdef int order
        if node.kind == INTEGER:
            verdict = read_integer(value, &integer)
            if verdict != TRUE:
                return verdict
            if not node.lowest <= integer <= node.highest:
                return REFUSED
            order = (integer > node.integer) - (integer < node.integer)
        else:
            verdict = read_double(value, &number)
            if verdict != TRUE:
                return verdict
            order = (number > node.number) - (number < node.number)
        if node.operation == SAME:
            return TRUE if order == 0 else FALSE
        return TRUE if (node.below if order < 0 else node.above if order > 0 else node.level) else FALSE

    cdef bint is_found(self, Node* node, Span value) noexcept:
        cdef Span search = node.text
        if search.size > value.size:
            return False
        if node.how == c"S":
            return memcmp(value.at, search.at, search.size) == 0
        if node.how == c"E":
            return memcmp(value.at + value.size - search.size, search.at, search.size) == 0
        return is_within(value, search)

    cdef bint is_among(self, Node* node, Span value) noexcept:
        cdef int each
        cdef Span text
        for each in range(node.first_text, node.first_text + node.count):
            text.at = PyBytes_AS_STRING(<bytes>self.texts[each])
            text.size = PyBytes_GET_SIZE(<bytes>self.texts[each])
            if same(value, text):
                return True
        return False


cdef bint same(Span left, Span right) noexcept:
    return left.size == right.size and memcmp(left.at, right.at, left.size) == 0
