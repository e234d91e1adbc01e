#pragma once

/*
 * picks - statistics of a model's experts that outlive the process: how often rows picked each
 * expert, and which experts, or how many dense FFNs, are in host memory beside a device. They are
 * in a mapped file (engine_opts.experts_fd), which is emptied if it belongs to another model.
 * Private to engine/.
 */

#include "engine/backend.h"

/* Rows after which a pick counts half as much (docs/design/cuda-products.md). */
#define PICKS_HALF_LIFE (UINT64_C(1) << 20)

struct picks_head;

/* Without a file `head` is NULL, and all functions do nothing. */
struct picks {
    struct picks_head *head;
    uint32_t n_layer, n_expert, n_used;
    size_t n_bytes;
    /* [n_layer][n_expert]: the file's counts, and the process's counts, when the file was opened or
     * the counts were last halved. */
    uint64_t *before, *base;
};

/* Opens the file @fd. Works without a file if @fd is 0 or the file cannot be used. */
void picks_open(struct picks *k, int fd, const struct gguf *file, const struct model_shape *s);
void picks_close(struct picks *k);
/* Returns the picks counted before picks_open(), [n_layer][n_expert]; NULL without a file. */
const uint64_t *picks_counts(const struct picks *k);
/* Returns the placement: bits of the experts in host memory as in model_shape.host_experts; NULL:
 * none was made yet. picks_place() saves one. */
const uint32_t *picks_placed(const struct picks *k);
void picks_place(struct picks *k, const uint32_t *bits);
/* Returns the number of layers whose dense FFN is in host memory; -1: not chosen yet, or no file.
 * picks_place_ffn() saves it. */
int64_t picks_host_ffn(const struct picks *k);
void picks_place_ffn(struct picks *k, uint32_t n);
/* Writes the counts to the file; @now has the picks since picks_open(). All counts are halved once
 * they reach those of 2 * PICKS_HALF_LIFE rows. */
void picks_count(struct picks *k, const uint64_t *now);
