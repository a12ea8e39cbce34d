// Nothing: without older versions of glibc's symbols, a build runs with the glibc it was made with, and later
// ones.
