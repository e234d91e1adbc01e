#pragma once

/*
 * model - a model in the form that the engine runs: its shape and a list of ops, from the embedding
 * to the logits, which engine/arch builds from the file. A layer is any number of ops of any kind.
 */

#include "engine/backend.h"
#include "engine/head.h"

/*
 * Invariants, once engine/arch has filled it: the first op of pass 0 and of those that draft is
 * EMBED, the last of all LOGITS; ROUTE is followed by EXPERTS and perhaps SHARED, the last STATE_IN
 * by DELTA, KDA, CONV or MAMBA, a gated QKV by ATTEND and GATE; every op's tensors have the shapes
 * that op_list.h says;
 * n_kv_layer[c] is the number of QKV ops with keys for pages of class c, shape.state.n_layer that
 * of recurrent ops; model_measure() was called. op[i].weights are set by model_load() and freed by
 * the backend.
 */
struct model {
    /* general.architecture */
    const char *arch;
    struct model_shape shape;
    /* [n_ops] in the order in which they run */
    struct model_op *op;
    uint32_t n_ops, capacity;
    /* The ops of each pass, two runs of them; those of passes that the model does not have are
     * empty. They overlap: pass 0 ends with the keys of the blocks, which passes that draft begin
     * with; PASS_HOLES is pass 0 with holes in the place of these keys. */
    struct {
        struct op_run {
            uint32_t begin, end;
        } run[2];
    } pass[PASSES];
    /* 0, or -ENOMEM of model_add() */
    int r;
    uint64_t weight_bytes, n_params;
    /* bytes of the image encoder; 0: there is none */
    uint64_t encoder_weights, encoder_buffers;
    /* Factors of the embedding, of each branch's output, and of the logits; 0 means 1. */
    struct {
        float embedding, residual, logits;
    } scale;
    /* equal for the queries of all layers */
    struct temper temper;
    /* Layers before the first with experts; blocks of multi-token prediction after the layers;
     * width of the expert that all rows use and whose output has no gate. */
    uint32_t n_lead, n_mtp, n_ff_common;
    /* reason why no pass drafts although drafts were requested; "" */
    char no_drafts[400];
    /* tensors of ops that are parts of the file's (bind/bind.h) */
    struct view *views;
    struct head_tensors head;
    /* slopes of heads, where ops have them */
    float *slopes;
    /* memory for shape.host_experts (place.h), or NULL */
    uint32_t *host_experts;
};

/* Appends a copy of @op; a scale or gain of 0 becomes 1, a width of 0 the model's. If memory is
 * short, m->r is set and later calls do nothing. */
void model_add(struct model *m, const struct model_op *op);
/* Adds a layer with pages of class @cls, with keys and values of @h, and returns it. */
struct kv_layer model_add_kv(struct model *m, uint8_t cls, const struct heads *h);
/* Moves layers with a window from KV_WINDOW to pages of KV_GLOBAL, where they keep all keys. */
void model_join_windows(struct model *m);
/* Fills shape.widest, shape.window, shape.two_way, shape.n_ff and shape.op from the ops. No op may
 * be added after it. */
void model_measure(struct model *m);
/* Checks that the backend computes all ops. Returns 0, or -EINVAL with @err. */
int model_check(const struct model *m, const struct be_ops *ops, struct err *err);
/* Frees the model; accepts a zeroed one. The backend owns the weights and may be closed before or
 * after. */
void model_deinit(struct model *m);
/* Loads the tensors of every op into the backend, which supports all of them. Returns 0 or -errno
 * with @err. */
int model_load(struct model *m, const struct be_ops *ops, struct be *be,
               const struct engine_opts *opts, struct err *err);
/* Runs the ops of @pass for a step that has begun; increments *progress, unless NULL, after each
 * op. Returns 0 or -errno. */
int model_forward(const struct model *m, const struct be_ops *ops, struct step *s, uint32_t pass,
                  uint64_t *progress);
