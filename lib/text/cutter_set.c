/* cutter_set - sets of code points as sorted ranges. */

#include <errno.h>

#include "text/categories.h"
#include "text/cutter_private.h"
#include "text/unicode.h"

#define LAST_CODE_POINT 0x10FFFFu

int cutter_ranges_add(struct cutter_ranges *r, uint32_t lo, uint32_t hi) {
    if (!ARRAY_GROW(r->range, r->n, r->cap, 16))
        return -ENOMEM;
    r->range[r->n++] = (struct cutter_range){lo, hi};
    return 0;
}

int cutter_ranges_add_categories(struct cutter_ranges *r, uint32_t mask) {
    uint32_t n;
    const uint32_t *runs = unicode_runs(&n);

    for (uint32_t i = 0; i < n; i++) {
        uint32_t end = i + 1 < n ? runs[i + 1] >> 5 : LAST_CODE_POINT + 1;
        bool in = mask >> (runs[i] & 31) & 1;

        if (in && cutter_ranges_add(r, runs[i] >> 5, end - 1) < 0)
            return -ENOMEM;
    }
    return 0;
}

int cutter_ranges_join(struct cutter_ranges *r, const struct cutter_ranges *other) {
    for (uint32_t i = 0; i < other->n; i++)
        if (cutter_ranges_add(r, other->range[i].lo, other->range[i].hi) < 0)
            return -ENOMEM;
    return 0;
}

static int ranges_by_first(const void *a, const void *b) {
    const struct cutter_range *x = a, *y = b;

    return (x->lo > y->lo) - (x->lo < y->lo);
}

void cutter_ranges_sort(struct cutter_ranges *r) {
    uint32_t n = 0;

    if (r->n)
        qsort(r->range, r->n, sizeof(*r->range), ranges_by_first);
    for (uint32_t i = 0; i < r->n; i++) {
        struct cutter_range *last = n ? &r->range[n - 1] : NULL;

        if (last && r->range[i].lo <= last->hi + 1)
            last->hi = MAX(last->hi, r->range[i].hi);
        else
            r->range[n++] = r->range[i];
    }
    r->n = n;
}

int cutter_ranges_invert(struct cutter_ranges *r) {
    struct cutter_ranges out = {0};
    uint32_t next = 0;
    int result = 0;

    cutter_ranges_sort(r);
    for (uint32_t i = 0; i < r->n && result == 0; i++) {
        if (r->range[i].lo > next)
            result = cutter_ranges_add(&out, next, r->range[i].lo - 1);
        next = r->range[i].hi + 1;
    }
    if (next <= LAST_CODE_POINT && result == 0)
        result = cutter_ranges_add(&out, next, LAST_CODE_POINT);
    cutter_ranges_deinit(r);
    *r = out;
    return result;
}

int cutter_ranges_fold(struct cutter_ranges *r) {
    /* the long s and the sign of kelvin */
    static const uint32_t beyond[][2] = {{'s', 0x17F}, {'k', 0x212A}};
    bool has[128] = {false};

    for (uint32_t i = 0; i < r->n; i++)
        for (uint32_t cp = r->range[i].lo; cp <= r->range[i].hi && cp < 128; cp++)
            has[cp] = true;
    for (uint32_t c = 'a'; c <= 'z'; c++) {
        uint32_t upper = c - 'a' + 'A';

        if (!has[c] && !has[upper])
            continue;
        if (cutter_ranges_add(r, c, c) < 0 || cutter_ranges_add(r, upper, upper) < 0)
            return -ENOMEM;
        for (size_t i = 0; i < ARRAY_SIZE(beyond); i++)
            if (beyond[i][0] == c && cutter_ranges_add(r, beyond[i][1], beyond[i][1]) < 0)
                return -ENOMEM;
    }
    return 0;
}

void cutter_ranges_deinit(struct cutter_ranges *r) {
    free(r->range);
    *r = (struct cutter_ranges){0};
}

bool cutter_set_has(const struct cutter_set *set, uint32_t cp) {
    const struct cutter_range *range = set->ranges.range;
    uint32_t lo = 0, hi = set->ranges.n;

    if (cp < 128)
        return set->ascii[cp / 64] >> cp % 64 & 1;
    if (cp == UNICODE_INVALID)
        cp = 0xFFFD;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;

        if (range[mid].hi < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < set->ranges.n && range[lo].lo <= cp;
}
