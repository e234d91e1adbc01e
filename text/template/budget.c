#include "text/template/budget.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include "base/jobs.h"

#define BYTES_PER_STEP 16
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

/* Charges @steps. Every loop of a template ends at the latest when the fuel is spent. */
int render_charge(struct render *rd, uint64_t steps) {
    if (steps > rd->fuel) {
        rd->fuel = 0;
        return render_fail_limit(rd, "the template takes too many steps");
    }
    uint64_t before = rd->fuel;

    rd->fuel -= steps;
    if (before / PAUSE_STEPS != rd->fuel / PAUSE_STEPS && job_pause() < 0)
        return render_fail(rd, "abandoned");
    return 0;
}

/* Charges one step for 16 bytes, since copying them takes about as long as evaluating a node. */
int render_charge_bytes(struct render *rd, size_t bytes) {
    return render_charge(rd, bytes / BYTES_PER_STEP);
}

void *render_alloc(struct render *rd, size_t n, size_t size) {
    void *p = arena_alloc_array(&rd->arena, n, size);

    if (!p)
        render_fail_limit(rd, "the template needs too much memory");
    return p;
}

int render_enter(struct render *rd) {
    if (rd->depth >= RENDER_DEPTH_MAX)
        return render_fail(rd, "the template is nested too deep");
    rd->depth++;
    return 0;
}

void render_leave(struct render *rd) {
    assert(rd->depth > 0);
    rd->depth--;
}
