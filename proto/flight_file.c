#include "proto/flight_file.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MAGIC "weftflt1"

struct head {
    char magic[8];
    char version[48];
    int64_t at_ns;
    /* The layout of a record and of a step: another layout is another version. */
    uint32_t record_size, step_size, n_records, n_steps;
    uint64_t n_tape;
};

/* The last @max of @n entries of @size bytes, the oldest first. */
static int add_ring(struct buf *out, const void *ring, size_t size, uint64_t n, uint32_t max,
                    uint32_t *n_out) {
    int e;

    *n_out = (uint32_t)MIN(n, max);
    for (uint64_t i = n - *n_out; i < n; i++)
        if ((e = buf_add(out, (const char *)ring + i % max * size, size)) != 0)
            return e;
    return 0;
}

int flight_file_write(struct buf *out, const struct flight *f, uint32_t tape_bytes,
                      const char *version, int64_t now_ns) {
    struct head h = {.magic = MAGIC,
                     .at_ns = now_ns,
                     .record_size = sizeof(struct flight_record),
                     .step_size = sizeof(struct flight_step)};
    uint64_t n_records = __atomic_load_n(&f->n_records, __ATOMIC_ACQUIRE);
    uint64_t n_steps = __atomic_load_n(&f->n_steps, __ATOMIC_ACQUIRE);
    const struct flight_tape *tape = (const struct flight_tape *)(f + 1);
    size_t head = out->len, at;

    snprintf(h.version, sizeof(h.version), "%s", version);
    int e = buf_add(out, &h, sizeof(h));
    if (e == 0)
        e = add_ring(out, f->record, sizeof(*f->record), n_records, FLIGHT_RECORDS, &h.n_records);
    if (e == 0)
        e = add_ring(out, f->step, sizeof(*f->step), n_steps, FLIGHT_STEPS, &h.n_steps);
    at = out->len;
    if (e == 0)
        e = flight_tape_read(tape, tape_bytes, out);
    if (e < 0)
        return e;
    assert(h.n_records <= FLIGHT_RECORDS && h.n_steps <= FLIGHT_STEPS);
    h.n_tape = out->len - at;
    memcpy(out->data + head, &h, sizeof(h));
    return 0;
}

bool flight_file_is(const void *data, size_t n) {
    return n >= sizeof(MAGIC) - 1 && memcmp(data, MAGIC, sizeof(MAGIC) - 1) == 0;
}

int flight_file_parse(struct flight_file *out, const void *data, size_t n) {
    const struct head *h = data;

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
