/*
 * Memory is divided in this order: experts on the host, the KV memory that is left beside the
 * weights, states of recurrent layers with their snapshots, window pages, and pages. Each step
 * takes its part of opts->kv_bytes; pages get the rest, and the longest context follows from their
 * number.
 */

#include "engine/size.h"

#include <errno.h>
#include <stdio.h>

#include "base/try.h"

#define PAGES_OF_DEVICE (1u << 20) /* most pages that are made of a device's free memory */
#define SNAPSHOTS_MAX 4096u
/* Divisor of host memory for the snapshots of a hybrid model; its pages get the rest. */
#define HOST_PART 2

/* Checks that the backend has pages of this type, and that the model's heads fit its blocks. */
static int check_kv_type(const struct sizing *z, enum engine_kv_type of, struct err *err) {
    const struct kv_type *type = &kv_types[of];

    if (type->judges && z->ops != &backend_reference)
        return err_set(err, 0, NULL, "kv type %s is supported by the reference backend only",
                       type->name);
    for (uint32_t i = 0; i < z->model->n_ops; i++)
        if (z->model->op[i].heads.dim % type->block)
            return err_set(
                err, 0, NULL,
                "kv type %s needs heads whose size is a multiple of %u; this model has %u",
                type->name, type->block, z->model->op[i].heads.dim);
    return 0;
}

static int check_kv_types(const struct sizing *z, struct err *err) {
    struct kv_formats kv = z->opts->kv_type;

    TRY(check_kv_type(z, kv.k, err));
    TRY(check_kv_type(z, kv.v, err));
    if (kv.k == kv.v)
        return 0;
    if (z->model->shape.mla.rank)
        return err_set(err, 0, NULL,
                       "kv-type-k %s and kv-type-v %s: this model's latent attention keeps keys "
                       "and values together; use one format",
                       kv_types[kv.k].name, kv_types[kv.v].name);
    if (z->ops->device && (kv.k != ENGINE_KV_Q8_0 || kv.v != ENGINE_KV_Q4_0))
        return err_set(err, 0, NULL,
                       "kv-type-k %s and kv-type-v %s: the %s backend has kernels for one format, "
                       "and for keys of q8_0 beside values of q4_0",
                       kv_types[kv.k].name, kv_types[kv.v].name, z->ops->name);
    return 0;
}

/* Returns the bytes of a page of class @cls over all its layers. */
static uint64_t page_bytes_of(const struct sizing *z, uint8_t cls) {
    const struct model_shape *s = &z->model->shape;

    if (s->mla.rank && z->ops->latent_once)
        return kv_bytes_both(z->opts->kv_type, s->n_kv_values[cls] / 2 * z->opts->page_tokens);
    return page_size(s, cls, z->opts->kv_type, z->opts->page_tokens);
}

/* Chooses the KV memory from the free memory of a device, if neither pages nor bytes are
 * configured. */
static int size_kv_memory(struct sizing *z, struct err *err) {
    struct engine_opts *o = z->opts;
    uint64_t bytes;

    if (o->n_pages || !o->device_share || !z->ops->room)
        return 0;
    TRY(z->ops->room(&z->model->shape, o, &bytes, err));
    o->kv_bytes = MIN(bytes / o->device_share, PAGES_OF_DEVICE * z->info->page_bytes);
    return 0;
}

static struct fit_sizes size_of_parts(const struct sizing *z) {
    return (struct fit_sizes){z->info->page_bytes, z->info->window_bytes, z->info->state_bytes};
}

/* Returns true if window pages can be used: other layers have pages too; no pages are copied to
 * host memory, since a copied page must have all layers; no recurrent states, which are useless
 * without all keys before them. */
static bool can_have_windows(const struct sizing *z) {
    const struct engine_opts *o = z->opts;
    const struct model_shape *s = &z->model->shape;

    return o->windows && !o->n_host_pages && !o->host_kv_bytes && !s->state.n_layer &&
           s->n_kv_layer[KV_WINDOW] && s->n_kv_layer[KV_GLOBAL];
}

/* Computes the bytes of a page of each class and of a sequence's state. */
static int size_classes(struct sizing *z, struct err *err) {
    struct engine_info *i = z->info;

    TRY(check_kv_types(z, err));
    if (!can_have_windows(z))
        model_join_windows(z->model);
    i->latent = z->model->shape.mla.rank > 0;
    i->page_bytes = page_bytes_of(z, KV_GLOBAL);
    if (z->model->shape.window)
        i->window_bytes = page_bytes_of(z, KV_WINDOW);
    else
        i->window_bytes = 0;
    i->state_bytes = state_floats(&z->model->shape.state) * sizeof(float);
    return 0;
}

/* Divides the KV memory between the classes, or joins them if that takes less. */
static void size_windows(struct sizing *z) {
    struct engine_opts *o = z->opts;
    struct engine_info *i = z->info;
    const struct fit_sizes s = size_of_parts(z);
    struct fit_windows w = fit_windows(z->model, o, &s);
    uint64_t n_pages = o->n_pages, n_windows;

    if (!z->model->shape.window)
        return;
    i->window_seqs = o->max_seqs;
    if (!o->n_pages)
        n_pages = MIN(fit_divide(&w, o->kv_bytes, &i->window_seqs), UINT32_MAX / 2);
    n_windows = fit_n_windows(&w, n_pages, i->window_seqs);
    if (n_windows < n_pages) {
        o->n_pages = (uint32_t)n_pages;
        i->n_windows = (uint32_t)n_windows;
        i->window = w.window;
        if (i->window_seqs < o->max_seqs)
            snprintf(z->note, z->n_note,
                     "layers with a window keep their last keys for %u of %u sequences",
                     i->window_seqs, o->max_seqs);
        return;
    }
    model_join_windows(z->model);
    i->page_bytes += i->window_bytes;
    i->window_bytes = 0;
    i->window_seqs = 0;
}

/* Chooses the KV memory on the CPU, if its size is not configured. */
static int choose_kv(struct sizing *z, struct err *err) {
    struct engine_opts *o = z->opts;
    const struct fit_sizes s = size_of_parts(z);
    const struct fit_windows w = fit_windows(z->model, o, &s);
    const struct fit f = fit_of(z->model, z->ops, o, &s, &w);

    if (!o->memory || z->ops->device)
        return 0;
    if (o->n_pages) { /* the number of snapshots follows from kv_bytes even then */
        if (!o->kv_bytes)
            o->kv_bytes = o->memory / 4;
        return 0;
    }
    return fit_kv(&f, &o->kv_bytes, err);
}

/* Chooses the number of recurrent states, which take their part of the KV memory before the
 * pages. */
static int size_states(struct sizing *z, struct err *err) {
    struct engine_opts *o = z->opts;
    uint64_t bytes = z->info->state_bytes;
    uint64_t part = o->kv_bytes / 4; /* part of the KV memory that snapshots take */

    if (!bytes) {
        o->n_states = o->n_snapshots = 0;
        return 0;
    }
    z->host_snapshots = o->host_kv_bytes > 0;
    if (!o->n_snapshots)
        o->n_snapshots = (uint32_t)MIN(
            (z->host_snapshots ? o->host_kv_bytes / HOST_PART : part) / bytes, SNAPSHOTS_MAX);
    if (z->host_snapshots)
        part = 0;
    else
        part = o->n_snapshots * bytes;
    o->host_kv_bytes -= MIN(o->host_kv_bytes, o->n_snapshots * bytes); /* the rest is for pages */
    if (!o->n_states)
        o->n_states =
            o->n_pages ? o->max_seqs : (uint32_t)MIN(o->max_seqs, o->kv_bytes / 2 / bytes);
    if (o->n_pages)
        return 0;
    if (!o->n_states || o->n_states * bytes + part >= o->kv_bytes)
        return err_set(err, 0, NULL,
                       "kv-memory of %s is too small: the recurrent state of a sequence takes %s, "
                       "and its pages at least as much",
                       fit_text(o->kv_bytes).s, fit_text(bytes).s);
    o->kv_bytes -= o->n_states * bytes + part;
    return 0;
}

/* Chooses the experts that stay in host memory beside a device (place.h). */
static int place_experts(struct sizing *z, struct err *err) {
    const struct fit_sizes s = size_of_parts(z);

    return place(z->model, z->ops, z->opts, &s, z->picks, z->moved, z->n_moved, err);
}

/* Computes the number of pages in the memory that is left for them, and the longest context. */
static int size_text_pages(struct sizing *z, uint32_t model_max, struct err *err) {
    struct engine_opts *o = z->opts;
    struct engine_info *i = z->info;

    if (!o->n_pages)
        o->n_pages = (uint32_t)MIN(o->kv_bytes / i->page_bytes, UINT32_MAX / 2);
    if (!o->n_host_pages)
        o->n_host_pages = (uint32_t)MIN(o->host_kv_bytes / i->page_bytes, UINT32_MAX / 4);
    if (!o->n_pages || o->n_pages > UINT32_MAX / 2)
        return err_set(err, 0, NULL, "kv-memory of %s is too small: a page of %u tokens takes %s",
                       fit_text(o->kv_bytes).s, o->page_tokens, fit_text(i->page_bytes).s);
    uint64_t held = (uint64_t)o->n_pages * o->page_tokens;
    if (o->max_context > held) {
        uint64_t need = (o->max_context + o->page_tokens - 1ull) / o->page_tokens * i->page_bytes;

        err_set(err, 0, NULL,
                "a context of %u tokens takes %s of KV memory, but there are only %s (%u pages of "
                "%s); set max-context to at most %llu, or raise kv-memory",
                o->max_context, fit_text(need).s, fit_text(o->n_pages * i->page_bytes).s,
                o->n_pages, fit_text(i->page_bytes).s, (unsigned long long)held);
        return -ENOMEM;
    }
    if (!o->max_context)
        o->max_context = (uint32_t)MIN(model_max, held);
    return 0;
}

int size_memory(struct sizing *z, struct err *err) {
    struct engine_opts *o = z->opts;
    uint32_t model_max = MIN(z->model->shape.max_context, CONTEXT_LIMIT);

    if (z->model->shape.encoder) /* a sequence is computed in one step */
        model_max = MIN(model_max, o->max_rows);
    o->max_context = MIN(o->max_context, model_max); /* the front tells of it */
    TRY(size_classes(z, err));
    TRY(place_experts(z, err));
    TRY(size_kv_memory(z, err));
    TRY(choose_kv(z, err));
    TRY(size_states(z, err));
    size_windows(z);
    if (z->model->shape.drafts)
        z->info->n_slots = o->n_states ? o->n_states : o->max_seqs;
    return size_text_pages(z, model_max, err);
}

uint64_t size_kv_bytes(const struct engine_opts *o, const struct engine_info *i) {
    return ((uint64_t)o->n_pages + o->n_host_pages) * i->page_bytes +
           i->n_windows * i->window_bytes +
           ((uint64_t)o->n_states + o->n_snapshots) * i->state_bytes;
}

int size_check(const struct sizing *z, struct err *err) {
    const struct fit_sizes s = size_of_parts(z);
    uint32_t n = z->opts->n_pages + z->opts->n_host_pages;

    if (z->ops->device)
        return 0;
    return fit_check(z->model, z->ops, &s, n, size_kv_bytes(z->opts, z->info), err);
}
