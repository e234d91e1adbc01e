#include "api/responses/event_log.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>
#include "api/http/json.h"
#include "base/json_value.h"
#include "base/try.h"

/* An event as it stands in a stream: its own text with `echo` in it. */
struct logged_event {
    struct blob *text;
    struct splice echo; /* a reference of its own, or none */
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
    for (uint32_t i = 0; i < l->n; i++) {
        blob_unref(l->events[i].text);
        blob_unref(l->events[i].echo.blob);
    }
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

static void log_tell(struct event_log *l) {
    LIST_FOREACH_ENTRY(w, &l->watches, struct event_watch, link) {
        w->news(w);
    }
}

/* Makes an event as it stands in a stream. Returns 0 or -ENOMEM. */
static int log_make(struct logged_event *e, const char *name, const struct buf *json,
                    const struct splice *echo) {
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};

    TRY(buf_reserve(&text, strlen(name) + json->len + sizeof("event: \ndata: \n\n")));
    TRY(buf_printf(&text, "event: %s\ndata: ", name));
    e->echo = (struct splice){0};
    if (echo && echo->blob) {
        e->echo = *echo;
        e->echo.at += text.len;
    }
    TRY(buf_add(&text, json->data, json->len));
    TRY(buf_add_str(&text, "\n\n"));
    if (!(e->text = blob_new(&text)))
        return -ENOMEM;
    blob_ref(e->echo.blob);
    return 0;
}

void event_log_add(struct event_log *l, const char *name, const struct buf *json,
                   const struct splice *echo) {
    struct logged_event e;

    assert(!l->closed);
    if (l->lost)
        return;
    if (!ARRAY_GROW(l->events, l->n, l->cap, 16) || log_make(&e, name, json, echo) < 0) {
        event_log_lose(l);
        return;
    }
    l->events[l->n++] = e;
    l->n_bytes += blob_bytes(e.text);
    log_tell(l);
}

void event_log_lose(struct event_log *l) {
    log_clear(l);
    l->lost = true;
    log_tell(l);
}

bool event_log_save(const struct event_log *l, const struct blob *echo, struct json *j) {
    if (!l || l->lost)
        return false;
    for (uint32_t i = 0; i < l->n; i++)
        if (l->events[i].echo.blob && l->events[i].echo.blob != echo)
            return false;
    json_open(j, '[');
    for (uint32_t i = 0; i < l->n; i++) {
        const struct logged_event *e = &l->events[i];
        size_t n_echo = splice_len(&e->echo);

        json_open(j, '[');
        json_string(j, e->text->text.data, e->text->text.len);
        json_uint(j, e->echo.at);
        json_uint(j, n_echo > 0 ? e->echo.from : 0);
        json_uint(j, n_echo);
        json_close(j, ']');
    }
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
    if (part.len == 0)
        part = (struct splice){0};
    if (!ARRAY_GROW(l->events, l->n, l->cap, 16) ||
        buf_add(&text, json_text(string), json_len(string)) < 0)
        return false;
    struct logged_event e = {.text = blob_new(&text), .echo = part};
    if (!e.text)
        return false;
    blob_ref(part.blob);
    l->events[l->n++] = e;
    l->n_bytes += blob_bytes(e.text);
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
    log_tell(l);
}

size_t event_log_bytes(const struct event_log *l) {
    return l ? sizeof(*l) + l->n_bytes + l->cap * sizeof(*l->events) : 0;
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

/* Returns the part of @e that holds its byte @at, up to the end of that part. */
static struct splice event_part(const struct logged_event *e, size_t at) {
    size_t n_echo = splice_len(&e->echo);
    size_t before = n_echo > 0 ? e->echo.at : e->text->text.len;

    if (at < before)
        return (struct splice){.blob = e->text, .from = at, .len = before - at};
    at -= before;
    if (at < n_echo)
        return (struct splice){.blob = e->echo.blob, .from = e->echo.from + at, .len = n_echo - at};
    at += before - n_echo;
    return (struct splice){.blob = e->text, .from = at, .len = e->text->text.len - at};
}

bool event_log_read(const struct event_log *l, struct event_place *place, size_t most,
                    struct splice *out) {
    if (place->event >= l->n)
        return false;
    const struct logged_event *e = &l->events[place->event];
    size_t all = e->text->text.len + splice_len(&e->echo);

    assert(place->at < all && most > 0);
    *out = event_part(e, place->at);
    out->len = MIN(out->len, most);
    place->at += out->len;
    if (place->at == all)
        *place = (struct event_place){.event = place->event + 1};
    return true;
}
