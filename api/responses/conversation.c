/*
 * A conversation is a stored object without items of its own: head and echo are its JSON, and what
 * it continues are its items: those of the responses that named it, and objects without an id that
 * hold items which clients have added. A conversation never changes: to add to it is to replace it
 * by one that continues more, so that requests which read it need no lock.
 *
 * Bodies are read on the pool, and conversations that are copied without an item are copied there.
 * The result is put into place on the loop, if the conversation is still the one that was read.
 */

#include "api/responses/conversation.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/generation/env.h"
#include "api/http/conn.h"
#include "api/http/respond.h"
#include "api/responses/query.h"
#include "api/responses/responses.h"
#include "base/json_read.h"
#include "base/text.h"
#include "base/try.h"

#define ID_HEX 24u

enum kind { CREATE, UPDATE, ADD, REMOVE };

/* One request that makes or changes a conversation. Invariant: while @exchange is set, this is its
 * state; everything else is the job's until conversation_on_done(). */
struct change {
    struct job job;
    /* NULL: the client has left */
    struct exchange *exchange;
    enum kind kind;
    /* NULL: a new one */
    struct stored *conversation;
    /* REMOVE */
    char item[100];
    struct buf body;
    /* charge for the body */
    struct quota_charge charge;
    /* reads items, and has them */
    struct responses *rs;
    /* the member as text; "": unchanged */
    struct buf metadata;
    struct err err;
    int result;
};

/* ---- ids ---- */

static void new_id(struct gen_env *env, const char *prefix, char out[48]) {
    snprintf(out, 48, "%s%016llx%08llx", prefix, (unsigned long long)rng_next(&env->rng),
             (unsigned long long)rng_next(&env->rng) >> 32);
}

/* Returns the conversation that the path names, up to its first slash; NULL if there is none. */
static struct stored *conversation_named(struct exchange *x) {
    size_t n = strcspn(x->arg, "/");

    if (strncmp(x->arg, CONVERSATION_ID_PREFIX, strlen(CONVERSATION_ID_PREFIX)) != 0)
        return NULL;
    return store_get(env_of(x)->store, x->tenant, x->arg, n);
}

/* Returns the id of the item that the path names behind its conversation; NULL if it names none, or
 * in a wrong way. */
static const char *conversation_item(const struct exchange *x) {
    const char *rest = strchr(x->arg, '/');

    if (!rest || strncmp(rest, "/items/", strlen("/items/")) != 0)
        return NULL;
    return rest + strlen("/items/");
}

static void not_found(struct exchange *x) {
    size_t n = conversation_item(x) ? strcspn(x->arg, "/") : strlen(x->arg);
    struct err err;

    err_set_code(&err, 404, "not_found", "conversation_id",
                 "Conversation with id '%.*s' not found.", (int)MIN(n, 100), x->arg);
    respond_error(x, &err);
}

/* Returns the conversation that the whole path names. NULL after an answer: there is none. */
static struct stored *named_alone(struct exchange *x) {
    struct stored *s = strchr(x->arg, '/') ? NULL : conversation_named(x);

    if (!s)
        not_found(x);
    return s;
}

/* ---- locks ---- */

static int refuse_locked(struct err *err) {
    return err_set_code(err, 400, "conversation_locked", "conversation",
                        "Something else is being added to this conversation. Try again when that "
                        "is done.");
}

/* Returns true if a response that is under way holds the conversation @id. */
static bool is_locked(const struct gen_env *env, uint32_t tenant, const char *id) {
    LIST_FOREACH_ENTRY(rs, &env->store->live, const struct responses, link) {
        if (rs->locks && rs->tenant == tenant && strcmp(rs->conversation->id, id) == 0)
            return true;
    }
    return false;
}

int conversation_lock(struct responses *rs, struct err *err) {
    const struct stored *c = rs->conversation;

    if (!c)
        return 0;
    struct stored *now = store_get(rs->env->store, rs->tenant, c->id, strlen(c->id));
    bool same = now == c;
    stored_unref(now);
    if (!same || is_locked(rs->env, rs->tenant, c->id))
        return refuse_locked(err);
    rs->locks = true;
    return 0;
}

/* ---- putting into place ---- */

/* @metadata is taken over; empty: it stays as it is. */
static int conversation_replace(struct stored *c, struct stored *parent, struct buf *metadata) {
    struct stored_parts parts;

    stored_parts_init(&parts);
    if (metadata->len)
        parts.echo = blob_new(metadata);
    else
        parts.echo = blob_ref(c->parts.echo);
    int r = spliced_copy(&parts.head, &c->parts.head);
    if (!parts.echo || r < 0) {
        stored_parts_deinit(&parts);
        return -ENOMEM;
    }
    return store_replace(c, parent, &parts);
}

void conversation_add(struct stored *c, const char *id) {
    struct stored *r = store_get(c->store, c->tenant, id, strlen(id));

    if (r) /* NULL: too large to be kept */
        conversation_replace(c, r, &(struct buf){0});
    stored_unref(r);
}

/* Stores the items that were read as an object that continues @parent. It is removed from the index
 * at once, since only a conversation continues it. *@out is the caller's. */
static int add_items(struct change *c, struct stored *parent, struct stored **out) {
    struct store *s = c->rs->env->store;
    char id[48];

    new_id(c->rs->env, "item_", id);
    if (c->kind == REMOVE) /* fewer than before: no room is needed */
        return store_hold(s, c->rs->tenant, id, parent, &c->rs->kept, out);
    TRY(store_add(s, c->rs->tenant, id, parent, &c->rs->kept));
    if (!(*out = store_get(s, c->rs->tenant, id, strlen(id))))
        return err_set_code(&c->err, 413, "body_too_large", NULL,
                            "There is no room for these items (stored-memory).");
    store_remove(s, c->rs->tenant, id, strlen(id));
    return 0;
}

/* Makes the conversation that continues @items (NULL: nothing). */
static int conversation_create(struct change *c, struct stored *items, struct stored **out) {
    struct gen_env *env = c->rs->env;
    struct stored_parts parts;
    CLEANUP(buf_deinit) struct buf head = {.max = UINT32_MAX};
    struct json j = {.out = &head};
    char id[48];

    stored_parts_init(&parts);
    new_id(env, CONVERSATION_ID_PREFIX, id);
    json_print(&j, "{id:%s, object:'conversation', created_at:%ld", id, time(NULL));
    json_more(&j);
    if (j.error == 0)
        parts.head.text = blob_new(&head);
    parts.echo = blob_new(&c->metadata);
    if (!parts.head.text || !parts.echo) {
        stored_parts_deinit(&parts);
        return -ENOMEM;
    }
    int r;
    if ((r = store_add(env->store, c->rs->tenant, id, items, &parts)) == 0 &&
        !(*out = store_get(env->store, c->rs->tenant, id, strlen(id))))
        r = err_set_code(&c->err, 400, "unsupported_parameter", NULL,
                         "Nothing is kept here (stored-responses, stored-memory).");
    return r;
}

/* Puts the change into place. *@items is set to the new items, *@out to the conversation; both are
 * the caller's. */
static int conversation_apply(struct change *c, struct stored **items, struct stored **out) {
    struct stored *old = c->conversation, *parent = old ? old->parent : NULL;
    int r = 0;

    store_watch(c->rs->env->store, c->rs->tenant);
    if (old && is_locked(c->rs->env, old->tenant, old->id))
        return refuse_locked(&c->err);
    if (c->kind == REMOVE)
        parent = NULL;
    if (item_list_n(&c->rs->kept.items) > 0 && (r = add_items(c, parent, items)) < 0)
        return r;
    if (!old)
        return conversation_create(c, *items, out);
    r = conversation_replace(old, *items ? *items : parent, &c->metadata);
    if (r == 0 && !(*out = store_get(old->store, old->tenant, old->id, strlen(old->id))))
        r = -ENOENT;
    if (r == -ENOENT)
        return refuse_locked(&c->err);
    return r;
}

/* ---- reading ---- */

static int read_metadata(struct change *c, yyjson_val *v) {
    size_t len;

    if (v && !responses_is_metadata(v))
        return json_refuse(&c->err, "metadata", "must be an object of at most 16 strings");
    CLEANUP(freep) char *text = v ? yyjson_val_write(v, 0, &len) : NULL;
    if (v && !text)
        return -ENOMEM;
    return buf_printf(&c->metadata, "\"metadata\":%s", text_or(text, "{}"));
}

static int read_body(struct change *c) {
    CLEANUP(json_doc_freep) yyjson_doc *doc = NULL;
    char none_given[] = "{}", *text = c->body.len ? c->body.data : none_given;

    TRY(json_read(&doc, text, c->body.len ? c->body.len : strlen(text), &c->err));
    yyjson_val *root = yyjson_doc_get_root(doc), *items = json_given(root, "items");
    if (c->kind != ADD)
        TRY(read_metadata(c, json_given(root, "metadata")));
    if (c->kind != UPDATE && !yyjson_is_arr(items) && (c->kind == ADD || items))
        return json_refuse(&c->err, "items", "must be an array");
    if (c->kind == ADD && yyjson_arr_size(items) == 0)
        return json_refuse(&c->err, "items", "must not be empty");
    if (c->kind == UPDATE || !items)
        return 0;
    return responses_read_items(c->rs, items, "items", &c->err);
}

static void conversation_on_thread(struct job *j) {
    struct change *c = CONTAINER_OF(j, struct change, job);

    if (c->kind == REMOVE)
        c->result = items_copy_without(c->conversation, c->item, &c->rs->kept);
    else
        c->result = read_body(c);
}

/* ---- life ---- */

static struct change *conversation_change_free(struct change *c) {
    assert(!c->exchange);
    stored_unref(c->conversation);
    buf_deinit(&c->body);
    quota_charge_set(&c->charge, 0);
    responses_free(c->rs);
    buf_deinit(&c->metadata);
    free(c);
    return NULL;
}

static void conversation_detach(struct exchange *x, void *state) {
    struct change *c = state;

    job_pool_abandon(&env_of(x)->pool, &c->job);
    c->exchange = NULL;
}

static const struct exchange_ops ops = {.abandon = conversation_detach};

/* Writes the conversation itself; a stored_write. */
static int put_itself(const struct stored *s, const struct items_query *q, struct buf *out) {
    return buf_printf(out, "%s%s}", blob_data(s->parts.head.text), blob_data(s->parts.echo));
}

static int conversation_apply_result(struct change *c, struct stored **items, struct stored **out) {
    TRY(c->result);
    return conversation_apply(c, items, out);
}

static void conversation_finish(struct change *c) {
    struct stored *items = NULL, *out = NULL;

    if (!c->exchange) {
        conversation_change_free(c);
        return;
    }
    int r = conversation_apply_result(c, &items, &out);
    if (r == -ENOENT)
        err_set_code(&c->err, 404, "not_found", NULL, "Item with id '%.99s' not found.", c->item);
    struct exchange *x = STEAL(c->exchange);
    struct err err = c->err;
    bool added = c->kind == ADD && items;
    exchange_detach(x);
    conversation_change_free(c);
    if (r < 0)
        respond_failed(x, r, &err);
    else
        stored_reply(x, stored_ref(added ? items : out), NULL, added ? items_work(items) : 0,
                     added ? items_put_own : put_itself);
    stored_unref(items);
    stored_unref(out);
}

static void conversation_on_done(struct job *j) {
    conversation_finish(CONTAINER_OF(j, struct change, job));
}

/* Begins a change of @conversation, which is taken over. @item is the id of the item to remove, or
 * NULL. */
static void conversation_begin(struct exchange *x, enum kind kind, struct stored *conversation,
                               const char *item) {
    struct change *c = calloc(1, sizeof(*c));

    if (!c || !(c->rs = responses_new(x))) {
        free(c);
        stored_unref(conversation);
        respond_errno(x, -ENOMEM);
        return;
    }
    c->exchange = x;
    c->kind = kind;
    c->conversation = conversation;
    snprintf(c->item, sizeof(c->item), "%s", text_or(item, ""));
    buf_init(&c->metadata, UINT32_MAX);
    c->rs->store = true;
    c->rs->parent = conversation && conversation->parent ? stored_ref(conversation->parent) : NULL;
    c->job = (struct job){.run = conversation_on_thread, .done = conversation_on_done};
    c->result = -ECANCELED; /* unless the job runs */
    exchange_attach(x, &ops, c);
    conn_steal_body(x->conn, &c->body, &c->charge);
    int r = job_pool_submit(&env_of(x)->pool, &c->job, tenants_get(&env_of(x)->tenants, x->tenant));
    if (r == 0)
        return;
    c->result = r;
    conversation_finish(c);
}

/* ---- routes ---- */

void conversations_create_serve(struct exchange *x, struct http *h) {
    conversation_begin(x, CREATE, NULL, NULL);
}

static void change_named(struct exchange *x, enum kind kind) {
    struct stored *s = named_alone(x);

    if (s)
        conversation_begin(x, kind, s, NULL);
}

void conversations_update_serve(struct exchange *x, struct http *h) {
    change_named(x, UPDATE);
}

void conversations_add_serve(struct exchange *x, struct http *h) {
    change_named(x, ADD);
}

void conversations_get_serve(struct exchange *x, struct http *h) {
    const char *item = conversation_item(x);
    struct stored *s;

    if (item)
        s = conversation_named(x);
    else
        s = named_alone(x);
    struct items_query q = {0};

    if (item && s) {
        snprintf(q.after, sizeof(q.after), "%s", item);
        stored_reply(x, s, &q, items_work(s), items_put_one);
    } else if (item) {
        not_found(x);
    } else if (s) {
        stored_reply(x, s, NULL, 0, put_itself);
    }
}

void conversations_items_serve(struct exchange *x, struct http *h) {
    struct stored *s = named_alone(x);

    if (s)
        items_serve(x, h, s);
}

void conversations_delete_serve(struct exchange *x, struct http *h) {
    struct stored *s = conversation_named(x);
    const char *item = conversation_item(x);

    if (s && item) {
        conversation_begin(x, REMOVE, s, item);
        return;
    }
    if (s && !strchr(x->arg, '/') &&
        store_remove(env_of(x)->store, x->tenant, x->arg, strlen(x->arg)))
        respond_shape(x, "{id:%s, object:'conversation.deleted', deleted:true}", x->arg);
    else
        not_found(x);
    stored_unref(s);
}
