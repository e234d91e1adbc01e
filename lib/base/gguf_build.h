#pragma once

/*
 * gguf_build - makes a GGUF header in memory for a model whose weights lie in files of another
 * format. The file that it makes has metadata, tensors of its own (small ones, whose values were
 * converted), and a list of tensors whose rows lie in further files: gguf_open_fds() reads it
 * together with these files, in the front and in the worker alike.
 */

#include "base/gguf_keys.h"
#include "base/repack.h"

/* A tensor of the file itself, or one whose rows lie in other files, in pieces of piece_rows
 * rows. */
struct gguf_built {
    char name[64];
    enum tensor_type type;
    uint64_t ne[4];
    uint32_t n_dims;
    /* own data: offset in gguf_build.data */
    size_t data_at;
    /* 0: the data is the file's own */
    uint32_t n_pieces;
    /* index of the first in gguf_build.piece */
    uint32_t first_piece;
    /* tensor.piece_rows */
    uint64_t piece_rows;
    /* tensor.interleave, tensor.halved */
    uint32_t interleave, halved;
    /* tensor.repack; kind 0: none */
    struct repack repack;
};

/* Place of consecutive rows. */
struct gguf_piece {
    /* 0: the first of the files behind the header */
    uint32_t file;
    uint64_t offset;
};

/* A header that is being made. The caller adds keys, which must differ: gguf_open_fds() checks
 * it. */
struct gguf_build {
    struct gguf_keys keys;
    struct buf data;
    struct gguf_built *tensor;
    struct gguf_piece *piece;
    uint32_t n_tensors, tensors_cap, n_pieces, pieces_cap;
};

/* Initialises an empty header whose converted tensors have at most @data_max bytes. */
void gguf_build_init(struct gguf_build *b, size_t data_max);
void gguf_build_deinit(struct gguf_build *b);

/* Adds a tensor of the file, whose @n_bytes the caller writes to *data before the next call; they
 * are zero now. data_at and n_pieces of @t are set here. Returns 0, -ENOMEM or -EMSGSIZE. */
int gguf_build_tensor(struct gguf_build *b, const struct gguf_built *t, size_t n_bytes,
                      uint8_t **data);
/* Adds a tensor of the @n pieces at @piece, REPACK_PARTS for each matrix of a tensor with repack; a
 * part that there is not has file and offset 0. Returns 0 or -ENOMEM. */
int gguf_build_scattered(struct gguf_build *b, const struct gguf_built *t,
                         const struct gguf_piece *piece, uint32_t n);

/* Writes the file to memory (memfd_create()) and seals it. Returns its descriptor, -ENOMEM,
 * -EMSGSIZE or -errno. */
int gguf_build_finish(struct gguf_build *b);
