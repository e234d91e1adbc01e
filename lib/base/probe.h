#pragma once

/*
 * probe - static probes (USDT) of provider "weft", for bpftrace, perf and SystemTap. A probe is one
 * nop until a tracer replaces it, and a note in the ELF file that says where its arguments are.
 * Without <sys/sdt.h> there are none. docs/reference/traces-and-probes.md lists names and
 * arguments. No argument is text of a prompt or an answer.
 */

#ifdef HAVE_SDT
#include <sys/sdt.h>
#define PROBE2(name, a, b) DTRACE_PROBE2(weft, name, a, b)
#define PROBE3(name, a, b, c) DTRACE_PROBE3(weft, name, a, b, c)
#define PROBE5(name, a, b, c, d, e) DTRACE_PROBE5(weft, name, a, b, c, d, e)
#else
#define PROBE2(name, a, b) ((void)(a), (void)(b))
#define PROBE3(name, a, b, c) ((void)(a), (void)(b), (void)(c))
#define PROBE5(name, a, b, c, d, e) ((void)(a), (void)(b), (void)(c), (void)(d), (void)(e))
#endif
