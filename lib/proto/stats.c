#include "proto/stats.h"

#include <assert.h>
#include <string.h>

#include "base/util.h"

const char *const msg_draft_source[MSG_DRAFT_SOURCES] = {"forced", "prediction", "suffix",
                                                         "recent", "model",      "mtp"};

const double step_rows_bounds[STEP_ROWS_BUCKETS] = {1,   8,    16,   32,   64,   128,   256,
                                                    512, 1024, 2048, 4096, 8192, 16384, -1};

#define ROW(of, type, field, kind_, per_, metric_, key_, help_)                                    \
    {.metric = metric_,                                                                            \
     .key = key_,                                                                                  \
     .help = help_,                                                                                \
     .offset = offsetof(struct of, field),                                                         \
     .size = sizeof(type),                                                                         \
     .kind = STAT_##kind_,                                                                         \
     .is_real = __builtin_types_compatible_p(type, double),                                        \
     .per = per_},
#define WORKER_ROW(...) ROW(msg_stats, __VA_ARGS__)
#define DEVICE_ROW(...) ROW(msg_device, __VA_ARGS__)
#define FRONT_ROW(...) ROW(api_stats, __VA_ARGS__)
#define TENANT_ROW(...) ROW(tenant_stats, __VA_ARGS__)
#define SOURCE_ROW(field, ...) ROW(msg_stats, uint64_t, field, COUNTER, 1, __VA_ARGS__)

const struct stat_row worker_rows[] = {WORKER_STATS(WORKER_ROW)};
const struct stat_row source_rows[] = {WORKER_STATS_BY_SOURCE(SOURCE_ROW)};
const struct stat_row device_rows[] = {DEVICE_STATS(DEVICE_ROW)};
const struct stat_row front_rows[] = {FRONT_STATS(FRONT_ROW)};
const struct stat_row tenant_rows[] = {TENANT_STATS(TENANT_ROW)};

const size_t n_worker_rows = ARRAY_SIZE(worker_rows);
const size_t n_source_rows = ARRAY_SIZE(source_rows);
const size_t n_device_rows = ARRAY_SIZE(device_rows);
const size_t n_front_rows = ARRAY_SIZE(front_rows);
const size_t n_tenant_rows = ARRAY_SIZE(tenant_rows);

uint64_t stat_whole(const struct stat_row *s, const void *stats) {
    const char *at = (const char *)stats + s->offset;
    uint64_t v = 0;
    uint32_t v32;

    assert(!s->is_real && (s->size == sizeof(v) || s->size == sizeof(v32)));
    if (s->size == sizeof(v)) {
        memcpy(&v, at, sizeof(v));
        return v;
    }
    memcpy(&v32, at, sizeof(v32));
    return v32;
}

double stat_value(const struct stat_row *s, const void *stats) {
    double v;

    if (!s->is_real)
        return (double)stat_whole(s, stats);
    memcpy(&v, (const char *)stats + s->offset, sizeof(v));
    return v;
}

const uint64_t *stat_by_source(const struct stat_row *s, const struct msg_stats *stats) {
    assert(s >= source_rows && s < source_rows + n_source_rows);
    return (const uint64_t *)(const void *)((const char *)stats + s->offset);
}
