#include "api/generation/normalize.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "api/http/json.h"
#include "api/http/json_build.h"
#include "base/buf.h"
#include "base/jobs.h"
#include "base/json_read.h"
#include "base/try.h"

struct rewrite {
    yyjson_mut_doc *doc;
    /* memory was short for it */
    bool failed;
    yyjson_mut_val *list;
    /* last message of the list, or NULL */
    yyjson_mut_val *last;
    /* role of the last message; NULL before the first */
    const char *role;
    unsigned how;
};

static bool is_system(yyjson_val *m) {
    return json_has(m, "role", "system developer");
}

static bool has_calls(yyjson_val *m) {
    return yyjson_arr_size(yyjson_obj_get(m, "tool_calls"));
}

static void normalize_append(struct rewrite *b, const char *role, yyjson_mut_val *m) {
    yyjson_mut_arr_append(b->list, m);
    b->last = m;
    b->role = role;
}

/* Returns a content as an array of parts; a text becomes an array of one part. */
static yyjson_mut_val *normalize_parts(struct rewrite *b, yyjson_mut_val *content) {
    if (yyjson_mut_is_arr(content))
        return content;
    return json_make(b->doc, "[{type:'text', text:%}]", content);
}

static yyjson_mut_val *join_texts(struct rewrite *b, yyjson_mut_val *first,
                                  yyjson_mut_val *second) {
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};

    assert(yyjson_mut_is_str(first) && yyjson_mut_is_str(second));
    if (json_mut_add_text(&text, first) < 0 ||
        (text.len && json_mut_len(second) && buf_add_str(&text, "\n\n") < 0) ||
        json_mut_add_text(&text, second) < 0)
        b->failed = true;
    return json_text_of(b->doc, &text);
}

static yyjson_mut_val *normalize_join_parts(struct rewrite *b, yyjson_mut_val *first,
                                            yyjson_mut_val *second) {
    yyjson_mut_val *list = normalize_parts(b, first), *rest = normalize_parts(b, second), *part;

    while ((part = yyjson_mut_arr_remove_first(rest)))
        yyjson_mut_arr_append(list, part);
    return list;
}

/* Adds the content of @m to that of the last message; both have one. */
static void normalize_join(struct rewrite *b, yyjson_val *m) {
    yyjson_mut_val *first = yyjson_mut_obj_remove_key(b->last, "content");
    yyjson_mut_val *second = json_copy_of(b->doc, m, "content");
    bool parts = yyjson_mut_is_arr(first) || yyjson_mut_is_arr(second);

    if (!b->failed)
        yyjson_mut_obj_add_val(b->doc, b->last, "content",
                               (parts ? normalize_join_parts : join_texts)(b, first, second));
}

static bool has_content(yyjson_val *m) {
    yyjson_val *v = yyjson_obj_get(m, "content");

    return yyjson_is_str(v) || yyjson_is_arr(v);
}

static bool last_has_content(const struct rewrite *b) {
    yyjson_mut_val *v = yyjson_mut_obj_get(b->last, "content");

    return yyjson_mut_is_str(v) || yyjson_mut_is_arr(v);
}

static void normalize_say(struct rewrite *b, const char *role, const char *text) {
    normalize_append(b, role,
                     json_make(b->doc, "{role:%, content:%}", yyjson_mut_str(b->doc, role),
                               yyjson_mut_str(b->doc, text)));
}

/* Adds the turn that strict templates expect before one of @role: an answer to tool results after
 * which the user spoke at once, or a question before an assistant that speaks first. */
static void add_missing(struct rewrite *b, const char *role) {
    bool begins = !b->role || strcmp(b->role, "system") == 0;

    if (!(b->how & NORMALIZE_MISSING))
        return;
    if (strcmp(role, "assistant") == 0 && begins)
        normalize_say(b, "user", "");
    else if (strcmp(role, "user") == 0 && b->role && strcmp(b->role, "tool") == 0)
        normalize_say(b, "assistant", "Done.");
}

/* Adds a message of @role, which differs from the role of @m where a system message becomes the
 * user's. */
static void normalize_add(struct rewrite *b, yyjson_val *m, const char *role) {
    add_missing(b, role);
    bool again = (b->how & NORMALIZE_TURNS) && b->role && strcmp(b->role, role) == 0 &&
                 has_content(m) && last_has_content(b);

    if (again && !has_calls(m) && !yyjson_mut_obj_get(b->last, "tool_calls")) {
        normalize_join(b, m);
        return;
    }
    yyjson_mut_val *copy = yyjson_val_mut_copy(b->doc, m);
    if (!json_has(m, "role", role))
        yyjson_mut_set_str(yyjson_mut_obj_get(copy, "role"), role);
    normalize_append(b, role, copy);
}

/* Limit of the calls of a message that are split, because each searches all results. */
#define SPLIT_MAX 256

/* Returns the result of call @id among the @n messages from @m on, or NULL. */
static yyjson_val *normalize_result(yyjson_val *m, size_t n, yyjson_val *id) {
    for (; n; n--, m = json_next(m))
        if (yyjson_is_str(id) && yyjson_equals(yyjson_obj_get(m, "tool_call_id"), id))
            return m;
    return NULL;
}

/* Returns true if two of @calls have this @id, so that it does not tell their results apart. */
static bool is_shared(yyjson_val *calls, yyjson_val *id) {
    size_t n = 0;

    JSON_EACH(call, calls) {
        n += yyjson_equals(yyjson_obj_get(call, "id"), id);
    }
    return n > 1;
}

/* Counts the results that begin at @m, of @n messages. */
static size_t count_results(yyjson_val *m, size_t n) {
    size_t found = 0;

    for (; found < n && json_has(m, "role", "tool"); m = json_next(m))
        found++;
    return found;
}

/* Returns call @i of message @m as a message of its own; the other content of @m comes with the
 * first. */
static yyjson_mut_val *one_call(struct rewrite *b, yyjson_val *m, yyjson_val *call, size_t i) {
    yyjson_mut_val *one;

    if (i)
        one = json_constant(b->doc, "{role:'assistant', content:''}");
    else
        one = yyjson_val_mut_copy(b->doc, m);

    yyjson_mut_obj_remove_key(one, "tool_calls");
    yyjson_mut_obj_add_val(b->doc, one, "tool_calls",
                           json_make(b->doc, "[%]", yyjson_val_mut_copy(b->doc, call)));
    return one;
}

/* Splits an assistant's message with several calls, which @n others follow, into one message for
 * each call, followed by its result. Returns the number of results taken: 0 if they are not exactly
 * those of the calls or are more than SPLIT_MAX; then the message is copied whole. */
static size_t split_calls(struct rewrite *b, yyjson_val *m, size_t n) {
    yyjson_val *calls = yyjson_obj_get(m, "tool_calls"), *id;
    yyjson_val *next = n ? json_next(m) : NULL;
    size_t found = count_results(next, n);
    bool whole = found == yyjson_arr_size(calls) && found <= SPLIT_MAX;

    JSON_EACH(call, calls) {
        id = yyjson_obj_get(call, "id");
        whole = whole && normalize_result(next, found, id) && !is_shared(calls, id);
    }
    if (!whole) {
        normalize_append(b, "assistant", yyjson_val_mut_copy(b->doc, m));
        return 0;
    }
    JSON_EACH_AT(i, call, calls) {
        yyjson_val *result = normalize_result(next, found, yyjson_obj_get(call, "id"));

        assert(result);
        normalize_append(b, "assistant", one_call(b, m, call, i));
        normalize_append(b, "tool", yyjson_val_mut_copy(b->doc, result));
    }
    return found;
}

/* Returns true if system message @i becomes the user's. */
static bool is_users(const struct rewrite *b, size_t i) {
    return b->how & (i ? NORMALIZE_SYSTEM : NORMALIZE_NO_SYSTEM);
}

static int rewrite_all(struct rewrite *b, yyjson_val *messages) {
    yyjson_val *m = yyjson_arr_get_first(messages);
    size_t n = yyjson_arr_size(messages), done;

    for (size_t i = 0; i < n; i++, m = json_next(m)) {
        done = 0;
        TRY(job_pause());
        if (is_system(m))
            normalize_add(b, m, is_users(b, i) ? "user" : "system");
        else if (json_has(m, "role", "user"))
            normalize_add(b, m, "user");
        else if (json_has(m, "role", "assistant") && (b->how & NORMALIZE_TURNS) &&
                 yyjson_arr_size(yyjson_obj_get(m, "tool_calls")) > 1)
            done = split_calls(b, m, n - i - 1);
        else if (json_has(m, "role", "assistant"))
            normalize_add(b, m, "assistant");
        else
            normalize_append(b, "tool", yyjson_val_mut_copy(b->doc, m));
        assert(done < n - i);
        for (; done; done--, i++)
            m = json_next(m);
    }
    return 0;
}

/* ---- calls ---- */

/* Sets the arguments of @f to an object unless they are one, or the JSON text of one. Arguments
 * that are neither become a member of the object. */
static void repair_args(struct rewrite *b, yyjson_mut_val *f) {
    yyjson_mut_val *given = yyjson_mut_obj_get(f, "arguments");
    CLEANUP(json_doc_freep) yyjson_doc *doc = NULL;

    if (!yyjson_mut_is_obj(f) || yyjson_mut_is_obj(given))
        return;
    if (yyjson_mut_is_str(given) &&
        json_parse(&doc, json_mut_text(given), json_mut_len(given), 0) == -ENOMEM)
        b->failed = true;
    if (yyjson_is_obj(yyjson_doc_get_root(doc)))
        return;
    yyjson_mut_obj_remove_key(f, "arguments");
    bool none = yyjson_is_null(yyjson_doc_get_root(doc)) || !json_mut_len(given);
    yyjson_mut_obj_add_val(b->doc, f, "arguments",
                           json_make(b->doc, "{arguments:%}", none ? NULL : given));
}

#define SHORT_ID 9

static bool is_short_id(const char *id, size_t len) {
    size_t n = 0;

    while (n < len && isalnum((unsigned char)id[n]))
        n++;
    return n == SHORT_ID && n == len;
}

/* Sets the id of @m under @key to one that follows from the @given one, or, where none is given,
 * from the place: call @i of message @at. */
static void repair_id(struct rewrite *b, yyjson_mut_val *m, const char *key, yyjson_mut_val *given,
                      size_t at, size_t i) {
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    const char *text = json_mut_text(given);
    size_t len = text ? json_mut_len(given) : 0;
    uint64_t h = text ? 0 : hash_step(at, i);
    char id[SHORT_ID + 1] = {0};

    for (size_t k = 0; k < len; k++)
        h = hash_step(h, (unsigned char)text[k]);
    for (size_t k = 0; k < SHORT_ID; k++, h = hash_step(h, k))
        id[k] = text && is_short_id(text, len) ? text[k] : digits[(h >> 32) % (sizeof(digits) - 1)];
    yyjson_mut_obj_remove_key(m, key);
    yyjson_mut_obj_add_strcpy(b->doc, m, key, id);
}

/* Repairs arguments and ids of calls, and ids of results. A result without an id belongs to the
 * next call of the last message with calls. */
static int repair_calls(struct rewrite *b) {
    yyjson_mut_arr_iter calls = {0};
    yyjson_mut_val *m, *call, *id;
    size_t i, n, k, n_calls;

    yyjson_mut_arr_foreach(b->list, i, n, m) {
        yyjson_mut_val *own = yyjson_mut_obj_get(m, "tool_calls");

        TRY(job_pause());
        if (yyjson_mut_equals_str(yyjson_mut_obj_get(m, "role"), "tool")) {
            call = yyjson_mut_arr_iter_next(&calls);
            id = yyjson_mut_obj_get(m, "tool_call_id");
            id = yyjson_mut_is_str(id) ? id : yyjson_mut_obj_get(call, "id");
            repair_id(b, m, "tool_call_id", id, i, 0);
        }
        if (!yyjson_mut_arr_size(own))
            continue;
        yyjson_mut_arr_foreach(own, k, n_calls, call) {
            if (!yyjson_mut_is_obj(call))
                continue;
            yyjson_mut_val *called = yyjson_mut_obj_get(call, "function");
            repair_args(b, called ? called : call); /* the call itself, in the flat form */
            repair_id(b, call, "id", yyjson_mut_obj_get(call, "id"), i, k);
        }
        yyjson_mut_arr_iter_init(own, &calls);
    }
    return 0;
}

bool normalize_has_late_system(yyjson_val *messages) {
    JSON_EACH_AT(i, m, messages) {
        if (i && is_system(m))
            return true;
    }
    return false;
}

bool normalize_has_calls(yyjson_val *messages) {
    JSON_EACH(m, messages) {
        if (has_calls(m))
            return true;
    }
    return false;
}

int normalize_messages(yyjson_val *messages, unsigned how, yyjson_doc **out) {
    struct rewrite b = {.how = how};
    CLEANUP(json_mut_doc_freep) yyjson_mut_doc *doc = json_doc_new(&b.failed);

    b.doc = doc;
    b.list = yyjson_mut_arr(doc);
    TRY(rewrite_all(&b, messages));
    if (how & NORMALIZE_CALLS)
        TRY(repair_calls(&b));
    return json_doc_seal(doc, b.list, out);
}
