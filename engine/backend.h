#pragma once

/*
 * backend - the table of functions that compute a model's ops (engine/reference, engine/cpu,
 * engine/cuda), and how it is found. Private to engine/.
 */

#include <stdlib.h>
#include "base/err.h"
#include "engine/op.h"
#include "engine/shape.h"
#include "engine/types.h"

#define BACKEND_ABI 15u
#define PICKS_STEPS 64 /* be_ops.picks: 48 KiB come from a device, of 48 layers of 128 experts */

struct be;      /* a backend's state */
struct step;    /* one step in flight; embedded by the backend */
struct vis_ops; /* vision/ops.h */

/* Reads the list engine_opts.devices. Returns the number of devices; 0: the list is not valid. */
static inline uint32_t devices_of(const struct engine_opts *o, uint32_t out[ENGINE_DEVICES]) {
    const char *p = o->devices ? o->devices : "0";
    uint32_t n = 0;

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
            return *p || out[n - 1] > 255 ? 0 : o->n_devices ? MIN(n, o->n_devices) : n;
    }
}

/*
 * Experts whose weights lie in host memory, and which are computed there while a device computes
 * the rest of the model: those of shape.host_experts. A dense FFN is a layer of one expert. One
 * call at a time, from any thread.
 */
struct host_experts;
/* 0 or -errno. */
struct host_experts_ops {
    int (*open)(struct host_experts **out, const struct model_shape *shape,
                const struct engine_opts *opts, struct err *err);
    struct host_experts *(*close)(struct host_experts *h); /* accepts NULL, returns NULL */
    /* Loads the host's matrices of an EXPERTS op, in the order of the ops. @norm: norm of its rows,
     * the op's own or that of the ROUTE op; or NULL. */
    int (*load)(struct host_experts *h, const struct model_op *op, const struct tensor *norm,
                struct err *err);
    /* y = e(norm x) of each pair, without the factor weigh[e], by the EXPERTS op that was loaded as
     * number @layer, from 0. x: [n_rows][n_embd]; expert, the picks: [n_rows][n_expert_used]; y:
     * [n_rows][n_expert_used][n_embd], unchanged where the picked expert is not the host's. */
    void (*run)(struct host_experts *h, uint32_t layer, uint32_t n_rows, const float *x,
                const uint32_t *expert, float *y);
};

/* Experts computed by the CPU backend's kernels. */
extern const struct host_experts_ops host_experts_cpu;

/* Options of a backend; the objects that they point to must stay until close(). */
struct be_opts {
    const struct model_shape *shape;
    const struct engine_opts *engine; /* n_threads, isa, max_rows, max_context (never 0), ... */
    uint32_t n_pages;
    uint64_t page_bytes;
    uint32_t n_states;      /* states of recurrent layers: the slots, then the snapshots */
    uint32_t n_host_states; /* the last of these states, which a device keeps in host memory */
    uint32_t n_windows;     /* pages of KV_WINDOW; 0: no op's layer is of that class */
    uint32_t n_slots;       /* slots for sequences whose hidden states are kept; 0: no KEEP */
    const struct host_experts_ops *host_experts; /* set for a shape with a host's part */
};

/* 0 or -errno; -EIO once a device is lost. */
struct be_ops {
    uint32_t abi;
    const char *name;
    uint8_t build_id[20]; /* must match the daemon's (cuda) */
    uint8_t
        sources[20]; /* ENGINE_SOURCES: a digest of the sources that the library was built from */
    uint32_t depth;
    int (*open)(struct be **out, const struct be_opts *o, struct err *err);
    struct be *(*close)(struct be *b); /* accepts NULL and half-built, returns NULL */
    const char *(*isa)(const struct be *b);
    uint32_t (*n_threads)(const struct be *b);
    /* Returns the bus address of the @i-th device; "": fewer devices. NULL: no device. */
    const char *(*address)(const struct be *b, uint32_t i);

    /* Loads the tensors of an op (repacks, uploads). Freed by close(). NULL: tensors are used as in
     * the file. */
    int (*load)(struct be *b, const struct model_op *op, struct weights **out, struct err *err);

    /* Called when every tensor has been loaded. NULL: there is nothing to do. */
    int (*loaded)(struct be *b, enum engine_weights *out, struct err *err);

    /* The step. begin() .. end() are called in this order for one batch; a host backend computes
     * inside the ops, a device backend enqueues. */
    int (*begin)(struct be *b, const struct engine_batch *batch, struct step **out);
    /* Functions by kind of op; NULL: not supported, and models that need it are refused. */
    int (*run[OP_KINDS])(struct step *s, const struct model_op *op);
    /* Names the part of an op that the backend does not compute although it has the op's kind;
     * models that need it are refused. Returns NULL if it computes all; the function is NULL if the
     * backend always computes all. */
    const char *(*lacks)(const struct model_shape *shape, const struct model_op *op);
    /* Table for one device, in the table for several, which may compute less; else NULL. */
    const struct be_ops *one;
    int (*mask)(struct step *s, uint32_t want, const uint32_t *bits);
    int (*sample)(struct step *s);
    int (*end)(struct step *s, struct engine_result *out); /* waits */

    /* false: the ops compute in the caller's thread, and the engine calls them inside
     * engine_wait(), with the tokens of `feed` filled in. true: they enqueue, are called inside
     * engine_launch() and engine_seal(), and resolve `feed` on the device. */
    bool device;
    bool hidden;      /* supports WANT_HIDDEN */
    bool latent_once; /* pages of latent attention hold a key once, not also as the value */
    const struct vis_ops *vision; /* image encoders on the device; NULL: the CPU computes them */
    /* Returns the bytes of a matrix of an op as it is stored. NULL: the bytes in the file. */
    uint64_t (*stored_bytes)(const struct tensor *t);
    /* Sets shape->cut, before room() and open(). NULL: layers are not divided. */
    int (*divide)(struct model_shape *shape, const struct engine_opts *o, struct err *err);
    /* Computes the bytes that pages may take of the device's free memory, beside weights and
     * buffers. NULL: the backend is not a device. */
    int (*room)(const struct model_shape *shape, const struct engine_opts *o, uint64_t *bytes,
                struct err *err);
    /* Copies page src to page dst (the whole page or its first n_tokens). Called between steps.
     * Host backends get only COPY_D2D: their host pages follow the other pages. NULL: batches with
     * copies are refused by assert. */
    int (*copy)(struct be *b, const struct engine_copy *c);
    /* Copies state @src to state @dst, between steps. NULL: there are no recurrent ops. */
    int (*copy_state)(struct be *b, uint32_t src, uint32_t dst);
    /* Returns the address of page @page of host memory (host backends: of any page), or NULL if it
     * is not in one piece. */
    void *(*host_page)(struct be *b, uint32_t page);
    /* Returns the address of state @state of those in host memory, or NULL. */
    void *(*host_state)(struct be *b, uint32_t state);
    /* Returns the logits of a want of the last ended step, before processors; NULL: they are no
     * longer available. For tests and proofs; the function may be NULL otherwise. */
    const float *(*peek)(const struct be *b, uint32_t want);
    /* For prove.h: variants are optional code paths with the same bits. Turns variant @i on or off;
     * returns false if there is no such variant. *name describes it. */
    bool (*variant)(struct be *b, uint32_t i, bool use, const char **name);
    /* Begins or ends a proof. Returns false if none is needed. NULL: none is ever needed. */
    bool (*proving)(struct be *b, bool on);
    /* Returns true if products round activations to eight bits, for which a proof leaves room.
     * NULL: they never do. */
    bool (*coarse)(const struct be *b);
    /* Returns one line about code paths that failed a check at open and are not used, with the
     * reason, and about measurements that chose between equal ones; "" or NULL: none. */
    const char *(*note)(const struct be *b);
    /* Returns why a device was lost: the call that failed first, and its error; "" while it works.
     * NULL: the backend is not a device. */
    const char *(*fault)(const struct be *b);
    /* With opts.experts_fd: how often the experts of the layers were picked since open(),
     * [n_layer][n_expert], as of the step that ended last, whose number is a multiple of
     * PICKS_STEPS; with shape.fetches then how many of these picks found their expert on the host.
     * NULL, also as the result: not known. */
    const uint64_t *(*picks)(const struct be *b);
    /* Checks that this machine can run the backend, and every device that @o names. Returns 0, or
     * -errno with @err. NULL: it always can. */
    int (*probe)(const struct engine_opts *o, struct err *err);
    /* Returns the table for the devices that @o names, more than one, or NULL with @err. The
     * function is NULL if the backend has no such table. */
    const struct be_ops *(*several)(const struct engine_opts *o, struct err *err);
};

/* weft-cuda.so exports its table under this name. */
#define BACKEND_CUDA_SYMBOL "weft_backend_cuda"

/* Computes the value that be_ops.build_id of a table from a library must have: a digest of this
 * header and of those that belong to it (engine/build_id.py). */
void backend_build_id(uint8_t out[20]);

/* Returns the table of @ops for the configured devices. NULL with @err: their number is unknown. */
const struct be_ops *backend_table(const struct be_ops *ops, const struct engine_opts *o,
                                   struct err *err);

/* Computes a digest of everything besides the model that the results of @ops depend on: the
 * sources, here and in the library, and the kind of device of @be. @be may be NULL if @ops has no
 * devices. */
void backend_sources(const struct be_ops *ops, const struct be *be, uint8_t out[20]);

extern const struct be_ops backend_reference;
extern const struct be_ops backend_cpu;

/* Returns the table for a configured name: linked in, or from weft-cuda.so. NULL with @err: the
 * name is unknown, or this machine cannot run the backend. "auto": CUDA if there is a device, else
 * the CPU; if the library exists but is of another build or finds no device, @err has the reason
 * although the CPU's table is returned. @o: the devices, or NULL. */
const struct be_ops *backend_find(const char *name, const struct engine_opts *o, struct err *err);

struct engine;

/* For tests: returns the logits of want @want of the last ended step, or NULL. */
const float *engine_peek(const struct engine *e, uint32_t want);
