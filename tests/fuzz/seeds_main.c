/* usage: seeds DIR: the inputs that fuzzing starts from, in a folder for each target. */
#include <stdio.h>
#include <sys/stat.h>

#include "fuzz/target.h"

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: seeds DIR\n");
        return 2;
    }
    mkdir(argv[1], 0777);
    target_write_seeds(argv[1]);
    return 0;
}
