#pragma once

/*
 * core - what the parts of the interpreter share: decoded instructions, warps and blocks.
 */

#include "tests/engine/ptx/ptx.h"

#define LANES 32
#define ALL 0xFFFFFFFFu
#define MAX_WARPS 32
#define MAX_BARRIERS 16
#define SHARED_BASE 1024u /* the first bytes of a block's shared memory are the system's */
#define SHARED_MAX (228u << 10)
#define MAX_CLUSTER 8
/* Addresses of shared::cluster that mapa makes: those of block r begin at (r + 1) times this. */
#define CLUSTER_WINDOW (1u << 20)

struct warp;
struct block;

enum op_kind { OP_PLAIN, OP_BRANCH, OP_EXIT, OP_BARRIER };

/* An address of an instruction that has several. */
struct address {
    int64_t imm;
    int32_t place;
    uint8_t wide, space;
};

/* A decoded instruction. r: places of its operands, by their order in the text. */
struct op {
    void (*run)(struct warp *w, const struct op *o, uint32_t mask);
    int32_t r[6];
    int32_t *list;      /* places of operands in braces, one after the other */
    struct address *at; /* of copies */
    int64_t imm;        /* offset of an address, or an immediate */
    int32_t guard;      /* index of a predicate, -1: none */
    uint32_t target;    /* of a branch */
    uint32_t rejoin;    /* where lanes that part here come together again */
    uint16_t n_list;
    uint8_t kind, negated, wide; /* wide: the address is of 64 bits */
    uint8_t space, size, count;  /* of an access: bytes of an element, elements */
    uint8_t width;               /* of the registers of an access, bytes */
    uint8_t flags, form[3];      /* what the instruction's own decoder says */
    uint32_t line;
    const char *text;
};

enum space { GENERIC, GLOBAL, SHARED, LOCAL, PARAM };
enum { F_SIGNED = 1, F_VOLATILE = 2 };

/* Registers that every kernel has, before its own: special ones, each of LANES words. */
enum special {
    S_TID_X,
    S_TID_Y,
    S_TID_Z,
    S_NTID_X,
    S_NTID_Y,
    S_NTID_Z,
    S_CTAID_X,
    S_CTAID_Y,
    S_CTAID_Z,
    S_NCTAID_X,
    S_NCTAID_Y,
    S_NCTAID_Z,
    S_LANEID,
    S_WARPID,
    S_LANEMASK_LT,
    S_CLUSTER_RANK,
    S_CLUSTER_SIZE,
    S_LOCAL,
    N_SPECIAL
};
#define SPECIAL_PLACE(s) ((int32_t)(s)*256)
#define FIRST_PLACE (N_SPECIAL * 256)

struct ptx_kernel {
    char *name, *module;
    struct op *ops;
    uint32_t n_ops;
    size_t reg_bytes; /* of all lanes of a warp */
    uint32_t n_preds;
    uint8_t *consts; /* immediates, each for all lanes */
    size_t const_bytes;
    uint8_t *params;
    size_t param_bytes, shared_bytes, local_bytes;
    uint32_t max_threads, cluster; /* blocks of a cluster; 0: as launched */
    bool proxies; /* has copies in bulk or wgmma, which reach shared memory another way */
    uint64_t n_launches, n_executed;
    uint8_t *ran; /* for each op whether it ran */
};

struct range {
    uintptr_t from, to;
};

/* A cp.async of a lane that has not been waited for. */
struct copying {
    uint8_t *to;
    const uint8_t *from;
    uint32_t group, n, n_from;
    uint8_t lane;
    const struct op *op;
};

struct bulk {
    uint8_t *to;
    const uint8_t *from;
    uint32_t n, barrier;
};

/* Lanes that run together until @rejoin. */
struct part {
    uint32_t pc, rejoin, mask;
};

enum state { RUNNING, YIELDED, AT_BARRIER, AT_CLUSTER, DONE };
/* States of a warp at the barrier of its cluster: it has arrived, and all others have, too. */
enum meeting { APART, ARRIVED, MET };

struct products { /* a wgmma that has not been waited for */
    const struct op *op;
    uint32_t group;
    uint64_t b;
};

struct warp {
    uint8_t *regs;
    const uint8_t *consts;
    uint32_t *preds;
    struct block *block;
    struct part *parts;
    uint32_t n_parts, max_parts;
    uint32_t live;
    enum state state;
    uint32_t barrier;
    enum meeting meeting;
    bool waited, fenced; /* griddepcontrol.wait; wgmma.fence */
    const struct op *op; /* the one that is executed */
    struct copying *copies;
    uint32_t n_copies, max_copies, committed[LANES];
    struct products products[64];
    uint32_t n_products, products_committed;
    struct range last; /* where the last access was */
    uint64_t asked;    /* the mbarrier that was not complete when the warp tried it last */
    uint8_t *local;
    size_t reg_bytes, local_bytes; /* that there is room for */
    uint32_t n_preds;
};

struct block {
    struct block *cluster; /* block 0 of it */
    uint32_t rank, n_ranks;
    struct ptx_kernel *kernel;
    const struct ptx_launch *launch;
    struct warp warp[MAX_WARPS];
    uint32_t n_warps;
    uint8_t *shared; /* SHARED_BASE bytes before the first one in use */
    uint32_t shared_end;
    /* Of each 16 bytes: accessed by threads since the last fence.proxy.async; a copy in bulk is on
     * its way there. */
    uint8_t *dirty;
    struct bulk *bulk;
    uint32_t n_bulk, max_bulk;
    uint32_t arrived[MAX_BARRIERS], expected[MAX_BARRIERS]; /* threads; 0: all */
};
enum { DIRTY_READ = 1, DIRTY_WRITTEN = 2, COMING = 4 };

_Noreturn void fail(const struct op *o, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Returns where a register or an immediate is. Places are multiples of 64; the lowest bit says that
 * it is an immediate. */
static inline void *place(const struct warp *w, int32_t p) {
    return p & 1 ? (uint8_t *)w->consts + (p & ~1) : w->regs + p;
}

/* Ends with an error unless [p, p + n) is allocated. */
void check_range(struct warp *w, uintptr_t p, size_t n);
/* Returns where @n bytes of the block's shared memory are. @dirty: how threads access them, 0: not
 * threads. */
uint8_t *shared_at(struct warp *w, uint64_t address, size_t n, size_t align, int dirty);
/* Shared memory of a block of the warp's cluster, which other ways than threads access. */
uint8_t *shared_of(struct warp *w, struct block *b, uint64_t address, size_t n, size_t align);
/* Returns the block whose shared memory @address of shared::cluster is in, which must not have
 * ended, and makes it an address of that block. */
struct block *block_of(struct warp *w, uint64_t *address);
/* Ends with an error where a product that is not waited for, of any warp of @b, reads some of @n
 * bytes from @address on. */
void look_unread(const struct block *b, const struct op *o, uint64_t address, uint32_t n);
bool has_ended(const struct block *b);

/* flow.c: sets rejoin of all branches. */
void find_joins(struct ptx_kernel *k);
