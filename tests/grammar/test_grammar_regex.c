/* Regular expressions, choices and EBNF: which texts fit, and what is refused. */

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/util.h"
#include "tests/grammar/grammar_support.h"

#define REGEX(source, yes, no) test_lists(GRAMMAR_REGEX, source, yes, no)

Test(grammar_regex, literals_and_alternatives) {
    REGEX("abc", YES("abc"), YES("", "ab", "abcd", "xabc"));
    REGEX("a|bc|", YES("a", "bc", ""), YES("b", "abc"));
    REGEX("abc|abd|axy|b|a", YES("abc", "abd", "axy", "b", "a"), YES("aby", "ab", "ax", "abxy"));
    REGEX("^a(b|c)d$", YES("abd", "acd"), YES("ad", "abcd"));
    REGEX("^a$|^b$", YES("a", "b"), YES("ab"));
    REGEX("\xc3\xa9+", YES("\xc3\xa9", "\xc3\xa9\xc3\xa9"), YES("\xc3", "\xa9", "e"));
}

Test(grammar_regex, escapes) {
    REGEX("\\ud83d\\ude00", YES("\xf0\x9f\x98\x80"), YES("\xf0\x9f\x98\x81", ""));
    REGEX("\\ud800\\udfff", YES("\xf0\x90\x8f\xbf"), YES(""));
    REGEX("a\\0?b", YES("ab"), YES("a0b", "a\\0b", "b"));
    REGEX("a[\\0b]", YES("ab"), YES("a0", "a"));
}

Test(grammar_regex, quantifiers) {
    REGEX("a*", YES("", "a", "aaaa"), YES("b"));
    REGEX("a+b?", YES("a", "ab", "aab"), YES("", "b", "abb"));
    REGEX("a{3}", YES("aaa"), YES("aa", "aaaa"));
    REGEX("a{2,}", YES("aa", "aaaaaaaaaaaaaaaa"), YES("a"));
    REGEX("(ab){1,3}?", YES("ab", "ababab"), YES("", "abababab"));
    REGEX("(a{0,2}b?){2}", YES("", "ab", "aabaab", "bb", "aaaa"), YES("aaaaa", "bbb"));
    REGEX("(ab|c){5,200}", YES("ccccc", "abababcc"), YES("cccc", "abab", "ababababa"));
}

Test(grammar_regex, counters_count_exactly) {
    char text[1100];
    CLEANUP(grammar_freep) struct grammar *g = test_compile(GRAMMAR_REGEX, "[a-c]{10,1000}x");

    memset(text, 'a', sizeof(text));
    for (size_t n = 0; n < 1050; n += n < 20 || n > 980 ? 1 : 60) {
        text[n] = 'x';
        cr_expect_eq(test_fits(g, text, n + 1), n >= 10 && n <= 1000, "%zu", n);
        text[n] = 'a';
    }
    REGEX("[a-c]{9,12}a", YES("aaaaaaaaaa", "bbbbbbbbbbbba"),
          YES("aaaaaaaaa", "bbbbbbbbbbbbba", "bbbbbbbbbbbb"));
    REGEX("(?:[ab]{0,9}c){2,}", YES("cc", "abcabc"), YES("c", "abababababcc"));
}

/* U+011F is Ll, U+03A9 Lu, U+01C5 Lt, U+4E2D Lo, U+0663 Nd, U+2167 Nl, U+20AC Sc, U+0301 Mn. */
Test(grammar_regex, properties_of_characters) {
    REGEX("\\p{L}", YES("a", "Z", "\xc4\x9f", "\xce\xa9", "\xe4\xb8\xad"),
          YES("1", "_", "\xd9\xa3", "\xe2\x82\xac", "\xcc\x81", "", "\xed\xa0\x80"));
    REGEX("\\p{Lu}\\p{Lowercase_Letter}", YES("Ab", "\xce\xa9\xc4\x9f"),
          YES("AB", "ab", "\xc7\x85z"));
    REGEX("\\p{LC}", YES("a", "A", "\xc7\x85"), YES("\xe4\xb8\xad", "1"));
    REGEX("\\p{N}\\p{gc=Nd}", YES("12", "\xe2\x85\xa7\xd9\xa3"), YES("1\xe2\x85\xa7", "a1"));
    REGEX("\\P{Letter}", YES("1", "\xf0\x9f\x98\x80", "\n"), YES("a", "\xce\xa9", "\xed\xa0\x80"));
    REGEX("[\\p{L}\\p{M}' -]+", YES("O'Neil-\xc4\x9f", "e\xcc\x81"), YES("a1", "_"));
    REGEX("[^\\p{General_Category=Letter}\\d]", YES("-", "\xe2\x82\xac"),
          YES("x", "3", "\xce\xa9"));
    REGEX("\\p{Any}", YES("a", "\xf4\x8f\xbf\xbf"), YES("", "\xed\xa0\x80"));
    REGEX("a\\p{Cs}?", YES("a"), YES("a\xed\xa0\x80"));
    test_refused(GRAMMAR_REGEX, "\\p{Script=Greek}", "grammar_unsupported",
                 "\\p{Script=Greek} is not");
    test_refused(GRAMMAR_REGEX, "\\p{Emoji}", "grammar_unsupported", "\\p{Emoji} is not");
    test_refused(GRAMMAR_REGEX, "\\pL", "grammar_invalid", "in braces");
    test_refused(GRAMMAR_REGEX, "\\p{L", "grammar_invalid", "in braces");
    test_refused(GRAMMAR_REGEX, "\\p", "grammar_invalid", "in braces");
    test_refused(GRAMMAR_REGEX, "\\p{}", "grammar_unsupported", "\\p{} is not");
}

Test(grammar_regex, classes) {
    REGEX("[a-c]", YES("a", "c"), YES("d", "", "ab"));
    REGEX("[^a-c]", YES("d", "\xc3\xa9", "\n", "\xf0\x9f\x98\x80"),
          YES("a", "\xc3", "\xed\xa0\x80"));
    REGEX("\\d\\D\\w\\W\\s\\S", YES("1a_- x", "0bZ.\tq"), YES("aa_- x"));
    REGEX("[\\w-]+", YES("a-b_c"), YES("a b"));
    REGEX("[]a]|[a-]", YES("a", "-"), YES("]", "]a"));
    REGEX(".", YES("a", "\xe2\x82\xac"), YES("\n", "", "\xe2\x80\xa8"));
    REGEX("\\x41\\u00e9\\u{1F600}\\t", YES("A\xc3\xa9\xf0\x9f\x98\x80\t"), YES("A"));
    REGEX("[\\u0800-\\uffff]", YES("\xe0\xa0\x80", "\xef\xbf\xbf", "\xe2\x82\xac"),
          YES("\xdf\xbf", "\xed\xa0\x80", "\xf0\x90\x80\x80", "\xe0\x9f\xbf"));
}

Test(grammar_regex, what_is_not_regular_or_wrong_is_refused) {
    test_refused(GRAMMAR_REGEX, "(a)\\1", "grammar_unsupported", "back reference");
    test_refused(GRAMMAR_REGEX, "a(?=b)", "grammar_unsupported", "look-around");
    test_refused(GRAMMAR_REGEX, "(?<!b)a", "grammar_unsupported", "look-around");
    test_refused(GRAMMAR_REGEX, "a\\b", "grammar_unsupported", "\\b");
    test_refused(GRAMMAR_REGEX, "a^b", "grammar_unsupported", "anchor");
    test_refused(GRAMMAR_REGEX, "a++", "grammar_unsupported", "possessive");
    test_refused(GRAMMAR_REGEX, "\\ud800", "grammar_invalid", "not a valid code point");
    test_refused(GRAMMAR_REGEX, "\\udfff", "grammar_invalid", "not a valid code point");
    test_refused(GRAMMAR_REGEX, "(a", "grammar_invalid", "')' is missing");
    test_refused(GRAMMAR_REGEX, "a)", "grammar_invalid", "without '('");
    test_refused(GRAMMAR_REGEX, "[a", "grammar_invalid", "']' is missing");
    test_refused(GRAMMAR_REGEX, "*a", "grammar_invalid", "nothing to repeat");
    test_refused(GRAMMAR_REGEX, "a{3,1}", "grammar_invalid", "out of order");
    test_refused(GRAMMAR_REGEX, "[z-a]", "grammar_invalid", "out of order");
    test_refused(GRAMMAR_REGEX, R"(a\)", "grammar_invalid", "backslash");
    test_refused(GRAMMAR_REGEX, "\xff", "grammar_invalid", "UTF-8");
    test_refused(GRAMMAR_REGEX, "\\z", "grammar_unsupported", "this escape");
    test_refused(GRAMMAR_REGEX, "\\Z", "grammar_unsupported", "this escape");
    test_refused(GRAMMAR_REGEX, "\\ud83d\\u0041", "grammar_invalid", "lone surrogate");
    test_refused(GRAMMAR_REGEX, "\\ud83d\\ue000", "grammar_invalid", "lone surrogate");
    test_refused(GRAMMAR_REGEX, "[a-", "grammar_invalid", "");
    test_refused(GRAMMAR_REGEX, "[^\\d\\D]", "grammar_invalid", "no text satisfies");
}

/* ---- anchors inside, against a naive matcher */

/* Sets of places in a text of at most 7 letters, as bits. */
struct naive {
    const char *text;
    unsigned len;
};

static unsigned match_alternatives(const struct naive *n, const char **p, unsigned from);

/* One atom from each place of @from; *@p behind it. */
static unsigned match_atom(const struct naive *n, const char **p, unsigned from) {
    char c = *(*p)++;
    unsigned out = 0;

    if (c == '(') {
        out = match_alternatives(n, p, from);
        (*p)++;
        return out;
    }
    if (c == '^')
        return from & 1;
    if (c == '$')
        return from & 1u << n->len;
    if (c == '[')
        *p += 3;
    for (unsigned i = 0; i < n->len; i++)
        out |= (from >> i & 1 && strchr(c == '[' ? "ab" : (char[]){c, 0}, n->text[i])) << (i + 1);
    return out;
}

static unsigned match_sequence(const struct naive *n, const char **p, unsigned from) {
    while (**p && **p != '|' && **p != ')') {
        const char *atom = *p, *again;
        unsigned once = match_atom(n, p, from), all = once;

        for (unsigned i = 0; (**p == '*' || **p == '+') && i <= n->len; i++) {
            again = atom;
            all |= match_atom(n, &again, all);
        }
        if (**p == '*' || **p == '?')
            all |= from;
        *p += **p && strchr("*+?", **p) != NULL;
        from = all;
    }
    return from;
}

static unsigned match_alternatives(const struct naive *n, const char **p, unsigned from) {
    unsigned out = match_sequence(n, p, from);

    while (**p == '|') {
        (*p)++;
        out |= match_sequence(n, p, from);
    }
    return out;
}

static bool naive_search(const char *pattern, const char *text) {
    struct naive n = {text, (unsigned)strlen(text)};

    return match_alternatives(&n, &pattern, (2u << n.len) - 1) != 0;
}

static void write_part(struct buf *b, struct rng *r, int depth) {
    uint32_t n = 1 + rng_below(r, 3);

    for (uint32_t i = 0; i < n; i++) {
        uint32_t kind = rng_below(r, depth > 0 ? 7 : 5);

        if (kind >= 5) {
            buf_printf(b, "(");
            write_part(b, r, depth - 1);
            buf_printf(b, "|");
            write_part(b, r, depth - 1);
            buf_printf(b, ")%s", (const char *const[]){"", "", "", "?", "*", "+"}[rng_below(r, 6)]);
        } else {
            buf_printf(b, "%s", (const char *const[]){"a", "b*", "^", "$", "[ab]?"}[kind]);
        }
    }
}

Test(grammar_regex, anchors_inside_are_those_of_a_naive_matcher) {
    struct rng r = {4};
    int n_matches = 0;

    for (int i = 0; i < 1500; i++) {
        char schema[512];
        struct buf b;

        buf_init(&b, 256);
        write_part(&b, &r, 2);
        for (uint32_t k = rng_below(&r, 3); k > 0; k--) {
            buf_printf(&b, "|");
            write_part(&b, &r, 1);
        }
        snprintf(schema, sizeof(schema), R"({"type":"string","pattern":"%s"})", b.data);
        struct grammar_source src = {
            .kind = GRAMMAR_JSON_SCHEMA, .text = schema, .len = strlen(schema)};
        CLEANUP(grammar_freep) struct grammar *g = NULL;
        struct err err = {0};
        int e = grammar_compile(&g, test_vocab(), &src, NULL, &err);

        cr_assert(e == 0 || strstr(err.message, "no text satisfies"), "%s: %s", schema,
                  err.message);
        for (uint32_t k = 0; k < 2 * 63; k++) { /* all texts of up to five letters */
            uint32_t len = 0, bits = k % 63 + 1;
            char text[8] = R"(")", c = k < 63 ? 'b' : 'c';

            for (; bits > 1; bits >>= 1)
                text[1 + len++] = bits & 1 ? c : 'a';
            bool want = naive_search(b.data, text + 1);

            text[1 + len] = '"';
            cr_assert_eq(e == 0 && test_fits(g, text, len + 2), want, "%s: %s", b.data, text);
            n_matches += want;
        }
        buf_deinit(&b);
    }
    cr_expect(n_matches > 20000 && n_matches < 180000, "%d", n_matches);
}

/* A search for words has states for the words, none for each set of words that has been read. */
Test(grammar_regex, searches_for_many_words_are_small) {
    struct grammar_limits limits = {.max_work = 500000};
    struct err err = {0};
    struct buf b;

    buf_init(&b, 4096);
    buf_printf(&b, R"({"pattern": "^x|z$)");
    for (int i = 0; i < 40; i++)
        buf_printf(&b, "|%cw%d", 'a' + i % 20, i);
    buf_printf(&b, R"("})");
    struct grammar_source src = {.kind = GRAMMAR_JSON_SCHEMA, .text = b.data, .len = b.len};
    CLEANUP(grammar_freep) struct grammar *g = NULL;

    cr_assert_eq(grammar_compile(&g, test_vocab(), &src, &limits, &err), 0, "%s", err.message);
    cr_expect(test_fits(g, R"("--bw21..aw0")", 13));
    cr_expect(test_fits(g, R"("x..")", 5));
    cr_expect(test_fits(g, R"("..z")", 5));
    cr_expect_not(test_fits(g, R"(".xaw1z.")", 9));
    buf_deinit(&b);
}

Test(grammar_regex, anchors_that_are_not_read_have_their_place) {
    test_refused(GRAMMAR_JSON_SCHEMA, R"({"pattern": "a(^b){2}"})", "grammar_unsupported",
                 "#/pattern: regular expression, byte 2: an anchor inside a counted group");
    test_refused(GRAMMAR_JSON_SCHEMA, "{\"pattern\": \"(?=a)(b$)\"}", "grammar_unsupported",
                 "byte 7: an anchor beside look-ahead");
    test_refused(GRAMMAR_JSON_SCHEMA, R"({"pattern": "(?=a^)b"})", "grammar_unsupported",
                 "an anchor inside");
}

Test(grammar_choice, exactly_the_strings) {
    test_lists(GRAMMAR_CHOICE, R"(["yes", "no", "no way", "\u00e9"])",
               YES("yes", "no", "no way", "\xc3\xa9"), YES("", "y", "no ", "maybe"));
    test_refused(GRAMMAR_CHOICE, "[]", "grammar_invalid", "at least one");
    test_refused(GRAMMAR_CHOICE, R"(["a", 1])", "grammar_invalid", "/1");
    test_refused(GRAMMAR_CHOICE, R"("a")", "grammar_invalid", "array");
}

#define EBNF(source, yes, no) test_lists(GRAMMAR_EBNF, source, yes, no)

Test(grammar_ebnf, gbnf_syntax) {
    EBNF("root ::= \"a\" [0-9]+ (\"x\" | y)* # comment\ny ::= \"y\"{2,3}\n",
         YES("a1", "a12xyyx", "a1yyy"), YES("a", "a1y"));
    EBNF("root ::= a\n  | b\na ::= \"1\"\nb ::= \"2\" [^\\n]?", YES("1", "2", "2x"),
         YES("2\n", "3"));
    EBNF(R"(root ::= "\"\x41\n" . )",
         YES(R"("A)"
             "\nz",
             R"("A)"
             "\n\n"),
         YES(R"("A)"
             "\n"));
    EBNF(R"(root ::= "a"{,2} "b")", YES("b", "ab", "aab"), YES("aaab"));
    EBNF(R"(root ::= "" | "a")", YES("", "a"), YES("b"));
    EBNF("root ::= a {2, 3} [x-z] * # c\n  +\na ::= \"a\"{ 2 } \"b\" ?", YES("aaaa", "aabaabaaz"),
         YES("aa", "aab"));
}

Test(grammar_ebnf, recursion_needs_a_stack) {
    EBNF("root ::= \"(\" root \")\" | \"\"", YES("", "()", "((()))"), YES("(", "(()", "())"));
    EBNF("root ::= e\ne ::= t (\"+\" t)*\nt ::= [0-9]+ | \"(\" e \")\"", YES("1+2", "(1+(2+33))+4"),
         YES("1+", "(1", ")"));
    EBNF(R"(root ::= "a" root "a" | "b" root "b" | "c")", YES("c", "abcba"), YES("abcab", "ab"));
}

Test(grammar_ebnf, long_lists_by_recursion_at_the_end_need_no_stack) {
    CLEANUP(grammar_freep)
    struct grammar *g = test_compile(GRAMMAR_EBNF, R"(root ::= "a" | "a," root)");
    static char text[20001];

    for (size_t i = 0; i < 20000; i += 2)
        memcpy(text + i, "a,", 2);
    cr_expect(test_fits(g, text, 19999));
    cr_expect_not(test_fits(g, text, 20000));
}

/* Rules that are copied into their callers and rules that are called must mean the same. */
Test(grammar_ebnf, small_rules_in_larger_ones) {
    EBNF("root ::= w w w\nw ::= [a-b]+ s?\ns ::= \" \"", YES("abb", "a b a ", "ab ab ab"),
         YES("ab", "a  b a", "a b a a b"));
    EBNF("root ::= x | y\nx ::= \"a\" z\ny ::= \"a\" z \"c\"\nz ::= \"b\" | \"(\" z \")\"",
         YES("ab", "abc", "a((b))c"), YES("a", "a((b)c"));
    EBNF("root ::= n{3}\nn ::= m{3}\nm ::= \"a\" | e\ne ::= \"\"", YES("", "a", "aaaaaaaaa"),
         YES("aaaaaaaaaa"));
}

Test(grammar_ebnf, ambiguity_is_merged) {
    CLEANUP(grammar_freep)
    struct grammar *g =
        test_compile(GRAMMAR_EBNF, "root ::= x*\nx ::= \"a\" | \"aa\" | y\ny ::= \"a\" \"a\"?");
    static char text[3000];

    memset(text, 'a', sizeof(text));
    cr_expect(test_fits(g, text, sizeof(text)));
}

Test(grammar_ebnf, mistakes_name_their_line) {
    test_refused(GRAMMAR_EBNF, "root ::= a", "grammar_invalid", "'a' is not defined");
    test_refused(GRAMMAR_EBNF, R"(a ::= "x")", "grammar_invalid", "rule 'root' is missing");
    test_refused(GRAMMAR_EBNF,
                 R"(root ::= "x")"
                 "\nb ::= $",
                 "grammar_invalid", "line 2");
    test_refused(GRAMMAR_EBNF, R"(root ::= "x)", "grammar_invalid", "line 1");
    test_refused(GRAMMAR_EBNF, R"(root ::= ("x")", "grammar_invalid", "')' is missing");
    test_refused(GRAMMAR_EBNF, R"(root ::= root "x" | "y")", "grammar_invalid", "left recursion");
    test_refused(GRAMMAR_EBNF, "root ::= a\na ::= b? a \"x\" | \"y\"\nb ::= \"\"",
                 "grammar_invalid", "left recursion");
    test_refused(GRAMMAR_EBNF, R"(root ::= "a" root)", "grammar_invalid", "no text satisfies");
    test_refused(GRAMMAR_EBNF,
                 R"(root ::= "a")"
                 "\n"
                 R"(root ::= "b")",
                 "grammar_invalid", "twice");
    test_refused(GRAMMAR_EBNF, "root ::= <[999999]>", "grammar_invalid", "no such token");
    test_refused(GRAMMAR_EBNF, "root ::= <nothing>", "grammar_invalid", "no such special");
    test_refused(GRAMMAR_EBNF, "root ::= <[25:]>", "grammar_invalid", "malformed");
    test_refused(GRAMMAR_EBNF, "root ::= <[2/5]>", "grammar_invalid", "malformed");
    test_refused(GRAMMAR_EBNF, "root ::= <[99999999999]>", "grammar_invalid",
                 "the token number is malformed or too large");
}

/* Token 0 is a token like any other, although 0 stands for none elsewhere. */
Test(grammar_ebnf, the_first_token_may_be_special) {
    const struct grammar_token token[] = {{"<mark>", 6, true}, {"a", 1, false}, {"</s>", 4, true}};
    const int32_t ends[] = {2};
    struct grammar_source src = {.kind = GRAMMAR_EBNF, .text = R"(root ::= <mark> "a")"};
    CLEANUP(grammar_vocab_freep) struct grammar_vocab *v = NULL;
    CLEANUP(grammar_freep) struct grammar *g = NULL;
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
    struct err err = {0};

    src.len = strlen(src.text);
    cr_assert_eq(grammar_vocab_new(&v, token, ARRAY_SIZE(token), ends, 1), 0);
    cr_assert_eq(grammar_compile(&g, v, &src, NULL, &err), 0, "%s", err.message);
    cr_assert_eq(grammar_state_new(&s, g), 0);
    cr_expect_eq(grammar_accept(s, 1), -22);
    cr_expect_eq(grammar_accept(s, 0), 0);
    cr_expect_eq(grammar_accept(s, 1), 0);
    cr_expect(grammar_can_end(s));
}

Test(grammar_ebnf, special_tokens_are_tokens) {
    CLEANUP(grammar_freep)
    struct grammar *g = test_compile(GRAMMAR_EBNF, "root ::= <tool_call> [a-z]+ <[258]>");
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;

    cr_assert_eq(grammar_state_new(&s, g), 0);
    cr_expect_eq(grammar_accept(s, '<'), -22);
    cr_expect_eq(grammar_accept(s, TEST_MARKER), 0);
    cr_expect_eq(grammar_accept(s, 'a'), 0);
    cr_expect_eq(grammar_accept(s, TEST_MARKER), -22);
    cr_expect_eq(grammar_accept(s, TEST_MARKER_END), 0);
    cr_expect(grammar_can_end(s));
}

/* What is nearest to a refusal. */
Test(grammar_regex, ranges_and_counts_have_exact_ends) {
    REGEX("[a-a]b{1,1}c{0}", YES("ab"), YES("b", "abc", "abb"));
    REGEX("[+-]x[a\\-c]", YES("+x-", "-xa", "+xc"), YES(",xa", "+xb"));
    REGEX("(?<name>a)(?:b)(?P<x>c)", YES("abc"), YES("ab"));
    REGEX("a{1,1000}", YES("a"), YES(""));
    REGEX("[\\x00-\\u{10FFFF}]", YES("a", "\xf4\x8f\xbf\xbf"), YES("", "aa"));
    REGEX("\\u{10FFFF}", YES("\xf4\x8f\xbf\xbf"), YES("a"));
    test_refused(GRAMMAR_REGEX, "\\u{110000}", "grammar_invalid", "");
    test_refused(GRAMMAR_REGEX, "\\u{}", "grammar_invalid", "a hexadecimal digit is missing");
    test_refused(GRAMMAR_REGEX, "\\x4", "grammar_invalid", "");
    test_refused(GRAMMAR_REGEX, "(?<name", "grammar_invalid", "the closing '>' is missing");
    test_refused(GRAMMAR_REGEX, "(?x)a", "grammar_unsupported", "this kind of group");
    test_refused(GRAMMAR_REGEX, "a{1", "grammar_invalid", "the closing '}' is missing");
    test_refused(GRAMMAR_REGEX, "a{1,2", "grammar_invalid", "the closing '}' is missing");
    test_refused(GRAMMAR_REGEX, "a{}", "grammar_invalid", "repetition count");
    test_refused(GRAMMAR_REGEX, "[a-\\d]", "grammar_invalid", "a range is out of order");
    test_refused(GRAMMAR_REGEX, "b|a)", "grammar_invalid", "')' without '('");
    test_refused(GRAMMAR_REGEX, "a?+", "grammar_unsupported", "possessive");
    test_refused(GRAMMAR_REGEX, "a{4294967295}", "grammar_invalid", "repetition count");
}

/* A NUL is a character like others, also behind a backslash. */
Test(grammar_regex, a_nul_is_a_character) {
    static const char *const sources[] = {R"({"type":"string","pattern":"^\\\u0000a$"})",
                                          R"({"type":"string","pattern":"^\u0000a$"})"};

    for (size_t i = 0; i < ARRAY_SIZE(sources); i++)
        test_lists(GRAMMAR_JSON_SCHEMA, sources[i], YES(R"("\u0000a")"), YES(R"("xa")", R"("a")"));
}

Test(grammar_ebnf, ranges_counts_and_tokens_have_exact_ends) {
    EBNF(R"(root ::= [a-a-] [^b-d] "x"{0,} "y"{1})", YES("aay", "-exxy"), YES("acy", "aaxyy"));
    EBNF(R"(root ::= [\x41-\U0001F600] "\u00e9")", YES("A\xc3\xa9", "\xf0\x9f\x98\x80\xc3\xa9"),
         YES("@\xc3\xa9"));
    test_refused(GRAMMAR_EBNF, "root ::= [b-a]", "grammar_invalid", "the range is out of order");
    test_refused(GRAMMAR_EBNF, "root ::= [a", "grammar_invalid", "the closing ']' is missing");
    test_refused(GRAMMAR_EBNF, "root ::= <tool_call", "grammar_invalid",
                 "the closing '>' is missing");
    test_refused(GRAMMAR_EBNF, "root ::= <tool_call\n>", "grammar_invalid", "the closing '>'");
    test_refused(GRAMMAR_EBNF, "root ::= <[99999999999]>", "grammar_invalid", "too large");
    test_refused(GRAMMAR_EBNF, "root ::= <[2147483648]>", "grammar_invalid", "no such token");
    test_refused(GRAMMAR_EBNF, "root ::= <[1a]>", "grammar_invalid", "malformed");
    test_refused(GRAMMAR_EBNF, "root ::= <[]>", "grammar_invalid", "no such special token");
    test_refused(GRAMMAR_EBNF, R"(root ::= "a"{})", "grammar_invalid", "a bad {m,n}");
    test_refused(GRAMMAR_EBNF, R"(root ::= "a"{,})", "grammar_invalid", "a bad {m,n}");
    test_refused(GRAMMAR_EBNF, R"(root ::= "a"{2,1})", "grammar_invalid", "a bad {m,n}");
    test_refused(GRAMMAR_EBNF, R"(root ::= "a"{2)", "grammar_invalid", "a bad {m,n}");
    test_refused(GRAMMAR_EBNF, R"(root ::= "a"{4294967295})", "grammar_invalid",
                 "line 1: the repetition count is malformed or too large");
    test_refused(GRAMMAR_EBNF, R"(root ::= "\x4")", "grammar_invalid", "a hexadecimal digit");
    test_refused(GRAMMAR_EBNF, R"(root ::= "\ud800")", "grammar_invalid", "not a valid code point");
    test_refused(GRAMMAR_EBNF, R"(root ::= "\udfff")", "grammar_invalid", "not a valid code point");
    test_refused(GRAMMAR_EBNF, R"(root ::= "\U00110000")", "grammar_invalid", "valid code point");
    test_refused(GRAMMAR_EBNF, R"(root ::= "\q")", "grammar_invalid", "unknown escape sequence");
    test_refused(GRAMMAR_EBNF, R"(root ::= "a)", "grammar_invalid",
                 R"(the closing '"' )"
                 "is missing");
    test_refused(GRAMMAR_EBNF,
                 R"(root ::= ")"
                 "\xff"
                 R"(")",
                 "grammar_invalid", "line 1: invalid UTF-8");
    test_refused(GRAMMAR_EBNF,
                 "\n"
                 R"(= "a")",
                 "grammar_invalid", "line 2: expected `name ::=`");
    test_refused(GRAMMAR_REGEX, "\xff", "grammar_invalid", "invalid UTF-8");
    test_refused(GRAMMAR_REGEX, "(a)\\1", "grammar_unsupported", "a back reference");
    test_refused(GRAMMAR_REGEX, "a++", "grammar_unsupported", "a possessive quantifier");
    test_refused(GRAMMAR_REGEX, "\\ud83d\\u0041", "grammar_invalid", "a lone surrogate");
    char many[32 + 65 * 5] = R"({"pattern":"^)";
    for (int k = 0; k < 65; k++)
        strcat(many, "(?!a)");
    test_refused(GRAMMAR_JSON_SCHEMA, strcat(many, R"(b$"})"), "grammar_unsupported",
                 "more than 64 look-aheads");
    EBNF(R"(root ::= "\ud7ff\ue000\U0010ffff")", YES("\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf"),
         YES("a"));
}

/* "<[257]>" and the name of the token are the same token, and no text. */
Test(grammar_ebnf, the_last_token_has_a_number) {
    char text[40];
    uint32_t last = test_n_tokens() - 1;

    snprintf(text, sizeof(text), "root ::= <[%u]>", last);
    CLEANUP(grammar_freep) struct grammar *g = test_compile(GRAMMAR_EBNF, text);
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
    uint32_t bits[64] = {0};

    cr_assert_eq(grammar_state_new(&s, g), 0);
    cr_expect_eq(grammar_mask(s, bits), 1);
    cr_expect_eq(bits[last / 32] >> last % 32 & 1, 1);
    snprintf(text, sizeof(text), "root ::= <[%u]>", last + 1);
    test_refused(GRAMMAR_EBNF, text, "grammar_invalid", "no such token");
}
