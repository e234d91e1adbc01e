/*
 * old_math - functions of libm under the versions that glibc 2.28 has.
 *
 * Version 2.29 gave these new symbols, which set no errno by old rules; the values are those of the
 * old symbols. A program that is linked with this file needs no newer libm. The functions are hidden:
 * the loader would take an exported exp2 for libm's old one, and it would call itself for ever.
 */
#pragma GCC visibility push(hidden)
double exp(double x);
double exp2(double x);
double log(double x);
double log2(double x);
double pow(double x, double y);
#pragma GCC visibility pop

double old_exp(double x);
double old_exp2(double x);
double old_log(double x);
double old_log2(double x);
double old_pow(double x, double y);
// The first version that glibc has for the processor.
#ifdef __aarch64__
#define FIRST "GLIBC_2.17"
#else
#define FIRST "GLIBC_2.2.5"
#endif
__asm__(".symver old_exp, exp@" FIRST);
__asm__(".symver old_exp2, exp2@" FIRST);
__asm__(".symver old_log, log@" FIRST);
__asm__(".symver old_log2, log2@" FIRST);
__asm__(".symver old_pow, pow@" FIRST);

double exp(double x) {
    return old_exp(x);
}

double exp2(double x) {
    return old_exp2(x);
}

double log(double x) {
    return old_log(x);
}

double log2(double x) {
    return old_log2(x);
}

double pow(double x, double y) {
    return old_pow(x, y);
}
