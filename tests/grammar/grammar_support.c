#include "tests/grammar/grammar_support.h"

#include <string.h>

static const char *const PIECES[] = {
    R"({")",
    R"(":)",
    R"(": )",
    R"(": ")",
    R"(", ")",
    R"(",)",
    R"("})",
    R"("})"
    "\n",
    R"("])",
    R"("]})",
    "{}",
    "[]",
    R"([")",
    R"([{")",
    "}]",
    "}}",
    "},",
    "], ",
    "[[",
    "]]",
    ", ",
    ",\n",
    "\n  ",
    "\n    ",
    "\n\n",
    "  ",
    "    ",
    "\n"
    R"(  ")",
    R"( ")",
    "true",
    "false",
    "null",
    "tru",
    "fal",
    "nul",
    "12",
    "123",
    "000",
    "-1",
    ".5",
    "1.",
    "e+",
    "E-1",
    "2024",
    "-0",
    "name",
    "id",
    "value",
    "na",
    "me",
    "items",
    "kind",
    "ab",
    "abc",
    "abcd",
    "aaaa",
    "aaaaaaaaaaaaaaaaaaaaaaaa",
    "bb",
    R"(name")",
    R"(name":)",
    R"(name": ")",
    R"(a")",
    R"(b"})",
    R"(\")",
    "\\n",
    R"(\\)",
    "\\u",
    "\\u00",
    "u00e9",
    "\\ud83d",
    "\xc3\xa9",
    "\xe2\x82\xac",
    "\xf0\x9f\x98\x80",
    "\xe2\x82",
    "\x82\xac",
    "\xf0\x9f",
    "\x98\x80",
    "\xa9"
    R"(")",
    "<tool",
    "_call>",
    "</",
    "hello",
    R"("b","b")",
    R"("","")",
    R"(","",)",
    R"(","b"])",
    R"(["b")",
    "1,1",
    R"(b"])",
    R"(,"b")",
    " world",
    "foo",
    "bar",
    "foobar",
    "x=",
    "1,2",
    "0.",
    "T1",
    R"(Z")",
    ":0",
    "-0",
    "@",
    "http",
    "://",
    "::",
    "com",
    R"(a":1,"b)",
    R"(":{")",
    R"(":[)",
    "1]",
    "1}",
    "1,",
    R"("a")",
    R"("b")",
    R"("a":)",
};

uint32_t test_n_tokens(void) {
    return TEST_CONTROL + 1 + ARRAY_SIZE(PIECES);
}

const char *test_token(uint32_t id, size_t *len) {
    static char bytes[256];

    if (id < 256) {
        bytes[id] = (char)id;
        *len = 1;
        return &bytes[id];
    }
    const char *s = id == TEST_MARKER       ? "<tool_call>"
                    : id == TEST_MARKER_END ? "</tool_call>"
                    : id > TEST_CONTROL     ? PIECES[id - TEST_CONTROL - 1]
                                            : "";

    *len = strlen(s);
    return s;
}

const struct grammar_vocab *test_vocab(void) {
    static struct grammar_vocab *v;
    struct grammar_token token[TEST_CONTROL + 1 + ARRAY_SIZE(PIECES)] = {0};
    const int32_t end = TEST_END;

    if (v)
        return v;
    for (uint32_t i = 0; i < test_n_tokens(); i++) {
        token[i].bytes = test_token(i, &token[i].len);
        token[i].special = i >= TEST_MARKER && i <= TEST_CONTROL;
    }
    cr_assert_eq(grammar_vocab_new(&v, token, test_n_tokens(), &end, 1), 0);
    return v;
}

struct grammar *test_compile_with(enum grammar_kind kind, unsigned flags, const char *text) {
    struct grammar_source src = {.kind = kind, .flags = flags, .text = text, .len = strlen(text)};
    struct err err = {0};
    struct grammar *g = NULL;

    cr_assert_eq(grammar_compile(&g, test_vocab(), &src, NULL, &err), 0, "%.200s: %s", text,
                 err.message);
    return g;
}

struct grammar *test_compile(enum grammar_kind kind, const char *text) {
    return test_compile_with(kind, 0, text);
}

bool test_fits(const struct grammar *g, const char *text, size_t len) {
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;

    cr_assert_eq(grammar_state_new(&s, g), 0);
    for (size_t i = 0; i < len; i++) {
        if (grammar_accept(s, (uint8_t)text[i]) != 0)
            return false;
    }
    return grammar_can_end(s);
}

void test_lists(enum grammar_kind kind, const char *source, const char *const *fits,
                const char *const *fits_not) {
    test_lists_with(kind, 0, source, fits, fits_not);
}

void test_lists_with(enum grammar_kind kind, unsigned flags, const char *source,
                     const char *const *fits, const char *const *fits_not) {
    CLEANUP(grammar_freep) struct grammar *g = test_compile_with(kind, flags, source);

    for (; *fits; fits++)
        cr_expect(test_fits(g, *fits, strlen(*fits)), "%.200s must fit: %s", source, *fits);
    for (; *fits_not; fits_not++)
        cr_expect(!test_fits(g, *fits_not, strlen(*fits_not)), "%.200s must not fit: %s", source,
                  *fits_not);
}

void test_refused(enum grammar_kind kind, const char *source, const char *code, const char *part) {
    struct grammar_source src = {
        .kind = kind, .text = source, .len = strlen(source), .param = "response_format"};
    struct err err = {0};
    struct grammar *g = NULL;
    int r = grammar_compile(&g, test_vocab(), &src, NULL, &err);

    cr_expect(r == -22 && err.status == 400 && strcmp(err.code, code) == 0 &&
                  strstr(err.message, part) && strcmp(err.param, "response_format") == 0,
              "%.200s: %d %d %s '%s', wanted %s '%s'", source, r, err.status, err.code, err.message,
              code, part);
    grammar_free(g);
}

uint32_t test_mask_is_exact(struct grammar_state *s, const struct grammar *g, uint32_t *bits) {
    CLEANUP(grammar_state_freep) struct grammar_state *t = NULL;
    int64_t n = grammar_mask(s, bits);
    uint32_t found = 0;

    cr_assert_geq(n, 0);
    cr_assert_eq(grammar_state_new(&t, g), 0);
    for (uint32_t id = 0; id < test_n_tokens(); id++) {
        size_t len;
        const char *bytes = test_token(id, &len);
        bool allowed = len > 0;

        cr_assert_eq(grammar_state_copy(t, s), 0);
        if (id >= TEST_END && id <= TEST_CONTROL)
            allowed = grammar_accept(t, (int32_t)id) == 0;
        else
            for (size_t i = 0; i < len && allowed; i++)
                allowed = grammar_accept(t, (uint8_t)bytes[i]) == 0;
        bool masked = bits[id / 32] >> (id % 32) & 1;

        cr_assert_eq(masked, allowed, "token %u '%s': mask %d, bytes %d", id, bytes, masked,
                     allowed);
        found += masked;
    }
    cr_assert_eq(found, n);
    return found;
}

static uint32_t pick(const uint32_t *bits, uint32_t n_allowed, struct rng *r) {
    uint32_t k = rng_below(r, n_allowed);

    for (uint32_t id = 0;; id++) {
        if ((bits[id / 32] >> (id % 32) & 1) && k-- == 0)
            return id;
    }
}

int test_random_text(const struct grammar *g, struct rng *r, uint32_t patience, char *out,
                     size_t cap) {
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
    uint32_t bits[64];
    size_t n = 0;

    cr_assert_eq(grammar_state_new(&s, g), 0);
    while (n + 64 < cap) {
        int64_t allowed = grammar_mask(s, bits);

        cr_assert_gt(allowed, 0, "stuck after %.*s", (int)n, out);
        if (grammar_can_end(s) && (allowed == 1 || rng_below(r, patience) == 0)) {
            cr_assert_eq(grammar_accept(s, TEST_END), 0);
            cr_assert(grammar_is_done(s) && grammar_mask(s, bits) == 0);
            return (int)n;
        }
        uint32_t id = pick(bits, (uint32_t)allowed, r);
        size_t len;

        if (id == TEST_END)
            continue;
        cr_assert_eq(grammar_accept(s, (int32_t)id), 0);
        const char *bytes = test_token(id, &len);

        memcpy(out + n, bytes, len);
        n += len;
    }
    return -1;
}
