#pragma once

/*
 * store - a file of slots. Each slot holds the bytes of a page, or of a snapshot of a recurrent
 * state, and their identity. The store does not search: a pager does, whose pages and snapshots are
 * the slots, by number (kv_pager_restore()); the slot of snapshot i is store_n_slots() + i. Data of
 * the file is used only if its checksums are right. One thread reads and writes slots; another
 * thread may meanwhile call the functions that do not access the file. The layout is at the top of
 * store.c.
 */

#include "kvpager/kvpager.h"
#include "kvpager/media.h"

/* Answers of the functions. */
#define STORE_FREE 1 /* the slot is empty */
#define STORE_BAD 2  /* damaged, or not the page that was expected */
#define STORE_NEW 3  /* store_open: the file was empty */
/* store_open: the file was damaged or of another identity, and was emptied */
#define STORE_CLEARED 4
#define STORE_MORE 5 /* store_go_on: more pieces follow */
#define STORE_SLOTS_MAX (1u << 20)
#define STORE_STATES_MAX 4096u /* most states that an engine has in host memory */
#define STORE_MEDIA 40u        /* most pictures of a page */

struct store;

/* Id of a page or state that was written. No other one gets it, in this run or a later one. All
 * zero: none. */
struct store_id {
    uint64_t run, n;
};

/* Describes the bytes of a slot. */
struct store_head {
    /* parent of a page: the page before it, none at position 0; parent of a state: the page that
     * ends at its position. */
    struct store_id id, parent;
    struct kv_isolation isolation;
    /* number of pages before it; for a state, before its parent */
    uint32_t depth;
    /* takes the place of padding, so that all written bytes are initialised */
    uint32_t zero;
    /* grows with each write */
    uint64_t stamp;
};

/* The caller owns identity, which only store_open() reads. */
struct store_opts {
    /* readable and writable; owned by the caller, and open as long as the store exists */
    int fd;
    /* largest size of the file */
    uint64_t n_bytes;
    uint32_t page_tokens;
    uint64_t page_bytes;
    /* 0: the model has no recurrent states */
    uint64_t state_bytes;
    /* Data that must be equal for the stored bytes to be usable. */
    const void *identity;
    size_t n_identity;
};

/* Brings the file to its size and checks that it has this identity. Returns 0: there may be pages
 * in it; STORE_NEW, STORE_CLEARED: there are none; -ENOSPC: @n_bytes are not enough for one page
 * and one state; -EINVAL: page_tokens or page_bytes out of range; or another negative errno. */
int store_open(struct store **out, const struct store_opts *opts);
/* Closes the file, whose pages stay. Accepts NULL, returns NULL. */
struct store *store_free(struct store *s);
DEFINE_FREEP(struct store, store)

/* Return the numbers of pages and of states that the file has room for. States have half of the
 * bytes. */
uint32_t store_n_slots(const struct store *s);
uint32_t store_n_states(const struct store *s);
/* Returns true if the file has been deleted since store_open(). */
bool store_is_deleted(const struct store *s);
/* Returns the bytes of the file that slot @i takes, including head and padding. */
uint64_t store_slot_bytes(const struct store *s, uint32_t i);

/* Reads the head of slot @i. @tokens has room for the tokens of a page; a state's slot does not
 * change it. A row of picture @media[n] is token -1 - n. Returns 0, STORE_FREE, STORE_BAD or
 * -errno. */
int store_read_head(const struct store *s, uint32_t i, struct store_head *out, int32_t *tokens,
                    struct kv_medium media[static STORE_MEDIA]);

/* Enters the pages whose prefixes are complete in the file into @slots, an empty pager whose pages
 * and snapshots are its slots. @media assigns the numbers of pictures; if it is NULL, pages with
 * pictures are left out. Sets @id and @written of the entered slots. Raises *stamp to the greatest
 * stamp in the file; *n_bad counts damaged heads. Returns 0 or -ENOMEM. */
int store_enter(const struct store *s, struct kv_pager *slots, struct kv_media *media,
                struct store_id *id, bool *written, uint64_t *stamp, uint64_t *n_bad);

/* The bytes of a slot on their way to or from the file, in pieces of a page's size at most, so that
 * one thread can do several in turns: a state is as large as many pages. */
struct store_io;

/* Begins to read the bytes of slot @i to @bytes. The slot must hold the page or state named @id.
 * Returns 0, STORE_FREE, STORE_BAD or -errno. */
int store_read(struct store_io **out, const struct store *s, uint32_t i, const struct store_id *id,
               void *bytes);
/* Begins to replace the content of slot @i, which is lost from the first piece on, even if writing
 * fails. @tokens are those of a page. Rows of picture @media[n] are tokens -1 - n; n grows by one
 * from picture to picture and stays below STORE_MEDIA. Returns 0 or -ENOMEM. */
int store_write(struct store_io **out, const struct store *s, uint32_t i,
                const struct store_head *head, const int32_t *tokens, const struct kv_medium *media,
                const void *bytes);
/* Reads or writes the next piece. Returns STORE_MORE, or at the end 0, STORE_BAD (the bytes that
 * were read are damaged) or -errno. */
int store_go_on(struct store_io *io);
/* Frees @io, also before the transfer has ended. Accepts NULL, returns NULL. */
struct store_io *store_io_free(struct store_io *io);
