/* Grammars in Lark: which texts fit, alone and inside a JSON string, and what is refused. */

#include <string.h>

#include "tests/grammar/grammar_support.h"

#define LARK(source, yes, no) test_lists(GRAMMAR_LARK, source, yes, no)

/* In the words of the tool that Codex comes with. */
static const char patch[] = "start: begin_patch hunk+ end_patch\n"
                            R"(begin_patch: "*** Begin Patch" LF)"
                            "\n"
                            R"(end_patch: "*** End Patch" LF?)"
                            "\n"
                            "\n"
                            "hunk: add_hunk | delete_hunk | update_hunk\n"
                            R"(add_hunk: "*** Add File: " filename LF add_line+)"
                            "\n"
                            R"(delete_hunk: "*** Delete File: " filename LF)"
                            "\n"
                            R"(update_hunk: "*** Update File: " filename )"
                            "LF change_move? change?"
                            "\n"
                            "\n"
                            "filename: /(.+)/\n"
                            R"(add_line: "+" /(.*)/ LF -> line)"
                            "\n"
                            "\n"
                            R"(change_move: "*** Move to: " filename LF)"
                            "\n"
                            "change: (change_context | change_line)+ eof_line?\n"
                            R"(change_context: ("@@" | "@@ " /(.+)/) LF)"
                            "\n"
                            R"(change_line: ("+" | "-" | " ") /(.*)/ LF)"
                            "\n"
                            R"(eof_line: "*** End of File" LF)"
                            "\n"
                            "\n"
                            "%import common.LF\n";

Test(grammar_lark, a_patch) {
    LARK(patch,
         YES("*** Begin Patch\n*** Add File: a/b.c\n+int x;\n+\n*** End Patch\n",
             "*** Begin Patch\n*** Delete File: x\n*** End Patch",
             "*** Begin Patch\n*** Update File: x\n*** Move to: y\n@@ f()\n a\n-b\n+c < \"d\"\n"
             "*** End of File\n*** Add File: z\n+\n*** End Patch\n"),
         YES("*** Begin Patch\n*** End Patch\n", "*** Begin Patch\n*** Add File: a\n*** End Patch",
             "*** Begin Patch\n*** Update File: x\nline\n*** End Patch\n", "patch", "",
             "*** Begin Patch\n*** Delete File: x\n*** End Patch\n\n"));
}

Test(grammar_lark, inside_a_json_string) {
    CLEANUP(grammar_freep)
    struct grammar *g = test_compile_with(GRAMMAR_LARK, GRAMMAR_QUOTED, patch);
    CLEANUP(grammar_freep)
    struct grammar *x = test_compile_with(GRAMMAR_REGEX, GRAMMAR_QUOTED, R"(a"\n[b\\])");
    static const char yes[] = R"(*** Begin Patch\n*** Add File: \"q\"\n+\\t\t)"
                              "\xc3\xa9"
                              R"(\n*** End Patch\n)";
    static const char no[] = "*** Begin Patch\n*** Add File: q\n+\n*** End Patch\n";

    cr_expect(test_fits(g, yes, strlen(yes)));
    cr_expect_not(test_fits(g, no, strlen(no)));
    cr_expect(test_fits(x, R"(a\"\n\\)", 7));
    cr_expect_not(test_fits(x,
                            R"(a")"
                            "\nb",
                            4));
}

Test(grammar_lark, terminals) {
    LARK("start: A B? \"c\"i\nA: \"a\"..\"f\" /[0-9]+/i\nB.2: (\"x\" | \"y\" A)~2\n",
         YES("a1c", "f22C", "a1xxc", "b2ya3xc"), YES("g1c", "a1xc", "ac"));
    LARK(R"(start: /a.c/s | /[a-c]x/i | "\n\x41\u00e9\\")",
         YES("a\nc", "Bx", "bX", "\nA\xc3\xa9\\"), YES("dx", "a"));
    LARK(R"(start: "ab"i~1..2 | "z"{2} | "w"{,1})", YES("aB", "ABab", "zz", "w", ""),
         YES("abababa", "z"));
    LARK("%import common.WORD\n"
         R"(start: WORD "/" /a\/b/)",
         YES("Word/a/b"), YES("/a/b"));
    LARK("%import common (WORD,\n INT)\nstart: WORD INT", YES("a1"), YES("1a"));
    LARK("%import common ( WORD ,INT\n)\nstart: WORD INT", YES("a1"), YES("1a"));
    LARK("%import common.ESCAPED_STRING -> STRING\n%import common.NUMBER\nstart: STRING NUMBER",
         YES(R"("a\""1.5e3)", R"(""7)"), YES(R"("a1)", R"("a""1)"));
    LARK("%import common.C_COMMENT\n%import common.CNAME\nstart: C_COMMENT CNAME",
         YES("/* a **/_b1"), YES("/* a */ */b", "/*/b"));
}

Test(grammar_lark, flags_and_escapes) {
    LARK("start: /[^a-c]+/i", YES("d", "xYz"), YES("a", "B", "xC"));
    LARK(R"(start: /[^k]/i | "-" /[^\W]/i)", YES("j", "-k", "-K"), YES("k", "K", "\xe2\x84\xaa"));
    LARK("start: /a/m | /b/l | /c/u", YES("a", "b", "c"), YES("A", "B", "C"));
    LARK(R"(start: "\a\b\f" /\cA/)", YES("\a\b\f\x01"), YES("ab\f\x01"));
}

Test(grammar_lark, json_beside_text) {
    LARK("start: \"x=\" v (\";\" v)*\nv: %json {\"type\": \"integer\", \"minimum\": 3}\n",
         YES("x=3", "x=12;4"), YES("x=2", "x=3;", R"(x="3")"));
    LARK("start: %json {\"const\": \"}\"}\n  | %json true \"!\"\n%ignore \" \"",
         YES(R"("}")", "[1, 2] !", " null!"), YES(R"("})", "[1, 2]"));
    test_refused(GRAMMAR_LARK, R"(start: %json {"type": )", "grammar_invalid", "JSON Schema");
    test_refused(GRAMMAR_LARK, R"(start: %json {"type": "x"})", "grammar_invalid", "#/type");
    test_refused(GRAMMAR_LARK, "start: A\nA: %json {}", "grammar_unsupported", "terminal");
}

Test(grammar_lark, layout_and_comments) {
    LARK("// what\n?start: a   // or\n      | b\n\n!a: \"1\" # here\n\nb: (\"2\"\n  \"3\") [\"4\"] "
         "-> tree\n",
         YES("1", "23"), YES("2", "234 "));
    LARK("start:\n | \"a\"\n", YES("", "a"), YES("b"));
    LARK("start: \"a\"\r\n | _b\r\n_b: \"b\"\r\n", YES("a", "b"), YES(""));
}

Test(grammar_lark, what_is_ignored_stands_between_terminals) {
    LARK("start: \"let\" NAME \"=\" /[0-9]+/\nNAME: \"a\" \"b\"\n%import common.WS\n%ignore WS\n",
         YES("let ab = 1", " letab=1\n", "let\n\tab =12 "), YES("let a b = 1", "let ab = 1 2"));
}

Test(grammar_lark, lists_begin_with_themselves) {
    LARK("?start: sum\n?sum: product | sum \"+\" product | sum \"-\" product\n"
         "?product: atom | product \"*\" atom\natom: /[0-9]/ | \"-\" atom | \"(\" sum \")\"\n",
         YES("1", "1+2*3-(4--5)"), YES("", "1+", "+1", "1**2"));
    LARK(R"(start: start "a" | start | "b")", YES("b", "baa"), YES("a", ""));
    test_refused(GRAMMAR_LARK, "start: a\na: b \"x\" | \"y\"\nb: a \"z\" | \"w\"",
                 "grammar_invalid", "recursi");
}

Test(grammar_lark, masks_are_exact) {
    struct rng r = {7};
    char text[4000];
    int done = 0;
    CLEANUP(grammar_freep) struct grammar *g = test_compile(GRAMMAR_LARK, patch);

    for (int i = 0; i < 20; i++) {
        int n = test_random_text(g, &r, 1, text, sizeof(text));

        done += n >= 0;
        cr_expect(n < 0 || test_fits(g, text, (size_t)n));
    }
    cr_expect_gt(done, 0);
}

Test(grammar_lark, what_is_not_known_is_refused) {
    test_refused(GRAMMAR_LARK, R"(a: "b")", "grammar_invalid",
                 "grammar: the rule 'start' is missing");
    test_refused(GRAMMAR_LARK, "start: b", "grammar_invalid", "'b' is not defined");
    test_refused(GRAMMAR_LARK,
                 R"(start: "a")"
                 "\n"
                 R"(start: "b")",
                 "grammar_invalid", "line 2");
    test_refused(GRAMMAR_LARK, R"(start: "a)", "grammar_invalid",
                 R"(line 1: the closing '"' is missing)");
    test_refused(GRAMMAR_LARK, R"(start: ("a")", "grammar_invalid", "')' is missing");
    test_refused(GRAMMAR_LARK, R"(start: "a"))", "grammar_invalid", "a bracket has no counterpart");
    test_refused(GRAMMAR_LARK, "start: /a", "grammar_invalid", "closing '/'");
    test_refused(GRAMMAR_LARK, "start: /(?=a)/", "grammar_unsupported", "look-around");
    test_refused(GRAMMAR_LARK, "start: /a/q", "grammar_invalid", "flag");
    test_refused(GRAMMAR_LARK, "%import common.INT\n-> X\nstart: X", "grammar_invalid", "");
    test_refused(GRAMMAR_LARK, "start: /a/x", "grammar_unsupported", "flag x");
    test_refused(GRAMMAR_LARK, R"(start: "ab".."c")", "grammar_invalid",
                 "a range needs one character on both sides, in order");
    test_refused(GRAMMAR_LARK, R"(start: "a"~3..1)", "grammar_invalid",
                 "the repetition count is malformed or too large");
    test_refused(GRAMMAR_LARK,
                 "start: a{\n"
                 R"(a: "a")",
                 "grammar_unsupported", "templates are not supported");
    test_refused(GRAMMAR_LARK,
                 R"(a: "a")"
                 "\nstart: a{",
                 "grammar_invalid", "the repetition count is malformed");
    test_refused(GRAMMAR_LARK, R"(1: "a")", "grammar_invalid",
                 "expected a rule, a terminal or a directive");
    test_refused(GRAMMAR_LARK, "%import common.1", "grammar_unsupported",
                 "such an import is not supported");
    test_refused(GRAMMAR_LARK, R"(start: _s{"a"})", "grammar_unsupported",
                 "templates are not supported");
    test_refused(GRAMMAR_LARK,
                 "s{x}: x\n"
                 R"(start: "a")",
                 "grammar_unsupported", "templates and attributes of rules are not");
    test_refused(GRAMMAR_LARK, "start: <|im_end|>", "grammar_unsupported", "special tokens");
    test_refused(GRAMMAR_LARK, "%declare A\nstart: A", "grammar_unsupported",
                 "this directive is not supported");
    test_refused(GRAMMAR_LARK, "%import python.NAME\nstart: NAME", "grammar_unsupported",
                 "an import of anything but common is not");
    test_refused(GRAMMAR_LARK, "%import common.PRICE\nstart: PRICE", "grammar_unsupported",
                 "this terminal of common is not supported");
    test_refused(GRAMMAR_LARK, R"(start: "a" })", "grammar_invalid", "expected a string");
    test_refused(GRAMMAR_LARK, R"(start: "\q")", "grammar_invalid", "unknown escape sequence");
    test_refused(GRAMMAR_LARK, R"(start "a")", "grammar_invalid", "line 1: expected ':'");
}

/* What is nearest to a refusal. */
Test(grammar_lark, ranges_counts_and_names_have_exact_ends) {
    test_lists(GRAMMAR_LARK, R"(start: "a".."a" "b"~2..2 "c"~1 -> tree)", YES("abbc"),
               YES("abc", "abbcc", "bbbc"));
    test_lists(GRAMMAR_LARK, R"(start: "a".."c"i?)", YES("a", "c", ""), YES("d"));
    test_refused(GRAMMAR_LARK, R"(start: "a"..b)", "grammar_invalid", "a string on both sides");
    test_refused(GRAMMAR_LARK, R"(start: "b".."a")", "grammar_invalid", "in order");
    test_refused(GRAMMAR_LARK, R"(start: "a" ->)", "grammar_invalid",
                 "a name is missing behind ->");
    test_refused(GRAMMAR_LARK, R"(start: "a" -> X)", "grammar_invalid", "a name is missing behind");
    test_refused(GRAMMAR_LARK, R"(start: "a" -> x "b")", "grammar_invalid", "nothing may follow");
    test_refused(GRAMMAR_LARK, "start: %json", "grammar_invalid", "a JSON Schema is missing");
}
