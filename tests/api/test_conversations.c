/* /v1/conversations: items under one id, which grow with each response that names it. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <yyjson.h>

#include "api/parts.h"
#include "responses_support.h"

#define ALL "/v1/conversations"
#define FIRST R"({"type":"message","role":"user","content":"first"})"

/* Sends METHOD ALL/PATH; returns the body of the answer, which is valid until the next call. */
static const char *ask(struct world *w, const char *method, const char *path, const char *body,
                       int status) {
    static struct buf text = {.max = 1 << 20};
    int fd = world_connect(w);
    struct reply r;

    world_say(w, fd, "%s " ALL "%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s",
              method, path, strlen(body), body);
    world_receive(w, fd, &r);
    world_drop(w, fd);
    cr_expect_eq(r.status, status, "%s %s: %d %s", method, path, r.status, r.body.data);
    buf_clear(&text);
    buf_add(&text, r.body.data, r.body.len);
    yyjson_doc *doc = yyjson_read(text.data, text.len, 0);
    cr_expect(doc, "%s %s: no JSON: %s", method, path, text.data);
    yyjson_doc_free(doc);
    reply_deinit(&r);
    return text.data;
}

/* Sends METHOD ALL/ID REST. */
static const char *ask_one(struct world *w, const char *method, const char *id, const char *rest,
                           const char *body, int status) {
    char path[300];

    snprintf(path, sizeof(path), "/%s%s", id, rest);
    return ask(w, method, path, body, status);
}

static void create(struct world *w, const char *body, char id[64]) {
    const char *text = ask(w, "POST", "", body, 200);

    cr_assert(strstr(text, R"("object":"conversation")"), "%s", text);
    snprintf(id, 64, "%.29s", strstr(text, "conv_"));
}

/* Sends @input in the conversation, while the model writes @output. */
static void say(struct world *w, const char *id, const char *input, const char *output) {
    char fields[400], want[200];
    struct reply r;

    snprintf(fields, sizeof(fields), R"("input":"%s","conversation":"%s")", input, id);
    responses_ask(w, fields, output, &r);
    snprintf(want, sizeof(want), R"("conversation":{"id":"%s"})", id);
    cr_expect(strstr(r.body.data, want), "%s", r.body.data);
    snprintf(want, sizeof(want), "M<%s> completed", output);
    cr_expect_str_eq(responses_told(&r), want);
}

/* Compares the texts of the listed items, in the order in which they were added. */
static void expect_items(struct world *w, const char *id, const char *want) {
    const char *text = ask_one(w, "GET", id, "/items?order=asc&limit=100", "", 200);
    CLEANUP(buf_deinit) struct buf line = {.max = 1 << 16};
    yyjson_doc *doc = yyjson_read(text, strlen(text), 0);
    yyjson_val *item;
    size_t i, n;

    yyjson_arr_foreach(yyjson_obj_get(yyjson_doc_get_root(doc), "data"), i, n, item) {
        yyjson_val *content = yyjson_obj_get(item, "content");
        yyjson_val *part = yyjson_obj_get(yyjson_arr_get_first(content), "text");

        cr_expect(yyjson_is_str(yyjson_obj_get(item, "id")));
        buf_printf(&line, "%s%s", i ? " " : "", yyjson_get_str(part ? part : content));
    }
    cr_expect_str_eq(line.len ? line.data : "", want);
    yyjson_doc_free(doc);
}

Test(conversations, a_response_is_added_to_its_conversation) {
    struct world w;
    char id[64], other[64];

    responses_start(&w);
    create(&w, R"({"items":[)" FIRST "]}", id);
    create(&w, "{}", other);
    say(&w, id, "a", "A");
    cr_expect_str_eq(responses_prompt(&w),
                     "<|im_start|>user\nfirst<|im_end|><|im_start|>user\na<|im_end|>"
                     "<|im_start|>assistant");
    say(&w, id, "b", "B");
    say(&w, other, "c", "C");
    cr_expect_str_eq(responses_prompt(&w), "<|im_start|>user\nc<|im_end|><|im_start|>assistant");
    expect_items(&w, id, "first a A b B");
    expect_items(&w, other, "c C");
    world_stop(&w);
}

Test(conversations, items_are_added_read_and_removed) {
    char id[64], item[100], rest[200];
    struct world w;

    responses_start(&w);
    create(&w, "{}", id);
    expect_items(&w, id, "");
    say(&w, id, "a", "A");
    const char *text = ask_one(&w, "POST", id, "/items", R"({"items":[)" FIRST "]}", 200);
    cr_expect(strstr(text, R"("object":"list")") && strstr(text, R"("has_more":false)"));
    cr_expect(!strstr(text, R"("A")"), "only what was added is listed: %s", text);
    snprintf(item, sizeof(item), "%.*s", (int)strcspn(strstr(text, "msg_"), R"(")"),
             strstr(text, "msg_"));
    expect_items(&w, id, "a A first");
    snprintf(rest, sizeof(rest), "/items/%s", item);
    cr_expect(strstr(ask_one(&w, "GET", id, rest, "", 200), R"("first")"));
    say(&w, id, "b", "B");
    cr_expect(strstr(responses_prompt(&w), "A<|im_end|><|im_start|>user\nfirst"));
    text = ask_one(&w, "DELETE", id, rest, "", 200);
    cr_expect(strstr(text, R"("object":"conversation")"), "%s", text);
    expect_items(&w, id, "a A b B");
    ask_one(&w, "GET", id, rest, "", 404);
    ask_one(&w, "DELETE", id, rest, "", 404);
    say(&w, id, "c", "C");
    cr_expect(!strstr(responses_prompt(&w), "first"));
    world_stop(&w);
}

/* The items that stay are more than the part of the store that new items may have. */
Test(conversations, an_item_is_removed_without_room) {
    static char body[220000], text[200001];
    static struct world w;
    char id[64];

    responses_start(&w);
    create(&w, R"({"items":[{"role":"user","content":"a","id":"msg_a"}]})", id);
    memset(text, 'x', sizeof(text) - 1);
    snprintf(body, sizeof(body), R"({"items":[{"role":"user","content":"%s"}]})", text);
    for (int i = 0; i < 2; i++)
        ask_one(&w, "POST", id, "/items", body, 200);
    ask_one(&w, "DELETE", id, "/items/msg_a", "", 200);
    ask_one(&w, "GET", id, "/items/msg_a", "", 404);
    world_stop(&w);
}

Test(conversations, metadata_is_kept_and_changed) {
    struct world w;
    char id[64];

    responses_start(&w);
    create(&w, R"({"metadata":{"a":"1"}})", id);
    say(&w, id, "a", "A");
    cr_expect(strstr(ask_one(&w, "GET", id, "", "", 200), R"("metadata":{"a":"1"})"));
    ask_one(&w, "POST", id, "", R"({"metadata":{"b":"2"}})", 200);
    cr_expect(strstr(ask_one(&w, "GET", id, "", "", 200), R"("metadata":{"b":"2"})"));
    expect_items(&w, id, "a A");
    cr_expect(strstr(ask_one(&w, "DELETE", id, "", "", 200), "conversation.deleted"));
    ask_one(&w, "GET", id, "", "", 404);
    ask_one(&w, "DELETE", id, "", "", 404);
    ask_one(&w, "GET", id, "/items", "", 404);
    world_stop(&w);
}

/* A result needs its call, which may be in an earlier output of the model. */
Test(conversations, items_are_checked_behind_what_is_there) {
    struct world w;
    char id[64];

    responses_start(&w);
    create(&w,
           R"({"items":[{"type":"function_call","call_id":"c","name":"f",)"
           R"("arguments":"{}"}]})",
           id);
    ask_one(&w, "POST", id, "/items",
            R"({"items":[{"type":"function_call_output","call_id":"c","output":"x"}]})", 200);
    const char *text =
        ask_one(&w, "POST", id, "/items",
                R"({"items":[{"type":"function_call_output","call_id":"d","output":"x"}]})", 400);
    cr_expect(strstr(text, R"("param":"items[0].call_id")"), "%s", text);
    static const char *const wrong[] = {R"({"items":[]})",  "{}", R"({"items":5})",
                                        R"({"items":[5]})", "[]", "{",
                                        R"({"items":null})"};
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++)
        ask_one(&w, "POST", id, "/items", wrong[i], 400);
    ask(&w, "POST", "", R"({"metadata":5})", 400);
    ask(&w, "POST", "", R"({"items":"x"})", 400);
    ask_one(&w, "GET", id, "/items/x/y", "", 404);
    text = ask_one(&w, "DELETE", id, "/items/x%25d", "", 404);
    cr_expect(strstr(text, "Item with id 'x%d' not found."), "%s", text);
    ask_one(&w, "GET", id, "/x", "", 404);
    ask_one(&w, "POST", "conv_none", "/items", R"({"items":[)" FIRST "]}", 404);
    text = ask_one(&w, "GET", "conv_none", "/items/x", "", 404);
    cr_expect(strstr(text, "Conversation with id 'conv_none' not found."), "%s", text);
    world_stop(&w);
}

/* While a response is under way, nothing can be added; a failed response adds nothing. */
Test(conversations, one_thing_is_added_at_a_time) {
    struct world w;
    struct reply r;
    char id[64], body[200], fields[200];

    responses_start(&w);
    create(&w, "{}", id);
    snprintf(body, sizeof(body), R"({"input":"a","conversation":{"id":"%s"}})", id);
    int fd = world_connect(&w);
    world_post(&w, fd, RESPONSES, body);
    world_turns(&w, 4);
    cr_assert_eq(w.port.n, 1);
    fake_accept(&w.port, 0);
    w.port.hold = true;
    snprintf(fields, sizeof(fields), R"("input":"b","conversation":"%s")", id);
    responses_refused(&w, fields, 400, "conversation_locked", "conversation");
    ask_one(&w, "POST", id, "/items", R"({"items":[)" FIRST "]}", 400);
    w.port.hold = false;
    fake_fail(&w.port, 0, 500, "broken");
    world_receive(&w, fd, &r);
    world_drop(&w, fd);
    cr_expect_eq(r.status, 500);
    reply_deinit(&r);
    expect_items(&w, id, "");
    say(&w, id, "c", "C");
    expect_items(&w, id, "c C");
    world_stop(&w);
}

Test(conversations, what_cannot_be_is_refused) {
    struct world w;

    responses_start(&w);
    responses_refused(&w, R"("input":"a","conversation":"conv_1")", 404, "not_found",
                      "conversation");
    responses_refused(&w, R"("input":"a","conversation":{})", 400, "invalid_value", "conversation");
    responses_refused(&w, R"("input":"a","conversation":"c","previous_response_id":"r")", 400,
                      "invalid_value", "conversation");
    responses_refused(&w, R"("input":"a","conversation":"c","store":false)", 400, "invalid_value",
                      "conversation");
    world_stop(&w);
    responses_init(&w);
    w.opts.max_stored = 0;
    world_start(&w);
    ask(&w, "POST", "", "{}", 400);
    world_stop(&w);
}

/* Conversations and responses are in one store, but are not found under each other's names. */
Test(conversations, they_are_no_responses) {
    struct world w;
    struct reply r;
    char id[64], path[128];

    responses_start(&w);
    create(&w, R"({"items":[)" FIRST "]}", id);
    snprintf(path, sizeof(path), RESPONSES "/%s", id);
    world_get(&w, path, &r);
    cr_expect_eq(r.status, 404);
    reply_deinit(&r);
    snprintf(path, sizeof(path), R"("input":"a","previous_response_id":"%s")", id);
    responses_refused(&w, path, 404, "previous_response_not_found", "previous_response_id");
    world_stop(&w);
}

/* Clients leave while their bodies are read; nothing of these requests remains. */
Test(conversations, clients_may_leave) {
    struct world w;
    char id[64];

    responses_start(&w);
    create(&w, "{}", id);
    for (int i = 0; i < 20; i++) {
        char path[128];
        int fd = world_connect(&w);

        snprintf(path, sizeof(path), ALL "/%s/items", id);
        world_post(&w, fd, path, R"({"items":[)" FIRST "]}");
        world_turns(&w, i % 4);
        world_drop(&w, fd);
    }
    world_turns(&w, 20);
    ask_one(&w, "GET", id, "/items", "", 200);
    world_stop(&w);
}
