#pragma once

/*
 * core - common types of the interpreter: decoded instructions, warps and blocks.
 */

#include "tests/engine/ptx/ptx.h"

#define LANES 32
#define ALL 0xFFFFFFFFu
#define MAX_WARPS 32
#define MAX_BARRIERS 16
#define SHARED_BASE 1024u /* first bytes of a block's shared memory, which the system reserves */
#define SHARED_MAX (228u << 10)
#define MAX_CLUSTER 8
/* Size of a block's window of shared::cluster: addresses of block r begin at (r + 1) times this. */
#define CLUSTER_WINDOW (1u << 20)

struct warp;
struct block;

enum op_kind { OP_PLAIN, OP_BRANCH, OP_EXIT, OP_BARRIER };

/* One of several address operands of an instruction. */
struct address {
    int64_t imm;
    int32_t place;
    uint8_t wide, space;
};

/* A decoded instruction. r: places of its operands, in the order of the text. */
struct op {
    void (*run)(struct warp *w, const struct op *o, uint32_t mask);
    int32_t r[6];
    /* places of the operands in braces, consecutively */
    int32_t *list;
    /* addresses, for copies */
    struct address *at;
    /* offset of an address, or an immediate */
    int64_t imm;
    /* index of the guard predicate, or -1 */
    int32_t guard;
    /* of a branch: index of the target op */
    uint32_t target;
    /* op at which lanes that diverge here reconverge */
    uint32_t rejoin;
    uint16_t n_list;
    /* wide: the address has 64 bits */
    uint8_t kind, negated, wide;
    /* of a memory access: bytes of an element, number of elements */
    uint8_t space, size, count;
    /* of a memory access: bytes of a register */
    uint8_t width;
    /* used by the instruction's decoder */
    uint8_t flags, form[3];
    uint32_t line;
    const char *text;
};

enum space { GENERIC, GLOBAL, SHARED, LOCAL, PARAM };
enum { F_SIGNED = 1, F_VOLATILE = 2 };

/* Special registers, LANES words each, which precede the registers of every kernel. */
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
    /* for all lanes of a warp */
    size_t reg_bytes;
    uint32_t n_preds;
    /* immediates, repeated for all lanes */
    uint8_t *consts;
    size_t const_bytes;
    uint8_t *params;
    size_t param_bytes, shared_bytes, local_bytes;
    /* blocks of a cluster; 0: as the launch says */
    uint32_t max_threads, cluster;
    /* uses bulk copies or wgmma, which access shared memory through the async proxy */
    bool proxies;
    uint64_t n_launches, n_executed;
    /* for each op, whether it was executed */
    uint8_t *ran;
};

struct range {
    uintptr_t from, to;
};

/* A lane's cp.async that has not been waited for. */
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

/* Lanes that execute together until @rejoin. */
struct part {
    uint32_t pc, rejoin, mask;
};

enum state { RUNNING, YIELDED, AT_BARRIER, AT_CLUSTER, DONE };
/* State of a warp at the barrier of its cluster: not there, arrived, or released since all have
 * arrived. */
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
    /* by griddepcontrol.wait; by wgmma.fence */
    bool waited, fenced;
    /* its block is the one of the grid that may not end without griddepcontrol.wait */
    bool must_wait;
    /* the current instruction */
    const struct op *op;
    struct copying *copies;
    uint32_t n_copies, max_copies, committed[LANES];
    struct products products[64];
    uint32_t n_products, products_committed;
    /* allocation of the last access */
    struct range last;
    /* address of the mbarrier that was incomplete at the warp's last try */
    uint64_t asked;
    uint8_t *local;
    /* allocated sizes */
    size_t reg_bytes, local_bytes;
    uint32_t n_preds;
};

struct block {
    /* block 0 of the cluster */
    struct block *cluster;
    uint32_t rank, n_ranks;
    struct ptx_kernel *kernel;
    const struct ptx_launch *launch;
    struct warp warp[MAX_WARPS];
    uint32_t n_warps;
    /* begins with SHARED_BASE reserved bytes */
    uint8_t *shared;
    uint32_t shared_end;
    /* Flags for each 16 bytes: accessed by threads since the last fence.proxy.async, or the target
     * of a bulk copy in flight. */
    uint8_t *dirty;
    struct bulk *bulk;
    uint32_t n_bulk, max_bulk;
    /* number of threads; 0: all */
    uint32_t arrived[MAX_BARRIERS], expected[MAX_BARRIERS];
};
enum { DIRTY_READ = 1, DIRTY_WRITTEN = 2, COMING = 4 };

_Noreturn void fail(const struct op *o, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Returns the address of a register or an immediate. Places are multiples of 64; the lowest bit
 * marks an immediate. */
static inline void *place(const struct warp *w, int32_t p) {
    return p & 1 ? (uint8_t *)w->consts + (p & ~1) : w->regs + p;
}

/* Fails unless [p, p + n) is allocated. */
void check_range(struct warp *w, uintptr_t p, size_t n);
/* Returns the address of @n bytes of the block's shared memory. @dirty: the kind of access by
 * threads, or 0 for other accesses. */
uint8_t *shared_at(struct warp *w, uint64_t address, size_t n, size_t align, int dirty);
/* Returns an address in the shared memory of a block of the cluster, for an access through the
 * async proxy. */
uint8_t *shared_of(struct warp *w, struct block *b, uint64_t address, size_t n, size_t align);
/* Returns the block that @address of shared::cluster belongs to, which must be running, and
 * converts the address to one of that block. */
struct block *block_of(struct warp *w, uint64_t *address);
/* Fails if a product in flight, of any warp of @b, reads some of the @n bytes at @address. */
void look_unread(const struct block *b, const struct op *o, uint64_t address, uint32_t n);
bool has_ended(const struct block *b);

/* Sets `rejoin` of all branches (flow.c). */
void find_joins(struct ptx_kernel *k);
