#pragma once

/*
 * load - parts of loading an op's weights (load.c), of which the loaders of the kinds consist
 * (ops.c). Functions that return int return 0 or -errno with @err.
 */

#include <stddef.h>
#include <string.h>

#include "engine/cuda/cuda.h"

/* The parts of a tensor that form a matrix: parts of @n rows, @stride apart, from row @first on.
 * Each part begins with a row tile of its own. @layer is 1 + the layer whose experts on the host
 * are skipped; 0: no part is skipped. */
struct parts {
    uint32_t n_parts, n, stride, first, layer;
};

/* Copies @n bytes to new memory of the weights. Returns 0 or -errno. */
int load_own(struct be *b, const void *data, size_t n, void **out, struct err *err);
/* Loads a vector unchanged; *out stays NULL if @t is NULL. Returns 0 or -errno. */
int load_vector(struct be *b, const struct tensor *t, float **out, struct err *err);
/* Returns the format of the tiles of @t: that of its type, or G4 for 4-bit codes with zero points
 * in groups of whole tiles. */
enum tile_format load_tile_format(const struct tensor *t);
/* Returns the first @n_rows rows of @t, which are at @data on the device. */
struct tile_source load_source(const struct be *b, const struct tensor *t, const uint8_t *data,
                               uint32_t n_rows);
/* Returns all rows of a matrix, or of the matrices of experts. The latter are one part if each has
 * whole row tiles. */
struct parts load_all_rows(const struct tensor *t);
/* Loads a matrix: file -> pinned buffer -> device -> tiles, with two buffers alternately, so that
 * one piece is repacked while the next is read. */
int load_parts(struct be *b, struct weights *w, const struct tensor *t, const struct parts *p,
               const struct tensor *bias, float *y, struct err *err);
/* Loads @t as the next matrix of @w, with its bias (or NULL) and the place of its product. */
int load_matrix(struct be *b, struct weights *w, const struct tensor *t, const struct tensor *bias,
                float *y, struct err *err);
/* Returns empty weights, which cuda_unload() frees; NULL without memory. */
struct weights *load_weights_new(struct be *b);
/* Loads @n tensors of any type and equal size as floats, consecutively, transposed to
 * [columns][rows]. */
int load_decoded(struct be *b, const struct tensor *const t[], uint32_t n, float **out,
                 struct err *err);
/* Returns the first value of an F32 tensor. */
float load_first_of(const struct tensor *t);
/* Returns the place of the product with matrix @i of an op (op_code.out, op_code.place); NULL while
 * weights are counted. */
float *load_place(const struct be *b, const struct model_op *op, int i);
/* Loads all matrices of an op. A matrix that equals the one before it is that one (GLU_RELU: the
 * gate is also the up). */
int load_matrices(struct be *b, struct weights *w, const struct model_op *op, struct err *err);
/* Loads matrices whose products have inputs of their own: each but the first is the @down of the
 * one before. */
int load_apart(struct be *b, struct weights *w, const struct model_op *op, struct err *err);
/* Loads a table whose rows are decoded when they are used. */
int load_table(struct be *b, const struct tensor *t, struct tile_source *out, struct err *err);
/* Returns true for a GATE_UP or EXPERTS op that rectifies separate gates. GLU_RELU is only
 * supported without gates, where w[1] is w[0]. */
bool load_has_relu_gates(const struct model_op *op);

/* Functions of rows, as op_code.lacks and op_code.load say. */
typedef const char *op_lacks(const struct model_shape *s, const struct model_op *op);
typedef int op_load(struct be *b, struct weights *w, const struct model_op *op, struct err *err);
/* Register @n elements of @size bytes for allocation, the address of which is written to @where;
 * @n 32-bit numbers of activations. @host: pinned memory. @what: a name for the sum. */
void memory_add(struct be *b, void *where, size_t n, size_t size, const char *what, bool host);
void memory_add_words(struct be *b, void *where, size_t n);

/* Counts buffers of an indexer whose queries have @n values for each row, and which chooses @n_set
 * times for a row up to @most of @max_blocks blocks. */
void memory_add_indexer(struct be *b, size_t n, uint32_t max_blocks, uint32_t most, uint32_t n_set);

/* Families of ops: mixtures of experts; dense FFNs that the host computes, each of which is one
 * expert; latent attention, whose heads count as experts; rows and states of recurrent layers;
 * residual streams; attention to compressed keys; indexer and attention to chosen keys; drafts. */
extern const struct op_family attention_family, experts_family, experts_host_family, latent_family,
    recurrent_family, streams_family, compressed_family, sparse_family, draft_family;
/* Implement op_family.check (cuda_check.c of the room). */
int experts_check(struct be *b, struct err *err);
int recurrent_check(struct be *b, struct err *err);
/* Returns whether an op of the model has the weights of an earlier one, as those of layers that run
 * several times have. */
bool ops_run_again(const struct model_shape *s, const struct model_op *op);
/* Sets @out to the families of the model's ops, in their order. Returns their number. */
uint32_t ops_families(const struct model_shape *s, const struct op_family *out[OP_KINDS]);

/* Names what heads of @h lack, for op_code.lacks; NULL: nothing. */
const char *heads_lack(const struct model_shape *s, const struct heads *h);
/* Loads a matrix that multiplies the row, and one or two tables. */
op_load load_with_tables;

/* The rows of the kinds of ops, each in the file of its function. */
#define OP(kind, name, feature, cost) extern const struct op_code cuda_op_##name;
#include "engine/op_list.h"
#undef OP
/* The offset of a buffer's member in struct be, for op_code.out. */
#define BE_AT(member) offsetof(struct be, member)
/* Returns the buffer of the member at @at. */
static inline float *load_buffer(const struct be *b, size_t at) {
    float *buffer;

    memcpy(&buffer, (const char *)b + at, sizeof(buffer));
    return buffer;
}
/* Kinds whose addition to x is computed with the norm of the next op, for op_code.adds. */
#define CUDA_ADDITIONS                                                                             \
    (OP_BIT(OP_PROJ) | OP_BIT(OP_JOIN) | OP_BIT(OP_EXPERTS) | OP_BIT(OP_SHARED) |                  \
     OP_BIT(OP_BLOCK_OUT) | OP_BIT(OP_DEEP))

/* Implement op_division of EXPERTS and SHARED (engine/ops/experts/cuda_ranks.c). */
op_lacks experts_divided_lacks;
struct op_cuts shared_cuts(const struct be *b, const struct model_op *op, uint32_t i);
step_op experts_own_gates, experts_own_sum, shared_own_gates, shared_own_sum;
