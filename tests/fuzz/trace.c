/* Traces: workloads of weft-bench, and, behind a zero byte, the front's flight recorder. */

#include <string.h>

#include "cmd/bench_trace.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/flight_read.h"

static void read_flight(const uint8_t *data, size_t len) {
    CLEANUP(freep) void *own = malloc(len + 1);
    struct flight_file f;
    uint64_t sum = 0;
    uint32_t n;

    FUZZ_ASSERT(own);
    memcpy(own, data, len);
    if (!flight_file_is(own, len) || flight_file_parse(&f, own, len) < 0)
        return;
    sum += strlen(f.version);
    for (uint32_t i = 0; i < f.n_records; i++)
        sum += ((const uint8_t *)&f.record[i])[sizeof(f.record[i]) - 1];
    for (uint32_t i = 0; i < f.n_steps; i++)
        sum += ((const uint8_t *)&f.step[i])[sizeof(f.step[i]) - 1];
    const uint8_t *r;
    for (size_t at = 0; (r = flight_file_next(&f, &at, &n));)
        for (uint32_t i = 0; i < n; i++)
            sum += r[i];
    FUZZ_ASSERT(sum || !sum);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    struct trace_file t;
    struct err err = {0};

    if (len > 1 && data[0] == 0)
        read_flight(data + 1, len - 1);
    else if (bench_trace_read(&t, fuzz_file(data, len), NULL, &err) == 0)
        FUZZ_ASSERT(t.n_groups <= TRACE_GROUPS);
    else
        FUZZ_ASSERT(err.message[0] && !strchr(err.message, '\n'));
    return 0;
}

bool fuzz_seed(size_t i, struct buf *out) {
    CLEANUP(freep) struct flight *f = calloc(1, FLIGHT_BYTES);

    if (i > 0)
        return false;
    FUZZ_ASSERT(f && buf_add_char(out, 0) == 0);
    flight_note(f, &(uint64_t){0}, 7, 0, 3, 0, 1);
    return flight_file_write(out, f, 0, "1.0", 5) == 0;
}
