#include "api/generation/echo.h"

#include "base/util.h"

#define TEXT_MAX (256u << 20)

/* The text is what the tokenizer makes of all tokens; a space that it drops is missing in the first
 * of them. */
static int fill(struct echo *e, const struct tokenizer *t, const int32_t *id, uint32_t skip) {
    size_t sum = 0, len;
    int r = tokenizer_decode(t, id + skip, e->n - skip, true, &e->text);

    for (uint32_t i = skip; i < e->n; i++, sum += len)
        tokenizer_piece(t, id[i], true, &len);
    size_t missing = sum > e->text.len ? sum - e->text.len : 0;
    sum = 0;
    for (uint32_t i = skip; i < e->n; i++) {
        tokenizer_piece(t, id[i], true, &len);
        sum += len;
        e->end[i] = (uint32_t)(sum > missing ? sum - missing : 0);
    }
    return r;
}

struct echo *echo_new(const struct tokenizer *t, const int32_t *id, uint32_t n, bool given) {
    struct echo *e = calloc(1, sizeof(*e));
    bool bos = given && n > 0 && tokenizer_adds_bos(t) && id[0] == tokenizer_bos(t);

    if (!e)
        return NULL;
    buf_init(&e->text, TEXT_MAX);
    e->n = n;
    e->end = calloc(n + 1, sizeof(*e->end));
    if (!e->end || fill(e, t, id, bos) < 0)
        return echo_free(e);
    return e;
}

struct echo *echo_free(struct echo *e) {
    if (!e)
        return NULL;
    buf_deinit(&e->text);
    free(e->end);
    free(e);
    return NULL;
}
