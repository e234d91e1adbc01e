#pragma once

/*
 * backend - the interface to the code that computes a model's ops (engine/reference, engine/cpu,
 * engine/cuda): a table of functions, and how the table of a configured name is found. Private to
 * engine/.
 */

#include <stdlib.h>

#include "base/err.h"
#include "engine/op.h"
#include "engine/shape.h"
#include "engine/types.h"

#define BACKEND_ABI 17u
/* steps between two copies of the pick counters from a device (be_ops.picks); a copy is 48 KiB for
 * 48 layers of 128 experts */
#define PICKS_STEPS 64

struct be;      /* a backend's state */
struct step;    /* one step in flight; embedded by the backend */
struct vis_ops; /* vision/ops.h */

/* Parses engine_opts.devices, a list like "0,1", into @out. Returns the number of devices, at most
 * n_devices; 0: the list is not valid. */
static inline uint32_t devices_of(const struct engine_opts *o, uint32_t out[ENGINE_DEVICES]) {
    const char *p = "0";
    uint32_t n = 0;

    if (o->devices)
        p = o->devices;
    for (;; p++) {
        char *end;

        if (*p < '0' || *p > '9' || n == ENGINE_DEVICES)
            return 0;
        out[n] = (uint32_t)strtoul(p, &end, 10);
        for (uint32_t i = 0; i < n; i++)
            if (out[i] == out[n])
                return 0;
        n++;
        p = end;
        if (*p != ',')
            break;
    }
    if (*p || out[n - 1] > 255)
        return 0;
    if (!o->n_devices)
        return n;
    return MIN(n, o->n_devices);
}

/*
 * Experts whose weights lie in host memory and that the host computes while a device computes the
 * rest of the model (model_shape.host_experts). A dense FFN counts as a layer with one expert. The
 * functions may be called from any thread, one call at a time.
 */
struct host_experts;
/* Functions that return int return 0 or -errno. */
struct host_experts_ops {
    int (*open)(struct host_experts **out, const struct model_shape *shape,
                const struct engine_opts *opts, struct err *err);
    /* accepts NULL, returns NULL */
    struct host_experts *(*close)(struct host_experts *h);
    /* Loads the host's matrices of an EXPERTS op; called in the order of the ops. @normed: the op
     * that has the norm of the op's input: itself or ROUTE, or a dense FFN's GATE_UP. */
    int (*load)(struct host_experts *h, const struct model_op *op, const struct model_op *normed,
                struct err *err);
    /* Computes y = e(norm x), without the factor weigh[e], for each row and each of its picks, with
     * the EXPERTS op that was loaded as number @layer, from 0. x: [n_rows][experts_width()], which
     * is not normed in a latent space; expert, the picks: [n_rows][op.n_used]; weight: theirs,
     * likewise, which @early alone reads; y: [n_rows][op.n_used][experts_width()], unchanged for
     * picks that the device computes. */
    void (*run)(struct host_experts *h, uint32_t layer, uint32_t n_rows, const float *x,
                const uint32_t *expert, const float *weight, float *y);
};

/* Experts computed by the CPU backend's kernels. */
extern const struct host_experts_ops host_experts_cpu;

/* Options of a backend; the objects that they point to must stay until close(). */
struct be_opts {
    const struct model_shape *shape;
    /* n_threads, isa, max_rows, max_context (never 0), ... */
    const struct engine_opts *engine;
    uint32_t n_pages;
    uint64_t page_bytes;
    /* states of recurrent layers: first the slots of sequences, then the snapshots */
    uint32_t n_states;
    /* number of the last of these states, which a device keeps in host memory */
    uint32_t n_host_states;
    /* pages of class KV_WINDOW; 0: no layer is of that class */
    uint32_t n_windows;
    /* slots of sequences whose hidden states are kept (KEEP); 0: the model does not draft */
    uint32_t n_slots;
    /* set if has_host_part(shape) */
    const struct host_experts_ops *host_experts;
};

/* Work lists of a step, which some ops need and the first of them makes. */
enum op_list {
    LIST_NONE,
    /* of attention, for ops with equal heads; not of sparse attention */
    LIST_KEYS,
    /* of the matrices of heads */
    LIST_HEADS,
};

/* A set of kinds of ops. */
#define OP_BIT(kind) (UINT64_C(1) << (kind))

/* How devices that divide the matrices of a model cut the tensors of an op: not at all, so that
 * models with the op are refused; each matrix by its rows, and vectors alike; by a loader of the
 * op, which takes the device's rows itself; not, but all use those of the first device. */
enum op_cut { CUT_NEVER, CUT_ROWS, CUT_LOADER, CUT_FIRST };

/* Sections of a tensor's rows, of each of which every device has its share. There are @n sections
 * of @first rows, and behind them sections of @rest rows. rest 0: all rows are one section. whole:
 * each device has all rows. */
struct op_cuts {
    bool whole;
    uint32_t n;
    uint64_t first, rest;
};

/* How devices that divide the matrices of a model compute an op together (engine/cuda/ranks). x is
 * complete on each device before and after the op. */
struct op_division {
    enum op_cut cut;
    /* CUT_ROWS: returns how w[i] and bias[i] are cut, or sinks, conv, dt and decay for @i from
     * OP_MATRICES on; heads of @op are the device's. NULL: all are one section each. */
    struct op_cuts (*cuts)(const struct be *b, const struct model_op *op, uint32_t i);
    /* Returns the name of a feature of @op that devices do not divide although each computes it, or
     * NULL; the pointer as op_code.lacks. */
    const char *(*lacks)(const struct model_shape *shape, const struct model_op *op);
    /* What each device computes of the op, part after part, with an exchange of columns between
     * two; none: op_code.run. */
    int (*part[2])(struct step *s, const struct model_op *op);
    /* columns are exchanged before the op, whose input they are */
    bool reads;
    /* columns are exchanged after the op, and added to x or to a branch, unless another op
     * completes their sum */
    bool adds;
    /* In place of all this: computes the op on all devices. */
    int (*run)(struct step *s, const struct model_op *op);
    /* op_code.takes, if it is another set */
    uint64_t takes;
};

/* Functions that kinds of ops of one family share. Each function is called once when a device is
 * opened, for models with an op of the family; NULL: there is nothing to do. Those that return int
 * return 0 or -errno. */
struct op_family {
    /* Counts the buffers of the family, beside those of all kinds. */
    void (*scratch)(struct be *b);
    /* Fills these buffers with what kernels may read before anything else is written there. */
    int (*clear)(struct be *b);
    /* Tests kernels of the family, and refuses a device whose results are wrong with @err. */
    int (*check)(struct be *b, struct err *err);
};

/* Functions of a backend for a kind of op. The reference backend has only run. */
struct op_code {
    /* Computes the op. */
    int (*run)(struct step *s, const struct model_op *op);
    /* Returns the name of a feature of @op that the backend lacks although it has the op's kind;
     * models that need it are refused. Returns NULL if it can compute the op. The pointer is NULL
     * if that is always so. */
    const char *(*lacks)(const struct model_shape *shape, const struct model_op *op);
    /* Loads the op's matrices into @w; vectors are loaded before. NULL: matrix by matrix. Returns 0
     * or -errno with @err. */
    int (*load)(struct be *b, struct weights *w, const struct model_op *op, struct err *err);
    /* The buffer of the product with w[i]: the offset of its address in struct be, or, if it
     * depends on more, a function. */
    size_t out[OP_MATRICES];
    float *(*place)(const struct be *b, const struct model_op *op, int i);
    /* NULL: there are no buffers or tests beside those of all kinds */
    const struct op_family *family;
    /* op.weigh may be of any format, and becomes floats */
    bool decodes;
    /* Fusion with other ops (fuse.h): sets OP_BIT(kind) of the kinds that op_links.adds and
     * op_links.from may have, and the work list that the op needs. */
    uint64_t adds, takes;
    enum op_list list;
    struct op_division division;
};

/* The functions of a backend. Those that return int return 0 or -errno; -EIO once a device is
 * lost. */
struct be_ops {
    uint32_t abi;
    const char *name;
    /* must equal backend_build_id() of the daemon (cuda) */
    uint8_t build_id[20];
    /* ENGINE_SOURCES: a digest of the sources that the library was built from */
    uint8_t sources[20];
    uint32_t depth;
    int (*open)(struct be **out, const struct be_opts *o, struct err *err);
    /* accepts NULL and half-built, returns NULL */
    struct be *(*close)(struct be *b);
    const char *(*isa)(const struct be *b);
    uint32_t (*n_threads)(const struct be *b);
    /* Returns the PCI bus address of the @i-th device; "": there are fewer devices. NULL: not a
     * device backend. */
    const char *(*address)(const struct be *b, uint32_t i);

    /* Loads the tensors of an op: repacks or uploads them. close() frees them. NULL: tensors are
     * used in place in the mapped file. */
    int (*load)(struct be *b, const struct model_op *op, struct weights **out, struct err *err);

    /* Completes loading, once load() was called for every op; *out: where the weights are. NULL:
     * there is nothing to complete. */
    int (*loaded)(struct be *b, enum engine_weights *out, struct err *err);

    /* A step: begin(), op[].run(), mask(), sample() and end() are called in this order for one
     * batch. A host backend computes inside the ops; a device backend enqueues work on its
     * stream. */
    int (*begin)(struct be *b, const struct engine_batch *batch, struct step **out);
    /* [OP_KINDS]; NULL: the backend does not compute ops of the kind, and refuses models with
     * them */
    const struct op_code *const *op;
    /* In the table for several devices: the table for one device, which may support more. Else
     * NULL. */
    const struct be_ops *one;
    int (*mask)(struct step *s, uint32_t want, const uint32_t *bits);
    int (*sample)(struct step *s);
    /* Called before an op with op_links.narrows: may leave rows without a want out of the rest of
     * the pass. NULL: the backend computes all rows. */
    void (*narrow)(struct step *s);
    /* waits for the results */
    int (*end)(struct step *s, struct engine_result *out);

    /* false: ops compute in the caller's thread; the engine calls them inside engine_wait(), with
     * the tokens of engine_seq.feed filled in. true: ops enqueue; the engine calls them inside
     * engine_launch() and engine_seal(), and the device resolves engine_seq.feed. */
    bool device;
    /* supports WANT_HIDDEN */
    bool hidden;
    /* pages of latent attention store a key once, and not a second time as the value */
    bool latent_once;
    /* computes image encoders on the device; NULL: the CPU computes them */
    const struct vis_ops *vision;
    /* Returns the bytes that @t takes once it is loaded. NULL: as many as in the file. */
    uint64_t (*stored_bytes)(const struct tensor *t);
    /* Divides the layers among devices: sets shape->cut, before room() and open(). NULL: layers are
     * not divided. */
    int (*divide)(struct model_shape *shape, const struct engine_opts *o, struct err *err);
    /* Computes how many bytes of the device's free memory are left for pages beside weights and
     * buffers. NULL: the backend is not a device. */
    int (*room)(const struct model_shape *shape, const struct engine_opts *o, uint64_t *bytes,
                struct err *err);
    /* Copies page src to page dst, the whole page or its first n_tokens tokens, between steps. Host
     * backends get only COPY_D2D, because their host pages are numbered after the other pages.
     * NULL: no batch may have copies (asserted). */
    int (*copy)(struct be *b, const struct engine_copy *c);
    /* Copies state @src to state @dst, between steps. NULL: the backend has no recurrent ops. */
    int (*copy_state)(struct be *b, uint32_t src, uint32_t dst);
    /* Returns the address of page @page of host memory (host backends: of any page), or NULL if the
     * page is not contiguous in memory. */
    void *(*host_page)(struct be *b, uint32_t page);
    /* Returns the address of state @state if it is in host memory, else NULL. */
    void *(*host_state)(struct be *b, uint32_t state);
    /* Returns the logits of a want of the step that ended last, before processors; NULL: they are
     * no longer there. For tests and proofs; other backends may leave the pointer NULL. */
    const float *(*peek)(const struct be *b, uint32_t want);
    /* For prove.h: variants are optional code paths that give the same bits. Turns variant @i on or
     * off and sets *name to its description. Returns false if there is no variant @i. */
    bool (*variant)(struct be *b, uint32_t i, bool use, const char **name);
    /* Begins (@on) or ends a proof (prove.h). Returns false if no proof is needed. NULL: none is
     * ever needed. */
    bool (*proving)(struct be *b, bool on);
    /* For warm.h: returns the rows of step @i that is computed before the device serves, or 0 after
     * the last; sets *apart: each row is a sequence of its own. NULL: no step is. */
    uint32_t (*warm)(struct be *b, uint32_t i, bool *apart);
    /* Returns true if matrix products round activations to eight bits; a proof then has a wider
     * tolerance. NULL: they never do. */
    bool (*coarse)(const struct be *b);
    /* Returns one line for the log: code paths that failed a check at open and are not used,
     * with the reason, and measurements that chose between equivalent paths. "" or NULL: nothing
     * to say. */
    const char *(*note)(const struct be *b);
    /* Returns why a device was lost: the call that failed first and its error; "" while it works.
     * NULL: the backend is not a device. */
    const char *(*fault)(const struct be *b);
    /* With engine_opts.experts_fd: returns how often each expert was picked since open(),
     * [n_layer][n_expert], as of the last ended step whose number is a multiple of PICKS_STEPS.
     * With shape.fetches one number follows: how many of these picks, of all layers, found their
     * expert in host memory. NULL, also as the result: not known. */
    const uint64_t *(*picks)(const struct be *b);
    /* Checks that this machine can run the backend, and every device that @o names. Returns 0, or
     * -errno with @err. NULL: it always can. */
    int (*probe)(const struct engine_opts *o, struct err *err);
    /* Returns the table for the devices that @o names, of which there are several, or NULL with
     * @err. NULL: the backend has no such table. */
    const struct be_ops *(*several)(const struct engine_opts *o, struct err *err);
};

/* Returns the name of a feature of @op, whose kind @ops has, that @ops lacks, or NULL. */
static inline const char *be_lacks(const struct be_ops *ops, const struct model_shape *s,
                                   const struct model_op *op) {
    const struct op_code *code = ops->op[op->kind];

    if (!code->lacks)
        return NULL;
    return code->lacks(s, op);
}

/* weft-cuda.so exports its table under this name. */
#define BACKEND_CUDA_SYMBOL "weft_backend_cuda"

/* Computes the value that be_ops.build_id of a library's table must have: a digest of this header
 * and of those that it includes (engine/build_id.py), so that a library of another build is not
 * used. */
void backend_build_id(uint8_t out[20]);

/* Writes what engine_describe_cuda() says. */
void backend_describe_cuda(char *out, size_t size);

/* Returns the table of @ops, or that for several devices if @o names several. NULL with @err: the
 * device list is not valid, or the backend has no such table. */
const struct be_ops *backend_table(const struct be_ops *ops, const struct engine_opts *o,
                                   struct err *err);

/* Computes a digest of everything besides the model that the results of @ops depend on: the sources
 * of the engine and of the library, and the kind of device of @be. @be may be NULL if @ops has no
 * devices. */
void backend_sources(const struct be_ops *ops, const struct be *be, uint8_t out[20]);

extern const struct be_ops backend_reference;
extern const struct be_ops backend_cpu;

/* Returns the table for backend name @name: linked in, or from weft-cuda.so. NULL with @err: the
 * name is unknown, or this machine cannot run the backend. "auto": CUDA if there is a device, else
 * the CPU; @err then says why an existing library is not used (another build, no device). @o may be
 * NULL; it names the devices. */
const struct be_ops *backend_find(const char *name, const struct engine_opts *o, struct err *err);

struct engine;

/* For tests: returns the logits of want @want of the last ended step, or NULL. */
const float *engine_peek(const struct engine *e, uint32_t want);
