// Versions of symbols that glibc 2.28 has: unknown. What is built runs with the glibc that it was built with,
// and later.
