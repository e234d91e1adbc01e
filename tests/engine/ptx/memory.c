/* Loads, stores, atomics, and the memory that they may access. */

#include <stdlib.h>

#include "tests/engine/ptx/half.h"
#include "tests/engine/ptx/lanes.h"
#include "tests/engine/ptx/parse.h"

#define MAX_RANGES 65536

static struct range ranges[MAX_RANGES]; /* in ascending order */
static uint32_t n_ranges;

/* Returns the index of the first range that ends after @p. */
static uint32_t range_of(uintptr_t p) {
    uint32_t low = 0, high = n_ranges;

    while (low < high) {
        uint32_t mid = (low + high) / 2;

        if (ranges[mid].to > p)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

void ptx_memory_drop(const void *p) {
    uint32_t i = range_of((uintptr_t)p);

    if (i < n_ranges && ranges[i].from == (uintptr_t)p)
        memmove(ranges + i, ranges + i + 1, (--n_ranges - i) * sizeof(*ranges));
}

void ptx_memory_add(const void *p, size_t n) {
    ptx_memory_drop(p);
    uint32_t i = range_of((uintptr_t)p);

    if (n_ranges == MAX_RANGES)
        abort();
    memmove(ranges + i + 1, ranges + i, (n_ranges++ - i) * sizeof(*ranges));
    ranges[i] = (struct range){(uintptr_t)p, (uintptr_t)p + n};
}

void check_range(struct warp *w, uintptr_t p, size_t n) {
    if (p >= w->last.from && p + n <= w->last.to)
        return;
    uint32_t i = range_of(p);
    if (i == n_ranges || p < ranges[i].from || p + n > ranges[i].to)
        fail(w->op, "an access of %zu bytes at %#lx, which is not allocated", n, (unsigned long)p);
    w->last = ranges[i];
}

static void touch(struct block *b, const struct op *o, uint64_t address, size_t n, int dirty) {
    for (uint64_t g = address / 16; g <= (address + n - 1) / 16; g++) {
        if (b->dirty[g] & COMING)
            fail(o, "an access of %#lx, where a copy in bulk is on its way",
                 (unsigned long)(g * 16));
        b->dirty[g] |= (uint8_t)dirty;
    }
}

uint8_t *shared_of(struct warp *w, struct block *b, uint64_t address, size_t n, size_t align) {
    if (address < SHARED_BASE || address + n > b->shared_end || address + n < address)
        fail(w->op, "an access of %zu bytes at %#lx of %#x bytes of shared memory", n,
             (unsigned long)address, b->shared_end);
    if (address % align)
        fail(w->op, "an access of shared memory at %#lx, no multiple of %zu",
             (unsigned long)address, align);
    return b->shared + address;
}

uint8_t *shared_at(struct warp *w, uint64_t address, size_t n, size_t align, int dirty) {
    uint8_t *p = shared_of(w, w->block, address, n, align);

    if (w->block->kernel->proxies && dirty)
        touch(w->block, w->op, address, n, dirty);
    return p;
}

struct block *block_of(struct warp *w, uint64_t *address) {
    uint64_t window = *address / CLUSTER_WINDOW;

    if (window == 0)
        return w->block;
    if (window > w->block->n_ranks)
        fail(w->op, "an address of no block of the cluster");
    struct block *b = &w->block->cluster[window - 1];
    if (has_ended(b))
        fail(w->op, "shared memory of a block that has ended");
    *address %= CLUSTER_WINDOW;
    return b;
}

static uint8_t *generic_at(struct warp *w, const struct op *o, uint64_t address, size_t n,
                           bool writes) {
    struct block *b = w->block;
    uint64_t shared = (uint64_t)(uintptr_t)b->shared;

    if (address - shared < SHARED_MAX) {
        if (o->space == GLOBAL)
            fail(o, "shared memory where device memory is said to be");
        return shared_at(w, address - shared, n, n, writes ? DIRTY_WRITTEN : DIRTY_READ);
    }
    if (address % n)
        fail(o, "an access at %#lx, no multiple of %zu", (unsigned long)address, n);
    check_range(w, (uintptr_t)address, n);
    if (writes && b->launch->early && !w->waited && o->space != LOCAL)
        fail(o, "a kernel writes before it has waited for the one before");
    return (uint8_t *)(uintptr_t)address; // NOLINT
}

static inline uint64_t lane_address(struct warp *w, int32_t at, bool wide, int64_t imm,
                                    uint32_t lane) {
    const void *p = place(w, at);

    return (wide ? ((const uint64_t *)p)[lane] : ((const uint32_t *)p)[lane]) + (uint64_t)imm;
}

static inline uint8_t *access_at(struct warp *w, const struct op *o, uint32_t lane, size_t n,
                                 bool writes) {
    uint64_t address = lane_address(w, o->r[0], o->wide, o->imm, lane);

    if (o->space == SHARED)
        return shared_at(w, address, n, n, writes ? DIRTY_WRITTEN : DIRTY_READ);
    return generic_at(w, o, address, n, writes);
}

/* ---- ld and st ---- */

/* Loads to registers of the element's size. */
static inline __attribute__((always_inline)) void load_plain(struct warp *w, const struct op *o,
                                                             uint32_t m, uint32_t size) {
    uint32_t n = o->n_list;
    uint8_t *d[4];

    for (uint32_t i = 0; i < n; i++)
        d[i] = o->list[i] == -2 ? NULL : place(w, o->list[i]);
    for (uint32_t rest = m; rest; rest &= rest - 1) {
        uint32_t l = (uint32_t)__builtin_ctz(rest);
        uint8_t v[32];

        memcpy(v, access_at(w, o, l, (size_t)size * n, false), (size_t)size * n);
        for (uint32_t i = 0; i < n; i++)
            if (d[i])
                memcpy(d[i] + l * size, v + i * size, size);
    }
}

static void load_4(struct warp *w, const struct op *o, uint32_t m) {
    load_plain(w, o, m, 4);
}

static void load_8(struct warp *w, const struct op *o, uint32_t m) {
    load_plain(w, o, m, 8);
}

/* Loads to wider registers, extended by zeros or by the sign. */
static void load_any(struct warp *w, const struct op *o, uint32_t m) {
    for (uint32_t rest = m; rest; rest &= rest - 1) {
        uint32_t l = (uint32_t)__builtin_ctz(rest);
        const uint8_t *p = access_at(w, o, l, (size_t)o->size * o->n_list, false);
        uint8_t v[32];

        memcpy(v, p, (size_t)o->size * o->n_list);
        for (uint32_t i = 0; i < o->n_list; i++) {
            uint64_t u = 0;

            memcpy(&u, v + i * o->size, o->size);
            if (o->flags & F_SIGNED && u >> (8 * o->size - 1) & 1)
                u |= ~0ull << (8 * o->size - 1);
            if (o->list[i] != -2)
                memcpy((uint8_t *)place(w, o->list[i]) + l * o->width, &u, o->width);
        }
    }
}

static void store(struct warp *w, const struct op *o, uint32_t m) {
    for (uint32_t rest = m; rest; rest &= rest - 1) {
        uint32_t l = (uint32_t)__builtin_ctz(rest);
        uint8_t *p = access_at(w, o, l, (size_t)o->size * o->n_list, true);

        for (uint32_t i = 0; i < o->n_list; i++)
            memcpy(p + i * o->size, (uint8_t *)place(w, o->list[i]) + l * o->width, o->size);
    }
}

/* Stores to the shared memory of any block of the cluster. */
static void store_far(struct warp *w, const struct op *o, uint32_t m) {
    size_t n = (size_t)o->size * o->n_list;

    for (uint32_t rest = m; rest; rest &= rest - 1) {
        uint32_t l = (uint32_t)__builtin_ctz(rest);
        uint64_t address = lane_address(w, o->r[0], o->wide, o->imm, l);
        struct block *there = block_of(w, &address);
        uint8_t *p = shared_of(w, there, address, n, n);

        if (there->kernel->proxies)
            touch(there, o, address, n, DIRTY_WRITTEN);
        for (uint32_t i = 0; i < o->n_list; i++)
            memcpy(p + i * o->size, (uint8_t *)place(w, o->list[i]) + l * o->width, o->size);
    }
}

static enum space read_space(struct instruction *in) {
    return has(in, "global")                             ? GLOBAL
           : has(in, "shared") || has(in, "shared::cta") ? SHARED
           : has(in, "local")                            ? LOCAL
           : has(in, "param")                            ? PARAM
                                                         : GENERIC;
}

/* Accepts modifiers that affect neither the value nor the address. */
static void skip_hints(struct instruction *in, bool load) {
    static const char *const orders[] = {"volatile", "relaxed", "weak"};
    static const char *const scopes[] = {"cta", "gpu", "sys"};
    static const char *const loads[] = {"nc",
                                        "acquire",
                                        "L1::no_allocate",
                                        "L1::evict_last",
                                        "L1::evict_first",
                                        "L2::64B",
                                        "L2::128B",
                                        "L2::256B",
                                        "ca",
                                        "cg",
                                        "cs",
                                        "lu",
                                        "cv"};
    static const char *const stores[] = {"release", "wb", "cg", "cs", "wt"};

    for (int i = 0; i < 3; i++)
        has(in, orders[i]);
    for (int i = 0; i < 3; i++)
        has(in, scopes[i]);
    for (int i = 0; load && i < 13; i++)
        has(in, loads[i]);
    for (int i = 0; !load && i < 5; i++)
        has(in, stores[i]);
}

/* Reads the operands of ld or st. @far: of a block of the cluster (shared::cluster). */
static void read_access(struct instruction *in, bool load, bool far) {
    static const char *const types[] = {"b8",  "u8",  "s8",  "b16", "u16", "s16", "b32",
                                        "u32", "s32", "f32", "b64", "u64", "s64", "f64"};
    struct op *o = in->op;
    uint32_t value = load ? 0 : 1;
    const char *type = in->part[in->n_parts - 1];
    const struct operand *v = &in->operand[value];

    if (far)
        o->space = SHARED;
    else
        o->space = read_space(in);
    skip_hints(in, load);
    o->count = has(in, "v2") ? 2 : has(in, "v4") ? 4 : 1;
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
        if (strcmp(type, types[i]) == 0)
            o->size = (uint8_t)type_size(type);
    if (!o->size || in->n_operands != 2 || (o->count > 1) != (v->kind == LIST) ||
        o->size * o->count > 16)
        refuse(in, "an unknown form of the instruction");
    in->used |= 1u << (in->n_parts - 1);
    o->flags = type[0] == 's' ? F_SIGNED : 0;
    address(in, load ? 1 : 0, 0);
    const struct operand *first = v->kind == LIST ? &in->list[v->first] : v;
    for (uint32_t i = 0; v->kind == LIST && i < v->n && first->kind != REGISTER; i++)
        first = &in->list[v->first + i];
    o->width = first->kind == REGISTER ? first->width : o->size < 2 ? 2 : o->size;
    if (o->width < o->size)
        refuse(in, "a register of too few bits");
    lists(in, value, value, o->width);
    if (o->n_list != o->count)
        refuse(in, "another number of operands");
}

void decode_load(struct instruction *in) {
    struct op *o = in->op;

    read_access(in, true, false);
    o->run = o->size != o->width ? load_any
             : o->size == 4      ? load_4
             : o->size == 8      ? load_8
                                 : load_any;
}

void decode_store(struct instruction *in) {
    bool far = has(in, "shared::cluster");

    read_access(in, false, far);
    if (in->op->space == PARAM)
        refuse(in, "a kernel's parameter is written");
    if (far)
        in->op->run = store_far;
    else
        in->op->run = store;
}

/* ---- atom and red ---- */

enum { ADD, MIN, MAX, AND, OR, XOR, EXCH, CAS, INC };

static uint64_t combined(const struct op *o, uint64_t old, uint64_t b, uint64_t c) {
    bool less = o->flags & F_SIGNED ? (o->size == 8 ? (int64_t)b < (int64_t)old
                                                    : (int32_t)(uint32_t)b < (int32_t)(uint32_t)old)
                                    : b < old;

    switch (o->form[0]) {
    case ADD:
        return o->form[1] ? bits_of(float_of((uint32_t)old) + float_of((uint32_t)b)) : old + b;
    case MIN:
        return less ? b : old;
    case MAX:
        return less ? old : b;
    case AND:
        return old & b;
    case OR:
        return old | b;
    case XOR:
        return old ^ b;
    case EXCH:
        return b;
    case CAS:
        return old == b ? c : old;
    default:
        return old >= b ? 0 : old + 1;
    }
}

static uint64_t lane_value(const struct warp *w, int32_t at, uint32_t width, uint32_t lane) {
    uint64_t v = 0;

    memcpy(&v, (const uint8_t *)place(w, at) + lane * width, width);
    return v;
}

/* Executes an atomic for one lane after the other; the order is arbitrary. r: address, d (or -1),
 * b, c (or -1). */
static void atom(struct warp *w, const struct op *o, uint32_t m) {
    uint64_t order = w->block->launch->order;

    for (uint32_t i = 0; i < LANES; i++) {
        uint32_t l = order % 2 ? LANES - 1 - i : i;
        uint64_t old = 0, next;

        if (!(m >> l & 1))
            continue;
        uint8_t *p = access_at(w, o, l, o->size, true);
        memcpy(&old, p, o->size);
        next = combined(o, old, lane_value(w, o->r[2], o->size, l),
                        o->r[3] >= 0 ? lane_value(w, o->r[3], o->size, l) : 0);
        memcpy(p, &next, o->size);
        if (o->r[1] >= 0)
            memcpy((uint8_t *)place(w, o->r[1]) + l * o->size, &old, o->size);
    }
}

void decode_atom(struct instruction *in) {
    static const char *const names[] = {"add", "min",  "max", "and", "or",
                                        "xor", "exch", "cas", "inc"};
    static const char *const hints[] = {"relaxed", "acquire", "release", "acq_rel",
                                        "gpu",     "cta",     "sys"};
    struct op *o = in->op;
    bool red = in->part[0][0] == 'r';
    const char *type = in->part[in->n_parts - 1];
    int which = -1;

    for (int i = 0; i < 7; i++)
        has(in, hints[i]);
    o->space = read_space(in);
    for (int i = 0; i < 9; i++)
        if (which < 0 && has(in, names[i]))
            which = i;
    o->size = (uint8_t)type_size(type);
    o->form[0] = (uint8_t)which;
    o->form[1] = type[0] == 'f';
    o->flags = type[0] == 's' ? F_SIGNED : 0;
    if (which < 0 || o->size < 4 || !strchr("busf", type[0]) ||
        (o->form[1] && (which != ADD || o->size != 4)) ||
        in->n_operands != (red ? 2u : 3u) + (which == CAS))
        refuse(in, "an unknown form of the instruction");
    in->used |= 1u << (in->n_parts - 1);
    address(in, red ? 0 : 1, 0);
    o->r[1] = red || in->operand[0].kind == SINK ? -1 : target(in, 0, o->size);
    o->r[2] = source(in, red ? 1 : 2, o->size);
    o->r[3] = which == CAS ? source(in, 3, o->size) : -1;
    o->run = atom;
}

/* ---- prefetch ---- */

static void prefetch(struct warp *w, const struct op *o, uint32_t m) {
    for (uint32_t rest = m; rest; rest &= rest - 1) {
        uint32_t l = (uint32_t)__builtin_ctz(rest);

        check_range(w, (uintptr_t)lane_address(w, o->r[0], o->wide, o->imm, l), 1);
    }
}

void decode_prefetch(struct instruction *in) {
    if (!has(in, "global") || (!has(in, "L2") && !has(in, "L1")) || in->n_operands != 1)
        refuse(in, "an unknown form of the instruction");
    in->op->space = GLOBAL;
    address(in, 0, 0);
    in->op->run = prefetch;
}
