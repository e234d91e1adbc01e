#pragma once

/*
 * store - keeps responses that clients may refer to later, in memory only, with limits on number,
 * bytes and age. A client sees the responses of its own tenant.
 *
 * A response that continues another one holds a reference to it, so that a conversation is complete
 * as long as any part of it can be continued. A conversation with an id of its own is one whose
 * parts are its head alone, and which is replaced whenever something is added to what it continues.
 * Any thread may look up, add and replace.
 */

#include <pthread.h>
#include <stdint.h>
#include <uv.h>
#include "api/responses/event_log.h"
#include "base/blob.h"
#include "api/responses/item_list.h"
#include "base/list.h"

#define STORE_BUCKETS 1024u

struct stored;

struct store_limits {
    uint32_t n;     /* responses; 0: none are kept */
    uint64_t bytes; /* sum over all responses, including those that only requests hold */
    uint32_t ttl_s; /* time since a response was last continued */
    /* Returns the weight of a tenant's share; called in store_watch(), on the loop's thread. NULL:
     * all tenants have the same. */
    double (*weight)(void *ctx, uint32_t tenant);
    void *ctx;
};

/* Invariants, under the lock: bytes is the sum of the tenants' bytes, n of their n; n <= limits.n.
 * bytes may exceed limits.bytes only while responses that requests hold cannot be freed. */
struct store {
    struct store_limits limits;
    struct clock *clock;
    pthread_mutex_t lock;
    uv_timer_t tick;
    struct list buckets[STORE_BUCKETS]; /* stored.bucket */
    struct store_tenant *tenants;
    uint32_t n_tenants, n;
    uint64_t bytes;
    _Atomic uint64_t n_read; /* bytes of stored items that requests have had parsed: any thread */
    uint64_t n_logged;       /* bytes of the logs of responses under way: the loop's thread */
    struct list live;        /* responses.link: responses under way; the loop's thread */
    bool open;
};

/* @loop and @clock outlive it. */
void store_init(struct store *s, uv_loop_t *loop, struct clock *clock,
                const struct store_limits *limits);
void store_close(struct store *s);  /* the timer */
void store_deinit(struct store *s); /* accepts a zeroed one */
/* Writes the number of kept responses, and the memory of all, including those that requests hold.
 * On any thread. */
void store_size(struct store *s, uint32_t *n, uint64_t *bytes);

/* The text of a response in pieces: the object is head, echo, a closing brace. The large ones are
 * made once and never copied. */
struct stored_parts {
    struct blob *head;       /* the object up to what repeats the request, or NULL */
    struct blob *echo;       /* members that repeat the request: "key":value,... Or NULL */
    struct buf input;        /* items of its own input, a JSON array */
    struct item_list output; /* items in head */
    struct item_list items;  /* items in input */
    struct event_log *log;   /* events of its stream, closed; or NULL */
    bool cancelled;          /* its client ended it */
};

void stored_parts_init(struct stored_parts *p);   /* empty */
void stored_parts_deinit(struct stored_parts *p); /* accepts one that was taken over */

/* A stored response; its parts are immutable, and any thread that holds a reference reads them.
 * Invariants, under the lock: refs counts its holders, including the index; `link` and `bucket` are
 * in their lists together; `parent` is of the same tenant. */
struct stored {
    struct list link, bucket; /* store_tenant.kept, store.buckets; empty: forgotten */
    struct store *store;
    struct stored *parent; /* response that it continues */
    char id[48];
    uint32_t tenant, refs;
    int64_t used_ns;
    struct stored_parts parts;
};

/* Returns a reference to the response @id of @tenant, which the caller releases; NULL: there is
 * none. */
struct stored *store_get(struct store *s, uint32_t tenant, const char *id, size_t len);
struct stored *stored_ref(struct stored *r); /* another reference */
/* Marks a response that is being continued: it and its predecessors are the last to be
 * forgotten. */
void store_use(struct stored *r);
struct stored *stored_unref(struct stored *r); /* accepts NULL */
/* Keeps a response, unless it is larger than the whole store; older ones make room. @parent may be
 * NULL. @parts are taken over and left empty. Returns 0 or -ENOMEM. */
int store_add(struct store *s, uint32_t tenant, const char *id, struct stored *parent,
              struct stored_parts *parts);
/* Replaces @old by a response with the same id and with @parts, which are taken over; it continues
 * @parent (NULL: none). Returns 0, -ENOMEM, or -ENOENT: @old is not kept any more. */
int store_replace(struct stored *old, struct stored *parent, struct stored_parts *parts);
/* Starts to check the age of responses, and notes the weights of the tenants' shares. On the loop's
 * thread, before a response of @tenant is added. */
void store_watch(struct store *s, uint32_t tenant);
/* Forgets the response; returns false if there is none. */
bool store_remove(struct store *s, uint32_t tenant, const char *id, size_t len);
