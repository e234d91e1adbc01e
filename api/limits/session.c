/*
 * The scheduler learns per session: how long its answers are, what it has had. The APIs have
 * no field for a session, but agents name their sessions, each in its own way, and the tables below
 * say where and what counts first: a header before the body, since proxies add headers for exactly
 * this purpose; a name of one agent before a name of the session that it is part of; the session
 * before the user, who may have many.
 *
 * x-client-request-id is not among them: it is OpenAI's name for an id that is new with each
 * request.
 *
 * Where nothing is named, the conversation itself is the name. A turn repeats the turns before it,
 * so what it begins with (instructions and the user's first message) is the same in all of them.
 * Two conversations that begin alike become one session: they share an estimate, which may be wrong
 * anyway. A prompt of /v1/completions has no such beginning and stays without a session.
 *
 * The number is a keyed hash over tenant and name. So no tenant can meet another's sessions, by
 * accident or by choice, and no client can find names that collide.
 */

#include "api/limits/session.h"

#include <assert.h>
#include <string.h>

#include "api/http/http.h"
#include "api/http/siphash.h"
#include "base/json_read.h"

#define NAME_OF_AGENT "x-claude-code-agent-id"

static const char *const headers[] = {
    NAME_OF_AGENT,         "x-claude-code-session-id",
    "x-session-affinity",  "x-session-id",
    "session-id",          "session_id",
    "x-dynamo-session-id", "x-llm-d-inference-fairness-id",
};

static const struct {
    const char *name;
    /* offset of the member in struct session_names */
    size_t at;
} fields[] = {
    {"prompt_cache_key", offsetof(struct session_names, cache_key)},
    {"safety_identifier", offsetof(struct session_names, safety_id)},
    {"user", offsetof(struct session_names, user)},
    {"metadata.user_id", offsetof(struct session_names, metadata_user)},
};

/* Adds a text to a running hash. */
static uint64_t session_add(const uint64_t secret[2], uint64_t h, const void *data, size_t len) {
    uint64_t key[2] = {secret[0] ^ h, ~secret[1]};

    return siphash(key, data, len);
}

static uint64_t session_add_text(const uint64_t secret[2], uint64_t h, const char *s) {
    return session_add(secret, h, s, strlen(s));
}

static struct session_key session_named(const uint64_t secret[2], uint32_t tenant, uint64_t name,
                                        const char *from) {
    uint64_t v = session_add(secret, name, &tenant, sizeof(tenant));

    assert(from);
    return (struct session_key){v ? v : 1, from};
}

struct session_key session_of_head(const uint64_t secret[2], uint32_t tenant,
                                   const struct http *h) {
    for (size_t i = 0; i < ARRAY_SIZE(headers); i++) {
        const char *s = http_header(h, headers[i], NULL);

        if (!s || !*s)
            continue;
        uint64_t name = session_add_text(secret, 0, s);
        const char *whole = http_header(h, "x-claude-code-session-id", NULL);
        if (strcmp(headers[i], NAME_OF_AGENT) == 0 && whole) /* unique in its session only */
            name = session_add_text(secret, name, whole);
        return session_named(secret, tenant, name, headers[i]);
    }
    return (struct session_key){0};
}

struct session_key session_of_body(const uint64_t secret[2], uint32_t tenant,
                                   const struct session_names *n) {
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
        struct str s;

        memcpy(&s, (const char *)n + fields[i].at, sizeof(s));
        if (s.len)
            return session_named(secret, tenant, session_add(secret, 0, s.data, s.len),
                                 fields[i].name);
    }
    return n->conversation ? session_named(secret, tenant, n->conversation, "conversation")
                           : (struct session_key){0};
}

/* Adds the texts of a content, which is one text or has parts. */
static uint64_t session_add_content(const uint64_t secret[2], uint64_t h, yyjson_val *content) {
    if (yyjson_is_str(content))
        return session_add(secret, h, json_text(content), json_len(content));
    JSON_EACH(part, content) {
        yyjson_val *text = yyjson_is_str(part) ? part : yyjson_obj_get(part, "text");

        if (yyjson_is_str(text))
            h = session_add(secret, h, json_text(text), json_len(text));
    }
    return h;
}

uint64_t session_conversation(const uint64_t secret[2], yyjson_val *messages) {
    uint64_t h = 0;

    JSON_EACH(m, messages) {
        yyjson_val *role = yyjson_obj_get(m, "role");

        if (!yyjson_is_str(role))
            return 0;
        h = session_add(secret, h, json_text(role), json_len(role));
        h = session_add_content(secret, h, yyjson_obj_get(m, "content"));
        if (yyjson_equals_str(role, "user")) {
            if (h)
                return h;
            return 1;
        }
    }
    return 0;
}
