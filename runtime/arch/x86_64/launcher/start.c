// Start-up on glibc before 2.34. The startup code of a later one asks for a later
// __libc_start_main; the linker has it call this instead (--wrap).

#ifdef __GLIBC__
int gpt_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void),
                   void (*fini)(void), void (*end)(void), void *stack);
int __wrap___libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void),
                             void (*fini)(void), void (*end)(void), void *stack);
__asm__(".symver gpt_start_main, __libc_start_main@GLIBC_2.2.5");

int __wrap___libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void),
                             void (*fini)(void), void (*end)(void), void *stack) {
    return gpt_start_main(main, argc, argv, init, fini, end, stack);
}
#endif
