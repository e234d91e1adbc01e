#include "base/clock.h"

#include <time.h>

#include "base/util.h"

static int64_t read_monotonic(struct clock *c) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

struct clock *clock_monotonic(void) {
    static struct clock monotonic = {read_monotonic};

    return &monotonic;
}

static int64_t read_virtual(struct clock *c) {
    return CONTAINER_OF(c, struct clock_virtual, clock)->ns;
}

void clock_virtual_init(struct clock_virtual *v, int64_t start_ns) {
    *v = (struct clock_virtual){{read_virtual}, start_ns};
}
