#pragma once

/*
 * store - keeps responses that clients may refer to later, with limits on number, bytes and age. A
 * client sees the responses of its own tenant. Memory holds all of them; those that are to outlive
 * the process also have a row in the database of state (store_save.c).
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
#include "api/responses/item_list.h"
#include "api/state/state.h"
#include "base/list.h"
#include "base/splices.h"

#define STORE_BUCKETS 1024u
#define STORE_DEPTH 16384u /* responses in a row that continue each other */

/* A look at the rows of others, in the transaction of the job. */
struct save_look {
    int64_t last, version;
    bool more;
    /* rows whose checksum is wrong */
    uint32_t n_bad;
    /* false: there was nothing new */
    bool done;
};

/* store_save.c: what is to be written. Invariants, under the store's lock: `dirty` has the
 * responses whose rows differ, parents before those that continue them; `batch` those that the job
 * writes, each with a reference or dead. The job's other members are the thread's while it runs. */
struct store_save {
    /* there is a database, and store_save_end() was not called */
    bool on;
    bool running;
    /* stored.dirty */
    struct list dirty, batch;
    /* stored.by_row */
    struct list rows[STORE_BUCKETS];
    struct state_job job;
    uv_async_t dirtied;
    uv_timer_t timer;
    /* number that this process writes into its rows */
    int64_t writer;
    /* seconds from 1970 to the zero of store.clock, by the machine's time at the start */
    int64_t epoch_s;
    /* highest number of a row that was looked at */
    int64_t last;
    /* db_version() at the last look; 0: look again */
    int64_t version;
    /* more rows are to be read */
    bool cleaned, more;
    /* all rows were read once */
    bool begun;
    /* the present job's; the members above follow it */
    struct save_look look;
    /* stored_row.link: rows of other processes */
    struct list found;
    /* read, and not in the index: until the next look */
    struct stored **pins, **old_pins;
    uint32_t n_pins, cap_pins, n_old_pins;
};

struct stored;

/* State in which clients find, or do not find, the response of a row. ROW_PROMISED: not in the
 * process that wrote it, which still generates the response; for those that begin later it has
 * failed. */
enum row_listed { ROW_HIDDEN, ROW_LISTED, ROW_PROMISED };

struct store_limits {
    /* responses; 0: none are kept */
    uint32_t n;
    /* sum over all responses, including those that only requests hold */
    uint64_t bytes;
    /* time since a response was last continued */
    uint32_t ttl_s;
    /* Returns the weight of a tenant's share; called in store_watch(), on the loop's thread. NULL:
     * all tenants have the same. */
    double (*weight)(void *ctx, uint32_t tenant);
    /* NULL: nothing outlives the process; else the names of tenants: */
    struct state *state;
    const char *(*name)(void *ctx, uint32_t tenant);
    /* false: no memory */
    bool (*named)(void *ctx, const char *name, uint32_t *tenant);
    /* NULL: the machine's time */
    int64_t (*unix_s)(void *ctx);
    void *ctx;
    /* begins while another daemon generates the responses that it has promised */
    bool beside;
};

/* Invariants, under the lock: bytes is the sum of the tenants' bytes, n of their n; n <= limits.n.
 * bytes may exceed limits.bytes only while responses that requests hold cannot be freed. */
struct store {
    struct store_limits limits;
    struct clock *clock;
    pthread_mutex_t lock;
    uv_timer_t tick;
    /* stored.bucket */
    struct list buckets[STORE_BUCKETS];
    struct store_tenant *tenants;
    uint32_t n_tenants, n;
    uint64_t bytes;
    /* bytes of stored items that requests have had parsed: any thread */
    _Atomic uint64_t n_read;
    /* bytes of the logs of responses under way: the loop's thread */
    uint64_t n_logged;
    /* responses.link: responses under way; the loop's thread */
    struct list live;
    /* stored.link: without references, to be freed */
    struct list unheld;
    bool open;
    /* another daemon serves the rows: what is forgotten here stays in the database */
    bool leaves;
    struct store_save save;
};

/* @loop and @clock outlive it. */
void store_init(struct store *s, uv_loop_t *loop, struct clock *clock,
                const struct store_limits *limits);
void store_close(struct store *s); /* the timers */
/* Reads the responses in the database, which then gets what is added. In this thread, before the
 * loop runs. */
void store_load(struct store *s);
/* Leaves the rows to another daemon, which serves from now on. */
void store_hand_over(struct store *s);
/* Writes what is not in the database yet, in this thread: after store_close(), when the loop has
 * run out. Returns 0 or -errno, then *@n_lost is the number of responses that are lost. */
int store_save_end(struct store *s, uint32_t *n_lost);
void store_deinit(struct store *s); /* accepts a zeroed one */
/* Writes the number of kept responses, and the memory of all, including those that requests hold.
 * On any thread. */
void store_size(struct store *s, uint32_t *n, uint64_t *bytes);

/* The text of a response in pieces: the object is head, echo, a closing brace. The large ones are
 * made once and never copied. */
struct stored_parts {
    /* the object up to what repeats the request, or empty */
    struct spliced head;
    /* members that repeat the request: "key":value,... Or NULL */
    struct blob *echo;
    /* items of its own input, a JSON array */
    struct buf input;
    /* items in head */
    struct item_list output;
    /* items in input */
    struct item_list items;
    /* events of its stream, closed; or NULL */
    struct event_log *log;
    /* its client ended it */
    bool cancelled;
    /* not to be written, unless one that is written continues it */
    bool transient;
};

void stored_parts_init(struct stored_parts *p);   /* empty */
void stored_parts_deinit(struct stored_parts *p); /* accepts one that was taken over */
/* Returns the JSON of an item of @p->output (@output) or @p->items, whose entry is @e, of e->len
 * bytes: in place, or in @scratch, which is overwritten. NULL: no memory. */
const char *stored_item(const struct stored_parts *p, bool output, const struct item_entry *e,
                        struct buf *scratch);

/* A stored response; its parts are immutable, and any thread that holds a reference reads them.
 * Invariants, under the lock: refs counts its holders, including the index; `link` and `bucket` are
 * in their lists together; `parent` is of the same tenant. */
struct stored {
    /* store_tenant.kept or store.unheld, store.buckets; empty: forgotten */
    struct list link, bucket;
    struct store *store;
    /* response that it continues */
    struct stored *parent;
    char id[48];
    uint32_t tenant, refs;
    /* number of those that it continues */
    uint32_t depth;
    int64_t used_ns;
    struct stored_parts parts;

    /* store_save.c */
    /* store_save.dirty or .batch; store_save.rows */
    struct list dirty, by_row;
    /* number of its row; 0: none. next_row: the thread's */
    int64_t row, next_row;
    /* seconds since 1970 */
    int64_t created_s, used_s;
    /* is to have a row */
    bool wanted;
    /* was freed, and its row is to be deleted */
    bool dead;
    /* since it was read */
    bool continued;
    /* set: the row belongs to others */
    bool leaves_row;
    /* again: it changed since it was put into the batch */
    bool in_batch, again;
    /* set: the row is for processes that begin after this one */
    bool promised;
    enum row_listed listed_then;
    /* content that the batch writes */
    int64_t used_then;
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
/* Makes a response that only its holders have, whatever its size: *@out is the caller's. For one
 * that takes the place of what is freed then. Returns 0 or -ENOMEM. */
int store_hold(struct store *s, uint32_t tenant, const char *id, struct stored *parent,
               struct stored_parts *parts, struct stored **out);
/* Writes @r, a response that failed and that only its holder has: if this process is killed, the
 * next one lists it. Without a database this does nothing. */
void store_promise(struct stored *r);
/* Replaces @old by a response with the same id and with @parts, which are taken over; it continues
 * @parent (NULL: none). Returns 0, -ENOMEM, or -ENOENT: @old is not kept any more. */
int store_replace(struct stored *old, struct stored *parent, struct stored_parts *parts);
/* Starts to check the age of responses, and notes the weights of the tenants' shares. On the loop's
 * thread, before a response of @tenant is added. */
void store_watch(struct store *s, uint32_t tenant);
/* Forgets the response; returns false if there is none. */
bool store_remove(struct store *s, uint32_t tenant, const char *id, size_t len);
