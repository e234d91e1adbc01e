#pragma once

/* reader - the state of reading a checkpoint, which the parts of the folder share. */

#include "base/buf.h"
#include "base/gguf_build.h"
#include "base/json_read.h"
#include "base/repack.h"
#include "checkpoint/archs.h"
#include "checkpoint/safetensors.h"

/* Most weight files of a folder. */
#define READER_FILES_MAX 500u

/* A weight file. */
struct reader_file {
    char *name;
    int fd;
};

/* Rule of config.json about integers; kind 0: there is none. */
struct quantised_rule {
    /* REPACK_GPTQ, REPACK_AWQ */
    enum repack_kind kind;
    uint32_t bits, group;
    bool symmetric, act_order, zeros_less_one;
    /* rows and columns of a block of FP8 */
    uint32_t block[2];
};

struct quantised;

/* Invariant: text is config or a member of it; files that are not open have fd -1. */
struct reader {
    /* descriptor of the folder */
    int dir;
    /* config.json */
    yyjson_doc *doc;
    /* its root */
    yyjson_val *config;
    /* the text model's part of it */
    yyjson_val *text;
    const struct arch_row *row;
    struct quantised_rule rule;
    struct reader_file *file;
    uint32_t n_files;
    struct st_list list;
    struct gguf_build build;
    /* [n_used] numbers of the files of which an image encoder has matrices in place (vision.c) */
    uint32_t used[READER_FILES_MAX], n_used;
    /* size of heads, and that of the heads of layers without a window if row->two_heads */
    uint32_t head_dim, full_dim;
    /* first values of a head that RoPE rotates */
    uint32_t n_rot;
    /* n_stored: blocks of multi-token prediction in the weight files, where they follow the layers;
     * n_mtp: those that are kept */
    uint32_t n_head, n_head_kv, n_layer, n_stored, n_mtp, n_vocab;
    /* first rows of the table of positions that no token has */
    uint32_t n_padded;
    struct err *err;
};

/* Returns the number of the first of the @keys (blanks separate them) that config.json has, or its
 * default; NAN if there is none or it is no number. */
double reader_number(const struct reader *r, const char *keys);

/* Opens the folder @dir, whose converted tensors have at most @data_max bytes. Returns 0 or -errno
 * with @err. */
int reader_open(struct reader *r, const char *dir, size_t data_max, struct err *err);
void reader_close(struct reader *r);

/* Reads config.json to @text, and calls reader_open_config(). */
int reader_read_config(struct reader *r, struct buf *text);

/* Opens the folder's file @name, also FOLDER/FILE, which may be a link into the blobs of the hub's
 * cache beside it but not elsewhere. Returns a descriptor or -errno. */
int reader_openat(const struct reader *r, const char *name);

/* Reads the folder's JSON file @name of at most @max bytes to *@out, which the caller frees; NULL:
 * there is no such file. Returns 0 or -errno; -EINVAL: it is too large, not JSON or no regular
 * file. */
int reader_json(const struct reader *r, const char *name, uint32_t max, yyjson_doc **out);

/* Returns true if the folder @dir has config.json and weights that are not GGUF, and sets *bytes to
 * the size of the safetensors files. */
bool reader_is_folder(const char *dir, uint64_t *bytes);

/* Replaces the message in @err by one that says what the folder @dir is, if it has no model but
 * files that publishers put beside one. */
void reader_explain(const char *dir, struct err *err);

/* Finds and opens the weight files, and reads their headers. */
int reader_open_files(struct reader *r);
/* Reads config.json, and finds the row of the architecture. */
int reader_open_config(struct reader *r, const char *text, size_t len);
/* Counts the blocks of multi-token prediction in the weight files: no key of config.json says it
 * for all architectures, and quantised folders often lack them. */
void reader_count_mtp(struct reader *r);
/* Writes the hyperparameters. */
int reader_write_keys(struct reader *r);
/* Writes the parameters of sampling in generation_config.json, of @len bytes at @text, which is an
 * object; NULL: there is no such file. Returns 0 or -errno. */
int reader_write_sampling(struct reader *r, const char *text, size_t len);
/* Writes how the rows of a text become its vector, if 1_Pooling/config.json says it. */
int reader_write_pooling(struct reader *r);
/* Adds the weight file @name, appends its tensors to @list and sets *@file to its number. Returns 0
 * or -errno. */
int reader_open_file(struct reader *r, const char *name, struct st_list *list, uint32_t *file);
/* Adds the matrices behind the pooling, if there are any. */
int reader_write_dense(struct reader *r);
/* Writes the tensors. */
int reader_write_tensors(struct reader *r);
/* Returns true if @name is of the pattern (archs.h), and sets *@layer if the pattern has one. */
bool reader_match(const char *pattern, const char *name, uint32_t *layer);
/* Finds the format of GGUF for the values of @t. Returns 0 or -EINVAL. */
int reader_type(const struct reader *r, const struct st_tensor *t, enum tensor_type *out);
/* Reads the bytes of @t to *@out, which the caller frees. Returns 0 or -errno; -EINVAL: they are
 * more than the header may have. */
int reader_bytes(const struct reader *r, const struct st_tensor *t, uint8_t **out);
/* Adds a copy of @t with the name of @b: vectors and gains in F32, others as they are. Returns 0 or
 * -errno. */
int reader_copy(struct reader *r, const struct st_tensor *t, enum name_how how,
                struct gguf_built *b);
/* Writes the experts' matrices whose blocks of MXFP4 are @t (layouts.c). Returns 0 or -errno. */
int reader_write_blocks(struct reader *r, const struct st_tensor *t, enum name_how how,
                        uint32_t layer);
/* Writes the experts' matrices that @t has by columns (layouts.c). Returns 0 or -errno. */
int reader_write_turned(struct reader *r, const struct st_tensor *t, enum name_how how,
                        uint32_t layer);
/* Writes the tensors of GGUF that @t holds together (layouts.c). @q: the matrix whose codes are @t;
 * NULL: the values stand for themselves. Returns 0 or -errno. */
int reader_write_layout(struct reader *r, const struct st_tensor *t, enum name_how how,
                        uint32_t layer, const struct quantised *q);
/* Adds the @n factors of the matrices of tensor @b, NAME.scale beside NAME.weight, unless they are
 * 0, which stands for none. Returns 0 or -errno. */
int reader_write_factors(struct reader *r, const struct gguf_built *b, const float *factor,
                         uint32_t n);
