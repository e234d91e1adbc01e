#include <criterion/criterion.h>
#include <string.h>

#include "base/util.h"
#include "proto/stats.h"

static const struct {
    const struct stat_row *row;
    const size_t *n;
    /* of the struct */
    size_t size;
} tables[] = {
    {worker_rows, &n_worker_rows, sizeof(struct msg_stats)},
    {source_rows, &n_source_rows, sizeof(struct msg_stats)},
    {device_rows, &n_device_rows, sizeof(struct msg_device)},
    {front_rows, &n_front_rows, sizeof(struct api_stats)},
    {tenant_rows, &n_tenant_rows, sizeof(struct tenant_stats)},
};

/* Every family is in /metrics once, counters with the suffix that Prometheus asks for. */
Test(stats, families_are_named_once_and_by_their_kind) {
    for (size_t i = 0; i < ARRAY_SIZE(tables); i++) {
        for (size_t k = 0; k < *tables[i].n; k++) {
            const struct stat_row *s = &tables[i].row[k];
            size_t len = strlen(s->metric), n = 0;

            cr_expect(len == 0 || strncmp(s->metric, "weft_", 5) == 0 ||
                          strncmp(s->metric, "vllm:", 5) == 0,
                      "%s", s->metric);
            cr_expect(len == 0 || (s->kind == STAT_COUNTER) ==
                                      (len > 6 && strcmp(s->metric + len - 6, "_total") == 0),
                      "%s", s->metric);
            cr_expect(*s->help && s->help[strlen(s->help) - 1] == '.', "%s", s->key);
            for (size_t j = 0; j < ARRAY_SIZE(tables) && len > 0; j++)
                for (size_t l = 0; l < *tables[j].n; l++)
                    n += strcmp(tables[j].row[l].metric, s->metric) == 0;
            cr_expect(len == 0 || n == 1, "%s", s->metric);
        }
    }
}

Test(stats, keys_and_fields_are_distinct_and_inside) {
    for (size_t i = 0; i < ARRAY_SIZE(tables); i++) {
        for (size_t k = 0; k < *tables[i].n; k++) {
            const struct stat_row *s = &tables[i].row[k];

            cr_expect_leq(s->offset + s->size, tables[i].size, "%s", s->key);
            for (size_t l = 0; l < k; l++) {
                cr_expect_str_neq(s->key, tables[i].row[l].key);
                cr_expect_neq(s->offset, tables[i].row[l].offset, "%s", s->key);
            }
        }
    }
}

static const struct stat_row *row_of(const char *key) {
    for (size_t i = 0; i < n_worker_rows; i++)
        if (strcmp(worker_rows[i].key, key) == 0)
            return &worker_rows[i];
    cr_assert_fail("%s", key);
    return NULL;
}

Test(stats, values_are_read_by_type) {
    struct msg_stats s = {.n_steps = UINT64_C(1) << 40,
                          .n_pages = UINT32_MAX,
                          .jain = 0.25,
                          .last_step_us = 1500,
                          .accepted_by = {[4] = 7}};

    cr_expect_eq(stat_whole(row_of("steps"), &s), UINT64_C(1) << 40);
    cr_expect_eq(stat_whole(row_of("pages"), &s), UINT32_MAX);
    cr_expect_eq(stat_value(row_of("jain"), &s), 0.25);
    cr_expect_eq(stat_value(row_of("last_step_us"), &s) / row_of("last_step_us")->per, 0.0015);
    cr_expect_eq(stat_by_source(&source_rows[1], &s)[4], 7);
}
