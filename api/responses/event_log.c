#include "api/responses/event_log.h"

#include <assert.h>
#include <stdlib.h>
#include "base/try.h"

struct event_log *event_log_new(void) {
    struct event_log *l = calloc(1, sizeof(*l));

    if (!l)
        return NULL;
    atomic_init(&l->refs, 1);
    buf_init(&l->text, UINT32_MAX);
    list_init(&l->watches);
    return l;
}

struct event_log *event_log_ref(struct event_log *l) {
    atomic_fetch_add(&l->refs, 1);
    return l;
}

struct event_log *event_log_unref(struct event_log *l) {
    if (!l || atomic_fetch_sub(&l->refs, 1) > 1)
        return NULL;
    assert(list_empty(&l->watches));
    buf_deinit(&l->text);
    free(l->at);
    free(l);
    return NULL;
}

static void tell(struct event_log *l) {
    LIST_FOREACH_ENTRY(w, &l->watches, struct event_watch, link) {
        w->news(w);
    }
}

/* Appends an event as it stands in a stream. */
static int append(struct buf *out, const char *name, const char *json, size_t len) {
    TRY(buf_printf(out, "event: %s\ndata: ", name));
    TRY(buf_add(out, json, len));
    return buf_add_str(out, "\n\n");
}

void event_log_add(struct event_log *l, const char *name, const char *json, size_t len) {
    size_t at = l->text.len;

    assert(!l->closed);
    if (l->lost)
        return;
    if (!ARRAY_GROW(l->at, l->n, l->cap, 16) || append(&l->text, name, json, len) < 0) {
        event_log_lose(l);
        return;
    }
    l->at[l->n++] = at;
    tell(l);
}

void event_log_lose(struct event_log *l) {
    buf_deinit(&l->text);
    free(l->at);
    l->at = NULL;
    l->n = l->cap = 0;
    l->lost = true;
    tell(l);
}

void event_log_close(struct event_log *l) {
    assert(!l->closed);
    l->closed = true;
    tell(l);
}

size_t event_log_bytes(const struct event_log *l) {
    return l ? sizeof(*l) + l->text.cap + l->cap * sizeof(*l->at) : 0;
}
