#pragma once

/*
 * gguf_writer - builds small GGUF files in memory, correct ones and wrong ones. It remembers where
 * every integer that steers a reader lies (counts, lengths, types, dimensions, offsets), so that a
 * test can try all of them. Out of memory aborts: it serves tests only.
 */

#include "base/buf.h"
#include "base/gguf.h"

struct gw_field {
    size_t at;      /* in the finished file */
    unsigned bytes; /* 1, 2, 4 or 8 */
    const char *what;
};

struct gguf_writer {
    uint32_t version, alignment; /* may be set before the first tensor: 3, 32 */
    uint64_t n_kv, n_tensors;
    struct buf kv, dir, data, file;
    struct gw_field *field; /* valid after gw_finish() */
    size_t n_fields, cap_fields, n_dir_fields;
    struct gw_field dir_field[256];
};

void gw_init(struct gguf_writer *w);
void gw_deinit(struct gguf_writer *w);

void gw_u32(struct gguf_writer *w, const char *key, uint32_t v);
void gw_f32(struct gguf_writer *w, const char *key, float v);
void gw_bool(struct gguf_writer *w, const char *key, uint8_t v);
void gw_string(struct gguf_writer *w, const char *key, const char *v);
/* A scalar of any type with raw bytes @v. */
void gw_scalar(struct gguf_writer *w, const char *key, uint32_t type, const void *v, size_t size);
void gw_array(struct gguf_writer *w, const char *key, uint32_t type, uint64_t n, const void *v,
              size_t size);
void gw_strings(struct gguf_writer *w, const char *key, uint64_t n, const char *const *v);

/* A tensor at the place where it belongs; its data is @data, or a pattern for NULL. @ne ends at
 * @n_dims. */
void gw_tensor(struct gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims,
               const uint64_t *ne, const void *data);
/* Only a directory entry, with whatever numbers. */
void gw_entry(struct gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims,
              const uint64_t *ne, uint64_t offset);

/* Puts the file together in w->file. */
void gw_finish(struct gguf_writer *w);
/* Writes @len bytes of @data to @path. */
void gw_save_bytes(const char *path, const void *data, size_t len);
void gw_save(struct gguf_writer *w, const char *path); /* gw_finish() and all of it */
