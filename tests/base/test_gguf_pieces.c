#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/gguf_build.h"
#include "base/rng.h"

#define FILE_BYTES 4096u
#define N_FILES 2u

static struct gguf_build build;
static struct err err;
static int files[N_FILES];

/* Two weight files of random bytes. */
static void begin(void) {
    struct rng rng = {7};

    gguf_build_init(&build, 1 << 20);
    for (uint32_t i = 0; i < N_FILES; i++) {
        uint8_t bytes[FILE_BYTES];

        for (size_t k = 0; k < sizeof(bytes); k++)
            bytes[k] = (uint8_t)rng_next(&rng);
        files[i] = memfd_create("weights", MFD_CLOEXEC);
        cr_assert_eq(write(files[i], bytes, sizeof(bytes)), (ssize_t)sizeof(bytes));
    }
}

static void end(void) {
    gguf_build_deinit(&build);
    for (uint32_t i = 0; i < N_FILES; i++)
        close(files[i]);
}

TestSuite(gguf_pieces, .init = begin, .fini = end);

/* Opens what was built together with the weight files. */
static int open_built(struct gguf **out) {
    int fds[N_FILES + 1] = {gguf_build_finish(&build), files[0], files[1]};

    cr_assert_geq(fds[0], 0);
    err = (struct err){0};
    int r = gguf_open_fds(out, fds, N_FILES + 1, &err);
    close(fds[0]);
    return r;
}

static uint8_t byte_of(uint32_t file, uint64_t at) {
    uint8_t b;

    cr_assert_eq(pread(files[file], &b, 1, (off_t)at), 1);
    return b;
}

/* A BF16 matrix of 4 values a row. */
static struct gguf_built matrix(const char *name, uint64_t n_rows, uint64_t n,
                                uint32_t interleave) {
    struct gguf_built t = {.type = TENSOR_BF16,
                           .ne = {4, n_rows, n, 1},
                           .n_dims = n > 1 ? 3 : 2,
                           .piece_rows = n_rows,
                           .interleave = interleave};

    strcpy(t.name, name);
    return t;
}

Test(gguf_pieces, rows_are_those_of_the_pieces) {
    const struct gguf_piece pieces[] = {{1, 96}, {0, 2}, {1, 8}};
    const struct gguf_built t = matrix("experts", 5, 3, 0);
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    uint8_t copy[15 * 8];

    cr_assert_eq(gguf_build_scattered(&build, &t, pieces, 3), 0);
    cr_assert_eq(open_built(&g), 0, "%s", err.message);
    const struct tensor *found = gguf_find(g, "experts");
    cr_assert(found && found->ne[2] == 3 && found->row_bytes == 8 && !found->data);
    tensor_copy_rows(found, 0, 15, copy);
    for (uint64_t r = 0; r < 15; r++)
        for (uint64_t k = 0; k < 8; k++) {
            const struct gguf_piece *p = &pieces[r / 5];
            uint8_t should = byte_of(p->file, p->offset + r % 5 * 8 + k);

            cr_expect_eq(tensor_row(found, r)[k], should);
            cr_expect_eq(copy[8 * r + k], should);
        }
    struct tensor part = *found;
    tensor_skip_rows(&part, 7);
    cr_expect_eq(tensor_row(&part, 2), tensor_row(found, 9));
}

Test(gguf_pieces, interleaved_rows_alternate_between_halves_of_a_head) {
    const struct gguf_piece piece = {0, 0};
    const struct gguf_built t = matrix("q", 12, 1, 6);
    static const uint8_t order[] = {0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11};
    CLEANUP(gguf_freep) struct gguf *g = NULL;

    cr_assert_eq(gguf_build_scattered(&build, &t, &piece, 1), 0);
    cr_assert_eq(open_built(&g), 0, "%s", err.message);
    const struct tensor *found = gguf_find(g, "q");
    for (uint64_t r = 0; r < 12; r++)
        for (uint64_t k = 0; k < 8; k++)
            cr_expect_eq(tensor_row(found, r)[k], byte_of(0, order[r] * 8u + k));
}

Test(gguf_pieces, the_first_rows_of_a_halved_head_are_its_even_ones) {
    const struct gguf_piece piece = {0, 0};
    struct gguf_built t = matrix("q", 12, 1, 6);
    static const uint8_t order[] = {0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11};
    CLEANUP(gguf_freep) struct gguf *g = NULL;

    t.halved = 4;
    cr_assert_eq(gguf_build_scattered(&build, &t, &piece, 1), 0);
    cr_assert_eq(open_built(&g), 0, "%s", err.message);
    const struct tensor *found = gguf_find(g, "q");
    for (uint64_t r = 0; r < 12; r++)
        for (uint64_t k = 0; k < 8; k++)
            cr_expect_eq(tensor_row(found, r)[k], byte_of(0, order[r] * 8u + k));
}

Test(gguf_pieces, one_piece_in_order_is_plain_data_and_own_tensors_stand_beside) {
    const struct gguf_piece piece = {1, 16};
    const struct gguf_built t = matrix("plain", 3, 1, 0);
    struct gguf_built own = {.name = "norm", .type = TENSOR_F32, .ne = {3, 1, 1, 1}, .n_dims = 1};
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    uint8_t *data;

    cr_assert_eq(gguf_keys_u32(&build.keys, "x", 5), 0);
    cr_assert_eq(gguf_build_tensor(&build, &own, 12, &data), 0);
    memcpy(data, "abcdefghijkl", 12);
    cr_assert_eq(gguf_build_scattered(&build, &t, &piece, 1), 0);
    strcpy(own.name, "norm2");
    cr_assert_eq(gguf_build_tensor(&build, &own, 12, &data), 0);
    memcpy(data, "ABCDEFGHIJKL", 12);
    cr_assert_eq(open_built(&g), 0, "%s", err.message);
    uint32_t x = 0;
    cr_expect(gguf_u32(g, "x", &x) == 0 && x == 5);
    cr_expect_eq(memcmp(gguf_find(g, "norm")->data, "abcdefghijkl", 12), 0);
    cr_expect_eq(memcmp(gguf_find(g, "norm2")->data, "ABCDEFGHIJKL", 12), 0);
    const struct tensor *plain = gguf_find(g, "plain");
    cr_assert(plain->data && !plain->piece && plain->shard == 2 && plain->file_offset == 16);
    cr_expect_eq(plain->data[5], byte_of(1, 21));
    gguf_drop_data(g);
    cr_expect(!plain->data && !gguf_find(g, "norm")->data);
}

Test(gguf_pieces, copied_data_stays_when_a_file_changes) {
    const struct gguf_piece pieces[] = {{0, 0}, {1, 0}};
    const struct gguf_built t = matrix("experts", 2, 2, 0);
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    uint8_t was = byte_of(1, 0);

    cr_assert_eq(gguf_build_scattered(&build, &t, pieces, 2), 0);
    cr_assert_eq(open_built(&g), 0, "%s", err.message);
    cr_expect(!gguf_has_changed(g));
    cr_assert_eq(gguf_copy_data(g), 0);
    cr_assert_eq(ftruncate(files[1], 0), 0);
    cr_expect_eq(tensor_row(gguf_find(g, "experts"), 2)[0], was);
    cr_expect(gguf_has_changed(g));
}

/* Spoils a tensor or its pieces. */
struct spoil {
    struct gguf_built t;
    struct gguf_piece piece[2];
    uint32_t n;
    const char *why;
};

Test(gguf_pieces, a_list_that_leads_out_of_the_files_is_refused) {
    struct spoil bad[] = {
        {matrix("a", 2, 2, 0), {{0, 0}, {2, 0}}, 2, "beyond the end"},
        {matrix("a", 2, 2, 0), {{0, 0}, {UINT32_MAX, 0}}, 2, "beyond the end"},
        {matrix("a", 2, 2, 0), {{0, 0}, {1, FILE_BYTES - 15}}, 2, "beyond the end"},
        {matrix("a", 2, 2, 0), {{0, UINT64_MAX}, {1, 0}}, 2, "beyond the end"},
        {matrix("a", 2, 1, 0), {{0, 0}, {1, 0}}, 2, "do not make 2 rows"},
        {matrix("a", 6, 1, 4), {{0, 0}}, 1, "no heads of 4"},
        {matrix("a", 6, 1, 3), {{0, 0}}, 1, "no heads of 3"},
        {matrix("a", 6, 1, 12), {{0, 0}}, 1, "no heads of 12"},
        {matrix("a", 1ull << 40, 1ull << 40, 0), {{0, 0}}, 1, "too large"},
        {matrix("a", 0, 1, 0), {{0, 0}}, 1, "too large"},
        {matrix("x", 1, 1, 0), {{0, 0}}, 1, "appears twice"},
    };
    struct gguf_built block = matrix("a", 2, 1, 0), unknown = matrix("a", 2, 1, 0);
    struct gguf_built halved = matrix("a", 6, 1, 6), odd = halved;

    block.type = TENSOR_Q4_0;
    unknown.type = (enum tensor_type)99;
    halved.halved = 8;
    odd.halved = 3;
    const struct spoil more[] = {
        {block, {{0, 0}}, 1, "no whole blocks"},
        {unknown, {{0, 0}}, 1, "unknown type"},
        {halved, {{0, 0}}, 1, "no 8 rows to halve"},
        {odd, {{0, 0}}, 1, "no 3 rows to halve"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad) + ARRAY_SIZE(more); i++) {
        const struct spoil *s = i < ARRAY_SIZE(bad) ? &bad[i] : &more[i - ARRAY_SIZE(bad)];
        const struct gguf_built x = matrix("x", 1, 1, 0);
        CLEANUP(gguf_freep) struct gguf *g = NULL;

        gguf_build_deinit(&build);
        gguf_build_init(&build, 1 << 20);
        cr_assert_eq(gguf_build_scattered(&build, &x, s->piece, 1), 0);
        cr_assert_eq(gguf_build_scattered(&build, &s->t, s->piece, s->n), 0);
        if (s->piece[0].offset == UINT64_MAX)
            build.piece[0].offset = 0;
        cr_expect_eq(open_built(&g), -EINVAL, "%zu", i);
        cr_expect(strstr(err.message, s->why), "%zu: %s", i, err.message);
    }
}

Test(gguf_pieces, a_file_alone_with_such_keys_has_no_further_tensors) {
    const struct gguf_piece piece = {0, 0};
    const struct gguf_built t = matrix("a", 2, 1, 0);
    CLEANUP(gguf_freep) struct gguf *g = NULL;

    cr_assert_eq(gguf_build_scattered(&build, &t, &piece, 1), 0);
    int fd = gguf_build_finish(&build);
    cr_assert_geq(fd, 0);
    cr_assert_eq(gguf_open_fds(&g, &fd, 1, &err), 0, "%s", err.message);
    cr_expect_eq(gguf_n_tensors(g), 0);
    close(fd);
}
