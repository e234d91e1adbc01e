#include <criterion/criterion.h>

int main(void) {
    return plain_run_all();
}
