#include "text/template/budget.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/jobs.h"

#define NO_MEMORY "the template needs too much memory"
#define PAUSE_STEPS 256 /* steps between two calls of job_pause(), some 20 us */

int render_fail(struct render *rd, const char *fmt, ...) {
    char reason[320];
    va_list ap;

    if (rd->failed)
        return -EINVAL;
    rd->failed = true;
    va_start(ap, fmt);
    vsnprintf(reason, sizeof(reason), fmt, ap);
    va_end(ap);
    return err_set(rd->err, 400, "messages", "chat template, line %u: %s", rd->line, reason);
}

int render_fail_limit(struct render *rd, const char *reason) {
    rd->overflow |= !rd->failed;
    return render_fail(rd, "%s", reason);
}

/* Moves steps from the fuel to the quantum, and lets other jobs have their turn between two
 * quanta. Every loop of a template ends at the latest when the fuel is spent. */
int render_charge_slowly(struct render *rd, uint64_t steps) {
    uint64_t left = render_fuel_left(rd);

    if (steps > left) {
        rd->fuel = rd->quantum = 0;
        return render_fail_limit(rd, "the template takes too many steps");
    }
    left -= steps;
    rd->quantum = MIN(left, (uint64_t)PAUSE_STEPS);
    rd->fuel = left - rd->quantum;
    if (job_pause() < 0)
        return render_fail(rd, "abandoned");
    return 0;
}

void *render_alloc(struct render *rd, size_t n, size_t size) {
    void *p = arena_alloc_array(&rd->arena, n, size);

    if (!p)
        render_fail_limit(rd, NO_MEMORY);
    return p;
}

char *render_alloc_text(struct render *rd, size_t size) {
    char *p = arena_alloc_raw(&rd->arena, size);

    if (!p)
        render_fail_limit(rd, NO_MEMORY);
    return p;
}
