#pragma once

/* process - the processes that the front starts, each of which is a simulated program. */

#include <uv.h>

#include "tests/front_sim/sim.h"

struct process;

/* Starts a program. It gets the descriptors of @o, which it must hold, and @p until it calls
 * process_exit(). */
typedef void *program_start(struct process *p, const uv_process_options_t *o);
typedef void program_killed(void *program); /* SIGKILL: frees the program */

struct program {
    program_start *start;
    program_killed *killed;
};

/* Programs of processes with argv[1] @flag; no other program is found. */
extern const struct program program_worker, program_next;

/* Ends the process; the program frees itself. */
void process_exit(struct process *p, int status, int term_signal);
int process_pid(const struct process *p);
bool process_kill(int pid, int signum);
/* Returns the number of processes that have not ended. */
uint32_t processes_n(void);
extern uint32_t process_spawn_fails; /* one start in this many fails; 0: none */
