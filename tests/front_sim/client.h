#pragma once

/*
 * client - a connection and the requests that go over it, one after the other. The fault of a
 * client (reset, leave, stall) is its fate; a client without one gets every answer.
 */

#include "tests/front_sim/ask.h"
#include "tests/front_sim/sim.h"

#define CLIENT_ASKS 5

enum fate {
    CLIENT_NICE,
    /* resets after some bytes of an answer */
    CLIENT_RESETS,
    /* ends its side after the last request */
    CLIENT_LEAVES,
    /* stops in the middle of a request */
    CLIENT_STALLS,
    /* reads slowly, but reads */
    CLIENT_SLOW,
    /* stops reading at some point */
    CLIENT_DEAF,
    /* leaves some time after a request, mostly before its answer */
    CLIENT_HASTY,
    CLIENT_FATES
};

/* Failures that a client without a fault may see in the scenario; counted as they occur. */
struct tolerance {
    bool refuse_503, refuse_429, fail_500, cut;
    /* texts, counts and errors are any that have the documented form */
    bool damage;
    uint32_t n_503, n_429, n_500, n_cut, n_408, n_right, n_404;
    /* longest wait for an answer; more breaks rule BOUND */
    int64_t wait_ns;
    /* longest time until a stream begins, and longest silence of one that has */
    int64_t head_ns, silence_ns;
    /* longest time that the front waits for a client that reads nothing; more breaks rule STALL */
    int64_t stall_ns;
    /* Time until which the only model may be loaded for the first time: requests that are sent
     * before it, and before another one gets its answer, may be refused with 503. */
    int64_t loaded_ns;
    /* time of the first right answer to a generation; 0: none yet */
    int64_t served_ns;
};

extern struct tolerance tolerance;

struct client;

/* Makes a client that connects to @address after a while. */
struct client *client_new(uint32_t number, const char *address, uint32_t from, enum fate fate,
                          uint32_t n_models, const char *key);
bool client_is_done(const struct client *c);
void client_free(struct client *c);
/* Sends one GET for the scenario; *status 0: no answer. */
struct client *client_get(uint32_t number, const char *address, const char *method,
                          const char *path);
/* Returns the body of its answer. */
const struct buf *client_body(const struct client *c, int *status);
