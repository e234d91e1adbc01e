/* Symbols, immediates and operands. */

#include "tests/engine/ptx/parser.h"

/* ---- symbols and constants ---- */

struct symbol *add_symbol(struct parser *ps, const char *name, enum symbol_kind kind) {
    struct symbol *s = &ps->symbols[ps->n_symbols++];

    if (ps->n_symbols == 256)
        refuse_at(ps, "too many symbols");
    *s = (struct symbol){.kind = kind};
    snprintf(s->name, sizeof(s->name), "%s", name);
    return s;
}

const struct symbol *find_symbol(const struct parser *ps, const char *name, uint32_t *nth) {
    for (uint32_t i = ps->n_symbols; i-- > ps->first_symbol;) {
        const struct symbol *s = &ps->symbols[i];
        size_t n = strlen(s->name);

        *nth = 0;
        if (s->count == 0 && strcmp(s->name, name) == 0)
            return s;
        if (s->count == 0 || strncmp(s->name, name, n) != 0 || !isdigit((unsigned char)name[n]))
            continue;
        char *rest;
        *nth = (uint32_t)strtoul(name + n, &rest, 10);
        if (!*rest && *nth < s->count)
            return s;
    }
    for (uint32_t i = 0; i < ps->n_statics; i++)
        if (strcmp(ps->statics[i].name, name) == 0)
            return &ps->statics[i];
    return NULL;
}

static int32_t add_const(struct parser *ps, uint64_t value, uint32_t width, bool patched) {
    struct ptx_kernel *k = ps->k;
    size_t step = LANES * width, at;

    for (uint32_t i = 0; patched && i < ps->n_patched; i++)
        if ((ps->patched[i] & 1) == (width == 8))
            return (ps->patched[i] & ~1) | 1;
    for (at = 0; !patched && at < k->const_bytes; at += 64) {
        const uint8_t *c = k->consts + at;
        uint64_t first = 0, last = 0;

        if (at + step > k->const_bytes)
            break;
        memcpy(&first, c, width);
        memcpy(&last, c + step - width, width);
        if (first == value && last == value && memcmp(c, c + width, step - width) == 0)
            return (int32_t)at | 1;
    }
    if (k->const_bytes + step > ps->max_consts) {
        ps->max_consts = 2 * (ps->max_consts + step);
        k->consts = realloc(k->consts, ps->max_consts);
    }
    at = k->const_bytes;
    k->const_bytes += step;
    for (uint32_t i = 0; i < LANES; i++)
        memcpy(k->consts + at + i * width, &value, width);
    if (patched)
        ps->patched[ps->n_patched++] = (int32_t)at | (width == 8);
    return (int32_t)at | 1;
}

static int32_t constant(struct parser *ps, uint64_t value, uint32_t width) {
    if (width < 8)
        value &= (1ull << 8 * width) - 1;
    return add_const(ps, value, width, false);
}

/* ---- operands ---- */

static const struct {
    const char *name;
    enum special s;
} specials[] = {
    {"%tid.x", S_TID_X},
    {"%tid.y", S_TID_Y},
    {"%tid.z", S_TID_Z},
    {"%ntid.x", S_NTID_X},
    {"%ntid.y", S_NTID_Y},
    {"%ntid.z", S_NTID_Z},
    {"%ctaid.x", S_CTAID_X},
    {"%ctaid.y", S_CTAID_Y},
    {"%ctaid.z", S_CTAID_Z},
    {"%nctaid.x", S_NCTAID_X},
    {"%nctaid.y", S_NCTAID_Y},
    {"%nctaid.z", S_NCTAID_Z},
    {"%laneid", S_LANEID},
    {"%warpid", S_WARPID},
    {"%lanemask_lt", S_LANEMASK_LT},
    {"%cluster_ctarank", S_CLUSTER_RANK},
    {"%cluster_nctarank", S_CLUSTER_SIZE},
};

void read_number(struct instruction *in, struct operand *o, const char **p) {
    const char *s = *p;
    char *rest;
    bool minus = *s == '-';

    s += minus;
    o->kind = IMMEDIATE;
    if (s[0] == '0' && strchr("fFdD", s[1]) && s[1]) {
        o->is_float = true;
        o->value = strtoull(s + 2, &rest, 16);
    } else {
        o->value = strtoull(s, &rest, 0);
    }
    if (rest == s)
        refuse(in, "an operand that is no number");
    if (*rest == 'U')
        rest++;
    o->value = minus ? 0 - o->value : o->value;
    *p = rest;
}

void read_name(const char **p, char *name, size_t size) {
    size_t n = 0;

    while (is_name(**p) || (n && **p == '.')) {
        if (n + 1 < size)
            name[n++] = **p;
        (*p)++;
    }
    name[n] = 0;
}

static void name_variable(struct operand *o, const struct symbol *s) {
    o->kind = SYMBOL;
    o->value = (uint64_t)(int64_t)s->first;
    o->space = s->kind == SYM_LOCAL ? LOCAL : s->kind == SYM_PARAM ? PARAM : SHARED;
    /* the address is known only when the kernel is complete */
    o->is_float = s->kind == SYM_DYNAMIC;
}

static void read_named(struct instruction *in, struct operand *o, const char **p) {
    char name[200];
    uint32_t nth;

    read_name(p, name, sizeof(name));
    for (size_t i = 0; i < sizeof(specials) / sizeof(*specials); i++) {
        if (strcmp(name, specials[i].name) != 0)
            continue;
        *o = (struct operand){.kind = REGISTER, .width = 4, .second = -1};
        o->place = SPECIAL_PLACE(specials[i].s);
        return;
    }
    if (strcmp(name, "_") == 0) {
        o->kind = SINK;
        return;
    }
    const struct symbol *s = find_symbol(in->parser, name, &nth);
    if (!s) {
        o->kind = LABEL;
        snprintf(o->label, sizeof(o->label), "%s", name);
    } else if (s->kind != SYM_REGS) {
        name_variable(o, s);
    } else {
        o->kind = s->width == 1 ? PREDICATE : REGISTER;
        o->width = s->width;
        o->place = s->first + (int32_t)(s->width == 1 ? nth : nth * s->width * LANES);
    }
}

static void read_list(struct instruction *in, struct operand *o, const char **p) {
    o->kind = LIST;
    o->first = (uint16_t)in->n_list;
    do {
        struct operand element = {.second = -1};

        (*p)++;
        read_operand(in, &element, p);
        if (in->n_list == MAX_LIST)
            refuse(in, "too many operands");
        in->list[in->n_list++] = element;
        blanks(p);
    } while (**p == ',');
    if (*(*p)++ != '}')
        refuse(in, "a list without its end");
    o->n = (uint16_t)(in->n_list - o->first);
}

static void read_address(struct instruction *in, struct operand *o, const char **p) {
    struct operand base = {.second = -1};

    (*p)++;
    read_operand(in, &base, p);
    blanks(p);
    *o = base;
    if (**p == '+' || **p == '-') {
        struct operand offset = {0};
        *p += **p == '+';
        blanks(p);
        read_number(in, &offset, p);
        o->value = (base.kind == REGISTER ? 0 : base.value) + offset.value;
    } else if (base.kind == REGISTER) {
        o->value = 0;
    }
    blanks(p);
    if (*(*p)++ != ']')
        refuse(in, "an address without its end");
    o->label[0] = base.kind == SYMBOL ? 's' : base.kind == REGISTER ? 'r' : 'i';
    o->kind = ADDRESS;
}

void read_operand(struct instruction *in, struct operand *o, const char **p) {
    blanks(p);
    if (**p == '!') {
        o->negated = true;
        (*p)++;
    }
    if (**p == '{') {
        read_list(in, o, p);
    } else if (**p == '[') {
        read_address(in, o, p);
    } else if (isdigit((unsigned char)**p) || **p == '-') {
        read_number(in, o, p);
    } else {
        read_named(in, o, p);
        blanks(p);
        if (**p == '|') {
            struct operand second = {0};

            (*p)++;
            read_operand(in, &second, p);
            o->second = second.kind == SINK ? -2 : second.place;
        } else if (o->kind == SYMBOL && **p == '+') {
            struct operand offset = {0};

            (*p)++;
            read_number(in, &offset, p);
            o->value += offset.value;
        }
    }
}

/* ---- functions for decoders ---- */

bool has(struct instruction *in, const char *part) {
    for (uint32_t i = 1; i < in->n_parts; i++)
        if (!(in->used >> i & 1) && strcmp(in->part[i], part) == 0) {
            in->used |= 1u << i;
            return true;
        }
    return false;
}

int32_t source_of(struct instruction *in, const struct operand *o, uint32_t width) {
    struct parser *ps = in->parser;

    if (o->kind == IMMEDIATE)
        return constant(ps, o->value, width);
    if (o->kind == REGISTER && o->width != width)
        refuse(in, "a register of another size than the instruction's");
    if (o->kind == REGISTER)
        return o->place;
    refuse(in, "an operand that is neither a register nor a number");
}

int32_t source(struct instruction *in, uint32_t i, uint32_t width) {
    if (i >= in->n_operands)
        refuse(in, "an operand is missing");
    return source_of(in, &in->operand[i], width);
}

int32_t target(struct instruction *in, uint32_t i, uint32_t width) {
    if (i >= in->n_operands || in->operand[i].kind != REGISTER ||
        in->operand[i].place < FIRST_PLACE)
        refuse(in, "an operand that is no register");
    return source(in, i, width);
}

int32_t predicate(struct instruction *in, uint32_t i) {
    if (i >= in->n_operands || in->operand[i].kind != PREDICATE || in->operand[i].negated)
        refuse(in, "an operand that is no predicate");
    return in->operand[i].place;
}

int64_t immediate(struct instruction *in, uint32_t i) {
    if (i >= in->n_operands || in->operand[i].kind != IMMEDIATE)
        refuse(in, "an operand that is no number");
    return (int64_t)in->operand[i].value;
}

/* Returns the place of the base of a variable's address, to which its offset is added. */
static int32_t variable(struct instruction *in, const struct operand *o, uint32_t width) {
    struct parser *ps = in->parser;

    switch (o->space) {
    case LOCAL:
        return SPECIAL_PLACE(S_LOCAL);
    case PARAM:
        return constant(ps, (uint64_t)(uintptr_t)ps->k->params, 8);
    default:
        /* The address of a dynamic variable is patched later; the value shows a use before that. */
        return add_const(ps, o->is_float ? 0xDAE0DAE1DAE2DAE3u : 0, width, o->is_float);
    }
}

void address(struct instruction *in, uint32_t i, uint32_t to) {
    const struct operand *o = &in->operand[i];
    struct op *op = in->op;

    if (i >= in->n_operands || o->kind != ADDRESS || o->label[0] == 'i')
        refuse(in, "an operand that is no address");
    op->imm = (int64_t)o->value;
    if (o->label[0] == 'r') {
        op->r[to] = o->place;
        op->wide = o->width == 8;
        if (o->width < 4 || (o->width == 4 && op->space != SHARED))
            refuse(in, "an address of too few bits");
        return;
    }
    if (op->space == PARAM && o->space == LOCAL) /* parameter of a call */
        op->space = LOCAL;
    if (op->space != o->space)
        refuse(in, "a variable of another state space");
    op->r[to] = variable(in, o, 8);
    op->wide = true;
}

void lists(struct instruction *in, uint32_t from, uint32_t to, uint32_t width) {
    int32_t *all = calloc(MAX_LIST, sizeof(*all));
    uint32_t n = 0;

    for (uint32_t i = from; i <= to; i++) {
        const struct operand *o = &in->operand[i];

        if (i >= in->n_operands)
            refuse(in, "an operand is missing");
        for (uint32_t j = 0; o->kind == LIST && j < o->n; j++) {
            const struct operand *e = &in->list[o->first + j];
            all[n++] = e->kind == SINK ? -2 : source_of(in, e, width);
        }
        if (o->kind != LIST)
            all[n++] = source_of(in, o, width);
    }
    in->op->list = all;
    in->op->n_list = (uint16_t)n;
}

uint32_t type_size(const char *type) {
    return strcmp(type, "pred") == 0 ? 1
           : strstr(type, "64")      ? 8
           : strstr(type, "32")      ? 4
           : strstr(type, "16")      ? 2
                                     : 1;
}

/* Decodes mov of the address of a variable. */
void decode_address_of(struct instruction *in, uint32_t width) {
    const struct operand *o = &in->operand[1];

    if (width < 8 && o->space != SHARED)
        refuse(in, "an address of too few bits");
    in->op->r[1] = variable(in, o, width);
    in->op->imm = (int64_t)o->value;
}
