#include "api/responses/event_log.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "api/http/json.h"
#include "base/json_value.h"
#include "base/try.h"

/* An event as it stands in a stream. */
struct logged_event {
    struct spliced text;
};

struct event_log *event_log_new(void) {
    struct event_log *l = calloc(1, sizeof(*l));

    if (!l)
        return NULL;
    atomic_init(&l->refs, 1);
    list_init(&l->watches);
    return l;
}

struct event_log *event_log_ref(struct event_log *l) {
    atomic_fetch_add(&l->refs, 1);
    return l;
}

static void log_clear(struct event_log *l) {
    for (uint32_t i = 0; i < l->n; i++)
        spliced_deinit(&l->events[i].text);
    free(l->events);
    l->events = NULL;
    l->n = l->cap = 0;
    l->n_bytes = 0;
}

struct event_log *event_log_unref(struct event_log *l) {
    if (!l || atomic_fetch_sub(&l->refs, 1) > 1)
        return NULL;
    assert(list_empty(&l->watches) && l->n_watches == 0);
    log_clear(l);
    free(l);
    return NULL;
}

static void log_notify(struct event_log *l) {
    LIST_FOREACH_ENTRY(w, &l->watches, struct event_watch, link) {
        w->news(w);
    }
}

/* Makes an event as it stands in a stream. Returns 0 or -ENOMEM. */
static int log_make(struct logged_event *e, const char *name, const struct buf *json,
                    const struct splices *in) {
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};
    CLEANUP(spliced_deinit) struct spliced made = {0};

    TRY(buf_reserve(&text, strlen(name) + json->len + sizeof("event: \ndata: \n\n")));
    TRY(buf_printf(&text, "event: %s\ndata: ", name));
    for (uint32_t i = 0; in && i < in->n; i++) {
        const struct splice *p = &in->part[i];

        TRY(splices_add(&made.in, p->blob, p->from, p->len, p->at + text.len));
    }
    TRY(buf_add(&text, json->data, json->len));
    TRY(buf_add_str(&text, "\n\n"));
    if (!(made.text = blob_new(&text)))
        return -ENOMEM;
    e->text = made;
    made = (struct spliced){0};
    return 0;
}

/* Returns the memory of @e without what it refers to. */
static size_t log_event_bytes(const struct logged_event *e) {
    return spliced_bytes(&e->text) - e->text.in.len;
}

void event_log_add(struct event_log *l, const char *name, const struct buf *json,
                   const struct splices *in) {
    struct logged_event e;

    assert(!l->closed);
    if (l->lost)
        return;
    if (!ARRAY_GROW(l->events, l->n, l->cap, 16) || log_make(&e, name, json, in) < 0) {
        event_log_lose(l);
        return;
    }
    l->events[l->n++] = e;
    l->n_bytes += log_event_bytes(&e);
    log_notify(l);
}

void event_log_lose(struct event_log *l) {
    log_clear(l);
    l->lost = true;
    log_notify(l);
}

/* Writes @e as a text with the part of @echo that is inserted in it; all else that it refers to is
 * copied. */
static void log_save_event(const struct logged_event *e, const struct blob *echo, struct json *j) {
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};
    struct splice told = {0};
    size_t all = spliced_len(&e->text);
    int r = 0;

    for (size_t at = 0; at < all && r == 0;) {
        struct splice p = spliced_part(&e->text, at);

        at += p.len;
        if (echo && p.blob == echo && told.len == 0) {
            told = p;
            told.at = text.len;
        } else {
            r = buf_add(&text, p.blob->text.data + p.from, p.len);
        }
    }
    json_open(j, '[');
    json_string(j, text.data, text.len);
    json_uint(j, told.at);
    json_uint(j, told.from);
    json_uint(j, told.len);
    json_close(j, ']');
    j->error = j->error < 0 ? j->error : r;
}

bool event_log_save(const struct event_log *l, const struct blob *echo, struct json *j) {
    if (!l || l->lost)
        return false;
    json_open(j, '[');
    for (uint32_t i = 0; i < l->n; i++)
        log_save_event(&l->events[i], echo, j);
    json_close(j, ']');
    return true;
}

/* Adds an event as event_log_save() writes it. Returns false if it is none, or without memory. */
static bool log_load_event(struct event_log *l, yyjson_val *v, struct blob *echo) {
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};
    yyjson_val *string = yyjson_arr_get(v, 0);
    struct splice part = {.blob = echo};
    size_t n = json_len(string), n_echo = echo ? echo->text.len : 0;

    part.at = yyjson_get_uint(yyjson_arr_get(v, 1));
    part.from = yyjson_get_uint(yyjson_arr_get(v, 2));
    part.len = yyjson_get_uint(yyjson_arr_get(v, 3));
    if (!yyjson_is_str(string) || n == 0 || part.at > n || part.from > n_echo ||
        part.len > n_echo - part.from)
        return false;
    if (!ARRAY_GROW(l->events, l->n, l->cap, 16) ||
        buf_add(&text, json_text(string), json_len(string)) < 0)
        return false;
    struct logged_event e = {.text.text = blob_new(&text)};
    if (!e.text.text ||
        (part.len > 0 && splices_add(&e.text.in, echo, part.from, part.len, part.at) < 0)) {
        spliced_deinit(&e.text);
        return false;
    }
    l->events[l->n++] = e;
    l->n_bytes += log_event_bytes(&e);
    return true;
}

struct event_log *event_log_load(yyjson_val *events, struct blob *echo) {
    struct event_log *l = yyjson_is_arr(events) ? event_log_new() : NULL;
    yyjson_arr_iter all;
    yyjson_val *v;

    if (!l)
        return NULL;
    l->closed = true;
    yyjson_arr_iter_init(events, &all);
    while ((v = yyjson_arr_iter_next(&all)))
        if (!log_load_event(l, v, echo))
            return event_log_unref(l);
    return l;
}

void event_log_close(struct event_log *l) {
    assert(!l->closed);
    l->closed = true;
    log_notify(l);
}

size_t event_log_bytes(const struct event_log *l) {
    if (!l)
        return 0;
    return sizeof(*l) + l->n_bytes + l->cap * sizeof(*l->events);
}

bool event_log_watch(struct event_log *l, struct event_watch *w) {
    if (l->n_watches >= EVENT_LOG_READERS)
        return false;
    l->n_watches++;
    list_push_back(&l->watches, &w->link);
    return true;
}

void event_log_unwatch(struct event_log *l, struct event_watch *w) {
    assert(l->n_watches > 0);
    l->n_watches--;
    list_remove(&w->link);
}

bool event_log_read(const struct event_log *l, struct event_place *place, size_t most,
                    struct splice *out) {
    if (place->event >= l->n)
        return false;
    const struct logged_event *e = &l->events[place->event];
    size_t all = spliced_len(&e->text);

    assert(place->at < all && most > 0);
    *out = spliced_part(&e->text, place->at);
    out->len = MIN(out->len, most);
    place->at += out->len;
    if (place->at == all)
        *place = (struct event_place){.event = place->event + 1};
    return true;
}
