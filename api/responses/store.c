/*
 * Each tenant has a list of its responses; the first is forgotten next. When a response is
 * continued, the new one is put at the end, then the one that it continues behind it, and so on up
 * to the beginning of the conversation. So every response in the list stands before all that it
 * continues, and a conversation is forgotten from its end: a response that is found has not lost
 * its past. (A client may remove a response that others continue; they keep it alive, but it cannot
 * be found any more.)
 *
 * Every byte is charged to its tenant until it is freed, also the bytes of responses that cannot be
 * found any more but that others continue, or that requests hold. When there is no room, the tenant
 * that holds the most by weight forgets first: it is above its share, which is the limit divided by
 * weight among the tenants that hold something. If requests hold all that it has, only a tenant's
 * own responses make room for its new one. So whatever one tenant does, another keeps what it has
 * stored up to its share; the same goes for the number of responses.
 *
 * Each use of a response is one of all that it continues, so a conversation has at most STORE_DEPTH
 * of them.
 *
 * refs counts: being in the list, each response that continues it, and each caller that holds it.
 */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/http/loop_lag.h"
#include "api/responses/store_private.h"
#include "base/clock.h"
#include "base/hash_index.h"
#include "base/loop_bytes.h"

#define TICK_MS 10000u     /* interval between searches for old responses */
#define TICK_AGAIN_MS 1u   /* pause between the parts of a search */
#define FORGET_AT_ONCE 64u /* old responses that are forgotten in one part */
#define FREE_AT_ONCE 64u   /* responses that are freed under one lock */
#define LARGEST_PART 4u    /* one response may have this part of the bytes */

void stored_parts_init(struct stored_parts *p) {
    p->head = (struct spliced){0};
    p->echo = NULL;
    p->cancelled = p->transient = false;
    buf_init(&p->input, UINT32_MAX);
    item_list_init(&p->output);
    item_list_init(&p->items);
    p->log = NULL;
}

void stored_parts_deinit(struct stored_parts *p) {
    spliced_deinit(&p->head);
    p->echo = blob_unref(p->echo);
    buf_deinit(&p->input);
    item_list_deinit(&p->output);
    item_list_deinit(&p->items);
    p->log = event_log_unref(p->log);
}

const char *stored_item(const struct stored_parts *p, bool output, const struct item_entry *e,
                        struct buf *scratch) {
    if (!output)
        return p->input.data + e->at;
    struct splice part = spliced_part(&p->head, e->at);
    if (part.len >= e->len)
        return part.blob->text.data + part.from;
    buf_clear(scratch);
    if (spliced_read(&p->head, e->at, e->len, scratch) < 0)
        return NULL;
    return scratch->data;
}

/* Shrinks a buffer that grew by halves to its contents, so that the counted bytes are those in
 * use. */
static void store_trim(struct buf *b) {
    char *less = b->data ? realloc(b->data, b->len + 1) : NULL;

    if (less) {
        b->data = less;
        b->cap = b->len + 1;
    }
}

static void unref_locked(struct stored *r);

size_t stored_bytes(const struct stored *r) {
    const struct stored_parts *p = &r->parts;

    return sizeof(*r) + spliced_bytes(&p->head) + blob_bytes(p->echo) + p->input.cap +
           item_list_bytes(&p->output) + item_list_bytes(&p->items) + event_log_bytes(p->log);
}

/* Returns the bucket of @id. Ids are random, so any hash will do. */
static struct list *store_bucket(struct store *s, const char *id) {
    return &s->buckets[hash_text(id) % STORE_BUCKETS];
}

/* Adds @bytes, which may be negative, to the charge of @r. Called under the lock. */
static void charge_locked(struct stored *r, int64_t bytes) {
    assert(bytes >= 0 || r->store->tenants[r->tenant].bytes >= (uint64_t)-bytes);
    r->store->bytes += (uint64_t)bytes;
    r->store->tenants[r->tenant].bytes += (uint64_t)bytes;
}

/* Frees responses without references, at most @most; each drops its reference to the one that it
 * continues. Returns false if more are left. Called under the lock. */
static bool free_some_locked(struct store *s, uint32_t most) {
    for (uint32_t n = 0; n < most && !list_empty(&s->unheld); n++) {
        struct stored *r = LIST_ENTRY(list_pop_front(&s->unheld), struct stored, link);
        struct stored *parent = r->parent;

        loop_items(1);
        charge_locked(r, -(int64_t)stored_bytes(r));
        stored_parts_deinit(&r->parts);
        save_free_locked(r);
        unref_locked(parent);
    }
    return list_empty(&s->unheld);
}

/* Drops a reference. Without one the response is freed, soon: a conversation may have thousands,
 * and the last reference to its end frees them all. Called under the lock. */
static void unref_locked(struct stored *r) {
    assert(!r || r->refs > 0);
    if (!r || --r->refs > 0)
        return;
    assert(list_empty(&r->link) && list_empty(&r->bucket)); /* being found is a reference */
    assert(!r->in_batch);
    list_remove(&r->dirty);
    list_push_back(&r->store->unheld, &r->link);
}

void store_unref_locked(struct stored *r) {
    struct store *s = r ? r->store : NULL;

    unref_locked(r);
    if (s)
        free_some_locked(s, FREE_AT_ONCE);
}

struct stored *stored_ref(struct stored *r) {
    pthread_mutex_lock(&r->store->lock);
    assert(r->refs > 0);
    r->refs++;
    pthread_mutex_unlock(&r->store->lock);
    return r;
}

struct stored *stored_unref(struct stored *r) {
    struct store *s = r ? r->store : NULL;

    if (!r)
        return NULL;
    pthread_mutex_lock(&s->lock);
    store_unref_locked(r);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Removes @r from list and index; holders of references keep it. Called under the lock. */
static void forget_locked(struct stored *r) {
    struct store *s = r->store;

    assert(!list_empty(&r->link) && !list_empty(&r->bucket));
    assert(s->n > 0 && s->tenants[r->tenant].n > 0);
    list_remove(&r->link);
    list_remove(&r->bucket);
    s->tenants[r->tenant].n--;
    s->n--;
    save_mark_locked(r);
    store_unref_locked(r);
}

/* Forgets @r because of the limits, which are not those of other daemons. Called under the lock. */
static void drop_locked(struct stored *r) {
    r->leaves_row |= r->store->leaves;
    forget_locked(r);
}

static struct stored *store_first(const struct store_tenant *t) {
    if (list_empty(&t->kept))
        return NULL;
    return LIST_ENTRY(t->kept.next, struct stored, link);
}

static bool is_old(const struct stored *r) {
    return r->used_ns <= clock_now(r->store->clock) - (int64_t)r->store->limits.ttl_s * 1000000000;
}

/* Forgets the old responses of a tenant, at most @most. Its list is in the order of used_ns, so the
 * search ends at the first that is young. Returns how many it forgot. Called under the lock. */
static uint32_t forget_old_locked(struct store_tenant *t, uint32_t most) {
    struct stored *r;
    uint32_t n = 0;

    for (; n < most && (r = store_first(t)) && is_old(r); n++) {
        loop_items(1);
        drop_locked(r);
    }
    return n;
}

/* Forgets old responses, at most FORGET_AT_ONCE. Returns false if there may be more. Called under
 * the lock. */
static bool forget_some_locked(struct store *s) {
    uint32_t n = 0;

    loop_items(s->n_tenants);
    for (uint32_t i = 0; i < s->n_tenants && n < FORGET_AT_ONCE; i++)
        n += forget_old_locked(&s->tenants[i], FORGET_AT_ONCE - n);
    return n < FORGET_AT_ONCE;
}

/* Returns a tenant's share of the scarce resource, responses or bytes, with @more, divided by its
 * weight. */
static double held(const struct store_tenant *t, bool by_number, uint64_t more) {
    assert(t->weight > 0);
    return (double)((by_number ? t->n : t->bytes) + more) / t->weight;
}

/* Chooses the tenant whose response makes room for @own's new one: the one that holds the most by
 * weight, the new one included; it is above its share. @own itself is possible. NULL: neither has
 * one to forget. */
static struct store_tenant *victim_locked(struct store *s, struct store_tenant *own, size_t bytes,
                                          bool by_number) {
    struct store_tenant *most = own;
    double largest = held(own, by_number, by_number ? 1 : bytes);

    loop_items(s->n_tenants);
    for (uint32_t i = 0; i < s->n_tenants; i++) {
        struct store_tenant *t = &s->tenants[i];
        double has = held(t, by_number, 0);

        if (t != own && has > largest) {
            largest = has;
            most = t;
        }
    }
    if (!store_first(most))
        most = own;
    if (!store_first(most))
        return NULL;
    return most;
}

/* Makes room for one more of @bytes. Returns false if there is none: responses that are held
 * elsewhere cannot be freed. One large response may not empty the store. */
static bool make_room_locked(struct store *s, struct store_tenant *own, size_t bytes) {
    if (s->limits.n == 0 || bytes > s->limits.bytes / LARGEST_PART)
        return false;
    while (s->n >= s->limits.n || s->bytes + bytes > s->limits.bytes) {
        if (!list_empty(&s->unheld)) {
            free_some_locked(s, FREE_AT_ONCE);
            continue;
        }
        struct store_tenant *t = victim_locked(s, own, bytes, s->n >= s->limits.n);

        if (!t)
            return false;
        drop_locked(store_first(t));
    }
    return true;
}

static void store_on_tick(uv_timer_t *t) {
    struct store *s = t->data;

    loop_lag_mark("old responses");
    pthread_mutex_lock(&s->lock);
    bool all = forget_some_locked(s);
    all &= free_some_locked(s, FREE_AT_ONCE);
    if (s->bytes == 0 && list_empty(&s->live))
        uv_timer_stop(t);
    else
        uv_timer_start(t, store_on_tick, all ? TICK_MS : TICK_AGAIN_MS, 0);
    pthread_mutex_unlock(&s->lock);
}

void store_init(struct store *s, uv_loop_t *loop, struct clock *clock,
                const struct store_limits *limits) {
    *s = (struct store){.limits = *limits, .clock = clock};
    pthread_mutex_init(&s->lock, NULL);
    list_init(&s->live);
    list_init(&s->unheld);
    for (uint32_t i = 0; i < STORE_BUCKETS; i++)
        list_init(&s->buckets[i]);
    uv_timer_init(loop, &s->tick);
    s->tick.data = s;
    s->open = true;
    save_init(s, loop);
}

void store_close(struct store *s) {
    pthread_mutex_lock(&s->lock); /* the pool's threads wake the loop while it is open */
    bool was_open = s->open;
    s->open = false;
    pthread_mutex_unlock(&s->lock);
    if (!was_open)
        return;
    uv_close((uv_handle_t *)&s->tick, NULL);
    save_close(s);
}

void store_hand_over(struct store *s) {
    pthread_mutex_lock(&s->lock);
    s->leaves = true;
    pthread_mutex_unlock(&s->lock);
}

void store_deinit(struct store *s) {
    struct stored *r;

    save_deinit(s);
    for (uint32_t i = 0; i < s->n_tenants; i++)
        while ((r = store_first(&s->tenants[i])))
            forget_locked(r);
    if (s->clock)
        free_some_locked(s, UINT32_MAX);
    assert(s->bytes == 0 && s->n == 0);
    pthread_mutex_destroy(&s->lock);
    free(s->tenants);
}

/* Finds a response of @tenant. Those of others are not found, because an id is no secret. Called
 * under the lock. */
static struct stored *find_locked(struct store *s, uint32_t tenant, const char *id, size_t len) {
    char name[sizeof(((struct stored *)0)->id)];

    if (len >= sizeof(name))
        return NULL;
    memcpy(name, id, len);
    name[len] = 0;
    if (tenant < s->n_tenants)
        forget_old_locked(&s->tenants[tenant], FORGET_AT_ONCE);
    LIST_FOREACH_ENTRY(r, store_bucket(s, name), struct stored, bucket) {
        if (r->tenant == tenant && strcmp(r->id, name) == 0 && !is_old(r))
            return r;
    }
    return NULL;
}

struct stored *store_get(struct store *s, uint32_t tenant, const char *id, size_t len) {
    pthread_mutex_lock(&s->lock);
    struct stored *r = find_locked(s, tenant, id, len);
    if (r)
        r->refs++;
    pthread_mutex_unlock(&s->lock);
    return r;
}

/* Puts @r behind all of its tenant's list that were not used after @used_ns. */
static void place_locked(struct stored *r, int64_t used_ns) {
    struct list *kept = &r->store->tenants[r->tenant].kept;

    r->used_ns = used_ns;
    list_remove(&r->link);
    struct list *at = kept->prev;
    while (at != kept && LIST_ENTRY(at, struct stored, link)->used_ns > used_ns)
        at = at->prev;
    list_push_front(at, &r->link); /* behind @at */
}

/* Moves @r, then what it continues behind it, to where a use at @used_ns puts them. Called under
 * the lock. */
static void use_at_locked(struct stored *r, int64_t used_ns) {
    for (; r; r = r->parent) {
        loop_items(1);
        if (!list_empty(&r->link) && r->used_ns <= used_ns)
            place_locked(r, used_ns);
    }
}

/* Marks a use of @r now. The rows of what it continues need no change as long as its own is there:
 * they are as young as the youngest that continues them. */
static void use_locked(struct stored *r) {
    if (!r)
        return;
    use_at_locked(r, clock_now(r->store->clock));
    save_use_locked(r);
}

void store_use(struct stored *r) {
    pthread_mutex_lock(&r->store->lock);
    use_locked(r);
    pthread_mutex_unlock(&r->store->lock);
}

void store_size(struct store *s, uint32_t *n, uint64_t *bytes) {
    pthread_mutex_lock(&s->lock);
    *n = s->n;
    *bytes = s->bytes;
    pthread_mutex_unlock(&s->lock);
}

/* Makes room for @tenant in the array; tenants have small numbers, which they keep. Lists are moved
 * node by node, because their first and last nodes point to their heads. */
int store_reserve_tenant(struct store *s, uint32_t tenant) {
    struct store_tenant *t;

    if (tenant < s->n_tenants)
        return 0;
    if (!(t = calloc(tenant + 1, sizeof(*t))))
        return -ENOMEM;
    for (uint32_t i = 0; i <= tenant; i++) {
        list_init(&t[i].kept);
        t[i].weight = 1;
        if (i >= s->n_tenants)
            continue;
        t[i].weight = s->tenants[i].weight;
        t[i].bytes = s->tenants[i].bytes;
        t[i].n = s->tenants[i].n;
        memcpy(t[i].name, s->tenants[i].name, sizeof(t[i].name));
        for (struct list *node; (node = list_pop_front(&s->tenants[i].kept));)
            list_push_back(&t[i].kept, node);
    }
    free(s->tenants);
    s->tenants = t;
    s->n_tenants = tenant + 1;
    return 0;
}

/* Lists @r, or frees it if there is no room. Called under the lock. */
static void add_locked(struct stored *r) {
    struct store *s = r->store;

    forget_old_locked(&s->tenants[r->tenant], FORGET_AT_ONCE);
    use_locked(r->parent);
    r->depth = r->parent ? r->parent->depth + 1 : 0;
    bool fits =
        r->depth < STORE_DEPTH && make_room_locked(s, &s->tenants[r->tenant], stored_bytes(r));
    charge_locked(r, (int64_t)stored_bytes(r));
    if (!fits) {
        store_unref_locked(r);
        return;
    }
    assert(s->n < s->limits.n && r->tenant < s->n_tenants);
    s->n++;
    s->tenants[r->tenant].n++;
    list_push_back(&s->tenants[r->tenant].kept, &r->link);
    list_push_back(store_bucket(s, r->id), &r->bucket);
    use_locked(r);
    if (!r->parts.transient)
        save_want_locked(r);
}

/* Returns a response that is in no list yet; NULL if there is no memory. Takes @parts over in
 * either case. */
static struct stored *new_stored(struct store *s, uint32_t tenant, const char *id,
                                 struct stored_parts *parts) {
    struct stored *r = calloc(1, sizeof(*r));

    if (!r) {
        stored_parts_deinit(parts);
        return NULL;
    }
    *r = (struct stored){.store = s, .tenant = tenant, .refs = 1, .parts = *parts};
    stored_parts_init(parts);
    store_trim(&r->parts.input);
    store_trim(&r->parts.output.entries);
    store_trim(&r->parts.output.ids);
    store_trim(&r->parts.items.entries);
    store_trim(&r->parts.items.ids);
    if (stored_bytes(r) >
        s->limits.bytes / LARGEST_PART) /* the response is worth more than its log */
        r->parts.log = event_log_unref(r->parts.log);
    list_init(&r->link);
    list_init(&r->bucket);
    list_init(&r->dirty);
    list_init(&r->by_row);
    r->created_s = save_now(s);
    r->used_s = save_use_date(s);
    memcpy(r->id, id, MIN(strlen(id), sizeof(r->id) - 1));
    return r;
}

static void free_new(struct stored *r) {
    stored_parts_deinit(&r->parts);
    free(r);
}

/* Makes a response that continues @parent. *@out, unless @out is NULL, is the caller's, who alone
 * has it; else it is listed. Takes @parts over. Returns 0 or -ENOMEM. */
static int store_make(struct store *s, uint32_t tenant, const char *id, struct stored *parent,
                      struct stored_parts *parts, struct stored **out) {
    struct stored *r = new_stored(s, tenant, id, parts);
    int result = -ENOMEM;

    assert(!parent || (parent->store == s && parent->tenant == tenant));
    if (!r)
        return -ENOMEM;
    pthread_mutex_lock(&s->lock);
    if (store_reserve_tenant(s, tenant) == 0) {
        result = 0;
        if ((r->parent = parent))
            parent->refs++;
        if (out) {
            charge_locked(r, (int64_t)stored_bytes(r));
            *out = r;
        } else {
            add_locked(r);
        }
    } else {
        free_new(r);
    }
    pthread_mutex_unlock(&s->lock);
    return result;
}

int store_add(struct store *s, uint32_t tenant, const char *id, struct stored *parent,
              struct stored_parts *parts) {
    return store_make(s, tenant, id, parent, parts, NULL);
}

int store_hold(struct store *s, uint32_t tenant, const char *id, struct stored *parent,
               struct stored_parts *parts, struct stored **out) {
    return store_make(s, tenant, id, parent, parts, out);
}

void store_promise(struct stored *r) {
    pthread_mutex_lock(&r->store->lock);
    r->promised = true;
    save_want_locked(r);
    pthread_mutex_unlock(&r->store->lock);
}

/* Lists @r as the newest, whatever its size; then older ones make room. Called under the lock. */
static void list_locked(struct stored *r) {
    struct store *s = r->store;
    struct store_tenant *own = &s->tenants[r->tenant], *t;

    charge_locked(r, (int64_t)stored_bytes(r));
    s->n++;
    own->n++;
    list_push_back(&own->kept, &r->link);
    list_push_back(store_bucket(s, r->id), &r->bucket);
    use_locked(r);
    while (s->bytes > s->limits.bytes && !list_empty(&s->unheld))
        free_some_locked(s, FREE_AT_ONCE);
    while ((s->n > s->limits.n || s->bytes > s->limits.bytes) &&
           (t = victim_locked(s, own, 0, s->n > s->limits.n)) && store_first(t) != r)
        drop_locked(store_first(t));
}

int store_replace(struct stored *old, struct stored *parent, struct stored_parts *parts) {
    struct store *s = old->store;
    struct stored *r = new_stored(s, old->tenant, old->id, parts);
    bool kept;

    assert(!parent || (parent->store == s && parent->tenant == old->tenant));
    if (!r)
        return -ENOMEM;
    pthread_mutex_lock(&s->lock);
    if ((kept = !list_empty(&old->link))) {
        if ((r->parent = parent))
            parent->refs++;
        save_want_locked(r); /* before the old row is deleted: one of them is always there */
        forget_locked(old);
        list_locked(r);
    }
    pthread_mutex_unlock(&s->lock);
    if (!kept)
        free_new(r);
    if (!kept)
        return -ENOENT;
    return 0;
}

void store_insert_row(struct store *s, struct stored_row *row, uint32_t tenant, int64_t used_ns) {
    struct stored *old = find_locked(s, tenant, row->id, strlen(row->id));
    struct stored *parent = save_find_row(s, row->parent);
    struct store_tenant *own = &s->tenants[tenant];
    struct stored *r = NULL;

    if (old && row->listed) { /* replaced by another process, which has changed the rows */
        old->leaves_row = true;
        forget_locked(old);
    }
    if (row->parent != 0 && (!parent || parent->tenant != tenant))
        return;
    if (!(r = new_stored(s, tenant, row->id, &row->parts)))
        return;
    if ((r->parent = parent)) {
        parent->refs++;
        parent->continued = true;
        r->depth = parent->depth + 1;
    }
    bool fits = r->depth < STORE_DEPTH && make_room_locked(s, own, stored_bytes(r));
    charge_locked(r, (int64_t)stored_bytes(r));
    if (!fits) {
        store_unref_locked(r);
        return;
    }
    r->created_s = row->created_s;
    r->used_s = row->used_s;
    r->wanted = true;
    save_set_row(r, row->number);
    if (row->listed) {
        s->n++;
        own->n++;
        r->used_ns = used_ns;
        list_push_back(&own->kept, &r->link);
        list_push_back(store_bucket(s, r->id), &r->bucket);
    } else {
        save_pin_locked(r);
    }
    if (row->listed == ROW_PROMISED)
        save_mark_locked(r); /* it is listed from now on */
    for (struct stored *p = parent; p && p->used_s < r->used_s; p = p->parent)
        p->used_s = r->used_s;
    use_at_locked(r, used_ns);
}

void store_free_locked(struct store *s) {
    free_some_locked(s, UINT32_MAX);
}

void store_watch(struct store *s, uint32_t tenant) {
    pthread_mutex_lock(&s->lock);
    store_reserve_tenant(s, tenant); /* without memory for it store_add() fails */
    loop_items(s->n_tenants);
    for (uint32_t i = 0; s->limits.weight && i < s->n_tenants; i++)
        s->tenants[i].weight = s->limits.weight(s->limits.ctx, i);
    if (s->limits.state && tenant < s->n_tenants && !*s->tenants[tenant].name)
        snprintf(s->tenants[tenant].name, sizeof(s->tenants[tenant].name), "%s",
                 s->limits.name(s->limits.ctx, tenant));
    pthread_mutex_unlock(&s->lock);
    if (s->open && !uv_is_active((uv_handle_t *)&s->tick))
        uv_timer_start(&s->tick, store_on_tick, TICK_MS, 0);
}

bool store_remove(struct store *s, uint32_t tenant, const char *id, size_t len) {
    pthread_mutex_lock(&s->lock);
    struct stored *r = find_locked(s, tenant, id, len);
    if (r)
        forget_locked(r);
    pthread_mutex_unlock(&s->lock);
    return r;
}
