// A program that uses one of its library's two kernels.

#include "demo.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    enum demo_status status;
    if (argc == 2 && !strcmp(argv[1], "matmul"))
        status = demo_matmul();
    else if (argc == 2 && !strcmp(argv[1], "fill"))
        status = demo_fill();
    else if (argc == 2 && !strcmp(argv[1], "overrun"))
        status = demo_overrun();
    else {
        fprintf(stderr, "usage: main matmul|fill|overrun\n");
        return 2;
    }
    if (status == DEMO_OK)
        puts("SUCCESS");
    return status;
}
