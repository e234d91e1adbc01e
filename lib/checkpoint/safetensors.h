#pragma once

/*
 * safetensors - reads the headers of weight files as Hugging Face's libraries write them: 8 bytes
 * with the length of the header, the header in JSON, then the tensors' data without gaps.
 *
 * The header is parsed in one pass and without a tree: it has two levels, whatever a file claims.
 * Checked are lengths, names (unique in all files of a model), types, products of dimensions,
 * places inside the file, gaps and overlap. The data is not read.
 */

#include "base/err.h"
#include "base/gguf_private.h"

/* Types of values, named as in the file. */
enum st_type {
    ST_BOOL,
    ST_U8,
    ST_I8,
    ST_F8_E4M3,
    ST_F8_E5M2,
    ST_F8_E8M0,
    ST_I16,
    ST_U16,
    ST_F16,
    ST_BF16,
    ST_I32,
    ST_U32,
    ST_F32,
    ST_I64,
    ST_U64,
    ST_F64,
    ST_N_TYPES,
};

#define ST_DIMS_MAX 6
#define ST_HEADER_MAX (100u << 20) /* the limit of the format's own library */
#define ST_NAME_MAX 255u

/* A tensor: dim[0] is the outermost dimension, whose entries are farthest apart. */
struct st_tensor {
    const char *name;
    enum st_type type;
    /* file: number that the caller gave */
    uint32_t n_dims, file;
    uint64_t dim[ST_DIMS_MAX];
    /* place in the file */
    uint64_t offset, n_bytes;
};

/* The tensors of all files of a model. Invariant: the index has tensor[0 .. n). */
struct st_list {
    struct st_tensor *tensor;
    uint32_t n, cap;
    struct arena names;
    struct gguf_index index;
};

/* Makes an empty list. */
void st_list_init(struct st_list *l);
void st_list_deinit(struct st_list *l);

/* Appends the tensors of the header @text of @len bytes, which belongs to file @file of
 * @file_bytes. Returns 0, -ENOMEM, or -EINVAL with the offset in the header in @err; after a
 * failure only st_list_deinit() is allowed. */
int st_parse(struct st_list *l, uint32_t file, const char *text, size_t len, uint64_t file_bytes,
             struct err *err);
/* Reads the header of the open file @fd likewise. */
int st_read(struct st_list *l, uint32_t file, int fd, struct err *err);

/* Returns the tensor called @name; NULL: absent. */
const struct st_tensor *st_find(const struct st_list *l, const char *name);
/* Returns the name of a type, and its bytes. */
const char *st_type_name(enum st_type type);
size_t st_type_bytes(enum st_type type);
