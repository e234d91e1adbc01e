/*
 * /v1/responses/ID/input_items: the input of the model, that is the conversation that the response
 * continues and its own input. A conversation may be as large as the store; a page is made only of
 * the texts of its items, which are copied as they are, and it ends early when it gets large: its
 * client asks for the next one as after any other.
 */

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/http/http.h"
#include "api/http/json.h"
#include "api/http/respond.h"
#include "api/responses/query.h"
#include "api/responses/reply.h"
#include "api/responses/responses.h"
#include "base/try.h"

#define LIST_DEFAULT 20u
#define LIST_MAX 100u
#define PAGE_BYTES (1u << 20) /* a page of more than one item ends at this size */

/* A list of items in its place in the conversation. */
struct segment {
    const struct stored *s;
    const struct item_list *list;
    /* the list is that of the output */
    bool output;
};

/* The items of a conversation, in order. */
struct conversation {
    struct segment *segment;
    size_t n_segments, n;
};

struct place { /* position of an item */
    size_t segment, item;
};

/* For CLEANUP(). */
static void input_items_forget(struct conversation *c) {
    free(c->segment);
}

/* Collects the items of @s and of all that it continues, without the output of @s. The caller
 * forgets them, also after an error. */
static int input_items_collect(const struct stored *s, struct conversation *out) {
    size_t n = 0;

    for (const struct stored *p = s; p; p = p->parent)
        n += 2;
    if (!(out->segment = calloc(n, sizeof(*out->segment))))
        return -ENOMEM;
    out->n_segments = n - 1;
    out->n = 0;
    for (const struct stored *p = s; p; p = p->parent) {
        const struct stored_parts *t = &p->parts;

        out->segment[--n] = (struct segment){p, &t->output, true};
        out->segment[--n] = (struct segment){p, &t->items, false};
    }
    assert(n == 0);
    for (size_t i = 0; i < out->n_segments; i++)
        out->n += item_list_n(out->segment[i].list);
    return 0;
}

/* Makes the id of an item that has none, from that of its response. */
static void name_item(const struct segment *s, size_t i, char out[80]) {
    const struct item_entry *e = item_list_get(s->list, i);

    snprintf(out, 80, "%s_%s_in%zu", e->message ? "msg" : "item", strchr(s->s->id, '_') + 1, i);
}

/* Returns true if item @i of @s, which may be behind its end, has the id @id. */
static bool is_called(const struct segment *s, size_t i, const char *id) {
    char name[80];

    if (i >= item_list_n(s->list) || item_list_get(s->list, i)->id != ITEM_NO_ID)
        return false;
    name_item(s, i, name);
    return strcmp(name, id) == 0;
}

/* Returns the position behind the item @id, in the order of the listing; 0 if there is no such
 * item. If several have this id, the last of the listing counts. */
static size_t find_after(const struct conversation *c, const char *id, bool descending) {
    const char *digits = strrchr(id, 'n');
    size_t made = digits ? strtoul(digits + 1, NULL, 10) : SIZE_MAX, before = 0, found = SIZE_MAX;

    for (size_t k = 0; k < c->n_segments; k++) {
        const struct segment *s = &c->segment[k];
        size_t n = item_list_n(s->list);

        for (size_t i = 0; i < n && (i % 1024 > 0 || job_pause() == 0); i++) {
            const char *own = item_list_id(s->list, item_list_get(s->list, i));

            if (!((own && strcmp(own, id) == 0) || (i == made && is_called(s, i, id))))
                continue;
            if (!descending || found == SIZE_MAX)
                found = before + i;
        }
        before += n;
    }
    if (found == SIZE_MAX)
        return 0;
    if (descending)
        return c->n - found;
    return found + 1;
}

/* Returns the item at @at, counted from the side that is listed first. */
static struct place input_items_place(const struct conversation *c, size_t at, bool descending) {
    struct place p = {0};

    assert(at < c->n);
    at = descending ? c->n - 1 - at : at;
    while (at >= item_list_n(c->segment[p.segment].list))
        at -= item_list_n(c->segment[p.segment++].list);
    p.item = at;
    return p;
}

/* Copies an item without its closing brace. */
static int input_items_copy(struct buf *out, const struct segment *s, const struct item_entry *e) {
    CLEANUP(buf_deinit) struct buf scratch = {.max = UINT32_MAX};
    const char *text = stored_item(&s->s->parts, s->output, e, &scratch);

    if (!text)
        return -ENOMEM;
    return buf_add(out, text, e->len - 1);
}

/* Writes an item with its id. */
static int put_item(struct buf *out, const struct conversation *c, struct place p) {
    const struct segment *s = &c->segment[p.segment];
    const struct item_entry *e = item_list_get(s->list, p.item);
    char name[80];

    TRY(input_items_copy(out, s, e));
    if (e->id == ITEM_NO_ID) {
        name_item(s, p.item, name);
        TRY(buf_printf(out, ",\"id\":\"%s\"", name));
    }
    return buf_add_char(out, '}');
}

/* Writes the id of the item at @p; null if @p is NULL, because the page is empty. */
static void input_items_put_id(struct json *j, const char *key, const struct conversation *c,
                               const struct place *p) {
    const struct segment *s = p ? &c->segment[p->segment] : NULL;
    const char *id = s ? item_list_id(s->list, item_list_get(s->list, p->item)) : NULL;
    char name[80];

    if (s && !id) {
        name_item(s, p->item, name);
        id = name;
    }
    json_print(j, "%s:%s", key, id);
}

/* Writes the page of at most @limit items behind the first @from. */
static int put_page(struct buf *out, const struct conversation *c, size_t from, size_t limit,
                    bool descending) {
    struct place first, last;
    struct json j = {.out = out};
    size_t i = from, body = 0;

    TRY(buf_add_str(out, "{\"object\":\"list\",\"data\":["));
    for (; i < c->n && i - from < limit && (i == from || out->len < PAGE_BYTES); i++) {
        last = input_items_place(c, i, descending);
        if (i == from)
            first = last;
        if (i > from)
            TRY(buf_add_char(out, ','));
        TRY(put_item(out, c, last));
        body++;
    }
    TRY(buf_add_char(out, ']'));
    j.comma = true;
    input_items_put_id(&j, "first_id", c, body ? &first : NULL);
    input_items_put_id(&j, "last_id", c, body ? &last : NULL);
    json_print(&j, "has_more:%i}", i < c->n);
    return j.error;
}

/* Writes a page of items; a stored_write. */
static int input_items_put(const struct stored *s, const struct items_query *q, struct buf *out) {
    CLEANUP(input_items_forget) struct conversation c = {0};

    TRY(input_items_collect(s, &c));
    size_t from = *q->after ? find_after(&c, q->after, q->descending) : 0;
    TRY(job_pause());
    if (*q->after && !from)
        return -ENOENT;
    return put_page(out, &c, from, q->limit, q->descending);
}

int items_put_own(const struct stored *s, const struct items_query *q, struct buf *out) {
    struct segment own = {s, &s->parts.items, false};
    struct conversation c = {&own, 1, item_list_n(own.list)};

    return put_page(out, &c, 0, c.n, false);
}

int items_put_one(const struct stored *s, const struct items_query *q, struct buf *out) {
    CLEANUP(input_items_forget) struct conversation c = {0};

    TRY(input_items_collect(s, &c));
    size_t behind = find_after(&c, q->after, false);
    if (!behind)
        return -ENOENT;
    return put_item(out, &c, input_items_place(&c, behind - 1, false));
}

/* Copies one item, which gets the id that it is listed under. */
static int copy_item(const struct conversation *c, struct place p, struct stored_parts *out) {
    const struct segment *s = &c->segment[p.segment];
    struct item_entry e = *item_list_get(s->list, p.item);
    const char *id = item_list_id(s->list, &e);
    char name[80];

    if (out->input.len > 1)
        TRY(buf_add_char(&out->input, ','));
    e.at = out->input.len;
    TRY(put_item(&out->input, c, p));
    if (!id) {
        name_item(s, p.item, name);
        id = name;
    }
    e.len = out->input.len - e.at;
    return item_list_add(&out->items, e, id, strlen(id));
}

int items_copy_without(const struct stored *s, const char *id, struct stored_parts *out) {
    CLEANUP(input_items_forget) struct conversation c = {0};

    TRY(input_items_collect(s, &c));
    size_t behind = find_after(&c, id, false);
    TRY(behind ? buf_add_char(&out->input, '[') : -ENOENT);
    for (size_t i = 0; i < c.n; i++) {
        if (i % 16 == 0)
            TRY(job_pause());
        TRY(i + 1 == behind ? 0 : copy_item(&c, input_items_place(&c, i, false), out));
    }
    return buf_add_char(&out->input, ']');
}

size_t items_work(const struct stored *s) {
    size_t n = 0;

    for (const struct stored *p = s; p && n <= REPLY_INLINE; p = p->parent)
        n += p->parts.input.len + spliced_len(&p->parts.head);
    return n;
}

/* Reads limit, order and after. Returns 0 or a refusal. */
static int read_query(struct http *h, struct items_query *q, struct err *err) {
    char limit[16], order[16], *end;

    *q = (struct items_query){.limit = LIST_DEFAULT, .descending = true};
    if (http_query(h, "limit", limit, sizeof(limit))) {
        q->limit = strtoul(limit, &end, 10);
        if (!isdigit((unsigned char)*limit) || *end || q->limit < 1 || q->limit > LIST_MAX)
            return json_refuse(err, "limit", "must be a number from 1 to 100");
    }
    if (http_query(h, "order", order, sizeof(order))) {
        q->descending = strcmp(order, "desc") == 0;
        if (!q->descending && strcmp(order, "asc") != 0)
            return json_refuse(err, "order", "must be asc or desc");
    }
    http_query(h, "after", q->after, sizeof(q->after));
    return 0;
}

void items_serve(struct exchange *x, struct http *h, struct stored *s) {
    struct items_query q;
    struct err err;

    if (read_query(h, &q, &err) == 0) {
        stored_reply(x, s, &q, items_work(s), input_items_put);
        return;
    }
    stored_unref(s);
    respond_error(x, &err);
}

void responses_items_serve(struct exchange *x, struct http *h) {
    struct stored *s = responses_named(x);

    if (s)
        items_serve(x, h, s);
    else
        responses_not_found(x);
}
