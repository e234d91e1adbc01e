#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json_read.h"
#include "base/result.h"
#include "base/try.h"
#include "cmd/cli.h"
#include "cmd/ctl_chat.h"

int chat_talk_init(struct chat_talk *t) {
    *t = (struct chat_talk){.doc = yyjson_mut_doc_new(NULL)};
    t->messages = yyjson_mut_arr(t->doc);
    t->params = yyjson_mut_obj(t->doc);
    return enomem_unless(t->messages && t->params);
}

void chat_talk_deinit(struct chat_talk *t) {
    yyjson_mut_doc_free(t->doc);
    free(t->model);
    free(t->system);
}

void chat_talk_clear(struct chat_talk *t) {
    yyjson_mut_arr_clear(t->messages);
}

int chat_talk_add(struct chat_talk *t, const char *role, const char *text, size_t len,
                  const struct buf *reasoning) {
    assert(t->messages);
    yyjson_mut_val *m = yyjson_mut_arr_add_obj(t->doc, t->messages);
    bool ok = m && yyjson_mut_obj_add_strcpy(t->doc, m, "role", role) &&
              yyjson_mut_obj_add_strncpy(t->doc, m, "content", len ? text : "", len);

    if (ok && reasoning && reasoning->len)
        ok = yyjson_mut_obj_add_strncpy(t->doc, m, "reasoning_content", reasoning->data,
                                        reasoning->len);
    return enomem_unless(ok);
}

bool chat_talk_drop(struct chat_talk *t, const char *role) {
    yyjson_mut_val *last = yyjson_mut_arr_get_last(t->messages);

    if (!yyjson_mut_equals_str(yyjson_mut_obj_get(last, "role"), role))
        return false;
    yyjson_mut_arr_remove_last(t->messages);
    return true;
}

int chat_talk_set(struct chat_talk *t, const char *name, const char *text) {
    yyjson_mut_val *key = yyjson_mut_strcpy(t->doc, name), *value;

    yyjson_mut_obj_remove_key(t->params, name);
    if (!*text)
        return 0;
    yyjson_doc *doc = yyjson_read(text, strlen(text), 0);
    if (doc)
        value = yyjson_val_mut_copy(t->doc, yyjson_doc_get_root(doc));
    else
        value = yyjson_mut_strcpy(t->doc, text);
    yyjson_doc_free(doc);
    return enomem_unless(key && value && yyjson_mut_obj_add(t->params, key, value));
}

/* Makes an array of the system prompt and the messages in @d. NULL: no memory. */
static yyjson_mut_val *with_system(yyjson_mut_doc *d, const struct chat_talk *t) {
    yyjson_mut_val *list = yyjson_mut_arr(d), *m;
    size_t i, n;

    if (t->system && *t->system) {
        m = yyjson_mut_arr_add_obj(d, list);
        if (!yyjson_mut_obj_add_str(d, m, "role", "system") ||
            !yyjson_mut_obj_add_str(d, m, "content", t->system))
            return NULL;
    }
    yyjson_mut_arr_foreach(t->messages, i, n, m) {
        if (!yyjson_mut_arr_append(list, yyjson_mut_val_mut_copy(d, m)))
            return NULL;
    }
    return list;
}

/* Writes @d; the caller frees *out. Returns 0, -ENOMEM, or -EILSEQ if a text is not UTF-8. */
static int write_doc(const yyjson_mut_doc *d, yyjson_write_flag flags, char **out, size_t *len) {
    yyjson_write_err e;

    *out = yyjson_mut_write_opts(d, flags, NULL, len, &e);
    if (*out)
        return 0;
    if (e.code == YYJSON_WRITE_ERROR_INVALID_STRING)
        return -EILSEQ;
    return -ENOMEM;
}

int chat_talk_body(const struct chat_talk *t, char **out, size_t *len) {
    assert(t->messages && t->params);
    CLEANUP(json_mut_doc_freep) yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = yyjson_mut_val_mut_copy(d, t->params), *messages = with_system(d, t);
    yyjson_mut_val *options = yyjson_mut_obj(d);

    yyjson_mut_doc_set_root(d, root);
    if (!root || !yyjson_mut_obj_add_val(d, root, "messages", messages) ||
        (t->model && !yyjson_mut_obj_add_str(d, root, "model", t->model)) ||
        !yyjson_mut_obj_add_bool(d, root, "stream", true) ||
        !yyjson_mut_obj_add_bool(d, options, "include_usage", true) ||
        !yyjson_mut_obj_add_val(d, root, "stream_options", options))
        return -ENOMEM;
    return write_doc(d, 0, out, len);
}

int chat_talk_save(const struct chat_talk *t, const char *path) {
    CLEANUP(json_mut_doc_freep) yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = yyjson_mut_obj(d);
    CLEANUP(freep) char *text = NULL;
    size_t len = 0;

    yyjson_mut_doc_set_root(d, root);
    if (!root || (t->model && !yyjson_mut_obj_add_str(d, root, "model", t->model)) ||
        !yyjson_mut_obj_add_val(d, root, "params", yyjson_mut_val_mut_copy(d, t->params)) ||
        !yyjson_mut_obj_add_val(d, root, "messages", with_system(d, t)))
        return -ENOMEM;
    TRY(write_doc(d, YYJSON_WRITE_PRETTY, &text, &len));
    return cli_write_file(path, 0600, text, len, false);
}

/* Copies the messages of a file into @t, which is empty. Returns 0 or -errno. */
static int chat_copy_messages(struct chat_talk *t, yyjson_val *list) {
    assert(yyjson_mut_arr_size(t->messages) == 0 && !t->system);
    JSON_EACH_AT(i, m, list) {
        const char *role = json_cstr(yyjson_obj_get(m, "role"));
        yyjson_val *content = yyjson_obj_get(m, "content");

        if (!role || !yyjson_is_str(content))
            return -EBADMSG;
        if (strcmp(role, "system") == 0 && i == 0) {
            if (!json_cstr(content))
                return -EBADMSG;
            t->system = strdup(json_cstr(content));
            if (!t->system)
                return -ENOMEM;
        } else {
            TRY(chat_talk_add(t, role, json_text(content), json_len(content), NULL));
        }
    }
    return 0;
}

int chat_talk_load(struct chat_talk *t, const char *path) {
    CLEANUP(json_doc_freep) yyjson_doc *doc = yyjson_read_file(path, 0, NULL, NULL);
    yyjson_val *root = yyjson_doc_get_root(doc), *messages = yyjson_obj_get(root, "messages");
    yyjson_val *params = yyjson_obj_get(root, "params");
    CLEANUP(chat_talk_deinit) struct chat_talk next = {0};

    if (!doc && access(path, R_OK) < 0)
        return -errno;
    if (!yyjson_is_arr(messages))
        return -EBADMSG;
    TRY(chat_talk_init(&next));
    if (yyjson_is_obj(params))
        next.params = yyjson_val_mut_copy(next.doc, params);
    if (!next.params)
        return -ENOMEM;
    TRY(chat_copy_messages(&next, messages));
    next.model = STEAL(t->model);
    struct chat_talk old = *t;
    *t = next;
    next = old;
    return 0;
}
