#include "engine/backend.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/try.h"
#include "engine/build_id.h"
#include "engine/cuda/cuda.h"
#include "engine/cuda/several.h"
#include "engine/experts.h"
#include "engine/formats/quant.h"
#include "engine/prove.h"

#define MIN_MAJOR 8 /* the minimum, for mma.m16n8k16 and cp.async */

/* Returns advice for an error whose text is not helpful, or "". */
static const char *cuda_advice(int error) {
    switch (error) {
    case CUDA_BUSY:
        return " (another process has it alone, or its compute mode forbids it: nvidia-smi)";
    case CUDA_SYSTEM_CALL:
    case CUDA_UNKNOWN:
        return " (is the module nvidia-uvm loaded, and may weft open /dev/nvidia*?)";
    case CUDA_FABRIC:
        return " (is nvidia-fabricmanager running?)";
    case CUDA_OTHER_DRIVER:
        return " (libcuda and the loaded module differ: restart after a driver's upgrade)";
    case CUDA_NOT_COMPATIBLE:
        return " (another libcuda is found before the driver's: LD_LIBRARY_PATH)";
    case CUDA_MPS:
        return " (weft uses no MPS: its worker connects to nothing)";
    default:
        return "";
    }
}

/* Reports why there is no device, from error @e of the runtime. For a driver that is too old it
 * names the required CUDA version. */
static int no_device(const struct cuda_api *api, int e, struct err *err) {
    int driver = 0, runtime = 0;

    if (e == CUDA_OLD_DRIVER && api->versions(&driver, &runtime) == 0 && driver > 0)
        err_set(err, 0, NULL,
                "the driver is too old: it is made for CUDA %d.%d, weft-cuda.so for %d.%d; install "
                "a newer driver, or build weft with CUDA %d",
                driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10,
                driver / 1000);
    else
        err_set(err, 0, NULL, "no CUDA device: %s%s",
                e ? api->text(e) : "the driver shows none (CUDA_VISIBLE_DEVICES?)", cuda_advice(e));
    return -ENODEV;
}

/* Describes device @number and makes it current. Returns 0 or an error of the runtime. */
static int find_and_use(const struct cuda_api *api, int number, struct cuda_device *out) {
    int e = api->describe(number, out);

    if (e)
        return e;
    return api->use(number);
}

/* Describes device @number; fails if the kernels of this library do not run on it. */
static int find_device(const struct cuda_api *api, int number, struct cuda_device *out,
                       struct err *err) {
    int n = 0, e = api->count(&n);

    if (e || n == 0)
        return no_device(api, e, err);
    if (number >= n) {
        err_set(err, 0, "devices", "CUDA device %d: there are %d, numbered from 0", number, n);
        return -ENODEV;
    }
    e = find_and_use(api, number, out);
    if (e) {
        err_set(err, 0, NULL, "CUDA device %d: %s%s", number, api->text(e), cuda_advice(e));
        return -ENODEV;
    }
    if (out->major < MIN_MAJOR) {
        err_set(err, 0, NULL,
                "CUDA device %d, %s, has compute capability %d.%d, at least %d.0 is needed: use "
                "--backend cpu",
                number, out->name, out->major, out->minor, MIN_MAJOR);
        return -ENOTSUP;
    }
    e = api->check_kernel(kernel_matvec, &out->made_for);
    if (e) {
        err_set(err, 0, NULL,
                "weft-cuda.so has no code for CUDA device %d, %s (compute capability %d.%d): build "
                "weft with -Dgpu-arch=%d%d (%s)",
                number, out->name, out->major, out->minor, out->major, out->minor, api->text(e));
        return -ENOTSUP;
    }
    return 0;
}

/* be_ops.probe: probes each named device, the first one last, because it is used afterwards. */
static int cuda_probe(const struct engine_opts *o, struct err *err) {
    uint32_t number[ENGINE_DEVICES] = {0}, n = o ? devices_of(o, number) : 1;
    struct cuda_device d;

    for (uint32_t i = n; i-- > 0;)
        TRY(find_device(cuda_api(), (int)number[i], &d, err));
    return 0;
}

/* Formats of pages by enum engine_kv_type; F32 has none. */
#define PAGE_FORMAT(constant, ...) [ENGINE_KV_##constant] = PAGE_##constant,
static const enum page_format page_formats[] = {PAGE_FORMAT(F16) KV_CODED(PAGE_FORMAT)};

struct page_shape cuda_page_shape(const struct be *b, const struct heads *h) {
    return (struct page_shape){
        .n_head_kv = h->n_kv,
        .head_dim = h->dim,
        .page_tokens = b->opts->page_tokens,
        .k = page_formats[b->opts->kv_type.k],
        .v = page_formats[b->opts->kv_type.v],
        .latent = b->shape->mla.rank > 0,
    };
}

/* Returns the bytes of a page for @n_values values of a token: those of a page of one head with
 * half as many keys, and as many values. */
static size_t cuda_values_bytes(const struct be *b, uint64_t n_values) {
    const struct heads h = {.n = 1, .n_kv = 1, .dim = (uint32_t)(n_values / 2)};

    assert(n_values % 2 == 0 && n_values / 2 <= UINT32_MAX);
    const struct page_shape p = cuda_page_shape(b, &h);

    return page_layer_bytes(&p);
}

uint32_t cuda_page_ranks(const struct be *b) {
    if (b->shape->mla.rank)
        return 1;
    return b->group.n;
}

/* Counts the bytes of a page, for each class: with the device's layers, and with all layers of
 * @all. */
static void cuda_size_pages(struct be *b, const struct model_shape *all) {
    for (uint32_t i = 0; i < PAGE_CLASSES; i++) {
        uint32_t n = cuda_page_ranks(b);

        b->memory.kv[i].page_bytes = cuda_values_bytes(b, b->shape->n_kv_values[i] / n);
        b->memory.kv[i].all_bytes = n * cuda_values_bytes(b, all->n_kv_values[i] / n);
    }
    if (all->sparse.n_layer) { /* keys of blocks are stored after the layers */
        struct kv_class *kv = &b->memory.kv[KV_GLOBAL];
        size_t n = sparse_page_bytes(b);

        kv->page_bytes += n;
        kv->all_bytes += n;
        kv->layer_bytes[all->n_kv_layer[KV_GLOBAL]] = n;
        kv->all_layer_bytes[all->n_kv_layer[KV_GLOBAL]] = n;
    }
    if (all->compressed.window) { /* the keys of all layers are contiguous */
        struct kv_class *kv = &b->memory.kv[KV_GLOBAL];

        kv->page_bytes = page_size(all, KV_GLOBAL, b->opts->kv_type, b->opts->page_tokens);
        kv->all_bytes = kv->layer_bytes[0] = kv->all_layer_bytes[0] = kv->page_bytes;
    }
}

/* Closes the backend. If the device does not answer, any call would wait forever, so its memory is
 * left allocated until the process ends. */
struct be *cuda_close(struct be *b) {
    if (!b)
        return NULL;
    if (b->queue.stream && !b->fault.stuck)
        b->api->stream_wait(b->queue.stream);
    if (b->queue.side.stream && !b->fault.stuck) /* a failed step may not have been joined */
        b->api->stream_wait(b->queue.side.stream);
    if (b->queue.uploads.stream && !b->fault.stuck)
        b->api->stream_wait(b->queue.uploads.stream);
    if (b->experts.host && !b->fault.stuck)
        b->experts.host_ops->close(b->experts.host);
    cuda_unload(b);
    cuda_memory_close(b);
    free(b);
    return NULL;
}

/* Uploads tables that the kernels read. */
static int upload_tables(struct be *b) {
    CLEANUP(freep) struct tile_grids *tiles = calloc(1, sizeof(*tiles));

    if (!tiles)
        return -ENOMEM;
    tile_grids_fill(tiles, &quant_grids);
    for (uint32_t i = 0; i < ROPE_TABLES; i++) {
        const struct rope_set *set = &b->shape->rope[i];
        size_t n = set->n_rot / 2;

        if (n)
            TRY(cuda_copy(b, b->load.freq[i], set->freq, n * sizeof(double), CUDA_TO_DEVICE));
        if (n && set->axis)
            TRY(cuda_copy(b, b->load.axis[i], set->axis, n, CUDA_TO_DEVICE));
    }
    TRY(cuda_copy(b, b->load.grids, &quant_grids, sizeof(quant_grids), CUDA_TO_DEVICE));
    TRY(cuda_copy(b, b->load.tile_grids, tiles, sizeof(*tiles), CUDA_TO_DEVICE));
    return cuda_check(b, b->api->stream_wait(b->queue.stream), "cudaMemcpyAsync");
}

/* Refuses shapes that no kernel supports. Returns 0, or -EINVAL with @err. */
static int cuda_check_shape(const struct model_shape *s, struct err *err) {
    if (s->mla.rank == 0 && (s->widest.head % 8 || s->widest.head > HEAD_VALUES))
        return err_set(
            err, 0, NULL,
            "heads of %u values: backend 'cuda' needs a multiple of 8, at most %u; use --backend "
            "cpu",
            s->widest.head, HEAD_VALUES);
    return 0;
}

bool cuda_wants(const char *what) {
    char name[32];

    snprintf(name, sizeof(name), "WEFT_CUDA_%s", what);
    const char *said = getenv(name);
    return !(said && strcmp(said, "0") == 0);
}

bool cuda_asks(const char *what) {
    char name[32];

    snprintf(name, sizeof(name), "WEFT_CUDA_%s", what);
    const char *said = getenv(name);
    return said && strcmp(said, "1") == 0;
}

/* Returns the number in a variable of the environment, or @usual. */
static uint32_t cuda_number(const char *variable, uint32_t usual) {
    const char *said = getenv(variable);

    return said ? (uint32_t)strtoul(said, NULL, 10) : usual;
}

/* Reads settings for tests and measurements. WEFT_CUDA_SHARE=0: sequences do not share reads of
 * common pages. WEFT_CUDA_FUSE=0: be.ways.fuse is off. WEFT_CUDA_WIDE, _WHOLE, _LONG, _WORTH:
 * values of be.attention.wide_rows, part, long_chunks and wide_worth. WEFT_CUDA_TIMES=0:
 * be.products.timed is off. WEFT_CUDA_PACE=0: the end of a step is polled for all the time.
 * WEFT_CUDA_STATIC=1: be.ways.fixed. WEFT_CUDA_PROLOGUE=1: be.ways.prologue. WEFT_CUDA_ATTEND=1:
 * be.attention.decode. WEFT_CUDA_WARM=0: be.ways.warms is off. WEFT_CUDA_BESIDE=0: be.queue.uploads
 * is not used. */
static void cuda_read_environment(struct be *b) {
    const char *limit = getenv("WEFT_CUDA_WAIT_MS");

    if (limit)
        b->fault.wait_ns = atoll(limit) * 1000000;
    else
        b->fault.wait_ns = WAIT_LIMIT_NS;
    b->attention.wide_rows = cuda_number("WEFT_CUDA_WIDE", WIDE_ROWS);
    b->attention.part = cuda_number("WEFT_CUDA_WHOLE", WHOLE_PART);
    b->attention.long_chunks = cuda_number("WEFT_CUDA_LONG", LONG_CHUNKS);
    b->attention.wide_worth = cuda_number("WEFT_CUDA_WORTH", WIDE_WORTH);
    b->graphs.on = b->ways.wants_graphs = cuda_wants("GRAPHS") && b->group.rank == 0;
    b->graphs.paced = cuda_wants("PACE");
    b->ways.fuse = b->ways.wants_fuse = cuda_wants("FUSE");
    b->ways.fixed = cuda_asks("STATIC");
    b->ways.prologue = way_if(cuda_asks("PROLOGUE"));
    b->attention.decode = way_if(cuda_asks("ATTEND"));
    b->attention.shares = b->attention.many = cuda_wants("SHARE");
    b->products.matvec = b->products.split = WAY_ON;
    b->experts.vec = b->experts.wide = WAY_ON;
    b->products.timed = b->group.n == 1 && cuda_wants("TIMES");
    b->products.timing = b->products.timed;
    b->ways.warms = cuda_wants("WARM") && !b->shape->encoder && !has_host_part(b->shape);
}

static void set_rank(struct be *b, const struct rank *r) {
    assert(r->rank < r->n_ranks && r->n_ranks <= RANKS);
    b->about.number = r->number;
    b->group.rank = r->rank;
    b->group.n = r->n_ranks;
    b->group.layers = r->layers.end ? r->layers : (struct layers){0, b->shape->n_layer};
    b->group.first = b; /* set again when the other ranks are open */
}

/* Returns true for the kinds of ops of recurrent layers. */
static bool has_state(enum op_kind kind) {
    return OP_BIT(kind) & (OP_BIT(OP_DELTA) | OP_BIT(OP_KDA) | OP_BIT(OP_MAMBA) | OP_BIT(OP_SCAN) |
                           OP_BIT(OP_CONV));
}

uint32_t cuda_select_layers(struct model_shape *s, const struct layers *layers) {
    uint32_t before = 0;

    s->state.n_layer = 0;
    memset(s->n_kv_values, 0, sizeof(s->n_kv_values));
    for (uint32_t i = 0; i < s->n_ops; i++) {
        const struct model_op *op = &s->op[i];
        bool own =
            op->layer >= layers->first && (op->layer < layers->end || layers->end == s->n_layer);

        bool again = s->n_taps && op->kind == OP_KEYS; /* QKV of a block drafter has them, too */

        if (own && op_has_pages(op) && !again)
            s->n_kv_values[op->kv.cls] += 2ull * op->heads.n_kv * op->heads.dim;
        if (!has_state(op->kind))
            continue;
        s->state.n_layer += own;
        before += op->layer < layers->first;
    }
    return before;
}

/* Divides the shape: a rank has some of the heads of recurrent layers, with their states, or of
 * latent attention; its kernels do not know the heads of other ranks. */
static void divide_shape(struct be *b) {
    struct model_shape *s = &b->group.shape;

    b->recurrent.n_all = b->shape->state.n_layer;
    if (b->group.n == 1 && is_first_device(b) && has_last_layer(b))
        return;
    *s = *b->shape;
    b->shape = s;
    if (b->group.n == 1) {
        if (!has_last_layer(b))
            s->drafts = 0;
        b->recurrent.first = cuda_select_layers(s, &b->group.layers);
        return;
    }
    assert(s->mla.rank == 0 || s->n_head % b->group.n == 0);
    if (s->mla.rank)
        s->n_head /= b->group.n;
    if (s->state.n_layer == 0)
        return;
    assert(s->delta.n_key_head > 0 && s->delta.n_key_head % b->group.n == 0);
    s->delta.n_key_head /= b->group.n;
    s->delta.n_value_head /= b->group.n;
    for (int i = 0; i < OP_MATRICES; i++)
        s->state.n_in[i] /= b->group.n;
    s->state.n_out /= b->group.n;
    s->state.n_floats /= b->group.n;
}

struct head_pieces rank_value_heads(const struct be *b) {
    const struct delta_shape *d = &b->shape->delta;

    return d->tiled ? (struct head_pieces){d->n_value_head / d->n_key_head,
                                           d->n_key_head * b->group.n, d->n_key_head}
                    : (struct head_pieces){1, d->n_value_head * b->group.n, d->n_value_head};
}

/* Called before open(): fills a temporary backend only to compute the sums. */
int cuda_room(const struct model_shape *shape, const struct engine_opts *opts,
              const struct rank *rank, uint64_t *bytes, struct err *err) {
    CLEANUP(freep) struct be *b = calloc(1, sizeof(*b));
    struct engine_opts o = *opts;
    int r = cuda_check_shape(shape, err);

    if (!b || r < 0)
        return b ? r : -ENOMEM;
    if (!o.max_context)
        o.max_context = shape->max_context;
    b->api = cuda_api();
    b->shape = shape;
    b->opts = &o;
    set_rank(b, rank);
    divide_shape(b);
    cuda_size_pages(b, shape);
    TRY(find_device(b->api, b->about.number, &b->about.device, err));
    if (cuda_load_kernels(b) < 0)
        return err_set(err, 0, NULL, "loading the kernels: %s", b->fault.text);
    return cuda_memory_room(b, bytes, err);
}

int cuda_rooms(const struct model_shape *shape, const struct engine_opts *opts,
               const struct rank *rank, uint32_t n, uint64_t *bytes, struct err *err) {
    uint64_t before = 0, sum = 0;

    for (uint32_t waited = 0; waited == 0 || (sum > before && waited < MEMORY_WAIT_MS);
         waited += 100) {
        if (waited)
            nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
        before = sum;
        sum = 0;
        for (uint32_t i = n; i-- > 0; sum += bytes[i])
            TRY(cuda_room(shape, opts, &rank[i], &bytes[i], err));
    }
    return 0;
}

/* Returns the configured device. */
static struct rank only(const struct engine_opts *o) {
    uint32_t number[ENGINE_DEVICES];
    uint32_t n = devices_of(o, number);

    assert(n == 1);
    return (struct rank){(int)number[0], 0, 1, {0, 0}};
}

static int room(const struct model_shape *shape, const struct engine_opts *opts, uint64_t *bytes,
                struct err *err) {
    const struct rank rank = only(opts);

    return cuda_rooms(shape, opts, &rank, 1, bytes, err);
}

/* Opens the backend of the host's experts or FFNs, if there are any. Returns 0 or -errno with
 * @err. */
static int open_host(struct be *b, const struct be_opts *o, struct err *err) {
    struct model_shape shape = *o->shape;

    if (!has_host(b))
        return 0;
    assert(o->host_experts);
    if (shape.n_host_ffn) {
        assert(shape.n_expert == 0);
        shape.n_expert = shape.n_expert_used = 1;
        shape.n_ff_expert = shape.n_ff;
    }
    b->experts.host_ops = o->host_experts;
    return o->host_experts->open(&b->experts.host, &shape, o->engine, err);
}

/* Enables early launches (programmatic dependent launch) if the kernels wait for the previous one:
 * their code is for compute capability 9.0 or later. Not beside experts on the host: a kernel could
 * start while the host still computes its operands. WEFT_CUDA_EARLY=0 turns it off;
 * WEFT_CUDA_TRIGGER=0 lets each kernel start only when the previous one waits. */
static void choose_early(struct be *b) {
    b->ways.late = !cuda_wants("TRIGGER");
    b->ways.early = b->ways.wants_early =
        b->about.device.made_for >= 90 && !has_host_part(b->shape) && cuda_wants("EARLY");
}

/* Loads the kernels for the device that was found, allocates its memory, and tests it. */
static int prepare_found(struct be *b, const struct be_opts *o, struct err *err) {
    assert(b->about.device.n_multiprocessors > 0);
    snprintf(b->about.isa, sizeof(b->about.isa), "sm_%d%d%s", b->about.device.major,
             b->about.device.minor, b->ways.fixed ? "-static" : "");
    TRY(cuda_load_kernels(b));
    TRY(cuda_memory_open(b, err));
    TRY(open_host(b, o, err));
    TRY(upload_tables(b));
    TRY(cuda_selftest(b, err));
    choose_early(b);
    return 0;
}

/* Finds the device and prepares it. */
static int cuda_prepare(struct be *b, const struct be_opts *o, struct err *err) {
    TRY(find_device(b->api, b->about.number, &b->about.device, err));
    int r = prepare_found(b, o, err);
    if (r == -EIO)
        err_set(err, 0, NULL, "opening the device: %s", b->fault.text);
    return r;
}

/* Opens a device without weights, which load() brings later. */
int cuda_open(struct be **out, const struct be_opts *o, const struct rank *rank, struct err *err) {
    TRY(cuda_check_shape(o->shape, err));
    struct be *b = calloc(1, sizeof(*b));

    if (!b)
        return -ENOMEM;
    b->api = cuda_api();
    b->shape = o->shape;
    b->opts = o->engine;
    b->memory.kv[KV_GLOBAL].n_pages = o->n_pages;
    b->memory.kv[KV_WINDOW].n_pages = o->n_windows;
    assert(o->n_host_states <= o->n_states);
    b->recurrent.n_states = o->n_states;
    b->recurrent.n_device = o->n_states - o->n_host_states;
    set_rank(b, rank);
    divide_shape(b);
    if (b->shape->drafts)
        b->draft.of.n_slots = o->n_slots;
    else
        b->draft.of.n_slots = 0;
    cuda_size_pages(b, o->shape);
    cuda_read_environment(b);
    int r = cuda_prepare(b, o, err);
    if (r < 0) {
        cuda_close(b);
        return r;
    }
    *out = b;
    return 0;
}

static int cuda_open_be(struct be **out, const struct be_opts *o, struct err *err) {
    const struct rank rank = only(o->engine);

    return cuda_open(out, o, &rank, err);
}

static const char *cuda_isa(const struct be *b) {
    return b->about.isa;
}

static const char *cuda_address(const struct be *b, uint32_t i) {
    if (i)
        return "";
    return b->about.device.address;
}

static uint32_t cuda_n_threads(const struct be *b) {
    return 0;
}

/* Variants that engine/prove.c may turn off: graphs, early launches, products with an epilogue that
 * replaces the next kernel, and expert_vec. */
static bool cuda_variant(struct be *b, uint32_t i, bool use, const char **name) {
    static const char *const names[] = {"graphs", "early launch", "fused kernels", "expert_vec"};

    bool either = (b->shape->n_expert || b->shape->mla.rank) && b->experts.vec != WAY_FAILED &&
                  b->experts.wide == WAY_ON;

    if (i >= ARRAY_SIZE(names) - !either)
        return false;
    *name = names[i];
    graph_forget(b);
    if (i == 0)
        b->graphs.on = use && b->ways.wants_graphs;
    else if (i == 1)
        b->ways.early = use && b->ways.wants_early;
    else if (i == 2)
        b->ways.fuse = use && b->ways.wants_fuse;
    else
        b->experts.vec = use ? WAY_ON : WAY_OFF;
    return true;
}

/* Begins or ends the proof. Its steps are not requests: their graphs are not kept, their picks of
 * experts are not counted, and rows attend to fewer blocks. */
static bool cuda_proving(struct be *b, bool on) {
    if (!cuda_wants("CHECK"))
        return false;
    graph_forget(b);
    b->indexer.n_best =
        MIN(b->indexer.most, on ? MAX(PROOF_BLOCKS, b->shape->sparse.n_local) : UINT32_MAX);
    if (!on)
        cuda_clear_picks(b);
    return true;
}

/* Has a step of each size of graphs, then a prompt of each class of rows of products that are
 * timed. Afterwards none is timed: a request would wait for it. Steps with a part on the host are
 * too slow to be computed for this; their products are timed when they are first needed. */
static uint32_t cuda_warm(struct be *b, uint32_t i, bool *apart) {
    struct products *p = &b->products;

    if (!b->ways.warms)
        return 0;
    uint32_t n_rows = graph_rows(i);

    *apart = n_rows > 0;
    if (n_rows == 0 && p->timed)
        n_rows = product_class(i - GRAPHS);
    p->timing = p->timed && n_rows > 0;
    if (n_rows == 0)
        cuda_clear_picks(b);
    return n_rows;
}

static bool cuda_coarse(const struct be *b) {
    return b->products.planes == 2;
}

static const uint64_t *picks(const struct be *b) {
    assert(!b->experts.counted || (b->sampling.last && b->experts.host_picks));
    if (b->experts.counted && b->sampling.last->ended == b->experts.counted)
        return b->experts.host_picks;
    return NULL;
}

static const char *cuda_note(const struct be *b) {
    return b->about.note;
}

static const char *fault(const struct be *b) {
    if (!b->fault.lost)
        return "";
    return b->fault.text;
}

static void *cuda_host_page(struct be *b, uint32_t page) {
    assert(page < b->opts->n_host_pages);
    return b->memory.host_pages + page * b->memory.kv[KV_GLOBAL].all_bytes;
}

/* be_ops.peek: NULL during a step, and for wants whose logits were overwritten. */
static const float *cuda_peek(const struct be *b, uint32_t want) {
    size_t n = b->shape->n_vocab;

    assert(want < b->opts->max_wants);
    if (b->fault.lost || !b->sampling.last || b->step[0].batch || b->step[1].batch ||
        want >= b->sampling.last_wants || b->sampling.last->n_scored > LOGIT_ROWS ||
        b->api->copy(b->sampling.peeked, b->sampling.logits + b->sampling.last->place[want] * n,
                     n * sizeof(float), CUDA_TO_HOST, b->queue.stream) ||
        b->api->stream_wait(b->queue.stream))
        return NULL;
    return b->sampling.peeked;
}

const struct be_ops weft_backend_cuda = {
    .abi = BACKEND_ABI,
    .name = "cuda",
    .build_id = {ENGINE_BUILD_ID},
    .sources = {ENGINE_SOURCES},
    .depth = 2,
    .device = true,
    .hidden = true,
    .latent_once = true,
    .vision = &vis_cuda,
    .probe = cuda_probe,
    .several = several_ops,
    .room = room,
    .open = cuda_open_be,
    .close = cuda_close,
    .isa = cuda_isa,
    .address = cuda_address,
    .n_threads = cuda_n_threads,
    .variant = cuda_variant,
    .proving = cuda_proving,
    .warm = cuda_warm,
    .coarse = cuda_coarse,
    .note = cuda_note,
    .picks = picks,
    .fault = fault,
    .load = cuda_load,
    .begin = step_begin,
    .op = cuda_ops,
    .mask = step_mask,
    .sample = step_sample,
    .end = step_end,
    .copy = step_copy,
    .copy_state = step_copy_state,
    .host_page = cuda_host_page,
    .host_state = step_host_state,
    .peek = cuda_peek,
};
