#include "tests/support/telltale_time.h"

#include "base/rng.h"
#include "base/util.h"

#define SHARED_CHUNK 256u /* keys: the chunks of engine/shared/pages.h */

/* Returns the number of pages that sequences @i and @k, which have one row each, have in common, in
 * whole chunks. */
static uint32_t common_pages(const struct engine_batch *b, uint32_t i, uint32_t k, uint32_t chunk) {
    const uint32_t *start = b->table[KV_GLOBAL].start, *page = b->table[KV_GLOBAL].page;
    uint32_t n = 0, max = MIN(start[i + 1] - start[i], start[k + 1] - start[k]) - 1;

    while (n < max && page[start[i] + n] == page[start[k] + n])
        n++;
    return n - n % chunk;
}

/* Returns the number of sequences from @i on that share their beginning, and of its pages; 1:
 * none. */
static uint32_t group_at(const struct telltale *t, const struct engine_batch *b, uint32_t i,
                         uint32_t page_tokens, uint32_t *n_common) {
    uint32_t n = 1, chunk = MAX(SHARED_CHUNK / page_tokens, 1u);

    *n_common = 0;
    for (; n < t->together && i + n < b->n_seqs; n++) {
        if (b->seq[i].n_rows != 1 || b->seq[i + n].n_rows != 1)
            break;
        uint32_t common = common_pages(b, i, i + n, chunk);
        if (common == 0 || (n > 1 && common < *n_common / 2))
            break;
        *n_common = n > 1 ? MIN(common, *n_common) : common;
    }
    return n;
}

static double copies_ns(const struct telltale *t, const struct engine_copy *c, uint32_t n) {
    double ns = 0;

    for (uint32_t i = 0; i < n; i++)
        ns += (double)(is_of_state(&c[i]) ? t->state_ns : t->copy_ns);
    return ns;
}

double telltale_ns(const struct telltale *t, const struct engine_batch *b, uint32_t page_tokens) {
    struct rng noise = {t->poison + b->step};
    double keys = 0, pairs = 0, ns;
    uint32_t n_common;

    if (b->model)
        return (double)(t->block_ns + t->row_ns * (int64_t)b->n_rows / 8);
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        double n = b->seq[i].n_rows, pos0 = b->seq[i].pos0;

        keys += pos0 + n;
        pairs += n < 2 ? 0 : n * pos0 + n * (n + 1) / 2;
    }
    for (uint32_t i = 0; i < b->n_seqs;) {
        uint32_t n = group_at(t, b, i, page_tokens, &n_common);

        keys -= (double)(n - 1) * n_common * page_tokens;
        i += n;
    }
    ns = (double)t->step_ns + (double)t->seq_ns * b->n_seqs + t->key_ns * keys +
         t->pair_ns * pairs + copies_ns(t, b->before, b->n_before) +
         copies_ns(t, b->after, b->n_after) +
         (double)MAX(t->read_ns, t->row_ns * (int64_t)b->n_rows);
    if (t->busy > 0) {
        struct rng period = {t->poison + b->step / t->busy};

        ns *= rng_below(&period, 2) ? 10 : 1;
    }
    return ns * (1 + t->noise * (2 * rng_unit(&noise) - 1));
}
