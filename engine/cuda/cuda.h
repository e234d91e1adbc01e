#pragma once

/*
 * cuda - the state of the CUDA backend, private to engine/cuda. All work of a step is enqueued on
 * one stream and runs in order, so two steps may be in flight with the same device buffers; only
 * data that the host writes or reads while a step runs exists twice (struct step, one for even and
 * one for odd steps).
 *
 *     open   memory.c counts and allocates all memory but the weights', or refuses with the sum
 *     load   load.c   file -> pinned buffer -> device -> tiles, with two buffers alternately
 *     begin  step.c   uploads rows and page tables at once; enqueues kernels op by op, or the
 *            graph.c  whole pass as one graph
 *     seal   seal.c   uploads masks and parameters; sampling; starts the copy of the results
 *     end    step.c   waits for the step's event
 *
 * After a call has failed (be.fault says which), every call returns -EIO.
 */

#include "engine/backend.h"
#include "engine/cuda/cuda_api.h"
#include "engine/cuda/kernels.h"
#include "engine/kept.h"
#include "engine/op_table.h"
#include "engine/picture_rows.h"
#include "engine/sampler.h"

/* wants whose logits are computed at a time; more take several rounds */
#define LOGIT_ROWS 128u
#define LOAD_BYTES (16u << 20)    /* size of each of the two buffers that weights pass through */
#define WAIT_LIMIT_NS 60000000000 /* a device that does not reach an event in this time is lost */
#define MEMORY_WAIT_MS 10000u     /* for memory that another process is about to give back */
#define LIST_MAX 4096u            /* bias entries, and bans, of a sequence */
#define WIDE_ROWS 128u            /* be.attention.wide_rows: no graph is larger */
#define WHOLE_PART 8u             /* be.attention.part */
#define LONG_CHUNKS 8u            /* be.attention.long_chunks */
#define HEAD_VALUES 512u          /* most values of a head */
/* expert_vec is used up to this mean number of pairs per expert: an item of 64 pairs of expert_wide
 * takes about as many instructions as three items of 8 (docs/measurements/cuda.md). */
#define FEW_PAIRS 16u
/* Devices that divide the layers compute a batch in up to PARTS parts of at least PART_ROWS rows
 * (docs/design/cuda-devices.md). */
#define PART_ROWS 128u
#define PARTS 8u
#define GRAPHS 11u /* sizes of steps that have a graph (graph.c) */

/* be.attention.wide_worth. Computed for 128 queries beside 16: q8_0 3.9, f16 2.2 by the bytes that
 * they read from the L2 cache, 4.9 by instructions. */
#define WIDE_WORTH 4u

struct vis_ops;
extern const struct vis_ops vis_cuda;                  /* image encoders (vision/vision.c) */
extern const struct be_ops weft_backend_cuda;          /* of one device; BACKEND_CUDA_SYMBOL */
extern const struct op_code *const cuda_ops[OP_KINDS]; /* ops.c */

struct region { /* an allocation */
    void **where;
    size_t bytes;
    bool host;
    const char *what;
};

/* Memory that the host fills and uploads, with the same offsets on both sides. If several uploads
 * to one area of the device may be in flight, @host has room for each; @turn is the number of this
 * one. Invariants: used <= size; what lies below @used is not written again until the copy that
 * reads it has ended. */
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
 * step_sample -> step_end -> idle. Invariants: n_scored + n_hidden == n_wants of the batch;
 * `recorded` means that the event follows all that was enqueued for the step.
 */
struct step {
    struct be *be;
    /* NULL: idle */
    const struct engine_batch *batch;
    /* rows: both steps use the same device memory; turn 0: the whole batch, else a part of it. */
    struct staging rows, wants;
    void *event;
    /* the event is at the end of the step */
    bool recorded;
    /* number of the step that ended last */
    uint64_t ended;
    struct step_grid grid;
    /* when it was recorded, in ns of CLOCK_MONOTONIC */
    int64_t recorded_ns;
    /* index among the graphs of its pass; GRAPHS: none */
    uint32_t graph;
    /* [max_wants] masks of scored wants: the caller's, or NULL */
    const uint32_t **mask;
    /* Wants with logits, and for each want of the batch its index among those of its kind
     * (hidden.c). */
    /* [max_wants] */
    uint32_t n_scored, n_hidden, *scored, *place;
    /* [max_wants][n_embd] */
    float *hidden_host;
    /* device [max_wants] */
    int32_t *sampled;
    struct sample_out *out_device, *out_host;
    /* [max_wants] */
    struct engine_out *out;
    /* [max_wants][ENGINE_TOP_MAX] */
    struct engine_top *top;
    /* LOGITS of the pass, for seal.c; NULL: not yet */
    const struct model_op *logits;
    /* attend_many_share() */
    bool many_share;
    /* the batch has rows of pictures */
    bool pictures;
};

/* Weights of an op, made by cuda_load(); only the members of its kind are set. Pointers are to
 * device memory, which be.load.weights owns. */
struct weights {
    struct weights *next;
    /* QKV: the gates of attention's output are the fourth */
    struct matrix m[MATMUL_MATRICES];
    uint32_t n_mats, n_in;
    /* NULL: a part of a tensor, or with a bias */
    const struct tensor *of[MATMUL_MATRICES];
    /* the largest scale of each */
    float most[MATMUL_MATRICES];
    /* of the next product: matmul_args.ahead */
    struct ahead ahead[MATMUL_MATRICES];
    /* ranks.c: the weights on each device; rank[0] is this struct */
    struct weights *rank[RANKS];
    /* GATE_UP: products do not combine gates and ups, since the gates are thinned first */
    bool apart;
    /* SHARED, MIX: m[0]; SCAN, LAUREL, ALT_END, STATE_IN with LOW_UP: the next matrix */
    struct weights *down;
    /* LOGITS */
    float scale, cap;
    /* OP_EMBED: the table; data NULL: its rows are m[0] */
    struct tile_source raw;
    /* SELECT, CHAIN: successors; raw: predecessors */
    struct tile_source after_raw;
    const struct tensor *embedding;
    /* EXPERTS or FFN with a part on the host: the backend, and the host's layer */
    struct be *be;
    /* n_experts: experts that the device has or reads */
    uint32_t host_layer, n_experts;
    /* EXPERTS with fetched experts: tiles of all experts */
    const uint8_t *host[MATMUL_MATRICES];
    float *norm, *norm_bias, *post_norm, *q_norm, *k_norm;
    /* pack_args.fixed of the op's input after its norm; of the output of a GATE_UP; of the input of
     * a PROJ that is attention's output */
    float fixed_norm, fixed_h, fixed_o;
    /* by expert */
    float *pick_bias, *weigh;
    /* by head */
    float *sinks;
    /* SHARED: [n_in] */
    float *gate;
    /* struct state_args, conv_args */
    float *taps, *dt, *decay, *skip, *conv_bias;
    /* SCAN: of t, B and C */
    float *part_norm[3];
};

/* A kernel and its grid; what: its name, for be.fault. */
struct launch {
    const void *kernel;
    uint32_t grid_x, grid_y, n_threads;
    const char *what;
    uint32_t shared;
};

/* A class of pages. The pages of a layer are contiguous, after those of the layer before. */
struct kv_class {
    uint32_t n_pages;
    uint8_t *pages;
    /* size of a page of all layers that the device has */
    size_t page_bytes;
    /* size of a page of host memory, which all devices share */
    size_t all_bytes;
    /* For each layer of the class: bytes of a page on this device (0: another device has the layer)
     * and on all devices. The entry after the last layer: sparse_page_bytes(). */
    size_t layer_bytes[MODEL_LAYERS_MAX + 1], all_layer_bytes[MODEL_LAYERS_MAX + 1];
};

/* Layers [first, end) of a model. */
struct layers {
    uint32_t first, end;
};

/* A noted launch with its argument, a struct host_call, or a struct meeting. */
enum note { NOTE_LAUNCH, NOTE_CALL, NOTE_MEETING };

/* Invariant: a step notes its launches or replays a graph or does neither, never both. */
struct graphs {
    /* state of the step that is being launched */
    bool on, noting, replaying;
    /* by pass; 1: step.many_share; NULL: not yet */
    void *graph[PASSES][2][GRAPHS];
    /* For pace.h: the time of the last step of each size, and when the last step ended. */
    bool paced;
    int64_t took_ns[PASSES][GRAPHS], ended_ns;
    struct {
        struct be *be;
        enum note kind;
        struct launch launch;
        /* enum launch_how */
        uint32_t how;
        _Alignas(16) uint8_t args[1024];
    } * note; /* [capacity] */
    uint32_t n_notes, capacity;
};

/* Activations of a step: [max_rows] rows each. */
struct activations {
    /* q and o are free after attention's output projection. They then hold branches that are not
     * added to x yet, and products before their norm (residual.c). */
    float *x, *q, *k, *v, *o, *gate, *up;
    /* [max_rows][n_embd] layer norms of x; NULL: the model has RMS norms */
    float *centred;
    uint16_t *packed;
    /* [max_rows], of packed rows */
    float *scale;
    /* the rank's columns of the branch to be added to x; NULL: one device */
    float *own_t;
    /* [n_rot / 2][2] */
    float *rope[ROPE_TABLES];
    /* [max_rows] of queries: temper_at() */
    float *factor;
    /* gates of attention's output, as wide as o */
    float *o_gate;
    /* ACT_P */
    float *layer_input;
};

/* State of a kernel, or of a way to launch it: steps use it only if it is on. The self-test
 * compares its bits with those of the plainest way. */
enum way_state {
    /* the device has none, it is not asked for, or the proof does without it */
    WAY_OFF,
    /* used; after the self-test: with the right bits */
    WAY_ON,
    /* has had other bits in the self-test: never used again */
    WAY_FAILED
};

/* Returns the state of a kernel that is @used, or not, before the self-test. */
static inline enum way_state way_if(bool used) {
    if (used)
        return WAY_ON;
    return WAY_OFF;
}

/* Attention. Invariant: the work list has room for every batch (plan.cu). */
struct attention {
    /* [max_items] */
    struct attn_item *item, *wide_item;
    /* [max_merges] */
    struct attn_merge *merge;
    /* partial results of attention; split-K sums of products */
    float *partial;
    size_t partial_bytes;
    uint32_t max_items, max_merges;
    /* equal for all layers */
    struct temper temper;
    /* steps of more rows have ATTN_WIDE queries per block */
    uint32_t wide_rows;
    /* of plan_args */
    uint32_t part, long_chunks, wide_worth;
    /* attend_latent_bulk passed the self-test */
    bool bulk;
    /* with few rows, one kernel stores keys, computes attention and merges (attend_decode) */
    enum way_state decode;
    /* attend_wgmma takes the place of attend_wide: an experiment */
    enum way_state wgmma;
    /* decode_args.arrived: [MATVEC_ROWS][widest.n_kv] */
    uint32_t *arrived;
    /* sequences on the same pages share their items; many: by attend_wide, too */
    bool shares, many;
};

/* Kernel and split-K factor of a product of many rows: rows of activations per panel
 * (MATMUL_COLUMNS or WGMMA_ROWS), and the blocks that share its segments, a power of two; roles: by
 * matmul_roles, for the step's number of rows or with WGMMA_ROWS the widest; joins: by
 * matmul_wgmma_join. */
struct product_way {
    uint32_t block_rows, n_splits;
    bool roles, joins;
};

#define CHOICES 128u /* shapes of products and classes of rows that are timed, at most */

/* Products. Invariant: n_choices <= CHOICES. */
struct products {
    /* split: blocks share segments; join: matmul_wgmma_join is one of the ways; roles: matmul_roles
     * computes those of packed cores for which it has kernels; cluster: matvec_cluster those of few
     * rows; dry: those of few rows, and packs, begin with a dry run; the last three are
     * experiments */
    enum way_state matvec, split, wgmma, join, roles, cluster, dry;
    /* the op's rows are packed for wgmma */
    bool cores;
    /* PACK_PLANES of the kernels here */
    uint32_t planes;
    /* bytes of the next product that matvec prefetches: an experiment */
    uint32_t ahead;
    /* ways are chosen by timing (choose.c): of products that were not, now, or never */
    bool timed, timing;
    /* timers, once anything was timed */
    void *from, *to;
    /* [multiprocessors] arrival counters of panels with shared segments; zero between kernels */
    uint32_t *arrived;
    struct choice {
        struct {
            uint32_t format, n_out;
        } m[MATMUL_MATRICES];
        uint32_t n_mats, n_in, n_rows, cores, gated;
        /* last member: the choice for the key before it */
        struct product_way way;
    } choice[CHOICES];
    uint32_t n_choices;
};

/* Experts. A pair is one pick of a row (kernels.h). Invariant: expert_vec or expert_wide is on. */
struct experts {
    /* [max_rows][n_expert], [pairs] */
    float *logits, *weight;
    /* [pairs][n_ff_expert], likewise, [pairs][experts_width()] */
    float *gate, *up, *y;
    /* [max_rows][n_latent]: input of the experts, then their sum; NULL: they compute on rows of
     * x */
    float *latent;
    /* [max_rows][n_embd] of the expert of all rows */
    float *shared;
    /* [pairs], [n_expert][max_rows], route_args.count */
    uint32_t *expert, *list, *count;
    /* [experts_items()] */
    struct expert_item *item;
    uint32_t *n_items;
    /* [n_layer][n_expert]: route_args.slot, or expert_slots.slot */
    uint32_t *slot;
    /* expert_slots of each layer, [n_layer][n_expert + 1] each, and the moves of the current
     * layer. */
    uint32_t *slot_expert, *slot_since, *n_moves, (*move)[2];
    /* route_args.picks by layer and expert, then expert_slots.n_missed of all; the host's copy is
     * as of step @counted. */
    uint64_t *picks, *host_picks;
    uint64_t counted;
    /* expert_vec, expert_wide */
    enum way_state vec, wide;
    /* Exchange with the experts on the host, in pinned memory. A dense FFN is one expert. */
    const struct host_experts_ops *host_ops;
    /* NULL: the host has no experts */
    struct host_experts *host;
    /* layers that were loaded */
    uint32_t n_host;
    /* [max_rows][experts_width()], [pairs][experts_width()], [pairs] */
    float *host_x, *host_y, *host_weight;
    /* [pairs]; of the step */
    uint32_t *host_expert, *host_rows;
};

/* Latent attention. */
struct latent {
    /* [max_rows][n_head][query], [max_rows][q_rank] */
    float *q, *r;
    /* list: [n_head][max_rows] */
    uint32_t *list, *n_items;
    /* [latent_items()] */
    struct expert_item *item;
};

/* Recurrent layers. */
struct recurrent {
    /* struct state_args */
    float *in[OP_MATRICES], *c, *mix, *out;
    /* [max_rows][state_shape.n_low]: products of STATE_IN with LOW_DOWN */
    float *low[2];
    /* [n_states], each [layers][n_floats] and then n_more floats; states from n_device on are in
     * pinned host memory, for all ranks together. */
    float *state, *host_state;
    uint32_t n_states, n_device;
    /* number of recurrent layers before those of the device, and of the model */
    uint32_t first, n_all;
};

/* Residual streams and attention to compressed keys. in: the weights of the last CSA_IN. */
struct compressed {
    /* of the streams */
    float *s, *low, *weight;
    /* results of CSA_IN; r and t before norm and factor */
    float *r, *key, *t;
    /* [max_rows][2 widest key] */
    float *u, *g;
};

/* The indexer of attention to compressed or to sparse keys. */
struct indexer {
    /* [max_rows][n_head][dim]; [PICK_ROWS][sets][max_blocks] */
    float *q, *score;
    /* [max_rows][sets][most], [max_rows] */
    uint32_t *pick, *n_pick;
    /* blocks of the longest context */
    uint32_t max_blocks;
    /* most blocks that a row attends to; n_best: fewer during the proof */
    uint32_t most, n_best;
};

/* Attention to sparse keys. */
struct sparse {
    /* keys of the indexer; g and t of POOL_KEYS */
    float *k, *g, *t;
    /* most parts of the keys of a row */
    uint32_t n_parts;
    /* rows for whose parts be.attention.partial has room */
    uint32_t n_rows;
};

/* Mixed residual streams, and a table of n-grams. */
struct streams {
    /* of a MIX: [max_rows][streams][n_embd] each */
    float *f, *gate;
    /* of the table, [max_rows][rows of a token], as in the file */
    uint8_t *rows;
    /* likewise, pinned, used in turn */
    uint8_t *host_rows[2];
    /* [max_seqs], pinned */
    struct ngram_known *known;
    /* the host's list of rows to read, [max_rows][rows of a token] */
    struct ngram_find *find;
    /* number of steps that have used host_rows */
    uint32_t turn;
};

/* Draft passes. Of MTP blocks: hidden states of the step's rows, those that are kept, and the input
 * of DRAFT_IN. Of a block drafter: taps (the inputs of some of the model's layers), dynamic taps of
 * the convolutions, and the buffers of select_args or chain_args (best is pick). */
struct draft {
    /* [max_rows][hidden_width()], [n_slots][ENGINE_KEPT][that], [max_rows][2 n_embd] */
    float *hidden, *kept, *pair;
    /* if hidden states are streams: x, [max_rows][n_embd] */
    float *x;
    /* tap: [max_rows][n_taps][n_embd] */
    float *tap, *d, *g;
    uint64_t *pick;
    int32_t *best;
    /* state after the step that was launched last */
    struct kept of;
};

/* Logits and sampling. */
struct sampling {
    /* [LOGIT_ROWS][n_vocab] */
    float *logits, *z;
    /* [LOGIT_ROWS] */
    struct sample_state *state;
    /* [2][max_wants]: for even and for odd steps */
    int32_t *sampled;
    /* [max_wants][n_embd] */
    float *hidden;
    /* packed rows with wants, for the logits */
    uint16_t *packed;
    /* [max_wants] of these */
    float *scale;
    /* Step that ended last, and the number of its wants, for peek(). */
    const struct step *last;
    uint32_t last_wants;
    /* host [n_vocab]: logits for peek() or for a row that the host samples */
    float *peeked;
    /* host [n_vocab]: zero between uses */
    uint32_t *count;
    /* for sampling parameters that the kernels do not support */
    struct sampler host;
};

/* Memory that is given out from the front; at NULL: what will be taken is only counted. Invariant:
 * used <= size. */
struct pool {
    uint8_t *at;
    size_t used, size;
};

/* Loading of weights. */
struct loading {
    /* what was loaded, the last op first */
    struct weights *list;
    /* the product of the op before, which may prefetch those of the next; or NULL */
    struct weights *before;
    struct {
        /* [bytes] */
        uint8_t *host, *device;
        void *event;
        bool busy;
    } buffer[2];
    /* LOAD_BYTES, or a row of tiles if that is larger */
    size_t bytes;
    /* memory of the device */
    struct pool weights;
    /* pinned memory of fetched experts */
    struct pool host;
    double *freq[ROPE_TABLES];
    /* rope_set.axis */
    uint8_t *axis[ROPE_TABLES];
    struct blk_grids *grids;
    struct tile_grids *tile_grids;
    struct repack_found *found, *found_host;
};

/* The device, and what opening it has found. */
struct about {
    struct cuda_device device;
    /* of the CUDA device */
    int number;
    char isa[ENGINE_DEVICES * 16];
    /* code paths that the self-test turned off; "": none */
    char note[300];
};

/* Invariant: once lost, always lost, with the reason in text. */
struct fault {
    /* the call that failed, and why */
    char text[200];
    bool lost;
    /* lost, and no call that waits for the device may be made */
    bool stuck;
    /* WAIT_LIMIT_NS, or less for tests */
    int64_t wait_ns;
};

/* A device among those that compute a model together. n is 1 for a device that computes alone, and
 * for devices that divide the layers. */
struct group {
    /* among the devices that divide matrices */
    uint32_t rank, n;
    /* all devices; NULL: there is only this one */
    struct ranks *ranks;
    /* the first that divides matrices, which has the graphs of all; or the device itself */
    struct be *first;
    /* event: the data that other devices read from this one is complete */
    void *ready;
    /* layers of this device; all, unless devices divide them (layers.c) */
    struct layers layers;
    /* be.shape of a device that has only a part of the model: its heads of recurrent layers or of
     * latent attention, or the keys and states of its layers */
    struct model_shape shape;
    /* Pinned memory between devices that divide layers: x after the layers before, and the taps of
     * a block drafter, for even and odd steps; be.sampling.sampled of the last device, for the
     * first. */
    struct {
        float *x[2], *tap[2];
        int32_t *sampled;
    } handed;
};

/* Allocations, all of which are region[0 .. n_regions), and the pages among them. */
struct memory {
    struct region region[112];
    uint32_t n_regions;
    struct kv_class kv[PAGE_CLASSES];
    /* pages of KV_GLOBAL in pinned memory */
    uint8_t *host_pages;
};

/* Streams. */
struct queue {
    void *stream;
    /* stream for host calls, in models with experts on the host */
    struct cuda_side side;
    /* Stream of uploads that run beside the step that will read them, and the event at their end;
     * NULL: they run in `stream`. */
    struct {
        void *stream, *end;
    } uploads;
    /* the next launch is not early (PDL), because of cuda_settle() or events of other devices */
    bool waits;
    /* the last launch made a list that kernels read before they wait: plan() or list_heads() */
    bool listed;
};

/* Settings; wants_: not turned off by the environment or the device. */
struct ways {
    /* products gate, residual() adds up sums */
    bool fuse, wants_fuse;
    /* cuda_api.launch */
    bool early, wants_early;
    /* each kernel lets the next one start where it waits, not where it begins */
    bool late;
    bool wants_graphs;
    /* steps before the first request record graphs and time products (cuda_warm()) */
    bool warms;
    /* rows are packed by static scales where there are some */
    bool fixed;
    /* with one or two rows, the products of norms compute them (matvec_norm) */
    enum way_state prologue;
};

/* Pictures of a step. */
struct pictures {
    /* rows of a batch in their pictures, [max_rows], before the upload; NULL: the model takes no
     * pictures */
    struct picture_row *row;
    /* buffers of the image encoder, model_shape.picture_buffers */
    uint8_t *memory;
};

/* State of a device: what it computes, the device, its memory and its streams, the steps, and a
 * struct for each part of a model. */
struct be {
    /* the model's; &group.shape if several devices divide the model */
    const struct model_shape *shape;
    const struct engine_opts *opts;
    const struct cuda_api *api;
    struct about about;
    struct fault fault;
    struct group group;
    struct memory memory;
    struct loading load;
    struct queue queue;
    struct ways ways;
    /* used on the first rank only */
    struct graphs graphs;
    /* step s has step[s % 2] */
    struct step step[2];
    /* on the device: destination of the upload of the rows */
    struct batch_head *head;
    struct activations act;
    struct products products;
    struct attention attention;
    struct latent latent;
    struct experts experts;
    struct recurrent recurrent;
    struct compressed compressed;
    struct indexer indexer;
    struct streams streams;
    struct sparse sparse;
    struct draft draft;
    struct sampling sampling;
    struct pictures pictures;
};

/* Returns 0, or -EIO if @error is an error of the runtime or the device was lost before. The first
 * error is kept in be.fault with @what, the name of the call; from then on be.fault.lost is set. */
int cuda_check(struct be *b, int error, const char *what);
/* Marks the device as lost, and all that compute the model with it. The reason is kept in be.fault,
 * unless it was lost before. Returns -EIO. */
__attribute__((format(printf, 2, 3))) int cuda_lose(struct be *b, const char *format, ...);
/* Enqueue a copy of @n bytes, or @n times @byte to memory of the device. Return 0 or -EIO. */
int cuda_copy(struct be *b, void *to, const void *from, size_t n, enum cuda_direction dir);
int cuda_fill(struct be *b, void *d, int byte, size_t n);
/* Waits until the device has reached @event. Returns 0, or -EIO as cuda_check() does; after
 * be.fault.wait_ns without an answer also be.fault.stuck is set. */
int cuda_wait_event(struct be *b, void *event, const char *what);

/* Returns the first column, or row of a matrix, of rank @r, where @n_ranks divide @n of them. */
static inline uint32_t rank_cut(uint64_t n, uint32_t r, uint32_t n_ranks) {
    return (uint32_t)(n * r / n_ranks);
}

/* Value heads of a rank: @n pieces of @own heads, which are @stride heads apart in the model. Piece
 * 0 begins with head rank * own. */
struct head_pieces {
    uint32_t n, stride, own;
};
/* Returns the value heads of the rank, from @b's shape. */
struct head_pieces rank_value_heads(const struct be *b);

/* Returns true if experts of @layer are fetched because the device does not have them all. */
static inline bool fetches_in(const struct be *b, uint32_t layer) {
    return b->shape->fetches && n_host_experts(b->shape, layer) > 0;
}

/* Returns true if the host computes a part of the model beside this device, the first of
 * several. */
static inline bool has_host(const struct be *b) {
    return b->group.rank == 0 && has_host_part(b->shape);
}

/* Return true for the device with the embedding, and for the device with the logits. */
static inline bool is_first_device(const struct be *b) {
    return b->group.rank == 0 && b->group.layers.first == 0;
}
static inline bool has_last_layer(const struct be *b) {
    return b->group.layers.end == b->shape->n_layer;
}

/* Returns true for the device on which the draft block embeds tokens with the model's own
 * matrix. */
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

/* Returns true if @op writes keys and values to pages. */
static inline bool op_has_pages(const struct model_op *op) {
    return op->kind == OP_KEYS || op->kind == OP_MLA_KV || (op->kind == OP_QKV && op->w[1]);
}

/* Reduces the keys and recurrent layers of @s to those of @layers, whose last one brings the draft
 * block along. Returns the number of recurrent layers before these. */
uint32_t cuda_select_layers(struct model_shape *s, const struct layers *layers);

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
/* Computes cuda_room() of @n devices, the first of which is used. If a process that ends still has
 * memory, waits until the free memory of all devices stops growing. */
int cuda_rooms(const struct model_shape *shape, const struct engine_opts *opts,
               const struct rank *rank, uint32_t n, uint64_t *bytes, struct err *err);

/* Counts all memory that the backend will ever need (regions, staging, steps, weights), compares
 * the sum with the free memory, and allocates it; cuda_load() fills the weights. Returns 0, -ENOMEM
 * with the sum in @err, or -EIO. cuda_memory_close() frees all that there is, also after a
 * failure. */
int cuda_memory_open(struct be *b, struct err *err);
void cuda_memory_close(struct be *b);
/* Computes the bytes that pages may take, for a backend of which cuda_room() has set what sizes
 * depend on. Returns 0 or -EINVAL. */
int cuda_memory_room(struct be *b, uint64_t *bytes, struct err *err);
/* Scales all tiles of @m (@n_row_tiles: those of all experts) by their largest scale, @most, and
 * sets @m.inverse. Called after repack; waits for the device. Returns 0 or -EIO. */
int cuda_scale_tiles(struct be *b, struct matrix *m, uint32_t n_row_tiles, float most);
/* Implements be_ops.load: copies the op's tensors to the device, matrices as tiles. Ops come in the
 * model's order; the embedding uses the tiles of a tied output matrix. */
int cuda_load(struct be *b, const struct model_op *op, struct weights **out, struct err *err);
/* Sets be.load.weights.size and be.load.host.size to what loading will take. Returns 0 or
 * -errno. */
int cuda_count_weights(struct be *b, struct err *err);
/* Returns true while cuda_count_weights() counts what the weights take: nothing is copied then. */
static inline bool cuda_counts(const struct be *b) {
    return !b->load.weights.at;
}
/* Copies @n bytes to the device while weights are loaded. Returns 0 or -EIO. */
int cuda_load_bytes(struct be *b, const void *data, size_t n, void *to);
/* Copy a matrix of a projector, with @bias or NULL, to the device as struct weights whose m[0].y is
 * not set; copy @n floats. Return 0 or -errno. */
int cuda_load_one(struct be *b, const struct tensor *t, const float *bias, struct weights **out,
                  struct err *err);
int cuda_load_floats(struct be *b, const float *v, size_t n, const float **out, struct err *err);
/* Returns @n bytes from the device, at most be.load.bytes, after all enqueued work, or NULL. They
 * are valid until the next call of any of these. cuda_load_wait() only waits: 0 or -EIO. */
const void *cuda_load_back(struct be *b, const void *from, size_t n);
int cuda_load_wait(struct be *b);
/* Frees the structs that cuda_load() made; their memory on the device is cuda_memory_close()'s. */
void cuda_unload(struct be *b);

/* Returns @n bytes of a staging area for the host to fill, or NULL if it is full; *device: their
 * address on the device. */
void *staging_alloc(struct staging *s, size_t n, const void **device);
/* Uploads the bytes taken from offset @from on. Returns 0 or -EIO. */
int staging_send(struct be *b, struct staging *s, size_t from);
/* Uploads them beside the kernels that are enqueued; later work in queue.stream waits for it. No
 * kernel that was enqueued before may use these bytes. Returns 0 or -EIO. */
int staging_send_beside(struct be *b, struct staging *s, size_t from);

/* Returns the number of ranks that divide a page; 1: each has the whole page, because all heads of
 * latent attention share a key. */
uint32_t cuda_page_ranks(const struct be *b);
/* Returns the shape of a page of a layer with heads @h. */
struct page_shape cuda_page_shape(const struct be *b, const struct heads *h);
/* Clears be.products.arrived, after a kernel that may not have. */
int cuda_clear_arrived(struct be *b);
/* Return the queries of an item of one chunk; the values of a head's result. */
uint32_t cuda_few(const struct be *b);
uint32_t cuda_head_values(const struct be *b, const struct heads *h);
/* Returns the number of partial results of @few queries that be.attention.partial has room for. */
uint32_t cuda_partials(const struct be *b, const struct heads *h, uint32_t few);

/* Enqueues a kernel with its argument, @args of @n bytes. While a graph is recorded the launch
 * is noted too; while one is replayed it is skipped. A grid of 0 launches nothing. Returns 0 or
 * -EIO. */
int cuda_launch(struct be *b, const struct launch *l, const void *args, size_t n);
/* Makes the next launch wait for all earlier ones (no PDL), so that later kernels may read earlier
 * results even before their wait_for_previous(). */
void cuda_settle(struct be *b);
/* Enqueues kernel NAME, which has no dynamic shared memory; @a: to its argument. */
#define CUDA_LAUNCH(b, NAME, x, y, n_threads, a)                                                   \
    cuda_launch(b, &(const struct launch){kernel_##NAME, x, y, n_threads, #NAME, 0}, a,            \
                sizeof(*(a)))
/* Enqueues a call of @fn on the host, noted or skipped like launches. Later kernels run beside it
 * until cuda_join(). Returns 0 or -EIO. */
int cuda_call(struct be *b, void (*fn)(void *ctx), void *ctx);
int cuda_join(struct be *b);
/* Enqueues such a call, or with @fn NULL the wait for the calls before, and returns the runtime's
 * error. */
int step_host_call(struct be *b, void (*fn)(void *ctx), void *ctx);
/* Enqueues the copy of @n_layers pages of struct copy_args. Returns 0 or -EIO. */
int cuda_copy_pages(struct be *b, const struct copy_args *a, uint32_t n_layers);
/* Operand of a product: packed rows on the device. */
struct operand {
    const uint16_t *packed;
    const float *scale;
    /* rows that exist among n_rows; NULL: all */
    const uint32_t *count;
    uint32_t n_rows;
    /* pack_args.cores */
    bool cores;
    /* choose.c does not time this product */
    bool untimed;
    /* the caller adds up split-K sums of the product of one matrix (product_left()) */
    bool leaves;
    /* The product of gate and up may compute glu(gate, up), of kind @glu, as its first y
     * (product_gates()); otherwise the caller does. */
    bool gates;
    enum pack_kind glu;
    /* If it does, and its kernel can (product_packs()), it packs them in @halves by the static
     * scale @fixed, and sets @halves_scale of each row. NULL: not. */
    uint16_t *halves;
    float *halves_scale, fixed;
    /* Not NULL: matvec packs these rows itself, and there is no @packed (cuda_matvec_packs()). */
    const struct pack_args *norm;
};
/* Returns the argument of matvec and matmul_wide for y (+)= W x, of all matrices of @w at once. */
struct matmul_args cuda_matmul_args(const struct weights *w, const struct operand *x, bool add);
/* Returns true if gate and up have equal shape and format, so that one kernel can combine them. */
bool cuda_are_alike(const struct matrix *gate, const struct matrix *up);
/* Launches matvec, for at most MATVEC_ROWS rows, or with @norm matvec_norm. Returns 0 or -EIO. */
int cuda_matvec(struct be *b, const struct matmul_args *a, const struct pack_args *norm);
/* Return true if matvec_cluster can compute the product; launch it; launch it where it is on, else
 * matvec. The last two return 0 or -EIO. */
bool cuda_cluster_fits(const struct be *b, const struct matmul_args *a);
int cuda_matvec_cluster(struct be *b, const struct matmul_args *a);
int cuda_multiply_few(struct be *b, const struct matmul_args *a, const struct pack_args *norm);
/* Returns true if blocks of matvec have room for @n_rows rows of @norm. */
bool cuda_matvec_packs(uint32_t n_rows, const struct pack_args *norm);
/* Computes y (+)= W x + bias by matvec, matmul_wide or wgmma; the bits are the same. */
int cuda_matmul(struct be *b, const struct weights *w, const struct operand *x, bool add);
/* Computes cuda_matmul() for many rows by matmul_wide or, if the rows are packed for wgmma, by
 * matmul_wgmma. */
int cuda_matmul_wide(struct be *b, const struct weights *w, const struct operand *x, bool add,
                     struct product_way way);
/* Return the number of panels of MATMUL_COLUMNS rows of a product; whether blocks may share their
 * segments. */
uint32_t cuda_panels(const struct weights *w, uint32_t n_rows);
bool cuda_can_split(const struct be *b, const struct weights *w, uint32_t n_rows);
/* Returns true if matmul_roles has kernels for the product: up to 64 rows of any format, or more of
 * formats that a kernel for so many has. */
bool cuda_roles_fit(const struct weights *w, uint32_t n_rows);
/* Returns the number of panels of matmul_roles, without gates. */
uint32_t cuda_roles_panels(const struct weights *w, uint32_t n_rows);
/* Chooses how a product of many rows is computed (choose.c). The first product of a shape and a
 * class of rows is computed in each way and timed, with the step's outputs as destination; with
 * @add, be.act.o, which is free. Returns 0 or -EIO. */
int product_choose(struct be *b, const struct weights *w, const struct operand *x, bool add,
                   struct product_way *way);
/* Returns the most rows of class @i of products that are timed, or 0 after the last. */
uint32_t product_class(uint32_t i);
/* Returns the choice that product_choose() has made. */
struct product_way product_chosen(const struct be *b, const struct weights *w,
                                  const struct operand *x);
/* Returns true if cuda_matmul() computes the product by matvec. */
bool product_is_narrow(const struct be *b, const struct operand *x);
/* Return the split-K sums that the last cuda_matmul() of this product left to the caller (no sums:
 * y is complete), and whether its first y is glu(gate, up). */
struct left product_left(const struct be *b, const struct weights *w, const struct operand *x);
bool product_gates(const struct be *b, const struct weights *w, const struct operand *x);
/* Returns true if the product of gate and up packs its result (operand.halves). */
bool product_packs(const struct be *b, const struct weights *w, const struct operand *x);
/* Returns true if the rows of a step are packed for wgmma (be.products.cores), except those that
 * experts or heads of latent attention multiply. */
bool wgmma_handles(const struct be *b, uint32_t n_rows);
/* Runs the self-test at the end of open (selftest.c). A kernel with wrong results is turned off if
 * a simpler one does the same work, and be.about.note says so. Returns 0, or an error with the
 * reason. */
int cuda_selftest(struct be *b, struct err *err);
/* Returns false if the environment sets WEFT_CUDA_@what to 0. */
bool cuda_wants(const char *what);
/* Returns true if WEFT_CUDA_@what is 1: an experiment is asked for. */
bool cuda_asks(const char *what);
/* Loads each kernel and allows it the shared memory of its launches, and sets be.products.wgmma and
 * be.attention.bulk; called before the free memory of the device is read. Returns 0 or -EIO. */
int cuda_load_kernels(struct be *b);

/* Track kept hidden states: a step begins; is the state before the sequence's first row kept; the
 * step's rows were uploaded. No-ops for models that do not draft. */
void draft_begin(struct step *s);
bool draft_has_before(const struct be *b, const struct engine_seq *s);
void draft_uploaded(struct step *s);
/* Divides the wants of a step that has begun into those with logits and those with hidden
 * states. */
void hidden_sort(struct step *s);
/* Copies the vectors of WANT_HIDDEN to the host, before the next step changes be.act.x. */
int hidden_launch(struct step *s);

/* Frees all graphs; none is made from now on. */
void graph_close(struct be *b);
/* Frees all graphs, because steps will be launched differently. Nothing is in flight. */
void graph_forget(struct be *b);
/* Returns the rows of graph size @i, or 0 after the last. */
uint32_t graph_rows(uint32_t i);
/* Returns the most blocks of @few queries in a step of this size; @group heads share keys. */
uint32_t graph_blocks(const struct step *s, uint32_t group, uint32_t few);
/* Decides the grids of a step that has begun. Returns true if graph_launch() launches the whole
 * pass. With several devices the first one decides, and the others follow (graph_follow()). */
bool graph_begin(struct step *s);
void graph_follow(struct step *s, const struct step *first);
/* Launches the graph of the step's size: all of it up to the logits. */
int graph_launch(struct step *s);
/* A call on the host; fn NULL: the point where the stream waits for it. */
struct host_call {
    void (*fn)(void *ctx);
    void *ctx;
};
/* Notes work enqueued on device @b for the first device's graph; @l, @how: of a launch. */
void graph_note(struct be *b, enum note kind, const struct launch *l, uint32_t how,
                const void *args, size_t n);
/* Ends the recording of a pass whose ops have all been launched. */
void graph_end(struct step *s);

/* Functions of a step as in be_ops: begin, the ops by kind, masks, sample, end. Each enqueues and
 * returns; only step_end() waits, and step_begin() of a model with a table of n-grams. They return
 * 0, or -EIO with the reason in be.fault. */
int step_begin(struct be *b, const struct engine_batch *batch, struct step **out);
/* Parts of step_begin(): the upload of the batch, and the first launches, once the grids are
 * decided. */
int step_upload(struct be *b, const struct engine_batch *batch, struct step **out);
int step_start(struct step *s);
/* Enqueues an op of the step. Returns 0 or -EIO. */
typedef int step_op(struct step *s, const struct model_op *op);
#define OP(kind, name, feature, cost) step_op step_##name;
#include "engine/op_list.h"
#undef OP
/* The functions of kinds that share one (ops.c). */
step_op step_norm_x, step_in;
/* Return the name of a property of an op of compressed or sparse keys, or of an indexer of @n_head
 * queries of @dim values, that is not supported, or NULL. */
const char *compressed_lacks(const struct model_shape *s, const struct model_op *op);
const char *sparse_lacks(const struct model_shape *s, const struct model_op *op);
const char *indexer_lacks(uint32_t n_head, uint32_t dim);
/* Sets be.sparse.n_rows from be.attention.partial_bytes, which it raises to at least the room of
 * one row. */
void sparse_divide(struct be *b);
/* Returns the bytes of the blocks' keys of all layers in a page. They are stored after the pages of
 * the layers' keys and values, as if they were one more layer. */
size_t sparse_page_bytes(const struct be *b);
/* Returns the op that uses a table of n-grams, or NULL. ngram_n_rows() returns how many rows of the
 * table each token reads, 0 without a table. */
const struct model_op *ngram_op(const struct model_shape *s);
uint32_t ngram_n_rows(const struct model_shape *s);
/* Copies the rows of the table for the step's tokens to the device, after the upload of the batch.
 * Waits for all enqueued work. Returns 0 or -EIO. */
int ngram_bring(struct step *s);
struct attend_args;
struct batch_head;
struct block_keys;
struct pick_args;
/* Returns the argument of a choice by the @n_head queries in be.indexer.q together, among the
 * blocks that have one of @keys each. */
struct pick_args step_pick_args(const struct be *b, const struct block_keys *keys, uint32_t n_head);
/* Chooses the blocks of all rows of the step. Returns 0 or -EIO. */
int step_choose(struct step *s, const struct pick_args *of);
/* Enqueues an ATTEND of the keys that the INDEX before it has chosen. Returns 0 or -EIO. */
int sparse_attend(struct step *s, const struct model_op *op, const struct attend_args *of);
/* Fills in, in the upload of the batch, the rows' rotary positions and for rows of pictures their
 * values and last visible keys. Returns false if there is no room. */
bool pictures_fill(struct step *s, struct batch_head *h, uint32_t *last);
/* Returns true if so many queries of @batch may share their first pages that plan.cu makes items of
 * many queries for them. Compares the last page of the first chunk of neighbouring sequences of one
 * row. */
bool attend_many_share(const struct be *b, const struct engine_batch *batch);
/* Parts of step_experts() on the device: gate and up products with the kind of epilogue; the down
 * products of the packed rows. */
int experts_gates(struct step *s, const struct model_op *op, enum pack_kind *kind);
int experts_downs(struct step *s, const struct model_op *op);
/* Applies SELECT or CHAIN to the logits of wants [first, first + n), which were just computed. */
int draft_select(struct step *s, uint32_t first, uint32_t n);
int step_mask(struct step *s, uint32_t want, const uint32_t *bits);
int step_sample(struct step *s);
int step_end(struct step *s, struct engine_result *out);
int step_copy(struct be *b, const struct engine_copy *c);
int step_copy_state(struct be *b, uint32_t src, uint32_t dst);
void *step_host_state(struct be *b, uint32_t state);

/* Completes x if another op has left that to @op, and packs its norm (x itself, if the op has none)
 * as the input of the op's matrices. */
int step_norm(struct step *s, const struct model_op *op);
/* Returns true for steps of few rows, whose gate and up matvec multiplies and combines. */
bool step_fuses(const struct step *s);
/* Returns true if ATTEND @op packs its output for its PROJ by a static scale. */
bool step_attend_packs(const struct step *s, const struct model_op *op);
/* Computes ATTEND @op. @store: the argument of store() for the keys of the step, if attend_decode
 * is to store them; else it is not used. Returns 0 or -EIO. */
int step_attend_from(struct step *s, const struct model_op *op, const struct store_args *store);
/* Returns true if the ATTEND that follows the QKV @op stores keys and values (attend_decode). */
bool step_attend_stores(const struct step *s, const struct model_op *op);
/* Completes x if another op has left that to @op. */
int step_complete(struct step *s, const struct model_op *op);
/* Adds the result of @op to x, unless another op does or its product has done so. */
int step_finish(struct step *s, const struct model_op *op);
/* Returns the pass of the step. */
uint32_t step_pass(const struct step *s);
/* Returns true if @op makes the work list that it shares with later ops. */
bool step_lists(const struct step *s, const struct model_op *op);
/* Returns the weights of @op, which is the model's or a rank's part, on device @b. */
const struct weights *step_weights(const struct be *b, const struct model_op *op);
/* Returns the address of the pages of an op's layer. */
uint8_t *step_pages_of(const struct be *b, const struct model_op *op);
/* Returns the argument of store() for the products of @op. No matrix for values: values are keys;
 * none for keys: only queries. */
struct store_args step_store_args(const struct be *b, const struct model_op *op);
/* Normalises the @n heads of @dim values of each row of @x; @norm: [n][dim]. */
int step_norm_heads(struct step *s, float *x, const float *norm, uint32_t n, uint32_t dim);
/* Returns all packed rows of the step as an operand. */
struct operand step_rows(const struct step *s);
/* Computes y (+)= W x + bias of all rows of the step. */
int step_multiply(struct step *s, const struct weights *w, bool add);
/* Returns the argument of a pack of rows of x, @n values each, to be.act.packed. */
struct pack_args step_pack_args(const struct be *b, enum pack_kind kind, const float *x,
                                const float *weight, uint32_t n);
/* Packs rows of x by @kind to be.act.packed. */
int step_pack(struct step *s, enum pack_kind kind, const float *x, const float *weight, uint32_t n);
int step_launch_pack(struct be *b, uint32_t n_rows, const struct pack_args *a);
/* Computes the gate and up of @w from packed rows. step_glu_left() returns the function of both
 * that remains to be applied: PACK_PLAIN if the product has applied it in place of the gate. */
int step_gate_and_up(struct step *s, const struct weights *w, enum pack_kind glu);
enum pack_kind step_glu_left(const struct step *s, const struct weights *w, enum pack_kind glu);
/* Returns the kind of epilogue that multiplies an op's gate and up. */
enum pack_kind step_glu(const struct model_op *op);
/* Returns the argument of route() for a ROUTE op. */
struct route_args experts_route_args(const struct step *s, const struct model_op *op);
/* Returns the most expert items of a step. */
uint32_t experts_items(const struct be *b);
/* Returns true if expert_vec computes products of @n_pairs pairs, false if expert_wide does; the
 * bits are the same. */
bool experts_few(const struct be *b, uint64_t n_pairs, uint32_t n_experts);
/* Computes the product of @a by expert_vec (@few; expert_cut_rows() was called) or by expert_wide;
 * @most: the most items. */
int experts_product(struct be *b, struct expert_args *a, bool few, uint32_t most);
/* Clears the counts of picks. experts_send_picks() sends them with the results of every
 * PICKS_STEPS-th step. */
int cuda_clear_picks(struct be *b);
/* Returns how many numbers be.experts.picks has. */
size_t cuda_n_picks(const struct be *b);
/* Loads expert_slots of a layer with fetched experts: at first, slots hold the device's experts in
 * order. Returns 0 or -EIO. */
int experts_load_slots(struct be *b, uint32_t layer);
int experts_send_picks(struct step *s);
/* Loads the host's experts of an EXPERTS op. Returns 0 or -errno. */
int experts_load_host(struct be *b, struct weights *w, const struct model_op *op, struct err *err);
/* Loads a dense FFN of the host at its GATE_UP @op, before its PROJ. Returns 0 or -errno. */
int ffn_load_host(struct be *b, struct weights *w, const struct model_op *op, struct err *err);
/* Enqueues such an FFN; after cuda_join() its result is in be.experts.host_y. */
int ffn_on_host(struct step *s, const struct model_op *op);
/* Writes x plus the results of @op's experts, or for a branch their sum, to @to, for the device's
 * columns; @pack: packs the row for the next op, or NULL. */
int experts_combine(struct step *s, const struct model_op *op, float *to,
                    const struct pack_args *pack);
/* Returns the destination of a PROJ op's product: x itself, the input buffer of its norm, or
 * own_t with the rank's columns. */
float *residual_target(const struct be *b, const struct model_op *op);
/* Adds the branch of @op: x = (x + gain t) * scale of a PROJ or JOIN op, or, with several devices,
 * x = t of an EXPERTS op. @pack as above. */
int residual_add(struct step *s, const struct model_op *op, const struct pack_args *pack);
/* Returns true if the product of a PROJ op of one device is not added to x by its kernel. */
bool residual_is_open(const struct step *s, const struct model_op *op);
/* Returns the split-K sums that the product of a PROJ has left. */
struct left step_proj_left(const struct step *s, const struct model_op *op);
/* Launches residual() for a branch whose columns the ranks share (own_t), or that the rank has
 * completely. Returns 0 or -EIO. */
int ranks_residual(struct be *b, uint32_t n_rows, const struct residual_args *a);
/* Computes b = t of a PROJ op with @branch, or b += t of an EXPERTS op with @branch, whose sum is
 * in be.act.o. */
int residual_branch(struct step *s, const struct model_op *op);
/* Replaces each row of @n values of x by its rms norm times @norm. */
int residual_norm_rows(struct step *s, float *x, const float *norm, uint32_t n);
/* Returns the number of heads of latent attention, or of parts of compressed attention's output,
 * that have matrices of their own. */
uint32_t latent_heads(const struct be *b);
/* Multiplies each of these matrices with its part of the rows of @x, which are @stride values
 * apart. */
int latent_multiply(struct step *s, const struct model_op *op, const float *x, uint32_t stride);
/* Returns the name of a property of latent attention that is not supported, or NULL. */
const char *latent_lacks(const struct model_shape *s);
/* Returns the values of a head's query before attn_k_b. */
uint32_t latent_query_width(const struct model_shape *m);
/* Sets the addresses of the rotary part of the queries. */
void latent_attend(const struct be *b, struct attend_args *a);
/* Returns the buffer of product @i of a STATE_IN op with parts, of max_rows rows. */
float *recurrent_part(const struct be *b, uint32_t i);
/* Returns @op's part of what a sequence's state has after its layers (state_shape.n_more), of slot
 * 0; that of slot s is s state_floats() after it. */
float *recurrent_more(const struct be *b, const struct model_op *op);
/* Returns the packed rows of wants [first, first + n); step_pack_wanted() packs all rows of a
 * LOGITS op. */
struct operand step_wanted(const struct step *s, uint32_t first, uint32_t n);
/* Returns true if the rows of wants are packed for wgmma; all logits are then computed in one
 * round. */
bool step_wanted_cores(const struct step *s);
int step_pack_wanted(struct step *s, const struct model_op *op);
/* Records the step's event after all that was enqueued for it. */
int step_record(struct step *s);
/* Waits for a step that samples nothing, and makes it idle. */
int step_wait(struct step *s);
/* Computes the logits of wants [first, first + n) to be.sampling.logits. */
int step_logit_rows(struct step *s, uint32_t first, uint32_t n);
