/*
 * memory - allocates all memory when the backend opens, after comparing the sum with the device's
 * free memory.
 */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/try.h"
#include "engine/cuda/load.h"

#define RESERVE_BYTES (256u << 20) /* reserved for the driver: modules, local memory */
#define PARTIAL_BYTES ((size_t)64 << 20)
#define MAX_PARTIALS 65536u

void memory_add(struct be *b, void *where, size_t n, size_t size, const char *what, bool host) {
    assert(b->memory.n_regions < ARRAY_SIZE(b->memory.region) && where && !*(void **)where &&
           size > 0);
    b->memory.region[b->memory.n_regions++] =
        (struct region){where, round_up(MAX(n, 1) * size, 256), host, what};
}

void memory_add_words(struct be *b, void *where, size_t n) {
    memory_add(b, where, n, 4, "activations", false);
}

/* Counts activations of a step's rows, and the rows with logits; `packed` is as wide as the widest
 * operand. */
static void add_activations(struct be *b) {
    const struct model_shape *s = b->shape;
    size_t rows = b->opts->max_rows, wants = b->opts->max_wants,
           padded = round_up(rows, WGMMA_ROWS);
    size_t n_q = s->widest.q, n_kv = s->widest.kv, n_in = (size_t)s->n_layer * s->n_layer_input;
    size_t n_ff = MAX(s->n_ff, s->n_ff_shared);
    /* Returns the outputs of all ranks' heads; 0 without latent attention, or without recurrent
     * layers. */
    size_t n_out = (size_t)b->group.n * s->n_head * s->mla.n_value;
    size_t n_d = (size_t)b->group.n * s->state.n_out;
    size_t n_parts = s->drafts ? 2 : 0; /* of rows that are made of several */
    size_t n_pair = (s->n_taps ? s->n_taps : n_parts) * s->n_embd;
    size_t n_logits = 0;
    size_t n_streams = (size_t)s->stream.n * s->n_embd;
    size_t widest =
        round_up(MAX(MAX(MAX(n_q, s->n_embd), MAX(n_ff, n_d)),
                     MAX(MAX(n_pair, n_streams), MAX(s->compressed.q_rank, s->stream.n_low))),
                 64);
    size_t pairs = round_up(rows * s->n_expert_used, PACK_ROWS);
    size_t heads = round_up(rows * latent_heads(b), PACK_ROWS);
    size_t part = 0;
    size_t values = MAX(padded * round_up(MAX(MAX(widest, s->mla.q_rank), n_out), 64),
                        pairs * round_up(s->n_ff_expert, 64));

    if (latent_heads(b))
        part = n_q / latent_heads(b);
    if (has_last_layer(b))
        n_logits = MIN(wants, LOGIT_ROWS) * s->n_vocab;
    values = MAX(values, heads * round_up(MAX(MAX(s->mla.n_nope, s->mla.rank), part), 64));

    memory_add_words(b, &b->act.x, rows * s->n_embd);
    memory_add_words(b, &b->act.centred, s->layer_norm ? rows * s->n_embd : 0);
    memory_add_words(b, &b->act.layer_input, rows * n_in);
    if (b->group.n > 1)
        memory_add_words(b, &b->act.own_t, rows * ((s->n_embd + b->group.n - 1) / b->group.n));
    memory_add_words(b, &b->act.q,
                     rows * MAX(MAX(MAX(n_q, n_out), s->n_embd), b->group.n > 1 ? n_d : 0));
    memory_add_words(b, &b->act.k, rows * n_kv);
    memory_add_words(b, &b->act.v, rows * n_kv);
    memory_add_words(b, &b->act.o, rows * MAX(n_q, s->n_embd));
    memory_add_words(b, &b->act.o_gate, rows * (s->delta.n_key_head && !s->mla.rank ? n_q : 0));
    memory_add_words(b, &b->act.gate, rows * n_ff);
    memory_add_words(b, &b->act.up, rows * n_ff);
    memory_add(b, &b->act.packed, values * b->products.planes, sizeof(uint16_t), "activations",
               false);
    memory_add_words(b, &b->act.scale, MAX(MAX(padded, pairs), heads));
    for (uint32_t i = 0; i < ROPE_TABLES; i++)
        memory_add_words(b, &b->act.rope[i], rows * s->rope[i].n_rot);
    memory_add_words(b, &b->act.factor, rows);
    memory_add(b, &b->sampling.packed,
               round_up(wants, WGMMA_ROWS) * round_up(s->n_embd, 64) * b->products.planes,
               sizeof(uint16_t), "logits", false);
    memory_add(b, &b->sampling.scale, round_up(wants, PACK_ROWS), sizeof(float), "logits", false);
    memory_add(b, &b->sampling.logits, n_logits, sizeof(float), "logits", false);
    memory_add(b, &b->sampling.z, n_logits, sizeof(float), "logits", false);
    memory_add(b, &b->sampling.state, MIN(wants, LOGIT_ROWS), sizeof(*b->sampling.state), "logits",
               false);
    memory_add(b, &b->sampling.peeked, s->n_vocab, sizeof(float), "logits", true);
}

uint32_t cuda_few(const struct be *b) {
    if (b->shape->mla.rank)
        return ATTN_LATENT;
    return ATTN_QUERIES;
}

uint32_t cuda_head_values(const struct be *b, const struct heads *h) {
    if (b->shape->mla.rank)
        return b->shape->mla.rank;
    return heads_value(h);
}

uint32_t cuda_partials(const struct be *b, const struct heads *h, uint32_t few) {
    size_t bytes = (size_t)h->n_kv * few * (cuda_head_values(b, h) + 4) * sizeof(float);

    assert(bytes > 0 && b->attention.partial_bytes > 0);
    return (uint32_t)MIN(b->attention.partial_bytes / bytes, MAX_PARTIALS);
}

/* Counts the most items that attention may need, and room for partial results. */
static void memory_add_attention(struct be *b) {
    const struct model_shape *s = b->shape;
    size_t most = (size_t)s->widest.n_kv * cuda_few(b) * (s->widest.head + 4) * sizeof(float);

    b->attention.partial_bytes = MIN(PARTIAL_BYTES, MAX_PARTIALS * most);
    sparse_divide(b);
    b->attention.max_merges =
        (b->opts->max_rows * s->widest.group + ATTN_QUERIES - 1) / ATTN_QUERIES + b->opts->max_seqs;
    b->attention.max_items = b->attention.max_merges + MAX_PARTIALS;
    const struct heads widest = {
        .n = s->widest.n_kv, .n_kv = s->widest.n_kv, .dim = s->widest.head};
    assert(cuda_partials(b, &widest, cuda_few(b)) > 0);
    memory_add(b, &b->attention.partial, b->attention.partial_bytes, 1, "attention", false);
    memory_add(b, &b->attention.item, b->attention.max_items, sizeof(struct attn_item), "attention",
               false);
    memory_add(b, &b->attention.wide_item, b->attention.max_items, sizeof(struct attn_item),
               "attention", false);
    memory_add(b, &b->attention.merge, b->attention.max_merges, sizeof(struct attn_merge),
               "attention", false);
    memory_add_words(b, &b->attention.arrived, (size_t)MATVEC_ROWS * s->widest.n_kv);
    memory_add(b, &b->products.arrived, (size_t)b->about.device.n_multiprocessors, sizeof(uint32_t),
               "products", false);
}

/* Registers a staging area of @size bytes for @n uploads; @device: pointer to its device side,
 * NULL: it is shared with another area. */
static void add_staging(struct be *b, struct staging *s, size_t size, uint32_t n, void *device) {
    s->size = round_up(size, 256);
    memory_add(b, &s->host, n, s->size, "uploads", true);
    if (device)
        memory_add(b, device, s->size, 1, "uploads", false);
}

/* Counts uploads and results, which exist twice, for even and odd steps. @slack of an upload is for
 * the alignment of its parts. */
static void add_steps(struct be *b) {
    size_t rows = b->opts->max_rows, wants = b->opts->max_wants, seqs = b->opts->max_seqs;
    size_t words = (b->shape->n_vocab + 31) / 32, slack = 20 * 64;
    size_t unique = MIN(b->shape->n_vocab, b->opts->max_context);
    /* bytes of a picture's row: positions, place, values */
    size_t picture = 0;

    if (b->shape->n_picture)
        picture = (b->shape->n_picture + ROPE_AXES + 1) * 4ull;
    bool divided = b->group.n == 1 && !(is_first_device(b) && has_last_layer(b));
    uint32_t n_uploads = 1;

    if (divided && rows >= 2 * PART_ROWS)
        n_uploads = 1 + PARTS;
    /* entries of a class's page tables */
    size_t pages =
        MIN(seqs * ((b->opts->max_context + b->opts->page_tokens - 1) / b->opts->page_tokens),
            1u << 28);
    /* bytes of a sequence's three lists, each of which begins at a multiple of 16 */
    size_t lists = unique * sizeof(struct penal) +
                   LIST_MAX * (sizeof(struct bias_entry) + sizeof(int32_t)) + 3 * 16;

    memory_add(b, &b->sampling.sampled, 2 * wants, sizeof(int32_t), "results", false);
    memory_add(b, &b->sampling.hidden, wants * b->shape->n_embd, sizeof(float), "results", false);
    for (int i = 0; i < 2; i++) {
        struct step *s = &b->step[i];

        add_staging(b, &s->rows,
                    sizeof(struct batch_head) + rows * (32 + picture) + wants * 4 +
                        pages * 4 * (b->memory.kv[KV_WINDOW].n_pages ? 2 : 1) +
                        seqs * sizeof(struct plan_seq) + slack,
                    n_uploads, i == 0 ? &b->head : NULL);
        add_staging(b, &s->wants,
                    wants * (sizeof(struct sample_want) + 4) + MIN(wants, LOGIT_ROWS) * words * 4 +
                        seqs * lists + slack,
                    1, &s->wants.device);
        memory_add(b, &s->out_device, wants, sizeof(struct sample_out), "results", false);
        memory_add(b, &s->out_host, wants, sizeof(struct sample_out), "results", true);
        memory_add(b, &s->hidden_host, wants * b->shape->n_embd, sizeof(float), "results", true);
    }
}

/* Returns the bytes of the longest row of any tensor of the file. */
static size_t widest_row(const struct gguf *file) {
    size_t row = 0;

    for (uint64_t i = 0; i < gguf_n_tensors(file); i++)
        row = MAX(row, gguf_tensor(file, i)->row_bytes);
    return row;
}

/* Counts loading buffers, tables, weights and pages. */
static void memory_add_rest(struct be *b) {
    size_t row = widest_row(b->opts->file);

    if (b->shape->drafts && b->opts->block)
        row = MAX(row, widest_row(b->opts->block));
    b->load.bytes = MAX(LOAD_BYTES, row * TILE_ROWS);
    for (int i = 0; i < 2; i++) {
        memory_add(b, &b->load.buffer[i].host, b->load.bytes, 1, "loading", true);
        memory_add(b, &b->load.buffer[i].device, b->load.bytes, 1, "loading", false);
    }
    for (uint32_t i = 0; i < ROPE_TABLES; i++) {
        memory_add(b, &b->load.freq[i], b->shape->rope[i].n_rot / 2, sizeof(double), "tables",
                   false);
        if (b->shape->rope[i].axis)
            memory_add(b, &b->load.axis[i], b->shape->rope[i].n_rot / 2, 1, "tables", false);
    }
    memory_add(b, &b->load.grids, 1, sizeof(*b->load.grids), "tables", false);
    memory_add(b, &b->load.tile_grids, 1, sizeof(*b->load.tile_grids), "tables", false);
    memory_add(b, &b->load.found, 1, sizeof(*b->load.found), "tables", false);
    memory_add(b, &b->load.found_host, 1, sizeof(*b->load.found), "tables", true);
    if (b->load.host.size)
        memory_add(b, &b->load.host.at, b->load.host.size, 1, "experts of the host", true);
    memory_add(b, &b->pictures.memory, b->shape->picture_buffers, 1, "image encoder", false);
    memory_add(b, &b->load.weights.at, b->load.weights.size, 1, "weights", false);
    for (uint32_t i = 0; i < PAGE_CLASSES; i++)
        memory_add(b, &b->memory.kv[i].pages, b->memory.kv[i].n_pages * b->memory.kv[i].page_bytes,
                   1, "KV pages", false);
    if (is_first_device(b)) /* values of all ranks */
        memory_add(b, &b->memory.host_pages,
                   b->opts->n_host_pages * b->memory.kv[KV_GLOBAL].all_bytes, 1,
                   "KV pages of the host", true);
}

/* Counts buffers in which devices that divide the layers exchange activations. */
static void add_handed(struct be *b) {
    size_t n = (size_t)b->opts->max_rows * b->shape->n_embd;

    for (int i = 0; i < 2 && b->group.layers.first > 0; i++) {
        memory_add(b, &b->group.handed.x[i], n, sizeof(float), "activations", true);
        if (b->shape->n_taps)
            memory_add(b, &b->group.handed.tap[i], n * b->shape->n_taps, sizeof(float),
                       "activations", true);
    }
    if (!has_last_layer(b) && b->group.layers.first == 0)
        memory_add(b, &b->group.handed.sampled, 2 * b->opts->max_wants, sizeof(int32_t), "results",
                   true);
}

/* Registers all regions. Needs shape, options, and the numbers of pages and states; allocates
 * nothing. */
static void add_all(struct be *b) {
    const struct op_family *family[OP_KINDS];
    uint32_t n = ops_families(b->shape, family);

    add_activations(b);
    for (uint32_t i = 0; i < n; i++)
        if (family[i]->scratch)
            family[i]->scratch(b);
    memory_add_attention(b);
    add_steps(b);
    memory_add_rest(b);
    add_handed(b);
}

static double mib(uint64_t bytes) {
    return (double)bytes / 0x1p20;
}

/* Returns the bytes of device memory of the regions named @what, or of all (NULL); if host and
 * device share their memory, including regions of the host. */
static uint64_t memory_sum(const struct be *b, const char *what) {
    uint64_t sum = 0;

    for (uint32_t i = 0; i < b->memory.n_regions; i++)
        if ((!b->memory.region[i].host || b->about.device.integrated) &&
            (!what || strcmp(b->memory.region[i].what, what) == 0))
            sum += b->memory.region[i].bytes;
    return sum;
}

/* Returns the bytes of weights that must fit in the device's memory. */
static uint64_t memory_sum_of_weights(const struct be *b) {
    /* fetched experts are a region of their own */
    bool beside = b->about.device.integrated && !b->shape->fetches;

    return memory_sum(b, "weights") + (beside ? b->shape->host_bytes : 0);
}

/* Returns the total bytes that must fit in the device's memory. */
static uint64_t sum_of_all(const struct be *b) {
    return memory_sum(b, NULL) - memory_sum(b, "weights") + memory_sum_of_weights(b) +
           RESERVE_BYTES;
}

/* Queries the bytes of free memory. The driver of an integrated device counts the file cache as
 * used, although the system frees it for any allocation. */
static int ask_memory(struct be *b, size_t *n_free, size_t *n_total) {
    TRY(cuda_check(b, b->api->memory(n_free, n_total), "cudaMemGetInfo"));
    if (b->about.device.integrated)
        *n_free = MAX(*n_free, (size_t)b->api->host_memory());
    return 0;
}

/* Waits for memory. A process that has just ended frees its memory a little later, so its successor
 * waits if the sum would fit then. */
static int wait_for_memory(struct be *b, uint64_t need, size_t *n_free, size_t *n_total) {
    for (uint32_t waited = 0;; waited += 100) {
        TRY(ask_memory(b, n_free, n_total));
        if (need <= *n_free || need > *n_total || waited >= MEMORY_WAIT_MS)
            return 0;
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
}

/* Compares the sum with the free memory before anything is allocated: a refusal that names the sum
 * is better than a failure in the middle. */
static int check_fit(struct be *b, struct err *err) {
    uint64_t weights = memory_sum_of_weights(b), need = sum_of_all(b);
    uint64_t kv =
        memory_sum(b, "KV pages") + memory_sum(b, "KV pages of the host") + memory_sum(b, "states");
    uint64_t rest = need - RESERVE_BYTES - weights - kv;
    size_t n_free, n_total;

    TRY(wait_for_memory(b, need, &n_free, &n_total));
    if (need <= n_free)
        return 0;
    err_set(err, 0, NULL,
            "does not fit: weights %.1f MiB + KV pages%s %.1f MiB + buffers %.1f MiB (logits %.1f, "
            "activations %.1f) + reserve %.1f MiB = %.1f MiB, %s has %.1f MiB free of %.1f",
            mib(weights), b->shape->state.n_layer ? " and states" : "", mib(kv), mib(rest),
            mib(memory_sum(b, "logits")), mib(memory_sum(b, "activations")), mib(RESERVE_BYTES),
            mib(need), b->about.device.name, mib(n_free), mib(n_total));
    return -ENOMEM;
}

/* Allocates a region. Returns 0, or -EIO with the pointer NULL. */
static int alloc_region(struct be *b, const struct region *r) {
    int e;

    if (r->host)
        e = b->api->alloc_host(r->where, r->bytes);
    else
        e = b->api->alloc(r->where, r->bytes);
    if (e)
        *r->where = NULL;
    return cuda_check(b, e, r->host ? "cudaMallocHost" : "cudaMalloc");
}

/* Allocates the host's arrays of a step, and its event. */
static int alloc_steps(struct be *b) {
    for (int i = 0; i < 2; i++) {
        struct step *s = &b->step[i];

        s->be = b;
        /* both steps upload to the same area of the device */
        assert(s->rows.size == b->step[0].rows.size);
        s->rows.device = (uint8_t *)b->head;
        s->sampled = b->sampling.sampled + i * b->opts->max_wants;
        s->mask = calloc(b->opts->max_wants, sizeof(*s->mask));
        s->out = calloc(b->opts->max_wants, sizeof(*s->out));
        s->top = calloc((size_t)b->opts->max_wants * ENGINE_TOP_MAX, sizeof(*s->top));
        s->scored = calloc(b->opts->max_wants, sizeof(*s->scored));
        s->place = calloc(b->opts->max_wants, sizeof(*s->place));
        if (!s->mask || !s->out || !s->top || !s->scored || !s->place)
            return -ENOMEM;
        TRY(cuda_check(b, b->api->event_new(&s->event), "cudaEventCreate"));
        TRY(cuda_check(b, b->api->event_new(&b->load.buffer[i].event), "cudaEventCreate"));
    }
    b->sampling.count = calloc(b->shape->n_vocab, sizeof(*b->sampling.count));
    if (b->shape->n_picture) {
        b->pictures.row = calloc(b->opts->max_rows, sizeof(*b->pictures.row));
        if (!b->pictures.row)
            return -ENOMEM;
    }
    if (!b->sampling.count || kept_init(&b->draft.of, b->draft.of.n_slots) < 0)
        return -ENOMEM;
    return sampler_init(&b->sampling.host, b->shape->n_vocab);
}

int cuda_clear_arrived(struct be *b) {
    size_t bytes = (size_t)b->about.device.n_multiprocessors * sizeof(*b->products.arrived);
    size_t merges = (size_t)MATVEC_ROWS * b->shape->widest.n_kv * sizeof(*b->attention.arrived);

    TRY(cuda_fill(b, b->attention.arrived, 0, merges));
    return cuda_fill(b, b->products.arrived, 0, bytes);
}

static int clear_families(struct be *b) {
    const struct op_family *family[OP_KINDS];
    uint32_t n = ops_families(b->shape, family);

    for (uint32_t i = 0; i < n; i++)
        if (family[i]->clear)
            TRY(family[i]->clear(b));
    return 0;
}

int cuda_memory_open(struct be *b, struct err *err) {
    assert(b->memory.n_regions == 0);
    TRY(cuda_count_weights(b, err));
    add_all(b);
    TRY(check_fit(b, err));
    TRY(cuda_check(b, b->api->stream_new(&b->queue.stream), "cudaStreamCreate"));
    if (has_host(b)) {
        TRY(cuda_check(b, b->api->stream_new(&b->queue.side.stream), "cudaStreamCreate"));
        TRY(cuda_check(b, b->api->event_new(&b->queue.side.forked), "cudaEventCreate"));
        TRY(cuda_check(b, b->api->event_new(&b->queue.side.joined), "cudaEventCreate"));
    }
    if (cuda_wants("BESIDE")) {
        TRY(cuda_check(b, b->api->stream_new(&b->queue.uploads.stream), "cudaStreamCreate"));
        TRY(cuda_check(b, b->api->event_new(&b->queue.uploads.end), "cudaEventCreate"));
    }
    for (uint32_t i = 0; i < b->memory.n_regions; i++)
        TRY(alloc_region(b, &b->memory.region[i]));
    TRY(alloc_steps(b));
    TRY(cuda_fill(b, b->sampling.state, 0,
                  MIN(b->opts->max_wants, LOGIT_ROWS) * sizeof(*b->sampling.state)));
    TRY(cuda_clear_arrived(b));
    TRY(clear_families(b));
    /* Fills pages with zeros, because even unwritten keys must be finite (attention.cu). */
    for (uint32_t i = 0; i < PAGE_CLASSES; i++)
        if (b->memory.kv[i].n_pages)
            TRY(cuda_fill(b, b->memory.kv[i].pages, 0,
                          b->memory.kv[i].n_pages * b->memory.kv[i].page_bytes));
    return 0;
}

/* Frees everything that the device and the runtime have allocated, also after a failure in the
 * middle. */
static void release_device(struct be *b) {
    graph_close(b);
    for (uint32_t i = 0; i < b->memory.n_regions; i++) {
        struct region *r = &b->memory.region[i];

        if (*r->where)
            (r->host ? b->api->release_host : b->api->release)(*r->where);
        *r->where = NULL;
    }
    for (int i = 0; i < 2; i++) {
        if (b->step[i].event)
            b->api->event_free(b->step[i].event);
        if (b->load.buffer[i].event)
            b->api->event_free(b->load.buffer[i].event);
    }
    void *const events[] = {b->queue.side.joined, b->queue.side.forked, b->products.from,
                            b->products.to, b->queue.uploads.end};
    void *const streams[] = {b->queue.side.stream, b->queue.uploads.stream, b->queue.stream};
    for (size_t i = 0; i < ARRAY_SIZE(events); i++)
        if (events[i])
            b->api->event_free(events[i]);
    for (size_t i = 0; i < ARRAY_SIZE(streams); i++)
        if (streams[i])
            b->api->stream_free(streams[i]);
}

void cuda_memory_close(struct be *b) {
    if (!b->fault.stuck)
        release_device(b);
    free(b->graphs.note);
    for (int i = 0; i < 2; i++) {
        struct step *s = &b->step[i];

        free(s->mask);
        free(s->scored);
        free(s->place);
        free(s->out);
        free(s->top);
    }
    free(b->sampling.count);
    free(b->pictures.row);
    kept_deinit(&b->draft.of);
    sampler_deinit(&b->sampling.host);
}

void *staging_alloc(struct staging *s, size_t n, const void **device) {
    size_t at = round_up(s->used, 16);

    if (n > s->size || at > s->size - n)
        return NULL;
    s->used = at + n;
    assert(s->used <= s->size);
    *device = s->device + at;
    return s->host + s->turn * s->size + at;
}

int staging_send(struct be *b, struct staging *s, size_t from) {
    assert(from <= s->used && s->used <= s->size);
    if (s->used == from)
        return 0;
    return cuda_copy(b, s->device + from, s->host + s->turn * s->size + from, s->used - from,
                     CUDA_TO_DEVICE);
}

int staging_send_beside(struct be *b, struct staging *s, size_t from) {
    const struct cuda_api *api = b->api;
    const uint8_t *host = s->host + s->turn * s->size + from;

    if (!b->queue.uploads.stream)
        return staging_send(b, s, from);
    assert(from < s->used && s->used <= s->size);
    int e =
        api->copy(s->device + from, host, s->used - from, CUDA_TO_DEVICE, b->queue.uploads.stream);
    TRY(cuda_check(b, e, "cudaMemcpyAsync"));
    TRY(cuda_check(b, api->event_record(b->queue.uploads.end, b->queue.uploads.stream),
                   "cudaEventRecord"));
    TRY(cuda_check(b, api->event_wait(b->queue.uploads.end, b->queue.stream),
                   "cudaStreamWaitEvent"));
    cuda_settle(b); /* a kernel that is launched early reads uploads before its wait */
    return 0;
}

/* Returns the bytes for pages: all but a twentieth of the memory that weights and buffers leave.
 * There is always room for one page, so a model that does not fit is refused with the sum when it
 * is opened. */
int cuda_memory_room(struct be *b, uint64_t *bytes, struct err *err) {
    size_t n_free, n_total;

    TRY(cuda_count_weights(b, err));
    add_all(b);
    if (ask_memory(b, &n_free, &n_total) < 0)
        return err_set(err, 0, NULL, "asking for the device's memory: %s", b->fault.text);
    uint64_t need = sum_of_all(b);
    if (b->about.device.integrated &&
        !b->opts->n_host_pages) /* the number of pages is not yet known */
        need += b->opts->host_kv_bytes;
    uint64_t rest = n_free - MIN(need, n_free);
    *bytes = MAX(rest - rest / 20, b->memory.kv[KV_GLOBAL].page_bytes);
    return 0;
}
