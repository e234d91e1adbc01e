#include "cmd/model_fit.h"

#include <stdio.h>
#include <string.h>
#include <yyjson.h>

#include "base/cpus.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/try.h"
#include "cmd/bench_bandwidth.h"

#define MEASURE_S 0.25
#define BUFFER_MAX (512ull << 20)
/* Weights of a token that caches of processors may hold, so that memory is not what limits. */
#define CACHED_MAX (8ull << 20)

static void model_fit_measure(struct machine *m) {
    if (m->bandwidth <= 0)
        (void)!bandwidth_measure(cpus_usable(), MIN(bandwidth_buffer(), BUFFER_MAX), MEASURE_S,
                                 &m->bandwidth);
}

/* Returns the tokens per second of decoding, which reads the weights and @key_bytes of keys and
 * values once for each token. */
static double model_fit_rate(const struct engine_fit *e, const struct machine *m,
                             uint64_t key_bytes) {
    return m->bandwidth / (double)(e->token_bytes + key_bytes + e->state_bytes);
}

/* Computes what the memory of the processor allows, where a model is read from it. */
static void model_fit_rates(struct model_fit *out, struct machine *m) {
    const struct engine_fit *e = &out->engine;

    if (e->device || e->token_bytes <= CACHED_MAX)
        return;
    model_fit_measure(m);
    out->tokens_per_s = model_fit_rate(e, m, 0);
    out->tokens_per_s_full = model_fit_rate(e, m, e->context_bytes);
}

/* Computes the size of the draft model as weftd opens it beside a model with options @o. Returns 0
 * or -errno. */
static int fit_drafter(struct model_fit *out, const struct engine_opts *o,
                       const struct gguf *file) {
    struct engine_opts draft = engine_draft_opts(o, 0);
    struct engine_fit e;

    draft.file = file;
    int r = engine_fit(&e, &draft, &out->why);
    if (r == 0)
        out->draft_bytes = e.weight_bytes + e.buffer_bytes + e.kv_bytes;
    return r;
}

/* Computes the size of the model of @o with @drafter, or NULL, beside it. */
static int fit_both(struct model_fit *out, struct engine_opts *o, const struct gguf *drafter) {
    if (drafter && engine_is_block(drafter)) {
        o->block = drafter;
    } else if (drafter) {
        o->drafts = false;
        TRY(fit_drafter(out, o, drafter));
        o->memory -= MIN(out->draft_bytes, o->memory - 1);
    }
    return engine_fit(&out->engine, o, &out->why);
}

void model_fit(struct model_fit *out, const struct gguf *file, struct machine *m,
               uint32_t max_context) {
    if (!m->memory)
        m->memory = memory_available();
    /* Defaults as in daemon/config/config_table.c. */
    struct engine_opts o = {
        .file = file,
        .projector = m->projector,
        .backend = m->devices ? "cuda" : "auto",
        .devices = m->devices,
        .isa = "auto",
        .page_tokens = 32,
        .memory = m->memory,
        .device_share = 1,
        .host_experts = ENGINE_HOST_AUTO,
        .device_layers = ENGINE_HOST_AUTO,
        .fetches_experts = m->fetches_experts,
        .max_context = max_context,
        .max_rows = 512,
        .max_seqs = 64,
        .max_wants = 512,
        .windows = true,
        .drafts = true,
        .kv_type = m->kv_type,
    };

    *out = (struct model_fit){0};
    int r = fit_both(out, &o, m->drafter);
    out->fits = r == 0;
    out->known = out->engine.arch != NULL;
    if (r < 0 && !out->why.message[0])
        err_set(&out->why, 0, NULL, "%s", strerror(-r));
    if (out->fits)
        model_fit_rates(out, m);
}

struct memory_text {
    char s[24];
};

static struct memory_text memory_text(uint64_t bytes) {
    struct memory_text t;

    snprintf(t.s, sizeof(t.s), bytes < 1u << 30 ? "%.0f MiB" : "%.1f GiB",
             (double)bytes / (bytes < 1u << 30 ? 0x1p20 : 0x1p30));
    return t;
}

int model_fit_show(struct buf *out, const struct model_fit *f, const struct machine *m) {
    const struct engine_fit *e = &f->engine;

    if (!f->fits)
        return buf_printf(out, "%s\n", f->why.message);
    TRY(buf_printf(out, "fits: a context of %u of the model's %u tokens, by the %s backend\n",
                   e->context, e->model_context, e->backend));
    if (e->device)
        TRY(buf_printf(out, "  weights %s of %s, keys and values %s on %s%s\n",
                       memory_text(e->device_weight_bytes).s, memory_text(e->weight_bytes).s,
                       memory_text(e->kv_bytes).s, m->devices ? "CUDA's device " : "the device",
                       text_or(m->devices, "")));
    else
        TRY(buf_printf(out,
                       "  weights %s + buffers %s + keys and values %s = %s "
                       "of %s free\n",
                       memory_text(e->weight_bytes).s, memory_text(e->buffer_bytes).s,
                       memory_text(e->kv_bytes).s,
                       memory_text(e->weight_bytes + e->buffer_bytes + e->kv_bytes).s,
                       memory_text(m->memory).s));
    if (f->draft_bytes)
        TRY(buf_printf(out, "  the draft model takes %s of the memory besides\n",
                       memory_text(f->draft_bytes).s));
    if (e->fetches)
        TRY(buf_printf(out,
                       "  %u of %u experts have no place on the device, which reads them over PCIe "
                       "when they are picked: host memory has %s of experts, pinned\n",
                       e->n_host_experts, e->n_experts, memory_text(e->host_expert_bytes).s));
    else if (e->n_host_layers)
        TRY(buf_printf(out,
                       "  %u of %u experts in host memory: %s of the weights, %.0f%% of the picks "
                       "if all experts are picked equally often\n",
                       e->n_host_experts, e->n_experts, memory_text(e->host_expert_bytes).s,
                       100.0 * e->n_host_experts / e->n_experts));
    if (e->picture_rows)
        TRY(buf_printf(out,
                       "  sees pictures of up to %u rows of %u values; weights and buffers have %s "
                       "for that\n",
                       e->picture_rows, e->picture_width, memory_text(e->encoder_bytes).s));
    if (e->n_host_ffn)
        TRY(buf_printf(out,
                       "  of the weights the FFNs of the last %u layers in host memory: %s, which "
                       "the processor reads for each step\n",
                       e->n_host_ffn, memory_text(e->host_ffn_bytes).s));
    if (e->state_bytes)
        TRY(buf_printf(out, "  states of %.1f MiB for %u sequences, %u snapshots\n",
                       (double)e->state_bytes / 0x1p20, e->n_states, e->n_snapshots));
    if (e->n_windows)
        TRY(buf_printf(out,
                       "  %s of these for the last keys of layers with a window, for %u "
                       "sequences\n",
                       memory_text(e->n_windows * e->window_bytes).s, e->window_seqs));
    if (f->tokens_per_s > 0)
        TRY(buf_printf(out,
                       "  at most %.1f tokens/s, %.1f with a full context: memory is read at %.1f "
                       "GB/s, a token reads %.2f GB\n",
                       f->tokens_per_s, f->tokens_per_s_full, m->bandwidth * 1e-9,
                       (double)e->token_bytes * 1e-9));
    return 0;
}

yyjson_mut_val *model_fit_json(yyjson_mut_doc *d, const struct model_fit *f,
                               const struct machine *m) {
    const struct engine_fit *e = &f->engine;
    yyjson_mut_val *v = yyjson_mut_obj(d);

    yyjson_mut_obj_add_bool(d, v, "fits", f->fits);
    if (!f->fits)
        yyjson_mut_obj_add_strcpy(d, v, "why", f->why.message);
    yyjson_mut_obj_add_uint(d, v, "memory_bytes", m->memory);
    if (m->bandwidth > 0)
        yyjson_mut_obj_add_uint(d, v, "bandwidth_bytes_per_s", (uint64_t)m->bandwidth);
    if (!f->known)
        return v;
    yyjson_mut_obj_add_uint(d, v, "draft_bytes", f->draft_bytes);
    yyjson_mut_obj_add_str(d, v, "backend", e->backend);
    yyjson_mut_obj_add_uint(d, v, "weight_bytes", e->weight_bytes);
    if (e->device) {
        yyjson_mut_obj_add_uint(d, v, "device_weight_bytes", e->device_weight_bytes);
        yyjson_mut_obj_add_bool(d, v, "fetch_experts", e->fetches);
    }
    yyjson_mut_obj_add_uint(d, v, "expert_layers", e->n_expert_layers);
    yyjson_mut_obj_add_uint(d, v, "host_expert_layers", e->n_host_layers);
    yyjson_mut_obj_add_uint(d, v, "host_expert_bytes", e->host_expert_bytes);
    yyjson_mut_obj_add_uint(d, v, "experts", e->n_experts);
    yyjson_mut_obj_add_uint(d, v, "host_experts", e->n_host_experts);
    yyjson_mut_obj_add_uint(d, v, "host_ffn_layers", e->n_host_ffn);
    yyjson_mut_obj_add_uint(d, v, "host_ffn_bytes", e->host_ffn_bytes);
    yyjson_mut_obj_add_uint(d, v, "buffer_bytes", e->buffer_bytes);
    yyjson_mut_obj_add_uint(d, v, "kv_bytes", e->kv_bytes);
    yyjson_mut_obj_add_uint(d, v, "page_bytes", e->page_bytes);
    yyjson_mut_obj_add_uint(d, v, "window_page_bytes", e->window_bytes);
    yyjson_mut_obj_add_uint(d, v, "n_pages", e->n_pages);
    yyjson_mut_obj_add_uint(d, v, "n_window_pages", e->n_windows);
    yyjson_mut_obj_add_uint(d, v, "window_seqs", e->window_seqs);
    yyjson_mut_obj_add_uint(d, v, "state_bytes", e->state_bytes);
    yyjson_mut_obj_add_uint(d, v, "context", e->context);
    yyjson_mut_obj_add_uint(d, v, "model_context", e->model_context);
    yyjson_mut_obj_add_uint(d, v, "token_bytes", e->token_bytes);
    if (e->picture_rows) {
        yyjson_mut_obj_add_uint(d, v, "picture_rows", e->picture_rows);
        yyjson_mut_obj_add_uint(d, v, "picture_row_values", e->picture_width);
        yyjson_mut_obj_add_uint(d, v, "encoder_bytes", e->encoder_bytes);
    }
    if (f->tokens_per_s > 0) {
        yyjson_mut_obj_add_real(d, v, "tokens_per_s_at_most", f->tokens_per_s);
        yyjson_mut_obj_add_real(d, v, "tokens_per_s_at_most_full", f->tokens_per_s_full);
    }
    return v;
}
