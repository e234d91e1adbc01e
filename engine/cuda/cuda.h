#pragma once

/*
 * cuda - the backend's state, private to engine/cuda. One stream: everything a step enqueues runs
 * in order, so two steps may be in flight over the same buffers; only what the host writes or reads
 * is there twice (struct step, one for even and one for odd steps).
 *
 *     open   memory.c counts and allocates everything but the weights; refuses with the sum
 *     load   load.c   file -> pinned buffer -> device -> tiles, two buffers alternately
 *     begin  step.c   rows and page tables in one upload; op by op, kernels are enqueued,
 *            graph.c  or all at once
 *     seal   seal.c   masks and parameters in a second upload; sampling; results on their way back
 *     end    step.c   waits for the step's event
 *
 * A failing call is remembered (be.error) and answered with -EIO from then on.
 */

#include "engine/backend.h"
#include "engine/cuda/condensed/kernels_condensed.h"
#include "engine/cuda/cuda_api.h"
#include "engine/cuda/ranks/kernels_ranks.h"
#include "engine/cuda/sparse/kernels_sparse.h"
#include "engine/cuda/streams/kernels_streams.h"
#include "engine/kept.h"
#include "engine/picture_rows.h"
#include "engine/sampler.h"

#define LOGIT_ROWS 128u           /* wants whose logits exist at a time; more are done in rounds */
#define LOAD_BYTES (16u << 20)    /* size of each of the two buffers that weights pass through */
#define WAIT_LIMIT_NS 60000000000 /* a device that does not reach an event by then is lost */
#define MEMORY_WAIT_MS 10000u     /* for memory that another process is about to give back */
#define LIST_MAX 4096u            /* bias entries, and bans, of a sequence */
#define WIDE_ROWS 128u            /* be.attention.wide_rows: no graph is larger */
#define HEAD_VALUES 512u          /* most values of a head */
/* Most pairs of an expert, on average, that expert_vec takes: an item of 64 pairs of expert_wide
 * takes about as many instructions as three items of 8 (docs/measurements/cuda.md). */
#define FEW_PAIRS 16u
/* Devices that divide the layers compute a batch in up to PARTS parts of PART_ROWS rows or more
 * (docs/design/cuda-devices.md). */
#define PART_ROWS 128u
#define PARTS 8u
#define GRAPHS 8u /* sizes of steps that are launched as one (graph.c) */

struct vis_ops;
extern const struct vis_ops vis_cuda;         /* image encoders on one device (vision/vision.c) */
extern const struct be_ops weft_backend_cuda; /* of one device; BACKEND_CUDA_SYMBOL */

struct region { /* an allocation */
    void **where;
    size_t bytes;
    bool host;
    const char *what;
};

/* Memory that the host fills and uploads: the same offsets on both sides. Of several uploads to one
 * place that are under way at once, @host has room for each: this one's is number @turn. Invariant:
 * used <= size; what lies below @used is not written again until the copy that reads it is over. */
struct staging {
    uint8_t *host, *device;
    size_t size, used;
    uint32_t turn;
};

/* Sizes that the grids of a step are made for: those of the batch, or larger ones (graph.c). */
struct step_grid {
    uint32_t rows, seqs, wants;
};

/*
 * One of the two steps that may be in flight. Life: idle (batch NULL) -> step_begin -> the ops ->
 * step_sample -> step_end, which makes it idle again. Invariants: n_scored + n_hidden == n_wants of
 * the batch; `recorded` means that the event follows all that was enqueued for the step.
 */
struct step {
    struct be *be;
    const struct engine_batch *batch; /* NULL: idle */
    /* rows: on the device the same for both steps; turn 0: of the whole batch, else of a part of
     * it. */
    struct staging rows, wants;
    void *event;
    bool recorded;  /* the event stands at the end of the step */
    uint64_t ended; /* number of the last one */
    struct step_grid grid;
    uint32_t graph;        /* index among the graphs of its pass; GRAPHS: none */
    const uint32_t **mask; /* [max_wants] the caller's, or NULL; of scored wants */
    /* Wants with logits, and the place of each of the batch's wants among those of its kind
     * (hidden.c). */
    uint32_t n_scored, n_hidden, *scored, *place; /* [max_wants] */
    float *hidden_host;                           /* [max_wants][n_embd] */
    int32_t *sampled;                             /* device [max_wants] */
    struct sample_out *out_device, *out_host;
    struct engine_out *out;       /* [max_wants] */
    struct engine_top *top;       /* [max_wants][ENGINE_TOP_MAX] */
    const struct weights *head;   /* weights of the logits */
    const struct weights *select; /* the selector or chain among them, or NULL */
    /* Op whose result is added to x with the op behind it: EXPERTS, PROJ or JOIN; NULL: none. */
    const struct model_op *due;
    struct left left;             /* split-K sums of the PROJ that is due; no sums: y is complete */
    const struct weights *routed; /* ROUTE's weights, for EXPERTS */
    const struct weights *shared; /* expert of all rows */
    bool gated;                   /* be.act.o is not multiplied by its gates yet */
    bool packed;                  /* be.act.packed holds what the next matrices take */
    bool many_share;              /* attend_many_share() */
    bool pictures;                /* rows of pictures are among those of the batch */
    bool kept, paired;            /* KEEP, DRAFT_IN have been launched (draft.c) */
    bool listed;                  /* be.latent.item is that of this step */
    struct heads planned; /* heads for which attention's work list was made; n 0: none yet */
    /* Epilogue that makes ACT_H of be.act.gate: PLAIN copies it, others multiply it with up. */
    struct {
        enum pack_kind kind;
        const float *up;
        uint32_t up_stride; /* 0: as wide as the gates */
    } ff;
};

/* Weights of an op as cuda_load() made them; only the fields of its kind are set. The pointers lead
 * to device memory, which be.load.weights owns. */
struct weights {
    struct weights *next;
    struct matrix m[MATMUL_MATRICES]; /* QKV: the gates of attention's output are the fourth */
    uint32_t n_mats, n_in;
    const struct tensor *of[MATMUL_MATRICES]; /* NULL: a part of a tensor, or with a bias */
    float most[MATMUL_MATRICES];              /* the largest scale of each */
    struct weights *rank[RANKS];              /* ranks.c: of each device; rank[0] are these */
    struct weights *down;                     /* SHARED, MIX: m[0] */
    float scale, cap;                         /* LOGITS */
    float table_scale;                        /* NGRAM: factor of the rows */
    struct tile_source raw;       /* OP_EMBED: data is NULL while the rows are those of m[0] */
    struct tile_source after_raw; /* SELECT, CHAIN: successors; raw: predecessors */
    const struct tensor *embedding;
    struct be *be; /* EXPERTS of which some are the host's, or its FFN, and which layer of it */
    uint32_t host_layer, n_experts;       /* n_experts: that the device has or reads */
    const uint8_t *host[MATMUL_MATRICES]; /* EXPERTS that are fetched: tiles of all experts */
    float *norm, *post_norm, *q_norm, *k_norm;
    float *pick_bias, *weigh;                    /* by expert */
    float *sinks;                                /* by head */
    float *gate;                                 /* SHARED: [n_in] */
    float *taps, *dt, *decay, *skip, *conv_bias; /* struct delta_args, mamba_args, conv_args */
};

/* A kernel and its grid; what: its name, for be.error. */
struct launch {
    const void *kernel;
    uint32_t grid_x, grid_y, n_threads;
    const char *what;
    uint32_t shared;
};

/* A class of pages. Those of a layer lie together, behind those of the layers before it. */
struct kv_class {
    uint32_t n_pages;
    uint8_t *pages;
    size_t page_bytes; /* size of a page of all layers that the device has */
    size_t all_bytes;  /* size of a page of host memory, which all devices share */
    /* By layer among those of the class: size of a page, of the device (0: another has the layer)
     * and of all. Behind the layers with keys and values: the keys of sparse_page_bytes(). */
    size_t layer_bytes[MODEL_LAYERS_MAX + 1], all_layer_bytes[MODEL_LAYERS_MAX + 1];
};

/* Layers [first, end) of a model. */
struct layers {
    uint32_t first, end;
};

/* A struct launch and its argument, a struct host_call, or a struct meeting. */
enum note { NOTE_LAUNCH, NOTE_CALL, NOTE_MEETING };

/* Invariant: a step notes its launches or replays a graph or does neither, never both. */
struct graphs {
    bool on, noting, replaying;     /* state of the step that is being launched */
    void *graph[PASSES][2][GRAPHS]; /* by pass; 1: step.many_share; NULL: not yet */
    struct {
        struct be *be;
        enum note kind;
        struct launch launch;
        bool early; /* launched early (PDL) */
        _Alignas(16) uint8_t args[1024];
    } * note; /* [capacity] */
    uint32_t n_notes, capacity;
};

/* Activations of a step: [max_rows] rows each. */
struct activations {
    /* q and o are free behind attention's output: they then hold what a layer's branches have not
     * added to x yet, and products in front of their norm (residual.c). */
    float *x, *q, *k, *v, *o, *gate, *up;
    uint16_t *packed;
    float *scale;             /* [max_rows], of packed rows */
    float *own_t;             /* the rank's columns of what is added to x; NULL: one device */
    float *rope[ROPE_TABLES]; /* [n_rot / 2][2] */
    float *factor;            /* [max_rows] of queries: temper_at() */
    float *o_gate;            /* gates of attention's output, as wide as o */
    float *layer_input;       /* ACT_P */
};

/* Attention. Invariant: the work list has room for every batch (plan.cu). */
struct attention {
    struct attn_item *item, *wide_item; /* [max_items] */
    struct attn_merge *merge;           /* [max_merges] */
    float *partial;                     /* results of chunks; sums of shared segments */
    size_t partial_bytes;
    uint32_t max_items, max_merges;
    struct temper temper; /* equal for all layers */
    uint32_t wide_rows;   /* steps of more rows have ATTN_WIDE queries a block */
    bool bulk;            /* attend_latent_bulk is right here */
    bool shares;          /* sequences on the same pages share their items */
    bool no_many;         /* found wrong: sharing by attend_wide */
};

/* Kernel and split-K factor of a product of many rows: rows of activations of a panel,
 * MATMUL_COLUMNS or WGMMA_ROWS; blocks that share its segments, a power of two. */
struct product_way {
    uint32_t block_rows, n_splits;
};

#define CHOICES 128u /* shapes of products and classes of rows that are timed, at most */

/* Products. Invariant: n_choices <= CHOICES. */
struct products {
    bool no_matvec, no_split; /* found wrong: matvec, shared segments */
    bool wgmma, cores;        /* wgmma is right here; the op's rows are packed for it */
    uint32_t planes;          /* PACK_PLANES of the kernels here */
    bool timed;               /* ways are chosen by their times (choose.c) */
    void *from, *to;          /* timers, once anything was timed */
    struct choice {
        struct {
            uint32_t format, n_out;
        } m[MATMUL_MATRICES];
        uint32_t n_mats, n_in, n_rows, cores, gated;
        struct product_way way; /* the last field: what is chosen for the others */
    } choice[CHOICES];
    uint32_t n_choices;
};

/* Experts; a pair is a row's pick (kernels.h). Invariant: no_vec and no_wide are never both set. */
struct experts {
    float *logits, *weight;          /* [max_rows][n_expert], [pairs] */
    float *gate, *up, *y;            /* [pairs][n_ff_expert], likewise, [pairs][n_embd] */
    float *shared;                   /* [max_rows][n_embd] of the expert of all rows */
    uint32_t *expert, *list, *count; /* [pairs], [n_expert][max_rows], route_args.count */
    struct expert_item *item;        /* [experts_items()] */
    uint32_t *n_items;
    uint32_t *slot; /* [n_layer][n_expert]: route_args.slot, or expert_slots.slot */
    /* expert_slots by layer, [n_layer][n_expert + 1] each, and the moves of the layer at hand. */
    uint32_t *slot_expert, *slot_since, *n_moves, (*move)[2];
    /* route_args.picks by layer and expert, then expert_slots.n_missed of all; the host's copy is
     * of step @counted. */
    uint64_t *picks, *host_picks;
    uint64_t counted;
    bool no_vec, no_wide, wants_vec; /* left out; wants_vec: not found wrong by the self-test */
    /* Exchange with the host's experts, in pinned memory. A dense FFN is one expert. */
    const struct host_experts_ops *host_ops;
    struct host_experts *host;         /* NULL: the host has no experts */
    uint32_t n_host;                   /* layers that were loaded */
    const struct tensor *norm;         /* norm of the ROUTE op that was loaded last */
    float *host_x, *host_y;            /* [max_rows][n_embd], [pairs][n_embd] */
    uint32_t *host_expert, *host_rows; /* [pairs]; of the step */
};

/* Latent attention. */
struct latent {
    float *q, *r;             /* [max_rows][n_head][query], [max_rows][q_rank] */
    uint32_t *list, *n_items; /* list: [n_head][max_rows] */
    struct expert_item *item; /* [latent_items()] */
};

/* Recurrent layers. */
struct recurrent {
    float *in[OP_MATRICES], *c, *mix, *out; /* struct delta_args */
    /* [n_states][layers][n_floats]; those from n_device on lie in pinned host memory, of all ranks
     * together. */
    float *state, *host_state;
    uint32_t n_states, n_device;
    uint32_t first, n_all; /* recurrent layers before the device's, and of the model */
};

/* Drafts by the model's own block: hidden states of the step's rows, those that are kept, and the
 * input of DRAFT_IN. By a block drafter: inputs of the model's layers, taps of convolutions, whose
 * rows are in hidden, and what struct select_args or chain_args (best is pick) have. */
struct draft {
    float *hidden, *kept, *pair; /* [max_rows][hidden_width()], [n_slots][ENGINE_KEPT][that],
                                    [max_rows][2 n_embd] */
    float *x;                    /* where the hidden states are streams: x, [max_rows][n_embd] */
    float *tap, *d, *g;          /* tap: [max_rows][n_taps][n_embd] */
    uint64_t *pick;
    int32_t *best;
    struct kept of; /* state behind the step that was launched last */
};

/* Logits and sampling. */
struct sampling {
    float *logits, *z;          /* [LOGIT_ROWS][n_vocab] */
    struct sample_state *state; /* [LOGIT_ROWS] */
    int32_t *sampled;           /* [2][max_wants]: of even and of odd steps */
    float *hidden;              /* [max_wants][n_embd] */
    uint16_t *packed;           /* wanted rows, for the logits */
    float *scale;               /* [max_wants] of these */
    /* Step that ended last, and the number of its wants: peek() shows them. */
    const struct step *last;
    uint32_t last_wants;
    float *peeked;       /* host [n_vocab]: logits for peek(), or of a row that the host samples */
    uint32_t *count;     /* host [n_vocab]: zero between uses */
    struct sampler host; /* for parameters that the kernels do not have */
};

/* Memory of the weights: @used bytes of @size are in use, used <= size. */
struct pool {
    uint8_t *at;
    size_t used, size;
};

/* Loading of weights. */
struct loading {
    struct {
        uint8_t *host, *device; /* [bytes] */
        void *event;
        bool busy;
    } buffer[2];
    size_t bytes;        /* LOAD_BYTES, or a row of tiles */
    struct pool weights; /* memory of the device */
    struct pool host;    /* pinned memory of experts that are fetched */
    double *freq[ROPE_TABLES];
    uint8_t *axis[ROPE_TABLES]; /* rope_set.axis */
    struct blk_grids *grids;
    struct tile_grids *tile_grids;
    struct repack_found *found, *found_host;
};

/* Invariants: allocations are region[0 .. n_regions); once lost, always lost, with the reason in
 * error. */
struct be {
    const struct cuda_api *api;
    const struct model_shape *shape; /* the model's, or, of one of several devices, @divided */
    /* Shape with the rank's own heads of recurrent layers, or of latent attention, or with the keys
     * and states of the device's layers. */
    struct model_shape divided;
    const struct engine_opts *opts;
    struct cuda_device device;
    /* Device @number of the runtime's is that of rank @rank of @n_ranks; ranks: all devices of
     * several; first: of ranks that divide matrices, or the device itself, which has the graphs of
     * all. */
    int number;
    uint32_t rank, n_ranks;
    struct ranks *ranks;
    struct be *first;
    struct layers layers; /* all, but of devices that divide them (layers.c) */
    bool waits;  /* the next launch is not early: cuda_settle(), or events of other devices */
    void *ready; /* event: what other devices take from this one is there */
    /* Pinned memory: x behind the layers before, and what a block drafter reads of these, of even
     * and of odd steps; be.sampling.sampled of the last device, for the first. */
    struct {
        float *x[2], *tap[2];
        int32_t *sampled;
    } handed;
    char isa[ENGINE_DEVICES * 16], error[200];
    char note[300]; /* ways that the self-test left out; "" */
    bool lost;
    bool stuck; /* lost, and nothing that waits for the device may be called */
    struct {
        int64_t wait_ns;
        uint32_t memory_ms;
    } limits;
    /* Settings; wants_: not found wrong by the self-test. */
    struct {
        bool fuse, wants_fuse;   /* products gate, residual() adds up sums */
        bool early, wants_early; /* cuda_api.launch */
    } ways;
    uint32_t page_capacity; /* most entries of a batch's page tables */
    /* Places of a batch's rows among pictures: [max_rows], for the upload; NULL: the model takes no
     * pictures. */
    struct picture_row *picture_row;
    struct kv_class kv[PAGE_CLASSES];
    uint8_t *host_pages; /* pages of KV_GLOBAL in pinned memory */
    void *stream;
    struct cuda_side side; /* stream for calls of the host, of models with experts of the host */
    struct region region[112];
    uint32_t n_regions;
    struct step step[2]; /* step s has step[s % 2] */
    struct weights *weights;
    struct graphs graphs;    /* used on the first rank only */
    struct batch_head *head; /* on the device: where the rows upload goes */
    /* [multiprocessors], one for a panel with shared segments; zeros between kernels */
    uint32_t *arrived;
    struct loading load;
    struct activations act;
    struct products products;
    struct attention attention;
    struct latent latent;
    struct experts experts;
    struct recurrent recurrent;
    struct condensed condensed;
    struct streams streams;
    struct sparse sparse;
    struct draft draft;
    struct sampling sampling;
    uint8_t *picture_memory; /* buffers of the image encoder, model_shape.picture_buffers */
};

/* Returns 0, or -EIO if @error is an error of the runtime or the device was lost before. The first
 * error is kept in be.error with @what, the name of the call; from then on be.lost is set. */
int cuda_check(struct be *b, int error, const char *what);
/* Enqueue a copy of @n bytes, or @n times @byte to memory of the device. Return 0 or -EIO. */
int cuda_copy(struct be *b, void *to, const void *from, size_t n, enum cuda_direction dir);
int cuda_fill(struct be *b, void *d, int byte, size_t n);
/* Waits until the device has reached @event. Returns 0, or -EIO as cuda_check() does; after
 * be.limits.wait_ns without an answer also be.stuck is set. */
int cuda_wait_event(struct be *b, void *event, const char *what);

/* Returns the first of @n columns, or rows of a matrix, that rank @r of @n_ranks has. */
static inline uint32_t rank_cut(uint64_t n, uint32_t r, uint32_t n_ranks) {
    return (uint32_t)(n * r / n_ranks);
}

/* Value heads of a rank: @n pieces of @own heads, @stride of the model's heads apart. Piece 0
 * begins with head rank * own. */
struct head_pieces {
    uint32_t n, stride, own;
};
/* Returns the value heads of the rank, from @b's shape. */
struct head_pieces rank_value_heads(const struct be *b);

/* Returns true if the device fetches experts of @layer that it does not have. */
static inline bool fetches_in(const struct be *b, uint32_t layer) {
    return b->shape->fetches && n_host_experts(b->shape, layer) > 0;
}

/* Returns true if the host computes beside this device: of several, beside the first. */
static inline bool has_host(const struct be *b) {
    return b->rank == 0 && has_host_part(b->shape);
}

/* Returns true for the device that has the embedding, and the one that has the logits. */
static inline bool is_first_device(const struct be *b) {
    return b->rank == 0 && b->layers.first == 0;
}
static inline bool has_last_layer(const struct be *b) {
    return b->layers.end == b->shape->n_layer;
}

/* Returns true for the device that embeds tokens of the block that drafts by the model's matrix. */
static inline bool embeds_drafts(const struct be *b) {
    const struct model_shape *s = b->shape;
    const struct tensor *first = NULL;

    for (uint32_t i = 0; i < s->n_ops && s->drafts && has_last_layer(b); i++) {
        if (s->op[i].kind != OP_EMBED)
            continue;
        if (first == s->op[i].w[0])
            return true;
        first = first ? first : s->op[i].w[0];
    }
    return false;
}

/* Returns true for an op that writes keys and values of a layer of its own. */
static inline bool op_has_pages(const struct model_op *op) {
    return op->kind == OP_KEYS || op->kind == OP_MLA_KV || (op->kind == OP_QKV && op->w[1]);
}

/* Sets the values of keys, and the recurrent layers, of @s to those of @layers, the last of which
 * has the block that drafts behind it. Returns the number of recurrent layers before these. */
uint32_t cuda_take_layers(struct model_shape *s, const struct layers *layers);

/* Implements be_ops.open for device @number as rank @rank of @n_ranks, or with some of the layers
 * (end 0: all), and be_ops.close. */
struct rank {
    int number;
    uint32_t rank, n_ranks;
    struct layers layers;
};
int cuda_open(struct be **out, const struct be_opts *o, const struct rank *rank, struct err *err);
struct be *cuda_close(struct be *b);
/* Implements be_ops.room for one device, by the memory that is free now. */
int cuda_room(const struct model_shape *shape, const struct engine_opts *opts,
              const struct rank *rank, uint64_t *bytes, struct err *err);
/* Finds cuda_room() of @n devices, the first of which is used then, once a process that ends has
 * given its memory back: what is free on all of them no longer grows. */
int cuda_rooms(const struct model_shape *shape, const struct engine_opts *opts,
               const struct rank *rank, uint32_t n, uint64_t *bytes, struct err *err);

/* Counts all memory that the backend will ever need (regions, staging, steps, weights), compares
 * the sum with the free memory, and allocates it; cuda_load() fills the weights. Returns 0, -ENOMEM
 * with the sum in @err, or -EIO. cuda_memory_close() frees all that there is, also after a
 * failure. */
int cuda_memory_open(struct be *b, struct err *err);
void cuda_memory_close(struct be *b);
/* Finds the bytes that pages may take, for a backend that is not open: only api, shape, opts and
 * page are set. Returns 0 or -EINVAL. */
int cuda_memory_room(struct be *b, uint64_t *bytes, struct err *err);
/* Returns the most that one rank has of @n columns or rows (ranks.c). */
uint32_t cuda_rank_share(const struct be *b, uint32_t n);
/* Return the bytes of all weights: also of the image encoder, and of the blocks that draft, whose
 * norms of keys and of hidden states are there twice; of the tiles of layers whose experts are
 * fetched, which the host has. */
uint64_t cuda_weight_bytes(const struct be *b);
uint64_t cuda_fetched_bytes(const struct be *b);
/* Scales all tiles of @m (@n_row_tiles: of all its experts) by @most, their largest scale, and sets
 * @m.inverse; called behind repack. Waits for the device. Returns 0 or -EIO. */
int cuda_scale_tiles(struct be *b, struct matrix *m, uint32_t n_row_tiles, float most);
/* Implements be_ops.load: brings the op's tensors to the device, matrices as tiles. Ops come in the
 * model's order, so that a tied output lends its tiles to the embedding before it. */
int cuda_load(struct be *b, const struct model_op *op, struct weights **out, struct err *err);
/* Copies @n bytes to the device while weights are loaded. Returns 0 or -EIO. */
int cuda_load_bytes(struct be *b, const void *data, size_t n, void *to);
/* Brings a matrix of a projector with its bias, or NULL, to the device, as struct weights whose
 * m[0].y is not set; floats. Return 0 or -errno. */
int cuda_load_one(struct be *b, const struct tensor *t, const float *bias, struct weights **out,
                  struct err *err);
int cuda_load_floats(struct be *b, const float *v, size_t n, const float **out, struct err *err);
/* Returns @n bytes of the device, at most be.load.bytes, once it has done all that was enqueued,
 * or NULL; they stay until the next call of any of these. cuda_load_wait() waits: 0 or -EIO. */
const void *cuda_load_back(struct be *b, const void *from, size_t n);
int cuda_load_wait(struct be *b);
/* Frees the structs that cuda_load() made; their memory on the device is cuda_memory_close()'s. */
void cuda_unload(struct be *b);

/* Returns @n bytes of a staging area for the host to fill, or NULL where it is full; *device: their
 * place on the device. */
void *staging_take(struct staging *s, size_t n, const void **device);
/* Uploads all that was taken since @from bytes were in use. Returns 0 or -EIO. */
int staging_send(struct be *b, struct staging *s, size_t from);

/* Returns the number of ranks that divide a page; 1: each has all of it, as all heads of latent
 * attention share a key. */
uint32_t cuda_page_ranks(const struct be *b);
/* Returns the shape of a page of a layer with such heads. */
struct page_shape cuda_page_shape(const struct be *b, const struct heads *h);
/* Returns the bytes of a page for @n_values values of a token. */
size_t cuda_values_bytes(const struct be *b, uint64_t n_values);
/* Makes be.arrived zeros, after a kernel that may have left others. */
int cuda_clear_arrived(struct be *b);
/* Returns the queries of a block that has one chunk; the values of a head's result. */
uint32_t cuda_few(const struct be *b);
uint32_t cuda_head_values(const struct be *b, const struct heads *h);
/* Returns the results of chunks that be.attention.partial has room for. */
uint32_t cuda_partials(const struct be *b, const struct heads *h);

/* Enqueues a kernel with its one argument, @args of @n bytes. The launch is noted while the step's
 * graph is made, and skipped while one is replayed. A grid of 0 launches nothing. Returns 0 or
 * -EIO. */
int cuda_launch(struct be *b, const struct launch *l, const void *args, size_t n);
/* Orders the next launch behind all before it: it is not early, and kernels behind it may read what
 * was written until then above their wait_for_previous(). */
void cuda_settle(struct be *b);
/* Enqueues kernel NAME, which has no dynamic shared memory; @a: to its argument. */
#define CUDA_LAUNCH(b, NAME, x, y, n_threads, a)                                                   \
    cuda_launch(b, &(const struct launch){kernel_##NAME, x, y, n_threads, #NAME, 0}, a,            \
                sizeof(*(a)))
/* Enqueues a call of @fn on the host, noted or skipped as launches are. Kernels that follow run
 * beside it up to cuda_join(). Returns 0 or -EIO. */
int cuda_call(struct be *b, void (*fn)(void *ctx), void *ctx);
int cuda_join(struct be *b);
/* Copies @n_layers pages of struct copy_args, behind all that was enqueued. Returns 0 or -EIO. */
int cuda_copy_pages(struct be *b, const struct copy_args *a, uint32_t n_layers);
/* Operand of a product: packed rows on the device. */
struct operand {
    const uint16_t *packed;
    const float *scale;
    const uint32_t *count; /* rows that exist among n_rows; NULL: all */
    uint32_t n_rows;
    bool cores;   /* pack_args.cores */
    bool untimed; /* the way is not asked of the device */
    /* Product of one matrix whose shared segments the caller adds up; NULL: the kernel adds them
     * up. */
    struct left *left;
    /* Epilogue of a gate and an up: the kind, and whether the first y already is glu(gate, up);
     * gated NULL: the caller multiplies them. */
    enum pack_kind glu;
    bool *gated;
};
/* Returns the argument of matvec and matmul_wide for y (+)= W x, of all matrices of @w at once. */
struct matmul_args cuda_matmul_args(const struct weights *w, const struct operand *x, bool add);
/* Returns how many of @n blocks with @shared bytes of shared memory run at a time, with up to @most
 * of them on a multiprocessor. */
uint32_t cuda_resident_blocks(const struct be *b, uint32_t n, uint32_t shared, uint32_t most);
/* Returns true if one walk over tiles does for a gate and an up. */
bool cuda_are_alike(const struct matrix *gate, const struct matrix *up);
/* Launches matvec, for at most MATVEC_ROWS rows. Returns 0 or -EIO. */
int cuda_matvec(struct be *b, const struct matmul_args *a);
/* Computes y (+)= W x + bias by matvec, matmul_wide or wgmma; the bits are the same. */
int cuda_matmul(struct be *b, const struct weights *w, const struct operand *x, bool add);
/* Computes cuda_matmul() of many rows by matmul_wide, or, of rows that are packed for wgmma, by
 * matmul_wgmma. */
int cuda_matmul_wide(struct be *b, const struct weights *w, const struct operand *x, bool add,
                     struct product_way way);
/* Returns the panels of MATMUL_COLUMNS rows of a product; whether blocks may share their
 * segments. */
uint32_t cuda_panels(const struct weights *w, uint32_t n_rows);
bool cuda_can_split(const struct be *b, const struct weights *w, uint32_t n_rows);
/* Returns the argument of matmul_wide and matmul_wgmma for panels of @block_rows rows
 * (MATMUL_COLUMNS or WGMMA_ROWS). Sets *x->left, if the caller adds up shared segments, and
 * *x->gated, if gate and up are alike and no segments are shared. */
struct matmul_args cuda_wide_args(struct be *b, const struct weights *w, const struct operand *x,
                                  bool add, uint32_t block_rows, uint32_t n_splits);
/* Sets *way to how a product of many rows is computed. The first one of a shape and a class of rows
 * is computed in each way and timed, to where the step computes it; @add: to be.act.o, which is
 * free. Returns 0 or -EIO. */
int product_choose(struct be *b, const struct weights *w, const struct operand *x, bool add,
                   struct product_way *way);
/* Sets be.products.wgmma: matmul_wgmma is used. Returns 0 or -EIO. */
int wgmma_open(struct be *b);
/* Returns true if the rows of a step are packed for wgmma (be.products.cores), except those that
 * experts or heads of latent attention multiply. */
bool wgmma_takes(const struct be *b, uint32_t n_rows);
/* Runs the self-test at the end of open (selftest.c). A kernel with wrong results is left out where
 * a plainer one does the same work, and be.note says so. Returns 0, or an error with the reason. */
int cuda_selftest(struct be *b, struct err *err);
/* Returns false where the environment sets WEFT_CUDA_@what to 0. */
bool cuda_wants(const char *what);
/* Loads each kernel and allows it the shared memory that its launches ask for; called before the
 * device is asked how much memory is left. Returns 0 or -EIO. */
int cuda_load_kernels(struct be *b);

/* Follow the hidden states of a step: it begins; is the state before the sequence's first row
 * there; its rows are on their way. Models that do not draft have none. */
void draft_begin(struct step *s);
bool draft_has_before(const struct be *b, const struct engine_seq *s);
void draft_uploaded(struct step *s);
/* Divides the wants of a step that has begun into those with logits and those with hidden
 * states. */
void hidden_sort(struct step *s);
/* Copies the vectors of WANT_HIDDEN to the host, before the next step changes be.act.x. */
int hidden_launch(struct step *s);

/* Graphs of small steps: one for each size, made when a step of that size comes for the first time.
 * Returns 0 or -ENOMEM. */
int graph_open(struct be *b);
/* Frees all graphs; none is made from now on. */
void graph_close(struct be *b);
/* Frees all graphs, since steps are launched otherwise from now on. Nothing is in flight. */
void graph_forget(struct be *b);
/* Returns the most blocks of @few queries that a step makes, where @group heads share keys. */
uint32_t graph_blocks(const struct step *s, uint32_t group, uint32_t few);
/* Decides the grids of a step that has begun. Returns true if all of it is one launch, which
 * graph_launch() does. With several devices the first one decides, and the others take its grids
 * (graph_follow()). */
bool graph_begin(struct step *s);
void graph_follow(struct step *s, const struct step *first);
/* Launches the graph of the step's size: all of it up to the logits. */
int graph_launch(struct step *s);
/* Call of the host; without fn, the place where it is joined. */
struct host_call {
    void (*fn)(void *ctx);
    void *ctx;
};
/* Notes work that was enqueued on device @b for the first device's graphs; @l, @early: of a
 * launch. */
void graph_note(struct be *b, enum note kind, const struct launch *l, bool early, const void *args,
                size_t n);
/* Ends the notes of a step's pass: all its ops have been launched. */
void graph_end(struct step *s);

/* Functions of a step as be_ops has them: begin, the ops by kind, masks, sample, end.
 * Each enqueues and returns; only step_end() waits. They return 0, or -EIO with the reason in
 * be.error. */
int step_begin(struct be *b, const struct engine_batch *batch, struct step **out);
/* Parts of step_begin(): the upload of the batch, and the first launches, once the grids are
 * decided. */
int step_upload(struct be *b, const struct engine_batch *batch, struct step **out);
int step_start(struct step *s);
/* Enqueues an op of the step. Returns 0 or -EIO. */
typedef int step_op(struct step *s, const struct model_op *op);
step_op step_embed, step_norm_x, step_deep, step_qkv, step_attend, step_proj, step_gate_up,
    step_gate_in, step_layer_input, step_join, step_route, step_experts, step_shared, step_gate,
    step_in, step_delta, step_mamba, step_conv, step_keep, step_draft_in, step_keys, step_holes,
    step_tap, step_fuse, step_block_in, step_block_out, step_select, step_mla_q, step_mla_kv,
    step_mla_out, step_logits, step_spread, step_blend, step_mix, step_ngram, step_lean_in,
    step_lean_keys, step_lean_q, step_condense, step_pick, step_lean_attend, step_lean_out,
    step_index;
struct batch_head;
/* Chooses the blocks of all rows of the step; a->row0 is 0. */
int step_choose(struct step *s, struct pick_args *a);
/* Computes an ATTEND of the keys that the INDEX before has chosen. */
int sparse_attend(struct step *s, const struct model_op *op);
/* Fills in the rows' rotary positions, and the values and last keys of those that are pictures', in
 * the upload of the batch. Returns false where there is no room. */
bool pictures_fill(struct step *s, struct batch_head *h, uint32_t *last);
/* Returns true if so many queries of @batch may begin with the same pages that plan makes items of
 * many of them. It looks at the last page of the first chunk of sequences of one row that are
 * neighbours. */
bool attend_many_share(const struct be *b, const struct engine_batch *batch);
/* Parts of step_experts() on the device: be.experts.gate and up, with the kind of epilogue; the
 * downs of the packed rows. */
int experts_gates(struct step *s, const struct model_op *op, enum pack_kind *kind);
int experts_downs(struct step *s, const struct model_op *op);
/* Selects among the logits of wants [first, first + n), which were just computed, or adds to them
 * by the tokens before. */
int draft_select(struct step *s, uint32_t first, uint32_t n);
int step_mask(struct step *s, uint32_t want, const uint32_t *bits);
int step_sample(struct step *s);
int step_end(struct step *s, struct engine_result *out);
int step_copy(struct be *b, const struct engine_copy *c);
int step_copy_state(struct be *b, uint32_t src, uint32_t dst);
void *step_host_state(struct be *b, uint32_t state);

/* Packs the norm of x as the operand of the next matrices; NULL: x itself. */
int step_norm(struct step *s, const float *norm);
/* Returns true for steps of few rows, which matvec multiplies, with the gates of its results. */
bool step_fuses(const struct step *s);
/* Launches the sum that waits for the op behind it; x is not packed for that op. */
int step_release(struct step *s);
/* Returns the address of the pages of an op's layer. */
uint8_t *step_pages_of(const struct be *b, const struct model_op *op);
/* Returns the argument of store() for the product of @op's matrices. Without a matrix of their own
 * values are keys; without one of keys there are only queries. */
struct store_args step_store_args(const struct be *b, const struct model_op *op);
/* Computes y (+)= W x + bias of all rows of the step. */
int step_multiply(struct step *s, const struct weights *w, bool add);
/* Returns the argument of a pack of rows of x, @n values each, to be.act.packed. */
struct pack_args step_pack_args(const struct be *b, enum pack_kind kind, const float *x,
                                const float *weight, uint32_t n);
/* Packs rows of x as @kind has it to be.act.packed, unless they are there already. */
int step_pack(struct step *s, enum pack_kind kind, const float *x, const float *weight, uint32_t n);
int step_launch_pack(struct be *b, uint32_t n_rows, const struct pack_args *a);
/* Computes the gate and up of @w from packed rows; step_pack_ff() packs glu(gate, up). */
int step_gate_and_up(struct step *s, const struct weights *w, enum pack_kind glu);
/* Returns the kind of epilogue that multiplies an op's gate and up. */
enum pack_kind step_glu(const struct model_op *op);
/* Packs the result of step_gate_and_up(), @n values a row, to be.act.packed. */
int step_pack_ff(struct step *s, uint32_t n);
/* Returns the argument of route() for a ROUTE op. */
struct route_args experts_route_args(const struct step *s, const struct model_op *op);
/* Returns the most items of experts that a step may make. */
uint32_t experts_items(const struct be *b);
/* Returns true if products of @n_pairs are expert_vec's, else they are expert_wide's; the bits are
 * the same. */
bool experts_few(const struct be *b, uint64_t n_pairs, uint32_t n_experts);
/* Computes the product of @a by expert_vec (@few), for which it is cut, or by expert_wide; @most:
 * the most items. */
int experts_product(struct be *b, struct expert_args *a, bool few, uint32_t most);
/* Clears the counts of picks; sends them with the results of a step, where its number says so. */
int cuda_clear_picks(struct be *b);
/* Returns how many numbers be.experts.picks has. */
size_t cuda_n_picks(const struct be *b);
/* Loads expert_slots of a layer that is fetched: the experts of the device in their order. 0 or
 * -EIO. */
int experts_load_slots(struct be *b, uint32_t layer);
int experts_send_picks(struct step *s);
/* Hands the host's experts of an EXPERTS op over to the host. Returns 0 or -errno. */
int experts_load_host(struct be *b, struct weights *w, const struct model_op *op, struct err *err);
/* Hands a dense FFN of the host over, @op its GATE_UP, in front of its PROJ. Returns 0 or
 * -errno. */
int ffn_load_host(struct be *b, struct weights *w, const struct model_op *op, struct err *err);
/* Enqueues such an FFN: its result is in be.experts.host_y behind cuda_join(). */
int ffn_on_host(struct step *s, const struct model_op *op);
/* Adds the results of @op's experts to the device's columns of x, or, for a branch, stores their
 * sum, to @to; @pack: packs the row for the next op, or NULL. */
int experts_combine(struct step *s, const struct model_op *op, float *to,
                    const struct pack_args *pack);
/* Returns where a PROJ op's product goes: x itself, the room in front of its norm, or own_t with
 * the rank's columns. */
float *residual_target(const struct be *b, const struct model_op *op);
/* Adds the branch that is due: x = (x + gain t) * scale of a PROJ or JOIN op, or, with several
 * devices, x = t of an EXPERTS op. @pack as above. */
int residual_add(struct step *s, const struct model_op *op, const struct pack_args *pack);
/* Computes b = t of a PROJ op that is a branch, or b += t of such an EXPERTS op, whose sum is in
 * be.act.o. */
int residual_branch(struct step *s, const struct model_op *op);
/* Replaces each row of @n values of x by its rms norm times @norm. */
int residual_norm_rows(struct step *s, float *x, const float *norm, uint32_t n);
/* Returns the heads of latent attention, or the parts of condensed attention's output, that have
 * matrices of their own; the most items of these that a step makes. */
uint32_t latent_heads(const struct be *b);
uint32_t latent_items(const struct be *b);
/* Computes the product of each of them with its part of a row of @x, @stride values each. */
int latent_multiply(struct step *s, const struct weights *w, const float *x, uint32_t stride);
/* Returns the property of latent attention that is not computed, in words, or NULL. */
const char *latent_lacks(const struct model_shape *s);
/* Sets be.attention.bulk and uploads be.latent.list, where there are latent_heads(). Returns
 * 0, -ENOMEM or -EIO. */
int latent_open(struct be *b);
/* Returns the argument of store_latent, without the norm and the pages. */
struct latent_args latent_store_args(const struct be *b, const struct heads *h,
                                     const struct rope_set *rope);
struct attend_args;

/* Sets the places of the part of the queries that turns. */
void latent_attend(const struct be *b, struct attend_args *a);
/* Returns the property of a recurrent op that is not computed, in words, or NULL. */
const char *recurrent_lacks(const struct model_shape *s, const struct model_op *op);
/* Returns where product @i of a STATE_IN op with parts goes: [max_rows] rows of it. */
float *recurrent_part(const struct be *b, uint32_t i);
/* Returns the packed rows of wants [first, first + n); step_pack_wanted() packs all rows of a
 * LOGITS op. */
struct operand step_wanted(const struct step *s, uint32_t first, uint32_t n);
/* Returns true if the rows of wants are packed for wgmma: only their first is where rows begin. */
bool step_wanted_cores(const struct step *s);
int step_pack_wanted(struct step *s, const struct model_op *op);
/* Records the step's event behind all that was enqueued for it. */
int step_record(struct step *s);
/* Waits for a step that samples nothing, and makes it idle. */
int step_wait(struct step *s);
/* Computes the logits of wants [first, first + n) to be.sampling.logits. */
int step_logit_rows(struct step *s, uint32_t first, uint32_t n);
