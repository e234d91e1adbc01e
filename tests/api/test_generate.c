#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "tiny.h"
#include "world.h"

#define CHAT "/v1/chat/completions"
#define TEXT "/v1/completions"
#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define HI_TOKENS 21 /* <im_start>user\nhi<im_end>\n<im_start>assistant\n */

static void started(struct world *w) {
    world_init(w);
    world_start(w);
}

/* Replaces what differs from run to run: ids and times. */
static void normalise(struct buf *b) {
    static const char *const keys[] = {"\"id\":\"", "\"created\":"};

    for (size_t k = 0; k < ARRAY_SIZE(keys); k++) {
        for (char *at = b->data; at && (at = strstr(at, keys[k]));) {
            at += strlen(keys[k]);
            size_t n = k ? strcspn(at, ",") : strcspn(at, "\"");
            memmove(at + 1, at + n, strlen(at + n) + 1);
            b->len -= n - 1;
            *at++ = 'X';
        }
    }
}

static void expect_body(struct reply *r, int status, const char *want) {
    normalise(&r->body);
    cr_expect_eq(r->status, status, "%d, not %d", r->status, status);
    cr_expect_str_eq(r->body.data, want);
    reply_deinit(r);
}

static void expect_error(struct world *w, const char *path, const char *body, int status,
                         const char *param, const char *code) {
    struct reply r;
    char needle[200];

    world_ask(w, path, body, &r);
    cr_expect_eq(r.status, status, "%s: %d, not %d: %s", body, r.status, status, r.body.data);
    snprintf(needle, sizeof(needle),
             param ? "\"param\":\"%s\",\"code\":\"%s\"}}" : "\"param\":%s,\"code\":\"%s\"}}",
             param ? param : "null", code);
    cr_expect(r.body.data && strstr(r.body.data, needle), "%s: %s has no %s", body, r.body.data,
              needle);
    reply_deinit(&r);
}

#define CHUNK(choice)                                                                              \
    "data: {\"id\":\"X\",\"object\":\"chat.completion.chunk\",\"created\":X,\"model\":\"tiny\","   \
    "\"choices\":[" choice "]}\n\n"
#define ROLE                                                                                       \
    CHUNK("{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"    \
          "\"finish_reason\":null}")
#define DELTA(text)                                                                                \
    CHUNK("{\"index\":0,\"delta\":{\"content\":\"" text "\"},\"logprobs\":null,"                   \
          "\"finish_reason\":null}")
#define FINISH(why)                                                                                \
    CHUNK("{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"" why "\"}")
#define DONE "data: [DONE]\n\n"

/* ---- forms ---- */

Test(chat, a_whole_answer_is_exact) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "Hello";
    world_ask(&w, CHAT, "{" HI ",\"model\":\"tiny\"}", &r);
    expect_body(&r, 200,
                "{\"id\":\"X\",\"object\":\"chat.completion\",\"created\":X,\"model\":\"tiny\","
                "\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":"
                "\"Hello\",\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"stop\"}],"
                "\"usage\":{\"prompt_tokens\":21,\"completion_tokens\":5,\"total_tokens\":26,"
                "\"prompt_tokens_details\":{\"cached_tokens\":10}}}");
    cr_expect_eq(w.port.r[0].m.n_prompt, HI_TOKENS);
    cr_expect_eq(w.port.r[0].m.tokens[0], TINY_START);
    cr_expect_eq(w.port.r[0].m.max_new, 512 - HI_TOKENS);
    world_stop(&w);
}

Test(chat, a_stream_is_exact) {
    struct world w;
    struct reply r;
    char v[64];

    started(&w);
    w.port.script = "Hi";
    world_ask(&w, CHAT, "{" HI ",\"stream\":true}", &r);
    cr_expect_str_eq(reply_header(&r, "cache-control", v, sizeof(v)), "no-cache");
    cr_expect_str_eq(reply_header(&r, "x-accel-buffering", v, sizeof(v)), "no");
    cr_expect_eq(strncmp(reply_header(&r, "content-type", v, sizeof(v)), "text/event-stream", 17),
                 0);
    expect_body(&r, 200, ROLE DELTA("H") DELTA("i") FINISH("stop") DONE);
    world_stop(&w);
}

Test(chat, usage_comes_in_a_chunk_of_its_own) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "Hi";
    world_ask(&w, CHAT,
              "{" HI ",\"stream\":true,\"max_tokens\":1,\"stream_options\":{\"include_usage\":true,"
              "\"include_obfuscation\":false}}",
              &r);
#define WITH_NULL(choice)                                                                          \
    "data: {\"id\":\"X\",\"object\":\"chat.completion.chunk\",\"created\":X,\"model\":\"tiny\","   \
    "\"choices\":[" choice "],\"usage\":null}\n\n"
    expect_body(
        &r, 200,
        WITH_NULL("{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                  "\"logprobs\":null,\"finish_reason\":null}")
            WITH_NULL("{\"index\":0,\"delta\":{\"content\":\"H\"},\"logprobs\":null,"
                      "\"finish_reason\":null}")
                WITH_NULL("{\"index\":0,\"delta\":{},\"logprobs\":null,"
                          "\"finish_reason\":\"length\"}") "data: "
                                                           "{\"id\":\"X\",\"object\":\"chat."
                                                           "completion.chunk\",\"created\":X,"
                                                           "\"model\":\"tiny\",\"choices\":[],"
                                                           "\"usage\":{\"prompt_tokens\":21,"
                                                           "\"completion_tokens\":1,\"total_"
                                                           "tokens\":22,\"prompt_tokens_details\":"
                                                           "{\"cached_tokens\":10}}}\n\n" DONE);
    world_stop(&w);
}

Test(completions, a_whole_answer_is_exact) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "0123456789abcdefghij";
    world_ask(&w, TEXT, "{\"prompt\":\"xyz\"}", &r);
    expect_body(&r, 200,
                "{\"id\":\"X\",\"object\":\"text_completion\",\"created\":X,\"model\":\"tiny\","
                "\"choices\":[{\"index\":0,\"text\":\"0123456789abcdef\",\"logprobs\":null,"
                "\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":3,"
                "\"completion_tokens\":16,\"total_tokens\":19,\"prompt_tokens_details\":"
                "{\"cached_tokens\":1}}}");
    world_stop(&w);
}

Test(completions, a_stream_with_everything_is_exact) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "ok";
    world_ask(&w, TEXT,
              "{\"prompt\":[120,121],\"stream\":true,\"logprobs\":1,\"return_token_ids\":true,"
              "\"logits_digest\":true,\"max_tokens\":2}",
              &r);
#define TEXT_CHUNK(choice)                                                                         \
    "data: {\"id\":\"X\",\"object\":\"text_completion\",\"created\":X,\"model\":\"tiny\","         \
    "\"choices\":[" choice "]}\n\n"
    expect_body(
        &r, 200,
        TEXT_CHUNK("{\"index\":0,\"text\":\"o\",\"logprobs\":{\"tokens\":[\"o\"],"
                   "\"token_logprobs\":[-0.5],\"top_logprobs\":[{\"o\":-0.5}],\"text_offset\":[0]},"
                   "\"finish_reason\":null,\"prompt_token_ids\":[120,121],\"token_ids\":[111],"
                   "\"digests\":[\"000000000000abc0\"]}")
            TEXT_CHUNK("{\"index\":0,\"text\":\"k\",\"logprobs\":{\"tokens\":[\"k\"],"
                       "\"token_logprobs\":[-0.5],\"top_logprobs\":[{\"k\":-0.5}],"
                       "\"text_offset\":[1]},\"finish_reason\":null,\"token_ids\":[107],"
                       "\"digests\":[\"000000000000abc1\"]}")
                TEXT_CHUNK("{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":"
                           "\"length\",\"token_ids\":[],\"digests\":[]}") DONE);
    world_stop(&w);
}

Test(chat, logprobs_have_tokens_bytes_and_tops) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "\xC3\xA9";
    world_ask(&w, CHAT, "{" HI ",\"logprobs\":true,\"top_logprobs\":2,\"return_token_ids\":true}",
              &r);
    cr_expect(
        strstr(r.body.data,
               "\"logprobs\":{\"content\":[{\"token\":\"\xEF\xBF\xBD\",\"logprob\":-0.5,"
               "\"bytes\":[195],\"top_logprobs\":[{\"token\":\"\xEF\xBF\xBD\",\"logprob\":-0.5,"
               "\"bytes\":[195]},{\"token\":\"z\",\"logprob\":-1.5,\"bytes\":[122]}]},"),
        "%s", r.body.data);
    cr_expect(strstr(r.body.data, "\"refusal\":null},\"finish_reason\":\"stop\","
                                  "\"prompt_token_ids\":[256,117,"),
              "%s", r.body.data);
    cr_expect(strstr(r.body.data, "\"token_ids\":[195,169]"), "%s", r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

Test(chat, choices_are_told_apart) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "ab";
    world_ask(&w, CHAT, "{" HI ",\"n\":3,\"stream\":true,\"seed\":7}", &r);
    for (int i = 0; i < 3; i++) {
        char needle[200];

        snprintf(needle, sizeof(needle), "{\"index\":%d,\"delta\":{\"role\":\"assistant\"", i);
        cr_expect(strstr(r.body.data, needle));
        snprintf(needle, sizeof(needle), "{\"index\":%d,\"delta\":{},\"logprobs\":null,\"finish",
                 i);
        cr_expect(strstr(r.body.data, needle));
        cr_expect_eq(w.port.r[i].m.choice, i);
        cr_expect_eq(w.port.r[i].m.group, w.port.r[0].id);
        cr_expect_eq(w.port.r[i].m.seed, 7);
    }
    reply_deinit(&r);
    world_ask(&w, TEXT, "{\"prompt\":[\"a\",\"b\"],\"n\":2,\"max_tokens\":2}", &r);
    for (int i = 0; i < 4; i++) {
        char needle[64];

        snprintf(needle, sizeof(needle), "{\"index\":%d,\"text\":\"ab\"", i);
        cr_expect(strstr(r.body.data, needle), "%s", r.body.data);
        cr_expect_eq(w.port.r[3 + i].m.tokens[0], i < 2 ? 'a' : 'b');
        cr_expect_eq(w.port.r[3 + i].m.choice, i % 2);
    }
    cr_expect(strstr(r.body.data, "\"prompt_tokens\":2,\"completion_tokens\":8"), "%s",
              r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

/* ---- text ---- */

Test(text, a_stop_string_across_tokens_is_never_sent) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "one STSTOP two";
    world_ask(&w, CHAT, "{" HI ",\"stream\":true,\"stop\":[\"STOP\",\"zzz\"]}", &r);
    normalise(&r.body);
    cr_expect(strstr(r.body.data, DELTA("e") DELTA(" ") DELTA("ST") FINISH("stop") DONE), "%s",
              r.body.data);
    cr_expect(w.port.r[0].cancelled, "the worker was told");
    cr_expect_str_eq(w.port.r[0].stops[0], "STOP");
    reply_deinit(&r);
    world_ask(&w, CHAT, "{" HI ",\"stop\":\"STOP\",\"include_stop_str_in_output\":true}", &r);
    cr_expect(strstr(r.body.data, "\"content\":\"one STSTOP\""), "%s", r.body.data);
    cr_expect(strstr(r.body.data, "\"completion_tokens\":10"), "%s", r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

Test(text, a_beginning_of_a_stop_string_is_sent_at_the_end) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "aST";
    world_ask(&w, CHAT, "{" HI ",\"stream\":true,\"stop\":\"STOP\"}", &r);
    expect_body(&r, 200, ROLE DELTA("a") DELTA("ST") FINISH("stop") DONE);
    world_stop(&w);
}

Test(text, characters_are_never_cut) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "\xE2\x82\xAC\xF0\x9F\x98\x80\xFFx\xE2\x82";
    world_ask(&w, CHAT, "{" HI ",\"stream\":true}", &r);
    expect_body(&r, 200,
                ROLE DELTA("\xE2\x82\xAC") DELTA("\xF0\x9F\x98\x80") DELTA("\xEF\xBF\xBD")
                    DELTA("x") DELTA("\xEF\xBF\xBD") FINISH("stop") DONE);
    world_stop(&w);
}

Test(text, end_tokens_and_stop_ids_are_not_text) {
    struct world w;
    struct reply r;
    static const int32_t ids[] = {'h', 'i', TINY_END}, with_stop[] = {'h', '!'};

    started(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI ",\"logprobs\":true,\"return_token_ids\":true}");
    world_turns(&w, 3);
    fake_accept(&w.port, 0);
    fake_ids(&w.port, 0, ids, 3);
    fake_finish(&w.port, 0, FINISH_STOP);
    world_receive(&w, fd, &r);
    cr_expect(strstr(r.body.data, "\"content\":\"hi\""), "%s", r.body.data);
    cr_expect(strstr(r.body.data, "\"token_ids\":[104,105,257]"), "%s", r.body.data);
    cr_expect(!strstr(r.body.data, "im_end"), "%s", r.body.data);
    reply_deinit(&r);
    world_post(&w, fd, CHAT, "{" HI ",\"stop_token_ids\":[33],\"ignore_eos\":false}");
    world_turns(&w, 3);
    cr_expect_eq(w.port.r[1].m.n_stop_ids, 1);
    fake_accept(&w.port, 1);
    fake_ids(&w.port, 1, with_stop, 2);
    fake_finish(&w.port, 1, FINISH_STOP);
    world_receive(&w, fd, &r);
    cr_expect(strstr(r.body.data, "\"content\":\"h\""), "%s", r.body.data);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

/* ---- acceptance and errors ---- */

Test(accept, nothing_is_said_before_the_worker_accepts) {
    struct world w;
    struct reply r;
    char c;

    started(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI ",\"stream\":true,\"n\":2}");
    world_turns(&w, 5);
    cr_assert_eq(w.port.n, 2);
    fake_accept(&w.port, 0);
    world_turns(&w, 5);
    cr_expect_lt(read(fd, &c, 1), 0);
    fake_reject(&w.port, 1, 400, "too large");
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 400);
    cr_expect(strstr(r.body.data, "too large"));
    cr_expect(w.port.r[0].cancelled, "the sibling goes too");
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(accept, a_failure_in_a_stream_is_an_error_event) {
    struct world w;
    struct reply r;

    started(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI ",\"stream\":true}");
    world_turns(&w, 5);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "ab");
    fake_fail(&w.port, 0, 500, "numbers went wrong");
    world_receive(&w, fd, &r);
    expect_body(&r, 200,
                ROLE DELTA("ab") "data: {\"error\":{\"message\":\"numbers went wrong\",\"type\":"
                                 "\"server_error\",\"param\":null,\"code\":\"engine_error\"}}\n\n");
    world_post(&w, fd, CHAT, "{" HI "}"); /* the connection lives on */
    world_turns(&w, 5);
    fake_accept(&w.port, 1);
    fake_finish(&w.port, 1, FINISH_DEADLINE);
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 504);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(accept, a_busy_channel_is_tried_again) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "x";
    w.port.n_again = 3;
    world_ask(&w, CHAT, "{" HI "}", &r);
    cr_expect_eq(r.status, 200);
    cr_expect_eq(w.port.n_again, 0);
    reply_deinit(&r);
    world_stop(&w);
}

Test(cancel, a_client_that_leaves_ends_its_generations) {
    struct world w;

    started(&w);
    int fd[3];
    for (int i = 0; i < 3; i++) {
        fd[i] = world_connect(&w);
        world_post(&w, fd[i], CHAT, i == 2 ? "{" HI "}" : "{" HI ",\"stream\":true,\"n\":2}");
        world_turns(&w, 5);
    }
    cr_assert_eq(w.port.n, 5);
    fake_accept(&w.port, 0);
    fake_accept(&w.port, 1);
    fake_tokens(&w.port, 0, "abc");
    world_drop(&w, fd[0]);
    cr_expect(w.port.r[0].cancelled && w.port.r[1].cancelled);
    cr_expect(!w.port.r[2].cancelled);
    world_drop(&w, fd[1]);
    world_drop(&w, fd[2]);
    cr_expect(w.port.r[2].cancelled && w.port.r[4].cancelled);
    fake_tokens(&w.port, 0, "late"); /* events that crossed the cancel */
    fake_finish(&w.port, 0, FINISH_CANCELLED);
    world_stop(&w);
}

Test(cancel, a_reader_that_does_not_read_is_cancelled_and_others_are_not) {
    struct world w;
    struct reply r;
    char text[2001];

    world_init(&w);
    w.opts.stream_buffer_bytes = 4096;
    w.opts.stall_timeout_ms = 60;
    w.model.max_context = 4000000;
    world_start(&w);
    memset(text, 'a', 2000);
    text[2000] = 0;
    int slow = world_connect_unix(&w), fast = world_connect(&w);
    world_post(&w, slow, CHAT, "{" HI ",\"stream\":true}");
    world_turns(&w, 5);
    world_post(&w, fast, CHAT, "{" HI ",\"stream\":true}");
    world_turns(&w, 5);
    fake_accept(&w.port, 0);
    fake_accept(&w.port, 1);
    for (int i = 0; i < 20000 && !w.port.r[0].cancelled; i++) {
        fake_tokens(&w.port, 0, text);
        world_turn(&w);
        if (i > 300)
            usleep(1000);
    }
    cr_expect(w.port.r[0].cancelled);
    fake_tokens(&w.port, 1, "fine");
    fake_finish(&w.port, 1, FINISH_STOP);
    world_receive(&w, fast, &r);
    expect_body(&r, 200, ROLE DELTA("fine") FINISH("stop") DONE);
    world_drop(&w, slow);
    world_drop(&w, fast);
    world_stop(&w);
}

Test(cancel, a_slow_reader_gets_everything_if_it_reads_in_time) {
    struct world w;
    struct reply r;
    char text[2001];

    world_init(&w);
    w.opts.stream_buffer_bytes = 4096;
    w.model.max_context = 4000000;
    world_start(&w);
    memset(text, 'a', 2000);
    text[2000] = 0;
    int fd = world_connect_unix(&w);
    world_post(&w, fd, CHAT, "{" HI ",\"stream\":true}");
    world_turns(&w, 5);
    fake_accept(&w.port, 0);
    for (int i = 0; i < 500; i++) {
        fake_tokens(&w.port, 0, text);
        world_turn(&w);
    }
    fake_finish(&w.port, 0, FINISH_STOP);
    world_turns(&w, 20);
    world_receive(&w, fd, &r);
    size_t n = 0;
    for (size_t i = 0; i < r.body.len; i++)
        n += r.body.data[i] == 'a' && (r.body.data[i + 1] == 'a' || r.body.data[i + 1] == '"') &&
             (r.body.data[i - 1] == 'a' || r.body.data[i - 1] == '"');
    cr_expect_eq(n, 500 * 2000, "%zu", n);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(stream, silence_is_filled_with_comments) {
    struct world w;
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};

    world_init(&w);
    w.opts.keepalive_ms = 10;
    world_start(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI ",\"stream\":true}");
    world_turns(&w, 5);
    fake_accept(&w.port, 0);
    world_read_until(&w, fd, &b, ": keep-alive\n\n");
    buf_clear(&b);
    world_read_until(&w, fd, &b, ": keep-alive\n\n");
    fake_tokens(&w.port, 0, "x");
    fake_finish(&w.port, 0, FINISH_STOP);
    cr_expect(world_read_until(&w, fd, &b, "data: [DONE]\n\n\r\n0\r\n\r\n"));
    world_drop(&w, fd);
    world_stop(&w);
}

/* ---- admission ---- */

Test(admit, beyond_the_queue_is_429_with_a_time) {
    struct world w;
    struct reply r;
    char v[64];
    int fd[4];

    world_init(&w);
    w.opts.max_running = 2;
    w.opts.max_queued = 1;
    world_start(&w);
    for (int i = 0; i < 4; i++) {
        fd[i] = world_connect(&w);
        world_post(&w, fd[i], CHAT, "{" HI "}");
        world_turns(&w, 5);
    }
    cr_expect_eq(w.port.n, 2);
    world_receive(&w, fd[3], &r);
    cr_expect_eq(r.status, 429);
    cr_expect_geq(atoi(reply_header(&r, "retry-after", v, sizeof(v))), 1);
    cr_expect_geq(atoi(reply_header(&r, "retry-after-ms", v, sizeof(v))), 500);
    cr_expect(strstr(r.body.data, "try again in "));
    cr_expect(strstr(r.body.data, "\"type\":\"rate_limit_error\",\"param\":null,"
                                  "\"code\":\"rate_limit_exceeded\""));
    reply_deinit(&r);
    fake_accept(&w.port, 0);
    fake_finish(&w.port, 0, FINISH_STOP);
    cr_expect_eq(w.port.n, 3, "the waiting one follows");
    w.port.script = "x";
    for (int i = 0; i < 3; i++) {
        world_receive(&w, fd[i], &r);
        cr_expect_eq(r.status, 200);
        reply_deinit(&r);
    }
    for (int i = 0; i < 4; i++)
        world_drop(&w, fd[i]);
    world_stop(&w);
}

Test(admit, who_waits_longer_than_its_client_is_told) {
    struct world w;
    struct reply r;

    world_init(&w);
    w.opts.max_running = 1;
    world_start(&w);
    int fd = world_connect(&w), late = world_connect(&w), gone = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI "}");
    world_turns(&w, 5);
    world_say(&w, late,
              "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nx-stainless-read-timeout: 1\r\n"
              "Content-Length: %zu\r\n\r\n{" HI "}",
              strlen("{" HI "}"));
    world_turns(&w, 5);
    world_post(&w, gone, CHAT, "{" HI "}");
    world_turns(&w, 5);
    world_drop(&w, gone);
    world_receive(&w, late, &r);
    cr_expect_eq(r.status, 503);
    cr_expect(strstr(r.body.data, "queue_timeout"), "%s", r.body.data);
    reply_deinit(&r);
    struct api_stats s;
    api_stats(w.api, &s);
    cr_expect_eq(s.n_running, 1);
    cr_expect_eq(s.n_queued, 0);
    world_drop(&w, fd);
    world_drop(&w, late);
    world_stop(&w);
}

/* ---- the worker comes and goes ---- */

static uint32_t n_faults;

static uint32_t faults_of(struct api_port *p, uint64_t id) {
    (void)p;
    (void)id;
    return n_faults;
}

Test(resume, a_stream_goes_on_as_if_nothing_had_happened) {
    struct world w;
    struct reply r;

    started(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI ",\"stream\":true,\"logprobs\":true,\"seed\":3}");
    world_turns(&w, 5);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "ab\xE2\x82");
    api_worker_down(w.api);
    world_turns(&w, 5);
    fake_tokens(&w.port, 0, "stray"); /* of the dead worker: not heard */
    n_faults = 1;
    api_worker_up(w.api, faults_of);
    cr_assert_eq(w.port.n, 1);
    const struct submit *m = &w.port.r[0].m;
    cr_expect_eq(w.port.r[0].n_submits, 2);
    cr_expect_eq(m->n_tokens, HI_TOKENS + 4);
    cr_expect_eq(m->n_prompt, HI_TOKENS);
    cr_expect_eq(m->n_faults, 1);
    cr_expect_eq(m->seed, 3);
    cr_expect_eq(m->tokens[HI_TOKENS + 3], 0x82);
    fake_accept(&w.port, 0);
    fake_tokens_from(&w.port, 0, 2, "\xE2\x82\xAC"); /* overlaps what is known */
    fake_tokens_from(&w.port, 0, 0, "ab\xE2\x82\xAC");
    fake_tokens_from(&w.port, 0, 5, "d");
    fake_finish(&w.port, 0, FINISH_STOP);
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 200);
    const char *order[] = {"\"content\":\"ab\"", "\"content\":\"\xE2\x82\xAC\"",
                           "\"content\":\"d\"", "\"finish_reason\":\"stop\"", "[DONE]"};
    const char *at = r.body.data;
    for (size_t i = 0; i < ARRAY_SIZE(order); i++) {
        at = strstr(at, order[i]);
        cr_assert(at, "%s is not in order: %s", order[i], r.body.data);
    }
    cr_expect(!strstr(r.body.data, "stray"));
    reply_deinit(&r);
    struct api_stats s;
    api_stats(w.api, &s);
    cr_expect_eq(s.n_resumed, 1);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(resume, requests_wait_for_a_worker_and_poison_is_removed) {
    struct world w;
    struct reply r;

    started(&w);
    int fd = world_connect(&w), next = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI "}");
    world_turns(&w, 5);
    api_worker_down(w.api);
    world_post(&w, next, CHAT, "{" HI "}");
    world_turns(&w, 5);
    cr_expect_eq(w.port.n, 1);
    n_faults = 3;
    api_worker_up(w.api, faults_of);
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 500);
    cr_expect(strstr(r.body.data, "\"code\":\"engine_fault\""), "%s", r.body.data);
    cr_expect(strcasestr(r.head, "x-should-retry: false"));
    reply_deinit(&r);
    world_drop(&w, fd);
    world_drop(&w, next);
    world_stop(&w);
}

Test(resume, what_was_complete_is_not_run_again) {
    struct world w;
    struct reply r;

    started(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI ",\"max_tokens\":3}");
    world_turns(&w, 5);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "abc");
    api_worker_down(w.api);
    api_worker_up(w.api, NULL);
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 200);
    cr_expect(strstr(r.body.data, "\"finish_reason\":\"length\""), "%s", r.body.data);
    cr_expect_eq(w.port.r[0].n_submits, 1);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(resume, a_worker_that_leaves_a_gap_fails_the_request) {
    struct world w;
    struct reply r;

    started(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI "}");
    world_turns(&w, 5);
    fake_accept(&w.port, 0);
    fake_tokens_from(&w.port, 0, 3, "abc");
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 500);
    cr_expect(w.port.r[0].cancelled);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

/* ---- service life ---- */

Test(life, streams_end_with_an_error_when_the_service_closes) {
    struct world w;
    struct reply r;

    started(&w);
    int fd = world_connect(&w), whole = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI ",\"stream\":true}");
    world_turns(&w, 5);
    world_post(&w, whole, CHAT, "{" HI "}");
    world_turns(&w, 5);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "ab");
    cr_expect(api_busy(w.api));
    api_drain(w.api);
    api_set_health(w.api, API_SERVING); /* does not bring it back */
    fake_tokens(&w.port, 0, "cd");
    api_close(w.api);
    world_receive(&w, fd, &r);
    normalise(&r.body);
    cr_expect(strstr(r.body.data, DELTA("ab") DELTA("cd") "data: {\"error\":"), "%s", r.body.data);
    cr_expect(strstr(r.body.data, "shutting_down"));
    reply_deinit(&r);
    world_receive(&w, whole, &r);
    cr_expect_eq(r.status, 503);
    reply_deinit(&r);
    close(fd);
    close(whole);
    world_stop(&w);
}

Test(life, the_operator_sees_and_cancels) {
    struct world w;
    struct reply r;
    struct api_request_info info[4];

    started(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI ",\"n\":2}");
    world_turns(&w, 5);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "ab");
    cr_assert_eq(api_requests(w.api, info, 4), 2);
    cr_expect_str_eq(info[0].endpoint, CHAT);
    cr_expect_str_eq(info[0].state, "running");
    cr_expect_str_eq(info[1].state, "queued");
    cr_expect_eq(info[0].n_output, 2);
    cr_expect_eq(api_requests(w.api, info, 1), 1);
    cr_expect(!api_cancel(w.api, 12345));
    cr_expect(api_cancel(w.api, info[0].id));
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 503);
    cr_expect(strstr(r.body.data, "\"code\":\"cancelled\""));
    reply_deinit(&r);
    cr_expect_eq(api_requests(w.api, info, 4), 0);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(life, figures_are_published) {
    static const char *const needles[] = {
        "vllm:num_requests_running{model_name=\"tiny\",engine=\"0\"} 0\n",
        "vllm:num_requests_waiting{model_name=\"tiny\",engine=\"0\"} 0\n",
        "vllm:kv_cache_usage_perc{model_name=\"tiny\",engine=\"0\"} 0.25\n",
        "vllm:cache_config_info{model_name=\"tiny\",engine=\"0\",block_size=\"16\","
        "num_gpu_blocks=\"64\"} 1\n",
        "vllm:prompt_tokens_total{model_name=\"tiny\",engine=\"0\"} 21\n",
        "vllm:generation_tokens_total{model_name=\"tiny\",engine=\"0\"} 2\n",
        "vllm:request_success_total{model_name=\"tiny\",engine=\"0\",finished_reason=\"stop\"} 1\n",
        "vllm:time_to_first_token_seconds_count{model_name=\"tiny\",engine=\"0\"} 1\n",
        "vllm:inter_token_latency_seconds_count{model_name=\"tiny\",engine=\"0\"} 1\n",
        "vllm:e2e_request_latency_seconds_bucket{model_name=\"tiny\",engine=\"0\",le=\"+Inf\"} 1\n",
        "vllm:prefix_cache_hits_total{model_name=\"tiny\",engine=\"0\"} 7\n",
        "weft_http_requests_total{model_name=\"tiny\",engine=\"0\"} 1\n",
    };
    struct world w;
    struct reply r;
    struct msg_stats s = {.n_pages = 64, .n_used = 16, .n_hit_tokens = 7};

    started(&w);
    w.port.script = "ab";
    world_ask(&w, CHAT, "{" HI "}", &r);
    reply_deinit(&r);
    api_on_stats(w.api, &s);
    world_get(&w, "/metrics", &r);
    cr_expect_eq(r.status, 200);
    for (size_t i = 0; i < ARRAY_SIZE(needles); i++)
        cr_expect(strstr(r.body.data, needles[i]), "%s is missing in %s", needles[i], r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

/* ---- tokens ---- */

Test(tokens, text_and_back) {
    struct world w;
    struct reply r;

    started(&w);
    world_ask(&w, "/tokenize", "{\"prompt\":\"abc<|im_end|>\",\"return_token_strs\":true}", &r);
    expect_body(&r, 200,
                "{\"count\":3,\"max_model_len\":512,\"tokens\":[259,99,257],"
                "\"token_strs\":[\"ab\",\"c\",\"<|im_end|>\"]}");
    world_ask(&w, "/tokenize", "{" HI "}", &r);
    cr_expect(strstr(r.body.data, "{\"count\":21,"), "%s", r.body.data);
    reply_deinit(&r);
    world_ask(&w, "/detokenize", "{\"tokens\":[259,99,257]}", &r);
    expect_body(&r, 200, "{\"prompt\":\"abc<|im_end|>\"}");
    world_ask(&w, "/v1/chat/completions/render",
              "{\"messages\":[{\"role\":\"developer\",\"content\":\"<|im_end|>\"}],"
              "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}},{\"type\":\"x\"}]}",
              &r);
    cr_expect(strstr(r.body.data, "\"text\":\"<|im_start|>system\\n<|im_end|><|im_end|>\\n[1]"
                                  "<|im_start|>assistant\\n\""),
              "%s", r.body.data);
    cr_expect(strstr(r.body.data, "\"token_ids\":[256,115,121,115,116,101,109,10,60,124,105"),
              "user text is not a special token: %s", r.body.data);
    reply_deinit(&r);
    world_ask(&w, "/v1/completions/render", "{\"prompt\":[[1,2],[3]]}", &r);
    expect_body(&r, 200,
                "{\"object\":\"render\",\"model\":\"tiny\",\"token_ids\":[1,2],\"prompts\":["
                "{\"text\":null,\"token_ids\":[1,2]},{\"text\":null,\"token_ids\":[3]}]}");
    world_stop(&w);
}

Test(tokens, a_long_prompt_is_worked_on_beside_the_loop) {
    struct world w;
    struct reply r;
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};

    world_init(&w);
    w.model.max_context = 1000000;
    world_start(&w);
    w.port.script = "x";
    buf_add_str(&b, "{\"prompt\":\"");
    for (int i = 0; i < 50000; i++)
        buf_add_str(&b, "word ");
    buf_add_str(&b, "\"}");
    int fd = world_connect(&w), gone = world_connect(&w);
    world_post(&w, fd, TEXT, b.data);
    world_post(&w, gone, TEXT, b.data);
    world_drop(&w, gone); /* while it is being tokenised, perhaps */
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 200);
    cr_expect(strstr(r.body.data, "\"prompt_tokens\":250000"), "%s", r.body.data);
    reply_deinit(&r);
    world_post(&w, fd, TEXT, b.data);
    world_stop(&w); /* also with work under way */
    close(fd);
}

/* ---- what is refused ---- */

Test(refuse, every_bad_field_is_named) {
    static const struct {
        const char *path, *body;
        int status;
        const char *param, *code;
    } table[] = {
        {CHAT, "", 400, NULL, "invalid_json"},
        {CHAT, "{", 400, NULL, "invalid_json"},
        {CHAT, "[]", 400, NULL, "invalid_json"},
        {CHAT, "{} x", 400, NULL, "invalid_json"},
        {CHAT, "{\"a\":\"\xff\"}", 400, NULL, "invalid_json"},
        {CHAT, "{\"a\":\"\\ud800\"}", 400, NULL, "invalid_json"},
        {CHAT, "{\"n\":NaN}", 400, NULL, "invalid_json"},
        {CHAT, "{}", 400, "messages", "missing_required_parameter"},
        {CHAT, "{\"messages\":null}", 400, "messages", "missing_required_parameter"},
        {CHAT, "{\"messages\":[]}", 400, "messages", "invalid_value"},
        {CHAT, "{\"messages\":{}}", 400, "messages", "invalid_value"},
        {CHAT, "{\"messages\":[1]}", 400, "messages[0]", "invalid_value"},
        {CHAT, "{\"messages\":[{\"role\":\"x\",\"content\":\"\"}]}", 400, "messages[0].role",
         "invalid_value"},
        {CHAT, "{\"messages\":[{\"role\":\"user\"}]}", 400, "messages[0].content", "invalid_value"},
        {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", 400,
         "messages[0].content[0].type", "invalid_value"},
        {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":1}]}]}",
         400, "messages[0].content[0].text", "invalid_value"},
        {CHAT,
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
         "\"tool_calls\":[{}]}]}",
         400, "messages[1].tool_calls[0]", "invalid_value"},
        {CHAT, "{\"messages\":[{\"role\":\"function\",\"content\":\"x\"}]}", 400, "messages",
         "template_error"},
        {CHAT, "{" HI ",\"model\":\"other\"}", 404, "model", "model_not_found"},
        {CHAT, "{" HI ",\"model\":1}", 400, "model", "invalid_value"},
        {CHAT, "{" HI ",\"n\":0}", 400, "n", "invalid_value"},
        {CHAT, "{" HI ",\"n\":9}", 400, "n", "invalid_value"},
        {CHAT, "{" HI ",\"n\":1,\"n\":2}", 400, "n", "duplicate_key"},
        {CHAT, "{" HI ",\"n\":1.5}", 400, "n", "invalid_value"},
        {CHAT, "{" HI ",\"n\":\"1\"}", 400, "n", "invalid_value"},
        {CHAT, "{" HI ",\"max_tokens\":0}", 400, "max_tokens", "invalid_value"},
        {CHAT, "{" HI ",\"max_tokens\":1e18}", 400, "max_tokens", "invalid_value"},
        {CHAT, "{" HI ",\"max_completion_tokens\":true}", 400, "max_completion_tokens",
         "invalid_value"},
        {CHAT, "{" HI ",\"stream\":1}", 400, "stream", "invalid_value"},
        {CHAT, "{" HI ",\"stream_options\":{}}", 400, "stream_options", "invalid_value"},
        {CHAT, "{" HI ",\"stream\":true,\"stream_options\":{\"include_usage\":1}}", 400,
         "stream_options.include_usage", "invalid_value"},
        {CHAT, "{" HI ",\"stop\":\"\"}", 400, "stop", "invalid_value"},
        {CHAT, "{" HI ",\"stop\":[1]}", 400, "stop", "invalid_value"},
        {CHAT,
         "{" HI ",\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\",\"b\","
         "\"c\",\"d\",\"e\",\"f\",\"g\",\"h\"]}",
         400, "stop", "invalid_value"},
        {CHAT, "{" HI ",\"stop_token_ids\":[260]}", 400, "stop_token_ids", "invalid_value"},
        {CHAT, "{" HI ",\"top_logprobs\":2}", 400, "top_logprobs", "invalid_value"},
        {CHAT, "{" HI ",\"logprobs\":true,\"top_logprobs\":21}", 400, "top_logprobs",
         "invalid_value"},
        {CHAT, "{" HI ",\"logprobs\":5}", 400, "logprobs", "invalid_value"},
        {CHAT, "{" HI ",\"logit_bias\":{\"x\":1}}", 400, "logit_bias", "invalid_value"},
        {CHAT, "{" HI ",\"logit_bias\":{\"260\":1}}", 400, "logit_bias", "invalid_value"},
        {CHAT, "{" HI ",\"logit_bias\":{\"1\":101}}", 400, "logit_bias", "invalid_value"},
        {CHAT, "{" HI ",\"seed\":1.5}", 400, "seed", "invalid_value"},
        {CHAT, "{" HI ",\"temperature\":\"1\"}", 400, "temperature", "invalid_value"},
        {CHAT, "{" HI ",\"response_format\":{\"type\":\"json_object\"}}", 400,
         "response_format.type", "unsupported_parameter"},
        {CHAT, "{" HI ",\"response_format\":\"text\"}", 400, "response_format", "invalid_value"},
        {CHAT, "{" HI ",\"tool_choice\":\"required\"}", 400, "tool_choice",
         "unsupported_parameter"},
        {CHAT, "{" HI ",\"tool_choice\":{\"type\":\"function\"}}", 400, "tool_choice",
         "unsupported_parameter"},
        {CHAT, "{" HI ",\"tools\":[{\"type\":\"function\"}]}", 400, "tools[0].function.name",
         "invalid_value"},
        {CHAT, "{" HI ",\"functions\":[{}]}", 400, "functions", "unsupported_parameter"},
        {CHAT, "{" HI ",\"web_search_options\":{\"a\":1}}", 400, "web_search_options",
         "unsupported_parameter"},
        {CHAT, "{" HI ",\"guided_json\":{\"a\":1}}", 400, "guided_json", "unsupported_parameter"},
        {CHAT, "{" HI ",\"chat_template\":\"x\"}", 400, "chat_template", "unsupported_parameter"},
        {CHAT, "{" HI ",\"chat_template_kwargs\":{\"messages\":1}}", 400, "chat_template_kwargs",
         "invalid_value"},
        {CHAT, "{" HI ",\"chat_template_kwargs\":{\"a\":[1]}}", 400, "chat_template_kwargs",
         "invalid_value"},
        {CHAT, "{" HI ",\"modalities\":[\"audio\"]}", 400, "modalities", "unsupported_parameter"},
        {TEXT, "{}", 400, "prompt", "missing_required_parameter"},
        {TEXT, "{\"prompt\":\"\"}", 400, "prompt", "invalid_value"},
        {TEXT, "{\"prompt\":[]}", 400, "prompt", "invalid_value"},
        {TEXT, "{\"prompt\":[[]]}", 400, "prompt", "invalid_value"},
        {TEXT, "{\"prompt\":[1,\"a\"]}", 400, "prompt", "invalid_value"},
        {TEXT, "{\"prompt\":[\"a\",[1]]}", 400, "prompt", "invalid_value"},
        {TEXT, "{\"prompt\":[-1]}", 400, "prompt", "invalid_value"},
        {TEXT, "{\"prompt\":[260]}", 400, "prompt", "invalid_value"},
        {TEXT, "{\"prompt\":7}", 400, "prompt", "invalid_value"},
        {TEXT, "{\"prompt\":\"a\",\"echo\":true}", 400, "echo", "unsupported_parameter"},
        {TEXT, "{\"prompt\":\"a\",\"suffix\":\"b\"}", 400, "suffix", "unsupported_parameter"},
        {TEXT, "{\"prompt\":\"a\",\"best_of\":2}", 400, "best_of", "unsupported_parameter"},
        {TEXT, "{\"prompt\":\"a\",\"logprobs\":21}", 400, "logprobs", "invalid_value"},
        {TEXT, "{\"prompt\":\"a\",\"logprobs\":true}", 400, "logprobs", "invalid_value"},
        {"/tokenize", "{}", 400, "prompt", "missing_required_parameter"},
        {"/detokenize", "{\"tokens\":[1.5]}", 400, "tokens", "invalid_value"},
        {"/detokenize", "{}", 400, "tokens", "missing_required_parameter"},
    };
    struct world w;

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        expect_error(&w, table[i].path, table[i].body, table[i].status, table[i].param,
                     table[i].code);
    cr_expect_eq(w.port.n, 0, "nothing of it reached the worker");
    world_stop(&w);
}

Test(refuse, every_sampling_parameter_is_held_to_its_range) {
    struct world w;
    char body[300];

    started(&w);
    for (uint32_t i = 0; i < params_count; i++) {
        const struct param *p = &params_table[i];
        static const char *const never[] = {"\"1\"", "[]", "{}", "1e999"};

        for (size_t k = 0; k < ARRAY_SIZE(never); k++) {
            struct reply r;

            snprintf(body, sizeof(body), "{" HI ",\"%s\":%s}", p->name, never[k]);
            world_ask(&w, CHAT, body, &r);
            cr_expect_eq(r.status, 400, "%s: %d", body, r.status);
            cr_expect(strstr(r.body.data, p->name) || strstr(r.body.data, "invalid_json"), "%s",
                      r.body.data);
            reply_deinit(&r);
        }
        if (p->type == PARAM_BOOL)
            continue;
        for (int above = 0; above < 2; above++) {
            struct reply r;

            snprintf(body, sizeof(body), "{" HI ",\"%s\":%.17g}", p->name,
                     above ? p->max + 1 : p->min - 1);
            world_ask(&w, CHAT, body, &r);
            cr_expect_eq(r.status, 400, "%s: %d", body, r.status);
            cr_expect(strstr(r.body.data, p->name), "%s", r.body.data);
            reply_deinit(&r);
        }
    }
    cr_expect_eq(w.port.n, 0);
    w.port.script = "x";
    for (uint32_t i = 0; i < params_count; i++) {
        const struct param *p = &params_table[i];
        struct reply r;

        snprintf(body, sizeof(body),
                 p->type == PARAM_BOOL ? "{" HI ",\"%s\":true}" : "{" HI ",\"%s\":%.17g}", p->name,
                 p->max);
        world_ask(&w, CHAT, body, &r);
        cr_expect_eq(r.status, 200, "%s: %d %s", body, r.status, r.body.data);
        reply_deinit(&r);
        cr_expect_eq(params_check(&w.port.r[i].m.sampling, NULL), 0);
        struct sampling defaults;
        params_init(&defaults);
        cr_expect_neq(memcmp(&defaults, &w.port.r[i].m.sampling, sizeof(defaults)),
                      p->max == p->initial ? 1 : 0, "%s", p->name);
    }
    world_stop(&w);
}

Test(refuse, a_prompt_that_does_not_fit_is_told_both_numbers) {
    struct world w;
    struct reply r;
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};

    started(&w);
    w.port.script = "x";
    for (int n = 511; n <= 512; n++) {
        buf_clear(&b);
        buf_add_str(&b, "{\"prompt\":\"");
        for (int i = 0; i < n; i++)
            buf_add_char(&b, 'x');
        buf_add_str(&b, "\",\"max_tokens\":1000}");
        world_ask(&w, TEXT, b.data, &r);
        cr_expect_eq(r.status, n == 511 ? 200 : 400);
        if (n == 512)
            cr_expect(
                strstr(r.body.data, "512 tokens. However, your prompt resulted in 512 tokens") &&
                    strstr(r.body.data, "\"code\":\"context_length_exceeded\""),
                "%s", r.body.data);
        else
            cr_expect(strstr(r.body.data, "\"finish_reason\":\"length\""), "%s", r.body.data);
        reply_deinit(&r);
    }
    cr_expect_eq(w.port.r[0].m.max_new, 1);
    world_stop(&w);
}

Test(refuse, what_is_unknown_or_changes_nothing_is_ignored) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "x";
    world_ask(&w, CHAT,
              "{" HI ",\"unheard\":{\"a\":[1]},\"user\":\"u\",\"metadata\":{},\"store\":false,"
              "\"n\":null,\"stop\":null,\"temperature\":null,\"tools\":[],\"tool_choice\":\"auto\","
              "\"response_format\":{\"type\":\"text\"},\"functions\":null,\"typical_p\":1,"
              "\"parallel_tool_calls\":true,\"service_tier\":\"auto\",\"logit_bias\":{},"
              "\"modalities\":[\"text\"],\"prediction\":{\"type\":\"content\",\"content\":\"x\"},"
              "\"reasoning_effort\":\"low\",\"echo\":false,\"best_of\":4}",
              &r);
    cr_expect_eq(r.status, 200, "%s", r.body.data);
    reply_deinit(&r);
    world_ask(&w, TEXT, "{\"prompt\":\"a\",\"best_of\":1,\"echo\":false,\"suffix\":null}", &r);
    cr_expect_eq(r.status, 200, "%s", r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

Test(refuse, depth_is_bounded) {
    struct world w;
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};

    started(&w);
    buf_add_str(&b, "{\"x\":");
    for (int i = 0; i < 100000; i++)
        buf_add_char(&b, '[');
    expect_error(&w, CHAT, b.data, 400, NULL, "json_depth");
    world_stop(&w);
}

/* ---- tenants ---- */

Test(tenants, prefixes_are_shared_by_tenant_and_salt) {
    struct world w;
    struct reply r;
    char path[64];
    static const char *const keys[] = {"k1", "k2", "k3", "k3"};

    snprintf(path, sizeof(path), "/tmp/weft-test-tenants-%d", getpid());
    FILE *f = fopen(path, "w");
    fputs("a:k1\na:k2\nb:k3\n", f);
    fclose(f);
    world_init(&w);
    w.opts.api_keys_file = path;
    world_start(&w);
    w.port.script = "x";
    for (int i = 0; i < 4; i++) {
        int fd = world_connect(&w);
        const char *body = i == 3 ? "{" HI ",\"cache_salt\":\"s\"}" : "{" HI "}";

        world_say(&w, fd,
                  "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"
                  "Content-Length: %zu\r\n\r\n%s",
                  keys[i], strlen(body), body);
        world_receive(&w, fd, &r);
        cr_expect_eq(r.status, 200);
        reply_deinit(&r);
        world_drop(&w, fd);
    }
    unlink(path);
    cr_expect_eq(w.port.r[0].m.tenant, w.port.r[1].m.tenant);
    cr_expect_neq(w.port.r[0].m.tenant, w.port.r[2].m.tenant);
    cr_expect_eq(memcmp(w.port.r[0].m.share_key, w.port.r[1].m.share_key, 16), 0);
    cr_expect_neq(memcmp(w.port.r[0].m.share_key, w.port.r[2].m.share_key, 16), 0);
    cr_expect_neq(memcmp(w.port.r[2].m.share_key, w.port.r[3].m.share_key, 16), 0);
    world_stop(&w);
}
