#pragma once

/*
 * event_log - the events of a stream that several clients may read, from any event on and at their
 * own speed: of a response that was asked for in the background. The log grows while the response
 * is generated; a closed log does not change any more and is kept with the stored response.
 *
 * The loop's thread adds and reads; any thread may give a reference back.
 */

#include <stdatomic.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/list.h"

/* Invariants: n is 0 when it is lost; at[i] is where event i begins in `text`. */
struct event_log {
    _Atomic uint32_t refs;
    struct buf text; /* text of an event as in a stream */
    size_t *at;
    uint32_t n, cap;
    struct list watches; /* event_watch.link */
    bool closed;
    bool lost; /* memory was short, so its readers cannot continue */
};

struct event_watch {
    struct list link;
    void (*news)(struct event_watch *w); /* the log has changed; may remove @w alone */
};

/* NULL: no memory. */
struct event_log *event_log_new(void);
struct event_log *event_log_ref(struct event_log *l);   /* another reference */
struct event_log *event_log_unref(struct event_log *l); /* accepts NULL, returns NULL */
/* Adds the next event; without memory for it the log is lost. */
void event_log_add(struct event_log *l, const char *name, const char *json, size_t len);
/* Frees the events; later ones are dropped. */
void event_log_lose(struct event_log *l);
/* Closes the log after the last event. */
void event_log_close(struct event_log *l);
size_t event_log_bytes(const struct event_log *l); /* accepts NULL */
