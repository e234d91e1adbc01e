#pragma once

/*
 * report - prints results as text to stdout and as JSON lines to the file $GPU_JSON, and runs each
 * group of checks in a process of its own. After a fault, a process cannot use the device any more;
 * this way the other groups still run. The parent process never uses the device.
 *
 *   GPU_IN_PROCESS=1  runs all groups in this process, for compute-sanitizer
 *   GPU_ONLY=TEXT     runs only groups whose name contains TEXT
 *   GPU_SHARD=I/N     runs only groups I, I + N, I + 2N, ..., so that N programs share the groups
 *   GPU_FAILED=FILE   adds the names of the groups that failed to FILE
 */

#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct report_counts {
    unsigned n_checks, n_failed, n_hung;
    /* report_rows(): rows of the table that have begun */
    unsigned n_begun;
    /* name of the last of them */
    char row[80];
};

/* Returns the counts of this process and its children. */
static inline struct report_counts *report_counts(void) {
    static struct report_counts *c;

    if (!c)
        c = mmap(NULL, sizeof(*c), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (c == MAP_FAILED)
        abort();
    return c;
}

/* Returns the file for JSON lines, or NULL. */
static inline FILE *report_json(void) {
    static FILE *f;

    if (!f && getenv("GPU_JSON"))
        f = fopen(getenv("GPU_JSON"), "a");
    return f;
}

static inline void report_flush(void) {
    fflush(stdout);
    if (report_json())
        fflush(report_json());
}

/* Returns the time in seconds, from an arbitrary beginning. */
static inline double report_now(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Reports a check that passes if @value is at most @limit; NaN fails. */
static inline void report_check(const char *name, double value, double limit) {
    struct report_counts *c = report_counts();
    bool ok = value <= limit;

    c->n_checks++;
    c->n_failed += !ok;
    if (!ok)
        printf("FAILED %-44s %.3g, at most %.3g\n", name, value, limit);
    if (report_json())
        fprintf(report_json(),
                R"({"check": "%s", "value": %g, "limit": %g, "ok": %s})"
                "\n",
                name, value == value && value < 1e30 ? value : 1e30, limit, ok ? "true" : "false");
    report_flush();
}

/* Reports that a check failed because it could not be completed. */
static inline void report_broken(const char *name, const char *how, int number) {
    struct report_counts *c = report_counts();

    c->n_checks++;
    c->n_failed++;
    printf("FAILED %-44s %s %d\n", name, how, number);
    if (report_json())
        fprintf(report_json(),
                R"({"check": "%s", "broken": "%s %d", "ok": false})"
                "\n",
                name, how, number);
    report_flush();
}

/* Reports that a check is not possible on this machine. */
static inline void report_skipped(const char *name, const char *why) {
    printf("skipped %-43s %s\n", name, why);
    if (report_json())
        fprintf(report_json(),
                R"({"skipped": "%s", "why": "%s"})"
                "\n",
                name, why);
    report_flush();
}

/* Reports a time and its lower bound: the time of moving @bytes at @bandwidth, in bytes per
 * second; 0: there is no bound. */
static inline void report_time(const char *name, double seconds, double bytes, double bandwidth) {
    double floor = bandwidth > 0 ? bytes / bandwidth : 0;

    printf("%-48s %10.1f us  floor %9.1f us  %5.1f %%\n", name, seconds * 1e6, floor * 1e6,
           seconds > 0 ? floor / seconds * 100 : 0);
    if (report_json())
        fprintf(report_json(),
                R"({"time": "%s", "us": %g, "floor_us": %g, "bytes": %g})"
                "\n",
                name, seconds * 1e6, floor * 1e6, bytes);
    report_flush();
}

/* Reports a measured number. */
static inline void report_value(const char *name, double value, const char *unit) {
    printf("%-48s %10.2f %s\n", name, value, unit);
    if (report_json())
        fprintf(report_json(),
                R"({"value": "%s", "number": %g, "unit": "%s"})"
                "\n",
                name, value, unit);
    report_flush();
}

/* Prints a line about a failed check, to stdout only. */
__attribute__((format(printf, 1, 2))) static inline void report_detail(const char *format, ...) {
    va_list list;

    va_start(list, format);
    printf("    ");
    vprintf(format, list);
    printf("\n");
    va_end(list);
}

/* Adds the name of a failed group to the file $GPU_FAILED. */
static inline void report_note_failed(const char *name) {
    FILE *f = getenv("GPU_FAILED") ? fopen(getenv("GPU_FAILED"), "a") : NULL;

    if (f) {
        fprintf(f, "%s\n", name);
        fclose(f);
    }
}

/* Returns true if this process runs the next group of checks according to GPU_ONLY and
 * GPU_SHARD. */
static inline bool report_takes(const char *name) {
    static unsigned n_groups;
    unsigned shard = 0, n_shards = 1, group = n_groups++;

    if (getenv("GPU_ONLY") && !strstr(name, getenv("GPU_ONLY")))
        return false;
    if (getenv("GPU_SHARD") && sscanf(getenv("GPU_SHARD"), "%u/%u", &shard, &n_shards) != 2)
        abort();
    return group % n_shards == shard;
}

/* Runs a group of checks, @fn, in a process of its own, which is ended after @limit_s seconds.
 * After two groups that did not end in time, the following groups are not tried. */
static inline void report_alone(const char *name, unsigned limit_s, void (*fn)(const void *),
                                const void *arg) {
    struct report_counts *c = report_counts();
    unsigned failed = c->n_failed;
    double start = report_now();
    int status = 0;

    if (!report_takes(name))
        return;
    if (getenv("GPU_IN_PROCESS")) {
        fn(arg);
        return;
    }
    if (c->n_hung >= 2) {
        report_broken(name, "the device does not answer, tries:", 2);
        return;
    }
    report_flush();
    pid_t child = fork();
    if (child == 0) {
        alarm(limit_s);
        fn(arg);
        report_flush();
        _exit(0);
    }
    while (child > 0 && waitpid(child, &status, 0) < 0)
        continue;
    if (child < 0)
        report_broken(name, "fork", 0);
    else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        report_broken(name, "does not end, seconds", (int)limit_s);
    else if (WIFSIGNALED(status))
        report_broken(name, "ended by signal", WTERMSIG(status));
    else if (WEXITSTATUS(status) != 0 && c->n_failed == failed)
        report_broken(name, "exit code", WEXITSTATUS(status));
    c->n_hung += child > 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
    if (c->n_failed != failed)
        report_note_failed(name);
    printf("%-6s %s, %.1f s\n", c->n_failed == failed ? "ok" : "FAILED", name,
           report_now() - start);
    report_flush();
}

/* Called by the function of report_rows() when row @i begins. The process is ended if the row takes
 * more than @limit_s seconds. */
static inline void report_row(unsigned i, unsigned limit_s, const char *name) {
    struct report_counts *c = report_counts();

    snprintf(c->row, sizeof(c->row), "%s", name);
    c->n_begun = i + 1;
    if (!getenv("GPU_IN_PROCESS"))
        alarm(limit_s);
}

/* Computes a table of @n rows in one process: @fn computes the rows from @first on, and calls
 * report_row() before each. If a row ends the process, another process continues after this row, at
 * most three times. @open_s: seconds that @fn may take until the first row. */
static inline void report_rows(const char *name, unsigned open_s, unsigned n,
                               void (*fn)(const void *arg, unsigned first), const void *arg) {
    struct report_counts *c = report_counts();

    for (unsigned first = 0, ended = 0; first < n; first = c->n_begun) {
        int status = 0;

        if (ended++ == 3) {
            report_broken(name, "rows ended their process, the others are not tried:", 3);
            return;
        }
        if (getenv("GPU_IN_PROCESS")) {
            fn(arg, first);
            return;
        }
        c->n_begun = 0;
        report_flush();
        pid_t child = fork();
        if (child == 0) {
            alarm(open_s);
            fn(arg, first);
            report_flush();
            _exit(0);
        }
        while (child > 0 && waitpid(child, &status, 0) < 0)
            continue;
        if (child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0)
            return;
        report_broken(c->n_begun ? c->row : name,
                      WIFSIGNALED(status) ? "ended by signal" : "exit code",
                      WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        if (!c->n_begun)
            return; /* another process would fail before its first row, too */
    }
}

/* Returns the bandwidth of reading in bytes per second, which tests/gpu/run has measured; 0: not
 * known. */
static inline double report_bandwidth(void) {
    const char *s = getenv("GPU_READ_GB_S");

    return s ? atof(s) * 1e9 : 0;
}

/* Prints the counts. Returns the exit code of the program. */
static inline int report_end(const char *what) {
    struct report_counts *c = report_counts();

    printf("%s: %u checks, %u failed\n", what, c->n_checks, c->n_failed);
    report_flush();
    return c->n_failed ? 1 : 0;
}
