#include "cmd/bench_sse.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <yyjson.h>

#include "base/json_read.h"
#include "base/text.h"
#include "base/try.h"

void sse_init(struct sse *s) {
    *s = (struct sse){0};
    buf_init(&s->line, SSE_EVENT_MAX);
    buf_init(&s->data, SSE_EVENT_MAX);
}

void sse_deinit(struct sse *s) {
    buf_deinit(&s->line);
    buf_deinit(&s->data);
}

/* Handles a complete line. Fields other than data (event, id, retry) and comments are ignored. */
static int sse_end_line(struct sse *s, int (*event)(void *, const char *, size_t), void *ctx) {
    const char *p = s->line.data;
    size_t len = s->line.len;

    assert(s->has_data || s->data.len == 0);
    if (len == 0) {
        int r = 0;

        if (s->has_data)
            r = event(ctx, s->data.len ? s->data.data : "", s->data.len);
        buf_clear(&s->data);
        s->has_data = false;
        return r;
    }
    if (len >= 5 && memcmp(p, "data:", 5) == 0) {
        size_t skip = len > 5 && p[5] == ' ' ? 6 : 5;

        if (s->has_data)
            TRY(buf_add_char(&s->data, '\n'));
        TRY(buf_add(&s->data, p + skip, len - skip));
        s->has_data = true;
    }
    buf_clear(&s->line);
    return 0;
}

int sse_feed(struct sse *s, const char *bytes, size_t n,
             int (*event)(void *ctx, const char *data, size_t len), void *ctx) {
    const char *end = bytes + n;
    int r = 0;

    while (r == 0 && bytes < end) {
        const char *p = bytes;

        if (*p == '\n' && s->after_cr) {
            s->after_cr = false;
            bytes++;
            continue;
        }
        s->after_cr = false;
        while (p < end && *p != '\n' && *p != '\r')
            p++;
        r = buf_add(&s->line, bytes, (size_t)(p - bytes));
        if (r == 0 && p < end) {
            s->after_cr = *p == '\r';
            r = sse_end_line(s, event, ctx);
            p++;
        }
        bytes = p;
    }
    return r;
}

static int64_t sse_number(yyjson_val *object, const char *key) {
    yyjson_val *v = yyjson_obj_get(object, key);

    if (!yyjson_is_int(v))
        return -1;
    return yyjson_get_sint(v);
}

static int sse_add_text(struct buf *text, yyjson_val *v) {
    if (!yyjson_is_str(v))
        return 0;
    return buf_add(text, json_text(v), json_len(v));
}

/* Adds the text of @message, a delta or a message. Returns 0 or -errno. */
static int sse_add_message(struct buf *text, yyjson_val *message) {
    static const char *const keys[] = {"reasoning_content", "reasoning", "content"};

    for (size_t k = 0; k < ARRAY_SIZE(keys); k++)
        TRY(sse_add_text(text, yyjson_obj_get(message, keys[k])));
    JSON_EACH(call, yyjson_obj_get(message, "tool_calls")) {
        yyjson_val *function = yyjson_obj_get(call, "function");

        TRY(sse_add_text(text, yyjson_obj_get(function, "name")));
        TRY(sse_add_text(text, yyjson_obj_get(function, "arguments")));
    }
    return 0;
}

void openai_copy_text(char *out, size_t size, const char *text) {
    size_t len = strlen(text);

    assert(size > 0);
    if (len >= size) {
        len = size - 1;
        while (len && ((unsigned char)text[len] & 0xC0) == 0x80)
            len--; /* does not end in the middle of a character */
    }
    for (size_t i = 0; i < len; i++)
        out[i] = (unsigned char)text[i] < 0x20 || text[i] == 0x7F ? ' ' : text[i];
    out[len] = 0;
}

static void get_error(yyjson_val *error, struct openai_part *out) {
    yyjson_val *v = yyjson_is_str(error) ? error : yyjson_obj_get(error, "message");
    const char *message = json_cstr(v);

    openai_copy_text(out->error, sizeof(out->error),
                     text_filled_or(text_or(message, ""), "error without a message"));
}

static int sse_add_choice(struct buf *text, yyjson_val *choice) {
    yyjson_val *message = yyjson_obj_get(choice, "delta");

    if (!message)
        message = yyjson_obj_get(choice, "message");
    if (message)
        return sse_add_message(text, message);
    return sse_add_text(text, yyjson_obj_get(choice, "text"));
}

int openai_parse(const char *json, size_t len, struct buf *text, struct openai_part *out) {
    CLEANUP(json_doc_freep) yyjson_doc *doc = yyjson_read(json, len, 0);
    yyjson_val *root = yyjson_doc_get_root(doc), *usage, *error;
    size_t before = text->len;

    *out = (struct openai_part){.prompt_tokens = -1, .cached_tokens = -1, .output_tokens = -1};
    if (!yyjson_is_obj(root))
        return -EBADMSG;
    JSON_EACH(choice, yyjson_obj_get(root, "choices")) {
        TRY(sse_add_choice(text, choice));
        out->finished |= yyjson_is_str(yyjson_obj_get(choice, "finish_reason"));
    }
    usage = yyjson_obj_get(root, "usage");
    out->prompt_tokens = sse_number(usage, "prompt_tokens");
    out->output_tokens = sse_number(usage, "completion_tokens");
    out->cached_tokens =
        sse_number(yyjson_obj_get(usage, "prompt_tokens_details"), "cached_tokens");
    if (out->cached_tokens < 0) /* name in llama-server */
        out->cached_tokens = sse_number(yyjson_obj_get(root, "timings"), "cache_n");
    error = yyjson_obj_get(root, "error");
    if (error && !yyjson_is_null(error))
        get_error(error, out);
    assert(text->len >= before);
    out->n_text = text->len - before;
    return 0;
}
