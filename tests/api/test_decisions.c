/* /v1/decisions and /v1/systemone: questions that are answered by the probabilities of labels. */

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <yyjson.h>

#include "responses_support.h"

#define DECISIONS "/v1/decisions"
#define SYSTEM_ONE "/v1/systemone"

/* Sends a request while the model's most likely tokens are @first (log probability -0.5) and
 * @second (-1.5). */
static yyjson_doc *ask(struct world *w, const char *path, const char *body, const char *first,
                       int32_t second) {
    struct reply r;

    w->port.script = first;
    w->port.second = second;
    world_ask(w, path, body, &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    yyjson_doc *doc = yyjson_read(r.body.data, r.body.len, 0);
    cr_assert(doc, "%s", r.body.data);
    reply_deinit(&r);
    return doc;
}

static double number(yyjson_doc *doc, const char *path) {
    yyjson_val *v = yyjson_ptr_get(yyjson_doc_get_root(doc), path);

    cr_assert(yyjson_is_num(v), "%s", path);
    return yyjson_get_num(v);
}

static const char *text(yyjson_doc *doc, const char *path) {
    yyjson_val *v = yyjson_ptr_get(yyjson_doc_get_root(doc), path);

    cr_assert(yyjson_is_str(v), "%s", path);
    return yyjson_get_str(v);
}

static void expect_near(yyjson_doc *doc, const char *path, double want) {
    cr_expect_lt(fabs(number(doc, path) - want), 1e-6, "%s: %f, not %f", path, number(doc, path),
                 want);
}

/* Probability of the first of the two tokens. */
#define FIRST (1 / (1 + exp(-1.0)))

#define CHOICE_(name)                                                                              \
    R"({"type":"choice","name":")" name R"(","instructions":"Which team?","choices":[)"            \
    R"({"value":"billing","description":"money"},{"value":true},{"value":"x"}]})"

Test(decisions, a_choice_has_the_probabilities_of_its_labels) {
    struct world w;

    responses_start(&w);
    yyjson_doc *doc = ask(&w, DECISIONS,
                          R"({"input":"Paid twice.","questions":[)" CHOICE_("team") "]}", "B", 'A');
    cr_expect_str_eq(text(doc, "/model"), "tiny");
    cr_expect_str_eq(text(doc, "/answers/0/type"), "choice");
    cr_expect_str_eq(text(doc, "/answers/0/name"), "team");
    cr_expect(yyjson_is_true(yyjson_ptr_get(yyjson_doc_get_root(doc), "/answers/0/choice")));
    expect_near(doc, "/answers/0/probabilities/0/probability", 1 - FIRST);
    expect_near(doc, "/answers/0/probabilities/1/probability", FIRST);
    expect_near(doc, "/answers/0/probabilities/2/probability", 0);
    expect_near(doc, "/answers/0/confidence", (3 * FIRST - 1) / 2);
    cr_expect_eq(number(doc, "/usage/output_tokens"), 1);
    yyjson_doc_free(doc);
    cr_expect_str_eq(responses_prompt(&w),
                     "<|im_start|>user\nPaid twice.\n\nQuestion: Which team?\nA: billing - money\n"
                     "B: true\nC: x\nAnswer with one label from A to C and nothing else.<|im_end|>"
                     "<|im_start|>assistant");
    world_stop(&w);
}

/* Each question has its own prompt, and all prompts begin with the text. */
Test(decisions, questions_share_the_text) {
    struct world w;

    responses_start(&w);
    yyjson_doc *doc = ask(&w, DECISIONS,
                          R"({"input":[{"role":"user","content":[{"type":"input_text",)"
                          R"("text":"T"}]}],"questions":[)"
                          R"({"type":"predicate","instructions":"Is it?"},)"
                          R"({"type":"score","instructions":"How?","levels":[)"
                          R"({"label":"calm"},{"label":"cross"},{"label":"mad"}]}]})",
                          "y", 'n');
    cr_expect_eq(w.port.n, 2);
    for (uint32_t i = 0; i < 2; i++) {
        const struct fake_request *r = &w.port.r[i];

        cr_expect_eq(r->m.max_new, 1);
        cr_expect_eq(memcmp(fake_prompt(r), "|user\nT\n\nQuestion: ", 19), 0, "%s", fake_prompt(r));
    }
    cr_expect_str_eq(text(doc, "/answers/0/type"), "predicate");
    expect_near(doc, "/answers/0/probability", FIRST);
    cr_expect(yyjson_is_null(yyjson_ptr_get(yyjson_doc_get_root(doc), "/answers/0/name")));
    cr_expect_str_eq(text(doc, "/answers/1/type"), "refusal", "no label was likely");
    yyjson_doc_free(doc);
    world_stop(&w);
}

Test(decisions, a_score_is_the_expected_level) {
    struct world w;

    responses_start(&w);
    yyjson_doc *doc = ask(&w, SYSTEM_ONE,
                          R"({"state":{"a":1},"questions":{"tone":{"type":"score","instructions":)"
                          R"("How?","criteria":["calm","cross","mad"]}}})",
                          "2", '0');
    cr_expect(strstr(responses_prompt(&w), "user\n{\"a\":1}\n\nQuestion: How?\n0: calm\n"));
    cr_expect_str_eq(text(doc, "/object"), "structured_decision");
    cr_expect_str_eq(text(doc, "/answers/tone/type"), "score");
    expect_near(doc, "/answers/tone/score", 2 * FIRST);
    cr_expect_str_eq(text(doc, "/answers/tone/legend/1"), "cross");
    expect_near(doc, "/answers/tone/probabilities/0", 1 - FIRST);
    expect_near(doc, "/answers/tone/probabilities/2", FIRST);
    expect_near(doc, "/diagnostics/tone/label_mass", exp(-0.5) + exp(-1.5));
    cr_expect(yyjson_is_true(
        yyjson_ptr_get(yyjson_doc_get_root(doc), "/diagnostics/tone/argmax_is_label")));
    yyjson_doc_free(doc);
    world_stop(&w);
}

/* OpenAI's form of a score lists the levels with their numbers. */
Test(decisions, a_score_lists_its_levels) {
    struct world w;

    responses_start(&w);
    yyjson_doc *doc = ask(&w, DECISIONS,
                          R"({"input":"T","questions":[{"type":"score","name":"tone",)"
                          R"("instructions":"How?","levels":[{"label":"calm"},)"
                          R"({"label":"cross"},{"label":"mad","description":"d"}]}]})",
                          "2", '0');
    cr_expect(strstr(responses_prompt(&w), "0: calm\n1: cross\n2: mad - d\nAnswer with one label "
                                           "from 0 to 2 and nothing else."),
              "%s", responses_prompt(&w));
    cr_expect_str_eq(text(doc, "/answers/0/type"), "score");
    cr_expect_str_eq(text(doc, "/answers/0/name"), "tone");
    expect_near(doc, "/answers/0/score", 2 * FIRST);
    expect_near(doc, "/answers/0/confidence", (3 * FIRST - 1) / 2);
    for (int i = 0; i < 3; i++) {
        static const char *const labels[] = {"calm", "cross", "mad"};
        const double p[] = {1 - FIRST, 0, FIRST};
        char place[60];

        snprintf(place, sizeof(place), "/answers/0/probabilities/%d/label", i);
        cr_expect_str_eq(text(doc, place), labels[i]);
        snprintf(place, sizeof(place), "/answers/0/probabilities/%d/value", i);
        cr_expect_eq(number(doc, place), i);
        snprintf(place, sizeof(place), "/answers/0/probabilities/%d/probability", i);
        expect_near(doc, place, p[i]);
    }
    const struct fake_request *r = &w.port.r[0];
    cr_expect_eq(number(doc, "/usage/input_tokens"), r->m.n_prompt);
    cr_expect_eq(number(doc, "/usage/total_tokens"), r->m.n_prompt + 1);
    yyjson_doc_free(doc);
    world_stop(&w);
}

Test(decisions, system_one_names_its_options) {
    struct world w;

    responses_start(&w);
    yyjson_doc *doc = ask(&w, SYSTEM_ONE,
                          R"({"state":"s","instructions":"Be fair.","questions":{)"
                          R"("team":{"type":"choice","instructions":"Who?","criteria":{"billing":)"
                          R"("money","shipping":null}}}})",
                          "A", 'B');
    cr_expect(strstr(responses_prompt(&w), "user\nBe fair.\n\ns\n\nQuestion: Who?\nA: billing - "
                                           "money\nB: shipping\n"));
    cr_expect_str_eq(text(doc, "/answers/team/choice"), "billing");
    expect_near(doc, "/answers/team/probabilities/billing", FIRST);
    expect_near(doc, "/answers/team/probabilities/shipping", 1 - FIRST);
    yyjson_doc_free(doc);
    doc = ask(&w, SYSTEM_ONE,
              R"({"state":"s","questions":{"now":{"type":"noul","instructions":"Now?",)"
              R"("criteria":{"true":"it burns"}}}})",
              "n", 'Y');
    cr_expect(strstr(responses_prompt(&w), "Question: Now?\nyes: it burns\nAnswer with the word"));
    expect_near(doc, "/answers/now/noul", 1 - FIRST);
    expect_near(doc, "/answers/now/probabilities/no", FIRST);
    yyjson_doc_free(doc);
    world_stop(&w);
}

/* Asserts that the answer names @param and has the text @why. */
static void refused(struct world *w, const char *path, const char *body, const char *param,
                    const char *why) {
    char want[100];
    struct reply r;

    world_ask(w, path, body, &r);
    cr_expect_eq(r.status, 400, "%d for %s: %s", r.status, body, r.body.data);
    snprintf(want, sizeof(want), R"("param":"%s")", param);
    cr_expect(strstr(r.body.data, want), "%s: %s", body, r.body.data);
    cr_expect(strstr(r.body.data, why), "%s: %s", body, r.body.data);
    reply_deinit(&r);
}

#define NOUL R"("questions":{"q":{"type":"noul","instructions":"i"}}})"
#define PREDICATE R"("questions":[{"type":"predicate","instructions":"i"}]})"

Test(decisions, what_is_wrong_is_refused_by_name) {
#define ONE(q) R"({"input":"a","questions":[)" q "]}"
#define SYSTEM_ONE_(q) R"({"state":"a","questions":{"q":)" q "}}"
#define LIST_(kind, list) ONE(R"({"type":")" kind R"(","instructions":"i",)" list "}")
    static const char *const
        rows[][3] =
            {
                {R"({"input":"a"})", "questions", "must be an array of 1 to 64 questions"},
                {R"({"input":"a","questions":[]})", "questions", "must be an array of 1 to 64"},
                {R"({"input":"a","questions":{}})", "questions", "must be an array of 1 to 64"},
                {ONE("5"), "questions[0]", "must be an object"},
                {ONE(R"({"type":"noul","instructions":"i"})"), "questions[0]",
                 "must have the type choice, score or predicate"},
                {ONE(R"({"type":"predicate"})"), "questions[0]", "must have instructions"},
                {ONE(R"({"type":"predicate","instructions":"i","name":5})"), "questions[0]",
                 "must have a name that is a string"},
                {LIST_("choice", R"("choices":[{"value":"a"}])"), "questions[0]",
                 "must be an array of 2 to 26 choices"},
                {LIST_("choice", R"("choices":[{"value":5},{}])"), "questions[0]",
                 "must have choices with a value that is a string, true or false"},
                {LIST_("choice", R"("choices":[{"value":"a","description":5},{}])"), "questions[0]",
                 "must have descriptions that are strings"},
                {LIST_("score", R"("levels":[{"label":true},{}])"), "questions[0]",
                 "must have levels with a label that is a string"},
                {LIST_("score", R"("levels":{})"), "questions[0]",
                 "must be an array of 2 to 10 levels"},
                {R"({"questions":[)" CHOICE_("a") "]}", "input", ""},
                {R"({"input":[{"role":"system","content":"a"}],"questions":[)" CHOICE_("a") "]}",
                 "input", ""},
                {R"({"input":[{"role":"user","content":5}],)" PREDICATE, "input", "messages"},
                {R"({"input":[{"role":"user","content":[{"type":"text","text":"a"}]}],)" PREDICATE,
                 "input", "messages"},
                {R"({"input":[{"role":"user","content":[{"type":"input_text"}]}],)" PREDICATE,
                 "input", "messages"},
                {R"({"input":[],)" PREDICATE, "input", "messages"},
                {R"({"input":"a","priority":"x",)" PREDICATE, "priority", ""},
                {R"({"input":"a","cache_salt":5,)" PREDICATE, "cache_salt", ""},
                {R"({"input":"[[weft:question]]","questions":[)" CHOICE_("a") "]}", "input",
                 "The text contains [[weft:question]], which marks the place of the questions. "
                 "Remove it."},
            },
        *const of_system_one[][3] = {
            {R"({"state":"a","questions":[]})", "questions", "an object of 1 to 64 questions"},
            {SYSTEM_ONE_(R"({"type":"predicate"})"), "questions.q",
             "must have the type choice, score or noul"},
            {SYSTEM_ONE_(R"({"type":"choice","instructions":"i","criteria":{}})"), "questions.q",
             "must be an object of 1 to 26 options"},
            {SYSTEM_ONE_(R"({"type":"score","instructions":"i","criteria":[1]})"), "questions.q",
             "must be an array of 2 to 10 levels"},
            {SYSTEM_ONE_(R"({"type":"noul","instructions":"i","criteria":[1]})"), "questions.q",
             "must have criteria that are an object"},
            {"{" NOUL, "state", "is missing"},
            {R"({"state":null,)" NOUL, "state", "is missing"},
            {R"({"state":"[[weft:question]]",)" NOUL, "state", "contains [[weft:question]]"},
            {SYSTEM_ONE_("5"), "questions.q", "must be an object"},
        };
    struct world w;

    responses_start(&w);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        refused(&w, DECISIONS, rows[i][0], rows[i][1], rows[i][2]);
    for (size_t i = 0; i < ARRAY_SIZE(of_system_one); i++)
        refused(&w, SYSTEM_ONE, of_system_one[i][0], of_system_one[i][1], of_system_one[i][2]);
    cr_expect_eq(w.port.n, 0, "nothing reached the worker");
    world_stop(&w);
}

Test(decisions, a_text_may_have_bytes_0) {
    static const char head[] = "<|im_start|>user\na\0b\n\nQuestion: Which team?";
    struct world w;

    responses_start(&w);
    yyjson_doc_free(
        ask(&w, DECISIONS, R"({"input":"a\u0000b","questions":[)" CHOICE_("team") "]}", "B", 'A'));
    cr_expect_eq(memcmp(responses_prompt(&w), head, sizeof(head) - 1), 0);
    world_stop(&w);
}

Test(decisions, a_template_that_changes_messages_cannot_ask) {
    static const char upper[] = "{% for m in messages %}{{ m.content | upper }}{% endfor %}";
    struct world w;

    responses_init(&w);
    world_use_template(&w, upper, sizeof(upper) - 1);
    world_start(&w);
    refused(&w, DECISIONS, R"({"input":"a","questions":[)" CHOICE_("a") "]}", "model",
            "The chat template of the model does not repeat messages as they are, so it cannot ask "
            "questions. Use another model.");
    world_stop(&w);
}

/* The text of a question never becomes a token that ends the message. */
Test(decisions, questions_are_no_control_tokens) {
    struct world w;

    responses_start(&w);
    yyjson_doc *doc = ask(&w, DECISIONS,
                          R"({"input":"a","questions":[{"type":"predicate",)"
                          R"("instructions":"<|im_end|>"}]})",
                          "y", 'n');
    yyjson_doc_free(doc);
    uint32_t n_end = 0;
    for (uint32_t i = 0; i < w.port.r[0].m.n_prompt; i++)
        n_end += w.port.r[0].m.tokens[i] == TINY_END;
    cr_expect_eq(n_end, 1);
    world_stop(&w);
}

/* Long texts are handled on the pool. */
Test(decisions, a_long_text_is_asked_about) {
    CLEANUP(buf_deinit) struct buf body = {.max = 1 << 20};
    struct world w;

    responses_start(&w);
    buf_add_str(&body, R"({"input":")");
    for (int i = 0; i < 9000; i++)
        buf_add_char(&body, 'x');
    buf_add_str(&body, R"(","questions":[)" CHOICE_("a") "," CHOICE_("b") "," CHOICE_("c") "]}");
    yyjson_doc *doc = ask(&w, DECISIONS, body.data, "A", 'B');
    cr_expect_str_eq(text(doc, "/answers/2/choice"), "billing");
    yyjson_doc_free(doc);
    world_stop(&w);
}

/* Tests the largest numbers of questions, choices, options and levels, and one more of each. */
Test(decisions, lists_have_limits) {
    static const struct {
        const char *path, *begin, *item, *end, *why;
        int most;
    } lists[] = {
        {DECISIONS, R"({"input":"a","questions":[)",
         R"({"type":"predicate","name":"q%d","instructions":"i"})", "]}",
         "must be an array of 1 to 64 questions", 64},
        {SYSTEM_ONE, R"({"state":"a","questions":{)", R"("q%d":{"type":"noul","instructions":"i"})",
         "}}", "must be an object of 1 to 64 questions", 64},
        {DECISIONS,
         R"({"input":"a","questions":[{"type":"choice","instructions":"i",)"
         R"("choices":[)",
         R"({"value":"v%d"})", "]}]}", "must be an array of 2 to 26 choices", 26},
        {SYSTEM_ONE,
         R"({"state":"a","questions":{"q":{"type":"choice","instructions":"i",)"
         R"("criteria":{)",
         R"("o%d":"d")", "}}}}", "must be an object of 1 to 26 options", 26},
        {DECISIONS,
         R"({"input":"a","questions":[{"type":"score","instructions":"i",)"
         R"("levels":[)",
         R"({"label":"l%d"})", "]}]}", "must be an array of 2 to 10 levels", 10},
        {SYSTEM_ONE,
         R"({"state":"a","questions":{"q":{"type":"score","instructions":"i",)"
         R"("criteria":[)",
         R"("l%d")", "]}}}", "must be an array of 2 to 10 levels", 10},
    };
    struct world w;
    struct reply r;

    responses_start(&w);
    w.port.script = "A";
    w.port.second = 'B';
    for (size_t k = 0; k < ARRAY_SIZE(lists); k++) {
        for (int n = lists[k].most; n <= lists[k].most + 1; n++) {
            CLEANUP(buf_deinit) struct buf b = {.max = 1 << 16};

            cr_assert_eq(buf_add_str(&b, lists[k].begin), 0);
            for (int i = 0; i < n; i++) {
                char item[100];

                snprintf(item, sizeof(item), lists[k].item, i);
                cr_assert(buf_add_str(&b, i ? "," : "") == 0 && buf_add_str(&b, item) == 0);
            }
            cr_assert_eq(buf_add(&b, lists[k].end, strlen(lists[k].end) + 1), 0);
            world_ask(&w, lists[k].path, b.data, &r);
            cr_expect_eq(r.status, n == lists[k].most ? 200 : 400, "%s: %s", lists[k].why,
                         r.body.data);
            cr_expect(n == lists[k].most || strstr(r.body.data, lists[k].why), "%s", r.body.data);
            reply_deinit(&r);
        }
    }
    world_stop(&w);
}

/* A token that is no label takes no part: the labels' probabilities are those among themselves. */
Test(decisions, only_labels_count) {
    static const char body[] = R"({"state":"s","questions":{"q":{"type":"choice",)"
                               R"("instructions":"i","criteria":{"a":"1","b":"2"}}}})";
    static const struct {
        const char *first, *choice;
        int32_t second;
        double p, mass;
        bool is_label;
    } rows[] = {
        {" ", "b", 'B', 0, 0.2231301601, false}, {"a", "b", 'B', 0, 0.2231301601, false},
        {"B", "b", '\n', 0, 0.6065306597, true}, {"A", "a", 'C', 1, 0.6065306597, true},
        {"x", "a", 'y', 0.5, 0, false},
    };
    struct world w;

    responses_start(&w);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        yyjson_doc *doc = ask(&w, SYSTEM_ONE, body, rows[i].first, rows[i].second);

        cr_expect_str_eq(text(doc, "/answers/q/choice"), rows[i].choice, "row %zu", i);
        expect_near(doc, "/answers/q/probabilities/a", rows[i].p);
        expect_near(doc, "/answers/q/probabilities/b", 1 - rows[i].p);
        expect_near(doc, "/answers/q/confidence", rows[i].mass > 0 ? 1 : 0);
        expect_near(doc, "/diagnostics/q/label_mass", rows[i].mass);
        cr_expect_eq(yyjson_is_true(yyjson_ptr_get(yyjson_doc_get_root(doc),
                                                   "/diagnostics/q/argmax_is_label")),
                     rows[i].is_label, "row %zu", i);
        yyjson_doc_free(doc);
    }
    world_stop(&w);
}

Test(decisions, one_option_has_all) {
    struct world w;

    responses_start(&w);
    yyjson_doc *doc = ask(&w, SYSTEM_ONE,
                          R"({"state":7,"questions":{"q":{"type":"choice",)"
                          R"("instructions":"i","criteria":{"a":{"b":1}}}}})",
                          "A", 'B');
    expect_near(doc, "/answers/q/confidence", 1);
    expect_near(doc, "/answers/q/probabilities/a", 1);
    yyjson_doc_free(doc);
    world_stop(&w);
}

/* The text may be several messages, of several parts each. */
Test(decisions, messages_are_one_text) {
    static const char want[] = "<|im_start|>user\na\n\nbc\n\nQuestion: i\n";
    struct world w;

    responses_start(&w);
    yyjson_doc *doc =
        ask(&w, DECISIONS,
            R"({"input":[{"role":"user","content":"a"},{"role":"user","content":[)"
            R"({"type":"input_text","text":"b"},{"type":"input_text","text":"c"}]}],)" PREDICATE,
            "y", 'n');
    cr_expect_eq(strncmp(responses_prompt(&w), want, strlen(want)), 0, "%s", responses_prompt(&w));
    double in = number(doc, "/usage/input_tokens");
    cr_expect_eq(in, w.port.r[0].m.n_prompt);
    cr_expect_eq(number(doc, "/usage/input_tokens_details/cached_tokens"), floor(in / 2));
    cr_expect_eq(number(doc, "/usage/total_tokens"), in + 1);
    yyjson_doc_free(doc);
    world_stop(&w);
}

/* The label must come first, so the model does not think, unless the client wants it to. */
Test(decisions, variables_of_the_template_are_passed_on) {
    static const char source[] = "{% for m in messages %}{{ m.content }}{% endfor %}"
                                 "|{{ enable_thinking }}|{{ x }}|";
    static const char *const rows[][2] = {
        {"", "|False||"},
        {R"("chat_template_kwargs":{"x":"y"},)", "|False|y|"},
        {R"("chat_template_kwargs":{"x":"y","enable_thinking":true},)", "|True|y|"},
    };
    struct world w;
    char body[300];

    responses_init(&w);
    world_use_template(&w, source, sizeof(source) - 1);
    world_start(&w);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        snprintf(body, sizeof(body), R"({"input":"a",%s%s)", rows[i][0], PREDICATE);
        yyjson_doc_free(ask(&w, DECISIONS, body, "y", 'n'));
        cr_expect(strstr(responses_prompt(&w), rows[i][1]), "%s", responses_prompt(&w));
    }
    world_stop(&w);
}
