#include "scheduler/pictures.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/try.h"
#include "scheduler/fair_share.h"
#include "scheduler/policy.h"
#include "scheduler/view.h"

void pictures_init(struct pictures *p, const struct sched_view *view, struct engine *engine,
                   uint64_t max_bytes) {
    *p = (struct pictures){.view = view, .engine = engine, .max_bytes = max_bytes};
    list_init(&p->coming);
    list_init(&p->ready);
}

static uint64_t pixel_bytes(const struct sched_picture *x) {
    return 3 * (uint64_t)x->layout.width * x->layout.height;
}

static uint64_t row_bytes(const struct pictures *p, const struct sched_picture *x) {
    return (uint64_t)x->layout.n_rows * p->view->info->picture_width * sizeof(*x->rows);
}

/* ---- entries ---- */

static struct sched_picture **pictures_slot(struct pictures *p,
                                            const struct kv_isolation *isolation, int32_t number) {
    uint64_t h;

    memcpy(&h, isolation->key, sizeof(h));
    h = (h ^ (uint32_t)number) * 0x9E3779B97F4A7C15u;
    struct sched_picture **at = &p->bucket[(h >> 32) % PICTURES_BUCKETS];
    while (*at && ((*at)->number != number ||
                   memcmp(&(*at)->isolation, isolation, sizeof(*isolation)) != 0))
        at = &(*at)->next;
    return at;
}

/* Drops the pixels and the rows computed so far. */
static void pictures_drop_pixels(struct pictures *p, struct sched_picture *x) {
    if (x->state == PICTURE_UNDER_WAY) {
        if (x == p->now)
            engine_picture_end(p->engine);
        p->now = NULL;
        p->n_bytes -= row_bytes(p, x);
        free(x->rows);
        x->rows = NULL;
    }
    if (x->state == PICTURE_ASKED || x->state == PICTURE_PIXELS || x->state == PICTURE_UNDER_WAY)
        p->n_pixel_bytes -= pixel_bytes(x);
    free(x->rgb);
    x->rgb = NULL;
    x->n_rgb = 0;
}

static void free_picture(struct pictures *p, struct sched_picture *x) {
    struct sched_picture **at = pictures_slot(p, &x->isolation, x->number);

    assert(*at == x && x->n_users == 0);
    *at = x->next;
    list_remove(&x->link);
    if (x->state == PICTURE_READY)
        p->n_bytes -= row_bytes(p, x);
    else
        pictures_drop_pixels(p, x);
    free(x->rows);
    free(x);
}

void pictures_deinit(struct pictures *p) {
    for (uint32_t i = 0; i < PICTURES_BUCKETS && p->view; i++)
        while (p->bucket[i])
            free_picture(p, p->bucket[i]);
    assert(p->n_bytes == 0 && p->n_pixel_bytes == 0);
}

/* Returns a new entry, WANTED, for picture @q of @r; NULL: no memory; the caller tries again at the
 * next step. */
static struct sched_picture *pictures_add(struct pictures *p, const struct request *r,
                                          const struct request_picture *q) {
    struct sched_picture *x = calloc(1, sizeof(*x));

    if (!x)
        return NULL;
    x->isolation = r->isolation;
    x->number = q->number;
    x->layout = (struct picture_layout){
        .width = q->in.width,
        .height = q->in.height,
        .n_columns = q->in.n_columns,
        .n_lines = q->in.n_lines,
        .n_rows = q->in.n_rows,
        .n_positions = q->in.n_positions,
    };
    list_push_back(&p->coming, &x->link);
    *pictures_slot(p, &x->isolation, x->number) = x;
    return x;
}

/* Frees ready pictures without users, the least recently used first, until @more bytes have room or
 * no such picture is left. */
static void pictures_make_room(struct pictures *p, uint64_t more) {
    LIST_FOREACH_ENTRY(x, &p->ready, struct sched_picture, link) {
        if (p->n_bytes + more <= p->max_bytes)
            return;
        if (x->n_users == 0)
            free_picture(p, x);
    }
}

/* ---- holders of pictures ---- */

uint32_t pictures_first(const struct request *r, uint32_t n_tokens) {
    for (uint32_t i = 0; i < r->picture.n; i++)
        if (r->picture.list[i].in.at + r->picture.list[i].in.n_rows > n_tokens)
            return r->picture.list[i].in.at;
    return UINT32_MAX;
}

static void pictures_hold_entry(struct pictures *p, struct request_picture *q,
                                struct sched_picture *x) {
    q->held = x;
    if (x->n_users++ == 0 && x->state == PICTURE_READY)
        p->n_held_bytes += row_bytes(p, x);
    if (x->state == PICTURE_READY) { /* moves it to the end: the most recently used */
        list_remove(&x->link);
        list_push_back(&p->ready, &x->link);
        p->view->stats->n_picture_hits++;
    }
}

static void pictures_let_go(struct pictures *p, struct request *r, struct request_picture *q) {
    struct sched_picture *x = STEAL(q->held);

    assert(x->n_users > 0);
    x->n_users--;
    if (x->n_users == 0 && x->state != PICTURE_READY) {
        free_picture(p, x);
    } else if (x->state == PICTURE_READY) {
        p->n_held_bytes -= x->n_users == 0 ? row_bytes(p, x) : 0;
        pictures_make_room(p, 0);
    } else if (x->state == PICTURE_ASKED && x->id == r->id) {
        /* the front may not answer for this request any more: another request is named */
        pictures_drop_pixels(p, x);
        x->state = PICTURE_WANTED;
    }
}

void pictures_release(struct pictures *p, struct request *r) {
    uint32_t done = request_n_stored(r);

    for (uint32_t i = 0; i < r->picture.n; i++) {
        struct request_picture *q = &r->picture.list[i];

        if (!q->held)
            continue;
        bool runs = r->state == REQUEST_RUNNING && r->seq;
        bool needs = runs && q->in.at + q->in.n_rows > done;
        /* A step in flight may still read rows of a request that was preempted or has ended. */
        bool read = !runs && r->n_in_flight > 0 && q->held->state == PICTURE_READY;
        if (!needs && !read)
            pictures_let_go(p, r, q);
    }
}

uint32_t pictures_hold(struct pictures *p, struct request *r) {
    uint32_t reach = UINT32_MAX, n_missing = 0;
    uint64_t near = (uint64_t)r->n_computed + p->view->max_rows;

    assert(r->state == REQUEST_RUNNING);
    pictures_release(p, r); /* rows in newly attached pages are not computed any more */
    for (uint32_t i = 0; i < r->picture.n; i++) {
        struct request_picture *q = &r->picture.list[i];

        if (q->in.at + q->in.n_rows <= r->n_computed)
            continue;
        if (reach == UINT32_MAX && q->in.at >= near)
            break;
        struct sched_picture *x = q->held ? q->held : *pictures_slot(p, &r->isolation, q->number);
        bool ready = x && x->state == PICTURE_READY;
        if (ready && reach != UINT32_MAX) {
            /* Releases ready pictures after one that is missing: that one may need their room. */
            if (q->held)
                pictures_let_go(p, r, q);
            continue;
        }
        if (n_missing == PICTURES_AHEAD)
            continue;
        if (!x)
            x = pictures_add(p, r, q);
        if (x && !q->held)
            pictures_hold_entry(p, q, x);
        n_missing += !ready;
        if (!ready && reach == UINT32_MAX)
            reach = q->in.at;
    }
    return reach;
}

bool pictures_block(const struct request *r) {
    for (uint32_t i = 0; i < r->picture.n; i++) {
        const struct request_picture *q = &r->picture.list[i];

        if (q->in.at + q->in.n_rows > r->n_computed)
            return q->in.at <= r->n_computed && (!q->held || q->held->state != PICTURE_READY);
    }
    return false;
}

static const struct sched_picture *missing_of(const struct request *r) {
    for (uint32_t i = 0; i < r->picture.n; i++)
        if (r->picture.list[i].held && r->picture.list[i].held->state != PICTURE_READY)
            return r->picture.list[i].held;
    return NULL;
}

enum why pictures_why(const struct request *r) {
    const struct sched_picture *x = missing_of(r);

    if (!x)
        return WHY_N;
    return x->state == PICTURE_UNDER_WAY ? WHY_ENCODE : WHY_PICTURE;
}

/* Returns the running request whose missing picture in @state is next, and the picture's index: the
 * first in order of the tenant furthest behind. NULL: there is none. */
static struct request *next_of(const struct pictures *p, enum picture_state state,
                               uint32_t *index) {
    struct request *best = NULL;

    LIST_FOREACH_ENTRY(r, p->view->running, struct request, queued.link) {
        const uint16_t *group = p->view->fair->group;

        if (best && group[best->tenant] <= group[r->tenant])
            continue;
        if (state == PICTURE_WANTED && request_is_prewarm(r))
            /* prewarms have no client that waits, and the front has dropped their pictures */
            continue;
        for (uint32_t i = 0; i < r->picture.n; i++)
            if (r->picture.list[i].held && r->picture.list[i].held->state == state) {
                best = r;
                *index = i;
                break;
            }
    }
    return best;
}

struct request *pictures_waiter(const struct pictures *p, const struct sched_picture *x) {
    LIST_FOREACH_ENTRY(r, p->view->running, struct request, queued.link) {
        for (uint32_t i = 0; i < r->picture.n; i++)
            if (r->picture.list[i].held == x)
                return r;
    }
    return NULL;
}

/* ---- pixels ---- */

bool pictures_need(struct pictures *p, struct msg_need_picture *out) {
    uint32_t index;
    const struct request *r = list_empty(&p->coming) ? NULL : next_of(p, PICTURE_WANTED, &index);

    if (!r)
        return false;
    uint64_t bytes = pixel_bytes(r->picture.list[index].held);
    if (p->n_pixel_bytes > 0 && p->n_pixel_bytes + bytes > PICTURES_PIXELS)
        return false;
    *out = (struct msg_need_picture){.id = r->id, .index = index};
    return true;
}

void pictures_asked(struct pictures *p, const struct msg_need_picture *m) {
    LIST_FOREACH_ENTRY(r, p->view->running, struct request, queued.link) {
        if (r->id != m->id)
            continue;
        struct sched_picture *x = r->picture.list[m->index].held;

        assert(x && x->state == PICTURE_WANTED);
        x->state = PICTURE_ASKED;
        x->id = m->id;
        x->index = m->index;
        p->n_pixel_bytes += pixel_bytes(x);
        return;
    }
}

struct sched_picture *pictures_receive(struct pictures *p, const struct msg_picture *m) {
    struct sched_picture *x = NULL;

    LIST_FOREACH_ENTRY(y, &p->coming, struct sched_picture, link) {
        if (y->state == PICTURE_ASKED && y->id == m->id && y->index == m->index)
            x = y;
    }
    if (!x)
        return NULL;
    if (m->total != pixel_bytes(x))
        return x;
    if (m->offset == 0)
        x->n_rgb = 0;
    if (m->offset != x->n_rgb)
        return NULL; /* answer to an earlier question */
    assert(m->rgb.len <= m->total - m->offset);
    if (!x->rgb)
        x->rgb = malloc(m->total);
    if (!x->rgb)
        return x;
    memcpy(x->rgb + m->offset, m->rgb.data, m->rgb.len);
    x->n_rgb += m->rgb.len;
    if (x->n_rgb == m->total)
        x->state = PICTURE_PIXELS;
    return NULL;
}

/* ---- computing ---- */

bool pictures_has_work(const struct pictures *p) {
    uint32_t index;

    if (p->now)
        return true;
    return !list_empty(&p->coming) && p->n_held_bytes <= p->max_bytes &&
           next_of(p, PICTURE_PIXELS, &index);
}

/* Begins picture @x. Returns 0, or -errno with @why: it cannot be computed. */
static int pictures_begin(struct pictures *p, struct sched_picture *x, struct err *why) {
    pictures_make_room(p, row_bytes(p, x));
    x->rows = malloc(row_bytes(p, x));
    if (!x->rows)
        return err_set_code(why, 503, "out_of_memory", "messages", "Out of memory for a picture.");
    int e = engine_picture_begin(p->engine, x->rgb, &x->layout, x->rows, why);
    if (e < 0) {
        why->status = 400;
        return e;
    }
    p->n_bytes += row_bytes(p, x);
    x->state = PICTURE_UNDER_WAY;
    p->now = x;
    p->left = MAX(engine_picture_work(p->engine, &x->layout), 1u);
    return 0;
}

static void complete(struct pictures *p) {
    struct sched_picture *x = p->now;

    free(x->rgb);
    x->rgb = NULL;
    p->n_pixel_bytes -= pixel_bytes(x);
    p->now = NULL;
    x->state = PICTURE_READY;
    p->n_held_bytes += row_bytes(p, x);
    list_remove(&x->link);
    list_push_back(&p->ready, &x->link);
    p->view->stats->n_pictures_computed++;
}

static void pictures_learn(struct pictures *p, uint64_t work, int64_t ns) {
    double now = (double)ns / (double)MAX(work, 1u);

    p->ns_per_work += p->ns_per_work > 0 ? PICTURE_LEARN * (now - p->ns_per_work) : now;
}

const struct request *pictures_payer(const struct pictures *p) {
    uint32_t index;

    if (p->now)
        return pictures_waiter(p, p->now);
    return next_of(p, PICTURE_PIXELS, &index);
}

int64_t pictures_step(struct pictures *p, int64_t ns, struct sched_picture **failed,
                      struct err *why) {
    uint32_t index;

    *failed = NULL;
    if (!p->now) {
        const struct request *r = next_of(p, PICTURE_PIXELS, &index);
        assert(r);
        struct sched_picture *x = r->picture.list[index].held;

        if (pictures_begin(p, x, why) < 0) {
            *failed = x;
            return 0;
        }
    }
    const struct request *payer = pictures_payer(p);
    int64_t from = clock_now(p->view->clock);
    double work = p->ns_per_work > 0 ? (double)ns / p->ns_per_work : 1;
    uint64_t left;
    TRY(engine_picture_step(p->engine, (uint64_t)MAX(1, MIN(work, (double)p->left)), &left));
    int64_t now = clock_now(p->view->clock), took = now - from;

    assert(left < p->left && payer);
    pictures_learn(p, p->left - left, took);
    p->left = left;
    p->view->stats->picture_ns_total += (uint64_t)took;
    fair_charge(p->view->fair, payer->tenant, (double)took, now);
    if (left == 0)
        complete(p);
    return took;
}
