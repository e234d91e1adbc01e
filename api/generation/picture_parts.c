/*
 * Messages are rendered several times if a template refuses them, and copied and reordered before
 * that. So a part with a picture becomes a small one, {"type": "image_url", "image_url": N}, in
 * which N is the picture's index in request.pictures. No client can write such a part: all parts
 * with pictures that it sends are replaced.
 */

#include "api/generation/picture_parts.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/generation/env.h"
#include "api/generation/image_data.h"
#include "api/generation/picture_fetch.h"
#include "api/generation/picture_table.h"
#include "api/generation/prompt_steps.h"
#include "api/http/json_build.h"
#include "base/json_read.h"
#include "base/try.h"

#define LOW 4u /* "detail": "low" divides the rows of a picture by this */

bool picture_part_is(yyjson_val *part) {
    return json_has(part, "type", "image_url input_image");
}

uint32_t picture_part_index(yyjson_val *part) {
    yyjson_val *v = yyjson_obj_get(part, "image_url");

    assert(yyjson_is_uint(v));
    return (uint32_t)yyjson_get_uint(v);
}

int picture_parts_add(struct gen_request *r, yyjson_val *data, bool low, const char *place,
                      struct err *err) {
    struct request_picture *p;

    if (!yyjson_is_str(data))
        return err_set_code(err, 400, "invalid_value", place, "%s: it must be a string.", place);
    if (r->made.n_pictures == SUBMIT_PICTURES_MAX)
        return err_set_code(err, 400, "too_many_images", place,
                            "A request must have at most %u pictures.", SUBMIT_PICTURES_MAX);
    if (!array_resize(&r->made.pictures, r->made.n_pictures + 1, sizeof(*r->made.pictures)))
        return -ENOMEM;
    p = &r->made.pictures[r->made.n_pictures];
    *p = (struct request_picture){.low = low};
    snprintf(p->place, sizeof(p->place), "%s", place);
    const char *text = json_text(data);
    size_t len = json_len(data);
    bool address = picture_fetch_is_address(text, len) && !memchr(text, 0, len);
    if (address)
        TRY((p->address = strdup(text)) ? 0 : -ENOMEM);
    else
        TRY(image_data_read(text, len, place, &p->file, &p->n_file, err));
    r->made.n_pictures++;
    return 0;
}

/* ---- parts of messages ---- */

bool message_is_result(yyjson_val *m) {
    return json_has(m, "role", "tool function");
}

/* The last message of the user, unless it follows the result of a tool: there agents put what the
 * tool shows. */
size_t picture_parts_asking(yyjson_val *messages) {
    size_t n = yyjson_arr_size(messages), last = n;
    yyjson_val *before = NULL;

    JSON_EACH_AT(i, m, messages) {
        if (json_has(m, "role", "user"))
            last = message_is_result(before) ? n : i;
        before = m;
    }
    return last;
}

struct finding {
    struct prompt_job *job;
    yyjson_mut_doc *doc;
    /* memory was short for it */
    bool failed;
    /* indexes of the part that is being copied */
    size_t message, part;
    /* picture_parts_asking() */
    size_t asks;
};

/* Returns the place of the part in the body; a dialect that has translated the body gives it. */
static const char *picture_part_place(const struct finding *f, yyjson_val *part, char out[96]) {
    const char *given = json_cstr(yyjson_obj_get(part, PICTURE_PLACE));

    if (given)
        snprintf(out, 96, "%s", given);
    else
        snprintf(out, 96, "messages[%zu].content[%zu].image_url", f->message, f->part);
    return out;
}

/* Forgets why a picture was refused that clients repeat, so that a note can stand for it: refusing
 * it again and again would end the conversation. Returns false if the error stays. */
static bool forgive(struct prompt_job *job, bool repeated) {
    bool picture = strncmp(job->err.code, "invalid_", 8) == 0 ||
                   strcmp(job->err.code, "image_too_large") == 0 ||
                   strcmp(job->err.code, "unsupported_parameter") == 0;

    if (!repeated || !picture)
        return false;
    picture_table_count_refused(&job->env->pictures, &job->err);
    job->err = (struct err){0};
    return true;
}

static int picture_read_part(struct finding *f, yyjson_val *part, yyjson_mut_val *to) {
    yyjson_val *v = yyjson_obj_get(part, "image_url"), *inner = yyjson_obj_get(v, "url");
    yyjson_val *detail = json_given(yyjson_is_obj(v) ? v : part, "detail");
    struct gen_request *r = &f->job->request;
    char place[96];

    picture_part_place(f, part, place);
    if (yyjson_obj_get(part, "file_id"))
        return err_set_code(&f->job->err, 400, "unsupported_parameter", place,
                            "%s: file_id is not supported. Send the picture as a data URI.", place);
    if (detail && !yyjson_is_str(detail))
        return err_set_code(&f->job->err, 400, "invalid_value", place,
                            "%s: detail must be \"auto\", \"low\" or \"high\".", place);
    TRY(picture_parts_add(r, yyjson_is_obj(v) ? inner : v, yyjson_equals_str(detail, "low"), place,
                          &f->job->err));
    r->made.pictures[r->made.n_pictures - 1].repeated = f->message != f->asks;
    yyjson_mut_arr_append(to, json_make(f->doc, "{type:'image_url', image_url:%}",
                                        yyjson_mut_uint(f->doc, r->made.n_pictures - 1)));
    return 0;
}

/* Copies a part with a picture. One that is no picture becomes a part that no model reads. */
static int find_part(struct finding *f, yyjson_val *part, yyjson_mut_val *to) {
    int r = picture_read_part(f, part, to);

    if (r == 0 || !forgive(f->job, f->message != f->asks))
        return r;
    yyjson_mut_arr_append(to, json_constant(f->doc, "{type:'file'}"));
    return 0;
}

static int picture_copy_parts(struct finding *f, yyjson_val *parts, yyjson_mut_val *to) {
    JSON_EACH_AT(i, part, parts) {
        f->part = i;
        if (picture_part_is(part))
            TRY(find_part(f, part, to));
        else
            yyjson_mut_arr_append(to, yyjson_val_mut_copy(f->doc, part));
    }
    return 0;
}

static bool has_picture(yyjson_val *m) {
    yyjson_val *content = yyjson_obj_get(m, "content");

    if (json_has(m, "role", "assistant"))
        return false; /* a note replaces pictures that the assistant is said to have shown */
    JSON_EACH(part, content) {
        if (picture_part_is(part))
            return true;
    }
    return false;
}

static int copy_message(struct finding *f, yyjson_val *m, yyjson_mut_val *list) {
    bool pictures = has_picture(m);
    yyjson_mut_val *to;

    if (pictures)
        to = yyjson_mut_obj(f->doc);
    else
        to = yyjson_val_mut_copy(f->doc, m);

    yyjson_mut_arr_append(list, to);
    JSON_MEMBERS(key, v, pictures ? m : NULL) {
        bool content = yyjson_equals_str(key, "content") && yyjson_is_arr(v);
        yyjson_mut_val *copy;

        if (content)
            copy = yyjson_mut_arr(f->doc);
        else
            copy = yyjson_val_mut_copy(f->doc, v);

        yyjson_mut_obj_add(to, yyjson_val_mut_copy(f->doc, key), copy);
        if (content)
            TRY(picture_copy_parts(f, v, copy));
    }
    return 0;
}

static bool any_picture(yyjson_val *messages) {
    JSON_EACH(m, messages) {
        if (has_picture(m))
            return true;
    }
    return false;
}

/* Moves the pictures of the messages to request.pictures; does nothing when it is called again.
 * Returns 0, -ENOMEM, or an error. */
static int find_pictures(struct prompt_job *job) {
    struct gen_request *r = &job->request;
    struct finding f = {.job = job};

    if (!*job->model->sight.text || r->made.seen_messages || !any_picture(r->input.messages))
        return 0;
    f.asks = picture_parts_asking(r->input.messages);
    CLEANUP(json_mut_doc_freep) yyjson_mut_doc *doc = json_doc_new(&f.failed);
    yyjson_mut_val *list = yyjson_mut_arr(doc);
    f.doc = doc;
    JSON_EACH_AT(i, m, r->input.messages) {
        f.message = i;
        TRY(copy_message(&f, m, list));
    }
    TRY(json_doc_seal(doc, list, &r->made.seen_messages));
    r->input.messages = yyjson_doc_get_root(r->made.seen_messages);
    return 0;
}

/* ---- files ---- */

static struct picture_way picture_part_way(const struct prompt_job *job, bool low) {
    const struct api_model *m = job->model->info;
    struct picture_way w = {.projector = *m->projector,
                            .budget = m->picture_budget,
                            .pads = m->picture_pads,
                            .background = m->picture_background};

    w.projector.name = NULL;
    memcpy(w.projector_id, m->projector_id, sizeof(w.projector_id));
    auth_isolation_key(job->env->share_secret, job->isolation_name,
                       job->request.input.cache_salt.data, job->request.input.cache_salt.len,
                       w.isolation_key);
    if (low && !projector_is_fixed(m->projector)) {
        uint32_t most = w.budget.most ? w.budget.most : m->projector->most;
        uint32_t least = w.budget.least ? w.budget.least : m->projector->least;

        w.budget.most = MAX(most / LOW, least);
        w.budget.whole = true;
    }
    return w;
}

/* Checks the addresses of pictures. Returns 0 if there are none, -EINPROGRESS if they can be
 * fetched, or an error. */
static int check_addresses(struct prompt_job *job) {
    const struct picture_fetch_opts *o = &job->env->opts.picture_fetch;
    struct gen_request *r = &job->request;
    int result = 0;

    for (uint32_t i = 0; i < r->made.n_pictures; i++) {
        struct request_picture *p = &r->made.pictures[i];

        if (!p->address || p->unread)
            continue;
        int bad;

        if (picture_fetch_is_on(o))
            bad = picture_fetch_check(o, p->address, p->place, &job->err);
        else /* returns the refusal */
            bad = image_data_read(p->address, strlen(p->address), p->place, NULL, NULL, &job->err);
        if (bad < 0 && !forgive(job, p->repeated))
            return bad;
        p->unread = bad < 0;
        result = p->unread ? result : -EINPROGRESS;
    }
    return result;
}

int picture_parts_fetch(struct prompt_job *job) {
    struct gen_request *r = &job->request;

    for (uint32_t i = 0; i < r->made.n_pictures; i++) {
        struct request_picture *p = &r->made.pictures[i];

        if (!p->address || p->unread)
            continue;
        if (job_pause() < 0)
            return -ECANCELED;
        int bad = picture_fetch(&job->env->opts.picture_fetch, p->address, p->place, &p->file,
                                &p->n_file, &job->err);
        free(p->address);
        p->address = NULL;
        p->unread = bad < 0 && forgive(job, p->repeated);
        if (bad == 0 || p->unread)
            continue;
        if (*job->err.code)
            picture_table_count_refused(&job->env->pictures, &job->err);
        return bad;
    }
    return 0;
}

/* Looks up every picture and decodes those that are new. On the loop (job->quick) none is decoded,
 * because that takes long. A chat shows all of its pictures in one prompt, so once their rows are
 * too many the remaining ones are not decoded. Returns 0, -EAGAIN (a picture must be decoded),
 * -ENOMEM, -ECANCELED or an error. */
static int picture_parts_look(struct prompt_job *job) {
    struct gen_request *r = &job->request;
    struct picture_table *all = &job->env->pictures;
    uint64_t n_rows = 0, free_bytes = PICTURE_REQUEST_FREE;
    uint64_t *unpaid = job->quick ? NULL : &free_bytes; /* NULL: nothing is decoded */

    for (uint32_t i = 0; i < r->made.n_pictures; i++) {
        struct request_picture *p = &r->made.pictures[i];

        if (!p->seen && !p->unread) {
            struct picture_way w = picture_part_way(job, p->low);

            if (job_pause() < 0)
                return -ECANCELED;
            int bad = picture_table_look(all, &w, unpaid, &p->file, p->n_file, p->place, &p->seen,
                                         &job->err);
            if (bad < 0 && !forgive(job, p->repeated))
                return bad;
            p->unread = bad < 0;
        }
        if (p->unread)
            continue;
        n_rows += p->seen->shown.n_rows;
        if (r->input.messages && n_rows > job->max_tokens)
            return prompt_too_long(job, "messages", job->max_tokens, &job->err);
    }
    return 0;
}

static int picture_parts_read(struct prompt_job *job) {
    TRY(find_pictures(job));
    TRY(check_addresses(job));
    return picture_parts_look(job);
}

int picture_parts_resolve(struct prompt_job *job) {
    int r = picture_parts_read(job);

    if (r < 0 && r != -EAGAIN && r != -EINPROGRESS && *job->err.code)
        picture_table_count_refused(&job->env->pictures, &job->err);
    return r;
}

/* ---- prompts ---- */

int picture_parts_order(struct gen_request *r, const uint32_t *order, uint32_t n) {
    r->made.n_shown = n;
    r->made.order = n ? arena_alloc_array(&r->arena, n, sizeof(*order)) : NULL;
    if (n == 0)
        return 0;
    if (!r->made.order)
        return -ENOMEM;
    memcpy(r->made.order, order, n * sizeof(*order));
    return 0;
}

static uint32_t count_marks(const struct tokens *t, int32_t mark) {
    uint32_t n = 0;

    for (size_t i = 0; i < t->n; i++)
        n += t->id[i] == mark;
    return n;
}

/* Replaces the @n marks of @p by the rows of pictures @first and following. */
static int picture_expand_content(struct prompt_job *job, struct prompt *p, uint32_t first,
                                  uint32_t n) {
    const struct sight *s = &job->model->sight;
    struct tokens out = {.max = p->tokens.max};
    struct arena *a = &job->request.arena;
    int r = 0;

    p->pictures = arena_alloc_array(a, n, sizeof(*p->pictures));
    p->seen = arena_alloc_array(a, n, sizeof(struct picture_seen *));
    if (!p->pictures || !p->seen)
        return -ENOMEM;
    for (size_t i = 0; i < p->tokens.n && r == 0; i++) {
        bool is_mark = p->tokens.id[i] == s->mark;

        if (!is_mark || s->stays)
            r = tokens_add(&out, p->tokens.id[i]);
        if (!is_mark)
            continue;
        const struct gen_request *request = &job->request;
        uint32_t next = first + p->n_pictures;
        struct picture_seen *seen =
            request->made.pictures[request->made.order ? request->made.order[next] : next].seen;
        struct submit_picture *to = &p->pictures[p->n_pictures];
        *to = seen->shown;
        to->at = (uint32_t)out.n;
        for (uint32_t k = 0; k < to->n_rows && r == 0; k++)
            r = tokens_add(&out, s->mark);
        p->seen[p->n_pictures++] = seen;
    }
    if (r < 0) {
        tokens_deinit(&out);
        if (r != -EMSGSIZE)
            return r;
        return prompt_too_long(job, "messages", job->max_tokens, &job->err);
    }
    assert(p->n_pictures == n);
    tokens_deinit(&p->tokens);
    p->tokens = out;
    return 0;
}

/* Returns the number of pictures for which a note stands. */
static uint32_t n_unread(const struct gen_request *r) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < r->made.n_pictures; i++)
        n += r->made.pictures[i].unread;
    return n;
}

int picture_parts_expand(struct prompt_job *job) {
    const struct gen_request *request = &job->request;
    uint32_t done = 0, n = request->made.order ? request->made.n_shown : request->made.n_pictures;

    for (uint32_t i = 0; i < job->n_prompts && n > 0; i++) {
        struct prompt *p = &job->prompts[i];
        uint32_t has = count_marks(&p->tokens, job->model->sight.mark);
        if (has > 0 && done + has <= n)
            TRY(picture_expand_content(job, p, done, has));
        done += has;
    }
    if (done + n_unread(request) == request->made.n_pictures)
        return 0;
    return err_set_code(&job->err, 400, "invalid_value", job->chat ? "messages" : "prompt",
                        "The request has %u pictures, and its prompt has places for %u: the "
                        "model's chat template leaves some out, or the prompt has the model's own "
                        "tokens for pictures.",
                        request->made.n_pictures, done);
}
