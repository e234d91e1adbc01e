/* Reports of kv_pager_check(): none for a sound pager, the right message for each damage. */

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvpager/private.h"

enum { T = 4, PAGES = 12, STATES = 3, SNAPSHOTS = 5, WINDOWS = 8, MAX_TOKENS = 32 };

static const struct kv_isolation mine = {{1}};

/* A pager with an example of everything that is checked. Numbers of pages: */
static struct kv_pager *p, *host;
static struct kv_seq *s, *pinned, *bare;
static kv_page first, second; /* published pages of @s; the first is also in the table of @pinned */
static kv_page own;           /* owned by @s */
static kv_page root, leaf;    /* cached pages: the leaf behind the root */
static kv_page unused;

/* Snapshots: of the first page, of the second page (passing), and of the leaf; then snapshots of no
 * page, of which the first is taken and the other belongs to the peer. */
enum { OF_FIRST, OF_SECOND, OF_LEAF, TAKEN, OF_HOST };

static const int32_t *tokens_of(int32_t chain) {
    static int32_t tokens[MAX_TOKENS];

    for (int32_t i = 0; i < MAX_TOKENS; i++)
        tokens[i] = chain * 100 + i;
    return tokens;
}

static void commit(struct kv_seq *of, int32_t chain, uint32_t n) {
    kv_seq_commit(of, tokens_of(chain), n);
}

static void take(uint32_t snapshot) {
    cr_assert_eq(kv_snapshot_acquire(p, NULL), snapshot);
}

static struct kv_seq *begin(void) {
    struct kv_seq *new;

    cr_assert_eq(kv_seq_new(&new, p, &mine), 0);
    return new;
}

/* Makes the pages and sequences that pagers with snapshots and pagers with windows have in
 * common. */
static void fill(const struct kv_opts *o, uint32_t n_first) {
    cr_assert_eq(kv_pager_new(&p, o), 0);
    s = begin();
    cr_assert_eq(kv_seq_grow(s, 3 * T), 0);
    commit(s, 1, n_first);
    first = s->page[0], second = s->page[1], own = s->page[2];
}

static void fill_rest(void) {
    struct kv_seq *ended = begin();

    cr_assert_eq(kv_seq_grow(ended, 2 * T), 0);
    commit(ended, 2, 2 * T);
    root = ended->page[0], leaf = ended->page[1];
    if (p->opts.n_snapshots > 0) {
        take(OF_LEAF);
        kv_seq_attach_snapshot(ended, OF_LEAF, false);
        take(TAKEN);
    }
    kv_seq_free(ended);
    pinned = begin();
    cr_assert_eq(kv_seq_attach(pinned, tokens_of(1), T), T);
    kv_seq_pin(pinned);
    bare = begin();
    unused = pool_number(&p->pool, LIST_ENTRY(p->pool.free.next, struct page, link));
}

static void fill_with_snapshots(void) {
    struct kv_opts o = {.n_pages = PAGES,
                        .page_tokens = T,
                        .max_seqs = 4,
                        .max_seq_tokens = MAX_TOKENS,
                        .n_states = STATES,
                        .n_snapshots = SNAPSHOTS};

    fill(&o, T);
    take(OF_FIRST);
    kv_seq_attach_snapshot(s, OF_FIRST, false);
    commit(s, 1, 2 * T);
    take(OF_SECOND);
    kv_seq_attach_snapshot(s, OF_SECOND, true);
    fill_rest();
    o.peer = p;
    cr_assert_eq(kv_pager_new(&host, &o), 0);
    cr_assert_eq(kv_pager_restore(host, 4, KV_NO_PAGE, &mine, tokens_of(3)), 0);
    cr_assert_eq(kv_pager_restore_snapshot(host, OF_HOST, 4), 0);
}

static void fill_with_windows(void) {
    struct kv_opts o = {.n_pages = PAGES,
                        .page_tokens = T,
                        .max_seqs = 4,
                        .max_seq_tokens = MAX_TOKENS,
                        .n_windows = WINDOWS,
                        .window = T + 1};

    fill(&o, 2 * T);
    fill_rest();
}

/* Writes the line that the check must print. @page KV_NO_PAGE: the line names no page. */
static void say(const char *what, kv_page page) {
    fprintf(stderr, "kv_pager_check: invariant %s", what);
    if (page != KV_NO_PAGE)
        fprintf(stderr, " (page %u)", page);
    fputc('\n', stderr);
}

static struct page *at(kv_page page) {
    return &p->pool.page[page];
}

/* Links the first two nodes of @l into a separate ring, into which @l leads. */
static void make_ring(struct list *l) {
    struct list *a = l->next, *b = a->next;

    a->prev = a->next = b;
    b->prev = b->next = a;
}

static void take_from_bucket(kv_page page) {
    for (uint32_t i = 0; i < p->prefix.n_buckets; i++)
        if (p->prefix.bucket[i] == page)
            p->prefix.bucket[i] = at(page)->next;
}

static struct list stray;

/* A row of the functions below, which are lists: row @i does the statements, and writes the line
 * that the check of invariants must print then. */
#define DAMAGE(text, page, ...)                                                                    \
    if (i == n++) {                                                                                \
        __VA_ARGS__;                                                                               \
        say(text, page);                                                                           \
        return true;                                                                               \
    }

/* Does damage @i to pages and sequences. Returns false if there is no such damage. */
static bool damage(int i) {
    int n = 0;

    DAMAGE("1 broken: no such state", unused, at(unused)->state = PAGE_STATES);
    DAMAGE("1 broken: held, but in a list", own, list_push_back(&p->pool.free, &at(own)->link));
    DAMAGE("1 broken: counts of states do not add up", KV_NO_PAGE, p->pool.n_in[PAGE_FREE]++);
    DAMAGE("2 broken: references do not add up", first, at(first)->refs++);
    DAMAGE("2 broken: references do not fit the state", unused, list_remove(&at(unused)->link);
           at(unused)->state = PAGE_OWNED);
    DAMAGE("2 broken: references do not fit the state", own, bare->page[bare->n_pages++] = own;
           at(own)->refs++);
    DAMAGE("2 broken: pinned references do not add up", first, at(first)->pinned++);
    DAMAGE("2 broken: pinned pages do not add up", KV_NO_PAGE, p->stats.n_pinned++);
    DAMAGE("3 broken: published is not what is committed and full", KV_NO_PAGE, s->n_published--);
    DAMAGE("3 broken: a pinned sequence has pages of its own", KV_NO_PAGE, s->pinned = true);
    DAMAGE("3 broken: a committed full page is not shared", first, at(first)->state = PAGE_CACHED);
    DAMAGE("4 broken: a page that will be written is not owned", own, at(own)->state = PAGE_SHARED);
    DAMAGE("5 broken: a page of another isolation key", first, at(first)->isolation.key[15]++);
    DAMAGE("5 broken: a parent of another isolation key", leaf, at(leaf)->isolation.key[15]++);
    DAMAGE("5 broken: a key is not the hash of parent and tokens", leaf, at(leaf)->key.low64++);
    DAMAGE("5 broken: a key is not the hash of parent and tokens", leaf, at(leaf)->key.high64++);
    DAMAGE("5 broken: a key is not the hash of parent and tokens", leaf,
           pool_tokens(&p->pool, at(leaf))[T - 1]++);
    DAMAGE("5 broken: a published page is not found", leaf, take_from_bucket(leaf));
    DAMAGE("7 broken: a sequence is longer than its pages", KV_NO_PAGE, s->n_committed = 3 * T + 1);
    DAMAGE("7 broken: a sequence is longer than its pages", KV_NO_PAGE,
           s->n_pages = MAX_TOKENS / T + 1);
    DAMAGE("7 broken: no such page in a table", PAGES, s->page[2] = PAGES);
    DAMAGE("7 broken: a page's parent is not the page before it", second,
           at(second)->parent = KV_NO_PAGE);
    DAMAGE("7 broken: sequences do not add up", KV_NO_PAGE, p->stats.n_seqs++);
    DAMAGE("7 broken: a published page without its parent", leaf,
           kv_pager_forget_snapshot(p, OF_LEAF);
           at(leaf)->parent = unused);
    DAMAGE("8 broken: a list holds something else", KV_NO_PAGE,
           list_push_front(&p->pool.free, &stray));
    DAMAGE("8 broken: a page in the wrong list", leaf, list_remove(&at(leaf)->link);
           list_push_back(&p->pool.free, &at(leaf)->link));
    DAMAGE("8 broken: a page in the wrong list", unused, at(unused)->link.prev = &stray);
    DAMAGE("8 broken: a list does not hold all pages of its state", KV_NO_PAGE,
           list_remove(&at(unused)->link));
    DAMAGE("8 broken: a list does not hold all pages of its state", KV_NO_PAGE,
           list_remove(&at(leaf)->link));
    DAMAGE("8 broken: a list does not hold all pages of its state", KV_NO_PAGE,
           make_ring(&p->pool.free));
    DAMAGE("8 broken: a parent would be evicted before its child", root,
           list_remove(&at(leaf)->link);
           list_push_back(&p->evict.idle, &at(leaf)->link));
    DAMAGE("8 broken: children do not add up", root, at(root)->n_children++);
    return false;
}

static bool damage_snapshots(int i) {
    int n = 0;

    DAMAGE("6 broken: a snapshot that does not know the one before it", second,
           p->snapshot[OF_SECOND].before++);
    DAMAGE("6 broken: a snapshot that does not know the one before it", leaf,
           p->snapshot[OF_LEAF].n_saves -= T);
    DAMAGE("6 broken: a snapshot that is taken, or passes, and a page's of the peer", 4,
           p->snapshot[OF_HOST].taken = true);
    DAMAGE("6 broken: a snapshot that is taken, or passes, and a page's of the peer", 4,
           host->snapshot[OF_SECOND].page = 4);
    DAMAGE("6 broken: a snapshot of two prefixes", first, host->snapshot[OF_FIRST].page = 4);
    DAMAGE("6 broken: a page with a snapshot that is not its own", own,
           at(own)->snapshot = OF_FIRST);
    DAMAGE("6 broken: a page with a snapshot that is not its own", second,
           at(second)->snapshot = SNAPSHOTS);
    DAMAGE("6 broken: a page with a snapshot that is not its own", second,
           at(second)->snapshot = OF_LEAF);
    DAMAGE("6 broken: a snapshot that is taken and a page's", KV_NO_PAGE,
           p->snapshot[OF_FIRST].taken = true);
    DAMAGE("6 broken: a snapshot that is held and no page's", KV_NO_PAGE,
           p->snapshot[TAKEN].n_held++);
    DAMAGE("6 broken: a passing snapshot that no sequence knows", KV_NO_PAGE,
           p->snapshot[OF_FIRST].passing = s);
    DAMAGE("6 broken: a passing snapshot that no sequence knows", KV_NO_PAGE,
           p->snapshot[OF_SECOND].passing = NULL;
           p->snapshot[TAKEN].passing = s; s->passing = TAKEN);
    DAMAGE("6 broken: a sequence's passing snapshot is not its own", KV_NO_PAGE,
           bare->passing = OF_FIRST);
    DAMAGE("6 broken: snapshots do not add up", KV_NO_PAGE, p->stats.n_snapshots++);
    DAMAGE("6 broken: snapshots do not add up", KV_NO_PAGE,
           p->snapshot[TAKEN] = (struct kv_snapshot){.page = root, .n_saves = T});
    DAMAGE("9 broken: a sequence with a wrong state slot", KV_NO_PAGE, s->state = NO_STATE);
    DAMAGE("9 broken: a sequence with a wrong state slot", KV_NO_PAGE, s->state = STATES);
    DAMAGE("9 broken: a sequence with a wrong state slot", KV_NO_PAGE,
           pinned->state = p->free_state[0]);
    DAMAGE("9 broken: a sequence's state slot is free", KV_NO_PAGE, p->free_state[0] = bare->state);
    DAMAGE("9 broken: two sequences have one state slot", KV_NO_PAGE, bare->state = s->state);
    DAMAGE("9 broken: state slots do not add up", KV_NO_PAGE, p->stats.n_states++);
    return false;
}

static bool damage_windows(int i) {
    struct windows *w = &p->windows;
    kv_page held = at(second)->window, idle = at(root)->window;
    int n = 0;

    DAMAGE("10 broken: a sequence holds others than the window pages that it reads", KV_NO_PAGE,
           s->n_behind--);
    DAMAGE("10 broken: a window page that is read is not there", second,
           at(second)->window = KV_NO_PAGE);
    DAMAGE("10 broken: a page with a window page that is not its own", second,
           at(second)->window = WINDOWS);
    DAMAGE("10 broken: a page with a window page that is not its own", second,
           at(second)->window = idle);
    DAMAGE("10 broken: references of a window page do not add up", second, w->at[held].refs++);
    DAMAGE("10 broken: a list of window pages holds something else", KV_NO_PAGE,
           list_push_front(&w->free, &stray));
    DAMAGE("10 broken: a window page in the wrong list", root, list_remove(&w->at[idle].link);
           list_push_front(&w->free, &w->at[idle].link));
    DAMAGE("10 broken: a window page in the wrong list", second,
           list_push_front(&w->passed, &w->at[held].link));
    DAMAGE("10 broken: a window page in the wrong list", KV_NO_PAGE,
           w->free.next->next->prev = &stray);
    DAMAGE("10 broken: free window pages do not add up", KV_NO_PAGE, w->n_free++);
    DAMAGE("10 broken: free window pages do not add up", KV_NO_PAGE, list_pop_front(&w->free);
           w->n_free--);
    DAMAGE("10 broken: idle window pages do not add up", KV_NO_PAGE, w->n_idle++);
    DAMAGE("10 broken: idle window pages do not add up", KV_NO_PAGE, list_remove(&w->at[idle].link);
           w->n_idle--);
    DAMAGE("10 broken: a list of window pages holds something else", KV_NO_PAGE,
           make_ring(&w->free));
    return false;
}

/* Checks that the check of a pager with damage @i ends the process with the right line. Returns
 * false if there is no such damage. */
static bool says_so(bool (*harm)(int), int i) {
    char text[512] = "";
    int fd[2], status;
    size_t n = 0;
    ssize_t r;

    cr_assert_eq(pipe(fd), 0);
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        alarm(20);
        dup2(fd[1], STDERR_FILENO);
        close(fd[0]);
        close(fd[1]);
        if (!harm(i))
            _exit(1);
        kv_pager_check(p);
        _exit(0);
    }
    close(fd[1]);
    while ((r = read(fd[0], text + n, sizeof(text) - 1 - n)) > 0)
        n += (size_t)r;
    close(fd[0]);
    cr_assert_eq(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 1)
        return false;
    size_t half = n / 2;
    cr_expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "damage %d: %s", i, text);
    cr_expect(n > 0 && n % 2 == 0 && memcmp(text, text + half, half) == 0, "damage %d: %s", i,
              text);
    return true;
}

static void free_all(void) {
    kv_seq_free(s);
    kv_seq_free(pinned);
    kv_seq_free(bare);
    kv_pager_free(host);
    kv_pager_free(p);
}

/* Does each damage in a child process. */
static void each_is_named(bool (*harm)(int), int n) {
    list_init(&stray);
    kv_pager_check(p);
    for (int i = 0; i <= n; i++)
        cr_assert_eq(says_so(harm, i), i < n);
}

Test(kv_check, what_is_damaged_is_named) {
    fill_with_snapshots();
    each_is_named(damage, 32);
    free_all();
}

Test(kv_check, damage_of_snapshots_and_states_is_named) {
    fill_with_snapshots();
    each_is_named(damage_snapshots, 21);
    kv_snapshot_free(p, TAKEN);
    free_all();
}

Test(kv_check, damage_of_windows_is_named) {
    fill_with_windows();
    each_is_named(damage_windows, 14);
    free_all();
}

/* Only the keys of one part are hashed. */
Test(kv_check, a_part_has_every_nth_key) {
    fill_with_snapshots();
    for (uint32_t part = 0; part < T; part++) {
        int status;
        pid_t child = fork();

        cr_assert_geq(child, 0);
        if (child == 0) {
            close(STDERR_FILENO);
            at(leaf)->key.low64++;
            kv_pager_check_part(p, part, T);
            _exit(0);
        }
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_expect_eq(WIFSIGNALED(status), part == leaf % T, "part %u of page %u", part, leaf);
    }
    free_all();
}
