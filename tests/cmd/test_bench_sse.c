#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "cmd/bench_sse.h"

/* Events seen, each in brackets. */
static int record(void *ctx, const char *data, size_t len) {
    struct buf *b = ctx;
    int r = buf_add_char(b, '[');

    if (r == 0)
        r = buf_add(b, data, len);
    return r < 0 ? r : buf_add_char(b, ']');
}

static const char stream[] = "data: one\n\n"
                             ": comment\n\n"
                             "event: x\nid: 1\ndata:two\ndata: lines\nretry: 3\n\n"
                             "\n\n"
                             "data\n\n"
                             "data:\n\n"
                             "data:  x\r\n\r\n"
                             "data: mac\r\rdata: \xC3\xA9\n\n"
                             "data: unfinished\n";
static const char expected[] = "[one][two\nlines][][ x][mac][\xC3\xA9]";

/* Cut into pieces of @a bytes and, in turn, of @b. */
static void feed(size_t a, size_t b) {
    struct buf seen;
    struct sse s;
    bool flip = false;

    sse_init(&s);
    buf_init(&seen, 1000);
    for (size_t at = 0; at < sizeof(stream) - 1; flip = !flip) {
        size_t n = MIN(flip ? b : a, sizeof(stream) - 1 - at);

        cr_assert(sse_feed(&s, stream + at, n, record, &seen) == 0);
        at += n;
    }
    cr_expect(strcmp(seen.data, expected) == 0, "%zu, %zu: %s", a, b, seen.data);
    buf_deinit(&seen);
    sse_deinit(&s);
}

Test(bench_sse, events_are_the_same_however_the_stream_is_cut) {
    for (size_t a = 1; a < sizeof(stream); a++)
        for (size_t b = 1; b < 8; b++)
            feed(a, b);
}

static int refuse(void *ctx, const char *data, size_t len) {
    return -ECANCELED;
}

Test(bench_sse, an_error_of_the_receiver_ends_the_feeding) {
    struct sse s;

    sse_init(&s);
    cr_expect(sse_feed(&s, "data: x\n\nrest", 13, refuse, NULL) == -ECANCELED);
    sse_deinit(&s);
}

Test(bench_sse, an_endless_event_is_refused) {
    static char block[1 << 20];
    struct sse s;
    int r = 0;

    memset(block, 'x', sizeof(block));
    sse_init(&s);
    for (int i = 0; r == 0 && i < 20; i++)
        r = sse_feed(&s, block, sizeof(block), refuse, NULL);
    cr_expect(r == -EMSGSIZE);
    sse_deinit(&s);
}

static struct openai_part parse(const char *json, const char *text) {
    struct openai_part part;
    struct buf b;

    buf_init(&b, 1000);
    cr_assert(openai_parse(json, strlen(json), &b, &part) == 0, "%s", json);
    cr_expect(strcmp(b.data ? b.data : "", text) == 0, "%s: %s", json, b.data);
    cr_expect(part.n_text == strlen(text));
    buf_deinit(&b);
    return part;
}

Test(bench_sse, text_is_found_wherever_servers_put_it) {
    struct openai_part p;

    p = parse(R"({"choices":[{"delta":{"content":"a\u00e9"},"finish_reason":null}]})", "a\xC3\xA9");
    cr_expect(!p.finished && p.prompt_tokens == -1 && p.error[0] == 0);
    parse(R"({"choices":[{"delta":{"reasoning_content":"r","content":null}}]})", "r");
    parse(R"({"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":)"
          R"("{}"}}]}}]})",
          "f{}");
    parse(R"({"choices":[{"text":"t"}]})", "t");
    parse(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})", "");
    p = parse(R"({"choices":[{"message":{"content":"m"},"finish_reason":"stop"}],)"
              R"("usage":{"prompt_tokens":7,"completion_tokens":1,)"
              R"("prompt_tokens_details":{"cached_tokens":4}}})",
              "m");
    cr_expect(p.finished && p.prompt_tokens == 7 && p.output_tokens == 1 && p.cached_tokens == 4);
    p = parse(R"({"choices":[],"usage":null,"error":null})", "");
    cr_expect(p.prompt_tokens == -1 && p.error[0] == 0);
}

Test(bench_sse, errors_of_every_shape_are_seen_and_made_printable) {
    struct openai_part p = parse(R"({"error":{"message":"no\n\u001bway","code":400}})", "");

    cr_expect(strcmp(p.error, "no  way") == 0);
    p = parse(R"({"error":"plain"})", "");
    cr_expect(strcmp(p.error, "plain") == 0);
    p = parse(R"({"error":{}})", "");
    cr_expect(p.error[0] != 0);
}

Test(bench_sse, what_is_not_an_object_is_refused) {
    static const char *const wrong[] = {"", "x", "[]", "3", R"({"choices":)", R"("text")"};

    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        struct openai_part part;
        struct buf b;

        buf_init(&b, 100);
        cr_expect(openai_parse(wrong[i], strlen(wrong[i]), &b, &part) == -EBADMSG, "%s", wrong[i]);
        buf_deinit(&b);
    }
}

Test(bench_sse, a_long_message_is_cut_between_characters) {
    char out[8];

    openai_copy_text(out, sizeof(out), "abcdef\xE2\x82\xAC");
    cr_expect(strcmp(out, "abcdef") == 0);
    openai_copy_text(out, sizeof(out), "abcd\xE2\x82\xAC");
    cr_expect(strcmp(out, "abcd\xE2\x82\xAC") == 0);
}
