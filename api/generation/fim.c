#include "api/generation/fim.h"

#include <string.h>

#include "base/try.h"

/* Prefix, suffix and middle of each family. */
static const struct {
    const char *name[3];
    bool suffix_first;
} families[] = {
    {{"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"}, false}, /* Qwen, Gemma */
    {{"<fim_prefix>", "<fim_suffix>", "<fim_middle>"}, false},       /* StarCoder, Granite */
    {{"<fim-prefix>", "<fim-suffix>", "<fim-middle>"}, false},
    {{"<\xef\xbd\x9c"
      "fim\xe2\x96\x81"
      "begin\xef\xbd\x9c>",
      "<\xef\xbd\x9c"
      "fim\xe2\x96\x81hole\xef\xbd\x9c>",
      "<\xef\xbd\x9c"
      "fim\xe2\x96\x81"
      "end\xef\xbd\x9c>"},
     false},                                                                  /* DeepSeek */
    {{"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"}, false},       /* GLM */
    {{"<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"}, true},           /* Seed-Coder */
    {{"\xe2\x96\x81<PRE>", "\xe2\x96\x81<SUF>", "\xe2\x96\x81<MID>"}, false}, /* Code Llama */
    {{"<PRE>", "<SUF>", "<MID>"}, false},
    {{"[PREFIX]", "[SUFFIX]", NULL}, true}, /* Codestral */
};

/* Tokens that end the text between, besides the model's usual ends. */
static const char *const ends[] = {"<|fim_pad|>",  "<fim_pad>",          "<|repo_name|>",
                                   "<|file_sep|>", "<|file_separator|>", "<file_sep>",
                                   "<EOT>",        "\xe2\x96\x81<EOT>"};
_Static_assert(ARRAY_SIZE(ends) <= FIM_ENDS_MAX, "there is room for all ends");

static int32_t fim_find(const struct tokenizer *t, const char *name) {
    if (!name)
        return -1;
    return tokenizer_find(t, name, strlen(name));
}

/* Takes the tokens that the file names, in place of those with known names. A family whose tokens
 * they are keeps its order. */
static void fim_use_named(struct fim *f, const struct tokenizer *t) {
    int32_t prefix = tokenizer_fim(t, TOKENIZER_FIM_PREFIX);
    int32_t suffix = tokenizer_fim(t, TOKENIZER_FIM_SUFFIX);
    int32_t middle = tokenizer_fim(t, TOKENIZER_FIM_MIDDLE);
    bool are_known = prefix == f->prefix && suffix == f->suffix;

    if (prefix < 0 || suffix < 0 || (middle < 0 && !are_known))
        return;
    f->prefix = prefix;
    f->suffix = suffix;
    f->middle = middle >= 0 ? middle : f->middle;
    f->suffix_first &= are_known;
}

void fim_init(struct fim *f, const struct tokenizer *t) {
    *f = (struct fim){.prefix = -1, .suffix = -1, .middle = -1};
    for (size_t i = 0; i < ARRAY_SIZE(families) && f->prefix < 0; i++) {
        int32_t id[3];

        for (int k = 0; k < 3; k++)
            id[k] = fim_find(t, families[i].name[k]);
        if (id[0] < 0 || id[1] < 0 || (families[i].name[2] && id[2] < 0))
            continue;
        f->prefix = id[0];
        f->suffix = id[1];
        f->middle = id[2];
        f->suffix_first = families[i].suffix_first;
    }
    fim_use_named(f, t);
    for (size_t i = 0; i < ARRAY_SIZE(ends); i++) {
        int32_t id = fim_find(t, ends[i]);

        if (id >= 0)
            f->ends[f->n_ends++] = id;
    }
}

/* Adds a marker and a user's text, which is tokenised without special tokens. */
static int fim_add(const struct tokenizer *t, int32_t marker, const char *text, size_t len,
                   struct tokens *out) {
    int r = tokens_add(out, marker);

    if (r < 0 || len == 0)
        return r;
    return tokenizer_encode(t, text, len, 0, NULL, 0, out);
}

int fim_encode(const struct fim *f, const struct tokenizer *t, const char *before, size_t n_before,
               const char *after, size_t n_after, struct tokens *out) {
    if (tokenizer_adds_bos(t))
        TRY(tokens_add(out, tokenizer_bos(t)));
    if (f->suffix_first)
        TRY(fim_add(t, f->suffix, after, n_after, out));
    TRY(fim_add(t, f->prefix, before, n_before, out));
    if (!f->suffix_first)
        TRY(fim_add(t, f->suffix, after, n_after, out));
    if (f->middle < 0)
        return 0;
    return tokens_add(out, f->middle);
}
