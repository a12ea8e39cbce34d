// This file is empty: no older versions of glibc's symbols are chosen, so a build runs only with the glibc
// that it was made with, or with a later one.
