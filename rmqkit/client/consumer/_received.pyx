"""Stored records as the messages that consumers receive. The twin is `rmqkit.client.consumer.received`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memchr, memcmp, memcpy

from rmqkit.speedups._bytes cimport is_ascii

from rmqkit.model.properties import split_keys

cdef extern from "Python.h":
    object PyDictProxy_New(object mapping)

cdef extern from "record.h" nogil:
    ctypedef struct rmq_record:
        int64_t queue_offset, physical_offset, born_ms, store_ms
        int32_t size, crc, queue_id, flag, sys_flag, reconsume_times
        int32_t store_host_at, body_at, body_bytes
        int32_t topic_at, topic_bytes, properties_at, properties_bytes
    int rmq_record_head(const uint8_t* p, size_t available, rmq_record* r)
    int rmq_record_parts(const uint8_t* p, rmq_record* r)

cdef extern from "crc32.h" nogil:
    void rmq_crc32_prepare()
    uint32_t rmq_crc32(const uint8_t* p, size_t n)

rmq_crc32_prepare()

cdef enum:
    BORN_HOST_AT = 48
    HOST_BYTES = 8
    #: Bits of the system flag: compressed, hosts of IPv6, batch as one record.
    PECULIAR = 0x1 | 0x10 | 0x20 | 0x40 | 0x80

cdef const char* DIGITS = b"0123456789ABCDEF"


cdef str text(const uint8_t* p, Py_ssize_t size):
    return PyUnicode_DecodeASCII(<const char*>p, size, NULL)


cdef dict properties_of(const uint8_t* p, Py_ssize_t size):
    """Decode properties in ASCII (`rmqkit.model.properties.decode`)."""
    cdef dict found = {}
    cdef const uint8_t* end = p + size
    cdef const uint8_t* stop
    cdef const uint8_t* name_end
    while p < end:
        stop = <const uint8_t*>memchr(p, 2, end - p)
        if stop == NULL:
            stop = end
        name_end = <const uint8_t*>memchr(p, 1, stop - p)
        if name_end != NULL and name_end > p and name_end + 1 < stop:
            found[text(p, name_end - p)] = text(name_end + 1, stop - name_end - 1)
        p = stop + 1
    return found


cdef class Hosts:
    """Texts of IPv4 hosts; the last one is kept."""

    cdef uint8_t last[HOST_BYTES]
    cdef str last_text

    cdef str of(self, const uint8_t* p):
        if self.last_text is None or memcmp(self.last, p, HOST_BYTES):
            self.last_text = f"{p[0]}.{p[1]}.{p[2]}.{p[3]}:{<int32_t>(<uint32_t>p[4] << 24 | p[5] << 16 | p[6] << 8 | p[7])}"
            memcpy(self.last, p, HOST_BYTES)
        return self.last_text


cdef str broker_id(const uint8_t* host, const uint8_t* offset):
    """The offset message id: both in hexadecimal digits."""
    cdef char digits[32]
    cdef int at
    for at in range(8):
        digits[2 * at] = DIGITS[host[at] >> 4]
        digits[2 * at + 1] = DIGITS[host[at] & 15]
        digits[16 + 2 * at] = DIGITS[offset[at] >> 4]
        digits[17 + 2 * at] = DIGITS[offset[at] & 15]
    return PyUnicode_DecodeASCII(digits, 32, NULL)


def ordinary_messages(data, Py_ssize_t at, str broker_name, queue, added, list found, make, make_queue):
    """Decode the ordinary records that come first (`received`)."""
    cdef Py_buffer buffer
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        return _messages(<const uint8_t*>buffer.buf, buffer.len, at, broker_name, queue, added, found, make, make_queue)
    finally:
        PyBuffer_Release(&buffer)


cdef Py_ssize_t _messages(
    const uint8_t* data, Py_ssize_t length, Py_ssize_t at, str broker_name, queue, added, list found, make, make_queue
) except -1:
    cdef rmq_record r
    cdef const uint8_t* p
    cdef const uint8_t* topic_bytes = NULL
    cdef int32_t topic_length = -1
    cdef str topic = ""
    cdef str own_id
    cdef dict properties
    cdef Hosts born = Hosts(), stored = Hosts()
    if at < 0:
        raise ValueError("a position is not negative")
    while at < length:
        p = data + at
        if rmq_record_head(p, length - at, &r) or rmq_record_parts(p, &r) or r.sys_flag & PECULIAR:
            break
        if not is_ascii(<const char*>p + r.topic_at, r.topic_bytes) or not is_ascii(<const char*>p + r.properties_at, r.properties_bytes):
            break
        if r.body_bytes and <int32_t>(rmq_crc32(p + r.body_at, r.body_bytes) & 0x7FFFFFFF) != r.crc:
            break
        if r.topic_bytes != topic_length or memcmp(topic_bytes, p + r.topic_at, r.topic_bytes):
            topic_bytes, topic_length = p + r.topic_at, r.topic_bytes
            topic = text(topic_bytes, topic_length)
        properties = properties_of(p + r.properties_at, r.properties_bytes)
        properties.update(added)
        own_id = broker_id(p + r.store_host_at, p + 28)
        found.append(
            make(
                topic=topic,
                body=PyBytes_FromStringAndSize(<const char*>p + r.body_at, r.body_bytes),
                tag=properties.get("TAGS"),
                keys=split_keys(properties.get("KEYS")),
                properties=PyDictProxy_New(properties),
                queue=queue or make_queue(topic, broker_name, r.queue_id),
                queue_offset=r.queue_offset,
                message_id=properties.get("UNIQ_KEY", own_id),
                offset_message_id=own_id,
                born_timestamp_ms=r.born_ms,
                store_timestamp_ms=r.store_ms,
                born_host=born.of(p + BORN_HOST_AT),
                store_host=stored.of(p + r.store_host_at),
                physical_offset=r.physical_offset,
                reconsume_times=r.reconsume_times,
                flag=r.flag,
                sys_flag=r.sys_flag,
            )
        )
        at += r.size
    return at
