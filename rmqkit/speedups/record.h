/* The stored message, as rmqkit/protocol/record.py shows it. Every length is checked before it is followed. */
#ifndef RMQ_RECORD_H
#define RMQ_RECORD_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define RMQ_MAGIC_V1 0xDAA320A7u
#define RMQ_MAGIC_V2 0xDAA320ABu
#define RMQ_MIN_RECORD_BYTES 91
#define RMQ_BORN_HOST_V6 0x10
#define RMQ_STORE_HOST_V6 0x20

enum {
    RMQ_RECORD_SOUND = 0,
    RMQ_RECORD_CUT = 1,     /* fewer bytes than its size field, or than any record has */
    RMQ_RECORD_MAGIC = 2,   /* no record begins here */
    RMQ_RECORD_HOSTS = 3,   /* too short for its hosts */
    RMQ_RECORD_LENGTHS = 4, /* the lengths of its parts do not add up to its size */
};

/* Fields as native numbers; positions count from the record's first byte. */
typedef struct {
    int64_t queue_offset, physical_offset, born_ms, store_ms, prepared_offset;
    uint32_t magic;
    int32_t size, crc, queue_id, flag, sys_flag, reconsume_times;
    int32_t store_at, store_host_at, tail_at; /* the born host begins at 48 and ends at store_at */
    int32_t body_at, body_bytes;
    int32_t topic_at, topic_bytes, properties_at, properties_bytes; /* set by rmq_record_parts */
} rmq_record;

static inline uint16_t rmq_u16(const uint8_t *p) { return (uint16_t)((p[0] << 8) | p[1]); }

static inline uint32_t rmq_u32(const uint8_t *p) {
    return ((uint32_t)p[0] << 24) | ((uint32_t)p[1] << 16) | ((uint32_t)p[2] << 8) | p[3];
}

static inline uint64_t rmq_u64(const uint8_t *p) { return ((uint64_t)rmq_u32(p) << 32) | rmq_u32(p + 4); }

/* Whether a record begins at `p` and ends within the `available` bytes; its size. */
static inline int rmq_record_size(const uint8_t *p, size_t available, int32_t *size) {
    if (available < RMQ_MIN_RECORD_BYTES) return 0;
    const uint32_t magic = rmq_u32(p + 4);
    *size = (int32_t)rmq_u32(p);
    return (magic == RMQ_MAGIC_V1 || magic == RMQ_MAGIC_V2) && *size >= RMQ_MIN_RECORD_BYTES &&
           (size_t)*size <= available;
}

/* The fields of the record at `p`, of which `available` bytes may be read. The body's length is not checked. */
static inline int rmq_record_head(const uint8_t *p, size_t available, rmq_record *r) {
    if (available < RMQ_MIN_RECORD_BYTES) return RMQ_RECORD_CUT;
    r->magic = rmq_u32(p + 4);
    if (r->magic != RMQ_MAGIC_V1 && r->magic != RMQ_MAGIC_V2) return RMQ_RECORD_MAGIC;
    r->size = (int32_t)rmq_u32(p);
    if (r->size < RMQ_MIN_RECORD_BYTES || (size_t)r->size > available) return RMQ_RECORD_CUT;
    r->crc = (int32_t)rmq_u32(p + 8);
    r->queue_id = (int32_t)rmq_u32(p + 12);
    r->flag = (int32_t)rmq_u32(p + 16);
    r->queue_offset = (int64_t)rmq_u64(p + 20);
    r->physical_offset = (int64_t)rmq_u64(p + 28);
    r->sys_flag = (int32_t)rmq_u32(p + 36);
    r->born_ms = (int64_t)rmq_u64(p + 40);
    r->store_at = r->sys_flag & RMQ_BORN_HOST_V6 ? 68 : 56;
    r->store_host_at = r->store_at + 8;
    r->tail_at = r->store_host_at + (r->sys_flag & RMQ_STORE_HOST_V6 ? 20 : 8);
    r->body_at = r->tail_at + 16;
    if (r->body_at > r->size) return RMQ_RECORD_HOSTS;
    r->store_ms = (int64_t)rmq_u64(p + r->store_at);
    r->reconsume_times = (int32_t)rmq_u32(p + r->tail_at);
    r->prepared_offset = (int64_t)rmq_u64(p + r->tail_at + 4);
    r->body_bytes = (int32_t)rmq_u32(p + r->tail_at + 12);
    return RMQ_RECORD_SOUND;
}

/* The places of topic and properties, after rmq_record_head was sound: all parts lie within the record. */
static inline int rmq_record_parts(const uint8_t *p, rmq_record *r) {
    const int32_t width = r->magic == RMQ_MAGIC_V2 ? 2 : 1;
    /* body_at is at most size, so this cannot overflow. */
    if (r->body_bytes < 0 || r->body_bytes > r->size - r->body_at - width - 2) return RMQ_RECORD_LENGTHS;
    const int32_t at = r->body_at + r->body_bytes;
    r->topic_bytes = width == 1 ? p[at] : (int16_t)rmq_u16(p + at);
    r->topic_at = at + width;
    if (r->topic_bytes < 0 || r->topic_bytes > r->size - r->topic_at - 2) return RMQ_RECORD_LENGTHS;
    r->properties_at = r->topic_at + r->topic_bytes + 2;
    r->properties_bytes = (int16_t)rmq_u16(p + r->properties_at - 2);
    return r->properties_bytes == r->size - r->properties_at ? RMQ_RECORD_SOUND : RMQ_RECORD_LENGTHS;
}

#endif
