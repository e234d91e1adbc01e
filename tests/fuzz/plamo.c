/* A vocabulary of PLaMo's tokenizer and a text: lines with a token, a tab and its score, then an
 * empty line and the text. The text's tokens must have the least cost of all ways to cut it, which
 * is also found from its beginning, by trying every token at every place. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/gguf.h"
#include "tests/fuzz/fuzz.h"
#include "tests/text/tiny.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

enum { FIRST = 3 + 256, TOKENS = 64, TEXT = 4096 };

static const int64_t byte_cost = 10000000, cost_max = 20000000;

static void plamo_begin(struct tiny *v) {
    v->n = 0;
    tiny_add(v, "<unk>", TOKEN_UNKNOWN, 0);
    tiny_add(v, "<s>", TOKEN_CONTROL, 0);
    tiny_add(v, "</s>", TOKEN_CONTROL, 0);
    for (unsigned b = 0; b < 256; b++) {
        char name[8];

        snprintf(name, sizeof(name), "<0x%02X>", b);
        tiny_add(v, name, TOKEN_BYTE, 0);
    }
}

/* Adds the token of a line of @n bytes, if it is one and new. */
static void plamo_line(struct tiny *v, const char *s, size_t n) {
    const char *tab = memchr(s, '\t', n);
    char text[sizeof(v->store[0])], score[32];

    if (!tab || tab == s || memchr(s, 0, n) || v->n == FIRST + TOKENS)
        return;
    snprintf(text, sizeof(text), "%.*s", (int)(tab - s), s);
    snprintf(score, sizeof(score), "%.*s", (int)(n - (size_t)(tab - s) - 1), tab + 1);
    for (uint32_t i = 0; i < v->n; i++)
        if (strcmp(v->token[i], text) == 0)
            return;
    tiny_add(v, text, TOKEN_NORMAL, strtof(score, NULL));
}

/* Reads the lines. Returns the text behind them. */
static const char *plamo_read(struct tiny *v, const char *s, const char *end) {
    while (s < end && *s != '\n') {
        const char *stop = memchr(s, '\n', (size_t)(end - s));

        stop = stop ? stop : end;
        plamo_line(v, s, (size_t)(stop - s));
        s = stop < end ? stop + 1 : end;
    }
    return s < end ? s + 1 : end;
}

static int64_t plamo_cost(const struct tiny *v, uint32_t id) {
    double cost = -(double)v->score[id] * 1e4;

    if (cost >= (double)cost_max) /* is never taken, and may exceed 64 bits */
        return cost_max;
    return llround(cost);
}

/* Returns true if the text is UTF-8 that stays as it is. */
static bool is_clean(const char *s, size_t len) {
    for (size_t i = 0; i < len;) {
        uint32_t cp;

        i += unicode_decode(s + i, s + len, &cp);
        if (cp == UNICODE_INVALID || (cp == 0xFEFF && i == 3))
            return false;
    }
    return true;
}

/* Returns the least cost of @s, which is_clean(). */
static int64_t plamo_least(const struct tiny *v, const char *s, size_t len) {
    static int64_t least[TEXT + 1];

    for (size_t i = 0; i <= len; i++)
        least[i] = INT64_MAX;
    least[0] = 0;
    for (size_t i = 0, n; i < len; i += n) {
        uint32_t cp;

        n = unicode_decode(s + i, s + len, &cp);
        if (least[i] == INT64_MAX)
            continue;
        least[i + n] = MIN(least[i + n], least[i] + byte_cost);
        for (uint32_t id = FIRST; id < v->n; id++) {
            size_t m = strlen(v->token[id]);

            if (m > len - i || memcmp(v->token[id], s + i, m) != 0 || plamo_cost(v, id) >= cost_max)
                continue;
            least[i + m] = MIN(least[i + m], least[i] + plamo_cost(v, id));
        }
    }
    return least[len];
}

/* Checks that @ids spell @s at the least cost. */
static void plamo_check(const struct tiny *v, const struct tokens *ids, const char *s, size_t len) {
    int64_t sum = 0;
    size_t at = 0;

    for (size_t i = 0; i < ids->n; i++) {
        uint32_t id = (uint32_t)ids->id[i];
        size_t n = id < FIRST ? 1 : strlen(v->token[id]);

        FUZZ_ASSERT(id >= 3 && id < v->n && n <= len - at);
        if (id >= FIRST) {
            sum += plamo_cost(v, id);
            FUZZ_ASSERT(memcmp(s + at, v->token[id], n) == 0);
        } else {
            sum += ((uint8_t)s[at] & 0xC0) == 0x80 ? 0 : byte_cost;
            FUZZ_ASSERT((uint8_t)s[at] == id - 3);
        }
        at += n;
    }
    FUZZ_ASSERT(at == len && sum == plamo_least(v, s, len));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    CLEANUP(tokenizer_freep) struct tokenizer *t = NULL;
    CLEANUP(tokens_deinit) struct tokens ids = {0};
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    static struct tiny vocab;
    struct gguf_writer w;
    struct err err = {0};

    if (len == 0)
        return -1;
    plamo_begin(&vocab);
    const char *end = (const char *)data + len, *s = plamo_read(&vocab, (const char *)data, end);
    size_t n = MIN((size_t)(end - s), (size_t)TEXT);
    gw_init(&w);
    tiny_put(&vocab, &w, "plamo2", NULL);
    gw_u32(&w, "tokenizer.ggml.eos_token_id", 2);
    gw_finish(&w);
    FUZZ_ASSERT(gguf_open(&g, fuzz_file(w.file.data, w.file.len), &err) == 0);
    gw_deinit(&w);
    if (tokenizer_new(&t, g, &err) < 0) {
        FUZZ_ASSERT(err.message[0] && !strchr(err.message, '\n'));
        return 0;
    }
    FUZZ_ASSERT(tokenizer_encode(t, s, n, 0, NULL, 0, &ids) == 0);
    if (is_clean(s, n))
        plamo_check(&vocab, &ids, s, n);
    return 0;
}
