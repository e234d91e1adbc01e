#pragma once

/*
 * repack - quantised matrices of other formats as blocks of GGUF.
 *
 * A published checkpoint has the codes, scales and zero points of a matrix as tensors of their own,
 * mostly in another order than a block of GGUF. The blocks are made when rows are read, so that a
 * model needs no second copy of its weights. Each block has the value of its codes exactly: codes
 * of 4 bits around 8 are Q4_0, those around a zero point Q5_0 (the difference has 5 bits), codes of
 * 8 bits around 128 Q8_0. Where a block of 32 columns has no common scale, values are rounded to
 * F16. FP8 is multiplied by its scale in F32 and rounded to BF16, as transformers does it. Matrices
 * that are stored by columns are read the same way.
 */

#include "base/gguf.h"

enum repack_kind {
    REPACK_NONE,
    /* E4M3 [row][column], scales [row / group_rows][column / group] */
    REPACK_FP8,
    /* two E2M1 codes a byte [row][column / 2], E8M0 scales [row][column / 32] */
    REPACK_MXFP4,
    /* the same codes, E4M3 scales [row][column / 16] */
    REPACK_NVFP4,
    /* words of codes [column * bits / 32][row], scales [column / group][row], words of zero points
     * [column / group][row * bits / 32] */
    REPACK_GPTQ,
    /* words of 4-bit codes of rows 0 2 4 6 1 3 5 7 [column][row / 8], zero points alike */
    REPACK_AWQ,
    /* words of codes [row][column * bits / 32], scales [row][column / group], words of zero points
     * [row * bits / 32][column / group] */
    REPACK_PACKED,
    /* signed codes [row][column], scales [row / group_rows][column / group] */
    REPACK_INT8,
    /* values of 16 bits [column][row], in the type of scales, which there are not */
    REPACK_TURNED,
    REPACK_KINDS,
};

/* Tensors of which a matrix is made; index: the group of each column, I32. */
enum repack_part { REPACK_CODES, REPACK_SCALES, REPACK_ZEROS, REPACK_INDEX, REPACK_PARTS };

/* Layout of the parts of a matrix, numbers alone, which the header's list has as an array. */
struct repack {
    /* enum repack_kind; bits of an integer code */
    uint32_t kind, bits;
    /* columns and rows that share a scale */
    uint32_t group, group_rows;
    /* enum tensor_type of scales: F32, F16, BF16 */
    uint32_t scale_type;
    /* 0: the zero point is the middle of the codes; 1: it is stored; 2: stored less one */
    uint32_t zeros;
    /* columns have their groups from REPACK_INDEX */
    uint32_t indexed;
    /* rows of another matrix behind each row, 0 or 1; MXFP4 and TURNED alone */
    uint32_t skip;
    /* rows of the stored matrix, of which this one has some; 0: it has all; GPTQ and AWQ alone */
    uint32_t stride;
};

#define REPACK_NUMBERS 9u

/* Returns the format of GGUF that the blocks of a matrix with @n_in columns have. */
enum tensor_type repack_type(const struct repack *p, uint64_t n_in);
/* Checks the layout @p of matrices of @n_rows rows and @n_in columns, and computes the bytes of
 * their parts; 0: there is no such part. Returns 0 or -EINVAL. */
int repack_sizes(const struct repack *p, uint64_t n_rows, uint64_t n_in,
                 uint64_t bytes[REPACK_PARTS]);
/* Finds rows [from, from + n) of a matrix of @n_rows rows: the layout *out of a matrix of these
 * rows, and where each of its parts begins in that of the whole matrix, in bytes. Returns 0;
 * -EINVAL: the rows share a word or a scale with others. */
int repack_slice(const struct repack *p, uint64_t n_rows, uint64_t n_in, uint64_t from, uint64_t n,
                 struct repack *out, uint64_t at[REPACK_PARTS]);
/* Returns true if @t is made of 4-bit codes of which each @columns columns share a scale and a zero
 * point. */
bool repack_has_groups(const struct tensor *t, uint32_t columns);
/* Writes the values of row @r of the whole tensor, scale times code, to the t->ne[0] floats at
 * @out. Layouts of TURNED have no codes. */
void repack_values(const struct tensor *t, uint64_t r, float *out);
/* Returns the codes of row @r of the whole tensor from column @k on, of FP8, and sets *scale to the
 * scale of that column. */
const uint8_t *repack_fp8_codes(const struct tensor *t, uint64_t r, uint64_t k, float *scale);
/* Writes blocks [first, first + n) of row @r of the whole tensor that @t is a view of. Reads
 * nothing outside the parts, whatever these contain. */
void repack_blocks(const struct tensor *t, uint64_t r, uint64_t first, uint64_t n, uint8_t *out);
