/*
 * vocabulary - the public way to a vocabulary: its tokens sorted (vocab/), and the token classes of
 * JSON strings made once (mask/), since nearly every grammar needs them.
 */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/try.h"
#include "grammar/automaton/nfa.h"
#include "grammar/mask/share.h"
#include "text/tokenizer.h"

/* Makes a grammar of one quoted string with the loop @which. */
static int make_loop(struct grammar **out, enum shared_loop which) {
    CLEANUP(build_deinit) struct build b = {0};
    struct expr *atom;
    uint32_t root;

    build_init(&b, NULL, NULL, NULL);
    if (which == SHARED_JSON_CHARS)
        atom = json_char(&b);
    else
        atom = json_canonical_char(&b);
    TRY(build_rule(&b, NULL, &root));
    b.rule[root].body = json_quoted(&b, expr_repeat(&b, atom, 0, NO_MAX));
    if (!b.rule[root].body)
        return -ENOMEM;
    TRY(automaton_new(out, &b, root));
    return automaton_free_chars(&b, *out);
}

/* Makes the classes of the loop @which in a grammar of one quoted string, whose loop has the same
 * states as in every other grammar. */
static int vocabulary_add_loop(struct grammar_vocab *v, struct share *s, enum shared_loop which) {
    CLEANUP(grammar_freep) struct grammar *g = NULL;

    TRY(make_loop(&g, which));
    g->vocab = v;
    for (uint32_t i = 0; i < g->n_rules; i++) {
        if (g->rule[i].shared == which)
            return share_add_loop(s, g, i);
    }
    assert(!"a shared loop has a rule");
    return -EINVAL;
}

int grammar_vocab_new(struct grammar_vocab **out, const struct grammar_token *token, uint32_t n,
                      const int32_t *ends, size_t n_ends) {
    CLEANUP(grammar_vocab_freep) struct grammar_vocab *v = NULL;
    struct share *s;

    TRY(vocab_new(&v, token, n, ends, n_ends));
    TRY(share_new(&s));
    v->share = s;
    for (int i = SHARED_NONE + 1; i < SHARED_LOOPS; i++)
        TRY(vocabulary_add_loop(v, s, (enum shared_loop)i));
    *out = STEAL(v);
    return 0;
}

int grammar_vocab_of(struct grammar_vocab **out, const struct tokenizer *t) {
    uint32_t n = tokenizer_n_vocab(t);
    CLEANUP(freep) struct grammar_token *v = calloc((size_t)n + 1, sizeof(*v));
    size_t n_ends;
    const int32_t *ends = tokenizer_end_ids(t, &n_ends);

    if (!v)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        bool special = tokenizer_is_special(t, (int32_t)i);

        v[i].bytes = tokenizer_piece(t, (int32_t)i, special, &v[i].len);
        v[i].special = special;
    }
    return grammar_vocab_new(out, v, n, ends, n_ends);
}

size_t grammar_vocab_shared_bytes(const struct grammar_vocab *v) {
    return share_bytes(v->share);
}

struct grammar_vocab *grammar_vocab_free(struct grammar_vocab *v) {
    if (v)
        share_free(v->share);
    return vocab_free(v);
}
