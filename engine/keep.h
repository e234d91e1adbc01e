#pragma once

/*
 * keep - packed weights that outlive the process that packed them. They are in a file in memory
 * (memfd_create(2)) that the caller holds, too.
 *
 *      empty ──keep_map, keep_back──> being packed ──keep_seal──> sealed ──keep_open──> found
 *
 * A sealed file cannot be written to or truncated, and seals cannot be removed. The header at its
 * start identifies model and engine. Weights are used only from a sealed file whose header equals
 * that of the current model and engine sources. The file has no directory: the same sources ask for
 * blocks of the same sizes in the same order.
 */

#include <stdbool.h>

#include "engine/engine.h"

enum { KEEP_PAGE = 2 << 20 }; /* the unit of sizes: a huge page */

/* Header of a file of kept weights. */
struct keep_header {
    char magic[8];
    /* backend_sources() of the CPU backend */
    uint8_t sources[20];
    uint8_t key[ENGINE_KEEP_KEY];
    /* 1: with the draft blocks of the model's own file; 0: without */
    uint32_t drafts;
    /* n_bytes: size of the file; n_used: used bytes of its last block */
    uint64_t n_bytes, n_used;
};

/* fd 0: nothing is kept. found: the file has the weights. After a failure both are 0. */
struct keep {
    int fd;
    bool found;
    struct keep_header header;
    /* bytes of the blocks mapped so far */
    uint64_t mapped;
};

/* Checks whether @fd (0: none) has the weights of @file, and of its draft blocks if @drafts, or of
 * @block, which may be NULL. Sets k->fd to 0 if the file cannot be used. */
void keep_open(struct keep *k, int fd, const struct gguf *file, const struct gguf *block,
               bool drafts);
/* Maps the next block of the file over the @size bytes at @at, both multiples of KEEP_PAGE: the
 * weights if they were found, else room for them. Returns 0, or -errno: nothing is kept from now
 * on, and the memory is unchanged. */
int keep_map(struct keep *k, void *at, size_t size);
/* Allocates memory for the KEEP_PAGE bytes at @offset of the block at @at, as a huge page if the
 * system has one. Returns 0 or -ENOMEM. Threads may call it at once for different pages. */
int keep_back(const struct keep *k, void *at, uint64_t offset);
/* Writes the header to the beginning of the first block, which is at @at; @n_used bytes of the last
 * block are used. */
void keep_describe(struct keep *k, void *at, uint64_t n_used);
/* Makes the block at @at read-only. Returns 0, or -errno: its content is lost. */
int keep_protect(const struct keep *k, void *at, size_t size, uint64_t offset);
/* Seals the file after keep_protect() of all blocks. Returns false if nothing is kept. */
bool keep_seal(struct keep *k);
