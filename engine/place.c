#include "engine/place.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/sha256.h"
#include "base/try.h"

/* Rows that must have been counted before the order follows their picks; of fewer rows the picks
 * are chance (docs/design/cuda-products.md). */
#define ENOUGH_ROWS 1000u
/* A former placement stays if it costs at most this factor of the best one, so that prefixes on
 * disk remain valid. */
#define STAYS 1.1
/* Tokens that a device keeps room for if max-context is not set and FFNs can move to the host: each
 * FFN on the host costs every token milliseconds, while a longer context only serves those who need
 * it. */
#define FFN_CONTEXT 8192u

/* -- orders ------------------------------------------------------------------------------------ */

/* Compares two experts by their picks in the case @ctx, for qsort_r(). */
static int place_compare(const void *a, const void *b, void *ctx) {
    const struct place_case *c = ctx;
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    if (c->picks[x] != c->picks[y])
        return c->picks[x] < c->picks[y] ? -1 : 1;
    if (x < y)
        return -1;
    return 1; /* never equal */
}

/* Writes the experts of the first @n_layer layers to @out. Returns their number. */
static uint32_t in_layers(const struct place_case *c, uint32_t n_layers, uint32_t *out) {
    uint32_t n = 0;

    assert(n_layers <= c->n_layer);
    for (uint32_t i = 0; i < n_layers * c->n_expert; i++)
        if (c->has[i / c->n_expert])
            out[n++] = i;
    return n;
}

uint32_t place_order(const struct place_case *c, uint32_t *out) {
    struct place_case by = *c;
    uint32_t n = in_layers(c, c->n_layer, out);

    qsort_r(out, n, sizeof(*out), place_compare, &by);
    return n;
}

int place_evenly(const struct place_case *c, uint32_t *order, uint32_t n) {
    CLEANUP(freep) uint32_t *by_picks = malloc(MAX(n, 1u) * sizeof(*order));
    CLEANUP(freep) uint32_t *rank = malloc(MAX(n, 1u) * sizeof(*rank));
    CLEANUP(freep) uint32_t *seen = calloc(c->n_layer, sizeof(*seen));
    uint32_t at = 0;

    if (!by_picks || !rank || !seen)
        return -ENOMEM;
    memcpy(by_picks, order, n * sizeof(*order));
    for (uint32_t i = 0; i < n; i++)
        rank[i] = seen[order[i] / c->n_expert]++;
    for (uint32_t r = 0; r < c->n_expert; r++)
        for (uint32_t i = 0; i < n; i++)
            if (rank[i] == r)
                order[at++] = by_picks[i];
    assert(at == n);
    return 0;
}

static bool place_has(const struct place_case *c, const uint32_t *host, uint32_t number) {
    uint32_t l = number / c->n_expert, e = number % c->n_expert;

    return host[l * ((c->n_expert + 31) / 32) + e / 32] >> e % 32 & 1;
}

/* Returns the picks of experts on the host, and the picks of all experts. */
static double hosts_picks(const struct place_case *c, const uint32_t *host, double *all) {
    double n = 0;

    *all = 0;
    for (uint32_t i = 0; i < c->n_layer * c->n_expert; i++) {
        double picks = 0;

        if (c->has[i / c->n_expert])
            picks = (double)c->picks[i];
        *all += picks;
        if (host && place_has(c, host, i))
            n += picks;
    }
    assert(n <= *all);
    return n;
}

double place_share(const struct place_case *c, const uint32_t *host) {
    double all, n = hosts_picks(c, host, &all);

    if (all <= 0)
        return 0;
    return n / all;
}

double place_cost(const struct place_case *c, const uint32_t *host) {
    uint32_t n_layers = 0, n_calls = 0;

    for (uint32_t l = 0; l < c->n_layer; l++) {
        bool any = false;

        for (uint32_t e = 0; e < c->n_expert; e++)
            any = any || (host && place_has(c, host, l * c->n_expert + e));
        n_layers += c->has[l];
        n_calls += any;
    }
    return place_share(c, host) * n_layers * c->n_used + n_calls;
}

/* -- what the model has ------------------------------------------------------------------------ */

/* Returns the bytes of matrices as the host keeps them. */
static uint64_t place_stored_bytes(const struct tensor *t) {
    return backend_cpu.stored_bytes(t);
}

/* Returns the bytes of one of the op's experts; tiles on a device take about as many as the
 * file. */
static uint64_t bytes_of_expert(const struct model *m, const struct model_op *op) {
    uint64_t n = 0;

    for (int w = 0; w < OP_MATRICES; w++)
        if (op->w[w] && (w == 0 || op->w[w] != op->w[w - 1])) /* GLU_RELU: gates are ups */
            n += (m->shape.fetches ? op->w[w]->n_bytes : place_stored_bytes(op->w[w])) /
                 m->shape.n_expert;
    return n;
}

/* Returns the bytes of a dense FFN; @op: its GATE_UP. */
static uint64_t bytes_of_ffn(const struct model_op *op) {
    return place_stored_bytes(op[0].w[0]) + place_stored_bytes(op[0].w[1]) +
           place_stored_bytes(op[1].w[0]);
}

static struct placement place_count(const struct model *m) {
    struct placement p = {0};

    p.n_host_ffn = m->shape.n_host_ffn;
    for (uint32_t i = 0; i < m->n_ops; i++) {
        const struct model_op *op = &m->op[i];

        if (op->kind == OP_GATE_UP && ffn_is_hosts(&m->shape, op->layer))
            p.ffn_bytes += bytes_of_ffn(op);
        if (op->kind != OP_EXPERTS)
            continue;
        uint32_t n = n_host_experts(&m->shape, op->layer);
        p.n_layers++;
        p.n_host_layers += n > 0;
        p.n_experts += m->shape.n_expert;
        p.n_host += n;
        p.absent_bytes += n * bytes_of_expert(m, op);
        if (n > 0 && m->shape.fetches)
            n = m->shape.n_expert; /* the host has all experts of the layer */
        p.host_bytes += n * bytes_of_expert(m, op);
    }
    assert(p.n_host <= p.n_experts && p.n_host_layers <= p.n_layers);
    p.absent_bytes += p.ffn_bytes;
    return p;
}

/* Returns the placement's sizes, and sets shape.host_bytes, which the device's sum needs. */
static struct placement place_measure(struct model *m) {
    struct placement p = place_count(m);

    m->shape.host_bytes = p.host_bytes + p.ffn_bytes;
    return p;
}

static size_t n_words(const struct model *m) {
    return (size_t)m->shape.n_layer * host_words(&m->shape);
}

/* Makes @bits, which belong to the model, the placement of its shape. */
static void place_apply(struct model *m, const uint32_t *bits) {
    bool any = false;

    for (size_t i = 0; i < n_words(m); i++) {
        uint32_t n_left = m->shape.n_expert - (uint32_t)(i % host_words(&m->shape)) * 32;

        m->host_experts[i] = bits[i] & (n_left < 32 ? (1u << n_left) - 1 : UINT32_MAX);
        any = any || m->host_experts[i];
    }
    if (any)
        m->shape.host_experts = m->host_experts;
    else
        m->shape.host_experts = NULL;
}

/* Puts the first @n experts of an order on the host. */
static void place_on_host(struct model *m, const uint32_t *order, uint32_t n) {
    memset(m->host_experts, 0, n_words(m) * sizeof(uint32_t));
    for (uint32_t i = 0; i < n; i++) {
        uint32_t l = order[i] / m->shape.n_expert, e = order[i] % m->shape.n_expert;

        assert(l < m->shape.n_layer);
        m->host_experts[l * host_words(&m->shape) + e / 32] |= 1u << e % 32;
    }
    if (n)
        m->shape.host_experts = m->host_experts;
    else
        m->shape.host_experts = NULL;
}

/* -- the choice -------------------------------------------------------------------------------- */

/* Inputs of the choice, and the best placement so far. */
struct choice {
    struct model *m;
    const struct be_ops *ops;
    const struct engine_opts *o;
    /* bytes of KV memory that must fit the device */
    uint64_t kv;
    struct place_case of;
    uint64_t *picks;
    bool *has;
    /* best: bits */
    uint32_t *order, *best;
    bool counted;
};

static void free_choice(struct choice *c) {
    free(c->picks);
    free(c->has);
    free(c->order);
    free(c->best);
}

/* Checks that the model and its pages fit the device. Returns 1, 0 or -errno. */
static int place_fits(const struct choice *c, struct err *err) {
    uint64_t room;

    place_measure(c->m);
    TRY(c->ops->room(&c->m->shape, c->o, &room, err));
    return room >= c->kv;
}

/* Puts the first @n experts of the order on the host. */
static void offload_experts(struct choice *c, uint32_t n) {
    place_on_host(c->m, c->order, n);
}

/* Puts the FFNs of the last @n layers on the host. */
static void offload_ffns(struct choice *c, uint32_t n) {
    c->m->shape.n_host_ffn = n;
}

/* Puts as few of @most experts or FFNs on the host as leave the device room for the KV memory; all,
 * if even that is not enough. Returns 0 or -errno. */
static int offload_fewest(struct choice *c, void (*offload)(struct choice *, uint32_t),
                          uint32_t most, struct err *err) {
    uint32_t from = 0, to = most;

    while (from < to) {
        uint32_t n = from + (to - from) / 2;

        offload(c, n);
        int r = place_fits(c, err);
        if (r < 0)
            return r;
        if (r)
            to = n;
        else
            from = n + 1;
    }
    offload(c, to);
    return 0;
}

/* Fills in the case: counted picks, or equal picks if too few rows were counted. */
static int place_describe(struct choice *c, const struct picks *k) {
    const struct model_shape *s = &c->m->shape;
    const uint64_t *counts = picks_counts(k);
    uint32_t n = s->n_layer * s->n_expert, n_layers = 0;
    uint64_t all = 0;

    c->picks = calloc(n, sizeof(*c->picks));
    c->has = calloc(s->n_layer, sizeof(*c->has));
    c->order = calloc(n, sizeof(*c->order));
    c->best = calloc(n_words(c->m), sizeof(*c->best));
    if (!c->picks || !c->has || !c->order || !c->best)
        return -ENOMEM;
    for (uint32_t i = 0; i < c->m->n_ops; i++)
        if (c->m->op[i].kind == OP_EXPERTS && c->m->op[i].layer < s->n_layer) {
            c->has[c->m->op[i].layer] = true;
            n_layers++;
        }
    for (uint32_t i = 0; counts && i < n; i++)
        all += counts[i];
    c->counted = n_layers > 0 && all >= (uint64_t)ENOUGH_ROWS * n_layers * s->n_expert_used;
    for (uint32_t i = 0; i < n; i++)
        if (c->counted)
            c->picks[i] = counts[i];
        else
            c->picks[i] = 1;
    c->of = (struct place_case){s->n_layer, s->n_expert, s->n_expert_used, c->picks, c->has};
    return 0;
}

static void note_if_best(struct choice *c, double *best) {
    double cost = place_cost(&c->of, c->m->shape.host_experts);

    if (cost > *best)
        return;
    *best = cost;
    memcpy(c->best, c->m->host_experts, n_words(c->m) * sizeof(uint32_t));
}

/* Chooses the rarest experts of each layer, equally many of each, for a device that fetches. */
static int choose_evenly(struct choice *c, struct err *err) {
    uint32_t n = place_order(&c->of, c->order);

    TRY(place_evenly(&c->of, c->order, n));
    return offload_fewest(c, offload_experts, n, err);
}

/* Chooses the cheaper placement: the rarest experts, or the experts of the first layers; the former
 * placement @before if it is nearly as good. */
static int place_choose(struct choice *c, const uint32_t *before, struct err *err) {
    if (c->m->shape.fetches)
        return choose_evenly(c, err);
    double best = INFINITY;

    TRY(offload_fewest(c, offload_experts, place_order(&c->of, c->order), err));
    note_if_best(c, &best);
    TRY(offload_fewest(c, offload_experts, in_layers(&c->of, c->of.n_layer, c->order), err));
    note_if_best(c, &best);
    if (before && place_cost(&c->of, before) <= STAYS * best) {
        place_apply(c->m, before);
        int r = place_fits(c, err);
        if (r != 0)
            return MIN(r, 0);
    }
    place_apply(c->m, c->best);
    return 0;
}

static int check_host(struct model *m, const struct engine_opts *o, struct err *err) {
    uint64_t have = o->memory ? o->memory : memory_machine();
    struct placement p = place_measure(m);

    if (p.ffn_bytes > have)
        err_set(err, 0, "device-layers",
                "does not fit: the FFNs of %u of %u layers are not on the device and take %s; the "
                "machine has %s of memory",
                p.n_host_ffn, m->shape.n_layer, fit_text(p.ffn_bytes).s, fit_text(have).s);
    if (p.host_bytes > have)
        err_set(err, 0, NULL,
                "does not fit: %u of %u experts are not on the device and take %s; the machine has "
                "%s of memory",
                p.n_host, p.n_experts, fit_text(p.host_bytes).s, fit_text(have).s);
    if (MAX(p.ffn_bytes, p.host_bytes) > have)
        return -ENOMEM;
    return 0;
}

/* Returns the KV memory for which experts move to the host. */
static uint64_t kv_of(const struct model *m, const struct be_ops *ops, const struct engine_opts *o,
                      const struct fit_sizes *s) {
    const struct fit_windows w = fit_windows(m, o, s);
    struct fit f = fit_of(m, ops, o, s, &w);

    if (o->n_pages)
        return o->n_pages * (s->page + s->window_page);
    if (o->device_share)
        f.wish = 0;
    else
        f.wish = o->kv_bytes;
    return fit_kv_beside(&f);
}

/* Puts all experts of the first @n_layers layers on the host. */
static void place_layers(struct choice *c, uint32_t n_layers) {
    place_on_host(c->m, c->order, in_layers(&c->of, MIN(n_layers, c->of.n_layer), c->order));
}

/* Appends to the note how many experts moved, and the expected gain. */
static void describe_change(const struct choice *c, const uint32_t *before, char *note, size_t n) {
    const uint32_t *now = c->m->shape.host_experts;
    uint32_t n_moved = 0;

    for (uint32_t i = 0; before && i < c->of.n_layer * c->of.n_expert; i++)
        n_moved += place_has(&c->of, before, i) != (now && place_has(&c->of, now, i));
    if (c->counted && n_moved)
        snprintf(note, n,
                 "%u experts moved since the model was last loaded: the device has %.1f%% of the "
                 "counted picks, and had %.1f%%",
                 n_moved, 100 * (1 - place_share(&c->of, now)),
                 100 * (1 - place_share(&c->of, before)));
    else if (c->counted && now)
        snprintf(note, n, "the device has %.1f%% of the counted picks",
                 100 * (1 - place_share(&c->of, now)));
}

/* Returns true if the host can compute the FFN of each layer: a gate and an up of the normed x, and
 * a down that is added to x. */
static bool host_can_ffn(const struct model *m) {
    uint32_t n = 0;

    for (uint32_t i = 0; i + 1 < m->n_ops; i++) {
        const struct model_op *up = &m->op[i], *down = &m->op[i + 1];

        if (up->kind != OP_GATE_UP || up->layer >= m->shape.n_layer)
            continue;
        if (!up->norm || !up->w[0] || !up->w[1] || up->w[0] == up->w[1] || up->ffn.sparsity > 0 ||
            down->kind != OP_PROJ || down->in != ACT_H || down->branch)
            return false;
        n++;
    }
    return n == m->shape.n_layer;
}

/* Returns the former number of layers if it exceeds @fewest by at most a tenth of the layers, else
 * @fewest. */
static uint32_t fewest_or_before(uint32_t fewest, int64_t before, uint32_t n_layer) {
    bool stays = before >= fewest && before <= fewest + n_layer / 10;

    if (!stays)
        return fewest;
    return (uint32_t)before;
}

/* Implements place() for a model without experts. */
static int place_ffns(struct choice *c, struct picks *k, struct err *err) {
    struct model_shape *s = &c->m->shape;
    uint32_t wanted = c->o->device_layers, n = s->n_layer;
    int64_t before = picks_host_ffn(k);
    bool fixed = wanted && wanted < n, can = host_can_ffn(c->m);

    if (s->cut[1] && fixed)
        return err_set(err, 0, "device-layers",
                       "device-layers cannot be combined with devices that divide the layers");
    if (s->cut[1])
        return 0;
    if (fixed && !can)
        return err_set(err, 0, "device-layers",
                       "device-layers: the FFNs of %s models are not computed by the host: leave "
                       "it out",
                       c->m->arch);
    if (c->o->keeps_place && before >= 0)
        s->n_host_ffn = (uint32_t)before;
    else if (fixed)
        s->n_host_ffn = n - wanted;
    else if (wanted == ENGINE_HOST_AUTO && can) {
        TRY(offload_fewest(c, offload_ffns, n, err));
        s->n_host_ffn = fewest_or_before(s->n_host_ffn, before, n);
    }
    TRY(check_host(c->m, c->o, err));
    picks_place_ffn(k, s->n_host_ffn);
    return 0;
}

int place(struct model *m, const struct be_ops *ops, const struct engine_opts *o,
          const struct fit_sizes *s, struct picks *k, char *note, size_t n_note, struct err *err) {
    const uint32_t *before = picks_placed(k);

    uint32_t number[ENGINE_DEVICES];

    m->shape.host_experts = NULL;
    m->shape.fetches = false;
    m->shape.n_host_ffn = 0;
    m->shape.host_bytes = 0;
    if (!ops->device || !ops->room)
        return 0;
    if (!m->shape.n_expert) {
        struct engine_opts wish = *o;

        if (!wish.max_context)
            wish.max_context = MIN(m->shape.max_context, FFN_CONTEXT);
        struct choice dense = {.m = m, .ops = ops, .o = o, .kv = kv_of(m, ops, &wish, s)};
        return place_ffns(&dense, k, err);
    }
    if (devices_of(o, number) > 1 && o->fetches_experts)
        return err_set(err, 0, "fetch-experts",
                       "fetch-experts cannot be combined with several devices");
    if (devices_of(o, number) > 1 && o->host_experts && o->host_experts != ENGINE_HOST_AUTO)
        return err_set(err, 0, "host-experts",
                       "host-experts cannot be combined with several devices");
    if (devices_of(o, number) > 1)
        return 0;
    m->shape.fetches = o->fetches_experts;
    if (!m->host_experts)
        m->host_experts = calloc(n_words(m), sizeof(uint32_t));
    if (!m->host_experts)
        return -ENOMEM;
    CLEANUP(free_choice)
    struct choice c = {.m = m, .ops = ops, .o = o, .kv = kv_of(m, ops, o, s)};
    TRY(place_describe(&c, k));
    if (o->keeps_place && before)
        place_apply(m, before);
    else if (o->host_experts == ENGINE_HOST_AUTO)
        TRY(place_choose(&c, before, err));
    else
        place_layers(&c, o->host_experts);
    m->shape.fetches = m->shape.fetches && m->shape.host_experts;
    TRY(check_host(m, o, err));
    describe_change(&c, before, note, n_note);
    picks_place(k, m->host_experts);
    return 0;
}

struct placement place_report(const struct model *m, char *note, size_t n) {
    struct placement p = place_count(m);

    if (p.n_host)
        note_add(note, n, "; ",
                 "%u of %u experts, in %u of %u layers, are in host memory (%s); the %s", p.n_host,
                 p.n_experts, p.n_host_layers, p.n_layers, fit_text(p.host_bytes).s,
                 m->shape.fetches ? "device fetches those that are picked" : "CPU computes them");
    if (p.n_host_ffn)
        note_add(note, n, "; ",
                 "the FFNs of the last %u of %u layers are in host memory (%s); the CPU computes "
                 "them",
                 p.n_host_ffn, m->shape.n_layer, fit_text(p.ffn_bytes).s);
    return p;
}

void place_mark(const struct model *m, uint8_t sources[20]) {
    struct sha256 s;
    char hex[65];

    if (!has_host_part(&m->shape))
        return;
    sha256_init(&s);
    if (m->shape.host_experts)
        sha256_add(&s, m->host_experts, n_words(m) * sizeof(uint32_t));
    else
        sha256_add(&s, &m->shape.n_host_ffn, sizeof(m->shape.n_host_ffn));
    sha256_hex(&s, hex);
    for (int i = 0; i < 20; i++)
        sources[i] ^= (uint8_t)hex[i];
}
