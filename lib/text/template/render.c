/*
 * render - the public functions: parsing makes an immutable template, and each rendering has memory
 * and fuel of its own. The variables are converted before the rendering begins, so that lists and
 * dicts have an identity and can be changed by the template; their strings stay in the JSON
 * document.
 */

#include "text/template/render.h"

#include <assert.h>
#include <errno.h>

#include "base/jobs.h"
#include "base/json_value.h"
#include "base/try.h"
#include "text/template.h"

#define OUTPUT_MAX (16u << 20)
#define FUEL_PER_MEMBER 50000u /* looks back through a history of some thousand messages */
#define FUEL_PER_BYTE 4u       /* some 60 passes over each text */
#define AST_BYTES_MAX (256u << 20)
/* most memory of a rendering, besides four times the output's limit */
#define RENDER_BYTES_MAX (64u << 20)

/* Reports the words of raise_exception(), if it has any. Long words are cut between two
 * characters. */
int render_fail_exact(struct render *rd, const struct tstr *message) {
    size_t len = MIN(message->len, sizeof(rd->err->message) - 1);

    while (len < message->len && len && ((unsigned char)message->data[len] & 0xc0) == 0x80)
        len--;
    rd->failed = true;
    if (len == 0)
        return err_set(rd->err, 400, "messages", "The chat template refuses the messages.");
    return err_set(rd->err, 400, "messages", "%.*s", (int)len, message->data);
}

/* Parses a template. All that parsing makes lives in the template's arena and is freed with it. */
int template_new(struct template **out, const char *source, size_t len, struct err *err) {
    CLEANUP(template_freep) struct template *t = calloc(1, sizeof(*t));

    if (!t)
        return -ENOMEM;
    arena_init(&t->arena, AST_BYTES_MAX);
    if (len > TEMPLATE_SOURCE_MAX)
        return err_set(err, 400, "", "chat template: larger than %u bytes", TEMPLATE_SOURCE_MAX);
    int r = parser_parse(t, source, len, err);

    if (r && t->arena.starved) {
        if (err)
            memset(err, 0, sizeof(*err));
        return -ENOMEM;
    }
    if (r)
        return r;
    *out = STEAL(t);
    return 0;
}

struct template *template_free(struct template *t) {
    if (t)
        arena_deinit(&t->arena);
    free(t);
    return NULL;
}

static int render_convert(struct render *rd, yyjson_val *j, bool user, uint32_t depth,
                          struct value *out);

/* Converts an array or object, which is marked as a whole if it comes from the user (see
 * tojson.c). */
static int convert_array(struct render *rd, yyjson_val *j, bool user, uint32_t depth,
                         struct value *out) {
    struct seq *s = job_pause() < 0 ? NULL : seq_new(rd, SEQ_LIST, (uint32_t)yyjson_arr_size(j));
    yyjson_arr_iter it = yyjson_arr_iter_with(j);

    if (!s)
        return -1;
    s->user = user;
    for (yyjson_val *m; (m = yyjson_arr_iter_next(&it)); s->n++) {
        TRY(render_convert(rd, m, user, depth, &s->v[s->n]));
    }
    *out = value_seq(s);
    return 0;
}

/* Resolves equal keys as Python does: the first determines the place and the last the value. */
static int convert_object(struct render *rd, yyjson_val *j, bool user, uint32_t depth,
                          struct value *out) {
    struct dict *d = job_pause() < 0 ? NULL : dict_new(rd, (uint32_t)yyjson_obj_size(j));
    yyjson_obj_iter it = yyjson_obj_iter_with(j);

    if (!d)
        return -1;
    d->user = user;
    for (yyjson_val *k; (k = yyjson_obj_iter_next(&it));) {
        const struct tstr *key = tstr_new(rd, json_text(k), json_len(k), user);
        struct value v;

        if (!key || render_convert(rd, yyjson_obj_iter_get_val(k), user, depth, &v) ||
            dict_set(rd, d, value_str(key), v))
            return -1;
    }
    *out = value_dict(d);
    return 0;
}

static int render_convert(struct render *rd, yyjson_val *j, bool user, uint32_t depth,
                          struct value *out) {
    if (depth >= VALUE_NESTING_MAX)
        return render_fail(rd, "the variables are nested too deep");
    switch (yyjson_get_type(j)) {
    case YYJSON_TYPE_BOOL:
        *out = value_bool(yyjson_get_bool(j));
        return 0;
    case YYJSON_TYPE_NUM:
        if (yyjson_is_real(j))
            *out = value_float(yyjson_get_real(j));
        else if (yyjson_is_uint(j) && yyjson_get_uint(j) > INT64_MAX)
            *out = (struct value){.type = V_UINT, .u = yyjson_get_uint(j)};
        else
            *out = value_int(yyjson_get_sint(j));
        return 0;
    case YYJSON_TYPE_RAW: /* a number too large for 64 bits, which the JSON reader kept as text */
        *out = value_float(strtod(json_digits(j), NULL));
        return 0;
    case YYJSON_TYPE_STR: {
        const struct tstr *s = tstr_new(rd, json_text(j), json_len(j), user);

        *out = value_str(s);
        if (!s)
            return -1;
        return 0;
    }
    case YYJSON_TYPE_ARR:
        return convert_array(rd, j, user, depth + 1, out);
    case YYJSON_TYPE_OBJ:
        return convert_object(rd, j, user, depth + 1, out);
    default:
        *out = value_none();
        return 0;
    }
}

int render_from_json(struct render *rd, yyjson_val *j, bool user, struct value *out) {
    return render_convert(rd, j, user, 0, out);
}

/* Removes the mark of the user's text from roles that are plain words: the template may make a
 * special token with such a role ("<|user|>"). */
static int trust_roles(struct render *rd, struct value messages) {
    if (!value_is_seq(messages, SEQ_LIST))
        return 0;
    for (uint32_t i = 0; i < messages.seq->n; i++) {
        struct value m = messages.seq->v[i], role;
        int r = m.type == V_DICT ? dict_get_str(rd, m.dict, TSTR_STATIC("role"), &role) : 0;
        bool plain = r > 0 && role.type == V_STR && role.s->len <= 64;

        for (size_t k = 0; plain && k < role.s->len; k++) {
            char c = role.s->data[k];

            plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    c == '_' || c == '-';
        }
        if (r < 0)
            return -1;
        if (!plain)
            continue;
        const struct tstr *s = tstr_new(rd, role.s->data, role.s->len, false);

        if (!s || dict_set(rd, m.dict, value_str(TSTR_STATIC("role")), value_str(s)))
            return -1;
    }
    return 0;
}

/* Finds the dictionary that has the content @trust refers to, and its key: the message, or its only
 * part. Returns a negative number if there is no memory. */
static int find_content(struct render *rd, struct value *owner, const struct tstr **key,
                        struct value *content) {
    *key = TSTR_STATIC("content");
    TRY(dict_get_str(rd, owner->dict, *key, content));
    if (!value_is_seq(*content, SEQ_LIST))
        return 0;
    assert(content->seq->n == 1 && content->seq->v[0].type == V_DICT);
    *owner = content->seq->v[0];
    *key = TSTR_STATIC("text");
    return dict_get_str(rd, owner->dict, *key, content);
}

/* Marks the content of message @trust[0].message. Returns how many of the @n ranges belong to that
 * message, or a negative number. */
static int trust_content(struct render *rd, const struct seq *messages,
                         const struct template_trust *trust, size_t n) {
    struct value m, content = value_none();
    struct sink *k = sink_new(rd);
    size_t at = 0, i = 0;

    assert(trust->message < messages->n);
    m = messages->v[trust->message];
    assert(m.type == V_DICT);
    const struct tstr *key;
    if (!k || find_content(rd, &m, &key, &content) < 0)
        return -1;
    assert(content.type == V_STR);
    for (; i < n && trust[i].message == trust->message; i++) {
        assert(at <= trust[i].begin && trust[i].begin < trust[i].end &&
               trust[i].end <= content.s->len);
        TRY(sink_add(rd, k, content.s->data + at, trust[i].begin - at, true));
        TRY(sink_add(rd, k, content.s->data + trust[i].begin, trust[i].end - trust[i].begin,
                     false));
        at = trust[i].end;
    }
    TRY(sink_add(rd, k, content.s->data + at, content.s->len - at, true));
    const struct tstr *s = sink_string(rd, k);

    if (!s || dict_set(rd, m.dict, value_str(key), value_str(s)))
        return -1;
    return (int)i;
}

static int trust_contents(struct render *rd, struct value messages,
                          const struct template_opts *opts) {
    for (size_t i = 0; opts && i < opts->n_trust;) {
        assert(messages.type == V_SEQ);
        int n = trust_content(rd, messages.seq, opts->trust + i, opts->n_trust - i);

        if (n < 0)
            return -1;
        i += (size_t)n;
    }
    return 0;
}

static bool is_special_token(const struct tstr *name) {
    static const char *const names[] = {"bos_token", "eos_token", "pad_token", "unk_token"};

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        if (tstr_is(name, names[i]))
            return true;
    }
    return false;
}

/* Loads the variables that the template mentions. */
static int load_globals(struct render *rd, yyjson_val *vars, const struct template_opts *opts) {
    rd->globals = render_alloc(rd, rd->t->n_symbols, sizeof(*rd->globals));
    if (!rd->globals)
        return -1;
    for (uint32_t i = 0; i < rd->t->n_symbols; i++) {
        const struct symbol *s = rd->t->symbols[i];
        yyjson_val *j = yyjson_obj_getn(vars, s->name->data, s->name->len);

        if (!j || !s->read)
            continue;
        TRY(render_convert(rd, j, !is_special_token(s->name), 0, &rd->globals[i]));
        if (tstr_is(s->name, "messages") &&
            (trust_roles(rd, rd->globals[i]) || trust_contents(rd, rd->globals[i], opts)))
            return -1;
    }
    return 0;
}

/* Gives the caller the text and its marks. */
static int render_deliver(struct render *rd, const struct sink *k, size_t max,
                          struct rendered *out) {
    struct text_range *user = NULL;

    if (k->n_marks) {
        user = calloc(k->n_marks, sizeof(*user));
        if (!user)
            return -ENOMEM;
        memcpy(user, k->marks, k->n_marks * sizeof(*user));
    }
    buf_init(&out->text, max);
    int r = buf_add(&out->text, k->data, k->len);

    if (r) {
        free(user);
        buf_deinit(&out->text);
        return r;
    }
    out->user = user;
    out->n_user = k->n_marks;
    return 0;
}

/* Adds the bytes of all texts in @v, up to @depth levels deep. */
static uint64_t text_bytes(yyjson_val *v, uint32_t depth) {
    uint64_t sum = yyjson_is_str(v) ? json_len(v) : 0;
    size_t i, n;
    yyjson_val *key, *m;

    if (!depth || !yyjson_is_ctn(v) || job_pause() < 0)
        return sum;
    yyjson_arr_foreach(v, i, n, m) sum += text_bytes(m, depth - 1);
    yyjson_obj_foreach(v, i, n, key, m) sum += text_bytes(m, depth - 1);
    return sum;
}

uint64_t template_fuel(yyjson_val *vars) {
    uint64_t members = yyjson_arr_size(yyjson_obj_get(vars, "messages")) +
                       yyjson_arr_size(yyjson_obj_get(vars, "tools"));
    uint64_t fuel = TEMPLATE_FUEL + members * FUEL_PER_MEMBER +
                    text_bytes(vars, VALUE_NESTING_MAX) * FUEL_PER_BYTE;

    return MIN(fuel, (uint64_t)TEMPLATE_FUEL_MAX);
}

/* Renders with local state only: the template is read-only, and the arena is freed at one place. */
int template_render(const struct template *t, yyjson_val *vars, const struct template_opts *opts,
                    struct rendered *out, struct err *err) {
    struct err unused;
    uint64_t fuel = opts && opts->fuel ? opts->fuel : template_fuel(vars);
    size_t max = opts && opts->max_output ? opts->max_output : OUTPUT_MAX;
    struct render rd = {.t = t,
                        .fuel = fuel,
                        .now_unix = opts ? opts->now_unix : 0,
                        .err = err ? err : &unused,
                        .line = 1};

    arena_init(&rd.arena, RENDER_BYTES_MAX + (max > SIZE_MAX / 8 ? SIZE_MAX / 2 : 4 * max));
    rd.hash_seed = (uintptr_t)&rd ^ (uint64_t)(uintptr_t)vars << 20;
    rd.out = sink_new(&rd);
    rd.scope = scope_new(&rd, NULL);
    int r = !rd.out || !rd.scope || load_globals(&rd, vars, opts);

    if (!r) {
        rd.out->max = max;
        r = eval_block(&rd, t->body);
        assert(r <= 0 && (r < 0) == rd.failed);
        assert(r < 0 || (rd.depth == 0 && rd.macro_depth == 0));
    }
    if (opts && opts->steps)
        *opts->steps += fuel - render_fuel_left(&rd);
    if (r)
        r = rd.overflow ? -E2BIG : -EINVAL;
    else
        r = render_deliver(&rd, rd.out, max, out);
    arena_deinit(&rd.arena);
    return r;
}

void rendered_deinit(struct rendered *r) {
    buf_deinit(&r->text);
    free(r->user);
    *r = (struct rendered){0};
}
