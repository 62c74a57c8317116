/* One key of a record, as a run of sends gives it to an index. */
#ifndef RMQ_KEY_ROW_H
#define RMQ_KEY_ROW_H

#include <stdint.h>

typedef struct {
    int64_t physical_offset;
    int64_t time_ms;
    uint32_t key_hash;
} rmq_key_row;

#endif
