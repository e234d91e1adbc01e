/*
 * call - binds the arguments of calls to the parameters of built-ins and macros, and has the global
 * functions.
 *
 * A built-in names its parameters in one string ("width first blank"). Its arguments, positional or
 * by keyword, are sorted into an array in that order, and the function only sees the array. A
 * built-in that takes any arguments ("*") reads them as they were written.
 *
 * A macro's body runs in a scope whose parent is the scope where the macro was made, not the
 * caller's. Its result is the text that it wrote.
 */

#include <assert.h>
#include <string.h>
#include <time.h>

#include "base/try.h"
#include "text/template.h"
#include "text/template/render.h"

#define RANGE_MAX 100000 /* most elements of range(), as in Jinja's sandbox */

/* Returns the number of parameter @name in the list @params, or -1. */
static int param_number(const char *params, const struct tstr *name) {
    for (int i = 0; *params; i++) {
        size_t len = strcspn(params, " ");

        if (len == name->len && memcmp(params, name->data, len) == 0)
            return i;
        params += len + (params[len] == ' ');
    }
    return -1;
}

/* Counts the names in @params, which single blanks separate. */
static uint32_t count_params(const char *params) {
    uint32_t n = *params != 0;

    for (; *params; params++)
        n += *params == ' ';
    return n;
}

int call_builtin(struct render *rd, const struct builtin *b, const char *kind, struct value self,
                 const struct args *args, struct value *out) {
    struct call c = {.self = self, .how = b->how, .args = args};

    if (b->params[0] != '*') {
        uint32_t n_params = args->n_pos ? count_params(b->params) : 0;

        if (args->n_pos > n_params)
            return render_fail(rd, "%s %s() takes at most %u arguments (%u given)", kind, b->name,
                               n_params, args->n_pos);
        assert(n_params <= CALL_ARGS_MAX && b->required <= CALL_ARGS_MAX);
        for (uint32_t i = 0; i < args->n_pos; i++)
            c.a[i] = args->pos[i];
        for (uint32_t i = 0; i < args->n_kw; i++) {
            const struct tstr *name = args->kw[i].name;
            int at = param_number(b->params, name);

            if (at < 0)
                return render_fail(rd, "%s %s() got an unexpected keyword argument '%.*s'", kind,
                                   b->name, (int)MIN(name->len, (size_t)80), name->data);
            if (c.a[at].type != V_MISSING)
                return render_fail(rd, "%s %s() got multiple values for argument '%.*s'", kind,
                                   b->name, (int)MIN(name->len, (size_t)80), name->data);
            assert(at < (int)CALL_ARGS_MAX);
            c.a[at] = args->kw[i].v;
        }
        for (int i = 0; i < b->required; i++) {
            if (c.a[i].type == V_MISSING)
                return render_fail(rd, "%s %s() misses a required argument", kind, b->name);
        }
    }
    return b->fn(rd, &c, out);
}

/* Calls a filter or test. One that does not exist is an error here and not when the template is
 * parsed, since it may be in a branch that is never taken. */
int call_named(struct render *rd, const char *kind, const struct builtin *b,
               const struct tstr *name, struct value self, const struct args *args,
               struct value *out) {
    if (!b)
        return render_fail(rd, "no %s named '%.*s'", kind, (int)MIN(name->len, (size_t)80),
                           name->data);
    return call_builtin(rd, b, kind, self, args, out);
}

/* Returns the first keyword argument @name, or NULL. */
static const struct named_value *find_kwarg(const struct args *args, const struct tstr *name) {
    for (uint32_t i = 0; i < args->n_kw; i++) {
        if (tstr_equal(args->kw[i].name, name))
            return &args->kw[i];
    }
    return NULL;
}

/* Binds the parameters of a macro in @scope. Defaults are evaluated in that scope, too, so that
 * they see the parameters before them. */
static int bind_params(struct render *rd, const struct macro *def, const struct args *args,
                       struct scope *scope) {
    uint32_t i = 0;

    for (const struct param *p = def->params; p; p = p->next, i++) {
        const struct named_value *kw = find_kwarg(args, p->name);
        struct value v = value_undefined(p->name, V_MISSING);

        if (i < args->n_pos && kw)
            return render_fail(rd, "macro '%.*s' got multiple values for argument '%.*s'",
                               (int)def->name->len, def->name->data, (int)p->name->len,
                               p->name->data);
        if (i < args->n_pos)
            v = args->pos[i];
        else if (kw)
            v = kw->v;
        else if (p->def && eval_expr(rd, p->def, &v))
            return -1;
        TRY(scope_set(rd, scope, p->sym, v));
    }
    return 0;
}

static bool is_param(const struct macro *def, const struct tstr *name) {
    for (const struct param *p = def->params; p; p = p->next) {
        if (tstr_equal(p->name, name))
            return true;
    }
    return false;
}

/* Refuses arguments that no parameter takes. */
static int check_args(struct render *rd, const struct macro *def, const struct args *args) {
    TRY(render_charge(rd, (uint64_t)(args->n_kw + 1) * (def->n_params + 1) / 8));
    if (args->n_pos > def->n_params && !(def->reads & MACRO_VARARGS))
        return render_fail(rd, "macro '%.*s' takes not more than %u argument(s)",
                           (int)def->name->len, def->name->data, def->n_params);
    for (uint32_t i = 0; i < args->n_kw; i++) {
        const struct tstr *name = args->kw[i].name;

        bool special =
            def->reads & MACRO_KWARGS || (def->reads & MACRO_CALLER && tstr_is(name, "caller"));

        if (!is_param(def, name) && !special)
            return render_fail(rd, "macro '%.*s' takes no keyword argument '%.*s'",
                               (int)def->name->len, def->name->data,
                               (int)MIN(name->len, (size_t)80), name->data);
    }
    return 0;
}

int render_enter_macro(struct render *rd) {
    if (rd->macro_depth >= TEMPLATE_DEPTH)
        return render_fail(rd, "macro calls are nested too deep");
    rd->macro_depth++;
    return 0;
}

/* Makes the tuple of the arguments behind the parameters. */
static int extra_args(struct render *rd, const struct macro *def, const struct args *args,
                      struct value *out) {
    struct seq *s = seq_new(rd, SEQ_TUPLE, 0);

    for (uint32_t i = def->n_params; s && i < args->n_pos; i++)
        TRY(seq_add(rd, s, args->pos[i]));
    *out = value_seq(s);
    if (!s)
        return -1;
    return 0;
}

/* Makes the dict of the keyword arguments that are no parameters. */
static int extra_kwargs(struct render *rd, const struct macro *def, const struct args *args,
                        struct value *out) {
    struct dict *d = dict_new(rd, 0);

    for (uint32_t i = 0; d && i < args->n_kw; i++) {
        const struct tstr *name = args->kw[i].name;

        if (!is_param(def, name) && !(def->reads & MACRO_CALLER && tstr_is(name, "caller")))
            TRY(dict_set(rd, d, value_str(name), args->kw[i].v));
    }
    *out = value_dict(d);
    if (!d)
        return -1;
    return 0;
}

/* Binds what a macro gets only if it reads it: caller, varargs, kwargs. */
static int bind_special(struct render *rd, const struct macro *def, const struct args *args,
                        struct scope *scope) {
    const struct template *t = rd->t;
    struct value v;

    if (def->reads & MACRO_CALLER && !is_param(def, TSTR_STATIC("caller"))) {
        const struct named_value *kw = find_kwarg(args, TSTR_STATIC("caller"));

        v = kw ? kw->v : value_undefined(TSTR_STATIC("caller"), V_MISSING);
        TRY(scope_set(rd, scope, t->sym_caller, v));
    }
    if (def->reads & MACRO_VARARGS) {
        TRY(extra_args(rd, def, args, &v));
        TRY(scope_set(rd, scope, t->sym_varargs, v));
    }
    if (def->reads & MACRO_KWARGS) {
        TRY(extra_kwargs(rd, def, args, &v));
        TRY(scope_set(rd, scope, t->sym_kwargs, v));
    }
    return 0;
}

/* Calls a macro. After a failure it restores nothing, since the rendering ends. */
static int call_macro(struct render *rd, const struct macro_value *m, const struct args *args,
                      struct value *out) {
    struct scope *outer = rd->scope, *scope = scope_new(rd, m->closure);

    if (!scope || render_enter_macro(rd))
        return -1;
    rd->scope = scope;
    if (check_args(rd, m->def, args) || bind_params(rd, m->def, args, scope) ||
        (m->def->reads && bind_special(rd, m->def, args, scope)) ||
        eval_capture(rd, m->def->body, out))
        return -1;
    assert(rd->scope == scope && rd->macro_depth > 0); /* every scope has been left */
    rd->macro_depth--;
    rd->scope = outer;
    scope_end(rd, scope);
    return 0;
}

int call_value(struct render *rd, struct value fn, const struct args *args, struct value *out) {
    switch (fn.type) {
    case V_UNDEFINED:
        return value_fail_undefined(rd, fn);
    case V_MACRO:
        return call_macro(rd, fn.macro, args, out);
    case V_LOOP:
        if (args->n_pos != 1 || args->n_kw)
            return render_fail(rd, "a loop is called with one argument");
        return eval_loop_again(rd, fn.loop, args->pos[0], out);
    case V_FUNCTION:
        return call_builtin(rd, fn.fn, "function", value_none(), args, out);
    case V_METHOD:
        return call_builtin(rd, fn.method->fn, "method", fn.method->self, args, out);
    default:
        return render_fail(rd, "'%s' object is not callable", value_type_name(fn));
    }
}

int dict_fill(struct render *rd, struct dict *d, const struct args *args) {
    struct value *items;
    uint32_t n;

    if (args->n_pos > 1)
        return render_fail(rd, "dict expected at most 1 argument, got %u", args->n_pos);
    if (args->n_pos && args->pos[0].type == V_DICT) {
        const struct dict *from = args->pos[0].dict;

        for (uint32_t i = 0; i < from->n; i++) {
            TRY(dict_set(rd, d, from->e[i].key, from->e[i].value));
        }
    } else if (args->n_pos) {
        TRY(value_items(rd, args->pos[0], &items, &n));
        for (uint32_t i = 0; i < n; i++) {
            if (items[i].type != V_SEQ || items[i].seq->n != 2)
                return render_fail(rd, "cannot convert dictionary update sequence to a dict");
            TRY(dict_set(rd, d, items[i].seq->v[0], items[i].seq->v[1]));
        }
    }
    for (uint32_t i = 0; i < args->n_kw; i++) {
        TRY(dict_set(rd, d, value_str(args->kw[i].name), args->kw[i].v));
    }
    return 0;
}

/* Implements dict() and namespace(). */
static int global_dict(struct render *rd, const struct call *c, struct value *out) {
    struct dict *d = dict_new(rd, c->args->n_kw);

    *out = (struct value){.type = (uint8_t)c->how, .dict = d};
    if (!d)
        return -1;
    return dict_fill(rd, d, c->args);
}

/* Calls a joiner: nothing the first time, then its separator. */
static int joiner_call(struct render *rd, const struct call *c, struct value *out) {
    struct value used, sep;

    if (dict_get_str(rd, c->self.dict, TSTR_STATIC("used"), &used) < 0 ||
        dict_get_str(rd, c->self.dict, TSTR_STATIC("sep"), &sep) < 0)
        return -1;
    *out = value_truth(used) ? sep : value_str(TSTR_STATIC(""));
    return dict_set(rd, c->self.dict, value_str(TSTR_STATIC("used")), value_bool(true));
}

/* Implements joiner(sep): a method whose object has the separator and whether it was used. */
static int global_joiner(struct render *rd, const struct call *c, struct value *out) {
    static const struct builtin call = {"joiner", "", 0, joiner_call, 0, 0};
    struct value sep = c->a[0].type == V_MISSING ? value_str(TSTR_STATIC(", ")) : c->a[0];
    struct method_value *m = render_alloc(rd, 1, sizeof(*m));
    struct dict *d = dict_new(rd, 2);

    if (!m || !d || dict_set(rd, d, value_str(TSTR_STATIC("used")), value_bool(false)) ||
        dict_set(rd, d, value_str(TSTR_STATIC("sep")), sep))
        return -1;
    *m = (struct method_value){&call, (struct value){.type = V_NAMESPACE, .dict = d}};
    *out = (struct value){.type = V_METHOD, .method = m};
    return 0;
}

/* Ends the rendering with the template's own message. */
static int global_raise(struct render *rd, const struct call *c, struct value *out) {
    const struct tstr *s;

    TRY(format_to_str(rd, c->a[0], &s));
    return render_fail_exact(rd, s);
}

/* Implements range(). */
static int global_range(struct render *rd, const struct call *c, struct value *out) {
    wide v[3] = {0, 0, 1};
    const struct value *a = c->a;
    int n = 1;

    while (n < 3 && a[n].type != V_MISSING)
        n++;
    for (int i = 0; i < n; i++) {
        if (a[i].type == V_UNDEFINED)
            return value_fail_undefined(rd, a[i]);
        if (!value_is_int(a[i]))
            return render_fail(rd, "'%s' object cannot be interpreted as an integer",
                               value_type_name(a[i]));
        v[n == 1 ? 1 : i] = value_wide(a[i]);
    }
    if (v[2] == 0)
        return render_fail(rd, "range() arg 3 must not be zero");
    wide span = v[2] > 0 ? v[1] - v[0] : v[0] - v[1], step = v[2] > 0 ? v[2] : -v[2];
    wide count = span > 0 ? (span - 1) / step + 1 : 0;

    if (count > RANGE_MAX)
        return render_fail(rd, "Range too big. The sandbox blocks ranges larger than %d",
                           RANGE_MAX);
    struct seq *s = seq_range(rd, v[0], v[1], v[2], (uint32_t)count);

    *out = value_seq(s);
    if (!s)
        return -1;
    return 0;
}

/* Implements strftime_now(), in UTC, so that a template cannot reveal the server's time zone. */
static int global_strftime_now(struct render *rd, const struct call *c, struct value *out) {
    char fmt[256], *text = render_alloc(rd, 2048, 1);
    time_t now = (time_t)rd->now_unix;
    struct tm tm;

    if (!text)
        return -1;
    if (c->a[0].type != V_STR || c->a[0].s->len >= sizeof(fmt))
        return render_fail(rd, "strftime_now() wants a format string of at most 255 bytes");
    memcpy(fmt, c->a[0].s->data, c->a[0].s->len);
    fmt[c->a[0].s->len] = 0;
    if (!gmtime_r(&now, &tm))
        return render_fail(rd, "strftime_now() has no time");
    size_t n = strftime(text, 2048, fmt, &tm);
    const struct tstr *s = tstr_new(rd, text, n, tstr_user_at(c->a[0].s, 0));

    *out = value_str(s);
    if (!s)
        return -1;
    return 0;
}

/* Sorted by name. */
static const struct builtin GLOBALS[] = {
    {"dict", "*", 0, global_dict, V_DICT, 0},
    {"joiner", "sep", 0, global_joiner, 0, 0},
    {"namespace", "*", 0, global_dict, V_NAMESPACE, 0},
    {"raise_exception", "message", 1, global_raise, 0, 0},
    {"range", "start stop step", 1, global_range, 0, 0},
    {"strftime_now", "format", 1, global_strftime_now, 0, 0},
};

/* Finds a built-in by binary search. Returns NULL if there is none. */
const struct builtin *builtin_find(const struct builtin *table, size_t n, const struct tstr *name) {
    size_t lo = 0, hi = n;

    while (lo < hi) {
        size_t mid = (lo + hi) / 2, len = strlen(table[mid].name);
        int c = memcmp(table[mid].name, name->data, MIN(len, name->len));

        if (!c)
            c = (len > name->len) - (len < name->len);
        if (!c)
            return &table[mid];
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

const struct builtin *global_find(const struct tstr *name) {
    return builtin_find(GLOBALS, ARRAY_SIZE(GLOBALS), name);
}
