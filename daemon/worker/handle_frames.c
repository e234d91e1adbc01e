#include "daemon/worker/handle_frames.h"

#include <assert.h>

#include "base/chan.h"
#include "base/clock.h"

int handle_frames(struct chan *c, struct clock *clock, int64_t limit_ns,
                  int (*handle)(void *ctx, const struct chan_frame *f), void *ctx) {
    assert(limit_ns > 0);
    int64_t end = clock_now(clock) + limit_ns;
    struct chan_frame f;
    int r;

    while ((r = chan_recv(c, &f)) == 0) {
        r = handle(ctx, &f);
        if (r < 0 || clock_now(clock) >= end)
            return r;
    }
    return r;
}
