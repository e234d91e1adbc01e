#pragma once

/*
 * gguf - the validated reader of GGUF model files (versions 2 and 3, single or split), over mmap.
 *
 * gguf_open() checks everything before it returns: counts, string lengths, types, dimensions,
 * overflow of every size, alignment, offsets, overlap, the end of the file, the shards of a split
 * model. After that the accessors cannot fail on a bad file. A refusal names the byte offset and
 * the reason in one line. Every allocated size that comes from the file is bounded by the remaining
 * bytes. Both processes read the file; the weights are only touched by the worker. The layout is
 * that of the specification in ggml's docs/gguf.md.
 *
 * A file can change under its reader. The headers are read into private memory. The tensors' data
 * is mapped: an owner that keeps the file open after loading unmaps the data or makes it private,
 * and who reads the data before handles SIGBUS, which a truncated file causes.
 */

#include <stdbool.h>

#include "base/err.h"

/* Rows of the formats of tensors: name, number in the file, values of a block, its bytes (of the
 * structs block_* of ggml-common.h, with which files are written), and the offsets of the half
 * floats in it, or TENSOR_NONE. I32 is a type of tables, not of weights. */
#define TENSOR_NONE 0xFFFF
#define TENSOR_FORMATS(X)                                                                          \
    X(F32, 0, 1, 4, TENSOR_NONE, TENSOR_NONE)                                                      \
    X(F16, 1, 1, 2, 0, TENSOR_NONE)                                                                \
    X(Q4_0, 2, 32, 18, 0, TENSOR_NONE)                                                             \
    X(Q4_1, 3, 32, 20, 0, 2)                                                                       \
    X(Q5_0, 6, 32, 22, 0, TENSOR_NONE)                                                             \
    X(Q5_1, 7, 32, 24, 0, 2)                                                                       \
    X(Q8_0, 8, 32, 34, 0, TENSOR_NONE)                                                             \
    X(Q2_K, 10, 256, 84, 80, 82)                                                                   \
    X(Q3_K, 11, 256, 110, 108, TENSOR_NONE)                                                        \
    X(Q4_K, 12, 256, 144, 0, 2)                                                                    \
    X(Q5_K, 13, 256, 176, 0, 2)                                                                    \
    X(Q6_K, 14, 256, 210, 208, TENSOR_NONE)                                                        \
    X(IQ2_XXS, 16, 256, 66, 0, TENSOR_NONE)                                                        \
    X(IQ2_XS, 17, 256, 74, 0, TENSOR_NONE)                                                         \
    X(IQ3_XXS, 18, 256, 98, 0, TENSOR_NONE)                                                        \
    X(IQ1_S, 19, 256, 50, 0, TENSOR_NONE)                                                          \
    X(IQ4_NL, 20, 32, 18, 0, TENSOR_NONE)                                                          \
    X(IQ3_S, 21, 256, 110, 0, TENSOR_NONE)                                                         \
    X(IQ2_S, 22, 256, 82, 0, TENSOR_NONE)                                                          \
    X(IQ4_XS, 23, 256, 136, 0, TENSOR_NONE)                                                        \
    X(I32, 26, 1, 4, TENSOR_NONE, TENSOR_NONE)                                                     \
    X(IQ1_M, 29, 256, 56, TENSOR_NONE, TENSOR_NONE)                                                \
    X(BF16, 30, 1, 2, TENSOR_NONE, TENSOR_NONE)                                                    \
    X(TQ1_0, 34, 256, 54, 52, TENSOR_NONE)                                                         \
    X(TQ2_0, 35, 256, 66, 64, TENSOR_NONE)                                                         \
    X(MXFP4, 39, 32, 17, TENSOR_NONE, TENSOR_NONE)                                                 \
    X(NVFP4, 40, 64, 36, TENSOR_NONE, TENSOR_NONE)

/* Types of tensors, numbered as in the file. */
#define TENSOR_NUMBER(name, number, ...) TENSOR_##name = number,
enum tensor_type { TENSOR_FORMATS(TENSOR_NUMBER) };
#undef TENSOR_NUMBER

/* Describes the layout of a type's values in a file: consecutive whole blocks. */
struct tensor_format {
    enum tensor_type type;
    /* "Q4_K" */
    const char *name;
    /* values per block */
    uint32_t block;
    /* bytes per block */
    uint32_t block_bytes;
    /* offsets of half floats in a block (scales, or values); TENSOR_NONE: fewer than two */
    uint16_t half_at[2];
};

/* Returns the row of the format table, which is static; NULL for a type that weft does not read. */
const struct tensor_format *tensor_format(uint32_t type);

/* Types of metadata values, numbered as in the file. */
enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
};

/* A string of the file. */
struct gguf_str {
    /* not NUL-terminated; lives as long as the file is open */
    const char *data;
    size_t len;
};

/* A tensor: ne[0] is the contiguous (input) dimension; unused dimensions are 1. Row r of a matrix
 * starts at data + r * row_bytes. */
struct tensor {
    /* NUL-terminated */
    const char *name;
    const struct tensor_format *format;
    uint32_t n_dims;
    uint64_t ne[4];
    size_t row_bytes, n_bytes;
    /* NULL after gguf_drop_data(), and if the rows are scattered */
    const uint8_t *data;
    /* Scattered rows: row r of the whole tensor is row r % piece_rows of piece[r / piece_rows], and
     * row 0 of this tensor is row `first` of the whole. With interleave d, the whole has groups of
     * d rows, and its row i of a group is row i / 2 of the half i % 2 of the stored group: the
     * order in which RoPE rotates neighbours. With halved h, too, the first h rows of a group have
     * the other order: its rows are the stored ones with even numbers, then the odd ones. NULL: the
     * rows follow each other from data on. */
    const uint8_t *const *piece;
    uint64_t piece_rows, first;
    /* How blocks are made of REPACK_PARTS pieces for each piece_rows rows (base/repack.h); NULL:
     * the file has the blocks */
    const struct repack *repack;
    uint32_t interleave, halved;
    uint16_t shard;
    /* offset of the data in its shard */
    uint64_t file_offset;
    /* F32: factor of all values, one number for each of the ne[2] matrices. engine/bind sets it
     * for the tensors of a model that have one; NULL as read from the file. */
    const struct tensor *scale;
};

/* Returns which stored row is row @r of the whole tensor, in the order of tensor.interleave and
 * tensor.halved. */
uint64_t tensor_order(uint32_t interleave, uint32_t halved, uint64_t r);
/* Returns row @r of a tensor whose rows are scattered; see tensor_row(). */
const uint8_t *tensor_find_row(const struct tensor *t, uint64_t r);
/* Returns the row_bytes bytes of row @r < ne[1] * ne[2] * ne[3] of a tensor without repack. */
static inline const uint8_t *tensor_row(const struct tensor *t, uint64_t r) {
    return t->piece ? tensor_find_row(t, r) : t->data + r * t->row_bytes;
}
/* Returns blocks [first, first + n) of row @r, in place or, if they are made, in @room of
 * n * block_bytes bytes. */
const uint8_t *tensor_blocks(const struct tensor *t, uint64_t r, uint64_t first, uint64_t n,
                             uint8_t *room);
/* Returns the codes of row @r from column @k on of a matrix of FP8 (base/repack.h), in place, and
 * sets *scale to the scale of that column. */
const uint8_t *tensor_fp8_codes(const struct tensor *t, uint64_t r, uint64_t k, float *scale);
/* Returns the bytes in the files of which @t is made, in range @i of the ranges, and sets *n; NULL:
 * there are no more. */
const uint8_t *tensor_range(const struct tensor *t, uint64_t i, size_t *n);
/* Copies rows [first, first + n) of @t to @out, n * row_bytes bytes. */
void tensor_copy_rows(const struct tensor *t, uint64_t first, uint64_t n, void *out);
/* Moves the begin of @t, a view, @n rows on. */
void tensor_skip_rows(struct tensor *t, uint64_t n);

struct gguf;
struct gguf_array;

/* Opens @path (for a split model any of its shards) read-only. Every shard's descriptor is kept
 * open until gguf_free(). Returns 0, -errno, or -EINVAL with @err ("offset 1234: ..."). */
int gguf_open(struct gguf **out, const char *path, struct err *err);
/* Opens a model like gguf_open(), from descriptors that are already open (the worker has no file
 * system): one for each shard, in order; or a header that gguf_build.h made, then the files that
 * have its tensors' rows. The descriptors are duplicated. */
int gguf_open_fds(struct gguf **out, const int *fds, uint32_t n_fds, struct err *err);
/* Unmaps the tensors' data: tensor.data becomes NULL, all other members stay valid. */
void gguf_drop_data(struct gguf *g);
/* Reads the tensors' data into private memory, at the same addresses. Returns 0, -ENOMEM, -EAGAIN
 * if a file has become shorter, or -errno. */
int gguf_copy_data(struct gguf *g);
/* Returns true if a file was written to or truncated since it was opened. A file that was replaced
 * by a rename has not changed, because the old file is still open. */
bool gguf_has_changed(const struct gguf *g);
/* Unmaps and closes the files; strings, arrays and tensors become invalid. Accepts NULL, returns
 * NULL. */
struct gguf *gguf_free(struct gguf *g);
DEFINE_FREEP(struct gguf, gguf)

uint32_t gguf_version(const struct gguf *g);  /* version of the format: 2 or 3 */
uint32_t gguf_n_shards(const struct gguf *g); /* number of files, at least 1 */
/* descriptor of shard @shard < n, owned by @g */
int gguf_shard_fd(const struct gguf *g, uint32_t shard);
uint64_t gguf_bytes(const struct gguf *g); /* size of all shards in bytes */
/* Computes 128 bits that distinguish model files, from header, tensor directory and samples of
 * the data. */
void gguf_fingerprint(const struct gguf *g, uint8_t out[16]);

/* Metadata of the first shard. The getters return 0, -ENOENT, or -EINVAL if the value has another
 * type or does not fit into the result; out-parameters are written only on success. gguf_u32() and
 * gguf_f32() accept numbers of every type (see gguf_array_read()); gguf_f32() refuses
 * infinities. */
uint64_t gguf_n_kv(const struct gguf *g);
/* Returns key @i < n and, unless @type is NULL, the type of its value. */
struct gguf_str gguf_key(const struct gguf *g, uint64_t i, enum gguf_type *type);
bool gguf_has(const struct gguf *g, const char *key);
int gguf_u32(const struct gguf *g, const char *key, uint32_t *out);
int gguf_f32(const struct gguf *g, const char *key, float *out);
int gguf_bool(const struct gguf *g, const char *key, bool *out);
int gguf_string(const struct gguf *g, const char *key, struct gguf_str *out);

/* Returns the array of @key, whose elements have one type; NULL: there is none. The array is valid
 * until gguf_free(). */
const struct gguf_array *gguf_array(const struct gguf *g, const char *key);
enum gguf_type gguf_array_type(const struct gguf_array *a);
uint64_t gguf_array_n(const struct gguf_array *a);
/* Returns element @i < n of an array of strings, in time O(1) (an index is built at open). */
struct gguf_str gguf_array_str(const struct gguf_array *a, uint64_t i);
/* Reads the elements from @first on, at most @n, into @out, an array of the C type of @as: GGUF_U8
 * uint8_t, GGUF_F32 float, GGUF_BOOL bool, and so on. Converts from every type of numbers: floats
 * are rounded; an integer is read if @as represents it, from a float if it has no fraction; a bool
 * is read from 0 and 1, and a bool of the file is no number. Returns how many elements were read:
 * fewer than @n if the array ends (@a = NULL, strings: at once), or if the next element is a NaN or
 * has no value in @as. */
uint64_t gguf_array_read(const struct gguf_array *a, enum gguf_type as, uint64_t first, uint64_t n,
                         void *out);
/* Returns element @i < n of an array of numbers or bools, rounded, for display. */
double gguf_array_num(const struct gguf_array *a, uint64_t i);

/* Tensors of all shards, in file order, @i < n; they are valid until gguf_free(). */
uint64_t gguf_n_tensors(const struct gguf *g);
const struct tensor *gguf_tensor(const struct gguf *g, uint64_t i);
/* finds a tensor by name in O(1); NULL: absent */
const struct tensor *gguf_find(const struct gguf *g, const char *name);
