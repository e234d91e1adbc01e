#include "base/cpus.h"

#include <sched.h>

#include "base/control_group.h"
#include "base/util.h"

/* Lowers *@ctx to the limit of a group. Its cpu.max holds the microseconds of processor time in
 * each period, or "max", and the period. */
static void lower_limit(const char *folder, void *ctx) {
    unsigned long long quota, period;
    uint32_t *n = ctx;

    if (control_group_read(folder, "cpu.max", "%llu %llu", &quota, &period) == 2 && period > 0)
        *n = (uint32_t)MIN(MAX(quota / period, 1), *n);
}

uint32_t cpus_in_group(const char *root, const char *path) {
    uint32_t n = UINT32_MAX;

    control_group_each(root, path, lower_limit, &n);
    return n;
}

uint32_t cpus_usable(void) {
    struct control_group g;
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
    uint32_t limit = UINT32_MAX;

    if (control_group_find(CONTROL_GROUP_SELF, "", &g))
        limit = cpus_in_group(CONTROL_GROUP_ROOT, g.path);
    return MIN((uint32_t)MAX(n, 1), limit);
}
