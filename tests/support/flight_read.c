#include "tests/support/flight_read.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

bool flight_file_is(const void *data, size_t n) {
    return n >= sizeof(FLIGHT_MAGIC) - 1 &&
           memcmp(data, FLIGHT_MAGIC, sizeof(FLIGHT_MAGIC) - 1) == 0;
}

int flight_file_parse(struct flight_file *out, const void *data, size_t n) {
    const struct flight_head *h = data;

    if (n < sizeof(*h) || !flight_file_is(data, n) ||
        memchr(h->version, 0, sizeof(h->version)) == NULL ||
        h->record_size != sizeof(struct flight_record) ||
        h->step_size != sizeof(struct flight_step) || h->n_records > FLIGHT_RECORDS ||
        h->n_steps > FLIGHT_STEPS)
        return -EINVAL;
    uint64_t steps_at = sizeof(*h) + (uint64_t)h->n_records * sizeof(struct flight_record);
    uint64_t tape_at = steps_at + (uint64_t)h->n_steps * sizeof(struct flight_step);
    if (tape_at > n || h->n_tape != n - tape_at)
        return -EINVAL;
    *out = (struct flight_file){.version = h->version,
                                .at_ns = h->at_ns,
                                .record = (const void *)(h + 1),
                                .step = (const void *)((const char *)data + steps_at),
                                .n_records = h->n_records,
                                .n_steps = h->n_steps,
                                .tape = (const uint8_t *)data + tape_at,
                                .n_tape = h->n_tape};
    return 0;
}

const void *flight_file_next(const struct flight_file *f, size_t *at, uint32_t *len) {
    assert(*at <= f->n_tape);
    const uint8_t *from = f->tape + *at;

    if (f->n_tape - *at < sizeof(*len))
        return NULL;
    memcpy(len, from, sizeof(*len));
    if (*len > f->n_tape - *at - sizeof(*len))
        return NULL;
    *at += sizeof(*len) + *len;
    return from + sizeof(*len);
}
