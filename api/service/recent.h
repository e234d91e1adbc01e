#pragma once

/*
 * recent - the last generating requests that have ended. GET /v1/requests shows each tenant its own
 * ones, and the keys of operators those of all tenants, as the admin socket does (weftctl requests
 * --ended).
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/share_ring.h"

struct exchange;

#define RECENT_MAX SHARE_RING_PLACES

/* A request that has ended. Times from its receipt; 0: not reached. */
struct recent_request {
    /* x-request-id */
    char id[64];
    /* how many had ended before */
    uint64_t order;
    const char *path, *finish;
    /* generation that the worker's records are about; 0: none */
    uint64_t gen;
    uint32_t tenant, n_prompt, n_cached, n_output, n_resumed;
    int status;
    int64_t ended_ns, queue_ns, ttft_ns, total_ns;
};

/* The last RECENT_MAX of them; where one tenant has most of them, its last ones and more of the
 * others. */
struct recent {
    struct recent_request list[RECENT_MAX];
    struct share_ring ring;
    uint64_t n;
};

/* Remembers @x, which has ended at @now by the api's clock, if it generated. */
void recent_note(struct recent *r, const struct exchange *x, int64_t now);

/* Selects requests that have ended: of one tenant or of all, at most @oldest_ns and at least
 * @newest_ns ago. */
struct recent_filter {
    bool all_tenants;
    /* unless all_tenants */
    uint32_t tenant;
    int64_t oldest_ns, newest_ns;
    /* the order: the slowest first; else the last first */
    bool slowest;
};

/* Returns the request whose generation is @gen, or NULL. */
const struct recent_request *recent_of_gen(const struct recent *r, uint64_t gen);

/* Writes the first @max (> 0) requests of @f's order to @out. Returns their number. */
uint32_t recent_find(const struct recent *r, const struct recent_filter *f, int64_t now,
                     const struct recent_request **out, uint32_t max);
