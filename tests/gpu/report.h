#pragma once

/* report - lines for people on stdout, the same as JSON lines in the file that $GPU_JSON names. */

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static unsigned n_checks, n_failed;

static inline FILE *report_json(void) {
    static FILE *f;

    if (!f && getenv("GPU_JSON"))
        f = fopen(getenv("GPU_JSON"), "a");
    return f;
}

/* A check: @value must be at most @limit. NaN fails. */
static inline void report_check(const char *name, double value, double limit) {
    bool ok = value <= limit;

    n_checks++;
    n_failed += !ok;
    if (!ok)
        printf("FAILED %-44s %.3g, at most %.3g\n", name, value, limit);
    if (report_json())
        fprintf(report_json(), "{\"check\": \"%s\", \"value\": %g, \"limit\": %g, \"ok\": %s}\n",
                name, value == value && value < 1e30 ? value : 1e30, limit, ok ? "true" : "false");
    fflush(stdout);
}

/* A time, beside the floor that the bytes moved at @bandwidth (bytes per second) give; 0: no floor. */
static inline void report_time(const char *name, double seconds, double bytes, double bandwidth) {
    double floor = bandwidth > 0 ? bytes / bandwidth : 0;

    printf("%-44s %10.1f us  floor %9.1f us  %5.1f %%\n", name, seconds * 1e6, floor * 1e6,
           seconds > 0 ? floor / seconds * 100 : 0);
    if (report_json())
        fprintf(report_json(), "{\"time\": \"%s\", \"us\": %g, \"floor_us\": %g, \"bytes\": %g}\n",
                name, seconds * 1e6, floor * 1e6, bytes);
    fflush(stdout);
}

static inline double report_now(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline int report_end(const char *what) {
    printf("%s: %u checks, %u failed\n", what, n_checks, n_failed);
    if (report_json())
        fclose(report_json());
    return n_failed ? 1 : 0;
}
