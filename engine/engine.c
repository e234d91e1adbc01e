/*
 * engine - combines a model, a backend and memory, and runs steps through them.
 *
 * A step in flight is a slot (struct flight): launched, masked, sealed, waited for. A device
 * backend is called as early as possible: the ops up to the logits in engine_launch(), sampling in
 * engine_seal(). A host backend computes the whole step inside engine_wait(), when the samples of
 * the step before are known, so it need not support engine_seq.feed. Two steps may be in flight
 * with a host backend too; tests use that to show that the overlap does not change results.
 *
 * After -EIO the device is lost, and every later call returns -EIO.
 */

#include "engine/engine.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/result.h"
#include "base/try.h"
#include "engine/archs.h"
#include "engine/build_id.h"
#include "engine/check.h"
#include "engine/fuse.h"
#include "engine/pictures.h"
#include "engine/prove.h"
#include "engine/size.h"
#include "engine/warm.h"

#define MAX_IN_FLIGHT 2u

/* A step from launch to wait. Life: launched -> masks -> sealed -> waited for, in the order of
 * steps. */
struct flight {
    /* the batch as the backend gets it */
    struct engine_batch batch;
    /* [max_rows] tokens with fed samples; host backends */
    int32_t *token;
    /* [max_wants] host backends */
    const uint32_t **mask;
    /* device backends */
    struct step *step;
    bool sealed;
};

/* Invariants: waited <= launched <= waited + MAX_IN_FLIGHT; the batch of step s is in flight[s % 2]
 * between launch and wait; once lost, always lost. */
struct engine {
    /* a copy of the caller's, with max_context and n_pages filled in */
    struct engine_opts opts;
    struct engine_info info;
    /* moved: line about placed experts */
    char name[128], note[600], moved[200];
    const struct be_ops *ops;
    struct be *be;
    struct model model;
    struct head head;
    struct picks picks;
    /* NULL: no projector */
    struct image_encoder *encoder;
    /* why the encoder is not on the device, or NULL */
    const char *no_encoder;
    /* step s has flight[s % 2] */
    struct flight flight[MAX_IN_FLIGHT];
    /* numbers of the last steps launched and waited for */
    uint64_t launched, waited;
    /* [max_wants] of step @waited */
    int32_t *sample;
    /* wants of step @launched */
    uint32_t n_wants_launched;
    struct { /* [n_states + n_snapshots], after the last launched step: */
        /* number of positions that the state covers */
        uint32_t end;
        /* the last step that advanced it */
        uint64_t step;
    } * state;
    /* snapshots are beside the KV memory */
    bool lost, host_snapshots;
};

/* -- opening ----------------------------------------------------------------------------------- */

/* Rejects options that no model and no backend can meet. */
static int check_opts(const struct engine_opts *o, struct err *err) {
    if (o->page_tokens != 16 && o->page_tokens != 32 && o->page_tokens != 64)
        return err_set(err, 0, NULL, "page_tokens is %u; it must be 16, 32 or 64", o->page_tokens);
    if (!o->max_rows || !o->max_seqs || !o->max_wants)
        return err_set(err, 0, NULL, "max_rows, max_seqs and max_wants must not be 0");
    uint32_t number[ENGINE_DEVICES];
    if (!devices_of(o, number))
        return err_set(err, 0, "devices",
                       "devices '%s': must be up to %u different device numbers, such as 0,1",
                       o->devices, ENGINE_DEVICES);
    if (o->max_rows > 1u << 20 || o->max_seqs > 1u << 20 || o->max_wants > 1u << 20)
        return err_set(err, 0, NULL, "max_rows, max_seqs and max_wants are at most %u", 1u << 20);
    if (o->picture_rows > 1u << 16)
        return err_set(err, 0, NULL, "picture_rows is at most %u", 1u << 16);
    return 0;
}

/* Chooses sizes of pages and states; with @check also checks that they fit the machine. Returns 0
 * or -errno with @err. */
static int choose_sizes(struct engine *e, bool check, struct err *err) {
    struct sizing z = {
        .model = &e->model,
        .ops = e->ops,
        .picks = &e->picks,
        .opts = &e->opts,
        .info = &e->info,
        .note = e->note,
        .n_note = sizeof(e->note),
        .moved = e->moved,
        .n_moved = sizeof(e->moved),
    };

    if (e->ops->divide)
        TRY(e->ops->divide(&e->model.shape, &e->opts, err));
    TRY(size_memory(&z, err));
    e->host_snapshots = z.host_snapshots;
    if (!check)
        return 0;
    return size_check(&z, err);
}

/* Allocates the buffers of steps in flight. Returns 0 or -ENOMEM; engine_free() frees them. */
static int alloc_flights(struct engine *e) {
    for (uint32_t i = 0; i < MAX_IN_FLIGHT; i++) {
        struct flight *f = &e->flight[i];

        f->token = calloc(e->opts.max_rows, sizeof(*f->token));
        f->mask = calloc(e->opts.max_wants, sizeof(*f->mask));
        if (!f->token || !f->mask)
            return -ENOMEM;
    }
    e->sample = calloc(e->opts.max_wants, sizeof(*e->sample));
    e->state = calloc(e->opts.n_states + e->opts.n_snapshots + 1, sizeof(*e->state));
    return enomem_unless(e->sample && e->state);
}

/* Returns true if the model drafts (pass 1 is wanted). One device, or several that divide the
 * layers, computes MTP blocks and block drafters but no assistants; devices that divide matrices
 * compute no drafts. */
static bool drafts(const struct engine_opts *o, const struct be_ops *ops) {
    return o->drafts && ops->op[OP_KEEP] &&
           !(o->block && dflash_found(o->block) && !ops->op[OP_TAP]) &&
           !(ops->device && o->block && assistant_found(o->block));
}

/* Adds to the note why nothing is drafted although it was asked for. */
static void note_no_drafts(struct engine *e) {
    note_add(e->note, sizeof(e->note), "; ", "%s is not used for drafts: %s",
             e->opts.block ? "the draft model's file" : "the model's own block",
             drafts(&e->opts, e->ops) ? e->model.no_drafts : "this backend does not compute it");
}

/* Writes the placement of experts to the info and the note, and returns it. */
static struct placement report_place(struct engine *e) {
    struct engine_info *i = &e->info;
    const struct placement p = place_report(&e->model, e->note, sizeof(e->note));

    if (*e->moved)
        note_add(e->note, sizeof(e->note), "; ", "%s", e->moved);
    i->n_expert_layers = p.n_layers;
    i->n_host_layers = p.n_host_layers;
    i->n_experts = p.n_experts;
    i->n_host_experts = p.n_host;
    i->host_expert_bytes = p.host_bytes;
    i->n_host_ffn = p.n_host_ffn;
    i->host_ffn_bytes = p.ffn_bytes;
    return p;
}

/* Fills in those fields of the info that sizing has not set. */
static void fill_info(struct engine *e) {
    const struct model_shape *s = &e->model.shape;
    struct engine_info *i = &e->info;
    struct gguf_str name;

    if (gguf_string(e->opts.file, "general.name", &name) == 0)
        snprintf(e->name, sizeof(e->name), "%.*s", (int)MIN(name.len, sizeof(e->name)), name.data);
    i->arch = e->model.arch;
    i->backend = e->ops->name;
    i->isa = e->ops->isa(e->be);
    i->name = e->name;
    i->note = e->note;
    if (e->ops->address)
        i->n_devices = devices_of(&e->opts, i->device);
    else
        i->n_devices = 0;
    for (uint32_t k = 0; k < i->n_devices; k++)
        i->address[k] = e->ops->address(e->be, k);
    i->n_vocab = s->n_vocab;
    i->n_embd = s->n_embd;
    i->n_layer = s->n_layer;
    i->max_context = e->opts.max_context;
    i->page_tokens = e->opts.page_tokens;
    i->n_pages = e->opts.n_pages;
    i->n_host_pages = e->opts.n_host_pages;
    i->n_states = e->opts.n_states;
    i->n_snapshots = e->opts.n_snapshots;
    i->n_threads = e->ops->n_threads(e->be);
    i->depth = MIN(e->ops->depth, MAX_IN_FLIGHT);
    i->hidden = e->ops->hidden;
    i->encoder = s->encoder;
    i->widens = e->head.n_wide > 0;
    i->ranks = e->head.out != NULL && e->ops->hidden;
    i->weight_bytes = e->model.weight_bytes;
    i->memory_bytes = fit_weights(&e->model, e->ops) + fit_buffers(&e->model, &e->opts) +
                      size_kv_bytes(&e->opts, &e->info);
    i->n_params = e->model.n_params;
    arch_fingerprint(e->opts.file, e->opts.drafts ? e->opts.block : NULL, i->fingerprint);
    if (e->encoder) {
        pictures_describe(e->opts.projector, &e->opts, s, i);
        if (e->no_encoder)
            note_add(e->note, sizeof(e->note), "; ", "the CPU computes pictures: %s",
                     e->no_encoder);
    }
    backend_sources(e->ops, e->be, i->sources);
    report_place(e);
    place_mark(&e->model, i->sources);
    i->kv_type = e->opts.kv_type;
    i->draft_bytes = fit_token_weights(&e->model, PASS_DRAFT);
    i->draft_passes = s->drafts;
    i->borrows = s->borrows;
    i->n_block = s->n_block;
    i->first_draft = s->first_draft;
    i->mask_token = s->mask_token;
    if (e->opts.drafts && (e->model.n_mtp || e->opts.block) && !s->drafts)
        note_no_drafts(e);
}

/* Notes the code paths that the device does not use: those that failed at open, then those that
 * fail the proof; then warms it up. */
static int prove(struct engine *e, struct err *err) {
    uint32_t n_states = e->opts.n_states;
    char found[300];

    if (!e->host_snapshots)
        n_states += e->opts.n_snapshots;
    TRY(prove_device(&e->model, e->ops, e->be, &e->opts, n_states, found, sizeof(found), err));
    const char *at_open = "";

    if (e->ops->note)
        at_open = e->ops->note(e->be);
    if (*at_open)
        note_add(e->note, sizeof(e->note), "; ", "%s", at_open);
    if (*found)
        note_add(e->note, sizeof(e->note), "; ", "%s", found);
    return warm_device(&e->model, e->ops, e->be, &e->opts, e->info.n_windows, n_states);
}

/* Opens the backend with the chosen sizes, loads the weights, and proves a device. */
static int engine_open_backend(struct engine *e, struct err *err) {
    struct be_opts o = {
        .shape = &e->model.shape,
        .engine = &e->opts,
        .n_pages = e->opts.n_pages + (e->ops->device ? 0 : e->opts.n_host_pages),
        .page_bytes = e->info.page_bytes,
        .n_states = e->opts.n_states + e->opts.n_snapshots,
        .n_host_states = e->host_snapshots ? e->opts.n_snapshots : 0,
        .n_windows = e->info.n_windows,
        .n_slots = e->model.shape.n_block ? 0 : e->info.n_slots, /* no hidden states */
        .host_experts = &host_experts_cpu,
    };

    fuse_model(&e->model, e->ops);
    TRY(e->ops->open(&e->be, &o, err));
    TRY(model_load(&e->model, e->ops, e->be, &e->opts, err));
    if (e->ops->loaded)
        TRY(e->ops->loaded(e->be, &e->info.weights, err));
    if (!e->ops->device)
        return 0;
    return prove(e, err);
}

int engine_check(const struct gguf *file, struct engine_kind *out, struct err *err) {
    struct model m;

    TRY(arch_read(&m, &(struct engine_opts){.file = file}, false, err));
    if (out)
        *out = (struct engine_kind){m.shape.encoder, m.head.out[0] != NULL};
    model_deinit(&m);
    return 0;
}

/* Sets the table of @ops and reads the model. */
static int read_model(struct engine *e, const struct engine_opts *opts, const struct be_ops *ops,
                      struct err *err) {
    e->ops = ops = backend_table(ops, opts, err);
    if (!ops)
        return -EIO;
    TRY(arch_read(&e->model, opts, drafts(opts, ops), err));
    TRY(model_check(&e->model, ops, err));
    return pictures_fit(&e->model, ops, &e->opts, err);
}

static int open_parts(struct engine *e, const struct engine_opts *opts, const struct be_ops *ops,
                      struct err *err) {
    TRY(read_model(e, opts, ops, err));
    picks_open(&e->picks, opts->experts_fd, opts->file, &e->model.shape);
    TRY(choose_sizes(e, true, err));
    TRY(alloc_flights(e));
    TRY(head_init(&e->head, &e->model.head, e->model.shape.n_embd));
    TRY(engine_open_backend(e, err));
    return pictures_open(&e->encoder, e->ops, e->be, &e->opts, &e->no_encoder, err);
}

/* Opens the engine with a backend that this machine has. */
static int open_with(struct engine **out, const struct engine_opts *opts, const struct be_ops *ops,
                     struct err *err) {
    CLEANUP(engine_freep) struct engine *e = calloc(1, sizeof(*e));

    if (!e)
        return -ENOMEM;
    e->opts = *opts;
    int r = open_parts(e, opts, ops, err);
    if (r == -ENOMEM && !err->message[0])
        err_set(err, 0, NULL, "out of memory while the model was loaded");
    if (r < 0)
        return r;
    fill_info(e);
    *out = STEAL(e);
    return 0;
}

/* Opens the engine with one device, or with the CPU, after more has failed: the reason @err becomes
 * *@why. */
static int engine_open_less(struct engine **out, struct engine_opts *o, const struct be_ops *ops,
                            struct err *why, struct err *err) {
    *why = *err;
    *err = (struct err){0};
    o->n_devices = 1;
    return open_with(out, o, ops, err);
}

/* Chooses the format of keys and values for opts.kv_auto. Returns the context that f16 would not
 * hold, or 0. */
static uint32_t choose_kv_type(struct engine_opts *o) {
    struct engine_fit exact, small;

    if (!o->kv_auto)
        return 0;
    o->kv_auto = false;
    o->kv_type = kv_both(ENGINE_KV_Q8_0);
    engine_fit(&small, o, NULL);
    o->kv_type = kv_both(ENGINE_KV_F16);
    engine_fit(&exact, o, NULL);
    uint32_t want = o->max_context;
    if (!want)
        want = MIN(exact.model_context, FIT_CONTEXT);
    if (exact.context >= want || small.context <= exact.context)
        return 0;
    o->kv_type = kv_both(ENGINE_KV_Q8_0);
    return want;
}

int engine_new(struct engine **out, const struct engine_opts *opts, struct err *err) {
    struct err none, why;

    if (!err)
        err = &none;
    *err = (struct err){0};
    TRY(check_opts(opts, err));
    const struct be_ops *ops = backend_find(opts->backend, opts, err);
    if (!ops)
        return -EINVAL;
    bool automatic = ops->device && strcmp(opts->backend, "auto") == 0;
    const char *what = "the CPU computes";
    struct engine_opts o = *opts;
    uint32_t number[ENGINE_DEVICES], f16_context = choose_kv_type(&o);
    why = *err;
    *err = (struct err){0};
    int r = open_with(out, &o, ops, err);
    if (r < 0 && automatic && devices_of(&o, number) > 1) {
        what = "one device computes";
        r = engine_open_less(out, &o, ops, &why, err);
    }
    if (r < 0 && automatic) {
        what = "the CPU computes";
        r = engine_open_less(out, &o, &backend_cpu, &why, err);
    }
    if (r == 0 && why.message[0])
        snprintf((*out)->note, sizeof((*out)->note), "%s: %s", what, why.message);
    if (r == 0 && f16_context)
        note_add((*out)->note, sizeof((*out)->note), "; ",
                 "kv-type auto is q8_0: the memory does not hold %u tokens in f16", f16_context);
    return r;
}

void engine_describe_cuda(char *out, size_t size) {
    backend_describe_cuda(out, size);
}

int engine_fit(struct engine_fit *out, const struct engine_opts *opts, struct err *err) {
    CLEANUP(engine_freep) struct engine *e = calloc(1, sizeof(*e));
    struct err none;

    *out = (struct engine_fit){0};
    if (!err)
        err = &none;
    if (!e)
        return -ENOMEM;
    *err = (struct err){0};
    e->opts = *opts;
    int r = check_opts(opts, err);
    const struct be_ops *ops = NULL;

    if (r >= 0)
        ops = backend_find(opts->backend, opts, err);
    if (!ops)
        return -EINVAL;
    choose_kv_type(&e->opts);
    *err = (struct err){0};
    TRY(read_model(e, opts, ops, err));
    ops = e->ops;
    r = choose_sizes(e, false, err);
    if (r < 0 && r != -ENOMEM)
        return r;
    uint64_t weights = fit_weights(&e->model, ops), absent = report_place(e).absent_bytes;
    *out = (struct engine_fit){
        .arch = e->model.arch,
        .backend = ops->name,
        .device = ops->device,
        .weight_bytes = weights,
        .device_weight_bytes = ops->device ? weights - MIN(absent, weights) : 0,
        .fetches = e->model.shape.fetches,
        .buffer_bytes = fit_buffers(&e->model, &e->opts),
        .page_bytes = e->info.page_bytes,
        .state_bytes = e->info.state_bytes,
        .n_params = e->model.n_params,
        .kv_bytes = r < 0 ? 0 : size_kv_bytes(&e->opts, &e->info),
        .page_tokens = e->opts.page_tokens,
        .n_pages = e->opts.n_pages,
        .n_states = e->opts.n_states,
        .n_snapshots = e->opts.n_snapshots,
        .window_bytes = e->info.window_bytes,
        .n_windows = e->info.n_windows,
        .window_seqs = e->info.window_seqs,
        .context = r < 0 ? 0 : e->opts.max_context,
        .model_context = e->model.shape.max_context,
        .token_bytes = fit_token_weights(&e->model, 0),
        .context_bytes =
            r < 0 ? 0
                  : fit_token_keys(&e->model, &e->opts, e->info.page_bytes, e->opts.max_context),
        .n_expert_layers = e->info.n_expert_layers,
        .n_host_layers = e->info.n_host_layers,
        .n_experts = e->info.n_experts,
        .n_host_experts = e->info.n_host_experts,
        .host_expert_bytes = e->info.host_expert_bytes,
        .picture_rows = e->model.shape.n_picture ? e->opts.picture_rows : 0,
        .picture_width = e->model.shape.n_picture,
        .encoder_bytes = e->model.encoder_weights + e->model.encoder_buffers,
        .n_host_ffn = e->info.n_host_ffn,
        .host_ffn_bytes = e->info.host_ffn_bytes,
    };
    return r;
}

int engine_print_ops(struct buf *out, const struct engine_opts *opts, struct err *err) {
    const struct be_ops *ops = backend_find(opts->backend, opts, err);
    struct model m;

    if (!ops)
        return -EINVAL;
    *err = (struct err){0};
    ops = backend_table(ops, opts, err);
    if (!ops)
        return -EIO;
    TRY(arch_read(&m, opts, drafts(opts, ops), err));
    int r = model_check(&m, ops, err);
    if (r == 0) {
        fuse_model(&m, ops);
        r = fuse_print(&m, out);
    }
    model_deinit(&m);
    return r;
}

struct engine *engine_free(struct engine *e) {
    if (!e)
        return NULL;
    image_encoder_free(e->encoder);
    if (e->ops)
        e->ops->close(e->be);
    model_deinit(&e->model);
    picks_close(&e->picks);
    head_deinit(&e->head);
    for (uint32_t i = 0; i < MAX_IN_FLIGHT; i++) {
        free(e->flight[i].token);
        free(e->flight[i].mask);
    }
    free(e->sample);
    free(e->state);
    free(e);
    return NULL;
}

const char *engine_fault(const struct engine *e) {
    if (!e->ops->fault)
        return "";
    return e->ops->fault(e->be);
}

float engine_score(struct engine *e, const float *hidden) {
    assert(e->info.ranks);
    return head_score(&e->head, hidden);
}

void engine_widen(struct engine *e, float *pooled) {
    assert(e->info.widens);
    head_widen(&e->head, pooled);
}

const struct engine_info *engine_info(const struct engine *e) {
    return &e->info;
}

void *engine_host_page(struct engine *e, uint32_t page) {
    assert(page < e->opts.n_host_pages);
    if (!e->ops->host_page)
        return NULL;
    if (!e->ops->device)
        page += e->opts.n_pages;
    return e->ops->host_page(e->be, page);
}

void *engine_host_snapshot(struct engine *e, uint32_t snapshot) {
    assert(snapshot < e->opts.n_snapshots);
    bool there = e->ops->host_state && (e->host_snapshots || !e->ops->device);

    if (!there)
        return NULL;
    return e->ops->host_state(e->be, e->opts.n_states + snapshot);
}

void engine_set_snapshot(struct engine *e, uint32_t snapshot, uint32_t n_tokens) {
    assert(snapshot < e->opts.n_snapshots && n_tokens > 0);
    e->state[e->opts.n_states + snapshot].end = n_tokens;
}

const float *engine_peek(const struct engine *e, uint32_t want) {
    if (!e->ops->peek)
        return NULL;
    return e->ops->peek(e->be, want);
}

/* -- pictures --------------------------------------------------------------------------------- */

uint64_t engine_picture_work(const struct engine *e, const struct picture_layout *l) {
    assert(e->encoder);
    return image_encoder_work(e->encoder, l);
}

int engine_picture_begin(struct engine *e, const uint8_t *rgb, const struct picture_layout *l,
                         float *out, struct err *err) {
    assert(e->encoder);
    return image_encoder_begin(e->encoder, rgb, l, out, err);
}

void engine_picture_end(struct engine *e) {
    if (e->encoder)
        image_encoder_end(e->encoder);
}

/* -- steps ------------------------------------------------------------------------------------- */

/* Returns @r; an error marks the device as lost. */
static int lose(struct engine *e, int r) {
    if (r < 0)
        e->lost = true;
    return r;
}

int engine_picture_step(struct engine *e, uint64_t work, uint64_t *left) {
    if (e->lost)
        return -EIO;
    return lose(e, image_encoder_step(e->encoder, work, left));
}

/* Runs copies between pages. A host backend numbers its host pages after the other pages, so every
 * copy is within one memory. */
static int run_copies(struct engine *e, const struct engine_copy *c, uint32_t n) {
    int r = 0;

    for (uint32_t i = 0; i < n && r == 0; i++) {
        struct engine_copy copy = c[i];

        if (copy.dir == COPY_STATE_SAVE || copy.dir == COPY_STATE_LOAD) {
            uint32_t n_slots = e->opts.n_states;

            if (copy.dir == COPY_STATE_SAVE)
                copy.dst += n_slots;
            else
                copy.src += n_slots;
            r = e->ops->copy_state(e->be, copy.src, copy.dst);
            continue;
        }
        if (!e->ops->device) {
            if (copy.dir == COPY_H2D)
                copy.src += e->opts.n_pages;
            if (copy.dir == COPY_D2H)
                copy.dst += e->opts.n_pages;
            copy.dir = COPY_D2D;
        }
        r = e->ops->copy(e->be, &copy);
    }
    return r;
}

/* Runs the copies before the step and the ops up to the logits. */
static int start_step(struct engine *e, struct flight *f) {
    const struct engine_batch *b = &f->batch;
    uint32_t pass = b->model;

    TRY(run_copies(e, b->before, b->n_before));
    TRY(e->ops->begin(e->be, b, &f->step));
    if (b->n_rows == 0)
        return 0;
    if (b->holes)
        pass = PASS_HOLES;
    return model_forward(&e->model, e->ops, f->step, pass, e->opts.step_progress);
}

/* Samples, then runs the copies after the step. */
static int sample_step(struct engine *e, struct flight *f) {
    if (f->batch.n_wants)
        TRY(e->ops->sample(f->step));
    return run_copies(e, f->batch.after, f->batch.n_after);
}

/* Applies copies of states to the positions that they cover. */
static void copy_ends(struct engine *e, const struct engine_copy *c, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (c[i].dir == COPY_STATE_SAVE)
            e->state[e->opts.n_states + c[i].dst].end = e->state[c[i].src].end;
        else if (c[i].dir == COPY_STATE_LOAD)
            e->state[c[i].dst].end = e->state[e->opts.n_states + c[i].src].end;
}

/* Tracks, for asserts, the position after each state over the whole batch: a sequence must continue
 * where its state is, and no two sequences may share a slot. */
static void move_states(struct engine *e, const struct engine_batch *b) {
    copy_ends(e, b->before, b->n_before);
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const struct engine_seq *s = &b->seq[i];

        assert(e->state[s->state_slot].step != b->step);
        assert(s->pos0 == 0 || e->state[s->state_slot].end == s->pos0);
        e->state[s->state_slot].step = b->step;
        e->state[s->state_slot].end = s->pos0 + s->n_rows;
    }
    copy_ends(e, b->after, b->n_after);
}

int engine_launch(struct engine *e, const struct engine_batch *b) {
    struct flight *f = &e->flight[b->step % MAX_IN_FLIGHT];

    assert(e->launched - e->waited < (e->ops->device ? e->info.depth : MAX_IN_FLIGHT));
    if (e->lost)
        return -EIO;
    check_batch(
        &(struct check){
            .opts = &e->opts,
            .shape = &e->model.shape,
            .ops = e->ops,
            .n_slots = e->info.n_slots,
            .n_windows = e->info.n_windows,
            .window = e->info.window,
            .window_seqs = e->info.window_seqs,
            .launched = e->launched,
            .n_wants_launched = e->n_wants_launched,
        },
        b);
    e->launched = b->step;
    assert(e->launched > e->waited && e->launched - e->waited <= MAX_IN_FLIGHT);
    e->n_wants_launched = b->n_wants;
    if (e->opts.n_states && b->model == 0)
        move_states(e, b);
    f->batch = *b;
    f->sealed = false;
    if (e->ops->device)
        return lose(e, start_step(e, f));
    memset(f->mask, 0, b->n_wants * sizeof(*f->mask));
    return 0;
}

/* Returns the flight of a step that was launched and not waited for. */
static struct flight *flight_of(struct engine *e, uint64_t step) {
    assert(step > e->waited && step <= e->launched);
    return &e->flight[step % MAX_IN_FLIGHT];
}

int engine_mask(struct engine *e, uint64_t step, uint32_t want, const uint32_t *bits) {
    struct flight *f = flight_of(e, step);

    assert(!f->sealed && want < f->batch.n_wants && bits);
    if (e->lost)
        return -EIO;
    if (e->ops->device)
        return lose(e, e->ops->mask(f->step, want, bits));
    f->mask[want] = bits;
    return 0;
}

int engine_seal(struct engine *e, uint64_t step) {
    struct flight *f = flight_of(e, step);

    assert(!f->sealed);
    if (e->lost)
        return -EIO;
    f->sealed = true;
    if (!e->ops->device)
        return 0;
    return lose(e, sample_step(e, f));
}

/* Fills the samples of the step before into the rows that are fed. */
static void resolve_feed(struct engine *e, struct flight *f) {
    struct engine_batch *b = &f->batch;

    if (b->n_rows > 0)
        memcpy(f->token, b->token, b->n_rows * sizeof(*f->token));
    for (uint32_t i = 0; i < b->n_seqs; i++)
        if (b->seq[i].feed >= 0)
            f->token[b->seq[i].row0] = e->sample[b->seq[i].feed];
    b->token = f->token;
}

/* Computes a whole step of a host backend, whose masks have arrived. */
static int engine_compute_on_host(struct engine *e, struct flight *f) {
    resolve_feed(e, f);
    TRY(start_step(e, f));
    for (uint32_t i = 0; i < f->batch.n_wants; i++)
        if (f->mask[i])
            TRY(e->ops->mask(f->step, i, f->mask[i]));
    return sample_step(e, f);
}

static int end_step(struct engine *e, struct flight *f, struct engine_result *out) {
    if (!e->ops->device)
        TRY(engine_compute_on_host(e, f));
    return e->ops->end(f->step, out);
}

/* Copies the backend's counts of picked experts to the file and the info. */
static void engine_count_picks(struct engine *e) {
    const struct model_shape *s = &e->model.shape;
    const uint64_t *now = NULL;

    if (e->ops->picks)
        now = e->ops->picks(e->be);
    if (!now)
        return;
    picks_count(&e->picks, now);
    e->info.n_picks = e->info.n_host_picks = 0;
    for (uint32_t i = 0; i < s->n_layer * s->n_expert; i++) {
        e->info.n_picks += now[i];
        if (!s->fetches && expert_is_hosts(s, i / s->n_expert, i % s->n_expert))
            e->info.n_host_picks += now[i];
    }
    if (s->fetches)
        e->info.n_host_picks = now[s->n_layer * s->n_expert];
}

int engine_wait(struct engine *e, uint64_t step, struct engine_result *out) {
    struct flight *f = flight_of(e, step);
    struct engine_result result;

    assert(step == e->waited + 1);
    if (e->lost)
        return -EIO;
    assert(f->sealed);
    int r = end_step(e, f, &result);
    if (r < 0)
        return lose(e, r);
    assert(result.step == step && result.n_outs == f->batch.n_wants);
    for (uint32_t i = 0; i < result.n_outs; i++)
        e->sample[i] = result.out[i].token;
    e->waited = step;
    *out = result;
    if (step % PICKS_STEPS == 0)
        engine_count_picks(e);
    return 0;
}

void engine_request_sources(uint8_t out[20]) {
    static const uint8_t here[20] = {REQUEST_SOURCES};

    memcpy(out, here, sizeof(here));
}
