/*
 * Pictures in requests of all dialects: the submits to the worker, the pixels that it gets when it
 * asks, and refusals. The model has Qwen's tokens around pictures.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/generation/image_data.h"
#include "api/parts.h"
#include "base/rng.h"
#include "stream.h"
#include "tests/support/test_data.h"
#include "tiny.h"

enum { SEES = TINY_CALL, PAD, SEEN }; /* the tokens around and in a picture */

static atomic_int n_decoded, decoder_fails; /* decoder_fails: -errno; 0: it works */
static uint32_t rows_each;                  /* rows of every picture; 0: its own number */
static uint64_t free_seen[2];               /* free bytes for the last two pictures */
static char *a, *b;                         /* two files in base64 */

static int decode(void *ctx, const void *data, size_t len, const struct picture_fit *fit,
                  struct picture *out, struct picture_layout *layout, struct err *err) {
    free_seen[0] = free_seen[1];
    free_seen[1] = fit->free_bytes ? *fit->free_bytes : 0;
    if (decoder_fails)
        return decoder_fails;
    int r = picture_decode_fit(data, len, fit, out, layout, err);

    n_decoded++;
    if (r == 0 && fit->free_bytes)
        *fit->free_bytes -= 1000;
    if (rows_each)
        layout->n_rows = rows_each;
    return r;
}

/* Returns a file of the test data in base64, malloc'd. */
static char *read_file(const char *dir, const char *name) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char path[TEST_DATA_PATH], folder[64];
    static uint8_t data[1 << 20];

    snprintf(folder, sizeof(folder), "golden-vision/%s", dir);
    FILE *f = fopen(test_data_file(path, folder, name, ""), "rb");
    size_t n = fread(data, 1, sizeof(data) - 3, f), at = 0;
    fclose(f);
    char *out = calloc(1, n * 2 + 8);
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)data[i] << 16;

        v |= i + 1 < n ? (uint32_t)data[i + 1] << 8 : 0;
        v |= i + 2 < n ? data[i + 2] : 0;
        out[at++] = digits[v >> 18];
        out[at++] = digits[v >> 12 & 63];
        out[at++] = i + 1 < n ? digits[v >> 6 & 63] : '=';
        out[at++] = i + 2 < n ? digits[v & 63] : '=';
    }
    return out;
}

/* Prepares a model that takes pictures, unless @blind. */
static void prepare(struct world *w, bool blind) {
    world_init(w);
    world_see(w);
    w->model.projector = blind ? NULL : w->model.projector;
    w->model.max_context = 4096;
    w->opts.decode = decode;
    w->opts.max_body_bytes = 4 << 20;
    n_decoded = decoder_fails = 0;
    free(a);
    free(b);
    a = read_file("resize", "bicubic-224x128.png");
    b = read_file("resize", "source-97x61.png");
    w->port.script = "ok";
}

static void started(struct world *w, bool blind) {
    prepare(w, blind);
    world_start(w);
}

static void stopped(struct world *w) {
    world_stop(w);
    free(a);
    free(b);
    a = b = NULL;
}

/* Sends @body, in which @ stands for picture A and & for picture B in base64. */
static void ask(struct world *w, const char *path, const char *body, struct reply *r) {
    size_t size = strlen(body) + 8 * (strlen(a) + strlen(b)) + 64, n = 0;
    char *all = malloc(size);

    for (const char *s = body; *s; s++) {
        const char *with = *s == '@' ? a : *s == '&' ? b : NULL;

        if (with)
            n += (size_t)snprintf(all + n, size - n, "%s", with);
        else
            all[n++] = *s;
    }
    all[n] = 0;
    world_ask(w, path, all, r);
    free(all);
}

/* Writes the prompt that request @i has, pictures as "#" and their number of rows. */
static const char *prompt(const struct fake_request *q, char out[1024]) {
    size_t n = 0;
    uint32_t k = 0;

    for (uint32_t i = 0; i < q->m.n_prompt && n < 1000; i++) {
        int32_t id = q->tokens[i];

        if (k < q->m.n_pictures && i == q->pictures[k].at) {
            n += (size_t)snprintf(out + n, 1024 - n, "#%u", q->pictures[k].n_rows);
            for (uint32_t j = 0; j < q->pictures[k].n_rows; j++)
                cr_assert_eq(q->tokens[i + j], PAD);
            i += q->pictures[k++].n_rows - 1;
        } else if (id == SEES || id == SEEN || id == PAD) {
            out[n++] = id == SEES ? '(' : id == SEEN ? ')' : '?';
        } else if (id >= 256) {
            out[n++] = id == TINY_START ? '<' : '>';
        } else {
            out[n++] = (char)id;
        }
    }
    out[n] = 0;
    cr_assert_eq(k, q->m.n_pictures);
    return out;
}

#define URI "data:image/png;base64,@"
#define PART R"({"type":"image_url","image_url":{"url":")" URI R"("}})"
#define FILE_PART R"({"type":"file","file":{"file_data":"aGk="}})"
#define WORDS(s) R"({"type":"text","text":")" s R"("})"
#define CALL                                                                                       \
    R"({"role":"assistant","content":"","tool_calls":[{"id":"c","type":)"                          \
    R"("function","function":{"name":"f","arguments":"{}"}}]})"

static const struct {
    const char *name, *path, *body, *prompt;
} dialects[] = {
    {"chat", CHAT,
     R"({"messages":[{"role":"user","content":[)" WORDS("see ") "," PART "," WORDS(" now") "]}]}",
     "<user\nsee (#28) now>\n<assistant\n"},
    {"chat, URL as string, type lies", CHAT,
     R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":)"
     R"("data:text/plain;base64,@"}]}]})",
     "<user\n(#28)>\n<assistant\n"},
    {"lm studio", "/api/v0/chat/completions",
     R"({"messages":[{"role":"user","content":[)" WORDS("lm") "," PART "]}]}",
     "<user\nlm(#28)>\n<assistant\n"},
    {"result of a tool", CHAT,
     R"({"messages":[{"role":"user","content":"q"},)" CALL
     R"(,{"role":"tool","tool_call_id":"c","content":[)" WORDS("shot") "," PART "]}]}",
     "<user\nq>\n<assistant\n>\n<tool\nshot(#28)>\n<assistant\n"},
    {"texts of a tool", CHAT,
     R"({"messages":[{"role":"user","content":[)" WORDS("q") "," WORDS(
         "r") "]}," CALL
              R"(,{"role":"tool","tool_call_id":"c","content":[)" WORDS("a") "," WORDS("c") "," PART
                                                                                            "]}]}",
     "<user\nq\nr>\n<assistant\n>\n<tool\nac(#28)>\n<assistant\n"},
    {"messages", "/v1/messages",
     R"({"model":"tiny","max_tokens":9,"messages":[{"role":"user","content":[)" WORDS(
         "a") R"(,{"type":"image","source":{"type":"base64","media_type":"image/jpeg",)"
              R"("data":"@"},"cache_control":{"type":"ephemeral"}}]}]})",
     "<user\na(#28)>\n<assistant\n"},
    {"tool_result", "/v1/messages",
     R"({"model":"tiny","max_tokens":9,"messages":[{"role":"user","content":"q"},)"
     R"({"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f",)"
     R"("input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":)"
     R"("t","content":[)" WORDS("b") R"(,{"type":"image","source":{"type":"base64",)"
                                     R"("data":"@"}}]}]}]})",
     "<user\nq>\n<assistant\n>\n<tool\nb(#28)>\n<assistant\n"},
    {"responses", "/v1/responses",
     R"({"input":[{"role":"user","content":[{"type":"input_text","text":"x"},)"
     R"({"type":"input_image","image_url":")" URI R"(","detail":"auto"}]}]})",
     "<user\nx(#28)>\n<assistant\n"},
    {"function_call_output", "/v1/responses",
     R"({"input":[{"role":"user","content":"q"},{"type":"function_call","call_id":)"
     R"("1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":)"
     R"("1","output":[{"type":"input_text","text":"y"},{"type":"input_image",)"
     R"("image_url":")" URI R"("}]}]})",
     "<user\nq>\n<assistant\n>\n<tool\ny(#28)>\n<assistant\n"},
    {"computer_call_output", "/v1/responses",
     R"({"input":[{"role":"user","content":"q"},{"type":"computer_call","call_id":)"
     R"("1","action":{"type":"screenshot"}},{"type":"computer_call_output","call_id":)"
     R"("1","output":{"type":"computer_screenshot","image_url":")" URI R"("}}]})",
     "<user\nq>\n<assistant\n>\n<tool\n(#28)>\n<assistant\n"},
    {"ollama chat", "/api/chat",
     R"({"model":"tiny","stream":false,"messages":[{"role":"user","content":"z",)"
     R"("images":["@"]}]})",
     "<user\n(#28)z>\n<assistant\n"},
    {"ollama generate", "/api/generate",
     R"({"model":"tiny","stream":false,"prompt":"z","images":["@"]})",
     "<user\n(#28)z>\n<assistant\n"},
};

Test(pictures, are_rows_in_the_prompt_of_every_dialect) {
    struct submit_picture first = {0};
    struct world w;
    struct reply r;
    char text[1024];

    started(&w, false);
    for (uint32_t i = 0; i < ARRAY_SIZE(dialects); i++) {
        ask(&w, dialects[i].path, dialects[i].body, &r);
        cr_assert_eq(r.status, 200, "%s: %s", dialects[i].name, r.body.data);
        const struct fake_request *q = &w.port.r[w.port.n - 1];
        cr_expect_str_eq(prompt(q, text), dialects[i].prompt, "%s: %s", dialects[i].name, text);
        cr_assert_eq(q->m.n_pictures, 1);
        first = i ? first : q->pictures[0];
        first.at = q->pictures[0].at;
        cr_expect_eq(memcmp(&first, &q->pictures[0], sizeof(first)), 0, "%s", dialects[i].name);
        reply_deinit(&r);
    }
    cr_expect(first.width == 224 && first.height == 128 && first.n_columns == 7 &&
              first.n_lines == 4 && first.n_positions == 7);
    cr_expect_eq(n_decoded, 1, "a known picture is decoded again");
    stopped(&w);
}

/* The template has no tools, so results become a message of the user. */
Test(pictures, stay_in_results_that_become_text) {
    static const char source[] =
        "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\n' + m.content + "
        "'<|im_end|>\n' }}{%- endfor -%}<|im_start|>assistant\n";
    struct world w;
    struct reply r;
    char text[1024];

    prepare(&w, false);
    world_use_template(&w, source, sizeof(source) - 1);
    world_start(&w);
    ask(&w, CHAT,
        R"({"messages":[{"role":"user","content":"q"},)" CALL
        R"(,{"role":"tool","tool_call_id":"c","content":[)" WORDS(
            "a") "," PART R"(]},{"role":"tool","tool_call_id":"d","name":"n","content":[)" PART
                 "," WORDS("b") "]}]}",
        &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    cr_expect_str_eq(prompt(&w.port.r[0], text),
                     "<user\nq>\n<assistant\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
                     "{}}\n</tool_call>\n>\n<user\n<tool_response>\na(#28)\n</"
                     "tool_response>\n<tool_response>\nn: (#28)b\n</tool_response>\n>\n<assistant",
                     "%s", text);
    reply_deinit(&r);
    stopped(&w);
}

Test(pictures, come_with_a_marker_in_a_prompt_string) {
    struct world w;
    struct reply r;
    char text[1024], body[512], *marker;

    started(&w, false);
    world_get(&w, "/props", &r);
    cr_assert(strstr(r.body.data, R"("modalities":{"vision":true)"), "%s", r.body.data);
    marker = strstr(r.body.data, R"("media_marker":")") + strlen(R"("media_marker":")");
    *strchr(marker, '"') = 0;
    snprintf(body, sizeof(body),
             R"({"prompt":{"prompt_string":"a %s b%sc<__media__>","multimodal_data":)"
             R"(["@","&"]}})",
             marker, marker);
    reply_deinit(&r);
    ask(&w, "/completion", body, &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    cr_expect_str_eq(prompt(&w.port.r[0], text), "a (#28) b(#12)c<__media__>", "%s", text);
    reply_deinit(&r);
    ask(&w, "/completion", R"({"prompt":{"prompt_string":"a","multimodal_data":["@"]}})", &r);
    cr_expect_eq(r.status, 400, "%s", r.body.data);
    cr_expect(strstr(r.body.data, "one media marker for each picture"), "%s", r.body.data);
    reply_deinit(&r);
    ask(&w, "/completion", R"({"prompt":{"prompt_string":"a","multimodal_data":"@"}})", &r);
    cr_expect_eq(r.status, 400, "%s", r.body.data);
    reply_deinit(&r);
    stopped(&w);
}

/* The tokens of the answer contain neither marks nor rows of pictures; these are counted. */
Test(pictures, return_tokens_gives_those_of_the_answer) {
    struct world w;
    struct reply r;
    char body[512], *marker;

    started(&w, false);
    world_get(&w, "/props", &r);
    marker = strstr(r.body.data, R"("media_marker":")") + strlen(R"("media_marker":")");
    *strchr(marker, '"') = 0;
    snprintf(body, sizeof(body),
             R"({"prompt":{"prompt_string":"a%s","multimodal_data":["@"]},"return_)"
             R"(tokens":true})",
             marker);
    reply_deinit(&r);
    for (int stream = 0; stream < 2; stream++) {
        if (stream)
            snprintf(strrchr(body, '}'), 32, R"(,"stream":true})");
        ask(&w, "/completion", body, &r);
        cr_assert_eq(r.status, 200, "%s", r.body.data);
        cr_expect(strstr(r.body.data,
                         stream ? R"("tokens":[111])" : R"("content":"ok","tokens":[111,107])"),
                  "%s", r.body.data);
        cr_expect(strstr(r.body.data, R"("tokens_evaluated":31)"), "%s", r.body.data);
        reply_deinit(&r);
    }
    stopped(&w);
}

/* Calls are split and their results moved for templates that need alternating messages: each
 * picture stays with its text. A picture that occurs twice has one digest. */
/* llm-d computes from it which worker has a prompt with pictures. */
Test(pictures, are_features_of_a_chat_that_is_rendered) {
    char hex[2 * PICTURE_DIGEST + 1], want[2 * sizeof(hex) + 200], body[200];
    struct world w;
    struct reply r;

    started(&w, false);
    ask(&w, CHAT, R"({"messages":[{"role":"user","content":[)" PART "]}]}", &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    reply_deinit(&r);
    const struct submit_picture *p = &w.port.r[0].pictures[0];
    for (size_t i = 0; i < PICTURE_DIGEST; i++)
        snprintf(hex + 2 * i, 3, "%02x", p->digest[i]);
    snprintf(want, sizeof(want),
             R"("features":{"mm_hashes":{"image":["%s"]},"mm_placeholders":{"image":[{"offset":%u,)"
             R"("length":28}]}})",
             hex, p->at);
    ask(&w, CHAT "/render", R"({"messages":[{"role":"user","content":[)" PART "]}]}", &r);
    cr_expect_eq(r.status, 200);
    cr_expect(strstr(r.body.data, want), "%s has no %s", r.body.data, want);
    reply_deinit(&r);
    snprintf(body, sizeof(body), "{%s}", HI);
    ask(&w, CHAT "/render", body, &r);
    cr_expect_eq(r.status, 200);
    cr_expect_null(strstr(r.body.data, "features"));
    reply_deinit(&r);
    stopped(&w);
}

Test(pictures, keep_their_order) {
    struct world w;
    struct reply r;
    char text[1024];

    prepare(&w, false);
    w.model.picture_budget.most = 40;
    world_start(&w);
    ask(&w, CHAT,
        R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"&"}})"
        "," PART "," PART "]}]}",
        &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    const struct fake_request *q = &w.port.r[0];
    cr_expect_str_eq(prompt(q, text), "<user\n(#12)(#28)(#28)>\n<assistant\n", "%s", text);
    cr_expect_eq(memcmp(q->pictures[1].digest, q->pictures[2].digest, PICTURE_DIGEST), 0);
    cr_expect_neq(memcmp(q->pictures[0].digest, q->pictures[1].digest, PICTURE_DIGEST), 0);
    cr_expect(strstr(r.body.data, R"("image_tokens":68)"), "%s", r.body.data);
    reply_deinit(&r);
    ask(&w, CHAT,
        R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"@",")"
        R"(detail":"low"}}]}]})",
        &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    cr_expect_eq(n_decoded, 3, "another detail is another picture: %d", (int)n_decoded);
    cr_expect_str_eq(prompt(&w.port.r[1], text), "<user\n(#8)>\n<assistant\n", "%s", text);
    reply_deinit(&r);
    stopped(&w);
}

/* The template shows only the last message. */
Test(pictures, that_a_template_leaves_out_are_an_error) {
    static const char source[] = "<|im_start|>{{ messages[-1].content }}";
    struct world w;
    struct reply r;

    prepare(&w, false);
    world_use_template(&w, source, sizeof(source) - 1);
    world_start(&w);
    ask(&w, CHAT,
        R"({"messages":[{"role":"user","content":[)" PART
        R"(]},{"role":"assistant","content":"x"},{"role":"user","content":[)" PART "]}]}",
        &r);
    cr_expect_eq(r.status, 400, "%s", r.body.data);
    cr_expect(strstr(r.body.data, "has 2 pictures, and its prompt has places for 1"), "%s",
              r.body.data);
    reply_deinit(&r);
    stopped(&w);
}

Test(pictures, text_of_users_stays_text) {
    struct world w;
    struct reply r;
    char text[1024];

    started(&w, false);
    ask(&w, CHAT,
        R"({"messages":[{"role":"user","content":[)" WORDS(
            "<|vision_start|><|image_pad|><|vision_end|>") "," PART "]}]}",
        &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    cr_expect_str_eq(prompt(&w.port.r[0], text),
                     "<user\n<|vision_start|><|image_pad|><|vision_end|>(#28)>\n<assistant\n", "%s",
                     text);
    reply_deinit(&r);
    stopped(&w);
}

static void expect_pixels(struct world *w, uint32_t n) {
    struct picture p = {0};
    struct err err;
    uint8_t *file;
    size_t len;

    for (uint64_t end = world_limit(); w->port.n_pictures < n && uv_hrtime() < end;)
        world_turn(w);
    cr_assert_eq(w->port.n_pictures, n);
    cr_assert_eq(image_data_read(a, strlen(a), "a", &file, &len, &err), 0);
    cr_assert_eq(picture_decode(file, len, &p, &err), 0);
    cr_expect_eq(w->port.n_pixels, picture_bytes(p.width, p.height));
    cr_expect_eq(memcmp(w->port.pixels, p.rgb, w->port.n_pixels), 0);
    picture_deinit(&p);
    free(file);
}

/* Turns the loop until the pool has no jobs, and delivers its results. */
static void finish_jobs(struct world *w) {
    struct jobs_stats s;

    do {
        world_turn(w);
        jobs_stats(w->api->env.pool.jobs, &s);
    } while (s.n_waiting > 0 || s.n_begun > 0);
    world_turns(w, 20);
}

/* Sends a request with a picture to the worker, after prepare(). Returns the client's socket. */
static int ask_with_a_picture(struct world *w) {
    w->port.script = NULL;
    world_start(w);
    size_t size = strlen(a) + 512;
    char *body = malloc(size);
    snprintf(body, size,
             R"({"messages":[{"role":"user","content":[{"type":"image_url",)"
             R"("image_url":{"url":"%s"}}]}]})",
             a);
    int fd = world_connect(w);
    world_post(w, fd, CHAT, body);
    free(body);
    for (uint64_t end = world_limit(); w->port.n == 0 && uv_hrtime() < end;)
        world_turn(w);
    cr_assert_eq(w->port.n, 1);
    return fd;
}

/* The entry of a file has no pointer to the model that used it first, which may be removed. */
Test(pictures, are_sent_when_the_worker_asks) {
    struct msg_need_picture need = {0};
    struct world w;

    prepare(&w, false);
    struct projector first = *w.model.projector;
    w.model.projector = &first;
    int fd = ask_with_a_picture(&w);
    memset(&first, 0, sizeof(first));

    need.id = w.port.r[0].id;
    w.port.picture_again = 3;
    api_on_need_picture(w.port.model, &need);
    expect_pixels(&w, 1);
    cr_expect_eq(n_decoded, 1, "the pixels that were there are sent");
    api_worker_down(w.port.model);
    api_worker_up(w.port.model, NULL);
    cr_expect_eq(w.port.r[0].n_submits, 2);
    cr_expect_eq(w.port.r[0].m.n_pictures, 1);
    api_on_need_picture(w.port.model, &need);
    api_on_need_picture(w.port.model, &need); /* once is enough */
    expect_pixels(&w, 2);
    finish_jobs(&w);
    cr_expect_eq(w.port.n_pictures, 2);
    cr_expect_eq(n_decoded, 2, "they are made again");
    need.index = 1;
    api_on_need_picture(w.port.model, &need);
    need.index = 0;
    need.id += 77;
    api_on_need_picture(w.port.model, &need);
    need.id -= 77;
    api_on_need_picture(w.port.model, &need);
    world_drop(&w, fd);
    world_turns(&w, 20);
    api_on_need_picture(w.port.model, &need);
    world_turns(&w, 20);
    cr_expect_leq(w.port.n_pictures, 3);
    stopped(&w);
}

/* The worker gets the reason why a picture that it requests again is missing. */
Test(pictures, that_cannot_be_decoded_again_have_a_reason) {
    static const struct {
        int error;
        const char *told;
    } row[] = {
        {-ENOMEM, "503 out_of_memory Out of memory. Try again later."},
        {-EIO, "503 image_decoder_unavailable image: the process that decodes pictures cannot be "
               "started."},
    };
    struct msg_need_picture need = {0};
    struct world w;

    prepare(&w, false);
    int fd = ask_with_a_picture(&w);
    need.id = w.port.r[0].id;
    api_on_need_picture(w.port.model, &need);
    expect_pixels(&w, 1); /* whose pixels then belong to the worker */
    for (uint32_t i = 0; i < ARRAY_SIZE(row); i++) {
        decoder_fails = row[i].error;
        api_on_need_picture(w.port.model, &need);
        for (int n = 0; n < 20000 && w.port.n_picture_errors <= i; n++)
            world_turn(&w);
        cr_expect_eq(w.port.n_picture_errors, i + 1);
        cr_expect_str_eq(w.port.picture_error, row[i].told);
    }
    world_drop(&w, fd);
    stopped(&w);
}

/* A small request is handled on the loop alone if its pictures are known. */
Test(pictures, that_are_known_need_no_thread) {
    static const char body[] =
        R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":)"
        R"("data:image/)"
        "png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwAD"
        R"(hgGAWjR9awAAAABJRU5ErkJggg=="}]}]})";
    struct jobs_stats before, after;
    struct reply r;
    struct world w;

    started(&w, false);
    for (int i = 0; i < 3; i++) {
        jobs_stats(w.api->env.pool.jobs, &before);
        world_ask(&w, CHAT, body, &r);
        jobs_stats(w.api->env.pool.jobs, &after);
        cr_expect_eq(r.status, 200);
        cr_expect_eq(after.n_done - before.n_done, i == 0, "request %d", i);
        cr_expect_eq(w.port.r[i].m.n_pictures, 1);
        reply_deinit(&r);
    }
    cr_expect_eq(n_decoded, 1);
    stopped(&w);
}

/* A request with another salt decodes a picture again, because tenants share no results. */
Test(pictures, are_known_to_their_isolation_key_alone) {
    static const char *const salts[] = {"one", "two", "one", "two"};
    char body[512];
    struct reply r;
    struct world w;

    started(&w, false);
    for (int i = 0; i < 4; i++) {
        snprintf(body, sizeof(body),
                 R"({"cache_salt":"%s","messages":[{"role":"user","content":[%s]}]})", salts[i],
                 PART);
        ask(&w, CHAT, body, &r);
        cr_expect_eq(r.status, 200, "%s", r.body.data);
        cr_expect_eq(n_decoded, MIN(i + 1, 2), "request %d", i);
        reply_deinit(&r);
    }
    stopped(&w);
}

/* What a picture becomes depends on the background, so results are not used for another one. */
Test(pictures, are_known_to_their_background_alone) {
    static const enum picture_background grounds[] = {BACKGROUND_WHITE, BACKGROUND_BLACK,
                                                      BACKGROUND_WHITE};
    struct reply r;
    struct world w;

    started(&w, false);
    for (int i = 0; i < 3; i++) {
        w.model.picture_background = grounds[i];
        ask(&w, CHAT, R"({"messages":[{"role":"user","content":[)" PART "]}]}", &r);
        cr_expect_eq(r.status, 200, "%s", r.body.data);
        cr_expect_eq(n_decoded, MIN(i + 1, 2), "request %d", i);
        reply_deinit(&r);
    }
    stopped(&w);
}

Test(pictures, more_than_a_request_may_have_are_refused) {
    CLEANUP(buf_deinit) struct buf body = {.max = 1 << 20};
    struct reply r;
    struct world w;

    started(&w, false);
    buf_add_str(&body, R"({"messages":[{"role":"user","content":[)");
    for (uint32_t i = 0; i <= SUBMIT_PICTURES_MAX; i++)
        buf_add_str(&body, i ? R"(,{"type":"image_url","image_url":"data:;base64,AAAA"})"
                             : R"({"type":"image_url","image_url":"data:;base64,AAAA"})");
    buf_add_str(&body, "]}]}");
    world_ask(&w, CHAT, body.data, &r);
    cr_expect_eq(r.status, 400);
    cr_expect(strstr(r.body.data, "A request must have at most 256 pictures."), "%s", r.body.data);
    reply_deinit(&r);
    stopped(&w);
}

/* Two pictures have more rows than a prompt may have, so the third one, which is damaged, is not
 * decoded. */
Test(pictures, behind_too_many_rows_are_not_decoded) {
    static const char body[] = R"({"messages":[{"role":"user","content":[)" PART
                               R"(,{"type":"image_url","image_url":"&"},)"
                               R"({"type":"image_url","image_url":"aGVsbG8="}]}]})";
    static const char *const codes[] = {"context_length_exceeded", "invalid_image"};

    for (uint32_t i = 0; i < 2; i++) {
        struct reply r;
        struct world w;

        started(&w, false);
        rows_each = i ? 36000 : 40000; /* a prompt may have 73,728 */
        ask(&w, CHAT, body, &r);
        cr_expect_eq(r.status, 400);
        cr_expect(strstr(r.body.data, codes[i]), "%s", r.body.data);
        cr_expect_eq(n_decoded, 2 + i);
        reply_deinit(&r);
        stopped(&w);
    }
}

/* The pictures of a request share its free bytes; the next request has all of them again. */
Test(pictures, of_a_request_share_what_is_free) {
    static const char body[] = R"({"cache_salt":"%d","messages":[{"role":"user","content":[)" PART
                               R"(,{"type":"image_url","image_url":"&"}]}]})";
    char salted[512];
    struct reply r;
    struct world w;

    started(&w, false);
    for (int i = 0; i < 2; i++) {
        snprintf(salted, sizeof(salted), body, i);
        ask(&w, CHAT, salted, &r);
        cr_expect_eq(r.status, 200, "%s", r.body.data);
        cr_expect_eq(n_decoded, 2 * (i + 1));
        cr_expect_eq(free_seen[0], PICTURE_REQUEST_FREE);
        cr_expect_eq(free_seen[1], PICTURE_REQUEST_FREE - 1000);
        reply_deinit(&r);
    }
    stopped(&w);
}

/* White space may occur anywhere, and the digits may be those of URLs. */
Test(pictures, base64_is_read_with_white_space) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint8_t from[64], *to;
    struct rng rng = {7};
    char text[512];

    for (int k = 0; k < 2000; k++) {
        size_t len = 1 + rng_below(&rng, sizeof(from)), n = 0, n_to = 0;
        uint32_t spaces = k % 3 ? 1 + rng_below(&rng, 12) : 1000, bits = 0;
        struct err err = {0};

        for (size_t i = 0; i < len; i++)
            from[i] = (uint8_t)rng_below(&rng, 256);
        for (size_t i = 0; i < 8 * len; i += 6) {
            uint32_t word = (uint32_t)from[i / 8] << 8 | (i / 8 + 1 < len ? from[i / 8 + 1] : 0);
            char c = digits[bits = word >> (10 - i % 8) & 63];

            text[n++] = bits == 62 && k % 2 ? '-' : bits == 63 && k % 2 ? '_' : c;
            if (rng_below(&rng, spaces) == 0)
                text[n++] = '\n';
        }
        cr_assert_eq(image_data_read(text, n, "here", &to, &n_to, &err), 0, "%.*s", (int)n, text);
        cr_expect(n_to == len && memcmp(to, from, len) == 0, "%.*s", (int)n, text);
        free(to);
        text[rng_below(&rng, (uint32_t)n)] = '!';
        cr_expect(image_data_read(text, n, "here", &to, &n_to, &err) < 0, "%.*s", (int)n, text);
    }
}

Test(pictures, base64_of_too_large_a_file_is_not_decoded) {
    size_t len = (PICTURE_FILE_MAX / 3 + 8) * 4, n = 0;
    char *text = malloc(len);
    uint8_t *file = NULL;
    struct err err = {0};

    memset(text, 'A', len);
    cr_expect(image_data_read(text, len, "here", &file, &n, &err) < 0 && !file);
    cr_expect_eq(err.status, 413);
    cr_expect_str_eq(err.code, "image_too_large");
    free(text);
}

static const struct {
    /* @part: text of the part; @body: text of the answer */
    const char *body, *part;
    int status;
} refused[] = {
    {R"({"url":"https://example.com/a.png"})",
     "messages[0].content[1].image_url: it is an address, and this service fetches none (option "
     "picture-hosts)",
     400},
    {R"({"url":"file:///etc/passwd"})", "it names a file, and this service opens none", 400},
    {R"({"url":"data:image/png,abc"})", "it must be a data URI with base64", 400},
    {R"({"url":"a:b"})", "it must be a picture in base64", 400},
    {R"({"url":""})", "it must be a picture in base64", 400},
    {R"({"url":"aGVsbG8aa"})", "it must be a picture in base64", 400},
    {R"({"url":"data:image/png;base65,aGVsbG8="})", "it must be a data URI with base64", 400},
    {R"({"url":7})", "it must be a string", 400},
    {"{}", "it must be a string", 400},
    {R"({"url":"aGVsbG8="})", "the picture cannot be used", 400},
    {R"({"url":"@","detail":4})", R"(detail must be \"auto\", \"low\" or \"high\".)", 400},
    {R"("a","file_id":"f")", "file_id is not supported. Send the picture as a data URI.", 400},
    {"0", "it must be a string", 400},
};

Test(pictures, what_is_wrong_with_them_is_named) {
    struct world w;
    struct reply r;
    char body[512];

    started(&w, false);
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
        snprintf(body, sizeof(body),
                 R"({"messages":[{"role":"user","content":[)" WORDS(
                     "t") R"(,{"type":"image_url","image_url":%s}]}]})",
                 refused[i].body);
        ask(&w, CHAT, body, &r);
        cr_expect_eq(r.status, refused[i].status, "%s: %s", refused[i].body, r.body.data);
        cr_expect(strstr(r.body.data, refused[i].part), "%s: %s", refused[i].body, r.body.data);
        cr_expect(strstr(r.body.data, "messages[0].content[1].image_url"), "%s", r.body.data);
        reply_deinit(&r);
    }
    world_get(&w, "/metrics", &r);
    cr_expect(strstr(r.body.data, R"(weft_pictures_refused_total{reason="address"} 4)"), "%s",
              strstr(r.body.data, "weft_pictures_refused"));
    reply_deinit(&r);
    cr_expect_eq(w.port.n, 0);
    stopped(&w);
}

Test(pictures, a_model_that_does_not_see_says_so) {
    static const char question[] =
        R"({"messages":[{"role":"user","content":[)" WORDS("t") "," PART "]}]}";
    static const char past[] = R"({"messages":[{"role":"user","content":[)" WORDS(
        "t") "," PART R"(]},{"role":"assistant","content":"u"},{"role":"user",)"
             R"("content":"v"}]})";
    /* a picture of the user; then one that the client puts behind a tool's result */
    const char *const files[] = {
        R"({"messages":[{"role":"user","content":[)" FILE_PART "]}]}",
        R"({"messages":[{"role":"user","content":[)" FILE_PART
        R"(]},{"role":"tool","content":"r"},{"role":"user","content":[)" PART "]}]}"};
    struct world w;
    struct reply r;
    char text[1024];

    started(&w, true);
    ask(&w, CHAT, question, &r);
    cr_expect_eq(r.status, 400);
    cr_expect(strstr(r.body.data, "messages[0].content[1].type is not supported: this model reads "
                                  "only text"),
              "%s", r.body.data);
    reply_deinit(&r);
    ask(&w, CHAT, past, &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    cr_expect_str_eq(prompt(&w.port.r[0], text),
                     "<user\nt\n(An image or file, which this model cannot see.)>\n<assistant\nu>\n"
                     "<user\nv>\n<assistant\n",
                     "%s", text);
    reply_deinit(&r);
    for (size_t i = 0; i < 2; i++) {
        ask(&w, CHAT, files[i], &r);
        cr_expect_eq(r.status, i ? 200 : 400, "%s", r.body.data);
        cr_expect(i || strstr(r.body.data, "messages[0].content[0].type is not supported: files"));
        reply_deinit(&r);
    }
    cr_expect(strstr(prompt(&w.port.r[1], text), "<tool\nr>\n<user\n(An image or file"), "%s",
              text);
    stopped(&w);
}

/* Files that are no picture, are cut off, or must not be fetched: in a message that clients repeat,
 * a note replaces them, and the others are shown. */
Test(pictures, of_the_past_that_cannot_be_read_become_notes) {
    const char *bad[] = {"aGVsbG8=", "iVBORw0KGgogZ2FyYmFnZQ==", "https://example.com/a.png", ""};
    struct world w;
    struct reply r;
    char text[1024];

    started(&w, false);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        CLEANUP(buf_deinit) struct buf body = {.max = 1 << 20};

        buf_printf(&body,
                   R"({"messages":[{"role":"user","content":"q"},{"role":"tool",)"
                   R"("content":[{"type":"image_url","image_url":{"url":"%s"}}%s%s]},{)"
                   R"("role":"user","content":"v"}]})",
                   bad[i], i % 2 ? "," : "", i % 2 ? PART : "");
        ask(&w, CHAT, body.data, &r);
        cr_assert_eq(r.status, 200, "%s: %s", bad[i], r.body.data);
        const struct fake_request *p = &w.port.r[w.port.n - 1];
        cr_expect_eq(p->m.n_pictures, i % 2);
        cr_expect(
            strstr(prompt(p, text), "<tool\n(An image or file, which this model cannot see.)"),
            "%s", text);
        reply_deinit(&r);
    }
    stopped(&w);
}

/* Kimi-VL has a word between the special tokens before a picture. */
Test(pictures, words_may_stand_between_the_tokens_of_a_family) {
    const struct projector kimi = {.kind = PROJECTOR_KIMIVL}, qwen = {.kind = PROJECTOR_QWEN3VL};
    struct tokenizer *media = tiny_media_tokenizer(), *seeing = tiny_seeing_tokenizer();
    struct sight s;

    cr_assert(sight_init(&s, &kimi, media));
    cr_expect_str_eq(s.text, "<|media_start|>image<|media_content|><|media_pad|><|media_end|>");
    cr_expect(s.mark == TINY_CALL_END && !s.stays);
    cr_expect(strncmp(s.text + s.split, "<|media_pad|><", s.mark_len + 1) == 0);
    cr_expect(!sight_init(&s, &kimi, seeing) && !*s.text);
    cr_expect(sight_init(&s, &qwen, seeing) && !sight_init(&s, &qwen, media));
    tokenizer_free(media);
    tokenizer_free(seeing);
}

/* The most tokens of a picture, with its tiles. */
Test(pictures, models_say_how_many_tokens_a_picture_may_have) {
    struct projector tiles = {.kind = PROJECTOR_QWEN3VL, /* the tokens are Qwen's */
                              .name = "lfm2",
                              .patch = 16,
                              .merge = 2,
                              .least = 64,
                              .most = 256,
                              .tile = 512,
                              .least_tiles = 2,
                              .most_tiles = 10,
                              .marks = MARKS_PLACE};
    struct world w;
    struct reply r;

    prepare(&w, false);
    w.model.projector = &tiles;
    world_start(&w);
    world_get(&w, "/v1/models", &r);
    cr_expect(strstr(r.body.data, R"("min_tokens":64,"max_tokens":2827,"token_pixels":32)"), "%s",
              r.body.data);
    reply_deinit(&r);
    stopped(&w);
}
