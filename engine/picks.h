#pragma once

/*
 * picks - what is known of a model's experts longer than a process lives: how often rows picked
 * each of them, and which lie in host memory beside a device, or how many dense FFNs. Both are in a
 * file that is mapped (engine_opts.experts_fd), of the model at hand or emptied for it. Private to
 * engine/.
 */

#include "engine/backend.h"

/* Rows after which a pick counts half as much: docs/design/cuda-products.md. */
#define PICKS_HALF_LIFE (UINT64_C(1) << 20)

struct picks_head;

/* Without a file `head` is NULL, and all functions do nothing. */
struct picks {
    struct picks_head *head;
    uint32_t n_layer, n_expert, n_used;
    size_t n_bytes;
    /* [n_layer][n_expert]: when it was opened or halved last, and what the process had counted. */
    uint64_t *before, *base;
};

/* @fd 0, or one that cannot be used: without a file. */
void picks_open(struct picks *k, int fd, const struct gguf *file, const struct model_shape *s);
void picks_close(struct picks *k);
/* [n_layer][n_expert] counted before picks_open(); NULL without a file. */
const uint64_t *picks_counts(const struct picks *k);
/* Returns the bits of the experts that the host holds, as model_shape.host_experts; NULL: nothing
 * was placed yet. */
const uint32_t *picks_placed(const struct picks *k);
void picks_place(struct picks *k, const uint32_t *bits);
/* Returns the number of layers whose dense FFN the host has, and sets it; -1: nothing was placed
 * yet, or there is no file. */
int64_t picks_host_ffn(const struct picks *k);
void picks_place_ffn(struct picks *k, uint32_t n);
/* @now: counted since picks_open(). All are halved whenever they are those of 2 * PICKS_HALF_LIFE
 * rows. */
void picks_count(struct picks *k, const uint64_t *now);
