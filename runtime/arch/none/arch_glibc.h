// Nothing: without older versions of glibc's symbols, a build runs with the glibc that it was made with, and
// later ones.
