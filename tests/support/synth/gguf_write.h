#pragma once

/*
 * gguf_write - writes a GGUF file (version 3) as a stream: metadata and directory are collected in
 * memory, then the data of the tensors follows in the order of the directory, in pieces of any
 * size.
 *
 *     init -> key ... tensor ... -> start -> (data ... tensor_end) per tensor -> finish
 *
 * The first error is kept, and later calls have no effect; start, data and finish return it.
 */

#include <stdbool.h>

#include "base/buf.h"
#include "base/gguf.h"

/* Invariants: an error stays; data_bytes <= directory_bytes; keys and tensors come before
 * gguf_write_start(), data after it; n_items is 0 except between an array and its last item. */
struct gguf_write {
    /* descriptor of the caller, from gguf_write_start() on */
    int fd;
    /* 0, or the first -errno */
    int error;
    uint64_t n_kv, n_tensors;
    /* missing items of the array that is being written */
    uint64_t n_items;
    /* bytes of tensor data, padded, according to the directory */
    uint64_t directory_bytes;
    /* bytes of tensor data written so far */
    uint64_t data_bytes;
    struct buf kv, dir;
};

#define GGUF_WRITE_ALIGNMENT 32u /* general.alignment's default */

void gguf_write_init(struct gguf_write *w);   /* begins an empty file */
void gguf_write_deinit(struct gguf_write *w); /* does not close the descriptor */

/* Add a key with its value; gguf_write_start() returns errors. */
void gguf_write_u16(struct gguf_write *w, const char *key, uint16_t v);
void gguf_write_u32(struct gguf_write *w, const char *key, uint32_t v);
void gguf_write_i32(struct gguf_write *w, const char *key, int32_t v);
void gguf_write_f32(struct gguf_write *w, const char *key, float v);
void gguf_write_bool(struct gguf_write *w, const char *key, bool v);
void gguf_write_string(struct gguf_write *w, const char *key, struct gguf_str v);
void gguf_write_text(struct gguf_write *w, const char *key, const char *v);

/* Begins an array of @n elements, which must follow at once, one call for each. */
void gguf_write_array(struct gguf_write *w, const char *key, enum gguf_type type, uint64_t n);
void gguf_write_item(struct gguf_write *w, enum gguf_type type, double v); /* exact up to 53 bits */
void gguf_write_item_str(struct gguf_write *w, struct gguf_str v);

/* Adds a tensor to the directory; returns the bytes of its data. @ne[0] is a multiple of the
 * block. */
uint64_t gguf_write_tensor(struct gguf_write *w, const char *name, const struct tensor_format *f,
                           uint32_t n_dims, const uint64_t *ne);

int gguf_write_start(struct gguf_write *w, int fd); /* writes header and directory to @fd */
/* Writes the next bytes of the tensors, in the directory's order. Returns 0, or -errno also for all
 * later calls. */
int gguf_write_data(struct gguf_write *w, const void *data, size_t len);
int gguf_write_tensor_end(struct gguf_write *w); /* writes padding */
/* Asserts that the data has the size in the directory. Returns 0 or the first error. */
int gguf_write_finish(struct gguf_write *w);
