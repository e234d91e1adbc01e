/* Nodes and triggers as they travel, and what they mean for a request. */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "tests/text/grammar_support.h"
#include "text/constraint.h"

static struct grammar *compile(const char *text) {
    struct grammar *g = NULL;
    struct err err = {0};
    int r = constraint_compile(&g, test_vocab(), text, strlen(text), NULL, &err);

    cr_assert_eq(r, 0, "%s: %s", text, err.message);
    return g;
}

static void lists(const char *text, const char *const *fits, const char *const *fits_not) {
    CLEANUP(grammar_freep) struct grammar *g = compile(text);

    for (; *fits; fits++)
        cr_assert(test_fits(g, *fits, strlen(*fits)), "%s should fit %s", *fits, text);
    for (; *fits_not; fits_not++)
        cr_assert(!test_fits(g, *fits_not, strlen(*fits_not)), "%s fits %s", *fits_not, text);
}

static struct err refused(const char *text) {
    struct grammar *g = NULL;
    struct err err = {0};

    cr_assert_eq(constraint_compile(&g, NULL, text, strlen(text), NULL, &err), -EINVAL, "%s", text);
    cr_assert_eq(err.status, 400);
    return err;
}

Test(constraint, nodes_are_their_grammars) {
    lists("{\"json_schema\":{\"type\":\"integer\",\"minimum\":10,\"maximum\":12}}",
          YES("10", "11", "12"), YES("9", "13", "1"));
    lists("{\"json_object\":true}", YES("{}", "{\"a\": 1}"), YES("[]", "1"));
    lists("{\"json_object\":true,\"compact\":true}", YES("{\"a\":1}"), YES("{\"a\": 1}"));
    lists("{\"regex\":\"a+b\"}", YES("ab", "aab"), YES("b", "aba"));
    lists("{\"ebnf\":\"root ::= \\\"x\\\"*\"}", YES("", "xx"), YES("y"));
    lists("{\"choice\":[\"yes\",\"no\"]}", YES("yes", "no"), YES("", "yesno"));
    lists("{\"literal\":\"abc\"}", YES("abc"), YES("ab", "abcd"));
    lists("{\"free_text\":\"END\"}", YES("", "EN", "text"), YES("END", "xENDx"));
}

Test(constraint, nodes_compose) {
    lists("{\"sequence\":[{\"literal\":\"<\"},{\"either\":[{\"regex\":\"[0-9]\"},{\"literal\":"
          "\"x\"}]},"
          "{\"literal\":\">\"}]}",
          YES("<1>", "<x>"), YES("<>", "<1x>"));
    lists("{\"repeat\":{\"literal\":\"a\"},\"separator\":{\"literal\":\",\"},\"min\":1,\"max\":2}",
          YES("a", "a,a"), YES("", "a,", "aa", "a,a,a"));
    lists("{\"repeat\":{\"literal\":\"a\"}}", YES("", "aaaa"), YES("b"));
}

Test(constraint, numbers_of_schemas_stay_exact) {
    lists("{\"json_schema\":{\"const\":0.10000000000000000001}}", YES("0.10000000000000000001"),
          YES("0.1"));
}

Test(constraint, refusals_name_what_is_wrong) {
    struct err e =
        refused("{\"json_schema\":{\"not\":{}},\"param\":\"tools[2].function.parameters\"}");

    cr_assert_str_eq(e.code, "grammar_unsupported");
    cr_assert_str_eq(e.param, "tools[2].function.parameters");
    cr_assert_str_eq(refused("{\"regex\":\"(\"}").code, "grammar_invalid");
    refused("");
    refused("[]");
    refused("{}");
    refused("{\"regex\":1}");
    refused("{\"json_object\":false}");
    refused("{\"either\":[]}");
    refused("{\"sequence\":{}}");
    refused("{\"repeat\":{\"literal\":\"a\"},\"min\":2,\"max\":1}");
    refused("{\"repeat\":{\"literal\":\"a\"},\"min\":-1}");
    refused("{\"repeat\":{\"literal\":\"a\"},\"max\":99999999999}");
    refused("{\"repeat\":{\"literal\":\"a\"},\"max\":\"3\"}");
    refused("{\"literal\":1}");
}

Test(constraint, nesting_is_limited) {
    char text[4096];
    size_t n = 0;

    for (int i = 0; i < 100; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "{\"repeat\":");
    n += (size_t)snprintf(text + n, sizeof(text) - n, "{\"literal\":\"a\"}");
    for (int i = 0; i < 100; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "}");
    cr_assert_str_eq(refused(text).code, "grammar_too_complex");
}

Test(constraint, triggers_are_checked) {
    static const char *const good[] = {"", "{\"after\":[\"</think>\"]}",
                                       "{\"after\":[\"a\",\"b\"],\"repeat\":true}",
                                       "{\"after\":[\"a\"],\"required\":true}"};
    static const char *const bad[] = {"[]",
                                      "{}",
                                      "{\"after\":[]}",
                                      "{\"after\":\"a\"}",
                                      "{\"after\":[\"\"]}",
                                      "{\"after\":[1]}",
                                      "{\"after\":[\"a\"],\"repeat\":1}",
                                      "{\"after\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\","
                                      "\"9\",\"10\",\"11\",\"12\",\"13\","
                                      "\"14\",\"15\",\"16\",\"17\"]}"};
    struct err err;

    for (size_t i = 0; i < ARRAY_SIZE(good); i++)
        cr_assert_eq(constraint_check_triggers(good[i], strlen(good[i]), &err), 0, "%s", good[i]);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        cr_assert_eq(constraint_check_triggers(bad[i], strlen(bad[i]), &err), -EINVAL, "%s",
                     bad[i]);
}
