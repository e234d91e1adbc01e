#pragma once

/*
 * event_log - the events of a stream that several clients may read, from any event on and at their
 * own speed: of a response that was asked for in the background. The log grows while the response
 * is generated; a closed log does not change any more and is kept with the stored response.
 *
 * What several events repeat is in blobs, which they refer to. News only mark the readers, so an
 * event costs the same whatever its length, and at most EVENT_LOG_READERS times.
 *
 * The loop's thread adds and reads; any thread may give a reference back.
 */

#include <stdatomic.h>
#include <stdint.h>

#include "base/lib_types.h"
#include "base/list.h"
#include "base/splices.h"

#define EVENT_LOG_READERS 8u /* readers at the same time */

struct json;
struct logged_event;

/* Invariants: n is 0 when it is lost; n_watches is the length of `watches`. */
struct event_log {
    _Atomic uint32_t refs;
    struct logged_event *events;
    uint32_t n, cap;
    /* memory of the events' own texts */
    size_t n_bytes;
    /* event_watch.link */
    struct list watches;
    uint32_t n_watches;
    bool closed;
    /* memory was short, so its readers cannot continue */
    bool lost;
};

struct event_watch {
    struct list link;
    /* the log has changed; must not read it */
    void (*news)(struct event_watch *w);
};

/* A place in a log. */
struct event_place {
    uint32_t event;
    /* bytes of it that were read */
    size_t at;
};

/* NULL: no memory. */
struct event_log *event_log_new(void);
struct event_log *event_log_ref(struct event_log *l);   /* another reference */
struct event_log *event_log_unref(struct event_log *l); /* accepts NULL, returns NULL */
/* Adds the next event, with the parts @in (NULL: none) in its @json; without memory for it the log
 * is lost. */
void event_log_add(struct event_log *l, const char *name, const struct buf *json,
                   const struct splices *in);
/* Frees the events; later ones are dropped. */
void event_log_lose(struct event_log *l);
/* Writes the events of a closed log as a JSON array, which refers to @echo (NULL: nothing) where
 * they do. On any thread. Returns false if the log is lost: then there is nothing to write. */
bool event_log_save(const struct event_log *l, const struct blob *echo, struct json *j);
/* Makes a closed log of such an array. NULL: it is not one, or no memory. */
struct event_log *event_log_load(yyjson_val *events, struct blob *echo);
/* Closes the log after the last event. */
void event_log_close(struct event_log *l);
/* Returns the memory of the log without what its events refer to. Accepts NULL. */
size_t event_log_bytes(const struct event_log *l);
/* Lets @w watch the log. Returns false if it has too many readers. */
bool event_log_watch(struct event_log *l, struct event_watch *w);
/* Ends what event_log_watch() began. */
void event_log_unwatch(struct event_log *l, struct event_watch *w);
/* Reads at most @most bytes at *@place, and moves it behind them. Returns false at the end. *@out
 * is valid while the log is. */
bool event_log_read(const struct event_log *l, struct event_place *place, size_t most,
                    struct splice *out);
