#pragma once

/*
 * recent - the last generating requests, for the web page: each tenant sees its own, the slowest
 * first, with the time of each phase and the records of the worker's flight recorder. The admin
 * socket shows the requests of all tenants (weftctl requests, weftctl why).
 */

#include <stdint.h>

struct exchange;

#define RECENT_MAX 256u
#define RECENT_SHOWN 12u

/* A request that has ended. Times from its receipt; 0: not reached. */
struct recent_request {
    char id[64]; /* x-request-id */
    const char *path, *finish;
    uint32_t tenant, n_prompt, n_cached, n_output, n_resumed;
    int status;
    int64_t ended_ns, queue_ns, ttft_ns, total_ns;
};

/* The last RECENT_MAX of them, in a ring. */
struct recent {
    struct recent_request list[RECENT_MAX]; /* [n % RECENT_MAX] is the next */
    uint64_t n;
};

/* Remembers @x, which has ended at @now by the api's clock, if it generated. */
void recent_note(struct recent *r, const struct exchange *x, int64_t now);
/* Finds the slowest requests of @tenant in the last minutes before @now, the slowest first. Returns
 * their number. */
uint32_t recent_slowest(const struct recent *r, uint32_t tenant, int64_t now,
                        const struct recent_request *out[RECENT_SHOWN]);
