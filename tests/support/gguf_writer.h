#pragma once

/*
 * gguf_writer - builds small GGUF files in memory, correct ones and wrong ones. It records the
 * position of every integer that controls a reader (counts, lengths, types, dimensions, offsets),
 * so that a test can change each of them. It aborts if memory is short, since it serves only tests.
 */

#include "base/buf.h"
#include "base/gguf.h"

struct gw_field {
    /* position in the finished file */
    size_t at;
    /* 1, 2, 4 or 8 */
    unsigned bytes;
    const char *what;
};

struct gguf_writer {
    /* defaults 3 and 32; may be changed before the first tensor */
    uint32_t version, alignment;
    uint64_t n_kv, n_tensors;
    struct buf kv, dir, data, file;
    /* valid after gw_finish() */
    struct gw_field *field;
    size_t n_fields, cap_fields, n_dir_fields;
    struct gw_field dir_field[256];
};

void gw_init(struct gguf_writer *w);
void gw_deinit(struct gguf_writer *w);

void gw_u32(struct gguf_writer *w, const char *key, uint32_t v);
void gw_f32(struct gguf_writer *w, const char *key, float v);
void gw_bool(struct gguf_writer *w, const char *key, uint8_t v);
void gw_string(struct gguf_writer *w, const char *key, const char *v);
/* Writes a scalar of any type with the raw bytes @v. */
void gw_scalar(struct gguf_writer *w, const char *key, uint32_t type, const void *v, size_t size);
void gw_array(struct gguf_writer *w, const char *key, uint32_t type, uint64_t n, const void *v,
              size_t size);
void gw_strings(struct gguf_writer *w, const char *key, uint64_t n, const char *const *v);

/* Adds a tensor at its correct place, with @data or, for NULL, a pattern. @ne ends at @n_dims. */
void gw_tensor(struct gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims,
               const uint64_t *ne, const void *data);
/* Adds only a directory entry, with any numbers. */
void gw_entry(struct gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims,
              const uint64_t *ne, uint64_t offset);

/* Assembles the file in w->file. */
void gw_finish(struct gguf_writer *w);
/* Writes @len bytes of @data to @path. */
void gw_save_bytes(const char *path, const void *data, size_t len);
/* calls gw_finish() and writes the whole file */
void gw_save(struct gguf_writer *w, const char *path);
