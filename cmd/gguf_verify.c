/* weft-gguf verify - opens the file, which checks its structure, and then every number that can be
 * infinite or NaN: the weights of F32, F16 and BF16 tensors, and the scales of quantised blocks
 * (the rest of a block is integers). */

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/gguf.h"
#include "checkpoint/checkpoint.h"
#include "cmd/cli.h"
#include "cmd/gguf_cmd.h"

static const char usage[] =
    "usage: weft-gguf verify FILE\n"
    "Checks structure and weights. Prints \"ok\", or on stderr the first problem and its place.\n";

/* Returns the offset of the first number at @at + k * @stride whose exponent bits (@mask of its top
 * 16 bits) are all set, or -1. */
static int64_t verify_find_bad(const uint8_t *data, size_t bytes, size_t at, size_t stride,
                               uint16_t mask) {
    assert(at + 2 <= stride && bytes % stride == 0);
    for (size_t i = at; i + 2 <= bytes; i += stride)
        if (((data[i] | data[i + 1] << 8) & mask) == mask)
            return (int64_t)i;
    return -1;
}

/* Returns the offset of the first block of @stride bytes whose first byte, an exponent, takes
 * its values out of the range of floats (12 x 2^125; 255 is NaN by the standard of the format),
 * or -1. */
static int64_t find_bad_exponent(const uint8_t *data, size_t bytes, size_t stride) {
    for (size_t i = 0; i < bytes; i += stride)
        if (data[i] >= 253)
            return (int64_t)i;
    return -1;
}

/* Returns the offset in the first IQ1_M block whose scale, stored in four pieces, has all
 * exponent bits set, or -1. */
static int64_t find_bad_iq1_m(const uint8_t *data, size_t bytes, size_t stride) {
    assert(stride >= 56 && bytes % stride == 0);
    for (size_t i = 0; i < bytes; i += stride)
        if ((data[i + 53] & 0xC0) == 0xC0 && (data[i + 55] & 0x70) == 0x70)
            return (int64_t)i + 53;
    return -1;
}

/* Returns the offset of the first value or scale that is not finite, or -1. */
static int64_t verify_bytes(const struct tensor *t) {
    size_t stride = t->format->block_bytes;
    int64_t bad = -1;

    if (t->format->type == TENSOR_F32)
        return verify_find_bad(t->data, t->n_bytes, 2, 4, 0x7F80);
    if (t->format->type == TENSOR_BF16)
        return verify_find_bad(t->data, t->n_bytes, 0, 2, 0x7F80);
    if (t->format->type == TENSOR_MXFP4)
        return find_bad_exponent(t->data, t->n_bytes, stride);
    if (t->format->type == TENSOR_IQ1_M)
        return find_bad_iq1_m(t->data, t->n_bytes, stride);
    for (size_t i = 0; i < ARRAY_SIZE(t->format->half_at) && bad < 0; i++) {
        uint16_t at = t->format->half_at[i];

        if (at != TENSOR_NONE)
            bad = verify_find_bad(t->data, t->n_bytes, at, stride, 0x7C00);
    }
    return bad;
}

/* Returns the offset in its row of the first value or scale that is not finite, or -1. */
static int64_t check_made_rows(const struct tensor *t) {
    CLEANUP(freep) uint8_t *row = malloc(t->row_bytes);
    struct tensor part = *t;
    int64_t bad = -1;

    if (!row)
        return 0;
    part.n_bytes = t->row_bytes;
    part.data = row;
    for (uint64_t r = 0; r < t->n_bytes / t->row_bytes && bad < 0; r++) {
        tensor_copy_rows(t, r, 1, row);
        bad = verify_bytes(&part);
    }
    return bad;
}

/* Returns the offset of the first value or scale that is not finite, counted in the piece that has
 * it, or -1. */
static int64_t check_tensor(const struct tensor *t) {
    uint64_t n_rows = t->n_bytes / t->row_bytes;
    struct tensor part = *t;
    int64_t bad = -1;

    if (t->repack)
        return check_made_rows(t);
    if (!t->piece)
        return verify_bytes(t);
    part.piece = NULL;
    part.n_bytes = t->piece_rows * t->row_bytes;
    for (uint64_t i = 0; i < n_rows / t->piece_rows && bad < 0; i++) {
        part.data = t->piece[i];
        bad = verify_bytes(&part);
    }
    return bad;
}

int gguf_cmd_verify(int argc, char **argv) {
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    struct err err = {0};
    int n_args, code = cli_parse(argc, argv, NULL, 0, usage, &n_args);

    if (code >= 0)
        return code;
    if (n_args != 1)
        return cli_usage("verify needs one FILE");
    int r = checkpoint_open_model(&g, argv[1], &err);
    if (r < 0)
        return cli_fail_err(argv[1], &err, r);
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct tensor *t = gguf_tensor(g, i);
        int64_t bad = check_tensor(t);

        if (bad >= 0)
            return cli_fail("%s: tensor %s (%s): not finite at offset %" PRIu64 " of file %u of %u",
                            argv[1], t->name, t->format->name, t->file_offset + (uint64_t)bad,
                            t->shard + 1u, gguf_n_shards(g));
    }
    printf("%s: ok, %" PRIu64 " tensors, %" PRIu64 " bytes\n", argv[1], gguf_n_tensors(g),
           gguf_bytes(g));
    return cli_flush(CLI_OK);
}
