#include <string.h>
#include "api/private.h"

void api_on_event(struct api *a, const struct event *e) {
    (void)a;
    (void)e;
}

void api_on_stats(struct api *a, const struct msg_stats *s) {
    (void)a;
    (void)s;
}

void api_worker_down(struct api *a) {
    a->worker_up = false;
}

void api_worker_up(struct api *a, uint32_t (*n_faults)(struct api_port *p, uint64_t id)) {
    (void)n_faults;
    a->worker_up = true;
}

void api_stats(const struct api *a, struct api_stats *out) {
    *out = a->stats;
}

uint32_t api_requests(const struct api *a, struct api_request_info *out, uint32_t max) {
    (void)a;
    (void)out;
    (void)max;
    return 0;
}

bool api_cancel(struct api *a, uint64_t id) {
    (void)a;
    (void)id;
    return false;
}
