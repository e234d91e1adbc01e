/* Statements of a function: declarations, labels, instructions, calls. */

#include "tests/engine/ptx/parser.h"

void *grown(void *p, uint32_t n, uint32_t *max, size_t size) {
    if (n < *max)
        return p;
    *max = *max ? 2 * *max : 64;
    p = realloc(p, *max * size);
    if (!p)
        abort();
    return p;
}

static void skip(struct parser *ps) {
    for (;;) {
        if (ps->p[0] == '/' && ps->p[1] == '/') {
            while (*ps->p && *ps->p != '\n')
                ps->p++;
        } else if (*ps->p == '\n') {
            ps->line++;
            ps->p++;
        } else if (isspace((unsigned char)*ps->p)) {
            ps->p++;
        } else {
            return;
        }
    }
}

/* ---- statements ---- */

static const struct form *find_form(const char *name) {
    for (uint32_t i = 0; i < ptx_n_forms; i++)
        if (strcmp(ptx_forms[i].name, name) == 0)
            return &ptx_forms[i];
    for (uint32_t i = 0; i < ptx_n_float_forms; i++)
        if (strcmp(ptx_float_forms[i].name, name) == 0)
            return &ptx_float_forms[i];
    return NULL;
}

static void decode_form(struct instruction *in, const struct form *f) {
    uint32_t n = (uint32_t)strlen(f->operands);

    if (in->n_operands != n)
        refuse(in, "another number of operands");
    in->op->run = f->run;
    for (uint32_t i = 0; i < n; i++) {
        if (f->operands[i] == 'p' && i > 0 && in->operand[i].kind == IMMEDIATE)
            in->op->r[i] = in->operand[i].value ? 1 : 0;
        else if (f->operands[i] == 'p')
            in->op->r[i] = predicate(in, i);
        else if (i == 0)
            in->op->r[i] = target(in, i, (uint32_t)(f->operands[i] - '0'));
        else
            in->op->r[i] = source(in, i, (uint32_t)(f->operands[i] - '0'));
    }
}

static const struct {
    const char *name;
    decode_fn *decode;
} decoders[] = {
    {"setp", decode_setp},         {"cvt", decode_cvt},           {"mov", decode_mov},
    {"cvta", decode_cvta},         {"ld", decode_load},           {"st", decode_store},
    {"atom", decode_atom},         {"red", decode_atom},          {"cp", decode_copy},
    {"mbarrier", decode_mbarrier}, {"mma", decode_matrix},        {"ldmatrix", decode_matrix},
    {"shfl", decode_shfl},         {"vote", decode_vote},         {"bar", decode_sync},
    {"barrier", decode_sync},      {"membar", decode_sync},       {"fence", decode_sync},
    {"wgmma", decode_wgmma},       {"prefetch", decode_prefetch}, {"griddepcontrol", decode_sync},
    {"lop3", decode_lop3},         {"redux", decode_vote},        {"ret", decode_sync},
    {"exit", decode_sync},         {"bra", decode_sync},          {"activemask", decode_vote},
    {"setmaxnreg", decode_sync},   {"match", decode_vote},        {"elect", decode_vote},
    {"mapa", decode_mapa},
};

void use_label(struct instruction *in, const char *name) {
    struct parser *ps = in->parser;

    ps->uses = grown(ps->uses, ps->n_uses, &ps->max_uses, sizeof(*ps->uses));
    struct label *l = &ps->uses[ps->n_uses++];
    *l = (struct label){.inlined = ps->inlined, .at = ps->n_ops};
    snprintf(l->name, sizeof(l->name), "%s", name);
}

bool in_call(const struct instruction *in) {
    return in->parser->inlined != 0;
}

void note_proxies(const struct instruction *in) {
    in->parser->k->proxies = true;
}

/* Refuses instructions that the function's target lacks: those of sm_90 or later, and of sm_90a
 * only. */
static void look_family(const struct instruction *in) {
    static const char *const later[] = {"griddepcontrol",
                                        "cp.async.bulk",
                                        "fence.proxy",
                                        "mbarrier.try_wait",
                                        "mbarrier.arrive.expect_tx",
                                        "barrier.cluster",
                                        "mapa",
                                        "fence.mbarrier_init"};
    const struct function *f = in->parser->function;

    bool is_own = strcmp(in->part[0], "wgmma") == 0 || strcmp(in->part[0], "setmaxnreg") == 0;
    if (is_own && !(f->family == 90 && f->is_own))
        refuse(in, "an instruction of sm_90a alone");
    for (size_t i = 0; i < sizeof(later) / sizeof(*later); i++)
        if (f->family < 90 && strncmp(in->name, later[i], strlen(later[i])) == 0)
            refuse(in, "an instruction that came with sm_90");
}

static void decode(struct instruction *in) {
    const struct form *f = find_form(in->name);

    look_family(in);
    if (f) {
        decode_form(in, f);
        return;
    }
    for (size_t i = 0; i < sizeof(decoders) / sizeof(*decoders); i++)
        if (strcmp(decoders[i].name, in->part[0]) == 0) {
            decoders[i].decode(in);
            if ((in->used | 1) != (1u << in->n_parts) - 1)
                refuse(in, "an unknown form of the instruction");
            return;
        }
    refuse(in, "an unknown instruction");
}

static void split(struct instruction *in, char *buffer) {
    for (char *s = buffer; s;) {
        char *dot = strchr(s, '.');

        if (in->n_parts == 16)
            refuse(in, "an unknown instruction");
        in->part[in->n_parts++] = s;
        if (dot)
            *dot++ = 0;
        s = dot;
    }
}

static void add_label(struct parser *ps, const char *name) {
    ps->labels = grown(ps->labels, ps->n_labels, &ps->max_labels, sizeof(*ps->labels));
    struct label *l = &ps->labels[ps->n_labels++];
    *l = (struct label){.inlined = ps->inlined, .at = ps->n_ops};
    snprintf(l->name, sizeof(l->name), "%s", name);
}

static const struct function *find_function(const struct parser *ps, const char *name) {
    for (uint32_t i = 0; i < ptx_n_functions; i++)
        if (ptx_functions[i].text == ps->function->text && strcmp(ptx_functions[i].name, name) == 0)
            return &ptx_functions[i];
    return NULL;
}

/* Binds the parameters of a function, in order, to the places of the caller's arguments. */
static void bind_params(struct parser *ps, const struct function *f, const int32_t *places,
                        uint32_t n) {
    const char *p = f->params;
    uint32_t i = 0;

    while (*p && *p != ')') {
        char name[200];

        if (*p != '_' && !isalpha((unsigned char)*p)) {
            p += *p == '.' ? strcspn(p, " \t\n") : 1;
            continue;
        }
        read_name(&p, name, sizeof(name));
        if (i == n)
            refuse_at(ps, "a call with too few parameters");
        add_symbol(ps, name, SYM_LOCAL)->first = places[i++];
    }
    if (i != n)
        refuse_at(ps, "a call with too many parameters");
}

/* Inlines call.uni NAME, (P, ..): parses the function's body in place of the call. */
static void inline_call(struct parser *ps, const char *text, const char *behind) {
    char name[256];
    int32_t places[16];
    uint32_t n = 0, nth;

    blanks(&text);
    if (*text == '(')
        refuse_at(ps, "a call of a function that returns something");
    read_name(&text, name, sizeof(name));
    const struct function *f = find_function(ps, name);
    if (!f || f->is_entry)
        refuse_at(ps, "a call of an unknown function");
    while (*text != ';' && n < 16) {
        if (is_name(*text)) {
            read_name(&text, name, sizeof(name));
            const struct symbol *s = find_symbol(ps, name, &nth);
            if (!s)
                refuse_at(ps, "an unknown parameter");
            places[n++] = s->first;
        } else {
            text++;
        }
    }
    uint32_t symbols = ps->n_symbols, first = ps->first_symbol, inlined = ps->inlined,
             line = ps->line, depth = ps->base_depth;
    ps->first_symbol = ps->n_symbols;
    bind_params(ps, f, places, n);
    ps->inlined = ++ps->n_inlined;
    ps->p = f->body;
    ps->base_depth = ps->depth;
    ps->line = 1;
    for (const char *c = f->text; c < f->body; c++)
        ps->line += *c == '\n';
    parse_body(ps);
    add_label(ps, "(return)");
    ps->inlined = inlined;
    ps->n_symbols = symbols;
    ps->first_symbol = first;
    ps->line = line;
    ps->base_depth = depth;
    ps->p = behind;
}

static void read_guard(struct instruction *in, const char **p) {
    struct operand o = {.second = -1};

    in->op->guard = -1;
    if (**p != '@')
        return;
    (*p)++;
    read_operand(in, &o, p);
    if (o.kind != PREDICATE)
        refuse(in, "a guard that is no predicate");
    in->op->guard = o.place;
    in->op->negated = o.negated;
    blanks(p);
}

static void parse_instruction(struct parser *ps, const char *end_of) {
    static struct instruction in;
    struct op op = {.line = ps->line};
    char buffer[160];
    const char *p = ps->p;

    in = (struct instruction){.parser = ps, .op = &op};
    snprintf(in.text, sizeof(in.text), "%.*s", (int)(end_of - p > 190 ? 190 : end_of - p), p);
    read_guard(&in, &p);
    size_t n = strcspn(p, " \t\n;");
    if (n >= sizeof(buffer))
        refuse(&in, "an unknown instruction");
    snprintf(in.name, sizeof(in.name), "%.*s", (int)n, p);
    memcpy(buffer, in.name, sizeof(buffer));
    p += n;
    if (strcmp(in.name, "call.uni") == 0 && op.guard < 0) {
        inline_call(ps, p, end_of + 1);
        return;
    }
    split(&in, buffer);
    for (blanks(&p); *p != ';'; blanks(&p)) {
        if (in.n_operands == MAX_OPERANDS)
            refuse(&in, "too many operands");
        struct operand *o = &in.operand[in.n_operands++];
        o->second = -1;
        read_operand(&in, o, &p);
        blanks(&p);
        if (*p == ',')
            p++;
        else if (*p != ';')
            refuse(&in, "an operand that cannot be read");
    }
    decode(&in);
    op.text = strdup(in.text);
    ps->k->ops = grown(ps->k->ops, ps->n_ops, &ps->max_ops, sizeof(op));
    ps->k->ops[ps->n_ops++] = op;
    for (const char *c = ps->p; c < end_of; c++)
        ps->line += *c == '\n';
    ps->p = end_of + 1;
}

static void declare_registers(struct parser *ps, const char *p) {
    char name[200];
    uint32_t width = 0;

    p += 4;
    blanks(&p);
    if (*p++ != '.')
        refuse_at(ps, "a register without a type");
    size_t n = strcspn(p, " \t");
    snprintf(name, sizeof(name), "%.*s", (int)n, p);
    width = type_size(name);
    p += n;
    while (*p != ';') {
        blanks(&p);
        read_name(&p, name, sizeof(name));
        struct symbol *s = add_symbol(ps, name, SYM_REGS);
        s->width = (uint8_t)width;
        if (*p == '<') {
            s->count = (uint32_t)strtoul(p + 1, (char **)&p, 10);
            p++;
        }
        uint32_t all = s->count ? s->count : 1;
        s->first = width == 1 ? (int32_t)ps->k->n_preds : (int32_t)ps->k->reg_bytes;
        if (width == 1)
            ps->k->n_preds += all;
        else
            ps->k->reg_bytes += (size_t)all * width * LANES;
        blanks(&p);
        if (*p == ',')
            p++;
        else if (*p != ';')
            refuse_at(ps, "a declaration that cannot be read");
    }
}

const char *declare_variable(struct parser *ps, const char *p, enum symbol_kind kind, size_t *bytes,
                             bool dynamic) {
    size_t align = 1, size = 1, count = 1;
    char name[200];
    uint32_t nth;

    while (*p == '.') {
        if (strncmp(p, ".align", 6) == 0) {
            align = strtoul(p + 6, (char **)&p, 10);
        } else {
            snprintf(name, sizeof(name), "%.*s", (int)strcspn(p + 1, " \t"), p + 1);
            if (strpbrk(name, "0123456789"))
                size = type_size(name);
            p += strcspn(p, " \t");
        }
        blanks(&p);
    }
    read_name(&p, name, sizeof(name));
    if (*p == '[')
        count = p[1] == ']' ? 0 : strtoul(p + 1, (char **)&p, 10);
    if (kind == SYM_SHARED && find_symbol(ps, name, &nth))
        return p;
    align = align < size ? size : align;
    *bytes = (*bytes + align - 1) / align * align;
    struct symbol *s =
        kind == SYM_SHARED || dynamic ? &ps->statics[ps->n_statics++] : add_symbol(ps, name, kind);
    if (ps->n_statics == 64)
        refuse_at(ps, "too many shared variables");
    *s = (struct symbol){.kind = dynamic ? SYM_DYNAMIC : kind};
    snprintf(s->name, sizeof(s->name), "%s", name);
    s->first = (int32_t)*bytes + (kind == SYM_SHARED && !dynamic ? (int32_t)SHARED_BASE : 0);
    s->first = dynamic ? 0 : s->first;
    *bytes += size * count;
    return p;
}

static void parse_directive(struct parser *ps) {
    struct ptx_kernel *k = ps->k;

    if (strncmp(ps->p, ".reg", 4) == 0)
        declare_registers(ps, ps->p);
    else if (strncmp(ps->p, ".shared", 7) == 0)
        declare_variable(ps, ps->p, SYM_SHARED, &k->shared_bytes, false);
    else if (strncmp(ps->p, ".local", 6) == 0 || strncmp(ps->p, ".param", 6) == 0)
        declare_variable(ps, ps->p, SYM_LOCAL, &k->local_bytes, false);
    else if (strncmp(ps->p, ".pragma", 7) != 0)
        refuse_at(ps, "an unknown directive");
    while (*ps->p != ';')
        ps->line += *ps->p++ == '\n';
    ps->p++;
}

void parse_body(struct parser *ps) {
    for (skip(ps); *ps->p; skip(ps)) {
        size_t n = 0;

        if (*ps->p == '{') {
            if (ps->depth == MAX_DEPTH - 1)
                refuse_at(ps, "too many braces");
            ps->scopes[ps->depth++] = ps->n_symbols;
            ps->p++;
            continue;
        }
        if (*ps->p == '}') {
            ps->p++;
            if (ps->depth == ps->base_depth)
                return;
            ps->n_symbols = ps->scopes[--ps->depth];
            continue;
        }
        if (*ps->p == '.') {
            parse_directive(ps);
            continue;
        }
        while (is_name(ps->p[n]))
            n++;
        if (n && ps->p[n] == ':') {
            char name[100];

            snprintf(name, sizeof(name), "%.*s", (int)n, ps->p);
            add_label(ps, name);
            ps->p += n + 1;
            continue;
        }
        const char *semicolon = strchr(ps->p, ';');
        if (!semicolon)
            refuse_at(ps, "a statement without an end");
        parse_instruction(ps, semicolon);
    }
    refuse_at(ps, "a function without an end");
}
