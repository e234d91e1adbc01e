#pragma once

/*
 * keep - packed weights that outlive the process that packed them: they are in a file in memory
 * (memfd_create(2)), which the caller holds, too.
 *
 *      empty ──keep_map, keep_back──> being packed ──keep_seal──> sealed ──keep_open──> found
 *
 * A sealed file cannot be written to or cut, nor can the seals be taken off. Its header, the first
 * bytes of it, says what is in it. Nothing is found in a file that is not sealed, or whose header
 * is not exactly that of the model at hand and of these sources of the engine: where things lie in
 * it is not written down, since the same sources ask for the same sizes in the same order.
 */

#include <stdbool.h>
#include "engine/engine.h"

enum { KEEP_PAGE = 2 << 20 }; /* the unit of sizes: a huge page */

/* Describes the contents of a file of kept weights, and the model that they belong to. */
struct keep_header {
    char magic[8];
    uint8_t sources[20]; /* backend_sources() of the CPU backend */
    uint8_t key[ENGINE_KEEP_KEY];
    uint32_t drafts;          /* with the model's own block or without: 1 or 0 */
    uint64_t n_bytes, n_used; /* size of the file; bytes in use of its last block */
};

/* fd 0: nothing is kept. `found`: the file has the weights. A failure clears both. */
struct keep {
    int fd;
    bool found;
    struct keep_header header;
    uint64_t mapped; /* bytes of blocks so far */
};

/* Looks into @fd (0: none), for weights of @file, with those of its own block where it @drafts, or
 * of that in @block, or NULL. A file that cannot be used leaves k->fd 0. */
void keep_open(struct keep *k, int fd, const struct gguf *file, const struct gguf *block,
               bool drafts);
/* Maps the next block of the file over the @size bytes at @at, multiples of KEEP_PAGE: found
 * weights, to be read, or room for new ones. Returns 0, or -errno: nothing is kept, and the memory
 * is unchanged. */
int keep_map(struct keep *k, void *at, size_t size);
/* Takes memory for the KEEP_PAGE bytes at @offset of a block's room at @at, in a huge page where
 * the system has one. Returns 0 or -ENOMEM. Several threads may call it at once for different
 * pages. */
int keep_back(const struct keep *k, void *at, uint64_t offset);
/* Writes the header to the beginning of the first block: @n_used of the last one are used. */
void keep_describe(struct keep *k, void *at, uint64_t n_used);
/* Makes the block read-only. Returns 0, or -errno: the block is lost. */
int keep_protect(const struct keep *k, void *at, size_t size, uint64_t offset);
/* Seals the file after keep_protect() of all blocks. Returns false if nothing is kept. */
bool keep_seal(struct keep *k);
