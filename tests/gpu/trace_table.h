#pragma once

/* trace_table - prints the times of kernels in steps, from the slots of a trace
 * (engine/cuda/trace.h). Part of models.c. */

#include <stdlib.h>
#include <string.h>

#include "engine/cuda/trace.h"
#include "tests/gpu/report.h"

enum { TRACE_ROWS = 64 };

/* A row: launches of one kernel with one grid at one place of a layer. A layer begins with the
 * launch of the kernel `store`, or, if there is none, of attention. */
struct trace_row {
    char name[TRACE_NAME + 1];
    uint32_t grid_x, grid_y, place, n, room;
    /* [n] microseconds from the end of the kernel's wait to the end of the next kernel's wait, and
     * from the begin of block 0 to the end of its wait */
    double *us, *early;
};

static inline int trace_compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Returns the row of a launch, a new one if there is none; NULL: there are too many. */
static inline struct trace_row *trace_row_of(struct trace_row *row, uint32_t *n,
                                             const struct trace_slot *s, uint32_t place) {
    for (uint32_t i = 0; i < *n; i++)
        if (strncmp(row[i].name, (const char *)s->name.word, TRACE_NAME) == 0 &&
            row[i].grid_x == s->grid_x && row[i].grid_y == s->grid_y && row[i].place == place)
            return &row[i];
    if (*n == TRACE_ROWS)
        return NULL;
    row[*n] = (struct trace_row){.grid_x = s->grid_x, .grid_y = s->grid_y, .place = place};
    memcpy(row[*n].name, s->name.word, TRACE_NAME);
    return &row[(*n)++];
}

static inline void trace_add_time(struct trace_row *r, double us, double early) {
    if (r->n == r->room) {
        r->room = r->room ? 2 * r->room : 64;
        r->us = realloc(r->us, r->room * sizeof(*r->us));
        r->early = realloc(r->early, r->room * sizeof(*r->early));
    }
    if (!r->us || !r->early)
        abort();
    r->us[r->n] = us;
    r->early[r->n++] = early;
}

/* Returns the number of launches with the name and grid of @s since the layer began at @layer. */
static inline uint32_t trace_place(const struct trace_slot *layer, const struct trace_slot *s) {
    uint32_t place = 0;

    for (; layer < s; layer++)
        place += memcmp(&layer->name, &s->name, sizeof(s->name)) == 0 && layer->grid_x == s->grid_x;
    return place;
}

/* Sorts @n slots into rows and returns the number of rows. Each row's times are sorted. The last
 * slot has no next one. */
static inline uint32_t trace_rows(struct trace_row row[TRACE_ROWS], const struct trace_slot *slot,
                                  uint32_t n) {
    const struct trace_slot *layer = slot;
    bool stores = false;
    uint32_t n_rows = 0;

    for (uint32_t i = 0; i < n; i++)
        stores |= strncmp((const char *)slot[i].name.word, "store", 5) == 0;
    for (uint32_t i = 0; i + 1 < n; i++) {
        const char *begins = stores ? "store" : "attend";

        if (strncmp((const char *)slot[i].name.word, begins, strlen(begins)) == 0)
            layer = &slot[i];
        uint64_t from = slot[i].waited ? slot[i].waited : slot[i].entered;
        uint64_t to = slot[i + 1].waited ? slot[i + 1].waited : slot[i + 1].entered;
        struct trace_row *r = trace_row_of(row, &n_rows, &slot[i], trace_place(layer, &slot[i]));
        if (r)
            trace_add_time(r, (double)(to - from) * 1e-3, (double)(from - slot[i].entered) * 1e-3);
    }
    for (uint32_t i = 0; i < n_rows; i++) {
        qsort(row[i].us, row[i].n, sizeof(double), trace_compare);
        qsort(row[i].early, row[i].n, sizeof(double), trace_compare);
    }
    return n_rows;
}

/* Prints the table of the kernels of @n_steps steps: n, median and p90, and the median of the time
 * before the end of the wait. */
static inline void trace_print(const struct trace_slot *slot, uint32_t n, uint32_t n_steps,
                               const char *what) {
    static struct trace_row row[TRACE_ROWS];
    uint32_t n_rows = trace_rows(row, slot, n);

    printf("%s\n%-24s %12s %5s %8s %9s %9s %9s\n", what, "kernel", "grid", "place", "n a step",
           "median us", "p90", "early us");
    for (uint32_t i = 0; i < n_rows; i++) {
        const struct trace_row *r = &row[i];
        double median = r->us[r->n / 2], p90 = r->us[r->n * 9 / 10], early = r->early[r->n / 2];

        printf("%-24s %5u x %4u %5u %8.1f %9.2f %9.2f %9.2f\n", r->name, r->grid_x, r->grid_y,
               r->place, (double)r->n / n_steps, median, p90, early);
        if (report_json())
            fprintf(report_json(),
                    R"({"kernel": "%s", "step": "%s", "grid": [%u, %u], "place": %u, )"
                    R"("n": %u, "us": %.3f, "p90": %.3f, "early_us": %.3f})"
                    "\n",
                    r->name, what, r->grid_x, r->grid_y, r->place, r->n, median, p90, early);
        free(row[i].us);
        free(row[i].early);
    }
    report_flush();
}
