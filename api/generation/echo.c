#include "api/generation/echo.h"

#include <assert.h>
#include <errno.h>

#include "api/http/json.h"
#include "base/jobs.h"
#include "base/util.h"

#define TEXT_MAX (256u << 20)
#define UNIT 4096 /* tokens between two calls of job_pause() */

/* Decodes all tokens together and finds where each ends in the text. The text can be shorter than
 * the tokens' pieces together, because decoding drops a leading space; the first piece is the
 * shorter one. */
static int echo_fill(struct echo *e, const struct tokenizer *t, const int32_t *id, uint32_t skip) {
    size_t sum = 0, len;
    assert(skip <= e->n);
    int r = tokenizer_decode(t, id + skip, e->n - skip, true, &e->text);

    for (uint32_t i = skip; i < e->n; i++, sum += len) {
        tokenizer_piece(t, id[i], true, &len);
        if (i % UNIT == 0 && job_pause() < 0)
            return -ECANCELED;
    }
    size_t missing = sum > e->text.len ? sum - e->text.len : 0;
    sum = 0;
    for (uint32_t i = skip; i < e->n; i++) {
        tokenizer_piece(t, id[i], true, &len);
        sum += len;
        e->end[i] = (uint32_t)(sum > missing ? sum - missing : 0);
    }
    return r;
}

uint64_t echo_chars(const char *text, size_t from, size_t to) {
    uint64_t n = 0;

    assert(from <= to);
    for (size_t i = from; i < to; i++)
        n += json_begins(text, i);
    return n;
}

int echo_new(struct echo **out, const struct tokenizer *t, const int32_t *id, uint32_t n,
             bool given) {
    struct echo *e = calloc(1, sizeof(*e));
    bool bos = given && n > 0 && tokenizer_adds_bos(t) && id[0] == tokenizer_bos(t);

    if (!e)
        return -ENOMEM;
    buf_init(&e->text, TEXT_MAX);
    e->n_users = 1;
    e->n = n;
    e->end = calloc(n + 1, sizeof(*e->end));
    int r = e->end ? echo_fill(e, t, id, bos) : -ENOMEM;
    if (r < 0) {
        echo_free(e);
        return r;
    }
    e->n_chars = echo_chars(e->text.data, 0, e->text.len);
    *out = e;
    return 0;
}

struct echo *echo_use(struct echo *e) {
    assert(!e || e->n_users > 0);
    if (e)
        e->n_users++;
    return e;
}

struct echo *echo_free(struct echo *e) {
    if (!e)
        return NULL;
    assert(e->n_users > 0);
    if (--e->n_users > 0)
        return NULL;
    buf_deinit(&e->text);
    free(e->end);
    free(e);
    return NULL;
}
