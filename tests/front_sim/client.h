#pragma once

/*
 * client - a connection and the requests that go over it, one after the other. What a client does
 * wrong on purpose (reset, leave, stall) is its fate; a client without one gets every answer.
 */

#include "tests/front_sim/ask.h"
#include "tests/front_sim/sim.h"

#define CLIENT_ASKS 5

enum fate {
    CLIENT_NICE,
    CLIENT_RESETS, /* resets after some bytes of an answer */
    CLIENT_LEAVES, /* ends its side behind the last request */
    CLIENT_STALLS, /* stops in the middle of a request */
    CLIENT_SLOW,   /* reads slowly, but reads */
    CLIENT_DEAF,   /* reads nothing from some point on */
    CLIENT_HASTY,  /* goes away some time after a request, mostly before its answer */
    CLIENT_FATES
};

/* What the scenario lets happen to a client without fault; counted as they happen. */
struct tolerance {
    bool refuse_503, refuse_429, fail_500, cut;
    uint32_t n_503, n_429, n_500, n_cut, n_408, n_right, n_404;
    int64_t wait_ns;    /* an answer takes longer than that: BOUND is broken */
    int64_t silence_ns; /* of a stream that has begun */
};

extern struct tolerance tolerance;

struct client;

/* It connects to @address by and by. */
struct client *client_new(uint32_t number, const char *address, uint32_t from, enum fate fate,
                          uint32_t n_models, const char *key);
bool client_is_done(const struct client *c);
void client_free(struct client *c);
/* One GET, for the director; *status 0: no answer. */
struct client *client_get(uint32_t number, const char *address, const char *method,
                          const char *path);
/* Its answer. */
const struct buf *client_body(const struct client *c, int *status);
