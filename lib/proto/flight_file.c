#include "proto/flight_file.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/try.h"

/* Appends the last @max of the @n entries of ring @ring, of @size bytes each, the oldest first.
 * Sets *n_out to their number. Returns 0 or -errno. */
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
    struct flight_head h = {.magic = FLIGHT_MAGIC,
                            .at_ns = now_ns,
                            .record_size = sizeof(struct flight_record),
                            .step_size = sizeof(struct flight_step)};
    uint64_t n_records = __atomic_load_n(&f->n_records, __ATOMIC_ACQUIRE);
    uint64_t n_steps = __atomic_load_n(&f->n_steps, __ATOMIC_ACQUIRE);
    const struct flight_tape *tape = (const struct flight_tape *)(f + 1);
    size_t head = out->len, at;

    snprintf(h.version, sizeof(h.version), "%s", version);
    TRY(buf_add(out, &h, sizeof(h)));
    TRY(add_ring(out, f->record, sizeof(*f->record), n_records, FLIGHT_RECORDS, &h.n_records));
    TRY(add_ring(out, f->step, sizeof(*f->step), n_steps, FLIGHT_STEPS, &h.n_steps));
    at = out->len;
    TRY(flight_tape_read(tape, tape_bytes, out));
    assert(h.n_records <= FLIGHT_RECORDS && h.n_steps <= FLIGHT_STEPS);
    h.n_tape = out->len - at;
    memcpy(out->data + head, &h, sizeof(h));
    return 0;
}
