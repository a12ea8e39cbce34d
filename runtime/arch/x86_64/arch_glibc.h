// Versions of symbols that glibc 2.28 has on x86-64, for portable.h.

#ifndef GPT_ARCH_GLIBC_H
#define GPT_ARCH_GLIBC_H

// glibc 2.34 moved these from libpthread and libdl to libc; we still link to both, which are empty
// there.
#ifdef __GLIBC__
#define GPT_OLD(function, version) __asm__(".symver " #function ", " #function "@GLIBC_" #version)
GPT_OLD(pthread_condattr_setclock, 2.3.3);
GPT_OLD(pthread_create, 2.2.5);
GPT_OLD(pthread_detach, 2.2.5);
GPT_OLD(pthread_key_create, 2.2.5);
GPT_OLD(pthread_once, 2.2.5);
GPT_OLD(pthread_rwlock_rdlock, 2.2.5);
GPT_OLD(pthread_rwlock_unlock, 2.2.5);
GPT_OLD(pthread_rwlock_wrlock, 2.2.5);
GPT_OLD(pthread_setspecific, 2.2.5);
GPT_OLD(sem_init, 2.2.5);
GPT_OLD(sem_post, 2.2.5);
GPT_OLD(sem_wait, 2.2.5);
#ifndef GPT_OWN_DLFCN // else the hook's own definitions of these would get the old versions
GPT_OLD(dladdr, 2.2.5);
GPT_OLD(dlclose, 2.2.5);
GPT_OLD(dlerror, 2.2.5);
GPT_OLD(dlopen, 2.2.5);
GPT_OLD(dlsym, 2.2.5);
#endif
#undef GPT_OLD
#endif

#endif
