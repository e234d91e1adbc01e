/*
 * Tests the choice of keys of sparse attention, and the rows of a table of n-grams, against naive
 * versions.
 */

#include <criterion/criterion.h>
#include <string.h>

#include "base/rng.h"
#include "engine/ngram.h"
#include "engine/sparse.h"

enum { CONTEXT = 700 };

/* Returns true if block @i is among the @n largest of @n_all scores; of equal scores the first are
 * taken. */
static bool is_chosen(const float *score, uint32_t n_all, uint32_t i, uint32_t n) {
    uint32_t before = 0;

    for (uint32_t k = 0; k < n_all; k++)
        before += score[k] > score[i] || (score[k] == score[i] && k < i);
    return before < n;
}

Test(sparse, a_row_sees_the_best_blocks_the_first_of_equal_ones_and_the_tail) {
    struct rng rng = {5};

    for (uint32_t ratio = 1; ratio <= 16; ratio *= 2)
        for (uint32_t round = 0; round < 40; round++) {
            struct sparse_shape s = {.ratio = ratio, .n_block = 1 + rng_below(&rng, 30)};
            uint32_t pos = rng_below(&rng, CONTEXT), n = sparse_whole(&s, pos);
            uint32_t seen[CONTEXT / 32 + 1], spread = 1 + rng_below(&rng, 40);
            float score[CONTEXT];

            memset(seen, 0xAA, sizeof(seen));
            for (uint32_t i = 0; i < n; i++) /* many are equal, and many are 0 */
                score[i] = (float)rng_below(&rng, spread) * 0.37F;
            sparse_see(&s, pos, score, seen);
            for (uint32_t p = 0; p <= pos; p++) {
                bool tail = p >= n * ratio;
                bool should = tail || is_chosen(score, n, p / ratio, s.n_block);

                bool is = seen[p / 32] >> p % 32 & 1;

                cr_assert(is == should, "ratio %u, %u of %u", ratio, p, pos);
            }
            uint32_t behind = pos % 32 == 31 ? 0 : seen[pos / 32] >> (pos % 32 + 1);
            cr_assert(behind == 0, "keys behind %u", pos);
        }
}

/* Other rows than the last of a block see a part of it. */
Test(sparse, a_row_sees_the_last_blocks_and_the_best_others_up_to_itself) {
    struct rng rng = {7};

    for (uint32_t round = 0; round < 400; round++) {
        struct sparse_shape s = {.ratio = 1,
                                 .block = 32u << rng_below(&rng, 3),
                                 .n_block = 2 + rng_below(&rng, 9),
                                 .n_local = rng_below(&rng, 3)};
        uint32_t pos = rng_below(&rng, CONTEXT), n = pos / s.block + 1, spread = 2;
        uint32_t seen[CONTEXT / 32 + 1], local = MIN(s.n_local, n);
        float score[CONTEXT], given[CONTEXT];

        spread += rng_below(&rng, 40);
        memset(seen, 0xAA, sizeof(seen));
        for (uint32_t i = 0; i < n; i++)
            given[i] = score[i] = ((float)rng_below(&rng, spread) - (float)(spread / 2)) * 0.37F;
        sparse_see_blocks(&s, pos, score, seen);
        for (uint32_t p = 0; p <= pos; p++) {
            uint32_t i = p / s.block, left = s.n_block - local;
            bool should = i >= n - local || is_chosen(given, n - local, i, left);
            bool is = seen[p / 32] >> p % 32 & 1;

            cr_assert(is == should, "blocks of %u, %u of %u", s.block, p, pos);
        }
        cr_assert_eq(seen[pos / 32] & ~(UINT32_MAX >> (31 - pos % 32)), 0, "keys behind %u", pos);
    }
}

Test(sparse, the_best_of_scores_of_any_sign) {
    struct rng rng = {6};

    for (uint32_t round = 0; round < 400; round++) {
        uint32_t n = rng_below(&rng, CONTEXT), k = 1 + rng_below(&rng, 90), at = 0;
        uint32_t best[CONTEXT], spread = 1 + rng_below(&rng, 60);
        float score[CONTEXT];

        for (uint32_t i = 0; i < n; i++) /* including 0 and -0 */
            score[i] = ((float)rng_below(&rng, spread) - (float)(spread / 2)) * -0.37F;
        uint32_t n_best = sparse_best(score, n, k, best);
        cr_assert_eq(n_best, n < k ? n : k);
        for (uint32_t i = 0; i < n; i++) {
            bool is = at < n_best && best[at] == i;

            cr_assert(is == is_chosen(score, n, i, k), "%u of %u, the best %u", i, n, k);
            at += is;
        }
    }
}

static const struct ngram_shape table = {
    .n = 3,
    .n_head = 2,
    .eos = 9,
    .factor = {29790271842017, 24358605988693, 18618317586227},
    .first = {0, 307, 618, 931},
    .size = {307, 311, 313, 317},
};

/* Returns the rows of the token at @pos of a whole text, directly from the definition. */
static void rows_at(const int32_t *text, uint32_t pos, uint64_t out[4]) {
    uint64_t t[3] = {(uint64_t)text[pos], 9, 9};

    for (uint32_t k = 1; k < 3 && k <= pos && text[pos - k] != 9; k++)
        t[k] = (uint64_t)text[pos - k];
    uint64_t two = t[0] * table.factor[0] ^ t[1] * table.factor[1];
    uint64_t three = two ^ t[2] * table.factor[2];
    out[0] = two % 307;
    out[1] = two % 311 + 307;
    out[2] = three % 313 + 618;
    out[3] = three % 317 + 931;
}

Test(ngram, rows_follow_the_text_however_it_is_cut) {
    struct rng rng = {6};

    for (uint32_t round = 0; round < 200; round++) {
        int32_t text[40];
        float last[NGRAM_STATE] = {0};

        for (int i = 0; i < 40; i++) /* token 9 ends a text sometimes */
            text[i] = (int32_t)(rng_below(&rng, 4) ? rng_below(&rng, 500) : 9);
        for (uint32_t pos = 0; pos < 40;) {
            uint32_t n = 1 + rng_below(&rng, MIN(5, 40 - pos));
            struct engine_seq q = {.row0 = 0, .n_rows = n, .pos0 = pos};
            struct engine_batch batch = {.n_rows = n, .token = text + pos};

            for (uint32_t k = 0; k < n; k++) {
                int32_t token[NGRAM_TOKENS];
                uint64_t row[4], should[4];

                ngram_tokens(&table, &batch, &q, k, last, token);
                ngram_rows(&table, token, row);
                rows_at(text, pos + k, should);
                for (int h = 0; h < 4; h++)
                    cr_assert(row[h] == should[h], "position %u, head %d", pos + k, h);
            }
            ngram_keep(&table, &batch, &q, last);
            pos += n;
        }
    }
}
