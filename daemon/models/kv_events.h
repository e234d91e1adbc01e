#pragma once

/*
 * kv_events - tells routers which blocks the prefix cache of each model holds, as vLLM's KV events
 * do. A PUB socket of ZeroMQ sends numbered batches in MessagePack; a ROUTER socket repeats past
 * batches. docs/reference/kv-events.md describes the format and the routers that read it.
 *
 * The daemon never waits for a subscriber and keeps no more data for a slow one. A subscriber that
 * falls too far behind misses batches and sees this by their numbers. Past batches go out in parts,
 * one part in an iteration of the loop.
 */

#include <stdbool.h>
#include <stdint.h>

#include "api/api.h"
#include "base/err.h"
#include "base/lib_types.h"
#include "proto/messages.h"

struct kv_events;

struct kv_events_opts {
    uv_loop_t *loop;
    /* address that the PUB socket binds, in ZeroMQ's form */
    const char *endpoint;
    /* address that the ROUTER socket binds, in the same form; "": none */
    const char *replay;
    /* topic of all batches, before "@MODEL"; "": kv@HOST */
    const char *topic;
    /* another daemon still has the addresses, so kv_events_bind() follows */
    bool later;
};

/* Opens the sockets. Returns 0, or -errno with @err: libzmq is missing, or an address cannot be
 * bound. */
int kv_events_new(struct kv_events **out, const struct kv_events_opts *o, struct err *err);
/* Checks that libzmq is there and that the addresses can be bound or are in use; @replay may be "".
 * Returns 0, or -errno with @err. */
int kv_events_check(const char *endpoint, const char *replay, struct err *err);
/* Binds the addresses as soon as the previous daemon has freed them. */
void kv_events_bind(struct kv_events *e);
/* Implements api_opts.on_salt: remembers the salt from which @isolation_key was made. @ctx: struct
 * kv_events. */
void kv_events_salt(void *ctx, const uint8_t isolation_key[16], struct str salt);
/* Publishes the changes in the cache of @model as one batch; @m NULL: the cache is empty. */
void kv_events_notify(struct kv_events *e, const char *model, const struct msg_blocks *m);
/* Returns the counters, which live as long as @e; NULL for NULL. */
const struct api_kv_counts *kv_events_counts(const struct kv_events *e);
/* Closes the handles and the sockets, so that another daemon can bind the addresses. Accepts
 * NULL. */
void kv_events_close(struct kv_events *e);
/* needs the end of the loop before; accepts NULL, returns NULL */
struct kv_events *kv_events_free(struct kv_events *e);
